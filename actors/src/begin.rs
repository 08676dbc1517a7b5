//! How an attempt begins: by the short way, or by a claim on the run's record.

use longshore_backbone::claims::{Claim, Claimed, fingerprint};
use longshore_backbone::records::{Found, Written};
use longshore_domain::clearance::{Clearance, Waiting, clear};
use longshore_domain::protocol::{self, Verdict};
use longshore_domain::run::{DeferReason, Deferral, whole_millis};
use longshore_domain::settlement::{Outcome, Settlement};
use longshore_domain::{ErrorKind, Failure, Run, RunState, story};
use tokio::sync::oneshot;

use crate::assignment::{Assignment, Start};
use crate::carry_out::chain;
use crate::conclude;
use crate::fail_point;
use crate::herald::Telling;
use crate::lines::Lines;
use crate::perform::InWork;
use crate::shared::{Shared, now};
use crate::story::{Story, Then, Told};

/// An attempt on its way.
#[derive(Debug)]
pub(crate) struct Course {
    /// The record as it is, or would be if it were written now.
    pub(crate) run: Box<Run>,
    /// The revision that its next write must find.
    pub(crate) expected: u64,
    /// What of the round was told.
    pub(crate) told: Told,
    /// What was told live and is still to be told in the log.
    pub(crate) lines: Option<Lines>,
    /// A record says that it runs.
    pub(crate) on_record: bool,
    /// Lines of its handler's progress that the log has not, because it does not know of the start yet.
    pub(crate) progress: Vec<u8>,
}

/// What came of beginning.
#[expect(clippy::large_enum_variant, reason = "made and taken apart at once, for every job")]
pub(crate) enum Begun {
    /// The handler may go to work.
    Work(InWork),
    /// There is nothing to be done, or it is on its way to the herald.
    Over,
}

/// Begins the attempt that a delivery is about.
///
/// Only the short way is part of this future; the others are boxed, so that the future of a worker's message, which is
/// allocated for every job, stays small.
pub(crate) async fn begin(shared: &Shared, mut assignment: Box<Assignment>) -> Begun {
    match std::mem::replace(&mut assignment.start, Start::Claim) {
        Start::ShortWay if shared.recently_cancelled.has(&assignment.job) => Box::pin(claim(shared, assignment)).await,
        Start::ShortWay => short_way(shared, assignment).await,
        Start::Claim => Box::pin(claim(shared, assignment)).await,
        Start::InHand(run, revision) => Box::pin(again_in_hand(shared, assignment, run, revision)).await,
        Start::Invalid(reason) => Box::pin(unreadable(shared, assignment, reason)).await,
    }
}

/// A job that cannot be read becomes a dead letter. It may have become one before, in a node that died over it.
async fn unreadable(shared: &Shared, assignment: Box<Assignment>, reason: String) -> Begun {
    let job = &assignment.job;
    let found = match shared.backbone.read_record(&job.tenant, &job.run_id).await {
        Ok(found) => found,
        Err(error) => return put_off(assignment, &error),
    };
    let verdict = protocol::on_arrival(found.as_ref().map(|found| &found.run), &assignment.arrival);
    let expected = match (verdict, found) {
        (_, None) => 0,
        (Verdict::BeginAnew, Some(found)) => found.revision,
        (verdict, Some(found)) => return not_begun(shared, assignment, found, verdict).await,
    };
    // It has one event only, that of its dead letter.
    let run = Box::new(Run { enqueued_at: None, ..fresh(shared, &assignment) });
    let failure = Failure::new(ErrorKind::Invalid, reason);
    let course = Course { run, expected, told: Told::default(), lines: None, on_record: false, progress: Vec::new() };
    tracing::warn!(run_id = %assignment.job.run_id, "unreadable job: {}", failure.message);
    conclude::carry_out(shared, assignment, course, Settlement::Dead { failure }).await;
    Begun::Over
}

/// A run of which nothing is on record.
fn fresh(shared: &Shared, assignment: &Assignment) -> Run {
    let mut run = Run::new(&assignment.job, shared.max_attempts(&assignment.job), assignment.since);
    run.origin = assignment.arrival.holding.message.at;
    run.round = assignment.arrival.round;
    run.keep_ms = run.keep_ms.or_else(|| shared.policy(&assignment.job).keep.map(whole_millis));
    run
}

async fn short_way(shared: &Shared, assignment: Box<Assignment>) -> Begun {
    let run = Box::new(fresh(shared, &assignment));
    let expected = assignment.revision.unwrap_or(0);
    let course = Course { run, expected, told: Told::default(), lines: None, on_record: false, progress: Vec::new() };
    match cleared(&assignment, &course.run, false) {
        Ok(()) => {
            let course = started(shared, &assignment, course, 1);
            Begun::Work(InWork::new(assignment, course))
        }
        Err(settlement) => {
            Box::pin(conclude::carry_out(shared, assignment, course, settlement)).await;
            Begun::Over
        }
    }
}

/// May the job start now? If not, what follows.
fn cleared(assignment: &Assignment, run: &Run, fell_due: bool) -> Result<(), Settlement> {
    let waiting = Waiting {
        options: assignment.job.options.as_deref(),
        enqueued_at: run.enqueued_at.unwrap_or(assignment.since),
        fell_due,
        started_before: run.has_started(),
    };
    match clear(waiting, now()) {
        Clearance::Start => Ok(()),
        Clearance::NotBefore(at) => Err(Settlement::Schedule { at }),
        Clearance::Expired => Err(Settlement::Expire),
        Clearance::TooLate => {
            let failure = Failure::new(ErrorKind::Timeout, "the run's deadline had passed before it could start");
            Err(Settlement::Dead { failure })
        }
    }
}

/// Notes the start of an attempt; nothing is written yet.
fn started(shared: &Shared, assignment: &Assignment, mut course: Course, attempt: u32) -> Course {
    let run = &mut course.run;
    run.begin(attempt, &shared.node, now());
    run.held_by = Some(assignment.arrival.holding.clone());
    course
}

/// Reads the record, claims what this delivery may claim, and looks again whenever somebody else was faster.
async fn claim(shared: &Shared, assignment: Box<Assignment>) -> Begun {
    let job = &assignment.job;
    if shared.book.has(&assignment.arrival.holding.message) {
        // This very node is working on it: the server forgot that it had handed it out. Renewals go on as before.
        assignment.right.leave();
        return Begun::Over;
    }
    let mut found = match shared.backbone.read_record(&job.tenant, &job.run_id).await {
        Ok(found) => found,
        Err(error) => return put_off(assignment, &error),
    };
    loop {
        let verdict = protocol::on_arrival(found.as_ref().map(|found| &found.run), &assignment.arrival);
        let base = match (verdict, found.take()) {
            (Verdict::Begin { round, attempt }, found) => on(shared, &assignment, found, round, attempt),
            (Verdict::BeginAgain { round, attempt }, Some(found)) => {
                tell_again(shared, &assignment, &found.run).await;
                on(shared, &assignment, Some(found), round, attempt)
            }
            (Verdict::BeginAnew, Some(found)) => {
                let base = on(shared, &assignment, None, 1, 1);
                Base { expected: found.revision, ..base }
            }
            (verdict, Some(found)) => return not_begun(shared, assignment, found, verdict).await,
            (_, None) => unreachable!("without a record the verdict is to begin"),
        };
        let Base { run, expected, told, attempt, fell_due } = base;
        let mut course = Course { run, expected, told, lines: None, on_record: true, progress: Vec::new() };
        let refused = match cleared(&assignment, &course.run, fell_due) {
            Err(settlement) => Some(settlement),
            Ok(()) => match claim_key(shared, &assignment, attempt).await {
                Ok(refused) => refused,
                Err(error) => return put_off(assignment, &error),
            },
        };
        if let Some(settlement) = refused {
            conclude::carry_out(shared, assignment, course, settlement).await;
            return Begun::Over;
        }
        course = started(shared, &assignment, course, attempt);
        course.run.token = shared.token();
        fail_point::pass("before-claim");
        match shared.backbone.write_record(&course.run, course.expected).await {
            Ok(Written::Won(revision)) => {
                fail_point::pass("after-claim");
                course.expected = revision;
                return Begun::Work(InWork::new(assignment, course));
            }
            Ok(Written::Lost(now_found)) => found = now_found.map(|found| *found),
            Err(error) => return put_off(assignment, &error),
        }
    }
}

/// What a claim is made on.
struct Base {
    run: Box<Run>,
    expected: u64,
    told: Told,
    attempt: u32,
    fell_due: bool,
}

fn on(shared: &Shared, assignment: &Assignment, found: Option<Found>, round: u32, attempt: u32) -> Base {
    let Some(Found { run, revision }) = found else {
        let mut run = Box::new(fresh(shared, assignment));
        run.round = round;
        let fell_due = assignment.arrival.moved;
        return Base { run, expected: 0, told: Told::default(), attempt, fell_due };
    };
    let mut run = Box::new(run);
    let scheduled = run.state == RunState::Scheduled;
    let untold = scheduled || run.held_by.is_none();
    if scheduled || run.enqueued_at.is_none() {
        run.enqueued_at = Some(assignment.since);
    }
    // What is on record was told by whoever wrote it, before its message could come to anybody else: but for what
    // `submit` writes, which leaves telling to the node that takes the job up, and a deferral, which is told once.
    let deferral = run.deferral.take();
    let told_by_others = told_before(&run, attempt);
    let log = if untold { 0 } else { told_by_others };
    // A replay was told live by whoever did it; only the log must have it for certain.
    let live = if run.round > 1 && !scheduled { told_by_others } else { log };
    run.deferral = deferral;
    let fell_due = assignment.arrival.moved || run.has_started();
    Base { run, expected: revision, told: Told { live, log }, attempt, fell_due }
}

/// How many events of the round stand before the start of `attempt`.
fn told_before(run: &Run, attempt: u32) -> usize {
    let again = run.attempts_of_round().last().is_some_and(|last| last.attempt == attempt && last.put_back.is_some());
    let events = story::of_round(run).len();
    // The put-back start, and that it was put back, make room for the new one.
    if again { events.saturating_sub(2) } else { events }
}

/// Claims the job's idempotency key; says what follows if it is another run's.
async fn claim_key(
    shared: &Shared,
    assignment: &Assignment,
    attempt: u32,
) -> Result<Option<Settlement>, longshore_backbone::Error> {
    let job = &assignment.job;
    let Some(options) = job.options.as_ref().filter(|_| attempt == 1 && assignment.revision.is_none()) else {
        return Ok(None);
    };
    let Some(key) = &options.idempotency_key else { return Ok(None) };
    let window = options.idempotency_window.unwrap_or(shared.backbone.storage().idempotency_window);
    let print = fingerprint(job.job_type.as_str(), &assignment.matter.payload);
    let claim = Claim { run_id: job.run_id.clone(), fingerprint: print };
    Ok(match shared.backbone.claim_key(&job.tenant, key, &claim, window).await? {
        Claimed::Mine => None,
        Claimed::Theirs(theirs) => Some(Settlement::Duplicate { of: theirs.run_id }),
    })
}

/// The record says that this delivery is not to begin anything.
async fn not_begun(shared: &Shared, assignment: Box<Assignment>, found: Found, verdict: Verdict) -> Begun {
    let Found { run, revision } = found;
    let run = Box::new(run);
    match verdict {
        Verdict::Ignore => assignment.right.leave(),
        Verdict::Drop => shared.backbone.ack(assignment.right).await,
        Verdict::LeaseLost => lease_lost(shared, assignment, run, revision).await,
        Verdict::TakeOver => take_over(shared, assignment, run, revision).await,
        Verdict::CarryOut | Verdict::TellEnd => {
            // Decided under this message, or cancelled: told again, all of it, and carried out again.
            let follow = conclude::follow_of(&run);
            let live = story::of_round(&run).len();
            let told = Told { live, log: 0 };
            let mut story = Story::on_record(run, assignment.matter, told, &shared.node, &shared.backbone);
            story.follow = follow;
            story.then = Then::Ack(assignment.right);
            shared.herald.tell(Telling::Story(Box::new(story))).await;
        }
        Verdict::Begin { .. } | Verdict::BeginAgain { .. } | Verdict::BeginAnew => {
            unreachable!("what may begin has been begun")
        }
    }
    Begun::Over
}

/// The claim forgets a start that was put back, so that it was and how is in the log before: its node may have died
/// over the telling.
async fn tell_again(shared: &Shared, assignment: &Assignment, run: &Run) {
    let told = Told { live: story::of_round(run).len(), log: 0 };
    let (run, matter) = (Box::new(run.clone()), assignment.matter.clone());
    let mut story = Story::on_record(run, matter, told, &shared.node, &shared.backbone);
    let (done, in_the_log) = oneshot::channel();
    story.then = Then::Report(done);
    shared.herald.tell(Telling::Story(Box::new(story))).await;
    // An error means that the process is ending.
    let _ = in_the_log.await;
}

/// The run waits for its time, perhaps in another node's hand: the write takes it from there, then it is scheduled.
async fn take_over(shared: &Shared, assignment: Box<Assignment>, mut run: Box<Run>, revision: u64) {
    let told = Told { live: story::of_round(&run).len(), log: 0 };
    run.held_by = Some(assignment.arrival.holding.clone());
    run.token = shared.token();
    let follow = conclude::follow_of(&run);
    let mut story = Story::to_write(run, assignment.matter, revision, told, &shared.node, &shared.backbone);
    story.arrival = Some(assignment.arrival);
    story.follow = follow;
    story.then = Then::Ack(assignment.right);
    shared.herald.tell(Telling::Story(Box::new(story))).await;
}

/// The attempt on record lost its lease: it is settled as that, and told for the node that could not.
async fn lease_lost(shared: &Shared, assignment: Box<Assignment>, run: Box<Run>, revision: u64) {
    let silent = run.node.clone().unwrap_or_else(|| "a node".into());
    tracing::warn!(run_id = %run.run_id, tenant = %run.tenant, attempt = run.attempt, node = %silent, "its holder lost the lease");
    let message = format!("{silent} fell silent while it held the job");
    let outcome = Outcome::Failed { failure: Failure::new(ErrorKind::LeaseExpired, message), retry_after: None };
    let told = Told { live: story::of_round(&run).len(), log: 0 };
    let course = Course { run, expected: revision, told, lines: None, on_record: true, progress: Vec::new() };
    conclude::judge(shared, assignment, course, outcome, conclude::Keep::Never).await;
}

/// A short retry that this node kept in hand: claimed on the revision it wrote itself.
async fn again_in_hand(shared: &Shared, assignment: Box<Assignment>, run: Box<Run>, revision: u64) -> Begun {
    let events = story::of_round(&run).len();
    let attempt = run.next_attempt();
    let told = Told { live: events, log: events };
    let course = Course { run, expected: revision, told, lines: None, on_record: true, progress: Vec::new() };
    if let Err(settlement) = cleared(&assignment, &course.run, true) {
        conclude::carry_out(shared, assignment, course, settlement).await;
        return Begun::Over;
    }
    let mut course = started(shared, &assignment, course, attempt);
    course.run.token = shared.token();
    fail_point::pass("before-claim");
    match shared.backbone.write_record(&course.run, course.expected).await {
        Ok(Written::Won(revision)) => {
            fail_point::pass("after-claim");
            course.expected = revision;
            Begun::Work(InWork::new(assignment, course))
        }
        // Cancelled, or taken up elsewhere: whoever did it answers for the run; this message is judged when it comes
        // again.
        Ok(Written::Lost(_)) => {
            assignment.right.hand_back();
            Begun::Over
        }
        Err(error) => put_off(assignment, &error),
    }
}

/// The record could not be read or written just now: the job goes back and keeps its place.
fn put_off(assignment: Box<Assignment>, error: &longshore_backbone::Error) -> Begun {
    tracing::warn!(run_id = %assignment.job.run_id, "handed back: {}", chain(error));
    assignment.right.hand_back();
    Begun::Over
}

impl Course {
    /// How often in a row its handler has put the job back.
    pub(crate) fn snoozes(&self) -> u32 {
        let deferral = self.run.deferral.as_ref();
        deferral.filter(|deferral| deferral.reason == DeferReason::Snoozed).map_or(0, |deferral| deferral.count)
    }

    /// How often in a row its handlers had no room.
    pub(crate) fn busy(&self) -> u32 {
        let deferral = self.run.deferral.as_ref();
        deferral.filter(|deferral| deferral.reason == DeferReason::Busy).map_or(0, |deferral| deferral.count)
    }

    /// Since when, and how often, the job was put off for want of a handler.
    pub(crate) fn no_handler(&self) -> Option<(longshore_domain::Timestamp, u32)> {
        let deferral: Option<&Deferral> = self.run.deferral.as_ref();
        deferral
            .filter(|deferral| deferral.reason == DeferReason::NoHandlerOnline)
            .map(|deferral| (deferral.since, deferral.count))
    }
}
