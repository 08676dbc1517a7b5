//! A node that is asked to end finishes what it can, returns the other jobs untouched, and stays within its time
//! limits.

use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use longshore::{Client, Connection};
use longshore_harness::natsd::Signal;
use longshore_harness::{LiveEvents, Node, Receipt, Reply, World, reads};
use rustix::process::{Pid, kill_process};
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::http::on_a_free_port;
use crate::{WITHIN, rules, served_by, without_node, workers, world};

/// Given running and waiting jobs, when the node is asked to end, then the running jobs end first and no other job
/// starts.
#[tokio::test]
async fn what_runs_is_finished_and_nothing_else_begins() {
    // Under `nohup` a node leaves it ignored, as it should.
    let hang_up = (!is_hang_up_ignored()).then_some(Signal::HUP);
    for signal in [Signal::TERM, Signal::INT, Signal::QUIT].into_iter().chain(hang_up) {
        let world = world().await;
        let node = workers(world.node(), 4).start().await;
        let mut live = world.live_events("default").await;
        let running = world.publish("sleep").many((0..4).map(|_| json!({"ms": 800}))).await;
        for receipt in &running {
            live.until_published("started", &receipt.run_id).await;
        }
        let waiting = world.publish("noop").many((0..50).map(|number| json!(number))).await;

        // These two mean nothing to a node.
        node.signal(Signal::USR1);
        node.signal(Signal::USR2);
        node.signal(signal);
        assert_eq!(node.wait_exit(WITHIN).await.code(), Some(0));

        for receipt in &running {
            let record = world.record(&receipt.run_id).await.unwrap();
            assert_eq!((record.state.as_str(), record.attempt), ("completed", 1));
        }
        for receipt in &waiting {
            assert!(world.record(&receipt.run_id).await.is_none(), "{}", world.report(&receipt.run_id).await);
        }
        node.restart().await;
        let all: Vec<_> = running.into_iter().chain(waiting).collect();
        assert!(world.ends(&all, WITHIN).await.iter().all(|state| state == "completed"));
        node.stop().await;
        let mut history = world.history(&all, Vec::new()).await;
        assert!(history.records.iter().all(|record| record.attempt == 1));
        history.rules = rules(Vec::new());
        history.assert_sound();
    }
}

/// Given a node that runs a job and is not ready yet, as there is no room for its schedule, when it is asked to end,
/// then the job ends first.
#[tokio::test]
async fn what_runs_before_the_node_is_ready_is_finished() {
    let world = world().await;
    without_node(world.node()).await;
    let mut fillers = 0;
    for bytes in [1_000_000, 10_000, 100] {
        let mut has_room = true;
        while has_room {
            fillers += 1;
            let subject = format!("$KV.longshore_schedules.filler.x.{fillers}");
            has_room = world.jetstream().publish(subject, vec![b'x'; bytes].into()).await.unwrap().await.is_ok();
        }
    }
    let mut live = world.live_events("default").await;
    let run = world.publish("sleep").json(json!({"ms": 2_000})).await;
    let config = world.dir().join("early.toml");
    let text = "[node]\nname = 'early'\n[http]\nlisten = 'off'\n[schedules.late]\nevery = '1h'\ntype = 'noop'\n";
    std::fs::write(&config, text).unwrap();
    let mut serve = world.command(["serve", "--config", config.to_str().unwrap()]);
    let mut node = serve.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    live.until_published("started", &run).await;

    let pid = Pid::from_raw(i32::try_from(node.id().unwrap()).unwrap()).unwrap();
    kill_process(pid, Signal::TERM).unwrap();
    assert!(node.wait().await.unwrap().success());
    let record = world.record(&run).await.unwrap();
    assert_eq!((record.state.as_str(), record.attempt), ("completed", 1));
}

/// Given clients that wait for a run, when the only node ends, then they are answered before, and are to ask again; the
/// library does, and has the end of the run after the restart.
#[tokio::test]
async fn who_waits_for_a_run_is_answered_before_the_node_ends() {
    let world = world().await;
    let node = world.node().start().await;
    let client = Client::connect(&Connection::to(world.server().url()), "longshore").await.unwrap();
    let run = client.job("noop").delay(Duration::from_secs(3_600)).submit().await.unwrap().run_id;
    let body = json!({"run_id": run, "timeout_ms": 600_000}).to_string();
    let waits = world.ask("default", "runs.wait", body, WITHIN);
    let ends = async {
        // The node has the wait, which went before it over the same connection, once it answers this.
        world.request("runs.get", json!({"run_id": run})).await;
        node.restart().await;
        world.request("runs.run_now", json!({"run_id": run})).await;
    };
    let (refused, record, ()) = tokio::join!(waits, client.wait(&run, WITHIN), ends);
    let refused = refused.unwrap_err();
    assert!(refused.code == 503 && refused.message.contains("ask again"), "{refused}");
    assert_eq!(record.unwrap().state.to_string(), "completed");
}

/// Given jobs that come over HTTP, a line each and one by one, when the node is asked to end, then every one that it
/// took is answered, and the lines end with a refusal.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_submits_over_http_as_the_node_ends_has_an_answer_for_each_job() {
    let world = world().await;
    let node = on_a_free_port(world.node()).start().await;
    let head = "POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/";
    let mut lines = TcpStream::connect(node.http()).await.unwrap();
    lines.write_all(format!("{head}x-ndjson\r\nTransfer-Encoding: chunked\r\n\r\n").as_bytes()).await.unwrap();
    let (mut answers, mut lines) = lines.into_split();
    let sends = tokio::spawn(async move {
        for number in 0.. {
            let line = format!("{{\"type\":\"noop\",\"run_id\":\"line-{number}\"}}\n");
            if lines.write_all(format!("{:x}\r\n{line}\r\n", line.len()).as_bytes()).await.is_err() {
                return number;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        0
    });
    let address = node.http();
    let ones = tokio::spawn(async move {
        let mut unanswered = Vec::new();
        for number in 0.. {
            let Ok(mut one) = TcpStream::connect(address).await else { break };
            let job = format!("{{\"type\":\"noop\",\"run_id\":\"one-{number}\"}}");
            let request = format!("{head}json\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{job}", job.len());
            let mut answer = String::new();
            let asked = one.write_all(request.as_bytes()).await;
            if asked.is_err() || one.read_to_string(&mut answer).await.is_err() || answer.is_empty() {
                unanswered.push(number);
            }
        }
        unanswered
    });
    let mut said = vec![0; 1 << 16];
    let read = answers.read(&mut said).await.unwrap();
    said.truncate(read);
    node.sigterm();
    // Its connection may end with a reset, as it does not read all that comes.
    let _ = answers.read_to_end(&mut said).await;
    assert_eq!(node.wait_exit(WITHIN).await.code(), Some(0));

    let said = String::from_utf8(said).unwrap();
    let last = said.lines().rfind(|line| line.starts_with('{')).unwrap();
    assert!(last.contains("\"code\":503") && last.contains("reads no more"), "{last}");
    for number in 0..sends.await.unwrap() {
        let run = format!("line-{number}");
        let is_answered = said.contains(&format!("\"run_id\":\"{run}\""));
        assert!(is_answered || world.record(&run).await.is_none(), "{run} was taken and not answered");
    }
    for number in ones.await.unwrap() {
        assert!(world.record(&format!("one-{number}")).await.is_none(), "one-{number} was taken and not answered");
    }
}

/// Whether this process, and so each node that it starts, has SIGHUP ignored.
fn is_hang_up_ignored() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    ignored.is_some_and(|mask| u64::from_str_radix(mask.trim(), 16).unwrap() & 1 == 1)
}

/// Given jobs that outlast the grace period, when it is over, then the node releases them, and they start again as the
/// same attempt.
#[tokio::test]
async fn what_outlasts_the_grace_is_released_unused() {
    let world = world().await;
    let one_try = served_by("remote", "max_attempts = 1");
    let node = world.node().with("node", "shutdown_grace = '300ms'").with("types.long", &one_try).start().await;
    let calls = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&calls);
    let handler = world
        .handler("long")
        .start(move |_| {
            let first = count.fetch_add(1, Ordering::Relaxed) == 0;
            async move { if first { Reply::silence() } else { Reply::json(json!("done")) } }
        })
        .await;
    let mut live = world.live_events("default").await;
    let mut cancels = world.listen("longshore.cancel.default.*").await;
    let local = world.publish("sleep").header("Longshore-Max-Attempts", "1").send(r#"{"ms":1500}"#).await.unwrap();
    let remote = world.publish("long").send("{}").await.unwrap();
    live.until_published("started", &local.run_id).await;
    live.until_published("started", &remote.run_id).await;

    node.sigterm();
    live.until_published("released", &local.run_id).await;
    live.until_published("released", &remote.run_id).await;
    cancels.until("the request to stop", |live| live.subject.ends_with(&remote.run_id)).await;
    assert_eq!(node.wait_exit(WITHIN).await.code(), Some(0));

    node.restart().await;
    for receipt in [&local, &remote] {
        let end = world.wait(&receipt.run_id).await;
        let report = "enqueued\nstarted 1\nreleased 1\nstarted 1\ncompleted 1";
        assert_eq!((end.state.as_str(), end.attempt), ("completed", 1), "{}", world.report(&receipt.run_id).await);
        let published = world.eventually_reads(&receipt.run_id, report).await;
        assert_ne!(published[1].event.id, published[3].event.id, "the second start is another event");
    }
    node.stop().await;
    // The first call of the remote handler got a request to stop; how the handler reacts is its own affair.
    assert_eq!(handler.calls().len(), 2);
    let mut history = world.history(&[local, remote], Vec::new()).await;
    history.rules = rules(Vec::new());
    history.assert_sound();
}

/// Asks a node with one worker to end while it runs a job of so many milliseconds, and has others behind that: it ends,
/// and hands back the one that it runs, and the others.
async fn hands_back(world: &World, node: &Node, live: &mut LiveEvents, ms: u64) -> (Receipt, Vec<Receipt>) {
    let running = world.publish("sleep").send(json!({"ms": ms}).to_string()).await.unwrap();
    live.until_published("started", &running.run_id).await;
    let waiting = world.publish("noop").many((0..50).map(|number| json!(number))).await;

    node.sigterm();
    live.until_published("released", &running.run_id).await;
    assert_eq!(node.wait_exit(WITHIN).await.code(), Some(0));
    (running, waiting)
}

/// Given jobs that the only node returned as it ended, one that had begun and others that it had buffered, when the
/// server ends as well, then a later start of both brings them at once, long before the lease is over.
#[tokio::test]
async fn what_the_last_node_returns_does_not_wait_for_the_lease_after_a_restart_of_the_server() {
    let world = world().await;
    let node = workers(world.node(), 1).with("node", "lease = '10m'\nshutdown_grace = '300ms'").start().await;
    let mut live = world.live_events("default").await;
    let (running, waiting) = hands_back(&world, &node, &mut live, 3_000).await;
    world.server().stop().await.unwrap();
    world.server().restart().await.unwrap();
    node.restart().await;

    let all: Vec<_> = std::iter::once(running).chain(waiting).collect();
    assert!(world.ends(&all, WITHIN).await.iter().all(|state| state == "completed"));
    node.stop().await;
    let mut history = world.history(&all, Vec::new()).await;
    assert!(history.records.iter().all(|record| record.attempt == 1));
    history.rules = rules(Vec::new());
    history.assert_sound();
}

/// Given a drain over which the scheduler and the lease-keeper die, then the ones that follow do what was asked: the
/// node ends in order, what it had buffered goes back, and what outlasts the grace period is released.
#[tokio::test]
async fn a_drain_outlives_the_parts_that_die_over_it() {
    let world = world().await;
    let node = workers(world.node(), 1).with("node", "shutdown_grace = '300ms'");
    let node = node.env("LONGSHORE_FAIL_POINTS", "before-close=panic,before-stop=panic").start().await;
    let mut live = world.live_events("default").await;
    let (running, waiting) = hands_back(&world, &node, &mut live, 600_000).await;

    let log = std::fs::read_to_string(node.log().path()).unwrap();
    for point in ["before-close", "before-stop"] {
        assert!(log.contains(&format!("fail point {point}")), "{log}");
    }
    for receipt in &waiting {
        assert!(world.record(&receipt.run_id).await.is_none(), "{}", world.report(&receipt.run_id).await);
    }

    let after = workers(world.node(), 4).name("after").start().await;
    assert!(world.ends(&waiting, WITHIN).await.iter().all(|state| state == "completed"));
    live.until_published("started", &running.run_id).await;
    assert_eq!(world.record(&running.run_id).await.map_or(1, |record| record.attempt), 1);
    after.kill9().await;
}

/// Given a short retry that a node holds locally, when the node ends, then another node continues the run.
#[tokio::test]
async fn a_retry_held_locally_is_handed_over() {
    let world = world().await;
    let soon = served_by("fail", "backoff = { base = '950ms', factor = 1.0, max = '950ms', jitter = 'none' }");
    let node = world.node().with("types.flaky", &soon).start().await;
    let mut live = world.live_events("default").await;
    let receipts = world.publish("flaky").many((0..30).map(|_| json!({"times": 1}))).await;
    for receipt in &receipts {
        live.until_published("failed", &receipt.run_id).await;
    }
    assert_eq!(node.stop().await.code(), Some(0));
    node.restart().await;
    assert!(world.ends(&receipts, WITHIN).await.iter().all(|state| state == "completed"));
    node.stop().await;
    let mut history = world.history(&receipts, Vec::new()).await;
    assert!(history.records.iter().all(|record| record.attempt == 2));
    history.rules = rules(Vec::new());
    history.assert_sound();
}

/// Given a drain that waits for a job, when a second signal arrives, then the node ends at once, and the job is
/// delivered again.
#[tokio::test]
async fn a_second_signal_ends_at_once() {
    let world = world().await;
    let node = world.node().with("node", "lease = '1s'").start().await;
    let mut live = world.live_events("default").await;
    let quick = "handler = 'sleep'\nbackoff = { base = '10ms', factor = 1.0, max = '10ms', jitter = 'none' }";
    node.stop().await;
    let node = world.node().with("node", "lease = '1s'").with("types.sleep", quick).start().await;
    let receipt = world.publish("sleep").send(r#"{"ms":3000}"#).await.unwrap();
    live.until_published("started", &receipt.run_id).await;

    let mark = node.log().mark();
    node.sigterm();
    node.log().seen(mark, |line| line.contains("draining")).await;
    node.sigterm();
    assert_eq!(node.wait_exit(WITHIN).await.code(), Some(128 + 15));
    assert!(world.record(&receipt.run_id).await.is_none_or(|record| record.state == "running"));

    node.restart().await;
    assert_eq!(world.wait(&receipt.run_id).await.state, "completed");
    node.stop().await;
    world.history(&[receipt], Vec::new()).await.assert_sound();
}

/// Given nodes whose server is gone or silent, when they are asked to end, then they end, and their jobs are delivered
/// again.
#[tokio::test]
async fn a_node_ends_without_its_server() {
    let world = world().await;
    let quick = "[node]\nlease = '1s'\nshutdown_grace = '300ms'\n[types.sleep]\nhandler = 'sleep'\nmax_attempts = 99\n\
                 backoff = { base = '10ms', factor = 1.0, max = '10ms', jitter = 'none' }";
    let mut live = world.live_events("default").await;
    let mut receipts = Vec::new();
    for gone in [true, false] {
        let node = world.node().config(quick).start().await;
        if gone {
            world.server().kill9().await;
        } else {
            let receipt = world.publish("sleep").send(r#"{"ms":1500}"#).await.unwrap();
            live.until_published("started", &receipt.run_id).await;
            receipts.push(receipt);
            world.server().sigstop();
        }
        node.sigterm();
        let status = node.wait_exit(WITHIN).await;
        assert_eq!(status.code(), Some(1), "it says that not everything was confirmed");
        world.server().sigcont();
        world.server().restart().await.unwrap();
    }
    let node = world.node().config(quick).start().await;
    assert!(world.ends(&receipts, WITHIN).await.iter().all(|state| state == "completed"));
    node.stop().await;
    let mut history = world.history(&receipts, Vec::new()).await;
    history.rules = rules(Vec::new());
    history.assert_sound();
}

/// Given three nodes at work, when one after the other is restarted, then no job loses an attempt, and each job runs
/// once.
#[tokio::test]
async fn a_rolling_restart_costs_no_attempt() {
    let world = world().await;
    let mut nodes = Vec::new();
    for _ in 0..3 {
        nodes.push(workers(world.node(), 4).start().await);
    }
    let handler = world.handler("remote").start(async |_| Reply::json(json!(1))).await;
    let mut receipts = Vec::new();
    let publish = async |world: &World| {
        let mut receipts = world.publish("sleep").many((0..60).map(|_| json!({"ms": 60}))).await;
        receipts.extend(world.publish("remote").many((0..30).map(|number| json!(number))).await);
        receipts.extend(world.publish("noop").many((0..60).map(|number| json!(number))).await);
        receipts
    };
    for node in &nodes {
        receipts.extend(publish(&world).await);
        assert_eq!(node.stop().await.code(), Some(0));
        receipts.extend(publish(&world).await);
        node.restart().await;
    }
    assert!(world.ends(&receipts, WITHIN).await.iter().all(|state| state == "completed"));
    for node in &nodes {
        assert_eq!(node.stop().await.code(), Some(0));
    }
    let mut history = world.history(&receipts, handler.calls()).await;
    let again: Vec<_> = history.records.iter().filter(|record| record.attempt != 1).collect();
    assert!(again.is_empty(), "{}", world.report(&again[0].run_id).await);
    assert_eq!(handler.calls().len(), 180, "each remote job was sent to a handler once");
    let of_one = world.events(&receipts[0].run_id).await;
    assert_eq!(reads(&of_one), "enqueued\nstarted 1\ncompleted 1");
    history.rules = rules(Vec::new());
    history.rules.calls_complete = false;
    history.assert_sound();
}
