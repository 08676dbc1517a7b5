//! A node's calls to the server: every call travels there and back, and either way may be lost.
//!
//! Idempotent calls are made until they are answered. A compare-and-set is not idempotent: after a refusal, the token
//! in the record says which write was first. The leader answers reads; a leader that was cut off knows no more than it
//! did then.

use std::rc::Rc;

use longshore_domain::job::Unique;
use longshore_domain::{Run, SmolStr, format_smolstr, protocol};

use crate::tests::simulation::ledger::has_lost_lease;
use crate::tests::simulation::mutation::Mutation;
use crate::tests::simulation::server::{
    Claim, Due, Key, Late, Message, MessageId, Place, Schedule, Server, Stored, TakenFrom, Word,
};
use crate::tests::simulation::worker::LENGTH;
use crate::tests::simulation::world::{Kind, OLD_READ_MAX, World};

/// A sender gives up on an answer after this long.
const TIME_OUT: i64 = 150;
/// A write without an answer is given up after this many tries.
const TRIES: u32 = 3;

/// The outcome of one call.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    Answered,
    Unanswered,
    Lost,
    /// Arrives when its sender has given up on it.
    Late,
}

/// The result of a compare-and-set.
pub(crate) enum Written {
    Won(u64),
    /// Another write was first; this record is stored now.
    Lost(Option<Stored>),
    /// No answer came.
    Unclear,
}

/// No answer came.
pub(crate) struct Unclear;

#[derive(Clone, Copy)]
pub(crate) struct Client<'w> {
    pub(crate) world: &'w World,
    pub(crate) node: usize,
}

impl<'w> Client<'w> {
    pub(crate) fn fate(&self) -> Fate {
        let world = self.world;
        if !world.chance.hits(world.weather.get().unclear) {
            return Fate::Answered;
        }
        [Fate::Unanswered, Fate::Lost, Fate::Late].into_iter().nth(world.chance.below(3) as usize).unwrap_or(Fate::Lost)
    }

    /// The fate of a write, which a leader that was cut off cannot take.
    pub(crate) fn fate_of_write(&self) -> Fate {
        if self.cut_since().is_some() { Fate::Lost } else { self.fate() }
    }

    /// Since when the leaders that this node reaches have been cut off, if they are.
    fn cut_since(&self) -> Option<i64> {
        let (from, until) = self.world.nodes[self.node].cut.get();
        (self.world.clock.get() < until).then_some(from)
    }

    /// Waits in vain for an answer.
    pub(crate) async fn no_answer(&self) -> Unclear {
        self.world.pause(TIME_OUT).await;
        Unclear
    }

    /// An idempotent call, made until it is answered.
    async fn call<T>(&self, mut apply: impl FnMut(&mut Server) -> T) -> T {
        loop {
            self.world.travel().await;
            let fate = self.fate();
            if fate == Fate::Lost {
                self.world.pause(TIME_OUT).await;
                continue;
            }
            let answer = apply(&mut self.world.server.borrow_mut());
            self.world.travel().await;
            if fate == Fate::Answered {
                return answer;
            }
            self.world.pause(TIME_OUT).await;
        }
    }

    /// The stored record, as the leader answers.
    pub(crate) async fn read(&self, key: Key) -> Option<Stored> {
        let world = self.world;
        let any_replica = world.is(Mutation::RecordsReadFromAnyReplica) && world.chance.hits(3_000);
        let lag = if any_replica { world.chance.between(0, OLD_READ_MAX) } else { 0 };
        self.call(|server| match self.cut_since() {
            Some(from) => server.read_as_of(key, from),
            None if lag > 0 => server.read_as_of(key, world.clock.get() - lag),
            None => server.read(key),
        })
        .await
    }

    /// The stored record as some replica has it, which may be an old one.
    pub(crate) async fn read_replica(&self, key: Key) -> Option<Stored> {
        let world = self.world;
        let lag = if world.chance.hits(3_000) { world.chance.between(0, OLD_READ_MAX) } else { 0 };
        let as_of = |from: i64| from.min(world.clock.get() - lag);
        self.call(|server| server.read_as_of(key, as_of(self.cut_since().unwrap_or(i64::MAX)))).await
    }

    /// The part of this process's tokens that names it.
    pub(crate) fn writer(&self) -> SmolStr {
        self.world.nodes[self.node].writer.borrow().clone()
    }

    /// A token that no other write has, of this process or any other.
    pub(crate) fn token(&self) -> SmolStr {
        format_smolstr!("{}-{}", self.world.nodes[self.node].writer.borrow(), self.world.number())
    }

    /// Writes the record over revision `expected`, 0 for none, under the token that it has; gives up in the end.
    pub(crate) async fn write(&self, plan: usize, key: Key, expected: u64, run: &Rc<Run>) -> Written {
        match self.store(plan, key, expected, (run, TRIES)).await {
            Some(Some(revision)) => Written::Won(revision),
            Some(None) => self.whose(key, &run.token).await,
            None => Written::Unclear,
        }
    }

    /// The compare-and-set as it is answered: stored at this revision, or refused. `None`: no answer came.
    pub(crate) async fn store(
        &self,
        plan: usize,
        key: Key,
        expected: u64,
        (run, tries): (&Rc<Run>, u32),
    ) -> Option<Option<u64>> {
        let world = self.world;
        for _ in 0..tries {
            world.travel().await;
            let fate = self.fate_of_write();
            match fate {
                Fate::Lost => {}
                Fate::Late => {
                    let at = world.clock.get() + world.chance.between(1, 2 * TIME_OUT);
                    let late = Late { at, plan, key, expected, run: Rc::clone(run) };
                    world.server.borrow_mut().late.push(late);
                }
                Fate::Answered | Fate::Unanswered => {
                    let written = set(world, plan, (key, expected), run);
                    world.travel().await;
                    if fate == Fate::Answered {
                        return Some(written);
                    }
                }
            }
            world.pause(TIME_OUT).await;
        }
        None
    }

    /// Decides after a refusal: the write is won if the earlier write was this client's own.
    async fn whose(&self, key: Key, token: &str) -> Written {
        match self.read(key).await {
            Some(found) if protocol::was_mine(Some(&found.run), token) => Written::Won(found.revision),
            found => Written::Lost(found),
        }
    }

    pub(crate) async fn read_claim(&self, key: usize) -> Option<Claim> {
        self.call(|server| server.claim_of(key)).await
    }

    /// Writes a claim over that of revision `expected`, 0 for none; returns its revision, or none if another write was
    /// first.
    pub(crate) async fn write_claim(
        &self,
        key: usize,
        expected: u64,
        (plan, published, timed): (usize, bool, bool),
        taken_from: TakenFrom,
    ) -> Result<Option<u64>, Unclear> {
        let world = self.world;
        world.travel().await;
        let fate = self.fate_of_write();
        if fate == Fate::Lost {
            world.pause(TIME_OUT).await;
            return Err(Unclear);
        }
        let before = world.server.borrow().claim_of(key).filter(|before| before.revision == expected);
        let written = world.server.borrow_mut().write_claim(key, expected, (plan, published, timed), taken_from);
        if let Some(before) = before.filter(|before| before.published && before.plan != plan) {
            self.check_taken(before.plan, plan);
        }
        world.say(|| format!("{} claims key {key} for run {plan} ({published}): {written:?}", self.name()));
        world.travel().await;
        if fate == Fate::Answered { Ok(written) } else { Err(Unclear) }
    }

    /// A key was taken from a run: its scope must have freed it by now, or the run must have made way.
    fn check_taken(&self, from: usize, plan: usize) {
        let world = self.world;
        let Some(stored) = world.record(from) else { return };
        let is_free = match world.plans[from].scope {
            _ if stored.run.state.duplicate_of().is_some() => true,
            // It was replayed meanwhile: it has to claim the key before it starts.
            _ if stored.run.round > 1 && !stored.run.has_started() => true,
            Unique::Window => false,
            // A start for which there is no handler is taken back later.
            Unique::Queued => world.ledger.borrow().has_run(from) || stored.run.state.is_terminal(),
            Unique::Active => stored.run.state.is_terminal(),
        };
        if !is_free {
            world.ledger.borrow_mut().accuse(plan, format!("it has the key of run {from}, which still had it"));
        }
    }

    /// Gives a key back whose claim has the revision `expected`.
    pub(crate) async fn give_back(&self, key: usize, expected: u64) -> Result<Option<u64>, Unclear> {
        let world = self.world;
        world.travel().await;
        let fate = self.fate_of_write();
        if fate == Fate::Lost {
            world.pause(TIME_OUT).await;
            return Err(Unclear);
        }
        let given = world.server.borrow_mut().give_back(key, expected);
        world.say(|| format!("{} gives key {key} back: {given:?}", self.name()));
        world.travel().await;
        if fate == Fate::Answered { Ok(given) } else { Err(Unclear) }
    }

    pub(crate) async fn schedule(&self, schedule: Schedule) {
        let place = schedule.place;
        self.world.say(|| format!("{} schedules {place:?} at {}", self.name(), schedule.at));
        let one_a_run = self.world.is(Mutation::OneScheduleSubjectPerRun);
        let same = |other: Place| other == place || one_a_run && other.plan == place.plan;
        self.call(|server| server.schedule(schedule, same)).await;
    }

    /// Parks a job. A park has no message id: without an answer, the job is parked once more.
    pub(crate) async fn park(&self, parked: Schedule) {
        let world = self.world;
        world.say(|| format!("{} parks {:?}", self.name(), parked.place));
        let twice = world.kind == Kind::Waits && world.chance.hits(3_000);
        for _ in 0..1 + u32::from(twice) {
            self.call(|server| server.park(parked)).await;
        }
    }

    /// The sequence of a parked job.
    pub(crate) async fn find_parked(&self, place: Place) -> Option<u64> {
        self.call(|server| {
            server.parked.iter().find(|parked| parked.schedule.place == place).map(|found| found.sequence)
        })
        .await
    }

    /// Deletes a parked job; returns whether it was there.
    pub(crate) async fn take_parked(&self, sequence: u64) -> bool {
        self.call(|server| server.take_parked(sequence)).await
    }

    pub(crate) async fn has_schedule(&self, place: Place) -> bool {
        self.call(|server| server.schedules.iter().any(|schedule| schedule.place == place)).await
    }

    /// The sequence of a schedule, if it stands.
    pub(crate) async fn find_schedule(&self, place: Place) -> Option<u64> {
        self.call(|server| server.schedules.iter().find(|schedule| schedule.place == place).map(|found| found.sequence))
            .await
    }

    /// Deletes the schedule or due job with this sequence; returns whether it was there.
    pub(crate) async fn take_schedule(&self, sequence: u64) -> bool {
        self.call(|server| {
            let before = server.schedules.len() + server.due.len();
            server.schedules.retain(|schedule| schedule.sequence != sequence);
            server.due.retain(|due| due.sequence != sequence);
            server.schedules.len() + server.due.len() < before
        })
        .await
    }

    pub(crate) async fn unschedule_all(&self, plan: usize) {
        self.call(|server| {
            server.schedules.retain(|schedule| schedule.place.plan != plan);
            server.parked.retain(|parked| parked.schedule.place.plan != plan);
        })
        .await;
    }

    pub(crate) async fn unschedule(&self, place: Place) {
        self.call(|server| server.schedules.retain(|schedule| schedule.place != place)).await;
    }

    /// Deletes the first job in the lane for which `is_it` is true; returns whether there was one.
    pub(crate) async fn take_out(&self, is_it: impl Fn(&Message) -> bool) -> bool {
        self.call(|server| server.take_out(&is_it)).await
    }

    /// The first job in the lane for which `is_it` is true.
    pub(crate) async fn look_in_lane(&self, is_it: impl Fn(&Message) -> bool) -> Option<Message> {
        self.call(|server| server.lane.iter().find(|message| is_it(message)).copied()).await
    }

    /// What the server lists.
    pub(crate) async fn list<T>(&self, list: impl Fn(&Server) -> Vec<T>) -> Vec<T> {
        self.call(|server| list(server)).await
    }

    pub(crate) async fn publish(&self, message: Message, id: MessageId) {
        let world = self.world;
        self.call(|server| {
            let sequence = server.publish(Message { at: world.clock.get(), ..message }, Some(id), &world.chance);
            world.say(|| format!("{} publishes {:?} as {sequence:?}", self.name(), message.place));
        })
        .await;
    }

    /// The same, tried once; returns whether the lane confirmed it.
    pub(crate) async fn try_publish(&self, message: Message, id: MessageId) -> bool {
        let world = self.world;
        world.travel().await;
        let fate = self.fate();
        if fate != Fate::Lost {
            let message = Message { at: world.clock.get(), ..message };
            let sequence = world.server.borrow_mut().publish(message, Some(id), &world.chance);
            world.say(|| format!("{} moves {:?} as {sequence:?}", self.name(), message.place));
        }
        world.travel().await;
        fate == Fate::Answered
    }

    /// The server delivers the due job again after this many milliseconds.
    pub(crate) async fn put_off(&self, due: Due, wait: i64) {
        let until = self.world.clock.get() + wait;
        self.call(|server| server.put_off(due.sequence, until)).await;
    }

    pub(crate) async fn ack_due(&self, due: Due) {
        self.call(|server| server.ack_due(due.sequence)).await;
    }

    /// Sends a reply about a delivery, once, and waits for nothing; it may arrive late or never.
    pub(crate) fn send(&self, sequence: u64, word: Word) {
        let world = self.world;
        let fate = self.fate();
        if fate == Fate::Lost {
            return;
        }
        let is_late = fate == Fate::Late || world.chance.hits(world.weather.get().late);
        let at = world.clock.get() + if is_late { world.chance.between(1, 3_000) } else { world.travel_time() };
        world.say(|| format!("{} sends {word:?} of {sequence}, which arrives at {at}", self.name()));
        world.server.borrow_mut().late_words.push((at, sequence, word));
    }

    /// Renews a lease; it may be late or lost. Returns whether that was confirmed.
    pub(crate) async fn renew(&self, sequence: u64) -> bool {
        let world = self.world;
        world.travel().await;
        let fate = self.fate();
        if fate == Fate::Lost {
            return false;
        }
        let now = world.clock.get();
        if fate == Fate::Late || world.chance.hits(world.weather.get().late) {
            let at = now + world.chance.between(1, 3_000);
            world.say(|| format!("{} renews the lease of {sequence}, at {at}", self.name()));
            world.server.borrow_mut().late_words.push((at, sequence, Word::Renew));
            return false;
        }
        world.server.borrow_mut().hear(sequence, Word::Renew, now);
        world.travel().await;
        fate == Fate::Answered
    }

    pub(crate) async fn put_letter(&self, plan: usize, run: &Run) {
        self.world.say(|| format!("{} puts the dead letter of run {plan}, round {}", self.name(), run.round));
        self.call(|server| server.put_letter(plan, run, &self.world.chance)).await;
    }

    pub(crate) async fn delete_letter(&self, sequence: u64) {
        self.world.say(|| format!("{} deletes dead letter {sequence}", self.name()));
        let by_run = self.world.is(Mutation::LettersDeletedByRun);
        self.call(|server| {
            let plan = server.letters.iter().find(|letter| letter.sequence == sequence).map(|letter| letter.plan);
            server.letters.retain(|other| other.sequence != sequence && !(by_run && Some(other.plan) == plan));
        })
        .await;
    }

    /// Notes in the durable list that a run is being cancelled.
    pub(crate) async fn note_cancel(&self, plan: usize) {
        let now = self.world.clock.get();
        self.call(|server| server.cancel_notes.push((plan, now))).await;
    }

    pub(crate) async fn forget_cancel(&self, plan: usize) {
        self.call(|server| server.cancel_notes.retain(|(noted, _)| *noted != plan)).await;
    }

    pub(crate) fn name(&self) -> &'w str {
        &self.world.names[self.node]
    }
}

/// The compare-and-set itself; the ledger sees it.
pub(crate) fn set(world: &World, plan: usize, (key, expected): (Key, u64), run: &Rc<Run>) -> Option<u64> {
    let mut server = world.server.borrow_mut();
    let before = server.read(key);
    let at = world.clock.get();
    let written = server.compare_and_set(Late { at, plan, key, expected, run: Rc::clone(run) });
    world.say(|| {
        let node = run.node.as_deref().unwrap_or("-");
        let answer = written.map_or_else(|| "refused".to_owned(), |revision| format!("revision {revision}"));
        format!(
            "record {key} of run {plan}: {} {}/{} by {node}, token {} over {expected}: {answer}",
            run.state.as_str(),
            run.round,
            run.attempt,
            run.token
        )
    });
    if written.is_some() {
        let mut ledger = world.ledger.borrow_mut();
        if let Some(other) = before.as_ref().filter(|before| before.plan != plan) {
            ledger.overwritten(other.plan, &other.run);
        }
        let was_nobodys = run.state.duplicate_of().is_some() && !run.published && run.held_by.is_none();
        if let Some(key) = world.plans[plan].key.filter(|_| was_nobodys) {
            let claim = server.claim_of(key);
            let is_taken = claim.is_some_and(|claim| claim.taken_from.contains(&Some(plan)));
            // Nor does a job go on with it that has come to its end without the key.
            let has_ended = |of: usize| server.read(world.key(of)).is_some_and(|of| of.run.state.is_terminal());
            let holder = run.state.duplicate_of().and_then(|of| world.plan_named(of));
            let is_over = holder.is_some_and(|of| has_ended(of) && !server.has_job_of(of));
            if !is_taken || is_over {
                ledger.ended_late(plan);
            }
        }
        // A lease is renewed from the start of its attempt on: too late, where that took most of the lease to begin.
        let sent = run.held_by.as_ref().map(|held| held.message.at);
        let began_late = run.attempts.last().zip(sent).is_some_and(|(last, at)| last.started_at.since(at) > LENGTH / 2);
        if has_lost_lease(run) && world.calm.get() && !began_late {
            ledger.accuse(plan, "its lease was lost without any fault");
        }
        let before = before.as_ref().map(|stored| &*stored.run);
        ledger.written(plan, before, run, world.now());
    }
    written
}
