//! `cargo xtask types`: the types of the dashboard's modules, which JSDoc declares, checked by TypeScript's compiler.
//!
//! The compiler is fetched once, from its package, in the version whose hash is pinned here. Where there is no Node, or
//! no registry to fetch from, nothing is checked, and that is said.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};

use crate::commands::output;
use crate::vendor::Package;

const TYPESCRIPT: Package = Package {
    name: "typescript@5.9.3",
    archive: "typescript-5.9.3.tgz",
    integrity: "sha512-jl1vZzPDinLr9eUt3J/t7V6FgNEw9QjvBPdysz9KfQDD41fQrC2Y4vKQdiaUpFT4bXlb1RHhLpp8wtm6M5TgSw==",
};
const PROJECT: &str = "src/http/page/jsconfig.json";

/// Checks the types, where that is possible.
pub(crate) fn check(root: &Path) -> anyhow::Result<()> {
    if output(Command::new("node").arg("--version")).is_err() {
        eprintln!("SKIPPED: the types of the dashboard are not checked, because there is no node");
        return Ok(());
    }
    let folder = root.join("target/typescript");
    let Some(compiler) = compiler(&folder)? else { return Ok(()) };
    let checked = Command::new("node").arg(compiler).args(["-p", PROJECT]).current_dir(root).status();
    ensure!(checked.context("cannot start node")?.success(), "the types of the dashboard do not fit");
    Ok(())
}

/// The compiler; `None`, and said, if it cannot be fetched.
fn compiler(folder: &Path) -> anyhow::Result<Option<PathBuf>> {
    let compiler = folder.join("package/bin/tsc");
    if !compiler.exists() {
        if let Err(problem) = TYPESCRIPT.fetch(folder) {
            eprintln!("SKIPPED: the types of the dashboard are not checked, because {problem:#}");
            return Ok(None);
        }
        TYPESCRIPT.verify(folder)?;
        output(Command::new("tar").args(["-xzf", TYPESCRIPT.archive]).current_dir(folder))?;
    }
    Ok(Some(compiler))
}
