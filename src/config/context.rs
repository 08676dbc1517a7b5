//! Contexts of the `nats` command line (ADR-21): one JSON file each, `~/.config/nats/context/<name>.json`.
//!
//! If a context asks for something that this program does not support, the error names it, because a connection that
//! silently lacks a certificate or a prefix is worse than none. The context selected in the `nats` tool is not used
//! unasked, because a server process should not change with a person's choice.

use std::path::{Path, PathBuf};

use longshore_backbone::Connection;
use serde_json::{Map, Value};

use super::DEFAULT_URL;

/// Why a context cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ContextError {
    /// The name could lead out of the folder.
    #[error("the NATS context {0:?} is not a valid name: it may not hold .. or a path separator")]
    Name(String),
    #[error("there is no folder of NATS contexts, since neither XDG_CONFIG_HOME nor HOME is set")]
    NoFolder,
    #[error("cannot read the NATS context {}", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("the NATS context {} is not a JSON object", path.display())]
    Json {
        path: PathBuf,
        #[source]
        source: serde_json::Error,
    },
    #[error("the NATS context {} sets {key}, which Longshore does not support", path.display())]
    Unsupported { path: PathBuf, key: String },
    #[error("in the NATS context {}, {key} is not a text", path.display())]
    NoText { path: PathBuf, key: String },
}

/// Reads the context of that name: the connection that it describes, to the default address if it has none.
pub(crate) fn load(name: &str) -> Result<Connection, ContextError> {
    if name.contains("..") || name.contains(['/', '\\']) {
        return Err(ContextError::Name(name.to_owned()));
    }
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let home = set("HOME");
    let folder = set("XDG_CONFIG_HOME").or_else(|| home.as_ref().map(|home| home.join(".config")));
    let path = folder.ok_or(ContextError::NoFolder)?.join("nats/context").join(format!("{name}.json"));
    let text = std::fs::read(&path).map_err(|source| ContextError::Read { path: path.clone(), source })?;
    parse(&text, &path, home.as_deref())
}

fn parse(text: &[u8], path: &Path, home: Option<&Path>) -> Result<Connection, ContextError> {
    let object: Map<String, Value> =
        serde_json::from_slice(text).map_err(|source| ContextError::Json { path: path.to_owned(), source })?;
    let mut context = Connection::to(DEFAULT_URL);
    for (key, value) in object {
        // Tools write every key they know; a value that is empty or off asks for nothing.
        if matches!(&value, Value::Null | Value::Bool(false)) || value.as_str() == Some("") {
            continue;
        }
        let text = || {
            let no_text = || ContextError::NoText { path: path.to_owned(), key: key.clone() };
            value.as_str().map(str::to_owned).ok_or_else(no_text)
        };
        let file = || text().map(|text| Some(expand(&text, home)));
        match key.as_str() {
            "description" | "color_scheme" => {}
            "url" => context.url = text()?,
            "user" => context.user = Some(text()?),
            "password" => context.password = Some(text()?),
            "token" => context.token = Some(text()?),
            "inbox_prefix" => context.inbox_prefix = Some(text()?),
            "jetstream_domain" => context.jetstream_domain = Some(text()?),
            "creds" => context.creds = file()?,
            "nkey" => context.nkey = file()?,
            "ca" => context.ca = file()?,
            "cert" => context.cert = file()?,
            "key" => context.key = file()?,
            _ => return Err(ContextError::Unsupported { path: path.to_owned(), key }),
        }
    }
    // Of several credentials, the first in the order of the `nats` tool: user, creds, nkey, token.
    if context.user.is_some() {
        (context.creds, context.nkey, context.token) = (None, None, None);
    } else if context.creds.is_some() {
        (context.nkey, context.token) = (None, None);
    } else if context.nkey.is_some() {
        context.token = None;
    }
    Ok(context)
}

/// `~/` is the home folder, as in the `nats` tool.
fn expand(text: &str, home: Option<&Path>) -> PathBuf {
    match (text.strip_prefix("~/"), home) {
        (Some(rest), Some(home)) => home.join(rest),
        _ => PathBuf::from(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Connection, String> {
        let home = Some(Path::new("/home/ada"));
        super::parse(text.as_bytes(), Path::new("x.json"), home).map_err(|error| error.to_string())
    }

    #[test]
    fn a_context_as_the_nats_tool_writes_it_is_read() {
        let written = r#"{"description":"d","url":"nats://a,nats://b","token":"t","user":"","password":"","creds":"~/a.creds",
            "nkey":"","cert":"","key":"","ca":"/ca.pem","nsc":"","jetstream_domain":"hub","jetstream_api_prefix":"",
            "jetstream_event_prefix":"","inbox_prefix":"_INBOX_ada","user_jwt":"","color_scheme":"x","tls_first":false}"#;
        let expected = Connection {
            creds: Some("/home/ada/a.creds".into()),
            ca: Some("/ca.pem".into()),
            jetstream_domain: Some("hub".to_owned()),
            inbox_prefix: Some("_INBOX_ada".to_owned()),
            ..Connection::to("nats://a,nats://b")
        };
        assert_eq!(parse(written), Ok(expected));
    }

    #[test]
    fn what_is_not_supported_is_refused_by_name() {
        let refusal = |key: &str| format!("the NATS context x.json sets {key}, which Longshore does not support");
        for key in ["nsc", "jetstream_api_prefix", "user_jwt", "windows_cert_store"] {
            assert_eq!(parse(&format!(r#"{{"{key}":"x"}}"#)), Err(refusal(key)));
        }
        assert_eq!(parse(r#"{"tls_first":true}"#), Err(refusal("tls_first")));
        assert_eq!(parse("[]"), Err("the NATS context x.json is not a JSON object".to_owned()));
        assert_eq!(parse(r#"{"url":1}"#), Err("in the NATS context x.json, url is not a text".to_owned()));
        assert!(matches!(load("../x"), Err(ContextError::Name(_))));
    }
}
