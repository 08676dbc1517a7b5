//! Publishes the start of an attempt.

use crate::attempt::ports::Ports;
use crate::attempt::running::{CurrentAttempt, RunningAttempt};
use crate::commit::Commit;
use crate::ports::Server as _;
use crate::ports::encode::EncodedEvents;
use crate::runtime::Unpoisoned as _;

/// Publishes the start of the current attempt, live and, if its record is stored, in the log; nothing if its lease is
/// over before anything is stored.
pub(crate) async fn announce<P: Ports>(ports: &P, current: &CurrentAttempt) {
    let (lines, commit) = {
        let mut current = current.lock().unpoisoned();
        let Some(RunningAttempt { assignment, attempt_state, .. }) = current.as_mut() else { return };
        if !attempt_state.is_stored && assignment.lease_is_over(ports.instant(), ports.lease()) {
            // The node stood still since it looked: another has the job, and this one will not call its handler.
            return;
        }
        let metrics = ports.metrics().of(&assignment.job);
        if !std::mem::replace(&mut attempt_state.is_counted, true) {
            metrics.started.inc();
            metrics.wait.observe(ports.now().since(assignment.since).as_secs_f64());
        }
        let run = &attempt_state.run;
        let lines = EncodedEvents::of(run, attempt_state.published, ports.author());
        if lines.enqueues {
            metrics.enqueued.inc();
        }
        crate::commit::lines::write(run, &assignment.payload, &lines);
        attempt_state.published = attempt_state.published.after_live(lines.count(), attempt_state.is_stored);
        if attempt_state.is_stored {
            attempt_state.lines = None;
            let for_the_log = match std::mem::take(&mut attempt_state.progress) {
                none if none.is_empty() => lines.for_the_log(),
                progress => lines.for_the_log().followed_by(&progress),
            };
            (lines, Some(Commit::with_events(attempt_state.run.clone(), assignment.payload.clone(), for_the_log)))
        } else {
            attempt_state.lines = Some(lines.for_the_log());
            (lines, None)
        }
    };
    ports.server().publish_live(&lines).await;
    if let Some(commit) = commit {
        ports.commit(Box::new(commit)).await;
    }
}
