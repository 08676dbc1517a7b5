//! `longshore why`: what happened to one run in plain words, from its record, the event log and what is going on now.

use std::time::Duration;

use clap::Args;
use futures_util::StreamExt as _;
use longshore_backbone::wire::api::{
    ApiError, BreakerStatus, BreakersList, BreakersRequest, DlqGet, Encoded, NodeStatus, NodesList, Nothing,
    QueueStatus, QueuesList, QueuesRequest, Record, RunRequest, RunsGet,
};
use longshore_domain::{RunId, Timestamp};
use serde::Serialize;
use serde_json::Value;
use serde_json::value::RawValue;
use tokio::time::{Instant, timeout, timeout_at};

use super::client::Api;
use super::output::{self, FAINT, STRONG, style_of, styled, text};
use super::{Ended, Global, exact, target};

mod lines;

use lines::{Facts, Line, is_end};

/// How far the events of several nodes may be out of order in the log, and the clocks of nodes and servers apart.
const DISORDER: Duration = Duration::from_secs(30);
/// How long what goes on beside the run may take to be said: under load an answer in time is worth more than all of it.
const BESIDE: Duration = Duration::from_millis(400);

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// The run's id
    #[arg(value_parser = super::run_id)]
    id: RunId,
    /// Read the event log for this long at most
    #[arg(long, value_name = "DURATION", default_value = "400ms", value_parser = super::span)]
    within: Duration,
    /// JSON for machines
    #[arg(long)]
    json: bool,
}

/// The answer for machines. What the job's client and handler wrote stays as it is.
#[derive(Serialize)]
struct Answer<'a> {
    run: &'a Encoded<Record>,
    story: &'a [Line],
    now: &'a [String],
    events: Vec<Box<RawValue>>,
}

pub(crate) async fn run(global: &Global, arguments: Arguments) -> anyhow::Result<Ended> {
    let api = Api::connect(global).await?;
    let first = find(&api, &arguments.id).await?.read()?;
    let ((events, read_until), queue, nodes, breakers) = tokio::join!(
        events(&api, &first, arguments.within),
        timeout(BESIDE, queue(&api, &first)),
        timeout(BESIDE, nodes(&api)),
        timeout(BESIDE, breakers(&api, &first)),
    );
    // Read last, so that nothing of the rest is newer than it.
    let found = find(&api, &arguments.id).await?;
    let (queue, nodes, breakers) = (queue.ok().flatten(), nodes.ok().flatten(), breakers.unwrap_or_default());
    let facts = Facts { record: found.read()?, events, read_until, queue, nodes, breakers, now: target::now() };
    let (lines, summary) = (facts.lines(), facts.summary());
    if arguments.json {
        let events = facts.events.iter().map(exact::raw).collect::<Result<_, _>>()?;
        output::json(&Answer { run: &found, story: &lines, now: &summary, events })?;
    } else {
        output::say(shown(&facts.record, &lines, &summary).trim_end())?;
    }
    Ok(Ended::Success)
}

/// The run's record; that in its dead letter if its own has gone.
async fn find(api: &Api, id: &RunId) -> Result<Encoded<Record>, ApiError> {
    let asked = RunRequest { run_id: id.clone(), tenant: None };
    match api.ask::<RunsGet>(asked.clone()).await {
        Err(missing) if missing.code == 404 => match api.ask::<DlqGet>(asked).await {
            Ok(dead_letter) => Ok(Encoded::of(&dead_letter.read()?.record)),
            Err(_) => Err(missing),
        },
        answer => answer,
    }
}

/// The run's events in the log, and until when the log was read if that took too long.
async fn events(api: &Api, record: &Record, within: Duration) -> (Vec<Value>, Option<Timestamp>) {
    let started = record.attempts.iter().map(|attempt| attempt.started_at);
    let known = started.chain(record.enqueued_at).chain(accepted_at(&record.run_id)).chain(record.ended_at);
    let Some(since) = known.min() else { return (Vec::new(), None) };
    let until = record.ended_at.unwrap_or_else(target::now).plus(DISORDER);
    let deadline = Instant::now() + within;
    let opened = api.client.event_log(record.tenant.as_str(), since.minus(DISORDER));
    let (mut left, log) = match timeout_at(deadline, opened).await {
        Ok(Ok(log)) => log,
        Ok(Err(_)) => return (Vec::new(), None),
        Err(_) => return (Vec::new(), Some(since)),
    };
    let ended_at = record.ended_at.map(|at| at.to_string()).unwrap_or_default();
    let mut log = std::pin::pin!(log);
    let quoted = format!("\"run_id\":\"{}\"", record.run_id);
    let (mut events, mut read_until): (Vec<Value>, _) = (Vec::new(), since);
    // To where the log ended when it was asked for, as under load it never ends; and to the end that a record has,
    // which comes into the log a moment later.
    while left > 0 || record.ended_at.is_some() {
        let Ok(batch) = timeout_at(deadline, log.next()).await else {
            return (events, (left > 0).then_some(read_until));
        };
        let Some(Ok(batch)) = batch else { break };
        left = left.saturating_sub(1).min(batch.behind);
        let batch = String::from_utf8_lossy(&batch.events);
        for line in batch.lines().filter(|line| line.contains(&quoted)) {
            // After a fault an event may be there more than once.
            let known = |event: &Value| events.iter().any(|other| text(other, "id") == text(event, "id"));
            if let Some(event) = exact::read(line).ok().filter(|event| !known(event)) {
                events.push(event);
            }
        }
        if events.iter().any(|event| is_end(event, &ended_at)) {
            break;
        }
        let last = batch.lines().last().and_then(|line| exact::read(line).ok());
        read_until = last.and_then(|last| Timestamp::parse(text(&last, "at")).ok()).unwrap_or(read_until);
        if read_until > until {
            break;
        }
    }
    (events, None)
}

/// When a node accepted the run, if a node made its id: a UUID of version 7, whose first 48 bits are that time.
fn accepted_at(id: &RunId) -> Option<Timestamp> {
    let parts: Vec<&str> = id.as_str().split('-').collect();
    let [high, low, version, _, _] = parts[..] else { return None };
    let is_one = (high.len(), low.len()) == (8, 4) && version.starts_with('7');
    i64::from_str_radix(&format!("{high}{low}"), 16).ok().filter(|_| is_one).map(Timestamp::from_millis)
}

async fn queue(api: &Api, record: &Record) -> Option<QueueStatus> {
    let asked = QueuesRequest { queue: Some(record.queue.to_string()), tenant: None };
    api.ask::<QueuesList>(asked).await.ok()?.read().ok()?.queues.pop()
}

/// The nodes; `None` if this user may not ask for them.
async fn nodes(api: &Api) -> Option<Vec<NodeStatus>> {
    Some(api.ask::<NodesList>(Nothing {}).await.ok()?.read().ok()?.nodes)
}

async fn breakers(api: &Api, record: &Record) -> Vec<BreakerStatus> {
    let asked = BreakersRequest { job_type: Some(record.job_type.clone()), ..BreakersRequest::default() };
    let answer = api.ask::<BreakersList>(asked).await.ok().and_then(|answer| answer.read().ok());
    answer.map(|answer| answer.breakers).unwrap_or_default()
}

fn shown(record: &Record, lines: &[Line], summary: &[String]) -> String {
    let state = output::cut(&record.state.to_string(), 40);
    let mut out = format!(
        "{}  {}  {}\n",
        styled(record.run_id.as_str(), STRONG, 0),
        record.job_type,
        styled(&state, style_of(&state), 0)
    );
    out += &record.trace_id.map(|trace| format!("trace {trace}\n")).unwrap_or_default();
    out += "\n";
    let mut before: Option<Timestamp> = None;
    for Line { at, text } in lines {
        let after = before.map(|before| format!("+{}", output::span(before, *at))).unwrap_or_default();
        out += &format!("{}  {after:>13}  {}\n", styled(&at.to_string(), FAINT, 0), output::plain(text));
        before = Some(*at);
    }
    if !lines.is_empty() {
        out.push('\n');
    }
    summary.iter().fold(out, |out, sentence| out + &output::plain(sentence) + "\n")
}
