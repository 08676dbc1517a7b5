//! What the entries are made of: a setting, a table of settings, and a table per name.
//!
//! An [`Entry`] knows its kind, so that its value is read with the right type. [`Setting`] is the same entry for the
//! code that treats all settings alike: the reader, the reference, `config show`.

use std::cmp::Ordering;

use toml::Value;

use super::kind::{Kind, shown};

/// One setting, with everything that is known about it.
pub(crate) struct Entry<K> {
    pub(crate) name: &'static str,
    doc: &'static str,
    default: fn() -> K,
    example: &'static str,
    at_least: Option<fn() -> K>,
    at_most: Option<fn() -> K>,
    alone: bool,
}

impl<K: Kind> Entry<K> {
    /// A setting whose default is also its example.
    pub(crate) const fn new(name: &'static str, default: fn() -> K, doc: &'static str) -> Self {
        Self { name, doc: doc.trim_ascii_start(), default, example: "", at_least: None, at_most: None, alone: false }
    }

    pub(crate) const fn at_least(mut self, bound: fn() -> K) -> Self {
        self.at_least = Some(bound);
        self
    }

    pub(crate) const fn at_most(mut self, bound: fn() -> K) -> Self {
        self.at_most = Some(bound);
        self
    }

    /// A value in TOML for the reference, if there is no default or a better value to show.
    pub(crate) const fn example(mut self, example: &'static str) -> Self {
        self.example = example;
        self
    }

    /// It stands in place of all other settings of its table.
    pub(crate) const fn alone(mut self) -> Self {
        self.alone = true;
        self
    }

    pub(crate) fn default(&self) -> K {
        (self.default)()
    }

    /// Reads the written value and checks its bounds; an error says what is wrong and what would be right.
    pub(crate) fn read(&self, value: &Value) -> Result<K, String> {
        let read = K::read(value)?;
        let beyond = |bound: Option<fn() -> K>, wrong| bound.is_some_and(|bound| read.order(&bound()) == Some(wrong));
        if beyond(self.at_least, Ordering::Less) || beyond(self.at_most, Ordering::Greater) {
            return Err(format!("{} is out of bounds; {}", shown(value), self.bounds()));
        }
        Ok(read)
    }

    /// "1s or more", "1 to 1000", or nothing.
    fn bounds(&self) -> String {
        let bound = |bound: Option<fn() -> K>| bound.and_then(|bound| bound().write()).map(|value| plain(&value));
        match (bound(self.at_least), bound(self.at_most)) {
            (Some(least), Some(most)) => format!("{least} to {most}"),
            (Some(least), None) => format!("{least} or more"),
            (None, Some(most)) => format!("{most} at most"),
            (None, None) => String::new(),
        }
    }
}

/// A bound reads better without quotes.
fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// A setting of any kind.
pub(crate) trait Setting: Sync {
    /// The key, last part.
    fn name(&self) -> &'static str;
    fn doc(&self) -> &'static str;
    /// The kind of value, as a noun: "a duration".
    fn noun(&self) -> String;
    /// The allowed values, if not all are allowed: "1s or more".
    fn range(&self) -> String;
    /// The value that applies if none is written; `None` if there is none.
    fn default_value(&self) -> Option<Value>;
    fn example(&self) -> String;
    /// Whether it stands in place of all other settings of its table.
    fn alone(&self) -> bool;
    fn environment_value(&self, text: &str) -> Value;
    /// The written value without what is secret in it.
    fn shown(&self, value: &Value) -> Value;
    fn takes_tables(&self) -> bool;
    /// Says what is wrong with the written value, and what would be right.
    fn check(&self, value: &Value) -> Result<(), String>;
}

impl<K: Kind> Setting for Entry<K> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn doc(&self) -> &'static str {
        self.doc
    }

    fn noun(&self) -> String {
        K::noun()
    }

    fn range(&self) -> String {
        if K::IS_CHOICE { K::noun() } else { self.bounds() }
    }

    fn default_value(&self) -> Option<Value> {
        self.default().write()
    }

    fn example(&self) -> String {
        match self.example {
            "" => self.default_value().map(|value| value.to_string()).unwrap_or_default(),
            example => example.to_owned(),
        }
    }

    fn alone(&self) -> bool {
        self.alone
    }

    fn environment_value(&self, text: &str) -> Value {
        K::from_environment(text)
    }

    fn shown(&self, value: &Value) -> Value {
        K::shown(value)
    }

    fn takes_tables(&self) -> bool {
        K::TAKES_TABLES
    }

    fn check(&self, value: &Value) -> Result<(), String> {
        self.read(value).map(|_| ())
    }
}

/// Some settings under one key.
pub(crate) struct Table {
    pub(crate) doc: &'static str,
    pub(crate) fields: &'static [Field],
    /// The table applies only if it is written: its defaults fill in the settings that it leaves out.
    pub(crate) optional: bool,
}

impl Table {
    pub(crate) const fn of(doc: &'static str, fields: &'static [Field]) -> Self {
        Self { doc: doc.trim_ascii_start(), fields, optional: false }
    }

    pub(crate) const fn optional(mut self) -> Self {
        self.optional = true;
        self
    }

    /// Its settings, without those of its tables.
    pub(crate) fn settings(&self) -> impl Iterator<Item = &'static dyn Setting> + use<> {
        self.fields.iter().filter_map(|field| match field {
            Field::Setting(setting) => Some(*setting),
            Field::Table { .. } | Field::Named(_) => None,
        })
    }

    pub(crate) fn field(&self, name: &str) -> Option<&'static Field> {
        self.fields.iter().find(|field| field.name() == name)
    }
}

pub(crate) enum Field {
    /// A setting.
    Setting(&'static dyn Setting),
    /// A table of settings; `or` is a setting that may be written instead of it.
    Table { name: &'static str, table: &'static Table, or: Option<&'static dyn Setting> },
    /// A table of settings for each of some names.
    Named(&'static Named),
}

/// A table of settings for each of some names: `[queues.<name>]`.
pub(crate) struct Named {
    /// The key before the name.
    pub(crate) name: &'static str,
    pub(crate) doc: &'static str,
    /// A name for the reference, and the settings shown under it.
    pub(crate) example: (&'static str, &'static [&'static str]),
    pub(crate) check: fn(&str) -> Result<(), String>,
    pub(crate) table: &'static Table,
    /// Key of the table that has the settings that these leave out.
    pub(crate) fallback: Option<&'static str>,
}

impl Field {
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Setting(setting) => setting.name(),
            Self::Table { name, .. } => name,
            Self::Named(named) => named.name,
        }
    }
}
