//! The helper packages do, as they are built and installed, what their documents say.
//!
//! Each test builds its package and installs it into a folder of its own, which needs a network; without one, or
//! without the language, it says that it is skipped. What is checked then, `tests/packages/check.py` has.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use longshore::{Connection, Context, HandlerError};
use longshore_harness::{World, eventually};
use longshore_natsd::{Log, Process, Signal};
use serde_json::json;

use crate::{WITHIN, world};

/// How long a worker may take until it says that it takes jobs.
const READY_WITHIN: Duration = Duration::from_secs(120);

/// What the command printed on its standard output, or why it failed.
pub(crate) fn run(command: &mut Command) -> Result<String, String> {
    let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() {
        return Ok(printed);
    }
    Err(format!("{command:?}: {}\n{printed}{}", output.status, String::from_utf8_lossy(&output.stderr)))
}

/// A virtual environment in the folder that has the wheel of the Python package; its interpreter.
pub(crate) fn python_package(folder: &Path) -> Result<String, String> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients/python");
    run(Command::new("python3").args(["-m", "venv"]).arg(folder.join("venv")))?;
    let python = folder.join("venv/bin/python").display().to_string();
    let pip = |args: &[&str]| {
        let mut pip = Command::new(&python);
        pip.args(["-m", "pip", "--quiet", "--disable-pip-version-check"]).args(args).current_dir(folder);
        pip
    };
    run(pip(&["wheel", "--no-deps", "--wheel-dir", "wheel"]).arg(source))?;
    let wheel = std::fs::read_dir(folder.join("wheel")).unwrap().next().unwrap().unwrap().path();
    run(pip(&["install"]).arg(wheel))?;
    Ok(python)
}

/// The tarball of the Node package, installed into the folder; its interpreter.
pub(crate) fn node_package(folder: &Path) -> Result<String, String> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients/node");
    let npm = |args: &[&str]| {
        let mut npm = Command::new("npm");
        npm.args(args).args(["--silent", "--no-audit", "--no-fund"]).current_dir(folder);
        npm
    };
    let tarball = run(npm(&["pack"]).arg(source))?;
    std::fs::write(folder.join("package.json"), "{}").unwrap();
    run(npm(&["install"]).arg(folder.join(tarball.trim())))?;
    Ok("node".to_owned())
}

/// A process with handlers, which can be killed and started again.
pub(crate) struct Worker {
    command: Box<dyn Fn() -> Command>,
    log: Arc<Log>,
    process: Process,
}

impl Worker {
    /// Starts the command, and returns once it says that it takes jobs; its output goes to a file in the folder.
    pub(crate) async fn start(folder: &Path, command: impl Fn() -> Command + 'static) -> Worker {
        let log = Arc::new(Log::open(folder.join("worker.log")).unwrap());
        let process = Worker::process(command(), &log).await;
        Worker { command: Box::new(command), log, process }
    }

    async fn process(command: Command, log: &Arc<Log>) -> Process {
        let (mark, out, err) = (log.mark(), Arc::clone(log), Arc::clone(log));
        let process =
            Process::spawn(command, Box::new(move |line| out.push(line)), Box::new(move |line| err.push(line)));
        let ready = tokio::time::timeout(READY_WITHIN, log.seen(mark, |line| line.contains("taking jobs of"))).await;
        assert!(ready.is_ok(), "the worker does not start: {}", log.tail(20));
        process.unwrap()
    }

    pub(crate) async fn kill9(&self) {
        self.process.signal(Signal::KILL);
        self.process.ended().await;
    }

    /// Asks it to end; its exit code.
    async fn terminate(&self) -> Option<i32> {
        self.process.signal(Signal::TERM);
        self.process.ended().await.code()
    }

    pub(crate) async fn start_again(&mut self) {
        self.process = Worker::process((self.command)(), &self.log).await;
    }
}

/// Starts a worker of `tests/packages` in the folder where its package is; it writes into `notes` in the world's
/// folder.
pub(crate) async fn start_worker(world: &World, folder: &Path, interpreter: String, worker: &str) -> Worker {
    let (url, notes, program) = (world.urls(), world.dir().join("notes"), folder.join(worker));
    std::fs::copy(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/packages").join(worker), &program).unwrap();
    let command = move || {
        let mut command = Command::new(&interpreter);
        command.arg(&program).env("NATS_URL", &url).env("NOTES", &notes).env("HEARTBEAT", "60");
        command
    };
    Worker::start(world.dir(), command).await
}

/// Adds a line to a file to which other processes add theirs.
pub(crate) fn note(notes: &Path, line: &str) {
    let mut notes = std::fs::OpenOptions::new().create(true).append(true).open(notes).unwrap();
    notes.write_all(format!("{line}\n").as_bytes()).unwrap();
}

/// Checks a package whose interpreter and worker are these, in the folder where it is installed.
async fn check(folder: &Path, python: String, readme: &str, interpreter: String, worker: &str) {
    let world = world().await;
    let _node = world.node().start().await;
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    std::fs::copy(root.join("tests/packages").join(worker), folder.join(worker)).unwrap();
    let mut command = Command::new(python);
    command.arg(root.join("tests/packages/check.py")).arg(root.join(readme)).args([&interpreter, worker]);
    // As many servers as there are may be named.
    command.current_dir(folder).env("NATS_URL", format!("{0}, {0}", world.urls()));
    let checked = tokio::task::spawn_blocking(move || run(&mut command)).await.unwrap();
    assert!(checked.as_ref().is_ok_and(|printed| printed.contains("all checked")), "{}", checked.unwrap_or_else(|e| e));

    // The same worker, with the program that plays the node.
    let mut command = Command::new(env!("CARGO"));
    command.args(["run", "--quiet", "--package", "xtask", "--", "conformance", "--", &interpreter]);
    command.arg(folder.join(worker)).current_dir(root).env("NOTES", folder.join("conformance"));
    let played = tokio::task::spawn_blocking(move || run(&mut command)).await.unwrap();
    assert!(played.as_ref().is_ok_and(|printed| printed.contains("pass")), "{}", played.unwrap_or_else(|e| e));
}

/// Given the wheel in a clean environment, when its README is run and its handlers succeed, fail, wait, are cancelled
/// and killed, then every run ends as the documents say.
#[tokio::test]
async fn the_python_package_runs_jobs() {
    let folder = tempfile::tempdir().unwrap();
    match python_package(folder.path()) {
        Ok(python) => check(folder.path(), python.clone(), "clients/python/README.md", python, "worker.py").await,
        Err(problem) => crate::skipped(&format!("the Python package is not checked: {problem}")),
    }
}

/// Given the tarball in a clean folder, when its README is run and its handlers succeed, fail, wait, are cancelled and
/// killed, then every run ends as the documents say.
#[tokio::test]
async fn the_node_package_runs_jobs() {
    let folder = tempfile::tempdir().unwrap();
    match python_package(folder.path()).and_then(|python| Ok((python, node_package(folder.path())?))) {
        Ok((python, node)) => check(folder.path(), python, "clients/node/README.md", node, "worker.mjs").await,
        Err(problem) => crate::skipped(&format!("the Node package is not checked: {problem}")),
    }
}

/// Given handlers in Python, Node and Rust on one queue, and a type that Python and Node serve together, when jobs of
/// all types come, then each is done once, by a handler of its type, and each language does some.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn handlers_in_three_languages_share_a_queue() {
    const EACH: usize = 100;
    let folder = tempfile::tempdir().unwrap();
    let (python, node) = match python_package(folder.path()).and_then(|it| Ok((it, node_package(folder.path())?))) {
        Ok(found) => found,
        Err(problem) => return crate::skipped(&format!("three languages on one queue: {problem}")),
    };
    let world = world().await;
    let _plain = world.node().start().await;
    let notes = world.dir().join("notes");
    let noted = notes.clone();
    let rust = move |context: Context| {
        note(&noted, &format!("rust {}", context.run_id()));
        async { Ok::<_, HandlerError>(json!("rust")) }
    };
    let own = longshore::node().handler("t.rust", rust).set("LONGSHORE_HTTP__LISTEN", "off");
    let own = own.connection(Connection::to(world.server().url())).start().await.unwrap();
    let python = start_worker(&world, folder.path(), python, "worker.py").await;
    let node = start_worker(&world, folder.path(), node, "worker.mjs").await;

    let types = ["t.python", "t.node", "t.rust", "t.shared"];
    let mut runs = Vec::new();
    for job_type in std::iter::repeat_n(types, EACH).flatten() {
        runs.push((job_type, world.publish(job_type).json(json!({})).await));
    }
    let mut did = BTreeMap::new();
    for (job_type, run) in &runs {
        let record = world.wait(run).await;
        let language = record.result.unwrap().as_str().unwrap().to_owned();
        assert_eq!((record.state.as_str(), record.attempt), ("completed", 1), "{run}");
        *did.entry((*job_type, language.clone())).or_insert(0) += 1;
        assert!(*job_type == "t.shared" || *job_type == format!("t.{language}"), "{job_type} by {language}");
    }
    println!("{did:?}");
    assert_eq!(did.len(), 5, "of those that are shared, Python and Node did some each: {did:?}");
    let noted = std::fs::read_to_string(&notes).unwrap();
    let mut done: Vec<&str> = noted.lines().filter_map(|line| line.split_once(' ')).map(|(_, run)| run).collect();
    let mut expected: Vec<&str> = runs.iter().map(|(_, run)| run.as_str()).collect();
    done.sort_unstable();
    expected.sort_unstable();
    assert_eq!(done, expected, "each was done once");
    are_done_once_though_they_end_while_the_server_is_away(&world).await;
    own.drain().await.unwrap();
    // A worker without work ends as it should, though the server is away.
    world.server().kill9().await;
    for (language, worker) in [("python", python), ("node", node)] {
        assert_eq!(worker.terminate().await, Some(0), "{language}: {}", worker.log.tail(40));
    }
}

/// The same for jobs that end while the server is away, with more to reply than a client keeps meanwhile.
async fn are_done_once_though_they_end_while_the_server_is_away(world: &World) {
    let (go, mut runs) = (world.dir().join("go"), Vec::new());
    for job_type in std::iter::repeat_n(["t.python.away", "t.node.away"], 4).flatten() {
        runs.push(world.publish(job_type).json(json!({"go": go})).await);
    }
    let noted = async |word: &str| {
        eventually(word, WITHIN, async || {
            let notes = std::fs::read_to_string(world.dir().join("notes")).unwrap();
            let times = notes.lines().filter(|line| *line == word).count();
            if times == runs.len() { Ok(()) } else { Err(times.to_string()) }
        })
        .await;
    };
    noted("away").await;
    world.server().kill9().await;
    std::fs::write(&go, "").unwrap();
    noted("ended").await;
    world.server().restart().await.unwrap();
    for run in &runs {
        let record = world.wait(run).await;
        assert_eq!((record.state.as_str(), record.attempt), ("completed", 1), "{run}: {:?}", record.error);
    }
}
