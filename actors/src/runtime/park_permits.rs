//! A job on its way to be parked.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use longshore_backbone::parked::ParkedSpace;
use longshore_domain::Timestamp;
use longshore_domain::rank::Rank;
use longshore_domain::run::DeferReason;
use tokio::sync::Notify;

use crate::runtime::Unpoisoned as _;
use crate::runtime::gate_news::GateNews;
use crate::runtime::permits::{MAX_PARKING, ParkPermits, Permit};

/// The order of jobs of a kind: by rank, then by number in the lane.
pub(crate) type Position = (Rank, u64);

/// The jobs of a kind that are on their way to be parked; clones share them.
#[derive(Debug, Clone, Default)]
pub(crate) struct OnTheirWay(Arc<Mutex<Positions>>);

#[derive(Debug, Default)]
struct Positions {
    now: BTreeSet<Position>,
    /// The first in order of those that were on their way at any time since the watch began.
    first_seen: Option<Position>,
}

impl OnTheirWay {
    /// One more sets out.
    pub(crate) fn sets_out(&self, position: Position) -> OnItsWay {
        let mut positions = self.0.lock().unpoisoned();
        positions.now.insert(position);
        positions.first_seen = Some(positions.first_seen.map_or(position, |first| first.min(position)));
        OnItsWay { all: self.clone(), position }
    }

    /// The stream of parked jobs is about to be read.
    pub(crate) fn watch(&self) {
        let mut positions = self.0.lock().unpoisoned();
        positions.first_seen = positions.now.first().copied();
    }

    /// The first in order of those that may not have been in the stream when it was read: that were on their way at any
    /// time since the watch began.
    pub(crate) fn first_seen(&self) -> Option<Position> {
        self.0.lock().unpoisoned().first_seen
    }

    /// Whether none is on its way.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.lock().unpoisoned().now.is_empty()
    }
}

/// One job on its way to be parked, until this is dropped.
#[derive(Debug)]
pub(crate) struct OnItsWay {
    all: OnTheirWay,
    position: Position,
}

impl Drop for OnItsWay {
    fn drop(&mut self) {
        self.all.0.lock().unpoisoned().now.remove(&self.position);
    }
}

/// Says whether jobs may be parked.
#[derive(Debug, Clone)]
pub(crate) struct ParkGate {
    space: ParkedSpace,
    permits: Arc<ParkPermits>,
    news: Arc<GateNews>,
}

impl ParkGate {
    /// The gate of a node; clones share its permits. A caller that found none left learns of new ones by `news`.
    pub(crate) fn new(space: ParkedSpace, news: Arc<GateNews>) -> Self {
        Self { space, permits: Arc::default(), news }
    }

    pub(crate) fn is_open(&self) -> bool {
        self.permits.is_one_left() && !self.space.is_full()
    }

    /// Takes a permit for a job that waits for this, if a job can be parked now.
    pub(crate) fn take(&self, reason: Option<DeferReason>) -> Option<ParkPermit> {
        if self.space.is_full() {
            return None;
        }
        let mut permit = ParkPermit::take(&self.permits, reason)?;
        permit.news = Some(Arc::clone(&self.news));
        Some(permit)
    }
}

/// One job may be parked; given back when it is dropped, with the job's commit.
#[derive(Debug)]
pub(crate) struct ParkPermit {
    permit: Option<Permit<MAX_PARKING>>,
    /// A caller that found no permit left is notified here when there are some again.
    news: Option<Arc<GateNews>>,
    /// The job among those of its kind that are on their way.
    pub(crate) on_its_way: Option<OnItsWay>,
    /// Notified once the permit is given back: the job is to be taken back as soon as it is parked.
    pub(crate) wanted_back: Option<Arc<Notify>>,
    /// What the job waits for, if that is published as a deferral.
    pub(crate) reason: Option<DeferReason>,
    /// The job is not to wait, but goes back into its queue at once, with a rank that counts from this time.
    pub(crate) forward: Option<Timestamp>,
}

impl ParkPermit {
    /// Takes a permit for a job that waits for this, if one is left.
    pub(crate) fn take(permits: &Arc<ParkPermits>, reason: Option<DeferReason>) -> Option<Self> {
        permits.take().map(|permit| Self {
            permit: Some(permit),
            news: None,
            on_its_way: None,
            wanted_back: None,
            reason,
            forward: None,
        })
    }
}

impl Drop for ParkPermit {
    fn drop(&mut self) {
        // Before the notice: the one that gets it finds the job arrived.
        drop(self.on_its_way.take());
        let are_left_again = self.permit.take().is_some_and(Permit::give_back);
        if let (true, Some(news)) = (are_left_again, &self.news) {
            news.notify();
        }
        if let Some(wanted_back) = &self.wanted_back {
            wanted_back.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;
    use longshore_backbone::parked::FULL_FOR;
    use longshore_domain::Priority;

    use super::*;

    fn gate() -> (ParkGate, ParkedSpace, Arc<GateNews>) {
        let (space, news) = (ParkedSpace::default(), Arc::<GateNews>::default());
        (ParkGate::new(space.clone(), Arc::clone(&news)), space, news)
    }

    fn position(number: u64) -> Position {
        (Rank::new(Timestamp::from_millis(7), Priority::DEFAULT, std::time::Duration::ZERO), number)
    }

    /// Given a full stream of parked jobs, when a job cannot start, then it is not sent there: such jobs would fill the
    /// committer, and no other would end.
    #[tokio::test(start_paused = true)]
    async fn while_the_stream_is_full_no_job_is_parked_and_no_permit_is_used_up() {
        let (gate, space, _) = gate();
        space.learned(true);
        assert!(!gate.is_open() && gate.take(None).is_none());
        space.learned(false);
        assert!(gate.is_open());
        space.learned(true);
        tokio::time::advance(FULL_FOR).await;
        assert!(gate.is_open(), "nothing else would show that there is room again");
        let permits: Vec<ParkPermit> = std::iter::from_fn(|| gate.take(None)).collect();
        assert_eq!(permits.len(), MAX_PARKING);
    }

    #[test]
    fn those_that_found_no_permit_left_are_notified_once_when_half_of_them_are_back() {
        let (gate, _, news) = gate();
        let mut permits: Vec<ParkPermit> =
            std::iter::from_fn(|| gate.take(Some(DeferReason::Paused))).take(MAX_PARKING).collect();
        permits.truncate(1);
        assert_eq!(news.count(), 0, "there was always one left");
        permits.extend(std::iter::from_fn(|| gate.take(None)));
        assert!(!gate.is_open());
        permits.truncate(MAX_PARKING / 2 + 1);
        assert_eq!((news.count(), gate.is_open()), (0, true), "a few are no news");
        permits.pop();
        assert_eq!(news.count(), 1);
        permits.clear();
        assert_eq!(news.count(), 1);
    }

    #[test]
    fn the_one_that_wants_a_job_back_is_notified_after_it_has_arrived() {
        let (gate, _, _) = gate();
        let (on_their_way, wanted_back) = (OnTheirWay::default(), Arc::<Notify>::default());
        let mut permit = gate.take(None).unwrap();
        permit.on_its_way = Some(on_their_way.sets_out(position(1)));
        permit.wanted_back = Some(Arc::clone(&wanted_back));
        assert!(wanted_back.notified().now_or_never().is_none() && !on_their_way.is_empty());
        drop(permit);
        assert!(wanted_back.notified().now_or_never().is_some() && on_their_way.is_empty());
    }

    #[test]
    fn the_first_that_was_on_its_way_at_any_time_since_the_watch_began_is_known() {
        let all = OnTheirWay::default();
        let (second, first) = (all.sets_out(position(2)), all.sets_out(position(1)));
        all.watch();
        drop(first);
        assert_eq!(all.first_seen(), Some(position(1)), "it may have arrived after the read");
        all.watch();
        assert_eq!(all.first_seen(), Some(position(2)));
        drop(second);
        all.watch();
        assert_eq!(all.first_seen(), None);
        drop(all.sets_out(position(3)));
        assert_eq!(all.first_seen(), Some(position(3)), "it came and went meanwhile");
    }
}
