//! The connection to NATS: the options and variables of NATS tools, none of our own. The command line takes the options
//! from here, with their help.
//!
//! An option wins over its variable, a variable over the context, the context over the default address. Only where the
//! command line names the context, and not a variable, that wins over the variables for another server and its login.

use std::path::PathBuf;

use longshore_backbone::Connection;

use super::DEFAULT_URL;
use super::context::{self, ContextError};

/// Why there are no options, or no connection of them.
#[derive(Debug, thiserror::Error)]
pub enum NatsError {
    /// A variable is not Unicode.
    #[error("{0} is not Unicode")]
    NotUnicode(&'static str),
    /// The NATS context cannot be used.
    #[error(transparent)]
    Context(#[from] ContextError),
    /// Half of a client certificate.
    #[error("a client certificate needs both its file and its key: --tlscert and --tlskey, or NATS_CERT and NATS_KEY")]
    HalfCertificate,
    /// Nobody would answer there.
    #[error(
        "the inbox prefix {0:?} cannot be used: it is one or more tokens with dots between them, without wildcards, and \
         begins with _INBOX, such as _INBOX_acme"
    )]
    InboxPrefix(String),
}

/// The options for NATS, as its tools have them. An empty one counts as not set.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[cfg_attr(feature = "program", derive(clap::Args))]
pub struct Options {
    /// NATS server addresses, separated by commas, such as nats://user:password@host [default: nats://127.0.0.1:4222]
    #[cfg_attr(feature = "program", arg(long, short, env = "NATS_URL", value_name = "URL", global = true))]
    #[cfg_attr(feature = "program", arg(hide_env_values = true))]
    pub server: Option<String>,
    /// A context of the nats command line, by name
    #[cfg_attr(feature = "program", arg(long, env = "NATS_CONTEXT", value_name = "NAME", global = true))]
    pub context: Option<String>,
    /// A credentials file
    #[cfg_attr(feature = "program", arg(long, env = "NATS_CREDS", value_name = "FILE", global = true, value_parser = path(), hide = true))]
    pub creds: Option<PathBuf>,
    /// A file that holds an nkey seed
    #[cfg_attr(feature = "program", arg(long, env = "NATS_NKEY", value_name = "FILE", global = true, value_parser = path(), hide = true))]
    pub nkey: Option<PathBuf>,
    /// User name
    #[cfg_attr(feature = "program", arg(long, env = "NATS_USER", value_name = "NAME", global = true, hide = true))]
    pub user: Option<String>,
    /// Password of the user
    #[cfg_attr(feature = "program", arg(long, env = "NATS_PASSWORD", value_name = "TEXT", global = true, hide = true))]
    #[cfg_attr(feature = "program", arg(hide_env_values = true))]
    pub password: Option<String>,
    /// Token
    #[cfg_attr(feature = "program", arg(id = "nats_token", long = "nats-token", env = "NATS_TOKEN", global = true))]
    #[cfg_attr(feature = "program", arg(value_name = "TEXT", hide = true, hide_env_values = true))]
    pub token: Option<String>,
    /// A file of root certificates
    #[cfg_attr(feature = "program", arg(long = "tlsca", env = "NATS_CA", value_name = "FILE", global = true, value_parser = path(), hide = true))]
    pub tls_ca: Option<PathBuf>,
    /// Client certificate
    #[cfg_attr(feature = "program", arg(long = "tlscert", env = "NATS_CERT", value_name = "FILE", global = true, value_parser = path(), hide = true))]
    pub tls_cert: Option<PathBuf>,
    /// Key of the client certificate
    #[cfg_attr(feature = "program", arg(long = "tlskey", env = "NATS_KEY", value_name = "FILE", global = true, value_parser = path(), hide = true))]
    pub tls_key: Option<PathBuf>,
    /// JetStream domain, for leaf nodes
    #[cfg_attr(feature = "program", arg(long, env = "NATS_JS_DOMAIN", value_name = "NAME", global = true))]
    #[cfg_attr(feature = "program", arg(hide = true))]
    pub js_domain: Option<String>,
    /// First part of the subjects of answers, for a user who may not read all of _INBOX, such as _INBOX_acme
    #[cfg_attr(feature = "program", arg(long, env = "NATS_INBOX_PREFIX", value_name = "PREFIX", global = true))]
    #[cfg_attr(feature = "program", arg(hide = true))]
    pub inbox_prefix: Option<String>,
}

/// Accepts an empty variable, too, for which clap's own parser of paths ends the program.
#[cfg(feature = "program")]
pub fn path() -> impl clap::builder::TypedValueParser<Value = PathBuf> {
    clap::builder::TypedValueParser::map(clap::builder::OsStringValueParser::new(), PathBuf::from)
}

impl Options {
    /// The options that the environment alone sets: `NATS_URL`, `NATS_CONTEXT`, `NATS_CREDS` and so on.
    ///
    /// # Errors
    /// A variable is not Unicode.
    pub fn from_environment() -> Result<Self, NatsError> {
        let text = |name| match std::env::var(name) {
            Ok(text) => Ok(Some(text)),
            Err(std::env::VarError::NotPresent) => Ok(None),
            Err(std::env::VarError::NotUnicode(_)) => Err(NatsError::NotUnicode(name)),
        };
        let path = |name| std::env::var_os(name).map(PathBuf::from);
        Ok(Self {
            server: text("NATS_URL")?,
            context: text("NATS_CONTEXT")?,
            creds: path("NATS_CREDS"),
            nkey: path("NATS_NKEY"),
            user: text("NATS_USER")?,
            password: text("NATS_PASSWORD")?,
            token: text("NATS_TOKEN")?,
            tls_ca: path("NATS_CA"),
            tls_cert: path("NATS_CERT"),
            tls_key: path("NATS_KEY"),
            js_domain: text("NATS_JS_DOMAIN")?,
            inbox_prefix: text("NATS_INBOX_PREFIX")?,
        })
    }

    /// Whether an option or a variable names a server.
    pub fn names_a_server(&self) -> bool {
        some(&self.server).is_some() || some(&self.context).is_some()
    }

    /// The same without what variables alone say of a server and its login, if the command line names a context and no
    /// server: they are about another one. `by_hand`: whether the command line has the argument of that id.
    #[must_use]
    pub fn led_by_context(self, by_hand: impl Fn(&str) -> bool) -> Self {
        fn kept<T>(value: Option<T>, by_hand: bool) -> Option<T> {
            value.filter(|_| by_hand)
        }
        if !by_hand("context") || by_hand("server") || some(&self.server).is_none() {
            return self;
        }
        Self {
            server: None,
            creds: kept(self.creds, by_hand("creds")),
            nkey: kept(self.nkey, by_hand("nkey")),
            user: kept(self.user, by_hand("user")),
            password: kept(self.password, by_hand("password")),
            token: kept(self.token, by_hand("nats_token")),
            ..self
        }
    }

    /// The connection that these options describe.
    ///
    /// # Errors
    /// The context cannot be read, or asks for something that is not supported here; half of a client certificate; an
    /// inbox prefix that nobody answers to.
    pub fn connection(&self) -> Result<Connection, NatsError> {
        let context = match some(&self.context) {
            Some(name) => context::load(&name)?,
            None => Connection::to(DEFAULT_URL),
        };
        let connection = self.over(context);
        if connection.cert.is_some() != connection.key.is_some() {
            return Err(NatsError::HalfCertificate);
        }
        match &connection.inbox_prefix {
            Some(prefix) if !is_an_inbox_prefix(prefix) => Err(NatsError::InboxPrefix(prefix.clone())),
            _ => Ok(connection),
        }
    }

    fn over(&self, context: Connection) -> Connection {
        let path = |own: &Option<PathBuf>| own.clone().filter(|path| !path.as_os_str().is_empty());
        let of_context = |address: &str| context.url.split(',').any(|known| known.trim() == address.trim());
        // A login is for the servers that it was written for.
        let is_elsewhere = some(&self.server).is_some_and(|list| !list.split(',').all(of_context));
        let own = Connection {
            url: some(&self.server).unwrap_or(context.url),
            creds: path(&self.creds),
            nkey: path(&self.nkey),
            user: some(&self.user),
            password: some(&self.password),
            token: some(&self.token),
            ca: path(&self.tls_ca).or(context.ca),
            cert: path(&self.tls_cert).or(context.cert),
            key: path(&self.tls_key).or(context.key),
            jetstream_domain: some(&self.js_domain).or(context.jetstream_domain),
            inbox_prefix: some(&self.inbox_prefix).or(context.inbox_prefix),
        };
        // Credentials belong together: a user from here with a token from there would not be valid anywhere.
        let has_own = own.creds.is_some() || own.nkey.is_some() || own.user.is_some() || own.token.is_some();
        if has_own || own.has_login_in_url() || is_elsewhere {
            return own;
        }
        let password = own.password.or(context.password);
        let (creds, nkey, user, token) = (context.creds, context.nkey, context.user, context.token);
        Connection { creds, nkey, user, password, token, ..own }
    }
}

/// Whether nodes answer below it, and the server takes it for a subject.
fn is_an_inbox_prefix(prefix: &str) -> bool {
    let is_token =
        |token: &str| !token.is_empty() && token.bytes().all(|byte| byte.is_ascii_graphic() && !b"*>".contains(&byte));
    prefix.starts_with("_INBOX") && prefix.split('.').all(is_token)
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
        let context = || Connection {
            user: Some("context".to_owned()),
            password: Some("secret".to_owned()),
            ca: Some("/ca.pem".into()),
            ..Connection::to("nats://context:4222")
        };
        let nothing = Options { server: Some(String::new()), ..Options::default() };
        assert_eq!(nothing.over(Connection::to(DEFAULT_URL)), Connection::to(DEFAULT_URL));
        assert_eq!(nothing.over(context()).user.as_deref(), Some("context"));

        let own =
            Options { server: Some("nats://own:1".to_owned()), token: Some("t".to_owned()), ..Options::default() };
        let connection = own.over(context());
        let in_url = Options { server: Some("nats://ann:secret@own:1".to_owned()), ..Options::default() };
        assert_eq!(in_url.over(context()).user, None, "the address has its own user");
        let expected = Connection { token: own.token, ca: Some("/ca.pem".into()), ..Connection::to("nats://own:1") };
        assert_eq!(connection, expected);
    }

    #[test]
    fn the_login_of_a_context_goes_to_no_other_server() {
        let context = || Connection { token: Some("t".to_owned()), ..Connection::to("nats://a:1, nats://b:1") };
        let at = |server: &str| Options { server: Some(server.to_owned()), ..Options::default() }.over(context());
        for (server, token) in [
            ("nats://a:1", Some("t")),
            ("nats://b:1,nats://a:1", Some("t")),
            ("nats://c:1", None),
            ("nats://a:1,nats://c:1", None),
            ("", Some("t")),
        ] {
            assert_eq!(at(server).token.as_deref(), token, "{server}");
        }
    }

    #[test]
    fn a_context_of_the_command_line_sets_aside_the_variables_for_another_server() {
        let text = |text: &str| Some(text.to_owned());
        let server = text("nats://elsewhere:1");
        let all = Options { server, context: text("c"), user: text("u"), password: text("p"), ..Options::default() };
        let led = |by_hand: &[&str]| all.clone().led_by_context(|id| by_hand.contains(&id));
        for by_hand in [&[][..], &["server"], &["server", "context"]] {
            assert_eq!(led(by_hand), all);
        }
        let expected = Options { context: text("c"), user: text("u"), ..Options::default() };
        assert_eq!(led(&["context", "user"]), expected);
        let login = Options { server: None, ..all.clone() };
        assert_eq!(login.clone().led_by_context(|id| id == "context"), login, "of no other server");
    }

    #[test]
    fn half_a_certificate_and_an_inbox_that_nobody_answers_to_are_refused() {
        let half = Options { tls_cert: Some("/c.pem".into()), ..Options::default() };
        assert!(half.connection().unwrap_err().to_string().contains("--tlskey"));
        let inbox = |prefix: &str| Options { inbox_prefix: Some(prefix.to_owned()), ..Options::default() }.connection();
        assert_eq!(inbox("_INBOX_acme").unwrap().inbox_prefix.as_deref(), Some("_INBOX_acme"));
        assert_eq!(inbox("").unwrap().inbox_prefix, None);
        for wrong in ["acme", "_INBOX.", "_INBOX.*", "_INBOX.>", "_INBOX a", "_INBOX..a"] {
            assert!(inbox(wrong).unwrap_err().to_string().contains("_INBOX_acme"), "{wrong}");
        }
    }
}
