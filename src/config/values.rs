//! Each written value by itself, against its entry: an unknown key, or a value of the wrong kind or out of bounds, is a
//! [`Problem`] with its place. Rules that need two settings belong to `check`.

use std::ops::Range;

use toml::Value;

use super::problem::{Origin, Problem};
use super::raw::{Content, Node, Tree, key, value};
use super::schema::{Field, Named, Setting, Table};

/// Lets a typo or two pass and keeps out words that only begin alike (Jaro-Winkler).
const ALIKE: f64 = 0.8;

/// What is wrong with them.
pub(crate) fn problems(tree: &Tree, table: &Table) -> Vec<Problem> {
    let mut found = Vec::new();
    check_table(tree, table, &mut Vec::new(), &mut found);
    found
}

/// Where in the file something stands that `config show` leaves out, or a key that may be misspelt for one of that.
pub(crate) fn hidden(tree: &Tree, table: &Table) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    hide_in(tree, table, &mut found);
    found
}

fn hide_in(tree: &Tree, table: &Table, found: &mut Vec<Range<usize>>) {
    let shows = |setting: &dyn Setting, value: &Value| setting.shown(value) == *value;
    for (name, node) in tree {
        match (table.field(name), &node.content) {
            (Some(Field::Table { table, .. }), Content::Table(tree)) => hide_in(tree, table, found),
            (Some(Field::Named(named)), Content::Table(tree)) => {
                let each = tree.values().filter_map(|node| match &node.content {
                    Content::Table(tree) => Some(tree),
                    Content::Value(_) => None,
                });
                each.for_each(|tree| hide_in(tree, named.table, found));
            }
            (Some(Field::Setting(setting) | Field::Table { or: Some(setting), .. }), Content::Value(value))
                if !shows(*setting, value) =>
            {
                hide(node, found);
            }
            (Some(Field::Setting(setting)), Content::Table(tree)) if !shows(*setting, &value(tree)) => {
                hide(node, found);
            }
            (None, _) => {
                let text = Value::String("x".to_owned());
                if table
                    .settings()
                    .any(|setting| strsim::jaro_winkler(setting.name(), name) > ALIKE && !shows(setting, &text))
                {
                    hide(node, found);
                }
            }
            _ => {}
        }
    }
}

fn hide(node: &Node, found: &mut Vec<Range<usize>>) {
    if let Origin::File(_, place) = &node.origin {
        found.push(place.clone());
    }
    if let Content::Table(tree) = &node.content {
        tree.values().for_each(|node| hide(node, found));
    }
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
    let alike = names.clone().map(|known| (strsim::jaro_winkler(known, name), known));
    match alike.filter(|(likeness, _)| *likeness > ALIKE).max_by(|a, b| a.0.total_cmp(&b.0)) {
        Some((_, known)) => format!("is not known; did you mean {known}?"),
        None => format!("is not known; known here: {}", names.collect::<Vec<_>>().join(", ")),
    }
}
