//! The client by which a node calls addresses that others name: targets of webhooks.
//!
//! `guard` says which addresses may be called. The connector resolves a name once, dials only an address that was
//! judged, and judges the connected peer again. It knows no proxy variables, follows no redirect (a 3xx is an answer
//! like any other), decodes no compression, and reads an answer only up to a limit.
//!
//! It may not know what is sent, or what an answer means.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::header::HeaderMap;
use hyper::{Request, Uri};
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::Client;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustls::crypto::aws_lc_rs;
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};
use tower_service::Service;

mod guard;

pub(crate) use guard::{Allow, Refused};

/// How long one address may take to accept a connection.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);
/// How long an unused connection is kept, and how many of one host. A request that goes out as the server closes its
/// connection fails, so this is less than the shortest keep-alive that is usual (gunicorn: 2 s; Node and Apache: 5 s).
const IDLE: Duration = Duration::from_secs(1);
const IDLE_OF_A_HOST: usize = 8;
/// The most headers of an answer; one with more is a broken one. The default, 100, fails answers that browsers take.
const MAX_HEADERS: usize = 1_000;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NoAnswer {
    #[error(transparent)]
    Refused(#[from] Refused),
    #[error("no answer within {} ms", .0.as_millis())]
    TooLate(Duration),
    /// There is no connection, or it broke.
    #[error("{0}")]
    Failed(String),
}

#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    /// Its body, as far as it was read.
    pub(crate) body: Bytes,
    /// Whether there was more of it.
    pub(crate) truncated: bool,
}

/// The client. Cheap to clone; clones share their connections.
#[derive(Debug, Clone)]
pub(crate) struct Outbound {
    allow: Arc<Allow>,
    client: Client<HttpsConnector<Connector>, Full<Bytes>>,
}

impl Outbound {
    /// A client that may call what is globally routable, and what `allow` has. It trusts the certificates of the
    /// system; where there are none, no https can be called.
    pub(crate) fn new(allow: Allow) -> Self {
        Self::trusting(allow, system_roots())
    }

    /// The same, trusting these certificates instead of the system's.
    pub(crate) fn trusting(allow: Allow, roots: RootCertStore) -> Self {
        let tls = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("the provider has the default versions");
        let tls = tls.with_root_certificates(roots).with_no_client_auth();
        let allow = Arc::new(allow);
        let connector = hyper_rustls::HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http().enable_http1();
        let connector = connector.wrap_connector(Connector(Arc::clone(&allow)));
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE)
            .pool_max_idle_per_host(IDLE_OF_A_HOST)
            .http1_max_headers(MAX_HEADERS)
            .build(connector);
        Self { allow, client }
    }

    /// Whether a URL may be called as its name resolves now. One that resolves to nothing now may.
    pub(crate) async fn check(&self, url: &Uri) -> Result<(), Refused> {
        match self.allow.resolve(url).await {
            Ok(_) | Err(Refused::Unknown(_)) => Ok(()),
            Err(refused) => Err(refused),
        }
    }

    /// Sends a request and reads at most `most` bytes of the answer's body; all of it within the time limit.
    pub(crate) async fn send(
        &self,
        request: Request<Full<Bytes>>,
        within: Duration,
        most: usize,
    ) -> Result<Answer, NoAnswer> {
        let deadline = Instant::now() + within;
        // Before a connection from the pool is used, too: the guard speaks for every request.
        guard::target(request.uri())?;
        let sent = timeout_at(deadline, self.client.request(request)).await.map_err(|_| NoAnswer::TooLate(within))?;
        let (head, mut body) = sent.map_err(|error| reason(&error))?.into_parts();
        let (mut read, mut truncated) = (Vec::new(), false);
        while let Some(frame) = timeout_at(deadline, body.frame()).await.map_err(|_| NoAnswer::TooLate(within))? {
            let Ok(data) = frame.map_err(|error| reason(&error))?.into_data() else { continue };
            let room = most - read.len();
            read.extend_from_slice(&data[..data.len().min(room)]);
            if data.len() > room {
                truncated = true;
                break;
            }
        }
        Ok(Answer { status: head.status.as_u16(), headers: head.headers, body: read.into(), truncated })
    }
}

/// The certificates that the system trusts; those that cannot be read are left out.
pub(crate) fn system_roots() -> RootCertStore {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    roots
}

/// What a client's error says: the refusal, or the last of its causes.
fn reason(error: &(dyn std::error::Error + 'static)) -> NoAnswer {
    let (mut cause, mut text) = (error.source(), error.to_string());
    while let Some(error) = cause {
        if let Some(refused) = error.downcast_ref::<Refused>() {
            return NoAnswer::Refused(refused.clone());
        }
        text = error.to_string();
        cause = error.source();
    }
    NoAnswer::Failed(text)
}

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Dials addresses that were judged.
#[derive(Debug, Clone)]
struct Connector(Arc<Allow>);

impl Service<Uri> for Connector {
    type Response = TokioIo<TcpStream>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, url: Uri) -> Self::Future {
        let allow = Arc::clone(&self.0);
        Box::pin(async move {
            let stream = dial(&allow, &url).await?;
            // The kernel's word on who was reached, whatever stands in between.
            allow.check(url.host().unwrap_or_default(), stream.peer_addr()?.ip())?;
            stream.set_nodelay(true)?;
            Ok(TokioIo::new(stream))
        })
    }
}

async fn dial(allow: &Allow, url: &Uri) -> Result<TcpStream, BoxError> {
    let mut last: BoxError = "has no address".into();
    for address in allow.resolve(url).await? {
        match tokio::time::timeout(CONNECT_WITHIN, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(error)) => last = format!("cannot connect to {address}: {error}").into(),
            Err(_) => last = format!("{address} does not accept a connection").into(),
        }
    }
    Err(last)
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;

    /// A server with a large page, a redirect to it, many headers, and silence.
    async fn served() -> u16 {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let mut head = [0; 1024];
                    let read = stream.read(&mut head).await.unwrap();
                    let head = String::from_utf8_lossy(&head[..read]).into_owned();
                    let answer = if head.starts_with("GET /large ") {
                        format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{}", 1 << 20, "x".repeat(1 << 20))
                    } else if head.starts_with("GET /elsewhere ") {
                        "HTTP/1.1 307 Moved\r\nLocation: /large\r\nContent-Length: 0\r\n\r\n".to_owned()
                    } else if head.starts_with("GET /many ") {
                        format!("HTTP/1.1 200 OK\r\n{}Content-Length: 0\r\n\r\n", "A: b\r\n".repeat(900))
                    } else {
                        std::future::pending().await
                    };
                    let _ = stream.write_all(answer.as_bytes()).await;
                });
            }
        });
        port
    }

    async fn ask(allow: &[&str], url: String, within: Duration) -> Result<Answer, NoAnswer> {
        let client = Outbound::new(Allow::read(allow.iter().copied()).unwrap());
        client.send(Request::get(url).body(Full::default()).unwrap(), within, 1_000).await
    }

    #[tokio::test]
    async fn an_answer_is_cut_and_a_redirect_is_not_followed() {
        let port = served().await;
        let own = ["127.0.0.0/8"];
        let large = ask(&own, format!("http://127.0.0.1:{port}/large"), Duration::from_secs(20)).await.unwrap();
        assert_eq!((large.status, large.body.len(), large.truncated), (200, 1_000, true));
        let elsewhere = ask(&own, format!("http://127.0.0.1:{port}/elsewhere"), Duration::from_secs(20)).await.unwrap();
        assert_eq!((elsewhere.status, elsewhere.truncated), (307, false));
        let many = ask(&own, format!("http://127.0.0.1:{port}/many"), Duration::from_secs(20)).await.unwrap();
        assert_eq!(many.headers.len(), 901);
        let never = ask(&own, format!("http://127.0.0.1:{port}/never"), Duration::from_millis(200)).await;
        assert!(matches!(never, Err(NoAnswer::TooLate(_))), "{never:?}");
    }

    #[tokio::test]
    async fn nothing_is_dialed_that_is_not_allowed() {
        let port = served().await;
        for host in ["127.0.0.1", "localhost", "127.1", "[::ffff:127.0.0.1]"] {
            let refused = ask(&[], format!("http://{host}:{port}/large"), Duration::from_secs(20)).await;
            assert!(matches!(refused, Err(NoAnswer::Refused(Refused::Address { .. }))), "{host}: {refused:?}");
        }
        let by_name = ask(&["localhost"], format!("http://localhost:{port}/large"), Duration::from_secs(20)).await;
        assert_eq!(by_name.unwrap().status, 200);
    }
}
