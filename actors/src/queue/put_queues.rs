//! The queues that operators have put, as this node knows them. `cluster/run_time_settings.rs` fills this in, as it
//! reads the cluster's settings; `cluster/put_queues.rs` serves what is here.
//!
//! A queue that was put is never taken away, so what is known stays, also if the settings should be lost: nothing may
//! keep its jobs waiting for that.

use std::collections::BTreeMap;
use std::sync::{PoisonError, RwLock};

use longshore_backbone::run_time_settings::SettingChange;
use longshore_domain::Queue;
use longshore_domain::setting::{PutQueue, Setting, SettingKey};
use tokio::sync::Notify;

/// The queues that were put.
#[derive(Debug, Default)]
pub(crate) struct PutQueues {
    queues: RwLock<BTreeMap<Queue, PutQueue>>,
    changed: Notify,
}

impl PutQueues {
    /// All of them.
    pub(crate) fn all(&self) -> BTreeMap<Queue, PutQueue> {
        self.queues.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits until one was put; for one reader.
    pub(crate) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Takes in those of these changes that are about queues.
    pub(crate) fn take_in(&self, changes: &[SettingChange]) {
        let put = |change: &SettingChange| match (&change.key, &change.setting) {
            (Some(SettingKey::Queue(queue)), Some(Setting::Queue(put))) => Some((queue.clone(), put.clone())),
            _ => None,
        };
        let put: Vec<(Queue, PutQueue)> = changes.iter().filter_map(put).collect();
        if !put.is_empty() {
            self.queues.write().unwrap_or_else(PoisonError::into_inner).extend(put);
            self.changed.notify_one();
        }
    }
}
