//! The lines that a run's handlers wrote into its log: few and short, because they stand in the record.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Run, Timestamp};

const MAX_LINES: usize = 32;
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

impl Run {
    /// Its handler wrote a line into its log: it is cut to 512 bytes; of more than 32 lines the oldest goes.
    pub fn log(&mut self, mut line: String, at: Timestamp) {
        line.truncate(line.floor_char_boundary(MAX_BYTES));
        if self.log.len() >= MAX_LINES {
            self.log.remove(0);
        }
        self.log.push(LogLine { at, round: self.round, attempt: self.attempt, line });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Job;

    #[test]
    fn the_last_lines_are_kept_and_long_ones_cut() {
        let mut run = Run::new(&Job::example(), 3, Timestamp::default());
        for number in 0..40 {
            let line = if number == 39 { "é".repeat(400) } else { number.to_string() };
            run.log(line, Timestamp::default());
        }
        assert_eq!((run.log.len(), run.log[0].line.as_str()), (32, "8"));
        assert_eq!(run.log[31].line, "é".repeat(256));
    }
}
