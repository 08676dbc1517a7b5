//! The mistakes of a configuration, each shown so that it can be corrected at once: place, key, reason, and the line
//! itself with a marker under the place.

use std::fmt;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

/// A configuration file: its name, as the user gave it, and its text.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Source {
    pub(crate) path: PathBuf,
    pub(crate) text: String,
    /// Where secrets stand in it.
    hidden: OnceLock<Vec<Range<usize>>>,
}

impl Source {
    pub(crate) fn new(path: PathBuf, text: String) -> Self {
        Self { path, text, hidden: OnceLock::new() }
    }

    /// Has no message show the lines of these places.
    pub(crate) fn hide(&self, places: Vec<Range<usize>>) {
        let _ = self.hidden.set(places);
    }

    /// Whether the line may be shown: there is neither a secret in it, nor a password in an address.
    fn shows(&self, line: &Range<usize>) -> bool {
        let is_in = |place: &Range<usize>| place.start < line.end && line.start < place.end;
        let hides = self.hidden.get().is_some_and(|places| places.iter().any(is_in));
        !hides && !self.text.get(line.clone()).is_some_and(has_password)
    }
}

/// Whether there is an address with a password in the text: `scheme://user:password@host`.
pub(crate) fn has_password(text: &str) -> bool {
    let rest = text.split("://").skip(1).map(|rest| rest.split(['"', '\'']).next().unwrap_or(rest));
    rest.filter_map(|rest| rest.rsplit_once('@')).any(|(login, _)| login.contains(':'))
}

/// Where a value was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Origin {
    /// In the file, at these bytes.
    File(Arc<Source>, Range<usize>),
    /// In this environment variable.
    Environment(String),
    /// By an operator, for the cluster that runs.
    RunTime,
}

impl Origin {
    /// The path of a file that is named here: beside the configuration file, or in the working folder for a variable.
    pub(crate) fn beside(&self, file: &str) -> PathBuf {
        match self {
            Self::File(source, _) => source.path.parent().map_or_else(|| file.into(), |folder| folder.join(file)),
            Self::Environment(_) | Self::RunTime => file.into(),
        }
    }

    /// `longshore.toml:3` or the variable's name.
    pub(crate) fn brief(&self) -> String {
        match self {
            Self::File(source, span) => {
                format!("{}:{}", source.path.display(), TextPosition::of(&source.text, span.start).line)
            }
            Self::Environment(variable) => variable.clone(),
            Self::RunTime => "run time".to_owned(),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Problem {
    /// Where it was written; `None` if something is missing altogether.
    pub(crate) origin: Option<Origin>,
    /// The setting's whole key, or nothing.
    pub(crate) key: String,
    /// Why it is wrong, and what would be right.
    pub(crate) reason: String,
}

impl Problem {
    /// Whether both are about one written value.
    pub(crate) fn is_of(&self, other: &Self) -> bool {
        self.origin.is_some() && (&self.origin, &self.key) == (&other.origin, &other.key)
    }

    /// The order of the report: as they stand in the file, then the environment, then what is missing.
    pub(crate) fn place(&self) -> (u8, usize, String) {
        match &self.origin {
            Some(Origin::File(_, span)) => (0, span.start, String::new()),
            Some(Origin::Environment(variable)) => (1, 0, variable.clone()),
            Some(Origin::RunTime) | None => (2, 0, self.key.clone()),
        }
    }
}

struct TextPosition<'a> {
    /// From 1.
    line: usize,
    /// From 1, in characters.
    column: usize,
    /// That of the line.
    text: &'a str,
    /// Where the line begins in the file, in bytes.
    start: usize,
}

impl<'a> TextPosition<'a> {
    fn of(text: &'a str, at: usize) -> Self {
        let before = text.get(..at).unwrap_or(text);
        let start = before.rfind('\n').map_or(0, |newline| newline + 1);
        let line = before.matches('\n').count() + 1;
        let column = before[start..].chars().count() + 1;
        Self { line, column, text: text[start..].lines().next().unwrap_or_default(), start }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = if self.key.is_empty() { String::new() } else { format!("{}: ", self.key) };
        match &self.origin {
            Some(Origin::File(source, span)) => {
                let TextPosition { line, column, text, start } = TextPosition::of(&source.text, span.start);
                write!(f, "{}:{line}:{column}: {key}{}", source.path.display(), self.reason)?;
                if !source.shows(&(start..start + text.len())) {
                    return Ok(());
                }
                let margin = line.to_string();
                // The marker never runs beyond the line's end, however long the value is.
                let room = (text.chars().count() + 2).saturating_sub(column).max(1);
                let marked = source.text.get(span.clone()).map_or(1, |text| text.chars().count()).clamp(1, room);
                write!(f, "\n  {margin} | {}\n", text.replace('\t', " "))?;
                let (margin, space) = (" ".repeat(margin.len()), " ".repeat(column - 1));
                write!(f, "  {margin} | {space}{}", "^".repeat(marked))
            }
            Some(Origin::Environment(variable)) => write!(f, "environment variable {variable}: {key}{}", self.reason),
            Some(Origin::RunTime) | None => write!(f, "{key}{}", self.reason),
        }
    }
}

/// All mistakes of a configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problems(pub(crate) Vec<Problem>);

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.len() {
            1 => write!(f, "the configuration has a mistake")?,
            many => write!(f, "the configuration has {many} mistakes")?,
        }
        self.0.iter().try_for_each(|problem| write!(f, "\n\n{problem}"))
    }
}

impl std::error::Error for Problems {}
