//! Which runs are meant: one by its id, those that fit a filter, or all. The same options for every command that works
//! on several runs at once. Whether they make sense together is decided here, before anything is asked.

use std::time::{SystemTime, UNIX_EPOCH};

use clap::Args;
use clap::builder::PossibleValuesParser;
use longshore_domain::{JobType, Timestamp, duration};
use serde_json::{Map, Value, json};

use super::Usage;

const ERROR_KINDS: [&str; 8] =
    ["retryable", "permanent", "timeout", "lease_expired", "panic", "no_handler", "invalid", "cancelled"];

/// What narrows the choice.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Which runs")]
pub(crate) struct Filter {
    /// Of this queue
    #[arg(long, value_name = "NAME", value_parser = super::token)]
    queue: Option<String>,
    /// Of this job type, for example email.send
    #[arg(long = "type", value_name = "TYPE", value_parser = job_type)]
    job_type: Option<String>,
    /// With this tag
    #[arg(long, value_name = "TEXT")]
    tag: Option<String>,
    /// Whose last error is of this kind
    #[arg(long, value_name = "KIND", value_parser = PossibleValuesParser::new(ERROR_KINDS))]
    error_kind: Option<String>,
    /// Ended, or waiting since, at this time or later: 2027-01-31T09:30:00Z, or 1h for an hour ago
    #[arg(long, value_name = "TIME", value_parser = moment)]
    since: Option<Timestamp>,
    /// Ended, or waiting since, at this time or earlier
    #[arg(long, value_name = "TIME", value_parser = moment)]
    until: Option<Timestamp>,
}

/// One run, those that fit, or all.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct Which {
    /// One run's id
    #[arg(value_name = "ID", conflicts_with = "all")]
    id: Option<String>,
    /// All of the tenant's
    #[arg(long, help_heading = "Which runs")]
    all: bool,
    #[command(flatten)]
    filter: Filter,
}

/// What was chosen.
#[derive(Debug, PartialEq)]
pub(crate) enum Chosen {
    /// One run.
    One(String),
    /// Those that fit these fields of the API.
    Those(Map<String, Value>),
}

impl Filter {
    /// The fields of a request; what was not said is left out.
    pub(crate) fn fields(&self) -> Map<String, Value> {
        let text = |text: &Option<String>| text.clone().map(Value::String);
        let time = |at: Option<Timestamp>| at.map(|at| json!(at));
        let fields = [
            ("queue", text(&self.queue)),
            ("type", text(&self.job_type)),
            ("tag", text(&self.tag)),
            ("error_kind", text(&self.error_kind)),
            ("since", time(self.since)),
            ("until", time(self.until)),
        ];
        fields.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect()
    }
}

impl Which {
    /// What is meant; `more` are fields of the command's own filters.
    ///
    /// # Errors
    /// Nothing was said, or two things that exclude each other.
    pub(crate) fn chosen(&self, more: Map<String, Value>) -> Result<Chosen, Usage> {
        let mut fields = self.filter.fields();
        fields.extend(more);
        match (&self.id, fields.is_empty(), self.all) {
            (Some(id), true, _) => Ok(Chosen::One(id.clone())),
            (Some(_), false, _) => Err(usage("a run's id and a filter exclude each other; say one of them")),
            (None, false, true) => Err(usage("--all and a filter exclude each other; say one of them")),
            (None, true, false) => Err(usage("say which: a run's id, a filter such as --type or --since, or --all")),
            (None, _, all) => {
                // Said to the node, too: it does not take nothing for everything either.
                fields.extend(all.then(|| ("all".to_owned(), json!(true))));
                Ok(Chosen::Those(fields))
            }
        }
    }
}

fn usage(text: &str) -> Usage {
    Usage(text.to_owned())
}

/// The time by this machine's clock.
pub(crate) fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp::from_millis(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
}

/// A time, or a duration back from now.
fn moment(text: &str) -> Result<Timestamp, String> {
    let wrong = "neither a time such as 2027-01-31T09:30:00Z nor a duration back from now such as 90s, 1h or 7d";
    match duration::parse(text) {
        Ok(back) => Ok(now().minus(back)),
        Err(_) => Timestamp::parse(text).map_err(|_| wrong.to_owned()),
    }
}

fn job_type(text: &str) -> Result<String, String> {
    JobType::parse(text).map(|name| name.to_string()).map_err(|error| error.reason)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_filter_becomes_the_fields_of_a_request() {
        let filter = Filter {
            queue: Some("main".to_owned()),
            job_type: Some("email.send".to_owned()),
            tag: Some("a".to_owned()),
            error_kind: Some("timeout".to_owned()),
            since: Some(moment("2026-11-21T13:00:00+01:00").unwrap()),
            until: None,
        };
        let which = Which { id: None, all: false, filter };
        let Chosen::Those(fields) = which.chosen(Map::new()).unwrap() else { panic!("a filter") };
        let expected = json!({"queue": "main", "type": "email.send", "tag": "a", "error_kind": "timeout",
            "since": "2026-11-21T12:00:00.000Z"});
        assert_eq!(Value::Object(fields), expected);
    }

    #[test]
    fn nothing_is_never_taken_for_everything() {
        let reason = |which: &Which, more| which.chosen(more).unwrap_err().0;
        let mut which = Which::default();
        assert!(reason(&which, Map::new()).starts_with("say which: "));
        let state = || Map::from_iter([("state".to_owned(), json!("retrying"))]);
        assert_eq!(which.chosen(state()).unwrap(), Chosen::Those(state()));
        which.all = true;
        let all = Map::from_iter([("all".to_owned(), json!(true))]);
        assert_eq!(which.chosen(Map::new()).unwrap(), Chosen::Those(all));
        assert!(reason(&which, state()).contains("--all and a filter"));
        which = Which { id: Some("r".to_owned()), ..Which::default() };
        assert!(reason(&which, state()).contains("a run's id and a filter"));
        assert_eq!(which.chosen(Map::new()).unwrap(), Chosen::One("r".to_owned()));
    }

    #[test]
    fn a_duration_is_meant_back_from_now() {
        let back = now().since(moment("1h").unwrap());
        assert!(back.abs_diff(Duration::from_secs(3_600)) < Duration::from_secs(60), "{back:?}");
        assert!(moment("yesterday").unwrap_err().contains("duration back from now"));
    }

    #[test]
    fn the_kinds_are_the_contracts() {
        for kind in ERROR_KINDS {
            serde_json::from_value::<longshore_domain::ErrorKind>(json!(kind)).unwrap();
        }
    }
}
