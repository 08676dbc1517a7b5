//! Jobs whose bytes no client library would send: written to the server's socket by hand.

use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

/// How long the server's acknowledgement may take.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// Header blocks that are none: a lone CR in a value, bytes that are not UTF-8, a line without a colon.
pub(super) const BLOCKS: [&[u8]; 3] = [
    b"NATS/1.0\r\nX-Note: a\rb\r\n\r\n",
    b"NATS/1.0\r\nX-Note: \xff\xfe\r\n\r\n",
    b"NATS/1.0\r\nno colon here\r\n\r\n",
];

/// Publishes one job with this block of headers; gives its number in the lane. `None` if it was not confirmed.
pub(super) async fn publish(port: u16, subject: &str, block: &[u8], payload: &[u8]) -> Option<u64> {
    let confirmed = tokio::time::timeout(ANSWER_WITHIN, exchange(port, subject, block, payload)).await;
    confirmed.ok().and_then(Result::ok)?["seq"].as_u64()
}

async fn exchange(port: u16, subject: &str, block: &[u8], payload: &[u8]) -> std::io::Result<Value> {
    let stream = TcpStream::connect(("127.0.0.1", port)).await?;
    let (reads, mut writes) = stream.into_split();
    let mut lines = BufReader::new(reads);
    let inbox = format!("_INBOX.raw{}", rand::random::<u64>());
    let total = block.len() + payload.len();
    let opening = "CONNECT {\"verbose\":false,\"pedantic\":false,\"headers\":true}";
    let publish = format!("{opening}\r\nSUB {inbox} 1\r\nHPUB {subject} {inbox} {} {total}\r\n", block.len());
    writes.write_all(&[publish.as_bytes(), block, payload, b"\r\n"].concat()).await?;
    loop {
        let mut line = String::new();
        if lines.read_line(&mut line).await? == 0 || line.starts_with("-ERR") {
            return Err(std::io::ErrorKind::ConnectionAborted.into());
        }
        if line.starts_with("PING") {
            writes.write_all(b"PONG\r\n").await?;
        }
        if let Some(length) = line.strip_prefix("MSG ").and_then(|line| line.trim().rsplit(' ').next()?.parse().ok()) {
            let mut answer = vec![0; length];
            lines.read_exact(&mut answer).await?;
            return Ok(serde_json::from_slice(&answer)?);
        }
    }
}
