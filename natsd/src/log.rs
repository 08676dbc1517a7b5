//! The output of a child process: all of it in a file, the last lines in memory, and a way to wait for a line.
//!
//! One log lives across the restarts of its process, so a waiter says from which line on it searches ([`Log::mark`]).

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard};

use tokio::sync::watch;

use crate::error::Error;

/// Lines kept in memory: enough to hold a start with a long recovery, at most a few hundred KiB.
const RECENT: usize = 2_000;

/// A file above this size is set aside as `<name>.old` when the log is opened, so a long-lived folder holds two at
/// most.
const LARGE: u64 = 16 << 20;

/// A growing log; shared between its writer and the tasks that wait for its lines.
#[derive(Debug)]
pub struct Log {
    path: PathBuf,
    lines: Mutex<Lines>,
    grown: watch::Sender<u64>,
}

#[derive(Debug)]
struct Lines {
    file: File,
    recent: VecDeque<String>,
    /// Lines ever written; `recent` ends with line number `total - 1`.
    total: u64,
}

impl Log {
    /// Opens the file at `path` for appending; one above 16 MiB is set aside first.
    ///
    /// # Errors
    /// [`Error::File`] if it cannot be written.
    pub fn open(path: impl Into<PathBuf>) -> Result<Log, Error> {
        let path = path.into();
        if path.metadata().is_ok_and(|found| found.len() > LARGE) {
            std::fs::rename(&path, aside(&path)).map_err(Error::file("set aside", &path))?;
        }
        let file = OpenOptions::new().create(true).append(true).open(&path).map_err(Error::file("write", &path))?;
        let lines = Mutex::new(Lines { file, recent: VecDeque::new(), total: 0 });
        Ok(Log { path, lines, grown: watch::Sender::new(0) })
    }

    /// Adds a line, given without its line end.
    pub fn push(&self, line: &str) {
        let mut lines = self.lock();
        // A full disk must not end a caller that only wanted to log; the line is still in memory.
        let _ = writeln!(lines.file, "{line}");
        if lines.recent.len() == RECENT {
            lines.recent.pop_front();
        }
        lines.recent.push_back(line.to_owned());
        lines.total += 1;
        self.grown.send_replace(lines.total);
    }

    /// The file that holds every line.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The number of lines so far: lines pushed later stand at or after this mark.
    pub fn mark(&self) -> u64 {
        self.lock().total
    }

    /// The lines at or after `mark` that are still in memory (the last 2,000), oldest first.
    pub fn since(&self, mark: u64) -> Vec<String> {
        let lines = self.lock();
        let first = lines.total - lines.recent.len() as u64;
        let skip = usize::try_from(mark.saturating_sub(first)).unwrap_or(usize::MAX);
        lines.recent.iter().skip(skip).cloned().collect()
    }

    /// The last `count` lines, for an error message.
    pub fn tail(&self, count: usize) -> String {
        let lines = self.lock();
        let skip = lines.recent.len().saturating_sub(count);
        lines.recent.iter().skip(skip).map(String::as_str).collect::<Vec<_>>().join("\n")
    }

    /// Waits for a line at or after `mark` that `is_wanted`, and returns it. It waits forever if none comes: select it
    /// against the process's end or a time limit.
    pub async fn seen(&self, mark: u64, is_wanted: impl Fn(&str) -> bool) -> String {
        let mut grown = self.grown.subscribe();
        let mut from = mark;
        loop {
            grown.borrow_and_update();
            let next = self.mark();
            if let Some(line) = self.since(from).into_iter().find(|line| is_wanted(line)) {
                return line;
            }
            from = next;
            if grown.changed().await.is_err() {
                unreachable!("the sender lives in the log that is borrowed here");
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Lines> {
        self.lines.lock().expect("no code panics while it holds the lines")
    }
}

/// `<name>.old` beside `<name>`.
fn aside(path: &Path) -> PathBuf {
    let mut name = path.to_owned().into_os_string();
    name.push(".old");
    name.into()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn keeps_the_last_lines_in_memory_and_all_in_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let log = Log::open(dir.path().join("a.log")).unwrap();
        for number in 0..RECENT + 3 {
            log.push(&number.to_string());
        }
        assert_eq!(log.mark(), RECENT as u64 + 3);
        assert_eq!(log.since(0).first().unwrap(), "3");
        assert_eq!(log.since(RECENT as u64 + 2), ["2002"]);
        assert_eq!(log.tail(2), "2001\n2002");
        assert_eq!(std::fs::read_to_string(log.path()).unwrap().lines().count(), RECENT + 3);
    }

    #[test]
    fn a_large_file_is_set_aside_when_opened() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.log");
        File::create(&path).unwrap().set_len(LARGE + 1).unwrap();
        Log::open(&path).unwrap().push("new");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "new\n");
        assert_eq!(dir.path().join("a.log.old").metadata().unwrap().len(), LARGE + 1);
    }

    #[tokio::test]
    async fn waits_for_a_line_behind_the_mark_only() {
        let dir = tempfile::tempdir().unwrap();
        let log = Arc::new(Log::open(dir.path().join("a.log")).unwrap());
        log.push("ready, the first time");
        let mark = log.mark();
        let waiting = tokio::spawn({
            let log = Arc::clone(&log);
            async move { log.seen(mark, |line| line.starts_with("ready")).await }
        });
        tokio::task::yield_now().await;
        log.push("not yet");
        log.push("ready, the second time");
        assert_eq!(waiting.await.unwrap(), "ready, the second time");
    }
}
