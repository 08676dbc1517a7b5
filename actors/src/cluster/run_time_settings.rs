//! The part that keeps what this node knows of the cluster's run-time settings up to date.
//!
//! It asks the control bucket's leader for changes every second, and at once when a node announces one. An announcement
//! is answered once everything that it is about holds on this node: then no worker can start an attempt any more that a
//! new pause forbids. It removes settings whose time is over. The settings and the time for which they count are kept
//! in [`crate::limits::settings`], so that a death costs nothing.
//!
//! Bounds: one question at a time; the settings are as many as operators made.

use std::sync::Arc;
use std::time::{Duration, Instant};

use longshore_backbone::nodes::Nodes;
use longshore_backbone::rarely::Rarely;
use longshore_backbone::run_time_settings::{RunTimeSettings as Store, WrittenSetting, read_revision};
use longshore_domain::setting::{PauseOf, SettingKey};
use serde_json::json;

use crate::cluster::put_queues::PutQueues;
use crate::limits::rate::Limits;
use crate::limits::settings::RunTimeSettings;
use crate::queue::served::ServedQueues;
use crate::runtime::identity::Identity;
use crate::runtime::supervision::{LoopEnd, SUBSCRIPTION_ENDED, ticks};
use crate::runtime::system_events::SystemEvents;

/// How often changes are asked for without an announcement.
const ASK_EVERY: Duration = Duration::from_secs(1);
/// How long an answer may take: then the next question follows, as an election may have swallowed this one. It counts
/// for each setting by itself: all of them, over a slow connection, may take longer.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);
/// While nothing starts for want of an answer, this is said once in so long.
static UNREAD: Rarely = Rarely::once_in(Duration::from_secs(10));

#[derive(Clone)]
pub(crate) struct RunTimeSettingsPart {
    pub(crate) store: Store,
    pub(crate) nodes: Nodes,
    pub(crate) identity: Arc<Identity>,
    pub(crate) settings: Arc<RunTimeSettings>,
    pub(crate) limits: Arc<Limits>,
    pub(crate) put_queues: Arc<PutQueues>,
    /// The queues whose workers start attempts.
    pub(crate) queues: Arc<ServedQueues>,
    pub(crate) system_events: SystemEvents,
}

pub(crate) async fn run(part: RunTimeSettingsPart) -> LoopEnd {
    let mut announcements = part.store.announcements().await.map_err(|error| error.with_causes())?;
    let mut connected = part.store.connected();
    let mut tick = ticks(ASK_EVERY);
    // Whether all settings were read, so that what has changed since is enough.
    let mut known = false;
    loop {
        let mut announced = None;
        tokio::select! {
            _ = tick.tick() => {}
            question = announcements.next() => announced = Some(question.ok_or(SUBSCRIPTION_ENDED)?),
            // Another server, or one that lost what it had last: its revisions may count anew.
            Ok(()) = connected.changed() => known = false,
        }
        let revision = announced.as_ref().and_then(|question| read_revision(&question.payload)).unwrap_or(0);
        if !known || announced.is_none() || part.settings.read_up_to() < revision {
            known |= part.read(known).await;
        }
        if let Some(question) = announced.filter(|_| part.settings.read_up_to() >= revision) {
            let name = bytes::Bytes::copy_from_slice(part.identity.node.as_bytes());
            part.nodes.answer(question, name).await;
        }
        part.remove_over().await;
    }
}

impl RunTimeSettingsPart {
    /// Reads the changes, or all settings if those are not `known`; says whether it got an answer.
    async fn read(&self, known: bool) -> bool {
        let (sent, from) = (Instant::now(), if known { self.settings.read_up_to() } else { 0 });
        match self.store.changed_after(from, ANSWER_WITHIN).await {
            Ok(changes) => {
                let any = !changes.is_empty();
                self.put_queues.take_in(&changes);
                self.settings.take_in(changes, !known);
                if any || !known {
                    self.limits.set_at_run_time(self.settings.limits());
                }
                if any {
                    // A worker that has asked before whether it may start has entered its attempt by then: it counts as
                    // started before.
                    self.queues.all().iter().for_each(|queue| queue.wait_for_starts());
                }
                self.settings.were_read(sent);
                true
            }
            Err(error) => {
                let (why, now) = (error.with_causes(), Instant::now());
                if self.settings.are_known(now) {
                    tracing::debug!("cannot read the run-time settings, trying again: {why}");
                } else if let Some(times) = UNREAD.happened("", now) {
                    tracing::warn!(times, "no attempt starts until run-time settings are read, trying again: {why}");
                }
                false
            }
        }
    }

    /// Removes settings whose time is over. Of all nodes one succeeds, and publishes it.
    async fn remove_over(&self) {
        for (key, revision) in self.settings.over() {
            let written = tokio::time::timeout(ANSWER_WITHIN, self.store.write(&key, None, revision)).await;
            if matches!(written, Ok(Ok(WrittenSetting::Won(_))))
                && let SettingKey::Pause(of) = &key
            {
                resumed(&self.system_events, of, "until").await;
            }
        }
    }
}

/// Publishes that a pause is over, because of an operator's `order` or because its time is over (`until`).
pub(crate) async fn resumed(events: &SystemEvents, of: &PauseOf, reason: &str) {
    let (queue, job_type) = (of.queue(), of.job_type());
    tracing::info!(queue = queue.map(ToString::to_string), job_type = job_type.map(ToString::to_string), "resumed");
    let details = json!({"queue": queue, "type": job_type, "reason": reason});
    events.publish_about("queue_resumed", queue, job_type, details).await;
}
