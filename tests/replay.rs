//! Dead letters can be inspected, replayed, discarded and erased.

use std::time::Duration;

use base64::Engine as _;
use longshore_harness::history::Interruption;
use longshore_harness::{Reply, World};
use serde_json::{Value, json};

use crate::{AT_ONCE, rules, served_by, times, world};

/// Settings of a type whose handler fails as many times as `times` says, and then succeeds.
fn flaky(max: u32) -> String {
    served_by("fail", &format!("max_attempts = {max}\n{AT_ONCE}"))
}

async fn die(world: &World, count: usize) -> Vec<String> {
    let receipts = world.publish("flaky").many((0..count).map(|_| json!({"times": 2}))).await;
    let runs: Vec<String> = receipts.into_iter().map(|receipt| receipt.run_id).collect();
    for run in &runs {
        assert_eq!(world.wait(run).await.state, "dead");
    }
    world.eventually_dead_letters(count).await;
    runs
}

async fn no_dead_letters(world: &World) {
    longshore_harness::eventually("no dead letters", Duration::from_secs(20), async || {
        match world.dead_letters("default").await.len() {
            0 => Ok(()),
            left => Err(left),
        }
    })
    .await;
}

/// Given dead letters, when they are listed, then each has its record, payload, headers and fingerprint, page by page.
#[tokio::test]
async fn dead_letters_are_listed_and_grouped() {
    let world = world().await;
    let _node = world.node().with("types.flaky", &flaky(1)).start().await;
    let runs = die(&world, 7).await;
    let other = world.publish("fail").header("X-Mine", "1").json(json!({"kind": "permanent"})).await;
    world.wait(&other).await;
    world.eventually_dead_letters(8).await;

    let mut listed = Vec::new();
    let mut cursor = Value::Null;
    loop {
        let mut body = json!({"type": "flaky", "limit": 3});
        if cursor.is_string() {
            body["cursor"] = cursor;
        }
        let page = world.request("dlq.list", body).await;
        let entries = page["entries"].as_array().unwrap();
        assert!(!entries.is_empty() && entries.len() <= 3);
        listed.extend(entries.iter().map(|entry| entry["run_id"].as_str().unwrap().to_owned()));
        cursor = page["cursor"].clone();
        if cursor.is_null() {
            break;
        }
    }
    listed.sort();
    assert_eq!(listed, runs);
    let one = world.request("dlq.get", json!({"run_id": other})).await;
    assert_eq!((&one["state"], &one["headers"]["X-Mine"]), (&json!("dead"), &json!("1")));
    let payload = base64::engine::general_purpose::STANDARD.decode(one["payload_base64"].as_str().unwrap()).unwrap();
    assert_eq!(serde_json::from_slice::<Value>(&payload).unwrap(), json!({"kind": "permanent"}));
    assert_eq!(one["attempts"].as_array().unwrap().len(), 1);

    let by_kind = world.request("dlq.list", json!({"error_kind": "permanent"})).await;
    assert_eq!(by_kind["entries"].as_array().unwrap().len(), 1);
    let groups = world.request("dlq.groups", json!({})).await["groups"].clone();
    let counts: Vec<(&Value, &Value)> =
        groups.as_array().unwrap().iter().map(|group| (&group["type"], &group["count"])).collect();
    assert_eq!(counts, [(&json!("flaky"), &json!(7)), (&json!("fail"), &json!(1))]);
    assert_eq!(groups[0]["pattern"], "attempt # fails as asked");
    for (tenant, body, code) in [
        ("default", json!({"run_id": "main-p5-999"}), 404),
        ("acme", json!({"run_id": other}), 404),
        ("default", json!({}), 400),
    ] {
        assert_eq!(world.try_request(tenant, "dlq.get", body).await.unwrap_err().code, code);
    }
    for endpoint in ["dlq.list", "dlq.groups"] {
        for limit in [0, 501] {
            let error = world.try_request("default", endpoint, json!({"limit": limit})).await.unwrap_err();
            assert_eq!((error.code, error.message.as_str()), (400, "limit: is not one of 1 to 500"), "{endpoint}");
        }
    }
    assert_eq!(world.request("dlq.list", json!({"since": "2999-01-01T00:00:00Z"})).await, json!({"entries": []}));
}

/// Given dead letters of two causes, when a group is replayed by its fingerprint, then those of the group are, and no
/// others, by API and command line alike; of calls at once each counts what it did itself.
#[tokio::test]
async fn a_group_is_replayed_by_its_fingerprint() {
    let world = world().await;
    let _node = world.node().with("types.flaky", &flaky(1)).start().await;
    let runs = die(&world, 40).await;
    let other = world.publish("fail").json(json!({"kind": "permanent"})).await;
    world.wait(&other).await;
    world.eventually_dead_letters(41).await;
    let groups = world.request("dlq.groups", json!({})).await["groups"].clone();
    let fingerprint = |at: usize| groups[at]["fingerprint"].as_str().unwrap().to_owned();

    let first = json!({"fingerprint": fingerprint(0), "dry_run": true});
    assert_eq!(world.request("dlq.replay", first).await["replayed"], 40, "{groups}");
    assert_eq!(world.request("dlq.discard", json!({"fingerprint": "f", "dry_run": true})).await["discarded"], 0);
    let calls = (0..4).map(|_| world.request("dlq.replay", json!({"fingerprint": fingerprint(0)})));
    let answers = futures_util::future::join_all(calls).await;
    let counted: u64 = answers.iter().map(|answer| answer["replayed"].as_u64().unwrap()).sum();
    assert_eq!(counted, 40, "{answers:?}");
    for run in &runs {
        assert_eq!(world.wait(run).await.round, 2);
    }

    let command = world.command(["dlq", "discard", "--fingerprint", &fingerprint(1), "--yes"]).output().await.unwrap();
    assert!(command.status.success(), "{command:?}");
    let left = world.request("dlq.list", json!({"type": "fail"})).await;
    assert_eq!(left["entries"], json!([]), "{command:?}");
    let refused = world.try_request("default", "runs.cancel", json!({"fingerprint": "f"})).await.unwrap_err();
    assert!(refused.message.starts_with("fingerprint: is not a field"), "{refused}");
}

/// Given a dead run with so many long errors that its dead letter has only their beginnings, when the fingerprint of
/// its group is asked for, then it is meant.
#[tokio::test]
async fn a_group_of_long_errors_is_found_by_its_fingerprint() {
    let world = world().await;
    let settings = served_by("remote", &format!("max_attempts = 12\n{AT_ONCE}"));
    let _node = world.node().with("types.wordy", &settings).start().await;
    let wordy = world.handler("wordy");
    let _handler = wordy.start(async |_| Reply::error(503, &format!("no room for {}", ["4711"; 750].join(" ")))).await;
    let run = world.publish("wordy").json(json!(1)).await;
    assert_eq!(world.wait(&run).await.state, "dead");
    let letter = world.eventually_dead_letters(1).await.pop().unwrap();
    let kept: Value = serde_json::from_str(&letter.headers["Longshore-Record"]).unwrap();
    assert!(kept["error"]["message"].as_str().unwrap().len() <= 200, "{kept}");
    let groups = world.request("dlq.groups", json!({})).await["groups"].clone();
    let group = json!({"fingerprint": groups[0]["fingerprint"], "dry_run": true});
    assert_eq!(world.request("dlq.replay", group.clone()).await["replayed"], 1, "{groups}");
    assert_eq!(world.request("dlq.discard", group).await["discarded"], 1, "{groups}");
}

/// Given a dead run, when it is replayed, then its next round begins, its history stays, and its dead letter is
/// deleted.
#[tokio::test]
async fn a_replay_opens_the_next_round() {
    let world = world().await;
    let node = world.node().with("types.flaky", &flaky(2)).start().await;
    let run = die(&world, 1).await.pop().unwrap();
    let answer = world.request("dlq.replay", json!({"run_id": run, "dry_run": true})).await;
    assert_eq!(answer["replayed"], 1);
    assert_eq!(world.dead_letters("default").await.len(), 1, "a dry run changes nothing");

    let mut live = world.live_events("default").await;
    let answer =
        world.request("dlq.replay", json!({"run_id": run, "set": {"payload": {"times": 1}, "priority": 2}})).await;
    assert_eq!(answer, json!({"replayed": 1, "failed": [], "more": false}));
    let end = world.wait(&run).await;
    assert_eq!((end.state.as_str(), end.round, end.attempt, end.priority), ("completed", 2, 2, 2));
    let numbers: Vec<(u32, u32)> = end.attempts.iter().map(|tried| (tried.round, tried.attempt)).collect();
    assert_eq!(numbers, [(1, 1), (1, 2), (2, 1), (2, 2)]);
    live.until_published("completed", &run).await;
    let published: Vec<&str> = live.received().iter().filter_map(|live| live.body["event"].as_str()).collect();
    assert_eq!(published, ["replayed", "enqueued", "started", "failed", "started", "completed"], "each once");
    no_dead_letters(&world).await;
    world
        .eventually_reads(
            &run,
            "enqueued\nstarted 1\nfailed 1 retryable\nstarted 2\nfailed 2 retryable\ndlq retryable\nreplayed\nenqueued\n\
             started 1\nfailed 1 retryable\nstarted 2\ncompleted 2",
        )
        .await;
    for endpoint in ["dlq.replay", "dlq.discard"] {
        let error = world.try_request("default", endpoint, json!({"run_id": run})).await.unwrap_err();
        assert_eq!(error.code, 404, "{error}");
        for body in [json!({}), json!({"all": true, "rate_per_s": 0}), json!({"all": true, "cursor": "1"})] {
            assert_eq!(world.try_request("default", endpoint, body).await.unwrap_err().code, 400);
        }
    }
    let wrong = json!({"all": true, "set": {"queue": "undeclared"}});
    assert_eq!(world.try_request("default", "dlq.replay", wrong).await.unwrap_err().code, 404);
    for (name, value, code) in [("Longshore-Max-Attempts", "0".to_owned(), 400), ("X-Large", "x".repeat(25_000), 413)] {
        let wrong = json!({"all": true, "set": {"headers": {name: value}}});
        assert_eq!(world.try_request("default", "dlq.replay", wrong).await.unwrap_err().code, code, "{name}");
    }
    node.stop().await;
}

/// Given many dead runs, when those that match are replayed up to a limit and the rest discarded, then each is handled
/// one way.
#[tokio::test]
async fn dead_letters_are_replayed_and_discarded_in_bulk() {
    let world = world().await;
    let _node = world.node().with("types.flaky", &flaky(1)).start().await;
    let runs = die(&world, 400).await;

    // Nothing is waited for after the last one.
    let body = |limit| json!({"type": "flaky", "limit": limit, "set": {"payload": {"times": 0}}});
    let mut slow = body(1);
    slow["rate_per_s"] = json!(0.001);
    assert_eq!(world.request("dlq.replay", slow).await, json!({"replayed": 1, "failed": [], "more": true}));
    let answer = world.request("dlq.replay", body(149)).await;
    assert_eq!(answer, json!({"replayed": 149, "failed": [], "more": true}));
    let answer = world.request("dlq.discard", json!({"all": true})).await;
    assert_eq!(answer, json!({"discarded": 250, "failed": [], "more": false}));
    no_dead_letters(&world).await;
    let mut completed = 0;
    for run in &runs {
        let end = world.wait(run).await;
        match (end.state.as_str(), end.round) {
            ("completed", 2) => completed += 1,
            ("discarded", 1) => {}
            other => panic!("{run}: {other:?}"),
        }
    }
    assert_eq!(completed, 150);
}

/// Given nodes that are killed in the middle of replaying, when the call is repeated, then each run is replayed once.
/// `LONGSHORE_TEST_LETTERS=10000 LONGSHORE_TEST_KILLS=20` has more of both.
#[tokio::test]
async fn a_replay_that_was_cut_off_is_finished() {
    let (dead_letters, kills) = (times("LONGSHORE_TEST_LETTERS", 100), times("LONGSHORE_TEST_KILLS", 1));
    for point in ["after-replay-record", "after-replay-publish"] {
        let world = world().await;
        // More than one attempt: each kill costs the running jobs one.
        let node = || world.node().with("types.flaky", &flaky(3));
        let first = node().start().await;
        let receipts = world.publish("flaky").many((0..dead_letters).map(|_| json!({"times": 3}))).await;
        for receipt in &receipts {
            assert_eq!(world.wait(&receipt.run_id).await.state, "dead");
        }
        world.eventually_dead_letters(dead_letters).await;
        first.stop().await;

        let body = json!({"all": true, "set": {"payload": {"times": 0}}});
        let mut interruptions = Vec::new();
        for _ in 0..kills {
            // Besides those that passed the point, up to 64 more are in progress at each kill.
            let cut_off = format!("{point}=kill@{}", 2 * dead_letters / (3 * kills + 2));
            let doomed = node().name("doomed").env("LONGSHORE_FAIL_POINTS", &cut_off).start().await;
            assert!(world.try_request("default", "dlq.replay", body.clone()).await.is_err(), "it killed the node");
            doomed.wait_exit(Duration::from_secs(60)).await;
            interruptions.push(Interruption { node: Some("doomed".to_owned()), at: jiff::Timestamp::now() });
        }
        let left = world.dead_letters("default").await.len();
        assert!(0 < left, "some were not replayed yet");

        let last = node().name("last").start().await;
        let answer = world.request("dlq.replay", body).await;
        assert_eq!((&answer["failed"], &answer["more"]), (&json!([]), &json!(false)));
        for receipt in &receipts {
            let end = world.wait(&receipt.run_id).await;
            assert_eq!((end.state.as_str(), end.round), ("completed", 2), "{point} {}", receipt.run_id);
        }
        no_dead_letters(&world).await;
        last.stop().await;
        let mut history = world.history(&receipts, Vec::new()).await;
        history.rules = rules(interruptions);
        history.assert_sound();
        println!(
            "{point}: {kills} kills, {dead_letters} dead letters, {left} left after the kills; each replayed once"
        );
    }
}

/// Given runs that have ended, when one is erased, then its personal data is gone and its times stay.
#[tokio::test]
async fn an_erased_run_keeps_its_times_only() {
    let world = world().await;
    let node = world.node().with("types.flaky", &flaky(1)).start().await;
    let dead = die(&world, 1).await.pop().unwrap();
    let done = world.publish("echo").json(json!({"name": "Anna"})).await;
    world.wait(&done).await;
    for run in [&dead, &done] {
        let stone = world.request("runs.erase", json!({"run_id": run})).await;
        let text = stone.to_string();
        assert!(!text.contains("Anna") && !text.contains("as asked"), "{text}");
        assert!(stone["erased_at"].is_string() && stone["attempts"][0]["started_at"].is_string(), "{text}");
        assert_eq!(world.request("runs.get", json!({"run_id": run})).await, stone);
        let payload = world.try_request("default", "runs.payload", json!({"run_id": run})).await.unwrap_err();
        assert_eq!((payload.code, payload.error.as_str()), (404, "not_kept"), "{payload}");
    }
    no_dead_letters(&world).await;
    let waits = world.publish("noop").header("Longshore-Delay", "1h").json(json!(1)).await;
    longshore_harness::eventually("the schedule", Duration::from_secs(20), async || {
        world.record(&waits).await.map(|_| ()).ok_or("no record yet")
    })
    .await;
    for (run, code) in [(waits.as_str(), 409), ("main-p5-999", 404)] {
        let error = world.try_request("default", "runs.erase", json!({"run_id": run})).await.unwrap_err();
        assert_eq!(error.code, code, "{error}");
    }
    node.stop().await;
}
