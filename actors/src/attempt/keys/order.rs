//! The order of a concurrency key, for types that are `ordered`: a run starts once all that came before it in its lane
//! have ended. [`Order`] decides; this reads what it asks for and writes what it says.
//!
//! Why no run is overtaken:
//!
//! * A batch of the order names the first of all that waits ([`cut`]). It misses none: a job that is in no batch stands
//!   in its lane, from where it goes only to the parked jobs or to its end; and `cut` reads the lane first, then the
//!   parked jobs.
//! * A run starts only as the first of its batch that has not ended.
//! * No batch is cut before all runs of the last one have ended.

use futures_util::future::{join, try_join_all};
use longshore_backbone::Error;
use longshore_backbone::in_order::{WINDOW, Waiting, Waits};
use longshore_backbone::records::Found;
use longshore_domain::clearance::{self, clear};
use longshore_domain::concurrency::{BATCH, Member, Next, Order, OrderId, Place, Turn};
use longshore_domain::policy::Policies;
use longshore_domain::protocol::Verdict;
use longshore_domain::settlement::Settlement;
use longshore_domain::{Job, Lane, Run, RunId, Timestamp};

use crate::attempt::assignment::{Assignment, Start, number_of};
use crate::attempt::keys::{Denied, record_first};
use crate::attempt::ports::Ports;
use crate::attempt::running::AttemptState;
use crate::commit::keys::{AT_ONCE, LASTS, first_open};
use crate::ports::Server;
use crate::runtime::fail_point;
use crate::runtime::kind::Kind;

/// Once so many of the batch have ended, it is written without them, so that no node reads their records again.
const ENDED: usize = 4;

/// The order in which a job has its place, if its type is `ordered`.
pub(crate) fn of(policies: &Policies, job: &Job) -> Option<OrderId> {
    let options = job.options.as_deref()?;
    options.concurrency_key.as_ref()?;
    let is_ordered = policies.of(&job.job_type).ordered;
    is_ordered.then(|| of_kind(&Kind::of(job), job.lane()))
}

/// The order of the jobs of this kind in one lane.
pub(crate) fn of_kind(kind: &Kind, lane: Lane) -> OrderId {
    OrderId { tenant: kind.tenant.clone(), lane, job_type: kind.job_type.clone(), key: kind.key.to_string().into() }
}

pub(crate) fn has_order(policies: &Policies, kind: &Kind) -> bool {
    kind.key.concurrency_key().is_some() && policies.of(&kind.job_type).ordered
}

/// Has the run of a job that may start, or that `parks`, wait for its turn, if it has one.
pub(crate) async fn come<P: Ports>(
    ports: &P,
    assignment: &Assignment,
    attempt_state: &mut AttemptState,
    parks: bool,
) -> Result<(), Denied> {
    let Some(id) = of(ports.policies(), &assignment.job) else { return Ok(()) };
    let run = &mut attempt_state.run;
    if run.has_started() {
        // Its turn lasts until it has ended.
        return Ok(());
    }
    let turn = Turn { key: id.key.clone(), number: number(ports.server(), assignment) };
    let number = run.turn.get_or_insert_with(|| Box::new(turn)).number;
    if parks {
        return Ok(());
    }
    record_first(ports, assignment, attempt_state, None, "before-line").await?;
    let run = &attempt_state.run;
    let me = Member { run_id: run.run_id.clone(), round: run.round, place: Place { at: assignment.since, number } };
    loop {
        let (order, revision) = ports.server().read_order(&id).await?;
        let (ended, first) = first_open(ports.server(), &id, &order).await?;
        match Order::next(&me, first.map(|(member, _)| member)) {
            Next::Mine => {
                if ended >= ENDED {
                    // It only saves others some reads: whether it is written does not matter.
                    drop(ports.server().write_order(&id, &order.without_first(ended), revision, LASTS).await);
                }
                return Ok(());
            }
            Next::After(_) => return Err(Denied::waits(assignment)),
            // All of its batch have ended, and it is among them: another attempt brought it to its end meanwhile. Cut
            // again, the batch would have it once more, for ever.
            Next::Cut if order.batch().iter().any(|member| member.is(&me)) => {
                let stored = ports.server().read_record(&id.tenant, &me.run_id).await?;
                return Err(Denied::Overtaken(stored.map(Box::new)));
            }
            Next::Cut => {
                let next = cut(ports.server(), &id, Some(&me), ports.now()).await?.order;
                match ports.server().write_order(&id, &next, revision, LASTS).await {
                    Ok(true) => fail_point::pass("after-line"),
                    Ok(false) => {}
                    // A job that is in no batch may only be parked.
                    Err(error) if error.is_stream_full() => return Err(Denied::waits(assignment)),
                    Err(error) => return Err(error.into()),
                }
            }
        }
    }
}

/// The number of a job in the order of its key: the sequence in its lane under which it came.
fn number<S: Server>(server: &S, assignment: &Assignment) -> u64 {
    let (job, message) = (&assignment.job, &assignment.arrival.holding.message);
    match message.stream == server.names().lane_stream(&job.queue, job.priority) {
        true => message.sequence,
        // It was moved before its type was `ordered`.
        false => number_of(&job.run_id, message.sequence),
    }
}

pub(crate) struct Cut {
    pub(crate) order: Order,
    /// Runs that were found parked, and go on otherwise or have ended.
    pub(crate) stale: Vec<RunId>,
}

/// Cuts the next batch of what waits: up to `me`, which is about to start; without it, up to the last that is parked.
async fn cut<S: Server>(server: &S, id: &OrderId, me: Option<&Member>, now: Timestamp) -> Result<Cut, Error> {
    let (mut beyond, mut stale) = (0, Vec::new());
    loop {
        let up_to = match me {
            Some(me) => me.place.number,
            None => {
                let parked = server.waiting_in_order(id, Waits::Parked, beyond, u64::MAX).await?;
                match parked.last() {
                    Some(last) => last.number,
                    None => return Ok(Cut { order: Order::default(), stale }),
                }
            }
        };
        // The lane before the parked jobs: so a job that is being parked is met in one of them. Only jobs that were in
        // a batch are among the returned ones.
        let (in_lane, returned) = join(
            server.waiting_in_order(id, Waits::InLane, beyond, up_to),
            server.waiting_in_order(id, Waits::Returned, beyond, up_to),
        )
        .await;
        let (in_lane, returned) = (in_lane?, returned?);
        let parked = server.waiting_in_order(id, Waits::Parked, beyond, up_to).await?;
        let all_up_to = [&in_lane, &returned, &parked].into_iter().filter(|some| some.len() >= WINDOW);
        let up_to = all_up_to.filter_map(|some| some.last()).map(|last| last.number).min().unwrap_or(up_to);
        let mut open = Vec::new();
        let waiting = in_lane.into_iter().chain(returned).map(|waiting| (waiting, false));
        let waiting = waiting.chain(parked.into_iter().map(|waiting| (waiting, true)));
        let mut waiting: Vec<(Waiting, bool)> = waiting.filter(|(waiting, _)| waiting.number <= up_to).collect();
        waiting.sort_by_key(|(waiting, _)| waiting.number);
        let mut waiting = waiting.into_iter().peekable();
        while open.len() < BATCH && waiting.peek().is_some() {
            let some =
                waiting.by_ref().take(AT_ONCE).map(|(waiting, is_parked)| judge(server, waiting, is_parked, now));
            for stands in try_join_all(some).await? {
                match stands {
                    Stands::Open(member) => open.push(member),
                    Stands::Stale(run) => stale.push(run),
                    Stands::Elsewhere => {}
                }
            }
        }
        let is_whole = me.is_none_or(|me| me.place.number == up_to);
        if open.is_empty() && !is_whole {
            beyond = up_to;
            continue;
        }
        // Its own message may have been read too early, or under another id.
        open.extend(me.filter(|_| is_whole).cloned());
        return Ok(Cut { order: Order::cut(open), stale });
    }
}

/// How a message that was read stands to its run.
enum Stands {
    /// The run waits, or works, under it.
    Open(Member),
    /// It is parked, and has nothing more to say.
    Stale(RunId),
    /// It has nothing to do with the order.
    Elsewhere,
}

async fn judge<S: Server>(server: &S, waiting: Waiting, is_parked: bool, now: Timestamp) -> Result<Stands, Error> {
    let Waiting { delivery, number } = waiting;
    let assignment = Assignment::read(delivery, server.names(), u64::MAX, usize::MAX);
    let Assignment { job, arrival, .. } = &assignment;
    if matches!(assignment.start, Start::Invalid(_)) {
        return Ok(Stands::Elsewhere);
    }
    let found = server.read_record(&job.tenant, &job.run_id).await?;
    let found = found.as_ref().map(|found| &found.run);
    let is_open = match server.on_arrival(found, arrival) {
        Verdict::Begin { .. } | Verdict::BeginAgain { .. } => !waits_for_its_time(&assignment, now),
        Verdict::HeldElsewhere | Verdict::StaleRecord => true,
        Verdict::TakeOver => found.is_some_and(|run| run.has_started() || run.state.is_parked()),
        Verdict::Drop | Verdict::CarryOut | Verdict::PublishEnd if is_parked => {
            return Ok(Stands::Stale(job.run_id.clone()));
        }
        _ => false,
    };
    if !is_open {
        return Ok(Stands::Elsewhere);
    }
    let round = found.map_or(arrival.round, |run| run.round.max(arrival.round));
    Ok(Stands::Open(Member { run_id: job.run_id.clone(), round, place: Place { at: assignment.since, number } }))
}

/// Whether the job is to be scheduled once a node meets it: it takes its place when it comes back.
fn waits_for_its_time(assignment: &Assignment, now: Timestamp) -> bool {
    let waiting = clearance::JobFacts {
        options: assignment.job.options.as_deref(),
        enqueued_at: assignment.since,
        fell_due: assignment.arrival.moved,
        started_before: false,
        needs: None,
    };
    matches!(clear(waiting, now).refusal(), Some(Settlement::Schedule(_)))
}

/// What parking has to take back of a key.
#[derive(Debug, Default)]
pub(crate) struct TakeBack {
    /// The run whose turn it is, if that is parked.
    pub(crate) first: Option<RunId>,
    /// Runs that are parked and have ended, or went on otherwise.
    pub(crate) stale: Vec<RunId>,
}

/// What is to be taken back of the parked jobs of a key.
pub(crate) async fn to_take_back<S: Server>(server: &S, id: &OrderId, now: Timestamp) -> Result<TakeBack, Error> {
    let (order, revision) = server.read_order(id).await?;
    match first_open(server, id, &order).await? {
        (_, Some((member, found))) => Ok(TakeBack { first: parked(member, found.as_ref()), stale: Vec::new() }),
        (_, None) => {
            let Cut { order, stale } = cut(server, id, None, now).await?;
            let first = match order.batch() {
                [] => None,
                [first, ..] if server.write_order(id, &order, revision, LASTS).await? => {
                    let found = server.read_record(&id.tenant, &first.run_id).await?;
                    parked(first, found.as_ref())
                }
                // Another node was faster: the next call finds what it wrote.
                _ => None,
            };
            Ok(TakeBack { first, stale })
        }
    }
}

fn parked(member: &Member, found: Option<&Found>) -> Option<RunId> {
    found.is_some_and(|found| found.run.state.is_parked()).then(|| member.run_id.clone())
}

/// The run that comes before another in the order of its key and has not ended, with its record if it has one.
pub(crate) async fn before<S: Server>(server: &S, run: &Run) -> Result<Option<(RunId, Option<Run>)>, Error> {
    let Some(id) = run.order().filter(|_| !run.has_started()) else { return Ok(None) };
    let (order, _) = server.read_order(&id).await?;
    let (_, first) = first_open(server, &id, &order).await?;
    let first = first.filter(|(member, _)| member.run_id != run.run_id);
    Ok(first.map(|(member, found)| (member.run_id.clone(), found.map(|found| found.run))))
}
