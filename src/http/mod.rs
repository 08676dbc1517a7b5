//! HTTP on a port of the node: the API, streams of events, probes and metrics.
//!
//! Read in this order: this file (the listeners and their life), `connections` (their bounds) and `tls`; `base_path`
//! and `cors`, which come before any route; `pages` (probes and metrics) and `page` (the dashboard); `gateway` (the
//! API) and `streams` (events), both for those that `asker` lets in with a key, a `session` (its `cookie`) or a
//! `jwt`; `problem` (errors) and `requests` (each as a whole), with what is `said` of the one at hand; `doctor` (what
//! the program finds wrong), `probe` (asks a node whether it is ready).
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
use axum::extract::Request;
use axum::http::{HeaderValue, Version, header};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::Response;
use futures_util::FutureExt as _;
use longshore_actors::Observer;
use longshore_backbone::wire::api::ApiError;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

mod asker;
mod base_path;
mod connections;
mod cookie;
mod cors;
mod doctor;
mod gateway;
mod jwt;
mod openapi;
mod page;
mod pages;
mod probe;
mod problem;
mod requests;
mod said;
mod session;
mod streams;
mod tls;

pub use crate::config::{Auth, Http, Listen};
use asker::Guard;
pub use doctor::Doctor;
use gateway::Gateway;
use gateway::body::Bodies;
use jwt::Jwt;
pub use probe::page;
use tls::Tls;
pub use tls::TlsError;

/// Known once the node has started.
type Node = Arc<OnceLock<Observer>>;

/// Why HTTP cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    /// An address cannot be used.
    #[error(
        "cannot listen on {address} (http.listen, LONGSHORE_HTTP__LISTEN): set another port, or \"off\" for neither probes nor metrics"
    )]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// A file of TLS cannot be used.
    #[error("http.tls: {0}")]
    Tls(#[from] TlsError),
}

/// The listeners of a node. They end when this is dropped, and what they answer is cut off.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    is_tls: bool,
    node: Node,
    doctor: doctor::Known,
    ends: CancellationToken,
    tasks: JoinSet<()>,
}

impl Server {
    /// Listens and answers from now on; until [`Server::show`] is called, the node is not ready. `None`: it is off.
    ///
    /// # Errors
    /// An address, or a file of TLS, cannot be used.
    pub async fn start(http: &Http) -> Result<Option<Self>, HttpError> {
        let (wanted, may_move) = match &http.listen {
            Listen::Off => return Ok(None),
            Listen::At(addresses) => (addresses.clone(), false),
            Listen::AtOrFree(address) => (vec![*address], true),
        };
        let tls = http.tls.as_ref().map(Tls::read).transpose()?;
        let mut listeners = Vec::new();
        for address in wanted {
            let failed = |source| HttpError::Listen { address, source };
            let listener = match TcpListener::bind(address).await {
                Err(error) if may_move && error.kind() == std::io::ErrorKind::AddrInUse => {
                    TcpListener::bind(SocketAddr::new(address.ip(), 0)).await
                }
                bound => bound,
            };
            let listener = listener.map_err(failed)?;
            let bound = listener.local_addr().map_err(failed)?;
            if may_move && bound != address {
                tracing::warn!(
                    address = %bound,
                    "serving HTTP at a free port, because {address} is taken: http.listen (LONGSHORE_HTTP__LISTEN) sets one, \"off\" none"
                );
            } else {
                tracing::info!(address = %bound, "serving HTTP");
            }
            listeners.push((listener, bound));
        }
        raise_limit_of_files();
        // The kind has read one address at least.
        let Some(&(_, address)) = listeners.first() else { return Ok(None) };
        let (node, is_tls, mut tasks) = (Arc::default(), tls.is_some(), JoinSet::new());
        let doctor = doctor::Known::default();
        let (http, bodies, ends) = (Arc::new(http.clone()), Bodies::new(http.max_body), CancellationToken::new());
        let jwt = http.jwt.as_ref().map(Jwt::new);
        for (listener, address) in listeners {
            let (http, jwt, ends) = (Arc::clone(&http), jwt.clone(), ends.clone());
            let guard = Guard { address, http, jwt, node: Arc::clone(&node), doctor: Arc::clone(&doctor), ends };
            tasks.spawn(serve(listener, tls.clone(), guard, bodies.clone()));
        }
        if let Some(tls) = tls {
            let ends = ends.clone();
            tasks.spawn(async move {
                let _ = ends.run_until_cancelled(tls.follow()).await;
            });
        }
        Ok(Some(Self { address, is_tls, node, doctor, ends, tasks }))
    }

    /// Where it listens: the first address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What its URLs begin with.
    pub fn scheme(&self) -> &'static str {
        if self.is_tls { "https" } else { "http" }
    }

    /// Shows this node from now on. Only the first call has an effect.
    pub fn show(&self, node: Observer) {
        node.expect_restarts("http");
        let _ = self.node.set(node);
    }

    /// Has this one look for faults of the set-up from now on. Only the first call has an effect.
    pub fn examine_by(&self, doctor: Doctor) {
        let _ = self.doctor.set(doctor);
    }

    /// Ends the listeners once everybody is answered, or after five seconds.
    pub async fn end(mut self) {
        self.ends.cancel();
        let _ = tokio::time::timeout(ENDS_WITHIN, async { while self.tasks.join_next().await.is_some() {} }).await;
    }
}

/// Reads the files of TLS, as a start does.
pub(crate) fn check(files: &crate::config::TlsFiles) -> Result<(), TlsError> {
    Tls::read(files).map(drop)
}

/// How long clients may take over their last answers.
const ENDS_WITHIN: Duration = Duration::from_secs(5);
/// How long to wait before a listener that died is started again.
const AGAIN_AFTER: Duration = Duration::from_secs(1);

fn router(guard: &Guard, bodies: &Bodies) -> Router {
    let (node, http) = (&guard.node, &guard.http);
    let gateway = Gateway { guard: guard.clone(), bodies: bodies.clone() };
    let admitted = from_fn_with_state(guard.clone(), asker::admit);
    let mut api = gateway::router(gateway.clone(), streams::router(guard.clone()));
    api = api.merge(gateway::doctor::router(guard.clone()));
    let mut open = pages::router(Arc::clone(node))
        .merge(page::router())
        .merge(session::router(gateway))
        .merge(openapi::router(http));
    let metrics = pages::metrics_router(Arc::clone(node));
    match http.metrics_auth {
        true => api = api.merge(metrics.layer(from_fn(asker::must_read_all))),
        false => open = open.merge(metrics),
    }
    let mut all = open.merge(api.layer(admitted)).method_not_allowed_fallback(gateway::other_method);
    all = all.layer(from_fn(one_host)).layer(from_fn(no_store));
    if !http.cors_origins.is_empty() {
        all = all.layer(from_fn_with_state(Arc::from(http.cors_origins.as_slice()), cors::answer));
    }
    all = all.layer(from_fn_with_state(Arc::clone(node), requests::observe));
    base_path::under(&http.base_path, all)
}

/// The host that a request names, as its one `Host` (RFC 9112, sections 3.2 and 3.2.2): who asks is judged by it.
async fn one_host(mut request: Request, next: Next) -> Response {
    let named = request.headers().get_all(header::HOST).iter().count();
    if named > 1 || named == 0 && request.version() == Version::HTTP_11 {
        let reason = if named > 1 { "comes twice" } else { "is missing" };
        return problem::problem(ApiError::malformed(format!("Host: {reason}")));
    }
    let authority = request.uri().authority().map(|authority| HeaderValue::from_str(authority.as_str()));
    if let Some(Ok(host)) = authority {
        request.headers_mut().insert(header::HOST, host);
    }
    next.run(request).await
}

/// What is true only now is kept by no intermediary.
async fn no_store(request: Request, next: Next) -> Response {
    let is_api = request.uri().path().starts_with("/v1");
    let mut answer = next.run(request).await;
    if is_api {
        answer.headers_mut().entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    }
    answer
}

/// As many open files as the system allows: each client that follows events takes one, and NATS needs some.
fn raise_limit_of_files() {
    let limit = getrlimit(Resource::Nofile);
    // Where that is refused, fewer clients can follow.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
}

/// Serves until it is to end. The socket stays open over a death, so that the port cannot be lost.
async fn serve(listener: TcpListener, tls: Option<Arc<Tls>>, guard: Guard, bodies: Bodies) {
    loop {
        let served =
            AssertUnwindSafe(connections::serve(&listener, tls.as_deref(), router(&guard, &bodies), &guard.ends));
        // The panic hook has said why.
        if served.catch_unwind().await.is_ok() {
            return;
        }
        tracing::error!("the HTTP listener died, starting it again");
        if let Some(node) = guard.node.get() {
            node.count_restart("http");
        }
        tokio::time::sleep(AGAIN_AFTER).await;
    }
}

#[cfg(test)]
mod tests;
