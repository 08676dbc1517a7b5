//! Only jobs that the settings take are run: `submit` refuses the others and names the bound, and a bare publish
//! becomes a dead letter that says why.

use longshore_harness::{World, eventually};
use serde_json::json;

use crate::{WITHIN, world};

const BOUNDS: &str = "types = ['echo', 'noop']\ntenants = ['default', 'acme']";

/// Given bounds on types, tenants and payloads, when jobs beyond them are submitted, then each is refused by the bound
/// that it met, and nothing of it is stored.
#[tokio::test]
async fn a_job_that_is_not_taken_is_refused_by_the_bound_it_met() {
    let world = world().await;
    let node = world.node().with("admission", BOUNDS).with("types.echo", "payload_max = 10").start().await;
    let submit = async |tenant: &str, job| world.try_request(tenant, "submit", job).await;
    let job = |kind: &str, payload: &str| json!({"type": kind, "payload": payload, "run_id": "mine"});
    for (tenant, job, code, says) in [
        ("default", job("sleep", "x"), 403, "type: sleep is not among the types that are taken"),
        ("zeta", job("echo", "x"), 403, "tenant: zeta is not known"),
        ("default", job("echo", "123456789"), 413, "payload: has 11 bytes, 10 are allowed for its type (payload_max)"),
    ] {
        let refused = submit(tenant, job).await.unwrap_err();
        assert_eq!(refused.code, code, "{refused:?}");
        assert!(refused.message.contains(says), "{refused:?}");
        assert!(world.record_as(tenant, "mine").await.is_none());
    }
    let batch = json!({"jobs": [job("noop", "1234567890"), job("sleep", "x")]});
    let answer = world.request("submit.batch", batch).await;
    assert_eq!((&answer["jobs"][0]["run_id"], &answer["jobs"][1]["error"]), (&json!("mine"), &json!("forbidden")));
    assert_eq!(world.wait("mine").await.state, "completed");
    assert!(submit("acme", job("echo", "12345678")).await.is_ok());
    node.stop().await;
    world.history(&[], Vec::new()).await.assert_sound();
}

/// Given the same bounds, when jobs beyond them are published bare, then they become dead letters that name the bound;
/// a job within them runs; and once the bound is gone, the dead letter can be replayed.
#[tokio::test]
async fn a_bare_publish_that_is_not_taken_is_a_dead_letter_that_says_why() {
    let world = world().await;
    let node = world.node().with("admission", BOUNDS).with("types.echo", "payload_max = 10").start().await;
    let of_type = world.publish("sleep").json(json!({"ms": 1})).await;
    let too_large = world.publish("echo").json(json!("123456789")).await;
    let of_tenant = world.publish("echo").tenant("zeta").json(json!(1)).await;
    let taken = world.publish("echo").json(json!(1)).await;
    assert_eq!(world.wait(&taken).await.state, "completed");
    for (tenant, run, says) in [
        ("default", &of_type, "admission.types"),
        ("default", &too_large, "payload_max"),
        ("zeta", &of_tenant, "admission.tenants"),
    ] {
        let end = world.wait_as(tenant, run, std::time::Duration::from_secs(30)).await;
        let error = end.error.unwrap();
        assert_eq!((end.state.as_str(), error.kind.as_str()), ("dead", "invalid"), "{run}");
        assert!(error.message.contains(says), "{}", error.message);
    }
    world.eventually_dead_letters(3).await;
    let replay = json!({"run_id": of_type});
    let answer = world.request("dlq.replay", replay.clone()).await;
    assert_eq!(answer["replayed"], 0, "{answer}");
    assert!(answer["failed"][0]["error"].as_str().unwrap().contains("still refused"), "{answer}");
    node.stop().await;

    let node = world.node().name("open").start().await;
    assert_eq!(world.request("dlq.replay", replay).await["replayed"], 1);
    assert_eq!(world.wait(&of_type).await.state, "completed");
    node.stop().await;
    world.history(&[], Vec::new()).await.assert_sound();
}

fn sleeping(ms: u64) -> serde_json::Value {
    json!({"type": "sleep", "payload": {"ms": ms}})
}

async fn waiting_of(world: &World, queue: &str) -> u64 {
    let queues = world.try_request("_all", "queues.list", json!({"queue": queue})).await.unwrap();
    queues["queues"][0]["depth"].as_u64().unwrap()
}

/// Given a queue and a tenant whose waiting jobs are bounded, when more are submitted, one by one and in a batch, then
/// they are refused with the scope and its bound; others are taken, bare publishes are not refused, and once the jobs
/// have started more are taken.
#[tokio::test]
async fn submit_refuses_what_would_wait_beyond_its_bound() {
    let world = world().await;
    let node = world.node().with("queues.main", "concurrency = 1\nmax_waiting = 8");
    let _node = node.with("queues.other", "").with("tenants.acme", "max_waiting = 3").start().await;
    let first = world.request("submit", sleeping(3_600_000)).await["run_id"].as_str().unwrap().to_owned();
    world.eventually_is(&first, "running", WITHIN).await;
    // What runs does not wait.
    eventually("three jobs of the tenant", WITHIN, async || {
        match world.try_request("acme", "submit", sleeping(1)).await {
            Ok(_) => Err("taken".to_owned()),
            Err(refused) => Ok(refused),
        }
    })
    .await;
    let refused = world.try_request("acme", "submit", sleeping(1)).await.unwrap_err();
    assert_eq!((refused.code, waiting_of(&world, "main").await), (503, 1 + 3), "{refused:?}");
    assert!(refused.message.contains("tenant acme: at most 3 jobs may wait"), "{refused:?}");
    let elsewhere = json!({"type": "noop", "payload": {}, "queue": "other"});
    world.try_request("default", "submit", elsewhere.clone()).await.unwrap();
    assert_eq!(world.try_request("acme", "submit", elsewhere).await.unwrap_err().code, 503);
    let delayed = json!({"type": "noop", "payload": {}, "delay_ms": 3_600_000});
    world.try_request("acme", "submit", delayed).await.unwrap();

    let jobs: Vec<_> = (0..10).map(|_| sleeping(1)).collect();
    let answer = world.request("submit.batch", json!({"jobs": jobs})).await;
    let refused: Vec<_> = answer["jobs"].as_array().unwrap().iter().filter(|job| job["code"] == 503).collect();
    assert_eq!((refused.len(), waiting_of(&world, "main").await), (5, 1 + 8), "{answer}");
    assert!(refused[0]["message"].as_str().unwrap().contains("queue main: at most 8 jobs may wait"), "{answer}");
    let bare = world.publish("noop").tenant("acme").json(json!(1)).await;

    world.request("runs.cancel", json!({"run_id": first})).await;
    assert_eq!(world.wait_as("acme", &bare, WITHIN).await.state, "completed");
    eventually("room for the tenant", WITHIN, async || world.try_request("acme", "submit", sleeping(1)).await).await;
}

/// Given a queue in which as many jobs wait as may, when two of them are submitted again, by key and by id, then the
/// answers are their runs; another job of the key is refused as such.
#[tokio::test]
async fn a_repeat_is_answered_though_its_queue_is_full() {
    let world = world().await;
    let _node = world.node().with("queues.main", "concurrency = 1\nmax_waiting = 2").start().await;
    let busy = world.submit(sleeping(3_600_000)).await;
    world.eventually_is(&busy, "running", WITHIN).await;
    let keyed = json!({"type": "noop", "payload": 1, "idempotency_key": "k"});
    let named = json!({"type": "noop", "payload": 1, "run_id": "mine"});
    let mut runs = Vec::new();
    for job in [&keyed, &named] {
        // Until the next count the first job may count as waiting.
        let submit = async || world.try_request("default", "submit", job.clone()).await;
        runs.push(eventually("room for two jobs", WITHIN, submit).await["run_id"].clone());
    }
    let full = world.try_request("default", "submit", json!({"type": "noop"})).await.unwrap_err();
    assert_eq!(full.code, 503, "{full}");
    for (job, run) in [&keyed, &named].into_iter().zip(&runs) {
        let again = world.request("submit", job.clone()).await;
        assert_eq!(again, json!({"deduplicated": true, "run_id": run, "state": "enqueued"}));
    }
    let other = json!({"type": "noop", "payload": 2, "idempotency_key": "k"});
    let refused = world.try_request("default", "submit", other).await.unwrap_err();
    assert_eq!((refused.code, refused.error.as_str()), (409, "idempotency_mismatch"), "{refused}");
}

/// Given three nodes and a queue whose waiting jobs are bounded, when many clients submit as fast as they can, then at
/// least as many jobs as the bound are taken, and no more than twice the bound and one for each node.
#[tokio::test]
async fn clients_of_several_nodes_cannot_pass_the_stated_bound() {
    let world = world().await;
    let build = || world.node().with("queues.main", "concurrency = 1\nmax_waiting = 60");
    let nodes = [build().start().await, build().start().await, build().start().await];
    let mut busy = Vec::new();
    while busy.len() < nodes.len() {
        let run = world.request("submit", sleeping(3_600_000)).await["run_id"].as_str().unwrap().to_owned();
        world.eventually_is(&run, "running", WITHIN).await;
        busy.push(run);
    }
    // That the jobs run is known to the other nodes once these have said so.
    let known = eventually("what runs", WITHIN, async || {
        let queues = world.request("queues.list", json!({"queue": "main"})).await;
        if queues["queues"][0]["running"] == 3 { Ok(()) } else { Err(queues) }
    });
    known.await;
    let clients = (0..16).map(|_| async {
        let mut taken = 0u64;
        for _ in 0..60 {
            match world.try_request("default", "submit", sleeping(1)).await {
                Ok(_) => taken += 1,
                Err(refused) => assert_eq!(refused.code, 503, "{refused:?}"),
            }
        }
        taken
    });
    let taken: u64 = futures_util::future::join_all(clients).await.into_iter().sum();
    println!("{taken} jobs were taken by three nodes, of 60 that may wait");
    assert_eq!(waiting_of(&world, "main").await, 3 + taken);
    // Each node takes its share of the room alone, so some may be left until the next count.
    let all = eventually("as many waiting jobs as may wait", WITHIN, async || {
        let _ = world.try_request("default", "submit", sleeping(1)).await;
        match waiting_of(&world, "main").await - 3 {
            few if few < 60 => Err(few),
            all => Ok(all),
        }
    });
    let all = all.await;
    assert!(all <= 2 * 60 + 3, "{all}");
}

/// Given types with schemas, one of them in two versions, when jobs are submitted, then those whose payload is wrong
/// are refused with the path of the wrong field, in a batch, too; each version checks its own jobs, one that is not
/// there is refused, and types without a schema take anything.
#[tokio::test]
async fn submit_refuses_a_payload_that_does_not_match_its_schema() {
    let world = world().await;
    let file = |name: &str, schema: serde_json::Value| {
        let path = world.dir().join(name);
        std::fs::write(&path, schema.to_string()).unwrap();
        path.display().to_string()
    };
    let price = |kind: &str| {
        let item = json!({"type": "object", "properties": {"price": {"type": kind}}, "required": ["price"]});
        json!({"properties": {"items": {"type": "array", "items": item}}})
    };
    let (first, second) = (file("1.json", price("number")), file("2.json", price("string")));
    let versions = format!("handler = 'echo'\nschemas = {{ 1 = '{first}', 2 = '{second}' }}");
    let node = world.node().with("types.order", &versions).with("types.echo", &format!("schema = '{first}'"));
    let node = node.start().await;
    let job = |kind: &str, price: serde_json::Value, version: Option<&str>| {
        let payload = json!({"items": [{"price": 1}, {"price": price}]});
        json!({"type": kind, "payload": payload, "schema_version": version})
    };
    let refused = world.try_request("default", "submit", job("echo", json!("much"), None)).await.unwrap_err();
    assert_eq!(refused.code, 400, "{refused:?}");
    assert!(refused.message.contains(r#"payload /items/1/price: value is not of type "number""#), "{refused:?}");
    assert!(!refused.message.contains("much"), "{refused:?}");
    let unknown = world.try_request("default", "submit", job("order", json!(1), Some("3"))).await.unwrap_err();
    assert_eq!(unknown.code, 400, "{unknown:?}");
    assert!(unknown.message.contains(r#"schema_version: there is no "3" of its type, but 1, 2"#), "{unknown:?}");
    // A header's value is what is between its blanks.
    let blank = world.try_request("default", "submit", job("noop", json!(1), Some(" "))).await.unwrap_err();
    assert_eq!(blank.message, "schema_version: has a control character, or a blank at an end");
    let text = json!({"type": "order", "payload": {"items": [{"price": "1"}]}});
    let batch = json!({"jobs": [job("order", json!(1), Some("1")), job("order", json!(1), Some("2")), text]});
    let answer = world.request("submit.batch", batch).await;
    assert_eq!(answer["jobs"][1]["code"], 400, "{answer}");
    let message = answer["jobs"][1]["message"].as_str().unwrap();
    assert!(message.contains("payload /items/0/price") && message.contains("by version 2"), "{answer}");
    for taken in [&answer["jobs"][0], &answer["jobs"][2]] {
        assert_eq!(world.wait(taken["run_id"].as_str().unwrap()).await.state, "completed");
    }
    let free = world.submit(json!({"type": "noop", "payload": "anything", "schema_version": "9"})).await;
    assert_eq!(world.wait(&free).await.state, "completed");
    node.stop().await;
    world.history(&[], Vec::new()).await.assert_sound();
}

/// Given a type with schemas, when wrong payloads are published bare, then they are dead letters of kind `invalid` that
/// say where they are wrong, and a replay that mends the payload runs; a node whose schema cannot be read does not
/// start.
#[tokio::test]
async fn a_bare_publish_that_does_not_match_its_schema_is_an_invalid_dead_letter() {
    let world = world().await;
    let schema = world.dir().join("echo.json");
    std::fs::write(&schema, r#"{"type": "object", "required": ["to"]}"#).unwrap();
    let setting = format!("schemas = {{ 1 = '{}' }}", schema.display());
    let node = world.node().with("types.echo", &setting).start().await;
    let wrong = world.publish("echo").json(json!({"from": 1})).await;
    let unknown = world.publish("echo").header("Longshore-Schema-Version", "2").json(json!({"to": 1})).await;
    let good = world.publish("echo").header("Longshore-Schema-Version", "1").json(json!({"to": 1})).await;
    assert_eq!(world.wait(&good).await.state, "completed");
    for (run, says) in [(&wrong, r#""to" is a required property"#), (&unknown, r#"there is no "2""#)] {
        let end = world.wait(run).await;
        let error = end.error.unwrap();
        assert_eq!((end.state.as_str(), error.kind.as_str()), ("dead", "invalid"), "{run}");
        assert!(error.message.contains(says), "{}", error.message);
    }
    world.eventually_dead_letters(2).await;
    let replay = |set: serde_json::Value| json!({"run_id": wrong, "set": set});
    for still in [json!({}), json!({"payload": {"too": 1}})] {
        let answer = world.request("dlq.replay", replay(still)).await;
        assert!(answer["failed"][0]["error"].as_str().unwrap().contains("a required property"), "{answer}");
    }
    let answer = world.request("dlq.replay", replay(json!({"payload": {"to": 1}}))).await;
    assert_eq!(answer["replayed"], 1, "{answer}");
    assert_eq!(world.wait(&wrong).await.state, "completed");
    node.stop().await;
    world.history(&[], Vec::new()).await.assert_sound();

    std::fs::write(&schema, r#"{"type": "objekt"}"#).unwrap();
    let said = world.node().with("types.echo", &setting).try_start().await.unwrap_err().log;
    assert!(said.contains("types.echo.schemas") && said.contains("is no JSON Schema"), "{said}");
}
