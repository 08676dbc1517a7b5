//! How an attempt begins: what the record says and what the delivery says, and what follows.

use std::rc::Rc;
use std::time::Duration;

use longshore_domain::backoff::Backoff;
use longshore_domain::job::When;
use longshore_domain::run::{DeferReason, EndLog, Holding, RunResult};
use longshore_domain::settlement::Settlement;
use longshore_domain::{ErrorKind, Failure, JobOptions, JobType, Run, RunState, Timestamp};

use super::node::Node;
use super::server::{Fault, MemoryServer, Message, RUN, SEQUENCE, at, id, message};
use super::{LEASE, completed};
use crate::attempt::assignment::{Assignment, Start};
use crate::attempt::running::RunningAttempt;
use crate::ports::RunPorts as _;

/// What the end of a run that was cancelled at work leaves.
const FORGETS: &str = "forget steps of main-p5-7";

/// A server with one job, and a node.
pub(super) struct Scene {
    pub(super) server: Rc<MemoryServer>,
    pub(super) node: Node,
    pub(super) message: Message,
}

impl Scene {
    pub(super) fn new() -> Self {
        Self::with(None)
    }

    pub(super) fn with(options: Option<&JobOptions>) -> Self {
        let server = Rc::new(MemoryServer::new());
        let node = Node::new("n1", &server);
        let message = server.publish(SEQUENCE, options);
        Self { server, node, message }
    }

    /// The job as the scheduler reads its delivery now.
    pub(super) fn delivery(&mut self) -> Box<Assignment> {
        self.node.receives(&mut self.message)
    }

    /// The same, but the record has to be read.
    pub(super) fn claim(&mut self) -> Box<Assignment> {
        self.node.receives_below_the_mark(&mut self.message)
    }

    /// Begins the delivery, which has to be claimed; the attempt that is to be performed, and what was sent.
    pub(super) fn begins(&mut self) -> (Option<RunningAttempt>, Vec<String>) {
        let assignment = self.claim();
        let begun = self.node.begins(assignment);
        (begun, self.node.sent())
    }

    /// The job's run before anything happened.
    pub(super) fn fresh(&mut self) -> Run {
        let job = self.claim().job.clone();
        self.node.sent();
        Run { origin: self.message.at, ..Run::new(&job, 3, self.message.at) }
    }

    /// A record of the run, running on another node under this message.
    pub(super) fn running(&mut self) -> Run {
        let mut run = self.fresh();
        run.begin(1, &"n2".into(), self.server.now());
        (run.held_by, run.token) = (Some(held_by(SEQUENCE)), "wn2-1".into());
        run
    }
}

pub(super) fn held_by(sequence: u64) -> Holding {
    Holding { message: message(sequence), delivery: 1 }
}

pub(super) fn after(mut run: Run, settlement: Settlement) -> Run {
    run.settle(settlement, at(500));
    run
}

/// Another attempt at this time, under a seal.
pub(super) fn retrying(run: Run, due: Timestamp) -> Run {
    let failure = Failure::new(ErrorKind::Retryable, "no");
    Run { seal: "5ea1".into(), ..after(run, Settlement::Retry { at: due, failure }) }
}

/// What a node wrote on the delivery of a moved job.
fn moved(scene: &mut Scene, seal: Option<&str>, position: (u32, u32, u32)) -> Box<Assignment> {
    let mut assignment = scene.claim();
    let arrival = &mut assignment.arrival;
    (arrival.round, arrival.attempt, arrival.deferrals) = position;
    (arrival.moved, arrival.seal) = (true, seal.map(Into::into));
    assignment
}

#[test]
fn the_fast_path_reads_and_writes_nothing() {
    let mut scene = Scene::new();
    // Nothing could be read or written.
    scene.server.breaks(0, Fault::Lost);
    let assignment = scene.delivery();
    let running = scene.node.begins(assignment).unwrap();
    assert!(!scene.server.is_broken(), "no call was made");
    assert_eq!(scene.node.sent(), [""; 0]);
    assert!(!running.attempt_state.is_stored && running.attempt_state.expected == 0);
    assert_eq!((running.attempt_state.run.state.name(), running.attempt_state.run.attempt), (RunState::Running, 1));
}

#[test]
fn a_job_whose_run_was_cancelled_a_moment_ago_does_not_begin_without_its_record() {
    let mut scene = Scene::new();
    let assignment = scene.delivery();
    scene.node.recently_cancelled.add(&assignment.job.tenant, &assignment.job.run_id);
    let fresh = scene.fresh();
    scene.server.has_record(after(fresh, Settlement::Cancel));
    assert!(scene.node.begins(assignment).is_none());
    assert_eq!(scene.node.sent(), ["log enqueued cancelled", "ack 7"]);
}

#[test]
fn a_job_that_was_buffered_for_longer_than_a_cancel_waits_is_claimed() {
    for (buffered, is_stored) in [(2_000, false), (2_001, true)] {
        let mut scene = Scene::new();
        let assignment = scene.delivery();
        scene.server.pass(Duration::from_millis(buffered));
        let running = scene.node.begins(assignment).unwrap();
        assert_eq!(running.attempt_state.is_stored, is_stored, "after {buffered} ms");
    }
}

#[test]
fn a_job_that_may_not_start_now_is_settled_at_once() {
    let second = || Some(When::After(Duration::from_secs(1)));
    let later = JobOptions { run_at: second(), ..JobOptions::default() };
    let expires = JobOptions { expires: second(), ..JobOptions::default() };
    for claims in [false, true] {
        let mut scene = Scene::with(Some(&later));
        let assignment = if claims { scene.claim() } else { scene.delivery() };
        assert!(scene.node.begins(assignment).is_none());
        let scheduled = ["record scheduled 1/0", "live scheduled", "log scheduled", "schedule 1/1 in 1000 ms", "ack 7"];
        assert_eq!(scene.node.sent(), scheduled);
        assert_eq!(scene.server.run(RUN).seal, "5ea1", "the message that comes back proves itself by it");

        let mut scene = Scene::with(Some(&expires));
        scene.server.pass(Duration::from_secs(2));
        let assignment = if claims { scene.claim() } else { scene.delivery() };
        assert!(scene.node.begins(assignment).is_none());
        assert_eq!(scene.node.sent(), ["record expired 1/0", "live enqueued expired", "log enqueued expired", "ack 7"]);
    }
}

#[test]
fn a_job_whose_deadline_leaves_too_little_time_is_not_started() {
    let deadline = JobOptions { deadline: Some(When::After(Duration::from_secs(1))), ..JobOptions::default() };
    for claims in [false, true] {
        let mut scene = Scene::with(Some(&deadline));
        scene.node.needs.set(Some(Duration::from_millis(400)));
        scene.server.pass(Duration::from_millis(601));
        let assignment = if claims { scene.claim() } else { scene.delivery() };
        assert!(scene.node.begins(assignment).is_none());
        let dead = ["record dead 1/0", "live enqueued dlq", "log enqueued dlq", "dead letter", "ack 7"];
        assert_eq!(scene.node.sent(), dead);
        assert_eq!(*scene.node.given_up.borrow(), ["no_time_left"]);

        let mut scene = Scene::with(Some(&deadline));
        scene.node.needs.set(Some(Duration::from_millis(400)));
        scene.server.pass(Duration::from_millis(600));
        let assignment = if claims { scene.claim() } else { scene.delivery() };
        assert!(scene.node.begins(assignment).is_some());
        assert!(scene.node.given_up.borrow().is_empty());
    }
}

fn snooze() -> Settlement {
    let put_back = Some(longshore_domain::run::PutBack::Snoozed);
    Settlement::Defer { at: at(60_000), reason: DeferReason::Snoozed, put_back }
}

fn cancelled_and(run: Run, logged: EndLog) -> Run {
    let mut run = after(run, Settlement::Cancel);
    run.leave_end_log(logged);
    run
}

#[test]
fn what_the_record_says_of_a_delivery() {
    let completed = || Settlement::Complete(RunResult::None);
    let dead = || Settlement::Dead(Failure::new(ErrorKind::Permanent, "no"));
    let elsewhere = |run: Run| Run { held_by: Some(held_by(9)), ..run };
    type Change = Box<dyn Fn(Run) -> Run>;
    let rows: Vec<(&str, Change, &[&str])> = vec![
        (
            "it completed under this message",
            Box::new(move |run| after(run, completed())),
            &["log enqueued started completed", "ack 7"],
        ),
        (
            "it died under this message",
            Box::new(move |run| after(run, dead())),
            &["record dead 1/1", "log enqueued started failed dlq", "dead letter", "ack 7"],
        ),
        ("it completed under another", Box::new(move |run| elsewhere(after(run, completed()))), &["ack 7"]),
        ("it runs under another", Box::new(elsewhere), &["ack 7"]),
        (
            "it was cancelled under this message",
            Box::new(move |run| after(run, Settlement::Cancel)),
            &["record cancelled 1/1", "log enqueued started cancelled", "ack 7", FORGETS],
        ),
        ("it was cancelled under another", Box::new(move |run| elsewhere(after(run, Settlement::Cancel))), &["ack 7"]),
        (
            "it was cancelled, which is logged",
            Box::new(|run| cancelled_and(run, EndLog::Done)),
            &["record cancelled 1/1", "ack 7", FORGETS],
        ),
        (
            "it was cancelled just now",
            Box::new(|run| cancelled_and(run, EndLog::ByCanceller)),
            &["nak 7 after 5000 ms"],
        ),
        (
            "it waits for its retry, decided under this message",
            Box::new(|run| retrying(run, at(60_000))),
            &["record retrying 1/1", "log enqueued started failed", "schedule 1/2 in 60000 ms", "ack 7"],
        ),
        (
            "it was snoozed under this message",
            Box::new(move |run| Run { seal: "5ea1".into(), ..after(run, snooze()) }),
            &["record enqueued 1/1", "log enqueued started deferred", "schedule 1/1 in 60000 ms", "ack 7"],
        ),
        (
            "it is parked, decided under this message",
            Box::new(|run| {
                let parked = Settlement::Park { since: at(0), reason: None };
                Run { seal: "5ea1".into(), ..after(after(run, Settlement::Release), parked) }
            }),
            &["record enqueued 1/1", "log enqueued started released", "park 1/1 in 0 ms", "ack 7"],
        ),
        ("it waits for its retry under another", Box::new(move |run| elsewhere(retrying(run, at(60_000)))), &["ack 7"]),
    ];
    for (says, change, expected) in rows {
        let mut scene = Scene::new();
        let running = scene.running();
        scene.server.has_record(change(running));
        let (begun, sent) = scene.begins();
        assert!(begun.is_none() && sent == expected, "{says}: {sent:?}");
    }
}

#[test]
fn a_delivery_that_nothing_is_known_of_claims_the_first_attempt() {
    let mut scene = Scene::new();
    let (begun, sent) = scene.begins();
    let running = begun.unwrap();
    assert_eq!(sent, ["record running 1/1"]);
    let stored = scene.server.run(RUN);
    assert!(running.attempt_state.is_stored && running.attempt_state.run.token == stored.token);
    assert_eq!(stored.held_by.unwrap().message, message(SEQUENCE));
}

#[test]
fn a_moved_job_claims_the_attempt_that_it_speaks_for() {
    let mut scene = Scene::new();
    let running = scene.running();
    scene.server.has_record(Run { held_by: Some(held_by(3)), ..retrying(running, at(0)) });
    let assignment = moved(&mut scene, Some("5ea1"), (1, 2, 0));
    let running = scene.node.begins(assignment).unwrap();
    assert_eq!(scene.node.sent(), ["record running 1/2"]);
    scene.node.ends(running, completed());
    // The log has the first attempt, as the retry's message proves: only what is new is published.
    let ends = ["record completed 1/2", "live started completed", "log started completed", "ack 7"];
    assert_eq!(scene.node.sent(), ends);
}

#[test]
fn a_nodes_own_job_is_refused_too_if_another_run_has_its_id_by_now() {
    // Its run, of a lane that is gone, has ended; a run of the later lane has the id and has written over its record.
    let mut scene = Scene::new();
    let later = after(scene.running(), Settlement::Complete(RunResult::None));
    scene.server.has_record(Run { run_id: id("main-p5-3"), seal: String::from("of another").into(), ..later });
    scene.server.pass(LEASE);
    let mut own = moved(&mut scene, Some("5ea1"), (1, 2, 0));
    own.job = std::sync::Arc::new(longshore_domain::Job { run_id: id("main-p5-3"), ..(*own.job).clone() });
    assert!(scene.node.begins(own).is_none(), "no handler is called");
    assert_eq!(scene.node.sent(), ["record dead 1/0", "live dlq", "log dlq", "dead letter", "ack 7"]);
    assert_eq!(scene.server.run("main-p5-3").state, RunState::Completed, "the other run keeps its record");
}

#[test]
fn a_moved_job_that_no_record_proves_is_left_alone_while_it_is_young_and_refused_later() {
    for seal in [Some("forged"), Some("5ea1")] {
        let mut scene = Scene::new();
        if seal == Some("forged") {
            let running = scene.running();
            scene.server.has_record(retrying(running, at(0)));
        }
        let young = moved(&mut scene, seal, (1, 2, 0));
        assert!(scene.node.begins(young).is_none());
        assert_eq!(scene.node.sent(), [""; 0], "it comes again");
        assert_eq!(scene.node.metrics.stale_reads.get(), 1);
        scene.server.pass(LEASE);
        let mut aged = moved(&mut scene, seal, (1, 2, 0));
        aged.job = std::sync::Arc::new(longshore_domain::Job { run_id: id("r1"), ..(*aged.job).clone() });
        aged.arrival.has_derived_id = false;
        if seal == Some("forged") {
            let stolen = Run { run_id: id("r1"), ..scene.server.run(RUN) };
            scene.server.loses_record(RUN);
            scene.server.has_record(stolen);
        }
        assert!(scene.node.begins(aged).is_none());
        assert_eq!(scene.node.sent(), ["record dead 1/0", "live dlq", "log dlq", "dead letter", "ack 7"]);
        assert_eq!(scene.server.run(RUN).error.unwrap().kind, ErrorKind::Invalid, "under the id of its position");
    }
}

/// Given a job that was taken back and that no record proves, when it is refused, then the run keeps its record whose
/// job has the same number in another lane.
#[test]
fn an_unproven_job_that_was_taken_back_does_not_touch_the_run_of_its_number() {
    let mut scene = Scene::new();
    let theirs = Run { origin: at(-500), ..scene.running() };
    scene.server.has_record(after(theirs, Settlement::Complete(RunResult::None)));
    scene.server.pass(LEASE);
    let mut unproven = moved(&mut scene, Some("forged"), (1, 2, 0));
    unproven.is_returned = true;
    assert!(scene.node.begins(unproven).is_none());
    let sent = scene.node.sent();
    assert!(sent[0].starts_with("record of main-p5-7-at-") && sent[0].ends_with(" dead 1/0"), "{sent:?}");
    assert_eq!(sent[1..], ["live dlq", "log dlq", "dead letter", "ack 7"]);
    assert_eq!(scene.server.run(RUN).state, RunState::Completed);
}

#[test]
fn a_record_that_is_older_than_the_job_is_not_believed() {
    let mut scene = Scene::new();
    let running = Run { held_by: Some(held_by(3)), seal: "5ea1".into(), ..scene.running() };
    scene.server.has_record(running);
    let assignment = moved(&mut scene, Some("5ea1"), (1, 2, 0));
    assert!(scene.node.begins(assignment).is_none());
    assert_eq!(scene.node.sent(), [""; 0]);
    assert_eq!(scene.node.metrics.stale_reads.get(), 1);
}

#[test]
fn a_released_attempt_begins_again_once_the_log_has_its_first_start() {
    let mut scene = Scene::new();
    let running = scene.running();
    scene.server.has_record(after(running, Settlement::Release));
    scene.node.log_is_gone.set(true);
    let (begun, sent) = scene.begins();
    assert!(begun.is_none());
    assert_eq!(sent, ["nak 7"], "without the log nothing begins");
    scene.node.log_is_gone.set(false);
    let (begun, sent) = scene.begins();
    let run = begun.unwrap().attempt_state.run;
    assert_eq!(sent, ["log enqueued started released", "record running 1/1"]);
    assert_eq!((run.attempts.len(), run.attempts[0].start), (1, 2));
}

#[test]
fn the_run_of_a_lane_that_is_gone_is_overwritten_if_it_has_ended_and_passed_over_if_not() {
    let mut scene = Scene::new();
    scene.message.at = at(9_000);
    let ended = after(Run { origin: at(0), ..scene.running() }, Settlement::Complete(RunResult::None));
    scene.server.has_record(ended);
    let (begun, sent) = scene.begins();
    assert_eq!((sent, begun.is_some()), (vec!["record running 1/1".to_owned()], true));
    assert_eq!(scene.server.run(RUN).origin, at(9_000));

    let mut scene = Scene::new();
    scene.message.at = at(9_000);
    let unfinished = Run { origin: at(0), ..scene.running() };
    scene.server.has_record(unfinished.clone());
    let (begun, sent) = scene.begins();
    let RunningAttempt { assignment, attempt_state, .. } = begun.unwrap();
    assignment.ack_token.abandon();
    let other = attempt_state.run.run_id;
    assert!(other.as_str().starts_with("main-p5-7-at-"));
    assert_eq!(sent, [format!("record of {other} running 1/1")]);

    // That id stays the job's, also when the other run has ended.
    scene.server.has_record(after(unfinished, Settlement::Complete(RunResult::None)));
    scene.server.changes(other.as_str(), |run| run.settle(Settlement::Complete(RunResult::None), at(9_500)));
    let (begun, sent) = scene.begins();
    assert!(begun.is_none());
    assert_eq!(sent, ["log enqueued started completed", "ack 7"]);
}

#[test]
fn a_record_that_changes_between_read_and_write_is_judged_again() {
    let mut scene = Scene::new();
    let cancelled = after(scene.fresh(), Settlement::Cancel);
    scene.server.before_write(move |server| server.has_record(cancelled));
    let (begun, sent) = scene.begins();
    assert!(begun.is_none());
    assert_eq!(sent, ["log enqueued cancelled", "ack 7"]);

    let mut scene = Scene::new();
    let claimed_elsewhere = Run { held_by: Some(held_by(9)), ..scene.running() };
    scene.server.before_write(move |server| server.has_record(claimed_elsewhere));
    let (begun, sent) = scene.begins();
    assert!(begun.is_none());
    assert_eq!(sent, ["ack 7"]);

    // The record that it was to be written over has expired.
    let mut scene = Scene::new();
    let released = after(scene.running(), Settlement::Release);
    scene.server.has_record(released);
    scene.server.before_write(|server| server.loses_record(RUN));
    let (begun, sent) = scene.begins();
    assert!(begun.is_some());
    assert_eq!(sent, ["log enqueued started released", "record running 1/1"]);
}

#[test]
fn a_job_whose_record_is_none_is_put_off_for_longer_each_time() {
    for call in [0, 1] {
        let mut scene = Scene::new();
        let mut waits = Vec::new();
        for _ in 0..8 {
            scene.server.breaks(call, Fault::Unreadable);
            let (begun, sent) = scene.begins();
            assert!(begun.is_none() && scene.server.find(RUN).is_none(), "{sent:?}");
            waits.extend(sent);
        }
        let seconds = [1, 2, 4, 8, 16, 32, 60, 60].map(|seconds: u32| format!("nak 7 after {} ms", seconds * 1_000));
        assert_eq!(waits, seconds);
        assert!(scene.begins().0.is_some(), "a node that can read it, or a person, ends that");
    }
}

#[test]
fn a_record_that_cannot_be_read_or_written_returns_the_job() {
    let calls = ["reads its record", "writes its claim"];
    for (call, what) in (0..).zip(calls) {
        for fault in [Fault::Lost, Fault::AnswerLost] {
            let mut scene = Scene::new();
            scene.server.breaks(call, fault);
            let (begun, sent) = scene.begins();
            assert!(begun.is_none() && sent.last().unwrap() == "nak 7 after 100 ms", "{what}, {fault:?}: {sent:?}");
            assert_eq!(scene.server.find(RUN).is_some(), (call, fault) == (1, Fault::AnswerLost));
        }
    }
}

#[test]
fn a_claim_is_remembered_as_unclear_if_it_was_not_answered_and_not_if_it_was_refused() {
    for (fault, is_unclear) in [(Fault::Lost, true), (Fault::Full, false)] {
        let mut scene = Scene::new();
        scene.server.breaks(1, fault);
        assert!(scene.begins().0.is_none() && scene.server.is_broken());
        assert_eq!(scene.node.unclear_claims.take(&"wn1-1".into()), is_unclear, "{fault:?}");
    }
}

#[test]
fn nothing_is_sent_for_a_job_whose_lease_is_over() {
    let mut scene = Scene::new();
    let assignment = scene.claim();
    scene.server.breaks(0, Fault::Lost);
    scene.server.pass(LEASE);
    assert!(scene.node.begins(assignment).is_none());
    assert_eq!(scene.node.sent(), [""; 0], "another node may have it by now");

    // The claim is stored, but it took too long: the next holder settles it as lost.
    let mut scene = Scene::new();
    let assignment = scene.claim();
    scene.server.before_write(|server| server.pass(LEASE));
    assert!(scene.node.begins(assignment).is_none());
    assert_eq!(scene.node.sent(), ["record running 1/1"]);
}

#[test]
fn a_job_starts_only_while_a_third_of_its_lease_is_left_to_renew_it() {
    let mut scene = Scene::new();
    let from = scene.server.instant();
    let mut assignment = scene.claim();
    let is_too_late = |assignment: &Assignment, after| assignment.is_too_late_to_start(from + after, LEASE);
    assert!(!is_too_late(&assignment, LEASE * 2 / 3));
    assert!(is_too_late(&assignment, LEASE * 2 / 3 + Duration::from_millis(1)));
    // Its lease is being renewed.
    assignment.entry = scene.node.book.enter(&assignment.ack_token, message(SEQUENCE), &assignment.job, from);
    assert!(!is_too_late(&assignment, LEASE));
    // The clock says that it is over, though the lease-keeper has not come to it: the node was frozen.
    let is_over = |after| assignment.lease_is_over(from + after, LEASE);
    assert!(!is_over(LEASE - Duration::from_millis(1)) && is_over(LEASE));
}

#[test]
fn a_job_that_this_node_works_on_is_left_alone() {
    let mut scene = Scene::new();
    let first = scene.delivery();
    let entry = scene.node.book.enter(&first.ack_token, message(SEQUENCE), &first.job, scene.server.instant());
    let (begun, sent) = scene.begins();
    assert!(entry.is_some() && begun.is_none());
    assert_eq!(sent, [""; 0]);
    drop(entry);
    assert!(scene.begins().0.is_some());
}

#[test]
fn a_job_that_cannot_start_is_parked_and_says_why_if_that_is_published() {
    let published = [(None, "enqueued"), (Some(DeferReason::RateLimited), "enqueued deferred")];
    for (claims, (reason, events)) in
        [false, true].into_iter().flat_map(|claims| published.map(|published| (claims, published)))
    {
        let mut scene = Scene::new();
        let mut assignment = if claims { scene.claim() } else { scene.delivery() };
        let permits = std::sync::Arc::new(crate::runtime::permits::ParkPermits::default());
        assignment.park = crate::runtime::park_permits::ParkPermit::take(&permits, reason);
        assert!(scene.node.begins(assignment).is_none());
        let live = format!("live {events}");
        let log = format!("log {events}");
        let parked = ["record enqueued 1/0", &live, &log, "park 1/1 in 0 ms", "ack 7"];
        assert_eq!(scene.node.sent(), parked);
        assert!(scene.server.run(RUN).state.is_parked());
    }
}

#[test]
fn an_invalid_job_becomes_a_dead_letter_once() {
    let mut scene = Scene::new();
    let mut invalid = scene.delivery();
    invalid.start = Start::Invalid("nonsense".to_owned());
    assert!(scene.node.begins(invalid).is_none());
    assert_eq!(scene.node.sent(), ["record dead 1/0", "live dlq", "log dlq", "dead letter", "ack 7"]);
    // It comes again, as the acknowledgement was lost: what was decided is carried out once more.
    let mut again = scene.claim();
    again.start = Start::Invalid("nonsense".to_owned());
    assert!(scene.node.begins(again).is_none());
    assert_eq!(scene.node.sent(), ["record dead 1/0", "log dlq", "dead letter", "ack 7"]);
    assert_eq!(scene.server.dead_letters.borrow().len(), 1);
}

/// Given a run that has ended, when its job comes again and something is left to do, then its record is written anew,
/// so that it does not expire before that is done. If it cannot be written, the rest is done all the same.
#[test]
fn the_record_of_an_end_is_kept_anew_while_something_is_left_to_do() {
    let mut scene = Scene::new();
    let completed = after(scene.running(), Settlement::Complete(RunResult::None));
    scene.server.has_record(Run { then: JobType::parse("next").ok(), ..completed });
    assert_eq!(scene.begins().1, ["record completed 1/1", "log enqueued started completed", "ack 7"]);
    for fault in [Fault::Full, Fault::Lost] {
        let mut scene = Scene::new();
        let dead = after(scene.running(), Settlement::Dead(Failure::new(ErrorKind::Permanent, "no")));
        scene.server.has_record(dead);
        // Its record is read before.
        scene.server.breaks(1, fault);
        let (begun, sent) = scene.begins();
        assert!(begun.is_none() && scene.server.is_broken());
        assert_eq!(sent, ["log enqueued started failed dlq", "dead letter", "ack 7"], "{fault:?}");
    }
}

#[test]
fn a_released_job_that_this_node_cannot_read_becomes_a_dead_letter_too() {
    // Another node took it: an older version, or before the server's max_payload was lowered.
    let mut scene = Scene::new();
    let released = after(scene.running(), Settlement::Release);
    scene.server.has_record(released);
    let mut invalid = scene.claim();
    invalid.start = Start::Invalid("nonsense".to_owned());
    assert!(scene.node.begins(invalid).is_none());
    let ends = ["record dead 1/1", "live dlq", "log enqueued started released dlq", "dead letter", "ack 7"];
    assert_eq!(scene.node.sent(), ends);
    assert_eq!(scene.server.run(RUN).error.unwrap().kind, ErrorKind::Invalid);
}

#[test]
fn a_late_write_of_an_invalid_job_does_not_begin_a_second_run_once_its_dead_letter_was_replayed() {
    let mut scene = Scene::new();
    let mut invalid = scene.delivery();
    invalid.start = Start::Invalid("nonsense".to_owned());
    let mut replayed = scene.fresh();
    // Another delivery of the job was refused first, and its dead letter was replayed since.
    scene.server.before_write(move |server| {
        let failure = Failure::new(ErrorKind::Invalid, "nonsense");
        (replayed.held_by, replayed.seal) = (Some(held_by(SEQUENCE)), "5ea1".into());
        replayed.settle(Settlement::Dead(failure), at(10));
        replayed.replay(at(20));
        server.has_record(replayed);
    });
    assert!(scene.node.begins(invalid).is_none());
    assert_eq!(scene.node.sent(), ["ack 7"], "another message carries the run");
    assert_eq!(scene.server.run(RUN).round, 2);
}

#[test]
fn an_invalid_job_whose_run_has_the_id_with_its_time_is_over_once_that_was_replayed() {
    let mut scene = Scene::new();
    let stored_at = held_by(SEQUENCE).message.at;
    let mut replayed = scene.fresh();
    // A run of a lane that is gone has the derived id and still waits; so this job's run got the id with its time.
    let other = Run { origin: at(-500), ..scene.fresh() };
    replayed.run_id = longshore_domain::RunId::derived_at(&other.run_id, stored_at);
    replayed.held_by = Some(held_by(SEQUENCE));
    replayed.settle(Settlement::Dead(Failure::new(ErrorKind::Invalid, "nonsense")), at(10));
    replayed.replay(at(20));
    scene.server.has_record(other);
    scene.server.has_record(replayed);
    let mut again = scene.claim();
    again.start = Start::Invalid("nonsense".to_owned());
    assert!(scene.node.begins(again).is_none());
    assert_eq!(scene.node.sent(), ["ack 7"], "another message carries the run");
}

#[test]
fn an_invalid_job_does_not_touch_the_run_whose_id_it_names() {
    let mut scene = Scene::new();
    let mut invalid = scene.delivery();
    invalid.rename(id("r1"));
    invalid.start = Start::Invalid("nonsense".to_owned());
    let theirs = Run { run_id: id("r1"), held_by: Some(held_by(9)), ..scene.running() };
    scene.server.has_record(theirs);
    assert!(scene.node.begins(invalid).is_none());
    assert_eq!(scene.server.run("r1").state, RunState::Running);
    assert_eq!(scene.server.run(RUN).state, RunState::Dead);
}

#[test]
fn the_settings_of_a_type_hold_for_a_run_without_record() {
    let mut scene = Scene::new();
    let policy = &mut scene.node.policies.default_type;
    (policy.max_attempts, policy.keep, policy.backoff) = (2, Some(LEASE), Backoff::default());
    let assignment = scene.delivery();
    let run = scene.node.begins(assignment).unwrap().attempt_state.run;
    assert_eq!((run.max_attempts, run.keep_ms, run.node.as_ref()), (2, Some(30_000), Some(scene.node.node())));
}
