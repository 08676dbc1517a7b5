//! One id, one key: one run.

use futures_util::future::join_all;
use serde_json::{Value, json};

use crate::world;

/// Given a key, when a job is submitted with it again and again, then there is one run, and every answer names it.
#[tokio::test]
async fn one_key_is_one_run() {
    let world = world().await;
    let node = world.node().start().await;
    let job = json!({"type": "echo", "payload": 1, "idempotency_key": "order 1/ä"});
    let answers = join_all((0..20).map(|_| world.request("submit", job.clone()))).await;

    let run = answers[0]["run_id"].as_str().unwrap().to_owned();
    assert!(answers.iter().all(|answer| answer["run_id"] == run.as_str()), "{answers:?}");
    assert_eq!(answers.iter().filter(|answer| answer["deduplicated"] == false).count(), 1, "{answers:?}");
    assert_eq!(world.wait(&run).await.state, "completed");
    let late = world.request("submit", job).await;
    assert_eq!(
        (&late["run_id"], &late["state"], &late["deduplicated"]),
        (&json!(run), &json!("completed"), &json!(true))
    );
    world.eventually_reads(&run, "enqueued\nstarted 1\ncompleted 1").await;

    node.stop().await;
    assert_eq!(world.depth("main", 5).await, 0);
    assert_eq!(world.event_log("*").await.len(), 3);
    world.history(&[], Vec::new()).await.assert_sound();
}

/// Given a run with a key, when it is looked for by the key, then it is found, before its start and after its end, by
/// its tenant alone; of a key that is free again it is the run that had it last.
#[tokio::test]
async fn a_run_is_found_by_its_key() {
    let world = world().await;
    let _node = world.node().start().await;
    let find = async |tenant: &str, asked: Value| {
        let found = world.try_request(tenant, "runs.list", asked).await.unwrap();
        let runs = found["runs"].as_array().unwrap().iter();
        runs.map(|run| run["run_id"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let of = async |key: &str| find("default", json!({"idempotency_key": key})).await;
    let key = "order 1/ä";
    let job = |unique: &str, run: &str| json!({"type": "echo", "idempotency_key": format!("{key} {unique}"), "unique": unique, "run_id": run, "delay_ms": 3_600_000});
    for unique in ["window", "queued"] {
        assert_eq!(of(&format!("{key} {unique}")).await, Vec::<String>::new());
        world.submit(job(unique, unique)).await;
        assert_eq!(of(&format!("{key} {unique}")).await, [unique]);
        world.request("runs.run_now", json!({"run_id": unique})).await;
        assert_eq!(world.wait(unique).await.state, "completed");
        assert_eq!(of(&format!("{key} {unique}")).await, [unique], "though it is free by now");
    }
    world.submit(job("queued", "next")).await;
    assert_eq!(of(&format!("{key} queued")).await, ["next"]);

    let asked = json!({"idempotency_key": format!("{key} window")});
    assert_eq!(find("acme", asked.clone()).await, Vec::<String>::new());
    let named = json!({"idempotency_key": format!("{key} window"), "tenant": "default"});
    assert_eq!(find("_all", named).await, ["window"]);
    let unnamed = world.try_request("_all", "runs.list", asked).await.unwrap_err();
    assert!(unnamed.code == 400 && unnamed.message.starts_with("tenant: is missing"), "{unnamed:?}");
}

/// Given a run id of the client's own, when a job is submitted with it again, then it is the same run.
#[tokio::test]
async fn one_id_is_one_run() {
    let world = world().await;
    let node = world.node().start().await;
    let job = json!({"type": "echo", "payload": 1, "run_id": "order-1"});
    let first = world.request("submit", job.clone()).await;
    assert_eq!(first, json!({"run_id": "order-1", "state": "enqueued", "deduplicated": false}));
    assert_eq!(world.wait("order-1").await.result, Some(json!(1)));

    let second = world.request("submit", job).await;
    assert_eq!(second, json!({"run_id": "order-1", "state": "completed", "deduplicated": true}));
    let bare = world.publish("echo").header("Longshore-Run-Id", "order-1").json(json!(2)).await;
    assert_eq!(bare, "order-1");

    // Dropped unseen: the lane is empty, and no event was published.
    crate::is_emptied(&world).await;
    node.stop().await;
    assert_eq!(world.record("order-1").await.unwrap().result, Some(json!(1)));
    world.eventually_reads("order-1", "enqueued\nstarted 1\ncompleted 1").await;
    world.history(&[], Vec::new()).await.assert_sound();
}

/// Given a node, when jobs with one key, or one id, are published bare one right after the other, then the first is the
/// run.
#[tokio::test]
async fn of_jobs_that_are_published_together_the_first_is_the_run() {
    let world = world().await;
    let _node = world.node().start().await;
    let mut events = world.live_events("default").await;
    for nth in 0..40 {
        let key = format!("k{nth}");
        let publish = || world.publish("echo").header("Longshore-Idempotency-Key", &key);
        let runs = publish().many((0..3).map(|number| json!(number))).await;
        assert_eq!(world.wait(&runs[0].run_id).await.state, "completed", "{runs:?}");
        for later in &runs[1..] {
            let end = world.wait(&later.run_id).await;
            assert_eq!((end.state.as_str(), end.duplicate_of.as_ref()), ("duplicate", Some(&runs[0].run_id)));
        }
        let id = format!("id{nth}");
        world.publish("echo").header("Longshore-Run-Id", &id).many((0..3).map(|number| json!(number))).await;
        events.until_published("completed", &id).await;
        assert_eq!(world.wait(&id).await.result, Some(json!(0)));
    }
}

/// Given two tenants, when both use one key and one id, then each tenant has its own run.
#[tokio::test]
async fn keys_and_ids_are_each_tenants_own() {
    let world = world().await;
    let _node = world.node().start().await;
    for tenant in ["acme", "zeta"] {
        let job = json!({"type": "echo", "payload": tenant, "run_id": "r", "idempotency_key": "k"});
        let answer = world.try_request(tenant, "submit", job).await.unwrap();
        assert_eq!(answer, json!({"run_id": "r", "state": "enqueued", "deduplicated": false}));
        let end = world.wait_as(tenant, "r", std::time::Duration::from_secs(30)).await;
        assert_eq!(end.result, Some(json!(tenant)));
    }
}

/// Given a key in headers, when another job is published bare with it, then that one ends as its duplicate.
#[tokio::test]
async fn a_bare_job_with_a_taken_key_is_a_duplicate() {
    let world = world().await;
    let node = world.node().start().await;
    let publish = world.publish("echo").header("Longshore-Idempotency-Key", "k");
    let first = publish.send("1").await.unwrap();
    assert_eq!(world.wait(&first.run_id).await.state, "completed");
    let second = publish.send("2").await.unwrap();

    let end = world.wait(&second.run_id).await;

    assert_eq!((end.state.as_str(), end.duplicate_of.as_deref()), ("duplicate", Some(first.run_id.as_str())));
    assert_eq!((end.attempt, end.result), (0, None));
    let published = world.eventually_reads(&second.run_id, "enqueued\nduplicate").await;
    assert_eq!(published[1].event.duplicate_of.as_deref(), Some(first.run_id.as_str()));

    let submitted = json!({"type": "echo", "payload": 1, "idempotency_key": "k"});
    let answer = world.request("submit", submitted).await;
    assert_eq!(answer, json!({"run_id": first.run_id, "state": "completed", "deduplicated": true}));
    node.stop().await;
    world.history(&[first, second], Vec::new()).await.assert_sound();
}

/// Given a submitted job with a key, when a bare job arrives with the same key, then that one is its duplicate.
#[tokio::test]
async fn a_submitted_key_holds_for_bare_jobs() {
    let world = world().await;
    let _node = world.node().start().await;
    let run = world.submit(json!({"type": "echo", "payload": 1, "idempotency_key": "k"})).await;
    let bare = world.publish("echo").header("Longshore-Idempotency-Key", "k").json(json!(2)).await;

    let end = world.wait(&bare).await;

    assert_eq!((end.state.as_str(), end.duplicate_of), ("duplicate", Some(run.clone())));
    assert_eq!(world.wait(&run).await.state, "completed");
}

/// Given a window, when it is over, then the key is free again.
#[tokio::test]
async fn a_key_is_free_after_its_window() {
    let world = world().await;
    let _node = world.node().start().await;
    let publish = world.publish("echo").header("Longshore-Idempotency-Key", "k");
    let publish = publish.header("Longshore-Idempotency-Window", "1s");
    let first = publish.json(json!(1)).await;
    assert_eq!(world.wait(&first).await.state, "completed");
    let again =
        longshore_harness::eventually("the end of the window", std::time::Duration::from_secs(20), async || {
            let run = publish.json(json!(2)).await;
            let end = world.wait(&run).await;
            if end.state == "completed" { Ok(end) } else { Err(end.state) }
        })
        .await;
    assert_eq!(again.result, Some(json!(2)));
}

/// Given a node that dies during a submission, when the client repeats it, then the job is stored, however far the
/// first one got.
#[tokio::test]
async fn a_submit_that_is_repeated_after_a_death_is_not_lost() {
    let world = world().await;
    crate::without_node(world.node().name("node")).await;
    let mut runs = Vec::new();
    for (number, point) in
        ["before-record", "after-record", "after-events", "before-schedule", "after-schedule"].iter().enumerate()
    {
        let kill = format!("{point}=kill");
        let node = world.node().name("node").env("LONGSHORE_FAIL_POINTS", &kill).start().await;
        let named = json!({"type": "echo", "payload": number, "delay_ms": 400, "run_id": format!("named-{number}")});
        let keyed = json!({"type": "echo", "payload": number, "delay_ms": 400, "idempotency_key": point});
        let job = if number % 2 == 0 { named } else { keyed };
        let unanswered = world.ask("default", "submit", job.to_string(), std::time::Duration::from_secs(1)).await;
        assert!(unanswered.is_err(), "{point}: {unanswered:?}");
        node.wait_exit(std::time::Duration::from_secs(30)).await;

        let node = world.node().name("node").start().await;
        let answer = world.request("submit", job).await;
        let run = answer["run_id"].as_str().unwrap().to_owned();
        let end = world.wait(&run).await;
        assert_eq!((end.state.as_str(), end.result), ("completed", Some(json!(number))), "{point}");
        runs.push(run);
        node.stop().await;
    }
    for run in &runs {
        world.eventually_reads(run, "scheduled\nenqueued\nstarted 1\ncompleted 1").await;
    }
    world.history(&[], Vec::new()).await.assert_sound();
}

/// Given a scheduled job, when its id or key arrives again with another payload, then the first payload is the one that
/// runs.
#[tokio::test]
async fn a_repeat_does_not_change_what_was_scheduled() {
    let world = world().await;
    let _node = world.node().start().await;
    let first = json!({"type": "echo", "payload": 1, "delay_ms": 1_000, "run_id": "mine"});
    world.submit(first.clone()).await;
    let mut second = first;
    second["payload"] = json!(2);
    assert_eq!(world.request("submit", second).await["deduplicated"], true);
    assert_eq!(world.wait("mine").await.result, Some(json!(1)));
}

/// Given jobs that were scheduled with a key or an id, when they arrive again, then there is still one run.
#[tokio::test]
async fn a_scheduled_job_holds_its_key_and_id() {
    let world = world().await;
    let node = world.node().start().await;
    let keyed = json!({"type": "noop", "delay_ms": 1_200, "idempotency_key": "k"});
    let named = json!({"type": "noop", "delay_ms": 1_200, "run_id": "mine"});
    let published = |answer: &Value| (answer["state"].as_str().unwrap().to_owned(), answer["deduplicated"] == true);
    let mut runs = Vec::new();
    for job in [keyed, named] {
        let first = world.request("submit", job.clone()).await;
        let second = world.request("submit", job).await;
        assert_eq!((published(&first), published(&second)), (("scheduled".into(), false), ("scheduled".into(), true)));
        assert_eq!(first["run_id"], second["run_id"]);
        runs.push(first["run_id"].as_str().unwrap().to_owned());
    }
    for run in &runs {
        assert_eq!(world.wait(run).await.state, "completed");
    }
    node.stop().await;
    assert_eq!(world.event_log("*").await.len(), 8);
    world.history(&[], Vec::new()).await.assert_sound();
}
