//! The settings of the intake: which jobs are taken, and when one is the same as another.

use std::time::Duration;

use longshore_backbone::Storage;
use longshore_domain::JobType;
use longshore_domain::policy::OnMismatch;

use crate::config::kind::{ReleasingEnd, Token};
use crate::config::schema::settings;

settings! {
    /// Idempotency keys: within the window, one key is one run. The same on all nodes of a cluster.
    IDEMPOTENCY: IdempotencyEntries, IDEMPOTENCY_TABLE;

    /// How long a key holds, if the client does not say.
    window: Duration = Storage::default().idempotency_window, at_least(|| Duration::from_secs(1));
    /// Ends of a run that free its key before the window is over.
    release_on: Vec<ReleasingEnd>, example("[\"dead\", \"cancelled\", \"expired\"]");
    /// If a key is submitted again with another type or payload: "reject" answers 409 idempotency_mismatch, "return"
    /// answers with the key's run, as if the jobs were the same.
    on_mismatch: OnMismatch;
}

settings! {
    /// Which jobs are taken. submit refuses the others; those that are published all the same become dead letters. The
    /// same on all nodes of a cluster.
    ADMISSION: AdmissionEntries, ADMISSION_TABLE;

    /// The only types that are taken; any, if nothing is set.
    types: Vec<JobType>, example("[\"email.send\", \"report.render\"]");
    /// The only tenants whose jobs are taken; any, if nothing is set.
    tenants: Vec<Token>, example("[\"default\", \"acme\"]");
}
