//! The kinds of values: durations, numbers, sizes, names, choices and lists of them.
//!
//! Each kind reads the written value, and writes it as the reference and `config show` need it, so that every setting
//! of one kind is written in the same way. No kind knows any particular setting.

use std::cmp::Ordering;
use std::time::Duration;

use longshore_domain::concurrency::{Hold, OnBusy};
use longshore_domain::fairness::FairBy;
use longshore_domain::limit::Window;
use longshore_domain::policy::{History, OnMismatch};
use longshore_domain::recurring::{Misfire, Overlap};
use longshore_domain::{DurationText, JobType, Queue, duration};
use serde_json::value::RawValue;
use toml::Value;

use super::problem::has_password;

/// What operators see in place of a secret.
pub(crate) const LEFT_OUT: &str = "left out";

/// A kind of value. Bounds are checked by its order; kinds without an order need no bounds.
pub(crate) trait Kind: Sized + 'static {
    /// The expected value, as a noun phrase: "a duration".
    const NOUN: &'static str = "";
    /// Whether a value may be a table.
    const TAKES_TABLES: bool = false;
    /// Whether a variable's text is the value itself, also where it could be read as TOML.
    const IS_TEXT: bool = false;
    /// Whether the noun names all values that there are.
    const IS_CHOICE: bool = false;

    /// The same where it is made of others.
    fn noun() -> String {
        Self::NOUN.to_owned()
    }

    /// Reads the written value; an error says what was found and what to write instead.
    fn read(value: &Value) -> Result<Self, String>;

    /// The value as it is written; `None` for "not set", and of kinds that no default and no bound has.
    fn write(&self) -> Option<Value> {
        None
    }

    /// The written value without what is secret in it. Addresses with passwords are refused.
    fn shown(value: &Value) -> Value {
        value.clone()
    }

    /// Reads an environment variable as TOML, so that it can hold numbers and lists; as plain text if it is not TOML.
    fn from_environment(text: &str) -> Value {
        match text.parse() {
            Ok(value) if !Self::IS_TEXT => value,
            _ => Value::String(text.to_owned()),
        }
    }

    fn order(&self, _bound: &Self) -> Option<Ordering> {
        None
    }
}

/// The value as a person would write it, cut where it is long; not an address with a password.
pub(crate) fn shown(value: &Value) -> String {
    const SHOWN: usize = 60;
    let text = value.to_string();
    if has_password(&text) {
        return "the value".to_owned();
    }
    if text.chars().count() <= SHOWN { text } else { text.chars().take(SHOWN).chain(['…']).collect() }
}

pub(super) fn refuse<T>(value: &Value, wanted: &str) -> Result<T, String> {
    Err(format!("{} is not {wanted}", shown(value)))
}

pub(super) fn text<'a>(value: &'a Value, wanted: &str) -> Result<&'a str, String> {
    value.as_str().map_or_else(|| refuse(value, wanted), Ok)
}

impl Kind for Duration {
    const NOUN: &'static str = "a duration such as \"500ms\", \"30s\", \"5m\", \"2h\" or \"7d\"";
    const IS_TEXT: bool = true;

    fn read(value: &Value) -> Result<Self, String> {
        duration::parse(text(value, Self::NOUN)?).map_err(|error| error.to_string())
    }

    fn write(&self) -> Option<Value> {
        Some(Value::String(DurationText(*self).to_string()))
    }

    fn order(&self, bound: &Self) -> Option<Ordering> {
        self.partial_cmp(bound)
    }
}

macro_rules! whole_number {
    ($($number:ty),*) => {$(
        impl Kind for $number {
            const NOUN: &'static str = "a whole number";

            fn read(value: &Value) -> Result<Self, String> {
                let number = value.as_integer().and_then(|number| Self::try_from(number).ok());
                number.map_or_else(|| refuse(value, Self::NOUN), Ok)
            }

            fn write(&self) -> Option<Value> {
                i64::try_from(*self).ok().map(Value::Integer)
            }

            fn order(&self, bound: &Self) -> Option<Ordering> {
                self.partial_cmp(bound)
            }
        }
    )*};
}
whole_number!(u16, u32, u64, usize);

impl Kind for bool {
    const NOUN: &'static str = "true or false";

    fn read(value: &Value) -> Result<Self, String> {
        value.as_bool().map_or_else(|| refuse(value, Self::NOUN), Ok)
    }

    fn write(&self) -> Option<Value> {
        Some(Value::Boolean(*self))
    }
}

impl Kind for f64 {
    const NOUN: &'static str = "a number";

    fn read(value: &Value) -> Result<Self, String> {
        // Whole numbers are exact in a double far beyond any bound in use.
        let whole = |value: &Value| value.as_integer().and_then(|n| i32::try_from(n).ok()).map(Self::from);
        let number = value.as_float().or_else(|| whole(value)).filter(|number| number.is_finite());
        number.map_or_else(|| refuse(value, Self::NOUN), Ok)
    }

    fn write(&self) -> Option<Value> {
        Some(Value::Float(*self))
    }

    fn order(&self, bound: &Self) -> Option<Ordering> {
        self.partial_cmp(bound)
    }
}

/// A number of bytes: a whole number, or with a unit, `"64MiB"` or `"64 MiB"`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Size(pub(crate) u64);

const SIZES: [(&str, u64); 4] = [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];

impl From<u64> for Size {
    fn from(bytes: u64) -> Self {
        Self(bytes)
    }
}

impl From<Size> for u64 {
    fn from(size: Size) -> Self {
        size.0
    }
}

impl Kind for Size {
    const NOUN: &'static str = "a number of bytes such as \"64MiB\" or \"4GiB\" (KiB, MiB, GiB, TiB)";

    fn read(value: &Value) -> Result<Self, String> {
        let of_text = |text: &str| {
            let (unit, size) = SIZES.iter().find(|(unit, _)| text.ends_with(unit))?;
            text.strip_suffix(unit)?.trim_end().parse::<u64>().ok()?.checked_mul(*size)
        };
        let size = match value {
            Value::Integer(bytes) => u64::try_from(*bytes).ok(),
            Value::String(text) => of_text(text),
            _ => None,
        };
        // JetStream keeps bounds in signed 64-bit numbers.
        let size = size.filter(|bytes| i64::try_from(*bytes).is_ok());
        size.map_or_else(|| refuse(value, Self::NOUN), |bytes| Ok(Self(bytes)))
    }

    fn write(&self) -> Option<Value> {
        match SIZES.iter().find(|(_, size)| self.0 > 0 && self.0.is_multiple_of(*size)) {
            Some((unit, size)) => Some(Value::String(format!("{}{unit}", self.0 / size))),
            None => i64::try_from(self.0).ok().map(Value::Integer),
        }
    }

    fn order(&self, bound: &Self) -> Option<Ordering> {
        self.0.partial_cmp(&bound.0)
    }
}

/// A text of which a kind says whether it is right, or else perhaps in words of its own why not.
macro_rules! checked_text {
    ($(#[doc = $doc:literal] $name:ident: $noun:literal, $is_right:expr;)+) => {$(
        #[doc = $doc]
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub(crate) struct $name(pub(crate) String);

        impl $crate::config::kind::Kind for $name {
            const NOUN: &'static str = $noun;
            const IS_TEXT: bool = true;

            fn read(value: &toml::Value) -> Result<Self, String> {
                let is_right: fn(&str) -> Result<bool, String> = $is_right;
                let text = $crate::config::kind::text(value, $noun)?;
                if is_right(text)? { Ok(Self(text.to_owned())) } else { $crate::config::kind::refuse(value, $noun) }
            }

            fn write(&self) -> Option<toml::Value> {
                Some(toml::Value::String(self.0.clone()))
            }
        }
    )+};
}
pub(super) use checked_text;

checked_text! {
    /// A name that can be a token of a subject.
    Token: "a name of A-Z a-z 0-9 _ -, 64 bytes at most, not beginning with _", |text| {
        check_token(text).map(|()| true).map_err(|reason| format!("{text:?} {reason}"))
    };
    /// Any text but the empty one.
    Text: "a text", |text| if text.is_empty() { Err("is empty".to_owned()) } else { Ok(true) };
}

/// All tokens follow the same rule; it is checked here as that of a queue. The error is the reason alone.
pub(crate) fn check_token(text: &str) -> Result<(), String> {
    Queue::parse(text).map(|_| ()).map_err(|error| error.reason)
}

impl Kind for JobType {
    const NOUN: &'static str = "a job type such as \"email.send\"";

    fn read(value: &Value) -> Result<Self, String> {
        Self::parse(text(value, Self::NOUN)?).map_err(|error| error.to_string())
    }
}

/// Any value, as JSON: a job's payload.
#[derive(Debug, Clone)]
pub(crate) struct Json(pub(crate) Box<RawValue>);

impl Kind for Json {
    const NOUN: &'static str = "any value";
    const TAKES_TABLES: bool = true;

    fn shown(_: &Value) -> Value {
        Value::String(LEFT_OUT.to_owned()) // as the audit does with payloads
    }

    fn read(value: &Value) -> Result<Self, String> {
        let text = serde_json::to_string(&json(value)?).map_err(|error| error.to_string())?;
        RawValue::from_string(text).map(Self).map_err(|error| error.to_string())
    }
}

/// The value as JSON: times become texts, and a number that JSON does not have is refused.
fn json(value: &Value) -> Result<serde_json::Value, String> {
    Ok(match value {
        Value::String(text) => text.as_str().into(),
        Value::Integer(number) => (*number).into(),
        Value::Float(number) if !number.is_finite() => return Err(format!("{number} is no number of JSON")),
        Value::Float(number) => (*number).into(),
        Value::Boolean(yes) => (*yes).into(),
        Value::Datetime(at) => at.to_string().into(),
        Value::Array(entries) => entries.iter().map(json).collect::<Result<_, _>>()?,
        Value::Table(table) => {
            let entries = table.iter().map(|(key, value)| json(value).map(|value| (key.clone(), value)));
            serde_json::Value::Object(entries.collect::<Result<_, _>>()?)
        }
    })
}

/// How far a delay is spread: a share of it, or a duration.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Spread {
    /// 0 to 1.
    Share(f64),
    /// At most this much.
    Time(Duration),
}

impl Kind for Spread {
    const NOUN: &'static str = "a number from 0 to 1 (proportional) or a duration such as \"2s\" (additive)";

    fn read(value: &Value) -> Result<Self, String> {
        if value.is_str() {
            return Duration::read(value).map(Self::Time);
        }
        let share = f64::read(value).ok().filter(|share| (0.0..=1.0).contains(share));
        share.map_or_else(|| refuse(value, Self::NOUN), |share| Ok(Self::Share(share)))
    }
}

longshore_domain::named! {
    /// How spans are sent.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Protocol {
        /// Protobuf over HTTP.
        Http = "http/protobuf",
        /// gRPC.
        Grpc = "grpc",
    }
}

longshore_domain::named! {
    /// The form of jitter; [`Spread`] says how far.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(crate) enum JitterForm {
        /// Evenly within ± a share of the delay.
        Proportional = "proportional",
        /// The delay and up to so much more.
        Additive = "additive",
        /// Evenly between nothing and the delay.
        Full = "full",
        /// Exactly the delay.
        None = "none",
    }
}

longshore_domain::named! {
    /// An end of a run that frees its idempotency key before the window is over.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(crate) enum ReleasingEnd {
        Dead = "dead",
        Cancelled = "cancelled",
        Expired = "expired",
    }
}

/// Kinds that are one word of a few.
macro_rules! choices {
    ($($kind:ident)+) => {$(
        impl Kind for $kind {
            const IS_CHOICE: bool = true;

            fn noun() -> String {
                format!("one of {}", Self::NAMES.map(|name| format!("{name:?}")).join(", "))
            }

            fn read(value: &Value) -> Result<Self, String> {
                value.as_str().and_then(Self::parse).map_or_else(|| refuse(value, &Self::noun()), Ok)
            }

            fn write(&self) -> Option<Value> {
                Some(Value::String(self.as_str().to_owned()))
            }
        }
    )+};
}
pub(super) use choices;
choices! {
    FairBy History Hold JitterForm Misfire OnBusy OnMismatch Overlap Protocol ReleasingEnd Window
}

impl<K: Kind> Kind for Vec<K> {
    fn noun() -> String {
        format!("a list, each entry {}", K::noun())
    }

    fn read(value: &Value) -> Result<Self, String> {
        match value.as_array() {
            Some(entries) => entries.iter().map(K::read).collect(),
            None => refuse(value, &Self::noun()),
        }
    }

    fn write(&self) -> Option<Value> {
        Some(Value::Array(self.iter().filter_map(K::write).collect()))
    }
}

impl<K: Kind> Kind for Option<K> {
    const TAKES_TABLES: bool = K::TAKES_TABLES;
    const IS_TEXT: bool = K::IS_TEXT;
    const IS_CHOICE: bool = K::IS_CHOICE;

    fn noun() -> String {
        K::noun()
    }

    fn read(value: &Value) -> Result<Self, String> {
        K::read(value).map(Some)
    }

    fn write(&self) -> Option<Value> {
        self.as_ref().and_then(K::write)
    }

    fn shown(value: &Value) -> Value {
        K::shown(value)
    }

    fn order(&self, bound: &Self) -> Option<Ordering> {
        self.as_ref()?.order(bound.as_ref()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read<K: Kind + std::fmt::Debug>(text: &str) -> Result<K, String> {
        K::read(&text.parse().unwrap())
    }

    #[test]
    fn what_is_written_is_read_again() {
        for size in [0, 1, 1_000, 1 << 10, 3 << 20, 4 << 30, 5 << 40].map(Size) {
            assert_eq!(Size::read(&size.write().unwrap()), Ok(size));
        }
        assert_eq!(Size(4 << 30).write(), Some(Value::String("4GiB".to_owned())));
        assert_eq!(read("\"256 KiB\""), Ok(Size(256 << 10)));
    }

    #[test]
    fn an_error_says_what_would_be_right() {
        let sizes = r#""4GB" is not a number of bytes such as "64MiB" or "4GiB" (KiB, MiB, GiB, TiB)"#;
        assert_eq!(read::<Size>("\"4GB\"").unwrap_err(), sizes);
        assert!(read::<Size>("-1").is_err() && read::<Size>("\"9999999TiB\"").is_err());
        assert_eq!(read::<u32>("-1").unwrap_err(), "-1 is not a whole number");
        assert_eq!(read::<History>("\"some\"").unwrap_err(), r#""some" is not one of "all", "failures""#);
        assert_eq!(read::<Spread>("1"), Ok(Spread::Share(1.0)));
        assert!(read::<Spread>("1.5").is_err() && read::<f64>("nan").is_err());
    }

    #[test]
    fn the_environment_gives_numbers_and_texts_as_the_kind_needs_them() {
        assert_eq!(Token::from_environment("123"), Value::String("123".to_owned()));
        assert_eq!(u64::from_environment("123"), Value::Integer(123));
        assert_eq!(Spread::from_environment("2s"), Value::String("2s".to_owned()));
        assert_eq!(Vec::<Duration>::from_environment(r#"["1s"]"#).as_array().map(Vec::len), Some(1));
    }
}
