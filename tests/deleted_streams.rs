//! A stream that a user deletes is made again within seconds, and reported; what decides about jobs is not.

use std::time::Duration;

use longshore_harness::{Handler, Node, NodeBuilder, Reply, Scrape, World, eventually};
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::cli::say;
use crate::http::on_a_free_port;
use crate::{AT_ONCE, WITHIN, served_by, workers, world};

const LANE: &str = "LONGSHORE_JOBS_main_P5";

/// Two workers, and a handler of the type `flaky` that fails.
fn node<'w>(world: &'w World, name: &str) -> NodeBuilder<'w> {
    let node = on_a_free_port(workers(world.node(), 2)).name(name).with("node", "lease = '10s'");
    node.with("types.flaky", &served_by("fail", &format!("max_attempts = 2\n{AT_ONCE}")))
}

/// A handler of the type `held` that ends each job once the number that is sent has reached the job's.
async fn held(world: &World) -> (watch::Sender<u64>, Handler) {
    let (open, gate) = watch::channel(0);
    let handler = world.handler("held").start(move |job| {
        let mut gate = gate.clone();
        async move {
            let number = job.json()["number"].as_u64().unwrap();
            gate.wait_for(|open| *open >= number).await.unwrap();
            Reply::json(json!(number))
        }
    });
    (open, handler.await)
}

async fn delete(world: &World, stream: &str) {
    world.jetstream().delete_stream(stream).await.unwrap();
}

/// Waits until a stream is there, and returns the sequence at which it begins.
async fn is_back(world: &World, stream: &str) -> u64 {
    eventually(stream, WITHIN, async || {
        let found = world.jetstream().get_stream(stream).await;
        found.map(|found| found.cached_info().config.first_sequence.unwrap_or(1)).map_err(|error| error.to_string())
    })
    .await
}

/// Waits until a node is ready, with what it warns of.
async fn is_ready(world: &World, node: &Node) -> Vec<String> {
    eventually("a node that is ready", WITHIN, async || {
        let health = world.try_request("_all", "health", json!({"node": node.name()})).await;
        let health = health.map_err(|error| error.to_string())?;
        let texts = |of: &str| -> Vec<String> {
            health[of].as_array().unwrap().iter().map(|text| text.as_str().unwrap().to_owned()).collect()
        };
        if health["ready"] == true { Ok(texts("warnings")) } else { Err(texts("reasons").join(", ")) }
    })
    .await
}

async fn remade(nodes: &[&Node]) -> f64 {
    let mut sum = 0.0;
    for node in nodes {
        sum += Scrape::of(node).await.sum("longshore_streams_remade_total", &[]);
    }
    sum
}

/// Given a running job and two that wait, when their lane is deleted, then it is there again within seconds, the job
/// that runs completes, and its late acknowledgement takes no other job away, though its node is killed.
#[tokio::test]
async fn a_deleted_lane_is_made_again_and_its_old_jobs_harm_no_new_one() {
    let world = world().await;
    let (open, handler) = held(&world).await;
    let one = node(&world, "n1").start().await;
    let mut system = world.live_events("_sys").await;
    let old = world.publish("held").json(json!({"number": 1})).await;
    handler.called(1).await;

    delete(&world, LANE).await;
    let first = is_back(&world, LANE).await;

    assert!(first > 1_000_000_000_000_000, "{first}: no sequence comes again");
    let event = system.until("the stream", |live| live.body["event"] == "stream_remade").await.body;
    assert_eq!(
        (&event["stream"], &event["first_sequence"], &event["node"]),
        (&json!(LANE), &json!(first), &json!("n1"))
    );
    let new = eventually("a job that is taken", WITHIN, async || {
        let sent = world.publish("held").send(r#"{"number":2}"#).await;
        sent.map(|receipt| receipt.run_id).map_err(|refused| format!("{refused:?}"))
    })
    .await;
    assert_eq!(new, format!("main-p5-{first}"));
    handler.called(2).await;
    open.send_replace(1);
    assert_eq!(world.wait(&old).await.state, "completed");
    assert_eq!(world.depth("main", 5).await, 1, "the new job is in its lane as long as it runs");
    one.kill9().await;
    open.send_replace(2);
    let _two = node(&world, "n2").start().await;
    assert_eq!(world.wait(&new).await.state, "completed");
}

/// Given two nodes, when a lane is deleted, then one of them makes it again, and says so in log, audit, metric, health
/// and `doctor`.
#[tokio::test]
async fn the_node_that_makes_a_stream_again_says_so() {
    let world = world().await;
    let (two, three) = (node(&world, "n2").start().await, node(&world, "n3").start().await);
    delete(&world, "LONGSHORE_JOBS_main_P9").await;
    is_back(&world, "LONGSHORE_JOBS_main_P9").await;
    let warnings = eventually("a warning", WITHIN, async || {
        let all = [is_ready(&world, &two).await, is_ready(&world, &three).await].concat();
        let all: Vec<String> = all.into_iter().filter(|text| text.starts_with("stream ")).collect();
        if all.is_empty() { Err("none") } else { Ok(all) }
    })
    .await;
    assert_eq!((warnings.len(), remade(&[&two, &three]).await), (1, 1.0), "one node says it: {warnings:?}");
    assert!(warnings[0].starts_with("stream LONGSHORE_JOBS_main_P9 had been deleted and was made again, empty, at "));
    let audit = eventually("the audit", WITHIN, async || {
        let entries = world.try_request("_all", "audit.list", json!({})).await.unwrap()["entries"].clone();
        if entries.as_array().unwrap().len() == 1 { Ok(entries) } else { Err(entries) }
    })
    .await;
    assert_eq!((&audit[0]["endpoint"], &audit[0]["stage"]), (&json!("streams.remake"), &json!("done")));
    assert_eq!(audit[0]["outcome"]["stream"], "LONGSHORE_JOBS_main_P9");
    let by = if audit[0]["by"] == "node n2" { &two } else { &three };
    let made_again = "P9 had been deleted and was made again";
    crate::logged(by.log(), made_again).await;
    assert_eq!(by.log().since(0).iter().filter(|line| line.contains(made_again)).count(), 1);
    let found = say(&world, "doctor --json").await.json();
    let said = |finding: &&Value| finding["text"].as_str().unwrap().contains("had been deleted");
    let finding = found["findings"].as_array().unwrap().iter().find(said).unwrap();
    assert!(finding["remedy"].as_str().unwrap().contains("STREAM.DELETE"), "{finding}");
}

/// Given a node, when every stream of messages is deleted, then all of them are there again, and jobs are scheduled,
/// retried, run, put aside and published as before, also into the files of events.
#[tokio::test]
async fn all_streams_of_messages_are_made_again() {
    let world = world().await;
    let file = world.dir().join("events.jsonl");
    let node = node(&world, "n1").with("audit", &format!("events_file = '{}'", file.display())).start().await;
    let before = world.publish("noop").json(json!(1)).await;
    assert_eq!(world.wait(&before).await.state, "completed");
    let published = async |run: &str| {
        eventually("events in their file", WITHIN, async || {
            let text = std::fs::read_to_string(&file).unwrap_or_default();
            let events: Vec<Value> = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
            let ends = events.iter().any(|event| event["run_id"] == run && event["event"] == "completed");
            if ends { Ok(()) } else { Err(text) }
        })
        .await;
    };
    published(&before).await;
    let streams = ["SCHEDULES", "PARKED", "EVENTS", "DLQ", "AUDIT", "JOBS_main_P5", "JOBS_main_RETURNED"];
    for stream in streams {
        delete(&world, &format!("LONGSHORE_{stream}")).await;
    }
    for stream in streams {
        is_back(&world, &format!("LONGSHORE_{stream}")).await;
    }
    is_ready(&world, &node).await;
    assert_eq!(remade(&[&node]).await, streams.len() as f64);

    let delayed = world.submit(json!({"type": "noop", "delay_ms": 1_200})).await;
    let dead = world.publish("flaky").json(json!({})).await;
    assert_eq!(world.wait(&delayed).await.state, "completed");
    assert_eq!(world.wait(&dead).await.state, "dead");
    world.eventually_dead_letters(1).await;
    assert_eq!(
        world.request("dlq.replay", json!({"run_id": dead, "set": {"payload": {"times": 0}}})).await["replayed"],
        1
    );
    assert_eq!(world.wait(&dead).await.state, "completed");
    world.eventually_reads(&delayed, "scheduled\nenqueued\nstarted 1\ncompleted 1").await;
    published(&dead).await;
    assert_eq!(Scrape::of(&node).await.sum("longshore_audit_failures_total", &[("to", "events_file")]), 0.0);
}

/// Given a node, when the buckets of run records and of steps are deleted, and a lane as well, then none is made again
/// while nodes run, the node says what to do, and a start makes all.
#[tokio::test]
async fn what_decides_about_jobs_is_not_made_again_by_a_running_node() {
    let world = world().await;
    let node = node(&world, "n1").start().await;
    let done = world.publish("noop").json(json!(1)).await;
    assert_eq!(world.wait(&done).await.state, "completed");
    delete(&world, "KV_longshore_runs").await;
    delete(&world, "KV_longshore_checkpoints").await;
    delete(&world, LANE).await;
    let health = eventually("all reasons", WITHIN, async || {
        let health = world.try_request("_all", "health", json!({"node": "n1"})).await.unwrap();
        if health["reasons"].to_string().matches(" is gone").count() == 3 { Ok(health) } else { Err(health) }
    })
    .await;
    let reasons = health["reasons"].to_string();
    for bucket in ["runs", "checkpoints"] {
        let reason = format!("stream KV_longshore_{bucket} is gone, and with it what it says about jobs: restore it");
        assert!(reasons.contains(&reason), "{reasons}");
    }
    // Longer than a lane alone would be missing.
    tokio::time::sleep(Duration::from_secs(6)).await;
    assert!(world.jetstream().get_stream(LANE).await.is_err() && remade(&[&node]).await == 0.0);
    let found = say(&world, "doctor --json").await.json();
    let about =
        |finding: &&Value| finding["text"].as_str().unwrap().contains("not ready: stream KV_longshore_runs is gone");
    let finding = found["findings"].as_array().unwrap().iter().find(about).unwrap();
    assert!(finding["remedy"].as_str().unwrap().contains("run as new ones"), "{finding}");

    node.kill9().await;
    node.restart().await;
    assert_eq!(is_ready(&world, &node).await, Vec::<String>::new());
    let run = world.publish("noop").json(json!(1)).await;
    assert_eq!(world.wait(&run).await.state, "completed");
}

/// Given a job whose node is frozen while it runs, when its lane is deleted and another node creates it at its start,
/// then the late acknowledgement takes no new job away, and no id comes again; the lanes of a new queue begin at 1, and
/// no lane that is deleted with all others of its queue and put again does.
#[tokio::test]
async fn a_lane_that_a_node_creates_at_its_start_has_no_sequence_again() {
    let world = world().await;
    let (open, handler) = held(&world).await;
    let one = node(&world, "n1").start().await;
    let done = world.publish("noop").json(json!(1)).await;
    assert_eq!((done.as_str(), world.wait(&done).await.state.as_str()), ("main-p5-1", "completed"));
    let old = world.publish("held").json(json!({"number": 1})).await;
    handler.called(1).await;
    world.eventually_reads(&old, "enqueued\nstarted 1").await;

    one.sigstop();
    delete(&world, LANE).await;
    let _two = node(&world, "n2").with("queues.later", "").start().await;
    let first = is_back(&world, LANE).await;
    assert!(first > 1_000_000_000_000_000, "{first}: no sequence comes again");
    assert_eq!(is_back(&world, "LONGSHORE_JOBS_later_P5").await, 1, "its queue is new");
    assert_eq!(is_back(&world, "LONGSHORE_JOBS_main_P4").await, 1, "it was there all the time");

    let mut new = Vec::new();
    for number in 2..5 {
        new.push(world.publish("held").json(json!({"number": number})).await);
    }
    handler.called(3).await;
    one.sigcont();
    open.send_replace(1);
    assert_eq!(world.wait(&old).await.state, "completed");
    assert_eq!(world.depth("main", 5).await, 3, "each new job is in its lane as long as it runs");
    open.send_replace(5);
    for run in &new {
        assert_eq!(world.wait(run).await.state, "completed");
    }

    let lanes = (1..10).map(|priority| format!("P{priority}")).chain(["RETURNED".to_owned()]);
    for lane in lanes {
        delete(&world, &format!("LONGSHORE_JOBS_later_{lane}")).await;
    }
    world.try_request("_all", "queues.put", json!({"queue": "later"})).await.unwrap();
    assert!(is_back(&world, "LONGSHORE_JOBS_later_P5").await > 1_000_000_000_000_000, "its node may hold jobs of it");
}

const REPLIES: &str = "LONGSHORE_REPLIES";

/// Given a node, when the stream of handlers' last replies is deleted, then it is there again; nobody is warned for
/// long, as the same happens at each restart of the server.
#[tokio::test]
async fn the_stream_of_last_replies_is_made_again() {
    let world = world().await;
    let node = node(&world, "n1").start().await;
    delete(&world, REPLIES).await;
    assert!(is_back(&world, REPLIES).await > 1_000_000_000_000_000);
    world.server().kill9().await;
    world.server().restart().await.unwrap();
    is_back(&world, REPLIES).await;
    eventually("no warning", WITHIN, async || {
        let warnings = is_ready(&world, &node).await;
        if warnings.is_empty() { Ok(()) } else { Err(warnings.join(", ")) }
    })
    .await;
    assert_eq!(remade(&[&node]).await, 0.0);
}

/// Given a remote handler that has just got a job, when the server is killed and comes back without the stream of last
/// replies, then the job is not called lost: its handler's answer counts, and no second one is called.
#[tokio::test]
async fn a_request_that_a_server_took_with_it_is_not_called_lost() {
    let world = world().await;
    let (handler, open) = crate::http::held(&world, "held").await;
    let node = node(&world, "n1").start().await;
    let first = world.publish("held").json(json!({})).await;
    handler.called(1).await;
    world.eventually_reads(&first, "enqueued\nstarted 1").await;
    // The handlers are known, so that this one is with its handler at once.
    let second = world.publish("held").json(json!({})).await;
    handler.called(2).await;

    let mark = node.log().mark();
    world.server().kill9().await;
    world.server().restart().await.unwrap();
    tokio::time::timeout(
        WITHIN,
        node.log().seen(mark, |line| line.contains("connected to NATS again") && line.contains("work")),
    )
    .await
    .expect("the node is back");
    is_back(&world, REPLIES).await;
    open.send_replace(true);
    for run in [&first, &second] {
        let end = world.wait(run).await;
        assert_eq!((end.state.as_str(), end.attempt), ("completed", 1), "{}", world.report(run).await);
    }
    assert_eq!(handler.calls().len(), 2);
}
