//! Rare faults are counted and logged: each counter moves together with its log line.
//!
//! The node runs in the test's own process, through the library, and on the test's own thread: that is how its log
//! lines are separated from those of other tests.

use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_nats::jetstream::kv;
use longshore::{Configuration, Connection, handlers};
use longshore_harness::{Scrape, World, eventually};
use serde_json::json;
use tracing::subscriber::DefaultGuard;

use crate::http::on_a_free_port;
use crate::overdue::{forget_schedules, scheduled};
use crate::{WITHIN, world};

/// Connections that were made anew, and the two lines that say so: the client connected again, or was replaced.
const REBUILT: &str = "longshore_connections_rebuilt_total";
const AGAIN: &str = "connected to NATS again";
const REPLACED: &str = "the NATS client ended over what it was sent; a new one takes its place";

/// The node's log.
#[derive(Debug, Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// A node within this process.
struct Inside {
    node: longshore::Node,
    lines: Lines,
    _logs: DefaultGuard,
}

impl Inside {
    async fn start(world: &World, settings: &str) -> Inside {
        let lines = Lines::default();
        let writer = lines.clone();
        let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).finish();
        let logs = tracing::subscriber::set_default(subscriber);
        let file = world.dir().join("inside.toml");
        std::fs::write(&file, format!("[http]\nlisten = 'off'\n[node]\nname = 'inside'\nlease = '2s'\n{settings}"))
            .unwrap();
        let handlers = handlers::built_in();
        let configuration = Configuration::load(Some(&file), &[], &handlers).unwrap();
        let node =
            longshore::Node::start(configuration.settings().clone(), Connection::to(world.urls()), handlers).await;
        Inside { node: node.unwrap(), lines, _logs: logs }
    }

    /// The counter of that name, summed over all its labels.
    fn count(&self, name: &str) -> u64 {
        let families = self.node.metrics().registry.gather();
        let family = families.iter().find(|family| family.name() == name);
        let sum: f64 =
            family.map_or(0.0, |family| family.get_metric().iter().map(|m| m.get_counter().get_value()).sum());
        sum as u64
    }

    /// How many log lines contain `what`.
    fn said(&self, what: &str) -> usize {
        let lines = self.lines.0.lock().unwrap();
        String::from_utf8_lossy(&lines).lines().filter(|line| line.contains(what)).count()
    }

    /// Asserts that nothing of the kind has been counted or logged so far.
    fn knows_nothing_of(&self, (name, line): (&str, &str)) {
        assert_eq!((self.count(name), self.said(line)), (0, 0), "{name}, {line:?}");
    }

    /// Waits until the counter has that value, and that many lines say it.
    async fn counts_and_logs(&self, (name, line): (&str, &str), count: u64, lines: usize) {
        eventually(name, WITHIN, async || {
            let found = (self.count(name), self.said(line));
            if found == (count, lines) { Ok(()) } else { Err(format!("{found:?}, not {count} and {lines}")) }
        })
        .await;
    }

    /// Waits until at least `count` connections were made anew, one of them at least said by `line`, and each of them
    /// said by one line; gives how many there were. More than expected there may be at any time: a machine that stands
    /// still for seconds loses its connections, and a message may come a second time before it is taken out.
    async fn has_rebuilt(&self, count: u64, line: &str) -> u64 {
        eventually("connections made anew", WITHIN, async || {
            let (counted, again, replaced) = (self.count(REBUILT), self.said(AGAIN), self.said(REPLACED));
            let is_as_said = counted == (again + replaced) as u64 && self.said(line) > 0;
            if is_as_said && counted >= count { Ok(counted) } else { Err(format!("{counted}, {again} + {replaced}")) }
        })
        .await
    }

    async fn ends(self) {
        self.node.drain().await.unwrap();
    }
}

/// Given jobs, when unreadable messages arrive among them, then each is counted, and so is each connection that is
/// rebuilt because of them.
#[tokio::test]
async fn poison_and_connections_made_anew_are_counted_and_said() {
    const POISON: (&str, &str) = ("longshore_poison_removed_total", "a message that cannot be read is taken out");
    let world = world().await;
    let node = Inside::start(&world, "").await;
    node.knows_nothing_of(POISON);
    node.knows_nothing_of((REBUILT, AGAIN));
    let mut bytes = world.bytes().await;
    for _ in 0..3 {
        bytes.publish(b"longshore.jobs.default.main.p5.noop", None, b"NATS/1.0\r\nno colon\r\n\r\n", b"{}");
    }
    bytes.flush().await;
    world.eventually_dead_letters(3).await;

    node.counts_and_logs(POISON, 3, 3).await;
    let before = node.has_rebuilt(1, AGAIN).await;

    world.server().kill9().await;
    world.server().restart().await.unwrap();

    // A node has four connections.
    node.has_rebuilt(before + 4, AGAIN).await;
    node.ends().await;
}

/// A client that dies because of its input does not come back by itself; its replacement counts as well.
#[tokio::test]
async fn a_client_that_died_is_counted_and_said() {
    let world = world().await;
    let node = Inside::start(&world, "").await;
    node.knows_nothing_of((REBUILT, REPLACED));
    let mut bytes = world.bytes().await;
    bytes.publish(b"longshore.jobs.default.main.p5.noop", None, b"NATS/1.0\r\nX: a\rb\r\n\r\n", b"{}");
    bytes.flush().await;
    world.eventually_dead_letters(1).await;

    node.has_rebuilt(1, REPLACED).await;
    node.ends().await;
}

/// Given a run that has failed twice, when its record is set back to the first failure, then the node leaves the third
/// attempt's job alone, and counts that; the job runs once the record is restored. The same holds for its dead letter.
#[tokio::test]
async fn records_that_are_too_old_are_counted_and_said() {
    const STALE: (&str, &str) = ("longshore_stale_reads_total", "the record is older than the job that came");
    let world = world().await;
    let backoff = "max_attempts = 3\nbackoff = { base = '1500ms', factor = 1.0, max = '1500ms', jitter = 'none' }";
    let node = Inside::start(&world, &format!("[types.flaky]\nhandler = 'fail'\n{backoff}")).await;
    node.knows_nothing_of(STALE);
    let records = world.jetstream().get_key_value("longshore_runs").await.unwrap();
    let run = world.publish("flaky").json(json!({"times": 100})).await;
    let key = format!("default.{run}");
    let first = retrying_after(&records, &key, 1).await;
    let second = retrying_after(&records, &key, 2).await;

    records.put(&key, first.clone()).await.unwrap();

    eventually("a stale read", WITHIN, async || if node.count(STALE.0) > 0 { Ok(()) } else { Err("none") }).await;
    records.put(&key, second).await.unwrap();
    assert_eq!(world.wait(&run).await.state, "dead");
    let found = node.count(STALE.0);
    assert_eq!(node.said(STALE.1) as u64, found);

    world.eventually_dead_letters(1).await;
    let dead = records.get(&key).await.unwrap().unwrap();
    records.put(&key, first).await.unwrap();
    let answer = world.request("dlq.replay", json!({"run_id": run})).await;
    assert!(answer["failed"][0]["error"].as_str().unwrap().contains("does not know of its end yet"), "{answer}");
    assert_eq!((node.count(STALE.0), node.said("the record is older than the dead letter")), (found + 1, 1));
    records.put(&key, dead).await.unwrap();
    assert_eq!(world.request("dlq.replay", json!({"run_id": run})).await["replayed"], 1);
    node.ends().await;
}

/// The record's bytes once the run waits after that many attempts.
pub(crate) async fn retrying_after(records: &kv::Store, key: &str, attempt: u64) -> bytes::Bytes {
    eventually("a run that waits", WITHIN, async || {
        let found = records.get(key).await.unwrap().unwrap_or_default();
        let record: serde_json::Value = serde_json::from_slice(&found).unwrap_or_default();
        if record["state"] == "retrying" && record["attempt"] == attempt { Ok(found) } else { Err(record.to_string()) }
    })
    .await
}

/// Given a long job, when its node freezes as the job ends, then the node that takes it over counts the lease as lost;
/// and the thawed one counts its result as too late.
#[tokio::test]
async fn leases_judged_lost_are_counted_and_said() {
    const LOST: (&str, &str) = ("longshore_leases_judged_lost_total", "its holder lost the lease");
    let world = world().await;
    let other = on_a_free_port(world.node().name("other")).with("node", "lease = '2s'");
    let other = other.env("LONGSHORE_FAIL_POINTS", "before-record=stop@1").start().await;
    let mut live = world.live_events("default").await;
    let run = world.publish("sleep").json(json!({"ms": 2_000})).await;
    live.until_published("started", &run).await;
    // Until its record says that it runs, no other node knows of a lease that could be lost.
    world.eventually_is(&run, "running", Duration::from_secs(20)).await;
    eventually("the node to stop itself", WITHIN, async || if other.is_frozen() { Ok(()) } else { Err("it runs") })
        .await;
    let node = Inside::start(&world, "").await;
    node.knows_nothing_of(LOST);

    node.counts_and_logs(LOST, 1, 1).await;
    assert_eq!(world.wait(&run).await.state, "completed");
    other.sigcont();
    eventually("a result that came too late", WITHIN, async || {
        let late = Scrape::of(&other).await.sum("longshore_results_fenced_total", &[]);
        if late as u64 == 1 { Ok(()) } else { Err(late) }
    })
    .await;
    node.ends().await;
}

/// Given delayed jobs, when the server forgets to fire some schedules and has lost others, then each of the first is
/// counted as restored, each of the others as stranded.
#[tokio::test]
async fn schedules_that_did_not_fire_are_counted_and_said() {
    const RESTORED: (&str, &str) = ("longshore_overdue_restored_total", "schedules were overdue and had not fired");
    const STRANDED: (&str, &str) = ("longshore_runs_stranded_total", "neither a schedule nor a message of it is left");
    let world = world().await;
    let node = Inside::start(&world, "").await;
    let mut runs = Vec::new();
    for number in 0..3 {
        runs.push(world.submit(json!({"type": "echo", "payload": number, "delay_ms": 3_000})).await);
    }
    let gone = world.submit(json!({"type": "noop", "delay_ms": 3_000})).await;
    scheduled(&world, 4).await;
    let stream = world.jetstream().get_stream("LONGSHORE_SCHEDULES").await.unwrap();
    stream.purge().filter(format!("longshore.schedules.default.{gone}")).await.unwrap();
    node.knows_nothing_of(RESTORED);
    node.knows_nothing_of(STRANDED);

    world.server().stop().await.unwrap();
    forget_schedules(world.server().dir());
    world.server().restart().await.unwrap();

    for run in &runs {
        assert_eq!(world.wait(run).await.state, "completed");
    }
    eventually(RESTORED.0, WITHIN, async || match node.count(RESTORED.0) {
        3 => Ok(()),
        other => Err(other.to_string()),
    })
    .await;
    assert!(node.said(RESTORED.1) > 0);
    node.counts_and_logs(STRANDED, 1, 1).await;
    node.ends().await;
}
