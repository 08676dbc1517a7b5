//! Reading dead letters: one, a page of them, or groups of those that failed alike.

use std::collections::BTreeMap;

use base64::Engine as _;
use futures_util::{Stream, StreamExt as _, TryStreamExt as _};
use longshore_backbone::dead_letters::StoredDeadLetter;
use longshore_backbone::request::Stored;
use longshore_backbone::scan::Source;
use longshore_backbone::wire::api::{
    ApiError, DeadJob, DeadLetter, Encoded, Example, Group, Groups, GroupsRequest, ListRequest, Page, Record, RunError,
    RunRequest,
};
use longshore_backbone::wire::header::names;
use longshore_backbone::wire::record;
use longshore_domain::protocol::{DeadLetterVerdict, on_dead_letter};
use longshore_domain::{Run, RunId, Tenant, Timestamp};

use crate::api::filter::{self, RunFilter, limit, mark, page_size};
use crate::api::{Answered, Api};
use crate::runtime::now;

/// Records that are read at once.
const AT_ONCE: usize = 64;
/// Dead letters that one call groups, and into how many groups; the next call goes on from the cursor.
const GROUPED: usize = 100_000;
const GROUPS: usize = 1_000;

pub(crate) fn subject(api: &Api, filter: &RunFilter) -> String {
    let (queue, job_type) = (filter.wanted.queue.as_ref(), filter.wanted.job_type.as_ref());
    api.backbone.names().dead_letters_where(filter.tenant.as_ref(), queue, job_type)
}

async fn standing(api: &Api, dead_letter: StoredDeadLetter) -> Result<Option<(StoredDeadLetter, Run)>, ApiError> {
    let found = recorded(api, &dead_letter.run.tenant, &dead_letter.run.run_id).await?;
    Ok(stands(found, dead_letter))
}

/// The stored run of a dead letter. A record that cannot be read counts as one that has gone: the dead letter has the
/// run as it died.
async fn recorded(api: &Api, tenant: &Tenant, run_id: &RunId) -> Result<Option<Run>, ApiError> {
    match api.backbone.read_record(tenant, run_id).await {
        Ok(found) => Ok(found.map(|found| found.run)),
        Err(error) if error.unreadable_at().is_some() => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// A dead letter with its run as stored, which has the whole history, if the dead letter still stands: if its run went
/// on, it is about to be deleted.
pub(crate) fn stands(found: Option<Run>, dead_letter: StoredDeadLetter) -> Option<(StoredDeadLetter, Run)> {
    let run = match on_dead_letter(found.as_ref(), dead_letter.run.round, dead_letter.run.origin) {
        DeadLetterVerdict::Stands => found.unwrap_or_else(|| dead_letter.run.clone()),
        DeadLetterVerdict::OtherRun => dead_letter.run.clone(),
        DeadLetterVerdict::Replayed | DeadLetterVerdict::Stale | DeadLetterVerdict::StaleRecord => return None,
    };
    Some((dead_letter, run))
}

/// The dead letters of a page that fit and stand, in their order; `None` in place of those that do not stand.
fn those_that_stand(
    api: &Api,
    filter: &RunFilter,
    page: Vec<Stored>,
) -> impl Stream<Item = Result<Option<(StoredDeadLetter, Run)>, ApiError>> {
    let dead_letters =
        page.into_iter().filter_map(StoredDeadLetter::read).filter(|dead_letter| filter.fits(&dead_letter.run));
    futures_util::stream::iter(dead_letters.map(|dead_letter| standing(api, dead_letter))).buffered(AT_ONCE)
}

/// The dead letters of a page that are meant, in their order.
pub(super) async fn meant(
    api: &Api,
    filter: &RunFilter,
    page: impl Iterator<Item = Stored>,
) -> Result<Vec<StoredDeadLetter>, ApiError> {
    let fit = page.filter_map(StoredDeadLetter::read).filter(|dead_letter| filter.fits(&dead_letter.run));
    let judged = fit.map(|dead_letter| async move {
        let is_meant = is_in_group(api, filter, &dead_letter).await?;
        Ok::<_, ApiError>(is_meant.then_some(dead_letter))
    });
    let judged: Vec<_> = judged.collect();
    let judged: Vec<_> = futures_util::stream::iter(judged).buffered(AT_ONCE).try_collect().await?;
    Ok(judged.into_iter().flatten().collect())
}

/// Whether a dead letter is of the group that is wanted, if one is. As [`groups`] has it: by the stored run, of whose
/// error the dead letter may have the beginning alone.
async fn is_in_group(api: &Api, filter: &RunFilter, dead_letter: &StoredDeadLetter) -> Result<bool, ApiError> {
    let run = &dead_letter.run;
    // It is cut at the end of a character.
    let may_be_cut = run.error.as_ref().is_some_and(|error| error.message.len() + 4 > record::SHORT_MESSAGE);
    if filter.wanted.fingerprint.is_none() || !may_be_cut {
        return Ok(filter.has_in_group(run));
    }
    let found = recorded(api, &run.tenant, &run.run_id).await?;
    let stands = on_dead_letter(found.as_ref(), run.round, run.origin) == DeadLetterVerdict::Stands;
    Ok(filter.has_in_group(found.as_ref().filter(|_| stands).unwrap_or(run)))
}

pub(crate) async fn list(api: &Api, asker: &str, asked: ListRequest) -> Answered<Page> {
    let filter = RunFilter { tenant: filter::whose(asker, asked.tenant.as_ref())?, wanted: asked.filter };
    let limit = page_size(asked.limit)?;
    // An answer is one message: it stays well below the server's limit.
    let mut room = api.backbone.max_payload() * 3 / 4;
    let (mut entries, mut from) = (Vec::new(), Some(filter::cursor(asked.cursor.as_deref())?));
    let subject = subject(api, &filter);
    while let Some(at) = from {
        let _room = api.pages.acquire().await;
        let page = api.backbone.page(&Source::DeadLetters, &subject, at).await?;
        from = page.next;
        let mut inspected = those_that_stand(api, &filter, page.messages);
        while let Some(dead_letter) = inspected.next().await {
            let Some((dead_letter, run)) = dead_letter? else { continue };
            let whole = show(&dead_letter, &run);
            if entries.len() == limit || (whole.size() > room && !entries.is_empty()) {
                return Ok(Page { entries, cursor: Some(dead_letter.sequence.to_string()) }.into());
            }
            // An entry that fills a page by itself is listed without the parts that make it large; `dlq.get` has more
            // of it.
            let entry = within(&dead_letter, &run, whole, room);
            room = room.saturating_sub(entry.size());
            entries.push(entry);
        }
    }
    Ok(Page { entries, cursor: None }.into())
}

pub(crate) async fn get(api: &Api, asker: &str, asked: RunRequest) -> Answered<DeadLetter> {
    let (tenant, run_id) = filter::one(asker, asked)?;
    let (dead_letter, run) = find(api, &tenant, &run_id).await?;
    Ok(within(&dead_letter, &run, show(&dead_letter, &run), api.backbone.max_in_answer()))
}

/// The dead letter of a run, and the run; that there is none is certain, so that it may be said.
pub(crate) async fn find(api: &Api, tenant: &Tenant, run_id: &RunId) -> Result<(StoredDeadLetter, Run), ApiError> {
    let run = recorded(api, tenant, run_id).await?;
    let dead_letter = api.backbone.find_dead_letter_for_certain(tenant, run_id, run.as_ref()).await?;
    let judge =
        |dead_letter: &StoredDeadLetter| on_dead_letter(run.as_ref(), dead_letter.run.round, dead_letter.run.origin);
    let dead_letter = dead_letter.filter(|dead_letter| judge(dead_letter) != DeadLetterVerdict::Stale);
    let dead_letter = dead_letter.ok_or_else(|| {
        ApiError::not_found(format!("run_id: no dead letter of run {run_id} of tenant {tenant}"))
            .hint("only dead runs have one: runs.get shows the run's state, dlq.list the dead letters of the tenant")
    })?;
    let run = run.filter(|run| run.origin == dead_letter.run.origin).unwrap_or_else(|| dead_letter.run.clone());
    Ok((dead_letter, run))
}

/// A dead letter as the API shows it: its run's record, the job's payload and headers, and the fingerprint of its
/// group.
fn show(dead_letter: &StoredDeadLetter, run: &Run) -> Encoded<DeadLetter> {
    described(dead_letter, run, record::show(run), dead_letter.left_out)
}

/// The same in at most `max` bytes: first the payload is left out, then the part of the history that does not fit.
fn within(dead_letter: &StoredDeadLetter, run: &Run, whole: Encoded<DeadLetter>, max: usize) -> Encoded<DeadLetter> {
    if whole.size() <= max {
        return whole;
    }
    let bytes = dead_letter.left_out.unwrap_or(dead_letter.payload.len() as u64);
    let record = record::show(run);
    let in_record = record.size();
    let without = described(dead_letter, run, record, Some(bytes));
    if without.size() <= max {
        return without;
    }
    let beside = without.size() - in_record;
    described(dead_letter, run, record::show_within(run, max.saturating_sub(beside)), Some(bytes))
}

fn described(
    dead_letter: &StoredDeadLetter,
    run: &Run,
    record: Encoded<Record>,
    left_out: Option<u64>,
) -> Encoded<DeadLetter> {
    let mut headers: BTreeMap<String, String> = BTreeMap::new();
    for (name, values) in dead_letter.headers.iter() {
        headers.insert(name.to_string(), values.last().map_or_else(String::new, |value| value.as_str().to_owned()));
    }
    headers.remove(names::RUN_ID);
    let payload = || base64::engine::general_purpose::STANDARD.encode(&dead_letter.payload);
    let payload_base64 = left_out.is_none().then(payload);
    record.with_job(&DeadJob { headers, payload_base64, payload_bytes: left_out, fingerprint: mark(run).2 })
}

/// Hours for which a group says how many died.
const HOURS: usize = 24;

/// The endpoint `dlq.groups`: dead letters by the cause of their failure, the largest group first.
pub(crate) async fn groups(api: &Api, asker: &str, asked: GroupsRequest) -> Answered<Groups> {
    let filter = RunFilter { tenant: filter::whose(asker, asked.tenant.as_ref())?, wanted: asked.filter };
    let limit = limit(asked.limit)?;
    let (subject, now) = (subject(api, &filter), now());
    let (mut groups, mut seen, mut from) =
        (BTreeMap::<String, Group>::new(), 0, Some(filter::cursor(asked.cursor.as_deref())?));
    'pages: while let Some(at) = from.filter(|_| seen < GROUPED) {
        let _room = api.pages.acquire().await;
        let page = api.backbone.page(&Source::DeadLetters, &subject, at).await?;
        seen += page.messages.len();
        from = page.next;
        let mut inspected = those_that_stand(api, &filter, page.messages);
        while let Some(dead_letter) = inspected.next().await {
            let Some((dead_letter, run)) = dead_letter? else { continue };
            if !count(&mut groups, run, now) {
                from = Some(dead_letter.sequence);
                break 'pages;
            }
        }
    }
    let mut groups: Vec<Group> = groups.into_values().collect();
    groups.sort_by_key(|group| std::cmp::Reverse(group.count));
    groups.truncate(limit.unwrap_or(usize::MAX));
    Ok(Encoded::of(&Groups { cursor: from.map(|next| next.to_string()), groups }))
}

/// Counts a run; false: it is of one more group than one call has.
fn count(groups: &mut BTreeMap<String, Group>, run: Run, now: Timestamp) -> bool {
    let at = run.state.ended_at().unwrap_or(run.origin);
    let (kind, pattern, fingerprint) = mark(&run);
    if groups.len() >= GROUPS && !groups.contains_key(&fingerprint) {
        return false;
    }
    let group = groups.entry(fingerprint).or_insert_with_key(|fingerprint| {
        let error = run.error.map(|error| RunError { kind: error.kind.into(), message: error.message });
        Group {
            count: 0,
            error_kind: kind.into(),
            example: Example { error, run_id: run.run_id, tenant: run.tenant },
            fingerprint: fingerprint.clone(),
            first: at,
            hours: vec![0; HOURS],
            last: at,
            pattern,
            job_type: run.job_type,
        }
    });
    group.count += 1;
    group.first = group.first.min(at);
    group.last = group.last.max(at);
    let ago = usize::try_from(now.since(at).as_secs() / 3600).unwrap_or(HOURS);
    if let Some(hour) = group.hours.iter_mut().rev().nth(ago) {
        *hour += 1;
    }
    true
}

#[cfg(test)]
mod tests;
