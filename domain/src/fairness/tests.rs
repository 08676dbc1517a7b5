//! The rules of fairness, on numbers by hand and on a lane that is played look by look.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;

fn tenant(number: usize) -> FairnessKey {
    FairnessKey::Tenant(Tenant::parse(&format!("t{number:04}")).unwrap())
}

/// Brute force: each start goes to the one that has least for its weight and still wants some.
fn one_by_one(total: u64, demands: &[(u64, u32)]) -> Vec<u64> {
    let mut parts = vec![0; demands.len()];
    for _ in 0..total {
        let wants = (0..demands.len()).filter(|at| parts[*at] < demands[*at].0);
        let least = wants.min_by(|a, b| {
            let level = |at: &usize| (parts[*at] as f64 + 1.0) / f64::from(demands[*at].1);
            level(a).total_cmp(&level(b))
        });
        match least {
            Some(at) => parts[at] += 1,
            None => break,
        }
    }
    parts
}

proptest! {
    #[test]
    fn the_parts_are_those_of_sharing_out_one_by_one(
        total in 0..2_000_u64, demands in prop::collection::vec((0..400_u64, 1..20_u32), 1..12),
    ) {
        let parts = entitlements(total, &demands);
        for ((part, exact), (demand, _)) in parts.iter().zip(one_by_one(total, &demands)).zip(&demands) {
            prop_assert!((part - exact as f64).abs() <= demands.len() as f64, "{parts:?}");
            prop_assert!(*part <= *demand as f64);
        }
        let wanted: u64 = demands.iter().map(|(demand, _)| demand).sum();
        prop_assert!((parts.iter().sum::<f64>() - total.min(wanted) as f64).abs() < 1e-6);
    }

    /// Whatever stands in the lane, each tenant gets its part of all starts, up to what it lacks unnoticed.
    #[test]
    fn in_the_long_run_every_tenant_gets_its_share(
        runs in prop::collection::vec((0..4_usize, 1..3_000_usize), 2..12), weights in prop::array::uniform4(1..5_u32),
        rate in 20..400_usize,
    ) {
        let lane: Vec<usize> = runs.into_iter().flat_map(|(tenant, jobs)| std::iter::repeat_n(tenant, jobs)).collect();
        let mut world = World::new(lane, weights.to_vec(), rate);
        let mut entitled = [0.0; 4];
        let mut had = [0_u64; 4];
        while world.waiting().iter().filter(|jobs| **jobs > 0).count() > 1 {
            let demands: Vec<(u64, u32)> = world.waiting().into_iter().zip(weights).collect();
            let began = world.look();
            for (at, part) in entitlements(began.iter().sum(), &demands).into_iter().enumerate() {
                entitled[at] += part;
                had[at] += began[at];
                // The first look only counts, and what is noticed is moved in the next one.
                let slack = 6.0 * rate as f64 + 2.0 * NOTICED;
                let wants_more = demands[at].0 > began[at];
                prop_assert!(!wants_more || had[at] as f64 >= entitled[at] * 0.6 - slack,
                    "tenant {at} had {} of {}", had[at], entitled[at]);
            }
        }
    }
}

/// Jobs that begin by themselves within so many looks are near.
const NEAR: usize = 3;

/// A lane and a queue that starts `rate` jobs per look, those that were moved forward first.
struct World {
    lane: VecDeque<usize>,
    forward: VecDeque<usize>,
    weights: Vec<u32>,
    rate: usize,
    shares: Shares,
    counted: Vec<Counted>,
    moves: u64,
}

impl World {
    fn new(lane: Vec<usize>, weights: Vec<u32>, rate: usize) -> Self {
        let counted = vec![Counted::default(); weights.len()];
        Self {
            lane: lane.into(),
            forward: VecDeque::new(),
            weights,
            rate,
            shares: Shares::default(),
            counted,
            moves: 0,
        }
    }

    fn waiting(&self) -> Vec<u64> {
        let mut waiting = vec![0; self.weights.len()];
        self.lane.iter().chain(&self.forward).for_each(|tenant| waiting[*tenant] += 1);
        waiting
    }

    /// Moves what is owed, then starts the jobs of one look. Says how many of each tenant began.
    fn look(&mut self) -> Vec<u64> {
        let mut in_lane = vec![0; self.weights.len()];
        self.lane.iter().for_each(|tenant| in_lane[*tenant] += 1);
        let of = |at: usize| Counted { waiting: in_lane[at], weight: self.weights[at], ..self.counted[at] };
        let counted = (0..in_lane.len()).filter(|at| in_lane[*at] > 0).map(|at| (tenant(at), of(at))).collect();
        for (name, owed) in self.shares.look(&counted) {
            let at = (0..in_lane.len()).find(|at| tenant(*at) == name).unwrap();
            let is_near = owed.is_near || self.lane.iter().take(NEAR * self.rate).any(|tenant| *tenant == at);
            let jobs = if is_near { owed.if_near } else { owed.if_far };
            let moved = self.move_forward(at, jobs);
            self.shares.moved(&name, moved);
        }
        self.counted.fill(Counted::default());
        for _ in 0..self.rate {
            if let Some(tenant) = self.forward.pop_front() {
                self.counted[tenant].moved_served += 1;
            } else if let Some(tenant) = self.lane.pop_front() {
                self.counted[tenant].served += 1;
            }
        }
        self.counted.iter().map(Counted::got).collect()
    }

    /// Moves the oldest jobs of a tenant that are not near.
    fn move_forward(&mut self, of: usize, jobs: u64) -> u64 {
        let mut moved = 0;
        let mut at = NEAR * self.rate;
        while at < self.lane.len() && moved < jobs {
            if self.lane[at] == of {
                self.lane.remove(at);
                self.forward.push_back(of);
                moved += 1;
            } else {
                at += 1;
            }
        }
        self.moves += moved;
        moved
    }
}

#[test]
fn the_first_job_of_a_tenant_does_not_wait_for_the_flood_before_it() {
    let lane = std::iter::repeat_n(0, 100_000).chain([1]).collect();
    let mut world = World::new(lane, vec![1, 1], 1_000);
    let began = |world: &mut World| world.look()[1];
    assert_eq!(began(&mut world), 0, "how fast the queue is, is not known yet");
    assert_eq!(began(&mut world), 1);
    assert_eq!(world.moves, 1);
}

#[test]
fn a_tenant_that_can_have_all_it_wants_has_it_at_once() {
    let lane = std::iter::repeat_n(0, 100_000).chain(std::iter::repeat_n(1, 100)).collect();
    let mut world = World::new(lane, vec![1, 1], 1_000);
    assert_eq!([world.look()[1], world.look()[1]], [0, 100]);
}

#[test]
fn weights_say_how_the_starts_are_shared() {
    let lane = std::iter::repeat_n(0, 100_000).chain(std::iter::repeat_n(1, 100_000)).collect();
    let mut world = World::new(lane, vec![3, 1], 1_000);
    (0..3).for_each(|_| drop(world.look()));
    let began: u64 = (0..20).map(|_| world.look()[1]).sum();
    assert!((4_300..=5_100).contains(&began), "{began} of 20,000 for a quarter");
}

#[test]
fn what_a_tenant_cannot_use_goes_to_the_others() {
    assert_eq!(entitlements(100, &[(1_000, 1), (10, 1), (1_000, 1)]), [45.0, 10.0, 45.0]);
    assert_eq!(entitlements(100, &[(10, 1), (20, 5)]), [10.0, 20.0]);
    assert_eq!(entitlements(0, &[(10, 1)]), [0.0]);
}

#[test]
fn tenants_that_are_served_in_their_lane_cost_next_to_no_moves() {
    // By a generator of numbers that is good enough for this, and the same each time.
    let mut seed = 7_u64;
    let mut draw = || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) as usize
    };
    // With two jobs of each in a look, some tenants have none by chance for longer than the lane is looked ahead.
    for (tenants, rate, bound) in [(1_000, 2_000, 0.08), (1_000, 20_000, 0.01), (10, 2_000, 0.01)] {
        let lane: Vec<usize> = (0..400_000).map(|_| draw() % tenants).collect();
        let mut world = World::new(lane, vec![1; tenants], rate);
        for _ in 0..10 {
            world.look();
        }
        let share = world.moves as f64 / (10 * rate) as f64;
        assert!(share < bound, "{tenants} tenants, {rate} a look: {share} of all starts were moved");
    }
}

#[test]
fn a_tenant_that_trickles_in_among_a_flood_is_served_at_once() {
    let lane: Vec<usize> = (0..100_000).map(|at| usize::from(at % 1_000 == 999)).collect();
    let mut world = World::new(lane, vec![1, 1], 500);
    let began: u64 = (0..4).map(|_| world.look()[1]).sum();
    assert!(began >= 95, "{began} of 100 began within four looks; by themselves it would be 2");
}

#[test]
fn jobs_that_were_moved_and_have_not_begun_are_not_moved_again() {
    let mut shares = Shares::default();
    let (flood, quiet) = (tenant(0), tenant(1));
    let of = |served, moved_served| Counted { waiting: 1_000, served, moved_served, weight: 1 };
    let mut owed = |quiet_moved| {
        let owed = shares.look(&[(flood.clone(), of(100, 0)), (quiet.clone(), of(0, 0))].into())[&quiet].if_far;
        shares.moved(&quiet, quiet_moved);
        owed
    };
    assert_eq!(owed(45), 45, "nine tenths of its part");
    assert_eq!(owed(0), 0, "the queue has not begun them");
}
