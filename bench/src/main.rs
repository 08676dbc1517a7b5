//! Longshore measured beside bare JetStream: rates, processor time, memory, latency, and how long faults hold work up.
//!
//! Each subcommand is a module that prints Markdown: the parameters, one row per leg, and the spread; `suite` runs the
//! legs of many in one go. The method: each leg has a fresh server; bare loop and product run in pairs of alternating
//! order, so that a drift of the machine cancels; the clock stops when the server says that everything is stored, not
//! when the last handler returns; every rate comes with the processor time of all processes, because on a shared
//! machine that is the steadier figure; every row has the load average. No result is left out after a look at it.
//!
//! Its law is the same as the harness's: it uses the wire contract and nothing else, no type or constant of the
//! product.

mod args;
mod backlog;
mod bare;
mod blocked;
mod delayed;
mod drain;
mod enqueue;
mod event_log;
mod faults;
mod follow;
mod idle;
mod jobs;
mod latency;
mod machine;
mod product;
mod remote;
mod streams;
mod suite;
mod table;

use std::path::PathBuf;

use anyhow::{Context, bail};
use clap::Parser;

use crate::args::{Bench, What};

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let Bench { longshore, what } = Bench::parse();
    let longshore = binary(longshore)?;
    longshore_harness::use_binary(longshore.clone());
    match what {
        What::Drain(args) => drain::run(&args).await,
        What::Enqueue(args) => enqueue::run(&args).await,
        What::Latency(args) => latency::run(&args).await,
        What::Remote(args) => remote::run(&args).await,
        What::Idle(args) => idle::run(&args).await,
        What::Backlog(args) => backlog::run(&args).await,
        What::Blocked(args) => blocked::run(&args).await,
        What::Delayed(args) => delayed::run(&args).await,
        What::Faults(args) => faults::run(&args).await,
        What::Scenes(args) => faults::scenes::run(&args).await,
        What::Follow(args) => follow::run(&args).await,
        What::Suite(args) => suite::run(&args, &longshore).await,
    }
}

/// The absolute path of the product's binary: nodes start in their own folders.
fn binary(given: Option<PathBuf>) -> anyhow::Result<PathBuf> {
    let path = given.unwrap_or_else(|| PathBuf::from("target/release/longshore"));
    if !path.is_file() {
        bail!("no binary at {}: build it (cargo build --release), or name it with --longshore", path.display());
    }
    std::path::absolute(&path).with_context(|| format!("where is {}?", path.display()))
}
