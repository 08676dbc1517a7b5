//! What a handler reports while it works: progress and lines for the log. Each is an event, live and in the log. The
//! record keeps the last ones: it is written with the attempt's end, so that a chatty handler costs no writes of it.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};

use bytes::Bytes;
use longshore_backbone::Backbone;
use longshore_backbone::wire::{event, json};
use longshore_domain::events::{Event, EventKind};
use longshore_domain::{Run, Tenant};

use crate::attempt::node_ports::NodePorts;
use crate::attempt::running::{AttemptState, CurrentAttempt, RunningAttempt};
use crate::commit::handle::Committer;
use crate::commit::pipeline::Input;
use crate::ports::RunPorts as _;
use crate::runtime::log_run::{About, log_run};
use crate::runtime::{Unpoisoned as _, now};

/// Maximum bytes of a progress report.
pub(crate) const MAX_BYTES: usize = 4_096;
/// Under this target handlers' lines stand in the node's log.
pub const HANDLER_LOG: &str = "longshore::handler";
/// Maximum bytes of a line in the node's log.
const LINE_MAX: usize = 4_096;
/// Lines of one attempt that are published: more would push other events out of the log, which is bounded.
const LINES_PUBLISHED: u32 = 1_000;
/// Maximum bytes of reports that wait until the start is stored: well below what one message of the log may hold.
const MAX_WAITING: usize = 128 * 1024;

/// Publishes the current attempt's progress. A report that is not valid JSON, or too long, is dropped with a warning.
pub(crate) async fn report(ports: &NodePorts, current: &CurrentAttempt, body: &Bytes) {
    let said = {
        let mut current = current.lock().unpoisoned();
        let Some(RunningAttempt { attempt_state, assignment, .. }) = current.as_mut() else { return };
        match json::compact(body).filter(|_| body.len() <= MAX_BYTES) {
            Some(progress) => Said::of(ports, attempt_state, EventKind::Progress, |run| run.progress = Some(progress)),
            None => {
                log_run!(
                    warn,
                    About::run(&attempt_state.run).traced(assignment.payload.trace_id()),
                    "progress of {} bytes dropped: it is not valid JSON of at most {MAX_BYTES}",
                    body.len()
                );
                return;
            }
        }
    };
    publish(ports, said).await;
}

/// Writes a line of the current attempt's handler into the node's log, keeps it with the run, and publishes it, of one
/// attempt the first [`LINES_PUBLISHED`].
pub(crate) async fn log(ports: &NodePorts, current: &CurrentAttempt, body: &[u8]) {
    let line = String::from_utf8_lossy(&body[..body.len().min(LINE_MAX)]).replace(char::is_control, " ");
    let said = {
        let mut current = current.lock().unpoisoned();
        let Some(RunningAttempt { attempt_state, assignment, logged, .. }) = current.as_mut() else { return };
        let run = &attempt_state.run;
        tracing::info!(target: HANDLER_LOG, run_id = %run.run_id, tenant = %run.tenant, job_type = %run.job_type,
            attempt = run.attempt, trace_id = assignment.payload.trace_id().map(tracing::field::display), "handler: {line}");
        *logged += 1;
        if *logged > LINES_PUBLISHED {
            attempt_state.run.log(line, now());
            return;
        }
        Said::of(ports, attempt_state, EventKind::Log, |run| run.log(line, now()))
    };
    publish(ports, said).await;
}

/// An event of what a handler says, ready to be published.
pub(crate) struct Said {
    tenant: Tenant,
    subject: String,
    line: Bytes,
    /// Whether the log knows of the start; else the line waits for that, which must come first.
    is_stored: bool,
}

impl Said {
    /// Keeps with the run what its handler says, and makes an event of it. `None`: the run is cancelled, so its end is
    /// published, perhaps by another node, and nothing is to follow that.
    pub(super) fn of(
        ports: &NodePorts,
        state: &mut AttemptState,
        kind: EventKind,
        keep: impl FnOnce(&mut Run),
    ) -> Option<Self> {
        let is_cancelled = ports.book.is_cancelled(&state.run.tenant, &state.run.run_id);
        if is_cancelled && kind == EventKind::Progress {
            return None;
        }
        keep(&mut state.run);
        if is_cancelled {
            return None;
        }
        let said = Self { is_stored: state.is_stored, ..Self::about(&state.run, kind, ports.node(), &ports.backbone) };
        if !state.is_stored && state.progress.len() + said.line.len() < MAX_WAITING {
            state.progress.extend_from_slice(&said.line);
            state.progress.push(b'\n');
        }
        Some(said)
    }

    /// An event of what was said of a run's last attempt, whose start the log has.
    pub(crate) fn about(run: &Run, kind: EventKind, node: &str, backbone: &Backbone) -> Self {
        // Several nodes may report on one attempt: each counts from elsewhere, so that no id comes twice.
        static NTH: LazyLock<AtomicU32> = LazyLock::new(|| AtomicU32::new(rand::random()));
        let nth = NTH.fetch_add(1, Ordering::Relaxed);
        let event = Event { run, kind, attempt: run.attempt, nth, at: now(), of: run.attempts.last(), reason: None };
        let mut line = Vec::with_capacity(384);
        event::write(&event, node, &mut line);
        let (tenant, subject) = (run.tenant.clone(), backbone.names().event(run, kind));
        Self { tenant, subject, line: line.into(), is_stored: true }
    }

    /// Publishes it, live and in the log.
    pub(crate) async fn publish(self, backbone: &Backbone, committer: &Committer) {
        backbone.publish_live(self.subject, self.line.clone()).await;
        if self.is_stored {
            committer.send(Input::Line(self.tenant, self.line)).await;
        }
    }
}

pub(super) async fn publish(ports: &NodePorts, said: Option<Said>) {
    if let Some(said) = said {
        said.publish(&ports.backbone, &ports.committer).await;
    }
}
