//! The promises of Longshore, one file each. Every test drives the real binary against its own nats-server.
//!
//! A test's name is a sentence that is true of the product; a test waits for published events, never for a time; a
//! failing test prints what is known of its run. A regression test belongs to the promise that was broken.
#![allow(clippy::unwrap_used, reason = "this whole program is tests; clippy excepts only the functions marked as such")]

mod admission; // only jobs that the settings take are run
mod api; // every endpoint answers as the contract has it
mod audit; // what is asked beyond reading and submitting is written down
mod backup; // a backup that is taken while nodes work has all of it, and is restored on a new server
mod batches; // the job of a batch runs once after all its members, whatever dies
mod breakers; // while a service fails, its jobs wait
mod cancel; // a cancelled run ends as cancelled, in whatever state it is
mod chains; // jobs that follow one another run once each, on the result of the one before
mod chaos; // faults of every kind at once lose nothing
mod cli; // a user at a terminal lists dead letters, replays and discards them, cancels and erases runs
mod clocks; // a node with a wrong clock does its work as well as the others, and says that it is wrong
mod cluster; // several nodes act as one
mod command_run; // a program does the work of a job, and nothing of it is left when its attempt is over
mod concurrency; // no more attempts at once than a type or key allows, whichever node dies
mod counted; // what happens is counted, and every node shows the whole cluster
mod dashboard; // an operator sees and does the daily work in a browser
mod dead_letters; // a dead letter is complete
mod debounce; // of changes that follow each other soon, the last one runs, once
mod deleted_streams; // a stream that a user deletes is made again, and reported
mod deploy; // what is shipped for operating a node fits the program
mod doctor; // faults of a set-up are found, each with its remedy
mod elections; // while servers elect, nodes start, answer correctly and go on
mod email_send; // an e-mail reaches each recipient that the server takes, once
mod events; // events are published live and kept in order
mod fail_points; // death between any two steps loses nothing
mod fairness; // no tenant's flood keeps the jobs of others waiting beyond their share
mod faults; // faults on purpose do what they say, marked, until their time is over, and lose no job
mod format; // what one version has stored the next one reads
mod frozen; // a node that was frozen starts no job that another node has taken
mod gateway; // the API is asked over HTTP
mod gateway_jwt; // tokens of an identity provider count as its keys, and no others do
mod gateway_keys; // with keys, the API over HTTP answers who has one that counts, within its tenant and scopes
mod head_of_line; // a job that cannot start keeps no other from starting
mod hostile; // no input makes a part get stuck
mod http; // probes are answered, whatever the node is doing
mod http_call; // a job is a request to a service, and leads a node to no address that is not allowed
mod http_clients; // clients over HTTP that repeat what was not answered have each job done under one run
mod idempotency; // one id, one key: one run
mod keys; // a key is one run for as long as its scope says
mod late; // an attempt may end later than its handler replies, by a call with its token
mod leaders; // whichever leader's server dies, nothing is lost and the rest goes on
mod limits; // rate limits hold exactly over all nodes, and hold up nobody else
mod listeners; // HTTP is served at every address, behind a proxy, with TLS, to pages of named origins
mod lists; // runs are listed and counted by what they have in common, and none is missed
mod logs; // what happens to jobs is logged with run and trace, without secrets; the level can be changed
mod main_job; // a job published with any NATS client runs, and its events are published in order
mod metrics; // rare faults are counted and logged
mod monitoring; // alert rules use only metrics and labels that there are
mod never_served; // a misspelt type ends soon and says so; one that was served once is waited for
mod nothing_lost; // kills and freezes while jobs run lose nothing
mod offered; // nodes of one queue with different handlers in Rust share it
mod on_busy; // a busy key drops new jobs, keeps the newest or cancels the one that runs, whichever node dies
mod one_run; // one accepted job is one run, even if it is repeated, forwarded, forged or cancelled
mod order; // urgent jobs first, by rank
mod ordered; // jobs of one key run in their order, through retries, whichever node dies
mod overdue; // a job that waits for its time runs, even if a lane is full or the server forgot it
mod packages; // the helper packages do, as they are built and installed, what their documents say
mod pauses; // from the answer on nothing starts of what is paused
mod permissions; // a node needs no more rights than the documents grant
mod poison; // bytes that no client can read cost no more than their own message
mod pressure; // a node short of memory takes fewer jobs, says so, and recovers
mod prometheus; // a real Prometheus finds data for the boards, and its alerts fire (where one is installed)
mod provision; // streams are brought into the configured shape, and no message is discarded for it
mod pull; // a client asks for a job, and ends its attempt
mod queues; // what waits is shown, and for what
mod reasons; // each reason to refuse a job, to fail or to put it off has its own count
mod remote; // a handler in any language, over plain NATS
mod replay; // dead runs can be replayed, discarded, erased
mod reschedule; // a waiting run starts now or at another time, once
mod retries; // failures are retried by their policy, permanent ones are not
mod rust_program; // a program in Rust has handlers of its own and a client in a few lines
mod same_key; // a key is any text, and the same JSON under it the same job
mod schedules; // a recurring schedule starts a run at each of its times, once, and none early
mod search; // a run is found by what its payload says where its type declares it, and in no other way
mod shop; // the shop of the examples charges, invoices and mails each order once, whatever fails
mod shutdown; // a node that is asked to end finishes what it can and returns the other jobs
mod steps; // a finished step of a job is not done again, whatever dies
mod streams; // events are followed over HTTP, none missed and none twice, whichever node dies
mod three_servers; // any one of three servers may freeze, be cut off or die
mod time; // no job starts before its time or after its expiry, or runs beyond its limit
mod traces; // one trace shows a job's whole way, and no collector disturbs a job
mod tutorial; // the tutorial works as it is printed
mod unreadable; // what is stored and cannot be read is named, harms nobody else, and a person ends it
mod unresponsive; // an unresponsive handler costs its attempt, not the node
mod values; // values arrive byte for byte, and every request gets an answer
mod waits; // whatever a job waits for, it goes on, whichever fault comes
mod webhooks; // events are posted to webhooks, each at least once, signed, whatever dies
mod why; // what happened to one run, in words

use std::io::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use longshore_harness::history::{Interruption, Rules};
use longshore_harness::{Node, NodeBuilder, World};
use longshore_natsd::Log;

/// Far longer than anything takes that is not lost, with elections, leases and starts of nodes on a loaded machine.
const WITHIN: Duration = Duration::from_secs(240);

/// Stores 10 kB under each of these keys of a bucket, `<bucket>.filler.<number>`, which nobody else uses.
async fn fill(world: &World, bucket: &str, numbers: std::ops::Range<u32>) {
    for number in numbers {
        let subject = format!("$KV.longshore_{bucket}.filler.{number}");
        world.jetstream().publish(subject, vec![b'x'; 10_000].into()).await.unwrap().await.unwrap();
    }
}

/// Waits until a node says that a bucket has no room for more keys.
async fn has_no_room(world: &World, bucket: &str) {
    let said = format!("longshore_{bucket} has no room for more keys");
    longshore_harness::eventually("a node that says so", WITHIN, async || {
        let health = world.request("health", serde_json::json!({})).await.to_string();
        if health.contains(&said) { Ok(()) } else { Err(health) }
    })
    .await;
}

/// How long [`strike`] freezes a node: beyond the leases of these tests, which are two seconds.
const FREEZE: Duration = Duration::from_millis(3_500);

/// The faults of a test, in turns: a node is killed, a node is frozen, the server is killed and started again.
async fn strike(world: &World, nodes: &[Node], nth: usize) {
    let victim = &nodes[nth % nodes.len()];
    match nth % 3 {
        0 => victim.kill9().await,
        1 => victim.sigstop(),
        _ => {
            world.server().kill9().await;
            world.server().restart().await.unwrap();
        }
    }
}

/// Ends the fault of that number: the node is started again, or goes on once it was frozen for long enough.
async fn recover(nodes: &[Node], nth: usize) {
    let victim = &nodes[nth % nodes.len()];
    match nth % 3 {
        0 => victim.restart().await,
        1 => {
            tokio::time::sleep(FREEZE).await;
            victim.sigcont();
        }
        _ => {}
    }
}

/// One node, the server and the other node are killed in turn, each started again before the next.
async fn kill_all(world: &World, one: &Node, other: &Node) {
    one.kill9().await;
    one.restart().await;
    world.server().kill9().await;
    world.server().restart().await.unwrap();
    other.kill9().await;
    other.restart().await;
}

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

/// Nodes run the binary that cargo has just built, or the one that `LONGSHORE_BIN` names: an older version shows that a
/// test of a fixed bug fails there.
fn use_binary() {
    let named = std::env::var_os("LONGSHORE_BIN").map(PathBuf::from);
    longshore_harness::use_binary(named.unwrap_or_else(|| env!("CARGO_BIN_EXE_longshore").into()));
}

/// Says that something is not checked here. libtest keeps what `eprintln!` prints in a test that passes.
fn skipped(what: &str) {
    let mut past_libtest = std::io::stderr();
    writeln!(past_libtest, "SKIPPED: {what}").unwrap();
}

/// Retries follow at once.
const AT_ONCE: &str = "backoff = { base = '10ms', factor = 1.0, max = '10ms', jitter = 'none' }";

/// Retries follow soon, but not so soon that a node would hold them locally.
const SOON: &str = "backoff = { base = '1100ms', factor = 1.0, max = '1100ms', jitter = 'none' }";

/// Settings of a type: its handler and more.
fn served_by(handler: &str, more: &str) -> String {
    format!("handler = '{handler}'\n{more}")
}

/// Only the queue `main`, on that many workers, strictly by priority.
fn workers(node: NodeBuilder<'_>, count: usize) -> NodeBuilder<'_> {
    node.with("queues.main", &format!("concurrency = {count}\naging = '0s'"))
}

/// A node whose jobs are delivered again soon after its death.
fn quick<'w>(world: &'w World, name: &str) -> NodeBuilder<'w> {
    world.node().name(name).with("node", "lease = '2s'")
}

/// Makes the streams, and leaves no node behind.
async fn without_node(node: NodeBuilder<'_>) -> Node {
    let node = node.start().await;
    node.stop().await;
    node
}

/// Waits for a line with these words. What a process has written may reach its log later than what it answered.
async fn logged(log: &Log, words: &str) -> String {
    let line = tokio::time::timeout(WITHIN, log.seen(0, |line| line.contains(words))).await;
    line.unwrap_or_else(|_| panic!("{words:?} was not logged: {}", log.tail(20)))
}

/// Waits until no job is in the usual lane any more, neither waiting nor buffered by a node.
async fn is_emptied(world: &World) {
    longshore_harness::eventually("an empty lane", Duration::from_secs(60), async || {
        match world.depth("main", 5).await {
            0 => Ok(()),
            depth => Err(format!("{depth} jobs")),
        }
    })
    .await;
}

/// The time that far from now, in the wire's format.
fn in_future(span: Duration) -> String {
    let at = jiff::Timestamp::now() + jiff::SignedDuration::try_from(span).unwrap();
    format!("{at:.3}")
}

/// How many times a fault is repeated: the number in this environment variable, or a small one.
fn times(variable: &str, small: usize) -> usize {
    let asked = std::env::var(variable).ok().and_then(|text| text.parse().ok());
    asked.unwrap_or(small)
}

/// More requests to handlers than a node has on their way at one moment, which it sends when it thaws.
const ON_THEIR_WAY: usize = 8;

/// The facts that the checker needs beside the history. Times on the wire have a resolution of 1 ms.
fn rules(interruptions: Vec<Interruption>) -> Rules {
    Rules { interruptions, clock_skew: Duration::from_millis(2), ..Rules::default() }
}
