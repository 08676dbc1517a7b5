//! What a cluster's set-up is, for a person who looks for faults in it: the server, the account, this user's rights, the
//! streams, the clocks. Reads only, by the requests that a node may make as well; judges nothing.

use std::collections::BTreeSet;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use async_nats::Request;
use async_nats::jetstream::stream::Config;
use bytes::Bytes;
use longshore_domain::{Lane, Queue, Timestamp};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::client::Client;
use crate::cluster::control::Presence;
use crate::connection::link::Link;
use crate::messages::raw;
use crate::messages::request::Refusal;
use crate::settings::Storage;
use crate::streams::shape::{self, Change, Difference};
use crate::streams::stream_faults::wanted_streams;
use crate::wire::subject::Names;

/// How long one answer may take. A server does not answer what this user may not ask.
const WITHIN: Duration = Duration::from_secs(2);

/// A node's presence may be under way for so long between being written and being stored.
const UNDER_WAY_MS: i64 = 2_000;

/// The server that this client is connected to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerFacts {
    /// Its version.
    pub version: String,
    /// Its name.
    pub name: String,
    /// The largest message that it accepts, in bytes.
    pub max_payload: usize,
}

/// What the account may use of JetStream, and uses.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct Account {
    /// Bytes that are stored in files.
    #[serde(default)]
    pub storage: u64,
    /// Bytes of files that are reserved by the bounds of streams.
    #[serde(default)]
    pub reserved_storage: u64,
    /// How many streams there are.
    #[serde(default)]
    pub streams: i64,
    /// How many consumers there are.
    #[serde(default)]
    pub consumers: i64,
    /// The account's limits.
    #[serde(default)]
    pub limits: Limits,
}

/// The limits of an account; below 0: none.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct Limits {
    /// Bytes in files.
    #[serde(default)]
    pub max_storage: i64,
    /// Streams.
    #[serde(default)]
    pub max_streams: i64,
    /// Consumers.
    #[serde(default)]
    pub max_consumers: i64,
}

/// The subjects that a user may publish and subscribe to.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct Permissions {
    /// What it may publish.
    #[serde(default)]
    pub publish: Permission,
    /// What it may subscribe to.
    #[serde(default)]
    pub subscribe: Permission,
}

/// Subjects that are allowed and denied; none allowed: all are.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct Permission {
    /// Allowed.
    #[serde(default)]
    pub allow: Vec<String>,
    /// Denied, also if they are allowed.
    #[serde(default)]
    pub deny: Vec<String>,
}

/// This user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    /// Its account.
    pub account: String,
    /// What it may do; `None`: everything.
    pub permissions: Option<Permissions>,
}

/// A stream as it was found.
#[derive(Debug, PartialEq)]
pub struct FoundStream {
    /// Its name.
    pub name: String,
    /// Messages in it.
    pub messages: u64,
    /// Bytes in it.
    pub bytes: u64,
    /// The bound on its bytes, if it has one.
    pub max_bytes: Option<u64>,
    /// The bound on its messages, if it has one.
    pub max_messages: Option<u64>,
    /// How many servers keep it.
    pub replicas: usize,
    /// Servers that keep it and do not keep up, or are away.
    pub lagging: Vec<String>,
    /// Whether its durable consumer, if it is to have one, is there.
    pub has_consumer: bool,
    /// How it differs from what is wanted.
    pub change: Change,
}

/// How far another clock is from this machine's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Skew {
    /// Milliseconds by which it is ahead; negative: behind.
    pub ahead_ms: i64,
    /// The truth lies at most so many milliseconds beside that.
    pub within_ms: i64,
}

impl Names {
    /// The subjects to which a node of these queues publishes, and to which it subscribes: what docs/operations.md has
    /// its permissions grant.
    #[must_use]
    pub fn rights_of_a_node<'q>(&self, queues: impl Iterator<Item = &'q Queue>) -> (Vec<String>, Vec<String>) {
        let own = self.namespace();
        let mut publish: Vec<String> = vec![format!("{own}.>")];
        publish
            .extend(["runs", "idempotency", "control", "schedules", "concurrency"].map(|bucket| self.key(bucket, ">")));
        let asked = [
            "INFO",
            "STREAM.NAMES",
            "STREAM.INFO.*",
            "STREAM.CREATE.*",
            "STREAM.UPDATE.*",
            "CONSUMER.CREATE.>",
            "CONSUMER.MSG.NEXT.>",
            "DIRECT.GET.>",
            "CONSUMER.INFO.>",
            "STREAM.MSG.GET.*",
        ];
        publish.extend(asked.map(|request| format!("$JS.API.{request}")));
        let lanes = queues.flat_map(|queue| Lane::all().map(|lane| self.lane_stream(queue, lane)));
        let deleted = [self.schedules_stream(), self.dlq_stream(), self.parked_stream()].into_iter().chain(lanes);
        publish.extend(deleted.map(|stream| format!("$JS.API.STREAM.MSG.DELETE.{stream}")));
        publish.push(format!("$JS.API.STREAM.PURGE.{}", self.bucket_stream("checkpoints")));
        publish.extend(["$JS.ACK.>", "$SRV.INFO", "_INBOX.>"].map(str::to_owned));
        let planes = ["api", "nodes", "cancel", "events", "ends", "holder"];
        let mut subscribe: Vec<String> = planes.map(|plane| format!("{own}.{plane}.>")).to_vec();
        subscribe.extend(["$SRV.>", "_INBOX.>"].map(str::to_owned));
        subscribe.push(self.key("control", "holds.>"));
        (publish, subscribe)
    }
}

impl Permission {
    /// Those of these subjects that are not allowed, or not wholly.
    #[must_use]
    pub fn lacks(&self, needed: &[String]) -> Vec<String> {
        let is_lacking = |subject: &&String| {
            let allowed = self.allow.is_empty() || self.allow.iter().any(|allowed| covers(allowed, subject));
            !allowed || self.deny.iter().any(|denied| overlaps(denied, subject))
        };
        needed.iter().filter(is_lacking).cloned().collect()
    }
}

/// Whether every subject that fits `narrow` fits `wide`, too.
fn covers(wide: &str, narrow: &str) -> bool {
    // A right to subscribe may be bound to a queue group, which stands behind the subject.
    let (mut wide, mut narrow) = (wide.split(' ').next().unwrap_or_default().split('.'), narrow.split('.'));
    loop {
        match (wide.next(), narrow.next()) {
            (Some(">"), Some(_)) | (None, None) => return true,
            (Some("*"), Some(token)) if token != ">" => {}
            (Some(own), Some(token)) if own == token => {}
            _ => return false,
        }
    }
}

/// Whether a subject can fit both.
fn overlaps(one: &str, other: &str) -> bool {
    let (mut one, mut other) = (one.split(' ').next().unwrap_or_default().split('.'), other.split('.'));
    loop {
        match (one.next(), other.next()) {
            (Some(">"), Some(_)) | (Some(_), Some(">")) | (None, None) => return true,
            (Some(a), Some(b)) if a == b || a == "*" || b == "*" => {}
            _ => return false,
        }
    }
}

#[derive(Deserialize)]
struct UserAnswer {
    server: Option<UserServer>,
    data: Option<UserData>,
}

#[derive(Deserialize)]
struct UserServer {
    time: String,
}

#[derive(Deserialize)]
struct UserData {
    #[serde(default)]
    account: String,
    permissions: Option<Permissions>,
}

#[derive(Deserialize)]
pub(crate) struct Stream {
    pub(crate) config: Config,
    #[serde(default)]
    pub(crate) state: StreamState,
    pub(crate) cluster: Option<StreamCluster>,
    /// When it was created, and when this was answered, by the server's clock.
    created: Option<String>,
    ts: Option<String>,
}

impl Stream {
    /// How long it has been there; `None`: the server does not say.
    pub(crate) fn age(&self) -> Option<Duration> {
        let at = |text: &Option<String>| Timestamp::parse(text.as_deref()?).ok();
        Some(at(&self.ts)?.since(at(&self.created)?))
    }
}

#[derive(Default, Deserialize)]
pub(crate) struct StreamState {
    #[serde(default)]
    pub(crate) messages: u64,
    #[serde(default)]
    pub(crate) bytes: u64,
    #[serde(default)]
    pub(crate) last_seq: u64,
}

/// The servers of a stream.
#[derive(Deserialize)]
pub(crate) struct StreamCluster {
    /// All but the leader.
    #[serde(default)]
    pub(crate) replicas: Vec<Peer>,
}

#[derive(Deserialize)]
pub(crate) struct Peer {
    name: String,
    #[serde(default)]
    current: bool,
    #[serde(default)]
    pub(crate) offline: bool,
    /// Nanoseconds since the leader last heard from it.
    #[serde(default)]
    pub(crate) active: u64,
}

#[derive(Deserialize)]
struct NamesAnswer {
    streams: Option<Vec<String>>,
}

#[derive(Deserialize)]
struct Refused {
    error: Option<Refusal>,
}

/// What this client asked was refused, or not answered: the user may not ask it, or no server can answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Unanswered(pub String);

impl Client {
    /// The server that this client is connected to.
    #[must_use]
    pub fn server_facts(&self) -> ServerFacts {
        let info = self.link().server_info();
        ServerFacts { version: info.version, name: info.server_name, max_payload: info.max_payload }
    }

    /// This user, and how far the server's clock is from this machine's.
    ///
    /// # Errors
    /// The user may not ask the server (`$SYS.REQ.USER.INFO`).
    pub async fn user(&self) -> Result<(User, Option<Skew>), Unanswered> {
        let (asked_at, began) = (now(), Instant::now());
        let answer: UserAnswer = self.answer("$SYS.REQ.USER.INFO".to_owned(), String::new()).await?;
        let half = i64::try_from(began.elapsed().as_millis()).unwrap_or(i64::MAX) / 2;
        let theirs = answer.server.and_then(|server| Timestamp::parse(&server.time).ok());
        let skew =
            theirs.map(|theirs| Skew { ahead_ms: theirs.millis() - asked_at.millis() - half, within_ms: half + 1 });
        let data = answer.data.ok_or_else(|| Unanswered("the server does not say who this user is".to_owned()))?;
        Ok((User { account: data.account, permissions: data.permissions }, skew))
    }

    /// What the account may use of JetStream, and uses.
    ///
    /// # Errors
    /// There is no JetStream for this account, or it does not answer.
    pub async fn account(&self) -> Result<Account, Unanswered> {
        let answer = self.ask_jetstream("INFO".to_owned(), String::new()).await?;
        let refused: Refused = read(&answer)?;
        match refused.error {
            Some(refusal) => Err(Unanswered(refusal.description)),
            None => read(&answer),
        }
    }

    /// The queues whose lanes are there.
    ///
    /// # Errors
    /// JetStream does not answer.
    pub async fn declared(&self) -> Result<BTreeSet<Queue>, Unanswered> {
        let (mut queues, mut offset) = (BTreeSet::new(), 0);
        loop {
            let answer = self.ask_jetstream("STREAM.NAMES".to_owned(), format!(r#"{{"offset":{offset}}}"#)).await?;
            let names = read::<NamesAnswer>(&answer)?.streams.unwrap_or_default();
            if names.is_empty() {
                return Ok(queues);
            }
            offset += names.len();
            queues.extend(names.iter().filter_map(|name| self.names().read_lane_stream(name)).map(|(queue, _)| queue));
        }
    }

    /// The streams that these settings want, each as it was found; `None`: it is not there.
    ///
    /// # Errors
    /// JetStream does not answer.
    pub async fn streams(
        &self,
        storage: &Storage,
        queues: &BTreeSet<Queue>,
    ) -> Result<Vec<(String, Option<FoundStream>)>, Unanswered> {
        let mut found = Vec::new();
        for wanted in wanted_streams(self.names(), storage, queues.iter(), self.server_facts().max_payload) {
            let stream = self.found(&wanted.config, wanted.consumer).await?;
            found.push((wanted.config.name, stream));
        }
        Ok(found)
    }

    async fn found(&self, wanted: &Config, consumer: Option<&str>) -> Result<Option<FoundStream>, Unanswered> {
        let name = &wanted.name;
        let Some(answer) = stream(self.link(), &self.jetstream_api(), name).await? else { return Ok(None) };
        let has_consumer = match consumer {
            Some(consumer) => {
                let asked = format!("CONSUMER.INFO.{name}.{consumer}");
                read::<Refused>(&self.ask_jetstream(asked, String::new()).await?)?.error.is_none()
            }
            None => true,
        };
        let config = answer.config;
        let bound = |bound: i64| u64::try_from(bound).ok().filter(|bound| *bound > 0);
        let peers = answer.cluster.map(|cluster| cluster.replicas).unwrap_or_default();
        Ok(Some(FoundStream {
            name: name.clone(),
            messages: answer.state.messages,
            bytes: answer.state.bytes,
            max_bytes: bound(config.max_bytes),
            max_messages: bound(config.max_messages),
            replicas: config.num_replicas.max(1),
            lagging: peers.into_iter().filter(|peer| peer.offline || !peer.current).map(|peer| peer.name).collect(),
            has_consumer,
            change: shape::change(&config, wanted, false),
        }))
    }

    /// How far the clock of each node that was seen within the last minute was from the server's when it last said that
    /// it is there.
    ///
    /// # Errors
    /// The control bucket cannot be read.
    pub async fn clocks_of_nodes(&self) -> Result<Vec<(String, Skew)>, Unanswered> {
        let names = self.names();
        let (bucket, subject) = (names.bucket_stream("control"), names.key("control", "nodes.*"));
        let all = raw::all(self.link(), &self.jetstream_api(), &bucket, &subject).await;
        let all = all.map_err(|error| Unanswered(error.to_string()))?;
        let latest = all.iter().map(|stored| stored.at).max().unwrap_or_default();
        let fresh = all.into_iter().filter(|stored| latest.since(stored.at) < Duration::from_secs(60));
        let skew = |stored: raw::Raw| {
            let presence: Presence = serde_json::from_slice(&stored.payload).ok()?;
            let ahead_ms = presence.seen_at.millis() - stored.at.millis();
            Some((presence.node, Skew { ahead_ms, within_ms: UNDER_WAY_MS }))
        };
        Ok(fresh.filter_map(skew).collect())
    }

    async fn ask_jetstream(&self, request: String, body: String) -> Result<Bytes, Unanswered> {
        self.bytes(format!("{}.{request}", self.jetstream_api()), body).await
    }

    async fn answer<A: DeserializeOwned>(&self, subject: String, body: String) -> Result<A, Unanswered> {
        read(&self.bytes(subject, body).await?)
    }

    async fn bytes(&self, subject: String, body: String) -> Result<Bytes, Unanswered> {
        bytes(self.link(), subject, body).await
    }
}

async fn bytes(link: &Link, subject: String, body: String) -> Result<Bytes, Unanswered> {
    let request = Request::new().payload(Bytes::from(body)).timeout(Some(WITHIN));
    let answer = link.request(subject.clone(), request).await;
    answer.map(|message| message.payload).map_err(|error| Unanswered(format!("{subject}: {error}")))
}

/// A stream as the server has it; `None`: there is none of that name.
pub(crate) async fn stream(link: &Link, api: &str, name: &str) -> Result<Option<Stream>, Unanswered> {
    let answer = bytes(link, format!("{api}.STREAM.INFO.{name}"), String::new()).await?;
    match read::<Refused>(&answer)?.error {
        Some(refusal) if refusal.err_code == crate::messages::request::NO_STREAM => Ok(None),
        Some(refusal) => Err(Unanswered(format!("{name}: {}", refusal.description))),
        None => read(&answer).map(Some),
    }
}

fn read<A: DeserializeOwned>(answer: &[u8]) -> Result<A, Unanswered> {
    serde_json::from_slice(answer).map_err(|error| Unanswered(format!("the server's answer cannot be read: {error}")))
}

/// The time of this machine.
pub(crate) fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp::from_millis(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
}

impl FoundStream {
    /// Settings that the next node changes.
    #[must_use]
    pub fn changes(&self) -> &[Difference] {
        match &self.change {
            Change::Update { changed, .. } => changed,
            Change::None { .. } | Change::Impossible(_) => &[],
        }
    }

    /// How full it is, 1 being full, by bytes or messages, whichever is nearer to it.
    #[must_use]
    pub fn fill(&self) -> f64 {
        let share = |part: u64, of: Option<u64>| of.map_or(0.0, |of| part as f64 / of as f64);
        share(self.bytes, self.max_bytes).max(share(self.messages, self.max_messages))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rights_of_a_node_are_those_of_the_document() {
        const OPERATIONS: &str = include_str!("../../docs/operations.md");
        let block = OPERATIONS.split("```text\n").find(|block| block.starts_with("publish:")).unwrap();
        let (publish, subscribe) = block.split("```").next().unwrap().split_once("subscribe:").unwrap();
        let main = Queue::main();
        let names = Names::new("longshore");
        let lanes = |word: &str| -> Vec<String> {
            match word.strip_suffix("_P1") {
                Some(_) => {
                    let lane = |lane: Lane| format!("$JS.API.STREAM.MSG.DELETE.{}", names.lane_stream(&main, lane));
                    Lane::all().map(lane).collect()
                }
                None => vec![word.to_owned()],
            }
        };
        let granted = |text: &str| -> BTreeSet<String> {
            text.split_whitespace().filter(|word| word.contains('.')).flat_map(lanes).collect()
        };
        let (may_publish, may_subscribe) = names.rights_of_a_node([&main].into_iter());
        let examples = ["_INBOX_acme.>".to_owned()];
        let mut documented = granted(publish);
        examples.iter().for_each(|example| assert!(documented.remove(example)));
        assert_eq!(documented, may_publish.into_iter().collect());
        assert_eq!(granted(subscribe), may_subscribe.into_iter().collect());
    }

    #[test]
    fn what_is_not_wholly_allowed_is_lacking() {
        let permission = |allow: &[&str], deny: &[&str]| Permission {
            allow: allow.iter().map(ToString::to_string).collect(),
            deny: deny.iter().map(ToString::to_string).collect(),
        };
        let lacks = |allow: &[&str], deny: &[&str], needed: &str| {
            !permission(allow, deny).lacks(&[needed.to_owned()]).is_empty()
        };
        for (allow, deny, needed, expected) in [
            (&[][..], &[][..], "a.>", false),
            (&["a.>"], &[], "a.>", false),
            (&[">"], &[], "$JS.API.INFO", false),
            (&["a.*"], &[], "a.b", false),
            (&["a.*"], &[], "a.>", true),
            (&["a.b"], &[], "a.*", true),
            (&["a.b.c"], &[], "a.b", true),
            (&["a.b q"], &[], "a.b", false),
            (&[], &["a.b"], "a.>", true),
            (&[], &["a.*.c"], "a.b.>", true),
            (&[], &["b.>"], "a.>", false),
            (&[], &["a"], "a.b", false),
        ] {
            assert_eq!(lacks(allow, deny, needed), expected, "{allow:?} {deny:?} {needed}");
        }
    }
}
