//! Jobs that a gate does not let start: which wait in the node, which are parked, and that they hold up no others.

use std::time::{Duration, Instant};

use futures_util::FutureExt as _;
use longshore_domain::concurrency::OnBusy;
use longshore_domain::policy::{Policies, QueuePolicy, TypePolicy};
use longshore_domain::run::{DeferReason, Run};
use longshore_domain::setting::PauseOf;
use longshore_domain::{JobOptions, JobType};

use super::scene::{Incoming, Scene, job, kind, number, returned};
use crate::attempt::assignment::Assignment;
use crate::queue::blocked::Blocked;
use crate::runtime::kind::Room;

/// A node whose remote handlers of the type `remote` take one job at once.
fn scene() -> Scene {
    let scene = Scene::new(QueuePolicy { concurrency: 3, ..QueuePolicy::default() });
    scene.announces("remote", 1);
    scene
}

/// The next job that leaves the buffer, which keeps its permits.
fn next(scene: &Scene) -> (String, Box<Assignment>) {
    let next = scene.buffer().next(Instant::now()).expect("a job can leave");
    (format!("{}{}", if next.park.is_some() { 'p' } else { 's' }, number(&next)), next)
}

fn pauses(scene: &Scene, job_type: &str, is_paused: bool) {
    scene.pauses(PauseOf::Type(JobType::parse(job_type).unwrap()), is_paused);
}

#[tokio::test]
async fn while_its_handler_is_full_two_jobs_of_a_type_wait_and_more_are_parked_and_others_start() {
    let scene = scene();
    scene.arrive((1..=5).map(|number| job("remote", 5, number)).chain([job("here", 5, 6)]));
    let (first, running) = next(&scene);
    assert_eq!(first, "s1");
    assert_eq!(scene.leave(), ["p4", "p5", "s6"], "4 and 5 make room for 6");
    assert_eq!(scene.held(), (0, 2));
    drop(running);
    assert_eq!(scene.leave(), ["s2", "s3"]);
    assert_eq!(scene.buffer().held().started, 6);
}

#[tokio::test]
async fn a_job_that_waits_starts_before_later_ones_of_its_type_as_soon_as_its_handler_is_free() {
    let scene = scene();
    scene.arrive([job("remote", 5, 1), job("remote", 5, 2)]);
    let (_, running) = next(&scene);
    assert!(scene.buffer().next(Instant::now()).is_none());
    scene.arrive([job("remote", 5, 3), job("here", 1, 4)]);
    drop(running);
    let (second, running) = next(&scene);
    assert_eq!(second, "s2");
    assert_eq!(scene.leave(), ["s4"]);
    drop(running);
    assert_eq!(scene.leave(), ["s3"]);
}

/// Given jobs of several keys, when it is not known whether their type has handlers, then one job asks for its slot, to
/// try; once handlers are known, all do.
#[tokio::test]
async fn while_no_handler_is_known_one_key_at_a_time_asks_for_its_slot() {
    let scene = scene();
    let of_key = |number| {
        let options = JobOptions { concurrency_key: Some(format!("k{number}")), ..JobOptions::default() };
        Incoming { options: Some(options), ..job("unknown", 5, number) }
    };
    scene.arrive((1..=3).map(of_key));
    assert!(scene.leave().is_empty());
    let slots = &scene.buffer().gates.slots;
    assert_eq!((slots.to_ask(), scene.held()), (1, (0, 3)));
    scene.announces("unknown", 8);
    assert!(scene.leave().is_empty());
    assert_eq!(slots.to_ask(), 3);
}

/// Given types whose keys have a line or an order, when the first jobs of a key come, then they are kept while the
/// cluster is asked for its slot, as that may be free; once it is known to be taken, all go to their line, in order.
#[tokio::test]
async fn jobs_go_to_the_line_of_their_key_only_once_it_is_known_to_be_busy() {
    let on_busy = |on_busy| TypePolicy { on_busy, ..TypePolicy::default() };
    let ordered = TypePolicy { ordered: true, ..TypePolicy::default() };
    let with_lines = [OnBusy::DropNew, OnBusy::KeepNewest, OnBusy::CancelRunning].map(on_busy);
    for policy in with_lines.into_iter().chain([ordered]) {
        let types = [(JobType::parse("here").unwrap(), policy)].into();
        let scene = Scene::with(QueuePolicy::default(), Policies { types, ..Policies::default() });
        let of_key = |number| {
            let options = JobOptions { concurrency_key: Some("k".to_owned()), ..JobOptions::default() };
            Incoming { options: Some(options), ..job("here", 5, number) }
        };
        scene.arrive((1..=5).map(of_key));
        assert!(scene.leave().is_empty());
        let slots = &scene.buffer().gates.slots;
        assert_eq!((slots.to_ask(), scene.held()), (1, (0, 5)));
        slots.are_taken();
        let (first, parks) = next(&scene);
        assert_eq!((first.as_str(), parks.park.as_ref().unwrap().reason), ("p1", Some(DeferReason::Concurrency)));
        assert_eq!(scene.leave(), ["p2", "p3", "p4", "p5"]);
        scene.arrive([of_key(6)]);
        assert_eq!(scene.leave(), ["p6"], "at once");
    }
}

/// A queue whose remote type was full when four of its jobs came: the fourth was parked, the others have ended.
fn with_one_parked() -> Scene {
    let scene = scene();
    scene.arrive((1..=4).map(|number| job("remote", 5, number)));
    let (_, running) = next(&scene);
    assert_eq!(scene.leave(), ["p4"]);
    drop(running);
    assert_eq!(scene.leave(), ["s2", "s3"]);
    scene
}

/// Given jobs of a type that are parked, when its handler is free again, then a later job of the lane goes behind those
/// that are parked, and one that was taken back starts.
#[tokio::test]
async fn no_job_overtakes_those_of_its_type_that_are_parked() {
    let scene = with_one_parked();
    scene.arrive([job("remote", 5, 6), returned("remote", 4)]);
    assert_eq!(scene.leave(), ["s4", "p6"]);
    let buffer = scene.buffer();
    assert!(buffer.blocked(|jobs| jobs.any_parked()));
    // The stream is asked, and has none any more.
    buffer.blocked(Blocked::before_asking);
    buffer.are_parked(&[], Instant::now(), |_| Room::For(1));
    assert!(!buffer.blocked(|jobs| jobs.any_parked()));
    scene.arrive([job("remote", 5, 7)]);
    assert_eq!(scene.leave(), ["s7"]);
}

#[tokio::test]
async fn a_job_that_is_parked_only_for_its_order_is_taken_back_as_soon_as_it_has_arrived() {
    let scene = scene();
    let buffer = scene.buffer();
    let is_wanted_back = || buffer.wanted_back.notified().now_or_never().is_some();
    scene.arrive((1..=4).map(|number| job("remote", 5, number)));
    let (_, running) = next(&scene);
    assert_eq!(scene.leave(), ["p4"]);
    assert!(!is_wanted_back(), "its handler is full");
    drop(running);
    assert_eq!(scene.leave(), ["s2", "s3"]);
    assert!(is_wanted_back(), "parked jobs are to follow those that start");
    scene.arrive([job("remote", 5, 5)]);
    let (fifth, parks) = next(&scene);
    assert_eq!(fifth, "p5");
    assert!(!is_wanted_back(), "it is on its way there");
    drop(parks);
    assert!(is_wanted_back());
}

#[tokio::test]
async fn a_job_on_its_way_to_be_parked_is_known_to_be_missing_from_what_was_read() {
    let scene = scene();
    let buffer = scene.buffer();
    scene.arrive((1..=4).map(|number| job("remote", 5, number)));
    let (_, _running) = next(&scene);
    buffer.blocked(|jobs| jobs.before_reading(&kind("remote")));
    assert_eq!(buffer.blocked(|jobs| jobs.first_missed(&kind("remote"))), None);
    let (_, parks) = next(&scene);
    let missed = buffer.blocked(|jobs| jobs.first_missed(&kind("remote")));
    assert_eq!(missed.map(|(_, number)| number), Some(4));
    drop(parks);
    buffer.blocked(|jobs| jobs.before_reading(&kind("remote")));
    assert_eq!(buffer.blocked(|jobs| jobs.first_missed(&kind("remote"))), None, "it has arrived");
}

#[tokio::test]
async fn the_jobs_of_a_paused_type_are_parked_at_once_and_say_why_and_others_start() {
    let scene = scene();
    pauses(&scene, "here", true);
    scene.arrive([job("here", 1, 1), job("remote", 5, 2), job("here", 1, 3)]);
    let (first, parks) = next(&scene);
    assert_eq!(first, "p1");
    assert_eq!(parks.park.as_ref().unwrap().reason, Some(DeferReason::Paused));
    let (third, parks) = next(&scene);
    assert_eq!(third, "p3", "behind the first");
    assert_eq!(parks.park.as_ref().unwrap().reason, Some(DeferReason::Paused));
    assert_eq!(scene.leave(), ["s2"]);
    let room = scene.buffer().gates.room_for(&longshore_domain::Queue::main(), &kind("here"), 9, Instant::now());
    assert_eq!(room, Room::NotYet, "they stay parked while the pause lasts");
}

#[tokio::test]
async fn a_taken_back_job_whose_type_is_paused_again_waits_here_and_starts_once_it_is_resumed() {
    let scene = scene();
    pauses(&scene, "here", true);
    scene.arrive([returned("here", 1)]);
    assert!(scene.leave().is_empty());
    let run = Run::new(&scene.read(&returned("here", 1)).job, 3, longshore_domain::Timestamp::from_millis(0));
    assert_eq!(scene.buffer().reason_of(&run), Some(DeferReason::Paused));
    pauses(&scene, "here", false);
    assert_eq!(scene.leave(), ["s1"]);
    assert_eq!(scene.buffer().reason_of(&run), None);
}

#[tokio::test]
async fn a_job_that_waits_for_a_full_handler_says_so() {
    let scene = scene();
    scene.arrive([job("remote", 5, 1), job("remote", 5, 2)]);
    let (_, running) = next(&scene);
    assert!(scene.buffer().next(Instant::now()).is_none());
    let run =
        |number| Run::new(&scene.read(&job("remote", 5, number)).job, 3, longshore_domain::Timestamp::from_millis(0));
    assert_eq!(scene.buffer().reason_of(&run(2)), Some(DeferReason::Busy));
    assert_eq!(scene.buffer().reason_of(&run(1)), None, "it is at work");
    drop(running);
    assert_eq!(scene.buffer().reason_of(&run(2)), None, "it can start");
}

/// Given that the stream of parked jobs is full, when more jobs arrive than can start, then no more leave the lanes'
/// order than the queue has workers: the others go back in time, and other nodes may have them.
#[tokio::test]
async fn while_no_job_can_be_parked_a_bounded_number_waits_and_the_rest_keeps_its_place() {
    let scene = scene();
    scene.space.learned(true);
    scene.arrive((1..=6).map(|number| job("remote", 5, number)));
    let (_, running) = next(&scene);
    assert!(scene.leave().is_empty(), "none is parked");
    assert_eq!(scene.held(), (2, 3), "as many as there are workers");
    scene.space.learned(false);
    assert_eq!(scene.leave(), ["p5", "p6"], "it has room again");
    drop(running);
    assert_eq!(scene.leave(), ["s2", "s3", "s4"]);
}

/// Given parked jobs and no room to park more, when later ones of their kind arrive, then those wait here without
/// starting, and are parked in order once there is room.
#[tokio::test]
async fn jobs_that_must_go_behind_parked_ones_wait_for_room_to_be_parked() {
    let scene = with_one_parked();
    scene.space.learned(true);
    scene.arrive([job("remote", 5, 5), job("remote", 5, 6)]);
    assert!(scene.leave().is_empty(), "though their handler is free");
    assert_eq!(scene.held(), (0, 2));
    scene.space.learned(false);
    assert_eq!(scene.leave(), ["p5", "p6"]);
}

#[tokio::test]
async fn a_waiting_job_whose_lease_runs_out_is_parked_and_goes_back_if_there_is_no_room() {
    let scene = scene();
    scene.arrive([job("remote", 5, 1), job("remote", 5, 2), job("remote", 5, 3)]);
    let (_, running) = next(&scene);
    assert!(scene.leave().is_empty());
    let later = scene.start + super::scene::LEASE / 2;
    assert!(scene.buffer().give_back(later).is_empty(), "they cannot start on another node either");
    let (second, _parks) = next(&scene);
    assert_eq!(second, "p2");
    scene.space.learned(true);
    assert!(scene.leave().is_empty());
    assert_eq!(scene.given_back(), ["3"]);
    drop(running);
}

#[tokio::test]
async fn as_many_parked_jobs_are_wanted_back_as_can_start_less_those_on_their_way() {
    let scene = scene();
    let buffer = scene.buffer();
    let asks = |room: Room| {
        buffer.blocked(Blocked::before_asking);
        let (wanted, is_short) = buffer.are_parked(&[kind("remote"), kind("other")], Instant::now(), |of| {
            if *of == kind("remote") { room } else { Room::NotYet }
        });
        (wanted.into_iter().map(|want| want.jobs).collect::<Vec<_>>(), is_short)
    };
    assert_eq!(asks(Room::For(5)), (vec![5, 0], true), "none is here");
    // However slow this test is, they are still expected.
    buffer.blocked(|jobs| jobs.are_expected(&kind("remote"), 4, scene.start + Duration::from_secs(60)));
    assert_eq!(asks(Room::For(5)), (vec![1, 0], true));
    scene.arrive([returned("remote", 1)]);
    assert_eq!(asks(Room::For(5)), (vec![2, 0], true), "one of them has arrived");
    assert_eq!(asks(Room::NotYet), (vec![0, 0], false));
    scene.announces("remote", 0);
    assert!(buffer.blocked(|jobs| jobs.any_parked()));
}

#[tokio::test]
async fn a_new_scheduler_finds_nothing_of_what_the_former_one_buffered_or_parked() {
    let scene = scene();
    scene.arrive((1..=4).map(|number| job("remote", 5, number)).chain([job("here", 5, 9)]));
    let (_, running) = next(&scene);
    let (fourth, _) = next(&scene);
    assert_eq!(fourth, "p4");
    scene.given_back();
    scene.buffer().clear(Instant::now());
    let mut back = scene.given_back();
    back.sort();
    assert_eq!(back, ["2", "3", "9"]);
    drop(running);
    scene.buffer().lanes_asked(scene.start.checked_sub(Duration::from_secs(1)).unwrap());
    scene.arrive([Incoming { at: 0, ..job("remote", 5, 2) }]);
    assert_eq!(scene.leave(), ["s2"]);
}
