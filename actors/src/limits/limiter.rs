//! The rate limiter: the actor that gets tokens from the cluster for this node, gives back what is not used, and tells the
//! cluster of holds and hears of them. What is known stands in [`Limits`], which outlives it.
//!
//! Mailbox: one `Wanted` at most, one `Tick`, one `Answered` for each of [`AT_ONCE`] requests on their way, and holds: as
//! many as handlers ask for, and as other nodes tell of.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use longshore_backbone::limits::{Hold, Stamp};
use longshore_backbone::{Backbone, Error};
use longshore_domain::Timestamp;
use longshore_domain::limit::{Answer, Ask, Lease, LimitId, RateLimit, Record};
use ractor::{Actor, ActorProcessingErr, ActorRef};
use tokio::task::JoinHandle;

use crate::limits::Limits;
use crate::shared::now;
use crate::supervision::SUBSCRIPTION_ENDED;

/// How often tokens that are not used are looked for, while this node holds any.
const TICK: Duration = Duration::from_millis(30);
/// How often the clocks are compared, and the list of holds is read again: an event that was missed is found so.
const LOOK_EVERY: Duration = Duration::from_secs(10);
/// So many comparisons of the clocks are remembered.
const COMPARED: usize = 8;
/// Limits for which the cluster is asked at once.
const AT_ONCE: usize = 64;
/// How often a request is repeated if other nodes' writes come first.
const TURNS: u32 = 20;
/// The longest pause before that.
const PAUSE: Duration = Duration::from_millis(8);
/// Blocks that are not taken back in so many tries are let go: their tokens count as used.
const RETURNS: u32 = 5;

/// What the limiter is told.
pub(crate) enum Message {
    /// A job found too few tokens, or the next block is due.
    Wanted,
    /// Time has passed.
    Tick,
    /// It is time to compare the clocks and to read the holds.
    Look,
    /// A request was answered.
    Answered(LimitId, Ask, Outcome),
    /// A handler asked for a hold.
    Hold(Hold),
    /// Another node has told of a hold.
    HoldHeard(Hold),
    /// This node no longer hears of holds.
    SubscriptionEnded,
}

/// The outcome of a request.
pub(crate) enum Outcome {
    /// The block, when the request was sent, by both clocks, and how many nodes hold tokens.
    Granted(Lease, (Instant, Timestamp), usize),
    /// There are too few until then.
    Refused(Timestamp, (Instant, Timestamp)),
    /// It is not known what became of it: it is repeated.
    Unclear,
}

pub(crate) struct Limiter;

/// What the limiter is given.
#[derive(Clone)]
pub(crate) struct Arguments {
    pub(crate) backbone: Backbone,
    pub(crate) node: longshore_domain::SmolStr,
    pub(crate) limits: Arc<Limits>,
}

pub(crate) struct State {
    part: Arguments,
    busy: HashSet<LimitId>,
    is_ticking: bool,
    listening: JoinHandle<()>,
    /// The last comparisons of the clocks: how long each took, and the offset found.
    offsets: VecDeque<(Duration, i64)>,
}

impl Drop for State {
    fn drop(&mut self) {
        self.listening.abort();
    }
}

impl Actor for Limiter {
    type Msg = Message;
    type State = State;
    type Arguments = Arguments;

    async fn pre_start(&self, myself: ActorRef<Message>, part: Arguments) -> Result<State, ActorProcessingErr> {
        let limits = Arc::clone(&part.limits);
        *limits.limiter.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(myself.clone());
        limits.is_told.store(false, Ordering::Release);
        limits.ask_again();
        let listening = tokio::spawn(listen(part.backbone.clone(), myself.clone()));
        myself.cast(Message::Look)?;
        myself.cast(Message::Wanted)?;
        Ok(State { part, busy: HashSet::new(), is_ticking: false, listening, offsets: VecDeque::new() })
    }

    async fn handle(
        &self,
        myself: ActorRef<Message>,
        message: Message,
        state: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            Message::Wanted => state.ask(&myself),
            Message::Tick => state.tick(&myself),
            Message::Look => state.look(&myself).await,
            Message::Answered(id, ask, outcome) => state.answered(&id, &ask, outcome),
            Message::Hold(hold) => state.tell_of(hold),
            Message::HoldHeard(hold) => state.part.limits.add_hold(&hold),
            Message::SubscriptionEnded => return Err(SUBSCRIPTION_ENDED.into()),
        }
        Ok(())
    }
}

impl State {
    /// Asks the cluster for the limits that want tokens.
    fn ask(&mut self, myself: &ActorRef<Message>) {
        let limits = &self.part.limits;
        limits.is_told.store(false, Ordering::Release);
        let now = Instant::now();
        let mut known = limits.known();
        let asking: Vec<LimitId> = known.asking.drain().collect();
        let mut later = Vec::new();
        for id in asking {
            let Some(holder) = known.holders.get_mut(&id) else { continue };
            if self.busy.contains(&id) || self.busy.len() >= AT_ONCE {
                later.push(id);
                continue;
            }
            let Some(ask) = holder.ask(now) else { continue };
            let (backbone, limits, limit) = (self.part.backbone.clone(), Arc::clone(limits), *holder.limit());
            let (to, request) = (myself.clone(), id.clone());
            self.busy.insert(id);
            tokio::spawn(async move {
                let outcome = lease(&backbone, (&request, &limit), &ask, &limits).await;
                let _ = to.cast(Message::Answered(request, ask, outcome));
            });
        }
        known.asking.extend(later);
        drop(known);
        self.tick_later(myself);
    }

    fn answered(&mut self, id: &LimitId, ask: &Ask, outcome: Outcome) {
        self.busy.remove(id);
        let limits = &self.part.limits;
        let mut known = limits.known();
        let Some(holder) = known.holders.get_mut(id) else { return };
        match outcome {
            Outcome::Granted(lease, sent, holders) => holder.granted(ask.number, lease, sent, holders),
            Outcome::Refused(until, sent) => holder.refused(ask.number, until, sent),
            Outcome::Unclear => {
                known.asking.insert(id.clone());
            }
        }
        drop(known);
        limits.news.tell();
    }

    /// Gives back what is not used, asks again for what is still wanted, and forgets limits that were not used for long.
    fn tick(&mut self, myself: &ActorRef<Message>) {
        self.is_ticking = false;
        let now = Instant::now();
        let mut known = self.part.limits.known();
        let mut back = Vec::new();
        for (id, holder) in &mut known.holders {
            let limit = *holder.limit();
            back.extend(holder.give_back(now).into_iter().map(|(ask, unused)| (id.clone(), limit, ask, unused)));
        }
        let busy = &self.busy;
        known.holders.retain(|id, holder| busy.contains(id) || !holder.is_over(now));
        drop(known);
        for (id, limit, ask, unused) in back {
            let (backbone, limits) = (self.part.backbone.clone(), Arc::clone(&self.part.limits));
            tokio::spawn(async move { give_back(&backbone, (&id, &limit), (&ask, unused), &limits).await });
        }
        self.ask(myself);
    }

    fn tick_later(&mut self, myself: &ActorRef<Message>) {
        if !self.is_ticking && !self.part.limits.known().holders.is_empty() {
            self.is_ticking = true;
            myself.send_after(TICK, || Message::Tick);
        }
    }

    /// Compares the clocks, and reads the holds that may have been missed.
    async fn look(&mut self, myself: &ActorRef<Message>) {
        let (sent, sent_at) = (Instant::now(), now());
        match self.part.backbone.servers_time(&self.part.node).await {
            Ok(Stamp { at, written }) => {
                let took = written.duration_since(sent);
                // The server stored it some time between the two; where the clocks may agree, they do.
                let (most, least) = (at.millis() - sent_at.millis(), at.millis() - sent_at.plus(took).millis() - 1);
                self.offsets.push_back((took, 0.clamp(least, most.max(least))));
                while self.offsets.len() > COMPARED {
                    self.offsets.pop_front();
                }
                // The fastest comparison is the most exact one.
                let best = self.offsets.iter().min_by_key(|(took, _)| *took).map_or(0, |(_, offset)| *offset);
                self.part.limits.offset.store(best, Ordering::Relaxed);
            }
            Err(error) => tracing::debug!("the clocks cannot be compared: {}", error.with_causes()),
        }
        match self.part.backbone.holds().await {
            Ok(holds) => holds.iter().for_each(|hold| self.part.limits.add_hold(hold)),
            Err(error) => tracing::debug!("the holds cannot be read: {}", error.with_causes()),
        }
        myself.send_after(LOOK_EVERY, || Message::Look);
    }

    fn tell_of(&self, hold: Hold) {
        let (backbone, lasts) = (self.part.backbone.clone(), hold.until.since(self.part.limits.time()));
        tokio::spawn(async move {
            if let Err(error) = backbone.write_hold(&hold, lasts).await {
                tracing::warn!(hold = %hold.what, "other nodes may not know of a hold: {}", error.with_causes());
            }
        });
    }
}

async fn listen(backbone: Backbone, limiter: ActorRef<Message>) {
    if let Ok(mut holds) = backbone.listen_for_holds().await {
        while let Some(hold) = holds.next().await {
            let _ = limiter.cast(Message::HoldHeard(hold));
        }
    }
    let _ = limiter.cast(Message::SubscriptionEnded);
}

/// Asks for a block until it is known whether there is one, or other nodes were faster too often.
async fn lease(backbone: &Backbone, (id, limit): (&LimitId, &RateLimit), ask: &Ask, limits: &Limits) -> Outcome {
    for turn in 0..TURNS {
        let read = backbone.read_limit(id).await;
        let Ok((record, revision)) = read.inspect_err(|error| failed(id, error)) else { return Outcome::Unclear };
        let sent = (Instant::now(), limits.time());
        match Record::lease(record.as_ref(), limit, ask, sent.1) {
            Answer::Has(lease) => return Outcome::Granted(lease, sent, record.map_or(1, |record| record.holders())),
            Answer::NotBefore(at) => return Outcome::Refused(at, sent),
            Answer::Granted(next, lease) => {
                match backbone.write_limit(id, &next, revision, next.matters_for(limit)).await {
                    Ok(true) => return Outcome::Granted(lease, sent, next.holders()),
                    Ok(false) => pause(turn).await,
                    Err(error) => {
                        failed(id, &error);
                        return Outcome::Unclear;
                    }
                }
            }
        }
    }
    Outcome::Unclear
}

/// Gives a block back. If that fails, its tokens count as used.
async fn give_back(
    backbone: &Backbone,
    (id, limit): (&LimitId, &RateLimit),
    (ask, unused): (&Ask, u32),
    limits: &Limits,
) {
    for turn in 0..RETURNS {
        let Ok((Some(record), revision)) = backbone.read_limit(id).await else { return };
        let Some(next) = record.give_back(limit, ask, unused, limits.time()) else { return };
        // After an unclear answer the record shows whether the block is still listed.
        if matches!(backbone.write_limit(id, &next, revision, next.matters_for(limit)).await, Ok(true)) {
            return;
        }
        pause(turn).await;
    }
}

async fn pause(turn: u32) {
    let most = PAUSE.min(Duration::from_millis(1 << turn.min(3)));
    tokio::time::sleep(most.mul_f64(rand::random::<f64>())).await;
}

fn failed(id: &LimitId, error: &Error) {
    tracing::debug!(limit = %id, "cannot ask for tokens, trying again: {}", error.with_causes());
}
