//! A node whose machine's clock is wrong does its work as well as the others, harms nobody, and says that it is wrong.

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use longshore_harness::false_clock::can_be_false;
use longshore_harness::{EventName, Handler, Node, Reply, Scrape, World, eventually};
use serde_json::{Value, json};

use crate::http::{on_a_free_port, page};
use crate::{in_future, served_by, world};

const WITHIN: Duration = Duration::from_secs(120);
/// The cluster's time is measured; this is far more than it is ever off on one machine.
const EXACT: SignedDuration = SignedDuration::from_millis(50);
/// How late a job may be: the promise is some seconds, and the machine may be busy.
const LATE: SignedDuration = SignedDuration::from_secs(15);
const DELAY: SignedDuration = SignedDuration::from_secs(6);
const PAUSE: Duration = Duration::from_secs(6);

/// Two nodes with clocks so many seconds off.
async fn nodes(world: &World, clocks: [i64; 2]) -> Vec<Node> {
    let mut nodes = Vec::new();
    for ahead in clocks {
        let node = on_a_free_port(world.node())
            .with("node", "lease = '3s'")
            .with("types.limited", &served_by("noop", "rate_limit = { rate = 10, per = '1s', burst = 20 }"));
        nodes.push(if ahead == 0 { node } else { node.clock(ahead) }.start().await);
    }
    nodes
}

async fn answers(world: &World, job_type: &str) -> Handler {
    world.handler(job_type).start(|_| async { Reply::json(json!(1)) }).await
}

/// When each run began, by the clock of this machine, which is the server's.
fn begun(handler: &Handler) -> Vec<(String, Timestamp)> {
    handler.calls().into_iter().map(|call| (call.run_id, call.start)).collect()
}

/// Jobs of every form of delay; each with the earliest and the latest moment at which it may be due.
async fn delayed(world: &World) -> Vec<(String, Timestamp, Timestamp)> {
    let mut jobs = Vec::new();
    for nth in 0..12 {
        let from = Timestamp::now();
        let at = format!("{:.3}", from + DELAY);
        let run = match nth % 4 {
            0 => world.submit(json!({"type": "later", "delay_ms": DELAY.as_millis() as u64})).await,
            1 => world.submit(json!({"type": "later", "run_at": at})).await,
            2 => world.publish("later").header("Longshore-Delay", "6s").json(json!({})).await,
            _ => world.publish("later").header("Longshore-Run-At", &at).json(json!({})).await,
        };
        jobs.push((run, from + DELAY, Timestamp::now() + DELAY));
    }
    jobs
}

#[track_caller]
fn assert_in_time(what: &str, begun: &[(String, Timestamp)], (run, from, until): &(String, Timestamp, Timestamp)) {
    let times: Vec<Timestamp> = begun.iter().filter(|(of, _)| of == run).map(|(_, at)| *at).collect();
    assert!(
        times.len() == 1 && times[0] >= *from - EXACT && times[0] <= *until + LATE,
        "{what} {run}: due from {from} to {until}, began at {times:?}"
    );
}

/// The schedule has a run for each of its times without a gap, each once and in time.
async fn assert_steady(ticks: &Handler, every: i64) {
    ticks.called(6).await;
    let begun = begun(ticks);
    let due = |run: &str| -> i64 { run.rsplit_once('-').unwrap().1.parse().unwrap() };
    let times: BTreeSet<i64> = begun.iter().map(|(run, _)| due(run)).collect();
    let (first, last) = (*times.first().unwrap(), *times.last().unwrap());
    let all: BTreeSet<i64> = (0..=(last - first) / every).map(|nth| first + nth * every).collect();
    assert_eq!((&times, begun.len()), (&all, all.len()), "a time is missing, or one came twice");
    for (run, _) in &begun {
        let at = Timestamp::from_millisecond(due(run)).unwrap();
        assert_in_time("firing", &begun, &(run.clone(), at, at));
    }
}

/// Jobs of a type that is paused for a time: some of them expire meanwhile, the others much later.
async fn assert_pause_lasts(world: &World) {
    let held = answers(world, "held").await;
    let (until, over) = (in_future(PAUSE), Timestamp::now() + SignedDuration::try_from(PAUSE).unwrap());
    world.ask("_all", "queues.pause", json!({"type": "held", "until": until}).to_string(), WITHIN).await.unwrap();
    let (mut short, mut long) = (Vec::new(), Vec::new());
    for _ in 0..5 {
        short.push(world.publish("held").header("Longshore-Expires-In", "2s").json(json!({})).await);
        long.push(world.publish("held").header("Longshore-Expires-In", "60s").json(json!({})).await);
    }
    for run in &long {
        assert_eq!(world.wait_as("default", run, WITHIN).await.state, "completed");
        assert_in_time("paused", &begun(&held), &(run.clone(), over, over));
    }
    for run in &short {
        assert_eq!(world.wait_as("default", run, WITHIN).await.state, "expired", "{run}");
    }
}

/// No more starts of the limited type than its bucket allows, in any second; by the cluster's time.
async fn assert_limit_holds(world: &World) {
    let from = Timestamp::now();
    let sent = world.publish("limited").many((0..50).map(|_| json!({}))).await;
    for receipt in &sent {
        assert_eq!(world.wait_as("default", &receipt.run_id, WITHIN).await.state, "completed");
    }
    let until = Timestamp::now();
    // The log has the events a moment after the records are written.
    let mut starts: Vec<Timestamp> = eventually("50 starts in the log", WITHIN, async || {
        let logged = world.event_log("default").await.into_iter().map(|logged| logged.event);
        let started = logged.filter(|event| event.job_type == "limited" && event.event == EventName::Started);
        let starts: Vec<Timestamp> = started.map(|event| event.at).collect();
        if starts.len() < 50 { Err(format!("{starts:?}")) } else { Ok(starts) }
    })
    .await;
    starts.sort_unstable();
    assert!(
        starts.len() == 50 && starts[0] >= from - EXACT && starts[49] <= until + EXACT,
        "{from} {until} {starts:?}"
    );
    for start in &starts {
        let within = starts.iter().filter(|at| *at >= start && **at < *start + SignedDuration::from_secs(1));
        assert!(within.count() <= 20 + 10 + 1, "{starts:?}");
    }
}

/// The node says how wrong its clock is: in `health`, in its log once, as a metric; and whether it is ready.
async fn assert_said(world: &World, node: &Node, ahead: i64) {
    eventually("the clock in the metrics", WITHIN, async || {
        let found = Scrape::of(node).await.value("longshore_clock_ahead_seconds", &[]);
        let is_it = found.is_some_and(|found| (found - ahead as f64).abs() < 0.5);
        if is_it { Ok(()) } else { Err(format!("{found:?}")) }
    })
    .await;
    let health = eventually("the health of that node", WITHIN, async || {
        let health = world.request("health", json!({})).await;
        if health["node"] == node.name() { Ok(health) } else { Err(health.to_string()) }
    })
    .await;
    let of_clock = |texts: &Value| texts.as_array().unwrap().iter().filter(|text| says_clock(text)).count();
    assert_eq!(of_clock(&health["warnings"]), usize::from(ahead != 0), "{health}");
    let ready = page(node, "/readyz").await;
    let far_off = ahead.abs() > 30;
    assert_eq!(
        (ready.status, of_clock(&ready.json()["reasons"])),
        (if far_off { 503 } else { 200 }, usize::from(far_off))
    );
    let words = "this machine's clock is";
    if ahead != 0 {
        crate::logged(node.log(), words).await;
    }
    let lines = node.log().since(0);
    let said = lines.iter().filter(|line| line.contains("\"WARN\"") && line.contains(words));
    assert_eq!(said.count(), usize::from(ahead != 0), "{lines:#?}");
}

fn says_clock(text: &Value) -> bool {
    text.as_str().is_some_and(|text| text.starts_with("this machine's clock is"))
}

async fn all_is_right_with(clocks: [i64; 2]) {
    if !can_be_false() {
        return;
    }
    let world = world().await;
    let mut system = world.listen("longshore.events._sys.clock_off.>").await;
    let nodes = nodes(&world, clocks).await;
    let (wrong, ahead) = nodes.iter().zip(clocks).find(|(_, ahead)| *ahead != 0).unwrap();
    let (ticks, later) = (answers(&world, "tick").await, answers(&world, "later").await);
    world.request("schedules.put", json!({"id": "s", "every": "2s", "type": "tick"})).await;

    let jobs = delayed(&world).await;
    tokio::join!(assert_pause_lasts(&world), assert_limit_holds(&world), async {
        later.called(jobs.len()).await;
        let begun = begun(&later);
        jobs.iter().for_each(|job| assert_in_time("delayed", &begun, job));
    });
    assert_steady(&ticks, 2_000).await;
    for (node, ahead) in nodes.iter().zip(clocks) {
        assert_said(&world, node, ahead).await;
    }
    let event = system.until("clock_off", |live| live.body["node"] == wrong.name()).await;
    assert!((event.body["ahead_seconds"].as_f64().unwrap() - ahead as f64).abs() < 0.5, "{event:?}");
    world.request("schedules.delete", json!({"id": "s"})).await;
    let mut history = world.history(&[], Vec::new()).await;
    history.rules.clock_skew = EXACT.unsigned_abs();
    history.assert_sound();
}

/// Given two nodes, when the clock of the first is an hour ahead, then no job, pause, expiry, limit or schedule is
/// early, late or lost, and that node says so and is not ready.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_hour_ahead_harms_nobody() {
    all_is_right_with([3_600, 0]).await;
}

/// The same with the second node's clock an hour behind.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_hour_behind_harms_nobody() {
    all_is_right_with([0, -3_600]).await;
}

/// The same with the second node's clock 20 s ahead: it warns, and is ready.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twenty_seconds_ahead_harm_nobody() {
    all_is_right_with([0, 20]).await;
}

/// The same with the first node's clock 5 s behind.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn five_seconds_behind_harm_nobody() {
    all_is_right_with([-5, 0]).await;
}

/// Given a schedule whose next time a clock that was wrong has put an hour ahead, then it fires at its own times again.
#[tokio::test]
async fn a_schedule_that_was_fired_ahead_comes_back() {
    let world = world().await;
    let _node = world.node().with("node", "lease = '3s'").start().await;
    let ticks = answers(&world, "tick").await;
    world.request("schedules.put", json!({"id": "s", "every": "2s", "type": "tick"})).await;
    let bucket = world.jetstream().get_key_value("longshore_schedules").await.unwrap();
    let far = in_future(Duration::from_secs(3_600));
    eventually("the next time an hour ahead", WITHIN, async || {
        let entry = bucket.entry("default.s").await.unwrap().unwrap();
        let mut schedule: Value = serde_json::from_slice(&entry.value).unwrap();
        schedule["progress"]["next"] = json!(far);
        let written = bucket.update("default.s", schedule.to_string().into(), entry.revision).await;
        written.map_err(|error| error.to_string())
    })
    .await;
    let before = ticks.calls().len();

    // One firing may have been under way.
    ticks.called(before + 3).await;

    let next = world.request("schedules.get", json!({"id": "s"})).await["next_run"][0].clone();
    let next: Timestamp = next.as_str().unwrap_or_else(|| panic!("{next}")).parse().unwrap();
    assert!(next <= Timestamp::now() + SignedDuration::from_secs(2), "{next}");
    world.request("schedules.delete", json!({"id": "s"})).await;
}
