//! The command line: one file per noun, each with its arguments, its call and its output.
//!
//! Data goes to stdout, messages for people to stderr. Nothing here knows NATS or a stream: commands ask the nodes' API
//! through [`longshore_backbone::Client`], as any other program can.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use clap::{Args, CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use longshore::config::check_namespace;
use longshore_domain::{JobType, Queue, RunId, Tenant, Timestamp, duration};

mod client;
mod exact;
mod hints;
mod nats;
pub(crate) mod output;

pub(crate) mod serve;

mod bulk;
mod dlq;
mod job;
mod run_lists;
mod runs;
mod schedules;
mod submit;
mod target;
mod why;

pub(crate) mod events;

mod audit;
mod breakers;
mod limits;
mod nodes;
pub(crate) mod queues;

mod config;
mod doctor;

#[cfg(test)]
mod tests;

pub(crate) use config::File;
pub(crate) use hints::hint;

const EXIT_CODES: &str = "\
Exit codes: 0 success, 1 failure, 2 the command line is wrong;
runs wait and submit --wait: 3 the run ended other than completed, 4 the time-out came first;
doctor: 1 something fails, 3 there are only warnings;
serve: 70 a part of the node kept dying, 130 or 143 ended at once by a second signal";

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
    /// The command line; ends the program, with a message, where it is wrong or asks for help.
    pub(crate) fn read() -> Self {
        let matches = Self::command().try_get_matches().unwrap_or_else(|error| hints::shown_only(error).exit());
        let mut cli = Self::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
        if let Some((_, chosen)) = matches.subcommand() {
            cli.global.nats.note_sources(chosen);
        }
        cli
    }
}

/// Options of every command.
#[derive(Debug, Clone, Args)]
pub(crate) struct Global {
    #[command(flatten)]
    pub(crate) nats: nats::Nats,
    /// First token of every subject [default: longshore, or LONGSHORE_NAMESPACE]
    #[arg(long, value_name = "NAME", global = true, value_parser = namespace, help_heading = "Cluster")]
    pub(crate) namespace: Option<String>,
    /// The tenant; _all means all tenants, for operators, _ the jobs whose tenant could not be read
    #[arg(long, env = "LONGSHORE_TENANT", value_name = "NAME", global = true, default_value = "default", value_parser = tenant, help_heading = "Cluster")]
    pub(crate) tenant: String,
}

impl Global {
    /// The namespace: from the option, the variable or the default.
    pub(crate) fn namespace(&self) -> String {
        let variable = || std::env::var("LONGSHORE_NAMESPACE").ok().filter(|name| !name.is_empty());
        self.namespace.clone().or_else(variable).unwrap_or_else(|| "longshore".to_owned())
    }

    /// Settings of the command line, which win over file and environment.
    pub(crate) fn settings(&self) -> Vec<(String, String)> {
        self.namespace.iter().map(|name| ("LONGSHORE_NAMESPACE".to_owned(), name.clone())).collect()
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a node
    Serve(serve::Arguments),
    /// Run a node and, unless --server or --context is given, a private NATS server, and watch the jobs live
    Dev(crate::dev::Arguments),
    /// Submit a job
    Submit(Box<submit::Arguments>),
    /// List and count runs; show one, wait for its end, reschedule, cancel or erase it
    #[command(subcommand)]
    Runs(runs::Command),
    /// The story of one run: what it waited for, where it was tried, why it failed, when it goes on
    Why(why::Arguments),
    /// Dead letters: jobs that failed for good; show, replay or discard them
    #[command(subcommand)]
    Dlq(dlq::Command),
    /// Recurring schedules: make, show, pause, remove them; run them now or for times that are over
    #[command(subcommand)]
    Schedules(schedules::Command),
    /// Follow events, live or from the event log
    Events(events::Arguments),
    /// Waiting and running jobs of each queue; pause and resume queues and types
    Queues(queues::Arguments),
    /// Rate limits: what is left of each; set one for the whole cluster, or reset it
    Limits(limits::Arguments),
    /// Circuit breakers: list them, close or open one
    #[command(subcommand)]
    Breakers(breakers::Command),
    /// What was asked of the nodes beyond reading and submitting: by whom, when, from where, and how it was answered
    Audit(audit::Arguments),
    /// The cluster's nodes and their load
    Nodes(nodes::NodesArguments),
    /// Whether the node that answers takes work, and if not, why
    Health(nodes::HealthArguments),
    /// Look for faults in the set-up: server, rights, streams, storage, clocks, durability, nodes; each with its remedy
    Doctor(doctor::Arguments),
    /// Check, show or print the configuration
    #[command(subcommand)]
    Config(config::Command),
    /// Print completions for a shell: longshore completions bash > /etc/bash_completion.d/longshore
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Write the manual pages, one per command, into a folder
    Man {
        /// The folder, which must exist
        folder: std::path::PathBuf,
    },
}

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    /// With success.
    Well,
    /// With a failure.
    Badly,
    /// The run ended other than completed.
    RunEndedBadly,
    /// The time-out came first.
    TimedOut,
    /// There are warnings, and no failure.
    Warned,
    /// A part of the node kept dying.
    RestartLimit,
    /// The command line is wrong in a way that only shows while the command runs.
    Usage,
}

impl From<Ended> for ExitCode {
    fn from(ended: Ended) -> Self {
        Self::from(match ended {
            Ended::Well => 0,
            Ended::Badly => 1,
            Ended::Usage => 2,
            Ended::RunEndedBadly | Ended::Warned => 3,
            Ended::TimedOut => 4,
            Ended::RestartLimit => 70, // EX_SOFTWARE of sysexits.h: an internal error
        })
    }
}

/// An argument that is wrong in a way the parser cannot see.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Usage(pub(crate) String);

/// Runs one command.
pub(crate) async fn run(cli: Cli) -> anyhow::Result<Ended> {
    let Cli { global, command } = cli;
    match command {
        Command::Serve(arguments) => serve::run(&global, arguments).await,
        Command::Dev(arguments) => crate::dev::run(&global, arguments).await,
        Command::Submit(arguments) => submit::run(&global, *arguments).await,
        Command::Runs(command) => runs::run(&global, command).await,
        Command::Why(arguments) => why::run(&global, arguments).await,
        Command::Dlq(command) => dlq::run(&global, command).await,
        Command::Schedules(command) => schedules::run(&global, command).await,
        Command::Events(arguments) => events::run(&global, arguments).await,
        Command::Queues(arguments) => queues::run(&global, arguments).await,
        Command::Limits(arguments) => limits::run(&global, arguments).await,
        Command::Breakers(command) => breakers::run(&global, command).await,
        Command::Audit(arguments) => audit::run(&global, arguments).await,
        Command::Nodes(arguments) => nodes::nodes(&global, arguments).await,
        Command::Health(arguments) => nodes::health(&global, arguments).await,
        Command::Doctor(arguments) => doctor::run(&global, arguments).await,
        Command::Config(command) => config::run(&global, command).await,
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "longshore", &mut script);
            output::say(String::from_utf8(script)?.trim_end())?;
            Ok(Ended::Well)
        }
        Command::Man { folder } => {
            std::fs::create_dir_all(&folder)
                .and_then(|()| clap_mangen::generate_to(Cli::command(), &folder))
                .with_context(|| format!("cannot write the manual pages into {}", folder.display()))?;
            Ok(Ended::Well)
        }
    }
}

/// An error with its causes, each named once: some libraries repeat the cause's text in their own.
pub(crate) fn told(error: &anyhow::Error) -> String {
    let mut told = String::new();
    for cause in error.chain().map(ToString::to_string) {
        match told.as_str() {
            "" => told = cause,
            before if before.ends_with(&cause) => {}
            _ => told = format!("{told}: {cause}"),
        }
    }
    told
}

/// The exit code of an error.
pub(crate) fn exit_code_of(error: &anyhow::Error) -> Ended {
    let gave_up = error.chain().any(|cause| matches!(cause.downcast_ref(), Some(longshore_actors::Error::GaveUp(_))));
    match (error.is::<Usage>(), gave_up) {
        (true, _) => Ended::Usage,
        (false, true) => Ended::RestartLimit,
        (false, false) => Ended::Badly,
    }
}

fn queue(text: &str) -> Result<Queue, String> {
    Queue::parse(text).map_err(|error| error.reason)
}

fn job_type(text: &str) -> Result<JobType, String> {
    JobType::parse(text).map_err(|error| error.reason)
}

fn run_id(text: &str) -> Result<RunId, String> {
    RunId::parse(text).map_err(|error| error.reason)
}

/// A duration of the contract's form.
fn span(text: &str) -> Result<Duration, String> {
    duration::parse(text).map_err(|error| error.to_string())
}

fn time(text: &str) -> Result<Timestamp, String> {
    Timestamp::parse(text).map_err(|error| error.to_string())
}

fn namespace(text: &str) -> Result<String, String> {
    check_namespace(text).map(|()| text.to_owned())
}

fn tenant(text: &str) -> Result<String, String> {
    match text {
        "" => Ok("default".to_owned()), // a variable that is set but empty
        "_all" | "_" => Ok(text.to_owned()),
        name => Tenant::parse(name).map(|name| name.to_string()).map_err(|error| error.reason),
    }
}
