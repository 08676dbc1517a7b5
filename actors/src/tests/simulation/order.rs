//! The order of a key: what is stored of it, what waits, and whether a job overtakes another. The code that ships asks
//! for it, and decides.

use bytes::Bytes;
use longshore_backbone::Error;
use longshore_backbone::delivery::{AckToken, Delivery};
use longshore_backbone::in_order::{Waiting, Waits};
use longshore_backbone::wire::header::names;
use longshore_domain::concurrency::{Order, OrderId};
use longshore_domain::run::{Holding, MessageId};
use longshore_domain::{Lane, Priority, Queue, RunId};

use crate::attempt::keys::order;
use crate::tests::simulation::gated::{Entry, Gated};
use crate::tests::simulation::mutation::Mutation;
use crate::tests::simulation::plan::{Plan, Way};
use crate::tests::simulation::ports::NAMES;
use crate::tests::simulation::server::{Due, Message, Server};
use crate::tests::simulation::worker::{Hand, seal_text};
use crate::tests::simulation::world::{World, stamp};

impl World {
    /// A run of the key that comes before this one, and has not ended.
    pub(crate) fn comes_before(&self, plan: usize) -> Option<usize> {
        let group = self.plans[plan].group.filter(|_| self.gated == Gated::Ordered)?;
        let turn = |plan: usize| Some(self.record(plan)?.run.turn.as_ref()?.number);
        let number = turn(plan)?;
        // A run that is delayed or given another time takes its place when that has come.
        let is_put_off = |of: &Plan| {
            of.reschedule_at.is_some() || of.options.as_ref().is_some_and(|options| options.run_at.is_some())
        };
        let is_before = |other: &usize| {
            let of = &self.plans[*other];
            if *other == plan || of.group != Some(group) || of.job.get().is_none() || is_put_off(of) {
                return false;
            }
            match self.record(*other) {
                Some(stored) => !stored.run.state.is_terminal() && turn(*other).is_some_and(|turn| turn < number),
                None => {
                    let is_its = |message: &Message| message.plan == *other && !message.moved;
                    self.server.borrow().lane.iter().any(|message| is_its(message) && message.sequence < number)
                }
            }
        };
        // One with an id of its own may be published more than once, and then has more than one place. In a lane that
        // was made anew, a job has the id of a former one until a node has met it.
        let made_anew = self.server.borrow().made_anew;
        if is_put_off(&self.plans[plan]) || self.plans[plan].way != Way::Bare || made_anew {
            return None;
        }
        (0..self.plans.len()).find(is_before)
    }

    /// The number of a message in the order of its key. One that a node moved carries that of its run.
    fn number_in_order(&self, message: &Message) -> u64 {
        let stored = if message.moved { self.record(message.place.plan) } else { None };
        let turn = stored.and_then(|stored| stored.run.turn.as_ref().map(|turn| turn.number));
        turn.unwrap_or(message.sequence)
    }
}

/// A parked job, as a message.
fn as_message(parked: &Due) -> Message {
    let (place, seal, at) = (parked.schedule.place, parked.schedule.seal, parked.schedule.at);
    let message = crate::tests::simulation::intake::job(place.plan, at);
    Message { sequence: parked.sequence, place, seal, moved: true, ..message }
}

impl Hand<'_> {
    pub(super) async fn order(&self, id: &OrderId) -> Result<(Order, u64), Error> {
        Ok(match self.client.read_entry(&format!("orders.{id}")).await? {
            Some((Entry::Order(order), revision)) if self.world.is(Mutation::OnlyTheLastOfABatchLookedAt) => {
                (order.without_first(order.batch().len().saturating_sub(1)), revision)
            }
            Some((Entry::Order(order), revision)) => (order, revision),
            _ => (Order::default(), 0),
        })
    }

    pub(super) async fn put_order(&self, id: &OrderId, order: &Order, expected: u64) -> Result<bool, Error> {
        let written = self.client.write_entry(&format!("orders.{id}"), Entry::Order(order.clone()), expected).await;
        Ok(written?.is_some())
    }

    pub(super) async fn waiting_in(
        &self,
        id: &OrderId,
        waits: Waits,
        beyond: u64,
        up_to: u64,
    ) -> Result<Vec<Waiting>, Error> {
        let world = self.world;
        let is_missed = match waits {
            Waits::InLane => world.is(Mutation::LaneNotReadForAnOrder),
            Waits::Parked => world.is(Mutation::ParkedNotReadForAnOrder),
            Waits::Returned => false,
        };
        if is_missed {
            return Ok(Vec::new());
        }
        let list = |server: &Server| match waits {
            Waits::Parked => server.parked.iter().map(as_message).collect(),
            _ => server.lane.iter().filter(|message| message.returned == (waits == Waits::Returned)).copied().collect(),
        };
        let found: Vec<Message> = self.client.list(list).await;
        let is_of_key = |plan: usize| order::of(world.plans[plan].policies(), world.plans[plan].job());
        let found = found.into_iter().filter(|message| is_of_key(message.place.plan).as_ref() == Some(id));
        let numbered = found.map(|message| (world.number_in_order(&message), message));
        let mut numbered: Vec<_> = numbered.filter(|(number, _)| *number > beyond && *number <= up_to).collect();
        numbered.sort_unstable_by_key(|(number, message)| (*number, message.sequence));
        let waiting = |(number, message)| Waiting { delivery: self.as_delivered(&message), number };
        Ok(numbered.into_iter().map(waiting).collect())
    }

    /// A message as if it had been delivered.
    fn as_delivered(&self, message: &Message) -> Delivery {
        let (world, place) = (self.world, message.place);
        let plan = &world.plans[place.plan];
        let mut headers = self.headers_of(place.plan);
        if message.moved || !plan.has_derived_id() {
            headers.insert(names::RUN_ID, plan.job().run_id.as_str());
        }
        if message.seal > 0 {
            headers.insert(names::SEAL, seal_text(message.seal).as_str());
        }
        if message.moved {
            headers.insert(names::ROUND, place.round.to_string());
            headers.insert(names::ATTEMPT, place.attempt.to_string());
            headers.insert(names::DEFERRALS, place.deferrals.to_string());
            headers.insert(names::DUE_AT, message.since.to_string());
        }
        let of = MessageId { stream: world.stream(message), sequence: message.sequence, at: stamp(message.at) };
        let (job, lane) = (plan.job(), Lane::new(&Queue::main(), Priority::DEFAULT));
        Delivery {
            subject: NAMES.job(&job.tenant, &lane, &job.job_type).into(),
            headers: Some(headers),
            payload: Bytes::new(),
            size: 0,
            holding: Holding { message: of, delivery: message.delivered.max(1) },
            behind: 0,
            on_its_way: None,
            leased_from: self.leased_from(),
            ack_token: AckToken::none(),
        }
    }

    /// Whether the lane has a message of this sequence.
    pub(super) async fn has_in_lane(&self, sequence: u64) -> bool {
        let is_it = |message: &Message| message.sequence == sequence && !message.returned;
        !self.world.is(Mutation::JobThatNoNodeHasMetTakenForEnded) && self.client.look_in_lane(is_it).await.is_some()
    }

    /// Those of the parked jobs whose turn it is, or that have nothing to wait for.
    pub(super) async fn next_in_order(&self, id: &OrderId) -> Result<Vec<Due>, Error> {
        let order::TakeBack { first, stale } = order::to_take_back(self, id, self.world.now()).await?;
        let wanted: Vec<RunId> = stale.into_iter().chain(first).collect();
        let is_wanted = |parked: &&Due| {
            let job = self.world.plans[parked.schedule.place.plan].job();
            wanted.contains(&job.run_id)
        };
        Ok(self.client.list(|server| server.parked.iter().filter(is_wanted).copied().collect()).await)
    }
}
