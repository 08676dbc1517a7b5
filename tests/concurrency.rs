//! Never more attempts at once than a type or a key allows, over all nodes, also when nodes die or freeze; what waits
//! for that holds up nobody.
//!
//! ```sh
//! LONGSHORE_TEST_CONCURRENCY_JOBS=2000 LONGSHORE_TEST_FAULTS=9 cargo test --test promises concurrency -- --nocapture
//! ```

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use jiff::Timestamp;
use longshore_harness::{EventName, Handler, Node, Receipt, Reply, World, eventually};
use serde_json::json;
use tokio::sync::Notify;

use crate::{AT_ONCE, FREEZE, recover, served_by, strike, times, world};

const WITHIN: Duration = Duration::from_secs(180);
const KEY: &str = "Longshore-Concurrency-Key";
/// The lease of these tests.
const LEASE: &str = "lease = '2s'";

async fn node(world: &World, limits: &str) -> Node {
    let settings = format!("max_attempts = 1000\ntimeout = '2s'\n{AT_ONCE}");
    let node = world.node().with("node", LEASE).with("queues.main", "concurrency = 16").with("defaults", &settings);
    node.with("types.counted", &served_by("remote", limits)).start().await
}

/// A handler that takes a few milliseconds, and says how many of its calls were at work at once at most.
async fn counting(world: &World, job_type: &str) -> (Handler, Arc<AtomicUsize>) {
    let (now, most) = (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
    let seen = Arc::clone(&most);
    let handler = world.handler(job_type).announce("longshore.slots", "64").start(move |job| {
        let (now, most) = (Arc::clone(&now), Arc::clone(&seen));
        async move {
            most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            let takes = job.json().as_u64().unwrap_or_default() % 20;
            tokio::time::sleep(Duration::from_millis(5 + takes)).await;
            now.fetch_sub(1, Ordering::SeqCst);
            Reply::json(json!(null))
        }
    });
    (handler.await, most)
}

/// A handler that holds the job `"long"` until it is notified, and fails the first attempt of `"retried"`.
async fn gated(world: &World) -> (Handler, Arc<Notify>) {
    let go = Arc::new(Notify::new());
    let gate = Arc::clone(&go);
    let handler = world.handler("counted").announce("longshore.slots", "64").start(move |job| {
        let gate = Arc::clone(&gate);
        async move {
            match (job.json().as_str(), job.attempt) {
                (Some("retried"), 1) => return Reply::error(503, "to be tried again"),
                (Some("long"), _) => gate.notified().await,
                _ => {}
            }
            Reply::json(json!(null))
        }
    });
    (handler.await, go)
}

/// Given a key that allows three at once and a backlog of its jobs on four nodes, when nodes are killed or frozen
/// beyond their lease and started again, and the server is killed under their writes, then its handler never has more
/// than three calls at once, every job completes, and jobs of another key and another type go on meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_has_no_more_attempts_at_once_than_it_allows_whichever_node_dies() {
    let world = world().await;
    let (jobs, faults) = (times("LONGSHORE_TEST_CONCURRENCY_JOBS", 400), times("LONGSHORE_TEST_FAULTS", 3));
    let (handler, most) = counting(&world, "counted").await;
    let mut nodes = Vec::new();
    for _ in 0..4 {
        nodes.push(node(&world, "key_concurrency = 3").await);
    }
    let mut busy = Vec::new();
    for fault in 0..faults {
        let more = (0..jobs.div_ceil(faults)).map(|number| json!(number));
        busy.extend(world.publish("counted").header(KEY, "busy").many(more).await);
        // In the midst of them.
        handler.called(handler.calls().len() + jobs / faults / 4).await;
        strike(&world, &nodes, fault).await;
        let other = world.publish("counted").header(KEY, "other").json(json!(fault)).await;
        assert_eq!(world.wait(&other).await.state, "completed");
        let quick = world.publish("noop").json(json!({})).await;
        assert_eq!(world.wait(&quick).await.state, "completed");
        recover(&nodes, fault).await;
    }
    let ends = world.ends(&busy, WITHIN).await;
    assert!(ends.iter().all(|state| state == "completed"), "{ends:?}");
    // The other key's jobs call the same handler.
    let most = most.load(Ordering::SeqCst);
    println!("{} calls, at most {most} at once", handler.calls().len());
    assert!(most <= 3 + 1, "{most} at once");
    assert!(at_once(&handler, &busy.iter().map(|job| job.run_id.as_str()).collect::<Vec<_>>()) <= 3);
}

/// How many calls of these runs the handler had at once at most.
fn at_once(handler: &Handler, runs: &[&str]) -> i32 {
    let mut steps: Vec<(Timestamp, i32)> = Vec::new();
    for call in handler.calls().iter().filter(|call| runs.contains(&call.run_id.as_str())) {
        steps.push((call.start, 1));
        steps.extend(call.end.map(|end| (end, -1)));
    }
    // What ends at the moment at which another begins counts as over.
    steps.sort_unstable();
    let (mut now, mut most) = (0, 0);
    for (_, step) in steps {
        now += step;
        most = most.max(now);
    }
    most
}

/// The longest time from `healed` on without a call for any of these jobs, as long as some of them had still to run.
fn longest_pause(handler: &Handler, jobs: &[Receipt], healed: Timestamp) -> Duration {
    let runs: Vec<&str> = jobs.iter().map(|job| job.run_id.as_str()).collect();
    let calls = handler.calls().into_iter().filter(|call| runs.contains(&call.run_id.as_str()));
    let mut times: Vec<Timestamp> = calls.map(|call| call.start).filter(|start| *start > healed).collect();
    times.push(healed);
    times.sort_unstable();
    let pauses = times.windows(2).map(|pair| pair[1].duration_since(pair[0]).unsigned_abs());
    pauses.max().unwrap_or_default()
}

async fn inflict(world: &World, nodes: &[Node], fault: &str) {
    match fault {
        "killed" => nodes[0].kill9().await,
        "killed and started again" => {
            nodes[1].kill9().await;
            nodes[1].restart().await;
        }
        "frozen" => {
            nodes[0].sigstop();
            tokio::time::sleep(FREEZE).await;
            nodes[0].sigcont();
        }
        "all killed" => {
            futures_util::future::join_all(nodes.iter().map(Node::kill9)).await;
            futures_util::future::join_all(nodes.iter().map(Node::restart)).await;
        }
        _ => {
            world.server().kill9().await;
            tokio::time::sleep(FREEZE).await;
            world.server().restart().await.unwrap();
        }
    }
}

/// Given two nodes and a backlog of remote jobs with the usual time limit of a minute, and some with one of 30 days,
/// of seven keys that allow one at once, of a type that allows two, and of ordered keys, when one node is killed, or
/// killed and started again, or frozen beyond its lease, when all nodes are killed and started again, or the server is
/// away for longer than a lease, then no key and no type stands still from the fault's end on for as
/// long as a time limit, all jobs complete, and no key or type has more calls at once than it allows.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slots_come_back_with_the_lease_whatever_became_of_their_nodes() {
    let world = world().await;
    let (handler, _) = counting(&world, "counted").await;
    let (capped, most_capped) = counting(&world, "capped").await;
    let (ordered, _) = counting(&world, "ordered").await;
    let start = || async {
        let node = world.node().with("node", LEASE).with("defaults", AT_ONCE);
        let node = node.with("types.counted", &served_by("remote", "")).with("types.capped", "concurrency = 2");
        node.with("types.ordered", "ordered = true").start().await
    };
    let nodes = [start().await, start().await];
    let mut of_keys: BTreeMap<String, Vec<Receipt>> = BTreeMap::new();
    for fault in ["killed", "killed and started again", "frozen", "all killed", "without server"] {
        let mut groups: Vec<(&Handler, Vec<Receipt>)> = Vec::new();
        for key in (0..7).map(|key| format!("k{key}")) {
            let many = (0..20).map(|number| json!(number));
            let long = world.publish("counted").header(KEY, &key).header("Longshore-Timeout", "30d");
            let of_key = of_keys.entry(key.clone()).or_default();
            of_key.extend(long.many([json!(1)]).await);
            of_key.extend(world.publish("counted").header(KEY, &key).many(many.clone()).await);
            groups.push((&handler, of_key[of_key.len() - 21..].to_vec()));
            groups.push((&ordered, world.publish("ordered").header(KEY, &key).many(many.take(4)).await));
        }
        groups.push((&capped, world.publish("capped").many((0..40).map(|number| json!(number))).await));
        // In the midst of them.
        handler.called(handler.calls().len() + 40).await;
        inflict(&world, &nodes, fault).await;
        let healed = Timestamp::now();
        let jobs: Vec<Receipt> = groups.iter().flat_map(|(_, jobs)| jobs).cloned().collect();
        let ends = world.ends(&jobs, WITHIN).await;
        assert!(ends.iter().all(|state| state == "completed"), "{fault}: {ends:?}");
        for (handler, jobs) in groups {
            let pause = longest_pause(handler, &jobs, healed);
            // The lease of 2 s and 15 s more, or less than the shortest time limit on a busy machine.
            assert!(pause <= Duration::from_secs(45), "{fault}: {} waited for {pause:?}", jobs[0].run_id);
        }
        if fault == "killed" {
            nodes[0].restart().await;
        }
    }
    for (key, jobs) in of_keys {
        let most = at_once(&handler, &jobs.iter().map(|job| job.run_id.as_str()).collect::<Vec<_>>());
        assert!(most <= 1, "{key}: {most} at once");
    }
    let most = most_capped.load(Ordering::SeqCst);
    assert!(most <= 2, "{most} at once of {} calls", capped.calls().len());
}

/// Given a type that asks for its slots to be kept for the time limit, and a key that had a short job with a limit of
/// 30 days, when all nodes are killed and started again while the handler works for longer than the lease, then the
/// next job of the key starts only once that call is over, and all end within the lease, the type's time limit and
/// 15 s.
#[tokio::test]
async fn a_strict_type_keeps_the_slots_of_dead_nodes_for_its_time_limit() {
    let world = world().await;
    let works = |job: longshore_harness::Job| async move {
        let millis = job.json().as_u64().unwrap_or_default();
        tokio::time::sleep(Duration::from_millis(millis)).await;
        Reply::json(json!(null))
    };
    let handler = world.handler("counted").announce("longshore.slots", "64").start(works).await;
    let strict = served_by("remote", "concurrency_hold = 'timeout'\ntimeout = '7s'");
    let start = || async {
        let node = world.node().with("node", LEASE).with("defaults", AT_ONCE);
        node.with("types.counted", &strict).start().await
    };
    let nodes = [start().await, start().await];
    let of_key = || world.publish("counted").header(KEY, "k");
    let long = of_key().header("Longshore-Timeout", "30d").json(json!(1)).await;
    assert_eq!(world.wait(&long).await.state, "completed");
    let jobs = of_key().many([json!(6_000), json!(1), json!(1)]).await;
    handler.called(2).await;
    // What the long limit asked for goes within half a second of the end of its attempt.
    tokio::time::sleep(Duration::from_millis(1_500)).await;

    futures_util::future::join_all(nodes.iter().map(Node::kill9)).await;
    futures_util::future::join_all(nodes.iter().map(Node::restart)).await;

    let ends = world.ends(&jobs, Duration::from_secs(2 + 7 + 15)).await;
    assert!(ends.iter().all(|state| state == "completed"), "{ends:?}");
    let most = at_once(&handler, &jobs.iter().map(|job| job.run_id.as_str()).collect::<Vec<_>>());
    assert_eq!(most, 1, "{:?}", handler.calls());
}

/// Given a type that allows two at once, run by a handler inside the nodes, when two nodes have a backlog of it and one
/// is killed, then no more than two attempts overlap, and all jobs complete.
#[tokio::test]
async fn a_type_has_no_more_attempts_at_once_than_it_allows() {
    let world = world().await;
    let limited = || async {
        let node = world.node().with("node", LEASE).with("defaults", AT_ONCE);
        node.with("types.sleep", "concurrency = 2").start().await
    };
    let (first, _second) = (limited().await, limited().await);
    let jobs = world.publish("sleep").many((0..60).map(|number| json!({"ms": 10 + number % 30}))).await;
    world.wait(&jobs[4].run_id).await;
    first.kill9().await;

    let ends = world.ends(&jobs, WITHIN).await;

    assert!(ends.iter().all(|state| state == "completed"), "{ends:?}");
    let mut steps: Vec<(Timestamp, i32)> = Vec::new();
    for job in &jobs {
        for attempt in world.record(&job.run_id).await.unwrap().attempts {
            // The end of an attempt whose node died is when another node noticed.
            let (began, is_lost) = (attempt.started_at.unwrap(), attempt.error.is_some());
            steps.push((began, 1));
            steps.push((attempt.ended_at.filter(|_| !is_lost).unwrap_or(began), -1));
        }
    }
    steps.sort_unstable();
    let most = steps.iter().scan(0, |now, (_, step)| {
        *now += step;
        Some(*now)
    });
    let most = most.max().unwrap_or(0);
    assert!(most <= 2, "{most} at once");
}

/// Given a key whose only slot is taken, when more of its jobs come than wait in memory, then jobs of other keys and
/// types start, each waiting job has one `deferred`, none uses an attempt, and they run in the order in which they
/// came.
#[tokio::test]
async fn a_busy_key_holds_up_nobody_and_its_jobs_keep_their_order() {
    let world = world().await;
    let (handler, go) = gated(&world).await;
    let _node = world.node().with("types.counted", &served_by("remote", "")).start().await;
    let first = world.publish("counted").header(KEY, "busy").json(json!("long")).await;
    handler.called(1).await;
    let waiting = world.publish("counted").header(KEY, "busy").many((0..80).map(|number| json!(number))).await;
    for key in 0..10 {
        let other = world.publish("counted").header(KEY, &format!("key {key}")).json(json!(key)).await;
        assert_eq!(world.wait(&other).await.state, "completed");
        let none = world.publish("counted").json(json!(null)).await;
        assert_eq!(world.wait(&none).await.state, "completed");
    }
    assert_eq!(handler.calls().len(), 21, "none of those that wait");

    go.notify_one();

    assert_eq!(world.wait(&first).await.state, "completed");
    let ends = world.ends(&waiting, WITHIN).await;
    assert!(ends.iter().all(|state| state == "completed"), "{ends:?}");
    let order: Vec<String> = handler.calls().into_iter().skip(21).map(|call| call.run_id).collect();
    assert_eq!(order, waiting.iter().map(|job| job.run_id.clone()).collect::<Vec<_>>());
    let mut deferred = 0;
    for job in &waiting {
        let events = world.eventually_ends(&job.run_id).await;
        let published: Vec<_> = events.iter().filter(|logged| logged.event.event == EventName::Deferred).collect();
        assert!(published.len() <= 1, "{published:?}");
        assert!(published.iter().all(|logged| logged.event.reason.as_deref() == Some("concurrency")), "{published:?}");
        deferred += published.len();
        assert_eq!(world.record(&job.run_id).await.unwrap().attempts.len(), 1);
    }
    assert!(deferred >= 60, "{deferred} were parked");
}

/// Given a retry that a node keeps while another node's job has the slot of its key, when the node stands still for so
/// long that it gives its wish up, then the retry starts once the slot is free.
#[tokio::test]
async fn a_retry_that_waits_for_a_slot_goes_on_after_its_node_stood_still() {
    let world = world().await;
    let (handler, go) = gated(&world).await;
    let backoff = "backoff = { base = '400ms', factor = 1.0, max = '400ms', jitter = 'none' }";
    let of_queue = |queue: &str| {
        let node = world.node().with("node", "lease = '20s'").with("defaults", backoff);
        node.with(&format!("queues.{queue}"), "concurrency = 4").with("types.counted", &served_by("remote", ""))
    };
    let one = of_queue("one").start().await;
    let _other = of_queue("other").start().await;
    let of_key = |queue: &'static str| world.publish("counted").queue(queue).header(KEY, "busy");
    let retried = of_key("one").json(json!("retried")).await;
    handler.called(1).await;
    let long = of_key("other").json(json!("long")).await;
    handler.called(2).await;
    eventually("the retry waits for the slot", WITHIN, async || {
        let run = world.request("runs.get", json!({"run_id": retried})).await;
        if run["waiting_for"]["reason"] == "concurrency" { Ok(()) } else { Err(run.to_string()) }
    })
    .await;

    one.sigstop();
    tokio::time::sleep(FREEZE).await;
    one.sigcont();
    let noop = world.publish("noop").queue("one").json(json!(null)).await;
    assert_eq!(world.wait(&noop).await.state, "completed");
    go.notify_one();

    for run in [&long, &retried] {
        assert_eq!(world.wait(run).await.state, "completed");
    }
    assert_eq!(handler.calls().len(), 3);
}

/// Given a node that has the only slot of a key, when it is asked to end, then another node has the slot long before a
/// lease is over.
#[tokio::test]
async fn a_node_that_ends_gives_its_slots_back() {
    let world = world().await;
    let of_key = || world.node().with("node", "lease = '10m'").with("types.sleep", "concurrency = 1");
    let first = of_key().start().await;
    let job = world.publish("sleep").json(json!({"ms": 10})).await;
    assert_eq!(world.wait(&job).await.state, "completed");
    first.stop().await;

    let _second = of_key().start().await;

    let job = world.publish("sleep").json(json!({"ms": 10})).await;
    assert_eq!(world.wait(&job).await.state, "completed");
}

/// Given a strict type and a key whose slot a run has, then the list and the run that waits name the run and its node;
/// once that was killed, the node and until when its slot counts; and when an operator frees the slot, what waits
/// starts.
#[tokio::test]
async fn who_has_the_slots_is_named_and_an_operator_frees_them() {
    let world = world().await;
    let calls = Arc::<AtomicUsize>::default();
    let handler = world.handler("counted").announce("longshore.slots", "64").start(move |_| {
        let is_first = calls.fetch_add(1, Ordering::SeqCst) == 0;
        async move {
            if is_first {
                std::future::pending::<()>().await;
            }
            Reply::json(json!(null))
        }
    });
    let handler = handler.await;
    let strict = served_by("remote", "concurrency_hold = 'timeout'\ntimeout = '1h'");
    let start = || async {
        let node = world.node().with("node", LEASE).with("defaults", AT_ONCE);
        node.with("types.counted", &strict).start().await
    };
    let first_node = start().await;
    let first = world.publish("counted").header(KEY, "busy").json(json!(1)).await;
    handler.called(1).await;
    let second = world.publish("counted").header(KEY, "busy").json(json!(2)).await;
    let says = async |words: &str| {
        eventually("the run that waits says who has the slot", WITHIN, async || {
            let record = world.try_request("default", "runs.get", json!({"run_id": second})).await;
            let waiting_for = record.map_err(|error| error.to_string())?["waiting_for"].clone();
            let says = waiting_for["message"].as_str().is_some_and(|text| text.contains(words));
            if says && waiting_for["reason"] == "concurrency" { Ok(()) } else { Err(waiting_for.to_string()) }
        })
        .await;
    };
    says(&format!("run {first} on node {}", first_node.name())).await;
    let listed = world.request("concurrency.list", json!({"type": "counted"})).await;
    let holder = &listed["limits"][0]["holders"][0];
    assert_eq!((&holder["node"], &holder["slots"]), (&json!(first_node.name()), &json!(1)), "{listed}");
    assert_eq!(holder["runs"], json!([{"run_id": first, "tenant": "default"}]), "{listed}");
    let others = world.try_request("acme", "concurrency.list", json!({})).await.unwrap();
    assert_eq!(others, json!({"limits": []}), "another tenant's key");

    first_node.kill9().await;
    let _second_node = start().await;

    says(&format!("node {}, which does not answer, until 20", first_node.name())).await;
    let free = json!({"type": "counted", "tenant": "default", "concurrency_key": "busy"});
    let refused = world.try_request("default", "concurrency.free", free.clone()).await.unwrap_err();
    assert_eq!(refused.code, 403, "{refused:?}");
    let of_another = json!({"type": "counted", "tenant": "default", "concurrency_key": "busy", "node": "another"});
    assert_eq!(world.try_request("_all", "concurrency.free", of_another).await.unwrap()["freed"], 0);
    let freed = world.try_request("_all", "concurrency.free", free).await.unwrap();
    assert_eq!((&freed["freed"], &freed["limit"]["max"]), (&json!(1), &json!(1)), "{freed}");
    for run in [&first, &second] {
        assert_eq!(world.wait(run).await.state, "completed");
    }
    let audit = world.try_request("_all", "audit.list", json!({})).await.unwrap();
    let entries = audit["entries"].as_array().unwrap();
    assert!(entries.iter().any(|entry| entry["endpoint"] == "concurrency.free"), "{audit}");
}

/// Given a limit whose only slot belongs to a session that is no longer stored, as a node left it that has been gone
/// for more than a day, of this version or a former one, when a job comes, then it starts at once.
#[tokio::test]
async fn a_session_that_is_no_longer_stored_keeps_no_slot() {
    let world = world().await;
    let _node = world.node().with("types.call", &served_by("sleep", "concurrency = 1")).start().await;
    let left = json!({"blocks": {"gone": {"slots": 1, "holds_for_ms": 43_200_000, "runs_for_ms": 5_184_000_000_u64}}});
    let bucket = world.jetstream().get_key_value("longshore_concurrency").await.unwrap();
    bucket.put("slots.type.call", left.to_string().into()).await.unwrap();

    let job = world.publish("call").json(json!({"ms": 1})).await;

    assert_eq!(world.wait_as("default", &job, Duration::from_secs(20)).await.state, "completed");
}
