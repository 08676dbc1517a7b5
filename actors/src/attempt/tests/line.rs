//! Lines of concurrency keys: what becomes of a job whose key is busy when it is about to start.

use std::time::Duration;

use longshore_domain::concurrency::{Line, Member, OnBusy, Place};
use longshore_domain::run::RunResult;
use longshore_domain::settlement::Settlement;
use longshore_domain::{JobOptions, Run, RunState};

use super::begin::{Scene, after};
use super::done;
use super::server::{Fault, RUN, at, id};
use crate::attempt::keys::line;
use crate::ports::Server as _;

/// A job with the key `k`, of a type with this `on_busy`.
fn scene(on_busy: OnBusy) -> Scene {
    let mut scene = Scene::with(Some(&JobOptions { concurrency_key: Some("k".to_owned()), ..JobOptions::default() }));
    scene.node.policies.default_type.on_busy = on_busy;
    scene
}

/// Run `r1` of the key was let in, and stands like this.
fn let_in(scene: &mut Scene, change: impl FnOnce(Run) -> Run) {
    let job = scene.delivery().job;
    let place = Place { at: at(-10), number: 1 };
    let member = Member { run_id: id("r1"), round: 1, place };
    let judged = Line::default().judge(&member, OnBusy::DropNew, 1, |_| false);
    scene.server.has_line(&line::of(&scene.node.policies, &job).unwrap(), judged.write.unwrap());
    let running = Run { run_id: id("r1"), token: "wn2-1".into(), ..scene.running() };
    scene.server.has_record(change(running));
}

#[test]
fn a_job_whose_key_is_free_is_recorded_let_in_and_started() {
    let mut scene = scene(OnBusy::DropNew);
    let (begun, sent) = scene.begins();
    assert!(begun.is_some());
    assert_eq!(sent, ["record enqueued 1/0", "line main-p5-7", "record running 1/1"]);
}

#[test]
fn a_job_of_a_busy_key_is_dropped_and_says_for_which_run() {
    let mut scene = scene(OnBusy::DropNew);
    let_in(&mut scene, |run| run);
    let (begun, sent) = scene.begins();
    assert!(begun.is_none());
    let ends =
        ["record enqueued 1/0", "record cancelled 1/0", "live enqueued cancelled", "log enqueued cancelled", "ack 7"];
    assert_eq!(sent, ends);
    let error = scene.server.run(RUN).error.unwrap();
    assert_eq!(error.message, "its concurrency key was busy: run r1 had not ended");

    let mut scene = self::scene(OnBusy::DropNew);
    let_in(&mut scene, |run| after(run, Settlement::Complete(RunResult::None)));
    assert!(scene.begins().0.is_some(), "that run has ended");
}

#[test]
fn the_newest_job_waits_out_of_the_way_of_others() {
    let mut scene = scene(OnBusy::KeepNewest);
    let_in(&mut scene, |run| run);
    let (begun, sent) = scene.begins();
    assert!(begun.is_none());
    assert_eq!(sent[..3], ["record enqueued 1/0", "line r1 main-p5-7", "record enqueued 1/0"]);
    assert!(scene.server.run(RUN).state.is_parked());
    let job = scene.delivery().job;
    let (stored, _) = done(scene.server.read_line(&line::of(&scene.node.policies, &job).unwrap())).unwrap();
    let month = Duration::from_secs(30 * 86_400);
    assert!(stored.lasts(scene.server.now()) > month, "it may stay parked for weeks, and keeps its place");
}

#[test]
fn the_run_that_is_at_work_ends_before_the_job_that_cancels_it_starts_whatever_is_lost() {
    let mut scene = scene(OnBusy::CancelRunning);
    let_in(&mut scene, |run| run);
    let (begun, sent) = scene.begins();
    assert!(begun.is_some());
    let ends = sent.iter().position(|line| line == "cancel r1").unwrap();
    assert!(ends < sent.iter().position(|line| line == "record running 1/1").unwrap(), "{sent:?}");
    assert_eq!(scene.server.run("r1").state.name(), RunState::Cancelled);

    for call in 0..8 {
        for fault in [Fault::Lost, Fault::AnswerLost] {
            let mut scene = self::scene(OnBusy::CancelRunning);
            let_in(&mut scene, |run| run);
            scene.server.breaks(call, fault);
            let (begun, _) = scene.begins();
            let has_started = begun.is_some() || scene.begins().0.is_some();
            let state = scene.server.run("r1").state.name();
            assert!(has_started && state == RunState::Cancelled, "{fault:?} at {call}: {state:?}");
        }
    }
}
