//! Rules of the house that no compiler checks: which room may name which crate, how long a file may be, what may not be
//! left lying about, which words are not used any more, which imports close a circle, what documents say of the code's
//! shape, where their links lead.
//! Each rule is a pure function over the files; every breach of every rule is reported at once.

mod circles;
mod drawings;
mod files;
mod laws;
mod ledger;
mod length;
mod links;
mod log_lines;
mod width;
mod words;

use std::path::Path;

use anyhow::bail;

/// Checks every rule on the workspace at `root`.
pub(crate) fn check(root: &Path) -> anyhow::Result<()> {
    let files = files::under(root)?;
    let mut found: Vec<String> = files.iter().flat_map(laws::breaches).collect();
    found.extend(length::breaches(&files));
    found.extend(files.iter().flat_map(log_lines::breaches));
    found.extend(files.iter().flat_map(width::breaches));
    found.extend(files.iter().flat_map(words::breaches));
    found.extend(circles::breaches(&files));
    found.extend(drawings::breaches(root, &files));
    found.extend(ledger::breaches(&files));
    found.extend(links::breaches(root, &files));
    if found.is_empty() {
        return Ok(());
    }
    bail!("{} breaches of the rules in xtask/src/tidy:\n{}", found.len(), found.join("\n"))
}
