//! The ledger of sizes, `xtask/sizes.md`: how many lines each folder of the product may have, how many functions take
//! tuples apart in their parameters, and how many names of types stand for three or more. Growth takes a line there,
//! with its reason.

use std::collections::{BTreeMap, BTreeSet};

use super::files::File;

const LEDGER: &str = "xtask/sizes.md";
const TUPLES: &str = "parameters that are tuples";
const NAMES: &str = "names of three types or more";

/// What is larger than the ledger allows, not in it, or not there any more.
pub(super) fn breaches(files: &[File]) -> Vec<String> {
    let Some(ledger) = files.iter().find(|file| file.path == LEDGER) else { return vec![format!("{LEDGER}: missing")] };
    let (allowed, found) = (allowed(ledger), measured(files));
    let mut breaches = Vec::new();
    for (what, size) in &found {
        match allowed.get(what.as_str()) {
            None => breaches.push(format!("{LEDGER}: no row for {what} ({size})")),
            Some(most) if size > most => {
                breaches
                    .push(format!("{what}: {size}, {most} at most: make it smaller, or say in {LEDGER} why it grows"));
            }
            Some(_) => {}
        }
    }
    let gone = allowed.keys().filter(|what| !found.contains_key(**what));
    breaches.extend(gone.map(|what| format!("{LEDGER}: there is no {what}")));
    breaches
}

/// The rows `| what | at most | why |`.
fn allowed(ledger: &File) -> BTreeMap<&str, usize> {
    let rows = ledger.text.lines().filter_map(|line| {
        let mut cells = line.strip_prefix('|')?.split('|').map(str::trim);
        let (what, most) = (cells.next()?, cells.next()?);
        Some((what.trim_matches('`'), most.replace(',', "").parse().ok()?))
    });
    rows.collect()
}

fn measured(files: &[File]) -> BTreeMap<String, usize> {
    let mut found = BTreeMap::from([(TUPLES.to_owned(), 0), (NAMES.to_owned(), 0)]);
    let mut names: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for file in files.iter().filter(|file| file.is_rust()) {
        let Some(folder) = folder(&file.path) else { continue };
        let lines: Vec<&str> = file.lines_without_tests().map(|(_, line)| line).collect();
        if lines.is_empty() {
            continue;
        }
        *found.entry(folder.to_owned()).or_default() += lines.len();
        *found.entry(TUPLES.to_owned()).or_default() += lines.iter().filter(|line| takes_a_tuple_apart(line)).count();
        for name in lines.iter().filter_map(|line| type_name(line)) {
            names.entry(name).or_default().insert(&file.path);
        }
    }
    found.insert(NAMES.to_owned(), names.values().filter(|files| files.len() > 2).count());
    found
}

/// The folder of the product that a file is in: `actors/src/api`, or `actors/src` for files beside such folders.
fn folder(path: &str) -> Option<&str> {
    let src = ["domain/src/", "backbone/src/", "actors/src/", "src/"].into_iter().find(|src| path.starts_with(src))?;
    let end = path[src.len()..].find('/').map_or(src.len() - 1, |slash| src.len() + slash);
    Some(&path[..end])
}

/// Whether a parameter is `(one, other): (One, Other)`; `(): ()` is no tuple.
fn takes_a_tuple_apart(line: &str) -> bool {
    let is_other = ["let ", "//"].iter().any(|begin| line.trim_start().starts_with(begin));
    !is_other && line.split("): (").skip(1).any(|of| !of.starts_with(')'))
}

/// The name of the type that is defined there, unless a macro gives the name.
fn type_name(line: &str) -> Option<&str> {
    let mut words = line.split_whitespace().skip_while(|word| word.starts_with("pub"));
    let is_type = ["struct", "enum", "trait"].contains(&words.next()?);
    let name = words.next().filter(|_| is_type && !line.starts_with("//"))?;
    name.split(|of: char| !of.is_alphanumeric()).next().filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, text: &str) -> File {
        File { path: path.to_owned(), text: text.to_owned() }
    }

    #[test]
    fn growth_new_folders_and_stale_rows_are_found() {
        let tuple =
            "fn a((one, other): (u8, u8)) {}\npub(crate) struct Known;\nstruct $of;\n#[cfg(test)]\nmod tests {}\n";
        let same = "pub struct Known<T>(T);\nstruct $of;\nfn unit((): ()) {}\n";
        let rows = "| what | at most | why |\n|---|---|---|\n| `actors/src/api` | 1 | |\n| `src` | 1,000 | |\n\
                    | `gone` | 3 | |\n| parameters that are tuples | 0 | |\n| names of three types or more | 0 | |\n";
        let files = [
            file("actors/src/api/a.rs", tuple),
            file("actors/src/b.rs", same),
            file("src/c.rs", same),
            file("tests/d.rs", tuple),
            file(LEDGER, rows),
        ];
        let found = breaches(&files);
        let begins: Vec<&str> = found.iter().map(|line| line.split([',', '(']).next().unwrap()).collect();
        assert_eq!(
            begins,
            [
                "xtask/sizes.md: no row for actors/src ",
                "actors/src/api: 3",
                "names of three types or more: 1",
                "parameters that are tuples: 1",
                "xtask/sizes.md: there is no gone"
            ]
        );
        assert_eq!(breaches(&files[..4]), ["xtask/sizes.md: missing"]);
    }
}
