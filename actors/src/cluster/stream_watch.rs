//! Looks whether the streams that this node needs are still there, and as they should be: for `/readyz` and `health`.
//!
//! A node brings its streams into shape when it starts. What others do to them afterwards shows late or not at all: a
//! job in a lane that drops its oldest messages is lost without a word. It looks at one stream at a time, at a steady
//! pace, so that it costs the same however many queues there are; at the buckets of keys, of recurring schedules and of
//! steps every five seconds.
//!
//! A stream that was deleted is gone with its messages, and a person has to know. But jobs go on: a stream that decides
//! nothing is made again, empty, once it has been missing for two seconds; the log, an event, the audit, a metric and
//! `health` say so. A bucket that decides what may run is not, nor is anything while the bucket of run records is gone:
//! then the servers have perhaps lost their storage, and it may come back.
//!
//! The stream of handlers' last replies is in the memory of a server, and gone after each restart of it. It is made
//! again without further ado: what was in it matters for two minutes, and nothing is lost without it but time.
//!
//! `findings` judges what was found, and has the rules above.

use std::sync::Arc;
use std::time::{Duration, Instant};

use longshore_backbone::WantedStream;
use longshore_backbone::stream_faults::StreamFault;
use serde_json::json;

use crate::audit::Audit;
use crate::cluster::Watcher;
use crate::queue::served::ServedQueues;
use crate::runtime::now;
use crate::runtime::supervision::{LoopEnd, ticks};

mod findings;

use findings::{Findings, Look, Stream};

/// The pace: one question. With one queue each stream has its turn every 10 s.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// How often the log says that there is no room for keys.
const SAID_AGAIN_AFTER: Duration = Duration::from_secs(60);

#[derive(Clone)]
pub(crate) struct StreamWatchPart {
    pub(crate) watcher: Watcher,
    pub(crate) audit: Arc<Audit>,
    /// The queues that this node serves: each has streams of its own.
    pub(crate) queues: Arc<ServedQueues>,
}

struct Watch {
    part: StreamWatchPart,
    /// The streams that the node needs.
    wanted: Vec<WantedStream>,
    findings: Findings,
    /// When the log last said that there is no room for keys.
    said_short: Option<Instant>,
}

pub(crate) async fn run(part: StreamWatchPart) -> LoopEnd {
    let mut tick = ticks(LOOK_EVERY);
    let mut watch = Watch { part, wanted: Vec::new(), findings: Findings::default(), said_short: None };
    let mut queues = None;
    for turn in 0_usize.. {
        tick.tick().await;
        let served = watch.part.queues.names();
        if queues.as_ref() != Some(&served) {
            watch.want(watch.part.watcher.backbone.wanted_streams(served.iter()));
            queues = Some(served);
        }
        watch.take_turn(turn).await;
    }
    Ok(())
}

impl Watch {
    fn want(&mut self, wanted: Vec<WantedStream>) {
        self.findings.want(wanted.iter().map(Stream::of).collect());
        self.wanted = wanted;
    }

    async fn take_turn(&mut self, turn: usize) {
        self.look(self.findings.turn(turn)).await;
        let names = self.part.watcher.backbone.names();
        let buckets = ["concurrency", "control", "schedules", "checkpoints"].map(|bucket| names.bucket_stream(bucket));
        if let Some(number) = self.findings.bucket_turn(turn, &buckets) {
            self.look(number).await;
        }
        if let Some(number) = self.findings.extra_turn(turn, &self.part.watcher.backbone.unanswered()) {
            self.look(number).await;
        }
        let mut faults = self.findings.report(Instant::now());
        faults.warnings.extend(self.short_of_room());
        self.part.watcher.health.streams.set(faults);
    }

    /// The buckets that have no room for new keys, in words; in the log once a minute.
    fn short_of_room(&mut self) -> Vec<String> {
        let backbone = &self.part.watcher.backbone;
        let names = backbone.names();
        let all = [
            (
                backbone.concurrency_space(),
                "concurrency",
                "jobs of types that are ordered or have an on_busy wait until there is; raise \
                 storage.concurrency_max_bytes",
            ),
            (
                backbone.control_space(),
                "control",
                "jobs with other limit keys wait until there is; raise storage.control_max_bytes",
            ),
            (
                backbone.checkpoints_space(),
                "checkpoints",
                "new steps are refused until runs with steps have ended for good",
            ),
        ];
        let short = all.into_iter().filter(|(space, ..)| space.is_short()).map(|(_, bucket, what)| {
            let bucket = names.bucket(bucket);
            format!("bucket {bucket} has no room for more keys: {what}")
        });
        let short: Vec<String> = short.collect();
        self.part.watcher.metrics.key_buckets_full.set(i64::try_from(short.len()).unwrap_or(i64::MAX));
        if !short.is_empty() && self.said_short.is_none_or(|at| at.elapsed() >= SAID_AGAIN_AFTER) {
            self.said_short = Some(Instant::now());
            short.iter().for_each(|text| tracing::warn!("{text}"));
        }
        short
    }

    /// Looks at one stream. If no server answers for it nothing new is known: its consumer and its writes will show it.
    async fn look(&mut self, number: usize) {
        let wanted = self.wanted[number].clone();
        let name = wanted.name();
        let inspected = match self.part.watcher.backbone.inspect(&wanted).await {
            Ok(inspected) => inspected,
            Err(error) => return tracing::debug!(stream = name, "cannot be looked at: {error}"),
        };
        match self.findings.found(number, inspected, Instant::now()) {
            Look::Right | Look::StillWrong => {}
            Look::RightAgain => tracing::info!(stream = name, "the stream is as it should be again"),
            Look::Wrong(text) if wanted.is_dispensable() => tracing::info!("{text}"),
            Look::Wrong(text) => tracing::warn!("{text}"),
            Look::Remake if self.may_remake().await => self.remake(&wanted).await,
            Look::Remake => {}
        }
    }

    /// Whether the records are there: else more is gone than a stream.
    async fn may_remake(&self) -> bool {
        let backbone = &self.part.watcher.backbone;
        let records = backbone.names().bucket_stream("runs");
        let Some(records) = self.wanted.iter().find(|wanted| wanted.name() == records) else { return false };
        matches!(backbone.inspect(records).await, Ok(found) if found.fault != Some(StreamFault::Missing))
    }

    async fn remake(&mut self, wanted: &WantedStream) {
        let (name, at) = (wanted.name(), now());
        let first = match self.part.watcher.backbone.remake(wanted, at).await {
            Ok(Some(first)) => first,
            // Another node has made it, and said so.
            Ok(None) => return,
            Err(error) if wanted.is_dispensable() => {
                self.findings.is_refused(name);
                return tracing::debug!(stream = name, "cannot be made again: {}", error.with_causes());
            }
            Err(error) => {
                return tracing::warn!(stream = name, "cannot be made again, trying again: {}", error.with_causes());
            }
        };
        if wanted.is_dispensable() {
            return tracing::info!(stream = name, "made again: it had been deleted, or went with its server");
        }
        let held = self.findings.held(name, Instant::now());
        let lost = held.map_or_else(String::new, |(messages, ago)| {
            format!("; it held {messages} messages when it was last looked at, {} s before", ago.as_secs())
        });
        let text = format!("stream {name} had been deleted and was made again, empty, at {at}{lost}");
        tracing::warn!(stream = name, first_sequence = first, "{text}");
        self.findings.is_remade(name, text, Instant::now());
        self.part.watcher.metrics.streams_remade.inc();
        let held = held.map(|(messages, _)| messages);
        let details = json!({"stream": name, "first_sequence": first, "messages_before": held});
        self.part.watcher.system_events.publish("stream_remade", details.clone()).await;
        self.part.audit.done_by_itself("streams.remake", &details).await;
    }
}
