//! The committer: carries out commits. It stores the record, publishes the events and acknowledges.
//!
//! Each commit goes through four steps, each begun once the one before is confirmed: record (compare-and-set), events
//! (live, and into its tenant's open batch of the log), follow-up (schedule, parked job, dead letter), acknowledgement.
//! The first two are pipelined over one inbox; the rest, and any answer but a plain yes, is slow work in its own task.
//!
//! Bounds: [`QUEUED`] commits wait in the inbox, [`IN_FLIGHT`] are in flight; beyond that workers wait. Inbox and
//! unconfirmed commits live in a [`Committing`] that outlives the committer: after a panic the next one finds them.
//! What follows from an answer is said by `pipeline`; this file waits for whatever comes next, and sends.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use longshore_backbone::Backbone;
use longshore_backbone::ticks::{Ticks, ticks};
use longshore_backbone::window::{PublishAnswer, PublishWindow};
use longshore_backbone::wire::header;
use longshore_domain::follow_up::FollowUp;
use ractor::RpcReplyPort;
use tokio::sync::{Mutex, mpsc};
use tokio::time::Sleep;

use crate::commit::Commit;
use crate::commit::follow_up::{self, Done};
use crate::commit::inbox::{Inbox, QUEUED};
use crate::commit::pipeline::{ANSWER_WITHIN, Input, Outlets, Pipeline, Sent};
use crate::metrics::Metrics;
use crate::ports::encode::EncodedEvents;
use crate::runtime::address::Mailbox;
use crate::runtime::coalesce::coalesced;
use crate::runtime::now;
use crate::runtime::supervision::LoopEnd;
use crate::trace::Tracer;

/// Commits that may be between record and acknowledgement.
pub(crate) const IN_FLIGHT: usize = 4_096;
/// How often it checks for overdue answers.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// What the committer is asked, beside its input.
#[derive(Debug)]
pub(crate) enum CommitterMessage {
    /// Answer once all input is confirmed.
    Flush(RpcReplyPort<()>),
}

/// The committer's state; it outlives the committer.
#[derive(Debug)]
pub(crate) struct Committing {
    backbone: Backbone,
    metrics: Arc<Metrics>,
    tracer: Option<Arc<Tracer>>,
    inbox: Inbox,
    /// Where slow work reports. Unbounded, but never longer than [`IN_FLIGHT`].
    slow: mpsc::UnboundedSender<Done>,
    done: mpsc::UnboundedReceiver<Done>,
    pipeline: Pipeline,
}

struct NodeOutlets {
    backbone: Backbone,
    window: PublishWindow,
    metrics: Arc<Metrics>,
    tracer: Option<Arc<Tracer>>,
    slow: mpsc::UnboundedSender<Done>,
}

pub(crate) async fn run(committing: Arc<Mutex<Committing>>, mut mailbox: Mailbox<CommitterMessage>) -> LoopEnd {
    let mut committing = committing.lock().await;
    let committing = &mut *committing;
    let backbone = committing.backbone.clone();
    let window = backbone.window().await.map_err(|error| error.with_causes())?;
    let mut outlets = committing.outlets(window);
    let mut connected = backbone.connected();
    connected.mark_unchanged();
    let mut look = ticks(LOOK_EVERY);
    let mut linger = std::pin::pin!(tokio::time::sleep(Duration::ZERO));
    committing.pipeline.tidy();
    committing.pipeline.send_again(Duration::ZERO, &mut outlets).await;
    loop {
        let news = std::future::poll_fn(|context| {
            // Messages come last: while jobs flow, nobody looks for them.
            match committing.poll_news(&mut outlets.window, &mut look, linger.as_mut(), context) {
                Poll::Pending => {
                    committing.pipeline.count_ends();
                    mailbox.poll_next(context).map(News::Message)
                }
                news => news,
            }
        });
        let news = coalesced(news).await;
        let pipeline = &mut committing.pipeline;
        // What is for the log alone comes before a commit that was sent after it, as a start comes before its end. And
        // it waits for no answers: while the log is full, these come without a pause.
        if !matches!(&news, News::Input(input) if input.is_for_the_log_alone()) {
            for _ in 0..QUEUED {
                let Some(lines) = committing.inbox.lines() else { break };
                pipeline.take(lines, &mut outlets).await;
            }
        }
        match news {
            News::Answer(number, answer) => pipeline.answered(number, answer, &mut outlets).await,
            News::Done(Done::OnRecord(commit)) => pipeline.publish_events(commit, &outlets).await,
            // It has given its place up, so the loop can take the next input.
            News::Done(Done::Over) => {}
            News::Input(input) => pipeline.take(input, &mut outlets).await,
            News::Ready => pipeline.send_batches(&mut outlets).await,
            News::Due => pipeline.batches.fall_due(),
            News::Look => {
                let overdue = if connected.has_changed().unwrap_or(false) { Duration::ZERO } else { ANSWER_WITHIN };
                connected.mark_unchanged();
                pipeline.fit(backbone.max_payload(), backbone.max_in_record());
                pipeline.send_again(overdue, &mut outlets).await;
                committing.pipeline.measure(committing.inbox.waiting(), Instant::now());
            }
            News::Message(CommitterMessage::Flush(done)) => pipeline.flushes.push(done),
            News::Closed => return Ok(()),
        }
        let none_waits = committing.inbox.is_empty();
        committing.pipeline.answer_flushes(none_waits);
    }
}

enum News {
    Answer(u64, PublishAnswer),
    Done(Done),
    Input(Input),
    Ready,
    Due,
    Look,
    Message(CommitterMessage),
    Closed,
}

impl Committing {
    pub(super) fn new(backbone: Backbone, metrics: Arc<Metrics>, tracer: Option<Arc<Tracer>>, inbox: Inbox) -> Self {
        let (slow, done) = mpsc::unbounded_channel();
        let pipeline = Pipeline::new(backbone.max_payload(), Arc::clone(&metrics), tracer.clone());
        Self { backbone, metrics, tracer, inbox, slow, done, pipeline }
    }

    fn outlets(&self, window: PublishWindow) -> NodeOutlets {
        let (backbone, slow) = (self.backbone.clone(), self.slow.clone());
        NodeOutlets { backbone, window, metrics: Arc::clone(&self.metrics), tracer: self.tracer.clone(), slow }
    }

    /// The next thing to do. Answers come first, because they free places; commits are taken only while one is free.
    fn poll_news(
        &mut self,
        window: &mut PublishWindow,
        look: &mut Ticks,
        mut linger: Pin<&mut Sleep>,
        context: &mut Context<'_>,
    ) -> Poll<News> {
        if let Poll::Ready(answer) = window.poll(context) {
            return Poll::Ready(answer.map_or(News::Closed, |(number, answer)| News::Answer(number, answer)));
        }
        if let Poll::Ready(Some(done)) = self.done.poll_recv(context) {
            return Poll::Ready(News::Done(done));
        }
        let in_flight = self.pipeline.in_flight();
        match self.inbox.poll(in_flight >= IN_FLIGHT, context) {
            Poll::Ready(Some(input)) => return Poll::Ready(News::Input(input)),
            Poll::Ready(None) if in_flight == 0 => return Poll::Ready(News::Closed),
            _ => {}
        }
        if self.pipeline.batches.is_ready() {
            return Poll::Ready(News::Ready);
        }
        if let Some(due) = self.pipeline.batches.due() {
            let due = tokio::time::Instant::from_std(due);
            if linger.deadline() != due {
                linger.as_mut().reset(due);
            }
            if linger.poll(context).is_ready() {
                return Poll::Ready(News::Due);
            }
        }
        look.poll(context).map(|()| News::Look)
    }
}

impl NodeOutlets {
    fn subject(&self, what: &Sent) -> String {
        match what {
            Sent::Record(commit) => {
                let subject = commit.write.as_ref().map(|write| String::from_utf8_lossy(&write.subject).into_owned());
                subject.unwrap_or_default()
            }
            Sent::Batch { tenant, .. } => self.backbone.names().event_log(tenant.as_str()),
        }
    }
}

impl Outlets for NodeOutlets {
    fn now(&self) -> Instant {
        Instant::now()
    }

    async fn send(&mut self, number: u64, what: &Sent) {
        match what {
            Sent::Record(commit) => {
                let Some(write) = &commit.write else { return };
                let headers = self.backbone.record_headers(&commit.run, write.expected);
                self.window.send(number, write.subject.clone(), headers, write.body.clone()).await;
            }
            Sent::Batch { tenant, id, body, .. } => {
                let subject = Bytes::from(self.backbone.names().event_log(tenant.as_str()));
                self.window.send(number, subject, header::single(header::names::MSG_ID, id), body.clone()).await;
            }
        }
    }

    async fn publish_live(&self, events: &EncodedEvents) {
        self.backbone.publish_parts(events.live()).await;
    }

    async fn end(&self, commit: Box<Commit>) {
        follow_up::end(&self.backbone, commit).await;
    }

    fn clear_up(&self, commit: Box<Commit>) {
        let (backbone, metrics, slow) = (self.backbone.clone(), Arc::clone(&self.metrics), self.slow.clone());
        tokio::spawn(async move {
            let _ = slow.send(follow_up::clear_up(&backbone, &metrics, commit).await);
        });
    }

    fn follow(&self, mut commit: Box<Commit>) {
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
    }

    async fn before_repeat(&self) {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }

    fn is_silent(&mut self, what: &Sent, first_sent: Instant) {
        self.window.is_silent(&self.subject(what), first_sent);
    }

    fn is_answered(&mut self, what: &Sent) {
        if self.window.knows_silence() {
            self.window.is_answered(&self.subject(what));
        }
    }
}
