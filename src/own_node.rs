//! A node with handlers of one's own, from configuration to the end of its drain, in a few lines.

use std::path::{Path, PathBuf};

use longshore_actors::{Handler, Handlers, Node};
use longshore_backbone::Connection;

use crate::config::{ConfigError, Configuration, NatsError, nats};
use crate::handlers;
use crate::signals::Signals;

/// Why a node could not start, or ended.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The configuration has mistakes.
    #[error(transparent)]
    Configuration(#[from] ConfigError),
    /// The options for NATS cannot be read.
    #[error(transparent)]
    Options(#[from] NatsError),
    /// The node cannot start, gave up, or could not confirm everything at its end.
    #[error(transparent)]
    Node(#[from] longshore_actors::Error),
    /// HTTP cannot be served.
    #[cfg(feature = "http")]
    #[error(transparent)]
    Http(#[from] crate::http::HttpError),
    /// Traces cannot be exported as the settings say.
    #[cfg(feature = "traces")]
    #[error(transparent)]
    Traces(#[from] crate::traces::TraceError),
    /// The process cannot listen to signals.
    #[error("cannot listen to signals")]
    Signals(#[source] std::io::Error),
}

/// A node that has not been started yet: [`node()`] makes one.
#[derive(Debug)]
#[must_use = "the node is not started yet"]
pub struct NodeBuilder {
    handlers: Handlers,
    file: Option<PathBuf>,
    settings: Vec<(String, String)>,
    connection: Option<Connection>,
}

/// A node with the built-in handlers, configured by the environment, as `longshore serve` without a file: add handlers
/// and run it.
///
/// ```no_run
/// use longshore::{Context, HandlerError, RunError, typed};
///
/// #[derive(serde::Deserialize)]
/// struct Greet { name: String }
///
/// async fn greet(greet: Greet, _: Context) -> Result<String, HandlerError> {
///     Ok(format!("Hello, {}!", greet.name))
/// }
///
/// #[tokio::main]
/// async fn main() -> Result<(), RunError> {
///     longshore::node().handler("greet", typed(greet)).run_until_signal().await
/// }
/// ```
pub fn node() -> NodeBuilder {
    NodeBuilder { handlers: handlers::built_in(), file: None, settings: Vec::new(), connection: None }
}

impl NodeBuilder {
    /// Adds a handler for the type of this name, or for types to which the configuration gives it.
    pub fn handler(mut self, name: impl Into<String>, handler: impl Handler) -> Self {
        self.handlers = self.handlers.with(name, handler);
        self
    }

    /// Reads this configuration file.
    pub fn config(mut self, file: impl AsRef<Path>) -> Self {
        self.file = Some(file.as_ref().to_owned());
        self
    }

    /// Sets a setting by the name of its variable (`LONGSHORE_NODE__LEASE`, `5s`), over file and environment.
    pub fn set(mut self, variable: impl Into<String>, value: impl Into<String>) -> Self {
        self.settings.push((variable.into(), value.into()));
        self
    }

    /// Connects there, instead of where the environment says.
    pub fn connection(mut self, connection: Connection) -> Self {
        self.connection = Some(connection);
        self
    }

    /// Starts the node, which takes work from then on.
    ///
    /// # Errors
    /// Says what is wrong.
    pub async fn start(self) -> Result<RunningNode, RunError> {
        let running = self.spawn().await?;
        running.ready().await;
        Ok(running)
    }

    /// As [`Self::start`], but it may not be ready yet.
    async fn spawn(self) -> Result<RunningNode, RunError> {
        let configuration = Configuration::load(self.file.as_deref(), &self.settings, &self.handlers)?;
        configuration.warnings().iter().for_each(|warning| tracing::warn!("{warning}"));
        let connection = match self.connection {
            Some(connection) => connection,
            None => nats::Options::from_environment()?.connection()?,
        };
        #[cfg(feature = "http")]
        let http = crate::http::Server::start(configuration.http()).await?;
        #[allow(unused_mut, reason = "only with the feature `traces`")]
        let mut settings = configuration.settings().clone();
        #[cfg(feature = "traces")]
        {
            settings.traces = crate::traces::exporter(configuration.telemetry(), &settings.name)?;
        }
        let node = Node::begin(settings, connection, configuration.handlers()).await?;
        Ok(RunningNode {
            node,
            #[cfg(feature = "http")]
            http,
        })
    }

    /// Starts the node, and runs it until SIGTERM, SIGINT, SIGHUP or SIGQUIT; then drains it.
    ///
    /// # Errors
    /// Says what is wrong.
    pub async fn run_until_signal(self) -> Result<(), RunError> {
        let mut signals = Signals::listen().map_err(RunError::Signals)?;
        let running = tokio::select! {
            biased;
            running = self.spawn() => running?,
            // The node has taken no job yet, so there is nothing to drain.
            _ = signals.next() => return Ok(()),
        };
        tokio::select! {
            () = running.ready() => running.run_until(signals).await,
            _ = signals.next() => running.drain().await,
        }
    }
}

/// A node that takes work.
#[derive(Debug)]
pub struct RunningNode {
    node: Node,
    #[cfg(feature = "http")]
    http: Option<crate::http::Server>,
}

impl RunningNode {
    /// The node itself.
    pub fn node(&self) -> &Node {
        &self.node
    }

    /// Runs until SIGTERM, SIGINT, SIGHUP or SIGQUIT, or until the node gives up; then drains it: jobs that run have
    /// the configured grace time, and what is left is handed back.
    ///
    /// # Errors
    /// The node gave up, or not everything was confirmed in time.
    pub async fn run_until_signal(self) -> Result<(), RunError> {
        let signals = Signals::listen().map_err(RunError::Signals)?;
        self.run_until(signals).await
    }

    async fn run_until(mut self, mut signals: Signals) -> Result<(), RunError> {
        tokio::select! {
            error = self.node.failed() => return Err(error.into()),
            _ = signals.next() => {}
        }
        self.drain().await
    }

    async fn ready(&self) {
        self.node.ready().await;
        #[cfg(feature = "http")]
        if let Some(http) = &self.http {
            http.show(self.node.observer());
        }
    }

    /// Stops taking work, and ends once what runs has ended or been handed back.
    ///
    /// # Errors
    /// Not everything was confirmed in time.
    pub async fn drain(self) -> Result<(), RunError> {
        let drained = self.node.drain().await;
        #[cfg(feature = "http")]
        if let Some(http) = self.http {
            http.end().await;
        }
        Ok(drained?)
    }
}
