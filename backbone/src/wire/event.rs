//! Lifecycle events as JSON, written out by hand: there are three for every job.

use std::io::Write as _;

use longshore_domain::Run;
use longshore_domain::story::{Event, EventKind};

/// Most bytes of a result that an event repeats.
pub const RESULT_MAX: usize = 4 * 1024;

/// Writes one event, without a line break. `node` is who tells it.
pub fn write(event: &Event<'_>, node: &str, out: &mut Vec<u8>) {
    let Event { run, kind, attempt, at, .. } = event;
    // Names have no character that JSON would escape; everything else goes through the encoder.
    let _ = write!(
        out,
        r#"{{"v":1,"id":"{}","event":"{kind}","run_id":"{}","tenant":"{}","queue":"{}","priority":{},"type":"{}","round":{},"#,
        event.id(),
        run.run_id,
        run.tenant,
        run.queue,
        run.priority.number(),
        run.job_type,
        run.round,
    );
    let node = event.of.map_or(node, |attempt| &attempt.node);
    let _ = write!(out, r#""attempt":{attempt},"max_attempts":{},"at":"{at}","node":"#, run.max_attempts);
    json(out, &node);
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
    let took = of.and_then(|attempt| Some(attempt.ended_at?.since(attempt.started_at).as_millis()));
    if let Some(took) = took.filter(|_| !matches!(kind, EventKind::Started)) {
        let _ = write!(out, r#","duration_ms":{took}"#);
    }
    match kind {
        EventKind::Scheduled | EventKind::Deferred => {
            if let Some(at) = run.run_at {
                field(out, "run_at", &at);
            }
        }
        EventKind::Failed => {
            if let Some(attempt) = of {
                attempt.retry_at.iter().for_each(|at| field(out, "retry_at", at));
                attempt.error.iter().for_each(|error| field(out, "error", error));
            }
        }
        EventKind::Completed => write_result(run, out),
        EventKind::Dlq => run.error.iter().for_each(|error| field(out, "error", error)),
        EventKind::Duplicate => run.duplicate_of.iter().for_each(|of| field(out, "duplicate_of", of)),
        EventKind::Progress => run.progress.iter().for_each(|progress| field(out, "progress", progress)),
        _ => {}
    }
}

fn write_result(run: &Run, out: &mut Vec<u8>) {
    if let Some(result) = run.result.as_ref().filter(|result| result.get().len() <= RESULT_MAX) {
        field(out, "result", result);
    }
}

fn field<T: serde::Serialize>(out: &mut Vec<u8>, name: &str, value: &T) {
    let _ = write!(out, r#","{name}":"#);
    json(out, value);
}

fn json<T: serde::Serialize + ?Sized>(out: &mut Vec<u8>, value: &T) {
    // Writing to memory cannot fail, and what is written here has no map with keys that are not text.
    let _ = serde_json::to_writer(out, value);
}
