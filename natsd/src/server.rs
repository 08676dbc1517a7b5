//! One private nats-server and its life: started, watched, killed, frozen, restarted, stopped.
//!
//! Owns the child, its folder and its port; all three stay the same across restarts. Ready means that the server itself
//! said so in its log, which it does once JetStream has recovered and the port is open; nothing is guessed by time. The
//! server does not restart by itself: its owner awaits [`Server::ended`] and decides.

use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tempfile::TempDir;

use crate::error::Error;
use crate::find::find_or_provision;
use crate::log::Log;
use crate::options::Options;
use crate::process::{Process, Signal};

/// The server prints this when clients may connect.
const READY: &str = "Server is ready";

/// A part of the line that it prints when another process has its port.
const PORT_TAKEN: &str = "address already in use";

/// How long it may take to end after SIGTERM. It closes its files within milliseconds; on a loaded machine that takes
/// seconds.
const GRACE: Duration = Duration::from_secs(15);

/// Lines of log shown with an error.
const SHOWN: usize = 20;

/// Free ports are searched below the range from which Linux (32768…) and macOS (49152…) take the ports of outgoing
/// connections. A server on a port of that range could find it taken when it restarts, even by its own clients: a
/// client that reconnects in a loop to a loopback port without a listener will now and then be given that very port and
/// connect to itself.
const FREE_PORTS: std::ops::Range<u16> = 20_000..32_000;

/// A private nats-server. Dropped, it is killed, and its folder is deleted if it was a temporary one.
#[derive(Debug)]
pub struct Server {
    binary: PathBuf,
    options: Options,
    port: u16,
    log: Arc<Log>,
    process: Mutex<Option<Arc<Process>>>,
    /// Held while the server is being started or stopped, so that two callers do not do both.
    changing: tokio::sync::Mutex<()>,
    // Dropped last: the child must be dead before its folder is deleted and the lock on it released.
    home: Home,
}

impl Server {
    /// Starts a server and waits until it is ready for clients.
    ///
    /// # Errors
    /// The errors of [`find_or_provision`]; a folder or port that is taken; a server that ends (because of bad `extra`
    /// text, say) or does not become ready, with the end of its log.
    pub async fn start(options: Options) -> Result<Server, Error> {
        let binary = match &options.binary {
            Some(binary) => binary.clone(),
            None => find_or_provision().await?,
        };
        let home = Home::open(options.dir.as_deref())?;
        let log = Arc::new(Log::open(home.path.join("nats-server.log"))?);
        let port = options.port.unwrap_or(0);
        let (process, changing) = (Mutex::new(None), tokio::sync::Mutex::new(()));
        let mut server = Server { binary, options, port, log, process, changing, home };
        server.first_launch().await?;
        Ok(server)
    }

    /// The address for clients: `nats://127.0.0.1:<port>`. The same for life.
    pub fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    /// The port on 127.0.0.1. The same for life.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The folder with configuration, log and data.
    pub fn dir(&self) -> &Path {
        &self.home.path
    }

    /// The server's output, over all its restarts.
    pub fn log(&self) -> &Arc<Log> {
        &self.log
    }

    /// The id of the running process, `None` while it is down.
    pub fn pid(&self) -> Option<u32> {
        self.slot().as_ref().filter(|process| process.is_running()).map(|process| process.pid())
    }

    /// Waits until the server is down, and returns how it ended.
    pub async fn ended(&self) -> ExitStatus {
        self.latest().ended().await
    }

    /// Kills it without warning and returns when it is dead. Nothing happens if it is down.
    pub async fn kill9(&self) {
        let process = self.latest();
        process.signal(Signal::KILL);
        process.ended().await;
    }

    /// Freezes it: it keeps its connections and sends nothing. Nothing happens if it is down.
    pub fn sigstop(&self) {
        self.latest().signal(Signal::STOP);
    }

    /// Lets a frozen server go on.
    pub fn sigcont(&self) {
        self.latest().signal(Signal::CONT);
    }

    /// Asks it to end (SIGTERM) and waits. Nothing happens if it is down.
    ///
    /// # Errors
    /// [`Error::Stuck`] if it did not end within 15 s; it is dead then all the same.
    pub async fn stop(&self) -> Result<(), Error> {
        let _changing = self.changing.lock().await;
        self.stop_now().await
    }

    /// Starts it again on the same port and folder and waits until it is ready. If it runs, it is stopped first.
    ///
    /// # Errors
    /// As [`Server::start`] and [`Server::stop`].
    pub async fn restart(&self) -> Result<(), Error> {
        let _changing = self.changing.lock().await;
        self.stop_now().await?;
        self.launch(self.port).await
    }

    async fn stop_now(&self) -> Result<(), Error> {
        let process = self.latest();
        process.signal(Signal::TERM);
        process.signal(Signal::CONT); // a frozen one would never see the first
        if tokio::time::timeout(GRACE, process.ended()).await.is_ok() {
            return Ok(());
        }
        process.signal(Signal::KILL);
        process.ended().await;
        Err(Error::Stuck { within: GRACE, log: self.log.tail(SHOWN) })
    }

    /// On a free port, the first try may lose a race against another server that found the same port free.
    async fn first_launch(&mut self) -> Result<(), Error> {
        if self.port != 0 {
            return self.launch(self.port).await;
        }
        loop {
            let port = free_port();
            match self.launch(port).await {
                Err(Error::PortTaken { .. }) => continue,
                Err(other) => return Err(other),
                Ok(()) => self.port = port,
            }
            return Ok(());
        }
    }

    async fn launch(&self, port: u16) -> Result<(), Error> {
        let config = self.home.path.join("nats-server.conf");
        let text = self.options.configuration(&self.home.path, port)?;
        fs::write(&config, text).map_err(Error::file("write", &config))?;

        let mut command = Command::new(&self.binary);
        command.arg("--config").arg(&config).current_dir(&self.home.path);
        let mark = self.log.mark();
        let (out, err) = (Arc::clone(&self.log), Arc::clone(&self.log));
        let err = move |line: &str| {
            pass_on(line);
            err.push(line);
        };
        let process = Process::spawn(command, Box::new(move |line| out.push(line)), Box::new(err))?;
        let process = Arc::new(process);
        *self.slot() = Some(Arc::clone(&process));

        let within = self.options.ready_within;
        tokio::select! {
            _ = self.log.seen(mark, |line| line.contains(READY)) => Ok(()),
            status = process.ended() => Err(self.ended_early(port, mark, status)),
            () = tokio::time::sleep(within) => {
                process.kill_now();
                Err(Error::NotReady { within, log: self.log.tail(SHOWN) })
            }
        }
    }

    fn ended_early(&self, port: u16, mark: u64, status: ExitStatus) -> Error {
        let lines = self.log.since(mark);
        if lines.iter().any(|line| line.contains(PORT_TAKEN)) {
            return Error::PortTaken { port };
        }
        Error::Ended { status, log: last_words(&lines) }
    }

    fn slot(&self) -> MutexGuard<'_, Option<Arc<Process>>> {
        self.process.lock().expect("no code panics while it holds the process")
    }

    fn latest(&self) -> Arc<Process> {
        self.slot().clone().expect("a server that was handed out has been started")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // A task that waits for the end may still hold the process, so the process's own drop is not enough.
        if let Some(process) = self.slot().take() {
            process.kill_now();
        }
    }
}

/// The end of a log, without the stacks that Go writes when a program panics: they would push the reason out of sight.
/// With a full disk the server panics at its start.
fn last_words(lines: &[String]) -> String {
    let stacks = lines.iter().position(|line| line.starts_with("goroutine ")).unwrap_or(lines.len());
    let said = &lines[..stacks];
    said[said.len().saturating_sub(SHOWN)..].join("\n")
}

/// Passes the server's warnings and errors on as our own; its other lines go to the debug level.
fn pass_on(line: &str) {
    let is_grave = ["[WRN]", "[ERR]", "[FTL]"].iter().any(|level| line.contains(level));
    if is_grave {
        tracing::warn!(target: "nats_server", "{line}");
    } else {
        tracing::debug!(target: "nats_server", "{line}");
    }
}

/// A port on 127.0.0.1 on which no process listened a moment ago, and which no outgoing connection gets.
pub fn free_port() -> u16 {
    loop {
        let port = rand::random_range(FREE_PORTS);
        if std::net::TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

/// The server's folder, used by this server alone.
#[derive(Debug)]
struct Home {
    path: PathBuf,
    lock: File,
    // Dropped last: the folder is removed after the file in it is released.
    _temporary: Option<TempDir>,
}

impl Home {
    fn open(wanted: Option<&Path>) -> Result<Home, Error> {
        let (path, temporary) = match wanted {
            Some(path) => (std::path::absolute(path).map_err(Error::file("find", path))?, None),
            None => {
                let folder = tempfile::Builder::new().prefix("longshore-nats-").tempdir();
                let folder = folder.map_err(Error::file("create a folder in", std::env::temp_dir()))?;
                (folder.path().to_owned(), Some(folder))
            }
        };
        fs::create_dir_all(&path).map_err(Error::file("create the folder", &path))?;
        // A nats-server does not notice a second one in its folder; both would write into the same streams.
        let lock = path.join("lock");
        let file = File::create(&lock).map_err(Error::file("create", &lock))?;
        match file.try_lock() {
            Ok(()) => Ok(Home { path, lock: file, _temporary: temporary }),
            Err(TryLockError::WouldBlock) => Err(Error::FolderTaken { path }),
            Err(TryLockError::Error(source)) => Err(Error::File { doing: "lock", path: lock, source }),
        }
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        // Closing the file alone is not enough: a child that another thread is just starting has a copy of it between
        // its fork and its exec, and the lock would last as long as the copy. Unlocking releases it for all copies.
        let _ = self.lock.unlock();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stack_does_not_hide_why_the_server_ended() {
        let mut log: Vec<String> = (0..100).map(|number| format!("[WRN] {number}")).collect();
        log.push("[ERR] Critical write error: write 2.new: no space left on device".to_owned());
        log.push("panic: invalid memory address".to_owned());
        log.push("goroutine 1 [running]:".to_owned());
        log.extend((0..60).map(|number| format!("github.com/nats-io/nats-server/v2/server.f{number}()")));
        let last = last_words(&log);
        assert!(last.contains("no space left on device") && last.ends_with("panic: invalid memory address"), "{last}");
        assert_eq!(last.lines().count(), SHOWN);
        assert_eq!(last_words(&log[..3]), "[WRN] 0\n[WRN] 1\n[WRN] 2");
        assert_eq!(last_words(&[]), "");
    }
}
