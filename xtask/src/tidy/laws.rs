//! Laws of a single file: which crates it may name, and what it may not contain.
//!
//! The laws read sources as text, without comments. That is coarse, and enough: a false alarm costs one rename, and the
//! crate's own manifest refuses what is missed here.

use super::files::File;

/// External crates that only some of our crates may name. One of our crates is a folder at the root; the root package's
/// own code is `src`.
const ROOMS: [(&str, &[&str]); 7] = [
    ("async_nats", &["backbone", "harness", "bench", "tests", "xtask"]),
    ("ractor", &["actors"]),
    ("toml", &["src", "bench"]),
    ("clap", &["src", "bench", "harness"]),
    ("axum", &["src"]),
    // In the backbone by tests alone: examples are held to the schemas of the document.
    ("jsonschema", &["src", "backbone"]),
    ("hyper", &["src", "harness", "bench"]),
];

/// How the names of headers and of NATS's own subjects begin. Only the backbone says them; the product's other crates
/// (outside tests) use its constants and functions.
const WIRE: [&str; 5] = ["\"Longshore-", "\"Nats-", "\"$JS.", "\"$KV.", "\"$SRV."];
const WITHOUT_WIRE: [&str; 3] = ["domain", "actors", "src"];

// Put together from halves, so that this file does not find itself.
const UNFINISHED: [&str; 4] =
    [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("todo", "!("), concat!("unimple", "mented!(")];
const SLEEP: &str = concat!("thread::", "sleep");

/// Everything in `file` that breaks a law, as `path:line: what`.
pub(super) fn breaches(file: &File) -> Vec<String> {
    let mut found = Vec::new();
    let mut report = |line: usize, what: String| found.push(format!("{}:{line}: {what}", file.path));
    unfinished(file, &mut report);
    if file.is_rust() {
        foreign_crates(file, &mut report);
        sleeps(file, &mut report);
        wire_names(file, &mut report);
        opening(file, &mut report);
    }
    if file.is_manifest() {
        foreign_dependencies(file, &mut report);
        aborts(file, &mut report);
    }
    found
}

type Report<'r> = &'r mut dyn FnMut(usize, String);

fn unfinished(file: &File, report: Report<'_>) {
    for (number, line) in file.lines() {
        for word in UNFINISHED.iter().filter(|word| line.contains(**word)) {
            report(number, format!("{word}: finish it, or write it down as an issue"));
        }
    }
}

fn foreign_crates(file: &File, report: Report<'_>) {
    let room = file.path.split('/').next().unwrap_or("");
    for (name, rooms) in ROOMS.iter().filter(|(_, rooms)| !rooms.contains(&room)) {
        for (number, _) in file.lines().filter(|(_, line)| names_crate(code(line), name)) {
            report(number, format!("{name} may be named in {} only", rooms.join(", ")));
        }
    }
}

/// Whether the line uses a path that begins with the crate's name: `name::…`, `use name;`, `use name as …`.
fn names_crate(line: &str, name: &str) -> bool {
    line.match_indices(name).any(|(start, _)| {
        let (before, after) = (&line[..start], &line[start + name.len()..]);
        let begins = !before.ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == ':' || c == '.');
        let used = before.trim_end().ends_with("use") && after.starts_with([';', ' ']);
        begins && (after.starts_with("::") || used)
    })
}

fn sleeps(file: &File, report: Report<'_>) {
    for (number, line) in file.lines_without_tests() {
        if code(line).contains(SLEEP) {
            report(number, format!("{SLEEP} outside tests: await the event instead"));
        }
    }
}

fn wire_names(file: &File, report: Report<'_>) {
    let room = file.path.split('/').next().unwrap_or("");
    if !WITHOUT_WIRE.contains(&room) {
        return;
    }
    for (number, line) in file.lines_without_tests() {
        for name in WIRE.iter().filter(|name| code(line).contains(**name)) {
            report(number, format!("{name}…\" is a name of the wire: only backbone says it"));
        }
    }
}

fn opening(file: &File, report: Report<'_>) {
    let mut lines = file.lines().skip_while(|(_, line)| line.is_empty() || line.starts_with("#!["));
    if !lines.next().is_some_and(|(_, line)| line.starts_with("//!")) {
        report(1, "a module opens with a paragraph (`//!`) that says what it is and what it may not do".to_owned());
    }
}

/// The same law for the list of dependencies, where it is broken first.
fn foreign_dependencies(file: &File, report: Report<'_>) {
    let mut table = "";
    for (number, line) in file.lines() {
        let line = line.split('#').next().unwrap_or("").trim();
        if let Some(header) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            table = header;
        }
        let room = match (file.path.split_once('/'), table) {
            (_, table) if !table.ends_with("dependencies") || table.starts_with("workspace") => continue,
            (Some((room, _)), _) => room,
            (None, "dev-dependencies") => "tests",
            (None, _) => "src",
        };
        let Some(name) = line.split(['.', '=', ' ']).next() else { continue };
        for (_, rooms) in
            ROOMS.iter().filter(|(known, rooms)| name.replace('-', "_") == *known && !rooms.contains(&room))
        {
            report(number, format!("{name} may be a dependency of {} only", rooms.join(", ")));
        }
    }
}

fn aborts(file: &File, report: Report<'_>) {
    for (number, line) in file.lines() {
        let entry: String = line.split('#').next().unwrap_or("").split_whitespace().collect();
        if entry == "panic=\"abort\"" || entry == "panic='abort'" {
            report(number, "panics are contained, which `abort` would turn into the node's end".to_owned());
        }
    }
}

/// The line without its comment. The text after `//` in a string, as in an address, is cut off, too.
fn code(line: &str) -> &str {
    line.split("//").next().unwrap_or("")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, text: &str) -> Vec<String> {
        breaches(&File { path: path.to_owned(), text: text.to_owned() })
    }

    /// A source file with an opening and this line.
    fn line(path: &str, line: &str) -> usize {
        found(path, &format!("//! A room.\n{line}\n")).len()
    }

    #[test]
    fn each_crate_has_its_rooms() {
        let nats = ROOMS[0].0;
        for text in [format!("use {nats}::Client;"), format!("    {nats}::connect()"), format!("use {nats} as n;")] {
            assert_eq!(line("domain/src/a.rs", &text), 1, "{text}");
            assert_eq!(line("natsd/src/a.rs", &text), 1, "{text}");
            assert_eq!(line("src/main.rs", &text), 1, "{text}");
            assert_eq!(line("backbone/src/a.rs", &text), 0, "{text}");
            assert_eq!(line("tests/main.rs", &text), 0, "{text}");
        }
        for text in
            [format!("// {nats}::Client"), format!("my_{nats}::a()"), format!("crate::{nats}::a()"), nats.to_owned()]
        {
            assert_eq!(line("domain/src/a.rs", &text), 0, "{text}");
        }
        assert_eq!(line("backbone/src/a.rs", &format!("use {}::Actor;", ROOMS[1].0)), 1);
        assert_eq!(line("harness/src/a.rs", &format!("{}::from_str(text)", ROOMS[2].0)), 1);
    }

    #[test]
    fn dependencies_keep_to_the_rooms() {
        let manifest = "[package]\nname = \"toml\"\n[dependencies]\nasync-nats.workspace = true\nserde = \"1\"\n";
        assert_eq!(found("actors/Cargo.toml", manifest).len(), 1);
        assert_eq!(found("Cargo.toml", manifest).len(), 1);
        assert_eq!(found("backbone/Cargo.toml", manifest).len(), 0);
        assert_eq!(found("Cargo.toml", "[workspace.dependencies]\nractor = \"1\"\n").len(), 0);
        assert_eq!(found("Cargo.toml", "[dev-dependencies]\nasync-nats.workspace = true\n").len(), 0);
        assert_eq!(found("domain/Cargo.toml", "[dev-dependencies]\nclap.workspace = true\n").len(), 1);
    }

    #[test]
    fn nothing_is_left_unfinished() {
        for word in UNFINISHED {
            assert_eq!(line("tests/a.rs", &format!("    {word} \"later\")")), 1, "{word}");
            assert_eq!(found(".ci/run", &format!("# {word}")).len(), 1, "{word}");
        }
    }

    #[test]
    fn only_tests_may_sleep() {
        let sleep = format!("std::{SLEEP}(pause);");
        assert_eq!(line("harness/src/a.rs", &sleep), 1);
        assert_eq!(line("harness/src/a.rs", &format!("#[cfg(test)]\nmod tests {{ {sleep} }}")), 0);
        assert_eq!(line("harness/src/a/tests.rs", &sleep), 0);
    }

    #[test]
    fn only_the_backbone_names_headers_and_subjects_of_nats() {
        for name in WIRE {
            let text = format!("headers.remove({name}Run-Id\");");
            assert_eq!(line("actors/src/a.rs", &text), 1, "{name}");
            assert_eq!(line("backbone/src/a.rs", &text), 0, "{name}");
            assert_eq!(line("actors/src/a.rs", &format!("#[cfg(test)]\nmod tests {{ {text} }}")), 0, "{name}");
        }
        assert_eq!(line("src/a.rs", "let remedy = \"ask for it ($JS.API.INFO)\";"), 0);
    }

    #[test]
    fn a_module_opens_with_its_paragraph() {
        assert_eq!(found("src/a.rs", "use std::fs;\n").len(), 1);
        assert_eq!(found("src/a.rs", "").len(), 1);
        assert_eq!(found("src/a.rs", "#![allow(unused)]\n\n//! A room.\n").len(), 0);
    }

    #[test]
    fn panics_do_not_abort() {
        assert_eq!(found("Cargo.toml", "[profile.release]\npanic = \"abort\"\n").len(), 1);
        assert_eq!(found("Cargo.toml", "[profile.release]\npanic = \"unwind\" # \"abort\" would end it\n").len(), 0);
    }
}
