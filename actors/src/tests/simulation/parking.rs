//! Taking parked jobs back: which, how many and in which order is what ships; here is what the stream of parked jobs
//! answers.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Instant;

use futures_util::FutureExt as _;
use longshore_backbone::Error;
use longshore_backbone::parked::ParkedKind;
use longshore_domain::rank::Rank;
use longshore_domain::{Lane, Priority, Queue};

use crate::attempt::assignment::number_of;
use crate::attempt::keys::order;
use crate::queue::buffer::JobBuffer;
use crate::queue::parking::rounds::{IDLE_LOOK_EVERY, LOOK_EVERY, ParkedPorts, Parking, Read, Sought};
use crate::runtime::kind::Kind;
use crate::tests::simulation::client::Client;
use crate::tests::simulation::intake::{job, take_back};
use crate::tests::simulation::mutation::Mutation;
use crate::tests::simulation::queue::NodeQueue;
use crate::tests::simulation::server::{Due, NEVER};
use crate::tests::simulation::worker::{Delivery, Hand};
use crate::tests::simulation::world::{World, stamp};

/// How many parked jobs a node reads at once.
const PAGE: usize = 3;

/// A node that takes parked jobs back.
struct TakesBack<'w> {
    client: Client<'w>,
    queue: Rc<NodeQueue>,
}

impl World {
    /// When a node looks for parked jobs next: never, while none is there and the node knows of none.
    pub(crate) fn next_look(&self, node: usize, are_parked: bool) -> i64 {
        let (state, queue) = (&self.nodes[node], self.nodes[node].queue.borrow());
        let Some(queue) = queue.as_ref() else {
            // A node that has had nothing to do takes them back, too.
            return if are_parked { self.starts_queue_at(node) } else { NEVER };
        };
        let may_look = are_parked || queue.knows_of_parked.get();
        if !may_look || state.draining.get() || queue.parking.borrow().is_none() {
            return NEVER;
        }
        if queue.buffer().wanted_back.notified().now_or_never().is_some() {
            queue.looks_at.set(self.clock.get());
        }
        queue.looks_at.get().max(state.frozen_until.get())
    }
}

/// Looks once for parked jobs that are wanted back, and takes those back. It is at it from this call on.
pub(crate) fn look(world: &World, node: usize, queue: Rc<NodeQueue>) -> impl Future<Output = ()> {
    let parking = queue.parking.take();
    async move {
        if let Some(parking) = parking {
            look_with(parking, world, node, queue).await;
        }
    }
}

async fn look_with(mut parking: Parking<Due>, world: &World, node: usize, queue: Rc<NodeQueue>) {
    let ports = TakesBack { client: Client { world, node }, queue: Rc::clone(&queue) };
    let pause = match queue.buffer().is_open(ports.instant()) {
        true => parking.look(&ports).await.map_or(IDLE_LOOK_EVERY, |next| next.after),
        false => LOOK_EVERY,
    };
    queue.looks_at.set(world.clock.get() + i64::try_from(pause.as_millis()).unwrap_or(NEVER));
    *queue.parking.borrow_mut() = Some(parking);
    queue.has_news();
}

impl TakesBack<'_> {
    fn kind_of(&self, parked: &Due) -> Kind {
        Kind::of(self.client.world.plans[parked.schedule.place.plan].job())
    }
}

impl ParkedPorts for TakesBack<'_> {
    type Job = Due;

    fn buffer(&self) -> &JobBuffer {
        self.queue.buffer()
    }

    fn instant(&self) -> Instant {
        let world = self.client.world;
        world.instant(world.clock.get())
    }

    async fn kinds(&self) -> Result<Vec<ParkedKind>, Error> {
        let found = self.client.list(|server| server.parked.clone()).await;
        if found.is_empty() || self.client.world.is(Mutation::ParkedJobsNeverWantedBack) {
            return Ok(Vec::new());
        }
        let mut of_kinds: BTreeMap<Kind, u64> = BTreeMap::new();
        found.iter().for_each(|parked| *of_kinds.entry(self.kind_of(parked)).or_default() += 1);
        let (queue, priority) = (Queue::main(), Priority::DEFAULT);
        let parked = |(Kind { tenant, job_type, key }, jobs)| {
            let queue = queue.clone();
            ParkedKind { tenant, queue, priority, job_type, key, jobs }
        };
        Ok(of_kinds.into_iter().map(parked).collect())
    }

    async fn page(&self, kind: &Kind, priority: Priority, from: u64) -> Result<(Vec<Read<Due>>, Option<u64>), Error> {
        let world = self.client.world;
        let is_later = |parked: &&Due| parked.sequence >= from && self.kind_of(parked) == *kind;
        let mut found =
            self.client.list(|server| server.parked.iter().filter(is_later).copied().collect::<Vec<Due>>()).await;
        found.sort_unstable_by_key(|parked| parked.sequence);
        let next = found.get(PAGE).map(|parked| parked.sequence);
        let read = found.into_iter().take(PAGE).map(|parked| {
            let (place, sequence) = (parked.schedule.place, parked.sequence);
            let number = number_of(&world.plans[place.plan].job().run_id, sequence);
            let rank = Rank::new(stamp(parked.schedule.at), priority, self.queue.dispatcher.policy.aging);
            Read { position: (rank, number), sequence, bytes: 0, job: parked }
        });
        Ok((read.collect(), next))
    }

    // No key of these worlds has a line.

    async fn is_open(&self, _: &Kind) -> Result<bool, Error> {
        Ok(true)
    }

    fn has_order(&self, kind: &Kind) -> bool {
        order::has_order(&self.buffer().gates.routing.policies, kind)
    }

    async fn bring_next_back(&self, kind: &Kind, _: &[Priority], _: &mut Sought) -> Result<(), Error> {
        let (world, node) = (self.client.world, self.client.node);
        let parked = self.client.list(|server| server.parked.clone()).await;
        let Some(of_kind) = parked.iter().find(|parked| self.kind_of(parked) == *kind) else { return Ok(()) };
        if world.is(Mutation::NextInOrderNotTakenBack) {
            return Ok(());
        }
        let message = job(of_kind.schedule.place.plan, world.clock.get());
        let hand = Hand::new(world, node, Delivery::of_stored(message, world.clock.get()));
        let id = order::of_kind(kind, Lane::new(&Queue::main(), Priority::DEFAULT));
        for parked in hand.next_in_order(&id).await? {
            self.buffer().blocked(|jobs| jobs.are_expected(kind, 1, self.instant()));
            self.bring_back(parked).await?;
        }
        Ok(())
    }

    async fn bring_back(&self, job: Due) -> Result<bool, Error> {
        take_back(self.client.world, self.client.node, job).await
    }
}
