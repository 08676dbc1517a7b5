//! The run record: the stored facts about a run, and the fence that decides which node may continue it.
//!
//! The contract defines what a record says (section 3), and the backbone reads and writes its JSON. The protocol needs
//! some more fields: `held_by` names the message that carries the run and its claimed delivery, `origin` says when the
//! run was first published, `token` identifies the writer of this version, so that a read can settle an unclear answer
//! to a write, `seal` proves that a node wrote a message of the run, `published` and `key_claimed_ms` say which steps
//! `submit` has completed.

use std::time::Duration;

use serde_json::value::RawValue;
use serde_json::{Map, Value};
use smol_str::SmolStr;

pub use attempt::{Attempt, Detached, PutBack};
pub use failure::{ErrorKind, Failure, MESSAGE_MAX};
pub use holding::{Holding, MessageId};
pub use late::{Late, LateEnd, OnLate};
pub use log::LogLine;
pub use result::RunResult;
pub use state::{EndLog, RunState, State, Wait};
pub use steps::Step;
pub use wait::{DeferReason, Deferral};

use crate::concurrency::{OrderId, Turn};
use crate::{BatchId, Job, JobType, Lane, Priority, Queue, RunId, Tenant, Timestamp, TraceId};

mod attempt;
mod failure;
mod holding;
mod late;
mod log;
mod result;
mod settle;
mod shorten;
mod state;
mod steps;
mod wait;

/// A record keeps this many of a run's last error messages whole, and the first 200 bytes of earlier ones.
const WHOLE_MESSAGES: usize = 32;
const SHORT_MESSAGE: usize = 200;

/// In this time a node that has cancelled a run puts that into the event log, if nothing goes wrong. If its message
/// comes meanwhile, it is put off; if the node has died, the log is so much later.
pub const LOGGED_WITHIN: Duration = Duration::from_secs(5);

/// The run record.
#[derive(Debug, Clone)]
pub struct Run {
    /// Its id, unique within the tenant.
    pub run_id: RunId,
    /// The tenant that owns it.
    pub tenant: Tenant,
    /// The queue in which its job waits or waited.
    pub queue: Queue,
    /// How urgent it is.
    pub priority: Priority,
    /// The type of work.
    pub job_type: JobType,
    /// Its state.
    pub state: State,
    /// 1, and one more with each replay.
    pub round: u32,
    /// The attempt that was last started in this round; 0 before the first.
    pub attempt: u32,
    /// The maximum number of attempts in a round.
    pub max_attempts: u32,
    /// When it began to wait for a worker.
    pub enqueued_at: Option<Timestamp>,
    /// When its first attempt started.
    pub started_at: Option<Timestamp>,
    /// The node that works or last worked on it.
    pub node: Option<SmolStr>,
    /// The node that wrote the first record of its round. Events that are about no attempt name it, whichever node
    /// publishes them; `None` before there is a record.
    pub accepted_by: Option<SmolStr>,
    /// The node that ended it, if it has ended; its end's event names it if no attempt was started.
    pub ended_by: Option<SmolStr>,
    /// The progress that its handler last reported.
    pub progress: Option<Box<RawValue>>,
    /// The last lines that its handlers wrote into its log, over all its attempts, the oldest first.
    pub log: Vec<LogLine>,
    /// The steps that its handlers have finished.
    pub steps: Vec<Step>,
    /// Why it last failed.
    pub error: Option<Failure>,
    /// How its last attempt ends, if that goes on after its handler's reply.
    pub late: Option<Box<Late>>,
    /// Every attempt of every round.
    pub attempts: Vec<Attempt>,
    /// For people and filters.
    pub tags: Vec<String>,
    /// The values of its payload by which it is found, if its type declares some ([`crate::search`]).
    pub search: Vec<String>,
    /// Its last deferral.
    pub deferral: Option<Deferral>,
    /// How often it was deferred in this round; distinguishes the waits of one attempt.
    pub deferrals: u32,
    /// The run that it follows in a chain.
    pub parent: Option<RunId>,
    /// The type of the job that follows once it has completed.
    pub then: Option<JobType>,
    /// The batch that it belongs to.
    pub batch: Option<BatchId>,
    /// How long the record is kept once the run has ended, in milliseconds, if the job or its type sets a time.
    pub keep_ms: Option<u64>,
    /// When its personal data was removed.
    pub erased_at: Option<Timestamp>,
    /// The trace that it belongs to, if its publisher named one or the node writes traces.
    pub trace_id: Option<TraceId>,
    /// The run owns its idempotency key, claimed for this many milliseconds; absent until that is certain.
    pub key_claimed_ms: Option<u64>,
    /// The idempotency key that it gives back when it ends; only if the scope of its key says that an end frees it.
    pub unique_key: Option<String>,
    /// `submit` was asked to replace the run that has its key: it takes the key from a run that was not started.
    pub replaces: bool,
    /// A debounced job starts by then, however often it is replaced.
    pub starts_by: Option<Timestamp>,
    /// `submit` made this record, and the message or schedule that it then wrote is durable.
    pub published: bool,
    /// Proves that a node wrote a message of this run; empty as long as there was no such message.
    pub seal: SmolStr,
    /// Its place in the order of its concurrency key, if its type is `ordered` and a node has met its job.
    pub turn: Option<Box<Turn>>,
    /// The message that carries it.
    pub held_by: Option<Holding>,
    /// When it was first published.
    pub origin: Timestamp,
    /// Identifies the writer of this version of the record.
    pub token: SmolStr,
    /// Fields of the record that this version does not know: a newer one wrote them, and finds them again.
    pub unknown: Option<Box<Map<String, Value>>>,
}

/// A time span as the record stores it, in whole milliseconds.
pub fn whole_millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

impl Run {
    /// A run that has no record yet, waiting since `enqueued_at`.
    pub fn new(job: &Job, max_attempts: u32, enqueued_at: Timestamp) -> Self {
        Self {
            run_id: job.run_id.clone(),
            tenant: job.tenant.clone(),
            queue: job.queue.clone(),
            priority: job.priority,
            job_type: job.job_type.clone(),
            state: State::Enqueued { wait: None },
            round: 1,
            attempt: 0,
            max_attempts,
            enqueued_at: Some(enqueued_at),
            started_at: None,
            node: None,
            accepted_by: None,
            ended_by: None,
            progress: None,
            log: Vec::new(),
            steps: Vec::new(),
            error: None,
            late: None,
            attempts: Vec::new(),
            tags: job.options.as_ref().map(|options| options.tags.clone()).unwrap_or_default(),
            search: Vec::new(),
            deferral: None,
            deferrals: 0,
            parent: None,
            then: job.options.as_ref().and_then(|options| options.then.as_ref()).map(|then| then.job_type.clone()),
            batch: job.options.as_ref().and_then(|options| options.batch.clone()),
            keep_ms: job.options.as_ref().and_then(|options| options.keep).map(whole_millis),
            erased_at: None,
            trace_id: None,
            key_claimed_ms: None,
            unique_key: None,
            replaces: false,
            starts_by: None,
            published: false,
            seal: SmolStr::default(),
            turn: None,
            held_by: None,
            origin: enqueued_at,
            token: SmolStr::default(),
            unknown: None,
        }
    }

    /// The number of the attempt that starts next: a requeued one starts again under its own number.
    pub fn next_attempt(&self) -> u32 {
        match self.state {
            State::Scheduled { .. } | State::Enqueued { .. } => self.attempt.max(1),
            _ => self.attempt + 1,
        }
    }

    /// The lane of its job.
    pub fn lane(&self) -> Lane {
        Lane::new(&self.queue, self.priority)
    }

    /// In which order it has a place, if it has one.
    pub fn order(&self) -> Option<OrderId> {
        let turn = self.turn.as_deref()?;
        Some(OrderId {
            tenant: self.tenant.clone(),
            lane: self.lane(),
            job_type: self.job_type.clone(),
            key: turn.key.clone(),
        })
    }

    /// The run that follows it in a chain, once it has completed.
    pub fn child(&self) -> Option<RunId> {
        let follows = self.then.is_some() && matches!(self.state, State::Completed { .. });
        follows.then(|| self.run_id.then())
    }

    /// Whether that round of it has ended.
    pub fn has_ended(&self, round: u32) -> bool {
        self.state.is_terminal() || self.round > round
    }

    /// Whether an attempt of this round was started.
    pub fn has_started(&self) -> bool {
        self.attempt > 0
    }

    /// The attempts of this round.
    pub fn attempts_of_round(&self) -> impl Iterator<Item = &Attempt> {
        let round = self.round;
        self.attempts.iter().filter(move |attempt| attempt.round == round)
    }

    /// A message of the run has come, in its lane since `at`: if the run waited for its time, it waits for a worker
    /// from then on.
    pub fn fall_due(&mut self, at: Timestamp) {
        if let State::Scheduled { .. } = self.state {
            self.state = State::Enqueued { wait: None };
            self.enqueued_at = Some(at);
        }
        self.enqueued_at.get_or_insert(at);
    }

    /// Begins attempt `attempt` on `node`.
    pub fn begin(&mut self, attempt: u32, node: &SmolStr, now: Timestamp) {
        let start = match self.attempts.last() {
            // The events of a requeued entry are published by now (see `Verdict::BeginAgain`): one entry is enough to
            // keep.
            Some(last) if last.round == self.round && last.attempt == attempt && last.put_back.is_some() => {
                let start = last.start + 1;
                self.attempts.pop();
                start
            }
            _ => 1,
        };
        self.state = State::Running;
        self.late = None;
        self.attempt = attempt;
        self.started_at = self.started_at.or(Some(now));
        self.node = Some(node.clone());
        if self.attempts.is_empty() {
            // Most runs have one.
            self.attempts.reserve_exact(1);
        }
        let (round, node) = (self.round, node.clone());
        self.attempts.push(Attempt { round, attempt, started_at: now, node, start, ..Attempt::default() });
    }

    /// Begins an attempt that was claimed but never started, on `node` instead.
    pub fn begin_instead(&mut self, node: &SmolStr, now: Timestamp) {
        self.node = Some(node.clone());
        let Some(attempt) = self.attempts.last_mut() else { return };
        if self.started_at == Some(attempt.started_at) {
            self.started_at = Some(now);
        }
        attempt.node = node.clone();
        attempt.started_at = now;
    }

    /// It makes way for another run with its key before it was started. Its message is durable, and publishes that when
    /// it comes.
    pub fn make_way(&mut self, of: RunId, now: Timestamp) {
        self.published = true;
        self.lose_key(of, now);
    }

    /// Another run has taken its key, and nothing of it but its record is known to be durable. If it waited for its
    /// time, the record goes on to say for which: its `submit` may have published that wait.
    pub fn lose_key(&mut self, of: RunId, now: Timestamp) {
        self.end(State::Duplicate { ended_at: now, of, left: self.state.wait() });
    }

    /// A dead run begins another round; its attempts are kept, and no message carries it yet.
    pub fn replay(&mut self, now: Timestamp) {
        self.state = State::Enqueued { wait: None };
        self.round += 1;
        self.attempt = 0;
        self.enqueued_at = Some(now);
        self.started_at = None;
        (self.node, self.accepted_by, self.ended_by) = (None, None, None);
        self.progress = None;
        self.error = None;
        self.late = None;
        self.deferral = None;
        self.deferrals = 0;
        self.published = false;
        self.turn = None;
        self.held_by = None;
    }

    /// Says who puts the end of the cancelled run into the event log, or that it is there.
    pub fn leave_end_log(&mut self, to: EndLog) {
        if let State::Cancelled { end_log, .. } = &mut self.state {
            *end_log = to;
        }
    }

    /// Whether the node that cancelled it is about to put that into the event log, if it has not died.
    pub fn is_being_logged(&self, now: Timestamp) -> bool {
        let since = |at: Timestamp| now.millis().abs_diff(at.millis());
        self.state.end_log() == EndLog::ByCanceller
            && self.state.ended_at().is_some_and(|at| since(at) < whole_millis(LOGGED_WITHIN))
    }

    /// Its dead letter is discarded.
    pub fn discard(&mut self, now: Timestamp) {
        self.ended_by = None;
        self.state = State::Discarded { ended_at: now, died_at: self.state.ended_at().unwrap_or(now) };
    }

    /// Removes the personal data that the run holds; when and how it went stays. A second call changes nothing more.
    pub fn erase(&mut self, now: Timestamp) {
        (self.progress, self.late) = (None, None);
        // They may be personal as well.
        self.unknown = None;
        self.log.clear();
        self.steps.clear();
        if let State::Completed { result, .. } = &mut self.state {
            result.erase();
        }
        self.tags.clear();
        self.search.clear();
        self.unique_key = None;
        for error in self.attempts.iter_mut().filter_map(|attempt| attempt.error.as_mut()).chain(&mut self.error) {
            error.message.clear();
        }
        self.erased_at = self.erased_at.or(Some(now));
    }

    /// Signs this version of the record, which `node` is about to write: `token` is of this version alone. Who decided
    /// what stays as it is in later versions, so that whichever node publishes an event once more publishes the same.
    pub fn sign(&mut self, node: &SmolStr, token: SmolStr) {
        self.token = token;
        self.accepted_by.get_or_insert_with(|| node.clone());
        if let Some(deferral) = &mut self.deferral {
            deferral.node.get_or_insert_with(|| node.clone());
        }
        if self.state.is_terminal() {
            self.ended_by.get_or_insert_with(|| node.clone());
        }
    }

    /// The node of the first attempt of its round.
    pub fn first_node(&self) -> Option<&SmolStr> {
        self.attempts_of_round().next().map(|first| &first.node)
    }

    fn end(&mut self, state: State) {
        if let State::Running = self.state {
            self.deferral = None;
        }
        self.state = state;
    }

    fn end_attempt(&mut self, now: Timestamp, error: Option<Failure>) {
        // A record of a thousand long failures stays well below the size limit of a message: only the last few error
        // messages stay whole.
        let old = self.attempts.len().saturating_sub(WHOLE_MESSAGES);
        for error in self.attempts[..old].iter_mut().filter_map(|attempt| attempt.error.as_mut()) {
            error.message.truncate(error.message.floor_char_boundary(SHORT_MESSAGE));
        }
        if let Some(attempt) = self.attempts.last_mut().filter(|attempt| attempt.ended_at.is_none()) {
            attempt.ended_at = Some(now);
            attempt.error = error;
        }
    }
}
