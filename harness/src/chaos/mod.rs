//! A chaos run: jobs of every kind on several nodes, while nodes, handlers and the server are killed, frozen and asked to
//! end every few seconds; then the checker judges what came of it.
//!
//! The seed decides which jobs and which faults there are and in which order; how they fall together is up to the
//! machine, so a seed makes a failure likely again, not sure. `producer` brings the jobs, `faults` the trouble.

mod faults;
mod producer;

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use jiff::Timestamp;
use rand::SeedableRng;
use rand::rngs::StdRng;
use tokio::sync::watch;

use crate::history::{Rules, Violation};
use crate::load::Kind;
use crate::publish::Receipt;
use crate::standstill::{in_seconds, standstills};
use crate::wire::EventName;
use crate::world::World;
use faults::Faults;

/// How long all jobs may take to end once the trouble is over.
const ENDS_WITHIN: Duration = Duration::from_secs(300);

/// Clocks on the wire have a grain of 1 ms.
const GRAIN: Duration = Duration::from_millis(2);

/// What a run is to be like.
#[derive(Debug, Clone, Copy)]
pub struct Chaos {
    /// What decides over jobs and faults.
    pub seed: u64,
    /// How many jobs are published.
    pub jobs: usize,
    /// How many of them in a second.
    pub rate: u32,
    /// How many nodes there are.
    pub nodes: usize,
}

impl Chaos {
    /// Runs it in a world of its own.
    ///
    /// # Panics
    /// If something cannot be started, or jobs do not come to their end; with the story of one.
    pub async fn run(self) -> Report {
        let world = World::new().await;
        let mut faults = Faults::new(&world, StdRng::seed_from_u64(self.seed), self.nodes).await;
        let (over, is_over) = watch::channel(false);
        let publish = async {
            let accepted = producer::publish(&world, self).await;
            over.send_replace(true);
            accepted
        };
        let (accepted, ()) = tokio::join!(publish, faults.trouble(is_over));
        faults.settle().await;
        let receipts: Vec<Receipt> = accepted.iter().map(|(_, receipt)| receipt.clone()).collect();
        let ends = world.ends(&receipts, ENDS_WITHIN).await;
        let wrong = accepted.iter().zip(&ends).filter(|((kind, _), state)| kind.end() != *state);
        let wrong = wrong.map(|((kind, receipt), state)| format!("{} ({kind:?}) ended as {state}", receipt.run_id));
        let mut wrong: Vec<String> = wrong.collect();
        wrong.extend(faults.stop().await);
        self.judge(&world, accepted, faults, wrong).await
    }

    async fn judge(
        self,
        world: &World,
        accepted: Vec<(Kind, Receipt)>,
        faults: Faults<'_>,
        wrong: Vec<String>,
    ) -> Report {
        let receipts: Vec<Receipt> = accepted.iter().map(|(_, receipt)| receipt.clone()).collect();
        let mut history = world.history(&receipts, faults.calls()).await;
        let interruptions = faults.interruptions();
        history.rules = Rules { interruptions, clock_skew: GRAIN, ..Rules::default() };
        let mut kinds = BTreeMap::new();
        for (kind, _) in &accepted {
            *kinds.entry(*kind).or_default() += 1;
        }
        let times: Vec<Timestamp> = faults.told.iter().map(|(at, _)| *at).collect();
        let lost = |event: &crate::wire::Event| event.error.as_ref().is_some_and(|error| error.kind == "lease_expired");
        let failed = history.events.iter().filter(|logged| logged.event.event == EventName::Failed);
        Report {
            chaos: self,
            kinds,
            runs: history.records.len(),
            calls: history.calls.len(),
            leases_lost: failed.filter(|logged| lost(&logged.event)).count(),
            still: standstills(&history.events, &times),
            faults: faults.told,
            wrong,
            violations: history.check(),
        }
    }
}

/// What came of a run.
#[derive(Debug)]
pub struct Report {
    /// What it was.
    pub chaos: Chaos,
    /// Jobs whose acceptance was confirmed, by kind.
    pub kinds: BTreeMap<Kind, usize>,
    /// Runs there are records of: a job may be taken though its confirmation was lost.
    pub runs: usize,
    /// Calls of remote handlers.
    pub calls: usize,
    /// Attempts that failed because their node was gone.
    pub leases_lost: usize,
    /// Every fault, in order.
    pub faults: Vec<(Timestamp, String)>,
    /// How long work stood still after each fault.
    pub still: Vec<Duration>,
    /// Jobs that ended otherwise than their kind must, and nodes that did not end well.
    pub wrong: Vec<String>,
    /// What the checker found.
    pub violations: Vec<Violation>,
}

impl Report {
    /// Whether nothing is wrong.
    pub fn is_sound(&self) -> bool {
        self.wrong.is_empty() && self.violations.is_empty()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Chaos { seed, jobs, rate, nodes } = self.chaos;
        writeln!(f, "seed {seed}: {jobs} jobs at {rate}/s on {nodes} nodes")?;
        let accepted: usize = self.kinds.values().sum();
        let kinds: Vec<String> = self.kinds.iter().map(|(kind, count)| format!("{kind:?} {count}")).collect();
        writeln!(f, "accepted {accepted} ({}), runs on record {}", kinds.join(", "), self.runs)?;
        writeln!(f, "calls of remote handlers {}, attempts that lost their lease {}", self.calls, self.leases_lost)?;
        let mut by_kind: BTreeMap<&str, Vec<Duration>> = BTreeMap::new();
        for ((_, what), still) in self.faults.iter().zip(&self.still) {
            by_kind.entry(what.split(':').next().unwrap_or("")).or_default().push(*still);
        }
        writeln!(f, "faults {}, and for how long no attempt started after each:", self.faults.len())?;
        for (what, mut still) in by_kind {
            still.sort_unstable();
            let middle = still.get(still.len() / 2).copied().unwrap_or_default();
            let most = still.last().copied().unwrap_or_default();
            writeln!(f, "  {what} × {}: in the middle, at most: {}", still.len(), in_seconds(&[middle, most]))?;
        }
        for wrong in &self.wrong {
            writeln!(f, "WRONG: {wrong}")?;
        }
        for violation in &self.violations {
            writeln!(f, "VIOLATION: {violation}")?;
        }
        write!(f, "{}", if self.is_sound() { "sound" } else { "NOT SOUND" })
    }
}
