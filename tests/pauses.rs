//! From the answer on nothing starts of what is paused, on any node, and it costs nobody else anything.

use std::collections::HashSet;
use std::time::Duration;

use jiff::Timestamp;
use longshore_harness::{Event, EventName, Live, LiveEvents, Node, NodeBuilder, Receipt, Reply, World, eventually};
use serde_json::{Value, json};

use crate::{WITHIN, in_future, served_by, world};

/// Four workers for the queue `main`, and four for `bulk`.
fn node(world: &World) -> NodeBuilder<'_> {
    let queue = "concurrency = 4\naging = '0s'";
    let node = world.node().with("queues.main", queue).with("queues.bulk", queue);
    node.with("types.call", &served_by("remote", "slots = 4"))
}

/// Asks as the operator. A pause that a silent node has to be waited for takes a while; and it is asked for again if
/// the request went to that very node.
async fn order(world: &World, endpoint: &str, body: Value) -> Value {
    // One of two nodes gets it, whichever.
    for _ in 0..20 {
        match world.ask("_all", endpoint, body.to_string(), Duration::from_secs(20)).await {
            Err(error) if error.code == 0 => {}
            answer => return answer.unwrap_or_else(|error| panic!("{endpoint} {body}: {error}")),
        }
    }
    panic!("{endpoint} {body}: no node answers");
}

async fn queue(world: &World, name: &str) -> Value {
    world.request("queues.list", json!({"queue": name})).await["queues"][0].clone()
}

/// Waits until no job of the queue runs any more.
async fn stands_still(world: &World, name: &str) {
    eventually("a queue in which nothing runs", WITHIN, async || {
        // Nodes say every two seconds how busy they are, so what was said before the pause counts for as long.
        match queue(world, name).await["running"].as_u64() {
            Some(0) => Ok(()),
            running => Err(format!("{running:?} run")),
        }
    })
    .await;
}

fn started(events: &LiveEvents) -> Vec<Event> {
    events.received().iter().filter_map(Live::event).filter(|event| event.event == EventName::Started).collect()
}

async fn stop(nodes: Vec<Node>) {
    for node in nodes {
        assert!(node.stop().await.success(), "{}", node.log().tail(20));
    }
}

fn all_completed(states: &[String]) {
    assert!(states.iter().all(|state| state == "completed"), "{states:?}");
}

async fn many(world: &World, job_type: &str, queue: &str, count: i32, payload: Value) -> Vec<Receipt> {
    world.publish(job_type).queue(queue).many((0..count).map(|_| payload.clone())).await
}

/// Given three nodes that hold jobs of two queues, when one queue is paused, then nothing of it starts after the
/// answer, what runs goes on to its end, and the other queue goes on. After the end of the pause everything is done.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_of_a_paused_queue_starts_after_the_answer() {
    let world = world().await;
    let nodes = vec![node(&world).start().await, node(&world).start().await, node(&world).start().await];
    let handler = world.handler("call").start(|_| async {
        tokio::time::sleep(Duration::from_millis(60)).await;
        Reply::json(json!("ok"))
    });
    let handler = handler.await;
    let (mut events, mut system) = (world.live_events("default").await, world.live_events("_sys").await);
    for round in 0..5 {
        // Work enough for some seconds: it is not over before the pause, however late the first end is heard of.
        let mut jobs = many(&world, "sleep", "main", 200, json!({"ms": 60})).await;
        jobs.extend(many(&world, "call", "main", 200, json!({})).await);
        // Several nodes hold jobs.
        let is_of = |jobs: &[Receipt], event: &Event| jobs.iter().any(|job| job.run_id == event.run_id);
        let first_end =
            |live: &Live| live.event().is_some_and(|event| event.event == EventName::Completed && is_of(&jobs, &event));
        events.until("an end", first_end).await;

        let paused = order(&world, "queues.pause", json!({"queue": "main"})).await;
        let (answered, calls) = (Timestamp::now(), handler.asked().len());
        assert_eq!((paused["paused"].clone(), paused["queue"].clone()), (json!(true), json!("main")));
        assert_eq!(queue(&world, "main").await["paused"], true);
        stands_still(&world, "main").await;
        let bulk = many(&world, "sleep", "bulk", 50, json!({"ms": 5})).await;
        all_completed(&world.ends(&bulk, WITHIN).await);

        // Whatever was published before the last of these ends has arrived here.
        let last = &bulk.last().unwrap().run_id;
        events.until_published("completed", last).await;
        let (of_bulk, begun): (HashSet<&String>, _) = (bulk.iter().map(|job| &job.run_id).collect(), started(&events));
        let late = begun.iter().filter(|event| event.at > answered && !of_bulk.contains(&event.run_id));
        let late: Vec<&Event> = late.collect();
        assert!(late.is_empty(), "round {round}: started after the answer at {answered}: {late:?}");
        // A call that was on its way to the handler then.
        let more = handler.asked().len() - calls;
        assert!(more <= 3 * 4, "round {round}: {more} calls after the answer");
        let begun = begun.iter().filter(|event| is_of(&jobs, event)).count();
        assert!(begun > 0 && begun < jobs.len(), "round {round}: {begun} had begun before the pause");
        let waiting = queue(&world, "main").await["depth"].as_u64().unwrap();
        assert!(waiting > 0, "round {round}: nothing waits");

        let resumed = order(&world, "queues.resume", json!({"queue": "main"})).await;
        assert_eq!((resumed["paused"].clone(), resumed["since"].clone()), (json!(false), paused["since"].clone()));
        all_completed(&world.ends(&jobs, WITHIN).await);
        world.history(&jobs, Vec::new()).await.assert_sound();
    }
    let event = system.until("queue_paused", |live| live.body["event"] == "queue_paused").await;
    assert!(event.subject.starts_with("longshore.events._sys.queue_paused.main.n"), "{}", event.subject);
    let fields: Vec<&str> = event.body.as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(fields, ["at", "event", "id", "node", "queue", "v"], "neither a type nor a time: {}", event.body);
    let event = system.until("queue_resumed", |live| live.body["event"] == "queue_resumed").await;
    assert_eq!(event.body["reason"], "order");
    stop(nodes).await;
}

/// Given a node that is frozen right before it calls a handler, when its queue or the job's type is paused by another
/// node, then the answer comes once the frozen node would start nothing any more; thawed, it calls no handler and hands
/// the job back.
#[tokio::test]
async fn a_node_that_was_frozen_over_a_pause_starts_nothing() {
    for of in [json!({"queue": "main"}), json!({"type": "call"})] {
        let world = world().await;
        let handler = world.handler("call").start(|_| async { Reply::json(json!("ok")) }).await;
        // Longer than any row of requests that go to the frozen node: its attempt is not to be lost meanwhile.
        let held = ("node", "lease = '10m'");
        let frozen = node(&world)
            .name("frozen")
            .with(held.0, held.1)
            .env("LONGSHORE_FAIL_POINTS", "before-handler=stop")
            .start()
            .await;
        let run = world.publish("call").json(json!({})).await;
        eventually("the node to stop itself", WITHIN, async || match frozen.is_frozen() {
            true => Ok(()),
            false => Err("it runs"),
        })
        .await;
        let other = node(&world).name("other").with(held.0, held.1).start().await;
        let mut events = world.live_events("default").await;

        order(&world, "queues.pause", of.clone()).await;
        frozen.sigcont();
        events.until_published("released", &run).await;
        assert_eq!(handler.asked().len(), 0);
        let late = world.publish("call").json(json!({})).await;
        let free = world.publish("noop").queue("bulk").json(json!({})).await;
        assert_eq!(world.wait(&free).await.state, "completed");
        assert_eq!(handler.asked().len(), 0, "{:?}", handler.asked());

        order(&world, "queues.resume", of).await;
        for run in [&run, &late] {
            let record = world.wait(run).await;
            assert_eq!((record.state.as_str(), record.attempt), ("completed", 1));
        }
        stop(vec![frozen, other]).await;
    }
}

/// Given a paused type, when its jobs come, then each has one `deferred` for that, uses up no attempt, and holds up
/// no other; also after every node was restarted. A pause of a type in one queue leaves it alone in the others.
#[tokio::test]
async fn jobs_of_a_paused_type_wait_and_hold_up_nobody() {
    let world = world().await;
    let node = node(&world).start().await;
    order(&world, "queues.pause", json!({"type": "sleep", "queue": "bulk"})).await;
    order(&world, "queues.pause", json!({"type": "noop"})).await;
    let waiting = many(&world, "noop", "main", 300, json!({})).await;
    let elsewhere = world.publish("sleep").queue("bulk").json(json!({"ms": 1})).await;
    let first = world.publish("sleep").json(json!({"ms": 1})).await;
    assert_eq!(world.wait(&first).await.state, "completed");
    for run in [&waiting[0].run_id, &waiting[299].run_id, &elsewhere] {
        world.eventually_reads(run, "enqueued\ndeferred paused").await;
    }
    assert!(node.stop().await.success());
    node.restart().await;
    let second = world.publish("sleep").json(json!({"ms": 1})).await;
    assert_eq!(world.wait(&second).await.state, "completed");
    let paused = queue(&world, "bulk").await;
    assert_eq!(
        (paused["paused"].clone(), paused["paused_types"].clone()),
        (json!(false), json!([{"type": "noop"}, {"type": "sleep"}]))
    );

    order(&world, "queues.resume", json!({"type": "noop"})).await;
    all_completed(&world.ends(&waiting, WITHIN).await);
    world.eventually_reads(&waiting[0].run_id, "enqueued\ndeferred paused\nstarted 1\ncompleted 1").await;
    world.eventually_reads(&elsewhere, "enqueued\ndeferred paused").await;
    order(&world, "queues.resume", json!({"type": "sleep", "queue": "bulk"})).await;
    assert_eq!(world.wait(&elsewhere).await.state, "completed");
    world.history(&waiting, Vec::new()).await.assert_sound();
    stop(vec![node]).await;
}

/// Given a pause with an end, when that has come, then the jobs go on by themselves and one event says so; also if no
/// node was there at that time.
#[tokio::test]
async fn a_pause_ends_by_itself() {
    let world = world().await;
    let nodes = [node(&world).start().await, node(&world).start().await];
    let mut system = world.live_events("_sys").await;
    let until = in_future(Duration::from_secs(3));
    let paused = order(&world, "queues.pause", json!({"queue": "main", "until": until})).await;
    assert_eq!(paused["until"], until);
    assert_eq!(queue(&world, "main").await["paused_until"], until);
    let run = world.publish("noop").json(json!({})).await;
    let record = world.wait(&run).await;
    assert!(record.started_at.unwrap().to_string() >= until, "{record:?}");
    let resumed = |live: &Live| live.body["event"] == "queue_resumed";
    assert_eq!(system.until("queue_resumed", resumed).await.body["reason"], "until");

    let until = in_future(Duration::from_secs(3));
    order(&world, "queues.pause", json!({"type": "noop", "until": until})).await;
    let run = world.publish("noop").json(json!({})).await;
    world.eventually_reads(&run, "enqueued\ndeferred paused").await;
    for node in &nodes {
        assert!(node.stop().await.success());
    }
    nodes[0].restart().await;
    let record = world.wait(&run).await;
    assert!(record.started_at.unwrap().to_string() >= until, "{record:?}");
    let published = system.received().iter().filter(|live| resumed(live)).count();
    assert_eq!(published, 1, "of two nodes one says so");
    assert!(nodes[0].stop().await.success());
}

/// Given a node that dies over a pause after it was stored, when the request is repeated, then it is answered, and
/// holds.
#[tokio::test]
async fn a_pause_survives_the_node_that_was_asked() {
    let world = world().await;
    let first = node(&world).env("LONGSHORE_FAIL_POINTS", "after-pause=kill").start().await;
    let refused = world.ask("_all", "queues.pause", r#"{"queue":"main"}"#, Duration::from_secs(5)).await;
    assert_eq!(refused.unwrap_err().code, 0, "it died");
    let second = node(&world).start().await;
    let run = world.publish("noop").json(json!({})).await;
    let paused = order(&world, "queues.pause", json!({"queue": "main"})).await;
    assert_eq!(paused["paused"], true);
    let free = world.publish("noop").queue("bulk").json(json!({})).await;
    assert_eq!(world.wait(&free).await.state, "completed");
    assert_eq!(world.request("runs.get", json!({"run_id": run})).await["state"], "enqueued");
    order(&world, "queues.resume", json!({"queue": "main"})).await;
    assert_eq!(world.wait(&run).await.state, "completed");
    assert!(second.stop().await.success());
    drop(first);
}

/// Given a node that has read many settings, when their bucket is deleted and another node makes it at its start, then
/// a pause that is answered holds on the first one, too, and a pause that only that one remembers can be ended.
#[tokio::test]
async fn a_pause_holds_also_where_settings_of_a_bucket_that_is_gone_were_read() {
    let world = world().await;
    let worker = node(&world).name("worker").start().await;
    let done = world.publish("noop").json(json!({})).await;
    assert_eq!(world.wait(&done).await.state, "completed");
    for number in 0..60 {
        order(&world, "limits.set", json!({"type": format!("t{number}"), "rate": 5})).await;
    }
    order(&world, "queues.pause", json!({"type": "sleep"})).await;
    let remembered = world.publish("sleep").json(json!({"ms": 1})).await;
    world.jetstream().delete_stream("KV_longshore_control").await.unwrap();
    let gateway = node(&world).name("gateway").with("node", "gateway = true").start().await;
    eventually("both nodes", WITHIN, async || {
        let nodes = order(&world, "nodes.list", json!({})).await;
        if nodes["nodes"].as_array().unwrap().len() == 2 { Ok(()) } else { Err(nodes) }
    })
    .await;

    order(&world, "queues.pause", json!({"queue": "main"})).await;
    let waiting = many(&world, "noop", "main", 20, json!({})).await;
    let free = many(&world, "noop", "bulk", 20, json!({})).await;
    all_completed(&world.ends(&free, WITHIN).await);
    for job in &waiting {
        assert_eq!(world.request("runs.get", json!({"run_id": job.run_id})).await["state"], "enqueued");
    }
    order(&world, "queues.resume", json!({"queue": "main"})).await;
    all_completed(&world.ends(&waiting, WITHIN).await);
    // The bucket has nothing of this pause, whichever node looks.
    order(&world, "queues.resume", json!({"type": "sleep"})).await;
    assert_eq!(world.wait(&remembered).await.state, "completed");
    stop(vec![worker, gateway]).await;
}

/// Given requests that make no sense, when they are made, then each is refused and says why; a resume of what is not
/// paused is answered.
#[tokio::test]
async fn pauses_are_the_operators_and_name_what_there_is() {
    let world = world().await;
    let node = node(&world).start().await;
    let refused = async |tenant: &str, body: Value| {
        let error = world.try_request(tenant, "queues.pause", body).await.unwrap_err();
        (error.code, error.message)
    };
    assert_eq!(refused("default", json!({"queue": "main"})).await.0, 403);
    assert_eq!(refused("_all", json!({})).await, (400, "queue or type: one of them is needed".to_owned()));
    assert_eq!(refused("_all", json!({"queue": "mian"})).await, (404, "queue: \"mian\" is not declared".to_owned()));
    let (code, message) = refused("_all", json!({"queue": "main", "until": "2020-01-01T00:00:00Z"})).await;
    assert!(code == 400 && message.starts_with("until: "), "{message}");
    let resumed = order(&world, "queues.resume", json!({"queue": "main"})).await;
    assert_eq!(resumed, json!({"paused": false, "queue": "main"}));

    let said = async |arguments: &[&str]| {
        let output = world.command(arguments.iter().copied()).output().await.unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    assert_eq!(said(&["queues", "pause", "main"]).await, "main: paused\n");
    let table = said(&["queues"]).await;
    assert!(table.lines().any(|line| line.starts_with("main") && line.ends_with("paused")), "{table}");
    assert!(said(&["queues", "pause", "--type", "a.b", "--for", "1h"]).await.starts_with("a.b: paused until "));
    assert!(said(&["queues", "resume", "main"]).await.starts_with("main: resumed, paused for "));
    assert!(node.stop().await.success());
}
