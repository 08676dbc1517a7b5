//! Idempotency keys: which run has the key when a job with it is about to start.

use std::time::Duration;

use longshore_backbone::claims::Claim;
use longshore_backbone::fingerprint::Fingerprint;
use longshore_domain::job::{Unique, When};
use longshore_domain::run::{RunResult, whole_millis};
use longshore_domain::settlement::Settlement;
use longshore_domain::{JobOptions, Run, RunId, RunState};

use super::begin::{Scene, after, held_by};
use super::completed;
use super::server::{Fault, RUN, at, id};
use crate::attempt::keys;

/// A job with the key `k`.
fn keyed() -> Scene {
    Scene::with(Some(&JobOptions { idempotency_key: Some("k".to_owned()), ..JobOptions::default() }))
}

/// A claim of the key `k`.
pub(super) fn claim(run: &str, published: bool, taken_from: &[&str]) -> Claim {
    let taken_from = taken_from.iter().map(|run| id(run)).collect();
    Claim {
        run_id: id(run),
        fingerprint: Fingerprint::of("t", None, b"{}"),
        unique: Unique::Window,
        published,
        taken_from,
    }
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
fn a_run_that_ends_as_a_duplicate_before_its_time_was_scheduled_and_never_enqueued() {
    let mut scene = keyed();
    let mut first = pre_created(&mut scene, "r1");
    first.settle(Settlement::Schedule(at(60_000)), at(5));
    scene.server.has_record(first);
    scene.server.has_claim("k", claim("r1", false, &[]));
    let (begun, sent) = scene.begins();
    assert!(begun.is_some());
    assert_eq!(sent[2..4], ["live scheduled duplicate", "log scheduled duplicate"], "{sent:?}");
    // As the submit said it, if it lived to say it.
    assert_eq!(scene.server.run("r1").state.run_at(), Some(at(60_000)));
}

#[test]
fn a_run_whose_own_job_ended_it_as_a_duplicate_is_published_by_that_job_alone() {
    let mut scene = keyed();
    let mut first = pre_created(&mut scene, "r1");
    first.settle(Settlement::Duplicate(id(RUN)), at(5));
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
    first.settle(Settlement::Duplicate(id(RUN)), at(10));
    scene.server.has_record(first);
    scene.server.has_claim("k", claim(RUN, true, &["r1"]));
    scene.server.pass(Duration::from_secs(2));
    let (begun, sent) = scene.begins();
    assert!(begun.is_none());
    // The node that ended it has published that live, or has died.
    let ends = ["log enqueued duplicate", "record expired 1/0", "live enqueued expired"];
    assert_eq!(sent[..3], ends, "{sent:?}");
}

#[test]
fn a_take_over_that_was_cut_off_is_finished_also_if_the_job_was_cancelled_since() {
    let mut scene = keyed();
    let mut first = pre_created(&mut scene, "r1");
    first.settle(Settlement::Duplicate(id(RUN)), at(10));
    scene.server.has_record(first);
    scene.server.has_claim("k", claim(RUN, true, &["r1"]));
    let mut cancelled = pre_created(&mut scene, RUN);
    cancelled.settle(Settlement::Cancel, at(20));
    scene.server.has_record(cancelled);
    let assignment = scene.claim();
    // So `runs.cancel` leaves its message for this delivery.
    assert!(super::done(keys::is_taking_over(&scene.node, &assignment.job)).unwrap());
    assert!(scene.node.begins(assignment).is_none());
    let sent = scene.node.sent();
    assert_eq!(sent[0], "log enqueued duplicate", "{sent:?}");
    assert_eq!(sent.last().unwrap(), "ack 7");
}

#[test]
fn a_run_that_has_gone_on_is_not_ended_by_the_one_that_has_its_key() {
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
            first.settle(Settlement::Duplicate(id(RUN)), super::server::at(5));
        }
        scene.server.has_record(first);
        scene.server.has_claim("k", claim(RUN, true, &["r1", "r2"]));
        let (begun, sent) = scene.begins();
        assert!(begun.is_some());
        let published = ["log enqueued duplicate", "claim k for main-p5-7", "record running 1/1"];
        // Ended before, it is only logged again: the node that ended it has published that live, or has died.
        let ends = ["record of r1 duplicate 1/0", "live enqueued duplicate"];
        let all = [if has_ended { &[][..] } else { &ends }, &published].concat();
        assert_eq!(sent, all, "{sent:?}");
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
        assert!(begun.is_none() && sent.last().unwrap() == "nak 7 after 100 ms");
        assert!(scene.server.find(RUN).is_none(), "nothing of the run is written");
        let (begun, sent) = scene.begins();
        assert!(begun.is_some(), "{sent:?}");
        assert_eq!(scene.server.claim("k"), Some(claim(RUN, true, &[])));
    }
}

#[test]
fn a_run_replayed_later_claims_its_key_only_if_it_never_had_it_or_its_window_may_be_over() {
    let hour = Duration::from_secs(3_600);
    let rows = [(Some(hour), Duration::ZERO, false), (Some(hour), hour, true), (None, Duration::ZERO, true)];
    for (claimed, passes, needs_it) in rows {
        let mut scene = keyed();
        scene.server.has_claim("k", claim("r1", true, &[]));
        let mut dead = Run { key_claimed_ms: claimed.map(whole_millis), ..scene.fresh() };
        dies(&mut dead);
        dead.seal = "5ea1".into();
        dead.replay(at(7));
        scene.server.has_record(dead);
        scene.server.pass(passes);
        let mut assignment = scene.claim();
        (assignment.arrival.round, assignment.arrival.moved, assignment.arrival.seal) = (2, true, Some("5ea1".into()));
        let begun = scene.node.begins(assignment);
        let run = scene.server.last_run();
        assert_eq!((run.state == RunState::Dead, begun.is_none()), (needs_it, needs_it), "{claimed:?}, {passes:?}");
        match begun {
            Some(running) => {
                assert_eq!(scene.node.sent(), ["record running 2/1"]);
                scene.node.ends(running, completed());
            }
            None => assert!(run.error.unwrap().message.contains("belongs to run r1")),
        }
    }
}

// What another run's record says about the key.

/// A job with the key `k`, which is free again once its job starts or its run has ended.
fn unique(unique: Unique) -> Scene {
    let key = Some("k".to_owned());
    Scene::with(Some(&JobOptions { idempotency_key: key, unique, ..JobOptions::default() }))
}

/// Another run of the key, which has it under this scope.
fn has_the_key(scene: &mut Scene, unique: Unique, change: impl FnOnce(&mut Run)) {
    let mut run = Run { published: true, ..pre_created(scene, "r1") };
    change(&mut run);
    scene.server.has_record(run);
    scene.server.has_claim("k", Claim { unique, ..claim("r1", true, &[]) });
}

fn dies(run: &mut Run) {
    run.begin(1, &"n2".into(), at(5));
    let failure = longshore_domain::Failure::new(longshore_domain::ErrorKind::Permanent, "no");
    run.settle(Settlement::Dead(failure), at(6));
}

#[test]
fn a_job_that_gives_its_key_back_has_a_record_before_its_claim_and_gives_it_back_at_its_end() {
    let mut scene = unique(Unique::Active);
    let assignment = scene.delivery();
    let running = scene.node.begins(assignment).unwrap();
    assert_eq!(scene.node.sent(), ["record enqueued 1/0", "claim k for main-p5-7", "record running 1/1"]);
    assert_eq!(scene.server.claim("k"), Some(Claim { unique: Unique::Active, ..claim(RUN, true, &[]) }));
    scene.node.ends(running, completed());
    let sent = scene.node.sent();
    let ends = ["log enqueued started completed", "claim k for main-p5-7, given back", "ack 7"];
    assert_eq!(sent[sent.len() - 3..], ends, "{sent:?}");
}

#[test]
fn a_job_that_waits_for_its_time_has_its_key_from_when_it_came() {
    let key = Some("k".to_owned());
    let run_at = Some(When::After(Duration::from_secs(1)));
    let options = JobOptions { idempotency_key: key, unique: Unique::Queued, run_at, ..JobOptions::default() };
    let mut scene = Scene::with(Some(&options));
    let (begun, sent) = scene.begins();
    assert!(begun.is_none());
    assert_eq!(sent[..3], ["record scheduled 1/0", "claim k for main-p5-7", "record scheduled 1/0"], "{sent:?}");
    assert_eq!(sent.last().unwrap(), "ack 7");
}

#[test]
fn the_record_of_the_claims_run_says_whether_the_key_is_free() {
    let starts = |run: &mut Run| run.begin(1, &"n2".into(), at(5));
    let ends = |run: &mut Run| {
        run.begin(1, &"n2".into(), at(5));
        run.settle(Settlement::Complete(RunResult::None), at(6));
    };
    type Row = (Unique, fn(&mut Run), bool);
    let table: [Row; 8] = [
        (Unique::Window, ends, false),
        (Unique::Window, dies, false),
        (Unique::Queued, |_| (), false),
        (Unique::Queued, starts, true),
        (Unique::Queued, ends, true),
        (Unique::Active, starts, false),
        (Unique::Active, ends, true),
        (Unique::Active, dies, true),
    ];
    for (scope, change, is_free) in table {
        let mut scene = unique(scope);
        has_the_key(&mut scene, scope, change);
        let (begun, sent) = scene.begins();
        assert_eq!(begun.is_some(), is_free, "{scope:?}: {sent:?}");
        let has_it = if is_free { RUN } else { "r1" };
        assert_eq!(scene.server.claim("k").unwrap().run_id, id(has_it), "{scope:?}: {sent:?}");
        if !is_free {
            assert_eq!(scene.server.run(RUN).state.duplicate_of(), Some(&id("r1")));
        }
    }
}

#[test]
fn an_end_that_frees_keys_frees_one_before_its_window_is_over() {
    for frees in [false, true] {
        let mut scene = keyed();
        scene.node.policies.keys.release_on.dead = frees;
        has_the_key(&mut scene, Unique::Window, dies);
        assert_eq!(scene.begins().0.is_some(), frees);
    }
}

#[test]
fn a_run_that_made_way_has_passed_its_key_on() {
    // For this job: its `submit` died before it wrote the claim.
    let mut scene = keyed();
    has_the_key(&mut scene, Unique::Window, |run| run.make_way(id(RUN), at(5)));
    let (begun, sent) = scene.begins();
    assert!(begun.is_some());
    assert_eq!(sent, ["claim k for main-p5-7", "record running 1/1"]);

    // For another one, which waits.
    let mut scene = keyed();
    has_the_key(&mut scene, Unique::Window, |run| run.make_way(id("r2"), at(5)));
    let second = pre_created(&mut scene, "r2");
    scene.server.has_record(second);
    assert!(scene.begins().0.is_none());
    assert_eq!(scene.server.run(RUN).state.duplicate_of(), Some(&id("r2")));
}

#[test]
fn a_job_that_replaces_takes_the_key_of_a_run_that_has_not_started() {
    for starts in [false, true] {
        let mut scene = keyed();
        has_the_key(&mut scene, Unique::Window, |run| {
            if starts {
                run.begin(1, &"n2".into(), at(5));
            }
        });
        let fresh = scene.fresh();
        let origin = fresh.origin.plus(Duration::from_millis(1));
        scene.server.has_record(Run { seal: "5ea1".into(), replaces: true, token: "wn2-2".into(), origin, ..fresh });
        let mut assignment = scene.claim();
        assignment.arrival.seal = Some("5ea1".into());
        let begun = scene.node.begins(assignment);
        let sent = scene.node.sent();
        assert_eq!(begun.is_none(), starts, "{sent:?}");
        if starts {
            assert_eq!(sent[0], "record duplicate 1/0");
        } else {
            let confirmed = "record enqueued 1/0";
            let replaced = [confirmed, "record of r1 duplicate 1/0", "claim k for main-p5-7", "record running 1/1"];
            assert_eq!(sent, replaced);
        }
    }
}

/// Given a job that replaces others, whose `submit` died before they made way, when a later one has started already,
/// then it does not run after that: what it is to do is out of date.
#[test]
fn a_job_that_replaces_does_not_run_after_a_later_one_that_has_started() {
    for is_later in [true, false] {
        let mut scene = keyed();
        let fresh = scene.fresh();
        let millis = fresh.origin.millis() + if is_later { 1 } else { -1 };
        has_the_key(&mut scene, Unique::Queued, |run| {
            run.origin = longshore_domain::Timestamp::from_millis(millis);
            run.begin(1, &"n2".into(), at(5));
        });
        scene.server.has_record(Run { seal: "5ea1".into(), replaces: true, token: "wn2-2".into(), ..fresh });
        let mut assignment = scene.claim();
        assignment.arrival.seal = Some("5ea1".into());
        let begun = scene.node.begins(assignment);
        let sent = scene.node.sent();
        assert_eq!(begun.is_none(), is_later, "{sent:?}");
        assert_eq!(scene.server.run(RUN).state.duplicate_of(), is_later.then_some(&id("r1")));
    }
}

#[test]
fn the_message_of_a_run_that_made_way_publishes_its_end() {
    // Before its node reads the record, or while it begins.
    for at_once in [false, true] {
        let mut scene = keyed();
        let waits = Run { seal: "5ea1".into(), published: true, key_claimed_ms: Some(1), ..scene.fresh() };
        scene.server.has_record(waits);
        let make_way = |server: &super::server::MemoryServer| server.changes(RUN, |run| run.make_way(id("r2"), at(5)));
        if at_once {
            scene.server.before_write(make_way);
        } else {
            make_way(&scene.server);
        }
        let mut assignment = scene.claim();
        assignment.arrival.seal = Some("5ea1".into());
        assert!(scene.node.begins(assignment).is_none());
        let ends = ["record duplicate 1/0", "live enqueued duplicate", "log enqueued duplicate", "ack 7"];
        assert_eq!(scene.node.sent(), ends, "{at_once}");
        assert!(scene.server.last_run().held_by.is_some(), "its record waits for that message no more");
    }
}

/// The job of a dead run's second round.
fn replayed(scene: &mut Scene) -> Box<crate::attempt::assignment::Assignment> {
    let mut dead = scene.fresh();
    dies(&mut dead);
    dead.seal = "5ea1".into();
    dead.replay(at(7));
    scene.server.has_record(dead);
    let mut assignment = scene.claim();
    (assignment.arrival.round, assignment.arrival.moved, assignment.arrival.seal) = (2, true, Some("5ea1".into()));
    assignment
}

#[test]
fn a_replayed_run_claims_the_key_again_that_its_end_gave_back() {
    let mut scene = unique(Unique::Active);
    scene.server.has_claim("k", Claim { unique: Unique::Active, ..claim(RUN, true, &[]) });
    let assignment = replayed(&mut scene);
    let begun = scene.node.begins(assignment);
    assert!(begun.is_some());
    let sent = scene.node.sent();
    assert_eq!(sent, ["claim k for main-p5-7", "record running 2/1"], "another run may be about to take it");
}

#[test]
fn a_replayed_run_whose_key_another_one_has_becomes_a_dead_letter_again() {
    let mut scene = unique(Unique::Active);
    let assignment = replayed(&mut scene);
    has_the_key(&mut scene, Unique::Active, |_| ());
    assert!(scene.node.begins(assignment).is_none());
    let run = scene.server.last_run();
    assert_eq!((run.state.as_str(), run.round, run.attempt), ("dead", 2, 0));
    assert!(run.error.unwrap().message.contains("belongs to run r1"));
    assert_eq!(*scene.server.dead_letters.borrow(), [(id(RUN), 2)]);
    assert_eq!(scene.server.claim("k").unwrap().run_id, id("r1"));
}

#[test]
fn a_key_is_not_given_back_for_a_run_that_was_replayed_meanwhile_or_lost_it() {
    let give_back = |scene: &Scene| {
        let run = scene.server.last_run();
        let done = super::done(crate::commit::keys::give_back(&*scene.server, &run.tenant, &run, "k"));
        done.unwrap();
        scene.server.take_noted()
    };
    let mut scene = unique(Unique::Active);
    replayed(&mut scene);
    scene.server.has_claim("k", Claim { unique: Unique::Active, ..claim(RUN, true, &[]) });
    assert_eq!(give_back(&scene), [""; 0], "it waits again");

    let mut scene = unique(Unique::Active);
    let mut dead = scene.fresh();
    dies(&mut dead);
    scene.server.has_record(dead);
    scene.server.has_claim("k", Claim { unique: Unique::Active, ..claim("r1", true, &[]) });
    assert_eq!(give_back(&scene), [""; 0], "another run has it");
}

#[test]
fn a_run_that_takes_back_the_key_that_was_taken_from_it_does_not_end_itself() {
    let mut scene = unique(Unique::Active);
    let own = Run { seal: "5ea1".into(), token: "wn2-2".into(), ..scene.fresh() };
    scene.server.has_record(own);
    has_the_key(&mut scene, Unique::Active, dies);
    scene.server.has_claim("k", Claim { unique: Unique::Active, ..claim("r1", true, &[RUN]) });
    let mut assignment = scene.claim();
    assignment.arrival.seal = Some("5ea1".into());
    let begun = scene.node.begins(assignment);
    assert!(begun.is_some());
    assert_eq!(scene.node.sent(), ["claim k for main-p5-7", "record running 1/1"]);
}

#[test]
fn a_job_keeps_the_id_under_which_it_claimed_its_key_once_the_earlier_run_of_its_derived_id_has_ended() {
    let mut scene = keyed();
    scene.message.at = at(9_000);
    let earlier = after(Run { origin: at(0), ..scene.running() }, Settlement::Cancel);
    scene.server.has_record(earlier);
    // The earlier run had not ended when a node took the key for this job, and died.
    let timed = RunId::derived_at(&id(RUN), at(9_000));
    scene.server.has_claim("k", claim(timed.as_str(), true, &[]));
    let (begun, _) = scene.begins();
    assert!(begun.is_some(), "not the duplicate of itself");
    assert_eq!(scene.server.run(timed.as_str()).state, RunState::Running);
}

#[test]
fn a_run_that_is_about_to_replace_the_one_that_took_its_key_is_not_ended_by_that_one() {
    let mut scene = keyed();
    let back = Run { replaces: true, ..pre_created(&mut scene, "r1") };
    scene.server.has_record(back);
    scene.server.has_claim("k", claim(RUN, true, &["r1"]));
    let (begun, _) = scene.begins();
    assert!(begun.is_some());
    assert_eq!(scene.server.run("r1").state, RunState::Enqueued, "both would end, each as the duplicate of the other");
}

#[test]
fn a_take_over_by_a_run_that_died_is_finished_by_the_next_that_takes_the_key() {
    let mut scene = keyed();
    let taken = after(pre_created(&mut scene, "r1"), Settlement::Duplicate(id("r2")));
    scene.server.has_record(taken);
    scene.server.has_claim("k", claim(RUN, true, &["r1"]));
    let (begun, sent) = scene.begins();
    assert!(begun.is_some());
    assert!(sent.contains(&"log enqueued duplicate".to_owned()), "{sent:?}");
}
