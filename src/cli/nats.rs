//! The options for NATS on the command line: those of NATS tools, each with its variable.

use std::path::PathBuf;

use clap::Args;
use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::parser::ValueSource;
use longshore::config::nats::Options;
use longshore_backbone::Connection;

/// Most of the options stand on a page of their own, as every command has them.
const HEADING: &str = "NATS (all its options: longshore help nats)";

/// The options for NATS from the command line and the environment.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = HEADING)]
pub(crate) struct Nats {
    /// NATS server addresses, separated by commas, such as nats://user:password@host [default: nats://127.0.0.1:4222]
    #[arg(long, short, env = "NATS_URL", value_name = "URL", global = true, hide_env_values = true)]
    pub(crate) server: Option<String>,
    /// A context of the nats command line, by name
    #[arg(long, env = "NATS_CONTEXT", value_name = "NAME", global = true)]
    pub(crate) context: Option<String>,
    /// A credentials file
    #[arg(long, env = "NATS_CREDS", value_name = "FILE", global = true, value_parser = path(), hide = true)]
    pub(crate) creds: Option<PathBuf>,
    /// A file that holds an nkey seed
    #[arg(long, env = "NATS_NKEY", value_name = "FILE", global = true, value_parser = path(), hide = true)]
    pub(crate) nkey: Option<PathBuf>,
    /// User name
    #[arg(long, env = "NATS_USER", value_name = "NAME", global = true, hide = true)]
    pub(crate) user: Option<String>,
    /// Password of the user
    #[arg(long, env = "NATS_PASSWORD", value_name = "TEXT", global = true, hide = true, hide_env_values = true)]
    pub(crate) password: Option<String>,
    /// Token
    #[arg(long, env = "NATS_TOKEN", value_name = "TEXT", global = true, hide = true, hide_env_values = true)]
    pub(crate) nats_token: Option<String>,
    /// A file of root certificates
    #[arg(long = "tlsca", env = "NATS_CA", value_name = "FILE", global = true, value_parser = path(), hide = true)]
    pub(crate) tls_ca: Option<PathBuf>,
    /// Client certificate
    #[arg(long = "tlscert", env = "NATS_CERT", value_name = "FILE", global = true, value_parser = path(), hide = true)]
    pub(crate) tls_cert: Option<PathBuf>,
    /// Key of the client certificate
    #[arg(long = "tlskey", env = "NATS_KEY", value_name = "FILE", global = true, value_parser = path(), hide = true)]
    pub(crate) tls_key: Option<PathBuf>,
    /// JetStream domain, for leaf nodes
    #[arg(long, env = "NATS_JS_DOMAIN", value_name = "NAME", global = true, hide = true)]
    pub(crate) js_domain: Option<String>,
    /// First part of the subjects of answers, for a user who may not read all of _INBOX, such as _INBOX_acme
    #[arg(long, env = "NATS_INBOX_PREFIX", value_name = "PREFIX", global = true, hide = true)]
    pub(crate) inbox_prefix: Option<String>,
    /// Whether the command line itself names the server, and not only a variable.
    #[arg(skip)]
    pub(crate) named_by_hand: bool,
}

impl Nats {
    /// Notes where the server was named: `matches` are those of the command that was chosen.
    pub(crate) fn note_sources(&mut self, matches: &clap::ArgMatches) {
        let by_hand = |option| matches.value_source(option) == Some(ValueSource::CommandLine);
        self.named_by_hand = by_hand("server") || by_hand("context");
    }

    /// Whether an option or a variable names a server.
    pub(crate) fn names_a_server(&self) -> bool {
        self.options().names_a_server()
    }

    /// The connection that these options describe.
    pub(crate) fn connection(&self) -> anyhow::Result<Connection> {
        Ok(self.options().connection()?)
    }

    fn options(&self) -> Options {
        let own = self.clone();
        Options {
            server: own.server,
            context: own.context,
            creds: own.creds,
            nkey: own.nkey,
            user: own.user,
            password: own.password,
            token: own.nats_token,
            tls_ca: own.tls_ca,
            tls_cert: own.tls_cert,
            tls_key: own.tls_key,
            js_domain: own.js_domain,
            inbox_prefix: own.inbox_prefix,
        }
    }
}

/// All of these options, as the help shows options.
pub(crate) fn page() -> String {
    let all = Nats::augment_args(clap::Command::new("nats").disable_help_flag(true).help_template("{all-args}"));
    let mut shown = all.mut_args(|argument| argument.hide(false).help_heading("Options of every command"));
    shown.render_help().to_string()
}

/// Accepts an empty variable, too, for which clap's own parser of paths ends the program.
pub(super) fn path() -> impl TypedValueParser<Value = PathBuf> {
    OsStringValueParser::new().map(PathBuf::from)
}
