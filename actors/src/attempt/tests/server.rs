//! The server in memory, and the messages that it delivers.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use bytes::Bytes;
use longshore_backbone::claims::{Claim, Claimed, FoundClaim};
use longshore_backbone::control::Presence;
use longshore_backbone::delivery::{AckToken, Delivery};
use longshore_backbone::holders::{HolderAnswer, HolderQuestion};
use longshore_backbone::in_order::{Waiting, Waits};
use longshore_backbone::records::{Found, Written};
use longshore_backbone::request::Over;
use longshore_backbone::wire::header;
use longshore_backbone::wire::kind_key::KindKey;
use longshore_backbone::wire::subject::Names;
use longshore_backbone::{Error, Headers};
use longshore_domain::concurrency::{ConcurrencyId, Line, Order, OrderId};
use longshore_domain::run::{Holding, MessageId};
use longshore_domain::{
    BatchId, Job, JobOptions, JobType, Lane, Priority, Queue, Run, RunId, RunState, Tenant, Timestamp, events,
};

use super::LEASE;
use super::node::read_event;
use crate::attempt::assignment::Assignment;
use crate::ports::encode::{Destination, EncodedEvents};
use crate::ports::{Rules, Server};

/// What goes wrong with one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    /// It never arrives, and its sender learns that it got no answer.
    Lost,
    /// What it meets is not what nodes write.
    Unreadable,
    /// Its stream takes no more.
    Full,
    /// It takes effect, but its sender learns that it got no answer.
    AnswerLost,
    /// Its sender dies before it.
    DiesBefore,
    /// Its sender dies after it took effect.
    DiesAfter,
}

/// A job in its lane.
#[derive(Debug, Clone)]
pub(super) struct Message {
    pub(super) sequence: u64,
    pub(super) at: Timestamp,
    pub(super) headers: Option<Headers>,
    pub(super) delivered: u64,
}

/// Another write, by somebody else.
type Other = Box<dyn FnOnce(&MemoryServer)>;

pub(super) struct MemoryServer {
    names: Names,
    start: Instant,
    /// Milliseconds since the tests' beginning of time.
    clock: Cell<i64>,
    sequence: Cell<u64>,
    records: RefCell<BTreeMap<RunId, Found>>,
    claims: RefCell<BTreeMap<String, (Claim, u64)>>,
    lines: RefCell<BTreeMap<String, (Line, u64)>>,
    orders: RefCell<BTreeMap<String, (Order, u64)>>,
    /// Other jobs of the key that wait, and where.
    pub(super) others: RefCell<Vec<(Waits, Message)>>,
    /// Keys whose claims go away by themselves within a second.
    given_back: RefCell<Vec<String>>,
    /// For how long claims are stored.
    claims_last: RefCell<BTreeMap<String, Duration>>,
    pub(super) lane: RefCell<Vec<Message>>,
    /// By run, round, attempt and wait; each with its time.
    pub(super) schedules: RefCell<BTreeMap<String, (Timestamp, Headers)>>,
    /// Runs and rounds.
    pub(super) dead_letters: RefCell<Vec<(RunId, u32)>>,
    /// Ids of events that the log has, in order.
    pub(super) log: RefCell<Vec<String>>,
    /// Ids of the events that any decided version of a record implies, in order.
    implied: RefCell<Vec<String>>,
    presences: RefCell<BTreeMap<String, Presence>>,
    answers: RefCell<BTreeMap<String, HolderAnswer>>,
    /// What took effect, in order.
    noted: RefCell<Vec<String>>,
    calls: Cell<u32>,
    fault: Cell<Option<(u32, Fault)>>,
    before_write: RefCell<Option<Other>>,
    before_answer: RefCell<Option<Other>>,
    pub(super) pauses: Cell<u32>,
}

/// The sequence of the job that most tests are about, and its id.
pub(super) const SEQUENCE: u64 = 7;
pub(super) const RUN: &str = "main-p5-7";
/// Each test's beginning of time, in milliseconds.
pub(super) const BEGINNING: i64 = 1_000_000;

pub(super) fn at(millis: i64) -> Timestamp {
    Timestamp::from_millis(BEGINNING + millis)
}

pub(super) fn id(text: &str) -> RunId {
    RunId::parse(text).unwrap()
}

/// The message `sequence` of the lane, stored at the beginning.
pub(super) fn message(sequence: u64) -> MessageId {
    MessageId { stream: "LANE".into(), sequence, at: at(0) }
}

impl MemoryServer {
    pub(super) fn new() -> Self {
        Self {
            names: Names::new("longshore"),
            start: Instant::now(),
            clock: Cell::new(0),
            sequence: Cell::new(100),
            records: RefCell::default(),
            claims: RefCell::default(),
            lines: RefCell::default(),
            orders: RefCell::default(),
            others: RefCell::default(),
            given_back: RefCell::default(),
            claims_last: RefCell::default(),
            lane: RefCell::default(),
            schedules: RefCell::default(),
            dead_letters: RefCell::default(),
            log: RefCell::default(),
            implied: RefCell::default(),
            presences: RefCell::default(),
            answers: RefCell::default(),
            noted: RefCell::default(),
            calls: Cell::new(0),
            fault: Cell::new(None),
            before_write: RefCell::new(None),
            before_answer: RefCell::new(None),
            pauses: Cell::new(0),
        }
    }

    // What a test gives.

    /// Lets time pass.
    pub(super) fn pass(&self, span: Duration) {
        self.clock.set(self.clock.get() + i64::try_from(span.as_millis()).unwrap());
    }

    /// What goes wrong with the call number `call`, from 0, counted from now on.
    pub(super) fn breaks(&self, call: u32, fault: Fault) {
        self.calls.set(0);
        self.fault.set(Some((call, fault)));
    }

    /// Somebody else acts just before the next write of a record.
    pub(super) fn before_write(&self, other: impl FnOnce(&Self) + 'static) {
        *self.before_write.borrow_mut() = Some(Box::new(other));
    }

    /// Something happens before the answer of the next node that is asked whether it holds a job.
    pub(super) fn before_answer(&self, other: impl FnOnce(&Self) + 'static) {
        *self.before_answer.borrow_mut() = Some(Box::new(other));
    }

    /// A record that is stored.
    pub(super) fn has_record(&self, run: Run) {
        let revision = self.next();
        self.records.borrow_mut().insert(run.run_id.clone(), Found { run, revision });
    }

    /// Somebody else writes a run's record.
    pub(super) fn changes(&self, run: &str, change: impl FnOnce(&mut Run)) {
        let mut run = self.run(run);
        change(&mut run);
        run.token = "another-1".into();
        self.has_record(run);
    }

    pub(super) fn loses_record(&self, run: &str) {
        self.records.borrow_mut().remove(&id(run));
    }

    pub(super) fn has_claim(&self, key: &str, claim: Claim) {
        let revision = self.next();
        self.claims.borrow_mut().insert(key.to_owned(), (claim, revision));
    }

    pub(super) fn is_asked(&self, node: &str, answer: HolderAnswer) {
        self.answers.borrow_mut().insert(node.to_owned(), answer);
    }

    pub(super) fn has_presence(&self, node: &str, started_at: Timestamp, seen_at: Timestamp) {
        let (node, version, state) = (node.to_owned(), String::new(), String::new());
        let presence = Presence {
            node: node.clone(),
            version,
            started_at,
            seen_at,
            state,
            queues: BTreeMap::new(),
            running_of: BTreeMap::new(),
            missing_handlers: Vec::new(),
        };
        self.presences.borrow_mut().insert(node, presence);
    }

    /// A client's job in the lane, stored now.
    pub(super) fn publish(&self, sequence: u64, options: Option<&JobOptions>) -> Message {
        let headers = options.map(|options| {
            let mut headers = Headers::new();
            header::write_options(options, &mut headers);
            headers
        });
        let message = Message { sequence, at: self.now(), headers, delivered: 0 };
        self.lane.borrow_mut().push(message.clone());
        message
    }

    /// The jobs whose time has come go into the lane.
    pub(super) fn fire(&self) {
        let due: Vec<String> = {
            let schedules = self.schedules.borrow();
            schedules.iter().filter(|(_, (at, _))| *at <= self.now()).map(|(name, _)| name.clone()).collect()
        };
        for name in due {
            let (_, headers) = self.schedules.borrow_mut().remove(&name).unwrap();
            let message = Message { sequence: self.next(), at: self.now(), headers: Some(headers), delivered: 0 };
            self.lane.borrow_mut().push(message);
        }
    }

    // What a test finds.

    pub(super) fn now(&self) -> Timestamp {
        at(self.clock.get())
    }

    pub(super) fn instant(&self) -> Instant {
        self.start + Duration::from_millis(u64::try_from(self.clock.get()).unwrap())
    }

    pub(super) fn find(&self, run: &str) -> Option<Run> {
        self.records.borrow().get(&id(run)).map(|found| found.run.clone())
    }

    pub(super) fn run(&self, run: &str) -> Run {
        self.find(run).unwrap_or_else(|| panic!("run {run} has no record"))
    }

    /// The run of the job that most tests are about.
    pub(super) fn last_run(&self) -> Run {
        self.run(RUN)
    }

    pub(super) fn claim(&self, key: &str) -> Option<Claim> {
        self.claims.borrow().get(key).map(|(claim, _)| claim.clone())
    }

    /// For how long the claim on a key is stored.
    pub(super) fn claim_lasts(&self, key: &str) -> Option<Duration> {
        self.claims_last.borrow().get(key).copied()
    }

    /// Whether the claim on a key goes away by itself within a second.
    pub(super) fn is_given_back(&self, key: &str) -> bool {
        self.given_back.borrow().iter().any(|other| other == key)
    }

    /// Whether the fault has happened.
    pub(super) fn is_broken(&self) -> bool {
        self.fault.get().is_none()
    }

    /// All that took effect since the last call.
    pub(super) fn take_noted(&self) -> Vec<String> {
        std::mem::take(&mut *self.noted.borrow_mut())
    }

    pub(super) fn note(&self, what: impl Into<String>) {
        self.noted.borrow_mut().push(what.into());
    }

    fn next(&self) -> u64 {
        self.sequence.set(self.sequence.get() + 1);
        self.sequence.get()
    }

    pub(super) fn has_line(&self, id: &ConcurrencyId, line: Line) {
        self.lines.borrow_mut().insert(id.to_string(), (line, self.next()));
    }

    // What a node asks.

    /// One call, which may go wrong.
    pub(super) async fn call<T>(&self, act: impl FnOnce() -> T) -> Result<T, Error> {
        let number = self.calls.replace(self.calls.get() + 1);
        let unanswered = || Error::Publish { subject: "x".to_owned(), source: "no answer".into() };
        match self.fault.take_if(number) {
            None => Ok(act()),
            Some(Fault::Lost) => Err(unanswered()),
            Some(Fault::Unreadable) => {
                let (subject, value) = ("x".to_owned(), Bytes::from_static(b"{}"));
                Err(Error::Unreadable { subject, revision: 7, value, source: "no record".into() })
            }
            Some(Fault::Full) => {
                let (subject, description) = ("x".to_owned(), "maximum bytes exceeded".to_owned());
                Err(Error::Refused { subject, code: 10_077, description })
            }
            Some(Fault::AnswerLost) => {
                act();
                Err(unanswered())
            }
            Some(Fault::DiesBefore) => std::future::pending().await,
            Some(Fault::DiesAfter) => {
                act();
                std::future::pending().await
            }
        }
    }

    /// The compare-and-set; the error is what is stored.
    pub(super) fn compare_and_set(&self, run: &Run, expected: u64) -> Result<u64, Option<Box<Found>>> {
        let other = self.before_write.borrow_mut().take();
        if let Some(other) = other {
            other(self);
        }
        let found = self.records.borrow().get(&run.run_id).cloned();
        if found.as_ref().map_or(0, |found| found.revision) != expected {
            return Err(found.map(Box::new));
        }
        let name = if run.run_id.as_str() == RUN { String::new() } else { format!(" of {}", run.run_id) };
        self.note(format!("record{name} {} {}/{}", run.state.as_str(), run.round, run.attempt));
        self.implies(run);
        self.has_record(run.clone());
        Ok(self.sequence.get())
    }

    /// A running attempt may still be put back; every other version of a record is a decision.
    fn implies(&self, run: &Run) {
        let mut implied = self.implied.borrow_mut();
        for event in events::of_round(run).iter().filter(|_| run.state != RunState::Running) {
            let id = event.id();
            if !implied.contains(&id) {
                implied.push(id);
            }
        }
    }

    fn follow_up(&self, what: &str, run: &Run, at: Timestamp, headers: Option<&Headers>) {
        let after = at.millis() - self.now().millis();
        self.note(format!("{what} {}/{} in {after} ms", run.round, run.next_attempt()));
        let name = format!("{}/{}/{}/{}", run.run_id, run.round, run.next_attempt(), run.deferrals);
        let headers = header::carry_on(headers, run, run.next_attempt(), Some(at));
        self.schedules.borrow_mut().insert(name, (at, headers));
    }
}

trait TakeIf {
    fn take_if(&self, number: u32) -> Option<Fault>;
}

impl TakeIf for Cell<Option<(u32, Fault)>> {
    fn take_if(&self, number: u32) -> Option<Fault> {
        let (at, fault) = self.get()?;
        (at == number).then(|| {
            self.set(None);
            fault
        })
    }
}

impl Rules for MemoryServer {}

impl Destination for MemoryServer {
    fn names(&self) -> &Names {
        &self.names
    }

    fn max_in_record(&self) -> usize {
        1 << 20
    }
}

impl Server for MemoryServer {
    async fn forget_steps(&self, _: &Tenant, run: &RunId) -> Result<(), Error> {
        self.call(|| self.note(format!("forget steps of {run}"))).await
    }

    async fn is_declared(&self, _: &Queue) -> Result<bool, Error> {
        Ok(true)
    }

    async fn join_batch(&self, _: &Job, _: &BatchId) -> Result<Result<(), String>, Error> {
        Ok(Ok(()))
    }

    async fn note_end_in_batch(&self, _: &Run) -> Result<(), Error> {
        Ok(())
    }

    async fn read_record(&self, _: &Tenant, run: &RunId) -> Result<Option<Found>, Error> {
        self.call(|| self.records.borrow().get(run).cloned()).await
    }

    async fn read_replica(&self, _: &Tenant, run: &RunId) -> Option<Found> {
        self.records.borrow().get(run).cloned()
    }

    async fn write_record(&self, run: &Run, expected: u64) -> Result<Written, Error> {
        let written = self.call(|| self.compare_and_set(run, expected)).await?;
        Ok(match written {
            Ok(revision) => Written::Won(revision),
            Err(Some(found)) if found.run.token == run.token => Written::Won(found.revision),
            Err(found) => Written::Lost(found),
        })
    }

    async fn claim_key(&self, tenant: &Tenant, key: &str, claim: &Claim, window: Duration) -> Result<Claimed, Error> {
        if let Some(revision) = self.write_claim(tenant, key, claim, Over { expected: 0, lasts: window }).await? {
            return Ok(Claimed::Mine(revision));
        }
        Ok(Claimed::Found(self.read_claim(tenant, key).await?.unwrap()))
    }

    async fn read_claim(&self, _: &Tenant, key: &str) -> Result<Option<FoundClaim>, Error> {
        let read = || self.claims.borrow().get(key).cloned();
        let found = self.call(read).await?;
        Ok(found.map(|(claim, revision)| FoundClaim { claim, revision, at: at(0) }))
    }

    async fn write_claim(
        &self,
        _: &Tenant,
        key: &str,
        claim: &Claim,
        Over { expected, lasts }: Over,
    ) -> Result<Option<u64>, Error> {
        let write = || {
            if self.claims.borrow().get(key).map_or(0, |(_, revision)| *revision) != expected {
                return None;
            }
            let from = claim.taken_from.iter().map(|run| format!(" from {run}")).collect::<String>();
            let published = if claim.published { "" } else { " unpublished" };
            let back = if lasts <= Duration::from_secs(1) { ", given back" } else { "" };
            self.note(format!("claim {key} for {}{published}{from}{back}", claim.run_id));
            self.given_back.borrow_mut().retain(|other| other != key);
            self.given_back.borrow_mut().extend((!back.is_empty()).then(|| key.to_owned()));
            self.has_claim(key, claim.clone());
            self.claims_last.borrow_mut().insert(key.to_owned(), lasts);
            Some(self.sequence.get())
        };
        self.call(write).await
    }

    async fn read_line(&self, id: &ConcurrencyId) -> Result<(Line, u64), Error> {
        self.call(|| self.lines.borrow().get(&id.to_string()).cloned().unwrap_or_default()).await
    }

    async fn write_line(&self, id: &ConcurrencyId, line: &Line, expected: u64) -> Result<bool, Error> {
        let write = || {
            let mut lines = self.lines.borrow_mut();
            let stored = lines.entry(id.to_string()).or_default();
            if stored.1 != expected {
                return false;
            }
            *stored = (line.clone(), self.next());
            drop(lines);
            let names: Vec<&str> = line.members().map(|member| member.run_id.as_str()).collect();
            self.note(format!("line {}", names.join(" ")));
            true
        };
        self.call(write).await
    }

    async fn read_order(&self, id: &OrderId) -> Result<(Order, u64), Error> {
        self.call(|| self.orders.borrow().get(&id.to_string()).cloned().unwrap_or_default()).await
    }

    async fn write_order(&self, id: &OrderId, order: &Order, expected: u64, _: Duration) -> Result<bool, Error> {
        let write = || {
            let mut orders = self.orders.borrow_mut();
            let stored = orders.entry(id.to_string()).or_default();
            if stored.1 != expected {
                return false;
            }
            *stored = (order.clone(), self.next());
            drop(orders);
            let names: Vec<&str> = order.batch().iter().map(|member| member.run_id.as_str()).collect();
            self.note(format!("order {}", names.join(" ")));
            true
        };
        self.call(write).await
    }

    async fn waiting_in_order(
        &self,
        _: &OrderId,
        place: Waits,
        beyond: u64,
        up_to: u64,
    ) -> Result<Vec<Waiting>, Error> {
        self.call(|| {
            let others = self.others.borrow();
            let here = others.iter().filter(|(waits, message)| *waits == place && message.sequence <= up_to);
            let here = here.filter(|(_, message)| message.sequence > beyond);
            let waiting = |message: &Message| Waiting {
                delivery: delivery(self, message, AckToken::none()),
                number: message.sequence,
            };
            here.map(|(_, message)| waiting(message)).collect()
        })
        .await
    }

    async fn is_in_lane(&self, _: &OrderId, sequence: u64) -> Result<bool, Error> {
        let is_it = |(place, message): &(Waits, Message)| *place == Waits::InLane && message.sequence == sequence;
        self.call(|| self.others.borrow().iter().any(is_it)).await
    }

    async fn notify_cancelled(&self, _: &Tenant, run: &RunId) {
        self.note(format!("cancel {run}"));
    }

    async fn take_out_parked(&self, run: &Run, _: &KindKey) -> Result<(), Error> {
        self.call(|| self.note(format!("take out {}", run.run_id))).await
    }

    async fn ask_holder(&self, node: &str, _: &HolderQuestion, _: Duration) -> Option<HolderAnswer> {
        let other = self.before_answer.borrow_mut().take();
        if let Some(other) = other {
            other(self);
        }
        self.call(|| self.answers.borrow().get(node).cloned()).await.ok().flatten()
    }

    async fn presence_of(&self, node: &str) -> Result<Option<Presence>, Error> {
        self.call(|| self.presences.borrow().get(node).cloned()).await
    }

    async fn schedule(&self, run: &Run, at: Timestamp, headers: Option<&Headers>, _: Bytes) -> Result<(), Error> {
        self.call(|| self.follow_up("schedule", run, at, headers)).await
    }

    async fn park(&self, run: &Run, since: Timestamp, headers: Option<&Headers>, _: Bytes) -> Result<(), Error> {
        self.call(|| self.follow_up("park", run, since, headers)).await
    }

    async fn return_to_queue(
        &self,
        run: &Run,
        since: Timestamp,
        headers: Option<&Headers>,
        _: Bytes,
    ) -> Result<(), Error> {
        self.call(|| self.follow_up("return", run, since, headers)).await
    }

    async fn write_dead_letter(&self, run: &Run, _: Option<&Headers>, _: Bytes) -> Result<(), Error> {
        let write = || {
            self.note("dead letter");
            let dead_letter = (run.run_id.clone(), run.round);
            let mut dead_letters = self.dead_letters.borrow_mut();
            if !dead_letters.contains(&dead_letter) {
                dead_letters.push(dead_letter);
            }
        };
        self.call(write).await
    }

    async fn publish_next(&self, run: &Run, _: Headers, payload: Bytes) -> Result<bool, Error> {
        let text = String::from_utf8_lossy(&payload).into_owned();
        self.call(|| self.note(format!("next {}: {text}", run.run_id))).await.map(|()| true)
    }

    async fn publish_live(&self, events: &EncodedEvents) {
        let names: Vec<String> = events.live().map(|(_, body)| read_event(&body).0).collect();
        if !names.is_empty() {
            self.note(format!("live {}", names.join(" ")));
        }
    }

    async fn ack(&self, ack_token: AckToken) {
        let (reply, _) = ack_token.into_ack().unwrap();
        let ack = || {
            self.note(format!("ack {reply}"));
            self.lane.borrow_mut().retain(|message| message.sequence.to_string() != reply.as_str());
        };
        // An ack is not confirmed.
        let _ = self.call(ack).await;
    }

    async fn nak_after(&self, ack_token: AckToken, after: Duration) {
        let reply = ack_token.reply().cloned().unwrap();
        ack_token.abandon();
        let nak = || self.note(format!("nak {} after {} ms", reply.as_str(), after.as_millis()));
        let _ = self.call(nak).await;
    }

    fn ack_wait(&self) -> Duration {
        LEASE
    }

    async fn pause(&self, _: Duration) {
        self.pauses.set(self.pauses.get() + 1);
    }
}

/// A delivery of a message, read as a job. `mark` is the lane's high-water mark.
pub(super) fn read(server: &MemoryServer, message: &Message, mark: u64, ack_token: AckToken) -> Box<Assignment> {
    Box::new(Assignment::read(delivery(server, message, ack_token), &server.names, mark, 1 << 20))
}

fn delivery(server: &MemoryServer, message: &Message, ack_token: AckToken) -> Delivery {
    let tenant = Tenant::default_tenant();
    let subject =
        server.names.job(&tenant, &Lane::new(&Queue::main(), Priority::DEFAULT), &JobType::parse("t").unwrap());
    let of = MessageId { stream: "LANE".into(), sequence: message.sequence, at: message.at };
    Delivery {
        subject: subject.into(),
        headers: message.headers.clone(),
        payload: Bytes::from_static(b"{}"),
        size: 2,
        holding: Holding { message: of, delivery: message.delivered },
        behind: 0,
        on_its_way: None,
        leased_from: server.instant(),
        ack_token,
    }
}

/// Checks that a run has ended as it should: all that its records imply is in the log, once and in order, and a dead
/// run has its dead letter.
pub(super) fn check_end(server: &MemoryServer, run: &Run, place: &str) {
    assert!(run.state.is_terminal(), "it waits for ever as {:?}: {place}", run.state);
    assert_eq!(*server.log.borrow(), *server.implied.borrow(), "the log is not what the records imply: {place}");
    let dead_letters = server.dead_letters.borrow().len();
    assert_eq!(
        dead_letters,
        usize::from(run.state == RunState::Dead),
        "dead letters of a {:?} run: {place}",
        run.state
    );
}
