//! No file has more than 500 lines without tests.

use super::files::File;

const MOST: usize = 500;

/// Files that are too long.
pub(super) fn breaches(files: &[File]) -> Vec<String> {
    let lines = files.iter().filter(|file| file.is_rust()).map(|file| (&file.path, file.lines_without_tests().count()));
    let long = lines.filter(|(_, lines)| *lines > MOST);
    long.map(|(path, lines)| format!("{path}: {lines} lines without tests, {MOST} at most: split it")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, lines: usize) -> File {
        File { path: path.to_owned(), text: "//\n".repeat(lines) + "#[cfg(test)]\n" + &"//\n".repeat(300) }
    }

    #[test]
    fn long_files_are_found() {
        let found = breaches(&[file("a.rs", 500), file("b.rs", 501), file("c.toml", 900)]);
        assert_eq!(found, ["b.rs: 501 lines without tests, 500 at most: split it"]);
    }
}
