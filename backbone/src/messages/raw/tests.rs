//! Broken and sound bytes, checked here and by the client library: a fake server, which is only a socket, sends them to
//! the library. No NATS server takes part.

use std::time::Duration;

use futures_util::StreamExt as _;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpListener;

use super::*;

const GOOD: &[&[u8]] = &[
    b"NATS/1.0\r\n\r\n",
    b"NATS/1.0\r\nA: b\r\n\r\n",
    b"NATS/1.0\r\nA:b\r\nA:c\r\n\r\n",
    b"NATS/1.0\r\nA: b\r\n  c\r\n\r\n",
    b"NATS/1.0\nA: b\n\n",
    b"NATS/1.0  \r\nA:\r\n\r\n",
    "NATS/1.0\r\nA: \u{a0}b\u{a0}c\r\n\r\n".as_bytes(),
    "NATS/1.0\r\nA: \u{fffd}ä\r\n\r\n".as_bytes(),
    b"NATS/1.0\r\nA: b\r\r\n\r\n",
    b"NATS/1.0\r\nA: \x00\x01\x0b\r\n\r\n",
    b"NATS/1.0",
];

const BAD: &[(&[u8], &str)] = &[
    (b"NATS/1.0\r\nA: b\rc\r\n\r\n", "headers: A has a carriage return in its value"),
    (b"NATS/1.0\r\nA: b\r\n c\rd\r\n\r\n", "headers: A has a carriage return in its value"),
    (b"NATS/1.0\r\nA: \xff\xfe\r\n\r\n", "headers: A is not UTF-8"),
    (b"NATS/1.0\r\n\xe4: b\r\n\r\n", "headers: line 2 is not UTF-8"),
    (b"NATS/1.0\r\nno colon\r\n\r\n", "headers: line 2 has no colon"),
    (b"NATS/1.0\r\nA b\xc2\xa0: c\r\n\r\n", "headers: line 2 has a name that is not valid"),
    (b"NATS/1.0\r\nA: b\r\n\r\nmore\r\n\r\n", "headers: line 4 has no colon"),
    (b"NATS/1.0 garbage\r\nA: b\r\n\r\n", "headers: have more than NATS/1.0 in the first line"),
    (b"NATS/1.0503\r\n\r\n", "headers: have more than NATS/1.0 in the first line"),
    (b"NATS/2.0\r\nA: b\r\n\r\n", "headers: do not begin with NATS/1.0"),
    (b"\r\n\r\n", "headers: do not begin with NATS/1.0"),
    (b"HTTP/1.1 200 OK\r\n\r\n", "headers: do not begin with NATS/1.0"),
];

/// The client reads these, and they are refused all the same.
const STATUS: &[&[u8]] = &[b"NATS/1.0 503\r\n\r\n", b"NATS/1.0 100 Idle Heartbeat\r\nA: b\r\n\r\n"];

const SUBJECTS: &[(&str, bool)] =
    &[("a.b", true), ("a.\u{a0}b", false), ("a.\u{2003}b", false), ("a.\u{b}b", false), ("a.\u{e4}", true)];

/// Whether the client library survives such a message, which a fake server sends to it.
async fn client_reads(subject: &str, headers: &[u8]) -> bool {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = listener.local_addr().unwrap().to_string();
    let mut message = format!("HMSG {subject} 1 {} {}\r\n", headers.len(), headers.len() + 2).into_bytes();
    message.extend_from_slice(headers);
    message.extend_from_slice(b"ok\r\nMSG last 1 2\r\nok\r\n");
    let server = tokio::spawn(async move {
        let (socket, _) = listener.accept().await.unwrap();
        // A client that reconnects is refused.
        drop(listener);
        let (read, mut write) = socket.into_split();
        let mut lines = BufReader::new(read).lines();
        let info = r#"INFO {"server_id":"x","version":"2.14.5","headers":true,"max_payload":1048576,"proto":1}"#;
        write.write_all(format!("{info}\r\n").as_bytes()).await.unwrap();
        while let Ok(Some(line)) = lines.next_line().await {
            let answer = match line.split(' ').next() {
                Some("PING") => b"PONG\r\n".as_slice(),
                Some("SUB") => message.as_slice(),
                _ => b"",
            };
            if write.write_all(answer).await.is_err() {
                break;
            }
        }
    });
    let options = async_nats::ConnectOptions::new().max_reconnects(1).reconnect_delay_callback(|_| Duration::ZERO);
    let client = options.connect(url).await.unwrap();
    let mut messages = client.subscribe("any").await.unwrap();
    let both = async {
        messages.next().await?;
        messages.next().await
    };
    let read =
        tokio::time::timeout(Duration::from_secs(10), both).await.expect("the client reads it, or its connection ends");
    server.abort();
    read.is_some()
}

#[tokio::test]
async fn what_is_judged_broken_is_what_the_client_cannot_read() {
    for headers in GOOD {
        assert_eq!(fault("a.b", headers), None, "{}", headers.escape_ascii());
        assert_eq!(fault_on_the_way(headers), None, "{}", headers.escape_ascii());
        assert!(client_reads("a.b", headers).await, "{}", headers.escape_ascii());
    }
    for (headers, reason) in BAD {
        assert_eq!(fault("a.b", headers).as_deref(), Some(*reason));
        assert_eq!(client_reads("a.b", headers).await, fault_on_the_way(headers).is_none(), "{reason}");
    }
    for headers in STATUS {
        assert!(fault("a.b", headers).is_some() && client_reads("a.b", headers).await, "{}", headers.escape_ascii());
        assert_eq!(fault_on_the_way(headers), None);
    }
    for (subject, good) in SUBJECTS {
        assert_eq!(fault(subject, GOOD[0]).is_none(), *good, "{subject:?}");
        assert_eq!(client_reads(subject, GOOD[0]).await, *good, "{subject:?}");
        assert_eq!(fault(subject, b""), None, "without headers every blank but the ordinary space is read");
    }
    assert!(fault("a.\u{fffd}", b"").is_some());
}

/// Random bytes: lines of good and bad parts in any order.
#[tokio::test]
async fn drawn_headers_are_judged_as_the_client_reads_them() {
    let parts: [&[u8]; 14] = [
        b"\r\n",
        b"\n",
        b"\r",
        b"A",
        b":",
        b" ",
        b"b",
        b"\t",
        b"\xc2\xa0",
        b"\xff",
        b"\x00",
        b"A: b\r\n",
        b"-Z_",
        b"1",
    ];
    let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
    for _ in 0..150 {
        let mut headers = b"NATS/1.0\r\n".to_vec();
        for _ in 0..8 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            headers.extend_from_slice(parts[(seed >> 33) as usize % parts.len()]);
        }
        headers.extend_from_slice(b"\r\n\r\n");
        let readable = fault("a", &headers).is_none();
        assert_eq!(client_reads("a", &headers).await, readable, "{}", headers.escape_ascii());
        assert_eq!((parse(&headers).is_ok(), fault_on_the_way(&headers).is_none()), (readable, readable));
    }
}

#[test]
fn of_broken_headers_the_others_are_kept() {
    let headers = readable(b"NATS/1.0\r\nLongshore-Run-Id: mine\r\nno colon\r\nX: \xff\r\nY: a\rb\r\nZ:  z \r\n\r\n");
    let kept: Vec<_> = headers.iter().map(|(name, values)| (name.to_string(), values[0].as_str().to_owned())).collect();
    let expected = [("Longshore-Run-Id", "mine"), ("Z", "z")].map(|(name, value)| (name.to_owned(), value.to_owned()));
    assert_eq!(kept.len(), 2);
    assert!(expected.iter().all(|pair| kept.contains(pair)), "{kept:?}");
}
