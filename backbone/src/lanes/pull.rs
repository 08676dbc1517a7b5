//! The puller: gets the jobs of a queue's lanes over one inbox.
//!
//! It replaces async-nats' pull stream. After a reconnect that stream believes that its lost pulls are still waiting,
//! as long as other nodes' pulls wait at the same durable consumer, and can then stall for half a minute. Here every
//! pull belongs to an *epoch* of its lane, which is part of its reply subject. A reconnect, a change of the consumer's
//! leader or two missed heartbeats begin a new epoch; jobs of an old one are as good as any.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use async_nats::{Message, StatusCode, Subject};
use bytes::Bytes;
use longshore_domain::{Queue, QueueLane, SmolStr};

use crate::Backbone;
use crate::clock;
use crate::connection::link::Link;
use crate::connection::subscription::Subscription;
use crate::error::Error;
use crate::lanes::custody::{Custody, MARK};
use crate::lanes::delivery::{AckInfo, AckToken, Delivery};
use crate::streams::shape::LANE_CONSUMER;

/// How long the server keeps a pull that finds nothing: for a lease, as a frozen node is sent what it had once more
/// until its pulls are over, but within these bounds. The lower one has room for heartbeats.
const EXPIRES: RangeInclusive<Duration> = Duration::from_secs(5)..=Duration::from_secs(30);
/// How often the server says that a waiting pull is still known.
const HEARTBEAT: Duration = Duration::from_secs(2);
/// If a lane with waiting pulls gets no message for this long, its pulls count as forgotten.
const SILENT: Duration = Duration::from_millis(4_500);
/// The token of the inbox under which probes come back.
const PROBE: &str = "probe";
const BATCH_MAX: usize = 500;

/// If no server answers for a consumer, the puller asks again after this long, then ever longer, up to [`MAX_REFUSED`].
const REFUSED_FIRST: Duration = Duration::from_millis(50);
const MAX_REFUSED: Duration = Duration::from_secs(1);
const CONSUMER_DELETED: &str = "Consumer Deleted";

/// Pulls from the lanes of one queue, or from the due jobs.
#[derive(Debug)]
pub struct Puller {
    link: Link,
    inbox: String,
    messages: Subscription,
    lanes: Vec<PulledLane>,
    expires: Duration,
    connected: tokio::sync::watch::Receiver<u64>,
}

#[derive(Debug)]
struct PulledLane {
    stream: SmolStr,
    next: Subject,
    epoch: u64,
    /// Jobs requested and not yet delivered.
    outstanding: usize,
    asked_since: Instant,
    last_message: Instant,
    custody: Arc<Custody>,
    /// How many pulls in a row no server answered for the consumer, and until when the consumer is left alone for that.
    refused: u32,
    left_alone_until: Option<Instant>,
}

impl PulledLane {
    fn note_activity(&mut self, now: Instant) {
        self.last_message = now;
        if self.refused > 0 {
            (self.refused, self.left_alone_until) = (0, None);
            self.custody.unanswered.store(false, Ordering::Relaxed);
        }
    }

    /// No server answers for its consumer: it is gone, or has no leader just now. [`Backbone::restore`] finds out.
    fn leave_alone(&mut self, now: Instant) {
        let wait = REFUSED_FIRST.saturating_mul(1 << self.refused.min(10)).min(MAX_REFUSED);
        self.refused = self.refused.saturating_add(1);
        self.left_alone_until = Some(now + wait);
        self.custody.unanswered.store(true, Ordering::Relaxed);
    }
}

/// What the puller received.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "nearly all that comes is a job, and none of it is kept")]
pub enum Pulled {
    /// A job, by the number of its lane.
    Job(usize, Delivery),
    /// The server sent a status about a pull of that lane, which may need topping up.
    Word(usize),
    /// A probe of this number is back: every later message was sent after it.
    Echo(u64),
}

impl Puller {
    /// A puller over a queue's lanes, in the order of [`longshore_domain::QueueLane::all`].
    ///
    /// # Errors
    /// The inbox cannot be subscribed to.
    pub async fn of_queue(backbone: &Backbone, queue: &Queue) -> Result<Self, Error> {
        let streams = QueueLane::all().map(|lane| backbone.names().lane_stream(queue, lane));
        Self::open(backbone, streams.collect(), LANE_CONSUMER).await
    }

    /// A puller over the due jobs.
    ///
    /// # Errors
    /// The inbox cannot be subscribed to.
    pub async fn of_due(backbone: &Backbone) -> Result<Self, Error> {
        Self::open(backbone, vec![backbone.names().schedules_stream()], crate::streams::shape::DUE_CONSUMER).await
    }

    async fn open(backbone: &Backbone, streams: Vec<String>, consumer: &str) -> Result<Self, Error> {
        let link = backbone.client().clone();
        let inbox = link.new_inbox();
        let connected = backbone.connected();
        let messages = link.subscribe(format!("{inbox}.>")).await?;
        let lane = |stream: String| PulledLane {
            next: Subject::from(format!("{}.CONSUMER.MSG.NEXT.{stream}.{consumer}", backbone.api())),
            custody: backbone.custody(&stream),
            stream: SmolStr::from(stream),
            epoch: 0,
            outstanding: 0,
            asked_since: Instant::now(),
            last_message: Instant::now(),
            refused: 0,
            left_alone_until: None,
        };
        let lanes: Vec<PulledLane> = streams.into_iter().map(lane).collect();
        lanes.iter().for_each(|lane| lane.custody.pulled_by(&inbox));
        let expires = backbone.storage().lease.clamp(*EXPIRES.start(), *EXPIRES.end());
        Ok(Self { link, inbox, messages, lanes, expires, connected })
    }

    /// How many lanes there are.
    pub fn lanes(&self) -> usize {
        self.lanes.len()
    }

    /// How many jobs of a lane were requested and not yet delivered.
    pub fn outstanding(&self, lane: usize) -> usize {
        self.lanes[lane].outstanding
    }

    /// How often this lane's pulls were forgotten: when that changes, its consumer may have another leader.
    pub fn epoch(&self, lane: usize) -> u64 {
        self.lanes[lane].epoch
    }

    /// Sends a probe to the puller's own inbox, by way of the server: it comes back after all that was sent before.
    pub async fn probe(&self, number: u64) {
        self.link.publish(format!("{}.{PROBE}.{number}", self.inbox), Bytes::new()).await;
    }

    /// What has arrived, at time `now`. The server sent it at `sent_from` or later, and counts the lease from there.
    pub fn poll(&mut self, context: &mut Context<'_>, sent_from: Instant, now: Instant) -> Poll<Option<Pulled>> {
        while let Some(message) = ready!(self.messages.poll_next(context)) {
            if let Some(pulled) = self.take(message, sent_from, now) {
                return Poll::Ready(Some(pulled));
            }
        }
        Poll::Ready(None)
    }

    /// Requests jobs of a lane, so that `want` are buffered or on their way. Does nothing while more than half are.
    pub async fn top_up(&mut self, lane: usize, held: usize, want: usize) {
        let state = &mut self.lanes[lane];
        let have = state.outstanding + held;
        if want == 0 || have * 2 > want || state.left_alone_until.is_some_and(|until| Instant::now() < until) {
            return;
        }
        let batch = (want - have).min(BATCH_MAX);
        if state.outstanding == 0 {
            let now = Instant::now();
            (state.asked_since, state.last_message) = (now, now);
        }
        state.outstanding += batch;
        let reply = format!("{}.{lane}.{}", self.inbox, state.epoch);
        let request = format!(
            r#"{{"batch":{batch},"expires":{},"idle_heartbeat":{}}}"#,
            self.expires.as_nanos(),
            HEARTBEAT.as_nanos()
        );
        let next = state.next.clone();
        // A lost pull is forgotten with its connection, or because its lane is silent.
        self.link.publish_with_reply(next, reply, Bytes::from(request)).await;
    }

    /// Whether the connection was re-established since the last call: then the server has forgotten every pull.
    pub fn reconnected(&mut self) -> bool {
        let changed = self.connected.has_changed().unwrap_or(false);
        // Only then: one that comes in between is seen by the next call.
        if changed {
            self.connected.mark_unchanged();
        }
        changed
    }

    /// Begins a new epoch on every lane: earlier pulls no longer count.
    pub fn forget_pulls(&mut self) {
        for lane in 0..self.lanes.len() {
            self.forget(lane);
        }
    }

    /// How long the server has said nothing about the pulls of each lane, in the lanes' order.
    pub fn silences(&self, now: Instant) -> impl Iterator<Item = Duration> {
        let silent = move |lane: &PulledLane| match lane.outstanding {
            0 => Duration::ZERO,
            _ => now.saturating_duration_since(lane.last_message),
        };
        self.lanes.iter().map(silent)
    }

    /// Begins a new epoch on lanes about whose pulls the server is silent; returns how many.
    pub fn forget_silent(&mut self, now: Instant) -> usize {
        let silent = |lane: &PulledLane| lane.outstanding > 0 && now.duration_since(lane.last_message) > SILENT;
        let lanes: Vec<usize> = (0..self.lanes.len()).filter(|lane| silent(&self.lanes[*lane])).collect();
        for lane in &lanes {
            self.forget(*lane);
        }
        lanes.len()
    }

    fn forget(&mut self, lane: usize) {
        let state = &mut self.lanes[lane];
        state.epoch += 1;
        state.outstanding = 0;
        state.last_message = Instant::now();
    }

    /// Stops pulling: the server forgets the pulls, and keeps the jobs that it has not sent. A job that still arrives
    /// was sent at `sent_from` or later, and is leased for `lease`.
    pub async fn close(mut self, sent_from: Instant, lease: Duration) {
        let _ = self.messages.unsubscribe().await;
        // A job that was on its way goes back when it is dropped, but not one that another node may have by now.
        let now = Instant::now();
        while let Some(message) = self.messages.next().await {
            match self.take(message, sent_from, now) {
                Some(Pulled::Job(_, delivery)) if now.duration_since(sent_from) >= lease => {
                    delivery.ack_token.abandon()
                }
                _ => {}
            }
        }
    }

    fn take(&mut self, message: Message, sent_from: Instant, now: Instant) -> Option<Pulled> {
        let Some(reply) = message.reply.clone() else {
            return match self.echo(&message.subject) {
                Some(number) => Some(Pulled::Echo(number)),
                None => self.word(&message, now).map(Pulled::Word),
            };
        };
        let info = AckInfo::read(&reply)?;
        let lane = self.lanes.iter().position(|lane| *lane.stream == *info.stream)?;
        let state = &mut self.lanes[lane];
        state.outstanding = state.outstanding.saturating_sub(1);
        state.note_activity(now);
        let asked_for = now.saturating_duration_since(state.asked_since);
        let on_its_way = info.is_alone().then(|| clock::now().since(info.at).min(asked_for));
        let (holding, sequence) = (info.holding(&state.stream), info.sequence);
        let size = message.length.saturating_sub(message.subject.len() + reply.len());
        Some(Pulled::Job(
            lane,
            Delivery {
                size,
                subject: message.subject,
                headers: message.headers,
                payload: message.payload,
                holding,
                behind: info.pending,
                on_its_way,
                leased_from: sent_from,
                ack_token: AckToken::new(reply, Arc::clone(&state.custody), sequence),
            },
        ))
    }

    fn echo(&self, subject: &str) -> Option<u64> {
        let number = subject.strip_prefix(self.inbox.as_str())?.strip_prefix('.')?.strip_prefix(PROBE)?;
        number.strip_prefix('.')?.parse().ok()
    }

    /// Reads a status message: the lane that it is about, if it is of the current epoch.
    fn word(&mut self, message: &Message, now: Instant) -> Option<usize> {
        let rest = message.subject.strip_prefix(self.inbox.as_str())?.strip_prefix('.')?;
        let (lane, epoch) = rest.split_once('.')?;
        if lane == MARK {
            let mark = epoch.parse().ok()?;
            self.lanes.iter().for_each(|lane| lane.custody.read_up_to(mark));
            return None;
        }
        let lane: usize = lane.parse().ok()?;
        let state = self.lanes.get_mut(lane)?;
        if epoch.parse() != Ok(state.epoch) {
            return None;
        }
        let status = message.status?;
        if status == StatusCode::NO_RESPONDERS || message.description.as_deref() == Some(CONSUMER_DELETED) {
            state.leave_alone(now);
            self.forget(lane);
            return Some(lane);
        }
        state.note_activity(now);
        if status == StatusCode::IDLE_HEARTBEAT {
            return None;
        }
        // The pull has ended: its time is over (408), or a status says how much of it will not be delivered (409).
        let left = message.headers.as_ref().and_then(|headers| headers.get("Nats-Pending-Messages"));
        match left.and_then(|left| left.as_str().parse::<usize>().ok()) {
            Some(left) => state.outstanding = state.outstanding.saturating_sub(left),
            None => {
                tracing::debug!(stream = %state.stream, status = status.as_u16(), "pulls ended: {:?}", message.description);
                self.forget(lane);
            }
        }
        Some(lane)
    }
}

impl Drop for Puller {
    fn drop(&mut self) {
        self.lanes.iter().for_each(|lane| lane.custody.left_by(&self.inbox));
    }
}
