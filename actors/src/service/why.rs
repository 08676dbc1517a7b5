//! What happened to one run in plain words, from its record, the event log and what is going on now.
//!
//! Read in this order: this file (what is known of the run), `lines` (how it is said).

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use longshore_backbone::scan::Source;
use longshore_backbone::wire::api::{
    ApiError, BreakerStatus, BreakersRequest, Encoded, QueueStatus, QueuesRequest, Record, RunRequest, WaitRequest,
    Why, WhyLine,
};
use longshore_backbone::wire::logged::Logged;
use longshore_domain::{RunId, Timestamp};
use serde_json::Value;
use serde_json::value::RawValue;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use crate::api::{Answered, Api, breakers, dead_letters, queues, runs};
use crate::batches::endpoints as batches;
use crate::runtime::now;
use crate::streams::lines as stored_lines;

mod lines;

use lines::{Facts, is_end};

/// How far the events of several nodes may be out of order in the log, and the clocks of nodes and servers apart.
const DISORDER: Duration = Duration::from_secs(30);
/// How long the log is read if the client does not say: under load an answer in time is worth more than all of it.
const READ: Duration = Duration::from_millis(400);
/// The longest that it may be.
const READ_MAX: Duration = Duration::from_secs(30);
/// How long what goes on beside the run may take to be said.
const BESIDE: Duration = Duration::from_millis(400);
/// An end that the record has comes into the log a moment later.
const AGAIN_AFTER: Duration = Duration::from_millis(20);
/// Most lines of an answer; the oldest are left out.
const MAX_LINES: usize = 1_000;

pub(crate) async fn serve(api: &Api, asker: &str, asked: WaitRequest) -> Answered<Why> {
    let within = asked.timeout_ms.map_or(READ, Duration::from_millis);
    if within > READ_MAX {
        return Err(ApiError::malformed(format!("timeout_ms: is not one of 0 to {}", READ_MAX.as_millis())));
    }
    let asked = asked.run();
    let first = find(api, asker, &asked).await?.read()?;
    let (log, queue, nodes, breakers) = tokio::join!(
        events(api, &first, within),
        timeout(BESIDE, queue(api, asker, &first)),
        timeout(BESIDE, queues::present(api)),
        timeout(BESIDE, breakers(api, asker, &first)),
    );
    let (events, read_until) = log.unwrap_or_default();
    // Read last, so that nothing of the rest is newer than it.
    let run = find(api, asker, &asked).await?;
    let nodes = nodes.ok().and_then(Result::ok).map(|nodes| nodes.into_iter().map(|node| node.node).collect());
    let (queue, breakers) = (queue.ok().flatten(), breakers.unwrap_or_default());
    let facts = Facts { record: run.read()?, events, read_until, queue, nodes, breakers, now: now() };
    let mut lines = facts.lines();
    lines.drain(..lines.len().saturating_sub(MAX_LINES));
    lines.extend(facts.summary().into_iter().map(|text| WhyLine { at: None, text }));
    Ok(Why { lines, run }.into())
}

/// The run's record; that in its dead letter if its own has gone.
async fn find(api: &Api, asker: &str, asked: &RunRequest) -> Answered<Record> {
    let missing = match runs::serve(api, asker, asked.clone()).await {
        Err(missing) if missing.code == 404 => missing,
        answer => return answer,
    };
    if let Ok(dead_letter) = dead_letters::get(api, asker, asked.clone()).await {
        return Ok(Encoded::of(&dead_letter.read()?.record));
    }
    Err(match batches::awaited(api, asker, asked).await {
        Some(awaited) => ApiError { message: format!("{}; {awaited}", missing.message), ..missing },
        None => missing,
    })
}

/// The run's events in the log, and until when the log was read if that took too long; `None`: it cannot be read.
async fn events(api: &Api, record: &Record, within: Duration) -> Option<(Vec<Value>, Option<Timestamp>)> {
    let started = record.attempts.iter().map(|attempt| attempt.started_at);
    let known = started.chain(record.enqueued_at).chain(accepted_at(&record.run_id)).chain(record.ended_at);
    let since = known.min()?;
    let until = record.ended_at.unwrap_or_else(now).plus(DISORDER);
    let ended_at = record.ended_at.map(|at| at.to_string());
    let (backbone, deadline) = (&api.backbone, Instant::now() + within);
    let subject = backbone.names().event_log(record.tenant.as_str());
    let (mut events, mut known, mut read_until) = (Vec::new(), HashSet::new(), since);
    let mut next = None;
    loop {
        let page = async {
            match next {
                None => backbone.page_since(&Source::Events, &subject, since.minus(DISORDER)).await,
                Some(sequence) => backbone.page(&Source::Events, &subject, sequence).await,
            }
        };
        let Ok(page) = timeout_at(deadline, page).await else { return Some((events, Some(read_until))) };
        let page = page.ok()?;
        for (_, line) in page.messages.iter().flat_map(stored_lines) {
            let Some(of) = Logged::read(line) else { continue };
            read_until = Timestamp::parse(&of.at).unwrap_or(read_until);
            // After a fault an event may be there more than once.
            if of.run_id == record.run_id.as_str() && known.insert(of.identity(line).to_owned()) {
                events.extend(readable(line));
            }
        }
        let has_its_end = ended_at.as_ref().is_none_or(|at| events.iter().any(|event| is_end(event, at)));
        match page.next {
            Some(_) if read_until > until => return Some((events, None)),
            Some(sequence) => next = Some(sequence),
            None if has_its_end || Instant::now() + AGAIN_AFTER > deadline => return Some((events, None)),
            None => {
                next = page.messages.last().map(|last| last.sequence + 1).or(next);
                sleep(AGAIN_AFTER).await;
            }
        }
    }
}

/// An event without what its handler sent, which may be any JSON.
fn readable(line: &str) -> Option<Value> {
    let fields: BTreeMap<&str, &RawValue> = serde_json::from_str(line).ok()?;
    let ours = fields.into_iter().filter(|(name, _)| !["result", "progress"].contains(name));
    Some(ours.filter_map(|(name, value)| Some((name, serde_json::from_str::<Value>(value.get()).ok()?))).collect())
}

/// When a node accepted the run, if a node made its id: a UUID of version 7, whose first 48 bits are that time.
fn accepted_at(id: &RunId) -> Option<Timestamp> {
    let parts: Vec<&str> = id.as_str().split('-').collect();
    let [high, low, version, _, _] = parts[..] else { return None };
    let is_one = (high.len(), low.len()) == (8, 4) && version.starts_with('7');
    i64::from_str_radix(&format!("{high}{low}"), 16).ok().filter(|_| is_one).map(Timestamp::from_millis)
}

async fn queue(api: &Api, asker: &str, record: &Record) -> Option<QueueStatus> {
    let asked = QueuesRequest { queue: Some(record.queue.to_string()), tenant: None };
    queues::list(api, asker, asked).await.ok()?.read().ok()?.queues.pop()
}

async fn breakers(api: &Api, asker: &str, record: &Record) -> Vec<BreakerStatus> {
    let asked = BreakersRequest { job_type: Some(record.job_type.clone()), ..BreakersRequest::default() };
    let answer = breakers::list(&api.backbone, asker, asked).await.ok().and_then(|answer| answer.read().ok());
    answer.map(|answer| answer.breakers).unwrap_or_default()
}

/// A field's text, or nothing.
fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value.get(field).and_then(Value::as_str).unwrap_or_default()
}
