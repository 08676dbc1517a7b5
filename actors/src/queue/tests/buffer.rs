//! In what order jobs start, for what they are held off, and when they go back.

use std::time::{Duration, Instant};

use futures_util::FutureExt as _;
use longshore_domain::policy::QueuePolicy;
use longshore_domain::setting::PauseOf;
use longshore_domain::{JobOptions, Queue, QueueLane, Timestamp};

use super::scene::{Incoming, LEASE, Scene, job, number, returned};
use crate::attempt::assignment::Start;
use crate::queue::buffer::Arrived;

fn scene() -> Scene {
    Scene::new(QueuePolicy::default())
}

#[tokio::test]
async fn jobs_of_all_lanes_start_by_priority_and_age_whatever_order_they_arrive_in() {
    let scene = scene();
    let at = |priority, number, at| Incoming { at, ..job("here", priority, number) };
    // With an aging of 30 s a priority is worth so much of a wait.
    scene.arrive([at(5, 1, 0), at(4, 2, 29_999), at(4, 3, 30_001), at(9, 4, -120_003), at(1, 5, 119_998)]);
    assert_eq!(scene.leave(), ["s4", "s5", "s2", "s1", "s3"]);
}

#[tokio::test]
async fn with_an_aging_of_zero_no_job_starts_before_a_more_urgent_one() {
    let scene = Scene::new(QueuePolicy { aging: Duration::ZERO, ..QueuePolicy::default() });
    scene.arrive([Incoming { at: -9_000_000, ..job("here", 2, 1) }, job("here", 1, 2)]);
    assert_eq!(scene.leave(), ["s2", "s1"]);
}

#[tokio::test]
async fn a_job_that_went_back_and_comes_again_starts_before_younger_ones_of_its_lane() {
    let scene = scene();
    scene.arrive([job("here", 5, 2), job("here", 5, 3)]);
    scene.arrive([job("here", 5, 1)]);
    scene.arrive([returned("here", 0)]);
    assert_eq!(scene.leave(), ["s0", "s1", "s2", "s3"]);
}

#[tokio::test]
async fn a_local_retry_takes_its_place_by_rank_among_the_jobs_that_arrived() {
    let scene = scene();
    scene.arrive([job("here", 5, 1), job("here", 5, 3)]);
    scene.comes_again(&job("here", 5, 2));
    assert_eq!(scene.leave(), ["s1", "s2", "s3"]);
}

/// Given a lane with more jobs than have arrived, when the next one of another lane ranks behind those, then it waits
/// for them until their pull had time to come back, and the scheduler learns until when.
#[tokio::test]
async fn a_job_is_held_off_for_a_more_urgent_one_that_is_on_its_way() {
    let scene = scene();
    let buffer = scene.buffer();
    scene.arrive([Incoming { behind: 1, ..job("here", 1, 1) }, job("here", 5, 2)]);
    assert_eq!(buffer.next_after(Instant::now()).map(|first| number(&first)), Some(1));
    assert!(buffer.next_after(Instant::now()).is_none(), "one more of priority 1 is on its way");
    assert!(buffer.taken.notified().now_or_never().is_none());
    buffer.notify_if_held_off();
    assert!(buffer.taken.notified().now_or_never().is_some(), "the scheduler has to set its timer");
    assert!(buffer.hold_off().is_some());
    assert_eq!(buffer.hold_off(), None, "answered once");
    scene.arrive([job("here", 1, 3)]);
    assert_eq!(scene.leave(), ["s3", "s2"]);
    buffer.notify_if_held_off();
    assert!(buffer.taken.notified().now_or_never().is_none());
}

#[tokio::test]
async fn a_job_is_not_held_off_for_jobs_that_rank_behind_it() {
    let scene = scene();
    scene.arrive([Incoming { behind: 9, ..job("here", 5, 1) }, job("here", 1, 2)]);
    assert_eq!(scene.leave(), ["s2", "s1"]);
}

#[tokio::test]
async fn while_the_queue_is_paused_no_job_leaves_and_none_is_lost() {
    let scene = scene();
    let buffer = scene.buffer();
    scene.arrive([job("here", 5, 1), job("here", 5, 2)]);
    scene.pauses(PauseOf::Queue(Queue::main()), true);
    assert!(
        !buffer.is_open(Instant::now())
            && buffer.next(Instant::now()).is_none()
            && buffer.next_after(Instant::now()).is_none()
    );
    assert_eq!((scene.held(), scene.given_back().len()), ((2, 0), 0));
    scene.pauses(PauseOf::Queue(Queue::main()), false);
    assert_eq!(scene.leave(), ["s1", "s2"]);
}

#[tokio::test]
async fn once_the_queue_closes_no_job_starts_and_all_go_back() {
    let scene = scene();
    let buffer = scene.buffer();
    scene.arrive([job("here", 5, 1), job("remote", 5, 2), job("remote", 5, 3)]);
    let first = buffer.next(Instant::now());
    assert!(first.is_some());
    scene.closing.cancel();
    assert!(buffer.next(Instant::now()).is_none() && buffer.next_after(Instant::now()).is_none());
    buffer.clear(Instant::now());
    let mut back = scene.given_back();
    back.sort();
    assert_eq!((back, scene.held()), (vec!["2".to_owned(), "3".to_owned()], (0, 0)), "the first is at work");
    assert_eq!(buffer.held().started, 1, "what has started is still counted");
}

/// Given a job whose lease was held here for too long, when its turn comes, then no handler is called: another node may
/// have it, or would get it before the first renewal.
#[tokio::test]
async fn a_job_that_waited_for_most_of_its_lease_does_not_start() {
    let scene = scene();
    let held = |held, number| Incoming { held, ..job("here", 5, number) };
    scene.arrive([held(LEASE, 1), held(LEASE * 3 / 4, 2), held(LEASE / 2, 3)]);
    assert_eq!(scene.leave(), ["s3"]);
    assert_eq!(scene.given_back(), ["2"], "of the first the lease is over: nothing is sent for it");
    assert_eq!(scene.buffer().held().started, 1);
}

#[tokio::test]
async fn after_a_third_of_its_lease_a_job_goes_back_to_its_lane() {
    let scene = scene();
    let third = Duration::from_secs(10);
    let held = |held, incoming| Incoming { held, ..incoming };
    scene.arrive([
        held(third, job("here", 5, 1)),
        held(third, job("here", 5, 2)),
        job("here", 5, 3),
        held(third, job("here", 2, 4)),
        held(third, returned("here", 5)),
        held(LEASE, job("here", 9, 6)),
    ]);
    scene.comes_again(&held(third, job("here", 5, 7)));
    assert!(scene.buffer().give_back(scene.start).iter().all(|(lane, _)| *lane == 8), "a third is not yet over");
    let back = scene.buffer().give_back(scene.start + Duration::from_millis(1));
    let back: Vec<(usize, Vec<String>)> = back
        .into_iter()
        .map(|(lane, tokens)| (lane, tokens.iter().map(|token| token.reply().unwrap().to_string()).collect()))
        .collect();
    let of = |numbers: &[&str]| numbers.iter().map(|number| (*number).to_owned()).collect::<Vec<_>>();
    let lane = |priority| QueueLane::Of(longshore_domain::Priority::new(priority).unwrap()).index();
    assert_eq!(back, [(lane(2), of(&["4"])), (lane(5), of(&["1", "2"])), (QueueLane::Returned.index(), of(&["5"]))]);
    assert_eq!(scene.leave(), ["s3", "s7"], "a local retry stays, as its record says that it waits here");
}

#[tokio::test]
async fn after_a_new_connection_all_go_back_but_local_retries_and_those_that_others_have() {
    let scene = scene();
    scene.arrive([job("here", 5, 1), Incoming { held: LEASE, ..job("here", 5, 2) }]);
    scene.comes_again(&job("here", 5, 3));
    scene.buffer().forget_deliveries(Instant::now());
    assert_eq!(scene.given_back(), ["1"]);
    assert_eq!(scene.leave(), ["s3"]);
}

#[tokio::test]
async fn once_the_server_may_have_given_jobs_to_others_each_is_claimed_before_it_starts() {
    let scene = scene();
    scene.announces("remote", 1);
    let first = |scene: &Scene| scene.buffer().next(Instant::now()).unwrap();
    scene.arrive([job("remote", 5, 1), job("remote", 5, 2), job("here", 5, 3)]);
    let running = first(&scene);
    assert!(matches!(running.start, Start::Unread { mark: 0 }), "a client's own job needs no record before its work");
    assert_eq!(number(&first(&scene)), 3);
    scene.arrive([job("here", 5, 4)]);
    scene.comes_again(&job("here", 5, 5));
    let mut coming = [Arrived { lane: 4, behind: 0, assignment: scene.read(&job("here", 5, 7)) }];
    scene.buffer().claim_all(&mut coming);
    assert!(matches!(coming[0].assignment.start, Start::Claim), "also one that was read and is about to arrive");
    drop(running);
    let starts: Vec<_> = (0..3).map(|_| first(&scene)).collect();
    assert_eq!(starts.iter().map(|job| number(job)).collect::<Vec<_>>(), [2, 4, 5]);
    assert!(matches!(starts[0].start, Start::Claim), "also one that waits for its handler");
    assert!(matches!(starts[1].start, Start::Claim) && matches!(starts[2].start, Start::HeldLocally(..)));
    scene.arrive([job("here", 5, 6)]);
    assert!(matches!(first(&scene).start, Start::Unread { mark: 0 }), "those that arrive later are not in doubt");
}

#[tokio::test]
async fn workers_notify_the_scheduler_after_32_jobs_and_when_none_is_left() {
    let scene = scene();
    let buffer = scene.buffer();
    let take = |count: usize| (0..count).for_each(|_| assert!(buffer.next_after(Instant::now()).is_some()));
    let is_notified = || buffer.taken.notified().now_or_never().is_some();
    scene.arrive((1..=40).map(|number| job("here", 5, number)));
    take(31);
    assert!(!is_notified());
    take(1);
    assert!(is_notified(), "the lanes may need topping up");
    take(7);
    assert!(!is_notified());
    take(1);
    assert!(is_notified(), "none is left");
    assert!(buffer.next_after(Instant::now()).is_none() && !is_notified());
    scene.arrive([job("here", 5, 41), job("here", 5, 42)]);
    assert!(buffer.next(Instant::now()).is_some() && !is_notified(), "the scheduler itself took it");
}

/// Given jobs that were published with one key, when workers take them at once, then the later ones wait until the
/// first has made its claim: the first is the run.
#[tokio::test]
async fn of_jobs_with_one_key_the_first_in_order_claims_first() {
    let scene = scene();
    let keyed = |key: &str, number| {
        let options = JobOptions { idempotency_key: Some(key.to_owned()), ..JobOptions::default() };
        Incoming { options: Some(options), ..job("here", 5, number) }
    };
    scene.arrive([keyed("k", 2), keyed("k", 1), keyed("other", 3), job("here", 5, 4)]);
    let mut taken: Vec<_> = std::iter::from_fn(|| scene.buffer().next(Instant::now())).collect();
    assert_eq!(taken.iter().map(|job| number(job)).collect::<Vec<_>>(), [1, 2, 3, 4]);
    let [first, second, other, unkeyed] = &mut taken[..] else { panic!("four jobs arrived") };
    first.come_to_place().now_or_never().expect("it waits for no other");
    assert!(other.come_to_place().now_or_never().is_some() && other.place.is_some());
    assert!(unkeyed.come_to_place().now_or_never().is_some() && unkeyed.place.is_none(), "it claims nothing");
    let mut second = Box::pin(second.come_to_place());
    assert!(second.as_mut().now_or_never().is_none());
    first.place = None;
    assert!(second.now_or_never().is_some());
}

#[tokio::test]
async fn the_oldest_buffered_job_is_found_among_those_in_order_and_those_that_wait() {
    let scene = scene();
    scene.announces("remote", 1);
    assert_eq!(scene.buffer().oldest(), None);
    scene.arrive([job("remote", 5, 3), job("remote", 5, 7), job("here", 5, 8)]);
    let running = scene.buffer().next(Instant::now());
    assert_eq!(scene.leave(), ["s8"]);
    scene.arrive([job("here", 5, 9)]);
    let since = |number: i64| Timestamp::from_millis(1_000_000 + number);
    assert_eq!(scene.buffer().oldest(), Some(since(7)), "it waits for its handler");
    drop(running);
    assert_eq!(scene.leave(), ["s7", "s9"]);
}
