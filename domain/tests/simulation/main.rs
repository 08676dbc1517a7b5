//! The protocol under faults: seeded worlds of three nodes, a model of JetStream and a dozen runs, in which whatever can
//! go wrong does, and the domain's own functions decide everything.
//!
//! A world is a function of its seed. `SIMULATION_SEED=7 cargo test -p longshore-domain --test simulation -- --nocapture`
//! plays one again and tells what happens in it. `SIMULATION_WORLDS` says how many are tried (84,000 are a million runs),
//! `SIMULATION_FROM` from which seed on.

mod chance;
mod plan;

mod server;
mod world;

mod client;

mod attempt;
mod handler;
mod worker;

mod intake;
mod operator;

mod ledger;
mod mutation;

mod drive;

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use crate::drive::simulate;
use crate::mutation::Mutation;
use crate::world::RUNS;

/// Some ten seconds on one core.
const WORLDS: u64 = 20_000;
/// The rarest mutation shows in one world of about 6,000.
const WORLDS_A_MUTATION: u64 = 60_000;

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text:?} is no number")))
}

/// Tries the worlds of these seeds on all cores; the first broken one, and what was broken.
fn first_broken(from: u64, worlds: u64) -> Option<(u64, String)> {
    let next = AtomicU64::new(from);
    let broken = Mutex::new(None);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let try_all = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= from + worlds {
                return;
            }
            if let Some(what) = simulate(seed, None, false) {
                next.fetch_max(from + worlds, Ordering::Relaxed);
                broken.lock().expect("no world panics here").get_or_insert((seed, what));
            }
        }
    };
    std::thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(try_all))));
    broken.into_inner().expect("no world panics here")
}

#[test]
fn no_promise_is_broken_in_any_world() {
    if let Some(seed) = number("SIMULATION_SEED") {
        let broken = simulate(seed, None, true);
        assert_eq!(broken, None, "world {seed} is broken");
        return;
    }
    let (from, worlds) = (number("SIMULATION_FROM").unwrap_or(0), number("SIMULATION_WORLDS").unwrap_or(WORLDS));
    let start = Instant::now();
    if let Some((seed, what)) = first_broken(from, worlds) {
        panic!(
            "world {seed} is broken: {what}\nplay it again: \
             SIMULATION_SEED={seed} cargo test -p longshore-domain --test simulation -- --nocapture"
        );
    }
    let runs = worlds * RUNS as u64;
    println!("{runs} runs in {worlds} worlds, {:.1} s", start.elapsed().as_secs_f64());
}

#[test]
fn every_mutation_is_found() {
    if number("SIMULATION_SEED").is_some() {
        return;
    }
    for &mutation in Mutation::ALL {
        let found = (0..WORLDS_A_MUTATION)
            .find_map(|seed| Some((seed, simulate(seed, Some(mutation), false)?)))
            .filter(|(seed, _)| simulate(*seed, None, false).is_none());
        let (seed, what) = found.unwrap_or_else(|| panic!("no world is broken by {mutation:?}"));
        println!("{mutation:?}, world {seed}: {what}");
    }
}
