//! The errors of jobs that are not taken now: another time they may be.

use std::time::Instant;

use longshore_backbone::wire::api::{ApiError, Code};
use longshore_domain::Tenant;
use longshore_domain::admission::Scope;
use longshore_domain::run::whole_millis;

use crate::cluster::waiting::Full;

/// The tenant submits more than its rate limit allows.
pub(super) fn over_limit(tenant: &Tenant, until: Instant) -> ApiError {
    let after = whole_millis(until.saturating_duration_since(Instant::now())).max(1);
    let message = format!("tenant {tenant}: submits more jobs than its rate limit allows");
    ApiError { retry_after_ms: Some(after), ..ApiError::new(Code::RateLimited, message) }
}

/// As many jobs wait as may.
pub(super) fn too_many_wait(Full { scope, max }: &Full) -> ApiError {
    let setting = match scope {
        Scope::Queue(queue) => format!("queues.{queue}.max_waiting"),
        Scope::Tenant(tenant) => format!("tenants.{tenant}.max_waiting"),
    };
    ApiError::unavailable(format!("{scope}: {max} jobs wait, and no more may ({setting}); try again later"))
}
