//! A collector for tests: receives spans by OTLP, over HTTP or gRPC, and says what it got.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::{Buf as _, Bytes};
use opentelemetry_proto::tonic::collector::trace::v1::{ExportTraceServiceRequest, ExportTraceServiceResponse};
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message as _;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};

use crate::eventually::eventually;

/// How it is spoken to.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Protocol {
    /// OTLP over HTTP, as protobuf.
    Http,
    /// OTLP over gRPC.
    Grpc,
    /// Connections are taken, and nothing is ever answered.
    Hangs,
    /// OTLP over gRPC: calls are taken, and never answered.
    GrpcHangs,
    /// OTLP over HTTP: each request is answered with 503.
    Refuses,
    /// OTLP over gRPC: each call is answered with `UNAVAILABLE`.
    GrpcRefuses,
}

/// What a collector has received.
#[derive(Debug, Clone, Default)]
pub struct Received {
    /// The spans, unless they are only counted.
    pub spans: Vec<Span>,
    /// How many there were.
    pub count: usize,
    /// The resource's attributes, as `key=value`.
    pub resource: Vec<String>,
    /// Spans are read and counted, and not kept.
    only_counts: bool,
}

/// A running collector; it ends with its test's runtime.
#[derive(Debug)]
pub struct Collector {
    /// Where it listens.
    pub url: String,
    received: Arc<Mutex<Received>>,
}

impl Collector {
    /// Starts one on a free port.
    ///
    /// # Panics
    /// If there is none.
    pub async fn start(protocol: Protocol) -> Collector {
        Self::start_with(protocol, Received::default()).await
    }

    /// Starts one over HTTP that reads and counts spans and keeps none, for measurements.
    ///
    /// # Panics
    /// If no port is free.
    pub async fn counting() -> Collector {
        Self::start_with(Protocol::Http, Received { only_counts: true, ..Received::default() }).await
    }

    async fn start_with(protocol: Protocol, received: Received) -> Collector {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let url = format!("http://{}", listener.local_addr().expect("it listens"));
        let received = Arc::new(Mutex::new(received));
        let into = Arc::clone(&received);
        tokio::spawn(async move {
            let mut held = Vec::new();
            while let Ok((stream, _)) = listener.accept().await {
                let into = Arc::clone(&into);
                match protocol {
                    Protocol::Http | Protocol::Refuses => drop(tokio::spawn(plain(stream, into, protocol))),
                    Protocol::Grpc | Protocol::GrpcHangs | Protocol::GrpcRefuses => {
                        drop(tokio::spawn(grpc(stream, into, protocol)));
                    }
                    Protocol::Hangs => held.push(stream),
                }
            }
        });
        Collector { url, received }
    }

    /// What it has received so far.
    ///
    /// # Panics
    /// If a request was not as the specification has it.
    pub fn received(&self) -> Received {
        self.received.lock().expect("no request was wrong").clone()
    }

    /// Waits until it has so many spans that fit.
    ///
    /// # Panics
    /// If it has not within a minute.
    pub async fn spans(&self, count: usize, fits: impl Fn(&Span) -> bool) -> Vec<Span> {
        eventually("spans", Duration::from_secs(60), async || {
            let all = self.received().spans;
            let found: Vec<Span> = all.iter().filter(|span| fits(span)).cloned().collect();
            let names = || all.iter().map(|span| span.name.clone()).collect::<Vec<_>>();
            if found.len() >= count {
                Ok(found)
            } else {
                Err(format!("{} of {count}; there are {:?}", found.len(), names()))
            }
        })
        .await
    }
}

fn take(body: &[u8], into: &Mutex<Received>) {
    let request = ExportTraceServiceRequest::decode(body).expect("OTLP as the specification has it");
    let mut into = into.lock().expect("no request was wrong");
    for resource in request.resource_spans {
        let attributes = resource.resource.map(|resource| resource.attributes).unwrap_or_default();
        into.resource = attributes.iter().map(|pair| format!("{}={}", pair.key, text(pair))).collect();
        let spans = resource.scope_spans.into_iter().flat_map(|scope| scope.spans);
        let before = into.spans.len();
        if into.only_counts {
            into.count += spans.count();
        } else {
            into.spans.extend(spans);
            into.count += into.spans.len() - before;
        }
    }
}

/// HTTP/1.1, as much of it as the exporter uses.
async fn plain(stream: TcpStream, into: Arc<Mutex<Received>>, protocol: Protocol) -> Option<()> {
    let mut stream = BufReader::new(stream);
    loop {
        let (mut length, mut first, mut line) = (0, String::new(), String::new());
        loop {
            line.clear();
            if stream.read_line(&mut line).await.ok()? == 0 {
                return None;
            }
            let said = line.trim_end().to_ascii_lowercase();
            if let Some(bytes) = said.strip_prefix("content-length:") {
                length = bytes.trim().parse().expect("a number of bytes");
            }
            if said.starts_with("content-type:") {
                assert_eq!(said, "content-type: application/x-protobuf");
            }
            match said.is_empty() {
                true => break,
                false if first.is_empty() => first = line.trim_end().to_owned(),
                false => {}
            }
        }
        assert_eq!(first, "POST /v1/traces HTTP/1.1");
        let mut body = vec![0; length];
        stream.read_exact(&mut body).await.ok()?;
        if protocol == Protocol::Refuses {
            stream.write_all(b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n").await.ok()?;
            continue;
        }
        take(&body, &into);
        stream
            .write_all(b"HTTP/1.1 200 OK\r\ncontent-type: application/x-protobuf\r\ncontent-length: 0\r\n\r\n")
            .await
            .ok()?;
    }
}

/// gRPC: one message a call, behind five bytes that say its length.
async fn grpc(stream: TcpStream, into: Arc<Mutex<Received>>, protocol: Protocol) -> Option<()> {
    let mut connection = h2::server::handshake(stream).await.ok()?;
    while let Some(Ok((request, mut respond))) = connection.accept().await {
        let into = Arc::clone(&into);
        tokio::spawn(async move {
            assert_eq!(request.uri().path(), "/opentelemetry.proto.collector.trace.v1.TraceService/Export");
            if protocol == Protocol::GrpcHangs {
                // What is dropped is answered with an error.
                return std::future::pending().await;
            }
            let mut stream = request.into_body();
            let mut body = Vec::new();
            while let Some(Ok(part)) = stream.data().await {
                let _ = stream.flow_control().release_capacity(part.len());
                body.extend_from_slice(&part);
            }
            if protocol == Protocol::GrpcRefuses {
                let head = http::Response::builder().header("content-type", "application/grpc");
                let head = head.header("grpc-status", "14").header("grpc-message", "overloaded").body(());
                let _ = respond.send_response(head.expect("valid headers"), true);
                return;
            }
            let mut rest = &body[1..];
            let length = rest.get_u32() as usize;
            take(&rest[..length], &into);
            let head = http::Response::builder().header("content-type", "application/grpc").body(());
            let head = head.expect("a valid header");
            let Ok(mut send) = respond.send_response(head, false) else { return };
            let answer = ExportTraceServiceResponse::default().encode_to_vec();
            let framed = [&[0][..], &(answer.len() as u32).to_be_bytes()[..], &answer[..]].concat();
            let mut trailers = http::HeaderMap::new();
            trailers.insert("grpc-status", http::HeaderValue::from_static("0"));
            // A client that has gone away gets no answer.
            let _ = send.send_data(Bytes::from(framed), false).and_then(|()| send.send_trailers(trailers));
        });
    }
    Some(())
}

/// The value of an attribute, as text; empty if there is none.
pub fn attribute(span: &Span, key: &str) -> String {
    span.attributes.iter().find(|pair| pair.key == key).map(text).unwrap_or_default()
}

fn text(pair: &KeyValue) -> String {
    match &pair.value {
        Some(AnyValue { value: Some(Value::StringValue(text)) }) => text.clone(),
        Some(AnyValue { value: Some(Value::IntValue(number)) }) => number.to_string(),
        Some(AnyValue { value: Some(Value::BoolValue(yes)) }) => yes.to_string(),
        other => format!("{other:?}"),
    }
}

/// An id as others write it.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
