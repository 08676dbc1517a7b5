//! The audit's files, of actions and of events: lines of JSON that other programs take up, in files of a bounded size
//! and number.
//!
//! It only appends and renames, so that a program that follows a file needs to know nothing of it. Every line is on its
//! way to the disk before the append returns, and none is split over two files. A process that is killed, or a disk
//! that is full, may cut a line off: then the next line begins on a line of its own, and of events the whole line
//! follows.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use longshore_actors::{AuditFile, EventFile};

/// The current file and those before it.
#[derive(Debug)]
pub(crate) struct AuditFiles {
    path: PathBuf,
    max_bytes: u64,
    files: u32,
    current: Mutex<Option<File>>,
}

impl AuditFiles {
    /// Files at `path`, `path.1` and so on, of about `max_bytes` each, `files` in all.
    pub(crate) fn new(path: impl Into<PathBuf>, max_bytes: u64, files: u32) -> Self {
        Self { path: path.into(), max_bytes, files, current: Mutex::default() }
    }

    fn numbered(&self, number: u32) -> PathBuf {
        self.path.with_added_extension(number.to_string())
    }

    /// Makes room for a new current file: each older one moves up by a number, and the oldest goes.
    fn rotate(&self) -> std::io::Result<()> {
        for number in (1..self.files.saturating_sub(1)).rev() {
            let from = self.numbered(number);
            if from.exists() {
                std::fs::rename(from, self.numbered(number + 1))?;
            }
        }
        if self.files > 1 { std::fs::rename(&self.path, self.numbered(1)) } else { std::fs::remove_file(&self.path) }
    }

    /// Appends lines, each with its line break.
    fn write(&self, mut lines: &[u8]) -> std::io::Result<()> {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        let open = || opened(&self.path);
        let mut file = match current.take() {
            Some(file) => file,
            None => open()?,
        };
        while !lines.is_empty() {
            let size = file.metadata()?.len();
            let fitting = match whole_lines(lines, self.max_bytes.saturating_sub(size)) {
                0 if size > 0 => {
                    self.rotate()?;
                    file = open()?;
                    continue;
                }
                // A line that fits into no file gets one of its own.
                0 => lines.iter().position(|byte| *byte == b'\n').map_or(lines.len(), |at| at + 1),
                fitting => fitting,
            };
            file.write_all(&lines[..fitting])?;
            lines = &lines[fitting..];
        }
        *current = Some(file);
        Ok(())
    }
}

/// The file, at the beginning of a line.
fn opened(path: &Path) -> std::io::Result<File> {
    let mut file = OpenOptions::new().create(true).append(true).read(true).open(path)?;
    if file.seek(SeekFrom::End(0))? > 0 {
        let mut last = [0];
        file.seek(SeekFrom::End(-1))?;
        file.read_exact(&mut last)?;
        if last != *b"\n" {
            file.write_all(b"\n")?;
        }
    }
    Ok(file)
}

/// The bytes of the lines that fit into so much room.
fn whole_lines(lines: &[u8], room: u64) -> usize {
    match usize::try_from(room) {
        Ok(room) if room < lines.len() => lines[..room].iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1),
        _ => lines.len(),
    }
}

fn failed(path: &Path, error: impl std::fmt::Display) -> String {
    format!("{}: {error}", path.display())
}

impl AuditFile for AuditFiles {
    fn open(&self) -> Result<(), String> {
        self.write(b"").map_err(|error| failed(&self.path, error))
    }

    fn append(&self, line: &str) -> Result<(), String> {
        self.write(format!("{line}\n").as_bytes()).map_err(|error| failed(&self.path, error))
    }
}

/// The files of the event log: beside the newest, `.position` behind its name, stands how far they go.
#[derive(Debug)]
pub(crate) struct EventFiles {
    lines: AuditFiles,
    position: PathBuf,
}

impl EventFiles {
    pub(crate) fn new(path: impl Into<PathBuf>, max_bytes: u64, files: u32) -> Self {
        let lines = AuditFiles::new(path, max_bytes, files);
        let position = lines.path.with_added_extension("position");
        Self { lines, position }
    }
}

impl EventFile for EventFiles {
    fn open(&self) -> Result<(), String> {
        self.lines.open()?;
        self.position().map(drop)
    }

    fn position(&self) -> Result<u64, String> {
        match std::fs::read_to_string(&self.position) {
            Ok(text) => text.trim().parse().map_err(|error| failed(&self.position, error)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(0),
            Err(error) => Err(failed(&self.position, error)),
        }
    }

    fn append(&self, lines: &[u8], position: u64) -> Result<(), String> {
        self.lines.write(lines).map_err(|error| failed(&self.lines.path, error))?;
        // A reader finds the former number or this one, never half of it.
        let next = self.position.with_extension("position.next");
        std::fs::write(&next, format!("{position}\n")).map_err(|error| failed(&next, error))?;
        std::fs::rename(&next, &self.position).map_err(|error| failed(&self.position, error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_kept_whole_in_as_many_files_as_are_wanted() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit.jsonl");
        let files = AuditFiles::new(&path, 20, 3);
        (10..20).for_each(|number| files.append(&format!("line {number}")).unwrap());
        // Another process of the node goes on with the file.
        AuditFiles::new(&path, 20, 3).append("line 20").unwrap();
        let read = |path: PathBuf| std::fs::read_to_string(path).unwrap();
        assert_eq!(read(path.clone()), "line 20\n");
        assert_eq!(read(files.numbered(1)), "line 18\nline 19\n");
        assert_eq!(read(files.numbered(2)), "line 16\nline 17\n");
        assert!(!files.numbered(3).exists());
        let missing = dir.path().join("missing").join("audit.jsonl");
        assert!(AuditFiles::new(&missing, 20, 3).open().unwrap_err().starts_with(&missing.display().to_string()));
        assert!(
            AuditFiles::new(dir.path(), 20, 3).append("x").unwrap_err().starts_with(&dir.path().display().to_string())
        );
    }

    #[test]
    fn a_line_that_was_cut_off_spoils_no_other() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("events.jsonl");
        std::fs::write(&path, "one\ntw").unwrap();
        let files = EventFiles::new(&path, 1_000, 2);
        files.append(b"two\nthree\n", 7).unwrap();
        files.append(b"four\n", 8).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "one\ntw\ntwo\nthree\nfour\n");
    }

    #[test]
    fn events_are_appended_as_whole_lines_and_a_restart_finds_how_far_they_go() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("events.jsonl");
        let files = EventFiles::new(&path, 20, 2);
        assert_eq!(files.position(), Ok(0));
        files.append(b"one\ntwo\nthree\nfour\nfive\n", 7).unwrap();
        files.append(b"a line that is longer than a file\n", 9).unwrap();
        assert_eq!(EventFiles::new(&path, 20, 2).position(), Ok(9));
        let read = |path: PathBuf| std::fs::read_to_string(path).unwrap();
        assert_eq!(read(path.clone()), "a line that is longer than a file\n");
        assert_eq!(read(files.lines.numbered(1)), "five\n");
        std::fs::write(&files.position, "nine").unwrap();
        assert!(files.open().unwrap_err().contains("events.jsonl.position"));
        assert!(files.position().unwrap_err().contains("events.jsonl.position"));
    }
}
