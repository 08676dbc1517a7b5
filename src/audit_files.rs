//! The audit's files: lines of JSON that other programs take up, in files of a bounded size and number.
//!
//! It only appends and renames. Every line is on its way to the disk before the append returns, and none is split over two
//! files.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use longshore_actors::AuditFile;

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
        let mut name = self.path.clone().into_os_string();
        name.push(format!(".{number}"));
        name.into()
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

    fn write(&self, line: &str) -> std::io::Result<()> {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        let open = || OpenOptions::new().create(true).append(true).open(&self.path);
        let mut file = match current.take() {
            Some(file) => file,
            None => open()?,
        };
        let size = file.metadata()?.len();
        if size > 0 && size + line.len() as u64 + 1 > self.max_bytes {
            self.rotate()?;
            file = open()?;
        }
        file.write_all(format!("{line}\n").as_bytes())?;
        *current = Some(file);
        Ok(())
    }
}

impl AuditFile for AuditFiles {
    fn append(&self, line: &str) -> Result<(), String> {
        self.write(line).map_err(|error| format!("{}: {error}", self.path.display()))
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
        assert!(
            AuditFiles::new(dir.path(), 20, 3).append("x").unwrap_err().starts_with(&dir.path().display().to_string())
        );
    }
}
