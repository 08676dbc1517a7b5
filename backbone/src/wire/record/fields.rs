//! The fields of a record as they stand in JSON, which any version of a node or a person may have written, and the run
//! that they describe.
//!
//! In JSON a state is a word, and its data stand beside it. So a record can say what no run can be: that it waits for
//! its time, and not for which. Such a record is not refused, because then nothing could end its run. It is read as the
//! nearest state that a run can have, by these rules:
//!
//! * The word decides, and what a state does not have is dropped. One exception: a run that says that it is `scheduled`
//!   and parked is `enqueued`, because its job is where parked jobs are.
//! * A wait for no known time is over: it was until the run's origin, or, parked, since it was enqueued.
//! * A run that ended at no known time ended at its origin.
//! * A run whose dead letter was discarded died at no known time when its last attempt ended.
//! * A duplicate of no known run names itself.
//! * A run that says not which node accepted it was accepted by that of its first attempt: most are, so records leave
//!   it out.

use longshore_domain::concurrency::Turn;
use longshore_domain::run::{
    Attempt, Deferral, EndLog, Failure, Holding, Late, LogLine, RunResult, RunState, State, Step, Wait,
};
use longshore_domain::{BatchId, JobType, Priority, Queue, Run, RunId, SmolStr, Tenant, Timestamp, TraceId};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use crate::wire::json::any_json;

/// A record as it stands in JSON.
#[derive(Debug, Clone, Deserialize)]
#[cfg_attr(test, derive(serde::Serialize))]
pub(super) struct Fields {
    pub(super) run_id: RunId,
    pub(super) tenant: Tenant,
    pub(super) queue: Queue,
    pub(super) priority: Priority,
    #[serde(rename = "type")]
    pub(super) job_type: JobType,
    pub(super) state: RunState,
    pub(super) round: u32,
    #[serde(default)]
    pub(super) attempt: u32,
    pub(super) max_attempts: u32,
    pub(super) enqueued_at: Option<Timestamp>,
    pub(super) started_at: Option<Timestamp>,
    pub(super) ended_at: Option<Timestamp>,
    pub(super) run_at: Option<Timestamp>,
    pub(super) node: Option<SmolStr>,
    #[serde(default, deserialize_with = "any_json")]
    pub(super) progress: Option<Box<RawValue>>,
    #[serde(default)]
    pub(super) log: Vec<LogLine>,
    #[serde(default)]
    pub(super) steps: Vec<Step>,
    #[serde(default, deserialize_with = "any_json")]
    pub(super) result: Option<Box<RawValue>>,
    pub(super) result_base64: Option<String>,
    pub(super) result_content_type: Option<String>,
    pub(super) result_bytes: Option<u64>,
    pub(super) error: Option<Failure>,
    #[serde(default)]
    pub(super) attempts: Vec<Attempt>,
    #[serde(default)]
    pub(super) tags: Vec<String>,
    #[serde(default)]
    pub(super) search: Vec<String>,
    pub(super) duplicate_of: Option<RunId>,
    pub(super) parent_run_id: Option<RunId>,
    pub(super) then: Option<JobType>,
    pub(super) batch_id: Option<BatchId>,
    pub(super) deferral: Option<Deferral>,
    #[serde(default)]
    pub(super) deferrals: u32,
    pub(super) late: Option<Box<Late>>,
    #[serde(default)]
    pub(super) parked: bool,
    pub(super) keep_ms: Option<u64>,
    pub(super) erased_at: Option<Timestamp>,
    pub(super) trace_id: Option<TraceId>,
    pub(super) accepted_by: Option<SmolStr>,
    pub(super) ended_by: Option<SmolStr>,
    pub(super) died_at: Option<Timestamp>,
    #[serde(default)]
    pub(super) end_log: EndLog,
    pub(super) key_claimed_ms: Option<u64>,
    pub(super) unique_key: Option<String>,
    #[serde(default)]
    pub(super) replaces: bool,
    pub(super) starts_by: Option<Timestamp>,
    #[serde(default)]
    pub(super) published: bool,
    #[serde(default)]
    pub(super) seal: SmolStr,
    pub(super) turn: Option<Box<Turn>>,
    pub(super) held_by: Option<Holding>,
    #[serde(default)]
    pub(super) origin: Timestamp,
    #[serde(default)]
    pub(super) token: SmolStr,
    #[serde(flatten)]
    pub(super) unknown: Map<String, Value>,
}

impl Fields {
    pub(super) fn into_run(mut self) -> Run {
        let state = self.take_state();
        let mut run = Run {
            state,
            run_id: self.run_id,
            tenant: self.tenant,
            queue: self.queue,
            priority: self.priority,
            job_type: self.job_type,
            round: self.round,
            attempt: self.attempt,
            max_attempts: self.max_attempts,
            enqueued_at: self.enqueued_at,
            started_at: self.started_at,
            node: self.node,
            accepted_by: self.accepted_by,
            ended_by: self.ended_by,
            progress: self.progress,
            log: self.log,
            steps: self.steps,
            error: self.error,
            late: self.late,
            attempts: self.attempts,
            tags: self.tags,
            search: self.search,
            parent: self.parent_run_id,
            then: self.then,
            batch: self.batch_id,
            deferral: self.deferral,
            deferrals: self.deferrals,
            keep_ms: self.keep_ms,
            erased_at: self.erased_at,
            trace_id: self.trace_id,
            key_claimed_ms: self.key_claimed_ms,
            unique_key: self.unique_key,
            replaces: self.replaces,
            starts_by: self.starts_by,
            published: self.published,
            seal: self.seal,
            turn: self.turn,
            held_by: self.held_by,
            origin: self.origin,
            token: self.token,
            unknown: (!self.unknown.is_empty()).then(|| Box::new(self.unknown)),
        };
        if run.accepted_by.is_none() {
            run.accepted_by = run.first_node().cloned();
        }
        run
    }

    fn take_state(&mut self) -> State {
        let ended_at = self.ended_at.unwrap_or(self.origin);
        match self.state {
            RunState::Scheduled if !self.parked => State::Scheduled { at: self.run_at.unwrap_or(self.origin) },
            RunState::Scheduled | RunState::Enqueued => State::Enqueued { wait: self.wait() },
            RunState::Running => State::Running,
            RunState::Retrying => State::Retrying { wait: self.wait().unwrap_or(Wait::Until(self.origin)) },
            RunState::Completed => State::Completed { ended_at, result: self.take_result() },
            RunState::Dead => State::Dead { ended_at },
            RunState::Cancelled => State::Cancelled { ended_at, left: self.wait(), end_log: self.end_log },
            RunState::Expired => State::Expired { ended_at },
            RunState::Duplicate => {
                let of = self.duplicate_of.take().unwrap_or_else(|| self.run_id.clone());
                State::Duplicate { ended_at, of, left: self.wait() }
            }
            RunState::Discarded => {
                let last = self.attempts.last().and_then(|last| last.ended_at);
                State::Discarded { ended_at, died_at: self.died_at.or(last).unwrap_or(ended_at) }
            }
        }
    }

    fn wait(&self) -> Option<Wait> {
        if self.parked {
            return Some(Wait::Parked { since: self.run_at.or(self.enqueued_at).unwrap_or(self.origin) });
        }
        self.run_at.map(Wait::Until)
    }

    fn take_result(&mut self) -> RunResult {
        let content_type = self.result_content_type.take();
        match (self.result.take(), self.result_base64.take(), self.result_bytes) {
            (Some(json), _, _) => RunResult::Json(json),
            (None, Some(base64), _) => RunResult::Other { base64, content_type },
            (None, None, Some(bytes)) => RunResult::TooLarge { bytes, content_type },
            (None, None, None) => RunResult::None,
        }
    }
}
