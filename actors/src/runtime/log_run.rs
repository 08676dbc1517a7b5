//! Log lines about a run: each has the fields by which all lines of a run, of an attempt or of a trace are found.

use longshore_domain::{Job, Run, RunId, Tenant, TraceId};

/// The attempt that a log line is about.
#[derive(Debug, Clone, Copy)]
pub(crate) struct About<'a> {
    pub(crate) run_id: &'a RunId,
    pub(crate) tenant: &'a Tenant,
    pub(crate) attempt: u32,
    pub(crate) trace_id: Option<TraceId>,
}

impl<'a> About<'a> {
    /// The last attempt of a run.
    pub(crate) fn run(run: &'a Run) -> Self {
        Self { run_id: &run.run_id, tenant: &run.tenant, attempt: run.attempt, trace_id: run.trace_id }
    }

    /// An attempt of a job.
    pub(crate) fn job(job: &'a Job, attempt: u32) -> Self {
        Self { run_id: &job.run_id, tenant: &job.tenant, attempt, trace_id: None }
    }

    /// The same, in the trace that the job belongs to.
    pub(crate) fn traced(self, trace_id: Option<TraceId>) -> Self {
        Self { trace_id, ..self }
    }
}

/// `log_run!(warn, About::run(&run), "…")`: as `tracing::warn!("…")`, with the fields of [`About`].
macro_rules! log_run {
    ($level:ident, $about:expr, $($rest:tt)+) => {{
        let about: $crate::runtime::log_run::About<'_> = $about;
        tracing::$level!(
            run_id = %about.run_id,
            tenant = %about.tenant,
            attempt = about.attempt,
            trace_id = about.trace_id.map(tracing::field::display),
            $($rest)+
        )
    }};
}

pub(crate) use log_run;
