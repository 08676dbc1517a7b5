//! Nodes of one queue with different handlers in Rust share it without harm.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use longshore::{Configuration, Connection, Context, HandlerError, Handlers, Node, Success, handlers, typed};
use longshore_harness::{EventName, World, eventually};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tokio::sync::{Notify, mpsc};

use crate::{AT_ONCE, served_by, world};

/// A node in this process, as a Rust program of a user's own would start it.
async fn start(world: &World, name: &str, settings: &str, handlers: Handlers) -> Node {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), format!("[node]\nname = '{name}'\n{settings}")).unwrap();
    let configuration = Configuration::load(Some(file.path()), &[], &handlers).unwrap();
    let connection = Connection::to(world.server().url());
    Node::start(configuration.settings().clone(), connection, handlers).await.unwrap()
}

/// The same in a runtime of its own, so that it can die without a word.
async fn start_mortal(
    world: &World,
    name: &'static str,
    settings: &'static str,
    handlers: Handlers,
) -> (Runtime, Node) {
    let url = world.server().url().to_owned();
    let starting = tokio::task::spawn_blocking(move || {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let node = runtime.block_on(async {
            let file = tempfile::NamedTempFile::new().unwrap();
            std::fs::write(file.path(), format!("[node]\nname = '{name}'\n{settings}")).unwrap();
            let configuration = Configuration::load(Some(file.path()), &[], &handlers).unwrap();
            Node::start(configuration.settings().clone(), Connection::to(&url), handlers).await.unwrap()
        });
        (runtime, node)
    });
    starting.await.unwrap()
}

/// Given two nodes of one queue, one of which has a handler of its own, when jobs of its type are published, then all
/// of them run at their first attempt, none is deferred, and both nodes hold some.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn jobs_run_where_their_handler_is() {
    const JOBS: usize = 200;
    #[derive(Deserialize)]
    struct Greet {
        name: String,
    }
    let world = world().await;
    let plain = world.node().name("plain").start().await;
    let greet = async |greet: Greet, context: Context| -> Result<Value, HandlerError> {
        tokio::time::sleep(Duration::from_millis(5)).await;
        Ok(json!({"said": format!("Hello, {}!", greet.name), "own": context.headers.len()}))
    };
    let own = start(&world, "own", "", handlers::built_in().with("greet", typed(greet))).await;

    let publish = world.publish("greet").header("X-Mine", "1");
    let jobs = publish.many((0..JOBS).map(|number| json!({"name": number.to_string()}))).await;
    let mut by_plain = 0;
    for (number, receipt) in jobs.iter().enumerate() {
        let end = world.wait(&receipt.run_id).await;
        assert_eq!((end.state.as_str(), end.attempt), ("completed", 1), "{end:?}");
        assert_eq!(end.result, Some(json!({"said": format!("Hello, {number}!"), "own": 1})));
        by_plain += usize::from(end.node.as_deref() == Some("plain"));
    }

    assert!((1..JOBS).contains(&by_plain), "{by_plain} of {JOBS} were held by the node without the handler");
    crate::is_emptied(&world).await;
    let log = world.event_log("default").await;
    let deferred = log.iter().filter(|logged| logged.event.event == EventName::Deferred).count();
    assert_eq!(deferred, 0, "no job waited for a handler");
    plain.stop().await;
    own.drain().await.unwrap();
    world.history(&[], Vec::new()).await.assert_sound();
}

/// Given a handler of another node, when it fails, snoozes, panics, reports or writes into the log, then the run shows
/// what it would show in the node itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_handler_of_another_node_says_what_it_would_say_at_home() {
    let world = world().await;
    let settings = served_by("remote", &format!("max_attempts = 2\n{AT_ONCE}"));
    let plain = world.node().with("types.own", &settings).start().await;
    let calls = Arc::new(AtomicUsize::new(0));
    let handler = move |context: Context| {
        let first = calls.fetch_add(1, Ordering::Relaxed) == 0;
        async move {
            context.log(format!("attempt {}", context.attempt)).await;
            context.progress(&json!({"percent": 40})).await;
            match context.json::<String>()?.as_str() {
                "snooze" if first => return Ok(Success::Snooze(Duration::from_millis(10))),
                "snooze" => {}
                "panic" => panic!("as asked"),
                "retryable" => Err(std::io::Error::other("disk\nfull"))?,
                permanent => return Err(HandlerError::permanent(permanent)),
            }
            Ok(Success::from(json!("done")))
        }
    };
    // Its own queue: each job is held by the other node.
    let own = start(&world, "own", "[queues.other]\n", handlers::built_in().with("own", handler)).await;

    for (payload, state, attempts, error) in [
        ("snooze", "completed", 1, None),
        ("panic", "dead", 2, Some(("retryable", "the handler panicked: as asked"))),
        ("retryable", "dead", 2, Some(("retryable", "disk full"))),
        ("no such file", "dead", 1, Some(("permanent", "no such file"))),
    ] {
        let run = world.publish("own").json(json!(payload)).await;
        let end = world.wait(&run).await;
        let said = end.error.as_ref().map(|error| (error.kind.as_str(), error.message.as_str()));
        assert_eq!((end.state.as_str(), end.attempt, said), (state, attempts, error), "{payload}");
        assert_eq!(end.rest["progress"], json!({"percent": 40}), "{payload}");
        let last = end.rest["log"].as_array().unwrap().last().unwrap();
        assert_eq!((&last["line"], &last["attempt"]), (&json!(format!("attempt {attempts}")), &json!(attempts)));
    }
    own.drain().await.unwrap();
    plain.stop().await;
    world.history(&[], Vec::new()).await.assert_sound();
}

/// Given a job that another node's handler works on, when the run is cancelled, then the handler is asked to stop.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_handler_of_another_node_is_asked_to_stop() {
    let world = world().await;
    let _plain = world.node().start().await;
    let (sender, mut receiver) = mpsc::unbounded_channel();
    let handler = move |context: Context| {
        let sender = sender.clone();
        async move {
            sender.send("began").unwrap();
            context.cancelled().await;
            sender.send("stopped").unwrap();
            Ok::<_, HandlerError>(())
        }
    };
    let own = start(&world, "own", "[queues.other]\n", handlers::built_in().with("own", handler)).await;
    let run = world.publish("own").json(json!({})).await;
    assert_eq!(receiver.recv().await, Some("began"));
    let cancelled = world.request("runs.cancel", json!({"run_id": run})).await;
    assert_eq!(receiver.recv().await, Some("stopped"), "{cancelled:?}");
    assert_eq!(world.wait(&run).await.state, "cancelled");
    own.drain().await.unwrap();
}

/// Given a node that drains while its handler works for another node, when the grace time is over, then the attempt is
/// handed back without being used up, and runs at the next node that has the handler.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_drain_hands_back_what_runs_for_others() {
    let world = world().await;
    let plain = world.node().start().await;
    let (began, begins) = (Arc::new(Notify::new()), Arc::new(AtomicUsize::new(0)));
    let handler = {
        let (began, begins) = (Arc::clone(&began), Arc::clone(&begins));
        move |_: Context| {
            let is_first = begins.fetch_add(1, Ordering::Relaxed) == 0;
            began.notify_one();
            async move {
                if is_first {
                    std::future::pending::<()>().await;
                }
                Ok::<_, HandlerError>(())
            }
        }
    };
    let handlers = handlers::built_in().with("own", handler);
    let first = start(&world, "first", "shutdown_grace = '100ms'\n[queues.other]\n", handlers.clone()).await;
    let run = world.publish("own").json(json!({})).await;
    began.notified().await;
    let second = start(&world, "second", "[queues.other]\n", handlers).await;
    first.drain().await.unwrap();
    let end = world.wait(&run).await;
    assert_eq!((end.state.as_str(), end.attempt, begins.load(Ordering::Relaxed)), ("completed", 1, 2));
    second.drain().await.unwrap();
    plain.stop().await;
    world.history(&[], Vec::new()).await.assert_sound();
}

/// Given a handler of another node whose reply a server takes along as it dies, when the server is back, then the reply
/// comes again, and the handler is not called again.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_reply_that_is_lost_with_its_server_comes_again() {
    let world = world().await;
    let plain = world.node().start().await;
    let (began, replies, calls) = (Arc::new(Notify::new()), Arc::new(Notify::new()), Arc::new(AtomicUsize::new(0)));
    let handler = {
        let (began, replies, calls) = (Arc::clone(&began), Arc::clone(&replies), Arc::clone(&calls));
        move |_: Context| {
            let (began, replies) = (Arc::clone(&began), Arc::clone(&replies));
            calls.fetch_add(1, Ordering::Relaxed);
            async move {
                began.notify_one();
                replies.notified().await;
                Ok::<_, HandlerError>(json!("once"))
            }
        }
    };
    let own = start(&world, "own", "[queues.other]\n", handlers::built_in().with("own", handler)).await;
    let run = world.publish("own").json(json!({})).await;
    began.notified().await;

    world.server().sigstop();
    replies.notify_one();
    // By the time that the node misses the server's answers it has long replied.
    eventually("a node that has lost its server", Duration::from_secs(60), async || {
        let (reasons, _) = own.observer().reasons_and_warnings().await;
        if reasons.iter().any(|reason| reason.contains("not connected")) { Ok(()) } else { Err(format!("{reasons:?}")) }
    })
    .await;
    world.server().kill9().await;
    world.server().restart().await.unwrap();

    let end = world.wait(&run).await;
    assert_eq!((end.state.as_str(), end.attempt, end.result), ("completed", 1, Some(json!("once"))));
    assert_eq!(calls.load(Ordering::Relaxed), 1);
    own.drain().await.unwrap();
    plain.stop().await;
    world.history(&[], Vec::new()).await.assert_sound();
}

/// Given a node that dies while its handler works for another node, when the lease is over, then the attempt is lost
/// and the next one runs elsewhere.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_death_of_a_node_ends_the_attempts_that_it_runs_for_others() {
    let world = world().await;
    let plain = world.node().with("node", "lease = '3s'").with("types.own", AT_ONCE).start().await;
    let began = Arc::new(Notify::new());
    let stuck = {
        let began = Arc::clone(&began);
        typed(move |is_stuck: bool, _| {
            let began = Arc::clone(&began);
            async move {
                if is_stuck {
                    began.notify_one();
                    std::future::pending::<()>().await;
                }
                Ok::<_, HandlerError>("first")
            }
        })
    };
    let lease = "lease = '3s'\n[queues.other]\n";
    let (runtime, first) = start_mortal(&world, "first", lease, handlers::built_in().with("own", stuck)).await;
    // By the end of this one the node knows what the handler promises.
    let run = world.publish("own").json(json!(false)).await;
    assert_eq!(world.wait(&run).await.result, Some(json!("first")));
    let run = world.publish("own").json(json!(true)).await;
    began.notified().await;
    runtime.shutdown_background();
    let handler = async |_: Context| Ok::<_, HandlerError>(json!("second"));
    let second = start(&world, "second", lease, handlers::built_in().with("own", handler)).await;
    let end = world.wait(&run).await;
    let kind = end.attempts[0].error.as_ref().map(|error| error.kind.as_str());
    assert_eq!((end.state.as_str(), end.attempt, kind), ("completed", 2, Some("lease_expired")));
    drop(first);
    second.drain().await.unwrap();
    plain.stop().await;
}
