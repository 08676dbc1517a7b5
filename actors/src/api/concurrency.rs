//! Concurrency limits: lists who has which slots, and frees some for operators.
//!
//! The records and sessions in the bucket say which node has slots; which runs work with them, only that node knows, so
//! it is asked. Slots of sessions that are over count for nothing, and are left out.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use futures_util::future::join_all;
use longshore_backbone::Error;
use longshore_backbone::concurrency::{FoundSlots, SlotQuestion, SlotRecords, Written};
use longshore_backbone::wire::api::{
    ApiError, ConcurrencyLimits, ConcurrencyRequest, ConcurrencyStatus, Encoded, FreeRequest, Freed, SlotHolder,
    SlotRun,
};
use longshore_backbone::wire::kind_key::KindKey;
use longshore_domain::concurrency::session::Session;
use longshore_domain::concurrency::{ConcurrencyId, SlotRecord};
use longshore_domain::{SmolStr, Tenant, Timestamp, format_smolstr};

use crate::api::filter::PageRoom;
use crate::api::{Answered, Api, filter};
use crate::runtime::now;

/// How long a node has to say which runs work with its slots.
const ANSWER_WITHIN: Duration = Duration::from_millis(250);
/// So many runs are named in one answer, so that it fits into a message.
const RUNS_NAMED: usize = 1_000;
/// How often a write is tried: nodes write the record, too.
const TRIES: usize = 20;

/// The sessions that were read, with the times at which they were stored.
type Sessions = HashMap<SmolStr, Option<(Session, Timestamp)>>;

pub(crate) async fn list(api: &Api, asker: &str, asked: ConcurrencyRequest) -> Answered<ConcurrencyLimits> {
    let ConcurrencyRequest { tenant, job_type, limit, cursor } = asked;
    let own = filter::whose(asker, tenant.as_ref())?;
    let limit = filter::page_size(limit)?;
    let from = filter::cursor(cursor.as_deref())?;
    let mut found = api.backbone.slots().all().await?;
    // In the order in which they were written: one that changes meanwhile comes again, and none is left out.
    found.sort_unstable_by_key(|found| found.revision);
    let is_seen = |id: &ConcurrencyId| match (&id.key, &own) {
        (Some((tenant, _)), Some(own)) => tenant == own,
        _ => true,
    };
    let wanted = found.into_iter().filter(|FoundSlots { id, revision, .. }| {
        *revision >= from && is_seen(id) && job_type.as_ref().is_none_or(|wanted| *wanted == id.job_type)
    });
    let mut room = PageRoom::of(limit, api.backbone.max_payload());
    let (mut page, mut sessions, mut next) = (Vec::new(), Sessions::new(), None);
    for FoundSlots { id, record, revision } in wanted {
        let status = status(api, &id, &record, &mut sessions).await?;
        if status.holders.is_empty() {
            continue;
        }
        if !room.takes(&status) {
            next = Some(revision.to_string());
            break;
        }
        page.push((id, status));
    }
    name_runs(&api.backbone.slots(), &mut page, own.as_ref()).await;
    let limits = page.into_iter().map(|(_, status)| status).collect();
    Ok(Encoded::of(&ConcurrencyLimits { cursor: next, limits }))
}

pub(crate) async fn free(api: &Api, asked: FreeRequest) -> Answered<Freed> {
    let (id, records) = (limit_of(&asked)?, api.backbone.slots());
    for _ in 0..TRIES {
        let (record, revision) = records.read(&id).await?;
        let mut sessions = Sessions::new();
        read_sessions(&records, &record, &mut sessions).await?;
        let is_of = |session: &str, node: &SmolStr| {
            sessions.get(session).is_some_and(|found| found.as_ref().is_some_and(|(found, _)| found.node == *node))
        };
        let frees = |session: &str| {
            let is_meant = asked.session.as_ref().is_none_or(|meant| meant == session);
            is_meant && asked.node.as_ref().is_none_or(|node| is_of(session, node))
        };
        let (next, freed) = record.without(frees);
        let written = match freed {
            0 => Ok(Written::Won(revision)),
            _ => records.write(&id, &next, revision).await,
        };
        if let Written::Won(_) = written? {
            let mut page = [(id.clone(), status(api, &id, &next, &mut sessions).await?)];
            name_runs(&records, &mut page, None).await;
            let [(_, limit)] = page;
            return Ok(Encoded::of(&Freed { freed, limit }));
        }
    }
    Err(ApiError::unavailable("nodes kept writing this limit's record; ask again"))
}

fn limit_of(asked: &FreeRequest) -> Result<ConcurrencyId, ApiError> {
    let FreeRequest { job_type, tenant, concurrency_key, key_hash, .. } = asked;
    let key = match (concurrency_key, key_hash) {
        (None, None) => return Ok(ConcurrencyId { job_type: job_type.clone(), key: None }),
        (Some(key), None) => KindKey::of_keys(None, Some(key)),
        (None, Some(hash)) => KindKey::read(&format!("k{hash}"))
            .ok_or_else(|| ApiError::malformed("key_hash: is not a hash as concurrency.list shows it"))?,
        (Some(_), Some(_)) => return Err(ApiError::malformed("key_hash: give either it or concurrency_key")),
    };
    let tenant =
        tenant.clone().ok_or_else(|| ApiError::malformed("tenant: is missing; a key belongs to one tenant"))?;
    let hash = key.concurrency_key().unwrap_or_default().into();
    Ok(ConcurrencyId { job_type: job_type.clone(), key: Some((tenant, hash)) })
}

async fn read_sessions(records: &SlotRecords, record: &SlotRecord, sessions: &mut Sessions) -> Result<(), Error> {
    for (session, _) in record.blocks() {
        if !sessions.contains_key(session) {
            sessions.insert(session.clone(), records.session_at(session).await?);
        }
    }
    Ok(())
}

async fn status(
    api: &Api,
    id: &ConcurrencyId,
    record: &SlotRecord,
    sessions: &mut Sessions,
) -> Result<ConcurrencyStatus, Error> {
    read_sessions(&api.backbone.slots(), record, sessions).await?;
    let time = now();
    let holders = record.blocks().filter_map(|(session, block)| {
        // A session that is no longer stored is over.
        let (found, stored_at) = sessions.get(session)?.as_ref()?;
        let until = found.holds_until(block, *stored_at);
        let is_over = found.ended_at.is_some() && until <= time;
        let (node, session) = (found.node.clone(), session.clone());
        (!is_over).then_some(SlotHolder { node, runs: None, session, slots: block.slots, until })
    });
    let (tenant, key_hash) = id.key.clone().unzip();
    let max = api.slots.max_of(id).unwrap_or_default();
    Ok(ConcurrencyStatus { holders: holders.collect(), key_hash, max, tenant, job_type: id.job_type.clone() })
}

/// Asks each node which runs work with its slots, and names those that the tenant `own` may see.
async fn name_runs(records: &SlotRecords, page: &mut [(ConcurrencyId, ConcurrencyStatus)], own: Option<&Tenant>) {
    let mut of_nodes: BTreeMap<SmolStr, Vec<SmolStr>> = BTreeMap::new();
    for (id, status) in &*page {
        for holder in &status.holders {
            of_nodes.entry(holder.node.clone()).or_default().push(format_smolstr!("{id}"));
        }
    }
    let answers = join_all(of_nodes.into_iter().map(async |(node, limits)| {
        let answer = records.ask(&node, &SlotQuestion { limits }, ANSWER_WITHIN).await?;
        Some((answer.session, answer.runs))
    }));
    let answers: HashMap<SmolStr, _> = answers.await.into_iter().flatten().collect();
    let mut left = RUNS_NAMED;
    for (id, status) in page {
        for holder in &mut status.holders {
            let Some(runs) = answers.get(&holder.session) else { continue };
            let runs = runs.get(&format_smolstr!("{id}")).into_iter().flatten();
            let seen = runs.filter(|(tenant, _)| own.is_none_or(|own| own == tenant)).take(left);
            let seen = seen.map(|(tenant, run_id)| SlotRun { run_id: run_id.clone(), tenant: tenant.clone() });
            let seen: Vec<SlotRun> = seen.collect();
            left -= seen.len();
            holder.runs = Some(seen);
        }
    }
}

/// What one limit's record says now, with the runs of this tenant.
///
/// # Errors
/// It cannot be read.
pub(crate) async fn of(api: &Api, id: &ConcurrencyId, own: &Tenant) -> Result<ConcurrencyStatus, Error> {
    let records = api.backbone.slots();
    let (record, _) = records.read(id).await?;
    let mut page = [(id.clone(), status(api, id, &record, &mut Sessions::new()).await?)];
    name_runs(&records, &mut page, Some(own)).await;
    let [(_, status)] = page;
    Ok(status)
}
