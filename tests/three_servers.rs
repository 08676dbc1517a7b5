//! With three servers that keep three replicas of everything, any one of them may freeze, be cut off or die.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use longshore_harness::history::{Kind, Violation};
use longshore_harness::{Node, Receipt, SERVERS, ServerCluster, World};
use serde_json::json;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use crate::{WITHIN, three_servers, times};

/// The stream of run records.
const RECORDS: &str = "KV_longshore_runs";

/// Publishes in progress at once: enough to go on while some wait for an election.
const OPEN: usize = 512;

/// Many attempts, so that a lease lost in an election ends no run; a lease lasts longer than an election.
const SETTINGS: &str = "
[node]
lease = '10s'
[defaults]
max_attempts = 1000
backoff = { base = '1100ms', factor = 1.0, max = '1100ms', jitter = 'none' }
[types.later]
handler = 'fail'
[types.soon]
handler = 'fail'
backoff = { base = '20ms', factor = 1.0, max = '20ms', jitter = 'none' }
[types.delayed]
handler = 'noop'
[queues.main]
[queues.other]
[types.dying]
handler = 'fail'
";

/// A kind of job, and how it ends.
const KINDS: [(&str, &str); 4] =
    [("later", "completed"), ("soon", "completed"), ("delayed", "completed"), ("dying", "dead")];

/// Starts them one after the other, because they share the creation of the streams.
pub(crate) async fn three_nodes(world: &World) -> Vec<Node> {
    let mut nodes = Vec::new();
    for _ in 0..3 {
        nodes.push(world.node().config(SETTINGS).start().await);
    }
    nodes
}

/// Publishes job `number`, and repeats that until it is confirmed.
async fn store(world: &World, number: usize) -> (usize, Receipt) {
    let kind = number % KINDS.len();
    let payload = match KINDS[kind].0 {
        "later" => json!({"times": 2}),
        "soon" => json!({"times": 1}),
        "dying" => json!({"kind": "permanent"}),
        _ => json!({}),
    };
    let publish = world.publish(KINDS[kind].0);
    let publish = if kind == 2 { publish.header("Longshore-Delay", "1500ms") } else { publish };
    (kind, publish.until_stored(&number.to_string(), payload.to_string()).await)
}

/// Publishes `rate` jobs of all kinds per second until `over`, and returns all that were confirmed.
pub(crate) async fn load(world: &World, rate: usize, over: watch::Receiver<bool>) -> Vec<(usize, Receipt)> {
    steadily(rate, over, |number| store(world, number)).await
}

/// Stores that many jobs per second until `over`, and returns the result of each.
pub(crate) async fn steadily<S: Future>(
    rate: usize,
    mut over: watch::Receiver<bool>,
    store: impl Fn(usize) -> S,
) -> Vec<S::Output> {
    let mut tick = tokio::time::interval(Duration::from_secs(1) / u32::try_from(rate).unwrap());
    let (mut open, mut stored) = (FuturesUnordered::new(), Vec::new());
    for number in 0.. {
        open.push(store(number));
        loop {
            tokio::select! {
                Some(job) = open.next() => stored.push(job),
                _ = tick.tick(), if open.len() < OPEN => break,
            }
        }
        if *over.borrow_and_update() {
            break;
        }
    }
    while let Some(job) = open.next().await {
        stored.push(job);
    }
    stored
}

/// Replays dead letters over and over until `over`. Returns the number of replayed runs.
async fn replay(world: &World, mut over: watch::Receiver<bool>) -> u64 {
    let mut replayed = 0;
    while !*over.borrow_and_update() {
        let answer = world.try_request("default", "dlq.replay", json!({"type": "dying", "limit": 50})).await;
        replayed += answer.map_or(0, |answer| answer["replayed"].as_u64().unwrap_or(0));
        sleep(Duration::from_secs(2)).await;
    }
    replayed
}

/// Makes one server after the other, except the leader of the records, fall behind for some seconds: cut from the
/// leader but not from the third server, so that its old records can be read; frozen; cut from both; or without
/// messages from the leader. Returns how many times.
async fn hold_back_followers(servers: &ServerCluster, until: Instant) -> usize {
    let mut times = 0;
    while Instant::now() < until {
        let Some(leader) = servers.stream_leader(RECORDS).await else { continue };
        let victim = (leader + 1 + times % (SERVERS - 1)) % SERVERS;
        match times % 4 {
            0 => servers.cut(victim, leader),
            1 => servers.server(victim).sigstop(),
            2 => servers.isolate(victim),
            _ => servers.cut_one_way(leader, victim),
        }
        sleep(Duration::from_millis(2_500 + 1_000 * (times as u64 % 3))).await;
        servers.server(victim).sigcont();
        servers.heal();
        times += 1;
        sleep(Duration::from_millis(1_500)).await;
    }
    times
}

/// Runs that did not end, with their states: `retrying 5, enqueued 1`.
pub(crate) async fn not_ended(world: &World, stored: &[(usize, Receipt)]) -> BTreeMap<String, usize> {
    let deadline = Instant::now() + WITHIN;
    loop {
        let mut open = BTreeMap::new();
        let records = world.history(&[], Vec::new()).await.records;
        let states: BTreeMap<&str, &str> =
            records.iter().map(|record| (record.run_id.as_str(), record.state.as_str())).collect();
        for (kind, receipt) in stored {
            let state = states.get(receipt.run_id.as_str()).copied().unwrap_or("no record");
            if state != KINDS[*kind].1 {
                *open.entry(format!("{} {state}", KINDS[*kind].0)).or_default() += 1;
            }
        }
        if open.is_empty() || Instant::now() > deadline {
            return open;
        }
        sleep(Duration::from_millis(500)).await;
    }
}

/// The checker's findings about lost runs and dead letters.
async fn losses(world: &World, receipts: &[Receipt]) -> Vec<Violation> {
    let mut found = world.history(receipts, Vec::new()).await.check();
    found.retain(|violation| matches!(violation.kind, Kind::Lost | Kind::NoEnd | Kind::DeadLetterMissing));
    found
}

/// Given jobs that fail, wait and are replayed, when one server after the other is frozen or cut off for seconds and no
/// process dies, then every confirmed job ends.
///
/// `LONGSHORE_TEST_CUTS_SECONDS=300 LONGSHORE_TEST_CUTS_RATE=150` is the long run.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "much work for three servers: cargo xtask soak"]
async fn servers_that_fall_behind_lose_nothing() {
    let world = three_servers().await;
    let nodes = three_nodes(&world).await;
    let seconds = times("LONGSHORE_TEST_CUTS_SECONDS", 25) as u64;
    let rate = times("LONGSHORE_TEST_CUTS_RATE", 40);

    let (over, is_over) = watch::channel(false);
    let faults = async {
        let faults = hold_back_followers(world.servers(), Instant::now() + Duration::from_secs(seconds)).await;
        over.send_replace(true);
        faults
    };
    let (stored, replayed, faults) = tokio::join!(load(&world, rate, is_over.clone()), replay(&world, is_over), faults);
    world.servers().in_step().await;
    // A replay that was interrupted is finished by the next call.
    let everything = json!({"type": "dying", "limit": stored.len()}).to_string();
    world.ask("default", "dlq.replay", everything, WITHIN).await.unwrap();
    let open = not_ended(&world, &stored).await;

    println!("{} jobs, {replayed} replays, {faults} times a server fell behind; not ended: {open:?}", stored.len());
    nothing_is_lost(&world, &nodes, stored, open).await;
}

/// All jobs have ended as they must, the nodes end successfully, and the history has no loss.
pub(crate) async fn nothing_is_lost(
    world: &World,
    nodes: &[Node],
    stored: Vec<(usize, Receipt)>,
    open: BTreeMap<String, usize>,
) {
    assert!(open.is_empty(), "of {} confirmed jobs: {open:?}", stored.len());
    for node in nodes {
        assert!(node.stop().await.success());
    }
    let receipts: Vec<Receipt> = stored.into_iter().map(|(_, receipt)| receipt).collect();
    let losses = losses(world, &receipts).await;
    assert!(losses.is_empty(), "{losses:?}");
}
