//! `longshore config`: checks the configuration, shows the settings in force, prints the commented file of all
//! settings.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use longshore::config::nats::path;
use longshore::config::{self, Configuration};
use longshore::handlers;

use super::client::Api;
use super::output::{self, PENDING};
use super::{Ended, Global, limits};

/// The option that names the configuration file.
#[derive(Debug, Clone, Args)]
pub(crate) struct File {
    /// The configuration file
    #[arg(long, short, env = "LONGSHORE_CONFIG", value_name = "FILE", value_parser = path())]
    config: Option<PathBuf>,
}

impl File {
    pub(crate) fn is_given(&self) -> bool {
        self.config.as_deref().is_some_and(|path| !path.as_os_str().is_empty())
    }

    /// Reads file, environment and command line.
    pub(crate) fn load(&self, global: &Global) -> Result<Configuration, config::ConfigError> {
        let file = self.config.as_deref().filter(|path| !path.as_os_str().is_empty());
        Configuration::load(file, &global.settings(), &handlers::built_in())
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Check file and environment: every mistake with its place and remedy
    Check(File),
    /// Every setting in force, with the place where it was set
    Show {
        #[command(flatten)]
        file: File,
        /// Ask the cluster for the rate limits that were set at run time, and show those in place of the written ones
        #[arg(long)]
        run_time: bool,
    },
    /// The commented file with every setting at its default
    Print,
}

pub(crate) async fn run(global: &Global, command: ConfigCommand) -> anyhow::Result<Ended> {
    match command {
        ConfigCommand::Check(file) => {
            let configuration = file.load(global)?;
            warn(&configuration);
            let policies = &configuration.settings().policies;
            let queues = policies.queues.keys().map(ToString::to_string).collect::<Vec<_>>().join(", ");
            let types = policies.types.keys().filter(|name| configuration.sets("types", name.as_str())).count();
            output::say(&format!(
                "The configuration is right. Queues: {queues}; types with settings of their own: {types}."
            ))?;
        }
        ConfigCommand::Show { file, run_time } => {
            let configuration = file.load(global)?;
            warn(&configuration);
            let set = if run_time { limits::set_at_run_time(&Api::connect(global).await?).await? } else { Vec::new() };
            output::say(configuration.in_force_with(set).trim_end())?;
        }
        ConfigCommand::Print => output::say(config::reference().trim_end())?,
    }
    Ok(Ended::Success)
}

fn warn(configuration: &Configuration) {
    for warning in configuration.warnings() {
        anstream::eprintln!("{PENDING}warning:{PENDING:#} {warning}");
    }
}
