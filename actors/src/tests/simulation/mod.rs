//! Tests the protocol under faults, in seeded worlds of three nodes, a model of JetStream and a dozen runs. Everything
//! that can go wrong does. The functions that ship begin the attempts, conclude them and carry them out (`ports` says
//! how the world answers them); the domain's own functions decide everything.
//!
//! A world is a function of its seed. `LONGSHORE_SIM_SEED=7 cargo test -p longshore-actors --lib simulation` plays one
//! again and prints what happens in it. `LONGSHORE_SIM_WORLDS` sets how many are tried, `LONGSHORE_SIM_FROM` the first
//! seed. `cargo xtask simulation` plays a million runs and looks for every mutation, or for those whose names contain
//! `LONGSHORE_SIM_MUTATION`.

mod plan;

mod server;
mod world;

mod client;

mod breaking;
mod gated;
mod order;
mod parking;
mod queue;
mod slots;
mod sweep;
mod tokens;

mod publication;

mod attempt;
mod delivery;
mod fast_path;
mod handler;
mod ports;
mod worker;

mod committer;
mod encoded;
mod slow_work;
mod window;

mod filter;
mod intake;
mod operator;

mod ledger;
mod mutation;

mod drive;
mod started;

use std::io::Write;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use crate::runtime::Unpoisoned as _;
use crate::tests::simulation::drive::simulate;
use crate::tests::simulation::mutation::Mutation;
use crate::tests::simulation::world::{Kind, RUNS};

/// As many as take seconds without optimisation; `cargo xtask simulation` plays a million runs.
const WORLDS: u64 = 2_000;
/// The rarest mutation shows in one of some 10,000 worlds of its kind.
const WORLDS_A_MUTATION: u64 = 240_000;

/// Each test uses all cores: if the tests ran side by side, their timings would mean nothing.
static CORES: Mutex<()> = Mutex::new(());

/// The mutations to look for, if not all: `LONGSHORE_SIM_MUTATION` is a part of their names.
fn is_wanted(mutation: Mutation) -> bool {
    std::env::var("LONGSHORE_SIM_MUTATION").map_or(true, |part| format!("{mutation:?}").contains(&part))
}

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text:?} is not a valid number")))
}

/// Prints a line past the test runner, which would show it only for a failed test.
fn say(line: &str) {
    let _ = writeln!(std::io::stdout().lock(), "{line}");
}

/// Does the work on every core at once; returns the number of cores.
fn on_all_cores(work: impl Fn() + Sync) -> usize {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(&work))));
    threads
}

#[test]
fn no_promise_is_broken_in_any_world() {
    if let Some(seed) = number("LONGSHORE_SIM_SEED") {
        let broken = simulate((seed, Kind::Mixed), None, true);
        say(&format!("world {seed}: {}", broken.as_deref().unwrap_or("no promise is broken")));
        assert_eq!(broken, None, "world {seed} is broken");
        return;
    }
    let (from, worlds) = (number("LONGSHORE_SIM_FROM").unwrap_or(0), number("LONGSHORE_SIM_WORLDS").unwrap_or(WORLDS));
    let _alone = CORES.lock().unpoisoned();
    let start = Instant::now();
    let next = AtomicU64::new(from);
    let first_broken: Mutex<Option<(u64, String)>> = Mutex::new(None);
    let cores = on_all_cores(|| {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= from + worlds {
                return;
            }
            if let Some(what) = simulate((seed, Kind::Mixed), None, false) {
                next.fetch_max(from + worlds, Ordering::Relaxed);
                first_broken.lock().expect("no world panics here").get_or_insert((seed, what));
            }
        }
    });
    if let Some((seed, what)) = first_broken.into_inner().expect("no world panics here") {
        panic!(
            "world {seed} is broken: {what}\nplay it again: \
             LONGSHORE_SIM_SEED={seed} cargo test -p longshore-actors --lib simulation"
        );
    }
    let (runs, last, took) = (worlds * RUNS as u64, from + worlds - 1, start.elapsed().as_secs_f64());
    say(&format!("{runs} runs in {worlds} worlds, seeds {from} to {last}, on {cores} cores: {took:.1} s"));
}

/// Worlds in which faults of the product were found: a run ended elsewhere whose order was cut for ever, and a wish for
/// a slot that was given up while its job waited.
#[test]
fn worlds_that_showed_faults_keep_their_promises() {
    for seed in [16_005, 43_491] {
        assert_eq!(simulate((seed, Kind::Mixed), None, false), None, "world {seed} is broken");
    }
}

/// Whether a world is broken by the mutation, as the mutation says; all cores look for one.
fn is_found(mutation: Mutation) -> bool {
    let breaks = |seed| {
        // A broken rule may also break what the shipped code relies on: a panic shows nothing.
        let broken = std::panic::catch_unwind(|| simulate((seed, mutation.kind()), Some(mutation), false));
        let what = broken.ok().flatten().filter(|what| mutation.is_shown_by(what))?;
        // A world that is broken without the mutation says nothing about it.
        simulate((seed, mutation.kind()), None, false).is_none().then_some((seed, what))
    };
    let (next, start) = (AtomicU64::new(0), Instant::now());
    let found: Mutex<Option<(u64, String)>> = Mutex::new(None);
    on_all_cores(|| {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= WORLDS_A_MUTATION {
                return;
            }
            if let Some(broken) = breaks(seed) {
                next.fetch_max(WORLDS_A_MUTATION, Ordering::Relaxed);
                found.lock().expect("panics are caught").get_or_insert(broken);
            }
        }
    });
    let found = found.into_inner().expect("panics are caught");
    let took = start.elapsed().as_secs_f64();
    match &found {
        Some((seed, what)) => println!("{mutation:?}, world {seed}, {took:.1} s: {what}"),
        None => println!("{mutation:?}, none of {WORLDS_A_MUTATION} worlds, {took:.1} s"),
    }
    found.is_some()
}

#[test]
#[ignore = "a minute or two, with optimisation: cargo xtask simulation"]
fn every_mutation_is_found() {
    let wanted = || Mutation::ALL.iter().copied().filter(|mutation| is_wanted(*mutation));
    if let Some(seed) = number("LONGSHORE_SIM_SEED") {
        if std::env::var_os("LONGSHORE_SIM_MUTATION").is_some() {
            for mutation in wanted() {
                let broken = simulate((seed, mutation.kind()), Some(mutation), true);
                say(&format!("{mutation:?}, world {seed}: {}", broken.as_deref().unwrap_or("no promise is broken")));
            }
        }
        return;
    }
    let _alone = CORES.lock().unpoisoned();
    let start = Instant::now();
    let unfound: Vec<Mutation> = wanted().filter(|mutation| !is_found(*mutation)).collect();
    assert!(unfound.is_empty(), "no world is broken by {unfound:?}");
    say(&format!("{} mutations, each found: {:.1} s", wanted().count(), start.elapsed().as_secs_f64()));
}
