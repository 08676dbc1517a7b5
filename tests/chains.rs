//! Jobs that follow one another: each runs once the one before has completed, with its result, whatever dies.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use longshore_harness::{EventName, Job, NodeBuilder, Reply, World, eventually};
use serde_json::{Value, json};

use crate::{without_node, world};

const WITHIN: Duration = Duration::from_secs(90);

fn quick<'w>(world: &'w World, name: &str) -> NodeBuilder<'w> {
    world.node().name(name).with("node", "lease = '2s'").with("http", "listen = '127.0.0.1:0'")
}

/// The run, once its record says that it has ended.
async fn end(world: &World, run: &str) -> Value {
    let mut ended = Value::Null;
    eventually(&format!("the end of {run}"), WITHIN, async || {
        let record = world.try_request("default", "runs.get", json!({"run_id": run})).await;
        match record {
            Ok(record) if record.get("ended_at").is_some() => {
                ended = record;
                Ok(())
            }
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    ended
}

/// Submits a job with an id, however often that takes.
async fn submit(world: &World, job: Value) -> String {
    eventually("a node that takes the job", WITHIN, async || {
        world.try_request("default", "submit", job.clone()).await.map_err(|error| error.to_string())
    })
    .await;
    job["run_id"].as_str().unwrap().to_owned()
}

/// Whether there is such a run.
async fn is_known(world: &World, run: &str) -> bool {
    world.try_request("default", "runs.get", json!({"run_id": run})).await.is_ok()
}

/// A job of this type, followed by as many more.
fn chain(job_type: &str, more: usize) -> Value {
    match more {
        0 => json!({"type": job_type}),
        _ => json!({"type": job_type, "then": chain(job_type, more - 1)}),
    }
}

/// Given chains of five, submitted and published bare, when nodes are killed and the server is restarted meanwhile,
/// then each run has one record, has completed, and has worked on the result of the one before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_link_runs_on_the_result_of_the_one_before_whatever_dies() {
    let world = world().await;
    let plus_one = |job: Job| async move { Reply::json(json!(job.json().as_u64().unwrap() + 1)) };
    let handler = world.handler("work").start(plus_one).await;
    let (one, other) = (quick(&world, "one").start().await, quick(&world, "other").start().await);
    let then = chain("work", 3);
    let mut first = BTreeMap::new();
    for round in 0..4 {
        for number in 0..15 {
            let payload = (round * 15 + number) * 100;
            let run = match number % 2 {
                0 => {
                    submit(
                        &world,
                        json!({"type": "work", "run_id": format!("c{payload}"), "payload": payload, "then": then}),
                    )
                    .await
                }
                _ => world.publish("work").header("Longshore-Then", &then.to_string()).json(json!(payload)).await,
            };
            first.insert(run, payload);
        }
        handler.called(round * 75 + 20).await;
        match round {
            0 => {
                one.kill9().await;
                one.restart().await;
            }
            1 => world.server().restart().await.unwrap(),
            2 => {
                other.kill9().await;
                other.restart().await;
            }
            _ => {}
        }
    }

    let mut runs = BTreeSet::new();
    for (run, payload) in &first {
        let (mut run, mut parent) = (run.clone(), Value::Null);
        for link in 0..5 {
            let record = end(&world, &run).await;
            let expected = payload + link + 1;
            assert_eq!((&record["state"], &record["result"]), (&json!("completed"), &json!(expected)), "{record}");
            assert_eq!(record.get("parent_run_id").unwrap_or(&Value::Null), &parent, "{record}");
            let next = format!("{run}-then");
            let children = if link < 4 { json!([next]) } else { Value::Null };
            assert_eq!(record.get("children").unwrap_or(&Value::Null), &children, "{record}");
            runs.insert(run.clone());
            (parent, run) = (json!(run), next);
        }
        assert!(!is_known(&world, &run).await, "nothing follows the last one");
    }
    crate::is_emptied(&world).await;
    let mut records = Vec::new();
    world.reader().records("default", |record| records.push(record.run_id)).await.unwrap();
    assert_eq!(records.len(), runs.len(), "one record each");
    assert_eq!(records.into_iter().collect::<BTreeSet<_>>(), runs);
    for call in handler.calls() {
        assert!(runs.contains(&call.run_id), "{} is no link", call.run_id);
    }
}

/// Given a node that dies between a run's end and the job that follows, at each step of that, then the job follows
/// once.
#[tokio::test]
async fn the_next_job_follows_once_wherever_the_node_dies() {
    let world = world().await;
    let handler = world.handler("work").start(|job| async move { Reply::json(job.json()) }).await;
    without_node(quick(&world, "node")).await;
    for point in ["after-record", "after-events", "before-then", "after-then-record", "after-then", "before-ack"] {
        let node = quick(&world, "node").env("LONGSHORE_FAIL_POINTS", &format!("{point}=kill")).start().await;
        let job = json!({"type": "work", "payload": point, "run_id": point, "then": {"type": "work"}});
        let _ = world.ask("default", "submit", job.to_string(), Duration::from_secs(5)).await;
        node.wait_exit(WITHIN).await;
        let node = quick(&world, "node").start().await;
        let next = end(&world, &format!("{point}-then")).await;
        assert_eq!((&next["state"], &next["result"]), (&json!("completed"), &json!(point)), "{next}");
        crate::is_emptied(&world).await;
        for run in [point.to_owned(), format!("{point}-then")] {
            let calls = handler.calls().iter().filter(|call| call.run_id == run).count();
            assert_eq!(calls, 1, "{run}, killed at {point}");
        }
        node.stop().await;
    }
}

/// Given a chain that has completed, when the id of its first run is used again once its record has gone, then the next
/// job follows that run as well.
#[tokio::test]
async fn the_next_job_follows_each_run_of_an_id() {
    let world = world().await;
    let node = quick(&world, "node").start().await;
    for payload in 1..=2 {
        // Two leases: the shortest time for which a record is kept.
        let kept =
            json!({"type": "echo", "run_id": "c", "keep_ms": 4_000, "payload": payload, "then": {"type": "echo"}});
        eventually("a run of its own", WITHIN, async || {
            let answer = world.request("submit", kept.clone()).await;
            if answer["deduplicated"] == false { Ok(()) } else { Err(answer.to_string()) }
        })
        .await;
        eventually("the job that follows it", WITHIN, async || {
            match world.try_request("default", "runs.get", json!({"run_id": "c-then"})).await {
                Ok(next) if next["result"] == payload => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .await;
    }
    node.stop().await;
}

/// Given a link that fails for good, then nothing follows it until its replay has completed.
#[tokio::test]
async fn a_dead_link_stops_the_chain_and_its_replay_goes_on_with_it() {
    let world = world().await;
    let work = world.handler("work").start(|job| async move { Reply::json(job.json()) }).await;
    let _breaks = world.handler("breaks").start(|_| async { Reply::error(422, "no") }).await;
    let _node = quick(&world, "node").start().await;
    let then = json!({"type": "breaks", "then": {"type": "work", "tags": ["last"]}});
    let run = world.submit(json!({"type": "work", "payload": 7, "then": then})).await;
    let dead = end(&world, &format!("{run}-then")).await;
    assert_eq!((&dead["state"], &dead["then"], dead.get("children")), (&json!("dead"), &json!("work"), None), "{dead}");
    let last = format!("{run}-then-then");
    assert!(!is_known(&world, &last).await);

    let _mended = {
        drop(_breaks);
        world.handler("breaks").start(|_| async { Reply::json(json!("mended")) }).await
    };
    let replayed = world.request("dlq.replay", json!({"run_id": format!("{run}-then")})).await;
    assert_eq!(replayed["replayed"], 1, "{replayed}");

    let record = end(&world, &last).await;
    assert_eq!((&record["state"], &record["result"]), (&json!("completed"), &json!("mended")), "{record}");
    assert_eq!((&record["tags"], &record["parent_run_id"]), (&json!(["last"]), &json!(format!("{run}-then"))));
    assert_eq!(work.calls().len(), 2);
}

/// Given a run that waits and one that runs, when they are cancelled, then nothing follows them.
#[tokio::test]
async fn nothing_follows_a_run_that_is_cancelled() {
    let world = world().await;
    let handler = world.handler("work").start(|_| async { Reply::silence() }).await;
    let _node = quick(&world, "node").start().await;
    let waits = world.submit(json!({"type": "work", "delay_ms": 600_000, "then": {"type": "work"}})).await;
    let runs = world.submit(json!({"type": "work", "then": {"type": "work"}})).await;
    handler.called(1).await;
    for run in [&waits, &runs] {
        world.request("runs.cancel", json!({"run_id": run})).await;
        let record = end(&world, run).await;
        assert_eq!((&record["state"], record.get("children")), (&json!("cancelled"), None), "{record}");
    }
    crate::is_emptied(&world).await;
    for run in [waits, runs] {
        assert!(!is_known(&world, &format!("{run}-then")).await);
    }
    assert_eq!(handler.calls().len(), 1);
}

/// Given links with a payload, options and headers of their own, and a result that is not JSON, then each handler gets
/// what its link says, or the result byte for byte; and a delay is waited for.
#[tokio::test]
async fn a_link_has_its_own_payload_or_the_result_and_its_own_options() {
    let world = world().await;
    let text = |_| async { Reply::bytes("naïve\ntext").header("Content-Type", "text/plain") };
    let _text = world.handler("text").start(text).await;
    let got = Arc::<Mutex<Vec<_>>>::default();
    let seen = Arc::clone(&got);
    let handler = world.handler("work").start(move |job| {
        let said = |name: &str| job.headers.get(name).map_or("", |value| value.as_str()).to_owned();
        let headers = ["X-A", "Content-Type", "Longshore-Then"].map(said).join(",");
        seen.lock().unwrap().push((job.run_id.clone(), job.payload.clone(), headers));
        async move { Reply::bytes(job.payload) }
    });
    let _handler = handler.await;
    let _node = quick(&world, "node").config("[queues.main]\n[queues.bulk]\n").start().await;
    let payload = json!({"a": "\u{7f}ü\n", "n": 0.1});
    let last = json!({"type": "work", "queue": "bulk", "priority": 2, "payload": payload, "delay_ms": 1_500, "max_attempts": 2});
    let then = json!({"type": "work", "headers": {"X-A": "b"}, "then": last});
    let run = world.submit(json!({"type": "text", "then": then})).await;
    let (second, third) = (format!("{run}-then"), format!("{run}-then-then"));

    let record = end(&world, &third).await;

    assert_eq!((&record["state"], &record["result"]), (&json!("completed"), &payload), "{record}");
    let place = (&record["queue"], &record["priority"], &record["max_attempts"]);
    assert_eq!(place, (&json!("bulk"), &json!(2), &json!(2)), "{record}");
    let got = got.lock().unwrap().clone();
    let headers = "b,text/plain,".to_owned();
    assert_eq!(got[0], (second, "naïve\ntext".into(), headers), "the result, and no header of the chain");
    assert_eq!((got.len(), &got[1].0), (2, &third));
    let events = world.eventually_ends(&third).await;
    let events: Vec<EventName> = events.iter().map(|logged| logged.event.event).collect();
    use EventName::{Completed, Enqueued, Scheduled, Started};
    assert_eq!(events, [Scheduled, Enqueued, Started, Completed]);
}

/// Given a result that the next job's type does not take, or that is too large to keep, then the run becomes a dead
/// letter that says so, and nothing follows.
#[tokio::test]
async fn a_result_that_the_next_job_cannot_take_is_a_failure() {
    let world = world().await;
    let _handler = world.handler("work").start(|job| async move {
        let size = usize::try_from(job.json().as_u64().unwrap()).unwrap();
        Reply::json(json!("x".repeat(size)))
    });
    let _handler = _handler.await;
    let _node = quick(&world, "node").with("types.small", "payload_max = '1KiB'").start().await;
    for (size, next, says) in [(2_000, "small", "payload_max"), (70_000, "work", "is not kept")] {
        let run = world.submit(json!({"type": "work", "payload": size, "then": {"type": next}})).await;
        let record = end(&world, &run).await;
        let message = record["error"]["message"].as_str().unwrap_or_default();
        assert!(record["state"] == "dead" && message.contains(says), "{record}");
        assert!(!is_known(&world, &format!("{run}-then")).await);
    }
}

/// Given a chain with an error somewhere, then it is refused as it is submitted, with the field; published bare, it
/// becomes a dead letter that says the same.
#[tokio::test]
async fn a_wrong_link_is_refused_by_name() {
    let world = world().await;
    let _handler = world.handler("work").start(|_| async { Reply::json(json!(1)) }).await;
    let _node = quick(&world, "node").start().await;
    let of = |wrong: Value| json!({"type": "work", "then": {"type": "work", "then": wrong}});
    for (job, says) in [
        (json!({"type": "work", "then": {"queue": "main"}}), "then.type: is missing"),
        (json!({"type": "work", "then": {"type": "a b"}}), "then.type \"a b\""),
        (of(json!({"type": "work", "queue": "no"})), "then.then.queue: "),
        (of(json!({"type": "work", "max_attempts": 0})), "then.then.max_attempts: "),
        (of(json!({"type": "work", "retry": "no"})), "then.then.retry: "),
        (of(json!({"type": "work", "run_id": "mine"})), "then.then.run_id: "),
        (of(json!({"type": "work", "idempotency_key": "k"})), "then.then.idempotency_key: "),
        (of(json!({"type": "work", "nonsense": 1})), "then.then.nonsense: "),
        (of(json!(["work"])), "then.then: "),
        (chain("work", 17), &format!("{}: is one too many", ["then"; 17].join("."))),
    ] {
        let error = world.try_request("default", "submit", job.clone()).await.unwrap_err();
        assert!(error.message.starts_with(says), "{says}: {error:?}");
    }
    let run = world.submit(chain("work", 16)).await;
    let mut last = run;
    for _ in 0..16 {
        let record = end(&world, &last).await;
        last = record["children"][0].as_str().unwrap().to_owned();
        assert!(last.len() <= 96, "{last}");
    }
    assert_eq!(end(&world, &last).await["state"], "completed");
    for (wrong, says) in [
        ("{", "header Longshore-Then: "),
        (r#"{"type":"work","then":{"type":"work","cost":0}}"#, "header Longshore-Then: then.then.cost: "),
        (r#"{"type":"work","queue":"no"}"#, "header Longshore-Then: then.queue: \"no\" is not declared"),
        (r#"{"type":"work","then":{"type":"work","queue":"no"}}"#, "header Longshore-Then: then.then.queue: "),
    ] {
        let run = world.publish("work").header("Longshore-Then", wrong).json(json!(1)).await;
        let record = end(&world, &run).await;
        let message = record["error"]["message"].as_str().unwrap_or_default();
        assert!(record["error"]["kind"] == "invalid" && message.starts_with(says), "{record}");
    }
}
