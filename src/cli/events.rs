//! `longshore events`: live events, or those of the event log, one line per event. `dev` shows its events in the same
//! form.

use std::time::Duration;

use clap::Args;
use futures_util::StreamExt as _;
use longshore_backbone::client::LogStart;
use longshore_backbone::wire::logged::{self, EVENTS, EventFilter, Logged};
use longshore_backbone::wire::subject::Names;
use longshore_backbone::{Error as Backbone, MissingRight};
use longshore_domain::{Queue, RunId, Timestamp};
use serde_json::Value;

use super::client::Api;
use super::ended::text_of;
use super::output::{self, FAINT, style_of, styled, text};
use super::{Ended, Global, exact};

#[derive(Debug, Args)]
pub(crate) struct EventsArguments {
    /// Only this job type, for example email.send; email.> means every type that begins with it
    #[arg(long = "type", value_name = "TYPE", value_parser = type_filter)]
    job_type: Option<String>,
    /// Only this run
    #[arg(long, value_name = "ID", value_parser = super::name::<RunId>)]
    run: Option<RunId>,
    /// Only this event
    #[arg(long, value_name = "EVENT", value_parser = clap::builder::PossibleValuesParser::new(EVENTS))]
    event: Option<String>,
    /// Only this queue
    #[arg(long, value_name = "NAME", value_parser = super::name::<Queue>)]
    queue: Option<Queue>,
    /// From the event log, which misses none: those since this time, 2027-01-31T09:30:00Z or 1h for an hour ago, and
    /// then end
    #[arg(long, value_name = "TIME", value_parser = super::target::moment)]
    since: Option<Timestamp>,
    /// With --since: only those until this time
    #[arg(long, value_name = "TIME", value_parser = super::target::moment, requires = "since")]
    until: Option<Timestamp>,
    /// With --since: go on with the new events; without it that is so anyway
    #[arg(long, short, conflicts_with = "until")]
    follow: bool,
    /// One JSON object per line, for machines
    #[arg(long)]
    json: bool,
}

impl EventsArguments {
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

    /// The same filters, for an event of the log.
    fn filter(&self) -> EventFilter {
        let list = |word: Option<&str>| word.map(str::to_owned).into_iter().collect();
        EventFilter {
            events: list(self.event.as_deref()),
            types: list(self.job_type.as_deref()),
            queues: list(self.queue.as_ref().map(Queue::as_str)),
            runs: list(self.run.as_ref().map(RunId::as_str)),
            tags: Vec::new(),
        }
    }

    fn show(&self, event: &Value) -> anyhow::Result<()> {
        output::say(&if self.json { exact::write(event) } else { line(event) })
    }
}

pub(crate) async fn run(global: &Global, arguments: EventsArguments) -> anyhow::Result<Ended> {
    let api = Api::connect(global).await?;
    let events = async {
        match arguments.since {
            Some(since) => logged(&api, &global.tenant, since, &arguments).await,
            None => live(&api, &global.tenant, &arguments).await,
        }
    };
    tokio::select! {
        ended = events => ended,
        // The next event, by which a write would notice it, may be hours away.
        () = output::reader_has_gone() => Ok(Ended::Success),
    }
}

async fn live(api: &Api, tenant: &str, arguments: &EventsArguments) -> anyhow::Result<Ended> {
    let subject = arguments.subject(api.client.names(), tenant);
    let mut events = std::pin::pin!(api.client.subscribe(subject.clone()).await?);
    eprintln!("listening to {subject}; Ctrl-C ends");
    while let Some((subject, payload)) = events.next().await.transpose()? {
        let event = std::str::from_utf8(&payload).map_err(anyhow::Error::from).and_then(|text| Ok(exact::read(text)?));
        match event {
            Ok(event) => arguments.show(&event)?,
            Err(error) => eprintln!("the message on {} is not an event: {error}", output::cut(&subject, 200)),
        }
    }
    Ok(Ended::Success)
}

/// How far the events of several nodes and tenants may be out of order in the log.
const DISORDER: Duration = Duration::from_secs(30);

/// How long a follower whose log cannot be read waits before it opens it again.
const AGAIN_AFTER: Duration = Duration::from_secs(1);

/// What is asked of the log, and how far it has been read.
struct Reading<'a> {
    tenant: &'a str,
    since: Timestamp,
    from: LogStart,
    /// How many times it was opened.
    opened: u64,
    arguments: &'a EventsArguments,
}

async fn logged(api: &Api, tenant: &str, since: Timestamp, arguments: &EventsArguments) -> anyhow::Result<Ended> {
    let tenant = if tenant == "_all" { "*" } else { tenant };
    let mut reading = Reading { tenant, since, from: LogStart::Since(since), opened: 0, arguments };
    let mut said = 0;
    loop {
        let error = match reading.read(api).await {
            // A restart of the server takes its consumer along.
            Err(error) if arguments.follow && reading.opened > 0 && may_pass(&error) => error,
            ended => return ended,
        };
        if said < reading.opened {
            eprintln!("the event log is opened again where it was read to: {}", text_of(&error));
            said = reading.opened;
        }
        tokio::time::sleep(AGAIN_AFTER).await;
    }
}

/// Whether the log cannot be read for another reason than that the user lacks the right to it.
fn may_pass(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(Backbone::Read { source, .. }) if !source.is::<MissingRight>())
}

impl Reading<'_> {
    /// To the end that was asked for, or to an error.
    async fn read(&mut self, api: &Api) -> anyhow::Result<Ended> {
        let (stored, batches) = api.client.event_log(self.tenant, self.from).await?;
        self.opened += 1;
        // An extract ends where the log ended when it was asked for, or ends by now: old events may have gone
        // meanwhile.
        let follow = self.arguments.follow;
        let (mut batches, mut left) = (std::pin::pin!(batches), if follow { u64::MAX } else { stored });
        while left > 0 {
            let Some(batch) = batches.next().await.transpose()? else { break };
            left = if follow { left } else { (left - 1).min(batch.behind) };
            if !self.show(&String::from_utf8_lossy(&batch.events))? {
                break;
            }
            self.from = LogStart::Behind(batch.sequence);
        }
        Ok(Ended::Success)
    }

    /// Shows those of a batch that were asked for; says whether there may be more of them.
    fn show(&self, batch: &str) -> anyhow::Result<bool> {
        let (since, until) = (self.since, self.arguments.until);
        let filter = self.arguments.filter();
        for line in batch.lines().filter(|line| !line.is_empty()) {
            let Ok(event) = exact::read(line) else {
                eprintln!("a line of the event log is not an event: {}", output::cut(line, 200));
                continue;
            };
            let at = Timestamp::parse(text(&event, "at")).unwrap_or_default();
            if until.is_some_and(|until| at > until.plus(DISORDER)) {
                return Ok(false);
            }
            let is_asked_for = at >= since && until.is_none_or(|until| at <= until);
            if is_asked_for && Logged::read(line).is_some_and(|logged| filter.fits(&logged)) {
                self.arguments.show(&event)?;
            }
        }
        Ok(true)
    }
}

/// One event on one line.
pub(crate) fn line(event: &Value) -> String {
    line_within(event, usize::MAX)
}

/// One event on one line, for a window of so many columns: so that its details stay in sight, a long id loses its
/// middle, and then the type its padding, if that is enough.
pub(crate) fn line_within(event: &Value, columns: usize) -> String {
    /// Of an id that nodes make, the random part.
    const LEAST_ID: usize = 17;
    let name = text(event, "event");
    let at = styled(output::time_of_day(text(event, "at")), FAINT, 0);
    let tenant = Some(text(event, "tenant")).filter(|tenant| !tenant.is_empty() && *tenant != "default");
    let tenant = tenant.map(|tenant| format!("{tenant}/")).unwrap_or_default();
    let name = styled(&output::cut(name, 20), style_of(name), 10);
    let job_type = output::cut(text(event, "type"), 128);
    // A system event is about a node, not about a run.
    let about = ["run_id", "node"].map(|field| text(event, field)).into_iter().find(|name| !name.is_empty());
    let about = output::cut(about.unwrap_or_default(), 96);
    let details = details(event);
    let laid_out = |about: &str, padded: usize| format!("{at}  {name} {job_type:<padded$} {tenant}{about}{details}");
    let excess = |line: &str| anstream::adapter::strip_str(line).to_string().chars().count().saturating_sub(columns);
    let whole = laid_out(&about, 20);
    let too_long = excess(&whole);
    if too_long == 0 {
        return whole;
    }
    let short = output::shortened(&about, about.chars().count().saturating_sub(too_long).max(LEAST_ID));
    let too_long = excess(&laid_out(&short, 20));
    let narrow = 20_usize.saturating_sub(too_long);
    // Of an error any more is worth a crooked column.
    let is_better = excess(&laid_out(&short, narrow)) == 0 || event.get("error").is_some();
    laid_out(&short, if is_better { narrow } else { 20 })
}

fn details(event: &Value) -> String {
    let mut details = Vec::new();
    let millis = |field: &str| event.get(field).and_then(Value::as_u64).map(output::took);
    // What matters most comes first, as a narrow window cuts the rest off.
    for (field, word) in [("retry_at", "again in"), ("run_at", "due in")] {
        let at = Timestamp::parse(text(event, field)).ok().zip(Timestamp::parse(text(event, "at")).ok());
        if let Some((at, now)) = at {
            details.push(format!("{word} {}", output::span(now, at)));
        }
    }
    if let Some(error) = event.get("error") {
        details.push(format!("{}: {}", text(error, "kind"), output::cut(text(error, "message"), 100)));
    }
    if let Some(attempt) = event.get("attempt").and_then(Value::as_u64).filter(|attempt| *attempt > 1) {
        details.push(format!("attempt {attempt} of {}", event["max_attempts"]));
    }
    details.extend(millis("duration_ms"));
    for (field, most) in [("reason", 60), ("line", 100)] {
        details.extend(event.get(field).and_then(Value::as_str).map(|text| output::cut(text, most)));
    }
    for field in ["step", "progress", "result"] {
        details.extend(event.get(field).map(|value| output::brief(value, 60)));
    }
    if details.is_empty() { String::new() } else { format!("  {}", details.join(", ")) }
}

fn type_filter(text: &str) -> Result<String, String> {
    logged::check_type(text).map(|()| text.to_owned())
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
    fn the_log_is_filtered_as_the_live_events_are() {
        let event = r#"{"id":"i","event":"failed","type":"email.send","run_id":"r1","queue":"main","tenant":"default",
            "round":1,"at":"2026-11-21T12:00:01.500Z"}"#;
        let fits = |line: &str| {
            let cli = Cli::try_parse_from(line.split(' ')).unwrap();
            let Command::Events(arguments) = cli.command else { panic!("not events") };
            arguments.filter().fits(&Logged::read(event).unwrap())
        };
        for line in
            ["", " --type email.send --run r1 --event failed --queue main", " --type email.>", " --type email.*"]
        {
            assert!(fits(&format!("longshore events{line}")), "{line}");
        }
        for line in ["--type email", "--run r2", "--event completed", "--queue bulk"] {
            assert!(!fits(&format!("longshore events {line}")), "{line}");
        }
    }

    #[test]
    fn in_a_narrow_window_the_details_stay_in_sight() {
        let event = json!({"event": "scheduled", "type": "echo", "run_id": "01a20614-f267-74dc-a104-bfc35c405998",
            "at": "2026-11-21T12:00:01.500Z", "run_at": "2026-11-21T12:20:01.500Z"});
        let shown = |columns| anstream::adapter::strip_str(&line_within(&event, columns)).to_string();
        let whole =
            "12:00:01.500  scheduled  echo                 01a20614-f267-74dc-a104-bfc35c405998  due in 20 min 0 s";
        assert_eq!(shown(120), whole);
        assert_eq!(
            shown(90),
            "12:00:01.500  scheduled  echo                 01a2…dc-a104-bfc35c405998  due in 20 min 0 s"
        );
        assert_eq!(shown(80), "12:00:01.500  scheduled  echo               01a2…bfc35c405998  due in 20 min 0 s");
        let failed = json!({"event": "failed", "type": "fail", "run_id": "main-p5-9", "at": "2026-11-21T12:00:01.500Z",
            "retry_at": "2026-11-21T12:00:04.500Z", "error": {"kind": "retryable", "message": "no route to the ledger"}});
        let line = anstream::adapter::strip_str(&line_within(&failed, 60)).to_string();
        assert!(line.starts_with("12:00:01.500  failed     fail main-p5-9  again in 3.0 s, retryable: no"), "{line}");
        let short = "12:00:01.500  scheduled  echo                 01a2…bfc35c405998  due in 20 min 0 s";
        assert_eq!(shown(20), short, "the view cuts it: its columns stay straight");
    }

    #[test]
    fn an_event_is_one_line_that_cannot_control_the_terminal() {
        let event = json!({"event": "failed", "type": "email.send", "run_id": "main-p5-1", "tenant": "acme", "attempt": 2,
            "max_attempts": 12, "at": "2026-11-21T12:00:01.500Z", "retry_at": "2026-11-21T12:00:04.500Z", "duration_ms": 40,
            "error": {"kind": "retryable", "message": "no\nroute\u{1b}[2J"}});
        let shown = anstream::adapter::strip_str(&line(&event)).to_string();
        let expected = "12:00:01.500  failed     email.send           acme/main-p5-1  again in 3.0 s, \
                        retryable: no route [2J, attempt 2 of 12, 40 ms";
        assert_eq!(shown, expected);
    }
}
