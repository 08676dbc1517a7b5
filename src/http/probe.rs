//! Asks the node that listens somewhere whether it is ready: the probe of a container, which has no other HTTP client.
//!
//! It needs neither NATS nor a configuration, so that it says what is wrong with the node and not with itself.

use std::net::SocketAddr;
use std::time::Duration;

use axum::body::{Body, to_bytes};
use hyper::client::conn::http1;
use hyper::{Request, header};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

/// How long the answer may take.
const WITHIN: Duration = Duration::from_secs(3);
/// Bytes of an answer that are read.
const MAX_BYTES: usize = 64 << 10;

#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    #[error("no node answers at {address}")]
    NoAnswer {
        address: SocketAddr,
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    #[error("the node at {0} does not answer in time")]
    TooLate(SocketAddr),
}

/// The body of any page there, at most 64 KiB.
///
/// # Errors
/// There is no answer within 3 s.
pub async fn page(address: SocketAddr, path: &str) -> Result<String, ProbeError> {
    let answer = tokio::time::timeout(WITHIN, ask(address, path)).await.map_err(|_| ProbeError::TooLate(address))?;
    answer.map_err(|source| ProbeError::NoAnswer { address, source })
}

async fn ask(address: SocketAddr, path: &str) -> Result<String, Box<dyn std::error::Error + Send + Sync>> {
    let stream = TokioIo::new(TcpStream::connect(address).await?);
    let (mut sender, connection) = http1::handshake(stream).await?;
    let connection = tokio::spawn(connection);
    let request = Request::get(path).header(header::HOST, address.to_string()).body(Body::empty())?;
    let answer = sender.send_request(request).await?;
    let body = to_bytes(Body::new(answer.into_body()), MAX_BYTES).await?;
    connection.abort();
    Ok(String::from_utf8(body.to_vec())?)
}
