//! A job published with any NATS client runs to its end, and its events are published in order.

use serde_json::json;

use crate::world;

/// Given a node, when a job is published bare, then it completes under the id derived from its acknowledgement.
#[tokio::test]
async fn a_bare_publish_runs_to_completion() {
    let world = world().await;
    let _node = world.node().start().await;
    let run = world.publish("echo").json(json!({"a": 1})).await;
    assert_eq!(run, "main-p5-1");

    let end = world.wait(&run).await;

    assert_eq!((end.state.as_str(), end.attempt, end.result), ("completed", 1, Some(json!({"a": 1}))));
    world.eventually_reads(&run, "enqueued\nstarted 1\ncompleted 1").await;
}

/// Given a job that fails twice, when it is published, then it completes on its third attempt and the events say so.
#[tokio::test]
async fn a_job_that_fails_twice_completes_on_the_third_attempt() {
    let world = world().await;
    let quick = "handler = 'fail'\nbackoff = { base = '10ms', factor = 1.0, max = '10ms', jitter = 'none' }";
    let _node = world.node().with("types.flaky", quick).start().await;
    let run = world.publish("flaky").json(json!({"times": 2})).await;

    let end = world.wait(&run).await;

    assert_eq!((end.state.as_str(), end.attempt, end.attempts.len()), ("completed", 3, 3));
    let events = "enqueued\nstarted 1\nfailed 1 retryable\nstarted 2\nfailed 2 retryable\nstarted 3\ncompleted 3";
    world.eventually_reads(&run, events).await;
}

/// Given jobs published while no node ran, when a node starts, then each job's events are published in full and in
/// order.
#[tokio::test]
async fn events_of_jobs_published_while_no_node_was_up_are_complete() {
    let world = world().await;
    let node = world.node().start().await; // it makes the streams
    node.stop().await;
    let receipts = world.publish("noop").many((0..200).map(|number| json!(number))).await;

    node.restart().await;
    for receipt in &receipts {
        world.wait(&receipt.run_id).await;
    }

    node.stop().await; // by now it has published everything
    world.history(&receipts, Vec::new()).await.assert_sound();
}
