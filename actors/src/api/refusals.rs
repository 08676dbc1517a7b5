//! The errors of jobs that are not taken now: another time they may be.

use std::time::Instant;

use longshore_backbone::wire::api::{ApiError, Code};
use longshore_domain::Tenant;
use longshore_domain::admission::RoomScope;
use longshore_domain::run::whole_millis;

use crate::cluster::waiting::Full;

pub(super) fn over_limit(tenant: &Tenant, until: Instant) -> ApiError {
    let after = whole_millis(until.saturating_duration_since(Instant::now())).max(1);
    let message = format!("tenant {tenant}: submits more jobs than its rate limit allows");
    ApiError { retry_after_ms: Some(after), ..ApiError::new(Code::RateLimited, message) }
}

pub(super) fn too_many_wait(Full { scope, max }: &Full) -> ApiError {
    let setting = match scope {
        RoomScope::Queue(queue) => format!("queues.{queue}.max_waiting"),
        RoomScope::Tenant(tenant) => format!("tenants.{tenant}.max_waiting"),
    };
    ApiError::unavailable(format!("{scope}: at most {max} jobs may wait ({setting}); try again later"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use longshore_domain::Queue;
    use std::time::Duration;

    #[test]
    fn a_client_over_its_rate_learns_when_to_come_again_and_never_at_once() {
        let tenant = Tenant::parse("acme").unwrap();
        let error = over_limit(&tenant, Instant::now() + Duration::from_secs(60));
        assert_eq!((error.code, error.message.starts_with("tenant acme: ")), (429, true));
        assert!((55_000..=60_000).contains(&error.retry_after_ms.unwrap()), "{error:?}");
        assert_eq!(over_limit(&tenant, Instant::now()).retry_after_ms, Some(1));
    }

    #[test]
    fn a_full_queue_and_a_full_tenant_are_distinguished_by_the_setting_that_bounds_them() {
        let queue = too_many_wait(&Full { scope: RoomScope::Queue(Queue::main()), max: 3 });
        let message = "queue main: at most 3 jobs may wait (queues.main.max_waiting); try again later";
        assert_eq!((queue.code, queue.message.as_str()), (503, message));
        let tenant = too_many_wait(&Full { scope: RoomScope::Tenant(Tenant::parse("acme").unwrap()), max: 3 });
        assert!(tenant.message.contains("(tenants.acme.max_waiting)"), "{tenant}");
    }
}
