//! The record of a breaker: what the whole cluster knows of it, and the steps that change it.
//!
//! A step is judged on the record as it is, and its result is written only if the record is still the same; else it is
//! judged again. Each writer numbers its steps, and the record remembers the last number of each, so that a step whose
//! confirmation was lost is not done twice.

use std::collections::BTreeMap;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::tally::{OutcomeWindow, Tally, Totals};
use super::{BreakerPolicy, Signal};
use crate::{JobType, SmolStr, Tenant, Timestamp};

/// A closed breaker is forgotten when nothing was written for this long: until then its failures in a row count.
const CLOSED_KEPT: Duration = Duration::from_secs(3_600);
/// A breaker that is not closed is forgotten when no job has asked for this long after it cooled down.
const OPEN_KEPT: Duration = Duration::from_secs(7 * 86_400);
/// The last steps of writers are remembered for this long: far longer than any step is tried.
const WRITERS_KEPT: Duration = Duration::from_secs(600);

/// The breaker of a tenant and type, or of one of its limit keys.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct BreakerKey {
    /// The tenant.
    pub tenant: Tenant,
    /// The type.
    #[serde(rename = "type")]
    pub job_type: JobType,
    /// The limit key, if each has a breaker of its own and the job has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<SmolStr>,
}

/// The record of a breaker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Breaker {
    /// Which breaker.
    #[serde(flatten)]
    pub of: BreakerKey,
    /// Its state.
    #[serde(flatten)]
    pub state: Circuit,
    /// Identifies the time since the last change of state; 0 if there was none.
    pub period: i64,
    /// Since when it is in this state.
    pub since: Timestamp,
    /// When the record was last written.
    pub written_at: Timestamp,
    #[serde(default)]
    writers: BTreeMap<SmolStr, LastStep>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct LastStep {
    number: u64,
    at: Timestamp,
}

/// The state of a breaker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum Circuit {
    /// Jobs start.
    Closed {
        /// Failures in a row, up to now.
        failures: u32,
        /// All outcomes of the window, if the share of failures counts.
        #[serde(default)]
        window: OutcomeWindow,
    },
    /// No job starts before `until`.
    Open {
        /// When it has cooled down.
        until: Timestamp,
        /// How often it opened without having closed.
        times: u32,
        /// What opened it.
        cause: Cause,
        /// The failures that opened it: in a row or, if the share of failures did, within the window. A failed probe is
        /// one more.
        #[serde(default)]
        failures: u32,
    },
    /// Some jobs start as probes of the service.
    HalfOpen {
        /// How often it opened without having closed.
        times: u32,
        /// Probes that succeeded.
        successes: u32,
        /// Probes whose end is not known yet.
        probes: Vec<Probe>,
        /// The failures that opened it.
        #[serde(default)]
        failures: u32,
    },
}

crate::named! {
    /// What opened a breaker.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    #[serde(rename_all = "snake_case")]
    pub enum Cause {
        /// Failures in a row.
        Failures = "failures",
        /// The share of failures.
        Ratio = "ratio",
        /// A probe that failed.
        Probe = "probe",
        /// An operator.
        Trip = "trip",
    }
}

/// A permit to start one job while the breaker is half-open. It is leased: the probe of a holder that died comes back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Probe {
    /// The writer that has it.
    pub holder: SmolStr,
    /// The number of the step that took it.
    pub number: u64,
    /// When it is lost, unless it is renewed.
    pub until: Timestamp,
}

/// A change of a breaker's record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BreakerStep {
    /// Adds outcomes of attempts that began in this period.
    Count {
        /// The period.
        period: i64,
        /// The outcomes.
        tally: Tally,
    },
    /// Takes a probe; half-opens a breaker that has cooled down.
    TakeProbe {
        /// The period.
        period: i64,
    },
    /// A probe of this writer is over.
    EndProbe {
        /// The number of the step that took it.
        number: u64,
        /// What its end says.
        signal: Signal,
    },
    /// Renews the leases of this writer's probes.
    RenewProbes,
    /// Opens it, whatever its state.
    Trip {
        /// When it has cooled down; `None`: after the cool-down of its settings.
        until: Option<Timestamp>,
    },
    /// Closes it, whatever its state.
    Reset,
}

/// Who takes a step, when, and by which settings.
#[derive(Debug, Clone, Copy)]
pub struct By<'a> {
    /// The writer: a name that no other process has.
    pub writer: &'a SmolStr,
    /// The step's number; each writer counts up.
    pub number: u64,
    /// Now.
    pub now: Timestamp,
    /// Evenly distributed in 0 ≤ chance < 1.
    pub chance: f64,
    /// The settings.
    pub policy: &'a BreakerPolicy,
    /// How long a probe is leased.
    pub lease: Duration,
}

impl Breaker {
    /// A closed breaker without any outcome.
    pub fn new(of: BreakerKey, now: Timestamp) -> Self {
        let state = Circuit::Closed { failures: 0, window: OutcomeWindow::default() };
        Self { of, state, period: 0, since: now, written_at: now, writers: BTreeMap::new() }
    }

    /// The breaker after `step`; `None` if it changes nothing, or was done before.
    #[must_use]
    pub fn after(&self, step: &BreakerStep, by: By<'_>) -> Option<Self> {
        if self.has_done(by.writer, by.number) {
            return None;
        }
        let mut next = self.clone();
        match step {
            BreakerStep::Count { period, tally } => next.count(*period, tally, by)?,
            BreakerStep::TakeProbe { period } => next.take_probe(*period, by)?,
            BreakerStep::EndProbe { number, signal } => next.end_probe(*number, *signal, by)?,
            BreakerStep::RenewProbes => next.renew_probes(by)?,
            BreakerStep::Trip { until } => {
                let until = until.unwrap_or_else(|| by.now.plus(by.policy.cool_down(1, by.chance)));
                let failures = next.failures();
                next.change(Circuit::Open { until, times: 1, cause: Cause::Trip, failures }, by.now);
            }
            BreakerStep::Reset => next.close(by.now),
        }
        next.written_at = by.now;
        next.writers.retain(|_, last| by.now.since(last.at) < WRITERS_KEPT);
        next.writers.insert(by.writer.clone(), LastStep { number: by.number, at: by.now });
        Some(next)
    }

    /// Whether the record has this step of this writer.
    pub fn has_done(&self, writer: &SmolStr, number: u64) -> bool {
        self.writers.get(writer).is_some_and(|last| last.number >= number)
    }

    fn count(&mut self, of_period: i64, tally: &Tally, by: By<'_>) -> Option<()> {
        let Circuit::Closed { failures, window } = &mut self.state else { return None };
        if self.period != of_period || tally.is_empty() {
            return None;
        }
        window.add_all(&tally.window, by.now, by.policy.window);
        let longest = tally.longest_after(*failures);
        *failures = tally.in_a_row_after(*failures);
        let reaches = |ratio| window.totals(by.now, by.policy.window).reach(ratio, by.policy.min_calls);
        let (cause, failures) = match by.policy.ratio {
            _ if longest >= by.policy.failures => (Cause::Failures, longest),
            Some(ratio) if reaches(ratio) => (Cause::Ratio, window.totals(by.now, by.policy.window).failures),
            _ => return Some(()),
        };
        self.open(1, cause, failures, by);
        Some(())
    }

    fn take_probe(&mut self, of_period: i64, by: By<'_>) -> Option<()> {
        if self.period != of_period {
            return None;
        }
        match self.state {
            Circuit::Open { until, times, failures, .. } if until <= by.now => {
                self.change(Circuit::HalfOpen { times, successes: 0, probes: Vec::new(), failures }, by.now);
            }
            Circuit::HalfOpen { .. } => {}
            Circuit::Open { .. } | Circuit::Closed { .. } => return None,
        }
        let Circuit::HalfOpen { successes, probes, .. } = &mut self.state else { return None };
        probes.retain(|probe| probe.until > by.now);
        if !is_probe_left(*successes, probes.len(), by.policy) {
            return None;
        }
        let until = by.now.plus(by.lease);
        probes.push(Probe { holder: by.writer.clone(), number: by.number, until });
        Some(())
    }

    fn end_probe(&mut self, number: u64, signal: Signal, by: By<'_>) -> Option<()> {
        let Circuit::HalfOpen { times, successes, probes, failures } = &mut self.state else { return None };
        // A probe that is not there was lost: another has taken its place.
        let at = probes.iter().position(|probe| probe.number == number && probe.holder == *by.writer)?;
        probes.remove(at);
        let (times, failures) = (*times, *failures);
        match signal {
            Signal::Neutral => {}
            Signal::Failure => self.open(times.saturating_add(1), Cause::Probe, failures.saturating_add(1), by),
            Signal::Success => {
                *successes = successes.saturating_add(1);
                if *successes >= by.policy.probes {
                    self.close(by.now);
                }
            }
        }
        Some(())
    }

    fn renew_probes(&mut self, by: By<'_>) -> Option<()> {
        let Circuit::HalfOpen { probes, .. } = &mut self.state else { return None };
        let mut own = probes.iter_mut().filter(|probe| probe.holder == *by.writer).peekable();
        own.peek()?;
        own.for_each(|probe| probe.until = by.now.plus(by.lease));
        Some(())
    }

    fn open(&mut self, times: u32, cause: Cause, failures: u32, by: By<'_>) {
        let until = by.now.plus(by.policy.cool_down(times, by.chance));
        self.change(Circuit::Open { until, times, cause, failures }, by.now);
    }

    fn close(&mut self, now: Timestamp) {
        self.change(Circuit::Closed { failures: 0, window: OutcomeWindow::default() }, now);
    }

    fn change(&mut self, state: Circuit, now: Timestamp) {
        self.state = state;
        self.period = now.millis().max(self.period.saturating_add(1));
        self.since = now;
    }

    /// Whether jobs start as usual.
    pub fn is_closed(&self) -> bool {
        matches!(self.state, Circuit::Closed { .. })
    }

    /// Whether a probe may be taken at `now`.
    pub fn offers_probe(&self, now: Timestamp, policy: &BreakerPolicy) -> bool {
        match &self.state {
            Circuit::Closed { .. } => false,
            Circuit::Open { until, .. } => *until <= now,
            Circuit::HalfOpen { successes, probes, .. } => {
                let out = probes.iter().filter(|probe| probe.until > now).count();
                is_probe_left(*successes, out, policy)
            }
        }
    }

    /// Whether this writer has this probe at `now`.
    pub fn has_probe(&self, writer: &SmolStr, number: u64, now: Timestamp) -> bool {
        let Circuit::HalfOpen { probes, .. } = &self.state else { return false };
        probes.iter().any(|probe| probe.number == number && probe.holder == *writer && probe.until > now)
    }

    /// Failures in a row while it is closed, and those that opened it while it is not.
    pub fn failures(&self) -> u32 {
        let (Circuit::Closed { failures, .. } | Circuit::Open { failures, .. } | Circuit::HalfOpen { failures, .. }) =
            self.state;
        failures
    }

    /// Failures in a row of a closed breaker.
    pub fn failures_in_a_row(&self) -> u32 {
        if let Circuit::Closed { failures, .. } = &self.state { *failures } else { 0 }
    }

    /// The outcomes in the window of a closed breaker.
    pub fn totals(&self, now: Timestamp, policy: &BreakerPolicy) -> Totals {
        match &self.state {
            Circuit::Closed { window, .. } => window.totals(now, policy.window),
            _ => Totals::default(),
        }
    }

    /// For how long the record is kept after it was written.
    pub fn kept(&self) -> Duration {
        match self.state {
            Circuit::Closed { .. } => CLOSED_KEPT,
            Circuit::Open { until, .. } => OPEN_KEPT.saturating_add(until.since(self.written_at)),
            Circuit::HalfOpen { .. } => OPEN_KEPT,
        }
    }

    /// Whether the record is no longer kept: the breaker is closed then, and has no outcomes.
    pub fn is_forgotten(&self, now: Timestamp) -> bool {
        now.since(self.written_at) >= self.kept()
    }
}

/// Whether another probe may start. As many succeed as may start, so none starts without need.
fn is_probe_left(successes: u32, out: usize, policy: &BreakerPolicy) -> bool {
    successes as usize + out < policy.probes as usize
}
