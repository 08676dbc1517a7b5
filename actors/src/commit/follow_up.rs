//! The slow steps of a commit: an unclear record, a schedule, a parked job, a dead letter, and the delivery's end. Each
//! can be repeated without harm.

use std::time::{Duration, Instant};

use longshore_backbone::Error;
use longshore_backbone::rarely::Rarely;
use longshore_backbone::records::{Found, Written};
use longshore_domain::follow_up::FollowUp;
use longshore_domain::protocol::{self, Arrival, Verdict};
use longshore_domain::publication::Published;
use longshore_domain::run::{EndLog, State};
use longshore_domain::{ErrorKind, Run, RunId};

use crate::commit::{AfterCommit, Commit, InFlightPermit, chain, keys};
use crate::metrics::Metrics;
use crate::ports::encode::Author;
use crate::ports::{RunPorts, Server};
use crate::runtime::fail_point;
use crate::runtime::log_run::{About, log_run};

/// How long a step that the server did not confirm waits before it is tried again, at first; twice as long each time,
/// up to eight times as long. An election lasts no longer than that, and what waits here keeps its place among the
/// commits.
const AGAIN_AFTER: Duration = Duration::from_millis(250);
/// How long a delivery that made room stays away at first; twice as long each time, up to a minute or a lease: a stream
/// may be full for hours.
const AWAY_FOR: Duration = Duration::from_secs(1);
/// How often forgetting the results of steps is tried again: some ten seconds, in which a server that died is back.
/// Nothing depends on it, and it keeps its place among the commits until then.
const FORGET_AGAIN: u32 = 7;
/// Thousands of commits may wait for one stream without a leader.
static TRIED_AGAIN: Rarely = Rarely::once_in(Duration::from_secs(1));

/// How slow work ended.
#[derive(Debug)]
pub(crate) enum Done {
    /// The record is stored: the events are next.
    OnRecord(Box<Commit>),
    /// The commit is over, one way or another.
    Over,
}

/// The answer to a record's write was not a plain yes: finds out whose run it is, and goes on if it is ours.
pub(crate) async fn clear_up<S: Server>(server: &S, metrics: &Metrics, mut commit: Box<Commit>) -> Done {
    match decide(server, &mut commit).await {
        Written::Won(revision) => {
            commit.written(revision);
            Done::OnRecord(commit)
        }
        Written::Lost(found) => {
            if let Some(end) = end_of_the_cancelled(server, &mut commit, found.as_deref()) {
                return Done::OnRecord(end);
            }
            metrics.fenced.inc();
            log_run!(info, commit.about(), "result dropped: its record is another's by now, or cannot be read");
            give_up(server, *commit, found.as_deref()).await;
            Done::Over
        }
    }
}

/// Writes the record on the revision that is really stored, as long as this commit may still write it.
async fn decide<S: Server>(server: &S, commit: &mut Commit) -> Written {
    let mut expected = commit.write.as_ref().map_or(0, |write| write.expected);
    for turn in 0.. {
        match server.write_record(&commit.run, expected).await {
            Ok(Written::Won(revision)) => return Written::Won(revision),
            // The record that it was based on is gone: the decision is written as if there had been none.
            Ok(Written::Lost(None)) if expected != 0 => expected = 0,
            Ok(Written::Lost(Some(found))) if is_occupied(server, &found.run, commit) => {
                commit.rename(server);
                expected = 0;
            }
            Ok(Written::Lost(Some(found)))
                if found.revision != expected && may_overwrite(server, &found.run, commit).await =>
            {
                expected = found.revision;
            }
            Ok(lost) => return lost,
            // Somebody wrote there what is no record. Whether the run has ended by another hand cannot be known.
            Err(error) if error.unreadable_at().is_some() => return Written::Lost(None),
            Err(error) => again_later(server, commit.about(), "cannot write the run's record", turn, &error).await,
        }
    }
    unreachable!("the loop only ends by returning")
}

/// Says that a step goes on later, and waits until then.
async fn again_later<S: Server>(server: &S, about: About<'_>, what: &str, turn: u32, error: &Error) {
    if let Some(times) = TRIED_AGAIN.happened(what, Instant::now()) {
        log_run!(warn, about, times, "{what}, trying again: {}", error.with_causes());
    }
    server.pause(AGAIN_AFTER * (1 << turn.min(3))).await;
}

/// Whether a commit is to make room for others, as a full stream refuses its step. Not one without a delivery: nothing
/// would carry it out later. Nor one with a permit to be parked: these are few, and show the node when there is room.
fn makes_room(commit: &Commit, error: &Error) -> bool {
    let are_many = commit.in_flight.as_ref().is_some_and(InFlightPermit::is_one_of_many);
    are_many && error.is_stream_full() && commit.park.is_none() && matches!(commit.after, AfterCommit::Ack(_))
}

/// Gives up the place of such a commit: its delivery comes again, finds the decision in the record and carries it out.
async fn make_room<S: Server>(server: &S, commit: Box<Commit>) {
    let deliveries = commit.arrival.as_ref().map_or(1, |arrival| arrival.holding.delivery);
    if let Some(ack_token) = commit.after.into_ack_token() {
        let away = AWAY_FOR * (1u32 << deliveries.saturating_sub(1).min(6));
        // The record of its end is kept for two leases at least, and anew with each delivery.
        server.nak_after(ack_token, away.min(server.ack_wait())).await;
    }
}

/// Whether the commit may overwrite a record that was written since it read it, or that it never read. It may if
/// this very attempt wrote it and the answer was lost, if it was only marked as published meanwhile, or if it is of a
/// run of a stream that is gone.
async fn may_overwrite<S: Server>(server: &S, found: &Run, commit: &Commit) -> bool {
    if commit.unclear.as_ref().is_some_and(|token| protocol::was_mine(Some(found), token)) {
        return true;
    }
    let Some(arrival) = &commit.arrival else { return false };
    match server.on_arrival(Some(found), arrival) {
        Verdict::Begin { round: 1, .. } => found.published && found.is_unseen(),
        Verdict::BeginAnew => !has_other_id(server, found, arrival).await,
        _ => false,
    }
}

/// Whether the job has begun under another id: an earlier delivery of it found its id taken by `found`, which had not
/// ended then. The job keeps that other id, though `found` has ended by now. If the read fails, the answer is yes, and
/// it is checked again later.
pub(crate) async fn has_other_id<S: Server>(server: &S, found: &Run, arrival: &Arrival) -> bool {
    let other = RunId::derived_at(&found.run_id, arrival.holding.message.at);
    !matches!(server.read_record(&found.tenant, &other).await, Ok(None))
}

/// Whether the id belongs to another run, so that this one goes on under another id. This happens to two kinds of runs:
///
/// * one that was started without reading, if an unfinished run of a stream that is gone has its id;
/// * one of an invalid job, whose id was only read from its headers.
fn is_occupied<S: Server>(server: &S, found: &Run, commit: &Commit) -> bool {
    let Some(arrival) = &commit.arrival else { return false };
    let is_invalid = commit.run.error.as_ref().is_some_and(|error| error.kind == ErrorKind::Invalid);
    // A dead letter may have been replayed meanwhile.
    let derived = RunId::derived(&commit.run.lane(), arrival.holding.message.sequence);
    let is_its_own = protocol::is_of(found, arrival, &derived);
    (is_invalid && !is_its_own) || server.on_arrival(Some(found), arrival) == Verdict::Occupied
}

/// The run was cancelled before its attempt's end could be written, or made way before it started: that is published
/// instead, and the delivery acknowledged.
fn end_of_the_cancelled<S: Server>(server: &S, commit: &mut Commit, found: Option<&Found>) -> Option<Box<Commit>> {
    let (arrival, found) = (commit.arrival.as_ref()?, found?);
    let is_logged_elsewhere = found.run.state.end_log() == EndLog::ByCanceller;
    if server.on_arrival(Some(&found.run), arrival) != Verdict::PublishEnd || is_logged_elsewhere {
        return None;
    }
    let node = found.run.node.clone().unwrap_or_default();
    let published = match found.run.state {
        State::Duplicate { .. } if found.run.published => Published::at_made_way(&found.run),
        _ => Published::at_overtaken(commit.published, &commit.run, &found.run),
    };
    let mut end = Commit::of_stored(
        Box::new(found.run.clone()),
        commit.payload.clone(),
        published,
        Author { node: &node, server },
    );
    let ack_token = std::mem::replace(&mut commit.after, AfterCommit::Nothing).into_ack_token();
    end.after = ack_token.map_or(AfterCommit::Nothing, AfterCommit::Ack);
    // It takes over the place in flight: a flush has to wait for this end, too.
    end.in_flight = commit.in_flight.take();
    // The node that cancelled the run ended its attempt in the record.
    end.ends_attempt = commit.ends_attempt;
    end.deferred = commit.deferred;
    end.line = commit.line.take();
    Some(Box::new(end))
}

/// The run went on elsewhere: the delivery is acknowledged if another message answers for the run, else left alone.
async fn give_up<S: Server>(server: &S, commit: Commit, found: Option<&Found>) {
    let is_answered_for = match (&commit.arrival, found) {
        (Some(arrival), Some(found)) => server.on_arrival(Some(&found.run), arrival) == Verdict::Drop,
        _ => false,
    };
    match commit.after.into_ack_token() {
        Some(ack_token) if is_answered_for => server.ack(ack_token).await,
        Some(ack_token) => ack_token.abandon(),
        None => {}
    }
}

/// Writes the follow-up of a decision whose events are published, then ends the delivery.
pub(crate) async fn follow<S: Server>(server: &S, mut commit: Box<Commit>) {
    for turn in 0.. {
        let run = &commit.run;
        let (headers, payload) = (commit.payload.headers.as_deref(), commit.payload.body.clone());
        let written = match commit.follow_up {
            Some(FollowUp::Schedule(at)) => {
                fail_point::pass("before-schedule");
                match keys::keep_order(server, run, at).await {
                    Ok(()) => server.schedule(run, at, headers, payload).await,
                    Err(error) => Err(error),
                }
                .inspect(|_| fail_point::pass("after-schedule"))
            }
            Some(FollowUp::Park(since)) if commit.park.as_ref().is_some_and(|park| park.forward.is_some()) => {
                fail_point::pass("before-forward");
                server
                    .return_to_queue(run, since, headers, payload)
                    .await
                    .inspect(|_| fail_point::pass("after-forward"))
            }
            Some(FollowUp::Park(since)) => {
                fail_point::pass("before-park");
                server.park(run, since, headers, payload).await.inspect(|_| fail_point::pass("after-park"))
            }
            Some(FollowUp::DeadLetter) => {
                fail_point::pass("before-dead-letter");
                server.write_dead_letter(run, headers, payload).await.inspect(|_| fail_point::pass("after-dead-letter"))
            }
            Some(FollowUp::Then) => match &commit.next {
                Some(next) => chain::publish(server, next).await,
                None => Ok(()),
            },
            None => break,
        };
        match written {
            Ok(()) => break,
            Err(error) if makes_room(&commit, &error) => return make_room(server, commit).await,
            Err(error) => again_later(server, commit.about(), doing(commit.follow_up), turn, &error).await,
        }
    }
    // The next of its key may start: what is left of this one does not keep it.
    drop(commit.wakes.take());
    for turn in 0.. {
        match keys::leave_keys(server, &commit).await {
            Ok(()) => break,
            // What nodes did not write there is left alone.
            Err(error) if error.unreadable_at().is_some() => break,
            Err(error) if makes_room(&commit, &error) => return make_room(server, commit).await,
            Err(error) => again_later(server, commit.about(), "cannot leave its key or batch", turn, &error).await,
        }
    }
    let ended = leaves_steps(&commit.run).then(|| commit.run.clone());
    let _place = commit.in_flight.take();
    end(server, commit).await;
    // After all else: where the end has no record, the job could come again until now.
    if let Some(run) = ended {
        // Apart, as every other commit would carry it along.
        Box::pin(forget_steps(server, &run)).await;
    }
}

async fn forget_steps<S: Server>(server: &S, run: &Run) {
    let about = About::run(run);
    for turn in 0..=FORGET_AGAIN {
        match server.forget_steps(&run.tenant, &run.run_id).await {
            Ok(()) => return,
            Err(error) if turn < FORGET_AGAIN => {
                again_later(server, about, "cannot remove the results of steps", turn, &error).await;
            }
            Err(error) => {
                log_run!(debug, about, "the results of steps stay until they are too old: {}", error.with_causes());
            }
        }
    }
}

/// Whether a run has ended for good after steps, whose results nobody will ask for. The record of one that was
/// cancelled at work does not list those of its last attempt.
fn leaves_steps(run: &Run) -> bool {
    let may_have_more = run.has_started() && matches!(run.state, State::Cancelled { .. });
    let has_some = !run.steps.is_empty() || may_have_more;
    has_some && run.state.is_terminal() && !matches!(run.state, State::Dead { .. })
}

/// Notes in the record of a cancelled run that the log has its end: a message of it that comes later publishes nothing.
pub(crate) async fn note_logged<P: RunPorts>(ports: &P, cancelled: &Run, revision: u64) {
    let mut run = cancelled.clone();
    run.leave_end_log(EndLog::Done);
    ports.sign(&mut run);
    if let Err(error) = ports.server().write_record(&run, revision).await {
        log_run!(debug, About::run(&run), "its end may be logged twice: {}", error.with_causes());
    }
}

/// What a follow-up that failed was about: each is of one stream.
fn doing(follow_up: Option<FollowUp>) -> &'static str {
    match follow_up {
        Some(FollowUp::Schedule(_)) => "cannot write a schedule",
        Some(FollowUp::DeadLetter) => "cannot write a dead letter",
        Some(FollowUp::Then) => "cannot publish the job that follows",
        Some(FollowUp::Park(_)) | None => "cannot park a job",
    }
}

/// Whether something is to be written after the events.
pub(crate) fn is_needed(commit: &Commit) -> bool {
    let run = &commit.run;
    let leaves_key = run.state.is_terminal() && (commit.line.is_some() || run.turn.is_some() || run.batch.is_some());
    commit.follow_up.is_some() || keys::key_given_back(run).is_some() || leaves_key || leaves_steps(run)
}

/// The last step: ends the delivery as the commit says.
pub(crate) async fn end<S: Server>(server: &S, commit: Box<Commit>) {
    let revision = commit.write.as_ref().map_or(0, |write| write.expected);
    match commit.after {
        AfterCommit::Ack(ack_token) => {
            fail_point::pass("before-ack");
            server.ack(ack_token).await;
        }
        AfterCommit::Return(ack_token) => ack_token.nak(),
        // The waiting task may be gone, if the node drains; then the ack token is dropped, which returns the job.
        AfterCommit::LocalRetry(ack_token, back) => drop(back.send((ack_token, revision))),
        AfterCommit::Report(done) => drop(done.send(revision)),
        AfterCommit::Nothing => {}
    }
}
