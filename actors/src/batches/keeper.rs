//! The keeper: looks whether the members of each batch have ended, and submits the job that completes it.
//!
//! One node works for all: the first by name that is there. Two at once do no harm: each step is a compare-and-set on
//! the batch, and the job has one run id. The keeper also asks for the records of members that have not ended by their
//! entries: a run that was cancelled while it waited, discarded or erased ends without passing a committer.
//!
//! Bounds: in memory are the batches that have not ended, and of one batch at a time its members; after a round over
//! all batches the keeper rests twenty times as long as that took, [`REST_MAX`] at most; a look at a batch asks for
//! [`RECORDS`] records and one dead letter, and reads [`PAGES`] pages.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use longshore_backbone::Error;
use longshore_backbone::batches::{Ended, Member, StoredBatch};
use longshore_backbone::records::Found;
use longshore_backbone::scan::Source;
use longshore_backbone::ticks::pause;
use longshore_backbone::wire::api::{ApiError, BatchCounts, BatchPayload, BatchState, Code, FailedMember, OnFailure};
use longshore_domain::{BatchId, Queue, Run, RunId, RunState, Tenant, Timestamp};

use super::{completion, on_failure};
use crate::api::{Api, intake};
use crate::ports::batch::{ended, is_over, may_change, state, write};
use crate::request::{self, names};
use crate::runtime::identity::is_first;
use crate::runtime::supervision::LoopEnd;
use crate::runtime::{fail_point, now};

const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How long it rests at most after a round that took long.
const REST_MAX: Duration = Duration::from_secs(10);
/// How often a node looks whether it is the first.
const FIRST_EVERY: u32 = 5;
/// Records that one look at a batch asks for.
const RECORDS: usize = 64;
/// Pages of a lane that one look at a batch reads.
const PAGES: usize = 16;
/// A member without a record has none any more, or was never published, once it has been one for so long.
const GONE_AFTER: Duration = Duration::from_secs(10 * 60);
/// Members that answers and the payload name.
pub(super) const NAMED: usize = 100;

pub(crate) async fn run(api: Arc<Api>) -> LoopEnd {
    let mut keeper =
        BatchKeeper { api, is_first: false, revision: 0, open: HashMap::new(), not_before: Instant::now() };
    for turn in 0u32.. {
        tokio::select! {
            () = keeper.api.lifecycle.draining.cancelled() => return std::future::pending().await,
            () = pause(LOOK_EVERY) => {}
        }
        if let Err(error) = keeper.look(turn).await {
            tracing::debug!("batches are looked at later: {}", error.with_causes());
        }
    }
    Ok(())
}

struct BatchKeeper {
    api: Arc<Api>,
    is_first: bool,
    /// Up to which the batches were read.
    revision: u64,
    open: HashMap<(Tenant, BatchId), OpenBatch>,
    /// It rests until then.
    not_before: Instant,
}

/// A batch that has not ended for good, and what is known of it.
struct OpenBatch {
    stored: StoredBatch,
    revision: u64,
    /// The next of its members whose records are asked for.
    next_record: usize,
    /// No dead letter is looked for until then: that reads all of the tenant's.
    next_letter: Instant,
    /// Lanes that may have jobs of it that no node has met: from where, and up to which sequence. `None`: this was not
    /// found out yet.
    lanes: Option<VecDeque<(Source, u64, u64)>>,
}

impl BatchKeeper {
    async fn look(&mut self, turn: u32) -> Result<(), Error> {
        let api = &self.api;
        if turn.is_multiple_of(FIRST_EVERY) {
            self.is_first = is_first(&api.backbone.nodes(), &api.identity).await?;
        }
        if !self.is_first {
            (self.revision, self.open) = (0, HashMap::new());
            return Ok(());
        }
        let begun = Instant::now();
        if begun < self.not_before {
            return Ok(());
        }
        for (stored, revision) in api.backbone.batches(None, self.revision).await? {
            self.revision = self.revision.max(revision);
            let key = (stored.batch.tenant.clone(), stored.batch.id.clone());
            if may_change(&stored) {
                let next_letter = Instant::now();
                self.open.insert(key, OpenBatch { stored, revision, next_record: 0, next_letter, lanes: None });
            } else {
                self.open.remove(&key);
            }
        }
        for kept in self.open.values_mut().filter(|kept| may_follow(&kept.stored, now())) {
            if let Err(error) = kept.look(api).await {
                let batch = &kept.stored.batch;
                tracing::debug!(tenant = %batch.tenant, batch = %batch.id, "a batch goes on later: {}", error.message);
            }
        }
        self.not_before = Instant::now() + (begun.elapsed() * 20).min(REST_MAX);
        Ok(())
    }
}

/// Whether anything may follow from a look at the members of a batch: not as long as it is open, unless it fails for a
/// dead letter or is over.
fn may_follow(stored: &StoredBatch, now: Timestamp) -> bool {
    state(stored) != BatchState::Open || on_failure(stored) == OnFailure::Fail || is_over(stored, now)
}

/// What the members of a batch come to.
#[derive(Default)]
pub(super) struct Standing {
    /// Those that have not ended.
    pub(super) open: Vec<Member>,
    pub(super) counts: BatchCounts,
    /// Those that ended otherwise than completed.
    pub(super) failed: Vec<FailedMember>,
    /// Why the batch fails, if a dead letter is a reason.
    pub(super) because: Option<String>,
}

impl Standing {
    /// Reads and judges the members of a batch.
    pub(super) async fn of(api: &Api, stored: &StoredBatch) -> Result<Self, ApiError> {
        let mut standing = Self::default();
        let on_failure = on_failure(stored);
        for member in api.backbone.members(&stored.batch.tenant, &stored.batch.id).await? {
            standing.take_in(member, on_failure);
        }
        Ok(standing)
    }

    fn take_in(&mut self, member: Member, on_failure: OnFailure) {
        if member.ended == Some(Ended::Left) {
            return;
        }
        self.counts.all += 1;
        let is_dead = member.ended == Some(Ended::As(RunState::Dead));
        let was_dead = is_dead || member.ended == Some(Ended::As(RunState::Discarded));
        if was_dead && on_failure == OnFailure::Fail {
            let said = if is_dead { "is a dead letter" } else { "was a dead letter, and is discarded" };
            self.because.get_or_insert_with(|| format!("run {} {said}", member.run_id));
        }
        let state = match member.ended {
            Some(Ended::As(RunState::Completed)) => {
                self.counts.completed += 1;
                return;
            }
            Some(Ended::As(state)) if !is_dead || on_failure == OnFailure::Ignore => state.as_str(),
            Some(Ended::Gone) => "gone",
            _ => return self.open.push(member),
        };
        self.counts.failed += 1;
        self.failed.push(FailedMember { run_id: member.run_id, state: state.to_owned() });
    }
}

impl OpenBatch {
    async fn look(&mut self, api: &Arc<Api>) -> Result<(), ApiError> {
        let Standing { open, counts, failed, because } = Standing::of(api, &self.stored).await?;
        match state(&self.stored) {
            BatchState::Completing => return self.complete(api).await,
            BatchState::Failed if because.is_none() => return self.reopen(api).await,
            // What it failed for may have completed by now, and another member not.
            BatchState::Failed if because != self.stored.batch.because => {
                self.stored.batch.because = because;
                return self.write(api, BatchState::Failed).await.map(drop);
            }
            BatchState::Failed => {}
            _ if because.is_some() || is_over(&self.stored, now()) => {
                return self.fail(api, because.unwrap_or_else(|| "its deadline was over".to_owned())).await;
            }
            BatchState::Sealed if open.is_empty() => {
                if self.is_held(api) || !self.all_were_met(api).await? {
                    return Ok(());
                }
                let failed = failed.into_iter().take(NAMED).collect();
                let batch = self.stored.batch.id.clone();
                self.stored.payload = Some(BatchPayload { batch, completed: counts.completed, failed });
                self.stored.batch.members = Some(counts);
                if self.write(api, BatchState::Completing).await? {
                    fail_point::pass("after-batch-completing");
                    self.complete(api).await?;
                }
                return Ok(());
            }
            _ => {}
        }
        self.ask_for_records(api, &open).await
    }

    /// Whether the queue of its job is paused. A backup pauses queues, and reads the lanes before the batches: it would
    /// have a batch as completed without its job.
    fn is_held(&self, api: &Api) -> bool {
        let is_paused = |queue: &Queue| !api.run_time_settings.may_start_in(queue, Instant::now());
        names(&self.stored.on_complete).is_ok_and(|(queue, ..)| is_paused(&queue))
    }

    /// Submits the job of a batch, unless a member has joined until the batch was said to complete.
    async fn complete(&mut self, api: &Arc<Api>) -> Result<(), ApiError> {
        if self.is_held(api) {
            return Ok(());
        }
        let Standing { open, counts, .. } = Standing::of(api, &self.stored).await?;
        if !open.is_empty() || Some(counts) != self.stored.batch.members {
            return self.write(api, BatchState::Sealed).await.map(drop);
        }
        let submitted = self.submit(api).await;
        fail_point::pass("after-batch-done");
        match submitted {
            Ok(Some(run_id)) => {
                self.stored.batch.run_id = Some(run_id);
                self.end(api, BatchState::Completed).await
            }
            Ok(None) => Ok(()),
            // It was checked as the batch was created: the settings are others by now.
            Err(error) if matches!(error.code, 400 | 403 | 404 | 409 | 413) => {
                self.fail(api, format!("on_complete is refused: {}", error.message)).await
            }
            Err(error) => Err(error),
        }
    }

    /// Submits the job, unless another run has its id. `None`: one came in between, which the next look judges.
    async fn submit(&self, api: &Arc<Api>) -> Result<Option<RunId>, ApiError> {
        let (tenant, job) = (&self.stored.batch.tenant, completion(&self.stored)?);
        let run_id = RunId::parse(job.run_id.as_deref().unwrap_or_default()).map_err(request::name)?;
        let found = api.backbone.read_record(tenant, &run_id).await?;
        let (is_own, over) = match found {
            None => (false, 0),
            Some(Found { run, revision }) => match of_id(&self.stored, &run, api.backbone.storage().lease)? {
                OfId::Own => (true, 0),
                OfId::Past => (false, revision),
                OfId::Other => return Err(ApiError::new(Code::WrongState, format!("run {run_id} is another's"))),
            },
        };
        let submitted = intake::submit_over(api, tenant, job, over).await?;
        Ok((!submitted.deduplicated || is_own).then_some(submitted.run_id))
    }

    async fn fail(&mut self, api: &Api, because: String) -> Result<(), ApiError> {
        self.stored.batch.because = Some(because);
        self.end(api, BatchState::Failed).await
    }

    /// What a batch had failed for is no dead letter any more.
    async fn reopen(&mut self, api: &Api) -> Result<(), ApiError> {
        (self.stored.reopened, self.stored.batch.because, self.stored.batch.ended_at) = (true, None, None);
        let before = if self.stored.batch.sealed_at.is_some() { BatchState::Sealed } else { BatchState::Open };
        self.write(api, before).await.map(drop)
    }

    async fn end(&mut self, api: &Api, state: BatchState) -> Result<(), ApiError> {
        self.stored.batch.ended_at = Some(now());
        if self.write(api, state).await? && state == BatchState::Completed {
            let batch = &self.stored.batch;
            if let Err(error) = api.backbone.forget_members(&batch.tenant, &batch.id).await {
                tracing::debug!("members of a batch stay until they are too old: {}", error.with_causes());
            }
        }
        Ok(())
    }

    /// Writes the batch; `false`: another write was first, which is read at the next look.
    async fn write(&mut self, api: &Api, state: BatchState) -> Result<bool, ApiError> {
        self.stored.batch.state = state.into();
        let written = api.backbone.write_batch(&self.stored, self.revision).await?;
        self.revision = written.unwrap_or(self.revision);
        Ok(written.is_some())
    }

    /// Whether a node has met every job of the batch that was in a lane when it was sealed: those have joined. The
    /// lanes are looked through once.
    async fn all_were_met(&mut self, api: &Api) -> Result<bool, ApiError> {
        let (tenant, id) = (&self.stored.batch.tenant, &self.stored.batch.id);
        if self.lanes.is_none() {
            let stand = api.backbone.stand_in_lanes(tenant).await?;
            self.lanes = Some(stand.into_iter().map(|(place, last)| (place, 1, last)).collect());
        }
        let lanes = self.lanes.get_or_insert_default();
        for _ in 0..PAGES {
            let Some((place, from, last)) = lanes.front_mut() else { return Ok(true) };
            let (is_there, next) = api.backbone.first_of_batch(tenant, id, place, *from..=*last).await?;
            *from = next;
            if is_there {
                return Ok(false);
            }
            if next > *last {
                lanes.pop_front();
            }
        }
        Ok(false)
    }

    /// Looks at the records of some members that have not ended by their entries.
    async fn ask_for_records(&mut self, api: &Api, open: &[Member]) -> Result<(), ApiError> {
        let batch = &self.stored.batch;
        let first = if self.next_record < open.len() { self.next_record } else { 0 };
        let asked = open.iter().skip(first).take(RECORDS);
        self.next_record = first + asked.len();
        for member in asked {
            let has_ended = match api.backbone.read_record(&batch.tenant, &member.run_id).await? {
                Some(found) if found.run.state.is_terminal() => Some(ended(&found.run)),
                Some(_) => None,
                None if !may_be_gone(member, on_failure(&self.stored), now()) => None,
                None if member.ended.is_none() => Some(Ended::Gone),
                None if Instant::now() < self.next_letter => None,
                None => {
                    self.next_letter = Instant::now() + GONE_AFTER;
                    let letter = api.backbone.find_dead_letter_for_certain(&batch.tenant, &member.run_id, None).await?;
                    // A replay writes the record before it deletes the dead letter.
                    let is_gone = letter.is_none()
                        && api.backbone.read_record_for_certain(&batch.tenant, &member.run_id).await?.is_none();
                    is_gone.then_some(Ended::Gone)
                }
            };
            if let Some(ended) = has_ended.filter(|ended| is_news(member, *ended, on_failure(&self.stored))) {
                write(&api.backbone, &batch.tenant, &batch.id, &member.run_id, Some(ended)).await?;
            }
        }
        Ok(())
    }
}

/// What the run is that has the id of a batch's job.
#[derive(Debug, PartialEq, Eq)]
enum OfId {
    /// The batch's own: a node has submitted it.
    Own,
    /// It has ended, and was there before the batch: such as that of an earlier batch of this id. It makes way.
    Past,
    Other,
}

/// A record does not say for which batch its run was submitted: type and time do, up to what clocks differ by.
fn of_id(stored: &StoredBatch, run: &Run, lease: Duration) -> Result<OfId, ApiError> {
    let (.., job_type) = names(&stored.on_complete)?;
    Ok(match run.origin < stored.batch.created_at.minus(lease) {
        false if run.job_type == job_type => OfId::Own,
        true if run.state.is_terminal() => OfId::Past,
        _ => OfId::Other,
    })
}

/// Whether a member without a record may be gone. A dead letter stays for longer than the record, and what a batch has
/// failed for does not open it again by growing old.
fn may_be_gone(member: &Member, on_failure: OnFailure, now: Timestamp) -> bool {
    (member.ended.is_none() || on_failure == OnFailure::Wait) && now.since(member.at) >= GONE_AFTER
}

/// Whether a member is to be noted as having ended so. What a batch has failed for stays, also once it is erased.
fn is_news(member: &Member, ended: Ended, on_failure: OnFailure) -> bool {
    let stays = on_failure == OnFailure::Fail && member.ended.is_some() && ended == Ended::Gone;
    member.ended != Some(ended) && !stays
}

#[cfg(test)]
mod tests {
    use super::*;
    use longshore_backbone::batches::LASTS;
    use serde_json::json;

    const CREATED: &str = "2027-01-01T00:00:00Z";

    fn batch(on_failure: &str) -> StoredBatch {
        let batch = json!({
            "id": "b", "tenant": "default", "created_at": CREATED, "on_failure": on_failure, "state": "sealed",
        });
        serde_json::from_value(json!({"batch": batch, "on_complete": {"type": "done"}})).unwrap()
    }

    fn member(run: &str, ended: Option<Ended>) -> Member {
        Member { run_id: RunId::parse(run).unwrap(), at: Timestamp::parse(CREATED).unwrap(), ended }
    }

    /// Given runs that have the id of a batch's job, then one of the job's type that is as young as the batch is its
    /// own; one that is older makes way once it has ended.
    #[test]
    fn a_batch_takes_no_other_run_for_that_of_its_job() {
        let (created, lease) = (Timestamp::parse(CREATED).unwrap(), Duration::from_secs(10));
        let job = |job_type: &str| longshore_domain::Job {
            job_type: longshore_domain::JobType::parse(job_type).unwrap(),
            ..crate::tests::job("default", "b-done")
        };
        let of = |job_type: &str, origin: Timestamp, has_ended: bool| {
            let mut run = Run::new(&job(job_type), 1, origin);
            if has_ended {
                run.settle(longshore_domain::settlement::Settlement::Cancel, created);
            }
            of_id(&batch("wait"), &run, lease).unwrap()
        };
        let (a_moment_before, long_before) = (created.minus(lease / 2), created.minus(lease * 2));
        for has_ended in [true, false] {
            assert_eq!(of("done", created, has_ended), OfId::Own);
            assert_eq!(of("done", a_moment_before, has_ended), OfId::Own, "clocks differ");
            assert_eq!(of("work", created, has_ended), OfId::Other);
        }
        assert_eq!((of("done", long_before, true), of("work", long_before, true)), (OfId::Past, OfId::Past));
        assert_eq!(of("done", long_before, false), OfId::Other, "it would be lost");
    }

    /// Given members that were dead letters, then their batch fails for the first that is one or was discarded, if it
    /// fails for dead letters, and for none that has completed since.
    #[test]
    fn only_a_replay_undoes_what_a_batch_has_failed_for() {
        let because = |on_failure: &str, ends: &[Ended]| {
            let (stored, mut standing) = (batch(on_failure), Standing::default());
            for (number, ended) in ends.iter().enumerate() {
                standing.take_in(member(&format!("r{number}"), Some(*ended)), super::on_failure(&stored));
            }
            standing.because
        };
        let [completed, dead, discarded] = [RunState::Completed, RunState::Dead, RunState::Discarded].map(Ended::As);
        assert_eq!(because("fail", &[completed, dead, dead]).as_deref(), Some("run r1 is a dead letter"));
        let said = Some("run r0 was a dead letter, and is discarded");
        assert_eq!(because("fail", &[discarded, dead]).as_deref(), said);
        let others = [completed, Ended::As(RunState::Cancelled), Ended::Gone];
        assert_eq!((because("fail", &others), because("wait", &[dead, discarded])), (None, None));
        let was_dead = member("r", Some(dead));
        let news = |ended| [OnFailure::Fail, OnFailure::Wait].map(|on_failure| is_news(&was_dead, ended, on_failure));
        assert_eq!((news(Ended::Gone), news(completed), news(dead)), ([false, true], [true, true], [false, false]));
        assert!(is_news(&member("r", None), Ended::Gone, OnFailure::Fail), "it was never published");
    }

    /// Given batches in each state, when nothing can follow from their members, then these are not read.
    #[test]
    fn members_are_read_where_something_may_follow() {
        let created = Timestamp::parse("2027-01-01T00:00:00Z").unwrap();
        let follows = |state: &str, on_failure: &str, deadline: Option<u64>, after: Duration| {
            let deadline = deadline.map(|seconds| created.plus(Duration::from_secs(seconds)));
            let batch = json!({
                "id": "b", "tenant": "default", "created_at": created, "deadline": deadline,
                "on_failure": on_failure, "state": state,
            });
            let stored = serde_json::from_value(json!({"batch": batch, "on_complete": {"type": "done"}})).unwrap();
            may_follow(&stored, created.plus(after))
        };
        let soon = Duration::from_secs(1);
        for state in ["sealed", "completing", "failed"] {
            assert!(follows(state, "wait", None, soon), "{state}");
        }
        assert!(!follows("open", "wait", None, soon) && !follows("open", "ignore", Some(2), soon));
        assert!(follows("open", "fail", None, soon), "a dead letter fails it");
        assert!(follows("open", "wait", Some(1), soon) && follows("open", "wait", None, LASTS), "it is over");
    }

    /// Given members whose records are gone, then one that ended as a dead letter is not gone by that alone, and never
    /// if its batch failed for it.
    #[test]
    fn a_dead_letter_is_not_gone_because_its_record_is() {
        let at = Timestamp::parse("2027-01-01T00:00:00Z").unwrap();
        let is_gone = |ended: Option<Ended>, on_failure: OnFailure, after: Duration| {
            let run_id = longshore_domain::RunId::parse("r").unwrap();
            may_be_gone(&Member { run_id, at, ended }, on_failure, at.plus(after))
        };
        let dead = Some(Ended::As(RunState::Dead));
        assert!(!is_gone(None, OnFailure::Wait, GONE_AFTER / 2) && !is_gone(dead, OnFailure::Wait, GONE_AFTER / 2));
        assert!(is_gone(None, OnFailure::Fail, GONE_AFTER) && is_gone(dead, OnFailure::Wait, GONE_AFTER));
        assert!(!is_gone(dead, OnFailure::Fail, LASTS), "the batch would open again, and its job run");
    }
}
