//! Fairness: sees that every tenant, or every type where the queue is set so, gets its share of what its queue starts,
//! however many jobs of others came before. Either is a *fairness key* below.
//!
//! One loop per queue and node. The first node by name that serves the queue looks at each lane with a long backlog:
//! how many jobs of each key wait there, and how many each node was delivered. `longshore_domain::fairness` says what
//! each key is owed; its oldest jobs beyond those that begin soon anyway are moved forward ([`forward`]).
//! A queue whose lanes are short costs one read in ten seconds, a backlog of one key another question at each look.
//!
//! Every node answers how many jobs it was delivered. The loop has no mailbox. Bounds: at each look [`LOOKUPS`] keys
//! are looked up, [`COPIES`] copies read, and moves end with the look, except the first of each lane; the jobs that are
//! moved together, 128 at most, are in memory.

pub(crate) mod deliveries;
pub(crate) mod forward;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use longshore_backbone::Error;
use longshore_backbone::control::Presence;
use longshore_backbone::deliveries::{DeliveryCount, DeliveryCounts};
use longshore_backbone::nodes::Nodes;
use longshore_backbone::questions::Questions;
use longshore_domain::fairness::{Counted, FairnessKey, Owed, Shares};
use longshore_domain::{Lane, Priority};

use crate::attempt::ports::Ports as _;
use crate::ports::RunPorts as _;
use crate::queue::dispatcher::{Dispatcher, QueuePart};
use crate::queue::fairness::forward::{Forwarder, Wanted};
use crate::runtime::identity::is_first_of;
use crate::runtime::now;
use crate::runtime::supervision::{LoopEnd, SUBSCRIPTION_ENDED, ticks};

const LOOK_EVERY: Duration = Duration::from_secs(1);
/// A lane with no more waiting jobs is served in its order: they begin soon.
const LONG: u64 = 1_000;
/// Jobs count as near, which begin by themselves, if they stand within what the lane delivers in so many looks.
const NEAR: u64 = 3;
/// And at any rate within so many messages.
const NEAR_AT_LEAST: u64 = 500;
/// How long the other nodes have to say what they were delivered.
pub(crate) const SAY_WITHIN: Duration = Duration::from_millis(500);
/// Keys of which one look finds out where their first job stands.
const LOOKUPS: usize = 256;
/// How often it finds out which nodes serve the queue.
const ROLL_EVERY: Duration = Duration::from_secs(5);
/// How often it looks for copies that a node left behind.
const CHECK_EVERY: Duration = Duration::from_secs(10);
/// Copies that one look goes on with.
const COPIES: usize = 256;

/// Looks, and answers, until the process ends.
pub(crate) async fn run(part: QueuePart) -> LoopEnd {
    let (nodes, queue) = (part.ports.backbone.nodes(), Arc::clone(&part.queue));
    let questions = nodes.delivery_questions(&queue.name).await.map_err(|error| error.with_causes())?;
    let node = part.ports.node().to_string();
    let forwarder = Forwarder::new(part.ports, Arc::clone(&part.queue));
    let mut fairness = Fairness {
        forwarder,
        lanes: BTreeMap::new(),
        answers: HashMap::new(),
        serving: Vec::new(),
        next_roll: Instant::now(),
        next_check: Instant::now(),
    };
    tokio::select! {
        () = answer(questions, &nodes, &queue, &node) => Err(SUBSCRIPTION_ENDED.to_owned()),
        () = fairness.keep_looking() => Ok(()),
    }
}

async fn answer(mut questions: Questions, nodes: &Nodes, queue: &Dispatcher, node: &str) {
    while let Some(question) = questions.next().await {
        let counts = queue.deliveries.asked(node, Instant::now(), now());
        nodes.answer_deliveries(question, &counts).await;
    }
}

struct Fairness {
    forwarder: Forwarder,
    /// The lanes with a long backlog of several keys.
    lanes: BTreeMap<Priority, LaneShares>,
    answers: Answers,
    /// The nodes that serve the queue, as they were found, and when they are to be found again.
    serving: Vec<String>,
    next_roll: Instant,
    /// When it looks for copies again.
    next_check: Instant,
}

/// What is known of a lane from one look to the next.
#[derive(Default)]
struct LaneShares {
    shares: Shares,
    /// Up to where it had delivered; `None`: it was not looked at before.
    delivered: Option<u64>,
    /// The last key that was looked up, if there were too many for one look.
    last: Option<FairnessKey>,
}

impl LaneShares {
    /// Of the keys that are owed jobs, those whose first job is known to stand near, with how many are moved and from
    /// where on; and those of which that is to be looked up, as many as one look does. The next look goes on behind
    /// these.
    fn sort(&mut self, owed: BTreeMap<FairnessKey, Owed>, beyond: u64) -> (VecDeque<Wanted>, Vec<(FairnessKey, Owed)>) {
        let (mut wanted, mut unknown) = (VecDeque::new(), Vec::new());
        for (key, owed) in owed {
            match owed {
                Owed { is_near: false, if_far: 1.., .. } => unknown.push((key, owed)),
                Owed { is_near: true, if_near: 1.., .. } => {
                    wanted.push_back(Wanted { key, jobs: owed.if_near, from: beyond });
                }
                _ => {}
            }
        }
        let first = self.last.take().map_or(0, |last| unknown.partition_point(|(key, _)| *key <= last));
        if unknown.len() > LOOKUPS {
            let first = first % unknown.len();
            unknown.rotate_left(first);
            unknown.truncate(LOOKUPS);
            self.last = unknown.last().map(|(key, _)| key.clone());
        }
        (wanted, unknown)
    }
}

/// How many jobs of each key in a lane were delivered: from the lane, and returned ones.
pub(crate) type Served = HashMap<(Priority, FairnessKey), [u64; 2]>;

/// What each node last said: since when it counts, and what.
pub(crate) type Answers = HashMap<String, (i64, Served)>;

/// What all nodes were delivered since they were last asked, by what they have counted, which is kept in `answers`.
pub(crate) fn served_since(answers: &mut Answers, said: Vec<DeliveryCounts>) -> Served {
    let mut served = Served::new();
    let before = std::mem::take(answers);
    for DeliveryCounts { node, since_ms, of, by: _ } in said {
        let known = before.get(&node).filter(|(since, _)| *since == since_ms).map(|(_, counts)| counts);
        let counts = of.into_iter().map(|count| {
            let DeliveryCount { priority, key, from_lane, returned } = count;
            ((priority, key), [from_lane, returned])
        });
        let counts: Served = counts.collect();
        for (key, now) in &counts {
            let before = known.and_then(|known| known.get(key)).copied().unwrap_or_default();
            let of = served.entry(key.clone()).or_default();
            (0..2).for_each(|way| of[way] += now[way].saturating_sub(before[way]));
        }
        answers.insert(node, (since_ms, counts));
    }
    // A node that did not answer in time is heard the next time.
    for (node, known) in before {
        answers.entry(node).or_insert(known);
    }
    served
}

/// From which sequence on jobs do not begin soon by themselves; at the last look the lane had delivered up to `before`.
fn beyond(before: u64, delivered: u64) -> u64 {
    let advance = delivered.saturating_sub(before);
    delivered + (NEAR * advance).max(NEAR_AT_LEAST)
}

impl Fairness {
    async fn keep_looking(&mut self) {
        let mut tick = ticks(LOOK_EVERY);
        loop {
            tick.tick().await;
            self.forwarder.queue.deliveries.forget_unasked(Instant::now());
            if let Err(error) = self.look().await {
                let queue = &self.forwarder.queue.name;
                tracing::debug!(%queue, "fairness looks again later: {}", error.with_causes());
            }
        }
    }

    async fn look(&mut self) -> Result<(), Error> {
        let until = Instant::now() + LOOK_EVERY;
        let long = self.forwarder.queue.deliveries.longer_than(LONG);
        let has_copies = self.has_copies().await?;
        let is_idle = (long.is_empty() && !has_copies) || self.forwarder.ports.is_draining();
        if is_idle || !self.is_first().await? {
            self.lanes.clear();
            return Ok(());
        }
        if has_copies {
            self.next_check = Instant::now() + CHECK_EVERY;
            if self.forwarder.go_on_with_copies(COPIES).await? {
                self.next_check = Instant::now();
            }
        }
        let waiting = self.waiting(long).await?;
        self.lanes.retain(|priority, _| waiting.contains_key(priority));
        if waiting.is_empty() {
            return Ok(());
        }
        let served = self.served().await?;
        for (priority, waiting) in waiting {
            self.look_at(priority, waiting, &served, until).await?;
        }
        Ok(())
    }

    /// Whether a copy of a job of this queue is stored; asked now and then.
    async fn has_copies(&mut self) -> Result<bool, Error> {
        if Instant::now() < self.next_check {
            return Ok(false);
        }
        let found = self.forwarder.ports.backbone.next_copy(&self.forwarder.queue.name, 1).await?;
        if found.is_none() {
            self.next_check = Instant::now() + CHECK_EVERY;
        }
        Ok(found.is_some())
    }

    /// Whether this node is the first by name of those that serve the queue. Two that are, for a while, do no harm.
    async fn is_first(&mut self) -> Result<bool, Error> {
        let node = &**self.forwarder.ports.node();
        if Instant::now() >= self.next_roll {
            let present = self.forwarder.ports.backbone.nodes().present(now()).await?;
            let serves = |node: &Presence| node.serves(&self.forwarder.queue.name);
            self.serving = present.into_iter().filter(serves).map(|node| node.node).collect();
            self.next_roll = Instant::now() + ROLL_EVERY;
        }
        Ok(is_first_of(self.serving.iter().map(String::as_str), node))
    }

    /// The jobs of each key in those of these lanes that are long and have jobs of several keys.
    async fn waiting(&self, lanes: Vec<Priority>) -> Result<BTreeMap<Priority, BTreeMap<FairnessKey, u64>>, Error> {
        let (queue, backbone) = (&self.forwarder.queue, &self.forwarder.ports.backbone);
        let mut waiting = BTreeMap::new();
        for priority in lanes {
            let keys = backbone.keys_in_lane(&queue.name, priority.into(), queue.policy.fair_by).await?;
            if keys.values().sum::<u64>() <= LONG {
                queue.deliveries.is_short(priority);
            } else if keys.len() > 1 {
                waiting.insert(priority, keys);
            }
        }
        Ok(waiting)
    }

    async fn served(&mut self) -> Result<Served, Error> {
        let asked = self.serving.clone();
        let nodes = self.forwarder.ports.backbone.nodes();
        let said = nodes.ask_deliveries(&self.forwarder.queue.name, asked, SAY_WITHIN).await?;
        Ok(served_since(&mut self.answers, said))
    }

    async fn look_at(
        &mut self,
        priority: Priority,
        waiting: BTreeMap<FairnessKey, u64>,
        served: &Served,
        until: Instant,
    ) -> Result<(), Error> {
        let (queue, ports) = (&self.forwarder.queue, &self.forwarder.ports);
        let place = Lane::new(&queue.name, priority);
        let Some(delivered) = ports.backbone.delivered_in(&place).await? else { return Ok(()) };
        let lane = self.lanes.entry(priority).or_default();
        let counted = waiting.into_iter().map(|(key, waiting)| {
            let [served, moved_served] = served.get(&(priority, key.clone())).copied().unwrap_or_default();
            let weight = ports.policies().weight_of(&key);
            (key, Counted { waiting, served, moved_served, weight })
        });
        let owed = lane.shares.look(&counted.collect());
        let Some(before) = lane.delivered.replace(delivered) else { return Ok(()) };
        let beyond = beyond(before, delivered);
        let Some(head) = ports.backbone.next_in_lane(&place, None, delivered + 1).await? else {
            return Ok(());
        };
        let wanted = self.wanted(priority, owed, delivered, beyond).await?;
        // Before the lane's head, so that it comes first of the two.
        let ranked_from = head.message.at.minus(Duration::from_millis(1));
        let margin = (beyond - delivered) / 2;
        let moved = self.forwarder.forward(forward::Lane { priority, margin, ranked_from }, wanted, until).await;
        let lane = self.lanes.entry(priority).or_default();
        for (key, jobs) in moved? {
            lane.shares.moved(&key, jobs);
        }
        Ok(())
    }

    /// How many jobs of which keys are to be moved. Where the first job of a key stands is looked up unless what was
    /// delivered says that it is served.
    async fn wanted(
        &mut self,
        priority: Priority,
        owed: BTreeMap<FairnessKey, Owed>,
        delivered: u64,
        beyond: u64,
    ) -> Result<VecDeque<Wanted>, Error> {
        let lane = self.lanes.entry(priority).or_default();
        let (mut wanted, unknown) = lane.sort(owed, beyond);
        let (place, backbone) = (&Lane::new(&self.forwarder.queue.name, priority), &self.forwarder.ports.backbone);
        let lookups = unknown.into_iter().map(|(key, owed)| async move {
            let first = backbone.next_in_lane(place, Some(&key), delivered + 1).await?;
            let first = first.map(|job| job.message.sequence);
            Ok::<_, Error>(first.map(|first| {
                let jobs = if first < beyond { owed.if_near } else { owed.if_far };
                Wanted { key, jobs, from: first.max(beyond) }
            }))
        });
        let found: Vec<Result<Option<Wanted>, Error>> =
            futures_util::stream::iter(lookups).buffered(forward::AT_ONCE).collect().await;
        for found in found {
            wanted.extend(found?.filter(|wanted| wanted.jobs > 0));
        }
        Ok(wanted)
    }
}

#[cfg(test)]
mod tests;
