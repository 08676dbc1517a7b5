//! The private NATS server of `dev`: on the usual port if that is free, in a folder of the project's own, started anew
//! when it dies.

use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use longshore::config::nats::DEFAULT_URL;
use longshore_domain::restart::{Restarts, Verdict};
use longshore_natsd::{Error, Options, Server};

/// The port on which everybody looks for NATS.
const USUAL: u16 = 4222;

/// Kept out of version control by the line that `dev` writes into it.
const FOLDER: &str = ".longshore";

/// JetStream sets aside what every stream may grow to, by our defaults 11 GiB and 5 more for each further queue, of
/// which a laptop that tries things out uses next to nothing. So the server is told that there is room; the disk is the
/// bound.
const ROOM: u64 = 1 << 40;

/// A server that keeps dying is not helped by another start.
const MAX_DEATHS: usize = 5;
const WITHIN: Duration = Duration::from_secs(60);

/// A nats-server of our own.
pub(crate) struct PrivateServer {
    server: Server,
    kept: Option<PathBuf>,
}

impl PrivateServer {
    /// Starts it; downloads nats-server first where there is none new enough.
    pub(crate) async fn start(ephemeral: bool, dir: Option<PathBuf>, port: Option<u16>) -> anyhow::Result<Self> {
        let kept = (!ephemeral).then(|| dir.unwrap_or_else(|| PathBuf::from(FOLDER)));
        let folder = kept.as_deref().map(prepare).transpose()?;
        let options = |port| Options { port, dir: folder.clone(), max_file: ROOM, ..Options::default() };
        let wanted = port.or_else(|| is_free(USUAL).then_some(USUAL));
        let started = match Server::start(options(wanted)).await {
            // Somebody was faster.
            Err(Error::PortTaken { .. }) if port.is_none() => Server::start(options(None)).await,
            other => other,
        };
        Ok(Self { server: started.context("no private NATS server")?, kept })
    }

    /// Its address. On the usual port as everybody writes it, so that nothing needs to be set.
    pub(crate) fn url(&self) -> String {
        if self.server.port() == USUAL { DEFAULT_URL.to_owned() } else { self.server.url() }
    }

    /// The folder that stays when it ends, if one does.
    pub(crate) fn kept(&self) -> Option<&Path> {
        self.kept.as_deref()
    }

    /// Ends it.
    pub(crate) async fn stop(&self) -> anyhow::Result<()> {
        self.server.stop().await.context("the private NATS server did not end cleanly")
    }
}

fn is_free(port: u16) -> bool {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok()
}

/// Makes the folder, absolute since the server's configuration names it, and invisible to git.
fn prepare(folder: &Path) -> anyhow::Result<PathBuf> {
    let failed = || format!("cannot make the folder {}", folder.display());
    std::fs::create_dir_all(folder).with_context(failed)?;
    let ignore = folder.join(".gitignore");
    if !ignore.exists() {
        std::fs::write(&ignore, "*\n").with_context(failed)?;
    }
    std::path::absolute(folder.join("nats")).with_context(failed)
}

/// Starts the server anew whenever it has died, and returns only when that is of no use. Without a server it never does.
pub(crate) async fn supervise(server: Option<&PrivateServer>) -> anyhow::Error {
    let Some(PrivateServer { server, .. }) = server else { return std::future::pending().await };
    let mut restarts = Restarts::new(MAX_DEATHS, WITHIN);
    loop {
        let status = server.ended().await;
        if restarts.after_death(Instant::now()) == Verdict::GiveUp {
            let log = server.dir().join("nats-server.log");
            return anyhow::anyhow!("the private NATS server keeps dying ({status}); its log: {}", log.display());
        }
        tracing::warn!("the private NATS server died ({status}); starting it again");
        if let Err(error) = server.restart().await {
            return anyhow::Error::new(error).context("the private NATS server cannot be started again");
        }
    }
}
