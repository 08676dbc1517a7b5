//! A handler that neither ends in time nor reacts to a request to stop costs its attempt, not the node.

use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use longshore::{Configuration, Connection, Context, HandlerError, Node, handlers};
use longshore_harness::{Scrape, SlowLink};
use serde_json::json;

use crate::world;

/// Blocks its thread the first time, which no handler should do.
async fn block(context: Context) -> Result<(), HandlerError> {
    if context.attempt == 1 {
        std::thread::sleep(Duration::from_secs(8));
    }
    Ok(())
}

/// Given a handler in a node's own process that blocks its thread past its limit, when the node notices that, then the
/// attempt is a time-out, the next one runs on a new worker, and other jobs never had to wait.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_handler_that_blocks_its_thread_loses_its_attempt() {
    let world = world().await;
    let handlers = handlers::built_in().with("block", block);
    let settings =
        "[types.block]\ntimeout = '500ms'\nbackoff = { delays = ['10ms'] }\n[queues.main]\nconcurrency = 2\n";
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), settings).unwrap();
    let configuration = Configuration::load(Some(file.path()), &[], &handlers).unwrap();
    let node =
        Node::start(configuration.settings().clone(), Connection::to(world.server().url()), handlers).await.unwrap();

    let blocks = world.publish("block").json(json!({})).await;
    let others = world.publish("noop").many((0..50).map(|number| json!(number))).await;
    for receipt in &others {
        assert_eq!(world.wait(&receipt.run_id).await.state, "completed");
    }
    let end = world.wait(&blocks).await;
    assert_eq!((end.state.as_str(), end.attempt), ("completed", 2));
    let error = end.attempts[0].error.as_ref().unwrap();
    assert_eq!(error.kind, "timeout");
    assert!(error.message.contains("nor reacted"), "{error:?}");
    world.eventually_reads(&blocks, "enqueued\nstarted 1\nfailed 1 timeout\nstarted 2\ncompleted 2").await;
    let counted = Scrape::read(&node.metrics().text());
    assert_eq!(
        counted.value("longshore_handlers_unresponsive_total", &[("queue", "main"), ("type", "block")]),
        Some(1.0)
    );
    node.drain().await.unwrap();
}

/// Given a slow server, when the record of a long job is written, then its handler goes on meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_handler_goes_on_while_its_record_is_written() {
    /// How long the write takes: there and back.
    const WRITE: Duration = Duration::from_secs(2);
    let world = world().await;
    let link = SlowLink::to(&world, Duration::ZERO).await;
    let (began, mut begins) = tokio::sync::mpsc::unbounded_channel();
    let step = move |_: Context| {
        let began = began.clone();
        async move {
            began.send(()).unwrap();
            // What keeps a task beside it waiting is the machine.
            let (longest, beside) = tokio::join!(longest_wait(), tokio::spawn(longest_wait()));
            let more = longest.saturating_sub(beside.unwrap());
            Ok::<_, HandlerError>(json!(u64::try_from(more.as_millis()).unwrap()))
        }
    };
    let handlers = handlers::built_in().with("step", step);
    let configuration = Configuration::load(None, &[], &handlers).unwrap();
    let node = Node::start(configuration.settings().clone(), Connection::to(link.url()), handlers).await.unwrap();
    // A job that was there before the node gets its record before it starts.
    let first = world.publish("noop").json(json!({})).await;
    world.wait(&first).await;
    let receipt = world.publish("step").send("{}").await.unwrap();
    begins.recv().await.unwrap();
    link.takes(WRITE / 2);

    let ends = world.ends(std::slice::from_ref(&receipt), Duration::from_secs(60)).await;
    link.takes(Duration::ZERO);

    let end = world.record(&receipt.run_id).await.unwrap();
    assert_eq!((ends, end.attempt), (vec!["completed".to_owned()], 1));
    let longest = Duration::from_millis(end.result.unwrap().as_u64().unwrap());
    assert!(longest < WRITE / 2, "it was kept waiting for {longest:?} longer than a task beside it");
    node.drain().await.unwrap();
}

/// The longest of 150 waits of 20 ms.
async fn longest_wait() -> Duration {
    let mut longest = Duration::ZERO;
    for _ in 0..150 {
        let before = Instant::now();
        tokio::time::sleep(Duration::from_millis(20)).await;
        longest = longest.max(before.elapsed());
    }
    longest
}

/// Given more handlers than threads, which block in place, when each waits for all the others, then all of them run:
/// none waits for the thread that another one occupies.
#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn handlers_that_block_in_place_work_side_by_side() {
    const MEET: usize = 12;
    let world = world().await;
    let meeting = Arc::new(Barrier::new(MEET));
    let meet = move |_: Context| {
        let meeting = Arc::clone(&meeting);
        async move {
            tokio::task::block_in_place(|| meeting.wait());
            Ok::<(), HandlerError>(())
        }
    };
    let handlers = handlers::built_in().with("meet", meet);
    let configuration = Configuration::load(None, &[], &handlers).unwrap();
    let node =
        Node::start(configuration.settings().clone(), Connection::to(world.server().url()), handlers).await.unwrap();
    // A job that was there before the node is claimed first, over the network; all workers reach that point anyway.
    let first = world.publish("noop").json(json!({})).await;
    world.wait(&first).await;
    for receipt in world.publish("meet").many((0..MEET).map(|number| json!(number))).await {
        let end = world.wait(&receipt.run_id).await;
        assert_eq!((end.state.as_str(), end.attempt), ("completed", 1));
    }
    node.drain().await.unwrap();
}
