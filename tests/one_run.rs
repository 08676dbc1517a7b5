//! One accepted job is one run, even if it is repeated, forwarded, forged or cancelled: the handlers themselves count
//! their calls.

use std::time::Duration;

use futures_util::future::join_all;

use longshore_harness::{EventName, Handler, Reply, World};
use serde_json::{Value, json};

use crate::{quick, served_by, times, without_node, workers, world};

/// A handler of `work` that answers with the payload it got.
pub(crate) async fn echoing(world: &World) -> Handler {
    world.handler("work").start(|job| async move { Reply::json(job.json()) }).await
}

/// How many times the handler was called for a run.
fn calls_of(handler: &Handler, run: &str) -> usize {
    handler.calls().iter().filter(|call| call.run_id == run).count()
}

/// Waits until a run has no record any more.
async fn forgotten(world: &World, run: &str) {
    longshore_harness::eventually("the end of the record", Duration::from_secs(30), async || {
        match world.record(run).await {
            None => Ok(()),
            Some(record) => Err(record.state),
        }
    })
    .await;
}

/// Given nodes that take a key's later payloads for the first, when a key is submitted again and again to a busy queue,
/// then its handler is called once, with the first payload.
#[tokio::test]
async fn a_key_submitted_twice_to_a_busy_queue_is_one_call() {
    let world = world().await;
    let handler = echoing(&world).await;
    let node = workers(world.node(), 1).with("types.work", "slots = 4");
    let _node = node.with("idempotency", "on_mismatch = 'return'").start().await;
    let busy = world.publish("sleep").json(json!({"ms": 700})).await;
    // Within one lane the server itself would recognise the duplicate.
    let job = |payload: u32| json!({"type": "work", "payload": payload, "idempotency_key": "k", "priority": payload});
    let run = world.submit(job(5)).await;
    let answers = join_all((1..=9).map(|payload| world.request("submit", job(payload)))).await;

    assert!(answers.iter().all(|answer| answer["run_id"] == run.as_str()), "{answers:?}");
    world.wait(&busy).await;
    assert_eq!(world.wait(&run).await.result, Some(json!(5)));
    world.no_job_is_left(Duration::from_secs(60)).await;
    assert_eq!(handler.calls().len(), 1);
}

/// Given jobs that were submitted under a client's own ids, when the same ids are then published bare, some with a
/// higher priority, then each handler is called once, with the payload that was submitted.
#[tokio::test]
async fn a_submitted_id_that_is_published_as_well_is_one_call() {
    let world = world().await;
    let handler = echoing(&world).await;
    let node = workers(world.node(), 1).start().await;
    let busy = world.publish("sleep").json(json!({"ms": 500})).await;
    for number in 0..30 {
        let run = format!("mine-{number}");
        world.submit(json!({"type": "work", "payload": "first", "run_id": run})).await;
        let second = world.publish("work").priority(if number % 2 == 0 { 1 } else { 5 });
        second.header("Longshore-Run-Id", &run).json(json!("second")).await;
    }
    world.wait(&busy).await;
    for number in 0..30 {
        assert_eq!(world.wait(&format!("mine-{number}")).await.result, Some(json!("first")), "{number}");
    }
    crate::is_emptied(&world).await;
    assert_eq!(handler.calls().len(), 30);
    node.stop().await;
    world.history(&[], Vec::new()).await.assert_sound();
}

/// Given an id whose record is gone, when it is submitted again, then it is another run: its job is not mistaken for
/// the one that the server remembers.
#[tokio::test]
async fn an_id_whose_record_has_gone_runs_again() {
    let world = world().await;
    let handler = echoing(&world).await;
    let _node = world.node().with("node", "lease = '1s'").start().await;
    for payload in [1, 2] {
        let job = json!({"type": "work", "payload": payload, "run_id": "mine", "keep_ms": 1});
        let answer = world.request("submit", job).await;
        assert_eq!((&answer["state"], &answer["deduplicated"]), (&json!("enqueued"), &json!(false)));
        handler.called(payload).await;
        assert_eq!(world.wait("mine").await.result, Some(json!(payload)));
        forgotten(&world, "mine").await;
    }
}

/// Given a key whose run's record is gone, when it is submitted again within its window, then the answer names the run
/// as a duplicate, and nothing runs again.
#[tokio::test]
async fn a_key_outlasts_its_runs_record() {
    let world = world().await;
    let handler = echoing(&world).await;
    let _node = world.node().with("node", "lease = '1s'").start().await;
    let job = json!({"type": "work", "payload": 1, "idempotency_key": "k", "keep_ms": 1});
    let run = world.submit(job.clone()).await;
    world.wait(&run).await;
    forgotten(&world, &run).await;

    let answer = world.request("submit", job).await;

    assert_eq!(answer, json!({"run_id": run, "state": "completed", "deduplicated": true}));
    let bare = world.publish("work").header("Longshore-Idempotency-Key", "k").json(json!(2)).await;
    let end = world.wait(&bare).await;
    assert_eq!((end.state.as_str(), end.duplicate_of), ("duplicate", Some(run)));
    assert_eq!(handler.calls().len(), 1);
}

/// Given a delayed job whose key's window ends before it is due, when another job takes the key, then both run.
#[tokio::test]
async fn a_delayed_job_keeps_the_key_it_has_claimed() {
    let world = world().await;
    let node = world.node().with("idempotency", "window = '1s'").start().await;
    let late = world.publish("echo").header("Longshore-Idempotency-Key", "k").header("Longshore-Delay", "4s");
    let late = late.json(json!(1)).await;
    world.eventually_is(&late, "scheduled", Duration::from_secs(20)).await;
    let submitted = json!({"type": "echo", "payload": 3, "delay_ms": 4_000, "idempotency_key": "s"});
    let submitted = world.submit(submitted).await;
    for name in ["k", "s"] {
        let publish = world.publish("echo").header("Longshore-Idempotency-Key", name);
        // It still has the key when the delayed job falls due.
        let publish = publish.header("Longshore-Idempotency-Window", "1h");
        let other = longshore_harness::eventually("the end of the window", Duration::from_secs(20), async || {
            let run = publish.json(json!(2)).await;
            match world.wait(&run).await {
                end if end.state == "completed" => Ok(end),
                end => Err(end.state),
            }
        })
        .await;
        assert_eq!(other.result, Some(json!(2)), "{name}");
    }

    let (late, submitted) = (world.wait(&late).await, world.wait(&submitted).await);

    assert_eq!((late.state.as_str(), &late.result), ("completed", &Some(json!(1))), "{late:?}");
    assert_eq!((submitted.state.as_str(), submitted.result), ("completed", Some(json!(3))));
    node.stop().await;
    world.history(&[], Vec::new()).await.assert_sound();
}

/// How a client repeats a submission that was not answered.
#[derive(Debug, Clone, Copy)]
enum Again {
    /// With the same submission.
    Submit,
    /// By publishing the job bare, under the same id.
    BareId,
    /// By publishing it bare, with the same key.
    BareKey,
}

/// Given a node that dies during a submission, when the client repeats it, in the same way or another, then there is
/// one run that ends, and its handler was called once.
#[tokio::test]
async fn a_submission_that_was_cut_off_is_one_run_however_it_is_repeated() {
    let world = world().await;
    let handler = echoing(&world).await;
    without_node(quick(&world, "node")).await;
    let mut ended = 0;
    for point in ["before-note", "after-note", "after-publish", "after-mark"] {
        for again in [Again::Submit, Again::BareId, Again::BareKey] {
            let name = format!("{point}-{again:?}");
            let kill = format!("{point}=kill");
            // Its worker is busy: the job that the node publishes is still there when the node dies.
            let node = workers(quick(&world, "node"), 1).env("LONGSHORE_FAIL_POINTS", &kill).start().await;
            let job = match again {
                Again::BareKey => json!({"type": "work", "payload": name, "idempotency_key": name}),
                _ => json!({"type": "work", "payload": name, "run_id": name}),
            };
            let unanswered = world.ask("default", "submit", job.to_string(), Duration::from_secs(1)).await;
            assert!(unanswered.is_err(), "{name}: {unanswered:?}");
            node.wait_exit(Duration::from_secs(30)).await;

            let repeat = match again {
                Again::Submit => None,
                Again::BareId => Some(world.publish("work").header("Longshore-Run-Id", &name)),
                Again::BareKey => Some(world.publish("work").header("Longshore-Idempotency-Key", &name)),
            };
            let published = match repeat {
                Some(publish) => Some(publish.json(json!(name)).await),
                None => None,
            };
            let node = quick(&world, "node").start().await;
            let run = match published {
                Some(run) => run,
                None => world.request("submit", job).await["run_id"].as_str().unwrap().to_owned(),
            };
            let mut end = world.wait(&run).await;
            if let Some(first) = end.duplicate_of.take() {
                end = world.wait(&first).await;
            }
            assert_eq!((end.state.as_str(), end.result), ("completed", Some(json!(name))), "{name}");
            crate::is_emptied(&world).await;
            ended += 1;
            let of_it = world.record(&end.run_id).await.unwrap();
            assert_eq!(calls_of(&handler, &of_it.run_id), 1, "{name}");
            assert_eq!(handler.calls().len(), ended, "{name}: {:?}", handler.calls());
            node.stop().await;
        }
    }
    world.history(&[], Vec::new()).await.assert_sound();
}

/// Given a key that another job has taken over from an interrupted submission, when the node dies before that run's end
/// is published, then the end is published all the same.
#[tokio::test]
async fn the_end_of_a_run_whose_key_was_taken_over_is_published() {
    let world = world().await;
    let handler = echoing(&world).await;
    let dying = |point: &str| quick(&world, "node").env("LONGSHORE_FAIL_POINTS", &format!("{point}=kill")).start();
    let node = dying("after-note").await;
    let job = json!({"type": "work", "payload": 1, "run_id": "first", "idempotency_key": "k"});
    assert!(world.ask("default", "submit", job.to_string(), Duration::from_secs(1)).await.is_err());
    node.wait_exit(Duration::from_secs(30)).await;

    let node = dying("after-takeover").await;
    let second = world.publish("work").header("Longshore-Idempotency-Key", "k").json(json!(2)).await;
    node.wait_exit(Duration::from_secs(30)).await;
    world.eventually_is("first", "duplicate", Duration::from_secs(20)).await;
    let node = quick(&world, "node").start().await;

    assert_eq!(world.wait(&second).await.result, Some(json!(2)));
    world.eventually_reads("first", "enqueued\nduplicate").await;
    assert_eq!(handler.calls().len(), 1);
    node.stop().await;
    world.history(&[], Vec::new()).await.assert_sound();
}

/// Given a delayed submission whose node dies before it has written the schedule, when no client repeats it, then its
/// record expires by itself.
#[tokio::test]
async fn a_submission_that_is_not_repeated_leaves_nothing_forever() {
    let world = world().await;
    without_node(world.node().name("node")).await;
    let window = "window = '2s'";
    for (point, job) in [
        ("after-record", json!({"type": "noop", "delay_ms": 500, "run_id": "late"})),
        ("after-note", json!({"type": "noop", "run_id": "soon"})),
    ] {
        let kill = format!("{point}=kill");
        let node =
            world.node().name("node").with("idempotency", window).env("LONGSHORE_FAIL_POINTS", &kill).start().await;
        let asked = world.ask("default", "submit", job.to_string(), Duration::from_secs(1)).await;
        assert!(asked.is_err(), "{asked:?}");
        node.wait_exit(Duration::from_secs(30)).await;
        forgotten(&world, job["run_id"].as_str().unwrap()).await;
    }
}

/// Given a cancel whose node is killed when only the record is written, when another node finds the job in its lane,
/// then its handler is never called.
#[tokio::test]
async fn a_cancelled_job_never_starts() {
    let world = world().await;
    let handler = echoing(&world).await;
    for number in 0..times("LONGSHORE_TEST_KILLS", 3) {
        let first = workers(world.node(), 1).env("LONGSHORE_FAIL_POINTS", "after-cancel=kill").start().await;
        let mut live = world.live_events("default").await;
        let busy = world.publish("sleep").json(json!({"ms": 60_000})).await;
        live.until_published("started", &busy).await;
        let waits = world.publish("work").json(json!(number)).await;
        let asked = world.try_request("default", "runs.cancel", json!({"run_id": waits})).await;
        assert!(asked.is_err(), "the cancel killed the node");
        first.wait_exit(Duration::from_secs(20)).await;

        let second = world.node().name(&format!("second-{number}")).start().await;
        assert_eq!(world.wait(&waits).await.state, "cancelled");
        world.eventually_reads(&waits, "enqueued\ncancelled").await;
        world.request("runs.cancel", json!({"run_id": busy})).await;
        world.wait(&busy).await;
        second.stop().await;
    }
    assert_eq!(handler.calls().len(), 0);
}

/// Given a handler that passes all its headers on to a follow-up job, when a node takes that job, then it is refused as
/// invalid, under its own id, and its parent's run is not touched.
#[tokio::test]
async fn a_follow_up_with_its_parents_headers_is_refused() {
    let world = world().await;
    let client = world.client().clone();
    let parent = world.handler("work").start(move |job| {
        let client = client.clone();
        async move {
            let follow_up = "longshore.jobs.default.main.p5.echo";
            client.publish_with_headers(follow_up, job.headers.clone(), "\"child\"".into()).await.unwrap();
            Reply::json(json!("parent"))
        }
    });
    let parent = parent.await;
    let node = world.node().start().await;
    let mut runs = Vec::new();
    for number in 0..10 {
        runs.push(match number % 2 {
            0 => world.publish("work").json(json!(number)).await,
            _ => world.submit(json!({"type": "work", "run_id": format!("parent-{number}")})).await,
        });
    }

    let dead_letters = world.eventually_dead_letters(runs.len()).await;

    for run in &runs {
        let end = world.wait(run).await;
        assert_eq!((end.state.as_str(), end.result), ("completed", Some(json!("parent"))));
        world.eventually_reads(run, "enqueued\nstarted 1\ncompleted 1").await;
        assert_eq!(calls_of(&parent, run), 1);
    }
    for dead_letter in dead_letters {
        let id = dead_letter.run_id().unwrap();
        assert!(!runs.contains(&id), "a dead letter under its parent's id: {id}");
        let record = world.record(&id).await.unwrap();
        let error = record.error.unwrap();
        assert_eq!((record.state.as_str(), error.kind.as_str()), ("dead", "invalid"));
        assert!(error.message.contains("Longshore-") && error.message.contains("reserved"), "{}", error.message);
    }
    node.stop().await;
}

/// Given bare jobs with headers that only nodes write, forged in every way, when a node takes them, then each becomes a
/// dead letter, and the runs whose ids they carry are not touched.
#[tokio::test]
async fn forged_headers_make_dead_letters() {
    let world = world().await;
    let retrying =
        served_by("fail", "max_attempts = 2\nbackoff = { base = '1h', factor = 1.0, max = '1h', jitter = 'none' }");
    // A node refuses a message that claims to come from a node only when no read can be older than the message.
    let node = world.node().with("types.flaky", &retrying).with("node", "lease = '2s'").start().await;
    let waits = world.publish("flaky").json(json!({"times": 1})).await;
    world.eventually_is(&waits, "retrying", Duration::from_secs(20)).await;
    let large = "x".repeat(50_000);
    let forged: [&[(&str, &str)]; 8] = [
        &[("Longshore-Due-At", "1")],
        &[("Longshore-Attempt", "900"), ("Longshore-Round", "1")],
        &[("Longshore-Run-Id", &waits), ("Longshore-Round", "1"), ("Longshore-Attempt", "2")],
        &[("Longshore-Run-Id", &waits), ("Longshore-Seal", "1"), ("Longshore-Round", "1"), ("Longshore-Attempt", "2")],
        &[("Longshore-Run-Id", "mine"), ("Longshore-Seal", "1")],
        &[
            ("Longshore-Run-Id", "mine"),
            ("Longshore-Seal", "1"),
            ("Longshore-Round", "9"),
            ("Longshore-Attempt", "1"),
            ("X", &large),
        ],
        &[("Longshore-Prioritty", "1")],
        &[("Longshore-Run-At", "2030-01-01T00:00:00Z"), ("Longshore-Delay", "1s")],
    ];
    for headers in forged {
        let publish = headers.iter().fold(world.publish("noop"), |publish, (name, value)| publish.header(name, value));
        publish.send("{}").await.unwrap();
    }

    let dead_letters = world.eventually_dead_letters(forged.len()).await;

    for dead_letter in &dead_letters {
        let record: Value = serde_json::from_str(&dead_letter.headers["Longshore-Record"]).unwrap();
        assert_eq!(record["error"]["kind"], "invalid", "{record}");
    }
    crate::is_emptied(&world).await;
    assert_eq!(world.record(&waits).await.unwrap().state, "retrying");
    assert!(node.is_running());
    node.stop().await;
}

/// Given dead letters that could not be read, when they are replayed, then they fail, unless the call sets values that
/// repair them.
#[tokio::test]
async fn an_invalid_dead_letter_is_replayed_once_it_is_repaired() {
    let world = world().await;
    let _node = world.node().start().await;
    let run = world.publish("echo").header("Longshore-Max-Attempts", "0").json(json!(7)).await;
    assert_eq!(world.wait(&run).await.state, "dead");
    world.eventually_dead_letters(1).await;
    for body in [
        json!({"run_id": run}),
        json!({"run_id": run, "set": {"priority": 3}}),
        json!({"all": true}),
        json!({"run_id": run, "set": {"headers": {"X-Mine": "1"}}}),
    ] {
        let answer = world.request("dlq.replay", body.clone()).await;
        assert_eq!(answer["replayed"], 0, "{body}: {answer}");
        assert_eq!(answer["failed"][0]["run_id"], json!(run), "{body}: {answer}");
    }
    let refused = json!({"run_id": run, "set": {"headers": {"Longshore-Run-Id": "other"}}});
    assert_eq!(world.try_request("default", "dlq.replay", refused).await.unwrap_err().code, 400);

    let mended = json!({"run_id": run, "set": {"headers": {"Longshore-Max-Attempts": "3"}}});
    assert_eq!(world.request("dlq.replay", mended).await["replayed"], 1);

    let end = world.wait(&run).await;
    assert_eq!((end.state.as_str(), end.result, end.round), ("completed", Some(json!(7)), 2));
    assert_eq!(end.max_attempts, 3);
}

/// Given a lane that somebody deletes and creates again as it was while a retry of one of its runs waits, when a job
/// gets the same sequence in it, then both runs end, each under its own id.
#[tokio::test]
async fn a_lane_made_anew_overwrites_no_run() {
    let world = world().await;
    // The first retry would else take the first sequence of the new lane before the job that is to have it.
    let later = served_by("fail", "backoff = { delays = ['1h', '1100ms'] }");
    let node = world.node().name("node").with("types.flaky", &later).with("types.slow", "handler = 'sleep'");
    let node = node.start().await;
    let mut live = world.live_events("default").await;
    let old = world.publish("flaky").json(json!({"times": 4})).await;
    live.until_published("failed", &old).await;
    node.stop().await;
    let lane = world.jetstream().get_stream("LONGSHORE_JOBS_main_P5").await.unwrap().cached_info().config.clone();
    world.jetstream().delete_stream(&lane.name).await.unwrap();
    world.jetstream().create_stream(lane).await.unwrap();
    node.restart().await;
    let (quick, slow) = (world.publish("echo"), world.publish("slow"));
    let new = quick.json(json!("new")).await;
    assert_eq!(new, old, "the id is derived from the sequence");
    let slow = slow.json(json!({"ms": 600})).await;
    world.request("runs.run_now", json!({"run_id": old})).await;

    let end = world.wait(&old).await;

    assert_eq!((end.state.as_str(), end.job_type.as_str(), end.attempt), ("completed", "flaky", 5));
    world.wait(&slow).await;
    crate::is_emptied(&world).await;
    let all = world.event_log("default").await;
    let completed = |job_type: &str| {
        let ends = all.iter().filter(|logged| logged.event.event == EventName::Completed);
        ends.filter(|logged| logged.event.job_type == job_type).count()
    };
    assert_eq!((completed("echo"), completed("flaky"), completed("slow")), (1, 1, 1));
}

/// Given more jobs than workers, when their server is killed again and again, then no running job is called lost: its
/// node was alive all the while.
#[tokio::test]
async fn a_job_whose_holder_lives_is_never_taken_for_lost() {
    let world = world().await;
    let node = |name: &str| workers(world.node().name(name), 32).with("node", "lease = '4s'").start();
    let (_first, _second) = (node("first").await, node("second").await);
    let jobs = (0..150).map(|number| json!({"ms": 500 + 40 * number}));
    let receipts = world.publish("sleep").header("Longshore-Max-Attempts", "1").many(jobs).await;
    for number in 0..times("LONGSHORE_TEST_KILLS", 3) {
        // Some are running, some have just started, some are buffered by a node, some wait.
        tokio::time::sleep(Duration::from_millis(700 + 300 * number as u64)).await;
        world.server().kill9().await;
        world.server().restart().await.unwrap();
    }
    for receipt in &receipts {
        let end = world.wait(&receipt.run_id).await;
        assert_eq!((end.state.as_str(), end.attempt), ("completed", 1), "{end:?}");
    }
}
