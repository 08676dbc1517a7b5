//! Logs: their destination and form. They go to stderr, since stdout is for data.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::io::IsTerminal as _;
use std::sync::Arc;

use clap::ValueEnum;
use longshore_actors::LogControl;
use longshore_backbone::CONNECTOR_LOG;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Registry, reload};

use crate::cli::ended::Usage;

/// The form of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// For people on a terminal, JSON otherwise. A variable that is set but empty means this, too.
    #[value(alias = "")]
    Auto,
    /// For people.
    Human,
    /// One JSON object per line, for machines.
    Json,
}

/// The filter's parts that keep the lines of libraries out, however much of Longshore's own is wanted.
const QUIET: &str = ",async_nats=warn,h2=warn,hyper=warn,hyper_util=warn,ractor=warn,rustls=warn,tonic=warn,tower=warn";

/// The same, without what the NATS client says of each try to connect: a node says it of its connections, and rarely.
fn quiet() -> String {
    format!("{QUIET},{CONNECTOR_LOG}=off")
}

/// The log on stderr, whose level can be changed.
#[derive(Debug)]
struct Log(reload::Handle<EnvFilter, Registry>);

impl LogControl for Log {
    fn set(&self, level: &str) -> Result<String, String> {
        let filter = filter_of(level)?;
        let holds = filter.to_string();
        self.0.reload(filter).map(|()| holds).map_err(|error| error.to_string())
    }
}

/// The filter of a level, which leaves libraries out, or the filter itself.
fn filter_of(level: &str) -> Result<EnvFilter, String> {
    let level = level.trim();
    let text = match of_level(level) {
        Some(filter) => filter,
        None if !level.contains(['=', ',', '[']) => {
            return Err(format!(
                "{level:?} is not one of {}, nor a filter such as info,longshore_actors=debug",
                LEVELS.join(", ")
            ));
        }
        None => level.to_owned(),
    };
    EnvFilter::try_new(text).map_err(|error| format!("{level:?} is not a valid filter: {error}"))
}

const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

/// The filter of a plain level, which leaves libraries out: at `trace` the NATS client shows every message that it
/// reads, and with it payloads.
fn of_level(text: &str) -> Option<String> {
    let level = LEVELS.into_iter().find(|known| known.eq_ignore_ascii_case(text))?;
    Some(if ["off", "error", "warn"].contains(&level) { level.to_owned() } else { format!("{level}{}", quiet()) })
}

pub(crate) fn to_stderr(format: LogFormat) -> Result<Arc<dyn LogControl>, Usage> {
    let human = format == LogFormat::Human || (format == LogFormat::Auto && std::io::stderr().is_terminal());
    let colours = anstream::AutoStream::choice(&std::io::stderr()) != anstream::ColorChoice::Never;
    let filter = filter(&format!("info{}", quiet()))?;
    let (filter, handle) = reload::Layer::new(filter);
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    let registry = tracing_subscriber::registry().with(filter);
    if human {
        registry.with(lines.with_ansi(colours)).init();
    } else {
        registry.with(lines.json().flatten_event(true).with_span_list(false).with_current_span(false)).init();
        log_panics();
    }
    Ok(Arc::new(Log(handle)))
}

/// Has a panic be one line of the log, with its backtrace if `RUST_BACKTRACE` asks for one: what reads lines of JSON
/// cannot read the standard report.
fn log_panics() {
    std::panic::set_hook(Box::new(|panic| {
        if longshore_backbone::link::is_clients_own(panic) {
            return;
        }
        let location = panic.location().map(ToString::to_string);
        let backtrace = Backtrace::capture();
        let backtrace = (backtrace.status() == BacktraceStatus::Captured).then(|| backtrace.to_string());
        let message = panic.payload_as_str().unwrap_or("with a value that is no text");
        tracing::error!(location, backtrace, "panicked: {message}");
    }));
}

/// Starts logging for people to `writer`, which shares the screen with a view: only lines that matter to them.
pub(crate) fn beside_a_view<W>(writer: W, colours: bool, default: &str) -> Result<(), Usage>
where
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    let filter = filter(default)?;
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(writer).with_ansi(colours).with_target(false).init();
    Ok(())
}

/// `LONGSHORE_LOG`, else `RUST_LOG`, else `default`. A filter that does not parse is refused: otherwise a log that is
/// silently off is noticed only when it is needed.
fn filter(default: &str) -> Result<EnvFilter, Usage> {
    let set = |name| std::env::var(name).ok().filter(|text| !text.is_empty()).map(|text| (name, text));
    let Some((name, text)) = set("LONGSHORE_LOG").or_else(|| set("RUST_LOG")) else {
        return Ok(EnvFilter::new(default));
    };
    // A word that is no level would be taken for the name of a module that logs nothing; other programs' variable may
    // name one.
    let filter = match name {
        "LONGSHORE_LOG" => filter_of(&text),
        _ => EnvFilter::try_new(of_level(text.trim()).unwrap_or(text)).map_err(|error| error.to_string()),
    };
    filter.map_err(|reason| Usage(format!("{name} is not a valid log filter: {reason}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_leaves_libraries_out_and_a_filter_is_taken_as_it_is() {
        let holds = |level| filter_of(level).map(|filter| filter.to_string());
        let debug = holds("DEBUG").unwrap();
        assert!(debug.contains("async_nats=warn") && debug.contains("debug"), "{debug}");
        assert_eq!(holds("longshore_actors=trace").unwrap(), "longshore_actors=trace");
        assert!(holds("loud").unwrap_err().starts_with("\"loud\" is not one of off, error"));
        assert!(holds("info,longshore=loud").unwrap_err().contains("is not a valid filter"));
    }
}
