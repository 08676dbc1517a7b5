//! Bytes that no client library can read cost only their own message: the node lives, the jobs around them end as
//! usual, and each such message becomes a dead letter of kind `invalid`, stored byte for byte.

use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use longshore_harness::{DeadLetter, Job, Node, NodeBuilder, Reply, World, reads};
use serde_json::{Value, json};

use crate::{is_emptied, times, world};

/// Well below the lease of [`node`]: a job that had to wait for that would be too late.
const WITHIN: Duration = Duration::from_secs(120);

fn node(world: &World) -> NodeBuilder<'_> {
    world.node().with("node", "lease = '10m'")
}

/// Headers that cannot be read, and the error text for each.
const BROKEN: &[(&[u8], &str)] = &[
    (b"NATS/1.0\r\nX: a\rb\r\n\r\n", "carriage return"),
    (b"NATS/1.0\r\nX: caf\xe9\r\n\r\n", "UTF-8"),
    (b"NATS/1.0\r\nno colon\r\n\r\n", "no colon"),
    (b"NATS/1.0\r\n\xff\xfe: a\r\n\r\n", "UTF-8"),
];

/// A status in the first line. JetStream, from nats-server 2.14 on, removes it, and the job is valid.
const STATUS: &[&[u8]] =
    &[b"NATS/1.0 503\r\n\r\n", b"NATS/1.0 100 Idle Heartbeat\r\n\r\n", b"NATS/1.0 garbage\r\nX: a\r\n\r\n"];

/// Headers that are strange but readable.
const STRANGE: &[&[u8]] = &["NATS/1.0\r\nX: \u{a0}a\u{a0}b\r\n\r\n".as_bytes(), b"NATS/1.0\r\nX:\r\n  folded\r\n\r\n"];

fn lane(priority: u8, job_type: &str) -> Vec<u8> {
    format!("longshore.jobs.default.main.p{priority}.{job_type}").into_bytes()
}

fn error_of(dead_letter: &DeadLetter) -> (String, String) {
    let record: Value = serde_json::from_str(&dead_letter.headers["Longshore-Record"]).unwrap();
    let error = &record["error"];
    (error["kind"].as_str().unwrap().to_owned(), error["message"].as_str().unwrap().to_owned())
}

/// Asserts that the node is still the same process, takes work, and that no part of it has died.
async fn is_unharmed(world: &World, node: &Node) {
    assert!(node.is_running());
    let run = world.submit(json!({"type": "echo", "payload": 1})).await;
    assert_eq!(world.wait(&run).await.state, "completed");
    is_emptied(world).await;
    let log = std::fs::read_to_string(node.log().path()).unwrap();
    assert!(!log.contains("panicked") && !log.contains("died, starting it again"), "{log}");
}

/// Given long jobs and waiting jobs, when unreadable messages arrive among them, then each of these becomes a dead
/// letter, and the others end at their first attempt, none later than a lease.
#[tokio::test]
async fn what_cannot_be_read_in_a_lane_becomes_a_dead_letter_and_its_neighbours_go_on() {
    let world = world().await;
    let node = node(&world).with("types.long", "handler = 'sleep'").start().await;
    let long = world.publish("long").json(json!({"ms": 6_000})).await;
    world.eventually_is(&long, "running", WITHIN).await;
    let mut bytes = world.bytes().await;
    let mut good = Vec::new();
    let began = Instant::now();
    for (headers, _) in BROKEN {
        good.extend(world.publish("noop").many((0..20).map(|number| json!(number))).await);
        bytes.publish(&lane(5, "noop"), None, headers, b"kept \xff\x00");
        bytes.flush().await;
        good.extend(world.publish("noop").many((0..20).map(|number| json!(number))).await);
    }
    for subject in ["longshore.jobs.default.main.p5.no\u{a0}op", "longshore.jobs.default.main.p3.a\u{2003}b"] {
        bytes.publish(subject.as_bytes(), None, b"NATS/1.0\r\nX: a\r\n\r\n", b"kept \xff\x00");
    }
    bytes.publish(b"longshore.jobs.default.main.p5.no\xe9p", None, b"NATS/1.0\r\n\r\n", b"kept \xff\x00");
    for headers in STRANGE.iter().chain(STATUS) {
        bytes.publish(&lane(5, "noop"), None, headers, b"{}");
    }
    bytes.flush().await;

    let ends = world.ends(&good, WITHIN).await;

    println!("{} good jobs, the last ended after {:?}", good.len(), began.elapsed());
    assert!(ends.iter().all(|state| state == "completed"), "{ends:?}");
    let dead_letters = world.eventually_dead_letters(BROKEN.len() + 3).await;
    for dead_letter in &dead_letters {
        let (kind, message) = error_of(dead_letter);
        assert_eq!(
            (kind.as_str(), dead_letter.payload.as_ref()),
            ("invalid", b"kept \xff\x00".as_slice()),
            "{message}"
        );
    }
    for (headers, reason) in BROKEN {
        let found = dead_letters.iter().filter(|dead_letter| error_of(dead_letter).1.contains(reason)).count();
        assert!(found > 0, "no dead letter says {reason:?} of {}", headers.escape_ascii());
    }
    let end = world.wait(&long).await;
    assert_eq!((end.state.as_str(), end.attempt), ("completed", 1));
    world.eventually_reads(&long, "enqueued\nstarted 1\ncompleted 1").await;
    is_unharmed(&world, &node).await;
    assert!(node.stop().await.success());
}

/// Given dead letters with unreadable headers, when they are replayed, then the error says how to leave those headers
/// out; if that is done, they run with the readable headers and those that the call sets.
#[tokio::test]
async fn a_dead_letter_with_unreadable_headers_is_replayed_without_them() {
    let world = world().await;
    let node = world.node().start().await;
    let handler = world.handler("kept").start(async |job: Job| {
        let of = |name| job.headers.get(name).map(|value| value.as_str().to_owned());
        Reply::json(json!([of("X-Good"), of("X-Bad")]))
    });
    let _handler = handler.await;
    let mut bytes = world.bytes().await;
    for broken in [b"X-Bad: a\rb\r\n".as_slice(), b"X-Bad: caf\xe9\r\n", b"no colon\r\n"] {
        bytes.publish(&lane(5, "kept"), None, &[b"NATS/1.0\r\nX-Good: 1\r\n", broken, b"\r\n"].concat(), b"{}");
    }
    bytes.flush().await;
    let dead_letters = world.eventually_dead_letters(3).await;

    for dead_letter in dead_letters {
        let run = dead_letter.run_id().unwrap();
        for set in [json!({}), json!({"headers": {"X-Bad": null}}), json!({"payload": 1})] {
            let answer = world.request("dlq.replay", json!({"run_id": run, "set": set})).await;
            let error = answer["failed"][0]["error"].as_str().unwrap();
            let how = r#"set.headers {"Longshore-Headers-Base64": null} leaves out the headers that cannot be read"#;
            assert!(error.starts_with("it is invalid (headers: ") && error.ends_with(how), "{set}: {error}");
        }
        let set = json!({"headers": {"longshore-headers-base64": null, "X-Bad": "ab"}});
        let answer = world.request("dlq.replay", json!({"run_id": run, "set": set})).await;
        assert_eq!(answer["replayed"], 1, "{answer}");
        let end = world.wait(&run).await;
        assert_eq!((end.state.as_str(), end.round, end.result), ("completed", 2, Some(json!(["1", "ab"]))));
    }
    is_unharmed(&world, &node).await;
}

/// Answers each call for a job of type `broken`: the first attempt with unreadable bytes, the next ones correctly.
async fn break_first_replies(world: &World) {
    let mut work = world.client().subscribe("longshore.work.*.broken").await.unwrap();
    world.client().flush().await.unwrap();
    let mut bytes = world.bytes().await;
    tokio::spawn(async move {
        for number in 0.. {
            let Some(call) = work.next().await else { return };
            let first = call.headers.unwrap().get("Longshore-Attempt").is_some_and(|attempt| attempt.as_str() == "1");
            let headers = if first { BROKEN[number % BROKEN.len()].0 } else { b"NATS/1.0\r\n\r\n" };
            bytes.publish(call.reply.unwrap().as_bytes(), None, headers, b"true");
            bytes.flush().await;
        }
    });
}

/// Given handlers whose first replies cannot be read and arrive about when the node checks whether the handlers exist,
/// when the replies break the connection, then each attempt fails at once, and no call waits for its time limit.
#[tokio::test]
async fn a_reply_that_is_lost_while_its_handler_is_looked_for_is_found() {
    let world = world().await;
    let settings =
        crate::served_by("remote", &format!("max_attempts = 1000\ntimeout = '1h'\nslots = 1\n{}", crate::AT_ONCE));
    let node = node(&world).with("types.late", &settings).start().await;
    let mut work = world.client().subscribe("longshore.work.*.late").await.unwrap();
    world.client().flush().await.unwrap();
    let mut bytes = world.bytes().await;
    let answer = tokio::spawn(async move {
        for number in 0.. {
            let Some(call) = work.next().await else { return };
            let first = call.headers.unwrap().get("Longshore-Attempt").is_some_and(|attempt| attempt.as_str() == "1");
            let headers = if first { BROKEN[number % BROKEN.len()].0 } else { b"NATS/1.0\r\n\r\n" };
            if first {
                // A node checks for a silent handler after 50 ms.
                tokio::time::sleep(Duration::from_millis(46 + number as u64 % 8)).await;
            }
            bytes.publish(call.reply.unwrap().as_bytes(), None, headers, b"true");
            bytes.flush().await;
        }
    });
    let receipts = world.publish("late").many((0..60).map(|number| json!(number))).await;
    let ends = world.ends(&receipts, Duration::from_secs(60)).await;
    assert!(ends.iter().all(|state| state == "completed"));
    answer.abort();
    is_unharmed(&world, &node).await;
}

/// Listens for ends until none has come for 15 s; returns the longest time between two of them, and their number.
async fn longest_pause(world: &World) -> tokio::task::JoinHandle<(Duration, usize)> {
    let mut live = world.client().subscribe("longshore.events.default.completed.>").await.unwrap();
    tokio::spawn(async move {
        let (mut last, mut longest, mut count) = (Instant::now(), Duration::ZERO, 0_usize);
        while let Ok(Some(_)) = tokio::time::timeout(Duration::from_secs(15), live.next()).await {
            longest = longest.max(last.elapsed());
            last = Instant::now();
            count += 1;
        }
        (longest, count)
    })
}

/// Given two nodes and a stream of jobs, when unreadable messages arrive by turns in their lane, among due jobs, as
/// requests, as `$SRV` questions and as replies, then all good jobs complete and each broken one has one dead letter.
/// `LONGSHORE_TEST_POISON=1000` is the large run.
#[tokio::test]
async fn many_that_cannot_be_read_among_many_that_can() {
    let broken = times("LONGSHORE_TEST_POISON", 40);
    let world = world().await;
    let again = format!("max_attempts = 1000\n{}", crate::AT_ONCE);
    let start = || node(&world).with("types.counted", "slots = 64").with("types.broken", &again).start();
    let nodes = [start().await, start().await];
    let counted = world.handler("counted").start(async |_| {
        // Long enough for a node to hold the job while the other node checks for lost jobs.
        tokio::time::sleep(Duration::from_millis(400)).await;
        Reply::json(json!(1))
    });
    let counted = counted.await;
    break_first_replies(&world).await;
    let mut bytes = world.bytes().await;
    let (mut good, mut twice, mut dead_letters) = (Vec::new(), Vec::new(), 0);
    let (began, listening) = (Instant::now(), longest_pause(&world).await);
    for number in 0..broken {
        good.extend(world.publish("counted").many([json!(number)]).await);
        good.extend(world.publish("noop").many((0..19).map(|number| json!(number))).await);
        let subject = match number % 5 {
            0 => lane(5, "noop"),
            1 => b"longshore.due.default.main.p5.noop".to_vec(),
            2 => b"longshore.api.default.submit".to_vec(),
            3 => b"$SRV.INFO.longshore".to_vec(),
            _ => {
                twice.extend(world.publish("broken").many([json!(number)]).await);
                continue;
            }
        };
        dead_letters += usize::from(number % 5 < 2);
        let (headers, _) = BROKEN[number % BROKEN.len()];
        bytes.publish(&subject, Some("_INBOX.nobody"), headers, number.to_string().as_bytes());
        bytes.flush().await;
    }
    let published = began.elapsed();

    let ends = world.ends(&good, WITHIN + Duration::from_millis(20) * u32::try_from(broken).unwrap()).await;

    let ended = began.elapsed();
    assert!(ends.iter().all(|state| state == "completed"));
    let found = world.eventually_dead_letters(dead_letters).await;
    let payloads: std::collections::BTreeSet<&[u8]> =
        found.iter().map(|dead_letter| dead_letter.payload.as_ref()).collect();
    assert_eq!((payloads.len(), found.len()), (dead_letters, dead_letters), "each has one dead letter");
    assert_eq!(counted.calls().len(), broken, "no handler was called twice");
    for receipt in &twice {
        let end = world.wait(&receipt.run_id).await;
        assert!(end.state == "completed" && end.attempt > 1, "{end:?}");
    }
    for node in &nodes {
        is_unharmed(&world, node).await;
    }
    if broken > 40 {
        let (longest, count) = listening.await.unwrap();
        println!("{broken} broken among {} good: published {published:?}, ended {ended:?}", good.len());
        println!("longest pause between two of {count} ends: {longest:?}");
    }
}

/// Given an API in use and a long job, when a hundred requests a second come that cannot be read, then each of them
/// gets an answer that says what is wrong with it, each request of another tenant gets its answer, and no connection
/// ends.
#[tokio::test]
async fn a_request_that_cannot_be_read_costs_itself_alone() {
    let world = world().await;
    let node = world.node().with("node", "lease = '2s'").with("types.long", "handler = 'sleep'").start().await;
    let long = world.publish("long").json(json!({"ms": 3_000})).await;
    let mut answers = world.client().subscribe("_INBOX.broken.*").await.unwrap();
    world.client().flush().await.unwrap();
    let mut bytes = world.bytes().await;
    let flood = tokio::spawn(async move {
        for number in 0..300 {
            let inbox = format!("_INBOX.broken.{number}");
            let subject = ["longshore.api.default.submit", "longshore.api.acme.runs.get"][number / 4 % 2];
            bytes.publish(subject.as_bytes(), Some(&inbox), BROKEN[number % 4].0, br#"{"type":"noop"}"#);
            bytes.flush().await;
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        bytes
    });
    let mut submitted = Vec::new();
    while !flood.is_finished() {
        let answer = world.try_request("other", "submit", json!({"type": "noop", "payload": 1})).await;
        submitted.push(answer.unwrap()["run_id"].as_str().unwrap().to_owned());
    }

    for _ in 0..300 {
        let answer = tokio::time::timeout(WITHIN, answers.next()).await.expect("every request is answered").unwrap();
        let number: usize = answer.subject.rsplit('.').next().unwrap().parse().unwrap();
        let answer: Value = serde_json::from_slice(&answer.payload).unwrap();
        assert_eq!(answer["code"], 400, "{answer}");
        let message = answer["message"].as_str().unwrap();
        assert!(message.contains("headers cannot be read") && message.contains(BROKEN[number % 4].1), "{message}");
    }
    let mut bytes = flood.await.unwrap();
    for (headers, subject) in [
        (b"NATS/1.0\r\nno colon\r\n\r\n".as_slice(), b"$SRV.PING.longshore".as_slice()),
        (b"NATS/1.0\r\n\r\n", "longshore.api.default.a\u{a0}b".as_bytes()),
        (b"NATS/1.0 503\r\n\r\n", b"longshore.api.d\xff.health"),
    ] {
        bytes.publish(subject, Some("_INBOX.broken.x"), headers, b"{}");
        bytes.flush().await;
        tokio::time::timeout(WITHIN, answers.next()).await.expect("an answer").unwrap();
    }
    println!("{} requests of another tenant were answered meanwhile", submitted.len());
    assert_eq!(world.wait_as("other", submitted.last().unwrap(), WITHIN).await.state, "completed");
    let end = world.wait(&long).await;
    assert_eq!((end.state.as_str(), end.attempt), ("completed", 1));
    let log = std::fs::read_to_string(node.log().path()).unwrap();
    assert!(!log.contains("lost the connection") && !log.contains("takes its place"), "{log}");
    is_unharmed(&world, &node).await;
}

/// Given a slow handler and a quick one, when another handler replies with unreadable bytes, then only its own attempts
/// fail, at once and with that reason; the slow one is called once, and no quick reply is lost.
#[tokio::test]
async fn a_reply_that_cannot_be_read_fails_its_own_attempt_and_no_other() {
    let world = world().await;
    let types = format!("timeout = '5s'\nmax_attempts = {}\n{}", BROKEN.len() + 1, crate::AT_ONCE);
    let node = node(&world).with("types.broken", &types).start().await;
    let slow = world.handler("slow").start(async |_| {
        tokio::time::sleep(Duration::from_secs(4)).await;
        Reply::json(json!("slow"))
    });
    let (slow, quick) = (slow.await, world.handler("quick").start(async |_| Reply::json(json!("quick"))).await);
    let mut work = world.client().subscribe("longshore.work.*.broken").await.unwrap();
    world.client().flush().await.unwrap();
    let mut bytes = world.bytes().await;
    let answering = tokio::spawn(async move {
        for (headers, _) in BROKEN {
            let reply = work.next().await.unwrap().reply.unwrap();
            bytes.publish(reply.as_bytes(), None, headers, b"done");
            bytes.flush().await;
        }
        let reply = work.next().await.unwrap().reply.unwrap();
        bytes.publish(reply.as_bytes(), None, b"NATS/1.0\r\n\r\n", b"true");
        bytes.flush().await;
    });
    let long = world.publish("slow").json(json!(1)).await;
    slow.called(1).await;
    let broken = world.publish("broken").json(json!(1)).await;

    let mut good = Vec::new();
    while !answering.is_finished() {
        good.extend(world.publish("quick").many((0..10).map(|number| json!(number))).await);
    }
    let end = world.wait(&broken).await;
    let ends = world.ends(&good, WITHIN).await;

    assert!(ends.iter().all(|state| state == "completed"));
    assert_eq!(quick.calls().len(), good.len(), "each was called once");
    assert_eq!((end.state.as_str(), end.attempt as usize), ("completed", BROKEN.len() + 1));
    for (attempt, (_, reason)) in end.attempts.iter().zip(BROKEN) {
        let error = attempt.error.as_ref().unwrap();
        assert_eq!(error.kind, "retryable");
        assert!(error.message.contains("cannot be read") && error.message.contains(reason), "{}", error.message);
    }
    assert_eq!(world.wait(&long).await.state, "completed");
    assert_eq!(slow.calls().len(), 1);
    let log = std::fs::read_to_string(node.log().path()).unwrap();
    assert!(!log.contains("lost the connection") && !log.contains("takes its place"), "{log}");
    is_unharmed(&world, &node).await;
}

/// Given handlers that put a status into their reply's first line, when the replies arrive, then each is a failure that
/// says so, at its first call; even a forged "no responders" from the server keeps a job circulating no longer than a
/// missing handler would.
#[tokio::test]
async fn a_status_in_a_reply_is_neither_a_success_nor_a_missing_handler() {
    let world = world().await;
    let node = node(&world).with("types.status", "max_attempts = 1");
    let node = node.with("types.forged", "max_attempts = 1\nno_handler_grace = '600ms'").start().await;
    let mut work = world.client().subscribe("longshore.work.*.*").await.unwrap();
    world.client().flush().await.unwrap();
    let mut bytes = world.bytes().await;
    let mut answer = async |headers: &[u8], payload: &[u8]| {
        let reply = work.next().await.unwrap().reply.unwrap();
        bytes.publish(reply.as_bytes(), None, headers, payload);
        bytes.flush().await;
    };
    for (headers, payload, said) in [
        (b"NATS/1.0 200 OK\r\n\r\n".as_slice(), b"done".as_slice(), "\"200 OK\""),
        (b"NATS/1.0 404\r\n\r\n", b"", "\"404\""),
        (b"NATS/1.0 100 Idle\r\nLongshore-Signal: heartbeat\r\n\r\n", b"", "\"100 Idle\""),
        (b"NATS/1.0 503\r\n\r\n", b"", "\"503\""),
        (b"NATS/1.0 503 No Responders\r\nNats-Subject: a\r\n\r\n", b"", "\"503 No Responders\""),
        (b"NATS/1.0 503\r\nNats-Subject: a\r\n\r\n", b"done", "\"503\""),
    ] {
        let run = world.publish("status").json(json!(1)).await;
        answer(headers, payload).await;
        let end = world.wait(&run).await;
        let error = end.error.unwrap();
        assert_eq!((end.state.as_str(), error.kind.as_str()), ("dead", "retryable"), "{}", headers.escape_ascii());
        assert!(error.message.contains("cannot be read") && error.message.contains(said), "{}", error.message);
        assert!(!reads(&world.eventually_ends(&run).await).contains("deferred"));
    }

    let run = world.publish("forged").json(json!(1)).await;
    let end = tokio::select! {
        end = world.wait(&run) => end,
        () = async { loop { answer(b"NATS/1.0 503\r\nNats-Subject: longshore.work.default.forged\r\n\r\n", b"").await } } => {
            unreachable!()
        }
    };
    // One that comes before the server's word that a handler has the call counts as the server's own.
    let (state, kind) = (end.state, end.error.unwrap().kind);
    assert!(state == "dead" && ["no_handler", "retryable"].contains(&kind.as_str()), "{state} {kind}");
    is_unharmed(&world, &node).await;
}

/// Given a subject of due jobs that a client can write to, when an unreadable message arrives there, then it becomes a
/// dead letter, and due jobs go on.
#[tokio::test]
async fn what_cannot_be_read_among_due_jobs_becomes_a_dead_letter() {
    let world = world().await;
    let node = world.node().start().await;
    let mut bytes = world.bytes().await;
    for (headers, _) in BROKEN {
        bytes.publish(b"longshore.due.default.main.p5.noop", None, headers, b"due");
    }
    bytes.flush().await;
    // These bytes end connections of the node. A request that comes just then has no answer, and its client repeats it.
    let job = json!({"type": "noop", "payload": 1, "delay_ms": 300, "run_id": "beside-them"});
    longshore_harness::eventually("an answer", WITHIN, async || {
        world.try_request("default", "submit", job.clone()).await.map_err(|error| error.to_string())
    })
    .await;

    assert_eq!(world.wait("beside-them").await.state, "completed");

    for dead_letter in world.eventually_dead_letters(BROKEN.len()).await {
        assert_eq!((error_of(&dead_letter).0.as_str(), dead_letter.payload.as_ref()), ("invalid", b"due".as_slice()));
    }
    is_unharmed(&world, &node).await;
}

/// Given a node at work, when the consumers of its lanes are deleted, then the node recreates them and says so, and
/// jobs go on.
#[tokio::test]
async fn a_deleted_consumer_is_made_anew() {
    let world = world().await;
    let node = world.node().start().await;
    let before = world.publish("noop").json(json!(1)).await;
    assert_eq!(world.wait(&before).await.state, "completed");
    for (stream, consumer) in [("LONGSHORE_JOBS_main_P5", "work"), ("LONGSHORE_SCHEDULES", "due")] {
        world.jetstream().get_stream(stream).await.unwrap().delete_consumer(consumer).await.unwrap();
    }

    let run = world.publish("noop").json(json!(2)).await;
    let late = world.submit(json!({"type": "noop", "payload": 1, "delay_ms": 100})).await;

    assert_eq!(world.wait(&run).await.state, "completed");
    assert_eq!(world.wait(&late).await.state, "completed");
    let log = std::fs::read_to_string(node.log().path()).unwrap();
    assert_eq!(log.matches("its consumer was gone and has been made anew").count(), 2, "{log}");
    let stream = world.jetstream().get_stream("LONGSHORE_JOBS_main_P5").await.unwrap();
    let info = stream.consumer_info("work").await.unwrap();
    assert_eq!((info.config.ack_wait, info.config.max_ack_pending), (Duration::from_secs(30), -1));
    longshore_harness::eventually("a healthy node", WITHIN, async || {
        let health = world.request("health", json!({})).await;
        if health["ready"] == json!(true) { Ok(()) } else { Err(health.to_string()) }
    })
    .await;
    is_unharmed(&world, &node).await;
}
