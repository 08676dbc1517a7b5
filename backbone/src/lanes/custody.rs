//! The deliveries of one stream that this node holds, from the moment it reads a delivery until its ack token is gone.
//!
//! This list answers one question: when a connection ended over a message that it received, which of the deliveries
//! that the server still counts as pending were lost with it? Those that no node holds. [`crate::lanes::poison`]
//! returns them (NAK), so that they need not wait for the lease to run out.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use async_nats::{Request, Subject};
use bytes::Bytes;
use longshore_domain::SmolStr;
use tokio::sync::mpsc::{Receiver, UnboundedReceiver, UnboundedSender};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinSet;

use crate::Backbone;
use crate::connection::link::Link;

/// Where dropped ack tokens return their jobs. Unbounded, because a destructor cannot wait; it never has more entries
/// than this node holds deliveries.
pub(crate) type Returns = UnboundedSender<Subject>;

/// Returns a job to the server; the job keeps its place. The server keeps this in memory: if it ends before it has
/// delivered the job, the job comes again only after its lease.
pub(crate) const NAK: &[u8] = b"-NAK";
/// The same, kept with the consumer. The server looks through all deliveries before it sends the job, which takes it 10
/// ms, and longer while many are out.
const NAK_THAT_OUTLASTS: &[u8] = br#"-NAK {"delay":1}"#;
/// How long the server may take to confirm one that outlasts it.
const CONFIRMED_WITHIN: Duration = Duration::from_secs(1);

/// How long a puller may take to read everything in its inbox.
const READ_WITHIN: Duration = Duration::from_secs(1);
const MARK_AGAIN_AFTER: Duration = Duration::from_millis(100);

/// How long a returned delivery may be on its way.
const COMES_WITHIN: Duration = Duration::from_millis(100);

/// How far this node is with returning lost deliveries.
#[derive(Debug, Default)]
enum Return {
    #[default]
    No,
    Asking,
    /// It returned them at this time.
    Done(Instant),
}

/// Takes a sequence as its hash. Sequences are spread by themselves, and no client chooses them: hashing each would
/// cost a tenth of a microsecond per job.
#[derive(Debug, Default)]
pub(crate) struct BySequence(u64);

impl Hasher for BySequence {
    fn finish(&self) -> u64 {
        // The hash table uses the highest bits as well, which sequences do not fill.
        self.0.wrapping_mul(0x9E37_79B9_7F4A_7C15)
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.0 = self.0.wrapping_mul(31).wrapping_add(u64::from(*byte)));
    }

    fn write_u64(&mut self, sequence: u64) {
        self.0 = sequence;
    }
}

#[derive(Debug)]
pub(crate) struct Custody {
    returns: Returns,
    /// The sequences that this node holds, and how many deliveries of each.
    held: Mutex<HashMap<u64, u32, BuildHasherDefault<BySequence>>>,
    /// The inbox of the stream's puller; `None`: this node has no puller for it.
    inbox: Mutex<Option<String>>,
    /// The last marker that the puller has read.
    read: watch::Sender<u64>,
    /// Whether this node is about to return lost deliveries: only one node at a time may.
    returning: Mutex<Return>,
    /// Whether no server answers pulls for the consumer.
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

    pub(crate) fn take(&self, sequence: u64) {
        *self.held.lock().unwrap_or_else(PoisonError::into_inner).entry(sequence).or_default() += 1;
    }

    /// Removes a delivery whose ack token is gone; if `back_to` is given, the job is returned there.
    pub(crate) fn give_up(&self, sequence: u64, back_to: Option<Subject>) {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = held.get_mut(&sequence) {
            *count -= 1;
            if *count == 0 {
                held.remove(&sequence);
            }
        }
        if let Some(reply) = back_to {
            // The receiver ends with the node; then the server redelivers the job after its ack wait.
            let _ = self.returns.send(reply);
        }
    }

    pub(crate) fn pulled_by(&self, inbox: &str) {
        *self.inbox.lock().unwrap_or_else(PoisonError::into_inner) = Some(inbox.to_owned());
    }

    /// The puller of this inbox reads it no longer: a marker there would be waited for in vain. Another puller may have
    /// followed it, and finds out within a second whether a server answers.
    pub(crate) fn left_by(&self, inbox: &str) {
        let mut pulled_by = self.inbox.lock().unwrap_or_else(PoisonError::into_inner);
        pulled_by.take_if(|last| *last == inbox);
        self.unanswered.store(false, Ordering::Relaxed);
    }

    /// Notes that the puller has read everything before this marker.
    pub(crate) fn read_up_to(&self, mark: u64) {
        self.read.send_modify(|read| *read = mark.max(*read));
    }

    pub(crate) fn begin_asking(&self) {
        *self.returning.lock().unwrap_or_else(PoisonError::into_inner) = Return::Asking;
    }

    /// Ends the asking, once every node has said what it holds. False if this node has let another one go first
    /// meanwhile.
    pub(crate) fn may_nak(&self) -> bool {
        let mut returning = self.returning.lock().unwrap_or_else(PoisonError::into_inner);
        let still = matches!(*returning, Return::Asking);
        *returning = if still { Return::Done(Instant::now()) } else { Return::No };
        still
    }

    pub(crate) fn stop_asking(&self) {
        *self.returning.lock().unwrap_or_else(PoisonError::into_inner) = Return::No;
    }

    /// Whether another node that asks may go first: its name decides, if this node asks as well. It may not while a
    /// delivery that this node returned may still be on its way to a node that has already said that it does not hold
    /// it.
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

/// The token of a puller's inbox under which markers arrive.
pub(crate) const MARK: &str = "mark";

static MARKS: AtomicU64 = AtomicU64::new(0);

impl Backbone {
    pub(crate) fn custody(&self, stream: &str) -> Arc<Custody> {
        let mut all = self.0.custody.lock().unwrap_or_else(PoisonError::into_inner);
        let new = || Arc::new(Custody::new(self.0.returns.clone()));
        Arc::clone(all.entry(SmolStr::from(stream)).or_insert_with(new))
    }

    /// Streams for whose consumer no server answers, as far as this node has tried.
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

    /// The sequences of a stream, within these bounds, that this node holds, once its puller has read everything that
    /// the server had sent by now; `None` if the puller does not get there in time.
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
                    // The marker may be lost with the next connection.
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

/// Returns a job whose ack token was dropped. If it is to outlast the server, that confirms it: what is only on its way
/// ends with a server that ends next.
pub(crate) async fn nak(jobs: &Link, reply: Subject, outlasts: bool) -> Option<impl Future<Output = ()> + use<>> {
    if !outlasts {
        jobs.publish(reply, Bytes::from_static(NAK)).await;
        return None;
    }
    let jobs = jobs.clone();
    let request = Request::new().payload(Bytes::from_static(NAK_THAT_OUTLASTS)).timeout(Some(CONFIRMED_WITHIN));
    // Without an answer the job comes again after its lease.
    Some(async move { drop(jobs.request(reply, request).await) })
}

/// Returns the jobs whose ack tokens were dropped, until the last ack token and the backbone are gone. Who asks is
/// answered once all that were dropped before are sent, and confirmed where `nak` waits for that.
pub(crate) async fn return_dropped<T: Future<Output = ()> + Send + 'static>(
    mut dropped: UnboundedReceiver<Subject>,
    mut asked: Receiver<oneshot::Sender<()>>,
    nak: impl AsyncFn(Subject) -> Option<T>,
) {
    let mut unconfirmed = JoinSet::new();
    loop {
        tokio::select! {
            biased;
            reply = dropped.recv() => {
                let Some(reply) = reply else { return };
                if let Some(confirmed) = nak(reply).await {
                    unconfirmed.spawn(confirmed);
                }
            }
            Some(all) = asked.recv() => {
                while unconfirmed.join_next().await.is_some() {}
                let _ = all.send(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Given a puller whose place another one has taken, when the first one ends, then the second one is asked what it
    /// has read; when that ends as well, then nobody is, and the node answers at once. That a server did not answer the
    /// first one is forgotten.
    #[test]
    fn only_a_puller_that_still_reads_is_waited_for() {
        let custody = Custody::new(tokio::sync::mpsc::unbounded_channel().0);
        let waits_for = || custody.inbox.lock().unwrap().clone();
        custody.pulled_by("first");
        custody.pulled_by("second");
        custody.unanswered.store(true, Ordering::Relaxed);
        custody.left_by("first");
        assert_eq!((waits_for().as_deref(), custody.unanswered.load(Ordering::Relaxed)), (Some("second"), false));
        custody.left_by("second");
        assert_eq!(waits_for(), None);
    }

    /// Given jobs that were dropped as a node ends, when it asks, then it is answered only once each of them is sent
    /// and confirmed.
    #[tokio::test]
    async fn a_node_ends_only_once_what_it_returned_is_confirmed() {
        let (dropped, returned) = tokio::sync::mpsc::unbounded_channel();
        let (ask, asked) = tokio::sync::mpsc::channel(1);
        let (confirm, confirmed) = watch::channel(false);
        let task = tokio::spawn(return_dropped(returned, asked, async move |_| {
            let mut confirmed = confirmed.clone();
            Some(async move { drop(confirmed.wait_for(|is| *is).await) })
        }));
        dropped.send(Subject::from_static("first")).unwrap();
        dropped.send(Subject::from_static("second")).unwrap();
        let (all, mut are_back) = oneshot::channel();
        ask.send(all).await.unwrap();
        while ask.capacity() == 0 {
            tokio::task::yield_now().await;
        }
        tokio::task::yield_now().await;
        assert!(are_back.try_recv().is_err(), "nothing is confirmed yet");
        confirm.send(true).unwrap();
        are_back.await.unwrap();
        drop(dropped);
        task.await.unwrap();
    }
}
