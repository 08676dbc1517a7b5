//! The kinds of breach that a history can contain, and how they are reported.

use std::collections::BTreeMap;
use std::fmt;

use jiff::Timestamp;

macro_rules! kinds {
    ($($(#[doc = $words:literal])+ $name:ident,)+) => {
        /// A kind of breach. Each has a test that seeds it.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Kind {
            $($(#[doc = $words])+ $name,)+
        }

        impl Kind {
            /// All kinds.
            pub const ALL: &'static [Kind] = &[$(Kind::$name),+];

            /// The meaning of the kind, in a sentence.
            pub fn meaning(self) -> &'static str {
                match self {
                    $(Kind::$name => concat!($($words),+).trim_start(),)+
                }
            }
        }
    };
}

kinds! {
    /// Accepted, and nothing is known of it: no event, no record.
    Lost,
    /// A round whose end is not in the log.
    NoEnd,
    /// A round that ended twice.
    SecondEnd,
    /// An event of a round after the round's end.
    AfterEnd,
    /// A required event is not in the log: `enqueued`, `started`, `failed`, `replayed`.
    Missing,
    /// Published when it cannot have happened: out of order.
    OutOfOrder,
    /// The same fact published under two ids.
    Doubled,
    /// One id with two different contents.
    Rewritten,
    /// An event that the contract does not know.
    Unknown,
    /// Attempt numbers other than 1, 2, 3 …
    AttemptGap,
    /// An attempt above the limit.
    AboveLimit,
    /// Started before it was due: a retry, or a scheduled run.
    Early,
    /// Started again after a failure that announced no retry.
    Unannounced,
    /// A round that does not follow a dead letter, or skips a number.
    RoundOutOfTurn,
    /// A finished run without a record.
    RecordMissing,
    /// A record that contradicts the events.
    RecordDisagrees,
    /// A dead run without a dead letter.
    DeadLetterMissing,
    /// A dead run with two dead letters.
    DeadLetterDoubled,
    /// A dead letter of a run, or a round, that is not dead.
    DeadLetterUnexpected,
    /// Two calls of one run at the same time while the first held its lease.
    Overlap,
    /// A handler was called after its run had ended.
    CallAfterEnd,
    /// A handler was called by a node that had been frozen while another node took the run over or ended it.
    StaleStart,
    /// An attempt ended as `lease_expired` though its holder lived and could renew.
    LeaseLostTooSoon,
    /// A call of an attempt that is not in the log.
    CallUnpublished,
    /// Completed according to the log, but no call of its handler ran to the end.
    NotCalled,
    /// An attempt started although its queue or type was paused, and the pause was answered.
    StartedWhilePaused,
    /// A handler was called while as many were at work as the concurrency limit allows.
    AboveConcurrency,
    /// A handler was called for a run while one that is ahead of it in its key's order was not over.
    Overtakes,
    /// A due time of a recurring schedule without a run.
    FiringMissing,
    /// A run of a recurring schedule for a time at which it was not due.
    FiringUnplanned,
    /// A run of a recurring schedule that leaves overlaps out, published before the end of the run before it.
    FiringOverlaps,
}

/// One breach of the contract by one run.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Violation {
    /// The tenant of the run.
    pub tenant: String,
    /// The id of the run.
    pub run_id: String,
    /// The kind of breach.
    pub kind: Kind,
    /// The observed facts.
    pub detail: String,
    /// Of a [`Kind::StaleStart`], the node and the end of its freeze.
    pub thawed: Option<(String, Timestamp)>,
}

/// Leaves out the calls that a node may have had on their way when it was frozen, if there are no more than `most`
/// after one freeze; returns how many it left out.
pub(super) fn excuse(found: &mut Vec<Violation>, most: usize) -> usize {
    let all = found.len();
    let mut after: BTreeMap<(String, Timestamp), usize> = BTreeMap::new();
    for thawed in found.iter().filter_map(|violation| violation.thawed.clone()) {
        *after.entry(thawed).or_default() += 1;
    }
    found.retain(|violation| violation.thawed.as_ref().is_none_or(|thawed| after[thawed] > most));
    all - found.len()
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {}/{}: {}", self.kind, self.tenant, self.run_id, self.detail)
    }
}

/// For people: the number of each kind, and the first twenty in full.
pub(super) fn report(found: &[Violation]) -> String {
    let mut counts = BTreeMap::new();
    for violation in found {
        *counts.entry(violation.kind).or_insert(0) += 1;
    }
    let counts: Vec<String> = counts.iter().map(|(kind, count)| format!("{kind:?} {count}")).collect();
    let first: Vec<String> = found.iter().take(20).map(ToString::to_string).collect();
    format!("the history has {} violations ({})\n{}", found.len(), counts.join(", "), first.join("\n"))
}
