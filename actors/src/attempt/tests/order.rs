//! The order of a concurrency key: a job starts once those that came before it have ended.

use longshore_backbone::in_order::Waits;
use longshore_domain::run::RunResult;
use longshore_domain::settlement::Settlement;
use longshore_domain::{JobOptions, Run};

use super::begin::{Scene, after, held_by, retrying};
use super::server::{Fault, Message, RUN, at, id};

/// A job with the key `k`, of a type that is `ordered`.
fn scene() -> Scene {
    let mut scene = Scene::with(Some(&JobOptions { concurrency_key: Some("k".to_owned()), ..JobOptions::default() }));
    scene.node.policies.default_type.ordered = true;
    scene
}

/// Another job of the key waits there.
fn other(scene: &Scene, place: Waits, sequence: u64) -> Message {
    let message = Message { sequence, at: at(-10), delivered: 0, headers: scene.message.headers.clone() };
    scene.server.others.borrow_mut().push((place, message.clone()));
    message
}

/// The run of the job in the lane under sequence 3, as it stands.
fn earlier(scene: &mut Scene, change: impl FnOnce(Run) -> Run) {
    let run = Run { run_id: id("main-p5-3"), origin: at(-10), held_by: Some(held_by(3)), ..scene.running() };
    let mut run = change(run);
    run.held_by.as_mut().unwrap().message.at = at(-10);
    scene.server.has_record(run);
}

#[test]
fn the_first_job_of_a_key_is_recorded_takes_its_place_and_starts() {
    let mut scene = scene();
    let (begun, sent) = scene.begins();
    assert!(begun.is_some());
    assert_eq!(sent, ["record enqueued 1/0", "order main-p5-7", "record running 1/1"]);
    assert_eq!(scene.server.run(RUN).turn.unwrap().number, 7);
}

#[test]
fn a_job_waits_for_one_that_no_node_has_met_and_for_one_at_work_or_between_attempts() {
    let mut scene = self::scene();
    other(&scene, Waits::InLane, 3);
    let (begun, sent) = scene.begins();
    assert!(begun.is_none());
    assert_eq!(sent[..3], ["record enqueued 1/0", "order main-p5-3 main-p5-7", "record enqueued 1/0"]);
    assert!(scene.server.run(RUN).state.is_parked());

    let stands: [fn(Run) -> Run; 2] = [|run| run, |run| retrying(run, at(5_000))];
    for stands in stands {
        let mut scene = self::scene();
        other(&scene, Waits::InLane, 3);
        earlier(&mut scene, stands);
        assert!(scene.begins().0.is_none());
    }

    let mut scene = self::scene();
    other(&scene, Waits::InLane, 3);
    earlier(&mut scene, |run| after(run, Settlement::Complete(RunResult::None)));
    assert!(scene.begins().0.is_some(), "that one has ended");

    let mut scene = self::scene();
    other(&scene, Waits::InLane, 9);
    assert!(scene.begins().0.is_some(), "that one came later");
}

#[test]
fn once_those_before_it_have_ended_it_starts_though_their_records_are_gone() {
    let mut scene = scene();
    other(&scene, Waits::InLane, 3);
    assert!(scene.begins().0.is_none());
    // It has left the lane, and no record speaks of it any more.
    scene.server.others.borrow_mut().clear();
    let found = scene.server.run(RUN);
    scene.server.has_record(Run { state: longshore_domain::State::Enqueued { wait: None }, deferrals: 0, ..found });
    assert!(scene.begins().0.is_some());
}

#[test]
fn whatever_is_lost_it_starts_when_it_comes_again() {
    for call in 0..12 {
        for fault in [Fault::Lost, Fault::AnswerLost] {
            let mut scene = scene();
            scene.server.breaks(call, fault);
            let (begun, _) = scene.begins();
            let has_started = begun.is_some() || scene.begins().0.is_some();
            assert!(has_started, "{fault:?} at {call}");
        }
    }
}
