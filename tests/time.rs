//! A job does not start before its time, or after its expiry, and does not run for longer than its limit.

use std::time::Duration;

use futures_util::future::join_all;
use longshore_harness::{Reply, Scrape, reads};
use serde_json::json;

use crate::http::on_a_free_port;
use crate::{AT_ONCE, in_future, served_by, workers, world};

const SCHEDULED: &str = "scheduled\nenqueued\nstarted 1\ncompleted 1";

/// Given a time in a header, when a job is published bare, then it waits for that time, and its record says so.
#[tokio::test]
async fn a_bare_job_waits_for_its_time() {
    let world = world().await;
    let node = world.node().start().await;
    let mut live = world.live_events("default").await;
    let at = in_future(Duration::from_millis(1_500));
    let by_time = world.publish("echo").header("Longshore-Run-At", &at).json(json!(1)).await;
    let by_delay = world.publish("echo").header("Longshore-Delay", "1500ms").json(json!(2)).await;

    for run in [&by_time, &by_delay] {
        live.until_published("scheduled", run).await;
        let waits = world.request("runs.get", json!({"run_id": run})).await;
        assert_eq!((waits["state"].as_str(), waits["attempt"].as_u64()), (Some("scheduled"), None), "{waits}");
    }
    let waits = world.request("runs.get", json!({"run_id": by_time})).await;
    assert_eq!(waits["run_at"].as_str().unwrap().parse::<jiff::Timestamp>().unwrap(), at.parse().unwrap());
    for (run, result) in [(&by_time, 1), (&by_delay, 2)] {
        let end = world.wait(run).await;
        assert_eq!((end.state.as_str(), end.result), ("completed", Some(json!(result))));
        world.eventually_reads(run, SCHEDULED).await;
    }
    node.stop().await;
    world.history(&[], Vec::new()).await.assert_sound(); // no job started early
}

/// Given a time in the past, when a job names it, then the job runs at once.
#[tokio::test]
async fn a_time_that_is_over_is_no_time() {
    let world = world().await;
    let _node = world.node().start().await;
    let bare = world.publish("noop").header("Longshore-Run-At", "2020-01-01T00:00:00Z").json(json!({})).await;
    let submitted = world.submit(json!({"type": "noop", "run_at": "2020-01-01T00:00:00Z"})).await;
    for run in [bare, submitted] {
        assert_eq!(world.wait(&run).await.state, "completed");
        world.eventually_reads(&run, "enqueued\nstarted 1\ncompleted 1").await;
    }
}

/// Given a delay in a request, when the request is answered, then the job is durably scheduled.
#[tokio::test]
async fn a_submitted_job_waits_for_its_time() {
    let world = world().await;
    let node = world.node().start().await;
    let at = in_future(Duration::from_millis(1_200));
    let by_delay = world.request("submit", json!({"type": "echo", "payload": 1, "delay_ms": 1_200})).await;
    let by_time = world.request("submit", json!({"type": "echo", "payload": 2, "run_at": at, "run_id": "mine"})).await;
    assert_eq!((by_delay["state"].as_str(), by_delay["deduplicated"].as_bool()), (Some("scheduled"), Some(false)));
    assert_eq!((by_time["state"].as_str(), by_time["run_id"].as_str()), (Some("scheduled"), Some("mine")));

    node.kill9().await;
    node.restart().await;

    for answer in [by_delay, by_time] {
        let run = answer["run_id"].as_str().unwrap();
        let end = world.wait(run).await;
        assert_eq!(end.state, "completed");
        world.eventually_reads(run, SCHEDULED).await;
    }
    node.stop().await;
    world.history(&[], Vec::new()).await.assert_sound();
}

/// Given a job that waits behind another, when its time to start is over, then it ends as expired and never starts.
#[tokio::test]
async fn a_job_that_is_not_started_in_time_expires() {
    let world = world().await;
    let node = workers(world.node(), 1).start().await;
    let mut live = world.live_events("default").await;
    let sleeper = world.publish("sleep").json(json!({"ms": 700})).await;
    live.until_published("started", &sleeper).await;
    let late = world.publish("noop").header("Longshore-Expires-In", "200ms").json(json!({})).await;
    let soon = in_future(Duration::from_millis(200));
    let too_late = world.publish("noop").header("Longshore-Expires-At", &soon).json(json!({})).await;
    let submitted = world.submit(json!({"type": "noop", "expires_in_ms": 200})).await;
    let in_time = world.publish("noop").header("Longshore-Expires-In", "5m").json(json!({})).await;

    for run in [&late, &too_late, &submitted] {
        let end = world.wait(run).await;
        assert_eq!((end.state.as_str(), end.attempt), ("expired", 0), "{}", world.report(run).await);
        world.eventually_reads(run, "enqueued\nexpired").await;
    }
    assert_eq!(world.wait(&in_time).await.state, "completed");
    node.stop().await;
    assert!(world.dead_letters("default").await.is_empty());
    world.history(&[], Vec::new()).await.assert_sound();
}

/// Given a delay and a shorter expiry, when the schedule fires, then the expiry counts from that moment.
#[tokio::test]
async fn a_scheduled_job_expires_by_the_time_of_its_schedule() {
    let world = world().await;
    let _node = world.node().start().await;
    let publish = world.publish("noop").header("Longshore-Delay", "1s").header("Longshore-Expires-In", "900ms");
    let run = publish.json(json!({})).await;
    assert_eq!(world.wait(&run).await.state, "completed");
    let over = world.publish("noop").header("Longshore-Delay", "1s");
    let run = over.header("Longshore-Expires-At", &in_future(Duration::from_millis(500))).json(json!({})).await;
    assert_eq!(world.wait(&run).await.state, "expired");
    world.eventually_reads(&run, "scheduled\nenqueued\nexpired").await;
}

/// Given a time limit, when an attempt takes longer, then it fails with a time-out and the next one follows.
#[tokio::test]
async fn an_attempt_ends_at_its_time_limit() {
    let world = world().await;
    let limits = format!("timeout = '200ms'\nmax_attempts = 2\n{AT_ONCE}");
    let node = world.node().with("types.nap", &served_by("sleep", &limits)).start().await;
    let by_type = world.publish("nap").json(json!({"ms": 60_000})).await;
    let by_job = world.publish("sleep").header("Longshore-Timeout", "200ms").header("Longshore-Max-Attempts", "1");
    let by_job = by_job.json(json!({"ms": 60_000})).await;
    let generous = world.publish("nap").header("Longshore-Timeout", "20s").json(json!({"ms": 400})).await;

    let end = world.wait(&by_type).await;
    assert_eq!((end.state.as_str(), end.attempt, end.error.unwrap().kind.as_str()), ("dead", 2, "timeout"));
    let report = "enqueued\nstarted 1\nfailed 1 timeout\nstarted 2\nfailed 2 timeout\ndlq timeout";
    world.eventually_reads(&by_type, report).await;
    let end = world.wait(&by_job).await;
    assert_eq!((end.state.as_str(), end.attempt, end.error.unwrap().kind.as_str()), ("dead", 1, "timeout"));
    assert_eq!(world.wait(&generous).await.state, "completed");
    node.stop().await;
    world.history(&[], Vec::new()).await.assert_sound();
}

/// Given a type whose jobs have needed two seconds lately, when a job comes whose deadline leaves less, then it is not
/// started only to fail, and the node says so; a deadline before the end of the time limit keeps no job from starting.
#[tokio::test]
async fn a_job_that_has_too_little_time_left_is_not_started() {
    let world = world().await;
    let node = on_a_free_port(world.node()).with("types.nap", &served_by("sleep", "timeout = '10m'")).start().await;
    let nap = async |deadline: &str| {
        world.publish("nap").header("Longshore-Deadline", deadline).json(json!({"ms": 2_000})).await
    };
    let runs = join_all((0..20).map(|_| nap("5m"))).await;
    for run in &runs {
        assert_eq!(world.wait(run).await.state, "completed");
    }
    let late = nap("1500ms").await;
    let end = world.wait(&late).await;
    let error = end.error.expect("it has failed");
    assert_eq!((end.state.as_str(), end.attempt, error.kind.as_str()), ("dead", 0, "timeout"));
    assert!(error.message.starts_with("not started: the run's deadline leaves "), "{}", error.message);
    world.eventually_reads(&late, "enqueued\ndlq timeout").await;
    let health = world.request("health", json!({})).await;
    assert!(health["warnings"].to_string().contains("1 job was not started in the last two minutes"), "{health}");
    let shed = Scrape::of(&node).await.sum("longshore_jobs_shed_total", &[("reason", "no_time_left")]);
    assert!((shed - 1.0).abs() < 1e-9, "{shed}");
    let without = world.publish("nap").json(json!({"ms": 10})).await;
    assert_eq!(world.wait(&without).await.state, "completed");
}

/// Given a deadline for the whole run, when it passes, then the run is dead of kind timeout, in whatever state it was.
#[tokio::test]
async fn a_run_ends_at_its_deadline() {
    let world = world().await;
    let long = served_by("fail", "backoff = { base = '1h', factor = 1.0, max = '1h', jitter = 'none' }");
    let node = workers(world.node(), 1).with("types.flaky", &long).start().await;
    let mut live = world.live_events("default").await;
    let deadline = in_future(Duration::from_millis(600));
    let running = world.publish("sleep").header("Longshore-Deadline", &deadline).json(json!({"ms": 60_000})).await;
    live.until_published("started", &running).await;
    let waiting = world.publish("noop").header("Longshore-Deadline", "100ms").json(json!({})).await;
    let retrying = world.publish("flaky").header("Longshore-Deadline", "20m").json(json!({})).await;
    let submitted = world.submit(json!({"type": "noop", "deadline": "100ms"})).await;

    for (run, report) in [
        (&running, "enqueued\nstarted 1\nfailed 1 timeout\ndlq timeout"),
        (&waiting, "enqueued\ndlq timeout"),
        (&submitted, "enqueued\ndlq timeout"),
    ] {
        let end = world.wait(run).await;
        let kind = end.error.as_ref().map(|error| error.kind.clone());
        assert_eq!((end.state.as_str(), kind.as_deref()), ("dead", Some("timeout")), "{}", world.report(run).await);
        world.eventually_reads(run, report).await;
    }
    let end = world.wait(&retrying).await;
    assert_eq!((end.state.as_str(), end.attempt, end.error.unwrap().kind.as_str()), ("dead", 1, "timeout"));
    node.stop().await;
    assert!(reads(&world.events(&retrying).await).ends_with("dlq timeout"));
    assert_eq!(world.dead_letters("default").await.len(), 4);
    world.history(&[], Vec::new()).await.assert_sound();
}

/// Given jobs that nobody can start, as no handler is there or it is full, when their deadline comes before the next
/// look for one, then they end dead of kind timeout, and neither events, record nor metrics have an attempt that never
/// began.
#[tokio::test]
async fn a_job_that_no_node_starts_before_its_deadline_has_no_attempt() {
    let world = world().await;
    let node = on_a_free_port(world.node()).start().await;
    let full = world.handler("full").start(async |_| Reply::error(429, "full")).await;
    for (job_type, reason) in [("rare", "no_handler_online"), ("full", "busy")] {
        let run = world.publish(job_type).header("Longshore-Deadline", "1800ms").json(json!({})).await;
        let end = world.wait(&run).await;
        let error = end.error.expect("it has failed");
        assert_eq!(
            (end.state.as_str(), end.attempt, end.attempts.len()),
            ("dead", 0, 0),
            "{}",
            world.report(&run).await
        );
        assert_eq!((error.kind.as_str(), end.started_at), ("timeout", None), "{}", error.message);
        world.eventually_reads(&run, &format!("enqueued\ndeferred {reason}\ndlq timeout")).await;
        let scrape = Scrape::of(&node).await;
        for counter in ["longshore_attempts_started_total", "longshore_attempts_failed_total"] {
            assert_eq!(scrape.sum(counter, &[("type", job_type)]) as u64, 0, "{counter}");
        }
    }
    assert!(!full.calls().is_empty());
    let shed = Scrape::of(&node).await.sum("longshore_jobs_shed_total", &[("reason", "deadline")]);
    assert_eq!(shed as u64, 2);
    node.stop().await;
    assert_eq!(world.dead_letters("default").await.len(), 2);
    world.history(&[], Vec::new()).await.assert_sound();
}
