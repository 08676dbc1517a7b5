//! Lists and counts of runs.

use longshore_domain::{JobType, Queue, RunState, Tenant, Timestamp, is_default};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use super::dlq::LISTED;
use super::fields::{Fields, takes};
use super::{ApiError, Encoded, Filter, ListRequest, Record, Word};
use crate::wire::header::KEY_MAX;

/// Which runs are listed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Fields", into = "Fields")]
pub enum RunsRequest {
    /// Those that match.
    Those(ListRequest),
    /// The one that has an idempotency key, or had it last.
    OfKey {
        /// The key.
        key: String,
        /// Its tenant: required under `_all`.
        tenant: Option<Tenant>,
    },
}

takes!(RunsRequest of Fields: &[&LISTED[..], &["idempotency_key"]].concat());

impl TryFrom<Fields> for RunsRequest {
    type Error = String;

    fn try_from(mut fields: Fields) -> Result<Self, String> {
        let Some(key) = fields.idempotency_key.take() else { return ListRequest::try_from(fields).map(Self::Those) };
        if !(1..=KEY_MAX).contains(&key.len()) {
            return Err(format!("idempotency_key: has {} bytes; 1 to {KEY_MAX} are allowed", key.len()));
        }
        let beside = "idempotency_key: stands beside another field; it takes tenant alone";
        let fields = fields.only(&["tenant"]).map_err(|_| beside.to_owned())?;
        Ok(Self::OfKey { key, tenant: fields.tenant()? })
    }
}

impl From<RunsRequest> for Fields {
    fn from(asked: RunsRequest) -> Self {
        match asked {
            RunsRequest::Those(asked) => asked.into(),
            RunsRequest::OfKey { key, tenant } => {
                Self { idempotency_key: Some(key), ..Self::of_filter(Filter::default(), tenant.as_ref()) }
            }
        }
    }
}

/// A page of runs.
#[skip_serializing_none]
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Runs<R = Record> {
    /// The runs; a page may have fewer than were asked for, or none, and not be the last.
    pub runs: Vec<R>,
    /// Where the next page begins; absent on the last.
    pub cursor: Option<String>,
    /// False: none was found so far, and more is to be searched from the cursor on.
    pub complete: Option<bool>,
    /// How far the search has come, with `complete`: when that was stored.
    pub searched_until: Option<Timestamp>,
    /// Records that this call met and left out, because they cannot be read.
    #[serde(default, skip_serializing_if = "is_default")]
    pub unreadable: u64,
}

impl Encoded<Runs> {
    /// Reads the page, and leaves its runs as their text.
    ///
    /// # Errors
    /// 500: it is not what the contract says.
    pub fn records(&self) -> Result<Runs<Encoded<Record>>, ApiError> {
        self.clone().cast::<Runs<Encoded<Record>>>().read()
    }
}

impl From<Runs<Encoded<Record>>> for Encoded<Runs> {
    fn from(page: Runs<Encoded<Record>>) -> Self {
        Encoded::of(&page).cast()
    }
}

/// Which runs are counted. An empty request counts all.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Fields", into = "Fields")]
pub struct CountRequest {
    /// Their tenant; under `_all` all tenants by default.
    pub tenant: Option<Tenant>,
    /// Those that match.
    pub filter: Filter,
    /// Where the previous answer ended; by default the beginning.
    pub cursor: Option<String>,
}

takes! {
    CountRequest: &LISTED.into_iter().filter(|field| *field != "limit").collect::<Vec<_>>();
    fields => Ok(Self { tenant: fields.tenant()?, filter: fields.filter()?, cursor: fields.cursor });
    CountRequest { tenant, filter, cursor } => Self { cursor, ..Self::of_filter(filter, tenant.as_ref()) }
}

/// The runs that one call has counted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Counts {
    /// Where to continue; absent if all runs were counted. The counts of all answers are to be added up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
    /// How many, by state, queue and type.
    pub counts: Vec<Count>,
    /// Records that this call met and did not count, because they cannot be read.
    #[serde(default, skip_serializing_if = "is_default")]
    pub unreadable: u64,
}

/// The runs of one state, queue and type.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Count {
    /// How many there are.
    pub count: u64,
    /// Their queue.
    pub queue: Queue,
    /// Their state.
    pub state: Word<RunState>,
    /// Their type.
    #[serde(rename = "type")]
    pub job_type: JobType,
}
