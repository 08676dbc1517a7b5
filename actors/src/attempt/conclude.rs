//! How an attempt ends: it is judged by the rules, and the settlement goes to the committer as a commit.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use longshore_domain::backoff::Backoff;
use longshore_domain::follow_up::{AckAction, Plan, needs_seal, plan};
use longshore_domain::policy::History;
use longshore_domain::settlement::{Outcome, Settlement, Terms, settle};
use longshore_domain::{Job, Run, RunState, Timestamp};
use tokio::sync::{mpsc, oneshot};

use crate::attempt::assignment::{Assignment, Start};
use crate::attempt::running::AttemptState;
use crate::commit::committer::Input;
use crate::commit::encode::EncodedEvents;
use crate::commit::{AfterCommit, Commit};
use crate::lease_keeper::Entry;
use crate::shared::{MAX_LOCAL_RETRIES, Shared, new_seal, now};

/// Retries that are due sooner than this are held locally: the server's timers have a grain of 250 ms.
const SHORT_RETRY: Duration = Duration::from_millis(1_000);

/// Where a short retry goes when it is due: to its queue's scheduler, or the one that follows it.
pub(crate) type LocalRetries = mpsc::UnboundedSender<Assignment>;

/// Whether a short retry may be held locally.
pub(crate) enum LocalRetry<'a> {
    /// Its scheduler takes it back.
    With(&'a LocalRetries, &'a Arc<Shared>),
    /// It goes through a schedule.
    Never,
}

/// Judges an attempt's end and carries out what follows.
pub(crate) async fn judge(
    shared: &Shared,
    assignment: Box<Assignment>,
    attempt_state: AttemptState,
    outcome: Outcome,
    keep: LocalRetry<'_>,
) {
    let job = Arc::clone(&assignment.job);
    let policy = shared.policy(&job);
    let (options, backoff) = (job.options.as_deref(), backoff(shared, &job));
    let terms = Terms::of(&attempt_state.run, options, backoff, policy.max_snoozes, policy.no_handler_grace);
    let settlement = settle(outcome, terms, now(), rand::random());
    match (&settlement, keep) {
        (Settlement::Retry { at, .. }, LocalRetry::With(again, owner)) if at.since(now()) < SHORT_RETRY => {
            Box::pin(hold_locally(owner, again, assignment, attempt_state, settlement)).await;
        }
        _ => carry_out(shared, assignment, attempt_state, settlement).await,
    }
}

fn backoff<'a>(shared: &'a Shared, job: &Job) -> &'a Backoff {
    let asked = job.options.as_ref().and_then(|options| options.retry.as_deref());
    asked.and_then(|name| shared.policies.retries.get(name)).unwrap_or(&shared.policy(job).backoff)
}

/// Makes a settlement a commit: record, events, follow-up, and the end of the delivery.
pub(crate) async fn carry_out(
    shared: &Shared,
    assignment: Box<Assignment>,
    attempt_state: AttemptState,
    settlement: Settlement,
) {
    let (mut commit, assignment) = write_up(shared, assignment, attempt_state, settlement);
    let Plan { follow_up, ack } = plan(&commit.run);
    commit.follow_up = follow_up;
    commit.entry = assignment.entry;
    commit.after = match ack {
        AckAction::Ack => AfterCommit::Ack(assignment.ack_token),
        AckAction::Return => AfterCommit::Return(assignment.ack_token),
    };
    shared.committer.send(Input::Commit(commit)).await;
}

/// The parts of an assignment that [`write_up`] does not move into the commit.
struct Rest {
    job: Arc<Job>,
    arrival: longshore_domain::protocol::Arrival,
    since: Timestamp,
    leased_from: std::time::Instant,
    entry: Option<Entry>,
    ack_token: longshore_backbone::delivery::AckToken,
}

fn write_up(
    shared: &Shared,
    assignment: Box<Assignment>,
    attempt_state: AttemptState,
    settlement: Settlement,
) -> (Box<Commit>, Rest) {
    let Assignment { job, payload, arrival, since, leased_from, entry, park, ack_token, .. } = *assignment;
    let AttemptState { mut run, expected, mut published, lines, is_stored, progress, unclear } = attempt_state;
    let before_it = published;
    // Progress comes between the start and the end, neither of which the log knows yet.
    let before = (!progress.is_empty()).then(|| {
        let start = EncodedEvents::of(&run, published.for_log_only(), &shared.node, shared.backbone.names());
        published = published.all_logged(&run);
        start.followed_by(&progress)
    });
    run.settle(settlement, now());
    run.held_by = Some(arrival.holding.clone());
    run.token = shared.token();
    if needs_seal(&run) {
        // The message that comes back later proves by it that a node sent it.
        run.seal = new_seal();
    }
    count(shared, &run);
    let nothing_kept = !is_stored
        && run.state == RunState::Completed
        && run.attempts.len() == 1
        && shared.policy(&job).history == History::Failures;
    let mut commit = if nothing_kept && expected == 0 {
        let published = published.for_live_only();
        let commit = Commit::of_stored(run, payload, published, shared.author());
        shared.unstored_ends.add(&commit.run);
        commit
    } else {
        // If the run completes, the events published live at its start go into the log as they were. Other ends may
        // take a start back.
        let at_start = lines.filter(|_| before.is_none() && run.state == RunState::Completed);
        if at_start.is_some() {
            published = published.log_as_live();
        }
        let mut commit = Commit::to_write(run, payload, expected, published, shared.author());
        commit.live_before = before.or(at_start);
        commit
    };
    commit.arrival = Some(arrival.clone());
    commit.unclear = unclear;
    commit.published = before_it;
    commit.park = park;
    (Box::new(commit), Rest { job, arrival, since, leased_from, entry, ack_token })
}

fn count(shared: &Shared, run: &Run) {
    let metrics = &shared.metrics;
    if run.state.is_terminal() {
        metrics.finished.with_label_values(&[run.state.as_str()]).inc();
    }
    if let Some(took) = run.last_attempt_took() {
        metrics.duration.observe(took.as_secs_f64());
    }
    if matches!(run.state, RunState::Retrying | RunState::Dead)
        && let Some(error) = &run.error
    {
        metrics.failed.with_label_values(&[error.kind.as_str()]).inc();
    }
    if run.parked {
        metrics.parked.inc();
    }
    // A run that was deferred before and fails or ends now keeps its deferral in the record: it is not counted again.
    let waits = matches!(run.state, RunState::Scheduled | RunState::Enqueued) && !run.parked;
    if let Some(deferral) = run.deferral.as_ref().filter(|_| waits) {
        metrics.deferred.with_label_values(&[deferral.reason.as_str()]).inc();
    }
}

/// A retry that is due within a second: stored and published like any other, but the delivery stays with this node,
/// which claims the next attempt itself. Should the node die meanwhile, the message comes again and the record says
/// that a retry is due.
async fn hold_locally(
    owner: &Arc<Shared>,
    again: &LocalRetries,
    assignment: Box<Assignment>,
    attempt_state: AttemptState,
    settlement: Settlement,
) {
    if owner.local_retries.fetch_add(1, Ordering::Relaxed) >= MAX_LOCAL_RETRIES {
        owner.local_retries.fetch_sub(1, Ordering::Relaxed);
        return carry_out(owner, assignment, attempt_state, settlement).await;
    }
    let payload = assignment.payload.clone();
    let (mut commit, rest) = write_up(owner, assignment, attempt_state, settlement);
    let run = commit.run.clone();
    let (give, back) = oneshot::channel();
    let message = rest.arrival.holding.message.clone();
    let entry = rest.entry.or_else(|| owner.book.enter(&rest.ack_token, message, &rest.job, rest.leased_from));
    commit.after = AfterCommit::LocalRetry(rest.ack_token, give);
    owner.committer.send(Input::Commit(commit)).await;
    let (shared, again) = (Arc::clone(owner), again.clone());
    tokio::spawn(async move {
        if let Ok((ack_token, revision)) = back.await {
            let due = run.run_at.unwrap_or_default();
            let wait = due.since(now());
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                // A draining node returns it: the next holder finds the retry in the record and schedules it.
                () = shared.draining.cancelled() => {}
            }
            if entry.as_ref().is_some_and(|entry| entry.stop.is_lost()) {
                ack_token.abandon();
            } else if shared.draining.is_cancelled() {
                ack_token.nak();
            } else {
                let assignment = Assignment {
                    job: rest.job,
                    payload,
                    arrival: rest.arrival,
                    since: rest.since.max(due),
                    leased_from: rest.leased_from,
                    entry,
                    capacity: None,
                    park: None,
                    is_returned: false,
                    ack_token,
                    start: Start::HeldLocally(run, revision),
                };
                // If the queue is gone, the assignment is dropped with its ack token, which returns the job.
                let _ = again.send(assignment);
            }
        }
        shared.local_retries.fetch_sub(1, Ordering::Relaxed);
    });
}
