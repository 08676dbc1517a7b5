//! Chaos from a seed: `cargo run -p longshore-harness --bin chaos -- --seed 7 --jobs 20000 --nodes 3 [--rate 150]`.
//!
//! `--servers 3` runs it on three servers, which are killed, frozen, cut off and asked to step down. `--raw-bytes 1`
//! adds jobs whose bytes no client library would send. `--clocks 3` gives the first node a clock that is 3 s ahead, the
//! second one that is 3 s behind, the third the right one, and so on.
//!
//! Needs the `longshore` binary, from the environment variable `LONGSHORE_BIN` or beside this one. Prints the faults
//! and the findings; exit code 1 if anything is wrong. `LONGSHORE_KEEP=1` keeps the world's folder with all logs.

use std::process::ExitCode;

use anyhow::{Context, bail};
use longshore_harness::chaos::Chaos;
use longshore_harness::false_clock::can_be_false;
use longshore_harness::use_binary;

const USAGE: &str =
    "usage: chaos [--seed N] [--jobs N] [--nodes N] [--rate N] [--servers 1|3] [--raw-bytes 0|1] [--clocks SECONDS]";

fn main() -> anyhow::Result<ExitCode> {
    let chaos = read(std::env::args().skip(1))?;
    if std::env::var_os("LONGSHORE_BIN").is_none() {
        let own = std::env::current_exe().context("cannot find out where this program lies")?;
        let binary = own.with_file_name("longshore");
        if !binary.exists() {
            bail!("no {}: build it (cargo build --bin longshore), or name one by LONGSHORE_BIN", binary.display());
        }
        use_binary(binary);
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let report = runtime.block_on(chaos.run());
    println!("{report}");
    Ok(if report.is_sound() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn read(mut words: impl Iterator<Item = String>) -> anyhow::Result<Chaos> {
    let mut chaos = Chaos {
        seed: rand::random_range(1..1_000_000),
        jobs: 2_000,
        rate: 150,
        nodes: 3,
        three_servers: false,
        raw_bytes: false,
        clocks: 0,
    };
    while let Some(word) = words.next() {
        let value = words.next().context(USAGE)?;
        let number: u64 = value.parse().with_context(|| format!("{word} {value:?} is not a number\n{USAGE}"))?;
        match word.as_str() {
            "--seed" => chaos.seed = number,
            "--jobs" => chaos.jobs = usize::try_from(number)?,
            "--rate" => chaos.rate = u32::try_from(number)?,
            "--servers" if matches!(number, 1 | 3) => chaos.three_servers = number == 3,
            "--raw-bytes" if number < 2 => chaos.raw_bytes = number == 1,
            "--clocks" if number == 0 || can_be_false() => chaos.clocks = i64::try_from(number)?,
            "--nodes" => chaos.nodes = usize::try_from(number)?,
            _ => bail!("{word} is not known\n{USAGE}"),
        }
    }
    Ok(chaos)
}
