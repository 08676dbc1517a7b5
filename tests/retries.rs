//! Failures are retried by their policy; a failure that cannot succeed is not.

use serde_json::json;

use crate::{AT_ONCE, SOON, served_by, times, world};

/// Given a job that fails permanently, when it runs, then it is not retried.
#[tokio::test]
async fn a_permanent_failure_is_not_tried_again() {
    let world = world().await;
    let _node = world.node().start().await;
    let receipt = world.publish("fail").send(json!({"kind": "permanent"}).to_string()).await.unwrap();

    let end = world.wait(&receipt.run_id).await;

    assert_eq!((end.state.as_str(), end.attempt), ("dead", 1));
    let error = end.error.unwrap();
    assert_eq!((error.kind.as_str(), error.message.as_str()), ("permanent", "attempt 1 fails as asked"));
    world.eventually_reads(&receipt.run_id, "enqueued\nstarted 1\nfailed 1 permanent\ndlq permanent").await;
}

/// Given a job that always fails, when it has used up its own number of attempts, then it is dead.
#[tokio::test]
async fn a_job_may_set_its_number_of_attempts() {
    let world = world().await;
    let _node = world.node().with("types.flaky", &served_by("fail", AT_ONCE)).start().await;
    let run = world.publish("flaky").header("Longshore-Max-Attempts", "2").json(json!({})).await;

    let end = world.wait(&run).await;

    assert_eq!((end.state.as_str(), end.attempt, end.max_attempts), ("dead", 2, 2));
    let kinds: Vec<_> = end.attempts.iter().map(|tried| tried.error.as_ref().unwrap().kind.as_str()).collect();
    assert_eq!(kinds, ["retryable", "retryable"]);
    let report = "enqueued\nstarted 1\nfailed 1 retryable\nstarted 2\nfailed 2 retryable\ndlq retryable";
    world.eventually_reads(&run, report).await;
}

/// Given a handler that panics, when it is called again, then the panic was one failed attempt and nothing more.
#[tokio::test]
async fn a_panic_of_a_handler_is_a_failed_attempt() {
    let world = world().await;
    let _node = world.node().with("types.flaky", &served_by("fail", AT_ONCE)).start().await;
    let run = world.publish("flaky").json(json!({"times": 1, "kind": "panic"})).await;

    let end = world.wait(&run).await;

    assert_eq!((end.state.as_str(), end.attempt), ("completed", 2));
    let error = end.attempts[0].error.clone().unwrap();
    assert_eq!(error.kind, "panic");
    assert!(error.message.contains("attempt 1 fails as asked"), "{}", error.message);
    world.eventually_reads(&run, "enqueued\nstarted 1\nfailed 1 panic\nstarted 2\ncompleted 2").await;
}

/// Given a preset and a type with endless back-off, when a job names the preset, then it is retried by the preset.
#[tokio::test]
async fn a_job_may_name_a_preset() {
    let world = world().await;
    let slow = "backoff = { base = '1h', factor = 1.0, max = '1h', jitter = 'none' }";
    let node = world.node().with("types.flaky", &served_by("fail", slow));
    let _node = node.with("retries.quick", "delays = ['10ms', '20ms']").start().await;
    let quick = world.publish("flaky").header("Longshore-Retry", "quick").json(json!({"times": 3})).await;
    let slow = world.publish("flaky").json(json!({"times": 3})).await;

    let end = world.wait(&quick).await;
    assert_eq!((end.state.as_str(), end.attempt), ("completed", 4));

    let mut live = world.live_events("default").await;
    if world.record(&slow).await.is_none_or(|record| record.state != "retrying") {
        live.until_published("failed", &slow).await;
    }
    let waits = world.request("runs.get", json!({"run_id": slow})).await;
    assert_eq!(waits["state"], "retrying");
    let failed = world.eventually_reads(&slow, "enqueued\nstarted 1\nfailed 1 retryable").await.pop().unwrap().event;
    let wait = failed.retry_at.unwrap().duration_since(failed.at);
    assert!((3_599..=3_601).contains(&wait.as_secs()), "{wait:?}");
    assert_eq!(waits["run_at"].as_str().unwrap().parse::<jiff::Timestamp>().unwrap(), failed.retry_at.unwrap());
}

/// Given a back-off that the server keeps, when the node ends and restarts meanwhile, then the retry is not lost.
#[tokio::test]
async fn a_retry_outlives_its_node() {
    let world = world().await;
    let node = world.node().with("types.flaky", &served_by("fail", SOON)).start().await;
    let mut live = world.live_events("default").await;
    let receipts = world.publish("flaky").many((0..20).map(|_| json!({"times": 1}))).await;
    for receipt in &receipts {
        live.until_published("failed", &receipt.run_id).await;
    }

    node.kill9().await;
    node.restart().await;

    for receipt in &receipts {
        let end = world.wait(&receipt.run_id).await;
        assert_eq!((end.state.as_str(), end.attempt), ("completed", 2), "{}", world.report(&receipt.run_id).await);
    }
    node.stop().await;
    world.history(&receipts, Vec::new()).await.assert_sound();
}

/// Given many jobs that fail several times, when they are all retried, then each has its attempts in order.
#[tokio::test]
async fn a_herd_of_failures_comes_to_rest() {
    let world = world().await;
    let more = "backoff = { base = '20ms', factor = 2.0, max = '60ms', jitter = 'full' }";
    let node = world.node().with("types.flaky", &served_by("fail", more)).start().await;
    let mut receipts = world.publish("flaky").many((0..300).map(|number| json!({"times": number % 4}))).await;
    receipts
        .extend(world.publish("flaky").header("Longshore-Max-Attempts", "3").many((0..50).map(|_| json!({}))).await);

    for receipt in &receipts {
        world.wait(&receipt.run_id).await;
    }

    node.stop().await;
    assert_eq!(world.dead_letters("default").await.len(), 50);
    world.history(&receipts, Vec::new()).await.assert_sound();
}

/// Given a failure text beyond all limits, when the run is dead, then the text was cut at a character boundary.
#[tokio::test]
async fn long_error_texts_are_cut_on_a_character() {
    let world = world().await;
    let _node = world.node().start().await;
    let handler = world.handler("long").start(async |_| longshore_harness::Reply::error(422, &"ä".repeat(5_000))).await;
    let run = world.publish("long").json(json!({})).await;

    let end = world.wait(&run).await;

    let message = end.error.unwrap().message;
    assert!(message.len() <= 4_096 && message.len() > 4_000 && message.ends_with('ä'), "{} bytes", message.len());
    assert_eq!(handler.calls().len(), 1);
    world.eventually_reads(&run, "enqueued\nstarted 1\nfailed 1 permanent\ndlq permanent").await;
}

/// Given many jobs that fail together, when they are retried, then each starts at its own time, spread by the jitter.
/// `LONGSHORE_TEST_HERD=100000` uses more of them.
#[tokio::test]
async fn a_herd_that_failed_together_comes_back_spread() {
    const SLOTS: usize = 10;
    let world = world().await;
    let retries = "backoff = { base = '8s', factor = 1.0, max = '8s', jitter = 'proportional' }";
    let _node = world.node().with("types.flaky", &served_by("fail", retries)).start().await;
    let count = times("LONGSHORE_TEST_HERD", 1_000);
    let receipts = world.publish("flaky").many((0..count).map(|_| json!({"times": 1}))).await;

    let mut slots = [0i32; SLOTS];
    for receipt in &receipts {
        let end = world.wait(&receipt.run_id).await;
        assert_eq!((end.state.as_str(), end.attempt), ("completed", 2));
        let (failed_at, retry_at) = (end.attempts[0].ended_at.unwrap(), end.attempts[0].retry_at.unwrap());
        let millis = retry_at.duration_since(failed_at).as_millis();
        // The delay counts from the decision, a few milliseconds before the end in the record.
        assert!((5_000..=10_000).contains(&millis), "{millis} ms");
        slots[usize::try_from(millis.max(6_000) - 6_000).unwrap() * SLOTS / 4_001] += 1;
        assert!(end.attempts[1].started_at.unwrap() >= retry_at, "not before its time");
    }
    let (least, most) = (slots.iter().min().unwrap(), slots.iter().max().unwrap());
    // Each slot has a tenth, within five standard deviations.
    let (mean, give) = (count as f64 / SLOTS as f64, 5.0 * (count as f64 * 0.09).sqrt());
    assert!(f64::from(*least) >= mean - give && f64::from(*most) <= mean + give, "{slots:?}");
    println!("{count} jobs that failed together, by tenths of the jitter's width: {slots:?}");
}
