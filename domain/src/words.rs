//! Numbers, times and texts of others as people read them.

use crate::Timestamp;
use crate::run::whole_millis;

/// `12345` as `12,345`.
pub fn number(number: u64) -> String {
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
pub fn took(millis: u64) -> String {
    let seconds = millis / 1_000;
    match millis {
        0..1_000 => format!("{millis} ms"),
        1_000..60_000 => format!("{seconds}.{} s", millis % 1_000 / 100),
        60_000..3_600_000 => format!("{} min {} s", seconds / 60, seconds % 60),
        _ => format!("{} h {} min", seconds / 3_600, seconds / 60 % 60),
    }
}

/// The time between two moments, in the form of [`took`].
pub fn span(from: Timestamp, to: Timestamp) -> String {
    took(whole_millis(to.since(from)))
}

/// How long ago, in one unit: `12 s`, `5 min`, `7 h`, `3 d`.
pub fn age(at: Timestamp, now: Timestamp) -> String {
    let seconds = now.since(at).as_secs();
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3_600 => format!("{} min", seconds / 60),
        3_600..172_800 => format!("{} h", seconds / 3_600),
        _ => format!("{} d", seconds / 86_400),
    }
}

/// The same with the word: `12 s ago`.
pub fn ago(at: Timestamp, now: Timestamp) -> String {
    format!("{} ago", age(at, now))
}

/// A time with its distance from now: `2026-11-21T12:00:00.000Z (5 min ago)`, `… (in 2 h)`.
pub fn moment(at: Timestamp, now: Timestamp) -> String {
    if at > now { format!("{at} (in {})", age(now, at)) } else { format!("{at} ({})", ago(at, now)) }
}

/// Text without control characters, which could control the terminal, cut if it is long.
pub fn cut(text: &str, most: usize) -> String {
    let mut plain = text.chars().map(|c| if c.is_control() { ' ' } else { c });
    let head: String = plain.by_ref().take(most).collect();
    if plain.next().is_some() { format!("{head}…") } else { head }
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
    }
}
