//! A step of a handler's work that has finished is not done again, whichever handler, node or server dies.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use longshore::{Client, Connection, Context, HandlerError};
use longshore_harness::{EventName, Handler, Job, Node, Reply, World, eventually};
use serde_json::{Value, json};
use tokio::sync::{Notify, mpsc};

use crate::packages::{Worker, node_package, note, python_package, start_worker};
use crate::{AT_ONCE, WITHIN, times, world};

const STEPS: [&str; 5] = ["reserve", "charge", "invoice", "ship", "mail"];

/// Where jobs are interrupted: as the work of a step is done and not stored yet, and right after it was stored.
const PLACES: [&str; 2] = ["done", "stored"];

/// What a node answers of a step: its code, `200` without one, and JSON. `None`: nobody answers.
async fn step(job: &Job, signal: &str, body: &Value) -> Option<(u16, Value)> {
    let (headers, body) = job.request(signal, body.to_string()).await?;
    let code = headers.get("Nats-Service-Error-Code").map_or(200, |code| code.as_str().parse().unwrap());
    Some((code, serde_json::from_slice(&body).unwrap_or_default()))
}

/// Settings of a node.
fn settings() -> String {
    let defaults = format!("[defaults]\nmax_attempts = 1000\n{AT_ONCE}");
    format!("[node]\nlease = '2s'\n{defaults}\n[queues.main]\nconcurrency = 20\n[http]\nlisten = 'off'\n")
}

async fn node(world: &World, name: &str) -> Node {
    world.node().name(name).config(&settings()).start().await
}

/// What is killed.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Victim {
    Handler,
    Node,
    Server,
}

/// A job that was interrupted there, and what was killed then.
struct Order {
    run: String,
    step: &'static str,
    place: &'static str,
    victim: Victim,
}

/// Kills in turn the worker, the node (if the worker is not itself one) and the server, each time while ten jobs are
/// each at another boundary of their five steps; then the worker's notes are to say that no step was done again once
/// its result was stored. `LONGSHORE_TEST_STEP_RUNS=500` is the large run.
async fn steps_are_done_once(language: &str, world: &World, mut worker: Worker, node: Option<Node>) {
    let (notes, mut orders) = (world.dir().join("notes"), Vec::new());
    let victims: &[Victim] = match &node {
        Some(_) => &[Victim::Handler, Victim::Node, Victim::Server],
        None => &[Victim::Handler, Victim::Server],
    };
    let waves = times("LONGSHORE_TEST_STEP_RUNS", 30).div_ceil(STEPS.len() * PLACES.len());
    for (wave, victim) in victims.iter().copied().cycle().take(waves).enumerate() {
        let (go, first) = (world.dir().join(format!("go-{wave}")), orders.len());
        for (step, place) in STEPS.iter().flat_map(|step| PLACES.map(|place| (*step, place))) {
            let run = world.publish("order").json(json!({"step": step, "place": place, "go": go})).await;
            orders.push(Order { run, step, place, victim });
        }
        let wave: BTreeSet<&str> = orders[first..].iter().map(|order| order.run.as_str()).collect();
        eventually("jobs at their boundaries", WITHIN, async || {
            let notes = std::fs::read_to_string(&notes).unwrap_or_default();
            let waiting: BTreeSet<&str> = notes.lines().filter_map(|line| line.strip_prefix("waits ")).collect();
            let missing: Vec<_> = wave.difference(&waiting).collect();
            if missing.is_empty() { Ok(()) } else { Err(format!("not there yet: {missing:?}")) }
        })
        .await;
        match victim {
            Victim::Handler => worker.kill9().await,
            Victim::Node => node.as_ref().unwrap().kill9().await,
            Victim::Server => world.server().kill9().await,
        }
        std::fs::write(go, "").unwrap();
        match victim {
            Victim::Handler => worker.start_again().await,
            Victim::Node => node.as_ref().unwrap().restart().await,
            Victim::Server => world.server().restart().await.unwrap(),
        }
        for run in wave {
            assert_eq!(world.wait_as("default", run, WITHIN).await.state, "completed", "{run}");
        }
    }
    println!("{language}: {waves} kills, of {victims:?} in turn");
    judge(language, world, &std::fs::read_to_string(notes).unwrap(), &orders).await;
}

async fn judge(language: &str, world: &World, notes: &str, orders: &[Order]) {
    let (mut done, mut stored, mut calls) = (BTreeMap::<_, Vec<&str>>::new(), BTreeMap::new(), BTreeMap::new());
    for line in notes.lines() {
        match line.split(' ').collect::<Vec<_>>()[..] {
            ["did", run, step, result] => {
                assert!(!stored.contains_key(&(run, step)), "{step} of {run} was done again after it was stored");
                done.entry((run, step)).or_default().push(result);
            }
            ["stored", run, step, result] => {
                assert_eq!(*stored.entry((run, step)).or_insert(result), result, "{step} of {run} has two results");
            }
            ["begins", run] => *calls.entry(run).or_default() += 1,
            _ => {}
        }
    }
    for (step, result) in &stored {
        // Whatever is done after a result was stored would be the last that was done.
        assert_eq!(done[step].last(), Some(result), "{step:?}");
    }
    let mut repeated = 0;
    for Order { run, step, place, victim } in orders {
        let record = world.wait(run).await;
        let results = STEPS.map(|step| stored[&(run.as_str(), step)]);
        assert_eq!(record.result, Some(json!(results)), "{run}");
        repeated += done[&(run.as_str(), *step)].len() - 1;
        // The kill has struck this job, and there.
        if *victim != Victim::Server {
            assert!(calls[run.as_str()] > 1, "the {victim:?} of {run} was killed, and its handler was called once");
            let times = done[&(run.as_str(), *step)].len();
            assert!(times > 1 || *place == "stored", "{step} of {run} was done once, though not stored when it died");
        }
    }
    let (all, calls) = (done.values().map(Vec::len).sum::<usize>(), calls.values().sum::<usize>());
    println!(
        "{language}: {} runs, {calls} calls; {} steps done {all} times, {repeated} of them again before they were \
         stored, none after",
        orders.len(),
        stored.len()
    );
}

/// A job's work in Rust, as `packages/order.py` has it.
async fn order(context: Context) -> Result<Value, HandlerError> {
    let job: Value = context.json()?;
    let (run, notes) = (context.run_id(), PathBuf::from(std::env::var_os("NOTES").unwrap()));
    let note = |line: &str| note(&notes, line);
    let comes_to = async |step: &str, place: &str| {
        let go = Path::new(job["go"].as_str().unwrap());
        if job["step"] == step && job["place"] == place && !go.exists() {
            note(&format!("waits {run}"));
            while !go.exists() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
    };
    note(&format!("begins {run}"));
    let mut results = Vec::new();
    for step in STEPS {
        let work = || async {
            let done = format!("{}-{}", std::process::id(), jiff::Timestamp::now().as_nanosecond());
            note(&format!("did {run} {step} {done}"));
            comes_to(step, "done").await;
            Ok(done)
        };
        let result: String = context.step(step, work).await?;
        note(&format!("stored {run} {step} {result}"));
        results.push(result);
        comes_to(step, "stored").await;
    }
    Ok(json!(results))
}

/// No test: the process of a node with a handler in Rust, for the next one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "is started by the test of a handler in Rust"]
async fn serves_orders() {
    let _node =
        longshore::node().config(std::env::var_os("CONFIG").unwrap()).handler("order", order).start().await.unwrap();
    println!("taking jobs of order");
    std::future::pending::<()>().await;
}

/// Given a handler in Rust, when its node and the server are killed at every boundary of its steps, then no step that
/// was stored is done again, and every run completes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_finished_step_in_rust_is_done_again_whatever_dies() {
    let world = world().await;
    let (url, notes, config) = (world.urls(), world.dir().join("notes"), world.dir().join("own.toml"));
    std::fs::write(&config, settings()).unwrap();
    let worker = Worker::start(world.dir(), move || {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "steps::serves_orders", "--ignored", "--nocapture"]);
        command.env("NATS_URL", &url).env("NOTES", &notes).env("CONFIG", &config);
        command
    });
    steps_are_done_once("Rust", &world, worker.await, None).await;
}

/// The same for a worker of a package; its node is killed as well.
async fn steps_of_a_package_are_done_once(language: &str, folder: &Path, interpreter: String, worker: &str) {
    let world = world().await;
    let node = node(&world, "one").await;
    let worker = start_worker(&world, folder, interpreter, worker).await;
    steps_are_done_once(language, &world, worker, Some(node)).await;
}

/// Given a handler of the Python package, when it, its node and the server are killed at every boundary of its steps,
/// then no step that was stored is done again, and every run completes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_finished_step_in_python_is_done_again_whatever_dies() {
    let folder = tempfile::tempdir().unwrap();
    match python_package(folder.path()) {
        Ok(python) => steps_of_a_package_are_done_once("Python", folder.path(), python, "order.py").await,
        Err(problem) => crate::skipped(&format!("steps in Python: {problem}")),
    }
}

/// The same of the Node package.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_finished_step_in_node_is_done_again_whatever_dies() {
    let folder = tempfile::tempdir().unwrap();
    match node_package(folder.path()) {
        Ok(node) => steps_of_a_package_are_done_once("Node", folder.path(), node, "order.mjs").await,
        Err(problem) => crate::skipped(&format!("steps in Node: {problem}")),
    }
}

/// Handlers of `order`: their jobs come by the channel, and end when they are notified.
async fn held(world: &World) -> (Handler, mpsc::UnboundedReceiver<Job>, Arc<Notify>) {
    let (sender, calls) = mpsc::unbounded_channel();
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
    (handler.await, calls, ends)
}

/// A node that was frozen beyond its lease takes no result of its attempt any more, as another has the job.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_result_of_a_frozen_node_is_refused() {
    let world = world().await;
    let frozen = node(&world, "frozen").await;
    let (_handler, mut calls, ends) = held(&world).await;
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
        if let Some((headers, _)) = first.request("step-put", late.to_string()).await {
            break headers;
        }
    };
    assert_eq!(refused.get("Nats-Service-Error-Code").unwrap().as_str(), "409");
    assert_eq!(refused.get("Longshore-Cancel").unwrap().as_str(), "true", "it learns that it has to stop");
    let question = json!({"name": "charge", "n": 1});
    assert_eq!(step(&second, "step-get", &question).await, Some((200, json!({}))));
    let result = json!({"name": "charge", "n": 1, "result": "of the second"});
    assert_eq!(step(&second, "step-put", &result).await, Some((200, json!({}))));
    let found = step(&second, "step-get", &question).await.unwrap().1;
    assert_eq!((&found["result"], &found["attempt"]), (&json!("of the second"), &json!(2)));
    ends.notify_waiters();
    assert_eq!(world.wait(&run).await.state, "completed");
}

/// Given a bucket of checkpoints without room for more steps, when a handler stores one, then it is refused, and what
/// is stored already is not.
#[tokio::test]
async fn new_steps_leave_a_part_of_their_bucket() {
    let world = world().await;
    let _node = node(&world, "one").await;
    let (_handler, mut calls, ends) = held(&world).await;
    let run = world.publish("order").header("Longshore-Timeout", "10m").json(json!({})).await;
    let job = calls.recv().await.unwrap();
    let [charge, ship] = ["charge", "ship"].map(|name| json!({"name": name, "n": 1, "result": 1}));
    assert_eq!(step(&job, "step-put", &charge).await, Some((200, json!({}))));
    let jetstream = world.jetstream();
    let whole = jetstream.get_stream("KV_longshore_checkpoints").await.unwrap().cached_info().config.clone();
    let narrow = async_nats::jetstream::stream::Config { max_bytes: 1 << 20, ..whole };
    jetstream.update_stream(&narrow).await.unwrap();
    crate::fill(&world, "checkpoints", 0..90).await;
    crate::has_no_room(&world, "checkpoints").await;
    assert_eq!(step(&job, "step-put", &ship).await.unwrap().0, 503);
    assert_eq!(step(&job, "step-put", &charge).await, Some((200, json!({}))));
    ends.notify_waiters();
    assert_eq!(world.wait(&run).await.state, "completed");
}

/// Given a run that died after a step, when its id is used again once its record has gone, then the later run gets no
/// result of the earlier one, and stores its own.
#[tokio::test]
async fn a_later_run_of_an_id_does_its_steps_itself() {
    let world = world().await;
    let _node = node(&world, "one").await;
    let (sender, mut answers) = mpsc::unbounded_channel();
    let handler = world.handler("order").start(move |job: Job| {
        let sender = sender.clone();
        async move {
            let payload = job.json();
            let (of, result) =
                (json!({"name": "charge", "n": 1}), json!({"name": "charge", "n": 1, "result": payload}));
            for (signal, body) in [("step-get", &of), ("step-put", &result), ("step-get", &of)] {
                sender.send(step(&job, signal, body).await.unwrap()).unwrap();
            }
            if payload == 1 { Reply::error(422, "no more") } else { Reply::json(payload) }
        }
    });
    let _handler = handler.await;
    for payload in 1..=2 {
        // Two leases: the shortest time for which a record is kept.
        let kept = json!({"type": "order", "run_id": "order-1", "keep_ms": 4_000, "payload": payload});
        eventually("a run of its own", WITHIN, async || {
            let answer = world.request("submit", kept.clone()).await;
            if answer["deduplicated"] == false { Ok(()) } else { Err(answer.to_string()) }
        })
        .await;
        let mut next = async || answers.recv().await.unwrap();
        assert_eq!((next().await, next().await), ((200, json!({})), (200, json!({}))), "order {payload}");
        assert_eq!(next().await.1["result"], payload);
    }
    assert_eq!(world.wait("order-1").await.state, "completed");
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
            let (large, long) = ("x".repeat(500_000), "x".repeat(600_000));
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
                ("step-put", json!({"name": "large", "n": 1, "result": large})),
                ("step-get", json!({"name": "large", "n": 1})),
            ] {
                sender.send(step(&job, signal, &body).await.unwrap()).unwrap();
            }
            let other = json!({"name": "charge", "n": 1, "result": 3}).to_string();
            let (headers, _) = job.request("step-put", other).await.unwrap();
            sender.send((0, json!(headers.get("Longshore-Cancel").unwrap().as_str()))).unwrap();
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
    assert_eq!(next().await.0, 200);
    assert_eq!(next().await.1["result"].as_str().map(str::len), Some(500_000));
    assert_eq!(next().await.1, json!("false"), "of two uses at the same time the attempt that is refused goes on");
    let end = world.wait(&run).await;
    assert_eq!(end.state, "dead");
    let found = world.request("runs.get", json!({"run_id": run})).await;
    let names: Vec<&str> = found["steps"].as_array().unwrap().iter().filter_map(|step| step["name"].as_str()).collect();
    assert_eq!(names, ["charge", "nothing", "large"], "{found}");
    let events = world.eventually_ends(&run).await;
    let steps = events.iter().filter(|logged| logged.event.event == EventName::StepCompleted).count();
    assert_eq!(steps, 3);
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
