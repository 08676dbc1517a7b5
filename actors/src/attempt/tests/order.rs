//! The order of a concurrency key: a job starts once those that came before it have ended.

use futures_util::FutureExt as _;
use longshore_backbone::in_order::Waits;
use longshore_domain::run::RunResult;
use longshore_domain::settlement::Settlement;
use longshore_domain::{JobOptions, Run};

use super::begin::{Scene, after, held_by, retrying};
use super::server::{Fault, Message, RUN, at, id};
use crate::attempt::keys::order::{self, TakeBack};

/// The server in memory answers at once.
fn block_on<T>(work: impl Future<Output = T>) -> T {
    work.now_or_never().expect("the server answers at once")
}

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

/// Given a key of which several wait, when jobs are asked for what comes before them, then it is the first that has not
/// ended, and for that one none.
#[test]
fn a_client_learns_which_run_a_waiting_one_waits_for() {
    let mut scene = scene();
    other(&scene, Waits::InLane, 3);
    assert!(scene.begins().0.is_none());
    let waiting = scene.server.run(RUN);
    let before = |run: &Run| block_on(order::before(&*scene.server, run)).unwrap();
    assert_eq!(before(&waiting).map(|(run, record)| (run, record.is_none())), Some((id("main-p5-3"), true)));
    let unordered = Run { turn: None, ..waiting.clone() };
    assert!(before(&unordered).is_none(), "it has no place in an order");
    scene.server.others.borrow_mut().clear();
    assert!(before(&waiting).is_none(), "that one has left its lane and has no record: it has ended");
}

/// Given a job of the key that is parked and whose turn it is, when parking asks what to take back, then it is that
/// job, and nothing while the one before it is at work.
#[test]
fn of_the_parked_jobs_of_a_key_only_the_one_whose_turn_it_is_comes_back() {
    let mut scene = scene();
    other(&scene, Waits::InLane, 3);
    assert!(scene.begins().0.is_none());
    let key = scene.server.run(RUN).order().unwrap();
    let take_back = |scene: &Scene| block_on(order::to_take_back(&*scene.server, &key, at(600))).unwrap();
    assert_eq!(take_back(&scene).first, None, "the one before it has not ended");
    earlier(&mut scene, |run| run);
    assert_eq!(take_back(&scene).first, None, "that one is at work, not parked");
    earlier(&mut scene, |run| after(run, Settlement::Complete(RunResult::None)));
    scene.server.others.borrow_mut().clear();
    assert_eq!(take_back(&scene).first, Some(id(RUN)));
    let parked = scene.server.run(RUN);
    scene.server.has_record(after(parked, Settlement::Cancel));
    let TakeBack { first, stale } = take_back(&scene);
    assert_eq!((first, stale), (None, vec![]), "it has ended, and no other waits");
}

#[test]
fn a_cancelled_job_that_is_still_among_the_parked_ones_is_taken_out_and_holds_up_none() {
    let mut scene = scene();
    other(&scene, Waits::Parked, 3);
    earlier(&mut scene, |run| after(run, Settlement::Cancel));
    let (begun, _) = scene.begins();
    assert!(begun.is_some(), "it does not wait for one that has ended");
}
