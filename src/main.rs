//! The `longshore` program: reads the command line, runs one command, and turns an error into a message and an exit
//! code.

use std::process::ExitCode;
use std::time::Duration;

mod cli;
mod dev;
mod telemetry;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// How long threads may take to end after everything else; a handler that blocks its thread must not keep the program.
const ENDS_WITHIN: Duration = Duration::from_millis(500);

fn main() -> ExitCode {
    let cli = cli::Cli::read();
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        // A message that the NATS client cannot read costs its connection, which is replaced and reported in the log.
        if !longshore_backbone::link::is_clients_own(panic) {
            print(panic);
        }
    }));
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    // On a small machine more threads than cores, so that one is left when handlers block some; this costs 3 to 6 %.
    let threads = cores.max(longshore_actors::SPARE_THREADS + 1);
    let runtime = match tokio::runtime::Builder::new_multi_thread().worker_threads(threads).enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("error: no threads to run on: {error}");
            return ExitCode::FAILURE;
        }
    };
    let ended = runtime.block_on(cli::run(cli)).unwrap_or_else(|error| {
        let (bold, red) = (anstyle::Style::new().bold(), cli::output::BAD.bold());
        anstream::eprintln!("{red}error:{red:#} {}", cli::ended::text_of(&error));
        if let Some(hint) = cli::hint(&error) {
            anstream::eprintln!("{bold}hint:{bold:#} {hint}");
        }
        cli::ended::exit_code_of(&error)
    });
    runtime.shutdown_timeout(ENDS_WITHIN);
    ended.into()
}
