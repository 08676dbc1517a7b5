//! Plays one world from its first publish to its end: which task continues next, which node dies or freezes, what
//! becomes due.

use std::ops::Range;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Waker};

use longshore_domain::protocol::{DeadLetterVerdict, Repeat, on_dead_letter, on_repeat};
use longshore_domain::{ErrorKind, Priority, Queue, Run, RunId, RunState};

use crate::runtime::clock::simulated;
use crate::tests::simulation::client::set;
use crate::tests::simulation::filter::{Wish, cancel_those};
use crate::tests::simulation::gated::Gated;
use crate::tests::simulation::intake::{job, submit, take_due};
use crate::tests::simulation::mutation::Mutation;
use crate::tests::simulation::operator::{REPLAYS, attend, cancel, reschedule};
use crate::tests::simulation::plan::{Besides, Letter, OF_A_KEY, Way};
use crate::tests::simulation::queue::Paused;
use crate::tests::simulation::server::{DeadLetter, Message, NEVER, Place};
use crate::tests::simulation::worker::{renew, seal_of};
use crate::tests::simulation::world::{
    AckTokens, Kind, LEASE, OLD_READ_MAX, OrderToStop, RUNS, STORM, Weather, World, stamp,
};

mod gates;
mod queues;

/// A world is stuck if something is still under way this long after the storm.
const ENDS_WITHIN: i64 = 300_000;

/// How often a lease-keeper looks through its leases.
const KEEPS_EVERY: i64 = LEASE / 30;

pub(crate) struct Task<'w> {
    pub(crate) node: usize,
    /// When it continues, if its node does.
    pub(crate) at: i64,
    pub(crate) is_delivery: bool,
    pub(crate) is_committer: bool,
    pub(crate) future: Pin<Box<dyn Future<Output = ()> + 'w>>,
}

/// An event at a time that was drawn beforehand.
#[derive(Debug, Clone, Copy)]
enum Event {
    Publish(usize),
    Submit(usize),
    Forge(usize),
    Cancel(usize),
    /// All runs that fit.
    CancelThose(Wish),
    /// By so many milliseconds.
    Reschedule(usize, i64),
    Expire(usize),
    KillServer,
    Drain(usize),
    /// Whether it is paused from then on.
    Pause(Paused, bool),
    MakeLaneAnew,
    AttendLetters,
    Quiet,
}

pub(crate) struct Drive<'w> {
    pub(crate) world: &'w World,
    /// Runs that were submitted at least once.
    tried: Vec<usize>,
    pub(crate) tasks: Vec<Task<'w>>,
    /// The next event comes last.
    agenda: Vec<(i64, Event)>,
    /// When the server has something to do next, as far as nothing else happens before.
    serves_at: i64,
    floor: u64,
    /// Since when jobs of each concurrency key wait, and none of them is at work; and when one was last seen to wait.
    idle_since: Vec<(i64, i64)>,
}

/// Plays the world of this seed and kind; returns the first broken promise, if any.
pub(crate) fn simulate(seed: (u64, Kind), mutation: Option<Mutation>, talks: bool) -> Option<String> {
    let world = World::new(seed, mutation, talks);
    let mut drive = Drive {
        world: &world,
        tried: Vec::new(),
        tasks: Vec::new(),
        agenda: Vec::new(),
        serves_at: 0,
        floor: 0,
        idle_since: Vec::new(),
    };
    drive.play(0..RUNS);
    if world.plans.len() > RUNS && !world.is_broken() {
        world.say(|| "the lane is made anew".to_owned());
        world.server.borrow_mut().make_lane_anew();
        drive.floor = 0;
        drive.play(RUNS..world.plans.len());
    }
    drop(drive);
    simulated::set(None);
    world.broken()
}

impl<'w> Drive<'w> {
    /// Plays these runs from their publish to their end, through a storm and the quiet after it.
    fn play(&mut self, plans: Range<usize>) {
        let world = self.world;
        let from = world.clock.get();
        let storm = |at| from + at;
        for index in plans.clone() {
            self.plan_run(index, from);
        }
        let faults = |counts: &[u32]| if world.calm.get() { 0 } else { world.chance.pick(counts) };
        let kills = if world.kind == Kind::LongAttempts { [12; 4] } else { [0, 1, 3, 12] };
        for _ in 0..faults(&kills) {
            self.plan_for(storm(world.chance.between(0, STORM)), Event::KillServer);
        }
        for _ in 0..faults(&[0, 2, 5, 12]) {
            let node = world.chance.below(3) as usize;
            self.plan_for(storm(world.chance.between(0, STORM)), Event::Drain(node));
        }
        // An order numbers its runs by the sequences of one lane.
        let is_kept = world.gated == Gated::Ordered;
        let anew = if is_kept {
            0
        } else if world.kind == Kind::LanesMadeAnew {
            5
        } else {
            u32::from(world.chance.hits(1_000))
        };
        for _ in 0..anew {
            self.plan_for(storm(world.chance.between(1_000, STORM)), Event::MakeLaneAnew);
        }
        let pauses = if world.kind.parks() { 4 } else { world.chance.pick(&[0, 0, 1, 2]) };
        for _ in 0..pauses {
            let (at, paused) =
                (storm(world.chance.between(0, STORM)), world.chance.pick(&[Paused::Queue, Paused::Type]));
            self.plan_for(at, Event::Pause(paused, true));
            self.plan_for(at + world.chance.between(100, 3_000), Event::Pause(paused, false));
        }
        let filters = if world.kind == Kind::Filters { 4 } else { u32::from(world.chance.hits(600)) };
        for _ in 0..filters {
            let wish = Wish::draw(&world.chance);
            self.plan_for(storm(world.chance.between(0, STORM)), Event::CancelThose(wish));
        }
        self.plan_for(storm(world.chance.between(500, 3_000)), Event::AttendLetters);
        self.plan_for(storm(STORM), Event::Quiet);
        world.quiet_from.set(storm(STORM));
        world.weather.set(world.storm);
        while self.turn() {}
        for plan in plans {
            if world.is_broken() {
                break;
            }
            self.close(plan);
            if world.plans[plan].key == Some(plan) {
                self.close_key(plan);
            }
        }
    }

    fn plan_run(&mut self, index: usize, from: i64) {
        let chance = &self.world.chance;
        let plan = &self.world.plans[index];
        let at = from + plan.at;
        match plan.way {
            Way::Bare => self.plan_for(at, Event::Publish(index)),
            Way::Submitted => {
                self.plan_for(at, Event::Submit(index));
                if let Besides::Publishes(later) = plan.besides {
                    self.plan_for(at + later, Event::Publish(index));
                }
            }
            Way::Forged(_) => self.plan_for(at, Event::Forge(index)),
            Way::Follows(_) => {}
            Way::Named(times) => {
                self.plan_for(at, Event::Publish(index));
                for _ in 1..times {
                    let again = chance.pick(&[20, 300, 3_000, 9_000]);
                    self.plan_for(at + chance.between(0, again), Event::Publish(index));
                }
            }
        }
        if let Some(at) = plan.cancel_at {
            self.plan_for(from + at, Event::Cancel(index));
        }
        if let Some((at, by)) = plan.reschedule_at {
            self.plan_for(from + at, Event::Reschedule(index, by));
        }
        if let Some(at) = plan.expires_at {
            self.plan_for(from + at, Event::Expire(index));
        }
    }

    fn run_of(&self, plan: usize) -> Option<Rc<Run>> {
        self.world.plans[plan].job.get().and_then(|_| self.world.record(plan)).map(|stored| stored.run)
    }

    fn close(&self, plan: usize) {
        let world = self.world;
        let letters: Vec<u32> = world.server.borrow().letters_of(plan).map(|letter| letter.round).collect();
        let mut ledger = world.ledger.borrow_mut();
        if world.has_two_ids(plan) {
            // Known, and described in operations.md: a node found the id taken by a run of a lane that is gone, and was
            // frozen until another node found it free. Only promises that were broken on the way count.
            return;
        }
        let run = self.run_of(plan).or_else(|| ledger.last_of(plan));
        let run = run.as_deref();
        if let Way::Follows(before) = world.plans[plan].way
            && self.run_of(before).is_none_or(|before| before.state != RunState::Completed)
        {
            if run.is_some() {
                ledger.accuse(plan, "follows a run that has not completed");
            }
            return;
        }
        // It made way before anybody was answered, and the submission that has its key now died, too: nobody goes on
        // with its events.
        let claim = world.plans[plan].key.and_then(|key| world.server.borrow().claim_of(key));
        let is_nobodys = |run: &Run| run.state.duplicate_of().is_some() && !run.published && run.held_by.is_none();
        if run.is_some_and(is_nobodys) && claim.is_some_and(|claim| !claim.published) {
            ledger.ended_late(plan);
        }
        // Of the runs that share a key only one has to be there, and a record that was only pre-created goes away by
        // itself.
        if world.plans[plan].key.is_none() || run.is_some_and(|run| on_repeat(run) == Repeat::Nothing) {
            ledger.close(plan, run, &letters, world.calm.get());
        }
    }

    fn plan_for(&mut self, at: i64, event: Event) {
        let place = self.agenda.partition_point(|(other, _)| *other > at);
        self.agenda.insert(place, (at, event));
    }

    /// Advances to the next thing that happens; false if nothing more will happen.
    fn turn(&mut self) -> bool {
        let world = self.world;
        if world.is_broken() {
            return false;
        }
        let Some(next) = self.next_moment() else { return false };
        let now = next.max(world.clock.get());
        if now > world.quiet_from.get() + ENDS_WITHIN {
            world.accuse_stuck();
            return false;
        }
        world.comes_to(now);
        while let Some((_, event)) = self.agenda.pop_if(|(at, _)| *at <= now) {
            self.happen(event, now);
            self.serves_at = now;
        }
        if self.serves_at <= now {
            self.serve(now);
        }
        world.deliver(now);
        self.call_committers(now);
        for node in 0..3 {
            self.keep_leases(node, now);
            self.keep_slots(node, now);
            self.ask_for_tokens(node, now);
            self.write_breakers(node, now);
            self.run_queue(node, now);
        }
        self.go_on(now);
        self.check_keys(now);
        true
    }

    fn next_moment(&mut self) -> Option<i64> {
        let world = self.world;
        let (own, due, lanes) = world.server.borrow().next();
        let frozen_until = self.frozen_until();
        let tasks = self.tasks.iter().map(|task| task.at.max(frozen_until[task.node]));
        let agenda = self.agenda.last().map(|(at, _)| *at);
        let keepers = (0..3).filter(|node| world.nodes[*node].book.borrow().count() > 0);
        let keepers = keepers.map(|node| world.nodes[node].keeps_at.get().max(frozen_until[node]));
        let queues = (0..3).map(|node| self.runs_queue_at(node, frozen_until[node]));
        let next = tasks.chain(agenda).chain(keepers).chain(queues).fold(world.next_arrival.get(), i64::min);
        // Without a node that has pulled or is there, something else has to come first.
        let due = if due < NEVER { due.max(self.alive_at()) } else { NEVER };
        self.serves_at = own.min(world.bucket.borrow().next()).min(due).min(self.pulled_at(lanes)).min(self.looks_at());
        let next = next.min(self.serves_at);
        // Sessions are renewed for ever, so that alone is nothing that happens.
        let gates = (0..3).map(|node| self.runs_gates_at(node, frozen_until[node]));
        (next < NEVER).then(|| gates.fold(next, i64::min))
    }

    fn frozen_until(&self) -> [i64; 3] {
        self.world.nodes.each_ref().map(|node| node.frozen_until.get())
    }

    fn node_alive(&self, now: i64) -> Option<usize> {
        let first = self.world.chance.below(3) as usize;
        (first..first + 3).map(|node| node % 3).find(|node| self.world.nodes[*node].dead_until.get() <= now)
    }

    pub(crate) fn spawn(&mut self, node: usize, is_delivery: bool, future: Pin<Box<dyn Future<Output = ()> + 'w>>) {
        let at = self.world.clock.get() + self.world.chance.between(1, 20);
        self.tasks.push(Task { node, at, is_delivery, is_committer: false, future });
    }

    fn happen(&mut self, event: Event, now: i64) {
        let world = self.world;
        match event {
            Event::Publish(plan) => self.publish(plan, now),
            Event::Submit(plan) if world.is_submitted(plan) => {}
            Event::Submit(plan) if world.plans[plan].besides == Besides::TurnsToPublishing && self.was_tried(plan) => {
                self.turn_to_publishing(plan, now);
            }
            Event::Submit(plan) => {
                self.tried.push(plan);
                if let Some(node) = self.node_alive(now) {
                    self.spawn(node, false, Box::pin(submit(world, node, plan)));
                }
                self.plan_for(now + world.chance.between(800, 2_000), event);
            }
            Event::Cancel(plan) => match self.node_alive(now) {
                Some(node) if world.plans[plan].job.get().is_some() => {
                    world.say(|| format!("run {plan} is to be cancelled"));
                    self.spawn(node, false, Box::pin(cancel(world, node, plan)));
                }
                Some(_) => {}
                None => self.plan_for(now + 50, event),
            },
            Event::CancelThose(wish) => match self.node_alive(now) {
                Some(node) => {
                    world.say(|| format!("runs are to be cancelled: {wish:?}"));
                    self.spawn(node, false, Box::pin(cancel_those(world, node, wish)));
                }
                None => self.plan_for(now + 50, event),
            },
            Event::Reschedule(plan, by) => match self.node_alive(now) {
                Some(node) if world.plans[plan].job.get().is_some() => {
                    world.say(|| format!("run {plan} is to be rescheduled by {by} ms"));
                    self.spawn(node, false, Box::pin(reschedule(world, node, plan, by)));
                }
                Some(_) => {}
                None => self.plan_for(now + 50, event),
            },
            Event::Forge(plan) => self.forge(plan, now),
            Event::Expire(plan) => self.expire(plan, now),
            Event::Pause(paused, is_paused) => world.pauses(paused, is_paused && now < world.quiet_from.get()),
            Event::MakeLaneAnew => self.make_lane_anew(now),
            Event::KillServer => self.kill_server(now),
            Event::Drain(node) => self.drain(node, now),
            Event::AttendLetters => self.attend_letters(now),
            Event::Quiet => {
                world.say(|| "no more faults".to_owned());
                world.weather.set(Weather::default());
                [Paused::Queue, Paused::Type].into_iter().for_each(|paused| world.pauses(paused, false));
            }
        }
    }

    fn kill_server(&mut self, now: i64) {
        let world = self.world;
        world.say(|| "the server dies".to_owned());
        let mut server = world.server.borrow_mut();
        server.die(now, &world.chance);
        self.floor = server.last_of_lane();
        world.server_life.set(world.server_life.get() + 1);
        drop(server);
        for queue in (0..3).filter_map(|node| world.queue_of(node)) {
            queue.loses_its_server(now + world.chance.between(1, 150));
        }
    }

    fn drain(&mut self, node: usize, now: i64) {
        let world = self.world;
        world.say(|| format!("{} drains", world.names[node]));
        world.nodes[node].draining.set(true);
        world.nodes[node].book.borrow().release();
        if let Some(queue) = world.queue_of(node) {
            queue.has_news();
        }
        self.end_drain(node, now);
    }

    fn was_tried(&self, plan: usize) -> bool {
        self.tried.contains(&plan)
    }

    /// The client's first submission was not answered: it publishes the same job bare instead. That is the third of the
    /// runs that share its key.
    fn turn_to_publishing(&mut self, plan: usize, now: i64) {
        match self.world.plans[plan].key {
            None => self.publish(plan, now),
            Some(_) => self.agenda.retain(|(_, event)| !matches!(event, Event::Submit(other) if *other == plan + 1)),
        }
    }

    fn publish(&self, index: usize, now: i64) {
        self.store(job(index, now));
    }

    /// Stores a client's own message. If it has no id, its sequence gives the run its id.
    fn store(&self, message: Message) {
        let world = self.world;
        let (index, now) = (message.plan, message.at);
        let plan = &world.plans[index];
        // A job that is cancelled is often pulled late: then it may begin just when its cancel is written.
        let pulled_late = plan.cancel_at.is_some() && world.chance.hits(5_000);
        let until = now + if pulled_late { world.chance.between(0, 300) } else { 0 };
        let sequence = world.server.borrow_mut().publish(Message { until, ..message }, None, &world.chance);
        world.say(|| format!("run {index} is published as {sequence:?}: {:?}", plan.behaviour));
        if plan.has_derived_id() {
            let sequence = sequence.expect("a publish without a message id is stored");
            plan.name(RunId::derived(&longshore_domain::Lane::new(&Queue::main(), Priority::DEFAULT), sequence));
        }
        world.note_published(index, now);
        if let Some(at) = plan.options.as_ref().and_then(|options| options.run_at) {
            world.ledger.borrow_mut().note_due(index, at.from(stamp(now)));
        }
    }

    /// A client publishes a job with headers that say that a node moved it for another run.
    fn forge(&mut self, index: usize, now: i64) {
        let world = self.world;
        let Way::Forged(parent) = world.plans[index].way else { return };
        if world.plans[parent].job.get().is_none() {
            return self.plan_for(now + 200, Event::Forge(index));
        }
        let chance = &world.chance;
        let (round, attempt, deferrals) = (1 + chance.below(3), 1 + chance.below(4), chance.below(2));
        let place = Place { plan: parent, round, attempt, deferrals, timed: false };
        let known = world.record(parent).map_or(0, |stored| seal_of(&stored.run));
        let seal = world.number();
        assert_ne!(seal, known, "a forger does not know the seal");
        self.store(Message { place, moved: chance.hits(8_000), seal, ..job(index, now) });
    }

    /// The record of an ended run is deleted, if it has been kept for long enough, and its client asks again.
    fn expire(&mut self, index: usize, now: i64) {
        let world = self.world;
        let old = |run: &Run| {
            run.state == RunState::Completed && run.state.ended_at().is_some_and(|at| at.millis() + 2 * LEASE < now)
        };
        let Some(stored) = world.record(index).filter(|stored| old(&stored.run)) else { return };
        if !world.server.borrow().claim_of(index).is_some_and(|claim| claim.published) {
            return;
        }
        if world.server.borrow().has_message_of(index) || self.is_any_at_work() {
            return self.plan_for(now + 1_000, Event::Expire(index));
        }
        world.say(|| format!("the record of run {index} has been kept for long enough"));
        world.ledger.borrow_mut().close(index, Some(&stored.run), &[], world.calm.get());
        world.server.borrow_mut().expire(world.key(index), index, now);
        self.plan_for(now + 10, Event::Submit(index + 1));
    }

    /// Whether a node does something, or holds a delivery.
    fn is_any_at_work(&self) -> bool {
        let holds = |node| self.world.queue_of(node).is_some_and(|queue| !queue.is_empty());
        !self.tasks.is_empty() || (0..3).any(holds)
    }

    /// The lane's stream is deleted and created again, as soon as it is empty and no node holds a delivery; jobs that
    /// wait for their time continue.
    fn make_lane_anew(&mut self, now: i64) {
        let mut server = self.world.server.borrow_mut();
        if server.lane.is_empty() && server.due.is_empty() && !self.is_any_at_work() {
            self.world.say(|| "the lane is made anew".to_owned());
            server.make_lane_anew();
            self.floor = 0;
            return;
        }
        drop(server);
        if now < self.world.quiet_from.get() {
            self.plan_for(now + 100, Event::MakeLaneAnew);
        }
    }

    /// A node that starts reads which runs are being cancelled.
    fn learn_cancels(&self, node: usize) {
        let state = &self.world.nodes[node];
        if state.learned.replace(true) || self.world.is(Mutation::CancelsNotLearnedAtStart) {
            return;
        }
        let started_at = state.dead_until.get();
        let server = self.world.server.borrow();
        for (plan, _) in server.cancel_notes.iter().filter(|(_, at)| *at <= started_at) {
            let order =
                OrderToStop { plan: *plan, number: self.world.number(), from: started_at, only_if_waiting: false };
            state.orders_to_stop.borrow_mut().push(order);
        }
    }

    /// Of the runs that share a key, at least one is there.
    fn close_key(&self, key: usize) {
        let world = self.world;
        let is_of_key =
            |plan: &usize| world.plans.get(*plan).is_some_and(|plan| plan.key == Some(key) && plan.job.get().is_some());
        let of_key = || (key..key + OF_A_KEY).filter(is_of_key);
        let counts = |plan: &usize| {
            let run = self.run_of(*plan).or_else(|| world.ledger.borrow().last_of(*plan));
            let own = |run: &Run| run.state != RunState::Duplicate && on_repeat(run) == Repeat::Nothing;
            run.is_some_and(|run| own(&run)) || world.ledger.borrow().is_closed(*plan)
        };
        if of_key().filter(counts).count() == 0 {
            world.ledger.borrow_mut().accuse(key, "no run of its key is left");
        }
    }

    fn attend_letters(&mut self, now: i64) {
        let wanted: Vec<DeadLetter> = {
            let server = self.world.server.borrow();
            server.letters.iter().filter(|letter| self.wants_attention(letter)).cloned().collect()
        };
        let quiet = now >= self.world.quiet_from.get();
        if quiet && wanted.is_empty() && self.tasks.is_empty() && self.world.server.borrow().is_idle() {
            return;
        }
        if let (false, Some(node)) = (wanted.is_empty(), self.node_alive(now)) {
            let nth = self.world.chance.below(u32::try_from(wanted.len()).unwrap_or(1)) as usize;
            let letter = wanted[nth].clone();
            self.spawn(node, false, Box::pin(attend(self.world, node, letter)));
        }
        self.plan_for(now + self.world.chance.between(300, 1_500), Event::AttendLetters);
    }

    fn wants_attention(&self, letter: &DeadLetter) -> bool {
        let world = self.world;
        // One job may have continued as two runs, each with a letter of its own.
        let plan = &world.plans[letter.plan];
        let has_time = plan.has_derived_id() && plan.job().run_id != letter.run.run_id;
        let key = if has_time { World::timed_key(letter.plan) } else { world.key(letter.plan) };
        let found = world.server.borrow().read(key).map(|stored| stored.run);
        let wish = plan.letter;
        match on_dead_letter(found.as_deref(), letter.round, letter.origin) {
            DeadLetterVerdict::Stands => {
                // What could not be read is not replayed unless somebody mends it.
                let is_invalid = letter.run.error.as_ref().is_some_and(|error| error.kind == ErrorKind::Invalid);
                let has_no_key = world.without_key.borrow().contains(&letter.sequence);
                let may_be_replayed = letter.round <= REPLAYS && !is_invalid && !has_no_key;
                wish == Letter::Discard || wish == Letter::Replay && may_be_replayed
            }
            DeadLetterVerdict::OtherRun => wish == Letter::Discard,
            _ => true,
        }
    }

    /// Does the work that the server does by itself.
    fn serve(&mut self, now: i64) {
        let world = self.world;
        world.store_late_entries(now);
        self.start_slow_work();
        loop {
            let late = world.server.borrow_mut().take_late(now);
            let Some(late) = late else { break };
            set(world, late.plan, (late.key, late.expected), &late.run);
        }
        loop {
            let mut server = world.server.borrow_mut();
            let Some((sequence, word)) = server.take_late_word(now) else { break };
            world.say(|| format!("{word:?} of {sequence} arrives"));
            server.hear(sequence, word, now);
        }
        let often = if world.kind == Kind::Waits { 3_000 } else { 200 };
        let twice = || now < world.quiet_from.get() && world.chance.hits(often);
        let forgets = now < world.quiet_from.get() && !world.calm.get();
        let forgotten =
            || (forgets && world.chance.hits(150)).then(|| now + world.chance.pick(&[600, 5_000, 1_000_000]));
        world.server.borrow_mut().fire(now, twice, forgotten);
        self.take_stored(now);
        while world.server.borrow().due.iter().any(|due| due.until <= now) {
            let Some(node) = self.node_alive(now) else { break };
            let Some(due) = world.server.borrow_mut().hand_out_due(now) else { break };
            self.spawn(node, false, Box::pin(take_due(world, node, due)));
        }
        self.deliver(now);
    }

    /// The lease-keeper of a node looks through its leases. What it asks for is sent beside the rest.
    fn keep_leases(&mut self, node: usize, now: i64) {
        let world = self.world;
        let state = &world.nodes[node];
        if state.keeps_at.get().max(state.frozen_until.get()) > now || state.book.borrow().count() == 0 {
            return;
        }
        state.keeps_at.set(now + KEEPS_EVERY);
        let mut renewing = state.renewing.borrow_mut();
        let Some(renewing) = renewing.as_mut() else { return };
        if renewing.tick(world.instant(now)) > 0 {
            // Attempts that are stopped go on at once.
            self.tasks.iter_mut().filter(|task| task.node == node && task.is_delivery).for_each(|task| task.at = now);
        }
        while let Some((number, renewal)) = renewing.next() {
            let renewal = (*number, AckTokens::number_of(renewal));
            renewing.sent();
            if world.is(Mutation::LeasesNotRenewed) {
                continue;
            }
            self.spawn(node, false, Box::pin(renew(world, node, renewal)));
        }
    }

    /// Lets the next task continue, unless a fault hits its node.
    fn go_on(&mut self, now: i64) {
        let world = self.world;
        let frozen_until = self.frozen_until();
        let mut next: Option<(i64, usize)> = None;
        for (number, task) in self.tasks.iter().enumerate() {
            let is_due = task.at.max(frozen_until[task.node]) <= now;
            if is_due && next.is_none_or(|(at, _)| task.at < at) {
                next = Some((task.at, number));
            }
        }
        let Some((_, at)) = next else { return };
        let node = self.tasks[at].node;
        let weather = world.weather.get();
        if world.chance.hits(weather.dies) {
            self.die(node, now);
            return;
        }
        if world.chance.hits(weather.freezes) {
            let longest = if world.kind == Kind::ShortFreezes { LEASE / 2 } else { 4_000 };
            let until = now + world.chance.between(100, longest);
            world.say(|| format!("{} freezes until {until}", world.names[node]));
            world.falls_silent(node, false);
            world.probe(node, now);
            world.nodes[node].frozen_until.set(until);
            // It wakes before its workers or after them.
            world.nodes[node].keeps_at.set(until + world.chance.between(0, KEEPS_EVERY));
            return;
        }
        if world.chance.hits(weather.cut) {
            let until = now + world.chance.between(50, OLD_READ_MAX);
            world.say(|| format!("{} is with leaders that are cut off until {until}", world.names[node]));
            world.nodes[node].cut.set((now, until));
        }
        if self.tasks[at].is_committer && world.chance.hits(weather.dies / 4) {
            return self.committer_dies(at, now);
        }
        let task = &mut self.tasks[at];
        let (is_committer, is_delivery) = (task.is_committer, task.is_delivery);
        let is_pending = task.future.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending();
        let wait = world.take_wait();
        if is_pending {
            task.at = now.saturating_add(wait);
        } else {
            self.tasks.swap_remove(at);
        }
        let goes_on = !is_pending || wait < NEVER;
        self.start_what_was_asked(node, is_committer || is_delivery && goes_on, now);
        if world.nodes[node].doomed.take() {
            self.die(node, now);
        }
        self.end_drain(node, now);
    }

    fn die(&mut self, node: usize, now: i64) {
        let (state, chance) = (&self.world.nodes[node], &self.world.chance);
        self.world.calm.set(false);
        self.world.falls_silent(node, state.draining.get());
        self.tasks.retain(|task| task.node != node);
        state
            .dead_until
            .set(now + if chance.hits(9_000) { chance.between(20, 600) } else { chance.between(600, 3_000) });
        state.frozen_until.set(0);
        state.cut.set((0, 0));
        state.draining.set(false);
        state.life.set(state.life.get() + 1);
        self.world.starts(node);
        // A dead node returns nothing.
        while self.world.ack_tokens.take_dropped().is_some() {}
        self.world.say(|| format!("{} dies", self.world.names[node]));
    }

    /// A drained node ends, and another takes its place.
    fn end_drain(&mut self, node: usize, now: i64) {
        let draining = self.world.nodes[node].draining.get();
        let is_closed = draining && self.world.queue_of(node).is_none_or(|queue| queue.is_closed());
        if is_closed && !self.tasks.iter().any(|task| task.node == node) {
            self.check_drained(node);
            self.die(node, now);
        }
    }
}
