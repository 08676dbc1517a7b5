//! The connection to NATS: the options and variables of NATS tools, none of our own.
//!
//! An option wins over its variable, a variable over the context, the context over the default address.

use std::path::PathBuf;

use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::parser::ValueSource;
use clap::{Args as _, FromArgMatches as _};
use longshore_backbone::Connection;

use super::context::{self, Context};

/// The address of NATS if nothing else is set.
pub const DEFAULT_URL: &str = "nats://127.0.0.1:4222";

/// The options for NATS from the command line and the environment.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "NATS")]
pub struct Options {
    /// NATS server addresses, separated by commas, such as nats://user:password@host [default: nats://127.0.0.1:4222]
    #[arg(long, short, env = "NATS_URL", value_name = "URL", global = true, hide_env_values = true)]
    pub server: Option<String>,
    /// A context of the nats command line, by name
    #[arg(long, env = "NATS_CONTEXT", value_name = "NAME", global = true)]
    pub context: Option<String>,
    /// A credentials file
    #[arg(long, env = "NATS_CREDS", value_name = "FILE", global = true, value_parser = path())]
    pub creds: Option<PathBuf>,
    /// A file that holds an nkey seed
    #[arg(long, env = "NATS_NKEY", value_name = "FILE", global = true, value_parser = path(), hide_short_help = true)]
    pub nkey: Option<PathBuf>,
    /// User name
    #[arg(long, env = "NATS_USER", value_name = "NAME", global = true, hide_short_help = true)]
    pub user: Option<String>,
    /// Password of the user
    #[arg(
        long,
        env = "NATS_PASSWORD",
        value_name = "TEXT",
        global = true,
        hide_short_help = true,
        hide_env_values = true
    )]
    pub password: Option<String>,
    /// Token
    #[arg(
        long,
        env = "NATS_TOKEN",
        value_name = "TEXT",
        global = true,
        hide_short_help = true,
        hide_env_values = true
    )]
    pub nats_token: Option<String>,
    /// A file of root certificates
    #[arg(long = "tlsca", env = "NATS_CA", value_name = "FILE", global = true, value_parser = path(), hide_short_help = true)]
    pub tls_ca: Option<PathBuf>,
    /// Client certificate
    #[arg(long = "tlscert", env = "NATS_CERT", value_name = "FILE", global = true, value_parser = path(), hide_short_help = true)]
    pub tls_cert: Option<PathBuf>,
    /// Key of the client certificate
    #[arg(long = "tlskey", env = "NATS_KEY", value_name = "FILE", global = true, value_parser = path(), hide_short_help = true)]
    pub tls_key: Option<PathBuf>,
    /// JetStream domain, for leaf nodes
    #[arg(long, env = "NATS_JS_DOMAIN", value_name = "NAME", global = true, hide_short_help = true)]
    pub js_domain: Option<String>,
    /// Whether the command line itself names the server, and not only a variable.
    #[arg(skip)]
    pub named_by_hand: bool,
}

impl Options {
    /// The options that the environment alone sets.
    ///
    /// # Errors
    /// A variable is not Unicode.
    pub fn from_environment() -> Result<Self, clap::Error> {
        let command = Self::augment_args(clap::Command::new("longshore"));
        Self::from_arg_matches(&command.try_get_matches_from(["longshore"])?)
    }

    /// Whether an option or a variable names a server.
    #[must_use]
    pub fn names_a_server(&self) -> bool {
        some(&self.server).is_some() || some(&self.context).is_some()
    }

    /// Notes where the server was named: `matches` are those of the command that was chosen.
    pub fn note_sources(&mut self, matches: &clap::ArgMatches) {
        let by_hand = |option| matches.value_source(option) == Some(ValueSource::CommandLine);
        self.named_by_hand = by_hand("server") || by_hand("context");
    }

    /// The connection that these options describe.
    ///
    /// # Errors
    /// The context cannot be read, or asks for something that is not supported here.
    pub fn connection(&self) -> Result<Connection, context::Error> {
        let context = match some(&self.context) {
            Some(name) => Context::load(&name)?,
            None => Context::default(),
        };
        Ok(self.over(context))
    }

    fn over(&self, context: Context) -> Connection {
        let path = |own: &Option<PathBuf>| own.clone().filter(|path| !path.as_os_str().is_empty());
        let mut connection = Connection {
            creds: path(&self.creds),
            nkey: path(&self.nkey),
            user: some(&self.user),
            password: some(&self.password),
            token: some(&self.nats_token),
            ca: path(&self.tls_ca).or(context.ca),
            cert: path(&self.tls_cert).or(context.cert),
            key: path(&self.tls_key).or(context.key),
            jetstream_domain: some(&self.js_domain).or(context.jetstream_domain),
            ..Connection::to(some(&self.server).or(context.url).unwrap_or_else(|| DEFAULT_URL.to_owned()))
        };
        // Credentials belong together: a user from here with a token from there would not be valid anywhere.
        let Connection { creds, nkey, user, token, .. } = &connection;
        let has_own = creds.is_some() || nkey.is_some() || user.is_some() || token.is_some();
        if !has_own && !connection.has_login_in_url() {
            let password = connection.password.or(context.password);
            let (creds, nkey, user, token) = (context.creds, context.nkey, context.user, context.token);
            connection = Connection { creds, nkey, user, password, token, ..connection };
        }
        connection
    }
}

/// Accepts an empty variable, too, for which clap's own parser of paths ends the program.
fn path() -> impl TypedValueParser<Value = PathBuf> {
    OsStringValueParser::new().map(PathBuf::from)
}

/// An empty variable counts as not set.
fn some(text: &Option<String>) -> Option<String> {
    text.clone().filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_option_wins_over_the_context_and_credentials_are_not_mixed() {
        let context = || Context {
            url: Some("nats://context:4222".to_owned()),
            user: Some("context".to_owned()),
            password: Some("secret".to_owned()),
            ca: Some("/ca.pem".into()),
            ..Context::default()
        };
        let nothing = Options { server: Some(String::new()), ..Options::default() };
        assert_eq!(nothing.over(Context::default()), Connection::to(DEFAULT_URL));
        assert_eq!(nothing.over(context()).user.as_deref(), Some("context"));

        let own =
            Options { server: Some("nats://own:1".to_owned()), nats_token: Some("t".to_owned()), ..Options::default() };
        let connection = own.over(context());
        let in_url = Options { server: Some("nats://ann:secret@own:1".to_owned()), ..Options::default() };
        assert_eq!(in_url.over(context()).user, None, "the address has its own user");
        let expected =
            Connection { token: own.nats_token, ca: Some("/ca.pem".into()), ..Connection::to("nats://own:1") };
        assert_eq!(connection, expected);
    }
}
