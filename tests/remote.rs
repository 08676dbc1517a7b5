//! A handler in any language does the work over plain NATS, and is never called twice because it is slow.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use async_nats::ConnectOptions;
use futures_util::StreamExt as _;
use longshore_harness::{EventName, Job, Live, Reply, Scrape, SlowLink, World, reads};
use serde_json::{Value, json};
use tokio::sync::{Notify, Semaphore, mpsc};

use crate::{AT_ONCE, SOON, served_by, world};

/// How many times the log has this event of the run.
async fn published(world: &World, run: &str, name: EventName) -> usize {
    world.events(run).await.iter().filter(|logged| logged.event.event == name).count()
}

/// Given a subscription, when a job of its type arrives, then it gets payload and headers, and its reply is the result.
#[tokio::test]
async fn a_subscription_is_a_handler_as_it_stands() {
    let world = world().await;
    let _node = world.node().start().await;
    let (sender, mut asked) = mpsc::unbounded_channel();
    let handler = world.handler("mail.send").start(move |job: Job| {
        sender.send(job.clone()).unwrap();
        async move { Reply::json(json!({"sent": job.json()["to"]})) }
    });
    let handler = handler.await;
    let trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let publish = world.publish("mail.send").tenant("acme").priority(3).header("traceparent", trace);
    let publish = publish.header("X-Mine", "kept").header("Nats-Msg-Id", "acme-1").header("Longshore-Timeout", "20s");
    let run = publish.json(json!({"to": "a@b.c"})).await;

    let end = world.wait_as("acme", &run, Duration::from_secs(60)).await;

    assert_eq!((end.state.as_str(), end.result), ("completed", Some(json!({"sent": "a@b.c"}))));
    let job = asked.recv().await.unwrap();
    let header = |name: &str| job.headers.get(name).map(async_nats::HeaderValue::as_str);
    for (name, value) in [
        ("Longshore-Run-Id", run.as_str()),
        ("Longshore-Tenant", "acme"),
        ("Longshore-Queue", "main"),
        ("Longshore-Priority", "p3"),
        ("Longshore-Type", "mail.send"),
        ("Longshore-Round", "1"),
        ("Longshore-Attempt", "1"),
        ("Longshore-Max-Attempts", "12"),
        ("traceparent", trace),
        ("X-Mine", "kept"),
        // The job names none.
        ("Content-Type", "application/json"),
    ] {
        assert_eq!(header(name), Some(value), "{name}");
    }
    let limit: jiff::Timestamp = header("Longshore-Attempt-Deadline").unwrap().parse().unwrap();
    assert!(limit > end.started_at.unwrap(), "{limit}");
    assert_eq!(header("Nats-Msg-Id"), None, "an instruction to the server");
    assert_eq!(header("Longshore-Timeout"), None, "meant for the node, and not to be passed on to a follow-up job");
    assert_eq!((job.payload.as_ref(), handler.calls().len()), (br#"{"to":"a@b.c"}"#.as_slice(), 1));
}

/// Given a job with a content type of its own, in any case, when it arrives, then its handler gets that one and no
/// other. And given a handler that sends the headers of its request back with a text, then the text is not called JSON.
#[tokio::test]
async fn a_content_type_is_the_jobs_own_and_says_nothing_of_another_text() {
    let world = world().await;
    let _node = world.node().start().await;
    let (sender, mut asked) = mpsc::unbounded_channel();
    let handler = world.handler("text").start(move |job: Job| {
        sender.send(job.headers.clone()).unwrap();
        let echoed = job.headers.get("Content-Type").map_or("", async_nats::HeaderValue::as_str).to_owned();
        async move { Reply::bytes("plain text").header("Content-Type", &echoed) }
    });
    let _handler = handler.await;
    let own = world.publish("text").header("content-type", "text/plain").json(json!({})).await;
    world.wait(&own).await;
    let headers = asked.recv().await.unwrap();
    let types: Vec<&str> = headers
        .iter()
        .filter(|(name, _)| AsRef::<str>::as_ref(*name).eq_ignore_ascii_case("content-type"))
        .flat_map(|(_, values)| values.iter().map(async_nats::HeaderValue::as_str))
        .collect();
    assert_eq!(types, ["text/plain"]);

    let none = world.publish("text").json(json!({})).await;
    let end = world.wait(&none).await;
    assert_eq!(end.rest["result_base64"], json!("cGxhaW4gdGV4dA=="));
    assert_eq!(end.rest.get("result_content_type"), None);
}

/// Given a handler that answers bytes, when the job is done, then they are stored unchanged.
#[tokio::test]
async fn a_result_that_is_no_json_is_kept() {
    let world = world().await;
    let _node = world.node().start().await;
    let _handler = world
        .handler("scan")
        .start(async |_| Reply::bytes(vec![0_u8, 255]).header("Content-Type", "application/x-mine"))
        .await;
    let run = world.publish("scan").json(json!({})).await;
    let end = world.wait(&run).await;
    assert_eq!((&end.rest["result_base64"], end.result), (&json!("AP8="), None));
    assert_eq!(end.rest["result_content_type"], json!("application/x-mine"));
}

/// Given replies with every kind of code, when they arrive, then the failure is permanent or retried as the contract
/// says.
#[tokio::test]
async fn a_code_says_whether_another_attempt_may_help() {
    let world = world().await;
    let node = world.node().with("types.coded", &served_by("remote", &format!("max_attempts = 2\n{AT_ONCE}")));
    let node = node.start().await;
    let _handler = world
        .handler("coded")
        .start(async |job: Job| {
            let job = job.json();
            let reply = Reply::error(u16::try_from(job["code"].as_u64().unwrap()).unwrap(), "as asked");
            job["retryable"].as_str().map_or(reply.clone(), |says| reply.header("Longshore-Retryable", says))
        })
        .await;
    for (code, says, kind) in [
        (400, Value::Null, "permanent"),
        (404, Value::Null, "permanent"),
        (422, Value::Null, "permanent"),
        (499, Value::Null, "permanent"),
        (408, Value::Null, "retryable"),
        (425, Value::Null, "retryable"),
        (500, Value::Null, "retryable"),
        (503, Value::Null, "retryable"),
        (302, Value::Null, "retryable"),
        (422, json!("true"), "retryable"),
        (429, json!("true"), "retryable"),
        (503, json!("false"), "permanent"),
    ] {
        let run = world.publish("coded").json(json!({"code": code, "retryable": says})).await;
        let end = world.wait(&run).await;
        let attempts = if kind == "permanent" { 1 } else { 2 };
        let error = end.error.unwrap();
        assert_eq!((end.state.as_str(), end.attempt, error.kind.as_str()), ("dead", attempts, kind), "{code} {says}");
        assert_eq!(error.message, format!("{code}: as asked"));
    }
    node.stop().await;
    world.history(&[], Vec::new()).await.assert_sound();
}

/// Given a failure with its own delay, when the handler answers it, then the next attempt waits for that long.
#[tokio::test]
async fn a_handler_sets_the_delay_of_its_retry() {
    let world = world().await;
    let _node = world.node().with("types.later", &served_by("remote", AT_ONCE)).start().await;
    let _handler = world
        .handler("later")
        .start(async |job: Job| {
            let code = u16::try_from(job.json().as_u64().unwrap()).unwrap();
            Reply::error(code, "not now").header("Longshore-Retry-After", "1h")
        })
        .await;
    let mut live = world.live_events("default").await;
    for code in [503, 429] {
        let run = world.publish("later").json(json!(code)).await;
        let failed = live.until_published("failed", &run).await.event().unwrap();
        // The end's time is read a moment after the delay of the retry was counted.
        let wait = failed.retry_at.unwrap().duration_since(failed.at).as_millis();
        assert!((3_590_000..=3_600_000).contains(&wait), "{code}: {wait} ms");
        assert_eq!(failed.error.unwrap().kind.as_str(), "retryable", "{code}");
    }
}

/// Given a handler that is not ready for a job, when it says so, then the job is delivered again and no attempt was
/// used.
#[tokio::test]
async fn a_snooze_and_full_handlers_use_no_attempt() {
    let world = world().await;
    let node = world.node().with("types.nap", &served_by("remote", "max_attempts = 1")).start().await;
    let calls = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&calls);
    let _handler = world
        .handler("nap")
        .start(move |job: Job| {
            let first = count.fetch_add(1, Ordering::Relaxed).is_multiple_of(2);
            async move {
                match (first, job.json().as_str()) {
                    (true, Some("snooze")) => Reply::snooze("300ms"),
                    (true, _) => Reply::error(429, "no room"),
                    (false, _) => Reply::json(json!(job.attempt)),
                }
            }
        })
        .await;
    for (way, events) in [("snooze", "started 1\ndeferred snoozed"), ("busy", "deferred busy")] {
        let run = world.publish("nap").json(json!(way)).await;
        let end = world.wait(&run).await;
        assert_eq!((end.state.as_str(), end.attempt, end.result), ("completed", 1, Some(json!(1))), "{way}");
        world.eventually_reads(&run, &format!("enqueued\n{events}\nstarted 1\ncompleted 1")).await;
    }
    node.stop().await;
    world.history(&[], Vec::new()).await.assert_sound();
}

/// Given handlers that are full for long, when they say so again and again, then that is published once and never a
/// failure.
#[tokio::test]
async fn full_handlers_are_published_once_and_never_fail_a_job() {
    let world = world().await;
    let settings = served_by("remote", "max_attempts = 1\nmax_snoozes = 1");
    let node = world.node().with("types.full", &settings).start().await;
    let calls = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&calls);
    let handler = world.handler("full").start(move |job: Job| {
        let call = count.fetch_add(1, Ordering::Relaxed);
        async move {
            match call {
                // At once, and then once more after it has signalled to the node that work had begun.
                0 | 1 => Reply::error(429, "no room"),
                2 => {
                    job.signal("started", "").await;
                    Reply::error(429, "no room after all")
                }
                _ => Reply::json(json!(job.attempt)),
            }
        }
    });
    let handler = handler.await;
    let receipt = world.publish("full").send("{}").await.unwrap();

    let end = world.wait(&receipt.run_id).await;

    assert_eq!((end.state.as_str(), end.attempt, end.result), ("completed", 1, Some(json!(1))));
    let events = "enqueued\ndeferred busy\nstarted 1\ndeferred busy\nstarted 1\ncompleted 1";
    world.eventually_reads(&receipt.run_id, events).await;
    let starts: Vec<_> = handler.calls().iter().map(|call| call.start).collect();
    let pauses: Vec<f64> = starts.windows(2).map(|pair| pair[1].duration_since(pair[0]).as_secs_f64()).collect();
    assert!(pauses[0] >= 0.7 && pauses[1] >= 1.4 && pauses[2] >= 2.9, "they grow: {pauses:?}");
    node.stop().await;
    world.history(&[receipt], handler.calls()).await.assert_sound();
}

/// Given replies with unreadable instructions, when they arrive, then that is a failure that says so, never a success.
#[tokio::test]
async fn a_reply_that_cannot_be_read_is_no_success() {
    let world = world().await;
    let node = world.node().with("types.slip", &served_by("remote", &format!("max_attempts = 2\n{AT_ONCE}")));
    let node = node.start().await;
    let handler = world.handler("slip").start(async |job: Job| {
        let headers: Vec<(String, String)> = serde_json::from_slice(&job.payload).unwrap();
        headers.iter().fold(Reply::bytes("1"), |reply, (name, value)| reply.header(name, value))
    });
    let _handler = handler.await;
    for (headers, kind, says) in [
        (json!([["longshore-snooze", "soon"]]), "retryable", "the handler's reply cannot be read: Longshore-Snooze: "),
        (json!([["Longshore-Snooze", "0s"]]), "retryable", "Longshore-Snooze: is zero"),
        (json!([["Longshore-Snoze", "5m"]]), "retryable", "Longshore-Snoze is not a header of a reply"),
        (json!([["Longshore-Snooze", "5m"], ["longshore-snooze", "6m"]]), "retryable", "twice"),
        (json!([["Longshore-Snooze", "5m"], ["Nats-Service-Error-Code", "422"]]), "retryable", "beside a failure"),
        (json!([["nats-service-error-code", "422"], ["nats-service-error", "no"]]), "permanent", "422: no: 1"),
        (json!([["Nats-Service-Error", "only words"]]), "retryable", "only words: 1"),
        (
            json!([["Nats-Service-Error-Code", "404"], ["nats-service-error-code", "500"]]),
            "retryable",
            "Nats-Service-Error-Code stands there twice",
        ),
        (json!([["Nats-Service-Error", ""], ["nats-service-error", "bad"]]), "retryable", "Nats-Service-Error stands"),
        (json!([["Content-Type", "a/b"], ["content-type", "c/d"]]), "retryable", "Content-Type stands there twice"),
    ] {
        let run = world.publish("slip").json(headers.clone()).await;
        let end = world.wait(&run).await;
        let error = end.error.unwrap();
        assert_eq!((end.state.as_str(), error.kind.as_str()), ("dead", kind), "{headers}: {}", error.message);
        assert!(error.message.contains(says), "{headers}: {}", error.message);
    }
    // An instruction that only a later version acts upon is not a mistake.
    let run = world.publish("slip").json(json!([["Longshore-Hold", "30s"], ["X-Mine", "1"]])).await;
    assert_eq!(world.wait(&run).await.state, "completed");
    assert!(node.stop().await.success());
}

/// Given a handler whose client copies the request's headers into the reply, when it replies, then that is a success.
#[tokio::test]
async fn a_reply_may_carry_the_headers_of_its_request() {
    let world = world().await;
    let node = world.node().with("types.echoing", &served_by("remote", "max_attempts = 1")).start().await;
    let _handler = world
        .handler("echoing")
        .start(async |job| {
            let headers = job.headers.iter().flat_map(|(name, values)| values.iter().map(move |value| (name, value)));
            headers.fold(Reply::json(json!(1)), |reply, (name, value)| reply.header(name.as_ref(), value.as_str()))
        })
        .await;
    let job = world.publish("echoing").header("X-Mine", "1").header("Longshore-Tags", "a");
    let end = world.wait(&job.json(json!({})).await).await;
    assert_eq!((end.state.as_str(), end.error.map(|error| error.message)), ("completed", None));
    assert!(node.stop().await.success());
}

/// Given a node far from its server, when it looks for handlers, then it publishes what it finds, without repeats.
#[tokio::test]
async fn what_a_distant_node_publishes_is_true() {
    let world = world().await;
    let link = SlowLink::to(&world, Duration::from_millis(60)).await;
    let node = world.node().env("NATS_URL", &link.url()).start().await;
    let mut live = world.live_events("default").await;
    let receipt = world.publish("far").send("{}").await.unwrap();
    live.until_published("deferred", &receipt.run_id).await;

    let handler = world.handler("far").start(async |_| {
        // So that the node learns of the handler before the handler replies.
        tokio::time::sleep(Duration::from_secs(1)).await;
        Reply::json(json!(1))
    });
    let handler = handler.await;
    live.until_published("started", &receipt.run_id).await;
    let started_at_once = handler.calls()[0].end.is_none();
    let end = world.wait(&receipt.run_id).await;

    assert!(started_at_once, "its start is published before its end");
    assert_eq!((end.state.as_str(), end.attempt), ("completed", 1));
    let events = "enqueued\ndeferred no_handler_online\nstarted 1\ncompleted 1";
    let events = world.eventually_reads(&receipt.run_id, events).await;
    assert_eq!(events.len(), 4, "nothing is published twice");
    node.stop().await;
    world.history(&[receipt], handler.calls()).await.assert_sound();
}

/// Given a handler with one slot, when many jobs wait as a node first uses the handler, then it never gets two at once.
#[tokio::test]
async fn a_handler_is_asked_before_it_gets_a_second_job() {
    let world = world().await;
    let node = world.node().start().await;
    let house = House::new();
    let visited = Arc::clone(&house);
    let handler = world.handler("alone").announce("longshore.slots", "1");
    let handler = handler.start(move |_| Arc::clone(&visited).visit()).await;
    let receipts = world.publish("alone").many((0..6).map(|number| json!(number))).await;
    house.holds(1).await;
    // By now the handler has received everything else that the node sent.
    for _ in 0..3 {
        let passes_by = world.publish("noop").json(json!({})).await;
        world.wait(&passes_by).await;
    }
    house.may_finish.add_permits(6);
    for receipt in &receipts {
        assert_eq!(world.wait(&receipt.run_id).await.state, "completed");
    }
    assert_eq!(house.most.load(Ordering::SeqCst), 1);
    node.stop().await;
    world.history(&receipts, handler.calls()).await.assert_sound();
}

/// Given handlers that announce nonsense, when a node asks them, then a warning names each once, and the type's own
/// number applies.
#[tokio::test]
async fn a_bad_announcement_is_warned_of_by_name() {
    let world = world().await;
    let node = world.node().with("types.vague", &served_by("remote", "slots = 2")).start().await;
    let house = House::new();
    let mark = node.log().mark();
    let visited = Arc::clone(&house);
    let handler = world.handler("vague").announce("longshore.slots", "many").announce("longshore.heartbeat", "soon");
    let _handler = handler.start(move |_| Arc::clone(&visited).visit()).await;
    let receipts = world.publish("vague").many((0..4).map(|number| json!(number))).await;

    house.holds(2).await;
    let slots = node.log().seen(mark, |line| line.contains("WARN") && line.contains("longshore.slots")).await;
    assert!(slots.contains("many") && slots.contains("\"service\":\"harness-handler "), "{slots}");
    node.log().seen(mark, |line| line.contains("WARN") && line.contains("longshore.heartbeat")).await;
    house.may_finish.add_permits(4);
    for receipt in &receipts {
        world.wait(&receipt.run_id).await;
    }
    let warned = node.log().since(mark).iter().filter(|line| line.contains("cannot be read")).count();
    assert_eq!((warned, house.most.load(Ordering::SeqCst)), (2, 2));
}

/// Given a handler that signals progress, when it does, then every listener gets it, and the handler learns that it may
/// go on.
#[tokio::test]
async fn what_a_handler_signals_is_published() {
    let world = world().await;
    let node = world.node().start().await;
    let mut live = world.live_events("default").await;
    let go_on = Arc::new(Notify::new());
    let gate = Arc::clone(&go_on);
    let _handler = world
        .handler("walk")
        .start(move |job: Job| {
            let gate = Arc::clone(&gate);
            async move {
                job.signal("started", "").await;
                job.signal("log", "half of a thought").await;
                job.signal("progress", r#"{"step":1}"#).await;
                job.signal("progress", "no json").await;
                job.signal("Progress", r#"{"step":3}"#).await;
                job.signal("done", "").await;
                gate.notified().await;
                let cancelled = job.ask("heartbeat", "").await;
                job.signal("progress", r#"{"step":2}"#).await;
                Reply::json(json!(cancelled))
            }
        })
        .await;
    let mark = node.log().mark();
    for lasts in [false, true] {
        let run = world.publish("walk").json(json!({})).await;
        let is_step = |step: u64| move |live: &Live| live.body["progress"] == json!({"step": step});
        live.until("the first step", |live| live.body["run_id"] == run.as_str() && is_step(1)(live)).await;
        node.log().seen(mark, |line| line.contains("half of a thought") && line.contains(&run)).await;
        node.log()
            .seen(mark, |line| line.contains("Longshore-Signal \\\"Progress\\\" is none of") && line.contains(&run))
            .await;
        if lasts {
            world.eventually_is(&run, "running", Duration::from_secs(20)).await;
        }
        go_on.notify_one();

        let end = world.wait(&run).await;

        assert_eq!((end.state.as_str(), end.result), ("completed", Some(json!(false))));
        assert_eq!(end.rest["progress"], json!({"step": 2}));
        let line = &end.rest["log"][0];
        assert_eq!((&line["line"], &line["attempt"]), (&json!("half of a thought"), &json!(1)));
        live.until("the second step", |live| live.body["run_id"] == run.as_str() && is_step(2)(live)).await;
        world.eventually_reads(&run, "enqueued\nstarted 1\nlog\nprogress 1\nprogress 1\ncompleted 1").await;
    }
    node.stop().await;
    let warned = node.log().since(mark).iter().filter(|line| line.contains("counts as a heartbeat")).count();
    assert_eq!(warned, 2, "once an attempt, of the first such word");
    world.history(&[], Vec::new()).await.assert_sound();
}

/// Given a lease much shorter than the work, when a handler is slow and silent, then it is called only once.
#[tokio::test]
async fn a_slow_handler_is_not_called_twice() {
    let world = world().await;
    let node = world.node().with("node", "lease = '1s'").with("types.slow", &served_by("remote", SOON)).start().await;
    let other = world.node().with("node", "lease = '1s'").with("types.slow", &served_by("remote", SOON)).start().await;
    let handler = world
        .handler("slow")
        .start(async |_| {
            // Four leases: the handler may use its time as it likes.
            tokio::time::sleep(Duration::from_secs(4)).await;
            Reply::json(json!("done"))
        })
        .await;
    let receipts = world.publish("slow").many((0..6).map(|number| json!(number))).await;
    for receipt in &receipts {
        let end = world.wait(&receipt.run_id).await;
        assert_eq!((end.state.as_str(), end.attempt, end.attempts.len()), ("completed", 1, 1));
    }
    assert_eq!(handler.calls().len(), 6);
    node.stop().await;
    other.stop().await;
    world.history(&receipts, handler.calls()).await.assert_sound();
}

/// Given a promise of heartbeats, when they stop, then the attempt is lost, and the handler gets a request to stop; one
/// that keeps sending them may be slow.
#[tokio::test]
async fn silence_loses_an_attempt_where_heartbeats_were_promised() {
    let world = world().await;
    let promised = served_by("remote", &format!("heartbeat = '500ms'\n{AT_ONCE}"));
    let node = world.node().with("types.beat", &promised).start().await;
    let mut cancels = world.listen("longshore.cancel.default.*").await;
    let handler = world
        .handler("beat")
        .start(async |job: Job| {
            if job.attempt == 1 {
                return Reply::silence();
            }
            for _ in 0..8 {
                job.signal("heartbeat", "").await;
                tokio::time::sleep(Duration::from_millis(150)).await;
            }
            Reply::json(json!("alive"))
        })
        .await;
    let receipt = world.publish("beat").send("{}").await.unwrap();
    let subject = format!("longshore.cancel.default.{}", receipt.run_id);
    cancels.until("the request to stop", |live| live.subject == subject).await;
    let end = world.wait(&receipt.run_id).await;
    assert_eq!((end.state.as_str(), end.attempt), ("completed", 2));
    let events = "enqueued\nstarted 1\nfailed 1 lease_expired\nstarted 2\ncompleted 2";
    world.eventually_reads(&receipt.run_id, events).await;
    assert_eq!(handler.calls().len(), 2);
    node.stop().await;
    world.history(&[receipt], handler.calls()).await.assert_sound();
}

/// Given a handler that is killed and started again at once, one that takes no more jobs but works on, and one that has
/// changed to another connection, when the killed one's connection is gone, then its attempt is lost and made again;
/// the others keep their jobs.
#[tokio::test]
async fn a_killed_handler_loses_its_attempt_and_one_that_works_on_never_does() {
    let world = world().await;
    let limit = served_by("remote", &format!("timeout = '10m'\n{AT_ONCE}"));
    let node = world.node().with("types.killed", &limit).with("types.busy", &limit).with("types.moved", &limit);
    let node = node.start().await;
    let connected = async |job_type: &str| {
        let client = world.connect(ConnectOptions::new()).await;
        let jobs = client.queue_subscribe(format!("longshore.work.*.{job_type}"), "handlers".to_owned()).await.unwrap();
        client.flush().await.unwrap();
        (client, jobs)
    };
    let (client, mut jobs) = connected("killed").await;
    let (busy, mut busy_jobs) = connected("busy").await;
    let (old, mut old_jobs) = connected("moved").await;
    let mut cancels = world.listen("longshore.cancel.default.*").await;
    let first = world.publish("killed").json(json!(1)).await;
    let second = world.publish("busy").json(json!(1)).await;
    let third = world.publish("moved").json(json!(1)).await;
    jobs.next().await.unwrap();
    let call = busy_jobs.next().await.unwrap();
    let moved = old_jobs.next().await.unwrap().reply.unwrap();
    busy_jobs.unsubscribe().await.unwrap();
    busy.flush().await.unwrap();

    // It is missed first, and so would be lost first.
    drop((old, old_jobs));
    let (other, reply) = (busy.clone(), moved.clone());
    let signals = tokio::spawn(async move {
        let mut heartbeat = async_nats::HeaderMap::new();
        heartbeat.insert("Longshore-Signal", "heartbeat");
        while other.publish_with_headers(reply.clone(), heartbeat.clone(), "".into()).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    });
    drop((client, jobs));
    let killed = Instant::now();
    let again = world.handler("killed").start(async |_| Reply::json(json!("again"))).await;

    let end = world.wait(&first).await;
    println!("the job of the killed handler ended after {:?}", killed.elapsed());
    assert_eq!((end.state.as_str(), end.attempt), ("completed", 2));
    let error = end.attempts[0].error.as_ref().unwrap();
    assert!(error.kind == "lease_expired" && error.message.contains("its handler is gone"), "{error:?}");
    let subject = format!("longshore.cancel.default.{first}");
    cancels.until("the request to stop", |live| live.subject == subject).await;
    assert_eq!(again.calls().len(), 1);
    // The other was looked at as often.
    assert_eq!(world.record(&second).await.unwrap().attempt, 1);
    signals.abort();
    busy.publish(call.reply.unwrap(), "1".into()).await.unwrap();
    busy.publish(moved, "1".into()).await.unwrap();
    for run in [&second, &third] {
        let end = world.wait(run).await;
        assert_eq!((end.state.as_str(), end.attempt), ("completed", 1), "{run}");
    }
    assert!(node.stop().await.success());
}

/// Given two plain subscriptions that each do every job, when one was done, then health, log and metrics say that it
/// was done twice; of handlers that share a queue group nothing is said.
#[tokio::test]
async fn a_job_that_two_handlers_do_is_said() {
    let world = world().await;
    let node = crate::http::on_a_free_port(world.node()).start().await;
    let mark = node.log().mark();
    for _ in 0..2 {
        let mut jobs = world.client().subscribe("longshore.work.*.twice").await.unwrap();
        let client = world.client().clone();
        tokio::spawn(async move {
            while let Some(job) = jobs.next().await {
                let _ = client.publish(job.reply.unwrap(), "1".into()).await;
            }
        });
    }
    let answers = async |_| Reply::json(json!(null));
    let _shared = (world.handler("once").start(answers).await, world.handler("once").start(answers).await);
    for job_type in ["once", "twice"] {
        let run = world.publish(job_type).json(json!(1)).await;
        assert_eq!(world.wait(&run).await.state, "completed");
    }

    let warnings = longshore_harness::eventually("a warning", Duration::from_secs(10), async || {
        let warnings = world.request("health", json!({})).await["warnings"].to_string();
        if warnings.contains("twice") { Ok(warnings) } else { Err(warnings) }
    })
    .await;
    assert!(warnings.contains("jobs are answered twice on longshore.work.default.twice (1 so far)"), "{warnings}");
    assert!(!warnings.contains("once"), "{warnings}");
    node.log().seen(mark, |line| line.contains("WARN") && line.contains("a job was answered twice")).await;
    assert_eq!(Scrape::of(&node).await.value("longshore_second_replies_total", &[]), Some(1.0));
    assert!(node.stop().await.success());
}

/// Counts the calls that run at once, and lets them end one by one.
#[derive(Debug)]
struct House {
    inside: AtomicUsize,
    most: AtomicUsize,
    may_finish: Semaphore,
    came: Notify,
}

impl House {
    fn new() -> Arc<House> {
        let (inside, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Arc::new(House { inside, most, may_finish: Semaphore::new(0), came: Notify::new() })
    }

    async fn visit(self: Arc<House>) -> Reply {
        let inside = self.inside.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(inside, Ordering::SeqCst);
        self.came.notify_one();
        self.may_finish.acquire().await.unwrap().forget();
        self.inside.fetch_sub(1, Ordering::SeqCst);
        Reply::json(json!(null))
    }

    /// Waits until that many calls run at once.
    async fn holds(&self, count: usize) {
        while self.inside.load(Ordering::SeqCst) < count {
            let came = tokio::time::timeout(Duration::from_secs(60), self.came.notified()).await;
            assert!(came.is_ok(), "waited in vain for {count} inside at once");
        }
    }
}

/// Given handlers that announce their slots, when there is more work, then they get the sum of their slots at once,
/// over all queues of a node together.
#[tokio::test]
async fn no_more_is_sent_than_handlers_have_capacity_for() {
    let world = world().await;
    let node = world.node().with("types.narrow", &served_by("remote", "slots = 1"));
    let node = node.with("types.wide", &served_by("remote", "slots = 2"));
    let node = node.with("queues.main", "").with("queues.other", "").start().await;
    let (narrow, wide) = (House::new(), House::new());
    let mut handlers = Vec::new();
    for slots in ["2", "3"] {
        let house = Arc::clone(&narrow);
        let handler = world.handler("narrow").announce("longshore.slots", slots);
        handlers.push(handler.start(move |_| Arc::clone(&house).visit()).await);
    }
    let house = Arc::clone(&wide);
    handlers.push(world.handler("wide").start(move |_| Arc::clone(&house).visit()).await);
    let mut receipts = world.publish("narrow").many((0..15).map(|number| json!(number))).await;
    receipts.extend(world.publish("narrow").queue("other").many((15..30).map(|number| json!(number))).await);
    receipts.extend(world.publish("wide").many((0..10).map(|number| json!(number))).await);

    // The type's own number applies if no handler announces slots; the announced sum applies if one does.
    narrow.holds(5).await;
    wide.holds(2).await;
    narrow.may_finish.add_permits(30);
    wide.may_finish.add_permits(10);
    for receipt in &receipts {
        assert_eq!(world.wait(&receipt.run_id).await.state, "completed");
    }

    assert_eq!((narrow.most.load(Ordering::SeqCst), wide.most.load(Ordering::SeqCst)), (5, 2));
    node.stop().await;
    let calls = handlers.iter().flat_map(longshore_harness::Handler::calls).collect();
    world.history(&receipts, calls).await.assert_sound();
}

/// Given a node that asked handlers a moment ago, when jobs of a type arrive that the node has not seen, then their
/// handler gets at most the announced number at once.
#[tokio::test]
async fn a_new_type_is_asked_for_however_lately_others_were() {
    let world = world().await;
    let node = world.node().start().await;
    let (old, narrow) = (House::new(), House::new());
    let house = Arc::clone(&old);
    let first = world.handler("old").start(move |_| Arc::clone(&house).visit()).await;
    let mut receipts = world.publish("old").many([json!(1), json!(2)]).await;
    // The handler got a second job, so the node has asked handlers.
    old.holds(2).await;
    old.may_finish.add_permits(2);
    let house = Arc::clone(&narrow);
    let handler = world.handler("new").announce("longshore.slots", "1");
    let handler = handler.start(move |_| Arc::clone(&house).visit()).await;

    receipts.extend(world.publish("new").many((0..10).map(|number| json!(number))).await);
    for _ in 0..10 {
        narrow.holds(1).await;
        let passes_by = world.publish("noop").json(json!({})).await;
        world.wait(&passes_by).await;
        narrow.may_finish.add_permits(1);
    }
    for receipt in &receipts {
        assert_eq!(world.wait(&receipt.run_id).await.state, "completed");
    }

    assert_eq!(narrow.most.load(Ordering::SeqCst), 1);
    node.stop().await;
    world.history(&receipts, [first.calls(), handler.calls()].concat()).await.assert_sound();
}

/// Given one handler of several types that announces its slots, when there is work of all types, then it gets that many
/// jobs at once, over all types together, and no type waits until the others are finished.
#[tokio::test]
async fn types_that_share_a_handler_share_its_capacity() {
    let world = world().await;
    let node = ["kin.a", "kin.b", "kin.c"]
        .iter()
        .fold(world.node(), |node, kind| node.with(&format!("types.\"{kind}\""), &served_by("remote", "slots = 1")));
    let node = node.start().await;
    let house = House::new();
    let visited = Arc::clone(&house);
    let handler = world.handler("kin.*").announce("longshore.slots", "4");
    let handler = handler.start(move |_| Arc::clone(&visited).visit()).await;
    // The types' own number applies until the node has asked the handlers, which it does when there is work.
    let mut receipts = Vec::new();
    for kind in ["kin.a", "kin.b", "kin.c"] {
        receipts.extend(world.publish(kind).many((0..10).map(|number| json!(number))).await);
    }

    house.holds(4).await;
    // Everything else that the node has sent reaches the handler while calls are let out one by one.
    for _ in 0..3 {
        let passes_by = world.publish("noop").json(json!({})).await;
        world.wait(&passes_by).await;
        house.may_finish.add_permits(1);
    }
    house.may_finish.add_permits(27);
    for receipt in &receipts {
        assert_eq!(world.wait(&receipt.run_id).await.state, "completed");
    }

    assert_eq!(house.most.load(Ordering::SeqCst), 4);
    node.stop().await;
    world.history(&receipts, handler.calls()).await.assert_sound();
}

/// Given no handler for a job, when one appears, then the job is done in its first attempt; until then it was deferred.
#[tokio::test]
async fn a_job_waits_for_its_handler() {
    let world = world().await;
    let node = world.node().start().await;
    let mut live = world.live_events("default").await;
    let run = world.publish("rare").json(json!({})).await;
    let deferred = live.until_published("deferred", &run).await;
    assert_eq!(deferred.body["reason"], "no_handler_online");

    let handler = world.handler("rare").start(async |_| Reply::json(json!("at last"))).await;
    let end = world.wait(&run).await;

    assert_eq!((end.state.as_str(), end.attempt, end.attempts.len()), ("completed", 1, 1));
    assert_eq!(handler.calls().len(), 1);
    let log = reads(&world.eventually_ends(&run).await);
    assert!(log.starts_with("enqueued\ndeferred no_handler_online"), "{log}");
    assert!(log.ends_with("deferred no_handler_online\nstarted 1\ncompleted 1"), "{log}");
    node.stop().await;
    world.history(&[], Vec::new()).await.assert_sound();
}

/// Given no handler for longer than the grace period, when it is over, then that is a failed attempt of kind
/// `no_handler`.
#[tokio::test]
async fn a_job_does_not_wait_for_a_handler_for_ever() {
    let world = world().await;
    let limits = format!("no_handler_grace = '600ms'\nmax_attempts = 2\n{AT_ONCE}");
    let node = world.node().with("types.rare", &served_by("remote", &limits)).start().await;
    let receipt = world.publish("rare").send("{}").await.unwrap();

    let end = world.wait(&receipt.run_id).await;

    assert_eq!((end.state.as_str(), end.attempt, end.error.unwrap().kind.as_str()), ("dead", 2, "no_handler"));
    let log = reads(&world.eventually_ends(&receipt.run_id).await);
    assert!(log.ends_with("failed 2 no_handler\ndlq no_handler"), "{log}");
    assert_eq!(published(&world, &receipt.run_id, EventName::Failed).await, 2);
    node.stop().await;
    assert_eq!(world.dead_letters("default").await.len(), 1);
    world.history(&[receipt], Vec::new()).await.assert_sound();
}

/// Given a handler that dies during a job, when the attempt's time is over, then another handler does the job.
#[tokio::test]
async fn a_handler_that_dies_costs_an_attempt() {
    let world = world().await;
    let limits = format!("timeout = '1s'\n{AT_ONCE}");
    let node = world.node().with("types.work", &served_by("remote", &limits)).start().await;
    let mut live = world.live_events("default").await;
    let doomed = world.handler("work").start(async |_| std::future::pending::<Reply>().await).await;
    let receipt = world.publish("work").send("{}").await.unwrap();
    live.until_published("started", &receipt.run_id).await;
    let mut calls = doomed.calls();
    drop(doomed);
    let next = world.handler("work").start(async |_| Reply::json(json!("done"))).await;

    let end = world.wait(&receipt.run_id).await;

    assert_eq!((end.state.as_str(), end.attempt), ("completed", 2));
    let events = "enqueued\nstarted 1\nfailed 1 timeout\nstarted 2\ncompleted 2";
    world.eventually_reads(&receipt.run_id, events).await;
    calls.extend(next.calls());
    assert_eq!(calls.len(), 2);
    node.stop().await;
    world.history(&[receipt], calls).await.assert_sound();
}

/// Given a handler that works beyond its time limit, when the limit is reached, then it gets a request to stop, and its
/// later answer changes nothing.
#[tokio::test]
async fn a_handler_learns_when_its_time_is_over() {
    let world = world().await;
    let limits = "timeout = '500ms'\nmax_attempts = 1";
    let node = world.node().with("types.silent", &served_by("remote", limits)).start().await;
    let mut cancels = world.listen("longshore.cancel.default.*").await;
    let (late, mut answered) = mpsc::unbounded_channel();
    let dead = Arc::new(Notify::new());
    let gate = Arc::clone(&dead);
    let _handler = world
        .handler("silent")
        .start(move |job: Job| {
            let (gate, late) = (Arc::clone(&gate), late.clone());
            async move {
                let mut is_cancelled = Some(false);
                while is_cancelled == Some(false) {
                    is_cancelled = job.ask("heartbeat", "").await;
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                gate.notified().await;
                late.send(is_cancelled).unwrap();
                Reply::json(json!("too late"))
            }
        })
        .await;
    let receipt = world.publish("silent").send("{}").await.unwrap();
    let subject = format!("longshore.cancel.default.{}", receipt.run_id);
    cancels.until("the request to stop", |live| live.subject == subject).await;

    let end = world.wait(&receipt.run_id).await;
    dead.notify_one();

    assert_eq!((end.state.as_str(), end.error.unwrap().kind.as_str()), ("dead", "timeout"));
    assert_eq!(answered.recv().await, Some(Some(true)), "the answer to a signal said so");
    world.client().flush().await.unwrap();
    node.stop().await;
    let record = world.record(&receipt.run_id).await.unwrap();
    assert_eq!((record.state.as_str(), record.result), ("dead", None));
    world.history(&[receipt], Vec::new()).await.assert_sound();
}

/// Given jobs that wait in their handler's own queue, when it says that it begins one, then the time limit counts from
/// there: none is lost for having waited. One whose handler never says so has its limit from the request on.
#[tokio::test]
async fn time_counts_from_when_a_handler_says_that_it_has_begun() {
    const WORK: Duration = Duration::from_millis(1_500);
    let world = world().await;
    let limit = served_by("remote", &format!("timeout = '2500ms'\nslots = 2\nmax_attempts = 1\n{AT_ONCE}"));
    let node = world.node().with("types.says", &limit).with("types.silent", &limit).start().await;
    // One at a time, as nats-py has it, although the node sends two.
    let handle = |job_type: &'static str, says: bool| {
        let one = Arc::new(Semaphore::new(1));
        world.handler(job_type).start(move |job: Job| {
            let one = Arc::clone(&one);
            async move {
                let _permit = one.acquire_owned().await.unwrap();
                if says {
                    job.signal("started", "").await;
                }
                tokio::time::sleep(WORK).await;
                Reply::json(json!("done"))
            }
        })
    };
    let (_says, _silent) = (handle("says", true).await, handle("silent", false).await);
    let kinds = async |job_type: &str| {
        let jobs = world.publish(job_type).many((0..2).map(|number| json!(number))).await;
        let mut states = Vec::new();
        for receipt in &jobs {
            states.push(world.wait(&receipt.run_id).await.state);
        }
        states.sort();
        states
    };
    // Once the node knows that no slots are announced, it sends two at once.
    for job_type in ["says", "silent"] {
        let first = world.publish(job_type).json(json!(0)).await;
        assert_eq!(world.wait(&first).await.state, "completed");
    }
    assert_eq!(kinds("says").await, ["completed", "completed"]);
    assert_eq!(kinds("silent").await, ["completed", "dead"], "the second has waited for too long");
    node.stop().await;
}

/// Given handlers of one tenant and of all tenants, when jobs arrive, then each job is sent once, to a handler of its
/// own tenant.
#[tokio::test]
async fn each_job_is_asked_of_one_handler() {
    let world = world().await;
    let node = world.node().start().await;
    let answer = |who: &'static str| move |_: Job| async move { Reply::json(json!(who)) };
    let acme = world.handler("split").tenant("acme").start(answer("acme")).await;
    let first = world.handler("split").tenant("other").start(answer("first")).await;
    let second = world.handler("split").tenant("other").start(answer("second")).await;
    let mut receipts = world.publish("split").tenant("acme").many((0..20).map(|number| json!(number))).await;
    receipts.extend(world.publish("split").tenant("other").many((0..60).map(|number| json!(number))).await);

    for receipt in &receipts {
        let end = world.wait_as(&receipt.tenant, &receipt.run_id, Duration::from_secs(60)).await;
        let by = end.result.unwrap();
        assert_eq!(receipt.tenant == "acme", by == "acme", "{} of {}", receipt.run_id, receipt.tenant);
    }

    assert_eq!((acme.calls().len(), first.calls().len() + second.calls().len()), (20, 60));
    node.stop().await;
    let calls = [acme, first, second].iter().flat_map(longshore_harness::Handler::calls).collect();
    let mut history = world.history(&receipts, calls).await;
    history.rules.calls_complete = true;
    history.assert_sound();
}
