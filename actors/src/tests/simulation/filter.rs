//! A person cancels all runs that fit a filter, or those of them that do not run: by the code that ships.

use longshore_backbone::Error;
use longshore_backbone::request::Stored;
use longshore_backbone::scan::{Page, Source};
use longshore_backbone::wire::api;
use longshore_backbone::wire::header::names;
use longshore_chance::Chance;
use longshore_domain::{Priority, Queue, QueueLane, Run, RunId, RunState, Tenant};

use crate::api::cancel;
use crate::api::filter::RunFilter;
use crate::ports::FilterPorts;
use crate::tests::simulation::intake::job;
use crate::tests::simulation::mutation::Mutation;
use crate::tests::simulation::plan::Way;
use crate::tests::simulation::server::{Due, Message, Place, Schedule};
use crate::tests::simulation::worker::{Delivery, Does, Hand, seal_text};
use crate::tests::simulation::world::{World, stamp};

/// A person asks this often before giving up.
const TRIES: usize = 5;

/// Which runs are to be cancelled.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wish {
    /// Those in this state; `None`: in any.
    state: Option<RunState>,
    /// Those whose attempt runs go on.
    only_if_waiting: bool,
}

impl Wish {
    pub(crate) fn draw(chance: &Chance) -> Self {
        let states = [None, Some(RunState::Enqueued), Some(RunState::Scheduled), Some(RunState::Retrying)];
        Self { state: chance.pick(&states), only_if_waiting: chance.hits(5_000) }
    }
}

/// Cancels the runs that fit. A person whose request was not carried out in full asks again.
pub(crate) async fn cancel_those(world: &World, node: usize, Wish { state, only_if_waiting }: Wish) {
    let Some(index) = world.plans.iter().position(|plan| plan.job.get().is_some()) else { return };
    let hand = Hand::new(world, node, Delivery::of_stored(job(index, world.published_at(index)), world.clock.get()));
    hand.does.set(Does::Cancels);
    let tenant = Some(Tenant::default_tenant());
    let filter_of = |state| {
        let wanted = api::Filter { state, ..api::Filter::default() };
        RunFilter { tenant: tenant.clone(), wanted }
    };
    *hand.filter.borrow_mut() = Some(filter_of(state));
    let filter = filter_of(state.filter(|_| !world.is(Mutation::FilterNotKept)));
    for _ in 0..TRIES {
        let asked_at = world.clock.get();
        let before = Waiting::all(world, &filter);
        let outcome = match only_if_waiting {
            true => cancel::cancel_waiting(&hand, &filter, u64::MAX, false).await,
            false => cancel::all(&hand, &filter, u64::MAX).await,
        };
        world.say(|| format!("{} has cancelled those that fit: {outcome:?}", hand.client.name()));
        if outcome.is_ok_and(|outcome| outcome.failed.is_empty() && !outcome.more) {
            // A leader that was cut off knows an earlier state of a run, which may not have fitted.
            let was_cut = world.nodes[node].cut.get().1 > asked_at;
            if !was_cut {
                before.iter().for_each(|waiting| waiting.check(world, &filter));
            }
            return;
        }
        world.pause(world.chance.between(10, 1_000)).await;
    }
}

/// A run that waits, and fits.
#[derive(Debug, PartialEq, Eq)]
struct Waiting {
    plan: usize,
    /// The revision of its record, or the sequence of its message that no node has had.
    known_by: Result<u64, u64>,
}

impl Waiting {
    fn all(world: &World, filter: &RunFilter) -> Vec<Self> {
        (0..world.plans.len()).filter_map(|plan| Self::find(world, plan, filter)).collect()
    }

    fn find(world: &World, plan: usize, filter: &RunFilter) -> Option<Self> {
        // Of two messages that speak for one run, one may do so for another.
        let is_forged = |way: Way| way == Way::Forged(plan);
        let is_clear = !matches!(world.plans[plan].way, Way::Forged(_));
        world.plans[plan].job.get()?;
        if !is_clear || world.plans.iter().any(|plan| is_forged(plan.way)) {
            return None;
        }
        let (server, key) = (world.server.borrow(), world.key(plan));
        let is_its = |message: &&Message| message.place.plan == plan;
        if let Some(stored) = world.record(plan) {
            let waits = !stored.run.state.is_terminal() && stored.run.state != RunState::Running;
            let fits = waits && server.has_job_of(plan) && filter.fits(&stored.run);
            return fits.then_some(Self { plan, known_by: Ok(stored.revision) });
        }
        // The id may be that of a run of a lane that is gone.
        let message = server.lane.iter().find(is_its).filter(|_| server.read(key).is_none())?;
        let run = Run::new(world.plans[plan].job(), world.plans[plan].max_attempts, stamp(message.at));
        let is_new = message.delivered == 0 && filter.fits(&run);
        is_new.then_some(Self { plan, known_by: Err(message.sequence) })
    }

    /// It does not wait any more as it did before the request.
    fn check(&self, world: &World, filter: &RunFilter) {
        if Self::find(world, self.plan, filter).as_ref() == Some(self) {
            world.ledger.borrow_mut().accuse(self.plan, "it fits, and was left alone");
        }
    }
}

impl Hand<'_> {
    /// A client that cancels runs that fit cancels no others.
    pub(super) fn check_filter(&self, plan: usize, run: &Run, expected: u64) {
        let filter = self.filter.borrow();
        let Some(filter) = filter.as_ref().filter(|_| run.state == RunState::Cancelled) else { return };
        let before = self.world.record(plan).filter(|before| before.revision == expected);
        let before = before.filter(|before| !before.run.state.is_terminal());
        if before.is_some_and(|before| !filter.fits(&before.run)) {
            self.world.ledger.borrow_mut().accuse(plan, "it does not fit, and was cancelled");
        }
    }

    /// A message as a page has it.
    fn listed(&self, sequence: u64, place: Place, seal: u64) -> Stored {
        let world = self.world;
        let plan = &world.plans[place.plan];
        let job = if place.timed { plan.timed_job(stamp(world.published_at(place.plan))) } else { plan.job() };
        let mut headers = self.headers_of(place.plan);
        headers.insert(names::RUN_ID, job.run_id.as_str());
        headers.insert(names::ROUND, place.round.to_string());
        headers.insert(names::ATTEMPT, place.attempt.to_string());
        headers.insert(names::SEAL, seal_text(seal).as_str());
        if place.deferrals > 0 {
            headers.insert(names::DEFERRALS, place.deferrals.to_string());
        }
        let (subject, at) = (format!("longshore.any.{}", job.tenant), String::new());
        Stored { subject, sequence, at, headers, payload: plan.payload.into() }
    }

    async fn listed_schedules(
        &self,
        list: impl Fn(&crate::tests::simulation::server::Server) -> Vec<Due>,
    ) -> Vec<Stored> {
        let found = self.client.list(list).await;
        let listed = |due: Due| self.listed(due.sequence, due.schedule.place, due.schedule.seal);
        found.into_iter().map(listed).collect()
    }
}

impl FilterPorts for Hand<'_> {
    async fn declared_queues(&self) -> Result<Vec<Queue>, Error> {
        Ok(vec![Queue::main()])
    }

    async fn page(&self, place: &Source, subject: &str, _: u64) -> Result<Page, Error> {
        let of = |schedule: &Schedule| Due { sequence: schedule.sequence, schedule: *schedule, until: 0 };
        let messages = match place {
            Source::Lane(_, lane) if *lane == QueueLane::Returned || *lane == QueueLane::from(Priority::DEFAULT) => {
                let is_in_it = |message: &&Message| message.returned == (*lane == QueueLane::Returned);
                let found = self.client.list(|server| server.lane.iter().filter(is_in_it).copied().collect()).await;
                found.into_iter().map(|found: Message| self.listed(found.sequence, found.place, found.seal)).collect()
            }
            Source::Parked if self.world.is(Mutation::ParkedJobsNotSearched) => Vec::new(),
            Source::Parked => self.listed_schedules(|server| server.parked.clone()).await,
            Source::Schedules if subject.contains(".retries.") => {
                self.listed_schedules(|server| server.schedules.iter().map(of).collect()).await
            }
            Source::Schedules if subject.contains(".due.") => self.listed_schedules(|server| server.due.clone()).await,
            // Nothing is there.
            _ => Vec::new(),
        };
        Ok(Page { messages, next: None })
    }

    fn run_in_lane(&self, _: &Queue, _: QueueLane, stored: &Stored) -> (Tenant, RunId) {
        let run_id = stored.headers.get(names::RUN_ID).map_or("", |run_id| run_id.as_str());
        (Tenant::default_tenant(), RunId::parse(run_id).expect("a listed job has its run's id"))
    }
}
