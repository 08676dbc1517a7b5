//! What one node knows of a breaker, and what it still has to write.
//!
//! The node takes one step at a time: [`View::next_step`] says which, the node writes it, and [`View::settled`] says
//! that it is done. Meanwhile [`View::learned`] takes in every version of the record that the node hears of.

use std::time::Duration;

use super::record::{Breaker, BreakerStep, Circuit};
use super::tally::Tally;
use super::{BreakerPolicy, Signal};
use crate::{SmolStr, Timestamp};

/// A node adds its outcomes to the record at most this often, unless they open the breaker.
pub const COUNTED_EVERY: Duration = Duration::from_millis(150);
/// While a node writes that the breaker opens, it starts no more jobs; but no longer than this, should it be unable to
/// write.
const OPENS_WITHIN: Duration = Duration::from_secs(1);
/// A probe that no job has used after this long is given back.
const PROBE_UNUSED: Duration = Duration::from_secs(2);
/// Probes are renewed when a lease is over by this part.
const PART_OF_LEASE: u32 = 3;

/// What one node knows of a breaker.
#[derive(Debug, Clone, Default)]
pub struct View {
    /// This node, as the record names it.
    writer: SmolStr,
    /// The newest record that it has seen, with its revision; revision 0: none is stored.
    known: Option<Breaker>,
    revision: u64,
    /// Outcomes that are not in any step yet.
    tally: Tally,
    /// Since when the outcomes that the record lacks would open the breaker.
    opens_since: Option<Timestamp>,
    counted_at: Option<Timestamp>,
    /// The step that is being written.
    doing: Option<(u64, BreakerStep)>,
    wants_probe: bool,
    /// Probes of this node that no job has used yet, and since when it has them.
    unused: Vec<(u64, Timestamp)>,
    /// Probes that jobs have used, and those whose jobs have ended.
    used: Vec<u64>,
    ended: Vec<(u64, Signal)>,
    renewed_at: Option<Timestamp>,
}

/// Whether a job may start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// It may; its end is to be reported with this pass.
    Go(Pass),
    /// Not before this time.
    NotBefore(Timestamp),
    /// Not before the breaker changes.
    Wait,
}

/// Says in which period an attempt began, and by which probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Pass {
    /// The period.
    pub period: i64,
    /// The number of the probe, if the breaker was half-open.
    pub probe: Option<u64>,
}

impl View {
    /// Nothing is known of the breaker. `writer` is a name that no other process has.
    pub fn new(writer: SmolStr) -> Self {
        Self { writer, ..Self::default() }
    }

    /// Whether a job may start at `now`. Notes when a probe is needed for it.
    pub fn may_start(&mut self, now: Timestamp, policy: &BreakerPolicy) -> Admission {
        let Some(breaker) = self.known(now) else {
            return if self.is_opening(now) { Admission::Wait } else { Admission::Go(Pass::default()) };
        };
        let period = breaker.period;
        match &breaker.state {
            Circuit::Closed { .. } if self.is_opening(now) => Admission::Wait,
            Circuit::Closed { .. } => Admission::Go(Pass { period, probe: None }),
            Circuit::Open { until, .. } if *until > now => Admission::NotBefore(*until),
            Circuit::Open { .. } | Circuit::HalfOpen { .. } => {
                let offers = breaker.offers_probe(now, policy);
                // A node that stood still may have lost its probe to another, or is about to.
                let is_fresh = |(number, since): &(u64, Timestamp)| {
                    now.since(*since) < PROBE_UNUSED && breaker.has_probe(&self.writer, *number, now)
                };
                let own = self.unused.iter().position(is_fresh);
                if let Some(at) = own {
                    let (number, _) = self.unused.swap_remove(at);
                    self.used.push(number);
                    return Admission::Go(Pass { period, probe: Some(number) });
                }
                self.wants_probe |= offers;
                Admission::Wait
            }
        }
    }

    /// How many jobs could start at `now`, `max` if there is no limit; changes nothing.
    pub fn free(&self, now: Timestamp, policy: &BreakerPolicy, max: usize) -> usize {
        match self.known(now) {
            _ if self.is_opening(now) => 0,
            Some(breaker) if !breaker.is_closed() => {
                self.unused.len().max(usize::from(breaker.offers_probe(now, policy))).min(max)
            }
            _ => max,
        }
    }

    /// When an open breaker has cooled down, if that is still to come.
    pub fn opens_at(&self, now: Timestamp) -> Option<Timestamp> {
        match self.known(now)?.state {
            Circuit::Open { until, .. } => Some(until).filter(|until| *until > now),
            _ => None,
        }
    }

    /// The newest record that the node has seen; `None` if there is none, or it is no longer kept.
    pub fn known(&self, now: Timestamp) -> Option<&Breaker> {
        self.known.as_ref().filter(|breaker| !breaker.is_forgotten(now))
    }

    /// The newest record and its revision, as a compare-and-set needs them.
    pub fn stored(&self) -> (Option<&Breaker>, u64) {
        (self.known.as_ref(), self.revision)
    }

    /// An attempt has ended that began with this pass.
    pub fn ended(&mut self, pass: Pass, signal: Signal, now: Timestamp, policy: &BreakerPolicy) {
        if let Some(number) = pass.probe {
            let before = self.used.len();
            self.used.retain(|used| *used != number);
            if self.used.len() < before {
                self.ended.push((number, signal));
            }
            return;
        }
        let (period, closed) = self.known(now).map_or((0, true), |breaker| (breaker.period, breaker.is_closed()));
        if !closed || period != pass.period || signal == Signal::Neutral {
            return;
        }
        self.tally.add(signal == Signal::Success, now, policy.ratio.map(|_| policy.window));
        if self.opens(policy) {
            self.opens_since.get_or_insert(now);
        } else if self.tally.has_successes() && self.before() == 0 && self.tally.in_a_row_after(0) == 0 {
            self.tally.forget_order();
        }
    }

    /// Whether the outcomes that the record lacks open the breaker, by failures in a row.
    fn opens(&self, policy: &BreakerPolicy) -> bool {
        let stored = self.known.as_ref().map_or(0, Breaker::failures_in_a_row);
        let doing = match &self.doing {
            Some((_, BreakerStep::Count { tally, .. })) => tally.longest_after(stored),
            _ => 0,
        };
        doing.max(self.tally.longest_after(self.before())) >= policy.failures
    }

    /// Failures in a row before those that are not in any step yet.
    fn before(&self) -> u32 {
        let stored = self.known.as_ref().map_or(0, Breaker::failures_in_a_row);
        match &self.doing {
            Some((_, BreakerStep::Count { tally, .. })) => tally.in_a_row_after(stored),
            _ => stored,
        }
    }

    /// Whether this node is about to write that the breaker opens.
    fn is_opening(&self, now: Timestamp) -> bool {
        self.opens_since.is_some_and(|since| now.since(since) < OPENS_WITHIN)
    }

    /// The step to be written now, which gets this number; `lease` is that of probes.
    pub fn next_step(
        &mut self,
        now: Timestamp,
        number: u64,
        policy: &BreakerPolicy,
        lease: Duration,
    ) -> Option<&(u64, BreakerStep)> {
        if self.doing.is_some() {
            return None;
        }
        self.doing = Some((number, self.choose(now, policy, lease)?));
        self.doing.as_ref()
    }

    fn choose(&mut self, now: Timestamp, policy: &BreakerPolicy, lease: Duration) -> Option<BreakerStep> {
        if let Some((number, signal)) = self.ended.pop() {
            return Some(BreakerStep::EndProbe { number, signal });
        }
        if let Some(at) = self.unused.iter().position(|(_, since)| now.since(*since) >= PROBE_UNUSED) {
            let (number, _) = self.unused.swap_remove(at);
            return Some(BreakerStep::EndProbe { number, signal: Signal::Neutral });
        }
        let has_probes = !self.unused.is_empty() || !self.used.is_empty();
        let renewal_due = self.renewed_at.is_none_or(|at| now.since(at) >= lease / PART_OF_LEASE);
        if has_probes && renewal_due {
            self.renewed_at = Some(now);
            return Some(BreakerStep::RenewProbes);
        }
        let (period, offers) = self.known(now).map_or((0, false), |it| (it.period, it.offers_probe(now, policy)));
        if std::mem::take(&mut self.wants_probe) && offers {
            self.renewed_at = if has_probes { self.renewed_at } else { Some(now) };
            return Some(BreakerStep::TakeProbe { period });
        }
        if !self.is_worth_counting(now, policy) {
            return None;
        }
        let last = self.counted_at.filter(|_| self.opens_since.is_none());
        if last.is_some_and(|at| now.since(at) < COUNTED_EVERY) {
            return None;
        }
        self.counted_at = Some(now);
        Some(BreakerStep::Count { period, tally: std::mem::take(&mut self.tally) })
    }

    /// Whether the record must have the outcomes that are not in any step yet. Without failures anywhere, successes
    /// change nothing.
    fn is_worth_counting(&self, now: Timestamp, policy: &BreakerPolicy) -> bool {
        let stored = self.known(now).map(|breaker| breaker.totals(now, policy)).unwrap_or_default();
        let own = self.tally.window.totals(now, policy.window);
        self.tally.has_failures()
            || (self.tally.has_successes() && self.before() > 0)
            || own.failures > 0
            || (own.calls > 0 && stored.failures > 0)
    }

    /// The step that is being written, with its number.
    pub fn doing(&self) -> Option<&(u64, BreakerStep)> {
        self.doing.as_ref()
    }

    /// Whether there is, or soon may be, a step to write.
    pub fn has_work(&self, now: Timestamp, policy: &BreakerPolicy) -> bool {
        let probes = [self.unused.is_empty(), self.used.is_empty(), self.ended.is_empty()];
        self.doing.is_some()
            || probes.contains(&false)
            || self.wants_probe
            || self.opens_since.is_some()
            || self.is_worth_counting(now, policy)
    }

    /// Takes in a version of the record, with its revision; an older one than it knows changes nothing. Says whether
    /// the state has changed.
    pub fn learned(&mut self, breaker: Breaker, revision: u64, policy: &BreakerPolicy) -> bool {
        if revision <= self.revision {
            return false;
        }
        let changed = self.known.as_ref().map_or(0, |known| known.period) != breaker.period;
        self.revision = revision;
        self.known = Some(breaker);
        if changed {
            self.begin_period();
        } else if !self.opens(policy) {
            self.opens_since = None;
        }
        changed
    }

    /// No record is stored any more: it was not kept longer.
    pub fn learned_none(&mut self) -> bool {
        let changed = self.known.as_ref().is_some_and(|known| known.period != 0);
        (self.known, self.revision) = (None, 0);
        if changed {
            self.begin_period();
        }
        changed
    }

    /// What was counted, and which probes there were, says nothing any more.
    fn begin_period(&mut self) {
        (self.tally, self.opens_since, self.wants_probe) = (Tally::default(), None, false);
        self.unused.clear();
        self.used.clear();
        self.ended.clear();
    }

    /// The step that was being written is done, or was given up; what came of it has been learned.
    pub fn settled(&mut self, now: Timestamp, policy: &BreakerPolicy) {
        let Some((number, step)) = self.doing.take() else { return };
        let took = |breaker: &Breaker| breaker.has_probe(&self.writer, number, now);
        if matches!(step, BreakerStep::TakeProbe { .. }) && self.known.as_ref().is_some_and(took) {
            self.unused.push((number, now));
        }
        if !self.opens(policy) {
            self.opens_since = None;
        }
    }

    /// Whether nothing here is worth remembering at `now`.
    pub fn is_idle(&self, now: Timestamp, policy: &BreakerPolicy) -> bool {
        let counted = self.tally.window.totals(now, policy.window).calls > 0;
        self.known(now).is_none() && !counted && self.tally.is_empty() && !self.has_work(now, policy)
    }
}
