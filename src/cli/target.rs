//! The chosen runs: one by its id, those that fit a filter, or all. The same options for every command that works on
//! several runs at once. Contradictions between the options are found here, before any request.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser as _};
use longshore_backbone::wire::api::{self, Target};
use longshore_domain::{ErrorKind, JobType, Queue, RunId, Timestamp, duration};
use serde::de::DeserializeOwned;

use super::Usage;

/// The options that narrow the choice.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Which runs")]
pub(crate) struct FilterOptions {
    /// Of this queue
    #[arg(long, value_name = "NAME", value_parser = super::name::<Queue>)]
    queue: Option<Queue>,
    /// Of this job type, for example email.send
    #[arg(long = "type", value_name = "TYPE", value_parser = super::name::<JobType>)]
    job_type: Option<JobType>,
    /// With this tag
    #[arg(long, value_name = "TEXT")]
    tag: Option<String>,
    /// With this value, whole, at a place of the payload that its type declares (types.<type>.search)
    #[arg(long, value_name = "VALUE")]
    search: Option<String>,
    /// Whose last error is of this kind
    #[arg(long, value_name = "KIND", value_parser = PossibleValuesParser::new(ErrorKind::NAMES).try_map(word::<ErrorKind>))]
    error_kind: Option<ErrorKind>,
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
    #[arg(value_name = "ID", conflicts_with = "all", value_parser = super::name::<RunId>)]
    id: Option<RunId>,
    /// All of the tenant's
    #[arg(long, help_heading = "Which runs")]
    all: bool,
    #[command(flatten)]
    filter: FilterOptions,
}

impl FilterOptions {
    /// The filter in the form of the API.
    pub(crate) fn wanted(self) -> api::Filter {
        let Self { queue, job_type, tag, search, error_kind, since, until } = self;
        api::Filter { queue, job_type, tag, search, state: None, error_kind, fingerprint: None, since, until }
    }
}

impl Which {
    /// The choice; `further` is of commands that narrow it by a state or fingerprint, too.
    pub(crate) fn chosen(self, further: api::Filter) -> Result<Target, Usage> {
        let api::Filter { state, fingerprint, .. } = further;
        let filter = api::Filter { state, fingerprint, ..self.filter.wanted() };
        match (self.id, filter.is_empty(), self.all) {
            (Some(id), true, _) => Ok(Target::Run(id)),
            (Some(_), false, _) => Err(usage("a run's id and a filter exclude each other; give one of them")),
            (None, false, true) => Err(usage("--all and a filter exclude each other; give one of them")),
            (None, true, false) => Err(usage("say which: a run's id, a filter such as --type or --since, or --all")),
            (None, ..) => Ok(Target::Runs(filter)),
        }
    }
}

/// Reads a word of one of the contract's lists.
pub(crate) fn word<T: DeserializeOwned>(text: String) -> Result<T, serde_json::Error> {
    serde_json::from_value(text.into())
}

/// The same; of any other word, `reason` is said.
pub(crate) fn one_of<T: DeserializeOwned + 'static>(
    reason: &'static str,
) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static {
    move |text| word(text.to_owned()).map_err(|_| reason.to_owned())
}

fn usage(text: &str) -> Usage {
    Usage(text.to_owned())
}

/// A duration within the API's bounds, which are written as durations are.
pub(crate) fn within(
    least: &'static str,
    most: &'static str,
) -> impl Fn(&str) -> Result<Duration, String> + Clone + Send + Sync + 'static {
    let is_within = move |span: &Duration| {
        duration::parse(least).is_ok_and(|least| *span >= least)
            && duration::parse(most).is_ok_and(|most| *span <= most)
    };
    move |text| {
        let span = duration::parse(text).map_err(|error| error.to_string())?;
        if is_within(&span) { Ok(span) } else { Err(format!("{text} is not within {least} to {most}")) }
    }
}

/// A number of things, which is not 0.
pub(crate) fn some(text: &str) -> Result<u64, String> {
    text.parse().ok().filter(|number| *number > 0).ok_or_else(|| "not a whole number from 1 on".to_owned())
}

/// The time by this machine's clock.
pub(crate) fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp::from_millis(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
}

/// A time, or a duration back from now.
pub(crate) fn moment(text: &str) -> Result<Timestamp, String> {
    let wrong = "neither a time such as 2027-01-31T09:30:00Z nor a duration back from now such as 90s, 1h or 7d";
    match duration::parse(text) {
        Ok(back) => Ok(now().minus(back)),
        Err(_) => Timestamp::parse(text).map_err(|_| wrong.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use longshore_backbone::wire::api::Selection;
    use longshore_domain::RunState;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_filter_becomes_the_fields_of_a_request() {
        let filter = FilterOptions {
            queue: Some(Queue::main()),
            job_type: Some(JobType::parse("email.send").unwrap()),
            tag: Some("a".to_owned()),
            search: Some("7".to_owned()),
            error_kind: Some(ErrorKind::Timeout),
            since: Some(moment("2026-11-21T13:00:00+01:00").unwrap()),
            until: None,
        };
        let which = Which { id: None, all: false, filter };
        let request = Selection::of(which.chosen(api::Filter::default()).unwrap());
        let expected = json!({"queue": "main", "type": "email.send", "tag": "a", "search": "7", "error_kind": "timeout",
            "since": "2026-11-21T12:00:00.000Z"});
        assert_eq!(serde_json::to_value(request).unwrap(), expected);
    }

    #[test]
    fn nothing_is_never_taken_for_everything() {
        let of = |state| api::Filter { state, ..api::Filter::default() };
        let reason = |which: Which, state| which.chosen(of(state)).unwrap_err().0;
        let state = Some(RunState::Retrying);
        assert!(reason(Which::default(), None).starts_with("say which: "));
        let retrying = Target::Runs(of(state));
        assert_eq!(Which::default().chosen(of(state)).unwrap(), retrying);
        let all = || Which { all: true, ..Which::default() };
        assert_eq!(all().chosen(of(None)).unwrap(), Target::Runs(api::Filter::default()));
        assert!(reason(all(), state).contains("--all and a filter"));
        let id = RunId::parse("r").unwrap();
        let one = || Which { id: Some(id.clone()), ..Which::default() };
        assert!(reason(one(), state).contains("a run's id and a filter"));
        assert_eq!(one().chosen(of(None)).unwrap(), Target::Run(id.clone()));
    }

    #[test]
    fn a_duration_is_meant_back_from_now() {
        let back = now().since(moment("1h").unwrap());
        assert!(back.abs_diff(Duration::from_secs(3_600)) < Duration::from_secs(60), "{back:?}");
        assert!(moment("yesterday").unwrap_err().contains("duration back from now"));
    }

    #[test]
    fn the_kinds_are_the_contracts() {
        for kind in ErrorKind::NAMES {
            word::<ErrorKind>(kind.to_owned()).unwrap();
        }
    }
}
