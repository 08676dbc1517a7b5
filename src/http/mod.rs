//! HTTP on a port of the node: the API, streams of events, probes and metrics.
//!
//! Read in this order: this file (the listener and its life), `connections` (their bounds), `pages` (probes and
//! metrics), `gateway` (the API) and `streams` (events), both for those that `asker` lets in, `problem` (errors),
//! `probe` (asks a node whether it is ready).
//! It serves from before the node starts until the process ends, so that a probe is answered also while the node waits
//! for NATS or drains. Connections, their time, bodies and requests at work are bounded. Should it die,
//! it is started again, and the node goes on.
//!
//! It may not decide anything about a job or speak to NATS: it shows what an [`Observer`] says, and asks the API.

use std::net::SocketAddr;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::Router;
use futures_util::FutureExt as _;
use longshore_actors::Observer;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

mod asker;
mod connections;
mod gateway;
mod pages;
mod probe;
mod problem;
mod streams;

pub use crate::config::{Auth, Listen};
use asker::Guard;
pub use probe::{page, ready};

/// Why HTTP cannot be served.
#[derive(Debug, thiserror::Error)]
#[error(
    "cannot listen on {address} (http.listen, LONGSHORE_HTTP__LISTEN): set another port, or \"off\" for neither probes nor metrics"
)]
pub struct Error {
    address: SocketAddr,
    #[source]
    source: std::io::Error,
}

/// The listener of a node. It ends when this is dropped.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    moved_from: Option<SocketAddr>,
    node: Arc<OnceLock<Observer>>,
    task: JoinHandle<()>,
}

impl Server {
    /// Listens and answers from now on; until [`Server::show`] is called, the node is not ready. `None`: it is off.
    ///
    /// # Errors
    /// The address cannot be used.
    pub async fn start(listen: Listen, auth: Auth) -> Result<Option<Self>, Error> {
        let (wanted, may_move) = match listen {
            Listen::Off => return Ok(None),
            Listen::At(address) => (address, false),
            Listen::AtOrFree(address) => (address, true),
        };
        let failed = |source| Error { address: wanted, source };
        let listener = match TcpListener::bind(wanted).await {
            Err(error) if may_move && error.kind() == std::io::ErrorKind::AddrInUse => {
                TcpListener::bind(SocketAddr::new(wanted.ip(), 0)).await
            }
            bound => bound,
        };
        let listener = listener.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let moved_from = (may_move && address != wanted).then_some(wanted);
        match moved_from {
            Some(wanted) => tracing::warn!(
                %address,
                "serving HTTP at a free port, because {wanted} is taken: http.listen (LONGSHORE_HTTP__LISTEN) sets one, \"off\" none"
            ),
            None => tracing::info!(%address, "serving HTTP"),
        }
        raise_limit_of_files();
        let node = Arc::default();
        let task = tokio::spawn(serve(listener, Guard { address, auth, node: Arc::clone(&node) }));
        Ok(Some(Self { address, moved_from, node, task }))
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The address that it was to have and that was taken.
    #[must_use]
    pub fn moved_from(&self) -> Option<SocketAddr> {
        self.moved_from
    }

    /// Shows this node from now on. Only the first call has an effect.
    pub fn show(&self, node: Observer) {
        node.expect_restarts("http");
        let _ = self.node.set(node);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// How long to wait before a listener that died is started again.
const AGAIN_AFTER: Duration = Duration::from_secs(1);

/// Everything that is answered.
fn router(guard: Guard) -> Router {
    let node = Arc::clone(&guard.node);
    let guard = axum::middleware::from_fn_with_state(guard, asker::admit);
    let api = gateway::router(Arc::clone(&node)).merge(streams::router(Arc::clone(&node))).layer(guard);
    pages::router(node).merge(api)
}

/// As many open files as the system allows: each client that follows events takes one, and NATS needs some.
fn raise_limit_of_files() {
    let limit = getrlimit(Resource::Nofile);
    // Where that is refused, fewer clients can follow.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
}

/// Serves until it is aborted. The socket stays open over a death, so that the port cannot be lost.
async fn serve(listener: TcpListener, guard: Guard) {
    loop {
        let served = AssertUnwindSafe(connections::serve(&listener, router(guard.clone())));
        // The panic hook has said why. The loop itself never ends.
        let Err(_) = served.catch_unwind().await;
        tracing::error!("the HTTP listener died, starting it again");
        if let Some(node) = guard.node.get() {
            node.count_restart("http");
        }
        tokio::time::sleep(AGAIN_AFTER).await;
    }
}

#[cfg(test)]
mod tests;
