//! The span of a request over HTTP, under the names of OpenTelemetry's conventions for HTTP servers.

use std::sync::Arc;

use longshore_backbone::Headers;
use longshore_backbone::service::TraceContext;
use longshore_domain::Timestamp;
use opentelemetry::KeyValue;
use opentelemetry::trace::{SpanId, SpanKind, Status};

use super::{Span, SpanTimes, span_of};
use crate::runtime::now;
use crate::trace::{Submission, Tracer};

/// A request that is being answered, in the trace of its client or in one of its own.
#[derive(Debug)]
pub struct RequestSpan {
    tracer: Arc<Tracer>,
    submission: Submission,
    began: Timestamp,
}

impl RequestSpan {
    pub(crate) fn begin(tracer: &Arc<Tracer>, outer: Option<&TraceContext>) -> Self {
        let submission = Submission::new(tracer, &Headers::new(), outer);
        Self { tracer: Arc::clone(tracer), submission, began: now() }
    }

    /// What hangs below it gets this as its `traceparent`.
    pub fn traceparent(&self) -> String {
        self.submission.trace.text(self.submission.trace.parent)
    }

    /// The id of its trace, in hexadecimal digits.
    pub fn trace_id(&self) -> String {
        self.submission.trace.id.to_string()
    }

    /// Ends it: the request was answered.
    pub fn end(self, method: &'static str, route: &str, code: u16) {
        let Submission { trace, above } = &self.submission;
        self.tracer.take_of(trace, || {
            let attributes = vec![
                KeyValue::new("http.request.method", method),
                KeyValue::new("http.route", route.to_owned()),
                KeyValue::new("http.response.status_code", i64::from(code)),
            ];
            let shape = SpanTimes {
                id: trace.parent,
                parent: above.unwrap_or(SpanId::INVALID),
                kind: SpanKind::Server,
                name: format!("{method} {route}"),
                start: self.began,
                end: now(),
            };
            // What a client did wrong is no error of the server.
            let status = if code >= 500 { Status::error(code.to_string()) } else { Status::Unset };
            Span { status, parent_is_remote: above.is_some(), ..span_of(trace, shape, attributes) }
        });
    }
}
