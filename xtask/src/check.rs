//! All checks, one after the other, each with its duration; the first that fails ends the run.

use std::ffi::OsString;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use crate::commands::{self, output, run, text_of};
use crate::{page_types, release, tidy, vendor};

/// Runs every check on the workspace at `root`.
pub(crate) fn all(root: &Path) -> anyhow::Result<()> {
    let begun = Instant::now();
    let server = step("set-up: a nats-server", find_server)?;
    println!("   {}", server.display());
    step("format", || cargo(root, &["fmt", "--all", "--check"], &[]))?;
    step("tidy", || tidy::check(root))?;
    step("vendored files", || vendor::check(root))?;
    step("the dashboard's types", || page_types::check(root))?;
    // With the programs that they start.
    step("the tests' programs", || run(&mut optimised(root, &["test", "--workspace", "--no-run"], &[])))?;
    step("the release archive", || release::pack(root, &binary()?, ("unoptimised", &release::host()?)).map(drop))?;
    let found = [
        ("LONGSHORE_NATS_SERVER", server.into()),
        ("LONGSHORE_BIN", binary()?.into()),
        ("RUST_TEST_THREADS", test_threads().to_string().into()),
    ];
    std::thread::scope(|scope| {
        let mut beside = None;
        // Cargo lets one command at a time into the target folder, and leaves it before it starts the first test.
        let tests = step("tests", || tests(root, &found, || beside = Some(scope.spawn(|| lints_and_docs(root)))));
        let lints = beside.map(|beside| beside.join().expect("a check does not panic"));
        tests.and_then(|()| lints.unwrap_or_else(|| lints_and_docs(root)))
    })?;
    println!("all checks passed in {}", seconds(begun.elapsed()));
    Ok(())
}

/// What only compiles, in the time of the processor that the tests leave, as they wait more than they compute.
fn lints_and_docs(root: &Path) -> anyhow::Result<()> {
    step("lints", || beside(root, &["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"], &[]))?;
    step("the library alone", || library(root))?;
    let deny = [("RUSTDOCFLAGS", "-D warnings".into())];
    step("docs", || beside(root, &["doc", "--workspace", "--no-deps"], &deny))
}

/// Dependencies in which nodes spend their time, compiled with some optimisation, as the promises are bound by the
/// processor. The others are not, nor are our own crates: they take four minutes longer to compile then, and the
/// promises one and a half minutes less. Only here, as everybody else would wait for it.
const OPTIMISED: [&str; 11] = [
    "tokio",
    "async-nats",
    "serde_json",
    "serde_core",
    "bytes",
    "memchr",
    "hashbrown",
    "futures-util",
    "mio",
    "smol_str",
    "libmimalloc-sys",
];

fn optimised(root: &Path, arguments: &[&str], env: &[(&str, OsString)]) -> Command {
    let mut command = cargo_command(root, arguments, env);
    for name in OPTIMISED {
        command.args(["--config", &format!("profile.test.package.{name}.opt-level=1")]);
    }
    command
}

/// Lines of a panic that say what went wrong: of a chaos run, what is known of the run that was violated.
const SAID: usize = 40;

/// Runs all tests, and `started` once the first one runs. What those that failed panicked with stands at the very end
/// once more: their logs fill pages.
fn tests(root: &Path, env: &[(&str, OsString)], started: impl FnOnce()) -> anyhow::Result<()> {
    let mut tests = optimised(root, &["test", "--workspace", "--no-fail-fast"], env).stdout(Stdio::piped()).spawn()?;
    let (mut panics, mut left, mut started) = (String::new(), 0_usize, Some(started));
    for line in BufReader::new(tests.stdout.take().context("the tests have no output")?).lines() {
        let line = line?;
        println!("{line}");
        if let Some(started) = started.take() {
            started();
        }
        if line.starts_with("---- ") {
            left = 1;
        } else if line.contains("panicked at ") {
            left = SAID;
        }
        if left > 0 {
            left -= 1;
            panics += &format!("\n{line}");
        }
    }
    match tests.wait()? {
        status if status.success() => Ok(()),
        status => bail!("the tests ended with {status}{panics}"),
    }
}

/// How many tests run at once: four for each processor, because the promises wait for servers and leases more than they
/// compute.
fn test_threads() -> usize {
    std::thread::available_parallelism().map_or(2, std::num::NonZero::get) * 4
}

/// Crates that only the program needs, and a program with handlers of its own does not.
const PROGRAMS: [&str; 8] =
    ["clap", "axum", "hyper", "longshore-natsd", "anstream", "mimalloc", "anyhow", "tracing-subscriber"];

/// The library builds without the program's features, and without the crates that only those need.
fn library(root: &Path) -> anyhow::Result<()> {
    let alone = ["-p", "longshore", "--no-default-features"];
    let mut tree = commands::cargo(root);
    let listed = text_of(tree.arg("tree").args(alone).args(["-e", "normal", "--prefix", "none"]))?;
    let mut names = listed.lines().filter_map(|line| line.split(' ').next());
    if let Some(name) = names.find(|name| PROGRAMS.contains(name)) {
        bail!("the library without features depends on {name}, which only the program should need");
    }
    // Without features other things may be superfluous: that is found here alone.
    let arguments: Vec<&str> = ["clippy", "--lib"].into_iter().chain(alone).chain(["--", "-D", "warnings"]).collect();
    beside(root, &arguments, &[])
}

/// Runs cargo with the lowest priority; its output is shown if it fails.
fn beside(root: &Path, arguments: &[&str], env: &[(&str, OsString)]) -> anyhow::Result<()> {
    let cargo = cargo_command(root, arguments, env);
    let mut nice = Command::new("nice");
    nice.args(["-n", "19"]).arg(cargo.get_program()).args(arguments).current_dir(root);
    nice.envs(env.iter().map(|(name, value)| (name, value)));
    output(&mut nice).map(drop)
}

/// How many worlds the simulation plays: a million runs.
const WORLDS: &str = "84000";

/// The seeds of the chaos, on one server and on three.
const SEEDS: [&str; 3] = ["7", "107", "206"];

/// What takes too long for every check, and is run before a release: the simulation in full, what is ignored as too
/// much work, and the chaos.
pub(crate) fn soak(root: &Path) -> anyhow::Result<()> {
    step("simulation", || simulation(root))?;
    let ignored = ["test", "--test", "promises", "--", "--include-ignored", "leaders::", "three_servers::", "chaos::"];
    let long = [("LONGSHORE_TEST_LEADER_KILLS", "14".into()), ("LONGSHORE_TEST_CUTS_SECONDS", "300".into())];
    step("three servers", || cargo(root, &ignored, &long))?;
    cargo(root, &["build", "--release", "--bin", "longshore"], &[])?;
    for servers in ["1", "3"] {
        for seed in SEEDS {
            let jobs = ["--jobs", "5000", "--nodes", "3", "--clocks", "3", "--servers", servers, "--seed", seed];
            let chaos = ["run", "--release", "-p", "longshore-harness", "--bin", "chaos", "--"].into_iter().chain(jobs);
            let chaos: Vec<&str> = chaos.collect();
            step(&format!("chaos, servers: {servers}, seed: {seed}"), || cargo(root, &chaos, &[]))?;
        }
    }
    Ok(())
}

/// What the simulation calls most: our own crates, and the dependencies in which it was a third of the time without
/// optimisation, and is a twentieth with it.
const CALLED: [&str; 11] = [
    "longshore-chance",
    "longshore-domain",
    "longshore-backbone",
    "longshore-actors",
    "tokio",
    "tokio-util",
    "smol_str",
    "sha2",
    "itoa",
    "serde_json",
    "bytes",
];

/// Plays the simulation in full: the worlds, then every mutation, about as long again.
///
/// What it calls is compiled with optimisation for it, which would only slow down everybody's builds elsewhere. Level 3
/// takes a sixth longer to compile than level 2, and plays no faster. Overflows are found as elsewhere; the other
/// assertions of a debug build are those of the standard library about unsafe code.
pub(crate) fn simulation(root: &Path) -> anyhow::Result<()> {
    let mut configs = Vec::new();
    for name in CALLED {
        configs.push(format!("profile.dev.package.{name}.opt-level=2"));
        if name.starts_with("longshore") {
            configs.push(format!("profile.dev.package.{name}.debug-assertions=false"));
            configs.push(format!("profile.dev.package.{name}.overflow-checks=true"));
        }
    }
    // Of this package alone: for the whole workspace, cargo would compile its library with optimisation as well, which
    // takes longer than the dependencies that have other features then.
    let test = ["test", "-p", "longshore-actors", "--lib"].into_iter();
    let test = test.chain(configs.iter().flat_map(|config| ["--config", config.as_str()]));
    let test: Vec<&str> = test.chain(["simulation", "--", "--include-ignored"]).collect();
    let worlds = std::env::var_os("LONGSHORE_SIM_WORLDS").unwrap_or_else(|| WORLDS.into());
    cargo(root, &test, &[("LONGSHORE_SIM_WORLDS", worlds)])
}

fn step<T>(name: &str, work: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<T> {
    println!("== {name}");
    let begun = Instant::now();
    let outcome = work().with_context(|| format!("== {name} FAILED after {}", seconds(begun.elapsed())))?;
    println!("== {name}: {}", seconds(begun.elapsed()));
    Ok(outcome)
}

fn seconds(duration: Duration) -> String {
    format!("{:.1} s", duration.as_secs_f64())
}

/// Finds the server once here, so that tests do not download it side by side.
fn find_server() -> anyhow::Result<PathBuf> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    Ok(runtime.block_on(longshore_natsd::find_or_provision())?)
}

/// Where cargo puts the binary: beside this one.
fn binary() -> anyhow::Result<PathBuf> {
    let own = std::env::current_exe().context("cannot find out where xtask lies")?;
    Ok(own.with_file_name("longshore"))
}

fn cargo(root: &Path, arguments: &[&str], env: &[(&str, OsString)]) -> anyhow::Result<()> {
    run(&mut cargo_command(root, arguments, env))
}

fn cargo_command(root: &Path, arguments: &[&str], env: &[(&str, OsString)]) -> Command {
    let mut command = commands::cargo(root);
    command.args(arguments).envs(env.iter().map(|(name, value)| (name, value)));
    command
}
