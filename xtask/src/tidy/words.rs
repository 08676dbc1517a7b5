//! Words that had a meaning of our own and are gone: each has a standard one in its place, and must not come back.

use super::files::File;

// Put together from halves, so that this file does not find itself.
const GONE: [(&str, &str); 23] = [
    (concat!("her", "ald"), "committer"),
    (concat!("unt", "old"), "unpublished"),
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
    (concat!("to", "ld"), SAY),
    (concat!("te", "ll"), SAY),
    (concat!("te", "lls"), SAY),
    (concat!("tel", "ling"), SAY),
    (concat!("who", "ever"), "which part it is: the node that …, a client that …"),
    (concat!("sto", "ry"), "the events, the report on a run, what happened to it"),
    (concat!("sto", "ries"), "the events, the reports on runs, what happened to them"),
    (concat!("pati", "ence"), "what the time bounds: READY_WITHIN, STALLED_AFTER"),
    (concat!("patient", "ly"), "retry_until, …_within"),
    (concat!("cen", "sus"), "handler discovery"),
    (concat!("do", "or"), "handle, inbox, proxy"),
];

const SAY: &str = "publish (events), send or notify (messages), answer, report, say, ask to, distinguish";

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
    let searched = if is_constant { line.to_owned() } else { line.to_ascii_lowercase() };
    searched.match_indices(word).any(|(start, _)| {
        let end = start + word.len();
        let (before, after) = (line[..start].chars().next_back(), line[end..].chars().next());
        let starts_a_part = |first: bool| first && before.is_some_and(char::is_lowercase);
        let ends_a_part = |last: bool| last && after.is_some_and(char::is_uppercase);
        let is_letter = |neighbour: Option<char>| neighbour.is_some_and(char::is_alphabetic);
        let begins = !is_letter(before) || starts_a_part(line[start..].starts_with(char::is_uppercase));
        let ends = !is_letter(after) || ends_a_part(line[..end].ends_with(char::is_lowercase));
        (is_constant || begins) && ends
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found_in(path: &str, text: impl Into<String>) -> usize {
        breaches(&File { path: path.to_owned(), text: text.into() }).len()
    }

    #[test]
    fn a_word_that_is_gone_is_found_as_a_word_and_in_names() {
        let (first, second) = (GONE[0].0, GONE[9].0);
        let capital = format!("{}{}", first[..1].to_uppercase(), &first[1..]);
        for line in [
            format!("the {first} waits"),
            format!("let {first}_state = 1;"),
            format!("struct {capital}State;"),
            format!("struct Old{capital};"),
            format!("const X{second}: u8 = 1;"),
        ] {
            assert_eq!(found_in("src/a.rs", line.clone()), 1, "{line}");
        }
        assert_eq!(found_in("src/a.rs", format!("a {first}ic tale, {}, Un{first}ed\n", second.to_lowercase())), 0);
        assert_eq!(found_in("CHANGELOG.md", first), 0);
    }
}
