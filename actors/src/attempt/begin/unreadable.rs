//! Jobs that become a dead letter before anything is done: they cannot be read, or say what only nodes may say.

use longshore_backbone::records::Found;
use longshore_domain::protocol::{self, Arrival, Verdict};
use longshore_domain::publication::Published;
use longshore_domain::settlement::Settlement;
use longshore_domain::{ErrorKind, Failure, Run, RunId};

use super::disposition::Disposition;
use super::fresh;
use super::not_begun::not_begun;
use crate::attempt::assignment::Assignment;
use crate::attempt::ports::Ports;
use crate::attempt::running::AttemptState;
use crate::commit::follow_up::has_other_id;
use crate::ports::{Rules as _, Server as _};
use crate::runtime::log_run::log_run;

/// Why a job that carries a node's headers, but no proof of them, is refused.
pub(super) const UNPROVEN: &str =
    "headers: say which round and attempt of a run the job is, as only nodes may, and no record proves it";

/// Makes a dead letter of a job that cannot be read, or that says of itself what only nodes may say, without proof.
///
/// The dead letter gets the id that the job names if that id has no record, else the id derived from the job's position
/// in its lane. A job that claims to be sent by a node never gets the id that it names; one from the lane of returned
/// jobs gets the derived id with its time. The job may be a dead letter already: by a node that died before it
/// acknowledged.
pub(super) async fn unreadable<P: Ports>(
    ports: &P,
    assignment: &mut Assignment,
    reason: String,
) -> Result<AttemptState, Disposition> {
    let is_forged = assignment.arrival.seal.is_some();
    assignment.arrival = as_bare(assignment.arrival.clone());
    // Sequences of the lane of returned jobs are not those of the lane that a derived id names.
    let is_returned = assignment.is_returned;
    let ids = assignment.ids().into_iter().skip(usize::from(is_forged));
    for run_id in ids.filter(|run_id| !is_returned || run_id.as_derived().is_none()) {
        assignment.rename(run_id);
        let found = ports.server().read_record(&assignment.job.tenant, &assignment.job.run_id).await?;
        let verdict = ports.server().on_arrival(found.as_ref().map(|found| &found.run), &assignment.arrival);
        let attempt_state = match (verdict, found) {
            (_, None) => refused(ports, assignment, 0),
            (Verdict::BeginAnew, Some(found))
                if !has_other_id(ports.server(), &found.run, &assignment.arrival).await =>
            {
                refused(ports, assignment, found.revision)
            }
            // A node that could read it put it back: one of another version, or before the limit on its size was lower.
            (Verdict::BeginAgain { .. }, Some(Found { run, revision })) => {
                let published = ports.server().published_at_redelivery(&run);
                AttemptState::new(Box::new(run), revision, published, true)
            }
            (verdict, Some(found)) if is_of(&found.run, assignment) => {
                return not_begun(ports, assignment, found, verdict).await;
            }
            _ => continue,
        };
        let failure = Failure::new(ErrorKind::Invalid, reason);
        log_run!(warn, assignment.about(), "invalid job: {}", failure.message);
        return Err(Disposition::Settle(attempt_state.into(), Settlement::Dead(failure)));
    }
    log_run!(error, assignment.about(), "an invalid job finds no id of its own; it comes again");
    Err(Disposition::Abandon)
}

/// The state of a job that is refused, whose run has no record yet. It has only one event, that of its dead letter.
fn refused<P: Ports>(ports: &P, assignment: &Assignment, expected: u64) -> AttemptState {
    let run = Box::new(Run { enqueued_at: None, ..fresh(ports, assignment) });
    AttemptState::new(run, expected, Published::nothing(), false)
}

/// The arrival of a client's own publish, whatever its headers say.
fn as_bare(arrival: Arrival) -> Arrival {
    Arrival { round: 1, attempt: 1, deferrals: 0, due_at: None, moved: false, seal: None, ..arrival }
}

fn is_of(run: &Run, assignment: &Assignment) -> bool {
    let Assignment { job, arrival, .. } = assignment;
    let derived = RunId::derived(&job.lane(), arrival.holding.message.sequence);
    protocol::is_of(run, arrival, &derived)
}
