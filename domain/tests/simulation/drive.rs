//! One world from its first publish to its last word: which task goes on next, who dies, who freezes, what comes due.

use std::ops::Range;
use std::pin::Pin;
use std::task::{Context, Waker};

use longshore_domain::protocol::{LetterVerdict, on_letter};
use longshore_domain::{Priority, Queue, RunId};

use crate::client::set;
use crate::intake::{job, submit, take_due};
use crate::mutation::Mutation;
use crate::operator::{REPLAYS, attend, cancel};
use crate::plan::{Letter, Way};
use crate::server::DeadLetter;
use crate::worker::{Delivery, work};
use crate::world::{RUNS, STORM, Weather, World};

/// A world that still has something on its way so long after the storm is stuck.
const PATIENCE: i64 = 300_000;
/// Deliveries in one node's hand.
const ROOM: usize = 4;

struct Task<'w> {
    node: usize,
    /// When it goes on, if its node does.
    at: i64,
    is_delivery: bool,
    future: Pin<Box<dyn Future<Output = ()> + 'w>>,
}

/// What happens at a time that was drawn beforehand.
#[derive(Debug, Clone, Copy)]
enum Event {
    Publish(usize),
    Submit(usize),
    Cancel(usize),
    KillServer,
    Drain(usize),
    AttendLetters,
    Quiet,
}

struct Drive<'w> {
    world: &'w World,
    tasks: Vec<Task<'w>>,
    /// The next event last.
    agenda: Vec<(i64, Event)>,
    floor: u64,
}

/// Plays the world of `seed`; what was broken in it, if anything.
pub(crate) fn simulate(seed: u64, mutation: Option<Mutation>, talks: bool) -> Option<String> {
    let world = World::new(seed, mutation, talks);
    let mut drive = Drive { world: &world, tasks: Vec::new(), agenda: Vec::new(), floor: 0 };
    drive.play(0..RUNS);
    if world.plans.len() > RUNS && !world.is_broken() {
        world.say(|| "the lane is made anew".to_owned());
        world.server.borrow_mut().make_lane_anew();
        drive.floor = 0;
        drive.play(RUNS..world.plans.len());
    }
    drop(drive);
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
        for _ in 0..world.chance.pick(&[0, 1, 3, 12]) {
            self.plan_for(storm(world.chance.between(0, STORM)), Event::KillServer);
        }
        for _ in 0..world.chance.pick(&[0, 2, 5, 12]) {
            let node = world.chance.below(3) as usize;
            self.plan_for(storm(world.chance.between(0, STORM)), Event::Drain(node));
        }
        self.plan_for(storm(world.chance.between(500, 3_000)), Event::AttendLetters);
        self.plan_for(storm(STORM), Event::Quiet);
        world.quiet_from.set(storm(STORM));
        world.weather.set(world.storm);
        while self.turn() {}
        for plan in plans {
            if !world.is_broken() {
                self.close(plan);
            }
        }
    }

    fn plan_run(&mut self, index: usize, from: i64) {
        let chance = &self.world.chance;
        let plan = &self.world.plans[index];
        let at = from + plan.at;
        match plan.way {
            Way::Bare => self.plan_for(at, Event::Publish(index)),
            Way::Submitted => self.plan_for(at, Event::Submit(index)),
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
    }

    fn close(&self, plan: usize) {
        let world = self.world;
        let letters: Vec<u32> = world.server.borrow().letters_of(plan).map(|letter| letter.round).collect();
        let stored = world.plans[plan].job.get().and_then(|_| world.record(plan));
        let run = stored.as_ref().map(|stored| &*stored.run);
        world.ledger.borrow_mut().close(plan, run, &letters);
    }

    fn plan_for(&mut self, at: i64, event: Event) {
        let place = self.agenda.partition_point(|(other, _)| *other > at);
        self.agenda.insert(place, (at, event));
    }

    /// Goes on to the next thing that happens; false when nothing will any more.
    fn turn(&mut self) -> bool {
        let world = self.world;
        if world.is_broken() {
            return false;
        }
        let Some(next) = self.next_moment() else { return false };
        let now = next.max(world.clock.get());
        if now > world.quiet_from.get() + PATIENCE {
            world.accuse_stuck();
            return false;
        }
        world.clock.set(now);
        while let Some((_, event)) = self.agenda.pop_if(|(at, _)| *at <= now) {
            self.happen(event, now);
        }
        self.serve(now);
        self.go_on(now);
        true
    }

    fn next_moment(&self) -> Option<i64> {
        let server = self.world.server.borrow();
        let now = self.world.clock.get();
        let tasks = self.tasks.iter().map(|task| task.at.max(self.world.nodes[task.node].frozen_until.get())).min();
        let mut next = [
            tasks,
            self.agenda.last().map(|(at, _)| *at),
            server.late.iter().map(|late| late.at).min(),
            server.schedules.iter().map(|(_, at)| *at).min(),
        ]
        .into_iter()
        .flatten()
        .min();
        let ready = server.lane.iter().map(|message| message.until).chain(server.due.iter().map(|due| due.until)).min();
        if let Some(ready) = ready {
            // Without room, something else has to come first: a task's end or a node's return.
            let room = (0..3).filter_map(|node| self.has_room_at(node, now)).min();
            let when = room.map(|room| room.max(ready));
            next = [next, when].into_iter().flatten().min();
        }
        next
    }

    /// When the node takes another delivery; `None`: not before one of its tasks ends.
    fn has_room_at(&self, node: usize, now: i64) -> Option<i64> {
        let state = self.world.nodes.get(node)?;
        let busy = self.tasks.iter().filter(|task| task.is_delivery && task.node == node).count();
        (busy < ROOM && !state.draining.get()).then(|| state.dead_until.get().max(now))
    }

    fn node_with_room(&self, now: i64) -> Option<usize> {
        let first = self.world.chance.below(3) as usize;
        (first..first + 3).map(|node| node % 3).find(|node| self.has_room_at(*node, now) == Some(now))
    }

    fn node_alive(&self, now: i64) -> Option<usize> {
        let first = self.world.chance.below(3) as usize;
        (first..first + 3).map(|node| node % 3).find(|node| self.world.nodes[*node].dead_until.get() <= now)
    }

    fn spawn(&mut self, node: usize, is_delivery: bool, future: impl Future<Output = ()> + 'w) {
        let at = self.world.clock.get() + self.world.chance.between(1, 20);
        self.tasks.push(Task { node, at, is_delivery, future: Box::pin(future) });
    }

    fn happen(&mut self, event: Event, now: i64) {
        let world = self.world;
        match event {
            Event::Publish(plan) => self.publish(plan, now),
            Event::Submit(plan) if world.is_submitted(plan) => {}
            Event::Submit(plan) => {
                if let Some(node) = self.node_alive(now) {
                    self.spawn(node, false, submit(world, node, plan));
                }
                self.plan_for(now + world.chance.between(800, 2_000), event);
            }
            Event::Cancel(plan) => match self.node_alive(now) {
                Some(node) if world.plans[plan].job.get().is_some() => {
                    world.say(|| format!("run {plan} is to be cancelled"));
                    let published_at = world.published_at(plan);
                    self.spawn(node, false, cancel(world, node, plan, published_at));
                }
                Some(_) => {}
                None => self.plan_for(now + 50, event),
            },
            Event::KillServer => {
                world.say(|| "the server dies".to_owned());
                let mut server = world.server.borrow_mut();
                server.die(now, &world.chance);
                self.floor = server.last_of_lane();
                world.server_life.set(world.server_life.get() + 1);
            }
            Event::Drain(node) => {
                world.say(|| format!("{} drains", world.names[node]));
                world.nodes[node].draining.set(true);
                self.end_drain(node, now);
            }
            Event::AttendLetters => self.attend_letters(now),
            Event::Quiet => {
                world.say(|| "no more faults".to_owned());
                world.weather.set(Weather::default());
            }
        }
    }

    fn publish(&self, index: usize, now: i64) {
        let world = self.world;
        let plan = &world.plans[index];
        let sequence = world.server.borrow_mut().publish(job(index, now), None, &world.chance);
        world.say(|| format!("run {index} is published as {sequence:?}: {:?}", plan.behaviour));
        if plan.way == Way::Bare {
            let sequence = sequence.expect("a publish without a message id is stored");
            plan.name(RunId::minted(&Queue::main(), Priority::DEFAULT, sequence));
        }
        world.note_published(index, now);
    }

    fn attend_letters(&mut self, now: i64) {
        let wanted: Vec<DeadLetter> = {
            let server = self.world.server.borrow();
            server.letters.iter().filter(|letter| self.wants_attention(**letter)).copied().collect()
        };
        let quiet = now >= self.world.quiet_from.get();
        if quiet && wanted.is_empty() && self.tasks.is_empty() && self.world.server.borrow().is_idle() {
            return;
        }
        if let (false, Some(node)) = (wanted.is_empty(), self.node_alive(now)) {
            let letter = self.world.chance.pick(&wanted);
            self.spawn(node, false, attend(self.world, node, letter));
        }
        self.plan_for(now + self.world.chance.between(300, 1_500), Event::AttendLetters);
    }

    fn wants_attention(&self, letter: DeadLetter) -> bool {
        let stored = self.world.record(letter.plan);
        let stands = on_letter(stored.as_ref().map(|stored| &*stored.run), letter.round) == LetterVerdict::Stands;
        !stands
            || match self.world.plans[letter.plan].letter {
                Letter::Keep => false,
                Letter::Replay => letter.round <= REPLAYS,
                Letter::Discard => true,
            }
    }

    /// What the server does by itself.
    fn serve(&mut self, now: i64) {
        let world = self.world;
        loop {
            let late = world.server.borrow_mut().take_late(now);
            let Some(late) = late else { break };
            set(world, late.plan, late.key, late.expected, &late.run);
        }
        let twice = || now < world.quiet_from.get() && world.chance.hits(200);
        world.server.borrow_mut().fire(now, twice);
        while let Some(node) = self.node_alive(now) {
            let Some(due) = world.server.borrow_mut().hand_out_due(now) else { break };
            self.spawn(node, false, take_due(world, node, due));
        }
        while world.server.borrow().lane.iter().any(|message| message.until <= now) {
            let Some(node) = self.node_with_room(now) else { break };
            let Some(message) = world.server.borrow_mut().hand_out(now, &world.chance) else { break };
            world.say(|| {
                let (sequence, delivered, name) = (message.sequence, message.delivered, &world.names[node]);
                format!("{sequence}#{delivered} of run {} goes to {name}", message.place.plan)
            });
            let delivery = Delivery { message, sent_at: now, server_life: world.server_life.get(), floor: self.floor };
            self.spawn(node, true, work(world, node, delivery));
        }
    }

    /// Lets the next task go on, if fate does.
    fn go_on(&mut self, now: i64) {
        let world = self.world;
        let due = |task: &Task<'_>| task.at.max(world.nodes[task.node].frozen_until.get());
        let Some(at) =
            (0..self.tasks.len()).filter(|at| due(&self.tasks[*at]) <= now).min_by_key(|at| self.tasks[*at].at)
        else {
            return;
        };
        let node = self.tasks[at].node;
        let weather = world.weather.get();
        if world.chance.hits(weather.dies) {
            self.die(node, now);
            return;
        }
        if world.chance.hits(weather.freezes) {
            let until = now + world.chance.between(100, 4_000);
            world.say(|| format!("{} freezes until {until}", world.names[node]));
            world.nodes[node].frozen_until.set(until);
            return;
        }
        let task = &mut self.tasks[at];
        if task.future.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
            task.at = now + world.waits();
        } else {
            self.tasks.swap_remove(at);
        }
        if world.nodes[node].doomed.take() {
            self.die(node, now);
        }
        self.end_drain(node, now);
    }

    fn die(&mut self, node: usize, now: i64) {
        let state = &self.world.nodes[node];
        self.tasks.retain(|task| task.node != node);
        state.dead_until.set(now + self.world.chance.between(20, 600));
        state.frozen_until.set(0);
        state.draining.set(false);
        state.told_to_stop.borrow_mut().clear();
        self.world.say(|| format!("{} dies", self.world.names[node]));
    }

    /// A drained node ends, and another takes its place.
    fn end_drain(&mut self, node: usize, now: i64) {
        let draining = self.world.nodes[node].draining.get();
        if draining && !self.tasks.iter().any(|task| task.node == node) {
            self.die(node, now);
        }
    }
}
