//! Batches: jobs that belong together, and one that runs once all of them have ended, whatever dies.

use std::collections::BTreeSet;
use std::time::Duration;

use longshore_harness::{Handler, Job, Reply, World, eventually};
use serde_json::{Value, json};

use crate::{quick, times, without_node, world};

const WITHIN: Duration = Duration::from_secs(120);

async fn create(world: &World, id: &str, more: Value) -> Value {
    let mut batch = json!({"id": id, "on_complete": {"type": "all.done"}});
    batch.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    world.request("batches.create", batch).await
}

async fn get(world: &World, id: &str) -> Value {
    world.request("batches.get", json!({"id": id})).await
}

/// Asks until a node answers.
async fn ask(world: &World, endpoint: &str, body: Value) -> Value {
    eventually(endpoint, WITHIN, async || {
        world.try_request("default", endpoint, body.clone()).await.map_err(|error| error.to_string())
    })
    .await
}

async fn is_in(world: &World, id: &str, state: &str) -> Value {
    eventually(&format!("batch {id} {state}"), WITHIN, async || {
        match world.try_request("default", "batches.get", json!({"id": id})).await {
            Ok(batch) if batch["state"] == state => Ok(batch),
            other => Err(format!("{other:?}")),
        }
    })
    .await
}

/// A handler of the jobs that complete batches: it answers with the payload.
async fn done(world: &World) -> Handler {
    world.handler("all.done").start(|job| async move { Reply::json(job.json()) }).await
}

/// A handler that does as the payload says.
async fn work(world: &World) -> Handler {
    let does = async |job: Job| match job.json().as_str() {
        Some("fails") => Reply::error(422, "no"),
        _ => Reply::json(json!(null)),
    };
    world.handler("work").start(does).await
}

/// Given a batch whose members are submitted and published bare, when nodes are killed and the server is restarted
/// meanwhile, then its job runs once, after all of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_job_of_a_batch_runs_once_after_all_members_whatever_dies() {
    let world = world().await;
    let (done, work) = (done(&world).await, work(&world).await);
    let (one, other) = (quick(&world, "one").start().await, quick(&world, "other").start().await);
    create(&world, "import", json!({})).await;
    let (each, mut members) = (times("LONGSHORE_TEST_MEMBERS", 300) / 6, BTreeSet::new());
    for round in 0..6 {
        for number in 0..each {
            let name = format!("m-{round}-{number}");
            if number % 2 == 0 {
                let job = json!({"type": "work", "run_id": name, "batch_id": "import", "payload": number});
                ask(&world, "submit", job).await;
                members.insert(name);
            } else {
                let job = world.publish("work").header("Longshore-Batch-Id", "import");
                members.insert(job.json(json!(number)).await);
            }
        }
        match round {
            1 => {
                one.kill9().await;
                one.restart().await;
            }
            3 => {
                world.server().kill9().await;
                world.server().restart().await.unwrap();
            }
            _ => {}
        }
    }
    ask(&world, "batches.seal", json!({"id": "import"})).await;
    other.kill9().await;
    other.restart().await;

    let batch = is_in(&world, "import", "completed").await;

    assert_eq!(batch["run_id"], "import-done");
    let record = world.wait("import-done").await;
    assert_eq!(record.state, "completed");
    let calls = done.calls();
    assert_eq!(calls.len(), 1, "{calls:?}");
    let worked: BTreeSet<String> = work.calls().into_iter().map(|call| call.run_id).collect();
    assert!(members.is_subset(&worked), "{:?}", members.difference(&worked));
    let late = work.calls().into_iter().filter(|call| call.end.is_none_or(|end| end > calls[0].start)).count();
    assert_eq!(late, 0, "the job began before {late} calls of members had ended");
    let payload = &world.request("runs.get", json!({"run_id": "import-done"})).await["result"];
    assert_eq!((&payload["batch"], &payload["completed"]), (&json!("import"), &json!(members.len())), "{payload}");
}

/// Given members that end as dead letters, when they are discarded, replayed, ignored, or count as failures, then the
/// batch goes on as `on_failure` says.
#[tokio::test]
async fn what_a_dead_letter_means_is_what_the_batch_says() {
    let world = world().await;
    let (done, work) = (done(&world).await, work(&world).await);
    let _node = quick(&world, "node").start().await;
    for (id, on_failure) in [("waits", "wait"), ("fails", "fail"), ("ignores", "ignore")] {
        create(&world, id, json!({"on_failure": on_failure})).await;
        for (name, payload) in [("good", "works"), ("bad", "fails"), ("worse", "fails")] {
            let run = format!("{id}-{name}");
            world.submit(json!({"type": "work", "run_id": run, "batch_id": id, "payload": payload})).await;
        }
        world.request("batches.seal", json!({"id": id})).await;
    }
    let ignored = is_in(&world, "ignores", "completed").await;
    assert_eq!(ignored["members"], json!({"all": 3, "completed": 1, "failed": 2}), "{ignored}");
    let failed = is_in(&world, "fails", "failed").await;
    assert!(failed["because"].as_str().unwrap().contains("is a dead letter"), "{failed}");
    eventually("the members that are awaited", WITHIN, async || {
        let batch = get(&world, "waits").await;
        if batch["awaits"] == json!(["waits-bad", "waits-worse"]) { Ok(()) } else { Err(batch.to_string()) }
    })
    .await;
    assert_eq!(done.calls().len(), 1);

    // One is discarded, the others are replayed with a payload that works.
    for run in ["waits-bad", "waits-worse", "fails-bad", "fails-worse"] {
        match run {
            "waits-bad" => world.request("dlq.discard", json!({"run_id": run})).await,
            _ => world.request("dlq.replay", json!({"run_id": run, "set": {"payload": "works"}})).await,
        };
    }
    let waited = is_in(&world, "waits", "completed").await;
    assert_eq!(waited["failed"], json!([{"run_id": "waits-bad", "state": "discarded"}]));
    let reopened = is_in(&world, "fails", "completed").await;
    assert_eq!(reopened["members"], json!({"all": 3, "completed": 3, "failed": 0}), "{reopened}");
    world.wait("waits-done").await;
    world.wait("fails-done").await;
    let names: Vec<String> = done.calls().into_iter().map(|call| call.run_id).collect();
    assert_eq!(
        BTreeSet::from_iter(names.iter().map(String::as_str)),
        ["fails-done", "ignores-done", "waits-done"].into()
    );
    assert_eq!(names.len(), 3, "{names:?}");
    assert_eq!(work.calls().len(), 12);
}

/// Given batches that fail for dead letters, when one of these is discarded and another is replayed and completes, then
/// the batch stays failed, for the former; one whose dead letters all complete names each in turn, and completes.
#[tokio::test]
async fn only_replays_that_complete_open_a_failed_batch_again() {
    let world = world().await;
    let (done, _work) = (done(&world).await, work(&world).await);
    let _node = quick(&world, "node").start().await;
    for id in ["discards", "replays"] {
        create(&world, id, json!({"on_failure": "fail"})).await;
        for name in ["a", "b"] {
            let run = format!("{id}-{name}");
            world.submit(json!({"type": "work", "run_id": run, "batch_id": id, "payload": "fails"})).await;
            world.wait(&run).await;
        }
        world.request("batches.seal", json!({"id": id})).await;
        fails_for(&world, id, &format!("run {id}-a is a dead letter")).await;
    }
    let replay = async |run: &str| ask(&world, "dlq.replay", json!({"run_id": run, "set": {"payload": "works"}})).await;

    ask(&world, "dlq.discard", json!({"run_id": "discards-a"})).await;
    fails_for(&world, "discards", "run discards-a was a dead letter, and is discarded").await;
    replay("discards-b").await;
    world.wait("discards-b").await;

    replay("replays-a").await;
    fails_for(&world, "replays", "run replays-b is a dead letter").await;
    replay("replays-b").await;
    is_in(&world, "replays", "completed").await;
    world.wait("replays-done").await;
    let names: Vec<String> = done.calls().into_iter().map(|call| call.run_id).collect();
    assert_eq!(
        (names, get(&world, "discards").await["state"].clone()),
        (vec!["replays-done".to_owned()], json!("failed"))
    );
}

/// Waits until a batch has failed for this reason.
async fn fails_for(world: &World, id: &str, because: &str) {
    eventually(&format!("batch {id}: {because}"), WITHIN, async || {
        let batch = get(world, id).await;
        if batch["state"] == "failed" && batch["because"] == because { Ok(()) } else { Err(batch.to_string()) }
    })
    .await;
}

/// Given a batch whose job's run id belongs to another run, when its members have ended, then it fails and says so.
#[tokio::test]
async fn a_batch_takes_no_other_run_for_that_of_its_job() {
    let world = world().await;
    let (done, work) = (done(&world).await, work(&world).await);
    let _node = quick(&world, "node").start().await;
    create(&world, "b", json!({})).await;
    world.submit(json!({"type": "work", "run_id": "b-done", "payload": 1})).await;
    world.wait("b-done").await;
    world.request("batches.seal", json!({"id": "b"})).await;
    fails_for(&world, "b", "on_complete is refused: run b-done is another's").await;
    assert_eq!((done.calls().len(), work.calls().len()), (0, 1));
}

/// Given a member that is a dead letter, when that is erased, then the member has ended and is named `gone`.
#[tokio::test]
async fn a_member_that_is_erased_has_ended_and_is_gone() {
    let world = world().await;
    let (done, _work) = (done(&world).await, work(&world).await);
    let _node = quick(&world, "node").start().await;
    create(&world, "b", json!({})).await;
    world.submit(json!({"type": "work", "run_id": "bad", "batch_id": "b", "payload": "fails"})).await;
    world.request("batches.seal", json!({"id": "b"})).await;
    ask(&world, "dlq.get", json!({"run_id": "bad"})).await;
    assert_eq!(get(&world, "b").await["awaits"], json!(["bad"]));
    world.request("runs.erase", json!({"run_id": "bad"})).await;
    let batch = is_in(&world, "b", "completed").await;
    assert_eq!(batch["members"], json!({"all": 1, "completed": 0, "failed": 1}), "{batch}");
    assert_eq!(batch["failed"], json!([{"run_id": "bad", "state": "gone"}]));
    assert_eq!(world.wait("b-done").await.state, "completed");
    assert_eq!(done.calls().len(), 1);
}

/// Given a batch that failed before it was sealed, when it is sealed and what it failed for is replayed, then it
/// completes.
#[tokio::test]
async fn a_batch_that_failed_while_open_is_sealed_and_completes_after_a_replay() {
    let world = world().await;
    let (done, _work) = (done(&world).await, work(&world).await);
    let _node = quick(&world, "node").start().await;
    create(&world, "b", json!({"on_failure": "fail"})).await;
    world.submit(json!({"type": "work", "run_id": "bad", "batch_id": "b", "payload": "fails"})).await;
    assert_eq!(is_in(&world, "b", "failed").await["sealed_at"], json!(null));
    let sealed = world.request("batches.seal", json!({"id": "b"})).await;
    assert!(sealed["state"] == "failed" && sealed["sealed_at"].is_string(), "{sealed}");
    assert_eq!(world.request("batches.seal", json!({"id": "b"})).await["sealed_at"], sealed["sealed_at"]);
    ask(&world, "dlq.replay", json!({"run_id": "bad", "set": {"payload": "works"}})).await;
    let batch = is_in(&world, "b", "completed").await;
    assert_eq!(batch["members"], json!({"all": 1, "completed": 1, "failed": 0}), "{batch}");
    world.wait("b-done").await;
    assert_eq!(done.calls().len(), 1);
}

/// Given members under ids and keys of their own, when they are submitted again after their batch has ended, then the
/// answers are their runs; a new job is refused.
#[tokio::test]
async fn a_repeat_is_answered_after_the_batch_has_ended() {
    let world = world().await;
    let (_done, work) = (done(&world).await, work(&world).await);
    let _node = quick(&world, "node").start().await;
    create(&world, "b", json!({})).await;
    let jobs = [
        json!({"type": "work", "batch_id": "b", "run_id": "named"}),
        json!({"type": "work", "batch_id": "b", "idempotency_key": "key"}),
        json!({"type": "work", "batch_id": "b", "run_id": "both", "idempotency_key": "other"}),
    ];
    let mut runs = Vec::new();
    for job in &jobs {
        runs.push(world.request("submit", job.clone()).await["run_id"].clone());
    }
    // While it is open, a repeat is no other member.
    assert_eq!(world.request("submit", jobs[1].clone()).await["run_id"], runs[1]);
    world.request("batches.seal", json!({"id": "b"})).await;
    assert_eq!(is_in(&world, "b", "completed").await["members"], json!({"all": 3, "completed": 3, "failed": 0}));
    for (job, run) in jobs.iter().zip(&runs) {
        let again = world.request("submit", job.clone()).await;
        assert_eq!(again, json!({"deduplicated": true, "run_id": run, "state": "completed"}));
    }
    let new = world.try_request("default", "submit", json!({"type": "work", "batch_id": "b", "run_id": "new"})).await;
    assert!(new.unwrap_err().message.contains("batch b has ended"));
    assert_eq!(work.calls().len(), 3);
}

/// Given a sealed batch with members that are cancelled while they wait, or that wait in a paused queue,
/// then it completes once none is left, and not before.
#[tokio::test]
async fn a_batch_waits_for_what_no_node_has_met_and_not_for_what_is_gone() {
    let world = world().await;
    let (done, _work) = (done(&world).await, work(&world).await);
    let _node = quick(&world, "node").config("[queues.main]\n[queues.bulk]\n").start().await;
    world.try_request("_all", "queues.pause", json!({"queue": "bulk"})).await.unwrap();
    create(&world, "stuck", json!({})).await;
    let hidden = world.publish("work").queue("bulk").header("Longshore-Batch-Id", "stuck").json(json!(1)).await;
    let later = json!({"type": "work", "run_id": "later", "batch_id": "stuck", "delay_ms": 3_600_000});
    world.submit(later).await;
    world.request("batches.seal", json!({"id": "stuck"})).await;
    world.request("runs.cancel", json!({"run_id": "later"})).await;
    eventually("a member that was cancelled", WITHIN, async || {
        let batch = get(&world, "stuck").await;
        if batch["members"] == json!({"all": 1, "completed": 0, "failed": 1}) { Ok(()) } else { Err(batch.to_string()) }
    })
    .await;
    // Nor is a job submitted into a paused queue: a backup would have its batch as completed, and not the job.
    create(&world, "held", json!({"on_complete": {"type": "all.done", "queue": "bulk"}})).await;
    world.request("batches.seal", json!({"id": "held"})).await;
    // A later batch without members completes: the keeper has looked at all by then.
    for id in ["empty", "empty-too"] {
        create(&world, id, json!({})).await;
        world.request("batches.seal", json!({"id": id})).await;
        is_in(&world, id, "completed").await;
    }
    assert_eq!(get(&world, "stuck").await["state"], "sealed", "a job of it waits in a lane");
    assert_eq!(get(&world, "held").await["state"], "sealed");
    // It takes members after it was sealed, as from its own jobs.
    world.submit(json!({"type": "work", "batch_id": "stuck"})).await;
    create(&world, "open", json!({})).await;
    // As of a submission of that id that was refused, or of an earlier run whose record is gone.
    for (run, ended) in [("o", "left"), ("p", "gone")] {
        let member = json!({"run_id": run, "at": crate::in_future(Duration::ZERO), "ended": ended}).to_string();
        let subject = format!("$KV.longshore_checkpoints._batches.default.open.{run}");
        world.jetstream().publish(subject, member.into()).await.unwrap().await.unwrap();
    }
    assert_eq!(get(&world, "open").await["members"], json!({"all": 1, "completed": 0, "failed": 1}));
    for run in ["o", "p"] {
        world.submit(json!({"type": "work", "run_id": run, "batch_id": "open", "delay_ms": 3_600_000})).await;
    }
    let why = world.try_request("default", "runs.why", json!({"run_id": "open-done"})).await.unwrap_err();
    assert!(why.message.ends_with("; batch open is open; of 2 members it waits for o, p"), "{why}");

    world.try_request("_all", "queues.resume", json!({"queue": "bulk"})).await.unwrap();
    let batch = is_in(&world, "stuck", "completed").await;
    assert_eq!(batch["members"], json!({"all": 3, "completed": 2, "failed": 1}), "{batch}");
    assert_eq!(world.wait(&hidden).await.state, "completed");
    is_in(&world, "held", "completed").await;
    for run in ["stuck-done", "held-done"] {
        world.wait(run).await;
    }
    assert_eq!(done.calls().len(), 4);
}

/// Given jobs for a batch that there is not, or that has ended, then they are refused by name; a batch of another
/// request, or with a wrong job, is, too.
#[tokio::test]
async fn what_no_batch_takes_is_refused_by_name() {
    let world = world().await;
    let (_done, _work) = (done(&world).await, work(&world).await);
    let _node = quick(&world, "node").start().await;
    let refused = async |endpoint: &str, body: Value, code: u16, says: &str| {
        let error = world.try_request("default", endpoint, body.clone()).await.unwrap_err();
        assert!(error.code == code && error.to_string().contains(says), "{body}: {error}");
    };
    let job = json!({"type": "work", "run_id": "r", "batch_id": "none"});
    refused("submit", job, 400, "batch_id: tenant default has no batch none").await;
    refused("submit", json!({"type": "work", "batch_id": "a b"}), 400, "batch_id: ").await;
    refused("batches.get", json!({"id": "none"}), 404, "has no batch none").await;
    let on_complete = |job: Value| json!({"id": "b", "on_complete": job});
    refused("batches.create", json!({"id": "b"}), 400, "on_complete").await;
    refused("batches.create", on_complete(json!({"type": "x", "payload": 1})), 400, "on_complete.payload").await;
    refused("batches.create", on_complete(json!({"type": "x", "run_id": "r"})), 400, "on_complete.run_id").await;
    refused("batches.create", on_complete(json!({"type": "x", "queue": "no"})), 404, "on_complete.queue").await;
    let late = json!({"id": "b", "on_complete": {"type": "x"}, "deadline": "2999-01-01T00:00:00Z"});
    refused("batches.create", late, 400, "deadline: is more than 90d ahead").await;
    let then = |job: Value| on_complete(json!({"type": "x", "then": job}));
    refused("batches.create", then(json!({"type": "y", "queue": "no"})), 404, "on_complete.then.queue").await;
    refused("batches.create", then(json!({"type": "y", "run_id": "r"})), 400, "on_complete.then.run_id").await;
    create(&world, "b", json!({})).await;
    assert_eq!(create(&world, "b", json!({})).await["state"], "open");
    refused("batches.create", on_complete(json!({"type": "other"})), 409, "has another batch b").await;
    world.request("batches.seal", json!({"id": "b"})).await;
    is_in(&world, "b", "completed").await;
    refused("submit", json!({"type": "work", "batch_id": "b"}), 400, "batch b has ended").await;
    refused("batches.cancel", json!({"id": "b"}), 409, "has ended").await;
    let late = world.publish("work").header("Longshore-Batch-Id", "b").json(json!(1)).await;
    let record = world.wait(&late).await;
    assert_eq!((record.state.as_str(), record.error.unwrap().kind.as_str()), ("dead", "invalid"));
    // Nor does a batch that is created later have such a job.
    let early = world.publish("work").header("Longshore-Batch-Id", "soon").json(json!(1)).await;
    assert_eq!(world.wait(&early).await.state, "dead");
    crate::is_emptied(&world).await;
    create(&world, "soon", json!({})).await;
    assert_eq!(get(&world, "soon").await["members"], json!({"all": 0, "completed": 0, "failed": 0}));
}

/// Given a full lane, when a job of a batch is submitted into it without key or id, then nothing of it stays, and the
/// batch does not wait for it.
#[tokio::test]
async fn a_batch_does_not_wait_for_a_job_that_a_full_lane_refused() {
    let world = world().await;
    let done = done(&world).await;
    let node = quick(&world, "node").with("storage", "jobs_max_messages = 3").config("[queues.main]\n[queues.bulk]\n");
    let _node = node.start().await;
    world.request_as("_all", "queues.pause", json!({"queue": "bulk"})).await;
    world.publish("work").queue("bulk").many((0..3).map(|number| json!(number))).await;
    create(&world, "b", json!({})).await;
    let job = json!({"type": "work", "queue": "bulk", "batch_id": "b", "tags": ["refused"]});
    let refused = world.try_request("default", "submit", job).await.unwrap_err();
    assert!(refused.code == 503 && refused.message.contains("queue bulk is full"), "{refused}");
    assert_eq!(get(&world, "b").await["members"], json!({"all": 0, "completed": 0, "failed": 0}));
    eventually("no run of it", WITHIN, async || {
        let listed = world.request("runs.list", json!({"tag": "refused"})).await;
        if listed["runs"] == json!([]) { Ok(()) } else { Err(listed.to_string()) }
    })
    .await;
    world.request("batches.seal", json!({"id": "b"})).await;
    is_in(&world, "b", "completed").await;
    world.wait("b-done").await;
    assert_eq!(done.calls().len(), 1);
}

/// Given a sealed batch whose last job in a lane is gone, when more later jobs of its tenant wait there than one page
/// holds, then it completes.
#[tokio::test]
async fn a_batch_does_not_wait_for_what_was_published_after_it_was_sealed() {
    let world = world().await;
    let _done = done(&world).await;
    let _node = quick(&world, "node").config("[queues.main]\n[queues.bulk]\n").start().await;
    world.request_as("_all", "queues.pause", json!({"queue": "bulk"})).await;
    create(&world, "b", json!({})).await;
    let member = world.publish("work").queue("bulk").header("Longshore-Batch-Id", "b").json(json!(1)).await;
    // The last sequence then is no job of the tenant.
    world.publish("work").queue("bulk").tenant("acme").json(json!(1)).await;
    world.request("batches.seal", json!({"id": "b"})).await;
    // Once two later batches have completed, one after the other, the keeper has looked through the lanes for this one.
    for id in ["empty", "empty-too"] {
        create(&world, id, json!({})).await;
        world.request("batches.seal", json!({"id": id})).await;
        is_in(&world, id, "completed").await;
    }
    world.publish("work").queue("bulk").many((0..300).map(|number| json!(number))).await;
    world.request("runs.cancel", json!({"run_id": member})).await;
    is_in(&world, "b", "completed").await;
}

/// Given batches that are cancelled, or whose deadline is over, then their jobs do not run; the members of a cancelled
/// one are cancelled.
#[tokio::test]
async fn a_batch_that_is_cancelled_or_late_runs_no_job() {
    let world = world().await;
    let (done, _work) = (done(&world).await, work(&world).await);
    let _node = quick(&world, "node").start().await;
    let soon = crate::in_future(Duration::from_secs(4));
    create(&world, "late", json!({"deadline": soon})).await;
    create(&world, "off", json!({})).await;
    for (id, run) in [("late", "l1"), ("off", "o1"), ("off", "o2")] {
        let job = json!({"type": "work", "run_id": run, "batch_id": id, "delay_ms": 3_600_000});
        world.submit(job).await;
        world.request("batches.seal", json!({"id": id})).await;
    }
    let off = world.request("batches.cancel", json!({"id": "off"})).await;
    assert_eq!(off["state"], "cancelled", "{off}");
    for run in ["o1", "o2"] {
        assert_eq!(world.wait(run).await.state, "cancelled");
    }
    let late = is_in(&world, "late", "failed").await;
    assert_eq!((&late["because"], &late["awaits"]), (&json!("its deadline was over"), &json!(["l1"])), "{late}");
    let joins = world.try_request("default", "submit", json!({"type": "work", "batch_id": "late"})).await.unwrap_err();
    assert!(joins.code == 400 && joins.message.contains("batch late has ended"), "{joins}");
    assert_eq!(done.calls().len(), 0);
    let page = async |body: Value| {
        let page = world.request("batches.list", body).await;
        (page["batches"].as_array().unwrap().len(), page["batches"][0]["id"].clone(), page["cursor"].clone())
    };
    assert_eq!(page(json!({"limit": 1})).await, (1, json!("late"), json!("default.off")));
    assert_eq!(page(json!({"limit": 1, "cursor": "default.off"})).await, (1, json!("off"), json!(null)));
    let refused = world.try_request("default", "batches.list", json!({"cursor": "7"})).await.unwrap_err();
    assert!(refused.code == 400 && refused.message.starts_with("cursor: "), "{refused}");
    let listed = crate::cli::say(&world, "batches list --json").await.json();
    assert_eq!(listed["batches"].as_array().unwrap().len(), 2, "{listed}");
}

/// Given a node that dies as a batch completes, at each step of that, then its job is submitted once.
#[tokio::test]
async fn the_job_of_a_batch_is_submitted_once_wherever_the_node_dies() {
    let world = world().await;
    let (done, _work) = (done(&world).await, work(&world).await);
    without_node(quick(&world, "node")).await;
    for point in ["before-batch-end", "after-batch-end", "after-batch-completing", "after-batch-done"] {
        let node = quick(&world, "node").env("LONGSHORE_FAIL_POINTS", &format!("{point}=kill")).start().await;
        create(&world, point, json!({})).await;
        // The job itself does not run yet: an attempt that dies with the node would be made again.
        world.request_as("_all", "queues.pause", json!({"type": "all.done"})).await;
        world.submit(json!({"type": "work", "batch_id": point})).await;
        // The node may be dead by now.
        let _ = world.ask("default", "batches.seal", json!({"id": point}).to_string(), Duration::from_secs(5)).await;
        node.wait_exit(WITHIN).await;
        let node = quick(&world, "node").start().await;
        ask(&world, "batches.seal", json!({"id": point})).await;
        is_in(&world, point, "completed").await;
        world.request_as("_all", "queues.resume", json!({"type": "all.done"})).await;
        world.wait(&format!("{point}-done")).await;
        let calls = done.calls().iter().filter(|call| call.run_id == format!("{point}-done")).count();
        assert_eq!(calls, 1, "killed at {point}");
        assert_eq!(get(&world, point).await["members"], json!({"all": 1, "completed": 1, "failed": 0}));
        node.stop().await;
    }
}
