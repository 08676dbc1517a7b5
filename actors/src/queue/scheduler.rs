//! The scheduler of one queue: pulls jobs from its lanes into the queue's buffer ([`crate::queue::buffer`]) and wakes
//! idle workers.
//!
//! It is a plain loop, because one message per job would cost more than everything that is done here: its messages
//! ([`SchedulerMessage`]) are not about single jobs.
//!
//! It buffers no more jobs than can soon be started ([`crate::queue::demand`]). A job that waits there for too long is
//! returned and keeps its place. A drain returns all of them, because a delivery that is dropped returns itself.

use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use longshore_backbone::delivery::{AckToken, Delivery};
use longshore_backbone::pull::{Pulled, Puller};
use longshore_domain::QueueLane;
use longshore_domain::freshness::Freshness;
use tokio::sync::mpsc::UnboundedReceiver;

use crate::attempt::assignment::{Assignment, Start};
use crate::attempt::node_ports::NodePorts;
use crate::queue::buffer::{Arrived, Buffered};
use crate::queue::demand::{Demand, TICK, Workers};
use crate::queue::dispatcher::{Dispatcher, QueuePart, SchedulerMessage};
use crate::queue::high_water_marks::HighWaterMarks;
use crate::queue::returning::Returning;
use crate::runtime::address::Mailbox;
use crate::runtime::coalesce::coalesced;
use crate::runtime::fail_point;
use crate::runtime::supervision::{LoopEnd, SUBSCRIPTION_ENDED, ticks};

/// Deliveries that may be older than they seem by this much are worth a warning: this node, or its server, stood still.
const FROZEN: Duration = Duration::from_secs(2);
/// The lanes, as metrics name them, in their order.
const LANES: [&str; QueueLane::COUNT] = ["p1", "p2", "p3", "p4", "p5", "p6", "p7", "p8", "p9", "returned"];
/// A job that the server has given this node before comes again after this time: by then a handler that was called
/// without a claim has ended, or its run has a record.
const REPEATED_AFTER: Duration = Duration::from_secs(1);
/// Jobs taken in before idle workers are served again.
const MAX_BATCH: usize = 256;

struct Scheduler {
    ports: Arc<NodePorts>,
    queue: Arc<Dispatcher>,
    puller: Puller,
    marks: HighWaterMarks,
    /// Maximum bytes of a client's job.
    max: usize,
    has_pulled: bool,
    /// The jobs of this round, not yet in the buffer.
    fresh: Vec<Arrived>,
    /// Deliveries that the server has given this node before, to be returned.
    repeated: Vec<AckToken>,
    returning: Returning,
    /// How many jobs were buffered when the lanes were last topped up.
    held: Buffered,
    /// From when on the server sent the deliveries that are read now: leases count from there.
    freshness: Freshness,
    /// How often each lane's pulls had been forgotten at the last check.
    epochs: [u64; QueueLane::COUNT],
    demand: Demand,
}

enum WokenBy {
    IdleWorkers,
    Stalled,
    Pulled,
    LocalRetries(Box<Assignment>),
    Tick,
    Closed,
    Message(SchedulerMessage),
}

/// Schedules until the queue closes.
pub(crate) async fn run(part: QueuePart, mut mailbox: Mailbox<SchedulerMessage>) -> LoopEnd {
    let (queue, backbone) = (Arc::clone(&part.queue), part.ports.backbone.clone());
    // What buffered jobs may wait for.
    let gate_news = &queue.buffer.gates.news;
    let lease = backbone.storage().lease;
    let mut again = queue.again.lock().await;
    if queue.is_closing() {
        // A scheduler before this one died; what was on its way to it comes again after the lease.
        queue.buffer.clear(Instant::now());
        return closed(mailbox, &mut again, lease).await;
    }
    // No delivery can be older than the subscription.
    let freshness = Freshness::new(Instant::now(), lease);
    let puller = Puller::of_queue(&backbone, &queue.name).await.map_err(|error| error.with_causes())?;
    // A scheduler that died before took what it knew of its own pulls along; what it buffered is returned.
    queue.buffer.clear(Instant::now());
    let marks = HighWaterMarks::new(backbone, Arc::clone(&part.ports.recently_cancelled), queue.name.clone());
    let mut scheduler = Scheduler::new(part, puller, marks, freshness);
    scheduler.marks.known().await;
    let mut tick = ticks(TICK);
    let mut known = gate_news.count();
    loop {
        let hold_off = queue.buffer.hold_off();
        let stalled = scheduler.demand.stalled_until();
        let waits_for_room = scheduler.held.back > 0;
        let news = coalesced(async {
            // Not biased: under load a worker becomes idle in every round, and the lanes must be read as well.
            tokio::select! {
                message = mailbox.next() => WokenBy::Message(message),
                () = queue.idle.came.notified() => WokenBy::IdleWorkers,
                () = queue.buffer.taken.notified() => WokenBy::IdleWorkers,
                () = queue.wake_permits.dropped.notified() => WokenBy::IdleWorkers,
                Some(assignment) = again.recv() => WokenBy::LocalRetries(Box::new(assignment)),
                came = scheduler.pulled() => if came { WokenBy::Pulled } else { WokenBy::Closed },
                () = held_off(hold_off), if hold_off.is_some() => WokenBy::IdleWorkers,
                () = held_off(stalled), if stalled.is_some() => WokenBy::Stalled,
                () = gate_news.since(known), if waits_for_room => WokenBy::IdleWorkers,
                _ = tick.tick() => WokenBy::Tick,
            }
        });
        match news.await {
            WokenBy::IdleWorkers | WokenBy::Message(SchedulerMessage::CapacityChanged) => {}
            WokenBy::Stalled => scheduler.stalled(),
            WokenBy::Pulled => {
                queue.buffer.came(scheduler.fresh.drain(..));
                scheduler.return_repeated().await;
            }
            WokenBy::LocalRetries(assignment) => queue.buffer.again(assignment),
            WokenBy::Tick => scheduler.tick(),
            WokenBy::Closed => return Err(SUBSCRIPTION_ENDED.to_owned()),
            WokenBy::Message(SchedulerMessage::Drain(done)) => {
                scheduler.close().await;
                let _ = done.send(());
                return closed(mailbox, &mut again, lease).await;
            }
        }
        known = gate_news.count();
        queue.dispatch();
        scheduler.top_up().await;
        scheduler.probe().await;
    }
}

/// The node drains, or serves the queue otherwise, and this queue's lanes are closed. The node ends its children
/// itself; a loop that returned would be started again. Jobs that are still at work may fail: their short retries are
/// returned, as nobody here begins them any more, and their leases would be renewed for as long as the others work.
async fn closed(
    mut mailbox: Mailbox<SchedulerMessage>,
    again: &mut UnboundedReceiver<Assignment>,
    lease: Duration,
) -> LoopEnd {
    loop {
        tokio::select! {
            message = mailbox.next() => if let SchedulerMessage::Drain(done) = message {
                let _ = done.send(());
            },
            Some(assignment) = again.recv() => assignment.return_or_abandon(Instant::now(), lease),
        }
    }
}

impl Scheduler {
    fn new(part: QueuePart, puller: Puller, marks: HighWaterMarks, freshness: Freshness) -> Self {
        let QueuePart { ports, queue, .. } = part;
        let held = queue.buffer.held();
        Self {
            max: ports.backbone.max_on_arrival(),
            ports,
            queue,
            puller,
            marks,
            has_pulled: false,
            fresh: Vec::with_capacity(MAX_BATCH),
            repeated: Vec::new(),
            returning: Returning::default(),
            held,
            freshness,
            epochs: [0; QueueLane::COUNT],
            demand: Demand::new(held.started),
        }
    }

    /// Pulls no more, and returns what is buffered.
    async fn close(self) {
        fail_point::pass("before-close");
        self.puller.close(self.freshness.since(), self.ports.backbone.storage().lease).await;
        self.queue.buffer.clear(Instant::now());
    }

    /// Waits for news from the lanes and takes in at most [`MAX_BATCH`] of them; false if the subscription has ended.
    async fn pulled(&mut self) -> bool {
        std::future::poll_fn(|context| {
            // The clock is read once for the whole batch, which takes a millisecond at most.
            let now = Instant::now();
            // A lane to which something has gone back can be pulled from again.
            let mut any = self.returning.poll(context);
            // Before what a server that was started again delivers: its marks are not known yet.
            any |= self.begins_anew(now);
            self.marks.poll(context);
            for _ in 0..MAX_BATCH {
                match self.puller.poll(context, self.freshness.since(), now) {
                    Poll::Ready(Some(Pulled::Job(lane, delivery))) => self.take(lane, delivery, now),
                    Poll::Ready(Some(Pulled::Word(lane))) => self.word(lane),
                    Poll::Ready(Some(Pulled::Echo(number))) => self.echo(number, now),
                    Poll::Ready(None) => return Poll::Ready(false),
                    Poll::Pending => return if any { Poll::Ready(true) } else { Poll::Pending },
                }
                any = true;
            }
            Poll::Ready(true)
        })
        .await
    }

    /// Returns what the server has given this node before. It comes again with a delivery count that says so.
    async fn return_repeated(&mut self) {
        for ack_token in self.repeated.drain(..) {
            self.ports.backbone.nak_after(ack_token, REPEATED_AFTER).await;
        }
    }

    /// A probe came back. Deliveries that were read before it may have been sent right after the probe before.
    fn echo(&mut self, number: u64, now: Instant) {
        let stood_still = now.duration_since(self.freshness.since());
        if stood_still > FROZEN {
            tracing::warn!(queue = %self.queue.name, ?stood_still, "this node or its server stood still: what came meanwhile may be another's");
        }
        self.freshness.answered(number);
    }

    /// The server sent a status about a lane's pulls.
    fn word(&mut self, lane: usize) {
        let epoch = self.puller.epoch(lane);
        if std::mem::replace(&mut self.epochs[lane], epoch) != epoch {
            self.marks.leader_may_be_new(lane);
            if !self.ports.backbone.has_one_server() {
                self.queue.buffer.claim_all(&mut self.fresh);
            }
        }
    }

    /// If the connection was made anew, the server may have forgotten our pulls and the deliveries it gave us: both are
    /// asked for anew. Says whether it was.
    fn begins_anew(&mut self, now: Instant) -> bool {
        if !self.puller.reconnected() {
            return false;
        }
        self.queue.buffer.forget_deliveries(now);
        self.marks.server_is_new();
        self.puller.forget_pulls();
        self.freshness.forget();
        (0..self.puller.lanes()).for_each(|lane| self.word(lane));
        true
    }

    /// Sends a probe of how fresh the deliveries are, if it is time.
    async fn probe(&mut self) {
        if let Some(number) = self.freshness.ask(Instant::now()) {
            self.puller.probe(number).await;
        }
    }

    fn take(&mut self, lane: usize, delivery: Delivery, now: Instant) {
        if self.marks.is_repeated(lane, &delivery.holding) {
            // Its job may be here, and begin in this moment without a claim: only later can it be distinguished.
            self.queue.buffer.claim_all(&mut self.fresh);
            self.repeated.push(delivery.ack_token);
            return;
        }
        let behind = delivery.behind;
        if let Some(took) = delivery.on_its_way {
            let labels = [self.queue.name.as_str(), LANES[lane]];
            self.ports.metrics.on_its_way.with_label_values(&labels).observe(took.as_secs_f64());
            self.queue.deliveries.took(took, now);
        }
        let mark = self.marks.of(lane);
        let mut assignment = Assignment::read(delivery, self.ports.backbone.names(), mark, self.max);
        if let Err(refusal) = assignment.admit(&self.ports.routing.policies) {
            self.ports.metrics.refused.with_label_values(&["invalid"]).inc();
            assignment.start = Start::Invalid(refusal);
        }
        if let Some(tracer) = &self.ports.tracer {
            assignment.trace(tracer);
        }
        self.queue.deliveries.came(lane, behind, &assignment.job);
        self.demand.came(lane);
        self.fresh.push(Arrived { lane, behind, assignment: Box::new(assignment) });
    }

    fn tick(&mut self) {
        let now = Instant::now();
        let held = self.queue.buffer.held();
        self.demand.tick(held.started);
        for (lane, ack_tokens) in self.queue.buffer.give_back(now) {
            self.returning.begin(&self.ports.backbone, lane, ack_tokens);
        }
        if !self.begins_anew(now) && self.puller.forget_silent(now) > 0 {
            tracing::debug!(queue = %self.queue.name, "pulls went unheard, asking again");
            (0..self.puller.lanes()).for_each(|lane| self.word(lane));
        }
        let labels = [self.queue.name.as_str()];
        for (lane, silent) in LANES.into_iter().zip(self.puller.silences(now)) {
            self.ports.metrics.pull_silence.with_label_values(&[labels[0], lane]).set(silent.as_secs_f64());
        }
        let gauge = |number: usize| i64::try_from(number).unwrap_or(i64::MAX);
        self.ports.metrics.buffered.with_label_values(&labels).set(gauge(held.of.iter().sum::<usize>() + held.back));
    }

    /// Jobs and idle workers have waited for a wake permit: for how long is up to those that hold the permits, unless
    /// these block their threads.
    fn stalled(&mut self) {
        if self.demand.is_stalled(self.queue.buffer.held().started) {
            self.queue.dispatch_all();
        }
    }

    /// Pulls from the lanes as many jobs as can soon be started.
    async fn top_up(&mut self) {
        let (now, idle) = (Instant::now(), self.queue.idle.count());
        self.held = self.queue.buffer.held();
        if !self.queue.buffer.is_open(now) {
            // What it has pulled before stays buffered for a while, and then goes back.
            self.demand.is_closed();
            return;
        }
        self.demand.has_dispatched(&self.held, idle, now);
        let workers = Workers { all: self.queue.policy.concurrency, idle, held_back: self.queue.pressure.held_back() };
        let wanted = self.demand.wanted(workers);
        for lane in (0..self.puller.lanes()).filter(|lane| !self.returning.is_returning(*lane)) {
            self.puller.top_up(lane, self.held.of[lane], self.demand.of_lane(lane, wanted)).await;
        }
        if !std::mem::replace(&mut self.has_pulled, true) {
            self.queue.buffer.lanes_asked(Instant::now());
        }
    }
}

async fn held_off(until: Option<Instant>) {
    if let Some(until) = until {
        tokio::time::sleep_until(until.into()).await;
    }
}
