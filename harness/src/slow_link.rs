//! A slow link: what goes through it, in either direction, comes out as it went in, a while later.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::Instant;

use crate::world::World;

/// A way to the world's server that takes longer. Dropped, it cuts every connection through it.
#[derive(Debug)]
pub struct SlowLink {
    url: String,
    serving: JoinHandle<()>,
}

impl SlowLink {
    /// A link on which every byte takes so long, each way.
    ///
    /// # Panics
    /// If no port is to be had.
    pub async fn to(world: &World, each_way: Duration) -> SlowLink {
        let server = world.server().url();
        let server = server.rsplit('/').next().expect("an address has a host").to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port of this machine is free");
        let url = format!("nats://{}", listener.local_addr().expect("it is bound"));
        let serving = tokio::spawn(async move {
            // Dropped with this task, and with it the connections.
            let mut connections = JoinSet::new();
            while let Ok((near, _)) = listener.accept().await {
                let Ok(far) = TcpStream::connect(&server).await else { continue };
                let ((from_near, to_near), (from_far, to_far)) = (near.into_split(), far.into_split());
                connections.spawn(carry(from_near, to_far, each_way));
                connections.spawn(carry(from_far, to_near, each_way));
                while connections.try_join_next().is_some() {}
            }
        });
        SlowLink { url, serving }
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

async fn carry(mut from: impl AsyncReadExt + Unpin, mut to: impl AsyncWriteExt + Unpin + Send, each_way: Duration) {
    let (send, mut on_its_way) = mpsc::unbounded_channel::<(Instant, Vec<u8>)>();
    let read = async move {
        let mut buffer = vec![0; 64 * 1024];
        while let Ok(count @ 1..) = from.read(&mut buffer).await {
            if send.send((Instant::now() + each_way, buffer[..count].to_vec())).is_err() {
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
