//! Limits how many callers may wait for runs' ends. Each wait keeps a subscription and a task, so waits are bounded,
//! for each tenant and for the node. So are calls that work slowly, at a rate: each keeps one of the node's places for
//! requests.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use longshore_backbone::wire::api::{ApiError, Code};

use crate::runtime::Unpoisoned as _;

/// When the caller may try again.
const COME_AGAIN_MS: u64 = 1_000;

/// How many calls of a kind there may be.
#[derive(Debug)]
pub(crate) struct Bounds {
    per_tenant: usize,
    per_node: usize,
    what: &'static str,
    /// What to do instead.
    hint: &'static str,
}

/// Of waits for runs' ends.
pub(crate) const WAITS: Bounds = Bounds {
    per_tenant: 1_024,
    per_node: 16_384,
    what: "waits for runs",
    hint: "follow the run's events instead: that takes no place on a node",
};
/// Of calls that work at the rate that their clients want. Half of a node's places for requests stay free of them.
pub(crate) const PACED: Bounds = Bounds {
    per_tenant: 16,
    per_node: 512,
    what: "calls with rate_per_s",
    hint: "wait for one of them, or call at a higher rate",
};

/// How many calls of a kind there are of each tenant.
#[derive(Debug)]
pub(crate) struct WaitPermits {
    bounds: &'static Bounds,
    by_tenant: Mutex<HashMap<String, usize>>,
}

/// A wait; over when this is dropped.
#[derive(Debug)]
pub(crate) struct WaitPermit {
    waits: Arc<WaitPermits>,
    tenant: String,
}

impl WaitPermits {
    pub(crate) fn of(bounds: &'static Bounds) -> Arc<Self> {
        Arc::new(Self { bounds, by_tenant: Mutex::default() })
    }

    /// Adds a call.
    ///
    /// # Errors
    /// 429 if the tenant has too many already, 503 if the node has.
    pub(crate) fn enter(self: &Arc<Self>, tenant: &str) -> Result<WaitPermit, ApiError> {
        let Bounds { per_tenant, per_node, what, hint } = *self.bounds;
        let mut by_tenant = self.by_tenant.lock().unpoisoned();
        let (own, all) = (by_tenant.get(tenant).copied().unwrap_or(0), by_tenant.values().sum::<usize>());
        let refused = |code, whose: &str, max: usize| ApiError {
            retry_after_ms: Some(COME_AGAIN_MS),
            ..ApiError::new(code, format!("{whose}: {max} {what} on this node already")).hint(hint)
        };
        if own >= per_tenant {
            return Err(refused(Code::RateLimited, &format!("tenant {tenant}"), per_tenant));
        }
        if all >= per_node {
            return Err(refused(Code::Unavailable, "all tenants together", per_node));
        }
        by_tenant.insert(tenant.to_owned(), own + 1);
        Ok(WaitPermit { waits: Arc::clone(self), tenant: tenant.to_owned() })
    }
}

impl Drop for WaitPermit {
    fn drop(&mut self) {
        let mut by_tenant = self.waits.by_tenant.lock().unpoisoned();
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
        let waits = WaitPermits::of(&WAITS);
        let mut own: Vec<_> = (0..WAITS.per_tenant).map(|_| waits.enter("acme").unwrap()).collect();
        let refused = waits.enter("acme").unwrap_err();
        assert_eq!((refused.code, refused.retry_after_ms), (429, Some(COME_AGAIN_MS)));
        let others =
            (0..WAITS.per_node - WAITS.per_tenant).map(|number| waits.enter(&format!("t{}", number % 100)).unwrap());
        let others: Vec<_> = others.collect();
        assert_eq!(waits.enter("one-more").unwrap_err().code, 503);
        own.pop();
        assert!(waits.enter("acme").is_ok());
        drop((own, others));
        assert!(waits.by_tenant.lock().unwrap().is_empty(), "tenants without waits are forgotten");
    }

    #[test]
    fn one_tenant_cannot_take_all_places_by_slow_calls() {
        let paced = WaitPermits::of(&PACED);
        let enter = |number: usize| paced.enter(&format!("t{number}"));
        let own: Vec<_> = (0..PACED.per_tenant).map(|_| enter(0).unwrap()).collect();
        let refused = enter(0).unwrap_err();
        let says = "tenant t0: 16 calls with rate_per_s on this node already";
        assert_eq!((refused.code, refused.message.as_str()), (429, says));
        let others = (PACED.per_tenant..PACED.per_node).map(|number| enter(1 + number % 100).unwrap());
        let others: Vec<_> = others.collect();
        assert_eq!(enter(200).unwrap_err().code, 503);
        drop((own, others));
        assert!(enter(0).is_ok());
    }
}
