//! What the documents say of the code's shape has to be so: the files they name exist, and the tree that they draw has
//! the parts that the node starts.

use std::path::Path;

use super::files::File;

/// Documents whose paths are checked.
const DOCUMENTS: [&str; 3] = ["ARCHITECTURE.md", "CONTRIBUTING.md", "README.md"];
/// Paths are from the root, or from the sources of one of these crates.
const SOURCES: [&str; 5] = ["", "actors/src", "backbone/src", "domain/src", "src"];
/// Where the supervision tree is put together, and where it is drawn.
const NODE: &str = "actors/src/tree.rs";
const DRAWN_IN: &str = "ARCHITECTURE.md";

/// Every path that does not exist, and every part of the tree that is not drawn.
pub(super) fn breaches(root: &Path, files: &[File]) -> Vec<String> {
    let documents = files.iter().filter(|file| DOCUMENTS.contains(&file.path.as_str()));
    let mut found: Vec<String> = documents.flat_map(|document| missing_paths(root, document)).collect();
    let text = |path: &str| files.iter().find(|file| file.path == path).map_or("", |file| file.text.as_str());
    found.extend(undrawn(text(NODE), text(DRAWN_IN)));
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

fn undrawn(node: &str, drawing: &str) -> Vec<String> {
    let names = node.split("ChildSpec::new(\"").skip(1).filter_map(|rest| rest.split('"').next());
    let undrawn = names.filter(|name| !drawing.contains(name));
    undrawn.map(|name| format!("{DRAWN_IN}: the supervision tree has no {name}, which {NODE} starts")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_and_other_quotations_are_told_apart() {
        for path in ["actors/src/node.rs", "domain/src/", "docs/contract.md"] {
            assert!(is_path(path), "{path}");
        }
        for other in ["$JS.ACK/", "cargo run", "/tmp/x.rs", "holders.rs", "a/b", "nats/", "../x.md"] {
            assert!(!is_path(other), "{other}");
        }
    }

    #[test]
    fn a_part_of_the_tree_that_is_not_drawn_is_found() {
        let node = r#"ChildSpec::new("sweep", x), ChildSpec::new("presence", y)"#;
        assert_eq!(undrawn(node, "node\n├─ sweep").len(), 1);
        assert!(undrawn(node, "├─ sweep\n├─ presence").is_empty());
    }

    #[test]
    fn a_path_that_is_not_there_is_found() {
        let text = "see `src/main.rs` and\n`src/nowhere.rs`".to_owned();
        let document = File { path: "README.md".to_owned(), text };
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        assert_eq!(missing_paths(&root, &document), ["README.md:2: there is no src/nowhere.rs"]);
    }
}
