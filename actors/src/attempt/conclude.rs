//! How an attempt ends: it is judged by the rules, and the settlement goes to the committer as a commit.

use std::sync::Arc;
use std::time::{Duration, Instant};

use longshore_backbone::delivery::AckToken;
use longshore_domain::backoff::Backoff;
use longshore_domain::breaker::Signal;
use longshore_domain::follow_up::{needs_seal, plan, returns_delivery};
use longshore_domain::outcome::Outcome;
use longshore_domain::policy::History;
use longshore_domain::protocol::Arrival;
use longshore_domain::run::{Attempt, DeferReason, PutBack};
use longshore_domain::settlement::{Settlement, Terms, settle};
use longshore_domain::{Job, Run, RunState, Timestamp};
use tokio::sync::oneshot;

use crate::attempt::assignment::{Assignment, Start};
use crate::attempt::keys::line;
use crate::attempt::permits::Permits;
use crate::attempt::ports::Ports;
use crate::attempt::running::AttemptState;
use crate::commit::{AfterCommit, Commit, PublishedJob, chain};
use crate::lease_keeper::LeaseEntry;
use crate::metrics::jobs::Decision;
use crate::ports::Rules as _;
use crate::ports::encode::EncodedEvents;
use crate::runtime::gate_news::Wakes;
use crate::runtime::permits::LocalRetryPermit;

/// Retries that are due no later than this are held locally: the server's timers have a grain of 250 ms.
pub(crate) const SHORT_RETRY: Duration = Duration::from_millis(1_000);

/// Judges an attempt's end and carries out what follows. A retry goes through a schedule, however short.
pub(crate) async fn judge<P: Ports>(
    ports: &P,
    mut assignment: Box<Assignment>,
    attempt_state: AttemptState,
    outcome: Outcome,
) {
    report_to_breaker(ports, &mut assignment, &outcome);
    let settlement = settlement_of(ports, &assignment.job, &attempt_state.run, outcome).await;
    carry_out(ports, assignment, attempt_state, settlement).await;
}

/// The same, but a short retry may be held locally: then its job is returned, and the caller waits for it.
pub(crate) async fn judge_or_hold<P: Ports>(
    ports: &P,
    mut assignment: Box<Assignment>,
    attempt_state: AttemptState,
    outcome: Outcome,
) -> Option<Box<HeldRetry>> {
    // A job that has to wait anyway does so elsewhere.
    let waits = report_to_breaker(ports, &mut assignment, &outcome);
    let settlement = settlement_of(ports, &assignment.job, &attempt_state.run, outcome).await;
    match &settlement {
        Settlement::Retry { at, .. } if !waits && at.since(ports.now()) <= SHORT_RETRY => {
            Box::pin(hold_locally(ports, assignment, attempt_state, settlement)).await
        }
        _ => {
            carry_out(ports, assignment, attempt_state, settlement).await;
            None
        }
    }
}

/// Reports to the circuit breaker of the job's type how the attempt ended. Says whether the next one has to wait for
/// it.
fn report_to_breaker<P: Ports>(ports: &P, assignment: &mut Assignment, outcome: &Outcome) -> bool {
    let Some(pass) = assignment.permits.breaker.take() else { return false };
    let count_permanent = ports.policy(&assignment.job).breaker.is_some_and(|policy| policy.count_permanent);
    pass.ended(Signal::of(outcome, count_permanent))
}

async fn settlement_of<P: Ports>(ports: &P, job: &Job, run: &Run, outcome: Outcome) -> Settlement {
    let outcome = chain::judge(ports.policies(), job, outcome);
    let (policy, backoff, deadline) = (ports.policy(job), backoff(ports, job), run.deadline(job.options.as_deref()));
    let mut terms = Terms { run, policy, backoff, deadline, never_served: None };
    // Asks the server, so only where it matters.
    let never_served = match outcome {
        Outcome::NoHandler if terms.has_waited_for_handler(ports.now()) => Box::pin(ports.never_served(job)).await,
        _ => None,
    };
    terms.never_served = never_served.as_ref();
    let settlement = settle(outcome, terms, ports.now(), ports.chance());
    if let Settlement::NotStarted(_) = settlement {
        ports.gave_up(run, "deadline");
    }
    settlement
}

fn backoff<'a, P: Ports>(ports: &'a P, job: &Job) -> &'a Backoff {
    let asked = job.options.as_ref().and_then(|options| options.retry.as_deref());
    asked.and_then(|name| ports.policies().retries.get(name)).unwrap_or(&ports.policy(job).backoff)
}

/// Makes a settlement a commit: record, events, follow-up, and the end of the delivery.
pub(crate) async fn carry_out<P: Ports>(
    ports: &P,
    mut assignment: Box<Assignment>,
    attempt_state: AttemptState,
    settlement: Settlement,
) {
    if let Settlement::Defer { reason: DeferReason::NoHandlerOnline, .. } = settlement {
        // No other of its type can start either. With many parked kinds each look for such a job takes long.
        assignment.permits.wakes.take().into_iter().for_each(Wakes::call_off);
    }
    let (mut commit, rest, ack_token) = write_up(ports, assignment, attempt_state, settlement);
    commit.follow_up = plan(&commit.run);
    commit.next = chain::next(ports, &commit.run, &commit.payload);
    commit.entry = rest.entry;
    let returns = returns_delivery(&commit.run);
    commit.after = if returns { AfterCommit::Return(ack_token) } else { AfterCommit::Ack(ack_token) };
    ports.commit(commit).await;
}

/// The parts of an assignment that [`write_up`] does not move into the commit, besides the ack token.
#[derive(Debug)]
struct Rest {
    job: Arc<Job>,
    arrival: Arrival,
    since: Timestamp,
    leased_from: Instant,
    entry: Option<LeaseEntry>,
}

fn write_up<P: Ports>(
    ports: &P,
    assignment: Box<Assignment>,
    attempt_state: AttemptState,
    settlement: Settlement,
) -> (Box<Commit>, Rest, AckToken) {
    let Assignment { job, payload, arrival, since, leased_from, entry, park, ack_token, permits, .. } = *assignment;
    let wakes = permits.wakes;
    let AttemptState { mut run, expected, mut published, lines, is_stored, progress, unclear, is_counted, deferred } =
        attempt_state;
    let before_it = published;
    // Progress comes between the start and the end, neither of which the log knows yet.
    let before = (!progress.is_empty()).then(|| {
        let start = EncodedEvents::of(&run, published.for_log_only(), ports.author());
        published = published.all_logged(&run);
        start.followed_by(&progress)
    });
    if matches!(settlement, Settlement::Park { reason: Some(_), .. }) {
        published = ports.server().published_at_new_wait(published, &run);
    }
    let (was_running, attempts) = (run.state == RunState::Running, run.attempts.len());
    let decision = match park.as_ref().and_then(|park| park.forward) {
        // It is moved forward, and not parked because it could not start: no deferral to count.
        Some(_) if matches!(settlement, Settlement::Park { .. }) => Decision::Other,
        _ => decision_of(&settlement),
    };
    run.settle(settlement, ports.now());
    run.held_by = Some(arrival.holding.clone());
    ports.sign(&mut run);
    if needs_seal(&run) {
        // The message that comes back later proves by it that a node sent it.
        run.seal = ports.seal();
    }
    // If its start is taken back, it is as if the attempt had never begun.
    let ends_attempt = was_running && run.attempts.len() == attempts;
    if ends_attempt {
        count_attempt(ports, &run, is_counted);
    }
    // After an unclear write its record may be stored, and says that it runs.
    let nothing_kept = !is_stored
        && unclear.is_none()
        && run.state == RunState::Completed
        && run.attempts.len() == 1
        && ports.policy(&job).history == History::Failures;
    let mut commit = if nothing_kept && expected == 0 {
        let published = published.for_live_only();
        let commit = Commit::of_stored(run, payload, published, ports.author());
        ports.unstored_ends().add(&commit.run);
        commit
    } else {
        // If the run completes, the events published live at its start go into the log as they were. Other ends may
        // take a start back.
        let at_start = lines.filter(|_| before.is_none() && run.state == RunState::Completed);
        if at_start.is_some() {
            published = published.log_as_live();
        }
        let mut commit = Commit::to_write(run, payload, expected, published, ports.author());
        commit.live_before = before.or(at_start);
        commit
    };
    commit.arrival = Some(arrival.clone());
    commit.unclear = unclear;
    commit.published = before_it;
    commit.line = line::of(ports.policies(), &job).map(Box::new);
    commit.park = park;
    commit.wakes = wakes;
    commit.decision = Some(decision);
    commit.deferred = deferred;
    let has_ended = |last: &Attempt| has_started(last) && last.ended_at.is_some();
    commit.ends_attempt = ends_attempt && commit.run.attempts.last().is_some_and(has_ended);
    (Box::new(commit), Rest { job, arrival, since, leased_from, entry }, ack_token)
}

fn decision_of(settlement: &Settlement) -> Decision {
    match settlement {
        Settlement::Retry { failure, .. } | Settlement::Dead(failure) => Decision::Failed(failure.kind),
        Settlement::Defer { reason, .. } => Decision::Deferred(*reason),
        Settlement::Detach(_) => Decision::Deferred(DeferReason::Detached),
        Settlement::Park { .. } => Decision::Parked,
        Settlement::Complete(_)
        | Settlement::NotStarted(_)
        | Settlement::Release
        | Settlement::Schedule(_)
        | Settlement::Expire
        | Settlement::Cancel
        | Settlement::MakeWay(_)
        | Settlement::Duplicate(_) => Decision::Other,
    }
}

/// Whether an attempt that was claimed was started, too.
fn has_started(attempt: &Attempt) -> bool {
    attempt.put_back != Some(PutBack::NotStarted)
}

/// Counts how long the attempt took that has just ended, and its start if that was never published by itself.
fn count_attempt<P: Ports>(ports: &P, run: &Run, is_counted: bool) {
    let Some(last) = run.attempts.last().filter(|last| has_started(last)) else { return };
    let metrics = ports.metrics().jobs.of(run.queue.as_str(), run.job_type.as_str());
    if !is_counted {
        metrics.started.inc();
    }
    if let Some(ended_at) = last.ended_at {
        metrics.duration.observe(ended_at.since(last.started_at).as_secs_f64());
    }
}

/// A retry that is due within a second: stored and published like any other, but the delivery stays with this node,
/// which claims the next attempt itself. Should the node die meanwhile, the message comes again and the record says
/// that a retry is due.
async fn hold_locally<P: Ports>(
    ports: &P,
    assignment: Box<Assignment>,
    attempt_state: AttemptState,
    settlement: Settlement,
) -> Option<Box<HeldRetry>> {
    let Some(permit) = ports.local_retries().take_for(assignment.payload.body.len()) else {
        carry_out(ports, assignment, attempt_state, settlement).await;
        return None;
    };
    let payload = assignment.payload.clone();
    let (mut commit, mut rest, ack_token) = write_up(ports, assignment, attempt_state, settlement);
    let run = commit.run.clone();
    let (give, back) = oneshot::channel();
    let message = rest.arrival.holding.message.clone();
    rest.entry = rest.entry.or_else(|| ports.book().enter(&ack_token, message, &rest.job, rest.leased_from));
    commit.after = AfterCommit::LocalRetry(ack_token, give);
    ports.commit(commit).await;
    Some(Box::new(HeldRetry { run, payload, rest, back, _permit: permit }))
}

/// A retry that this node holds locally. Dropped, its job goes back to the server.
#[derive(Debug)]
#[must_use = "the retry has to be waited for"]
pub(crate) struct HeldRetry {
    run: Box<Run>,
    payload: PublishedJob,
    rest: Rest,
    /// Where the ack token comes from, with the record's revision, once the commit is carried out.
    back: oneshot::Receiver<(AckToken, u64)>,
    _permit: LocalRetryPermit,
}

impl HeldRetry {
    /// Waits until it is due; returns its next attempt, unless this node must not begin it any more.
    pub(crate) async fn wait<P: Ports>(self, ports: &P) -> Option<Assignment> {
        let Self { run, payload, rest, back, _permit } = self;
        let Rest { job, arrival, since, leased_from, entry } = rest;
        let (ack_token, revision) = back.await.ok()?;
        let due = run.state.run_at().unwrap_or_default();
        // A draining node returns it: the next holder finds the retry in the record and schedules it.
        ports.wait_or_drain(due.since(ports.now())).await;
        if entry.as_ref().is_some_and(|entry| entry.is_lost(ports.instant(), ports.lease())) {
            ack_token.abandon();
            return None;
        }
        if ports.is_draining() {
            ack_token.nak();
            return None;
        }
        Some(Assignment {
            job,
            payload,
            arrival,
            since: since.max(due),
            leased_from,
            entry,
            permits: Permits::default(),
            park: None,
            place: None,
            is_returned: false,
            ack_token,
            start: Start::HeldLocally(run, revision),
        })
    }
}
