//! The settings of the audit: `[audit]`.

use std::time::Duration;

use longshore_backbone::Storage;

use crate::config::kind::{Size, Text};
use crate::config::schema::Field::Setting as One;
use crate::config::schema::{Entry, Table};

pub(super) static AUDIT: Table = Table::of(
    "The audit: what was asked of the API beyond reading and submitting, by whom, and how it was answered.",
    &[One(&MAX_AGE), One(&MAX_BYTES), One(&FILE), One(&EVENTS_FILE), One(&FILE_MAX_BYTES), One(&FILES)],
);

pub(crate) static MAX_AGE: Entry<Duration> =
    Entry::new("max_age", || Storage::default().audit_max_age, "How long entries are kept in NATS.")
        .at_least(|| Duration::from_secs(120));

pub(crate) static MAX_BYTES: Entry<Size> = Entry::new(
    "max_bytes",
    || Size(Storage::default().audit_max_bytes),
    "At most so many bytes of entries in NATS; the oldest are dropped first.",
)
.at_least(|| Size(1 << 20));

pub(crate) static FILE: Entry<Option<Text>> =
    Entry::new("file", || None, "This node also appends its entries to this file, a JSON object a line.")
        .example("\"/var/log/longshore/audit.jsonl\"");

pub(crate) static EVENTS_FILE: Entry<Option<Text>> = Entry::new(
    "events_file",
    || None,
    "This node also writes the event log, with every event of the whole cluster, into this file, a JSON object a line.",
)
.example("\"/var/log/longshore/events.jsonl\"");

pub(crate) static FILE_MAX_BYTES: Entry<Size> = Entry::new(
    "file_max_bytes",
    || Size(64 << 20),
    "Beyond so many bytes such a file gets .1 behind its name, that of before .2, and so on.",
)
.at_least(|| Size(1 << 10));

pub(crate) static FILES: Entry<u32> =
    Entry::new("files", || 10, "So many of each are kept, the current one included.").at_least(|| 1).at_most(|| 1_000);
