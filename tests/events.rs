//! What happened is told live, to whom listens, and kept in the log in the order in which it happened.

use serde_json::json;

use crate::{AT_ONCE, served_by, world};

/// Given listeners to one run and to one type's failures, when jobs run, then each hears its own, live, as in the log.
#[tokio::test]
async fn what_is_told_live_is_in_the_log_under_the_same_id() {
    let world = world().await;
    let _node = world.node().with("types.\"email.send\"", &served_by("fail", AT_ONCE)).start().await;
    let mut failures = world.listen("longshore.events.acme.failed.*.*.email.>").await;
    let mut all = world.live_events("acme").await;
    let other = world.publish("fail").tenant("acme").json(json!({"kind": "permanent"})).await;
    let run =
        world.publish("email.send").tenant("acme").header("Longshore-Tags", "a,b").json(json!({"times": 1})).await;
    // A job may be faster than the subscription to it; this one is not.
    let slow =
        world.publish("email.send").tenant("acme").header("Longshore-Delay", "300ms").json(json!({"times": 1})).await;
    let mut its = world.listen(&format!("longshore.events.acme.*.*.{slow}.>")).await;

    its.until_told("completed", &slow).await;
    all.until("the end", |live| live.body["event"] == "completed" && live.body["run_id"] == run.as_str()).await;
    failures.until_told("failed", &slow).await;

    assert!(
        failures.heard().iter().all(|live| live.subject.ends_with(".email.send") && live.body["event"] == "failed")
    );
    assert!(failures.heard().iter().all(|live| live.body["run_id"] != other.as_str()));
    let wait = std::time::Duration::from_secs(20);
    let logged = longshore_harness::eventually("the log's end", wait, async || {
        let events = world.events_as("acme", &slow).await;
        if events.last().is_some_and(|logged| logged.event.event.is_end()) { Ok(events) } else { Err(events.len()) }
    })
    .await;
    let ids: Vec<&str> = logged.iter().map(|logged| logged.event.id.as_str()).collect();
    let heard: Vec<&str> = its.heard().iter().map(|live| live.body["id"].as_str().unwrap()).collect();
    assert!(ids.ends_with(&heard), "live {heard:?}, logged {ids:?}");
    for live in all.heard() {
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

/// Given results of every size, when jobs complete, then the event has the small ones, the record all that fit.
#[tokio::test]
async fn results_are_told_and_kept_up_to_their_bounds() {
    let world = world().await;
    let _node = world.node().start().await;
    let text = |bytes: usize| json!("x".repeat(bytes - 2));
    let small = world.publish("echo").json(text(4_096)).await;
    let medium = world.publish("echo").json(text(4_097)).await;
    let large = world.publish("echo").json(text(64 * 1024)).await;
    let too_large = world.publish("echo").json(text(64 * 1024 + 1)).await;

    for (run, told, kept) in
        [(&small, true, true), (&medium, false, true), (&large, false, true), (&too_large, false, false)]
    {
        let end = world.wait(run).await;
        assert_eq!((end.state.as_str(), end.result.is_some()), ("completed", kept));
        assert_eq!(end.rest.get("result_bytes"), (!kept).then_some(&json!(64 * 1024 + 1)));
        let events = world.eventually_reads(run, "enqueued\nstarted 1\ncompleted 1").await;
        let event = &events.last().unwrap().event;
        assert_eq!(event.result.is_some(), told);
        assert!(event.rest["duration_ms"].is_u64());
    }
}

/// Given a type of which failures alone are kept, when its jobs complete at once, then live events are all there is.
#[tokio::test]
async fn a_type_may_keep_its_failures_only() {
    let world = world().await;
    let node =
        world.node().with("types.flaky", &served_by("fail", &format!("history = 'failures'\n{AT_ONCE}"))).start().await;
    let mut live = world.live_events("default").await;
    // What a lane held when the node first saw it is started by the record; only later jobs can do without one.
    let first = world.publish("noop").json(json!({})).await;
    world.wait(&first).await;
    let smooth = world.publish("flaky").json(json!({"times": 0})).await;
    let rough = world.publish("flaky").json(json!({"times": 1})).await;
    live.until_told("completed", &rough).await;
    node.stop().await;

    let told = |run: &str| live.heard().iter().filter(|live| live.body["run_id"] == run).count();
    assert_eq!((told(&smooth), told(&rough)), (3, 5));
    assert!(world.record(&smooth).await.is_none() && world.events(&smooth).await.is_empty());
    assert_eq!(world.record(&rough).await.unwrap().state, "completed");
    world.eventually_reads(&rough, "enqueued\nstarted 1\nfailed 1 retryable\nstarted 2\ncompleted 2").await;
}
