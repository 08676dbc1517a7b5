//! The wanted configuration of every stream, bucket and consumer, as values.

use std::time::Duration;

use async_nats::datetime::DateTime;
use async_nats::jetstream::consumer::{AckPolicy, DeliverPolicy, pull};
use async_nats::jetstream::stream::{Config, DiscardPolicy, Republish, RetentionPolicy, StorageType};
use longshore_domain::{Queue, QueueLane, Timestamp};

use crate::cluster::breakers;
use crate::cluster::concurrency;
use crate::error::Error;
use crate::messages::size_limits;
use crate::settings::Storage;
use crate::wire::api::WebhookStatus;
use crate::wire::subject::Names;

/// The durable consumer of every lane. Part of the contract: scalers and exporters use the name.
pub const LANE_CONSUMER: &str = "work";
/// The durable consumer of due jobs.
pub const DUE_CONSUMER: &str = "due";

/// How long the server remembers `Nats-Msg-Id`.
const REMEMBERED: Duration = Duration::from_secs(120);
/// Pulls that may wait at one consumer: one per lane and node.
const MAX_WAITING: i64 = 4_096;

const MIB: u64 = 1 << 20;
/// Maximum size of the stream of handlers' last replies.
const REPLIES_BYTES: u64 = 32 * MIB;
const GIB: u64 = 1 << 30;

fn base(storage: &Storage, name: String, subjects: Vec<String>, max_bytes: u64) -> Config {
    Config {
        name,
        subjects,
        // Bounded, like every stream but one: a full disk switches JetStream off until the server is restarted.
        max_bytes: i64::try_from(max_bytes).unwrap_or(i64::MAX),
        max_messages: -1,
        max_messages_per_subject: -1,
        max_consumers: -1,
        max_message_size: -1,
        storage: StorageType::File,
        num_replicas: storage.replicas,
        duplicate_window: REMEMBERED,
        allow_direct: true,
        discard: DiscardPolicy::New,
        ..Config::default()
    }
}

/// A lane: one stream per queue and priority, so that its consumer needs no filter and the server refuses a wrong
/// priority or an undeclared queue at the publish. It also refuses messages that could not be carried on, given the
/// server's `max_payload`; jobs that nodes moved to the lane of returned jobs have the nodes' headers as well.
pub fn lane(names: &Names, storage: &Storage, queue: &Queue, lane: QueueLane, max_payload: usize) -> Config {
    let max = match lane {
        QueueLane::Of(_) => size_limits::in_lane(max_payload),
        QueueLane::Returned => max_payload,
    };
    let subjects = vec![names.lane_subjects(queue, lane)];
    Config {
        retention: RetentionPolicy::WorkQueue,
        max_messages: i64::try_from(storage.jobs_max_messages).unwrap_or(i64::MAX),
        max_message_size: i32::try_from(max).unwrap_or(i32::MAX),
        ..base(storage, names.lane_stream(queue, lane), subjects, storage.jobs_max_bytes)
    }
}

/// Schedules, retries and due jobs. One message per subject: writing a schedule again replaces it.
///
/// The one stream without a bound: the server refuses schedules together with "discard new", and "discard old" under a
/// bound would silently lose the jobs that wait longest.
pub fn schedules(names: &Names, storage: &Storage) -> Config {
    Config {
        retention: RetentionPolicy::WorkQueue,
        discard: DiscardPolicy::Old,
        max_bytes: -1,
        allow_message_schedules: true,
        allow_message_ttl: true,
        // Implied by schedules; set here so that the found configuration equals the wanted one.
        allow_rollup: true,
        ..base(storage, names.schedules_stream(), names.schedules_subjects(), 0)
    }
}

/// A stream that loses its oldest messages, by their age or if they have too many bytes.
fn log(storage: &Storage, name: String, subjects: Vec<String>, max_age: Duration, max_bytes: u64) -> Config {
    Config {
        retention: RetentionPolicy::Limits,
        discard: DiscardPolicy::Old,
        max_age,
        ..base(storage, name, subjects, max_bytes)
    }
}

/// The event log.
pub fn events(names: &Names, storage: &Storage) -> Config {
    let subjects = vec![names.event_log("*")];
    log(storage, names.events_stream(), subjects, storage.events_max_age, storage.events_max_bytes)
}

/// Dead letters.
pub fn dead_letters(names: &Names, storage: &Storage) -> Config {
    let subjects = vec![names.dead_letters_all()];
    log(storage, names.dlq_stream(), subjects, storage.dlq_max_age, storage.dlq_max_bytes)
}

/// The audit. No user may take an entry out before its time.
pub fn audit(names: &Names, storage: &Storage) -> Config {
    let subjects = vec![names.audit("*")];
    let log = log(storage, names.audit_stream(), subjects, storage.audit_max_age, storage.audit_max_bytes);
    Config { deny_delete: true, deny_purge: true, ..log }
}

/// Parked jobs, which wait for what all jobs of their kind wait for. No consumer: they are read and removed one by one.
/// As many as a lane holds, so that a flood of one kind still ends in a full lane, which refuses it.
pub fn parked(names: &Names, storage: &Storage) -> Config {
    Config {
        retention: RetentionPolicy::Limits,
        max_messages: i64::try_from(storage.jobs_max_messages).unwrap_or(i64::MAX),
        ..base(storage, names.parked_stream(), vec![names.parked_all()], storage.jobs_max_bytes)
    }
}

/// A key-value bucket with time limits per key. Without delete markers: one would make a compare-and-set on "nothing"
/// fail after a record has expired.
pub fn bucket(names: &Names, storage: &Storage, name: &str, max_bytes: u64) -> Config {
    Config {
        retention: RetentionPolicy::Limits,
        max_messages_per_subject: 1,
        allow_rollup: true,
        deny_delete: true,
        allow_message_ttl: true,
        ..base(storage, names.bucket_stream(name), vec![format!("$KV.{}.>", names.bucket(name))], max_bytes)
    }
}

/// All streams and buckets that are stored in files, but the lanes.
pub fn streams(names: &Names, storage: &Storage) -> Vec<Config> {
    let bucket = |name, max_bytes| bucket(names, storage, name, max_bytes);
    // The server republishes each version of what stands under these keys, so that every node knows of a breaker at
    // once, and a node that waits for a slot that one is free.
    let republished = |name, max_bytes, keys, destination| {
        let source = names.key(name, keys);
        Config { republish: Some(Republish { source, destination, headers_only: false }), ..bucket(name, max_bytes) }
    };
    vec![
        schedules(names, storage),
        parked(names, storage),
        events(names, storage),
        dead_letters(names, storage),
        audit(names, storage),
        // About 1.5 KiB for each record that is to be kept, at least a GiB.
        bucket("runs", (storage.runs_max_records * 1_536).max(GIB)),
        bucket("checkpoints", 512 * MIB),
        bucket("idempotency", 512 * MIB),
        republished("control", storage.control_max_bytes, "breakers.>", breakers::changes(names)),
        // Apart from the control bucket: a tenant's flood of keys or schedules must not keep nodes from writing what
        // they share.
        republished("concurrency", storage.concurrency_max_bytes, "slots.>", concurrency::changes(names)),
        bucket("schedules", 128 * MIB),
    ]
}

/// The last message to each call of a remote handler, for a while and in the server's memory: messages that are lost
/// with a connection are looked up here. It sends no publish acks, because a handler may send its signals as requests.
pub fn replies(names: &Names, storage: &Storage) -> Config {
    let subjects = vec![names.replies("*.*"), names.replies("*.*.sent")];
    Config {
        storage: StorageType::Memory,
        num_replicas: 1,
        no_ack: true,
        allow_direct: false,
        max_messages_per_subject: 1,
        ..log(storage, names.replies_stream(), subjects, REMEMBERED, REPLIES_BYTES)
    }
}

/// The consumer of a lane. `ack_wait` is the lease; the pulls bound how many jobs a node holds, not the consumer.
pub fn lane_consumer(storage: &Storage) -> pull::Config {
    pull::Config {
        durable_name: Some(LANE_CONSUMER.to_owned()),
        ack_policy: AckPolicy::Explicit,
        ack_wait: storage.lease,
        // With a bound the server would stop delivering a job, and no node would see it; the record counts attempts.
        max_deliver: -1,
        max_ack_pending: -1,
        max_waiting: MAX_WAITING,
        ..pull::Config::default()
    }
}

/// The consumer of due jobs.
pub fn due_consumer(names: &Names, storage: &Storage) -> pull::Config {
    pull::Config {
        durable_name: Some(DUE_CONSUMER.to_owned()),
        filter_subject: names.due_all(),
        ..lane_consumer(storage)
    }
}

/// The consumer by which a webhook reads its tenant's event log. Its name has the time at which the webhook was made,
/// so that a webhook never gets what was meant for another one of its id.
pub fn webhook_consumer_name(webhook: &WebhookStatus) -> String {
    let WebhookStatus { tenant, id, created_at, .. } = webhook;
    // No name has this character.
    format!("webhook={tenant}={id}={}", created_at.millis())
}

/// The consumer of a webhook: the events since it was made. If it was lost, it begins there again.
///
/// # Errors
/// The time cannot be written.
pub fn webhook_consumer(names: &Names, storage: &Storage, webhook: &WebhookStatus) -> Result<pull::Config, Error> {
    let nanos = i128::from(webhook.created_at.millis()) * 1_000_000;
    let start_time = DateTime::from_unix_timestamp_nanos(nanos)
        .map_err(|error| Error::Read { subject: webhook_consumer_name(webhook), source: Box::new(error) })?;
    Ok(pull::Config {
        durable_name: Some(webhook_consumer_name(webhook)),
        filter_subject: names.event_log(webhook.tenant.as_str()),
        deliver_policy: DeliverPolicy::ByStartTime { start_time },
        ..lane_consumer(storage)
    })
}

/// A setting of a stream that is not as wanted.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "its name and values")]
pub struct Difference {
    pub setting: &'static str,
    pub found: String,
    pub wanted: String,
}

/// How a found stream must be changed to be as wanted.
#[derive(Debug, PartialEq)]
#[expect(missing_docs, reason = "each variant says what its fields are")]
pub enum StreamChange {
    /// It is as wanted, except for settings that are kept because they hold more.
    None { kept: Vec<Difference> },
    /// It can be updated, to a configuration in which these settings change.
    Update { to: Box<Config>, changed: Vec<Difference> },
    /// It cannot be updated, because of this setting.
    Impossible(Difference),
}

/// A limit as a number; a limit that is not set is the largest.
fn bound(limit: i64) -> i64 {
    if limit <= 0 { i64::MAX } else { limit }
}

fn difference(setting: &'static str, found: impl std::fmt::Debug, wanted: impl std::fmt::Debug) -> Difference {
    Difference { setting, found: format!("{found:?}"), wanted: format!("{wanted:?}") }
}

/// Keeps what was found of a setting if it holds more than is wanted.
fn keep<T: Copy + std::fmt::Debug, S: PartialOrd>(
    kept: &mut Vec<Difference>,
    setting: &'static str,
    found: T,
    wanted: &mut T,
    size: impl Fn(T) -> S,
) {
    if size(found) > size(*wanted) {
        kept.push(difference(setting, found, *wanted));
        *wanted = found;
    }
}

/// Compares the found configuration with the wanted one. Settings that Longshore does not set stay as they were found.
/// So do settings that hold more than is wanted, unless they may shrink: a node with outdated settings must not throw
/// away what others keep.
pub fn change(found: &Config, wanted: &Config, allow_shrink: bool) -> StreamChange {
    if found.retention != wanted.retention {
        return StreamChange::Impossible(difference("retention", found.retention, wanted.retention));
    }
    if found.storage != wanted.storage {
        return StreamChange::Impossible(difference("storage", found.storage, wanted.storage));
    }
    let sorted = |subjects: &[String]| {
        let mut sorted = subjects.to_vec();
        sorted.sort();
        sorted
    };
    if sorted(&found.subjects) != sorted(&wanted.subjects) {
        // Another program owns it: if Longshore took it over, it would lose its purpose.
        return StreamChange::Impossible(difference("subjects", &found.subjects, &wanted.subjects));
    }
    let mut wanted = wanted.clone();
    let mut kept = Vec::new();
    if !allow_shrink {
        let age = |age: Duration| if age.is_zero() { Duration::MAX } else { age };
        keep(&mut kept, "replicas", found.num_replicas, &mut wanted.num_replicas, |replicas| replicas);
        keep(&mut kept, "max_bytes", found.max_bytes, &mut wanted.max_bytes, bound);
        keep(&mut kept, "max_msgs", found.max_messages, &mut wanted.max_messages, bound);
        keep(&mut kept, "max_age", found.max_age, &mut wanted.max_age, age);
    }
    let (next, changed) = updated(found, &wanted);
    if next == *found { StreamChange::None { kept } } else { StreamChange::Update { to: Box::new(next), changed } }
}

/// The found configuration with the settings that Longshore sets, and the differences between the two.
fn updated(found: &Config, wanted: &Config) -> (Config, Vec<Difference>) {
    let mut next = found.clone();
    let mut changed = Vec::new();
    macro_rules! set {
        ($($field:ident),*) => {$(
            if next.$field != wanted.$field {
                changed.push(difference(stringify!($field), &next.$field, &wanted.$field));
                next.$field = wanted.$field.clone();
            }
        )*};
    }
    set!(max_bytes, max_messages, max_messages_per_subject, max_message_size, max_age, num_replicas);
    set!(duplicate_window, allow_direct, discard, allow_message_schedules, allow_message_ttl, allow_rollup, republish);
    (next, changed)
}

/// Where the sequences of a stream begin that is made again at that time.
pub(crate) fn first_sequence(at: Timestamp) -> u64 {
    u64::try_from(at.millis()).unwrap_or(0).saturating_mul(1_000).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_as_wanted_is_left_alone_and_the_rest_is_updated_or_refused() {
        let (names, storage) = (Names::new("longshore"), Storage::default());
        let wanted = lane(&names, &storage, &Queue::main(), longshore_domain::Priority::DEFAULT.into(), 1 << 20);
        let as_wanted = StreamChange::None { kept: Vec::new() };
        assert_eq!(change(&wanted, &wanted, false), as_wanted);
        let found = Config { max_bytes: 1, description: Some("ours".to_owned()), ..wanted.clone() };
        let StreamChange::Update { to, changed } = change(&found, &wanted, false) else { panic!("no update") };
        assert_eq!((to.max_bytes, to.description.as_deref()), (wanted.max_bytes, Some("ours")));
        assert_eq!(changed, [difference("max_bytes", 1, wanted.max_bytes)]);
        let found = Config { retention: RetentionPolicy::Limits, ..wanted.clone() };
        let StreamChange::Impossible(Difference { setting, .. }) = change(&found, &wanted, true) else { panic!() };
        assert_eq!(setting, "retention");
        let found = Config { subjects: vec!["orders.>".to_owned()], ..wanted.clone() };
        let StreamChange::Impossible(Difference { setting, .. }) = change(&found, &wanted, true) else { panic!() };
        assert_eq!(setting, "subjects");
    }

    #[test]
    fn what_holds_more_than_is_wanted_shrinks_only_where_it_may() {
        let (names, storage) = (Names::new("longshore"), Storage::default());
        let wanted = events(&names, &storage);
        let year = Duration::from_secs(365 * 86_400);
        for found in [
            Config { num_replicas: 3, ..wanted.clone() },
            Config { max_bytes: wanted.max_bytes + 1, ..wanted.clone() },
            Config { max_bytes: -1, ..wanted.clone() },
            Config { max_age: year, ..wanted.clone() },
            Config { max_age: Duration::ZERO, ..wanted.clone() },
        ] {
            let StreamChange::None { kept } = change(&found, &wanted, false) else { panic!("shrinks: {found:?}") };
            assert_eq!(kept.len(), 1, "{kept:?}");
            let StreamChange::Update { to, changed } = change(&found, &wanted, true) else { panic!("{found:?}") };
            assert_eq!((*to, changed.len()), (wanted.clone(), 1));
        }
        let smaller = Config { num_replicas: 1, max_age: Duration::from_secs(1), ..wanted.clone() };
        let larger = Config { num_replicas: 3, ..wanted };
        assert!(matches!(change(&smaller, &larger, false), StreamChange::Update { .. }));
    }
}
