//! Publishing bytes that no client library would send: the NATS protocol by hand, over a socket.

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

use crate::world::World;

/// A connection to the world's server that sends what it is told, byte for byte.
#[derive(Debug)]
pub struct Bytes {
    socket: BufReader<TcpStream>,
    out: Vec<u8>,
}

impl World {
    /// A connection for bytes that no client library would send.
    ///
    /// # Panics
    /// If the server cannot be reached; as do the functions below.
    pub async fn bytes(&self) -> Bytes {
        let url = self.server().url();
        let socket = TcpStream::connect(url.trim_start_matches("nats://")).await.expect("the server is there");
        let mut bytes = Bytes { socket: BufReader::new(socket), out: Vec::new() };
        bytes.out.extend_from_slice(b"CONNECT {\"verbose\":false,\"pedantic\":false,\"headers\":true}\r\n");
        bytes.flush().await;
        bytes
    }
}

impl Bytes {
    /// Publishes a message with these header bytes, first line and all; they go out with [`Bytes::flush`].
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
        self.socket.get_mut().write_all(&self.out).await.expect("the server reads");
        self.out.clear();
        loop {
            let mut line = String::new();
            let read = self.socket.read_line(&mut line).await.expect("the server writes");
            assert!(read > 0 && !line.starts_with("-ERR"), "the server ended the connection: {line}");
            match line.trim_end() {
                "PONG" => return,
                "PING" => self.socket.get_mut().write_all(b"PONG\r\n").await.expect("the server reads"),
                _ => {}
            }
        }
    }
}
