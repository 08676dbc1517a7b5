//! The one command for all checks: `cargo xtask check`. It uses plain cargo throughout; it needs no other tool except
//! python3 with pip, and that only if no new enough nats-server is on PATH.
//!
//! `cargo xtask tidy` runs only the rules of `tidy`, without compiling; `cargo xtask simulation` only the simulation,
//! in full; `cargo xtask soak` that and the chaos; `cargo xtask release` makes the archive of a release;
//! `cargo xtask vendor` fetches the dashboard's library, `cargo xtask types` checks its types; `cargo xtask
//! conformance` checks a handler of any language.

mod check;
mod commands;
mod conformance;
mod page_types;
mod release;
mod sbom;
mod tidy;
mod vendor;

use std::path::Path;
use std::process::ExitCode;

const USAGE: &str = "usage: cargo xtask check        format, house rules, all tests; lints and docs beside them
       cargo xtask tidy         only the rules that no compiler checks
       cargo xtask simulation   a million simulated runs, and every mutation
       cargo xtask soak         what takes too long for every check: the simulation in full, leaders' deaths, chaos
       cargo xtask release [TARGET]   an archive of the optimised program, with its checksum
       cargo xtask conformance -- COMMAND   checks the handler that the command starts, in any language
       cargo xtask types        the types of the dashboard's modules, by TypeScript's compiler
       cargo xtask vendor       the files of lit-html, which the dashboard uses, once more from its package";

fn main() -> ExitCode {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask is a folder of the workspace");
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let outcome = match words.as_slice() {
        ["check"] => check::all(root),
        ["tidy"] => tidy::check(root),
        ["simulation"] => check::simulation(root),
        ["soak"] => check::soak(root),
        ["release"] => release::make(root, None),
        ["release", target] => release::make(root, Some(target)),
        ["conformance", "--", command @ ..] | ["conformance", command @ ..] => conformance::run(command),
        ["types"] => page_types::check(root),
        ["vendor"] => vendor::fetch(root),
        _ => Err(anyhow::anyhow!("{USAGE}")),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}
