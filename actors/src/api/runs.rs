//! Reading a run: from its record or, while it waits, from the job in its lane.

use std::time::Duration;

use longshore_backbone::Backbone;
use longshore_backbone::lane_queries::Listening;
use longshore_backbone::records::Found;
use longshore_backbone::wire::api::{ApiError, Code, Encoded, Record, RunRequest};
use longshore_backbone::wire::record;
use longshore_domain::policy::{History, Policies};
use longshore_domain::run::State;
use longshore_domain::{JobType, Priority, Queue, Run, RunId, RunState, Tenant, Timestamp};
use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;
use tokio::time::{Instant, timeout_at};

use crate::api::{Answered, Api, filter, waiting_for, waits};
use crate::ports::{InLane, WaitingPorts as _};

/// Maximum wait for a run's end.
pub(crate) const MAX_WAIT: Duration = Duration::from_secs(600);
/// How long a wait that is shorter may take until it has begun.
const LISTENS_WITHIN: Duration = Duration::from_secs(5);
/// Live events may be lost, also that of an end; so the record is polled as well.
const CHECK_EVERY: Duration = Duration::from_secs(1);
/// Long waits poll less often, but at least this often: a thousand callers may wait.
const MAX_CHECK_EVERY: Duration = Duration::from_secs(5);
/// How many duplicates of each other are followed: debounced jobs come in long rows.
const FOLLOWED: usize = 100;

/// The endpoint `runs.get`: the run, from its record or its lane.
pub(crate) async fn serve(api: &Api, asker: &str, asked: RunRequest) -> Answered<Record> {
    let (tenant, run_id) = filter::one(asker, asked)?;
    let mut found = known(api, &tenant, &run_id).await?;
    if matches!(found.run.state, State::Running) {
        // The record lists them with the attempt's end.
        let steps = api.backbone.steps(&found.run).await?;
        for step in steps {
            found.run.list_step(step);
        }
    }
    Ok(shown(api, &found).await)
}

/// The run, from its record or its lane.
pub(crate) async fn known(api: &Api, tenant: &Tenant, run_id: &RunId) -> Result<Found, ApiError> {
    match find(api, tenant, run_id).await? {
        Some(found) => Ok(found),
        None => Err(missing(api, tenant, run_id).await),
    }
}

/// The run as an answer shows it.
async fn shown(api: &Api, found: &Found) -> Encoded<Record> {
    record::show_waiting(&found.run, waiting_for::of(api, found).await.as_ref())
}

/// The run as it is recorded, or as the job in its lane says, at revision 0.
async fn find(api: &Api, tenant: &Tenant, run_id: &RunId) -> Result<Option<Found>, ApiError> {
    if let Some(found) = api.backbone.read_record(tenant, run_id).await? {
        return Ok(Some(found));
    }
    if let Some(InLane { run, .. }) = api.waiting(tenant, run_id).await? {
        return Ok(Some(Found { run, revision: 0 }));
    }
    recorded_for_certain(&api.backbone, tenant, run_id).await
}

/// The record of a run that was found neither stored nor in its lane, which it leaves only once its end is stored: the
/// run may have ended between the two reads, or who answered them may have been cut off from the others.
pub(crate) async fn recorded_for_certain(
    backbone: &Backbone,
    tenant: &Tenant,
    run_id: &RunId,
) -> Result<Option<Found>, ApiError> {
    if let Some((lane, sequence)) = run_id.as_derived() {
        backbone.is_certainly_gone(&lane, sequence).await?;
    }
    backbone.read_record_for_certain(tenant, run_id).await.map_err(ApiError::from)
}

/// The error for a run that is not known. If a type keeps only its failures, a run that completed at once looks like
/// one whose record is gone; but its id was given.
pub(super) async fn missing(api: &Api, tenant: &Tenant, run_id: &RunId) -> ApiError {
    let policies = &api.policies;
    let mut types = policies.types.values().chain([&policies.default_type]);
    if let Some((lane, sequence)) = run_id.as_derived()
        && types.any(|policy| policy.history == History::Failures)
        && api.backbone.lane_of(&lane.queue, lane.priority).await.is_ok_and(|state| sequence <= state.last_sequence)
    {
        let message = format!(
            "run_id: nothing is kept of run {run_id} of tenant {tenant}: its record has gone, or it completed and its \
             type keeps failures only (history = \"failures\")"
        );
        return ApiError::new(Code::NotKept, message);
    }
    unknown(tenant, run_id)
}

/// 404: no run of that id.
pub(super) fn unknown(tenant: &Tenant, run_id: &RunId) -> ApiError {
    ApiError::not_found(format!("run_id: no run {run_id} of tenant {tenant} is known")).hint(
        "runs are looked up per tenant and kept for a set time; a job published bare with an id of its own is known \
         once it has started",
    )
}

/// The run, once it has ended, or as it stands when `timeout` is over, at most [`MAX_WAIT`]. If it is a duplicate, the
/// run that it is a duplicate of: that one does what was asked for.
pub(crate) async fn wait(api: &Api, tenant: &Tenant, run_id: &RunId, timeout: Duration) -> Answered<Record> {
    let until = Instant::now() + timeout;
    let has_ended = |run: &Run| run.state.is_terminal();
    let mut waited = wait_until(api, tenant, run_id, until, has_ended).await?;
    for _ in 0..FOLLOWED {
        let Some(of) = waited.duplicate_of else { break };
        match wait_until(api, tenant, &of, until, has_ended).await {
            Ok(other) => waited = other,
            Err(error) if error.code == Code::NotFound.number() => break,
            Err(error) => return Err(error),
        }
    }
    Ok(waited.record)
}

/// A run at its end, or when the time was over.
pub(crate) struct Waited {
    record: Encoded<Record>,
    duplicate_of: Option<RunId>,
}

/// Listens for the events of a run.
async fn listen(api: &Api, tenant: &Tenant, run_id: &RunId, until: Instant) -> Result<Listening, ApiError> {
    let subject = api.backbone.names().events_where(Some(tenant.as_str()), None, None, Some(run_id.as_str()));
    loop {
        match api.backbone.listen(subject.clone()).await {
            Ok(events) => return Ok(events),
            Err(error) if Instant::now() >= until => return Err(error.into()),
            Err(_) => tokio::time::sleep_until(until.min(Instant::now() + CHECK_EVERY)).await,
        }
    }
}

/// Waits until that is over of the run itself.
pub(crate) async fn wait_until(
    api: &Api,
    tenant: &Tenant,
    run_id: &RunId,
    until: Instant,
    is_over: impl Fn(&Run) -> bool,
) -> Result<Waited, ApiError> {
    let listens = listen(api, tenant, run_id, until);
    // While the connection is lost nothing comes back, not even an error.
    let listening = timeout_at(until.max(Instant::now() + LISTENS_WITHIN), listens).await;
    let mut events = listening.unwrap_or_else(|_| Err(ApiError::unavailable("NATS does not answer")))?;
    let mut check_every = CHECK_EVERY;
    let mut published: Option<Encoded<Record>> = None;
    loop {
        // The node takes a last look as it ends.
        let is_last = api.lifecycle.leaving.is_cancelled();
        let found = find(api, tenant, run_id).await;
        let now = Instant::now();
        match found {
            Err(error) if error.code < 500 || now >= until || is_last => return Err(error),
            // The servers may answer again before the time is over; that a value is unreadable stays.
            Err(_) => {}
            Ok(found) => {
                let is_over = found.as_ref().is_some_and(|found| is_over(&found.run));
                if let Some(end) = published.take().filter(|_| !is_over) {
                    // Its end was published, and no record will say so.
                    return Ok(Waited { record: end, duplicate_of: None });
                }
                match found {
                    Some(found) if is_over || now >= until => {
                        let duplicate_of = found.run.state.duplicate_of().cloned();
                        return Ok(Waited { record: shown(api, &found).await, duplicate_of });
                    }
                    Some(_) if is_last => return Err(ApiError::unavailable("the node ends; ask again for the run")),
                    Some(_) => {}
                    None => {
                        // Perhaps the end was published before this wait listened.
                        let missing = missing(api, tenant, run_id).await;
                        let unstored_ends = missing.error == Code::NotKept.as_str();
                        let end = if unstored_ends { waits::end_of(api, tenant, run_id).await } else { None };
                        return end.map(|record| Waited { record, duplicate_of: None }).ok_or(missing);
                    }
                }
            }
        }
        let check_at = (now + check_every).min(until);
        check_every = (check_every * 2).min(MAX_CHECK_EVERY);
        tokio::select! {
            // Any event of the run, or time to poll.
            event = timeout_at(check_at, events.next()) => {
                if let Ok(Some(event)) = event {
                    published = end_published(&api.policies, &event).or(published);
                }
            }
            () = api.lifecycle.leaving.cancelled() => {}
        }
    }
}

/// The record of a run as the event of its end shows it, if its type keeps no record of such ends.
fn end_published(policies: &Policies, event: &[u8]) -> Option<Encoded<Record>> {
    let event: EndEvent = serde_json::from_slice(event).ok().filter(|event: &EndEvent| event.event == "completed")?;
    if policies.of(&event.job_type).history != History::Failures || event.attempt != 1 {
        return None;
    }
    event.into_record().map(|record| Encoded::of(&record))
}

#[derive(Deserialize)]
struct EndEvent {
    event: String,
    run_id: RunId,
    tenant: Tenant,
    queue: Queue,
    priority: Priority,
    #[serde(rename = "type")]
    job_type: JobType,
    round: u32,
    attempt: u32,
    max_attempts: u32,
    at: Timestamp,
    node: String,
    #[serde(default)]
    duration_ms: u64,
    #[serde(default)]
    result: Option<Box<RawValue>>,
    #[serde(default)]
    tags: Vec<String>,
}

impl EndEvent {
    /// The record that the run would have.
    fn into_record(self) -> Option<Record> {
        let Self { round, attempt, at, node, .. } = &self;
        let started_at = at.minus(Duration::from_millis(self.duration_ms));
        let record = json!({
            "run_id": self.run_id, "tenant": self.tenant, "queue": self.queue, "priority": self.priority,
            "type": self.job_type, "state": RunState::Completed, "round": round, "attempt": attempt,
            "max_attempts": self.max_attempts, "started_at": started_at, "ended_at": at, "node": node,
            "attempts": [{"round": round, "attempt": attempt, "started_at": started_at, "ended_at": at, "node": node}],
            "tags": self.tags,
        });
        let record: Record = serde_json::from_value(record).ok()?;
        Some(Record { result: self.result, ..record })
    }
}

#[cfg(test)]
mod tests;
