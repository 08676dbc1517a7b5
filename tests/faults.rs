//! Faults on purpose do to attempts what they say, marked, until their time is over, and lose no job.

use std::collections::BTreeMap;
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use longshore::{Connection, Context, HandlerError};
use longshore_harness::history::Interruption;
use longshore_harness::{EventName, Job, Logged, Node, NodeBuilder, Record, Reply, Scrape, World, eventually};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, BufReader};

use crate::http::{on_a_free_port, page};
use crate::{AT_ONCE, in_future, rules, times, world};

const WITHIN: Duration = Duration::from_secs(120);
const INJECTED: &str = "longshore_faults_injected_total";

fn node(world: &World) -> NodeBuilder<'_> {
    let defaults = format!("max_attempts = 1000\ntimeout = '2s'\nheartbeat = '1s'\n{AT_ONCE}");
    let node = on_a_free_port(world.node()).with("faults", "allowed = true");
    node.with("node", "lease = '2s'").with("defaults", &defaults)
}

/// Asks as the operator.
async fn order(world: &World, endpoint: &str, body: Value) -> Value {
    let answer = world.try_request("_all", endpoint, body.clone()).await;
    answer.unwrap_or_else(|error| panic!("{endpoint} {body}: {error}"))
}

/// Sets a fault for a minute, if the request does not say for how long.
async fn set(world: &World, fault: Value) -> Value {
    let mut asked = json!({"until": in_future(Duration::from_secs(60))});
    asked.as_object_mut().unwrap().extend(fault.as_object().unwrap().clone());
    let answer = order(world, "faults.set", asked).await;
    assert_eq!(answer["unconfirmed"], json!([]), "{answer}");
    answer["fault"].clone()
}

/// The first attempt's error: its kind and its message.
async fn first_error(world: &World, run: &str) -> (String, String) {
    let record = world.request("runs.get", json!({"run_id": run})).await;
    let text = |field: &str| record["attempts"][0]["error"][field].as_str().unwrap_or_default().to_owned();
    (text("kind"), text("message"))
}

async fn run(world: &World, job_type: &str) -> (String, Record) {
    let run = world.publish(job_type).json(json!(7)).await;
    let record = world.wait(&run).await;
    (run, record)
}

/// The run's events, once the log has the last one.
async fn whole(world: &World, run: &str) -> Vec<Logged> {
    eventually("its last event", WITHIN, async || {
        let events = world.events(run).await;
        let has_ended = |logged: &Logged| [EventName::Completed, EventName::Dlq].contains(&logged.event.event);
        if events.iter().any(has_ended) { Ok(events) } else { Err(format!("{events:?}")) }
    })
    .await
}

async fn log(world: &World, run: &str) -> Vec<String> {
    let record = world.request("runs.get", json!({"run_id": run})).await;
    let lines = record["log"].as_array().cloned().unwrap_or_default();
    lines.iter().map(|line| line["line"].as_str().unwrap_or_default().to_owned()).collect()
}

/// Where no configuration allows them they are refused, and the answer says how to allow them.
#[tokio::test]
async fn faults_are_refused_where_they_are_not_allowed() {
    let world = world().await;
    let _node = world.node().start().await;
    let until = in_future(Duration::from_secs(60));
    let fault = json!({"type": "echo", "kind": "storm", "until": until});
    for (endpoint, body) in [("faults.set", &fault), ("faults.list", &json!({})), ("faults.clear", &json!({}))] {
        let error = world.try_request("_all", endpoint, body.clone()).await.unwrap_err();
        assert_eq!((error.code, error.error.as_str()), (403, "forbidden"), "{endpoint}");
        assert!(error.message.contains("not allowed") && error.body.to_string().contains("allowed = true"), "{error}");
    }
    assert_eq!(run(&world, "echo").await.1.state, "completed");
}

/// They are the operator's, checked, listed, ended, and written down in the audit.
#[tokio::test]
async fn faults_are_checked_listed_and_ended() {
    let world = world().await;
    let node = node(&world).start().await;
    let until = in_future(Duration::from_secs(60));
    let wrong = [
        (json!({"kind": "retryable", "until": in_future(Duration::from_secs(90_000))}), "until: "),
        (json!({"kind": "retryable", "until": "2020-01-01T00:00:00.000Z"}), "until: "),
        (json!({"kind": "retryable"}), "until: is missing"),
        (json!({"kind": "retryable", "until": until, "probability": 1.5}), "probability: "),
        (json!({"kind": "latency", "until": until}), "delay_ms: "),
        (json!({"kind": "fail_at_step", "until": until}), "step: "),
        (json!({"kind": "storm", "until": until, "limit": 2}), "kind: "),
        (json!({"kind": "earthquake", "until": until}), "kind: "),
    ];
    for (mut fault, says) in wrong {
        fault["type"] = json!("echo");
        let error = world.try_request("_all", "faults.set", fault.clone()).await.unwrap_err();
        assert!(error.code == 400 && error.message.contains(says), "{fault}: {error}");
    }
    let nobodys = json!({"type": "_", "kind": "storm", "until": until});
    assert_eq!(world.try_request("_all", "faults.set", nobodys).await.unwrap_err().code, 400);
    let fault = json!({"type": "echo", "kind": "storm", "until": until});
    assert_eq!(world.try_request("default", "faults.set", fault).await.unwrap_err().code, 403);

    let storm = set(&world, json!({"type": "echo", "kind": "storm"})).await;
    let latency =
        set(&world, json!({"type": "mail.send", "kind": "latency", "delay_ms": 5, "probability": 0.25})).await;
    assert_eq!(order(&world, "faults.list", json!({})).await, json!({"faults": [storm, latency]}));
    let health = world.request("health", json!({})).await["faults"].clone();
    let [first, second] = [0, 1].map(|at| health[at].as_str().unwrap_or_default().to_owned());
    assert!(first.starts_with("echo meets storm until ") && second.contains("latency of 5 ms"), "{health}");
    let ended = order(&world, "faults.clear", json!({"type": "mail.send"})).await;
    assert_eq!(ended, json!({"faults": [latency], "unconfirmed": []}));
    assert_eq!(order(&world, "faults.clear", json!({"kind": "hang"})).await["faults"], json!([]));
    assert_eq!(order(&world, "faults.clear", json!({})).await["faults"], json!([storm]));
    assert_eq!(order(&world, "faults.list", json!({})).await, json!({"faults": []}));
    assert_eq!(world.request("health", json!({})).await.get("faults"), None);
    eventually("the audit", WITHIN, async || {
        let entries = order(&world, "audit.list", json!({})).await["entries"].as_array().cloned().unwrap_or_default();
        let done =
            |endpoint: &str| entries.iter().any(|entry| entry["endpoint"] == endpoint && entry["stage"] == "done");
        if done("faults.set") && done("faults.clear") { Ok(()) } else { Err(format!("{entries:?}")) }
    })
    .await;
    assert!(node.stop().await.success());
}

/// Each kind, with a handler in the node and with one elsewhere: the first attempt meets it, the second one does not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_kind_does_what_it_says_and_is_marked() {
    let world = world().await;
    let node = node(&world).start().await;
    let handler = world.handler("remote").start(|_: Job| async { Reply::json(json!("done")) }).await;
    let kinds = [
        ("retryable", "retryable", "injected: retryable"),
        ("permanent", "permanent", "injected: permanent"),
        ("panic", "panic", "the handler panicked: injected: panic"),
        ("hang", "timeout", "injected: hang: the attempt took longer than its limit of 2s"),
        ("lost_heartbeat", "lease_expired", "injected: lost_heartbeat: no signal from the handler for 1s"),
        ("fail_after_work", "retryable", "injected: fail_after_work: the handler succeeded, its reply is dropped"),
    ];
    for job_type in ["echo", "remote"] {
        for (kind, error, message) in kinds {
            let calls = handler.calls().len();
            set(&world, json!({"type": job_type, "kind": kind, "limit": 1})).await;
            let (run, record) = run(&world, job_type).await;
            let expected = if kind == "permanent" { ("dead", 1) } else { ("completed", 2) };
            assert_eq!((record.state.as_str(), record.attempt), expected, "{job_type} {kind}");
            assert_eq!(first_error(&world, &run).await, (error.to_owned(), message.to_owned()), "{job_type} {kind}");
            let events = whole(&world, &run).await;
            let failed = events
                .iter()
                .find_map(|logged| logged.event.error.as_ref())
                .unwrap_or_else(|| panic!("{job_type} {kind}: {events:?}"));
            assert_eq!((failed.kind.as_str(), failed.message.as_str()), (error, message), "{job_type} {kind}");
            if job_type == "remote" {
                let called = match kind {
                    "lost_heartbeat" | "fail_after_work" => 2,
                    "permanent" => 0,
                    _ => 1,
                };
                assert_eq!(handler.calls().len() - calls, called, "{kind}");
            }
            let scrape = Scrape::of(&node).await;
            let counted = if job_type == "echo" { 1.0 } else { 2.0 };
            assert_eq!(scrape.value(INJECTED, &[("kind", kind)]), Some(counted), "{kind}");
        }
        // It is late, and nothing else.
        set(&world, json!({"type": job_type, "kind": "latency", "delay_ms": 700, "limit": 1})).await;
        let begun = Instant::now();
        let (late, record) = run(&world, job_type).await;
        assert_eq!((record.state.as_str(), record.attempt), ("completed", 1));
        assert!(begun.elapsed() >= Duration::from_millis(700), "{:?}", begun.elapsed());
        assert_eq!(log(&world, &late).await, ["injected: latency of 700 ms"]);
        let lines = whole(&world, &late).await;
        let lines = lines.iter().filter(|logged| logged.event.event == EventName::Log).count();
        assert_eq!(lines, 1, "an event says so");
        // So late that its time is over.
        set(&world, json!({"type": job_type, "kind": "latency", "delay_ms": 9000, "limit": 1})).await;
        let (late, record) = run(&world, job_type).await;
        assert_eq!((record.state.as_str(), record.attempt), ("completed", 2));
        let (kind, message) = first_error(&world, &late).await;
        assert!(kind == "timeout" && message.starts_with("injected: latency: "), "{kind} {message}");
    }
    drop(handler);
    assert!(node.stop().await.success(), "{}", node.log().tail(20));
}

/// The attempt fails at its step, whatever the handler makes of it, and what it has finished before is not done again.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_attempt_fails_at_the_step_that_is_named() {
    let world = world().await;
    let node = node(&world).start().await;
    // A handler elsewhere, which takes any answer for consent.
    let handler = world.handler("remote").start(|job: Job| async move {
        for name in ["reserve", "charge"] {
            let _ = job.request("step-get", json!({"name": name, "n": 1}).to_string()).await;
            let _ = job.request("step-put", json!({"name": name, "n": 1, "result": name}).to_string()).await;
        }
        Reply::json(json!("done"))
    });
    let handler = handler.await;
    let done = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&done);
    let order = move |context: Context| {
        let done = Arc::clone(&seen);
        async move {
            for name in ["reserve", "charge"] {
                let _ = context
                    .step(name, || async {
                        done.lock().unwrap().push(name);
                        Ok(())
                    })
                    .await;
            }
            Ok::<_, HandlerError>(json!("done"))
        }
    };
    let own = longshore::node().handler("order", order).set("LONGSHORE_HTTP__LISTEN", "off");
    let own = own.set("LONGSHORE_FAULTS__ALLOWED", "true").set("LONGSHORE_DEFAULTS__MAX_ATTEMPTS", "3");
    let own =
        own.set("LONGSHORE_DEFAULTS__BACKOFF__DELAYS", "[\"10ms\"]").connection(Connection::to(world.server().url()));
    for job_type in ["remote", "order"] {
        set(&world, json!({"type": job_type, "kind": "fail_at_step", "step": "charge", "limit": 1})).await;
    }
    let (at, record) = run(&world, "remote").await;
    assert_eq!((record.state.as_str(), record.attempt), ("completed", 2));
    let marked = ("retryable".to_owned(), "injected: fail_at_step: charge".to_owned());
    assert_eq!(first_error(&world, &at).await, marked);
    assert_eq!(handler.calls().len(), 2);
    assert!(node.stop().await.success(), "{}", node.log().tail(20));

    let own = own.start().await.unwrap();
    let (at, record) = run(&world, "order").await;
    assert_eq!((record.state.as_str(), record.attempt), ("completed", 2));
    assert_eq!(first_error(&world, &at).await, marked);
    assert_eq!(*done.lock().unwrap(), ["reserve", "charge"]);
    own.drain().await.unwrap();
}

/// By chance it strikes its share; at its time it is gone, from the list and from health, and strikes nothing more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fault_strikes_its_share_and_is_gone_at_its_time() {
    let world = world().await;
    let node = node(&world).start().await;
    let lasts = Duration::from_secs(4);
    let fault = json!({"type": "echo", "kind": "permanent", "probability": 0.5, "until": in_future(lasts)});
    set(&world, fault).await;
    let receipts = world.publish("echo").many((0..200).map(|_| json!(1))).await;
    let mut dead = 0;
    for receipt in &receipts {
        dead += u32::from(world.wait(&receipt.run_id).await.state == "dead");
    }
    // Six standard deviations to each side.
    assert!((58..=142).contains(&dead), "{dead} of 200");
    assert_eq!(Scrape::of(&node).await.value(INJECTED, &[("kind", "permanent")]), Some(f64::from(dead)));
    eventually("an end of the fault", WITHIN, async || match world.request("health", json!({})).await.get("faults") {
        None => Ok(()),
        faults => Err(format!("{faults:?}")),
    })
    .await;
    assert_eq!(order(&world, "faults.list", json!({})).await, json!({"faults": []}));
    for receipt in world.publish("echo").many((0..50).map(|_| json!(1))).await {
        assert_eq!(world.wait(&receipt.run_id).await.state, "completed");
    }
    eventually("no setting", WITHIN, async || {
        let stream = world.jetstream().get_stream("KV_longshore_control").await.unwrap();
        let subject = "$KV.longshore_control.settings.fault.permanent.echo";
        match stream.get_last_raw_message_by_subject(subject).await {
            Ok(message) if !message.payload.is_empty() => Err("it is still stored".to_owned()),
            _ => Ok(()),
        }
    })
    .await;
}

/// Every attempt of some hundreds of jobs fails for a while, on two nodes of which one dies: all complete after it, and
/// their retries are spread out. `LONGSHORE_TEST_STORM` says how many; the times of the retries are printed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_storm_loses_no_job() {
    let (world, count) = (world().await, times("LONGSHORE_TEST_STORM", 300));
    let node = |name: &str| {
        node(&world)
            .name(name)
            .with("types.echo", "backoff = { base = '1s', factor = 3.0, jitter = 'proportional', spread = 0.25 }")
    };
    let (one, other) = (node("one").start().await, node("other").start().await);
    let lasts = Duration::from_secs(4) + Duration::from_millis(count as u64);
    set(&world, json!({"type": "echo", "kind": "storm", "until": in_future(lasts)})).await;
    let receipts = world.publish("echo").many((0..count).map(|number| json!(number))).await;
    let struck = async |node: &Node| Scrape::of(node).await.value(INJECTED, &[("kind", "storm")]).unwrap_or_default();
    eventually("a storm", WITHIN, async || {
        let struck = struck(&one).await + struck(&other).await;
        if struck >= count as f64 { Ok(()) } else { Err(format!("{struck}")) }
    })
    .await;
    one.kill9().await;
    let killed = Interruption { node: Some("one".to_owned()), at: Timestamp::now() };
    let mut retries = BTreeMap::<(u32, i64), usize>::new();
    for receipt in &receipts {
        let record = world.wait(&receipt.run_id).await;
        assert_eq!((record.state.as_str(), record.attempt > 1), ("completed", true), "{}", receipt.run_id);
        for pair in record.attempts.windows(2) {
            let failed = pair[0].error.as_ref().is_some_and(|error| error.kind == "retryable");
            if let (true, Some(ended), Some(started)) = (failed, pair[0].ended_at, pair[1].started_at) {
                let after = started.duration_since(ended).as_millis() as i64;
                let least = 750 * 3_i64.pow(pair[0].attempt - 1);
                assert!(after >= least, "{}: {after} ms after attempt {}", receipt.run_id, pair[0].attempt);
                *retries.entry((pair[0].attempt, after / 250)).or_default() += 1;
            }
        }
    }
    assert!(retries.keys().filter(|(attempt, _)| *attempt == 1).count() > 1, "all retries at once: {retries:?}");
    let most = retries.values().copied().max().unwrap_or(1);
    for ((attempt, quarter), runs) in &retries {
        let bar = "#".repeat((runs * 60).div_ceil(most));
        println!("retry {attempt} after {:>6.2} s {runs:>6} {bar}", *quarter as f64 / 4.0);
    }
    assert_eq!(first_error(&world, &receipts[7].run_id).await.1, "injected: storm");
    assert!(struck(&other).await >= 1.0);
    let mut history = world.history(&receipts, Vec::new()).await;
    history.rules = rules(vec![killed]);
    history.assert_sound();
}

/// The command sets, lists and ends them; `health` and `dev` say which are set.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_command_and_the_views_show_them() {
    let world = world().await;
    let node = node(&world).start().await;
    let said = async |arguments: &[&str]| {
        let output = world.command(arguments.iter().copied()).stdin(Stdio::null()).output().await.unwrap();
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
    };
    let text =
        said(&["faults", "set", "mail.send", "latency", "--for", "10m", "--delay", "1500ms", "--probability", "0.5"]);
    let text = text.await;
    assert!(text.starts_with("set: mail.send  latency  1.5 s  50 %  "), "{text}");
    let text =
        said(&["faults", "set", "order", "fail_at_step", "--for", "10m", "--step", "charge", "--limit", "3"]).await;
    assert!(text.contains("charge") && text.contains("3 times a node"), "{text}");
    let text = said(&["faults"]).await;
    assert!(text.contains("mail.send") && text.contains("order"), "{text}");
    let text = said(&["health"]).await;
    assert!(text.contains("fault on purpose: mail.send meets latency of 1500 ms with probability 0.5"), "{text}");
    assert_eq!(page(&node, "/v1/health").await.json()["faults"].as_array().unwrap().len(), 2);
    assert_eq!(page(&node, "/v1/faults").await.json()["faults"].as_array().unwrap().len(), 2);
    let url = world.server().url().to_owned();
    let mut dev = world.command(["dev", "--server", &url]);
    let dev = dev.env("LONGSHORE_FAULTS__ALLOWED", "true").env("LONGSHORE_NODE__NAME", "dev").stdout(Stdio::piped());
    let mut dev = dev.stderr(Stdio::null()).kill_on_drop(true).spawn().unwrap();
    let mut lines = BufReader::new(dev.stdout.take().unwrap()).lines();
    let says_so = async {
        while let Some(line) = lines.next_line().await.unwrap() {
            if line.starts_with("fault on purpose: order meets fail_at_step charge until ") {
                return;
            }
        }
        panic!("dev ended")
    };
    tokio::time::timeout(WITHIN, says_so).await.expect("dev says so");
    let text = said(&["faults", "clear", "--kind", "latency"]).await;
    assert_eq!(text.trim(), "ended: mail.send latency");
    assert!(said(&["faults", "clear"]).await.contains("ended: order fail_at_step"));
    assert!(said(&["faults", "set", "order", "hang"]).await.contains("--for"));
}
