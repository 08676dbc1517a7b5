//! Lines of the log that would repeat while a fault lasts: the first at once, later ones after growing pauses, with how
//! many were left out. Pure: the time is an argument.

use std::time::{Duration, Instant};

/// The first pause; each is twice as long as the one before.
const FIRST_PAUSE: Duration = Duration::from_secs(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(600);

/// The repeats of one line.
#[derive(Debug, Default)]
pub struct Repeats {
    text: String,
    /// When the next is due, and the pause before it; none has been logged yet if absent.
    next: Option<(Instant, Duration)>,
    left_out: u64,
}

impl Repeats {
    /// The line to log now, if one is due. Another text is due at once.
    pub fn line(&mut self, text: &str, now: Instant) -> Option<String> {
        let pause = match self.next {
            Some((next, _)) if self.text == text && now < next => {
                self.left_out += 1;
                return None;
            }
            Some((_, pause)) if self.text == text => (pause * 2).min(LONGEST_PAUSE),
            _ => FIRST_PAUSE,
        };
        let left_out = if self.text == text { std::mem::take(&mut self.left_out) } else { 0 };
        *self = Self { text: text.to_owned(), next: Some((now + pause, pause)), left_out: 0 };
        Some(if left_out > 0 { format!("{text} ({left_out} more since the last such line)") } else { text.to_owned() })
    }

    /// What the lines were about is over: the next one is the first.
    pub fn end(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "an Instant has no other origin")]
mod tests {
    use super::*;

    #[test]
    fn the_first_is_logged_at_once_and_later_ones_ever_more_rarely() {
        let (start, mut repeats) = (Instant::now(), Repeats::default());
        let mut logged = Vec::new();
        for second in 0..3_600 {
            logged.extend(repeats.line("away", start + Duration::from_secs(second)).map(|line| (second, line)));
        }
        let at: Vec<u64> = logged.iter().map(|(second, _)| *second).collect();
        assert_eq!(at, [0, 10, 30, 70, 150, 310, 630, 1_230, 1_830, 2_430, 3_030]);
        assert_eq!(logged[0].1, "away");
        assert_eq!(logged[2].1, "away (19 more since the last such line)");
    }

    #[test]
    fn another_line_and_one_after_the_end_are_logged_at_once() {
        let (start, mut repeats) = (Instant::now(), Repeats::default());
        assert!(repeats.line("away", start).is_some() && repeats.line("away", start).is_none());
        assert_eq!(repeats.line("refused", start).as_deref(), Some("refused"));
        repeats.end();
        assert_eq!(repeats.line("refused", start).as_deref(), Some("refused"));
    }
}
