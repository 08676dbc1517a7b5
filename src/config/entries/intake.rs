//! The settings of the intake: which jobs are taken, and when one is the same as another.

use std::time::Duration;

use longshore_backbone::Storage;
use longshore_domain::policy::{OnMismatch, TypePolicy};

use crate::config::kind::{ReleasingEnd, Size, Token, TypeName};
use crate::config::schema::Field::Setting as One;
use crate::config::schema::{Entry, Table};

// [idempotency]

pub(super) static IDEMPOTENCY: Table = Table::of(
    "Idempotency keys: within the window, one key is one run. The same on all nodes of a cluster.",
    &[One(&IDEMPOTENCY_WINDOW), One(&IDEMPOTENCY_RELEASE_ON), One(&IDEMPOTENCY_ON_MISMATCH)],
);

pub(crate) static IDEMPOTENCY_WINDOW: Entry<Duration> =
    Entry::new("window", || Storage::default().idempotency_window, "How long a key holds, if the client does not say.")
        .at_least(|| Duration::from_secs(1));

pub(crate) static IDEMPOTENCY_RELEASE_ON: Entry<Vec<ReleasingEnd>> =
    Entry::new("release_on", Vec::new, "Ends of a run that free its key before the window is over.")
        .example("[\"dead\", \"cancelled\", \"expired\"]");

pub(crate) static IDEMPOTENCY_ON_MISMATCH: Entry<OnMismatch> = Entry::new(
    "on_mismatch",
    OnMismatch::default,
    "If a key is submitted again with another type or payload: \"reject\" answers 409 idempotency_mismatch, \"return\" \
     answers with the key's run, as if the jobs were the same.",
);

// [admission]

pub(super) static ADMISSION: Table = Table::of(
    "Which jobs are taken. submit refuses the others; those that are published all the same become dead letters. The same \
     on all nodes of a cluster.",
    &[One(&ADMISSION_TYPES), One(&ADMISSION_TENANTS)],
);

pub(crate) static ADMISSION_TYPES: Entry<Vec<TypeName>> =
    Entry::new("types", Vec::new, "The only types that are taken; any, if nothing is set.")
        .example("[\"email.send\", \"report.render\"]");

pub(crate) static ADMISSION_TENANTS: Entry<Vec<Token>> =
    Entry::new("tenants", Vec::new, "The only tenants whose jobs are taken; any, if nothing is set.")
        .example("[\"default\", \"acme\"]");

// of a type

pub(crate) static PAYLOAD_MAX: Entry<Option<Size>> = Entry::new(
    "payload_max",
    || TypePolicy::default().payload_max.map(Size),
    "The largest payload of a job; if it is not set, what the server's max_payload allows.",
)
.example("\"64KiB\"")
.at_least(|| Some(Size(1)));
