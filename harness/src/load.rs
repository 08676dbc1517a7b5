//! A load of jobs of every kind: quick and slow, failing and hanging, delayed, remote, unreadable.
//!
//! Faults prove little against jobs of one kind only. A [`Load`] publishes the same number of each kind and knows how
//! each must end, whatever happens meanwhile: a job that can succeed does succeed, because it may fail very often
//! ([`SETTINGS`]).

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};

use crate::history::Call;
use crate::publish::{Publish, Receipt};
use crate::remote::{Asked, Handler, Job, Reply};
use crate::world::World;

/// The settings that nodes need for this load: give them to [`crate::NodeBuilder::config`]. Retries follow at once,
/// except for one kind whose retries use the server's schedules.
pub const SETTINGS: &str = "
[defaults]
max_attempts = 1000
backoff = { base = '20ms', factor = 1.0, max = '20ms', jitter = 'none' }
[types.\"load.quick\"]
handler = 'noop'
[types.\"load.slow\"]
handler = 'sleep'
[types.\"load.once\"]
handler = 'fail'
[types.\"load.later\"]
handler = 'fail'
backoff = { base = '1100ms', factor = 1.0, max = '1100ms', jitter = 'none' }
[types.\"load.always\"]
handler = 'fail'
max_attempts = 3
[types.\"load.never\"]
handler = 'fail'
[types.\"load.hang\"]
handler = 'sleep'
timeout = '300ms'
max_attempts = 2
[types.\"load.panic\"]
handler = 'fail'
[types.\"load.delayed\"]
handler = 'noop'
[types.\"load.snooze\"]
handler = 'remote'
timeout = '5s'
[types.\"load.remote\"]
handler = 'remote'
timeout = '5s'
[types.\"load.killer\"]
handler = 'remote'
timeout = '5s'
[types.\"load.invalid\"]
handler = 'noop'
";

/// A kind of job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// Done at once.
    Quick,
    /// Takes 400 ms, long enough to have a stored record while it runs.
    Slow,
    /// Fails once, and is retried at once.
    Once,
    /// Fails once, and is retried through a schedule.
    Later,
    /// Fails until its attempts are used up.
    Always,
    /// Fails for good.
    Never,
    /// Does not end before its time limit.
    Hang,
    /// Panics once.
    Panic,
    /// Starts half a second after its publish at the earliest.
    Delayed,
    /// Snoozed once by its remote handler.
    Snooze,
    /// Detached by its remote handler, and ended by a call of the API.
    Late,
    /// Done by a remote handler.
    Remote,
    /// Its payload cannot be read.
    Invalid,
    /// Its first attempt kills its node, if a part of the test listens for it and does that; otherwise it reaches its
    /// time limit.
    Killer,
}

impl Kind {
    /// All kinds except the killer, which a test must ask for.
    pub const ALL: [Kind; 13] = [
        Kind::Quick,
        Kind::Slow,
        Kind::Once,
        Kind::Later,
        Kind::Always,
        Kind::Never,
        Kind::Hang,
        Kind::Panic,
        Kind::Delayed,
        Kind::Snooze,
        Kind::Late,
        Kind::Remote,
        Kind::Invalid,
    ];

    /// The type of its jobs.
    pub fn job_type(self) -> &'static str {
        match self {
            Kind::Quick => "load.quick",
            Kind::Slow => "load.slow",
            Kind::Once => "load.once",
            Kind::Later => "load.later",
            Kind::Always => "load.always",
            Kind::Never => "load.never",
            Kind::Hang => "load.hang",
            Kind::Panic => "load.panic",
            Kind::Delayed => "load.delayed",
            Kind::Snooze => "load.snooze",
            Kind::Late => "load.late",
            Kind::Remote => "load.remote",
            Kind::Invalid => "load.invalid",
            Kind::Killer => "load.killer",
        }
    }

    /// The payload of its jobs.
    pub fn payload(self) -> Value {
        match self {
            Kind::Slow => json!({"ms": 400}),
            Kind::Once | Kind::Later => json!({"times": 1}),
            Kind::Never => json!({"kind": "permanent"}),
            Kind::Hang => json!({"ms": 3_600_000}),
            Kind::Panic => json!({"times": 1, "kind": "panic"}),
            _ => json!({}),
        }
    }

    /// How its jobs end: the state of the record.
    pub fn end(self) -> &'static str {
        match self {
            Kind::Always | Kind::Never | Kind::Hang | Kind::Invalid => "dead",
            _ => "completed",
        }
    }

    /// Whether a remote handler does the work.
    pub fn is_remote(self) -> bool {
        matches!(self, Kind::Snooze | Kind::Late | Kind::Remote | Kind::Killer)
    }

    /// A job of this kind, to be published.
    pub fn publish(self, world: &World) -> Publish<'_> {
        let publish = world.publish(self.job_type());
        match self {
            Kind::Delayed => publish.header("Longshore-Delay", "500ms"),
            Kind::Invalid => publish.header("Longshore-Max-Attempts", "several"),
            _ => publish,
        }
    }
}

/// The handlers of the remote kinds, which can be killed and replaced.
#[derive(Debug)]
pub struct Crew {
    handlers: Vec<(Kind, Handler)>,
    /// The calls of handlers that were killed.
    before: Vec<Asked>,
    /// Runs that were snoozed once.
    snoozed: Arc<Mutex<HashSet<String>>>,
}

impl Crew {
    /// Starts one handler for each remote kind.
    ///
    /// # Panics
    /// If the server cannot be reached.
    pub async fn new(world: &World) -> Crew {
        let mut crew = Crew { handlers: Vec::new(), before: Vec::new(), snoozed: Arc::default() };
        for kind in [Kind::Remote, Kind::Snooze, Kind::Late, Kind::Killer] {
            crew.hire(world, kind).await;
        }
        crew
    }

    /// Starts one more handler for a remote kind.
    ///
    /// # Panics
    /// If the server cannot be reached.
    pub async fn hire(&mut self, world: &World, kind: Kind) {
        let snoozed = Arc::clone(&self.snoozed);
        let answer = move |job: Job| {
            let first_time =
                || snoozed.lock().expect("no code panics while it holds the set").insert(job.run_id.clone());
            let reply = match kind {
                Kind::Snooze if first_time() => Reply::snooze("300ms"),
                Kind::Killer if job.attempt == 1 => Reply::silence(),
                Kind::Late => {
                    tokio::spawn(async move { job.ends_late("complete", json!({"result": "done"})).await });
                    Reply::json(json!(null)).header("Longshore-Detach", "1h")
                }
                _ => Reply::json(json!("done")),
            };
            async move { reply }
        };
        self.handlers.push((kind, world.handler(kind.job_type()).start(answer).await));
    }

    /// Kills one of them, as by a signal: its running calls are never answered. Returns its kind.
    ///
    /// # Panics
    /// If there is no handler of that number.
    pub fn kill(&mut self, number: usize) -> Kind {
        let (kind, handler) = self.handlers.swap_remove(number);
        self.before.extend(handler.asked());
        kind
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.handlers.len()
    }

    /// Every call to the present handlers and to those before them.
    pub fn calls(&self) -> Vec<Call> {
        self.asked().into_iter().map(|asked| asked.call).collect()
    }

    /// The same calls, with the connection that sent each.
    pub fn asked(&self) -> Vec<Asked> {
        let now = self.handlers.iter().flat_map(|(_, handler)| handler.asked());
        self.before.iter().cloned().chain(now).collect()
    }
}

/// Accepted jobs of every kind, and the calls of their handlers.
#[derive(Debug)]
pub struct Load {
    /// The handlers of the remote kinds.
    pub crew: Crew,
    /// Every job that has been accepted so far, with its kind.
    pub accepted: Vec<(Kind, Receipt)>,
}

impl Load {
    /// Starts the handlers; there are no jobs yet.
    ///
    /// # Panics
    /// If the server cannot be reached.
    pub async fn new(world: &World) -> Load {
        Load { crew: Crew::new(world).await, accepted: Vec::new() }
    }

    /// Publishes `of_each` jobs of each kind.
    ///
    /// # Panics
    /// If the server refuses one.
    pub async fn publish(&mut self, world: &World, of_each: usize) {
        for kind in Kind::ALL {
            let receipts = kind.publish(world).many((0..of_each).map(|_| kind.payload())).await;
            self.accepted.extend(receipts.into_iter().map(|receipt| (kind, receipt)));
        }
    }

    /// The receipts of all jobs.
    pub fn receipts(&self) -> Vec<Receipt> {
        self.accepted.iter().map(|(_, receipt)| receipt.clone()).collect()
    }

    /// Every call to the remote handlers.
    pub fn calls(&self) -> Vec<Call> {
        self.crew.calls()
    }

    /// Waits until every job has ended as its kind must, for at most `within`.
    ///
    /// # Panics
    /// If a job does not end, or ends in another state; with its report.
    pub async fn ends(&self, world: &World, within: Duration) {
        let ends = world.ends(&self.receipts(), within).await;
        for ((kind, receipt), state) in self.accepted.iter().zip(ends) {
            if state != kind.end() {
                panic!("{kind:?} ended as {state}\n{}", world.report_as(&receipt.tenant, &receipt.run_id).await);
            }
        }
    }

    /// How many jobs of each kind there are, for people.
    pub fn counts(&self) -> String {
        let mut counts = BTreeMap::new();
        for (kind, _) in &self.accepted {
            *counts.entry(*kind).or_insert(0_usize) += 1;
        }
        let each: Vec<String> = counts.iter().map(|(kind, count)| format!("{kind:?} {count}")).collect();
        each.join(", ")
    }
}
