//! The records of concurrency limits, and the sessions of the nodes that have slots of them, in a bucket of their own:
//! read from its leader, written by compare-and-set, and watched. Beside that, nodes announce to each other which slots
//! they lack; such a wish is stored nowhere.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use longshore_domain::concurrency::session::Session;
use longshore_domain::concurrency::{ConcurrencyId, Line, Order, OrderId, SlotRecord};
use longshore_domain::{RunId, SmolStr, Tenant, Timestamp};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use crate::Backbone;
use crate::cluster::questions::{Question, Questions};
use crate::connection::subscription::Subscription;
use crate::error::Error;
use crate::messages::refusal::{WRITE_IN_FLIGHT, WRONG_SEQUENCE};
use crate::messages::request::{self, Over, PubAck};
use crate::messages::scan;
use crate::wire::subject::Names;

const BUCKET: &str = "concurrency";
/// A session is stored for so long after it was last renewed, or ended; a node that has slots under it renews it far
/// more often. Any node may say of a session that is no longer stored that it has ended.
const SESSION_LASTS: Duration = Duration::from_secs(86_400);
/// A line is stored for so long after it was last written. A run that waits longer than this for its next attempt loses
/// its place. Once its runs have ended, the node that ends the last one writes it empty, to be gone soon.
const LINE_LASTS: Duration = Duration::from_secs(86_400);
/// How long what says as much as nothing is stored.
const EMPTY_LASTS: Duration = Duration::from_secs(1);

/// The subjects on which the server republishes the records.
pub(crate) fn changes(names: &Names) -> String {
    names.node("_sys.slots.>")
}

/// The subject on which nodes say which slots they lack.
fn wishes(names: &Names) -> String {
    names.node("_sys.slots_wanted")
}

/// The subject on which a node is asked which runs work with its slots.
fn questions(names: &Names, node: &str) -> String {
    names.node(&format!("_sys.slots_of.{node}"))
}

/// The outcome of a compare-and-set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Written {
    /// It is stored, at this revision.
    Won(u64),
    /// Another write came first, or is on its way.
    Lost,
}

/// The limits whose slots a node lacks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wish {
    /// The node's session.
    pub session: SmolStr,
    /// The limits, as tokens of a subject.
    pub limits: Vec<SmolStr>,
}

/// What other nodes write and wish.
#[derive(Debug)]
pub struct SlotNews {
    records: Subscription,
    wishes: Subscription,
    prefix: String,
}

/// The question to a node which runs work with its slots of these limits, as tokens of a subject.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlotQuestion {
    /// The limits.
    pub limits: Vec<SmolStr>,
}

/// Its answer.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlotAnswer {
    /// The session under which it has slots.
    pub session: SmolStr,
    /// The runs by limit.
    pub runs: BTreeMap<SmolStr, Vec<(Tenant, RunId)>>,
}

/// A stored record of a limit.
#[derive(Debug, Clone)]
pub struct FoundSlots {
    /// Of which limit.
    pub id: ConcurrencyId,
    /// Who has how many slots.
    pub record: SlotRecord,
    /// Its revision.
    pub revision: u64,
}

/// One piece of such news.
#[derive(Debug)]
pub enum News {
    /// A version of a record was stored, at this revision.
    Record(ConcurrencyId, SlotRecord, u64),
    /// A node lacks slots.
    Wish(Wish),
}

impl SlotNews {
    /// The next one, of a limit that `matters` or a wish; `None` when the connection has ended.
    pub async fn next(&mut self, matters: impl Fn(&ConcurrencyId) -> bool) -> Option<News> {
        loop {
            tokio::select! {
                message = self.records.next() => {
                    let message = message?;
                    let id = message.subject.strip_prefix(&self.prefix).and_then(ConcurrencyId::read);
                    let Some(id) = id.filter(&matters) else { continue };
                    let sequence = message.headers.as_ref().and_then(|headers| headers.get("Nats-Sequence"));
                    let revision = sequence.and_then(|sequence| sequence.as_str().parse().ok());
                    let record = serde_json::from_slice(&message.payload).ok();
                    if let (Some(revision), Some(record)) = (revision, record) {
                        return Some(News::Record(id, record, revision));
                    }
                }
                message = self.wishes.next() => {
                    if let Ok(wish) = serde_json::from_slice(&message?.payload) {
                        return Some(News::Wish(wish));
                    }
                }
            }
        }
    }
}

/// A node's way to the slots of concurrency limits. Who has only this reaches no job. Cheap to clone.
#[derive(Debug, Clone)]
pub struct SlotRecords(Backbone);

impl Backbone {
    /// This node's way to the slots of concurrency limits.
    #[must_use]
    pub fn slots(&self) -> SlotRecords {
        SlotRecords(self.clone())
    }
}

impl SlotRecords {
    /// Listens for what other nodes write and wish; returns once the server knows of that.
    ///
    /// # Errors
    /// The subjects cannot be subscribed to.
    pub async fn news(&self) -> Result<SlotNews, Error> {
        let (control, names) = (self.0.control(), self.0.names());
        let records = control.subscribe(changes(names)).await?;
        let wishes = control.subscribe(wishes(names)).await?;
        // A failure means that the connection was just lost; the subscription comes back with it.
        let _ = control.settled().await;
        let prefix = changes(names).trim_end_matches('>').to_owned();
        Ok(SlotNews { records, wishes, prefix })
    }

    /// Changes whenever the connection has been re-established: what was republished meanwhile did not come.
    #[must_use]
    pub fn connected(&self) -> watch::Receiver<u64> {
        self.0.control().connected()
    }

    /// Announces to the other nodes which slots this one lacks. It may be lost: a node that still lacks them says so
    /// again.
    pub async fn wish(&self, wish: &Wish) {
        let body = Bytes::from(serde_json::to_vec(wish).unwrap_or_default());
        self.0.control().publish(wishes(self.0.names()), body).await;
    }

    /// The record of a limit, and its revision, as the bucket's leader has it; an empty one, at 0, if there is none.
    ///
    /// # Errors
    /// It cannot be read, or is of another version: then it is not known how many slots are taken.
    pub async fn read(&self, id: &ConcurrencyId) -> Result<(SlotRecord, u64), Error> {
        Ok(self.stored(self.record_subject(id)).await?.unwrap_or_default())
    }

    /// Writes the record of a limit if its revision is still `expected` (0: none is stored).
    ///
    /// # Errors
    /// The server did not answer, so that it may be written or not; or it refused for another reason.
    pub async fn write(&self, id: &ConcurrencyId, record: &SlotRecord, expected: u64) -> Result<Written, Error> {
        let over = Over { expected, lasts: record.matters_for() };
        self.compare_and_set(self.record_subject(id), record, over).await
    }

    /// The records of all limits that have one.
    ///
    /// # Errors
    /// They cannot be read.
    pub async fn all(&self) -> Result<Vec<FoundSlots>, Error> {
        let (names, link) = (self.0.names(), self.0.control());
        let (bucket, prefix) = (names.bucket_stream(BUCKET), names.key(BUCKET, "slots."));
        let (mut all, mut from) = (Vec::new(), Some(1));
        while let Some(first) = from {
            let page =
                scan::page(link, self.0.api(), &bucket, &format!("{prefix}>"), &format!(r#""seq":{first}"#)).await?;
            all.extend(page.messages.into_iter().filter_map(|stored| {
                let id = stored.subject.strip_prefix(&prefix).and_then(ConcurrencyId::read)?;
                let record = serde_json::from_slice(&stored.payload).ok()?;
                Some(FoundSlots { id, record, revision: stored.sequence })
            }));
            from = page.next;
        }
        Ok(all)
    }

    /// Listens for nodes that ask which runs work with this node's slots.
    ///
    /// # Errors
    /// The subject cannot be subscribed to.
    pub async fn questions(&self, node: &str) -> Result<Questions, Error> {
        self.0.nodes().listen(questions(self.0.names(), node)).await
    }

    /// Answers such a question.
    pub async fn answer(&self, question: Question, answer: impl FnOnce(SlotQuestion) -> SlotAnswer) {
        let Ok(asked) = serde_json::from_slice(&question.payload) else { return };
        let body = serde_json::to_vec(&answer(asked)).unwrap_or_default();
        self.0.nodes().answer(question, Bytes::from(body)).await;
    }

    /// Asks a node; `None` if it does not answer within `wait`.
    pub async fn ask(&self, node: &str, question: &SlotQuestion, wait: Duration) -> Option<SlotAnswer> {
        let body = Bytes::from(serde_json::to_vec(question).ok()?);
        let answer = self.0.nodes().ask(questions(self.0.names(), node), body, wait).await?;
        serde_json::from_slice(&answer).ok()
    }

    /// A session, and its revision, as the bucket's leader has it; `None` if there is none.
    ///
    /// # Errors
    /// It cannot be read.
    pub async fn session(&self, session: &str) -> Result<Option<(Session, u64)>, Error> {
        self.stored(self.session_subject(session)).await
    }

    /// The same, with the time at which it was stored.
    ///
    /// # Errors
    /// It cannot be read.
    pub async fn session_at(&self, session: &str) -> Result<Option<(Session, Timestamp)>, Error> {
        let (bucket, subject) = (self.0.names().bucket_stream(BUCKET), self.session_subject(session));
        let stored = request::latest(self.0.control(), self.0.api(), &bucket, &subject).await?;
        Ok(stored.and_then(|stored| Some((serde_json::from_slice(&stored.payload).ok()?, stored.at))))
    }

    /// Writes a session if its revision is still `expected` (0: none is stored).
    ///
    /// # Errors
    /// The server did not answer, so that it may be written or not; or it refused for another reason.
    pub async fn write_session(&self, of: &str, session: &Session, expected: u64) -> Result<Written, Error> {
        let over = Over { expected, lasts: SESSION_LASTS };
        self.compare_and_set(self.session_subject(of), session, over).await
    }

    /// The line of a key, and its revision, as the bucket's leader has it; an empty one, at 0, if there is none.
    ///
    /// # Errors
    /// It cannot be read, or is of another version.
    pub async fn line(&self, id: &ConcurrencyId) -> Result<(Line, u64), Error> {
        Ok(self.stored(self.line_subject(id)).await?.unwrap_or_default())
    }

    /// Writes the line of a key if its revision is still `expected` (0: none is stored).
    ///
    /// # Errors
    /// The server did not answer, so that it may be written or not; or it refused for another reason.
    pub async fn write_line(&self, id: &ConcurrencyId, line: &Line, expected: u64) -> Result<Written, Error> {
        let lasts = if line.is_empty() { EMPTY_LASTS } else { LINE_LASTS };
        self.write_entry(self.line_subject(id), line, Over { expected, lasts }).await
    }

    /// The order of a key, and its revision, as the bucket's leader has it; an empty one, at 0, if there is none.
    ///
    /// # Errors
    /// It cannot be read, or is of another version.
    pub async fn order(&self, id: &OrderId) -> Result<(Order, u64), Error> {
        Ok(self.stored(self.order_subject(id)).await?.unwrap_or_default())
    }

    /// Writes the order of a key if its revision is still `expected` (0: none is stored). It is stored for `lasts`, in
    /// whole seconds; for one, if it is empty.
    ///
    /// # Errors
    /// The server did not answer, so that it may be written or not; or it refused for another reason.
    pub async fn write_order(
        &self,
        id: &OrderId,
        order: &Order,
        expected: u64,
        lasts: Duration,
    ) -> Result<Written, Error> {
        let lasts = if order.batch().is_empty() { EMPTY_LASTS } else { lasts };
        self.write_entry(self.order_subject(id), order, Over { expected, lasts }).await
    }

    async fn write_entry(&self, subject: String, value: &impl Serialize, over: Over) -> Result<Written, Error> {
        let body = Bytes::from(serde_json::to_vec(value).unwrap_or_default());
        written(self.0.write_entry(&self.0.0.concurrency_space, subject, body, over).await)
    }

    fn order_subject(&self, id: &OrderId) -> String {
        self.0.names().key(BUCKET, &format!("orders.{id}"))
    }

    fn line_subject(&self, id: &ConcurrencyId) -> String {
        self.0.names().key(BUCKET, &format!("lines.{id}"))
    }

    fn record_subject(&self, id: &ConcurrencyId) -> String {
        self.0.names().key(BUCKET, &format!("slots.{id}"))
    }

    fn session_subject(&self, session: &str) -> String {
        self.0.names().key(BUCKET, &format!("sessions.{session}"))
    }

    async fn stored<T: DeserializeOwned>(&self, subject: String) -> Result<Option<(T, u64)>, Error> {
        let bucket = self.0.names().bucket_stream(BUCKET);
        let Some(stored) = request::latest(self.0.control(), self.0.api(), &bucket, &subject).await? else {
            return Ok(None);
        };
        let revision = stored.sequence;
        Ok(Some((self.0.readable_or_removed(stored).await?, revision)))
    }

    async fn compare_and_set(&self, subject: String, value: &impl Serialize, over: Over) -> Result<Written, Error> {
        let body = Bytes::from(serde_json::to_vec(value).unwrap_or_default());
        written(request::publish(self.0.control(), subject, over.headers(), body).await)
    }
}

fn written(published: Result<PubAck, Error>) -> Result<Written, Error> {
    match published {
        Ok(ack) => Ok(Written::Won(ack.seq)),
        Err(Error::Refused { code: WRONG_SEQUENCE | WRITE_IN_FLIGHT, .. }) => Ok(Written::Lost),
        Err(error) => Err(error),
    }
}
