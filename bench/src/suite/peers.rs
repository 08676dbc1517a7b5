//! Other queues: each is a script or a program in `bench/peers` on a fresh server of its own. It says `begin` and
//! `end`, and between the two its time and that of its server are measured here, as the product's are.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, bail};
use longshore_harness::{Usage, World, free_ports};
use longshore_natsd::{Process, Signal};
use tempfile::TempDir;
use tokio::sync::mpsc::{self, UnboundedReceiver};
use tokio::time::{Instant, timeout, timeout_at};

use super::legs::Figure;
use super::{IN, OUT};
use crate::machine::{Cost, server_pid};

/// How long a server may take until it is ready, and a script until it begins.
const STARTS_WITHIN: Duration = Duration::from_secs(60);
/// A job of a script that has not failed takes less.
const SLOWEST_JOB: Duration = Duration::from_millis(10);

/// A queue to be measured.
#[derive(Debug)]
pub(super) struct Peer {
    /// As the command line has it.
    pub name: &'static str,
    script: &'static str,
    store: Store,
    /// How it was set, and what it loses when the machine loses power, by its documentation.
    terms: &'static str,
}

#[derive(Debug, Clone, Copy)]
enum Store {
    Redis,
    Postgres,
    Nats,
}

pub(super) const PEERS: [Peer; 5] = [
    Peer {
        name: "bullmq",
        script: "bullmq.mjs",
        store: Store::Redis,
        terms: "AOF each second: loses about 1 s; keeps completed jobs",
    },
    Peer {
        name: "graphile",
        script: "graphile.mjs",
        store: Store::Postgres,
        terms: "asynchronous commit: loses about 0.6 s; local queue of 500, completion in batches, keeps nothing",
    },
    Peer {
        name: "apalis",
        script: "apalis-peer",
        store: Store::Postgres,
        terms: "asynchronous commit: loses about 0.6 s; batches of 500, keeps completed jobs",
    },
    Peer {
        name: "celery",
        script: "celery_peer.py",
        store: Store::Redis,
        terms: "AOF each second: loses about 1 s; threads, late acknowledgement, keeps nothing",
    },
    Peer {
        name: "taskiq",
        script: "taskiq_peer.py",
        store: Store::Nats,
        terms: "file, lazy sync: loses up to 2 min; pulls of 64, keeps nothing of a run",
    },
];

impl Peer {
    /// What has to be installed first.
    pub(super) fn missing(&self, installed: &Path) -> Option<String> {
        let on_path = |name: &str| {
            let path = std::env::var_os("PATH").unwrap_or_default();
            std::env::split_paths(&path).any(|folder| folder.join(name).is_file())
        };
        let (package, folder) = match self.name {
            "bullmq" => ("Node.js and bullmq", "node_modules/bullmq"),
            "graphile" => ("Node.js and graphile-worker", "node_modules/graphile-worker"),
            "apalis" => ("Rust and apalis", "bin/apalis-peer"),
            "celery" => ("Python and celery", "py/bin/celery"),
            _ => ("Python and taskiq-nats", "py/bin/taskiq"),
        };
        let server = match self.store {
            Store::Redis if !on_path("redis-server") => Some("redis-server"),
            Store::Postgres if !on_path("postgres") && !on_path("psql") => Some("postgresql"),
            _ => None,
        };
        let missing = match installed.join(folder).exists() {
            true => server?,
            false => package,
        };
        Some(format!("{}: install {missing} (see bench/peers/setup.sh)", self.name))
    }

    /// Enqueues so many jobs on a fresh server, and drains them.
    pub(super) async fn leg(&self, installed: &Path, jobs: u64) -> anyhow::Result<Vec<Figure>> {
        let store = Running::start(self.store).await?;
        let both = async {
            let mut figures = Vec::new();
            for (what, unit) in [("enqueue", IN), ("drain", OUT)] {
                let within = STARTS_WITHIN + SLOWEST_JOB * u32::try_from(jobs)?;
                let mut command = self.command(installed, what);
                command.arg(jobs.to_string()).arg(&store.url);
                let script = Script::start(command)?;
                let (cost, version) = script.measure(jobs, store.pid, within).await.with_context(|| what)?;
                let note = format!("{version}, {}; {}", store.version, self.terms);
                figures.push(Figure { note, ..Figure::costing(unit, cost.rate(), cost.micros()) });
            }
            Ok(figures)
        };
        let figures = both.await;
        store.stop().await;
        figures
    }

    fn command(&self, installed: &Path, what: &str) -> Command {
        let runtime = match Path::new(self.script).extension().and_then(OsStr::to_str) {
            Some("mjs") => PathBuf::from("node"),
            Some(_) => installed.join("py/bin/python"),
            None => {
                let mut command = Command::new(installed.join("bin").join(self.script));
                command.arg(what);
                return command;
            }
        };
        let mut command = Command::new(runtime);
        command.arg(scripts().join(self.script)).arg(what).env("PEERS", installed);
        command
    }
}

/// The folder with the scripts.
pub(super) fn scripts() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("peers")
}

/// A server in a folder of its own. It ends with this.
struct Running {
    url: String,
    pid: u32,
    version: String,
    process: Option<(Process, TempDir)>,
    _world: Option<World>,
}

impl Running {
    async fn start(store: Store) -> anyhow::Result<Running> {
        let (dir, port) = (TempDir::new()?, free_ports(1)[0].to_string());
        let (command, url, marker) = match store {
            Store::Redis => {
                let mut command = Command::new("redis-server");
                command.args(["--port", &port, "--bind", "127.0.0.1", "--appendonly", "yes", "--save", "", "--dir"]);
                command.arg(dir.path());
                (command, format!("redis://127.0.0.1:{port}"), "Redis version=")
            }
            Store::Postgres => {
                let mut command = Command::new("sh");
                command.arg(scripts().join("postgres.sh")).arg(dir.path()).arg(&port);
                (command, format!("postgres://postgres@127.0.0.1:{port}/postgres"), "starting PostgreSQL ")
            }
            Store::Nats => {
                let world = World::new().await;
                let version = format!("nats-server {}", world.client().server_info().version);
                let (url, pid) = (world.urls(), server_pid(&world)?);
                return Ok(Running { url, pid, version, process: None, _world: Some(world) });
            }
        };
        let Script { process, mut lines } = Script::start(command)?;
        let (mut version, mut last) = (String::new(), String::new());
        loop {
            let line = timeout(STARTS_WITHIN, lines.recv()).await;
            let line =
                line.ok().flatten().with_context(|| format!("{store:?} does not start; its last line: {last}"))?;
            if let Some((_, rest)) = line.split_once(marker) {
                let number = rest.split([',', ' ']).next().unwrap_or_default();
                version = format!("{store:?} {number}");
            }
            if line.to_ascii_lowercase().contains("ready to accept connections") {
                break;
            }
            last = line;
        }
        let pid = process.pid();
        Ok(Running { url, pid, version, process: Some((process, dir)), _world: None })
    }

    /// Asks it to end, as PostgreSQL's own processes do not die with a killed one at once; dropping it kills.
    async fn stop(self) {
        if let Some((process, _dir)) = &self.process {
            process.signal(Signal::INT);
            let _ = timeout(Duration::from_secs(10), process.ended()).await;
        }
    }
}

/// A process and what it prints; the lines end with it.
struct Script {
    process: Process,
    lines: UnboundedReceiver<String>,
}

impl Script {
    fn start(command: Command) -> anyhow::Result<Script> {
        let (sender, lines) = mpsc::unbounded_channel();
        let sink = || {
            let sender = sender.clone();
            Box::new(move |line: &str| drop(sender.send(line.to_owned())))
        };
        let process = Process::spawn(command, sink(), sink())?;
        Ok(Script { process, lines })
    }

    /// From `begin` to `end`, and the version that follows that.
    async fn measure(mut self, jobs: u64, server: u32, within: Duration) -> anyhow::Result<(Cost, String)> {
        let (deadline, mut last) = (Instant::now() + within, Vec::new());
        let mut begun = None;
        loop {
            let line = timeout_at(deadline, self.lines.recv()).await;
            let line = line.with_context(|| format!("not done within {within:?}; it said: {}", last.join(" / ")))?;
            let Some(line) = line else { bail!("ended before it was done; it said: {}", last.join(" / ")) };
            let times = || (Usage::cpu_of_tree(self.process.pid()), Usage::cpu_of_tree(server));
            if line == "begin" {
                begun = Some((Instant::now(), times()));
            } else if let (Some(version), Some((start, before))) = (line.strip_prefix("end "), begun) {
                let (took, now) = (start.elapsed(), times());
                let cost =
                    Cost { jobs, took, client: now.0.saturating_sub(before.0), server: now.1.saturating_sub(before.1) };
                return Ok((cost, version.to_owned()));
            } else {
                last.push(line);
                let first = last.len().saturating_sub(5);
                last.drain(..first);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn measured(script: &str) -> anyhow::Result<(Cost, String)> {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        Script::start(command)?.measure(10, std::process::id(), Duration::from_secs(2)).await
    }

    #[tokio::test]
    async fn a_script_that_dies_or_hangs_is_reported() {
        let (cost, version) = measured("echo begin; sleep 0.2; echo end Queue 1.2; sleep 9").await.unwrap();
        assert!(version == "Queue 1.2" && cost.jobs == 10 && cost.took >= Duration::from_millis(150));
        for (script, what) in [
            ("echo begin; echo no such table >&2; exit 3", "ended before it was done; it said: no such table"),
            ("echo 'end Queue 1.2'", "ended before it was done"),
            ("echo begin; sleep 9", "not done within 2s"),
        ] {
            let error = format!("{:#}", measured(script).await.unwrap_err());
            assert!(error.contains(what), "{error}");
        }
    }
}
