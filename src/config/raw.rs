//! The written settings: file and environment, merged into one tree in which every value knows where it was written.
//!
//! Reading goes on after a mistake, so that all are reported at once. A generic deserializer was rejected because it
//! ends at the first.

use std::collections::BTreeMap;
use std::sync::Arc;

use toml::de::{DeTable, DeValue};
use toml::{Spanned, Value};

use super::problem::{Origin, Problem, Source};

/// A key as written.
#[derive(Debug, Clone)]
pub(crate) struct Node {
    /// Where its value was written.
    pub(crate) origin: Origin,
    /// Where the key was written, to point at keys that should not be there at all.
    pub(crate) key_origin: Origin,
    pub(crate) content: Content,
}

/// A value, or a table of further keys.
#[derive(Debug, Clone)]
pub(crate) enum Content {
    /// Anything but a table.
    Value(Value),
    Table(Tree),
}

/// The keys of one table, or of the whole file.
pub(crate) type Tree = BTreeMap<String, Node>;

static NOTHING: Tree = Tree::new();

/// The table under a key; an empty one, if there is none.
pub(crate) fn inside<'a>(tree: &'a Tree, name: &str) -> &'a Tree {
    match tree.get(name).map(|node| &node.content) {
        Some(Content::Table(tree)) => tree,
        _ => &NOTHING,
    }
}

/// Reads a file's text. Each piece that is not valid TOML is a problem.
pub(crate) fn parse(source: &Arc<Source>) -> (Tree, Vec<Problem>) {
    let (table, errors) = DeTable::parse_recoverable(&source.text);
    let problem = |error: &toml::de::Error| Problem {
        origin: Some(Origin::File(source.clone(), error.span().unwrap_or(0..0))),
        key: String::new(),
        reason: error.message().trim_end().replace('\n', ", "),
    };
    (tree(source, table.get_ref()), errors.iter().map(problem).collect())
}

fn tree(source: &Arc<Source>, table: &DeTable<'_>) -> Tree {
    let node = |(key, value): (&Spanned<std::borrow::Cow<'_, str>>, &Spanned<DeValue<'_>>)| {
        let content = match value.get_ref() {
            DeValue::Table(inner) => Content::Table(tree(source, inner)),
            other => Content::Value(plain(other)),
        };
        let at = |span| Origin::File(source.clone(), span);
        (key.get_ref().to_string(), Node { origin: at(value.span()), key_origin: at(key.span()), content })
    };
    table.iter().map(node).collect()
}

/// The value without its positions. Numbers too large for TOML's own types stay strings, which no kind of number
/// accepts.
fn plain(value: &DeValue<'_>) -> Value {
    match value {
        DeValue::String(text) => Value::String(text.to_string()),
        DeValue::Integer(digits) => i64::from_str_radix(digits.as_str(), digits.radix())
            .map_or_else(|_| Value::String(digits.as_str().to_owned()), Value::Integer),
        DeValue::Float(digits) => {
            digits.as_str().parse().map_or_else(|_| Value::String(digits.as_str().to_owned()), Value::Float)
        }
        DeValue::Boolean(yes) => Value::Boolean(*yes),
        DeValue::Datetime(at) => Value::Datetime(*at),
        DeValue::Array(entries) => Value::Array(entries.iter().map(|entry| plain(entry.get_ref())).collect()),
        DeValue::Table(table) => {
            Value::Table(table.iter().map(|(key, value)| (key.get_ref().to_string(), plain(value.get_ref()))).collect())
        }
    }
}

/// A table as one value, for a setting that takes tables.
pub(crate) fn value(tree: &Tree) -> Value {
    let inside = |(name, node): (&String, &Node)| {
        let value = match &node.content {
            Content::Value(value) => value.clone(),
            Content::Table(tree) => value(tree),
        };
        (name.clone(), value)
    };
    Value::Table(tree.iter().map(inside).collect())
}

/// A key in full, its parts quoted where TOML needs it: `types."email.send".timeout`.
pub(crate) fn key(path: &[&str]) -> String {
    path.iter().map(|part| quoted(part)).collect::<Vec<_>>().join(".")
}

pub(crate) fn quoted(part: &str) -> String {
    let bare = !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte));
    if bare { part.to_owned() } else { Value::String(part.to_owned()).to_string() }
}
