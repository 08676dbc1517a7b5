//! The states of a run. A state carries the data that only it has, so that no run can be written down that waits for a
//! time and names none, or that runs and has ended.
//!
//! What belongs to a run in several states stays a field of [`Run`](super::Run): its history, its numbers, the last
//! deferral, the last error, the message that carries it. How a record names all this is the wire's business.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::RunResult;
use crate::{RunId, Timestamp};

crate::named! {
    /// The name of a run's state, in records, filters and metrics.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
    #[serde(rename_all = "snake_case")]
    pub enum RunState {
        /// Waits for its time.
        Scheduled = "scheduled",
        /// Waits for a worker.
        Enqueued = "enqueued",
        /// An attempt runs.
        Running = "running",
        /// Waits for its next attempt.
        Retrying = "retrying",
        /// Ended successfully.
        Completed = "completed",
        /// Ended with a failure; a dead letter is kept.
        Dead = "dead",
        /// Ended by a person or program.
        Cancelled = "cancelled",
        /// Was not started in time.
        Expired = "expired",
        /// Another run has its idempotency key.
        Duplicate = "duplicate",
        /// Its dead letter was discarded.
        Discarded = "discarded",
    }
}

impl RunState {
    /// Whether the run has ended (a replay may open another round).
    #[must_use]
    pub fn is_terminal(self) -> bool {
        !matches!(self, Self::Scheduled | Self::Enqueued | Self::Running | Self::Retrying)
    }
}

/// How a job waits that is not in its lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// Among the schedules, until this time.
    Until(Timestamp),
    /// Parked, until it can start.
    Parked {
        /// The moment from which its rank counts.
        since: Timestamp,
    },
}

impl Wait {
    /// The time in it, which the record has as `run_at`.
    #[must_use]
    pub fn run_at(self) -> Timestamp {
        match self {
            Self::Until(at) => at,
            Self::Parked { since } => since,
        }
    }
}

/// Who puts the end of a cancelled run into the event log. One alone does, so that without faults nothing is in it
/// twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EndLog {
    /// The node to which its message is delivered.
    #[default]
    ByMessage,
    /// The node that cancelled it, which is about to.
    ByCanceller,
    /// It is there, with all events before it.
    Done,
}

/// The state of a run, with the data that belongs to this state alone.
#[derive(Debug, Clone)]
pub enum State {
    /// Waits for its time, among the schedules.
    Scheduled {
        /// When it comes.
        at: Timestamp,
    },
    /// Waits for a worker.
    Enqueued {
        /// How its job waits outside of its lane: it was deferred or parked. `None`: the job is in its lane.
        wait: Option<Wait>,
    },
    /// An attempt runs: the last one in the run's history.
    Running,
    /// Waits for its next attempt.
    Retrying {
        /// Until when, or where.
        wait: Wait,
    },
    /// Ended successfully.
    Completed {
        /// When.
        ended_at: Timestamp,
        /// What its handler returned.
        result: RunResult,
    },
    /// Ended with a failure; a dead letter is kept.
    Dead {
        /// When.
        ended_at: Timestamp,
    },
    /// Ended by a person or program.
    Cancelled {
        /// When.
        ended_at: Timestamp,
        /// How its job waited outside of its lane at that moment. The job may still be there: until it is removed or
        /// comes, the record must stay.
        left: Option<Wait>,
        /// Who puts that into the event log.
        end_log: EndLog,
    },
    /// Was not started in time.
    Expired {
        /// When it ended.
        ended_at: Timestamp,
    },
    /// Another run has its idempotency key.
    Duplicate {
        /// When it ended.
        ended_at: Timestamp,
        /// The other run.
        of: RunId,
        /// How its job waited outside of its lane, if the run made way for the other before its job came: as of a
        /// cancelled run.
        left: Option<Wait>,
    },
    /// Its dead letter was discarded.
    Discarded {
        /// When.
        ended_at: Timestamp,
        /// When it ended with the failure that the dead letter was kept for.
        died_at: Timestamp,
    },
}

impl State {
    /// Its name.
    pub fn name(&self) -> RunState {
        match self {
            Self::Scheduled { .. } => RunState::Scheduled,
            Self::Enqueued { .. } => RunState::Enqueued,
            Self::Running => RunState::Running,
            Self::Retrying { .. } => RunState::Retrying,
            Self::Completed { .. } => RunState::Completed,
            Self::Dead { .. } => RunState::Dead,
            Self::Cancelled { .. } => RunState::Cancelled,
            Self::Expired { .. } => RunState::Expired,
            Self::Duplicate { .. } => RunState::Duplicate,
            Self::Discarded { .. } => RunState::Discarded,
        }
    }

    /// Its name in records and filters.
    pub fn as_str(&self) -> &'static str {
        self.name().as_str()
    }

    /// Whether the run has ended (a replay may open another round).
    pub fn is_terminal(&self) -> bool {
        self.name().is_terminal()
    }

    /// How its job waits outside of its lane, if it does. The job of a run that was cancelled or made way may still
    /// wait so.
    pub fn wait(&self) -> Option<Wait> {
        match self {
            Self::Scheduled { at } => Some(Wait::Until(*at)),
            Self::Retrying { wait } => Some(*wait),
            Self::Enqueued { wait } | Self::Cancelled { left: wait, .. } | Self::Duplicate { left: wait, .. } => *wait,
            _ => None,
        }
    }

    /// The time that the record has as `run_at`: until when its job waits outside of its lane, or since when it is
    /// parked.
    pub fn run_at(&self) -> Option<Timestamp> {
        self.wait().map(Wait::run_at)
    }

    /// Whether its job is parked; the job of a run that was cancelled or made way may still be.
    pub fn is_parked(&self) -> bool {
        matches!(self.wait(), Some(Wait::Parked { .. }))
    }

    /// Who puts the end of the run into the event log, as far as its state says: the node that gets its message, unless
    /// it was cancelled.
    pub fn end_log(&self) -> EndLog {
        if let Self::Cancelled { end_log, .. } = self { *end_log } else { EndLog::default() }
    }

    /// When the run died whose dead letter was discarded; `None` in any other state.
    pub fn died_at(&self) -> Option<Timestamp> {
        if let Self::Discarded { died_at, .. } = self { Some(*died_at) } else { None }
    }

    /// When the run ended; `None` if it has not.
    pub fn ended_at(&self) -> Option<Timestamp> {
        match self {
            Self::Scheduled { .. } | Self::Enqueued { .. } | Self::Running | Self::Retrying { .. } => None,
            Self::Completed { ended_at, .. }
            | Self::Dead { ended_at }
            | Self::Cancelled { ended_at, .. }
            | Self::Expired { ended_at }
            | Self::Duplicate { ended_at, .. }
            | Self::Discarded { ended_at, .. } => Some(*ended_at),
        }
    }

    /// What its handler returned, if the run has completed.
    pub fn result(&self) -> Option<&RunResult> {
        if let Self::Completed { result, .. } = self { Some(result) } else { None }
    }

    /// The run that has its idempotency key, if this one ended for it.
    pub fn duplicate_of(&self) -> Option<&RunId> {
        if let Self::Duplicate { of, .. } = self { Some(of) } else { None }
    }
}

/// A state is compared with a name where its data does not matter.
impl PartialEq<RunState> for State {
    fn eq(&self, name: &RunState) -> bool {
        self.name() == *name
    }
}
