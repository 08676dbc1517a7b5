//! Stands between the client library and the NATS server on connections over which strangers' bytes come, so that a
//! message that the library cannot read costs itself alone: [`Frames`] writes it anew.
//!
//! The library takes no stream of its own, only an address. So this listens on a free port of the loopback address, and
//! passes on what comes from there to one server, and back. What it lets pass must have named a secret that only this
//! process knows: else another user of this machine could come to the server by it, with the node's client certificate.
//! It speaks TLS with the server, and knows which servers there are; the login is the library's, as are pings and
//! everything else.

use std::io;
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use async_nats::ServerAddr;
use bytes::BytesMut;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::AbortHandle;
use tokio_rustls::TlsConnector;

use crate::connection::address::{self, Login};
use crate::connection::frames::{Frames, line_end};
use crate::error::{Cause, Error};
use crate::settings::Connection;
use crate::ticks::pause;

/// How long either side may take until the library has said who it is.
const GREETING_WITHIN: Duration = Duration::from_secs(5);
/// A first line that is longer is no server's and not the library's. Servers take lines of 4 KiB by default.
const FIRST_LINE_MAX: usize = 64 << 10;
/// Connections that have not named the secret yet; further ones wait until they are accepted.
const UNADMITTED: usize = 64;
/// A process that stood still for as long as the shortest lease may have lost those of its jobs: what the library wrote
/// before is not passed on any more, or a handler would be called for a job that is another node's by now.
const STOOD_STILL: Duration = Duration::from_secs(1);
/// How often that is looked for.
const LOOK_EVERY: Duration = Duration::from_millis(200);
const AT_ONCE: usize = 64 << 10;

/// A connection to a server, with or without TLS.
trait Transport: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Transport for T {}

/// A server that has said who it is.
struct Greeted {
    far: Box<dyn Transport>,
    /// What it said, as the library is to see it.
    info: BytesMut,
    /// The reader of what it says from then on.
    frames: Frames,
}

struct ServerProxy {
    connection: Connection,
    /// Whether what was written before the process stood still is dropped.
    drops_stale: bool,
    known: Mutex<Vec<String>>,
    /// Which of the servers is next.
    turn: AtomicUsize,
    /// How the library's name ends.
    secret: String,
}

/// What stands in the library's way to the servers.
pub(crate) struct Way {
    pub(crate) connection: Connection,
    pub(crate) shown: String,
    /// Ends the listener. What has been connected goes on until one side ends it.
    pub(crate) listener: AbortHandle,
}

/// Opens a way to the servers for a client of that name. `drops_stale`: what it wrote before the process stood still is
/// not passed on.
pub(crate) async fn open(connection: &Connection, shown: &str, drops_stale: bool) -> Result<Way, Error> {
    let failed = |error: io::Error| Error::Connect { url: connection.shown_url(), source: Box::new(error) };
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    let random = uuid::Uuid::now_v7();
    let filter = Arc::new(ServerProxy {
        connection: connection.clone(),
        drops_stale,
        known: Mutex::default(),
        // Nodes begin with different servers.
        turn: AtomicUsize::new(random.as_bytes()[15].into()),
        secret: format!(" {}", random.simple()),
    });
    Ok(Way {
        connection: near(connection, format!("nats://{address}")),
        shown: format!("{shown}{}", filter.secret),
        listener: tokio::spawn(filter.listen(listener)).abort_handle(),
    })
}

/// The same login at another address, without TLS.
fn near(connection: &Connection, url: String) -> Connection {
    let mut near = Connection { url, ca: None, cert: None, key: None, ..connection.clone() };
    let has_own = near.creds.is_some() || near.nkey.is_some() || near.user.is_some() || near.token.is_some();
    match address::read(&connection.url).1.ok().flatten().filter(|_| !has_own) {
        Some(Login::User(user, password)) => (near.user, near.password) = (Some(user), Some(password)),
        Some(Login::Token(token)) => near.token = Some(token),
        None => {}
    }
    near
}

impl ServerProxy {
    async fn listen(self: Arc<Self>, listener: TcpListener) {
        let unadmitted = Arc::new(Semaphore::new(UNADMITTED));
        loop {
            // The semaphore is never closed.
            let Ok(permit) = Arc::clone(&unadmitted).acquire_owned().await else { return };
            match listener.accept().await {
                Ok((near, _)) => {
                    let filter = Arc::clone(&self);
                    tokio::spawn(async move {
                        // The library sees that the connection has ended, and tries again; the other connections of
                        // the node say why there is none.
                        if let Err(error) = filter.relay(near, permit).await {
                            tracing::debug!("a connection to NATS ended: {error}");
                        }
                    });
                }
                // Out of file descriptors, for example.
                Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
            }
        }
    }

    async fn relay(&self, mut near: TcpStream, unadmitted: OwnedSemaphorePermit) -> Result<(), Cause> {
        near.set_nodelay(true)?;
        let (near, far, mut frames) = tokio::time::timeout(GREETING_WITHIN, async {
            let Greeted { mut far, info, frames } = self.dial().await?;
            near.write_all(&info).await?;
            let mut said = BytesMut::with_capacity(AT_ONCE);
            let end = read_line(&mut near, &mut said).await?;
            let connect = self.admitted(&said.split_to(end)).ok_or("a stranger spoke to the node's way to NATS")?;
            far.write_all(connect.as_bytes()).await?;
            far.write_all(&said).await?;
            far.flush().await?;
            Ok::<_, Cause>((near, far, frames))
        })
        .await??;
        drop(unadmitted);
        let ((near_in, near_out), (far_in, far_out)) = (near.into_split(), tokio::io::split(far));
        let awake = Awake(Mutex::new(Instant::now()));
        tokio::select! {
            end = awake.watch(), if self.drops_stale => end,
            end = pump(near_in, far_out, |read, out| {
                std::mem::swap(read, out);
                if self.drops_stale { awake.check() } else { Ok(()) }
            }) => end,
            end = pump(far_in, near_out, |read, out| {
                frames.pass(read, out)?;
                self.learn(&mut frames);
                Ok(())
            }) => end,
        }
    }

    /// Connects to the next server that answers. The library knows this way alone, and gives a start up with it: so the
    /// others are tried here, as it would try them.
    async fn dial(&self) -> Result<Greeted, Cause> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let addresses = address::with_announced(address::read(&self.connection.url).0, &known);
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        let within = GREETING_WITHIN / u32::try_from(addresses.len())?;
        let mut last: Cause = "no server is named".into();
        for nth in 0..addresses.len() {
            let server: ServerAddr = addresses[(turn + nth) % addresses.len()].parse()?;
            match tokio::time::timeout(within, self.greet(&server)).await {
                Ok(Ok(greeted)) => return Ok(greeted),
                Ok(Err(error)) => last = error,
                Err(elapsed) => last = elapsed.into(),
            }
        }
        Err(last)
    }

    async fn greet(&self, server: &ServerAddr) -> Result<Greeted, Cause> {
        let mut far = TcpStream::connect((server.host(), server.port())).await?;
        far.set_nodelay(true)?;
        let (mut said, mut info, mut frames) = (BytesMut::new(), BytesMut::new(), Frames::default());
        let end = read_line(&mut far, &mut said).await?;
        let wants_tls = is_tls_required(&said[..end]);
        frames.pass(&mut said, &mut info)?;
        self.learn(&mut frames);
        if !wants_tls && !server.tls_required() && self.connection.ca.is_none() {
            return Ok(Greeted { far: Box::new(far), info, frames });
        }
        let connection = self.connection.clone();
        let tls = tokio::task::spawn_blocking(move || tls(&connection)).await??;
        let name = ServerName::try_from(server.host().to_owned())?;
        let far = TlsConnector::from(Arc::new(tls)).connect(name, far).await?;
        Ok(Greeted { far: Box::new(far), info, frames })
    }

    fn learn(&self, frames: &mut Frames) {
        if !frames.servers.is_empty() {
            *self.known.lock().unwrap_or_else(PoisonError::into_inner) = std::mem::take(&mut frames.servers);
        }
    }

    /// The library's first line as the server is to see it; `None`: it does not come from this node.
    fn admitted(&self, line: &[u8]) -> Option<String> {
        let mut connect: Value = serde_json::from_slice(line.strip_prefix(b"CONNECT ")?).ok()?;
        let name = connect["name"].as_str()?.strip_suffix(&self.secret)?.to_owned();
        connect["name"] = name.into();
        Some(format!("CONNECT {connect}\r\n"))
    }
}

/// When a relay last saw that its process had not stood still.
struct Awake(Mutex<Instant>);

impl Awake {
    /// Looks again and again, until the process has stood still.
    async fn watch(&self) -> Result<(), Cause> {
        loop {
            pause(LOOK_EVERY).await;
            self.check()?;
            *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
        }
    }

    fn check(&self) -> Result<(), Cause> {
        let stood_still = self.0.lock().unwrap_or_else(PoisonError::into_inner).elapsed();
        if stood_still >= STOOD_STILL {
            return Err(format!("this process stood still for {stood_still:?}").into());
        }
        Ok(())
    }
}

fn is_tls_required(info: &[u8]) -> bool {
    let info = info.strip_prefix(b"INFO ").and_then(|json| serde_json::from_slice::<Value>(json).ok());
    info.is_some_and(|info| info["tls_required"] == true)
}

/// Reads until the first line is there; returns where it ends.
async fn read_line(from: &mut TcpStream, said: &mut BytesMut) -> Result<usize, Cause> {
    let mut searched = 0;
    loop {
        if let Some(end) = line_end(&said[searched..]) {
            return Ok(searched + end);
        }
        searched = said.len();
        if searched > FIRST_LINE_MAX {
            return Err("its first line does not end".into());
        }
        if from.read_buf(said).await? == 0 {
            return Err("it was closed at once".into());
        }
    }
}

/// Passes on what comes, as `pass` has it, until there is nothing more.
async fn pump(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    mut pass: impl FnMut(&mut BytesMut, &mut BytesMut) -> Result<(), Cause>,
) -> Result<(), Cause> {
    let (mut read, mut out) = (BytesMut::with_capacity(AT_ONCE), BytesMut::with_capacity(AT_ONCE));
    loop {
        read.reserve(AT_ONCE);
        if from.read_buf(&mut read).await? == 0 {
            return Ok(());
        }
        pass(&mut read, &mut out)?;
        to.write_all(&out).await?;
        to.flush().await?;
        out.clear();
    }
}

/// TLS as the client library has it by the same settings.
fn tls(connection: &Connection) -> Result<rustls::ClientConfig, Cause> {
    let mut roots = rustls::RootCertStore::empty();
    match &connection.ca {
        Some(path) => {
            for certificate in CertificateDer::pem_file_iter(path)? {
                roots.add(certificate?)?;
            }
        }
        None => drop(roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs)),
    }
    let tls = rustls::ClientConfig::builder().with_root_certificates(roots);
    Ok(match (&connection.cert, &connection.key) {
        (Some(cert), Some(key)) => {
            let chain = CertificateDer::pem_file_iter(cert)?.collect::<Result<Vec<_>, _>>()?;
            tls.with_client_auth_cert(chain, PrivateKeyDer::from_pem_file(key)?)?
        }
        _ => tls.with_no_client_auth(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is read as the first line of somebody who says this and then ends the connection; or why it is not read.
    async fn first_line(says: Vec<u8>) -> Result<usize, String> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let mut stranger = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (mut near, _) = listener.accept().await.unwrap();
        tokio::spawn(async move { stranger.write_all(&says).await });
        read_line(&mut near, &mut BytesMut::new()).await.map_err(|error| error.to_string())
    }

    #[tokio::test]
    async fn a_stranger_whose_first_line_does_not_end_is_cut_off() {
        assert_eq!(first_line(b"CONNECT {}\r\nPING\r\n".to_vec()).await, Ok(12));
        assert_eq!(first_line([vec![b' '; FIRST_LINE_MAX - 1], b"\nPING".to_vec()].concat()).await, Ok(FIRST_LINE_MAX));
        assert_eq!(first_line(vec![b' '; 1 << 20]).await, Err("its first line does not end".to_owned()));
        assert_eq!(first_line(b"CONNECT".to_vec()).await, Err("it was closed at once".to_owned()));
    }
}
