//! The connections of the listener, and their bounds.
//!
//! At most [`CONNECTIONS`] are open; a further one ends the oldest, so that a client that holds connections open cannot
//! keep probes out. A client that sends no complete request in time, or does not read its answer, loses its connection.

use std::collections::VecDeque;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::timeout;
use tokio_io_timeout::TimeoutStream;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use super::tls::Tls;

/// Connections that are open at once.
pub(super) const CONNECTIONS: usize = if cfg!(test) { 128 } else { 2_048 };
/// How long a client may take over the head of a request, and may keep a connection open without one.
const HEAD_WITHIN: Duration = Duration::from_secs(30);
/// How long a client may read or send nothing while it should.
const STALLED_AFTER: Duration = Duration::from_secs(10);
/// Bytes that are read ahead: the head of a request must fit in.
const BUFFER: usize = 16 << 10;
/// How long to wait after a connection could not be accepted: the process has too many files open, for example.
const PAUSE: Duration = Duration::from_millis(100);

/// Accepts connections and answers on each in a task of its own; dropped, it ends them all. Once it `ends`, each gets
/// the answer that is under way; who connects until the last of them has it gets one as well.
pub(super) async fn serve(listener: &TcpListener, tls: Option<&Tls>, router: Router, ends: &CancellationToken) {
    let (mut tasks, mut open) = (JoinSet::new(), VecDeque::<AbortHandle>::new());
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(_) = tasks.join_next() => continue,
            () = ends.cancelled(), if tasks.is_empty() => return,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::debug!("cannot accept an HTTP connection: {error}");
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        open.retain(|task| !task.is_finished());
        if open.len() >= CONNECTIONS
            && let Some(oldest) = open.pop_front()
        {
            oldest.abort();
        }
        open.push_back(tasks.spawn(begin(stream, tls.map(Tls::acceptor), router.clone(), ends.clone())));
    }
}

/// Begins a connection, with TLS if there is some.
async fn begin(stream: TcpStream, tls: Option<TlsAcceptor>, router: Router, ends: CancellationToken) {
    let _ = stream.set_nodelay(true);
    let Some(tls) = tls else { return answer(stream, router, &ends).await };
    match timeout(HEAD_WITHIN, tls.accept(stream)).await {
        Ok(Ok(stream)) => answer(stream, router, &ends).await,
        Ok(Err(error)) => tracing::debug!("a client of HTTP and this node do not agree on TLS: {error}"),
        Err(_) => tracing::debug!("a client of HTTP did not begin with TLS in time"),
    }
}

/// Answers the requests of one connection, until either side closes it.
async fn answer(stream: impl AsyncRead + AsyncWrite, router: Router, ends: &CancellationToken) {
    let is_late = ends.is_cancelled();
    let mut stream = TimeoutStream::new(stream);
    stream.set_write_timeout(Some(STALLED_AFTER));
    let stream = TokioIo::new(Box::pin(stream));
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_WITHIN)
        .max_buf_size(BUFFER)
        .keep_alive(!is_late)
        .serve_connection(stream, TowerToHyperService::new(router));
    let mut served = std::pin::pin!(served);
    let ended = tokio::select! {
        ended = &mut served => ended,
        () = ends.cancelled(), if !is_late => {
            served.as_mut().graceful_shutdown();
            served.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!("an HTTP connection ended: {error}");
    }
}
