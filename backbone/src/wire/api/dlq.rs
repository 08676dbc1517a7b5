//! Dead letters: listed, grouped, shown, replayed, discarded.

use std::collections::BTreeMap;

use longshore_domain::{ErrorKind, JobType, RunId, Tenant, Timestamp};
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;
use serde_with::skip_serializing_none;

use super::fields::{Fields, SELECTION, takes};
use super::{ApiError, Encoded, Failed, Filter, Record, RunError, Selection, Word, request};

/// Which dead letters are listed. An empty request lists all.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Fields", into = "Fields")]
pub struct ListRequest {
    /// Their tenant; under `_all` all tenants by default.
    pub tenant: Option<Tenant>,
    /// Those that match.
    pub filter: Filter,
    /// Entries per page: 100 by default, at most 500.
    pub limit: Option<u64>,
    /// Where the previous page ended; by default the oldest dead letter.
    pub cursor: Option<String>,
}

/// Which dead letters are grouped. An empty request groups all.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Fields", into = "Fields")]
pub struct GroupsRequest {
    /// Their tenant; under `_all` all tenants by default.
    pub tenant: Option<Tenant>,
    /// Those that match; its `state` cannot be set here.
    pub filter: Filter,
    /// How many groups, the largest ones: at most 500; all by default.
    pub limit: Option<u64>,
    /// Where the previous answer ended; by default the oldest dead letter.
    pub cursor: Option<String>,
}

/// Which dead letters are replayed, and what is changed.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(try_from = "Fields", into = "Fields")]
pub struct ReplayRequest {
    /// Which dead letters; a filter's `state` cannot be set here.
    pub selection: Selection,
    /// How many per second: 0.001 or more; as fast as possible by default.
    pub rate_per_s: Option<f64>,
    /// What to change; nothing by default.
    pub set: Option<Change>,
}

/// Which dead letters are discarded.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(try_from = "Fields", into = "Fields")]
pub struct DiscardRequest {
    /// Which dead letters; a filter's `state` cannot be set here.
    pub selection: Selection,
    /// How many per second: 0.001 or more; as fast as possible by default.
    pub rate_per_s: Option<f64>,
}

/// What a replay changes of each job.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Change {
    /// The new queue.
    pub queue: Option<String>,
    /// The new priority, 1 to 9.
    pub priority: Option<u64>,
    /// The new payload: any JSON, `null` included, passed on byte for byte.
    #[serde(deserialize_with = "request::any_json")]
    pub payload: Option<Box<RawValue>>,
    /// The headers to set; `None` removes one.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, Option<String>>,
}

/// The fields of a filter that narrows a list, whether `all` is set or not.
pub(super) const LISTED: [&str; 12] =
    ["tenant", "queue", "type", "tag", "search", "error_kind", "since", "until", "all", "limit", "cursor", "state"];

takes! {
    ListRequest: &LISTED;
    fields => {
        let (tenant, filter) = (fields.tenant()?, fields.filter()?);
        Ok(Self { tenant, filter, limit: fields.limit, cursor: fields.cursor })
    };
    ListRequest { tenant, filter, limit, cursor } => {
        Self { limit, cursor, ..Self::of_filter(filter, tenant.as_ref()) }
    }
}

takes! {
    GroupsRequest: without_state(&LISTED);
    fields => {
        let (tenant, filter) = (fields.tenant()?, fields.filter()?);
        Ok(Self { tenant, filter, limit: fields.limit, cursor: fields.cursor })
    };
    GroupsRequest { tenant, filter, limit, cursor } => {
        Self { limit, cursor, ..Self::of_filter(filter, tenant.as_ref()) }
    }
}

takes! {
    ReplayRequest: &[without_state(&SELECTION), &["fingerprint", "rate_per_s", "set"]].concat();
    fields => Ok(Self { selection: fields.selection()?, rate_per_s: fields.rate_per_s, set: fields.set });
    ReplayRequest { selection, rate_per_s, set } => Self { rate_per_s, set, ..Self::from(selection) }
}

takes! {
    DiscardRequest: &[without_state(&SELECTION), &["fingerprint", "rate_per_s"]].concat();
    fields => Ok(Self { selection: fields.selection()?, rate_per_s: fields.rate_per_s });
    DiscardRequest { selection, rate_per_s } => Self { rate_per_s, ..Self::from(selection) }
}

/// The same fields without the last, which is `state`: all dead letters have one.
fn without_state<'f>(fields: &'f [&'static str]) -> &'f [&'static str] {
    fields.split_last().map_or(fields, |(_, rest)| rest)
}

/// A page of dead letters.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Page<L = DeadLetter> {
    /// The dead letters, the oldest first.
    pub entries: Vec<L>,
    /// Where the next page begins; absent on the last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}

impl Encoded<Page> {
    /// Reads the page, and leaves its dead letters as their text.
    ///
    /// # Errors
    /// 500: it is not what the contract says.
    pub fn dead_letters(&self) -> Result<Page<Encoded<DeadLetter>>, ApiError> {
        self.clone().cast::<Page<Encoded<DeadLetter>>>().read()
    }
}

impl From<Page<Encoded<DeadLetter>>> for Encoded<Page> {
    fn from(page: Page<Encoded<DeadLetter>>) -> Self {
        Encoded::of(&page).cast()
    }
}

/// A dead letter: its run, and the job that was published.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct DeadLetter {
    /// The run's record, with every attempt.
    #[serde(flatten)]
    pub record: Record,
    /// The job, and how it failed.
    #[serde(flatten)]
    pub job: DeadJob,
}

/// The fields of a dead letter beside its run's record.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DeadJob {
    /// The job's headers, without the run's id.
    pub headers: BTreeMap<String, String>,
    /// Its payload.
    pub payload_base64: Option<String>,
    /// Instead of a payload that was left out: how many bytes it has.
    pub payload_bytes: Option<u64>,
    /// Its group in `dlq.groups`.
    pub fingerprint: String,
}

// Read twice: serde's buffer for flattened fields does not carry handlers' JSON byte for byte.
impl<'de> Deserialize<'de> for DeadLetter {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Box::<RawValue>::deserialize(deserializer)?;
        let record = serde_json::from_str(text.get()).map_err(serde::de::Error::custom)?;
        let job = serde_json::from_str(text.get()).map_err(serde::de::Error::custom)?;
        Ok(Self { record, job })
    }
}

impl Encoded<Record> {
    /// The dead letter of this run and this job.
    pub fn with_job(self, job: &DeadJob) -> Encoded<DeadLetter> {
        Encoded::written(self.into_object().and(job))
    }
}

/// Groups of dead letters that failed alike.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Groups {
    /// Where to continue; absent if all dead letters were read, about 100,000 in one call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
    /// The groups, the largest first.
    pub groups: Vec<Group>,
}

/// Dead letters of one type, whose errors are alike.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Group {
    /// How many there are.
    pub count: u64,
    /// The kind of their errors.
    pub error_kind: Word<ErrorKind>,
    /// One of them.
    pub example: Example,
    /// Names the group.
    pub fingerprint: String,
    /// When the first of them died.
    pub first: Timestamp,
    /// How many died in each of the last 24 hours, the last one last.
    #[serde(default)]
    pub hours: Vec<u64>,
    /// When the last of them died.
    pub last: Timestamp,
    /// What their error texts have in common.
    pub pattern: String,
    /// Their type.
    #[serde(rename = "type")]
    pub job_type: JobType,
}

/// One run of a group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Example {
    /// Its error; `null` if its record has none.
    pub error: Option<RunError>,
    /// The run.
    pub run_id: RunId,
    /// Its tenant.
    pub tenant: Tenant,
}

/// The outcome of a replay.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Replayed {
    /// The failures: at most 100.
    pub failed: Vec<Failed>,
    /// How many failed, if more did than are listed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed_in_all: Option<u64>,
    /// Whether the call ended before it had checked everything: then repeat it.
    pub more: bool,
    /// How many were replayed, or would have been replayed.
    pub replayed: u64,
}

/// The outcome of a discard.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Discarded {
    /// How many were discarded, or would have been discarded.
    pub discarded: u64,
    /// The failures: at most 100.
    pub failed: Vec<Failed>,
    /// How many failed, if more did than are listed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed_in_all: Option<u64>,
    /// Whether the call ended before it had checked everything: then repeat it.
    pub more: bool,
}
