//! Looks whether the streams that this node needs are still there, and as they should be: for `/readyz` and `health`.
//!
//! A node brings its streams into shape when it starts. What others do to them afterwards shows late or not at all: a
//! job in a lane that drops its oldest messages is lost without a word. It looks at one stream at a time, at a steady
//! pace, so that it costs the same however many queues there are.
//!
//! A stream that was deleted is gone with its messages, and a person has to know. But jobs go on: a stream that decides
//! nothing is made again, empty, once it has been missing for [`MISSING_FOR`]; the log, an event, the audit, a metric and
//! `health` say so. A bucket that decides what may run is not, nor is anything while the bucket of run records is gone:
//! then the servers have perhaps lost their storage, and it may come back.
//!
//! The stream of handlers' last replies is in the memory of a server, and gone after each restart of it. It is made again
//! without further ado: what was in it matters for two minutes, and nothing is lost without it but time.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use longshore_backbone::{Backbone, WantedStream};

use longshore_backbone::remake::Remade;
use longshore_backbone::shape::Difference;
use longshore_backbone::stream_faults::{Full, Inspected, StreamFault};
use serde_json::json;

use crate::api::audit::Audit;
use crate::cluster::system_events::SystemEvents;
use crate::metrics::Metrics;
use crate::queue::served::ServedQueues;
use crate::shared::health::{Health, StreamFaults};
use crate::shared::now;
use crate::supervision::LoopEnd;

/// The pace: one question. With one queue each stream has its turn every 10 s.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// How long a stream is missing before it is made again: a server that has just become the leader may not know yet of
/// all streams.
const MISSING_FOR: Duration = Duration::from_secs(2);
/// How long `health` warns of a stream that was made again.
const WARNED_FOR: Duration = Duration::from_secs(60 * 60);

/// What the watch of streams needs.
#[derive(Clone)]
pub(crate) struct Part {
    pub(crate) backbone: Backbone,
    pub(crate) health: Arc<Health>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) audit: Arc<Audit>,
    pub(crate) system_events: SystemEvents,
    /// The queues that this node serves: each has streams of its own.
    pub(crate) queues: Arc<ServedQueues>,
}

/// What is known of the streams, by name: no more of them than the node wants.
struct Watch {
    part: Part,
    wanted: Vec<WantedStream>,
    /// What is wrong, and since when.
    faults: BTreeMap<String, (StreamFault, Instant)>,
    /// Those that refused what was published to them when they were last looked at.
    full: BTreeMap<String, Full>,
    /// How many messages it held when that was last known.
    held: BTreeMap<String, (u64, Instant)>,
    /// What is said of those that were made again.
    remade: BTreeMap<String, (String, Instant)>,
    /// Dispensable ones that no server would make: tried again when it is their turn.
    refused: BTreeSet<String>,
}

/// Looks until the process ends.
pub(crate) async fn run(part: Part) -> LoopEnd {
    let mut tick = tokio::time::interval(LOOK_EVERY);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut queues = part.queues.names();
    let wanted = part.backbone.wanted_streams(queues.iter());
    let mut watch = Watch {
        part,
        wanted,
        faults: BTreeMap::new(),
        full: BTreeMap::new(),
        held: BTreeMap::new(),
        remade: BTreeMap::new(),
        refused: BTreeSet::new(),
    };
    for turn in 0_usize.. {
        tick.tick().await;
        let served = watch.part.queues.names();
        if served != queues {
            queues = served;
            watch.want(watch.part.backbone.wanted_streams(queues.iter()));
        }
        watch.take_turn(turn).await;
    }
    Ok(())
}

impl Watch {
    /// The node serves other queues now.
    fn want(&mut self, wanted: Vec<WantedStream>) {
        self.wanted = wanted;
        let is_wanted = |name: &String| self.wanted.iter().any(|wanted| wanted.name() == name);
        self.faults.retain(|name, _| is_wanted(name));
        self.full.retain(|name, _| is_wanted(name));
        self.held.retain(|name, _| is_wanted(name));
    }

    async fn take_turn(&mut self, turn: usize) {
        let next = self.wanted[turn % self.wanted.len()].clone();
        self.look(&next).await;
        // What is wrong has more turns: it is mended soon, and a node is ready soon after that.
        let unanswered = self.part.backbone.unanswered();
        let wrong: Vec<WantedStream> = self
            .wanted
            .iter()
            .filter(|wanted| {
                let is_wrong = self.faults.contains_key(wanted.name()) && !self.refused.contains(wanted.name());
                is_wrong || unanswered.iter().any(|stream| stream == wanted.name())
            })
            .cloned()
            .collect();
        if let Some(nth) = turn.checked_rem(wrong.len()) {
            self.look(&wrong[nth]).await;
        }
        self.remade.retain(|_, (_, at)| at.elapsed() < WARNED_FOR);
        self.part.health.set_streams(self.told());
    }

    /// Looks at one stream. If no server answers for it nothing new is known: its consumer and its writes will tell.
    async fn look(&mut self, wanted: &WantedStream) {
        let name = wanted.name();
        let Inspected { fault, messages, full } = match self.part.backbone.inspect(wanted).await {
            Ok(found) => found,
            Err(error) => return tracing::debug!(stream = name, "cannot be looked at: {error}"),
        };
        match full {
            Some(full) => self.full.insert(name.to_owned(), full),
            None => self.full.remove(name),
        };
        let now = Instant::now();
        let Some(fault) = fault else {
            self.refused.remove(name);
            self.held.insert(name.to_owned(), (messages, now));
            if self.faults.remove(name).is_some() {
                tracing::info!(stream = name, "the stream is as it should be again");
            }
            return;
        };
        let known = self.faults.get(name).filter(|(known, _)| *known == fault).map(|(_, since)| *since);
        let since = known.unwrap_or_else(|| {
            match wanted.is_dispensable() {
                true => tracing::info!("{}", in_words(wanted, &fault)),
                false => tracing::warn!("{}", in_words(wanted, &fault)),
            }
            now
        });
        let is_gone = fault == StreamFault::Missing;
        self.faults.insert(name.to_owned(), (fault, since));
        if is_gone && !wanted.decides() && now.duration_since(since) >= MISSING_FOR && self.may_remake().await {
            self.remake(wanted).await;
        }
    }

    /// Whether the records are there: else more is gone than a stream.
    async fn may_remake(&self) -> bool {
        let records = self.part.backbone.names().bucket_stream("runs");
        let Some(records) = self.wanted.iter().find(|wanted| wanted.name() == records) else { return false };
        matches!(self.part.backbone.inspect(records).await, Ok(found) if found.fault != Some(StreamFault::Missing))
    }

    async fn remake(&mut self, wanted: &WantedStream) {
        let (name, at) = (wanted.name(), now());
        let first = match self.part.backbone.remake(wanted, at).await {
            Ok(Remade::Anew(first)) => first,
            // Another node has made it, and said so.
            Ok(Remade::There) => return,
            Err(error) if wanted.is_dispensable() => {
                self.refused.insert(name.to_owned());
                return tracing::debug!(stream = name, "cannot be made again: {}", error.with_causes());
            }
            Err(error) => {
                return tracing::warn!(stream = name, "cannot be made again, trying again: {}", error.with_causes());
            }
        };
        if wanted.is_dispensable() {
            return tracing::info!(stream = name, "made again: it had been deleted, or went with its server");
        }
        let held = self.held.get(name).map(|(messages, at)| (*messages, at.elapsed().as_secs()));
        let lost = held.map_or_else(String::new, |(messages, ago)| {
            format!("; it held {messages} messages when it was last looked at, {ago} s before")
        });
        let text = format!("stream {name} had been deleted and was made again, empty, at {at}{lost}");
        tracing::warn!(stream = name, first_sequence = first, "{text}");
        self.remade.insert(name.to_owned(), (text, Instant::now()));
        self.part.metrics.streams_remade.inc();
        let held = held.map(|(messages, _)| messages);
        let details = json!({"stream": name, "first_sequence": first, "messages_before": held});
        self.part.system_events.publish("stream_remade", details.clone()).await;
        self.part.audit.done_by_itself("streams.remake", &details).await;
    }

    fn told(&self) -> StreamFaults {
        let mut told = StreamFaults::default();
        for (name, (fault, _)) in &self.faults {
            let Some(wanted) = self.wanted.iter().find(|wanted| wanted.name() == name) else { continue };
            let list = match fault {
                _ if wanted.is_dispensable() => &mut told.warnings,
                StreamFault::Missing | StreamFault::Unfit(_) => &mut told.reasons,
                StreamFault::OtherBounds(_) => &mut told.warnings,
            };
            list.push(in_words(wanted, fault));
        }
        told.warnings.extend(self.full.iter().map(|(name, Full { messages, bytes })| {
            format!("stream {name} is full: it holds {messages} messages, {bytes} bytes, and refuses what is published to it")
        }));
        told.warnings.extend(self.remade.values().map(|(text, _)| text.clone()));
        told
    }
}

fn in_words(wanted: &WantedStream, fault: &StreamFault) -> String {
    let stream = wanted.name();
    match fault {
        StreamFault::Missing if wanted.is_dispensable() => {
            format!(
                "stream {stream} is gone: until a node makes it again, a handler's reply that is lost with a connection ends its attempt at its time limit"
            )
        }
        StreamFault::Missing if wanted.decides() => {
            format!(
                "stream {stream} is gone, and with it what it says about jobs: restore it from a backup, or restart a node, which makes it again, empty"
            )
        }
        StreamFault::Missing => {
            format!("stream {stream} is gone: a node makes it again, empty, as long as there are run records")
        }
        StreamFault::Unfit(differences) => {
            format!(
                "stream {stream} was altered: {}; a node sets it right at its start, if it can",
                listed(differences)
            )
        }
        StreamFault::OtherBounds(differences) => {
            format!("stream {stream} has other bounds than this node's settings: {}", listed(differences))
        }
    }
}

fn listed(differences: &[Difference]) -> String {
    let each =
        differences.iter().map(|Difference { setting, found, wanted }| format!("{setting} is {found}, not {wanted}"));
    each.collect::<Vec<_>>().join(", ")
}
