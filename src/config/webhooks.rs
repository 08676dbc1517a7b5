//! The settings `[webhooks]`, and what holds for the type of the deliveries.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use longshore_actors::{WebhookCaller, WebhookSettings};
use longshore_backbone::wire::api::WEBHOOK_TYPE;
use longshore_domain::backoff::Backoff;
use longshore_domain::policy::TypePolicy;
use longshore_domain::{JobType, Priority, Queue};

use super::entries::{TYPE, WEBHOOKS};
use super::problem::Problem;
use super::section::Section;
#[cfg(feature = "http")]
use crate::outbound::{Allow, Outbound};

/// How webhooks are delivered, where this build can call anybody.
pub(super) fn settings(root: &Section<'_>, problems: &mut Vec<Problem>) -> Option<WebhookSettings> {
    let section = root.table("webhooks");
    let queue = Queue::parse(&section.get(&WEBHOOKS.queue).0).ok()?;
    let queues = root.named("queues", None);
    // Without any, a node serves `main`.
    let is_there =
        queues.is_empty() && queue == Queue::main() || queues.iter().any(|(name, _)| *name == queue.as_str());
    if section.node(WEBHOOKS.queue.name).is_some() && !is_there {
        problems.push(section.problem(WEBHOOKS.queue.name, format!("{:?} is not a queue of [queues]", queue.as_str())));
    }
    let priority = Priority::new(section.get(&WEBHOOKS.priority).into()).ok()?;
    match caller(&section) {
        Ok(caller) => caller.map(|caller| WebhookSettings { caller, queue, priority }),
        Err(reason) => {
            problems.push(section.problem(WEBHOOKS.allow.name, reason));
            None
        }
    }
}

#[cfg(feature = "http")]
fn caller(section: &Section<'_>) -> Result<Option<Arc<dyn WebhookCaller>>, String> {
    let allow = section.get(&WEBHOOKS.allow);
    let allow = Allow::read(allow.iter().map(|entry| entry.0.as_str()))?;
    Ok(Some(Arc::new(Outbound::new(allow))))
}

#[cfg(not(feature = "http"))]
fn caller(_: &Section<'_>) -> Result<Option<Arc<dyn WebhookCaller>>, String> {
    Ok(None)
}

/// What holds for deliveries of webhooks: attempts over three days, as far as their type's own settings do not say
/// otherwise.
pub(super) fn policy(root: &Section<'_>, default_type: &TypePolicy, types: &mut BTreeMap<JobType, TypePolicy>) {
    /// In seconds: 5 and 30; 2, 10 and 30 minutes; 1, 2, 4, twice 8 and four times 12 hours.
    const DELAYS: [u64; 14] =
        [5, 30, 120, 600, 1_800, 3_600, 7_200, 14_400, 28_800, 28_800, 43_200, 43_200, 43_200, 43_200];
    let Ok(job_type) = JobType::parse(WEBHOOK_TYPE) else { return };
    let own = root.table("types").table(WEBHOOK_TYPE);
    let is_said = |name: &str| own.node(name).is_some();
    let policy = types.entry(job_type).or_insert_with(|| default_type.clone());
    macro_rules! unless_said {
        ($($field:ident: $usual:expr,)+) => {$(
            if !is_said(stringify!($field)) {
                policy.$field = $usual;
            }
        )+};
    }
    unless_said! {
        handler: None,
        backoff: Backoff::Delays(DELAYS.map(Duration::from_secs).to_vec()),
        max_attempts: DELAYS.len() as u32 + 1,
        timeout: Duration::from_secs(30),
        heartbeat: None,
        // The node makes their payloads, and those of events are not the jobs' own.
        payload_max: None,
        concurrency: root.table("webhooks").get(&WEBHOOKS.concurrency).or(default_type.concurrency),
    }
    if !is_said(TYPE.schema.name) && !is_said(TYPE.schemas.name) {
        policy.schemas = None;
    }
}
