//! What a server says of a stream.

use std::collections::BTreeMap;
use std::time::Duration;

use async_nats::Request;
use async_nats::jetstream::stream::{Config, Info};
use bytes::Bytes;
use longshore_domain::Timestamp;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::Backbone;
use crate::connection::link::Link;
use crate::connection::refusals;
use crate::error::Error;
use crate::messages::refusal::{self, Refusal};
use crate::streams::provision;

/// How long one answer may take.
const WITHIN: Duration = Duration::from_secs(2);

/// What this client asked was refused, or not answered: the user may not ask it, or no server can answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Unanswered(pub String);

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
        Some(self.answered_at()?.since(Timestamp::parse(self.created.as_deref()?).ok()?))
    }

    /// When this was answered, by the server's clock; `None`: it does not say.
    pub(crate) fn answered_at(&self) -> Option<Timestamp> {
        Timestamp::parse(self.ts.as_deref()?).ok()
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(crate) struct StreamState {
    pub(crate) messages: u64,
    pub(crate) bytes: u64,
    pub(crate) last_seq: u64,
    /// How many messages stand on each subject that was asked for.
    pub(crate) subjects: BTreeMap<String, u64>,
}

#[derive(Deserialize)]
pub(crate) struct StreamCluster {
    /// All but the leader.
    #[serde(default)]
    pub(crate) replicas: Vec<Peer>,
}

#[derive(Deserialize)]
pub(crate) struct Peer {
    pub(crate) name: String,
    #[serde(default)]
    pub(crate) current: bool,
    #[serde(default)]
    pub(crate) offline: bool,
    /// Nanoseconds since the leader last heard from it.
    #[serde(default)]
    pub(crate) active: u64,
}

/// What every answer of JetStream may be instead.
#[derive(Deserialize)]
pub(crate) struct ErrorAnswer {
    pub(crate) error: Option<Refusal>,
}

#[derive(Deserialize)]
pub(crate) struct StreamNames {
    /// Absent, or `null`, where there are none.
    pub(crate) streams: Option<Vec<String>>,
    pub(crate) error: Option<Refusal>,
}

/// The bytes of the answer to one request.
pub(crate) async fn bytes(link: &Link, subject: String, body: String) -> Result<Bytes, Unanswered> {
    bytes_within(link, subject, body, WITHIN).await
}

/// The same for a request that may take longer.
pub(crate) async fn bytes_within(
    link: &Link,
    subject: String,
    body: String,
    within: Duration,
) -> Result<Bytes, Unanswered> {
    let request = Request::new().payload(Bytes::from(body)).timeout(Some(within));
    let (known, inbox, asked) = (link.refusals(), link.inbox_prefix(), subject.clone());
    let is_of_this = move |right: &refusals::MissingRight| right.is_of_publish(&asked) || right.is_of_inbox(&inbox);
    known.forget(&is_of_this);
    let refused = known.next(is_of_this);
    tokio::select! {
        answer = link.request(subject.clone(), request) => {
            answer.map(|message| message.payload).map_err(|error| Unanswered(format!("{subject}: {error}")))
        }
        refusal = refused => Err(Unanswered(refusal.to_string())),
    }
}

/// A stream as the server has it; `None`: there is none of that name.
pub(crate) async fn stream(link: &Link, name: &str) -> Result<Option<Stream>, Unanswered> {
    let answer = bytes(link, format!("{}.STREAM.INFO.{name}", link.api()), String::new()).await?;
    match read::<ErrorAnswer>(&answer)?.error {
        Some(refusal) if refusal.err_code == refusal::NO_STREAM => Ok(None),
        Some(refusal) => Err(Unanswered(format!("{name}: {}", refusal.description))),
        None => read(&answer).map(Some),
    }
}

impl Backbone {
    /// A stream's settings and state, as its leader has them; an error if there is no such stream.
    pub(crate) async fn stream_info(&self, name: &str) -> Result<Info, Error> {
        let failed = |error| Error::Read { subject: name.to_owned(), source: Box::new(error) };
        Ok(self.jetstream().get_stream(name).await.map_err(failed)?.cached_info().clone())
    }

    /// The same; `None`: there is no such stream.
    pub(crate) async fn stream_info_if_any(&self, name: &str) -> Result<Option<Info>, Error> {
        match self.jetstream().get_stream(name).await {
            Ok(found) => Ok(Some(found.cached_info().clone())),
            Err(error) if provision::is_missing(&error.kind()) => Ok(None),
            Err(error) => Err(Error::Read { subject: name.to_owned(), source: Box::new(error) }),
        }
    }
}

pub(crate) fn read<A: DeserializeOwned>(answer: &[u8]) -> Result<A, Unanswered> {
    serde_json::from_slice(answer).map_err(|error| Unanswered(format!("the server's answer cannot be read: {error}")))
}
