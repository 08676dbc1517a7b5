//! The timekeeper: moves due jobs into their lanes, and hands the ticks of recurring schedules on.
//!
//! The server publishes a schedule's job on a due subject when its time has come; the timekeeper publishes it into its
//! lane ([`crate::queue::due`]), and then acknowledges it. A lane that refuses holds nothing up here: its jobs go back
//! to the server for a while ([`crate::time::closed_lanes`]), and other lanes' jobs take their places.
//!
//! A tick has the firing of its schedule carried out ([`crate::time::firing`]).
//!
//! Bounds: [`AT_ONCE`] moves and firings; it pulls no more than it has places for.

use std::collections::BTreeSet;
use std::future::poll_fn;
use std::sync::Arc;
use std::time::{Duration, Instant};

use longshore_backbone::Error;
use longshore_backbone::delivery::{AckToken, Delivery};
use longshore_backbone::pull::{Pulled, Puller};
use longshore_domain::run::Holding;
use longshore_domain::{Lane, ScheduleId, Tenant};
use serde_json::json;
use tokio::task::JoinSet;

use crate::api::Api;
use crate::ports::passed_on::passed_on;
use crate::queue::due::{self, DueJob, DuePorts};
use crate::runtime::health::Health;
use crate::runtime::supervision::{LoopEnd, SUBSCRIPTION_ENDED, ticks};
use crate::time::closed_lanes::{ClosedLanes, Way};
use crate::time::firing;

/// Jobs that are being moved, and ticks that are being handled, at once.
const AT_ONCE: usize = 256;
/// How often it checks whether the server still knows of its pulls.
const TICK: Duration = Duration::from_millis(250);
/// A lane that has not answered by then counts as closed: its jobs must not keep the places of others.
const ANSWERS_WITHIN: Duration = Duration::from_secs(2);
/// A tick that is not handled by then goes back: it must not keep its place.
const FIRES_WITHIN: Duration = Duration::from_secs(30);

/// Moves due jobs until the node drains.
pub(crate) async fn run(part: TimekeeperPart) -> LoopEnd {
    let mut puller = Puller::of_due(&part.api.backbone).await.map_err(|error| error.with_causes())?;
    let mut timekeeper =
        Timekeeper { part, moves: JoinSet::new(), firings: JoinSet::new(), closed: ClosedLanes::default() };
    // Nothing is known any more of the full lanes that a timekeeper which died before has left.
    timekeeper.part.health.full_lanes.set(BTreeSet::new());
    timekeeper.part.api.metrics.lanes_full.set(0);
    let mut tick = ticks(TICK);
    let draining = timekeeper.part.api.lifecycle.draining.clone();
    loop {
        tokio::select! {
            biased;
            () = draining.cancelled() => break,
            Some(Ok(moved)) = timekeeper.moves.join_next(), if !timekeeper.moves.is_empty() => timekeeper.moved(moved).await,
            Some(_) = timekeeper.firings.join_next(), if !timekeeper.firings.is_empty() => {}
            pulled = poll_fn(|context| { let now = Instant::now(); puller.poll(context, now, now) }),
                if timekeeper.at_work() < AT_ONCE => match pulled {
                    Some(Pulled::Job(_, delivery)) => timekeeper.take(delivery).await,
                    Some(Pulled::Word(_) | Pulled::Echo(_)) => {}
                    None => return Err(SUBSCRIPTION_ENDED.to_owned()),
                },
            _ = tick.tick() => {
                if puller.reconnected() {
                    puller.forget_pulls();
                }
                puller.forget_silent(Instant::now());
            }
        }
        puller.top_up(0, timekeeper.at_work(), AT_ONCE).await;
    }
    // A due job that is returned late does no harm: it is in its lane once, whichever node moves it.
    puller.close(Instant::now(), Duration::MAX).await;
    // Jobs that are refused now are dropped, which returns them.
    while timekeeper.moves.join_next().await.is_some() {}
    while timekeeper.firings.join_next().await.is_some() {}
    std::future::pending().await
}

#[derive(Clone)]
pub(crate) struct TimekeeperPart {
    pub(crate) api: Arc<Api>,
    pub(crate) health: Arc<Health>,
}

struct Timekeeper {
    part: TimekeeperPart,
    moves: JoinSet<Moved>,
    firings: JoinSet<()>,
    closed: ClosedLanes,
}

struct Moved {
    lane: Lane,
    /// Why it failed, and the job that is still to be moved.
    refused: Option<(MoveError, AckToken)>,
}

pub(crate) enum MoveError {
    Unanswered,
    Error(Error),
}

impl Timekeeper {
    /// Moves and firings that have not ended.
    fn at_work(&self) -> usize {
        self.moves.len() + self.firings.len()
    }

    async fn take(&mut self, delivery: Delivery) {
        let Delivery { subject, headers, payload, holding, ack_token, .. } = delivery;
        let api = Arc::clone(&self.part.api);
        let names = api.backbone.names();
        if let Some((tenant, id)) = names.read_due_tick(&subject) {
            self.firings.spawn(fire(api, tenant, id, holding, ack_token));
            return;
        }
        let Some(job) = DueJob::read(names, &subject, headers.as_ref(), payload, holding.message.sequence) else {
            // Only nodes write schedules, and they write readable ones.
            tracing::error!(%subject, "a due job's subject cannot be read; it is dropped");
            return api.backbone.ack(ack_token).await;
        };
        let lane = job.lane.clone();
        match self.closed.way(&lane, Instant::now()) {
            Way::Move => {
                self.moves.spawn(async move {
                    let refused = due::move_to_lane(&*api, &job, ack_token).await.err();
                    Moved { lane, refused }
                });
            }
            Way::PutOff(away) => self.put_off(ack_token, away).await,
        }
    }

    async fn put_off(&self, ack_token: AckToken, away: Duration) {
        self.part.api.metrics.due_postponed.inc();
        self.part.api.backbone.nak_after(ack_token, away).await;
    }

    async fn moved(&mut self, moved: Moved) {
        let Moved { lane, refused } = moved;
        let Some((refusal, ack_token)) = refused else {
            if self.closed.took(&lane) {
                tracing::info!(queue = %lane.queue, priority = %lane.priority, "the lane takes due jobs again");
                self.is_full(&lane, false);
            }
            return;
        };
        let (away, is_new) = self.closed.refused(&lane, Instant::now());
        self.put_off(ack_token, away).await;
        let is_full = matches!(&refusal, MoveError::Error(error) if error.is_stream_full());
        if is_new {
            let why = match &refusal {
                MoveError::Unanswered => format!("it did not answer within {} s", ANSWERS_WITHIN.as_secs()),
                MoveError::Error(error) => error.with_causes(),
            };
            tracing::warn!(queue = %lane.queue, priority = %lane.priority, "due jobs cannot go into their lane yet: {why}");
        }
        if is_full && self.is_full(&lane, true) {
            let details = json!({"queue": lane.queue, "priority": lane.priority.number()});
            self.part.api.system_events.publish_about("lane_full", Some(&lane.queue), None, details).await;
        }
    }

    /// Sets for `health` whether a lane is full; says whether that is a change.
    fn is_full(&self, lane: &Lane, full: bool) -> bool {
        let TimekeeperPart { api, health } = &self.part;
        let is_news = health.set_lane_full(lane, full);
        api.metrics.lanes_full.set(i64::try_from(health.full_lanes.get().len()).unwrap_or(i64::MAX));
        is_news
    }
}

/// Handles a tick, and acknowledges it once nothing is left to be done; else it comes again.
async fn fire(api: Arc<Api>, tenant: Tenant, id: ScheduleId, holding: Holding, ack_token: AckToken) {
    let handled = tokio::time::timeout(FIRES_WITHIN, firing::on_tick(&api, &tenant, &id, holding.message.at));
    match handled.await {
        Ok(Ok(())) => api.backbone.ack(ack_token).await,
        // Dropped, and so returned.
        Err(_) => {
            tracing::warn!(%id, %tenant, "a recurring schedule could not fire within {} s", FIRES_WITHIN.as_secs())
        }
        Ok(Err(delay)) => {
            tracing::warn!(%id, %tenant, "a recurring schedule cannot fire yet: {delay}");
            api.backbone.nak_after(ack_token, firing::away(holding.delivery)).await;
        }
    }
}

impl DuePorts for Api {
    type Refusal = MoveError;

    async fn move_to_lane(&self, job: &DueJob) -> Result<(), MoveError> {
        // A publish that is answered too late is stored all the same; published again, it is caught by its id.
        match tokio::time::timeout(ANSWERS_WITHIN, job.publish(&self.backbone)).await {
            Ok(moved) => moved.map_err(MoveError::Error),
            Err(_) => Err(MoveError::Unanswered),
        }
    }

    fn moved(&self, job: &DueJob) {
        job.count(&self.metrics.lateness);
    }

    passed_on! { self.backbone =>
        async fn ack(&self, ack_token: AckToken);
    }
}
