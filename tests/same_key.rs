//! A key is any text, and what counts as the same job under it does not depend on how the client wrote its JSON.

use std::time::Duration;

use futures_util::future::join_all;
use longshore_harness::World;
use serde_json::{Value, json};

use crate::{served_by, world};

/// What `submit` answers to a request in just these bytes.
async fn submit(world: &World, request: &str) -> Value {
    let request = async_nats::Request::new().payload(request.to_owned().into()).timeout(Some(Duration::from_secs(20)));
    let answer = world.client().send_request("longshore.api.default.submit", request).await.unwrap();
    serde_json::from_slice(&answer.payload).unwrap()
}

/// Given keys that no header can carry as they are, when jobs with them are submitted, then each is a run of its own,
/// and its own again if it is submitted again; the same for the keys of limits.
#[tokio::test]
async fn a_key_is_any_text() {
    let world = world().await;
    let node = world.node().start().await;
    let long = "ü".repeat(256);
    let keys = ["k", " k", "k ", "\tk", " ", "\n", "a\r\nLongshore-Delay: 1h", "\u{0}", "\u{a0}k", "a\u{2028}b", &long];
    for key in keys {
        let job =
            json!({"type": "echo", "payload": key, "idempotency_key": key, "limit_key": key, "concurrency_key": key});
        let first = world.request("submit", job.clone()).await;
        assert_eq!(first["deduplicated"], false, "{key:?} {first}");
        let run = first["run_id"].as_str().unwrap();
        let ended = world.wait(run).await;
        assert_eq!((ended.state.as_str(), ended.result), ("completed", Some(json!(key))), "{key:?}");
        let again = world.request("submit", job).await;
        assert_eq!((&again["run_id"], &again["deduplicated"]), (&json!(run), &json!(true)), "{key:?}");
        // Neither key makes the job one with a record of its own before its start.
        let bare = world.submit(json!({"type": "echo", "payload": 1, "limit_key": key, "concurrency_key": key})).await;
        assert_eq!(world.wait(&bare).await.state, "completed", "{key:?}");
    }
    for key in [String::new(), "x".repeat(513), "ü".repeat(257)] {
        let job = json!({"type": "echo", "idempotency_key": key});
        let refused = world.try_request("default", "submit", job).await.unwrap_err();
        assert_eq!((refused.code, refused.error.as_str()), (400, "malformed"), "{refused:?}");
        assert!(refused.message.starts_with("idempotency_key: "), "{refused:?}");
    }
    assert!(node.stop().await.success());
    world.history(&[], Vec::new()).await.assert_sound();
}

/// Given a key that was submitted, when it is published bare, as it is or in base64, then that is the same key.
#[tokio::test]
async fn a_bare_publish_can_have_any_key() {
    let world = world().await;
    let _node = world.node().start().await;
    for (key, header, value) in
        [("a\tb", "Longshore-Idempotency-Key", "a\tb"), ("a\nb", "longshore-idempotency-key-base64", "YQpi")]
    {
        let first = world.submit(json!({"type": "echo", "payload": 1, "idempotency_key": key})).await;
        let bare = world.publish("echo").header(header, value).json(json!(1)).await;
        assert_eq!(world.wait(&bare).await.duplicate_of, Some(first), "{key:?}");
    }
}

/// Given a job that is a duplicate, when a client waits for it, then it gets the end of the run that has its key, by
/// API and command line alike; the duplicate's own record stays what it is.
#[tokio::test]
async fn a_wait_for_a_duplicate_is_one_for_the_run_that_has_its_key() {
    let world = world().await;
    let _node = world.node().start().await;
    let job = json!({"ms": 1_500});
    let first = world.submit(json!({"type": "sleep", "payload": job, "idempotency_key": "k"})).await;
    let bare = world.publish("sleep").header("Longshore-Idempotency-Key", "k").json(job).await;
    let command = world.command(["runs", "wait", &bare]).output();
    let (answer, command) = tokio::join!(world.request("runs.wait", json!({"run_id": bare})), command);
    assert_eq!((&answer["run_id"], &answer["state"]), (&json!(first), &json!("completed")), "{answer}");
    let command = command.unwrap();
    assert_eq!(command.status.code(), Some(0), "{command:?}");
    let said = String::from_utf8_lossy(&command.stderr).into_owned();
    assert!(said.contains(&format!("{bare} is a duplicate of {first}")), "{said}");
    assert_eq!(world.request("runs.get", json!({"run_id": bare})).await["state"], "duplicate");
}

/// Given a bare job whose headers say how long a key holds, but name none, when a node takes it, then it is invalid and
/// says which header, as `submit` does.
#[tokio::test]
async fn what_belongs_to_a_key_needs_one() {
    let world = world().await;
    let _node = world.node().start().await;
    for (header, value, field) in [
        ("Longshore-Unique", "active", "unique"),
        ("Longshore-Unique", "window", "unique"),
        ("Longshore-Idempotency-Window", "5m", "idempotency_window_ms"),
    ] {
        let run = world.publish("echo").header(header, value).json(json!(1)).await;
        let error = world.wait(&run).await.error.unwrap();
        assert_eq!(error.kind, "invalid");
        assert!(error.message.contains(header) && error.message.contains("needs"), "{error:?}");
        let value = if field == "unique" { json!(value) } else { json!(300_000) };
        let refused = world.try_request("default", "submit", json!({"type": "echo", field: value})).await.unwrap_err();
        assert_eq!(refused.code, 400);
        assert!(refused.message.contains(field) && refused.message.contains("needs"), "{refused:?}");
    }
}

/// Given a dead run with a key, when a replay would take the key away and leave what belongs to it, then the replay
/// fails and says so, and the dead letter stays; without both it runs.
#[tokio::test]
async fn a_replay_leaves_nothing_that_needs_a_key_without_one() {
    let world = world().await;
    let _node = world.node().with("types.work", &served_by("fail", "max_attempts = 1")).start().await;
    let job = json!({"type": "work", "payload": {"times": 1}, "idempotency_key": "k", "unique": "active"});
    let run = world.submit(job).await;
    assert_eq!(world.wait(&run).await.state, "dead");
    world.eventually_dead_letters(1).await;
    let replay = |headers: Value| json!({"run_id": run, "set": {"headers": headers, "payload": {"times": 0}}});
    let answer = world.request("dlq.replay", replay(json!({"Longshore-Idempotency-Key": null}))).await;
    assert_eq!((&answer["replayed"], world.dead_letters("default").await.len()), (&json!(0), 1), "{answer}");
    let why = answer["failed"][0]["error"].as_str().unwrap();
    assert!(why.contains("Longshore-Unique: needs a Longshore-Idempotency-Key"), "{why}");
    let both = json!({"Longshore-Idempotency-Key": null, "Longshore-Unique": null});
    assert_eq!(world.request("dlq.replay", replay(both)).await["replayed"], 1);
    assert_eq!(world.wait(&run).await.state, "completed");
}

/// Given a job under a key, when its JSON comes again as another library writes it, then it is the same job; with
/// another value, also of a number that is merely written otherwise, it is another one.
#[tokio::test]
async fn the_same_json_is_the_same_job_however_it_is_written() {
    let world = world().await;
    let _node = world.node().start().await;
    let job = |payload: &str| format!(r#"{{"type":"echo","idempotency_key":"k","payload":{payload}}}"#);
    let first = submit(&world, &job(r#"{"name":"Zoë","items":[{"id":1,"n":1.10}]}"#)).await;
    assert_eq!(first["deduplicated"], false, "{first}");
    let same = submit(&world, &job(r#"{ "items" : [ {"n": 1.10, "id": 1} ], "name": "Zo\u00eb" }"#)).await;
    assert_eq!((&same["deduplicated"], &same["run_id"]), (&json!(true), &first["run_id"]), "{same}");
    for other in [r#"{"name":"Zoë","items":[{"id":1,"n":1.1}]}"#, r#"{"name":"Zoe","items":[{"id":1,"n":1.10}]}"#] {
        let refused = submit(&world, &job(other)).await;
        assert_eq!(refused["error"], "idempotency_mismatch", "{other} {refused}");
    }
    // A bare publish is compared in the same way.
    let bare = world.publish("echo").header("Longshore-Idempotency-Key", "b").bytes(r#"{"a": 1}"#).await;
    assert_eq!(world.wait(&bare).await.state, "completed");
    let same = submit(&world, r#"{"type":"echo","idempotency_key":"b","payload":{"a":1}}"#).await;
    assert_eq!((&same["deduplicated"], &same["run_id"]), (&json!(true), &json!(bare)), "{same}");
}

/// Given jobs of one key that are submitted at the same moment, one of them with another payload, when each is asked
/// for again until it is known what became of it, then only those are answered a run whose payload it has.
#[tokio::test]
async fn of_different_jobs_at_once_none_is_answered_the_run_of_another() {
    let world = world().await;
    let node = world.node().start().await;
    let keys = (0..300).map(|key| {
        let jobs =
            [1, 1, 2].map(|payload| json!({"type": "echo", "payload": payload, "idempotency_key": key.to_string()}));
        let world = &world;
        async move {
            let answers = world.request("submit.batch", json!({"jobs": jobs})).await;
            let mut runs = Vec::new();
            for (job, answer) in jobs.into_iter().zip(answers["jobs"].as_array().unwrap()) {
                match settled(world, &job, answer.clone()).await {
                    Ok(run) => {
                        assert_eq!(world.wait(&run).await.result.as_ref(), Some(&job["payload"]), "{job} {answers}");
                        runs.push(run);
                    }
                    Err(error) => assert_eq!(error, "idempotency_mismatch", "{job} {answers}"),
                }
            }
            runs.dedup();
            assert_eq!(runs.len(), 1, "{answers}");
        }
    });
    join_all(keys).await;
    assert!(node.stop().await.success());
    world.history(&[], Vec::new()).await.assert_sound();
}

/// The run, or the error, of a job that was answered in this way, and is submitted again while the answer is not known.
async fn settled(world: &World, job: &Value, mut answer: Value) -> Result<String, String> {
    loop {
        match (answer["run_id"].as_str(), answer["code"].as_u64()) {
            (Some(run), _) => return Ok(run.to_owned()),
            (None, Some(503)) => answer = submit(world, &job.to_string()).await,
            (None, _) => return Err(answer["error"].as_str().unwrap().to_owned()),
        }
    }
}
