//! The rate limiter: the part that gets tokens from the cluster for this node, gives back what is not used, announces
//! to the cluster of holds and learns of them. What is known stands in [`Limits`], which outlives it.
//!
//! Bounds: [`AT_ONCE`] requests for tokens on their way.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use longshore_backbone::rarely::Rarely;
use longshore_backbone::{Backbone, Error};
use longshore_domain::Timestamp;
use longshore_domain::limit::{Answer, Ask, Lease, LimitId, RateLimit, Record};
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;

use crate::address::Mailbox;
use crate::limits::Limits;
use crate::shared::now;
use crate::supervision::{LoopEnd, SUBSCRIPTION_ENDED};

/// How often tokens that are not used are looked for, while this node knows any limit.
const TICK: Duration = Duration::from_millis(30);
/// How often the list of holds is read again: one that was missed is found so. Those whose write failed are announced
/// again as often.
const CHECK_EVERY: Duration = Duration::from_secs(10);
/// Thousands of holds may wait for a bucket without a leader.
static UNANNOUNCED: Rarely = Rarely::once_in(CHECK_EVERY);
/// Limits for which the cluster is asked at once.
const AT_ONCE: usize = 64;
/// How often a request is repeated if other nodes' writes come first.
const TURNS: u32 = 20;
/// The longest pause before that.
const PAUSE: Duration = Duration::from_millis(8);
/// Blocks that are not taken back in so many tries are let go: their tokens count as used.
const RETURNS: u32 = 5;
/// How long jobs wait whose limit finds no room for its record.
const NO_ROOM: Duration = Duration::from_secs(5);

/// What is sent to the limiter. What it is about stands in [`Limits`].
pub(crate) enum Message {
    /// A job found too few tokens, or the next block is due.
    TokensWanted,
    /// A handler asked for a hold.
    HoldAsked,
}

/// The outcome of a request.
enum Outcome {
    /// The block, when the request was sent, by both clocks, and how many nodes hold tokens.
    Granted(Lease, (Instant, Timestamp), usize),
    /// There are too few until then.
    Refused(Timestamp, (Instant, Timestamp)),
    /// It is not known what became of it: it is repeated.
    Unclear,
}

/// What the limiter is given.
#[derive(Clone)]
pub(crate) struct Part {
    pub(crate) backbone: Backbone,
    pub(crate) limits: Arc<Limits>,
}

struct Limiter {
    part: Part,
    /// The requests on their way, and whose they are.
    requests: JoinSet<(LimitId, Ask, Outcome)>,
    busy: HashSet<LimitId>,
    /// Reads and writes beside them.
    errands: JoinSet<()>,
}

/// Gets tokens until the process ends.
pub(crate) async fn run(part: Part, mut mailbox: Mailbox<Message>) -> LoopEnd {
    let mut holds = part.backbone.listen_for_holds().await.map_err(|error| error.with_causes())?;
    part.limits.ask_again();
    let (requests, errands) = (JoinSet::new(), JoinSet::new());
    let mut limiter = Limiter { part, requests, busy: HashSet::new(), errands };
    limiter.ask();
    limiter.announce_holds();
    let (mut look, mut tick) = (tokio::time::interval(CHECK_EVERY), tokio::time::interval(TICK));
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let knows_any = limiter.part.limits.knows_any();
        tokio::select! {
            message = mailbox.next() => match message {
                Message::TokensWanted => limiter.ask(),
                Message::HoldAsked => limiter.announce_holds(),
            },
            Some(answered) = limiter.requests.join_next() => {
                let (id, ask, outcome) = answered.map_err(|error| error.to_string())?;
                limiter.answered(&id, &ask, outcome);
            }
            Some(done) = limiter.errands.join_next() => done.map_err(|error| error.to_string())?,
            hold = holds.next() => match hold {
                Some(hold) => limiter.part.limits.add_hold(&hold),
                None => return Err(SUBSCRIPTION_ENDED.to_owned()),
            },
            _ = tick.tick(), if knows_any => limiter.tick(),
            _ = look.tick() => limiter.look(),
        }
    }
}

impl Limiter {
    /// Asks the cluster for the limits that want tokens.
    fn ask(&mut self) {
        let limits = &self.part.limits;
        limits.is_notified.store(false, Ordering::Release);
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
            let (backbone, limit) = (self.part.backbone.clone(), *holder.limit());
            self.busy.insert(id.clone());
            self.requests.spawn(async move {
                let outcome = lease(&backbone, (&id, &limit), &ask).await;
                (id, ask, outcome)
            });
        }
        known.asking.extend(later);
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
        limits.news.notify();
    }

    /// Gives back what is not used, asks again for what is still wanted, and forgets limits that were not used for
    /// long.
    fn tick(&mut self) {
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
            let backbone = self.part.backbone.clone();
            self.errands.spawn(async move { give_back(&backbone, (&id, &limit), (&ask, unused)).await });
        }
        self.ask();
    }

    /// Reads the holds that may have been missed, and announces those again whose write failed.
    fn look(&mut self) {
        self.announce_holds();
        let Part { backbone, limits } = self.part.clone();
        self.errands.spawn(async move {
            match backbone.holds().await {
                Ok(holds) => holds.iter().for_each(|hold| limits.add_hold(hold)),
                Err(error) => tracing::debug!("the holds cannot be read: {}", error.with_causes()),
            }
        });
    }

    /// Announces to the other nodes what handlers of this one hold.
    fn announce_holds(&mut self) {
        for hold in self.part.limits.take_unpublished() {
            let (Part { backbone, limits }, lasts) = (self.part.clone(), hold.until.since(now()));
            self.errands.spawn(async move {
                if let Err(error) = backbone.write_hold(&hold, lasts).await {
                    if let Some(times) = UNANNOUNCED.happened("", Instant::now()) {
                        let why = error.with_causes();
                        tracing::warn!(hold = %hold.what, times, "other nodes may not know of a hold, trying again: {why}");
                    }
                    limits.to_announce(hold);
                }
            });
        }
    }
}

/// Asks for a block until it is known whether there is one, or other nodes were faster too often.
async fn lease(backbone: &Backbone, (id, limit): (&LimitId, &RateLimit), ask: &Ask) -> Outcome {
    for turn in 0..TURNS {
        let read = backbone.read_limit(id).await;
        let Ok((record, revision)) = read.inspect_err(|error| failed(id, error)) else { return Outcome::Unclear };
        let sent = (Instant::now(), now());
        match Record::lease(record.as_ref(), limit, ask, sent.1) {
            Answer::Has(lease) => return Outcome::Granted(lease, sent, record.map_or(1, |record| record.holders())),
            Answer::NotBefore(at) => return Outcome::Refused(at, sent),
            Answer::Granted(next, lease) => {
                match backbone.write_limit(id, &next, revision, next.matters_for(limit)).await {
                    Ok(true) => return Outcome::Granted(lease, sent, next.holders()),
                    Ok(false) => pause(turn).await,
                    // There is no room for its key.
                    Err(error) if error.is_stream_full() => return Outcome::Refused(sent.1.plus(NO_ROOM), sent),
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
async fn give_back(backbone: &Backbone, (id, limit): (&LimitId, &RateLimit), (ask, unused): (&Ask, u32)) {
    for turn in 0..RETURNS {
        let Ok((Some(record), revision)) = backbone.read_limit(id).await else { return };
        let Some(next) = record.give_back(limit, ask, unused, now()) else { return };
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
