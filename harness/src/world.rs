//! One test's world: a temporary folder, its own nats-server in it (or three), and a client connected to it.
//!
//! Worlds share nothing, so tests run side by side. A server can be killed and restarted under the client, which
//! reconnects by itself. If the environment variable `LONGSHORE_KEEP` is set, the folder stays for inspection.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use async_nats::{Client, ConnectOptions, jetstream};
use longshore_natsd::{Log, Options, Server};
use tempfile::TempDir;

use crate::cluster::ServerCluster;
use crate::connect::{ROOM, chain, connect};

/// The namespace that every world uses: each has its own server, so no other is needed.
pub(crate) const NAMESPACE: &str = "longshore";

/// The tenant that methods use unless another one is given.
pub(crate) const TENANT: &str = "default";

static BINARY: OnceLock<PathBuf> = OnceLock::new();

/// Names the `longshore` binary that nodes are started from: in a test, `env!("CARGO_BIN_EXE_longshore")`. Without this
/// call, the environment variable `LONGSHORE_BIN` names it. The first call in a process counts.
pub fn use_binary(path: impl Into<PathBuf>) {
    BINARY.get_or_init(|| path.into());
}

/// A server, a folder and a client, for one test. See the [crate].
#[derive(Debug)]
pub struct World {
    client: Client,
    jetstream: jetstream::Context,
    backing: Backing,
    /// The logs of every node of this world, in the order of their first start.
    logs: Mutex<Vec<(String, Arc<Log>)>>,
    // Dropped last: the server in it must be dead before the folder is deleted.
    dir: TempDir,
}

/// The server or servers that the world's nodes and clients connect to.
#[derive(Debug)]
enum Backing {
    One(Box<Server>),
    Three(Box<ServerCluster>),
}

impl World {
    /// A world whose server has default settings, except for a larger storage limit: streams reserve their limits,
    /// which no test ever fills.
    ///
    /// # Panics
    /// If no server is available, or it does not start. The functions below panic for the same reasons.
    pub async fn new() -> World {
        World::with(Options { max_file: ROOM, ..Options::default() }).await
    }

    /// A world whose server is started with these options (`sync_interval`, limits), but in the world's own folder.
    pub async fn with(options: Options) -> World {
        World::with_login(options, ConnectOptions::new()).await
    }

    /// As [`World::with`], for a server whose `extra` text has accounts or users: `login` names the user that methods
    /// act as.
    pub async fn with_login(options: Options, login: ConnectOptions) -> World {
        let dir = folder();
        let server = Server::start(Options { dir: Some(dir.path().join("nats")), ..options }).await;
        let server = server.unwrap_or_else(|error| panic!("no world without a server: {}", chain(&error)));
        let client = connect(&server.url(), login).await;
        World::of(client, Backing::One(Box::new(server)), dir)
    }

    /// A world of three servers in one cluster, each with its own store. Nodes keep three replicas of everything unless
    /// set otherwise; nodes and the client know all three servers.
    pub async fn cluster() -> World {
        let dir = folder();
        let servers = ServerCluster::start(dir.path()).await;
        let client = connect(&servers.urls(), ConnectOptions::new()).await;
        World::of(client, Backing::Three(Box::new(servers)), dir)
    }

    fn of(client: Client, backing: Backing, dir: TempDir) -> World {
        let mut jetstream = jetstream::new(client.clone());
        jetstream.set_timeout(Duration::from_secs(10));
        World { client, jetstream, backing, logs: Mutex::new(Vec::new()), dir }
    }

    /// The server: to kill, freeze, restart, or ask for its address. With three servers, the first.
    pub fn server(&self) -> &Server {
        match &self.backing {
            Backing::One(server) => server,
            Backing::Three(servers) => servers.server(0),
        }
    }

    /// The three servers of [`World::cluster`], `None` in a world of one.
    pub fn server_cluster(&self) -> Option<&ServerCluster> {
        match &self.backing {
            Backing::One(_) => None,
            Backing::Three(servers) => Some(servers),
        }
    }

    /// The three servers: to kill, freeze, cut from each other, and to move leaders between them.
    ///
    /// # Panics
    /// In a world of one server.
    pub fn servers(&self) -> &ServerCluster {
        self.server_cluster().expect("this world was made by World::cluster()")
    }

    /// The addresses of all servers, as `NATS_URL` has them.
    pub fn urls(&self) -> String {
        self.server_cluster().map_or_else(|| self.server().url(), ServerCluster::urls)
    }

    /// The client behind these methods, for anything they do not offer.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// JetStream as the client sees it.
    pub fn jetstream(&self) -> &jetstream::Context {
        &self.jetstream
    }

    /// Opens another connection: as another user, or one that a test wants to break.
    pub async fn connect(&self, options: ConnectOptions) -> Client {
        connect(&self.urls(), options).await
    }

    /// The world's folder, for files of the test's own. It is deleted with the world.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// The log of the node of this name; an earlier node of that name has the same log.
    pub(crate) fn log_of_node(&self, name: Option<String>) -> (String, Arc<Log>) {
        let mut logs = self.logs.lock().expect("no code panics while it holds the logs");
        let name = name.unwrap_or_else(|| format!("n{}", logs.len() + 1));
        if let Some((_, log)) = logs.iter().find(|(known, _)| *known == name) {
            return (name, Arc::clone(log));
        }
        let log = Log::open(self.dir().join(format!("{name}.log")));
        let log = Arc::new(log.expect("the world's own folder can be written"));
        logs.push((name.clone(), Arc::clone(&log)));
        (name, log)
    }

    /// The binary that nodes and the command line are started from.
    pub(crate) fn binary(&self) -> PathBuf {
        let named = || std::env::var_os("LONGSHORE_BIN").map(PathBuf::from);
        BINARY
            .get()
            .cloned()
            .or_else(named)
            .expect("call use_binary() or set LONGSHORE_BIN to name the longshore binary")
    }

    /// Name and log of every node of this world.
    pub(crate) fn node_logs(&self) -> Vec<(String, Arc<Log>)> {
        self.logs.lock().expect("no code panics while it holds the logs").clone()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.logs_in_short());
        }
    }
}

/// A temporary folder, which stays if `LONGSHORE_KEEP` is set.
fn folder() -> TempDir {
    let stays = std::env::var_os("LONGSHORE_KEEP").is_some();
    let dir = tempfile::Builder::new().prefix("longshore-world-").disable_cleanup(stays).tempdir();
    let dir = dir.expect("a temporary folder can be made");
    if stays {
        eprintln!("this world stays in {}", dir.path().display());
    }
    dir
}
