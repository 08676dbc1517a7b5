//! A cancelled run ends as cancelled, in whatever state it is, and only once.

use std::time::Duration;

use longshore_harness::{Reply, World};
use serde_json::{Value, json};

use crate::{served_by, times, without_node, workers, world};

async fn cancel(world: &World, run: &str) -> Value {
    world.request("runs.cancel", json!({"run_id": run})).await
}

/// The cancelled run's record, and its events as published so far.
async fn reads(world: &World, run: &str, events: &str) {
    assert_eq!(world.wait(run).await.state, "cancelled");
    world.eventually_reads(run, events).await;
}

/// Given jobs that wait in their lane, when they are cancelled, then they leave it and never start.
#[tokio::test]
async fn a_waiting_job_never_starts() {
    let world = world().await;
    let node = workers(world.node(), 1).start().await;
    let mut live = world.live_events("default").await;
    let busy = world.publish("sleep").json(json!({"ms": 600_000})).await;
    live.until_published("started", &busy).await;
    let bare = world.publish("noop").priority(7).header("Longshore-Keep", "1h").json(json!(1)).await;
    let own = world.publish("noop").priority(7).header("Longshore-Run-Id", "mine").json(json!(2)).await;
    let submitted = world.submit(json!({"type": "noop", "priority": 7, "run_id": "mine-too"})).await;
    let keyed = world.submit(json!({"type": "noop", "priority": 7, "idempotency_key": "k"})).await;

    for run in [&bare, &own, &submitted, &keyed] {
        let record = cancel(&world, run).await;
        assert_eq!((&record["state"], &record["type"]), (&json!("cancelled"), &json!("noop")), "{record}");
        reads(&world, run, "enqueued\ncancelled").await;
        assert_eq!(cancel(&world, run).await["state"], "cancelled", "once more changes nothing");
    }
    assert_eq!(world.depth("main", 7).await, 0);
    // Had a job been left in its lane, it would run once the record is gone.
    let records = world.jetstream().get_stream("KV_longshore_runs").await.unwrap();
    let record = records.get_last_raw_message_by_subject(&format!("$KV.longshore_runs.default.{bare}")).await.unwrap();
    assert_eq!(record.headers.get("Nats-TTL").map(|ttl| ttl.as_str()), Some("604800s"));
    // The worker is free again, and finds none of them.
    cancel(&world, &busy).await;
    assert_eq!(world.wait(&busy).await.state, "cancelled");
    node.stop().await;
    for run in [&bare, &own, &submitted, &keyed] {
        assert!(!world.events(run).await.iter().any(|logged| logged.event.event.to_string() == "started"));
    }
}

/// Given jobs that wait for their time or their next attempt, when they are cancelled, then neither job nor schedule is
/// left.
#[tokio::test]
async fn what_waits_for_its_time_is_cancelled() {
    let world = world().await;
    let backoff = "backoff = { base = '1h', factor = 1.0, max = '1h', jitter = 'none' }";
    let node = world.node().with("types.flaky", &served_by("fail", backoff)).start().await;
    let mut live = world.live_events("default").await;
    let delayed = world.publish("noop").header("Longshore-Delay", "1h").json(json!(1)).await;
    let submitted = world.submit(json!({"type": "noop", "delay_ms": 3_600_000})).await;
    let retrying = world.publish("flaky").json(json!({})).await;
    live.until_published("scheduled", &delayed).await;
    live.until_published("failed", &retrying).await;

    for (run, events) in [
        (&delayed, "scheduled\ncancelled"),
        (&submitted, "scheduled\ncancelled"),
        (&retrying, "enqueued\nstarted 1\nfailed 1 retryable\ncancelled"),
    ] {
        // The record is stored first, its schedule a moment later.
        assert_eq!(cancel(&world, run).await["state"], "cancelled");
        reads(&world, run, events).await;
    }
    node.stop().await;
}

/// Given running handlers, in the node and remote, when their runs are cancelled, then they get a request to stop, and
/// the end is published once, with nothing behind it.
#[tokio::test]
async fn a_running_job_gets_a_request_to_stop_and_ends() {
    let world = world().await;
    let _node = world.node().start().await;
    let mut live = world.live_events("default").await;
    let (stopped, mut has_stopped) = tokio::sync::mpsc::unbounded_channel();
    let handler = world.handler("slow").start(move |job: longshore_harness::Job| {
        let stopped = stopped.clone();
        async move {
            while job.ask("heartbeat", "").await != Some(true) {}
            stopped.send(job.ask("progress", r#"{"percent":99}"#).await).unwrap();
            Reply::json(json!("stopped"))
        }
    });
    let handler = handler.await;
    let here = world.publish("sleep").json(json!({"ms": 600_000})).await;
    let elsewhere = world.publish("slow").json(json!({})).await;
    let mut requests = world.listen(&format!("longshore.cancel.default.{elsewhere}")).await;
    for run in [&here, &elsewhere] {
        live.until_published("started", run).await;
        let record = cancel(&world, run).await;
        assert_eq!((&record["state"], &record["attempt"]), (&json!("cancelled"), &json!(1)), "{record}");
        let error = json!({"kind": "cancelled", "message": "the run was cancelled"});
        assert_eq!(record["attempts"][0]["error"], error, "{record}");
        reads(&world, run, "enqueued\nstarted 1\ncancelled").await;
    }
    requests.until("the request to the handler", |_| true).await;
    handler.called(1).await;
    // What it reports then, the node takes and does not publish; what happens later comes behind it.
    assert_eq!(has_stopped.recv().await, Some(Some(true)));
    let later = world.publish("noop").json(json!(1)).await;
    live.until_published("completed", &later).await;
    reads(&world, &elsewhere, "enqueued\nstarted 1\ncancelled").await;
    assert!(live.received().iter().all(|live| live.body["event"] != "progress"));
    // The job's message is gone, too.
    crate::is_emptied(&world).await;
}

/// Given a job that a draining node has put back, when its run is cancelled through another node, then the job leaves
/// its lane: it would run once the record of its run is gone.
#[tokio::test]
async fn a_job_that_a_draining_node_put_back_leaves_its_lane() {
    let world = world().await;
    let first = world.node().with("node", "shutdown_grace = '100ms'").start().await;
    let mut live = world.live_events("default").await;
    let run = world.publish("sleep").json(json!({"ms": 600_000})).await;
    live.until_published("started", &run).await;
    first.sigterm();
    first.wait_exit(Duration::from_secs(60)).await;
    assert_eq!(world.depth("main", 5).await, 1);

    // This node does not serve its queue.
    let _other = world.node().name("other").config("[queues.other]\n").start().await;
    cancel(&world, &run).await;
    assert_eq!(world.depth("main", 5).await, 0);
    reads(&world, &run, "enqueued\nstarted 1\nreleased 1\ncancelled").await;
}

/// Given a run that has ended, or never existed, when it is cancelled, then the answer says so.
#[tokio::test]
async fn what_has_ended_stays_as_it_is() {
    let world = world().await;
    let _node = world.node().start().await;
    let done = world.publish("noop").json(json!(1)).await;
    world.wait(&done).await;
    for (run, code) in [(done.as_str(), 409), ("main-p5-99", 404), ("unknown", 404), ("a b", 400)] {
        let error = world.try_request("default", "runs.cancel", json!({"run_id": run})).await.unwrap_err();
        assert_eq!(error.code, code, "{run}: {error}");
    }
    for body in [json!({}), json!({"run_id": "x", "queue": "main"}), json!({"dry_run": true, "run_id": "x"})] {
        assert_eq!(world.try_request("default", "runs.cancel", body).await.unwrap_err().code, 400);
    }
    assert_eq!(world.wait(&done).await.state, "completed");
}

/// Given many jobs of two types, tenants and states, when those that match a filter are cancelled, then no others are.
#[tokio::test]
async fn those_that_fit_a_filter_are_cancelled() {
    let world = world().await;
    let node = without_node(world.node()).await;
    let mail = world.publish("mail").many((0..300).map(|n| json!(n))).await;
    let late = world.publish("mail").header("Longshore-Delay", "1h").many((0..5).map(|n| json!(n))).await;
    let other = world.publish("noop").many((0..5).map(|n| json!(n))).await;
    let others = world.publish("mail").tenant("acme").json(json!(1)).await;
    node.restart().await;
    for receipt in &late {
        world.eventually_is(&receipt.run_id, "scheduled", Duration::from_secs(20)).await;
    }

    let answer = world.request("runs.cancel", json!({"type": "mail", "limit": 100})).await;
    assert_eq!(answer, json!({"cancelled": 100, "failed": [], "more": true}));
    let answer = world.request("runs.cancel", json!({"type": "mail"})).await;
    assert_eq!(answer, json!({"cancelled": 205, "failed": [], "more": false}));
    for receipt in mail.iter().chain(&late) {
        assert_eq!(world.wait(&receipt.run_id).await.state, "cancelled");
    }
    for receipt in &other {
        assert_eq!(world.wait(&receipt.run_id).await.state, "completed");
    }
    let record = world.record_as("acme", &others).await;
    assert_ne!(record.map(|record| record.state), Some("cancelled".to_owned()));
}

/// Given two nodes with full hands, when jobs are cancelled that wait, are in a node's hands, begin, run or end, then
/// the log has no event twice.
#[tokio::test]
async fn without_a_fault_no_event_is_logged_twice() {
    let world = world().await;
    let _nodes = [workers(world.node(), 2).start().await, workers(world.node(), 2).start().await];
    let runs = world.publish("sleep").many((0..300).map(|_| json!({"ms": 5}))).await;
    let cancels = runs.iter().zip(0_u64..).map(|(receipt, at)| {
        let world = &world;
        async move {
            tokio::time::sleep(Duration::from_millis(at * 7 % 250)).await;
            match world.try_request("default", "runs.cancel", json!({"run_id": receipt.run_id})).await {
                Err(error) if error.code != 409 => panic!("{}: {error}", receipt.run_id),
                _ => {}
            }
        }
    });
    futures_util::future::join_all(cancels).await;
    let states = world.ends(&runs, Duration::from_secs(120)).await;
    assert!(states.iter().any(|state| state == "cancelled"), "{states:?}");
    crate::is_emptied(&world).await;

    let mut logged = world.stored_events("default").await;
    let count = logged.len();
    logged.sort_by(|one, other| one.event.id.cmp(&other.event.id));
    logged.dedup_by(|one, other| one.event.id == other.event.id);
    assert_eq!(count - logged.len(), 0, "so many of {count} events are in the log twice");
}

/// Given a job that has just started and others behind it, when all are cancelled, then the running one is stopped
/// last, so that its worker starts none of the others.
#[tokio::test]
async fn what_was_just_begun_is_stopped_last() {
    let world = world().await;
    let _node = workers(world.node(), 1).start().await;
    let mut live = world.live_events("default").await;
    for _ in 0..3 {
        let busy = world.publish("sleep").json(json!({"ms": 600_000})).await;
        live.until_published("started", &busy).await;
        let waiting = world.publish("noop").priority(7).many((0..30).map(|n| json!(n))).await;
        let answer = world.request("runs.cancel", json!({"queue": "main"})).await;
        assert_eq!(answer, json!({"cancelled": 31, "failed": [], "more": false}));
        for run in waiting.iter().map(|receipt| &receipt.run_id).chain([&busy]) {
            assert_eq!(world.wait(run).await.state, "cancelled");
        }
    }
}

/// Given a node that is killed between the record of a cancellation and its follow-up, when another node runs, then the
/// run is cancelled all the same, its events are published, and it never starts.
#[tokio::test]
async fn a_cancellation_that_was_cut_off_is_finished() {
    let world = world().await;
    let mut live = world.live_events("default").await;
    for number in 0..times("LONGSHORE_TEST_KILLS", 1) {
        let first = workers(world.node(), 1)
            .with("node", "lease = '2s'")
            .env("LONGSHORE_FAIL_POINTS", "after-cancel=kill")
            .start()
            .await;
        let busy = world.publish("sleep").json(json!({"ms": 60_000})).await;
        live.until_published("started", &busy).await;
        let waits = world.publish("noop").priority(7).json(json!(1)).await;
        let asked = world.try_request("default", "runs.cancel", json!({"run_id": waits})).await;
        assert!(asked.is_err(), "the cancel killed the node");
        first.wait_exit(Duration::from_secs(20)).await;

        let second = world.node().name(&format!("second-{number}")).with("node", "lease = '2s'").start().await;
        reads(&world, &waits, "enqueued\ncancelled").await;
        world.request("runs.cancel", json!({"run_id": busy})).await;
        world.wait(&busy).await;
        second.stop().await;
    }
}
