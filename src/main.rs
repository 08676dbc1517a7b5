//! The `longshore` program: reads the command line, runs one command, and turns an error into a message and an exit code.

use std::process::ExitCode;

use clap::Parser as _;

mod cli;
mod dev;
mod telemetry;

#[tokio::main]
async fn main() -> ExitCode {
    let cli = cli::Cli::parse();
    let ended = cli::run(cli).await.unwrap_or_else(|error| {
        let (bold, red) = (anstyle::Style::new().bold(), cli::output::BAD.bold());
        anstream::eprintln!("{red}error:{red:#} {}", cli::told(&error));
        if let Some(advice) = cli::advice(&error) {
            anstream::eprintln!("{bold}hint:{bold:#} {advice}");
        }
        cli::exit_code_of(&error)
    });
    ended.into()
}
