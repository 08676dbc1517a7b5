//! Publishes bytes that no client library would send: it writes the NATS protocol by hand, over a socket.

use std::io;

use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

use crate::world::World;

/// A connection to the world's server that sends exactly the bytes it is given.
#[derive(Debug)]
pub struct Bytes {
    socket: BufReader<TcpStream>,
    out: Vec<u8>,
}

impl World {
    /// A connection for bytes that no client library would send.
    ///
    /// # Panics
    /// If the server cannot be reached. The functions below panic for the same reason.
    pub async fn bytes(&self) -> Bytes {
        let mut bytes = Bytes::open(self.server().port()).await.expect("the server is there");
        bytes.flush().await;
        bytes
    }
}

impl Bytes {
    pub(crate) async fn open(port: u16) -> io::Result<Bytes> {
        let socket = BufReader::new(TcpStream::connect(("127.0.0.1", port)).await?);
        let out = b"CONNECT {\"verbose\":false,\"pedantic\":false,\"headers\":true}\r\n".to_vec();
        Ok(Bytes { socket, out })
    }

    /// Publishes one job and returns its sequence from the server's acknowledgement.
    pub(crate) async fn store(&mut self, subject: &str, headers: &[u8], payload: &[u8]) -> io::Result<u64> {
        let inbox = format!("_INBOX.bytes{}", rand::random::<u64>());
        self.out.extend_from_slice(format!("SUB {inbox} 1\r\n").as_bytes());
        self.publish(subject.as_bytes(), Some(&inbox), headers, payload);
        self.send().await?;
        loop {
            let line = self.line().await?;
            if let Some(length) = line.strip_prefix("MSG ").and_then(|line| line.rsplit(' ').next()?.parse().ok()) {
                let mut answer = vec![0; length];
                self.socket.read_exact(&mut answer).await?;
                let answer: Value = serde_json::from_slice(&answer)?;
                return answer["seq"].as_u64().ok_or_else(|| io::Error::other(answer.to_string()));
            }
        }
    }

    /// Publishes a message with these header bytes, including the first line; [`Bytes::flush`] sends them.
    pub fn publish(&mut self, subject: &[u8], reply: Option<&str>, headers: &[u8], payload: &[u8]) {
        let reply = reply.map(|reply| format!(" {reply}")).unwrap_or_default();
        self.out.extend_from_slice(b"HPUB ");
        self.out.extend_from_slice(subject);
        let sizes = format!("{reply} {} {}\r\n", headers.len(), headers.len() + payload.len());
        self.out.extend_from_slice(sizes.as_bytes());
        self.out.extend_from_slice(headers);
        self.out.extend_from_slice(payload);
        self.out.extend_from_slice(b"\r\n");
    }

    /// Sends everything, and waits until the server has read it.
    pub async fn flush(&mut self) {
        self.out.extend_from_slice(b"PING\r\n");
        self.send().await.expect("the server reads");
        while self.line().await.expect("the server writes") != "PONG" {}
    }

    async fn send(&mut self) -> io::Result<()> {
        self.socket.get_mut().write_all(&std::mem::take(&mut self.out)).await
    }

    /// Reads the next line, and answers each `PING` of the server on the way.
    async fn line(&mut self) -> io::Result<String> {
        loop {
            let mut line = String::new();
            if self.socket.read_line(&mut line).await? == 0 || line.starts_with("-ERR") {
                return Err(io::Error::new(io::ErrorKind::ConnectionAborted, line));
            }
            match line.trim_end() {
                "PING" => self.socket.get_mut().write_all(b"PONG\r\n").await?,
                line => return Ok(line.to_owned()),
            }
        }
    }
}
