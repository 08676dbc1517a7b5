//! What waits is shown: where, in which state, for what, and since when.

use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream::stream::Config;
use longshore_harness::{EventName, NodeBuilder, Reply, Scrape, World, eventually};
use longshore_natsd::Options;
use serde_json::{Value, json};
use tokio::sync::Notify;

use crate::cli::say;
use crate::http::on_a_free_port;
use crate::{WITHIN, served_by, use_binary, workers, world};

/// One worker for the queue `main`; what waits for a time is counted every second.
fn node(world: &World) -> NodeBuilder<'_> {
    let later = "max_attempts = 9\nbackoff = { base = '1h', factor = 1.0, max = '1h', jitter = 'none' }";
    let node = workers(world.node(), 1).with("node", "lease = '2s'").with("types.later", &served_by("fail", later));
    node.with("types.lost", &served_by("remote", "no_handler_grace = '10m'"))
}

/// The queue `main` as a tenant sees it, once `is_so`.
async fn main_as(world: &World, tenant: &str, is_so: impl Fn(&Value) -> bool) -> Value {
    eventually("the queue to be listed so", WITHIN, async || {
        let answer = world.try_request(tenant, "queues.list", json!({"queue": "main"})).await;
        let answer = answer.map_err(|error| error.to_string())?;
        let main = answer["queues"][0].clone();
        if is_so(&main) { Ok(main) } else { Err(answer.to_string()) }
    })
    .await
}

/// Given a type without a handler, when its last job is cancelled, then no answer warns of it any more, long before a
/// quarter of an hour is over; it does as long as a job waits, also one that was parked.
#[tokio::test]
async fn a_type_without_handler_is_forgotten_with_its_last_job() {
    let world = world().await;
    let _node = node(&world).start().await;
    let runs = world.publish("lost").many((0..40).map(|_| json!({}))).await;
    let warnings = async |are_so: &dyn Fn(&Value) -> bool| {
        eventually("the warnings of health", WITHIN, async || {
            let warnings = world.request("health", json!({})).await["warnings"].clone();
            if are_so(&warnings) { Ok(()) } else { Err(warnings.to_string()) }
        })
        .await
    };
    let has_one =
        |warnings: &Value| warnings[0].as_str().is_some_and(|warning| warning.starts_with("no handler for lost "));
    warnings(&has_one).await;
    let cancelled = world.request("runs.cancel", json!({"type": "lost", "limit": runs.len() - 1})).await;
    assert_eq!(cancelled["cancelled"], runs.len() - 1, "{cancelled}");
    warnings(&has_one).await;
    let cancelled = world.request("runs.cancel", json!({"type": "lost"})).await;
    assert_eq!(cancelled["cancelled"], 1, "{cancelled}");
    warnings(&|warnings| *warnings == json!([])).await;
    assert_eq!(world.request("queues.list", json!({})).await["no_handler"], json!([]));
}

/// Given an idle node, when a job starts, then the node that is asked counts it as running at once.
#[tokio::test]
async fn a_node_knows_at_once_what_it_runs_itself() {
    let world = world().await;
    let node = node(&world).name("only").start().await;
    let mut events = world.live_events("default").await;
    for _ in 0..3 {
        let busy = world.publish("sleep").json(json!({"ms": 600_000})).await;
        events.until_published("started", &busy).await;
        let queues = world.request("queues.list", json!({"queue": "main"})).await;
        assert_eq!((&queues["queues"][0]["running"], &queues["queues"][0]["waiting"]["p5"]), (&json!(1), &json!(0)));
        let nodes = world.try_request("_all", "nodes.list", json!({})).await.unwrap();
        assert_eq!(nodes["nodes"][0]["queues"]["main"]["running"], 1, "{nodes}");
        world.request("runs.cancel", json!({"run_id": busy})).await;
        // Its message counts as waiting from its end until it is acknowledged.
        main_as(&world, "default", |main| main["running"] == 0 && main["waiting"]["p5"] == 0).await;
    }
    assert!(node.stop().await.success());
}

/// Given a few jobs that wait, when the queues are listed right after, then each is counted for what it waits for, also
/// the only one whose type has no handler: not only when a node next reads all that waits.
#[tokio::test]
async fn a_few_jobs_that_wait_are_counted_at_once() {
    let world = world().await;
    let node =
        workers(world.node(), 1).name("only").with("types.lost", &served_by("remote", "no_handler_grace = '10m'"));
    let node = node.start().await;
    for count in 1..=20 {
        world.request("submit", json!({"type": "noop", "delay_ms": 3_600_000})).await;
        let main = &world.request("queues.list", json!({"queue": "main"})).await["queues"][0];
        assert_eq!(main["scheduled"], count, "{main}");
    }
    let mut events = world.live_events("default").await;
    let lost = world.publish("lost").json(json!({})).await;
    events.until_published("deferred", &lost).await;
    // Between two looks it is back in its lane for some milliseconds.
    eventually("the only job to be counted with its type", WITHIN, async || {
        let answer = world.request("queues.list", json!({"queue": "main"})).await;
        let (missing, main) = (&answer["no_handler"][0], &answer["queues"][0]);
        let is_so = missing["jobs"] == 1 && missing["type"] == "lost" && main["deferred"]["no_handler_online"] == 1;
        if is_so { Ok(()) } else { Err(answer.to_string()) }
    })
    .await;
    assert!(node.stop().await.success());
}

/// Given jobs of two tenants in every state, when the queues are listed, then a tenant sees its own and the operator
/// all.
#[tokio::test]
async fn a_tenant_sees_its_own_jobs_and_the_operator_all() {
    let world = world().await;
    let node = node(&world).name("only").start().await;
    let mut events = world.live_events("*").await;
    let (acme, other) = ("acme", "other");
    let fails = world.publish("later").tenant(acme).json(json!({})).await;
    events.until_published("failed", &fails).await;
    for tenant in [acme, other, other] {
        world.publish("noop").tenant(tenant).header("Longshore-Delay", "1h").json(json!({})).await;
    }
    let busy = world.publish("sleep").tenant(acme).json(json!({"ms": 600_000})).await;
    events.until_published("started", &busy).await;
    world.publish("noop").tenant(acme).priority(2).many((0..3).map(|_| json!({}))).await;
    world.publish("noop").tenant(other).priority(7).many((0..4).map(|_| json!({}))).await;

    let own =
        main_as(&world, acme, |main| main["running"] == 1 && main["scheduled"] == 1 && main["retrying"] == 1).await;
    assert_eq!(
        (&own["waiting"]["p2"], &own["waiting"]["p5"], &own["waiting"]["p7"]),
        (&json!(3), &json!(0), &json!(0))
    );
    assert_eq!((&own["depth"], &own["served_by"], &own["deferred"]), (&json!(4), &json!(["only"]), &json!({})));
    let ages = own["oldest_ms"].as_object().unwrap();
    assert_eq!(ages.keys().collect::<Vec<_>>(), ["retrying", "scheduled", "waiting"]);

    let others = main_as(&world, other, |main| main["scheduled"] == 2).await;
    assert_eq!((&others["running"], &others["retrying"], &others["waiting"]["p7"]), (&json!(0), &json!(0), &json!(4)));
    assert_eq!((&others["waiting"]["p2"], &others["depth"]), (&json!(0), &json!(4)));

    let all = main_as(&world, "_all", |main| main["running"] == 1 && main["scheduled"] == 3).await;
    assert_eq!((&all["waiting"]["p2"], &all["waiting"]["p7"], &all["depth"]), (&json!(3), &json!(4), &json!(8)));
    assert_eq!((&all["retrying"], &all["served"]), (&json!(1), &json!(true)));
    let named = world.try_request("_all", "queues.list", json!({"tenant": acme})).await.unwrap();
    assert_eq!(named["queues"][0]["depth"], 4);
    assert_eq!(world.try_request(acme, "queues.list", json!({"tenant": other})).await.unwrap_err().code, 403);
    world.try_request(acme, "runs.cancel", json!({"run_id": busy})).await.unwrap();
    assert!(node.stop().await.success());
}

/// Given jobs whose type nobody serves, when queues, health and runs are looked at, then each says so; once a handler
/// is there, they are done and nothing says so any more.
#[tokio::test]
async fn work_without_a_handler_is_seen_everywhere() {
    let world = world().await;
    let node = node(&world).start().await;
    let runs = world.publish("lost").many((0..40).map(|_| json!({}))).await;
    let listed = async |is_so: &dyn Fn(&Value) -> bool| {
        eventually("types without handler", WITHIN, async || {
            let list = world.request("queues.list", json!({})).await;
            if is_so(&list) { Ok(list) } else { Err(list.to_string()) }
        })
        .await
    };
    let list = listed(&|list| list["no_handler"][0]["jobs"].as_u64().is_some_and(|jobs| jobs >= 20)).await;
    let missing = &list["no_handler"][0];
    assert_eq!((&missing["type"], &missing["tenant"]), (&json!("lost"), &json!("default")));
    assert_eq!(missing["subject"], "longshore.work.default.lost");
    let unseen = world.try_request("acme", "queues.list", json!({})).await.unwrap();
    assert_eq!(unseen["no_handler"], json!([]));
    // Jobs that a node has taken back to try them wait as well: none of those in the lanes runs.
    main_as(&world, "default", |main| {
        main["deferred"]["no_handler_online"].as_u64().is_some_and(|jobs| jobs > 0)
            && main["waiting"]["p5"] == main["depth"]
    })
    .await;
    let health = world.request("health", json!({})).await;
    let warning = health["warnings"][0].as_str().unwrap();
    assert!(warning.starts_with("no handler for lost of tenant default since "), "{warning}");
    let waiting_for = waits_for(&world, &runs[39].run_id).await;
    assert_eq!(waiting_for["reason"], "no_handler_online");
    let message = waiting_for["message"].as_str().unwrap();
    assert!(message.starts_with("waits for a handler of lost: none online since "), "{message}");
    let said = say(&world, "submit lost {} --wait=5s").await.err;
    assert!(said.contains("waits for a handler of lost: none online since "), "{said}");
    let said = say(&world, "queues").await.err;
    assert!(said.contains("no handler for lost for ") && said.contains("longshore.work.default.lost"), "{said}");

    let handler = world.handler("lost").start(|_| async { Reply::json(json!("ok")) }).await;
    let ends = world.ends(&runs, WITHIN).await;
    assert!(ends.iter().all(|state| state == "completed"), "{ends:?}");
    listed(&|list| list["no_handler"] == json!([])).await;
    assert_eq!(world.request("health", json!({})).await["warnings"], json!([]));
    drop(handler);
    assert!(node.stop().await.success());
}

/// Waits until the run's record says that it runs: it is written once an attempt lasts.
async fn runs(world: &World, run: &str) {
    eventually("a record that says so", WITHIN, async || {
        let record = world.request("runs.get", json!({"run_id": run})).await;
        if record["state"] == "running" { Ok(()) } else { Err(record) }
    })
    .await;
}

/// What a run waits for.
async fn waits_for(world: &World, run: &str) -> Value {
    world.request("runs.get", json!({"run_id": run})).await["waiting_for"].clone()
}

/// Given runs that wait for different things, when they are looked at, then each says what it waits for; one that runs
/// or has ended says nothing.
#[tokio::test]
async fn a_run_says_what_it_waits_for() {
    let world = world().await;
    let node = node(&world).start().await;
    let mut events = world.live_events("default").await;
    let scheduled = world.publish("noop").header("Longshore-Delay", "1h").json(json!({})).await;
    events.until_published("scheduled", &scheduled).await;
    assert_eq!(waits_for(&world, &scheduled).await["reason"], "schedule");
    let running = world.publish("sleep").json(json!({"ms": 600_000})).await;
    events.until_published("started", &running).await;
    runs(&world, &running).await;
    assert_eq!(waits_for(&world, &running).await, Value::Null);
    let behind = world.publish("noop").many((0..30).map(|_| json!({}))).await;
    let last = waits_for(&world, &behind[29].run_id).await;
    assert_eq!(last["reason"], "worker");
    assert!(last["message"].as_str().unwrap().contains(" jobs of its lane (priority 5)"), "{last}");

    let pause = async |endpoint: &str, of: Value| world.try_request("_all", endpoint, of).await.unwrap();
    pause("queues.pause", json!({"type": "noop"})).await;
    let of_type = waits_for(&world, &behind[29].run_id).await;
    assert_eq!(of_type["message"], "waits for the end of a pause: its type noop is paused");
    pause("queues.resume", json!({"type": "noop"})).await;
    let until = crate::in_future(Duration::from_secs(3_600));
    pause("queues.pause", json!({"queue": "main", "until": until})).await;
    let of_queue = waits_for(&world, &behind[29].run_id).await;
    assert_eq!(of_queue["message"], format!("waits for the end of a pause: its queue main is paused until {until}"));
    let shown = say(&world, &format!("runs get {}", behind[29].run_id)).await.out;
    assert!(shown.contains("the end of a pause: its queue main is paused until "), "{shown}");
    pause("queues.resume", json!({"queue": "main"})).await;
    world.request("runs.cancel", json!({"run_id": running})).await;
    let ends = world.ends(&behind, WITHIN).await;
    assert!(ends.iter().all(|state| state == "completed"), "{ends:?}");
    assert_eq!(waits_for(&world, &behind[29].run_id).await, Value::Null);
    assert!(node.stop().await.success());
}

/// Given runs that their node holds and cannot start, of a type, of a key, or for handlers that have as many as they
/// take, when they are looked at, then each says so, though nothing was written of it.
#[tokio::test]
async fn a_run_that_its_node_holds_says_why() {
    let world = world().await;
    let node = workers(world.node(), 8).with("node", "lease = '10m'");
    let node = node.with("types.turn", &served_by("sleep", "concurrency = 1")).with("types.keyed", "handler = 'sleep'");
    let node = node.start().await;
    let slow = world.handler("full").announce("longshore.slots", "1");
    let _slow = slow.start(|_| std::future::pending::<Reply>()).await;
    let mut events = world.live_events("default").await;
    for (job_type, reason) in [("turn", "concurrency"), ("keyed", "concurrency"), ("full", "busy")] {
        let job = || world.publish(job_type).header("Longshore-Concurrency-Key", "k");
        let first = job().json(json!({"ms": 600_000})).await;
        events.until_published("started", &first).await;
        for run in job().many((0..2).map(|_| json!({}))).await {
            eventually("a reason", Duration::from_secs(30), async || {
                let waiting_for = waits_for(&world, &run.run_id).await;
                if waiting_for["reason"] == reason { Ok(()) } else { Err(waiting_for.to_string()) }
            })
            .await;
            let published = world.events(&run.run_id).await;
            assert!(published.iter().all(|logged| logged.event.event == EventName::Enqueued), "{published:?}");
        }
    }
    node.kill9().await;
}

/// Given a queue with waiting, delayed and running jobs of two tenants, when it is purged, then what does not run is
/// cancelled with its record and event, what runs goes on, also if it has no record yet, and other queues are left
/// alone.
#[tokio::test]
async fn a_purge_cancels_what_has_not_begun() {
    let world = world().await;
    let node = node(&world).with("queues.bulk", "concurrency = 2").start().await;
    let mut events = world.live_events("*").await;
    let delayed = world.publish("noop").queue("bulk").header("Longshore-Delay", "1h").json(json!({})).await;
    events.until_published("scheduled", &delayed).await;
    let elsewhere = world.publish("noop").header("Longshore-Delay", "1h").json(json!({})).await;
    events.until_published("scheduled", &elsewhere).await;
    let first = world.publish("sleep").queue("bulk").json(json!({"ms": 600_000})).await;
    runs(&world, &first).await;
    let second = world.publish("sleep").queue("bulk").json(json!({"ms": 600_000})).await;
    events.until_published("started", &second).await;
    let waiting = world.publish("noop").queue("bulk").many((0..20).map(|_| json!({}))).await;
    let other = world.publish("noop").tenant("acme").queue("bulk").json(json!({})).await;

    let purge = async |body: Value| world.try_request("_all", "queues.purge", body).await;
    assert_eq!(purge(json!({"queue": "bulk", "confirm": "main"})).await.unwrap_err().code, 400);
    assert_eq!(purge(json!({"queue": "bulk"})).await.unwrap_err().code, 400);
    assert_eq!(purge(json!({"queue": "bulg", "confirm": "bulg"})).await.unwrap_err().code, 404);
    let refused = world.try_request("default", "queues.purge", json!({"queue": "bulk", "confirm": "bulk"})).await;
    assert_eq!(refused.unwrap_err().code, 403);
    let output = world.command(["queues", "purge", "bulk"]).output().await.unwrap();
    assert_eq!(output.status.code(), Some(2), "it asks, and there is no terminal");
    let some = purge(json!({"queue": "bulk", "confirm": "bulk", "limit": 5})).await.unwrap();
    assert_eq!((&some["cancelled"], &some["more"]), (&json!(5), &json!(true)));
    let output = world.command(["queues", "purge", "bulk", "--yes"]).output().await.unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "17 runs cancelled\n");

    let ends = world.ends(&waiting, WITHIN).await;
    assert!(ends.iter().all(|state| state == "cancelled"), "{ends:?}");
    assert_eq!(world.wait_as("acme", &other, WITHIN).await.state, "cancelled");
    assert_eq!(world.wait(&delayed).await.state, "cancelled");
    for run in [&first, &second] {
        runs(&world, run).await;
        world.request("runs.cancel", json!({"run_id": run})).await;
    }
    assert_eq!(waits_for(&world, &elsewhere).await["reason"], "schedule");
    world.request("runs.cancel", json!({"run_id": elsewhere})).await;
    world.history(&waiting, Vec::new()).await.assert_sound();
    assert!(node.stop().await.success());
}

/// Given a node that dies amid a purge, when the purge is repeated, then every run ends as cancelled, once.
#[tokio::test]
async fn a_purge_that_a_crash_cut_short_is_repeated() {
    let world = world().await;
    let doomed = node(&world).name("doomed").env("LONGSHORE_FAIL_POINTS", "after-cancel=kill@3").start().await;
    let mut events = world.live_events("default").await;
    let mut delayed = Vec::new();
    for _ in 0..40 {
        let run = world.publish("noop").header("Longshore-Delay", "1h").json(json!({})).await;
        events.until_published("scheduled", &run).await;
        delayed.push(run);
    }
    let request = json!({"queue": "main", "confirm": "main"});
    assert!(world.try_request("_all", "queues.purge", request.clone()).await.is_err());
    doomed.wait_exit(WITHIN).await;

    let node = node(&world).start().await;
    let outcome = world.try_request("_all", "queues.purge", request.clone()).await.unwrap();
    let cancelled = outcome["cancelled"].as_u64().unwrap();
    assert!((1..40).contains(&cancelled) && outcome["more"] == false, "{outcome}");
    let nothing = world.try_request("_all", "queues.purge", request).await.unwrap();
    assert_eq!((&nothing["cancelled"], &nothing["more"]), (&json!(0), &json!(false)));
    for run in &delayed {
        assert_eq!(world.wait(run).await.state, "cancelled");
    }
    world.history(&[], Vec::new()).await.assert_sound();
    assert!(node.stop().await.success());
}

/// Given jobs in a queue whose only node has gone, when another node looks after the cluster, then a system event and
/// its health say so, and no more once a node serves the queue.
#[tokio::test]
async fn a_queue_with_jobs_that_no_node_serves_is_reported() {
    let world = world().await;
    let mut system = world.live_events("_sys").await;
    let bulk = node(&world).name("bulk").with("queues.bulk", "concurrency = 1").start().await;
    let main = node(&world).name("main").start().await;
    assert!(bulk.stop().await.success());
    let job = world.publish("noop").queue("bulk").json(json!({})).await;
    let subject = "longshore.events._sys.queue_unserved.bulk.main._";
    let event = system.until("the queue's being unserved", |live| live.subject == subject).await;
    assert_eq!((&event.body["queue"], &event.body["waiting"]), (&json!("bulk"), &json!(1)));
    let said = async |is_so: &dyn Fn(&str) -> bool| {
        eventually("the warnings of health", WITHIN, async || {
            let answer = world.try_request("default", "health", json!({"node": "main"})).await;
            let answer = answer.map_err(|error| error.to_string())?;
            if is_so(&answer["warnings"].to_string()) { Ok(()) } else { Err(answer.to_string()) }
        })
        .await;
    };
    said(&|warnings| warnings.contains("no node serves queue bulk since ")).await;

    let bulk = node(&world).name("bulk").with("queues.bulk", "concurrency = 1").start().await;
    assert_eq!(world.wait(&job).await.state, "completed");
    said(&|warnings| warnings == "[]").await;
    assert!(bulk.stop().await.success() && main.stop().await.success());
}

/// Given running nodes, when a queue is put, then its jobs are taken and the nodes that are to serve it do, without a
/// restart; put anew, it is served otherwise while what runs goes on; and all that outlasts restarts.
#[tokio::test]
async fn a_queue_that_is_put_is_served_without_a_restart_and_after_one() {
    let world = world().await;
    let a = node(&world).name("a").start().await;
    let b = node(&world).name("b").with("queues.own", "concurrency = 7").start().await;
    let put = async |asked: Value| world.try_request("_all", "queues.put", asked).await;
    let listed = async |queue: &str| world.try_request("_all", "queues.list", json!({"queue": queue})).await.unwrap();
    refuses_queues(&world).await;
    assert!(world.publish("noop").queue("bulk").send("{}").await.is_err(), "it is not declared yet");

    let answer = put(json!({"queue": "bulk", "concurrency": 3, "nodes": ["a"]})).await.unwrap();
    let served = json!({"aging_ms": 30_000, "concurrency": 3, "fair_by": "tenant", "nodes": ["a"], "queue": "bulk",
        "served_by": ["a"], "unconfirmed": []});
    assert_eq!(answer, served);
    assert_eq!(put(json!({"queue": "bulk", "concurrency": 3, "nodes": ["a"]})).await.unwrap(), served, "repeated");
    let first = world.publish("noop").queue("bulk").many((0..5).map(|_| json!({}))).await;
    assert!(world.ends(&first, WITHIN).await.iter().all(|state| state == "completed"));
    let mut events = world.live_events("default").await;
    let lasting = world.publish("sleep").queue("bulk").json(json!({"ms": 3_000})).await;
    events.until_published("started", &lasting).await;

    // Two nodes with two workers each, while one of the three before still runs its job.
    let answer = put(json!({"queue": "bulk", "concurrency": 2})).await.unwrap();
    assert_eq!((&answer["served_by"], &answer["unconfirmed"]), (&json!(["a", "b"]), &json!([])));
    eventually("two nodes with two workers each", WITHIN, async || {
        let bulk = listed("bulk").await["queues"][0].clone();
        if bulk["concurrency"] == 4 { Ok(()) } else { Err(bulk) }
    })
    .await;
    let ended = world.wait(&lasting).await;
    assert_eq!((ended.state.as_str(), ended.attempt), ("completed", 1));
    // A node goes by its configuration first.
    let answer = put(json!({"queue": "own", "concurrency": 1, "nodes": []})).await.unwrap();
    assert_eq!((&answer["served_by"], &listed("own").await["queues"][0]["concurrency"]), (&json!(["b"]), &json!(7)));

    let said = say(&world, "queues put bulk --concurrency 2 --no-node").await.out;
    assert!(said.starts_with("bulk: concurrency 2, aging 30s, served by"), "{said}");
    eventually("a queue without nodes", WITHIN, async || {
        let bulk = listed("bulk").await["queues"][0].clone();
        if bulk["served"] == false { Ok(()) } else { Err(bulk) }
    })
    .await;
    let waits = world.publish("noop").queue("bulk").json(json!({})).await;
    put(json!({"queue": "bulk", "aging_ms": 0, "nodes": ["a"]})).await.unwrap();
    assert_eq!(world.wait(&waits).await.state, "completed");

    assert!(a.stop().await.success() && b.stop().await.success());
    let after = world.publish("noop").queue("bulk").json(json!({})).await;
    let a = node(&world).name("a").start().await;
    assert_eq!(world.wait(&after).await.state, "completed");
    let audit = world.try_request("_all", "audit.list", json!({})).await.unwrap();
    let puts = audit["entries"].as_array().unwrap().iter().filter(|entry| entry["endpoint"] == "queues.put");
    assert!(puts.clone().any(|entry| entry["stage"] == "done"), "{audit}");
    assert!(puts.clone().any(|entry| entry["request"]["queue"] == "bulk"), "{audit}");
    world.history(&first, Vec::new()).await.assert_sound();
    assert!(a.stop().await.success());
}

/// Given a server without room for another queue, when one is put, then it is refused and leaves nothing behind. A
/// queue that lacks lanes all the same keeps no other from being shown.
#[tokio::test]
async fn a_queue_that_is_refused_leaves_nothing_and_half_of_one_hides_no_other() {
    use_binary();
    let world = World::with(Options { max_file: 14 << 30, ..Options::default() }).await;
    let node = on_a_free_port(node(&world)).start().await;
    let listed = async || -> Vec<String> {
        let answer = world.try_request("_all", "queues.list", json!({})).await.unwrap();
        answer["queues"].as_array().unwrap().iter().map(|of| of["queue"].as_str().unwrap().to_owned()).collect()
    };
    let refused = world.try_request("_all", "queues.put", json!({"queue": "bulk"})).await.unwrap_err();
    assert!(refused.code == 503 && refused.message.contains("LONGSHORE_JOBS_bulk_"), "{refused}");
    assert_eq!(listed().await, ["main"]);

    let half = Config { name: "LONGSHORE_JOBS_half_P3".into(), subjects: vec!["half".into()], ..Config::default() };
    world.jetstream().create_stream(half).await.unwrap();
    assert_eq!(listed().await, ["half", "main"]);
    eventually("metrics of both", WITHIN, async || {
        let scrape = Scrape::of(&node).await;
        let shows = |queue| scrape.value("longshore_queue_jobs", &[("queue", queue), ("state", "running")]).is_some();
        if shows("main") && shows("half") { Ok(()) } else { Err("not yet") }
    })
    .await;
    assert!(node.stop().await.success());
}

/// Given a queue with two jobs at work, when it is put anew, and one of them then fails and is due again within a
/// second, then it is tried again while the other one still works.
#[tokio::test]
async fn a_short_retry_of_a_queue_that_is_put_anew_does_not_wait_for_its_other_jobs() {
    let world = world().await;
    let soon = "backoff = { base = '500ms', factor = 1.0, max = '500ms', jitter = 'none' }";
    let node = node(&world).with("types.twice", &served_by("remote", soon)).start().await;
    let put = async |concurrency: usize| {
        world.try_request("_all", "queues.put", json!({"queue": "bulk", "concurrency": concurrency})).await.unwrap();
        eventually("the workers of the queue as it was put", WITHIN, async || {
            let listed = world.request("queues.list", json!({"queue": "bulk"})).await;
            if listed["queues"][0]["concurrency"] == concurrency { Ok(()) } else { Err(listed) }
        })
        .await;
    };
    put(2).await;
    let go = Arc::new(Notify::new());
    let fails = Arc::clone(&go);
    let handler = world.handler("twice").start(move |job| {
        let fails = Arc::clone(&fails);
        async move {
            if job.attempt > 1 {
                return Reply::json(json!("done"));
            }
            fails.notified().await;
            Reply::error(500, "not yet")
        }
    });
    let handler = handler.await;
    let mut events = world.live_events("default").await;
    let lasting = world.publish("sleep").queue("bulk").json(json!({"ms": 600_000})).await;
    events.until_published("started", &lasting).await;
    let twice = world.publish("twice").queue("bulk").json(json!({})).await;
    handler.called(1).await;

    put(3).await;
    go.notify_one();
    let end = world.wait(&twice).await;
    assert_eq!((end.state.as_str(), end.attempt), ("completed", 2));
    runs(&world, &lasting).await;
    world.request("runs.cancel", json!({"run_id": lasting})).await;
    assert!(node.stop().await.success());
}

/// What cannot be put is refused with the field and its bounds.
async fn refuses_queues(world: &World) {
    for (asked, code, says) in [
        (json!({"queue": "_x"}), 400, "queue"),
        (json!({"queue": "_"}), 400, "queue: begins with"),
        (json!({"queue": "a b"}), 400, "queue"),
        (json!({"queue": "bulk", "concurrency": 0}), 400, "concurrency: 0 is out of bounds; 1 to 10000"),
        (json!({"queue": "bulk", "concurrency": 10_001}), 400, "concurrency: 10001 is out of bounds; 1 to 10000"),
        (json!({"queue": "bulk", "aging_ms": 315_360_000_001_u64}), 400, "aging_ms: 315360000001 is out of bounds"),
        (json!({"queue": "bulk", "nodes": ["a.b"]}), 400, "nodes: \"a.b\""),
        (json!({"concurrency": 1}), 400, "queue"),
    ] {
        let refused = world.try_request("_all", "queues.put", asked).await.unwrap_err();
        assert!(refused.code == code && refused.message.contains(says), "{refused:?}");
    }
    let refused = world.try_request("default", "queues.put", json!({"queue": "bulk"})).await.unwrap_err();
    assert_eq!(refused.code, 403);
}
