//! How long work stands still when a server or a node is killed or frozen, whether all of it resumes, and whether every
//! run still ends exactly once.
//!
//! There is one world per kind of fault, under a steady load of short jobs, each published until the server confirms
//! it. The results come from the event log, by the confirmations that the publisher holds, and from the calls that the
//! handler writes down: the log cannot show a job that was done twice and published once.

mod judge;
mod load;
pub(crate) mod scenes;

use std::time::Duration;

use clap::ValueEnum;
use jiff::Timestamp;
use longshore_harness::{Handler, Job, Node, Reply, World};
use tokio::time::{Instant, sleep};

use crate::args::{self, Kind};
use crate::faults::judge::{Fault, Verdict};
use crate::faults::load::{Load, Stored};
use crate::machine::{Weather, class};
use crate::product::ROOM;
use crate::streams;
use crate::table::{Table, spread};

/// The time between the start and the first fault.
const WARM_UP: Duration = Duration::from_secs(3);
/// How far past its lease a node is frozen.
const PAST_LEASE: Duration = Duration::from_secs(2);
/// After a fault, this time plus a lease passes until the next.
const REST: Duration = Duration::from_secs(4);
/// How long the last jobs may take to end.
const ENDS_WITHIN: Duration = Duration::from_secs(120);
/// How long a job works.
const WORKS_MS: u64 = 50;
/// The type of the jobs that a node runs itself.
const BUILT_IN: &str = "sleep";
/// The type of the jobs whose remote handler writes down each call. Its requests and replies die with the server, so
/// that they wait for their time limit; they are left out of the measurements in seconds.
const REMOTE: &str = "work";
/// The settings of that type: jobs lost with the server are soon retried, and there is capacity for all.
const REMOTE_IS: &str = "handler = 'remote'\ntimeout = '2s'\nslots = 1000";

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Server => "kill -9 of nats-server, restarted at once",
            Kind::Alone => "kill -9 of the only node, restarted at once",
            Kind::Pair => "kill -9 of one of two nodes, restarted after the rest",
            Kind::FrozenAlone => "SIGSTOP of the only node, 2 s past its lease",
            Kind::FrozenPair => "SIGSTOP of one of two nodes, 2 s past its lease",
            Kind::Rolling => "rolling restart: SIGTERM and start of each of two nodes, one after the other",
        }
    }

    fn freezes(self) -> bool {
        matches!(self, Kind::FrozenAlone | Kind::FrozenPair)
    }

    fn nodes(self) -> usize {
        if matches!(self, Kind::Server | Kind::Alone | Kind::FrozenAlone) { 1 } else { 2 }
    }
}

pub(crate) async fn run(args: &args::Faults) -> anyhow::Result<()> {
    let args::Faults { rate, lease, .. } = args;
    println!("## Faults: {rate} jobs per second of {WORKS_MS} ms each, lease {lease} s\n\n{}\n", class());
    println!(
        "Seconds, least / median / greatest over the faults. Pause: the longest time without a start in any node, from the fault"
    );
    println!(
        "until the next one. Caught up: until the last job that was stored at the fault, and not ended, has its end in the log"
    );
    println!(
        "(the lease included, for jobs that nodes held). Thawed: the same, counted from SIGCONT. Began again: runs whose end is"
    );
    println!(
        "that of a second attempt or start. Done twice: runs whose handler was called more than once, by its own record (a fifth of"
    );
    println!(
        "the jobs has such a handler). Lost: confirmed, and no end in the log. Ended twice: two ends with different ids."
    );
    let table = Table::new(&[
        "fault",
        "times",
        "pause s",
        "caught up s",
        "thawed s",
        "jobs",
        "began again",
        "done twice",
        "lost",
        "ended twice",
        "published again",
        "load / steal",
    ]);
    let only = |kind: &Kind| args.only.is_empty() || args.only.contains(kind);
    for kind in Kind::value_variants().iter().filter(|kind| only(kind)) {
        let weather = Weather::now();
        let times = if kind.freezes() { args.freezes } else { args.kills };
        let verdict = round(*kind, times, args).await?;
        let Verdict { pauses, caught_up, thawed, jobs, again, done_twice, lost, twice, repeats } = verdict;
        let mut row = vec![kind.name().to_owned(), times.to_string(), spread(&pauses, 2), spread(&caught_up, 2)];
        row.push(if kind.freezes() { spread(&thawed, 2) } else { "–".to_owned() });
        row.extend([jobs, again, done_twice, lost, twice, repeats].map(|number| number.to_string()));
        row.push(weather.until_now());
        table.row(&row);
    }
    Ok(())
}

/// Runs one world with `times` faults of one kind, and returns what the log says of it.
async fn round(kind: Kind, times: usize, args: &args::Faults) -> anyhow::Result<Verdict> {
    let world = World::new().await;
    let mut nodes = Vec::new();
    for _ in 0..kind.nodes() {
        let lease = format!("lease = '{}s'", args.lease);
        let node = world.node().config(ROOM).with("node", &lease);
        nodes.push(node.with(&format!("types.{REMOTE}"), REMOTE_IS).start().await);
    }
    let worker = worker(&world, Duration::from_millis(WORKS_MS)).await;
    let load = Load::start(world.client().clone(), args.rate, WORKS_MS);
    sleep(WARM_UP).await;
    let mut faults = Vec::new();
    for _ in 0..times {
        faults.push(strike(kind, &world, &nodes, Duration::from_secs(args.lease)).await?);
    }
    let stored = load.stop().await?;
    streams::jobs_gone(&world, ENDS_WITHIN).await?;
    let verdict = settled(&world, &stored, &faults, &worker).await?;
    for node in &nodes {
        node.stop().await;
    }
    Ok(verdict)
}

/// The verdict once all have ended, or have had their time.
async fn settled(world: &World, stored: &[Stored], faults: &[Fault], worker: &Handler) -> anyhow::Result<Verdict> {
    let deadline = Instant::now() + ENDS_WITHIN;
    // A job that waits for a retry is in no stream for a moment while it is moved, so an empty stream is not
    // conclusive.
    loop {
        let verdict = judge::judge(world, stored, faults, &worker.calls()).await?;
        if verdict.lost == 0 || Instant::now() > deadline {
            return Ok(verdict);
        }
        sleep(WARM_UP).await;
    }
}

/// Works for a while on each job, and writes down each call. It outlives every fault, so that its list is complete; it
/// announces capacity for all jobs.
async fn worker(world: &World, works: Duration) -> Handler {
    let work = move |_: Job| async move {
        sleep(works).await;
        Reply::json(serde_json::Value::Null)
    };
    world.handler(REMOTE).announce("longshore.slots", "1000").start(work).await
}

/// Causes one fault, repairs it, and waits for the rest of its time.
async fn strike(kind: Kind, world: &World, nodes: &[Node], lease: Duration) -> anyhow::Result<Fault> {
    let at = Timestamp::now();
    let mut thawed = at;
    let node = &nodes[0];
    match kind {
        Kind::Server => {
            world.server().kill9().await;
            world.server().restart().await?;
            sleep(lease + REST).await;
        }
        Kind::Alone => {
            node.kill9().await;
            node.restart().await;
            sleep(lease + REST).await;
        }
        Kind::Pair => {
            node.kill9().await;
            sleep(lease + REST).await;
            node.restart().await;
        }
        Kind::FrozenAlone | Kind::FrozenPair => {
            node.sigstop();
            sleep(lease + PAST_LEASE).await;
            thawed = Timestamp::now();
            node.sigcont();
            sleep(lease + REST).await;
        }
        Kind::Rolling => {
            for node in nodes {
                anyhow::ensure!(node.stop().await.success(), "it did not drain");
                node.restart().await;
            }
            sleep(REST).await;
        }
    }
    Ok(Fault { at, thawed, over: Timestamp::now() })
}
