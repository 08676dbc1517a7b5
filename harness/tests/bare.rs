//! Tests of the harness itself, against a bare nats-server: the test makes the streams, a shell script replaces the
//! binary, and subscriptions replace the nodes' answers. The tests in `tests/` rely on the promises that the harness
//! makes here.
#![allow(clippy::unwrap_used, reason = "this whole file is tests; clippy excepts only the functions marked as such")]

use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use async_nats::jetstream::{kv, stream};
use async_nats::{HeaderMap, Message, RequestErrorKind};
use futures_util::StreamExt;
use longshore_harness::{EventName, Node, Refused, Reply, World, eventually, history, reads, use_binary};
use serde_json::{Value, json};

/// Replaces the binary. The environment variable MODE selects what it does.
const PRETEND: &str = r#"#!/bin/sh
echo "{\"args\":\"$1 $2\",\"nats\":\"$NATS_URL\",\"inherited\":\"$LONGSHORE_BIN\"}" >&2
[ "$1" = serve ] || { echo "$@"; exit 3; }
trap 'echo drained >&2; exit 0' TERM
case "$MODE" in
refuse) echo 'error: no such queue' >&2; exit 2 ;;
json) echo '{"at":"now","event":"ready"}' ;;
*) echo ready ;;
esac
while :; do sleep 0.05; done
"#;

async fn world() -> World {
    static SCRIPT: OnceLock<()> = OnceLock::new();
    let script = concat!(env!("CARGO_TARGET_TMPDIR"), "/pretend");
    SCRIPT.get_or_init(|| {
        // Another process writes it: if this process wrote it, a child forked meanwhile could hold it open.
        let write = r#"printf %s "$2" > "$1.$$" && chmod +x "$1.$$" && mv "$1.$$" "$1""#;
        assert!(Command::new("sh").args(["-c", write, "sh", script, PRETEND]).status().unwrap().success());
    });
    use_binary(script);
    World::new().await
}

async fn make_stream(world: &World, name: &str, subject: &str, max_messages: i64) {
    let config = stream::Config {
        name: name.to_owned(),
        subjects: vec![subject.to_owned()],
        max_messages,
        discard: stream::DiscardPolicy::New,
        ..stream::Config::default()
    };
    world.jetstream().create_stream(config).await.unwrap();
}

/// Answers each request on `subject` with what `answer` makes of its body.
async fn answer(world: &World, subject: &str, mut answer: impl FnMut(Value) -> (HeaderMap, Value) + Send + 'static) {
    let mut asked = world.client().subscribe(subject.to_owned()).await.unwrap();
    world.client().flush().await.unwrap();
    let client = world.client().clone();
    tokio::spawn(async move {
        while let Some(Message { payload, reply: Some(to), .. }) = asked.next().await {
            let (headers, body) = answer(serde_json::from_slice(&payload).unwrap());
            client.publish_with_headers(to, headers, body.to_string().into()).await.unwrap();
        }
    });
}

fn is_alive(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"));
    stat.is_ok_and(|stat| !stat.rsplit(')').next().unwrap().trim_start().starts_with('Z'))
}

#[tokio::test]
async fn a_node_gets_its_settings_and_says_that_it_is_ready() {
    let world = world().await;
    let node = world.node().with("types.flaky", "handler = 'fail'").config("[node]\nlease = \"2s\"").start().await;
    assert_eq!(node.name(), "n1");
    let config = std::fs::read_to_string(world.dir().join("n1.toml")).unwrap();
    assert_eq!(
        config,
        "[node]\nname = \"n1\"\nlease = \"2s\"\n[http]\nlisten = \"off\"\n[types.flaky]\nhandler = 'fail'\n"
    );
    let greeting = node.log().seen(0, |line| line.contains("args")).await;
    let greeting: Value = serde_json::from_str(&greeting).unwrap();
    assert_eq!(greeting, json!({"args": "serve --config", "nats": world.server().url(), "inherited": ""}));
    assert!(node.usage().resident > 0);

    let other = world.node().env("MODE", "json").with("http", "listen = '127.0.0.1:0'").start().await;
    assert_eq!(other.name(), "n2");
    assert!(!std::fs::read_to_string(world.dir().join("n2.toml")).unwrap().contains("off"));
}

#[tokio::test]
async fn a_node_that_refuses_says_why() {
    let world = world().await;
    let refusal = world.node().env("MODE", "refuse").try_start().await.unwrap_err();
    assert_eq!(refusal.status.code(), Some(2));
    assert!(refusal.to_string().contains("no such queue"), "{refusal}");
}

#[tokio::test]
async fn a_node_can_be_killed_frozen_drained_and_started_again() {
    let world = world().await;
    let node = world.node().start().await;
    let first = node.pid();
    node.kill9().await;
    assert!(!node.is_running() && !is_alive(first));
    assert_eq!(node.wait_exit(Duration::ZERO).await.signal(), Some(9));

    node.restart().await;
    assert_ne!(node.pid(), first);
    node.sigstop();
    node.sigcont();
    let mark = node.log().mark();
    assert!(node.stop().await.success());
    assert_eq!(node.log().since(mark), ["drained"], "what it printed last is there when its end is reported");

    node.restart().await;
    node.restart().await;
    assert!(node.is_running());
}

#[tokio::test]
async fn a_dropped_node_is_dead_even_by_a_panic() {
    let world = world().await;
    let node = world.node().start().await;
    let pid = node.pid();
    drop(node);
    assert!(!is_alive(pid));

    let (sender, receiver) = std::sync::mpsc::channel();
    let failing = tokio::spawn(async move {
        let node: Node = world.node().start().await;
        sender.send((node.pid(), world.server().pid().unwrap(), world.dir().to_owned())).unwrap();
        panic!("as a failing test does");
    });
    assert!(failing.await.is_err());
    let (node, server, dir) = receiver.recv().unwrap();
    assert!(!is_alive(node) && !is_alive(server) && !dir.exists());
}

#[tokio::test]
async fn a_published_job_has_the_id_that_its_acknowledgement_makes() {
    let world = world().await;
    make_stream(&world, "LONGSHORE_JOBS_main_P5", "longshore.jobs.*.main.p5.>", 3).await;
    assert_eq!(world.publish("email.send").json(json!({})).await, "main-p5-1");
    let named = world.publish("email.send").tenant("acme").header("Longshore-Run-Id", "mine");
    assert_eq!(named.subject(), "longshore.jobs.acme.main.p5.email.send");
    assert_eq!(named.bytes("raw").await, "mine");
    assert_eq!(world.depth("main", 5).await, 2);

    let refused = world.publish("email.send").priority(3).send("").await.unwrap_err();
    assert_eq!(refused, Refused::NoStream);
    world.publish("email.send").json(json!({})).await;
    let refused = world.publish("email.send").send("").await.unwrap_err();
    assert!(matches!(refused, Refused::ByJetStream { code: 10_077, .. }), "{refused}");
}

#[tokio::test]
async fn many_are_published_in_their_order() {
    let world = world().await;
    make_stream(&world, "LONGSHORE_JOBS_bulk_P9", "longshore.jobs.*.bulk.p9.>", -1).await;
    let receipts = world.publish("noop").queue("bulk").priority(9).many((0..1_000).map(|n| json!(n))).await;
    let ids: Vec<String> = receipts.into_iter().map(|receipt| receipt.run_id).collect();
    assert_eq!(ids, (1..=1_000).map(|n| format!("bulk-p9-{n}")).collect::<Vec<_>>());
    assert_eq!(world.depth("bulk", 9).await, 1_000);
}

#[tokio::test]
async fn errors_of_the_api_are_read() {
    let world = world().await;
    answer(&world, "longshore.api.acme.runs.get", |body| {
        let mut headers = HeaderMap::new();
        headers.insert("Nats-Service-Error-Code", "404");
        headers.insert("Nats-Service-Error", "not_found");
        (headers, json!({"code": 404, "error": "not_found", "message": format!("no run {}", body["run_id"])}))
    })
    .await;
    let error = world.try_request("acme", "runs.get", json!({"run_id": 7})).await.unwrap_err();
    assert_eq!((error.code, error.to_string()), (404, "404 not_found: no run 7".to_owned()));
    let error = world.try_request("acme", "nowhere", json!({})).await.unwrap_err();
    assert_eq!(error.code, 0);
}

#[tokio::test]
async fn waiting_goes_on_over_absent_nodes_until_the_run_has_ended() {
    let world = world().await;
    let record = |state: &str| json!({"run_id": "a", "tenant": "default", "state": state, "attempt": 1});
    let (waited, ()) = tokio::join!(world.wait("a"), async {
        tokio::task::yield_now().await; // no node answers yet
        let mut states = ["running", "completed"].into_iter();
        answer(&world, "longshore.api.default.runs.wait", move |body| {
            assert_eq!(body["run_id"], "a");
            (HeaderMap::new(), record(states.next().unwrap()))
        })
        .await;
    });
    assert_eq!(waited.state, "completed");
}

#[tokio::test]
#[should_panic(expected = "run a did not end within 300ms")]
async fn waiting_in_vain_ends_with_the_report() {
    world().await.wait_as("default", "a", Duration::from_millis(300)).await;
}

fn line(run: &str, name: &str, attempt: u32) -> Value {
    json!({
        "v": 1, "id": format!("{run}/{attempt}/{name}"), "event": name, "run_id": run, "tenant": "default",
        "queue": "main", "priority": 5, "type": "noop", "round": 1, "attempt": attempt, "max_attempts": 3,
        "at": format!("2026-11-21T10:00:0{attempt}.000Z"), "node": "n1",
    })
}

/// A world in which run `a` completed and run `b` died, as its streams and buckets would hold it.
async fn world_with_a_past() -> World {
    let world = world().await;
    make_stream(&world, "LONGSHORE_EVENTS", "longshore.eventlog.*", -1).await;
    make_stream(&world, "LONGSHORE_DLQ", "longshore.dlq.>", -1).await;
    let mut died = [line("b", "failed", 1), line("b", "dlq", 1)];
    for event in &mut died {
        event["error"] = json!({"kind": "permanent", "message": "no"});
    }
    let [failed, dlq] = died;
    for batch in [
        vec![line("a", "enqueued", 0), line("b", "enqueued", 0), line("a", "started", 1)],
        vec![line("a", "started", 1), line("a", "completed", 1), line("b", "started", 1), failed, dlq],
    ] {
        let text: Vec<String> = batch.iter().map(Value::to_string).collect();
        world.jetstream().publish("longshore.eventlog.default", text.join("\n").into()).await.unwrap().await.unwrap();
    }
    let bucket = kv::Config { bucket: "longshore_runs".to_owned(), ..kv::Config::default() };
    let bucket = world.jetstream().create_key_value(bucket).await.unwrap();
    let record = json!({"run_id": "a", "tenant": "default", "state": "completed", "round": 1, "attempt": 1});
    bucket.put("default.a", record.to_string().into()).await.unwrap();
    let record = json!({
        "run_id": "b", "tenant": "default", "state": "dead", "round": 1, "attempt": 1,
        "attempts": [{"round": 1, "attempt": 1, "error": {"kind": "permanent", "message": "no"}}],
    });
    bucket.put("default.b", record.to_string().into()).await.unwrap();
    bucket.put("default.c", record.to_string().into()).await.unwrap();
    bucket.delete("default.c").await.unwrap();
    let mut headers = HeaderMap::new();
    headers.insert("Longshore-Run-Id", "b");
    let dead_letter = world.jetstream().publish_with_headers("longshore.dlq.default.main.noop", headers, "body".into());
    dead_letter.await.unwrap().await.unwrap();
    world
}

#[tokio::test]
async fn what_is_durable_can_be_read() {
    let world = world_with_a_past().await;
    let events = world.events("a").await;
    assert_eq!(reads(&events), "enqueued\nstarted 1\ncompleted 1");
    assert_eq!(events.iter().map(|logged| logged.sequence).collect::<Vec<_>>(), [1, 1, 2], "without the repeat");
    assert_eq!(reads(&world.events("b").await), "enqueued\nstarted 1\nfailed 1 permanent\ndlq permanent");
    assert_eq!((world.event_log("*").await.len(), world.stored_events("*").await.len()), (7, 8));
    assert_eq!(world.record("a").await.unwrap().state, "completed");
    assert_eq!(world.record("c").await, None);
    let dead_letters = world.dead_letters("default").await;
    assert_eq!(dead_letters.len(), 1);
    assert_eq!(dead_letters[0].run_id().as_deref(), Some("b"));
    assert_eq!((dead_letters[0].tenant(), &dead_letters[0].payload[..]), ("default", &b"body"[..]));
}

#[tokio::test]
async fn a_sound_past_passes_the_checker_and_a_broken_one_does_not() {
    let world = world_with_a_past().await;
    let mut history = world.history(&[], Vec::new()).await;
    history.assert_sound();
    history.accepted.push(history::Accepted::of("default", "gone"));
    assert_eq!(history.check()[0].kind, history::Kind::Lost);
}

#[tokio::test]
async fn the_report_on_a_run_has_all_that_is_known() {
    let world = world_with_a_past().await;
    let _node = world.node().start().await;
    let report = world.report("b").await;
    for part in
        ["state: \"dead\"", "permanent: no", "dead letter 1", "LONGSHORE_EVENTS: 2 messages", "log of n1", "ready"]
    {
        assert!(report.contains(part), "{part} is missing in\n{report}");
    }
    assert!(!report.contains("a/1/completed"), "{report}");
}

#[tokio::test]
async fn live_events_are_received_from_the_moment_of_listening() {
    let world = world().await;
    let mut live = world.live_events("default").await;
    for (name, run) in [("enqueued", "a"), ("started", "b"), ("started", "a")] {
        let subject = format!("longshore.events.default.{name}.main.{run}.noop");
        world.client().publish(subject, line(run, name, 1).to_string().into()).await.unwrap();
    }
    let started = live.until_published("started", "a").await;
    assert_eq!(started.event().unwrap().event, EventName::Started);
    assert!(!started.has_headers);
    assert_eq!(live.received().len(), 3);
}

fn job_headers() -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in [("Run-Id", "r1"), ("Tenant", "acme"), ("Round", "1"), ("Attempt", "2")] {
        headers.insert(format!("Longshore-{name}"), value);
    }
    headers
}

#[tokio::test]
async fn a_remote_handler_answers_and_remembers() {
    let world = world().await;
    let handler = world.handler("report.render").start(|job| async move {
        match job.json()["want"].as_str() {
            Some("error") => Reply::error(429, "busy").header("Longshore-Retry-After", "30s"),
            _ => Reply::json(json!({"of": job.run_id, "attempt": job.attempt})),
        }
    });
    let handler = handler.await;
    let ask = |body: &'static str| {
        let client = world.client().clone();
        async move {
            client.request_with_headers("longshore.work.acme.report.render", job_headers(), body.into()).await.unwrap()
        }
    };
    let reply = ask("{}").await;
    assert_eq!(reply.payload, r#"{"attempt":2,"of":"r1"}"#);
    let headers = ask(r#"{"want":"error"}"#).await.headers.unwrap();
    assert_eq!(headers.get("Nats-Service-Error-Code").unwrap().as_str(), "429");
    assert_eq!(headers.get("Longshore-Retry-After").unwrap().as_str(), "30s");

    handler.called(2).await;
    let calls = handler.calls();
    assert_eq!((calls[0].tenant.as_str(), calls[0].attempt, calls[0].end.is_some()), ("acme", 2, true));
    handler.stop().await;
    let gone = world.client().request("longshore.work.acme.report.render", "".into()).await.unwrap_err();
    assert_eq!(gone.kind(), RequestErrorKind::NoResponders);
}

#[tokio::test]
async fn a_remote_handler_can_signal_and_learn_that_its_run_is_cancelled() {
    let world = world().await;
    let _handler = world
        .handler("long")
        .start(|job| async move {
            job.signal("progress", "{\"percent\":50}").await;
            let cancelled = job.ask("heartbeat", "").await;
            Reply::json(json!({"cancelled": cancelled}))
        })
        .await;
    let inbox = world.client().new_inbox();
    let mut replies = world.client().subscribe(inbox.clone()).await.unwrap();
    let send =
        world.client().publish_with_reply_and_headers("longshore.work.acme.long", inbox, job_headers(), "".into());
    send.await.unwrap();

    let progress = replies.next().await.unwrap();
    assert_eq!(progress.headers.unwrap().get("Longshore-Signal").unwrap().as_str(), "progress");
    let heartbeat = replies.next().await.unwrap();
    let mut cancel = HeaderMap::new();
    cancel.insert("Longshore-Cancel", "true");
    world.client().publish_with_headers(heartbeat.reply.unwrap(), cancel, "".into()).await.unwrap();
    assert_eq!(replies.next().await.unwrap().payload, r#"{"cancelled":true}"#);
}

#[tokio::test]
async fn a_remote_handler_can_announce_itself_as_a_service() {
    let world = world().await;
    let _handler = world.handler("a.b").announce("longshore.slots", "4").start(|_| async { Reply::silence() }).await;
    for subject in ["$SRV.INFO", "$SRV.PING.harness-handler"] {
        let info = world.client().request(subject, "".into()).await.unwrap();
        let info: Value = serde_json::from_slice(&info.payload).unwrap();
        assert_eq!(info["metadata"]["longshore.slots"], "4");
        if subject == "$SRV.INFO" {
            assert_eq!(info["endpoints"][0]["subject"], "longshore.work.*.a.b");
        }
    }
}

#[tokio::test]
async fn the_client_comes_back_with_its_server() {
    let world = world().await;
    make_stream(&world, "LONGSHORE_JOBS_main_P5", "longshore.jobs.*.main.p5.>", -1).await;
    world.publish("noop").json(json!(1)).await;
    world.server().kill9().await;
    world.server().restart().await.unwrap();
    let receipt = eventually("a publish after the restart", Duration::from_secs(20), async || {
        world.publish("noop").send("2").await
    })
    .await;
    assert!(receipt.sequence >= 2);
    assert!(world.depth("main", 5).await >= 2);
}

#[tokio::test]
async fn the_command_line_is_run_against_this_world() {
    let world = world().await;
    let output = world.command(["queues", "--json"]).output().await.unwrap();
    assert_eq!((output.status.code(), &output.stdout[..]), (Some(3), &b"queues --json\n"[..]));
    assert!(String::from_utf8(output.stderr).unwrap().contains(&world.server().url()));
}
