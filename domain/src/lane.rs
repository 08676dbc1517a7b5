//! Lanes. A queue has ten: one for each priority, and one for jobs that return after they were parked.

use std::fmt;

use crate::{Priority, Queue};

/// The lane of one queue and one priority, to which clients publish. It is a stream of its own, first in, first out. A
/// copy takes no memory of its own: the queue's name shares its text.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Lane {
    /// The queue.
    pub queue: Queue,
    /// The priority of all its jobs.
    pub priority: Priority,
}

impl Lane {
    /// The lane of this priority.
    pub fn new(queue: &Queue, priority: Priority) -> Self {
        Self { queue: queue.clone(), priority }
    }
}

impl fmt::Display for Lane {
    /// As the tokens of a subject have it: `main.p5`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.queue, self.priority)
    }
}

/// One of a queue's ten lanes. Each is a stream of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum QueueLane {
    /// Where clients publish jobs of this priority, and where retries and delayed jobs go when they fall due.
    Of(Priority),
    /// Jobs of every priority that were parked and can start now. They have waited already, so they do not queue up
    /// again behind all jobs that came meanwhile.
    Returned,
}

impl QueueLane {
    /// How many lanes a queue has.
    pub const COUNT: usize = Priority::COUNT + 1;

    /// All lanes, the most urgent first, the lane of returned jobs last.
    pub fn all() -> impl Iterator<Item = Self> {
        Priority::all().map(Self::Of).chain([Self::Returned])
    }

    /// Its position in [`QueueLane::all`].
    #[must_use]
    pub fn index(self) -> usize {
        match self {
            Self::Of(priority) => usize::from(priority.number() - 1),
            Self::Returned => Priority::COUNT,
        }
    }
}

impl From<Priority> for QueueLane {
    fn from(priority: Priority) -> Self {
        Self::Of(priority)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lane_stands_at_its_index() {
        let all: Vec<QueueLane> = QueueLane::all().collect();
        assert_eq!(all.len(), QueueLane::COUNT);
        assert!(all.iter().enumerate().all(|(at, lane)| lane.index() == at));
    }
}
