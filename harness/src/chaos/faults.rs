//! The faults of a chaos run: it kills, freezes and ends nodes and handlers, one after the other. `server_faults` has
//! the faults of servers.

use std::time::Duration;

use jiff::Timestamp;
use rand::RngExt;
use rand::rngs::StdRng;
use tokio::sync::watch;

use super::handlers::Handlers;
use super::jobs;
use crate::history::{Interruption, Silence};
use crate::live::LiveEvents;
use crate::load::{Crew, Kind, SETTINGS};
use crate::node::{Node, NodeBuilder};
use crate::remote::Asked;
use crate::world::World;

/// The pause between two faults, in milliseconds.
const PAUSE: std::ops::Range<u64> = 500..3_000;

/// The pause between two freezes in a row, in milliseconds: too short for a node to notice the first.
const BETWEEN_FREEZES: std::ops::Range<u64> = 20..1_000;

/// How long a node may take to reach its fail point.
const COMES_WITHIN: Duration = Duration::from_secs(4);

/// How long a node may take to end.
const ENDS_WITHIN: Duration = Duration::from_secs(240);

/// How many times a node that ends at its start is started again.
const STARTS: usize = 5;

/// The steps of the protocol at which a node can be made to kill itself, from the documentation of `fail-points`.
const POINTS: [&str; 15] = [
    "before-claim",
    "after-claim",
    "before-handler",
    "after-handler",
    "before-record",
    "after-record",
    "before-events",
    "after-events",
    "before-schedule",
    "after-schedule",
    "before-dead-letter",
    "after-dead-letter",
    "before-ack",
    "after-move",
    "after-cancel",
];

/// One fault.
#[derive(Debug, Clone)]
pub struct Fault {
    /// When it began.
    pub at: Timestamp,
    /// Its name.
    pub what: &'static str,
    /// The part it was done to.
    pub whom: String,
}

/// Nodes and handlers, and when each of them was hurt.
pub(super) struct Faults<'w> {
    pub(super) world: &'w World,
    pub(super) chance: StdRng,
    nodes: Vec<Node>,
    /// By how many seconds the clocks of two nodes in three are wrong.
    clocks: i64,
    crew: Crew,
    handlers: Handlers,
    killers: LiveEvents,
    /// Every fault, in order.
    pub(super) log: Vec<Fault>,
    pub(super) interruptions: Vec<Interruption>,
    pub(super) silences: Vec<Silence>,
    /// Nodes that ended by themselves, or did not start.
    pub(super) wrong: Vec<String>,
}

impl<'w> Faults<'w> {
    /// Nodes and handlers, all healthy.
    pub(super) async fn new(world: &'w World, chance: StdRng, (nodes, clocks): (usize, i64)) -> Faults<'w> {
        let mut started = Vec::new();
        for number in 0..nodes.max(1) {
            started.push(builder(world, number, clocks).start().await);
        }
        let killers = world.listen(&format!("longshore.events.*.started.*.*.{}", Kind::Killer.job_type())).await;
        let (crew, handlers) = (Crew::new(world).await, Handlers::new(world).await);
        let (log, interruptions, silences, wrong) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        Faults { world, chance, nodes: started, clocks, crew, handlers, killers, log, interruptions, silences, wrong }
    }

    /// Causes faults until `over` says that the run is over.
    pub(super) async fn trouble(&mut self, mut over: watch::Receiver<bool>) {
        loop {
            let pause = Duration::from_millis(self.chance.random_range(PAUSE));
            tokio::select! {
                _ = over.wait_for(|over| *over) => return,
                live = self.killers.next() => {
                    let first = live.body["attempt"] == 1;
                    let name = live.body["node"].as_str().unwrap_or_default();
                    if let Some(at) = self.nodes.iter().position(|node| first && node.name() == name) {
                        self.kill_node(at, "a job kills its node").await;
                    }
                }
                () = tokio::time::sleep(pause) => self.one().await,
            }
        }
    }

    async fn one(&mut self) {
        self.revive().await;
        let at = self.chance.random_range(0..self.nodes.len());
        // With three servers, a server is hurt as often as a node.
        let faults = if self.world.server_cluster().is_some() { 24 } else { 15 };
        match self.chance.random_range(0..faults) {
            0..3 => self.kill_node(at, "kill -9 of a node").await,
            3..6 => self.freeze(at).await,
            6..8 => self.drain(at).await,
            8..10 => self.fail_point(at).await,
            10..12 => self.kill_handler().await,
            12 | 13 => self.freeze_twice(at).await,
            _ if self.world.server_cluster().is_some() => self.hurt_servers().await,
            _ => self.kill_server().await,
        }
    }

    /// Writes down a fault that begins now.
    pub(super) fn note(&mut self, what: &'static str, whom: impl Into<String>) -> Timestamp {
        let at = Timestamp::now();
        self.log.push(Fault { at, what, whom: whom.into() });
        at
    }

    /// How long a node's lease is.
    pub(super) fn lease(&self) -> Duration {
        lease(self.world)
    }

    pub(super) async fn pause(&mut self, milliseconds: std::ops::Range<u64>) {
        let pause = self.chance.random_range(milliseconds);
        tokio::time::sleep(Duration::from_millis(pause)).await;
    }

    /// Notes that from now on another node may take the jobs of this node; or, if the server was hurt, the jobs of any
    /// node.
    pub(super) fn interrupted(&mut self, node: Option<&str>) {
        self.interruptions.push(Interruption { node: node.map(str::to_owned), at: Timestamp::now() });
    }

    async fn kill_node(&mut self, number: usize, what: &'static str) {
        let name = self.nodes[number].name().to_owned();
        self.note(what, &name);
        self.nodes[number].kill9().await;
        self.interrupted(Some(&name));
        self.pause(0..1_500).await;
        self.start_again(number).await;
    }

    /// Freezes a node for less than a lease, about a lease, or far longer.
    async fn freeze(&mut self, number: usize) {
        let lease = u64::try_from(self.lease().as_millis()).unwrap_or(u64::MAX);
        let (what, span) = match self.chance.random_range(0..3) {
            0 => ("SIGSTOP of a node, below its lease", 100..lease * 8 / 10),
            1 => ("SIGSTOP of a node, about its lease", lease * 8 / 10..lease * 13 / 10),
            _ => ("SIGSTOP of a node, far beyond its lease", lease * 2..lease * 3),
        };
        let name = self.nodes[number].name().to_owned();
        self.note(what, &name);
        self.freeze_for(number, span).await;
    }

    async fn freeze_twice(&mut self, number: usize) {
        let lease = u64::try_from(self.lease().as_millis()).unwrap_or(u64::MAX);
        let name = self.nodes[number].name().to_owned();
        self.note("SIGSTOP of a node, twice in a row", &name);
        self.freeze_for(number, lease / 4..lease * 2).await;
        self.pause(BETWEEN_FREEZES).await;
        self.freeze_for(number, lease / 4..lease * 2).await;
    }

    async fn freeze_for(&mut self, number: usize, milliseconds: std::ops::Range<u64>) {
        let from = Timestamp::now();
        self.nodes[number].sigstop();
        self.pause(milliseconds).await;
        let (node, until) = (Some(self.nodes[number].name().to_owned()), Timestamp::now());
        self.nodes[number].sigcont();
        self.silences.push(Silence { node, from, until });
    }

    async fn drain(&mut self, number: usize) {
        let name = self.nodes[number].name().to_owned();
        self.note("SIGTERM of a node", &name);
        self.nodes[number].sigterm();
        self.nodes[number].wait_exit(ENDS_WITHIN).await;
        self.interrupted(Some(&name));
        self.start_again(number).await;
    }

    /// Makes a node kill itself between two steps of the protocol; if it does not reach that point soon, it lives on.
    async fn fail_point(&mut self, number: usize) {
        let name = self.nodes[number].name().to_owned();
        let point = POINTS[self.chance.random_range(0..POINTS.len())];
        let nth = self.chance.random_range(1..20);
        self.nodes[number].sigterm();
        self.nodes[number].wait_exit(ENDS_WITHIN).await;
        self.interrupted(Some(&name));
        let order = format!("{point}=kill@{nth}");
        let doomed = builder(self.world, number, self.clocks).env("LONGSHORE_FAIL_POINTS", &order).try_start().await;
        let died = match &doomed {
            Ok(node) => tokio::time::timeout(COMES_WITHIN, node.wait_exit(Duration::from_secs(3_600))).await.is_ok(),
            Err(_) => true,
        };
        if died {
            self.note("a fail point", format!("{name} {order}"));
        } else if let Ok(node) = &doomed {
            node.sigterm();
            node.wait_exit(ENDS_WITHIN).await;
        }
        self.interrupted(Some(&name));
        drop(doomed);
        self.start_again(number).await;
    }

    async fn kill_handler(&mut self) {
        let pause = Duration::from_millis(self.chance.random_range(0..1_000));
        let number = self.chance.random_range(0..=self.crew.count());
        if number == self.crew.count() {
            self.note("death of a handler", "chaos.>");
            return self.handlers.replace(self.world, pause).await;
        }
        let kind = self.crew.kill(number);
        self.note("death of a handler", kind.job_type());
        tokio::time::sleep(pause).await;
        self.crew.hire(self.world, kind).await;
    }

    /// Restarts the nodes that ended without being asked to; such an end is wrong.
    pub(super) async fn revive(&mut self) {
        for number in 0..self.nodes.len() {
            if !self.nodes[number].is_running() {
                let name = self.nodes[number].name().to_owned();
                self.wrong.push(format!("node {name} ended by itself\n{}", self.nodes[number].log().tail(3)));
                self.interrupted(Some(&name));
                self.start_again(number).await;
            }
        }
    }

    async fn start_again(&mut self, number: usize) {
        for _ in 0..STARTS {
            match self.nodes[number].try_restart().await {
                Ok(()) => return,
                Err(refusal) => self.wrong.push(refusal.to_string()),
            }
        }
    }

    /// Ends all nodes, and notes those that ended with a failure.
    pub(super) async fn stop(&mut self) {
        for node in &self.nodes {
            let status = node.stop().await;
            if !status.success() {
                self.wrong.push(format!("node {} ended with {status}", node.name()));
            }
        }
    }

    /// The calls of the handlers, and the connections that asked for them.
    pub(super) fn asked(&self) -> Vec<Asked> {
        self.crew.asked().into_iter().chain(self.handlers.asked()).collect()
    }

    /// The handlers of the sorts that only a chaos run has.
    pub(super) fn handlers(&self) -> &Handlers {
        &self.handlers
    }
}

/// The workers of a node.
pub(super) const WORKERS: usize = 16;

/// Short enough for many takeovers, long enough for a loaded machine; with three servers, longer than an election.
pub(super) fn lease(world: &World) -> Duration {
    Duration::from_secs(if world.server_cluster().is_some() { 6 } else { 2 })
}

fn builder(world: &World, number: usize, clocks: i64) -> NodeBuilder<'_> {
    let lease = format!("lease = '{}s'\nshutdown_grace = '1s'", lease(world).as_secs());
    let node = world.node().name(&format!("n{number}")).config(SETTINGS).config(jobs::SETTINGS).with("node", &lease);
    let node = node.with("queues.main", &format!("concurrency = {WORKERS}"));
    match [clocks, -clocks, 0][number % 3] {
        0 => node,
        ahead => node.clock(ahead),
    }
}
