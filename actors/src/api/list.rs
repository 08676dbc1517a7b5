//! Lists and counts of runs. One call looks at a bounded number of messages and holds one page at a time, however many
//! runs there are; where it ends without having filled its page, its cursor goes on.

use std::collections::BTreeMap;
use std::time::Duration;

use longshore_backbone::claims::FoundClaim;
use longshore_backbone::wire::api::{
    Code, Count, CountRequest, Counts, Encoded, ListRequest, Record, RunRequest, Runs, RunsRequest,
};
use longshore_backbone::wire::record;
use longshore_domain::{Tenant, Timestamp};
use tokio::time::Instant;

use crate::api::filter::{self, RunFilter};
use crate::api::walk::{Seen, Walk};
use crate::api::{Answered, Api, runs};
use crate::attempt::keys;

/// Messages that one call of a list looks at, and for how long: it is answered soon also if nothing fits.
const LISTING: (usize, Duration) = (20_000, Duration::from_secs(2));
/// The same for a count.
const COUNTING: (usize, Duration) = (100_000, Duration::from_secs(5));
/// Groups that one call counts: types are named by clients, and an answer is one message.
const GROUPS: usize = 1_000;

pub(crate) async fn list(api: &Api, asker: &str, asked: RunsRequest) -> Answered<Runs> {
    match asked {
        RunsRequest::Those(asked) => those(api, asker, asked).await,
        RunsRequest::OfKey { key, tenant } => of_key(api, asker, &key, tenant).await,
    }
}

/// The run that has a key, alone: if the key is free again, the run that had it last. The page is empty if neither the
/// claim nor, where that outlasts it, the run's record is there.
async fn of_key(api: &Api, asker: &str, key: &str, tenant: Option<Tenant>) -> Answered<Runs> {
    let tenant = filter::whose_one(asker, tenant.as_ref(), "an idempotency_key", "run")?;
    let Some(FoundClaim { claim, .. }) = api.backbone.read_claim(&tenant, key).await? else {
        return Ok(page(Vec::new(), None, None, 0));
    };
    let holder = keys::holder(api, &tenant, &claim.run_id, &claim).await?;
    let run_id = holder.map_or(claim.run_id, |(run_id, _)| run_id);
    match runs::serve(api, asker, RunRequest { run_id, tenant: Some(tenant) }).await {
        Ok(run) => Ok(page(vec![run], None, None, 0)),
        Err(error) if error.code == Code::NotFound.number() => Ok(page(Vec::new(), None, None, 0)),
        Err(error) => Err(error),
    }
}

async fn those(api: &Api, asker: &str, asked: ListRequest) -> Answered<Runs> {
    let filter = RunFilter { tenant: filter::whose(asker, asked.tenant.as_ref())?, wanted: asked.filter };
    let limit = filter::page_size(asked.limit)?;
    let mut walk = Walk::begin(api, &filter, asked.cursor.as_deref()).await?;
    // An answer is one message: it stays well below the server's limit.
    let mut room = api.backbone.max_payload() * 3 / 4;
    let (until, mut runs) = (Instant::now() + LISTING.1, Vec::new());
    while let Some(position) = walk.position() {
        if runs.len() == limit || walk.inspected >= LISTING.0 || Instant::now() >= until {
            return Ok(page(runs, Some(position.to_string()), walk.searched_until, walk.unreadable));
        }
        for seen in walk.step().await? {
            let whole = record::show(&seen.run);
            if runs.len() == limit || (whole.size() > room && !runs.is_empty()) {
                return Ok(page(runs, Some(seen.here.to_string()), walk.searched_until, walk.unreadable));
            }
            let shown = if whole.size() > room { record::show_within(&seen.run, room) } else { whole };
            room = room.saturating_sub(shown.size() + 1);
            runs.push(shown);
        }
    }
    Ok(page(runs, None, walk.searched_until, walk.unreadable))
}

fn page(
    runs: Vec<Encoded<Record>>,
    cursor: Option<String>,
    searched_until: Option<Timestamp>,
    unreadable: u64,
) -> Encoded<Runs> {
    let complete = (runs.is_empty() && cursor.is_some()).then_some(false);
    let searched_until = searched_until.filter(|_| complete.is_some());
    Runs { runs, cursor, complete, searched_until, unreadable }.into()
}

pub(crate) async fn count(api: &Api, asker: &str, asked: CountRequest) -> Answered<Counts> {
    let filter = RunFilter { tenant: filter::whose(asker, asked.tenant.as_ref())?, wanted: asked.filter };
    let mut walk = Walk::begin(api, &filter, asked.cursor.as_deref()).await?;
    let (until, mut groups) = (Instant::now() + COUNTING.1, BTreeMap::<_, u64>::new());
    let cursor = 'walk: loop {
        let Some(position) = walk.position() else { break None };
        if walk.inspected >= COUNTING.0 || Instant::now() >= until {
            break Some(position);
        }
        for Seen { run, here } in walk.step().await? {
            let group = (run.queue, run.job_type, run.state.name());
            if groups.len() == GROUPS && !groups.contains_key(&group) {
                break 'walk Some(here);
            }
            *groups.entry(group).or_default() += 1;
        }
    };
    let counts = groups.into_iter();
    let counts = counts.map(|((queue, job_type, state), count)| Count { count, queue, state: state.into(), job_type });
    let cursor = cursor.map(|position| position.to_string());
    Ok(Encoded::of(&Counts { cursor, counts: counts.collect(), unreadable: walk.unreadable }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_page_that_is_not_the_last_one_says_so() {
        let at = Some(Timestamp::from_millis(7));
        let shown = |cursor: Option<&str>| {
            let page = page(Vec::new(), cursor.map(str::to_owned), at, 0).records().unwrap();
            (page.complete, page.searched_until)
        };
        assert_eq!((shown(Some("7")), shown(None)), ((Some(false), at), (None, None)));
    }
}
