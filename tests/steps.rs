//! A step of a handler's work that has finished is not done again, whichever handler, node or server dies.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use longshore::{Client, Connection, Context, HandlerError};
use longshore_harness::{EventName, Job, Node, Reply, World, eventually};
use serde_json::{Value, json};
use tokio::sync::{Notify, mpsc};

use crate::{AT_ONCE, world};

const STEPS: [&str; 5] = ["reserve", "charge", "invoice", "ship", "mail"];

/// What handlers did: each doing of a step, and which of them were confirmed as stored.
#[derive(Debug, Default)]
struct Work {
    done: Vec<(String, &'static str)>,
    stored: BTreeSet<(String, &'static str)>,
    again: Vec<(String, &'static str)>,
}

fn run_of(job: &Job) -> String {
    job.headers.get("Longshore-Run-Id").unwrap().to_string()
}

/// What a node answers of a step: its code, `200` without one, and JSON. `None`: nobody answers.
async fn step(job: &Job, signal: &str, body: &Value) -> Option<(u16, Value)> {
    let (headers, body) = job.request(signal, body.to_string()).await?;
    let code = headers.get("Nats-Service-Error-Code").map_or(200, |code| code.as_str().parse().unwrap());
    Some((code, serde_json::from_slice(&body).unwrap_or_default()))
}

/// A handler of five steps, as one in any language does them.
async fn order(job: Job, work: Arc<Mutex<Work>>) -> Reply {
    let run = run_of(&job);
    for name in STEPS {
        match step(&job, "step-get", &json!({"name": name, "n": 1})).await {
            Some((200, found)) if found == json!({}) => {}
            Some((200, found)) => {
                assert_eq!(found["result"], json!({"step": name}));
                continue;
            }
            other => return Reply::error(503, &format!("{name}: {other:?}")),
        }
        {
            let mut work = work.lock().unwrap();
            let key = (run.clone(), name);
            if work.stored.contains(&key) {
                work.again.push(key.clone());
            }
            work.done.push(key);
        }
        let result = json!({"name": name, "n": 1, "result": {"step": name}});
        match step(&job, "step-put", &result).await {
            Some((200, _)) => drop(work.lock().unwrap().stored.insert((run.clone(), name))),
            other => return Reply::error(503, &format!("{name}: {other:?}")),
        }
    }
    Reply::json(json!("all done"))
}

async fn node(world: &World, name: &str) -> Node {
    let node = world.node().name(name).with("node", "lease = '2s'");
    node.with("defaults", &format!("max_attempts = 1000\n{AT_ONCE}")).start().await
}

/// Nodes are killed in the middle of the work, and the server is started again: no step that was stored is done again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_finished_step_is_done_again_whatever_dies() {
    let world = world().await;
    let (one, other) = (node(&world, "one").await, node(&world, "other").await);
    let work = Arc::new(Mutex::new(Work::default()));
    let seen = Arc::clone(&work);
    let handler = world.handler("order").start(move |job| order(job, Arc::clone(&seen))).await;
    let mut runs = Vec::new();
    let stored = |count: usize| {
        let work = &work;
        eventually("steps", Duration::from_secs(60), async move || {
            let stored = work.lock().unwrap().stored.len();
            if stored >= count { Ok(()) } else { Err(format!("{stored} of {count}")) }
        })
    };
    for (turn, victim) in [&one, &other, &one].into_iter().enumerate() {
        for _ in 0..40 {
            runs.push(world.publish("order").json(json!({})).await);
        }
        // In the middle of the 200 steps of these jobs.
        stored(turn * 200 + 60).await;
        victim.restart().await;
        stored(turn * 200 + 120).await;
        if turn == 1 {
            world.server().restart().await.unwrap();
        }
        stored(turn * 200 + 200).await;
    }
    for run in &runs {
        assert_eq!(world.wait(run).await.state, "completed", "{run}");
    }
    let work = std::mem::take(&mut *work.lock().unwrap());
    assert_eq!(work.again, [], "done again after they were stored");
    let mut times: BTreeMap<_, u32> = BTreeMap::new();
    work.done.iter().for_each(|step| *times.entry(step).or_default() += 1);
    assert_eq!(times.len(), runs.len() * STEPS.len(), "every step of every run was done");
    drop(handler);
}

/// A node that was frozen beyond its lease takes no result of its attempt any more, as another has the job.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_result_of_a_frozen_node_is_refused() {
    let world = world().await;
    let frozen = node(&world, "frozen").await;
    let (sender, mut calls) = mpsc::unbounded_channel();
    let ends = Arc::new(Notify::new());
    let waits = Arc::clone(&ends);
    let handler = world.handler("order").start(move |job: Job| {
        sender.send(job).unwrap();
        let ends = Arc::clone(&waits);
        async move {
            ends.notified().await;
            Reply::json(json!("done"))
        }
    });
    let _handler = handler.await;
    let run = world.publish("order").json(json!({})).await;
    let first = calls.recv().await.unwrap();
    eventually("a record that it runs", Duration::from_secs(60), async || {
        let state = world.request("runs.get", json!({"run_id": run})).await["state"].clone();
        if state == "running" { Ok(()) } else { Err(state.to_string()) }
    })
    .await;
    frozen.sigstop();
    let _other = node(&world, "other").await;
    let second = calls.recv().await.unwrap();
    assert_eq!(second.headers.get("Longshore-Attempt").unwrap().as_str(), "2");

    let late = json!({"name": "charge", "n": 1, "result": "of the first"});
    first.signal("step-put", late.to_string()).await;
    frozen.sigcont();
    // What came during the freeze may have gone with a connection that the server has ended meanwhile.
    let refused = loop {
        if let Some((code, _)) = step(&first, "step-put", &late).await {
            break code;
        }
    };
    assert_eq!(refused, 409);
    let question = json!({"name": "charge", "n": 1});
    assert_eq!(step(&second, "step-get", &question).await, Some((200, json!({}))));
    let result = json!({"name": "charge", "n": 1, "result": "of the second"});
    assert_eq!(step(&second, "step-put", &result).await, Some((200, json!({}))));
    let found = step(&second, "step-get", &question).await.unwrap().1;
    assert_eq!((&found["result"], &found["attempt"]), (&json!("of the second"), &json!(2)));
    ends.notify_waiters();
    assert_eq!(world.wait(&run).await.state, "completed");
}

/// Wrong questions are refused with the reason, and a step has one result.
#[tokio::test]
async fn a_step_is_asked_for_and_stored_as_the_contract_says() {
    let world = world().await;
    let _node = world.node().start().await;
    let (sender, mut answers) = mpsc::unbounded_channel();
    let handler = world.handler("order").start(move |job: Job| {
        let sender = sender.clone();
        async move {
            let long = "x".repeat(70_000);
            for (signal, body) in [
                ("step-put", json!({"name": "charge", "n": 1, "result": {"big": 12345678901234567890_u64}})),
                ("step-put", json!({"name": "charge", "n": 1, "result": {"big": 12345678901234567890_u64}})),
                ("step-put", json!({"name": "charge", "n": 1, "result": 2})),
                ("step-get", json!({"name": "charge", "n": 1})),
                ("step-get", json!({"name": "charge", "n": 2})),
                ("step-put", json!({"name": "charge", "n": 2})),
                ("step-get", json!({"name": "charge", "n": 2, "result": 1})),
                ("step-get", json!({"name": "a.b", "n": 1})),
                ("step-get", json!({"name": "charge", "n": 0})),
                ("step-get", json!("nonsense")),
                ("step-put", json!({"name": "charge", "n": 2, "result": long})),
                ("step-put", json!({"name": "nothing", "n": 1, "result": null})),
            ] {
                sender.send(step(&job, signal, &body).await.unwrap()).unwrap();
            }
            Reply::error(422, "no more")
        }
    });
    let _handler = handler.await;
    let run = world.publish("order").json(json!({})).await;
    let mut next = async || answers.recv().await.unwrap();
    assert_eq!((next().await, next().await.0, next().await.0), ((200, json!({})), 200, 409), "once, a repeat, another");
    let found = next().await.1;
    assert_eq!(found["result"].to_string(), r#"{"big":12345678901234567890}"#);
    assert_eq!((&found["attempt"], found.as_object().unwrap().len()), (&json!(1), 3), "{found}");
    assert_eq!(next().await, (200, json!({})));
    for _ in 0..6 {
        assert_eq!(next().await.0, 400);
    }
    assert_eq!(next().await.0, 200, "null is a result");
    let end = world.wait(&run).await;
    assert_eq!(end.state, "dead");
    let found = world.request("runs.get", json!({"run_id": run})).await;
    let names: Vec<&str> = found["steps"].as_array().unwrap().iter().filter_map(|step| step["name"].as_str()).collect();
    assert_eq!(names, ["charge", "nothing"], "{found}");
    let events = world.events(&run).await;
    let steps = events.iter().filter(|logged| logged.event.event == EventName::StepCompleted).count();
    assert_eq!(steps, 2);
}

/// A handler in Rust: a step that has finished is not done again by later attempts and rounds, those that failed are.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_handler_in_rust_does_its_steps_once() {
    let world = world().await;
    let connection = Connection::to(world.server().url());
    let done = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&done);
    let order = move |context: Context| {
        let done = Arc::clone(&seen);
        async move {
            let note = |what: String| done.lock().unwrap().push(what);
            let receipt: u32 = context
                .step("charge", || async {
                    note(context.step_key("charge"));
                    Ok(17)
                })
                .await?;
            for _ in 0..2 {
                let mail = || async {
                    note("mail".to_owned());
                    Ok(())
                };
                context.step("mail", mail).await?;
            }
            if context.round == 1 {
                let result: Result<(), _> = context.step("ship", || async { Err(HandlerError::permanent("no")) }).await;
                result?;
            }
            Ok::<_, HandlerError>(json!(receipt))
        }
    };
    let node = longshore::node().handler("order", order).set("LONGSHORE_HTTP__LISTEN", "off");
    let node = node.connection(connection.clone()).start().await.unwrap();
    let client = Client::connect(&connection, "longshore").await.unwrap();
    let run = client.publish("order", &()).await.unwrap();
    let record = client.wait(&run, Duration::from_secs(60)).await.unwrap();
    assert_eq!(record.state.to_string(), "dead");
    assert_eq!(
        record.steps.iter().map(|step| (&*step.name, step.n)).collect::<Vec<_>>(),
        [("charge", 1), ("mail", 1), ("mail", 2)]
    );
    world.request("dlq.replay", json!({"run_id": run})).await;
    let record = client.wait(&run, Duration::from_secs(60)).await.unwrap();
    assert_eq!((record.state.to_string().as_str(), record.round, record.result.unwrap().get()), ("completed", 2, "17"));
    assert_eq!(*done.lock().unwrap(), [format!("{run}/charge#1"), "mail".to_owned(), "mail".to_owned()]);
    eventually("no results of steps", Duration::from_secs(60), async || {
        let stream = world.jetstream().get_stream("KV_longshore_checkpoints").await.unwrap();
        let messages = stream.get_info().await.unwrap().state.messages;
        if messages == 0 { Ok(()) } else { Err(format!("{messages} are left")) }
    })
    .await;
    node.drain().await.unwrap();
}
