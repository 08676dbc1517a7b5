//! The trouble of a chaos run: what is killed, frozen and asked to end, one after the other.

use std::time::Duration;

use jiff::Timestamp;
use rand::RngExt;
use rand::rngs::StdRng;
use tokio::sync::watch;

use crate::history::{Call, Interruption};
use crate::live::LiveEvents;
use crate::load::{Crew, Kind, SETTINGS};
use crate::node::{Node, NodeBuilder};
use crate::world::World;

/// A lease short enough for many takings-over, long enough for a loaded machine.
const LEASE: &str = "lease = '2s'\nshutdown_grace = '1s'";

/// Between two faults, in milliseconds.
const PAUSE: std::ops::Range<u64> = 500..3_000;

/// How long a node is left to come to its fail point.
const COMES_WITHIN: Duration = Duration::from_secs(4);

/// How long a node may take to end.
const ENDS_WITHIN: Duration = Duration::from_secs(60);

/// The points of the protocol at which a node can be told to kill itself, by the documentation of `fail-points`.
const POINTS: [&str; 14] = [
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
    "before-letter",
    "after-letter",
    "before-ack",
    "after-move",
];

/// Nodes and handlers, and who of them was hurt when.
pub(super) struct Faults<'w> {
    world: &'w World,
    chance: StdRng,
    nodes: Vec<Node>,
    crew: Crew,
    killers: LiveEvents,
    /// Every fault, in order: what, and to whom.
    pub(super) told: Vec<(Timestamp, String)>,
    interruptions: Vec<Interruption>,
}

impl<'w> Faults<'w> {
    /// Nodes and handlers, all well.
    pub(super) async fn new(world: &'w World, chance: StdRng, nodes: usize) -> Faults<'w> {
        let mut started = Vec::new();
        for number in 0..nodes.max(1) {
            started.push(builder(world, &format!("n{number}")).start().await);
        }
        let killers = world.listen(&format!("longshore.events.*.started.*.*.{}", Kind::Killer.job_type())).await;
        let crew = Crew::new(world).await;
        Faults { world, chance, nodes: started, crew, killers, told: Vec::new(), interruptions: Vec::new() }
    }

    /// Makes trouble until it is over.
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
        let at = self.chance.random_range(0..self.nodes.len());
        match self.chance.random_range(0..12) {
            0..3 => self.kill_node(at, "kill -9 of a node").await,
            3..5 => self.freeze(at).await,
            5..7 => self.drain(at).await,
            7..9 => self.fail_point(at).await,
            9..11 => self.kill_handler().await,
            _ => self.kill_server().await,
        }
    }

    fn tell(&mut self, what: &str, whom: &str) -> Timestamp {
        let at = Timestamp::now();
        self.told.push((at, format!("{what}: {whom}")));
        at
    }

    /// Notes that the leases of a node, or of everybody, are not what they seem from now on.
    fn interrupted(&mut self, node: Option<&str>, at: Timestamp) {
        self.interruptions.push(Interruption { node: node.map(str::to_owned), at });
    }

    async fn kill_node(&mut self, number: usize, what: &str) {
        let name = self.nodes[number].name().to_owned();
        let at = self.tell(what, &name);
        self.interrupted(Some(&name), at);
        self.nodes[number].kill9().await;
        let pause = self.chance.random_range(0..1_500);
        tokio::time::sleep(Duration::from_millis(pause)).await;
        self.nodes[number].restart().await;
    }

    async fn freeze(&mut self, number: usize) {
        let name = self.nodes[number].name().to_owned();
        let at = self.tell("SIGSTOP of a node", &name);
        self.interrupted(Some(&name), at);
        self.nodes[number].sigstop();
        let pause = self.chance.random_range(500..5_000);
        tokio::time::sleep(Duration::from_millis(pause)).await;
        self.nodes[number].sigcont();
    }

    async fn drain(&mut self, number: usize) {
        let name = self.nodes[number].name().to_owned();
        self.tell("SIGTERM of a node", &name);
        self.nodes[number].sigterm();
        self.nodes[number].wait_exit(ENDS_WITHIN).await;
        self.nodes[number].restart().await;
    }

    /// Has a node kill itself between two steps of the protocol; if it does not come there soon, it lives on.
    async fn fail_point(&mut self, number: usize) {
        let name = self.nodes[number].name().to_owned();
        let point = POINTS[self.chance.random_range(0..POINTS.len())];
        let nth = self.chance.random_range(1..20);
        self.nodes[number].sigterm();
        self.nodes[number].wait_exit(ENDS_WITHIN).await;
        let order = format!("{point}=kill@{nth}");
        let doomed = builder(self.world, &name).env("LONGSHORE_FAIL_POINTS", &order).try_start().await;
        let died = match &doomed {
            Ok(node) => tokio::time::timeout(COMES_WITHIN, node.wait_exit(Duration::from_secs(3_600))).await.is_ok(),
            Err(_) => true,
        };
        if died {
            let at = self.tell("a fail point", &format!("{name} {order}"));
            self.interrupted(Some(&name), at);
        } else if let Ok(node) = &doomed {
            node.sigterm();
            node.wait_exit(ENDS_WITHIN).await;
        }
        self.nodes[number] = builder(self.world, &name).start().await;
    }

    async fn kill_handler(&mut self) {
        let number = self.chance.random_range(0..self.crew.count());
        let kind = self.crew.kill(number);
        self.tell("death of a handler", kind.job_type());
        let pause = self.chance.random_range(0..1_000);
        tokio::time::sleep(Duration::from_millis(pause)).await;
        self.crew.hire(self.world, kind).await;
    }

    async fn kill_server(&mut self) {
        let at = self.tell("kill -9 of the server", "it");
        self.interrupted(None, at);
        self.world.server().kill9().await;
        let pause = self.chance.random_range(0..1_500);
        tokio::time::sleep(Duration::from_millis(pause)).await;
        let restarted = self.world.server().restart().await;
        restarted.unwrap_or_else(|error| panic!("the server does not come back: {error}"));
    }

    /// The trouble is over: who kills itself no more is not asked, everybody is up.
    pub(super) async fn settle(&mut self) {
        for node in &self.nodes {
            if !node.is_running() {
                node.restart().await;
            }
        }
    }

    /// Ends all nodes; says which did not end well.
    pub(super) async fn stop(&mut self) -> Vec<String> {
        let mut wrong = Vec::new();
        for node in &self.nodes {
            let status = node.stop().await;
            if !status.success() {
                wrong.push(format!("node {} ended with {status}", node.name()));
            }
        }
        wrong
    }

    /// What the handlers did.
    pub(super) fn calls(&self) -> Vec<Call> {
        self.crew.calls()
    }

    /// Who was hurt when.
    pub(super) fn interruptions(&self) -> Vec<Interruption> {
        self.interruptions.clone()
    }
}

fn builder<'w>(world: &'w World, name: &str) -> NodeBuilder<'w> {
    let node = world.node().name(name).config(SETTINGS).with("node", LEASE);
    node.with("queues.main", "concurrency = 16")
}
