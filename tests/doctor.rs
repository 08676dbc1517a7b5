//! `longshore doctor` finds the faults of a set-up, each with its remedy, and its exit code is that of the worst.

use std::process::Stdio;
use std::time::Duration;

use async_nats::ConnectOptions;
use async_nats::jetstream::stream::{Config, RetentionPolicy};
use longshore_harness::{World, http};
use longshore_natsd::Options;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpListener;
use tokio::process::Command;

use crate::http::on_a_free_port;
use crate::permissions::with_users;
use crate::{use_binary, without_node, world};

/// What the doctor found, and its exit code.
struct Found {
    findings: Vec<Value>,
    code: i32,
}

impl Found {
    async fn by(mut command: Command) -> Self {
        let output = command.output().await.unwrap();
        let answer: Value = serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&output.stderr)));
        let Value::Array(findings) = answer["findings"].clone() else { panic!("{answer}") };
        Self { findings, code: output.status.code().unwrap() }
    }

    /// Asserts that there is such a finding, with a remedy if it is a fault.
    #[track_caller]
    fn has(&self, check: &str, level: &str, text: &str) {
        let fits = |finding: &&Value| {
            finding["check"] == check && finding["level"] == level && finding["text"].as_str().unwrap().contains(text)
        };
        let found = self.findings.iter().find(fits);
        let found = found.unwrap_or_else(|| panic!("no {level} of {check} with {text:?}: {:#?}", self.findings));
        assert!(level == "fine" || found["remedy"].is_string(), "{found}");
    }

    /// Asserts that nothing is worse than a note.
    #[track_caller]
    fn is_well(&self) {
        let worse = |finding: &&Value| finding["level"] == "warning" || finding["level"] == "failure";
        assert_eq!(self.findings.iter().find(worse), None);
        assert_eq!(self.code, 0);
    }
}

async fn doctor(world: &World) -> Found {
    Found::by(world.command(["doctor", "--json"])).await
}

/// A server that answers HTTP, too, at that port.
async fn monitored(extra_jetstream: &str) -> (World, String) {
    use_binary();
    let port = longshore_harness::free_ports(1)[0];
    let options = Options {
        max_file: longshore_harness::ROOM,
        extra: format!("http: \"127.0.0.1:{port}\""),
        extra_jetstream: extra_jetstream.to_owned(),
        ..Options::default()
    };
    (World::with(options).await, format!("127.0.0.1:{port}"))
}

/// Given a cluster without faults, when one asks, then nothing is wrong, and the promise of durability is that of its
/// copies and of how its server syncs.
#[tokio::test]
async fn doctor_says_what_a_sound_cluster_promises() {
    for (setting, promised) in
        [("sync_interval: always", "each write is synced"), ("", "synced every 2 min 0 s: kill -9 and freezes")]
    {
        let (world, address) = monitored(setting).await;
        let node = world.node().start().await;
        let url = format!("http://{address}/");
        let found = Found::by(world.command(["doctor", "--json", "--monitor", &url])).await;
        found.is_well();
        found.has("durability", "fine", promised);
        found.has("server", "fine", "nats-server 2.");
        found.has("permissions", "fine", "everything");
        found.has("nodes", "fine", "1 there");
        found.has("clocks", "fine", "2 compared");
        let said = world.command(["doctor"]).output().await.unwrap();
        let text = String::from_utf8(said.stdout).unwrap();
        assert!(text.contains("ok       server") && text.ends_with("Nothing is wrong.\n"), "{text}");
        doctor(&world).await.has("durability", "note", "not known");
        let nowhere = Found::by(world.command(["doctor", "--json", "--monitor", "127.0.0.1:9"])).await;
        nowhere.has("durability", "warning", "cannot be asked");
        assert_eq!(nowhere.code, 3);
        node.stop().await;
    }
}

/// Given a stream that keeps more than its node's settings say, when the node's doctor is asked for over HTTP, then it
/// finds that, by these settings, and what the command finds.
#[tokio::test]
async fn the_node_shows_what_its_doctor_finds() {
    let world = world().await;
    without_node(world.node()).await;
    let node = on_a_free_port(world.node().name("smaller")).with("storage", "dlq_max_bytes = '64MiB'").start().await;
    let page = http::get(node.http(), "/v1/doctor").await.unwrap();
    assert_eq!(page.status, 200, "{page:?}");
    let Value::Array(findings) = page.json()["findings"].clone() else { panic!("{page:?}") };
    let found = Found { findings, code: 0 };
    found.has("server", "fine", "nats-server 2.");
    found.has("nodes", "fine", "1 there");
    found.has("streams", "note", "LONGSHORE_DLQ holds more: max_bytes is");
    let worst = page.json()["worst"].clone();
    assert!(found.findings.iter().any(|finding| finding["level"] == worst), "{page:?}");
    let asked = http::get(node.http(), "/v1/doctor?deep=yes").await.unwrap();
    assert_eq!(asked.status, 400, "{asked:?}");
}

/// Given no server, one that is too old, and an account without JetStream, when one asks, then each is said.
#[tokio::test]
async fn a_server_that_cannot_be_used_is_named() {
    use_binary();
    let extra = "accounts: { without: { users: [{ user: u, password: p }] } }\nno_auth_user: u".to_owned();
    let world = World::with_login(Options { extra, ..Options::default() }, ConnectOptions::new()).await;
    let found = doctor(&world).await;
    found.has("jetstream", "failure", "JetStream is not available");
    found.has("nodes", "failure", "no Longshore node is running");
    assert_eq!(found.code, 1);

    let mut nowhere = world.command(["doctor", "--json"]);
    nowhere.env("NATS_URL", "nats://127.0.0.1:9");
    Found::by(nowhere).await.has("server", "failure", "cannot connect");

    let old = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("nats://{}", old.local_addr().unwrap());
    let serving = tokio::spawn(async move {
        loop {
            let (socket, _) = old.accept().await.unwrap();
            tokio::spawn(async move {
                let (read, mut write) = socket.into_split();
                let info = r#"{"server_id":"s","server_name":"s","version":"2.10.7","go":"go1","host":"h","port":1,"headers":true,"max_payload":1048576,"proto":1,"client_id":1}"#;
                write.write_all(format!("INFO {info}\r\n").as_bytes()).await.unwrap();
                let mut lines = BufReader::new(read).lines();
                while let Ok(Some(line)) = lines.next_line().await {
                    if line.starts_with("PING") && write.write_all(b"PONG\r\n").await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    let mut command = world.command(["doctor", "--json"]);
    command.env("NATS_URL", url);
    let found = Found::by(command).await;
    found.has("server", "failure", "2.10.7");
    assert!(found.findings[0]["remedy"].as_str().unwrap().contains("2.14.5"), "{:?}", found.findings);
    serving.abort();
}

/// Given an account that may have too few streams, when one asks, then it is said before a node fails over it.
#[tokio::test]
async fn limits_that_are_too_small_are_named() {
    use_binary();
    let jetstream = "{ max_streams: 7, max_consumers: 1, max_file: 10G }";
    let extra = format!(
        "accounts: {{ a: {{ jetstream: {jetstream}, users: [{{ user: u, password: p }}] }} }}\nno_auth_user: u"
    );
    let world = World::with_login(Options { extra, ..Options::default() }, ConnectOptions::new()).await;
    let found = doctor(&world).await;
    found.has("jetstream", "failure", "the account may have 7 streams: ");
    assert!(
        !json!(found.findings).to_string().contains("max_consumers"),
        "they count for each stream: {:?}",
        found.findings
    );
    found.has("streams", "note", "there are none yet");
    assert_eq!(found.code, 1);
}

/// Given a server that has reached its `max_file_store`, when one asks, then it is named, and no lane; and once there
/// is room, the node takes work again.
#[tokio::test]
async fn a_server_that_has_no_room_left_is_named() {
    let world = world().await;
    let node = on_a_free_port(world.node()).start().await;
    let is_ready = async |reason: Option<&str>| {
        longshore_harness::eventually("readiness", crate::WITHIN, async || {
            let page = http::get(node.http(), "/readyz").await.unwrap();
            let fits = (page.status == 200) == reason.is_none() && page.body.contains(reason.unwrap_or_default());
            if fits { Ok(()) } else { Err(page.body) }
        })
        .await;
    };
    is_ready(None).await;
    world.server().stop().await.unwrap();
    let config = std::fs::read_to_string(world.server().dir().join("nats-server.conf")).unwrap();
    let file = world.server().dir().join("small.conf");
    std::fs::write(&file, config.replace("max_file_store: ", "max_file_store: 1 # ")).unwrap();
    let mut small = Command::new(longshore_natsd::find_or_provision().await.unwrap());
    let mut small = small.arg("--config").arg(&file).stderr(Stdio::null()).kill_on_drop(true).spawn().unwrap();

    let reason = "the NATS server has no room left";
    is_ready(Some(reason)).await;
    let refused = world.try_request("default", "submit", json!({"type": "noop"})).await.unwrap_err();
    assert!(refused.code == 503 && refused.message.contains(reason), "{refused}");
    longshore_harness::eventually("a doctor without nodes", crate::WITHIN, async || {
        let found = doctor(&world).await;
        let text = json!(found.findings).to_string();
        let is_named = text.contains(reason) && text.contains("none is known to be there");
        if is_named && found.code == 1 { Ok(()) } else { Err(text) }
    })
    .await;
    small.kill().await.unwrap();
    world.server().restart().await.unwrap();
    is_ready(None).await;
    node.stop().await;
}

/// Given a user that lacks rights of a node, and one that may not even ask, when they ask, then the answer says so to
/// each.
#[tokio::test]
async fn rights_that_are_missing_are_named() {
    let denied = "$JS.API.STREAM.MSG.DELETE.LONGSHORE_DLQ";
    let little =
        format!("{{ publish: {{ deny: \"{denied}\" }}, subscribe: {{ allow: [\"_INBOX.>\", \"longshore.api.>\"] }} }}");
    let mute = "{ publish: { deny: \"$SYS.REQ.USER.INFO\" } }";
    let fenced = "{ publish: { allow: \"longshore.api.acme.>\" } }";
    let users = format!(
        "{{ user: all, password: p }}, {{ user: little, password: p, permissions: {little} }}, {{ user: mute, password: p, permissions: {mute} }}, {{ user: fenced, password: p, permissions: {fenced} }}"
    );
    let world = with_users(&users).await;
    let node = world.node().env("NATS_USER", "all").env("NATS_PASSWORD", "p").start().await;
    let asked = async |user: &str| {
        let mut command = world.command(["doctor", "--json"]);
        command.env("NATS_USER", user).env("NATS_PASSWORD", "p");
        Found::by(command).await
    };
    asked("all").await.is_well();
    let found = asked("little").await;
    found.has("permissions", "failure", &format!("may not publish to {denied}"));
    found.has("permissions", "failure", "may not subscribe to longshore.nodes.>, longshore.cancel.>");
    assert_eq!(found.code, 1);
    let found = asked("mute").await;
    found.has("permissions", "note", "may not ask what it may do");
    assert_eq!(found.code, 0);
    // What a tenant's user may not ask is said by its right, and nothing is said of what was not seen.
    let found = asked("fenced").await;
    found.has("jetstream", "failure", "the NATS user lacks the right to publish to $JS.API.INFO");
    assert!(!found.findings.iter().any(|finding| finding["check"] == "storage"), "{:#?}", found.findings);
    assert_eq!(found.code, 1);
    node.stop().await;
}

/// Given streams that are missing, changed, full or without their consumer, a queue that nobody serves, and no node,
/// when one asks, then each is said.
#[tokio::test]
async fn streams_out_of_shape_are_named() {
    let world = world().await;
    let node = world.node().with("storage", "jobs_max_messages = 20").with("queues.main", "").with("queues.bulk", "");
    let node = without_node(node).await;
    let file = world.dir().join("doctor.toml");
    std::fs::write(&file, "[storage]\njobs_max_messages = 20\n[queues.main]\n").unwrap();
    world.publish("t").priority(3).many((0..18).map(|number| json!(number))).await;
    let jetstream = world.jetstream();
    let mut events = jetstream.get_stream("LONGSHORE_EVENTS").await.unwrap().cached_info().config.clone();
    events.max_bytes /= 2;
    jetstream.update_stream(events).await.unwrap();
    jetstream.delete_stream("LONGSHORE_PARKED").await.unwrap();
    let lane = jetstream.get_stream("LONGSHORE_JOBS_bulk_P1").await.unwrap();
    lane.delete_consumer("work").await.unwrap();
    jetstream.delete_stream("LONGSHORE_DLQ").await.unwrap();
    let others = Config {
        name: "LONGSHORE_DLQ".to_owned(),
        subjects: vec!["longshore.dlq.>".to_owned()],
        retention: RetentionPolicy::Interest,
        ..Config::default()
    };
    jetstream.create_stream(others).await.unwrap();

    let path = file.to_str().unwrap();
    let found = Found::by(world.command(["doctor", "--json", "--config", path])).await;
    found.has("streams", "failure", "missing: LONGSHORE_PARKED");
    found.has("streams", "failure", "LONGSHORE_DLQ: retention is Interest, wanted Limits");
    found.has("streams", "failure", "LONGSHORE_JOBS_bulk_P1: its consumer is missing");
    found.has("streams", "warning", "LONGSHORE_EVENTS: max_bytes is");
    found.has("storage", "warning", "LONGSHORE_JOBS_main_P3 is 90 % full");
    found.has("nodes", "failure", "no Longshore node is running");
    assert_eq!(found.code, 1);
    drop(node);
}

/// Given a node whose clock is wrong, a queue that nobody serves, a message that no client can read and a connection
/// that was lost, when one asks, then each is said, and warnings have their own exit code.
#[tokio::test]
async fn what_goes_wrong_while_nodes_run_is_named() {
    let world = world().await;
    let other = world.node().name("n2").with("queues.bulk", "").start().await;
    other.stop().await;
    let node = world.node().start().await;
    doctor(&world).await.is_well();

    world.publish("noop").queue("bulk").json(json!(1)).await;
    let mut bytes = world.bytes().await;
    bytes.publish(b"longshore.jobs.default.main.p5.noop", None, b"NATS/1.0\r\nno colon\r\n\r\n", b"1");
    bytes.flush().await;
    longshore_harness::eventually("a dead letter", Duration::from_secs(60), async || {
        if world.dead_letters("default").await.is_empty() { Err("none") } else { Ok(()) }
    })
    .await;
    // Counted once the message itself is deleted, behind the dead letter.
    crate::is_emptied(&world).await;
    let late = jiff::Timestamp::now() - jiff::SignedDuration::from_secs(5);
    let presence = json!({"node": "skewed", "version": "0.0.1", "started_at": format!("{late:.3}"),
        "seen_at": format!("{late:.3}"), "state": "running", "queues": {}});
    let key = "$KV.longshore_control.nodes.skewed";
    world.jetstream().publish(key, presence.to_string().into()).await.unwrap().await.unwrap();

    let found = longshore_harness::eventually("all warnings", Duration::from_secs(60), async || {
        let found = doctor(&world).await;
        let is_counted =
            found.findings.iter().any(|finding| finding["text"].as_str().unwrap().contains("no client can read"));
        if is_counted { Ok(found) } else { Err("not yet") }
    })
    .await;
    found.has("counters", "warning", "messages that no client can read were taken out: 1");
    found.has("counters", "note", "connections to NATS were made anew");
    found.has("queues", "warning", "no node serves queue bulk; jobs that wait there: 1");
    found.has("clocks", "warning", "the clock of node skewed is 5.");
    found.has("nodes", "warning", "different versions: 0.0.1");
    found.has("nodes", "warning", "node skewed does not answer");
    assert_eq!(found.code, 3);
    node.stop().await;
}

/// Given a cluster without the queue `main`, when one asks without a configuration, then nothing is wrong; then a type
/// without a handler is named while its jobs wait, and a paused queue with jobs that wait in it.
#[tokio::test]
async fn what_keeps_jobs_waiting_is_named_of_the_queues_that_there_are() {
    let world = world().await;
    let node = world.node().with("queues.bulk", "").start().await;
    doctor(&world).await.is_well();

    let missed = world.publish("nobody").queue("bulk").json(json!(1)).await;
    let without_handler = async |is_named: bool| {
        longshore_harness::eventually("the type without handler", Duration::from_secs(60), async || {
            let found = doctor(&world).await;
            let has =
                |finding: &&Value| finding["text"].as_str().unwrap().starts_with("no handler for nobody of tenant");
            let warning = found.findings.iter().find(has).cloned();
            if warning.is_some() == is_named { Ok(warning) } else { Err(json!(found.findings)) }
        })
        .await
    };
    let warning = without_handler(true).await.unwrap();
    assert_eq!((&warning["check"], &warning["level"]), (&json!("handlers"), &json!("warning")));
    world.request("runs.cancel", json!({"run_id": missed})).await;
    without_handler(false).await;

    world.ask("_all", "queues.pause", json!({"queue": "bulk"}).to_string(), Duration::from_secs(20)).await.unwrap();
    world.publish("noop").queue("bulk").json(json!(1)).await;
    let found = doctor(&world).await;
    found.has("queues", "warning", "queue bulk is paused; jobs that wait there: 1");
    assert_eq!(found.code, 3);
    node.stop().await;
}

/// Given records that are older than their job and schedules that the server has lost, when one asks, then what the
/// node counted of each is said, with a remedy.
#[tokio::test]
async fn what_nodes_have_counted_is_named() {
    let world = world().await;
    let backoff = "backoff = { base = '1500ms', factor = 1.0, max = '1500ms', jitter = 'none' }";
    let node = world.node().with("node", "lease = '2s'");
    let node =
        node.with("types.flaky", &crate::served_by("fail", &format!("max_attempts = 3\n{backoff}"))).start().await;
    let records = world.jetstream().get_key_value("longshore_runs").await.unwrap();
    let run = world.publish("flaky").json(json!({})).await;
    let key = format!("default.{run}");
    let first = crate::metrics::retrying_after(&records, &key, 1).await;
    let second = crate::metrics::retrying_after(&records, &key, 2).await;
    records.put(&key, first).await.unwrap();
    let counted = async |text: &str| {
        longshore_harness::eventually(text, Duration::from_secs(60), async || {
            let found = doctor(&world).await;
            let has = |finding: &&Value| finding["text"].as_str().unwrap().contains(text);
            let finding = found.findings.iter().find(has).cloned();
            finding.ok_or_else(|| json!(found.findings))
        })
        .await
    };
    let stale = counted("records were read that were older than their job: ").await;
    assert_eq!(
        (&stale["level"], &stale["remedy"]),
        (&json!("note"), &json!("if it grows: a replica lags, check the servers"))
    );
    records.put(&key, second).await.unwrap();
    assert_eq!(world.wait(&run).await.state, "dead");

    let late = world.submit(json!({"type": "noop", "delay_ms": 3_000})).await;
    crate::overdue::scheduled(&world, 1).await;
    world.server().stop().await.unwrap();
    crate::overdue::forget_schedules(world.server().dir());
    world.server().restart().await.unwrap();
    assert_eq!(world.wait(&late).await.state, "completed");
    let overdue = counted("schedules had not fired and were made up for: 1").await;
    assert!(overdue["remedy"].as_str().unwrap().contains("loses its leader"), "{overdue}");
    node.stop().await;
}

/// Given a node that has just been frozen, which is sent its share of the requests, when one asks, then only it is
/// named.
#[tokio::test]
async fn a_frozen_node_is_not_mistaken_for_another() {
    let world = world().await;
    let healthy = world.node().name("healthy").start().await;
    let frozen = world.node().name("frozen").start().await;
    doctor(&world).await.is_well();
    frozen.sigstop();
    let found = doctor(&world).await;
    let named = found.findings.iter().find(|finding| {
        finding["check"] == "nodes"
            && finding["level"] != "fine"
            && finding["text"].as_str().unwrap().contains("healthy")
    });
    assert_eq!(named, None);
    frozen.sigcont();
    frozen.stop().await;
    healthy.stop().await;
}
