//! Requests to remote handlers and what they send back: signals, then a reply.
//!
//! One inbox serves all requests of a node. A reply always reaches its call; a signal is dropped when its receiver does
//! not keep up, because the next signal says as much.
//!
//! A handler may reply with bytes that end the connection. Nothing says whose reply that was, and other replies on
//! their way are lost with the connection. Calling a handler again for that could run a slow job twice. So a stream in
//! the server's memory ([`crate::streams::shape::replies`]) keeps the last message to each call for a while. After every loss
//! the open calls are looked up there: a readable reply is delivered, an unreadable one fails its own call, and a call
//! without a reply goes on, unless its request never reached the server. A marker, sent after every request and kept in
//! the stream as well, tells whether it did, if the stream is older than the request: it is gone with its server, and made
//! again empty. Without that stream, a lost reply ends its attempt at its time limit.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use async_nats::{HeaderMap, Message, StatusCode, Subject};
use bytes::Bytes;
use futures_util::StreamExt as _;
use longshore_domain::{Job, Timestamp};
use tokio::sync::{mpsc, oneshot};

use crate::Backbone;
use crate::error::Error;
use crate::inspect;
use crate::messages::raw::{self, Raw};
use crate::wire::header::{self, is_ours, names, positive};
use crate::wire::subject::Names;

mod announced;

pub use announced::{Announced, falls_under};
pub(crate) use announced::{HEARTBEAT, SLOTS};

/// How many open calls are looked up at once after a loss.
const LOOKS: usize = 64;
/// A request older than this was sent, or its connection is long gone.
const YOUNG: Duration = Duration::from_secs(2);
/// How long the server may take to read what a connection had brought when it ended.
const READ_WITHIN: Duration = Duration::from_millis(100);
/// How many signals of one job may wait to be read.
const SIGNALS: usize = 64;

/// The header of a node's own message to the inbox of a request. A handler that sends it says only that it is there.
const PROBE: &str = "Longshore-Probe";

/// Sends jobs to remote handlers.
#[derive(Debug, Clone)]
pub struct Caller {
    backbone: Backbone,
    inbox: Arc<str>,
    next: Arc<AtomicU64>,
    waiting: Waiting,
}

type Waiting = Arc<Mutex<HashMap<u64, OpenCall>>>;

#[derive(Debug)]
struct OpenCall {
    signals: mpsc::Sender<Signal>,
    reply: Option<oneshot::Sender<Reply>>,
    found: Option<oneshot::Sender<()>>,
    asked: Instant,
}

/// One job that is with a remote handler. Once this is dropped, its signals and its reply are ignored.
#[derive(Debug)]
pub struct Call {
    /// The handler's signals before its reply.
    pub signals: mpsc::Receiver<Signal>,
    /// Its reply.
    pub reply: oneshot::Receiver<Reply>,
    /// Filled once it is certain that a handler is subscribed: see [`Caller::probe`].
    pub found: oneshot::Receiver<()>,
    number: u64,
    waiting: Waiting,
}

impl Drop for Call {
    fn drop(&mut self) {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.number);
    }
}

/// What a handler sends before its reply.
#[derive(Debug)]
pub struct Signal {
    /// Its kind.
    pub kind: SignalKind,
    answer_to: Option<Subject>,
}

/// The kinds of signal.
#[derive(Debug, PartialEq, Eq)]
pub enum SignalKind {
    /// The handler has begun.
    Started,
    /// The handler is alive.
    Heartbeat,
    /// The handler's progress, as JSON.
    Progress(Bytes),
    /// A line for the log.
    Log(Bytes),
}

/// The outcome of a request to a remote handler.
#[derive(Debug)]
pub enum Reply {
    /// No handler is subscribed.
    NoResponders,
    /// The handler replied with something that cannot be read, for this reason.
    Unreadable(String),
    /// The request was lost with the connection before the server had it.
    NotSent,
    /// The handler replied.
    Answer(Box<HandlerReply>),
}

/// A handler's reply.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct HandlerReply {
    /// Its body: the result, or what the handler says about the failure.
    pub payload: Bytes,
    /// The content type of the body.
    pub content_type: Option<String>,
    /// The failure, if it reports one.
    pub error: Option<ServiceError>,
    /// Whether a failure is worth another attempt, where the handler says so.
    pub retryable: Option<bool>,
    /// How long to wait at least before the next attempt.
    pub retry_after: Option<Duration>,
    /// How long the job is to be snoozed.
    pub snooze: Option<Duration>,
    /// How long the job's limit key or type is to be held.
    pub hold: Option<Duration>,
    /// The part of its headers that cannot be read, so that the handler's intent is not known.
    pub unreadable: Option<String>,
}

/// A failure as NATS services report it.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct ServiceError {
    /// Its code; `None` if there is only a text.
    pub code: Option<u16>,
    /// Its text.
    pub text: String,
}

impl Caller {
    /// Opens a caller; it ends with its last clone.
    ///
    /// # Errors
    /// Its inbox cannot be subscribed to.
    pub async fn open(backbone: &Backbone) -> Result<Self, Error> {
        let inbox: Arc<str> = Arc::from(backbone.names().replies(&uuid::Uuid::now_v7().simple().to_string()));
        let mut made = backbone.work().connected();
        let mut messages = backbone.work().subscribe(format!("{inbox}.*")).await?;
        let waiting = Waiting::default();
        let caller = Self { backbone: backbone.clone(), inbox, next: Arc::default(), waiting };
        let calls = Arc::downgrade(&caller.waiting);
        let (backbone, inbox) = (caller.backbone.clone(), Arc::clone(&caller.inbox));
        tokio::spawn(async move {
            loop {
                tokio::select! {
                    message = messages.next() => {
                        let (Some(message), Some(calls)) = (message, calls.upgrade()) else { break };
                        receive(&calls, message);
                    }
                    _ = made.changed() => {
                        let Some(calls) = calls.upgrade() else { break };
                        tokio::spawn(look_up(backbone.clone(), Arc::clone(&inbox), calls));
                    }
                }
            }
        });
        Ok(caller)
    }

    /// Sends a job to a handler of its type.
    pub async fn call(&self, job: &Job, headers: HeaderMap, payload: Bytes) -> Call {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let (signals, heard) = mpsc::channel(SIGNALS);
        let (reply, replied) = oneshot::channel();
        let (find, found) = oneshot::channel();
        let call = OpenCall { signals, reply: Some(reply), found: Some(find), asked: Instant::now() };
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).insert(number, call);
        let subject = self.backbone.names().work(&job.tenant, &job.job_type);
        let inbox = format!("{}.{number}", self.inbox);
        let sent = self.backbone.work().publish_with_reply_and_headers(subject, inbox, headers, payload).await;
        if let Err(error) = sent {
            // The client is dead and about to be replaced: the lookup of lost replies may have run before this call.
            tracing::debug!("a request to a handler was not sent: {error}");
            settle(&self.waiting, number, Reply::NotSent);
        }
        self.backbone.work().publish(self.backbone.names().request_sent(&self.inbox, number), Bytes::new()).await;
        Call { signals: heard, reply: replied, found, number, waiting: Arc::clone(&self.waiting) }
    }

    /// Finds out whether a handler is subscribed, however far away the server is. The server answers one connection in
    /// order: once a message that this node sent after the request has come back, "no responders" would have come
    /// before.
    pub async fn probe(&self, call: &Call) {
        let subject = self.backbone.names().reply_probe(&self.inbox, call.number);
        let mut headers = HeaderMap::new();
        headers.insert(PROBE, "1");
        self.backbone.work().publish_with_headers(subject.into(), headers, Bytes::new()).await;
    }

    /// Answers a signal that was sent as a request: says whether the run is cancelled, and when the attempt is over.
    pub async fn answer(&self, signal: Signal, cancelled: bool, deadline: Option<Timestamp>) {
        let Some(reply) = signal.answer_to.filter(|reply| self.backbone.may_answer(reply)) else { return };
        let mut headers = HeaderMap::new();
        headers.insert(names::CANCEL, if cancelled { "true" } else { "false" });
        if let Some(deadline) = deadline {
            headers.insert(names::ATTEMPT_DEADLINE, deadline.to_string());
        }
        self.backbone.work().publish_with_headers(reply, headers, Bytes::new()).await;
    }

    /// Tells a remote handler that its run was cancelled.
    pub async fn cancel(&self, job: &Job) {
        let subject = self.backbone.names().cancel(&job.tenant, &job.run_id);
        self.backbone.work().publish(subject, Bytes::new()).await;
    }
}

/// Looks up messages to open calls that were sent while this node did not listen, or in bytes that cannot be read.
async fn look_up(backbone: Backbone, inbox: Arc<str>, waiting: Waiting) {
    // Messages from now on are received; earlier ones are stored by the time they are looked up.
    let _ = backbone.work().settled().await;
    let open: Vec<u64> = waiting.lock().unwrap_or_else(PoisonError::into_inner).keys().copied().collect();
    let stream = backbone.names().replies_stream();
    let looks = futures_util::stream::iter(open).for_each_concurrent(LOOKS, async |number| {
        let query = format!(r#"{{"last_by_subj":"{inbox}.{number}"}}"#);
        match raw::get(backbone.control(), backbone.api(), &stream, query).await {
            Ok(Some(found)) => receive_stored(&waiting, number, found),
            Ok(None) => {
                let Some(asked) = young(&waiting, number) else { return };
                if !was_sent(&backbone, &inbox, (number, asked)).await {
                    settle(&waiting, number, Reply::NotSent);
                }
            }
            Err(error) => tracing::debug!("a handler's reply may be lost: {error}"),
        }
    });
    looks.await;
}

fn receive_stored(waiting: &Waiting, number: u64, found: Raw) {
    if header::has(&raw::readable(&found.headers), names::SIGNAL) {
        return;
    }
    match raw::parse(&found.headers) {
        Ok(headers) => {
            let headers = (!headers.is_empty()).then_some(headers);
            let (subject, payload, length) = (found.subject.into(), found.payload, 0);
            let (reply, status, description) = (None, None, None);
            receive(waiting, Message { subject, reply, payload, headers, status, description, length });
        }
        Err(reason) => settle(waiting, number, Reply::Unreadable(format!("its headers {reason}"))),
    }
}

/// When a call was made that is so young that its marker, if it ever arrived, is still in the stream.
fn young(waiting: &Waiting, number: u64) -> Option<Instant> {
    let waiting = waiting.lock().unwrap_or_else(PoisonError::into_inner);
    waiting.get(&number).map(|call| call.asked).filter(|asked| asked.elapsed() < YOUNG)
}

/// Whether the server had a call's request: then it also had the marker that was sent after it. If that cannot be found
/// out, the request counts as sent, because a handler may be at work.
async fn was_sent(backbone: &Backbone, inbox: &str, (number, asked): (u64, Instant)) -> bool {
    let query = format!(r#"{{"last_by_subj":"{}"}}"#, backbone.names().request_sent(inbox, number));
    let stream = backbone.names().replies_stream();
    for _ in 0..2 {
        if !matches!(raw::get(backbone.control(), backbone.api(), &stream, query.clone()).await, Ok(None)) {
            return true;
        }
        // The server may not have read everything that the old connection brought.
        tokio::time::sleep(READ_WITHIN).await;
    }
    // In a stream that is younger than the call nothing of it is left, whether the server had it or not.
    let found = inspect::stream(backbone.control(), backbone.api(), &stream).await;
    let age = found.ok().flatten().and_then(|stream| stream.age());
    age.is_none_or(|age| age <= asked.elapsed())
}

fn settle(waiting: &Waiting, number: u64, how: Reply) {
    let mut waiting = waiting.lock().unwrap_or_else(PoisonError::into_inner);
    let reply = waiting.get_mut(&number).and_then(|call| call.reply.take());
    reply.map(|reply| reply.send(how));
}

fn receive(waiting: &Waiting, message: Message) {
    let Some(number) = Names::read_reply(&message.subject) else { return };
    let mut waiting = waiting.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(call) = waiting.get_mut(&number) else { return };
    if let Some(status) = message.status {
        // Once a handler is known to be there, the server's own "no responders" would have come before.
        let nobody = call.found.is_some() && is_no_responders(&message);
        let reply = if nobody { Reply::NoResponders } else { Reply::Unreadable(with_status(status, &message)) };
        call.reply.take().map(|waits| waits.send(reply));
        return;
    }
    if has(&message, PROBE) {
        call.found.take().map(|found| found.send(()));
        return;
    }
    match read_signal(&message) {
        Some(kind) => {
            let _ = call.signals.try_send(Signal { kind, answer_to: message.reply });
            call.found.take().map(|found| found.send(()));
        }
        None => {
            call.reply.take().map(|reply| reply.send(Reply::Answer(Box::new(read_reply(message)))));
        }
    }
}

/// Whether this is the server's own message that no handler is subscribed. A handler can write a status as well, but no
/// server adds the request's subject to it. A handler that writes that, too, has its job tried again as if no handler
/// were there, which ends with the type's `no_handler_grace`.
fn is_no_responders(message: &Message) -> bool {
    message.status == Some(StatusCode::NO_RESPONDERS)
        && message.payload.is_empty()
        && message.description.is_none()
        && has(message, names::SUBJECT)
}

fn with_status(status: StatusCode, message: &Message) -> String {
    let words = message.description.as_ref().map(|words| format!(" {words}")).unwrap_or_default();
    format!("its first header line has the status \"{status}{words}\", which is the server's to set")
}

/// A header's value, whatever the case of its name; the same value twice counts as one.
fn text<'a>(headers: Option<&'a HeaderMap>, name: &str) -> Result<Option<&'a str>, String> {
    let all = headers.into_iter().flat_map(HeaderMap::iter);
    let same = all.filter(|(found, _)| AsRef::<str>::as_ref(found).eq_ignore_ascii_case(name));
    let mut values = same.flat_map(|(_, values)| values).map(|value| value.as_str().trim());
    let first = values.next();
    if values.any(|other| Some(other) != first) {
        return Err(format!("{name} stands there twice, with different values"));
    }
    Ok(first)
}

fn has(message: &Message, name: &str) -> bool {
    message.headers.as_ref().is_some_and(|headers| header::has(headers, name))
}

fn read_signal(message: &Message) -> Option<SignalKind> {
    match text(message.headers.as_ref(), names::SIGNAL).transpose()? {
        Ok("started") => Some(SignalKind::Started),
        Ok("progress") => Some(SignalKind::Progress(message.payload.clone())),
        Ok("log") => Some(SignalKind::Log(message.payload.clone())),
        // A signal of a later version, or of two kinds, still says that the handler is alive.
        _ => Some(SignalKind::Heartbeat),
    }
}

fn read_reply(message: Message) -> HandlerReply {
    let mut reply = HandlerReply::default();
    let read = message.headers.as_ref().map_or(Ok(()), |headers| read_headers(headers, &mut reply));
    reply.unreadable = read.and_then(|()| contradiction(&reply)).err();
    reply.payload = message.payload;
    reply
}

/// Reads a reply's headers. A header that cannot be read, or has two values, must not be taken for a missing one.
fn read_headers(headers: &HeaderMap, reply: &mut HandlerReply) -> Result<(), String> {
    let code = text(Some(headers), names::ERROR_CODE)?.map(|code| code.parse().unwrap_or(500));
    let said = text(Some(headers), names::ERROR)?.unwrap_or_default();
    let is_error = code.is_some() || !said.is_empty();
    reply.error = is_error.then(|| ServiceError { code, text: said.to_owned() });
    reply.content_type = text(Some(headers), names::CONTENT_TYPE)?.map(str::to_owned);
    read_advice(headers, reply)
}

/// The headers with which a handler may ask for something.
const ADVICE: [&str; 4] = [names::RETRYABLE, names::RETRY_AFTER, names::SNOOZE, names::HOLD];

fn read_advice(headers: &HeaderMap, reply: &mut HandlerReply) -> Result<(), String> {
    let all = headers.iter().map(|(name, _)| -> &str { name.as_ref() });
    let is_known = |name: &str| ADVICE.iter().chain(&header::OF_REQUEST).any(|known| known.eq_ignore_ascii_case(name));
    let others = all.filter(|name| is_ours(name) && !is_known(name));
    // The first by name: the headers themselves have no order.
    if let Some(name) = others.min() {
        return Err(format!("{name} is not a header of a reply"));
    }
    let span = |name| match text(Some(headers), name)? {
        Some(value) => positive(value).map(Some).map_err(|reason| format!("{name}: {reason}")),
        None => Ok(None),
    };
    let retryable = text(Some(headers), names::RETRYABLE)?.map(|value| {
        let read = value.to_ascii_lowercase().parse();
        read.map_err(|_| format!("{}: {value:?} is neither true nor false", names::RETRYABLE))
    });
    reply.retryable = retryable.transpose()?;
    reply.retry_after = span(names::RETRY_AFTER)?;
    reply.snooze = span(names::SNOOZE)?;
    reply.hold = span(names::HOLD)?;
    Ok(())
}

/// Refuses a reply that asks for two things that exclude each other.
fn contradiction(reply: &HandlerReply) -> Result<(), String> {
    let failed = reply.error.is_some();
    let of_failure = reply.retryable.is_some() || reply.retry_after.is_some();
    match reply.snooze {
        Some(_) if failed || of_failure => Err(format!("{} stands beside a failure", names::SNOOZE)),
        None if of_failure && !failed => {
            Err(format!("{} and {} are for failures, and it is not one", names::RETRYABLE, names::RETRY_AFTER))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(headers: &[(&str, &str)]) -> Message {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, *value);
        }
        Message {
            subject: "inbox.7".into(),
            reply: None,
            payload: Bytes::new(),
            headers: Some(map),
            status: None,
            description: None,
            length: 0,
        }
    }

    fn reply(headers: &[(&str, &str)]) -> HandlerReply {
        read_reply(message(headers))
    }

    #[test]
    fn a_reply_is_read_whatever_the_case_of_its_headers() {
        let failed = reply(&[("nats-service-error-code", "422"), ("NATS-SERVICE-ERROR", "no"), ("content-type", "x")]);
        assert_eq!(failed.error, Some(ServiceError { code: Some(422), text: "no".to_owned() }));
        assert_eq!((failed.content_type.as_deref(), failed.unreadable), (Some("x"), None));
        let wishes = reply(&[
            ("Nats-Service-Error", "text alone"),
            ("longshore-retryable", "True"),
            ("LONGSHORE-RETRY-AFTER", " 30s "),
            ("Longshore-Hold", "1m"),
        ]);
        assert_eq!(wishes.error, Some(ServiceError { code: None, text: "text alone".to_owned() }));
        let seconds = |span: Option<Duration>| span.map(|span| span.as_secs());
        assert_eq!((wishes.retryable, seconds(wishes.retry_after)), (Some(true), Some(30)));
        assert_eq!((seconds(wishes.hold), wishes.unreadable), (Some(60), None));
        assert_eq!(reply(&[("Nats-Service-Error", "")]).error, None, "an empty text is not a failure");
        assert_eq!(seconds(reply(&[("longshore-snooze", "5m"), ("Longshore-Snooze", "5m")]).snooze), Some(300));
    }

    #[test]
    fn what_cannot_be_read_in_a_reply_is_said() {
        for (headers, says) in [
            (&[("Longshore-Snooze", "soon")][..], "Longshore-Snooze: "),
            (&[("Longshore-Snoze", "5m")], "Longshore-Snoze is not a header of a reply"),
            (&[("Longshore-Seal", "x")], "Longshore-Seal is not a header of a reply"),
            (&[("Longshore-Hold", "-1s")], "Longshore-Hold: "),
            (&[("Longshore-Retryable", "maybe"), ("Nats-Service-Error-Code", "503")], "Longshore-Retryable: "),
            (&[("Longshore-Snooze", "5m"), ("longshore-snooze", "6m")], "twice"),
            (&[("Longshore-Snooze", "5m"), ("Longshore-Snooze", "6m")], "twice"),
            (&[("Longshore-Snooze", "5m"), ("Nats-Service-Error-Code", "503")], "stands beside a failure"),
            (&[("Longshore-Retryable", "true")], "are for failures"),
            (&[("longshore-snooze", "0s")], "Longshore-Snooze: is zero"),
            (&[("Longshore-Hold", "0ms")], "Longshore-Hold: is zero"),
            (&[("Longshore-Retry-After", "0s"), ("Nats-Service-Error-Code", "503")], "Longshore-Retry-After: is zero"),
        ] {
            let unreadable = reply(headers).unreadable;
            assert!(unreadable.as_ref().is_some_and(|text| text.contains(says)), "{headers:?}: {unreadable:?}");
        }
    }

    /// A map has no fixed order, and each map has another: the result must not depend on it.
    #[test]
    fn a_reply_that_contradicts_itself_is_never_decided_by_chance() {
        for (headers, says) in [
            (
                [("Nats-Service-Error-Code", "404"), ("nats-service-error-code", "500")],
                "Nats-Service-Error-Code stands",
            ),
            (
                [("Nats-Service-Error-Code", "404"), ("Nats-Service-Error-Code", "500")],
                "Nats-Service-Error-Code stands",
            ),
            ([("Nats-Service-Error", ""), ("nats-service-error", "bad")], "Nats-Service-Error stands there twice"),
            ([("Content-Type", "a/b"), ("content-type", "c/d")], "Content-Type stands there twice"),
            ([("Longshore-A", "1"), ("longshore-b", "1")], "Longshore-A is not a header of a reply"),
        ] {
            for _ in 0..32 {
                let unreadable = reply(&headers).unreadable;
                assert!(unreadable.as_ref().is_some_and(|text| text.starts_with(says)), "{headers:?}: {unreadable:?}");
            }
        }
        let same = reply(&[("Nats-Service-Error-Code", "404"), ("nats-service-error-code", " 404")]);
        assert_eq!(
            (same.error.unwrap().code, same.unreadable),
            (Some(404), None),
            "the same value twice counts as one"
        );
        let signal = || read_signal(&message(&[("Longshore-Signal", "log"), ("longshore-signal", "started")]));
        assert!((0..32).all(|_| signal() == Some(SignalKind::Heartbeat)));
    }

    #[test]
    fn a_status_is_the_servers_word_or_cannot_be_read() {
        let heard = |before: &[Message], said: Message| {
            let waiting = Waiting::default();
            let (signals, _heard) = mpsc::channel(SIGNALS);
            let ((reply, mut replied), (find, _found)) = (oneshot::channel(), oneshot::channel());
            let call = OpenCall { signals, reply: Some(reply), found: Some(find), asked: Instant::now() };
            waiting.lock().unwrap().insert(7, call);
            before.iter().chain([&said]).for_each(|message| receive(&waiting, message.clone()));
            match replied.try_recv().unwrap() {
                Reply::NoResponders => "nobody there".to_owned(),
                Reply::Unreadable(reason) => reason,
                other => format!("{other:?}"),
            }
        };
        let status = |code: u16, words: Option<&str>, headers: &[(&str, &str)], payload: &'static str| Message {
            status: Some(StatusCode::from_u16(code).unwrap()),
            description: words.map(str::to_owned),
            payload: Bytes::from_static(payload.as_bytes()),
            ..message(headers)
        };
        let subject = [("Nats-Subject", "longshore.work.acme.email.send")];
        let servers = || status(503, None, &subject, "");
        assert_eq!(heard(&[], servers()), "nobody there");
        for said in [
            status(503, None, &[], ""),
            status(503, None, &subject, "body"),
            status(503, Some("No Responders"), &subject, ""),
            status(200, Some("OK"), &[], ""),
            status(404, None, &subject, ""),
            status(100, Some("Idle"), &[("Longshore-Signal", "heartbeat")], ""),
        ] {
            let reason = heard(&[], said.clone());
            assert!(reason.starts_with("its first header line has the status \""), "{said:?}: {reason}");
        }
        assert!(heard(&[], status(200, Some("OK"), &[], "")).contains("\"200 OK\""));
        for sign in [("Longshore-Signal", "started"), (PROBE, "1")] {
            let forged = heard(&[message(&[sign])], servers());
            assert!(forged.contains("status"), "a handler is there after {sign:?}: {forged}");
        }
    }

    #[test]
    fn a_bad_announcement_does_not_count_and_is_said() {
        let announced = |key: &'static str, value: &'static str| {
            let says = move |asked: &str| (asked == key).then(|| value.to_owned());
            Announced::read("mailer 7".to_owned(), "s".to_owned(), says)
        };
        assert_eq!(announced(SLOTS, "3").slots, Some(3));
        assert_eq!(announced(HEARTBEAT, "5s").heartbeat, Some(Duration::from_secs(5)));
        for (key, value) in [(SLOTS, "many"), (SLOTS, "0"), (SLOTS, "-1"), (HEARTBEAT, "soon"), (HEARTBEAT, "0s")] {
            let found = announced(key, value);
            assert_eq!((found.slots, found.heartbeat, found.wrong.len()), (None, None, 1), "{key} {value}");
            assert!(found.wrong[0].starts_with(&format!("{key} = {value:?}")), "{:?}", found.wrong);
        }
    }

    #[test]
    fn subjects_fall_under_patterns_as_nats_has_it() {
        let subject = "longshore.work.acme.email.send";
        for yes in [subject, "longshore.work.*.email.send", "longshore.work.>", "longshore.work.acme.*.*"] {
            assert!(falls_under(subject, yes), "{yes}");
        }
        for no in ["longshore.work.acme.email", "longshore.work.acme.email.send.now", "longshore.work.*.*", "x.>"] {
            assert!(!falls_under(subject, no), "{no}");
        }
    }
}
