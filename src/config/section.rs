//! A table of the configuration as it was written: where its settings are read from, whatever they mean; and
//! [`settings!`], which makes entries, table and reader of one list.

use super::kind::Kind;
use super::problem::{Origin, Problem};
use super::raw::{self, Content, Node, Tree, key};
use super::schema::Entry;

/// A table as written, with the table that has the settings it leaves out.
pub(crate) struct Section<'a> {
    path: Vec<&'a str>,
    pub(super) tree: Option<&'a Tree>,
    fallback: Option<&'a Tree>,
    /// Where it was written.
    origin: Option<&'a Origin>,
}

impl<'a> Section<'a> {
    pub(super) fn root(tree: &'a Tree) -> Self {
        Self { path: vec![], tree: Some(tree), fallback: None, origin: None }
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
        let written = self.node(name).and_then(|node| match &node.content {
            Content::Table(tree) => Some((tree, &node.key_origin)),
            Content::Value(_) => None,
        });
        let (tree, origin) = written.unzip();
        Section { path: self.key_of(name), tree, fallback: None, origin }
    }

    /// The tables of a section that has one per name, with their names.
    pub(crate) fn named(&self, name: &'a str, fallback: Option<&'a Tree>) -> Vec<(&'a str, Section<'a>)> {
        let section = self.table(name);
        let each = |(own, node): (&'a String, &'a Node)| match &node.content {
            Content::Table(tree) => {
                let path = [&section.path[..], &[own.as_str()]].concat();
                Some((own.as_str(), Section { path, tree: Some(tree), fallback, origin: Some(&node.key_origin) }))
            }
            Content::Value(_) => None,
        };
        section.tree.into_iter().flatten().filter_map(each).collect()
    }

    /// A mistake in the value under `name`; the place of one that is missing is that of the table.
    pub(crate) fn problem(&self, name: &'a str, reason: String) -> Problem {
        let origin = self.node(name).map(|node| &node.origin).or(self.origin);
        Problem { origin: origin.cloned(), key: key(&self.key_of(name)), reason }
    }
}

/// A list of settings: a struct with the entry of each, and their table.
///
/// What stands above a setting in `///` is what users read of it. Behind its kind are its default and what else an
/// [`Entry`] has. A table within the table stands in brackets behind the setting that it follows.
///
/// A list `of` a struct needs no default where that is the one of the struct's field of the same name: `read` makes the
/// struct, those fields as they are written and all others as they are by default. A setting with a default of its own
/// is not read by it. In other lists a setting without a default has that of its kind: not set, or empty.
macro_rules! settings {
    ($(#[doc = $about:literal])* $NAME:ident: $Entries:ident, $TABLE:ident $(.$how:ident())?; $($rows:tt)*) => {
        settings! { @entries [$($about)*] $NAME $Entries () $TABLE [$($how)?] { $($rows)* } }
    };
    (
        $(#[doc = $about:literal])*
        $NAME:ident: $Entries:ident of $Target:ident, $TABLE:ident $(.$how:ident())?; $($rows:tt)*
    ) => {
        settings! { @entries [$($about)*] $NAME $Entries $Target $TABLE [$($how)?] { $($rows)* } }
        settings! { @read $Entries $Target { $($rows)* } }
    };
    (@entries [$($about:literal)*] $NAME:ident $Entries:ident $target:tt $TABLE:ident [$($how:ident)?] {
        $([$first:ident: $of_first:expr])*
        $(
            $(#[doc = $doc:literal])+
            $field:ident: $kind:ty $(= $default:expr)? $(, $modifier:ident $value:tt)*;
            $([$inner:ident: $table:expr $(, or $or:expr)?])*
        )+
    }) => {
        pub(crate) struct $Entries {
            $(pub(crate) $field: $crate::config::schema::Entry<$kind>,)+
        }

        pub(crate) static $NAME: $Entries = $Entries {$(
            $field: $crate::config::schema::Entry::<$kind>::new(
                stringify!($field),
                || settings!(@default $target $field $($default)?),
                concat!($($doc),+),
            )
            $(.$modifier $value)*,
        )+};

        pub(crate) static $TABLE: $crate::config::schema::Table = $crate::config::schema::Table::of(
            concat!($($about),*),
            &[
                $($crate::config::schema::Field::Table { name: stringify!($first), table: $of_first, or: None },)*
                $(
                    $crate::config::schema::Field::Setting(&$NAME.$field),
                    $($crate::config::schema::Field::Table {
                        name: stringify!($inner),
                        table: $table,
                        or: settings!(@or $($or)?),
                    },)*
                )+
            ],
        )
        $(.$how())?;
    };
    (@read $Entries:ident $Target:ident {
        $([$($first:tt)*])*
        $(
            $(#[doc = $doc:literal])+
            $field:ident: $kind:ty $(= $default:expr)? $(, $modifier:ident $value:tt)*;
            $([$($inner:tt)*])*
        )+
    }) => {
        impl $Entries {
            /// The struct as it is written in a section.
            pub(crate) fn read(&self, section: &$crate::config::section::Section<'_>) -> $Target {
                let mut made = $Target::default();
                $(settings!(@set made section self $field $($default)?);)+
                made
            }
        }
    };
    (@set $made:ident $section:ident $entries:ident $field:ident) => {
        $made.$field = $section.get(&$entries.$field).into();
    };
    (@set $made:ident $section:ident $entries:ident $field:ident $default:expr) => {};
    (@default () $field:ident) => {
        Default::default()
    };
    (@default $Target:ident $field:ident) => {
        $Target::default().$field.into()
    };
    (@default $target:tt $field:ident $default:expr) => {
        $default
    };
    (@or) => {
        None
    };
    (@or $or:expr) => {
        Some($or)
    };
}
pub(crate) use settings;
