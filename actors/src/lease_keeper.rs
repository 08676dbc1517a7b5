//! The lease-keeper: renews the leases of this node's running jobs, and stops a worker when its lease is gone.
//!
//! A job that ends at its handler's first step never gets here; a job that takes longer is entered in the [`Book`], and
//! struck out when it ends. Renewals go over the control connection, so that a flood of jobs cannot starve them. The
//! book outlives the keeper, and is bounded by the jobs that the node holds. Workers enter and strike out by function;
//! other parts stop them by a [`LeaseKeeperMessage`].

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use longshore_backbone::Backbone;
use longshore_backbone::delivery::AckToken;
use longshore_backbone::renewal::{Renewals, ReplyTo};
use longshore_domain::lease::Lease;
use longshore_domain::run::MessageId;
use longshore_domain::{Job, RunId, Tenant};
use ractor::RpcReplyPort;
use tokio_util::sync::CancellationToken;

use crate::metrics::Metrics;
use crate::runtime::address::Mailbox;
use crate::runtime::supervision::{LoopEnd, ticks};
use crate::runtime::{Unpoisoned as _, fail_point};

#[derive(Debug, Default)]
pub(crate) struct Book {
    next: AtomicU64,
    held: Mutex<HashMap<u64, LeasedRun>>,
    /// All running jobs were released: those that are entered from now on are, too.
    released: AtomicBool,
}

#[derive(Debug)]
struct LeasedRun {
    lease: Lease,
    reply: ReplyTo,
    message: MessageId,
    run: (Tenant, RunId),
    stop: Stop,
}

/// Cancels a running job.
#[derive(Debug, Clone, Default)]
pub(crate) struct Stop {
    pub(crate) token: CancellationToken,
    why: Arc<AtomicU8>,
}

const RUNS: u8 = 0;
const CANCELLED: u8 = 1;
const RELEASED: u8 = 2;
const LOST: u8 = 3;

impl Stop {
    pub(crate) fn is_lost(&self) -> bool {
        self.why.load(Ordering::Acquire) == LOST
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.why.load(Ordering::Acquire) == CANCELLED
    }

    /// Whether the node gives the job back, because it ends.
    pub(crate) fn is_released(&self) -> bool {
        self.why.load(Ordering::Acquire) == RELEASED
    }

    /// The lease is gone, whatever else is to happen to the job.
    fn lose(&self) {
        self.why.store(LOST, Ordering::Release);
        self.token.cancel();
    }

    /// Stops the job for this reason, unless it is being stopped already.
    fn stop(&self, why: u8) {
        let _ = self.why.compare_exchange(RUNS, why, Ordering::AcqRel, Ordering::Acquire);
        self.token.cancel();
    }
}

/// An entry in the book; dropped, it is struck out.
#[derive(Debug)]
pub(crate) struct LeaseEntry {
    number: u64,
    book: Arc<Book>,
    pub(crate) stop: Stop,
}

impl LeaseEntry {
    /// Whether its lease is lost: in a node that was frozen the keeper may not have looked yet.
    pub(crate) fn is_lost(&self, now: Instant, length: Duration) -> bool {
        self.ends_at(length).is_none_or(|end| end <= now)
    }

    /// When its lease ends, if no more renewal is confirmed; `None`: it is lost.
    pub(crate) fn ends_at(&self, length: Duration) -> Option<Instant> {
        self.book.ends_at(self.number, length)
    }
}

impl Drop for LeaseEntry {
    fn drop(&mut self) {
        self.book.held.lock().unpoisoned().remove(&self.number);
    }
}

impl LeasedRun {
    fn is(&self, tenant: &Tenant, run: &RunId) -> bool {
        (&self.run.0, &self.run.1) == (tenant, run)
    }
}

impl Book {
    /// Enters a running job, whose lease the server counts from `from` or later.
    pub(crate) fn enter(
        self: &Arc<Self>,
        ack_token: &AckToken,
        message: MessageId,
        job: &Job,
        from: Instant,
    ) -> Option<LeaseEntry> {
        let reply = ack_token.renewal()?;
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let stop = Stop::default();
        let run = (job.tenant.clone(), job.run_id.clone());
        let held = LeasedRun { lease: Lease::new(from), reply, message, run, stop: stop.clone() };
        let mut all = self.held.lock().unpoisoned();
        all.insert(number, held);
        if self.released.load(Ordering::Relaxed) {
            stop.stop(RELEASED);
        }
        drop(all);
        Some(LeaseEntry { number, book: Arc::clone(self), stop })
    }

    /// Asks the worker that works on a run here to stop; says whether there is one.
    fn cancel(&self, tenant: &Tenant, run: &RunId) -> bool {
        let held = self.held.lock().unpoisoned();
        let mut is_here = false;
        for held in held.values().filter(|held| held.is(tenant, run)) {
            held.stop.stop(CANCELLED);
            is_here = true;
        }
        is_here
    }

    /// Asks all workers to stop, and those that begin from now on.
    pub(crate) fn release(&self) {
        let held = self.held.lock().unpoisoned();
        self.released.store(true, Ordering::Relaxed);
        held.values().for_each(|held| held.stop.stop(RELEASED));
    }

    /// How many jobs' leases are renewed.
    pub(crate) fn count(&self) -> usize {
        self.held.lock().unpoisoned().len()
    }

    pub(crate) fn works_on(&self, tenant: &Tenant, run: &RunId) -> bool {
        self.held.lock().unpoisoned().values().any(|held| held.is(tenant, run))
    }

    /// When the lease under this number ends, if no more renewal is confirmed; `None`: it is not there, or lost.
    pub(crate) fn ends_at(&self, number: u64, length: Duration) -> Option<Instant> {
        self.held.lock().unpoisoned().get(&number).map(|held| held.lease.ends_at(length))
    }

    /// Whether the worker that works on a run here was notified that the run is cancelled.
    pub(crate) fn is_cancelled(&self, tenant: &Tenant, run: &RunId) -> bool {
        self.held.lock().unpoisoned().values().any(|held| held.is(tenant, run) && held.stop.is_cancelled())
    }

    /// Whether this node works on the job of that message.
    pub(crate) fn has(&self, message: &MessageId) -> bool {
        self.held.lock().unpoisoned().values().any(|held| held.message == *message)
    }
}

#[derive(Clone)]
pub(crate) struct LeaseKeeperPart {
    pub(crate) backbone: Backbone,
    pub(crate) book: Arc<Book>,
    pub(crate) metrics: Arc<Metrics>,
}

#[derive(Debug)]
pub(crate) enum LeaseKeeperMessage {
    /// Stop the worker that works on this run, and say whether there is one.
    Cancel(Tenant, RunId, RpcReplyPort<bool>),
    /// The node ends: stop every worker, then answer.
    Release(RpcReplyPort<()>),
}

pub(crate) async fn run(part: LeaseKeeperPart, mut mailbox: Mailbox<LeaseKeeperMessage>) -> LoopEnd {
    let LeaseKeeperPart { backbone, book, metrics } = part;
    let length = backbone.storage().lease;
    let (asker, mut renewals) = Renewals::open(&backbone).await.map_err(|error| error.with_causes())?;
    let mut tick = ticks(tick_every(length));
    let mut renewing = Renewing::new(Arc::clone(&book), length);
    loop {
        tokio::select! {
            message = mailbox.next() => book.heed(message),
            renewed = renewals.next() => match renewed {
                Some(number) => renewing.confirmed(number, Instant::now()),
                None => return Ok(()),
            },
            () = asker.ask(renewing.next()), if renewing.next().is_some() => renewing.sent(),
            _ = tick.tick() => {
                let lost = renewing.tick(Instant::now());
                if lost > 0 {
                    metrics.leases_lost.inc_by(lost);
                    tracing::warn!(jobs = lost, "leases were not renewed in time: their attempts are stopped");
                }
            }
        }
    }
}

/// How often the keeper looks through leases of this length.
pub(crate) fn tick_every(length: Duration) -> Duration {
    (length / 30).clamp(Duration::from_millis(20), Duration::from_secs(1))
}

/// The renewals of the leases in a book: which are to be sent, and which were sent when. It needs no server, so the
/// simulation has its leases renewed by it.
#[derive(Debug)]
pub(crate) struct Renewing {
    book: Arc<Book>,
    length: Duration,
    /// When those were asked for that are not confirmed yet.
    asked: HashMap<u64, Instant>,
    /// Sent one by one beside the rest: while the connection is down, neither a message nor a lost lease waits for it.
    to_send: VecDeque<(u64, ReplyTo)>,
}

impl Renewing {
    pub(crate) fn new(book: Arc<Book>, length: Duration) -> Self {
        Self { book, length, asked: HashMap::new(), to_send: VecDeque::new() }
    }

    /// Stops the attempts whose leases are lost, and says how many; asks for renewals of those that are due.
    pub(crate) fn tick(&mut self, now: Instant) -> u64 {
        let (due, lost) = self.book.due(now, self.length);
        self.asked.extend(due.iter().map(|(number, _)| (*number, now)));
        self.to_send.extend(due);
        self.asked.retain(|_, at| now.duration_since(*at) < self.length);
        lost
    }

    /// The renewal to send next, with its number.
    pub(crate) fn next(&self) -> Option<&(u64, ReplyTo)> {
        self.to_send.front()
    }

    pub(crate) fn sent(&mut self) {
        self.to_send.pop_front();
    }

    /// The server's confirmation of a renewal is read at `now`.
    pub(crate) fn confirmed(&mut self, number: u64, now: Instant) {
        if let Some(asked) = self.asked.remove(&number)
            && let Some(held) = self.book.held.lock().unpoisoned().get_mut(&number)
        {
            held.lease.confirm(asked, now, self.length);
        }
    }
}

impl Book {
    fn heed(&self, message: LeaseKeeperMessage) {
        fail_point::pass("before-stop");
        // Who asked may have given up.
        match message {
            LeaseKeeperMessage::Cancel(tenant, run, reply) => drop(reply.send(self.cancel(&tenant, &run))),
            LeaseKeeperMessage::Release(reply) => {
                self.release();
                drop(reply.send(()));
            }
        }
    }

    /// The leases to renew now; lost leases are struck out and their jobs stopped.
    pub(crate) fn due(&self, now: Instant, length: Duration) -> (Vec<(u64, ReplyTo)>, u64) {
        let mut held = self.held.lock().unpoisoned();
        let mut lost = 0;
        for (_, held) in held.extract_if(|_, held| held.lease.is_lost(now, length)) {
            held.stop.lose();
            lost += 1;
        }
        let due = held.iter_mut().filter(|(_, held)| held.lease.is_due(now, length));
        let due = due.map(|(number, held)| {
            held.lease.ask(now);
            (*number, held.reply.clone())
        });
        (due.collect(), lost)
    }
}

#[cfg(test)]
mod tests {
    use longshore_domain::Timestamp;

    use super::*;

    const LEASE: Duration = Duration::from_secs(30);

    fn enter(book: &Arc<Book>, run: &str, from: Instant) -> LeaseEntry {
        let job = crate::tests::job("t", run);
        let (returns, _) = tokio::sync::mpsc::unbounded_channel();
        let message = MessageId { stream: "LANE".into(), sequence: 1, at: Timestamp::from_millis(0) };
        book.enter(&AckToken::without_connection(returns)("reply"), message, &job, from).unwrap()
    }

    /// Whether a job runs on, is cancelled, is released, or has lost its lease.
    fn state(entry: &LeaseEntry) -> &'static str {
        match (entry.stop.token.is_cancelled(), entry.stop.is_released(), entry.stop.is_lost()) {
            (false, false, false) => "runs",
            (true, false, false) => "cancelled",
            (true, true, false) => "released",
            (true, false, true) => "lost",
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_job_is_stopped_for_the_first_reason_but_a_lost_lease_goes_over_all() {
        let (book, now) = (Arc::new(Book::default()), Instant::now());
        let (first, second) = (enter(&book, "main-p5-1", now), enter(&book, "main-p5-2", now));
        let cancel = |run: &str| book.cancel(&Tenant::default_tenant(), &RunId::parse(run).unwrap());
        assert!(cancel("main-p5-1") && !cancel("main-p5-3"));
        assert_eq!((state(&first), state(&second)), ("cancelled", "runs"));
        book.release();
        let third = enter(&book, "main-p5-3", now);
        assert!(cancel("main-p5-2"), "it is still being stopped");
        assert_eq!((state(&first), state(&second), state(&third)), ("cancelled", "released", "released"));
        assert_eq!(book.due(now + LEASE, LEASE).1, 3);
        assert_eq!((state(&first), state(&second), state(&third)), ("lost", "lost", "lost"));
    }
}
