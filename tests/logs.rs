//! The log says what operators ask for, and neither secrets nor payloads.

use std::time::Duration;

use async_nats::ConnectOptions;
use longshore_harness::{Job, Reply, World};
use longshore_natsd::Options;
use serde_json::{Value, json};

use crate::{AT_ONCE, served_by, use_binary, world};

/// Has the node log by that level.
async fn set_level(world: &World, level: &str) {
    let answer = world.try_request("_all", "nodes.log_level", json!({"node": "n1", "level": level})).await.unwrap();
    assert_eq!(answer["node"], "n1");
}

/// Given a node that runs, when its log is asked for errors alone and then for everything again, then lines in between
/// are missing and others are not.
#[tokio::test]
async fn the_level_of_the_log_is_changed_while_the_node_runs() {
    let world = world().await;
    let node = world.node().start().await;
    let handler = world.handler("talks").start(|job: Job| async move {
        job.ask("log", job.payload.clone()).await;
        Reply::json(json!(1))
    });
    let _handler = handler.await;
    for (level, word) in [(None, "first"), (Some("error"), "second"), (Some("info"), "third")] {
        if let Some(level) = level {
            set_level(&world, level).await;
        }
        let run = world.publish("talks").bytes(word).await;
        assert_eq!(world.wait(&run).await.state, "completed");
    }
    node.stop().await;
    let said =
        |word: &str| node.log().since(0).iter().filter(|line| line.contains(&format!("handler: {word}"))).count();
    assert_eq!([said("first"), said("second"), said("third")], [1, 0, 1]);

    node.restart().await;
    let wrong = json!({"node": "n1", "level": "loud"});
    let refused = world.try_request("_all", "nodes.log_level", wrong).await.unwrap_err();
    assert_eq!(
        (refused.code, refused.message.starts_with("level: \"loud\" is not one of")),
        (400, true),
        "{refused:?}"
    );
    let nobody = world.try_request("_all", "nodes.log_level", json!({"node": "n9", "level": "info"})).await;
    assert_eq!(nobody.unwrap_err().code, 404);
}

/// Given an idle node whose server has gone, then its log says so at once and after that ever more rarely.
#[tokio::test]
async fn what_lasts_is_logged_ever_more_rarely() {
    let world = world().await;
    let node = world.node().start().await;
    let before = node.log().mark();
    world.server().stop().await.unwrap();
    let repeated = async || {
        let lines = node.log().since(before);
        if lines.iter().any(|line| line.contains("more since the last such line")) {
            Ok(lines)
        } else {
            Err(lines.join("\n"))
        }
    };
    let lines = longshore_harness::eventually("a line that repeats", Duration::from_secs(60), repeated).await;
    let has = |text: &str| lines.iter().any(|line| line.contains(text));
    assert!(has("lost the connection to NATS") && has("IO error"), "{lines:#?}");
    // By then there were eighty and more.
    assert!(lines.len() <= 40, "{lines:#?}");
    node.kill9().await;
}

/// Given a node whose log is asked for everything about jobs, when jobs of one trace end in every way there is, then
/// what happened to each is a line of its own, with run, tenant, attempt and trace, and every other line about a run
/// has these, too; by default only what failed for good is logged.
#[tokio::test]
async fn what_happens_to_a_job_is_logged_with_run_attempt_tenant_and_trace() {
    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
    const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let world = world().await;
    let node = world.node().with("types.broken", &served_by("fail", &format!("max_attempts = 2\n{AT_ONCE}")));
    let node = node.start().await;
    let dies = async |payload: &str| {
        let run = world.publish("broken").header("traceparent", PARENT).json(json!({"s3cret": payload})).await;
        assert_eq!(world.wait(&run).await.state, "dead");
        run
    };
    let quiet = dies("by default").await;
    set_level(&world, "info,longshore::jobs=debug,longshore_actors=debug").await;
    let submit = async |job_type: &str, more: Value| {
        let mut job = json!({"type": job_type, "payload": {"ms": 600_000, "s3cret": 1}});
        job["headers"] = json!({"X-Token": "s3cret", "traceparent": PARENT});
        job.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        world.submit(job).await
    };
    let dead = dies("logged").await;
    world.eventually_dead_letters(2).await;
    assert_eq!(world.request("dlq.replay", json!({"run_id": dead})).await["replayed"], 1);
    let done = submit("noop", json!({})).await;
    assert_eq!(world.wait(&done).await.state, "completed");
    let expired = submit("noop", json!({"delay_ms": 300, "expires_in_ms": 1})).await;
    assert_eq!(world.wait(&expired).await.state, "expired");
    let mut live = world.live_events("default").await;
    let waiting = submit("nobodys", json!({})).await;
    live.until_published("deferred", &waiting).await;
    let stopped = submit("sleep", json!({})).await;
    live.until_published("started", &stopped).await;
    world.request("runs.cancel", json!({"run_id": stopped})).await;
    assert_eq!(world.wait(&stopped).await.state, "cancelled");
    let discarded = json!({"run_id": quiet});
    assert_eq!(world.request("dlq.discard", discarded).await["discarded"], 1);
    world.eventually_dead_letters(1).await;
    node.stop().await;

    let text = node.log().since(0);
    let lines: Vec<Value> = text.iter().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let about = |run: &str| lines.iter().filter(|line| line["run_id"] == run).collect::<Vec<_>>();
    for line in lines.iter().filter(|line| line["run_id"].is_string()) {
        assert!(line["tenant"] == "default" && line["attempt"].is_u64() && line["trace_id"] == TRACE, "{line}");
    }
    let of_run = |run: &str| {
        let of_jobs = about(run).into_iter().filter(|line| line["target"] == "longshore::jobs");
        of_jobs.map(|line| line["message"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let dead_letter = "dead letter: failed for good";
    assert_eq!(of_run(&quiet), [dead_letter, "discarded"]);
    let round = ["started", "failed, to be retried", "started", "failed", dead_letter];
    let all: Vec<&str> = ["enqueued"].into_iter().chain(round).chain(["replayed", "enqueued"]).chain(round).collect();
    assert_eq!(of_run(&dead), all);
    assert_eq!(of_run(&done), ["enqueued", "started", "completed"]);
    assert_eq!(of_run(&expired), ["scheduled", "enqueued", "expired"]);
    assert_eq!(of_run(&waiting)[..2], ["enqueued", "deferred"]);
    assert_eq!(of_run(&stopped), ["enqueued", "started", "cancelled"]);
    let failed = about(&dead).into_iter().find(|line| line["message"] == "failed, to be retried").unwrap();
    assert_eq!((&failed["kind"], &failed["attempt"], &failed["round"]), (&json!("retryable"), &json!(1), &json!(1)));
    let deferred = about(&waiting).into_iter().find(|line| line["message"] == "deferred").unwrap();
    assert_eq!(deferred["reason"], "no_handler_online");
    assert!(!text.iter().any(|line| line.contains("s3cret")));
}

/// Given a node whose log is read by a machine, when a handler panics, then that is one line, too; and a level that is
/// none is refused at the start.
#[tokio::test]
async fn every_line_is_json_whatever_panics() {
    let world = world().await;
    let node = world.node().with("types.fail", "max_attempts = 1").env("RUST_BACKTRACE", "1").start().await;
    let run = world.publish("fail").json(json!({"kind": "panic"})).await;
    assert_eq!(world.wait(&run).await.state, "dead");
    assert!(node.stop().await.success());
    let text = node.log().since(0);
    let (lines, others): (Vec<_>, Vec<_>) = text.iter().partition(|line| line.starts_with('{'));
    assert_eq!(others, ["ready"], "standard output");
    let lines: Vec<Value> = lines.into_iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    let panics: Vec<&Value> =
        lines.iter().filter(|line| line["message"].as_str().unwrap_or_default().starts_with("panicked: ")).collect();
    assert_eq!(panics.len(), 1, "{text:?}");
    assert!(panics[0]["location"].is_string() && panics[0]["backtrace"].is_string(), "{}", panics[0]);

    let refused = world.node().name("n2").env("LONGSHORE_LOG", "debgu").try_start().await.unwrap_err();
    assert!(
        refused.log.contains("LONGSHORE_LOG is not a valid log filter: \"debgu\" is not one of"),
        "{}",
        refused.log
    );
}

/// Given a node that logs all that it can, when jobs with secrets in payload, headers, keys and results complete, fail,
/// die and are replayed, then none of the secrets, nor the password of NATS, is in the log.
#[tokio::test]
async fn neither_payloads_nor_secrets_are_logged() {
    use_binary();
    let options = Options {
        max_file: longshore_harness::ROOM,
        // Who speaks the protocol by bytes has no password.
        extra: "authorization {users: [{user: all, password: s3cret-password}]}\nno_auth_user: all".to_owned(),
        ..Options::default()
    };
    let login = ConnectOptions::with_user_and_password("all".into(), "s3cret-password".into());
    let world = World::with_login(options, login).await;
    let node = world.node().with("types.pays", &format!("max_attempts = 2\n{AT_ONCE}"));
    let node = node.env("NATS_USER", "all").env("NATS_PASSWORD", "s3cret-password").env("LONGSHORE_LOG", "trace");
    let node = node.start().await;
    let handler = world.handler("pays").start(|job: Job| async move {
        match job.round {
            1 => Reply::error(503, "the service is away"),
            _ => Reply::json(json!({"token": "s3cret-result"})),
        }
    });
    let _handler = handler.await;
    let publish =
        world.publish("pays").header("X-Token", "s3cret-header").header("Longshore-Idempotency-Key", "s3cret-key");
    let run = publish.json(json!({"card": "s3cret-payload"})).await;
    assert_eq!(world.wait(&run).await.state, "dead");
    world.eventually_dead_letters(1).await;
    assert_eq!(world.request("dlq.replay", json!({"run_id": run})).await["replayed"], 1);
    assert_eq!(world.wait(&run).await.state, "completed");
    let submitted = json!({"type": "pays", "payload": "s3cret-payload", "delay_ms": 600_000, "headers": {"X-Token": "s3cret-header"}});
    let later = world.submit(submitted).await;
    world.request("runs.cancel", json!({"run_id": later})).await;
    let invalid = world.publish("pays").header("Longshore-Delay", "never").json(json!("s3cret-payload")).await;
    assert_eq!(world.wait(&invalid).await.state, "dead");
    let mut bytes = world.bytes().await;
    for headers in ["Authorization s3cret-header", "s3cret-\u{a0}header: x", "Authorization: s3cret-header\rX: y"] {
        let headers = format!("NATS/1.0\r\n{headers}\r\n\r\n");
        bytes.publish(b"longshore.jobs.default.main.p5.pays", None, headers.as_bytes(), b"\"s3cret-payload\"");
    }
    let headers = b"NATS/1.0 s3cret-header\r\nA: b\r\n\r\n";
    bytes.publish(b"longshore.jobs.default.main.p5.pays", None, headers, b"\"s3cret-payload\"");
    bytes.flush().await;
    // With the one above; the run that was replayed left none.
    world.eventually_dead_letters(5).await;

    node.stop().await;
    let lines = node.log().since(0);
    assert!(lines.iter().any(|line| line.contains("invalid job")), "the log has lines of jobs");
    let found: Vec<&String> = lines.iter().filter(|line| line.contains("s3cret")).collect();
    assert!(found.is_empty(), "{found:?}");
}
