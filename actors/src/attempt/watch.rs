//! Watches an attempt that is not done at its first step: its time limit, its lease, its slots and the node's drain. It
//! is entered among the leases, and after [`LASTS`] a write makes the record say that it runs.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::FutureExt as _;
use longshore_backbone::rarely::Rarely;
use longshore_backbone::records::Written;
use longshore_domain::outcome::Outcome;
use longshore_domain::protocol::Verdict;
use longshore_domain::publication::Published;
use longshore_domain::{RunId, RunState};
use tokio_util::sync::CancellationToken;

use crate::attempt::announce::announce;
use crate::attempt::clock::clock;
use crate::attempt::node_ports::NodePorts;
use crate::attempt::ports::Ports;
use crate::attempt::running::{CurrentAttempt, RunningAttempt, of_current};
use crate::attempt::stop::{self, AttemptEvent, End, Handler, Owner, STOPS_WITHIN};
use crate::commit::follow_up::has_other_id;
use crate::handlers::handler::BoxFuture;
use crate::lease_keeper::Stop;
use crate::limits::concurrency::{SlotPermit, while_it_lasts};
use crate::ports::{Rules as _, Server as _};
use crate::runtime::Unpoisoned as _;
use crate::runtime::log_run::{About, log_run};

/// A run that lasts longer has a record that says so; a shorter one is not worth the write.
const LASTS: Duration = Duration::from_millis(250);
/// Says that records are not stored: with a fault of the server all jobs of a node come here.
static NOT_STORED: Rarely = Rarely::once_in(Duration::from_secs(1));

/// The work as long as the attempt has its slots; `None`: it has lost them.
pub(super) fn guarded<'a>(
    slots: Option<Arc<SlotPermit>>,
    work: impl Future<Output = Outcome> + Send + 'a,
) -> BoxFuture<'a, Option<Outcome>> {
    match slots {
        None => Box::pin(work.map(Some)),
        Some(slots) => Box::pin(async move { while_it_lasts(&slots, work).await }),
    }
}

pub(super) async fn see_through(
    ports: &NodePorts,
    current: &CurrentAttempt,
    mut work: BoxFuture<'_, Option<Outcome>>,
    token: CancellationToken,
) -> End {
    let Some((_, mut stop_at)) = clock(current) else { return End::NotOurs };
    let Some(lease) = enter(ports, current) else { return End::NotOurs };
    let mut lasts = std::pin::pin!(tokio::time::sleep(LASTS));
    let mut claimed = of_current(current, |running| running.attempt_state.is_stored) == Some(true);
    let mut claim: Option<BoxFuture<'_, Owner>> = None;
    let (end, handler) = loop {
        let event = tokio::select! {
            biased;
            outcome = &mut work => stop::done(outcome, lease.is_cancelled()),
            () = &mut lasts, if !claimed => {
                claimed = true;
                claim = Some(Box::pin(claim_running(ports, current)));
                continue;
            }
            // Beside the work, which goes on: without a quorum, the write may take a minute.
            owner = in_flight(&mut claim) => {
                claim = None;
                AttemptEvent::Owned(owner)
            }
            () = lease.token.cancelled() => AttemptEvent::Stopped { released: lease.is_released() },
            () = tokio::time::sleep_until(tokio::time::Instant::from_std(stop_at)) => {
                let Some((since, now_at)) = clock(current) else { return End::NotOurs };
                if now_at > stop_at {
                    stop_at = now_at;
                    continue;
                }
                AttemptEvent::OutOfTime { limit: stop_at.saturating_duration_since(since) }
            }
        };
        if let Some(ended) = stop::by(event) {
            break ended;
        }
    };
    if handler != Handler::Ended {
        token.cancel();
    }
    if handler == Handler::Stops {
        let _ = tokio::time::timeout(STOPS_WITHIN, &mut work).await;
    }
    if matches!(end, End::NotOurs) {
        return end;
    }
    // A call that is still open gives its slots back by its time limit, which is forgotten next.
    drop(work);
    let owner = last_write(current, &mut claim).await;
    if lease.is_lost() {
        of_current(current, |running| {
            let about = About::run(&running.attempt_state.run).traced(running.assignment.payload.trace_id());
            log_run!(warn, about, "lease lost: its handler was stopped");
        });
    }
    stop::at_last(end, owner, lease.is_lost())
}

/// The result of the claim that is being written as the work ends: the attempt's end is written on the revision that it
/// leaves, so it waits for that. Its handler is over, and is not to be taken for one that blocks its thread.
pub(super) async fn last_write(current: &CurrentAttempt, claim: &mut Option<BoxFuture<'_, Owner>>) -> Owner {
    let Some(claim) = claim else { return Owner::Us };
    of_current(current, |running| running.at_work = None);
    claim.await
}

/// The result of the claim that is being written; never resolves if there is none.
async fn in_flight(claim: &mut Option<BoxFuture<'_, Owner>>) -> Owner {
    match claim {
        Some(claim) => claim.await,
        None => std::future::pending().await,
    }
}

pub(crate) fn enter(ports: &NodePorts, current: &CurrentAttempt) -> Option<Stop> {
    let mut current = current.lock().unpoisoned();
    let RunningAttempt { assignment, .. } = current.as_mut()?;
    let message = assignment.arrival.holding.message.clone();
    let entry = assignment.entry.take();
    assignment.entry =
        entry.or_else(|| ports.book.enter(&assignment.ack_token, message, &assignment.job, assignment.leased_from));
    assignment.entry.as_ref().map(|entry| entry.stop.clone())
}

/// The run lasts: stores that it runs. Says whether it is still ours.
pub(crate) async fn claim_running<P: Ports>(ports: &P, current: &CurrentAttempt) -> Owner {
    let (mut run, mut expected, arrival, payload) = {
        let mut current = current.lock().unpoisoned();
        let Some(RunningAttempt { attempt_state, assignment, .. }) = current.as_mut() else { return Owner::Another };
        ports.sign(&mut attempt_state.run);
        (attempt_state.run.clone(), attempt_state.expected, assignment.arrival.clone(), assignment.payload.clone())
    };
    let revision = loop {
        match ports.server().write_record(&run, expected).await {
            Ok(Written::Won(revision)) => break Some(revision),
            // The record that it was based on is gone.
            Ok(Written::Lost(None)) if expected != 0 => expected = 0,
            Ok(Written::Lost(Some(found))) => match ports.server().on_arrival(Some(&found.run), &arrival) {
                Verdict::BeginAnew if expected != found.revision => {
                    if has_other_id(ports.server(), &found.run, &arrival).await {
                        return Owner::Another;
                    }
                    expected = found.revision;
                }
                Verdict::Occupied => {
                    (run.run_id, expected) = (RunId::derived_at(&run.run_id, arrival.holding.message.at), 0);
                }
                _ => {
                    let state = found.run.state;
                    let about = About::run(&run).traced(payload.trace_id());
                    log_run!(info, about, state = state.as_str(), "stopped: the run went on elsewhere");
                    return if state == RunState::Cancelled { Owner::Cancelled } else { Owner::Another };
                }
            },
            Ok(Written::Lost(None)) => return Owner::Another,
            Err(error) => {
                // Without a record the work goes on as it began. Its end is decided on the same revision, or on this
                // very write if it was stored after all.
                if let Some(times) = NOT_STORED.happened("", Instant::now()) {
                    let about = About::run(&run).traced(payload.trace_id());
                    log_run!(warn, about, times, "cannot store that the attempt runs: {error}");
                }
                break None;
            }
        }
    };
    if let Some(RunningAttempt { attempt_state, assignment, .. }) = current.lock().unpoisoned().as_mut() {
        match revision {
            Some(revision) => {
                if attempt_state.run.run_id != run.run_id {
                    attempt_state.run.run_id = run.run_id.clone();
                    (attempt_state.published, attempt_state.lines) = (Published::nothing(), None);
                    assignment.arrival.has_derived_id = false;
                }
                attempt_state.expected = revision;
                attempt_state.is_stored = true;
            }
            None => {
                attempt_state.unclear = Some(run.token.clone());
                return Owner::Us;
            }
        }
    }
    // Has the log know of a start that was announced, now that its record is stored. One that was not is still to be
    // found a handler: it is taken back if there is none.
    if of_current(current, |running| running.attempt_state.is_counted) == Some(true) {
        announce(ports, current).await;
    }
    Owner::Us
}
