//! Jobs of one key run in the order of their lane, through retries and deaths of nodes; what never starts, or ends
//! badly, holds up nobody behind it.
//!
//! ```sh
//! LONGSHORE_TEST_ORDERED_JOBS=2000 LONGSHORE_TEST_FAULTS=9 cargo test --test promises ordered -- --nocapture
//! ```

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use longshore_harness::history::{Interruption, Ordered};
use longshore_harness::{Handler, Node, Receipt, Reply, World, eventually};
use serde_json::json;
use tokio::sync::Notify;

use crate::{AT_ONCE, recover, rules, served_by, strike, three_servers, times, world};

const WITHIN: Duration = Duration::from_secs(180);
const KEY: &str = "Longshore-Concurrency-Key";
const KEYS: usize = 6;

async fn node(world: &World) -> Node {
    let defaults = format!("max_attempts = 1000\n{AT_ONCE}");
    let node = world.node().with("node", "lease = '2s'").with("queues.main", "concurrency = 16");
    node.with("defaults", &defaults).with("types.step", &served_by("remote", "ordered = true")).start().await
}

/// A handler whose job says how it goes: it fails so often before it succeeds, or for good, or waits to be let go.
async fn steps(world: &World, go: Arc<Notify>) -> Handler {
    let handler = world.handler("step").announce("longshore.slots", "64").start(move |job| {
        let go = Arc::clone(&go);
        async move {
            let (body, attempt) = (job.json(), u64::from(job.attempt));
            tokio::time::sleep(Duration::from_millis(body["ms"].as_u64().unwrap_or(2))).await;
            if body["waits"] == json!(true) {
                go.notified().await;
            }
            match body["fails"].as_u64() {
                Some(times) if attempt <= times => {
                    Reply::error(500, "not yet").header("Longshore-Retry-After", "1100ms")
                }
                _ if body["fails"] == json!("for good") => Reply::error(422, "never"),
                _ if body["local"].as_u64().is_some_and(|times| attempt <= times) => Reply::error(500, "not yet"),
                _ => Reply::json(json!(null)),
            }
        }
    });
    handler.await
}

/// Says what is wrong with the order of these jobs of one key: a call of one must not begin before the last call of
/// each that came before it has, nor its run's first attempt before their runs had ended.
async fn assert_in_order(world: &World, handler: &Handler, jobs: &[&Receipt]) {
    let mut calls: BTreeMap<String, Vec<(Timestamp, Option<Timestamp>)>> = BTreeMap::new();
    for call in handler.calls() {
        calls.entry(call.run_id.clone()).or_default().push((call.start, call.end));
    }
    let mut before: Option<(&str, Timestamp, Timestamp)> = None;
    for job in jobs {
        let record = world.record(&job.run_id).await.unwrap();
        let Some(of_job) = calls.get(&job.run_id) else {
            assert!(record.attempts.is_empty(), "{} was started, and not called", job.run_id);
            continue;
        };
        let first = of_job.iter().map(|(start, _)| *start).min().unwrap();
        let last = of_job.iter().map(|(start, end)| end.unwrap_or(*start)).max().unwrap();
        if let Some((earlier, last_of_earlier, ended)) = before {
            assert!(first >= last_of_earlier, "{} began before the last call of {earlier}", job.run_id);
            let started = record.started_at.unwrap();
            assert!(started >= ended, "{} started at {started}, before {earlier} had ended at {ended}", job.run_id);
        }
        before = Some((&job.run_id, last, record.ended_at.unwrap()));
    }
}

/// Given four nodes and keys with many jobs each, some of which fail before they succeed, when nodes are killed and
/// started again or frozen beyond their lease, and, in a long run, the server is killed, then every job completes, each
/// after those that came before it in its key; and jobs of other keys and types go on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_key_runs_in_the_order_of_its_lane_whichever_node_dies() {
    let world = world().await;
    let (count, faults) = (times("LONGSHORE_TEST_ORDERED_JOBS", 80), times("LONGSHORE_TEST_FAULTS", 2));
    let handler = steps(&world, Arc::default()).await;
    let nodes = [node(&world).await, node(&world).await, node(&world).await, node(&world).await];
    let mut of: BTreeMap<usize, Vec<Receipt>> = BTreeMap::new();
    let began = Instant::now();
    for fault in 0..faults {
        let before = handler.calls().len();
        for number in 0..count.div_ceil(faults) {
            let payload = match number % 25 {
                7 => json!({"local": 1}),
                19 => json!({"fails": 1}),
                number => json!({"ms": number % 5}),
            };
            let key = number % KEYS;
            let publish = world.publish("step").header(KEY, &format!("k{key}"));
            of.entry(key).or_default().extend(publish.many([payload]).await);
        }
        handler.called(before + count / faults / 3).await;
        strike(&world, &nodes, fault).await;
        let other = world.publish("step").header(KEY, &format!("other{fault}")).json(json!({})).await;
        assert_eq!(world.wait(&other).await.state, "completed");
        recover(&nodes, fault).await;
    }
    let all: Vec<Receipt> = of.values().flatten().cloned().collect();
    // Less than the time limit of the attempts that died.
    let ends = world.ends(&all, Duration::from_secs(50)).await;
    println!("{} jobs, {} calls in {:?}", all.len(), handler.calls().len(), began.elapsed());
    assert!(ends.iter().all(|state| state == "completed"), "{ends:?}");
    for jobs in of.values() {
        assert_in_order(&world, &handler, &jobs.iter().collect::<Vec<_>>()).await;
    }
}

/// Given a job that is at work and others of its key behind it, then each says for which it waits; and when one of them
/// is cancelled, one expires and one fails for good, the last runs after those that were before it, on whichever node.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_that_is_cancelled_expires_or_fails_for_good_releases_those_behind_it() {
    let world = world().await;
    let go = Arc::new(Notify::new());
    let handler = steps(&world, Arc::clone(&go)).await;
    let (_one, _other) = (node(&world).await, node(&world).await);
    let publish = |payload| {
        let publish = world.publish("step").header(KEY, "k");
        async move { publish.many([payload]).await.remove(0) }
    };
    let first = publish(json!({"waits": true})).await;
    handler.called(1).await;
    let dead = publish(json!({"fails": "for good"})).await;
    let cancelled = publish(json!({})).await;
    let in_a_moment = world.publish("step").header(KEY, "k").header("Longshore-Expires-In", "300ms");
    let expired = in_a_moment.many([json!({})]).await.remove(0);
    let last = publish(json!({})).await;

    eventually("the last one says for which it waits", WITHIN, async || {
        let record = world.try_request("default", "runs.get", json!({"run_id": last.run_id})).await;
        let waiting_for = record.map_err(|error| error.to_string())?["waiting_for"].clone();
        let says = waiting_for["message"].as_str().is_some_and(|text| text.contains(&first.run_id));
        if says && waiting_for["reason"] == "concurrency" { Ok(()) } else { Err(waiting_for.to_string()) }
    })
    .await;
    world.request("runs.cancel", json!({"run_id": cancelled.run_id})).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(handler.calls().len(), 1, "nobody goes before it");
    go.notify_one();

    let all = [first, dead, cancelled, expired, last];
    let ends = world.ends(&all, WITHIN).await;
    assert_eq!(ends, ["completed", "dead", "cancelled", "expired", "completed"]);
    assert_in_order(&world, &handler, &all.iter().collect::<Vec<_>>()).await;
}

/// Given three servers, two nodes and keys with jobs that succeed, fail first or fail for good, when the servers that
/// lead their lane, the parked jobs and the orders are killed one after the other, and a node as well, then every job
/// ends, each after those that came before it in its key.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_three_servers_the_death_of_leaders_and_of_a_node_changes_no_order() {
    let world = three_servers().await;
    let handler = steps(&world, Arc::default()).await;
    let (first, second) = (node(&world).await, node(&world).await);
    let died = |node: Option<&Node>| {
        let node = node.map(|node| node.name().to_owned());
        Interruption { node, at: Timestamp::now() }
    };
    let (mut of, mut interruptions): (BTreeMap<usize, Vec<Receipt>>, _) = (BTreeMap::new(), Vec::new());
    for (turn, stream) in ["LONGSHORE_JOBS_main_P5", "LONGSHORE_PARKED", "KV_longshore_concurrency"].iter().enumerate()
    {
        let before = handler.calls().len();
        for number in 0..24 {
            let payload = match number {
                0..=2 | 8 => json!({"fails": 1}),
                4 | 5 => json!({"local": 1}),
                13 => json!({"fails": "for good"}),
                number => json!({"ms": number}),
            };
            let publish = world.publish("step").header(KEY, &format!("k{}", number % 3));
            let receipt = publish.until_stored(&format!("{turn}-{number}"), payload.to_string()).await;
            of.entry(number % 3).or_default().push(receipt);
            if number == 2 {
                // They wait for their retry while those behind them come, and nothing of their key is at work.
                handler.called(before + 3).await;
            }
        }
        handler.called(before + 6).await;
        let leader = world.servers().stream_leader(stream).await.unwrap();
        let leader = world.servers().server(leader);
        leader.kill9().await;
        interruptions.push(died(None));
        if turn == 1 {
            first.kill9().await;
            interruptions.push(died(Some(&first)));
        }
        let after = handler.calls().len();
        handler.called(after + 6).await;
        leader.restart().await.unwrap();
        world.servers().in_step().await;
        if turn == 1 {
            first.restart().await;
        }
        let so_far: Vec<Receipt> = of.values().flatten().cloned().collect();
        world.ends(&so_far, WITHIN).await;
    }
    let all: Vec<Receipt> = of.values().flatten().cloned().collect();
    let ends = world.ends(&all, WITHIN).await;
    assert_eq!(ends.iter().filter(|state| *state == "dead").count(), 3, "{ends:?}");
    assert_eq!(ends.iter().filter(|state| *state == "completed").count(), all.len() - 3, "{ends:?}");
    for jobs in of.values() {
        assert_in_order(&world, &handler, &jobs.iter().collect::<Vec<_>>()).await;
    }
    world.no_job_is_left(WITHIN).await;
    let mut history = world.history(&all, handler.calls()).await;
    history.rules = rules(interruptions);
    let in_order = |jobs: Vec<Receipt>| jobs.into_iter().map(|job| (job.tenant, job.run_id)).collect();
    let orders = of.into_iter().map(|(key, jobs)| Ordered { name: format!("key k{key}"), runs: in_order(jobs) });
    history.orders = orders.collect();
    history.assert_sound();
    assert!(first.stop().await.success() && second.stop().await.success());
}
