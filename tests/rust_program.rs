//! A program in Rust has handlers of its own and a client in a few lines, and drains when it is asked to end.

use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use longshore::{Client, Connection, Context, HandlerError, typed};
use longshore_harness::EventName;
use longshore_natsd::{Log, Process, Signal};
use serde_json::json;

use crate::world;

/// Given a node that a program builds, when its client submits, publishes, cancels and listens, then everything is as
/// over the wire.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_program_has_handlers_and_a_client_in_a_few_lines() {
    let world = world().await;
    let connection = Connection::to(world.server().url());
    let add = typed(async |numbers: Vec<u32>, context: Context| {
        context.progress(&json!({"percent": 50})).await;
        context.log(format!("{} numbers", numbers.len())).await;
        Ok(numbers.iter().sum::<u32>())
    });
    let wait = async |context: Context| {
        context.cancelled().await;
        Ok::<_, HandlerError>(())
    };
    let node = longshore::node().handler("add", add).handler("wait", wait).set("LONGSHORE_HTTP__LISTEN", "off");
    let node = node.connection(connection.clone()).start().await.unwrap();
    let client = Client::connect(&connection, "longshore").await.unwrap();
    let events = client.events().await.unwrap();

    let job = client.job("add").payload(&[1, 2, 3]).unwrap().key("sum").priority(2).tag("small");
    let submitted = job.clone().submit().await.unwrap();
    assert!(job.submit().await.unwrap().deduplicated);
    let record = client.wait(&submitted.run_id, Duration::from_secs(60)).await.unwrap();
    assert_eq!(record.result.unwrap().get(), "6");
    assert_eq!((record.priority.number(), record.tags), (2, vec!["small".to_owned()]));
    assert_eq!((record.progress.unwrap().get(), record.log[0].line.as_str()), (r#"{"percent":50}"#, "3 numbers"));
    let published: Vec<String> = events.map(|event| event.unwrap().event).take(5).collect().await;
    assert_eq!(published, ["enqueued", "started", "progress", "log", "completed"]);

    let published = client.publish("wait", &()).await.unwrap();
    let mut events = std::pin::pin!(client.events_of(&published).await.unwrap());
    longshore_harness::eventually("a record that it runs", Duration::from_secs(60), async || {
        client.get(&published).await.map_err(|error| error.to_string())?.started_at.ok_or_else(|| "none".to_owned())
    })
    .await;
    assert_eq!(client.cancel(&published).await.unwrap().state.to_string(), "cancelled");
    while events.next().await.unwrap().unwrap().event != "cancelled" {}
    assert!(client.cancel(&submitted.run_id).await.unwrap_err().to_string().contains("has ended"));
    node.drain().await.unwrap();
    world.history(&[], Vec::new()).await.assert_sound();
}

/// Given the example of a node of one's own, when it gets SIGTERM in the middle of a job, then it hands the job back
/// without using up its attempt, and ends well.
#[tokio::test]
async fn a_signal_drains_a_program() {
    let world = world().await;
    let log = Arc::new(Log::open(world.dir().join("own.log")).unwrap());
    let mut command = Command::new(example("own_handler"));
    command.env("NATS_URL", world.urls()).env("LONGSHORE_NODE__SHUTDOWN_GRACE", "100ms");
    command.env("LONGSHORE_HTTP__LISTEN", "off");
    let (out, err) = (Arc::clone(&log), Arc::clone(&log));
    let process =
        Process::spawn(command, Box::new(move |line| out.push(line)), Box::new(move |line| err.push(line))).unwrap();
    log.seen(0, |line| line.contains("taking work")).await;
    let mut live = world.live_events("default").await;
    let run = world.publish("count").json(json!({"to": 1_000})).await;
    live.until_published("progress", &run).await;

    process.signal(Signal::TERM);

    assert!(process.ended().await.success(), "{}", log.tail(20));
    let released = world.events(&run).await.iter().any(|logged| logged.event.event == EventName::Released);
    let record = world.record(&run).await.unwrap();
    assert!(released && record.state == "enqueued", "{record:?}");
}

/// An example of this package, which is built first if it is not there: `cargo test` builds examples, but not if it is
/// to run one test program.
fn example(name: &str) -> PathBuf {
    let binary = PathBuf::from(env!("CARGO_BIN_EXE_longshore"));
    let built = binary.with_file_name("examples").join(name);
    if !built.exists() {
        let mut build = Command::new(env!("CARGO"));
        build.args(["build", "--example", name]).current_dir(env!("CARGO_MANIFEST_DIR"));
        if binary.parent().is_some_and(|folder| folder.ends_with("release")) {
            build.arg("--release");
        }
        assert!(build.status().unwrap().success(), "the example cannot be built");
    }
    built
}
