//! Tests of several parts at once, and the job that the tests of each part are about.

mod simulation;

use longshore_domain::{Job, JobType, Priority, Queue, RunId, Tenant};

/// A job of this type and run, without options.
pub(crate) fn job(job_type: &str, run_id: &str) -> Job {
    Job {
        tenant: Tenant::default_tenant(),
        queue: Queue::main(),
        priority: Priority::DEFAULT,
        job_type: JobType::parse(job_type).unwrap(),
        run_id: RunId::parse(run_id).unwrap(),
        options: None,
    }
}
