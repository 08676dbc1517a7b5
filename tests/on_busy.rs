//! What becomes of jobs whose concurrency key is busy: the new one is dropped, only the newest waits, or the one that
//! runs makes way; on several nodes, and whichever of them dies.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use longshore_harness::http::get;
use longshore_harness::{EventName, NodeBuilder, Receipt, Reply, Scrape, World, eventually};
use serde_json::json;
use tokio::sync::Notify;

use crate::http::on_a_free_port;
use crate::{AT_ONCE, WITHIN, served_by, world};

const KEY: &str = "Longshore-Concurrency-Key";

fn node<'w>(world: &'w World, timeout: &str) -> NodeBuilder<'w> {
    let node = world.node().with("node", "lease = '2s'").with("defaults", AT_ONCE);
    let remote = |on_busy: &str| served_by("remote", &format!("on_busy = '{on_busy}'\ntimeout = '{timeout}'"));
    let node = node.with("types.drop", &remote("drop_new")).with("types.keep", &remote("keep_newest"));
    node.with("types.sleep", "on_busy = 'cancel_running'")
}

/// Says of each run that made way that it has a reason, in its record and its event, and no attempt beside those
/// started.
async fn made_way(world: &World, job: &Receipt) {
    let record = world.record(&job.run_id).await.unwrap();
    let error = record.error.expect("it says why");
    assert_eq!((record.state.as_str(), error.kind.as_str()), ("cancelled", "cancelled"), "{}", error.message);
    let events = world.eventually_ends(&job.run_id).await;
    let ids: BTreeSet<_> = events.iter().map(|logged| &logged.event.id).collect();
    assert_eq!(ids.len(), events.len(), "without a fault nothing is published twice: {events:?}");
    let end = &events.last().unwrap().event;
    assert_eq!((&end.event, end.reason.as_deref()), (&EventName::Cancelled, Some("concurrency")), "{events:?}");
}

/// Given two nodes and keys that are busy, when more of their jobs come, then of a type that drops new ones all of them
/// end as cancelled; of a type that keeps the newest all but the last; of a type that cancels the running one each that
/// runs. Jobs of other keys go on, and what was not cancelled completes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_busy_key_drops_new_jobs_keeps_the_newest_or_cancels_the_one_that_runs() {
    let world = world().await;
    let go = Arc::new(Notify::new());
    let mut handlers = Vec::new();
    for job_type in ["drop", "keep"] {
        let gate = Arc::clone(&go);
        let handler = world.handler(job_type).announce("longshore.slots", "64").start(move |job| {
            let gate = Arc::clone(&gate);
            async move {
                if job.json() == json!("first") {
                    gate.notified().await;
                }
                Reply::json(json!(null))
            }
        });
        handlers.push(handler.await);
    }
    let (_one, _other) = (node(&world, "60s").start().await, node(&world, "60s").start().await);
    let mut first = Vec::new();
    for (job_type, handler) in ["drop", "keep"].into_iter().zip(&handlers) {
        first.push(world.publish(job_type).header(KEY, "k").json(json!("first")).await);
        handler.called(1).await;
    }

    let dropped = world.publish("drop").header(KEY, "k").many((0..20).map(|number| json!(number))).await;
    let kept = world.publish("keep").header(KEY, "k").many((0..20).map(|number| json!(number))).await;

    let (last, superseded) = kept.split_last().unwrap();
    for job in dropped.iter().chain(superseded) {
        world.wait(&job.run_id).await;
        made_way(&world, job).await;
    }
    for job_type in ["drop", "keep"] {
        let other = world.publish(job_type).header(KEY, "another").json(json!(1)).await;
        assert_eq!(world.wait(&other).await.state, "completed");
    }
    go.notify_waiters();
    for run in first.iter().chain([&last.run_id]) {
        assert_eq!(world.wait(run).await.state, "completed");
    }
    assert_eq!((handlers[0].calls().len(), handlers[1].calls().len()), (2, 3), "none of those that made way");

    let mut live = world.live_events("default").await;
    let mut running = Vec::new();
    for _ in 0..4 {
        let job = world.publish("sleep").header(KEY, "k").many([json!({"ms": 50_000})]).await.remove(0);
        live.until_published("started", &job.run_id).await;
        running.push(job);
    }
    let quick = world.publish("sleep").header(KEY, "k").json(json!({"ms": 1})).await;
    assert_eq!(world.wait(&quick).await.state, "completed");
    for job in &running {
        made_way(&world, job).await;
    }
}

/// Given an idle node, when the first job of a free key comes, then it starts without being put off, whatever its type
/// does with the jobs of a busy key.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_first_job_of_a_free_key_starts_at_once() {
    let world = world().await;
    let of = |policy: &str| format!("handler = 'noop'\n{policy}");
    let mut node = node(&world, "60s").with("types.ordered", &of("ordered = true"));
    let on_busy = ["wait", "drop_new", "keep_newest", "cancel_running"];
    for word in on_busy {
        node = node.with(&format!("types.{word}"), &of(&format!("on_busy = '{word}'")));
    }
    let _node = node.start().await;
    for job_type in on_busy.into_iter().chain(["ordered"]) {
        for key in ["a", "b", "c"] {
            let run = world.publish(job_type).header(KEY, key).json(json!(null)).await;
            let events = world.eventually_ends(&run).await;
            let is_put_off = events.iter().any(|logged| logged.event.event == EventName::Deferred);
            assert!(
                !is_put_off && events.last().unwrap().event.event == EventName::Completed,
                "{job_type}: {events:?}"
            );
        }
    }
}

/// Given a burst of jobs behind one that is at work, when their node dies at each of the steps by which a job comes to
/// its key's line and another makes way, and two others go on, then every job ends, as completed or cancelled; of each
/// burst the newest completes where it is to be kept, and where new ones are dropped, one does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_death_loses_the_job_that_a_busy_key_keeps() {
    let world = world().await;
    let answers = |_| async { Reply::json(json!(null)) };
    let _drop = world.handler("drop").announce("longshore.slots", "64").start(answers).await;
    let _keep = world.handler("keep").announce("longshore.slots", "64").start(answers).await;
    let mut live = world.live_events("default").await;
    let burst = |job_type: &'static str, key: &'static str| {
        let publish = world.publish(job_type).header(KEY, key);
        async move { (job_type, publish.many((0..12).map(|_| json!({"ms": 20}))).await) }
    };
    for point in ["before-line", "after-line", "after-make-way"] {
        let doomed = node(&world, "60s").env("LONGSHORE_FAIL_POINTS", &format!("{point}=kill")).start().await;
        let long = world.publish("sleep").header(KEY, point).json(json!({"ms": 50_000})).await;
        if point == "after-make-way" {
            live.until_published("started", &long).await;
        }
        let mut bursts = vec![burst("sleep", point).await];
        if point == "after-line" {
            bursts.extend([burst("keep", point).await, burst("drop", point).await]);
        }
        doomed.wait_exit(WITHIN).await;
        let others = [node(&world, "60s").start().await, node(&world, "60s").start().await];
        for (job_type, jobs) in bursts {
            // Less than the time limit of the attempts that died.
            let ends = world.ends(&jobs, Duration::from_secs(50)).await;
            let kinds: BTreeSet<&str> = ends.iter().map(String::as_str).collect();
            assert!(kinds.is_subset(&["completed", "cancelled"].into()), "{point}, {job_type}: {ends:?}");
            assert!(kinds.contains("completed"), "{point}, {job_type}: {ends:?}");
            if job_type != "drop" {
                assert_eq!(ends.last().unwrap(), "completed", "{point}, {job_type}: {ends:?}");
            }
        }
        assert_eq!(world.wait(&long).await.state, "cancelled", "{point}");
        for node in others {
            node.stop().await;
        }
    }
    world.history(&[], Vec::new()).await.assert_sound();
}

/// Given a small bucket of keys that is nearly full, when jobs of many more keys come than it has room for at once,
/// then all of them are done: what is stored of a key goes with its last run. And when it is full for good, then other
/// jobs go on, those of new keys wait by themselves and say for what, and so does the node.
#[tokio::test]
async fn keys_without_jobs_take_no_room_and_a_full_bucket_holds_up_only_new_keys() {
    let world = world().await;
    let node = world.node().with("storage", "concurrency_max_bytes = '1MiB'");
    let node = on_a_free_port(node.with("types.echo", "on_busy = 'drop_new'")).start().await;
    let full = |text: &str| text.contains("longshore_concurrency has no room for more keys");
    crate::fill(&world, "concurrency.lines", 0..70).await;
    let job = async |key: String| world.publish("echo").header(KEY, &key).send("1").await.unwrap();
    let mut jobs = Vec::new();
    for some in 0..20 {
        jobs.extend(join_all((0..50).map(|key| job(format!("{some} {key}")))).await);
    }
    let states = world.ends(&jobs, WITHIN).await;
    assert!(states.iter().all(|state| state == "completed"), "{states:?}");
    eventually("keys that are gone", WITHIN, async || match world.stored("KV_longshore_concurrency").await {
        count @ ..=75 => Ok(count),
        count => Err(format!("there are {count}")),
    })
    .await;

    crate::fill(&world, "concurrency.lines", 70..90).await;
    crate::has_no_room(&world, "concurrency").await;
    let waits = job("new".to_owned()).await;
    let quick = world.publish("noop").json(json!({})).await;
    assert_eq!(world.wait(&quick).await.state, "completed");
    eventually("a job that says for what it waits", WITHIN, async || {
        let run = world.request("runs.get", json!({"run_id": waits.run_id})).await;
        let said = run["waiting_for"]["message"].as_str().unwrap_or_default();
        if said.contains("longshore_concurrency") { Ok(()) } else { Err(run.to_string()) }
    })
    .await;
    let ready = get(node.http(), "/readyz").await.unwrap();
    assert!(ready.status == 200 && full(&ready.body), "{}", ready.body);
    assert_eq!(Scrape::of(&node).await.value("longshore_key_buckets_full", &[]), Some(1.0));

    let bucket = world.jetstream().get_stream("KV_longshore_concurrency").await.unwrap();
    bucket.purge().filter("$KV.longshore_concurrency.lines.filler.>").await.unwrap();
    assert_eq!(world.wait(&waits.run_id).await.state, "completed");
    assert!(node.stop().await.success());
}
