//! The messages of committers on their way to the server, and its answers on their way back: late, twice, or never.
//!
//! A message that was sent arrives although its sender dies. An answer reaches the committer that sent the message, or
//! nobody.

use std::rc::Rc;

use bytes::Bytes;
use longshore_backbone::refusal::Refusal;
use longshore_backbone::window::PublishAnswer;
use longshore_domain::follow_up::FollowUp;
use longshore_domain::{Run, RunState};

use crate::commit::Commit;
use crate::commit::pipeline::Sent;
use crate::ports::encode::EncodedEvents;
use crate::tests::simulation::client::{Client, Fate, set};
use crate::tests::simulation::committer::Origin;
use crate::tests::simulation::mutation::Mutation;
use crate::tests::simulation::server::{Key, MessageId, NEVER, Word};
use crate::tests::simulation::slow_work::Slow;
use crate::tests::simulation::world::World;

/// A message that is late arrives within this time.
const LATE_BY: i64 = 300;
const WRONG_SEQUENCE: u64 = 10_071;
const RESOURCES_EXCEEDED: u64 = 10_077;

/// Who sent a message: a committer of a process of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Sender {
    node: usize,
    process: u32,
    committer: u32,
}

/// A message or an answer on its way. Its window counts the messages from 0.
#[derive(Debug)]
pub(crate) struct OnItsWay {
    at: i64,
    sender: Sender,
    nth: usize,
    is_late: bool,
    what: What,
}

#[derive(Debug, Clone)]
enum What {
    Record(Rc<Record>),
    Batch(u128, Bytes),
    Answer(u64),
    Refusal(u64),
    Nobody,
}

/// The write of a commit's record.
#[derive(Debug)]
struct Record {
    plan: usize,
    key: Key,
    expected: u64,
    run: Rc<Run>,
    /// What mutations have to know.
    origin: Origin,
    follow_up: Option<FollowUp>,
}

impl World {
    /// Sends a message of a committer.
    pub(crate) fn post(&self, node: usize, number: u64, what: &Sent) {
        let committing = self.committing(node);
        let sender = Sender { node, process: self.nodes[node].life.get(), committer: committing.deaths.get() };
        let nth = {
            let mut window = committing.window.borrow_mut();
            window.push(number);
            window.len() - 1
        };
        let what = match what {
            Sent::Record(commit) => {
                let record = self.record_of(node, commit);
                if record.origin.takes_over && self.is(Mutation::CarriedOutWithoutTakingOver) {
                    return self.answers(node, number, PublishAnswer::Stored(record.expected));
                }
                What::Record(Rc::new(record))
            }
            Sent::Batch { id, body, .. } => {
                if self.is(Mutation::LogNotWaitedFor) {
                    self.answers(node, number, PublishAnswer::Stored(0));
                }
                What::Batch(u128::from_str_radix(id, 16).expect("ids of batches are numbers"), body.clone())
            }
        };
        let at = self.clock.get() + self.travel_time();
        self.sets_out(OnItsWay { at, sender, nth, is_late: false, what });
    }

    fn sets_out(&self, message: OnItsWay) {
        self.next_arrival.set(self.next_arrival.get().min(message.at));
        self.on_its_way.borrow_mut().push(message);
    }

    fn record_of(&self, node: usize, commit: &Commit) -> Record {
        let origin = self.origin_of(commit);
        let (plan, key) = self.hand_on(node, origin).place_of_run(&commit.run);
        if key == Self::timed_key(plan) {
            self.ledger.borrow_mut().may_be_live_again(plan);
        }
        let expected = commit.write.as_ref().map_or(0, |write| write.expected);
        Record { plan, key, expected, run: Rc::new((*commit.run).clone()), origin, follow_up: commit.follow_up }
    }

    /// Messages and answers arrive.
    pub(crate) fn deliver(&self, now: i64) {
        while self.next_arrival.get() <= now {
            let arrived = {
                let mut on_its_way = self.on_its_way.borrow_mut();
                let at = on_its_way.iter().position(|message| message.at <= now);
                let arrived = at.map(|at| on_its_way.swap_remove(at));
                let times = on_its_way.iter().map(|message| message.at);
                self.next_arrival.set(times.min().unwrap_or(NEVER));
                arrived
            };
            let Some(arrived) = arrived else { return };
            match arrived.what {
                What::Answer(sequence) => self.answer(&arrived, PublishAnswer::Stored(sequence)),
                What::Refusal(err_code) => {
                    self.answer(&arrived, PublishAnswer::Refused(Refusal { err_code, description: String::new() }));
                }
                What::Nobody => self.answer(&arrived, PublishAnswer::NoResponders),
                What::Record(_) | What::Batch(..) => self.arrives(arrived),
            }
        }
    }

    fn answer(&self, to: &OnItsWay, answer: PublishAnswer) {
        let (committing, sender) = (self.committing(to.sender.node), to.sender);
        let lives = self.nodes[sender.node].life.get() == sender.process;
        let is_its_own = committing.deaths.get() == sender.committer;
        if lives && (is_its_own || self.is(Mutation::AnswersToADeadCommitterHeard)) {
            let number = committing.window.borrow().get(to.nth).copied();
            if let Some(number) = number {
                self.answers(sender.node, number, answer);
            }
        }
    }

    /// The server gets a message; or it does not, or gets it twice, or later.
    fn arrives(&self, message: OnItsWay) {
        let client = Client { world: self, node: message.sender.node };
        let fate = match &message.what {
            _ if message.is_late => Fate::Answered,
            What::Record(_) => client.fate_of_write(),
            _ => client.fate(),
        };
        let now = self.clock.get();
        let later = OnItsWay {
            at: now + self.chance.between(1, LATE_BY),
            is_late: true,
            what: message.what.clone(),
            ..message
        };
        match fate {
            Fate::Lost => return,
            Fate::Late => return self.sets_out(later),
            // It comes twice.
            Fate::Unanswered if self.chance.hits(5_000) => self.sets_out(later),
            Fate::Unanswered | Fate::Answered => {}
        }
        let answer = match &message.what {
            _ if self.chance.hits(self.weather.get().unclear / 4) => {
                if self.chance.hits(5_000) {
                    What::Nobody
                } else {
                    What::Refusal(RESOURCES_EXCEEDED)
                }
            }
            What::Record(record) => self.store_record(message.sender.node, record),
            What::Batch(id, body) => self.store_batch(message.sender.node, *id, body),
            What::Answer(_) | What::Refusal(_) | What::Nobody => return,
        };
        if fate == Fate::Answered {
            let at = now + self.travel_time();
            self.sets_out(OnItsWay { at, what: answer, ..message });
        }
    }

    fn store_record(&self, node: usize, record: &Record) -> What {
        let Record { plan, key, mut expected, ref run, origin, follow_up } = *record;
        if self.is(Mutation::EndOverwrites) {
            expected = self.server.borrow().read(key).map_or(0, |stored| stored.revision);
        }
        let Some(revision) = set(self, plan, (key, expected), run) else { return What::Refusal(WRONG_SEQUENCE) };
        if self.is(Mutation::AckBeforeEvents) {
            Client { world: self, node }.send(origin.delivery.message.sequence, Word::Ack);
        }
        let is_dead = run.state == RunState::Dead;
        let early = if is_dead { Mutation::LetterBeforeEvents } else { Mutation::ScheduleBeforeEvents };
        if let Some(follow_up) = follow_up.filter(|_| self.is(early)) {
            self.begin_slow(node, Slow::Early(Box::new((**run).clone()), follow_up, origin));
        }
        What::Answer(revision)
    }

    fn store_batch(&self, node: usize, id: u128, body: &[u8]) -> What {
        let (mut server, id) = (self.server.borrow_mut(), MessageId::Batch(id));
        // A server that forgets an id too early is a fault.
        let was_known = self.calm.get() && server.has_known(id);
        let is_known = server.is_known(id, &self.chance) || was_known;
        drop(server);
        if !is_known {
            self.log(node, body);
        }
        What::Answer(1)
    }

    /// Publishes events live.
    pub(crate) fn publish_live(&self, node: usize, events: &EncodedEvents) {
        for (_, body) in events.live() {
            let (plan, (event, _), _) = self.read_event(&body);
            self.ledger.borrow_mut().live(plan, event);
            self.say(|| format!("{} publishes {event} of run {plan} live", self.names[node]));
        }
    }

    fn log(&self, node: usize, body: &[u8]) {
        for line in body.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            let (plan, event, attempt) = self.read_event(line);
            let id = event.0;
            self.ledger.borrow_mut().logged(plan, event, attempt, self.calm.get());
            self.say(|| format!("{} logs {id} of run {plan}", self.names[node]));
        }
    }
}
