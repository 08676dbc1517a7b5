//! Each reason for which a job is refused, fails or is put off has its own count, and that is exact.

use std::collections::BTreeMap;
use std::time::Duration;

use longshore_harness::{Node, NodeBuilder, Reply, Scrape, World, eventually};
use serde_json::json;

use crate::http::on_a_free_port;
use crate::{AT_ONCE, served_by, workers, world};

/// Far longer than anything here takes: a limit for hopeless cases.
const WITHIN: Duration = Duration::from_secs(120);

/// Waits until a metric's series say this by the given label, and none says more.
async fn counts(node: &Node, metric: &str, label: &str, wanted: &[(&str, u64)]) {
    let wanted: BTreeMap<String, u64> = wanted.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect();
    eventually(metric, WITHIN, async || {
        let mut found = BTreeMap::new();
        let scrape = Scrape::of(node).await;
        for series in scrape.series().iter().filter(|series| series.name == metric && series.value > 0.0) {
            *found.entry(series.labels[label].clone()).or_default() += series.value as u64;
        }
        if found == wanted { Ok(()) } else { Err(format!("{found:?}, not {wanted:?}")) }
    })
    .await;
}

/// Given submissions and bare publishes that are refused for each reason there is, then each reason has its own count.
#[tokio::test]
async fn each_reason_to_refuse_a_job_is_counted() {
    let world = world().await;
    let node = on_a_free_port(world.node())
        .with("admission", "types = ['noop', 'echo']")
        .with("types.echo", "payload_max = 10")
        .with("tenants.acme", "rate_limit = { rate = 1, per = '1h' }")
        .with("queues.main", "")
        .with("queues.small", "max_waiting = 1");
    let node = node.start().await;
    let refused = async |tenant: &str, job: serde_json::Value, code: u16| {
        let answer = world.try_request(tenant, "submit", job).await.unwrap_err();
        assert_eq!(answer.code, code, "{answer:?}");
    };
    let keyed = |payload: u8| json!({"type": "noop", "payload": payload, "idempotency_key": "k"});
    let rejected = || json!({"type": "noop", "payload": 1, "idempotency_key": "k", "on_conflict": "reject"});

    refused("default", json!({"type": "noop", "priority": 10}), 400).await;
    refused("default", json!({"type": "no type"}), 400).await;
    refused("default", json!({"type": "sleep"}), 403).await;
    refused("default", json!({"type": "noop", "queue": "nobodys"}), 404).await;
    refused("default", json!({"type": "echo", "payload": "123456789"}), 413).await;
    let taken = |answer: Result<serde_json::Value, _>| assert!(answer.is_ok());
    taken(world.try_request("acme", "submit", json!({"type": "noop"})).await);
    refused("acme", json!({"type": "noop"}), 429).await;
    refused("acme", json!({"type": "noop"}), 429).await;
    taken(world.try_request("default", "submit", keyed(1)).await);
    refused("default", keyed(2), 409).await;
    refused("default", rejected(), 409).await;
    world.ask("_all", "queues.pause", json!({"queue": "small"}).to_string(), WITHIN).await.unwrap();
    let small = || json!({"type": "noop", "queue": "small"});
    taken(world.try_request("default", "submit", small()).await);
    let full = eventually("a full queue", WITHIN, async || {
        // How many wait is counted now and then: until it is known, some more are taken.
        match world.try_request("default", "submit", small()).await {
            Ok(_) => Err("one more was taken"),
            Err(full) => Ok(full),
        }
    });
    assert_eq!(full.await.code, 503);
    for _ in 0..2 {
        let bare = world.publish("sleep").json(json!(1)).await;
        assert_eq!(world.wait(&bare).await.error.unwrap().kind, "invalid");
    }

    counts(
        &node,
        "longshore_jobs_refused_total",
        "reason",
        &[
            ("malformed", 2),
            ("forbidden", 1),
            ("not_found", 1),
            ("too_large", 1),
            ("rate_limited", 2),
            ("idempotency_mismatch", 1),
            ("key_taken", 1),
            ("unavailable", 1),
            ("invalid", 2),
        ],
    )
    .await;
}

/// Given jobs that fail for each reason there is, then each kind has its own count, as the event log has it.
#[tokio::test]
async fn each_kind_of_failure_is_counted() {
    let world = world().await;
    let once = |handler: &str, more: &str| served_by(handler, &format!("max_attempts = 1\n{more}"));
    let node = on_a_free_port(world.node())
        .with("types.broken", &served_by("fail", &format!("max_attempts = 2\n{AT_ONCE}")))
        .with("types.slow", &once("sleep", "timeout = '100ms'"))
        .with("types.away", &once("remote", "no_handler_grace = '1s'"))
        .with("types.silent", &once("remote", "heartbeat = '300ms'"))
        .start()
        .await;
    let silent = |_| std::future::pending::<Reply>();
    let _silent = world.handler("silent").start(silent).await;
    let mut jobs = Vec::new();
    for kind in ["retryable", "permanent", "panic"] {
        jobs.push(world.publish("broken").json(json!({"kind": kind})).await);
    }
    jobs.push(world.publish("slow").json(json!({"ms": 600_000})).await);
    jobs.push(world.publish("away").json(json!(1)).await);
    jobs.push(world.publish("silent").json(json!(1)).await);
    jobs.push(world.publish("noop").header("Longshore-Delay", "never").json(json!(1)).await);
    for run in &jobs {
        assert_eq!(world.wait(run).await.state, "dead");
    }

    counts(
        &node,
        "longshore_attempts_failed_total",
        "kind",
        &[
            ("retryable", 2),
            ("permanent", 1),
            ("panic", 2),
            ("timeout", 1),
            ("no_handler", 1),
            ("lease_expired", 1),
            ("invalid", 1),
        ],
    )
    .await;
    counts(&node, "longshore_runs_finished_total", "state", &[("dead", 7)]).await;
    counts(&node, "longshore_attempts_retried_total", "type", &[("broken", 2)]).await;
}

/// A node with types whose jobs are put off for one reason each.
fn with_each_reason(world: &World) -> NodeBuilder<'_> {
    workers(on_a_free_port(world.node()), 16)
        .with("types.single", &served_by("sleep", "concurrency = 1\ntimeout = '1h'"))
        .with("types.limited", &served_by("noop", "rate_limit = { rate = 1, per = '1h' }"))
        .with("types.brittle", &served_by("fail", "max_attempts = 1\nbreaker = { failures = 2, cool_down = '1h' }"))
        .with("types.stopped", "handler = 'noop'")
        .with("types.away", &served_by("remote", "no_handler_grace = '1h'"))
}

/// Waits until a job without a handler was tried again and again, for which nothing more is counted.
async fn is_tried_again(world: &World, run: &str) {
    eventually("several tries", WITHIN, async || {
        let record = world.record(run).await.ok_or("no record")?;
        let tries = record.rest.get("deferrals").and_then(serde_json::Value::as_u64);
        if tries >= Some(3) { Ok(()) } else { Err("too few") }
    })
    .await;
}

/// Given jobs that are put off for each reason there is, then each reason has its own count: that of its events.
#[tokio::test]
async fn each_reason_to_put_a_job_off_is_counted() {
    let world = world().await;
    let node = with_each_reason(&world).start().await;
    let _full = world.handler("full").start(|_| async { Reply::error(429, "no room") }).await;
    let _later = world.handler("later").start(|_| async { Reply::snooze("1h") }).await;
    let _held = world.handler("held").start(|_| async { Reply::error(503, "no").header("Longshore-Hold", "1h") }).await;
    let mut live = world.live_events("default").await;

    for (first, event, put_off, payload) in [
        ("single", "started", 3, json!({"ms": 600_000})),
        ("limited", "completed", 2, json!(1)),
        ("held", "failed", 2, json!(1)),
    ] {
        let run = world.publish(first).json(payload.clone()).await;
        live.until_published(event, &run).await;
        if event == "failed" {
            // Its own next attempt is held as well.
            live.until_published("deferred", &run).await;
        }
        for _ in 0..put_off {
            let run = world.publish(first).json(payload.clone()).await;
            live.until_published("deferred", &run).await;
        }
    }
    for _ in 0..2 {
        let failing = world.publish("brittle").json(json!({})).await;
        live.until_published("dlq", &failing).await;
    }
    world.ask("_all", "queues.pause", json!({"type": "stopped"}).to_string(), WITHIN).await.unwrap();
    for job_type in ["brittle", "stopped", "away", "later", "full"] {
        let run = world.publish(job_type).json(json!({})).await;
        live.until_published("deferred", &run).await;
        if job_type == "away" {
            is_tried_again(&world, &run).await;
        }
    }

    counts(
        &node,
        "longshore_jobs_deferred_total",
        "reason",
        &[
            ("concurrency", 3),
            ("rate_limited", 2),
            ("busy", 1),
            ("held", 3),
            ("breaker_open", 1),
            ("paused", 1),
            ("no_handler_online", 1),
            ("snoozed", 1),
        ],
    )
    .await;
    eventually("one type without a handler", WITHIN, async || {
        let found = Scrape::of(&node).await.sum("longshore_types_without_handler", &[]);
        if (found - 1.0).abs() < 1e-9 { Ok(()) } else { Err(found) }
    })
    .await;
    node.kill9().await;
}
