//! What Longshore promises, one file each. Every test drives the real binary against a nats-server of its own.
//!
//! A test's name is a sentence that is true of the product; it waits on what is told, never on time; failing, it tells
//! the story of its run. A regression goes to the promise that was broken.
#![allow(clippy::unwrap_used, reason = "this whole program is tests; clippy excepts only the functions marked as such")]

mod api; // every endpoint answers as the contract has it
mod cancel; // what is cancelled ends as cancelled, wherever it stands
mod chaos; // trouble of every kind at once loses nothing
mod cli; // whoever sits at a terminal sees what died, runs it again, throws it away, cancels and erases
mod cluster; // several nodes are one
mod dead_letters; // what died is kept whole
mod elections; // while servers elect, nodes start, answer truly and go on
mod events; // what happened is told live and kept in order
mod fail_points; // death between any two steps loses nothing
mod frozen; // a node that was frozen starts nothing that is another's by now
mod head_of_line; // what cannot start keeps nothing else from starting
mod hostile; // whatever is sent, nothing is wedged
mod idempotency; // one id, one key: one run
mod leaders; // whatever a dead server led, nothing is lost and the rest goes on
mod main_job; // published with any NATS client, it runs, and its story is told in order
mod metrics; // what should never happen is counted and said
mod nothing_lost; // killed and frozen in mid-run, nothing is lost
mod one_run; // one accepted job is one run, whoever repeats, forwards, forges or cancels it
mod order; // the urgent first, by rank
mod overdue; // what waits for its time gets there, also where a lane is full or the server forgot
mod permissions; // a node needs no more rights than the documents grant
mod poison; // bytes that no client can read cost no more than their own message
mod provision; // streams are brought into shape, and nothing is thrown away for it
mod remote; // a handler in any language, over plain NATS
mod replay; // what died can be run again, thrown away, erased
mod retries; // what fails is tried again by its policy, what cannot succeed is not
mod shutdown; // asked to end, a node finishes what it can and hands back the rest
mod three_servers; // any one of three servers may freeze, be cut off or die
mod time; // not before its time, not after it, and not for longer
mod unresponsive; // a handler that hears nothing costs its attempt, not the node
mod values; // what is sent comes through byte for byte, and every request gets an answer

use std::path::PathBuf;
use std::time::Duration;

use longshore_harness::history::{Interruption, Rules};
use longshore_harness::{Node, NodeBuilder, World};

/// A world with one server.
async fn world() -> World {
    use_binary();
    World::new().await
}

/// As [`world`], on three servers that are one cluster.
async fn three_servers() -> World {
    use_binary();
    World::cluster().await
}

/// Nodes are the binary that cargo has just built, or the one that `LONGSHORE_BIN` names: an older version, to see that
/// the tests of what has been mended fail there.
fn use_binary() {
    let named = std::env::var_os("LONGSHORE_BIN").map(PathBuf::from);
    longshore_harness::use_binary(named.unwrap_or_else(|| env!("CARGO_BIN_EXE_longshore").into()));
}

/// Retries come at once.
const AT_ONCE: &str = "backoff = { base = '10ms', factor = 1.0, max = '10ms', jitter = 'none' }";

/// Retries come soon, but not so soon that a node would keep them in hand.
const SOON: &str = "backoff = { base = '1100ms', factor = 1.0, max = '1100ms', jitter = 'none' }";

/// Settings of a type: its handler and more.
fn served_by(handler: &str, more: &str) -> String {
    format!("handler = '{handler}'\n{more}")
}

/// Only the queue `main`, on so many workers, strictly by priority.
fn workers(node: NodeBuilder<'_>, count: usize) -> NodeBuilder<'_> {
    node.with("queues.main", &format!("concurrency = {count}\naging = '0s'"))
}

/// Makes the streams, and leaves no node behind.
async fn without_node(node: NodeBuilder<'_>) -> Node {
    let node = node.start().await;
    node.stop().await;
    node
}

/// Waits until nothing lies in the usual lane any more, neither waiting nor in anybody's hand.
async fn is_emptied(world: &World) {
    longshore_harness::eventually("an empty lane", Duration::from_secs(60), async || {
        match world.depth("main", 5).await {
            0 => Ok(()),
            depth => Err(format!("{depth} jobs")),
        }
    })
    .await;
}

/// So far from now, as the wire writes times.
fn in_future(span: Duration) -> String {
    let at = jiff::Timestamp::now() + jiff::SignedDuration::try_from(span).unwrap();
    format!("{at:.3}")
}

/// How often a fault is repeated: the number in this environment variable, or a small one.
fn times(variable: &str, small: usize) -> usize {
    let asked = std::env::var(variable).ok().and_then(|text| text.parse().ok());
    asked.unwrap_or(small)
}

/// What the checker must know beside the history. Times on the wire have a grain of 1 ms.
fn rules(interruptions: Vec<Interruption>) -> Rules {
    Rules { interruptions, clock_skew: Duration::from_millis(2), ..Rules::default() }
}
