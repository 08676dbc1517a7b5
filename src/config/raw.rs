//! The written settings: file and environment, merged into one tree in which every value knows where it was written.
//!
//! An unknown key, or a value of the wrong kind or out of bounds, is a [`Problem`] with its place; reading goes on, so
//! that all problems are reported at once. Rules that need two settings belong to `check`. A generic deserializer was
//! rejected because it ends at the first mistake.

use std::collections::BTreeMap;
use std::sync::Arc;

use toml::de::{DeTable, DeValue};
use toml::{Spanned, Value};

use super::problem::{Origin, Problem, Source};
use super::schema::{Field, Named, Table};

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

/// Checks each written value by itself against its entry.
pub(crate) fn problems(tree: &Tree, table: &Table) -> Vec<Problem> {
    let mut found = Vec::new();
    check_table(tree, table, &mut Vec::new(), &mut found);
    found
}

fn check_table<'t>(tree: &'t Tree, table: &Table, path: &mut Vec<&'t str>, found: &mut Vec<Problem>) {
    for (name, node) in tree {
        path.push(name);
        match table.field(name) {
            None => {
                let reason = unknown(name, node, table, path);
                found.push(Problem { origin: Some(node.key_origin.clone()), key: key(path), reason });
            }
            Some(field) => check_field(node, field, path, found),
        }
        path.pop();
    }
}

fn check_field<'t>(node: &'t Node, field: &Field, path: &mut Vec<&'t str>, found: &mut Vec<Problem>) {
    let checked = match (field, &node.content) {
        (Field::Setting(setting) | Field::Table { or: Some(setting), .. }, Content::Value(value)) => {
            setting.check(value)
        }
        (Field::Setting(setting), Content::Table(tree)) if setting.takes_tables() => setting.check(&value(tree)),
        (Field::Setting(setting), Content::Table(_)) => Err(format!("is a table; it should be {}", setting.noun())),
        (Field::Table { table, .. }, Content::Table(tree)) => return check_table(tree, table, path, found),
        (Field::Named(named), Content::Table(tree)) => return check_named(tree, named, path, found),
        (Field::Table { .. } | Field::Named(_), Content::Value(value)) => {
            Err(format!("{value} is not a table; write [{}]", key(path)))
        }
    };
    if let Err(reason) = checked {
        found.push(Problem { origin: Some(node.origin.clone()), key: key(path), reason });
    }
}

fn check_named<'t>(tree: &'t Tree, named: &Named, path: &mut Vec<&'t str>, found: &mut Vec<Problem>) {
    let each = Field::Table { name: named.name, table: named.table, or: None };
    for (name, node) in tree {
        path.push(name);
        if let Err(reason) = (named.check)(name) {
            let reason = format!("the name {reason}");
            found.push(Problem { origin: Some(node.key_origin.clone()), key: key(path), reason });
        }
        check_field(node, &each, path, found);
        path.pop();
    }
}

/// Why a key is not known, with the key that may be meant.
fn unknown(name: &str, node: &Node, table: &Table, path: &[&str]) -> String {
    if let (["types", job_type, ..], Content::Table(_)) = (path, &node.content) {
        return format!(
            "is not a setting of a type; a type with dots is written in quotes, [types.\"{job_type}.{name}\"]"
        );
    }
    let names = table.fields.iter().map(Field::name);
    // 0.8 lets a typo or two pass and keeps out words that only begin alike (Jaro-Winkler).
    let alike = names.clone().map(|known| (strsim::jaro_winkler(known, name), known));
    match alike.filter(|(likeness, _)| *likeness > 0.8).max_by(|a, b| a.0.total_cmp(&b.0)) {
        Some((_, known)) => format!("is not known; did you mean {known}?"),
        None => format!("is not known; known here: {}", names.collect::<Vec<_>>().join(", ")),
    }
}
