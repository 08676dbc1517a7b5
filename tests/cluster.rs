//! Several nodes act as one: they start side by side, share the work, and take over for each other.

use std::collections::{BTreeMap, BTreeSet};

use longshore_harness::history::Interruption;
use longshore_harness::{EventName, Node, World};
use serde_json::{Value, json};

use crate::{WITHIN, rules, workers, world};

/// The nodes that the operator sees, with the number of their running jobs.
async fn seen(world: &World) -> BTreeMap<String, u64> {
    let list = world.try_request("_all", "nodes.list", json!({})).await;
    let Ok(list) = list else { return BTreeMap::new() };
    let load = |node: &Value| {
        let queues = node["queues"].as_object().unwrap();
        queues.values().map(|queue| queue["running"].as_u64().unwrap()).sum()
    };
    list["nodes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|node| (node["node"].as_str().unwrap().to_owned(), load(node)))
        .collect()
}

async fn are_seen(world: &World, what: &str, wanted: &[(&str, u64)]) {
    let wanted: BTreeMap<String, u64> = wanted.iter().map(|(name, load)| ((*name).to_owned(), *load)).collect();
    longshore_harness::eventually(what, WITHIN, async || {
        let found = seen(world).await;
        if found == wanted { Ok(()) } else { Err(format!("{found:?}")) }
    })
    .await;
}

/// How many attempts each node began.
async fn starts(world: &World) -> BTreeMap<String, usize> {
    let mut starts = BTreeMap::new();
    let log = world.event_log("*").await;
    for logged in log.into_iter().filter(|logged| logged.event.event == EventName::Started) {
        *starts.entry(logged.event.node.unwrap_or_default()).or_default() += 1;
    }
    starts
}

/// Given an empty server, when several nodes start at the same moment, then all are ready, and all work.
#[tokio::test]
async fn several_nodes_start_at_once_on_an_empty_server() {
    let world = world().await;
    let start = |number: usize| workers(world.node().name(&format!("n{number}")), 1).start();
    let nodes: Vec<Node> = futures_util::future::join_all((0..5).map(start)).await;

    let receipts = world.publish("sleep").many((0..100).map(|_| json!({"ms": 30}))).await;
    assert!(world.ends(&receipts, WITHIN).await.iter().all(|state| state == "completed"));

    are_seen(&world, "five idle nodes", &[("n0", 0), ("n1", 0), ("n2", 0), ("n3", 0), ("n4", 0)]).await;
    for node in &nodes {
        assert!(node.stop().await.success());
        assert!(!std::fs::read_to_string(node.log().path()).unwrap().contains("ERROR"), "{}", node.log().tail(20));
    }
    let starts = starts(&world).await;
    assert_eq!((starts.len(), starts.values().sum::<usize>()), (5, 100), "{starts:?}");
    world.history(&receipts, Vec::new()).await.assert_sound();
}

/// Given two nodes and more work than either has capacity for, when it is done, then both did their part.
#[tokio::test]
async fn nodes_share_the_work() {
    let world = world().await;
    let first = workers(world.node().name("first"), 4).start().await;
    let second = workers(world.node().name("second"), 4).start().await;
    let mut live = world.live_events("default").await;
    let held = world.publish("sleep").many((0..8).map(|_| json!({"ms": 10_000}))).await;
    for receipt in &held {
        live.until_published("started", &receipt.run_id).await;
    }
    are_seen(&world, "both nodes to be full", &[("first", 4), ("second", 4)]).await;
    let receipts = world.publish("sleep").many((0..200).map(|_| json!({"ms": 20}))).await;
    let all: Vec<_> = held.into_iter().chain(receipts).collect();
    assert!(world.ends(&all, WITHIN).await.iter().all(|state| state == "completed"));
    assert!(first.stop().await.success() && second.stop().await.success());
    let starts = starts(&world).await;
    // Each node has half of the capacity; the split of the rest depends on which node pulls first.
    assert!(starts.values().all(|count| *count >= 30) && starts.len() == 2, "{starts:?}");
    world.history(&all, Vec::new()).await.assert_sound();
}

/// Given two nodes at work, when one is killed, then the other does all the work, and the dead one is shown as
/// silent, then no longer.
#[tokio::test]
async fn the_living_stand_in_for_the_dead() {
    let world = world().await;
    let quick = "[node]\nlease = '1s'\n[defaults]\nmax_attempts = 99\n\
                 backoff = { base = '50ms', factor = 1.0, max = '50ms', jitter = 'none' }";
    let doomed = workers(world.node().name("doomed"), 4).config(quick).start().await;
    let other = workers(world.node().name("other"), 4).config(quick).start().await;
    are_seen(&world, "two nodes", &[("doomed", 0), ("other", 0)]).await;
    let mut live = world.live_events("default").await;
    let receipts = world.publish("sleep").many((0..80).map(|_| json!({"ms": 300}))).await;
    live.until("a start by the doomed", |live| live.body["event"] == "started" && live.body["node"] == "doomed").await;

    let killed = Interruption { node: Some("doomed".to_owned()), at: jiff::Timestamp::now() };
    doomed.kill9().await;

    longshore_harness::eventually("a silent node", WITHIN, async || {
        // A request that the dead node had been given is not answered, and it is shown as silent for seconds only.
        let list = world.try_request("_all", "nodes.list", json!({}));
        let list =
            tokio::time::timeout(std::time::Duration::from_secs(1), list).await.map_err(|late| late.to_string())?;
        let list = list.map_err(|error| format!("{error:?}"))?;
        let silent = |node: &Value| node["node"] == "doomed" && node["state"] == "silent";
        if list["nodes"].as_array().unwrap().iter().any(silent) { Ok(()) } else { Err(list.to_string()) }
    })
    .await;
    assert!(world.ends(&receipts, WITHIN).await.iter().all(|state| state == "completed"));
    are_seen(&world, "the survivor alone", &[("other", 0)]).await;
    world.no_job_is_left(WITHIN).await;
    assert!(other.stop().await.success());
    let mut history = world.history(&receipts, Vec::new()).await;
    history.rules = rules(vec![killed]);
    history.assert_sound();
}

/// Given nodes with different queues, when jobs arrive, then each queue's jobs run on a node that serves the queue.
#[tokio::test]
async fn a_queue_is_served_where_it_is_declared() {
    let world = world().await;
    let bulk = world.node().name("bulk").with("queues.bulk", "concurrency = 2").start().await;
    let main = world.node().name("main").with("queues.main", "concurrency = 2").start().await;
    let mut receipts = world.publish("noop").queue("bulk").many((0..40).map(|number| json!(number))).await;
    receipts.extend(world.publish("noop").queue("main").many((0..40).map(|number| json!(number))).await);
    // Any node accepts a job for any declared queue.
    let mut submitted = BTreeSet::new();
    for queue in ["bulk", "main", "bulk", "main"] {
        submitted.insert(world.submit(json!({"type": "noop", "queue": queue, "delay_ms": 50})).await);
    }
    assert!(world.ends(&receipts, WITHIN).await.iter().all(|state| state == "completed"));
    for run in &submitted {
        assert_eq!(world.wait(run).await.state, "completed");
    }
    assert!(bulk.stop().await.success() && main.stop().await.success());
    let log = world.event_log("default").await;
    let starts = log.iter().filter(|logged| logged.event.event == EventName::Started);
    for logged in starts {
        assert_eq!(logged.event.node.as_ref(), Some(&logged.event.queue));
    }
    world.history(&receipts, Vec::new()).await.assert_sound();
}

/// Given a node, when another is started under its name, then that one refuses to start and says why; once the first is
/// gone, however it ended, the name is free at once.
#[tokio::test]
async fn a_name_is_one_nodes() {
    let world = world().await;
    let first = world.node().name("same").start().await;

    let refusal = world.node().name("same").try_start().await.unwrap_err();

    assert_eq!(refusal.status.code(), Some(1), "{refusal}");
    assert!(refusal.log.contains("is taken by another node") && refusal.log.contains("node.name"), "{refusal}");
    let run = world.publish("noop").json(json!({})).await;
    assert_eq!(world.wait(&run).await.state, "completed");
    first.kill9().await;
    let mark = first.log().mark();
    first.restart().await;
    assert!(!first.log().since(mark).iter().any(|line| line.contains("is there")), "it did not wait for another node");
    // A new node waits for one that is about to end.
    let third = world.node().name("same").try_start();
    let (third, status) = tokio::join!(third, async {
        let mark = first.log().mark();
        first.log().seen(mark, |line| line.contains("a node of this name is there")).await;
        first.stop().await
    });
    assert!(status.success() && third.is_ok(), "{third:?}");
}

/// Given a cluster with running jobs, when a node restarts under its name, then the jobs that it held before
/// complete, and the history is sound.
#[tokio::test]
async fn a_node_comes_back_under_its_name() {
    let world = world().await;
    let settings = "[node]\nlease = '1s'\n[defaults]\nmax_attempts = 99\n\
                   backoff = { base = '50ms', factor = 1.0, max = '50ms', jitter = 'none' }";
    let node = workers(world.node().name("same"), 4).config(settings).start().await;
    let mut live = world.live_events("default").await;
    let receipts = world.publish("sleep").many((0..12).map(|_| json!({"ms": 500}))).await;
    live.until("a start", |live| live.body["event"] == "started").await;
    let at = jiff::Timestamp::now();
    node.kill9().await;
    node.restart().await;
    assert!(world.ends(&receipts, WITHIN).await.iter().all(|state| state == "completed"));
    are_seen(&world, "one node of that name", &[("same", 0)]).await;
    world.no_job_is_left(WITHIN).await;
    assert!(node.stop().await.success());
    let mut history = world.history(&receipts, Vec::new()).await;
    history.rules = rules(vec![Interruption { node: Some("same".to_owned()), at }]);
    history.assert_sound();
}

/// Given a list of servers of which most are away, when a node starts, then it finds the one that is there.
#[tokio::test]
async fn a_node_starts_though_most_of_its_servers_are_away() {
    let world = world().await;
    let away: String = (1..=4).map(|port| format!("nats://127.0.0.1:{port},")).collect();
    let node = world.node().env("NATS_URL", &format!("{away}{}", world.urls())).start().await;
    let run = world.publish("echo").json(json!(1)).await;
    assert_eq!(world.wait(&run).await.state, "completed");
    assert!(node.stop().await.success());
}
