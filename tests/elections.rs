//! While servers hold elections, nodes start, answer correctly, and go on with the streams that have a leader.

use std::time::{Duration, Instant};

use longshore_harness::{Node, Scrape, ServerCluster, World, eventually};
use serde_json::{Value, json};

use crate::http::on_a_free_port;
use crate::{WITHIN, three_servers, workers, world};

/// Given an empty cluster, when several nodes with several queues start at the same moment, then all are ready.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_nodes_start_at_once_on_an_empty_cluster() {
    let world = three_servers().await;
    let start = |number: usize| {
        let node = world.node().name(&format!("n{number}"));
        let queues = ["main", "second", "third", "fourth", "fifth"];
        queues.iter().fold(node, |node, queue| node.with(&format!("queues.{queue}"), "concurrency = 2")).try_start()
    };
    let began = Instant::now();
    let started = futures_util::future::join_all((0..3).map(start)).await;
    println!("three nodes with five queues on an empty cluster: ready after {:?}", began.elapsed());
    let nodes: Vec<Node> = started.into_iter().map(|node| node.unwrap_or_else(|refusal| panic!("{refusal}"))).collect();
    let run = world.publish("echo").queue("fifth").json(json!(1)).await;
    assert_eq!(world.wait(&run).await.state, "completed");
    for node in nodes {
        assert!(node.stop().await.success());
    }
}

/// Given a cluster that has just lost its own leader, which also led many of its streams, when a node starts, then it
/// waits for the election, and becomes ready.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_starts_during_an_election() {
    let world = three_servers().await;
    world.node().name("first").start().await.stop().await;
    let servers = world.servers();
    let leader = servers.meta_leader().await.expect("nothing is wrong now");
    servers.server(leader).kill9().await;
    let node = world.node().name("second").try_start().await.unwrap_or_else(|refusal| panic!("{refusal}"));
    let run = world.publish("echo").json(json!(1)).await;
    assert_eq!(world.wait(&run).await.state, "completed");
    assert!(node.stop().await.success());
}

/// Given a declared queue, when its lanes have no leader, then `submit` is answered "not now", never "no such queue";
/// that answer is for queues that no node declares.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_declared_queue_without_a_leader_is_not_unknown() {
    let world = three_servers().await;
    world.node().name("gone").with("queues.other", "concurrency = 1").start().await.stop().await;
    let node = world.node().name("here").with("queues.main", "concurrency = 1").start().await;
    let servers = world.servers();
    let submit = async |queue: &str, more: serde_json::Value| {
        let mut job = json!({"type": "noop", "queue": queue});
        job.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        world.ask("default", "submit", job.to_string(), Duration::from_secs(20)).await
    };
    // The other servers learn of the API's subscription a moment later.
    eventually("a submit to be taken", WITHIN, async || submit("main", json!({})).await.map(drop)).await;
    eventually("a submit to be taken", WITHIN, async || submit("other", json!({})).await.map(drop)).await;
    // Until the cluster's own leader answers, no queue is unknown.
    let unknown = async |more: Value| match submit("unheard-of", more).await {
        Err(error) if error.code == 404 => Ok(()),
        otherwise => Err(format!("{otherwise:?}")),
    };
    eventually("an unknown queue", WITHIN, async || unknown(json!({})).await).await;

    servers.server(0).kill9().await;
    servers.server(1).kill9().await;
    let (mut refused, began) = (0, Instant::now());
    // The leaders that are left need up to 20 s to notice that they lead nobody; until then submits are not answered.
    while began.elapsed() < Duration::from_secs(25) || (refused == 0 && began.elapsed() < WITHIN) {
        for queue in ["main", "other"] {
            for more in [json!({}), json!({"delay_ms": 60_000}), json!({"run_id": format!("own-{refused}")})] {
                let answer = tokio::time::timeout(Duration::from_secs(6), submit(queue, more)).await;
                // A request without an answer proves nothing.
                if let Ok(Err(error)) = answer {
                    assert_ne!(error.code, 404, "{queue}: {error}");
                    refused += usize::from(error.code == 503);
                }
            }
        }
    }
    assert!(refused > 0, "no submit was refused: every stream had a leader");
    servers.server(0).restart().await.unwrap();
    servers.server(1).restart().await.unwrap();
    servers.in_step().await;
    eventually("a submit to be taken", WITHIN, async || submit("main", json!({})).await.map(drop)).await;
    eventually("an unknown queue", WITHIN, async || unknown(json!({"run_id": "own"})).await).await;
    assert!(node.stop().await.success());
}

/// Given a lane that cannot be read, when the node reconnects, then the other lanes of its queue go on.
#[tokio::test]
async fn a_lane_that_cannot_be_read_stops_no_other() {
    let world = world().await;
    let node = workers(world.node(), 4).start().await;
    world.jetstream().delete_stream("LONGSHORE_JOBS_main_P9").await.unwrap();
    world.server().kill9().await;
    world.server().restart().await.unwrap();
    let run = world.publish("echo").json(json!(1)).await;
    assert_eq!(world.wait(&run).await.state, "completed");
    assert!(node.stop().await.success());
}

/// Given delayed jobs on one server of three, when two replicas are added meanwhile, then all jobs run, including those
/// that fell due while their stream had no leader.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_falls_due_while_replicas_are_added_runs() {
    let world = three_servers().await;
    let node = |name: &str, replicas: usize| {
        let node = world.node().name(name).with("node", "lease = '6s'");
        node.with("storage", &format!("replicas = {replicas}")).start()
    };
    let one = node("one", 1).await;
    let (mut runs, mut tick) = (Vec::new(), tokio::time::interval(Duration::from_millis(100)));
    // Several at once, as one without a leader waits for long.
    let load = async {
        loop {
            tick.tick().await;
            let job = json!({"type": "noop", "delay_ms": 2_000}).to_string();
            let asked = [(); 5].map(|()| world.ask("default", "submit", job.clone(), Duration::from_secs(20)));
            let answers = futures_util::future::join_all(asked).await;
            runs.extend(answers.iter().flatten().filter_map(|answer| answer["run_id"].as_str().map(str::to_owned)));
        }
    };
    let grow = async {
        tokio::time::sleep(Duration::from_secs(3)).await;
        let three = node("three", 3).await;
        world.servers().in_step().await;
        tokio::time::sleep(Duration::from_secs(3)).await;
        three
    };
    let three = tokio::select! {
        () = load => unreachable!("it goes on for ever"),
        three = grow => three,
    };
    assert!(runs.len() > 50, "{} jobs", runs.len());
    for run in &runs {
        assert_eq!(world.wait_as("default", run, WITHIN).await.state, "completed");
    }
    let swept = |node: &Node| node.log().since(0).iter().filter(|line| line.contains("had not fired")).count();
    println!(
        "{} delayed jobs while replicas were added; sweeps that found some: {}",
        runs.len(),
        swept(&one) + swept(&three)
    );
    for node in [one, three] {
        assert!(node.stop().await.success());
    }
}

/// The answer of a node that this client reaches: the code of an error, and the body. `None`: there is none.
async fn ask(client: &async_nats::Client, endpoint: &str, body: Value) -> Option<(Option<String>, Value)> {
    let request = client.request(format!("longshore.api.default.{endpoint}"), body.to_string().into());
    let answer = tokio::time::timeout(Duration::from_secs(3), request).await.ok()?.ok()?;
    let code = answer.headers.as_ref().and_then(|all| all.get("Nats-Service-Error-Code").map(ToString::to_string));
    Some((code, serde_json::from_slice(&answer.payload).unwrap()))
}

/// An endpoint, with the code of an error and the body that it answered.
type Said = (&'static str, (Option<String>, Value));

/// What is answered of a run by each endpoint that says so if there is none.
async fn ask_all(client: &async_nats::Client, run: &str) -> Vec<Said> {
    const ENDPOINTS: [&str; 6] =
        ["runs.get", "runs.wait", "runs.cancel", "runs.run_now", "runs.reschedule", "runs.erase"];
    let asked = ENDPOINTS.map(|endpoint| {
        let mut body = json!({"run_id": run});
        match endpoint {
            "runs.reschedule" => body["run_at"] = json!(crate::in_future(WITHIN)),
            "runs.wait" => body["timeout_ms"] = json!(1),
            _ => {}
        }
        ask(client, endpoint, body)
    });
    let answers = futures_util::future::join_all(asked).await;
    ENDPOINTS.into_iter().zip(answers).filter_map(|(endpoint, said)| Some((endpoint, said?))).collect()
}

/// What is answered of a recurring schedule by each endpoint that says so if there is none; `doomed` is one that may
/// go.
async fn ask_all_of_schedule(client: &async_nats::Client, id: &str, doomed: &str) -> Vec<Said> {
    const ENDPOINTS: [&str; 6] = [
        "schedules.get",
        "schedules.pause",
        "schedules.resume",
        "schedules.run_now",
        "schedules.backfill",
        "schedules.delete",
    ];
    let asked = ENDPOINTS.map(|endpoint| {
        let body = match endpoint {
            "schedules.delete" => json!({"id": doomed}),
            "schedules.backfill" => json!({"id": id, "from": "2026-01-01T00:00:00Z", "until": "2026-01-03T00:00:00Z"}),
            _ => json!({"id": id}),
        };
        ask(client, endpoint, body)
    });
    let answers = futures_util::future::join_all(asked).await;
    ENDPOINTS.into_iter().zip(answers).filter_map(|(endpoint, said)| Some((endpoint, said?))).collect()
}

/// Has one server lead the cluster, the records, the recurring schedules and a lane, and says which.
async fn leads_all(servers: &ServerCluster) -> usize {
    let one = servers.meta_leader().await.expect("nothing is wrong now");
    for stream in ["KV_longshore_runs", "KV_longshore_schedules", "LONGSHORE_JOBS_main_P5"] {
        leads(servers, stream, one).await;
    }
    one
}

/// Has this server lead a stream.
async fn leads(servers: &ServerCluster, stream: &str, one: usize) {
    eventually("the server to lead what is read", WITHIN, async || match servers.stream_leader(stream).await {
        Some(leader) if leader == one => Ok(()),
        leader => servers.step_down_stream(stream).await.and(Err(format!("{stream} is led by {leader:?}"))),
    })
    .await;
}

/// Two nodes, and a client of each: one that knows a single server alone, which leads all that is asked, and one that
/// knows another.
struct BothSides {
    cut: usize,
    _nodes: [Node; 2],
    behind: async_nats::Client,
    beyond: async_nats::Client,
}

impl BothSides {
    async fn of(world: &World) -> Self {
        world.node().name("first").start().await.stop().await;
        let servers = world.servers();
        let cut = leads_all(servers).await;
        let at = |number: usize| servers.server(number).url();
        let node = |number: usize| {
            let node = world.node().name(&format!("n{number}")).env("NATS_URL", &at(number));
            node.with("types.held", "handler = 'remote'").start()
        };
        let nodes = [node(cut).await, node((cut + 1) % 3).await];
        let of = async |number: usize| async_nats::connect(at(number)).await.unwrap();
        let (behind, beyond) = (of(cut).await, of((cut + 1) % 3).await);
        eventually("nodes that answer", WITHIN, async || {
            let answers = [ask(&behind, "health", json!({})).await, ask(&beyond, "health", json!({})).await];
            if answers.iter().all(Option::is_some) { Ok(()) } else { Err("not yet") }
        })
        .await;
        Self { cut, _nodes: nodes, behind, beyond }
    }
}

/// Given three servers of which one leads the records and a lane, when it is cut off from the others and jobs are
/// accepted there, then a node that knows the cut-off server alone may say "not now" of their runs, but never that
/// there are none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_that_was_accepted_is_not_unknown_to_a_node_behind_a_cut() {
    let world = three_servers().await;
    let BothSides { cut, behind, beyond, _nodes } = BothSides::of(&world).await;
    let servers = world.servers();

    servers.isolate(cut);
    let began = Instant::now();
    let (mut accepted, mut said) = (Vec::new(), std::collections::BTreeMap::<String, usize>::new());
    while began.elapsed() < Duration::from_secs(24) {
        let publish = beyond.request("longshore.jobs.default.main.p5.held", "{}".into());
        if let Ok(Ok(answer)) = tokio::time::timeout(Duration::from_secs(1), publish).await
            && let Some(sequence) = serde_json::from_slice::<Value>(&answer.payload).unwrap()["seq"].as_u64()
        {
            accepted.push(format!("main-p5-{sequence}"));
        }
        let own = format!("own-{}", accepted.len());
        let job = json!({"type": "held", "run_id": own, "delay_ms": 600_000});
        if let Some((None, _)) = ask(&beyond, "submit", job).await {
            accepted.push(own);
        }
        let Some(run) = accepted.last() else { continue };
        for run in [run, &accepted[0]] {
            for (endpoint, (code, body)) in ask_all(&behind, run).await {
                let code = code.unwrap_or_default();
                assert_ne!(code, "404", "{endpoint} of {run}, {:?} after the cut: {body}", began.elapsed());
                *said.entry(code).or_default() += 1;
            }
        }
    }
    println!("{} runs were accepted beyond the cut; behind it, by code: {said:?}", accepted.len());
    assert!(!accepted.is_empty() && said.contains_key("503"), "nobody behind the cut answered");
    servers.heal();
    servers.in_step().await;
    for run in &accepted {
        eventually("the run", WITHIN, async || match ask(&behind, "runs.get", json!({"run_id": run})).await {
            Some((None, _)) => Ok(()),
            other => Err(format!("{run}: {other:?}")),
        })
        .await;
    }
    let unknown = json!({"run_id": "main-p5-999999999"});
    eventually("what is known of no run", WITHIN, async || match ask(&behind, "runs.get", unknown.clone()).await {
        Some((Some(code), _)) if code == "404" => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await;
    assert_eq!(ask(&behind, "runs.cancel", json!({"run_id": "nobody"})).await.unwrap().0.as_deref(), Some("404"));
}

/// Given three servers of which one leads the recurring schedules, when it is cut off from the others and schedules are
/// made there, then a node that knows the cut-off server alone may say "not now" of them, but never that there are
/// none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_schedule_that_was_made_is_not_unknown_to_a_node_behind_a_cut() {
    let world = three_servers().await;
    let BothSides { cut, behind, beyond, _nodes } = BothSides::of(&world).await;
    let servers = world.servers();

    servers.isolate(cut);
    let began = Instant::now();
    let (mut made, mut said) = (Vec::new(), std::collections::BTreeMap::<String, usize>::new());
    // The leader that is cut off answers for up to 20 s, what nobody leads is answered with 503 for as long as the cut
    // lasts.
    while began.elapsed() < Duration::from_secs(24) || (!said.contains_key("503") && began.elapsed() < WITHIN) {
        let (kept, doomed) = (format!("kept-{}", made.len()), format!("doomed-{}", made.len()));
        let put = |id: &str| ask(&beyond, "schedules.put", json!({"id": id, "every": "365d", "type": "held"}));
        if let (Some((None, _)), Some((None, _))) = (put(&doomed).await, put(&kept).await) {
            made.push(kept);
        }
        let Some(last) = made.len().checked_sub(1) else { continue };
        for (endpoint, (code, body)) in ask_all_of_schedule(&behind, &made[last], &format!("doomed-{last}")).await {
            let code = code.unwrap_or_default();
            assert_ne!(code, "404", "{endpoint} of {}, {:?} after the cut: {body}", made[last], began.elapsed());
            *said.entry(code).or_default() += 1;
        }
    }
    println!("{} schedules were made beyond the cut; behind it, by code: {said:?}", made.len());
    assert!(!made.is_empty() && said.contains_key("503"), "nobody behind the cut answered");
    servers.heal();
    servers.in_step().await;
    for id in &made {
        eventually("the schedule", WITHIN, async || match ask(&behind, "schedules.get", json!({"id": id})).await {
            Some((None, _)) => Ok(()),
            other => Err(format!("{id}: {other:?}")),
        })
        .await;
    }
    for (endpoint, (code, body)) in ask_all_of_schedule(&behind, "unheard-of", "unheard-of").await {
        assert_eq!(code.as_deref(), Some("404"), "{endpoint}: {body}");
    }
}

/// Given three servers, a node at one of them that lacks what the leader of the dead letters stores, when a job fails
/// for good at another node, then the first may say "not now" of its dead letter, but never that there is none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_letter_that_was_written_is_not_unknown_to_a_node_whose_server_lacks_it() {
    let world = three_servers().await;
    world.node().name("first").start().await.stop().await;
    let servers = world.servers();
    let all_else = servers.meta_leader().await.expect("nothing is wrong now");
    let (dead_letters, lacking) = ((all_else + 1) % 3, (all_else + 2) % 3);
    for stream in ["KV_longshore_runs", "KV_longshore_control", "LONGSHORE_EVENTS", "LONGSHORE_JOBS_main_P5"] {
        leads(servers, stream, all_else).await;
    }
    leads(servers, "LONGSHORE_DLQ", dead_letters).await;
    let node = |name: &str, number: usize, workers: usize| {
        let node = crate::workers(world.node().name(name), workers);
        node.env("NATS_URL", &servers.server(number).url()).start()
    };
    // Its one worker is busy: it takes no other job.
    let _behind = node("behind", lacking, 1).await;
    let mut live = world.live_events("default").await;
    let busy = world.publish("sleep").json(json!({"ms": 600_000})).await;
    live.until_published("started", &busy).await;
    let _beyond = node("beyond", all_else, 4).await;
    let client = async_nats::connect(servers.server(lacking).url()).await.unwrap();

    servers.cut(dead_letters, lacking);
    let dead = world.publish("fail").json(json!({"kind": "permanent"})).await;
    live.until_published("dlq", &dead).await;
    let (began, mut said) = (Instant::now(), std::collections::BTreeMap::<String, usize>::new());
    while began.elapsed() < Duration::from_secs(10) || said.is_empty() {
        if let Some((code, body)) = ask(&client, "dlq.get", json!({"run_id": dead})).await {
            let code = code.unwrap_or_default();
            assert_ne!(code, "404", "{:?} after the end: {body}", began.elapsed());
            *said.entry(code).or_default() += 1;
        }
        assert!(began.elapsed() < WITHIN, "nobody answers");
    }
    println!("of a dead letter that a server lacks, by code: {said:?}");
    servers.heal();
    servers.in_step().await;
    eventually("the dead letter", WITHIN, async || match ask(&client, "dlq.get", json!({"run_id": dead})).await {
        Some((None, _)) => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await;
    eventually("what is known of no run", WITHIN, async || {
        match ask(&client, "dlq.get", json!({"run_id": "no"})).await {
            Some((Some(code), _)) if code == "404" => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
}

/// Given a lane whose consumer delivers nothing though a node asks it, then `health`, a metric and the log say so, and
/// another server is asked to lead it; once it delivers again, its jobs run and nothing is said any more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lane_that_delivers_nothing_is_named_and_gets_another_leader() {
    const LANE: &str = "LONGSHORE_JOBS_main_P5";
    let world = three_servers().await;
    let node = on_a_free_port(world.node()).start().await;
    // As where a leader lacks the stream's state, the consumer answers, takes pulls and delivers nothing.
    let ask = async |what: &str, body: &'static str| {
        let answer = world.client().request(format!("$JS.API.CONSUMER.{what}.{LANE}.work"), body.into()).await.unwrap();
        let answer: Value = serde_json::from_slice(&answer.payload).unwrap();
        assert!(answer.get("error").is_none(), "{answer}");
        answer
    };
    // The leader of a consumer that was just made may not know yet of an order that was taken.
    eventually("a consumer that is paused", WITHIN, async || {
        ask("PAUSE", r#"{"pause_until":"2099-01-01T00:00:00Z"}"#).await;
        let info = ask("INFO", "").await;
        if info["paused"] == true { Ok(()) } else { Err(info) }
    })
    .await;
    // Just made, the lane's stream may be without a leader for a moment, and take no job then.
    let run = eventually("a job that is taken", WITHIN, async || {
        world.publish("echo").send("1").await.map(|receipt| receipt.run_id).map_err(|error| error.to_string())
    })
    .await;

    let warned = async |wanted: bool| {
        eventually("the warning", WITHIN, async || {
            let health = world.request("health", json!({})).await;
            let said = health["warnings"].to_string();
            if said.contains(&format!("{LANE} holds 1 jobs")) == wanted { Ok(()) } else { Err(said) }
        })
        .await;
    };
    warned(true).await;
    eventually("another leader", WITHIN, async || {
        let counted = Scrape::of(&node).await.sum("longshore_lane_standstills_total", &[]);
        let log = std::fs::read_to_string(node.log().path()).unwrap();
        let asked = log.matches("another server was asked to lead").count();
        if counted >= 1.0 && asked >= 1 { Ok(()) } else { Err(format!("{counted}, {asked}")) }
    })
    .await;
    ask("PAUSE", "{}").await;
    assert_eq!(world.wait(&run).await.state, "completed");
    warned(false).await;
    assert!(node.stop().await.success());
}

/// Given hundreds of attempts that end while no stream has a leader, then the node logs a few lines a second of it, not
/// one for each try of each job; and all are recorded once there is a leader.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_without_a_leader_cost_few_log_lines() {
    let world = three_servers().await;
    let node = world.node().with("queues.main", "concurrency = 200").start().await;
    let runs = world.publish("sleep").many((0..200).map(|_| json!({"ms": 4_000}))).await;
    eventually("attempts at work", WITHIN, async || {
        let running = world.request("queues.list", json!({"queue": "main"})).await["queues"][0]["running"].clone();
        if running == 200 { Ok(()) } else { Err(running) }
    })
    .await;
    let servers = world.servers();
    for number in [1, 2] {
        servers.server(number).kill9().await;
    }
    let log = || std::fs::read_to_string(node.log().path()).unwrap();
    eventually("a second try", WITHIN, async || if log().contains("trying again") { Ok(()) } else { Err("none") })
        .await;
    let before = log().lines().count();
    tokio::time::sleep(Duration::from_secs(8)).await;
    let lines = log().lines().count() - before;
    println!("{lines} lines in 8 s while two of three servers were away");
    assert!(lines <= 8 * 10, "{lines} lines in 8 s");
    for number in [1, 2] {
        servers.server(number).restart().await.unwrap();
    }
    for receipt in runs {
        assert_eq!(world.wait_as("default", &receipt.run_id, WITHIN).await.state, "completed");
    }
    assert!(node.stop().await.success());
}
