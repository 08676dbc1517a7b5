//! A real Prometheus takes the rules and boards that ship, finds data behind each expression of each board, and fires
//! the alerts.
//!
//! Where `prometheus` and `promtool` (packages of most systems) are not on PATH, the tests say so and pass.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use longshore_harness::collector::{Collector, Protocol};
use longshore_harness::http::get;
use longshore_harness::{Node, Reply, World, eventually};
use serde_json::{Value, json};
use tokio::process::{Child, Command};

use crate::http::on_a_free_port;
use crate::monitoring::{board_expressions, filled_in};
use crate::{AT_ONCE, served_by, workers, world};

const CONFIG: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/config/prometheus");

/// Says so, if the program is not here.
fn is_missing(program: &str) -> bool {
    let found = std::process::Command::new(program).arg("--version").output();
    if let Err(problem) = &found {
        crate::skipped(&format!("what ships for Prometheus is not read by {program}: {problem}"));
    }
    found.is_err()
}

/// Given the configuration and the rules that ship, when promtool checks and tests them, then it finds nothing wrong.
#[tokio::test]
async fn promtool_takes_the_configuration_and_the_rules() {
    if is_missing("promtool") {
        return;
    }
    for arguments in [
        &["check", "config", "prometheus.yml"][..],
        &["check", "rules", "alerts.yml"],
        &["test", "rules", "alerts_test.yml"],
    ] {
        let said = Command::new("promtool").args(arguments).current_dir(CONFIG).output().await.unwrap();
        assert!(said.status.success(), "{arguments:?}: {said:?}");
    }
}

/// A Prometheus that asks one node every second.
struct Prometheus {
    address: SocketAddr,
    _process: Child,
}

impl Prometheus {
    /// One with these rules.
    async fn of(world: &World, node: &Node, rules: &Path) -> Self {
        let address = SocketAddr::from(([127, 0, 0, 1], longshore_harness::free_ports(1)[0]));
        let folder = world.dir().join("prometheus");
        std::fs::create_dir(&folder).unwrap();
        let scrape = format!("{{job_name: longshore, static_configs: [{{targets: ['{}']}}]}}", node.http());
        let settings = format!(
            "global: {{scrape_interval: 1s, evaluation_interval: 1s}}\nrule_files: ['{}']\nscrape_configs: [{scrape}]\n",
            rules.display()
        );
        std::fs::write(folder.join("prometheus.yml"), settings).unwrap();
        let log = std::fs::File::create(folder.join("log")).unwrap();
        let process = Command::new("prometheus")
            .arg(format!("--config.file={}", folder.join("prometheus.yml").display()))
            .arg(format!("--storage.tsdb.path={}", folder.join("data").display()))
            .arg(format!("--web.listen-address={address}"))
            .stderr(log)
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        Self { address, _process: process }
    }

    /// What the expression gives now.
    async fn query(&self, expression: &str) -> Result<Value, String> {
        let encoded: String = expression.bytes().map(|byte| format!("%{byte:02X}")).collect();
        let page = get(self.address, &format!("/api/v1/query?query={encoded}")).await;
        let page = page.map_err(|error| format!("{error:#}"))?;
        if page.status == 200 { Ok(page.json()["data"]["result"].clone()) } else { Err(page.body) }
    }

    /// Waits until the expression gives data.
    async fn has(&self, expression: &str) {
        eventually(expression, Duration::from_secs(90), async || match self.query(expression).await {
            Ok(result) if result != json!([]) => Ok(()),
            other => Err(format!("{other:?}")),
        })
        .await;
    }
}

/// Jobs of every kind, so that whatever may be counted is.
async fn jobs_of_every_kind(world: &World) {
    world.request("webhooks.put", json!({"id": "shop", "url": "http://127.0.0.1:9/"})).await;
    let until = (jiff::Timestamp::now() + Duration::from_secs(600)).to_string();
    let fault = json!({"type": "limited", "kind": "latency", "delay_ms": 1, "until": until});
    world.try_request("_all", "faults.set", fault).await.unwrap();
    let _handler = world.handler("later").start(|_| async { Reply::snooze("1h") }).await;
    world.publish("later").json(json!(1)).await;
    world.publish("noop").many((0..200).map(|number| json!(number))).await;
    world.publish("limited").many((0..5).map(|number| json!(number))).await;
    world.publish("flaky").many((0..5).map(|_| json!({"times": 1}))).await;
    let dead = world.publish("flaky").json(json!({})).await;
    assert_eq!(world.wait(&dead).await.state, "dead");
    world.eventually_dead_letters(1).await;
    world.request("dlq.replay", json!({"run_id": dead})).await;
    world.publish("nobodys").many((0..3).map(|_| json!(1))).await;
    for _ in 0..2 {
        world.submit(json!({"type": "echo", "idempotency_key": "a"})).await;
    }
    world.try_request("default", "submit", json!({"type": "bad type"})).await.unwrap_err();
    let late = world.submit(json!({"type": "noop", "delay_ms": 1_200})).await;
    assert_eq!(world.wait(&late).await.state, "completed");
    world.submit(json!({"type": "noop", "delay_ms": 3_600_000})).await;
    world.publish("sleep").json(json!({"ms": 600_000})).await;
}

/// Given a node that has done jobs of every kind, then each expression of each board is valid and gives data.
#[tokio::test]
async fn each_expression_of_each_board_gives_data() {
    if is_missing("prometheus") {
        return;
    }
    let world = world().await;
    let collector = Collector::start(Protocol::Http).await;
    let files = format!("file = '{0}/a.jsonl'\nevents_file = '{0}/e.jsonl'", world.dir().display());
    let node = workers(on_a_free_port(world.node()), 4)
        .with("node", "lease = '2s'")
        .with("audit", &files)
        .with("faults", "allowed = true")
        .with("webhooks", "allow = ['127.0.0.1/32']")
        .with("telemetry", &format!("endpoint = '{}'", collector.url))
        .with("types.flaky", &served_by("fail", &format!("max_attempts = 2\nbreaker = {{ failures = 50 }}\n{AT_ONCE}")))
        .with("types.limited", &served_by("noop", "rate_limit = { rate = 100, per = '1s' }"));
    let node = node.start().await;
    let prometheus = Prometheus::of(&world, &node, &Path::new(CONFIG).join("alerts.yml")).await;
    prometheus.has("longshore_ready").await;
    jobs_of_every_kind(&world).await;

    let expressions: Vec<String> = board_expressions();
    assert!(expressions.len() >= 90, "{}", expressions.len());
    let mut left: Vec<String> = expressions.iter().map(|expression| filled_in(expression)).collect();
    eventually("data behind each expression", Duration::from_secs(90), async || {
        let mut without = Vec::new();
        for expression in std::mem::take(&mut left) {
            match prometheus.query(&expression).await {
                Ok(result) if result != json!([]) => {}
                Ok(_) => without.push(expression),
                Err(refusal) => panic!("{expression}: {refusal}"),
            }
        }
        left.clone_from(&without);
        if without.is_empty() { Ok(()) } else { Err(without.join("\n")) }
    })
    .await;
    let broken = prometheus.query("count(ALERTS{alertstate=\"firing\"})").await.unwrap();
    println!("{} expressions gave data; alerts that fire: {broken}", expressions.len());
    node.kill9().await;
}

/// Given the rules that ship, without their waits, when what they warn of happens to a real node, then each alert
/// fires: a type without handler, jobs that wait long, a queue without a node, dead letters, a deleted stream, a node
/// that is gone.
#[tokio::test]
async fn alerts_fire_when_what_they_warn_of_happens() {
    if is_missing("prometheus") {
        return;
    }
    let world = world().await;
    let rules = std::fs::read_to_string(Path::new(CONFIG).join("alerts.yml")).unwrap();
    let quick: Vec<&str> = rules.lines().filter(|line| !line.trim_start().starts_with("for:")).collect();
    let quick =
        quick.join("\n").replace("longshore_queue_oldest_seconds) > 300", "longshore_queue_oldest_seconds) > 2");
    let file = world.dir().join("alerts.yml");
    std::fs::write(&file, &quick).unwrap();
    crate::without_node(world.node().name("other").with("queues.bulk", "").with("queues.main", "")).await;
    let node = on_a_free_port(workers(world.node(), 4)).with("types.broken", &served_by("fail", "max_attempts = 1"));
    let node = node.start().await;
    let prometheus = Prometheus::of(&world, &node, &file).await;
    let fires = async |alert: &str| {
        assert!(rules.contains(&format!("- alert: {alert}\n")), "{alert}");
        prometheus.has(&format!("ALERTS{{alertname=\"{alert}\",alertstate=\"firing\"}}")).await;
    };
    prometheus.has("longshore_dlq_jobs == 0").await;
    // Before the first scrape no node is known to be ready.
    prometheus.has("absent(ALERTS{alertstate=\"firing\"})").await;

    world.publish("nobodys").json(json!(1)).await;
    fires("LongshoreNoHandler").await;
    world.publish("noop").queue("bulk").json(json!(1)).await;
    fires("LongshoreQueueUnserved").await;
    world.publish("broken").json(json!({})).await;
    fires("LongshoreDeadLetters").await;
    fires("LongshoreAttemptsFail").await;
    // More than there are workers.
    world.publish("sleep").many((0..5).map(|_| json!({"ms": 600_000}))).await;
    fires("LongshoreJobsWaitLong").await;
    world.jetstream().delete_stream("LONGSHORE_JOBS_main_P9").await.unwrap();
    fires("LongshoreNodeNotReady").await;
    fires("LongshoreStreamDeleted").await;
    node.kill9().await;
    fires("LongshoreNodeDown").await;
    fires("LongshoreNoNodeReady").await;
}
