//! One trace shows a job's whole way, and no collector can disturb a job.

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use futures_util::StreamExt as _;
use longshore_harness::collector::{Collector, Protocol, attribute, hex};
use longshore_harness::{Job, Live, Node, NodeBuilder, Reply, Scrape, World, eventually};
use longshore_natsd::{Log, Process};
use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::gateway::head_and_body;
use crate::http::on_a_free_port;
use crate::{WITHIN, served_by, world};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PUBLISHER: &str = "00f067aa0ba902b7";

/// What a publisher says of its own span.
fn context(flags: &str) -> String {
    format!("00-{TRACE}-{PUBLISHER}-{flags}")
}

/// A node that exports to this collector as the environment says.
fn traced<'w>(world: &'w World, collector: &Collector) -> NodeBuilder<'w> {
    world.node().env("OTEL_EXPORTER_OTLP_ENDPOINT", &collector.url)
}

fn is_error(span: &Span) -> bool {
    span.status.as_ref().is_some_and(|status| status.code() == StatusCode::Error)
}

/// Fails this many times, and passes on each call with the context that it got.
async fn failing_first(world: &World, times: u32) -> (longshore_harness::Handler, mpsc::UnboundedReceiver<Job>) {
    let (sender, asked) = mpsc::unbounded_channel();
    let calls = AtomicU32::new(0);
    let handler = world.handler("mail.send").start(move |job: Job| {
        let fails = calls.fetch_add(1, Ordering::Relaxed) < times;
        sender.send(job.clone()).unwrap();
        async move {
            job.ask("log", "trying").await;
            if fails { Reply::error(503, "not now") } else { Reply::json(json!("sent")) }
        }
    });
    (handler.await, asked)
}

/// The context that a handler got: trace, span, flags.
fn trace_context(job: &Job) -> [String; 3] {
    let text = job.headers.get("traceparent").unwrap().as_str().to_owned();
    let parts: Vec<&str> = text.split('-').collect();
    [parts[1], parts[2], parts[3]].map(str::to_owned)
}

/// Given a job with its publisher's context, when its remote handler fails twice, once with a short and once with a
/// longer wait, then there is a span for each wait and attempt, all of the publisher's trace and with the publisher's
/// span as parent, and the handler's own spans can hang from its attempt's.
#[tokio::test]
async fn a_job_with_two_failures_is_one_trace_from_its_publisher_to_its_handler() {
    let (world, collector) = (world().await, Collector::start(Protocol::Http).await);
    let backoff = "backoff = { base = '300ms', factor = 5.0, max = '1500ms', jitter = 'none' }";
    let node = traced(&world, &collector).env("OTEL_SERVICE_NAME", "jobs").with("types.\"mail.send\"", backoff);
    let node = node.start().await;
    let (_handler, mut asked) = failing_first(&world, 2).await;
    let publish = world.publish("mail.send").tenant("acme").header("traceparent", &context("01"));
    let run = publish.header("tracestate", "vendor=1").json(json!({"to": "a@b.c"})).await;
    let end = world.wait_as("acme", &run, Duration::from_secs(60)).await;
    assert_eq!((end.state.as_str(), end.attempts.len()), ("completed", 3));

    let spans = collector.spans(6, |span| attribute(span, "longshore.run_id") == run).await;
    for span in &spans {
        assert_eq!((hex(&span.trace_id), hex(&span.parent_span_id)), (TRACE.to_owned(), PUBLISHER.to_owned()));
        assert_eq!([attribute(span, "messaging.system"), attribute(span, "longshore.tenant")], ["nats", "acme"]);
        assert!(span.end_time_unix_nano >= span.start_time_unix_nano);
    }
    let of = |name: &str| {
        let mut found: Vec<&Span> = spans.iter().filter(|span| span.name == name).collect();
        found.sort_by_key(|span| attribute(span, "longshore.attempt"));
        found
    };
    let attempts = of("process main");
    let waits = [of("wait main"), of("retry wait main")].concat();
    assert_eq!((attempts.len(), waits.len()), (3, 3));
    for (number, (span, wait)) in (1..).zip(attempts.iter().zip(&waits)) {
        let [trace, id, flags] = trace_context(&asked.recv().await.unwrap());
        assert_eq!((trace.as_str(), id, flags.as_str()), (TRACE, hex(&span.span_id), "01"), "attempt {number}");
        assert_eq!(span.kind(), SpanKind::Consumer);
        assert_eq!(attribute(span, "messaging.operation.type"), "process");
        assert_eq!(attribute(span, "longshore.attempt"), number.to_string());
        assert_eq!(
            (is_error(span), attribute(span, "error.type")),
            match number {
                3 => (false, String::new()),
                _ => (true, "retryable".to_owned()),
            }
        );
        assert_eq!(attribute(span, "longshore.state"), if number == 3 { "completed" } else { "retrying" });
        assert_eq!(wait.end_time_unix_nano, span.start_time_unix_nano, "a wait ends where its attempt begins");
        if number > 1 {
            let before = attempts[number - 2];
            assert_eq!(wait.start_time_unix_nano, before.end_time_unix_nano);
        }
    }
    let resource = collector.received().resource;
    assert!(resource.contains(&"service.name=jobs".to_owned()), "{resource:?}");
    assert!(resource.contains(&format!("service.instance.id={}", node.name())), "{resource:?}");
    let ids: std::collections::BTreeSet<_> = collector.received().spans.into_iter().map(|span| span.span_id).collect();
    assert_eq!(ids.len(), 6, "each span has an id of its own, and none came twice");
    assert_eq!(lines_about_runs(&node), 3, "one of each attempt");
}

/// Given the example handler in Python, whose folder is gone for two attempts, then the attempts that it was asked for,
/// the waits between them and the publisher's span are one trace, and what it was sent are the attempts' spans.
#[tokio::test]
async fn a_handler_in_python_gets_the_span_of_its_attempt() {
    let (world, collector) = (world().await, Collector::start(Protocol::Http).await);
    let (packages, folder) = (world.dir().join("packages"), world.dir().join("reports"));
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "install", "--quiet", "nats-py", "--target"]).arg(&packages);
    let said = tokio::task::spawn_blocking(move || pip.output()).await.unwrap();
    if !said.is_ok_and(|said| said.status.success()) {
        return eprintln!("no packages for Python can be had here: this test is left out");
    }
    let backoff = "backoff = { base = '300ms', factor = 20.0, max = '6s', jitter = 'none' }";
    let _node = traced(&world, &collector).with("types.\"report.render\"", backoff).start().await;
    let mut asked = world.client().subscribe("longshore.work.*.report.render").await.unwrap();
    let mut live = world.live_events("default").await;
    let log = Arc::new(Log::open(world.dir().join("python.log")).unwrap());
    let mut python = Command::new("python3");
    python.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/examples/render.py")).arg(&folder);
    python.env("PYTHONPATH", &packages).env("NATS_URL", world.urls());
    let (out, err, mark) = (Arc::clone(&log), Arc::clone(&log), log.mark());
    let out = Box::new(move |line: &str| out.push(line));
    let handler = Process::spawn(python, out, Box::new(move |line| err.push(line))).unwrap();
    let ready = log.seen(mark, |line| line.contains("Ctrl-C"));
    assert!(tokio::time::timeout(Duration::from_secs(60), ready).await.is_ok(), "{}", log.tail(40));
    std::fs::remove_dir(&folder).unwrap();

    let publish = world.publish("report.render").header("traceparent", &context("01"));
    let run = publish.json(json!({"number": 7, "title": "Sales"})).await;
    let second = |live: &Live| live.body["event"] == "failed" && live.body["attempt"] == 2;
    live.until("the second failure", second).await;
    std::fs::create_dir(&folder).unwrap();
    let end = world.wait(&run).await;
    assert_eq!((end.state.as_str(), end.attempts.len()), ("completed", 3));
    assert_eq!(end.rest["trace_id"], TRACE, "the record leads to the trace");
    assert!(folder.join("7.html").is_file());

    let spans = collector.spans(6, |span| attribute(span, "longshore.run_id") == run).await;
    let inside = |span: &Span| (hex(&span.trace_id), hex(&span.parent_span_id)) == (TRACE.into(), PUBLISHER.into());
    assert!(spans.len() == 6 && spans.iter().all(inside), "{spans:?}");
    let attempts = spans.iter().filter(|span| span.name == "process main");
    let mut attempts: Vec<_> = attempts.map(|span| (attribute(span, "longshore.attempt"), span)).collect();
    attempts.sort_by(|(a, _), (b, _)| a.cmp(b));
    let failed: Vec<bool> = attempts.iter().map(|(_, span)| is_error(span)).collect();
    assert_eq!(failed, [true, true, false]);
    for (number, span) in attempts {
        let request = asked.next().await.unwrap();
        let headers = request.headers.unwrap();
        assert_eq!(headers.get("Longshore-Attempt").unwrap().as_str(), number);
        let parent = headers.get("traceparent").unwrap().as_str().to_owned();
        assert_eq!(parent, format!("00-{TRACE}-{}-01", hex(&span.span_id)));
    }
    handler.kill_now();
}

/// Asserts that each line of a node's log that names a run says its tenant, attempt and trace, too, and returns how
/// many there are.
fn lines_about_runs(node: &Node) -> usize {
    let lines = node.log().since(0).into_iter().filter_map(|line| serde_json::from_str::<Value>(&line).ok());
    let about: Vec<Value> = lines.filter(|line| line.get("run_id").is_some()).collect();
    for line in &about {
        let trace = line["trace_id"].as_str().unwrap_or_default();
        assert!(line["tenant"].is_string() && line["attempt"].is_u64() && trace.len() == 32, "{line}");
    }
    about.len()
}

/// Given a submission without a context, over gRPC, when its run dies and is replayed, then the trace begins with the
/// submission, and has the dead letter below the last attempt and the replay, which links the dead letter, above the
/// next one.
#[tokio::test]
async fn a_submission_a_dead_letter_and_its_replay_are_one_trace() {
    let (world, collector) = (world().await, Collector::start(Protocol::Grpc).await);
    let settings = format!("endpoint = '{}'\nprotocol = 'grpc'", collector.url);
    let node = world.node().with("telemetry", &settings).with("types.flaky", &served_by("fail", "max_attempts = 1"));
    let _node = node.start().await;
    let run = world.submit(json!({"type": "flaky", "payload": {"times": 1}})).await;
    assert_eq!(world.wait(&run).await.state, "dead");
    world.eventually_dead_letters(1).await;
    let replay = json!({"run_id": run, "set": {"payload": {"times": 0}}});
    assert_eq!(world.request("dlq.replay", replay).await["replayed"], 1);
    assert_eq!(world.wait(&run).await.state, "completed");

    let spans = collector.spans(7, |span| attribute(span, "longshore.run_id") == run).await;
    let one = |name: &str, round: &str| {
        let found = spans.iter().find(|span| span.name == name && attribute(span, "longshore.round") == round);
        found.unwrap_or_else(|| panic!("no {name} in round {round}")).clone()
    };
    let (root, first, dead_letter) = (one("send main", ""), one("process main", "1"), one("send dead letters", "1"));
    let (replay, second) = (one("replay main", "2"), one("process main", "2"));
    assert!(spans.iter().all(|span| span.trace_id == root.trace_id));
    assert_eq!((root.parent_span_id.len(), root.kind()), (0, SpanKind::Producer));
    assert_eq!(first.parent_span_id, root.span_id);
    assert_eq!(dead_letter.parent_span_id, first.span_id);
    assert_eq!(replay.parent_span_id, root.span_id);
    assert_eq!(replay.links.iter().map(|link| link.span_id.clone()).collect::<Vec<_>>(), [dead_letter.span_id]);
    assert_eq!(second.parent_span_id, replay.span_id);
    for span in &spans {
        let above = spans.iter().find(|other| other.span_id == span.parent_span_id);
        let is_within = above.is_none_or(|above| above.start_time_unix_nano <= span.start_time_unix_nano);
        assert!(is_within, "{} begins before {}, which it is a part of", span.name, above.unwrap().name);
    }
    assert_eq!((is_error(&first), is_error(&second)), (true, false));
    let resource = collector.received().resource;
    assert!(resource.contains(&"service.name=longshore".to_owned()), "{resource:?}");
}

/// Given a trace context in the headers of a request, when it submits a job that has none, then job and handler are
/// part of that trace, with what the caller's tracing system has added.
#[tokio::test]
async fn a_submission_continues_the_trace_of_its_request() {
    let (world, collector) = (world().await, Collector::start(Protocol::Http).await);
    let _node = traced(&world, &collector).start().await;
    let (_handler, mut asked) = failing_first(&world, 0).await;
    let mut headers = async_nats::HeaderMap::new();
    headers.insert("traceparent", context("01"));
    headers.insert("tracestate", "vendor=a");
    let body = json!({"type": "mail.send", "payload": {}}).to_string();
    let request = async_nats::Request::new().headers(headers).payload(body.into());
    world.client().send_request("longshore.api.default.submit", request).await.unwrap();

    let job = asked.recv().await.unwrap();
    assert_eq!((trace_context(&job)[0].as_str(), job.headers.get("tracestate").unwrap().as_str()), (TRACE, "vendor=a"));
    let spans = collector.spans(3, |span| hex(&span.trace_id) == TRACE).await;
    assert!(spans.iter().all(|span| span.trace_state == "vendor=a"), "{spans:?}");
    let root = spans.iter().find(|span| span.name == "send main").unwrap();
    assert_eq!(hex(&root.parent_span_id), PUBLISHER);
}

/// Given a request over HTTP in a trace, then its span hangs from the client's, and the job's from it; a problem names
/// its trace; reading without a context makes no trace.
#[tokio::test]
async fn a_request_over_http_has_a_span() {
    let (world, collector) = (world().await, Collector::start(Protocol::Http).await);
    let node = on_a_free_port(traced(&world, &collector)).start().await;
    let parent = format!("traceparent: {}", context("01"));
    let post = |path: &str, body: &str, header: &str| {
        head_and_body(&node, path, &["-H", "Content-Type: application/json", "-H", header, "-d", body])
    };
    let (_, body) = post("/v1/jobs", r#"{"type":"noop"}"#, &parent);
    assert!(body.contains("run_id"), "{body}");
    let spans = collector.spans(4, |span| hex(&span.trace_id) == TRACE).await;
    let named = |name: &str| spans.iter().find(|span| span.name == name).unwrap();
    let request = named("POST /v1/jobs");
    assert_eq!((hex(&request.parent_span_id).as_str(), request.kind), (PUBLISHER, 2), "a server's span");
    assert_eq!(attribute(request, "http.response.status_code"), "201");
    assert_eq!(named("send main").parent_span_id, request.span_id);

    let _ = head_and_body(&node, "/v1/runs", &[]);
    let (_, refused) = post("/v1/jobs", "{}", "X-None: 1");
    let refused: Value = serde_json::from_str(&refused).unwrap();
    let trace = refused["trace_id"].as_str().unwrap().to_owned();
    let all = collector.spans(1, |span| hex(&span.trace_id) == trace).await;
    assert_eq!(
        (all[0].name.as_str(), attribute(&all[0], "http.response.status_code")),
        ("POST /v1/jobs", "400".into())
    );
    assert!(collector.spans(0, |span| span.name.starts_with("GET")).await.is_empty());
}

/// Given an attempt whose node is killed, when another node settles it and tries again, then all of this is in the same
/// trace, and the dead node's attempt is the span that its handler was sent.
#[tokio::test]
async fn a_trace_survives_the_death_of_a_node() {
    let (world, collector) = (world().await, Collector::start(Protocol::Http).await);
    let of = |name: &str| traced(&world, &collector).name(name).with("node", "lease = '2s'");
    let node = of("n1").start().await;
    let (sender, mut asked) = mpsc::unbounded_channel();
    let _handler = world
        .handler("mail.send")
        .start(move |job: Job| {
            sender.send(job.clone()).unwrap();
            async move { if job.attempt == 1 { Reply::silence() } else { Reply::json(json!(1)) } }
        })
        .await;
    // No context: nodes must agree on a trace all the same.
    let run = world.publish("mail.send").json(json!({})).await;
    let first = trace_context(&asked.recv().await.unwrap());
    eventually("a record that says it runs", Duration::from_secs(60), async || {
        let state = world.request("runs.get", json!({"run_id": run})).await["state"].clone();
        if state == "running" { Ok(()) } else { Err(state) }
    })
    .await;
    node.kill9().await;
    let other = of("n2").start().await;
    let end = world.wait_as("default", &run, Duration::from_secs(120)).await;
    assert_eq!(end.state, "completed");

    let spans = collector.spans(2, |span| span.name == "process main").await;
    let of = |number: &str| spans.iter().find(|span| attribute(span, "longshore.attempt") == number).unwrap();
    assert_eq!([hex(&of("1").trace_id), hex(&of("1").span_id)], first[..2], "the span of the attempt that was lost");
    assert_eq!(attribute(of("1"), "error.type"), "lease_expired");
    let line = crate::logged(other.log(), "its holder lost the lease").await;
    let line: Value = serde_json::from_str(&line).unwrap();
    assert_eq!((&line["trace_id"], &line["run_id"]), (&json!(first[0]), &json!(run)), "{line}");
    assert_eq!((&line["tenant"], &line["attempt"]), (&json!("default"), &json!(1)), "{line}");
    assert!(lines_about_runs(&other) >= 1);
    let second = trace_context(&asked.recv().await.unwrap());
    assert_eq!([hex(&of("2").trace_id), hex(&of("2").span_id)], second[..2]);
    assert_eq!(first[0], second[0], "one trace");
    let root = collector.spans(1, |span| span.name == "send main").await;
    assert_eq!((root.len(), &root[0].span_id), (1, &of("2").parent_span_id));
}

/// Given jobs without a readable context that are moved before anybody starts them, or never start, then each trace has
/// one root, and no span hangs from one that nobody wrote.
#[tokio::test]
async fn a_trace_has_a_root_whatever_happens_before_the_first_attempt() {
    let (world, collector) = (world().await, Collector::start(Protocol::Http).await);
    let node =
        traced(&world, &collector).with("types.slow", &served_by("noop", "rate_limit = { rate = 1, per = '2s' }"));
    let node = node.with("types.fails", &served_by("fail", "max_attempts = 1")).start().await;
    let delayed = world.publish("noop").header("Longshore-Delay", "200ms").json(json!({})).await;
    let garbled =
        world.publish("noop").header("Longshore-Delay", "200ms").header("traceparent", "garbage").json(json!({})).await;
    let limited = world.publish("slow").many((0..2).map(|_| json!({}))).await.into_iter().map(|job| job.run_id);
    let dies = world.publish("fails").header("Longshore-Delay", "200ms").json(json!({"times": 1})).await;
    let invalid = world.publish("noop").header("Longshore-Bogus", "1").json(json!({})).await;
    let runs: Vec<String> = [delayed, garbled, dies, invalid].into_iter().chain(limited).collect();
    for run in &runs {
        world.wait(run).await;
    }
    world.eventually_dead_letters(2).await;
    // The last spans are sent as the node ends.
    assert!(node.stop().await.success());

    for run in &runs {
        let spans = collector.spans(1, |span| attribute(span, "longshore.run_id") == *run).await;
        let known: Vec<_> = spans.iter().map(|span| &span.span_id).collect();
        let shown = || spans.iter().map(|span| (&span.name, hex(&span.parent_span_id))).collect::<Vec<_>>();
        let roots = spans.iter().filter(|span| span.parent_span_id.is_empty()).count();
        assert_eq!(roots, 1, "{run}: {:?}", shown());
        let hangs = |parent: &Vec<u8>| parent.is_empty() || known.contains(&parent);
        assert!(spans.iter().all(|span| hangs(&span.parent_span_id)), "{run}: {:?}", shown());
        assert!(spans.iter().all(|span| span.trace_id == spans[0].trace_id));
    }
}

/// Given a job that its handler snoozes once, then the trace has the wait before and the wait after, one behind the
/// other, and only the second says why.
#[tokio::test]
async fn a_wait_says_what_it_was_for() {
    let (world, collector) = (world().await, Collector::start(Protocol::Http).await);
    let node = traced(&world, &collector).start().await;
    let asked = std::sync::atomic::AtomicUsize::new(0);
    let handler = world.handler("mail.send").start(move |_| {
        let first = asked.fetch_add(1, std::sync::atomic::Ordering::SeqCst) == 0;
        async move { if first { Reply::snooze("1500ms") } else { Reply::json(json!(1)) } }
    });
    let _handler = handler.await;
    let run = world.publish("mail.send").json(json!({})).await;
    assert_eq!(world.wait(&run).await.state, "completed");

    let of = |name: &'static str| move |span: &Span| span.name == name;
    let (waits, attempts) = (collector.spans(2, of("wait main")).await, collector.spans(2, of("process main")).await);
    assert!(node.stop().await.success());
    let starts = |span: &&Span| span.start_time_unix_nano;
    let (first, second) = (waits.iter().min_by_key(starts).unwrap(), waits.iter().max_by_key(starts).unwrap());
    let snoozed = attempts.iter().min_by_key(starts).unwrap();
    let deferred = [first, second].map(|span| attribute(span, "longshore.deferred"));
    assert_eq!(deferred, ["", "snoozed"]);
    assert!(first.end_time_unix_nano <= snoozed.start_time_unix_nano);
    assert_eq!(second.start_time_unix_nano, snoozed.end_time_unix_nano);
}

/// Given runs that wait for their time, in their lane and for their next attempt, when they are cancelled, then each
/// trace says how long that last wait was, under its publisher's span if there is one, with what its tracing system has
/// added.
#[tokio::test]
async fn a_run_that_is_cancelled_while_it_waits_has_that_wait_in_its_trace() {
    let (world, collector) = (world().await, Collector::start(Protocol::Http).await);
    let node = traced(&world, &collector);
    let node = node.with("types.fails", &served_by("fail", "backoff = { base = '10m' }"));
    let node = node.with("queues.main", "").with("queues.bulk", "").start().await;
    let mut live = world.live_events("default").await;
    let publish = async |job_type, delay| {
        let job = world.publish(job_type).header("traceparent", &context("01")).header("tracestate", "vendor=a,b=c");
        job.header("Longshore-Delay", delay).json(json!({})).await
    };
    let delayed = publish("noop", "10m").await;
    let bare = world.publish("noop").header("Longshore-Delay", "10m").json(json!({})).await;
    let retrying = publish("fails", "1ms").await;
    world.try_request("_all", "queues.pause", json!({"queue": "bulk"})).await.unwrap();
    let unseen = world.publish("noop").queue("bulk").json(json!({})).await;
    live.until_published("failed", &retrying).await;
    eventually("schedules of three runs", WITHIN, async || {
        let stored = world.stored("LONGSHORE_SCHEDULES").await;
        if stored == 3 { Ok(()) } else { Err(format!("{stored} messages")) }
    })
    .await;
    for run in [&delayed, &bare, &retrying, &unseen] {
        assert_eq!(world.request("runs.cancel", json!({"run_id": run})).await["state"], "cancelled");
    }
    assert!(node.stop().await.success());

    let cancelled = |run: &str| {
        let of = |span: &Span| attribute(span, "longshore.run_id") == run;
        let found = collector.received().spans;
        let spans: Vec<Span> = found.into_iter().filter(|span| of(span)).collect();
        let ended = spans.iter().filter(|span| attribute(span, "longshore.state") == "cancelled");
        let [wait] = ended.collect::<Vec<_>>()[..] else { panic!("{run}: {spans:?}") };
        (wait.clone(), spans)
    };
    for (run, name) in [(&delayed, "wait main"), (&retrying, "retry wait main")] {
        let (wait, _) = cancelled(run);
        assert_eq!((wait.name.as_str(), wait.trace_state.as_str()), (name, "vendor=a,b=c"));
        assert_eq!((hex(&wait.trace_id), hex(&wait.parent_span_id)), (TRACE.to_owned(), PUBLISHER.to_owned()));
        assert!(wait.end_time_unix_nano >= wait.start_time_unix_nano);
    }
    let (wait, spans) = cancelled(&bare);
    let root = spans.iter().find(|span| span.name == "send main").unwrap();
    assert_eq!((&wait.parent_span_id, &wait.trace_id), (&root.span_id, &root.trace_id));
    let (wait, spans) = cancelled(&unseen);
    assert!((wait.name.as_str(), spans.len()) == ("wait bulk", 1) && wait.parent_span_id.is_empty(), "{spans:?}");
}

/// Given publishers that have decided against a trace, then nothing is exported, and the handler is sent that decision.
#[tokio::test]
async fn a_publishers_decision_against_a_trace_holds() {
    let (world, collector) = (world().await, Collector::start(Protocol::Http).await);
    let node = traced(&world, &collector).start().await;
    let (_handler, mut asked) = failing_first(&world, 0).await;
    let run = world.publish("mail.send").header("traceparent", &context("00")).json(json!({})).await;
    world.wait(&run).await;
    let [trace, _, flags] = trace_context(&asked.recv().await.unwrap());
    assert_eq!((trace.as_str(), flags.as_str()), (TRACE, "00"));
    let traced = world.publish("mail.send").json(json!({})).await;
    world.wait(&traced).await;
    // Draining exports what is left.
    assert!(node.stop().await.success());
    let found = collector.received().spans;
    assert!(!found.is_empty() && found.iter().all(|span| attribute(span, "longshore.run_id") == traced), "{found:?}");
}

/// Given a collector that is not there, by HTTP and by gRPC, then no job is lost or waits for it.
#[tokio::test]
async fn no_collector_that_is_away_can_disturb_a_job() {
    let free = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let nobody = format!("http://{}", free.local_addr().unwrap());
    drop(free);
    for protocol in ["http/protobuf", "grpc"] {
        is_not_disturbed_by(&nobody, protocol, true).await;
    }
}

/// Given a collector that refuses, then no job is lost or waits for it.
#[tokio::test]
async fn no_collector_that_refuses_can_disturb_a_job() {
    for (kind, protocol) in [(Protocol::Refuses, "http/protobuf"), (Protocol::GrpcRefuses, "grpc")] {
        is_not_disturbed_by(&Collector::start(kind).await.url, protocol, true).await;
    }
}

/// Given a collector that takes connections or calls and never answers, then no job is lost or waits for it.
#[tokio::test]
async fn no_collector_that_hangs_can_disturb_a_job() {
    for (kind, protocol) in
        [(Protocol::Hangs, "http/protobuf"), (Protocol::Hangs, "grpc"), (Protocol::GrpcHangs, "grpc")]
    {
        is_not_disturbed_by(&Collector::start(kind).await.url, protocol, false).await;
    }
}

/// Thousands of jobs run, none is lost or waits for the collector, no more spans are kept than the bound, what is lost
/// is counted and said once, and the node ends in time.
async fn is_not_disturbed_by(url: &str, protocol: &str, answers: bool) {
    let world = world().await;
    let settings = format!("endpoint = '{url}'\nprotocol = '{protocol}'\nsample_ratio = 1.0");
    let node = world.node().with("http", "listen = '127.0.0.1:0'").with("telemetry", &settings).start().await;
    let receipts = world.publish("noop").many((0..JOBS).map(|number| json!({"n": number}))).await;
    let states = world.ends(&receipts, WITHIN).await;
    assert!(states.iter().all(|state| state == "completed"), "{states:?}");
    let lost = |scrape: &Scrape, reason| scrape.sum("longshore_spans_dropped_total", &[("reason", reason)]) as usize;
    let said = |node: &Node| {
        let lines = node.log().since(0);
        lines.iter().filter(|line| line.contains("spans are lost, jobs go on")).count()
    };
    let scrape = eventually(&format!("lost spans of {protocol}, {answers}"), WITHIN, async || {
        let scrape = Scrape::of(&node).await;
        let kept = SPANS - lost(&scrape, "queue_full") - lost(&scrape, "not_exported");
        let is_over = if answers { kept == 0 } else { kept <= KEPT && lost(&scrape, "not_exported") > 0 };
        if is_over && said(&node) == 1 { Ok(scrape) } else { Err(format!("{kept} kept, said {} times", said(&node))) }
    })
    .await;
    assert_eq!(scrape.sum("longshore_spans_exported_total", &[]), 0.0);
    let asked = std::time::Instant::now();
    assert!(node.stop().await.success());
    // The last spans have three seconds. Nothing else of an idle node takes as long.
    assert!(asked.elapsed() < Duration::from_secs(8), "{protocol}, {answers}: {:?}", asked.elapsed());
    let last = node.log().since(0).iter().any(|line| line.contains("the last spans are lost"));
    assert_eq!((said(&node), last), (1, !answers), "{protocol}, {answers}");
}

/// Jobs of one round, and their spans: of the publish, the wait and the attempt of each.
const JOBS: usize = 3_000;
const SPANS: usize = 3 * JOBS;
/// Spans that a node keeps at most: those that wait, a batch, and the batch that is under way.
const KEPT: usize = 4_096 + 2 * 512;
