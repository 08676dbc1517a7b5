//! Of the jobs that come soon after each other under a debounce key, the last one runs, once, and no change is lost.

use std::time::Duration;

use longshore_harness::{Handler, World, eventually};
use serde_json::{Value, json};

use crate::one_run::echoing;
use crate::{WITHIN, times, without_node, workers, world};

const SOON: Duration = Duration::from_secs(30);

fn job(payload: usize, debounce: &Value) -> Value {
    json!({"type": "work", "payload": payload, "debounce": debounce})
}

/// The results of the runs that did some work, in the order of the handler's calls.
async fn results(world: &World, handler: &Handler) -> Vec<Value> {
    let mut results = Vec::new();
    for call in handler.calls() {
        results.push(world.wait(&call.run_id).await.result.unwrap_or_default());
    }
    results
}

/// Given jobs of one key that come faster than its wait, when they have come, then the last of them runs, once, not
/// before its wait is over; the others end as its duplicates, and a later job of the key is another run.
#[tokio::test]
async fn only_the_last_of_several_changes_runs() {
    let world = world().await;
    let handler = echoing(&world).await;
    let _node = world.node().start().await;
    let debounce = json!({"key": "document 7", "wait_ms": 3_000});
    let mut runs = Vec::new();
    for payload in 1..=5 {
        let answer = world.request("submit", job(payload, &debounce)).await;
        assert_eq!((&answer["state"], &answer["deduplicated"]), (&json!("scheduled"), &json!(false)), "{answer}");
        runs.push(answer["run_id"].as_str().unwrap().to_owned());
    }
    let last = runs.last().unwrap();

    let ended = world.wait(last).await;

    assert_eq!((ended.state.as_str(), ended.result), ("completed", Some(json!(5))));
    for (run, next) in runs.iter().zip(&runs[1..]) {
        let record = world.record(run).await.unwrap();
        assert_eq!((record.state.as_str(), record.duplicate_of.as_ref()), ("duplicate", Some(next)));
    }
    let later = world.request("submit", job(6, &debounce)).await;
    assert_eq!(world.wait(later["run_id"].as_str().unwrap()).await.result, Some(json!(6)));
    assert_eq!(results(&world, &handler).await, [json!(5), json!(6)]);
}

/// Given a bound on the whole wait, when jobs of the key come without end, then one runs all the same, and the last one
/// does in the end.
#[tokio::test]
async fn changes_that_never_end_do_not_put_the_job_off_for_ever() {
    let world = world().await;
    let handler = echoing(&world).await;
    let _node = world.node().start().await;
    let debounce = json!({"key": "k", "wait_ms": 2_000, "max_wait_ms": 2_500});
    let mut last = 0;
    while handler.calls().len() < 2 {
        last += 1;
        let answer = world.request("submit", job(last, &debounce)).await;
        assert_eq!(answer["deduplicated"], false, "{answer}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    eventually("the last change", SOON, async || match results(&world, &handler).await.last() {
        Some(result) if *result == json!(last) => Ok(()),
        other => Err(format!("{other:?} of {last}")),
    })
    .await;
}

/// Given a node that dies at some point of a submission, when the client submits another change and then no more, then
/// that last change is the last that runs.
#[tokio::test]
async fn the_last_change_is_not_lost_whatever_dies() {
    let world = world().await;
    let handler = echoing(&world).await;
    let quick = || workers(world.node().name("node"), 1).with("node", "lease = '2s'");
    without_node(quick()).await;
    for round in 0..times("LONGSHORE_TEST_KILLS", 1) {
        for point in ["before-note", "after-note", "after-make-way", "after-schedule", "after-key-mark", "after-mark"] {
            let debounce = json!({"key": format!("{point}-{round}"), "wait_ms": 2_000});
            let node = quick().start().await;
            world.request("submit", job(1, &debounce)).await;
            node.kill9().await;
            let node = quick().env("LONGSHORE_FAIL_POINTS", &format!("{point}=kill")).start().await;
            let cut_off = job(2, &debounce).to_string();
            // Not every submission comes past each point.
            let died = tokio::select! {
                _ = node.wait_exit(WITHIN) => true,
                answer = world.ask("default", "submit", cut_off, WITHIN) => answer.is_err(),
            };
            // If there was no answer, it is dead, or about to be.
            if died {
                node.wait_exit(WITHIN).await;
            } else {
                node.kill9().await;
            }
            let node = quick().start().await;
            let before = handler.calls().len();
            let answer = world.request("submit", job(3, &debounce)).await;
            let end = world.wait(answer["run_id"].as_str().unwrap()).await;
            crate::is_emptied(&world).await;
            eventually("no schedule", SOON, async || match world.stored("LONGSHORE_SCHEDULES").await {
                0 => Ok(()),
                waiting => Err(format!("{waiting} wait")),
            })
            .await;
            crate::is_emptied(&world).await;
            let done = results(&world, &handler).await.split_off(before);
            assert_eq!((end.state.as_str(), done.last()), ("completed", Some(&json!(3))), "{point} {died}: {done:?}");
            node.stop().await;
        }
    }
}

/// Given a request that says twice what debouncing sets, or a bound below the wait, then it is refused and says why.
#[tokio::test]
async fn a_debounce_that_contradicts_itself_is_refused() {
    let world = world().await;
    let _node = world.node().start().await;
    let debounce = json!({"key": "k", "wait_ms": 100});
    for (beside, says) in [
        (json!({"delay_ms": 1}), "delay_ms"),
        (json!({"idempotency_key": "k"}), "idempotency_key"),
        (json!({"run_id": "mine"}), "run_id"),
        (json!({"debounce": {"key": "k", "wait_ms": 0}}), "debounce.wait_ms"),
        (json!({"debounce": {"key": "", "wait_ms": 1}}), "debounce.key"),
        (json!({"debounce": {"key": "k", "wait_ms": 100, "max_wait_ms": 99}}), "debounce.max_wait_ms"),
    ] {
        let mut wrong = job(1, &debounce);
        for (name, value) in beside.as_object().unwrap() {
            wrong[name] = value.clone();
        }
        let error = world.try_request("default", "submit", wrong).await.unwrap_err();
        assert!(error.code == 400 && error.message.contains(says), "{says}: {error:?}");
    }
}
