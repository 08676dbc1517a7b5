//! What really happened in a world, and which promise that breaks. It counts plainly, without the rules' own code.

use std::collections::{BTreeMap, HashMap, HashSet};

use longshore_domain::breaker::record::{Breaker, BreakerStep, Circuit};
use longshore_domain::{SmolStr, Timestamp};

use crate::{KNOWN_WITHIN, POLICY_FAILURES, PROBES};

/// Of one period.
#[derive(Default)]
struct Period {
    /// Failures of attempts that began in it, on any node, reported by now.
    failures: u64,
    /// Probes that started, those that succeeded, were given back, or were lost with their holder.
    started: u64,
    succeeded: u64,
    given_back: u64,
    lost: u64,
}

#[derive(Default)]
pub(crate) struct Ledger {
    periods: BTreeMap<i64, Period>,
    /// Steps that are in the record.
    done: HashSet<(SmolStr, u64)>,
    /// Steps that nodes believe to be done, with their periods.
    settled: HashMap<(SmolStr, u64), i64>,
    /// Since when the breaker is open, and until when.
    open: Option<(Timestamp, Timestamp)>,
    /// Failures in a row in the record, counted from the steps.
    in_a_row: u32,
    broken: Option<String>,
    pub(crate) opened: u64,
    pub(crate) closed: u64,
}

impl Ledger {
    pub(crate) fn breaks(&mut self, what: impl FnOnce() -> String) {
        self.broken.get_or_insert_with(what);
    }

    pub(crate) fn broken(&self) -> Option<&String> {
        self.broken.as_ref()
    }

    /// An attempt that began in this period has failed.
    pub(crate) fn failed(&mut self, period: i64) {
        self.periods.entry(period).or_default().failures += 1;
    }

    /// An attempt starts.
    pub(crate) fn starts(&mut self, at: Timestamp, pass: longshore_domain::breaker::view::Pass, probes_alive: usize) {
        if let Some((since, until)) = self.open
            && at > since.plus(KNOWN_WITHIN)
            && at < until
        {
            self.breaks(|| format!("an attempt starts at {at:?}, though the breaker is open since {since:?}"));
        }
        if pass.probe.is_none() {
            return;
        }
        let of = self.periods.entry(pass.period).or_default();
        of.started += 1;
        let allowed = u64::from(PROBES) + of.given_back + of.lost;
        let started = of.started;
        if started > allowed {
            self.breaks(|| format!("{started} probes of one period, {allowed} are allowed"));
        }
        if probes_alive > PROBES as usize {
            self.breaks(|| format!("{probes_alive} probes run at once"));
        }
    }

    /// A step was written.
    pub(crate) fn written(
        &mut self,
        (before, after): (&Breaker, &Breaker),
        (writer, number): (&SmolStr, u64),
        step: &BreakerStep,
        now: Timestamp,
    ) {
        if !self.done.insert((writer.clone(), number)) {
            self.breaks(|| format!("step {number} of {writer} was done twice"));
        }
        match step {
            BreakerStep::Count { period, tally } => {
                if *period != before.period {
                    self.breaks(|| "outcomes of another period were counted".to_owned());
                }
                let longest = tally.longest_after(self.in_a_row);
                self.in_a_row = tally.in_a_row_after(self.in_a_row);
                if after.is_closed() && (longest >= POLICY_FAILURES || after.failures_in_a_row() != self.in_a_row) {
                    let (row, counted) = (self.in_a_row, after.failures_in_a_row());
                    self.breaks(|| format!("{row} failures in a row, {longest} at most; the record has {counted}"));
                }
            }
            BreakerStep::TakeProbe { .. } => {
                if let Circuit::Open { until, .. } = before.state
                    && now < until
                {
                    self.breaks(|| "half-open before it had cooled down".to_owned());
                }
                // Those that are gone, except the one that was just taken, were lost.
                let count = |breaker: &Breaker| match &breaker.state {
                    Circuit::HalfOpen { probes, .. } => probes.len() as u64,
                    _ => 0,
                };
                self.periods.entry(after.period).or_default().lost += (count(before) + 1).saturating_sub(count(after));
            }
            BreakerStep::EndProbe { signal, .. } => {
                let of = self.periods.entry(before.period).or_default();
                match signal {
                    longshore_domain::breaker::Signal::Success => of.succeeded += 1,
                    longshore_domain::breaker::Signal::Neutral => of.given_back += 1,
                    longshore_domain::breaker::Signal::Failure => {}
                }
                let succeeded = of.succeeded;
                if after.is_closed() && succeeded != u64::from(PROBES) {
                    self.breaks(|| format!("closed after {succeeded} probes"));
                }
            }
            _ => {}
        }
        if before.period != after.period {
            self.in_a_row = 0;
            self.opened += u64::from(matches!(after.state, Circuit::Open { .. }));
            self.closed += u64::from(after.is_closed());
            self.open = match after.state {
                Circuit::Open { until, .. } => Some((after.written_at, until)),
                _ => None,
            };
        }
    }

    /// A node believes that a step that counts is done; it was taken in this period.
    pub(crate) fn settled(&mut self, writer: &SmolStr, number: u64, period: i64, stored: Option<&Breaker>) {
        self.settled.insert((writer.clone(), number), period);
        let is_over = stored.map_or(0, |breaker| breaker.period) != period;
        if !is_over && !self.done.contains(&(writer.clone(), number)) {
            self.breaks(|| format!("step {number} of {writer} was lost"));
        }
    }

    /// The failures that the record has counted in its window are those that were reported, at most.
    pub(crate) fn counted(&mut self, period: i64, failures: u32, exactly: bool) {
        let counted_here = self.periods.get(&period).map_or(0, |of| of.failures);
        let counted = u64::from(failures);
        if counted > counted_here || (exactly && counted != counted_here) {
            self.breaks(|| format!("{counted_here} failures of the period were reported, {counted} are counted"));
        }
    }
}
