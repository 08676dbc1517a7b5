//! The settings of fairness: between whom a queue's starts are shared out, and by which weights.

use longshore_domain::fairness::FairBy;
use longshore_domain::policy::{QueuePolicy, TenantPolicy, TypePolicy};

use crate::config::schema::Entry;

pub(crate) static QUEUE_FAIR_BY: Entry<FairBy> = Entry::new(
    "fair_by",
    || QueuePolicy::default().fair_by,
    "Between whom the starts are shared out while jobs of several wait: tenants, or types of jobs, by their weight. The same \
     on all nodes.",
);

pub(crate) static TYPE_WEIGHT: Entry<u32> = Entry::new(
    "weight",
    || TypePolicy::default().weight,
    "Its share of what a queue that is fair by type starts while jobs of several types wait there: its weight divided by the \
     weights of all of them. The same on all nodes.",
)
.at_least(|| 1)
.at_most(|| 1_000);

pub(crate) static TENANT_WEIGHT: Entry<u32> = Entry::new(
    "weight",
    || TenantPolicy::default().weight,
    "Its share of what a queue that is fair by tenant starts while jobs of several tenants wait there: its weight divided by the weights of all of \
     them. A tenant with weight 3 has three of its jobs started for each one of a tenant with weight 1. The same on all nodes.",
)
.at_least(|| 1)
.at_most(|| 1_000);
