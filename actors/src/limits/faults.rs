//! The faults on purpose that are set, as this node knows them, and how often each has struck here.
//!
//! They are run-time settings: [`RunTimeSettings`](crate::limits::settings::RunTimeSettings) fills this in.
//! While none is set an attempt costs one load.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use longshore_domain::fault::{Fault, FaultKind, Moment};
use longshore_domain::{JobType, Timestamp};

use crate::runtime::Unpoisoned as _;

#[derive(Debug, Default)]
pub(crate) struct Faults {
    any: AtomicBool,
    known: Mutex<Vec<ActiveFault>>,
}

#[derive(Debug, Clone)]
pub(crate) struct ActiveFault {
    pub(crate) job_type: JobType,
    pub(crate) kind: FaultKind,
    pub(crate) fault: Fault,
    /// The revision of its setting: one that is set again counts anew.
    pub(crate) revision: u64,
    pub(crate) struck: u64,
}

impl Faults {
    pub(crate) fn any(&self) -> bool {
        self.any.load(Ordering::Relaxed)
    }

    /// These are all faults.
    pub(crate) fn take_in(&self, all: impl Iterator<Item = ActiveFault>) {
        let mut known = self.known.lock().unpoisoned();
        let before = std::mem::take(&mut *known);
        known.extend(all.map(|new| {
            let same = before.iter().find(|old| old.revision == new.revision);
            ActiveFault { struck: same.map_or(0, |old| old.struck), ..new }
        }));
        self.any.store(!known.is_empty(), Ordering::Relaxed);
    }

    /// The fault that strikes an attempt at this moment, if any does; of several the first by kind.
    pub(crate) fn strike(
        &self,
        job_type: &JobType,
        moment: Moment<'_>,
        now: Timestamp,
        chance: impl Fn() -> f64,
    ) -> Option<(FaultKind, Fault)> {
        let mut known = self.known.lock().unpoisoned();
        let strikes = |of: &&mut ActiveFault| {
            of.job_type == *job_type
                && of.fault.is_for(of.kind, moment)
                && of.fault.holds(now, of.struck)
                && chance() < of.fault.probability
        };
        let fault = known.iter_mut().find(strikes)?;
        fault.struck += 1;
        Some((fault.kind, fault.fault.clone()))
    }

    /// Every fault that is not over, by type and kind.
    pub(crate) fn all(&self, now: Timestamp) -> Vec<ActiveFault> {
        self.known.lock().unpoisoned().iter().filter(|of| now < of.fault.until).cloned().collect()
    }

    /// Those that may still strike here, in words.
    pub(crate) fn in_words(&self, now: Timestamp) -> Vec<String> {
        let known = self.known.lock().unpoisoned();
        let holding = known.iter().filter(|of| of.fault.holds(now, of.struck));
        holding.map(|of| of.fault.in_words(&of.job_type, of.kind)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: i64) -> Timestamp {
        Timestamp::from_millis(millis)
    }

    fn known(kind: FaultKind, probability: f64, limit: Option<u64>, revision: u64) -> ActiveFault {
        let fault = Fault { probability, delay_ms: None, step: None, until: at(100), limit };
        ActiveFault { job_type: JobType::parse("mail").unwrap(), kind, fault, revision, struck: 0 }
    }

    #[test]
    fn a_fault_strikes_its_type_by_chance_until_its_time_or_its_limit() {
        let (faults, mail) = (Faults::default(), JobType::parse("mail").unwrap());
        assert!(!faults.any());
        let two = || [known(FaultKind::Retryable, 0.5, Some(2), 7), known(FaultKind::Hang, 1.0, None, 8)];
        faults.take_in(two().into_iter());
        let strike = |now, chance: f64| Some(faults.strike(&mail, Moment::Instead, at(now), || chance)?.0);
        assert!(faults.any() && faults.strike(&mail, Moment::Before, at(1), || 0.0).is_none());
        assert!(faults.strike(&JobType::parse("call").unwrap(), Moment::Instead, at(1), || 0.0).is_none());
        assert_eq!([0.4, 0.5].map(|chance| strike(1, chance)), [Some(FaultKind::Retryable), Some(FaultKind::Hang)]);
        // They are read again: what has struck stays counted.
        faults.take_in(two().into_iter());
        assert_eq!([strike(1, 0.0), strike(1, 0.0)], [Some(FaultKind::Retryable), Some(FaultKind::Hang)]);
        assert_eq!((faults.all(at(1)).len(), faults.in_words(at(1)).len()), (2, 1));
        assert_eq!((strike(100, 0.0), faults.all(at(100)).len()), (None, 0));
        faults.take_in([known(FaultKind::Retryable, 0.5, Some(2), 9)].into_iter());
        assert_eq!(strike(1, 0.0), Some(FaultKind::Retryable), "it was set anew");
        faults.take_in(std::iter::empty());
        assert!(!faults.any() && strike(1, 0.0).is_none());
    }
}
