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
use longshore_domain::limit::{Answer, Ask, Asked, Lease, LimitId, RateLimit, Record};
use tokio::task::JoinSet;

use crate::limits::rate::Limits;
use crate::ports::passed_on::passed_on;
use crate::runtime::address::Mailbox;
use crate::runtime::clock::{instant, now};
use crate::runtime::supervision::{LoopEnd, SUBSCRIPTION_ENDED, ticks};

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
pub(crate) enum LimiterMessage {
    /// A job found too few tokens, or the next block is due.
    TokensWanted,
    /// A handler asked for a hold.
    HoldAsked,
}

pub(crate) enum AskOutcome {
    /// The block, when it was asked for, and how many nodes hold tokens.
    Granted(Lease, Asked, usize),
    /// There are too few until then.
    Refused(Timestamp, Asked),
    /// It is not known what became of it: it is repeated.
    Unclear,
    /// Unused tokens are the cluster's again.
    Returned,
}

/// The cluster's records of limits. Each method is the method of [`Backbone`] that has its name, where nothing else is
/// said: the simulation answers, too.
pub(crate) trait LimitPorts {
    async fn read_limit(&self, id: &LimitId) -> Result<(Option<Record>, u64), Error>;
    async fn write_limit(&self, id: &LimitId, next: &Record, expected: u64, lasts: Duration) -> Result<bool, Error>;
    /// Waits for a part of this time.
    async fn pause(&self, most: Duration);
}

impl LimitPorts for Backbone {
    passed_on! { self =>
        async fn read_limit(&self, id: &LimitId) -> Result<(Option<Record>, u64), Error>;
        async fn write_limit(&self, id: &LimitId, next: &Record, expected: u64, lasts: Duration) -> Result<bool, Error>;
    }

    async fn pause(&self, most: Duration) {
        tokio::time::sleep(most.mul_f64(rand::random::<f64>())).await;
    }
}

#[derive(Clone)]
pub(crate) struct LimiterPart {
    pub(crate) backbone: Backbone,
    pub(crate) limits: Arc<Limits>,
}

struct Limiter {
    part: LimiterPart,
    asking: Asking,
    requests: JoinSet<Option<Answered>>,
    /// Reads and writes beside them.
    errands: JoinSet<()>,
}

pub(crate) enum Request {
    Lease(LimitId, RateLimit, Ask),
    /// Back goes a block of which so many tokens were not used.
    GiveBack(LimitId, RateLimit, Ask, u32),
}

pub(crate) struct Answered {
    id: LimitId,
    ask: Ask,
    outcome: AskOutcome,
}

pub(crate) async fn run(part: LimiterPart, mut mailbox: Mailbox<LimiterMessage>) -> LoopEnd {
    let mut holds = part.backbone.listen_for_holds().await.map_err(|error| error.with_causes())?;
    part.limits.ask_again();
    let asking = Asking::new(Arc::clone(&part.limits));
    let mut limiter = Limiter { part, asking, requests: JoinSet::new(), errands: JoinSet::new() };
    limiter.ask();
    limiter.announce_holds();
    let (mut look, mut tick) = (ticks(CHECK_EVERY), ticks(TICK));
    loop {
        let knows_any = limiter.part.limits.knows_any();
        tokio::select! {
            message = mailbox.next() => match message {
                LimiterMessage::TokensWanted => limiter.ask(),
                LimiterMessage::HoldAsked => limiter.announce_holds(),
            },
            Some(answered) = limiter.requests.join_next() => {
                if let Some(answered) = answered.map_err(|error| error.to_string())? {
                    limiter.asking.answered(answered);
                }
            }
            Some(done) = limiter.errands.join_next() => done.map_err(|error| error.to_string())?,
            hold = holds.next() => match hold {
                Some(hold) => {
                    limiter.part.limits.add_holds([&hold]);
                }
                None => return Err(SUBSCRIPTION_ENDED.to_owned()),
            },
            _ = tick.tick(), if knows_any => {
                let requests = limiter.asking.tick();
                limiter.send(requests);
            }
            _ = look.tick() => limiter.look(),
        }
    }
}

/// Which limits the cluster is asked about.
pub(crate) struct Asking {
    limits: Arc<Limits>,
    busy: HashSet<LimitId>,
}

impl Asking {
    pub(crate) fn new(limits: Arc<Limits>) -> Self {
        Self { limits, busy: HashSet::new() }
    }

    /// Whether a job has found too few tokens; `None`: no limit is known.
    #[cfg(test)]
    pub(crate) fn is_called(&self) -> Option<bool> {
        let is_called = self.limits.is_notified.load(Ordering::Acquire);
        (is_called || self.limits.knows_any()).then_some(is_called)
    }

    /// The limits that want tokens.
    pub(crate) fn ask(&mut self) -> Vec<Request> {
        self.limits.is_notified.store(false, Ordering::Release);
        let (now, mut requests) = (instant(), Vec::new());
        let mut known = self.limits.known();
        let asking: Vec<LimitId> = known.asking.drain().collect();
        let mut later = Vec::new();
        for id in asking {
            let Some(holder) = known.holders.get_mut(&id) else { continue };
            if self.busy.contains(&id) || self.busy.len() >= AT_ONCE {
                later.push(id);
                continue;
            }
            let Some(ask) = holder.ask(now) else { continue };
            self.busy.insert(id.clone());
            requests.push(Request::Lease(id, *holder.limit(), ask));
        }
        known.asking.extend(later);
        requests
    }

    pub(crate) fn answered(&mut self, Answered { id, ask, outcome }: Answered) {
        if !matches!(outcome, AskOutcome::Returned) {
            self.busy.remove(&id);
        }
        let mut known = self.limits.known();
        let Some(holder) = known.holders.get_mut(&id) else { return };
        match outcome {
            AskOutcome::Granted(lease, asked, holders) => holder.granted(ask.number, lease, asked, holders),
            AskOutcome::Refused(until, asked) => holder.refused(ask.number, until, asked),
            AskOutcome::Unclear => {
                known.asking.insert(id);
            }
            AskOutcome::Returned => holder.returned(),
        }
        drop(known);
        self.limits.news.notify();
    }

    /// Gives back what is not used, asks again for what is still wanted, and forgets limits that are long unused.
    pub(crate) fn tick(&mut self) -> Vec<Request> {
        let now = instant();
        let mut known = self.limits.known();
        let mut requests = Vec::new();
        for (id, holder) in &mut known.holders {
            let limit = *holder.limit();
            let back = holder.give_back(now).into_iter();
            requests.extend(back.map(|(ask, unused)| Request::GiveBack(id.clone(), limit, ask, unused)));
        }
        known.forget_unused(now, &self.busy);
        drop(known);
        requests.extend(self.ask());
        requests
    }
}

impl Limiter {
    fn ask(&mut self) {
        let requests = self.asking.ask();
        self.send(requests);
    }

    fn send(&mut self, requests: Vec<Request>) {
        for request in requests {
            let backbone = self.part.backbone.clone();
            self.requests.spawn(async move { carry_out(&backbone, request).await });
        }
    }

    /// Reads the holds that may have been missed, and announces those again whose write failed.
    fn look(&mut self) {
        self.announce_holds();
        let LimiterPart { backbone, limits } = self.part.clone();
        self.errands.spawn(async move {
            match backbone.holds().await {
                Ok(holds) => {
                    limits.add_holds(&holds);
                }
                Err(error) => tracing::debug!("the holds cannot be read: {}", error.with_causes()),
            }
        });
    }

    /// Announces to the other nodes what handlers of this one hold, once the bucket has room for that.
    fn announce_holds(&mut self) {
        if self.part.backbone.control_space().is_short() {
            return;
        }
        for hold in self.part.limits.take_unpublished() {
            let (LimiterPart { backbone, limits }, lasts) = (self.part.clone(), hold.until.since(now()));
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

pub(crate) async fn carry_out<S: LimitPorts>(server: &S, request: Request) -> Option<Answered> {
    match request {
        Request::Lease(id, limit, ask) => {
            let outcome = lease(server, &id, &limit, &ask).await;
            Some(Answered { id, ask, outcome })
        }
        Request::GiveBack(id, limit, ask, unused) => {
            let is_returned = give_back(server, &id, &limit, &ask, unused).await;
            is_returned.then_some(Answered { id, ask, outcome: AskOutcome::Returned })
        }
    }
}

/// Asks for a block until it is known whether there is one, or other nodes were faster too often.
async fn lease<S: LimitPorts>(server: &S, id: &LimitId, limit: &RateLimit, ask: &Ask) -> AskOutcome {
    for turn in 0..TURNS {
        let read = server.read_limit(id).await;
        let Ok((record, revision)) = read.inspect_err(|error| failed(id, error)) else { return AskOutcome::Unclear };
        let when = Asked { sent: instant(), time: now() };
        match Record::lease(record.as_ref(), limit, ask, when.time) {
            Answer::Has(lease) => return AskOutcome::Granted(lease, when, record.map_or(1, |record| record.holders())),
            Answer::NotBefore(at) => {
                if let Some(next) = record.and_then(|record| record.corrected(limit, when.time))
                    && let Err(error) = server.write_limit(id, &next, revision, next.matters_for(limit)).await
                {
                    failed(id, &error);
                }
                return AskOutcome::Refused(at, when);
            }
            Answer::Granted(next, lease) => {
                match server.write_limit(id, &next, revision, next.matters_for(limit)).await {
                    Ok(true) => return AskOutcome::Granted(lease, when, next.holders()),
                    Ok(false) => pause(server, turn).await,
                    // There is no room for its key.
                    Err(error) if error.is_stream_full() => return AskOutcome::Refused(when.time.plus(NO_ROOM), when),
                    Err(error) => {
                        failed(id, &error);
                        return AskOutcome::Unclear;
                    }
                }
            }
        }
    }
    AskOutcome::Unclear
}

/// Gives a block back, and says whether that was done. If it was not, its tokens count as used.
async fn give_back<S: LimitPorts>(server: &S, id: &LimitId, limit: &RateLimit, ask: &Ask, unused: u32) -> bool {
    for turn in 0..RETURNS {
        let Ok((Some(record), revision)) = server.read_limit(id).await else { return false };
        let Some(next) = record.give_back(limit, ask, unused, now()) else { return false };
        // After an unclear answer the record shows whether the block is still listed.
        if matches!(server.write_limit(id, &next, revision, next.matters_for(limit)).await, Ok(true)) {
            return true;
        }
        pause(server, turn).await;
    }
    false
}

async fn pause<S: LimitPorts>(server: &S, turn: u32) {
    server.pause(PAUSE.min(Duration::from_millis(1 << turn.min(3)))).await;
}

fn failed(id: &LimitId, error: &Error) {
    tracing::debug!(limit = %id, "cannot ask for tokens, trying again: {}", error.with_causes());
}
