//! The private NATS server of `dev`: on the usual port if that is free, in a folder of the project's own, restarted
//! when it dies.

use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use longshore::config::DEFAULT_URL;
use longshore_domain::restart::Restarts;
use longshore_natsd::{Error, Options, Server};

/// The port on which clients expect NATS.
const USUAL: u16 = 4222;

/// Kept out of version control by the line that `dev` writes into it.
const FOLDER: &str = ".longshore";

/// JetStream reserves the size that every stream may grow to, by our defaults 11 GiB and 5 more for each further queue.
/// A laptop that runs trials uses next to nothing of it. So the server is set to store this much at most; the disk is
/// the bound.
const ROOM: u64 = 1 << 40;

/// Another start does not help a server that keeps dying.
const MAX_DEATHS: usize = 5;
const WITHIN: Duration = Duration::from_secs(60);

pub(crate) struct PrivateServer {
    server: Server,
    kept: Option<PathBuf>,
}

impl PrivateServer {
    /// Starts it; downloads nats-server first if none is new enough.
    pub(crate) async fn start(ephemeral: bool, dir: Option<PathBuf>, port: Option<u16>) -> anyhow::Result<Self> {
        let kept = (!ephemeral).then(|| dir.unwrap_or_else(|| PathBuf::from(FOLDER)));
        let folder = kept.as_deref().map(prepare).transpose()?;
        let options = |port| Options { port, dir: folder.clone(), max_file: ROOM, ..Options::default() };
        let wanted = port.or_else(|| is_free(USUAL).then_some(USUAL));
        let started = match Server::start(options(wanted)).await {
            // Another program took the port meanwhile.
            Err(Error::PortTaken { .. }) if port.is_none() => Server::start(options(None)).await,
            other => other,
        };
        Ok(Self { server: started.context("no private NATS server")?, kept })
    }

    /// Its address. On the usual port it is the default one, so that nothing needs to be set.
    pub(crate) fn url(&self) -> String {
        if self.server.port() == USUAL { DEFAULT_URL.to_owned() } else { self.server.url() }
    }

    /// The folder that stays when it ends, if one does.
    pub(crate) fn kept(&self) -> Option<&Path> {
        self.kept.as_deref()
    }

    pub(crate) async fn stop(&self) -> anyhow::Result<()> {
        self.server.stop().await.context("the private NATS server did not end cleanly")
    }
}

fn is_free(port: u16) -> bool {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok()
}

/// Makes the folder, invisible to git; its path is absolute, since the server's configuration names it.
fn prepare(folder: &Path) -> anyhow::Result<PathBuf> {
    let failed = || format!("cannot make the folder {}", folder.display());
    std::fs::create_dir_all(folder).with_context(failed)?;
    let ignore = folder.join(".gitignore");
    if !ignore.exists() {
        std::fs::write(&ignore, "*\n").with_context(failed)?;
    }
    std::path::absolute(folder.join("nats")).with_context(failed)
}

/// Restarts the server whenever it has died, and returns only when that does not help. Without a server it never
/// returns.
pub(crate) async fn supervise(server: Option<&PrivateServer>) -> anyhow::Error {
    let Some(PrivateServer { server, .. }) = server else { return std::future::pending().await };
    let mut restarts = Restarts::new(MAX_DEATHS, WITHIN);
    loop {
        let status = server.ended().await;
        let starts_again = restarts.after_death(Instant::now());
        if !starts_again {
            let log = server.dir().join("nats-server.log");
            return anyhow::anyhow!("the private NATS server keeps dying ({status}); its log: {}", log.display());
        }
        tracing::warn!("the private NATS server died ({status}); starting it again");
        if let Err(error) = server.restart().await {
            return anyhow::Error::new(error).context("the private NATS server cannot be started again");
        }
    }
}
