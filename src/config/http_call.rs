//! The settings of calls of services, `http` in `[defaults]` and `[types.<name>]`: which service, with which headers,
//! and what its answers mean. Secrets are read here, once; what cannot be used is a mistake of the configuration.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use toml::Value;

use super::kind::{Kind, LEFT_OUT, Size, Text, refuse};
use super::problem::Origin;
use super::section::settings;

/// The table's name, and that of the handler whose settings it has.
pub(crate) const TABLE: &str = "http";
pub(crate) const HANDLER: &str = "http.call";

settings! {
    /// Which service jobs of a type with handler = "http.call" call. Without this table, and in it without url, the
    /// payload names the request.
    CALL: HttpCallEntries, CALL_TABLE.optional();

    /// The address to call with the payload as the body; {run_id}, {tenant} and {type} in it are filled in.
    url: Option<Text>, example("\"https://shop.example/charge\"");
    /// The method of the request.
    method: Text = Text("POST".to_owned());
    /// Headers of the request: a text, or a secret of a variable, { env = "TOKEN" }, or a file, { file = "token" },
    /// which is read as the node starts.
    headers: Secrets, example("{ X-Team = \"billing\" }");
    /// Statuses that complete the job: one, 204, or a class, "2xx".
    success: Vec<Statuses> = vec![Statuses(200..=299)];
    /// Statuses that fail it for good, beside 4xx but 408, 425 and 429. All others are worth another attempt.
    permanent: Vec<Statuses>;
    /// Statuses of 4xx that are worth another attempt as well.
    retryable: Vec<Statuses>;
    /// Networks, addresses and host names that may be called beside globally routable addresses.
    allow: Vec<Text>, example("[\"10.0.0.0/8\", \"shop.internal\"]");
    /// How much of an answer's body is read; a record keeps results of 64 KiB at most.
    max_response: Size = Size(32 << 10), at_least(|| Size(1)), at_most(|| Size(256 << 10));
    /// How many redirects are followed.
    redirects: u32 = 0, at_most(|| 3);
    /// A file of certificates (PEM) that are trusted in place of the system's, relative to this file.
    ca: Option<Text>, example("\"ca.pem\"");
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Statuses(pub(crate) RangeInclusive<u16>);

impl Kind for Statuses {
    const NOUN: &'static str = "a status such as 204, or a class such as \"2xx\"";

    fn read(value: &Value) -> Result<Self, String> {
        let class = |text: &str| text.strip_suffix("xx")?.parse::<u16>().ok();
        let statuses = match value {
            Value::Integer(status) => u16::try_from(*status).ok().map(|status| status..=status),
            Value::String(text) => class(text).map(|class| class * 100..=class * 100 + 99),
            _ => None,
        };
        let known = statuses.filter(|statuses| (200..=599).contains(statuses.start()));
        known.map_or_else(|| refuse(value, Self::NOUN), |statuses| Ok(Self(statuses)))
    }

    fn write(&self) -> Option<Value> {
        let (first, last) = (*self.0.start(), *self.0.end());
        Some(match first == last {
            true => Value::Integer(first.into()),
            false => Value::String(format!("{}xx", first / 100)),
        })
    }
}

/// Where a text is found that may be a secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Secret {
    Plain(String),
    /// In this variable.
    Env(String),
    /// In this file, without the line's end.
    File(String),
}

impl Secret {
    /// The text itself, or why it is not there.
    pub(super) fn text(&self, origin: Option<&Origin>) -> Result<String, String> {
        match self {
            Self::Plain(text) => Ok(text.clone()),
            Self::Env(name) => std::env::var(name).map_err(|_| format!("the variable {name} is not set")),
            Self::File(file) => {
                let path = origin.map_or_else(|| file.into(), |origin| origin.beside(file));
                let text = std::fs::read_to_string(&path);
                let text = text.map_err(|error| format!("the file {} cannot be read: {error}", path.display()))?;
                Ok(text.trim_end_matches(['\r', '\n']).to_owned())
            }
        }
    }
}

impl Kind for Secret {
    const NOUN: &'static str = "a text, { env = \"VARIABLE\" } or { file = \"name\" }";
    const TAKES_TABLES: bool = true;

    fn read(value: &Value) -> Result<Self, String> {
        let of_table = |table: &toml::Table| match table.iter().next() {
            Some((key, Value::String(name))) if table.len() == 1 && !name.is_empty() => match key.as_str() {
                "env" => Some(Self::Env(name.clone())),
                "file" => Some(Self::File(name.clone())),
                _ => None,
            },
            _ => None,
        };
        let secret = match value {
            Value::String(text) => Some(Self::Plain(text.clone())),
            Value::Table(table) => of_table(table),
            _ => None,
        };
        // What is written there may be the secret itself.
        secret.ok_or_else(|| format!("the value is not {}", Self::NOUN))
    }

    fn shown(value: &Value) -> Value {
        match value {
            Value::Table(named) => Value::Table(named.clone()),
            _ => Value::String(LEFT_OUT.to_owned()),
        }
    }
}

/// Texts by name, some of which may be secrets.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Secrets(BTreeMap<String, Secret>);

impl Secrets {
    /// The texts themselves, or why one is not there.
    pub(super) fn texts(&self, origin: Option<&Origin>) -> Result<BTreeMap<String, String>, String> {
        let text = |(name, secret): (&String, &Secret)| {
            secret.text(origin).map(|text| (name.clone(), text)).map_err(|reason| format!("{name}: {reason}"))
        };
        self.0.iter().map(text).collect()
    }
}

impl Kind for Secrets {
    const TAKES_TABLES: bool = true;

    fn noun() -> String {
        format!("a table, each value {}", Secret::NOUN)
    }

    fn read(value: &Value) -> Result<Self, String> {
        // What is written there may be a secret.
        let Some(table) = value.as_table() else { return Err(format!("the value is not {}", Self::noun())) };
        let read = |(name, value): (&String, &Value)| {
            Secret::read(value).map(|secret| (name.clone(), secret)).map_err(|reason| format!("{name}: {reason}"))
        };
        table.iter().map(read).collect::<Result<_, _>>().map(Self)
    }

    fn shown(value: &Value) -> Value {
        let Value::Table(table) = value else { return Value::String(LEFT_OUT.to_owned()) };
        Value::Table(table.iter().map(|(name, value)| (name.clone(), Secret::shown(value))).collect())
    }

    /// Of the default alone, which is none.
    fn write(&self) -> Option<Value> {
        self.0.is_empty().then(|| Value::Table(toml::Table::new()))
    }
}

#[cfg(feature = "http")]
pub(super) use reading::read;

#[cfg(feature = "http")]
mod reading {
    use std::path::Path;

    use rustls::RootCertStore;
    use rustls::pki_types::CertificateDer;
    use rustls::pki_types::pem::PemObject as _;

    use super::{CALL, Statuses};
    use crate::config::schema::Entry;
    use crate::config::section::Section;
    use crate::handlers::http_call::{CallTarget, HttpCall, method, request_headers};
    use crate::outbound::{Allow, Outbound, system_roots};

    /// The handler that the table describes, or the setting that is wrong, and why.
    pub(in crate::config) fn read(section: &Section<'_>) -> Result<HttpCall, (&'static str, String)> {
        let allow = section.get(&CALL.allow);
        let allow = Allow::read(allow.iter().map(|entry| entry.0.as_str()));
        let allow = allow.map_err(|reason| (CALL.allow.name, reason))?;
        let target = target(section, &allow)?;
        let statuses = |entry: &Entry<Vec<Statuses>>| section.get(entry).into_iter().map(|each| each.0).collect();
        let roots = match section.get(&CALL.ca).zip(section.origin(CALL.ca.name)) {
            None => system_roots(),
            Some((file, (_, origin))) => roots(&origin.beside(&file.0)).map_err(|reason| (CALL.ca.name, reason))?,
        };
        Ok(HttpCall {
            target,
            success: statuses(&CALL.success),
            permanent: statuses(&CALL.permanent),
            retryable: statuses(&CALL.retryable),
            outbound: Some(Outbound::trusting(allow, roots)),
            max_response: usize::try_from(section.get(&CALL.max_response).0).unwrap_or(usize::MAX),
            redirects: section.get(&CALL.redirects),
        })
    }

    fn target(section: &Section<'_>, allow: &Allow) -> Result<Option<CallTarget>, (&'static str, String)> {
        let Some(url) = section.get(&CALL.url) else {
            for name in [CALL.method.name, CALL.headers.name] {
                if section.node(name).is_some() {
                    return Err((name, "needs url: without it, each job names its own request".to_owned()));
                }
            }
            return Ok(None);
        };
        let method = method(&section.get(&CALL.method).0).map_err(|reason| (CALL.method.name, reason))?;
        let origin = section.origin(CALL.headers.name).map(|(_, origin)| origin);
        let texts = section.get(&CALL.headers).texts(origin).map_err(|reason| (CALL.headers.name, reason))?;
        let headers = request_headers(&texts).map_err(|reason| (CALL.headers.name, reason))?;
        let target = CallTarget::new(url.0, method, headers);
        allow
            .check_url(&target.example().map_err(|reason| (CALL.url.name, reason))?)
            .map_err(|refused| (CALL.url.name, refused.to_string()))?;
        Ok(Some(target))
    }

    fn roots(file: &Path) -> Result<RootCertStore, String> {
        let wrong = |error: &dyn std::fmt::Display| format!("{} holds no certificates: {error}", file.display());
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_file_iter(file).map_err(|error| wrong(&error))? {
            roots.add(certificate.map_err(|error| wrong(&error))?).map_err(|error| wrong(&error))?;
        }
        if roots.is_empty() { Err(wrong(&"it has none")) } else { Ok(roots) }
    }
}
