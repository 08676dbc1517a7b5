//! The record of a limit: which session has how many slots. Every function makes the next version from the one read.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use smol_str::SmolStr;

use crate::run::whole_millis;

/// A record with blocks is kept for at least so long after it was written. A node that has a block writes it again long
/// before that ([`super::holder`]), so that only the blocks of nodes that are long gone are forgotten.
const KEPT: Duration = Duration::from_secs(24 * 60 * 60);
/// The longest time for which slots are kept beyond the end of their session. A session is stored for a day after its
/// last renewal, and for a day after its end: so one that is no longer stored has been over for longer than this.
pub const MAX_HOLD: Duration = Duration::from_secs(12 * 60 * 60);
/// A record without blocks says as much as none.
const EMPTY_KEPT: Duration = Duration::from_secs(1);

/// Who has the slots of a limit.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct SlotRecord {
    /// By session.
    blocks: BTreeMap<SmolStr, Block>,
}

/// The slots of one session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Block {
    /// How many.
    pub slots: u32,
    /// For how many milliseconds beyond the end of its session it counts: the longest time for which an attempt at work
    /// asks. Versions that kept the slots of every remote attempt wrote another field, which counts for nothing.
    #[serde(default, skip_serializing_if = "crate::is_default")]
    pub holds_for_ms: u64,
}

/// A version of a record.
#[derive(Debug, Clone)]
pub struct SlotVersion {
    /// What it says.
    pub record: SlotRecord,
    /// Its number among the versions.
    pub revision: u64,
}

/// What a node asks of a limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ask {
    /// Its session.
    pub session: SmolStr,
    /// Distinguishes the node's writes.
    pub number: u64,
    /// How many of its slots it keeps.
    pub keeps: u32,
    /// How many more it would have, if there are some.
    pub wants: u32,
    /// For how long its slots are to be kept beyond the end of its session.
    pub holds_for: Duration,
}

impl SlotRecord {
    /// The block of a session.
    pub fn of(&self, session: &str) -> Block {
        self.blocks.get(session).copied().unwrap_or_default()
    }

    /// Its blocks, by session.
    pub fn blocks(&self) -> impl Iterator<Item = (&SmolStr, &Block)> {
        self.blocks.iter()
    }

    /// The sessions that have slots.
    pub fn sessions(&self) -> impl Iterator<Item = &SmolStr> {
        self.blocks.keys()
    }

    /// How many slots sessions other than this one have; blocks that `is_over` do not count.
    pub fn taken_beside(&self, session: &str, is_over: impl Fn(&str, &Block) -> bool) -> u32 {
        let others = self.blocks.iter().filter(|(of, block)| *of != session && !is_over(of, block));
        others.fold(0, |sum: u32, (_, block)| sum.saturating_add(block.slots))
    }

    /// The record in which the asking session has what it asks for, as far as a limit of `max` allows that, without the
    /// blocks that `is_over`.
    #[must_use]
    pub fn after(&self, ask: &Ask, max: u32, is_over: impl Fn(&str, &Block) -> bool) -> Self {
        let taken = self.taken_beside(&ask.session, &is_over).saturating_add(ask.keeps);
        let slots = ask.keeps + ask.wants.min(max.saturating_sub(taken));
        let mut next = self.clone();
        next.blocks.retain(|of, block| *of != ask.session && !is_over(of, block));
        if slots > 0 {
            next.blocks.insert(ask.session.clone(), Block { slots, holds_for_ms: whole_millis(ask.holds_for) });
        }
        next
    }

    /// The record without the blocks that an operator `frees`, and how many slots they had.
    #[must_use]
    pub fn without(&self, frees: impl Fn(&str) -> bool) -> (Self, u32) {
        let mut next = self.clone();
        next.blocks.retain(|session, _| !frees(session));
        (next.clone(), self.taken_beside("", |_, _| false) - next.taken_beside("", |_, _| false))
    }

    /// For how long the record is to be kept after it was written.
    pub fn matters_for(&self) -> Duration {
        match self.blocks.values().map(|block| block.holds_for_ms).max() {
            Some(longest) => KEPT + Duration::from_millis(longest),
            None => EMPTY_KEPT,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(session: &str, keeps: u32, wants: u32) -> Ask {
        Ask { session: session.into(), number: 0, keeps, wants, holds_for: Duration::ZERO }
    }

    #[test]
    fn no_more_slots_are_given_than_there_are() {
        let nobody = |_: &str, _: &Block| false;
        let one = SlotRecord::default().after(&ask("a", 0, 2), 3, nobody);
        let two = one.after(&ask("b", 0, 5), 3, nobody);
        assert_eq!((two.of("a").slots, two.of("b").slots, two.of("c").slots), (2, 1, 0));
        let lowered = two.after(&ask("b", 1, 5), 2, nobody);
        assert_eq!(lowered.of("b").slots, 1, "what it has it keeps");
        assert_eq!(two.without(|of| of == "a"), (SlotRecord::default().after(&ask("b", 0, 1), 3, nobody), 2));
        let back = two.after(&ask("a", 0, 0), 3, nobody);
        assert_eq!((back.sessions().count(), back.taken_beside("c", nobody)), (1, 1));
        let over = two.after(&ask("c", 0, 9), 3, |of, _| of == "a");
        assert_eq!((over.of("a").slots, over.of("b").slots, over.of("c").slots), (0, 1, 2));
        assert_eq!(over.after(&ask("b", 0, 0), 3, nobody).after(&ask("c", 0, 0), 3, nobody), SlotRecord::default());
    }

    #[test]
    fn a_record_outlasts_the_attempts_of_nodes_that_are_gone() {
        let long = Ask { holds_for: MAX_HOLD, ..ask("a", 0, 1) };
        let record = SlotRecord::default().after(&long, 1, |_, _| false);
        assert!(record.matters_for() > long.holds_for);
        assert_eq!(SlotRecord::default().matters_for(), EMPTY_KEPT);
    }

    #[test]
    fn a_block_of_a_former_version_counts_for_no_longer_than_its_session() {
        let record: SlotRecord =
            serde_json::from_str(r#"{"blocks":{"a":{"slots":2,"runs_for_ms":5184000000}}}"#).unwrap();
        assert_eq!(record.of("a"), Block { slots: 2, holds_for_ms: 0 });
    }
}
