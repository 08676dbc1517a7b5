//! Tests the protocol under faults, in seeded worlds of three nodes, a model of JetStream and a dozen runs. Everything
//! that can go wrong does, and the domain's own functions decide everything.
//!
//! A world is a function of its seed. `LONGSHORE_SIM_SEED=7 cargo test -p longshore-domain --test simulation` plays one
//! again and prints what happens in it. `LONGSHORE_SIM_WORLDS` sets how many are tried, `LONGSHORE_SIM_FROM` the first
//! seed.

#![expect(clippy::disallowed_methods, reason = "an Instant has no other origin")]

mod chance;
mod plan;

mod server;
mod world;

mod client;

mod publication;

mod attempt;
mod handler;
mod holders;
mod keys;
mod refuse;
mod worker;

mod intake;
mod operator;

mod ledger;
mod mutation;

mod drive;

use std::io::Write;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use crate::drive::simulate;
use crate::mutation::Mutation;
use crate::world::RUNS;

/// A million runs; half a minute on two cores.
const WORLDS: u64 = 84_000;
/// The rarest mutation shows in one of about 10,000 worlds; where jobs are parked, in one of about 100,000.
const WORLDS_A_MUTATION: u64 = 240_000;

/// Each test uses all cores: if the tests ran side by side, their timings would mean nothing.
static CORES: Mutex<()> = Mutex::new(());

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
        let broken = simulate(seed, None, true);
        say(&format!("world {seed}: {}", broken.as_deref().unwrap_or("no promise is broken")));
        assert_eq!(broken, None, "world {seed} is broken");
        return;
    }
    let (from, worlds) = (number("LONGSHORE_SIM_FROM").unwrap_or(0), number("LONGSHORE_SIM_WORLDS").unwrap_or(WORLDS));
    let _alone = CORES.lock().unwrap_or_else(PoisonError::into_inner);
    let start = Instant::now();
    let next = AtomicU64::new(from);
    let first_broken: Mutex<Option<(u64, String)>> = Mutex::new(None);
    let cores = on_all_cores(|| {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= from + worlds {
                return;
            }
            if let Some(what) = simulate(seed, None, false) {
                next.fetch_max(from + worlds, Ordering::Relaxed);
                first_broken.lock().expect("no world panics here").get_or_insert((seed, what));
            }
        }
    });
    if let Some((seed, what)) = first_broken.into_inner().expect("no world panics here") {
        panic!(
            "world {seed} is broken: {what}\nplay it again: \
             LONGSHORE_SIM_SEED={seed} cargo test -p longshore-domain --test simulation"
        );
    }
    let (runs, last, took) = (worlds * RUNS as u64, from + worlds - 1, start.elapsed().as_secs_f64());
    say(&format!("{runs} runs in {worlds} worlds, seeds {from} to {last}, on {cores} cores: {took:.1} s"));
}

#[test]
fn every_mutation_is_found() {
    if number("LONGSHORE_SIM_SEED").is_some() {
        return;
    }
    let _alone = CORES.lock().unwrap_or_else(PoisonError::into_inner);
    let next = AtomicUsize::new(0);
    let unfound = Mutex::new(Vec::new());
    on_all_cores(|| {
        while let Some(&mutation) = Mutation::ALL.get(next.fetch_add(1, Ordering::Relaxed)) {
            // A world that is broken without the mutation says nothing about it.
            let breaks = |seed| {
                let what = simulate(seed, Some(mutation), false)?;
                simulate(seed, None, false).is_none().then_some((seed, what))
            };
            let found = (0..WORLDS_A_MUTATION).find_map(breaks);
            match found {
                Some((seed, what)) => println!("{mutation:?}, world {seed}: {what}"),
                None => unfound.lock().expect("no world panics here").push(mutation),
            }
        }
    });
    let unfound = unfound.into_inner().expect("no world panics here");
    assert!(unfound.is_empty(), "no world is broken by {unfound:?}");
    say(&format!("{} mutations, each found", Mutation::ALL.len()));
}
