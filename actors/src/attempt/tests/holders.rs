//! A delivery of a job whose attempt runs: does its holder still have it?

use std::sync::Arc;
use std::time::Duration;

use longshore_backbone::holders::{HolderAnswer, HolderQuestion};
use longshore_domain::run::DeferReason;
use longshore_domain::{ErrorKind, RunState};

use super::begin::Scene;
use super::node::{Node, holds, writer_of};
use super::server::{Fault, RUN, SEQUENCE, at, message};
use super::{LEASE, completed};
use crate::attempt::holders::answer_to;
use crate::runtime::park_permits::ParkPermit;

/// What a delivery leads to if the record says that `n2` runs the attempt since the beginning, and `given` holds
/// `after` so many milliseconds.
fn found(after: u64, given: impl FnOnce(&Scene)) -> (Scene, Vec<String>) {
    let mut scene = Scene::new();
    let running = scene.running();
    scene.server.has_record(running);
    scene.server.pass(Duration::from_millis(after));
    given(&scene);
    let (begun, sent) = scene.begins();
    assert!(begun.is_none());
    (scene, sent)
}

fn answer(writer: &str, holds: bool, never_started: bool) -> HolderAnswer {
    HolderAnswer { writer: writer.into(), holds, never_started }
}

/// The attempt is settled as lost, and the next one comes by a schedule, however soon.
fn is_judged_lost((scene, sent): &(Scene, Vec<String>)) -> bool {
    let run = scene.server.run(RUN);
    let kind = run.attempts[0].error.as_ref().map(|error| error.kind);
    run.state == RunState::Retrying
        && kind == Some(ErrorKind::LeaseExpired)
        && sent[0] == "record retrying 1/1"
        && sent[1] == "live failed"
        && sent[2] == "log enqueued started failed"
        && sent[3].starts_with("schedule 1/2 in ")
        && sent[4] == "ack 7"
}

#[test]
fn a_holder_that_answers_is_believed() {
    let holds = found(60_000, |scene| scene.server.is_asked("n2", answer("wn2", true, false)));
    assert_eq!(holds.1, [""; 0], "however long it takes");
    let another_process = found(10, |scene| scene.server.is_asked("n2", answer("w2", true, false)));
    assert!(is_judged_lost(&another_process), "{:?}", another_process.1);
    assert_eq!(another_process.0.node.metrics.leases_judged_lost.get(), 1);
}

#[test]
fn a_holder_that_lost_the_job_is_given_its_lease() {
    let lost_it = |after| found(after, |scene| scene.server.is_asked("n2", answer("wn2", false, false)));
    assert_eq!(lost_it(10).1, ["nak 7 after 7500 ms"]);
    assert_eq!(lost_it(29_000).1, ["nak 7 after 1000 ms"], "it comes again when the lease would be over");
    assert!(is_judged_lost(&lost_it(30_000)));
}

#[test]
fn a_silent_holder_has_a_lease_from_its_last_sign() {
    assert_eq!(found(29_999, |_| ()).1, ["nak 7 after 1 ms"], "its start is a sign");
    assert!(is_judged_lost(&found(30_000, |_| ())));
    let seen = |after| found(after, |scene| scene.server.has_presence("n2", at(-9_000), at(20_000)));
    // It may have renewed its leases until its next presence was due.
    assert_eq!(seen(51_999).1, ["nak 7 after 1 ms"]);
    assert!(is_judged_lost(&seen(52_000)));
    let started_again = found(10, |scene| scene.server.has_presence("n2", at(5), at(6)));
    assert!(is_judged_lost(&started_again));
    // Its clock was ahead as it started.
    let corrected = found(10, |scene| scene.server.has_presence("n2", at(5_000), at(6)));
    assert_eq!(corrected.1, ["nak 7 after 7500 ms"], "it is the same process");
}

#[test]
fn a_presence_that_cannot_be_read_counts_as_a_sign() {
    // The record and the question are asked before.
    let (_, sent) = found(60_000, |scene| scene.server.breaks(2, Fault::Lost));
    assert_eq!(sent, ["nak 7 after 7500 ms"]);
}

#[test]
fn the_time_of_the_question_counts_not_that_of_the_verdict() {
    let mut scene = Scene::new();
    let running = scene.running();
    scene.server.has_record(running);
    scene.server.pass(LEASE - Duration::from_millis(1));
    let assignment = scene.claim();
    scene.server.before_answer(|server| server.pass(Duration::from_millis(5)));
    assert!(scene.node.begins(assignment).is_none());
    assert_eq!(scene.node.sent(), ["nak 7 after 0 ms"]);
    assert_eq!(scene.server.run(RUN).state, RunState::Running);
}

#[test]
fn an_unclear_claim_of_this_node_is_taken_up() {
    let mut scene = Scene::new();
    scene.server.breaks(1, Fault::AnswerLost);
    let (begun, sent) = scene.begins();
    assert!(begun.is_none());
    assert_eq!(sent, ["record running 1/1", "nak 7 after 100 ms"]);
    scene.server.pass(Duration::from_millis(200));
    let (begun, sent) = scene.begins();
    let running = begun.unwrap();
    assert_eq!(sent, ["record running 1/1"], "written again first: another node may be about to settle it as lost");
    assert_eq!(
        (running.attempt_state.run.attempts.len(), running.attempt_state.run.attempts[0].started_at),
        (1, at(200))
    );
    scene.node.ends(running, completed());
    let ends = ["record completed 1/1", "live started completed", "log enqueued started completed", "ack 7"]
        .map(str::to_owned);
    assert_eq!(scene.node.sent(), ends);
}

#[test]
fn an_unclear_claim_of_another_node_is_taken_up_once_that_node_abandons_it() {
    let mut scene = Scene::new();
    scene.server.breaks(1, Fault::AnswerLost);
    scene.begins();
    let other = Node::new("n2", &scene.server);
    let question = HolderQuestion { message: message(SEQUENCE), token: scene.server.run(RUN).token };
    // What the first node would answer, and that it says so once.
    let (first, second) = (answer_to(&scene.node, &question), answer_to(&scene.node, &question));
    assert_eq!((first.clone(), second), (answer("wn1", false, true), answer("wn1", false, false)));
    scene.server.is_asked("n1", first);
    let assignment = other.receives(&mut scene.message);
    let running = other.begins(assignment).unwrap();
    assert_eq!(other.sent(), ["record running 1/1"]);
    assert_eq!(running.attempt_state.run.node.as_deref(), Some("n2"));
}

/// Given a job whose claim had no answer, when it comes again and this node's gates do not let it start, then the claim
/// is taken back and the job waits: it has no permit, for a handler or of a limit, that it could start with.
#[test]
fn an_unclear_claim_of_a_job_that_may_not_start_is_taken_back() {
    for (reason, deferred_for) in
        [(None, DeferReason::Busy), (Some(DeferReason::Concurrency), DeferReason::Concurrency)]
    {
        let mut scene = Scene::new();
        scene.server.breaks(1, Fault::AnswerLost);
        scene.begins();
        let mut assignment = scene.claim();
        assignment.park = ParkPermit::take(&Arc::default(), reason);
        assert!(scene.node.begins(assignment).is_none(), "{reason:?}");
        let run = scene.server.run(RUN);
        assert_eq!((run.attempts.len(), run.deferral.map(|deferral| deferral.reason)), (0, Some(deferred_for)));
        let waits =
            ["record enqueued 1/0", "live deferred", "log enqueued deferred", "schedule 1/1 in 500 ms", "ack 7"];
        assert_eq!(scene.node.sent(), waits);
    }
}

#[test]
fn a_claim_that_another_node_has_settled_meanwhile_is_not_taken_up() {
    let mut scene = Scene::new();
    scene.server.breaks(1, Fault::AnswerLost);
    scene.begins();
    let assignment = scene.claim();
    scene.server.before_write(|server| server.changes(RUN, |run| run.token = "wn2-9".into()));
    assert!(scene.node.begins(assignment).is_none());
    assert_eq!(scene.node.sent(), [""; 0]);
}

#[test]
fn a_node_says_which_jobs_it_works_on() {
    let mut scene = Scene::new();
    let assignment = scene.delivery();
    let entry =
        scene.node.book.enter(&assignment.ack_token, message(SEQUENCE), &assignment.job, assignment.leased_from);
    let question = HolderQuestion { message: message(SEQUENCE), token: "wn1-1".into() };
    assert!(holds(&scene.node, &question.message));
    assert_eq!(answer_to(&scene.node, &question), answer(&writer_of("n1"), true, false));
    drop(entry);
    assert_eq!(answer_to(&scene.node, &question), answer("wn1", false, false));
}
