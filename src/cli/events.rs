//! `longshore events`: live events, one line per event. `dev` shows its events in the same form.

use clap::Args;
use futures_util::StreamExt as _;
use longshore_backbone::wire::subject::Names;
use longshore_domain::{JobType, Queue, RunId, Timestamp};
use serde_json::Value;

use super::client::Api;
use super::output::{self, FAINT, style_of, styled, text};
use super::{Ended, Global, exact};

const EVENTS: [&str; 14] = [
    "scheduled",
    "enqueued",
    "started",
    "progress",
    "deferred",
    "released",
    "failed",
    "completed",
    "dlq",
    "cancelled",
    "expired",
    "duplicate",
    "replayed",
    "discarded",
];

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Only this job type, for example email.send; email.> means every type that begins with it
    #[arg(long = "type", value_name = "TYPE", value_parser = type_filter)]
    job_type: Option<String>,
    /// Only this run
    #[arg(long, value_name = "ID", value_parser = super::run_id)]
    run: Option<RunId>,
    /// Only this event
    #[arg(long, value_name = "EVENT", value_parser = clap::builder::PossibleValuesParser::new(EVENTS))]
    event: Option<String>,
    /// Only this queue
    #[arg(long, value_name = "NAME", value_parser = super::queue)]
    queue: Option<Queue>,
    /// One JSON object per line, for machines
    #[arg(long)]
    json: bool,
}

impl Arguments {
    /// All filters are tokens of the subject, so the server does the filtering.
    fn subject(&self, names: &Names, tenant: &str) -> String {
        let tenant = Some(tenant).filter(|tenant| *tenant != "_all");
        let (queue, run) = (self.queue.as_ref().map(Queue::as_str), self.run.as_ref().map(RunId::as_str));
        let all = names.events_where(tenant, self.event.as_deref(), queue, run);
        match (&self.job_type, all.strip_suffix('>')) {
            (Some(job_type), Some(front)) => format!("{front}{job_type}"),
            _ => all,
        }
    }
}

pub(crate) async fn run(global: &Global, arguments: Arguments) -> anyhow::Result<Ended> {
    let api = Api::connect(global).await?;
    let subject = arguments.subject(api.client.names(), &global.tenant);
    let mut events = std::pin::pin!(api.client.subscribe(subject.clone()).await?);
    eprintln!("listening to {subject}; Ctrl-C ends");
    while let Some((subject, payload)) = events.next().await {
        let event = std::str::from_utf8(&payload).map_err(anyhow::Error::from).and_then(|text| Ok(exact::read(text)?));
        match event {
            Ok(event) if arguments.json => output::say(&exact::write(&event))?,
            Ok(event) => output::say(&line(&event))?,
            Err(error) => eprintln!("the message on {} is not an event: {error}", output::cut(&subject, 200)),
        }
    }
    Ok(Ended::Well)
}

/// One event on one line.
pub(crate) fn line(event: &Value) -> String {
    let name = text(event, "event");
    let at = styled(output::time_of_day(text(event, "at")), FAINT, 0);
    let tenant = Some(text(event, "tenant")).filter(|tenant| !tenant.is_empty() && *tenant != "default");
    let tenant = tenant.map(|tenant| format!("{tenant}/")).unwrap_or_default();
    let name = styled(&output::cut(name, 20), style_of(name), 10);
    let job_type = output::cut(text(event, "type"), 128);
    // A system event is about a node, not about a run.
    let about = ["run_id", "node"].map(|field| text(event, field)).into_iter().find(|name| !name.is_empty());
    format!("{at}  {name} {job_type:<20} {tenant}{}{}", output::cut(about.unwrap_or_default(), 96), details(event))
}

/// The event's further fields.
fn details(event: &Value) -> String {
    let mut details = Vec::new();
    let millis = |field: &str| event.get(field).and_then(Value::as_u64).map(output::took);
    if let Some(attempt) = event.get("attempt").and_then(Value::as_u64).filter(|attempt| *attempt > 1) {
        details.push(format!("attempt {attempt} of {}", event["max_attempts"]));
    }
    details.extend(millis("duration_ms"));
    if let Some(error) = event.get("error") {
        details.push(format!("{}: {}", text(error, "kind"), output::cut(text(error, "message"), 100)));
    }
    details.extend(event.get("reason").and_then(Value::as_str).map(|reason| output::cut(reason, 60)));
    for (field, word) in [("retry_at", "again in"), ("run_at", "due in")] {
        let at = Timestamp::parse(text(event, field)).ok().zip(Timestamp::parse(text(event, "at")).ok());
        if let Some((at, now)) = at {
            details.push(format!("{word} {}", output::span(now, at)));
        }
    }
    for field in ["progress", "result"] {
        details.extend(event.get(field).map(|value| output::brief(value, 60)));
    }
    if details.is_empty() { String::new() } else { format!("  {}", details.join(", ")) }
}

fn type_filter(text: &str) -> Result<String, String> {
    let front = text.strip_suffix(".>").or_else(|| text.strip_suffix(".*")).unwrap_or(text);
    JobType::parse(front).map(|_| text.to_owned()).map_err(|error| error.reason)
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;
    use serde_json::json;

    use super::super::{Cli, Command};
    use super::*;

    #[test]
    fn filters_become_the_subject() {
        let subject = |line: &str| {
            let cli = Cli::try_parse_from(line.split(' ')).unwrap();
            let Command::Events(arguments) = cli.command else { panic!("not events") };
            arguments.subject(&Names::new("longshore"), &cli.global.tenant)
        };
        assert_eq!(subject("longshore events"), "longshore.events.default.*.*.*.>");
        assert_eq!(subject("longshore events --tenant _all --event failed"), "longshore.events.*.failed.*.*.>");
        let all = "longshore events --type email.send --run main-p5-1 --queue main --tenant acme";
        assert_eq!(subject(all), "longshore.events.acme.*.main.main-p5-1.email.send");
        assert_eq!(subject("longshore events --type email.>"), "longshore.events.default.*.*.*.email.>");
    }

    #[test]
    fn an_event_is_one_line_that_cannot_control_the_terminal() {
        let event = json!({"event": "failed", "type": "email.send", "run_id": "main-p5-1", "tenant": "acme", "attempt": 2,
            "max_attempts": 12, "at": "2026-11-21T12:00:01.500Z", "retry_at": "2026-11-21T12:00:04.500Z", "duration_ms": 40,
            "error": {"kind": "retryable", "message": "no\nroute\u{1b}[2J"}});
        let shown = anstream::adapter::strip_str(&line(&event)).to_string();
        let expected = "12:00:01.500  failed     email.send           acme/main-p5-1  attempt 2 of 12, 40 ms, \
                        retryable: no route [2J, again in 3.0 s";
        assert_eq!(shown, expected);
    }
}
