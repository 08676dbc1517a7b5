//! What is said of a run: its spans, under the names of OpenTelemetry's conventions for messaging.
//!
//! Those conventions are still in development, so their names stand here once, as constants of our own.

use std::ops::Range;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use longshore_domain::run::{Attempt, PutBack};
use longshore_domain::{Job, Run, RunState, Timestamp};
use opentelemetry::KeyValue;
use opentelemetry::trace::{SpanContext, SpanId, SpanKind, Status, TraceId, TraceState};

use crate::runtime::deferred::Deferred;
use crate::trace::{JobTrace, Submission, Tracer};

mod request;

pub use request::RequestSpan;

const SYSTEM: &str = "messaging.system";
const OPERATION: &str = "messaging.operation.name";
const OPERATION_TYPE: &str = "messaging.operation.type";
const DESTINATION: &str = "messaging.destination.name";
const MESSAGE_ID: &str = "messaging.message.id";
const BODY_SIZE: &str = "messaging.message.body.size";
const CLIENT_ID: &str = "messaging.client.id";
const ERROR_TYPE: &str = "error.type";

const RUN_ID: &str = "longshore.run_id";
const TENANT: &str = "longshore.tenant";
const QUEUE: &str = "longshore.queue";
const TYPE: &str = "longshore.type";
const PRIORITY: &str = "longshore.priority";
const ROUND: &str = "longshore.round";
const ATTEMPT: &str = "longshore.attempt";
const MAX_ATTEMPTS: &str = "longshore.max_attempts";
const STATE: &str = "longshore.state";
const DEFERRED: &str = "longshore.deferred";
const DEDUPLICATED: &str = "longshore.deduplicated";

/// Something that took time, as it is exported.
#[derive(Debug, Clone, PartialEq)]
pub struct Span {
    /// The trace that it belongs to.
    pub trace: TraceId,
    /// Its id.
    pub id: SpanId,
    /// The span that it is a part of; [`SpanId::INVALID`] for none.
    pub parent: SpanId,
    /// Whether that span is another program's.
    pub parent_is_remote: bool,
    /// What the publisher's tracing system has added to the trace.
    pub state: TraceState,
    /// Producer, consumer, server or internal.
    pub kind: SpanKind,
    /// What was done, and to which queue.
    pub name: String,
    /// When it began.
    pub start: SystemTime,
    /// When it ended; not before `start`.
    pub end: SystemTime,
    /// What else is known of it.
    pub attributes: Vec<KeyValue>,
    /// A span that led to this one.
    pub link: Option<SpanContext>,
    /// Whether it failed, and why.
    pub status: Status,
}

/// When and of what kind a span is.
struct SpanTimes {
    id: SpanId,
    parent: SpanId,
    kind: SpanKind,
    name: String,
    start: Timestamp,
    end: Timestamp,
}

fn span_of(trace: &JobTrace, shape: SpanTimes, attributes: Vec<KeyValue>) -> Span {
    let SpanTimes { id, parent, kind, name, start, end } = shape;
    Span {
        trace: trace.id,
        id,
        parent,
        parent_is_remote: parent == trace.parent && !trace.is_own,
        state: trace.state(),
        kind,
        name,
        start: time(start),
        // Clocks of two nodes, or one that was set back.
        end: time(end.max(start)),
        attributes,
        link: None,
        status: Status::Unset,
    }
}

fn time(at: Timestamp) -> SystemTime {
    UNIX_EPOCH + Duration::from_millis(u64::try_from(at.millis()).unwrap_or(0))
}

fn messaging(operation: &'static str, of_type: Option<&'static str>, destination: String) -> Vec<KeyValue> {
    let mut all = Vec::with_capacity(16);
    all.push(KeyValue::new(SYSTEM, "nats"));
    all.push(KeyValue::new(OPERATION, operation));
    all.extend(of_type.map(|of_type| KeyValue::new(OPERATION_TYPE, of_type)));
    all.push(KeyValue::new(DESTINATION, destination));
    all
}

fn of_run(run: &Run, operation: &'static str, of_type: Option<&'static str>, destination: String) -> Vec<KeyValue> {
    let mut all = messaging(operation, of_type, destination);
    all.extend([
        KeyValue::new(MESSAGE_ID, run.run_id.to_string()),
        KeyValue::new(RUN_ID, run.run_id.to_string()),
        KeyValue::new(TENANT, run.tenant.to_string()),
        KeyValue::new(QUEUE, run.queue.to_string()),
        KeyValue::new(TYPE, run.job_type.to_string()),
        KeyValue::new(PRIORITY, i64::from(run.priority.number())),
        KeyValue::new(ROUND, i64::from(run.round)),
    ]);
    all
}

impl Tracer {
    /// Takes a span of this trace, if those are exported.
    fn take_of(&self, trace: &JobTrace, span: impl FnOnce() -> Span) {
        if trace.is_sampled {
            self.take(span);
        }
    }

    /// A job was published whose publisher sent no context: that is the root of its trace.
    pub(crate) fn published(&self, trace: &JobTrace, run: &Run, bytes: usize) {
        self.take_of(trace, || {
            let mut attributes = of_run(run, "send", Some("send"), run.queue.to_string());
            attributes.push(size(bytes));
            let (id, name, start) = (trace.parent, format!("send {}", run.queue), run.origin);
            let shape = SpanTimes { id, parent: SpanId::INVALID, kind: SpanKind::Producer, name, start, end: start };
            span_of(trace, shape, attributes)
        });
    }

    /// The last attempt of a run has ended, and with its start the wait before it.
    pub(crate) fn attempt_ended(&self, trace: &JobTrace, run: &Run, bytes: usize, deferred: Option<Deferred>) {
        let Some(attempt) = run.attempts.last().filter(|_| trace.is_sampled) else { return };
        self.take(|| wait(trace, run, attempt, deferred));
        self.take(|| attempt_of(trace, run, attempt, bytes));
    }

    /// If a run has ended while it waited, its last wait is over.
    pub(crate) fn wait_ended(&self, trace: &JobTrace, run: &Run) {
        if trace.is_sampled && ended_in_wait(run) {
            self.take(|| ended_waiting(trace, run));
        }
    }

    /// The dead letter of a run is stored.
    pub(crate) fn dead_letter(&self, trace: Option<JobTrace>, run: &Run, now: Timestamp) {
        let Some(trace) = trace.filter(|trace| trace.is_sampled) else { return };
        self.take(|| {
            let last = run.attempts_of_round().last();
            let mut attributes = of_run(run, "send", Some("send"), "dead letters".to_owned());
            attributes.extend(run.error.iter().map(|error| KeyValue::new(ERROR_TYPE, error.kind.as_str())));
            let shape = SpanTimes {
                id: trace.dead_letter(run, run.round),
                parent: match last {
                    Some(attempt) => trace.attempt(run, attempt),
                    // That wait is the root.
                    None if trace.is_own => trace.last_wait(run),
                    None => trace.parent,
                },
                kind: SpanKind::Producer,
                name: "send dead letters".to_owned(),
                start: run.state.ended_at().unwrap_or(now),
                end: now,
            };
            span_of(&trace, shape, attributes)
        });
    }

    /// A submission was answered: with its run's id and whether that run was there before, or with an error's word.
    pub(crate) fn submitted(
        &self,
        Submission { trace, above }: &Submission,
        job: &Job,
        answer: Result<(&str, bool), &str>,
        Range { start, end }: Range<Timestamp>,
    ) {
        self.take_of(trace, || {
            let mut attributes = messaging("send", Some("send"), job.queue.to_string());
            attributes.extend([
                KeyValue::new(TENANT, job.tenant.to_string()),
                KeyValue::new(QUEUE, job.queue.to_string()),
                KeyValue::new(TYPE, job.job_type.to_string()),
                KeyValue::new(PRIORITY, i64::from(job.priority.number())),
            ]);
            let mut status = Status::Unset;
            match answer {
                Ok((run_id, deduplicated)) => attributes.extend([
                    KeyValue::new(MESSAGE_ID, run_id.to_owned()),
                    KeyValue::new(RUN_ID, run_id.to_owned()),
                    KeyValue::new(DEDUPLICATED, deduplicated),
                ]),
                Err(word) => {
                    attributes.push(KeyValue::new(ERROR_TYPE, word.to_owned()));
                    status = Status::error(word.to_owned());
                }
            }
            let name = format!("send {}", job.queue);
            let parent = above.unwrap_or(SpanId::INVALID);
            let shape = SpanTimes { id: trace.parent, parent, kind: SpanKind::Producer, name, start, end };
            Span { status, parent_is_remote: above.is_some(), ..span_of(trace, shape, attributes) }
        });
    }

    /// A dead letter was replayed: its job, in a round of its own, is published. The span links the round's dead
    /// letter.
    pub(crate) fn replayed(&self, trace: &JobTrace, run: &Run, Range { start, end }: Range<Timestamp>) {
        self.take_of(trace, || {
            let attributes = of_run(run, "send", Some("send"), run.queue.to_string());
            let name = format!("replay {}", run.queue);
            let shape =
                SpanTimes { id: trace.replay(run), parent: trace.parent, kind: SpanKind::Producer, name, start, end };
            let dead_letter = trace.dead_letter(run, run.round.saturating_sub(1));
            Span { link: Some(trace.context(dead_letter)), ..span_of(trace, shape, attributes) }
        });
    }
}

/// The wait before an attempt: for a worker, for the time of a retry, or for what the run was deferred for.
fn wait(trace: &JobTrace, run: &Run, attempt: &Attempt, deferred: Option<Deferred>) -> Span {
    let before = run.attempts_of_round().filter(|other| other.attempt < attempt.attempt).last();
    let began = deferred.and_then(|deferred| deferred.since);
    let began = began.or(before.and_then(|before| before.ended_at)).or(run.enqueued_at).unwrap_or(attempt.started_at);
    let name = if before.is_some() { "retry wait" } else { "wait" };
    let mut attributes = of_run(run, "wait", None, run.queue.to_string());
    attributes.push(KeyValue::new(ATTEMPT, i64::from(attempt.attempt)));
    attributes.extend(deferred.map(|deferred| KeyValue::new(DEFERRED, deferred.reason.as_str())));
    let shape = SpanTimes {
        id: trace.wait(run, attempt),
        parent: trace.parent,
        kind: SpanKind::Internal,
        name: format!("{name} {}", run.queue),
        start: began.min(attempt.started_at),
        end: attempt.started_at,
    };
    span_of(trace, shape, attributes)
}

fn attempt_of(trace: &JobTrace, run: &Run, attempt: &Attempt, bytes: usize) -> Span {
    let mut attributes = of_run(run, "process", Some("process"), run.queue.to_string());
    attributes.extend([
        size(bytes),
        KeyValue::new(CLIENT_ID, attempt.node.to_string()),
        KeyValue::new(ATTEMPT, i64::from(attempt.attempt)),
        KeyValue::new(MAX_ATTEMPTS, i64::from(run.max_attempts)),
        KeyValue::new(STATE, outcome(run, attempt)),
    ]);
    let mut status = Status::Unset;
    if let Some(error) = &attempt.error {
        attributes.push(KeyValue::new(ERROR_TYPE, error.kind.as_str()));
        status = Status::error(error.message.clone());
    }
    let shape = SpanTimes {
        id: trace.attempt(run, attempt),
        parent: trace.parent,
        kind: SpanKind::Consumer,
        name: format!("process {}", run.queue),
        start: attempt.started_at,
        end: attempt.ended_at.unwrap_or(attempt.started_at),
    };
    Span { status, ..span_of(trace, shape, attributes) }
}

/// What became of the run by the attempt's end.
fn outcome(run: &Run, attempt: &Attempt) -> &'static str {
    match attempt.put_back {
        Some(PutBack::Released) => "released",
        Some(PutBack::Snoozed) => "snoozed",
        Some(PutBack::Busy | PutBack::NotStarted) => "busy",
        None => run.state.name().as_str(),
    }
}

/// Whether a run ended while it waited, for its first attempt or for another. What was discarded had ended before.
fn ended_in_wait(run: &Run) -> bool {
    let Some(ended) = run.state.ended_at().filter(|_| run.state.name() != RunState::Discarded) else { return false };
    run.attempts_of_round().last().is_none_or(|last| last.ended_at.is_some_and(|at| at < ended))
}

/// A run that ended while it waited: expired, invalid, a duplicate, cancelled.
fn ended_waiting(trace: &JobTrace, run: &Run) -> Span {
    let before = run.attempts_of_round().last();
    let mut attributes = of_run(run, "wait", None, run.queue.to_string());
    attributes.push(KeyValue::new(STATE, run.state.name().as_str()));
    let ended = run.state.ended_at().unwrap_or(run.origin);
    let is_retry = before.is_some_and(|attempt| attempt.error.is_some());
    let name = if is_retry { "retry wait" } else { "wait" };
    let began = before.and_then(|attempt| attempt.ended_at).or(run.enqueued_at).unwrap_or(run.origin);
    let shape = SpanTimes {
        id: trace.last_wait(run),
        // Before a first attempt no node has written the root of a trace of its own.
        parent: if trace.is_own && before.is_none() { SpanId::INVALID } else { trace.parent },
        kind: SpanKind::Internal,
        name: format!("{name} {}", run.queue),
        start: began.min(ended),
        end: ended,
    };
    let status = match (&run.error, run.state.name()) {
        (Some(error), _) => Status::error(error.message.clone()),
        (None, RunState::Expired) => Status::error("expired before it was started"),
        (None, _) => Status::Unset,
    };
    attributes.extend(run.error.iter().map(|error| KeyValue::new(ERROR_TYPE, error.kind.as_str())));
    Span { status, ..span_of(trace, shape, attributes) }
}

fn size(bytes: usize) -> KeyValue {
    KeyValue::new(BODY_SIZE, i64::try_from(bytes).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests;
