//! Services of this node on the subjects of remote handlers: its own handlers, offered to nodes that lack them
//! (`longshore-handlers`), and its pullers, who ask the API for work ([`super::pulls`]).
//!
//! A node that calls such a service sees a remote handler like any other: it holds the job, its lease and its record.
//! What a caller may be is not checked here: NATS permissions say who may publish to a handler. But a reply goes to
//! inboxes of nodes only, never into the namespace or the system's own subjects.

use std::collections::BTreeMap;
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
use crate::messages::request::json;
use crate::runs::steps::{StepCall, StepResult};
use crate::services::micro::{self, GROUP};
use crate::services::unread::SentReply;
use crate::wire::header::{self, names};

const NAME: &str = "longshore-handlers";
/// How long a caller has to answer a heartbeat.
const ANSWERS_WITHIN: Duration = Duration::from_secs(2);
/// Maximum bytes of a failure's text, which travels in a header.
const TEXT_MAX: usize = 4_096;

/// A type whose jobs a service takes.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Offer {
    /// Whose jobs; `None`: those of all.
    pub tenant: Option<Tenant>,
    /// The type.
    pub job_type: JobType,
    /// How many jobs it takes from each node at once.
    pub slots: u32,
}

/// The service, for as long as this value lives.
#[derive(Debug)]
pub struct Offers {
    backbone: Backbone,
    shown: micro::Service,
    heartbeat: Option<Duration>,
    questions: Vec<Subscription>,
    calls: Vec<Calls>,
    cancels: Subscription,
}

#[derive(Debug)]
struct Calls {
    endpoint: Arc<micro::Endpoint>,
    messages: Subscription,
    /// Those on their way still arrive.
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
    /// Proves, in calls of the API, that the caller has the attempt.
    pub token: String,
    /// All headers, for another node.
    pub(super) all: HeaderMap,
    /// The way back.
    pub reply_to: ReplyTo,
}

/// The way back to the node that called.
#[derive(Debug, Clone)]
pub struct ReplyTo {
    pub(super) backbone: Backbone,
    pub(super) subject: Subject,
    endpoint: Arc<micro::Endpoint>,
    since: Instant,
}

/// How a call ended.
#[derive(Debug)]
#[expect(missing_docs, reason = "each variant says what its fields are")]
pub enum OwnReply {
    /// With a result: JSON if no content type is named.
    Done { result: Bytes, content_type: Option<String> },
    /// With a failure. If it is permanent, no other attempt would help; else the next comes after that time at the
    /// earliest.
    Failed { permanent: bool, message: String, retry_after: Option<Duration> },
    /// The job is to be put back for so long.
    Snoozed(Duration),
    /// The attempt goes on elsewhere, and ends or gives a sign within so long.
    Detached(Duration),
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
        version: &str,
        started: Timestamp,
    ) -> Result<Offers, Error> {
        let description = "Handlers inside a Longshore node, for nodes that lack them";
        let mut open = Offers::open(self, NAME, description, version, started).await?;
        open.heartbeat = Some(heartbeat);
        for offer in offers {
            open.add(offer).await?;
        }
        Ok(open)
    }
}

impl Offers {
    pub(super) async fn open(
        backbone: &Backbone,
        name: &'static str,
        description: &'static str,
        version: &str,
        started: Timestamp,
    ) -> Result<Self, Error> {
        let (link, names) = (backbone.work(), backbone.names());
        let shown = micro::Service::new(names, name, description, version, started);
        let cancels = link.subscribe(names.cancel_all()).await?;
        let mut questions = Vec::new();
        for subject in micro::subjects(name, &shown.id) {
            questions.push(link.subscribe(subject).await?);
        }
        Ok(Self { backbone: backbone.clone(), shown, heartbeat: None, questions, calls: Vec::new(), cancels })
    }

    /// Takes jobs of a type from now on.
    ///
    /// # Errors
    /// The subject cannot be subscribed to.
    pub async fn add(&mut self, offer: &Offer) -> Result<(), Error> {
        let mut metadata = BTreeMap::from([(SLOTS, offer.slots.to_string())]);
        metadata.extend(self.heartbeat.map(|heartbeat| (HEARTBEAT, DurationText(heartbeat).to_string())));
        let subject = self.subject(offer);
        let messages = self.backbone.work().queue_subscribe(subject.clone(), GROUP).await?;
        let endpoint = Arc::new(micro::Endpoint::new(offer.job_type.as_str(), subject, metadata));
        self.calls.push(Calls { endpoint, messages, is_withdrawn: false });
        Ok(())
    }

    /// Takes no more jobs of a type; those on their way still arrive.
    pub async fn remove(&mut self, offer: &Offer) {
        let subject = self.subject(offer);
        for calls in self.calls.iter_mut().filter(|calls| calls.endpoint.subject == subject) {
            calls.withdraw().await;
        }
    }

    fn subject(&self, offer: &Offer) -> String {
        let names = self.backbone.names();
        offer
            .tenant
            .as_ref()
            .map_or_else(|| names.work_of_all(&offer.job_type), |tenant| names.work(tenant, &offer.job_type))
    }

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
                call = next_of_many(&mut self.calls) => {
                    let (message, endpoint) = call?;
                    if let Some((tenant, job_type)) = self.backbone.names().read_work(&message.subject)
                        && let (Ok(tenant), Ok(job_type)) = (Tenant::parse(tenant), JobType::parse(job_type))
                        && let Some(call) = read(&self.backbone, tenant, job_type, message, endpoint).await
                    {
                        return Some(Arrived::Call(Box::new(call)));
                    }
                }
            }
        }
    }

    /// Takes no more calls; those on their way still arrive.
    pub async fn withdraw(&mut self) {
        for calls in &mut self.calls {
            calls.withdraw().await;
        }
    }

    async fn describe(&self, message: Message) {
        let Some(reply) = message.reply.filter(|reply| self.backbone.may_answer(reply)) else { return };
        let Some(verb) = micro::verb(&message.subject) else { return };
        // Who looks for services finds those that do something.
        if self.calls.iter().all(|calls| calls.is_withdrawn) {
            return;
        }
        let taken = self.calls.iter().filter(|calls| !calls.is_withdrawn);
        let body = self.shown.describe(verb, taken.map(|calls| calls.endpoint.as_ref())).to_string();
        self.backbone.work().publish(reply, Bytes::from(body)).await;
    }
}

impl Calls {
    async fn withdraw(&mut self) {
        self.is_withdrawn = true;
        self.messages.unsubscribe().await;
    }
}

/// Reads a call about a job of that tenant and type. One that no node has sent is answered with a failure, if it can be
/// answered at all.
pub(super) async fn read(
    backbone: &Backbone,
    tenant: Tenant,
    job_type: JobType,
    message: Message,
    endpoint: Arc<micro::Endpoint>,
) -> Option<IncomingCall> {
    let subject = message.reply.filter(|reply| backbone.names().is_replies(reply))?;
    let reply_to = ReplyTo { backbone: backbone.clone(), subject, endpoint, since: Instant::now() };
    let all = message.headers.unwrap_or_default();
    match read_headers(&all) {
        Some(said) => {
            let CallHeaders { run_id, queue, priority, round, attempt, max_attempts, deadline, token } = said;
            let job = Job { tenant, queue, priority, job_type, run_id, options: None };
            let (headers, payload) = (header::own(Some(&all)), message.payload);
            Some(IncomingCall { job, round, attempt, max_attempts, deadline, headers, payload, token, all, reply_to })
        }
        None => {
            let message = "the request does not say which run it is about: only nodes send jobs here".to_owned();
            reply_to.send(OwnReply::Failed { permanent: true, message, retry_after: None }).await;
            None
        }
    }
}

struct CallHeaders {
    run_id: RunId,
    queue: Queue,
    priority: Priority,
    round: u32,
    attempt: u32,
    max_attempts: u32,
    deadline: Timestamp,
    token: String,
}

fn read_headers(headers: &HeaderMap) -> Option<CallHeaders> {
    let text = |name| headers.get(name).map(async_nats::HeaderValue::as_str);
    Some(CallHeaders {
        run_id: RunId::parse(text(names::RUN_ID)?).ok()?,
        queue: Queue::parse(text(names::QUEUE)?).ok()?,
        priority: Priority::parse(text(names::PRIORITY)?).ok()?,
        round: text(names::ROUND)?.parse().ok()?,
        attempt: text(names::ATTEMPT)?.parse().ok()?,
        max_attempts: text(names::MAX_ATTEMPTS)?.parse().ok()?,
        deadline: Timestamp::parse(text(names::ATTEMPT_DEADLINE)?).ok()?,
        token: text(names::ATTEMPT_TOKEN).unwrap_or_default().to_owned(),
    })
}

/// The next call of any offer, with its endpoint; `None` when the connection has ended. Pending without an offer.
async fn next_of_many(offers: &mut Vec<Calls>) -> Option<(Message, Arc<micro::Endpoint>)> {
    std::future::poll_fn(|context| {
        let (mut found, mut has_ended) = (None, false);
        offers.retain_mut(|calls| {
            if found.is_some() {
                return true;
            }
            match calls.messages.poll_next(context) {
                Poll::Ready(Some(message)) => found = Some((message, Arc::clone(&calls.endpoint))),
                Poll::Ready(None) => {
                    has_ended |= !calls.is_withdrawn;
                    return false;
                }
                Poll::Pending => {}
            }
            true
        });
        match found {
            None if has_ended => Poll::Ready(None),
            None => Poll::Pending,
            found => Poll::Ready(found),
        }
    })
    .await
}

impl ReplyTo {
    /// Sends a signal, with what it says beside its kind.
    pub async fn signal(&self, kind: SignalKind, body: Bytes) {
        let headers = header::single(names::SIGNAL, kind.as_str());
        self.backbone.work().publish_with_headers(self.subject.clone(), headers, body).await;
    }

    /// Sends a heartbeat, and waits for the answer: whether the attempt is to stop. `None`: there was none in time.
    pub async fn beat(&self) -> Option<bool> {
        let headers = header::single(names::SIGNAL, SignalKind::Heartbeat.as_str());
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
        let kind = if call.result.is_some() { SignalKind::StepPut } else { SignalKind::StepGet };
        let headers = header::single(names::SIGNAL, kind.as_str());
        let request = Request::new().headers(headers).payload(json(call)).timeout(Some(ANSWERS_WITHIN));
        let answer = self.backbone.work().request(self.subject.clone(), request).await;
        let answer = answer.map_err(|error| (503, format!("the node that holds the job does not answer: {error}")))?;
        let said = |name| answer.headers.as_ref()?.get(name).map(async_nats::HeaderValue::as_str);
        if let Some(code) = said(names::ERROR_CODE) {
            return Err((code.parse().unwrap_or(500), said(names::ERROR).unwrap_or_default().to_owned()));
        }
        // One that lacks a result, or when it was stored, says that there is none.
        Ok(serde_json::from_slice(&answer.payload).ok())
    }

    /// Replies, which ends the call. Should the connection be lost before the server has read it, it replies again.
    pub async fn send(self, reply: OwnReply) {
        let (headers, payload, failed) = self.written(reply);
        self.endpoint.count(self.since.elapsed(), failed);
        let (backbone, losses) = (self.backbone.clone(), self.backbone.work().losses());
        let sent = SentReply { to: self, headers, payload, at: Instant::now(), losses };
        sent.send().await;
        backbone.0.unread_replies.add(sent);
    }

    fn written(&self, reply: OwnReply) -> (HeaderMap, Bytes, bool) {
        let (mut headers, mut payload, mut failed) = (HeaderMap::new(), Bytes::new(), false);
        match reply {
            OwnReply::Done { result, .. } if result.len() > self.backbone.max_in_answer() => {
                let (size, max) = (result.len(), self.backbone.max_in_answer());
                let message = format!(
                    "the result has {size} bytes, {max} fit into a message by this NATS server's max_payload: keep it elsewhere and return where"
                );
                return self.written(OwnReply::Failed { permanent: true, message, retry_after: None });
            }
            OwnReply::Done { result, content_type } => {
                if let Some(content_type) = content_type.filter(|text| !text.trim().is_empty()) {
                    headers.insert(names::CONTENT_TYPE, one_line(&content_type));
                }
                payload = result;
            }
            OwnReply::Failed { permanent, message, retry_after } => {
                headers.insert(names::ERROR, one_line(&message));
                headers.insert(names::RETRYABLE, if permanent { "false" } else { "true" });
                if let Some(after) = retry_after.filter(|after| !permanent && !after.is_zero()) {
                    headers.insert(names::RETRY_AFTER, at_least_a_millisecond(after));
                }
                failed = true;
            }
            OwnReply::Snoozed(wait) => headers.insert(names::SNOOZE, at_least_a_millisecond(wait)),
            OwnReply::Detached(lasts) => headers.insert(names::DETACH, at_least_a_millisecond(lasts)),
            OwnReply::Busy(why) => {
                headers.insert(names::ERROR_CODE, "429");
                headers.insert(names::ERROR, why);
            }
        }
        (headers, payload, failed)
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
