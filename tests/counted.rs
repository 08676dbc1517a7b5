//! What happens is counted, exactly, and every node shows the whole cluster's jobs.

use std::collections::BTreeSet;
use std::time::Duration;

use longshore_harness::{Node, Reply, Scrape, World, eventually};
use serde_json::json;

use crate::cli::say;
use crate::http::on_a_free_port;
use crate::overdue::scheduled;
use crate::{AT_ONCE, WITHIN, served_by, workers, world};

/// The name of a metric, labels that its series have, and the sum of their values.
type Wanted<'a> = (&'a str, &'a [(&'a str, &'a str)], f64);

/// Waits until a node shows all of these.
async fn shows(node: &Node, wanted: &[Wanted<'_>]) -> Scrape {
    eventually("the metrics", WITHIN, async || {
        let scrape = Scrape::of(node).await;
        let wrong = wanted.iter().filter_map(|(name, labels, wanted)| {
            let found = scrape.sum(name, labels);
            ((found - wanted).abs() > 1e-9).then(|| format!("{name} {labels:?} is {found}, not {wanted}"))
        });
        let wrong: Vec<String> = wrong.collect();
        if wrong.is_empty() { Ok(scrape) } else { Err(wrong.join("; ")) }
    })
    .await
}

const ENQUEUED: &str = "longshore_jobs_enqueued_total";
const STARTED: &str = "longshore_attempts_started_total";
const FAILED: &str = "longshore_attempts_failed_total";
const FINISHED: &str = "longshore_runs_finished_total";

/// Given a thousand jobs of which 37 fail twice, when all have ended, then every start, failure and end is counted.
#[tokio::test]
async fn a_thousand_jobs_are_counted_with_their_failures() {
    let world = world().await;
    let node = on_a_free_port(world.node()).with("storage", "runs_max_records = 10_000");
    let node = node.with("types.flaky", &served_by("fail", AT_ONCE)).start().await;

    let before = Scrape::of(&node).await;
    assert_eq!(before.value(STARTED, &[("queue", "main"), ("type", "flaky")]), Some(0.0), "it begins at 0");
    assert_eq!(before.value(STARTED, &[("queue", "main"), ("type", "noop")]), None, "nobody has configured it");

    let sound = world.publish("noop").many((0..963).map(|number| json!(number))).await;
    let flaky = world.publish("flaky").many((0..37).map(|_| json!({"times": 2}))).await;
    let all: Vec<_> = sound.into_iter().chain(flaky).collect();
    assert!(world.ends(&all, WITHIN).await.iter().all(|state| state == "completed"));

    let (noop, flaky) = ([("queue", "main"), ("type", "noop")], [("queue", "main"), ("type", "flaky")]);
    let scrape = shows(
        &node,
        &[
            (ENQUEUED, &noop, 963.0),
            (ENQUEUED, &flaky, 37.0),
            (STARTED, &noop, 963.0),
            (STARTED, &flaky, 111.0),
            (FAILED, &[], 74.0),
            (FAILED, &[("queue", "main"), ("type", "flaky"), ("kind", "retryable")], 74.0),
            ("longshore_attempts_retried_total", &flaky, 74.0),
            ("longshore_leases_held", &[], 0.0),
            ("longshore_records_fill_ratio", &[], 0.1),
            (FINISHED, &[("queue", "main"), ("type", "noop"), ("state", "completed")], 963.0),
            (FINISHED, &[("queue", "main"), ("type", "flaky"), ("state", "completed")], 37.0),
            (FINISHED, &[], 1_000.0),
            ("longshore_job_wait_seconds_count", &[], 1_074.0),
            ("longshore_attempt_duration_seconds_count", &flaky, 111.0),
            ("longshore_job_total_seconds_count", &noop, 963.0),
            ("longshore_job_total_seconds_count", &flaky, 37.0),
            ("longshore_queue_jobs", &[], 0.0),
            ("longshore_workers_busy", &[("queue", "main")], 0.0),
            ("longshore_workers", &[("queue", "main")], 64.0),
            ("longshore_mailbox_messages", &[], 0.0),
            ("longshore_ready", &[], 1.0),
        ],
    )
    .await;
    assert!(scrape.sum("longshore_job_total_seconds_sum", &flaky) >= 37.0 * 0.02, "each waited twice for 10 ms");
    for actor in ["committer", "lease-keeper", "scheduler", "rate-limiter", "slot-keeper", "circuit-breaker"] {
        assert_eq!(scrape.value("longshore_mailbox_messages", &[("actor", actor)]), Some(0.0), "{actor} reads");
    }
    assert!(scrape.sum("longshore_event_publish_seconds_count", &[]) >= 1.0);
    for lane in ["p1", "p5", "p9", "returned"] {
        let silent = scrape.value("longshore_pull_silence_seconds", &[("queue", "main"), ("lane", lane)]);
        assert!(silent.is_some_and(|silent| silent < 60.0), "{lane}: {silent:?}");
    }
    counts_the_restarts_of_each_part_from_0(&scrape);
    has_its_process(&scrape);
    assert_eq!(scrape.sum("longshore_build_info", &[("version", env!("CARGO_PKG_VERSION"))]) as u64, 1);
}

fn counts_the_restarts_of_each_part_from_0(scrape: &Scrape) {
    let restarts: BTreeSet<&str> = scrape
        .series()
        .iter()
        .filter(|of| of.name == "longshore_actor_restarts_total" && of.value.abs() < 1e-9)
        .map(|of| of.labels["actor"].as_str())
        .collect();
    for part in ["committer", "lease-keeper", "api", "parking", "stream-watch", "queue", "scheduler", "worker", "http"]
    {
        assert!(restarts.contains(part), "{part} is not among {restarts:?}");
    }
}

fn has_its_process(scrape: &Scrape) {
    assert!(scrape.sum("process_cpu_seconds_total", &[]) > 0.0);
    let started = jiff::Timestamp::now().as_second() as f64 - scrape.sum("process_start_time_seconds", &[]);
    assert!((-1.0..3_600.0).contains(&started), "it started {started} s ago");
    assert!(scrape.sum("process_resident_memory_bytes", &[]) > 1e6);
    assert!(scrape.sum("process_open_fds", &[]) > 4.0);
}

/// Given a node that asks for jobs, when it stands still while one is stored, then the time until that job arrived is
/// counted, and `health` says it.
#[tokio::test]
async fn a_job_that_was_long_on_its_way_is_counted_and_said() {
    const ON_ITS_WAY: &str = "longshore_lane_delivery_seconds";
    let world = world().await;
    let node = on_a_free_port(world.node()).start().await;
    let first = world.publish("noop").json(json!({})).await;
    assert_eq!(world.wait(&first).await.state, "completed");
    let (sum, of_the_lane) = (format!("{ON_ITS_WAY}_sum"), [("queue", "main"), ("lane", "p5")]);
    let before = Scrape::of(&node).await.sum(&sum, &of_the_lane);
    assert!(!world.request("health", json!({})).await["warnings"].to_string().contains("came"), "nothing was late");

    node.sigstop();
    eventually("the node to stand still", WITHIN, async || if node.is_frozen() { Ok(()) } else { Err("it runs") })
        .await;
    let late = world.publish("noop").json(json!({})).await;
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    node.sigcont();

    assert_eq!(world.wait(&late).await.state, "completed");
    let took = Scrape::of(&node).await.sum(&sum, &of_the_lane) - before;
    assert!(took >= 1.5, "{took}");
    let warnings = world.request("health", json!({})).await["warnings"].to_string();
    assert!(warnings.contains("a job of queue main came") && warnings.contains("s after it was stored"), "{warnings}");
}

/// Given submissions that are taken, repeated and refused, then each is counted once.
#[tokio::test]
async fn submissions_are_counted() {
    let world = world().await;
    let node = on_a_free_port(world.node()).start().await;

    for _ in 0..3 {
        world.submit(json!({"type": "noop", "idempotency_key": "a"})).await;
    }
    world.submit(json!({"type": "echo", "delay_ms": 1})).await;
    let jobs = [
        json!({"type": "noop"}),
        json!({"type": "noop"}),
        json!({"type": "bad type"}),
        json!({"type": "noop", "queue": "nobodys"}),
    ];
    assert_eq!(world.request("submit.batch", json!({"jobs": jobs})).await["jobs"].as_array().unwrap().len(), 4);
    world.try_request("default", "submit", json!({"type": "noop", "priority": 10})).await.unwrap_err();

    shows(
        &node,
        &[
            ("longshore_jobs_submitted_total", &[("queue", "main"), ("type", "noop")], 3.0),
            ("longshore_jobs_submitted_total", &[("queue", "main"), ("type", "echo")], 1.0),
            ("longshore_jobs_deduplicated_total", &[], 2.0),
            ("longshore_jobs_refused_total", &[("reason", "malformed")], 2.0),
            ("longshore_jobs_refused_total", &[("reason", "not_found")], 1.0),
            ("longshore_jobs_refused_total", &[], 3.0),
            (FINISHED, &[("state", "completed")], 4.0),
        ],
    )
    .await;
}

/// Given runs that end in every way there is, then each end is counted, and so are replays and late schedules.
#[tokio::test]
async fn every_end_is_counted() {
    let world = world().await;
    let broken = served_by("fail", "max_attempts = 1");
    let node = on_a_free_port(world.node()).with("types.broken", &broken).start().await;

    for delay_ms in [1_200, 1_300, 1_400, 1_500] {
        world.submit(json!({"type": "noop", "delay_ms": delay_ms})).await;
    }
    let late = world.submit(json!({"type": "noop", "delay_ms": 3_600_000})).await;
    world.request("runs.cancel", json!({"run_id": late})).await;
    let dead = world.publish("broken").many((0..2).map(|_| json!({}))).await;
    world.eventually_dead_letters(2).await;
    let [again, discarded] = [&dead[0].run_id, &dead[1].run_id];
    assert_eq!(world.request("dlq.discard", json!({"run_id": discarded})).await["discarded"], 1);
    assert_eq!(world.request("dlq.replay", json!({"run_id": again})).await["replayed"], 1);
    for _ in 0..2 {
        let keyed = world.publish("echo").header("Longshore-Idempotency-Key", "twice");
        world.wait(&keyed.send("1").await.unwrap().run_id).await;
    }
    let expired = world.publish("noop").header("Longshore-Expires-At", &in_the_past());
    assert_eq!(world.wait(&expired.send("1").await.unwrap().run_id).await.state, "expired");

    let ends = |state: &'static str| [("queue", "main"), ("state", state)];
    shows(
        &node,
        &[
            ("longshore_jobs_replayed_total", &[], 1.0),
            // Once a round; the one that was cancelled was only scheduled.
            (ENQUEUED, &[], 10.0),
            ("longshore_dlq_jobs", &[], 1.0),
            (FINISHED, &ends("dead"), 3.0),
            (FINISHED, &ends("discarded"), 1.0),
            (FINISHED, &ends("cancelled"), 1.0),
            (FINISHED, &ends("duplicate"), 1.0),
            (FINISHED, &ends("expired"), 1.0),
            ("longshore_jobs_shed_total", &[("reason", "expired")], 1.0),
            (FINISHED, &ends("completed"), 5.0),
            (FAILED, &[("type", "broken"), ("kind", "retryable")], 3.0),
            ("longshore_schedule_lateness_seconds_count", &[], 4.0),
        ],
    )
    .await;
}

fn in_the_past() -> String {
    let at = jiff::Timestamp::now() - jiff::SignedDuration::from_secs(60);
    format!("{at:.3}")
}

/// Jobs of every state: four that run on two nodes, and others that wait behind them or for a time.
async fn jobs_of_every_state(world: &World) {
    let _handler = world.handler("later").start(|_| async { Reply::snooze("1h") }).await;
    world.publish("later").many((0..3).map(|_| json!(1))).await;
    world.publish("flaky").many((0..2).map(|_| json!({}))).await;
    scheduled(world, 5).await;
    for _ in 0..5 {
        world.submit(json!({"type": "noop", "delay_ms": 3_600_000})).await;
    }
    let mut live = world.live_events("default").await;
    for receipt in world.publish("sleep").many((0..4).map(|_| json!({"ms": 600_000}))).await {
        live.until_published("started", &receipt.run_id).await;
    }
    world.publish("noop").many((0..6).map(|_| json!(1))).await;
    world.publish("noop").priority(9).many((0..7).map(|_| json!(1))).await;
}

/// Given jobs in every state and two nodes, then both show how many there are in the whole cluster.
#[tokio::test]
async fn every_node_shows_the_jobs_of_the_whole_cluster() {
    let world = world().await;
    let flaky = "handler = 'fail'\nbackoff = { base = '1h', factor = 1.0, max = '1h', jitter = 'none' }";
    let node = |name| {
        let node = workers(on_a_free_port(world.node()).name(name), 2).with("node", "lease = '2s'");
        node.with("types.flaky", flaky).with("types.guarded", "breaker = { failures = 5 }")
    };
    let (a, b) = (node("a").start().await, node("b").start().await);
    jobs_of_every_state(&world).await;
    let jobs = |state: &'static str| [("queue", "main"), ("state", state)];

    for node in [&a, &b] {
        let scrape = shows(
            node,
            &[
                ("longshore_queue_jobs", &jobs("running"), 4.0),
                ("longshore_queue_jobs", &jobs("waiting"), 13.0),
                ("longshore_queue_jobs", &[("queue", "main"), ("priority", "p5"), ("state", "waiting")], 6.0),
                ("longshore_queue_jobs", &[("queue", "main"), ("priority", "p9"), ("state", "waiting")], 7.0),
                ("longshore_queue_jobs", &jobs("scheduled"), 5.0),
                ("longshore_queue_jobs", &jobs("retrying"), 2.0),
                ("longshore_queue_jobs", &jobs("deferred"), 3.0),
                ("longshore_workers_busy", &[("queue", "main")], 2.0),
                ("longshore_workers", &[("queue", "main")], 2.0),
            ],
        )
        .await;
        let oldest = scrape.value("longshore_queue_oldest_seconds", &[("queue", "main")]).unwrap();
        assert!(oldest > 0.0 && oldest < WITHIN.as_secs_f64(), "{oldest}");
        assert_eq!(scrape.value("longshore_queue_jobs", &jobs("running")), Some(4.0), "without a priority");
        assert_eq!(scrape.value("longshore_breaker_state", &[("type", "guarded")]), Some(0.0), "from the start");
    }
    let deferred = |scrape: &Scrape| scrape.sum("longshore_jobs_deferred_total", &[("reason", "snoozed")]) as u64;
    assert_eq!(deferred(&Scrape::of(&a).await) + deferred(&Scrape::of(&b).await), 3);
}

/// Given jobs that a node gave back as it ended, and a node that does not serve their queue, then that one shows how
/// many wait, and since when.
#[tokio::test]
async fn jobs_that_came_back_have_waited_since_they_were_published() {
    let world = world().await;
    let node = world.node().name("a").with("node", "shutdown_grace = '0s'").start().await;
    let other = on_a_free_port(world.node().name("b")).with("queues.other", "").start().await;
    let mut live = world.live_events("default").await;
    for _ in 0..3 {
        let run = world.publish("sleep").json(json!({"ms": 600_000})).await;
        live.until_published("started", &run).await;
    }
    node.stop().await;

    let waiting = [("longshore_queue_jobs", &[("queue", "main"), ("state", "waiting")][..], 3.0)];
    eventually("the age of the oldest", WITHIN, async || {
        let scrape = shows(&other, &waiting).await;
        let oldest = scrape.value("longshore_queue_oldest_seconds", &[("queue", "main")]).unwrap();
        if oldest > 0.0 { Ok(()) } else { Err(oldest) }
    })
    .await;
}

/// Given a server that does not answer, then depths are absent in place of old, and what the node counts stays.
#[tokio::test]
async fn what_is_not_known_any_more_is_not_shown() {
    let world = world().await;
    let node = on_a_free_port(world.node()).start().await;
    assert_eq!(Scrape::of(&node).await.value("longshore_dlq_jobs", &[]), Some(0.0));

    world.server().kill9().await;

    let shown = eventually("no depths", WITHIN, async || {
        let scrape = Scrape::of(&node).await;
        match scrape.value("longshore_dlq_jobs", &[]) {
            None => Ok(scrape),
            Some(depth) => Err(depth.to_string()),
        }
    });
    assert_eq!(shown.await.value("longshore_ready", &[]), Some(0.0));
}

/// Given a thousand types that nobody has configured, then the metrics stay small and count them together.
#[tokio::test]
async fn types_that_anybody_may_invent_do_not_make_the_metrics_grow() {
    let world = world().await;
    let defaults = served_by("noop", "");
    let node = on_a_free_port(world.node()).with("defaults", &defaults).with("types.own", "").start().await;
    let mut receipts = Vec::new();
    for number in 0..300 {
        receipts.push(world.publish(&format!("t{number}")).send("1").await.unwrap());
    }
    receipts.push(world.publish("own").send("1").await.unwrap());
    assert!(world.ends(&receipts, WITHIN).await.iter().all(|state| state == "completed"));

    let scrape = shows(&node, &[(FINISHED, &[("state", "completed")], 301.0)]).await;
    assert_eq!(scrape.sum(FINISHED, &[("type", "_other")]) as u64, 200);
    assert_eq!(scrape.sum(FINISHED, &[("type", "own")]) as u64, 1);
    let types: std::collections::BTreeSet<_> = scrape.series().iter().filter_map(|of| of.labels.get("type")).collect();
    // The first hundred, and `own`, `_other`, and that of the deliveries to webhooks, which every node knows.
    assert_eq!(types.len(), 103);
}

/// Given a worker that dies and a lease that cannot be renewed, then both are counted.
#[tokio::test]
async fn deaths_and_lost_leases_are_counted() {
    let world = world().await;
    // Longer than a busy machine needs to end the attempt whose worker has died: with the lease it would be lost.
    let node = on_a_free_port(world.node()).with("node", "lease = '10s'");
    let node = node.env("LONGSHORE_FAIL_POINTS", "before-handler=panic@1").start().await;
    let run = world.publish("noop").send("1").await.unwrap().run_id;
    world.wait(&run).await;
    let scrape = shows(&node, &[("longshore_actor_restarts_total", &[("actor", "worker")], 1.0)]).await;
    assert_eq!(scrape.sum(FAILED, &[("kind", "panic")]) as u64, 1, "{}", world.report(&run).await);
    let health = world.try_request("_all", "health", json!({"node": node.name()})).await.unwrap();
    let worker = json!({"part": "worker", "per_queue": true, "restarts": 1});
    assert!(health["parts"].as_array().unwrap().contains(&worker), "{health}");
    let mut live = world.live_events("default").await;
    let long = world.publish("sleep").json(json!({"ms": 600_000})).await;
    live.until_published("started", &long).await;

    world.server().kill9().await;

    shows(&node, &[("longshore_leases_lost_total", &[], 1.0)]).await;
}

/// Given a type with a circuit breaker, when its handler keeps failing, then the breaker is shown as open, and as
/// closed once an operator closes it.
#[tokio::test]
async fn the_state_of_a_breaker_is_shown() {
    let world = world().await;
    let policy = "max_attempts = 1\nbreaker = { failures = 2, cool_down = '10m' }";
    let node = on_a_free_port(world.node()).with("types.flaky", &served_by("fail", policy)).start().await;
    let of_type = [("type", "flaky")];
    for number in 1..=2 {
        assert_eq!(Scrape::of(&node).await.sum("longshore_breaker_state", &of_type), 0.0, "after {}", number - 1);
        let run = world.publish("flaky").json(json!({})).await;
        assert_eq!(world.wait(&run).await.state, "dead");
    }
    shows(&node, &[("longshore_breaker_state", &of_type, 2.0)]).await;

    let breaker = json!({"tenant": "default", "type": "flaky"});
    world.try_request("_all", "breakers.reset", breaker).await.unwrap();

    shows(&node, &[("longshore_breaker_state", &of_type, 0.0)]).await;
}

/// Given a node whose only worker is busy, and a limit of which four of ten tokens are used, then it shows the jobs
/// that it holds, and the tokens that are left; and when a lane is gone, that no server answers for it.
#[tokio::test]
async fn what_a_node_holds_and_what_is_left_of_a_limit_is_shown() {
    let world = world().await;
    let limit = served_by("noop", "rate_limit = { rate = 10, per = '365d', window = 'fixed' }");
    let node = workers(on_a_free_port(world.node()), 1).with("types.limited", &limit);
    // A node that is short of processor pulls no jobs ahead, and beside other tests it is.
    let node = node.with("pressure", "watch = false").start().await;
    let left = [("limit", "type.limited")];
    assert_eq!(Scrape::of(&node).await.value("longshore_rate_limit_tokens", &left), Some(10.0));
    let used = world.publish("limited").many((0..4).map(|number| json!(number))).await;
    assert!(world.ends(&used, WITHIN).await.iter().all(|state| state == "completed"));
    // A busy machine holds few of them at a time: they are to last until a scrape sees some.
    let short = world.publish("sleep").many((0..300).map(|_| json!({"ms": 30}))).await;
    eventually("jobs that wait in the node", WITHIN, async || {
        let buffered = Scrape::of(&node).await.sum("longshore_jobs_buffered", &[("queue", "main")]);
        if (1.0..300.0).contains(&buffered) { Ok(()) } else { Err(buffered) }
    })
    .await;
    assert!(world.ends(&short, WITHIN).await.iter().all(|state| state == "completed"));
    let mut live = world.live_events("default").await;
    let long = world.publish("sleep").json(json!({"ms": 600_000})).await;
    live.until_published("started", &long).await;

    shows(
        &node,
        &[
            ("longshore_rate_limit_tokens", &left, 6.0),
            ("longshore_jobs_buffered", &[("queue", "main")], 0.0),
            ("longshore_workers_busy", &[("queue", "main")], 1.0),
            ("longshore_leases_held", &[], 1.0),
            ("longshore_lanes_unanswered", &[], 0.0),
        ],
    )
    .await;
    world.jetstream().delete_stream("LONGSHORE_JOBS_main_P9").await.unwrap();
    shows(&node, &[("longshore_lanes_unanswered", &[], 1.0)]).await;
}

/// Given an event log that takes nothing, when more jobs end than may be unconfirmed, then the node shows how many wait
/// for it; and given a server that does not answer, that it sends again. Once both are mended nothing waits any more.
#[tokio::test]
async fn what_waits_for_its_confirmation_is_shown() {
    let world = world().await;
    let node = on_a_free_port(world.node()).start().await;
    let mut log = world.jetstream().get_stream("LONGSHORE_EVENTS").await.unwrap();
    let right = log.info().await.unwrap().config.clone();
    let wrong = async_nats::jetstream::stream::Config { max_message_size: 16, ..right.clone() };
    world.jetstream().update_stream(&wrong).await.unwrap();

    let jobs = world.publish("noop").many((0..4_700).map(|number| json!(number))).await;

    let full = [("longshore_commits_in_flight", &[][..], 4_096.0), ("longshore_commits_waiting", &[][..], 512.0)];
    let scrape = shows(&node, &full).await;
    assert!(scrape.sum("longshore_event_log_refused_total", &[]) >= 1.0);
    assert!(scrape.sum("longshore_event_log_lag_seconds", &[]) >= 0.0);
    world.server().sigstop();
    eventually("what is sent again", WITHIN, async || {
        let repeated = Scrape::of(&node).await.sum("longshore_publishes_repeated_total", &[]);
        if repeated >= 1.0 { Ok(()) } else { Err(repeated) }
    })
    .await;
    let lag = Scrape::of(&node).await.sum("longshore_event_log_lag_seconds", &[]);
    assert!(lag > 0.0, "{lag}");
    world.server().sigcont();
    world.jetstream().update_stream(&right).await.unwrap();
    assert!(world.ends(&jobs, WITHIN).await.iter().all(|state| state == "completed"));
    let none =
        ["commits_in_flight", "commits_waiting", "event_log_lag_seconds"].map(|name| format!("longshore_{name}"));
    let none: Vec<Wanted<'_>> = none.iter().map(|name| (name.as_str(), &[][..], 0.0)).collect();
    shows(&node, &none).await;
}

/// Given two nodes, when they have worked, then either says what both have counted, by ten seconds; and when one of
/// them is killed, then what the other has counted is still there.
#[tokio::test]
async fn what_all_nodes_have_counted_is_kept_for_an_hour() {
    let world = world().await;
    let one = world.node().name("one").with("queues.main", "").start().await;
    let _other = world.node().name("other").with("queues.other", "").start().await;
    for number in 0..40 {
        let queue = if number < 15 { "other" } else { "main" };
        world.submit(json!({"type": "echo", "queue": queue, "run_id": format!("r-{number}")})).await;
    }
    world.submit(json!({"type": "fail", "payload": {"times": 1, "kind": "permanent"}})).await;
    let of = |stats: &serde_json::Value, name: &str| {
        let points = stats["points"].as_array().unwrap().clone();
        points.iter().map(|point| point[name].as_u64().unwrap()).sum::<u64>()
    };
    let both = eventually("what both have counted", WITHIN, async || {
        let stats = world.try_request("_all", "nodes.stats", json!({})).await.map_err(|error| error.to_string())?;
        let counted = ["enqueued", "ended", "failed"].map(|name| of(&stats, name));
        if counted == [41, 41, 1] { Ok(stats) } else { Err(stats.to_string()) }
    })
    .await;
    assert_eq!((&both["nodes"], &both["every_ms"]), (&json!(["one", "other"]), &json!(10_000)));
    let at: BTreeSet<&str> =
        both["points"].as_array().unwrap().iter().map(|point| point["at"].as_str().unwrap()).collect();
    assert_eq!(at.len(), both["points"].as_array().unwrap().len(), "a time stands once: {both}");
    let timed = |point: &serde_json::Value| point["wait"]["p50_ms"].as_u64() <= point["wait"]["p99_ms"].as_u64();
    assert!(both["points"].as_array().unwrap().iter().all(timed), "{both}");
    let said = say(&world, "nodes stats").await.out;
    let rows: Vec<Vec<&str>> = said.lines().map(|row| row.split_whitespace().collect()).collect();
    assert!(rows[3][..4] == ["hour", "41", "41", "1"] && said.contains("of one, other, counted since "), "{said}");
    one.kill9().await;
    let stats = world.try_request("_all", "nodes.stats", json!({})).await.unwrap();
    assert_eq!(stats["nodes"], json!(["other"]));
    assert_eq!(of(&stats, "ended"), 15, "{stats}");
}
