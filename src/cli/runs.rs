//! `longshore runs`: shows a run's record, waits for its end, reschedules, cancels and erases runs.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clap::builder::{PossibleValuesParser, TypedValueParser as _};
use clap::{Args, Subcommand};
use longshore_backbone::wire::api::{
    self, ApiError, Attempt, Encoded, NewStart, Record, RescheduleRequest, Rescheduled, RunError, RunRequest,
    RunsCancel, RunsErase, RunsGet, RunsPayload, RunsReschedule, RunsRunNow, RunsWait, Selection, Target, WaitRequest,
    WaitingFor, Word,
};
use longshore_domain::run::{Step, whole_millis};
use longshore_domain::{BatchId, JobType, Queue, RunId, RunState, Timestamp, duration};
use serde_json::value::RawValue;
use tokio::time::Instant;

use super::bulk::Bulk;
use super::client::Api;
use super::late::{self, LateCommand};
use super::output::{self, BAD, STRONG, styled};
use super::target::{Which, now, word};
use super::{Ended, Global, OneRun, Usage, bulk, exact, run_lists};

#[derive(Debug, Subcommand)]
pub(crate) enum RunsCommand {
    /// List runs, those that changed last first
    List(run_lists::List),
    /// Count runs by queue, type and state
    Count(run_lists::Counting),
    /// Show a run: state, attempts, result or error
    Get(OneRun),
    /// Write the payload of a run's job to stdout, while it is stored: the job waits or works, or is a dead letter
    Payload {
        /// The run's id
        #[arg(value_parser = super::name::<RunId>)]
        id: RunId,
    },
    /// Wait for a run's end and show it
    Wait {
        /// The run's id
        #[arg(value_parser = super::name::<RunId>)]
        id: RunId,
        /// Wait this long at most
        #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
        timeout: Option<Duration>,
        /// JSON for machines
        #[arg(long)]
        json: bool,
    },
    /// Cancel one run, or those that fit: waiting jobs will not start, running ones are asked to stop
    Cancel(WaitingRuns),
    /// Start one run now that waits for its time or for its next attempt, or those that fit
    RunNow(WaitingRuns),
    /// Start such runs at another time, with another priority or in another queue
    Reschedule(Reschedule),
    #[command(flatten)]
    Late(LateCommand),
    /// Erase personal data of runs: payload, result, error texts, progress, checkpoints, dead letter; times stay
    Erase {
        /// The runs' ids; runs that have ended
        #[arg(required = true, value_name = "ID", value_parser = super::name::<RunId>)]
        ids: Vec<RunId>,
        /// Do not ask
        #[arg(long, short)]
        yes: bool,
        /// JSON for machines: one record per line
        #[arg(long)]
        json: bool,
    },
}

#[derive(Debug, Args)]
pub(crate) struct Reschedule {
    #[command(flatten)]
    which: WaitingRuns,
    /// At this time: 2027-01-31T09:30:00Z
    #[arg(long, value_name = "TIME", value_parser = Timestamp::parse, required_unless_present_any = ["delay", "set_priority", "set_queue"], help_heading = "Changes")]
    at: Option<Timestamp>,
    /// This long from now: 30s, 5m, 2h
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, conflicts_with = "at", help_heading = "Changes")]
    delay: Option<Duration>,
    /// With this priority: 1, the most urgent, to 9
    #[arg(long, short = 'p', value_name = "1-9", value_parser = clap::value_parser!(u64).range(1..=9), help_heading = "Changes")]
    set_priority: Option<u64>,
    /// In this queue
    #[arg(long, value_name = "NAME", value_parser = super::name::<Queue>, help_heading = "Changes")]
    set_queue: Option<Queue>,
}

/// One run, or those that fit, in a state that has not ended; and how.
#[derive(Debug, Args)]
pub(crate) struct WaitingRuns {
    #[command(flatten)]
    which: Which,
    /// In this state
    #[arg(long, value_parser = PossibleValuesParser::new(STATES).try_map(word::<RunState>), help_heading = "Which runs")]
    state: Option<RunState>,
    #[command(flatten)]
    options: bulk::Options,
}

/// States of runs that have not ended.
const STATES: [&str; 4] = ["scheduled", "enqueued", "running", "retrying"];

impl WaitingRuns {
    /// The choice. A wrong one is reported before anything is connected.
    fn chosen(self) -> Result<(Selection, bulk::Options), Usage> {
        let target = self.which.chosen(api::Filter { state: self.state, ..api::Filter::default() })?;
        Ok((Selection::of(target), self.options))
    }
}

pub(crate) async fn run(global: &Global, command: RunsCommand) -> anyhow::Result<Ended> {
    match command {
        RunsCommand::List(arguments) => run_lists::list(&Api::connect(global).await?, arguments).await,
        RunsCommand::Count(arguments) => run_lists::count(&Api::connect(global).await?, arguments).await,
        RunsCommand::Get(OneRun { id, json }) => {
            let asked = RunRequest { run_id: id, tenant: None };
            print(&Api::connect(global).await?.ask::<RunsGet>(asked).await?, json)
        }
        RunsCommand::Payload { id } => {
            let asked = RunRequest { run_id: id, tenant: None };
            let payload = Api::connect(global).await?.ask::<RunsPayload>(asked).await?.read()?;
            output::bytes(&STANDARD.decode(payload.payload_base64)?)?;
            Ok(Ended::Success)
        }
        RunsCommand::Wait { id, timeout, json } => wait(&Api::connect(global).await?, &id, timeout, json).await,
        RunsCommand::Cancel(which) => {
            let (selection, options) = which.chosen()?;
            let cancelled = |id: &RunId, _: &Encoded<_>| output::say(&format!("{id} is cancelled"));
            change::<RunsCancel>(&Api::connect(global).await?, selection, &options, cancelled).await
        }
        RunsCommand::RunNow(which) => {
            let (selection, options) = which.chosen()?;
            change::<RunsRunNow>(&Api::connect(global).await?, selection, &options, show_rescheduled).await
        }
        RunsCommand::Reschedule(Reschedule { which, at, delay, set_priority, set_queue }) => {
            let run_at = at.or_else(|| delay.map(|delay| now().plus(delay)));
            let set = NewStart { run_at, priority: set_priority, queue: set_queue };
            let (selection, options) = which.chosen()?;
            let asked = RescheduleRequest { selection, set };
            change::<RunsReschedule>(&Api::connect(global).await?, asked, &options, show_rescheduled).await
        }
        RunsCommand::Late(command) => late::run(global, command).await,
        RunsCommand::Erase { ids, yes, json } => erase(&Api::connect(global).await?, &ids, yes, json).await,
    }
}

/// Changes one run, whose answer `shown` prints, or those that fit.
async fn change<E: Bulk>(
    api: &Api,
    mut asked: E::Request,
    options: &bulk::Options,
    shown: impl FnOnce(&RunId, &Encoded<E::Answer>) -> anyhow::Result<()>,
) -> anyhow::Result<Ended> {
    let one = match E::scope(&mut asked).target {
        Some(Target::Run(id)) => id.clone(),
        _ => return bulk::run::<E>(api, asked, None, options).await,
    };
    options.for_many_only()?;
    let answer = api.ask::<E>(asked).await?;
    output::answer(&answer, options.json, || shown(&one, &answer))
}

fn show_rescheduled(_: &RunId, answer: &Encoded<Rescheduled>) -> anyhow::Result<()> {
    match answer.read()? {
        Rescheduled::Run(record) => output::say(show(&record, now()).trim_end()),
        Rescheduled::Runs(_) => Ok(()),
    }
}

/// Erasing one run can take long: its dead letter is searched among all.
const ERASING: Duration = Duration::from_secs(50);

async fn erase(api: &Api, ids: &[RunId], yes: bool, json: bool) -> anyhow::Result<Ended> {
    let what = if let [one] = ids { one.to_string() } else { format!("{} runs", ids.len()) };
    if !yes && !bulk::confirmed(&format!("Erase {what} for good?"), json)? {
        return Ok(Ended::Failure);
    }
    let mut ended = Ended::Success;
    for id in ids {
        let asked = RunRequest { run_id: id.clone(), tenant: None };
        match api.ask_within::<RunsErase>(asked, ERASING).await {
            Ok(stone) if json => output::json(&stone)?,
            Ok(_) => output::say(&format!("{id} is erased"))?,
            // A single run fails with its reason and advice, as everywhere.
            Err(error) if ids.len() == 1 => return Err(error.into()),
            Err(error) => {
                anstream::eprintln!("{BAD}failed:{BAD:#} {id}: {}", error.message);
                ended = Ended::Failure;
            }
        }
    }
    Ok(ended)
}

/// One request to the node lasts this long; a node that drains answers at once, and the next one is asked.
const ONE_WAIT: Duration = Duration::from_secs(20);
/// The first request; each one after it lasts twice as long.
const FIRST_WAIT: Duration = Duration::from_secs(2);

/// Nodes may restart while the command waits: how long it goes on without any node, once one has answered.
const NOBODY_FOR: Duration = Duration::from_secs(60);

/// Waits for a run's end, at most `most`, and prints it.
pub(crate) async fn wait(api: &Api, id: &RunId, most: Option<Duration>, json: bool) -> anyhow::Result<Ended> {
    let deadline = most.map(|most| Instant::now() + most);
    let mut answered: Option<Instant> = None;
    // The first answers come sooner, so that it is soon seen what the run waits for.
    let (mut one_wait, mut said, mut is_followed) = (FIRST_WAIT, None, false);
    loop {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let now = left.unwrap_or(one_wait).min(one_wait);
        let asked = WaitRequest { run_id: id.clone(), tenant: None, timeout_ms: Some(whole_millis(now)) };
        match api.ask_within::<RunsWait>(asked, now).await {
            Ok(answer) => {
                answered = Some(Instant::now());
                let Record { run_id, state, waiting_for, .. } = answer.read()?;
                if run_id != *id && !std::mem::replace(&mut is_followed, true) {
                    eprintln!("{id} is a duplicate of {run_id}, which counts");
                }
                if has_ended(&state) {
                    print(&answer, json)?;
                    let completed = state == RunState::Completed.into();
                    return Ok(if completed { Ended::Success } else { Ended::RunNotCompleted });
                }
                let reason = waiting_for.as_ref().map(|waiting_for| waiting_for.reason.clone());
                if let Some(waiting_for) = waiting_for.filter(|_| said != reason) {
                    eprintln!("{id} {}", output::cut(&output::plain(&waiting_for.message), 400));
                }
                said = reason;
                let was_last = left.is_some_and(|left| left <= one_wait);
                one_wait = (one_wait * 2).min(ONE_WAIT);
                if was_last {
                    eprintln!("{id} has not ended yet: {state}");
                    return Ok(Ended::TimedOut);
                }
            }
            Err(ApiError { code: 503 | 504, .. }) if answered.is_some_and(|at| at.elapsed() < NOBODY_FOR) => {
                if left.is_some_and(|left| left.is_zero()) {
                    eprintln!("{id} has not ended yet, as far as is known: no node answers");
                    return Ok(Ended::TimedOut);
                }
                tokio::time::sleep(Duration::from_millis(500)).await;
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// A state that only a newer node knows counts as an end: waiting for another state could last for ever.
fn has_ended(state: &Word<RunState>) -> bool {
    state.known().is_none_or(|state| state.is_terminal())
}

pub(super) fn print(record: &Encoded<Record>, json: bool) -> anyhow::Result<Ended> {
    output::answer(record, json, || output::say(show(&record.read()?, now()).trim_end()))
}

pub(crate) fn show(record: &Record, now: Timestamp) -> String {
    let state = output::cut(&record.state.to_string(), 40);
    let mut lines = vec![
        ("run", styled(record.run_id.as_str(), STRONG, 0)),
        ("type", record.job_type.to_string()),
        ("state", styled(&state, output::style_of(&state), 0)),
        ("queue", format!("{}, priority {}, tenant {}", record.queue, record.priority.number(), record.tenant)),
    ];
    if let Some(attempt) = record.attempt {
        let round = if record.round > 1 { format!(", round {}", record.round) } else { String::new() };
        lines.push(("attempt", format!("{attempt} of {}{round}", record.max_attempts)));
    }
    if let Some(WaitingFor { message, .. }) = &record.waiting_for {
        lines.push(("waits for", output::cut(message.strip_prefix("waits for ").unwrap_or(message), 400)));
    }
    // Most runs were enqueued as they were submitted.
    let submitted_before = record.submitted_at.filter(|at| record.enqueued_at.is_none_or(|enqueued| *at < enqueued));
    let times = [
        ("submitted", submitted_before),
        ("enqueued", record.enqueued_at),
        ("due", record.run_at),
        ("started", record.started_at),
        ("ended", record.ended_at),
        ("erased", record.erased_at),
    ];
    lines.extend(times.into_iter().filter_map(|(name, at)| Some((name, output::moment(at?, now)))));
    if let Some((started, ended)) = record.started_at.zip(record.ended_at) {
        lines.push(("took", output::span(started, ended)));
    }
    let texts = [
        ("node", record.node.as_deref()),
        ("duplicate_of", record.duplicate_of.as_ref().map(RunId::as_str)),
        ("batch", record.batch_id.as_ref().map(BatchId::as_str)),
        ("follows", record.parent_run_id.as_ref().map(RunId::as_str)),
        ("then", record.children.first().map(RunId::as_str).or(record.then.as_ref().map(JobType::as_str))),
        ("result_content_type", record.result_content_type.as_deref()),
    ];
    lines.extend(record.trace_id.map(|trace| ("trace", trace.to_string())));
    lines.extend(texts.into_iter().filter_map(|(name, text)| Some((name, output::cut(text?, 200)))));
    lines.extend(said(record));
    lines.extend(record.log.iter().map(|line| ("log", format!("{} {}", line.at, output::plain(&line.line)))));
    let step = |Step { at, name, n, attempt }: &Step| match n {
        1 => format!("{at} {name} in attempt {attempt}"),
        n => format!("{at} {name}#{n} in attempt {attempt}"),
    };
    lines.extend(record.steps.iter().map(|done| ("step", step(done))));
    if let Some(RunError { kind, message }) = &record.error {
        let kind = styled(&output::cut(&kind.to_string(), 40), output::BAD, 0);
        lines.push(("error", format!("{kind}: {}", output::plain(message))));
    }
    let lines = lines.into_iter().map(|(name, value)| output::field(name, &value));
    lines.collect::<String>() + &attempts(&record.attempts)
}

/// Fields that the job's client and handler wrote.
fn said(record: &Record) -> impl Iterator<Item = (&'static str, String)> {
    let tags = (!record.tags.is_empty()).then(|| record.tags.join(", "));
    let search = (!record.search.is_empty()).then(|| record.search.join(", "));
    let bytes = record.result_bytes.map(|bytes| bytes.to_string());
    let text = record.result_base64.as_deref().map(decoded);
    let json = |json: &RawValue| json.get().to_owned();
    let said = [
        ("tags", tags),
        ("search", search),
        ("progress", record.progress.as_deref().map(json)),
        ("result", record.result.as_deref().map(json).or(text)),
        ("result_bytes", bytes),
    ];
    said.into_iter().filter_map(|(name, json)| Some((name, output::plain(&exact::laid_out(&json?)))))
}

/// What is text is shown as text, anything else as its size.
pub(super) fn decoded(base64: &str) -> String {
    let bytes = STANDARD.decode(base64).unwrap_or_default();
    match String::from_utf8(bytes) {
        Ok(words) => words,
        Err(error) => {
            format!("{} bytes that are not text; --json has them", output::number(error.as_bytes().len() as u64))
        }
    }
}

/// The attempts, if there are more than the last one.
fn attempts(attempts: &[Attempt]) -> String {
    if attempts.len() < 2 {
        return String::new();
    }
    let heading = ["round", "attempt", "started", "took", "node", "error"];
    let row = |attempt: &Attempt| {
        let error = attempt.error.as_ref();
        let error = error
            .map(|error| format!("{}: {}", output::cut(&error.kind.to_string(), 40), output::plain(&error.message)));
        [
            attempt.round.to_string(),
            attempt.attempt.to_string(),
            attempt.started_at.to_string(),
            attempt.ended_at.map(|ended| output::span(attempt.started_at, ended)).unwrap_or_default(),
            attempt.node.clone(),
            error.unwrap_or_default(),
        ]
    };
    let rows = output::rows(heading, attempts.iter().map(row));
    format!("\n{}", output::table(&output::fitted(rows, output::columns(), &[]), &[0, 1, 3]))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_record_is_shown_for_people() {
        let record = json!({"run_id": "main-p5-7", "tenant": "default", "queue": "main", "priority": 5, "type": "report.render",
            "state": "completed", "round": 1, "attempt": 2, "max_attempts": 12, "enqueued_at": "2026-11-21T12:00:00.000Z",
            "started_at": "2026-11-21T12:00:00.100Z", "ended_at": "2026-11-21T12:00:01.350Z", "node": "n1",
            "result": {"pages": 3}, "attempts": [
                {"round": 1, "attempt": 1, "started_at": "2026-11-21T12:00:00.100Z", "ended_at": "2026-11-21T12:00:00.150Z",
                 "node": "n1", "error": {"kind": "retryable", "message": "busy"}},
                {"round": 1, "attempt": 2, "started_at": "2026-11-21T12:00:01.250Z", "ended_at": "2026-11-21T12:00:01.350Z",
                 "node": "n1"}]});
        let record = serde_json::from_str(&record.to_string()).unwrap();
        let shown =
            anstream::adapter::strip_str(&show(&record, Timestamp::parse("2026-11-21T12:05:00Z").unwrap())).to_string();
        assert_eq!(
            shown,
            "\
run        main-p5-7
type       report.render
state      completed
queue      main, priority 5, tenant default
attempt    2 of 12
enqueued   2026-11-21T12:00:00.000Z (5 min ago)
started    2026-11-21T12:00:00.100Z (4 min ago)
ended      2026-11-21T12:00:01.350Z (4 min ago)
took       1.2 s
node       n1
result     {
             \"pages\": 3
           }

round  attempt  started                     took  node  error
    1        1  2026-11-21T12:00:00.100Z   50 ms  n1    retryable: busy
    1        2  2026-11-21T12:00:01.250Z  100 ms  n1
"
        );
    }

    #[test]
    fn a_run_that_was_enqueued_later_says_when_it_was_submitted() {
        let lines = |times: serde_json::Value| -> Vec<String> {
            let mut record = json!({"run_id": "r", "tenant": "default", "queue": "main", "priority": 5, "type": "t",
                "state": "scheduled", "round": 1, "max_attempts": 12, "attempts": []});
            record.as_object_mut().unwrap().extend(times.as_object().unwrap().clone());
            let record = serde_json::from_str(&record.to_string()).unwrap();
            let shown = show(&record, Timestamp::parse("2026-11-21T12:05:00Z").unwrap());
            anstream::adapter::strip_str(&shown).to_string().lines().skip(4).map(str::to_owned).collect()
        };
        let (early, late) = ("2026-11-21T12:00:00.000Z", "2026-11-21T12:04:00.000Z");
        let submitted = "submitted  2026-11-21T12:00:00.000Z (5 min ago)";
        let waits = lines(json!({"submitted_at": early, "run_at": "2026-11-21T13:00:00.000Z"}));
        assert_eq!(waits, [submitted, "due        2026-11-21T13:00:00.000Z (in 55 min)"]);
        let was_delayed = lines(json!({"submitted_at": early, "enqueued_at": late}));
        assert_eq!(was_delayed, [submitted, "enqueued   2026-11-21T12:04:00.000Z (1 min ago)"]);
        let at_once = lines(json!({"submitted_at": early, "enqueued_at": early}));
        assert_eq!(at_once, ["enqueued   2026-11-21T12:00:00.000Z (5 min ago)"]);
    }

    #[test]
    fn texts_are_shown_as_text() {
        let record = |result: &str| {
            let record = json!({"run_id": "r", "tenant": "default", "queue": "main", "priority": 5, "type": "t",
                "state": "completed", "round": 1, "max_attempts": 12, "attempts": [], "tags": ["a", "b c"],
                "parent_run_id": "p", "then": "email", "children": ["r-then"], "result_base64": result});
            let record = serde_json::from_str(&record.to_string()).unwrap();
            anstream::adapter::strip_str(&show(&record, Timestamp::parse("2026-11-21T12:05:00Z").unwrap())).to_string()
        };
        let text = record("dHdvIHdvcmRz");
        assert!(text.contains("tags       a, b c\n") && text.contains("result     two words\n"), "{text}");
        assert!(text.contains("follows    p\nthen       r-then\n"), "{text}");
        let bytes = record("/w==");
        assert!(bytes.contains("result     1 bytes that are not text; --json has them\n"), "{bytes}");
    }

    #[test]
    fn unfinished_states_are_not_ends() {
        let ended = |state: &str| has_ended(&serde_json::from_value(json!(state)).unwrap());
        assert!(["completed", "dead", "cancelled", "expired", "duplicate", "discarded", "new"].into_iter().all(ended));
        assert!(!STATES.into_iter().any(ended));
    }
}
