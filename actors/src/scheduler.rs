//! The scheduler of one queue: pulls from its nine lanes into the queue's hand ([`crate::ready`]) and wakes idle workers.
//!
//! A plain loop without a mailbox: a message a job would cost more than all that is done here. It takes no more in hand
//! than can soon be started. What waits there for too long goes back and keeps its place; so does all of it when the
//! node drains, because a delivery that is dropped hands itself back.

use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use longshore_backbone::control::Marks;
use longshore_backbone::delivery::Delivery;
use longshore_backbone::pull::{Pulled, Puller};
use longshore_domain::Priority;

use crate::assignment::Assignment;
use crate::gather::gathered;
use crate::queue::QueueState;
use crate::ready::{Came, Held};
use crate::shared::Shared;

/// How often it looks up without being called: to measure its own rate, and to notice that it was frozen.
const TICK: Duration = Duration::from_millis(100);
/// A loop that was not run for so long was frozen; what then comes may have lain in the socket all the while.
const FROZEN: Duration = Duration::from_millis(1_000);
/// Most jobs of one lane in hand or on their way.
const LANE_MOST: usize = 512;
/// So much of its present rate it keeps in hand.
const AHEAD: Duration = Duration::from_millis(50);
/// So long may a job in hand and an idle worker wait for each other while nothing starts.
const PATIENCE: Duration = Duration::from_millis(2);
/// Jobs taken in between two looks at the workers.
const GULP: usize = 256;

struct Scheduler {
    shared: Arc<Shared>,
    queue: Arc<QueueState>,
    puller: Puller,
    marks: Marks,
    /// Most bytes of a client's job.
    most: usize,
    /// What came in this turn.
    fresh: Vec<Came>,
    /// What was in hand at the last look.
    held: Held,
    /// When the inbox was last seen empty: leases count from there.
    read_at: Instant,
    /// After a freeze, until when what comes counts as sent before it.
    suspect_until: Option<Instant>,
    /// While jobs in hand and idle workers wait for a turn: until when, and how many jobs had started then.
    stalled: Option<(Instant, u64)>,
    /// Jobs that had started when that was last looked into, in this tick.
    looked_into: Option<u64>,
    /// Jobs that had started at the last tick.
    counted: u64,
    rate: f64,
    recent: [usize; Priority::COUNT],
}

/// Why the scheduler looks up.
enum News {
    Idle,
    Stalled,
    Pulled,
    Again(Box<Assignment>),
    Tick,
    Closed,
    Drain,
}

/// Schedules until the node drains.
pub(crate) async fn run(shared: Arc<Shared>, queue: Arc<QueueState>) {
    let mut again = queue.again.lock().await;
    let marks = marks(&shared, &queue).await;
    let puller = match Puller::of_queue(&shared.backbone, &queue.name).await {
        Ok(puller) => puller,
        Err(error) => panic!("the scheduler cannot work: {error}"),
    };
    // One that died before has left nothing but what it knew of its own pulls.
    queue.ready.clear();
    let mut scheduler = Scheduler::new(shared, Arc::clone(&queue), puller, marks);
    let mut tick = tokio::time::interval(TICK);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let draining = scheduler.shared.draining.clone();
    loop {
        let hold_off = queue.ready.hold_off();
        let stalled = scheduler.stalled.map(|(until, _)| until);
        let (waits_for_room, slots) = (scheduler.held.back > 0, Arc::clone(&scheduler.shared.slots));
        let news = gathered(async {
            // Not biased: under load a worker comes back at every turn, and the lanes must have theirs as well.
            tokio::select! {
                () = draining.cancelled() => News::Drain,
                () = queue.idle.came() => News::Idle,
                () = queue.ready.taken() => News::Idle,
                Some(assignment) = again.recv() => News::Again(Box::new(assignment)),
                came = scheduler.pulled() => if came { News::Pulled } else { News::Closed },
                () = held_off(hold_off), if hold_off.is_some() => News::Idle,
                () = held_off(stalled), if stalled.is_some() => News::Stalled,
                () = slots.freed(), if waits_for_room => News::Idle,
                _ = tick.tick() => News::Tick,
            }
        });
        match news.await {
            News::Idle => {}
            News::Stalled => scheduler.stalled(),
            News::Pulled => queue.ready.came(scheduler.fresh.drain(..)),
            News::Again(assignment) => queue.ready.again(assignment),
            News::Tick => scheduler.tick().await,
            News::Closed => panic!("the connection's subscription ended"),
            News::Drain => break,
        }
        queue.hand_out(&scheduler.shared);
        scheduler.top_up().await;
    }
    scheduler.puller.close().await;
    queue.ready.clear();
    queue.closed.cancel();
    // The node ends its children itself; a loop that ended would be started again.
    std::future::pending::<()>().await;
}

/// From where on delivery counts can be trusted; without that knowledge nothing may be pulled.
async fn marks(shared: &Shared, queue: &QueueState) -> Marks {
    // While the connection was gone, this node heard of no cancel.
    while let Err(error) = crate::cancel::learn(shared).await {
        tracing::warn!(queue = %queue.name, "cannot read which runs are cancelled, trying again: {}", crate::carry_out::chain(&error));
        tokio::time::sleep(Duration::from_millis(250)).await;
    }
    loop {
        match shared.backbone.marks(&queue.name).await {
            Ok(marks) => return marks,
            Err(error) => {
                tracing::warn!(queue = %queue.name, "cannot read the lanes' marks, trying again: {}", crate::carry_out::chain(&error));
                tokio::time::sleep(Duration::from_millis(250)).await;
            }
        }
    }
}

impl Scheduler {
    fn new(shared: Arc<Shared>, queue: Arc<QueueState>, puller: Puller, marks: Marks) -> Self {
        let held = queue.ready.held();
        Self {
            most: shared.backbone.most_on_arrival(),
            shared,
            queue,
            puller,
            marks,
            fresh: Vec::with_capacity(GULP),
            held,
            read_at: Instant::now(),
            suspect_until: None,
            stalled: None,
            looked_into: None,
            counted: held.started,
            rate: 0.0,
            recent: [0; Priority::COUNT],
        }
    }

    /// Waits for news from the lanes and takes in what is there, up to a gulp; false if the subscription has ended.
    async fn pulled(&mut self) -> bool {
        std::future::poll_fn(|context| {
            // One look at the clock for all of it: a gulp takes a millisecond at most.
            let now = Instant::now();
            let leased_from = self.leased_from(now);
            let mut any = false;
            for _ in 0..GULP {
                match self.puller.poll(context, leased_from, now) {
                    Poll::Ready(Some(Pulled::Job(lane, delivery))) => self.take(lane, delivery),
                    Poll::Ready(Some(Pulled::Word(_))) => {}
                    Poll::Ready(None) => return Poll::Ready(false),
                    Poll::Pending => {
                        self.read_at = now;
                        return if any { Poll::Ready(true) } else { Poll::Pending };
                    }
                }
                any = true;
            }
            Poll::Ready(true)
        })
        .await
    }

    fn leased_from(&mut self, now: Instant) -> Instant {
        match self.suspect_until {
            Some(until) if now < until => {}
            Some(_) => {
                self.suspect_until = None;
                self.read_at = now;
            }
            None => {
                let frozen = now.duration_since(self.read_at);
                if frozen > FROZEN {
                    tracing::warn!(queue = %self.queue.name, ?frozen, "this node was frozen");
                    self.suspect_until = Some(now + FROZEN);
                }
            }
        }
        self.read_at
    }

    fn take(&mut self, lane: usize, delivery: Delivery) {
        let behind = delivery.behind;
        let mark = self.marks.get(&**self.puller.stream(lane)).copied().unwrap_or(0);
        let assignment = Assignment::read(delivery, self.shared.backbone.names(), mark, self.most);
        self.recent[lane] += 1;
        self.fresh.push(Came { lane, behind, assignment: Box::new(assignment) });
    }

    async fn tick(&mut self) {
        let now = Instant::now();
        let held = self.queue.ready.held();
        let started = held.started - std::mem::replace(&mut self.counted, held.started);
        self.looked_into = None;
        self.rate = self.rate.mul_add(0.5, 0.5 * started as f64 / TICK.as_secs_f64());
        self.recent.iter_mut().for_each(|count| *count /= 2);
        self.queue.ready.give_back(now, self.shared.backbone.storage().lease);
        if self.puller.reconnected() {
            // The server may have forgotten our pulls, and what it gave us: both are asked for anew.
            self.queue.ready.forget_deliveries();
            self.marks = marks(&self.shared, &self.queue).await;
            self.puller.forget_pulls();
        } else if self.puller.forget_silent(now) > 0 {
            tracing::debug!(queue = %self.queue.name, "pulls went unheard, asking again");
            if self.shared.backbone.storage().replicas > 1 {
                // A consumer may have a new leader, which can hand out again as if for the first time.
                self.marks = marks(&self.shared, &self.queue).await;
            }
        }
        let labels = [self.queue.name.as_str()];
        let gauge = |number: usize| i64::try_from(number).unwrap_or(i64::MAX);
        self.shared.metrics.in_hand.with_label_values(&labels).set(gauge(held.of.iter().sum::<usize>() + held.back));
        self.shared.metrics.running.with_label_values(&labels).set(gauge(self.queue.running()));
    }

    /// Jobs and idle workers have waited for a turn. Where none has started meanwhile, those whose turn it is block their
    /// threads, and the others are not to wait for them.
    fn stalled(&mut self) {
        let now_started = self.queue.ready.held().started;
        if self.stalled.take().is_some_and(|(_, started)| started == now_started) {
            // Perhaps none can start; looking again and again would help nobody.
            self.looked_into = Some(now_started);
            self.queue.hand_out_all(&self.shared);
        }
    }

    /// Asks the lanes for as many jobs as can soon be started.
    async fn top_up(&mut self) {
        let idle = self.queue.idle.count();
        let busy = self.recent.iter().filter(|count| **count > 0).count().max(1);
        let soon = idle + (self.rate * AHEAD.as_secs_f64()) as usize;
        self.held = self.queue.ready.held();
        let waits = idle > 0 && self.held.of.iter().any(|held| *held > 0);
        let waits = waits && self.looked_into != Some(self.held.started);
        self.stalled = waits.then(|| self.stalled.unwrap_or_else(|| (Instant::now() + PATIENCE, self.held.started)));
        for lane in 0..self.puller.lanes() {
            let want = if self.recent[lane] > 0 { soon.div_ceil(busy) } else { idle.div_ceil(Priority::COUNT) };
            self.puller.top_up(lane, self.held.of[lane] + self.held.back, want.min(LANE_MOST)).await;
        }
    }
}

async fn held_off(until: Option<Instant>) {
    if let Some(until) = until {
        tokio::time::sleep_until(until.into()).await;
    }
}
