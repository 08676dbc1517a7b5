//! What can be wrong with a history, and how it is said.

use std::collections::BTreeMap;
use std::fmt;

macro_rules! kinds {
    ($($(#[doc = $words:literal])+ $name:ident,)+) => {
        /// A kind of breach. Each has a test that seeds it.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Kind {
            $($(#[doc = $words])+ $name,)+
        }

        impl Kind {
            /// Every kind there is.
            pub const ALL: &'static [Kind] = &[$(Kind::$name),+];

            /// What it is, in a sentence.
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
    /// A round whose end the log does not tell.
    NoEnd,
    /// A round that ended twice.
    SecondEnd,
    /// Something told of a round after its end.
    AfterEnd,
    /// An event that must be there is not: `enqueued`, `started`, `failed`, `replayed`.
    Missing,
    /// Told when it cannot have happened: out of order.
    OutOfOrder,
    /// The same fact told under two ids.
    Doubled,
    /// One id, two contents.
    Rewritten,
    /// An event that the contract does not know.
    Unknown,
    /// Attempts that do not count 1, 2, 3 …
    AttemptGap,
    /// An attempt above the limit.
    AboveLimit,
    /// Started before it was due: a retry, or a scheduled run.
    Early,
    /// Started again after a failure that announced no retry.
    Unannounced,
    /// A round that does not follow a dead letter, or skips a number.
    RoundOutOfTurn,
    /// An ended run without record.
    RecordMissing,
    /// A record that says something else than the events.
    RecordDisagrees,
    /// A dead run without dead letter.
    LetterMissing,
    /// A dead run with two.
    LetterDoubled,
    /// A dead letter of a run, or a round, that is not dead.
    LetterUnexpected,
    /// Two calls of one run at the same time while the first held its lease.
    Overlap,
    /// A handler was called after its run had ended.
    CallAfterEnd,
    /// A handler was called by a node that had been frozen while another took the run over, or ended it.
    StaleStart,
    /// An attempt ended as `lease_expired` though its holder lived and could give signs.
    LeaseLostTooSoon,
    /// A call of an attempt that the log does not tell.
    CallUntold,
    /// Completed, by the log, without its handler having been called to the end.
    NotCalled,
}

/// One breach of the contract by one run.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Violation {
    /// Whose run.
    pub tenant: String,
    /// Which run.
    pub run_id: String,
    /// What kind of breach.
    pub kind: Kind,
    /// What was seen.
    pub detail: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {}/{}: {}", self.kind, self.tenant, self.run_id, self.detail)
    }
}

/// For people: how many of each kind, and the first twenty.
pub(super) fn report(found: &[Violation]) -> String {
    let mut counts = BTreeMap::new();
    for violation in found {
        *counts.entry(violation.kind).or_insert(0) += 1;
    }
    let counts: Vec<String> = counts.iter().map(|(kind, count)| format!("{kind:?} {count}")).collect();
    let first: Vec<String> = found.iter().take(20).map(ToString::to_string).collect();
    format!("the history has {} violations ({})\n{}", found.len(), counts.join(", "), first.join("\n"))
}
