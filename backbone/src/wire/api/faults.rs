//! Faults on purpose: set for a type and a time, to rehearse failure.

use longshore_domain::fault::{Fault, FaultKind};
use longshore_domain::{JobType, SmolStr, Timestamp};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use super::Word;

/// A fault that attempts are to meet. It takes the place of the one of the same type and kind.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SetFaultRequest {
    /// Attempts of this type.
    #[serde(rename = "type", deserialize_with = "super::request::job_type")]
    pub job_type: JobType,
    /// What goes wrong.
    pub kind: FaultKind,
    /// The share of the attempts: above 0, at most 1, which is the default.
    pub probability: Option<f64>,
    /// Of `latency`: how many milliseconds later the handler is called.
    pub delay_ms: Option<u64>,
    /// Of `fail_at_step`: the name of the step.
    pub step: Option<SmolStr>,
    /// When it ends: within 24 hours.
    pub until: Timestamp,
    /// On each node it ends after so many attempts.
    pub limit: Option<u64>,
}

/// Which faults are to end. An empty request ends all.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ClearFaultsRequest {
    /// Those of this type.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub job_type: Option<JobType>,
    /// Those of this kind.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<FaultKind>,
}

/// A fault as an answer shows it.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FaultStatus {
    /// How many milliseconds later the handler is called.
    pub delay_ms: Option<u64>,
    /// What goes wrong.
    pub kind: Word<FaultKind>,
    /// On each node it ends after so many attempts.
    pub limit: Option<u64>,
    /// The share of the attempts that meet it.
    pub probability: f64,
    /// The name of the step.
    pub step: Option<SmolStr>,
    /// Whose attempts meet it.
    #[serde(rename = "type")]
    pub job_type: JobType,
    /// When it ends.
    pub until: Timestamp,
}

impl FaultStatus {
    /// The fault of a type and a kind.
    pub fn of(job_type: JobType, kind: FaultKind, fault: Fault) -> Self {
        let Fault { probability, delay_ms, step, until, limit } = fault;
        Self { delay_ms, kind: Word::Known(kind), limit, probability, step, job_type, until }
    }
}

/// The faults that are set.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Faults {
    /// By type and kind.
    pub faults: Vec<FaultStatus>,
}

/// A fault that was set.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FaultSet {
    /// The fault.
    pub fault: FaultStatus,
    /// Nodes that have not said within a second that they know of it.
    pub unconfirmed: Vec<String>,
}

/// The faults that were ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FaultsCleared {
    /// As they were.
    pub faults: Vec<FaultStatus>,
    /// Nodes that have not said within a second that they know of it.
    pub unconfirmed: Vec<String>,
}
