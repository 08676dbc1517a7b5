//! Events are published live to all listeners, and kept in the log in the order in which they happened.

use std::collections::BTreeSet;
use std::time::Duration;

use longshore_harness::{Reply, World, eventually};
use serde_json::json;

use crate::{AT_ONCE, served_by, world};

/// Given listeners to one run and to one type's failures, when jobs run, then each gets its events live, as they are in
/// the log.
#[tokio::test]
async fn what_is_published_live_is_in_the_log_under_the_same_id() {
    let world = world().await;
    let _node = world.node().with("types.\"email.send\"", &served_by("fail", AT_ONCE)).start().await;
    let mut failures = world.listen("longshore.events.acme.failed.*.*.email.>").await;
    let mut all = world.live_events("acme").await;
    let other = world.publish("fail").tenant("acme").json(json!({"kind": "permanent"})).await;
    let run =
        world.publish("email.send").tenant("acme").header("Longshore-Tags", "a,b").json(json!({"times": 1})).await;
    // A job may finish before the subscription to it exists; this job does not.
    let slow =
        world.publish("email.send").tenant("acme").header("Longshore-Delay", "300ms").json(json!({"times": 1})).await;
    let mut its = world.listen(&format!("longshore.events.acme.*.*.{slow}.>")).await;

    its.until_published("completed", &slow).await;
    all.until("the end", |live| live.body["event"] == "completed" && live.body["run_id"] == run.as_str()).await;
    failures.until_published("failed", &slow).await;

    assert!(
        failures.received().iter().all(|live| live.subject.ends_with(".email.send") && live.body["event"] == "failed")
    );
    assert!(failures.received().iter().all(|live| live.body["run_id"] != other.as_str()));
    let wait = std::time::Duration::from_secs(20);
    let logged = longshore_harness::eventually("the log's end", wait, async || {
        let events = world.events_as("acme", &slow).await;
        if events.last().is_some_and(|logged| logged.event.event.is_end()) { Ok(events) } else { Err(events.len()) }
    })
    .await;
    let ids: Vec<&str> = logged.iter().map(|logged| logged.event.id.as_str()).collect();
    let received: Vec<&str> = its.received().iter().map(|live| live.body["id"].as_str().unwrap()).collect();
    assert!(ids.ends_with(&received), "live {received:?}, logged {ids:?}");
    for live in all.received() {
        let event = live.event().unwrap();
        let name = event.event;
        assert!(!live.has_headers);
        assert_eq!(live.subject, format!("longshore.events.acme.{name}.main.{}.{}", event.run_id, event.job_type));
        assert_eq!((&live.body["v"], live.body["node"].is_string(), event.round), (&json!(1), true, 1));
        if event.run_id == run {
            assert_eq!(live.body["tags"], json!(["a", "b"]));
        }
    }
    assert!(world.event_log("default").await.is_empty(), "another tenant's log");
}

/// Given results of every size, when jobs complete, then the event has the small results, and the record has all that
/// fit.
#[tokio::test]
async fn results_are_published_and_kept_up_to_their_bounds() {
    let world = world().await;
    let _node = world.node().start().await;
    let text = |bytes: usize| json!("x".repeat(bytes - 2));
    let small = world.publish("echo").json(text(4_096)).await;
    let medium = world.publish("echo").json(text(4_097)).await;
    let large = world.publish("echo").json(text(64 * 1024)).await;
    let too_large = world.publish("echo").json(text(64 * 1024 + 1)).await;

    for (run, published, kept) in
        [(&small, true, true), (&medium, false, true), (&large, false, true), (&too_large, false, false)]
    {
        let end = world.wait(run).await;
        assert_eq!((end.state.as_str(), end.result.is_some()), ("completed", kept));
        assert_eq!(end.rest.get("result_bytes"), (!kept).then_some(&json!(64 * 1024 + 1)));
        let events = world.eventually_reads(run, "enqueued\nstarted 1\ncompleted 1").await;
        let event = &events.last().unwrap().event;
        assert_eq!(event.result.is_some(), published);
        assert!(event.rest["duration_ms"].is_u64());
    }
}

/// Given a type that keeps only its failures, when its jobs complete at once, then they leave only live events.
#[tokio::test]
async fn a_type_may_keep_its_failures_only() {
    let world = world().await;
    let node =
        world.node().with("types.flaky", &served_by("fail", &format!("history = 'failures'\n{AT_ONCE}"))).start().await;
    let mut live = world.live_events("default").await;
    // Jobs that a lane held when the node first read it start through their record; only later jobs can do without one.
    let first = world.publish("noop").json(json!({})).await;
    world.wait(&first).await;
    let smooth = world.publish("flaky").json(json!({"times": 0})).await;
    let rough = world.publish("flaky").json(json!({"times": 1})).await;
    live.until_published("completed", &rough).await;
    node.stop().await;

    let published = |run: &str| live.received().iter().filter(|live| live.body["run_id"] == run).count();
    assert_eq!((published(&smooth), published(&rough)), (3, 5));
    assert!(world.record(&smooth).await.is_none() && world.events(&smooth).await.is_empty());
    assert_eq!(world.record(&rough).await.unwrap().state, "completed");
    world.eventually_reads(&rough, "enqueued\nstarted 1\nfailed 1 retryable\nstarted 2\ncompleted 2").await;
}

/// Given runs that are cancelled in any state, replayed and discarded, when nothing fails meanwhile, then the log has
/// each event once.
#[tokio::test]
async fn what_people_do_to_runs_is_in_the_log_once() {
    let world = world().await;
    let node = world.node().with("types.flaky", &served_by("fail", "max_attempts = 1")).start().await;
    let cancel = async |run: &str| {
        assert_eq!(world.request("runs.cancel", json!({"run_id": run})).await["state"], "cancelled");
    };
    let mut live = world.live_events("default").await;

    let delayed = world.submit(json!({"type": "noop", "delay_ms": 3_600_000})).await;
    live.until_published("scheduled", &delayed).await;
    let bare = world.publish("noop").header("Longshore-Delay", "1h").json(json!({})).await;
    live.until_published("scheduled", &bare).await;
    let running = world.publish("sleep").json(json!({"ms": 600_000})).await;
    // By then the decisions are in the log.
    world.eventually_reads(&running, "enqueued\nstarted 1").await;
    eventually("two schedules", Duration::from_secs(20), async || {
        let stream = world.jetstream().get_stream("LONGSHORE_SCHEDULES").await.unwrap();
        match stream.cached_info().state.messages {
            2 => Ok(()),
            count => Err(format!("there are {count}")),
        }
    })
    .await;
    for run in [&delayed, &bare, &running] {
        cancel(run).await;
    }

    let again = world.publish("flaky").json(json!({"times": 1})).await;
    assert_eq!(world.wait(&again).await.state, "dead");
    world.eventually_dead_letters(1).await;
    assert_eq!(world.request("dlq.replay", json!({"run_id": again})).await["replayed"], 1);
    let ended = |record: &longshore_harness::Record| record.round == 2 && record.state == "dead";
    eventually("the end of its second round", Duration::from_secs(20), async || {
        let record = world.record(&again).await;
        record.as_ref().is_some_and(ended).then_some(()).ok_or(format!("{record:?}"))
    })
    .await;
    let invalid = world.publish("noop").header("Longshore-Max-Attempts", "several").json(json!({})).await;
    world.eventually_dead_letters(2).await;
    assert_eq!(world.request("dlq.discard", json!({"run_id": invalid})).await["discarded"], 1);

    assert!(node.stop().await.success());
    let published = each_once(&world).await;
    for (run, end) in [(&delayed, "cancelled"), (&bare, "cancelled"), (&running, "cancelled"), (&invalid, "discarded")]
    {
        assert!(
            published.iter().any(|id| id.starts_with(&format!("default/{run}/")) && id.ends_with(end)),
            "{run}: {published:?}"
        );
    }
}

/// Given a job that its handler snoozed and whose handler is gone since, when nothing fails meanwhile, then the log has
/// each event once, however often the node looks for a handler.
#[tokio::test]
async fn looking_for_a_handler_again_and_again_is_published_once() {
    let world = world().await;
    let node = world.node().start().await;
    let mut live = world.live_events("default").await;
    let handler = world.handler("napping").start(async |_| Reply::snooze("300ms")).await;
    let run = world.publish("napping").json(json!({})).await;
    live.until("the snooze", |live| live.body["reason"] == "snoozed").await;
    handler.stop().await;
    live.until("the first check that finds no handler", |live| live.body["reason"] == "no_handler_online").await;
    eventually("more checks", Duration::from_secs(20), async || {
        let stream = world.jetstream().get_stream("LONGSHORE_SCHEDULES").await.unwrap();
        // Each check stores two messages there: a schedule, and the job when it is due.
        match stream.cached_info().state.last_sequence {
            8.. => Ok(()),
            last => Err(format!("{last} messages")),
        }
    })
    .await;
    assert!(node.stop().await.success());
    let published = each_once(&world).await;
    assert!(published.iter().all(|id| id.starts_with(&format!("default/{run}/1/"))), "{published:?}");
}

/// Given more jobs than their handler has slots for, when each fails once and its retry, which the node holds, finds
/// all slots taken for longer than a job stays buffered, then the log has each event once.
#[tokio::test]
async fn a_retry_that_waits_for_a_slot_is_published_once() {
    let world = world().await;
    let node = world.node().with("types.slow", &served_by("remote", AT_ONCE)).start().await;
    let handler = world.handler("slow").start(async |job: longshore_harness::Job| {
        tokio::time::sleep(Duration::from_millis(200)).await;
        if job.attempt == 1 { Reply::error(503, "try again") } else { Reply::json(json!(1)) }
    });
    let handler = handler.await;
    let jobs = world.publish("slow").many((0..60).map(|_| json!({}))).await;
    assert!(world.ends(&jobs, Duration::from_secs(240)).await.iter().all(|state| state == "completed"));
    assert!(node.stop().await.success());
    drop(handler);
    let published = each_once(&world).await;
    assert_eq!(published.iter().filter(|id| id.ends_with("/started")).count(), 120);
}

/// The ids in the log; asserts that each appears only once.
async fn each_once(world: &World) -> BTreeSet<String> {
    let mut published = BTreeSet::new();
    let log = world.stored_events("default").await;
    let twice: Vec<_> = log.into_iter().filter_map(|logged| published.replace(logged.event.id)).collect();
    assert!(twice.is_empty(), "{twice:?}");
    published
}
