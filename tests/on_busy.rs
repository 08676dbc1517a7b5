//! What becomes of jobs whose concurrency key is busy: the new one is dropped, only the newest waits, or the one that
//! runs makes way; on several nodes, and whichever of them dies.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use longshore_harness::{EventName, NodeBuilder, Receipt, Reply, World};
use serde_json::json;
use tokio::sync::Notify;

use crate::{AT_ONCE, served_by, world};

const WITHIN: Duration = Duration::from_secs(240);
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
