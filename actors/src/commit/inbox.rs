//! What waits for the committer, on two ways. A commit waits until a place in flight is free. What is for the log alone
//! takes no place, and must not wait for one: the attempt that sends it reads its handler's reply meanwhile.

use std::task::{Context, Poll};

use tokio::sync::mpsc;

use crate::commit::pipeline::Input;

/// How much may wait on each way.
pub(super) const QUEUED: usize = 512;

/// Where commits and lines are sent from. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct Outbox {
    commits: mpsc::Sender<Input>,
    lines: mpsc::Sender<Input>,
}

/// Where the committer takes them.
#[derive(Debug)]
pub(super) struct Inbox {
    commits: mpsc::Receiver<Input>,
    lines: mpsc::Receiver<Input>,
}

pub(super) fn open() -> (Outbox, Inbox) {
    let ((put, commits), (put_lines, lines)) = (mpsc::channel(QUEUED), mpsc::channel(QUEUED));
    (Outbox { commits: put, lines: put_lines }, Inbox { commits, lines })
}

impl Outbox {
    /// Waits while the way of this input is full.
    pub(super) async fn send(&self, input: Input) {
        let way = if input.is_for_the_log_alone() { &self.lines } else { &self.commits };
        // The state lives as long as the node: a closed channel means that the process is ending.
        let _ = way.send(input).await;
    }
}

impl Inbox {
    /// The next input; `None`: there will be none. `is_full`: no place in flight is free.
    pub(super) fn poll(&mut self, is_full: bool, context: &mut Context<'_>) -> Poll<Option<Input>> {
        match self.lines.poll_recv(context) {
            Poll::Ready(Some(lines)) => Poll::Ready(Some(lines)),
            _ if is_full => Poll::Pending,
            _ => self.commits.poll_recv(context),
        }
    }

    /// The next of what is for the log alone, if it is here already.
    pub(super) fn lines(&mut self) -> Option<Input> {
        self.lines.try_recv().ok()
    }

    /// How many commits wait.
    pub(super) fn waiting(&self) -> usize {
        self.commits.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.commits.is_empty() && self.lines.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use bytes::Bytes;
    use futures_util::FutureExt as _;
    use longshore_domain::{Run, Tenant, Timestamp};
    use tokio::sync::oneshot;

    use super::*;
    use crate::commit::{AfterCommit, Commit, PublishedJob};
    use crate::ports::encode::EncodedEvents;

    fn commit(after: AfterCommit) -> Input {
        let run = Run::new(&crate::tests::job("t", "r"), 1, Timestamp::from_millis(1));
        let mut commit = Commit::with_events(Box::new(run), PublishedJob::default(), EncodedEvents::default());
        commit.after = after;
        Input::Commit(Box::new(commit))
    }

    #[test]
    fn a_start_and_a_handlers_words_wait_for_no_place() {
        let (outbox, mut inbox) = open();
        let end = || commit(AfterCommit::Report(oneshot::channel().0));
        let start = || commit(AfterCommit::Nothing);
        let words = || Input::Line(Tenant::default_tenant(), Bytes::from_static(b"{}"));
        for _ in 0..QUEUED {
            outbox.send(end()).now_or_never().expect("there is room");
        }
        assert!(outbox.send(end()).now_or_never().is_none(), "workers wait");
        for input in [start(), words()] {
            outbox.send(input).now_or_never().expect("there is room on its own way");
        }
        assert_eq!(inbox.waiting(), QUEUED);
        let mut context = Context::from_waker(Waker::noop());
        let mut next = |is_full| match inbox.poll(is_full, &mut context) {
            Poll::Ready(Some(input)) => Some(input.is_for_the_log_alone()),
            Poll::Ready(None) | Poll::Pending => None,
        };
        assert_eq!([next(true), next(true), next(true)], [Some(true), Some(true), None]);
        outbox.send(words()).now_or_never().expect("there is room on its own way");
        assert_eq!([next(false), next(false)], [Some(true), Some(false)]);
        outbox.send(start()).now_or_never().expect("there is room on its own way");
        assert!(inbox.lines().is_some() && inbox.lines().is_none() && !inbox.is_empty());
    }
}
