//! A slow link: it delivers all bytes unchanged, in either direction, after a delay.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::Instant;

use crate::world::World;

/// A slower connection to the world's server. Dropped, it cuts every connection through it.
#[derive(Debug)]
pub struct SlowLink {
    url: String,
    each_way: Arc<AtomicU64>,
    serving: JoinHandle<()>,
}

impl SlowLink {
    /// A link that delays every byte by `each_way` in each direction.
    ///
    /// # Panics
    /// If no port is available.
    pub async fn to(world: &World, each_way: Duration) -> SlowLink {
        let server = world.server().url();
        let server = server.rsplit('/').next().expect("an address has a host").to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port of this machine is free");
        let url = format!("nats://{}", listener.local_addr().expect("it is bound"));
        let millis = |span: Duration| u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
        let each_way = Arc::new(AtomicU64::new(millis(each_way)));
        let delay = Arc::clone(&each_way);
        let serving = tokio::spawn(async move {
            // Dropped with this task, which also closes the connections.
            let mut connections = JoinSet::new();
            while let Ok((near, _)) = listener.accept().await {
                let Ok(far) = TcpStream::connect(&server).await else { continue };
                let ((from_near, to_near), (from_far, to_far)) = (near.into_split(), far.into_split());
                connections.spawn(carry(from_near, to_far, Arc::clone(&delay)));
                connections.spawn(carry(from_far, to_near, Arc::clone(&delay)));
                while connections.try_join_next().is_some() {}
            }
        });
        SlowLink { url, each_way, serving }
    }

    /// Sets the delay of every byte from now on, in each direction. Bytes that are on their way already neither
    /// overtake nor wait.
    pub fn takes(&self, each_way: Duration) {
        self.each_way.store(u64::try_from(each_way.as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Where to connect instead of the server itself: `node().env("NATS_URL", &link.url())`.
    pub fn url(&self) -> String {
        self.url.clone()
    }
}

impl Drop for SlowLink {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn carry(mut from: impl AsyncReadExt + Unpin, mut to: impl AsyncWriteExt + Unpin, each_way: Arc<AtomicU64>) {
    let (send, mut on_its_way) = mpsc::unbounded_channel::<(Instant, Vec<u8>)>();
    let read = async move {
        let mut buffer = vec![0; 64 * 1024];
        while let Ok(count @ 1..) = from.read(&mut buffer).await {
            let delay = Duration::from_millis(each_way.load(Ordering::Relaxed));
            if send.send((Instant::now() + delay, buffer[..count].to_vec())).is_err() {
                break;
            }
        }
    };
    let write = async move {
        while let Some((at, bytes)) = on_its_way.recv().await {
            tokio::time::sleep_until(at).await;
            if to.write_all(&bytes).await.is_err() {
                break;
            }
        }
        let _ = to.shutdown().await;
    };
    tokio::join!(read, write);
}
