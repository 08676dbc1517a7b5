//! What a handler inside a node says of its attempt while it works: progress, lines for the log.

use std::sync::Arc;

use bytes::Bytes;
use longshore_backbone::steps::StepCall;
use longshore_domain::Job;

use crate::attempt::node_ports::NodePorts;
use crate::attempt::running::{CurrentAttempt, of_current};
use crate::attempt::{progress, steps};
use crate::handlers::handler::{BoxFuture, Reporter, StepEnd};

pub(crate) struct AttemptReporter {
    pub(crate) ports: Arc<NodePorts>,
    pub(crate) current: CurrentAttempt,
}

impl std::fmt::Debug for AttemptReporter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("AttemptReporter")
    }
}

impl Reporter for AttemptReporter {
    fn progress<'a>(&'a self, job: &'a Arc<Job>, json: Bytes) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            if self.is_current(job) {
                progress::report(&self.ports, &self.current, &json).await;
            }
        })
    }

    fn log<'a>(&'a self, job: &'a Arc<Job>, line: String) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            if self.is_current(job) {
                progress::log(&self.ports, &self.current, line.as_bytes()).await;
            }
        })
    }

    fn step<'a>(&'a self, job: &'a Arc<Job>, call: StepCall) -> BoxFuture<'a, StepEnd> {
        Box::pin(async move {
            match self.is_current(job) {
                true => steps::take(&self.ports, &self.current, &call).await,
                false => Err((409, "the attempt is over".to_owned())),
            }
        })
    }
}

impl AttemptReporter {
    /// Whether the worker still works on this job: a handler may have left its context to a task that outlives the
    /// attempt.
    fn is_current(&self, job: &Arc<Job>) -> bool {
        of_current(&self.current, |running| Arc::ptr_eq(&running.assignment.job, job)) == Some(true)
    }
}
