//! The committer's steps, without a server: what a commit does next, given its input and the answers.
//!
//! Everything that leaves the node goes through [`Outlets`]: those of a real node are in `committer`, those of the
//! tests remember what they were given. Each method takes the outlets as an argument, because they die with the
//! committer and this state does not.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use longshore_backbone::rarely::Rarely;
use longshore_backbone::window::PublishAnswer;
use longshore_domain::Tenant;
use ractor::RpcReplyPort;

use crate::commit::batches::{Batch, Batches};
use crate::commit::{Commit, InFlightPermit, follow_up, lines};
use crate::metrics::Metrics;
use crate::metrics::jobs::Ends;
use crate::ports::encode::EncodedEvents;
use crate::runtime::log_run::log_run;
use crate::runtime::{Unpoisoned as _, fail_point};
use crate::trace::Tracer;

/// Each tenant's batch is refused again and again while the log is full or has no leader.
static REFUSED: Rarely = Rarely::once_in(Duration::from_secs(1));
/// Handlers may say much meanwhile.
static LEFT_OUT: Rarely = Rarely::once_in(Duration::from_secs(10));

/// An answer that takes longer was lost, or the server is busy: what was sent is sent again, which is harmless.
pub(crate) const ANSWER_WITHIN: Duration = Duration::from_secs(3);

#[derive(Debug)]
pub(crate) enum Input {
    Commit(Box<Commit>),
    /// One more line for a tenant's log, such as a handler's progress.
    Line(Tenant, Bytes),
}

impl Input {
    /// Whether it only adds lines to the log, and nothing waits for them: it takes no place in flight.
    pub(crate) fn is_for_the_log_alone(&self) -> bool {
        match self {
            Self::Commit(commit) => commit.is_for_the_log_alone(),
            Self::Line(..) => true,
        }
    }
}

/// By what the committer reaches its server, and its clock.
pub(crate) trait Outlets {
    /// The monotonic clock.
    fn now(&self) -> Instant;

    /// Sends a message under a number, by which its answer is known.
    async fn send(&mut self, number: u64, what: &Sent);
    async fn publish_live(&self, events: &EncodedEvents);
    /// Ends the delivery of a commit of which nothing else is left to do: acknowledges it, as a rule.
    async fn end(&self, commit: Box<Commit>);

    /// Begins to clear up a record whose write was refused; reports how that ended.
    fn clear_up(&self, commit: Box<Commit>);
    /// Begins to write a follow-up, after which the delivery is ended; reports that it is over.
    fn follow(&self, commit: Box<Commit>);

    /// The event log refused a batch, which is sent again after this.
    async fn before_repeat(&self);
    /// Nothing was heard of a message since it was first sent.
    fn is_silent(&mut self, what: &Sent, first_sent: Instant);
    fn is_answered(&mut self, what: &Sent);
}

/// Commits under way. Outlives the committer.
#[derive(Debug)]
pub(crate) struct Pipeline {
    metrics: Arc<Metrics>,
    /// Writes down what decisions end, if the node writes traces.
    tracer: Option<Arc<Tracer>>,
    /// Messages that were sent and not answered, by number from `base` on.
    pending: VecDeque<Option<Pending>>,
    base: u64,
    pub(crate) batches: Batches,
    /// A larger body is not sent again: the server does not take it any more.
    most_bytes: usize,
    /// How many commits are between record and acknowledgement: each holds an [`InFlightPermit`].
    in_flight: Arc<AtomicUsize>,
    /// Ends that the metrics do not count yet. Nobody else locks it: the counts cannot be shared without a lock.
    ends: std::sync::Mutex<Ends>,
    pub(super) flushes: Vec<RpcReplyPort<()>>,
}

#[derive(Debug)]
struct Pending {
    first_sent: Instant,
    sent: Instant,
    what: Sent,
}

/// A message to the server whose answer is awaited.
#[derive(Debug)]
pub(crate) enum Sent {
    Record(Box<Commit>),
    /// A batch of a tenant's event log, under this message id.
    Batch {
        tenant: Tenant,
        id: String,
        body: Bytes,
        batch: Batch,
    },
}

impl Sent {
    fn size(&self) -> usize {
        match self {
            Self::Record(commit) => commit.write.as_ref().map_or(0, |write| write.body.len()),
            Self::Batch { body, .. } => body.len(),
        }
    }
}

impl Pipeline {
    /// Nothing is under way. Messages of the log may have `max_payload` bytes.
    pub(crate) fn new(max_payload: usize, metrics: Arc<Metrics>, tracer: Option<Arc<Tracer>>) -> Self {
        Self {
            metrics,
            tracer,
            pending: VecDeque::new(),
            base: 0,
            batches: Batches::new(max_payload),
            most_bytes: usize::MAX,
            in_flight: Arc::default(),
            ends: std::sync::Mutex::default(),
            flushes: Vec::new(),
        }
    }

    /// The server takes messages of up to `max_payload` bytes by now, and records of up to `max_in_record`: it may have
    /// been started again to take less.
    pub(crate) fn fit(&mut self, max_payload: usize, max_in_record: usize) {
        self.most_bytes = max_in_record;
        self.batches.fit(max_payload);
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// Adds the ends to the metrics: whenever nothing is left to do, and now and then while there is.
    pub(crate) fn count_ends(&mut self) {
        self.ends.get_mut().unpoisoned().flush();
    }

    /// Sets the gauges; so many commits wait for the committer.
    pub(crate) fn measure(&mut self, waiting: usize, now: Instant) {
        self.count_ends();
        let number = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        self.metrics.in_flight.set(number(self.in_flight()));
        self.metrics.commits_waiting.set(number(waiting));
        let oldest = self.pending.iter().flatten().find(|pending| matches!(pending.what, Sent::Batch { .. }));
        self.metrics.log_lag.set(oldest.map_or(0.0, |batch| (now - batch.first_sent).as_secs_f64()));
    }

    /// Tidies the state after a committer that died in the middle of something. The commits that it was working on are
    /// gone, and their deliveries are returned; a batch that it was sending must not hold up its tenant's next ones.
    pub(crate) fn tidy(&mut self) {
        let in_flight: Vec<Tenant> = self
            .pending
            .iter()
            .flatten()
            .filter_map(|pending| match &pending.what {
                Sent::Batch { tenant, .. } => Some(tenant.clone()),
                Sent::Record(_) => None,
            })
            .collect();
        self.batches.tidy(&in_flight);
    }

    pub(crate) async fn take<O: Outlets>(&mut self, input: Input, outlets: &mut O) {
        match input {
            // No other node sends these lines again: they are kept before the committer does what might end it.
            Input::Commit(commit) if commit.is_for_the_log_alone() => {
                self.batches.add(&commit.run.tenant, [commit.lines.log(), b""], None, outlets.now());
            }
            Input::Commit(mut commit) => {
                commit.in_flight = Some(InFlightPermit::taken(&self.in_flight));
                if commit.write.is_some() {
                    fail_point::pass("before-record");
                    self.send(Sent::Record(commit), outlets).await;
                } else {
                    self.publish_events(commit, outlets).await;
                }
            }
            Input::Line(..) if self.batches.are_full() => {
                if let Some(times) = LEFT_OUT.happened("", outlets.now()) {
                    tracing::warn!(times, "too much waits for the event log: it lacks what handlers say now");
                }
            }
            Input::Line(tenant, line) => {
                self.batches.add(&tenant, [&line, b"\n"], None, outlets.now());
            }
        }
    }

    /// Whether a message waits for its answer, or lines for their batch.
    pub(crate) fn awaits_server(&self) -> bool {
        !self.pending.is_empty() || !self.batches.is_empty()
    }

    pub(crate) fn is_idle(&self) -> bool {
        let mut records = self.pending.iter().flatten().filter(|pending| matches!(pending.what, Sent::Record(_)));
        debug_assert!(self.in_flight() > 0 || records.next().is_none(), "a record on its way is counted nowhere");
        self.in_flight() == 0 && !self.awaits_server()
    }

    /// Answers flushes if nothing is under way, and none of the input waits.
    pub(crate) fn answer_flushes(&mut self, none_waits: bool) {
        if !self.flushes.is_empty() && none_waits && self.is_idle() {
            for done in self.flushes.drain(..) {
                let _ = done.send(());
            }
        }
    }

    async fn send<O: Outlets>(&mut self, what: Sent, outlets: &mut O) {
        let number = self.keep(what, outlets.now());
        self.send_kept(number, outlets).await;
    }

    /// Keeps a message that is about to be sent, before anything is awaited: a committer that dies over it leaves it to
    /// the next one, under this number.
    fn keep(&mut self, what: Sent, now: Instant) -> u64 {
        self.pending.push_back(Some(Pending { first_sent: now, sent: now, what }));
        self.base + self.pending.len() as u64 - 1
    }

    async fn send_kept<O: Outlets>(&self, number: u64, outlets: &mut O) {
        let at = number.checked_sub(self.base).and_then(|at| usize::try_from(at).ok());
        if let Some(Some(pending)) = at.and_then(|at| self.pending.get(at)) {
            outlets.send(number, &pending.what).await;
        }
    }

    /// Sends again what has waited for its answer for `overdue` or longer: compare-and-set and message ids allow it.
    /// What the server does not take any more gets smaller: a batch goes in parts, and a record is written anew.
    pub(crate) async fn send_again<O: Outlets>(&mut self, overdue: Duration, outlets: &mut O) {
        let (now, mut too_large) = (outlets.now(), Vec::new());
        for at in 0..self.pending.len() {
            let Some(pending) = &mut self.pending[at] else { continue };
            if now.duration_since(pending.sent) >= overdue {
                if pending.what.size() > self.most_bytes {
                    too_large.push(self.base + at as u64);
                    continue;
                }
                self.metrics.publishes_repeated.inc();
                if overdue >= ANSWER_WITHIN {
                    outlets.is_silent(&pending.what, pending.first_sent);
                }
                outlets.send(self.base + at as u64, &pending.what).await;
                pending.sent = now;
            }
        }
        for number in too_large {
            match self.forget(number).map(|pending| pending.what) {
                Some(Sent::Batch { tenant, body, batch, .. }) => self.batches.put_back(tenant, body, batch),
                Some(Sent::Record(commit)) => outlets.clear_up(commit),
                None => {}
            }
        }
    }

    fn forget(&mut self, number: u64) -> Option<Pending> {
        let at = usize::try_from(number.checked_sub(self.base)?).ok()?;
        let pending = self.pending.get_mut(at)?.take();
        while let Some(None) = self.pending.front() {
            self.pending.pop_front();
            self.base += 1;
        }
        pending
    }

    pub(crate) async fn answered<O: Outlets>(&mut self, number: u64, answer: PublishAnswer, outlets: &mut O) {
        match answer {
            PublishAnswer::Stored(sequence) => {
                let Some(Pending { first_sent, what, .. }) = self.forget(number) else { return };
                outlets.is_answered(&what);
                match what {
                    Sent::Record(mut commit) => {
                        fail_point::pass("after-record");
                        commit.written(sequence);
                        self.publish_events(commit, outlets).await;
                    }
                    Sent::Batch { tenant, batch, .. } => {
                        self.metrics.event_publish.observe((outlets.now() - first_sent).as_secs_f64());
                        self.logged(&tenant, batch, outlets).await;
                    }
                }
            }
            // The stream has no leader just now, or JetStream has no resources: it is sent again when it is overdue.
            PublishAnswer::NoResponders => {}
            PublishAnswer::Refused(refusal) => match self.forget(number).map(|pending| pending.what) {
                Some(Sent::Record(commit)) => {
                    if !refusal.is_wrong_sequence() {
                        log_run!(debug, commit.about(), "record not written yet: {}", refusal.description);
                    }
                    outlets.clear_up(commit);
                }
                Some(batch @ Sent::Batch { .. }) => {
                    self.metrics.log_refused.inc();
                    if let Some(times) = REFUSED.happened("", outlets.now()) {
                        tracing::warn!(times, "the event log refused a batch, trying again: {}", refusal.description);
                    }
                    let number = self.keep(batch, outlets.now());
                    outlets.before_repeat().await;
                    self.send_kept(number, outlets).await;
                }
                None => {}
            },
        }
    }

    /// The record is stored: its events go out live, and into their tenant's log.
    pub(crate) async fn publish_events<O: Outlets>(&mut self, mut commit: Box<Commit>, outlets: &O) {
        debug_assert!(commit.in_flight.is_some(), "a flush would not wait for this commit");
        if let Some(decision) = commit.decision.take() {
            self.metrics.decided(&commit.run, decision, self.ends.get_mut().unpoisoned());
        }
        if let Some(tracer) = &self.tracer {
            commit.trace(tracer);
            commit.ends_attempt = false;
        }
        fail_point::pass("before-events");
        let (before, events) = (commit.live_before.take().unwrap_or_default(), std::mem::take(&mut commit.lines));
        if events.enqueues {
            self.metrics.enqueued(&commit.run);
        }
        lines::write(&commit.run, &commit.payload, &events);
        outlets.publish_live(&events).await;
        if before.log().is_empty() && events.log().is_empty() {
            return finish(commit, outlets).await;
        }
        let tenant = commit.run.tenant.clone();
        self.batches.add(&tenant, [before.log(), events.log()], Some(commit), outlets.now());
    }

    pub(crate) async fn send_batches<O: Outlets>(&mut self, outlets: &mut O) {
        let mut numbers = Vec::new();
        for (tenant, mut batch) in self.batches.take_ready() {
            let (id, body) = (format!("{:032x}", rand::random::<u128>()), batch.take_body());
            numbers.push(self.keep(Sent::Batch { tenant, id, body, batch }, outlets.now()));
        }
        for number in numbers {
            self.send_kept(number, outlets).await;
        }
    }

    /// A batch is in the log: its commits go on, and the tenant's next batch may go out.
    async fn logged<O: Outlets>(&mut self, tenant: &Tenant, batch: Batch, outlets: &O) {
        fail_point::pass("after-events");
        self.batches.logged(tenant, outlets.now());
        // Workers end in any order. Acknowledged in the order of the lane, a job is the first of its lane, which costs
        // the server less to delete than one from the middle.
        let mut commits = batch.commits;
        commits.sort_unstable_by_key(|commit| commit.arrival.as_ref().map(|arrival| arrival.holding.message.sequence));
        for commit in commits {
            finish(commit, outlets).await;
        }
    }
}

/// The events are in the log: next the follow-up, then the delivery.
async fn finish<O: Outlets>(commit: Box<Commit>, outlets: &O) {
    if follow_up::is_needed(&commit) {
        outlets.follow(commit);
    } else {
        outlets.end(commit).await;
    }
}

#[cfg(test)]
mod tests;
