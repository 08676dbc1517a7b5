//! A job is a request to a service, whatever that answers; no job leads a node to an address that is not allowed.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use longshore_harness::{NodeBuilder, World};
use rcgen::{CertificateParams, KeyPair};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;

use crate::{AT_ONCE, served_by, world};

/// A service on loopback, and the requests that it got.
#[derive(Clone)]
struct Service {
    address: SocketAddr,
    requests: Arc<Mutex<Vec<String>>>,
}

impl Service {
    /// Answers as the path of a request says.
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let service = Self { address: listener.local_addr().unwrap(), requests: Arc::default() };
        let own = service.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let own = own.clone();
                tokio::spawn(async move { own.serve(stream).await });
            }
        });
        service
    }

    /// One request of a connection.
    async fn serve(self, mut stream: TcpStream) -> std::io::Result<()> {
        let (mut request, mut piece) = (Vec::new(), [0; 4096]);
        let whole = |request: &[u8]| {
            let text = String::from_utf8_lossy(request);
            let (head, body) = text.split_once("\r\n\r\n")?;
            let length =
                head.to_lowercase().lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
            (body.len() >= length.unwrap_or(0)).then(|| text.clone().into_owned())
        };
        let request = loop {
            if let Some(request) = whole(&request) {
                break request;
            }
            match stream.read(&mut piece).await? {
                0 => return Ok(()),
                read => request.extend_from_slice(&piece[..read]),
            }
        };
        let nth = {
            let mut requests = self.requests.lock().unwrap();
            requests.push(request.clone());
            requests.len()
        };
        self.answer(&mut stream, request.split(' ').nth(1).unwrap(), nth).await
    }

    /// The answer at this path; `nth`: how many requests there were.
    async fn answer(&self, stream: &mut TcpStream, path: &str, nth: usize) -> std::io::Result<()> {
        let parts: Vec<&str> = path.trim_start_matches('/').split('/').collect();
        let answer = |status: u16, headers: &str, body: &str| {
            let head = format!("HTTP/1.1 {status} S\r\nConnection: close\r\n{headers}");
            format!("{head}Content-Length: {}\r\n\r\n{body}", body.len()).into_bytes()
        };
        match parts[..] {
            ["status", "204"] => stream.write_all(b"HTTP/1.1 204 S\r\nConnection: close\r\n\r\n").await?,
            ["status", status] => stream.write_all(&answer(status.parse().unwrap(), "", "as asked")).await?,
            ["json"] => {
                let headers = "Content-Type: application/json\r\nSet-Cookie: secret\r\nX-A: 1\r\nX-A: 2\r\n";
                stream.write_all(&answer(200, headers, "{\"paid\": 1.50}")).await?;
            }
            ["second-time", ..] if nth == 1 => stream.write_all(&answer(503, "Retry-After: 1\r\n", "")).await?,
            ["hang"] => std::future::pending().await,
            ["trickle"] => {
                stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n").await?;
                while stream.write_all(b"x").await.is_ok() {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            }
            ["cut"] => stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf").await?,
            ["garbage"] => stream.write_all(b"SSH-2.0-OpenSSH\r\n\r\n").await?,
            ["endless"] => {
                stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n").await?;
                while stream.write_all(&[b'7'; 65_536]).await.is_ok() {}
            }
            ["long"] => {
                let headers = "Content-Type: application/json\r\nX-A: 1\r\n";
                stream.write_all(&answer(200, headers, &format!("\"\u{1}{}\"", "\u{e4}".repeat(80_000)))).await?;
            }
            ["zipped"] => {
                stream
                    .write_all(
                        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 4\r\n\r\n\x1f\x8b\x08\xff",
                    )
                    .await?
            }
            ["redirect", status, ..] => {
                let to = path.splitn(4, '/').nth(3).unwrap();
                let to = if to.contains(':') { to.to_owned() } else { format!("/{to}") };
                stream.write_all(&answer(status.parse().unwrap(), &format!("Location: {to}\r\n"), "")).await?;
            }
            _ => stream.write_all(&answer(200, "", "done")).await?,
        }
        Ok(())
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    fn requests(&self) -> Vec<String> {
        self.requests.lock().unwrap().clone()
    }

    /// The requests, each as its first line.
    fn lines(&self) -> Vec<String> {
        self.requests().iter().map(|request| request.lines().next().unwrap_or_default().to_owned()).collect()
    }
}

/// A node whose type `name` calls services on loopback.
fn with<'w>(node: NodeBuilder<'w>, name: &str, of_type: &str, of_call: &str) -> NodeBuilder<'w> {
    let node = node.with(&format!("types.{name}"), &served_by("http.call", of_type));
    node.with(&format!("types.{name}.http"), &format!("allow = ['127.0.0.1', 'localhost']\n{of_call}"))
}

/// How a job ended: its state or kind of error, and its result or error.
async fn end_of(world: &World, job_type: &str, payload: Value) -> (String, String) {
    let run = world.publish(job_type).json(payload).await;
    let end = world.wait(&run).await;
    match end.error {
        Some(error) => (error.kind, error.message),
        None => (end.state, end.result.unwrap_or_default().to_string()),
    }
}

/// A request `GET` as a payload.
fn get(url: &str) -> Value {
    json!({"method": "GET", "url": url})
}

/// Given a type with a target, when its job comes, then the service gets the payload with secrets, key and trace, again
/// with the same key after a failure; the run has the answer, and the log no secret.
#[tokio::test]
async fn a_job_is_a_request_to_the_service_of_its_type() {
    let (world, service) = (world().await, Service::start().await);
    std::fs::write(world.dir().join("team"), "file-secret\n").unwrap();
    let call = format!(
        "url = '{}'\nmethod = 'PUT'\nheaders = {{ Authorization = {{ env = 'TOKEN' }}, X-Team = {{ file = 'team' }}, X-Plain = 'a' }}",
        service.url("/second-time/{type}?run={run_id}&of={tenant}")
    );
    let node = with(world.node(), "charge", "backoff = { base = '1h', max = '1h' }", &call).env("TOKEN", "env-secret");
    let node = node.start().await;
    let trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let job = world.publish("charge").header("Longshore-Run-Id", "order-7").header("traceparent", trace);

    let run = job.header("Content-Type", "text/csv").bytes("a,b").await;

    let end = world.wait(&run).await;
    assert_eq!((end.state.as_str(), end.attempt), ("completed", 2), "Retry-After counts, not an hour: {end:?}");
    let result = end.result.unwrap();
    assert_eq!((&result["status"], &result["body"]), (&json!(200), &json!("done")), "{result}");
    let requests = service.requests();
    assert_eq!(requests.len(), 2, "{requests:?}");
    for request in requests {
        assert!(request.starts_with("PUT /second-time/charge?run=order-7&of=default HTTP/1.1\r\n"), "{request}");
        for line in [
            "idempotency-key: order-7",
            "authorization: env-secret",
            "x-team: file-secret",
            "x-plain: a",
            "content-type: text/csv",
            "user-agent: longshore/0.1.0",
        ] {
            assert!(request.lines().any(|own| own == line), "{line} is not in {request}");
        }
        assert!(request.contains("traceparent: 00-0af7651916cd43dd8448eb211c80319c-"), "{request}");
        assert!(request.ends_with("\r\n\r\na,b"), "{request}");
    }
    let said = node.log().tail(10_000) + &world.report(&run).await;
    assert!(!said.contains("env-secret") && !said.contains("file-secret"), "{said}");
}

/// Given services that answer each status, then it means what the contract says, unless the type says otherwise.
#[tokio::test]
async fn a_status_completes_the_job_fails_it_or_has_it_tried_again() {
    let (world, service) = (world().await, Service::start().await);
    let once = format!("max_attempts = 1\n{AT_ONCE}");
    let own = "success = ['2xx', 304]\npermanent = [501]\nretryable = [404, '41x']";
    let wrong = with(world.node(), "own", &once, own).try_start().await.unwrap_err();
    assert!(wrong.log.contains("\"41x\" is not a status such as 204"), "{}", wrong.log);
    let node = with(world.node(), "usual", &once, "");
    let _node = with(node, "own", &once, &own.replace("'41x'", "410")).start().await;

    for (status, usual, own) in [
        (200, "completed", "completed"),
        (204, "completed", "completed"),
        (302, "retryable", "retryable"),
        (304, "retryable", "completed"),
        (400, "permanent", "permanent"),
        (404, "permanent", "retryable"),
        (408, "retryable", "retryable"),
        (410, "permanent", "retryable"),
        (425, "retryable", "retryable"),
        (429, "retryable", "retryable"),
        (500, "retryable", "retryable"),
        (501, "retryable", "permanent"),
        (503, "retryable", "retryable"),
    ] {
        let job = get(&service.url(&format!("/status/{status}")));
        for (job_type, expected) in [("usual", usual), ("own", own)] {
            let (end, text) = end_of(&world, job_type, job.clone()).await;
            assert_eq!(end, expected, "{job_type} {status}: {text}");
            assert!(end == "completed" || text.contains(&format!("the service answered {status}")), "{text}");
        }
    }
}

/// Given services that hang, trickle, break off, talk nonsense, never end or zip, then each attempt ends, and a result
/// has no more than it may.
#[tokio::test]
async fn a_service_that_misbehaves_costs_no_more_than_its_attempt() {
    let (world, service) = (world().await, Service::start().await);
    let once = format!("max_attempts = 1\ntimeout = '4s'\n{AT_ONCE}");
    let node = with(world.node(), "long", "", "max_response = '256 KiB'");
    let _node = with(node, "call", &once, "max_response = 1000").start().await;

    for (path, kind, says) in [
        ("/hang", "timeout", "took longer than its limit of 4s"),
        ("/trickle", "timeout", "took longer than its limit of 4s"),
        ("/cut", "retryable", "end of file before message length reached"),
        ("/garbage", "retryable", "invalid HTTP version parsed"),
        ("/endless", "completed", "\"truncated\":true"),
        ("/zipped", "completed", "\"body_base64\":\"H4sI/w==\""),
        ("/json", "completed", "\"body\":{\"paid\":1.50}"),
    ] {
        let (end, text) = end_of(&world, "call", get(&service.url(path))).await;
        let text = text.replace("1.5}", "1.50}");
        assert!(end == kind && text.contains(says) && text.len() < 2_000, "{path}: {end} {text}");
        assert!(!text.contains("set-cookie") && (path != "/json" || text.contains("\"x-a\":\"1, 2\"")), "{text}");
    }
    // What is longer than a record keeps is there in part.
    let run = world.publish("long").json(get(&service.url("/long"))).await;
    let result = world.wait(&run).await.result.unwrap();
    assert_eq!((&result["status"], &result["headers"]["x-a"]), (&json!(200), &json!("1")));
    let body = result["body"].as_str().unwrap();
    assert!(body.len() > 60_000 && body.starts_with("\"\u{1}\u{e4}") && body.ends_with('\u{e4}'), "{}", body.len());
    assert!(result["truncated"] == true && result.to_string().len() <= 64 << 10, "{}", result.to_string().len());

    let quick = json!({"method": "GET", "url": service.url("/hang"), "timeout_ms": 50});
    assert_eq!(end_of(&world, "call", quick).await, ("retryable".to_owned(), "no answer within 50 ms".to_owned()));
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let (end, text) = end_of(&world, "call", get(&format!("http://{closed}/"))).await;
    assert!(end == "retryable" && text.contains("cannot connect to 127.0.0.1:"), "{end} {text}");
}

/// Addresses and names of the inside, in every form; and what is no address of a service.
const INSIDE: [&str; 48] = [
    "http://127.0.0.1:PORT/",
    "http://127.1:PORT/",
    "http://127.0.1:PORT/",
    "http://2130706433:PORT/",
    "http://0x7f000001:PORT/",
    "http://0x7f.1:PORT/",
    "http://0177.0.0.1:PORT/",
    "http://127.255.255.254:PORT/",
    "http://localhost:PORT/",
    "http://LOCALHOST:PORT/",
    "http://0.0.0.0:PORT/",
    "http://0:PORT/",
    "http://[::1]:PORT/",
    "http://[::]:PORT/",
    "http://[0:0:0:0:0:0:0:1]:PORT/",
    "http://[::ffff:127.0.0.1]:PORT/",
    "http://[::ffff:7f00:1]:PORT/",
    "http://[::7f00:1]:PORT/",
    "http://[64:ff9b::7f00:1]:PORT/",
    "http://[64:ff9b::a9fe:a9fe]/",
    "http://[64:ff9b:1::808:808]/",
    "http://[2002:7f00:1::]:PORT/",
    "http://[2002:a9fe:a9fe::]/",
    "http://[fc00::1]/",
    "http://[fd12:3456::1]/",
    "http://[fe80::1]/",
    "http://[fec0::1]/",
    "http://[ff02::1]/",
    "http://[2001::1]/",
    "http://[2001:db8::1]/",
    "http://10.0.0.1/",
    "http://100.64.0.1/",
    "http://169.254.169.254/latest/meta-data/",
    "http://172.16.0.1/",
    "http://172.31.255.255/",
    "http://192.0.0.170/",
    "http://192.168.1.1/",
    "http://198.18.0.1/",
    "http://198.51.100.7/",
    "http://203.0.113.9/",
    "http://224.0.0.1/",
    "http://240.0.0.1/",
    "http://255.255.255.255/",
    "http://8.8.8.8:0/",
    "http://8.8.8.8:70000/",
    "http://user:password@8.8.8.8/",
    "ftp://8.8.8.8/",
    "file:///etc/passwd",
];

/// Given a node without settings, then the type `http.call` is there, and calls nothing of the inside: nothing arrives.
#[tokio::test]
async fn no_job_leads_a_node_to_an_address_of_the_inside() {
    let (world, service) = (world().await, Service::start().await);
    let proxy = service.url("/");
    let node = world.node().env("http_proxy", &proxy).env("HTTP_PROXY", &proxy).env("ALL_PROXY", &proxy);
    let _node = node.with("types.'http.call'", "max_attempts = 1").start().await;
    let runs = INSIDE.map(|url| get(&url.replace("PORT", &service.address.port().to_string())));
    let runs = world.publish("http.call").many(runs).await;

    for (run, url) in runs.iter().zip(INSIDE) {
        let end = world.wait(&run.run_id).await;
        let error = end.error.unwrap();
        assert_eq!((end.state.as_str(), error.kind.as_str()), ("dead", "permanent"), "{url}: {}", error.message);
    }
    assert_eq!(service.requests(), Vec::<String>::new());
}

/// Given redirects, then they are answers unless the type follows them; then at most so many, without credentials for
/// others, and nowhere that could not be called at once.
#[tokio::test]
async fn redirects_are_followed_only_as_far_as_they_may() {
    let (world, service, other) = (world().await, Service::start().await, Service::start().await);
    let once = format!("max_attempts = 1\n{AT_ONCE}");
    let node = with(world.node(), "none", &once, "");
    let node = with(node, "two", &once, "redirects = 2");
    let to_other = service.url(&format!("/redirect/307/{}", other.url("/other")));
    let fixed = format!("url = '{to_other}'\nredirects = 1\nheaders = {{ X-Key = 'secret' }}");
    let _node = with(node, "fixed", &once, &fixed).start().await;

    let (end, text) = end_of(&world, "none", get(&service.url("/redirect/307/json"))).await;
    assert!(end == "retryable" && text.contains("307"), "{text}");
    let (end, text) = end_of(&world, "two", get(&service.url("/redirect/301/redirect/302/json"))).await;
    assert!(end == "completed" && text.contains("paid"), "{text}");
    let (end, text) = end_of(&world, "two", get(&service.url("/redirect/301/redirect/302/redirect/303/json"))).await;
    assert!(end == "retryable" && text.contains("303"), "{text}");
    let inside = service.url("/redirect/307/").replace("127.0.0.1", "localhost") + "http://[::1]:1/";
    let (end, text) = end_of(&world, "two", get(&inside)).await;
    let refused = "the service redirects to [::1]: ::1 is not globally routable, and is not on the allow list";
    assert_eq!((end.as_str(), text.as_str()), ("permanent", refused));
    let (end, text) = end_of(&world, "two", get(&service.url("/redirect/307/http://u:p@127.0.0.1/"))).await;
    let refused = "the service redirects to 127.0.0.1: has a user or password";
    assert_eq!((end.as_str(), text.as_str()), ("permanent", refused));
    let (end, text) = end_of(&world, "two", get(&service.url("/redirect/307/file:///etc/passwd"))).await;
    assert_eq!(
        (end.as_str(), text.as_str()),
        ("permanent", "the service redirects to what begins neither with http:// nor https://")
    );

    let post = json!({"method": "POST", "url": service.url("/redirect/303/json"), "body": {"a": 1}});
    assert_eq!(end_of(&world, "two", post).await.0, "completed");
    assert_eq!(
        service.lines()[service.lines().len() - 2..],
        ["POST /redirect/303/json HTTP/1.1", "GET /json HTTP/1.1"]
    );

    assert_eq!(end_of(&world, "fixed", json!({"b": 2})).await.0, "completed");
    assert!(service.requests().last().unwrap().contains("x-key: secret"));
    let request = other.requests().pop().unwrap();
    assert!(request.starts_with("POST /other ") && request.ends_with("{\"b\":2}"), "{request}");
    assert!(!request.contains("secret"), "{request}");
}

/// A payload that names the request sends what it says; one that cannot be read fails for good and names the field.
#[tokio::test]
async fn a_payload_names_the_request() {
    let (world, service) = (world().await, Service::start().await);
    let _node = with(world.node(), "call", "max_attempts = 1", "").start().await;
    let url = service.url("/x");
    for (more, kind, body) in [
        (json!({"body": {"a": 1}}), "application/json", "{\"a\":1}"),
        (json!({"body": "plain"}), "text/plain; charset=utf-8", "plain"),
        (json!({"body_base64": "YWJj"}), "application/octet-stream", "abc"),
        (json!({"body": "x", "headers": {"Content-Type": "text/x", "Idempotency-Key": "own"}}), "text/x", "x"),
    ] {
        let mut payload = json!({"method": "POST", "url": url});
        payload.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        assert_eq!(end_of(&world, "call", payload).await.0, "completed");
        let request = service.requests().pop().unwrap();
        assert!(request.contains(&format!("content-type: {kind}\r\n")), "{request}");
        assert!(request.ends_with(&format!("\r\n\r\n{body}")), "{request}");
        assert_eq!(request.contains("idempotency-key: own"), kind == "text/x", "{request}");
    }
    // RFC 9110, 8.6: a method that usually has a body says that there is none.
    for (method, says_so) in [("POST", true), ("PUT", true), ("PATCH", true), ("GET", false), ("DELETE", false)] {
        assert_eq!(end_of(&world, "call", json!({"method": method, "url": url})).await.0, "completed");
        let request = service.requests().pop().unwrap();
        assert_eq!(request.contains("content-length: 0\r\n"), says_so, "{request}");
    }
    let sent = service.requests().len();
    for (payload, says) in [
        (json!({"url": url}), "payload: method: is missing"),
        (json!({"method": "GET", "url": url, "hedaers": {}}), "payload: hedaers: unknown field `hedaers`"),
        (json!({"method": "get", "url": url}), "payload: method: \"get\" is not one of GET, HEAD"),
        (json!({"method": "CONNECT", "url": url}), "payload: method: \"CONNECT\" is not one of"),
        (json!({"method": "GET", "url": "a b"}), "payload: url: is no URL"),
        (json!({"method": "GET", "url": url, "timeout_ms": 0}), "payload: timeout_ms: is not above zero"),
        (json!({"method": "GET", "url": url, "headers": {"Host": "x"}}), "payload: headers: host cannot be set"),
        (json!({"method": "GET", "url": url, "headers": {"A": "b\r\nC: d"}}), "payload: headers: \"A\" is no header"),
        (json!({"method": "GET", "url": url, "body": 1, "body_base64": ""}), "payload: body_base64: stands beside"),
        (json!({"method": "GET", "url": url, "body_base64": "="}), "payload: body_base64: "),
        (json!(["GET", url, {}, 1, null, null]), "payload: is not a JSON object"),
        (json!({"method": "GET", "url": "http://u:p@127.0.0.1/"}), "url: has a user or password"),
        (json!({"method": "GET", "url": "ftp://127.0.0.1/"}), "url: is not a URL that begins with http"),
    ] {
        let (end, text) = end_of(&world, "call", payload).await;
        assert!(end == "permanent" && text.starts_with(says), "{says}: {end} {text}");
    }
    assert_eq!(service.requests().len(), sent);
}

/// Settings that cannot work stop the start and name the field; what another node alone has set serves all.
#[tokio::test]
async fn settings_are_checked_at_the_start_and_one_node_calls_for_all() {
    let (world, service) = (world().await, Service::start().await);
    for (call, says) in [
        ("url = 'http://127.0.0.2/'", "types.call.http.url: 127.0.0.2 is not globally routable"),
        ("url = 'ftp://8.8.8.8/'", "types.call.http.url: is not a URL that begins with http"),
        ("url = 'http://{tenant}.test/'", "types.call.http.url: fills in its host"),
        ("url = 'http://8.8.8.8/{id}'", "types.call.http.url: has braces around something else"),
        ("method = 'PUT'", "types.call.http.method: needs url"),
        ("url = 'http://8.8.8.8/'\nmethod = 'put'", "types.call.http.method: \"put\" is not one of"),
        (
            "url = 'http://8.8.8.8/'\nheaders = { A = { env = 'NOWHERE' } }",
            "types.call.http.headers: A: the variable NOWHERE is not set",
        ),
        ("url = 'http://8.8.8.8/'\nheaders = { A = { file = 'nowhere' } }", "types.call.http.headers: A: the file "),
        ("url = 'http://8.8.8.8/'\nheaders = { A = 7 }", "types.call.http.headers: A: the value is not a text"),
        ("url = 'http://8.8.8.8/'\nheaders = { Host = 'x' }", "types.call.http.headers: host cannot be set"),
        ("redirects = 4", "types.call.http.redirects: 4 is out of bounds"),
        ("max_response = '1MiB'", "types.call.http.max_response: "),
        ("ca = 'nowhere.pem'", "types.call.http.ca: "),
        ("succes = [200]", "types.call.http.succes: is not known; did you mean success?"),
    ] {
        let refusal = with(world.node(), "call", "", call).try_start().await.unwrap_err();
        assert!(refusal.log.contains(says), "{says} is not in {}", refusal.log);
    }
    let refusal = world.node().with("types.call.http", "allow = ['a b']").try_start().await.unwrap_err();
    assert!(refusal.log.contains("types.call.http: has no meaning without handler"), "{}", refusal.log);

    let own = with(world.node(), "call", "", &format!("url = '{}'", service.url("/x"))).with("queues.other", "");
    let (_own, _plain) = (own.start().await, world.node().start().await);
    assert_eq!(end_of(&world, "call", json!(1)).await.0, "completed");
    assert_eq!(service.lines(), ["POST /x HTTP/1.1"]);
}

/// A service with a certificate of one's own is called if the type trusts it, and no other type calls it.
#[tokio::test]
async fn a_certificate_of_ones_own_is_trusted_where_it_is_set() {
    let world = world().await;
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new(vec!["localhost".to_owned()]).unwrap().self_signed(&key).unwrap();
    std::fs::write(world.dir().join("ca.pem"), certificate.pem()).unwrap();
    let config = ServerConfig::builder().with_no_client_auth();
    let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    let tls = TlsAcceptor::from(Arc::new(config.with_single_cert(vec![certificate.der().clone()], key).unwrap()));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            // One that does not trust it ends the handshake.
            let Ok(mut stream) = tls.accept(stream).await else { continue };
            let mut head = [0; 1024];
            let _ = stream.read(&mut head).await;
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi").await;
        }
    });
    let once = format!("max_attempts = 1\n{AT_ONCE}");
    let node = with(world.node(), "trusting", &once, "ca = 'ca.pem'");
    let _node = with(node, "usual", &once, "").start().await;

    let job = get(&format!("https://localhost:{port}/"));
    let (end, text) = end_of(&world, "trusting", job.clone()).await;
    assert!(end == "completed" && text.contains("\"status\":200"), "{text}");
    let (end, text) = end_of(&world, "usual", job).await;
    assert!(end == "retryable" && text.contains("certificate"), "{text}");
}
