//! The circuit breakers of a node, as the actor `circuit-breaker` uses them: which steps are to be written, what was
//! read of the cluster's records, and what the metrics show.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

use longshore_domain::JobType;
use longshore_domain::breaker::record::{Breaker, BreakerKey, BreakerStep, Circuit};

use super::{BreakerTable, Breakers, KnownBreaker, MAX_BREAKERS, kind_of};
use crate::runtime::now;

impl Breakers {
    pub(crate) fn next_number(&self) -> u64 {
        self.steps.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn were_read(&self) {
        if !self.was_read.swap(true, Ordering::Relaxed) {
            self.frees();
        }
    }

    /// Jobs may start that could not before.
    fn frees(&self) {
        self.has_changed.store(true, Ordering::Relaxed);
        self.news.notify();
    }

    /// Begins the steps that are to be written now, at most `max`, and names their breakers; and says whether there may
    /// be more without any further news.
    pub(crate) fn next_steps(&self, max: usize, lease: Duration) -> (Vec<BreakerKey>, bool) {
        let (now, mut table) = (now(), self.table());
        let BreakerTable { views, busy } = &mut *table;
        let mut steps = Vec::new();
        busy.retain(|kind| {
            let (Some(known), Some(policy)) = (views.get_mut(kind), self.policy(&kind.job_type)) else { return false };
            if steps.len() < max && known.view.doing().is_none() {
                let number = self.next_number();
                if known.view.next_step(now, number, policy, lease).is_some() {
                    steps.push(known.of.clone());
                }
            }
            known.view.has_work(now, policy)
        });
        (steps, !busy.is_empty())
    }

    /// The breakers whose steps a former part was writing when it died.
    pub(crate) fn unfinished(&self) -> Vec<BreakerKey> {
        let table = self.table();
        let unfinished = table.views.values().filter(|known| known.view.doing().is_some());
        unfinished.map(|known| known.of.clone()).collect()
    }

    pub(crate) fn doing(&self, of: &BreakerKey) -> Option<(u64, BreakerStep)> {
        self.table().views.get(&kind_of(of))?.view.doing().cloned()
    }

    /// That step is done, or was given up.
    pub(crate) fn settled(&self, of: &BreakerKey) {
        let (mut table, policy) = (self.table(), self.policy(&of.job_type));
        if let (Some(known), Some(policy)) = (table.views.get_mut(&kind_of(of)), policy) {
            known.view.settled(now(), policy);
        }
        drop(table);
        self.frees();
        self.due.notify_one();
    }

    /// The newest record that is known, and its revision.
    pub(crate) fn stored(&self, of: &BreakerKey) -> (Option<Breaker>, u64) {
        self.table().views.get(&kind_of(of)).map_or((None, 0), |known| {
            let (breaker, revision) = known.view.stored();
            (breaker.cloned(), revision)
        })
    }

    pub(crate) fn learned(&self, breaker: Breaker, revision: u64) {
        let Some(policy) = self.policy(&breaker.of.job_type) else { return };
        let mut table = self.table();
        let kind = kind_of(&breaker.of);
        let Some(known) = self.known(&mut table, &breaker.of, &kind) else { return };
        let changed = known.view.learned(breaker, revision, policy);
        drop(table);
        if changed {
            self.frees();
        }
    }

    pub(crate) fn learned_none(&self, of: &BreakerKey) {
        let changed = self.table().views.get_mut(&kind_of(of)).is_some_and(|known| known.view.learned_none());
        if changed {
            self.frees();
        }
    }

    /// Whether a state may have changed since [`Breakers::clean`].
    pub(crate) fn have_changed(&self) -> bool {
        self.has_changed.load(Ordering::Relaxed)
    }

    /// Forgets the breakers that have nothing to remember, and returns the state of the others as metrics have it, by
    /// type: 0 closed, 1 half-open, 2 open; the worst of the type's breakers counts.
    pub(crate) fn clean(&self) -> HashMap<JobType, i64> {
        self.has_changed.store(false, Ordering::Relaxed);
        let (now, mut table) = (now(), self.table());
        let mut states = HashMap::new();
        table.views.retain(|kind, KnownBreaker { view, .. }| {
            let Some(policy) = self.policy(&kind.job_type) else { return false };
            let worst: &mut i64 = states.entry(kind.job_type.clone()).or_default();
            *worst = number_of(view.known(now)).max(*worst);
            !view.is_idle(now, policy)
        });
        self.known.store(table.views.len(), Ordering::Relaxed);
        if table.views.len() < MAX_BREAKERS / 2 {
            self.is_full.store(false, Ordering::Relaxed);
        }
        states
    }
}

/// The state of a breaker as its metric has it.
fn number_of(breaker: Option<&Breaker>) -> i64 {
    match breaker.map(|breaker| &breaker.state) {
        None | Some(Circuit::Closed { .. }) => 0,
        Some(Circuit::HalfOpen { .. }) => 1,
        Some(Circuit::Open { .. }) => 2,
    }
}
