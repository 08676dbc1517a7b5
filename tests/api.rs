//! Every endpoint answers as the contract says, and only to callers who may ask.

use std::time::Duration;

use futures_util::StreamExt as _;
use longshore_harness::{Reply, SlowLink, World, eventually};
use serde_json::{Value, json};

use crate::{served_by, workers, world};

/// Asserts an error's code and short name, and that its text has `part`; the body must say the same as the headers.
async fn refused(world: &World, (tenant, endpoint): (&str, &str), body: Value, code: u16, part: &str) {
    let answer = world.try_request(tenant, endpoint, body.clone()).await;
    let Err(error) = answer else { panic!("{endpoint} {body} was answered: {answer:?}") };
    assert_eq!((error.code, &error.body["code"]), (code, &json!(code)), "{endpoint} {body}: {error}");
    assert!(!error.error.is_empty() && error.message.contains(part), "{endpoint} {body}: {error} has no {part:?}");
}

/// Given a node, when a job is submitted, then the answer has the run id derived from its position in the lane.
#[tokio::test]
async fn submit_answers_once_the_job_is_durable() {
    let world = world().await;
    let _node = world.node().with("queues.main", "").with("queues.bulk", "").start().await;
    let answer = world.request("submit", json!({"type": "echo", "payload": {"a": [1, "ä"]}})).await;
    assert_eq!(answer, json!({"run_id": "main-p5-1", "state": "enqueued", "deduplicated": false}));
    assert_eq!(world.wait("main-p5-1").await.result, Some(json!({"a": [1, "ä"]})));

    let job =
        json!({"type": "echo", "payload": "x", "queue": "bulk", "priority": 2, "tags": ["a", "b"], "max_attempts": 3});
    assert_eq!(world.submit(job).await, "bulk-p2-1");
    let end = world.wait("bulk-p2-1").await;
    assert_eq!((end.queue.as_str(), end.priority, end.max_attempts), ("bulk", 2, 3));
    assert_eq!((end.tags, end.job_type.as_str()), (vec!["a".to_owned(), "b".to_owned()], "echo"));

    // Bytes that are not JSON, with the client's own headers.
    let job = json!({"type": "echo", "payload_base64": "AP8=", "headers": {"Content-Type": "application/x-mine"}});
    let end = world.wait(&world.submit(job).await).await;
    assert_eq!(
        (&end.rest["result_base64"], &end.rest["result_content_type"]),
        (&json!("AP8="), &json!("application/x-mine"))
    );
    let nothing = world.wait(&world.submit(json!({"type": "echo"})).await).await;
    assert_eq!((nothing.state.as_str(), nothing.result), ("completed", None));
}

/// Given wrong requests, when they are submitted, then each is refused with a code and the field's name.
#[tokio::test]
async fn what_is_wrong_with_a_submit_is_said() {
    let world = world().await;
    let _node = world.node().with("retries.quick", "delays = ['1s']").start().await;
    for (change, part) in [
        (json!({"type": null}), "type"),
        (json!({"type": "a..b"}), "type"),
        (json!({"type": "a b"}), "type"),
        (json!({"payload_base64": "AA==", "payload": 1}), "payload"),
        (json!({"payload_base64": "%"}), "payload_base64"),
        (json!({"queue": "a.b"}), "queue"),
        (json!({"queue": 7}), "queue"),
        (json!({"priority": 0}), "priority"),
        (json!({"priority": 10}), "priority"),
        (json!({"priority": "high"}), "priority"),
        (json!({"run_id": "main-p5-7"}), "run_id"),
        (json!({"run_id": "a b"}), "run_id"),
        (json!({"run_id": "x".repeat(97)}), "run_id"),
        (json!({"idempotency_key": ""}), "idempotency_key"),
        (json!({"idempotency_key": "x".repeat(513)}), "idempotency_key"),
        (json!({"unique": "active"}), "unique: needs an idempotency_key"),
        (json!({"idempotency_window_ms": 5}), "idempotency_window_ms: needs an idempotency_key"),
        (json!({"run_at": "tomorrow"}), "run_at"),
        (json!({"delay_ms": -1}), "delay_ms"),
        (json!({"delay_ms": 1, "run_at": "2030-01-01T00:00:00Z"}), "delay_ms"),
        (json!({"expires_at": 1}), "expires_at"),
        (json!({"expires_in_ms": "1s"}), "expires_in_ms"),
        (json!({"max_attempts": 0}), "max_attempts"),
        (json!({"max_attempts": 1_001}), "max_attempts: is not one of 1 to 1000"),
        (json!({"max_attempts": 5_000_000_000_u64}), "max_attempts: is not one of 1 to 1000"),
        (json!({"retry": "none-such"}), "retry"),
        (json!({"timeout_ms": 1.5}), "timeout_ms"),
        (json!({"deadline": "soon"}), "deadline: \"soon\" is neither an RFC 3339 time nor a duration"),
        (json!({"cost": 0}), "cost"),
        (json!({"cost": 1_000_001}), "cost: is not one of 1 to 1000000"),
        (json!({"concurrency_key": ""}), "concurrency_key"),
        (json!({"limit_key": "x".repeat(513)}), "limit_key"),
        (json!({"tags": ["1", "2", "3", "4", "5", "6", "7", "8", "9"]}), "tags"),
        (json!({"tags": ["x".repeat(65)]}), "tags"),
        (json!({"headers": {"Nats-Rollup": "all"}}), "Nats-Rollup"),
        (json!({"headers": {"Longshore-Revision": "1"}}), "Longshore-Revision"),
        (json!({"headers": {"a b": "1"}}), "headers"),
        (json!({"headers": {"X": "1\r\nNats-Rollup: all"}}), "headers"),
        (json!({"maximum_attempts": 1}), "maximum_attempts"),
    ] {
        let mut job = json!({"type": "noop"});
        job.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        refused(&world, ("default", "submit"), job, 400, part).await;
    }
    refused(&world, ("default", "submit"), json!({"type": "noop", "queue": "undeclared"}), 404, "undeclared").await;
    let delayed = json!({"type": "noop", "queue": "undeclared", "delay_ms": 60_000});
    refused(&world, ("default", "submit"), delayed, 404, "undeclared").await;
    let too_large = json!({"type": "noop", "payload": "x".repeat(1_040_000)});
    refused(&world, ("default", "submit"), too_large, 413, "1032192").await;
    refused(&world, ("_all", "submit"), json!({"type": "noop"}), 400, "tenant").await;
    refused(&world, ("a$b", "submit"), json!({"type": "noop"}), 400, "tenant").await;
    assert_eq!(world.event_log("*").await.len(), 0);
}

/// Given a full lane, when another job arrives, then it is refused, whether it is submitted or published bare, and
/// `health` warns of it.
#[tokio::test]
async fn a_full_lane_refuses() {
    let world = world().await;
    let node = workers(world.node(), 1).with("storage", "jobs_max_messages = 3").start().await;
    let mut live = world.live_events("default").await;
    let receipts = world.publish("sleep").many((0..3).map(|_| json!({"ms": 60_000}))).await;
    live.until("a start", |live| live.body["event"] == "started").await;

    let bare = world.publish("noop").send("1").await.unwrap_err();
    assert!(matches!(bare, longshore_harness::Refused::ByJetStream { code: 10_077, .. }), "{bare}");
    refused(&world, ("default", "submit"), json!({"type": "noop"}), 503, "full").await;
    refused(&world, ("default", "submit"), json!({"type": "noop", "run_id": "mine"}), 503, "full").await;
    let other_lane = world.submit(json!({"type": "noop", "priority": 6})).await;
    assert_eq!((receipts.len(), other_lane.as_str()), (3, "main-p6-1"));
    longshore_harness::eventually("a warning of the full lane", Duration::from_secs(240), async || {
        let health = world.request("health", json!({})).await;
        let is_warned = health["warnings"].to_string().contains("LONGSHORE_JOBS_main_P5 is full: it holds 3 messages");
        if is_warned { Ok(()) } else { Err(health.to_string()) }
    })
    .await;
    drop(node);
}

/// Given a batch of good and bad jobs, when it is submitted, then each has its answer at its position, and those that
/// need nothing else come into their lane in its order.
#[tokio::test]
async fn a_batch_is_answered_job_by_job() {
    let world = world().await;
    let _node = world.node().start().await;
    let mut jobs: Vec<Value> = (0..300).map(|number| json!({"type": "echo", "payload": number})).collect();
    jobs[7] = json!({"type": "echo", "priority": 0});
    jobs[8] = json!(8);
    jobs[9] = json!({"type": "echo", "run_id": "mine", "payload": 9});
    let answer = world.request("submit.batch", json!({"jobs": jobs})).await;

    let answers = answer["jobs"].as_array().unwrap();
    assert_eq!(answers.len(), 300);
    for (number, answer) in answers.iter().enumerate() {
        if matches!(number, 7 | 8) {
            assert_eq!((&answer["code"], &answer["error"]), (&json!(400), &json!("malformed")), "{answer}");
            continue;
        }
        let end = world.wait(answer["run_id"].as_str().unwrap()).await;
        assert_eq!(end.result, Some(json!(number)));
    }
    assert_eq!(answers[9]["run_id"], "mine");
    let derived = answers.iter().filter_map(|answer| answer["run_id"].as_str()?.strip_prefix("main-p5-"));
    let sequences: Vec<u64> = derived.map(|sequence| sequence.parse().unwrap()).collect();
    assert_eq!(sequences.len(), 297);
    assert!(sequences.is_sorted(), "{sequences:?}");

    let jobs: Vec<Value> = (0..1_001).map(|_| json!({"type": "noop"})).collect();
    refused(&world, ("default", "submit.batch"), json!({"jobs": jobs}), 413, "1000").await;
    refused(&world, ("default", "submit.batch"), json!({}), 400, "jobs").await;
    assert_eq!(world.request("submit.batch", json!({"jobs": []})).await, json!({"jobs": []}));
}

/// Given runs in every state, when a client requests them, then the answer is the record, or the job as it waits.
#[tokio::test]
async fn a_run_can_be_asked_for_from_its_first_moment() {
    let world = world().await;
    let node = workers(world.node(), 1).start().await;
    let mut live = world.live_events("default").await;
    let running = world.publish("sleep").header("Longshore-Tags", "a").json(json!({"ms": 1_500})).await;
    live.until_published("started", &running).await;
    let waiting = world.publish("echo").priority(3).header("Longshore-Max-Attempts", "7").json(json!(1)).await;
    let submitted = world.submit(json!({"type": "echo", "payload": 2, "run_id": "mine"})).await;

    let get = |run: &str| world.request("runs.get", json!({"run_id": run}));
    let record = get(&waiting).await;
    let fields =
        ["state", "type", "queue", "priority", "round", "max_attempts", "tenant"].map(|name| record[name].clone());
    assert_eq!(json!(fields), json!(["enqueued", "echo", "main", 3, 1, 7, "default"]), "{record}");
    assert!(record["enqueued_at"].is_string() && record["attempts"] == json!([]));
    for absent in
        ["started_at", "ended_at", "node", "result", "error", "attempt", "run_at", "held_by", "token", "origin"]
    {
        assert!(record.get(absent).is_none(), "{absent}: {record}");
    }
    assert_eq!(get(&submitted).await["state"], "enqueued");
    // It runs long enough to get a stored record without a further event.
    longshore_harness::eventually("the running record", Duration::from_secs(20), async || {
        let record = get(&running).await;
        if record["state"] == "running" { Ok(record) } else { Err(record.to_string()) }
    })
    .await;
    let record = get(&running).await;
    assert_eq!((&record["attempt"], &record["node"], &record["tags"]), (&json!(1), &json!(node.name()), &json!(["a"])));
    let time = record["attempts"][0]["started_at"].as_str().unwrap();
    assert!(time.len() == 24 && time.ends_with('Z'), "RFC 3339, UTC, with milliseconds: {time}");

    let too_long = json!({"run_id": waiting, "timeout_ms": 600_001});
    refused(&world, ("default", "runs.wait"), too_long, 400, "timeout_ms: is not one of 0 to 600000").await;
    let still = world.request("runs.wait", json!({"run_id": waiting, "timeout_ms": 50})).await;
    assert_eq!(still["state"], "enqueued");
    let end = world.request("runs.wait", json!({"run_id": waiting})).await;
    assert_eq!((&end["state"], &end["result"], &end["attempt"]), (&json!("completed"), &json!(1), &json!(1)));
    assert_eq!(end, get(&waiting).await);

    refused(&world, ("default", "runs.cancel"), json!({"run_id": "main-p5-0"}), 404, "main-p5-0").await;
    for endpoint in ["runs.get", "runs.wait"] {
        refused(&world, ("default", endpoint), json!({"run_id": "unknown"}), 404, "unknown").await;
        refused(&world, ("default", endpoint), json!({"run_id": "main-p5-999999"}), 404, "main-p5-999999").await;
        refused(&world, ("default", endpoint), json!({"run_id": "none-p5-1"}), 404, "none-p5-1").await;
        for nobodys in ["main-p5-0", "main-p1-00", "main-p5-01", "main-p5-18446744073709551615"] {
            refused(&world, ("default", endpoint), json!({"run_id": nobodys}), 404, nobodys).await;
        }
        refused(&world, ("default", endpoint), json!({"run_id": "a b"}), 400, "run_id").await;
        refused(&world, ("default", endpoint), json!({}), 400, "run_id").await;
        refused(&world, ("acme", endpoint), json!({"run_id": waiting}), 404, "acme").await;
        refused(&world, ("acme", endpoint), json!({"run_id": waiting, "tenant": "default"}), 403, "tenant").await;
        let asked = json!({"run_id": waiting, "tenant": "default"});
        assert_eq!(world.try_request("_all", endpoint, asked).await.unwrap()["state"], "completed");
    }
}

/// Given jobs that leave their lane while a distant node looks for them, when a client requests them without a pause,
/// or cancels them, then each is known all along, in its lane or by its record.
#[tokio::test]
async fn a_run_is_known_while_it_ends() {
    let world = world().await;
    let _node = workers(world.node(), 4).start().await;
    let link = SlowLink::to(&world, Duration::from_millis(10)).await;
    let _far = world.node().with("queues.other", "").env("NATS_URL", &link.url()).start().await;
    let until_ended = async |millis: u64| {
        let run = world.publish("sleep").json(json!({"ms": millis})).await;
        while world.request("runs.get", json!({"run_id": run})).await["state"] != "completed" {}
    };
    futures_util::stream::iter(0..80).for_each_concurrent(4, until_ended).await;
    let cancelled = async |millis: u64| {
        let run = world.publish("sleep").json(json!({"ms": millis})).await;
        match world.try_request("default", "runs.cancel", json!({"run_id": run})).await {
            Ok(record) => assert_eq!(record["state"], "cancelled"),
            Err(error) => assert_eq!(error.code, 409, "{run}: {error}"),
        }
    };
    futures_util::stream::iter(0..80).for_each_concurrent(4, cancelled).await;
}

/// Given waiting jobs and one that runs, when the queues are listed, then depth, age and load are correct.
#[tokio::test]
async fn queues_are_listed_with_what_waits_in_them() {
    let world = world().await;
    let bulk = world.node().name("bulk").with("queues.bulk", "concurrency = 2").start().await;
    let _node = workers(world.node(), 1).start().await;
    let mut live = world.live_events("default").await;
    let running = world.publish("sleep").json(json!({"ms": 60_000})).await;
    live.until_published("started", &running).await;
    world.publish("noop").priority(7).many((0..3).map(|_| json!(1))).await;
    bulk.stop().await;
    world.publish("noop").queue("bulk").json(json!(1)).await;

    let list = longshore_harness::eventually("both queues", Duration::from_secs(20), async || {
        let list = world.request("queues.list", json!({})).await;
        let at = |queue: usize, field: &str| list["queues"][queue][field].clone();
        if at(0, "served") == false && at(1, "running") == 1 { Ok(list) } else { Err(list.to_string()) }
    })
    .await;
    let (bulk, main) = (&list["queues"][0], &list["queues"][1]);
    assert_eq!((&bulk["queue"], &bulk["depth"], &bulk["paused"]), (&json!("bulk"), &json!(1), &json!(false)));
    assert_eq!((&main["queue"], &main["depth"], &main["served"]), (&json!("main"), &json!(4), &json!(true)));
    assert_eq!(
        (&main["depths"]["p5"], &main["depths"]["p7"], &main["depths"]["p1"]),
        (&json!(1), &json!(3), &json!(0))
    );
    assert_eq!(main["concurrency"], 1);
    assert!(main["oldest_age_ms"].is_u64());

    let one = world.request("queues.list", json!({"queue": "bulk"})).await;
    assert_eq!(one["queues"].as_array().unwrap().len(), 1);
    refused(&world, ("default", "queues.list"), json!({"queue": "none"}), 404, "none").await;
    refused(&world, ("default", "queues.list"), json!({"queue": "a b"}), 400, "queue").await;
}

/// Given two nodes, when the operator lists them, then both are listed until they end; no other caller may ask.
#[tokio::test]
async fn nodes_are_the_operators_to_list() {
    let world = world().await;
    let mut system = world.live_events("_sys").await;
    let first = world.node().name("first").start().await;
    let second = world.node().name("second").start().await;
    system.until("the second's coming", |live| live.subject == "longshore.events._sys.node_joined._.second._").await;
    let nodes = async || {
        let list = world.try_request("_all", "nodes.list", json!({})).await.unwrap();
        let name = |node: &Value| node["node"].as_str().unwrap().to_owned();
        let mut names: Vec<_> = list["nodes"].as_array().unwrap().iter().map(name).collect();
        names.sort();
        names.join(" ")
    };
    let are = async |wanted: &str| {
        longshore_harness::eventually(wanted, Duration::from_secs(20), async || {
            let found = nodes().await;
            if found == wanted { Ok(()) } else { Err(found) }
        })
        .await;
    };
    are("first second").await;
    refused(&world, ("default", "nodes.list"), json!({}), 403, "_all").await;

    second.stop().await;
    are("first").await;
    system.until("the second's going", |live| live.subject == "longshore.events._sys.node_left._.second._").await;
    let health = world.request("health", json!({})).await;
    assert_eq!(
        (&health["live"], &health["ready"], &health["node"]),
        (&json!(true), &json!(true), &json!(first.name()))
    );
}

/// Given two nodes and a handler, when an operator asks for the health of one of them, then it has the parts of that
/// node and the handlers that are online, with their slots; a tenant sees neither.
#[tokio::test]
async fn operators_see_the_parts_of_a_node_and_the_handlers_that_are_online() {
    let world = world().await;
    let (_first, _second) = (world.node().name("first").start().await, world.node().name("second").start().await);
    let handler = world.handler("mail.send").announce("longshore.slots", "4");
    let _handler = handler.start(async |_| Reply::json(json!(1))).await;
    for node in ["first", "second"] {
        let named = json!({"node": node});
        // Handlers are asked once somebody looks.
        let health = longshore_harness::eventually("the handlers", Duration::from_secs(60), async || {
            let health = world.try_request("_all", "health", named.clone()).await.unwrap();
            if health["handlers"].is_array() { Ok(health) } else { Err(health.to_string()) }
        })
        .await;
        assert_eq!(
            (&health["handlers"][0]["subject"], &health["handlers"][0]["slots"]),
            (&json!("longshore.work.*.mail.send"), &json!(4)),
            "{health}"
        );
        let part = |name: &str| health["parts"].as_array().unwrap().iter().find(|part| part["part"] == name).cloned();
        let committer = json!({"part": "committer", "per_queue": false, "restarts": 0, "waiting": 0});
        assert_eq!(part("committer"), Some(committer), "{health}");
        assert_eq!(part("worker"), Some(json!({"part": "worker", "per_queue": true, "restarts": 0})), "{health}");
        let of_tenant = world.request("health", named).await;
        assert!(of_tenant["node"] == node && of_tenant.get("parts").is_none() && of_tenant.get("handlers").is_none());
    }
}

/// Given a node, when micro service tools query it, then it answers as an instance of `longshore`.
#[tokio::test]
async fn a_node_is_a_micro_service() {
    let world = world().await;
    let _node = world.node().start().await;
    world.request("health", json!({})).await;
    refused(&world, ("default", "health.none"), json!({}), 404, "health.none").await;
    refused(&world, ("default", "runs.get"), json!({"run_id": "none"}), 404, "none").await;
    let ask = async |subject: &str| -> Value {
        let answer = world.client().request(subject.to_owned(), "".into()).await.unwrap();
        serde_json::from_slice(&answer.payload).unwrap()
    };

    let ping = ask("$SRV.PING").await;
    assert_eq!((&ping["type"], &ping["name"]), (&json!("io.nats.micro.v1.ping_response"), &json!("longshore")));
    let info = ask("$SRV.INFO.longshore").await;
    assert_eq!((&info["type"], &info["id"]), (&json!("io.nats.micro.v1.info_response"), &ping["id"]));
    let subjects: Vec<&str> =
        info["endpoints"].as_array().unwrap().iter().map(|endpoint| endpoint["subject"].as_str().unwrap()).collect();
    for endpoint in ["submit", "submit.batch", "runs.get", "runs.wait", "queues.list", "nodes.list", "health"] {
        let subject = format!("longshore.api.*.{endpoint}");
        assert!(subjects.contains(&subject.as_str()), "{subjects:?}");
    }
    let stats = ask(&format!("$SRV.STATS.longshore.{}", ping["id"].as_str().unwrap())).await;
    assert_eq!(stats["type"], "io.nats.micro.v1.stats_response");
    let of =
        |name: &str| stats["endpoints"].as_array().unwrap().iter().find(|endpoint| endpoint["name"] == name).cloned();
    assert_eq!(of("health").unwrap()["num_requests"], 1);
    assert_eq!(of("runs-get").unwrap()["num_errors"], 1);
}

/// Given requests whose reply subject is not an inbox, when a node gets them, then it writes nothing there.
#[tokio::test]
async fn nodes_answer_to_inboxes_only() {
    let world = world().await;
    let _node = world.node().start().await;
    let mut elsewhere = world.client().subscribe("elsewhere.>").await.unwrap();
    let targets = ["elsewhere.a", "longshore.jobs.default.main.p5.noop", "longshore.eventlog.default", "$JS.API.INFO"];
    for subject in ["longshore.api.default.health", "longshore.api.default.submit", "$SRV.PING", "$SRV.INFO"] {
        for target in targets {
            world.client().publish_with_reply(subject, target, "{}".into()).await.unwrap();
        }
    }
    for _ in 0..10 {
        world.request("health", json!({})).await;
    }
    assert!(tokio::time::timeout(Duration::from_millis(100), elsewhere.next()).await.is_err());
    assert_eq!((world.depth("main", 5).await, world.event_log("*").await.len()), (0, 0));
}

/// Given a key, a schedule and a pause, when they are removed, then what says so is stored for good, and they can be
/// made again: a server that was killed brings back what such a message superseded, once it has expired.
#[tokio::test]
async fn what_was_removed_by_order_is_removed_for_good() {
    let world = world().await;
    let _node = world.node().start().await;
    let ask = async |endpoint: &str, body: Value| world.request_as("_all", endpoint, body).await;
    let key = ask("keys.create", json!({"name": "k", "tenant": "acme", "scopes": ["read"]})).await;
    let id = key["key"].as_str().unwrap().split('_').nth(1).unwrap().to_owned();
    let schedule = json!({"id": "s", "type": "noop", "every": "1h"});
    world.request("schedules.put", schedule.clone()).await;
    ask("queues.pause", json!({"queue": "main"})).await;

    ask("keys.revoke", json!({"id": id})).await;
    world.request("schedules.delete", json!({"id": "s"})).await;
    ask("queues.resume", json!({"queue": "main"})).await;
    for (bucket, entry) in [
        ("control", format!("api_keys.{id}")),
        ("schedules", "default.s".to_owned()),
        ("control", "settings.pause.queue.main".to_owned()),
    ] {
        let stream = world.jetstream().get_stream(format!("KV_longshore_{bucket}")).await.unwrap();
        let subject = format!("$KV.longshore_{bucket}.{entry}");
        let stored = stream.get_last_raw_message_by_subject(&subject).await.unwrap();
        let header = |name| stored.headers.get(name).map(|value| value.as_str().to_owned());
        assert_eq!((header("KV-Operation").as_deref(), header("Nats-TTL")), (Some("DEL"), None), "{entry}");
    }
    assert_eq!(ask("keys.list", json!({})).await["keys"], json!([]));
    assert_eq!(world.request("schedules.list", json!({})).await["schedules"], json!([]));
    world.request("schedules.put", schedule).await;
    ask("queues.pause", json!({"queue": "main"})).await;
}

/// Given jobs that set how long their record is to be kept, when they have ended, then it is kept that long, but not
/// for less than two leases; that of a run that was replaced in its lane is kept until its message has come.
#[tokio::test]
async fn a_record_is_kept_for_as_long_as_is_asked_for() {
    let world = world().await;
    let _node =
        world.node().with("node", "lease = '10s'").with("types.kept", "handler = 'noop'\nkeep = '3d'").start().await;
    let records = world.jetstream().get_stream("KV_longshore_runs").await.unwrap();
    let asked = |keep| json!({"type": "noop", "keep_ms": keep});
    let kept = async |run: &str| {
        let subject = format!("$KV.longshore_runs.default.{run}");
        let record = records.get_last_raw_message_by_subject(&subject).await.unwrap();
        record.headers.get("Nats-TTL").map(|ttl| ttl.as_str().to_owned()).unwrap_or_default()
    };
    for (job, wanted) in [
        (asked(60_000), "60s"),
        (asked(1), "20s"),
        (json!({"type": "kept"}), "259200s"),
        (json!({"type": "kept", "run_id": "own"}), "259200s"),
        (json!({"type": "noop"}), "86400s"),
    ] {
        let run = world.submit(job).await;
        world.wait(&run).await;
        assert_eq!(kept(&run).await, wanted, "{run}");
    }
    world.request_as("_all", "queues.pause", json!({"queue": "main"})).await;
    let mut replaces = asked(60_000);
    let key = json!({"idempotency_key": "k", "unique": "queued", "on_conflict": "replace"});
    replaces.as_object_mut().unwrap().extend(key.as_object().unwrap().clone());
    let replaced = world.submit(replaces.clone()).await;
    let last = world.submit(replaces).await;
    assert_eq!(kept(&replaced).await, "2592000s", "its message would be nobody's");
    world.request_as("_all", "queues.resume", json!({"queue": "main"})).await;
    assert_eq!(world.wait(&last).await.state, "completed");
    eventually("the message of the run that was replaced", Duration::from_secs(60), async || {
        let kept = kept(&replaced).await;
        if kept == "60s" { Ok(()) } else { Err(kept) }
    })
    .await;
}

/// Given a thousand clients that wait for one run, when others send other requests, then they are answered; waiting
/// clients beyond the limit get an error that says so, and another tenant may still wait.
#[tokio::test]
async fn waiting_clients_keep_no_other_request_from_its_answer() {
    let world = world().await;
    let _node = world.node().start().await;
    let mut live = world.live_events("default").await;
    let run = world.publish("sleep").json(json!({"ms": 600_000})).await;
    live.until_published("started", &run).await;
    let inbox = world.client().new_inbox();
    let mut answers = world.client().subscribe(inbox.clone()).await.unwrap();
    let body = json!({"run_id": run, "timeout_ms": 600_000}).to_string();
    for _ in 0..1_100 {
        let subject = "longshore.api.default.runs.wait";
        world.client().publish_with_reply(subject, inbox.clone(), body.clone().into()).await.unwrap();
    }
    for _ in 0..76 {
        let answer = tokio::time::timeout(Duration::from_secs(60), answers.next()).await.unwrap().unwrap();
        let body: Value = serde_json::from_slice(&answer.payload).unwrap();
        assert_eq!((&body["code"], &body["error"]), (&json!(429), &json!("rate_limited")), "{body}");
        assert!(body["retry_after_ms"].is_u64() && body["message"].as_str().unwrap().contains("1024"), "{body}");
    }

    let submitted = world.submit(json!({"type": "noop"})).await;
    assert!(submitted.starts_with("main-p5-"));
    let other = world.try_request("acme", "runs.wait", json!({"run_id": "mine", "timeout_ms": 10})).await;
    assert_eq!(other.unwrap_err().code, 404);
    world.request("runs.cancel", json!({"run_id": run})).await;
    for _ in 0..1_024 {
        let answer = tokio::time::timeout(Duration::from_secs(60), answers.next()).await.unwrap().unwrap();
        let body: Value = serde_json::from_slice(&answer.payload).unwrap();
        assert_eq!(body["state"], "cancelled", "{body}");
    }
    assert_eq!(world.request("runs.wait", json!({"run_id": submitted})).await["state"], "completed");
}

/// Given a type that keeps only its failures, when a client waits for a run that completes, then the answer has its
/// end; the answer to a later request says that nothing is kept.
#[tokio::test]
async fn an_end_that_is_not_kept_is_answered_to_waiting_clients() {
    let world = world().await;
    let brief = served_by("echo", "history = 'failures'");
    let node = world.node().with("types.brief", &brief).with("types.slow", &served_by("sleep", "history = 'failures'"));
    let _node = node.start().await;
    // Jobs that a lane held when the node first read it start through their record; only later jobs can do without one.
    let first = world.publish("noop").json(json!({})).await;
    world.wait(&first).await;
    let late = world.submit(json!({"type": "brief", "payload": [0.10], "tags": ["a"]})).await;
    let waited = world.request("runs.wait", json!({"run_id": late})).await;
    assert_eq!(
        (&waited["state"], &waited["result"], &waited["tags"]),
        (&json!("completed"), &json!([0.1]), &json!(["a"]))
    );
    let slow = world.submit(json!({"type": "slow", "payload": {"ms": 150}})).await;
    let waited = world.request("runs.wait", json!({"run_id": slow})).await;
    assert_eq!(
        (&waited["state"], &waited["type"], &waited["attempt"]),
        (&json!("completed"), &json!("slow"), &json!(1))
    );
    for endpoint in ["runs.get", "runs.cancel", "runs.reschedule", "runs.run_now", "runs.erase"] {
        for (run, says) in [(late.as_str(), "not_kept"), (&slow, "not_kept"), ("main-p5-999", "not_found")] {
            let mut asked = json!({"run_id": run});
            if endpoint == "runs.reschedule" {
                asked["priority"] = json!(1);
            }
            let error = world.try_request("default", endpoint, asked).await.unwrap_err();
            assert_eq!((error.code, error.error.as_str()), (404, says), "{endpoint}: {error}");
        }
    }

    // The node that gets the request need not be the one that ran the job.
    let idle = world.node().with("queues.other", "").with("types.brief", &brief).start().await;
    for _ in 0..8 {
        let run = world.submit(json!({"type": "brief", "payload": 1})).await;
        let waited = world.request("runs.wait", json!({"run_id": run})).await;
        assert_eq!(waited["state"], "completed", "{waited}");
    }
    idle.stop().await;

    let said = world.command(["submit", "brief", "[1]", "--wait=20s", "--json"]).output().await.unwrap();
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
    let record: Value = serde_json::from_slice(&said.stdout).unwrap();
    assert_eq!((&record["state"], &record["result"]), (&json!("completed"), &json!([1])));
}
