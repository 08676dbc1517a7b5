//! What a handler inside a node says while it works: progress, lines for the log. Where another node holds the job, it is
//! sent there as signals, as handlers in any language send them.

use std::sync::{Arc, PoisonError};

use bytes::Bytes;
use longshore_backbone::offers::ReplyTo;
use longshore_backbone::work::SignalKind;
use longshore_domain::Job;

use crate::attempt::progress;
use crate::attempt::running::CurrentAttempt;
use crate::node_ports::NodePorts;

/// Where a handler's reports go.
#[derive(Clone)]
pub(crate) enum Reporter {
    /// Nowhere: the handler is being tested.
    Nowhere,
    /// To the attempt of this node.
    Attempt(Arc<NodePorts>, CurrentAttempt),
    /// To the node that holds the job.
    Caller(ReplyTo),
}

impl std::fmt::Debug for Reporter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Nowhere => "Nowhere",
            Self::Attempt(..) => "Attempt",
            Self::Caller(_) => "Caller",
        })
    }
}

impl Reporter {
    pub(crate) async fn progress(&self, job: &Arc<Job>, json: Bytes) {
        match self {
            Self::Nowhere => {}
            Self::Attempt(ports, current) if is_current(current, job) => {
                progress::report(ports, current, &json).await;
            }
            Self::Attempt(..) => {}
            Self::Caller(caller) => caller.signal(SignalKind::Progress(json)).await,
        }
    }

    pub(crate) async fn log(&self, job: &Arc<Job>, line: String) {
        match self {
            Self::Nowhere => {}
            Self::Attempt(_, current) if is_current(current, job) => progress::log(current, line.as_bytes()),
            Self::Attempt(..) => {}
            Self::Caller(caller) => caller.signal(SignalKind::Log(line.into())).await,
        }
    }

    pub(crate) async fn heartbeat(&self) {
        if let Self::Caller(caller) = self {
            caller.signal(SignalKind::Heartbeat).await;
        }
    }
}

/// Whether the worker still works on this job: a handler may have left its context to a task that outlives the attempt.
fn is_current(current: &CurrentAttempt, job: &Arc<Job>) -> bool {
    let current = current.lock().unwrap_or_else(PoisonError::into_inner);
    current.as_ref().is_some_and(|running| Arc::ptr_eq(&running.assignment.job, job))
}
