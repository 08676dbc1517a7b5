//! Recurring schedules: made, shown, paused and removed; and run beside their times.
//!
//! A request and an answer have the fields of the timing and those of the job side by side, as the contract shows them.
//! The job's payload is carried byte for byte, so that fields are sorted by name as they are read, not by serde's
//! flattening.

use std::sync::LazyLock;
use std::time::Duration;

use longshore_domain::recurrence::Recurrence;
use longshore_domain::recurring::{Firing, MISFIRE_AFTER, Misfire, Overlap, Skipped, Timing, check_id};
use longshore_domain::run::whole_millis;
use longshore_domain::{DurationText, ScheduleId, Tenant, Timestamp, duration};
use schemars::{JsonSchema, SchemaGenerator};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;
use serde_with::skip_serializing_none;

use super::{ApiError, Failed, SubmitRequest, request};
use crate::wire::json::OrderedFields;

/// Reads the request of `schedules.put`, so that an error names the field.
pub(super) fn read_put(body: &[u8]) -> Result<PutRequest, ApiError> {
    let fields: OrderedFields = request::read(body)?;
    let [settings, job] = fields.sorted([&of(&SETTINGS), &|_| true]);
    Ok(PutRequest { schedule: request::read(&settings)?, job: request::read(&job)? })
}

/// When a schedule fires, and under which conditions.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ScheduleSettings {
    /// Its id, unique within its tenant. Its runs are named `<id>-<time due in Unix ms>`.
    pub id: ScheduleId,
    /// Six fields, seconds first, or the usual five; excludes `every`.
    pub cron: Option<String>,
    /// The zone in which `cron` is read, by its name in the IANA database; UTC by default.
    pub time_zone: Option<String>,
    /// An interval such as `5m`, counted from 1970 UTC: a second at least.
    pub every: Option<DurationText>,
    /// The same in milliseconds.
    pub every_ms: Option<u64>,
    /// What happens to firings that were missed: `one` run for all of them (the default), or `skip`.
    pub misfire: Option<Misfire>,
    /// A firing that is later than this is missed, in milliseconds: 10,000 by default.
    pub misfire_after_ms: Option<u64>,
    /// What happens while the run before has not ended: `allow` (the default) or `skip`.
    pub overlap: Option<Overlap>,
    /// Each firing is delayed by up to this much, yet never beyond the next: at most a day.
    pub jitter_ms: Option<u64>,
    /// It is over after this time.
    pub ends_at: Option<Timestamp>,
    /// Whether it is paused; `put` leaves it as it is if this is absent.
    pub paused: Option<bool>,
    /// Only if it was last changed at this time, as its `updated_at` says; else 412 `changed`.
    pub if_updated_at: Option<Timestamp>,
}

const JITTER_MAX: Duration = Duration::from_secs(86_400);

impl ScheduleSettings {
    /// Checks the settings.
    ///
    /// # Errors
    /// Names the field, and says what would be right.
    pub fn timing(&self) -> Result<Timing, String> {
        check_id(&self.id).map_err(|error| error.to_string())?;
        let every = match (self.every, self.every_ms) {
            (Some(_), Some(_)) => return Err("every_ms: stands beside every; one of them is enough".to_owned()),
            (Some(DurationText(every)), None) => Some(every),
            (None, ms) => ms.map(Duration::from_millis),
        };
        let recurrence = match (&self.cron, every) {
            (Some(_), Some(_)) => return Err("every: stands beside cron; one of them is enough".to_owned()),
            (None, None) => return Err("cron: is missing; or give every".to_owned()),
            (Some(cron), None) => Recurrence::cron(cron, self.time_zone.as_deref()),
            (None, Some(_)) if self.time_zone.is_some() => {
                return Err("time_zone: is for cron; an interval is the same everywhere".to_owned());
            }
            (None, Some(every)) => Recurrence::every(every),
        };
        let span = |field: &str, ms: u64, max: Duration| match Duration::from_millis(ms) {
            span if span > max => Err(format!("{field}: is more than {}", DurationText(max))),
            span => Ok(span),
        };
        let misfire_after = self.misfire_after_ms.unwrap_or_else(|| whole_millis(MISFIRE_AFTER));
        Ok(Timing {
            recurrence: recurrence.map_err(|error| error.to_string())?,
            jitter: span("jitter_ms", self.jitter_ms.unwrap_or(0), JITTER_MAX)?,
            ends_at: self.ends_at,
            misfire: self.misfire.unwrap_or_default(),
            misfire_after: span("misfire_after_ms", misfire_after, duration::MAX_DURATION)?,
        })
    }

    /// Checks what a schedule's job may not have: what belongs to a single run.
    ///
    /// # Errors
    /// Names the field.
    pub fn check_job(job: &SubmitRequest) -> Result<(), String> {
        let absolute = job.deadline.as_deref().is_some_and(|deadline| duration::parse(deadline).is_err());
        let wrong = [
            ("run_id", job.run_id.is_some(), "each run of a schedule is named by its id and due time"),
            ("batch_id", job.batch_id.is_some(), "a batch ends, and a schedule does not"),
            ("debounce", job.debounce.is_some(), "each run of a schedule has its own id and time"),
            // Each run's key has a suffix: submitted, none is empty.
            ("idempotency_key", job.idempotency_key.as_deref() == Some(""), "is empty"),
            ("run_at", job.run_at.is_some(), "a schedule's runs start when they fall due"),
            ("delay_ms", job.delay_ms.is_some(), "a schedule's runs start when they fall due"),
            ("expires_at", job.expires_at.is_some(), "would expire every run at the same time; use expires_in_ms"),
            ("deadline", absolute, "is not a duration: a time would end every run at the same time"),
        ];
        match wrong.into_iter().find(|(_, is_wrong, _)| *is_wrong) {
            Some((field, _, why)) => Err(format!("{field}: {why}")),
            None => Ok(()),
        }
    }

    /// The same schedule, as it is stored and compared: with what applies where nothing was said.
    #[must_use]
    pub fn normal(&self) -> Self {
        let every = self.every.or_else(|| self.every_ms.map(|ms| DurationText(Duration::from_millis(ms))));
        Self {
            every,
            every_ms: None,
            misfire: Some(self.misfire.unwrap_or_default()),
            misfire_after_ms: Some(self.misfire_after_ms.unwrap_or_else(|| whole_millis(MISFIRE_AFTER))),
            overlap: Some(self.overlap.unwrap_or_default()),
            jitter_ms: Some(self.jitter_ms.unwrap_or(0)),
            paused: None,
            if_updated_at: None,
            ..self.clone()
        }
    }
}

/// A schedule to be made or changed.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct PutRequest {
    /// When it fires.
    #[serde(flatten)]
    pub schedule: ScheduleSettings,
    /// What it starts. `idempotency_key` gets the time due as a suffix for each run.
    #[serde(flatten)]
    pub job: SubmitRequest,
}

impl<'de> Deserialize<'de> for PutRequest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let [settings, job] = OrderedFields::deserialize(deserializer)?.sorted([&of(&SETTINGS), &|_| true]);
        Ok(Self { schedule: part(&settings)?, job: part(&job)? })
    }
}

/// Which schedule.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ScheduleRequest {
    /// Its id.
    pub id: ScheduleId,
    /// Its tenant: needed under `_all`.
    pub tenant: Option<Tenant>,
    /// But for `get`: only if it was last changed at this time, as its `updated_at` says; else 412 `changed`.
    pub if_updated_at: Option<Timestamp>,
}

/// Which schedules.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SchedulesRequest {
    /// Only this tenant's, under `_all`.
    pub tenant: Option<Tenant>,
    /// At most so many: 100 by default, 500 at most.
    pub limit: Option<u64>,
    /// Goes on where another answer stopped.
    pub cursor: Option<String>,
}

/// A page of schedules. One that fires meanwhile may come twice, with the later state last; none is left out.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Schedules {
    /// The schedules, those that changed least recently first.
    pub schedules: Vec<ScheduleStatus>,
    /// Where the next page goes on; absent at the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}

/// The due times to make up for.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BackfillRequest {
    /// The schedule.
    pub id: ScheduleId,
    /// Its tenant: needed under `_all`.
    pub tenant: Option<Tenant>,
    /// From this time on.
    pub from: Timestamp,
    /// Up to this time, which must not lie ahead; if absent, up to the time at which the node has the request.
    pub until: Option<Timestamp>,
    /// Only count.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub dry_run: bool,
    /// Only if it was last changed at this time, as its `updated_at` says; else 412 `changed`.
    pub if_updated_at: Option<Timestamp>,
}

/// The outcome of a backfill.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Backfilled {
    /// Due times that had a run.
    pub deduplicated: u64,
    /// The failures: at most 100.
    pub failed: Vec<Failed>,
    /// How many failed, if more did than are listed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed_in_all: Option<u64>,
    /// Runs that were started; with `dry_run` the due times in the span.
    pub started: u64,
}

/// A schedule, as answers show it.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct ScheduleStatus {
    /// When it fires.
    #[serde(flatten)]
    pub schedule: ScheduleSettings,
    /// What it starts.
    #[serde(flatten)]
    pub job: SubmitRequest,
    /// How it stands.
    #[serde(flatten)]
    pub state: ScheduleState,
}

/// How a schedule stands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ScheduleState {
    /// Its tenant.
    pub tenant: Tenant,
    /// Whether a node's configuration file declares it.
    pub declared: bool,
    /// When it was made.
    pub created_at: Timestamp,
    /// When it was changed last by a user; firings do not count.
    pub updated_at: Timestamp,
    /// Its last firing that became a run.
    pub last_run: Option<Firing>,
    /// Its last firing that did not, and why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_skipped: Option<Skipped>,
    /// The next five due times, without jitter; none while it is paused or once it is over.
    pub next_run: Vec<Timestamp>,
}

impl<'de> Deserialize<'de> for ScheduleStatus {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // What only a newer node writes is of none of them, and skipped.
        let [settings, state, job] =
            OrderedFields::deserialize(deserializer)?.sorted([&of(&SETTINGS), &of(&STATE), &of(&JOB)]);
        Ok(Self { schedule: part(&settings)?, job: part(&job)?, state: part(&state)? })
    }
}

fn part<T: DeserializeOwned, E: serde::de::Error>(text: &[u8]) -> Result<T, E> {
    serde_json::from_slice(text).map_err(E::custom)
}

/// The names of the fields of each part, as keys. Made once: a list has many schedules.
static SETTINGS: LazyLock<Option<Value>> = LazyLock::new(fields::<ScheduleSettings>);
static STATE: LazyLock<Option<Value>> = LazyLock::new(fields::<ScheduleState>);
static JOB: LazyLock<Option<Value>> = LazyLock::new(fields::<SubmitRequest>);

fn fields<T: JsonSchema>() -> Option<Value> {
    T::json_schema(&mut SchemaGenerator::default()).get("properties").cloned()
}

/// Whether a part has a field of a name.
fn of(part: &'static LazyLock<Option<Value>>) -> impl Fn(&str) -> bool {
    move |name| part.as_ref().is_some_and(|fields| fields.get(name).is_some())
}

#[cfg(test)]
mod tests {
    use serde_json::value::RawValue;

    use super::super::{Debounce, Endpoint as _, SchedulesPut};
    use super::*;

    fn refused(body: &str) -> String {
        let put = |body: &str| SchedulesPut::read(body.as_bytes()).map_err(|error| error.message);
        let checked = |put: PutRequest| put.schedule.timing().and(ScheduleSettings::check_job(&put.job)).map(|()| put);
        put(body).and_then(checked).unwrap_err()
    }

    #[test]
    fn what_is_wrong_with_a_schedule_is_named() {
        for (body, said) in [
            (r#"{"type":"t"}"#, "id: is missing"),
            (r#"{"id":"n","cron":"0 0 3 * * *"}"#, "type: is missing"),
            (r#"{"id":"n","type":"t"}"#, "cron: is missing"),
            (r#"{"id":"n","type":"t","cron":"0 0 3 * * *","every":"5m"}"#, "every: stands beside cron"),
            (r#"{"id":"n","type":"t","every":"5m","every_ms":7}"#, "every_ms: stands beside every"),
            (r#"{"id":"n","type":"t","every":"5m","time_zone":"UTC"}"#, "time_zone: is for cron"),
            (r#"{"id":"n","type":"t","every":"500ms"}"#, "every: 500ms is out of bounds"),
            (r#"{"id":"n","type":"t","cron":"0 3 * *"}"#, "cron: \"0 3 * *\" has 4 fields"),
            (r#"{"id":"n","type":"t","cron":"0 0 3 * * *","time_zone":"Mars"}"#, "time_zone: \"Mars\" is not a zone"),
            (r#"{"id":"n","type":"t","every":"5m","jitter_ms":86400001}"#, "jitter_ms: is more than 1d"),
            (r#"{"id":"main-p5","type":"t","every":"5m"}"#, "id \"main-p5\" ends like"),
            (r#"{"id":"a.b","type":"t","every":"5m"}"#, "id: "),
            (r#"{"id":"n","type":"t","every":"5m","overlap":"queue"}"#, "overlap: unknown word `queue`"),
            (r#"{"id":"n","type":"t","every":"5m","run_id":"r"}"#, "run_id: each run of a schedule"),
            (r#"{"id":"n","type":"t","every":"5m","batch_id":"b"}"#, "batch_id: a batch ends"),
            (r#"{"id":"n","type":"t","every":"5m","debounce":{"key":"k","wait_ms":1}}"#, "debounce: each run"),
            (r#"{"id":"n","type":"t","every":"5m","idempotency_key":""}"#, "idempotency_key: is empty"),
            (r#"{"id":"n","type":"t","every":"5m","delay_ms":7}"#, "delay_ms: a schedule's runs"),
            (r#"{"id":"n","type":"t","every":"5m","expires_at":"2027-01-31T09:30:00Z"}"#, "expires_at: would expire"),
            (r#"{"id":"n","type":"t","every":"5m","deadline":"2027-01-31T09:30:00Z"}"#, "deadline: is not a duration"),
            (r#"{"id":"n","type":"t","every":"5m","type":"u"}"#, "type: stands twice"),
        ] {
            assert!(refused(body).starts_with(said), "{body}: {}", refused(body));
        }
        let deadline = r#"{"id":"n","type":"t","every":"5m","deadline":"2h"}"#;
        assert!(ScheduleSettings::check_job(&SchedulesPut::read(deadline.as_bytes()).unwrap().job).is_ok());
    }

    /// Whatever a job of a schedule may have, the answer shows.
    #[test]
    fn every_option_of_a_job_comes_back() {
        let debounce = Debounce { key: "k".to_owned(), wait_ms: 1, max_wait_ms: None };
        let some = |text: &str| Some(text.to_owned());
        // Does not compile when a field is added, which has to be in the list as well.
        let job = SubmitRequest {
            job_type: "t".to_owned(),
            payload: RawValue::from_string("1".to_owned()).ok(),
            payload_base64: some("MQ=="),
            queue: some("q"),
            priority: Some(1),
            idempotency_key: some("k"),
            idempotency_window_ms: Some(1),
            unique: some("active"),
            on_conflict: some("reject"),
            debounce: Some(debounce),
            run_id: None,
            run_at: None,
            delay_ms: None,
            expires_at: None,
            expires_in_ms: Some(1),
            max_attempts: Some(1),
            retry: some("fast"),
            timeout_ms: Some(1),
            keep_ms: Some(1),
            deadline: some("1h"),
            concurrency_key: some("k"),
            limit_key: some("k"),
            cost: Some(1),
            schema_version: some("2"),
            tags: Some(vec!["a".to_owned()]),
            then: Some(Box::default()),
            batch_id: None,
            headers: Some([("a".to_owned(), "b".to_owned())].into()),
        };
        let schedule = SchedulesPut::read(br#"{"id":"n","type":"t","every":"5m"}"#).unwrap().schedule;
        let state = ScheduleState {
            tenant: Tenant::default_tenant(),
            declared: false,
            created_at: Timestamp::from_millis(1),
            updated_at: Timestamp::from_millis(1),
            last_run: None,
            last_skipped: None,
            next_run: Vec::new(),
        };
        let shown = serde_json::to_string(&ScheduleStatus { schedule, job: job.clone(), state }).unwrap();
        let read: ScheduleStatus = serde_json::from_str(&shown).unwrap();
        assert_eq!(serde_json::to_value(&read.job).unwrap(), serde_json::to_value(&job).unwrap());
    }

    #[test]
    fn equal_schedules_are_equal_however_they_are_written() {
        let settings = |body: &str| SchedulesPut::read(body.as_bytes()).unwrap().schedule.normal();
        let (text, number) =
            (r#"{"id":"n","type":"t","every":"5m"}"#, r#"{"every_ms":300000,"id":"n","type":"t","paused":true}"#);
        assert_eq!(settings(text), settings(number));
    }
}
