//! The handle by which commits are sent to the committer.

use std::sync::Arc;
use std::time::Duration;

use longshore_backbone::Backbone;
use longshore_domain::publication::Published;
use longshore_domain::{Run, SmolStr};
use tokio::sync::{Mutex, oneshot};

use crate::commit::committer::{CommitterMessage, Committing};
use crate::commit::inbox::{self, Outbox};
use crate::commit::pipeline::Input;
use crate::commit::{AfterCommit, Commit, PublishedJob};
use crate::metrics::Metrics;
use crate::ports::Unlogged;
use crate::ports::encode::Author;
use crate::runtime::address::Address;
use crate::trace::Tracer;

/// How long a request of the API waits for its commit: while the event log is away, it keeps one of the node's places.
/// A delayed job may wait twice; most clients do for ten seconds.
const REQUEST_WITHIN: Duration = Duration::from_secs(4);

/// Sends commits to the committer. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Committer {
    outbox: Outbox,
    pub(crate) address: Address<CommitterMessage>,
    /// In whose name commits are written, and for which server.
    node: SmolStr,
    backbone: Backbone,
    /// How long a commit without a delivery is waited for; `None`: until it is carried out.
    within: Option<Duration>,
}

impl Committer {
    /// A handle, and the committer's state.
    pub(crate) fn open(
        backbone: Backbone,
        node: SmolStr,
        metrics: Arc<Metrics>,
        tracer: Option<Arc<Tracer>>,
    ) -> (Self, Arc<Mutex<Committing>>) {
        let (outbox, inbox) = inbox::open();
        let committing = Committing::new(backbone.clone(), metrics, tracer, inbox);
        let committer = Self { outbox, address: Address::default(), node, backbone, within: None };
        (committer, Arc::new(Mutex::new(committing)))
    }

    /// The same for requests, whose commits are waited for as long as a request may take.
    pub(crate) fn for_requests(&self) -> Self {
        Self { within: Some(REQUEST_WITHIN), ..self.clone() }
    }

    /// Sends input; a commit waits while the committer is full, what is for the log alone does not.
    pub(crate) async fn send(&self, input: Input) {
        self.outbox.send(input).await;
    }

    /// Has a commit without a delivery carried out and waits for that; returns the revision of its record.
    ///
    /// # Errors
    /// Another write of the record was first, the committer died while it worked on the commit, the process is ending,
    /// or it took too long for a request: then it may still be carried out.
    pub(crate) async fn carry_out(&self, mut commit: Commit) -> Result<u64, Unlogged> {
        let (done, carried_out) = oneshot::channel();
        commit.after = AfterCommit::Report(done);
        let carried_out = async {
            self.send(Input::Commit(Box::new(commit))).await;
            carried_out.await.map_err(|_| Unlogged)
        };
        reported(carried_out, self.within).await
    }

    /// Publishes the remaining events of a run whose record is stored; waits until the log has them.
    pub(crate) async fn publish(&self, run: &Run, published: Published) -> Result<(), Unlogged> {
        let author = Author { node: &self.node, server: &self.backbone };
        let commit = Commit::of_stored(Box::new(run.clone()), PublishedJob::default(), published, author);
        self.carry_out(commit).await.map(drop)
    }

    /// Waits until all input before is confirmed; false: it was not within that time.
    pub(crate) async fn flush(&self, within: Duration) -> bool {
        self.address.ask(within, CommitterMessage::Flush).await.is_some()
    }
}

/// The report on a commit, if it comes in time.
async fn reported(
    report: impl Future<Output = Result<u64, Unlogged>>,
    within: Option<Duration>,
) -> Result<u64, Unlogged> {
    match within {
        Some(within) => tokio::time::timeout(within, report).await.unwrap_or(Err(Unlogged)),
        None => report.await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_request_waits_for_its_commit_no_longer_than_it_may_take() {
        assert!(reported(std::future::pending(), Some(REQUEST_WITHIN)).await.is_err());
        assert!(matches!(reported(async { Ok(7) }, Some(REQUEST_WITHIN)).await, Ok(7)));
        let attempts = reported(std::future::pending(), None);
        assert!(tokio::time::timeout(REQUEST_WITHIN * 1_000, attempts).await.is_err(), "attempts wait on");
    }
}
