//! A job that waits for its time runs, even if a lane is full or the server forgot its schedule.

use std::path::{Path, PathBuf};
use std::time::Duration;

use longshore_harness::{EventName, Scrape, World, eventually};
use serde_json::json;

use crate::cli::say;
use crate::http::on_a_free_port;
use crate::{WITHIN, workers, world};

/// More jobs than a timekeeper has slots.
const DUE: usize = 300;

/// Given a full lane and more due jobs for it than a node moves at once, when a job of another queue falls due, then
/// that job runs in time; health names the full lane, and the lane's jobs follow when it has space.
#[tokio::test]
async fn a_full_lane_does_not_stop_time() {
    let world = world().await;
    let node = workers(world.node(), 8).with("storage", "jobs_max_messages = 100");
    let node = on_a_free_port(node).with("queues.stuck", "concurrency = 1").start().await;
    let mut live = world.live_events("default").await;
    let mut system = world.listen("longshore.events._sys.lane_full.>").await;
    let sleeper = world.publish("sleep").queue("stuck").json(json!({"ms": 600_000})).await;
    live.until_published("started", &sleeper).await;
    world.publish("noop").queue("stuck").many((0..99).map(|_| json!({}))).await;

    let mut waiting = Vec::new();
    for _ in 0..DUE {
        waiting.push(world.submit(json!({"type": "noop", "queue": "stuck", "delay_ms": 200})).await);
    }
    let full = system.until("lane_full", |live| live.body["event"] == "lane_full").await;
    assert_eq!((full.body["queue"].as_str(), full.body["priority"].as_u64()), (Some("stuck"), Some(5)), "{full:?}");
    let health = world.request("health", json!({})).await;
    let mut warnings = health["warnings"].as_array().unwrap().clone();
    // The bounds of streams are looked at less often: that of the lane may be named by now.
    warnings.retain(|of| !of.as_str().unwrap().starts_with("stream LONGSHORE_JOBS_stuck_P5 is full: it holds 100 "));
    assert_eq!(warnings, [json!("queue stuck is full at priority 5: its due jobs wait")], "{health}");
    assert_eq!(health["ready"], json!(true), "other queues go on");

    let scrape = Scrape::of(&node).await;
    assert_eq!(scrape.sum("longshore_lanes_full", &[]) as u64, 1);
    assert!(scrape.sum("longshore_due_jobs_postponed_total", &[]) >= 1.0);

    let at = jiff::Timestamp::now();
    let other = world.submit(json!({"type": "noop", "delay_ms": 1_000})).await;
    assert_eq!(world.wait(&other).await.state, "completed");
    // If the full lane took all slots of the timekeeper, the job would never start.
    let took = jiff::Timestamp::now().duration_since(at);
    assert!(took.as_secs() < 15, "{took:?}");

    world.request("runs.cancel", json!({"run_id": sleeper})).await;
    for run in &waiting {
        assert_eq!(world.wait_as("default", run, WITHIN).await.state, "completed");
    }
    eventually("no full lane", WITHIN, async || {
        let health = world.request("health", json!({})).await;
        if health["warnings"] == json!([]) { Ok(()) } else { Err(health.to_string()) }
    })
    .await;
    node.stop().await;
    world.history(&[], Vec::new()).await.assert_sound();
}

/// Finds the file of that name anywhere below a folder.
fn find(dir: &Path, name: &str) -> Option<PathBuf> {
    let entries: Vec<PathBuf> = std::fs::read_dir(dir).ok()?.filter_map(|entry| Some(entry.ok()?.path())).collect();
    let here = entries.iter().find(|path| path.file_name().is_some_and(|found| found == name));
    here.cloned().or_else(|| entries.iter().filter(|path| path.is_dir()).find_map(|path| find(path, name)))
}

/// Makes the server forget which schedules it has to fire, while it is down; the messages stay. The server's list has a
/// version, a count, the last sequence, and the entries (server/scheduler.go).
pub(crate) fn forget_schedules(server: &Path) {
    let list = find(&find(server, "LONGSHORE_SCHEDULES").unwrap(), "sched.db").unwrap();
    let mut bytes = std::fs::read(&list).unwrap();
    assert!(bytes[0] == 1 && bytes[1] > 0, "{bytes:?}");
    bytes.truncate(17);
    bytes[1..9].fill(0);
    std::fs::write(&list, bytes).unwrap();
}

/// Waits until that many schedules are stored.
pub(crate) async fn scheduled(world: &World, wanted: u64) {
    eventually("schedules to stand", WITHIN, async || {
        let count = world.stored("LONGSHORE_SCHEDULES").await;
        if count == wanted { Ok(()) } else { Err(format!("{count}, not {wanted}")) }
    })
    .await;
}

/// Given jobs that wait for their time, when the server never fires their schedules, then they run all the same, once,
/// and the node logs it.
#[tokio::test]
async fn a_schedule_that_does_not_fire_is_made_up_for() {
    let world = world().await;
    let node = workers(world.node(), 8).with("node", "lease = '2s'").with("types.flaky", "handler = 'fail'");
    let slow = "backoff = { base = '4s', factor = 1.0, max = '4s', jitter = 'none' }";
    let node = node.with("defaults", slow).start().await;
    let mut live = world.live_events("default").await;
    let mut runs = Vec::new();
    for number in 0..5 {
        runs.push(world.submit(json!({"type": "echo", "payload": number, "delay_ms": 4_000})).await);
        runs.push(world.publish("flaky").json(json!({"times": 1})).await);
    }
    for run in runs.iter().skip(1).step_by(2) {
        live.until_published("failed", run).await;
    }
    scheduled(&world, 10).await;

    world.server().stop().await.unwrap();
    forget_schedules(world.server().dir());
    world.server().restart().await.unwrap();

    for run in &runs {
        assert_eq!(world.wait(run).await.state, "completed");
    }
    crate::logged(node.log(), "schedules were overdue and had not fired").await;
    scheduled(&world, 0).await;
    node.stop().await;
    world.history(&[], Vec::new()).await.assert_sound();
}

/// Given a run that waits for its time, when its schedule is gone, then the node names the run in the log, once; a run
/// whose time has not come is not named.
#[tokio::test]
async fn a_run_that_nothing_can_bring_on_is_named() {
    let world = world().await;
    let node = workers(world.node(), 8).with("node", "lease = '2s'").start().await;
    let gone = world.submit(json!({"type": "noop", "delay_ms": 1_500})).await;
    let later = world.submit(json!({"type": "noop", "delay_ms": 600_000})).await;
    let stream = world.jetstream().get_stream("LONGSHORE_SCHEDULES").await.unwrap();
    stream.purge().filter(format!("longshore.schedules.default.{gone}")).await.unwrap();

    let words = "neither a schedule nor a message";
    let line = crate::logged(node.log(), words).await;
    assert!(line.contains(&gone), "{line}");
    // Two more sweeps.
    tokio::time::sleep(Duration::from_secs(3)).await;
    let named: Vec<String> = node.log().since(0).into_iter().filter(|line| line.contains(words)).collect();
    assert_eq!(named.len(), 1, "{named:?}");
    assert!(!named[0].contains(&later));
    node.stop().await;
}

/// Given a running job whose node dies after somebody deleted its lane, when a lease is over, then another node names
/// the run in the log, once, `doctor` and `why` say what to do, and the run can be cancelled, which the event log has
/// as well; a run that a node works on is not named.
#[tokio::test]
async fn a_running_run_that_lost_its_message_is_named() {
    let world = world().await;
    let node = |name: &str| workers(world.node().name(name), 2).with("node", "lease = '2s'").start();
    let mut live = world.live_events("default").await;
    let one = node("n1").await;
    let lost = world.publish("sleep").json(json!({"ms": 600_000})).await;
    live.until_published("started", &lost).await;
    world.eventually_is(&lost, "running", WITHIN).await;
    let two = node("n2").await;
    let held = world.publish("sleep").priority(4).json(json!({"ms": 600_000})).await;
    live.until_published("started", &held).await;
    world.jetstream().delete_stream("LONGSHORE_JOBS_main_P5").await.unwrap();
    one.kill9().await;

    let words = "no node works on it, and no message of it is left";
    let line = crate::logged(two.log(), words).await;
    assert!(line.contains(&lost), "{line}");
    let found = say(&world, "doctor --json").await.json();
    let said = |finding: &&serde_json::Value| finding["text"].as_str().unwrap().contains("nothing can bring on");
    let finding = found["findings"].as_array().unwrap().iter().find(said).unwrap();
    assert!(finding["remedy"].as_str().unwrap().contains("longshore runs cancel"), "{finding}");

    let why = async |run: &str| say(&world, &format!("why {run}")).await.out;
    let output = why(&lost).await;
    assert!(output.contains("It waits for nothing: no node works on it, and no message of it is left."), "{output}");
    assert!(
        output.contains(&format!("longshore runs cancel {lost} ends it")) && !output.contains("another node"),
        "{output}"
    );
    let output = why(&held).await;
    assert!(output.contains("has been running for") && !output.contains("runs cancel"), "{output}");

    assert_eq!(world.request("runs.cancel", json!({"run_id": lost})).await["state"], "cancelled");
    assert_eq!(world.request("runs.cancel", json!({"run_id": held})).await["state"], "cancelled");
    eventually("the log to have both ends", WITHIN, async || {
        let log = world.event_log("default").await;
        let ends = log.iter().filter(|logged| logged.event.event == EventName::Cancelled);
        let ended: Vec<&str> = ends.map(|logged| logged.event.run_id.as_str()).collect();
        if [&lost, &held].iter().all(|run| ended.contains(&run.as_str())) { Ok(()) } else { Err(format!("{log:?}")) }
    })
    .await;
    let named: Vec<String> = two.log().since(0).into_iter().filter(|line| line.contains(words)).collect();
    assert_eq!(named.len(), 1, "{named:?}");
    two.stop().await;
}
