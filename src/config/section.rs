//! A table of the configuration as it was written: where its settings are read from, whatever they mean.

use super::kind::Kind;
use super::problem::{Origin, Problem};
use super::raw::{self, Content, Node, Tree, key};
use super::schema::Entry;

/// A table as written, with the table that has the settings it leaves out.
pub(crate) struct Section<'a> {
    path: Vec<&'a str>,
    pub(super) tree: Option<&'a Tree>,
    fallback: Option<&'a Tree>,
}

impl<'a> Section<'a> {
    pub(super) fn root(tree: &'a Tree) -> Self {
        Self { path: vec![], tree: Some(tree), fallback: None }
    }

    pub(super) fn key(&self) -> String {
        key(&self.path)
    }

    pub(crate) fn node(&self, name: &str) -> Option<&'a Node> {
        let within = |tree: Option<&'a Tree>| tree.and_then(|tree| tree.get(name));
        within(self.tree).or_else(|| within(self.fallback))
    }

    /// The setting's value: as written, else the default.
    pub(crate) fn get<K: Kind>(&self, entry: &Entry<K>) -> K {
        let written = self.node(entry.name).and_then(|node| match &node.content {
            Content::Value(value) => entry.read(value).ok(),
            Content::Table(tree) if K::TAKES_TABLES => entry.read(&raw::value(tree)).ok(),
            Content::Table(_) => None,
        });
        written.unwrap_or_else(|| entry.default())
    }

    /// The key of the value under `name`: that of `[defaults]` if the value comes from there.
    fn key_of(&self, name: &'a str) -> Vec<&'a str> {
        let holds = |tree: Option<&Tree>| tree.is_some_and(|tree| tree.contains_key(name));
        match holds(self.fallback) && !holds(self.tree) {
            true => vec!["defaults", name],
            false => [&self.path[..], &[name]].concat(),
        }
    }

    /// Where the value under `name` was written, and whether in this table: else in `[defaults]`.
    pub(crate) fn origin(&self, name: &str) -> Option<(bool, &'a Origin)> {
        let own = self.tree.is_some_and(|tree| tree.contains_key(name));
        self.node(name).map(|node| (own, &node.origin))
    }

    /// The table under `name`, which may be missing.
    pub(super) fn table(&self, name: &'a str) -> Section<'a> {
        let tree = match self.node(name).map(|node| &node.content) {
            Some(Content::Table(tree)) => Some(tree),
            _ => None,
        };
        Section { path: self.key_of(name), tree, fallback: None }
    }

    /// The tables of a section that has one per name, with their names.
    pub(crate) fn named(&self, name: &'a str, fallback: Option<&'a Tree>) -> Vec<(&'a str, Section<'a>)> {
        let section = self.table(name);
        let each = |(own, node): (&'a String, &'a Node)| match &node.content {
            Content::Table(tree) => {
                let path = [&section.path[..], &[own.as_str()]].concat();
                Some((own.as_str(), Section { path, tree: Some(tree), fallback }))
            }
            Content::Value(_) => None,
        };
        section.tree.into_iter().flatten().filter_map(each).collect()
    }

    /// A mistake in the value under `name`.
    pub(crate) fn problem(&self, name: &'a str, reason: String) -> Problem {
        Problem { origin: self.node(name).map(|node| node.origin.clone()), key: key(&self.key_of(name)), reason }
    }
}
