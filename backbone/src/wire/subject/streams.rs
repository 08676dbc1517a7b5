//! The names of streams and buckets, and the subjects of keys in buckets.

use longshore_domain::{Priority, Queue, QueueLane, RunId, Tenant};

use super::Names;
use crate::wire::json::text;

const RETURNED: &str = "_RETURNED";

impl Names {
    /// The stream of a queue's lane.
    pub fn lane_stream(&self, queue: &Queue, lane: impl Into<QueueLane>) -> String {
        match lane.into() {
            QueueLane::Of(priority) => format!("{}_JOBS_{queue}_P{}", self.prefix, priority.number()),
            QueueLane::Returned => format!("{}_JOBS_{queue}{RETURNED}", self.prefix),
        }
    }

    /// Queue and lane of a lane's stream.
    pub fn read_lane_stream(&self, stream: &str) -> Option<(Queue, QueueLane)> {
        let name = stream.strip_prefix(&*self.prefix)?.strip_prefix("_JOBS_")?;
        if let Some(queue) = name.strip_suffix(RETURNED) {
            return Some((Queue::parse(queue).ok()?, QueueLane::Returned));
        }
        let (queue, number) = name.rsplit_once("_P")?;
        Some((Queue::parse(queue).ok()?, Priority::new(number.parse().ok()?).ok()?.into()))
    }

    /// The stream of parked jobs.
    pub fn parked_stream(&self) -> String {
        format!("{}_PARKED", self.prefix)
    }

    /// The stream of schedules, retries and due jobs.
    pub fn schedules_stream(&self) -> String {
        format!("{}_SCHEDULES", self.prefix)
    }

    /// The stream of the event log.
    pub fn events_stream(&self) -> String {
        format!("{}_EVENTS", self.prefix)
    }

    /// The stream of the audit.
    pub fn audit_stream(&self) -> String {
        format!("{}_AUDIT", self.prefix)
    }

    /// The stream of dead letters.
    pub fn dlq_stream(&self) -> String {
        format!("{}_DLQ", self.prefix)
    }

    /// A key-value bucket: `runs`, `checkpoints`, `idempotency`, `control` or `schedules`.
    pub fn bucket(&self, name: &str) -> String {
        format!("{}_{name}", self.namespace)
    }

    /// The stream behind a bucket.
    pub fn bucket_stream(&self, name: &str) -> String {
        format!("KV_{}_{name}", self.namespace)
    }

    /// The subject of a bucket's key.
    pub fn key(&self, bucket: &str, key: &str) -> String {
        format!("$KV.{}_{bucket}.{key}", self.namespace)
    }

    /// The subject of a run's record.
    pub fn record(&self, tenant: &Tenant, run: &RunId) -> String {
        format!("$KV.{}_runs.{tenant}.{run}", self.namespace)
    }

    /// Appends [`Names::record`] to `out`: there is one for every job.
    pub fn write_record(&self, tenant: &Tenant, run: &RunId, out: &mut Vec<u8>) {
        text(out, &["$KV.", &self.namespace, "_runs.", tenant.as_str(), ".", run.as_str()]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lane_names_its_queue_and_priority() {
        let names = Names::new("longshore");
        let queue = Queue::parse("bulk_P2").unwrap();
        let stream = names.lane_stream(&queue, Priority::new(9).unwrap());
        assert_eq!(stream, "LONGSHORE_JOBS_bulk_P2_P9");
        assert_eq!(names.read_lane_stream(&stream), Some((queue.clone(), Priority::new(9).unwrap().into())));
        let stream = names.lane_stream(&queue, QueueLane::Returned);
        assert_eq!(names.read_lane_stream(&stream), Some((queue, QueueLane::Returned)));
        assert_eq!(names.read_lane_stream("LONGSHORE_DLQ"), None);
    }
}
