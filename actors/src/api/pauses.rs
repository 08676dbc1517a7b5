//! Pauses of queues and types.
//!
//! A pause is answered once it holds everywhere. Every node that is there says so itself; one that is silent, because
//! it is frozen, cut off or dead, starts no attempt any more once what it knows is too old to count
//! ([`longshore_domain::setting`]). Repeating a request is harmless, and waits again until the pause holds.

use std::time::{Duration, Instant};

use longshore_backbone::run_time_settings::WrittenSetting;
use longshore_backbone::wire::api::{ApiError, Encoded, PauseRequest, PauseStatus, ResumeRequest};
use longshore_domain::duration::MAX_DURATION;
use longshore_domain::setting::{KNOWN_FOR, Pause, PauseOf, Setting, SettingKey, may_be_unaware, unaware_for};
use longshore_domain::{JobType, Queue, Timestamp};
use serde_json::json;

use crate::api::{Answered, Api};
use crate::cluster::run_time_settings::resumed;
use crate::handlers::served_types;
use crate::runtime::{fail_point, now};

/// For how long a write is tried.
const WRITTEN_WITHIN: Duration = Duration::from_secs(8);
/// The wait before it is tried again.
const AGAIN_AFTER: Duration = Duration::from_millis(20);
/// How long nodes have to confirm a change that forbids nothing. Those that do not by then ask within a second.
const CONFIRMED_WITHIN: Duration = Duration::from_secs(1);

/// A setting as it is stored now.
pub(super) struct Stored {
    /// What was set before.
    before: Option<Setting>,
    pub(super) revision: u64,
    /// When it was stored, if not by this request.
    earlier: Option<Timestamp>,
}

pub(crate) async fn pause(api: &Api, PauseRequest { queue, job_type, until }: PauseRequest) -> Answered<PauseStatus> {
    let of = which(api, queue, job_type).await?;
    let since = now();
    if until.is_some_and(|until| until <= since || until.since(since) > MAX_DURATION) {
        return Err(ApiError::malformed("until: is not within 3650 days from now"));
    }
    let key = SettingKey::Pause(of.clone());
    let is_paused =
        |before: &Setting| matches!(before, Setting::Pause(before) if before.until == until && before.holds(since));
    let wanted = Setting::Pause(Pause { since, until });
    let stored = write(api, &key, Some(wanted), is_paused).await?;
    fail_point::pass("after-pause");
    holds_everywhere(api, &key, &stored).await?;
    let since = match stored.before {
        Some(Setting::Pause(before)) if stored.earlier.is_some() => before.since,
        _ => {
            let (queue, job_type) = (of.queue(), of.job_type());
            let details = json!({"queue": queue, "type": job_type, "until": until});
            api.system_events.publish_about("queue_paused", queue, job_type, details).await;
            since
        }
    };
    let warning = warning(api, of.job_type()).await;
    Ok(Encoded::of(&PauseStatus { warning, ..status(of, Some(Pause { since, until }), true) }))
}

pub(crate) async fn resume(api: &Api, ResumeRequest { queue, job_type }: ResumeRequest) -> Answered<PauseStatus> {
    let of = which(api, queue, job_type).await?;
    let stored = write(api, &SettingKey::Pause(of.clone()), None, |_| false).await?;
    let before = stored.before.and_then(|before| if let Setting::Pause(pause) = before { Some(pause) } else { None });
    if stored.earlier.is_none() {
        announce(api, stored.revision).await?;
    }
    if before.is_some() {
        resumed(&api.system_events, &of, "order").await;
    }
    Ok(Encoded::of(&status(of, before, false)))
}

fn status(of: PauseOf, pause: Option<Pause>, paused: bool) -> PauseStatus {
    PauseStatus {
        paused,
        queue: of.queue().cloned(),
        since: pause.map(|pause| pause.since),
        job_type: of.job_type().cloned(),
        until: pause.filter(|_| paused).and_then(|pause| pause.until),
        warning: None,
    }
}

/// A type may be paused before its first handler comes, so one that nobody knows is not refused; it may be misspelt.
async fn warning(api: &Api, job_type: Option<&JobType>) -> Option<String> {
    let (job_type, served) = (job_type?, &api.routing.served);
    let is_unknown =
        served_types::refresh(&api.backbone.served_types(), served).await && served.was_never_served(job_type, now());
    let meant = served.nearest(job_type).map_or_else(String::new, |of| format!("; did you mean {of}?"));
    is_unknown.then(|| format!("no handler of type {job_type} is known{meant}"))
}

/// Which jobs are meant. A queue must be declared: a mistyped one would be paused in vain.
async fn which(api: &Api, queue: Option<Queue>, job_type: Option<JobType>) -> Result<PauseOf, ApiError> {
    if let Some(queue) = &queue {
        let declared = api.backbone.declared_queues().await?;
        if !declared.contains(queue) {
            return Err(ApiError::not_found(format!("queue: {:?} is not declared", queue.as_str())));
        }
    }
    PauseOf::of(queue, job_type).ok_or_else(|| ApiError::malformed("queue or type: one of them is needed"))
}

/// Sets a setting, or removes it, unless that is so already, or what is stored says the same. That it is removed is
/// written also where nothing is stored: nodes remember what they read of a bucket that is gone.
pub(super) async fn write(
    api: &Api,
    key: &SettingKey,
    wanted: Option<Setting>,
    says_the_same: impl Fn(&Setting) -> bool,
) -> Result<Stored, ApiError> {
    let (store, until) = (api.backbone.run_time_settings(), Instant::now() + WRITTEN_WITHIN);
    // What was there before the first try: a write whose answer was lost is found by the next.
    let mut first: Option<Option<Setting>> = None;
    loop {
        let error = match store.read(key).await {
            Err(error) => Some(error),
            Ok(found) => {
                let (before, revision, at) = match found {
                    Some(found) => (found.setting, found.revision, Some(found.at)),
                    None => (None, 0, None),
                };
                let is_said = wanted.is_some() || revision > 0;
                let ours = first.is_some() && is_said && before == wanted;
                let before_us = first.get_or_insert_with(|| before.clone()).clone();
                if ours {
                    return Ok(Stored { before: before_us, revision, earlier: None });
                }
                if is_said && (before == wanted || before.as_ref().is_some_and(&says_the_same)) {
                    return Ok(Stored { before, revision, earlier: at });
                }
                match store.write(key, wanted.as_ref(), revision).await {
                    Ok(WrittenSetting::Won(revision)) => return Ok(Stored { before, revision, earlier: None }),
                    Ok(WrittenSetting::Lost) => None,
                    Err(error) => Some(error),
                }
            }
        };
        if Instant::now() >= until {
            return Err(
                error.map_or_else(|| ApiError::unavailable("other writes come first, again and again"), ApiError::from)
            );
        }
        tokio::time::sleep(AGAIN_AFTER).await;
    }
}

/// Waits until no node starts an attempt any more that the setting forbids.
async fn holds_everywhere(api: &Api, key: &SettingKey, stored: &Stored) -> Result<(), ApiError> {
    let (store, from) = (api.backbone.run_time_settings(), Instant::now());
    let found = store.read(key).await?;
    let overtaken = || ApiError::unavailable("it was changed again meanwhile: queues.list says what holds");
    let stored_at = found.filter(|found| found.revision == stored.revision).ok_or_else(overtaken)?.at;
    let nodes = api.backbone.nodes().last_seen().await?.into_iter();
    let nodes = nodes.filter(|presence| may_be_unaware(presence.seen_at, stored_at)).map(|presence| presence.node);
    let within = match stored.earlier {
        // By this node's own clock alone.
        None => Some(KNOWN_FOR),
        Some(at) => unaware_for(at, now()),
    };
    let Some(within) = within else { return Ok(()) };
    let silent = store.announce(stored.revision, nodes.collect(), within).await?;
    if !silent.is_empty() {
        let silent = silent.join(", ");
        tracing::warn!(%silent, "these nodes did not confirm a pause within {:?}; if they are alive, they start nothing until they have read it", from.elapsed());
    }
    Ok(())
}

/// Announces a change to the nodes that were there within the last hour, and waits a second until they know of it;
/// returns those that have not said so.
pub(super) async fn announce(api: &Api, revision: u64) -> Result<Vec<String>, ApiError> {
    let nodes = api.backbone.nodes().last_seen().await?.into_iter().map(|presence| presence.node).collect();
    Ok(api.backbone.run_time_settings().announce(revision, nodes, CONFIRMED_WITHIN).await?)
}
