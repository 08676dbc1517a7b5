//! The API is asked over HTTP, by a foreign client: curl.

use std::process::{Command, Stdio};
use std::time::Duration;

use futures_util::StreamExt as _;
use longshore_harness::{Node, eventually};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};

use crate::http::on_a_free_port;
use crate::{served_by, workers, world};

/// An answer: its head, and its body as JSON.
struct Answer {
    head: String,
    body: Value,
}

impl Answer {
    fn status(&self) -> u16 {
        self.head.split(' ').nth(1).unwrap().parse().unwrap()
    }

    fn has(&self, header: &str) -> bool {
        self.head.lines().any(|line| line.eq_ignore_ascii_case(header))
    }
}

/// What curl gets at this path: head and body.
pub(crate) fn head_and_body(node: &Node, path: &str, with: &[&str]) -> (String, String) {
    let url = format!("http://{}{path}", node.http());
    let output = Command::new("curl").args(["-sS", "-i", "-m", "60"]).args(with).arg(url).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let (head, body) =
        text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{}", String::from_utf8_lossy(&output.stderr)));
    (head.to_owned(), body.to_owned())
}

/// The same, of an answer that is JSON.
fn curl(node: &Node, path: &str, with: &[&str]) -> Answer {
    let (head, body) = head_and_body(node, path, with);
    let body = serde_json::from_str(&body).unwrap_or_else(|error| panic!("{error}: {head} {body}"));
    Answer { head, body }
}

const JSON: [&str; 2] = ["-H", "Content-Type: application/json"];

fn ask(node: &Node, path: &str, body: &Value) -> Answer {
    curl(node, path, &[JSON[0], JSON[1], "-d", &body.to_string()])
}

/// A tenant with a rate limit reads in each answer how much of it is left; one without reads nothing of it.
#[tokio::test]
async fn a_tenant_with_a_rate_limit_reads_what_is_left_of_it() {
    let world = world().await;
    let node =
        on_a_free_port(world.node()).with("tenants.small", "rate_limit = { rate = 2, per = '1h' }").start().await;
    let job = json!({"type": "noop"});
    for (status, left) in [(201, 1), (201, 0), (429, 0)] {
        let answer = ask(&node, "/v1/jobs?tenant=small", &job);
        assert_eq!(answer.status(), status, "{}", answer.head);
        assert!(answer.has("ratelimit-policy: \"tenant\";q=2;w=3600"), "{}", answer.head);
        let said = answer.head.lines().find_map(|line| line.strip_prefix("ratelimit: \"tenant\";")).unwrap();
        let (r, t) = said.trim().split_once(";t=").unwrap();
        assert!(t.parse::<u64>().unwrap() <= 3_600, "{said}");
        // A token that the node is asking for at this moment may be missing.
        assert!(r.strip_prefix("r=").unwrap().parse::<u64>().unwrap() <= left, "{said}");
        eventually("all that is left", Duration::from_secs(30), async || {
            let reads = curl(&node, "/v1/runs?tenant=small", &[]).head;
            if reads.contains(&format!("ratelimit: \"tenant\";r={left};t=")) { Ok(()) } else { Err(reads) }
        })
        .await;
    }
    let reads = curl(&node, "/v1/runs?tenant=small", &[]);
    assert!(reads.status() == 200 && reads.head.contains("ratelimit: \"tenant\";r="), "{}", reads.head);
    let without = ask(&node, "/v1/jobs", &job);
    assert!(!without.head.contains("ratelimit"), "{}", without.head);
}

/// A job goes in and its end comes out; a repeat is the same run, and another job under its key is refused.
#[tokio::test]
async fn every_endpoint_is_asked_over_http() {
    let world = world().await;
    let node = on_a_free_port(world.node()).start().await;

    let job = json!({"type": "echo", "payload": {"a": 1}, "idempotency_key": "k"});
    let taken = ask(&node, "/v1/api/submit", &job);
    assert_eq!((taken.status(), &taken.body["deduplicated"]), (200, &json!(false)), "{}", taken.head);
    assert!(taken.has("content-type: application/json; charset=utf-8") && taken.has("cache-control: no-store"));
    let run = json!({"run_id": taken.body["run_id"], "timeout_ms": 30_000});
    let ended = ask(&node, "/v1/api/runs.wait", &run);
    assert_eq!((&ended.body["state"], &ended.body["result"]), (&json!("completed"), &json!({"a": 1})));
    let repeat = ask(&node, "/v1/api/submit", &job);
    assert_eq!((&repeat.body["run_id"], &repeat.body["deduplicated"]), (&taken.body["run_id"], &json!(true)));
    let other = ask(&node, "/v1/api/submit", &json!({"type": "echo", "payload": 2, "idempotency_key": "k"}));
    assert_eq!((other.status(), &other.body["code"]), (422, &json!("idempotency_mismatch")), "{}", other.body);

    let nodes = curl(&node, "/v1/api/nodes.list", &["-X", "POST"]);
    assert_eq!(nodes.body["nodes"].as_array().map(Vec::len), Some(1), "{}", nodes.body);
    let acme = ask(&node, "/v1/api/runs.get?tenant=acme", &json!({"run_id": taken.body["run_id"]}));
    assert_eq!((acme.status(), &acme.body["code"]), (404, &json!("not_found")), "another tenant's run");
}

/// While NATS is away nobody waits long for an answer, and it names nothing of NATS.
#[tokio::test]
async fn without_nats_requests_are_refused_soon() {
    let world = world().await;
    let node = on_a_free_port(world.node()).start().await;
    let run = ask(&node, "/v1/jobs", &json!({"type": "noop"})).body["run_id"].as_str().unwrap().to_owned();
    world.server().kill9().await;
    eventually("a lost connection", Duration::from_secs(30), async || {
        let ready = head_and_body(&node, "/readyz", &[]).0;
        if ready.contains("503") { Ok(()) } else { Err(ready) }
    })
    .await;
    let job = r#"{"type":"noop","run_id":"own"}"#;
    for (path, with) in [
        (format!("/v1/runs/{run}?wait=1"), vec![]),
        ("/v1/events".to_owned(), vec![]),
        ("/v1/jobs".to_owned(), vec![JSON[0], JSON[1], "-d", job]),
    ] {
        let asked = Instant::now();
        let answer = curl(&node, &path, &with);
        assert_eq!(answer.status(), 503, "{path}: {}", answer.body);
        assert!(asked.elapsed() < Duration::from_secs(20), "{path}: {:?}", asked.elapsed());
        let body = answer.body.to_string().to_lowercase();
        assert!(!body.contains("longshore_") && !body.contains('$'), "{path}: {body}");
    }
}

/// What cannot be asked is refused as HTTP has it, and says why.
#[tokio::test]
async fn bad_requests_are_refused_with_a_problem() {
    let world = world().await;
    let node = on_a_free_port(world.node()).start().await;
    let file = world.dir().join("large.json");
    std::fs::write(&file, vec![b' '; 9 << 20]).unwrap();
    let large = format!("@{}", file.display());

    for (path, with, status, code) in [
        ("/v1/api/submit", vec![JSON[0], JSON[1], "-d", r#"{"type":"echo","tpye":1}"#], 400, "malformed"),
        ("/v1/api/submit", vec![JSON[0], JSON[1], "-d", "{"], 400, "malformed"),
        ("/v1/api/submit", vec!["-d", "{}"], 415, "wrong_content_type"),
        ("/v1/api/submit", vec![JSON[0], JSON[1], "--data-binary", &large], 413, "too_large"),
        ("/v1/api/submit", vec![], 405, "wrong_method"),
        ("/v1/api/submit", vec!["-X", "POST", "-H", "Host: evil.example"], 403, "forbidden"),
        ("/v1/api/submit", vec!["-X", "POST", "-H", "Origin: http://evil.example"], 403, "forbidden"),
        ("/v1/api/runs.got", vec!["-X", "POST"], 404, "not_found"),
        ("/v1/nothing", vec![], 404, "not_found"),
    ] {
        let answer = curl(&node, path, &with);
        assert_eq!((answer.status(), &answer.body["code"]), (status, &json!(code)), "{path} {with:?}: {}", answer.body);
        assert!(answer.has("content-type: application/problem+json; charset=utf-8"), "{}", answer.head);
        assert_eq!(answer.has("allow: POST"), status == 405, "{}", answer.head);
    }
    let unknown = curl(&node, "/v1/runs/order-17/why", &[]);
    assert_eq!((unknown.status(), &unknown.body["run_id"]), (404, &json!("order-17")), "{}", unknown.body);
    assert_eq!(ask(&node, "/v1/api/runs.list", &json!({})).body["runs"], json!([]), "nothing is stored");
}

/// Jobs come in every form: with a key, with a wait for the end, as bytes, as a batch and line by line.
#[tokio::test]
async fn jobs_are_submitted_in_every_form() {
    let world = world().await;
    let node = on_a_free_port(world.node()).start().await;
    let job = json!({"type": "echo", "payload": {"a": 1.50}}).to_string().replace("1.5", "1.50");
    let with = |header: &str, job: &str| curl(&node, "/v1/jobs", &[JSON[0], JSON[1], "-H", header, "-d", job]);

    let taken = with("Idempotency-Key: \"k\"", &job);
    let run_id = taken.body["run_id"].as_str().unwrap();
    assert_eq!(taken.status(), 201, "{}", taken.body);
    assert!(taken.has(&format!("location: /v1/runs/{run_id}")), "{}", taken.head);
    let repeat = with("Idempotency-Key: k", &job);
    assert_eq!((repeat.status(), &repeat.body["run_id"]), (200, &taken.body["run_id"]));
    let named = curl(&node, "/v1/api/submit", &[JSON[0], JSON[1], "-H", "Idempotency-Key: k", "-d", &job]);
    assert_eq!((named.status(), &named.body["run_id"]), (200, &taken.body["run_id"]), "{}", named.body);
    assert_eq!(named.body["deduplicated"], json!(true));
    assert_eq!(with("Idempotency-Key: k", r#"{"type":"echo"}"#).status(), 422);
    assert_eq!(with("Idempotency-Key: k", r#"{"type":"echo","idempotency_key":"l"}"#).status(), 400);

    let ended = with("Prefer: wait=60", &job);
    assert_eq!((ended.status(), &ended.body["state"]), (200, &json!("completed")), "{}", ended.body);
    assert!(ended.head.contains("wait=60"), "{}", ended.head);
    let waiting = with("Prefer: respond-async", r#"{"type":"echo","delay_ms":3600000}"#);
    assert_eq!((waiting.status(), &waiting.body["state"]), (202, &json!("scheduled")), "{}", waiting.body);
    assert!(waiting.has("preference-applied: respond-async") && waiting.head.contains("location: /v1/runs/"));

    let bytes = ["-H", "Content-Type: text/csv", "-H", "Longshore-Header-Source: shop", "--data-binary", "a,\u{e9}\n"];
    let raw = curl(&node, "/v1/jobs/never.served?priority=2&tags=x,y&tenant=acme", &bytes);
    assert_eq!(raw.status(), 201, "{}", raw.body);
    assert!(raw.head.contains("?tenant=acme"), "{}", raw.head);
    let cancelled = raw.body["run_id"].as_str().unwrap();
    let cancelled = curl(&node, &format!("/v1/runs/{cancelled}?tenant=acme"), &["-X", "DELETE"]);
    assert_eq!((&cancelled.body["state"], &cancelled.body["priority"]), (&json!("cancelled"), &json!(2)));
    assert_eq!(cancelled.body["tags"], json!(["x", "y"]), "{}", cancelled.body);

    let batch = ask(&node, "/v1/jobs", &json!({"jobs": [{"type": "echo"}, {"tpye": 1}]}));
    assert_eq!((&batch.body["jobs"][0]["state"], &batch.body["jobs"][1]["code"]), (&json!("enqueued"), &json!(400)));
    let jobs = r#"{"jobs":[{"type":"echo"}]}"#;
    for (path, form, body) in [
        ("/v1/jobs", JSON[1], jobs),
        ("/v1/jobs", "Content-Type: application/x-ndjson", &job),
        ("/v1/api/submit.batch", JSON[1], jobs),
    ] {
        let keyed = curl(&node, path, &["-H", form, "-H", "Idempotency-Key: k", "-d", body]);
        let said = (keyed.status(), &keyed.body["errors"][0]["pointer"]);
        assert_eq!(said, (400, &json!("/Idempotency-Key")), "{path} {form}");
    }
}

/// What a client says beside the body reaches the handler: its own headers, and the trace, whether nodes write traces
/// or not. A compressed body is refused, as no handler would know of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handler_gets_the_headers_that_came_over_http() {
    let world = world().await;
    let node = on_a_free_port(world.node()).start().await;
    let (jobs, mut called) = tokio::sync::mpsc::unbounded_channel();
    let handle = move |job: longshore_harness::Job| {
        jobs.send(
            ["traceparent", "x-of", "Content-Type"]
                .map(|name| job.headers.get(name).map(|value| value.as_str().to_owned())),
        )
        .unwrap();
        async { longshore_harness::Reply::json(json!(1)) }
    };
    let _handler = world.handler("work").start(handle).await;
    let parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let trace = format!("traceparent: {parent}");
    let own = ["-H", "Longshore-Header-X-Of: a", "-H", "Longshore-Header-X-Of: b"];
    let raw =
        [&["-H", &trace, "-H", "Content-Type: text/csv", "-H", "Prefer: wait=60", "-d", "a,b"], &own[..]].concat();

    let run = curl(&node, "/v1/jobs/work", &raw);
    let [got, list, form] = called.recv().await.unwrap();
    assert_eq!([got.as_deref(), list.as_deref(), form.as_deref()], [Some(parent), Some("a, b"), Some("text/csv")]);
    assert_eq!(
        (run.status(), &run.body["trace_id"]),
        (200, &json!("4bf92f3577b34da6a3ce929d0e0e4736")),
        "{}",
        run.body
    );
    let compressed = curl(&node, "/v1/jobs/work", &["-H", "Content-Encoding: gzip", "-d", "a"]);
    assert_eq!((compressed.status(), &compressed.body["code"]), (415, &json!("wrong_content_type")));
}

/// Every path has `OPTIONS`, and says 405 and its methods to any other; nothing under `/v1` is kept by anybody.
#[tokio::test]
async fn each_path_says_which_methods_it_has() {
    let world = world().await;
    let node = on_a_free_port(world.node()).start().await;
    for (path, methods) in [
        ("/v1/jobs", "POST"),
        ("/v1/jobs/echo", "POST,GET,HEAD"),
        ("/v1/runs/r", "DELETE,GET,HEAD"),
        ("/v1/runs/r/stream", "GET,HEAD"),
        ("/v1/events", "GET,HEAD"),
        ("/v1/session", "GET,HEAD,DELETE,POST"),
        ("/v1/doctor", "GET,HEAD"),
        ("/healthz", "GET,HEAD"),
        ("/metrics", "GET,HEAD"),
        ("/openapi.json", "GET,HEAD"),
        ("/", "GET,HEAD"),
    ] {
        let sorted = |allow: &str| {
            let mut methods: Vec<String> = allow.split(',').map(|method| method.trim().to_owned()).collect();
            methods.sort_unstable();
            methods
        };
        let allowed = |head: &str| sorted(head.lines().find_map(|line| line.strip_prefix("allow: ")).unwrap());
        let wrong = curl(&node, path, &["-X", "PATCH"]);
        assert_eq!((wrong.status(), &wrong.body["code"]), (405, &json!("wrong_method")), "{path}: {}", wrong.head);
        assert_eq!(allowed(&wrong.head), sorted(methods), "{path}");
        let (options, _) = head_and_body(&node, path, &["-X", "OPTIONS"]);
        assert!(options.starts_with("HTTP/1.1 204 "), "{path}: {options}");
        assert_eq!(allowed(&options), sorted(methods), "{path}");
        assert!(!path.starts_with("/v1") || options.contains("cache-control: no-store"), "{path}: {options}");
    }
    assert!(curl(&node, "/v1/session", &[]).has("cache-control: no-store"));
    let (head, body) = head_and_body(&node, "/v1/runs", &["-I"]);
    assert!(head.starts_with("HTTP/1.1 200 ") && head.contains("etag: ") && body.is_empty(), "{head}");
}

/// Lines are answered in their order, 2,500 in three slices; a line that is no job harms no other.
#[tokio::test]
async fn lines_are_submitted_and_answered_in_their_order() {
    let world = world().await;
    let node = on_a_free_port(world.node()).start().await;
    let line = |number: u32| match number {
        1_700 => "no job".to_owned(),
        number => json!({"type": "noop", "run_id": format!("line-{number}")}).to_string(),
    };
    let file = world.dir().join("jobs.ndjson");
    std::fs::write(&file, (0..2_500).map(line).collect::<Vec<_>>().join("\n")).unwrap();

    let url = format!("http://{}/v1/jobs", node.http());
    let from = format!("@{}", file.display());
    let args = ["-sS", "-m", "60", "-H", "Content-Type: application/x-ndjson", "--data-binary", &from];
    let output = Command::new("curl").args(args).arg(url).output().unwrap();

    let answers = String::from_utf8(output.stdout).unwrap();
    let answers: Vec<Value> = answers.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(answers.len(), 2_500);
    for (number, answer) in (0..).zip(&answers) {
        match number {
            1_700 => assert_eq!(answer["error"], "malformed", "{answer}"),
            _ => assert_eq!(answer["run_id"], format!("line-{number}"), "{answer}"),
        }
    }
}

/// Lists go on by their links, one queue has its depth at the top, and what did not change is not sent again.
#[tokio::test]
async fn lists_and_queues_are_read_as_http_clients_expect_it() {
    let world = world().await;
    let node = on_a_free_port(world.node()).start().await;
    for number in 0..5 {
        let job = json!({"type": "noop", "run_id": format!("run-{number}"), "delay_ms": 3_600_000});
        assert_eq!(ask(&node, "/v1/jobs", &job).status(), 201);
    }

    let (mut path, mut seen) = ("/v1/runs?state=scheduled&limit=2".to_owned(), Vec::new());
    loop {
        let page = curl(&node, &path, &[]);
        seen.extend(page.body["runs"].as_array().unwrap().iter().map(|run| run["run_id"].as_str().unwrap().to_owned()));
        let link = page.head.lines().find_map(|line| line.strip_prefix("link: <"));
        let Some(next) = link else { break };
        path = next.strip_suffix(">; rel=\"next\"").unwrap().to_owned();
    }
    seen.sort_unstable();
    assert_eq!(seen, ["run-0", "run-1", "run-2", "run-3", "run-4"]);

    let queue = curl(&node, "/v1/queues/main", &[]);
    assert_eq!((&queue.body["queue"], &queue.body["depth"]), (&json!("main"), &json!(0)), "{}", queue.body);
    assert!(queue.head.contains("etag: "), "{}", queue.head);
    assert_eq!(curl(&node, "/v1/queues/nothing", &[]).status(), 404);

    let put = curl(&node, "/v1/schedules/s", &[JSON[0], JSON[1], "-X", "PUT", "-d", r#"{"type":"noop","every":"1h"}"#]);
    assert_eq!((put.status(), &put.body["id"]), (200, &json!("s")), "{}", put.body);
    let got = curl(&node, "/v1/schedules/s", &[]);
    let tag = got.head.lines().find_map(|line| line.strip_prefix("etag: ")).unwrap().to_owned();
    let (head, body) = head_and_body(&node, "/v1/schedules/s", &["-H", &format!("If-None-Match: {tag}")]);
    assert!(head.starts_with("HTTP/1.1 304 ") && head.contains(&format!("etag: {tag}")), "{head}");
    assert_eq!(body, "");
    let waited = curl(&node, "/v1/runs/run-0?wait=0", &[]);
    let tag_of_run = waited.head.lines().find_map(|line| line.strip_prefix("etag: ")).unwrap().to_owned();
    for known in [format!("\"a\", W/{tag_of_run}"), "*".to_owned()] {
        let (head, _) = head_and_body(&node, "/v1/runs/run-0", &["-H", &format!("If-None-Match: {known}")]);
        assert!(head.starts_with("HTTP/1.1 304 "), "{known}: {head}");
    }
    assert_eq!(curl(&node, "/v1/runs/run-0", &["-H", "If-None-Match: \"a\""]).status(), 200);
    assert_eq!(curl(&node, "/v1/jobs/none", &[]).body["run_id"], "none");
    assert_eq!(curl(&node, "/v1/schedules/s", &["-X", "DELETE"]).status(), 200);
    assert_eq!(curl(&node, "/v1/schedules/s", &[]).status(), 404);
}

/// The bytes of a request, sent as they are; the answer until the connection ends.
async fn raw(node: &Node, request: &[u8]) -> String {
    let mut stream = TcpStream::connect(node.http()).await.unwrap();
    stream.write_all(request).await.unwrap();
    let mut answer = Vec::new();
    // A reset is an end, too.
    let _ = timeout(Duration::from_secs(120), stream.read_to_end(&mut answer)).await.expect("the connection ends");
    String::from_utf8_lossy(&answer).into_owned()
}

/// Bodies that stop or break off, heads without end and tricks in paths are refused, and nothing of them is stored.
#[tokio::test]
async fn hostile_requests_are_refused_and_nothing_of_them_is_stored() {
    let world = world().await;
    let node = on_a_free_port(world.node()).start().await;
    let head = "Host: localhost\r\nContent-Type: application/json\r\nConnection: close\r\n";

    let half = format!("POST /v1/jobs HTTP/1.1\r\n{head}Content-Length: 100\r\n\r\n{{\"type\":\"echo\"}}");
    drop({
        let mut stream = TcpStream::connect(node.http()).await.unwrap();
        stream.write_all(half.as_bytes()).await.unwrap();
        stream
    });
    let slow = raw(&node, half.as_bytes()).await;
    assert!(slow.starts_with("HTTP/1.1 408 ") && slow.contains("too_slow"), "{slow}");
    let long = format!("POST /v1/jobs HTTP/1.1\r\n{head}X: {}\r\n\r\n", "a".repeat(20_000));
    assert!(raw(&node, long.as_bytes()).await.starts_with("HTTP/1.1 431 "));
    for path in ["a%2fb", "..", "%2e%2e", "a%0d%0aX:1", "%ff", &"x".repeat(300), "a?tenant=%3e", "a?since=%zz"] {
        for what in ["runs", "schedules"] {
            let answer = raw(&node, format!("GET /v1/{what}/{path} HTTP/1.1\r\n{head}\r\n").as_bytes()).await;
            assert!(answer.starts_with("HTTP/1.1 400 "), "{path}: {answer}");
            assert!(answer.contains("application/problem+json"), "{path}: {answer}");
        }
    }

    // JSON that is nested without end ends no node, and a body without a length is not read to its end.
    let deep = "[".repeat(400_000);
    for body in [format!(r#"{{"type":"echo","x":{deep}"#), format!(r#"{{"type":"echo","then":{deep}"#), deep] {
        let file = world.dir().join("deep.json");
        std::fs::write(&file, body).unwrap();
        let refused = curl(&node, "/v1/jobs", &[JSON[0], JSON[1], "--data-binary", &format!("@{}", file.display())]);
        assert_eq!((refused.status(), &refused.body["code"]), (400, &json!("malformed")), "{}", refused.body);
    }
    let mut endless = TcpStream::connect(node.http()).await.unwrap();
    let chunked = format!("POST /v1/jobs HTTP/1.1\r\n{head}Transfer-Encoding: chunked\r\n\r\n");
    endless.write_all(chunked.as_bytes()).await.unwrap();
    let piece = [&b"100000\r\n"[..], &[b' '; 1 << 20], b"\r\n"].concat();
    let mut sent = 0;
    while sent < 100 && endless.write_all(&piece).await.is_ok() {
        sent += 1;
    }
    assert!(sent < 100, "the connection ends behind 8 MiB");

    assert_eq!(curl(&node, "/v1/runs", &[]).body["runs"], json!([]));
}

/// Every answer has an id, the client's if it gives a short one, which a problem and the log repeat; requests are
/// counted by route, and no path of a client becomes a label.
#[tokio::test]
async fn requests_are_named_logged_and_counted_by_route() {
    let world = world().await;
    let node = on_a_free_port(world.node()).env("LONGSHORE_LOG", "info,longshore::http=debug").start().await;

    let named = curl(&node, "/v1/runs/none-such", &["-H", "X-Request-Id: trip-7"]);
    assert!(named.status() == 404 && named.has("x-request-id: trip-7"), "{}", named.head);
    assert_eq!(named.body["request_id"], "trip-7");
    let unsafe_id = curl(&node, "/v1/runs", &["-H", "X-Request-Id: a b"]);
    assert!(unsafe_id.head.contains("x-request-id: ") && !unsafe_id.has("x-request-id: a b"), "{}", unsafe_id.head);
    assert_eq!(curl(&node, "/v1/nothing/secret-7", &[]).status(), 404);

    let scrape = longshore_harness::Scrape::of(&node).await;
    let count = |name: &str, labels: &[(&str, &str)]| scrape.sum(name, labels);
    let run = [("route", "/v1/runs/{run_id}"), ("method", "GET"), ("status", "404")];
    assert_eq!(count("longshore_http_requests_total", &run), 1.0);
    assert_eq!(count("longshore_http_request_duration_seconds_count", &run[..2]), 1.0);
    assert_eq!(count("longshore_http_requests_total", &[("route", "none"), ("status", "404")]), 1.0);
    let answered = |line: &str| line.contains("trip-7") && line.contains("answered");
    let line = timeout(Duration::from_secs(60), node.log().seen(0, answered)).await.unwrap();
    for part in ["longshore::http", "/v1/runs/{run_id}", "404", "\"http\""] {
        assert!(line.contains(part), "{part}: {line}");
    }
}

/// The document is there for everybody, and is OpenAPI 3.1 as its validator understands it, where that is installed.
#[tokio::test]
async fn the_document_of_the_api_is_valid() {
    let world = world().await;
    let node = on_a_free_port(world.node()).env("LONGSHORE_HTTP__AUTH", "keys").start().await;
    let document = curl(&node, "/openapi.json", &[]);
    assert_eq!((document.status(), &document.body["openapi"]), (200, &json!("3.1.0")), "{}", document.head);
    assert!(document.has("content-type: application/json; charset=utf-8"), "{}", document.head);

    let file = world.dir().join("openapi.json");
    std::fs::write(&file, document.body.to_string()).unwrap();
    let python = |args: &[&str]| Command::new("python3").args(args).arg(&file).output();
    if !python(&["-c", "import openapi_spec_validator"]).is_ok_and(|output| output.status.success()) {
        crate::skipped("the OpenAPI document is not validated, because python3 lacks openapi-spec-validator");
        return;
    }
    let output = python(&["-m", "openapi_spec_validator"]).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

/// A run is explained in words, and its payload comes back as it was sent, byte for byte, while it waits and once it is
/// dead; a browser does not show it as a page.
#[tokio::test]
async fn a_run_is_explained_and_its_payload_is_read() {
    let world = world().await;
    let node = workers(world.node(), 1).with("types.broken", &served_by("fail", "max_attempts = 1"));
    let node = on_a_free_port(node).start().await;
    let csv = ["-H", "Content-Type: text/csv", "--data-binary", "a,\u{e9}\n"];
    let submit = |path: &str| curl(&node, path, &csv).body["run_id"].as_str().unwrap().to_owned();
    let is_stored = |run: &str| {
        let (head, body) = head_and_body(&node, &format!("/v1/runs/{run}/payload"), &[]);
        assert!(head.starts_with("HTTP/1.1 200 ") && head.contains("content-type: text/csv"), "{head}");
        assert!(head.contains("content-disposition: attachment"), "{head}");
        assert_eq!(body, "a,\u{e9}\n");
    };

    for path in ["/v1/jobs/never.served", "/v1/jobs/never.served?run_id=mine", "/v1/jobs/noop?delay_ms=3600000"] {
        is_stored(&submit(path));
    }
    let dead = submit("/v1/jobs/broken");
    assert_eq!(curl(&node, &format!("/v1/runs/{dead}?wait=60"), &[]).body["state"], "dead");
    is_stored(&dead);
    let output = world.command(["runs", "payload", &dead]).output().await.unwrap();
    assert_eq!(output.stdout, "a,\u{e9}\n".as_bytes());
    let done = submit("/v1/jobs/noop");
    assert_eq!(curl(&node, &format!("/v1/runs/{done}?wait=60"), &[]).body["state"], "completed");
    let gone = curl(&node, &format!("/v1/runs/{done}/payload"), &[]);
    assert_eq!((gone.status(), &gone.body["code"]), (404, &json!("not_kept")), "{}", gone.body);

    // What was submitted as JSON is JSON, also where no type was named.
    let json = ask(&node, "/v1/jobs", &json!({"type": "noop", "payload": {"a": 1}, "delay_ms": 3_600_000})).body;
    let path = format!("/v1/runs/{}/payload", json["run_id"].as_str().unwrap());
    let (head, body) = head_and_body(&node, &path, &[]);
    assert!(head.contains("content-type: application/json; charset=utf-8") && body == r#"{"a":1}"#, "{head} {body}");

    let why = curl(&node, &format!("/v1/runs/{dead}/why"), &[]);
    let lines = why.body["lines"].as_array().unwrap_or_else(|| panic!("{}", why.body));
    let says = |text: &str| lines.iter().any(|line| line["text"].as_str().unwrap().contains(text));
    assert!(says("attempt 1 of 1 started") && says("It failed for good"), "{}", why.body);
    assert_eq!(why.body["run"]["state"], "dead");
}

/// Given a tenant that waits for as many runs as it may, when it submits a job and prefers to wait, then the answer
/// says that the job is taken, and not that it waited: after an error the client would submit it again.
#[tokio::test]
async fn a_job_whose_end_cannot_be_waited_for_is_answered_as_taken() {
    let world = world().await;
    let node = on_a_free_port(world.node()).start().await;
    let late = world.submit(json!({"type": "noop", "delay_ms": 3_600_000})).await;
    let inbox = world.client().new_inbox();
    let mut answers = world.client().subscribe(inbox.clone()).await.unwrap();
    let body = json!({"run_id": late, "timeout_ms": 600_000}).to_string();
    for _ in 0..1_025 {
        let subject = "longshore.api.default.runs.wait";
        world.client().publish_with_reply(subject, inbox.clone(), body.clone().into()).await.unwrap();
    }
    let refused = timeout(Duration::from_secs(60), answers.next()).await.unwrap().unwrap();
    let refused: Value = serde_json::from_slice(&refused.payload).unwrap();
    assert_eq!(refused["error"], "rate_limited", "{refused}");

    let taken = curl(&node, "/v1/jobs", &[JSON[0], JSON[1], "-H", "Prefer: wait=5", "-d", r#"{"type":"noop"}"#]);

    assert_eq!((taken.status(), &taken.body["deduplicated"]), (201, &json!(false)), "{}", taken.body);
    let place = format!("location: /v1/runs/{}", taken.body["run_id"].as_str().unwrap());
    assert!(taken.has(&place) && !taken.head.contains("preference-applied"), "{}", taken.head);
}

/// Given a client that waits for a run's end, when the server freezes for longer than a read may take, then the client
/// still gets the end.
#[tokio::test]
async fn a_wait_outlasts_a_server_that_does_not_answer() {
    let world = world().await;
    let node = on_a_free_port(world.node()).start().await;
    let run = world.submit(json!({"type": "noop", "delay_ms": 3_600_000})).await;
    let path = format!("/v1/runs/{run}");
    let mut waits = tokio::process::Command::new("curl");
    waits.args(["-sS", "-m", "90"]).arg(format!("http://{}{path}?wait=60", node.http()));
    let waits = waits.stdout(Stdio::piped()).kill_on_drop(true).spawn().unwrap();

    world.server().sigstop();
    // As these reads fail, one of the wait's, which come every few seconds, does.
    let failed = [curl(&node, &path, &[]).status(), curl(&node, &path, &[]).status()];
    world.server().sigcont();

    assert_eq!(failed, [503, 503]);
    eventually("the run to start", Duration::from_secs(60), async || {
        match world.try_request("default", "runs.run_now", json!({"run_id": run})).await {
            // It may have been asked for before, with a lost answer.
            Err(error) if error.code != 409 => Err(error.to_string()),
            _ => Ok(()),
        }
    })
    .await;
    let answer = waits.wait_with_output().await.unwrap().stdout;
    let answer: Value = serde_json::from_slice(&answer).unwrap();
    assert_eq!(answer["state"], "completed", "{answer}");
}

/// Of two who change a schedule that both have read, the later one is refused, also after the schedule has fired.
#[tokio::test]
async fn a_change_of_a_schedule_that_is_not_as_it_was_is_refused() {
    let world = world().await;
    let node = on_a_free_port(world.node()).start().await;
    let with = |method: &'static str, tag: &str, body: &str| {
        let tag = format!("If-Match: {tag}");
        curl(&node, "/v1/schedules/s", &[JSON[0], JSON[1], "-X", method, "-H", &tag, "-d", body])
    };
    let tag = |answer: &Answer| answer.head.lines().find_map(|line| line.strip_prefix("etag: ")).unwrap().to_owned();
    let job = r#"{"type":"noop","every":"1s"}"#;
    curl(&node, "/v1/schedules/s", &[JSON[0], JSON[1], "-X", "PUT", "-d", job]);
    let read = eventually("a firing", Duration::from_secs(60), async || {
        let read = curl(&node, "/v1/schedules/s", &[]);
        if read.body["last_run"].is_null() { Err("none yet") } else { Ok(read) }
    })
    .await;

    let changed = with("PUT", &tag(&read), r#"{"type":"noop","every":"1h"}"#);
    assert_eq!(changed.status(), 200, "{}", changed.body);
    for (method, body) in [("PUT", job), ("DELETE", "")] {
        let refused = with(method, &tag(&read), body);
        assert_eq!((refused.status(), &refused.body["code"]), (412, &json!("changed")), "{}", refused.body);
    }
    for post in ["pause", "run-now", "backfill?from=2026-01-01T00:00:00Z&until=2026-01-01T01:00:00Z"] {
        let tag_of = |tag: &str| format!("If-Match: {tag}");
        let path = format!("/v1/schedules/s/{post}");
        let refused = curl(&node, &path, &["-X", "POST", "-H", &tag_of(&tag(&read))]);
        assert_eq!((refused.status(), &refused.body["code"]), (412, &json!("changed")), "{post}: {}", refused.body);
    }
    let run_now =
        curl(&node, "/v1/schedules/s/run-now", &["-X", "POST", "-H", &format!("If-Match: {}", tag(&changed))]);
    assert_eq!(run_now.status(), 200, "{}", run_now.body);
    assert_eq!(with("PUT", "\"x\"", job).status(), 412);
    assert_eq!(curl(&node, "/v1/schedules/s", &[]).body["every"], "1h");
    assert_eq!(with("PUT", &format!("\"x\", {}", tag(&changed)), r#"{"type":"noop","every":"2h"}"#).status(), 200);
    let again = with("PUT", "*", r#"{"type":"noop","every":"1h"}"#);
    assert_eq!(again.status(), 200, "{}", again.body);
    let changed = again;
    for (path, with) in [("/v1/jobs", ["-d", "{}"]), ("/v1/queues/main/resume", ["-X", "POST"])] {
        let refused = curl(&node, path, &[&with[..], &[JSON[0], JSON[1], "-H", "If-Match: \"x\""]].concat());
        assert_eq!((refused.status(), &refused.body["errors"][0]["pointer"]), (400, &json!("/If-Match")), "{path}");
    }
    assert_eq!(with("DELETE", &tag(&changed), "").status(), 200);
    for gone in [tag(&changed), "*".to_owned()] {
        assert_eq!(with("PUT", &gone, job).status(), 412, "it is gone");
    }
}

/// Given a gateway and no node that works, when jobs are submitted and a queue is put, then they wait, the depth that a
/// scaler asks for says how many, and none starts; given a worker, then it does them.
#[tokio::test]
async fn a_gateway_takes_jobs_and_does_none() {
    let world = world().await;
    let gateway = on_a_free_port(world.node()).with("node", "gateway = true").name("gateway").start().await;
    let put = ask(&gateway, "/v1/api/queues.put", &json!({"queue": "bulk"}));
    assert_eq!((&put.body["served_by"], &put.body["unconfirmed"]), (&json!([]), &json!([])), "{}", put.body);
    let mut runs = Vec::new();
    for queue in ["main", "bulk", "main"] {
        let taken = ask(&gateway, "/v1/api/submit", &json!({"type": "noop", "queue": queue}));
        runs.push(taken.body["run_id"].as_str().unwrap().to_owned());
    }
    let main = curl(&gateway, "/v1/queues/main?tenant=_all", &[]).body;
    assert_eq!((&main["depth"], &main["running"], &main["served"]), (&json!(2), &json!(0), &json!(false)), "{main}");

    let worker = world.node().name("worker").start().await;
    for run in &runs {
        assert_eq!(world.wait(run).await.attempt, 1);
    }
    eventually("the depth to fall to none", Duration::from_secs(60), async || {
        let main = curl(&gateway, "/v1/queues/main?tenant=_all", &[]).body;
        if main["depth"] == 0 { Ok(()) } else { Err(main.to_string()) }
    })
    .await;
    assert!(worker.stop().await.success() && gateway.stop().await.success());
}
