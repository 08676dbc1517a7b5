//! Circles of imports in `actors/src`: of files, and of rooms, which are its folders and the files beside them. What
//! two sides need belongs beneath both.
//!
//! Read as text: only paths that begin with `crate::` count, and not what a file takes from the module that it is in.

use std::collections::{BTreeMap, BTreeSet};

use super::files::File;

const SOURCES: &str = "actors/src/";

/// Who names whom.
type Arrows<'f> = BTreeSet<(&'f str, &'f str)>;

/// The imports that close a circle.
pub(super) fn breaches(files: &[File]) -> Vec<String> {
    let sources = files.iter().filter(|file| file.is_rust() && !file.is_test());
    let code: BTreeMap<String, String> = sources.filter_map(|file| Some((module(&file.path)?, text(file)))).collect();
    let root = code.get("lib").map_or("", String::as_str);
    let faces: Vec<Vec<&str>> = root.split("pub use ").skip(1).flat_map(branches).collect();
    let (mut of_files, mut of_rooms) = (Arrows::new(), Arrows::new());
    for (from, text) in &code {
        for path in text.split("crate::").skip(1).flat_map(branches) {
            // What the crate shows is where it is made.
            let path = faces.iter().find(|face| path.len() == 1 && face.last() == path.first()).unwrap_or(&path);
            let named = (1..=path.len()).rev().find_map(|end| code.get_key_value(&path[..end].join("::")));
            let Some((to, _)) = named else { continue };
            of_files.insert((from.as_str(), to.as_str()));
            of_rooms.insert((room(from), room(to)));
        }
    }
    of_files.retain(|(from, to)| from.strip_prefix(to).is_none_or(|rest| !rest.is_empty() && !rest.starts_with("::")));
    of_rooms.retain(|(from, to)| from != to);
    let found = in_circles(of_rooms).into_iter().chain(in_circles(of_files));
    found
        .map(|(from, to)| format!("{SOURCES}: {from} uses {to}, and is used by it, perhaps by way of others"))
        .collect()
}

/// `api::intake` for the file of that module.
fn module(path: &str) -> Option<String> {
    let path = path.strip_prefix(SOURCES)?.strip_suffix(".rs")?;
    Some(path.strip_suffix("/mod").unwrap_or(path).replace('/', "::"))
}

fn room(module: &str) -> &str {
    module.split("::").next().unwrap_or(module)
}

/// The code of a file, without comments and tests.
fn text(file: &File) -> String {
    file.lines_without_tests().map(|(_, line)| line.split("//").next().unwrap_or("").to_owned() + "\n").collect()
}

/// The paths with which a text begins, each branch of a group by itself.
fn branches(text: &str) -> Vec<Vec<&str>> {
    let (mut found, mut path, mut open, mut rest) = (Vec::new(), Vec::new(), Vec::new(), text);
    loop {
        let is_word = |of: char| of.is_alphanumeric() || of == '_';
        let (word, after) = rest.split_at(rest.find(|of| !is_word(of)).unwrap_or(rest.len()));
        path.extend(Some(word).filter(|word| !word.is_empty()));
        let Some(mark) = after.chars().next() else { return found };
        rest = &after[mark.len_utf8()..];
        let begins = open.last().copied();
        match mark {
            ':' => continue,
            '{' => open.push(path.len()),
            ' ' | '\n' if begins.is_some() => {}
            _ => {
                found.extend(Some(path.clone()).filter(|path| path.len() > begins.unwrap_or(0)));
                open.truncate(open.len() - usize::from(mark == '}' && begins.is_some()));
                let Some(begins) = open.last() else { return found };
                path.truncate(*begins);
            }
        }
    }
}

/// What is left once those that name nobody, and those that nobody names, are taken away time and again.
fn in_circles(mut arrows: Arrows<'_>) -> Arrows<'_> {
    loop {
        let (from, to): (BTreeSet<&str>, BTreeSet<&str>) = arrows.iter().copied().unzip();
        let before = arrows.len();
        arrows.retain(|(one, other)| to.contains(one) && from.contains(other));
        if arrows.len() == before {
            return arrows;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, text: &str) -> File {
        File { path: format!("{SOURCES}{path}"), text: text.to_owned() }
    }

    #[test]
    fn the_branches_of_a_group_are_found() {
        let text = "api::{self, list::{of, Page}, Api as It},\n    wire::a,\n};";
        let all = ["api::self", "api::list::of", "api::list::Page", "api::Api::as::It"];
        assert_eq!(branches(text).iter().map(|path| path.join("::")).collect::<Vec<_>>(), all);
    }

    #[test]
    fn circles_of_rooms_and_of_files_are_found_and_nothing_above_or_beneath_them() {
        let files = [
            file("lib.rs", "pub use queue::{Served, worker::Worker};\n"),
            file("node.rs", "use crate::api::Api;\n"),
            file("api/mod.rs", "use crate::{Worker, clock};\n"),
            file("api/list.rs", "use crate::api::Api;\n// crate::node::Node\n"),
            file("queue/mod.rs", "//! A queue.\n"),
            file("queue/worker.rs", "use crate::api::{list::{self, Page as Pages}};\n"),
            file("clock.rs", "fn now() {}\n#[cfg(test)]\nmod tests {\n    use crate::api::Api;\n}\n"),
            file("time/a.rs", "fn a() { crate::time::b::b() }\n"),
            file("time/b.rs", "use crate::time::a;\n"),
        ];
        let found = breaches(&files);
        let found: Vec<&str> = found.iter().map(|line| line.split(": ").nth(1).unwrap()).collect();
        let all = [
            "api uses queue, and is used by it, perhaps by way of others",
            "queue uses api, and is used by it, perhaps by way of others",
            "time::a uses time::b, and is used by it, perhaps by way of others",
            "time::b uses time::a, and is used by it, perhaps by way of others",
        ];
        assert_eq!(found, all);
    }
}
