//! Limits how many callers may wait for runs' ends. Each wait keeps a subscription and a task, so waits are bounded,
//! for each tenant and for the node.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use longshore_backbone::wire::api::{ApiError, Code};

use crate::runtime::Unpoisoned as _;

const MAX_PER_TENANT: usize = 1_024;
const MAX_PER_NODE: usize = 16_384;
/// When the caller may try again.
const COME_AGAIN_MS: u64 = 1_000;

/// How many wait of each tenant.
#[derive(Debug, Default)]
pub(crate) struct WaitPermits(Mutex<HashMap<String, usize>>);

/// A wait; over when this is dropped.
#[derive(Debug)]
pub(crate) struct WaitPermit {
    waits: Arc<WaitPermits>,
    tenant: String,
}

impl WaitPermits {
    /// Adds a wait.
    ///
    /// # Errors
    /// 429 if the tenant has too many already, 503 if the node has.
    pub(crate) fn enter(self: &Arc<Self>, tenant: &str) -> Result<WaitPermit, ApiError> {
        let mut by_tenant = self.0.lock().unpoisoned();
        let (own, all) = (by_tenant.get(tenant).copied().unwrap_or(0), by_tenant.values().sum::<usize>());
        let refused = |code, whose: &str, max: usize| ApiError {
            retry_after_ms: Some(COME_AGAIN_MS),
            ..ApiError::new(code, format!("{whose}: {max} waits for runs on this node already"))
                .hint("follow the run's events instead: that takes no place on a node")
        };
        if own >= MAX_PER_TENANT {
            return Err(refused(Code::RateLimited, &format!("tenant {tenant}"), MAX_PER_TENANT));
        }
        if all >= MAX_PER_NODE {
            return Err(refused(Code::Unavailable, "all tenants together", MAX_PER_NODE));
        }
        by_tenant.insert(tenant.to_owned(), own + 1);
        Ok(WaitPermit { waits: Arc::clone(self), tenant: tenant.to_owned() })
    }
}

impl Drop for WaitPermit {
    fn drop(&mut self) {
        let mut by_tenant = self.waits.0.lock().unpoisoned();
        if let Some(count) = by_tenant.get_mut(&self.tenant) {
            *count -= 1;
            if *count == 0 {
                by_tenant.remove(&self.tenant);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_tenant_cannot_take_all_waits() {
        let waits = Arc::new(WaitPermits::default());
        let mut own: Vec<_> = (0..MAX_PER_TENANT).map(|_| waits.enter("acme").unwrap()).collect();
        let refused = waits.enter("acme").unwrap_err();
        assert_eq!((refused.code, refused.retry_after_ms), (429, Some(COME_AGAIN_MS)));
        let others =
            (0..MAX_PER_NODE - MAX_PER_TENANT).map(|number| waits.enter(&format!("t{}", number % 100)).unwrap());
        let others: Vec<_> = others.collect();
        assert_eq!(waits.enter("one-more").unwrap_err().code, 503);
        own.pop();
        assert!(waits.enter("acme").is_ok());
        drop((own, others));
        assert!(waits.0.lock().unwrap().is_empty(), "tenants without waits are forgotten");
    }
}
