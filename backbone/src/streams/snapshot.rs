//! Backup and restore of a namespace: JetStream's snapshots of streams, the order in which they are taken, and what
//! stands still meanwhile.
//!
//! The order is `rank`'s, and docs/backup.md gives the reasons. A snapshot is a file of the server's own making
//! (a tar, compressed), which comes in chunks and goes to disk as it comes: no stream is ever held in memory.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::time::{Duration, Instant};

use async_nats::{HeaderMap, HeaderName, HeaderValue, Request, RequestErrorKind};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use longshore_domain::protocol::{Repeat, on_repeat};
use longshore_domain::{QueueLane, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::client::Client;
use crate::connection::link::Lost;
use crate::error::{Cause, Error};
use crate::messages::refusal::{NO_PEERS, Refusal};
use crate::messages::request::{self, Stored};
use crate::messages::{get, raw, scan};
use crate::runs::claims::Claim;
use crate::runs::fingerprint::hex;
use crate::streams::info;
use crate::wire::header::{self, names};
use crate::wire::record;
use crate::wire::subject::Names;

/// Size of a chunk in bytes, both ways; the server has up to 8 MiB of them under way.
const CHUNK: usize = 128 * 1024;
/// How long a server may take over one chunk, or an answer. It gives up itself after five seconds.
const CHUNK_WITHIN: Duration = Duration::from_secs(20);
/// How long servers that have just started may seem away to others, and the wait between two tries.
const JOINED_WITHIN: Duration = Duration::from_secs(10);
const ASKED_AGAIN_AFTER: Duration = Duration::from_millis(250);
/// How long it may take until every server of a cluster knows which one awaits the chunks, and the wait between two
/// tries.
const KNOWN_WITHIN: Duration = Duration::from_secs(4);
const SENT_AGAIN_AFTER: Duration = Duration::from_millis(20);
/// How long a server may take to put a restored stream into service: it reads all of it.
const RESTORED_WITHIN: Duration = Duration::from_secs(600);

/// How long the record of a run is kept of which it is not known whether its job is there: longer than the job waits.
const OPEN_KEPT: Duration = Duration::from_secs(30 * 86_400);

/// A stream of the namespace, as a backup has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredStream {
    /// Its name.
    pub name: String,
    /// Its place in the order.
    rank: u32,
}

/// Streams up to this rank are one cut: nothing may move between them while they are read.
const LAST_OF_CUT: u32 = 10;
const EVENTS: u32 = 5;
const TIMES: u32 = 1;

/// The place of a stream in the order of a backup; `None`: a backup has no use for it, or it is not Longshore's.
///
/// What speaks of something else comes before it: it must find that as new as itself.
fn rank(names: &Names, stream: &str) -> Option<u32> {
    if let Some((_, lane)) = names.read_lane_stream(stream) {
        // Jobs go from lanes to the schedules or are parked, and from there to the lane of returned jobs.
        return Some(if lane == QueueLane::Returned { 3 } else { 0 });
    }
    let bucket = |name| names.bucket_stream(name);
    let order = [
        (names.schedules_stream(), TIMES),
        (names.parked_stream(), 2),
        (names.dlq_stream(), 4),
        (names.events_stream(), EVENTS),
        (bucket("schedules"), 6),
        (bucket("checkpoints"), 7),
        (bucket("concurrency"), 8),
        (bucket("idempotency"), 9),
        (bucket("runs"), LAST_OF_CUT),
        // No job rests on what follows: it is read once jobs go on.
        (bucket("control"), 11),
        (names.audit_stream(), 12),
    ];
    order.into_iter().find(|(name, _)| name == stream).map(|(_, rank)| rank)
}

impl StoredStream {
    /// Whether nothing may move between it and the others of the cut while they are read.
    pub fn is_of_cut(&self) -> bool {
        self.rank <= LAST_OF_CUT
    }

    /// Whether the server itself moves messages in it, when their time comes.
    pub fn has_times(&self) -> bool {
        self.rank == TIMES
    }
}

/// What a snapshot holds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    /// Size of its file in bytes.
    pub bytes: u64,
    /// SHA-256 of its file, in hexadecimal digits.
    pub sha256: String,
    /// Messages in the stream as the snapshot began.
    pub messages: u64,
    /// The stream's configuration, as the server has it.
    pub config: Value,
    /// The stream's state as the snapshot began, as the server has it.
    pub state: Value,
}

/// The last sequences of records and claims before a backup began: what a client was answered later may be there
/// without its job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Marks {
    /// Of run records.
    pub runs: u64,
    /// Of idempotency keys.
    pub keys: u64,
}

/// A due job, or a tick of a schedule, as a backup has it beside the snapshots.
#[derive(Debug, Serialize, Deserialize)]
pub struct Fired {
    subject: String,
    headers: Vec<(String, String)>,
    /// In base64.
    payload: String,
}

/// Hashes what goes through it.
struct Hashed<W> {
    to: W,
    sha: Sha256,
    bytes: u64,
}

impl<W: Write> Hashed<W> {
    fn new(to: W) -> Self {
        Self { to, sha: Sha256::new(), bytes: 0 }
    }

    fn take(&mut self, chunk: &[u8]) -> std::io::Result<()> {
        self.sha.update(chunk);
        self.bytes += chunk.len() as u64;
        self.to.write_all(chunk)
    }

    fn done(self) -> (u64, String) {
        (self.bytes, hex(&self.sha.finalize()))
    }
}

/// Size and SHA-256 of a file.
///
/// # Errors
/// It cannot be read.
pub fn checksum(mut file: impl Read) -> std::io::Result<(u64, String)> {
    let (mut hashed, mut chunk) = (Hashed::new(std::io::sink()), vec![0; CHUNK]);
    loop {
        match file.read(&mut chunk)? {
            0 => return Ok(hashed.done()),
            read => hashed.take(&chunk[..read])?,
        }
    }
}

fn failed(doing: &'static str, name: &str) -> impl Fn(Cause) -> Error {
    let name = name.to_owned();
    move |source| Error::Provision { doing, name: name.clone(), source }
}

impl Client {
    /// The streams of this namespace that a backup holds, in the order in which it takes them.
    ///
    /// # Errors
    /// JetStream does not answer.
    pub async fn stored_streams(&self) -> Result<Vec<StoredStream>, Error> {
        let names = self.listed("STREAM.NAMES", "streams").await.map_err(failed("list", "the streams"))?;
        let ranked = names.into_iter().filter_map(|name| Some(StoredStream { rank: rank(self.names(), &name)?, name }));
        let mut streams: Vec<StoredStream> = ranked.collect();
        streams.sort_by(|a, b| (a.rank, &a.name).cmp(&(b.rank, &b.name)));
        Ok(streams)
    }

    /// Has the server deliver nothing of a stream to anybody until then, or again from now on. Returns the shortest
    /// time that a pause has left by the server's clock; `None`: nobody reads that stream.
    ///
    /// # Errors
    /// The server refused, or did not answer.
    pub async fn pause_consumers(&self, stream: &str, until: Option<Timestamp>) -> Result<Option<Duration>, Error> {
        let failed = failed("pause the consumers of", stream);
        let body = until.map_or_else(|| json!({}), |until| json!({"pause_until": until}));
        let consumers = self.listed(&format!("CONSUMER.NAMES.{stream}"), "consumers").await.map_err(&failed)?;
        let mut shortest: Option<Duration> = None;
        for consumer in consumers {
            let asked = self.asked(&format!("CONSUMER.PAUSE.{stream}.{consumer}"), &body).await.map_err(&failed)?;
            let left = Duration::from_nanos(asked["pause_remaining"].as_u64().unwrap_or(0));
            shortest = Some(shortest.map_or(left, |shortest| shortest.min(left)));
        }
        Ok(shortest)
    }

    /// How many messages of a stream are with its readers.
    ///
    /// # Errors
    /// The server did not answer.
    pub async fn in_hands(&self, stream: &str) -> Result<u64, Error> {
        let failed = failed("read the consumers of", stream);
        let mut sum = 0;
        for consumer in self.listed(&format!("CONSUMER.NAMES.{stream}"), "consumers").await.map_err(&failed)? {
            let info =
                self.asked(&format!("CONSUMER.INFO.{stream}.{consumer}"), &Value::Null).await.map_err(&failed)?;
            sum += info["num_ack_pending"].as_u64().unwrap_or(0);
        }
        Ok(sum)
    }

    /// How far records and claims have come.
    ///
    /// # Errors
    /// The server did not answer.
    pub async fn marks(&self) -> Result<Marks, Error> {
        let last = async |bucket| self.last_sequence(&self.names().bucket_stream(bucket)).await;
        Ok(Marks { runs: last("runs").await?, keys: last("idempotency").await? })
    }

    async fn last_sequence(&self, stream: &str) -> Result<u64, Error> {
        let found = info::stream(self.link(), stream).await;
        let found = found.map_err(|error| failed("read", stream)(Box::new(error)))?;
        Ok(found.map_or(0, |found| found.state.last_seq))
    }

    /// Writes a snapshot of a stream as it comes.
    ///
    /// # Errors
    /// The server refused or stopped, a chunk was lost, or the snapshot cannot be written.
    pub async fn snapshot(&self, stream: &StoredStream, to: impl Write) -> Result<Snapshot, Error> {
        self.chunks(stream, to).await.map_err(failed("back up", &stream.name))
    }

    async fn chunks(&self, stream: &StoredStream, to: impl Write) -> Result<Snapshot, Cause> {
        let (link, inbox) = (self.link(), self.link().new_inbox());
        let mut made = link.connected();
        let mut chunks = link.subscribe(inbox.clone()).await?;
        // The consumers of lanes and schedules are made anew by nodes and deliver all that is there, as what was
        // acknowledged is gone. A webhook's has its position in the event log.
        let body = json!({"deliver_subject": inbox, "no_consumers": stream.rank != EVENTS, "chunk_size": CHUNK});
        let mut answer = self.asked(&format!("STREAM.SNAPSHOT.{}", stream.name), &body).await?;
        let mut hashed = Hashed::new(to);
        for number in 1.. {
            let next = async {
                tokio::select! {
                    chunk = chunks.next() => chunk,
                    // What was under way is lost.
                    _ = made.changed() => None,
                }
            };
            let chunk = tokio::time::timeout(CHUNK_WITHIN, next).await.map_err(|_| "the server sends nothing more")?;
            let chunk = chunk.ok_or(Lost)?;
            if chunk.payload.is_empty() {
                let is_whole = chunk.status.is_none_or(|status| status.is_success());
                if !is_whole {
                    return Err(chunk.description.unwrap_or_else(|| "the server stopped".to_owned()).into());
                }
                break;
            }
            hashed.take(&chunk.payload)?;
            // The last one has none: nothing is to follow.
            if let Some(reply) = chunk.reply {
                if reply.rsplit('.').next().and_then(|token| token.parse().ok()) != Some(number) {
                    return Err("a part of it was lost on its way".into());
                }
                link.publish(reply, Bytes::new()).await;
            }
        }
        let (bytes, sha256) = hashed.done();
        let (config, state) = (answer["config"].take(), answer["state"].take());
        Ok(Snapshot { bytes, sha256, messages: state["messages"].as_u64().unwrap_or(0), config, state })
    }

    /// The last sequence among the schedules and due jobs.
    ///
    /// # Errors
    /// The server did not answer.
    pub async fn last_schedule(&self) -> Result<u64, Error> {
        self.last_sequence(&self.names().schedules_stream()).await
    }

    /// What the server itself has moved among the schedules since that stream was at `sequence`, until now: a message
    /// is removed as its time comes, and a due job appended. A snapshot of that moment may lack both, with nats-server
    /// 2.15.1. They are read one by one, from the leader.
    ///
    /// # Errors
    /// The server did not answer, or `each` fails.
    pub async fn fired_since(
        &self,
        sequence: u64,
        mut each: impl FnMut(&Fired) -> std::io::Result<()>,
    ) -> Result<(), Error> {
        let (stream, due) = (self.names().schedules_stream(), self.names().due_all());
        let failed = failed("read what fell due in", &stream);
        // More falls due meanwhile, and may come faster than it can be read.
        let (mut from, last) = (sequence + 1, self.last_sequence(&stream).await?);
        while from <= last {
            let next = get::next(self.link(), &stream, &due, from).await?;
            let Some(message) = next else { break };
            let headers = header::without_servers(Some(&raw::readable(&message.headers)));
            let named = |(name, values): (&HeaderName, &Vec<HeaderValue>)| {
                values.iter().map(|value| (name.to_string(), value.to_string())).collect::<Vec<_>>()
            };
            let fired = Fired {
                subject: message.subject,
                headers: headers.iter().flat_map(named).collect(),
                payload: BASE64_STANDARD.encode(&message.payload),
            };
            each(&fired).map_err(|error| failed(error.into()))?;
            from = message.sequence + 1;
        }
        Ok(())
    }

    /// Has a restored cluster move such a message as if its time had just come. One that a snapshot has, too, does no
    /// harm: it is a second message of its run.
    ///
    /// # Errors
    /// It cannot be read, or the server did not confirm it.
    pub async fn fire(&self, fired: Fired) -> Result<(), Error> {
        let payload = BASE64_STANDARD.decode(&fired.payload);
        let payload = payload.map_err(|error| failed("restore a due job of", &fired.subject)(error.into()))?;
        let mut headers = HeaderMap::new();
        for (name, value) in &fired.headers {
            headers.append(name.as_str(), value.as_str());
        }
        request::publish(self.link(), fired.subject, headers, payload.into()).await.map(drop)
    }

    /// Makes a stream of a snapshot, on as many servers as `replicas` says or as before; returns how many messages it
    /// has.
    ///
    /// # Errors
    /// The server refused, for example because there is such a stream, or the snapshot cannot be read.
    pub async fn restore(
        &self,
        stream: &str,
        Snapshot { config, state, .. }: &Snapshot,
        replicas: Option<usize>,
        from: impl Read,
    ) -> Result<u64, Error> {
        let mut config = config.clone();
        if let Some(replicas) = replicas {
            config["num_replicas"] = replicas.into();
        }
        let body = json!({"config": config, "state": state});
        self.sent(stream, &body, from).await.map_err(failed("restore", stream))
    }

    /// Has a server await the snapshot, and returns its answer.
    async fn begun(&self, stream: &str, body: &Value) -> Result<Value, Cause> {
        let joined_by = Instant::now() + JOINED_WITHIN;
        let too_few = |error: &Cause| error.downcast_ref::<Refusal>().is_some_and(|why| why.err_code == NO_PEERS);
        loop {
            match self.asked(&format!("STREAM.RESTORE.{stream}"), body).await {
                Err(error) if too_few(&error) && Instant::now() < joined_by => {
                    tokio::time::sleep(ASKED_AGAIN_AFTER).await;
                }
                answer => return answer,
            }
        }
    }

    async fn sent(&self, stream: &str, body: &Value, mut from: impl Read) -> Result<u64, Cause> {
        let answer = self.begun(stream, body).await?;
        let to = answer["deliver_subject"].as_str().ok_or("the server does not say where to send it")?;
        let known_by = Instant::now() + KNOWN_WITHIN;
        let send = async |chunk: Bytes, within| loop {
            let request = Request::new().payload(chunk.clone()).timeout(Some(within));
            match self.link().request(to.to_owned(), request).await {
                // The answer to the request for it may overtake the news of where it is awaited: nobody got it yet.
                Err(error)
                    if request::kind(&error) == Some(RequestErrorKind::NoResponders) && Instant::now() < known_by =>
                {
                    tokio::time::sleep(SENT_AGAIN_AFTER).await;
                }
                answer => return answer,
            }
        };
        // As large as the server accepts; the last chunk is empty.
        let mut chunk = vec![0; CHUNK.min(self.link().server_info().max_payload)];
        loop {
            let read = from.read(&mut chunk)?;
            if read == 0 {
                break;
            }
            let answer = send(Bytes::copy_from_slice(&chunk[..read]), CHUNK_WITHIN).await?;
            if !answer.payload.is_empty() {
                checked(&answer.payload)?;
            }
        }
        let restored = checked(&send(Bytes::new(), RESTORED_WITHIN).await?.payload)?;
        Ok(restored["state"]["messages"].as_u64().unwrap_or(0))
    }

    /// Takes back, in restored records and claims from these marks on, that their jobs are durable: a job that was
    /// submitted while its lane was read is not in the backup. A repeat of the same submission then publishes it; a
    /// second message of a run does no harm. Returns how many runs these are.
    ///
    /// # Errors
    /// The server did not answer.
    pub async fn unmark(&self, marks: Marks) -> Result<usize, Error> {
        let mut runs = BTreeSet::new();
        let unmarked = |stored: &Stored| {
            let mut run = record::read(&stored.payload).ok()?;
            let was_marked = std::mem::take(&mut run.published) && on_repeat(&run) != Repeat::Nothing;
            let waits = run.state.run_at().map_or(Duration::ZERO, |at| at.since(run.origin));
            let kept = header::ttl(OPEN_KEPT.saturating_add(waits));
            let rewritten = was_marked.then(|| (record::write(&run), kept))?;
            runs.insert(run.run_id);
            Some(rewritten)
        };
        self.rewrite("runs", marks.runs, unmarked).await?;
        let unmarked = |stored: &Stored| {
            let mut claim: Claim = serde_json::from_slice(&stored.payload).ok()?;
            let was_marked = std::mem::take(&mut claim.published) && runs.contains(&claim.run_id);
            let kept = stored.headers.get(names::TTL)?.to_string();
            was_marked.then(|| (request::json(&claim), kept))
        };
        self.rewrite("idempotency", marks.keys, unmarked).await?;
        Ok(runs.len())
    }

    /// Rewrites what was written into a bucket after this sequence, and says how long what is written is kept.
    async fn rewrite(
        &self,
        bucket: &str,
        sequence: u64,
        mut rewritten: impl FnMut(&Stored) -> Option<(Bytes, String)>,
    ) -> Result<(), Error> {
        let (stream, subject) = (self.names().bucket_stream(bucket), self.names().key(bucket, ">"));
        // What is written here comes behind all that is read, and is not rewritten again.
        let mut next = Some(sequence + 1);
        while let Some(from) = next {
            let page = scan::page(self.link(), &stream, &subject, from).await?;
            for stored in page.messages {
                if let Some((value, kept)) = rewritten(&stored) {
                    let mut headers = request::conditions(Some(stored.sequence), None);
                    headers.insert(names::TTL, kept);
                    request::publish(self.link(), stored.subject, headers, value).await?;
                }
            }
            next = page.next;
        }
        Ok(())
    }

    /// Names that JetStream lists, page by page.
    async fn listed(&self, request: &str, of: &str) -> Result<Vec<String>, Cause> {
        let mut all = Vec::new();
        loop {
            let mut page = self.asked(request, &json!({"offset": all.len()})).await?;
            let names: Option<Vec<String>> = serde_json::from_value(page[of].take())?;
            match names {
                Some(names) if !names.is_empty() => all.extend(names),
                _ => return Ok(all),
            }
        }
    }

    async fn asked(&self, request: &str, body: &Value) -> Result<Value, Cause> {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let subject = format!("{}.{request}", self.link().api());
        checked(&info::bytes_within(self.link(), subject, body, CHUNK_WITHIN).await?)
    }
}

/// An answer of JetStream, unless it is a refusal.
fn checked(answer: &[u8]) -> Result<Value, Cause> {
    let mut answer: Value = serde_json::from_slice(answer)?;
    match answer.get_mut("error").map(Value::take) {
        None => Ok(answer),
        Some(error) => {
            let refusal: Refusal = serde_json::from_value(error)?;
            Err(Box::new(refusal))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Storage;
    use crate::streams::shape;
    use longshore_domain::Queue;

    /// Given every stream that nodes make in files, when a backup orders them, then it has all of them, messages before
    /// the records that they speak of, and nothing else.
    #[test]
    fn a_backup_has_every_stream_in_its_place() {
        let (names, storage) = (Names::new("longshore"), Storage::default());
        let place = |stream: &str| rank(&names, stream);
        for config in shape::streams(&names, &storage) {
            assert!(place(&config.name).is_some(), "{}", config.name);
        }
        for lane in QueueLane::all() {
            let stream = names.lane_stream(&Queue::main(), lane);
            assert!(place(&stream) < place("KV_longshore_runs"), "{stream}");
        }
        assert!(place("LONGSHORE_EVENTS") < place("KV_longshore_runs"));
        assert!(place("LONGSHORE_PARKED") < place("LONGSHORE_JOBS_main_RETURNED"));
        for other in ["LONGSHORE_REPLIES", "OTHER_EVENTS", "KV_longshore_mine", "KV_other_runs"] {
            assert_eq!(place(other), None, "{other}");
        }
    }
}
