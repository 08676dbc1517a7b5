//! The history checker: it compares accepted jobs, published events, records, dead letters and handler calls, and finds
//! every breach of the contract.
//!
//! Pure: no clock, no network, no state of its own. It gets everything at once and returns a list of [`Violation`]s,
//! which is empty if the history is sound: [`History::check`] where all work is at rest, [`History::judge`] where work
//! goes on. Its modules read in this order: `by_run` (sorts by run, drops repeats), `round` (one round of one run,
//! event by event), `record`, `dead_letter` and `call` (whether the other sources agree), `lease` (which node could
//! hold a run, and until when), `pause`, `concurrency` and `order` (what operators and settings forbid), `recurring`
//! (when schedules are due), `reading` (facts that may not be known yet), `violation`. The program `history`
//! (docs/history.md) reads a cluster and asks this checker.
//!
//! What it proves for each run, from the contract's sections 3 and 4:
//! * an accepted run is not lost: the log has its end, and its record agrees;
//! * each round ends exactly once; a further round follows only a dead letter, and `replayed` opens it;
//! * in the log's order `enqueued` < `started` < the end; none is missing, none is published under two ids, none has
//!   two different contents under one id (an identical repeat is allowed: events are published at least once);
//! * attempts count 1, 2, 3 … without a gap and never above the limit; the same attempt starts again only after it was
//!   returned, and a retry does not start before its time;
//! * a dead run has one dead letter, any other run has none, and only a dead letter is `discarded`;
//! * no two calls of one run overlap while the first one holds its lease; every call has its published start;
//! * no handler is called after its run's end, nor by a node that was frozen while another node took the run over;
//! * no attempt is called lost while its holder lives and can renew its lease;
//! * nothing starts while a pause holds, never more handlers are at work than a concurrency limit says, and no run of
//!   an ordered key begins before those ahead of it are over;
//! * each due time of a recurring schedule has its run, no run stands for another time, none comes early, and none
//!   overlaps the one before where that is to be left out.
//!
//! Where the contract leaves freedom, the checker accepts every permitted order: a `progress` may come late,
//! `cancelled` may come before any other event, an attempt that found no handler may fail without having started.

mod by_run;
mod call;
mod concurrency;
mod dead_letter;
mod facts;
mod lease;
mod order;
mod pause;
mod reading;
mod record;
mod recurring;
mod round;
mod violation;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::SignedDuration;

pub use facts::{
    Accepted, Call, DeadLetter, History, Interruption, Kept, Limit, Ordered, Pause, Recurring, Rules, Silence,
};
pub use reading::{Judgement, Open, Reading};
pub use violation::{Kind, Violation};

/// A time span, to be added to moments.
fn span(duration: Duration) -> SignedDuration {
    SignedDuration::try_from(duration).unwrap_or(SignedDuration::MAX)
}

impl History {
    /// Everything that is wrong with this history, by run.
    pub fn check(&self) -> Vec<Violation> {
        self.check_and_excuse().0
    }

    /// The same, and how many calls were left out, as a frozen node may have had them on their way
    /// ([`Rules::on_their_way`]).
    pub fn check_and_excuse(&self) -> (Vec<Violation>, usize) {
        let mut found = Vec::new();
        let runs = by_run::runs(self, &mut found);
        for run in &runs {
            found.append(&mut self.judge_run(run).1);
        }
        concurrency::judge(self, &runs, &mut found);
        order::judge(self, &runs, &mut found);
        recurring::judge(self, &runs, &mut found);
        let excused = violation::excuse(&mut found, self.rules.on_their_way);
        found.sort();
        (found, excused)
    }

    fn judge_run(&self, run: &by_run::Run<'_>) -> (BTreeMap<u32, round::Round>, Vec<Violation>) {
        let mut found = Vec::new();
        let rounds = round::judge(run, &self.rules, &mut found);
        record::judge(run, &rounds, &self.rules, &mut found);
        dead_letter::judge(run, &rounds, &mut found);
        call::judge(run, &rounds, &self.rules, &mut found);
        lease::judge(run, &self.rules, &mut found);
        pause::judge(self, run, &mut found);
        (rounds, found)
    }

    /// Panics if anything is wrong with it.
    ///
    /// # Panics
    /// With the number of violations of each kind and the first twenty in full.
    pub fn assert_sound(&self) {
        let found = self.check();
        assert!(found.is_empty(), "{}", violation::report(&found));
    }
}
