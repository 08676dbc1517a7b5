//! The entries, written out: as the commented file that ships, and as the settings in force on a node.

use std::fmt::Write as _;

use longshore_backbone::wire::api::InForce;
use toml::Value;

use super::entries::ROOT;
use super::environment::variable;
use super::raw::{Content, Node, Tree, inside, key, quoted, value};
use super::schema::{Field, Named, Setting, Table};

const WIDTH: usize = 110;

/// Where a setting comes from that nobody has set.
const DEFAULT: &str = "default";

const HEAD: &str = "\
# Every setting of Longshore, with its default. Generated from the entries: longshore config print.
#
# A line that begins with # and no space is a setting, at its default or (if it has none) at an example: remove the #
# and change it. Each setting is an environment variable, too: the line names it at its end, and it wins over the file.
# Durations are whole numbers with a unit: 500ms, 30s, 5m, 2h, 7d. Sizes are bytes, or have a unit: 64MiB, 4GiB.
#
# The connection to NATS is not set here but as for every NATS tool: NATS_URL, NATS_CREDS, NATS_NKEY, NATS_USER,
# NATS_PASSWORD, NATS_TOKEN, NATS_CA, NATS_CERT, NATS_KEY, NATS_JS_DOMAIN, NATS_CONTEXT; logs: LONGSHORE_LOG,
# LONGSHORE_LOG_FORMAT.
";

/// The commented file with every setting at its default. Unchanged it sets nothing; with every setting uncommented it
/// is valid, too.
pub fn file() -> String {
    let mut out = HEAD.to_owned();
    for field in ROOT.fields {
        match field {
            Field::Table { name, table, .. } => {
                comment(&mut out, "\n", table.doc);
                let _ = writeln!(out, "[{name}]");
                table.fields.iter().for_each(|field| describe_field(&mut out, field, &[name]));
            }
            other => describe_field(&mut out, other, &[]),
        }
    }
    out
}

fn describe_field(out: &mut String, field: &Field, path: &[&str]) {
    match field {
        Field::Setting(setting) => describe(out, *setting, path),
        Field::Table { name, table, or } => {
            let mut doc = table.doc.to_owned();
            if let Some(or) = or {
                let _ = write!(doc, " Or {}", lower_first(or.doc()));
            }
            comment(out, "\n", &doc);
            if path.first() == Some(&"defaults") && *name != "backoff" {
                for setting in table.settings() {
                    comment(out, "", &format!("  {}: {}", setting.name(), lower_first(setting.doc())));
                }
            }
            assign(out, name, &inline(table), path);
        }
        Field::Named(named) => describe_named(out, named),
    }
}

fn describe_named(out: &mut String, named: &Named) {
    let (name, shown) = named.example;
    comment(out, "\n", named.doc);
    let _ = writeln!(out, "#[{}.{}]", named.name, quoted(name));
    let path = [named.name, name];
    // Settings that [defaults] has explained are only named again.
    let terse = named.fallback.is_some();
    for field in named.table.fields.iter().filter(|field| shown.contains(&field.name())) {
        match field {
            Field::Setting(setting) if terse => assign(out, setting.name(), &setting.example(), &path),
            Field::Table { name, or: Some(or), .. } if terse => assign(out, name, &or.example(), &path),
            field => describe_field(out, field, &path),
        }
    }
    for setting in named.table.settings().filter(|setting| setting.alone()) {
        comment(out, "\n", &format!("Or {}", lower_first(setting.doc())));
        let _ = writeln!(out, "# {} = {}", setting.name(), setting.example());
    }
}

fn describe(out: &mut String, setting: &dyn Setting, path: &[&str]) {
    let mut doc = setting.doc().to_owned();
    if !setting.range().is_empty() {
        let _ = write!(doc, " {}.", upper_first(&setting.range()));
    }
    comment(out, "\n", &doc);
    assign(out, setting.name(), &setting.example(), path);
}

fn assign(out: &mut String, name: &str, value: &str, path: &[&str]) {
    let line = format!("#{name} = {value}");
    let _ = writeln!(out, "{line:<44} # {}", variable(&[path, &[name]].concat()));
}

fn inline(table: &Table) -> String {
    let parts = table.settings().filter(|setting| !setting.alone());
    let parts = parts.map(|setting| format!("{} = {}", setting.name(), setting.example()));
    format!("{{ {} }}", parts.collect::<Vec<_>>().join(", "))
}

fn comment(out: &mut String, before: &str, text: &str) {
    out.push_str(before);
    let indent = text.len() - text.trim_start().len();
    let mut line = format!("# {}", " ".repeat(indent));
    let empty = line.clone();
    for word in text.split_whitespace() {
        if line.chars().count() + word.chars().count() > WIDTH {
            let _ = writeln!(out, "{}", line.trim_end());
            line = empty.clone();
        }
        line.push_str(word);
        line.push(' ');
    }
    if line.trim_end() != "#" {
        let _ = writeln!(out, "{}", line.trim_end());
    }
}

fn upper_first(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().into_iter().flat_map(char::to_uppercase).chain(letters).collect()
}

fn lower_first(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().into_iter().flat_map(char::to_lowercase).chain(letters).collect()
}

/// Every setting in force, with the place where it was set, as TOML; without secrets.
pub(crate) fn in_force(tree: &Tree) -> String {
    let (mut out, mut section) = (String::new(), String::new());
    for setting in written(tree, false) {
        if setting.section != section {
            let _ = writeln!(out, "\n[{}]", setting.section);
        }
        let _ = match setting.value {
            Some(value) => writeln!(out, "{:<44} # {}", format!("{} = {value}", setting.name), setting.from),
            None => writeln!(out, "# {} is not set", setting.name),
        };
        section = setting.section;
    }
    out
}

/// The same in parts. `for_operators`: of names without what they have from `[defaults]`.
pub(crate) fn written(tree: &Tree, for_operators: bool) -> Vec<InForce> {
    let mut writer = Writer { section: String::new(), for_operators, out: Vec::new() };
    for field in ROOT.fields {
        match field {
            Field::Setting(_) => writer.force(field, "", tree, None),
            Field::Table { name, table, .. } => {
                writer.section = (*name).to_owned();
                writer.force_table(table, "", inside(tree, name), None);
            }
            Field::Named(named) => {
                let written = inside(tree, named.name);
                let fallback = named.fallback.map(|name| inside(tree, name));
                let names: Vec<&str> = match (written.is_empty(), named.name) {
                    (true, "queues") => vec!["main"],
                    _ => written.keys().map(String::as_str).collect(),
                };
                for name in names {
                    writer.section = key(&[named.name, name]);
                    writer.force_table(named.table, "", inside(written, name), fallback);
                }
            }
        }
    }
    writer.out
}

struct Writer {
    section: String,
    for_operators: bool,
    out: Vec<InForce>,
}

impl Writer {
    fn force_table(&mut self, table: &Table, prefix: &str, tree: &Tree, fallback: Option<&Tree>) {
        let is_alone = |field: &&Field| matches!(field, Field::Setting(setting) if setting.alone());
        let alone = table.fields.iter().filter(is_alone).find(|field| tree.contains_key(field.name()));
        match alone {
            Some(field) => self.force(field, prefix, tree, fallback),
            None => table.fields.iter().filter(|field| !is_alone(field)).for_each(|field| {
                self.force(field, prefix, tree, fallback);
            }),
        }
    }

    fn force(&mut self, field: &Field, prefix: &str, tree: &Tree, fallback: Option<&Tree>) {
        let name = field.name();
        let is_own = tree.contains_key(name);
        if self.for_operators && !is_own && fallback.is_some() {
            return;
        }
        let tree = if is_own { tree } else { fallback.unwrap_or(tree) };
        let origin = |node: &Node| {
            let inherited = if is_own { "" } else { "defaults, " };
            format!("{inherited}{}", node.origin.brief())
        };
        let safe = |setting: Option<&dyn Setting>, value: &Value| match setting {
            Some(setting) => setting.shown(value).to_string(),
            None => value.to_string(),
        };
        let (value, from) = match (field, tree.get(name).map(|node| (node, &node.content))) {
            (Field::Setting(setting), Some((node, Content::Value(value)))) => {
                (Some(safe(Some(*setting), value)), origin(node))
            }
            (Field::Table { or, .. }, Some((node, Content::Value(value)))) => (Some(safe(*or, value)), origin(node)),
            (Field::Setting(setting), Some((node, Content::Table(tree)))) if setting.takes_tables() => {
                (Some(safe(Some(*setting), &value(tree))), origin(node))
            }
            (Field::Setting(setting), _) => {
                (setting.default_value().map(|value| value.to_string()), DEFAULT.to_owned())
            }
            (Field::Table { table, .. }, None) if table.optional => (None, DEFAULT.to_owned()),
            (Field::Table { table, .. }, _) => {
                return self.force_table(table, &format!("{prefix}{name}."), inside(tree, name), None);
            }
            (Field::Named(_), _) => return,
        };
        self.out.push(InForce { section: self.section.clone(), name: format!("{prefix}{name}"), value, from });
    }
}
