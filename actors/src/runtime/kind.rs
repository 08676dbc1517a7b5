//! Kinds of jobs: those that may start, or have to wait, together.

use longshore_backbone::wire::kind_key::KindKey;
use longshore_domain::{Job, JobType, Tenant};

/// The jobs of one tenant, type and key: they wait for the same gates, and keep their order while they wait.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Kind {
    pub(crate) tenant: Tenant,
    pub(crate) job_type: JobType,
    pub(crate) key: KindKey,
}

impl Kind {
    pub(crate) fn of(job: &Job) -> Self {
        let key = KindKey::of(job.options.as_deref());
        Self { tenant: job.tenant.clone(), job_type: job.job_type.clone(), key }
    }
}

/// How many jobs of a kind could start now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Room {
    /// So many, or a few more than are known of.
    For(usize),
    /// One of all its type's, to find out whether there is a handler.
    Trial,
    /// None, because its handlers have as many as they take.
    HandlersFull,
    /// None for some time.
    NotYet,
}
