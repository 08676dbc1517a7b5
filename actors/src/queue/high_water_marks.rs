//! High-water marks: from which sequence on the delivery counts of a queue's lanes can be trusted.
//!
//! Tasks beside the scheduler read them, never the scheduler itself: a lane without a leader answers late, and the
//! others must not wait for it. Until a lane's mark is known, every delivery of it claims its run first, which is
//! always safe. When this is dropped, reading stops.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use longshore_backbone::{Backbone, Error};
use longshore_domain::run::{Holding, MessageId};
use longshore_domain::{Priority, Queue, Timestamp};
use tokio::task::JoinSet;

use crate::attempt::cancelled::learn;
use crate::attempt::recently_cancelled::RecentlyCancelled;

/// A lane that could not be read is tried again after this long.
const AGAIN_AFTER: Duration = Duration::from_millis(250);
/// How long a starting scheduler waits for its marks.
const AT_START: Duration = Duration::from_millis(500);
/// Every sequence lies at or below it.
const UNKNOWN: u64 = u64::MAX;

/// The marks of a queue's nine lanes that clients publish to.
pub(crate) struct HighWaterMarks {
    backbone: Backbone,
    /// A job may begin without reading its record only after the list of cancelled runs was read.
    cancelled: Arc<RecentlyCancelled>,
    queue: Queue,
    lanes: [LaneMark; Priority::COUNT],
    readers: JoinSet<Vec<MarkRead>>,
}

#[derive(Clone, Copy)]
struct LaneMark {
    mark: u64,
    /// How often its mark was asked for; a reader's answer counts only for the asking it was started for.
    asked: u64,
    being_read: bool,
    newest: Newest,
}

/// The newest message of a lane that was delivered to this node, and to no node before, as the server said.
#[derive(Debug, Clone, Copy, Default)]
struct Newest {
    sequence: u64,
    at: Timestamp,
}

impl Newest {
    /// Whether the server delivers for the first time, as it says, a message that is not newer than the newest: then it
    /// has forgotten that it delivered that message before. In a lane that was made again sequences may be lower, but
    /// messages are younger.
    fn is_passed_by(&mut self, holding: &Holding) -> bool {
        let MessageId { sequence, at, .. } = holding.message;
        if holding.delivery > 1 {
            return false;
        }
        let was_delivered = sequence <= self.sequence && at <= self.at;
        if !was_delivered {
            *self = Self { sequence, at };
        }
        was_delivered
    }
}

/// What a reader found, and for which asking of which lane.
struct MarkRead {
    lane: usize,
    asked: u64,
    mark: u64,
}

impl HighWaterMarks {
    pub(crate) fn new(backbone: Backbone, cancelled: Arc<RecentlyCancelled>, queue: Queue) -> Self {
        let unknown = LaneMark { mark: UNKNOWN, asked: 0, being_read: false, newest: Newest::default() };
        let mut marks = Self { backbone, cancelled, queue, lanes: [unknown; Priority::COUNT], readers: JoinSet::new() };
        if marks.backbone.has_one_server() {
            marks.server_is_new();
        } else {
            (0..Priority::COUNT).for_each(|lane| marks.leader_may_be_new(lane));
        }
        marks
    }

    /// The sequence up to which a lane's delivery counts prove nothing.
    pub(crate) fn of(&self, lane: usize) -> u64 {
        // Every delivery of the lane of returned jobs claims first.
        self.lanes.get(lane).map_or(UNKNOWN, |lane| lane.mark)
    }

    /// Whether the server has forgotten that it gave this node that message. A new leader of the consumer may not know
    /// of it, and a former one may still deliver.
    pub(crate) fn is_repeated(&mut self, lane: usize, holding: &Holding) -> bool {
        self.lanes.get_mut(lane).is_some_and(|lane| lane.newest.is_passed_by(holding))
    }

    /// The connection was made anew: the only server may be another process, whose marks hold for all nodes.
    pub(crate) fn server_is_new(&mut self) {
        self.lanes.iter_mut().for_each(|lane| lane.newest = Newest::default());
        if !self.backbone.has_one_server() {
            return;
        }
        self.readers = JoinSet::new();
        self.lanes = self.lanes.map(|lane| LaneMark { mark: UNKNOWN, asked: lane.asked + 1, being_read: true, ..lane });
        let (backbone, cancelled) = (self.backbone.clone(), Arc::clone(&self.cancelled));
        let (queue, lanes) = (self.queue.clone(), self.lanes);
        self.readers.spawn(async move {
            retry_until_done(&queue, || learn(&backbone, &cancelled)).await;
            let marks = retry_until_done(&queue, || backbone.marks(&queue)).await;
            let names = backbone.names();
            let mark = |priority| marks.get(&names.lane_stream(&queue, priority)).copied().unwrap_or(0);
            let read = |(lane, priority)| MarkRead { lane, asked: lanes[lane].asked, mark: mark(priority) };
            Priority::all().enumerate().map(read).collect()
        });
    }

    /// A lane's pulls were forgotten: if its consumer's leader can change, the new leader may deliver a job again with
    /// a delivery count of 1.
    pub(crate) fn leader_may_be_new(&mut self, lane: usize) {
        if self.backbone.has_one_server() || lane >= self.lanes.len() {
            return;
        }
        self.lanes[lane].mark = UNKNOWN;
        self.lanes[lane].asked += 1;
        if !self.lanes[lane].being_read {
            self.read(lane);
        }
    }

    fn read(&mut self, lane: usize) {
        self.lanes[lane].being_read = true;
        let (backbone, cancelled) = (self.backbone.clone(), Arc::clone(&self.cancelled));
        let (queue, asked) = (self.queue.clone(), self.lanes[lane].asked);
        self.readers.spawn(async move {
            let Some(priority) = Priority::all().nth(lane) else { return Vec::new() };
            retry_until_done(&queue, || learn(&backbone, &cancelled)).await;
            let state = retry_until_done(&queue, || backbone.lane_of(&queue, priority)).await;
            vec![MarkRead { lane, asked, mark: state.last_sequence }]
        });
    }

    /// Waits until the marks of all lanes are known, but not for long: this only saves the first jobs their claims.
    pub(crate) async fn known(&mut self) {
        let known = std::future::poll_fn(|context| {
            self.poll(context);
            let known = self.lanes.iter().all(|lane| lane.mark != UNKNOWN);
            if known { Poll::Ready(()) } else { Poll::Pending }
        });
        let _ = tokio::time::timeout(AT_START, known).await;
    }

    /// Takes in the marks that readers have found; wakes the task when there are more.
    pub(crate) fn poll(&mut self, context: &mut Context<'_>) {
        while let Poll::Ready(Some(found)) = self.readers.poll_join_next(context) {
            // A reader does not panic; if one did, its lanes claim first until the connection is made anew.
            for MarkRead { lane, asked, mark } in found.into_iter().flatten() {
                self.lanes[lane].being_read = false;
                if asked == self.lanes[lane].asked {
                    self.lanes[lane].mark = mark;
                } else {
                    self.read(lane);
                }
            }
        }
    }
}

async fn retry_until_done<T, F: Future<Output = Result<T, Error>>>(queue: &Queue, read: impl Fn() -> F) -> T {
    let mut warned = false;
    loop {
        match read().await {
            Ok(found) => return found,
            Err(error) => {
                if !std::mem::replace(&mut warned, true) {
                    tracing::warn!(%queue, "cannot read a lane's mark, trying again: {}", error.with_causes());
                }
                tokio::time::sleep(AGAIN_AFTER).await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holding(sequence: u64, at: i64, delivery: u64) -> Holding {
        let message = MessageId { stream: "lane".into(), sequence, at: Timestamp::from_millis(at) };
        Holding { message, delivery }
    }

    #[test]
    fn what_a_server_delivers_for_the_first_time_once_more_is_repeated() {
        let mut newest = Newest::default();
        for (sequence, at, delivery, repeats) in [
            (5, 10, 1, false),
            (9, 10, 1, false),
            (5, 10, 2, false),
            (9, 10, 1, true),
            (7, 10, 1, true),
            (10, 10, 1, false),
            // The lane was made again.
            (1, 11, 1, false),
            (1, 11, 1, true),
            (2, 11, 1, false),
        ] {
            assert_eq!(newest.is_passed_by(&holding(sequence, at, delivery)), repeats, "{sequence} {at} {delivery}");
        }
    }
}
