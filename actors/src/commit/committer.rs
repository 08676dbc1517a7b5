//! The committer: carries out commits. It stores the record, publishes the events and acknowledges.
//!
//! Each commit goes through four steps, each begun once the one before is confirmed: record (compare-and-set), events
//! (live, and into its tenant's open batch of the log), follow-up (schedule, parked job, dead letter), acknowledgement.
//! The first two are pipelined over one inbox; the rest, and any answer but a plain yes, is slow work in its own task.
//!
//! Bounds: [`QUEUED`] commits wait in the channel, [`IN_FLIGHT`] are in flight; beyond that workers wait. Channel and
//! unconfirmed commits live in a [`Committing`] that outlives the committer: after a panic the next one finds them.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use longshore_backbone::Backbone;
use longshore_backbone::window::{Answer, Window};
use longshore_backbone::wire::header;
use longshore_domain::Tenant;
use longshore_domain::follow_up::FollowUp;
use ractor::RpcReplyPort;
use tokio::sync::{Mutex, mpsc};
use tokio::time::{Interval, Sleep};

use crate::address::Mailbox;
use crate::coalesce::coalesced;
use crate::commit::batches::{Batch, Batches};
use crate::commit::follow_up::{self, Done};
use crate::commit::{Commit, InFlightPermit, lines};
use crate::fail_point;
use crate::metrics::Metrics;
use crate::metrics::jobs::Ends;
use crate::shared::log_run::log_run;
use crate::shared::now;
use crate::supervision::LoopEnd;
use crate::trace::Tracer;

/// Commits that may wait for the committer.
pub(crate) const QUEUED: usize = 512;
/// Commits that may be between record and acknowledgement.
pub(crate) const IN_FLIGHT: usize = 4_096;
/// An answer that takes longer was lost, or the server is busy: what was sent is sent again, which is harmless.
const ANSWER_WITHIN: Duration = Duration::from_secs(3);
/// How often it checks for overdue answers.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Input of the committer.
#[derive(Debug)]
pub(crate) enum Input {
    /// A decision about a run.
    Commit(Box<Commit>),
    /// One more line for a tenant's log, such as a handler's progress.
    Line(Tenant, Bytes),
}

/// What the committer is asked, beside its input.
#[derive(Debug)]
pub(crate) enum Message {
    /// Answer once all input is confirmed.
    Flush(RpcReplyPort<()>),
}

/// The committer's state; it outlives the committer.
#[derive(Debug)]
pub(crate) struct Committing {
    backbone: Backbone,
    metrics: Arc<Metrics>,
    /// Writes down what decisions end, if the node writes traces.
    tracer: Option<Arc<Tracer>>,
    commits: mpsc::Receiver<Input>,
    /// Where slow work reports. Unbounded, but never longer than [`IN_FLIGHT`].
    slow: mpsc::UnboundedSender<Done>,
    done: mpsc::UnboundedReceiver<Done>,
    next: u64,
    /// Messages that were sent and not answered, by number from `base` on.
    pending: VecDeque<Option<Pending>>,
    base: u64,
    batches: Batches,
    /// How many commits are between record and acknowledgement: each holds an [`InFlightPermit`].
    in_flight: Arc<AtomicUsize>,
    /// Ends that the metrics do not count yet. Nobody else locks it: the counts cannot be shared without a lock.
    ends: std::sync::Mutex<Ends>,
    flushes: Vec<RpcReplyPort<()>>,
}

#[derive(Debug)]
struct Pending {
    first_sent: Instant,
    sent: Instant,
    what: Sent,
}

#[derive(Debug)]
enum Sent {
    Record(Box<Commit>),
    Batch { tenant: Tenant, id: String, body: Bytes, batch: Batch },
}

/// Carries out commits until the process ends.
pub(crate) async fn run(committing: Arc<Mutex<Committing>>, mut mailbox: Mailbox<Message>) -> LoopEnd {
    let mut committing = committing.lock().await;
    let backbone = committing.backbone.clone();
    let mut window = backbone.window().await.map_err(|error| error.with_causes())?;
    let mut connected = backbone.connected();
    connected.mark_unchanged();
    let mut look = tokio::time::interval(LOOK_EVERY);
    let mut linger = std::pin::pin!(tokio::time::sleep(Duration::ZERO));
    committing.tidy();
    committing.send_again(&mut window, Duration::ZERO).await;
    loop {
        let news = std::future::poll_fn(|context| {
            // Messages come last: while jobs flow, nobody looks for them.
            match committing.poll_news(&mut window, &mut look, linger.as_mut(), context) {
                Poll::Pending => {
                    committing.count_ends();
                    mailbox.poll_next(context).map(News::Message)
                }
                news => news,
            }
        });
        let news = coalesced(news).await;
        match news {
            News::Answer(number, answer) => committing.answered(number, answer, &mut window).await,
            News::Done(Done::OnRecord(commit)) => committing.publish_events(commit).await,
            // It has given its place up, so the loop can take the next input.
            News::Done(Done::Over) => {}
            News::Input(input) => committing.take(input, &mut window).await,
            News::Ready => committing.send_batches(&mut window).await,
            News::Due => committing.batches.fall_due(),
            News::Look => {
                let overdue = if connected.has_changed().unwrap_or(false) { Duration::ZERO } else { ANSWER_WITHIN };
                connected.mark_unchanged();
                committing.send_again(&mut window, overdue).await;
                committing.measure();
            }
            News::Message(Message::Flush(done)) => committing.flushes.push(done),
            News::Closed => return Ok(()),
        }
        committing.answer_flushes();
    }
}

enum News {
    Answer(u64, Answer),
    Done(Done),
    Input(Input),
    Ready,
    Due,
    Look,
    Message(Message),
    Closed,
}

impl Committing {
    pub(super) fn new(
        backbone: Backbone,
        metrics: Arc<Metrics>,
        tracer: Option<Arc<Tracer>>,
        commits: mpsc::Receiver<Input>,
    ) -> Self {
        let (slow, done) = mpsc::unbounded_channel();
        let batches = Batches::new(backbone.max_payload());
        Self {
            backbone,
            metrics,
            tracer,
            commits,
            slow,
            done,
            next: 0,
            pending: VecDeque::new(),
            base: 0,
            batches,
            in_flight: Arc::default(),
            ends: std::sync::Mutex::default(),
            flushes: Vec::new(),
        }
    }

    fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// Adds the ends to the metrics: whenever nothing is left to do, and now and then while there is.
    fn count_ends(&mut self) {
        self.ends.get_mut().unwrap_or_else(PoisonError::into_inner).flush();
    }

    /// Sets the gauges.
    fn measure(&mut self) {
        self.count_ends();
        let number = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        self.metrics.in_flight.set(number(self.in_flight()));
        self.metrics.commits_waiting.set(number(self.commits.len()));
        let oldest = self.pending.iter().flatten().find(|pending| matches!(pending.what, Sent::Batch { .. }));
        self.metrics.log_lag.set(oldest.map_or(0.0, |batch| batch.first_sent.elapsed().as_secs_f64()));
    }

    /// The next thing to do. Answers come first, because they free places; input is taken only while a place is free.
    fn poll_news(
        &mut self,
        window: &mut Window,
        look: &mut Interval,
        mut linger: Pin<&mut Sleep>,
        context: &mut Context<'_>,
    ) -> Poll<News> {
        if let Poll::Ready(answer) = window.poll(context) {
            return Poll::Ready(answer.map_or(News::Closed, |(number, answer)| News::Answer(number, answer)));
        }
        if let Poll::Ready(Some(done)) = self.done.poll_recv(context) {
            return Poll::Ready(News::Done(done));
        }
        if self.in_flight() < IN_FLIGHT {
            match self.commits.poll_recv(context) {
                Poll::Ready(Some(input)) => return Poll::Ready(News::Input(input)),
                Poll::Ready(None) if self.in_flight() == 0 => return Poll::Ready(News::Closed),
                _ => {}
            }
        }
        if self.batches.is_ready() {
            return Poll::Ready(News::Ready);
        }
        if let Some(due) = self.batches.due() {
            let due = tokio::time::Instant::from_std(due);
            if linger.deadline() != due {
                linger.as_mut().reset(due);
            }
            if linger.poll(context).is_ready() {
                return Poll::Ready(News::Due);
            }
        }
        look.poll_tick(context).map(|_| News::Look)
    }

    /// Tidies the state after a committer that died in the middle of something. The commits that it was working on are
    /// gone, and their deliveries are returned; a batch that it was sending must not hold up its tenant's next ones.
    fn tidy(&mut self) {
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

    async fn take(&mut self, input: Input, window: &mut Window) {
        match input {
            // No other node sends these lines again. So they are kept before the committer does anything that might end it.
            Input::Commit(commit) if commit.is_for_the_log_alone() => {
                self.batches.add(&commit.run.tenant, [commit.lines.log(), b""], None);
            }
            Input::Commit(mut commit) => {
                commit.in_flight = Some(InFlightPermit::taken(&self.in_flight));
                if commit.write.is_some() {
                    fail_point::pass("before-record");
                    self.send(Sent::Record(commit), window).await;
                } else {
                    self.publish_events(commit).await;
                }
            }
            Input::Line(tenant, line) => {
                self.batches.add(&tenant, [&line, b"\n"], None);
            }
        }
    }

    fn answer_flushes(&mut self) {
        let is_idle = || self.in_flight() == 0 && self.pending.is_empty() && self.batches.is_empty();
        if !self.flushes.is_empty() && self.commits.is_empty() && is_idle() {
            for done in self.flushes.drain(..) {
                let _ = done.send(());
            }
        }
    }

    async fn send(&mut self, what: Sent, window: &mut Window) {
        let number = self.next;
        self.next += 1;
        self.publish(number, &what, window).await;
        let now = Instant::now();
        self.pending.push_back(Some(Pending { first_sent: now, sent: now, what }));
    }

    async fn publish(&self, number: u64, what: &Sent, window: &mut Window) {
        match what {
            Sent::Record(commit) => {
                let Some(write) = &commit.write else { return };
                let headers = self.backbone.record_headers(&commit.run, write.expected);
                window.send(number, write.subject.clone(), headers, write.body.clone()).await;
            }
            Sent::Batch { tenant, id, body, .. } => {
                let headers = header::with_message_id(id);
                let subject = Bytes::from(self.backbone.names().event_log(tenant.as_str()));
                window.send(number, subject, headers, body.clone()).await;
            }
        }
    }

    /// Sends again what has waited for its answer for `overdue` or longer: compare-and-set and message ids allow it.
    async fn send_again(&mut self, window: &mut Window, overdue: Duration) {
        let now = Instant::now();
        for at in 0..self.pending.len() {
            let Some(pending) = &self.pending[at] else { continue };
            if now.duration_since(pending.sent) >= overdue {
                self.metrics.publishes_repeated.inc();
                if overdue >= ANSWER_WITHIN {
                    window.is_silent(&self.subject(&pending.what), pending.first_sent);
                }
                self.publish(self.base + at as u64, &pending.what, window).await;
                if let Some(pending) = &mut self.pending[at] {
                    pending.sent = now;
                }
            }
        }
    }

    /// Where it is published.
    fn subject(&self, what: &Sent) -> String {
        match what {
            Sent::Record(commit) => {
                let subject = commit.write.as_ref().map(|write| String::from_utf8_lossy(&write.subject).into_owned());
                subject.unwrap_or_default()
            }
            Sent::Batch { tenant, .. } => self.backbone.names().event_log(tenant.as_str()),
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

    async fn answered(&mut self, number: u64, answer: Answer, window: &mut Window) {
        match answer {
            Answer::Stored(sequence) => {
                let Some(Pending { first_sent, what, .. }) = self.forget(number) else { return };
                if window.knows_silence() {
                    window.is_answered(&self.subject(&what));
                }
                match what {
                    Sent::Record(mut commit) => {
                        fail_point::pass("after-record");
                        commit.written(sequence);
                        self.publish_events(commit).await;
                    }
                    Sent::Batch { tenant, batch, .. } => {
                        self.metrics.event_publish.observe(first_sent.elapsed().as_secs_f64());
                        self.logged(&tenant, batch).await;
                    }
                }
            }
            // The stream has no leader just now, or JetStream has no resources: it is sent again when it is overdue.
            Answer::Nobody => {}
            Answer::Refused(refusal) => match self.forget(number).map(|pending| pending.what) {
                Some(Sent::Record(commit)) => {
                    if !refusal.is_wrong_sequence() {
                        log_run!(debug, commit.about(), "record not written yet: {}", refusal.description);
                    }
                    let (backbone, metrics, slow) =
                        (self.backbone.clone(), Arc::clone(&self.metrics), self.slow.clone());
                    tokio::spawn(async move {
                        let _ = slow.send(follow_up::clear_up(&backbone, &metrics, commit).await);
                    });
                }
                Some(batch @ Sent::Batch { .. }) => {
                    self.metrics.log_refused.inc();
                    tracing::warn!("the event log refused a batch, trying again: {}", refusal.description);
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    self.send(batch, window).await;
                }
                None => {}
            },
        }
    }

    /// The record is stored: its events go out live, and into their tenant's log.
    async fn publish_events(&mut self, mut commit: Box<Commit>) {
        if let Some(decision) = commit.decision.take() {
            self.metrics.decided(&commit.run, decision, self.ends.get_mut().unwrap_or_else(PoisonError::into_inner));
        }
        if let Some(tracer) = &self.tracer {
            tracer.decided(&commit);
            commit.ends_attempt = false;
        }
        fail_point::pass("before-events");
        let (before, events) = (commit.live_before.take().unwrap_or_default(), std::mem::take(&mut commit.lines));
        if events.enqueues() {
            self.metrics.enqueued(&commit.run);
        }
        lines::tell(&commit.run, &commit.payload, &events);
        self.backbone.publish_parts(events.live()).await;
        if before.log().is_empty() && events.log().is_empty() {
            return self.finish(commit).await;
        }
        let tenant = commit.run.tenant.clone();
        self.batches.add(&tenant, [before.log(), events.log()], Some(commit));
    }

    async fn send_batches(&mut self, window: &mut Window) {
        for (tenant, mut batch) in self.batches.take_ready() {
            let (id, body) = (format!("{:032x}", rand::random::<u128>()), batch.take_body());
            self.send(Sent::Batch { tenant, id, body, batch }, window).await;
        }
    }

    /// A batch is in the log: its commits go on, and the tenant's next batch may go out.
    async fn logged(&mut self, tenant: &Tenant, batch: Batch) {
        fail_point::pass("after-events");
        self.batches.logged(tenant);
        // Workers end in any order. Acknowledged in the order of the lane, a job is the first of its lane, which costs
        // the server less to delete than one from the middle.
        let mut commits = batch.commits;
        commits.sort_unstable_by_key(|commit| commit.arrival.as_ref().map(|arrival| arrival.holding.message.sequence));
        for commit in commits {
            self.finish(commit).await;
        }
    }

    /// The events are in the log: next the follow-up, then the delivery.
    async fn finish(&mut self, mut commit: Box<Commit>) {
        if follow_up::is_needed(&commit) {
            let (backbone, slow) = (self.backbone.clone(), self.slow.clone());
            commit.payload.name_trace();
            let letter = self.tracer.clone().filter(|_| commit.follow_up == Some(FollowUp::DeadLetter));
            let letter = letter.map(|tracer| (tracer, commit.payload.trace.clone(), commit.run.clone()));
            tokio::spawn(async move {
                follow_up::follow(&backbone, commit).await;
                if let Some((tracer, trace, run)) = letter {
                    tracer.dead_letter(trace, &run, now());
                }
                let _ = slow.send(Done::Over);
            });
        } else {
            follow_up::end(&self.backbone, commit).await;
        }
    }
}
