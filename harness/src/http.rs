//! A client for what a node serves over HTTP: one request, one connection.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Empty};
use hyper::{Request, StatusCode, header};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;

/// How long an answer may take.
const WITHIN: Duration = Duration::from_secs(30);

/// An answer.
#[derive(Debug, Clone)]
pub struct Page {
    /// Its status.
    pub status: u16,
    /// The media type of its body; empty if it names none.
    pub media_type: String,
    /// Its body.
    pub body: String,
}

impl Page {
    /// Its body as JSON.
    ///
    /// # Panics
    /// If it is none.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

/// Asks for a page.
///
/// # Errors
/// Nobody listens there, or the answer was cut off or did not come within 30 s.
pub async fn get(address: SocketAddr, path: &str) -> anyhow::Result<Page> {
    tokio::time::timeout(WITHIN, ask(address, path)).await?
}

async fn ask(address: SocketAddr, path: &str) -> anyhow::Result<Page> {
    let stream = TokioIo::new(TcpStream::connect(address).await?);
    let (mut sender, connection) = hyper::client::conn::http1::handshake(stream).await?;
    let connection = tokio::spawn(connection);
    let request = Request::get(path).header(header::HOST, address.to_string()).body(Empty::<Bytes>::new())?;
    let answer = sender.send_request(request).await?;
    let status: StatusCode = answer.status();
    let media_type = answer.headers().get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let media_type = media_type.unwrap_or_default().to_owned();
    let body = answer.into_body().collect().await?.to_bytes();
    drop(sender);
    connection.await??;
    Ok(Page { status: status.as_u16(), media_type, body: String::from_utf8(body.to_vec())? })
}
