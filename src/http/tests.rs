//! The listener against clients that behave badly, and a port that is taken.

use std::time::Duration;

use axum::Router;
use axum::routing::get;
use longshore_harness::http;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;

use super::*;

/// A listener with a small page, a page that panics and one that is larger than all buffers on its way.
async fn served() -> (SocketAddr, tokio::task::JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let router = Router::new()
        .route("/small", get(|| async { "small" }))
        .route("/broken", get(|| async { panic!("a broken page") as &'static str }))
        .route("/large", get(|| async { "x".repeat(64 << 20) }));
    let task = tokio::spawn(async move {
        connections::serve(&listener, None, router, &CancellationToken::new()).await;
    });
    (address, task)
}

pub(super) fn at(listen: Listen) -> Http {
    Http {
        listen,
        auth: Auth::Off,
        base_path: String::new(),
        cors_origins: Vec::new(),
        environment: None,
        environment_color: None,
        trace_url: None,
        max_body: 1 << 20,
        metrics_auth: false,
        tls: None,
        jwt: None,
    }
}

async fn is_answered(address: SocketAddr) {
    assert_eq!(http::get(address, "/small").await.unwrap().body, "small");
}

/// Waits until the listener ends the connection; returns what it sent before.
async fn is_cut(mut stream: TcpStream) -> usize {
    let mut read = Vec::new();
    // A reset counts as an end. Under a paused clock this limit costs nothing.
    let ended = tokio::time::timeout(Duration::from_secs(600), stream.read_to_end(&mut read)).await;
    assert!(ended.is_ok(), "the connection is still open");
    read.len()
}

#[tokio::test]
async fn clients_that_hold_connections_open_keep_nobody_out() {
    let (address, _task) = served().await;
    let mut silent = Vec::new();
    for _ in 0..3 * connections::CONNECTIONS {
        silent.push(TcpStream::connect(address).await.unwrap());
    }
    is_answered(address).await;
    assert_eq!(is_cut(silent.remove(0)).await, 0, "the oldest made way");
}

/// The clock is paused, so it jumps to the next time limit whenever everything waits.
#[tokio::test(start_paused = true)]
async fn a_client_that_sends_no_request_loses_its_connection() {
    let (address, _task) = served().await;
    let silent = TcpStream::connect(address).await.unwrap();
    let mut slow = TcpStream::connect(address).await.unwrap();
    slow.write_all(b"GET /small HTTP/1.1\r\nHost: a\r\nX-Slow:").await.unwrap();
    let before = tokio::time::Instant::now();
    assert_eq!(is_cut(silent).await, 0);
    is_cut(slow).await;
    assert!(before.elapsed() < Duration::from_secs(60), "{:?}", before.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_client_that_does_not_read_loses_its_connection() {
    let (address, _task) = served().await;
    let mut lazy = TcpStream::connect(address).await.unwrap();
    lazy.write_all(b"GET /large HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
    // The listener notices while nothing is read here.
    tokio::time::sleep(Duration::from_secs(120)).await;
    assert!(is_cut(lazy).await < 64 << 20);
}

#[tokio::test]
async fn a_page_that_panics_costs_its_own_connection() {
    let (address, _task) = served().await;
    assert!(http::get(address, "/broken").await.is_err());
    is_answered(address).await;
}

/// A connection without a request ends; every request that is at work, or comes until then, has an answer.
#[tokio::test]
async fn a_listener_that_ends_answers_first() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, ends, [begun, gate]) =
        (listener.local_addr().unwrap(), CancellationToken::new(), [(); 2].map(|()| Arc::new(Notify::new())));
    let (begins, opens, end) = (Arc::clone(&begun), Arc::clone(&gate), ends.clone());
    let slow = get(move || async move {
        begins.notify_one();
        opens.notified().await;
        "slow"
    });
    let router = Router::new().route("/small", get(|| async { "small" })).route("/slow", slow);
    let served = tokio::spawn(async move { connections::serve(&listener, None, router, &end).await });
    let asked = tokio::spawn(http::get(address, "/slow"));
    begun.notified().await;
    let mut idle = TcpStream::connect(address).await.unwrap();
    idle.write_all(b"GET /small HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
    idle.read_exact(&mut [0; 64]).await.unwrap();

    ends.cancel();
    is_cut(idle).await;
    is_answered(address).await;
    assert!(!served.is_finished(), "one has no answer yet");
    gate.notify_one();
    assert_eq!(asked.await.unwrap().unwrap().body, "slow");
    served.await.unwrap();
}

/// By its one host a request is judged: that of an absolute target before the header's (RFC 9112, 3.2.2).
#[tokio::test]
async fn a_request_names_one_host() {
    let server = Server::start(&at(Listen::AtOrFree("127.0.0.1:0".parse().unwrap()))).await.unwrap().unwrap();
    for (request, status) in [
        ("/v1/health HTTP/1.1\r\nHost: localhost", 503),
        ("/v1/health HTTP/1.1\r\nHost: localhost\r\nHost: localhost", 400),
        ("/v1/health HTTP/1.1", 400),
        ("/v1/health HTTP/1.0", 403),
        ("http://localhost/v1/health HTTP/1.1\r\nHost: evil.example", 503),
        ("http://evil.example/v1/health HTTP/1.1\r\nHost: localhost", 403),
    ] {
        let mut stream = TcpStream::connect(server.address()).await.unwrap();
        stream.write_all(format!("GET {request}\r\nConnection: close\r\n\r\n").as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        assert_eq!(answer.split(' ').nth(1), Some(status.to_string().as_str()), "{request}: {answer}");
        assert!(answer.contains("x-request-id: ") && answer.contains("application/problem+json"), "{answer}");
    }
}

#[tokio::test]
async fn who_asks_an_endpoint_that_is_not_there_reads_which_are() {
    let server = Server::start(&at(Listen::AtOrFree("127.0.0.1:0".parse().unwrap()))).await.unwrap().unwrap();
    let mut stream = TcpStream::connect(server.address()).await.unwrap();
    stream.write_all(b"POST /v1/api/runs.got HTTP/1.0\r\nHost: localhost\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.0 404") && answer.contains(", runs.get, "), "{answer}");
}

#[tokio::test]
async fn a_port_that_is_taken_is_an_error_if_it_was_set_and_else_gives_way() {
    let taken = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = taken.local_addr().unwrap();

    let error = Server::start(&at(Listen::At(vec![address]))).await.unwrap_err();
    assert!(error.to_string().starts_with(&format!("cannot listen on {address} (http.listen,")), "{error}");

    let server = Server::start(&at(Listen::AtOrFree(address))).await.unwrap().unwrap();
    assert_eq!(server.address().ip(), address.ip());
    assert_ne!(server.address().port(), address.port());
    let ready = http::get(server.address(), "/readyz").await.unwrap();
    assert_eq!((ready.status, ready.body.as_str()), (503, r#"{"ready":false,"reasons":["starting"],"warnings":[]}"#));
    assert_eq!(http::get(server.address(), "/metrics").await.unwrap().status, 503);
    assert!(Server::start(&at(Listen::Off)).await.unwrap().is_none());
}
