//! A release: one archive with everything that a machine needs, and its checksum.
//!
//! `target/release-archives/longshore-<version>-<target>.tar.gz` holds the program, completions, manual pages, the
//! systemd unit, the commented configuration, the documents and examples to which the README leads, and the licences;
//! beside it lie the bill of materials, `….cdx.json`, and `SHA256SUMS`, which `sha256sum --check` reads. Files are in
//! order, with the time of the last commit and no owner, so that the same source makes the same archive.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail, ensure};

use crate::commands::{cargo, output, run, text_of};
use crate::sbom;

/// Files that are packed as they are.
const PACKED: [&str; 6] =
    ["README.md", "CHANGELOG.md", "LICENSE-MIT", "LICENSE-APACHE", "config/longshore.toml", "deploy/longshore.service"];
/// What the README leads to, packed with its folders, so that its links hold in the archive as well.
const DOCUMENTS: [&str; 6] =
    ["docs", "examples", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md", "bench/RESULTS.md"];
/// The shells that completions are made for, each with the file's usual name.
const SHELLS: [(&str, &str); 3] = [("bash", "longshore.bash"), ("zsh", "_longshore"), ("fish", "longshore.fish")];

/// Builds the program for `target`, or for this machine, and packs it.
pub(crate) fn make(root: &Path, target: Option<&str>) -> anyhow::Result<()> {
    let host = host()?;
    let target = target.unwrap_or(&host);
    let mut build = cargo(root);
    build.args(["build", "--profile", "archive", "--locked", "--package", "longshore", "--target", target]);
    run(&mut build)?;
    let binary = root.join("target").join(target).join("archive/longshore");
    let archive = pack(root, &binary, (target, target))?;
    println!("{}", archive.display());
    Ok(())
}

/// Packs a program that was built for a platform; `target` is what the archive's name says. It must run here, because
/// it writes its own completions.
pub(crate) fn pack(root: &Path, binary: &Path, (target, platform): (&str, &str)) -> anyhow::Result<PathBuf> {
    let name = format!("longshore-{}-{target}", env!("CARGO_PKG_VERSION"));
    let archives = root.join("target/release-archives");
    let folder = archives.join(&name);
    if folder.exists() {
        fs::remove_dir_all(&folder).with_context(|| format!("cannot clear {}", folder.display()))?;
    }
    for part in ["completions", "man"] {
        fs::create_dir_all(folder.join(part)).with_context(|| format!("cannot make {}", folder.display()))?;
    }
    copy(binary, &folder.join("longshore"))?;
    for file in PACKED {
        let base = Path::new(file).file_name().context("a file that is packed has a name")?;
        copy(&root.join(file), &folder.join(base))?;
    }
    let documents = text_of(Command::new("git").arg("ls-files").args(DOCUMENTS).current_dir(root))?;
    for document in documents.lines() {
        let packed = folder.join(document);
        fs::create_dir_all(packed.parent().context("a file lies in a folder")?)?;
        copy(&root.join(document), &packed)?;
    }
    links_hold(&folder)?;
    for (shell, file) in SHELLS {
        let script = output(Command::new(binary).args(["completions", shell]))?;
        ensure!(!script.is_empty(), "`longshore completions {shell}` printed nothing");
        fs::write(folder.join("completions").join(file), script)?;
    }
    run(Command::new(binary).arg("man").arg(folder.join("man")))?;

    let archive = archives.join(format!("{name}.tar.gz"));
    let time = text_of(Command::new("git").args(["log", "-1", "--format=%ct"]).current_dir(root))?;
    let mut tar = Command::new("tar");
    tar.args(["--sort=name", "--owner=0", "--group=0", "--numeric-owner"]).arg(format!("--mtime=@{}", time.trim()));
    // gzip itself writes the time of its run into the file.
    tar.args(["--use-compress-program=gzip -n", "--create", "--file"]).arg(&archive);
    run(tar.arg("--directory").arg(&archives).arg(&name))?;
    fs::remove_dir_all(&folder)?;
    let bill = serde_json::to_string_pretty(&sbom::of(root, platform)?)?;
    fs::write(archives.join(format!("{name}.cdx.json")), bill).context("cannot write the bill of materials")?;
    sums(&archives)?;
    Ok(archive)
}

/// Makes sure that every relative link of the README leads to something that is packed.
fn links_hold(folder: &Path) -> anyhow::Result<()> {
    let readme = fs::read_to_string(folder.join("README.md"))?;
    let links = readme.split("](").skip(1).filter_map(|rest| rest.split([')', '#']).next());
    for link in links.filter(|link| !link.is_empty() && !link.contains("://")) {
        if !folder.join(link).exists() {
            bail!("README.md leads to {link}, which is not packed");
        }
    }
    Ok(())
}

/// Writes the checksums of all archives.
fn sums(archives: &Path) -> anyhow::Result<()> {
    let mut names: Vec<_> = fs::read_dir(archives)?.filter_map(|entry| Some(entry.ok()?.file_name())).collect();
    names.retain(|name| [".tar.gz", ".cdx.json"].iter().any(|end| name.to_string_lossy().ends_with(end)));
    names.sort();
    let sums = text_of(Command::new("sha256sum").args(&names).current_dir(archives))?;
    fs::write(archives.join("SHA256SUMS"), sums).context("cannot write SHA256SUMS")
}

fn copy(from: &Path, to: &Path) -> anyhow::Result<()> {
    fs::copy(from, to).with_context(|| format!("cannot copy {} to {}", from.display(), to.display()))?;
    Ok(())
}

/// The target that this machine's compiler builds for.
pub(crate) fn host() -> anyhow::Result<String> {
    let version = text_of(Command::new("rustc").arg("-vV"))?;
    let host = version.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host.context("rustc does not say what it builds for")?.to_owned())
}
