//! Idempotency keys: which run has the key when a job with it is about to start.

use std::time::Duration;

use longshore_backbone::claims::{Claim, fingerprint};
use longshore_domain::job::When;
use longshore_domain::run::RunResult;
use longshore_domain::settlement::Settlement;
use longshore_domain::{JobOptions, Run};

use super::begin::{Scene, after, held_by};
use super::completed;
use super::server::{Fault, RUN, at, id};
use crate::attempt::keys;

/// A job with the key `k`.
fn keyed() -> Scene {
    Scene::with(Some(&JobOptions { idempotency_key: Some("k".to_owned()), ..JobOptions::default() }))
}

fn claim(run: &str, published: bool, taken_from: &[&str]) -> Claim {
    let taken_from = taken_from.iter().map(|run| id(run)).collect();
    Claim { run_id: id(run), fingerprint: fingerprint("t", b"{}"), published, taken_from }
}

/// A run that `submit` wrote before it died.
fn pre_created(scene: &mut Scene, run: &str) -> Run {
    Run { run_id: id(run), seal: "5ea1".into(), token: "wn2-1".into(), ..scene.fresh() }
}

#[test]
fn a_job_with_a_key_claims_it_just_before_its_first_start_and_once() {
    let mut scene = keyed();
    // Never on the fast path: another job may have the key.
    let assignment = scene.delivery();
    let running = scene.node.begins(assignment).unwrap();
    assert_eq!(scene.node.sent(), ["claim k for main-p5-7", "record running 1/1"]);
    assert_eq!(scene.server.claim("k"), Some(claim(RUN, true, &[])));
    assert_eq!(running.attempt_state.run.key_claimed_ms, Some(3_600_000));
    drop(running);

    let mut scene = keyed();
    let claimed = Run { key_claimed_ms: Some(1), ..scene.running() };
    scene.server.has_record(after(claimed, Settlement::Release));
    let (begun, sent) = scene.begins();
    assert!(begun.is_some());
    assert_eq!(sent, ["log enqueued started released", "record running 1/1"], "its record says that it has the key");
}

#[test]
fn a_job_whose_key_another_run_has_ends_as_its_duplicate() {
    let mut scene = keyed();
    scene.server.has_claim("k", claim("r1", true, &[]));
    let (begun, sent) = scene.begins();
    assert!(begun.is_none());
    let ends = ["record duplicate 1/0", "live enqueued duplicate", "log enqueued duplicate", "ack 7"];
    assert_eq!(sent, ends);
    assert_eq!(scene.server.run(RUN).state.duplicate_of(), Some(&id("r1")));
    assert_eq!(scene.server.claim("k"), Some(claim("r1", true, &[])));
}

#[test]
fn an_own_claim_is_confirmed_before_the_start() {
    let mut scene = keyed();
    scene.server.has_claim("k", claim(RUN, false, &[]));
    let (begun, sent) = scene.begins();
    assert!(begun.is_some());
    assert_eq!(sent, ["claim k for main-p5-7", "record running 1/1"]);
}

#[test]
fn a_claim_that_was_never_published_is_taken_over_and_its_run_ends_as_a_duplicate() {
    let mut scene = keyed();
    let first = pre_created(&mut scene, "r1");
    scene.server.has_record(first);
    scene.server.has_claim("k", claim("r1", false, &[]));
    let (begun, sent) = scene.begins();
    assert!(begun.is_some());
    let steps = [
        "claim k for main-p5-7 from r1",
        "record of r1 duplicate 1/0",
        "live enqueued duplicate",
        "log enqueued duplicate",
        "claim k for main-p5-7",
        "record running 1/1",
    ];
    assert_eq!(sent, steps, "the claim names the first run until its end is in the log");
    let ended = scene.server.run("r1");
    assert_eq!(ended.state.duplicate_of(), Some(&id(RUN)));
}

#[test]
fn a_run_that_ends_as_a_duplicate_before_its_time_was_enqueued_first() {
    let mut scene = keyed();
    let mut first = pre_created(&mut scene, "r1");
    first.settle(Settlement::Schedule { at: at(60_000) }, at(5));
    scene.server.has_record(first);
    scene.server.has_claim("k", claim("r1", false, &[]));
    let (begun, sent) = scene.begins();
    assert!(begun.is_some());
    assert_eq!(sent[2..4], ["live enqueued duplicate", "log enqueued duplicate"], "{sent:?}");
}

#[test]
fn a_run_whose_own_job_ended_it_as_a_duplicate_is_published_by_that_job_alone() {
    let mut scene = keyed();
    let mut first = pre_created(&mut scene, "r1");
    first.settle(Settlement::Duplicate { of: id(RUN) }, at(5));
    first.held_by = Some(held_by(9));
    scene.server.has_record(first);
    scene.server.has_claim("k", claim(RUN, true, &["r1"]));
    let (begun, sent) = scene.begins();
    assert!(begun.is_some());
    assert_eq!(sent, ["claim k for main-p5-7", "record running 1/1"]);
}

#[test]
fn a_take_over_that_was_cut_off_is_finished_also_if_the_job_has_expired_since() {
    let second = Some(When::After(Duration::from_secs(1)));
    let options = JobOptions { idempotency_key: Some("k".to_owned()), expires: second, ..JobOptions::default() };
    let mut scene = Scene::with(Some(&options));
    let mut first = pre_created(&mut scene, "r1");
    first.settle(Settlement::Duplicate { of: id(RUN) }, at(10));
    scene.server.has_record(first);
    scene.server.has_claim("k", claim(RUN, true, &["r1"]));
    scene.server.pass(Duration::from_secs(2));
    let (begun, sent) = scene.begins();
    assert!(begun.is_none());
    let ends = ["live enqueued duplicate", "log enqueued duplicate", "record expired 1/0", "live enqueued expired"];
    assert_eq!(sent[..4], ends, "{sent:?}");
}

#[test]
fn a_take_over_that_was_cut_off_is_finished_also_if_the_job_was_cancelled_since() {
    let mut scene = keyed();
    let mut first = pre_created(&mut scene, "r1");
    first.settle(Settlement::Duplicate { of: id(RUN) }, at(10));
    scene.server.has_record(first);
    scene.server.has_claim("k", claim(RUN, true, &["r1"]));
    let mut cancelled = pre_created(&mut scene, RUN);
    cancelled.settle(Settlement::Cancel, at(20));
    scene.server.has_record(cancelled);
    let assignment = scene.claim();
    // So `runs.cancel` leaves its message for this delivery.
    assert!(super::done(keys::is_taking_over(&*scene.server, &assignment.job)).unwrap());
    assert!(scene.node.begins(assignment).is_none());
    let sent = scene.node.sent();
    assert_eq!(sent[..2], ["live enqueued duplicate", "log enqueued duplicate"], "{sent:?}");
    assert_eq!(sent.last().unwrap(), "ack 7");
}

#[test]
fn a_run_that_has_gone_on_is_not_ended_by_whoever_has_its_key() {
    let gone_on: [fn(&mut Run); 4] = [
        |run| run.published = true,
        |run| run.held_by = Some(held_by(9)),
        |run| run.begin(1, &"n2".into(), super::server::at(5)),
        |run| run.settle(Settlement::Complete(RunResult::None), super::server::at(5)),
    ];
    for change in gone_on {
        let mut scene = keyed();
        let mut first = pre_created(&mut scene, "r1");
        change(&mut first);
        scene.server.has_record(first.clone());
        scene.server.has_claim("k", claim("r1", false, &[]));
        let (begun, sent) = scene.begins();
        assert!(begun.is_some());
        assert_eq!(sent, ["claim k for main-p5-7 from r1", "claim k for main-p5-7", "record running 1/1"]);
        assert_eq!(scene.server.run("r1").state, first.state.name());
    }
}

#[test]
fn a_take_over_that_was_cut_off_is_finished_by_the_next_delivery() {
    // The first node took the claim over and died; the run that had it may have ended by then, unpublished.
    for has_ended in [false, true] {
        let mut scene = keyed();
        let mut first = pre_created(&mut scene, "r1");
        if has_ended {
            first.settle(Settlement::Duplicate { of: id(RUN) }, super::server::at(5));
        }
        scene.server.has_record(first);
        scene.server.has_claim("k", claim(RUN, true, &["r1", "r2"]));
        let (begun, sent) = scene.begins();
        assert!(begun.is_some());
        let told = ["live enqueued duplicate", "log enqueued duplicate", "claim k for main-p5-7", "record running 1/1"];
        assert_eq!(sent[usize::from(!has_ended)..], told, "{sent:?}");
        assert_eq!(scene.server.claim("k"), Some(claim(RUN, true, &[])));
    }
}

#[test]
fn a_key_that_cannot_be_claimed_returns_the_job() {
    for fault in [Fault::Lost, Fault::AnswerLost] {
        let mut scene = keyed();
        // The record is read before.
        scene.server.breaks(1, fault);
        let (begun, sent) = scene.begins();
        assert!(begun.is_none() && sent.last().unwrap() == "nak 7");
        assert!(scene.server.find(RUN).is_none(), "nothing of the run is written");
        let (begun, sent) = scene.begins();
        assert!(begun.is_some(), "{sent:?}");
        assert_eq!(scene.server.claim("k"), Some(claim(RUN, true, &[])));
    }
}

#[test]
fn a_run_replayed_later_needs_no_key() {
    let mut scene = keyed();
    scene.server.has_claim("k", claim("r1", true, &[]));
    let mut dead = scene.running();
    dead.settle(
        Settlement::Dead { failure: longshore_domain::Failure::new(longshore_domain::ErrorKind::Permanent, "no") },
        super::server::at(5),
    );
    dead.seal = "5ea1".into();
    dead.replay(super::server::at(6));
    scene.server.has_record(dead);
    let mut assignment = scene.claim();
    (assignment.arrival.round, assignment.arrival.moved, assignment.arrival.seal) = (2, true, Some("5ea1".into()));
    let running = scene.node.begins(assignment).unwrap();
    assert_eq!(scene.node.sent(), ["record running 2/1"]);
    scene.node.ends(running, completed());
}
