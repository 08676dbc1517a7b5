//! A run that waits for its time can be started now, or at another time: it starts once, and not at the old one.

use std::os::unix::process::ExitStatusExt;
use std::time::Duration;

use longshore_harness::{NodeBuilder, World, eventually};
use serde_json::{Value, json};

use crate::{WITHIN, in_future, workers, world};

fn node(world: &World) -> NodeBuilder<'_> {
    workers(world.node(), 8).with("node", "lease = '2s'").with("queues.other", "")
}

/// How often an attempt of the run was started.
async fn starts(world: &World, run: &str) -> usize {
    longshore_harness::reads(&world.eventually_ends(run).await)
        .lines()
        .filter(|line| line.starts_with("started"))
        .count()
}

/// Given a run that waits for a time far ahead, or for its next attempt, when it is to run now, then it runs once, with
/// its payload, and answers of both calls are its record.
#[tokio::test]
async fn a_waiting_run_can_be_started_now() {
    let world = world().await;
    let slow = "handler = 'fail'\nbackoff = { base = '1h', factor = 1.0, max = '1h', jitter = 'none' }";
    let node = node(&world).with("types.flaky", slow).start().await;
    let mut live = world.live_events("default").await;
    let delayed = world.submit(json!({"type": "echo", "payload": {"a": 0.10}, "delay_ms": 3_600_000})).await;
    let retried = world.publish("flaky").json(json!({"times": 1})).await;
    live.until_published("failed", &retried).await;
    crate::overdue::scheduled(&world, 2).await;

    for run in [&delayed, &retried] {
        let answer = world.request("runs.run_now", json!({"run_id": run})).await;
        assert!(["scheduled", "retrying"].contains(&answer["state"].as_str().unwrap()), "{answer}");
    }
    assert_eq!(world.wait(&delayed).await.result, Some(json!({"a": 0.1})));
    assert_eq!(world.wait(&retried).await.state, "completed");
    assert_eq!((starts(&world, &delayed).await, starts(&world, &retried).await), (1, 2));
    let over = world.try_request("default", "runs.run_now", json!({"run_id": delayed})).await.unwrap_err();
    assert_eq!((over.code, over.error.as_str()), (409, "wrong_state"));
    let unknown = world.try_request("default", "runs.run_now", json!({"run_id": "nobody"})).await.unwrap_err();
    assert_eq!(unknown.code, 404);
    crate::overdue::scheduled(&world, 0).await;
    node.stop().await;
}

/// Given a plain job that waits for a worker, when it is to run now, then the answer is its run as it is.
#[tokio::test]
async fn what_waits_for_a_worker_is_answered_as_it_is() {
    let world = world().await;
    let _node = workers(world.node(), 1).start().await;
    let busy = world.submit(json!({"type": "sleep", "payload": {"ms": 3_600_000}})).await;
    world.eventually_is(&busy, "running", WITHIN).await;
    let waits = world.submit(json!({"type": "noop"})).await;
    let answer = world.request("runs.run_now", json!({"run_id": waits})).await;
    assert_eq!((&answer["run_id"], &answer["state"]), (&json!(waits), &json!("enqueued")), "{answer}");
}

/// Given a delayed job that has fallen due behind a busy worker, when it is to start now, then it is answered as it is,
/// and says that it waits for a worker; when it is to start in another queue, then it is refused, and starts in its
/// own.
#[tokio::test]
async fn a_job_that_is_due_stays_in_its_lane() {
    let world = world().await;
    let node = workers(world.node(), 1).with("queues.other", "").start().await;
    let busy = world.submit(json!({"type": "sleep", "payload": {"ms": 3_600_000}})).await;
    world.eventually_is(&busy, "running", WITHIN).await;
    let run = world.submit(json!({"type": "noop", "delay_ms": 500})).await;
    let due = eventually("a job that waits for a worker", WITHIN, async || {
        let record = world.request("runs.get", json!({"run_id": run})).await;
        if record["waiting_for"]["reason"] == "worker" { Ok(record) } else { Err(record.to_string()) }
    });
    let due = due.await;
    // Its schedule may not have fired yet.
    crate::overdue::scheduled(&world, 0).await;
    let answer = world.request("runs.run_now", json!({"run_id": run})).await;
    assert_eq!((&answer["state"], &answer["run_at"]), (&json!("scheduled"), &due["run_at"]), "{answer}");
    let elsewhere = json!({"run_id": run, "queue": "other"});
    let refused = world.try_request("default", "runs.reschedule", elsewhere).await.unwrap_err();
    assert!(refused.code == 409 && refused.message.contains("waits for a worker in its lane"), "{refused}");
    world.request("runs.cancel", json!({"run_id": busy})).await;
    let end = world.wait(&run).await;
    assert_eq!((end.state.as_str(), end.queue.as_str()), ("completed", "main"));
    node.stop().await;
}

/// Given a run that waits for its time, when it is rescheduled to later, to another queue and priority, then it starts
/// then and there, once, and not at the old time.
#[tokio::test]
async fn a_rescheduled_run_starts_at_its_new_time_alone() {
    let world = world().await;
    let node = node(&world).start().await;
    let run = world.submit(json!({"type": "noop", "delay_ms": 1_500})).await;
    let at = in_future(Duration::from_secs(4));
    let asked = json!({"run_id": run, "run_at": at, "queue": "other", "priority": 1});
    let answer = world.request("runs.reschedule", asked).await;
    assert_eq!(answer["queue"], json!("other"), "{answer}");
    let end = world.wait(&run).await;
    assert_eq!((end.state.as_str(), end.queue.as_str(), end.priority), ("completed", "other", 1));
    assert!(end.started_at.unwrap() >= at.parse().unwrap(), "{end:?}");
    assert_eq!(starts(&world, &run).await, 1);
    let refused = |body: Value| async { world.try_request("default", "runs.reschedule", body).await.unwrap_err() };
    assert!(refused(json!({"run_id": run})).await.message.starts_with("run_at: is missing"));
    assert_eq!(refused(json!({"run_id": "r", "queue": "nowhere"})).await.code, 404);
    node.stop().await;
}

/// Given a run that is rescheduled, when the node dies right after its decision and nobody asks again, then the run
/// starts at the new time, also if its schedule stands for a much later one; once, whichever schedule fires.
#[tokio::test]
async fn a_rescheduling_that_was_cut_off_loses_no_run_and_starts_none_early() {
    let world = world().await;
    let doomed = node(&world).env("LONGSHORE_FAIL_POINTS", "after-rescheduling=kill").start().await;
    let later = world.submit(json!({"type": "noop", "delay_ms": 4_000})).await;
    let at = in_future(Duration::from_secs(8));
    let cut = world.try_request("default", "runs.reschedule", json!({"run_id": later, "run_at": at})).await;
    assert!(cut.is_err());
    assert_eq!(doomed.wait_exit(WITHIN).await.signal(), Some(9));
    let second = node(&world).name("second").env("LONGSHORE_FAIL_POINTS", "after-rescheduling=kill").start().await;
    let sooner = world.submit(json!({"type": "noop", "delay_ms": 3_600_000})).await;
    let cut = world.try_request("default", "runs.run_now", json!({"run_id": sooner})).await;
    assert!(cut.is_err());
    assert_eq!(second.wait_exit(WITHIN).await.signal(), Some(9));

    let third = node(&world).name("third").start().await;
    let end = world.wait(&later).await;
    assert!(end.started_at.unwrap() >= at.parse().unwrap(), "{end:?}");
    assert_eq!(world.wait_as("default", &sooner, WITHIN).await.state, "completed");
    crate::logged(third.log(), "its schedule stood for a later time").await;
    assert_eq!((starts(&world, &later).await, starts(&world, &sooner).await), (1, 1));
    third.stop().await;
}

/// Given runs of two types that wait, and one that runs, when those that match a filter are to start now or elsewhere,
/// then they do, no others do, and nothing is done where it is only counted, or not confirmed.
#[tokio::test]
async fn those_that_match_a_filter_start_now_or_at_another_time() {
    let world = world().await;
    let node = node(&world).start().await;
    let submit = async |job_type: &str| world.submit(json!({"type": job_type, "delay_ms": 3_600_000})).await;
    let (mut chosen, mut others) = (Vec::new(), Vec::new());
    for _ in 0..40 {
        chosen.push(submit("echo").await);
        others.push(submit("noop").await);
    }
    let counted = world.request("runs.run_now", json!({"type": "echo", "dry_run": true})).await;
    assert_eq!((&counted["rescheduled"], &counted["more"]), (&json!(40), &json!(false)), "{counted}");
    let some = json!({"type": "echo", "limit": 15, "set": {"queue": "other", "priority": 2}});
    let moved = world.request("runs.reschedule", some.clone()).await;
    assert_eq!((&moved["rescheduled"], &moved["more"]), (&json!(15), &json!(true)), "{moved}");
    let rest = world.request("runs.reschedule", json!({"type": "echo", "set": some["set"]})).await;
    assert_eq!(rest["rescheduled"], json!(25), "those that are as wanted are left alone: {rest}");
    crate::overdue::scheduled(&world, 80).await;

    let say = async |line: &str| {
        let output = world.command(line.split_whitespace()).output().await.unwrap();
        (output.status.code().unwrap(), String::from_utf8(output.stdout).unwrap())
    };
    assert_eq!(say("runs run-now --type echo").await.0, 2, "off a terminal it needs --yes");
    assert_eq!(say("runs run-now").await.0, 2, "nothing is never taken for everything");
    crate::overdue::scheduled(&world, 80).await;
    let (code, out) = say("runs run-now --type echo --yes").await;
    assert_eq!((code, out.trim()), (0, "40 runs rescheduled"));
    for run in &chosen {
        let end = world.wait(run).await;
        assert_eq!((end.state.as_str(), end.queue.as_str(), end.priority), ("completed", "other", 2));
    }
    let (code, out) = say("runs reschedule --all --delay 2h --set-priority 9 --yes --json").await;
    let outcome: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((code, &outcome["rescheduled"]), (0, &json!(40)), "{out}");
    for run in &others {
        let record = world.request("runs.get", json!({"run_id": run})).await;
        assert_eq!((&record["state"], &record["priority"]), (&json!("scheduled"), &json!(9)));
    }
    for wrong in [json!({"all": true}), json!({"queue": "main", "priority": 1}), json!({"all": true, "set": {}})] {
        assert_eq!(world.try_request("default", "runs.reschedule", wrong).await.unwrap_err().code, 400);
    }
    node.stop().await;
}
