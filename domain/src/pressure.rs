//! How far a node holds back while its machine is short of processor or memory.
//!
//! A node under pressure pulls fewer jobs: those that rank behind the others stay in their lanes, where a node that has
//! room takes them. Each look may take one step back, by half; so that a node does not swing to and fro, a step forward
//! takes several looks in a row that are well below the limit. How a node measures is not known here.

/// Most steps back for want of memory: an eighth of the usual.
pub const MAX_STEPS: u8 = 3;
/// The same for want of a processor. A node that drains a backlog keeps its processors busy, which is as it should be:
/// with less than half it might wait for the server.
pub const MAX_STEPS_CPU: u8 = 1;
/// A look is calm below this part of the limit. Between this and the limit everything stays as it is.
pub const CALM_BELOW: f64 = 0.95;
/// So many calm looks in a row take one step forward.
pub const CALM_CHECKS: u8 = 3;

/// From which share on a node is short of something; shares beyond 1 cannot be, so a limit of 1 is none.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PressureLimits {
    /// The share of time in which some of its tasks wait for a processor.
    pub cpu: f64,
    /// The share of the memory it may use that is in use.
    pub memory: f64,
    /// The share of time in which some of its tasks wait for memory.
    pub memory_stall: f64,
}

impl Default for PressureLimits {
    fn default() -> Self {
        Self { cpu: 0.9, memory: 0.9, memory_stall: 0.2 }
    }
}

/// One look at the machine: shares from 0 to 1. What cannot be measured is not a reason to hold back.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Reading {
    /// The share of time in which some task waited for a processor.
    pub cpu: Option<f64>,
    /// The share of memory that is in use.
    pub memory: Option<f64>,
    /// The share of time in which some task waited for memory.
    pub memory_stall: Option<f64>,
}

/// By how many steps a node holds back, each a half of the one before; 0: not at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct HeldBack {
    /// For want of a processor. Workers keep working: a busy processor is what jobs are for.
    pub cpu: u8,
    /// For want of memory. Fewer workers get jobs, as each job may need some.
    pub memory: u8,
}

impl HeldBack {
    /// How many of a queue's workers may have jobs: one always.
    #[must_use]
    pub fn may_work(self, workers: usize) -> usize {
        (workers >> self.memory).max(1)
    }

    /// For how many of its idle workers a queue pulls, and how many jobs beyond those.
    #[must_use]
    pub fn pulls(self, workers: usize, idle: usize, ahead: usize) -> (usize, usize) {
        if self == Self::default() {
            return (idle, ahead);
        }
        let room = self.may_work(workers).saturating_sub(workers.saturating_sub(idle));
        // A job pulled ahead would go to any worker that is idle.
        let ahead = if self.memory > 0 { 0 } else { ahead >> self.cpu };
        (idle.min(room), ahead)
    }
}

/// What a node remembers from look to look.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Pressure {
    cpu: Brake,
    memory: Brake,
}

impl Pressure {
    /// Takes in one look, and says how far the node holds back from now on.
    pub fn look(&mut self, reading: Reading, limits: PressureLimits) -> HeldBack {
        let load = |share: Option<f64>, limit: f64| share.map_or(0.0, |share| share / limit);
        let of_memory = load(reading.memory, limits.memory).max(load(reading.memory_stall, limits.memory_stall));
        self.cpu.look(load(reading.cpu, limits.cpu), MAX_STEPS_CPU);
        self.memory.look(of_memory, MAX_STEPS);
        HeldBack { cpu: self.cpu.steps, memory: self.memory.steps }
    }
}

/// The steps back for one resource.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
struct Brake {
    steps: u8,
    calm: u8,
}

impl Brake {
    /// `load` is what was measured, as a part of the limit; `most` are the steps that it may be back.
    fn look(&mut self, load: f64, most: u8) {
        if load > 1.0 {
            (self.steps, self.calm) = ((self.steps + 1).min(most), 0);
        } else if load < CALM_BELOW {
            self.calm += 1;
            if self.calm >= CALM_CHECKS {
                (self.steps, self.calm) = (self.steps.saturating_sub(1), 0);
            }
        } else {
            self.calm = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    const LIMITS: PressureLimits = PressureLimits { cpu: 0.8, memory: 0.8, memory_stall: 0.2 };

    fn steps_of(loads: &[f64]) -> Vec<u8> {
        let mut brake = Brake::default();
        loads
            .iter()
            .map(|load| {
                brake.look(*load, MAX_STEPS);
                brake.steps
            })
            .collect()
    }

    #[test]
    fn each_look_beyond_the_limit_takes_a_step_back_and_several_calm_ones_take_one_forward() {
        let loads = [1.1, 1.1, 1.1, 1.1, 0.5, 0.5, 0.97, 0.5, 0.5, 0.5, 0.5, 0.5, 1.1, 0.5, 0.5, 0.5];
        assert_eq!(steps_of(&loads), [1, 2, 3, 3, 3, 3, 3, 3, 3, 2, 2, 2, 3, 3, 3, 2]);
    }

    #[test]
    fn a_look_counts_by_what_is_shortest_and_nothing_by_what_is_not_known_or_has_no_limit() {
        let look = |reading, limits| Pressure::default().look(reading, limits);
        let held = |cpu, memory| HeldBack { cpu, memory };
        let reading = Reading { cpu: Some(0.9), memory: Some(0.1), memory_stall: Some(0.3) };
        assert_eq!(look(reading, LIMITS), held(1, 1));
        assert_eq!(look(Reading { memory_stall: None, ..reading }, LIMITS), held(1, 0));
        assert_eq!(look(Reading::default(), LIMITS), held(0, 0));
        let mut pressure = Pressure::default();
        for expected in [held(1, 1), held(1, 2), held(1, 3), held(1, 3)] {
            assert_eq!(pressure.look(reading, LIMITS), expected);
        }
        let full = Reading { cpu: Some(1.0), memory: Some(1.0), memory_stall: Some(1.0) };
        assert_eq!(look(full, PressureLimits { cpu: 1.0, memory: 1.0, memory_stall: 1.0 }), held(0, 0));
    }

    #[test]
    fn want_of_a_processor_lowers_what_is_pulled_ahead_and_want_of_memory_the_workers_too() {
        let held = |cpu, memory| HeldBack { cpu, memory };
        assert_eq!(held(0, 0).pulls(64, 10, 400), (10, 400));
        assert_eq!(held(2, 0).pulls(64, 10, 400), (10, 100));
        assert_eq!(held(0, 1).pulls(64, 64, 400), (32, 0));
        assert_eq!(held(0, 1).pulls(64, 40, 400), (8, 0), "24 are busy");
        assert_eq!(held(0, 3).pulls(64, 40, 400), (0, 0), "more are busy than may be");
        assert_eq!(held(3, 3).pulls(2, 2, 5), (1, 0), "one always works");
    }

    proptest! {
        #[test]
        fn it_never_leaves_its_range_and_more_load_never_holds_back_less(
            loads in vec((0.0..2.0f64, 0.0..0.5f64), 1..200),
        ) {
            let less: Vec<f64> = loads.iter().map(|(load, _)| *load).collect();
            let more: Vec<f64> = loads.iter().map(|(load, above)| load + above).collect();
            let (less, more) = (steps_of(&less), steps_of(&more));
            prop_assert!(less.iter().zip(&more).all(|(less, more)| less <= more && *more <= MAX_STEPS));
        }

        #[test]
        fn it_comes_to_rest(loads in vec(0.0..2.0f64, 0..50), steady in 0.0..2.0f64) {
            let before = loads.len();
            let settled = usize::from(MAX_STEPS * CALM_CHECKS);
            let steps = steps_of(&[loads, vec![steady; settled + 5]].concat());
            let rest = &steps[before + settled - 1..];
            prop_assert!(rest.iter().all(|now| *now == rest[0]));
            let from = before.checked_sub(1).map_or(0, |last| steps[last]);
            let expected = if steady > 1.0 { MAX_STEPS } else if steady < CALM_BELOW { 0 } else { from };
            prop_assert_eq!(rest[0], expected);
        }

        #[test]
        fn it_goes_forward_one_step_in_so_many_looks_at_most(loads in vec(0.0..2.0f64, 1..200)) {
            let steps = steps_of(&loads);
            let forward: Vec<usize> = (1..steps.len()).filter(|at| steps[*at] < steps[at - 1]).collect();
            prop_assert!(forward.windows(2).all(|pair| pair[1] - pair[0] >= usize::from(CALM_CHECKS)));
            for at in forward {
                prop_assert!(loads[at + 1 - usize::from(CALM_CHECKS)..=at].iter().all(|load| *load < CALM_BELOW));
            }
        }

        #[test]
        fn it_never_pulls_more_than_usual_and_always_for_one(
            (cpu, memory) in (0..=MAX_STEPS, 0..=MAX_STEPS), workers in 1..500usize, busy in 0..500usize, ahead in 0..1_000usize,
        ) {
            let idle = workers.saturating_sub(busy);
            let (for_idle, beyond) = HeldBack { cpu, memory }.pulls(workers, idle, ahead);
            prop_assert!(for_idle <= idle && beyond <= ahead);
            prop_assert!(idle < workers || for_idle > 0);
            if memory > 0 {
                prop_assert!(workers - idle + for_idle + beyond <= (workers >> memory).max(workers - idle).max(1));
            }
        }
    }
}
