//! Words that had a meaning of our own and are gone: each has a standard one in its place, and must not come back.

use super::files::File;

// Put together from halves, so that this file does not find itself.
const GONE: [(&str, &str); 12] = [
    (concat!("her", "ald"), "committer"),
    (concat!("un", "told"), "unpublished"),
    (concat!("de", "af"), "unresponsive"),
    (concat!("min", "ted"), "derived"),
    (concat!("gu", "lp"), "batch"),
    (concat!("fare", "well"), "plain words"),
    (concat!("name", "sake"), "node-name check"),
    (concat!("course", "s"), "attempt state"),
    (concat!("in_", "hand"), "buffered, held locally"),
    (concat!("_", "MOST"), "MAX_…"),
    (concat!("short_", "way"), "fast path"),
    (concat!("let_", "go"), "abandon"),
];

/// Every use of such a word, as `path:line: what`. The changelog speaks of the past.
pub(super) fn breaches(file: &File) -> Vec<String> {
    if !(file.is_rust() || file.path.ends_with(".md")) || file.path == "CHANGELOG.md" {
        return Vec::new();
    }
    let gone = |line: &str| {
        let found = GONE.iter().find(|(word, _)| uses(line, word));
        found.map(|(word, instead)| format!("{word} is not used any more; say: {instead}"))
    };
    let found = file.lines().filter_map(|(number, line)| Some((number, gone(line)?)));
    found.map(|(number, what)| format!("{}:{number}: {what}", file.path)).collect()
}

/// Whether the word stands there by itself or as a part of a name, in whatever case.
fn uses(line: &str, word: &str) -> bool {
    let is_constant = word.chars().any(char::is_uppercase);
    let (line, word) = match is_constant {
        true => (line.to_owned(), word.to_owned()),
        false => (line.to_lowercase(), word.to_owned()),
    };
    line.match_indices(&word).any(|(start, _)| {
        let before = line[..start].chars().next_back();
        let after = line[start + word.len()..].chars().next();
        let joined = |neighbour: Option<char>| neighbour.is_some_and(|c| c.is_alphabetic());
        (is_constant || !joined(before)) && !joined(after)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_that_is_gone_is_found_as_a_word_and_in_names() {
        let (first, second) = (GONE[0].0, GONE[9].0);
        for line in
            [format!("the {first} waits"), format!("let {first}_state = 1;"), format!("const X{second}: u8 = 1;")]
        {
            let file = File { path: "src/a.rs".to_owned(), text: line.clone() };
            assert_eq!(breaches(&file).len(), 1, "{line}");
        }
        let file = File { path: "src/a.rs".to_owned(), text: format!("a {first}ic tale, {}\n", second.to_lowercase()) };
        assert!(breaches(&file).is_empty());
        let changelog = File { path: "CHANGELOG.md".to_owned(), text: first.to_owned() };
        assert!(breaches(&changelog).is_empty());
    }
}
