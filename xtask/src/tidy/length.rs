//! No file has more than 500 lines without tests, unless it is listed here with a reason.

use super::files::File;

const MOST: usize = 500;

/// Files that may be longer, and why.
const LONGER: &[(&str, &str)] = &[];

/// Files that are too long, and entries of the list that are no longer needed.
pub(super) fn breaches(files: &[File]) -> Vec<String> {
    judge(files, LONGER)
}

fn judge(files: &[File], longer: &[(&str, &str)]) -> Vec<String> {
    let mut found = Vec::new();
    for file in files.iter().filter(|file| file.is_rust()) {
        let lines = file.lines_without_tests().count();
        let listed = longer.iter().any(|(path, _)| *path == file.path);
        let path = &file.path;
        if lines > MOST && !listed {
            found.push(format!(
                "{path}: {lines} lines without tests, {MOST} at most: split it, or list it with a reason"
            ));
        } else if lines <= MOST && listed {
            found.push(format!("{path}: listed as longer than {MOST} lines, but has {lines}: take it off the list"));
        }
    }
    for (path, _) in longer.iter().filter(|(path, _)| !files.iter().any(|file| file.path == *path)) {
        found.push(format!("{path}: listed as longer than {MOST} lines, but there is no such file"));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, lines: usize) -> File {
        File { path: path.to_owned(), text: "//\n".repeat(lines) + "#[cfg(test)]\n" + &"//\n".repeat(300) }
    }

    #[test]
    fn long_files_and_stale_exceptions_are_found() {
        let files = [file("a.rs", 500), file("b.rs", 501), file("c.rs", 501), file("d.rs", 20), file("e.toml", 900)];
        let found = judge(&files, &[("c.rs", "a table"), ("d.rs", "no more"), ("gone.rs", "no more")]);
        let begin: Vec<&str> = found.iter().map(|line| line.split(':').next().unwrap()).collect();
        assert_eq!(begin, ["b.rs", "d.rs", "gone.rs"], "{found:?}");
    }
}
