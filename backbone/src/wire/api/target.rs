//! The runs that a request is about: one by its id, or those that match a filter; and the outcome for many.

use longshore_domain::{ErrorKind, JobType, Queue, RunId, RunState, Tenant, Timestamp};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::fields::{Fields, SELECTION, takes};
use super::{Cancelled, CancelledRuns, Discarded, Encoded, Record, Replayed, Rescheduled, RescheduledRuns};

/// Narrows the choice of runs. Every field that is set must match; an empty filter matches every run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filter {
    /// Of this queue.
    pub queue: Option<Queue>,
    /// Of exactly this type: there are no wildcards.
    pub job_type: Option<JobType>,
    /// With this tag.
    pub tag: Option<String>,
    /// With this value at a place of the payload by which its type's runs are found.
    pub search: Option<String>,
    /// In this state. `runs.cancel` and `dlq.list` only.
    pub state: Option<RunState>,
    /// With a last error of this kind.
    pub error_kind: Option<ErrorKind>,
    /// In this group of `dlq.groups`. `dlq.replay` and `dlq.discard` only.
    pub fingerprint: Option<String>,
    /// Finished, or if not finished, enqueued, at this time or later.
    pub since: Option<Timestamp>,
    /// Finished, or if not finished, enqueued, at this time or earlier.
    pub until: Option<Timestamp>,
}

impl Filter {
    /// Whether it matches every run.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// One run, or those that match.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// The run of this id.
    Run(RunId),
    /// Those that match. An empty filter is written on the wire as `all: true`: an empty request never means
    /// everything.
    Runs(Filter),
    /// All runs of this tenant. That narrows the choice only under `_all`; elsewhere it says
    /// nothing.
    Tenant(Tenant),
}

impl Target {
    /// The error for a request that names neither of these.
    pub const UNSAID: &str = "run_id: is missing; or give a filter, or all: true for everything";
}

/// The runs to change, and how many of them by one call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Fields", into = "Fields")]
pub struct Selection {
    /// Their tenant. Only under `_all` may it be another tenant; there it is required with a
    /// run's id.
    pub tenant: Option<Tenant>,
    /// Which runs.
    pub target: Target,
    /// At most this many, if a filter chooses; all by default. If dead letters are chosen, failures count, too.
    pub limit: Option<u64>,
    /// Only count what would be done.
    pub dry_run: bool,
}

impl Selection {
    /// Selects all of `target`, without a limit.
    pub fn of(target: Target) -> Self {
        Self { tenant: None, target, limit: None, dry_run: false }
    }
}

/// The outcome for many runs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Outcome {
    /// How many succeeded.
    pub done: u64,
    /// The failures: at most 100.
    pub failed: Vec<Failed>,
    /// How many failed, if more did than are listed.
    pub failed_in_all: Option<u64>,
    /// Whether the call ended before it had checked everything: then repeat it.
    pub more: bool,
}

/// A run for which the request failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Failed {
    /// Why it failed.
    pub error: String,
    /// The run.
    pub run_id: RunId,
}

impl Outcome {
    /// How many failures one answer lists; the rest are counted.
    const LISTED: usize = 100;

    /// The outcome, with as many failures as one answer lists.
    pub fn new(done: u64, mut failed: Vec<Failed>, more: bool) -> Self {
        let all = failed.len();
        failed.truncate(Self::LISTED);
        Self { done, failed_in_all: (all > failed.len()).then_some(all as u64), failed, more }
    }

    /// Counts what became of a run, whether anything was done to it: a failure in words, as long as one answer lists
    /// it.
    pub fn add(&mut self, result: Result<bool, Failed>) {
        match result {
            Ok(did) => self.done += u64::from(did),
            Err(_) if self.failed.len() == Self::LISTED => self.failed_in_all = Some(self.failures() + 1),
            Err(failed) => self.failed.push(failed),
        }
    }

    /// How many failed.
    pub fn failures(&self) -> u64 {
        self.failed_in_all.unwrap_or(self.failed.len() as u64)
    }
}

takes! {
    Selection: &SELECTION;
    fields => fields.selection();
    Selection { tenant, target, limit, dry_run } => {
        let tenant = tenant.as_ref();
        let fields = match target {
            Target::Run(run_id) => Self::of_run(&run_id, tenant),
            Target::Runs(filter) => Self { all: filter.is_empty(), ..Self::of_filter(filter, tenant) },
            Target::Tenant(tenant) => Self::of_filter(Filter::default(), Some(&tenant)),
        };
        Self { limit, dry_run, ..fields }
    }
}

/// Makes answers of an [`Outcome`], and that of them again: each has its own word for what was done. `or` names the
/// answer that is a run's record if one run was asked for by its id.
macro_rules! outcomes {
    ($($answer:ident.$done:ident $(or $either:ident)?),+) => {$(
        impl From<Outcome> for $answer {
            fn from(Outcome { done, failed, failed_in_all, more }: Outcome) -> Self {
                Self { $done: done, failed, failed_in_all, more }
            }
        }

        impl From<$answer> for Outcome {
            fn from($answer { $done: done, failed, failed_in_all, more }: $answer) -> Self {
                Self { done, failed, failed_in_all, more }
            }
        }

        $(
            impl From<$either> for Outcome {
                fn from(answer: $either) -> Self {
                    match answer {
                        $either::Run(_) => Self { done: 1, ..Self::default() },
                        $either::Runs(runs) => runs.into(),
                    }
                }
            }

            impl From<Encoded<Record>> for Encoded<$either> {
                fn from(record: Encoded<Record>) -> Self {
                    record.cast()
                }
            }
        )?
    )+};
}

outcomes! {
    CancelledRuns.cancelled or Cancelled,
    RescheduledRuns.rescheduled or Rescheduled,
    Replayed.replayed,
    Discarded.discarded
}

#[cfg(test)]
mod tests {
    use super::super::{DlqGroups, DlqList, Endpoint as _, RunsCancel, RunsErase, RunsGet};
    use super::*;

    fn refused(body: &str) -> String {
        RunsCancel::read(body.as_bytes()).unwrap_err().message
    }

    #[test]
    fn what_is_wrong_with_a_target_is_named() {
        for (body, said) in [
            ("{}", "run_id: is missing; or give a filter"),
            (r#"{"run_id":"a b"}"#, "run_id \"a b\" has a blank at byte 1"),
            (r#"{"run_id":"r","queue":"main"}"#, "run_id: stands beside"),
            (r#"{"run_id":"r","all":true}"#, "run_id: stands beside"),
            (r#"{"run_id":"r","tenant":"a.b"}"#, "tenant \"a.b\" has"),
            (r#"{"queue":"a.b"}"#, "queue \"a.b\" has"),
            (r#"{"type":"a..b"}"#, "type \"a..b\" begins or ends with a dot"),
            (r#"{"state":"asleep"}"#, "state: unknown word `asleep`, expected one of `scheduled`"),
            (r#"{"error_kind":"x"}"#, "error_kind: unknown word `x`"),
            (r#"{"since":"today"}"#, "since: "),
            (r#"{"until":"today"}"#, "until: "),
            (r#"{"all":true,"set":{}}"#, "set: is not a field of this endpoint; there are run_id, tenant, "),
            (r#"{"all":true,"everything":[]}"#, "everything: is not a field of this endpoint; there are "),
        ] {
            assert!(refused(body).starts_with(said), "{body}: {}", refused(body));
        }
    }

    #[test]
    fn each_endpoint_takes_its_own_fields_only() {
        let erase = RunsErase::read(br#"{"run_id":"r","limit":3}"#).unwrap_err();
        assert_eq!(
            (erase.code, erase.message.split(';').next()),
            (400, Some("limit: is not a field of this endpoint"))
        );
        assert!(
            RunsGet::read(br#"{"run_id":"r","timeout_ms":3}"#).unwrap_err().message.starts_with("timeout_ms: is not")
        );
        assert!(DlqList::read(br#"{"state":"dead"}"#).is_ok());
        assert!(DlqGroups::read(br#"{"state":"dead"}"#).unwrap_err().message.starts_with("state: is not a field"));
        assert!(DlqList::read(br#"{"run_id":"r"}"#).unwrap_err().message.starts_with("run_id: is not a field"));
    }

    #[test]
    fn nothing_is_never_taken_for_everything() {
        let read = |body: &str| RunsCancel::read(body.as_bytes()).unwrap().target;
        assert_eq!(read(r#"{"all":true}"#), Target::Runs(Filter::default()));
        let main = Filter { queue: Some(Queue::main()), ..Filter::default() };
        assert_eq!(read(r#"{"all":true,"queue":"main"}"#), Target::Runs(main.clone()));
        assert_eq!(read(r#"{"tenant":"acme","queue":"main"}"#), Target::Runs(main.clone()));
        assert_eq!(read(r#"{"tenant":"_"}"#), Target::Tenant(Tenant::unreadable()));
        assert_eq!(read(r#"{"tenant":"acme","all":true}"#), Target::Runs(Filter::default()));
        let written = |target| serde_json::to_string(&Selection::of(target)).unwrap();
        assert_eq!(written(Target::Runs(Filter::default())), r#"{"all":true}"#);
        assert_eq!(written(Target::Runs(main)), r#"{"queue":"main"}"#);
        assert_eq!(written(Target::Tenant(Tenant::unreadable())), r#"{"tenant":"_"}"#);
        assert_eq!(written(Target::Run(RunId::parse("r").unwrap())), r#"{"run_id":"r"}"#);
    }

    #[test]
    fn an_outcome_lists_a_hundred_failures_and_counts_the_rest() {
        let failed = |count: usize| vec![Failed { error: "no".to_owned(), run_id: RunId::parse("r").unwrap() }; count];
        let few = Outcome::new(1, failed(100), false);
        assert_eq!((few.failed.len(), few.failed_in_all, few.failures()), (100, None, 100));
        let many = Outcome::new(1, failed(101), true);
        assert_eq!((many.failed.len(), many.failed_in_all, many.failures()), (100, Some(101), 101));
    }
}
