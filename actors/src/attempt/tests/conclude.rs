//! How an attempt ends: its outcome, what the record says by then, and what follows.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt as _;
use longshore_domain::outcome::Outcome;
use longshore_domain::policy::History;
use longshore_domain::served::NeverServed;
use longshore_domain::settlement::Settlement;
use longshore_domain::{ErrorKind, JobType, Run, RunId, RunState};
use tokio::sync::oneshot;

use super::begin::{Scene, after, held_by, retrying};
use super::node::holds;
use super::server::{Fault, RUN, SEQUENCE, at, id, message};
use super::{LEASE, completed, done, failed, failed_for};
use crate::attempt::announce::announce;
use crate::attempt::conclude::{HeldRetry, judge_or_hold};
use crate::attempt::ports::Ports as _;
use crate::attempt::running::{CurrentAttempt, RunningAttempt, of_current};
use crate::attempt::stop::Owner;
use crate::attempt::watch::last_write;
use crate::commit::{AfterCommit, Commit, PublishedJob, follow_up};
use crate::handlers::handler::BoxFuture;
use crate::ports::RunPorts as _;
use crate::ports::encode::EncodedEvents;
use crate::runtime::gate_news::Wakes;

const SHORT: Duration = Duration::from_millis(400);
const LONG: Duration = Duration::from_secs(60);

impl Scene {
    /// An attempt on the fast path.
    fn runs(&mut self) -> RunningAttempt {
        let assignment = self.delivery();
        self.node.begins(assignment).unwrap()
    }

    /// An attempt whose handler works.
    fn works(&mut self) -> CurrentAttempt {
        let now = self.server.instant();
        Arc::new(Mutex::new(Some(RunningAttempt { at_work: Some((now, now)), ..self.runs() })))
    }

    /// An attempt that was claimed.
    fn runs_claimed(&mut self) -> RunningAttempt {
        let running = self.begins().0.unwrap();
        self.node.sent();
        running
    }

    fn ends(&mut self, running: RunningAttempt, outcome: Outcome) -> Vec<String> {
        self.node.ends(running, outcome);
        self.node.sent()
    }

    /// An attempt that ends and whose retry may be held locally.
    fn holds(&mut self, running: RunningAttempt, outcome: Outcome) -> (Option<Box<HeldRetry>>, Vec<String>) {
        let RunningAttempt { assignment, attempt_state, .. } = running;
        let held = done(judge_or_hold(&self.node, assignment, attempt_state, outcome));
        (held, self.node.sent())
    }
}

#[test]
fn what_follows_an_attempt() {
    const DEFERRED: &str = "schedule 1/1 in 60000 ms";
    let rows: Vec<(Outcome, &[&str])> = vec![
        (
            completed(),
            &["record completed 1/1", "live enqueued started completed", "log enqueued started completed", "ack 7"],
        ),
        (
            failed_for(LONG),
            &[
                "record retrying 1/1",
                "live enqueued started failed",
                "log enqueued started failed",
                "schedule 1/2 in 60000 ms",
                "ack 7",
            ],
        ),
        (
            failed(ErrorKind::Permanent),
            &[
                "record dead 1/1",
                "live enqueued started failed dlq",
                "log enqueued started failed dlq",
                "dead letter",
                "ack 7",
            ],
        ),
        (
            Outcome::Snoozed(LONG),
            &[
                "record enqueued 1/1",
                "live enqueued started deferred",
                "log enqueued started deferred",
                DEFERRED,
                "ack 7",
            ],
        ),
        (
            Outcome::Released,
            &["record enqueued 1/1", "live enqueued started released", "log enqueued started released", "nak 7"],
        ),
        (
            Outcome::Cancelled,
            &[
                "record cancelled 1/1",
                "live enqueued started cancelled",
                "log enqueued started cancelled",
                "ack 7",
                "forget steps of main-p5-7",
            ],
        ),
    ];
    for (outcome, expected) in rows {
        let what = format!("{outcome:?}");
        let mut scene = Scene::new();
        let running = scene.runs();
        assert_eq!(scene.ends(running, outcome), expected, "{what}");
        assert_eq!(scene.server.run(RUN).held_by.unwrap().message, message(SEQUENCE), "{what}");
    }
}

#[test]
fn a_message_that_comes_back_later_gets_a_seal_and_others_none() {
    let seal_after = |outcome| {
        let mut scene = Scene::new();
        let running = scene.runs();
        scene.ends(running, outcome);
        scene.server.run(RUN).seal
    };
    assert_eq!(seal_after(failed_for(LONG)), "5ea1");
    assert_eq!(seal_after(completed()), "");
}

#[test]
fn a_type_that_keeps_its_failures_alone_stores_nothing_of_a_run_that_completes_at_once() {
    let mut scene = Scene::new();
    scene.node.policies.default_type.history = History::Failures;
    let running = scene.runs();
    assert_eq!(scene.ends(running, completed()), ["live enqueued started completed", "ack 7"]);
    let tenant = longshore_domain::Tenant::default_tenant();
    assert!(scene.server.find(RUN).is_none() && scene.node.unstored_ends.find(&tenant, &id(RUN)).is_some());

    // The record that says that it runs may be stored, though its node got no answer.
    let mut scene = Scene::new();
    scene.node.policies.default_type.history = History::Failures;
    let mut running = scene.runs();
    scene.server.has_record(Run { token: "wn1-77".into(), ..(*running.attempt_state.run).clone() });
    running.attempt_state.unclear = Some("wn1-77".into());
    assert_eq!(scene.ends(running, completed())[0], "record completed 1/1");

    for (outcome, state) in [(completed(), "completed"), (failed_for(LONG), "retrying")] {
        let mut scene = Scene::new();
        scene.node.policies.default_type.history = History::Failures;
        let running = if state == "completed" { scene.runs_claimed() } else { scene.runs() };
        let sent = scene.ends(running, outcome);
        assert_eq!(sent[0], format!("record {state} 1/1"), "it has a record, or needs one");
    }
}

#[test]
fn what_was_published_at_the_start_is_not_published_again() {
    let mut scene = Scene::new();
    let mut running = scene.runs_claimed();
    // The start went out live and into the log.
    let published = running.attempt_state.published;
    running.attempt_state.published = published.after_live(2, true);
    assert_eq!(scene.ends(running, completed()), ["record completed 1/1", "live completed", "log completed", "ack 7"]);
    // Or live alone: the log gets it with the end.
    let mut scene = Scene::new();
    let mut running = scene.runs();
    running.attempt_state.published = running.attempt_state.published.after_live(2, false);
    let ends = ["record completed 1/1", "live completed", "log enqueued started completed", "ack 7"];
    assert_eq!(scene.ends(running, completed()), ends);
}

/// Given an attempt that began, when its node stands still for a lease before it says so, then nothing is said.
#[test]
fn no_start_is_published_once_the_lease_is_over() {
    for (still_for, published) in [(LEASE - Duration::from_millis(1), vec!["live enqueued started"]), (LEASE, vec![])] {
        let mut scene = Scene::new();
        let current = Arc::new(Mutex::new(Some(scene.runs())));
        scene.server.pass(still_for);
        done(announce(&scene.node, &current));
        assert_eq!(scene.node.sent(), published);
    }
}

#[test]
fn what_was_announced_before_the_record_goes_into_the_log_as_it_was_if_the_run_completes() {
    for (outcome, logged) in
        [(completed(), "log enqueued started completed"), (Outcome::Released, "log enqueued started released")]
    {
        let mut scene = Scene::new();
        let mut running = scene.runs();
        let state = &mut running.attempt_state;
        let lines = EncodedEvents::of(&state.run, state.published, scene.node.author());
        state.published = state.published.after_live(lines.count(), false);
        state.lines = Some(lines.for_the_log());
        assert_eq!(scene.ends(running, outcome)[2], logged, "each once");
    }
}

#[test]
fn progress_comes_between_the_start_and_the_end_in_the_log() {
    let mut scene = Scene::new();
    let mut running = scene.runs();
    let state = &mut running.attempt_state;
    state.published = state.published.after_live(2, false);
    state.progress = br#"{"event":"progress","id":"p1"}"#.to_vec();
    state.progress.push(b'\n');
    let ends = ["record completed 1/1", "live completed", "log enqueued started progress completed", "ack 7"];
    assert_eq!(scene.ends(running, completed()), ends);
}

#[test]
fn an_end_is_written_until_it_is_answered() {
    for fault in [Fault::Lost, Fault::AnswerLost] {
        for call in 0..4 {
            let mut scene = Scene::new();
            let running = scene.runs();
            scene.server.breaks(call, fault);
            let mut sent = scene.ends(running, failed(ErrorKind::Permanent));
            assert!(scene.server.is_broken(), "call {call} was made");
            sent.dedup();
            // What is repeated changes nothing, and the order stays. A lost ack is not noticed.
            let order = ["record", "live", "log", "dead", "ack"];
            let kinds: Vec<&str> = sent.iter().filter_map(|line| line.split(' ').next()).collect();
            let expected = if (call, fault) == (3, Fault::Lost) { &order[..4] } else { &order[..] };
            assert_eq!(kinds, expected, "call {call}, {fault:?}: {sent:?}");
            assert_eq!(scene.server.dead_letters.borrow().len(), 1);
        }
    }
}

#[test]
fn the_end_of_a_run_that_was_cancelled_meanwhile_is_published_instead() {
    let ends_cancelled = |lost: Option<u32>| {
        let mut scene = Scene::new();
        let mut running = scene.runs_claimed();
        running.attempt_state.published = running.attempt_state.published.after_live(2, true);
        scene.server.before_write(|server| server.changes(RUN, |run| run.settle(Settlement::Cancel, at(10))));
        if let Some(call) = lost {
            scene.server.breaks(call, Fault::Lost);
        }
        (scene.ends(running, completed()), scene)
    };
    let (sent, scene) = ends_cancelled(None);
    let forgets = "forget steps of main-p5-7";
    assert_eq!(sent, ["log cancelled", "ack 7", forgets], "live it was published by who cancelled");
    assert_eq!(scene.node.metrics.fenced.get(), 0);
    for call in 0.. {
        let (sent, scene) = ends_cancelled(Some(call));
        if !scene.server.is_broken() {
            assert!(call > 2, "{sent:?}");
            break;
        }
        assert!(sent.iter().any(|sent| sent == forgets), "call {call}: {sent:?}");
    }
}

#[test]
fn a_result_that_comes_too_late_is_dropped() {
    type Change = fn(&mut Run);
    let elsewhere: [(&str, Change, &[&str]); 3] = [
        ("another message carries it", |run| run.held_by = Some(held_by(9)), &["ack 7"]),
        ("its lease was judged lost", |run| *run = retrying(run.clone(), at(60_000)), &[]),
        ("another node runs it", |run| run.node = Some("n3".into()), &[]),
    ];
    for (what, change, expected) in elsewhere {
        let mut scene = Scene::new();
        let running = scene.runs_claimed();
        scene.server.before_write(move |server| server.changes(RUN, change));
        assert_eq!(scene.ends(running, completed()), expected, "{what}");
        assert_eq!(scene.node.metrics.fenced.get(), 1, "{what}");
        assert_ne!(scene.server.run(RUN).state, RunState::Completed, "{what}");
    }
}

#[test]
fn an_end_is_written_over_this_attempts_own_write_whose_answer_was_lost() {
    let mut scene = Scene::new();
    let mut running = scene.runs();
    // The record that says that it runs was stored, though its node got no answer.
    let stored = Run { token: "wn1-77".into(), ..(*running.attempt_state.run).clone() };
    scene.server.has_record(stored);
    running.attempt_state.unclear = Some("wn1-77".into());
    assert_eq!(scene.ends(running, completed())[0], "record completed 1/1");

    let mut scene = Scene::new();
    let mut running = scene.runs();
    let anothers = Run { token: "wn2-77".into(), ..(*running.attempt_state.run).clone() };
    scene.server.has_record(anothers);
    running.attempt_state.unclear = Some("wn1-77".into());
    assert_eq!(scene.ends(running, completed()), [""; 0]);
}

#[test]
fn an_end_is_written_though_its_record_has_expired() {
    let mut scene = Scene::new();
    let running = scene.runs_claimed();
    scene.server.before_write(|server| server.loses_record(RUN));
    let sent = scene.ends(running, completed());
    assert_eq!((sent[0].as_str(), sent.last().unwrap().as_str()), ("record completed 1/1", "ack 7"));
}

#[test]
fn an_end_whose_id_a_run_of_a_lane_that_is_gone_has_goes_under_another_id() {
    let mut scene = Scene::new();
    scene.message.at = at(9_000);
    let running = scene.runs();
    let theirs = Run { origin: at(0), ..scene.running() };
    scene.server.has_record(theirs);
    let sent = scene.ends(running, completed());
    assert!(sent[0].starts_with("record of main-p5-7-at-") && sent[0].ends_with(" completed 1/1"), "{sent:?}");
    let whole = ["live enqueued started completed", "log enqueued started completed", "ack 7"];
    assert_eq!(sent[1..], whole, "published as a whole, under its own id");
    assert_eq!(scene.server.run(RUN).state, RunState::Running);
}

#[test]
fn an_end_does_not_overwrite_a_run_if_its_job_began_under_another_id() {
    let mut scene = Scene::new();
    scene.message.at = at(9_000);
    let running = scene.runs();
    let theirs = after(Run { origin: at(0), ..scene.running() }, Settlement::Cancel);
    let other_id = RunId::derived_at(&id(RUN), at(9_000));
    let other = Run { run_id: other_id, ..scene.running() };
    scene.server.has_record(other);
    scene.server.has_record(theirs);
    assert_eq!(scene.ends(running, completed()), [""; 0]);
    assert_eq!(scene.server.run(RUN).origin, at(0));
}

#[test]
fn an_end_overwrites_the_ended_run_of_a_lane_that_is_gone() {
    let mut scene = Scene::new();
    scene.message.at = at(9_000);
    let running = scene.runs();
    let theirs = after(Run { origin: at(0), ..scene.running() }, Settlement::Cancel);
    scene.server.has_record(theirs);
    assert_eq!(scene.ends(running, completed())[0], "record completed 1/1");
    assert_eq!(scene.server.run(RUN).origin, at(9_000));
}

#[test]
fn a_short_retry_is_held_locally() {
    let mut scene = Scene::new();
    let running = scene.runs();
    let (held, sent) = scene.holds(running, failed_for(SHORT));
    assert_eq!(sent, ["record retrying 1/1", "live enqueued started failed", "log enqueued started failed"]);
    assert!(holds(&scene.node, &message(SEQUENCE)), "its lease is renewed meanwhile");
    let assignment = done(held.unwrap().wait(&scene.node)).unwrap();
    assert_eq!((scene.server.now() >= at(400), assignment.is_held_locally()), (true, true));
    let running = scene.node.begins(Box::new(assignment)).unwrap();
    assert_eq!(scene.node.sent(), ["record running 1/2"]);
    assert_eq!(
        scene.ends(running, completed()),
        ["record completed 1/2", "live started completed", "log started completed", "ack 7"]
    );
    assert!(!holds(&scene.node, &message(SEQUENCE)));
}

#[test]
fn a_retry_is_scheduled_if_it_is_long_or_the_node_holds_too_many() {
    let scheduled = |sent: &[String]| sent.iter().any(|line| line.starts_with("schedule 1/2"));
    for (wait, is_held) in [(1_000, true), (1_001, false)] {
        let mut scene = Scene::new();
        let running = scene.runs();
        let (held, sent) = scene.holds(running, failed_for(Duration::from_millis(wait)));
        assert_eq!((held.is_some(), scheduled(&sent)), (is_held, !is_held), "after {wait} ms");
    }
    let mut scene = Scene::new();
    let permits: Vec<_> = std::iter::from_fn(|| scene.node.local_retries.take()).collect();
    let running = scene.runs();
    let (held, sent) = scene.holds(running, failed_for(SHORT));
    assert!(held.is_none() && scheduled(&sent) && sent.last().unwrap() == "ack 7");
    drop(permits);
    // One is taken, and given back with the retry.
    let mut scene = Scene::new();
    let running = scene.runs();
    let (held, _) = scene.holds(running, failed_for(SHORT));
    drop(held);
    assert_eq!(
        std::iter::from_fn(|| scene.node.local_retries.take()).take(20_000).map(std::mem::forget).count(),
        16_384
    );
}

#[test]
fn a_retry_that_this_node_must_not_begin_goes_to_another() {
    // The node drains.
    let mut scene = Scene::new();
    let running = scene.runs();
    let held = scene.holds(running, failed_for(SHORT)).0.unwrap();
    scene.node.draining.set(true);
    assert!(done(held.wait(&scene.node)).is_none());
    assert_eq!(scene.node.sent(), ["nak 7"]);
    // Its lease is lost, though the lease-keeper has not come to it: the node was frozen.
    let mut scene = Scene::new();
    let running = scene.runs();
    let held = scene.holds(running, failed_for(SHORT)).0.unwrap();
    scene.server.pass(LEASE);
    assert!(done(held.wait(&scene.node)).is_none());
    assert_eq!(scene.node.sent(), [""; 0]);
    // It was cancelled while it waited.
    let mut scene = Scene::new();
    let running = scene.runs();
    let held = scene.holds(running, failed_for(SHORT)).0.unwrap();
    let assignment = done(held.wait(&scene.node)).unwrap();
    scene.server.changes(RUN, |run| run.settle(Settlement::Cancel, at(300)));
    assert!(scene.node.begins(Box::new(assignment)).is_none());
    assert_eq!(scene.node.sent(), ["nak 7"], "judged when it comes again");
    // It expired while it waited: the whole run has a deadline.
    let deadline = longshore_domain::job::When::After(Duration::from_millis(300));
    let mut scene = Scene::with(Some(&longshore_domain::JobOptions { deadline: Some(deadline), ..Default::default() }));
    let running = scene.runs();
    let (held, sent) = scene.holds(running, failed_for(SHORT));
    assert!(held.is_none() && sent[0] == "record dead 1/1", "{sent:?}");
}

#[test]
fn a_retry_whose_commit_was_not_carried_out_is_not_begun() {
    let mut scene = Scene::new();
    let running = scene.runs_claimed();
    scene.server.before_write(|server| server.changes(RUN, |run| run.held_by = Some(held_by(9))));
    let (held, sent) = scene.holds(running, failed_for(SHORT));
    assert_eq!(sent, ["ack 7"]);
    assert!(done(held.unwrap().wait(&scene.node)).is_none());
    assert_eq!(scene.node.sent(), [""; 0]);
}

#[test]
fn a_retry_whose_run_got_another_id_meanwhile_goes_back_and_is_scheduled() {
    let mut scene = Scene::new();
    scene.message.at = at(9_000);
    let running = scene.runs();
    let theirs = Run { origin: at(0), ..scene.running() };
    scene.server.has_record(theirs);
    let (held, _) = scene.holds(running, failed_for(SHORT));
    let assignment = done(held.unwrap().wait(&scene.node)).unwrap();
    assert!(scene.node.begins(Box::new(assignment)).is_none());
    assert_eq!(scene.node.sent(), ["nak 7"], "it looks for its record under the old id");
    let (begun, sent) = scene.begins();
    assert!(begun.is_none() && sent[0].starts_with("record of main-p5-7-at-") && sent[0].ends_with("retrying 1/1"));
    assert_eq!(sent[1..], ["log enqueued started failed", "schedule 1/2 in 0 ms", "ack 7"]);
}

#[test]
fn a_commit_without_a_delivery_reports_its_revision_or_that_it_was_not_carried_out() {
    let mut scene = Scene::new();
    let run = scene.fresh();
    let commit = |scene: &Scene, expected| {
        let (done, report) = oneshot::channel();
        let nothing = longshore_domain::publication::Published::nothing();
        let run = Box::new(Run { token: scene.node.token(), ..run.clone() });
        let mut commit = Commit::to_write(run, PublishedJob::default(), expected, nothing, scene.node.author());
        commit.after = AfterCommit::Report(done);
        (Box::new(commit), report)
    };
    let (written, mut report) = commit(&scene, 0);
    done(scene.node.commit(written));
    let revision = report.try_recv().unwrap();
    let (late, mut report) = commit(&scene, 0);
    done(scene.node.commit(late));
    assert!(report.try_recv().is_err());
    let (next, mut report) = commit(&scene, revision);
    done(scene.node.commit(next));
    assert!(report.try_recv().unwrap() > revision);
}

#[test]
fn a_cancelled_end_keeps_the_place_in_flight_of_the_commit_that_it_replaces() {
    let mut scene = Scene::new();
    let run = scene.running();
    let cancelled = after(run.clone(), Settlement::Cancel);
    scene.server.has_record(Run { token: "another-1".into(), ..cancelled });
    let assignment = scene.claim();
    let nothing = longshore_domain::publication::Published::nothing();
    let mut commit = Commit::to_write(Box::new(run), PublishedJob::default(), 1, nothing, scene.node.author());
    let in_flight = std::sync::Arc::default();
    commit.arrival = Some(assignment.arrival.clone());
    commit.in_flight = Some(crate::commit::InFlightPermit::taken(&in_flight));
    let cleared = done(follow_up::clear_up(&*scene.server, &scene.node.metrics, Box::new(commit)));
    assert!(matches!(cleared, follow_up::Done::OnRecord(_)));
    assert_eq!(in_flight.load(std::sync::atomic::Ordering::Relaxed), 1);
    drop(cleared);
    assert_eq!(in_flight.load(std::sync::atomic::Ordering::Relaxed), 0);
}

/// Given a job that no handler was found for within the grace, when no handler of its type was ever online and its own
/// grace is over as well, then it is a dead letter at its first attempt; else it is tried again.
#[test]
fn a_job_of_a_type_that_was_never_served_is_not_tried_twelve_times() {
    let ends = |never_served: bool, grace: Option<Duration>| {
        let mut scene = Scene::new();
        let policy = &mut scene.node.policies.default_type;
        (policy.no_handler_grace, policy.never_served_grace) = (Duration::ZERO, grace);
        let never = NeverServed {
            job_type: JobType::parse("work").unwrap(),
            missing_since: scene.server.now(),
            nearest: None,
            subjects: ["here", "everywhere"].map(str::to_owned),
        };
        *scene.node.never_served.borrow_mut() = never_served.then_some(never);
        let running = scene.runs_claimed();
        scene.ends(running, Outcome::NoHandler).swap_remove(0)
    };
    assert_eq!(ends(true, Some(Duration::ZERO)), "record dead 1/1");
    for waits in [ends(true, Some(LONG)), ends(true, None), ends(false, Some(Duration::ZERO))] {
        assert_eq!(waits, "record retrying 1/1");
    }
}

/// Given a job behind whose type others are parked, when it ends, then parking looks for the next of them; not if no
/// handler was there for it, as none was there for the others either.
#[test]
fn the_end_of_a_job_wakes_parking_unless_it_found_no_handler() {
    let wakes = |outcome: Outcome| {
        let notify = std::sync::Arc::<tokio::sync::Notify>::default();
        let mut scene = Scene::new();
        scene.node.policies.default_type.no_handler_grace = LONG;
        let mut running = scene.runs_claimed();
        running.assignment.permits.wakes = Some(Wakes::new(std::sync::Arc::clone(&notify)));
        scene.ends(running, outcome);
        drop(scene);
        notify.notified().now_or_never().is_some()
    };
    assert!(!wakes(Outcome::NoHandler));
    assert!(wakes(Outcome::Busy { started: false }) && wakes(Outcome::Released));
}

/// Given a handler that is over, when the write that says that it runs has no answer yet, then it is not at work any
/// more: it would be taken for one that blocks its thread, and its success would be a time-out.
#[test]
fn a_handler_that_is_over_is_not_at_work_while_its_record_is_written() {
    let mut scene = Scene::new();
    let current = scene.works();
    let is_at_work = || of_current(&current, |running| running.at_work.is_some());
    assert_eq!(last_write(&current, &mut None).now_or_never(), Some(Owner::Us));
    assert_eq!(is_at_work(), Some(true), "its end follows at once");
    let mut claim: Option<BoxFuture<'_, Owner>> = Some(Box::pin(std::future::pending()));
    assert_eq!(last_write(&current, &mut claim).now_or_never(), None);
    assert_eq!(is_at_work(), Some(false));
}
