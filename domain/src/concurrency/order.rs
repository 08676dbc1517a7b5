//! The order of a concurrency key, for types that are `ordered`: which runs of one lane start next, each only once
//! those before it have ended.
//!
//! The order is cut in batches. A node that finds that all runs of the last batch have ended reads what waits, first
//! the lane, then the parked jobs, and stores the first [`BATCH`] of it in the order of the lane's sequence, by
//! compare-and-set on the version that it judged. A batch is complete for ever: a lane only grows at its end, and a job
//! that is in no batch leaves its lane only to be parked or to end, so the reader has met each in one of the two
//! places. From then on the jobs of the batch may be anywhere, while they wait for a retry too: their runs' records say
//! whether they have ended.
//!
//! So no node has to write when a job comes, is parked or ends, no death can keep a place, and a job that no node has
//! met yet, because the one that got it froze, holds up those behind it until it comes again.

use serde::{Deserialize, Serialize};
use smol_str::SmolStr;

use super::Member;
use crate::{JobType, Lane, RunId, Tenant};

/// The most runs that a batch names. Larger ones are written more seldom, and are more to write.
pub const BATCH: usize = 64;

/// Whose order it is: the jobs of one tenant, type and key in one lane.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OrderId {
    /// The tenant.
    pub tenant: Tenant,
    /// The lane.
    pub lane: Lane,
    /// The type.
    pub job_type: JobType,
    /// The key, as one token.
    pub key: SmolStr,
}

impl std::fmt::Display for OrderId {
    /// Tokens of a subject.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}.{}.{}", self.tenant, self.lane, self.key, self.job_type)
    }
}

/// The place of a run in the order of its key, as its record and the messages that nodes write of it carry it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Turn {
    /// The key, as one token.
    pub key: SmolStr,
    /// The sequence in the lane under which the job came.
    pub number: u64,
}

/// What is stored of an order: the last batch.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Order {
    /// In order.
    batch: Vec<Member>,
}

/// What a run finds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Next {
    /// It is its turn.
    Mine,
    /// This one has not ended, and comes first.
    After(RunId),
    /// All of the batch have ended: the next one is to be cut.
    Cut,
}

impl Order {
    /// The next batch, cut from all that waits.
    pub fn cut(waiting: impl IntoIterator<Item = Member>) -> Self {
        let mut batch: Vec<Member> = waiting.into_iter().collect();
        batch.sort_by(|one, other| (one.place.number, &one.run_id).cmp(&(other.place.number, &other.run_id)));
        let mut seen = std::collections::BTreeSet::new();
        // A job that is on its way was met in both places.
        batch.retain(|member| seen.insert((member.run_id.clone(), member.round)));
        batch.truncate(BATCH);
        Self { batch }
    }

    /// The runs of the batch, in order.
    pub fn batch(&self) -> &[Member] {
        &self.batch
    }

    /// The order without the first so many runs, which have ended.
    #[must_use]
    pub fn without_first(&self, ended: usize) -> Self {
        Self { batch: self.batch[ended.min(self.batch.len())..].to_vec() }
    }

    /// What a run finds, if `first` is the first run of the batch that has not ended.
    pub fn next(me: &Member, first: Option<&Member>) -> Next {
        match first {
            None => Next::Cut,
            Some(first) if first.is(me) => Next::Mine,
            Some(first) => Next::After(first.run_id.clone()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Timestamp;
    use crate::concurrency::Place;

    fn member(run: &str, number: u64) -> Member {
        let place = Place { at: Timestamp::default(), number };
        Member { run_id: RunId::parse(run).unwrap(), round: 1, place }
    }

    #[test]
    fn a_batch_has_the_first_of_all_that_waits_once_each() {
        let many = (1..=BATCH as u64 + 9).rev().flat_map(|number| {
            let one = member(&format!("r{number}"), number);
            [one.clone(), one]
        });
        let order = Order::cut(many);
        let numbers: Vec<u64> = order.batch().iter().map(|member| member.place.number).collect();
        assert_eq!(numbers, (1..=BATCH as u64).collect::<Vec<_>>());
        assert_eq!(order.without_first(BATCH - 1).batch().len(), 1);
    }

    #[test]
    fn only_the_first_that_has_not_ended_has_its_turn() {
        let (one, two) = (member("a", 1), member("b", 2));
        assert_eq!(Order::next(&two, Some(&one)), Next::After(one.run_id.clone()));
        assert_eq!(Order::next(&two, Some(&two)), Next::Mine);
        assert_eq!(Order::next(&two, None), Next::Cut);
        let again = Member { round: 2, ..two.clone() };
        assert_eq!(Order::next(&again, Some(&two)), Next::After(two.run_id));
    }
}
