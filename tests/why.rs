//! The story of one run, in words: what it waited for, where it was tried, why it failed, when it goes on.

use longshore_harness::World;
use serde_json::{Value, json};

use crate::{AT_ONCE, served_by, workers, world};

/// What `longshore why` prints, and its exit code.
async fn why(world: &World, line: &str) -> (String, i32) {
    let line = format!("why {line}");
    let output = world.command(line.split_whitespace()).output().await.unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (text(output.stdout) + &text(output.stderr), output.status.code().unwrap())
}

/// Asserts that each of these texts is told, in this order.
#[track_caller]
fn tells(told: &str, wanted: &[&str]) {
    let mut rest = told;
    for text in wanted {
        let at = rest.find(text).unwrap_or_else(|| panic!("{text:?} is not told, or too early: {told}"));
        rest = &rest[at + text.len()..];
    }
}

/// One worker, and types whose jobs fail for now and for good.
fn node(world: &World) -> longshore_harness::NodeBuilder<'_> {
    let hour = "backoff = { base = '1h', factor = 1.0, max = '1h', jitter = 'none' }";
    workers(world.node(), 1)
        .with("types.flaky", &served_by("fail", hour))
        .with("types.broken", &served_by("fail", &format!("max_attempts = 2\n{AT_ONCE}")))
}

/// Given a run that completed, one that failed for good and one that will be tried again, when one asks why, then the
/// answer tells each attempt, why it failed and what comes.
#[tokio::test]
async fn a_run_that_was_tried_tells_where_and_why_it_failed() {
    let world = world().await;
    let node = node(&world).start().await;
    let mut live = world.live_events("default").await;

    let done = world.publish("noop").json(json!(1)).await;
    assert_eq!(world.wait(&done).await.state, "completed");
    let told = why(&world, &done).await.0;
    tells(
        &told,
        &["noop  completed", "enqueued in queue main with priority 5", "attempt 1 of 12 started on n1, after"],
    );
    tells(&told, &["completed after", "It completed at the first attempt.", "of which it ran"]);

    let dead = world.publish("broken").json(json!({"times": 9})).await;
    assert_eq!(world.wait(&dead).await.state, "dead");
    let told = why(&world, &dead).await.0;
    tells(&told, &["attempt 1 of 2", "the attempt failed after", "retryable: ", "the next one is due 10 ms later"]);
    tells(&told, &["attempt 2 of 2", "ended as a dead letter", "failed for good after 2 attempts", "dlq replay"]);

    let retrying = world.publish("flaky").json(json!({})).await;
    live.until_told("failed", &retrying).await;
    let told = why(&world, &retrying).await.0;
    tells(&told, &["flaky  retrying", "the next one is due 1 h 0 min later", "Attempt 2 of 12 starts at"]);
    tells(&told, &["The last one failed: retryable: ", "longshore runs run-now"]);

    let (told, code) = why(&world, "nobody-knows-it").await;
    assert!(code == 1 && told.contains("is known"), "{told}");
    node.stop().await;
}

/// Given runs that wait for a handler, for a time and for a worker, and one that runs, when one asks why, then the answer
/// tells for what and since when.
#[tokio::test]
async fn a_run_that_waits_tells_for_what() {
    let world = world().await;
    let node = node(&world).start().await;
    let mut live = world.live_events("default").await;
    let unserved = world.publish("nobody").json(json!(1)).await;
    live.until_told("deferred", &unserved).await;
    let told = why(&world, &unserved).await.0;
    tells(&told, &["nobody  ", "not started, because no handler of its type was subscribed", "uses up no attempt"]);

    let delayed = world.submit(json!({"type": "noop", "delay_ms": 3_600_000})).await;
    tells(&why(&world, &delayed).await.0, &["noop  scheduled", "It waits for its time: ", "(in "]);

    let busy = world.publish("sleep").json(json!({"ms": 600_000})).await;
    longshore_harness::eventually("a running record", std::time::Duration::from_secs(60), async || {
        world.record(&busy).await.filter(|record| record.state == "running").ok_or("none yet")
    })
    .await;
    let told = why(&world, &busy).await.0;
    tells(&told, &["attempt 1 of 12 started on n1", "Attempt 1 of 12 has been running for", "on n1."]);

    let waiting = world.publish("noop").json(json!(1)).await;
    let told = why(&world, &waiting).await.0;
    tells(&told, &["It has been waiting for", "In queue main", "1 of 1 workers are busy."]);
    let (told, code) = why(&world, &format!("{waiting} --json")).await;
    let told: Value = serde_json::from_str(&told).unwrap();
    assert_eq!((code, &told["run"]["state"]), (0, &json!("enqueued")), "{told}");
    assert!(told["now"][0].as_str().unwrap().starts_with("It has been waiting for"), "{told}");
    node.kill9().await;
}
