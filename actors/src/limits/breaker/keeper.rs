//! The part that keeps this node's circuit breakers and the cluster's records of them in step.
//!
//! It writes what the node has counted ([`crate::limits::breaker`]), takes and returns probes, carries out operators'
//! orders, and learns what other nodes wrote: each version of a record is republished by the server, and every few
//! seconds all records are read, should a message have been lost. It passes no job, and decides nothing: the rules are
//! in `domain/src/breaker`.
//!
//! Bounds: [`AT_ONCE`] steps are written at once, one per breaker, and as many orders as its mailbox holds. A death
//! costs no step: steps are kept in `Breakers`, and the part that follows writes them again, under their numbers.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use longshore_backbone::Error;
use longshore_backbone::breakers::{BreakerRecords, FoundBreaker, WrittenBreaker};
use longshore_domain::breaker::record::{Breaker, BreakerKey, BreakerStep, By, Circuit};
use longshore_domain::{SmolStr, format_smolstr};
use ractor::RpcReplyPort;
use serde_json::json;
use tokio::task::JoinSet;

use crate::limits::breaker::Breakers;
use crate::metrics::Metrics;
use crate::ports::passed_on::passed_on;
use crate::runtime::address::Mailbox;
use crate::runtime::clock::{instant, now};
use crate::runtime::supervision::{LoopEnd, SUBSCRIPTION_ENDED, ticks};
use crate::runtime::system_events::SystemEvents;

/// Steps that are written at once.
const AT_ONCE: usize = 64;
/// How soon the breakers are looked at again while one has something to write later.
const LOOK_AGAIN: Duration = Duration::from_millis(50);
/// How often all records are read.
const READ_EVERY: Duration = Duration::from_secs(5);
/// How often the states are shown in the metrics, if they have changed.
const SHOWN_EVERY: Duration = Duration::from_millis(200);
/// A step that could not be written for this long is given up.
const GIVE_UP_AFTER: Duration = Duration::from_secs(30);
/// The wait before a write is tried again whose outcome is not known, and one that was refused undecided.
const AGAIN_AFTER: Duration = Duration::from_millis(100);
const UNDECIDED: Duration = Duration::from_millis(5);
/// Types that have a metric of their own.
const MAX_LABELS: usize = 200;
const OTHER: &str = "_other";

#[derive(Clone)]
pub(crate) struct BreakerPart {
    pub(crate) records: BreakerRecords,
    pub(crate) breakers: Arc<Breakers>,
    /// How long a probe is leased.
    pub(crate) lease: Duration,
    pub(crate) system_events: SystemEvents,
    pub(crate) metrics: Arc<Metrics>,
}

#[derive(Debug)]
pub(crate) enum BreakerMessage {
    /// Close or open this breaker; the answer is its record, once that is stored.
    Order(BreakerKey, BreakerStep, RpcReplyPort<Result<Breaker, Error>>),
}

pub(crate) async fn run(part: BreakerPart, mut mailbox: Mailbox<BreakerMessage>) -> LoopEnd {
    let BreakerPart { records, breakers, metrics, .. } = part.clone();
    if !breakers.are_used() {
        // There is nothing to read or write, and orders are refused before they come here.
        return std::future::pending().await;
    }
    for job_type in breakers.types().take(MAX_LABELS) {
        // Closed, until its record says otherwise.
        metrics.breaker_state.with_label_values(&[job_type.as_str()]);
    }
    let mut changes = records.changes().await.map_err(|error| error.with_causes())?;
    let mut connected = records.connected();
    let (mut look, mut read, mut show) = (ticks(LOOK_AGAIN), ticks(READ_EVERY), ticks(SHOWN_EVERY));
    let mut writes = Writes { part: part.clone(), steps: JoinSet::new(), orders: JoinSet::new() };
    breakers.unfinished().into_iter().for_each(|of| writes.begin(of));
    let (mut reads, mut shown, mut more) = (JoinSet::new(), HashSet::new(), true);
    loop {
        tokio::select! {
            BreakerMessage::Order(of, step, reply) = mailbox.next() => writes.order(of, step, reply),
            () = breakers.due.notified() => {}
            _ = look.tick(), if more => {}
            Some(written) = writes.steps.join_next() => written.map_err(|error| error.to_string())?,
            Some(_) = writes.orders.join_next() => continue,
            change = changes.next() => {
                let FoundBreaker { breaker, revision } = change.ok_or(SUBSCRIPTION_ENDED)?;
                breakers.learned(breaker, revision);
                continue;
            }
            _ = read.tick(), if reads.is_empty() => drop(reads.spawn(read_all(part.clone()))),
            Ok(()) = connected.changed() => drop(reads.spawn(read_all(part.clone()))),
            Some(_) = reads.join_next() => show_states(&breakers, &metrics, &mut shown),
            _ = show.tick(), if breakers.have_changed() => show_states(&breakers, &metrics, &mut shown),
        }
        more = writes.begin_all();
    }
}

/// Reads all records, should the server have republished one in vain.
async fn read_all(BreakerPart { records, breakers, .. }: BreakerPart) {
    match records.all(None).await {
        Ok(all) => {
            for FoundBreaker { breaker, revision } in all {
                breakers.learned(breaker, revision);
            }
        }
        Err(error) => tracing::debug!("circuit breakers cannot be read, trying again: {}", error.with_causes()),
    }
    // If they cannot be read, jobs start all the same: a breaker protects a service, and no job needs it.
    breakers.were_read();
}

/// Has idle breakers forgotten, and shows the states of the others in the metrics; `shown` are the types shown before.
fn show_states(breakers: &Breakers, metrics: &Metrics, shown: &mut HashSet<String>) {
    let states = breakers.clean();
    shown.retain(|label| {
        let is_there = states.keys().any(|job_type| job_type.as_str() == label);
        if !is_there {
            metrics.breaker_state.with_label_values(&[label]).set(0);
        }
        is_there
    });
    for (job_type, state) in states {
        let has_room = shown.len() < MAX_LABELS || shown.contains(job_type.as_str());
        let label = if has_room { job_type.as_str() } else { OTHER };
        shown.insert(label.to_owned());
        metrics.breaker_state.with_label_values(&[label]).set(state);
    }
}

/// The writes that are under way. They end with the part: a step that is written again is done once.
struct Writes {
    part: BreakerPart,
    steps: JoinSet<()>,
    orders: JoinSet<()>,
}

impl Writes {
    /// Begins the steps that are to be written now; says whether there may be more without any further news.
    fn begin_all(&mut self) -> bool {
        let room = AT_ONCE.saturating_sub(self.steps.len());
        let (steps, more) = self.part.breakers.next_steps(room, self.part.lease);
        steps.into_iter().for_each(|of| self.begin(of));
        more
    }

    fn begin(&mut self, of: BreakerKey) {
        let part = self.part.clone();
        self.steps.spawn(async move { write(&part, &part.breakers, part.lease, &of).await });
    }

    fn order(&mut self, of: BreakerKey, step: BreakerStep, reply: RpcReplyPort<Result<Breaker, Error>>) {
        let part = self.part.clone();
        self.orders.spawn(async move {
            // Under a name of its own: a step of the node with a lower number may still be on its way.
            let writer = &format_smolstr!("{}-orders", part.breakers.writer);
            let number = part.breakers.next_number();
            let (ports, breakers, lease) = (&part, &*part.breakers, part.lease);
            let done = Writing { ports, breakers, lease, of: &of, step: &step, writer, number }.carry_out().await;
            // Who asked may have given up.
            let _ = reply.send(done);
        });
    }
}

/// Writes the step that a breaker of this node is to take, if any, and settles it.
pub(crate) async fn write<P: BreakerPorts>(ports: &P, breakers: &Breakers, lease: Duration, of: &BreakerKey) {
    let (Some((number, step)), writer) = (breakers.doing(of), &breakers.writer) else { return };
    if let Err(error) = (Writing { ports, breakers, lease, of, step: &step, writer, number }).carry_out().await {
        let (tenant, job_type) = (&of.tenant, &of.job_type);
        tracing::warn!(%tenant, %job_type, "a circuit breaker could not be written: {}", error.with_causes());
    }
    breakers.settled(of);
}

/// The cluster's records of breakers. Each method is the method of [`BreakerRecords`] that has its name, where nothing
/// else is said: the simulation answers, too.
pub(crate) trait BreakerPorts {
    async fn write(&self, breaker: &Breaker, expected: u64) -> Result<WrittenBreaker, Error>;
    async fn read(&self, of: &BreakerKey) -> Result<Option<FoundBreaker>, Error>;
    /// Publishes a change of state that this node has stored.
    async fn announce(&self, breaker: &Breaker);
    async fn pause(&self, wait: Duration);
    /// Evenly 0 ≤ x < 1.
    fn chance(&self) -> f64;
}

impl BreakerPorts for BreakerPart {
    passed_on! { self.records =>
        async fn write(&self, breaker: &Breaker, expected: u64) -> Result<WrittenBreaker, Error>;
        async fn read(&self, of: &BreakerKey) -> Result<Option<FoundBreaker>, Error>;
    }

    async fn announce(&self, breaker: &Breaker) {
        let BreakerKey { tenant, job_type, key } = &breaker.of;
        let mut details = json!({"tenant": tenant, "type": job_type});
        if let Some(key) = key {
            details["key"] = json!(key);
        }
        let event = match &breaker.state {
            Circuit::Closed { .. } => {
                tracing::info!(%tenant, %job_type, key = key.as_deref(), "its circuit breaker has closed");
                "breaker_closed"
            }
            Circuit::Open { until, times, cause, .. } => {
                tracing::warn!(%tenant, %job_type, key = key.as_deref(), %until, cause = cause.as_str(), "its circuit breaker has opened");
                details["cause"] = json!(cause);
                details["until"] = json!(until);
                details["times_opened"] = json!(times);
                "breaker_opened"
            }
            Circuit::HalfOpen { times, .. } => {
                details["times_opened"] = json!(times);
                "breaker_half_open"
            }
        };
        self.system_events.publish_about(event, None, Some(job_type), details).await;
    }

    async fn pause(&self, wait: Duration) {
        tokio::time::sleep(wait).await;
    }

    fn chance(&self) -> f64 {
        rand::random()
    }
}

/// A step on its way into a breaker's record.
struct Writing<'a, P> {
    ports: &'a P,
    breakers: &'a Breakers,
    lease: Duration,
    of: &'a BreakerKey,
    step: &'a BreakerStep,
    writer: &'a SmolStr,
    number: u64,
}

impl<P: BreakerPorts> Writing<'_, P> {
    /// Judges the step on the newest record and writes the result, until it is stored or says nothing any more; returns
    /// the record as it is then.
    async fn carry_out(&self) -> Result<Breaker, Error> {
        let Self { ports, breakers, lease, of, step, writer, number } = *self;
        let fresh = |now| Breaker::new(of.clone(), now);
        let Some(policy) = breakers.policy(&of.job_type) else { return Ok(fresh(now())) };
        let until = instant() + GIVE_UP_AFTER;
        let (mut known, mut expected) = breakers.stored(of);
        // A result whose write was not confirmed: it may be stored.
        let mut unclear: Option<Breaker> = None;
        loop {
            let now = now();
            let base = known.take().filter(|breaker| !breaker.is_forgotten(now)).unwrap_or_else(|| fresh(now));
            let by = By { writer, number, now, chance: ports.chance(), policy, lease };
            let Some(next) = base.after(step, by) else {
                let is_ours = base.has_done(writer, number);
                if is_ours && unclear.is_some_and(|unclear| unclear.period == base.period) {
                    ports.announce(&base).await;
                }
                return Ok(base);
            };
            let error = match ports.write(&next, expected).await {
                Ok(WrittenBreaker::Won(revision)) => {
                    breakers.learned(next.clone(), revision);
                    if next.period != base.period {
                        ports.announce(&next).await;
                    }
                    return Ok(next);
                }
                Ok(WrittenBreaker::Lost) => None,
                Err(error) => {
                    unclear = (next.period != base.period).then_some(next);
                    Some(error)
                }
            };
            (known, expected) = self.read_again(error, expected, until).await?;
        }
    }

    /// Reads the record after a write of it that was not confirmed, for this `error` if there was one.
    async fn read_again(
        &self,
        mut error: Option<Error>,
        expected: u64,
        until: Instant,
    ) -> Result<(Option<Breaker>, u64), Error> {
        let Self { ports, breakers, .. } = *self;
        loop {
            if let Some(error) = error.take() {
                if instant() >= until {
                    return Err(error);
                }
                tracing::debug!("no answer about a circuit breaker, asking again: {error}");
                ports.pause(AGAIN_AFTER).await;
            }
            let (known, revision) = match ports.read(self.of).await {
                Ok(Some(FoundBreaker { breaker, revision })) => {
                    breakers.learned(breaker.clone(), revision);
                    (Some(breaker), revision)
                }
                Ok(None) => {
                    breakers.learned_none(self.of);
                    (None, 0)
                }
                Err(failed) => {
                    error = Some(failed);
                    continue;
                }
            };
            if revision == expected {
                // Another write may be in flight.
                ports.pause(UNDECIDED).await;
            }
            return Ok((known, revision));
        }
    }
}

#[cfg(test)]
mod tests;
