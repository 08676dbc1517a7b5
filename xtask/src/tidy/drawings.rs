//! What the documents say of the code's shape has to be so: the files they name exist, and the trees they draw have no
//! parts but those that the code starts; one has all of them.

use std::collections::BTreeSet;
use std::path::Path;

use super::files::File;

/// Documents whose paths are checked, and the folder of those about the inside.
const DOCUMENTS: [&str; 5] =
    ["ARCHITECTURE.md", "CONTRIBUTING.md", "README.md", "docs/adding.md", "docs/first-reading.md"];
const INTERNALS: &str = "docs/internals/";
/// Paths are from the root, or from the sources of one of these crates.
const SOURCES: [&str; 5] = ["", "actors/src", "backbone/src", "domain/src", "src"];
/// Where parts of the supervision tree are started, where the whole tree is drawn, and where its main parts are.
const STARTED_IN: &str = "actors/src/";
const DRAWN_IN: &str = "ARCHITECTURE.md";
const SKETCHED_IN: &str = "README.md";
/// Parts that are no loops, each with the words that start it.
const ACTORS: [(&str, &str); 2] = [("queue", "QueueSupervisor, "), ("worker", "Worker, ")];

/// Every path that does not exist, and every part of the tree that is not drawn, or drawn and not there.
pub(super) fn breaches(root: &Path, files: &[File]) -> Vec<String> {
    let is_checked = |path: &str| DOCUMENTS.contains(&path) || path.starts_with(INTERNALS);
    let documents = files.iter().filter(|file| is_checked(&file.path));
    let mut found: Vec<String> = documents.flat_map(|document| missing_paths(root, document)).collect();
    let sources = files.iter().filter(|file| file.path.starts_with(STARTED_IN));
    let sources: Vec<&str> = sources.flat_map(|file| file.lines_without_tests().map(|(_, line)| line)).collect();
    let sources = sources.join("\n");
    let started: BTreeSet<&str> = started(&sources).into_iter().collect();
    for drawing in files.iter().filter(|file| [DRAWN_IN, SKETCHED_IN].contains(&file.path.as_str())) {
        found.extend(differences(&started, drawing));
    }
    found
}

fn missing_paths(root: &Path, document: &File) -> Vec<String> {
    let mut found = Vec::new();
    for (number, line) in document.lines() {
        for path in line.split('`').skip(1).step_by(2).filter(|quoted| is_path(quoted)) {
            if !SOURCES.iter().any(|sources| root.join(sources).join(path).exists()) {
                found.push(format!("{}:{number}: there is no {path}", document.path));
            }
        }
    }
    found
}

/// Whether a quoted text is a path: it has a folder, and names a file or ends in a slash.
fn is_path(quoted: &str) -> bool {
    let plain = quoted.chars().all(|c| c.is_ascii_alphanumeric() || "/._-".contains(c));
    let known = [".rs", ".md", ".toml", ".py", "/"].iter().any(|end| quoted.ends_with(end));
    plain && known && quoted.trim_end_matches('/').contains('/') && !quoted.starts_with(['/', '.'])
}

/// The parts that a source starts.
fn started(source: &str) -> Vec<&str> {
    let specs = source.split("ChildSpec::").skip(1).filter_map(|rest| {
        let arguments = rest.strip_prefix("new(").or_else(|| rest.strip_prefix("with_messages("))?;
        arguments.trim_start().strip_prefix('"')?.split('"').next()
    });
    let spawns = |words: &str| source.split("spawn_linked(None, ").skip(1).any(|rest| rest.starts_with(words));
    specs.chain(ACTORS.iter().filter(|(_, words)| spawns(words)).map(|(name, _)| *name)).collect()
}

/// The parts that a document draws.
fn drawn(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter_map(|line| {
        let line = line.trim_start_matches(['│', ' ']);
        let part = line.strip_prefix("├─ ").or_else(|| line.strip_prefix("└─ "))?;
        part.split_whitespace().next()
    })
}

fn differences(started: &BTreeSet<&str>, drawing: &File) -> Vec<String> {
    let drawn: BTreeSet<&str> = drawn(&drawing.text).collect();
    let path = &drawing.path;
    let undrawn = started
        .difference(&drawn)
        .filter(|_| path == DRAWN_IN)
        .map(|name| format!("{path}: the supervision tree has no {name}"));
    let gone = drawn.difference(started).map(|name| format!("{path}: no part {name} is started in {STARTED_IN}"));
    undrawn.chain(gone).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_distinguished_from_other_quotations() {
        for path in ["actors/src/node.rs", "domain/src/", "docs/contract.md"] {
            assert!(is_path(path), "{path}");
        }
        for other in ["$JS.ACK/", "cargo run", "/tmp/x.rs", "holders.rs", "a/b", "nats/", "../x.md"] {
            assert!(!is_path(other), "{other}");
        }
    }

    #[test]
    fn a_tree_that_differs_from_the_code_is_found() {
        let source = "ChildSpec::new(\"sweep\", x, y); ChildSpec::with_messages(\n \"committer\", &a, x, y)\n\
            Actor::spawn_linked(None, Worker, a, b)";
        let started: BTreeSet<&str> = started(source).into_iter().collect();
        assert_eq!(started, BTreeSet::from(["committer", "sweep", "worker"]));
        let in_file = |path: &str, text: &str| {
            differences(&started, &File { path: path.to_owned(), text: text.to_owned() }).join("; ")
        };
        assert_eq!(
            in_file(SKETCHED_IN, "node\n├─ committer  loop\n└─ queue\n   └─ worker …"),
            "README.md: no part queue is started in actors/src/"
        );
        let lacking = "node\n├─ sweep\n│  └─ worker";
        assert_eq!(in_file(DRAWN_IN, lacking), "ARCHITECTURE.md: the supervision tree has no committer");
        assert_eq!(in_file(SKETCHED_IN, lacking), "");
        assert_eq!(in_file(DRAWN_IN, "├─ committer\n├─ sweep\n└─ worker"), "");
    }

    #[test]
    fn a_path_that_is_not_there_is_found() {
        let text = "see `src/main.rs` and\n`src/nowhere.rs`".to_owned();
        let document = File { path: "README.md".to_owned(), text };
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        assert_eq!(missing_paths(&root, &document), ["README.md:2: there is no src/nowhere.rs"]);
    }
}
