//! The handle by which commits are sent to the committer.

use std::sync::Arc;
use std::time::Duration;

use longshore_backbone::Backbone;
use longshore_domain::publication::Published;
use longshore_domain::{Run, SmolStr};
use tokio::sync::{Mutex, mpsc, oneshot};

use crate::commit::committer::{CommitterMessage, Committing, QUEUED};
use crate::commit::pipeline::Input;
use crate::commit::{AfterCommit, Commit, PublishedJob};
use crate::metrics::Metrics;
use crate::ports::Unlogged;
use crate::ports::encode::Author;
use crate::runtime::address::Address;
use crate::trace::Tracer;

/// Sends commits to the committer. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Committer {
    inbox: mpsc::Sender<Input>,
    pub(crate) address: Address<CommitterMessage>,
    /// In whose name commits are written, and for which server.
    node: SmolStr,
    backbone: Backbone,
}

impl Committer {
    /// A handle, and the committer's state.
    pub(crate) fn open(
        backbone: Backbone,
        node: SmolStr,
        metrics: Arc<Metrics>,
        tracer: Option<Arc<Tracer>>,
    ) -> (Self, Arc<Mutex<Committing>>) {
        let (inbox, commits) = mpsc::channel(QUEUED);
        let committing = Committing::new(backbone.clone(), metrics, tracer, commits);
        (Self { inbox, address: Address::default(), node, backbone }, Arc::new(Mutex::new(committing)))
    }

    /// Sends input; waits while the committer is full.
    pub(crate) async fn send(&self, input: Input) {
        // The state lives as long as the node: a closed channel means that the process is ending.
        let _ = self.inbox.send(input).await;
    }

    /// Has a commit without a delivery carried out and waits for that; returns the revision of its record.
    ///
    /// # Errors
    /// Another write of the record was first, the committer died while it worked on the commit, or the process is
    /// ending.
    pub(crate) async fn carry_out(&self, mut commit: Commit) -> Result<u64, Unlogged> {
        let (done, carried_out) = oneshot::channel();
        commit.after = AfterCommit::Report(done);
        self.send(Input::Commit(Box::new(commit))).await;
        carried_out.await.map_err(|_| Unlogged)
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
