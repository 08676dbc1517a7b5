//! The program `history` against a real node: it passes a sound history, names each breach, and says when it cannot
//! read.
#![allow(clippy::unwrap_used, reason = "this whole file is tests; clippy excepts only the functions marked as such")]

use std::path::PathBuf;
use std::process::{Command, Output};

use jiff::{SignedDuration, Timestamp};
use longshore_harness::history::Call;
use longshore_harness::{Receipt, Reply, World, use_binary};
use serde_json::{Value, json};

const FLAKY: &str = "handler = 'fail'\nmax_attempts = 2\nbackoff = { base = '10ms', factor = 1.0, max = '10ms' }";

async fn world() -> World {
    let beside = || PathBuf::from(env!("CARGO_BIN_EXE_history")).with_file_name("longshore");
    let binary = std::env::var_os("LONGSHORE_BIN").map_or_else(beside, PathBuf::from);
    assert!(binary.exists(), "no {}: build it first, cargo build --bin longshore", binary.display());
    use_binary(binary);
    World::new().await
}

/// Runs the tool on the world's server.
fn history(world: &World, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_history"));
    command.env_clear().args(["--server", &world.server().url()]).args(arguments).output().unwrap()
}

/// The exit status and the findings, with the evidence on each violation's run.
fn judged(world: &World, arguments: &[&str]) -> (i32, Value) {
    let output = history(world, &[arguments, &["--json"]].concat());
    let error = String::from_utf8_lossy(&output.stderr);
    let report = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}: {error}", output.status));
    (output.status.code().unwrap(), report)
}

/// Kind and run of every violation.
fn found(report: &Value) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let violations = report["violations"].as_array().unwrap().iter();
    violations.map(|violation| (text(&violation["kind"]), text(&violation["run_id"]))).collect()
}

fn write(world: &World, name: &str, lines: impl IntoIterator<Item = Value>) -> String {
    let path = world.dir().join(name);
    let text: String = lines.into_iter().map(|line| format!("{line}\n")).collect();
    std::fs::write(&path, text).unwrap();
    path.display().to_string()
}

fn acknowledgement(receipt: &Receipt) -> Value {
    json!({"stream": receipt.stream, "seq": receipt.sequence})
}

fn call(call: &Call) -> Value {
    let end = call.end.map(|end| end.to_string());
    let Call { run_id, round, attempt, start, .. } = call;
    json!({"run_id": run_id, "round": round, "attempt": attempt, "start": start.to_string(), "end": end})
}

/// The runs of one day: one completed, one failed once, one died, one ran in a handler in another language, one waited
/// for its time.
struct Day {
    receipts: Vec<Value>,
    calls: Vec<Value>,
    completed: String,
    flaky: String,
    dead: String,
    remote: String,
}

async fn day(world: &World) -> Day {
    let node = world.node().with("types.flaky", FLAKY).with("types.render", "handler = 'remote'").start().await;
    let handler = world.handler("render").start(async |_| Reply::json(json!({"ok": true}))).await;
    let completed = world.publish("noop").send("{}").await.unwrap();
    let flaky = world.publish("flaky").send(r#"{"times":1}"#).await.unwrap();
    let dead = world.publish("flaky").send("{}").await.unwrap();
    let remote = world.publish("render").send("{}").await.unwrap();
    let later = world.publish("noop").header("Longshore-Delay", "500ms").send("{}").await.unwrap();
    let receipts = [&completed, &flaky, &dead, &remote, &later];
    for (receipt, state) in receipts.iter().zip(["completed", "completed", "dead", "completed", "completed"]) {
        assert_eq!(world.wait(&receipt.run_id).await.state, state);
    }
    let calls = handler.calls().iter().map(call).collect();
    // A stored record's event may be published a moment later; a node that has stopped has published everything.
    node.stop().await;
    let receipts = receipts.into_iter().map(acknowledgement).collect();
    let [completed, flaky, dead, remote] = [completed, flaky, dead, remote].map(|receipt| receipt.run_id);
    Day { receipts, calls, completed, flaky, dead, remote }
}

#[tokio::test]
async fn a_sound_day_passes_and_a_job_that_waits_is_said_to_wait() {
    let world = world().await;
    let mut day = day(&world).await;
    let receipts = write(&world, "receipts.jsonl", day.receipts.clone());
    let calls = write(&world, "calls.jsonl", day.calls);
    let all = ["--receipts", &receipts, "--calls", &calls, "--clock-skew", "5ms"];

    for passes in ["1", "3"] {
        let (status, report) = judged(&world, &[&all[..], &["--ended", "--passes", passes]].concat());
        assert_eq!((status, found(&report)), (0, vec![]), "{report:#}");
        assert_eq!(report["runs"], json!({"all": 5, "not_ended": 0, "lost": 0, "ended_just_now": 5, "not_judged": 0}));
        let looked = &report["looked_at"];
        assert_eq!((&looked["records"], &looked["dead_letters"]), (&json!(5), &json!(1)));
        assert_eq!((&looked["receipts"], &looked["calls"]), (&json!(5), &json!(1)));
        assert!(looked["events"].as_u64().unwrap() >= 19, "{looked}");
    }

    // No node takes this job.
    let waiting = world.publish("noop").send("{}").await.unwrap();
    day.receipts.push(acknowledgement(&waiting));
    let receipts = write(&world, "receipts.jsonl", day.receipts);
    let (status, report) = judged(&world, &["--receipts", &receipts]);
    assert_eq!((status, found(&report)), (0, vec![]), "{report:#}");
    let open = &report["not_ended"][0];
    let waits = format!("waits as message {} of LONGSHORE_JOBS_main_P5", waiting.sequence);
    assert_eq!((&open["run_id"], &open["last"]), (&json!(waiting.run_id), &json!(waits)));

    let (status, report) = judged(&world, &["--receipts", &receipts, "--ended"]);
    assert_eq!((status, found(&report)), (1, vec![("Lost".to_owned(), waiting.run_id)]), "{report:#}");
}

#[tokio::test]
async fn each_breach_is_named_with_its_run_and_the_evidence() {
    let world = world().await;
    let mut day = day(&world).await;
    let mut expected = Vec::new();

    // A job that never existed; and a receipt that names its run.
    day.receipts.push(json!({"stream": "LONGSHORE_JOBS_main_P5", "seq": 999}));
    expected.push(("Lost", "main-p5-999".to_owned()));

    // An event published again under its id with another content.
    let failed = world.events(&day.flaky).await.into_iter().find(|logged| logged.event.retry_at.is_some()).unwrap();
    let log = world.jetstream().get_stream("LONGSHORE_EVENTS").await.unwrap();
    let message = log.get_raw_message(failed.sequence).await.unwrap();
    let text = String::from_utf8(message.payload.to_vec()).unwrap();
    let mut line: Value = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .find(|line: &Value| line["id"] == *failed.event.id)
        .unwrap();
    line["retry_at"] = json!("2030-01-01T00:00:00.000Z");
    let publish = world.jetstream().publish("longshore.eventlog.default", line.to_string().into()).await.unwrap();
    publish.await.unwrap();
    expected.push(("Rewritten", day.flaky.clone()));

    // A record that is set back.
    let bucket = world.jetstream().get_key_value("longshore_runs").await.unwrap();
    let key = format!("default.{}", day.completed);
    let mut record: Value = serde_json::from_slice(&bucket.get(&key).await.unwrap().unwrap()).unwrap();
    record["state"] = json!("enqueued");
    bucket.put(&key, record.to_string().into()).await.unwrap();
    expected.push(("RecordDisagrees", day.completed.clone()));

    // A dead letter deleted without the cluster's knowledge.
    let dead_letter = world.dead_letters("default").await.pop().unwrap();
    let dead_letters = world.jetstream().get_stream("LONGSHORE_DLQ").await.unwrap();
    assert!(dead_letters.delete_message(dead_letter.sequence).await.unwrap());
    expected.push(("DeadLetterMissing", day.dead.clone()));

    // Two calls at once; the second belongs to an attempt that no node published.
    let mut second = day.calls[0].clone();
    let start: Timestamp = second["start"].as_str().unwrap().parse().unwrap();
    day.calls[0]["end"] = json!((start + SignedDuration::from_millis(900)).to_string());
    second["start"] = json!((start - SignedDuration::from_millis(100)).to_string());
    second["attempt"] = json!(2);
    second["end"] = json!((start + SignedDuration::from_millis(100)).to_string());
    day.calls.push(second);
    expected.extend([("CallUnpublished", day.remote.clone()), ("Overlap", day.remote.clone())]);

    let receipts = write(&world, "receipts.jsonl", day.receipts);
    let calls = write(&world, "calls.jsonl", day.calls);
    let all = ["--receipts", &receipts, "--calls", &calls];
    // The world is at rest, so these options make no difference.
    for more in [&["--ended"][..], &["--settle", "0s"], &["--settle", "0s", "--passes", "2"]] {
        let (status, report) = judged(&world, &[&all[..], more].concat());
        let mut found = found(&report);
        let mut expected: Vec<_> = expected.iter().map(|(kind, run)| ((*kind).to_owned(), run.clone())).collect();
        found.sort();
        expected.sort();
        assert_eq!((status, found), (1, expected), "{report:#}");
    }

    let text = String::from_utf8(history(&world, &[&all[..], &["--ended"]].concat()).stdout).unwrap();
    let report = format!("run default/{}\n", day.flaky);
    assert!(text.contains(&report) && text.contains("retry_at 2030-01-01T00:00:00Z"), "{text}");
    assert!(
        text.ends_with(
            "6 violations (Lost 1, Rewritten 1, RecordDisagrees 1, DeadLetterMissing 1, Overlap 1, CallUnpublished 1)\n"
        ),
        "{text}"
    );
}

#[tokio::test]
async fn what_cannot_be_read_is_neither_sound_nor_unsound() {
    let world = world().await;
    let output = history(&world, &[]);
    assert_eq!(output.status.code(), Some(2));
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.starts_with("error: stream LONGSHORE_EVENTS"), "{error}");

    world.node().start().await.stop().await;
    assert_eq!(history(&world, &[]).status.code(), Some(0), "nothing has run, nothing is wrong");
    let broken = write(&world, "receipts.jsonl", [json!({"run_id": "a"}), json!({"seq": 7})]);
    let output = history(&world, &["--receipts", &broken]);
    assert_eq!(output.status.code(), Some(2));
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("receipts.jsonl:2: neither run_id nor stream and seq"), "{error}");
}
