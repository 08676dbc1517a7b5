//! How an attempt ends: judged by the rules, put on record, told, and its delivery settled.

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
use crate::attempt::running::Course;
use crate::commit::committer::Telling;
use crate::commit::encode::Lines;
use crate::commit::{Story, Then};
use crate::lease_keeper::Entry;
use crate::shared::{IN_HAND_RETRIES, Shared, new_seal, now};

/// Retries that are due sooner stay in the node's hand: the server's timers have a grain of 250 ms.
const SHORT: Duration = Duration::from_millis(1_000);

/// Where a short retry goes when it is due; to nobody, where the scheduler is gone.
pub(crate) type Again = mpsc::UnboundedSender<Assignment>;

/// Whether a short retry may stay in hand.
pub(crate) enum Keep<'a> {
    /// Its scheduler takes it back.
    With(&'a Again, &'a Arc<Shared>),
    /// It goes through a schedule.
    Never,
}

/// Judges an attempt's end and carries out what follows.
pub(crate) async fn judge(
    shared: &Shared,
    assignment: Box<Assignment>,
    course: Course,
    outcome: Outcome,
    keep: Keep<'_>,
) {
    let job = Arc::clone(&assignment.job);
    let policy = shared.policy(&job);
    let (options, backoff) = (job.options.as_deref(), backoff(shared, &job));
    let terms = Terms::of(&course.run, options, backoff, policy.max_snoozes, policy.no_handler_grace);
    let settlement = settle(outcome, terms, now(), rand::random());
    match (&settlement, keep) {
        (Settlement::Retry { at, .. }, Keep::With(again, owner)) if at.since(now()) < SHORT => {
            Box::pin(keep_in_hand(owner, again, assignment, course, settlement)).await;
        }
        _ => carry_out(shared, assignment, course, settlement).await,
    }
}

fn backoff<'a>(shared: &'a Shared, job: &Job) -> &'a Backoff {
    let asked = job.options.as_ref().and_then(|options| options.retry.as_deref());
    asked.and_then(|name| shared.policies.retries.get(name)).unwrap_or(&shared.policy(job).backoff)
}

/// Puts a settlement on record, tells it, lets what follows follow, and settles the delivery.
pub(crate) async fn carry_out(shared: &Shared, assignment: Box<Assignment>, course: Course, settlement: Settlement) {
    let (mut story, assignment) = write_up(shared, assignment, course, settlement);
    let Plan { follow_up, ack } = plan(&story.run);
    story.follow_up = follow_up;
    story.entry = assignment.entry;
    story.then = match ack {
        AckAction::Ack => Then::Ack(assignment.right),
        AckAction::Return => Then::HandBack(assignment.right),
    };
    shared.herald.tell(Telling::Story(story)).await;
}

/// What [`write_up`] leaves of an assignment: all but the story's part.
struct Rest {
    job: Arc<Job>,
    arrival: longshore_domain::protocol::Arrival,
    since: Timestamp,
    leased_from: std::time::Instant,
    entry: Option<Entry>,
    right: longshore_backbone::delivery::Right,
}

fn write_up(
    shared: &Shared,
    assignment: Box<Assignment>,
    course: Course,
    settlement: Settlement,
) -> (Box<Story>, Rest) {
    let Assignment { job, matter, arrival, since, leased_from, entry, park, right, .. } = *assignment;
    let Course { mut run, expected, mut published, lines, on_record, progress, unclear } = course;
    let before_it = published;
    // Progress stands between the start, which the log does not know of, and the end, which it does not know of either.
    let before = (!progress.is_empty()).then(|| {
        let start = Lines::of(&run, published.for_log_only(), &shared.node, shared.backbone.names());
        published = published.all_logged(&run);
        start.followed_by(&progress)
    });
    run.settle(settlement, now());
    run.held_by = Some(arrival.holding.clone());
    run.token = shared.token();
    if needs_seal(&run) {
        // What comes back at that time proves by it that a node sent it.
        run.seal = new_seal();
    }
    count(shared, &run);
    let nothing_kept = !on_record
        && run.state == RunState::Completed
        && run.attempts.len() == 1
        && shared.policy(&job).history == History::Failures;
    let mut story = if nothing_kept && expected == 0 {
        let published = published.for_live_only();
        let story = Story::on_record(run, matter, published, &shared.node, &shared.backbone);
        shared.unkept.add(&story.run);
        story
    } else {
        // Of a run that completes, what was published live at its start goes into the log as it was. Other ends may take
        // a start back.
        let at_start = lines.filter(|_| before.is_none() && run.state == RunState::Completed);
        if at_start.is_some() {
            published = published.log_as_live();
        }
        let mut story = Story::to_write(run, matter, expected, published, &shared.node, &shared.backbone);
        story.live_before = before.or(at_start);
        story
    };
    story.arrival = Some(arrival.clone());
    story.unclear = unclear;
    story.published = before_it;
    story.park = park;
    (Box::new(story), Rest { job, arrival, since, leased_from, entry, right })
}

fn count(shared: &Shared, run: &Run) {
    let metrics = &shared.metrics;
    if run.state.is_ended() {
        metrics.ended.with_label_values(&[run.state.as_str()]).inc();
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
    // What was deferred before and fails or ends now keeps its deferral as part of its story.
    let waits = matches!(run.state, RunState::Scheduled | RunState::Enqueued) && !run.parked;
    if let Some(deferral) = run.deferral.as_ref().filter(|_| waits) {
        metrics.deferred.with_label_values(&[deferral.reason.as_str()]).inc();
    }
}

/// A retry that is due within a second: recorded and told like any other, but the delivery stays with this node, which
/// claims the next attempt itself. Should it die meanwhile, the message comes again and finds the retry on record.
async fn keep_in_hand(
    owner: &Arc<Shared>,
    again: &Again,
    assignment: Box<Assignment>,
    course: Course,
    settlement: Settlement,
) {
    if owner.in_hand_retries.fetch_add(1, Ordering::Relaxed) >= IN_HAND_RETRIES {
        owner.in_hand_retries.fetch_sub(1, Ordering::Relaxed);
        return carry_out(owner, assignment, course, settlement).await;
    }
    let matter = assignment.matter.clone();
    let (mut story, rest) = write_up(owner, assignment, course, settlement);
    let run = story.run.clone();
    let (give, back) = oneshot::channel();
    let message = rest.arrival.holding.message.clone();
    let entry = rest.entry.or_else(|| owner.book.enter(&rest.right, message, &rest.job, rest.leased_from));
    story.then = Then::Keep(rest.right, give);
    owner.herald.tell(Telling::Story(story)).await;
    let (shared, again) = (Arc::clone(owner), again.clone());
    tokio::spawn(async move {
        if let Ok((right, revision)) = back.await {
            let due = run.run_at.unwrap_or_default();
            let wait = due.since(now());
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                // A node that drains gives it back: the next holder finds the retry on record and schedules it.
                () = shared.draining.cancelled() => {}
            }
            if entry.as_ref().is_some_and(|entry| entry.stop.is_lost()) {
                right.leave();
            } else if shared.draining.is_cancelled() {
                right.hand_back();
            } else {
                let assignment = Assignment {
                    job: rest.job,
                    matter,
                    arrival: rest.arrival,
                    since: rest.since.max(due),
                    leased_from: rest.leased_from,
                    entry,
                    with_handler: None,
                    park: None,
                    is_returned: false,
                    right,
                    start: Start::InHand(run, revision),
                };
                // Dropped with its right if the scheduler is gone: handed back.
                let _ = again.send(assignment);
            }
        }
        shared.in_hand_retries.fetch_sub(1, Ordering::Relaxed);
    });
}
