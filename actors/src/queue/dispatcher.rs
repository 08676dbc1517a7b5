//! The dispatcher of one queue: owns the buffered jobs, the idle workers and the wake permits, and gives workers jobs.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, RwLock};
use std::time::Instant;

use longshore_backbone::control::{MAX_TENANTS, QueueLoad};
use longshore_domain::policy::QueuePolicy;
use longshore_domain::{Job, Priority, Queue, QueueLane};
use ractor::{ActorRef, MessagingErr, RpcReplyPort};
use tokio::sync::{Mutex, mpsc};

use crate::attempt::assignment::Assignment;
use crate::attempt::node_ports::NodePorts;
use crate::queue::buffer::JobBuffer;
use crate::queue::fairness::deliveries::Deliveries;
use crate::queue::idle_workers::IdleWorkers;
use crate::queue::unresponsive::Place;
use crate::queue::wake_permits::{WakePermit, WakePermits};
use crate::runtime::Unpoisoned as _;
use crate::runtime::address::Address;
use crate::runtime::health::Health;
use crate::runtime::pressure::MachinePressure;

/// What a worker is sent: a job, and the permit to run. The jobs after it the worker takes from the buffer itself.
pub(crate) struct Work {
    pub(crate) assignment: Box<Assignment>,
    pub(crate) permit: WakePermit,
}

#[derive(Debug)]
pub(crate) enum SchedulerMessage {
    /// The node takes no new work: return what is buffered, pull no more, then answer.
    Drain(RpcReplyPort<()>),
    /// Remote handlers may take more jobs than before, or fewer.
    CapacityChanged,
}

#[derive(Clone)]
pub(crate) struct QueuePart {
    pub(crate) ports: Arc<NodePorts>,
    pub(crate) queue: Arc<Dispatcher>,
    pub(crate) health: Arc<Health>,
}

/// The state that a queue's actors share; it outlives them.
pub(crate) struct Dispatcher {
    pub(crate) name: Queue,
    pub(crate) policy: QueuePolicy,
    pub(crate) idle: IdleWorkers,
    pub(crate) buffer: JobBuffer,
    pub(crate) deliveries: Deliveries,
    pub(crate) wake_permits: Arc<WakePermits>,
    pub(crate) pressure: Arc<MachinePressure>,
    pub(crate) again: Mutex<mpsc::UnboundedReceiver<Assignment>>,
    pub(crate) scheduler: Address<SchedulerMessage>,
    /// Where a short retry goes when it is due: to the queue's scheduler, or the one that follows it.
    pub(crate) back: mpsc::UnboundedSender<Assignment>,
    /// How many workers were ever started; fewer than the concurrency only while the queue starts.
    started_workers: AtomicUsize,
    workers: RwLock<Vec<Option<ActorRef<Work>>>>,
    places: RwLock<Vec<Place>>,
}

impl Dispatcher {
    pub(crate) fn new(
        name: Queue,
        policy: QueuePolicy,
        buffer: JobBuffer,
        wake_permits: WakePermits,
        pressure: Arc<MachinePressure>,
    ) -> Self {
        // Bounded by `LocalRetryPermits`.
        let (back, again) = mpsc::unbounded_channel();
        Self {
            name,
            policy,
            idle: IdleWorkers::default(),
            buffer,
            deliveries: Deliveries::new(policy.fair_by),
            wake_permits: Arc::new(wake_permits),
            pressure,
            again: Mutex::new(again),
            scheduler: Address::default(),
            back,
            started_workers: AtomicUsize::new(0),
            workers: RwLock::new(vec![None; policy.concurrency]),
            places: RwLock::new((0..policy.concurrency).map(|_| Place::default()).collect()),
        }
    }

    /// Whether it takes no more jobs: the node drains, or serves the queue no longer, or otherwise.
    pub(crate) fn is_closing(&self) -> bool {
        self.buffer.closing.is_cancelled()
    }

    pub(crate) fn load(&self) -> QueueLoad {
        let (mut by_priority, mut by_tenant) = ([0; Priority::COUNT], BTreeMap::new());
        self.for_each_running(|job| {
            let of_priority = QueueLane::Of(job.priority).index();
            by_priority[of_priority] += 1;
            if by_tenant.len() < MAX_TENANTS || by_tenant.contains_key(&job.tenant) {
                by_tenant.entry(job.tenant.clone()).or_insert([0; Priority::COUNT])[of_priority] += 1;
            }
        });
        QueueLoad {
            concurrency: if self.is_closing() { 0 } else { self.policy.concurrency },
            running: self.running(),
            by_priority,
            oldest_buffered: self.buffer.oldest(),
            by_tenant,
        }
    }

    /// Gives buffered jobs to idle workers, in order, as long as there are both and a wake permit is left.
    pub(crate) fn dispatch(&self) {
        while self.wake_permits.is_one_left() && self.wake_one() {}
    }

    /// The same, regardless of how many permits are out.
    pub(crate) fn dispatch_all(&self) {
        while self.wake_one() {}
    }

    /// A worker that has to wait, or has nothing to do, gives its permit up and lets another one run.
    pub(crate) fn pass_on(&self, permit: WakePermit) {
        permit.release();
        self.dispatch();
        // A worker may have found that the next job must not start yet: the scheduler has to set its timer for it.
        self.buffer.notify_if_held_off();
    }

    /// Runs `future`; gives the permit up as soon as `future` has to wait.
    pub(crate) async fn while_running<F: Future>(&self, permit: &mut Option<WakePermit>, future: F) -> F::Output {
        let mut future = pin!(future);
        std::future::poll_fn(|context| {
            let polled = future.as_mut().poll(context);
            if polled.is_pending()
                && let Some(permit) = permit.take()
            {
                self.pass_on(permit);
            }
            polled
        })
        .await
    }

    /// Whether the machine is short of memory, and as many workers have jobs as the node can afford then; `beside` of
    /// them are not counted.
    pub(crate) fn is_crowded(&self, beside: usize) -> bool {
        let may_work = self.pressure.may_work(self.policy.concurrency);
        may_work < self.policy.concurrency && self.running().saturating_sub(beside) >= may_work
    }

    fn wake_one(&self) -> bool {
        let Some((number, work)) = self.next_work(Instant::now) else { return false };
        if let Some(Work { permit, .. }) = self.send(number, work) {
            // The worker is dead; its supervisor starts another, and the job, dropped here, is returned.
            tracing::debug!(worker = number, "a dead worker was given a job; it goes back");
            permit.release();
        }
        true
    }

    /// The next job that leaves the buffer, and the idle worker that is woken for it; without one no clock is read.
    pub(crate) fn next_work(&self, now: impl FnOnce() -> Instant) -> Option<(usize, Work)> {
        if self.is_crowded(0) {
            return None;
        }
        let number = self.idle.take()?;
        let Some(assignment) = self.buffer.next(now()) else {
            self.idle.put_quietly(number);
            return None;
        };
        Some((number, Work { assignment, permit: self.wake_permits.take() }))
    }

    /// Sends a worker its work; returns the work if the worker is dead.
    fn send(&self, number: usize, work: Work) -> Option<Work> {
        let workers = self.workers.read().unpoisoned();
        let Some(worker) = workers.get(number).and_then(Option::as_ref) else { return Some(work) };
        match worker.cast(work) {
            Err(MessagingErr::SendErr(work)) => Some(work),
            Ok(()) | Err(_) => None,
        }
    }

    pub(crate) fn place(&self, number: usize) -> Place {
        self.places.read().unpoisoned()[number].clone()
    }

    /// A worker was started, or started again.
    pub(crate) fn add_worker(&self, number: usize, worker: ActorRef<Work>) {
        self.workers.write().unpoisoned()[number] = Some(worker);
        self.started_workers.fetch_max(number + 1, Ordering::Relaxed);
        self.idle.put(number);
    }

    /// A worker whose handler does not respond keeps its state; the worker that replaces it gets a new one.
    pub(crate) fn replace_place(&self, number: usize) {
        self.places.write().unpoisoned()[number] = Place::default();
    }

    /// Looks at each job whose attempt has begun.
    pub(crate) fn for_each_running(&self, mut look: impl FnMut(&Job)) {
        for place in self.places.read().unpoisoned().iter() {
            let current = place.current.lock().unpoisoned();
            if let Some(running) = current.as_ref() {
                look(&running.assignment.job);
            }
        }
    }

    /// Returns once no worker is about to start an attempt by what it was sent before this call: it has either entered
    /// its attempt, or asks again.
    pub(crate) fn wait_for_starts(&self) {
        for place in self.places.read().unpoisoned().iter() {
            drop(place.current.lock().unpoisoned());
        }
    }

    pub(crate) fn running(&self) -> usize {
        self.started_workers.load(Ordering::Relaxed).saturating_sub(self.idle.count())
    }
}
