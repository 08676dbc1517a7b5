//! The result of a chaos run, for people and for the test that asks whether it was sound.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use super::{Chaos, Fault};
use crate::history::Violation;
use crate::standstill::in_seconds;

/// Errors and violations printed in full; beyond that only the number of each kind is printed.
const SHOWN: usize = 40;

/// The result of a run.
#[derive(Debug)]
pub struct Report {
    /// The parameters of the run.
    pub chaos: Chaos,
    /// Jobs whose acceptance was confirmed, by sort.
    pub sorts: BTreeMap<String, usize>,
    /// Runs that have a record: the server may have stored a job though its confirmation was lost.
    pub runs: usize,
    /// Calls of remote handlers, as the handlers wrote them down.
    pub calls: usize,
    /// Calls that repeated work an earlier call had begun, by the fault before them.
    pub again: BTreeMap<String, usize>,
    /// Attempts that failed because their node was gone.
    pub leases_lost: usize,
    /// Calls that a node had on their way when it was frozen, and made when it thawed.
    pub on_their_way: usize,
    /// The most calls at work at once, by concurrency limit.
    pub at_once: BTreeMap<String, usize>,
    /// Pauses of queues and types that were answered.
    pub pauses: usize,
    /// How long the machine itself stood still at most: then leases are lost though no fault says why.
    pub stalled: Duration,
    /// Every fault, in order.
    pub faults: Vec<Fault>,
    /// How long work stood still after each fault.
    pub still: Vec<Duration>,
    /// Jobs that ended in a wrong state, nodes that ended with a failure or by themselves, and answers that no client
    /// should get.
    pub wrong: Vec<String>,
    /// The checker's findings.
    pub violations: Vec<Violation>,
    /// What is known of one run for each kind of violation.
    pub evidence: Vec<String>,
}

impl Report {
    /// Whether nothing is wrong.
    pub fn is_sound(&self) -> bool {
        self.wrong.is_empty() && self.violations.is_empty()
    }

    /// How many violations there are of each kind.
    pub fn violations_by_kind(&self) -> BTreeMap<String, usize> {
        let mut counts = BTreeMap::new();
        for violation in &self.violations {
            *counts.entry(format!("{:?}", violation.kind)).or_default() += 1;
        }
        counts
    }

    fn write_faults(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut by_kind: BTreeMap<&str, Vec<Duration>> = BTreeMap::new();
        for (fault, still) in self.faults.iter().zip(&self.still) {
            by_kind.entry(fault.what).or_default().push(*still);
        }
        writeln!(
            f,
            "faults {}: how long no attempt started (in the middle, at most), calls that repeated work",
            self.faults.len()
        )?;
        for (what, mut still) in by_kind {
            still.sort_unstable();
            let middle = still.get(still.len() / 2).copied().unwrap_or_default();
            let most = still.last().copied().unwrap_or_default();
            let again = self.again.get(what).copied().unwrap_or_default();
            writeln!(f, "  {what} × {}: {}; again {again}", still.len(), in_seconds(&[middle, most]))?;
        }
        let before = self.again.get("before any fault").copied().unwrap_or_default();
        writeln!(f, "  before any fault: again {before}")
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Chaos { seed, jobs, rate, nodes, three_servers, raw_bytes, clocks } = self.chaos;
        let servers = if three_servers { 3 } else { 1 };
        let raw = if raw_bytes { ", raw bytes among them" } else { "" };
        let clocks = if clocks == 0 { String::new() } else { format!(" with clocks {clocks} s off") };
        writeln!(f, "seed {seed}: {jobs} jobs at {rate}/s{raw} on {nodes} nodes{clocks}, {servers} server(s)")?;
        let accepted: usize = self.sorts.values().sum();
        let sorts: Vec<String> = self.sorts.iter().map(|(sort, count)| format!("{sort} {count}")).collect();
        writeln!(f, "accepted {accepted} ({}), runs with a record {}", sorts.join(", "), self.runs)?;
        let again: usize = self.again.values().sum();
        writeln!(f, "calls of remote handlers {}, of those with repeated work {again}", self.calls)?;
        let (lost, on_their_way) = (self.leases_lost, self.on_their_way);
        writeln!(f, "attempts that lost their lease {lost}; calls that a frozen node had on their way {on_their_way}")?;
        let at_once: Vec<String> = self.at_once.iter().map(|(limit, most)| format!("{limit} {most}")).collect();
        writeln!(f, "pauses {}; most at work at once: {}", self.pauses, at_once.join(", "))?;
        writeln!(f, "the machine stood still for at most {} ms", self.stalled.as_millis())?;
        self.write_faults(f)?;
        for wrong in self.wrong.iter().take(SHOWN) {
            writeln!(f, "WRONG: {wrong}")?;
        }
        for violation in self.violations.iter().take(SHOWN) {
            writeln!(f, "VIOLATION: {violation}")?;
        }
        if !self.evidence.is_empty() {
            let faults = self.faults.iter().map(|fault| format!("  {} {}: {}", fault.at, fault.what, fault.whom));
            writeln!(f, "the faults\n{}", faults.collect::<Vec<_>>().join("\n"))?;
        }
        for lines in &self.evidence {
            writeln!(f, "{lines}")?;
        }
        if self.is_sound() {
            return f.write_str("sound");
        }
        let kinds: Vec<String> =
            self.violations_by_kind().iter().map(|(kind, count)| format!("{kind} {count}")).collect();
        write!(f, "NOT SOUND: {} wrong, {} violations ({})", self.wrong.len(), self.violations.len(), kinds.join(", "))
    }
}
