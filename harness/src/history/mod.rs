//! The history checker: what was accepted, told, recorded, kept and really done, and what of it breaks the contract.
//!
//! Pure: no clock, no network, no order of its own. It is given everything at once and gives a list of [`Violation`]s,
//! empty if the history is sound: [`History::check`] where all has come to rest, [`History::judge`] where work goes on.
//! Its modules read in this order: `gather` (who is who, and repeats folded), `round` (one round of one run, event by
//! event), `record`, `letter` and `call` (do the others say the same), `lease` (who could hold what, and when), `reading`
//! (what may not be known yet), `violation`. The program `history` (docs/history.md) reads a cluster and asks it.
//!
//! What it proves of each run, from the contract's sections 3 and 4:
//! * an accepted run is not lost: the log tells its end, and its record agrees;
//! * each round ends exactly once, and a further round follows a dead letter only, opened by `replayed`;
//! * in the log's order `enqueued` < `started` < the end, none missing, none told under two ids, none twice with another
//!   content under one id (the same again is allowed: events are told at least once);
//! * attempts count 1, 2, 3 … without gap, never above the limit, the same one starts again only when it was handed back,
//!   and a retry not before its time;
//! * a dead run has one dead letter, any other none, and only a dead letter is `discarded`;
//! * no two calls of one run overlap while the first held its lease; no call was left untold;
//! * no handler is called after its run's end, nor by a node that was frozen while another took the run over;
//! * no attempt is said to have lost its lease whose holder lived and could give signs.
//!
//! Where the contract leaves freedom it takes the side of the accused: a `progress` may come late, `cancelled` may
//! come before anything else was told, an attempt that found no handler may fail without having started.

mod call;
mod gather;
mod lease;
mod letter;
mod reading;
mod record;
mod round;
mod violation;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;

pub use reading::{Judgement, Open, Reading};
pub use violation::{Kind, Violation};

use crate::observe::Logged;
use crate::wire::Record;

/// Everything there is to judge by. What is left empty is not held against anybody, but for events and records.
#[derive(Debug, Clone, Default)]
pub struct History {
    /// The jobs whose acceptance was confirmed to a client.
    pub accepted: Vec<Accepted>,
    /// The event log of all tenants, in its order, repeats included.
    pub events: Vec<Logged>,
    /// Every run record there is.
    pub records: Vec<Record>,
    /// Every dead letter there is.
    pub letters: Vec<Letter>,
    /// What handlers did, as they wrote it down themselves.
    pub calls: Vec<Call>,
    /// What only the driver of the test knows.
    pub rules: Rules,
}

/// A job whose acceptance was confirmed: by JetStream's acknowledgement or an answer of `submit`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Accepted {
    /// Whose it is.
    pub tenant: String,
    /// The run it became.
    pub run_id: String,
    /// When the confirmation came; for people only.
    pub at: Timestamp,
    /// How much of it is kept.
    pub kept: Kept,
}

impl Accepted {
    /// A job of which all is kept, accepted just now.
    pub fn of(tenant: &str, run_id: &str) -> Accepted {
        Accepted { tenant: tenant.to_owned(), run_id: run_id.to_owned(), at: Timestamp::now(), kept: Kept::All }
    }
}

/// The setting `history` of a job's type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Kept {
    /// Record and log of every run.
    #[default]
    All,
    /// Neither record nor log of runs that complete at the first attempt.
    Failures,
}

/// A dead letter, as far as it matters here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Letter {
    /// Whose run it is.
    pub tenant: String,
    /// Which run; empty if it does not say.
    pub run_id: String,
    /// Which round of it, if it says so.
    pub round: Option<u32>,
}

impl From<&crate::observe::Letter> for Letter {
    fn from(letter: &crate::observe::Letter) -> Letter {
        Letter {
            tenant: letter.tenant().to_owned(),
            run_id: letter.run_id().unwrap_or_default(),
            round: letter.round(),
        }
    }
}

/// One call of a handler, by its own account.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// Whose run it was.
    pub tenant: String,
    /// Which run.
    pub run_id: String,
    /// Which round of it.
    pub round: u32,
    /// Which attempt of that round.
    pub attempt: u32,
    /// When it began.
    pub start: Timestamp,
    /// When it ended; `None` if it never did, its process having died.
    pub end: Option<Timestamp>,
    /// The node that ran it, where the handler knows.
    pub node: Option<String>,
}

/// What cannot be read off the wire.
#[derive(Debug, Clone)]
pub struct Rules {
    /// By how much clocks of different machines may differ; zero by default.
    pub clock_skew: Duration,
    /// Runs, as (tenant, run id), that a client hurried or moved (`run_now`, `reschedule`): they may start early.
    pub hurried: BTreeSet<(String, String)>,
    /// When nodes or servers were killed: what a dead node held may be taken at once.
    pub interruptions: Vec<Interruption>,
    /// When nodes could give no sign though they lived. What they held is theirs until the lease is over.
    pub silences: Vec<Silence>,
    /// How long a lease lasts. `None` if that is not known; what is judged by it alone is not judged then.
    pub lease: Option<Duration>,
    /// How much later than it began a call may be written down by its handler. 250 ms by default.
    pub call_delay: Duration,
    /// Whether every handler wrote down every call, so that a run without a call has not run.
    pub calls_complete: bool,
    /// Whether records are kept for longer than the test ran, so that an ended run without one has lost it. True by
    /// default.
    pub records_kept: bool,
}

impl Default for Rules {
    fn default() -> Rules {
        Rules {
            clock_skew: Duration::ZERO,
            hurried: BTreeSet::new(),
            interruptions: Vec::new(),
            silences: Vec::new(),
            lease: None,
            call_delay: Duration::from_millis(250),
            calls_complete: false,
            records_kept: true,
        }
    }
}

/// A node, or the server, killed. (Or frozen, where no lease is given to judge by.)
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interruption {
    /// Which node; `None` for the server, which concerns every lease.
    pub node: Option<String>,
    /// When.
    pub at: Timestamp,
}

/// A time in which a node could give no sign: it was frozen, cut off from the servers, or these were frozen or down.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Silence {
    /// Which node; `None` for all of them, because it was the servers.
    pub node: Option<String>,
    /// When it began.
    pub from: Timestamp,
    /// When it was over.
    pub until: Timestamp,
}

impl History {
    /// Everything that is wrong with this history, by run.
    pub fn check(&self) -> Vec<Violation> {
        let mut found = Vec::new();
        for run in gather::runs(self, &mut found) {
            found.append(&mut self.judge_run(&run).1);
        }
        found.sort();
        found
    }

    fn judge_run(&self, run: &gather::Run<'_>) -> (BTreeMap<u32, round::Round>, Vec<Violation>) {
        let mut found = Vec::new();
        let rounds = round::judge(run, &self.rules, &mut found);
        record::judge(run, &rounds, &self.rules, &mut found);
        letter::judge(run, &rounds, &mut found);
        call::judge(run, &rounds, &self.rules, &mut found);
        lease::judge(run, &self.rules, &mut found);
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
