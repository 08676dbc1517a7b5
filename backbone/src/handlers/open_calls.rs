//! The calls that are with remote handlers, and what is known of each until its reply.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_nats::Subject;
use bytes::Bytes;
use tokio::sync::{mpsc, oneshot};

use crate::handlers::reply::HandlerReply;

/// How often handlers are looked for. A call is looked at for the first time when it is as old.
pub(super) const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How many calls are remembered after their reply, to notice a second one.
const REMEMBERED: usize = 1_024;
/// After so many quick replies in a row, requests to a subject are not traced any more: a handler that is gone before
/// anybody looks for it is not missed, and each trace is a message more.
const QUICK: u8 = 32;
/// Maximum number of subjects whose quick replies are counted.
const MAX_SUBJECTS: usize = 4_096;

#[derive(Debug, Default)]
pub(super) struct OpenCalls {
    pub(super) open: HashMap<u64, RequestedCall>,
    /// The last calls that were answered, and what they called.
    pub(super) answered: VecDeque<(u64, Arc<str>)>,
    /// How many replies of a subject were quick, in a row.
    quick: HashMap<Arc<str>, u8>,
}

impl OpenCalls {
    /// Ends a call, unless it was answered.
    pub(super) fn settle(&mut self, number: u64, how: Reply) {
        let reply = self.open.get_mut(&number).and_then(|call| call.reply.take());
        reply.map(|reply| reply.send(how));
    }

    /// Ends a call whose handler's connection has been gone since then, unless the handler was heard later.
    pub(super) fn settle_gone(&mut self, number: u64, since: Instant) {
        if self.open.get(&number).is_some_and(|call| call.heard < since) {
            self.settle(number, Reply::Gone);
        }
    }

    /// The calls that have lasted: number, subject, and what the servers said of the request. The next requests to
    /// these subjects are traced.
    pub(super) fn lasting(&mut self) -> Vec<(u64, Arc<str>, Vec<Bytes>)> {
        let lasting = self.open.iter().filter(|(_, call)| call.reply.is_some() && call.asked.elapsed() >= LOOK_EVERY);
        let lasting = lasting.map(|(number, call)| (*number, Arc::clone(&call.subject), call.traces.clone()));
        let lasting: Vec<_> = lasting.collect();
        for (_, subject, _) in &lasting {
            self.quick.remove(subject);
        }
        lasting
    }

    pub(super) fn answered(&mut self, number: u64, subject: Arc<str>, took: Duration) {
        self.answered.truncate(REMEMBERED - 1);
        self.answered.push_front((number, Arc::clone(&subject)));
        if took >= LOOK_EVERY {
            self.quick.remove(&subject);
        } else if let Some(quick) = self.quick.get_mut(&subject) {
            *quick = quick.saturating_add(1);
        } else {
            if self.quick.len() >= MAX_SUBJECTS {
                self.quick.clear();
            }
            self.quick.insert(subject, 1);
        }
    }

    pub(super) fn is_traced(&self, subject: &str) -> bool {
        self.quick.get(subject).is_none_or(|quick| *quick < QUICK)
    }
}

#[derive(Debug)]
pub(super) struct RequestedCall {
    pub(super) subject: Arc<str>,
    /// To whom the servers gave it.
    pub(super) traces: Vec<Bytes>,
    pub(super) signals: mpsc::Sender<Signal>,
    pub(super) reply: Option<oneshot::Sender<Reply>>,
    pub(super) found: Option<oneshot::Sender<()>>,
    pub(super) asked: Instant,
    /// When the last signal came; if none has, when it was asked.
    pub(super) heard: Instant,
}

/// What a handler sends before its reply.
#[derive(Debug)]
pub struct Signal {
    /// Its kind.
    pub kind: SignalKind,
    /// What it says beside that: JSON, or a line for the log.
    pub body: Bytes,
    /// Why its word says nothing; it counts as a heartbeat.
    pub unknown: Option<String>,
    pub(super) answer_to: Option<Subject>,
}

longshore_domain::named! {
    /// The kinds of signal, by their words.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum SignalKind {
        /// The handler has begun.
        Started = "started",
        /// The handler is alive.
        Heartbeat = "heartbeat",
        /// The handler's progress, as JSON.
        Progress = "progress",
        /// A line for the log.
        Log = "log",
        /// A question about a step, as JSON.
        StepGet = "step-get",
        /// A step and its result, as JSON.
        StepPut = "step-put",
    }
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
    /// The connection of the handler that got the request is gone.
    Gone,
    /// The handler replied.
    Answer(Box<HandlerReply>),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_traced_until_replies_are_quick_and_again_once_one_lasts() {
        let (mut calls, subject) = (OpenCalls::default(), Arc::<str>::from("w"));
        for number in 0..u64::from(QUICK) {
            assert!(calls.is_traced("w"));
            calls.answered(number, Arc::clone(&subject), Duration::from_millis(1));
        }
        assert!(!calls.is_traced("w") && calls.is_traced("other"));
        calls.answered(99, subject, LOOK_EVERY);
        assert!(calls.is_traced("w"));
    }
}
