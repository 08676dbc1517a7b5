//! Fairness in a lane: how much of what a queue starts each fairness key is entitled to, and how many of its jobs are
//! to be moved forward for that. A key is a tenant, or a type where a queue is set so.
//!
//! A lane is served in the order of arrival, so a key's first job stands behind everything that came before it. At each
//! *look* a node counts how many jobs of each key wait, and how many began since the look before. The starts of a look
//! are shared out by weight among the keys that have jobs; what one of them cannot use goes to the others
//! ([`entitlements`]). A key whose jobs stand too far back to begin by themselves gets its part by moving its oldest
//! jobs forward.
//!
//! A key that is served in its lane gets nothing moved for small deviations, which are the chance of arrivals and
//! would cost six writes for each job: only once it lacks half of a look's part and at least [`NOTICED`] jobs, or gets
//! less than a quarter of its parts.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Job, JobType, Tenant};

crate::named! {
    /// Between whom a queue's starts are shared out.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
    #[serde(rename_all = "snake_case")]
    pub enum FairBy {
        /// The tenants that have jobs.
        #[default]
        Tenant = "tenant",
        /// The types of jobs, of all tenants.
        Type = "type",
    }
}

/// To whom a share belongs.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum FairnessKey {
    /// To a tenant.
    Tenant(Tenant),
    /// To all jobs of a type.
    Type(JobType),
}

impl FairBy {
    /// Whose share a job counts against.
    #[must_use]
    pub fn key_of(self, job: &Job) -> FairnessKey {
        match self {
            Self::Tenant => FairnessKey::Tenant(job.tenant.clone()),
            Self::Type => FairnessKey::Type(job.job_type.clone()),
        }
    }
}

/// A key whose jobs begin by themselves must lack more than so many before any is moved.
pub const NOTICED: f64 = 32.0;
/// So much of its part a key is paid by moves, if it has more jobs than that. Less than all of it, so that the lane
/// catches up with keys whose jobs are moved only because others of them were before: they are served there again, for
/// nothing.
const PAID: f64 = 0.9;

impl FairnessKey {
    /// Of which kind it is.
    pub fn by(&self) -> FairBy {
        match self {
            Self::Tenant(_) => FairBy::Tenant,
            Self::Type(_) => FairBy::Type,
        }
    }
}

/// What was counted of a key in a lane since the last look.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counted {
    /// Its jobs that are in the lane now.
    pub waiting: u64,
    /// Those that were delivered from the lane.
    pub served: u64,
    /// Those that were delivered after they had been moved forward.
    pub moved_served: u64,
    /// Its weight, 1 or more.
    pub weight: u32,
}

impl Counted {
    fn got(&self) -> u64 {
        self.served + self.moved_served
    }
}

/// How many jobs of a key are to be moved forward.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Owed {
    /// If none of its jobs is near, that is, begins by itself within the next looks.
    pub if_far: u64,
    /// If some do.
    pub if_near: u64,
    /// So many of its jobs began by themselves that more will: whether they do need not be looked up.
    pub is_near: bool,
}

/// What is known of the keys of a lane from one look to the next.
#[derive(Debug, Default)]
pub struct Shares(BTreeMap<FairnessKey, Account>);

/// A key's account with its lane, in jobs.
#[derive(Debug, Clone, Copy)]
struct Account {
    /// How many jobs may be moved for it.
    credit: f64,
    /// What it lacks of its parts so far, or has had too much: the last look counts most, as older deviations are
    /// halved at each look.
    lacks: f64,
    /// Jobs that were moved forward and have not begun, as far as that is known.
    on_their_way: u64,
    /// How many jobs of it a look delivers from the lane, on average: the last looks count most.
    usual: Option<f64>,
}

impl Shares {
    /// Takes in what was counted since the last look; says what each key is owed until the next one, if the lane goes
    /// on as fast as it did.
    pub fn look(&mut self, counted: &BTreeMap<FairnessKey, Counted>) -> BTreeMap<FairnessKey, Owed> {
        self.0.retain(|key, _| counted.contains_key(key));
        let total: u64 = counted.values().map(Counted::got).sum();
        let parts = |demand: fn(&Counted) -> u64| {
            let demands: Vec<(u64, u32)> = counted.values().map(|of| (demand(of), of.weight)).collect();
            entitlements(total, &demands)
        };
        let (had, next) = (parts(|of| of.waiting + of.got()), parts(|of| of.waiting));
        let each = counted.iter().zip(had.into_iter().zip(next));
        each.map(|((key, of), (had, next))| {
            let account = self.0.entry(key.clone()).or_default();
            (key.clone(), account.settle(of, had, next))
        })
        .collect()
    }

    /// So many jobs of a key were moved forward.
    pub fn moved(&mut self, key: &FairnessKey, jobs: u64) {
        let account = self.0.entry(key.clone()).or_default();
        account.on_their_way += jobs;
        account.credit -= jobs as f64;
    }
}

impl Default for Account {
    fn default() -> Self {
        // A part of less than one job must not keep a key's first job waiting.
        Self { credit: 0.5, lacks: 0.0, on_their_way: 0, usual: None }
    }
}

impl Account {
    /// Settles a look in which the key's part was `had`; its part of the next one is `next`.
    fn settle(&mut self, of: &Counted, had: f64, next: f64) -> Owed {
        let can_have_all = next >= of.waiting as f64;
        self.credit = (self.credit + if can_have_all { next } else { PAID * next }).min(next.max(1.0));
        self.lacks = (self.lacks / 2.0 + had - of.got() as f64).clamp(-had, had);
        self.on_their_way = self.on_their_way.saturating_sub(of.moved_served);
        let served = of.served as f64;
        let usual = self.usual.map_or(served, |usual| usual + (served - usual) / 4.0);
        // Nothing is known of a queue that started nothing.
        self.usual = Some(usual).filter(|_| had > 0.0).or(self.usual);
        let on_their_way = self.on_their_way as f64;
        let jobs = |owed: f64| (owed.max(0.0) as u64).min(of.waiting);
        let expected = usual.max(served);
        let lacks = next + self.lacks - on_their_way - expected;
        let is_noticed = lacks > NOTICED.max(next / 2.0) || expected < next / 4.0;
        Owed {
            if_far: jobs(self.credit + self.lacks.min(0.0) - on_their_way),
            if_near: if is_noticed { jobs(lacks) } else { 0 },
            is_near: of.served > 0 && expected >= next / 2.0,
        }
    }
}

/// Shares `total` jobs out by weight among those who want so many each: none gets more than it wants, and what one does
/// not want goes to the others by their weights. A weight of 0 counts as 1.
pub fn entitlements(total: u64, demands: &[(u64, u32)]) -> Vec<f64> {
    let weight = |of: &(u64, u32)| f64::from(of.1.max(1));
    let mut order: Vec<usize> = (0..demands.len()).collect();
    // By how soon a rising level covers the demand: the first one is content with less than the rest can have.
    order.sort_by(|a, b| {
        let level = |at: &usize| demands[*at].0 as f64 / weight(&demands[*at]);
        level(a).total_cmp(&level(b))
    });
    let mut left = total as f64;
    let mut weights: f64 = demands.iter().map(weight).sum();
    let mut parts = vec![0.0; demands.len()];
    for at in order {
        let part = (left * weight(&demands[at]) / weights).min(demands[at].0 as f64);
        parts[at] = part;
        left -= part;
        weights -= weight(&demands[at]);
    }
    parts
}

#[cfg(test)]
mod tests;
