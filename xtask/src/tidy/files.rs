//! The files that the rules look at, and which part of them is test.

use std::fs;
use std::path::Path;

use anyhow::Context;

/// A text file of the workspace.
pub(super) struct File {
    /// From the workspace's root, with `/` between folders.
    pub path: String,
    pub text: String,
}

impl File {
    pub(super) fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }

    pub(super) fn is_manifest(&self) -> bool {
        self.path.ends_with(".toml")
    }

    /// Whether all of it is test.
    pub(super) fn is_test(&self) -> bool {
        self.path.split('/').any(|part| part == "tests" || part == "tests.rs")
    }

    /// Lines before the unit tests, with their numbers from 1. Unit tests stand at a file's end, or in a file of their
    /// own, whose `mod tests;` may stand anywhere.
    pub(super) fn lines_without_tests(&self) -> impl Iterator<Item = (usize, &str)> {
        let lines: Vec<&str> = self.text.lines().collect();
        let begins = |at: &usize| {
            let next = lines.get(at + 1).copied().unwrap_or_default();
            lines[*at].starts_with("#[cfg(test)]") && !next.ends_with(';')
        };
        let end = if self.is_test() { 0 } else { (0..lines.len()).find(begins).unwrap_or(lines.len()) };
        (1..).zip(lines.into_iter().take(end))
    }

    /// All lines, with their numbers from 1.
    pub(super) fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        (1..).zip(self.text.lines())
    }
}

/// Every source, manifest and script under `root`, in order of path. Hidden folders are left out, but for those that
/// are part of the project, and so is what was built or fetched.
pub(super) fn under(root: &Path) -> anyhow::Result<Vec<File>> {
    let mut files = Vec::new();
    collect(root, "", &mut files)?;
    files.sort_by(|one, other| one.path.cmp(&other.path));
    Ok(files)
}

fn collect(folder: &Path, prefix: &str, files: &mut Vec<File>) -> anyhow::Result<()> {
    let entries = fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = format!("{prefix}{name}");
        if entry.file_type()?.is_dir() {
            let left_out = ["target", "node_modules", "__pycache__"].contains(&name.as_str())
                || (name.starts_with('.') && ![".ci", ".cargo"].contains(&name.as_str()));
            if !left_out {
                collect(&entry.path(), &format!("{path}/"), files)?;
            }
        } else if is_looked_at(&path) {
            let text = fs::read_to_string(entry.path()).with_context(|| format!("cannot read {path}"))?;
            files.push(File { path, text });
        }
    }
    Ok(())
}

fn is_looked_at(path: &str) -> bool {
    let endings = [".rs", ".md", ".toml", ".sh", ".py", ".yml", ".yaml"];
    endings.iter().any(|ending| path.ends_with(ending)) || path.starts_with(".ci/")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(path: &str, text: &str) -> usize {
        File { path: path.to_owned(), text: text.to_owned() }.lines_without_tests().count()
    }

    #[test]
    fn tests_are_distinguished_from_code() {
        let text = "//! A.\nfn a() {}\n\n#[cfg(test)]\nmod tests {}\n";
        assert_eq!(count("domain/src/a.rs", text), 3);
        assert_eq!(count("domain/src/a.rs", "//! A.\n#[cfg(test)]\nmod tests;\nfn a() {}\n"), 4);
        for path in ["tests/main_job.rs", "domain/src/a/tests.rs", "domain/src/a/tests/b.rs", "harness/tests/bare.rs"] {
            assert_eq!(count(path, text), 0, "{path}");
        }
    }
}
