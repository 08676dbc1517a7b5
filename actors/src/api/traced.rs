//! The span of a submission: which trace it belongs to, and what it is called when it was answered.

use longshore_backbone::Headers;
use longshore_backbone::service::TraceContext;
use longshore_backbone::wire::api::{ApiError, Submitted};
use longshore_domain::Job;

use crate::api::Api;
use crate::runtime::now;
use crate::trace::{Submission, Tracer, context};

tokio::task_local! {
    /// The trace context of the request that is served.
    pub(crate) static OUTER: Option<TraceContext>;
}

/// Begins the span of a job that is submitted with these headers: they name it from then on.
pub(super) fn begun(tracer: &Tracer, headers: &mut Headers) -> Submission {
    let outer = OUTER.try_with(Clone::clone).ok().flatten();
    let submission = Submission::new(tracer, headers, outer.as_ref());
    submission.trace.put(submission.trace.parent, headers);
    context::put_state(submission.trace.state.as_deref(), headers);
    submission
}

/// Passes the trace context of the request on, as it is, to a job whose headers name none: this node writes no traces.
pub(super) fn passed_on(headers: &mut Headers) {
    let outer = OUTER.try_with(Clone::clone).ok().flatten();
    context::pass_on(outer.as_ref(), headers);
}

/// Has a job taken, and writes its span down.
pub(super) async fn written_down(
    api: &Api,
    submission: Option<Submission>,
    job: &Job,
    taken: impl Future<Output = Result<Submitted, ApiError>>,
) -> Result<Submitted, ApiError> {
    let (Some(tracer), Some(submission)) = (&api.tracer, submission) else { return taken.await };
    let began = now();
    let answer = taken.await;
    let submitted = answer.as_ref().map(|taken| (taken.run_id.as_str(), taken.deduplicated));
    tracer.submitted(&submission, job, submitted.map_err(|error| error.error.as_str()), began..now());
    answer
}
