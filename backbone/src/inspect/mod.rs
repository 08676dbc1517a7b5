//! What a cluster's set-up is, for a person who looks for faults in it: the server, the account, this user's rights,
//! the streams, the clocks. Reads only, by the requests that a node may make as well; judges nothing.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use bytes::Bytes;
use longshore_domain::{Queue, Timestamp};
use serde::Deserialize;

mod rights;

pub use rights::{Permission, Permissions, USER_INFO};

pub use crate::streams::info::Unanswered;
pub use longshore_domain::cluster_clock::Skew;

use crate::client::Client;
use crate::clock::own;
use crate::cluster::control::Presence;
use crate::messages::{get, raw};
use crate::settings::Storage;
use crate::streams::info::{self, ErrorAnswer, StreamNames, bytes, read};
use crate::streams::shape::{self, StreamChange};
use crate::streams::wanted::{self, Ground, WantedStream};

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
    /// The cluster that it belongs to, if it does.
    pub cluster: Option<String>,
}

/// What the account may use of JetStream, and uses.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Account {
    /// Bytes that are stored in files.
    pub storage: u64,
    /// Bytes of files that are reserved by the bounds of streams.
    pub reserved_storage: u64,
    /// How many streams there are.
    pub streams: i64,
    /// How many consumers there are.
    pub consumers: i64,
    /// The account's limits.
    pub limits: AccountLimits,
}

/// The limits of an account; below 0: none.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct AccountLimits {
    /// Bytes in files.
    pub max_storage: i64,
    /// Streams.
    pub max_streams: i64,
}

/// This user.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct User {
    /// Its account.
    #[serde(default)]
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
    pub change: StreamChange,
}

#[derive(Deserialize)]
struct UserAnswer {
    server: Option<UserServer>,
    data: Option<User>,
}

#[derive(Deserialize)]
struct UserServer {
    time: String,
}

impl Client {
    /// The server that this client is connected to.
    pub fn server_facts(&self) -> ServerFacts {
        let info = self.link().server_info();
        ServerFacts {
            version: info.version,
            name: info.server_name,
            max_payload: info.max_payload,
            cluster: info.cluster.filter(|cluster| !cluster.is_empty()),
        }
    }

    /// This user, and how far the server's clock is from this machine's.
    ///
    /// # Errors
    /// The user may not ask the server ([`USER_INFO`]).
    pub async fn user(&self) -> Result<(User, Option<Skew>), Unanswered> {
        let (asked_at, began) = (own(), Instant::now());
        let answer: UserAnswer = read(&bytes(self.link(), USER_INFO.to_owned(), String::new()).await?)?;
        let half = i64::try_from(began.elapsed().as_millis()).unwrap_or(i64::MAX) / 2;
        let theirs = answer.server.and_then(|server| Timestamp::parse(&server.time).ok());
        let skew =
            theirs.map(|theirs| Skew { ahead_ms: theirs.millis() - asked_at.millis() - half, within_ms: half + 1 });
        let user = answer.data.ok_or_else(|| Unanswered("the server does not say who this user is".to_owned()))?;
        Ok((user, skew))
    }

    /// What the account may use of JetStream, and uses.
    ///
    /// # Errors
    /// There is no JetStream for this account, or it does not answer.
    pub async fn account(&self) -> Result<Account, Unanswered> {
        let answer = self.ask_jetstream("INFO".to_owned(), String::new()).await?;
        let refused: ErrorAnswer = read(&answer)?;
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
            let names = read::<StreamNames>(&answer)?.streams.unwrap_or_default();
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
        let ground = Ground { names: self.names(), storage, max_payload: self.server_facts().max_payload };
        for wanted in wanted::of_queues(ground, queues.iter()) {
            let stream = self.found(&wanted).await?;
            found.push((wanted.config.name, stream));
        }
        Ok(found)
    }

    /// What those of the streams that these settings want reserve that are meant, on each server that keeps them.
    pub fn reserved_by(&self, storage: &Storage, queues: &BTreeSet<Queue>, is_meant: impl Fn(&str) -> bool) -> u64 {
        let ground = Ground { names: self.names(), storage, max_payload: self.server_facts().max_payload };
        let wanted = wanted::of_queues(ground, queues.iter()).into_iter().filter(|wanted| is_meant(wanted.name()));
        wanted.filter_map(|wanted| u64::try_from(wanted.config.max_bytes).ok()).sum()
    }

    async fn found(&self, wanted: &WantedStream) -> Result<Option<FoundStream>, Unanswered> {
        let name = &wanted.config.name;
        let Some(answer) = info::stream(self.link(), name).await? else { return Ok(None) };
        let has_consumer = match wanted.consumer_name() {
            Some(consumer) => {
                let asked = format!("CONSUMER.INFO.{name}.{consumer}");
                read::<ErrorAnswer>(&self.ask_jetstream(asked, String::new()).await?)?.error.is_none()
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
            change: shape::change(&config, &wanted.config, false),
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
        let all = get::all(self.link(), &bucket, &subject, 1).await;
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
        bytes(self.link(), format!("{}.{request}", self.link().api()), body).await
    }
}

impl FoundStream {
    /// How full it is, 1 being full, by bytes or messages, whichever is nearer to it.
    pub fn fill(&self) -> f64 {
        let share = |part: u64, of: Option<u64>| of.map_or(0.0, |of| part as f64 / of as f64);
        share(self.bytes, self.max_bytes).max(share(self.messages, self.max_messages))
    }
}
