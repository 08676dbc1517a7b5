//! The records of concurrency limits, and the sessions of the nodes that have slots of them, in a bucket of their own:
//! read from its leader, written by compare-and-set, and watched. Beside that, nodes announce to each other which slots
//! they lack; such a wish is stored nowhere.

use std::collections::BTreeMap;
use std::time::Duration;

use longshore_domain::concurrency::session::Session;
use longshore_domain::concurrency::{ConcurrencyId, Line, Order, OrderId, SlotRecord};
use longshore_domain::{RunId, SmolStr, Tenant, Timestamp};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::clock::now;
use crate::cluster::questions::{Question, Questions};
use crate::connection::subscription::Subscription;
use crate::error::Error;
use crate::messages::request::{Over, Stored, json, revision_of, won};
use crate::wire::subject::Names;

const BUCKET: &str = "concurrency";
/// A session is stored for so long after it was last renewed, or ended; a node that has slots under it renews it far
/// more often. Any node may say of a session that is no longer stored that it has ended.
const SESSION_LASTS: Duration = Duration::from_secs(86_400);
/// How long what says as much as nothing is stored, such as a line: the node that ends the last of its runs empties it.
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

pub use crate::messages::request::Written;

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
                    let record = serde_json::from_slice(&message.payload);
                    if let (Some(revision), Ok(record)) = (revision_of(&message), record) {
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

way! {
    /// A node's way to the slots of concurrency limits.
    SlotRecords, slots
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
        self.0.is_listening().await;
        let prefix = changes(names).trim_end_matches('>').to_owned();
        Ok(SlotNews { records, wishes, prefix })
    }

    /// Announces to the other nodes which slots this one lacks. It may be lost: a node that still lacks them says so
    /// again.
    pub async fn wish(&self, wish: &Wish) {
        self.0.control().publish(wishes(self.0.names()), json(wish)).await;
    }

    /// The record of a limit, and its revision, as the bucket's leader has it; an empty one, at 0, if there is none.
    ///
    /// # Errors
    /// It cannot be read, or is of another version: then it is not known how many slots are taken.
    pub async fn read(&self, id: &ConcurrencyId) -> Result<(SlotRecord, u64), Error> {
        Ok(self.stored(format!("slots.{id}")).await?.unwrap_or_default())
    }

    /// Writes the record of a limit if its revision is still `expected` (0: none is stored).
    ///
    /// # Errors
    /// The server did not answer, so that it may be written or not; or it refused for another reason.
    pub async fn write(&self, id: &ConcurrencyId, record: &SlotRecord, expected: u64) -> Result<Written, Error> {
        self.compare_and_set(format!("slots.{id}"), record, Over { expected, lasts: record.matters_for() }).await
    }

    /// The records of all limits that have one.
    ///
    /// # Errors
    /// They cannot be read.
    pub async fn all(&self) -> Result<Vec<FoundSlots>, Error> {
        let prefix = self.0.names().key(BUCKET, "slots.");
        let read = |stored: Stored| {
            let id = stored.subject.strip_prefix(&prefix).and_then(ConcurrencyId::read)?;
            let record = serde_json::from_slice(&stored.payload).ok()?;
            Some(FoundSlots { id, record, revision: stored.sequence })
        };
        self.0.entries_by_pages(BUCKET, "slots.>", read).await
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
        self.0.nodes().answer(question, json(&answer(asked))).await;
    }

    /// Asks a node; `None` if it does not answer within `wait`.
    pub async fn ask(&self, node: &str, question: &SlotQuestion, wait: Duration) -> Option<SlotAnswer> {
        let answer = self.0.nodes().ask(questions(self.0.names(), node), json(question), wait).await?;
        serde_json::from_slice(&answer).ok()
    }

    /// A session, and its revision, as the bucket's leader has it; `None` if there is none.
    ///
    /// # Errors
    /// It cannot be read.
    pub async fn session(&self, session: &str) -> Result<Option<(Session, u64)>, Error> {
        self.stored(format!("sessions.{session}")).await
    }

    /// The same, with the time at which it was stored.
    ///
    /// # Errors
    /// It cannot be read.
    pub async fn session_at(&self, session: &str) -> Result<Option<(Session, Timestamp)>, Error> {
        let stored = self.0.entry(BUCKET, &format!("sessions.{session}")).await?;
        Ok(stored.and_then(|stored| Some((serde_json::from_slice(&stored.payload).ok()?, stored.at))))
    }

    /// Writes a session if its revision is still `expected` (0: none is stored).
    ///
    /// # Errors
    /// The server did not answer, so that it may be written or not; or it refused for another reason.
    pub async fn write_session(&self, of: &str, session: &Session, expected: u64) -> Result<Written, Error> {
        self.compare_and_set(format!("sessions.{of}"), session, Over { expected, lasts: SESSION_LASTS }).await
    }

    /// The line of a key, and its revision, as the bucket's leader has it; an empty one, at 0, if there is none.
    ///
    /// # Errors
    /// It cannot be read, or is of another version.
    pub async fn line(&self, id: &ConcurrencyId) -> Result<(Line, u64), Error> {
        Ok(self.stored(format!("lines.{id}")).await?.unwrap_or_default())
    }

    /// Writes the line of a key if its revision is still `expected` (0: none is stored). It is stored for as long as it
    /// says; for a second, if it is empty.
    ///
    /// # Errors
    /// The server did not answer, so that it may be written or not; or it refused for another reason.
    pub async fn write_line(&self, id: &ConcurrencyId, line: &Line, expected: u64) -> Result<Written, Error> {
        let lasts = if line.is_empty() { EMPTY_LASTS } else { line.lasts(now()) };
        self.write_entry(format!("lines.{id}"), line, Over { expected, lasts }).await
    }

    /// The order of a key, and its revision, as the bucket's leader has it; an empty one, at 0, if there is none.
    ///
    /// # Errors
    /// It cannot be read, or is of another version.
    pub async fn order(&self, id: &OrderId) -> Result<(Order, u64), Error> {
        Ok(self.stored(format!("orders.{id}")).await?.unwrap_or_default())
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
        self.write_entry(format!("orders.{id}"), order, Over { expected, lasts }).await
    }

    async fn write_entry(&self, key: String, value: &impl Serialize, over: Over) -> Result<Written, Error> {
        let (space, subject) = (&self.0.0.concurrency_space, self.0.names().key(BUCKET, &key));
        Ok(won(self.0.write_entry(space, subject, value, over).await)?.into())
    }

    async fn stored<T: DeserializeOwned>(&self, key: String) -> Result<Option<(T, u64)>, Error> {
        let Some(stored) = self.0.entry(BUCKET, &key).await? else { return Ok(None) };
        let revision = stored.sequence;
        Ok(Some((self.0.readable_or_removed(stored).await?, revision)))
    }

    async fn compare_and_set(&self, key: String, value: &impl Serialize, over: Over) -> Result<Written, Error> {
        Ok(won(self.0.put_entry(BUCKET, &key, value, over.headers()).await)?.into())
    }
}
