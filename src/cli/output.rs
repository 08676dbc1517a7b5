//! The form of the output: colours, tables, numbers, times. Colours go through `anstream`, which leaves them out if the
//! output is not a terminal or `NO_COLOR` is set.

use std::fmt::Write as _;

use anstyle::{AnsiColor, Color, Style};
use longshore_domain::Timestamp;
use longshore_domain::run::whole_millis;
use serde::Serialize;
use serde_json::Value;

use super::exact;

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
        "running" | "started" | "progress" => ACTIVE,
        _ => Style::new(),
    }
}

/// Text in a style, padded before the style is put on, so that columns stay straight.
pub(crate) fn styled(text: &str, style: Style, width: usize) -> String {
    format!("{style}{text:<width$}{style:#}")
}

/// A table of texts: first row the heading; columns named in `right` are numbers.
pub(crate) fn table(rows: &[Vec<String>], right: &[usize]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut out = String::new();
    for (number, row) in rows.iter().enumerate() {
        let mut line = String::new();
        for (column, cell) in row.iter().enumerate() {
            let width = widths[column];
            let _ = if right.contains(&column) {
                write!(line, "{cell:>width$}  ")
            } else {
                write!(line, "{cell:<width$}  ")
            };
        }
        let style = if number == 0 { STRONG } else { Style::new() };
        let _ = writeln!(out, "{style}{}{style:#}", line.trim_end());
    }
    out
}

/// A table whose last column takes the width that the others leave.
pub(crate) fn fitted(mut rows: Vec<Vec<String>>, columns: usize) -> Vec<Vec<String>> {
    /// A shorter error would say nothing; a wide line is better then.
    const LEAST: usize = 24;
    let last = rows.first().map_or(0, Vec::len).saturating_sub(1);
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let others: usize = (0..last).map(|column| width(column) + 2).sum();
    let room = columns.saturating_sub(others + 1).max(LEAST);
    for row in &mut rows {
        row[last] = cut(&row[last], room);
    }
    rows
}

/// `12345` as `12,345`.
pub(crate) fn number(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Milliseconds as people write them: `12 ms`, `1.2 s`, `3 min 5 s`, `2 h 10 min`.
pub(crate) fn took(millis: u64) -> String {
    let seconds = millis / 1_000;
    match millis {
        0..1_000 => format!("{millis} ms"),
        1_000..60_000 => format!("{seconds}.{} s", millis % 1_000 / 100),
        60_000..3_600_000 => format!("{} min {} s", seconds / 60, seconds % 60),
        _ => format!("{} h {} min", seconds / 3_600, seconds / 60 % 60),
    }
}

/// The time between two moments, in the form of [`took`].
pub(crate) fn span(from: Timestamp, to: Timestamp) -> String {
    took(whole_millis(to.since(from)))
}

/// How long ago, in one unit: `12 s`, `5 min`, `7 h`, `3 d`.
pub(crate) fn age(at: Timestamp, now: Timestamp) -> String {
    let seconds = now.since(at).as_secs();
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3_600 => format!("{} min", seconds / 60),
        3_600..172_800 => format!("{} h", seconds / 3_600),
        _ => format!("{} d", seconds / 86_400),
    }
}

/// A time with its distance from now: `2026-11-21T12:00:00.000Z (5 min ago)`, `… (in 2 h)`.
pub(crate) fn moment(at: Timestamp, now: Timestamp) -> String {
    if at > now { format!("{at} (in {})", age(now, at)) } else { format!("{at} ({} ago)", age(at, now)) }
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

/// Text without control characters, which could control the terminal, cut if it is long.
pub(crate) fn cut(text: &str, most: usize) -> String {
    let mut plain = text.chars().map(|c| if c.is_control() { ' ' } else { c });
    let head: String = plain.by_ref().take(most).collect();
    if plain.next().is_some() { format!("{head}…") } else { head }
}

/// Text for people without characters that could control the terminal, except line breaks and tabs.
pub(crate) fn plain(text: &str) -> String {
    text.chars().filter(|c| !c.is_control() || matches!(c, '\n' | '\t')).collect()
}

/// Writes JSON for machines: one value on one line.
pub(crate) fn json<T: Serialize>(value: &T) -> anyhow::Result<()> {
    say(&serde_json::to_string(value)?)
}

/// Writes a line to stdout.
///
/// # Errors
/// None if the reader has gone (`longshore events | head`): that is the usual end of a pipe, and the program succeeds.
pub(crate) fn say(line: &str) -> anyhow::Result<()> {
    use std::io::Write as _;
    let mut out = anstream::stdout().lock();
    match writeln!(out, "{line}").and_then(|()| out.flush()) {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => std::process::exit(0),
        other => Ok(other?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_times_read_well() {
        assert_eq!([0, 999, 1_000, 1_234_567].map(number), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!(
            [0, 999, 1_250, 61_000, 7_800_000].map(took),
            ["0 ms", "999 ms", "1.2 s", "1 min 1 s", "2 h 10 min"]
        );
        let now = Timestamp::parse("2026-11-21T12:00:00Z").unwrap();
        let times = ["2026-11-21T11:59:48Z", "2026-11-21T11:54:59Z", "2026-11-19T12:00:01Z", "2026-11-18T12:00:00Z"];
        assert_eq!(times.map(|at| age(Timestamp::parse(at).unwrap(), now)), ["12 s", "5 min", "47 h", "3 d"]);
        let later = Timestamp::parse("2026-11-21T12:05:00Z").unwrap();
        assert_eq!(moment(later, now), "2026-11-21T12:05:00.000Z (in 5 min)");
        assert_eq!(moment(now, later), "2026-11-21T12:00:00.000Z (5 min ago)");
        assert_eq!(time_of_day("2026-11-21T12:00:01.123Z"), "12:00:01.123");
    }

    #[test]
    fn columns_are_straight() {
        let rows =
            [["queue", "waiting"], ["main", "12"], ["bulk-mail", "1,234"]].map(|row| row.map(str::to_owned).to_vec());
        let shown = anstream::adapter::strip_str(&table(&rows, &[1])).to_string();
        assert_eq!(shown, "queue      waiting\nmain            12\nbulk-mail    1,234\n");
    }

    #[test]
    fn text_of_strangers_does_not_control_the_terminal() {
        assert_eq!(cut("a\u{1b}[2Jb\nc", 80), "a [2Jb c");
        assert_eq!(cut("abcdef", 3), "abc…");
        assert_eq!(plain("a\u{1b}[2J\nb"), "a[2J\nb");
    }
}
