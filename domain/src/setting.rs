//! Run-time settings: what operators set for the whole cluster while it runs, beside the configuration of each node.
//!
//! A setting has a key and a value, one of each. They are kept in the control bucket, and every node has a copy
//! (`actors/src/limits/settings.rs`). A further kind of setting is one more variant of [`SettingKey`] and of
//! [`Setting`].

use std::time::Duration;

use serde::{Deserialize, Serialize};

use smol_str::SmolStr;

use crate::fairness::FairBy;
use crate::fault::{Fault, FaultKind};
use crate::limit::{RateLimit, Scope};
use crate::policy::QueuePolicy;
use crate::{JobType, Queue, Timestamp};

/// What a setting is about.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SettingKey {
    /// Whether these jobs are paused.
    Pause(PauseOf),
    /// The rate limit of this scope, in place of the configured one.
    Limit(Scope),
    /// A queue, beside those that configurations declare.
    Queue(Queue),
    /// A fault on purpose.
    Fault(JobType, FaultKind),
}

/// Which jobs are paused.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PauseOf {
    /// All of a queue.
    Queue(Queue),
    /// All of a type, in every queue.
    Type(JobType),
    /// All of a type in one queue.
    TypeInQueue(JobType, Queue),
}

impl PauseOf {
    /// From a queue, a type or both; `None` if neither is named.
    pub fn of(queue: Option<Queue>, job_type: Option<JobType>) -> Option<Self> {
        match (queue, job_type) {
            (Some(queue), None) => Some(Self::Queue(queue)),
            (None, Some(job_type)) => Some(Self::Type(job_type)),
            (Some(queue), Some(job_type)) => Some(Self::TypeInQueue(job_type, queue)),
            (None, None) => None,
        }
    }

    /// The queue, if it is about one.
    pub fn queue(&self) -> Option<&Queue> {
        match self {
            Self::Queue(queue) | Self::TypeInQueue(_, queue) => Some(queue),
            Self::Type(_) => None,
        }
    }

    /// The type, if it is about one.
    pub fn job_type(&self) -> Option<&JobType> {
        match self {
            Self::Type(job_type) | Self::TypeInQueue(job_type, _) => Some(job_type),
            Self::Queue(_) => None,
        }
    }
}

/// The value of a setting.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Setting {
    /// These jobs are paused.
    Pause(Pause),
    /// So many may start or be submitted.
    Limit(RateLimit),
    /// The queue is declared, and served so.
    Queue(PutQueue),
    /// Attempts of the type meet it.
    Fault(Fault),
}

/// A queue that was put while the cluster runs. A node whose configuration names the queue goes by that instead.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PutQueue {
    /// The maximum number of jobs that run at once on each node, 1 to [`QueuePolicy::MAX_CONCURRENCY`].
    pub concurrency: usize,
    /// How much later a job of the next more urgent priority may come and still overtake, in milliseconds.
    pub aging_ms: u64,
    /// The nodes that serve it; `None`: every node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodes: Option<Vec<SmolStr>>,
    /// Between whom its starts are shared out.
    #[serde(default, skip_serializing_if = "crate::is_default")]
    pub fair_by: FairBy,
}

impl PutQueue {
    /// Whether a node is to serve it, unless its configuration names the queue.
    pub fn is_for(&self, node: &str) -> bool {
        self.nodes.as_ref().is_none_or(|nodes| nodes.iter().any(|named| named == node))
    }

    /// How it is served.
    pub fn policy(&self) -> QueuePolicy {
        // A version with other bounds may have stored it.
        let concurrency = self.concurrency.clamp(1, QueuePolicy::MAX_CONCURRENCY);
        let aging = Duration::from_millis(self.aging_ms);
        QueuePolicy { concurrency, aging, max_waiting: None, fair_by: self.fair_by }
    }
}

/// A pause: no attempt of these jobs starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pause {
    /// When it was ordered.
    pub since: Timestamp,
    /// When it ends by itself; `None`: when it is ended by an operator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
}

impl Pause {
    /// Whether it holds at `now`.
    pub fn holds(&self, now: Timestamp) -> bool {
        self.until.is_none_or(|until| now < until)
    }
}

impl Setting {
    /// When it ends by itself, if it does.
    pub fn ends_at(&self) -> Option<Timestamp> {
        match self {
            Self::Pause(pause) => pause.until,
            Self::Fault(fault) => Some(fault.until),
            Self::Limit(_) | Self::Queue(_) => None,
        }
    }
}

/// For so long after a node has last asked for the settings, it may start attempts by what it knows of them.
///
/// An election of the bucket's leader takes 4 to 8 s, and must not stop the work. On the other hand, an order that must
/// reach every node waits for so long if one of them is silent.
pub const KNOWN_FOR: Duration = Duration::from_secs(12);

/// By how much servers' clocks may differ, where the times of two stored messages are compared.
const CLOCKS_DIFFER_BY: Duration = Duration::from_secs(3);

/// Whether a node that does not answer may still start attempts by what it knew before a setting was stored at
/// `stored_at`; its presence was last stored at `present_at`.
///
/// A node's knowledge counts for [`KNOWN_FOR`] from the moment at which it sent its presence, or its question if that
/// was earlier. So its last presence bounds it.
pub fn may_be_unaware(present_at: Timestamp, stored_at: Timestamp) -> bool {
    present_at.plus(KNOWN_FOR + CLOCKS_DIFFER_BY) > stored_at
}

/// How long after `now` no node starts attempts any more by what it knew before `stored_at`; `None`: by now none does.
pub fn unaware_for(stored_at: Timestamp, now: Timestamp) -> Option<Duration> {
    let over_at = stored_at.plus(KNOWN_FOR + CLOCKS_DIFFER_BY);
    (over_at > now).then(|| over_at.since(now).min(KNOWN_FOR + CLOCKS_DIFFER_BY))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: i64) -> Timestamp {
        Timestamp::from_millis(millis)
    }

    #[test]
    fn a_pause_holds_until_its_end() {
        let pause = |until| Pause { since: at(1), until };
        assert!(pause(None).holds(at(i64::MAX)));
        assert!(pause(Some(at(10))).holds(at(9)) && !pause(Some(at(10))).holds(at(10)));
    }

    #[test]
    fn a_setting_is_written_with_its_kind() {
        let paused = Setting::Pause(Pause { since: at(0), until: None });
        let text = r#"{"pause":{"since":"1970-01-01T00:00:00.000Z"}}"#;
        assert_eq!(serde_json::to_string(&paused).unwrap(), text);
        assert_eq!(serde_json::from_str::<Setting>(text).unwrap(), paused);
        let limit = RateLimit { rate: 5, per: Duration::from_secs(1), burst: 9, window: crate::limit::Window::Bucket };
        let text = r#"{"limit":{"rate":5,"per_ms":1000,"burst":9,"window":"bucket"}}"#;
        assert_eq!(serde_json::to_string(&Setting::Limit(limit)).unwrap(), text);
        assert_eq!(serde_json::from_str::<Setting>(text).unwrap(), Setting::Limit(limit));
        assert!(serde_json::from_str::<Setting>(r#"{"newer":{}}"#).is_err());
    }

    #[test]
    fn a_put_queue_is_for_every_node_or_for_those_it_names() {
        let text = r#"{"queue":{"concurrency":8,"aging_ms":30000}}"#;
        let Setting::Queue(everywhere) = serde_json::from_str(text).unwrap() else { panic!("not a queue") };
        assert!(everywhere.is_for("a"));
        let policy = QueuePolicy { concurrency: 8, aging: Duration::from_secs(30), ..QueuePolicy::default() };
        assert_eq!(everywhere.policy(), policy);
        assert_eq!(serde_json::to_string(&Setting::Queue(everywhere.clone())).unwrap(), text);
        let of = |nodes: &[&str]| PutQueue {
            nodes: Some(nodes.iter().map(|node| SmolStr::from(*node)).collect()),
            ..everywhere.clone()
        };
        assert!(of(&["a", "b"]).is_for("b") && !of(&["a"]).is_for("b") && !of(&[]).is_for("a"));
    }

    #[test]
    fn a_silent_node_is_waited_for_as_long_as_it_may_start_attempts() {
        // It was there at 0 and may start attempts until 12 s, by a clock that may be 3 s behind.
        assert!(may_be_unaware(at(0), at(14_999)));
        assert!(!may_be_unaware(at(0), at(15_000)));
        assert_eq!(unaware_for(at(1_000), at(1_000)), Some(Duration::from_secs(15)));
        assert_eq!(unaware_for(at(1_000), at(15_999)), Some(Duration::from_millis(1)));
        assert_eq!(unaware_for(at(1_000), at(16_000)), None, "nobody has to confirm it");
        assert_eq!(unaware_for(at(60_000), at(1_000)), Some(Duration::from_secs(15)), "a clock that is behind");
    }
}
