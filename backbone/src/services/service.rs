//! The NATS micro service `longshore`: its endpoints. `micro.rs` says what it answers about itself.
//!
//! It replaces the client library's service for one reason: a node may not answer to just any reply subject. NATS does
//! not check whether a publisher may use it, so a client could make a privileged node write into `$JS.API` or another
//! tenant's subjects; the library's service answers to any reply subject.

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use async_nats::{HeaderMap, Message, Subject};
use bytes::Bytes;
use futures_util::FutureExt as _;
use longshore_domain::Timestamp;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::Backbone;
use crate::connection::subscription;
use crate::error::Error;
use crate::services::micro::{self, GROUP};
use crate::wire::api::{ApiError, Code};
use crate::wire::header::{self, names};
use crate::wire::json::Object;

const DESCRIPTION: &str = "A distributed job queue on NATS JetStream";
/// Requests that one node works on at once; more are refused with 503.
pub const AT_ONCE: usize = 1_024;
/// Maximum bytes of an error's text. The text is sent in a header, too, and may quote the request.
const MESSAGE_MAX: usize = 4_096;
/// Maximum bytes of what a caller says of itself.
const SAID_MAX: usize = 256;
/// What a message may take beside its payload, of the server's `max_payload`.
const BESIDE: usize = 1_024;

/// A caller's trace context, as its headers have it.
#[derive(Debug, Clone)]
pub struct TraceContext {
    /// `traceparent`.
    pub parent: String,
    /// `tracestate`.
    pub state: Option<String>,
}

/// One request to an endpoint.
#[derive(Debug, Clone)]
pub struct Request {
    /// The tenant in its subject, as it is written there.
    pub tenant: String,
    /// The endpoint, for example `runs.get`.
    pub endpoint: String,
    /// The caller's trace context, if it sent one.
    pub trace: Option<TraceContext>,
    /// Who asks, as the caller says itself.
    pub by: Option<String>,
    /// Why, as the caller says.
    pub reason: Option<String>,
    /// The inbox to which the answer goes, without its last part.
    pub from: String,
    /// Whether its answer hides the payloads and results of types that ask for it.
    pub redaction: Redaction,
    /// Its body.
    pub body: Bytes,
}

/// What an answer shows of types with `redact`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Redaction {
    /// Everything: NATS permissions decide who may ask, or a job is handed out.
    Never,
    /// No payload and no result.
    Hides,
    /// Everything, as the asker wished; the audit has it.
    Revealed,
}

/// Serves requests.
pub trait Serve: Send + Sync + 'static {
    /// Called when the service begins to receive requests.
    fn begins(&self) {}

    /// Answers one request.
    fn serve(&self, request: Request) -> impl Future<Output = Result<Object, ApiError>> + Send;

    /// Whether requests to this endpoint wait for something to happen. Those do not count towards the limit of
    /// concurrent requests; the implementation bounds them.
    fn waits(&self, endpoint: &str) -> bool;

    /// Set when the service is to end.
    fn ends(&self) -> &CancellationToken;
}

struct Service<S> {
    backbone: Backbone,
    shown: micro::Service,
    endpoints: Vec<micro::Endpoint>,
    room: Arc<Semaphore>,
    /// The requests that it works on.
    requests: TaskTracker,
    serve: S,
}

/// Serves `endpoints` until the returned future is dropped or the connection is closed; or until it is to end, and has
/// answered all requests that came before.
///
/// # Errors
/// A subject cannot be subscribed to.
pub async fn run<S: Serve>(
    backbone: Backbone,
    version: &str,
    started: Timestamp,
    endpoints: &[&str],
    serve: S,
) -> Result<(), Error> {
    let link = backbone.service().clone();
    let endpoint = |name: &&str| micro::Endpoint::new(name, backbone.names().api("*", name), BTreeMap::new());
    let service = Arc::new(Service {
        shown: micro::Service::new(backbone.names(), "longshore", DESCRIPTION, version, started),
        endpoints: endpoints.iter().map(endpoint).collect(),
        room: Arc::new(Semaphore::new(AT_ONCE)),
        requests: TaskTracker::new(),
        serve,
        backbone,
    });
    let mut subscriptions = Vec::new();
    for subject in micro::subjects(service.shown.name, &service.shown.id) {
        subscriptions.push(link.subscribe(subject).await?);
    }
    subscriptions.push(link.queue_subscribe(service.backbone.names().api("*", ">"), GROUP).await?);
    // A failure means that the connection was just lost; the subscriptions come back with it.
    let _ = link.settled().await;
    service.serve.begins();
    let ends = service.serve.ends().clone();
    // Requests, which come last, give way to the few messages that ask for services.
    while let Some(Some(message)) = ends.run_until_cancelled(subscription::next_of(&mut subscriptions)).await {
        Arc::clone(&service).take(message).await;
    }
    if ends.is_cancelled() {
        for subscription in &mut subscriptions {
            subscription.unsubscribe().await;
            while let Some(message) = subscription.next().await {
                Arc::clone(&service).take(message).await;
            }
        }
        service.requests.close();
        service.requests.wait().await;
    }
    Ok(())
}

impl Backbone {
    /// Maximum bytes of an answer's body.
    pub fn max_in_answer(&self) -> usize {
        self.max_payload().saturating_sub(BESIDE)
    }
}

impl<S: Serve> Service<S> {
    async fn take(self: Arc<Self>, message: Message) {
        let Some(reply) = message.reply.clone().filter(|reply| self.backbone.may_answer(reply)) else { return };
        if let Some(verb) = micro::verb(&message.subject) {
            let body = self.shown.describe(verb, self.endpoints.iter()).to_string();
            self.backbone.service().publish(reply, Bytes::from(body)).await;
            return;
        }
        let endpoint = self.backbone.names().read_api(&message.subject).map(|(_, endpoint)| endpoint);
        let room = match endpoint.is_some_and(|endpoint| self.serve.waits(endpoint)) {
            true => None,
            false => match Arc::clone(&self.room).try_acquire_owned() {
                Ok(room) => Some(room),
                Err(_) => {
                    let error = ApiError::unavailable(format!("this node is working on {AT_ONCE} requests already"));
                    return self.answer(reply, Err(error)).await;
                }
            },
        };
        let requests = self.requests.clone();
        requests.spawn(async move {
            let subject = message.subject.clone();
            let answer = AssertUnwindSafe(self.call(message)).catch_unwind().await.unwrap_or_else(|_| {
                // The panic hook has written the cause to stderr.
                tracing::error!(%subject, "a request to the API panicked");
                Err(ApiError::new(Code::Internal, "the node failed over this request; its log says why"))
            });
            self.answer(reply, answer).await;
            drop(room);
        });
    }

    async fn call(&self, message: Message) -> Result<Object, ApiError> {
        let Some((tenant, name)) = self.backbone.names().read_api(&message.subject) else {
            return Err(ApiError::not_found("no such endpoint"));
        };
        let Some(endpoint) = self.endpoints.iter().find(|endpoint| endpoint.name == name) else {
            let names: Vec<&str> = self.endpoints.iter().map(|endpoint| endpoint.name.as_str()).collect();
            return Err(ApiError::not_found(format!("no endpoint {name:?}; there are {}", names.join(", ")))
                .hint("nodes and clients of different versions know different endpoints: nodes.list shows the nodes' versions"));
        };
        let started = std::time::Instant::now();
        let header =
            |name| message.headers.as_ref().and_then(|headers| header::value_of(headers, name)).map(str::to_owned);
        if let Some(reason) = header(names::UNREADABLE) {
            endpoint.count(started.elapsed(), true);
            return Err(ApiError::malformed(format!("the request's headers cannot be read: {reason}")));
        }
        let trace = header("traceparent").map(|parent| TraceContext { parent, state: header("tracestate") });
        let inbox = message.reply.as_deref().and_then(|reply| reply.rsplit_once('.'));
        let request = Request {
            tenant: tenant.to_owned(),
            endpoint: name.to_owned(),
            trace,
            by: header(names::BY).as_deref().map(cut),
            reason: header(names::REASON).as_deref().map(cut),
            from: inbox.map(|(inbox, _)| cut(inbox)).unwrap_or_default(),
            redaction: Redaction::Never,
            body: message.payload,
        };
        let answer = self.serve.serve(request).await;
        endpoint.count(started.elapsed(), answer.is_err());
        answer
    }

    async fn answer(&self, reply: Subject, answer: Result<Object, ApiError>) {
        let link = self.backbone.service();
        let max = self.backbone.max_in_answer();
        match answer.and_then(|object| within(object, max)) {
            Ok(object) => link.publish(reply, Bytes::from(object.into_bytes())).await,
            Err(mut error) => {
                error.message.truncate(error.message.floor_char_boundary(MESSAGE_MAX.min(max / 4)));
                let mut headers = HeaderMap::new();
                headers.insert(names::ERROR_CODE, error.code.to_string());
                // A header holds one line; the text may have more.
                headers.insert(names::ERROR, error.message.replace(char::is_control, " "));
                let body = serde_json::to_vec(&error).unwrap_or_default();
                link.publish_with_headers(reply, headers, Bytes::from(body)).await;
            }
        }
    }
}

/// What a caller says of itself; no more than a line of it is kept.
fn cut(text: &str) -> String {
    text[..text.floor_char_boundary(SAID_MAX)].to_owned()
}

/// The answer, if it fits into one message.
fn within(answer: Object, max: usize) -> Result<Object, ApiError> {
    if answer.size() <= max {
        return Ok(answer);
    }
    let message =
        format!("the answer has {} bytes, {max} fit into a message by this NATS server's max_payload", answer.size());
    Err(ApiError::new(Code::TooLarge, message))
}
