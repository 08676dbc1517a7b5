//! A node's way to the server: every call travels there and back, and either way may be lost.
//!
//! Calls that are idempotent are made until they are answered. A compare-and-set is not: whose write a refusal speaks
//! of is read from the token in the record.

use std::rc::Rc;

use longshore_domain::{Run, protocol, story};

use crate::mutation::Mutation;
use crate::server::{ACK_WAIT, Due, Key, Late, Message, MessageId, Place, Server, Stored};
use crate::world::World;

/// A sender gives up on an answer after this long.
const TIME_OUT: i64 = 150;

/// What becomes of one call.
#[derive(PartialEq, Eq)]
enum Fate {
    Answered,
    Unanswered,
    Lost,
    /// Arrives when its sender has given up on it.
    Late,
}

#[derive(Clone, Copy)]
pub(crate) struct Client<'w> {
    pub(crate) world: &'w World,
    pub(crate) node: usize,
}

impl<'w> Client<'w> {
    fn fate(&self) -> Fate {
        let world = self.world;
        if !world.chance.hits(world.weather.get().unclear) {
            return Fate::Answered;
        }
        [Fate::Unanswered, Fate::Lost, Fate::Late].into_iter().nth(world.chance.below(3) as usize).unwrap_or(Fate::Lost)
    }

    /// An idempotent call, made until it is answered; it is told which try it is.
    async fn call<T>(&self, mut apply: impl FnMut(&mut Server, u32) -> T) -> T {
        for tries in 0.. {
            self.world.travel().await;
            let fate = self.fate();
            if fate == Fate::Lost {
                self.world.pause(TIME_OUT).await;
                continue;
            }
            let answer = apply(&mut self.world.server.borrow_mut(), tries);
            self.world.travel().await;
            if fate == Fate::Answered {
                return answer;
            }
            self.world.pause(TIME_OUT).await;
        }
        unreachable!("calls are made until they are answered")
    }

    pub(crate) async fn read(&self, key: Key) -> Option<Stored> {
        self.call(|server, _| server.read(key)).await
    }

    /// Writes the record over revision `expected`, 0 for none; `None` if somebody else was first.
    pub(crate) async fn write(&self, plan: usize, expected: u64, run: &mut Run) -> Option<u64> {
        let world = self.world;
        let key = world.key(plan);
        run.token = world.number().to_string().into();
        let run = Rc::new(run.clone());
        loop {
            world.travel().await;
            let fate = self.fate();
            match fate {
                Fate::Lost => {}
                Fate::Late => {
                    let at = world.clock.get() + world.chance.between(1, 2 * TIME_OUT);
                    let late = Late { at, plan, key, expected, run: Rc::clone(&run) };
                    world.server.borrow_mut().late.push(late);
                }
                Fate::Answered | Fate::Unanswered => {
                    let written = set(world, plan, key, expected, &run);
                    world.travel().await;
                    if fate == Fate::Answered {
                        return match written {
                            Some(revision) => Some(revision),
                            None => self.whose(key, &run.token).await,
                        };
                    }
                }
            }
            world.pause(TIME_OUT).await;
        }
    }

    /// After a refusal: the revision, if the write that was there first was one's own.
    async fn whose(&self, key: Key, token: &str) -> Option<u64> {
        let found = self.read(key).await;
        let mine = protocol::was_mine(found.as_ref().map(|stored| &*stored.run), token);
        found.filter(|_| mine).map(|stored| stored.revision)
    }

    /// Tells what the decision on record adds to the story, in order, each event confirmed before the next.
    pub(crate) async fn tell(&self, plan: usize, run: &Run) {
        let events = story::latest(run);
        let mut rest = events.as_slice();
        while !rest.is_empty() {
            let at_once = 1 + self.world.chance.below(u32::try_from(rest.len()).unwrap_or(1)) as usize;
            let (now, later) = rest.split_at(at_once);
            self.call(|_, _| {
                let mut ledger = self.world.ledger.borrow_mut();
                now.iter().for_each(|event| ledger.told(plan, event));
            })
            .await;
            self.world.say(|| {
                let ids: Vec<String> = now.iter().map(story::Event::id).collect();
                format!("{} tells {}", self.name(), ids.join(" "))
            });
            rest = later;
        }
    }

    pub(crate) async fn schedule(&self, place: Place, at: i64) {
        self.world.say(|| format!("{} schedules {place:?} at {at}", self.name()));
        let one_a_run = self.world.is(Mutation::OneScheduleSubjectPerRun);
        let same = |other: Place| other == place || one_a_run && other.plan == place.plan;
        self.call(|server, _| server.schedule(place, at, same)).await;
    }

    pub(crate) async fn unschedule(&self, place: Place) {
        self.call(|server, _| server.schedules.retain(|(other, _)| *other != place)).await;
    }

    /// Deletes the first job in the lane that `is_it`.
    pub(crate) async fn take_out(&self, is_it: impl Fn(&Message) -> bool) {
        self.call(|server, _| server.take_out(&is_it)).await;
    }

    /// The first job in the lane that `is_it`.
    pub(crate) async fn look_in_lane(&self, is_it: impl Fn(&Message) -> bool) -> Option<Message> {
        self.call(|server, _| server.lane.iter().find(|message| is_it(message)).copied()).await
    }

    /// Publishes a job. One that is published again, for want of an answer, has to claim its run first.
    pub(crate) async fn publish(&self, message: Message, id: MessageId) {
        let world = self.world;
        self.call(|server, tries| {
            let must_claim = message.must_claim || tries > 0;
            let message = Message { at: world.clock.get(), must_claim, ..message };
            server.publish(message, Some(id), &world.chance)
        })
        .await;
    }

    pub(crate) async fn ack(&self, sequence: u64) {
        self.world.say(|| format!("{} acks {sequence}", self.name()));
        self.call(|server, _| server.ack(sequence)).await;
    }

    pub(crate) async fn ack_due(&self, due: Due) {
        self.call(|server, _| server.ack_due(due.sequence)).await;
    }

    /// Hands a delivery back: it comes again at once. Sent only if `may` says so at that moment, and never twice: a second
    /// one would take the delivery away from whoever has it by then.
    pub(crate) async fn nak(&self, sequence: u64, may: impl Fn() -> bool) {
        self.world.travel().await;
        if self.fate() != Fate::Lost && may() {
            self.world.say(|| format!("{} hands {sequence} back", self.name()));
            self.world.server.borrow_mut().hold(sequence, self.world.clock.get());
        }
    }

    /// Asks for another lease; whether that was confirmed.
    pub(crate) async fn renew(&self, sequence: u64) -> bool {
        self.world.travel().await;
        let fate = self.fate();
        if fate != Fate::Lost {
            self.world.server.borrow_mut().hold(sequence, self.world.clock.get() + ACK_WAIT);
        }
        self.world.travel().await;
        fate == Fate::Answered
    }

    pub(crate) async fn put_letter(&self, plan: usize, round: u32) {
        self.world.say(|| format!("{} puts the letter of run {plan}, round {round}", self.name()));
        self.call(|server, _| server.put_letter(plan, round, &self.world.chance)).await;
    }

    pub(crate) async fn delete_letter(&self, sequence: u64) {
        self.world.say(|| format!("{} deletes letter {sequence}", self.name()));
        let by_run = self.world.is(Mutation::LettersDeletedByRun);
        self.call(|server, _| {
            let plan = server.letters.iter().find(|letter| letter.sequence == sequence).map(|letter| letter.plan);
            server.letters.retain(|other| other.sequence != sequence && !(by_run && Some(other.plan) == plan));
        })
        .await;
    }

    /// Tells every node to stop a run; whether one answered that its handler is at work. Who is not there does not hear
    /// of it, a few miss it all the same, and a frozen one answers too late.
    pub(crate) async fn tell_to_stop(&self, plan: usize) -> bool {
        let world = self.world;
        world.travel().await;
        let (now, told_as) = (world.clock.get(), world.number());
        let mut runs = false;
        for (number, node) in world.nodes.iter().enumerate() {
            if node.dead_until.get() > now || world.chance.hits(1_000) {
                continue;
            }
            node.told_to_stop.borrow_mut().push((plan, told_as));
            let ledger = world.ledger.borrow();
            let at_work = ledger.calls.iter().any(|call| (call.plan, call.node) == (plan, number));
            runs |= at_work && node.frozen_until.get() <= now;
        }
        world.travel().await;
        runs
    }

    pub(crate) fn name(&self) -> &'w str {
        &self.world.names[self.node]
    }
}

/// The compare-and-set itself, seen by the ledger.
pub(crate) fn set(world: &World, plan: usize, key: Key, expected: u64, run: &Rc<Run>) -> Option<u64> {
    let mut server = world.server.borrow_mut();
    let before = server.read(key);
    let written = server.compare_and_set(key, expected, Rc::clone(run));
    world.say(|| {
        let node = run.node.as_deref().unwrap_or("-");
        let answer = written.map_or_else(|| "refused".to_owned(), |revision| format!("revision {revision}"));
        format!(
            "record of run {plan}: {} {}/{} by {node}, token {} over {expected}: {answer}",
            run.state.as_str(),
            run.round,
            run.attempt,
            run.token
        )
    });
    if written.is_some() {
        let before = before.as_ref().map(|stored| &*stored.run);
        world.ledger.borrow_mut().written(plan, before, run, world.now());
    }
    written
}
