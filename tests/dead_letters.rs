//! A dead letter is complete: it has payload and headers as they were published, and every attempt.

use std::os::unix::process::ExitStatusExt as _;
use std::time::Duration;

use longshore_harness::natsd::Options;
use longshore_harness::{ROOM, Scrape, World, eventually};
use serde_json::{Value, json};

use crate::http::on_a_free_port;
use crate::{AT_ONCE, WITHIN, served_by, use_binary, world};

/// Given a job with headers and a payload that is not JSON, when it dies, then its dead letter has them byte for byte.
#[tokio::test]
async fn a_dead_letter_holds_the_job_as_it_was_published() {
    let world = world().await;
    let _node = world.node().with("types.\"mail.send\"", "handler = 'remote'").start().await;
    let _handler =
        world.handler("mail.send").start(async |_| longshore_harness::Reply::error(422, "no such box")).await;
    let payload: Vec<u8> = (0..=255).collect();
    let publish = world.publish("mail.send").tenant("acme").priority(2).header("X-Mine", "one").header("X-Mine", "two");
    let publish = publish.header("Longshore-Tags", "a,b").header("Content-Type", "application/octet-stream");
    let publish = publish.header("Nats-Msg-Id", "acme-unguessable");
    let receipt = publish.send(payload.clone()).await.unwrap();

    let end = world.wait_as("acme", &receipt.run_id, Duration::from_secs(30)).await;
    assert_eq!((end.state.as_str(), end.tags.len()), ("dead", 2));

    let dead_letter = world.eventually_dead_letters(1).await.pop().unwrap();
    assert_eq!(dead_letter.subject, "longshore.dlq.acme.main.mail.send");
    assert_eq!(
        (dead_letter.payload.as_ref(), dead_letter.run_id()),
        (payload.as_slice(), Some(receipt.run_id.clone()))
    );
    let header = |name: &str| dead_letter.headers.get(name).map(String::as_str);
    assert_eq!((header("X-Mine"), header("Longshore-Tags")), (Some("one"), Some("a,b")));
    assert_eq!((header("Content-Type"), dead_letter.round()), (Some("application/octet-stream"), Some(1)));
    assert_ne!(header("Nats-Msg-Id"), Some("acme-unguessable"));
    let record: Value = serde_json::from_str(header("Longshore-Record").unwrap()).unwrap();
    let body = json!({"run_id": receipt.run_id});
    assert_eq!(record, world.try_request("acme", "runs.get", body).await.unwrap());
}

/// Given a job that fails again and again, when it is dead, then its dead letter lists every attempt.
#[tokio::test]
async fn a_dead_letter_lists_every_attempt() {
    let world = world().await;
    let node =
        world.node().with("types.flaky", &served_by("fail", &format!("max_attempts = 4\n{AT_ONCE}"))).start().await;
    let receipt = world.publish("flaky").send(r#"{"kind":"panic"}"#).await.unwrap();
    assert_eq!(world.wait(&receipt.run_id).await.state, "dead");
    node.stop().await;

    let dead_letters = world.dead_letters("default").await;
    assert_eq!(dead_letters.len(), 1);
    let record: Value = serde_json::from_str(&dead_letters[0].headers["Longshore-Record"]).unwrap();
    let attempts = record["attempts"].as_array().unwrap();
    assert_eq!(attempts.len(), 4);
    for (number, attempt) in (1..).zip(attempts) {
        assert_eq!((attempt["attempt"].as_u64(), attempt["round"].as_u64()), (Some(number), Some(1)));
        assert_eq!(attempt["error"]["kind"], "panic");
        assert!(attempt["started_at"].is_string() && attempt["ended_at"].is_string() && attempt["node"] == node.name());
    }
    world.history(&[receipt], Vec::new()).await.assert_sound();
}

/// Given a node that dies after it has published a run's end and before it writes the dead letter, when a client asks
/// for the letter, then the answer is "not now", and never that there is none, until another node has written it.
#[tokio::test]
async fn a_dead_letter_that_is_still_to_be_written_is_not_unknown() {
    let world = world().await;
    let asked = world.node().name("asked").with("queues.elsewhere", "").start().await;
    let doomed = world.node().name("doomed").env("LONGSHORE_FAIL_POINTS", "before-dead-letter=kill").start().await;
    let mut live = world.live_events("default").await;
    let dead = world.publish("fail").json(json!({"kind": "permanent"})).await;
    live.until_published("dlq", &dead).await;
    assert_eq!(doomed.wait_exit(WITHIN).await.signal(), Some(9));

    for endpoint in ["dlq.get", "dlq.replay", "dlq.discard", "runs.erase"] {
        // What is asked of the dead node is not answered; NATS learns of its death a moment later.
        let refusal = longshore_harness::eventually("an answer", WITHIN, async || {
            match world.try_request("default", endpoint, json!({"run_id": dead})).await {
                Err(refusal) if refusal.code == 0 => Err(refusal.message),
                answer => Ok(answer.unwrap_err()),
            }
        })
        .await;
        assert_eq!(refusal.code, 503, "{endpoint}: {refusal:?}");
        assert!(refusal.message.contains("still to be written"), "{endpoint}: {refusal:?}");
    }
    let sound = world.node().name("sound").start().await;
    let dead_letter = longshore_harness::eventually("the dead letter", WITHIN, async || {
        let answer = world.try_request("default", "dlq.get", json!({"run_id": dead})).await;
        if let Err(refusal) = &answer {
            assert_eq!(refusal.code, 503, "{refusal:?}");
        }
        answer.map_err(|refusal| refusal.message)
    })
    .await;
    assert_eq!(dead_letter["run_id"], json!(dead));
    assert!(sound.stop().await.success() && asked.stop().await.success());
}

/// Given a dead letter that an earlier run of an id has left, when the dead letter of the run is asked for, then it is
/// the run's own.
#[tokio::test]
async fn the_dead_letter_of_a_run_is_not_that_of_an_earlier_run_of_its_id() {
    let world = world().await;
    let _node = world.node().start().await;
    let dies = async |run: &str| {
        let job = json!({"type": "fail", "run_id": run, "payload": {"kind": "permanent"}, "headers": {"X-Of": run}});
        world.submit(job).await;
        assert_eq!(world.wait(run).await.state, "dead");
    };
    dies("earlier").await;
    let left = world.eventually_dead_letters(1).await.pop().unwrap();
    // As if that run had had the id of the other.
    let mut headers = async_nats::HeaderMap::new();
    for (name, value) in left.headers.iter().filter(|(name, _)| *name != "Nats-Msg-Id") {
        headers.insert(name.as_str(), value.replace("\"earlier\"", "\"later\"").as_str());
    }
    let copied = world.jetstream().publish_with_headers(left.subject, headers, left.payload).await.unwrap();
    copied.await.unwrap();
    dies("later").await;
    world.eventually_dead_letters(3).await;
    assert_eq!(world.request("dlq.get", json!({"run_id": "later"})).await["headers"]["X-Of"], "later");
}

/// Given dead letters that use most of their space, then one node warns of it once, for all nodes, before the oldest
/// are deleted.
#[tokio::test]
async fn dead_letters_that_may_soon_be_deleted_are_warned_of() {
    let world = world().await;
    let node = |name| world.node().name(name).with("storage", "dlq_max_bytes = '1MiB'");
    let first = on_a_free_port(node("a-first")).start().await;
    let second = node("b-second").start().await;
    let mut system = world.live_events("_sys").await;
    let large = json!({"kind": "permanent", "padding": "x".repeat(64 * 1024)});
    let receipts = world.publish("fail").many((0..14).map(|_| large.clone())).await;
    for receipt in &receipts {
        assert_eq!(world.wait(&receipt.run_id).await.state, "dead");
    }
    let event = system.until("the warning", |live| live.body["event"] == "dlq_filling").await;
    assert_eq!(event.subject, "longshore.events._sys.dlq_filling._.a-first._");
    let fill = event.body["fill_ratio"].as_f64().unwrap();
    assert!((0.8..1.0).contains(&fill) && event.body["oldest_at"].is_string(), "{}", event.body);
    let shown = Scrape::of(&first).await.sum("longshore_dlq_fill_ratio", &[]);
    assert!((fill..1.0).contains(&shown), "{shown}");
    assert_eq!(world.dead_letters("*").await.len(), 14, "no dead letter has been deleted");
    second.stop().await;
    system.until("the second's going", |live| live.body["event"] == "node_left").await;
    assert!(!system.received().iter().any(|live| live.subject.contains("dlq_filling._.b-second")));
}

/// Given delayed jobs that are large, and small ones of another tenant, when the server is restarted with a smaller
/// `max_payload`, then the small ones are done, and the large ones are dead letters that say why and how large they
/// were.
#[tokio::test]
async fn what_the_server_takes_no_more_becomes_a_dead_letter_and_holds_nobody_up() {
    use_binary();
    let limits = tempfile::NamedTempFile::new().unwrap();
    let allow = |bytes: u32| std::fs::write(limits.path(), format!("max_payload: {bytes}\n")).unwrap();
    allow(8 << 20);
    let extra = format!("include \"../../../../../../../..{}\"", limits.path().display());
    let world = World::with(Options { max_file: ROOM, extra, ..Options::default() }).await;
    let node = world.node().start().await;
    let large = vec![b'1'; 1_200_000];
    let (mut refused, mut small) = (Vec::new(), Vec::new());
    for _ in 0..20 {
        let job = |tenant| world.publish("noop").tenant(tenant).header("Longshore-Delay", "20s");
        refused.push(job("acme").send(large.clone()).await.unwrap());
        small.push(job("beta").send("1").await.unwrap());
    }
    eventually("40 schedules", WITHIN, async || match world.stored("LONGSHORE_SCHEDULES").await {
        40 => Ok(()),
        count => Err(format!("there are {count}")),
    })
    .await;

    allow(1 << 20);
    world.server().restart().await.unwrap();

    let states = world.ends(&small, WITHIN).await;
    assert!(states.iter().all(|state| state == "completed"), "{states:?}");
    let states = world.ends(&refused, WITHIN).await;
    assert!(states.iter().all(|state| state == "dead"), "{states:?}");
    let letters = world.eventually_dead_letters(refused.len()).await;
    for letter in &letters {
        assert_eq!(letter.headers.get("Longshore-Payload-Left-Out").map(String::as_str), Some("1200000"));
        assert!(letter.payload.is_empty());
    }
    let run = world.try_request("acme", "runs.get", json!({"run_id": refused[0].run_id})).await.unwrap();
    assert_eq!(run["error"]["kind"], "invalid", "{run}");
    assert!(run["error"]["message"].as_str().unwrap().contains("1200000 bytes"), "{run}");
    let health = world.request("health", json!({})).await.to_string();
    assert!(health.contains("20 jobs were too large"), "{health}");
    assert!(node.stop().await.success());
}
