//! The product on a fresh server: one node, prepared for a measurement.

use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, ensure};
use bytes::Bytes;
use futures_util::StreamExt;
use jiff::Timestamp;
use longshore_harness::{Node, NodeBuilder, Usage, World};

use crate::event_log::{self, Tally};
use crate::machine::{Cost, Meter, Weather, server_pid};
use crate::streams::{self, RECORDS, SCHEDULES, lane};
use crate::{args, jobs};

/// A drain without progress for this long is stuck.
const STALLED_AFTER: Duration = Duration::from_secs(60);

/// Settings of every node here: more records than any run makes, so that none is dropped early.
pub(crate) const ROOM: &str = "[storage]\nruns_max_records = 4_000_000";

/// A node on a fresh server. It has run once, so that the streams exist and it knows the server, and it is stopped.
pub(crate) async fn down(node: NodeBuilder<'_>) -> Node {
    let node = node.start().await;
    node.stop().await;
    node
}

/// A node that takes work.
pub(crate) async fn up(world: &World, concurrency: usize) -> Node {
    node(world, concurrency).start().await
}

/// A node that is to be started.
pub(crate) fn node(world: &World, concurrency: usize) -> NodeBuilder<'_> {
    let workers = format!("concurrency = {concurrency}");
    // Sleeping jobs hold workers for as long as a measurement lasts.
    let node = world.node().config(ROOM).with("queues.main", &workers).with("types.sleep", "timeout = '1h'");
    // A listener that nobody asks costs nothing.
    node.with("http", "listen = '127.0.0.1:0'")
}

/// A node whose only worker sleeps for `time`, so that jobs wait.
pub(crate) async fn asleep(world: &World, time: Duration) -> anyhow::Result<Node> {
    let node = up(world, 1).await;
    let mut started = world.client().subscribe("longshore.events.default.started.main.>").await?;
    world.client().flush().await?;
    let body = jobs::body(&format!("\"ms\":{}", time.as_millis()));
    jobs::publish(world.client(), &[jobs::subject(5, "sleep")], &body, 1).await?;
    let start = tokio::time::timeout(STALLED_AFTER, started.next()).await;
    start.ok().flatten().context("the node did not start the job that is to keep it busy")?;
    Ok(node)
}

/// The result of working off a backlog.
pub(crate) struct Drained {
    pub cost: Cost,
    pub tally: Tally,
    /// Peak resident memory of node and server.
    pub node_peak: u64,
    pub server_peak: u64,
    /// Load average and stolen time.
    pub weather: String,
    /// Records stored, and the node's resident memory, by time since the start.
    pub curve: Vec<(Duration, u64, u64)>,
}

/// Fills the lanes with jobs of so many tenants, starts the node, and measures until all lanes are empty and every
/// record and event is stored.
pub(crate) async fn drain(world: &World, node: &Node, args: &args::Drain, tenants: u64) -> anyhow::Result<Drained> {
    let body: Bytes = jobs::body(if args.fail_once { "\"times\":1" } else { "" });
    let keys: Vec<String> = (0..args.keys.unwrap_or(0)).map(|key| format!("k{key}")).collect();
    jobs::publish_keyed(world.client(), &jobs::subjects_of(args.spread, tenants), &keys, &body, args.jobs).await?;
    work_off(world, node, args.jobs, !args.failures_only).await
}

/// As [`drain`], for lanes that are full already. `count` is the expected number of records; without records, the jobs
/// are counted that are gone from their lanes.
pub(crate) async fn work_off(world: &World, node: &Node, count: u64, recorded: bool) -> anyhow::Result<Drained> {
    let weather = Weather::now();
    let server = Meter::server(world)?;
    let from = Timestamp::now();
    node.restart().await;
    let (ready, start) = (SystemTime::now(), Instant::now());
    // The node's start is counted, so that none of its cost is lost.
    let client = Meter::whole(node.pid());
    let mut curve = Vec::new();
    let watch = |stored| curve.push((start.elapsed(), stored, node.usage().resident));
    let done = async || match recorded {
        true => streams::messages(world, RECORDS).await,
        false => Ok(count.saturating_sub(streams::waiting_if_any(world).await)),
    };
    let already = done().await?;
    streams::filled(done, count, STALLED_AFTER, watch).await?;
    // A job that is to be tried again lies in its lane until it is scheduled, and goes back there.
    let lanes = || (1..=9).map(lane);
    let streams: Vec<String> = lanes().chain([SCHEDULES.to_owned()]).chain(lanes()).collect();
    streams::emptied(world, &streams, STALLED_AFTER).await?;
    let since_ready = start.elapsed();
    let (client, server) = (client.used(), server.used());
    let weather = weather.until_now();
    let node_peak = node.usage().peak;
    let server_peak = Usage::of(server_pid(world)?).peak;
    if !recorded {
        // Neither is there a log that has the first start: time as if all had gone at the rate since `ready`.
        let took = since_ready.mul_f64(count as f64 / (count - already).max(1) as f64);
        let cost = Cost { jobs: count, took, client, server };
        return Ok(Drained { cost, tally: Tally::default(), node_peak, server_peak, weather, curve });
    }

    // A lane's message is deleted last, so the log must be complete by now; otherwise the measurement is void.
    let tally = event_log::tally(world, from).await?;
    ensure!(
        tally.whole == count,
        "lanes are empty, but the log has {} of {count} runs in full: {tally:?}",
        tally.whole
    );
    let head_start = tally.first_start.and_then(|first| ready.duration_since(SystemTime::from(first)).ok());
    let took = since_ready + head_start.unwrap_or_default();
    let cost = Cost { jobs: count, took, client, server };
    Ok(Drained { cost, tally, node_peak, server_peak, weather, curve })
}
