//! The lanes of a queue: one for each priority, and one for jobs that return after they were parked.

use crate::Priority;

/// A lane of a queue. Each is a stream of its own, first in, first out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Lane {
    /// Where clients publish jobs of this priority, and where retries and delayed jobs go when they fall due.
    Of(Priority),
    /// Jobs of every priority that were parked and can start now. They have waited already, so they do not queue up
    /// again behind all jobs that came meanwhile.
    Returned,
}

impl Lane {
    /// How many lanes a queue has.
    pub const COUNT: usize = Priority::COUNT + 1;

    /// All lanes, the most urgent first, the lane of returned jobs last.
    pub fn all() -> impl Iterator<Item = Self> {
        Priority::all().map(Self::Of).chain([Self::Returned])
    }

    /// Its position in [`Lane::all`].
    #[must_use]
    pub fn index(self) -> usize {
        match self {
            Self::Of(priority) => usize::from(priority.number() - 1),
            Self::Returned => Priority::COUNT,
        }
    }
}

impl From<Priority> for Lane {
    fn from(priority: Priority) -> Self {
        Self::Of(priority)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lane_stands_at_its_index() {
        let all: Vec<Lane> = Lane::all().collect();
        assert_eq!(all.len(), Lane::COUNT);
        assert!(all.iter().enumerate().all(|(at, lane)| lane.index() == at));
    }
}
