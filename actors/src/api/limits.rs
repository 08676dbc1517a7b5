//! Rate limits: lists them with what is left, and sets them for the whole cluster while it runs.
//!
//! A change is a run-time setting: it is stored first, then announced. Each node that confirms it uses no token of the
//! old limit any more; the record of the limit goes on under the new one (`longshore_domain::limit`). A node that is
//! silent learns of it within a second of its return, and starts nothing if it could not ask for 12 s.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::{StreamExt as _, TryStreamExt as _};
use longshore_backbone::Error;
use longshore_backbone::wire::api::{
    ApiError, Encoded, LimitChanged, LimitStatus, LimitValues, Limits as Listed, LimitsRequest, OPERATOR,
    ResetLimitRequest, SetBy, SetLimitRequest, Word,
};
use longshore_domain::limit::{LimitId, RateLimit, Record, Scope};
use longshore_domain::name::there_are;
use longshore_domain::setting::{Setting, SettingKey};
use longshore_domain::{JobType, SmolStr, Tenant, Timestamp};

use crate::api::filter;
use crate::api::pauses::{announce, write};
use crate::api::{Answered, Api};
use crate::runtime::now;

/// Records that are read at once.
const READ_AT_ONCE: usize = 16;

pub(crate) async fn list(api: &Api, asker: &str, asked: LimitsRequest) -> Answered<Listed> {
    let limit = filter::page_size(asked.limit)?;
    // The number of the page's first limit, from 1.
    let first = filter::cursor(asked.cursor.as_deref())?.max(1);
    let skipped = usize::try_from(first - 1).unwrap_or(usize::MAX);
    let own = if asker == OPERATOR { None } else { filter::whose(asker, None)? };
    let is_seen = |scope: &Scope| match (scope, &own) {
        (Scope::Tenant(tenant), Some(own)) => tenant == own,
        _ => true,
    };
    let scopes: Vec<Scope> = api.limits.scopes().into_iter().filter(is_seen).collect();
    let parked = parked(api, own.as_ref()).await?;
    let page: Vec<Scope> = scopes.iter().skip(skipped).take(limit).cloned().collect();
    let next = skipped.saturating_add(page.len());
    let cursor = (next < scopes.len()).then(|| (next + 1).to_string());
    let statuses = page.into_iter().map(|scope| status(api, scope, &parked));
    let statuses = futures_util::stream::iter(statuses).buffered(READ_AT_ONCE).try_collect();
    let mut limits: Vec<LimitStatus> = statuses.await?;
    if own.is_some() {
        // Where a file of the operator lies is none of a tenant's business.
        limits.iter_mut().for_each(|limit| limit.set_in = None);
    }
    Ok(Encoded::of(&Listed { cursor, limits }))
}

pub(crate) async fn set(api: &Api, asked: SetLimitRequest) -> Answered<LimitChanged> {
    let (scope, limit) = (asked.scope()?, asked.limit()?);
    must_exist(api, &scope)?;
    change(api, scope, Some(Setting::Limit(limit))).await
}

pub(crate) async fn reset(api: &Api, asked: ResetLimitRequest) -> Answered<LimitChanged> {
    let scope = asked.scope()?;
    // A limit that was set may have been taken out of the files since.
    if !api.limits.is_set(&scope) {
        must_exist(api, &scope)?;
    }
    change(api, scope, None).await
}

/// A name that no type uses would be limited in vain. Types and tenants need no settings of their own.
fn must_exist(api: &Api, scope: &Scope) -> Result<(), ApiError> {
    let Scope::Named(name) = scope else { return Ok(()) };
    if api.policies.limits.contains_key(name) {
        return Ok(());
    }
    let known = there_are(api.policies.limits.keys().map(SmolStr::as_str));
    Err(ApiError::not_found(format!("name: no limit {name:?} is configured under [limits]; {known}")))
}

/// Stores the setting, and waits until the nodes know of it. Repeating it is harmless.
async fn change(api: &Api, scope: Scope, wanted: Option<Setting>) -> Answered<LimitChanged> {
    let key = SettingKey::Limit(scope.clone());
    let stored = write(api, &key, wanted, |_| false).await?;
    let unconfirmed = announce(api, stored.revision).await?;
    let parked = parked(api, None).await?;
    let limit = status(api, scope, &parked).await?;
    Ok(Encoded::of(&LimitChanged { limit, unconfirmed }))
}

/// The parked jobs of all queues, by type.
async fn parked(api: &Api, tenant: Option<&Tenant>) -> Result<BTreeMap<JobType, u64>, Error> {
    let mut jobs = BTreeMap::new();
    for queue in api.backbone.declared_queues().await? {
        let kinds = api.backbone.parked_kinds(&queue, None).await?.into_iter();
        for kind in kinds.filter(|kind| tenant.is_none_or(|tenant| *tenant == kind.tenant)) {
            *jobs.entry(kind.job_type).or_default() += kind.jobs;
        }
    }
    Ok(jobs)
}

/// The record of a limit, how many tokens are left of it, and when the next one comes if that is known.
pub(super) async fn left(
    api: &Api,
    id: &LimitId,
    limit: Option<&RateLimit>,
) -> Result<(Option<Record>, Option<u64>, Option<Timestamp>), Error> {
    let (record, time) = (api.backbone.read_limit(id).await?.0, now());
    let (left, next_at) = match (limit, &record) {
        (Some(limit), Some(record)) => (Some(record.left(limit, time)), record.next_at(limit, time)),
        (limit, _) => (limit.map(|limit| limit.capacity() as u64), None),
    };
    Ok((record, left, next_at))
}

/// How often what is left is read until nothing comes in between.
const TRIES: usize = 3;

/// How much a tenant with a rate limit may submit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TenantRate {
    /// Jobs in each span.
    pub quota: u64,
    /// The span in seconds, rounded up.
    pub window: u64,
    /// Jobs that are left now: those that any node may have, and those that this one has tokens for.
    pub left: u64,
    /// Seconds until there are more, rounded up.
    pub more_in: u64,
}

/// The rate of a tenant; `None`: it has no limit, or nobody can say.
pub(crate) async fn rate_of(api: &Api, tenant: &Tenant) -> Option<TenantRate> {
    let id = LimitId { scope: Scope::Tenant(tenant.clone()), key: None };
    let limit = api.limits.limit_of(&id.scope)?;
    let mut usable = api.limits.usable(&id);
    let mut tries = 1..=TRIES;
    let (left, next_at) = loop {
        let (_, left, next_at) = left(api, &id, Some(&limit)).await.ok()?;
        // A block that came meanwhile may be counted twice, or nowhere.
        let before = std::mem::replace(&mut usable, api.limits.usable(&id));
        if before == usable || tries.next().is_none() {
            break (left? + u64::from(before.min(usable)), next_at);
        }
    };
    let seconds = |span: Duration| u64::try_from(span.as_millis().div_ceil(1_000)).unwrap_or(u64::MAX);
    Some(TenantRate {
        quota: limit.rate.into(),
        window: seconds(limit.per),
        left,
        more_in: next_at.map_or(0, |at| seconds(at.since(now()))),
    })
}

async fn status(api: &Api, scope: Scope, parked: &BTreeMap<JobType, u64>) -> Result<LimitStatus, Error> {
    let limit = api.limits.limit_of(&scope);
    let (is_set, configured) = (api.limits.is_set(&scope), api.policies.limit_of(&scope));
    let id = LimitId { scope, key: None };
    let (record, left, next_at) = left(api, &id, limit.as_ref()).await?;
    let is_of = |job_type: &JobType| match &id.scope {
        Scope::Type(limited) => limited == job_type,
        Scope::Named(name) => api.policies.of(job_type).limit.as_ref() == Some(name),
        Scope::Tenant(_) => false,
    };
    let waiting = parked.iter().filter(|(job_type, _)| is_of(job_type)).map(|(_, jobs)| jobs).sum();
    let origin = limit.map(|_| if is_set { SetBy::RunTime } else { SetBy::Configuration });
    let set_in = api.policies.limits_set_in.get(&id.scope).filter(|_| !is_set && limit.is_some()).cloned();
    let (mut job_type, mut name, mut tenant) = (None, None, None);
    match id.scope {
        Scope::Type(of) => job_type = Some(of),
        Scope::Named(of) => name = Some(of),
        Scope::Tenant(of) => tenant = Some(of),
    }
    Ok(LimitStatus {
        configured: configured.filter(|_| is_set).map(LimitValues::from),
        holders: record.map_or(0, |record| record.holders() as u64),
        left,
        name,
        next_at,
        origin: origin.map(Word::Known),
        set_in,
        tenant,
        job_type,
        values: limit.map(LimitValues::from),
        waiting,
    })
}
