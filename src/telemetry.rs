//! Logs: their destination and form. They go to stderr, since stdout is for data.

use std::io::IsTerminal as _;

use clap::ValueEnum;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

use crate::cli::Usage;

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

/// Starts logging to stderr.
pub(crate) fn to_stderr(format: LogFormat) -> Result<(), Usage> {
    let human = format == LogFormat::Human || (format == LogFormat::Auto && std::io::stderr().is_terminal());
    let colours = anstream::AutoStream::choice(&std::io::stderr()) != anstream::ColorChoice::Never;
    let builder =
        tracing_subscriber::fmt().with_env_filter(filter("info,async_nats=warn")?).with_writer(std::io::stderr);
    if human {
        builder.with_ansi(colours).init();
    } else {
        builder.json().flatten_event(true).with_span_list(false).init();
    }
    Ok(())
}

/// Starts logging for people to `writer`, which shares the screen with a view: only lines that matter to them.
pub(crate) fn beside_a_view<W>(writer: W, colours: bool) -> Result<(), Usage>
where
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    let filter = filter("warn,longshore_natsd=info,longshore::handler=info")?;
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
    EnvFilter::try_new(&text).map_err(|error| Usage(format!("{name} is {text:?}, not a valid log filter: {error}")))
}
