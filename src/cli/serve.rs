//! `longshore serve`: a node, from its start to the end of its drain.

use std::{fmt, process};

use anyhow::Context as _;
use clap::Args;
use longshore::{handlers, http, traces};
use longshore_actors::Node;
use serde_json::json;
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::{Ended, File, Global, output};
use crate::telemetry::{self, LogFormat};

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    file: File,
    /// Form of the log on stderr; with json, the ready line on stdout is an object, too
    #[arg(long, env = "LONGSHORE_LOG_FORMAT", value_enum, default_value = "auto")]
    log_format: LogFormat,
}

pub(crate) async fn run(global: &Global, arguments: Arguments) -> anyhow::Result<Ended> {
    let log = telemetry::to_stderr(arguments.log_format)?;
    let configuration = arguments.file.load(global)?;
    configuration.warnings().iter().for_each(|warning| tracing::warn!("{warning}"));
    let connection = global.nats.connection()?;
    let mut settings = configuration.settings().clone();
    let name = settings.name.clone();
    settings.log = Some(log);
    settings.traces = traces::exporter(configuration.telemetry(), &name)?;

    let mut signals = Signals::new()?;
    let http = http::Server::start(configuration.http()).await?;
    let mut node = tokio::select! {
        node = Node::start(settings, connection, handlers::built_in()) => node.context("the node cannot start")?,
        // The node has taken no job yet, so there is nothing to drain.
        _ = signals.next() => return Ok(Ended::Success),
    };
    if let Some(http) = &http {
        http.show(node.observer());
    }
    output::say(&ready(arguments.log_format, &name))?;
    tokio::select! {
        error = node.failed() => failed(error),
        word = signals.next() => {
            tracing::info!(signal = %word, "draining; a second signal ends at once");
            drain(node, &mut signals).await
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

/// Drains the node; a second signal ends the process at once.
pub(crate) async fn drain(node: Node, signals: &mut Signals) -> anyhow::Result<Ended> {
    tokio::select! {
        drained = node.drain() => {
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

/// The signals that ask for an end.
pub(crate) struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hang_up: Option<Signal>,
}

/// A signal that came.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Word {
    name: &'static str,
    number: i32,
}

impl Word {
    /// Ends the process as a shell reports an end by this signal.
    pub(crate) fn end_at_once(self) -> ! {
        process::exit(128 + self.number)
    }
}

impl fmt::Display for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl Signals {
    pub(crate) fn new() -> anyhow::Result<Self> {
        let listen = |kind| signal(kind).context("cannot listen to signals");
        let (interrupt, terminate) = (listen(SignalKind::interrupt())?, listen(SignalKind::terminate())?);
        Ok(Self { interrupt, terminate, hang_up: None })
    }

    /// Also the one that a terminal sends when it is closed. Not for a service: `nohup` has that signal ignored, and
    /// listening to it would undo this.
    pub(crate) fn of_a_terminal() -> anyhow::Result<Self> {
        let hang_up = signal(SignalKind::hangup()).context("cannot listen to signals")?;
        Ok(Self { hang_up: Some(hang_up), ..Self::new()? })
    }

    /// The next one.
    pub(crate) async fn next(&mut self) -> Word {
        let hang_up = async {
            match &mut self.hang_up {
                Some(signal) => signal.recv().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = hang_up => Word { name: "SIGHUP", number: 1 },
            _ = self.interrupt.recv() => Word { name: "SIGINT", number: 2 },
            _ = self.terminate.recv() => Word { name: "SIGTERM", number: 15 },
        }
    }
}
