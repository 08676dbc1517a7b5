//! Rate limits: what each allows and what is left of it, and operators' changes while the cluster runs.

use longshore_domain::limit::{RateLimit, Scope, Window};
use longshore_domain::run::whole_millis;
use longshore_domain::{JobType, SmolStr, Tenant, Timestamp};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use super::{ApiError, Word};

/// Which limits. An empty request lists all.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct LimitsRequest {
    /// Entries per page: 100 by default, at most 500.
    pub limit: Option<u64>,
    /// Where the previous page ended.
    pub cursor: Option<String>,
}

/// A limit that is to be another. Exactly one of `type`, `name` and `tenant` says which.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SetLimitRequest {
    /// That of this type.
    #[serde(rename = "type", default)]
    pub job_type: Option<JobType>,
    /// The one of this name, which types share.
    pub name: Option<SmolStr>,
    /// That of this tenant's submissions.
    pub tenant: Option<Tenant>,
    /// Tokens in each span of time: 1 or more.
    pub rate: u32,
    /// The span in milliseconds: 1,000 by default, at least 100, of a window 1,000.
    pub per_ms: Option<u64>,
    /// At most so many at once after a quiet time: as many as `rate` by default. Not of a window.
    pub burst: Option<u32>,
    /// `bucket`, the default, `fixed` or `sliding`.
    pub window: Option<Window>,
}

/// A limit that is to be as configured. Exactly one of `type`, `name` and `tenant` says which.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ResetLimitRequest {
    /// That of this type.
    #[serde(rename = "type", default)]
    pub job_type: Option<JobType>,
    /// The one of this name, which types share.
    pub name: Option<SmolStr>,
    /// That of this tenant's submissions.
    pub tenant: Option<Tenant>,
}

/// Some limits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Limits {
    /// Where the next page begins; absent: this is the last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
    /// The limits: of types, then by name, then of tenants.
    pub limits: Vec<LimitStatus>,
}

/// A limit that was changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LimitChanged {
    /// The limit as it is now.
    pub limit: LimitStatus,
    /// Nodes that have not said within a second that they know of it.
    pub unconfirmed: Vec<String>,
}

/// What a limit allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LimitValues {
    /// Absent for windows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub burst: Option<u32>,
    /// The span in milliseconds.
    pub per_ms: u64,
    /// Tokens in each span.
    pub rate: u32,
    /// How they are counted.
    pub window: Window,
}

impl From<RateLimit> for LimitValues {
    fn from(limit: RateLimit) -> Self {
        let burst = (limit.window == Window::Bucket).then_some(limit.burst);
        Self { burst, per_ms: whole_millis(limit.per), rate: limit.rate, window: limit.window }
    }
}

/// Where a limit was set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SetBy {
    /// In the configuration of the node that answers: its file or its environment.
    Configuration,
    /// By `limits.set`.
    RunTime,
}

/// A limit as an answer shows it.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LimitStatus {
    /// What it is as configured, if something else was set at run time.
    pub configured: Option<LimitValues>,
    /// Nodes that hold tokens of it, or did a moment ago.
    pub holders: u64,
    /// Tokens that are not in nodes' hands. Of those that jobs without a limit key take.
    pub left: Option<u64>,
    /// Its name, if types share it.
    pub name: Option<SmolStr>,
    /// When the next token can be had; absent: at once.
    pub next_at: Option<Timestamp>,
    /// Where it was set; absent if there is none.
    pub origin: Option<Word<SetBy>>,
    /// File and line, or variable, of the node that answers.
    pub set_in: Option<String>,
    /// The tenant whose submissions it limits.
    pub tenant: Option<Tenant>,
    /// The type whose jobs it limits.
    #[serde(rename = "type", default)]
    pub job_type: Option<JobType>,
    /// What it allows; absent if there is none.
    pub values: Option<LimitValues>,
    /// Parked jobs of its types.
    pub waiting: u64,
}

/// The scope that a request names.
fn scope(job_type: Option<JobType>, name: Option<SmolStr>, tenant: Option<Tenant>) -> Result<Scope, ApiError> {
    match (job_type, name, tenant) {
        (Some(job_type), None, None) => Ok(Scope::Type(job_type)),
        (None, Some(name), None) => Ok(Scope::Named(name)),
        (None, None, Some(tenant)) => Ok(Scope::Tenant(tenant)),
        _ => Err(ApiError::malformed("type, name or tenant: exactly one of them says which limit is meant")),
    }
}

impl ResetLimitRequest {
    /// Which limit is meant.
    ///
    /// # Errors
    /// 400: none is named, or several.
    pub fn scope(self) -> Result<Scope, ApiError> {
        scope(self.job_type, self.name, self.tenant)
    }
}

impl SetLimitRequest {
    /// Which limit is meant.
    ///
    /// # Errors
    /// 400: none is named, or several.
    pub fn scope(&self) -> Result<Scope, ApiError> {
        scope(self.job_type.clone(), self.name.clone(), self.tenant.clone())
    }

    /// What it is to allow.
    ///
    /// # Errors
    /// 400: names the field that is wrong.
    pub fn limit(&self) -> Result<RateLimit, ApiError> {
        let window = self.window.unwrap_or_default();
        if self.burst.is_some() && window != Window::Bucket {
            return Err(ApiError::malformed("burst: has no meaning in a window, which allows rate at once"));
        }
        let per = std::time::Duration::from_millis(self.per_ms.unwrap_or(1_000));
        let limit = RateLimit { rate: self.rate, per, burst: self.burst.unwrap_or(self.rate), window };
        limit.check().map(|()| limit).map_err(|(field, reason)| {
            let field = if field == "per" { "per_ms" } else { field };
            ApiError::malformed(format!("{field}: {reason}"))
        })
    }
}
