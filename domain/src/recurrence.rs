//! When a recurring schedule is due: a cron expression in a time zone, or a fixed interval.
//!
//! A cron expression is due at each instant at which the clocks of its zone show a time that the expression matches.
//! So it is not due in an hour that the clocks leave out, and due twice in an hour that they repeat. An interval is
//! counted from 1970-01-01T00:00:00Z, whichever node asks and whenever the schedule was made.
//!
//! `croner` reads expressions and finds matching times of day; instants are found here, between two changes of the
//! zone's offset, within which the clocks only go forward. Zones come with this program.

use std::fmt;
use std::time::Duration;

use croner::Cron;
use croner::parser::{CronParser, Seconds, Year};
use jiff::tz::{TimeZone, TimeZoneDatabase};

use crate::{DurationText, Timestamp};

/// The shortest interval, and the grain of cron expressions.
pub const SHORTEST: Duration = Duration::from_secs(1);
/// Longer expressions are refused.
const EXPRESSION_MAX: usize = 256;
/// Changes of offset that are passed in search of the next time: those of 200 years in a zone with four a year.
const CHANGES: usize = 800;
/// 2026-01-01T00:00:00Z, the year of the first version: an expression that matches no time after it matches none.
/// Earlier times do not count: zones had other rules then.
const BEGINNING: i64 = 1_767_225_600_000;

/// When a recurring schedule is due.
#[derive(Debug, Clone, PartialEq)]
pub enum Recurrence {
    /// At the times of a cron expression.
    Cron(Box<CronTimes>),
    /// At every multiple of this interval since 1970 UTC.
    Every(Duration),
}

/// A cron expression with its time zone.
#[derive(Clone)]
pub struct CronTimes {
    expression: String,
    cron: Cron,
    zone: TimeZone,
}

/// Why a recurrence is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RecurrenceError {
    /// Its expression cannot be read.
    #[error(
        "cron: {0:?} cannot be read: {1} The fields are second and minute 0-59, hour 0-23, day of month 1-31, month 1-12 or \
         Jan-Dec, day of week 0-7 or Sun-Sat"
    )]
    Expression(String, String),
    /// It has another number of fields.
    #[error(
        "cron: {0:?} has {1} fields; five or six are needed: minute, hour, day of month, month, day of week, \
         as in \"30 3 * * *\" for 03:30 each day, before them the second if it is not 0"
    )]
    Fields(String, usize),
    /// It matches no time.
    #[error("cron: {0:?} matches no time that ever comes")]
    Never(String),
    /// No such zone.
    #[error(
        "time_zone: {0:?} is not a zone of the IANA database, such as \"Europe/Berlin\"; zones come with longshore: \
         if this one is newer than the node, run a newer longshore, or leave time_zone out for UTC"
    )]
    Zone(String),
    /// The interval is too short or too long.
    #[error("every: {interval} is out of bounds; 1s to 3650d", interval = DurationText(*.0))]
    Interval(Duration),
}

impl Recurrence {
    /// Reads a cron expression: second (may be left out: 0), minute, hour, day of month, month, day of week (0 and 7
    /// are Sunday). Lists, ranges, steps, names of months and days, `L`, `W` and `#` are allowed. If both days are
    /// restricted, a day that matches either is meant. `zone` is UTC by default.
    ///
    /// # Errors
    /// Says what is wrong with expression or zone.
    pub fn cron(expression: &str, zone: Option<&str>) -> Result<Self, RecurrenceError> {
        let shown = || expression.chars().take(EXPRESSION_MAX).collect::<String>();
        let fields = expression.split_whitespace().count();
        let expression = match fields {
            5 => &format!("0 {expression}"),
            6 => expression,
            _ => return Err(RecurrenceError::Fields(shown(), fields)),
        };
        if expression.len() > EXPRESSION_MAX {
            return Err(RecurrenceError::Expression(shown(), format!("it has more than {EXPRESSION_MAX} bytes")));
        }
        let parser = CronParser::builder().seconds(Seconds::Required).year(Year::Disallowed).build();
        let cron = parser.parse(expression);
        let cron = cron.map_err(|error| RecurrenceError::Expression(shown(), error.to_string()))?;
        let zone = match zone {
            None | Some("UTC") => TimeZone::UTC,
            Some(name) => {
                // The machine's own database is not asked: nodes on two machines would disagree.
                let found = TimeZoneDatabase::bundled().get(name);
                found.map_err(|_| RecurrenceError::Zone(name.chars().take(100).collect()))?
            }
        };
        let times = CronTimes { expression: expression.to_owned(), cron, zone };
        if times.next_after(Timestamp::from_millis(BEGINNING)).is_none() {
            return Err(RecurrenceError::Never(shown()));
        }
        Ok(Self::Cron(Box::new(times)))
    }

    /// An interval.
    ///
    /// # Errors
    /// It is shorter than a second or longer than 3,650 days.
    pub fn every(interval: Duration) -> Result<Self, RecurrenceError> {
        match (SHORTEST..=crate::duration::MAX_DURATION).contains(&interval) {
            true => Ok(Self::Every(interval)),
            false => Err(RecurrenceError::Interval(interval)),
        }
    }

    /// The first time after `after` at which it is due; `None`: never again, before the year 2262.
    pub fn next_after(&self, after: Timestamp) -> Option<Timestamp> {
        let next = match self {
            Self::Cron(times) => times.next_after(after)?,
            Self::Every(interval) => {
                let interval = i64::try_from(interval.as_millis()).ok()?;
                Timestamp::from_millis((after.millis() / interval + 1).checked_mul(interval)?)
            }
        };
        (next <= Timestamp::LAST_SCHEDULE).then_some(next)
    }
}

impl CronTimes {
    fn next_after(&self, after: Timestamp) -> Option<Timestamp> {
        let mut from = jiff::Timestamp::from_second(after.millis().div_euclid(1_000) + 1).ok()?;
        for _ in 0..CHANGES {
            let offset = self.zone.to_offset(from);
            let local = offset.to_datetime(from).to_zoned(TimeZone::UTC).ok()?;
            let found = self.cron.find_next_occurrence(&local, true).ok()?;
            let at = offset.to_timestamp(found.datetime()).ok()?;
            match self.zone.following(from).next() {
                // Beyond the change the clocks show another time: the search goes on from there.
                Some(change) if change.timestamp() <= at => from = change.timestamp(),
                _ => return Some(Timestamp::from_millis(at.as_millisecond())),
            }
        }
        None
    }
}

impl PartialEq for CronTimes {
    fn eq(&self, other: &Self) -> bool {
        self.expression == other.expression && self.zone == other.zone
    }
}

impl fmt::Debug for CronTimes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} in {}", self.expression, self.zone.iana_name().unwrap_or("UTC"))
    }
}

#[cfg(test)]
mod tests;
