//! The settings of the audit: `[audit]`.

use std::time::Duration;

use longshore_backbone::Storage;

use crate::config::kind::{Size, Text};
use crate::config::schema::settings;

settings! {
    /// The audit: what was asked of the API beyond reading and submitting, by whom, and how it was answered.
    AUDIT: AuditEntries, AUDIT_TABLE;

    /// How long entries are kept in NATS.
    max_age: Duration = Storage::default().audit_max_age, at_least(|| Duration::from_secs(120));
    /// At most so many bytes of entries in NATS; the oldest are dropped first.
    max_bytes: Size = Size(Storage::default().audit_max_bytes), at_least(|| Size(1 << 20));
    /// This node also appends its entries to this file, a JSON object a line.
    file: Option<Text>, example("\"/var/log/longshore/audit.jsonl\"");
    /// This node also writes the event log, with every event of the whole cluster, into this file, a JSON object a
    /// line.
    events_file: Option<Text>, example("\"/var/log/longshore/events.jsonl\"");
    /// Beyond so many bytes such a file gets .1 behind its name, that of before .2, and so on.
    file_max_bytes: Size = Size(64 << 20), at_least(|| Size(1 << 10));
    /// So many of each are kept, the current one included.
    files: u32 = 10, at_least(|| 1), at_most(|| 1_000);
}
