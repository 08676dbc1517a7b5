//! The command line: one file per noun, each with its arguments, its call and its output.
//!
//! Data goes to stdout, messages for people to stderr. Nothing here knows NATS or a stream: commands ask the nodes' API
//! through [`longshore_backbone::Client`], as any other program can.

use std::net::{SocketAddr, ToSocketAddrs as _};
use std::str::FromStr;

use anyhow::Context as _;
use clap::{Args, CommandFactory as _, FromArgMatches as _, Parser, Subcommand, parser::ValueSource};
use longshore_domain::{JobType, NameError, RunId};

mod client;
pub(crate) mod ended;
pub(crate) mod exact;
pub(crate) mod global;
mod hints;
pub(crate) mod output;

pub(crate) mod serve;

mod batches;
mod bulk;
mod dlq;
mod job;
mod record;
mod run_lists;
mod runs;
mod schedules;
mod submit;
mod target;
mod webhooks;
mod why;
mod work;

pub(crate) mod events;

mod audit;
mod backup;
mod breakers;
mod concurrency;
mod faults;
mod keys;
mod late;
mod limits;
mod nodes;
pub(crate) mod queues;

pub(crate) mod config;
pub(crate) mod doctor;
mod permissions;

#[cfg(test)]
mod tests;

use self::{
    audit::AuditArguments, batches::BatchesCommand, breakers::BreakersCommand, concurrency::ConcurrencyCommand,
    config::ConfigCommand, config::File, dlq::DlqCommand, doctor::DoctorArguments, events::EventsArguments,
    faults::FaultsCommand, global::Global, keys::KeysCommand, limits::LimitsCommand, nodes::NodesCommand,
    permissions::PermissionsArguments, queues::QueuesCommand, runs::RunsCommand, schedules::SchedulesCommand,
    serve::ServeArguments, submit::SubmitArguments, webhooks::WebhooksCommand, why::WhyArguments, work::WorkArguments,
};
use ended::{Ended, Usage};
pub(crate) use hints::hint;

const EXIT_CODES: &str = "\
Exit codes: 0 success, 1 failure, 2 the command line is wrong;
runs wait, submit --wait and work: 3 the run ended other than completed, 4 the time-out came first;
doctor: 1 something fails, 3 there are only warnings;
serve: 70 a part of the node kept dying;
serve and backup: 129, 130, 131 or 143 ended at once by a second signal";

/// A distributed job queue: one binary, an actor tree, NATS JetStream underneath.
#[derive(Debug, Parser)]
#[command(version, after_help = EXIT_CODES, max_term_width = 110)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

impl Cli {
    /// The commands; the page on NATS is made of the options that they have.
    fn definition() -> clap::Command {
        Self::command().mut_subcommand("nats", |page| page.after_help(global::nats_page()))
    }

    /// The same with every option in sight: of manual pages and completions nobody reads all at once.
    fn in_full() -> clap::Command {
        Self::command().mut_args(|argument| argument.hide(false))
    }

    /// The command line; ends the program, with a message, where it is wrong or asks for help.
    pub(crate) fn read() -> Self {
        let matches = Self::definition().try_get_matches().unwrap_or_else(|error| hints::improved(error).exit());
        let mut cli = Self::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
        if let Some((_, chosen)) = matches.subcommand() {
            let by_hand = |option: &str| chosen.value_source(option) == Some(ValueSource::CommandLine);
            cli.global.named_by_hand = by_hand("server") || by_hand("context");
            cli.global.nats = cli.global.nats.led_by_context(by_hand);
        }
        cli
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a node
    Serve(ServeArguments),
    /// Run a node and, unless --server or --context is given, a private NATS server, and watch the jobs live
    Dev(crate::dev::DevArguments),
    /// Submit a job
    Submit(Box<SubmitArguments>),
    /// List and count runs; show one, wait for its end, reschedule, cancel or erase it
    Runs(Noun<RunsCommand>),
    /// Take a job; runs complete or fail ends it, runs progress keeps it
    Work(WorkArguments),
    /// What happened to one run: what it waited for, where it was tried, why it failed, when it goes on
    Why(WhyArguments),
    /// Dead letters: jobs that failed for good; show, replay or discard them
    Dlq(Noun<DlqCommand>),
    /// Recurring schedules: make, show, pause, remove them; run them now or for times that are over
    Schedules(Noun<SchedulesCommand>),
    /// Follow events, live or from the event log
    Events(EventsArguments),
    /// Waiting and running jobs of each queue; pause and resume queues and types
    Queues(Noun<QueuesCommand>),
    /// Rate limits: what is left of each; set one for the whole cluster, or reset it
    Limits(Noun<LimitsCommand>),
    /// Circuit breakers: list them, close or open one
    Breakers(Noun<BreakersCommand>),
    /// Keys for clients that ask over HTTP: make, list, revoke them
    Keys(Noun<KeysCommand>),
    /// Batches: jobs that belong together, and one that runs when all have ended
    Batches(Noun<BatchesCommand>),
    /// Webhooks: URLs that are called for the events of runs
    Webhooks(Noun<WebhooksCommand>),
    /// Concurrency limits: which nodes and runs have their slots; free some
    Concurrency(Noun<ConcurrencyCommand>),
    /// Faults on purpose, to rehearse failure: have attempts of a type meet one, list them, end them
    Faults(Noun<FaultsCommand>),
    /// What was asked of the nodes beyond reading and submitting: by whom, when, from where, and how it was answered
    Audit(AuditArguments),
    /// The cluster's nodes and their load
    Nodes(Noun<NodesCommand>),
    /// Whether the node that answers takes work, and if not, why
    Health(nodes::HealthArguments),
    /// Write all streams and buckets into a folder; jobs are paused meanwhile, for seconds where the event log is small
    Backup(backup::BackupArguments),
    /// Make all streams and buckets anew from such a folder, on a server that has none, before nodes start
    Restore(backup::RestoreArguments),
    /// Look for faults in the set-up: server, rights, streams, storage, clocks, durability, nodes; each with its remedy
    Doctor(DoctorArguments),
    /// Print what a user of NATS may publish and subscribe to in a role, for the server's configuration
    Permissions(PermissionsArguments),
    /// Check, show or print the configuration
    #[command(subcommand)]
    Config(ConfigCommand),
    /// The options for NATS that every command has: credentials, TLS, JetStream
    Nats,
    /// Print completions for a shell: longshore completions bash > /etc/bash_completion.d/longshore
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Write the manual pages, one per command, into a folder
    Man {
        /// The folder, which is made if it is missing
        folder: std::path::PathBuf,
    },
}

/// What there is of a kind, which the word alone lists, and what can be done with it.
#[derive(Debug, Args)]
pub(crate) struct Noun<C: Subcommand> {
    /// JSON for machines
    #[arg(long)]
    json: bool,
    #[command(subcommand)]
    command: Option<C>,
}

/// One thing of a kind, named by its id.
#[derive(Debug, Args)]
pub(crate) struct One<I: FromStr<Err = NameError> + Clone + Send + Sync + 'static> {
    /// Its id
    #[arg(value_name = "ID", value_parser = I::from_str)]
    id: I,
    /// JSON for machines
    #[arg(long)]
    json: bool,
}

/// One run.
#[derive(Debug, Args)]
pub(crate) struct OneRun {
    /// The run's id
    #[arg(value_parser = name::<RunId>)]
    id: RunId,
    /// JSON for machines
    #[arg(long)]
    json: bool,
}

/// What there is of a type, or of all.
#[derive(Debug, Args)]
pub(crate) struct OfType {
    /// Of this job type
    #[arg(long = "type", value_name = "TYPE", value_parser = name::<JobType>)]
    job_type: Option<JobType>,
    /// JSON for machines
    #[arg(long)]
    json: bool,
}

/// A command that takes nothing else.
#[derive(Debug, Args)]
pub(crate) struct Json {
    /// JSON for machines
    #[arg(long)]
    json: bool,
}

impl<C: Subcommand> Noun<C> {
    /// The subcommand; the list if none is given.
    fn chosen(self) -> Result<C, Usage> {
        match (self.command, self.json) {
            (None, json) => {
                let line = ["list"].into_iter().chain(json.then_some("--json"));
                let commands = C::augment_subcommands(clap::Command::new("longshore").no_binary_name(true));
                let matches = commands.try_get_matches_from(line);
                let list = matches.and_then(|matches| C::from_arg_matches(&matches));
                Ok(list.expect("each noun has the subcommand list, to which no argument is needed"))
            }
            (Some(_), true) => Err(Usage("--json stands behind the subcommand that it is for".to_owned())),
            (Some(command), false) => Ok(command),
        }
    }
}

pub(crate) async fn run(cli: Cli) -> anyhow::Result<Ended> {
    let Cli { global, command } = cli;
    match command {
        Command::Serve(arguments) => serve::run(&global, arguments).await,
        Command::Dev(arguments) => crate::dev::run(&global, arguments).await,
        Command::Submit(arguments) => submit::run(&global, *arguments).await,
        Command::Runs(command) => runs::run(&global, command.chosen()?).await,
        Command::Work(arguments) => work::run(&global, arguments).await,
        Command::Why(arguments) => why::run(&global, arguments).await,
        Command::Dlq(command) => dlq::run(&global, command.chosen()?).await,
        Command::Schedules(command) => schedules::run(&global, command.chosen()?).await,
        Command::Events(arguments) => events::run(&global, arguments).await,
        Command::Queues(command) => queues::run(&global, command.chosen()?).await,
        Command::Limits(command) => limits::run(&global, command.chosen()?).await,
        Command::Breakers(command) => breakers::run(&global, command.chosen()?).await,
        Command::Keys(command) => keys::run(&global, command.chosen()?).await,
        Command::Batches(command) => batches::run(&global, command.chosen()?).await,
        Command::Webhooks(command) => webhooks::run(&global, command.chosen()?).await,
        Command::Concurrency(command) => concurrency::run(&global, command.chosen()?).await,
        Command::Faults(command) => faults::run(&global, command.chosen()?).await,
        Command::Audit(arguments) => audit::run(&global, arguments).await,
        Command::Nodes(command) => nodes::nodes(&global, command.chosen()?).await,
        Command::Health(arguments) => nodes::health(&global, arguments).await,
        Command::Backup(arguments) => backup::backup(&global, arguments).await,
        Command::Restore(arguments) => backup::restore(&global, arguments).await,
        Command::Doctor(arguments) => doctor::run(&global, arguments).await,
        Command::Permissions(arguments) => permissions::run(&global, &arguments),
        Command::Config(command) => config::run(&global, command).await,
        Command::Nats => {
            output::say(global::nats_page().trim_end())?;
            Ok(Ended::Success)
        }
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::in_full(), "longshore", &mut script);
            output::say(String::from_utf8(script)?.trim_end())?;
            Ok(Ended::Success)
        }
        Command::Man { folder } => {
            std::fs::create_dir_all(&folder)
                .and_then(|()| clap_mangen::generate_to(Cli::in_full(), &folder))
                .with_context(|| format!("cannot write the manual pages into {}", folder.display()))?;
            Ok(Ended::Success)
        }
    }
}

/// A name: a queue, a job type, a run's id and so on.
fn name<N: FromStr<Err = NameError>>(text: &str) -> Result<N, String> {
    N::from_str(text).map_err(|error| error.reason)
}

/// Where something answers HTTP: `127.0.0.1:8222`, `localhost:8222` or `http://localhost:8222/`.
fn address(text: &str) -> Result<SocketAddr, String> {
    let authority = text.strip_prefix("http://").unwrap_or(text).trim_end_matches('/');
    let wrong = |reason: String| format!("{reason}; an address is HOST:PORT or http://HOST:PORT");
    let mut found = authority.to_socket_addrs().map_err(|error| wrong(error.to_string()))?;
    found.next().ok_or_else(|| wrong("no such host is known".to_owned()))
}
