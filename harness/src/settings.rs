//! Merges several pieces of a node's TOML settings by their text.
//!
//! This is not a TOML parser: a test may give a node broken settings on purpose, and those must arrive as written. It
//! knows tables (`[a.b]`) and single-line entries (`key = …`); a later entry replaces an earlier one of the same table.

/// One table: its header line (empty for the lines before the first header) and its entries.
struct Table {
    header: String,
    entries: Vec<Entry>,
}

/// A key and all lines up to the next key.
struct Entry {
    key: Option<String>,
    text: String,
}

/// Joins all `pieces` into one text; tables of the same header are merged.
pub(crate) fn merged<'a>(pieces: impl IntoIterator<Item = &'a str>) -> String {
    let mut tables = vec![Table { header: String::new(), entries: Vec::new() }];
    for piece in pieces {
        let mut current = 0;
        for line in piece.lines() {
            if line.trim_start().starts_with('[') && !inside_a_list(&tables[current]) {
                current = table(&mut tables, line.trim());
            } else {
                add(&mut tables[current].entries, line);
            }
        }
    }
    let mut text = String::new();
    for Table { header, entries } in &tables {
        for line in std::iter::once(header).chain(entries.iter().map(|entry| &entry.text)) {
            if !line.is_empty() {
                text.push_str(line);
                text.push('\n');
            }
        }
    }
    text
}

/// Whether the table's last entry opened a list that it has not closed, so that a line that begins with `[` continues
/// the list.
fn inside_a_list(table: &Table) -> bool {
    let open = |text: &str| text.matches('[').count() > text.matches(']').count();
    table.entries.last().is_some_and(|entry| entry.key.is_some() && open(&entry.text))
}

fn table(tables: &mut Vec<Table>, header: &str) -> usize {
    // `[[a]]` begins another element each time it appears.
    let known = tables.iter().position(|table| table.header == header && !header.starts_with("[["));
    known.unwrap_or_else(|| {
        tables.push(Table { header: header.to_owned(), entries: Vec::new() });
        tables.len() - 1
    })
}

fn add(entries: &mut Vec<Entry>, line: &str) {
    let key = line.split_once('=').map(|(key, _)| key.trim().to_owned());
    let key = key.filter(|key| !key.is_empty() && !key.starts_with(['#', '{', '[', ']', '}']));
    match (key, entries.last_mut()) {
        (None, Some(last)) => {
            last.text.push('\n');
            last.text.push_str(line);
        }
        (key, _) => {
            if key.is_some() {
                entries.retain(|entry| entry.key != key);
            }
            entries.push(Entry { key, text: line.to_owned() });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_joined_and_the_later_entry_wins() {
        let base = "namespace = \"longshore\"\n[http]\nlisten = \"off\"\n[node]\nname = \"a\"";
        let test = "[node]\nlease = \"2s\"\nname = 'b'\n[types.\"email.send\"]\nhandler = 'echo'";
        assert_eq!(
            merged([base, test, "[http]\nlisten = '127.0.0.1:0'"]),
            "namespace = \"longshore\"\n[http]\nlisten = '127.0.0.1:0'\n[node]\nlease = \"2s\"\nname = 'b'\n\
             [types.\"email.send\"]\nhandler = 'echo'\n"
        );
    }

    #[test]
    fn entries_of_several_lines_stay_together() {
        let piece = "[retries.slow]\ndelays = [\n  \"1s\",\n  [\"5s\"],\n]\nspread = 0.1";
        assert_eq!(merged([piece, "[node]\nname = 'a'"]), format!("{piece}\n[node]\nname = 'a'\n"));
    }

    #[test]
    fn what_is_broken_arrives_as_written() {
        assert_eq!(merged(["[node\nlease 2x"]), "[node\nlease 2x\n");
    }
}
