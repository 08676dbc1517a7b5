//! What this node has in its hands of one stream, from the moment it reads a delivery until its right is gone.
//!
//! Kept for one question: when a connection ended over what it was sent, which of the deliveries that the server still
//! counts as pending were lost with it? Those that no node has. They are handed back by [`crate::poison`], so that they
//! need not wait for the lease to run out.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use async_nats::Subject;
use bytes::Bytes;
use longshore_domain::SmolStr;
use tokio::sync::{mpsc::UnboundedSender, watch};

use crate::Backbone;

/// Where rights that were dropped hand their jobs back. Unbounded, because a destructor cannot wait; it never holds
/// more than the deliveries in hand.
pub(crate) type Returns = UnboundedSender<Subject>;

/// How long a puller may take to read what lies in its inbox.
const READ_WITHIN: Duration = Duration::from_secs(1);
const MARK_AGAIN_AFTER: Duration = Duration::from_millis(100);

/// How long what was handed back may be on its way.
const COMES_WITHIN: Duration = Duration::from_millis(100);

/// How far this node is with handing back what was lost.
#[derive(Debug, Default)]
enum Return {
    #[default]
    No,
    /// It asks the others.
    Asking,
    /// It handed back, then.
    Done(Instant),
}

/// Sequences are spread by themselves, and nobody chooses them: hashing each would be a tenth of a microsecond a job.
#[derive(Debug, Default)]
pub(crate) struct BySequence(u64);

impl Hasher for BySequence {
    fn finish(&self) -> u64 {
        // The table looks at the highest bits as well, which sequences have not.
        self.0.wrapping_mul(0x9E37_79B9_7F4A_7C15)
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.0 = self.0.wrapping_mul(31).wrapping_add(u64::from(*byte)));
    }

    fn write_u64(&mut self, sequence: u64) {
        self.0 = sequence;
    }
}

/// This node's deliveries of one stream.
#[derive(Debug)]
pub(crate) struct Custody {
    returns: Returns,
    /// Sequences in hand, and how many deliveries of each.
    held: Mutex<HashMap<u64, u32, BuildHasherDefault<BySequence>>>,
    /// Where the puller of the stream listens; `None`: there is none on this node.
    inbox: Mutex<Option<String>>,
    /// The last mark that the puller has read.
    read: watch::Sender<u64>,
    /// Whether this node is about to hand back what was lost: one node at a time may.
    returning: Mutex<Return>,
    /// Pulls find nobody who answers for the consumer.
    pub(crate) unanswered: AtomicBool,
}

impl Custody {
    pub(crate) fn new(returns: Returns) -> Self {
        Self {
            returns,
            held: Mutex::default(),
            inbox: Mutex::default(),
            read: watch::Sender::default(),
            returning: Mutex::default(),
            unanswered: AtomicBool::new(false),
        }
    }

    /// A delivery has come.
    pub(crate) fn take(&self, sequence: u64) {
        *self.held.lock().unwrap_or_else(PoisonError::into_inner).entry(sequence).or_default() += 1;
    }

    /// Its right is gone; with a reply subject, the job goes back there.
    pub(crate) fn give_up(&self, sequence: u64, back_to: Option<Subject>) {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = held.get_mut(&sequence) {
            *count -= 1;
            if *count == 0 {
                held.remove(&sequence);
            }
        }
        if let Some(reply) = back_to {
            // The receiver ends with the node; then the server's ack wait brings the job back.
            let _ = self.returns.send(reply);
        }
    }

    /// A puller of this stream listens there.
    pub(crate) fn pulled_by(&self, inbox: &str) {
        *self.inbox.lock().unwrap_or_else(PoisonError::into_inner) = Some(inbox.to_owned());
    }

    /// The puller has read everything that lay before this mark.
    pub(crate) fn read_up_to(&self, mark: u64) {
        self.read.send_modify(|read| *read = mark.max(*read));
    }

    /// Begins to ask the other nodes what they hold.
    pub(crate) fn begin_asking(&self) {
        *self.returning.lock().unwrap_or_else(PoisonError::into_inner) = Return::Asking;
    }

    /// Every node has said what it holds; false if another node was let go first meanwhile.
    pub(crate) fn may_nak(&self) -> bool {
        let mut returning = self.returning.lock().unwrap_or_else(PoisonError::into_inner);
        let still = matches!(*returning, Return::Asking);
        *returning = if still { Return::Done(Instant::now()) } else { Return::No };
        still
    }

    /// Nothing is handed back this time.
    pub(crate) fn stop_asking(&self) {
        *self.returning.lock().unwrap_or_else(PoisonError::into_inner) = Return::No;
    }

    /// Whether another node that asks is let go first: by its name, if this one asks as well. Not while what was handed back
    /// here may still be on its way to somebody who has said already that he does not hold it.
    pub(crate) fn lets_go_first(&self, other_is_first: bool) -> bool {
        let mut returning = self.returning.lock().unwrap_or_else(PoisonError::into_inner);
        match *returning {
            Return::Asking if !other_is_first => false,
            Return::Done(at) if at.elapsed() < COMES_WITHIN => false,
            _ => {
                *returning = Return::No;
                true
            }
        }
    }

    fn within(&self, from: u64, to: u64) -> Vec<u64> {
        let held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        held.keys().copied().filter(|sequence| (from..=to).contains(sequence)).collect()
    }
}

/// What a puller's inbox has for a token where a mark comes.
pub(crate) const MARK: &str = "mark";

static MARKS: AtomicU64 = AtomicU64::new(0);

impl Backbone {
    /// What this node has of a stream.
    pub(crate) fn custody(&self, stream: &str) -> Arc<Custody> {
        let mut all = self.0.custody.lock().unwrap_or_else(PoisonError::into_inner);
        let new = || Arc::new(Custody::new(self.0.returns.clone()));
        Arc::clone(all.entry(SmolStr::from(stream)).or_insert_with(new))
    }

    /// Streams whose consumer nobody answers for, as far as this node has tried.
    #[must_use]
    pub fn unanswered(&self) -> Vec<SmolStr> {
        let all = self.0.custody.lock().unwrap_or_else(PoisonError::into_inner);
        let mut streams: Vec<SmolStr> = all
            .iter()
            .filter(|(_, custody)| custody.unanswered.load(Ordering::Relaxed))
            .map(|(stream, _)| stream.clone())
            .collect();
        streams.sort();
        streams
    }

    /// The sequences of a stream, within these bounds, that this node has in hand, once its puller has read what the
    /// server had sent by now; `None` if it does not get to that in time.
    pub async fn held(&self, stream: &str, from: u64, to: u64) -> Option<Vec<u64>> {
        let custody = self.custody(stream);
        let inbox = custody.inbox.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(inbox) = inbox {
            let mark = MARKS.fetch_add(1, Ordering::Relaxed) + 1;
            let mut read = custody.read.subscribe();
            let reached = async {
                loop {
                    self.client().publish(format!("{inbox}.{MARK}.{mark}"), Bytes::new()).await;
                    let reached = read.wait_for(|read| *read >= mark);
                    // The mark may be lost with the next connection.
                    if tokio::time::timeout(MARK_AGAIN_AFTER, reached).await.is_ok() {
                        return;
                    }
                }
            };
            tokio::time::timeout(READ_WITHIN, reached).await.ok()?;
        }
        Some(custody.within(from, to))
    }
}
