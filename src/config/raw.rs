//! The written settings: file and environment, merged into one tree in which every value knows where it was written.
//!
//! Reading goes on after a mistake, so that all are reported at once. A generic deserializer was rejected because it
//! ends at the first.

use std::collections::BTreeMap;
use std::ops::Range;
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
    let problem =
        |span, reason| Problem { origin: Some(Origin::File(source.clone(), span)), key: String::new(), reason };
    let said =
        |error: &toml::de::Error| problem(error.span().unwrap_or(0..0), error.message().trim_end().replace('\n', ", "));
    let mut beyond = Vec::new();
    let tree = tree(source, table.get_ref(), &mut beyond);
    let beyond = beyond.into_iter().map(|span| problem(span, "is beyond TOML's whole numbers, of 64 bits".to_owned()));
    (tree, errors.iter().map(said).chain(beyond).collect())
}

/// `beyond`: where whole numbers stand for which there is no value.
fn tree(source: &Arc<Source>, table: &DeTable<'_>, beyond: &mut Vec<Range<usize>>) -> Tree {
    let node = |(key, value): (&Spanned<std::borrow::Cow<'_, str>>, &Spanned<DeValue<'_>>)| {
        let content = match value.get_ref() {
            DeValue::Table(inner) => Content::Table(tree(source, inner, beyond)),
            _ => Content::Value(plain(value, beyond)),
        };
        let at = |span| Origin::File(source.clone(), span);
        (key.get_ref().to_string(), Node { origin: at(value.span()), key_origin: at(key.span()), content })
    };
    table.iter().map(node).collect()
}

/// The value without its positions.
fn plain(value: &Spanned<DeValue<'_>>, beyond: &mut Vec<Range<usize>>) -> Value {
    match value.get_ref() {
        DeValue::String(text) => Value::String(text.to_string()),
        DeValue::Integer(digits) => {
            let number = i64::from_str_radix(digits.as_str(), digits.radix());
            Value::Integer(number.inspect_err(|_| beyond.push(value.span())).unwrap_or_default())
        }
        DeValue::Float(digits) => {
            digits.as_str().parse().map_or_else(|_| Value::String(digits.as_str().to_owned()), Value::Float)
        }
        DeValue::Boolean(yes) => Value::Boolean(*yes),
        DeValue::Datetime(at) => Value::Datetime(*at),
        DeValue::Array(entries) => Value::Array(entries.iter().map(|entry| plain(entry, beyond)).collect()),
        DeValue::Table(table) => {
            Value::Table(table.iter().map(|(key, value)| (key.get_ref().to_string(), plain(value, beyond))).collect())
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
