//! Submissions with a key, an id or a time of their own: what is stored in which order, what the client is answered,
//! and that a repeat finishes what a node that died has begun.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt as _;
use longshore_backbone::records::Found;
use longshore_backbone::request::Stored;
use longshore_backbone::scan::Source;
use longshore_backbone::wire::api::{ApiError, Submitted};
use longshore_backbone::{Error, Headers};
use longshore_domain::job::Unique;
use longshore_domain::policy::OnMismatch;
use longshore_domain::run::RunResult;
use longshore_domain::settlement::Settlement;
use longshore_domain::{Job, JobOptions, Run, RunId, RunState, Tenant, Timestamp, duration};

use super::LEASE;
use super::begin::{Scene, after};
use super::keys::claim;
use super::node::Node;
use super::server::{Fault, RUN, at, id};
use crate::api::cancellation::is_of_wait;
use crate::api::keyed;
use crate::api::submission::{OnConflict, Submission, SubmitPorts};
use crate::commit::{AfterCommit, Commit};
use crate::ports::{InLane, RunPorts as _, Server as _, Unlogged, WaitingPorts};

/// The name under which the server in memory keeps the schedule of a run's wait.
fn schedule_of(run: &Run) -> String {
    format!("{}/{}/{}/{}", run.run_id, run.round, run.next_attempt(), run.deferrals)
}

impl SubmitPorts for Node {
    async fn publish_job(&self, job: &Job, _: Headers, _: Bytes, _: &str) -> Result<(), ApiError> {
        let published = self.server.call(|| self.server.note(format!("publish {}", job.run_id))).await;
        published.map_err(|error| ApiError::unavailable(error.with_causes()))
    }

    async fn carry_out(&self, mut commit: Commit) -> Result<u64, Unlogged> {
        let (done, mut carried_out) = tokio::sync::oneshot::channel();
        commit.after = AfterCommit::Report(done);
        Self::carry_out(self, Box::new(commit)).await;
        carried_out.try_recv().map_err(|_| Unlogged)
    }

    async fn has_schedule(&self, run: &Run) -> Result<bool, Error> {
        self.server.call(|| self.server.schedules.borrow().contains_key(&schedule_of(run))).await
    }

    async fn unschedule(&self, run: &Run) -> Result<(), Error> {
        let remove = || {
            self.server.note(format!("unschedule {}", run.run_id));
            self.server.schedules.borrow_mut().remove(&schedule_of(run));
        };
        self.server.call(remove).await
    }
}

impl WaitingPorts for Node {
    async fn recorded_for_certain(&self, tenant: &Tenant, run: &RunId) -> Result<Option<Found>, ApiError> {
        let found = self.server.read_record(tenant, run).await;
        found.map_err(|error| ApiError::unavailable(error.with_causes()))
    }

    async fn waiting(&self, _: &Tenant, run: &RunId) -> Result<Option<InLane>, ApiError> {
        let Some((_, number)) = run.as_derived() else { return Ok(None) };
        let is_there = self.server.lane.borrow().iter().any(|message| message.sequence == number);
        let job = crate::tests::job("t", run.as_str());
        let run = Run::new(&job, 3, at(0));
        Ok(is_there.then(|| InLane { run, job: Arc::new(job), trace: None }))
    }

    async fn waiting_by_own_id(&self, _: &Tenant, _: &RunId) -> Result<Option<InLane>, ApiError> {
        Ok(None)
    }

    async fn find(&self, place: &Source, run: &Run) -> Result<Option<Stored>, Error> {
        let in_lane = || {
            let lane = self.server.lane.borrow();
            let mut all = lane.iter().filter_map(|message| message.headers.clone());
            all.find(|headers| is_of_wait(headers, run))
        };
        let found = match place {
            Source::Lane(..) => in_lane(),
            _ => self.server.schedules.borrow().get(&schedule_of(run)).map(|(_, headers)| headers.clone()),
        };
        let stored = |headers| Stored {
            subject: String::new(),
            sequence: 1,
            at: String::new(),
            headers,
            payload: Bytes::from_static(b"{}"),
        };
        Ok(found.map(stored))
    }
}

/// A job with the key `k`, which is to have this run.
fn keyed(run: &str) -> Submission {
    let options = JobOptions { idempotency_key: Some("k".to_owned()), ..JobOptions::default() };
    Submission {
        job: Job { run_id: id(run), options: Some(Box::new(options)), ..crate::tests::job("t", "r") },
        own_id: None,
        on_conflict: OnConflict::Return,
        debounce: None,
        headers: Headers::new(),
        payload: Bytes::from_static(b"{}"),
        trace: None,
        over: 0,
        fingerprint: std::sync::OnceLock::new(),
    }
}

fn replacing(run: &str) -> Submission {
    Submission { on_conflict: OnConflict::Replace, ..keyed(run) }
}

/// The answer; `None`: the node died.
fn try_submit(scene: &Scene, job: Submission, due: Option<Timestamp>) -> Option<Result<Submitted, ApiError>> {
    keyed::submit(&scene.node, job, due).now_or_never()
}

/// The run of the answer, its state, and whether it was there before.
fn submit(scene: &Scene, job: Submission, due: Option<Timestamp>) -> (String, RunState, bool) {
    let answer = try_submit(scene, job, due).unwrap().unwrap();
    let state = scene.server.run(answer.run_id.as_str()).state.name();
    assert_eq!(answer.state, state.into(), "the client is answered what is stored");
    (answer.run_id.to_string(), state, answer.deduplicated)
}

fn refused(scene: &Scene, job: Submission) -> ApiError {
    try_submit(scene, job, None).unwrap().unwrap_err()
}

fn answered(run: &str, state: RunState, deduplicated: bool) -> (String, RunState, bool) {
    (run.to_owned(), state, deduplicated)
}

const ENQUEUED: RunState = RunState::Enqueued;

#[test]
fn a_key_is_claimed_before_the_record_and_both_are_marked_once_the_job_is_durable() {
    let scene = Scene::new();
    assert_eq!(submit(&scene, keyed("r1"), None), answered("r1", ENQUEUED, false));
    let steps = [
        "claim k for r1 unpublished",
        "record of r1 enqueued 1/0",
        "publish r1",
        "claim k for r1",
        "record of r1 enqueued 1/0",
    ];
    assert_eq!(scene.node.sent(), steps);
    let run = scene.server.run("r1");
    assert!(run.published && run.key_claimed_ms == Some(3_600_000) && !run.seal.is_empty());
}

/// Given the record of a run that has ended, when a job of that id is submitted over it, now or later, then it has a
/// run of its own; without that, or once the record has changed, the answer is the run that is there.
#[test]
fn a_run_that_has_ended_makes_way_for_a_job_that_is_submitted_over_it() {
    for due in [None, Some(at(99_000))] {
        let scene = Scene::new();
        let over = |revision| {
            let mut job = Submission { own_id: Some(id("r")), over: revision, ..keyed("r") };
            job.job.options = None;
            job
        };
        submit(&scene, over(0), None);
        scene.server.changes("r", |run| run.settle(Settlement::Complete(RunResult::None), at(9)));
        let found = scene.server.read_replica(&scene.server.run("r").tenant, &id("r")).now_or_never().flatten();
        let revision = found.unwrap().revision;
        assert_eq!(submit(&scene, over(0), due), answered("r", RunState::Completed, true));
        let state = if due.is_some() { RunState::Scheduled } else { ENQUEUED };
        assert_eq!(submit(&scene, over(revision), due), answered("r", state, false));
        assert_eq!(submit(&scene, over(revision), due), answered("r", state, true));
    }
}

/// Given a key that its run gives back, when its job is refused, then the claim goes with the window of the settings;
/// it lasts for years only once the job is durable.
#[test]
fn a_claim_whose_job_was_refused_lasts_no_longer_than_others() {
    let scene = Scene::new();
    let active = |run: &str| {
        let mut job = keyed(run);
        job.job.options.as_mut().unwrap().unique = Unique::Active;
        job
    };
    // After the claim and the record.
    scene.server.breaks(2, Fault::Lost);
    refused(&scene, active("r1"));
    assert_eq!(scene.server.claim_lasts("k"), Some(Duration::from_secs(3_600)));
    assert_eq!(submit(&scene, active("r2"), None), answered("r1", ENQUEUED, true));
    assert_eq!(scene.server.claim_lasts("k"), Some(duration::MAX_DURATION));
}

#[test]
fn the_same_job_again_is_answered_with_the_run_that_it_has() {
    let scene = Scene::new();
    submit(&scene, keyed("r1"), None);
    scene.node.sent();
    assert_eq!(submit(&scene, keyed("r2"), None), answered("r1", ENQUEUED, true));
    assert_eq!((scene.node.sent(), scene.server.find("r2").is_none()), (vec![], true), "nothing is written");
    scene.server.changes("r1", |run| run.settle(Settlement::Complete(RunResult::None), at(9)));
    assert_eq!(submit(&scene, keyed("r3"), None), answered("r1", RunState::Completed, true));
}

/// Given a node that died after it had claimed a key for a job, and before it wrote the record of its run, when the key
/// is submitted, then the run waits for as long as its job is in its lane.
#[test]
fn a_run_without_a_record_has_completed_only_if_its_job_has_left_its_lane() {
    let scene = Scene::new();
    scene.server.has_claim("k", claim(RUN, true, &[]));
    scene.server.pass(LEASE);
    let state = || {
        let answer = try_submit(&scene, keyed("r1"), None).unwrap().unwrap();
        assert_eq!((answer.run_id.as_str(), answer.deduplicated), (RUN, true));
        answer.state
    };
    assert_eq!(state(), ENQUEUED.into());
    scene.server.lane.borrow_mut().clear();
    assert_eq!(state(), RunState::Completed.into());
}

#[test]
fn another_job_with_the_key_is_a_mistake_unless_the_settings_say_otherwise() {
    let mut scene = Scene::new();
    submit(&scene, keyed("r1"), None);
    let other = || Submission { payload: Bytes::from_static(b"[]"), ..keyed("r2") };
    let error = refused(&scene, other());
    let message = "idempotency_key: came before with another type or payload, for run r1";
    assert_eq!((error.code, error.error.as_str(), error.message.as_str()), (409, "idempotency_mismatch", message));
    scene.node.policies.keys.on_mismatch = OnMismatch::Return;
    assert_eq!(submit(&scene, other(), None), answered("r1", ENQUEUED, true));
}

#[test]
fn a_client_that_asks_for_it_is_refused_a_key_that_is_taken() {
    let scene = Scene::new();
    let rejecting = |run| Submission { on_conflict: OnConflict::Reject, ..keyed(run) };
    assert_eq!(submit(&scene, rejecting("r1"), None), answered("r1", ENQUEUED, false));
    let error = refused(&scene, rejecting("r2"));
    let message = "idempotency_key: belongs to run r1";
    assert_eq!((error.code, error.error.as_str(), error.message.as_str()), (409, "key_taken", message));
}

#[test]
fn a_key_is_free_again_when_its_scope_says_so() {
    let of_scope = |run: &str, unique| {
        let mut job = keyed(run);
        job.job.options.as_mut().unwrap().unique = unique;
        job
    };
    let started: fn(&mut Run) = |run| run.begin(1, &"n2".into(), at(5));
    let ended: fn(&mut Run) = |run| run.settle(Settlement::Complete(RunResult::None), at(9));
    let table = [(Unique::Window, [false, false]), (Unique::Queued, [true, true]), (Unique::Active, [false, true])];
    for (unique, is_free) in table {
        let scene = Scene::new();
        submit(&scene, of_scope("r1", unique), None);
        let same = submit(&scene, of_scope("r2", unique), None).0;
        assert_eq!(same, "r1", "{unique:?}: it waits");
        for ((change, is_free), run) in [started, ended].into_iter().zip(is_free).zip(["r3", "r4"]) {
            scene.server.changes("r1", change);
            let has_it = submit(&scene, of_scope(run, unique), None).0;
            assert_eq!(has_it != "r1", is_free, "{unique:?} after {:?}", scene.server.run("r1").state);
        }
    }
}

#[test]
fn a_job_for_later_is_stored_and_scheduled_and_its_schedule_is_what_starts_it() {
    let scene = Scene::new();
    assert_eq!(submit(&scene, keyed("r1"), Some(at(60_000))), answered("r1", RunState::Scheduled, false));
    let steps = [
        "claim k for r1 unpublished",
        "record of r1 scheduled 1/0",
        "live scheduled",
        "log scheduled",
        "schedule 1/1 in 60000 ms",
        "claim k for r1",
        "record of r1 scheduled 1/0",
    ];
    assert_eq!(scene.node.sent(), steps, "nothing is published into the lane");
}

#[test]
fn a_run_that_its_client_named_is_what_it_is_whichever_run_has_its_key_by_now() {
    let scene = Scene::new();
    let own = |run: &str| Submission { own_id: Some(id(run)), ..keyed(run) };
    submit(&scene, own("r1"), None);
    scene.server.changes("r1", |run| run.begin(1, &"n2".into(), at(5)));
    scene.node.sent();
    assert_eq!(submit(&scene, own("r1"), None), answered("r1", RunState::Running, true));
    assert!(scene.node.sent().is_empty());
}

#[test]
fn a_job_that_replaces_another_is_durable_before_that_makes_way() {
    let scene = Scene::new();
    submit(&scene, keyed("r1"), Some(at(60_000)));
    scene.node.sent();
    let other = Submission { payload: Bytes::from_static(b"[]"), ..replacing("r2") };
    assert_eq!(submit(&scene, other, Some(at(90_000))), answered("r2", RunState::Scheduled, false));
    let sent = scene.node.sent();
    let step = |line: &str| sent.iter().position(|other| other == line).unwrap_or_else(|| panic!("{line}: {sent:?}"));
    assert!(step("schedule 1/1 in 90000 ms") < step("record of r1 duplicate 1/0"), "{sent:?}");
    assert!(step("record of r1 duplicate 1/0") < step("unschedule r1"), "{sent:?}");
    assert_eq!(scene.server.run("r1").state.duplicate_of(), Some(&id("r2")));
    assert_eq!(scene.server.claim("k").unwrap().run_id, id("r2"));
    assert_eq!(scene.server.schedules.borrow().len(), 1, "the replaced run starts no more");
}

#[test]
fn a_run_that_has_started_is_not_replaced() {
    let scene = Scene::new();
    submit(&scene, keyed("r1"), None);
    scene.server.changes("r1", |run| run.begin(1, &"n2".into(), at(5)));
    assert_eq!(submit(&scene, replacing("r2"), None), answered("r1", RunState::Running, true));
    assert!(scene.server.find("r2").is_none());
}

#[test]
fn a_run_that_starts_while_it_is_being_replaced_stays_and_the_other_makes_way() {
    let scene = Scene::new();
    submit(&scene, keyed("r1"), None);
    // Just before the record of `r2` is written.
    scene.server.before_write(|server| server.changes("r1", |run| run.begin(1, &"n2".into(), at(5))));
    assert_eq!(submit(&scene, replacing("r2"), None), answered("r1", RunState::Running, true));
    assert_eq!(scene.server.run("r2").state.duplicate_of(), Some(&id("r1")));
    assert_eq!(scene.server.claim("k").unwrap().run_id, id("r1"));
}

/// Submits, with one fault at one call, and again until there is an answer.
fn with_a_fault(
    scene: &Scene,
    call: u32,
    fault: Fault,
    job: &dyn Fn(&str) -> Submission,
    due: Option<Timestamp>,
) -> RunId {
    scene.server.breaks(call, fault);
    for attempt in 0..4 {
        // An id is made anew for each submission.
        let answer = try_submit(scene, job(&format!("a{attempt}")), due);
        if let Some(Ok(answer)) = answer {
            return answer.run_id;
        }
        // Its claim is given up once no submission goes on with it; a client asks again before that.
        scene.server.pass(Duration::from_millis(10));
    }
    panic!("no answer: {fault:?} at call {call}");
}

#[test]
fn a_submission_that_is_repeated_after_any_fault_has_one_run_and_its_job_is_durable() {
    for due in [None, Some(at(60_000))] {
        let mut calls = 0;
        'calls: for call in 0..40 {
            for fault in [Fault::Lost, Fault::AnswerLost, Fault::DiesBefore, Fault::DiesAfter] {
                let scene = Scene::new();
                let run_id = with_a_fault(&scene, call, fault, &keyed, due);
                if !scene.server.is_broken() {
                    break 'calls;
                }
                let (run, place) = (scene.server.run(run_id.as_str()), format!("{fault:?} at call {call}"));
                assert!(run.published, "its record would go away: {place}");
                let claim = scene.server.claim("k").unwrap();
                assert_eq!((&claim.run_id, claim.published), (&run_id, true), "{place}");
                let sent = scene.node.sent();
                let is_durable = match due {
                    None => sent.contains(&format!("publish {run_id}")),
                    Some(_) => scene.server.schedules.borrow().contains_key(&schedule_of(&run)),
                };
                assert!(is_durable, "{place}: {sent:?}");
                let others = (0..4).filter_map(|nth| scene.server.find(&format!("a{nth}")));
                assert_eq!(others.filter(|other| !other.state.is_terminal()).count(), 1, "{place}");
            }
            calls += 1;
        }
        assert!(calls >= 5, "a fault at each of its calls: {calls}");
    }
}

#[test]
fn a_client_that_changed_its_mind_is_not_bound_by_a_submission_that_died() {
    let scene = Scene::new();
    // The claim is written, and nothing else.
    scene.server.breaks(0, Fault::DiesAfter);
    assert!(try_submit(&scene, keyed("r1"), None).is_none());
    let other = Submission { payload: Bytes::from_static(b"[]"), ..keyed("r2") };
    assert_eq!(submit(&scene, other, None), answered("r2", ENQUEUED, false));
    let claim = scene.server.claim("k").unwrap();
    assert_eq!((claim.run_id, claim.published), (id("r2"), true));
}

#[test]
fn a_claim_whose_record_is_gone_is_of_a_run_that_has_completed_unless_it_is_new() {
    let scene = Scene::new();
    submit(&scene, keyed("r1"), None);
    scene.server.loses_record("r1");
    let state = |scene: &Scene| try_submit(scene, keyed("r2"), None).unwrap().unwrap().state;
    assert_eq!(state(&scene), ENQUEUED.into(), "its record may be about to be written");
    scene.server.pass(scene.node.lease());
    assert_eq!(state(&scene), RunState::Completed.into());
}

#[test]
fn an_ended_run_is_not_begun_again_by_a_repeat() {
    let scene = Scene::new();
    submit(&scene, keyed("r1"), None);
    let run = after(scene.server.run("r1"), Settlement::Cancel);
    scene.server.has_record(run);
    scene.node.sent();
    assert_eq!(submit(&scene, keyed("r2"), None), answered("r1", RunState::Cancelled, true));
    assert!(scene.node.sent().is_empty());
}
