//! Debouncing: of the jobs of a key that follow each other soon, the last one runs. It adds nothing to keys but the
//! bound on the whole wait: the key is free again once its job starts, each job replaces the one before, and waits in
//! turn.

use std::time::Duration;

use longshore_backbone::wire::api::{ApiError, SubmitRequest};
use longshore_domain::job::{Unique, When};
use longshore_domain::{JobOptions, Timestamp};

use crate::request::{positive, span, wrong};

/// How long a job waits for others of its key, each of which takes the place of the one before.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Debounced {
    wait: Duration,
    max_wait: Option<Duration>,
}

impl Debounced {
    /// What a submission asks for. It takes the place of the fields of keys and times.
    pub(super) fn read(submit: &SubmitRequest) -> Result<Option<Self>, ApiError> {
        let Some(asked) = &submit.debounce else { return Ok(None) };
        let beside = [
            ("idempotency_key", submit.idempotency_key.is_some()),
            ("idempotency_window_ms", submit.idempotency_window_ms.is_some()),
            ("unique", submit.unique.is_some()),
            ("on_conflict", submit.on_conflict.is_some()),
            ("run_id", submit.run_id.is_some()),
            ("run_at", submit.run_at.is_some()),
            ("delay_ms", submit.delay_ms.is_some()),
        ];
        if let Some((field, _)) = beside.iter().find(|(_, is_there)| *is_there) {
            return Err(wrong("debounce", format!("stands beside {field}, which it takes the place of")));
        }
        let wait = positive("debounce.wait_ms", asked.wait_ms)?;
        let max_wait = asked.max_wait_ms.map(|ms| span("debounce.max_wait_ms", ms)).transpose()?;
        if max_wait.is_some_and(|most| most < wait) {
            return Err(wrong("debounce.max_wait_ms", "is shorter than wait_ms"));
        }
        Ok(Some(Self { wait, max_wait }))
    }

    /// Sets what it stands for; the key is set already.
    pub(super) fn set(self, options: &mut JobOptions) {
        (options.unique, options.run_at) = (Unique::Queued, Some(When::After(self.wait)));
    }

    /// By when the last of the jobs is to start, if the first one comes now.
    pub(super) fn starts_by(&self, now: Timestamp) -> Option<Timestamp> {
        self.max_wait.map(|wait| now.plus(wait))
    }
}
