//! Settings from the environment: `LONGSHORE_<SECTION>__<KEY>`, which win over the file.
//!
//! The parts of a key are joined by two underscores. A name of the user's own (of a queue, a type, …) means the name in
//! the file that reads the same in capitals with `_` for `-`; if the file has none, it means the name in small letters.
//! A type's dots are two underscores as well: `LONGSHORE_TYPES__EMAIL__SEND__TIMEOUT`. Empty variables count as not
//! set, because compose files and charts leave those behind.
//!
//! A variable without a double underscore is not a setting, except `LONGSHORE_NAMESPACE`: Kubernetes, for one, sets
//! `LONGSHORE_PORT` and others by itself if a service is called longshore.

use toml::Value;

use super::problem::{Origin, Problem};
use super::raw::{Content, Node, Tree, inside, key};
use super::schema::{Field, Setting, Table};

const PREFIX: &str = "LONGSHORE_";

/// Merges the variables into `tree`. A variable that names no setting is a problem; values are checked with the tree.
pub(crate) fn merge(tree: &mut Tree, table: &Table, variables: impl Iterator<Item = (String, String)>) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (variable, text) in variables.filter(|(_, text)| !text.is_empty()) {
        // An option of the command line, `--namespace`, is set as its variable is, and shown by its own name.
        let Some(parts) = variable
            .strip_prefix(PREFIX)
            .or(variable.strip_prefix("--"))
            .map(|rest| rest.split("__").collect::<Vec<_>>())
        else {
            continue;
        };
        let origin = Origin::Environment(variable.clone());
        match resolve(&parts, table, tree) {
            Some(NamedSetting { path, setting, is_table }) => match value(setting, is_table, &text) {
                Ok(value) => put(tree, &path, node(&value, &origin), &origin),
                Err(reason) => {
                    let parts: Vec<&str> = path.iter().map(String::as_str).collect();
                    problems.push(Problem { origin: Some(origin), key: key(&parts), reason });
                }
            },
            None if parts.len() == 1 => {}
            None => {
                let reason = "names no setting; longshore config print shows the variable of each".to_owned();
                problems.push(Problem { origin: Some(origin), key: String::new(), reason });
            }
        }
    }
    problems
}

/// The variable of a key, as the reference shows it.
pub(crate) fn variable(path: &[&str]) -> String {
    let parts = path.iter().map(|part| part.to_uppercase().replace('.', "__").replace('-', "_"));
    format!("{PREFIX}{}", parts.collect::<Vec<_>>().join("__"))
}

struct NamedSetting {
    path: Vec<String>,
    /// `None`: a whole table.
    setting: Option<&'static dyn Setting>,
    /// Whether it may be written as a table of settings.
    is_table: bool,
}

impl NamedSetting {
    fn below(mut self, part: String) -> Self {
        self.path.insert(0, part);
        self
    }
}

fn resolve(parts: &[&str], table: &Table, tree: &Tree) -> Option<NamedSetting> {
    let (first, rest) = parts.split_first()?;
    let field = table.field(&first.to_lowercase())?;
    let target = match field {
        Field::Setting(setting) => {
            rest.is_empty().then(|| NamedSetting { path: vec![], setting: Some(*setting), is_table: false })
        }
        // A section is not a setting; a table within one, such as `backoff`, may be written whole.
        Field::Table { or: setting, table, .. } if rest.is_empty() => {
            let may_be = setting.is_some() || table.optional;
            may_be.then(|| NamedSetting { path: vec![], setting: *setting, is_table: true })
        }
        Field::Table { name, table, .. } => resolve(rest, table, inside(tree, name)),
        Field::Named(named) => {
            let tree = inside(tree, named.name);
            // The longest key that fits wins, so the shortest name.
            (1..rest.len()).find_map(|at| {
                let name = name(&rest[..at], tree);
                resolve(&rest[at..], named.table, inside(tree, &name)).map(|target| target.below(name))
            })
        }
    };
    target.map(|target| target.below(field.name().to_owned()))
}

/// The user's own name that the variable means.
fn name(parts: &[&str], tree: &Tree) -> String {
    let written = parts.join(".");
    let plain = |name: &str| name.to_lowercase().replace('-', "_");
    match tree.keys().find(|known| plain(known) == plain(&written)) {
        Some(known) => known.clone(),
        None if written.chars().any(char::is_lowercase) => written,
        None => written.to_lowercase(),
    }
}

/// A table is written as in the file, `{ base = "1s" }`; anything else as the setting's kind needs it.
fn value(setting: Option<&'static dyn Setting>, is_table: bool, text: &str) -> Result<Value, String> {
    if text.trim_start().starts_with('{') {
        match text.parse::<Value>() {
            Ok(table) => return Ok(table),
            Err(error) if is_table => {
                let said = error.message().trim_end().replace('\n', ", ");
                return Err(format!("is not a table as the file has it, such as {{ name = \"text\" }}: {said}"));
            }
            Err(_) => {}
        }
    }
    Ok(setting.map_or_else(|| Value::String(text.to_owned()), |setting| setting.environment_value(text)))
}

pub(super) fn node(value: &Value, origin: &Origin) -> Node {
    let content = match value {
        Value::Table(table) => {
            Content::Table(table.iter().map(|(key, value)| (key.clone(), node(value, origin))).collect())
        }
        other => Content::Value(other.clone()),
    };
    Node { origin: origin.clone(), key_origin: origin.clone(), content }
}

/// Puts a value at a path, in place of what stands there.
pub(super) fn put(tree: &mut Tree, path: &[String], node: Node, origin: &Origin) {
    let Some((first, rest)) = path.split_first() else { return };
    if rest.is_empty() {
        tree.insert(first.clone(), node);
        return;
    }
    let table = || Node { origin: origin.clone(), key_origin: origin.clone(), content: Content::Table(Tree::new()) };
    let inside = tree.entry(first.clone()).or_insert_with(table);
    if matches!(inside.content, Content::Value(_)) {
        *inside = table();
    }
    if let Content::Table(inside) = &mut inside.content {
        put(inside, rest, node, origin);
    }
}
