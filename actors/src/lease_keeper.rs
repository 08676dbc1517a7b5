//! The lease-keeper: renews the leases of this node's running jobs, and tells a worker when its lease is gone.
//!
//! A job that ends at its handler's first step never gets here; a job that takes longer is entered in the [`Book`], and
//! struck out when it ends. Renewals go over the control connection, so that a flood of jobs cannot starve them. The
//! book outlives the keeper. It has no mailbox: the book is bounded by the jobs that the node holds.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use longshore_backbone::Backbone;
use longshore_backbone::delivery::AckToken;
use longshore_backbone::renewal::{Renewals, Renewed};
use longshore_domain::lease::Lease;
use longshore_domain::run::MessageId;
use longshore_domain::{Job, RunId, Tenant};
use tokio_util::sync::CancellationToken;

use crate::metrics::Metrics;
use crate::supervision::LoopEnd;

/// The leases of this node.
#[derive(Debug, Default)]
pub(crate) struct Book {
    next: AtomicU64,
    held: Mutex<HashMap<u64, Held>>,
}

#[derive(Debug)]
struct Held {
    lease: Lease,
    reply: longshore_backbone::renewal::ReplyTo,
    message: MessageId,
    run: (Tenant, RunId),
    stop: Stop,
}

/// Tells a running job that it must stop.
#[derive(Debug, Clone, Default)]
pub(crate) struct Stop {
    pub(crate) token: CancellationToken,
    lost: Arc<AtomicBool>,
}

impl Stop {
    /// Whether the lease is gone.
    pub(crate) fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Acquire)
    }
}

/// An entry in the book; dropped, it is struck out.
#[derive(Debug)]
pub(crate) struct Entry {
    number: u64,
    book: Arc<Book>,
    pub(crate) stop: Stop,
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.book.held.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.number);
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
    ) -> Option<Entry> {
        let reply = ack_token.renewal()?;
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let stop = Stop::default();
        let run = (job.tenant.clone(), job.run_id.clone());
        let held = Held { lease: Lease::new(from), reply, message, run, stop: stop.clone() };
        self.held.lock().unwrap_or_else(PoisonError::into_inner).insert(number, held);
        Some(Entry { number, book: Arc::clone(self), stop })
    }

    /// Tells the worker that works on a run here to stop; says whether there is one.
    pub(crate) fn stop(&self, tenant: &Tenant, run: &RunId) -> bool {
        let held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let mut here = false;
        for held in held.values().filter(|held| (&held.run.0, &held.run.1) == (tenant, run)) {
            held.stop.token.cancel();
            here = true;
        }
        here
    }

    /// Whether a worker works on a run here.
    pub(crate) fn works_on(&self, tenant: &Tenant, run: &RunId) -> bool {
        let held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        held.values().any(|held| (&held.run.0, &held.run.1) == (tenant, run))
    }

    /// Whether this node works on the job of that message.
    pub(crate) fn has(&self, message: &MessageId) -> bool {
        self.held.lock().unwrap_or_else(PoisonError::into_inner).values().any(|held| held.message == *message)
    }
}

/// Keeps the leases until the process ends.
pub(crate) async fn run((backbone, book, metrics): (Backbone, Arc<Book>, Arc<Metrics>)) -> LoopEnd {
    let length = backbone.storage().lease;
    let mut renewals = Renewals::open(&backbone).await.map_err(|error| error.with_causes())?;
    let mut tick = tokio::time::interval((length / 30).clamp(Duration::from_millis(20), Duration::from_secs(1)));
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut asked: HashMap<u64, Instant> = HashMap::new();
    loop {
        tokio::select! {
            renewed = renewals.next() => match renewed {
                Some(Renewed { number }) => book.confirm(number, asked.remove(&number), length),
                None => return Ok(()),
            },
            _ = tick.tick() => {
                let now = Instant::now();
                let (due, lost) = book.due(now, length);
                if lost > 0 {
                    metrics.leases_lost.inc_by(lost);
                }
                for (number, reply) in due {
                    asked.insert(number, now);
                    renewals.ask(number, &reply).await;
                }
                asked.retain(|_, at| now.duration_since(*at) < length);
            }
        }
    }
}

impl Book {
    fn confirm(&self, number: u64, asked: Option<Instant>, length: Duration) {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        if let (Some(held), Some(asked)) = (held.get_mut(&number), asked) {
            held.lease.confirm(asked, Instant::now(), length);
        }
    }

    /// The leases to renew now; lost leases are struck out and their jobs stopped.
    pub(crate) fn due(
        &self,
        now: Instant,
        length: Duration,
    ) -> (Vec<(u64, longshore_backbone::renewal::ReplyTo)>, u64) {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let mut lost = 0;
        held.retain(|_, held| {
            if held.lease.is_lost(now, length) {
                tracing::warn!(stream = %held.message.stream, sequence = held.message.sequence, "lease lost");
                held.stop.lost.store(true, Ordering::Release);
                held.stop.token.cancel();
                lost += 1;
                return false;
            }
            true
        });
        let due = held.iter_mut().filter(|(_, held)| held.lease.is_due(now, length));
        let due = due.map(|(number, held)| {
            held.lease.ask(now);
            (*number, held.reply.clone())
        });
        (due.collect(), lost)
    }
}
