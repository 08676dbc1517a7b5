//! `cargo xtask vendor`: the files of lit-html that the dashboard is served with, as its authors published them.
//!
//! They are committed, so that no build needs a network or Node. This fetches the package with npm, compares it with
//! the hash that is pinned here, and writes its files again; `check` compares those that are committed, without a
//! network.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest as _, Sha256, Sha512};

use crate::commands::output;

const LIT_HTML: Package = Package {
    name: "lit-html@3.3.3",
    archive: "lit-html-3.3.3.tgz",
    integrity: "sha512-el8M6jK2o3RXBnrSHX3ZKrsN8zEV63pSExTO1wYJz7QndGYZ8353e2a5PPX+qHe2aGayfnchQmkAojaWAREOIA==",
};
const FOLDER: &str = "src/http/page/vendor";
/// Each file, and its SHA-256.
const FILES: [(&str, &str); 6] = [
    ("LICENSE", "2b66f9390afde29edfe4314daff93f01fb182e1178053e228120178987e5db75"),
    ("directive-helpers.js", "f7fb1154b8f72ed2cc08b05eaeed71c99270e9ad2d48620ed24688a1af4c2b62"),
    ("directive.js", "3344c4f41c69cd0701d3937e8f9ef90bd845614bf6456d0b8314b7c51d415b9d"),
    ("directives/live.js", "b305f9066319d838db797abd5a4d871537277e25f35332702bfce4452c020ecf"),
    ("directives/repeat.js", "083140026ecd8665fedd15b17769f9d516252a9f1502f1e91e6967686ee82626"),
    ("lit-html.js", "b878e7f95dec8a9b6e9b217faca6b6a11bad82ebc44c0caa77419ed83edd81f2"),
];

/// A package of npm's registry.
pub(crate) struct Package {
    pub(crate) name: &'static str,
    pub(crate) archive: &'static str,
    /// As package-lock.json has it.
    pub(crate) integrity: &'static str,
}

impl Package {
    /// Fetches its archive into a folder.
    pub(crate) fn fetch(&self, folder: &Path) -> anyhow::Result<()> {
        fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
        output(Command::new("npm").args(["pack", "--ignore-scripts", self.name]).current_dir(folder)).map(drop)
    }

    /// Compares the archive with its hash.
    pub(crate) fn verify(&self, folder: &Path) -> anyhow::Result<()> {
        let Self { name, archive, integrity: wanted } = self;
        let bytes = fs::read(folder.join(archive)).with_context(|| format!("npm has not written {archive}"))?;
        let integrity = format!("sha512-{}", STANDARD.encode(Sha512::digest(&bytes)));
        ensure!(integrity == *wanted, "{name} is {integrity}, and not {wanted}: nothing is written");
        Ok(())
    }
}

/// Fetches the package and writes its files.
pub(crate) fn fetch(root: &Path) -> anyhow::Result<()> {
    let folder = root.join("target/vendor");
    LIT_HTML.fetch(&folder)?;
    LIT_HTML.verify(&folder)?;
    for (name, _) in FILES {
        let member = format!("package/{name}");
        let bytes = output(Command::new("tar").args(["-xzOf", LIT_HTML.archive, &member]).current_dir(&folder))?;
        let path = root.join(FOLDER).join(name);
        fs::create_dir_all(path.parent().context("a file lies in a folder")?)?;
        fs::write(&path, bytes).with_context(|| format!("cannot write {}", path.display()))?;
    }
    check(root)
}

/// Compares the files that are there with their hashes.
pub(crate) fn check(root: &Path) -> anyhow::Result<()> {
    for (name, expected) in FILES {
        let path = root.join(FOLDER).join(name);
        let bytes = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let mut hash = String::new();
        for byte in Sha256::digest(&bytes) {
            write!(hash, "{byte:02x}")?;
        }
        ensure!(
            hash == expected,
            "{} is not that of {}: `cargo xtask vendor` writes it again",
            path.display(),
            LIT_HTML.name
        );
    }
    Ok(())
}
