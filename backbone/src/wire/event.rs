//! Lifecycle events as JSON, written by hand: every job has three. An event is one line: handlers' JSON is copied as
//! the run has it, and the run has it compact (`record::keep`, `json::compact`).

use longshore_domain::Run;
use longshore_domain::events::{Event, EventKind};
use longshore_domain::run::{RunResult, whole_millis};

use super::json::{field, number, quoted, text, time};

/// Maximum bytes of a result that an event repeats.
pub const RESULT_MAX: usize = 4 * 1024;

/// Writes one event, without a line break. `node` is the node that publishes it, which is named if no record says which
/// node decided what the event reports.
pub fn write(event: &Event<'_>, node: &str, out: &mut Vec<u8>) {
    let run = event.run;
    let (in_id, nth) = event.numbers();
    // Names have no character that JSON would escape; everything else goes through the encoder.
    text(out, &[r#"{"v":1,"id":""#, run.tenant.as_str(), "/", run.run_id.as_str(), "/"]);
    number(out, u64::from(run.round));
    out.push(b'/');
    number(out, u64::from(in_id));
    text(out, &["/", event.kind.as_str()]);
    if nth > 1 {
        out.push(b'/');
        number(out, u64::from(nth));
    }
    text(out, &[r#"","event":""#, event.kind.as_str(), r#"","run_id":""#, run.run_id.as_str()]);
    text(out, &[r#"","tenant":""#, run.tenant.as_str(), r#"","queue":""#, run.queue.as_str(), r#"","priority":"#]);
    number(out, u64::from(run.priority.number()));
    text(out, &[r#","type":""#, run.job_type.as_str(), "\""]);
    field(out, "round", &run.round);
    field(out, "attempt", &event.attempt);
    field(out, "max_attempts", &run.max_attempts);
    time(out, "at", Some(event.at));
    text(out, &[r#","node":"#]);
    quoted(out, event.node().map_or(node, |decided| decided));
    write_details(event, out);
    if !run.tags.is_empty() {
        field(out, "tags", &run.tags);
    }
    out.push(b'}');
}

fn write_details(event: &Event<'_>, out: &mut Vec<u8>) {
    let Event { run, kind, of, reason, .. } = event;
    if let Some(reason) = reason {
        field(out, "reason", reason);
    }
    let took = of.and_then(|attempt| Some(attempt.ended_at?.since(attempt.started_at)));
    if let Some(took) = took.filter(|_| !matches!(kind, EventKind::Started)) {
        field(out, "duration_ms", &whole_millis(took));
    }
    match kind {
        EventKind::Scheduled | EventKind::Deferred => event.run_at().iter().for_each(|at| field(out, "run_at", at)),
        EventKind::Failed => {
            if let Some(attempt) = of {
                attempt.retry_at.iter().for_each(|at| field(out, "retry_at", at));
                attempt.error.iter().for_each(|error| field(out, "error", error));
            }
        }
        EventKind::Completed => write_result(run, out),
        EventKind::Dlq => run.error.iter().for_each(|error| field(out, "error", error)),
        EventKind::Cancelled if event.reason.is_some() => run.error.iter().for_each(|error| field(out, "error", error)),
        EventKind::Duplicate => run.state.duplicate_of().iter().for_each(|of| field(out, "duplicate_of", of)),
        EventKind::Log => run.log.last().iter().for_each(|last| field(out, "line", &last.line)),
        EventKind::StepCompleted => {
            if let Some(step) = run.steps.last() {
                text(out, &[r#","step":{"name":"#]);
                quoted(out, &step.name);
                field(out, "n", &step.n);
                out.push(b'}');
            }
        }
        EventKind::Progress => run.progress.iter().for_each(|progress| field(out, "progress", progress)),
        _ => {}
    }
}

fn write_result(run: &Run, out: &mut Vec<u8>) {
    if let Some(RunResult::Json(result)) = run.state.result()
        && result.get().len() <= RESULT_MAX
    {
        field(out, "result", result);
    }
}
