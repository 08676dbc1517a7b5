//! Publishes the start of an attempt.

use std::sync::PoisonError;

use crate::attempt::running::{CurrentAttempt, RunningAttempt};
use crate::commit::Commit;
use crate::commit::committer::Input;
use crate::commit::encode::EncodedEvents;
use crate::ports::{NodePorts, Ports as _};

/// Publishes the start of the current attempt, live and, if its record is stored, in the log.
pub(crate) async fn announce(ports: &NodePorts, current: &CurrentAttempt) {
    let (lines, commit) = {
        let mut current = current.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(RunningAttempt { assignment, attempt_state, .. }) = current.as_mut() else { return };
        let lines =
            EncodedEvents::of(&attempt_state.run, attempt_state.published, ports.node(), ports.backbone.names());
        attempt_state.published = attempt_state.published.after_live(lines.count(), attempt_state.is_stored);
        if attempt_state.is_stored {
            attempt_state.lines = None;
            let for_the_log = match std::mem::take(&mut attempt_state.progress) {
                none if none.is_empty() => lines.for_the_log(),
                progress => lines.for_the_log().followed_by(&progress),
            };
            (lines, Some((attempt_state.run.clone(), assignment.payload.clone(), for_the_log)))
        } else {
            attempt_state.lines = Some(lines.for_the_log());
            (lines, None)
        }
    };
    for (subject, body) in lines.live() {
        ports.backbone.publish_part(subject, body).await;
    }
    if let Some((run, payload, lines)) = commit {
        let commit = Commit::with_events(run, payload, lines);
        ports.committer.send(Input::Commit(Box::new(commit))).await;
    }
}
