//! Requests to remote handlers and what they send back: signals, then a reply.
//!
//! One inbox serves all requests of a node. A reply always reaches its call; a signal is dropped when its receiver does
//! not keep up, because the next signal says as much.
//!
//! Replies on their way are lost with a connection that ends. Calling a handler again for that could run a slow job
//! twice. So a stream in the server's memory ([`crate::streams::shape::replies`]) keeps the last message to each call
//! for a while. After every loss the open calls are looked up there: a readable reply is delivered, an unreadable one
//! fails its own call, and a call without a reply goes on, unless its request never reached the server. A marker, sent
//! after every request and kept in the stream as well, shows whether it did, if the stream is older than the request:
//! it is gone with its server, and made again empty. Without that stream, a lost reply ends its attempt at its time
//! limit.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use async_nats::{HeaderMap, Message, StatusCode};
use bytes::Bytes;
use futures_util::StreamExt as _;
use longshore_domain::{Job, Timestamp};
use tokio::sync::{mpsc, oneshot};

use crate::Backbone;
use crate::error::Error;
use crate::handlers::open_calls::{OpenCalls, Reply, RequestedCall, Signal, SignalKind};
use crate::handlers::receivers;
use crate::handlers::reply::{read_reply, text};
use crate::messages::raw::{self, Raw};
use crate::messages::request;
use crate::streams::info;
use crate::wire::header::{self, names};
use crate::wire::subject::Names;

/// How many open calls are looked up at once after a loss.
const LOOKS: usize = 64;
/// A request older than this was sent, or its connection is long gone.
const YOUNG: Duration = Duration::from_secs(2);
/// How long the server may take to read what a connection had brought when it ended.
const READ_WITHIN: Duration = Duration::from_millis(100);
/// How many signals of one job may wait to be read.
const SIGNALS: usize = 64;
/// Those that are requests find so much more room: a handler whose heartbeats are not answered takes the node for gone.
const REQUESTS: usize = 8;
/// Maximum characters of a signal's word that are kept to be named.
const WORD_MAX: usize = 64;

/// The header of a node's own message to the inbox of a request. A handler that sends it says only that it is there.
const PROBE: &str = "Longshore-Probe";

/// Sends jobs to remote handlers.
#[derive(Debug, Clone)]
pub struct Caller {
    backbone: Backbone,
    inbox: Arc<str>,
    /// Where the servers say to whom they gave a request.
    traces: Arc<str>,
    next: Arc<AtomicU64>,
    waiting: Waiting,
}

type Waiting = Arc<Mutex<OpenCalls>>;

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
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).open.remove(&self.number);
    }
}

/// The answer to a signal.
#[derive(Debug)]
pub struct SignalAnswer {
    /// Whether the handler is to stop.
    pub cancelled: bool,
    /// When the attempt is over.
    pub deadline: Option<Timestamp>,
    /// What was asked for, or a status as HTTP has them and the reason of a refusal.
    pub body: Result<Bytes, (u16, String)>,
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
        let traces: Arc<str> = Arc::from(backbone.work().new_inbox());
        let mut traced = backbone.work().subscribe(format!("{traces}.*")).await?;
        let waiting = Waiting::default();
        let caller = Self { backbone: backbone.clone(), inbox, traces, next: Arc::default(), waiting };
        let calls = Arc::downgrade(&caller.waiting);
        tokio::spawn(receivers::watch(caller.backbone.clone(), calls.clone()));
        let (backbone, inbox) = (caller.backbone.clone(), Arc::clone(&caller.inbox));
        tokio::spawn(async move {
            loop {
                tokio::select! {
                    message = messages.next() => {
                        let (Some(message), Some(calls)) = (message, calls.upgrade()) else { break };
                        if let Some(signal) = signal_of_an_ended(&calls, &message) {
                            let body = match signal.kind {
                                SignalKind::StepGet | SignalKind::StepPut => {
                                    Err((409, "the attempt is over: its steps are another's".to_owned()))
                                }
                                _ => Ok(Bytes::new()),
                            };
                            answer(&backbone, signal, SignalAnswer { cancelled: true, deadline: None, body }).await;
                            continue;
                        }
                        if let Some(subject) = receive(&calls, message) {
                            backbone.0.second_replies.note(&subject);
                        }
                    }
                    Some(message) = traced.next() => {
                        let Some(calls) = calls.upgrade() else { break };
                        take_trace(&calls, message);
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
    pub async fn call(&self, job: &Job, mut headers: HeaderMap, payload: Bytes) -> Call {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let (signals, heard) = mpsc::channel(SIGNALS + REQUESTS);
        let (reply, replied) = oneshot::channel();
        let (find, found) = oneshot::channel();
        let subject = self.backbone.names().work(&job.tenant, &job.job_type);
        {
            let mut calls = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
            let (asked, subject) = (Instant::now(), Arc::from(subject.as_str()));
            if calls.is_traced(&subject) {
                receivers::trace(&mut headers, &format!("{}.{number}", self.traces));
            }
            let (traces, reply, found) = (Vec::new(), Some(reply), Some(find));
            let call = RequestedCall { subject, traces, signals, reply, found, asked, heard: asked };
            calls.open.insert(number, call);
        }
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
        self.backbone.work().publish_with_headers(subject.into(), header::single(PROBE, "1"), Bytes::new()).await;
    }

    /// Answers a signal that was sent as a request.
    pub async fn answer(&self, signal: Signal, answer: SignalAnswer) {
        self::answer(&self.backbone, signal, answer).await;
    }

    /// Notifies a remote handler that its run was cancelled.
    pub async fn cancel(&self, job: &Job) {
        let subject = self.backbone.names().cancel(&job.tenant, &job.run_id);
        self.backbone.work().publish(subject, Bytes::new()).await;
    }
}

/// Looks up messages to open calls that were sent while this node did not listen, or in bytes that cannot be read.
async fn look_up(backbone: Backbone, inbox: Arc<str>, waiting: Waiting) {
    // Messages from now on are received; earlier ones are stored by the time they are looked up.
    let _ = backbone.work().settled().await;
    let open: Vec<u64> = waiting.lock().unwrap_or_else(PoisonError::into_inner).open.keys().copied().collect();
    let stream = backbone.names().replies_stream();
    let looks = futures_util::stream::iter(open).for_each_concurrent(LOOKS, async |number| {
        match request::latest(backbone.control(), &stream, &format!("{inbox}.{number}")).await {
            Ok(Some(found)) => receive_stored(&waiting, number, found),
            Ok(None) => {
                let Some(asked) = young(&waiting, number) else { return };
                if !was_sent(&backbone, &inbox, number, asked).await {
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
            let message = Message { subject, reply, payload, headers, status, description, length };
            let mut waiting = waiting.lock().unwrap_or_else(PoisonError::into_inner);
            // One that has come live as well is no second reply.
            if let Some(call) = waiting.open.get_mut(&number) {
                give(call, message);
            }
        }
        Err(reason) => settle(waiting, number, Reply::Unreadable(format!("its headers: {reason}"))),
    }
}

/// When a call was made that is so young that its marker, if it ever arrived, is still in the stream.
fn young(waiting: &Waiting, number: u64) -> Option<Instant> {
    let waiting = waiting.lock().unwrap_or_else(PoisonError::into_inner);
    waiting.open.get(&number).map(|call| call.asked).filter(|asked| asked.elapsed() < YOUNG)
}

/// Whether the server had a call's request: then it also had the marker that was sent after it. If that cannot be found
/// out, the request counts as sent, because a handler may be at work.
async fn was_sent(backbone: &Backbone, inbox: &str, number: u64, asked: Instant) -> bool {
    let (stream, sent) = (backbone.names().replies_stream(), backbone.names().request_sent(inbox, number));
    for _ in 0..2 {
        if !matches!(request::latest(backbone.control(), &stream, &sent).await, Ok(None)) {
            return true;
        }
        // The server may not have read everything that the old connection brought.
        tokio::time::sleep(READ_WITHIN).await;
    }
    // In a stream that is younger than the call nothing of it is left, whether the server had it or not.
    let found = info::stream(backbone.control(), &stream).await;
    let age = found.ok().flatten().and_then(|stream| stream.age());
    age.is_none_or(|age| age <= asked.elapsed())
}

fn settle(waiting: &Waiting, number: u64, how: Reply) {
    waiting.lock().unwrap_or_else(PoisonError::into_inner).settle(number, how);
}

/// Keeps what a server said of a request.
fn take_trace(waiting: &Waiting, message: Message) {
    let Some(number) = Names::read_reply(&message.subject) else { return };
    let mut waiting = waiting.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(call) = waiting.open.get_mut(&number).filter(|call| call.traces.len() < receivers::MAX_TRACES) {
        call.traces.push(message.payload);
    }
}

/// Takes a message that came live to its call; returns the call's subject if it is a second reply.
fn receive(waiting: &Waiting, message: Message) -> Option<Arc<str>> {
    let number = Names::read_reply(&message.subject)?;
    let mut waiting = waiting.lock().unwrap_or_else(PoisonError::into_inner);
    let is_reply = message.status.is_none() && !has(&message, PROBE) && !has(&message, names::SIGNAL);
    let open = waiting.open.get(&number).filter(|call| call.reply.is_some());
    if is_reply {
        let Some((subject, asked)) = open.map(|call| (Arc::clone(&call.subject), call.asked)) else {
            return waiting.answered.iter().find(|(of, _)| *of == number).map(|(_, subject)| Arc::clone(subject));
        };
        waiting.answered(number, subject, asked.elapsed());
    }
    give(waiting.open.get_mut(&number)?, message);
    None
}

async fn answer(backbone: &Backbone, signal: Signal, answer: SignalAnswer) {
    let Some(reply) = signal.answer_to.filter(|reply| backbone.may_answer(reply)) else { return };
    let mut headers = HeaderMap::new();
    headers.insert(names::CANCEL, if answer.cancelled { "true" } else { "false" });
    if let Some(deadline) = answer.deadline {
        headers.insert(names::ATTEMPT_DEADLINE, deadline.to_string());
    }
    let body = match answer.body {
        Ok(body) => body,
        Err((code, reason)) => {
            headers.insert(names::ERROR_CODE, code.to_string());
            headers.insert(names::ERROR, reason.replace(char::is_control, " "));
            Bytes::new()
        }
    };
    backbone.work().publish_with_headers(reply, headers, body).await;
}

/// A signal as a request to a call that is over: its handler is to know.
fn signal_of_an_ended(waiting: &Waiting, message: &Message) -> Option<Signal> {
    message.reply.as_ref()?;
    let signal = read_signal(message)?;
    let number = Names::read_reply(&message.subject)?;
    let waiting = waiting.lock().unwrap_or_else(PoisonError::into_inner);
    let is_read = |call: &RequestedCall| call.reply.is_some() && !call.signals.is_closed();
    (!waiting.open.get(&number).is_some_and(is_read)).then_some(signal)
}

/// Gives a message to the call that it is for.
fn give(call: &mut RequestedCall, message: Message) {
    if let Some(status) = message.status {
        // Once a handler is known to be there, the server's own "no responders" would have come before.
        let has_no_responders = call.found.is_some() && is_no_responders(&message);
        let reply =
            if has_no_responders { Reply::NoResponders } else { Reply::Unreadable(with_status(status, &message)) };
        call.reply.take().map(|waits| waits.send(reply));
        return;
    }
    if has(&message, PROBE) {
        call.found.take().map(|found| found.send(()));
        return;
    }
    match read_signal(&message) {
        Some(signal) => {
            call.heard = Instant::now();
            if signal.answer_to.is_some() || call.signals.capacity() > REQUESTS {
                let _ = call.signals.try_send(signal);
            }
            call.found.take().map(|found| found.send(()));
        }
        None if has(&message, names::UNREADABLE) => {
            let reason = text(message.headers.as_ref(), names::UNREADABLE).ok().flatten().unwrap_or("cannot be read");
            call.reply.take().map(|waits| waits.send(Reply::Unreadable(format!("its headers: {reason}"))));
        }
        None => {
            call.reply.take().map(|reply| {
                reply.send(Reply::Answer(Box::new(read_reply(message.headers.as_ref(), message.payload))))
            });
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

fn has(message: &Message, name: &str) -> bool {
    message.headers.as_ref().is_some_and(|headers| header::has(headers, name))
}

fn read_signal(message: &Message) -> Option<Signal> {
    let word = text(message.headers.as_ref(), names::SIGNAL).transpose()?;
    let known = word.and_then(|word| {
        let shown = || word.chars().take(WORD_MAX).collect::<String>();
        SignalKind::parse(word).ok_or_else(|| format!("{:?} is none of {}", shown(), SignalKind::NAMES.join(", ")))
    });
    // One of a later version, or of two kinds, still says that the handler is alive.
    let (kind, unknown) = known.map_or_else(|why| (SignalKind::Heartbeat, Some(why)), |kind| (kind, None));
    Some(Signal { kind, body: message.payload.clone(), unknown, answer_to: message.reply.clone() })
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

    #[test]
    fn a_signal_of_no_kind_or_of_two_says_that_the_handler_is_alive_and_is_named() {
        let two = || read_signal(&message(&[("Longshore-Signal", "log"), ("longshore-signal", "started")])).unwrap();
        assert!((0..32).all(|_| two().kind == SignalKind::Heartbeat && two().unknown.unwrap().contains("twice")));
        let long = "a".repeat(WORD_MAX + 1);
        for word in ["Progress", "", "done\u{1b}", &long] {
            let signal = read_signal(&message(&[("Longshore-Signal", word)])).unwrap();
            let named = signal.unknown.unwrap();
            assert_eq!(signal.kind, SignalKind::Heartbeat, "{named}");
            assert!(named.starts_with(&format!("{:?}", &word[..word.len().min(WORD_MAX)])), "{named}");
            assert!(!named.contains(char::is_control), "{named}");
        }
        let heartbeat = read_signal(&message(&[("Longshore-Signal", "heartbeat")])).unwrap();
        assert_eq!((heartbeat.kind, heartbeat.unknown), (SignalKind::Heartbeat, None));
    }

    #[test]
    fn a_request_about_a_call_that_is_over_is_answered() {
        let waiting = Waiting::default();
        let asks = |word: &str, reply: Option<&str>| {
            let signal = Message { reply: reply.map(Into::into), ..message(&[("Longshore-Signal", word)]) };
            signal_of_an_ended(&waiting, &signal).map(|signal| signal.kind)
        };
        assert_eq!(asks("heartbeat", Some("r")), Some(SignalKind::Heartbeat));
        assert_eq!(asks("started", Some("r")), Some(SignalKind::Started));
        assert_eq!(asks("started", None), None, "nobody waits for an answer");
        let (signals, mut heard) = mpsc::channel(SIGNALS);
        let (reply, _replied) = oneshot::channel();
        let (subject, traces, asked) = (Arc::from("w"), Vec::new(), Instant::now());
        let call = RequestedCall { subject, traces, signals, reply: Some(reply), found: None, asked, heard: asked };
        waiting.lock().unwrap().open.insert(7, call);
        assert_eq!(asks("heartbeat", Some("r")), None, "it is answered by the attempt");
        heard.close();
        assert_eq!(asks("heartbeat", Some("r")), Some(SignalKind::Heartbeat), "its reply alone is waited for");
    }

    #[test]
    fn a_status_is_the_servers_word_or_cannot_be_read() {
        let heard = |before: &[Message], said: Message| {
            let waiting = Waiting::default();
            let (signals, _heard) = mpsc::channel(SIGNALS);
            let ((reply, mut replied), (find, _found)) = (oneshot::channel(), oneshot::channel());
            let (subject, traces, asked) = (Arc::from("w"), Vec::new(), Instant::now());
            let (reply, found) = (Some(reply), Some(find));
            let call = RequestedCall { subject, traces, signals, reply, found, asked, heard: asked };
            waiting.lock().unwrap().open.insert(7, call);
            before.iter().chain([&said]).for_each(|message| drop(receive(&waiting, message.clone())));
            match replied.try_recv().unwrap() {
                Reply::NoResponders => "no responders".to_owned(),
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
        assert_eq!(heard(&[], servers()), "no responders");
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
    fn a_second_reply_is_noticed_and_neither_a_signal_nor_one_that_was_looked_up_is_one() {
        let waiting = Waiting::default();
        let (signals, _heard) = mpsc::channel(SIGNALS);
        let ((reply, _replied), (find, _found)) = (oneshot::channel(), oneshot::channel());
        let (subject, traces, asked) = (Arc::from("w"), Vec::new(), Instant::now());
        let (reply, found) = (Some(reply), Some(find));
        let call = RequestedCall { subject, traces, signals, reply, found, asked, heard: asked };
        waiting.lock().unwrap().open.insert(7, call);
        let signal = || message(&[("Longshore-Signal", "heartbeat")]);
        for said in [signal(), message(&[])] {
            assert_eq!(receive(&waiting, said), None);
        }
        let (subject, at) = ("inbox.7".to_owned(), Timestamp::default());
        receive_stored(&waiting, 7, Raw { subject, sequence: 1, at, headers: Bytes::new(), payload: Bytes::new() });
        assert_eq!(waiting.lock().unwrap().answered.len(), 1);
        waiting.lock().unwrap().open.clear();
        assert_eq!(receive(&waiting, signal()), None);
        assert_eq!(receive(&waiting, message(&[])).as_deref(), Some("w"));
    }
}
