//! What is stored in the buckets and is not what nodes write there is named, harms nobody else, and a person ends it.

use std::time::Duration;

use futures_util::StreamExt as _;
use longshore_harness::{Node, World, eventually};
use serde_json::{Value, json};

use crate::{served_by, without_node, world};

const WITHIN: Duration = Duration::from_secs(60);

/// A client that may publish somewhere has the server write there, by naming it as the reply subject.
async fn plant(world: &World, key: &str) {
    let subject = "longshore.jobs.mallory.main.p9.noop";
    world.client().publish_with_reply(subject, format!("$KV.{key}"), "{}".into()).await.unwrap();
    world.client().flush().await.unwrap();
    is_planted(world, key).await;
}

/// Somebody writes that under a key.
async fn write(world: &World, key: &str, value: &'static [u8]) {
    let ack = world.client().request(format!("$KV.{key}"), value.into()).await.unwrap();
    assert!(serde_json::from_slice::<Value>(&ack.payload).unwrap()["seq"].is_u64(), "{key}: {ack:?}");
}

async fn is_planted(world: &World, key: &str) {
    let (bucket, _) = key.split_once('.').unwrap();
    let stream = world.jetstream().get_stream(format!("KV_{bucket}")).await.unwrap();
    eventually("the confirmation under the key", WITHIN, async || {
        let found = stream.get_last_raw_message_by_subject(&format!("$KV.{key}")).await;
        found.map(drop).map_err(|error| error.to_string())
    })
    .await;
}

async fn has_warning(world: &World, key: &str) {
    eventually("a warning", WITHIN, async || {
        let health = world.try_request("_all", "health", json!({})).await.unwrap();
        let said = health["warnings"].to_string();
        if said.contains(key) { Ok(()) } else { Err(said) }
    })
    .await;
}

fn lines(node: &Node, what: &str) -> usize {
    let log = std::fs::read_to_string(node.log().path()).unwrap();
    log.lines().filter(|line| line.contains(what)).count()
}

async fn refusal(world: &World, endpoint: &str, body: Value) -> (u16, String) {
    let error = world.try_request("default", endpoint, body).await.unwrap_err();
    (error.code, error.message)
}

/// Given jobs whose records are a confirmation of the server, when nodes get them, then other jobs run, the API
/// answers, `health` names the records, few lines are logged; and each run ends by the hand of a person.
#[tokio::test]
async fn a_record_that_is_none_holds_up_its_own_job_alone_until_a_person_ends_it() {
    let world = world().await;
    let node = without_node(world.node()).await;
    let mut runs = Vec::new();
    for _ in 0..4 {
        runs.push(world.publish("echo").json(json!(1)).await);
    }
    let key = |run: &str| format!("longshore_runs.default.{run}");
    for run in &runs[..3] {
        plant(&world, &key(run)).await;
    }

    node.restart().await;

    assert_eq!(world.wait(&runs[3]).await.state, "completed");
    has_warning(&world, &key(&runs[0])).await;
    for endpoint in ["runs.get", "runs.wait", "runs.run_now"] {
        let (code, message) = refusal(&world, endpoint, json!({"run_id": runs[0]})).await;
        assert!(code == 409 && message.contains("\"stream\":") && message.contains("missing field"), "{message}");
    }
    plant(&world, &key("mine")).await;
    let (code, message) = refusal(&world, "submit", json!({"type": "echo", "run_id": "mine"})).await;
    assert!(code == 409 && message.contains(&key("mine")), "{message}");
    let listed = world.request("runs.list", json!({})).await;
    assert!(listed["unreadable"] == 4 && !listed["runs"].as_array().unwrap().is_empty(), "{listed}");
    assert_eq!(world.request("runs.count", json!({})).await["unreadable"], 4);

    let cancelled = world.request("runs.cancel", json!({"run_id": runs[0]})).await;
    assert_eq!(cancelled["state"], "cancelled");
    let erased = world.request("runs.erase", json!({"run_id": runs[1]})).await;
    assert_eq!(erased, json!({"run_id": runs[1]}));
    let purge = json!({"queue": "main", "confirm": "main"});
    let purged = world.try_request("_all", "queues.purge", purge).await.unwrap();
    assert!(purged["cancelled"].as_u64() >= Some(1), "{purged}");
    assert_eq!(world.record(&runs[2]).await.unwrap().state, "cancelled");
    let end = world.wait(&runs[1]).await.state;
    assert!(end == "completed" || end == "cancelled", "it starts anew, unless the purge was faster: {end}");
    assert!(lines(&node, "is not what nodes write") <= 10, "each is named once a minute");
    crate::is_emptied(&world).await;
}

/// Given a dead run whose record cannot be read, then its dead letter is listed as it was written, and can be
/// discarded.
#[tokio::test]
async fn a_dead_letter_is_shown_and_discarded_though_its_record_cannot_be_read() {
    let world = world().await;
    let _node = world.node().with("types.flaky", &served_by("fail", "max_attempts = 1")).start().await;
    let run = world.publish("flaky").json(json!({})).await;
    assert_eq!(world.wait(&run).await.state, "dead");
    world.eventually_dead_letters(1).await;
    write(&world, &format!("longshore_runs.default.{run}"), b"\xff garbage").await;

    let listed = world.request("dlq.list", json!({})).await;
    assert_eq!((&listed["entries"][0]["run_id"], &listed["entries"][0]["state"]), (&json!(run), &json!("dead")));
    assert_eq!(world.request("dlq.groups", json!({})).await["groups"][0]["count"], 1);
    assert_eq!(world.request("dlq.get", json!({"run_id": run})).await["state"], "dead");
    assert!(refusal(&world, "runs.get", json!({"run_id": run})).await.1.contains("base64 /yBnYXJiYWdl"));
    assert_eq!(world.request("dlq.discard", json!({"run_id": run})).await["discarded"], 1);
    assert_eq!(world.record(&run).await.unwrap().state, "discarded");
}

/// What each bucket has something of, once jobs of every kind ran.
const ALL_KINDS: &str = "
    types.slow = { handler = 'noop', rate_limit = { rate = 50, per = '1s' } }
    types.few = { handler = 'noop', concurrency = 2 }
    types.keyed = { handler = 'noop', on_busy = 'keep_newest' }
    types.broken = { handler = 'fail', max_attempts = 1, breaker = { failures = 1, cool_down = '1h', count_permanent = true } }
    schedules.nightly = { every = '1h', type = 'echo' }
";

/// Every key that a bucket has.
async fn keys(world: &World) -> Vec<String> {
    let mut all = Vec::new();
    for bucket in ["runs", "idempotency", "control", "concurrency", "schedules"] {
        let stream = world.jetstream().get_stream(format!("KV_longshore_{bucket}")).await.unwrap();
        let mut subjects = stream.info_with_subjects("$KV.>").await.unwrap();
        while let Some(subject) = subjects.next().await {
            all.push(subject.unwrap().0.trim_start_matches("$KV.").to_owned());
        }
    }
    all
}

/// Given a cluster that has something under every kind of key, when a tenant has the server write over all of it and
/// into every stream, then work goes on, every endpoint answers, what has its truth elsewhere is there again, and
/// nothing that was decided is decided anew.
#[tokio::test]
async fn what_a_client_has_the_server_write_over_every_key_is_named_and_survived() {
    let world = world().await;
    let node = world.node().config(ALL_KINDS).start().await;
    for job_type in ["echo", "slow", "few", "broken"] {
        world.wait(&world.publish(job_type).json(json!({"kind": "permanent"})).await).await;
    }
    let run = world.publish("keyed").header("Longshore-Concurrency-Key", "k").json(json!(1)).await;
    world.wait(&run).await;
    let once = json!({"type": "echo", "payload": 1, "idempotency_key": "once", "run_id": "first"});
    world.request("submit", once.clone()).await;
    world.wait("first").await;
    let pause = json!({"queue": "main", "type": "resting"});
    world.try_request("_all", "queues.pause", pause).await.unwrap();
    eventually("its breaker", WITHIN, async || {
        let listed = world.request("breakers.list", json!({})).await;
        if listed["breakers"][0]["state"] == "open" { Ok(()) } else { Err(listed) }
    })
    .await;

    let keys = keys(&world).await;
    for kind in ["control.nodes.", "control.limits.", "control.settings.", "control.breakers.", "concurrency.slots."] {
        assert!(keys.iter().any(|key| key.contains(kind)), "{kind}: {keys:?}");
    }
    let subjects = ["dlq.default.main.echo", "schedules.default.x", "schedules.default._tick.nightly"];
    let more = ["parked.default.main.p5._.echo", "returned.default.main.p5.echo", "due.default.main.p5.echo"];
    let all = keys.iter().map(|key| format!("$KV.{key}"));
    for reply in all.chain(subjects.into_iter().chain(more).map(|subject| format!("longshore.{subject}"))) {
        world.client().publish_with_reply("longshore.jobs.mallory.main.p9.noop", reply, "{}".into()).await.unwrap();
    }
    is_planted(&world, keys.last().unwrap()).await;

    for job_type in ["echo", "slow"] {
        assert_eq!(world.wait(&world.publish(job_type).json(json!(2)).await).await.state, "completed");
    }
    let delayed = world.submit(json!({"type": "echo", "payload": 1, "delay_ms": 20})).await;
    assert_eq!(world.wait(&delayed).await.state, "completed");
    for endpoint in
        ["queues.list", "limits.list", "breakers.list", "schedules.list", "runs.list", "dlq.list", "dlq.groups"]
    {
        world.request(endpoint, json!({})).await;
    }
    let again = json!({"run_id": "second", "type": "echo", "payload": 1, "idempotency_key": "once"});
    let (code, message) = refusal(&world, "submit", again).await;
    assert!(code == 409 && message.contains("longshore_idempotency"), "one key is one run: {message}");
    eventually("the node and the schedule", WITHIN, async || {
        let nodes = world.try_request("_all", "nodes.list", json!({})).await.unwrap();
        let schedule = world.try_request("default", "schedules.get", json!({"id": "nightly"})).await;
        if nodes["nodes"][0]["node"] == *node.name() && schedule.is_ok() { Ok(()) } else { Err(nodes) }
    })
    .await;
    has_warning(&world, "is not what nodes write").await;

    // How many slots are taken is not known any more; a person says that none is.
    for key in keys.iter().filter(|key| key.contains("concurrency.s")) {
        let mut removed = async_nats::HeaderMap::new();
        removed.insert("KV-Operation", "DEL");
        world.jetstream().publish_with_headers(format!("$KV.{key}"), removed, "".into()).await.unwrap().await.unwrap();
    }
    for number in 0..4 {
        let run = world.publish("few").json(json!(number)).await;
        assert_eq!(world.wait(&run).await.state, "completed");
    }
    assert!(lines(&node, "is not what nodes write") <= 3 * keys.len(), "each is named once a minute");
    assert!(node.stop().await.success() && lines(&node, "panicked") == 0);
}
