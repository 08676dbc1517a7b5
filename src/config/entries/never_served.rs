//! How long jobs of a type are tried that no handler was ever online for.

use std::time::Duration;

use longshore_domain::DurationText;
use longshore_domain::policy::TypePolicy;
use toml::Value;

use crate::config::kind::{Kind, text};
use crate::config::schema::Entry;

pub(crate) static NEVER_SERVED_GRACE: Entry<OrOff> = Entry::new(
    "never_served_grace",
    || OrOff(TypePolicy::default().never_served_grace),
    "How long a job is tried whose type no handler was ever online for, so that it is most likely misspelt; then its run is \
     dead. At least no_handler_grace, and never less than that where it is not set. \"off\": as long as any other job.",
);

/// A duration, or `"off"`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OrOff(pub(crate) Option<Duration>);

impl Kind for OrOff {
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
        Some(self.0.map_or_else(|| Value::String("off".to_owned()), |of| Value::String(DurationText(of).to_string())))
    }

    fn from_environment(text: &str) -> Value {
        Value::String(text.to_owned())
    }
}
