//! The setting that says where traces go.

use toml::Value;

use super::kind::{Kind, text};

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
    fn noun() -> String {
        "a URL such as \"http://localhost:4318\"".to_owned()
    }

    fn read(value: &Value) -> Result<Self, String> {
        let address = text(value, &Self::noun())?;
        match not_a_collector(address) {
            Some(reason) => Err(reason.to_owned()),
            None => Ok(Self(address.to_owned())),
        }
    }

    fn write(&self) -> Option<Value> {
        Some(Value::String(self.0.clone()))
    }
}
