//! How many jobs a scheduler pulls, from which lanes, and when it wakes workers for whom there is no wake permit.

use super::*;

/// The workers of a queue on a machine that is short of nothing.
fn workers(all: usize, idle: usize) -> Workers {
    Workers { all, idle, held_back: HeldBack::default() }
}

fn held(of_lane: &[(usize, usize)], started: u64) -> Buffered {
    let mut of = [0; QueueLane::COUNT];
    of_lane.iter().for_each(|(lane, held)| of[*lane] = *held);
    Buffered { of, back: 0, started }
}

/// What is wanted of each lane.
fn of_lanes(demand: &Demand, workers: Workers) -> [usize; QueueLane::COUNT] {
    let wanted = demand.wanted(workers);
    std::array::from_fn(|lane| demand.of_lane(lane, wanted))
}

/// A queue in which so many jobs have started in each of many ticks, all from one lane.
fn at_a_pace(per_tick: u64, lane: usize) -> Demand {
    let mut demand = Demand::new(0);
    for tick in 1..=40 {
        (0..per_tick).for_each(|_| demand.came(lane));
        demand.tick(tick * per_tick);
    }
    demand
}

/// Nothing says where the next job comes from, so the idle workers are shared out among all lanes.
#[test]
fn a_queue_that_has_had_no_job_asks_every_lane_for_some() {
    assert_eq!(of_lanes(&Demand::new(7), workers(64, 64)), [7; QueueLane::COUNT]);
    assert_eq!(of_lanes(&Demand::new(7), workers(4, 4)), [1; QueueLane::COUNT], "one of each, at least");
    assert_eq!(
        of_lanes(&Demand::new(7), workers(4, 0)),
        [0; QueueLane::COUNT],
        "no worker is idle, and none ends soon"
    );
}

#[test]
fn a_lane_that_jobs_come_from_is_asked_for_all_that_can_start_and_two_share_them() {
    let mut demand = Demand::new(0);
    demand.came(4);
    let one = of_lanes(&demand, workers(64, 60));
    assert_eq!((one[4], one[0]), (60, 6));
    demand.came(0);
    let two = of_lanes(&demand, workers(64, 60));
    assert_eq!((two[4], two[0], two[1]), (30, 30, 6));
}

#[test]
fn a_lane_from_which_nothing_has_come_for_some_ticks_counts_as_quiet_again() {
    let mut demand = Demand::new(0);
    (0..5).for_each(|_| demand.came(4));
    demand.came(0);
    demand.tick(0);
    assert_eq!(of_lanes(&demand, workers(64, 60))[4], 60, "the single job of the other lane is forgotten");
    (0..2).for_each(|_| demand.tick(0));
    assert_eq!(of_lanes(&demand, workers(64, 60)), [6; QueueLane::COUNT]);
}

/// Given jobs that end quickly, when all workers are busy, then as many are pulled ahead as start within 50 ms.
#[test]
fn jobs_are_pulled_ahead_by_the_pace_at_which_they_start() {
    let demand = at_a_pace(100, 4);
    assert_eq!(of_lanes(&demand, workers(64, 0))[4], 49, "1,000 a second, nearly");
    assert_eq!(of_lanes(&demand, workers(64, 10))[4], 59);
    let slow = at_a_pace(1, 4);
    assert_eq!(of_lanes(&slow, workers(64, 0)), [0; QueueLane::COUNT], "10 a second: none would start soon");
    assert_eq!(of_lanes(&at_a_pace(10_000, 4), workers(64, 0))[4], MAX_PER_LANE);
}

#[test]
fn the_pace_is_that_of_this_scheduler_and_falls_by_half_with_each_idle_tick() {
    let mut demand = Demand::new(1_000_000);
    demand.tick(1_000_000);
    assert_eq!(of_lanes(&demand, workers(64, 0)), [0; QueueLane::COUNT], "those were started before it");
    let mut demand = at_a_pace(400, 4);
    let before = of_lanes(&demand, workers(64, 0))[4];
    demand.tick(40 * 400);
    assert_eq!((before, of_lanes(&demand, workers(64, 0))[4]), (199, 99));
}

#[test]
fn a_node_that_is_short_of_memory_or_processor_pulls_less() {
    let demand = at_a_pace(400, 4);
    let of_lane = |held_back| of_lanes(&demand, Workers { held_back, ..workers(64, 40) })[4];
    assert_eq!(of_lane(HeldBack { cpu: 1, memory: 0 }), 40 + 99, "half as many ahead");
    assert_eq!(of_lane(HeldBack { cpu: 0, memory: 1 }), 8, "half of the workers may work, and 24 do; none ahead");
}

/// Given buffered jobs and idle workers for whom no wake permit is left, when nothing has started for 2 ms, then they
/// are woken all the same: the workers that have the permits block their threads.
#[test]
fn workers_are_woken_without_a_permit_once_nothing_starts_any_more() {
    let (mut demand, start) = (Demand::new(0), Instant::now());
    demand.has_dispatched(&held(&[(4, 3)], 5), 2, start);
    let until = start + STALLED_AFTER;
    assert_eq!(demand.stalled_until(), Some(until));
    demand.has_dispatched(&held(&[(4, 3)], 5), 2, start + STALLED_AFTER / 2);
    assert_eq!(demand.stalled_until(), Some(until), "the wait is not begun anew with each round of the loop");
    assert!(demand.is_stalled(5));
    assert_eq!(demand.stalled_until(), None);
}

#[test]
fn while_jobs_start_no_worker_is_woken_without_a_permit() {
    let (mut demand, start) = (Demand::new(0), Instant::now());
    demand.has_dispatched(&held(&[(4, 3)], 5), 2, start);
    assert!(!demand.is_stalled(6), "another one has started");
    demand.has_dispatched(&held(&[(4, 2)], 6), 2, start);
    assert_eq!(demand.stalled_until(), Some(start + STALLED_AFTER), "it is watched again");
}

#[test]
fn nobody_waits_for_a_permit_without_a_job_or_an_idle_worker_or_while_the_queue_is_closed() {
    let (mut demand, start) = (Demand::new(0), Instant::now());
    for (held, idle) in [(held(&[], 5), 2), (held(&[(4, 3)], 5), 0)] {
        demand.has_dispatched(&held, idle, start);
        assert_eq!(demand.stalled_until(), None);
        assert!(!demand.is_stalled(5));
    }
    demand.has_dispatched(&held(&[(4, 3)], 5), 2, start);
    demand.is_closed();
    assert_eq!(demand.stalled_until(), None);
}

/// Perhaps none of the buffered jobs can start. Then waking the workers again and again would not help.
#[test]
fn a_stall_is_acted_on_once_in_a_tick_unless_a_job_starts() {
    let (mut demand, start) = (Demand::new(0), Instant::now());
    let waits = |demand: &mut Demand, started| {
        demand.has_dispatched(&held(&[(4, 3)], started), 2, start);
        demand.stalled_until().is_some()
    };
    assert!(waits(&mut demand, 5) && demand.is_stalled(5));
    assert!(!waits(&mut demand, 5));
    assert!(waits(&mut demand, 6), "a job has started");
    assert!(demand.is_stalled(6) && !waits(&mut demand, 6));
    demand.tick(6);
    assert!(waits(&mut demand, 6), "the next tick");
}
