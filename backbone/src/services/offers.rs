//! This node's own handlers, offered to nodes that lack them: the NATS micro service `longshore-handlers`, one endpoint
//! per type, on the subjects of remote handlers.
//!
//! A node that calls such a handler sees a remote handler like any other: it holds the job, its lease and its record.
//! What a caller may be is not checked here: NATS permissions say who may publish to a handler. But a reply goes to
//! inboxes of nodes only, never into the namespace or the system's own subjects.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use async_nats::{HeaderMap, Message, Request, Subject};
use bytes::Bytes;
use longshore_domain::{DurationText, Job, JobType, Priority, Queue, RunId, Tenant, Timestamp};

use crate::Backbone;
use crate::connection::subscription::{Subscription, next_of};
use crate::error::Error;
use crate::handlers::{HEARTBEAT, SLOTS, SignalKind};
use crate::runs::steps::{StepAnswer, StepCall, StepResult};
use crate::services::micro::{self, GROUP};
use crate::wire::header::{self, names};

/// The name of the service.
const NAME: &str = "longshore-handlers";
/// How long a caller has to answer a heartbeat.
const ANSWERS_WITHIN: Duration = Duration::from_secs(2);
/// Maximum bytes of a failure's text, which travels in a header.
const TEXT_MAX: usize = 4_096;

/// A type whose handler this node offers.
#[derive(Debug, Clone)]
pub struct Offer {
    /// The type.
    pub job_type: JobType,
    /// How many jobs of other nodes it takes at once.
    pub slots: u32,
}

/// The service, for as long as this value lives.
#[derive(Debug)]
pub struct Offers {
    backbone: Backbone,
    shown: micro::Service,
    endpoints: HashMap<JobType, Arc<micro::Endpoint>>,
    questions: Vec<Subscription>,
    calls: Vec<Subscription>,
    cancels: Subscription,
    is_withdrawn: bool,
}

/// What arrives at the service.
#[derive(Debug)]
pub enum Arrived {
    /// Another node has a job for one of the handlers.
    Call(Box<IncomingCall>),
    /// An attempt of this run is to stop, wherever it runs.
    Cancel(Tenant, RunId),
}

/// A job of another node.
#[derive(Debug)]
pub struct IncomingCall {
    /// Names, priority and run id. The client's options stay with the node that holds the job.
    pub job: Job,
    /// The round.
    pub round: u32,
    /// The attempt within the round.
    pub attempt: u32,
    /// Maximum number of attempts in a round.
    pub max_attempts: u32,
    /// When the attempt is over, by the clock of the node that holds it.
    pub deadline: Timestamp,
    /// The client's own headers.
    pub headers: Vec<(String, String)>,
    /// The client's own bytes.
    pub payload: Bytes,
    /// The way back.
    pub reply_to: ReplyTo,
}

/// The way back to the node that called.
#[derive(Debug, Clone)]
pub struct ReplyTo {
    backbone: Backbone,
    subject: Subject,
    endpoint: Arc<micro::Endpoint>,
    since: Instant,
}

/// How a call ended.
#[derive(Debug)]
pub enum OwnReply {
    /// With a result.
    Done {
        /// Its bytes.
        result: Bytes,
        /// Their content type; JSON if absent.
        content_type: Option<String>,
    },
    /// With a failure.
    Failed {
        /// Whether no other attempt would help.
        permanent: bool,
        /// What went wrong.
        message: String,
        /// The least time until the next attempt.
        retry_after: Option<Duration>,
    },
    /// The job is to be put back for so long.
    Snoozed(Duration),
    /// Not now, for this reason: no attempt is used.
    Busy(&'static str),
}

impl Backbone {
    /// Offers handlers to other nodes. Each call is signalled at least every `heartbeat`, says the service.
    ///
    /// # Errors
    /// A subject cannot be subscribed to.
    pub async fn offer(
        &self,
        offers: &[Offer],
        heartbeat: Duration,
        (version, started): (&str, Timestamp),
    ) -> Result<Offers, Error> {
        let (link, names) = (self.work(), self.names());
        let endpoint = |offer: &Offer| {
            let metadata = [(SLOTS, offer.slots.to_string()), (HEARTBEAT, DurationText(heartbeat).to_string())];
            let subject = names.work_of_all(&offer.job_type);
            let endpoint = micro::Endpoint::new(offer.job_type.as_str(), subject, BTreeMap::from(metadata));
            (offer.job_type.clone(), Arc::new(endpoint))
        };
        let shown = micro::Service {
            name: NAME,
            description: "Handlers inside a Longshore node, for nodes that lack them",
            id: uuid::Uuid::now_v7().simple().to_string(),
            version: version.to_owned(),
            started,
            metadata: BTreeMap::from([("namespace", names.namespace().to_owned())]),
        };
        let cancels = link.subscribe(names.cancel_all()).await?;
        let mut calls = Vec::with_capacity(offers.len());
        for offer in offers {
            calls.push(link.queue_subscribe(names.work_of_all(&offer.job_type), GROUP).await?);
        }
        let mut questions = Vec::new();
        for subject in micro::subjects(NAME, &shown.id) {
            questions.push(link.subscribe(subject).await?);
        }
        let endpoints = offers.iter().map(endpoint).collect();
        Ok(Offers { backbone: self.clone(), shown, endpoints, questions, calls, cancels, is_withdrawn: false })
    }
}

impl Offers {
    /// The next call or cancellation; `None` when the connection has ended. Questions about the service are answered
    /// here.
    pub async fn next(&mut self) -> Option<Arrived> {
        loop {
            tokio::select! {
                biased;
                message = self.cancels.next() => {
                    if let Some((tenant, run)) = self.backbone.names().read_cancel(&message?.subject)
                        && let (Ok(tenant), Ok(run)) = (Tenant::parse(tenant), RunId::parse(run))
                    {
                        return Some(Arrived::Cancel(tenant, run));
                    }
                }
                message = next_of(&mut self.questions) => self.describe(message?).await,
                message = next_of_many(&mut self.calls), if !self.calls.is_empty() => match message {
                    Some(message) => {
                        if let Some(call) = self.read(message).await {
                            return Some(Arrived::Call(Box::new(call)));
                        }
                    }
                    None if self.is_withdrawn => {}
                    None => return None,
                },
            }
        }
    }

    /// Takes no more calls; those on their way still arrive.
    pub async fn withdraw(&mut self) {
        self.is_withdrawn = true;
        for calls in &mut self.calls {
            calls.unsubscribe().await;
        }
    }

    async fn describe(&self, message: Message) {
        let Some(reply) = message.reply.filter(|reply| self.backbone.may_answer(reply)) else { return };
        let Some(verb) = micro::verb(&message.subject) else { return };
        let endpoints = self.endpoints.values().filter(|_| !self.is_withdrawn);
        let body = self.shown.describe(verb, endpoints.map(AsRef::as_ref)).to_string();
        self.backbone.work().publish(reply, Bytes::from(body)).await;
    }

    /// Reads a call. One that no node has sent is answered with a failure, if it can be answered at all.
    async fn read(&self, message: Message) -> Option<IncomingCall> {
        let (tenant, job_type) = self.backbone.names().read_work(&message.subject)?;
        let (tenant, job_type) = (Tenant::parse(tenant).ok()?, JobType::parse(job_type).ok()?);
        let endpoint = Arc::clone(self.endpoints.get(&job_type)?);
        let backbone = self.backbone.clone();
        let subject = message.reply.filter(|reply| backbone.names().is_replies(reply))?;
        let reply_to = ReplyTo { backbone, subject, endpoint, since: Instant::now() };
        let headers = message.headers.unwrap_or_default();
        match read_headers(&headers) {
            Some(said) => {
                let Said { run_id, queue, priority, round, attempt, max_attempts, deadline } = said;
                let job = Job { tenant, queue, priority, job_type, run_id, options: None };
                let (headers, payload) = (header::own(Some(&headers)), message.payload);
                Some(IncomingCall { job, round, attempt, max_attempts, deadline, headers, payload, reply_to })
            }
            None => {
                let message = "the request does not say which run it is about: only nodes send jobs here".to_owned();
                reply_to.send(OwnReply::Failed { permanent: true, message, retry_after: None }).await;
                None
            }
        }
    }
}

/// What the headers of a call say.
struct Said {
    run_id: RunId,
    queue: Queue,
    priority: Priority,
    round: u32,
    attempt: u32,
    max_attempts: u32,
    deadline: Timestamp,
}

fn read_headers(headers: &HeaderMap) -> Option<Said> {
    let text = |name| headers.get(name).map(async_nats::HeaderValue::as_str);
    Some(Said {
        run_id: RunId::parse(text(names::RUN_ID)?).ok()?,
        queue: Queue::parse(text(names::QUEUE)?).ok()?,
        priority: Priority::parse(text(names::PRIORITY)?).ok()?,
        round: text(names::ROUND)?.parse().ok()?,
        attempt: text(names::ATTEMPT)?.parse().ok()?,
        max_attempts: text(names::MAX_ATTEMPTS)?.parse().ok()?,
        deadline: Timestamp::parse(text(names::ATTEMPT_DEADLINE)?).ok()?,
    })
}

/// The next message of any of these. One that has ended is removed; `None` once all have.
async fn next_of_many(subscriptions: &mut Vec<Subscription>) -> Option<Message> {
    std::future::poll_fn(|context| {
        let mut at = 0;
        while at < subscriptions.len() {
            match subscriptions[at].poll_next(context) {
                Poll::Ready(Some(message)) => return Poll::Ready(Some(message)),
                Poll::Ready(None) => drop(subscriptions.swap_remove(at)),
                Poll::Pending => at += 1,
            }
        }
        if subscriptions.is_empty() { Poll::Ready(None) } else { Poll::Pending }
    })
    .await
}

impl ReplyTo {
    /// Sends a signal.
    pub async fn signal(&self, kind: SignalKind) {
        let (word, body) = word_of(kind);
        let mut headers = HeaderMap::new();
        headers.insert(names::SIGNAL, word);
        self.backbone.work().publish_with_headers(self.subject.clone(), headers, body).await;
    }

    /// Sends a heartbeat, and waits for the answer: whether the attempt is to stop. `None`: there was none in time.
    pub async fn beat(&self) -> Option<bool> {
        let mut headers = HeaderMap::new();
        headers.insert(names::SIGNAL, word_of(SignalKind::Heartbeat).0);
        let request = Request::new().headers(headers).timeout(Some(ANSWERS_WITHIN));
        let answer = self.backbone.work().request(self.subject.clone(), request).await.ok()?;
        let headers = answer.headers?;
        Some(headers.get(names::CANCEL)?.as_str() == "true")
    }

    /// Asks the node that holds the job about a step, or has it store the result.
    ///
    /// # Errors
    /// The status and reason of its refusal; 503: it does not answer.
    pub async fn step(&self, call: &StepCall) -> Result<Option<StepResult>, (u16, String)> {
        let mut headers = HeaderMap::new();
        headers.insert(names::SIGNAL, if call.result.is_some() { "step-put" } else { "step-get" });
        let body = Bytes::from(serde_json::to_vec(call).unwrap_or_default());
        let request = Request::new().headers(headers).payload(body).timeout(Some(ANSWERS_WITHIN));
        let answer = self.backbone.work().request(self.subject.clone(), request).await;
        let answer = answer.map_err(|error| (503, format!("the node that holds the job does not answer: {error}")))?;
        let said = |name| answer.headers.as_ref()?.get(name).map(async_nats::HeaderValue::as_str);
        if let Some(code) = said(names::ERROR_CODE) {
            return Err((code.parse().unwrap_or(500), said(names::ERROR).unwrap_or_default().to_owned()));
        }
        let found: StepAnswer = serde_json::from_slice(&answer.payload).unwrap_or_default();
        Ok(found.0)
    }

    /// Replies, which ends the call.
    pub async fn send(self, reply: OwnReply) {
        let (headers, payload, failed) = self.written(reply);
        self.endpoint.count(self.since.elapsed(), failed);
        self.backbone.work().publish_with_headers(self.subject, headers, payload).await;
    }

    fn written(&self, reply: OwnReply) -> (HeaderMap, Bytes, bool) {
        let mut headers = HeaderMap::new();
        match reply {
            OwnReply::Done { result, .. } if result.len() > self.backbone.max_in_answer() => {
                let (size, max) = (result.len(), self.backbone.max_in_answer());
                let message = format!(
                    "the result has {size} bytes, {max} fit into a message by this NATS server's max_payload: keep it elsewhere and return where"
                );
                self.written(OwnReply::Failed { permanent: true, message, retry_after: None })
            }
            OwnReply::Done { result, content_type } => {
                if let Some(content_type) = content_type.filter(|text| !text.trim().is_empty()) {
                    headers.insert(names::CONTENT_TYPE, one_line(&content_type));
                }
                (headers, result, false)
            }
            OwnReply::Failed { permanent, message, retry_after } => {
                headers.insert(names::ERROR, one_line(&message));
                headers.insert(names::RETRYABLE, if permanent { "false" } else { "true" });
                if let Some(after) = retry_after.filter(|after| !permanent && !after.is_zero()) {
                    headers.insert(names::RETRY_AFTER, at_least_a_millisecond(after));
                }
                (headers, Bytes::new(), true)
            }
            OwnReply::Snoozed(wait) => {
                headers.insert(names::SNOOZE, at_least_a_millisecond(wait));
                (headers, Bytes::new(), false)
            }
            OwnReply::Busy(why) => {
                headers.insert(names::ERROR_CODE, "429");
                headers.insert(names::ERROR, why);
                (headers, Bytes::new(), false)
            }
        }
    }
}

fn word_of(kind: SignalKind) -> (&'static str, Bytes) {
    match kind {
        SignalKind::Started => ("started", Bytes::new()),
        SignalKind::Heartbeat => ("heartbeat", Bytes::new()),
        SignalKind::Progress(body) => ("progress", body),
        SignalKind::Log(body) => ("log", body),
        SignalKind::StepGet(body) => ("step-get", body),
        SignalKind::StepPut(body) => ("step-put", body),
    }
}

/// A header's value: one line, never empty, because a failure without a text would be none.
fn one_line(text: &str) -> String {
    let text = text[..text.floor_char_boundary(TEXT_MAX)].replace(char::is_control, " ");
    if text.trim().is_empty() { "no message".to_owned() } else { text }
}

/// On the wire a wait has whole milliseconds, and none is zero.
fn at_least_a_millisecond(wait: Duration) -> String {
    DurationText(wait.max(Duration::from_millis(1))).to_string()
}
