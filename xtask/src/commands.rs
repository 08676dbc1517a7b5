//! Commands that the tasks start. Whatever does not succeed is an error, which names the command.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, bail};

/// Cargo, in the workspace.
pub(crate) fn cargo(root: &Path) -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(root);
    cargo
}

/// Runs a command, which prints for itself.
pub(crate) fn run(command: &mut Command) -> anyhow::Result<()> {
    let status = command.status().with_context(|| format!("cannot start {command:?}"))?;
    if !status.success() {
        bail!("{command:?} ended with {status}");
    }
    Ok(())
}

/// What a command says, if it succeeds.
pub(crate) fn output(command: &mut Command) -> anyhow::Result<Vec<u8>> {
    let output = command.output().with_context(|| format!("cannot start {command:?}"))?;
    if !output.status.success() {
        bail!("{command:?} ended with {}: {}", output.status, String::from_utf8_lossy(&output.stderr));
    }
    Ok(output.stdout)
}

/// The same, as text.
pub(crate) fn text_of(command: &mut Command) -> anyhow::Result<String> {
    String::from_utf8(output(command)?).with_context(|| format!("{command:?} did not print text"))
}
