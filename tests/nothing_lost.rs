//! Server and nodes may be killed and frozen while jobs run: no accepted job is lost, and each ends exactly once.
//!
//! `LONGSHORE_TEST_FAULTS=10 cargo test --test promises nothing_lost -- --nocapture` repeats each fault ten times, with
//! as many times the work; the test prints how long work stood still each time, and does not judge it.

use std::time::Duration;

use jiff::Timestamp;
use longshore_harness::history::Interruption;
use longshore_harness::standstill::{in_seconds, standstills};
use longshore_harness::{EventName, NodeBuilder, Receipt, World};
use serde_json::json;

use crate::{rules, times, workers, world};

/// Jobs for each fault: about a second of work.
const EACH: usize = 150;

/// How long all jobs may take to end.
const WITHIN: Duration = Duration::from_secs(180);

/// A node with eight workers and a lease short enough for a test.
fn node(world: &World) -> NodeBuilder<'_> {
    let node = workers(world.node(), 8).with("node", "lease = '2s'");
    let settings = "max_attempts = 1000\nbackoff = { base = '50ms', factor = 1.0, max = '50ms', jitter = 'none' }";
    node.with("defaults", settings).with("types.flaky", "handler = 'fail'")
}

/// Bare jobs: most take 40 ms, some have a stored record while they run, some fail once.
async fn fill(world: &World, jobs: usize) -> Vec<Receipt> {
    let mut receipts = Vec::new();
    for _ in 0..jobs / 50 {
        receipts.extend(world.publish("sleep").many((0..40).map(|_| json!({"ms": 40}))).await);
        receipts.extend(world.publish("sleep").many((0..4).map(|_| json!({"ms": 400}))).await);
        receipts.extend(world.publish("flaky").many((0..6).map(|_| json!({"times": 1}))).await);
    }
    receipts
}

/// Waits until at most `left` jobs are in the lane.
async fn down_to(world: &World, left: usize) {
    longshore_harness::eventually("some work to be done", WITHIN, async || {
        let depth = world.depth("main", 5).await;
        if depth <= left as u64 { Ok(()) } else { Err(format!("{depth} wait")) }
    })
    .await;
}

/// Finds a job that this node holds, by its record. It publishes urgent jobs until there is one.
async fn held_by(world: &World, node: &str, receipts: &mut Vec<Receipt>) -> String {
    loop {
        let receipt = world.publish("sleep").priority(1).send(r#"{"ms":1500}"#).await.unwrap();
        let run = receipt.run_id.clone();
        receipts.push(receipt);
        let record = longshore_harness::eventually("a record that it runs", WITHIN, async || {
            world.record(&run).await.ok_or("there is none")
        })
        .await;
        if record.state == "running" && record.node.as_deref() == Some(node) {
            return run;
        }
    }
}

/// After the faults: every job has completed, and the history is sound. Prints how long work stood still.
async fn came_to_rest(world: &World, what: &str, receipts: &[Receipt], faults: Vec<Interruption>) {
    let mut history = world.history(receipts, Vec::new()).await;
    assert!(history.records.iter().all(|record| record.state == "completed"));
    let times: Vec<Timestamp> = faults.iter().map(|fault| fault.at).collect();
    let still = standstills(&history.events, &times);
    let again = history.events.iter().filter(|logged| logged.event.event == EventName::Failed);
    let lost = again.filter(|logged| logged.event.error.as_ref().is_some_and(|error| error.kind == "lease_expired"));
    println!(
        "{what} × {}: {} jobs, each ended once; work stood still for {}; {} attempts lost their lease",
        faults.len(),
        receipts.len(),
        in_seconds(&still),
        lost.count(),
    );
    history.rules = rules(faults);
    history.assert_sound();
}

/// Given a steady load, when the server is killed and comes back, again and again, then nothing is lost.
#[tokio::test]
async fn a_killed_server_loses_nothing() {
    let world = world().await;
    let node = node(&world).start().await;
    let faults = times("LONGSHORE_TEST_FAULTS", 2);
    let receipts = fill(&world, EACH * (faults + 1)).await;
    let mut killed = Vec::new();
    for number in 1..=faults {
        down_to(&world, receipts.len() - number * receipts.len() / (faults + 1)).await;
        killed.push(Interruption { node: None, at: Timestamp::now() });
        world.server().kill9().await;
        world.server().restart().await.unwrap();
    }
    world.ends(&receipts, WITHIN).await;
    world.no_job_is_left(WITHIN).await;
    assert!(node.stop().await.success());
    came_to_rest(&world, "kill -9 of the server", &receipts, killed).await;
}

/// Given a steady load, when the only node is killed and comes back, again and again, then nothing is lost.
#[tokio::test]
async fn a_killed_node_loses_nothing() {
    let world = world().await;
    let node = node(&world).start().await;
    let faults = times("LONGSHORE_TEST_FAULTS", 2);
    let receipts = fill(&world, EACH * (faults + 1)).await;
    let mut killed = Vec::new();
    for number in 1..=faults {
        down_to(&world, receipts.len() - number * receipts.len() / (faults + 1)).await;
        killed.push(Interruption { node: Some(node.name().to_owned()), at: Timestamp::now() });
        node.kill9().await;
        node.restart().await;
    }
    world.ends(&receipts, WITHIN).await;
    world.no_job_is_left(WITHIN).await;
    assert!(node.stop().await.success());
    came_to_rest(&world, "kill -9 of the node", &receipts, killed).await;
}

/// Given two nodes at work, when one is frozen until the other has taken its jobs, then it does no harm when it thaws,
/// and goes on working.
#[tokio::test]
async fn a_node_that_was_frozen_past_its_lease_does_no_harm() {
    let world = world().await;
    let frozen = node(&world).name("frozen").start().await;
    let other = node(&world).name("other").start().await;
    let faults = times("LONGSHORE_TEST_FAULTS", 2).div_ceil(2);
    let mut receipts = fill(&world, EACH * (faults + 1) * 2).await;
    let (filled, mut live) = (receipts.len(), world.live_events("default").await);
    let mut stops = Vec::new();
    for number in 1..=faults {
        down_to(&world, filled - number * filled / (faults + 1)).await;
        let long = held_by(&world, "frozen", &mut receipts).await;
        stops.push(Interruption { node: Some("frozen".to_owned()), at: Timestamp::now() });
        frozen.sigstop();
        // Its leases are over when the other node publishes that for one of its jobs.
        live.until_published("failed", &long).await;
        frozen.sigcont();
    }
    world.ends(&receipts, WITHIN).await;
    world.no_job_is_left(WITHIN).await;
    assert!(frozen.stop().await.success() && other.stop().await.success());
    came_to_rest(&world, "SIGSTOP of one of two nodes", &receipts, stops).await;
}

/// Given a single node, when it is frozen for longer than its lease, then it finds its leases lost, and does all the
/// work.
#[tokio::test]
async fn a_node_alone_recovers_from_a_freeze() {
    let world = world().await;
    let node = node(&world).with("node", "lease = '1s'").start().await;
    let faults = times("LONGSHORE_TEST_FAULTS", 2).div_ceil(2);
    let receipts = fill(&world, EACH * (faults + 1)).await;
    let mut stops = Vec::new();
    for number in 1..=faults {
        down_to(&world, receipts.len() - number * receipts.len() / (faults + 1)).await;
        stops.push(Interruption { node: Some(node.name().to_owned()), at: Timestamp::now() });
        node.sigstop();
        // Only time ends a lease here: there is no other node to announce it.
        tokio::time::sleep(Duration::from_millis(2_500)).await;
        node.sigcont();
    }
    world.ends(&receipts, WITHIN).await;
    world.no_job_is_left(WITHIN).await;
    assert!(node.stop().await.success());
    came_to_rest(&world, "SIGSTOP of the only node", &receipts, stops).await;
}

/// Given a steady load, when the server is frozen for a while, then all work resumes by itself.
#[tokio::test]
async fn a_frozen_server_loses_nothing() {
    let world = world().await;
    let node = node(&world).start().await;
    let receipts = fill(&world, EACH * 2).await;
    down_to(&world, receipts.len() / 2).await;
    let stop = Interruption { node: None, at: Timestamp::now() };
    world.server().sigstop();
    // Longer than the lease, and longer than the client waits for an answer to its pings.
    tokio::time::sleep(Duration::from_secs(6)).await;
    world.server().sigcont();
    world.ends(&receipts, WITHIN).await;
    world.no_job_is_left(WITHIN).await;
    assert!(node.stop().await.success());
    came_to_rest(&world, "SIGSTOP of the server", &receipts, vec![stop]).await;
}
