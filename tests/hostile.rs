//! Any input gets a clear answer or becomes a dead letter of kind `invalid`; no part gets stuck or panics.

use std::collections::BTreeMap;
use std::time::Duration;

use async_nats::HeaderMap;
use futures_util::StreamExt as _;
use longshore_harness::{Node, Refused, Reply, World};
use serde_json::{Value, json};

use crate::{WITHIN, in_future, world};

/// The node still works, ends cleanly, and no part of it panicked.
async fn is_unharmed(world: &World, node: &Node) {
    for job_type in ["echo", "noop"] {
        let run = world.publish(job_type).json(json!("after all that")).await;
        assert_eq!(world.wait(&run).await.state, "completed");
    }
    let run = world.submit(json!({"type": "echo", "payload": 1, "delay_ms": 20})).await;
    assert_eq!(world.wait(&run).await.state, "completed");
    assert!(node.stop().await.success());
    let log = std::fs::read_to_string(node.log().path()).unwrap();
    assert!(!log.contains("panicked") && !log.contains("died, starting it again"), "{log}");
    assert_eq!(world.depth("main", 5).await, 0, "nothing is left in the lane");
}

/// Given malformed subjects, when jobs are published there, then the server refuses them at the publish.
#[tokio::test]
async fn a_wrong_subject_is_refused_at_the_publish() {
    let world = world().await;
    let node = world.node().start().await;
    for subject in [
        "longshore.jobs.default.mian.p5.noop",
        "longshore.jobs.default.main.p0.noop",
        "longshore.jobs.default.main.p10.noop",
        "longshore.jobs.default.main.px.noop",
        "longshore.jobs.default.main.P5.noop",
        "longshore.jobs.default.main.p5",
        "longshore.jobs.default.main.noop",
        "longshore.jobs.default.main",
        "longshore.jobs",
    ] {
        let sent = world.client().request(subject, "{}".into()).await;
        assert!(sent.is_err(), "{subject} was taken: {sent:?}");
    }
    assert_eq!(world.publish("noop").queue("undeclared").send("{}").await.unwrap_err(), Refused::NoStream);
    is_unharmed(&world, &node).await;
}

/// Given tokens that cannot be read, when jobs arrive under them, then they become dead letters, with `_` for those
/// tokens.
#[tokio::test]
async fn tokens_that_cannot_be_read_make_dead_letters() {
    let world = world().await;
    let node = world.node().start().await;
    let long = "x".repeat(65);
    let subjects = [
        ("longshore.jobs._mine.main.p5.noop".to_owned(), "_", "noop"),
        ("longshore.jobs.a$b.main.p5.noop".to_owned(), "_", "noop"),
        ("longshore.jobs.ä.main.p5.noop".to_owned(), "_", "noop"),
        (format!("longshore.jobs.{long}.main.p5.noop"), "_", "noop"),
        ("longshore.jobs.default.main.p5._noop".to_owned(), "default", "_"),
        ("longshore.jobs.default.main.p5.a.b$".to_owned(), "default", "_"),
        (format!("longshore.jobs.default.main.p5.{long}"), "default", "_"),
        (format!("longshore.jobs.default.main.p5.{}", vec!["abcdefghi"; 14].join(".")), "default", "_"),
    ];
    for (subject, _, _) in &subjects {
        let ack = world.client().request(subject.clone(), "{}".into()).await.unwrap();
        assert!(serde_json::from_slice::<Value>(&ack.payload).unwrap()["seq"].is_u64(), "{subject}: {ack:?}");
    }

    let dead_letters = world.eventually_dead_letters(subjects.len()).await;

    for ((subject, tenant, job_type), dead_letter) in subjects.iter().zip(in_order(dead_letters)) {
        assert_eq!(dead_letter.subject, format!("longshore.dlq.{tenant}.main.{job_type}"), "{subject}");
        let record: Value = serde_json::from_str(&dead_letter.headers["Longshore-Record"]).unwrap();
        assert_eq!((&record["error"]["kind"], &record["state"]), (&json!("invalid"), &json!("dead")), "{subject}");
        assert!(record["error"]["message"].as_str().unwrap().starts_with("subject: "), "{record}");
    }
    is_unharmed(&world, &node).await;
}

/// Dead letters in the order in which their jobs were published.
fn in_order(dead_letters: Vec<longshore_harness::DeadLetter>) -> Vec<longshore_harness::DeadLetter> {
    let number = |dead_letter: &longshore_harness::DeadLetter| -> u64 {
        dead_letter.run_id().unwrap().rsplit('-').next().unwrap().parse().unwrap()
    };
    let sorted: BTreeMap<u64, _> =
        dead_letters.into_iter().map(|dead_letter| (number(&dead_letter), dead_letter)).collect();
    sorted.into_values().collect()
}

/// Given headers that do not parse, when jobs carry them, then each job becomes a dead letter that names the header.
#[tokio::test]
async fn headers_that_do_not_parse_make_dead_letters() {
    let world = world().await;
    let node = world.node().start().await;
    let wrong = [
        ("Longshore-Run-Id", "a b".to_owned()),
        ("Longshore-Run-Id", "main-p5-7".to_owned()),
        ("Longshore-Run-Id", "x".repeat(97)),
        ("Longshore-Idempotency-Key", "x".repeat(513)),
        ("Longshore-Idempotency-Key", String::new()),
        ("Longshore-Idempotency-Window", "for ever".to_owned()),
        ("Longshore-Unique", "sometimes".to_owned()),
        ("Longshore-Max-Attempts", "0".to_owned()),
        ("Longshore-Max-Attempts", "1001".to_owned()),
        ("Longshore-Max-Attempts", "-1".to_owned()),
        ("longshore-max-attempts", "99999999999999999999".to_owned()),
        ("Longshore-Run-At", "tomorrow".to_owned()),
        ("Longshore-Delay", "-3s".to_owned()),
        ("Longshore-Delay", "99999999999999999999d".to_owned()),
        ("Longshore-Timeout", "1 minute".to_owned()),
        ("Longshore-Deadline", "soon".to_owned()),
        ("Longshore-Expires-At", "5".to_owned()),
        ("Longshore-Expires-In", "5".to_owned()),
        ("Longshore-Cost", "free".to_owned()),
        ("Longshore-Tags", "1,2,3,4,5,6,7,8,9".to_owned()),
        ("Longshore-Tags", "x".repeat(65)),
        ("Longshore-Round", "none".to_owned()),
        ("Longshore-Attempt", "0".to_owned()),
        ("Longshore-Revision", "latest".to_owned()),
        ("Longshore-Due-At", "now".to_owned()),
    ];
    let mut receipts = Vec::new();
    for (name, value) in &wrong {
        receipts.push(world.publish("noop").header(name, value).send("payload").await.unwrap());
    }

    let dead_letters = in_order(world.eventually_dead_letters(wrong.len()).await);

    for (((name, value), receipt), dead_letter) in wrong.iter().zip(&receipts).zip(&dead_letters) {
        // Whatever id it asked for, its run has the id derived from its position in the lane.
        let run = format!("main-p5-{}", receipt.sequence);
        assert_eq!((dead_letter.run_id().as_ref(), dead_letter.payload.as_ref()), (Some(&run), b"payload".as_slice()));
        let end = world.record(&run).await.unwrap();
        let error = end.error.unwrap();
        assert_eq!((end.state.as_str(), end.attempt, error.kind.as_str()), ("dead", 0, "invalid"), "{name}: {value}");
        assert!(error.message.contains(name) && error.message.len() <= 4_096, "{name}: {}", error.message);
        world.eventually_reads(&run, "dlq invalid").await;
    }
    is_unharmed(&world, &node).await;
}

/// Given headers that only nodes write, when a client forges them, then its run still ends once, and no other run is
/// harmed.
#[tokio::test]
async fn forged_headers_of_nodes_harm_no_run() {
    let world = world().await;
    let quick = "handler = 'sleep'";
    let node = world.node().with("types.nap", quick).start().await;
    let mut live = world.live_events("default").await;
    let victim = world.publish("nap").json(json!({"ms": 1_500})).await;
    live.until_published("started", &victim).await;
    let done = world.publish("echo").json(json!(1)).await;
    world.wait(&done).await;
    let mut receipts = Vec::new();
    for run in [victim.as_str(), done.as_str(), "mine"] {
        for (round, attempt) in [("1", "1"), ("1", "2"), ("2", "1"), ("4000000000", "1000")] {
            let forged = world.publish("noop").header("Longshore-Run-Id", run).header("Longshore-Round", round);
            let forged = forged.header("Longshore-Attempt", attempt).header("Longshore-Due-At", "1");
            receipts.push(forged.send("{}").await.unwrap());
        }
        let revision = world.publish("noop").header("Longshore-Run-Id", "other").header("Longshore-Revision", "1");
        receipts.push(revision.send("{}").await.unwrap());
    }

    assert_eq!(world.wait(&victim).await.state, "completed");
    for run in ["mine", "other"] {
        assert!(world.wait(run).await.is_terminal());
    }

    world.eventually_reads(&victim, "enqueued\nstarted 1\ncompleted 1").await;
    world.eventually_reads(&done, "enqueued\nstarted 1\ncompleted 1").await;
    crate::is_emptied(&world).await;
    is_unharmed(&world, &node).await;
}

/// Given instructions to the server in a job's headers, when the job passes through a schedule, then they are not
/// passed on.
#[tokio::test]
async fn no_header_of_the_servers_is_passed_on() {
    let world = world().await;
    let node = world.node().with("retries.soon", "delays = ['1100ms']").start().await;
    let handler = world.handler("ask").start(async |job| match job.attempt {
        1 => Reply::error(503, "again"),
        _ => {
            // The node's own header, by which it learns who got the request.
            let names = job.headers.iter().map(|(name, _)| name.to_string()).filter(|name| name != "Nats-Trace-Dest");
            Reply::json(json!(names.filter(|name| name.starts_with("Nats-")).count()))
        }
    });
    let handler = handler.await;
    let delayed = world.publish("noop").header("Longshore-Delay", "3s").json(json!({})).await;
    let evil = world.publish("ask").header("Longshore-Retry", "soon").header("Nats-Schedule-Source", "longshore.>");
    let evil = evil.header("Nats-Scheduler", "longshore.schedules.>").header("Nats-Schedule-Next", "purge");
    let evil = evil.send("{}").await;
    // The server may refuse such a job at once; if it stores the job, those headers must not reach the schedules.
    if let Ok(receipt) = evil {
        let end = world.wait(&receipt.run_id).await;
        assert_eq!((end.state.as_str(), end.result), ("completed", Some(json!(0))));
        assert_eq!(handler.calls().len(), 2);
    }
    let rollup = world.publish("ask").header("Longshore-Delay", "300ms").header("Nats-Rollup", "all").send("{}").await;
    if let Ok(receipt) = rollup {
        assert!(world.wait(&receipt.run_id).await.is_terminal());
    }
    assert_eq!(world.wait(&delayed).await.state, "completed", "the other job's schedule is untouched");
    is_unharmed(&world, &node).await;
}

/// Given payloads of every sort, when they are published bare, then every job is done, except a forged acknowledgement.
#[tokio::test]
async fn payloads_are_arbitrary_bytes_except_forged_acknowledgements() {
    let world = world().await;
    let node = world.node().start().await;
    let largest = vec![b'x'; 1_000_000];
    for payload in [&b""[..], b"\0\xff\xfe", b"{", b"null", b"{\"stream\":1}", &largest] {
        let receipt = world.publish("echo").send(payload.to_vec()).await.unwrap();
        assert_eq!(world.wait(&receipt.run_id).await.state, "completed", "{} bytes", payload.len());
    }
    assert!(world.publish("echo").send(vec![0; (1 << 20) + 1]).await.is_err());

    // How a forgery arrives: a publish whose reply subject is a lane of another tenant.
    let forgery = "longshore.jobs.victim.main.p5.echo";
    let client = world.client();
    client.publish_with_reply("longshore.jobs.evil.main.p5.noop", forgery, "{}".into()).await.unwrap();
    let dead_letter = world.eventually_dead_letters(1).await.pop().unwrap();
    assert_eq!(dead_letter.subject, "longshore.dlq.victim.main.echo");
    let record: Value = serde_json::from_str(&dead_letter.headers["Longshore-Record"]).unwrap();
    assert_eq!(record["error"]["kind"], "invalid");
    // The same bytes with a header are a client's own payload.
    let own = world.publish("echo").header("X-Mine", "1").send(r#"{"stream":"S","seq":1}"#).await.unwrap();
    assert_eq!(world.wait(&own.run_id).await.state, "completed");
    is_unharmed(&world, &node).await;
}

/// Given jobs of every size, when they are published, then those that a node could not republish are refused or become
/// dead letters, and the largest accepted ones can be deferred, retried by any node, and become dead letters.
#[tokio::test]
async fn the_largest_jobs_can_be_put_off_and_die() {
    let world = world().await;
    let soon = "handler = 'fail'\nmax_attempts = 2\n\
                backoff = { base = '1100ms', factor = 1.0, max = '1100ms', jitter = 'none' }";
    let node = world.node().with("types.flaky", soon).with("retries.soon", "delays = ['10ms']").start().await;
    let handler = world.handler("far").start(async |_| Reply::error(503, &"no".repeat(3_000))).await;
    // The limits that a client sees: 1 MiB is the server's own limit, and the space that a node needs to republish a
    // job is reserved.
    let beyond = world.publish("echo").send(vec![b'x'; (1 << 20) - 8_000]).await.unwrap_err();
    assert!(matches!(beyond, Refused::ByJetStream { code: 10_054, .. }), "{beyond}");
    let unfit = world.publish("echo").send(vec![b'x'; (1 << 20) - 9_000]).await.unwrap();
    let end = world.wait(&unfit.run_id).await;
    assert_eq!((end.state.as_str(), end.error.unwrap().kind.as_str()), ("dead", "invalid"));

    let most = (1 << 20) - 10 * 1_024 - 200;
    let json = |bytes: usize| format!("{{\"times\":1,\"filler\":\"{}\"}}", "x".repeat(bytes - 24));
    let filler = "y".repeat(100);
    let delayed = world.publish("noop").header("Longshore-Delay", "300ms").header("X-Mine", &filler);
    let retried = world.publish("flaky").header("X-Mine", &filler);
    let dies = world.publish("far").header("Longshore-Max-Attempts", "8").header("Longshore-Retry", "soon");
    for (publish, payload, state) in [
        (&delayed, json(most), "completed"),
        (&retried, json(most), "completed"),
        (&retried, json(most)[1..].to_owned(), "dead"),
        (&dies, json(most - 100), "dead"),
    ] {
        let receipt = publish.send(payload).await.unwrap();
        let end = world.wait_as("default", &receipt.run_id, WITHIN).await;
        assert_eq!(end.state, state, "{:?}", end.error.map(|error| error.kind));
    }
    assert_eq!(handler.calls().len(), 8, "a large job reaches its handler");
    let dead_letters = world.eventually_dead_letters(3).await;
    assert!(dead_letters.iter().all(|dead_letter| dead_letter.payload.len() > 1_000_000), "payloads are kept whole");
    crate::is_emptied(&world).await;
    is_unharmed(&world, &node).await;
}

/// Given malformed requests, when they are sent to every endpoint, then each gets an error that says why.
#[tokio::test]
async fn every_endpoint_answers_nonsense_with_an_error() {
    let world = world().await;
    let node = world.node().start().await;
    let deep = format!("{}{}", "[".repeat(10_000), "]".repeat(10_000));
    let large = format!("{{\"type\":\"noop\",\"payload\":\"{}\"", "x".repeat(900_000));
    for endpoint in ["submit", "submit.batch", "runs.get", "runs.wait"] {
        for body in
            [&b""[..], b"{", b"null", b"[]", b"7", b"\"x\"", b"\xff\xfe", b"{}", deep.as_bytes(), large.as_bytes()]
        {
            let answer = world.ask("default", endpoint, body.to_vec(), WITHIN).await;
            let Err(error) = answer else { panic!("{endpoint} {} was answered: {answer:?}", body.len()) };
            assert_eq!((error.code, error.error.as_str()), (400, "malformed"), "{endpoint} {:.40?}: {error}", body);
        }
    }
    for (tenant, endpoint, code) in [
        ("default", "no.such", 404),
        ("default", "submit.more", 404),
        ("_sys", "health", 400),
        ("a$b", "runs.get", 400),
        ("default", "nodes.list", 403),
    ] {
        let answer = world.ask(tenant, endpoint, r#"{"run_id":"r"}"#, WITHIN).await;
        let code_of = answer.as_ref().err().map(|error| error.code);
        // Every caller may request health.
        assert!(code_of == Some(code) || (endpoint == "health" && answer.is_ok()), "{tenant} {endpoint}: {answer:?}");
    }
    is_unharmed(&world, &node).await;
}

/// Given requests whose reply subjects point elsewhere, when they arrive, then no node writes there.
#[tokio::test]
async fn answers_go_to_inboxes_only() {
    let world = world().await;
    let node = world.node().start().await;
    let run = world.publish("noop").json(json!({})).await;
    world.eventually_reads(&run, "enqueued\nstarted 1\ncompleted 1").await;
    let mut heard = world.client().subscribe("longshore.cancel.victim.x").await.unwrap();
    let body = json!({"run_id": run}).to_string();
    for reply in [
        "$JS.API.STREAM.PURGE.LONGSHORE_EVENTS",
        "$JS.API.STREAM.DELETE.LONGSHORE_DLQ",
        "longshore.jobs.victim.main.p5.noop",
        "longshore.cancel.victim.x",
        "$KV.longshore_runs.victim.x",
    ] {
        for subject in
            ["longshore.api.default.runs.get", "longshore.api.default.health", "$SRV.PING.longshore", "$SRV.INFO"]
        {
            world.client().publish_with_reply(subject, reply, body.clone().into()).await.unwrap();
        }
    }
    world.request("health", json!({})).await; // the requests before it have been handled
    world.client().flush().await.unwrap();
    assert!(futures_util::poll!(heard.next()).is_pending(), "something was written into another tenant");
    assert!(world.record_as("victim", "x").await.is_none() && !world.event_log("default").await.is_empty());
    assert!(world.event_log("victim").await.is_empty());
    is_unharmed(&world, &node).await;
}

/// Given a handler that answers nonsense, when it does, then the answer counts as a result or a failure, and the
/// attempt is over.
#[tokio::test]
async fn nonsense_of_a_handler_is_contained() {
    let world = world().await;
    let node = world.node().with("types.odd", "handler = 'remote'\nmax_attempts = 1").start().await;
    let _handler = world
        .handler("odd")
        .start(async |job: longshore_harness::Job| {
            for signal in ["", "no-such", "progress", "log"] {
                job.signal(signal, vec![0xff; 200_000]).await;
            }
            let reply = Reply::bytes(vec![0xff_u8; 900_000]);
            match job.json().as_str().unwrap_or_default() {
                "code" => reply.header("Nats-Service-Error-Code", "none"),
                "codes" => reply.header("Nats-Service-Error-Code", "99999999"),
                "snooze" => reply.header("Longshore-Snooze", "a while"),
                "after" => reply.header("Nats-Service-Error-Code", "503").header("Longshore-Retry-After", "-1s"),
                "retryable" => reply.header("Nats-Service-Error-Code", "503").header("Longshore-Retryable", "maybe"),
                _ => reply,
            }
        })
        .await;
    for (says, state) in [
        ("code", "dead"),
        ("codes", "dead"),
        ("snooze", "dead"),
        ("after", "dead"),
        ("retryable", "dead"),
        ("", "completed"),
    ] {
        let run = world.publish("odd").json(json!(says)).await;
        let end = world.wait(&run).await;
        assert_eq!(end.state, state, "{says}: {:?}", end.error);
        assert!(end.error.is_none_or(|error| error.message.len() <= 4_096));
    }
    is_unharmed(&world, &node).await;
}

/// Given times far in the past or future, when jobs name them, then nothing overflows.
#[tokio::test]
async fn times_at_the_edge_of_the_calendar_are_no_danger() {
    let world = world().await;
    let node = world.node().start().await;
    let mut live = world.live_events("default").await;
    for (name, value) in [
        ("Longshore-Run-At", "9999-12-30T00:00:00Z"),
        ("Longshore-Delay", "3650d"),
        ("Longshore-Run-At", &in_future(Duration::from_secs(86_400 * 365))),
    ] {
        let run = world.publish("noop").header(name, value).json(json!({})).await;
        let subject = format!(".{run}.");
        let event = live.until("its first event", |live| live.subject.contains(&subject)).await;
        assert!(event.body["event"] == "scheduled" || event.body["event"] == "dlq", "{name} {value}: {event:?}");
    }
    for (name, value) in [
        ("Longshore-Run-At", "0000-01-01T00:00:00Z"),
        ("Longshore-Deadline", "9999-12-30T00:00:00Z"),
        ("Longshore-Timeout", "3650d"),
        ("Longshore-Expires-In", "3650d"),
        ("Longshore-Idempotency-Window", "3650d"),
    ] {
        let publish = world.publish("noop").header(name, value).header("Longshore-Idempotency-Key", value);
        let run = publish.json(json!({})).await;
        assert!(world.wait(&run).await.is_terminal(), "{name} {value}");
    }
    is_unharmed(&world, &node).await;
}

/// Given the subjects that belong to nodes and the server, when a client writes messages there, then work goes on.
#[tokio::test]
async fn strange_messages_on_inner_subjects_block_nothing() {
    let world = world().await;
    let node = world.node().start().await;
    let mut headers = HeaderMap::new();
    headers.insert("Longshore-Run-Id", "forged");
    for subject in [
        "longshore.due.default.main.p5.noop",
        "longshore.due.a$b.main.p77.x",
        "longshore.due.default.undeclared.p5.noop",
        "longshore.due.x",
        "longshore.cancel.default.nobody",
        "longshore.events.default.completed.main.r.noop",
        "longshore.work.default.noop",
        "$KV.longshore_control.nodes.ghost",
        "$KV.longshore_idempotency.default.x",
    ] {
        for payload in [&b""[..], b"{", b"{\"node\":7}", b"\xff"] {
            world.client().publish_with_headers(subject, headers.clone(), payload.to_vec().into()).await.unwrap();
        }
    }
    world.client().flush().await.unwrap();
    let nodes = world.try_request("_all", "nodes.list", json!({})).await.unwrap();
    assert_eq!(nodes["nodes"].as_array().unwrap().len(), 1, "{nodes}");
    assert!(world.request("queues.list", json!({})).await["queues"].is_array());
    is_unharmed(&world, &node).await;
}

/// Given a service that announces one slot and a short heartbeat for subjects of another tenant, when that tenant's
/// handler is silent for longer, then no attempt is lost; a type that is set to heed no announcement is not throttled.
#[tokio::test]
async fn what_a_stranger_announces_ends_no_attempt() {
    let world = world().await;
    let node = world.node().with("types.own", "announcements = false").start().await;
    let mut asked = world.client().subscribe("$SRV.INFO").await.unwrap();
    let client = world.client().clone();
    let lying = tokio::spawn(async move {
        while let Some(question) = asked.next().await {
            let says = json!({"longshore.slots": "1", "longshore.heartbeat": "100ms"});
            let endpoint =
                |name: &str| json!({"name": "x", "subject": format!("longshore.work.*.{name}"), "metadata": says});
            let info = json!({"name": "liar", "id": "7", "endpoints": [endpoint("quiet"), endpoint("own")]});
            let _ = client.publish(question.reply.unwrap(), info.to_string().into()).await;
        }
    });
    let slow = async |_| {
        tokio::time::sleep(Duration::from_millis(1_500)).await;
        Reply::json(json!(null))
    };
    let (_quiet, own) = (world.handler("quiet").start(slow).await, world.handler("own").start(slow).await);

    let mut receipts = world.publish("quiet").many([json!(1), json!(2)]).await;
    receipts.extend(world.publish("own").many((0..8).map(|number| json!(number))).await);

    for receipt in &receipts {
        let end = world.wait(&receipt.run_id).await;
        assert_eq!((end.state.as_str(), end.attempt), ("completed", 1), "{end:?}");
    }
    let calls = own.calls();
    let overlap = calls.windows(2).any(|two| two[0].end.is_none_or(|end| end > two[1].start));
    assert!(overlap, "one at a time: {calls:?}");
    lying.abort();
    is_unharmed(&world, &node).await;
}
