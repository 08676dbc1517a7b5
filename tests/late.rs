//! An attempt may end later than its handler replies: by a call that has its token, or as its time is over.

use std::time::Duration;

use longshore_harness::{EventName, Handler, Job, Reply, World, eventually};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::gateway::head_and_body;
use crate::http::on_a_free_port;
use crate::{kill_all, quick, times, world};

const WITHIN: Duration = Duration::from_secs(120);

/// A handler that detaches its jobs for a time, and the jobs as it got them.
async fn detaches(world: &World, job_type: &str, lasts: &'static str) -> (Handler, mpsc::UnboundedReceiver<Job>) {
    let (sender, jobs) = mpsc::unbounded_channel();
    let handler = world.handler(job_type).start(move |job: Job| {
        sender.send(job).unwrap();
        async move { Reply::json(json!(null)).header("Longshore-Detach", lasts) }
    });
    (handler.await, jobs)
}

fn token(job: &Job) -> String {
    job.headers.get("Longshore-Attempt-Token").unwrap().as_str().to_owned()
}

/// The events of a run that has ended, each with its reason; the last ones are logged a moment after its record.
async fn events(world: &World, run: &str) -> Vec<String> {
    let said = |event: &longshore_harness::Event| {
        let name = event.event.to_string();
        [Some(name), event.reason.clone()].into_iter().flatten().collect::<Vec<_>>().join(" ")
    };
    world.eventually_ends(run).await.iter().map(|logged| said(&logged.event)).collect()
}

async fn is_detached(world: &World, run: &str) -> Value {
    eventually("a detached attempt", WITHIN, async || {
        let run = world.request("runs.get", json!({"run_id": run})).await;
        if run["waiting_for"]["reason"] == "detached" { Ok(run) } else { Err(run.to_string()) }
    })
    .await
}

/// Given handlers that detach their jobs, when these are completed, failed for good, or failed and tried again by calls
/// with their tokens, then the runs end so, each attempt has been started once, and a repeated call is no other end.
#[tokio::test]
async fn a_detached_attempt_ends_by_a_call_with_its_token() {
    let world = world().await;
    let _node = quick(&world, "node").start().await;
    let (handler, mut jobs) = detaches(&world, "late", "1h").await;
    world.submit(json!({"type": "late", "run_id": "good"})).await;
    let job = jobs.recv().await.unwrap();
    let complete = json!({"run_id": "good", "token": token(&job), "result": {"total": 1.50}});
    // Another process may be quicker than the node that has the reply.
    world.request("runs.complete", complete.clone()).await;
    let good = world.wait("good").await;
    assert_eq!((good.state.as_str(), good.result), ("completed", Some(json!({"total": 1.5}))));
    let again = world.request("runs.complete", complete).await;
    assert_eq!((&again["state"], &again["result"]), (&json!("completed"), &json!({"total": 1.5})));
    assert_eq!(events(&world, "good").await, ["enqueued", "started", "deferred detached", "completed"]);

    let failed = json!({"run_id": "good", "token": token(&job), "error": "no"});
    let refused = world.try_request("default", "runs.fail", failed).await.unwrap_err();
    assert_eq!(refused.code, 409, "{refused}");

    world.submit(json!({"type": "late", "run_id": "bad"})).await;
    let job = jobs.recv().await.unwrap();
    is_detached(&world, "bad").await;
    let fail = json!({"run_id": "bad", "token": token(&job), "error": "not yet", "retry_after_ms": 10});
    world.request("runs.fail", fail).await;
    let second = jobs.recv().await.unwrap();
    assert_eq!((second.attempt, token(&second) == token(&job)), (2, false));
    is_detached(&world, "bad").await;
    let wrong = json!({"run_id": "bad", "token": token(&job)});
    let now = world.try_request("default", "runs.run_now", json!({"run_id": "bad"})).await.unwrap_err();
    assert!(now.message.contains("is detached"), "{now}");
    let refused = world.try_request("default", "runs.complete", wrong).await.unwrap_err();
    assert_eq!((refused.code, refused.message.as_str()), (403, "token: is not that of run bad's attempt"));
    world
        .request("runs.fail", json!({"run_id": "bad", "token": token(&second), "error": "never", "retryable": false}))
        .await;
    let bad = world.wait("bad").await;
    let said: Vec<(String, String)> = bad
        .attempts
        .iter()
        .map(|attempt| attempt.error.clone().unwrap())
        .map(|error| (error.kind, error.message))
        .collect();
    let expected = [("retryable", "not yet"), ("permanent", "never")];
    assert_eq!(said, expected.map(|(kind, text)| (kind.to_owned(), text.to_owned())));
    assert_eq!(bad.state, "dead");
    let expected =
        ["enqueued", "started", "deferred detached", "failed", "started", "deferred detached", "failed", "dlq"];
    assert_eq!(events(&world, "bad").await, expected);
    assert_eq!(handler.calls().len(), 3);
}

/// Given a detached attempt, when its worker gives signs, then its time counts anew and its progress is an event; and
/// when it gives none, or its run is cancelled, then the attempt fails, or the worker learns it.
#[tokio::test]
async fn a_detached_attempt_lasts_as_long_as_its_worker_gives_signs() {
    let world = world().await;
    let _node = quick(&world, "node").start().await;
    let (_handler, mut jobs) = detaches(&world, "late", "2s").await;
    world.submit(json!({"type": "late", "run_id": "slow", "max_attempts": 1})).await;
    let job = jobs.recv().await.unwrap();
    let mut sign = json!({"run_id": "slow", "token": token(&job)});
    let mut before = is_detached(&world, "slow").await["run_at"].clone();
    for done in 1..4 {
        sign["progress"] = json!({"done": done});
        let goes = world.request("runs.progress", sign.clone()).await;
        assert_eq!(goes["cancelled"], false);
        assert!(goes["deadline"].as_str() > before.as_str(), "{goes} after {before}");
        before = goes["deadline"].clone();
    }
    let slow = world.wait("slow").await;
    let error = slow.error.unwrap();
    assert_eq!((slow.state.as_str(), error.kind.as_str()), ("dead", "timeout"), "{}", error.message);
    assert!(slow.ended_at.unwrap().to_string().as_str() >= before.as_str().unwrap());
    assert_eq!(world.request("runs.get", json!({"run_id": "slow"})).await["progress"], json!({"done": 3}));
    let progress =
        world.eventually_ends("slow").await.iter().filter(|logged| logged.event.event == EventName::Progress).count();
    assert_eq!(progress, 3);
    let refused = world.try_request("default", "runs.progress", sign).await.unwrap_err();
    assert_eq!(refused.code, 409, "{refused}");

    world.submit(json!({"type": "late", "run_id": "gone"})).await;
    let job = jobs.recv().await.unwrap();
    is_detached(&world, "gone").await;
    world.request("runs.cancel", json!({"run_id": "gone"})).await;
    let goes = world.request("runs.progress", json!({"run_id": "gone", "token": token(&job)})).await;
    assert_eq!(goes, json!({"cancelled": true}));
    let end = json!({"run_id": "gone", "token": token(&job)});
    let refused = world.try_request("default", "runs.complete", end).await.unwrap_err();
    assert_eq!(refused.code, 409, "{refused}");
    assert_eq!(world.wait("gone").await.state, "cancelled");
}

/// Given an attempt that was ended while its queue is paused, when its run is cancelled by its id, by a filter, and by
/// a purge of the queue, then it is spared, and ends as the call said that was answered first.
#[tokio::test]
async fn an_end_that_was_answered_counts_whatever_is_cancelled() {
    let world = world().await;
    let _node = quick(&world, "node").start().await;
    let (_handler, mut jobs) = detaches(&world, "late", "1h").await;
    world.submit(json!({"type": "late", "run_id": "r"})).await;
    let job = jobs.recv().await.unwrap();
    is_detached(&world, "r").await;
    world.request_as("_all", "queues.pause", json!({"queue": "main"})).await;
    let end = json!({"run_id": "r", "token": token(&job), "result": 7});
    world.request("runs.complete", end.clone()).await;
    let refused = world.try_request("default", "runs.cancel", json!({"run_id": "r"})).await.unwrap_err();
    assert!(refused.code == 409 && refused.message.contains("the attempt of r has ended"), "{refused}");
    let none = json!({"cancelled": 0, "failed": [], "more": false});
    for dry_run in [true, false] {
        let those = json!({"type": "late", "dry_run": dry_run});
        assert_eq!(world.request("runs.cancel", those).await, none);
        let purge = json!({"queue": "main", "confirm": "main", "dry_run": dry_run});
        assert_eq!(world.request_as("_all", "queues.purge", purge).await, none);
    }
    world.request("runs.complete", end).await;
    world.request_as("_all", "queues.resume", json!({"queue": "main"})).await;
    let run = world.wait("r").await;
    assert_eq!((run.state.as_str(), run.result), ("completed", Some(json!(7))));
}

/// Given detached attempts, when nodes and the server are killed before and after their ends are noted, while their
/// queue is paused or their type's breaker is open, then each ends as it was ended, and no handler is called again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_ended_late_is_not_lost_whatever_dies() {
    let world = world().await;
    let (one, other) = (quick(&world, "one").start().await, quick(&world, "other").start().await);
    let (handler, mut jobs) = detaches(&world, "late", "1h").await;
    let (count, mut held) = (times("LONGSHORE_TEST_LATE", 40), Vec::new());
    for number in 0..count {
        world.submit(json!({"type": "late", "run_id": format!("r-{number}"), "payload": number})).await;
    }
    for _ in 0..count {
        held.push(jobs.recv().await.unwrap());
    }
    for job in &held {
        is_detached(&world, &job.run_id).await;
    }
    world.try_request("_all", "queues.pause", json!({"type": "late"})).await.unwrap();
    let ends = held.iter().map(|job| async move {
        let number = job.json().as_u64().unwrap();
        let ended = match number % 2 {
            0 => job.ends_late("complete", json!({"result": number})).await,
            _ => job.ends_late("fail", json!({"error": "no", "retryable": false})).await,
        };
        assert_eq!(ended, None, "{}", job.run_id);
    });
    tokio::join!(futures_util::future::join_all(ends), kill_all(&world, &one, &other));
    for job in &held {
        let state = world.wait_as("default", &job.run_id, WITHIN).await.state;
        let expected = if job.json().as_u64().unwrap() % 2 == 0 { "completed" } else { "dead" };
        assert_eq!(state, expected, "{}", job.run_id);
    }
    assert_eq!(handler.calls().len(), count);
}

/// Given an attempt whose node stops before its job is scheduled, when the attempt is ended, then the end is taken only
/// once another node has scheduled the job, which would else come as the attempt's time is over.
#[tokio::test]
async fn an_end_is_taken_once_its_job_is_scheduled() {
    let world = world().await;
    // Longer than a node waits for the schedule before it refuses an end.
    let node = |name| world.node().name(name).with("node", "lease = '12s'");
    let hangs = node("hangs").env("LONGSHORE_FAIL_POINTS", "before-schedule=hang").start().await;
    let (handler, mut jobs) = detaches(&world, "late", "1h").await;
    world.submit(json!({"type": "late", "run_id": "r"})).await;
    let job = jobs.recv().await.unwrap();
    is_detached(&world, "r").await;
    let end = json!({"run_id": "r", "token": token(&job)});
    let early = world.try_request("default", "runs.complete", end).await.unwrap_err();
    assert_eq!((early.code, early.message.as_str()), (503, "run_id: no attempt of r is detached yet; it is enqueued"));
    hangs.kill9().await;
    let _other = node("other").start().await;
    assert_eq!(job.ends_late("complete", json!({})).await, None);
    assert_eq!(world.wait("r").await.state, "completed");
    assert_eq!(handler.calls().len(), 1);
}

/// Given a detached attempt, when it is reported on and ended on the command line and over HTTP, then it goes on and
/// ends.
#[tokio::test]
async fn the_command_line_and_http_end_it_as_well() {
    let world = world().await;
    let node = on_a_free_port(quick(&world, "node")).start().await;
    let (_handler, mut jobs) = detaches(&world, "late", "1h").await;
    for run in ["cli", "http"] {
        world.submit(json!({"type": "late", "run_id": run})).await;
        let token = token(&jobs.recv().await.unwrap());
        is_detached(&world, run).await;
        if run == "cli" {
            let command = async |arguments: &[&str]| {
                let said = world.command(arguments.iter().copied()).output().await.unwrap();
                assert!(said.status.success(), "{said:?}");
                String::from_utf8(said.stdout).unwrap()
            };
            let said = command(&["runs", "progress", run, r#"{"percent":40}"#, "--token", &token]).await;
            assert!(said.starts_with("goes on until "), "{said}");
            let why = command(&["why", run]).await;
            assert!(why.contains("its handler replied that the attempt ends later"), "{why}");
            assert!(why.contains("It waits for the end of its attempt") && !why.contains("put off"), "{why}");
            command(&["runs", "complete", run, "--token", &token, "--result", "[1.50]"]).await;
        } else {
            let end = json!({"token": token, "result": [1.5]}).to_string();
            let (head, body) = head_and_body(&node, "/v1/runs/http/complete", &["--json", &end]);
            assert!(head.starts_with("HTTP/1.1 200"), "{head}{body}");
        }
        let ended = world.wait(run).await;
        assert_eq!((ended.state.as_str(), ended.result), ("completed", Some(json!([1.5]))));
    }
    assert_eq!(world.request("runs.get", json!({"run_id": "cli"})).await["progress"], json!({"percent": 40}));
}
