//! Configuration: one TOML file and the environment, checked as a whole.
//!
//! Read in this order: `entries` (every setting, once), `kind`, `own_kinds` and `schema` (the parts of an entry), `raw`
//! and `environment` (what is written), `values` (each value by itself), `section` (the settings of a table), `check`
//! (those of all), `problem` (mistakes), `reference` (the commented file and the settings in force), `schedules` (those
//! of recurring schedules), `schemas` (those of payloads), `handler_tables`, `http_call`, `command` and `email`
//! (handlers with settings), [`nats`] and `context` (the connection to NATS, whose options NATS defines).
//!
//! Nothing inside the node sees a file, a variable or TOML: it gets [`Settings`].

use std::path::{Path, PathBuf};
use std::sync::Arc;

use longshore_actors::{Handlers, Settings};
use longshore_domain::limit::{RateLimit, Scope};

mod entries;

mod kind;
pub(crate) mod own_kinds;
mod schema;

mod environment;
mod raw;
mod values;

mod check;
pub(crate) mod command;
pub(crate) mod email;
mod handler_tables;
pub(crate) mod http_call;
mod listen;
mod node_name;
mod outlets;
mod schedules;
mod schemas;
mod section;
mod webhooks;

mod problem;
mod reference;

mod context;
pub mod nats;

#[cfg(test)]
mod tests;

pub use check::check_namespace;
pub use kind::Protocol as TraceProtocol;
#[cfg(feature = "http")]
pub(crate) use listen::jwk_set;
pub use listen::{Http, JwtSettings, Listen, TlsFiles, TraceSettings};
pub use nats::NatsError;
pub use own_kinds::Auth;
#[cfg(feature = "traces")]
pub(crate) use own_kinds::not_a_collector;
pub use problem::Problems;
pub use reference::file as reference;

use entries::ROOT;
use problem::{Origin, Problem, Source};
use section::Section;

/// The address of NATS if nothing else is set.
pub const DEFAULT_URL: &str = "nats://127.0.0.1:4222";

/// Why there is no configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read the configuration {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// It has mistakes: all of them, each with its place.
    #[error(transparent)]
    Invalid(#[from] Problems),
}

/// A node's configuration, read and checked.
#[derive(Debug, Clone)]
pub struct Configuration {
    tree: raw::Tree,
    settings: Settings,
    handlers: Handlers,
    http: Http,
    telemetry: TraceSettings,
    warnings: Vec<String>,
}

impl Configuration {
    /// Reads `file`, if any, and the process's environment. `extra` holds further variables, from a command line for
    /// example, which win over the environment. `handlers` are those that the node will have.
    ///
    /// # Errors
    /// All mistakes at once, each with file, line and key, or variable, and what would be right.
    pub fn load(file: Option<&Path>, extra: &[(String, String)], handlers: &Handlers) -> Result<Self, ConfigError> {
        let read = |path: &Path| {
            let text = std::fs::read_to_string(path);
            let text = text.map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
            Ok::<_, ConfigError>(Source::new(path.to_owned(), text))
        };
        // A name that is not Unicode is not a setting's; a value that is not Unicode is reported when it is read.
        let variables = std::env::vars_os();
        let variables =
            variables.filter_map(|(name, text)| Some((name.into_string().ok()?, text.to_string_lossy().into())));
        Self::from_parts(file.map(read).transpose()?, variables.chain(extra.iter().cloned()), handlers)
    }

    fn from_parts(
        source: Option<Source>,
        variables: impl Iterator<Item = (String, String)>,
        handlers: &Handlers,
    ) -> Result<Self, ConfigError> {
        let source = source.map(Arc::new);
        let (mut tree, broken) = source.as_ref().map(raw::parse).unwrap_or_default();
        source.iter().for_each(|source| source.hide(values::hidden(&tree, &ROOT)));
        // After a broken table header nothing means what it says: mistakes found in the rest would be noise.
        if !broken.is_empty() {
            return Err(Problems(broken).into());
        }
        let mut problems = environment::merge(&mut tree, &ROOT, variables);
        problems.extend(values::problems(&tree, &ROOT));
        let (mut settings, handlers, mut more) = check::check(&tree, handlers, node_name::make);
        // A value that cannot be read is not missing as well.
        more.retain(|later| !problems.iter().any(|unread| unread.is_of(later)));
        problems.extend(more);
        if problems.is_empty() {
            let warnings = check::warnings(&settings);
            settings.in_force = reference::written(&tree, true).into();
            let root = Section::root(&tree);
            let (http, telemetry) = (outlets::http(&root.table("http")), outlets::traces(&root.table("telemetry")));
            return Ok(Self { tree, settings, handlers, http, telemetry, warnings });
        }
        problems.sort_by_key(Problem::place);
        problems.dedup(); // every type inherits the mistakes of [defaults]
        Err(Problems(problems).into())
    }

    /// The settings for [`Node::start`](longshore_actors::Node::start).
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The handlers for [`Node::start`](longshore_actors::Node::start): those that were there, and those that have
    /// settings.
    pub fn handlers(&self) -> Handlers {
        self.handlers.clone()
    }

    /// How the node serves HTTP, for `http::Server::start`.
    pub fn http(&self) -> &Http {
        &self.http
    }

    /// Where traces go, for `traces::exporter`.
    pub fn telemetry(&self) -> &TraceSettings {
        &self.telemetry
    }

    /// Whether the file or the environment sets this key of a section.
    pub fn sets(&self, section: &str, key: &str) -> bool {
        raw::inside(&self.tree, section).contains_key(key)
    }

    /// Settings that have no effect yet, or an effect that is hardly wanted: one sentence each.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Every setting in force, with the place where it was set, as TOML; without secrets.
    pub fn in_force(&self) -> String {
        reference::in_force(&self.tree)
    }

    /// The same with rate limits that were set for the cluster at run time in place of those that are written.
    pub fn in_force_with(&self, limits: impl IntoIterator<Item = (Scope, RateLimit)>) -> String {
        let mut tree = self.tree.clone();
        for (scope, limit) in limits {
            let path = match scope {
                Scope::Type(job_type) => vec!["types".to_owned(), job_type.to_string(), "rate_limit".to_owned()],
                Scope::Named(name) => vec!["limits".to_owned(), name.to_string()],
                Scope::Tenant(tenant) => vec!["tenants".to_owned(), tenant.to_string(), "rate_limit".to_owned()],
            };
            let written = environment::node(&entries::limits::written(&limit), &Origin::RunTime);
            environment::put(&mut tree, &path, written, &Origin::RunTime);
        }
        reference::in_force(&tree)
    }
}
