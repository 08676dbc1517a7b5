//! The kinds of values that one section or setting alone has.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Duration;

use longshore_domain::search::{JsonPointer, PLACES_MAX};
use toml::Value;

use super::check::check_namespace;
use super::kind::{Kind, check_token, checked_text, choices, refuse, text};

longshore_domain::named! {
    /// Who may ask the API over HTTP.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Auth {
        /// Everybody who reaches the listener, as the operator.
        Off = "off",
        /// Who has an API key, as its tenant.
        Keys = "keys",
    }
}

longshore_domain::named! {
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(crate) enum Encryption {
        StartTls = "starttls",
        Tls = "tls",
        None = "none",
    }
}

choices! { Auth Encryption }

/// Where to listen; nowhere is `"off"`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Listen(pub(crate) Vec<SocketAddr>);

impl Kind for Listen {
    const NOUN: &'static str = "an address and port such as \"127.0.0.1:8080\", a list of them, or \"off\"";

    fn read(value: &Value) -> Result<Self, String> {
        let address = |value: &Value| value.as_str()?.parse::<SocketAddr>().ok();
        let addresses = match value {
            Value::String(word) if word == "off" => Some(Vec::new()),
            Value::Array(entries) if !entries.is_empty() => entries.iter().map(address).collect(),
            one => address(one).map(|address| vec![address]),
        };
        let Some(addresses) = addresses else { return refuse(value, Self::NOUN) };
        let mut seen = BTreeSet::new();
        // Each 0 is another free port.
        match addresses.iter().find(|address| address.port() != 0 && !seen.insert(**address)) {
            Some(twice) => Err(format!("names {twice} twice")),
            None => Ok(Self(addresses)),
        }
    }

    fn write(&self) -> Option<Value> {
        let mut addresses = self.0.iter().map(|address| Value::String(address.to_string()));
        Some(match self.0.len() {
            0 => Value::String("off".to_owned()),
            1 => addresses.next()?,
            _ => Value::Array(addresses.collect()),
        })
    }
}

checked_text! {
    /// The first token of every subject.
    Namespace: "a name of a-z 0-9 -, 64 bytes at most", |text| {
        check_namespace(text)?;
        check_token(text).map(|()| true).map_err(|reason| format!("{text:?} {reason}"))
    };
    /// What paths begin with behind a proxy.
    BasePath: "a path such as \"/longshore\", of A-Z a-z 0-9 . _ - and /, without / at its end", |text| {
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        let part = |part: &str| !matches!(part, "" | "." | "..") && part.chars().all(plain);
        Ok(text.strip_prefix('/').is_some_and(|text| text.split('/').all(part)))
    };
    /// The origin of a page.
    Origin: "an origin such as \"https://tools.example.com\": scheme, host and port as browsers send them", |text| {
        let host = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"));
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '.' | '-' | ':' | '[' | ']');
        Ok(host.is_some_and(|host| !host.is_empty() && host.chars().all(plain)))
    };
    /// A URL that is asked over HTTP.
    Url: "a URL such as \"https://login.example.com/keys\"", |text| {
        let rest = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"));
        Ok(rest.is_some_and(|rest| !rest.is_empty() && !rest.starts_with('/') && !rest.contains([' ', '@'])))
    };
    /// Where a trace is looked at. A link of another scheme could be a script.
    TraceUrl: "a URL such as \"https://traces.example.com/trace/{trace_id}\", http or https, with {trace_id}", |text| {
        let rest = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"));
        let (host, path) = rest.and_then(|rest| rest.split_once('/')).unwrap_or_default();
        let plain = |c: char| c.is_ascii_graphic() && !matches!(c, '"' | '<' | '>' | '\\' | '@');
        Ok(!host.is_empty() && path.contains("{trace_id}") && text.chars().all(plain))
    };
    /// The algorithm of a token's signature.
    JwtAlgorithm: "one of RS256, RS384, RS512, PS256, PS384, PS512, ES256, ES384, EdDSA, HS256, HS384, HS512", |text| {
        let (kind, bits) = text.split_at_checked(2).unwrap_or_default();
        let is_hashed = matches!(bits, "256" | "384") || (bits == "512" && kind != "ES");
        Ok(text == "EdDSA" || (matches!(kind, "RS" | "PS" | "ES" | "HS") && is_hashed))
    };
    /// The word `off`.
    Off: "\"off\", or a table such as { failures = 5, cool_down = \"30s\" }", |text| Ok(text == "off");
}

/// A duration, or `"off"`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OrOff(pub(crate) Option<Duration>);

impl Kind for OrOff {
    const IS_TEXT: bool = true;

    fn noun() -> String {
        format!("{}, or \"off\"", Duration::noun())
    }

    fn read(value: &Value) -> Result<Self, String> {
        match text(value, &Self::noun())? {
            "off" => Ok(Self(None)),
            _ => {
                let read = Duration::read(value).map(|duration| Self(Some(duration)));
                read.map_err(|reason| format!("{reason}, or \"off\""))
            }
        }
    }

    fn write(&self) -> Option<Value> {
        self.0.write().or_else(|| Some(Value::String("off".to_owned())))
    }
}

/// The address of a collector of traces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Collector(pub(crate) String);

/// Why a text is not the address of a collector, in words that do not show it: it may have a password in it.
pub(crate) fn not_a_collector(address: &str) -> Option<&'static str> {
    let rest = address.strip_prefix("http://").or_else(|| address.strip_prefix("https://"));
    match rest {
        None => Some("is not a URL with http:// or https://"),
        Some(rest) if rest.contains('@') => {
            Some("names a user: settings are shown; put credentials into OTEL_EXPORTER_OTLP_HEADERS")
        }
        Some(rest) if rest.is_empty() || rest.starts_with(['/', ':']) || rest.contains(char::is_whitespace) => {
            Some("names no host")
        }
        Some(_) => None,
    }
}

impl Kind for Collector {
    const NOUN: &'static str = "a URL such as \"http://localhost:4318\"";

    fn read(value: &Value) -> Result<Self, String> {
        let address = text(value, Self::NOUN)?;
        match not_a_collector(address) {
            Some(reason) => Err(reason.to_owned()),
            None => Ok(Self(address.to_owned())),
        }
    }
}

/// JSON pointers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Places(pub(crate) Vec<JsonPointer>);

impl Kind for Places {
    fn noun() -> String {
        format!("a list of at most {PLACES_MAX} JSON pointers such as [\"/order/id\"]")
    }

    fn read(value: &Value) -> Result<Self, String> {
        let Some(entries) = value.as_array().filter(|entries| entries.len() <= PLACES_MAX) else {
            return refuse(value, &Self::noun());
        };
        let place = |entry: &Value| {
            let text = text(entry, "a JSON pointer such as \"/order/id\"")?;
            JsonPointer::parse(text).map_err(|reason| format!("{text:?} {reason}"))
        };
        entries.iter().map(place).collect::<Result<_, _>>().map(Self)
    }
}

/// Files by version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Files(pub(crate) BTreeMap<String, String>);

impl Kind for Files {
    const NOUN: &'static str = "a table of files by version, such as { \"1\" = \"email.json\" }";
    const TAKES_TABLES: bool = true;

    fn read(value: &Value) -> Result<Self, String> {
        let file = |(version, file): (&String, &Value)| Some((version.clone(), file.as_str()?.to_owned()));
        let table = value.as_table().filter(|table| !table.is_empty());
        let files = table.and_then(|table| table.iter().map(file).collect());
        files.map_or_else(|| refuse(value, Self::NOUN), |files| Ok(Self(files)))
    }
}

#[cfg(test)]
mod tests {
    use longshore_domain::JobType;

    use super::*;
    use crate::config::tests::{load, settings};

    fn read<K: Kind>(toml: &str) -> Result<K, String> {
        K::read(&toml.parse().unwrap())
    }

    #[test]
    fn addresses_paths_and_origins_are_read_and_written() {
        let listen = Listen(vec!["[::1]:8080".parse().unwrap()]);
        assert_eq!(Listen::read(&listen.write().unwrap()), Ok(listen));
        assert_eq!(read::<Listen>("\"off\""), Ok(Listen(Vec::new())));
        let two = read::<Listen>(r#"["127.0.0.1:80", "[::1]:80"]"#).unwrap();
        assert_eq!(two.write().unwrap().to_string(), r#"["127.0.0.1:80", "[::1]:80"]"#);
        assert_eq!(read::<Listen>(r#"["[::1]:80", "[::1]:80"]"#), Err("names [::1]:80 twice".to_owned()));
        assert!(read::<Namespace>("\"a b\"").unwrap_err().ends_with("allowed are a-z 0-9 -"));
        assert!(read::<Namespace>("\"a-1\"").is_ok() && read::<Namespace>("\"\"").is_err());
        assert!(read::<Listen>("[]").is_err() && read::<Listen>(r#"["off"]"#).is_err());
        for wrong in ["\"\"", "\"/\"", "\"a\"", "\"/a/\"", "\"/a/../b\"", "\"/a b\""] {
            assert!(read::<BasePath>(wrong).is_err(), "{wrong}");
        }
        assert!(read::<BasePath>("\"/a/b\"").is_ok() && read::<Origin>("\"https://a.example:1\"").is_ok());
        for (name, is_one) in [("RS256", true), ("ES512", false), ("EdDSA", true), ("none", false), ("é", false)] {
            assert_eq!(read::<JwtAlgorithm>(&format!("\"{name}\"")).is_ok(), is_one, "{name}");
        }
        assert!(read::<Url>("\"https://a.example/k\"").is_ok() && read::<Url>("\"ftp://a/k\"").is_err());
        for (url, is_one) in [
            ("https://traces.example/trace/{trace_id}", true),
            ("http://127.0.0.1:16686/trace/{trace_id}?uiFind={trace_id}", true),
            ("javascript://traces.example/%0aalert(1)//{trace_id}", false),
            ("https://traces.example/trace/", false),
            ("https:///{trace_id}", false),
            ("https://{trace_id}", false),
            ("https://traces.example/a b/{trace_id}", false),
        ] {
            assert_eq!(read::<TraceUrl>(&format!("\"{url}\"")).is_ok(), is_one, "{url}");
        }
        assert!(read::<Origin>("\"*\"").is_err() && read::<Origin>("\"https://a.example/\"").is_err());
        assert!(read::<Listen>("\"localhost\"").is_err());
    }

    #[test]
    fn a_type_declares_where_its_values_are_and_others_pay_nothing() {
        let policies = settings("[types.order]\nsearch = [\"/order/id\", \"/by\"]").policies;
        let values = |job_type: &str| {
            policies.searched(&JobType::parse(job_type).unwrap(), br#"{"order":{"id":7},"by":"anna"}"#)
        };
        assert_eq!((values("order"), values("other")), (vec!["7".to_owned(), "anna".to_owned()], Vec::new()));
    }

    #[test]
    fn what_is_no_place_is_a_mistake_with_its_field_and_reason() {
        let nine = format!("[{}]", ["\"/a\""; 9].join(","));
        for (written, says) in [
            ("[\"order\"]", "does not begin with /"),
            ("[\"/a~2\"]", "has a ~ that neither 0 nor 1 follows"),
            ("\"/order/id\"", "is not a list of at most 8 JSON pointers"),
            ("[7]", "is not a JSON pointer"),
            (nine.as_str(), "is not a list of at most 8"),
        ] {
            let error = load(&format!("[types.a]\nsearch = {written}"), &[]).unwrap_err();
            assert!(error.contains("types.a.search") && error.contains(says), "{written}: {error}");
        }
    }
}
