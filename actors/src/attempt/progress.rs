//! What a handler reports while it works. Progress is an event each time, live and in the log, and the record keeps the
//! last one; lines for the log are kept in the record, the last ones. Both are written with the attempt's end, so that
//! a chatty handler costs no writes.

use std::sync::PoisonError;
use std::sync::atomic::{AtomicU32, Ordering};

use bytes::Bytes;
use longshore_backbone::wire::{event, json};
use longshore_domain::events::{Event, EventKind};

use crate::attempt::running::{CurrentAttempt, RunningAttempt};
use crate::commit::pipeline::Input;
use crate::node_ports::NodePorts;
use crate::ports::RunPorts as _;
use crate::shared::log_run::{About, log_run};
use crate::shared::now;

/// Maximum bytes of a progress report.
const MAX_BYTES: usize = 4_096;
/// Under this target handlers' lines stand in the node's log.
pub const HANDLER_LOG: &str = "longshore::handler";
/// Maximum bytes of a line in the node's log.
const LINE_MAX: usize = 4_096;
/// Maximum bytes of reports that wait until the start is stored: well below what one message of the log may hold.
const MAX_WAITING: usize = 128 * 1024;

/// Publishes the progress of the current attempt. A report that is not valid JSON, or too long, is dropped with a
/// warning.
pub(crate) async fn report(ports: &NodePorts, current: &CurrentAttempt, body: &Bytes) {
    static NTH: AtomicU32 = AtomicU32::new(1);
    let report = {
        let mut current = current.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(RunningAttempt { attempt_state, assignment, .. }) = current.as_mut() else { return };
        let run = &mut attempt_state.run;
        // Its end is published, perhaps by another node: nothing is to follow that.
        if ports.book.is_cancelled(&run.tenant, &run.run_id) {
            return;
        }
        match json::compact(body).filter(|_| body.len() <= MAX_BYTES) {
            Some(progress) => run.progress = Some(progress),
            None => {
                log_run!(
                    warn,
                    About::run(run).traced(assignment.payload.trace_id()),
                    "progress of {} bytes dropped: it is not valid JSON of at most {MAX_BYTES}",
                    body.len()
                );
                return;
            }
        }
        let nth = NTH.fetch_add(1, Ordering::Relaxed);
        let of = run.attempts.last();
        let kind = EventKind::Progress;
        let event = Event { run, kind, attempt: run.attempt, nth, at: now(), of, reason: None };
        let mut line = Vec::with_capacity(384);
        event::write(&event, ports.node(), &mut line);
        let subject = ports.backbone.names().event(run, kind);
        let tenant = run.tenant.clone();
        // Before the record says that it runs, the log does not know of its start either: the start must come first.
        if !attempt_state.is_stored && attempt_state.progress.len() + line.len() < MAX_WAITING {
            attempt_state.progress.extend_from_slice(&line);
            attempt_state.progress.push(b'\n');
        }
        (tenant, subject, Bytes::from(line), attempt_state.is_stored)
    };
    let (tenant, subject, line, is_stored) = report;
    ports.backbone.publish_live(subject, line.clone()).await;
    if is_stored {
        ports.committer.send(Input::Line(tenant, line)).await;
    }
}

/// Writes a line of the current attempt's handler into the node's log, and keeps it with the run.
pub(crate) fn log(current: &CurrentAttempt, body: &[u8]) {
    let line = String::from_utf8_lossy(&body[..body.len().min(LINE_MAX)]).replace(char::is_control, " ");
    let mut current = current.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(RunningAttempt { attempt_state, assignment, .. }) = current.as_mut() else { return };
    let run = &mut attempt_state.run;
    tracing::info!(target: HANDLER_LOG, run_id = %run.run_id, tenant = %run.tenant, job_type = %run.job_type,
        attempt = run.attempt, trace_id = assignment.payload.trace_id().map(tracing::field::display), "handler: {line}");
    run.log(line, now());
}
