//! Parking: takes parked jobs of a queue back as they can start.
//!
//! One loop per queue and node. It asks which kinds are parked: twice a second while some are, ten times if some of
//! them could start here and none of their kind is here, or other kinds wait for their turn; else every two seconds,
//! and at once when jobs of such a type start or end; less often where there are very many kinds. It brings back as
//! many jobs of each kind as start within a part of the lease by what started lately, and as many as its handlers have
//! free capacity for; none while nothing can start. It publishes them into the queue's lane of returned jobs, by rank;
//! then it deletes them where they were parked. Several nodes may take back the same job: its message id keeps it in
//! the lane once, and its record lets it begin once.
//!
//! Keys make many kinds, so several are read at once.
//!
//! Of an `ordered` kind it brings back only the job whose turn it is ([`order`]), as soon as the one before it has
//! ended.
//!
//! `rounds` says which jobs are taken back, and has the bounds: messages of a kind, kinds in a round, moves at once,
//! and bytes of what was read ahead. This file reads and moves for it.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use longshore_backbone::Error;
use longshore_backbone::parked::ParkedKind;
use longshore_backbone::request::Stored;
use longshore_backbone::scan::{PAGE, Source};
use longshore_backbone::wire::header;
use longshore_domain::rank::Rank;
use longshore_domain::{Lane, Priority, RunId, Timestamp};

use crate::attempt::assignment::number_of;
use crate::attempt::keys::{line, order};
use crate::ports::passed_on::passed_on;
use crate::queue::buffer::JobBuffer;
use crate::queue::dispatcher::QueuePart;
use crate::queue::due::{self, DueJob, StoredPorts};
use crate::runtime::kind::Kind;
use crate::runtime::supervision::LoopEnd;
use crate::runtime::{fail_point, now};

pub(crate) mod rounds;

use rounds::{IDLE_LOOK_EVERY, LOOK_EVERY, NextLook, ParkedPorts, Parking, Read, Sought};

/// A job whose turn it is, and that was not found among the parked ones, is looked for again after this time.
const SEEK_AGAIN_AFTER: Duration = Duration::from_millis(250);
/// So many messages are read to find it, then pages.
const FIRST_PAGE: usize = 8;

/// Brings parked jobs back until the queue closes.
pub(crate) async fn run(part: QueuePart) -> LoopEnd {
    let closing = part.queue.buffer.closing.clone();
    let mut parking = Parking::new();
    let mut next = NextLook { after: IDLE_LOOK_EVERY, at_least: Duration::ZERO };
    loop {
        tokio::time::sleep(next.at_least).await;
        tokio::select! {
            () = closing.cancelled() => break,
            () = part.queue.buffer.wanted_back.notified() => {}
            () = tokio::time::sleep(next.after) => {}
        }
        if !part.queue.buffer.is_open(Instant::now()) {
            // It is paused: what is parked stays there.
            tokio::time::sleep(LOOK_EVERY).await;
            continue;
        }
        match parking.look(&part).await {
            Ok(look) => next = look,
            Err(error) => {
                tracing::debug!(queue = %part.queue.name, "parked jobs cannot be read, trying again: {}", error.with_causes())
            }
        }
    }
    std::future::pending().await
}

fn subject_of(part: &QueuePart, kind: &Kind, priority: Priority) -> String {
    let lane = Lane::new(&part.queue.name, priority);
    part.ports.backbone.names().parked(&kind.tenant, &lane, &kind.job_type, &kind.key)
}

/// A parked job, and its position among its kind.
fn read(stored: Stored, priority: Priority, aging: Duration) -> Read<Stored> {
    let sequence = stored.sequence;
    let headers = header::read_job(&stored.headers).ok();
    let run_id = headers.as_ref().and_then(|headers| headers.run_id.as_ref());
    let number = run_id.map_or(sequence, |run_id| number_of(run_id, sequence));
    let due = headers.and_then(|headers| headers.moved?.due_at);
    let since = due.or_else(|| Timestamp::parse(&stored.at).ok()).unwrap_or_default();
    let position = (Rank::new(since, priority, aging), number);
    Read { position, sequence, bytes: stored.payload.len(), job: stored }
}

impl ParkedPorts for QueuePart {
    type Job = Stored;

    fn buffer(&self) -> &JobBuffer {
        &self.queue.buffer
    }

    fn instant(&self) -> Instant {
        Instant::now()
    }

    async fn kinds(&self) -> Result<Vec<ParkedKind>, Error> {
        self.ports.backbone.parked_kinds(&self.queue.name, None).await
    }

    async fn page(
        &self,
        kind: &Kind,
        priority: Priority,
        from: u64,
    ) -> Result<(Vec<Read<Stored>>, Option<u64>), Error> {
        let (subject, aging) = (subject_of(self, kind, priority), self.queue.policy.aging);
        let page = self.ports.backbone.page(&Source::Parked, &subject, from).await?;
        Ok((page.messages.into_iter().map(|stored| read(stored, priority, aging)).collect(), page.next))
    }

    async fn is_open(&self, kind: &Kind) -> Result<bool, Error> {
        line::is_open(&self.ports.backbone, &self.ports.routing.policies, kind).await
    }

    fn has_order(&self, kind: &Kind) -> bool {
        order::has_order(&self.ports.routing.policies, kind)
    }

    /// And those that have nothing to wait for.
    async fn bring_next_back(&self, kind: &Kind, priorities: &[Priority], sought: &mut Sought) -> Result<(), Error> {
        let backbone = &self.ports.backbone;
        for priority in priorities {
            let id = order::of_kind(kind, Lane::new(&self.queue.name, *priority));
            let order::TakeBack { first, stale } = order::to_take_back(backbone, &id, now()).await?;
            // After it was brought back, its record says for a moment that it is parked.
            let was_sought = |run: &RunId| {
                let last = sought.get(priority);
                last.is_some_and(|(last, at)| last == run && at.elapsed() < SEEK_AGAIN_AFTER)
            };
            let first = first.filter(|run| !was_sought(run));
            let mut wanted: BTreeSet<RunId> = stale.into_iter().chain(first.clone()).collect();
            let subject = subject_of(self, kind, *priority);
            // Jobs are parked nearly in order.
            let (mut from, mut most) = (Some(1), FIRST_PAGE);
            while let Some(next) = from.filter(|_| !wanted.is_empty()) {
                let page = backbone.page_of(&Source::Parked, &subject, next, most).await?;
                (from, most) = (page.next, PAGE);
                for stored in page.messages {
                    let run = header::read_job(&stored.headers).ok().and_then(|read| read.run_id);
                    if run.is_some_and(|run| wanted.remove(&run)) {
                        self.queue.buffer.blocked(|jobs| jobs.are_expected(kind, 1, Instant::now()));
                        self.bring_back(stored).await?;
                    }
                }
            }
            if let Some(run) = first {
                sought.insert(*priority, (run, Instant::now()));
            }
        }
        Ok(())
    }

    /// Publishes it into the lane of returned jobs, then deletes it where it was parked.
    async fn bring_back(&self, stored: Stored) -> Result<bool, Error> {
        let (sequence, headers) = (stored.sequence, stored.job_headers());
        let backbone = &self.ports.backbone;
        let names = backbone.names();
        let Some(job) = DueJob::read(names, &stored.subject, headers.as_ref(), stored.payload, sequence) else {
            // Only nodes park jobs, and their subjects can be read.
            tracing::error!(subject = %stored.subject, "a parked job's subject cannot be read; it is dropped");
            return backbone.take_out(&Source::Parked, sequence).await;
        };
        due::take_to_lane(self, &job, &Source::Parked, sequence).await
    }
}

impl StoredPorts for QueuePart {
    async fn publish(&self, job: &DueJob) -> Result<(), Error> {
        job.publish(&self.ports.backbone).await
    }

    fn published(&self, _: &DueJob) {
        fail_point::pass("after-return");
        self.ports.metrics.unparked.inc();
    }

    passed_on! { self.ports.backbone =>
        async fn take_out(&self, place: &Source, sequence: u64) -> Result<bool, Error>;
    }
}

#[cfg(test)]
mod tests;
