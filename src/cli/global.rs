//! The options that every command takes.

use clap::Args;
use longshore::config::check_namespace;
use longshore::config::nats::Options;
use longshore_domain::Tenant;

/// Most of the options for NATS stand on a page of their own, as every command has them.
const NATS: &str = "NATS (all its options: longshore help nats)";

/// Options of every command.
#[derive(Debug, Clone, Args)]
pub(crate) struct Global {
    #[command(flatten, next_help_heading = NATS)]
    pub(crate) nats: Options,
    /// Whether the command line itself names the server, and not only a variable.
    #[arg(skip)]
    pub(crate) named_by_hand: bool,
    /// First token of every subject [default: longshore, or LONGSHORE_NAMESPACE]
    #[arg(long, value_name = "NAME", global = true, value_parser = namespace, help_heading = "Cluster")]
    pub(crate) namespace: Option<String>,
    /// The tenant; _all means all tenants, for operators, _ the jobs whose tenant could not be read
    #[arg(long, env = "LONGSHORE_TENANT", value_name = "NAME", global = true, default_value = "default", value_parser = tenant, help_heading = "Cluster")]
    pub(crate) tenant: String,
    /// Why, for the audit of what is changed
    #[arg(long, value_name = "TEXT", global = true, help_heading = "Cluster")]
    pub(crate) reason: Option<String>,
}

impl Global {
    /// The namespace: from the option, the variable or the default.
    pub(crate) fn namespace(&self) -> String {
        let variable = || std::env::var("LONGSHORE_NAMESPACE").ok().filter(|name| !name.is_empty());
        self.namespace.clone().or_else(variable).unwrap_or_else(|| "longshore".to_owned())
    }

    /// Settings of the command line, which win over file and environment.
    pub(crate) fn settings(&self) -> Vec<(String, String)> {
        self.namespace.iter().map(|name| ("--namespace".to_owned(), name.clone())).collect()
    }
}

/// All options for NATS, as the help shows options.
pub(super) fn nats_page() -> String {
    let all = Options::augment_args(clap::Command::new("nats").disable_help_flag(true).help_template("{all-args}"));
    let mut shown = all.mut_args(|argument| argument.hide(false).help_heading("Options of every command"));
    shown.render_help().to_string()
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
