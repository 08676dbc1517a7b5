//! How many more jobs a node may take into a scope whose waiting jobs are bounded.
//!
//! Nodes count the waiting jobs of the cluster every few seconds, each at its own time, and take jobs in between
//! without asking any other. So each takes at most its share of the room that it found: the room divided by the nodes,
//! rounded up.
//!
//! # The bound
//!
//! If nodes know of each other and their counts are right, at most `2 × max + nodes` jobs wait, however clients spread
//! their jobs: between the oldest of the counts in use and now, each node has used up what was left of the count
//! before, at most its share of `max`, and its share of the room that it found. Where nodes take about as many jobs as
//! each other, `max` is exceeded by what a count is late.

/// The room of one scope, as one node knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Room {
    max: u64,
    /// What this node may take beyond [`Self::mark`].
    share: u64,
    /// Jobs that it ever took, less those that it took in vain.
    taken: u64,
    /// Those of them that may not be stored yet.
    in_flight: u64,
    /// So many jobs that it took are part of the last count.
    mark: u64,
    /// The same, of the count that is being made.
    next_mark: u64,
    waiting: u64,
}

impl Room {
    /// A scope in which `max` jobs may wait. Before its first count, a node takes none.
    pub fn new(max: u64) -> Self {
        Self { max, share: 0, taken: 0, in_flight: 0, mark: 0, next_mark: 0, waiting: 0 }
    }

    /// How many jobs may wait.
    pub fn max(&self) -> u64 {
        self.max
    }

    /// How many waited when they were last counted.
    pub fn waiting(&self) -> u64 {
        self.waiting
    }

    /// Whether a job may be taken.
    pub fn has_place(&self) -> bool {
        self.taken.saturating_sub(self.mark) < self.share
    }

    /// A job is being taken: it counts until the next count that begins after [`Self::stored`].
    pub fn take(&mut self) {
        self.taken += 1;
        self.in_flight += 1;
    }

    /// A job that was being taken is stored, so that later counts have it.
    pub fn stored(&mut self) {
        self.in_flight = self.in_flight.saturating_sub(1);
    }

    /// A job that was being taken was refused after all.
    pub fn put_back(&mut self) {
        self.in_flight = self.in_flight.saturating_sub(1);
        self.taken = self.taken.saturating_sub(1);
    }

    /// A count begins.
    pub fn count_begins(&mut self) {
        self.next_mark = self.taken.saturating_sub(self.in_flight);
    }

    /// The count that began last found so many jobs waiting, and so many nodes that take jobs.
    pub fn counted(&mut self, waiting: u64, nodes: u64) {
        (self.waiting, self.mark) = (waiting, self.next_mark);
        self.share = self.max.saturating_sub(waiting).div_ceil(nodes.max(1));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_node_takes_its_share_of_the_room_and_jobs_in_flight_count_until_they_are_counted() {
        let mut room = Room::new(10);
        assert!(!room.has_place(), "nothing is known");
        room.count_begins();
        room.counted(4, 2);
        for _ in 0..3 {
            assert!(room.has_place());
            room.take();
        }
        assert!(!room.has_place(), "3 of the 6 are its share");
        room.stored();
        room.put_back();
        assert!(room.has_place(), "one was refused after all");
        room.count_begins();
        // One is stored and counted, the other is still on its way.
        room.counted(9, 1);
        assert!(!room.has_place());
        room.counted(8, 1);
        assert!(room.has_place());
        room.counted(12, 1);
        assert!(!room.has_place());
    }

    /// What happens next: a node takes a job, counts, or its count ends; or a job starts.
    #[derive(Debug, Clone)]
    enum Step {
        Take(usize),
        Begin(usize),
        Counted(usize),
        Starts(u64),
    }

    fn steps(nodes: usize) -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            6 => (0..nodes).prop_map(Step::Take),
            1 => (0..nodes).prop_map(Step::Begin),
            1 => (0..nodes).prop_map(Step::Counted),
            1 => (0u64..10).prop_map(Step::Starts),
        ];
        prop::collection::vec(step, 1..400)
    }

    /// Plays the steps; says how many jobs waited at most. A count finds what waits when it begins.
    fn play(max: u64, nodes: usize, steps: &[Step]) -> u64 {
        let mut rooms = vec![(Room::new(max), None); nodes];
        let (mut waiting, mut most) = (0u64, 0);
        for step in steps {
            match step {
                Step::Take(node) => {
                    let room = &mut rooms[*node].0;
                    if room.has_place() {
                        room.take();
                        room.stored();
                        waiting += 1;
                    }
                }
                Step::Begin(node) => {
                    let (room, found) = &mut rooms[*node];
                    room.count_begins();
                    *found = Some(waiting);
                }
                Step::Counted(node) => {
                    let (room, found) = &mut rooms[*node];
                    if let Some(found) = found.take() {
                        room.counted(found, nodes as u64);
                    }
                }
                Step::Starts(jobs) => waiting = waiting.saturating_sub(*jobs),
            }
            most = most.max(waiting);
        }
        most
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        #[test]
        fn no_more_wait_than_the_bound_says(
            (nodes, steps) in (1usize..5).prop_flat_map(|nodes| (Just(nodes), steps(nodes))),
            max in 1u64..60,
        ) {
            let most = play(max, nodes, &steps);
            prop_assert!(most <= 2 * max + nodes as u64, "{most} > 2 x {max} + {nodes}");
            if nodes == 1 {
                prop_assert!(most <= max, "{most} > {max} on one node");
            }
        }
    }
}
