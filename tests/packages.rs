//! The helper packages do, as they are built and installed, what their documents say.
//!
//! Each test builds its package and installs it into a folder of its own, which needs a network; without one, or
//! without the language, it says that it is skipped. What is checked then, `tests/packages/check.py` has.

use std::path::Path;
use std::process::Command;

use crate::world;

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
fn node_package(folder: &Path) -> Result<String, String> {
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

/// Checks a package whose interpreter and worker are these, in the folder where it is installed.
async fn check(folder: &Path, python: String, readme: &str, interpreter: String, worker: &str) {
    let world = world().await;
    let _node = world.node().start().await;
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    std::fs::copy(root.join("tests/packages").join(worker), folder.join(worker)).unwrap();
    let mut command = Command::new(python);
    command.arg(root.join("tests/packages/check.py")).arg(root.join(readme)).args([&interpreter, worker]);
    command.current_dir(folder).env("NATS_URL", world.urls());
    let checked = tokio::task::spawn_blocking(move || run(&mut command)).await.unwrap();
    assert!(checked.as_ref().is_ok_and(|printed| printed.contains("all checked")), "{}", checked.unwrap_or_else(|e| e));
}

/// Given the wheel in a clean environment, when its README is run and its handlers succeed, fail, wait, are cancelled
/// and killed, then every run ends as the documents say.
#[tokio::test]
async fn the_python_package_runs_jobs() {
    let folder = tempfile::tempdir().unwrap();
    match python_package(folder.path()) {
        Ok(python) => check(folder.path(), python.clone(), "clients/python/README.md", python, "worker.py").await,
        Err(problem) => eprintln!("SKIPPED: the Python package is not checked: {problem}"),
    }
}

/// Given the tarball in a clean folder, when its README is run and its handlers succeed, fail, wait, are cancelled and
/// killed, then every run ends as the documents say.
#[tokio::test]
async fn the_node_package_runs_jobs() {
    let folder = tempfile::tempdir().unwrap();
    match python_package(folder.path()).and_then(|python| Ok((python, node_package(folder.path())?))) {
        Ok((python, node)) => check(folder.path(), python, "clients/node/README.md", node, "worker.mjs").await,
        Err(problem) => eprintln!("SKIPPED: the Node package is not checked: {problem}"),
    }
}
