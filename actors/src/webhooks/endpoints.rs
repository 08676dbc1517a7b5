//! The endpoints of webhooks: made, changed, shown, tried and removed.

use longshore_backbone::webhooks::StoredWebhook;
use longshore_backbone::wire::api::{
    ApiError, Code, Encoded, PutWebhookRequest, WebhookRequest, WebhookSecret, WebhookStatus, WebhookTest, Webhooks,
    WebhooksRequest,
};
use longshore_backbone::wire::logged::EventFilter;
use longshore_domain::Tenant;
use serde_json::json;
use serde_json::value::to_raw_value;
use std::time::Duration;

use super::{feed, message, settings};
use crate::api::{Answered, Api, filter, intake};
use crate::runtime::now;

/// Webhooks of one tenant, and of all: each costs a request in two seconds for each node.
const OF_TENANT: usize = 20;
const OF_ALL: usize = 200;
/// Bytes of a URL, and words of a list: what is stored of webhooks takes room that nodes need.
const URL: usize = 2 << 10;
const WORDS: usize = 100;
/// How long the secret before a new one signs, too.
const OLD_SIGNS: Duration = Duration::from_secs(24 * 60 * 60);

pub(crate) async fn put(api: &Api, asker: &str, asked: PutWebhookRequest) -> Answered<WebhookStatus> {
    let tenant = filter::whose_one(asker, asked.tenant.as_ref(), "an id", "webhook")?;
    check(api, &asked).await?;
    let webhooks = api.backbone.webhooks();
    loop {
        let (found, revision) = webhooks.find(&tenant, &asked.id).await?;
        let is_new = found.is_none();
        if is_new {
            has_room(api, &tenant).await?;
        }
        let (stored, is_made_here) = put_on(&asked, &tenant, found);
        if !webhooks.write(&stored, revision).await? {
            continue;
        }
        if is_new {
            // It has every event from its answer on. If this fails, the feed makes the consumer, from then on, too.
            webhooks.make_consumer(&stored.webhook).await?;
        }
        return Ok(shown(stored, is_made_here));
    }
}

async fn check(api: &Api, asked: &PutWebhookRequest) -> Result<(), ApiError> {
    let wrong = |field: &str, reason: &str| Err(ApiError::malformed(format!("{field}: {reason}")));
    if asked.url.len() > URL {
        return wrong("url", &format!("has {} bytes, {URL} are allowed", asked.url.len()));
    }
    for (field, list) in [("events", &asked.events), ("types", &asked.types), ("queues", &asked.queues)] {
        if list.len() > WORDS {
            return wrong(field, &format!("has {} entries, {WORDS} are allowed", list.len()));
        }
    }
    if let Some(Err(reason)) = asked.secret.as_ref().map(WebhookSecret::key) {
        return wrong("secret", reason);
    }
    let PutWebhookRequest { events, types, queues, .. } = asked.clone();
    if let Err((field, reason)) = (EventFilter { events, types, queues, ..EventFilter::default() }).check() {
        return wrong(&format!("{field}s"), &reason);
    }
    match settings(api)?.caller.check(&asked.url).await {
        Ok(()) => Ok(()),
        Err(reason) => wrong("url", &reason),
    }
}

async fn has_room(api: &Api, tenant: &Tenant) -> Result<(), ApiError> {
    let (all, _) = api.backbone.webhooks().written_after(None, 0).await?;
    let all = || all.iter().filter(|stored| !stored.deleted);
    let full = if all().count() >= OF_ALL {
        format!("there are {OF_ALL}")
    } else if all().filter(|stored| stored.webhook.tenant == *tenant).count() >= OF_TENANT {
        format!("tenant {tenant} has {OF_TENANT}")
    } else {
        return Ok(());
    };
    Err(ApiError::new(Code::WrongState, format!("id: {full} webhooks already, as many as may be")))
}

/// The webhook as it is then, and whether its secret was made for that.
fn put_on(asked: &PutWebhookRequest, tenant: &Tenant, found: Option<StoredWebhook>) -> (StoredWebhook, bool) {
    let at = now();
    let was_paused = found.as_ref().is_some_and(|found| found.webhook.paused);
    let paused = asked.paused.unwrap_or(was_paused);
    let before = found.as_ref().map(|found| &found.webhook);
    let webhook = WebhookStatus {
        created_at: before.map_or(at, |before| before.created_at),
        events: asked.events.clone(),
        format: asked.format.unwrap_or_default().into(),
        id: asked.id.clone(),
        old_secret_until: before.and_then(|before| before.old_secret_until),
        paused,
        paused_because: before.and_then(|before| before.paused_because.clone()).filter(|_| paused),
        queues: asked.queues.clone(),
        secret: None,
        tenant: tenant.clone(),
        types: asked.types.clone(),
        updated_at: at,
        url: asked.url.clone(),
    };
    let kept = || found.as_ref().map(|found| found.secret.clone());
    let secret = asked.secret.clone().or_else(kept);
    let is_made_here = secret.is_none();
    let secret = secret.unwrap_or_else(|| WebhookSecret::of(rand::random()));
    let feed_key = found.as_ref().map_or_else(|| WebhookSecret::of(rand::random()), |found| found.feed_key.clone());
    let (old_secret, older_secrets) = found.map(|found| (found.old_secret, found.older_secrets)).unwrap_or_default();
    (StoredWebhook { webhook, secret, old_secret, older_secrets, feed_key, deleted: false }, is_made_here)
}

fn shown(stored: StoredWebhook, with_secret: bool) -> Encoded<WebhookStatus> {
    let secret = Some(stored.secret).filter(|_| with_secret);
    Encoded::of(&WebhookStatus { secret, ..stored.webhook })
}

async fn found(api: &Api, asker: &str, asked: &WebhookRequest) -> Result<(StoredWebhook, u64), ApiError> {
    let tenant = filter::whose_one(asker, asked.tenant.as_ref(), "an id", "webhook")?;
    match api.backbone.webhooks().find(&tenant, &asked.id).await? {
        (Some(stored), revision) => Ok((stored, revision)),
        (None, _) => Err(ApiError::not_found(format!("id: tenant {tenant} has no webhook {}", asked.id))),
    }
}

pub(crate) async fn get(api: &Api, asker: &str, asked: WebhookRequest) -> Answered<WebhookStatus> {
    Ok(shown(found(api, asker, &asked).await?.0, false))
}

pub(crate) async fn list(api: &Api, asker: &str, asked: WebhooksRequest) -> Answered<Webhooks> {
    let tenant = filter::whose(asker, asked.tenant.as_ref())?;
    let all = api.backbone.webhooks().written_after(tenant.as_ref(), 0).await?;
    let mut webhooks: Vec<WebhookStatus> =
        all.0.into_iter().filter(|stored| !stored.deleted).map(|stored| stored.webhook).collect();
    webhooks.sort_unstable_by(|one, other| (&one.tenant, &one.id).cmp(&(&other.tenant, &other.id)));
    Ok(Encoded::of(&Webhooks { webhooks }))
}

/// `webhooks.delete`: what is on its way ends as a dead letter.
pub(crate) async fn delete(api: &Api, asker: &str, asked: WebhookRequest) -> Answered<WebhookStatus> {
    let stored = change(api, asker, &asked, |stored| stored.deleted = true).await?;
    if let Err(error) = api.backbone.webhooks().delete_consumer(&stored.webhook).await {
        tracing::warn!(webhook = %asked.id, "the consumer of a deleted webhook is left: {}", error.with_causes());
    }
    Ok(shown(stored, false))
}

pub(crate) async fn rotate(api: &Api, asker: &str, asked: WebhookRequest) -> Answered<WebhookStatus> {
    let rotated = |stored: &mut StoredWebhook| {
        let at = now();
        stored.rotate(WebhookSecret::of(rand::random()), at, at.plus(OLD_SIGNS));
    };
    Ok(shown(change(api, asker, &asked, rotated).await?, true))
}

async fn change(
    api: &Api,
    asker: &str,
    asked: &WebhookRequest,
    make: impl Fn(&mut StoredWebhook),
) -> Result<StoredWebhook, ApiError> {
    loop {
        let (mut stored, revision) = found(api, asker, asked).await?;
        make(&mut stored);
        stored.webhook.updated_at = now();
        if api.backbone.webhooks().write(&stored, revision).await? {
            return Ok(stored);
        }
    }
}

pub(crate) async fn test(api: &Api, asker: &str, asked: WebhookRequest) -> Answered<WebhookTest> {
    let (stored, _) = found(api, asker, &asked).await?;
    let WebhookStatus { tenant, id, .. } = &stored.webhook;
    let event_id = format!("{tenant}/{}/{id}", uuid::Uuid::now_v7());
    let event = json!({"v": 1, "id": event_id, "event": message::TEST, "tenant": tenant, "at": now()});
    let event = to_raw_value(&event).map_err(|error| ApiError::malformed(error.to_string()))?;
    let job = feed::job(settings(api)?, &stored, None, 0, event)?;
    let run_id = intake::submit(api, tenant, job).await?.run_id;
    Ok(Encoded::of(&WebhookTest { run_id }))
}
