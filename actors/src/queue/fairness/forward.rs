//! Moves waiting jobs forward: out of their lane, and through the lane of returned jobs into the place that is said.
//!
//! The steps of a move, each of which may be the node's last: the job is copied to where no consumer reads it; its
//! message is deleted from the lane; the consumer is asked whether it had delivered the message before. If not, no node
//! has it and none will, and the job goes on as if a worker had got the message and parked it
//! ([`crate::attempt::begin`]): the record is written, then the events, then the job is published into the lane of
//! returned jobs; the copy is deleted last. So the job is begun once, whatever its run's record was and however long
//! any step takes. This rests on the record of a job that was delivered meanwhile: one whose type keeps none of quick
//! successes may be begun again if the node dies between copy and deletion.
//!
//! A copy that is left over is gone on with by whichever node moves jobs then. If its message is still in the lane and
//! was delivered meanwhile, the delivery goes first; if the message is gone and may have been delivered, the copy waits
//! for a lease, so that a node that has the job has written the record, or has lost it.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use longshore_backbone::Error;
use longshore_backbone::forward::{Copied, InLane};
use longshore_backbone::scan::Source;
use longshore_domain::fairness::FairnessKey;
use longshore_domain::{Priority, Timestamp};
use tokio::sync::Notify;

use crate::attempt::assignment::{Assignment, Start};
use crate::attempt::begin;
use crate::attempt::keys::order;
use crate::attempt::node_ports::NodePorts;
use crate::attempt::ports::Ports as _;
use crate::metrics::Restored;
use crate::ports::RunPorts as _;
use crate::queue::dispatcher::Dispatcher;
use crate::runtime::park_permits::ParkPermit;
use crate::runtime::permits::ParkPermits;
use crate::runtime::{fail_point, now};

/// Reads, copies and deletions at once.
pub(crate) const AT_ONCE: usize = 32;
/// Jobs that are moved together, so that they share the questions how far the lane has delivered.
const TOGETHER: usize = 128;
/// A younger copy may still be at work.
const LEFT_AFTER: Duration = Duration::from_secs(5);

/// Jobs of a fairness key that are to be moved forward.
#[derive(Debug)]
pub(crate) struct Wanted {
    pub(crate) key: FairnessKey,
    pub(crate) jobs: u64,
    /// The sequence from which they are looked for.
    pub(crate) from: u64,
}

/// The lane that they stand in.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Lane {
    pub(crate) priority: Priority,
    /// Jobs that stand no further than this from what was delivered last may be delivered before they are copied.
    pub(crate) margin: u64,
    /// From when on the rank of what is moved counts.
    pub(crate) ranked_from: Timestamp,
}

pub(crate) struct Forwarder {
    pub(crate) ports: Arc<NodePorts>,
    pub(crate) queue: Arc<Dispatcher>,
    permits: Arc<ParkPermits>,
    /// Notified when a job that was moved is no longer on its way.
    arrived: Arc<Notify>,
    /// Since when it is known that the message of a copy is gone, by the copy's sequence.
    gone: HashMap<u64, Instant>,
}

impl Forwarder {
    pub(crate) fn new(ports: Arc<NodePorts>, queue: Arc<Dispatcher>) -> Self {
        Self { ports, queue, permits: Arc::default(), arrived: Arc::default(), gone: HashMap::new() }
    }

    /// Moves the oldest jobs of these keys, a few of each in turn, until it is time for something else; one turn in any
    /// case, so that a node that is slow at everything else moves some. Says how many of each were moved.
    pub(crate) async fn forward(
        &self,
        lane: Lane,
        mut wanted: VecDeque<Wanted>,
        until: Instant,
    ) -> Result<BTreeMap<FairnessKey, u64>, Error> {
        let mut moved = BTreeMap::new();
        while !wanted.is_empty() && !self.ports.is_draining() {
            let turn: Vec<Wanted> = wanted.drain(..wanted.len().min(AT_ONCE)).collect();
            let of_each = TOGETHER / turn.len();
            let reads = turn.into_iter().map(|wanted| self.read(lane, wanted, of_each));
            let read: Vec<_> = futures_util::stream::iter(reads).buffered(AT_ONCE).collect().await;
            let mut jobs = Vec::new();
            for read in read {
                let (found, rest) = read?;
                jobs.extend(found);
                wanted.extend(rest);
            }
            for key in self.move_together(lane, jobs).await? {
                *moved.entry(key).or_default() += 1;
            }
            if Instant::now() >= until {
                break;
            }
        }
        Ok(moved)
    }

    /// The next jobs of a key, at most so many, and which more are wanted.
    async fn read(
        &self,
        lane: Lane,
        mut wanted: Wanted,
        most: usize,
    ) -> Result<(Vec<(FairnessKey, InLane)>, Option<Wanted>), Error> {
        let place = longshore_domain::Lane::new(&self.queue.name, lane.priority);
        let (mut jobs, mut ahead) = (Vec::new(), 0);
        while wanted.jobs > 0 && jobs.len() < most {
            let most = wanted.jobs.min((most - jobs.len()) as u64);
            // Beside these one more is read.
            ahead = ahead.min(most.min(AT_ONCE as u64) - 1);
            let read = self.ports.backbone.jobs_in_lane(&place, &wanted.key, wanted.from, ahead);
            let (read, next) = read.await?;
            // Jobs that were published together stand together.
            ahead = if read.len() as u64 > ahead / 2 { 2 * ahead + 1 } else { ahead / 2 };
            for job in read.into_iter().filter(|job| self.may_be_moved(job)) {
                wanted.jobs -= 1;
                jobs.push((wanted.key.clone(), job));
            }
            let Some(next) = next else { return Ok((jobs, None)) };
            wanted.from = next;
        }
        Ok((jobs, Some(wanted).filter(|wanted| wanted.jobs > 0)))
    }

    /// A job that is to be refused stays where it is: it does not begin. So does one that has a place in an order:
    /// while it is moved nobody would meet it, and those behind it could start.
    fn may_be_moved(&self, job: &InLane) -> bool {
        if job.is_broken {
            return false;
        }
        let backbone = &self.ports.backbone;
        let read = Assignment::read(job.as_delivery(), backbone.names(), u64::MAX, backbone.max_on_arrival());
        !matches!(read.start, Start::Invalid(_)) && {
            let policies = self.ports.policies();
            // The keeper of its batch looks for it where it was published.
            read.admit(policies).is_ok() && order::of(policies, &read.job).is_none() && read.joins().is_none()
        }
    }

    /// Moves jobs, except those that the lane has come too near to. Says whose were moved.
    async fn move_together(&self, lane: Lane, jobs: Vec<(FairnessKey, InLane)>) -> Result<Vec<FairnessKey>, Error> {
        let (backbone, place) = (&self.ports.backbone, longshore_domain::Lane::new(&self.queue.name, lane.priority));
        let Some(delivered) = backbone.delivered_in(&place).await? else { return Ok(Vec::new()) };
        let is_late = |job: &InLane| job.message.sequence <= delivered + lane.margin;
        let copies = jobs.into_iter().filter(|(_, job)| !is_late(job)).map(async |(key, job)| {
            let copied = backbone.copy_out(&place, job, lane.ranked_from).await?;
            Ok::<_, Error>(copied.map(|copied| (key, copied)))
        });
        let copied: Vec<_> = futures_util::stream::iter(copies).buffered(AT_ONCE).collect().await;
        let mut error = None;
        // One that is copied already is at another node, or was left over: it is gone on with later.
        let copied: Vec<(FairnessKey, Copied)> = copied
            .into_iter()
            .filter_map(|copied| copied.map_err(|failed| error = Some(failed)).ok().flatten())
            .collect();
        if copied.is_empty() {
            return error.map_or(Ok(Vec::new()), Err);
        }
        fail_point::pass("after-copy");
        let deletions = copied.into_iter().map(async |(key, copied)| {
            let deleted = backbone.take_out(&self.lane_of(&copied), copied.job.message.sequence).await;
            (key, copied, matches!(deleted, Ok(true)))
        });
        let deleted: Vec<_> = futures_util::stream::iter(deletions).buffered(AT_ONCE).collect().await;
        fail_point::pass("after-take-out");
        let delivered = backbone.delivered_in(&place).await?;
        let mut moved = Vec::new();
        for (key, copied, is_deleted) in deleted {
            if is_deleted && was_not_delivered(delivered, copied.job.message.sequence) {
                self.go_on(&copied).await;
                moved.push(key);
            }
        }
        error.map_or(Ok(moved), Err)
    }

    fn lane_of(&self, copied: &Copied) -> Source {
        Source::Lane(copied.lane.queue.clone(), copied.lane.priority.into())
    }

    /// Goes on with a job that nobody else can get any more: as if a worker had got it, and parked it.
    async fn go_on(&self, copied: &Copied) {
        let mut permit = loop {
            match ParkPermit::take(&self.permits, None) {
                Some(permit) => break permit,
                None => self.arrived.notified().await,
            }
        };
        permit.wanted_back = Some(Arc::clone(&self.arrived));
        permit.forward = Some(copied.ranked_from);
        let backbone = &self.ports.backbone;
        let delivery = backbone.take_copy(copied);
        let mut assignment = Assignment::read(delivery, backbone.names(), u64::MAX, backbone.max_on_arrival());
        assignment.park = Some(permit);
        begin::begin(&*self.ports, Box::new(assignment)).await;
        self.ports.metrics.forwarded.inc();
    }

    /// Goes on with copies that are left over, at most so many. Says whether any were found.
    pub(crate) async fn go_on_with_copies(&mut self, most: usize) -> Result<bool, Error> {
        let (mut from, mut gone) = (1, HashMap::new());
        for _ in 0..most {
            let found = self.ports.backbone.next_copy(&self.queue.name, from).await?;
            let Some((copied, next)) = found else { break };
            from = next;
            let Some(copied) = copied else {
                // Only nodes write copies, and they write readable ones.
                tracing::error!(sequence = next - 1, "the copy of a job cannot be read; it stays");
                continue;
            };
            if now().since(copied.copied_at) < LEFT_AFTER || !self.is_gone(&copied).await? {
                continue;
            }
            let delivered = self.ports.backbone.delivered_in(&copied.lane).await?;
            let since = self.gone.get(&copied.sequence).copied().unwrap_or_else(Instant::now);
            if goes_on(delivered, copied.job.message.sequence, since.elapsed(), self.ports.lease()) {
                tracing::info!(sequence = copied.job.message.sequence, stream = %copied.job.message.stream,
                    "a job that was being moved forward is gone on with");
                self.ports.metrics().restored(Restored::MovedForward, 1);
                self.go_on(&copied).await;
            } else {
                gone.insert(copied.sequence, since);
            }
        }
        self.gone = gone;
        Ok(from > 1)
    }

    /// Whether the message of a copy has left its lane; it is taken out if no node can have it.
    async fn is_gone(&self, copied: &Copied) -> Result<bool, Error> {
        let (backbone, message) = (&self.ports.backbone, &copied.job.message);
        if !backbone.is_in_lane(message).await? {
            return Ok(true);
        }
        let delivered = backbone.delivered_in(&copied.lane).await?;
        Ok(was_not_delivered(delivered, message.sequence)
            && backbone.take_out(&self.lane_of(copied), message.sequence).await?)
    }
}

/// Whether a lane that has delivered up to there has not delivered the message of this sequence; not if nobody can say.
fn was_not_delivered(delivered: Option<u64>, sequence: u64) -> bool {
    delivered.is_some_and(|delivered| delivered < sequence)
}

/// Whether a copy that is left over is gone on with, whose message is known to be gone for `gone_for`: the node that
/// got it has written the record within a lease, or has lost the job.
fn goes_on(delivered: Option<u64>, sequence: u64, gone_for: Duration, lease: Duration) -> bool {
    was_not_delivered(delivered, sequence) || gone_for >= lease
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_secs(30);

    /// Given a copy whose message is gone, when the lane never delivered that, then the job goes on at once: nobody has
    /// it. When it may have been delivered, or no server can say, then it waits until a node that has it has written
    /// its record or has lost it: a job that two nodes had would begin twice.
    #[test]
    fn a_job_that_is_moved_goes_on_only_when_no_node_can_have_it() {
        let goes_on_after = |delivered, gone_for| goes_on(delivered, 8, gone_for, LEASE);
        assert!(goes_on_after(Some(7), Duration::ZERO));
        for delivered in [Some(8), Some(9), None] {
            assert!(!goes_on_after(delivered, Duration::ZERO), "{delivered:?}");
            assert!(!goes_on_after(delivered, LEASE - Duration::from_millis(1)), "{delivered:?}");
            assert!(goes_on_after(delivered, LEASE), "{delivered:?}");
        }
    }

    #[test]
    fn a_job_is_not_moved_while_its_delivery_is_in_doubt() {
        assert!(was_not_delivered(Some(7), 8) && !was_not_delivered(Some(8), 8));
        assert!(!was_not_delivered(None, 8), "no server knows how far the lane has delivered");
    }
}
