//! A client asks for a job, does it, and ends its attempt: over NATS, over HTTP, on the command line.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use longshore_harness::{Node, World, eventually};
use serde_json::{Value, json};

use crate::gateway::head_and_body;
use crate::http::on_a_free_port;
use crate::{kill_all, quick, times, world};

const WITHIN: Duration = Duration::from_secs(120);

async fn next(world: &World, asked: Value) -> Value {
    world.request("work.next", asked).await
}

async fn complete(world: &World, job: &Value) -> Value {
    world.request("runs.complete", json!({"run_id": job["run_id"], "token": job["token"], "result": 7})).await
}

/// Given no handler, when a client asks for a job, then it gets it as it was submitted, and ends it; when it does not,
/// then the job is handed out again, with another token.
#[tokio::test]
async fn a_client_asks_for_a_job_and_ends_it() {
    let world = world().await;
    let waits = "timeout = '6s'\nmax_snoozes = 1\nmax_attempts = 1";
    let _node = quick(&world, "node").with("types.waits", waits).start().await;
    assert_eq!(next(&world, json!({"types": ["none"], "wait_ms": 0})).await, json!({}));

    let job = json!({"type": "pulled", "run_id": "r", "payload": {"a": 1.5}, "headers": {"X-A": "b"}, "priority": 2});
    let (got, _) =
        tokio::join!(next(&world, json!({"types": ["other", "pulled"], "wait_ms": 9_000})), world.submit(job));
    let job = &got["job"];
    let expected = json!({
        "run_id": "r", "token": job["token"], "tenant": "default", "type": "pulled", "queue": "main", "priority": 2,
        "round": 1, "attempt": 1, "max_attempts": 12, "deadline": job["deadline"], "headers": {"X-A": "b"},
        "payload": {"a": 1.5},
    });
    assert_eq!(*job, expected);
    complete(&world, job).await;
    let ended = world.wait("r").await;
    assert_eq!((ended.state.as_str(), ended.result), ("completed", Some(json!(7))));
    // An event follows its record by a moment.
    eventually("the events of the run", WITHIN, async || {
        let events: Vec<String> = world.events("r").await.iter().map(|logged| logged.event.event.to_string()).collect();
        if events == ["enqueued", "started", "deferred", "completed"] { Ok(()) } else { Err(format!("{events:?}")) }
    })
    .await;

    world.submit(json!({"type": "pulled", "run_id": "again", "payload_base64": "AP8="})).await;
    let asked = json!({"types": ["pulled"], "wait_ms": 9_000, "lease_ms": 1_000});
    let first = next(&world, asked.clone()).await;
    assert_eq!(first["job"]["payload_base64"], "AP8=");
    let second = next(&world, asked).await;
    assert_eq!((&second["job"]["run_id"], &second["job"]["attempt"]), (&json!("again"), &json!(2)));
    let late = json!({"run_id": "again", "token": first["job"]["token"]});
    assert_eq!(world.try_request("default", "runs.complete", late).await.unwrap_err().code, 403);
    complete(&world, &second["job"]).await;
    assert_eq!(world.wait("again").await.state, "completed");

    // Another one waits for a client for half its time, more than once: each time it is put back, as if it had not
    // begun.
    assert_eq!(next(&world, json!({"types": ["waits"], "wait_ms": 0})).await, json!({}));
    world.submit(json!({"type": "waits", "run_id": "waits"})).await;
    eventually("a job that was put back twice", WITHIN, async || {
        let events = world.events("waits").await;
        let put_back = events.iter().filter(|logged| logged.event.reason.as_deref() == Some("busy"));
        if put_back.count() >= 2 { Ok(()) } else { Err(format!("{events:?}")) }
    })
    .await;
    let asked = json!({"types": ["waits"], "wait_ms": 60_000}).to_string();
    let waits = world.ask("default", "work.next", asked, WITHIN).await.unwrap();
    assert_eq!((&waits["job"]["run_id"], &waits["job"]["attempt"]), (&json!("waits"), &json!(1)));

    for (asked, reason) in [
        (json!({}), "types"),
        (json!({"types": []}), "types: has 0 types; 1 to 16 are allowed"),
        (json!({"types": ["echo"]}), "types: echo is done by nodes themselves"),
        (json!({"types": ["a"], "wait_ms": 600_001}), "wait_ms: is not one of 0 to 600000"),
        (json!({"types": ["a"], "lease_ms": 999}), "lease_ms: is not one of 1000 to 86400000"),
    ] {
        let refused = world.try_request("default", "work.next", asked).await.unwrap_err();
        assert!(refused.code == 400 && refused.message.contains(reason), "{refused}");
    }
    for (asked, reason) in [
        (json!({"types": ["a"]}), "tenant: is missing; work asked for under _all needs the job's tenant"),
        (json!({"types": ["a"], "tenant": "_"}), "tenant: "),
    ] {
        let refused = world.try_request("_all", "work.next", asked).await.unwrap_err();
        assert!(refused.code == 400 && refused.message.starts_with(reason), "{refused}");
    }
}

/// What pullers were handed, and what of it they ended.
#[derive(Debug, Default)]
struct Work {
    handed: HashMap<String, Vec<u64>>,
    ended: HashMap<String, usize>,
}

/// Asks for jobs and ends them, until so many have been ended by all pullers together.
async fn pull(world: &World, work: &Mutex<Work>, left: &AtomicUsize) {
    while left.load(Ordering::SeqCst) > 0 {
        let asked = json!({"types": ["pulled"], "wait_ms": 1_000, "lease_ms": 3_000});
        // While nodes and the server are away there is no answer.
        let Ok(got) = world.try_request("default", "work.next", asked).await else { continue };
        let Some(job) = got.get("job") else { continue };
        let run = job["run_id"].as_str().unwrap().to_owned();
        work.lock().unwrap().handed.entry(run.clone()).or_default().push(job["attempt"].as_u64().unwrap());
        loop {
            let end = json!({"run_id": run, "token": job["token"], "result": 7});
            match world.try_request("default", "runs.complete", end).await {
                Ok(_) => {
                    if *work.lock().unwrap().ended.entry(run.clone()).and_modify(|count| *count += 1).or_insert(1) == 1
                    {
                        left.fetch_sub(1, Ordering::SeqCst);
                    }
                }
                Err(error) if [403, 409].contains(&error.code) => {}
                Err(_) => continue,
            }
            break;
        }
    }
}

async fn pulled(world: &World, count: usize, faults: impl Future<Output = ()>) -> Work {
    let (work, left) = (Arc::new(Mutex::new(Work::default())), Arc::new(AtomicUsize::new(count)));
    let pullers = (0..6).map(|_| pull(world, &work, &left));
    let submitted = async {
        for number in 0..count {
            world.submit(json!({"type": "pulled", "run_id": format!("r-{number}")})).await;
        }
        faults.await;
    };
    tokio::time::timeout(WITHIN, async { tokio::join!(futures_util::future::join_all(pullers), submitted) })
        .await
        .unwrap_or_else(|_| panic!("{} of {count} are left: {work:?}", left.load(Ordering::SeqCst)));
    for number in 0..count {
        assert_eq!(world.wait_as("default", &format!("r-{number}"), WITHIN).await.state, "completed");
    }
    Arc::into_inner(work).unwrap().into_inner().unwrap()
}

/// Given two nodes and six clients that ask either, when there are many jobs, then each is handed out once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_job_is_handed_out_once() {
    let world = world().await;
    let _nodes = (quick(&world, "one").start().await, quick(&world, "other").start().await);
    let count = times("LONGSHORE_TEST_PULLED", 200);
    let work = pulled(&world, count, async {}).await;
    assert_eq!(work.handed.len(), count);
    let twice: Vec<_> = work.handed.iter().filter(|(_, attempts)| attempts.len() > 1).collect();
    assert!(twice.is_empty(), "{twice:?}");
}

/// Given the same, when nodes and the server are killed, then each job is done, and no attempt is handed out twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pulled_jobs_are_done_whatever_dies() {
    let world = world().await;
    let (one, other) = (quick(&world, "one").start().await, quick(&world, "other").start().await);
    let work = pulled(&world, times("LONGSHORE_TEST_PULLED", 60), async {
        kill_all(&world, &one, &other).await;
    });
    for (run, mut attempts) in work.await.handed {
        let all = attempts.len();
        attempts.dedup();
        assert_eq!(attempts.len(), all, "{run}: an attempt was handed out twice");
    }
}

fn asks(node: &Node, wait_ms: u64) -> Value {
    let asked = json!({"types": ["pulled"], "wait_ms": wait_ms}).to_string();
    let (head, body) = head_and_body(node, "/v1/work", &["--json", &asked]);
    assert!(head.starts_with("HTTP/1.1 200"), "{head}{body}");
    serde_json::from_str(&body).unwrap()
}

/// Given two nodes of which one had a client lately and has none now, when its job comes and a client asks the other
/// node, then it gets the job.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_is_passed_on_to_the_node_whose_client_waits() {
    let world = world().await;
    let nodes =
        [on_a_free_port(quick(&world, "one")).start().await, on_a_free_port(quick(&world, "other")).start().await];
    for node in &nodes {
        assert_eq!(asks(node, 100), json!({}));
    }
    for number in 0..8 {
        let run = format!("r-{number}");
        world.submit(json!({"type": "pulled", "run_id": run})).await;
        eventually("a job that a node holds for a client", WITHIN, async || {
            let run = world.request("runs.get", json!({"run_id": run})).await;
            if run["state"] == "running" { Ok(()) } else { Err(run.to_string()) }
        })
        .await;
        let got = tokio::task::block_in_place(|| asks(&nodes[number % 2], 9_000));
        assert_eq!(got["job"]["run_id"], run.as_str(), "{got}");
        complete(&world, &got["job"]).await;
    }
}

/// Given a job, when the command line asks for it, then it is printed; when there is none, then the exit code says so.
#[tokio::test]
async fn the_command_line_takes_a_job() {
    let world = world().await;
    let _node = quick(&world, "node").start().await;
    world.submit(json!({"type": "pulled", "run_id": "cli"})).await;
    let taken = world.command(["work", "pulled", "--wait", "9s", "--lease", "2m"]).output().await.unwrap();
    let got: Value = serde_json::from_slice(&taken.stdout).unwrap_or_else(|_| panic!("{taken:?}"));
    assert_eq!((taken.status.code(), &got["job"]["run_id"]), (Some(0), &json!("cli")));
    complete(&world, &got["job"]).await;
    assert_eq!(world.wait("cli").await.state, "completed");
    let none = world.command(["work", "pulled", "--wait", "10ms"]).output().await.unwrap();
    assert_eq!((none.status.code(), String::from_utf8_lossy(&none.stdout).trim()), (Some(4), "{}"));
}
