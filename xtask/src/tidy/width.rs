//! Comments are as wide as code: rustfmt breaks lines of code at 120 columns, and leaves comments as they are.

use super::files::File;

const MOST: usize = 120;

/// Comments in Rust that are too wide. Tables and links cannot be broken.
pub(super) fn breaches(file: &File) -> Vec<String> {
    if !file.is_rust() {
        return Vec::new();
    }
    let is_too_wide = |line: &str| {
        let comment = line.trim_start().strip_prefix("//").map(|text| text.trim_start_matches(['/', '!']).trim_start());
        let can_be_broken = |text: &str| !text.starts_with('|') && !text.contains("](http") && !text.contains("://");
        line.chars().count() > MOST && comment.is_some_and(can_be_broken)
    };
    let wide = file.lines().filter(|(_, line)| is_too_wide(line));
    wide.map(|(at, _)| format!("{}:{at}: a comment of more than {MOST} columns", file.path)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_comment_that_could_be_broken_is_found() {
        let text = |comment: &str| format!("    {comment} {}\n", "x ".repeat(60));
        let found = |comment: &str| breaches(&File { path: "a.rs".to_owned(), text: text(comment) }).len();
        assert_eq!(["//", "///", "//!", "// a"].map(found), [1; 4]);
        assert_eq!(["/// | a |", "// https://a.b/c", "let text ="].map(found), [0; 3]);
        let short = File { path: "a.rs".to_owned(), text: format!("//{}\n", "ä".repeat(118)) };
        assert_eq!(breaches(&short), [""; 0]);
    }
}
