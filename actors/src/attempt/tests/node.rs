//! A node in memory: the ports of its attempts, and a committer that carries each commit out at once.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::FutureExt as _;
use longshore_backbone::delivery::AckToken;
use longshore_backbone::wire::record;
use longshore_domain::outcome::Outcome;
use longshore_domain::policy::Policies;
use longshore_domain::publication::Published;
use longshore_domain::run::MessageId;
use longshore_domain::served::NeverServed;
use longshore_domain::{Job, Run, SmolStr, Timestamp, format_smolstr};
use tokio::sync::mpsc;

use super::server::{MemoryServer, Message, read};
use super::{LEASE, done};
use crate::attempt::assignment::Assignment;
use crate::attempt::begin::begin;
use crate::attempt::conclude;
use crate::attempt::ports::Ports;
use crate::attempt::recently_cancelled::RecentlyCancelled;
use crate::attempt::running::RunningAttempt;
use crate::attempt::unclear_claims::UnclearClaims;
use crate::attempt::unstored_ends::UnstoredEnds;
use crate::commit::follow_up::{self, Done};
use crate::commit::{Commit, PublishedJob};
use crate::lease_keeper::Book;
use crate::metrics::Metrics;
use crate::ports::{RunPorts, Server as _, Unlogged};
use crate::runtime::permits::LocalRetryPermits;

pub(super) struct Node {
    pub(super) server: Rc<MemoryServer>,
    name: SmolStr,
    writer: String,
    writes: Cell<u64>,
    pub(super) policies: Policies,
    pub(super) metrics: Metrics,
    pub(super) book: Arc<Book>,
    pub(super) recently_cancelled: RecentlyCancelled,
    pub(super) unclear_claims: UnclearClaims,
    pub(super) unstored_ends: UnstoredEnds,
    pub(super) local_retries: Arc<LocalRetryPermits>,
    pub(super) draining: Cell<bool>,
    /// How long its successes took at least.
    pub(super) needs: Cell<Option<Duration>>,
    /// What is certain of its jobs' type.
    pub(super) never_served: RefCell<Option<NeverServed>>,
    pub(super) given_up: RefCell<Vec<&'static str>>,
    /// The log takes nothing: the committer has died.
    pub(super) log_is_gone: Cell<bool>,
    /// Where dropped ack tokens go.
    returned: RefCell<Returned>,
    give: Box<dyn Fn(&str) -> AckToken>,
}

/// Takes what dropped ack tokens send.
type Returned = Box<dyn FnMut() -> Option<String>>;

impl Node {
    pub(super) fn new(name: &str, server: &Rc<MemoryServer>) -> Self {
        let (returns, mut returned) = mpsc::unbounded_channel();
        let give = AckToken::without_connection(returns);
        let returned = move || returned.try_recv().ok().map(|reply| reply.to_string());
        Self {
            server: Rc::clone(server),
            name: name.into(),
            writer: writer_of(name),
            writes: Cell::new(0),
            policies: Policies::default(),
            metrics: Metrics::default(),
            book: Arc::default(),
            recently_cancelled: RecentlyCancelled::default(),
            unclear_claims: UnclearClaims::default(),
            unstored_ends: UnstoredEnds::default(),
            local_retries: Arc::default(),
            draining: Cell::new(false),
            needs: Cell::new(None),
            never_served: RefCell::default(),
            given_up: RefCell::default(),
            log_is_gone: Cell::new(false),
            returned: RefCell::new(Box::new(returned)),
            give: Box::new(give),
        }
    }

    /// The message's next delivery, as the scheduler reads it. A first delivery may take the fast path.
    pub(super) fn receives(&self, message: &mut Message) -> Box<Assignment> {
        message.delivered += 1;
        self.reads(message, 0)
    }

    /// A delivery that has to claim the run first, because the lane's high-water mark is not known.
    pub(super) fn receives_below_the_mark(&self, message: &mut Message) -> Box<Assignment> {
        message.delivered += 1;
        self.reads(message, u64::MAX)
    }

    fn reads(&self, message: &Message, mark: u64) -> Box<Assignment> {
        read(&self.server, message, mark, (self.give)(&message.sequence.to_string()))
    }

    /// Begins an attempt; `None`: there is nothing to do for a handler.
    pub(super) fn begins(&self, assignment: Box<Assignment>) -> Option<RunningAttempt> {
        done(begin(self, assignment))
    }

    /// An attempt's end, with a retry through a schedule.
    pub(super) fn ends(&self, running: RunningAttempt, outcome: Outcome) {
        done(conclude::judge(self, running.assignment, running.attempt_state, outcome));
    }

    /// Works on a delivery as a worker does, until nothing is left to do; false if the node died meanwhile.
    pub(super) fn works(&self, assignment: Box<Assignment>, handler: &mut dyn FnMut(&Run) -> Outcome) -> bool {
        let work = async {
            let mut next = Some(assignment);
            while let Some(assignment) = next.take() {
                let Some(running) = begin(self, assignment).await else { break };
                let outcome = handler(&running.attempt_state.run);
                let RunningAttempt { assignment, attempt_state, .. } = running;
                let held = conclude::judge_or_hold(self, assignment, attempt_state, outcome).await;
                if let Some(held) = held {
                    next = held.wait(self).await.map(Box::new);
                }
            }
        };
        work.now_or_never().is_some()
    }

    /// All that took effect since the last call, and what became of deliveries.
    pub(super) fn sent(&self) -> Vec<String> {
        let mut noted = self.server.take_noted();
        while let Some(reply) = (self.returned.borrow_mut())() {
            noted.push(format!("nak {reply}"));
        }
        noted
    }

    /// What the committer does, without its pipeline.
    pub(super) async fn carry_out(&self, mut commit: Box<Commit>) {
        if let Some(write) = &commit.write {
            let stored = record::read(&write.body).unwrap();
            let expected = write.expected;
            let answer = loop {
                // What is not answered is sent again.
                match self.server.call(|| self.server.compare_and_set(&stored, expected)).await {
                    Ok(answer) => break answer,
                    Err(_) => self.server.pause(Duration::ZERO).await,
                }
            };
            match answer {
                Ok(revision) => commit.written(revision),
                Err(_) => match follow_up::clear_up(&*self.server, &self.metrics, commit).await {
                    Done::OnRecord(cleared) => commit = cleared,
                    Done::Over => return,
                },
            }
        }
        self.publish_events(&mut commit).await;
        if follow_up::is_needed(&commit) {
            follow_up::follow(&*self.server, commit).await;
        } else {
            follow_up::end(&*self.server, commit).await;
        }
    }

    async fn publish_events(&self, commit: &mut Commit) {
        let (before, lines) = (commit.live_before.take().unwrap_or_default(), std::mem::take(&mut commit.lines));
        self.server.publish_live(&lines).await;
        let log = [before.log(), lines.log()].concat();
        let lines: Vec<_> = log.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).map(read_event).collect();
        if lines.is_empty() {
            return;
        }
        let append = || {
            let names: Vec<&str> = lines.iter().map(|(name, _)| name.as_str()).collect();
            self.server.note(format!("log {}", names.join(" ")));
            let mut log = self.server.log.borrow_mut();
            for (_, id) in &lines {
                // Readers keep one event per id.
                if !log.contains(id) {
                    log.push(id.clone());
                }
            }
        };
        while self.server.call(append).await.is_err() {}
    }
}

/// An event's name and id.
pub(super) fn read_event(line: &[u8]) -> (String, String) {
    let event: serde_json::Value = serde_json::from_slice(line).unwrap();
    let text = |name: &str| event[name].as_str().unwrap_or_else(|| panic!("no {name} in {event}")).to_owned();
    (text("event"), text("id"))
}

/// The name that a node's process gives its writes.
pub(super) fn writer_of(node: &str) -> String {
    format!("w{node}")
}

impl RunPorts for Node {
    type Server = MemoryServer;

    fn server(&self) -> &MemoryServer {
        &self.server
    }

    fn now(&self) -> Timestamp {
        self.server.now()
    }

    fn seal(&self) -> SmolStr {
        "5ea1".into()
    }

    fn node(&self) -> &SmolStr {
        &self.name
    }

    fn token(&self) -> SmolStr {
        self.writes.set(self.writes.get() + 1);
        format_smolstr!("w{}-{}", self.name, self.writes.get())
    }

    fn lease(&self) -> Duration {
        LEASE
    }

    fn idempotency_window(&self) -> Duration {
        Duration::from_secs(3_600)
    }

    fn policies(&self) -> &Policies {
        &self.policies
    }

    fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    async fn publish(&self, run: &Run, published: Published) -> Result<(), Unlogged> {
        if self.log_is_gone.get() {
            return Err(Unlogged);
        }
        let run = Box::new(run.clone());
        self.publish_events(&mut Commit::of_stored(run, PublishedJob::default(), published, self.author())).await;
        Ok(())
    }
}

impl Ports for Node {
    fn instant(&self) -> Instant {
        self.server.instant()
    }

    fn chance(&self) -> f64 {
        0.5
    }

    fn writer(&self) -> &str {
        &self.writer
    }

    fn book(&self) -> &Arc<Book> {
        &self.book
    }

    fn recently_cancelled(&self) -> &RecentlyCancelled {
        &self.recently_cancelled
    }

    fn unclear_claims(&self) -> &UnclearClaims {
        &self.unclear_claims
    }

    fn unstored_ends(&self) -> &UnstoredEnds {
        &self.unstored_ends
    }

    fn local_retries(&self) -> &Arc<LocalRetryPermits> {
        &self.local_retries
    }

    fn needs(&self, _: &Job) -> Option<Duration> {
        self.needs.get()
    }

    async fn never_served(&self, _: &Job) -> Option<NeverServed> {
        self.never_served.borrow().clone()
    }

    fn gave_up(&self, _: &Run, reason: &'static str) {
        self.given_up.borrow_mut().push(reason);
    }

    async fn commit(&self, commit: Box<Commit>) {
        self.carry_out(commit).await;
    }

    async fn wait_or_drain(&self, wait: Duration) {
        if !self.draining.get() {
            self.server.pass(wait);
        }
    }

    fn is_draining(&self) -> bool {
        self.draining.get()
    }
}

/// Whether a node's book has the message.
pub(super) fn holds(node: &Node, message: &MessageId) -> bool {
    node.book.has(message)
}
