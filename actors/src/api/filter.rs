//! The target of a request: which runs the caller may see, and which of those it means. One answer for all endpoints.

use longshore_backbone::request::Stored;
use longshore_backbone::scan::Source;
use longshore_backbone::wire::api::{self, ApiError, Code, OPERATOR, RunRequest, Selection, Target};
use longshore_backbone::wire::header::names;
use longshore_backbone::wire::subject::Names;
use longshore_domain::fingerprint::{fingerprint, pattern};
use longshore_domain::{ErrorKind, Lane, Queue, QueueLane, Run, RunId, Tenant};
use serde::Serialize;

/// The runs that are meant: those that fit, of one tenant or, for the operator, of all.
#[derive(Debug, Clone, Default)]
pub(crate) struct RunFilter {
    /// `None`: every tenant's.
    pub(crate) tenant: Option<Tenant>,
    pub(crate) wanted: api::Filter,
}

/// One run, or those that fit.
#[derive(Debug)]
pub(crate) enum Chosen {
    One(Tenant, RunId),
    Those(RunFilter),
}

/// The group of a run: its error's kind and pattern, and a fingerprint of both and the type.
pub(crate) fn mark(run: &Run) -> (ErrorKind, String, String) {
    let kind = run.error.as_ref().map_or(ErrorKind::Permanent, |error| error.kind);
    let pattern = run.error.as_ref().map(|error| pattern(&error.message)).unwrap_or_default();
    let fingerprint = fingerprint(&run.job_type, kind, &pattern);
    (kind, pattern, fingerprint)
}

/// The tenant whose runs are meant: a tenant sees only its own, the operator all (`None`), or those of a tenant it
/// names.
pub(crate) fn whose(asker: &str, named: Option<&Tenant>) -> Result<Option<Tenant>, ApiError> {
    match (asker, named) {
        (OPERATOR, named) => Ok(named.cloned()),
        (own, Some(named)) if own != named.as_str() => {
            Err(ApiError::new(Code::Forbidden, "tenant: a tenant sees its own runs only")
                .hint("ask under the tenant whose runs are meant, or as the operator"))
        }
        (own, _) => Tenant::parse(own).map(Some).map_err(|error| ApiError::malformed(error.to_string())),
    }
}

/// The tenant of a thing that a tenant makes, which the operator has to name: `id` and `of` say of what.
pub(crate) fn whose_one(asker: &str, named: Option<&Tenant>, id: &str, of: &str) -> Result<Tenant, ApiError> {
    let tenant = exactly_one(asker, named, id, of)?;
    // What stands for an unreadable tenant makes nothing.
    Tenant::parse(tenant.as_str()).map_err(|error| ApiError::malformed(format!("tenant: {}", error.reason)))
}

fn exactly_one(asker: &str, named: Option<&Tenant>, id: &str, of: &str) -> Result<Tenant, ApiError> {
    let missing = || format!("tenant: is missing; {id} asked for under {OPERATOR} needs the {of}'s tenant");
    whose(asker, named)?.ok_or_else(|| ApiError::malformed(missing()))
}

/// The one run that is meant.
pub(crate) fn one(asker: &str, asked: RunRequest) -> Result<(Tenant, RunId), ApiError> {
    Ok((exactly_one(asker, asked.tenant.as_ref(), "a run_id", "run")?, asked.run_id))
}

/// One run, or those that fit.
pub(crate) fn which(asker: &str, asked: Selection) -> Result<Chosen, ApiError> {
    let tenant = asked.tenant.as_ref();
    match asked.target {
        Target::Run(run_id) => Ok(Chosen::One(exactly_one(asker, tenant, "a run_id", "run")?, run_id)),
        Target::Runs(wanted) => Ok(Chosen::Those(RunFilter { tenant: whose(asker, tenant)?, wanted })),
        Target::Tenant(named) => match whose(asker, Some(&named))? {
            tenant if asker == OPERATOR => Ok(Chosen::Those(RunFilter { tenant, wanted: api::Filter::default() })),
            _ => Err(ApiError::malformed(Target::UNSAID)),
        },
    }
}

/// The run whose job a message outside of lanes is; `None`: it is none, such as the tick of a recurring schedule.
pub(super) fn run_of(stored: &Stored) -> Option<(Tenant, RunId)> {
    let tenant = Tenant::parse(stored.subject.split('.').nth(2)?).ok()?;
    Some((tenant, RunId::parse(stored.headers.get(names::RUN_ID)?.as_str()).ok()?))
}

/// Entries on a page if the client does not say.
const PAGE: usize = 100;
/// Maximum number of entries on a page, or groups in an answer.
const PAGE_MAX: usize = 500;

pub(super) fn limit(asked: Option<u64>) -> Result<Option<usize>, ApiError> {
    match asked.map(usize::try_from) {
        Some(Ok(limit)) if (1..=PAGE_MAX).contains(&limit) => Ok(Some(limit)),
        Some(_) => Err(ApiError::malformed(format!("limit: is not one of 1 to {PAGE_MAX}"))),
        None => Ok(None),
    }
}

pub(crate) fn page_size(asked: Option<u64>) -> Result<usize, ApiError> {
    Ok(limit(asked)?.unwrap_or(PAGE))
}

/// What a page still has room for: entries, and bytes up to half of a message.
pub(crate) struct PageRoom {
    entries: usize,
    bytes: usize,
}

impl PageRoom {
    pub(crate) fn of(entries: usize, max_payload: usize) -> Self {
        Self { entries, bytes: max_payload / 2 }
    }

    /// Whether there is room for the entry, which takes it then.
    pub(crate) fn takes(&mut self, entry: &impl Serialize) -> bool {
        let size = serde_json::to_vec(entry).map_or(0, |text| text.len() + 1);
        let left = self.entries.checked_sub(1).zip(self.bytes.checked_sub(size));
        if let Some(left) = left {
            (self.entries, self.bytes) = left;
        }
        left.is_some()
    }
}

/// The position at which a list goes on.
pub(crate) fn cursor(text: Option<&str>) -> Result<u64, ApiError> {
    let read = |text: &str| text.parse().map_err(|_| ApiError::malformed("cursor: is not a cursor of this endpoint"));
    text.map_or(Ok(1), read)
}

impl RunFilter {
    /// A lane, and the subject in it of the jobs whose runs may be meant.
    pub(super) fn in_lane(&self, names: &Names, queue: &Queue, lane: QueueLane) -> (Source, String) {
        let (tenant, job_type) = (self.tenant.as_ref(), self.wanted.job_type.as_ref());
        let subject = match lane {
            QueueLane::Of(priority) => names.jobs_where(tenant, &Lane::new(queue, priority), job_type),
            QueueLane::Returned => names.returned_where(tenant, queue, job_type),
        };
        (Source::Lane(queue.clone(), lane), subject)
    }

    /// Whether it asks for nothing that only a run's record says.
    pub(crate) fn fits_whatever_runs_say(&self) -> bool {
        let api::Filter { queue, job_type, until, .. } = self.wanted.clone();
        self.wanted == api::Filter { queue, job_type, until, ..api::Filter::default() }
    }

    /// Whether a run is meant, if it is of the group that is wanted. `since` and `until` compare the time it ended or,
    /// if it has not ended, the time since when it waits.
    pub(crate) fn fits(&self, run: &Run) -> bool {
        let at = run.state.ended_at().or(run.enqueued_at).unwrap_or(run.origin);
        let api::Filter { queue, job_type, tag, search, state, error_kind, since, until, .. } = &self.wanted;
        self.tenant.as_ref().is_none_or(|tenant| run.tenant == *tenant)
            && queue.as_ref().is_none_or(|queue| run.queue == *queue)
            && job_type.as_ref().is_none_or(|job_type| run.job_type == *job_type)
            && tag.as_ref().is_none_or(|tag| run.tags.contains(tag))
            && search.as_ref().is_none_or(|value| run.search.contains(value))
            && state.is_none_or(|state| run.state == state)
            && error_kind.is_none_or(|kind| run.error.as_ref().is_some_and(|error| error.kind == kind))
            && since.is_none_or(|since| at >= since)
            && until.is_none_or(|until| at <= until)
    }

    /// Whether a run is of the group that is wanted, if one is.
    pub(super) fn has_in_group(&self, run: &Run) -> bool {
        self.wanted.fingerprint.as_ref().is_none_or(|fingerprint| mark(run).2 == *fingerprint)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use longshore_backbone::wire::api::{Endpoint as _, RunsCancel};
    use serde_json::{Value, json};

    fn asked(asker: &str, body: &Value) -> Result<Chosen, ApiError> {
        which(asker, RunsCancel::read(body.to_string().as_bytes())?)
    }

    #[test]
    fn a_tenant_sees_its_own_and_the_operator_all_or_one_that_it_names() {
        let refused = |asker, body| asked(asker, &body).unwrap_err();
        let other = refused("acme", json!({"all": true, "tenant": "other"}));
        assert!(other.code == 403 && other.message.starts_with("tenant: "), "{other}");
        let Chosen::Those(all) = asked(OPERATOR, &json!({"all": true})).unwrap() else { panic!("a filter") };
        assert!(all.tenant.is_none());
        let Chosen::Those(own) = asked("acme", &json!({"queue": "main"})).unwrap() else { panic!("a filter") };
        assert_eq!(own.tenant.unwrap().as_str(), "acme");
        let Chosen::Those(named) = asked(OPERATOR, &json!({"tenant": "_"})).unwrap() else { panic!("a filter") };
        assert_eq!((named.tenant, named.wanted.is_empty()), (Some(Tenant::unreadable()), true));
        assert_eq!(
            refused("acme", json!({"tenant": "acme"})).message,
            Target::UNSAID,
            "it says nothing that is not so"
        );
        assert_eq!(refused("acme", json!({"tenant": "other"})).code, 403);
        let unsaid = refused(OPERATOR, json!({"run_id": "r"}));
        assert!(unsaid.code == 400 && unsaid.message.starts_with("tenant: is missing"), "{unsaid}");
        let unreadable = json!({"run_id": "r", "tenant": "_"});
        assert!(asked("_", &unreadable).is_err() && asked(OPERATOR, &unreadable).is_ok());
        let made = |tenant| whose_one(OPERATOR, Some(&tenant), "an id", "webhook");
        assert!(made(Tenant::unreadable()).is_err() && made(Tenant::parse("acme").unwrap()).is_ok());
        let Chosen::One(tenant, run) = asked("acme", &json!({"run_id": "r"})).unwrap() else { panic!("one run") };
        assert_eq!((tenant.as_str(), run.as_str()), ("acme", "r"));
    }

    #[test]
    fn a_cursor_is_the_endpoints_own() {
        assert_eq!((cursor(None).unwrap(), cursor(Some("7")).unwrap()), (1, 7));
        assert!(cursor(Some("x")).unwrap_err().message.starts_with("cursor: "));
    }
}
