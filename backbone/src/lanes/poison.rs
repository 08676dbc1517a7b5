//! Messages that the client library cannot read. They are found among the deliveries that are not acknowledged, copied
//! byte for byte, and deleted from their stream. Also recreates consumers that were deleted.
//!
//! A connection that receives such a message ends, and the messages behind it are lost with it until the lease runs
//! out. So after every loss the pending deliveries are scanned, by a read that parses no header. The broken ones go to
//! the dead letters ([`Poison`] says in which form). Where there is one there are mostly more, so the jobs behind are
//! scanned as well, for as long as any are found. A sound pending message that no node holds was lost with the
//! connection: it is returned (NAK), and the server redelivers it at once.

use std::ops::RangeInclusive;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use async_nats::Subject;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures_util::StreamExt as _;
use longshore_domain::SmolStr;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

use crate::Backbone;
use crate::cluster::questions::{Question, Questions};
use crate::error::Error;
use crate::lanes::custody::NAK;
use crate::lanes::delivery::{AckToken, Delivery};
use crate::messages::get;
use crate::messages::raw::{self, Raw};
use crate::messages::refusal::Refusal;
use crate::messages::request::{self, json};
use crate::streams::{provision, shape};

/// In a dead letter: all header bytes of a job whose headers cannot be read, in base64.
pub const HEADERS_BASE64: &str = "Longshore-Headers-Base64";
/// Longer headers are not kept like that: the dead letter's headers hold its record, and the server's limit is 64 KiB.
const MAX_KEPT: usize = 8 * 1024;

const AT_ONCE: usize = 64;
/// How many jobs behind the last broken one are scanned.
const AHEAD: u64 = 256;
/// How long the other nodes have to say what they hold.
const SAY_WITHIN: Duration = Duration::from_millis(1_500);
/// How long a node that is not known yet has to say it.
const UNKNOWN_SAY_WITHIN: Duration = Duration::from_millis(50);
const NO_CONSUMER: u64 = 10_014;

/// A message that cannot be read.
#[derive(Debug)]
pub struct Poison {
    /// What cannot be read in it.
    pub reason: String,
    /// The message as a delivery: with the headers that can be read, and an ack token that deletes it.
    pub delivery: Delivery,
}

/// The pending deliveries of a lane's consumer when it was scanned.
#[derive(Debug)]
pub struct Pending {
    stream: SmolStr,
    consumer: &'static str,
    /// The consumer's own sequence at that moment, which a NAK must name.
    delivered: u64,
    sound: Vec<u64>,
}

#[derive(Deserialize)]
pub(super) struct ConsumerInfo {
    pub(super) delivered: Option<ConsumerPosition>,
    ack_floor: Option<ConsumerPosition>,
    #[serde(default)]
    pub(super) num_ack_pending: u64,
    #[serde(default)]
    pub(super) num_waiting: u64,
    error: Option<Refusal>,
}

#[derive(Deserialize)]
pub(super) struct ConsumerPosition {
    pub(super) consumer_seq: u64,
    stream_seq: u64,
}

/// The question of a node to the others: which of these they hold.
#[derive(Serialize, Deserialize)]
struct Asked {
    node: String,
    stream: String,
    from: u64,
    to: u64,
}

#[derive(Serialize, Deserialize)]
struct HeldAnswer {
    node: String,
    /// `None`: it is returning deliveries itself; ask again.
    held: Option<Vec<u64>>,
}

impl Backbone {
    /// The streams from which jobs of these queues come, the stream of due jobs included.
    pub fn job_streams<'q>(&self, queues: impl Iterator<Item = &'q longshore_domain::Queue>) -> Vec<SmolStr> {
        let lanes = queues
            .flat_map(|queue| longshore_domain::QueueLane::all().map(|lane| self.names().lane_stream(queue, lane)));
        lanes.chain([self.names().schedules_stream()]).map(SmolStr::from).collect()
    }

    fn consumer_of(&self, stream: &str) -> &'static str {
        if stream == self.names().schedules_stream() { shape::DUE_CONSUMER } else { shape::LANE_CONSUMER }
    }

    /// Up to which sequence the messages of a stream of jobs were delivered; `None`: the stream has no consumer, or
    /// what was answered does not say it.
    ///
    /// # Errors
    /// The server did not answer.
    pub async fn position_in(&self, stream: &str) -> Result<Option<u64>, Error> {
        Ok(self.consumer_info(stream).await?.delivered.map(|delivered| delivered.stream_seq))
    }

    pub(super) async fn consumer_info(&self, stream: &str) -> Result<ConsumerInfo, Error> {
        let subject = format!("{}.CONSUMER.INFO.{stream}.{}", self.api(), self.consumer_of(stream));
        request::ask(self.control(), subject, Bytes::new()).await
    }

    /// Recreates a consumer for which no server answered, if it was deleted; says whether it was. Else it has no
    /// leader, or no server could be reached.
    ///
    /// # Errors
    /// The server did not answer, or refused.
    pub async fn restore(&self, stream: &str) -> Result<bool, Error> {
        match self.consumer_info(stream).await?.error {
            Some(refusal) if refusal.err_code == NO_CONSUMER => {}
            _ => return Ok(false),
        }
        let wanted = match self.consumer_of(stream) {
            shape::DUE_CONSUMER => shape::due_consumer(self.names(), self.storage()),
            _ => shape::lane_consumer(self.storage()),
        };
        provision::consumer(&self.jetstream(), stream, wanted).await?;
        Ok(true)
    }

    /// Scans the messages that a stream of jobs has delivered and that are not acknowledged, and further if any is
    /// broken; the broken ones go to `found`. `None`: nothing is pending.
    ///
    /// # Errors
    /// The server did not answer.
    pub async fn find_poison(&self, stream: &str, found: &mpsc::Sender<Poison>) -> Result<Option<Pending>, Error> {
        let info = self.consumer_info(stream).await?;
        let (Some(delivered), Some(floor)) = (info.delivered, info.ack_floor) else { return Ok(None) };
        if info.num_ack_pending == 0 {
            return Ok(None);
        }
        let mut pending = Pending {
            stream: SmolStr::from(stream),
            consumer: self.consumer_of(stream),
            delivered: delivered.consumer_seq,
            sound: Vec::new(),
        };
        let mut at = floor.stream_seq + 1;
        let mut until = delivered.stream_seq;
        while at <= until {
            let read = self.read_from(stream, at, until).await?;
            let Some(next) = read.last().map(|raw| raw.sequence + 1) else { break };
            at = next;
            for raw in read.into_iter().filter(|raw| self.names().read_job(&raw.subject).is_some()) {
                match raw::fault(&raw.subject, &raw.headers) {
                    Some(reason) => {
                        until = until.max(raw.sequence + AHEAD);
                        // The receiver ends with the node.
                        let _ = found.send(self.poison(stream, raw, reason)).await;
                    }
                    None if raw.sequence <= delivered.stream_seq => pending.sound.push(raw.sequence),
                    None => {}
                }
            }
        }
        Ok(Some(pending))
    }

    /// The next messages from `at` on, in order: some of them, or none if there are no more up to `until`.
    async fn read_from(&self, stream: &str, at: u64, until: u64) -> Result<Vec<Raw>, Error> {
        if self.consumer_of(stream) == shape::LANE_CONSUMER {
            let last = until.min(at + AT_ONCE as u64 - 1);
            let get = |sequence| get::at(self.control(), stream, sequence);
            let read = futures_util::stream::iter(at..=last).map(get);
            let read: Vec<_> = read.buffered(AT_ONCE).collect().await;
            let mut there = Vec::with_capacity(read.len());
            for raw in read {
                there.extend(raw?);
            }
            if !there.is_empty() || last == until {
                return Ok(there);
            }
        }
        // Skips the gaps of messages that are done with, or not due.
        let filter =
            if self.consumer_of(stream) == shape::LANE_CONSUMER { ">".to_owned() } else { self.names().due_all() };
        let next = get::next(self.control(), stream, &filter, at).await?;
        Ok(next.filter(|raw| raw.sequence <= until).into_iter().collect())
    }

    fn poison(&self, stream: &str, raw: Raw, reason: String) -> Poison {
        let mut headers = raw::readable(&raw.headers);
        if !raw.headers.is_empty() && raw.headers.len() <= MAX_KEPT {
            headers.insert(HEADERS_BASE64, STANDARD.encode(&raw.headers));
        }
        let (subject, request) = self.deletion(stream, raw.sequence);
        let ack_token = AckToken::to_delete(subject, request, false);
        Poison { reason, delivery: Delivery::of_raw(raw, stream, headers, ack_token) }
    }

    /// Returns the pending deliveries that no node holds: they were lost with a connection. All of `nodes` must have
    /// said what they hold before any delivery is returned. Says how many were returned; `None`: not all nodes have
    /// answered, another node does it first, or this one has not read its own deliveries in time.
    ///
    /// # Errors
    /// The other nodes cannot be asked.
    pub async fn nak_lost(&self, pending: Pending, node: &str, nodes: &[String]) -> Result<Option<usize>, Error> {
        let (Some(from), Some(to)) = (pending.sound.first(), pending.sound.last()) else { return Ok(Some(0)) };
        let (from, to) = (*from, *to);
        let custody = self.custody(&pending.stream);
        custody.begin_asking();
        let elsewhere = self.held_elsewhere(&pending.stream, from..=to, node, nodes).await;
        let (Ok(Some(mut held)), Some(here)) = (elsewhere, self.held(&pending.stream, from, to).await) else {
            custody.stop_asking();
            return Ok(None);
        };
        held.extend(here);
        if !custody.may_nak() {
            return Ok(None);
        }
        let held: std::collections::HashSet<u64> = held.into_iter().collect();
        let lost: Vec<u64> = pending.sound.iter().copied().filter(|sequence| !held.contains(sequence)).collect();
        let Pending { stream, consumer, delivered, .. } = &pending;
        for sequence in &lost {
            let subject = format!("$JS.ACK.{stream}.{consumer}.1.{sequence}.{delivered}.0.0");
            self.control().publish(subject, Bytes::from_static(NAK)).await;
        }
        Ok(Some(lost.len()))
    }

    /// The sequences of a stream that the other nodes hold within these bounds; `None` if one of `nodes` has not
    /// answered in time.
    async fn held_elsewhere(
        &self,
        stream: &str,
        sequences: RangeInclusive<u64>,
        node: &str,
        nodes: &[String],
    ) -> Result<Option<Vec<u64>>, Error> {
        let inbox = self.control().new_inbox();
        let mut answers = self.control().subscribe(inbox.clone()).await?;
        let (from, to) = sequences.into_inner();
        let question = json(&Asked { node: node.to_owned(), stream: stream.to_owned(), from, to });
        self.control().publish_with_reply(self.names().held().into(), inbox, question).await;
        let asked = Instant::now();
        let mut missing: Vec<&str> = nodes.iter().map(String::as_str).filter(|other| *other != node).collect();
        let mut held = Vec::new();
        loop {
            // A node that has just started is not known yet, but says what it holds as well.
            let wait = if missing.is_empty() { UNKNOWN_SAY_WITHIN } else { SAY_WITHIN };
            let left = wait.saturating_sub(asked.elapsed());
            let Ok(Some(message)) = tokio::time::timeout(left, answers.next()).await else { break };
            let Ok(said) = serde_json::from_slice::<HeldAnswer>(&message.payload) else { continue };
            missing.retain(|other| *other != said.node);
            match said.held {
                Some(theirs) => held.extend(theirs),
                None => return Ok(None),
            }
        }
        if !missing.is_empty() {
            tracing::debug!(stream, "did not say what they hold: {}", missing.join(", "));
        }
        Ok(missing.is_empty().then_some(held))
    }

    /// How many messages this node has deleted because they cannot be read.
    pub fn poison_removed(&self) -> u64 {
        self.0.removed.load(Ordering::Relaxed)
    }

    /// Listens for other nodes' questions: which deliveries of a stream are held here.
    ///
    /// # Errors
    /// The subject cannot be subscribed to.
    pub async fn custody_questions(&self) -> Result<Questions, Error> {
        self.nodes().listen(self.names().held()).await
    }

    /// Answers such a question, for the node of this name, once everything sent to this node is read; if that takes too
    /// long, it does not answer.
    pub async fn answer_custody(&self, question: Question, node: &str) {
        let Ok(Asked { node: other, stream, from, to }) = serde_json::from_slice(&question.payload) else { return };
        if other == node {
            return;
        }
        let held = if self.custody(&stream).lets_go_first(*other < *node) {
            let Some(held) = self.held(&stream, from, to).await else { return };
            Some(held)
        } else {
            None
        };
        self.nodes().answer(question, json(&HeldAnswer { node: node.to_owned(), held })).await;
    }
}

/// The last step of a broken message's way, or of a job that was copied out of its lane. If it fails, the message is
/// found again.
pub(crate) async fn delete(backbone: Backbone, subject: Subject, request: Bytes, is_copy: bool) {
    let what = if is_copy { "the copy of a job" } else { "a message that cannot be read" };
    match backbone.ask_to_delete(subject.to_string(), request).await {
        Ok(true) if !is_copy => drop(backbone.0.removed.fetch_add(1, Ordering::Relaxed)),
        // A copy, or another node was faster.
        Ok(_) => {}
        Err(error) => tracing::debug!("{what} is not deleted yet: {error}"),
    }
}
