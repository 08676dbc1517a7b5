//! The lines that a run's handlers wrote into its log: few and short, because they stand in the record.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Timestamp;

/// Maximum number of lines; the oldest go first.
const MAX_LINES: usize = 32;
/// Maximum bytes of a line; what is beyond is cut.
const MAX_BYTES: usize = 512;

/// A line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LogLine {
    /// When it was written.
    pub at: Timestamp,
    /// The round in which it was.
    pub round: u32,
    /// The attempt that wrote it.
    pub attempt: u32,
    /// Its text.
    pub line: String,
}

/// The last lines of a run, over all its attempts.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RunLog(Vec<LogLine>);

impl RunLog {
    /// Adds a line, cut to 512 bytes; of more than 32 lines the oldest goes.
    pub fn push(&mut self, mut line: LogLine) {
        line.line.truncate(line.line.floor_char_boundary(MAX_BYTES));
        if self.0.len() >= MAX_LINES {
            self.0.remove(0);
        }
        self.0.push(line);
    }

    /// The lines, the oldest first.
    #[must_use]
    pub fn lines(&self) -> &[LogLine] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_lines_are_kept_and_long_ones_cut() {
        let mut log = RunLog::default();
        for number in 0..40 {
            let line = if number == 39 { "é".repeat(400) } else { number.to_string() };
            log.push(LogLine { at: Timestamp::default(), round: 1, attempt: 2, line });
        }
        assert_eq!((log.lines().len(), log.lines()[0].line.as_str()), (32, "8"));
        assert_eq!(log.lines()[31].line, "é".repeat(256));
    }
}
