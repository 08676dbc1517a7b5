//! Publishes a job bare: to its subject in JetStream, as any NATS client would, and returns the server's full answer.

use std::fmt;
use std::time::Duration;

use async_nats::{HeaderMap, Message, Request, StatusCode};
use bytes::Bytes;
use futures_util::StreamExt;
use jiff::Timestamp;
use serde_json::Value;

use crate::connect::chain;
use crate::world::{NAMESPACE, TENANT, World};

/// Unconfirmed publishes of [`Publish::many`]: enough to keep a server busy, few enough to be answered in time.
const WINDOW: usize = 256;

/// How long an acknowledgement may take.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// The pause before an unconfirmed publish is tried again.
const PAUSE: Duration = Duration::from_millis(100);

/// JetStream's error code for a message id whose first message was lost in an election: it refuses the id for two
/// minutes.
const ID_IN_PROCESS: u64 = 10_158;

impl World {
    /// A job of this type, to be completed with queue, headers and payload and published bare to its subject.
    pub fn publish<'w>(&'w self, job_type: &'w str) -> Publish<'w> {
        let (tenant, queue, priority) = (TENANT.to_owned(), "main".to_owned(), "p5".to_owned());
        Publish { world: self, job_type, tenant, queue, priority, headers: HeaderMap::new() }
    }
}

/// A job that has not been published yet. [`Publish::json`] and similar methods send it.
#[derive(Debug, Clone)]
pub struct Publish<'w> {
    world: &'w World,
    job_type: &'w str,
    tenant: String,
    queue: String,
    priority: String,
    headers: HeaderMap,
}

impl Publish<'_> {
    /// The queue; `main` if not given.
    #[must_use]
    pub fn queue(mut self, queue: &str) -> Self {
        self.queue = queue.to_owned();
        self
    }

    /// The priority, 1 to 9; 5 if not given. Other values are sent unchanged, to be refused.
    #[must_use]
    pub fn priority(mut self, priority: u8) -> Self {
        self.priority = format!("p{priority}");
        self
    }

    /// The tenant; `default` if not given.
    #[must_use]
    pub fn tenant(mut self, tenant: &str) -> Self {
        self.tenant = tenant.to_owned();
        self
    }

    /// A header: `header("Longshore-Delay", "2s")`.
    #[must_use]
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.append(name, value);
        self
    }

    /// Publishes it with this payload and returns the run's id.
    ///
    /// # Panics
    /// If the server refuses it.
    pub async fn json(&self, payload: Value) -> String {
        self.bytes(payload.to_string()).await
    }

    /// As [`Publish::json`], for a payload that is not JSON.
    ///
    /// # Panics
    /// If the server refuses it.
    pub async fn bytes(&self, payload: impl Into<Bytes>) -> String {
        self.send(payload).await.unwrap_or_else(|refused| panic!("{}: {refused}", self.subject())).run_id
    }

    /// Publishes one job for each payload, with at most 256 unconfirmed at a time, and returns their receipts. The lane
    /// holds the jobs in this order.
    ///
    /// # Panics
    /// If the server refuses one, or does not answer for 10 s.
    pub async fn many(&self, payloads: impl IntoIterator<Item = Value>) -> Vec<Receipt> {
        let client = self.world.client();
        let inbox = client.new_inbox();
        let mut answers = client.subscribe(format!("{inbox}.*")).await.expect("the client is connected");
        let (mut payloads, mut receipts) = (payloads.into_iter(), Vec::new());
        let mut open = 0;
        loop {
            // One task sends them one after the other: concurrent requests would overtake each other within the client.
            while open < WINDOW
                && let Some(payload) = payloads.next()
            {
                let reply = format!("{inbox}.{}", receipts.len());
                let (headers, body) = (self.headers.clone(), payload.to_string().into());
                let sent = client.publish_with_reply_and_headers(self.subject(), reply, headers, body).await;
                sent.unwrap_or_else(|error| panic!("{}: {}", self.subject(), chain(&error)));
                receipts.push(None);
                open += 1;
            }
            if open == 0 {
                return receipts.into_iter().flatten().collect();
            }
            let answer = tokio::time::timeout(ANSWER_WITHIN, answers.next()).await;
            let Ok(Some(answer)) = answer else { panic!("{}: {}", self.subject(), Refused::Unanswered) };
            let number = answer.subject.rsplit('.').next().and_then(|number| number.parse::<usize>().ok());
            let ack = acknowledgement(&answer).unwrap_or_else(|refused| panic!("{}: {refused}", self.subject()));
            receipts[number.expect("it answers one of ours")] = Some(self.receipt(&ack));
            open -= 1;
        }
    }

    /// Publishes it and returns the server's answer, whether it accepts or refuses.
    ///
    /// # Errors
    /// If the server refused it, or did not answer within 10 s (it may have stored it all the same).
    pub async fn send(&self, payload: impl Into<Bytes>) -> Result<Receipt, Refused> {
        let request = Request::new().headers(self.headers.clone()).payload(payload.into()).timeout(Some(ANSWER_WITHIN));
        let answer =
            self.world.client().send_request(self.subject(), request).await.map_err(|error| match error.kind() {
                async_nats::RequestErrorKind::NoResponders => Refused::NoStream,
                async_nats::RequestErrorKind::TimedOut => Refused::Unanswered,
                _ => Refused::Unsent(chain(&error)),
            })?;
        Ok(self.receipt(&acknowledgement(&answer)?))
    }

    /// Publishes it under a message id, and repeats that until the server confirms it.
    pub async fn until_stored(&self, id: &str, payload: impl Into<Bytes>) -> Receipt {
        let payload = payload.into();
        let mut generation = 0;
        loop {
            let publish = self.clone().header("Nats-Msg-Id", &format!("{id}-{generation}"));
            match publish.send(payload.clone()).await {
                Ok(receipt) => return receipt,
                Err(Refused::ByJetStream { code: ID_IN_PROCESS, .. }) => generation += 1,
                Err(_) => tokio::time::sleep(PAUSE).await,
            }
        }
    }

    fn receipt(&self, ack: &Value) -> Receipt {
        let receipt = Receipt::of(ack, &self.tenant, &format!("{}-{}", self.queue, self.priority));
        match self.headers.get("Longshore-Run-Id") {
            Some(own) => Receipt { run_id: own.as_str().to_owned(), ..receipt },
            None => receipt,
        }
    }

    /// The subject it is published to.
    pub fn subject(&self) -> String {
        let Publish { tenant, queue, priority, job_type, .. } = self;
        format!("{NAMESPACE}.jobs.{tenant}.{queue}.{priority}.{job_type}")
    }
}

/// Reads the server's answer to a publish.
pub(crate) fn acknowledgement(answer: &Message) -> Result<Value, Refused> {
    if answer.status == Some(StatusCode::NO_RESPONDERS) {
        return Err(Refused::NoStream);
    }
    let ack: Value = serde_json::from_slice(&answer.payload).map_err(|error| Refused::Unsent(error.to_string()))?;
    match ack.get("error") {
        None => Ok(ack),
        Some(error) => Err(Refused::ByJetStream {
            code: error["err_code"].as_u64().unwrap_or(0),
            text: error["description"].as_str().unwrap_or("").to_owned(),
        }),
    }
}

/// A job that the server has stored.
#[derive(Debug, Clone)]
pub struct Receipt {
    /// The tenant it belongs to.
    pub tenant: String,
    /// The id of its run: the client's own, or the id derived from the acknowledgement.
    pub run_id: String,
    /// The stream of its lane.
    pub stream: String,
    /// Its sequence there.
    pub sequence: u64,
    /// Whether the server had seen its `Nats-Msg-Id` before.
    pub duplicate: bool,
    /// When the acknowledgement arrived.
    pub at: Timestamp,
}

impl Receipt {
    /// For a job without a client's id, from the server's acknowledgement: `lane` has the form `main-p5`.
    pub(crate) fn of(ack: &Value, tenant: &str, lane: &str) -> Receipt {
        let sequence = ack["seq"].as_u64().unwrap_or(0);
        Receipt {
            tenant: tenant.to_owned(),
            run_id: format!("{lane}-{sequence}"),
            stream: ack["stream"].as_str().unwrap_or("").to_owned(),
            sequence,
            duplicate: ack["duplicate"].as_bool().unwrap_or(false),
            at: Timestamp::now(),
        }
    }
}

/// Why a publish gave no receipt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refused {
    /// No stream takes this subject.
    NoStream,
    /// JetStream refused it: a full lane, a broken header.
    ByJetStream {
        /// JetStream's error code (`err_code`).
        code: u64,
        /// JetStream's description.
        text: String,
    },
    /// No answer came in time. It may have been stored.
    Unanswered,
    /// It was not sent, or the answer was not an acknowledgement.
    Unsent(String),
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refused::NoStream => f.write_str("no stream takes this subject"),
            Refused::ByJetStream { code, text } => write!(f, "refused by JetStream: {text} ({code})"),
            Refused::Unanswered => f.write_str("no acknowledgement came in time"),
            Refused::Unsent(reason) => write!(f, "not published: {reason}"),
        }
    }
}
