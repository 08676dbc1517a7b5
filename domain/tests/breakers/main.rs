//! Breakers in worlds of three nodes and one record: answers get lost, writes arrive late, nodes die with their probes,
//! stand still, or learn late of a change; two act at once. The domain's own functions decide. A world is a function of
//! its seed:
//!
//! ```sh
//! LONGSHORE_SIM_SEED=7 cargo test -p longshore-domain --test breakers             # one world, step by step
//! LONGSHORE_SIM_FROM=500000 LONGSHORE_SIM_WORLDS=20000 cargo test -p longshore-domain --test breakers
//! ```
#![allow(clippy::unwrap_used, reason = "this whole program is tests; clippy excepts only the functions marked as such")]

mod ledger;
mod mutation;
mod node;
mod world;

use std::time::Duration;

use mutation::Mutation;

/// Failures in a row that open the breaker of a world, and the probes that close it.
const POLICY_FAILURES: u32 = 4;
const PROBES: u32 = 2;
/// How long after a change every node knows of it, unless it is frozen or dead.
const KNOWN_WITHIN: Duration = Duration::from_secs(1);

const WORLDS: u64 = 2_000;
/// Worlds that are played with each mutation, until one notices it.
const WORLDS_A_MUTATION: u64 = 3_000;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[test]
fn no_promise_is_broken_in_any_world() {
    if let Some(seed) = number("LONGSHORE_SIM_SEED") {
        let end = world::play(seed, None, true);
        assert_eq!(end.broken, None);
        return;
    }
    let (from, worlds) = (number("LONGSHORE_SIM_FROM").unwrap_or(0), number("LONGSHORE_SIM_WORLDS").unwrap_or(WORLDS));
    let (mut opened, mut closed) = (0, 0);
    for seed in from..from + worlds {
        let end = world::play(seed, None, false);
        if let Some(what) = end.broken {
            panic!(
                "world {seed} is broken: {what}\nplay it again: \
                 LONGSHORE_SIM_SEED={seed} cargo test -p longshore-domain --test breakers"
            );
        }
        (opened, closed) = (opened + end.opened, closed + end.closed);
    }
    println!("{worlds} worlds, in which breakers opened {opened} times and closed {closed} times");
    assert!(opened > 2 * worlds && closed > worlds, "the worlds are too quiet");
}

#[test]
fn every_mutation_is_found() {
    if number("LONGSHORE_SIM_SEED").is_some() {
        return;
    }
    let mut unfound = Vec::new();
    for mutation in Mutation::ALL {
        // A world that is broken without the mutation says nothing about it.
        let breaks = |seed| {
            let what = world::play(seed, Some(mutation), false).broken?;
            world::play(seed, None, false).broken.is_none().then_some((seed, what))
        };
        match (0..WORLDS_A_MUTATION).find_map(breaks) {
            Some((seed, what)) => println!("{mutation:?}, world {seed}: {what}"),
            None => unfound.push(mutation),
        }
    }
    assert!(unfound.is_empty(), "no world is broken by {unfound:?}");
}
