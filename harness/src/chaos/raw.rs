//! Publishes jobs whose bytes no client library would send.

use std::time::Duration;

use crate::bytes::Bytes;

/// How long the server's acknowledgement may take.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// Invalid header blocks: a lone CR in a value, bytes that are not UTF-8, a line without a colon.
pub(super) const BLOCKS: [&[u8]; 3] = [
    b"NATS/1.0\r\nX-Note: a\rb\r\n\r\n",
    b"NATS/1.0\r\nX-Note: \xff\xfe\r\n\r\n",
    b"NATS/1.0\r\nno colon here\r\n\r\n",
];

/// Publishes one job with this block of headers and returns its sequence in the lane. `None` if it was not confirmed.
pub(super) async fn publish(port: u16, subject: &str, block: &[u8], payload: &[u8]) -> Option<u64> {
    let exchange = async { Bytes::open(port).await?.store(subject, block, payload).await };
    tokio::time::timeout(ANSWER_WITHIN, exchange).await.ok()?.ok()
}
