//! A client's connection to a world's servers, and its errors as text.

use std::time::Duration;

use async_nats::{Client, ConnectOptions};

/// How much storage a world's server may promise to its streams, in bytes.
pub const ROOM: u64 = 1 << 44;

/// Connects so that the client notices a silent or restarted server within seconds and a test need not wait for it.
pub(crate) async fn connect(urls: &str, options: ConnectOptions) -> Client {
    let addresses: Vec<&str> = urls.split(',').collect();
    let options = options
        .ping_interval(Duration::from_secs(2))
        .request_timeout(Some(Duration::from_secs(10)))
        .reconnect_delay_callback(|tries| Duration::from_millis(20 * tries.min(10) as u64));
    options.connect(addresses).await.unwrap_or_else(|error| panic!("cannot connect to {urls}: {}", chain(&error)))
}

/// An error with all its sources, in one line.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(&format!(": {cause}"));
        source = cause.source();
    }
    text
}
