//! What happened to one run, in words: what it waited for, where it was tried, why it failed, when it goes on.

use std::time::Duration;

use longshore_harness::{Reply, World, eventually};
use serde_json::{Value, json};

use crate::cli::{Said, say};
use crate::{AT_ONCE, served_by, workers, world};

const KEY: &str = "Longshore-Concurrency-Key";

/// What `longshore why` prints, and its exit code.
async fn why(world: &World, line: &str) -> (String, i32) {
    let Said { code, out, err } = say(world, &format!("why {line}")).await;
    (out + &err, code)
}

/// Asserts that the output has each of these texts, in this order.
#[track_caller]
fn shows(output: &str, wanted: &[&str]) {
    let mut rest = output;
    for text in wanted {
        let at = rest.find(text).unwrap_or_else(|| panic!("{text:?} is not there, or too early: {output}"));
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
/// answer has each attempt, why it failed and what comes.
#[tokio::test]
async fn why_says_where_a_run_was_tried_and_why_it_failed() {
    let world = world().await;
    let node = node(&world).start().await;
    let mut live = world.live_events("default").await;

    let done = world.publish("noop").json(json!(1)).await;
    assert_eq!(world.wait(&done).await.state, "completed");
    let output = why(&world, &done).await.0;
    shows(
        &output,
        &["noop  completed", "enqueued in queue main with priority 5", "attempt 1 of 12 started on n1, after"],
    );
    shows(&output, &["completed after", "It completed at the first attempt.", "of which it ran"]);

    let dead = world.publish("broken").json(json!({"times": 9})).await;
    assert_eq!(world.wait(&dead).await.state, "dead");
    let output = why(&world, &dead).await.0;
    shows(&output, &["attempt 1 of 2", "the attempt failed after", "retryable: ", "the next one is due ", " ms later"]);
    shows(&output, &["attempt 2 of 2", "ended as a dead letter", "failed for good after 2 attempts", "dlq replay"]);

    let retrying = world.publish("flaky").json(json!({})).await;
    live.until_published("failed", &retrying).await;
    let output = why(&world, &retrying).await.0;
    shows(&output, &["flaky  retrying", "the next one is due ", "Attempt 2 of 12 starts at"]);
    shows(&output, &["The last one failed: retryable: ", "longshore runs run-now"]);

    let (output, code) = why(&world, "nobody-knows-it").await;
    assert!(code == 1 && output.contains("is known"), "{output}");
    node.stop().await;
}

/// Given runs that wait for a handler, for a time and for a worker, and one that runs, when one asks why, then the
/// answer says for what and since when.
#[tokio::test]
async fn why_says_for_what_a_run_waits() {
    let world = world().await;
    let node = node(&world).start().await;
    let mut live = world.live_events("default").await;
    let unserved = world.publish("nobody").json(json!(1)).await;
    live.until_published("deferred", &unserved).await;
    let output = why(&world, &unserved).await.0;
    shows(&output, &["nobody  ", "not started: it waited for a handler of its type", "uses up no attempt"]);

    let delayed = world.submit(json!({"type": "noop", "delay_ms": 3_600_000})).await;
    shows(&why(&world, &delayed).await.0, &["noop  scheduled", "It waits for its time: ", "(in "]);

    let busy = world.publish("sleep").json(json!({"ms": 600_000})).await;
    world.eventually_is(&busy, "running", Duration::from_secs(60)).await;
    let output = why(&world, &busy).await.0;
    shows(&output, &["attempt 1 of 12 started on n1", "Attempt 1 of 12 has been running for", "on n1."]);

    let waiting = world.publish("noop").json(json!(1)).await;
    let output = why(&world, &waiting).await.0;
    shows(&output, &["It has been waiting for", "In queue main", "1 of 1 workers are busy."]);
    let (output, code) = why(&world, &format!("{waiting} --json")).await;
    let output: Value = serde_json::from_str(&output).unwrap();
    assert_eq!((code, &output["run"]["state"]), (0, &json!("enqueued")), "{output}");
    let now = output["lines"].as_array().unwrap().iter().find(|line| line["at"].is_null()).unwrap();
    assert!(now["text"].as_str().unwrap().starts_with("It has been waiting for"), "{output}");
    node.kill9().await;
}

/// Waits until `why` says this of a run that waits.
async fn waits_for(world: &World, run: &str, wanted: &[&str]) {
    eventually(wanted[0], Duration::from_secs(60), async || {
        let output = why(world, run).await.0;
        let is_shown = wanted.iter().all(|text| output.contains(text)) && output.matches("It waits for").count() <= 1;
        if is_shown { Ok(()) } else { Err(output) }
    })
    .await;
}

/// Given jobs that end all the time, when one asks why of one that waits and of each as it ends, then the answer comes
/// soon and does not contradict itself.
#[tokio::test]
async fn why_answers_soon_while_the_event_log_grows() {
    let world = world().await;
    let node = node(&world).start().await;
    let mut live = world.live_events("default").await;
    let unserved = world.publish("nobody").json(json!(1)).await;
    live.until_published("deferred", &unserved).await;
    let asked = async {
        for _ in 0..4 {
            let done = world.publish("noop").json(json!(1)).await;
            for run in [&unserved, &done] {
                let start = std::time::Instant::now();
                let output = why(&world, run).await.0;
                let lasted = start.elapsed();
                assert!(lasted < Duration::from_secs(4), "{lasted:?}: {output}");
                let ended = ["completed after", "ended: completed"].iter().any(|text| output.contains(text));
                assert!(!(ended && output.contains("has been waiting")), "{output}");
            }
        }
    };
    let load = async {
        loop {
            world.publish("noop").many((0..20).map(|n| json!(n))).await;
            tokio::time::sleep(Duration::from_millis(100)).await; // the log is never silent for a second
        }
    };
    tokio::select! {
        () = asked => {}
        () = load => {}
    }
    node.kill9().await;
}

/// Given jobs of busy keys that made way for others, when one asks why, then the answer names the other run.
#[tokio::test]
async fn why_says_for_which_run_another_made_way() {
    let world = world().await;
    let on_busy = |rule: &str| served_by("sleep", &format!("on_busy = '{rule}'"));
    let node =
        workers(world.node(), 8).with("types.drop", &on_busy("drop_new")).with("types.keep", &on_busy("keep_newest"));
    let node = node.start().await;
    let mut live = world.live_events("default").await;
    let keyed = async |job_type: &str, ms: u64| world.publish(job_type).header(KEY, "k").json(json!({"ms": ms})).await;

    let busy = keyed("drop", 600_000).await;
    live.until_published("started", &busy).await;
    let dropped = keyed("drop", 1).await;
    live.until_published("cancelled", &dropped).await;
    let output = why(&world, &dropped).await.0;
    shows(&output, &["drop  cancelled", "cancelled, after", "of waiting: its concurrency key was busy: run"]);
    let because =
        format!("It was cancelled without an attempt: its concurrency key was busy: run {busy} had not ended.");
    shows(&output, &[&because]);

    let first = keyed("keep", 600_000).await;
    live.until_published("started", &first).await;
    let superseded = keyed("keep", 1).await;
    live.until_published("deferred", &superseded).await;
    let newest = keyed("keep", 1).await;
    live.until_published("cancelled", &superseded).await;
    let output = why(&world, &superseded).await.0;
    shows(&output, &[&format!("It was cancelled without an attempt: run {newest} of its concurrency key came later.")]);
    shows(
        &output,
        &["It had been put off at", "it waited for its turn: as many of its type or of its key run as may."],
    );

    node.kill9().await;
}

/// Given jobs that came too late, were duplicates, were cancelled by filter, or were replayed, when one asks why, then
/// the answer says by which rule, after how long, and which run it is about.
#[tokio::test]
async fn why_says_why_a_run_ended_without_an_attempt() {
    let world = world().await;
    let node = world.node().with("types.broken", &served_by("fail", "max_attempts = 1")).start().await;
    let mut live = world.live_events("default").await;
    let original = world.publish("noop").header("Longshore-Idempotency-Key", "a").json(json!(1)).await;
    assert_eq!(world.wait(&original).await.state, "completed");
    let repeat = world.publish("noop").header("Longshore-Idempotency-Key", "a").json(json!(1)).await;
    live.until_published("duplicate", &repeat).await;
    let output = why(&world, &repeat).await.0;
    shows(&output, &["noop  duplicate", &format!("ended as a duplicate of {original}")]);
    shows(&output, &[&format!("It did nothing: run {original} has its idempotency key.")]);

    let late = world.publish("nobody").header("Longshore-Expires-In", "1s").json(json!(1)).await;
    live.until_published("deferred", &late).await;
    live.until_published("expired", &late).await;
    let output = why(&world, &late).await.0;
    shows(&output, &["expired, after ", "of waiting: no attempt had started in time", "It expired: no attempt had"]);
    shows(&output, &["It had been put off at", "it waited for a handler of its type."]);

    let paused = json!({"type": "noop", "until": crate::in_future(Duration::from_secs(3))});
    world.ask("_all", "queues.pause", paused.to_string(), Duration::from_secs(20)).await.unwrap();
    let shed = world.publish("noop").header("Longshore-Deadline", "1s").json(json!(1)).await;
    live.until_published("dlq", &shed).await;
    let output = why(&world, &shed).await.0;
    shows(&output, &["ended as a dead letter, after ", "of waiting: timeout: the run's deadline"]);
    shows(&output, &["It failed for good without an attempt: timeout: the run's deadline", "It had been put off at"]);

    let tagged = world.submit(json!({"type": "noop", "delay_ms": 3_600_000, "tags": ["old"]})).await;
    let answer = world.request("runs.cancel", json!({"tag": "old"})).await;
    assert_eq!(answer["cancelled"], 1, "{answer}");
    let output = why(&world, &tagged).await.0;
    shows(
        &output,
        &["cancelled, after", "It was cancelled without an attempt, because a user asked for it: longshore audit"],
    );

    let dead = world.publish("broken").json(json!({"times": 1})).await;
    assert_eq!(world.wait(&dead).await.state, "dead");
    world.eventually_dead_letters(2).await;
    world.request("dlq.replay", json!({"run_id": dead, "set": {"payload": {"times": 0}}})).await;
    assert_eq!(world.wait(&dead).await.state, "completed");
    live.until_published("completed", &dead).await;
    let output = why(&world, &dead).await.0;
    shows(
        &output,
        &["attempt 1 of 1 started", "failed after", "ended as a dead letter: retryable", "replayed: its next round"],
    );
    shows(
        &output,
        &["replayed", "attempt 1 of 1 started", "completed after", "It completed at the first attempt of round 2."],
    );
    node.kill9().await;
}

/// Given jobs that wait for the run before them, a rate limit, a breaker, a pause or a slot, when one asks why, then
/// the answer says for which of them and until when, once.
#[tokio::test]
async fn why_says_by_what_a_run_is_held_up() {
    let world = world().await;
    let node = workers(world.node(), 16)
        .with("types.step", &served_by("sleep", "ordered = true"))
        .with("types.single", &served_by("sleep", "concurrency = 1"))
        .with("types.limited", &served_by("noop", "rate_limit = { rate = 1, per = '1h' }"))
        .with("types.brittle", &served_by("fail", "max_attempts = 1\nbreaker = { failures = 2, cool_down = '1h' }"))
        .with("types.stopped", "handler = 'noop'")
        .with("queues.bulk", "");
    let node = node.start().await;
    let mut live = world.live_events("default").await;
    let twice = async |job_type: &str, payload: Value| {
        let publish = world.publish(job_type).header(KEY, "k");
        let first = publish.json(payload.clone()).await;
        (first, publish.json(payload).await)
    };

    let (first, second) = twice("step", json!({"ms": 600_000})).await;
    live.until_published("started", &first).await;
    let stands = format!("running on node {}", node.name());
    let turn =
        format!("It waits for its turn in the order of its key: run {first} comes first and has not ended ({stands}).");
    waits_for(&world, &second, &[&turn]).await;
    let (first, second) = twice("single", json!({"ms": 600_000})).await;
    let turn = format!(
        "It waits for its turn: as many of single or of its key run as may: run {first} on node {}.",
        node.name()
    );
    waits_for(&world, &second, &[&turn]).await;
    let (_, second) = twice("limited", json!(1)).await;
    waits_for(&world, &second, &["It waits for its rate limit, next at 20"]).await;
    for _ in 0..2 {
        let failing = world.publish("brittle").json(json!({})).await;
        assert_eq!(world.wait(&failing).await.state, "dead");
    }
    let broken = world.publish("brittle").json(json!({})).await;
    let breaker =
        ["It waits for the breaker of brittle, open until 20", "The circuit breaker of brittle is open until 20"];
    waits_for(&world, &broken, &breaker).await;
    let paused = json!({"type": "stopped"});
    world.ask("_all", "queues.pause", paused.to_string(), Duration::from_secs(20)).await.unwrap();
    let stopped = world.publish("stopped").json(json!(1)).await;
    waits_for(&world, &stopped, &["It waits for the end of a pause: its type stopped is paused."]).await;
    let until = crate::in_future(Duration::from_secs(3_600));
    let paused = json!({"queue": "bulk", "until": until});
    world.ask("_all", "queues.pause", paused.to_string(), Duration::from_secs(20)).await.unwrap();
    let stopped = world.publish("noop").queue("bulk").json(json!(1)).await;
    waits_for(
        &world,
        &stopped,
        &[&format!("It waits for the end of a pause: its queue bulk is paused until {until}.")],
    )
    .await;
    node.kill9().await;
}

/// Given jobs that wait for a handler, its room, the end of its hold or a time that it asked for, when one asks why,
/// then the answer says for which of them.
#[tokio::test]
async fn a_run_that_waits_for_its_handler_says_so() {
    let world = world().await;
    let node = world.node().start().await;
    let slow = |_| std::future::pending::<Reply>();
    let _slow = world.handler("slow").announce("longshore.slots", "1").start(slow).await;
    let _later = world.handler("later").start(|_| async { Reply::snooze("1h") }).await;
    let _held = world.handler("held").start(|_| async { Reply::error(503, "no").header("Longshore-Hold", "1h") }).await;
    let nobodys = world.publish("nobody").json(json!(1)).await;
    waits_for(
        &world,
        &nobodys,
        &["It waits for a handler of nobody: none online since 20", "subscribe to longshore.work.default.nobody"],
    )
    .await;
    world.publish("slow").json(json!(1)).await;
    let second = world.publish("slow").json(json!(1)).await;
    waits_for(&world, &second, &["It waits for a handler of slow with room"]).await;
    let snoozed = world.publish("later").json(json!(1)).await;
    waits_for(
        &world,
        &snoozed,
        &["It waits for the time that its handler asked for, next at 20", "it waited for the time that"],
    )
    .await;
    world.publish("held").json(json!(1)).await;
    let held = world.publish("held").json(json!(1)).await;
    waits_for(&world, &held, &["It waits for the end of a hold: a handler holds held or its key, next at 20"]).await;
    node.kill9().await;
}
/// Given two nodes and a busy concurrency key, when one asks why the next job of the key waits, then each node names
/// the key, also the one that does not hold the job.
#[tokio::test]
async fn a_busy_key_is_named_by_every_node() {
    let world = world().await;
    let nodes = [world.node().name("n1").start().await, world.node().name("n2").start().await];
    let mut live = world.live_events("default").await;
    let keyed = async || world.publish("sleep").header(KEY, "k").json(json!({"ms": 600_000})).await;
    let busy = keyed().await;
    live.until_published("started", &busy).await;
    let next = keyed().await;
    let reason = async || world.request("runs.get", json!({"run_id": next})).await["waiting_for"]["reason"].clone();
    eventually("the key", Duration::from_secs(30), async || {
        let reason = reason().await;
        if reason == "concurrency" { Ok(()) } else { Err(reason) }
    })
    .await;
    // Either node answers.
    for _ in 0..20 {
        assert_eq!(reason().await, "concurrency");
    }
    for node in nodes {
        node.kill9().await;
    }
}
