//! Circuit breakers: which are not idle, and operators' orders to them.

use longshore_domain::breaker::record::{Breaker, Cause, Circuit};
use longshore_domain::{JobType, SmolStr, Tenant, Timestamp};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use super::Word;

/// Which breakers. An empty request lists all.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct BreakersRequest {
    /// Of this tenant; under `_all` of all tenants by default.
    pub tenant: Option<Tenant>,
    /// Of this type.
    #[serde(rename = "type")]
    pub job_type: Option<JobType>,
    /// Entries per page: 100 by default, at most 500.
    pub limit: Option<u64>,
    /// Where the previous page ended.
    pub cursor: Option<String>,
}

/// Which breaker is closed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ResetRequest {
    /// The tenant.
    pub tenant: Tenant,
    /// The type.
    #[serde(rename = "type", deserialize_with = "super::request::job_type")]
    pub job_type: JobType,
    /// The limit key, of a type that has a breaker per key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<SmolStr>,
}

/// Which breaker is opened.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TripRequest {
    /// The tenant.
    pub tenant: Tenant,
    /// The type.
    #[serde(rename = "type", deserialize_with = "super::request::job_type")]
    pub job_type: JobType,
    /// The limit key, of a type that has a breaker per key.
    pub key: Option<SmolStr>,
    /// Until when it is open; by default for the cool-down of its settings.
    pub until: Option<Timestamp>,
}

/// Some breakers, by tenant, type and key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Breakers {
    /// The breakers.
    pub breakers: Vec<BreakerStatus>,
    /// Where the next page begins; absent: this is the last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}

/// A breaker as an answer shows it.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BreakerStatus {
    /// What opened it, unless it is closed.
    pub cause: Option<Word<Cause>>,
    /// Failures in a row while it is closed, and those that opened it while it is not.
    pub failures: u32,
    /// The limit key, of a type that has a breaker per key.
    pub key: Option<SmolStr>,
    /// Jobs that run as probes.
    pub probes: u32,
    /// Since when it is in this state.
    pub since: Timestamp,
    /// `closed`, `open` or `half_open`.
    pub state: Word<BreakerState>,
    /// Probes that have succeeded since it is half-open.
    pub successes: u32,
    /// The tenant.
    pub tenant: Tenant,
    /// How often it has opened since it was last closed.
    pub times_opened: u32,
    /// The type.
    #[serde(rename = "type")]
    pub job_type: JobType,
    /// Until when it is open.
    pub until: Option<Timestamp>,
}

/// The state of a breaker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum BreakerState {
    /// Jobs start.
    Closed,
    /// No job starts.
    Open,
    /// Some jobs start as probes.
    HalfOpen,
}

impl From<Breaker> for BreakerStatus {
    fn from(breaker: Breaker) -> Self {
        let failures = breaker.failures();
        let (state, until, cause, times_opened) = match &breaker.state {
            Circuit::Closed { .. } => (BreakerState::Closed, None, None, 0),
            Circuit::Open { until, cause, times, .. } => (BreakerState::Open, Some(*until), Some(*cause), *times),
            Circuit::HalfOpen { times, .. } => (BreakerState::HalfOpen, None, None, *times),
        };
        let (successes, probes) = match &breaker.state {
            Circuit::HalfOpen { successes, probes, .. } => {
                (*successes, u32::try_from(probes.len()).unwrap_or(u32::MAX))
            }
            _ => (0, 0),
        };
        Self {
            cause: cause.map(Word::Known),
            failures,
            key: breaker.of.key,
            probes,
            since: breaker.since,
            state: Word::Known(state),
            successes,
            tenant: breaker.of.tenant,
            times_opened,
            job_type: breaker.of.job_type,
            until,
        }
    }
}
