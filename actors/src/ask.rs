//! What is asked for: one run, or those that fit a filter. One shape for all endpoints that take either.

use std::collections::BTreeMap;

use longshore_backbone::wire::api::{ApiError, Code};
use longshore_domain::{ErrorKind, JobType, Priority, Queue, Run, RunId, RunState, Tenant, Timestamp};
use serde::Deserialize;
use serde::de::IntoDeserializer as _;
use serde::de::value::Error as WordError;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::carry_out::chain;

/// The operator: every tenant at once, fenced by NATS permissions.
pub(crate) const OPERATOR: &str = "_all";

/// Failures that one answer lists; the rest are counted.
const FAILURES_LISTED: usize = 100;

/// The answer to work on many: how many it was done to, what failed, and whether the limit left some.
pub(crate) fn outcome(word: &str, done: u64, failed: &[Value], more: bool) -> Value {
    let listed = &failed[..failed.len().min(FAILURES_LISTED)];
    let mut answer = json!({word: done, "failed": listed, "more": more});
    if failed.len() > listed.len() {
        answer["failed_in_all"] = json!(failed.len());
    }
    answer
}

/// A request as it comes.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Ask {
    run_id: Option<String>,
    tenant: Option<String>,
    queue: Option<String>,
    #[serde(rename = "type")]
    job_type: Option<String>,
    tag: Option<String>,
    state: Option<String>,
    error_kind: Option<String>,
    since: Option<String>,
    until: Option<String>,
    all: bool,
    pub(crate) limit: Option<usize>,
    cursor: Option<String>,
    pub(crate) rate_per_s: Option<f64>,
    pub(crate) dry_run: bool,
    pub(crate) set: Option<Set>,
}

/// What a replay changes.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Set {
    queue: Option<String>,
    priority: Option<u64>,
    #[serde(deserialize_with = "any_json")]
    pub(crate) payload: Option<Box<RawValue>>,
    pub(crate) headers: BTreeMap<String, Option<String>>,
}

/// Reads a payload, which may be any JSON, so that `null` is one, too.
pub(crate) fn any_json<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Box<RawValue>>, D::Error> {
    Box::<RawValue>::deserialize(deserializer).map(Some)
}

/// Which runs are meant.
#[derive(Debug, Clone, Default)]
pub(crate) struct Filter {
    /// `None`: every tenant's.
    pub(crate) tenant: Option<Tenant>,
    pub(crate) queue: Option<Queue>,
    pub(crate) job_type: Option<JobType>,
    tag: Option<String>,
    state: Option<RunState>,
    error_kind: Option<ErrorKind>,
    since: Option<Timestamp>,
    until: Option<Timestamp>,
}

/// One run, or those that fit.
#[derive(Debug)]
pub(crate) enum Which {
    One(Tenant, RunId),
    Those(Filter),
}

fn malformed(error: &longshore_domain::NameError) -> ApiError {
    ApiError::malformed(error.to_string())
}

/// A name of the contract's lists, such as a state.
fn word<'a, T: Deserialize<'a>>(field: &str, text: Option<&'a str>) -> Result<Option<T>, ApiError> {
    let read = |text: &'a str| T::deserialize(text.into_deserializer());
    let wrong = |error: WordError| ApiError::malformed(format!("{field}: {}", in_words(&error.to_string())));
    text.map(read).transpose().map_err(wrong)
}

/// What the JSON reader says, without the names that things have in this program.
pub(crate) fn in_words(error: &str) -> String {
    let mut words = error.to_owned();
    if let Some(at) = words.find("struct ") {
        let end = words[at + 7..].find(|c: char| !c.is_alphanumeric()).map_or(words.len(), |end| at + 7 + end);
        words.replace_range(at..end, "an object");
    }
    for (inner, plain) in [
        ("u64", "a whole number"),
        ("u32", "a whole number"),
        ("usize", "a whole number"),
        ("f64", "a number"),
        ("a sequence", "an array"),
        ("a map", "an object"),
    ] {
        words = words.replace(&format!("expected {inner}"), &format!("expected {plain}"));
    }
    for (inner, plain) in [("sequence", "array"), ("map", "object")] {
        words = words.replace(&format!("invalid type: {inner}"), &format!("invalid type: {plain}"));
    }
    words.replace("unknown variant", "unknown word")
}

/// A tenant that the operator names; `_` is that of jobs whose tenant could not be read.
pub(crate) fn named(tenant: &str) -> Result<Tenant, longshore_domain::NameError> {
    if tenant == Tenant::unreadable().as_str() { Ok(Tenant::unreadable()) } else { Tenant::parse(tenant) }
}

/// What an endpoint answers where NATS did not.
pub(crate) fn unavailable(error: &longshore_backbone::Error) -> ApiError {
    ApiError::unavailable(chain(error))
}

/// A run's id is one tenant's.
pub(crate) fn whose() -> ApiError {
    ApiError::malformed(format!("tenant: is missing; a run_id asked for under {OPERATOR} needs the tenant whose it is"))
}

fn time(field: &str, text: Option<&str>) -> Result<Option<Timestamp>, ApiError> {
    text.map(Timestamp::parse).transpose().map_err(|error| ApiError::malformed(format!("{field}: {error}")))
}

impl Ask {
    /// Refuses a field that this endpoint would silently ignore.
    pub(crate) fn only(self, endpoint: &str, fields: &[&str]) -> Result<Self, ApiError> {
        let given = [
            ("run_id", self.run_id.is_some()),
            ("tag", self.tag.is_some()),
            ("state", self.state.is_some()),
            ("error_kind", self.error_kind.is_some()),
            ("since", self.since.is_some()),
            ("until", self.until.is_some()),
            ("all", self.all),
            ("limit", self.limit.is_some()),
            ("cursor", self.cursor.is_some()),
            ("rate_per_s", self.rate_per_s.is_some()),
            ("dry_run", self.dry_run),
            ("set", self.set.is_some()),
        ];
        match given.iter().find(|(field, given)| *given && !fields.contains(field)) {
            Some((field, _)) => Err(ApiError::malformed(format!("{field}: is no field of {endpoint}"))),
            None => Ok(self),
        }
    }

    /// Whose runs: a tenant sees its own only, the operator all, or those of one it names.
    fn tenant(&self, asker: &str) -> Result<Option<Tenant>, ApiError> {
        match (asker, self.tenant.as_deref()) {
            (OPERATOR, None) => Ok(None),
            (OPERATOR, Some(tenant)) => named(tenant).map(Some).map_err(|error| malformed(&error)),
            (own, Some(named)) if own != named => {
                Err(ApiError::new(Code::Forbidden, "tenant: a tenant sees its own runs only"))
            }
            (own, _) => Tenant::parse(own).map(Some).map_err(|error| malformed(&error)),
        }
    }

    /// The one run that is meant.
    pub(crate) fn one(&self, asker: &str) -> Result<(Tenant, RunId), ApiError> {
        let Some(run_id) = &self.run_id else { return Err(ApiError::malformed("run_id: is missing")) };
        let tenant = self.tenant(asker)?.ok_or_else(whose)?;
        Ok((tenant, RunId::parse(run_id).map_err(|error| malformed(&error))?))
    }

    /// The filter, which may be empty.
    pub(crate) fn filter(&self, asker: &str) -> Result<Filter, ApiError> {
        Ok(Filter {
            tenant: self.tenant(asker)?,
            queue: self.queue.as_deref().map(Queue::parse).transpose().map_err(|error| malformed(&error))?,
            job_type: self.job_type.as_deref().map(JobType::parse).transpose().map_err(|error| malformed(&error))?,
            tag: self.tag.clone(),
            state: word("state", self.state.as_deref())?,
            error_kind: word("error_kind", self.error_kind.as_deref())?,
            since: time("since", self.since.as_deref())?,
            until: time("until", self.until.as_deref())?,
        })
    }

    /// One run, or a filter; nothing at all must be said in so many words, `all: true`.
    pub(crate) fn which(&self, asker: &str) -> Result<Which, ApiError> {
        let filtered =
            [&self.queue, &self.job_type, &self.tag, &self.state, &self.error_kind, &self.since, &self.until]
                .iter()
                .any(|field| field.is_some());
        if self.run_id.is_some() {
            if filtered || self.all {
                return Err(ApiError::malformed("run_id: stands beside a filter; one of them is enough"));
            }
            return self.one(asker).map(|(tenant, run)| Which::One(tenant, run));
        }
        if !filtered && !self.all {
            return Err(ApiError::malformed("run_id: is missing; or give a filter, or all: true for everything"));
        }
        self.filter(asker).map(Which::Those)
    }

    /// Where a list goes on.
    pub(crate) fn cursor(&self) -> Result<u64, ApiError> {
        let read = |text: &String| text.parse().map_err(|_| ApiError::malformed("cursor: is none of this endpoint's"));
        self.cursor.as_ref().map_or(Ok(1), read)
    }
}

impl Set {
    /// The queue and priority that a replay changes to.
    pub(crate) fn place(&self) -> Result<(Option<Queue>, Option<Priority>), ApiError> {
        let queue = self.queue.as_deref().map(Queue::parse).transpose();
        let priority = self.priority.map(Priority::new).transpose();
        let within = |error: longshore_domain::NameError| ApiError::malformed(format!("set: {error}"));
        Ok((queue.map_err(within)?, priority.map_err(within)?))
    }
}

impl Filter {
    /// Whether a run is meant. `since` and `until` are about when it ended, or, if it has not, since when it waits.
    pub(crate) fn fits(&self, run: &Run) -> bool {
        let at = run.ended_at.or(run.enqueued_at).unwrap_or(run.origin);
        self.tenant.as_ref().is_none_or(|tenant| run.tenant == *tenant)
            && self.queue.as_ref().is_none_or(|queue| run.queue == *queue)
            && self.job_type.as_ref().is_none_or(|job_type| run.job_type == *job_type)
            && self.tag.as_ref().is_none_or(|tag| run.tags.contains(tag))
            && self.state.is_none_or(|state| run.state == state)
            && self.error_kind.is_none_or(|kind| run.error.as_ref().is_some_and(|error| error.kind == kind))
            && self.since.is_none_or(|since| at >= since)
            && self.until.is_none_or(|until| at <= until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_does_not_speak_of_this_programs_types() {
        let said = |body: &str| in_words(&serde_json::from_str::<Ask>(body).unwrap_err().to_string());
        assert!(said("[[]]").starts_with("invalid type: array, expected a string"), "{}", said("[[]]"));
        assert!(said("7").starts_with("invalid type: integer `7`, expected an object"), "{}", said("7"));
        assert!(said(r#"{"limit":-1}"#).contains("expected a whole number"));
        assert!(said(r#"{"queue":{}}"#).starts_with("invalid type: object, expected a string"));
        assert!(said(r#"{"rate_per_s":"x"}"#).contains("expected a number"));
    }

    fn ask(body: serde_json::Value) -> Ask {
        serde_json::from_value(body).unwrap()
    }

    #[test]
    fn a_filter_is_read_and_what_is_wrong_is_named() {
        let reason = |body| ask(body).which("acme").unwrap_err().message;
        assert!(reason(json!({})).starts_with("run_id: is missing"));
        assert!(reason(json!({"state": "asleep"})).starts_with("state: unknown word `asleep`"));
        assert!(reason(json!({"error_kind": "x"})).starts_with("error_kind: "));
        assert!(reason(json!({"since": "today"})).starts_with("since: "));
        assert!(reason(json!({"run_id": "r", "queue": "main"})).starts_with("run_id: stands beside"));
        assert!(reason(json!({"all": true, "tenant": "other"})).starts_with("tenant: "));
        assert!(ask(json!({"cursor": "x"})).cursor().is_err());
        let limited = ask(json!({"limit": 3})).only("runs.erase", &["run_id"]);
        assert_eq!(limited.unwrap_err().message, "limit: is no field of runs.erase");
        let Which::Those(all) = ask(json!({"all": true})).which(OPERATOR).unwrap() else { panic!("a filter") };
        assert!(all.tenant.is_none());
        let whose = ask(json!({"run_id": "r"})).which(OPERATOR).unwrap_err();
        assert!(whose.message.starts_with("tenant: is missing"), "{whose}");
        let unreadable = ask(json!({"run_id": "r", "tenant": "_"}));
        assert!(unreadable.which("_").is_err() && unreadable.which(OPERATOR).is_ok());
        let Which::One(tenant, run) = ask(json!({"run_id": "r"})).which("acme").unwrap() else { panic!("one run") };
        assert_eq!((tenant.as_str(), run.as_str()), ("acme", "r"));
    }
}
