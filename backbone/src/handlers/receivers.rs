//! Whether the handler that got a job is still connected: what the servers know of its connection, not what the handler
//! says, for a handler that is busy may say nothing.
//!
//! A request carries NATS's own trace headers, so the server says to which connection it gave it. Once the call has
//! lasted, that server is asked every second whether the connection is still there ([`crate::handlers::calls`] does
//! both). A handler that only works, or takes no more jobs because it is about to end, is connected; one that was
//! killed is not. The server itself ends connections that leave its pings unanswered for some minutes: such a handler
//! counts as gone, too. One that has changed to another server, as all do whose server is about to end, works on: so
//! signals count, and there is time for one.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use async_nats::{HeaderMap, Subject};
use bytes::Bytes;
use futures_util::StreamExt as _;
use serde::Deserialize;
use serde_json::Value;

use crate::Backbone;
use crate::handlers::open_calls::{LOOK_EVERY, OpenCalls};

/// How often, after no server has answered: this node may lack the right to ask, and each refusal is a line in its log.
const LOOK_AGAIN_AFTER: Duration = Duration::from_secs(30);
/// How long a connection must not be found, and its handler be silent: a client that works on has another by then.
const GONE_AFTER: Duration = Duration::from_secs(5);
const ANSWER_WITHIN: Duration = Duration::from_secs(1);
/// Maximum number of connections that are looked for each time.
const MAX_LOOKS: usize = 256;
/// How many of them are looked for at once.
const AT_ONCE: usize = 16;
/// Maximum number of traces of one call: one for each server on the request's way.
pub(super) const MAX_TRACES: usize = 4;

/// A connection at a server, which is one process of it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Receiver {
    server: String,
    cid: u64,
}

#[derive(Deserialize)]
struct Trace {
    server: ServerId,
    #[serde(default)]
    events: Vec<TraceEvent>,
}

#[derive(Deserialize)]
struct ServerId {
    id: String,
}

#[derive(Deserialize)]
struct TraceEvent {
    #[serde(rename = "type")]
    what: String,
    #[serde(default)]
    kind: u8,
    #[serde(default)]
    cid: u64,
    #[serde(default)]
    subj: String,
}

/// Has the server say to whom it gives a request, in a message to `inbox`.
pub(super) fn trace(headers: &mut HeaderMap, inbox: &str) {
    headers.insert("Nats-Trace-Dest", inbox);
}

/// The clients that got a request on `subject`, by what the servers said of it. A handler may send the request's
/// headers back with its reply, so that the server says the same of that: it does not count.
fn receivers(subject: &str, traces: &[Bytes]) -> Vec<Receiver> {
    let traces = traces.iter().filter_map(|trace| serde_json::from_slice::<Trace>(trace).ok());
    let own =
        traces.filter(|trace| trace.events.first().is_some_and(|first| first.what == "in" && first.subj == subject));
    own.flat_map(|Trace { server, events }| {
        let given = events.into_iter().filter(|event| event.what == "eg" && event.kind == 0);
        given.map(move |event| Receiver { server: server.id.clone(), cid: event.cid })
    })
    .collect()
}

/// Ends the calls whose handlers' connections are gone, for as long as there is a caller.
pub(super) async fn watch(backbone: Backbone, waiting: Weak<Mutex<OpenCalls>>) {
    // Since when each has not been found.
    let mut missed: HashMap<Receiver, Instant> = HashMap::new();
    let (mut pause, mut first) = (LOOK_EVERY, 0);
    loop {
        tokio::time::sleep(pause).await;
        let Some(waiting) = waiting.upgrade() else { return };
        let lasting = waiting.lock().unwrap_or_else(PoisonError::into_inner).lasting();
        let calls: Vec<(u64, Vec<Receiver>)> =
            lasting.into_iter().map(|(number, subject, traces)| (number, receivers(&subject, &traces))).collect();
        let mut wanted: Vec<Receiver> = calls.iter().flat_map(|(_, receivers)| receivers.clone()).collect();
        wanted.sort_by(|a, b| (&a.server, a.cid).cmp(&(&b.server, b.cid)));
        wanted.dedup();
        missed.retain(|receiver, _| wanted.contains(receiver));
        if wanted.len() > MAX_LOOKS {
            // In turn.
            first = (first + MAX_LOOKS) % wanted.len();
            wanted.rotate_left(first);
            wanted.truncate(MAX_LOOKS);
        }
        pause = if wanted.is_empty() { LOOK_EVERY } else { LOOK_AGAIN_AFTER };
        let mut looks = futures_util::stream::iter(wanted)
            .map(async |receiver| (backbone.is_connected_there(&receiver).await, receiver))
            .buffer_unordered(AT_ONCE);
        while let Some((found, receiver)) = looks.next().await {
            pause = if found.is_some() { LOOK_EVERY } else { pause };
            match found {
                Some(true) => _ = missed.remove(&receiver),
                Some(false) => _ = missed.entry(receiver).or_insert_with(Instant::now),
                // A server that ends meanwhile brings no connection back.
                None => {}
            }
        }
        for (number, receivers) in calls {
            let all: Option<Vec<Instant>> = receivers.iter().map(|receiver| missed.get(receiver).copied()).collect();
            let since = all.and_then(|all| all.into_iter().max());
            if let Some(since) = since.filter(|since| since.elapsed() >= GONE_AFTER) {
                waiting.lock().unwrap_or_else(PoisonError::into_inner).settle_gone(number, since);
            }
        }
    }
}

impl Backbone {
    /// Whether a connection is still there, by the word of its own server; `None`: that server did not say.
    async fn is_connected_there(&self, receiver: &Receiver) -> Option<bool> {
        let link = self.work();
        let inbox = link.new_inbox();
        let mut answers = link.subscribe(inbox.clone()).await.ok()?;
        let question = Bytes::from(format!(r#"{{"cid":{}}}"#, receiver.cid));
        link.publish_with_reply(Subject::from_static("$SYS.REQ.ACCOUNT.PING.CONNZ"), inbox, question).await;
        // Every server answers for itself.
        let answer = async {
            loop {
                let answer: Value = serde_json::from_slice(&answers.next().await?.payload).unwrap_or_default();
                if answer["server"]["id"] == receiver.server {
                    let connections = answer["data"]["connections"].as_array()?;
                    return Some(connections.iter().any(|found| found["cid"] == receiver.cid));
                }
            }
        };
        tokio::time::timeout(ANSWER_WITHIN, answer).await.ok()?
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_receivers_of_a_request_are_the_clients_that_servers_gave_it_to() {
        let trace = |server: &str, events: &str| {
            Bytes::from(format!(r#"{{"server":{{"id":"{server}"}},"events":[{events}]}}"#))
        };
        let first = trace(
            "A",
            r#"{"type":"in","kind":0,"cid":5,"subj":"w"},{"type":"eg","kind":1,"cid":6},{"type":"eg","kind":0,"cid":7}"#,
        );
        let second =
            trace("B", r#"{"type":"in","kind":1,"cid":9,"subj":"w"},{"type":"eg","kind":0,"cid":7,"queue":"q"}"#);
        let of_reply = trace("A", r#"{"type":"in","kind":0,"cid":7,"subj":"_INBOX.x"},{"type":"eg","kind":0,"cid":5}"#);
        let found = receivers("w", &[first, second, of_reply, Bytes::from_static(b"no trace")]);
        let found: Vec<_> = found.iter().map(|receiver| (receiver.server.as_str(), receiver.cid)).collect();
        assert_eq!(found, [("A", 7), ("B", 7)]);
    }
}
