//! Values of clients and handlers arrive unchanged, byte for byte, and every request gets an answer.

use std::time::Duration;

use base64::Engine as _;
use longshore_harness::{Reply, World};
use serde_json::{Value, json};

use crate::{AT_ONCE, served_by, world};

/// JSON that a parsed value would round, refuse or reorder.
const STRANGE: [&str; 5] =
    ["1e999", "1234567890123456789012345678901234567890", "0.10", r#"{"b":-0.0,"a":1E2}"#, r#""\ud800""#];

fn deep() -> String {
    format!("{}{}", "[".repeat(2_000), "]".repeat(2_000))
}

/// An answer as it was written.
async fn raw(world: &World, endpoint: &str, body: Value) -> String {
    let subject = format!("longshore.api.default.{endpoint}");
    let request = async_nats::Request::new().payload(body.to_string().into()).timeout(Some(Duration::from_secs(20)));
    let answer = world.client().send_request(subject, request).await.unwrap();
    assert!(answer.headers.is_none(), "{endpoint} {body}: {:?} {:?}", answer.headers, answer.payload);
    String::from_utf8(answer.payload.to_vec()).unwrap()
}

/// Every line of the event log.
async fn lines(world: &World) -> Vec<String> {
    let stream = world.jetstream().get_stream("LONGSHORE_EVENTS").await.unwrap();
    let mut lines = Vec::new();
    for sequence in 1..=stream.get_info().await.unwrap().state.last_sequence {
        let message = stream.get_raw_message(sequence).await.unwrap();
        let text = String::from_utf8(message.payload.to_vec()).unwrap();
        lines.extend(text.lines().map(str::to_owned));
    }
    lines
}

/// Given a handler whose JSON has line breaks and contains the event line of another run's end, when it is done, then
/// each line of the event log is still one event, and none is forged.
#[tokio::test]
async fn a_line_of_the_event_log_is_one_event() {
    let world = world().await;
    let node = world.node().start().await;
    let victim = world.publish("sleep").json(json!({"ms": 600_000})).await;
    let forged = format!(r#"{{"v":1,"id":"default/{victim}/1/1/completed","event":"completed","run_id":"{victim}"}}"#);
    let said = format!("[\n\"a\\n b\",\r\n{forged}\n,\t1.0 ]");
    let shared = said.clone();
    let handler = world.handler("layout").start(move |job| {
        let said = shared.clone();
        async move {
            job.signal("progress", said.clone()).await;
            Reply::bytes(said)
        }
    });
    let _handler = handler.await;
    let run = world.publish("layout").json(json!({})).await;

    world.wait(&run).await;

    world.eventually_reads(&run, "enqueued\nstarted 1\nprogress 1\ncompleted 1").await;
    let compact = format!(r#"["a\n b",{forged},1.0]"#);
    let lines = lines(&world).await;
    for line in &lines {
        let event: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        assert!(event["run_id"] != victim.as_str() || event["event"] != "completed", "{line}");
    }
    for field in ["progress", "result"] {
        let said = format!(r#""{field}":{compact}"#);
        assert!(lines.iter().any(|line| line.contains(&said)), "{said} in {lines:#?}");
    }
    let record = raw(&world, "runs.get", json!({"run_id": run})).await;
    assert!(record.contains(&format!(r#""result":{compact}"#)), "{record}");
    drop(node);
}

/// Given results and progress that no parsed value can hold, when a client requests them, then every endpoint returns
/// them as they were sent.
#[tokio::test]
async fn what_a_handler_said_is_answered_as_it_was_sent() {
    let world = world().await;
    let _node = world.node().with("types.odd", &served_by("remote", AT_ONCE)).start().await;
    let handler = world.handler("odd").start(async |job: longshore_harness::Job| {
        let dies = job.headers.get("X-Dies").is_some();
        job.signal("progress", job.payload.clone()).await;
        if dies { Reply::error(422, "no") } else { Reply::bytes(job.payload) }
    });
    let _handler = handler.await;
    let deep = deep();
    for said in STRANGE.into_iter().chain([deep.as_str()]) {
        let bytes = || bytes::Bytes::copy_from_slice(said.as_bytes());
        let run = world.publish("odd").send(bytes()).await.unwrap().run_id;
        let answer = raw(&world, "runs.wait", json!({"run_id": run})).await;
        let fields = format!(r#""progress":{said},"result":{said},"#);
        assert!(answer.contains(&fields), "{answer}");
        assert_eq!(raw(&world, "runs.get", json!({"run_id": run})).await, answer);
        let why = world.command(["why", &run, "--json", "--within", "20s"]).output().await.unwrap();
        let why = String::from_utf8(why.stdout).unwrap();
        assert_eq!(why.matches(&format!(r#""result":{said}"#)).count(), 1, "{why}");
        // Its end is found, whatever the event of that holds.
        assert!(why.contains("completed after"), "{why}");
        assert!(!why.contains('\u{f8ff}'), "{why}");

        let dead = world.publish("odd").header("X-Dies", "1").send(bytes()).await.unwrap().run_id;
        let progress = format!(r#""progress":{said},"error""#);
        assert!(raw(&world, "runs.wait", json!({"run_id": dead})).await.contains(&progress));
        longshore_harness::eventually("its dead letter", Duration::from_secs(20), async || {
            let listed = raw(&world, "dlq.list", json!({"limit": 500})).await;
            if listed.contains(&format!(r#""run_id":"{dead}""#)) { Ok(()) } else { Err(listed) }
        })
        .await;
        for (endpoint, body) in [("dlq.list", json!({"type": "odd"})), ("dlq.get", json!({"run_id": dead}))] {
            let answer = raw(&world, endpoint, body).await;
            assert!(answer.contains(&progress) && !answer.contains("null"), "{endpoint}: {answer}");
        }
        // If a dead letter's record is gone, the answer shows the record stored in the dead letter.
        let records = world.jetstream().get_stream("KV_longshore_runs").await.unwrap();
        records.purge().filter(format!("$KV.longshore_runs.default.{dead}")).await.unwrap();
        let answer = raw(&world, "dlq.get", json!({"run_id": dead})).await;
        assert!(answer.contains(&progress), "{answer}");
        raw(&world, "dlq.discard", json!({"run_id": dead})).await;
    }
}

/// Given a handler whose progress and result are `null`, when its run is read again, then both are there: they are
/// JSON.
#[tokio::test]
async fn a_result_of_null_is_a_result() {
    let world = world().await;
    let _node = world.node().with("types.odd", "handler = 'remote'").start().await;
    let handler = world.handler("odd").start(async |job: longshore_harness::Job| {
        job.signal("progress", job.payload.clone()).await;
        Reply::bytes(job.payload)
    });
    let _handler = handler.await;
    let run = world.publish("odd").send("null").await.unwrap().run_id;
    for endpoint in ["runs.wait", "runs.get"] {
        let answer = raw(&world, endpoint, json!({"run_id": run})).await;
        assert!(answer.contains(r#""progress":null,"result":null,"#), "{endpoint}: {answer}");
    }
    let output = world.command(["runs", "get", &run, "--json"]).output().await.unwrap();
    let shown = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(shown.contains(r#""result":null"#), "{shown}");
}

/// Given payloads that no parsed value can hold, when they are submitted, one by one or in a batch, then handlers get
/// them as they were sent.
#[tokio::test]
async fn a_payload_arrives_as_it_was_submitted() {
    let world = world().await;
    let _node = world.node().start().await;
    let (sender, mut asked) = tokio::sync::mpsc::unbounded_channel();
    let handler = world.handler("keep").start(move |job: longshore_harness::Job| {
        let sender = sender.clone();
        async move {
            sender.send(String::from_utf8(job.payload.to_vec()).unwrap()).unwrap();
            Reply::json(json!(1))
        }
    });
    let _handler = handler.await;
    let deep = deep();
    let payloads: Vec<&str> = STRANGE.into_iter().chain([deep.as_str(), "null", r#"[ 1 , "a  b" ]"#]).collect();
    let submit = |payload: &str| format!(r#"{{"type":"keep","payload":{payload}}}"#);
    let mut answers = Vec::new();
    for payload in &payloads {
        let answer = world.ask("default", "submit", submit(payload), Duration::from_secs(20)).await.unwrap();
        answers.push(answer);
        assert_eq!(&asked.recv().await.unwrap(), payload);
    }
    let jobs: Vec<String> = payloads.iter().map(|payload| submit(payload)).collect();
    let batch = format!(r#"{{"jobs":[{}]}}"#, jobs.join(","));
    let batch = world.ask("default", "submit.batch", batch, Duration::from_secs(20)).await.unwrap();
    assert_eq!(batch["jobs"].as_array().unwrap().len(), payloads.len());
    let mut got = Vec::new();
    for _ in &payloads {
        got.push(asked.recv().await.unwrap());
    }
    got.sort();
    let mut sent = payloads.clone();
    sent.sort_unstable();
    assert_eq!(got, sent);
}

/// Given dead letters and batches whose answer does not fit into a message, when a client requests them, then it gets
/// an answer that fits.
#[tokio::test]
async fn every_request_gets_an_answer() {
    let world = world().await;
    let _node = world.node().with("types.doomed", &served_by("fail", "max_attempts = 1")).start().await;
    let large = vec![b' '; 1_000_000];
    let run = world.publish("doomed").send(large).await.unwrap().run_id;
    world.wait(&run).await;
    world.eventually_dead_letters(1).await;
    let dead_letter = world.request("dlq.get", json!({"run_id": run})).await;
    assert_eq!((&dead_letter["payload_bytes"], dead_letter.get("payload_base64")), (&json!(1_000_000), None));
    assert_eq!(dead_letter["attempts"].as_array().unwrap().len(), 1);

    let wrong: Vec<Value> = (0..1_000).map(|_| json!({"type": "noop", "retry": "x".repeat(900)})).collect();
    let answer = world.request("submit.batch", json!({"jobs": wrong})).await;
    let answers = answer["jobs"].as_array().unwrap();
    assert_eq!(answers.len(), 1_000);
    for answer in answers {
        assert_eq!((&answer["code"], answer["message"].as_str().unwrap().get(..6)), (&json!(400), Some("retry:")));
    }
    let error = world.try_request("default", "runs.get", json!({"run_id": "x".repeat(900_000)})).await.unwrap_err();
    assert!(error.code == 400 && error.message.len() < 4_100, "{error}");
}

/// Given tags with line breaks, when they are submitted, then the error names the field, and the rest of the batch is
/// accepted.
#[tokio::test]
async fn a_line_break_in_a_tag_is_refused_by_name() {
    let world = world().await;
    let node = world.node().start().await;
    for tag in ["a\nb", "a\rb", "\u{7f}x", "a,b"] {
        let job = json!({"type": "noop", "tags": [tag]});
        let error = world.try_request("default", "submit", job.clone()).await.unwrap_err();
        assert!(error.code == 400 && error.message.starts_with("tags: "), "{error}");
        let batch = world.request("submit.batch", json!({"jobs": [job, {"type": "noop"}]})).await;
        assert_eq!((&batch["jobs"][0]["code"], &batch["jobs"][1]["state"]), (&json!(400), &json!("enqueued")));
    }
    for late in ["2262-04-12T00:00:00Z", "9999-12-31T23:59:59Z"] {
        let error = world.try_request("default", "submit", json!({"type": "noop", "run_at": late})).await.unwrap_err();
        assert!(error.code == 400 && error.message.starts_with("run_at: "), "{error}");
    }
    let late = world.publish("noop").header("Longshore-Run-At", "2262-04-12T00:00:00Z").json(json!(1)).await;
    let end = world.wait(&late).await;
    assert_eq!((end.state.as_str(), end.error.unwrap().kind.as_str()), ("dead", "invalid"));
    assert!(node.stop().await.success());
}

/// Given a request that makes the node panic, when it is sent, then the client gets an error, and the next request is
/// served.
#[tokio::test]
async fn a_panic_over_a_request_is_answered() {
    let world = world().await;
    let node = world.node().with("types.doomed", &served_by("fail", "max_attempts = 1"));
    let _node = node.env("LONGSHORE_FAIL_POINTS", "after-replay-record=panic@1").start().await;
    let run = world.publish("doomed").json(json!({"times": 1})).await;
    world.wait(&run).await;
    world.eventually_dead_letters(1).await;

    let error = world.try_request("default", "dlq.replay", json!({"run_id": run})).await.unwrap_err();

    assert_eq!((error.code, error.error.as_str()), (500, "internal"), "{error}");
    assert_eq!(world.request("dlq.replay", json!({"run_id": run})).await["replayed"], 1);
}

/// Given the operator, when it requests a run without naming the tenant, then the node asks for the tenant; a job whose
/// tenant could not be read is under `_`.
#[tokio::test]
async fn the_operator_names_the_tenant_of_a_run() {
    let world = world().await;
    let _node = world.node().start().await;
    let run = world.publish("noop").json(json!({})).await;
    world.wait(&run).await;
    for endpoint in ["runs.get", "runs.wait", "runs.cancel", "runs.erase", "dlq.get", "dlq.replay", "dlq.discard"] {
        let error = world.try_request("_all", endpoint, json!({"run_id": run})).await.unwrap_err();
        assert!(error.code == 400 && error.message.starts_with("tenant: "), "{endpoint}: {error}");
    }
    let whose = json!({"run_id": run, "tenant": "default"});
    assert_eq!(world.try_request("_all", "runs.get", whose).await.unwrap()["state"], "completed");

    let ack = world.jetstream().publish("longshore.jobs.a$b.main.p5.noop", "lost".into()).await.unwrap();
    let lost = format!("main-p5-{}", ack.await.unwrap().sequence);
    world.eventually_dead_letters(1).await;
    let ask = async |endpoint, body: Value| world.try_request("_all", endpoint, body).await.unwrap();
    let whose = json!({"run_id": lost, "tenant": "_"});
    let dead_letter = ask("dlq.get", whose.clone()).await;
    let payload =
        base64::engine::general_purpose::STANDARD.decode(dead_letter["payload_base64"].as_str().unwrap()).unwrap();
    assert_eq!((&dead_letter["tenant"], payload.as_slice()), (&json!("_"), b"lost".as_slice()));
    assert_eq!(ask("dlq.list", json!({"tenant": "_"})).await["entries"].as_array().unwrap().len(), 1);
    assert_eq!(ask("runs.get", whose.clone()).await["state"], "dead");
    // A tenant alone is a filter, for a caller whose view it narrows.
    let of_tenant = json!({"tenant": "_", "dry_run": true});
    assert_eq!(ask("dlq.discard", of_tenant.clone()).await["discarded"], 1);
    assert_eq!(ask("dlq.replay", of_tenant).await["failed"][0]["run_id"], json!(lost));
    let other = json!({"tenant": "acme", "dry_run": true});
    assert_eq!(ask("dlq.discard", other.clone()).await["discarded"], 0);
    assert_eq!(ask("runs.cancel", other.clone()).await["cancelled"], 0);
    let error = world.try_request("acme", "dlq.discard", other).await.unwrap_err();
    assert!(error.code == 400 && error.message.starts_with("run_id: is missing"), "{error}");
    assert_eq!(ask("dlq.discard", whose).await["discarded"], 1);
    world.eventually_dead_letters(0).await;
}
