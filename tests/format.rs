//! What one version has stored the next one reads: a node refuses what is too new for it, keeps what it does not know,
//! and finishes what 0.1.0 has left.

use std::path::{Path, PathBuf};
use std::time::Duration;

use longshore_harness::{Node, World, eventually};
use serde_json::{Value, json};

use crate::{use_binary, without_node, world};

const WITHIN: Duration = Duration::from_secs(120);

/// Writes under a key of a bucket.
async fn write(world: &World, bucket: &str, key: &str, value: &Value) {
    let bucket = world.jetstream().get_key_value(bucket).await.unwrap();
    bucket.put(key, value.to_string().into()).await.unwrap();
}

/// What is stored under a key of a bucket.
async fn stored(world: &World, bucket: &str, key: &str) -> Value {
    let bucket = world.jetstream().get_key_value(bucket).await.unwrap();
    serde_json::from_slice(&bucket.get(key).await.unwrap().unwrap()).unwrap()
}

/// Adds a field that this version does not know to an object.
async fn add(world: &World, bucket: &str, key: &str, path: &str) {
    let mut value = stored(world, bucket, key).await;
    value.pointer_mut(path).unwrap()["colour"] = colour();
    write(world, bucket, key, &value).await;
}

fn colour() -> Value {
    json!({"name": "a \"red\" one", "parts": [1, null]})
}

/// Given data that say that only a newer version can read them, when a node starts, then it refuses, says which version
/// it needs, and changes nothing; data that this version can read it takes, also of a newer one.
#[tokio::test]
async fn a_node_refuses_data_that_only_a_newer_version_can_read() {
    let world = world().await;
    without_node(world.node()).await;
    let marked = stored(&world, "longshore_control", "min_reader").await;
    assert_eq!(marked, json!({"min_reader": 1, "version": env!("CARGO_PKG_VERSION")}));
    let longer = || world.node().with("storage", "events_max_age = '8d'");
    let age = async || world.jetstream().get_stream("LONGSHORE_EVENTS").await.unwrap().cached_info().config.max_age;

    let newer = json!({"min_reader": 2, "version": "0.7.0", "since": "2027"});
    write(&world, "longshore_control", "min_reader", &newer).await;
    let refused = longer().try_start().await.unwrap_err().to_string();
    assert!(refused.contains("what is stored here needs Longshore 0.7.0 or newer (format 2"), "{refused}");
    assert_eq!(age().await, Duration::from_secs(7 * 86_400));
    assert_eq!(stored(&world, "longshore_control", "min_reader").await, newer);

    write(&world, "longshore_control", "min_reader", &json!("none")).await;
    let refused = longer().try_start().await.unwrap_err().to_string();
    assert!(refused.contains("longshore_control.min_reader is not what nodes write"), "{refused}");

    let readable = json!({"min_reader": 1, "version": "0.7.0", "since": "2027"});
    write(&world, "longshore_control", "min_reader", &readable).await;
    without_node(longer()).await;
    assert_eq!(age().await, Duration::from_secs(8 * 86_400));
    assert_eq!(stored(&world, "longshore_control", "min_reader").await, readable);
}

/// Given records, a schedule and a pause to which a newer version has added fields, when this one runs, replays and
/// erases the jobs, fires and changes the schedule, and starts again, then those fields are there as before, but of
/// what was erased; and a schedule whose job has an option that this version does not know is left to nodes that do.
#[tokio::test]
async fn fields_of_a_newer_version_are_kept() {
    let world = world().await;
    let node = world.node().start().await;
    let (runs, schedules) = ("longshore_runs", "longshore_schedules");
    let (echoes, dies) = (json!({"type": "echo", "payload": 1}), json!({"type": "fail", "payload": {"times": 99}}));
    let mut keys = Vec::new();
    for mut job in [echoes, dies] {
        job["delay_ms"] = json!(600_000);
        job["max_attempts"] = json!(1);
        let run = world.submit(job).await;
        add(&world, runs, &format!("default.{run}"), "").await;
        world.request("runs.run_now", json!({"run_id": run})).await;
        assert!(world.wait(&run).await.is_terminal());
        keys.push(run);
    }
    let (done, dead) = (&keys[0], &keys[1]);
    world.eventually_dead_letters(1).await;
    assert_eq!(world.request("dlq.replay", json!({"run_id": dead})).await["replayed"], 1);
    eventually("a second death", WITHIN, async || {
        let record = world.record(dead).await.unwrap();
        if record.round == 2 && record.state == "dead" { Ok(()) } else { Err(record.state) }
    })
    .await;
    for (run, state) in [(done, "completed"), (dead, "dead")] {
        let record = stored(&world, runs, &format!("default.{run}")).await;
        assert_eq!((&record["state"], &record["colour"]), (&json!(state), &colour()), "{record}");
        let shown = world.request("runs.get", json!({"run_id": run})).await;
        assert_eq!(shown["colour"], json!(null), "it may be no field for clients");
    }
    world.request("runs.erase", json!({"run_id": done})).await;
    assert_eq!(stored(&world, runs, &format!("default.{done}")).await["colour"], json!(null));

    world.request("schedules.put", json!({"id": "tick", "every": "1s", "type": "noop"})).await;
    add(&world, schedules, "default.tick", "").await;
    let before = stored(&world, schedules, "default.tick").await["progress"].clone();
    eventually("a firing", WITHIN, async || {
        let now = stored(&world, schedules, "default.tick").await["progress"].clone();
        if now == before { Err(now) } else { Ok(()) }
    })
    .await;
    world.request("schedules.pause", json!({"id": "tick"})).await;
    world.request("schedules.put", json!({"id": "tick", "every": "1s", "type": "noop", "tags": ["more"]})).await;
    let schedule = stored(&world, schedules, "default.tick").await;
    assert_eq!((&schedule["colour"], &schedule["paused"]), (&colour(), &json!(true)), "{schedule}");
    world.request("schedules.put", json!({"id": "newer", "every": "1s", "type": "noop"})).await;
    add(&world, schedules, "default.newer", "/job").await;
    let newer = stored(&world, schedules, "default.newer").await;

    world.try_request("_all", "queues.pause", json!({"queue": "main"})).await.unwrap();
    add(&world, "longshore_control", "settings.pause.queue.main", "/pause").await;
    let setting = stored(&world, "longshore_control", "settings.pause.queue.main").await;
    node.restart().await;
    let queues = world.try_request("_all", "queues.list", json!({})).await.unwrap();
    assert_eq!(queues["queues"][0]["paused"], true, "{queues}");
    assert_eq!(stored(&world, "longshore_control", "settings.pause.queue.main").await, setting);
    eventually("a warning", WITHIN, async || {
        let said = world.try_request("_all", "health", json!({})).await.unwrap()["warnings"].to_string();
        if said.contains("longshore_schedules.default.newer") { Ok(()) } else { Err(said) }
    })
    .await;
    assert_eq!(stored(&world, schedules, "default.newer").await, newer);
}

/// What is kept is kept for ten years, so that the data of an old version are all there.
const SETTINGS: &str = "
[node]
lease = '2s'
[storage]
events_max_age = '3650d'
completed_max_age = '3650d'
failed_max_age = '3650d'
dlq_max_age = '3650d'
[audit]
max_age = '3650d'
[idempotency]
window = '3650d'
[queues.main]
[queues.bulk]
[types.one]
handler = 'sleep'
concurrency = 1
[types.later]
handler = 'fail'
backoff = { base = '20s', factor = 1.0, max = '20s', jitter = 'none' }
";

async fn node(world: &World) -> Node {
    world.node().config(SETTINGS).start().await
}

/// Where the data of each version are: a backup, and what is to become of it.
fn kept() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/format"))
}

async fn command(world: &World, arguments: &[&str]) {
    let output = world.command(arguments.iter().copied()).output().await.unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Jobs in all the states in which something of them is stored for as long as they wait; their run ids.
async fn fill(world: &World) -> Vec<String> {
    let mut runs = Vec::new();
    for _ in 0..4 {
        runs.push(world.publish("one").json(json!({"ms": 3_000})).await);
    }
    runs.push(world.publish("later").json(json!({"times": 1})).await);
    runs.push(world.publish("echo").header("Longshore-Delay", "20s").json(json!("delayed")).await);
    runs.push(world.submit(json!({"type": "echo", "delay_ms": 20_000, "payload": "submitted", "tags": ["a"]})).await);
    for priority in [1, 5, 9] {
        runs.push(world.publish("echo").queue("bulk").priority(priority).json(json!(priority)).await);
    }
    runs.push(world.publish("echo").queue("bulk").header("Longshore-Then", r#"{"type":"noop"}"#).json(json!(1)).await);
    runs
}

/// Makes what `what_an_older_version_left_is_finished` needs of this version: tests/format/README.md.
#[tokio::test]
#[ignore = "writes tests/format"]
async fn the_data_of_this_version_are_made() {
    use_binary();
    let world = World::new().await;
    let _node = node(&world).await;
    world.request_as("_all", "queues.pause", json!({"queue": "bulk"})).await;
    world.request_as("_all", "queues.put", json!({"queue": "put", "concurrency": 2})).await;
    world.request_as("_all", "limits.set", json!({"type": "limited", "rate": 7, "per_ms": 60_000})).await;
    world
        .request("schedules.put", json!({"id": "tick", "every": "1s", "type": "noop", "misfire_after_ms": 1_000}))
        .await;
    let keyed = json!({"type": "echo", "payload": "keyed", "idempotency_key": "order 17"});
    let done = world.submit(keyed.clone()).await;
    assert_eq!(world.wait(&done).await.state, "completed");
    let dead = world.publish("fail").json(json!({"kind": "permanent"})).await;
    world.eventually_dead_letters(1).await;
    let runs = fill(&world).await;
    eventually("jobs that are parked, delayed and retried", WITHIN, async || {
        let (parked, timed) = (world.stored("LONGSHORE_PARKED").await, world.stored("LONGSHORE_SCHEDULES").await);
        if parked == 3 && timed >= 4 { Ok(()) } else { Err(format!("{parked} parked, {timed} timed")) }
    })
    .await;

    let dir = kept().join(env!("CARGO_PKG_VERSION"));
    let _ = std::fs::remove_dir_all(&dir);
    command(&world, &["backup", dir.to_str().unwrap(), "--wait", "0s"]).await;
    let left = json!({"runs": runs, "dead": dead, "done": done, "keyed": keyed});
    std::fs::write(dir.join("left.json"), format!("{left:#}\n")).unwrap();
}

/// Given what each version before this one had stored, when it is restored, then nodes of this one finish all of it.
#[tokio::test]
async fn what_an_older_version_left_is_finished() {
    let dirs = std::fs::read_dir(kept()).unwrap().map(|entry| entry.unwrap().path());
    let dirs: Vec<PathBuf> = dirs.filter(|path| path.is_dir()).collect();
    assert!(dirs.iter().any(|dir| dir.ends_with("0.1.0")), "{dirs:?}");
    for dir in dirs {
        is_finished(&dir).await;
    }
}

async fn is_finished(dir: &Path) {
    use_binary();
    let world = World::new().await;
    let left: Value = serde_json::from_slice(&std::fs::read(dir.join("left.json")).unwrap()).unwrap();
    command(&world, &["restore", dir.to_str().unwrap()]).await;
    let (done, dead) = (left["done"].as_str().unwrap(), left["dead"].as_str().unwrap());
    assert_eq!(world.record(done).await.unwrap().state, "completed");
    let _node = node(&world).await;
    world.request_as("_all", "queues.resume", json!({"queue": "bulk"})).await;

    for run in left["runs"].as_array().unwrap() {
        let run = run.as_str().unwrap();
        let state = world.wait_as("default", run, WITHIN).await.state;
        assert_eq!(state, "completed", "{}", world.report_as("default", run).await);
    }
    let again = world.request("submit", left["keyed"].clone()).await;
    assert_eq!((&again["run_id"], &again["deduplicated"]), (&left["done"], &json!(true)), "{again}");
    assert_eq!(
        world.request("dlq.replay", json!({"run_id": dead, "set": {"payload": {"times": 0}}})).await["replayed"],
        1
    );
    assert_eq!(world.wait(dead).await.state, "completed");
    let events = world.event_log("default").await;
    let ended = |of: &str| events.iter().filter(|logged| logged.event.run_id.starts_with(of)).count();
    assert!(ended(done) >= 3, "the log of the old version is there: {}", ended(done));
    let before = world.request("schedules.get", json!({"id": "tick"})).await["last_run"].clone();
    eventually("a firing", WITHIN, async || {
        let now = world.request("schedules.get", json!({"id": "tick"})).await["last_run"].clone();
        if now == before { Err(now) } else { Ok(()) }
    })
    .await;
    world.request("schedules.pause", json!({"id": "tick"})).await;
    let put = world.request_as("_all", "queues.list", json!({})).await;
    assert!(put["queues"].as_array().unwrap().iter().any(|queue| queue["queue"] == "put"), "{put}");
    let limits = world.request_as("_all", "limits.list", json!({})).await;
    assert!(limits.to_string().contains("limited"), "{limits}");
    world.no_job_is_left(WITHIN).await;
    assert_eq!(world.dead_letters("*").await.len(), 0);
}
