//! A node: the real binary, started with `longshore serve` in its own process, and the things that a test can do to it.
//!
//! Settings are TOML as in the contract, merged by table; HTTP is off unless a test turns it on. The node's output
//! (JSON logs on stderr, `ready` on stdout) goes to `<name>.log` in the world's folder and into memory.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Command, ExitStatus};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use longshore_natsd::{Log, Process, Signal};
use serde_json::Value;
use tokio::sync::watch;

use crate::connect::chain;
use crate::settings::merged;
use crate::usage::Usage;
use crate::world::World;

/// How long a node may take until it says that it is ready.
const READY_WITHIN: Duration = Duration::from_secs(240);

/// How long [`Node::stop`] waits: a little longer than the default grace period of a shutdown.
const STOP_WITHIN: Duration = Duration::from_secs(45);

/// Lines of log shown after a failure.
const SHOWN: usize = 40;

impl World {
    /// A node, to be configured and started.
    pub fn node(&self) -> NodeBuilder<'_> {
        let mut pieces = vec!["[http]\nlisten = \"off\"".to_owned()];
        if self.server_cluster().is_some() {
            pieces.push("[storage]\nreplicas = 3".to_owned());
        }
        NodeBuilder { world: self, name: None, pieces, env: Vec::new() }
    }
}

/// The settings of a node that has not been started yet.
#[derive(Debug)]
pub struct NodeBuilder<'w> {
    pub(crate) world: &'w World,
    name: Option<String>,
    pieces: Vec<String>,
    env: Vec<(String, String)>,
}

impl NodeBuilder<'_> {
    /// Its name in records and events; if not given, `n1`, `n2`, … in the order of starting.
    #[must_use]
    pub fn name(mut self, name: &str) -> Self {
        self.name = Some(name.to_owned());
        self
    }

    /// Settings as TOML, complete or in part. A later value overrides an earlier one; tables of the same name are
    /// merged.
    #[must_use]
    pub fn config(mut self, toml: &str) -> Self {
        self.pieces.push(toml.to_owned());
        self
    }

    /// Settings of one table: `with("types.flaky", "handler = 'fail'")`.
    #[must_use]
    pub fn with(self, table: &str, entries: &str) -> Self {
        self.config(&format!("[{table}]\n{entries}"))
    }

    /// An environment variable. The node does not inherit the test's own variables that begin with `LONGSHORE_` or
    /// `NATS_`.
    #[must_use]
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.env.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Starts it and waits until it says that it takes work.
    ///
    /// # Panics
    /// If it ends before that, or does not become ready within a minute; the message has the end of its log.
    pub async fn start(self) -> Node {
        self.try_start().await.unwrap_or_else(|refusal| panic!("{refusal}"))
    }

    /// As [`NodeBuilder::start`], for a node that is expected to refuse its start: it ends before it is ready.
    ///
    /// # Errors
    /// How it ended and what it printed.
    ///
    /// # Panics
    /// If it neither became ready nor ended within a minute.
    pub async fn try_start(self) -> Result<Node, Refusal> {
        let world = self.world;
        let (name, log) = world.log_of_node(self.name);

        let config = world.dir().join(format!("{name}.toml"));
        let own_name = format!("[node]\nname = \"{name}\"");
        let text = merged([own_name.as_str()].into_iter().chain(self.pieces.iter().map(String::as_str)));
        std::fs::write(&config, text).unwrap_or_else(|error| panic!("cannot write {}: {error}", config.display()));
        let mut env = vec![("NATS_URL".to_owned(), world.urls())];
        env.extend(self.env);
        let launch = Launch { binary: world.binary(), config, env, dir: world.dir().to_owned() };
        let process = launch.go(&name, &log).await?;
        Ok(Node { name, launch, log, process: Mutex::new(Arc::new(process)) })
    }
}

/// A node that ended before it was ready.
#[derive(Debug)]
pub struct Refusal {
    /// Its name.
    pub name: String,
    /// How it ended.
    pub status: ExitStatus,
    /// The last lines it printed.
    pub log: String,
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Refusal { name, status, log } = self;
        write!(f, "node {name} ended ({status}) before it was ready; the end of its log:\n{log}")
    }
}

/// Everything needed to start the same node again.
#[derive(Debug)]
struct Launch {
    binary: PathBuf,
    config: PathBuf,
    env: Vec<(String, String)>,
    dir: PathBuf,
}

impl Launch {
    async fn go(&self, name: &str, log: &Arc<Log>) -> Result<Process, Refusal> {
        let mut command = Command::new(&self.binary);
        command.arg("serve").arg("--config").arg(&self.config).current_dir(&self.dir);
        without_ours(&mut command);
        command.envs(self.env.iter().map(|(name, value)| (name, value)));

        let mark = log.mark();
        let (sender, mut ready) = watch::channel(false);
        let (out, err) = (Arc::clone(log), Arc::clone(log));
        let stdout = Box::new(move |line: &str| {
            out.push(line);
            if says_ready(line) {
                sender.send_replace(true);
            }
        });
        let process = Process::spawn(command, stdout, Box::new(move |line| err.push(line)));
        let process = process.unwrap_or_else(|error| panic!("node {name}: {}", chain(&error)));
        let waited = tokio::time::timeout(READY_WITHIN, async {
            tokio::select! {
                Ok(_) = ready.wait_for(|ready| *ready) => None,
                status = process.ended() => Some(status),
            }
        });
        match waited.await {
            Ok(None) => Ok(process),
            Ok(Some(status)) => {
                let lines = log.since(mark);
                let log = lines[lines.len().saturating_sub(SHOWN)..].join("\n");
                Err(Refusal { name: name.to_owned(), status, log })
            }
            Err(_) => panic!("node {name} was not ready within {READY_WITHIN:?}; its log:\n{}", log.tail(SHOWN)),
        }
    }
}

/// Settings meant for the tests must not reach the node under test.
pub(crate) fn without_ours(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        let ours = name.to_str().is_some_and(|name| name.starts_with("LONGSHORE_") || name.starts_with("NATS_"));
        if ours {
            command.env_remove(name);
        }
    }
}

/// Accepts `ready` alone, or an object whose `event` is `ready`.
fn says_ready(line: &str) -> bool {
    let event = |line| serde_json::from_str::<Value>(line).is_ok_and(|object| object["event"] == "ready");
    line.trim() == "ready" || event(line)
}

/// A node that runs, or that has ended and can be restarted. Dropped, it is killed with everything it started.
#[derive(Debug)]
pub struct Node {
    name: String,
    launch: Launch,
    log: Arc<Log>,
    process: Mutex<Arc<Process>>,
}

impl Node {
    /// Its name in records and events.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Where it listens for HTTP, as its log says; a test turns it on with `.with("http", "listen = '127.0.0.1:0'")`.
    ///
    /// # Panics
    /// If its log does not say so.
    pub fn http(&self) -> SocketAddr {
        let address = |line: &String| {
            let line: Value = serde_json::from_str(line).ok()?;
            (line["message"] == "serving HTTP").then(|| line["address"].as_str()?.parse().ok()).flatten()
        };
        let lines = self.log.since(0);
        // After a restart the last one counts.
        let found = lines.iter().rev().find_map(address);
        found.unwrap_or_else(|| panic!("node {} does not say where it listens:\n{}", self.name, self.log.tail(SHOWN)))
    }

    /// The id of its process, also after its end.
    pub fn pid(&self) -> u32 {
        self.process().pid()
    }

    /// Whether it has not ended.
    pub fn is_running(&self) -> bool {
        self.process().is_running()
    }

    /// Everything it printed, over all its restarts; `log().seen(…)` waits for a line.
    pub fn log(&self) -> &Arc<Log> {
        &self.log
    }

    /// Kills it without warning and returns when it is dead.
    pub async fn kill9(&self) {
        let process = self.process();
        process.signal(Signal::KILL);
        process.ended().await;
    }

    /// Freezes it.
    pub fn sigstop(&self) {
        self.process().signal(Signal::STOP);
    }

    /// Lets it go on after [`Node::sigstop`].
    pub fn sigcont(&self) {
        self.process().signal(Signal::CONT);
    }

    /// Whether it is frozen: by [`Node::sigstop`], or because it stopped itself.
    pub fn is_frozen(&self) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid())).unwrap_or_default();
        // The state is the first field behind the program's name, which stands in brackets (proc(5)).
        stat.rsplit(')').next().is_some_and(|fields| fields.trim_start().starts_with('T'))
    }

    /// Asks it to drain and end; [`Node::wait_exit`] waits for the end.
    pub fn sigterm(&self) {
        self.process().signal(Signal::TERM);
    }

    /// Sends any other signal.
    pub fn signal(&self, signal: Signal) {
        self.process().signal(signal);
    }

    /// Waits for its end.
    ///
    /// # Panics
    /// If it still runs after that time; the message has the end of its log.
    pub async fn wait_exit(&self, within: Duration) -> ExitStatus {
        let process = self.process();
        let ended = tokio::time::timeout(within, process.ended()).await;
        ended.unwrap_or_else(|_| {
            panic!("node {} runs on after {within:?}; its log:\n{}", self.name, self.log.tail(SHOWN))
        })
    }

    /// Asks it to drain and waits for its end, for at most 45 s.
    ///
    /// # Panics
    /// As [`Node::wait_exit`].
    pub async fn stop(&self) -> ExitStatus {
        self.sigterm();
        self.wait_exit(STOP_WITHIN).await
    }

    /// Starts it again with the same settings and waits until it is ready. If it still runs, it is drained first.
    ///
    /// # Panics
    /// As [`Node::stop`] and [`NodeBuilder::start`].
    pub async fn restart(&self) {
        self.try_restart().await.unwrap_or_else(|refusal| panic!("{refusal}"));
    }

    /// As [`Node::restart`], for a node that may refuse its start: it ends before it is ready.
    ///
    /// # Errors
    /// How it ended and what it printed.
    ///
    /// # Panics
    /// As [`Node::stop`], and if it neither became ready nor ended within a minute.
    pub async fn try_restart(&self) -> Result<(), Refusal> {
        if self.is_running() {
            self.stop().await;
        }
        let process = self.launch.go(&self.name, &self.log).await?;
        *self.process.lock().expect("no code panics while it holds the process") = Arc::new(process);
        Ok(())
    }

    /// The resources it has used so far.
    ///
    /// # Panics
    /// If it has ended, or the system does not report them.
    pub fn usage(&self) -> Usage {
        Usage::of(self.pid())
    }

    fn process(&self) -> Arc<Process> {
        Arc::clone(&self.process.lock().expect("no code panics while it holds the process"))
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // A task that waits for the end may still hold the process, so the process's own drop is not enough.
        self.process().kill_now();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ready_is_said_alone_or_as_an_object() {
        assert!(says_ready("ready") && says_ready(r#"{"at":"…","event":"ready"}"#));
        assert!(!says_ready("already") && !says_ready(r#"{"event":"draining"}"#) && !says_ready("not ready"));
    }
}
