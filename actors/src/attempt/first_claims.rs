//! Which of a queue's jobs comes first for a key or an id that several of them have.
//!
//! Workers that are given such jobs within a moment of each other begin them in any order. So those that were taken out
//! of the buffer later wait until the first of them has made its claim: of jobs that were published one after the
//! other, the first is the run and the others are its duplicates. It decides nothing: the claims do, also those of
//! other nodes. Once the first has claimed, the others do so side by side.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::{Arc, Mutex};

use longshore_domain::Job;
use tokio_util::sync::CancellationToken;

use crate::runtime::Unpoisoned as _;

/// The first jobs whose claims are under way, by what they claim: no more than a queue has workers.
#[derive(Debug, Default)]
pub(crate) struct FirstClaims(Mutex<HashMap<u64, CancellationToken>>);

/// A job's place among those that claim the same.
#[derive(Debug)]
pub(crate) enum ClaimPlace {
    /// The first, until this is dropped.
    First { _claim: FirstClaim },
    /// Behind the first, which has claimed once this is cancelled.
    Behind(CancellationToken),
}

/// The first claim; dropped, it is made or given up.
#[derive(Debug)]
pub(crate) struct FirstClaim {
    among: Arc<FirstClaims>,
    claims: u64,
}

impl FirstClaims {
    /// The place of a job that is about to begin; `None`: it claims nothing that another may claim, too.
    pub(crate) fn enter(self: &Arc<Self>, job: &Job) -> Option<ClaimPlace> {
        let claims = claimed_by(job)?;
        let mut first = self.0.lock().unpoisoned();
        if let Some(first) = first.get(&claims) {
            return Some(ClaimPlace::Behind(first.clone()));
        }
        first.insert(claims, CancellationToken::new());
        Some(ClaimPlace::First { _claim: FirstClaim { among: Arc::clone(self), claims } })
    }
}

impl ClaimPlace {
    /// Returns once no earlier job is about to claim the same.
    pub(crate) async fn comes(&self) {
        if let Self::Behind(first) = self {
            first.cancelled().await;
        }
    }
}

impl Drop for FirstClaim {
    fn drop(&mut self) {
        if let Some(first) = self.among.0.lock().unpoisoned().remove(&self.claims) {
            first.cancel();
        }
    }
}

/// The key of a job, or else its own id. Two that have the same hash by chance wait for each other in vain, no more.
fn claimed_by(job: &Job) -> Option<u64> {
    let options = job.options.as_ref()?;
    let mut hasher = DefaultHasher::new();
    job.tenant.hash(&mut hasher);
    match &options.idempotency_key {
        Some(key) => (true, key.as_str()).hash(&mut hasher),
        None if options.own_run_id => (false, job.run_id.as_str()).hash(&mut hasher),
        None => return None,
    }
    Some(hasher.finish())
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;
    use longshore_domain::{JobOptions, Tenant};

    use super::*;

    fn job(tenant: &str, key: Option<&str>, own_id: Option<&str>) -> Job {
        let options = JobOptions {
            idempotency_key: key.map(str::to_owned),
            own_run_id: own_id.is_some(),
            ..JobOptions::default()
        };
        Job {
            tenant: Tenant::parse(tenant).unwrap(),
            options: Some(Box::new(options)),
            ..crate::tests::job("a", own_id.unwrap_or("main-p5-1"))
        }
    }

    #[test]
    fn later_jobs_wait_for_the_first_alone_and_others_for_nobody() {
        let claims = Arc::new(FirstClaims::default());
        let enter = |tenant, key, own_id| claims.enter(&job(tenant, key, own_id));
        let has_come = |place: &Option<ClaimPlace>| place.as_ref().unwrap().comes().now_or_never().is_some();
        let first = enter("a", Some("k"), None);
        let later = [enter("a", Some("k"), Some("x")), enter("a", Some("k"), None)];
        assert!(has_come(&first) && !later.iter().any(has_come));
        assert!(
            [("b", Some("k"), None), ("a", Some("l"), None), ("a", None, Some("k"))]
                .into_iter()
                .all(|(tenant, key, own_id)| has_come(&enter(tenant, key, own_id)))
        );
        assert!(enter("a", None, None).is_none());

        drop(first);
        assert!(later.iter().all(has_come));
        assert!(matches!(enter("a", Some("k"), None), Some(ClaimPlace::First { .. })));
        drop(later);
        assert!(claims.0.lock().unpoisoned().is_empty());
    }
}
