//! The form of the output: colours, tables, numbers, times. Colours go through `anstream`, which leaves them out if the
//! output is not a terminal or `NO_COLOR` is set.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::io::IsTerminal as _;

use anstyle::{AnsiColor, Color, Style};
use anyhow::Context as _;
use longshore_domain::words;
pub(crate) use longshore_domain::words::{age, ago, moment, number, span, took};
use rustix::event::{PollFd, PollFlags};
use serde::Serialize;
use serde_json::Value;

use super::{Ended, exact};

const fn coloured(color: AnsiColor) -> Style {
    Style::new().fg_color(Some(Color::Ansi(color)))
}

/// Success.
pub(crate) const GOOD: Style = coloured(AnsiColor::Green);
/// Failed for good.
pub(crate) const BAD: Style = coloured(AnsiColor::Red);
/// Waits, or will be tried again.
pub(crate) const PENDING: Style = coloured(AnsiColor::Yellow);
/// Runs.
pub(crate) const ACTIVE: Style = coloured(AnsiColor::Cyan);
/// Less important.
pub(crate) const FAINT: Style = Style::new().dimmed();
/// Headings.
pub(crate) const STRONG: Style = Style::new().bold();

/// The colour of a run's state or an event.
pub(crate) fn style_of(word: &str) -> Style {
    match word {
        "completed" => GOOD,
        "dead" | "dlq" | "expired" | "discarded" => BAD,
        "failed" | "retrying" | "deferred" | "cancelled" | "released" | "duplicate" => PENDING,
        "running" | "started" | "progress" | "log" => ACTIVE,
        _ => Style::new(),
    }
}

/// Text in a style, padded before the style is put on, so that columns stay straight.
pub(crate) fn styled(text: &str, style: Style, width: usize) -> String {
    format!("{style}{text:<width$}{style:#}")
}

/// A field of what is shown to people. A value of several lines stays in its column.
pub(crate) fn field(name: &str, value: &str) -> String {
    format!("{} {}\n", styled(name, FAINT, 10), value.replace('\n', &format!("\n{:11}", "")))
}

pub(crate) fn rows<const N: usize>(
    heading: [&str; N],
    rows: impl IntoIterator<Item = [String; N]>,
) -> Vec<Vec<String>> {
    std::iter::once(heading.map(str::to_owned)).chain(rows).map(Vec::from).collect()
}

/// A table of texts: first row the heading; columns named in `right` are numbers. A column without any text is left
/// out.
pub(crate) fn table(rows: &[Vec<String>], right: &[usize]) -> String {
    let widths = widths(rows);
    let mut out = String::new();
    for (number, row) in rows.iter().enumerate() {
        let mut line = String::new();
        for (column, cell) in row.iter().enumerate() {
            let _ = match widths[column] {
                0 => Ok(()),
                width if right.contains(&column) => write!(line, "{cell:>width$}  "),
                width => write!(line, "{cell:<width$}  "),
            };
        }
        let style = if number == 0 { STRONG } else { Style::new() };
        let _ = writeln!(out, "{style}{}{style:#}", line.trim_end());
    }
    out
}

fn widths(rows: &[Vec<String>]) -> Vec<usize> {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    (0..columns).map(width).collect()
}

/// A table for a terminal of so many columns. If it is too wide, columns are left out as [`narrowed`] does. The last
/// column takes the width that the others leave.
pub(crate) fn fitted(rows: Vec<Vec<String>>, columns: usize, spare: &[usize]) -> Vec<Vec<String>> {
    /// A shorter error would say nothing; a wide line is better then.
    const LEAST: usize = 12;
    let mut rows = narrowed(rows, columns, spare);
    let room = columns.saturating_sub(before_last(&rows)).max(LEAST);
    for row in &mut rows {
        if let Some(last) = row.last_mut() {
            *last = cut_within(last, room);
        }
    }
    rows
}

/// The width of all columns but the last.
fn before_last(rows: &[Vec<String>]) -> usize {
    let last = rows.first().map_or(0, Vec::len).saturating_sub(1);
    widths(rows).into_iter().take(last).filter(|width| *width > 0).map(|width| width + 2).sum()
}

/// The same table without columns for which a terminal has no room: those without values go first, then those named in
/// `spare`, the first one first.
pub(crate) fn narrowed(mut rows: Vec<Vec<String>>, columns: usize, spare: &[usize]) -> Vec<Vec<String>> {
    /// Columns go until this much is left for the last one.
    const WANTED: usize = 24;
    let last = rows.first().map_or(0, Vec::len).saturating_sub(1);
    let least = widths(&rows).last().map_or(0, |width| *width.min(&WANTED));
    let is_without_values = |column: &usize| rows.iter().skip(1).all(|row| row[*column].is_empty());
    let may_go: Vec<usize> = (0..last).filter(is_without_values).chain(spare.iter().copied()).collect();
    for column in may_go {
        if before_last(&rows) + least > columns {
            rows.iter_mut().for_each(|row| row[column].clear());
        }
    }
    rows
}

pub(crate) fn say_table(rows: &[Vec<String>], right: &[usize]) -> anyhow::Result<()> {
    say(table(rows, right).trim_end())
}

/// Prints a table as far as the terminal has room for it, and names the columns for which it has none.
pub(crate) fn say_fitted(rows: &[Vec<String>], right: &[usize], spare: &[usize]) -> anyhow::Result<()> {
    say_with_hidden(rows, &fitted(rows.to_vec(), columns(), spare), right)
}

/// Prints `shown`, and names the columns of `rows` that it lacks.
pub(crate) fn say_with_hidden(rows: &[Vec<String>], shown: &[Vec<String>], right: &[usize]) -> anyhow::Result<()> {
    say_table(shown, right)?;
    let hidden = hidden(rows, shown);
    if !hidden.is_empty() {
        anstream::eprintln!("{FAINT}a wider window shows: {}{FAINT:#}", hidden.join(", "));
    }
    Ok(())
}

/// The columns with values that have no heading any more.
fn hidden<'r>(rows: &'r [Vec<String>], shown: &[Vec<String>]) -> Vec<&'r str> {
    let has_values = |column: usize| rows.iter().skip(1).any(|row| !row[column].is_empty());
    let headings = rows[0].iter().enumerate().filter(|(column, _)| shown[0][*column].is_empty() && has_values(*column));
    headings.map(|(_, heading)| heading.as_str()).filter(|heading| !heading.is_empty()).collect()
}

/// Text in lines of whole words, at most so many.
fn wrapped(text: &str, columns: usize, most: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    let mut words = text.split_whitespace().peekable();
    while let Some(word) = words.peek() {
        let is_new = lines.last().is_none_or(|line| line.chars().count() + 1 + word.chars().count() > columns);
        if is_new && lines.len() == most {
            break;
        }
        match lines.last_mut().filter(|_| !is_new) {
            Some(line) => *line += &format!(" {word}"),
            None => lines.push((*word).to_owned()),
        }
        words.next();
    }
    if words.peek().is_some()
        && let Some(last) = lines.last_mut()
    {
        *last = cut_within(&format!("{last} …"), columns);
    }
    lines.into_iter().map(|line| cut_within(&line, columns)).collect()
}

/// The same rows with the last column in up to three lines, for a table of few rows of which that column says most.
pub(crate) fn with_wrapped_last(rows: Vec<Vec<String>>, columns: usize) -> Vec<Vec<String>> {
    let last = rows.first().map_or(0, Vec::len).saturating_sub(1);
    let room = columns.saturating_sub(before_last(&rows)).max(24);
    let lines = rows.into_iter().flat_map(|row| {
        let lines = wrapped(&row[last], room, 3);
        let first = [row[..last].to_vec(), vec![lines.first().cloned().unwrap_or_default()]].concat();
        let blank = vec![String::new(); last];
        let more: Vec<_> = lines.into_iter().skip(1).map(|line| [blank.clone(), vec![line]].concat()).collect();
        std::iter::once(first).chain(more)
    });
    lines.collect()
}

/// Columns of the terminal; without bound if stdout is none, so that nothing is cut in a pipe or a file.
pub(crate) fn columns() -> usize {
    let size = rustix::termios::tcgetwinsize(std::io::stdout());
    size.ok().map(|size| usize::from(size.ws_col)).filter(|columns| *columns > 0).unwrap_or(usize::MAX)
}

/// The time of day of an RFC 3339 time, to the millisecond.
pub(crate) fn time_of_day(at: &str) -> &str {
    at.get(11..23).unwrap_or(at)
}

/// A field's text, or nothing.
pub(crate) fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value.get(field).and_then(Value::as_str).unwrap_or_default()
}

/// JSON on one line, cut if it is long.
pub(crate) fn brief(value: &Value, most: usize) -> String {
    cut(&exact::write(value), most)
}

/// The same as [`cut`], with the mark of the cut within `most`, which is 1 or more.
fn cut_within(text: &str, most: usize) -> String {
    if text.chars().count() > most { cut(text, most - 1) } else { cut(text, most) }
}

/// A name, without its middle if it is longer than `most`: its end distinguishes it from others that were made about
/// then.
pub(crate) fn shortened(name: &str, most: usize) -> String {
    const FRONT: usize = 4;
    let long = name.chars().count();
    if long <= most || most <= FRONT + 1 {
        return name.to_owned();
    }
    let (front, end): (String, String) =
        (name.chars().take(FRONT).collect(), name.chars().skip(long - (most - FRONT - 1)).collect());
    format!("{front}…{end}")
}

/// Marks that are not seen and turn the text beside them around, or hide that it is another one.
fn is_hidden(c: char) -> bool {
    matches!(c, '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}')
}

/// Text for people in one line, without characters that could control the terminal or hide what stands there, cut if
/// it is long.
pub(crate) fn cut(text: &str, most: usize) -> String {
    words::cut(&text.replace(is_hidden, ""), most)
}

/// Text for people without characters that could control the terminal or hide what stands there, except line breaks
/// and tabs.
pub(crate) fn plain(text: &str) -> String {
    text.chars().filter(|c| !(c.is_control() || is_hidden(*c)) || matches!(c, '\n' | '\t')).collect()
}

/// JSON leaves the second range of control characters as they are, which some terminals obey; escaped, it means the
/// same.
fn escaped(line: &str) -> Cow<'_, str> {
    let is_control = |c: char| ('\u{80}'..='\u{9f}').contains(&c);
    if !line.contains(is_control) {
        return Cow::Borrowed(line);
    }
    let of = |c: char| if is_control(c) { format!("\\u{:04x}", u32::from(c)) } else { c.to_string() };
    Cow::Owned(line.chars().map(of).collect())
}

/// Writes JSON for machines: one value on one line.
pub(crate) fn json<T: Serialize>(value: &T) -> anyhow::Result<()> {
    say(&serde_json::to_string(value)?)
}

/// Prints an answer: as JSON for machines, else as `shown` does.
pub(crate) fn answer<T: Serialize>(
    answer: &T,
    json: bool,
    shown: impl FnOnce() -> anyhow::Result<()>,
) -> anyhow::Result<Ended> {
    if json {
        self::json(answer)?;
    } else {
        shown()?;
    }
    Ok(Ended::Success)
}

/// Returns when the reader of stdout has gone: the other end of its pipe or socket is closed. Of a file it waits for
/// ever.
pub(crate) async fn reader_has_gone() {
    let (sender, gone) = tokio::sync::oneshot::channel();
    // A thread of its own, as the runtime would wait at the end for one of its pool.
    std::thread::spawn(move || {
        let stdout = std::io::stdout();
        let mut polled = [PollFd::new(&stdout, PollFlags::empty())]; // asked for nothing, an error or the end is left
        while rustix::event::poll(&mut polled, None) == Err(rustix::io::Errno::INTR) {}
        if polled[0].revents().intersects(PollFlags::ERR | PollFlags::HUP) {
            let _ = sender.send(());
        }
    });
    if gone.await.is_err() {
        std::future::pending().await
    }
}

/// Writes a line to stdout. If the reader has gone (`longshore events | head`), the program succeeds: that is the usual
/// end of a pipe.
pub(crate) fn say(line: &str) -> anyhow::Result<()> {
    let line = if std::io::stdout().is_terminal() { escaped(line) } else { Cow::Borrowed(line) };
    write_to(anstream::stdout().lock(), format!("{line}\n").as_bytes())
}

/// Says what was changed, and names the nodes that have not said that they know of it.
pub(crate) fn say_changed(line: &str, unconfirmed: &[String]) -> anyhow::Result<()> {
    say(line)?;
    if !unconfirmed.is_empty() {
        let silent = unconfirmed.join(", ");
        anstream::eprintln!(
            "{PENDING}not confirmed by{PENDING:#} {silent}: they learn of it within a second of their return"
        );
    }
    Ok(())
}

/// Writes bytes to stdout as they are; to a terminal, as plain text.
pub(crate) fn bytes(bytes: &[u8]) -> anyhow::Result<()> {
    let stdout = std::io::stdout();
    if stdout.is_terminal() {
        return write_to(stdout.lock(), plain(&String::from_utf8_lossy(bytes)).as_bytes());
    }
    write_to(stdout.lock(), bytes)
}

fn write_to(mut out: impl std::io::Write, bytes: &[u8]) -> anyhow::Result<()> {
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => std::process::exit(0),
        other => other.context("cannot write to stdout"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_straight() {
        let rows =
            [["queue", "waiting"], ["main", "12"], ["bulk-mail", "1,234"]].map(|row| row.map(str::to_owned).to_vec());
        let shown = anstream::adapter::strip_str(&table(&rows, &[1])).to_string();
        assert_eq!(shown, "queue      waiting\nmain            12\nbulk-mail    1,234\n");
    }

    #[test]
    fn a_table_fits_the_terminal_and_is_whole_in_a_pipe() {
        let rows: Vec<Vec<String>> =
            [["run", "for", "queue", "note"], ["01a20614-f267", "", "main p5", "due in 19 min"]]
                .map(|row| row.map(str::to_owned).to_vec())
                .into();
        let heading = |columns| {
            let shown = anstream::adapter::strip_str(&table(&fitted(rows.clone(), columns, &[2]), &[])).to_string();
            assert!(shown.lines().all(|line| line.chars().count() <= columns.max(28)), "{columns}: {shown}");
            shown.lines().next().unwrap().split_whitespace().map(str::to_owned).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(heading(usize::MAX), "run for queue note");
        assert_eq!(heading(42), "run for queue note");
        assert_eq!(heading(41), "run queue note");
        assert_eq!(heading(36), "run note");
        assert_eq!(heading(10), "run note", "what is left goes on in the next line");
        let mut long = rows.clone();
        long[1][3] = "long ".repeat(50);
        assert_eq!(table(&fitted(long, 60, &[]), &[]).lines().last().map(|line| line.chars().count()), Some(60));
        assert_eq!(shortened("01a20614-f267-74dc-a104-bfc35c405998", 17), "01a2…bfc35c405998");
        assert_eq!(shortened("main-p5-1", 17), "main-p5-1");
    }

    #[test]
    fn what_has_no_room_is_named_and_what_says_most_is_wrapped_by_words() {
        let rows: Vec<Vec<String>> = [
            ["count", "first", "for example", "error"],
            ["3", "2 d ago", "01a20614-f267-74dc-a104-bfc35c405998", "no route to the ledger, did you mean billing?"],
        ]
        .map(|row| row.map(str::to_owned).to_vec())
        .into();
        let shown = with_wrapped_last(narrowed(rows.clone(), 40, &[1, 2]), 40);
        assert_eq!(
            anstream::adapter::strip_str(&table(&shown, &[0])).to_string(),
            "count  error\n    3  no route to the ledger, did you\n       mean billing?\n"
        );
        assert_eq!(hidden(&rows, &shown), ["first", "for example"]);
        let whole = with_wrapped_last(narrowed(rows.clone(), usize::MAX, &[1, 2]), usize::MAX);
        assert_eq!((&whole, hidden(&rows, &whole).len()), (&rows, 0));
        assert_eq!(wrapped("a bb ccc dddd", 4, 2), ["a bb", "ccc…"]);
    }

    #[test]
    fn the_time_of_day_is_that_of_a_time() {
        assert_eq!(time_of_day("2026-11-21T12:00:01.123Z"), "12:00:01.123");
    }

    #[test]
    fn text_of_strangers_does_not_control_the_terminal() {
        assert_eq!(cut("a\u{1b}[2Jb\nc", 80), "a [2Jb c");
        assert_eq!(cut("abcdef", 3), "abc…");
        assert_eq!(plain("a\u{1b}[2J\nb"), "a[2J\nb");
        // An override of the direction would show "txt.exe" as the name of another file.
        for mark in ["\u{202e}", "\u{2066}", "\u{200b}", "\u{feff}", "\u{2028}", "\u{61c}"] {
            let hidden = format!("a{mark}b");
            assert_eq!((cut(&hidden, 80), plain(&hidden)), ("ab".to_owned(), "ab".to_owned()), "{hidden:?}");
        }
        assert_eq!(escaped("{\"a\":\"\u{9b}2Jü\"}"), "{\"a\":\"\\u009b2Jü\"}");
    }
}
