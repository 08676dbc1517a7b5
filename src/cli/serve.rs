//! `longshore serve`: a node, from its start to the end of its drain.

use anyhow::Context as _;
use clap::Args;
use longshore::signals::Signals;
use longshore::{http, traces};
use longshore_actors::Node;
use serde_json::json;

use super::{Ended, File, Global, doctor, output};
use crate::telemetry::{self, LogFormat};

/// Why a node does not start.
pub(crate) const UNHEARD: &str = "cannot listen to signals";

#[derive(Debug, Args)]
pub(crate) struct ServeArguments {
    #[command(flatten)]
    file: File,
    /// Form of the log on stderr; with json, the ready line on stdout is an object, too
    #[arg(long, env = "LONGSHORE_LOG_FORMAT", value_enum, default_value = "auto")]
    log_format: LogFormat,
}

pub(crate) async fn run(global: &Global, arguments: ServeArguments) -> anyhow::Result<Ended> {
    let log = telemetry::to_stderr(arguments.log_format)?;
    let configuration = arguments.file.load(global)?;
    configuration.warnings().iter().for_each(|warning| tracing::warn!("{warning}"));
    let connection = global.nats.connection()?;
    let mut settings = configuration.settings().clone();
    let name = settings.name.clone();
    settings.log = Some(log);
    settings.traces = traces::exporter(configuration.telemetry(), &name)?;

    let mut signals = Signals::listen().context(UNHEARD)?;
    let http = http::Server::start(configuration.http()).await?;
    if let Some(http) = &http {
        http.examine_by(doctor::of_node(connection.clone(), &configuration));
    }
    let mut node = tokio::select! {
        biased;
        node = Node::begin(settings, connection, configuration.handlers()) => node.context("the node cannot start")?,
        // The node has taken no job yet, so there is nothing to drain.
        _ = signals.next() => return Ok(Ended::Success),
    };
    if !is_ready(&node, &mut signals).await {
        return drain(node, http, &mut signals).await;
    }
    if let Some(http) = &http {
        http.show(node.observer());
    }
    output::say(&ready(arguments.log_format, &name))?;
    tokio::select! {
        error = node.failed() => failed(error),
        word = signals.next() => {
            tracing::info!(signal = %word, "draining; a second signal ends at once");
            drain(node, http, &mut signals).await
        }
    }
}

/// Waits until the node is ready; false if a signal came before. It may run jobs by then, so it is to be drained.
pub(crate) async fn is_ready(node: &Node, signals: &mut Signals) -> bool {
    tokio::select! {
        () = node.ready() => true,
        word = signals.next() => {
            tracing::info!(signal = %word, "draining before it was ready; a second signal ends at once");
            false
        }
    }
}

/// The one line on stdout. A harness waits for it, so its plain form is a single word, whatever the form of the log.
fn ready(format: LogFormat, node: &str) -> String {
    match format {
        LogFormat::Json => json!({"event": "ready", "node": node}).to_string(),
        LogFormat::Auto | LogFormat::Human => "ready".to_owned(),
    }
}

/// Drains the node, and then ends HTTP; a second signal ends the process at once.
pub(crate) async fn drain(node: Node, http: Option<http::Server>, signals: &mut Signals) -> anyhow::Result<Ended> {
    let ends = async {
        let drained = node.drain().await;
        if let Some(http) = http {
            http.end().await;
        }
        drained
    };
    tokio::select! {
        drained = ends => {
            drained.context("the node did not end cleanly")?;
            Ok(Ended::Success)
        }
        word = signals.next() => word.end_at_once(),
    }
}

/// The error of the program when the node has ended by itself.
pub(crate) fn failed(error: longshore_actors::Error) -> anyhow::Result<Ended> {
    Err(anyhow::Error::new(error).context("the node has failed"))
}
