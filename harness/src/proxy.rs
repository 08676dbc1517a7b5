//! A TCP proxy on loopback that can be cut like a cable, in both directions or in one.
//!
//! A cut proxy keeps its connections open and passes nothing on. It stops reading, so the sender's bytes fill the
//! kernel's buffers and wait there; after the cut is healed they arrive late and complete. TCP behaves like that over a
//! network that drops every packet: bytes are delayed, never missing in the middle of a stream. During a cut, the
//! kernel accepts a connection attempt, and the connection then receives nothing. An end (a closed socket, a dead
//! process) does not cross the cut either.
//!
//! Forbidden here: any knowledge of the bytes that pass through.

use std::io;
use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

/// Bytes passed on at a time.
const CHUNK: usize = 64 * 1024;

/// A direction in which bytes flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From the client of the proxy to its target.
    ToTarget,
    /// From the target back.
    FromTarget,
}

/// A proxy in front of one address. Dropped, it closes its port and all connections through it.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    to_target: watch::Sender<bool>,
    from_target: watch::Sender<bool>,
    serving: JoinHandle<()>,
}

impl Proxy {
    /// Listens on a free loopback port and connects every client there to `target`.
    ///
    /// # Errors
    /// If no port is available.
    pub async fn start(target: SocketAddr) -> io::Result<Proxy> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let address = listener.local_addr()?;
        let (to_target, from_target) = (watch::Sender::new(true), watch::Sender::new(true));
        let gates = (to_target.subscribe(), from_target.subscribe());
        let serving = tokio::spawn(serve(listener, target, gates));
        Ok(Proxy { address, to_target, from_target, serving })
    }

    /// The address to connect to instead of the target's.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Stops passing bytes on, in both directions.
    pub fn cut(&self) {
        self.cut_direction(Direction::ToTarget);
        self.cut_direction(Direction::FromTarget);
    }

    /// Stops passing bytes on in this direction.
    pub fn cut_direction(&self, direction: Direction) {
        self.gate(direction).send_replace(false);
    }

    /// Passes bytes on again in both directions, beginning with those that waited.
    pub fn heal(&self) {
        self.heal_direction(Direction::ToTarget);
        self.heal_direction(Direction::FromTarget);
    }

    /// Passes bytes on again in this direction.
    pub fn heal_direction(&self, direction: Direction) {
        self.gate(direction).send_replace(true);
    }

    fn gate(&self, direction: Direction) -> &watch::Sender<bool> {
        match direction {
            Direction::ToTarget => &self.to_target,
            Direction::FromTarget => &self.from_target,
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

type Gate = watch::Receiver<bool>;

async fn serve(listener: TcpListener, target: SocketAddr, (to_target, from_target): (Gate, Gate)) {
    // Dropped with this task, which also closes the connections.
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                if let Ok((dialer, _)) = accepted {
                    connections.spawn(carry(dialer, target, to_target.clone(), from_target.clone()));
                }
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

/// One connection, until either side ends it.
async fn carry(dialer: TcpStream, target: SocketAddr, mut to_target: Gate, mut from_target: Gate) {
    // The handshake of a real connection crosses the network once in each direction.
    open(&mut to_target).await;
    open(&mut from_target).await;
    // No process listens there: the client finds its connection closed.
    let Ok(target) = TcpStream::connect(target).await else { return };
    let _ = (dialer.set_nodelay(true), target.set_nodelay(true));
    let (dialer_reads, dialer_writes) = dialer.into_split();
    let (target_reads, target_writes) = target.into_split();
    tokio::select! {
        () = pass_on(dialer_reads, target_writes, to_target) => {}
        () = pass_on(target_reads, dialer_writes, from_target) => {}
    }
}

/// Passes bytes on while the gate is open, until the reader ends; that end passes the gate as well.
async fn pass_on(mut from: impl AsyncReadExt + Unpin, mut to: impl AsyncWriteExt + Unpin, mut gate: Gate) {
    let mut chunk = vec![0; CHUNK];
    loop {
        open(&mut gate).await;
        let read = from.read(&mut chunk).await.unwrap_or(0);
        // The gate may have been closed while no bytes came.
        open(&mut gate).await;
        if read == 0 || to.write_all(&chunk[..read]).await.is_err() {
            return;
        }
    }
}

async fn open(gate: &mut Gate) {
    if gate.wait_for(|open| *open).await.is_err() {
        // The proxy was dropped, and this task is about to end.
        std::future::pending().await
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    /// Long enough for loopback, however busy the machine.
    const SOON: Duration = Duration::from_secs(10);

    /// How long a cut connection is watched: nothing may arrive in that time.
    const SILENCE: Duration = Duration::from_millis(100);

    async fn pair() -> (Proxy, TcpStream, TcpStream) {
        let target = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let proxy = Proxy::start(target.local_addr().unwrap()).await.unwrap();
        let dialer = TcpStream::connect(proxy.address()).await.unwrap();
        let (accepted, _) = timeout(SOON, target.accept()).await.unwrap().unwrap();
        (proxy, dialer, accepted)
    }

    async fn comes(to: &mut TcpStream, wanted: &str) {
        let mut read = vec![0; wanted.len()];
        timeout(SOON, to.read_exact(&mut read)).await.unwrap().unwrap();
        assert_eq!(String::from_utf8(read).unwrap(), wanted);
    }

    async fn receives_nothing(from: &mut TcpStream) {
        let mut byte = [0];
        assert!(timeout(SILENCE, from.read(&mut byte)).await.is_err());
    }

    #[tokio::test]
    async fn what_is_sent_into_a_cut_arrives_whole_after_the_healing() {
        let (proxy, mut dialer, mut target) = pair().await;
        dialer.write_all(b"one").await.unwrap();
        comes(&mut target, "one").await;
        proxy.cut();
        dialer.write_all(b"two").await.unwrap();
        target.write_all(b"three").await.unwrap();
        receives_nothing(&mut target).await;
        receives_nothing(&mut dialer).await;
        proxy.heal();
        comes(&mut target, "two").await;
        comes(&mut dialer, "three").await;
    }

    #[tokio::test]
    async fn one_direction_can_be_cut_alone() {
        let (proxy, mut dialer, mut target) = pair().await;
        proxy.cut_direction(Direction::ToTarget);
        dialer.write_all(b"kept").await.unwrap();
        target.write_all(b"passed").await.unwrap();
        comes(&mut dialer, "passed").await;
        receives_nothing(&mut target).await;
        proxy.heal_direction(Direction::ToTarget);
        comes(&mut target, "kept").await;
    }

    #[tokio::test]
    async fn neither_an_end_nor_a_beginning_crosses_a_cut() {
        let (proxy, dialer, mut target) = pair().await;
        proxy.cut();
        drop(dialer);
        let mut late = TcpStream::connect(proxy.address()).await.unwrap();
        receives_nothing(&mut target).await;
        receives_nothing(&mut late).await;
        proxy.heal();
        let mut byte = [0];
        assert_eq!(timeout(SOON, target.read(&mut byte)).await.unwrap().unwrap_or(0), 0);
    }

    #[tokio::test]
    async fn without_a_target_the_connection_is_closed() {
        let target = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let proxy = Proxy::start(target.local_addr().unwrap()).await.unwrap();
        drop(target);
        let mut dialer = TcpStream::connect(proxy.address()).await.unwrap();
        let mut byte = [0];
        assert_eq!(timeout(SOON, dialer.read(&mut byte)).await.unwrap().unwrap_or(0), 0);
    }
}
