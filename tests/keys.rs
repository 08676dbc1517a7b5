//! A key is one run for as long as its scope says: until the window is over, until the job starts, until its run has
//! ended; and whatever dies meanwhile, it is never two and never none.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::join_all;
use longshore_harness::{Handler, Node, NodeBuilder, Reply, World};
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::{served_by, times, without_node, workers, world};

const SOON: Duration = Duration::from_secs(30);

/// A handler of `work` that answers with its payload, once it may.
async fn gated(world: &World) -> (Handler, watch::Sender<bool>) {
    let (open, gate) = watch::channel(false);
    let answer = move |job: longshore_harness::Job| {
        let mut gate = gate.clone();
        async move {
            let _ = gate.wait_for(|open| *open).await;
            Reply::json(job.json())
        }
    };
    (world.handler("work").start(answer).await, open)
}

fn job(payload: u32, more: &Value) -> Value {
    let mut job = json!({"type": "work", "payload": payload, "idempotency_key": "k"});
    for (name, value) in more.as_object().unwrap() {
        job[name] = value.clone();
    }
    job
}

/// The error that `submit` answers.
async fn refused(world: &World, job: Value) -> (u16, String) {
    let error = world.try_request("default", "submit", job).await.unwrap_err();
    (error.code, error.error)
}

fn is_new(answer: &Value) -> bool {
    answer["deduplicated"] == false
}

fn run_of(answer: &Value) -> &str {
    answer["run_id"].as_str().unwrap()
}

/// Given a key that is free again once its job starts or once its run has ended, when it is submitted before and after,
/// then before it is the same run, and after it another one.
#[tokio::test]
async fn a_key_is_free_again_once_its_scope_says() {
    let world = world().await;
    let (handler, open) = gated(&world).await;
    let node = world.node().with("types.work", "slots = 8").start().await;
    for (unique, free_once) in [("queued", "running"), ("active", "completed")] {
        let scope = json!({"unique": unique, "idempotency_key": unique, "delay_ms": 700});
        let first = world.request("submit", job(1, &scope)).await;
        let same = world.request("submit", job(1, &scope)).await;
        assert!(is_new(&first) && !is_new(&same), "{unique}: {first} {same}");
        assert_eq!((run_of(&same), same["state"].as_str()), (run_of(&first), Some("scheduled")));
        world.eventually_is(run_of(&first), "running", SOON).await;
        let now = json!({"unique": unique, "idempotency_key": unique});
        if free_once == "completed" {
            let held = world.request("submit", job(1, &now)).await;
            assert_eq!((run_of(&held), is_new(&held), &held["state"]), (run_of(&first), false, &json!("running")));
            open.send_replace(true);
            world.wait(run_of(&first)).await;
        }
        let second = world.request("submit", job(1, &now)).await;
        assert!(is_new(&second) && run_of(&second) != run_of(&first), "{unique}: {second}");
        open.send_replace(true);
        for run in [&first, &second] {
            assert_eq!(world.wait(run_of(run)).await.state, "completed");
        }
        open.send_replace(false);
    }
    open.send_replace(true);
    node.stop().await;
    assert_eq!(handler.calls().len(), 4);
    world.history(&[], Vec::new()).await.assert_sound();
}

/// Given bare publishes of a key that is free once its run has ended, when another comes while the first runs, then
/// that one ends as its duplicate and `runs.get` shows it; when another comes after it, then it runs.
#[tokio::test]
async fn a_bare_publish_of_a_key_in_use_is_a_duplicate() {
    let world = world().await;
    let (handler, open) = gated(&world).await;
    let node = world.node().with("types.work", "slots = 8").start().await;
    let publish = world.publish("work").header("Longshore-Idempotency-Key", "k").header("Longshore-Unique", "active");
    let first = publish.json(json!(1)).await;
    world.eventually_is(&first, "running", SOON).await;
    let second = publish.json(json!(2)).await;
    assert_eq!(world.wait(&second).await.duplicate_of.as_deref(), Some(first.as_str()));
    let got = world.request("runs.get", json!({"run_id": second})).await;
    assert_eq!((&got["state"], &got["duplicate_of"]), (&json!("duplicate"), &json!(first)));
    open.send_replace(true);
    assert_eq!(world.wait(&first).await.state, "completed");
    let third = publish.json(json!(3)).await;
    assert_eq!(world.wait(&third).await.result, Some(json!(3)));
    world.eventually_reads(&first, "enqueued\nstarted 1\ncompleted 1").await;
    node.stop().await;
    assert_eq!(handler.calls().len(), 2);
    world.history(&[], Vec::new()).await.assert_sound();
}

/// Given nodes on which a dead run frees its key, when its key is submitted again, then it is another run; and the dead
/// one cannot be replayed before that has ended.
#[tokio::test]
async fn a_dead_run_frees_its_key_and_is_replayed_only_when_it_is_free() {
    let world = world().await;
    let (_handler, open) = gated(&world).await;
    let fails = served_by("fail", "max_attempts = 1");
    let node = world.node().with("idempotency", "release_on = ['dead']").with("types.fails", &fails).start().await;
    let dead = json!({"type": "fails", "payload": {"times": 1}, "idempotency_key": "k"});
    let dead = world.submit(dead).await;
    assert_eq!(world.wait(&dead).await.state, "dead");
    world.eventually_dead_letters(1).await;
    let second = world.request("submit", job(2, &json!({}))).await;
    assert!(is_new(&second), "{second}");

    let replay = json!({"run_id": dead});
    let answer = world.request("dlq.replay", replay.clone()).await;
    assert_eq!(answer["replayed"], 0, "{answer}");
    let why = answer["failed"][0]["error"].as_str().unwrap();
    assert!(why.contains(run_of(&second)), "{why}");
    open.send_replace(true);
    assert_eq!(world.wait(run_of(&second)).await.state, "completed");
    // It has completed, which frees no key: the dead letter stays.
    let answer = world.request("dlq.replay", replay).await;
    assert_eq!((&answer["replayed"], world.dead_letters("default").await.len()), (&json!(0), 1), "{answer}");
    node.stop().await;
    world.history(&[], Vec::new()).await.assert_sound();
}

/// Given a key that frees itself when its run has ended, when a dead run of it is replayed, then it has the key again.
#[tokio::test]
async fn a_replayed_run_has_its_key_again() {
    let world = world().await;
    let (handler, open) = gated(&world).await;
    let node = world.node().with("types.work", "max_attempts = 1\nslots = 8\ntimeout = '1s'").start().await;
    let active = json!({"unique": "active"});
    let dead = world.submit(job(1, &active)).await;
    assert_eq!(world.wait(&dead).await.state, "dead");
    world.eventually_dead_letters(1).await;
    let set = json!({"run_id": dead, "set": {"headers": {"Longshore-Timeout": "60s"}}});
    assert_eq!(world.request("dlq.replay", set).await["replayed"], 1);
    world.eventually_is(&dead, "running", SOON).await;
    let again = world.request("submit", job(1, &active)).await;
    assert_eq!((run_of(&again), is_new(&again)), (dead.as_str(), false));
    open.send_replace(true);
    assert_eq!(world.wait(&dead).await.state, "completed");
    assert!(is_new(&world.request("submit", job(1, &active)).await));
    handler.called(3).await;
    node.stop().await;
}

/// Given a key, when it is submitted with another payload, then that is refused; so is any job, if its client asks for
/// that.
#[tokio::test]
async fn another_job_under_a_key_is_refused() {
    let world = world().await;
    let (_handler, _open) = gated(&world).await;
    let _node = world.node().start().await;
    let first = world.submit(job(1, &json!({}))).await;
    assert_eq!(refused(&world, job(2, &json!({}))).await, (409, "idempotency_mismatch".to_owned()));
    let other_type = json!({"type": "echo", "payload": 1, "idempotency_key": "k"});
    assert_eq!(refused(&world, other_type).await, (409, "idempotency_mismatch".to_owned()));
    let reject = json!({"on_conflict": "reject"});
    assert_eq!(refused(&world, job(1, &reject)).await, (409, "key_taken".to_owned()));
    // The very run that the client names is no conflict.
    let named = json!({"on_conflict": "reject", "run_id": "mine", "idempotency_key": "other"});
    assert!(is_new(&world.request("submit", job(1, &named)).await));
    let again = world.request("submit", job(1, &named)).await;
    assert_eq!((run_of(&again), is_new(&again)), ("mine", false));
    let same = world.request("submit", job(1, &json!({}))).await;
    assert_eq!(run_of(&same), first);
    for wrong in [json!({"on_conflict": "maybe"}), json!({"unique": "once"})] {
        assert_eq!(refused(&world, job(1, &wrong)).await, (400, "malformed".to_owned()));
    }
    let alone = json!({"type": "work", "on_conflict": "replace"});
    assert_eq!(refused(&world, alone).await, (400, "malformed".to_owned()));
}

/// Given keys under which several different jobs are submitted at once, each to start after a delay, when some are
/// refused, then one job of each key runs, although it gives its key back as it starts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_different_jobs_submitted_at_once_under_a_key_one_runs() {
    let world = world().await;
    let called: Arc<Mutex<Vec<Value>>> = Arc::default();
    let calls = Arc::clone(&called);
    let answer = move |job: longshore_harness::Job| {
        calls.lock().unwrap().push(job.json());
        async move { Reply::json(job.json()) }
    };
    let _handler = world.handler("work").start(answer).await;
    let _node = world.node().with("types.work", "slots = 8").start().await;
    for (at_once, more) in [
        (3, json!({"unique": "queued", "delay_ms": 500})),
        (5, json!({"unique": "active", "delay_ms": 500})),
        (4, json!({"unique": "queued", "on_conflict": "replace", "delay_ms": 500})),
        (6, json!({"debounce": {"wait_ms": 500}})),
    ] {
        for key in (0..15).map(|number| format!("{number} {more}")) {
            let submitted = (0..at_once).map(|number| {
                let mut job = json!({"type": "work"});
                job.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
                job["payload"] = json!([key, number]);
                match job.get_mut("debounce") {
                    Some(debounce) => debounce["key"] = json!(key),
                    None => job["idempotency_key"] = json!(key),
                }
                world.try_request("default", "submit", job)
            });
            let answers = join_all(submitted).await;
            assert!(answers.iter().any(Result::is_ok), "{answers:?}");
        }
        world.no_job_is_left(SOON).await;
        let calls = std::mem::take(&mut *called.lock().unwrap());
        let keys: BTreeSet<&str> = calls.iter().map(|payload| payload[0].as_str().unwrap()).collect();
        assert_eq!((keys.len(), calls.len()), (15, 15), "{calls:?}");
    }
}

/// Given jobs that wait, for a time and in a lane, when others replace them, then only the last of each runs, and the
/// others end as duplicates; a job that has started is not replaced.
#[tokio::test]
async fn a_job_that_has_not_started_can_be_replaced() {
    let world = world().await;
    let (handler, open) = gated(&world).await;
    let node = workers(world.node(), 1).start().await;
    let busy = world.publish("work").json(json!("busy")).await;
    world.eventually_is(&busy, "running", SOON).await;
    let mut lasts = Vec::new();
    for (key, delay_ms) in [("delayed", 4_000), ("waiting", 0)] {
        let replace = json!({"idempotency_key": key, "delay_ms": delay_ms, "on_conflict": "replace"});
        let mut runs = Vec::new();
        for payload in 1..=3 {
            let answer = world.request("submit", job(payload, &replace)).await;
            assert!(is_new(&answer), "{key} {payload}: {answer}");
            runs.push(run_of(&answer).to_owned());
        }
        for (run, next) in runs.iter().zip(&runs[1..]) {
            let got = world.request("runs.get", json!({"run_id": run})).await;
            assert_eq!((&got["state"], &got["duplicate_of"]), (&json!("duplicate"), &json!(next)), "{key}");
        }
        if delay_ms > 0 {
            for run in &runs[..2] {
                world.eventually_reads(run, "scheduled\nduplicate").await;
            }
            assert_eq!(world.stored("LONGSHORE_SCHEDULES").await, 1, "only the last one waits for its time");
        }
        lasts.push((key, runs));
    }

    open.send_replace(true);

    // Many at once, at three nodes: none of them ends as the duplicate of one that made way for it, and one of each key
    // stays.
    let _others = (workers(world.node(), 1).start().await, workers(world.node(), 1).start().await);
    let submitted = (0..48).map(|number| {
        let crowd =
            json!({"idempotency_key": format!("crowd-{}", number % 3), "delay_ms": 3_000, "on_conflict": "replace"});
        world.try_request("default", "submit", job(number, &crowd))
    });
    let answers = join_all(submitted).await;
    let asked_to_repeat = answers.iter().filter_map(|answer| answer.as_ref().err()).all(|error| error.code == 503);
    assert!(asked_to_repeat, "{answers:?}");
    let crowds: Vec<BTreeSet<&str>> =
        (0..3).map(|key| answers.iter().skip(key).step_by(3).flatten().map(run_of).collect()).collect();

    for (key, runs) in lasts {
        assert_eq!(world.wait(&runs[2]).await.result, Some(json!(3)), "{key}");
        for run in &runs[..2] {
            world.eventually_ends(run).await;
        }
        let late = json!({"idempotency_key": key, "on_conflict": "replace"});
        let late = world.request("submit", job(4, &late)).await;
        assert_eq!((run_of(&late), is_new(&late), &late["state"]), (runs[2].as_str(), false, &json!("completed")));
    }
    for crowd in &crowds {
        let mut ended = BTreeMap::new();
        for run in crowd {
            *ended.entry(world.wait(run).await.state).or_insert(0) += 1;
        }
        let duplicates = crowd.len() - 1;
        assert_eq!((ended.get("completed"), ended.get("duplicate").copied().unwrap_or(0)), (Some(&1), duplicates));
    }
    crate::is_emptied(&world).await;
    node.stop().await;
    assert_eq!(handler.calls().len(), 6, "the busy one, and one of each key");
    world.history(&[], Vec::new()).await.assert_sound();
}

/// A node whose jobs are delivered again soon after its death.
fn quick(world: &World) -> NodeBuilder<'_> {
    workers(world.node().name("node"), 1).with("node", "lease = '2s'")
}

/// A node that dies at this point.
async fn doomed(world: &World, point: &str) -> Node {
    quick(world).env("LONGSHORE_FAIL_POINTS", &format!("{point}=kill")).start().await
}

/// Submits to a node that dies over it.
async fn cut_off(world: &World, node: Node, job: &Value) {
    let unanswered = world.ask("default", "submit", job.to_string(), Duration::from_secs(1)).await;
    assert!(unanswered.is_err(), "{unanswered:?}");
    node.wait_exit(SOON).await;
}

/// The run that did the work of a job: the job's own, or the one whose duplicate it is.
async fn end_of(world: &World, run: &str) -> longshore_harness::Record {
    let mut end = world.wait(run).await;
    while let Some(other) = end.duplicate_of.take() {
        end = world.wait(&other).await;
    }
    end
}

/// Given a key that is free once its run has ended, when the node dies at any point of the way of the claim, then there
/// is one run for each time the key was free, whatever is asked again.
#[tokio::test]
async fn a_death_at_any_point_of_a_keys_way_is_one_run() {
    let world = world().await;
    let (handler, open) = gated(&world).await;
    open.send_replace(true);
    without_node(quick(&world)).await;
    let mut calls = 0;
    for round in 0..times("LONGSHORE_TEST_KILLS", 1) {
        for point in ["before-note", "after-note", "after-publish", "after-key-mark", "after-mark"] {
            let key = json!({"idempotency_key": format!("{point}-{round}"), "unique": "active"});
            let node = doomed(&world, point).await;
            cut_off(&world, node, &job(1, &key)).await;
            let node = quick(&world).start().await;
            let first = world.request("submit", job(1, &key)).await;
            let end = end_of(&world, run_of(&first)).await;
            assert_eq!(end.state, "completed", "{point}: {first}");
            crate::is_emptied(&world).await;
            // Its `submit` may have been answered by a run that had ended by then, and so was another one.
            calls = one_more(&handler, calls, point, 1..=2);
            let second = world.request("submit", job(1, &key)).await;
            assert!(is_new(&second), "{point}: {second}");
            assert_eq!(world.wait(run_of(&second)).await.state, "completed");
            calls = one_more(&handler, calls, point, 1..=1);
            node.stop().await;
        }
        for point in ["before-key", "before-claim", "before-release", "after-release"] {
            let key = format!("{point}-{round}");
            let publish = world.publish("work").header("Longshore-Idempotency-Key", &key);
            let publish = publish.header("Longshore-Unique", "active");
            let node = doomed(&world, point).await;
            let first = publish.json(json!(1)).await;
            node.wait_exit(SOON).await;
            let node = quick(&world).start().await;
            assert_eq!(world.wait(&first).await.state, "completed", "{point}");
            world.eventually_reads(&first, "enqueued\nstarted 1\ncompleted 1").await;
            crate::is_emptied(&world).await;
            calls = one_more(&handler, calls, point, 1..=1);
            let second = world.request("submit", job(1, &json!({"idempotency_key": key}))).await;
            assert!(is_new(&second), "{point}: {second}");
            assert_eq!(world.wait(run_of(&second)).await.state, "completed");
            calls = one_more(&handler, calls, point, 1..=1);
            node.stop().await;
        }
    }
    world.history(&[], Vec::new()).await.assert_sound();
}

/// Checks how many runs the handler was called for since there were `before`; returns how many there are now. An
/// attempt is called once; a run has another one if its node died after the call.
fn one_more(handler: &Handler, before: usize, what: &str, allowed: std::ops::RangeInclusive<usize>) -> usize {
    let calls = handler.calls();
    let attempts: BTreeSet<_> = calls.iter().map(|call| (&call.run_id, call.round, call.attempt)).collect();
    assert_eq!(attempts.len(), calls.len(), "{what}: an attempt is called twice: {calls:?}");
    let now = calls.iter().map(|call| &call.run_id).collect::<BTreeSet<_>>().len();
    assert!(allowed.contains(&(now - before)), "{what}: {} runs more", now - before);
    now
}

/// Given a job that replaces another, when the node dies at any point of that, and the client asks again or not, then
/// exactly one of them runs.
#[tokio::test]
async fn a_death_while_a_job_is_replaced_leaves_exactly_one() {
    let world = world().await;
    let (handler, open) = gated(&world).await;
    open.send_replace(true);
    without_node(quick(&world)).await;
    let mut calls = 0;
    for point in ["before-note", "after-note", "after-publish", "before-make-way", "after-make-way", "after-mark"] {
        for asks_again in [false, true] {
            let key = format!("{point}-{asks_again}");
            let node = quick(&world).start().await;
            let later = json!({"idempotency_key": key, "delay_ms": 6_000});
            let first = world.submit(job(1, &later)).await;
            node.stop().await;
            let node = doomed(&world, point).await;
            let replace = job(2, &json!({"idempotency_key": key, "on_conflict": "replace"}));
            cut_off(&world, node, &replace).await;
            let node = quick(&world).start().await;
            if asks_again {
                let second = world.request("submit", replace).await;
                assert_eq!(end_of(&world, run_of(&second)).await.state, "completed", "{key}: {second}");
            }
            let end = end_of(&world, &first).await;
            assert_eq!(end.state, "completed", "{key}");
            let payload = end.result.unwrap();
            assert!(!asks_again || payload == json!(2), "{key}: {payload}");
            crate::is_emptied(&world).await;
            longshore_harness::eventually("no schedule", SOON, async || {
                match world.stored("LONGSHORE_SCHEDULES").await {
                    0 => Ok(()),
                    some => Err(some.to_string()),
                }
            })
            .await;
            calls = one_more(&handler, calls, &key, 1..=1);
            node.stop().await;
        }
    }
    world.history(&[], Vec::new()).await.assert_sound();
}

/// Given three nodes that are killed again and again, when many clients submit the same keys many times at once, then
/// there is one run for each key, and every answer names it. `LONGSHORE_TEST_KEYS=5000` for more keys, 20 times each by
/// 64 clients.
#[tokio::test]
async fn keys_submitted_by_many_clients_to_nodes_that_die_are_one_run_each() {
    let world = Arc::new(world().await);
    let (handler, open) = gated(&world).await;
    open.send_replace(true);
    let node =
        |name: &str| world.node().name(name).with("node", "lease = '2s'").with("types.work", "slots = 64").start();
    let nodes = [node("first").await, node("second").await, node("third").await];
    let keys = times("LONGSHORE_TEST_KEYS", 60);
    let (clients, each) = if keys > 60 { (64, 20) } else { (16, 8) };
    let (done, mut all_done) = watch::channel(0);
    let client = |number: usize| {
        let (world, done) = (Arc::clone(&world), done.clone());
        tokio::spawn(async move {
            let mut answers = Vec::new();
            // Each submission of a key is by another client, at about the same time.
            for turn in (0..keys * each).filter(|turn| turn % clients == number) {
                let key = turn / each;
                let body = job(u32::try_from(key).unwrap(), &json!({"idempotency_key": format!("k{key}")})).to_string();
                let answer = loop {
                    let asked = world.ask("default", "submit", body.clone(), Duration::from_secs(2)).await;
                    match asked {
                        Ok(answer) => break answer,
                        Err(error) => assert!(error.code == 503 || error.code == 0, "{error:?}"),
                    }
                };
                answers.push((key, run_of(&answer).to_owned(), is_new(&answer)));
            }
            done.send_modify(|done| *done += 1);
            answers
        })
    };
    let asking: Vec<_> = (0..clients).map(client).collect();
    let mut kills = 0;
    while *all_done.borrow_and_update() < clients {
        let node = &nodes[kills % nodes.len()];
        node.kill9().await;
        node.restart().await;
        kills += 1;
    }
    let answers: Vec<_> = join_all(asking).await.into_iter().flat_map(Result::unwrap).collect();

    let mut runs: BTreeMap<usize, BTreeSet<&str>> = BTreeMap::new();
    for (key, run, _) in &answers {
        runs.entry(*key).or_default().insert(run);
    }
    assert_eq!((answers.len(), runs.len()), (keys * each, keys));
    let of_two: Vec<_> = runs.iter().filter(|(_, runs)| runs.len() > 1).collect();
    assert!(of_two.is_empty(), "two runs of one key: {of_two:?}");
    for (key, run) in runs.iter().map(|(key, runs)| (key, runs.first().unwrap())) {
        let end = world.wait(run).await;
        assert_eq!((end.state.as_str(), end.result), ("completed", Some(json!(key))), "{run}");
    }
    world.no_job_is_left(Duration::from_secs(60)).await;
    for node in nodes {
        assert!(node.stop().await.success());
    }
    let called: BTreeSet<String> = handler.calls().into_iter().map(|call| call.run_id).collect();
    let named: BTreeSet<String> = answers.into_iter().map(|(_, run, _)| run).collect();
    assert_eq!(called, named, "no other run did any work");
    println!("{keys} keys, {each} times each by {clients} clients, {kills} kills: {} runs", called.len());
}

/// Given a node, when many jobs are submitted with a key each, then every one is a run of its own. A key costs its
/// claim, a record, and the marks on both; what that is in time is printed, and measured with
/// `LONGSHORE_TEST_KEY_PAIRS=5 LONGSHORE_TEST_KEY_SUBMITS=5000` and a release build.
#[tokio::test]
async fn a_key_costs_a_few_writes() {
    let (pairs, jobs) = (times("LONGSHORE_TEST_KEY_PAIRS", 1), times("LONGSHORE_TEST_KEY_SUBMITS", 300));
    let world = world().await;
    let _node = without_work(world.node()).start().await;
    let mut ratios = Vec::new();
    for pair in 0..pairs {
        let with =
            submitted(&world, jobs, |number| json!({"type": "work", "idempotency_key": format!("{pair}/{number}")}));
        let with = with.await;
        let without = submitted(&world, jobs, |_| json!({"type": "work"})).await;
        ratios.push(without.as_secs_f64() / with.as_secs_f64());
    }
    ratios.sort_by(f64::total_cmp);
    println!("submits with a key in a time, against those without: {ratios:.3?}");
}

/// Nothing that is submitted is worked on: nobody serves the queue.
fn without_work(node: NodeBuilder<'_>) -> NodeBuilder<'_> {
    node.with("queues.main", "concurrency = 1").with("types.work", &served_by("remote", "no_handler_grace = '1h'"))
}

/// How long so many submissions take, 64 at once.
async fn submitted(world: &World, jobs: usize, job: impl Fn(usize) -> Value) -> Duration {
    let begun = tokio::time::Instant::now();
    let asked = futures_util::stream::iter(0..jobs).map(|number| world.try_request("default", "submit", job(number)));
    let answers: Vec<_> = asked.buffer_unordered(64).collect().await;
    assert!(answers.iter().all(|answer| answer.as_ref().is_ok_and(is_new)));
    begun.elapsed()
}
