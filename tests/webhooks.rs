//! Events are posted to webhooks, each at least once, signed, whatever dies meanwhile.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures_util::StreamExt as _;
use hmac::{Hmac, KeyInit as _, Mac as _};
use longshore_harness::{EventName, Job, Node, NodeBuilder, Reply, World, eventually};
use serde_json::{Value, json};
use sha2::Sha256;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use crate::{recover, strike, times, world};

const WITHIN: Duration = Duration::from_secs(120);

/// A request that the target got.
#[derive(Debug, Clone)]
struct Got {
    headers: BTreeMap<String, String>,
    body: String,
}

impl Got {
    fn id(&self) -> &str {
        &self.headers["webhook-id"]
    }

    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap()
    }

    /// Whether one of its signatures is by this secret.
    fn is_signed_by(&self, secret: &str) -> bool {
        let key = STANDARD.decode(secret.strip_prefix("whsec_").unwrap()).unwrap();
        let mut mac = Hmac::<Sha256>::new_from_slice(&key).unwrap();
        mac.update(format!("{}.{}.{}", self.id(), self.headers["webhook-timestamp"], self.body).as_bytes());
        let expected = format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes()));
        self.headers["webhook-signature"].split(' ').any(|signature| signature == expected)
    }
}

/// A target that answers each request with the status that it is asked for.
struct Target {
    url: String,
    got: Arc<Mutex<Vec<Got>>>,
    task: JoinHandle<()>,
}

impl Drop for Target {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn read(stream: &mut TcpStream) -> Option<Got> {
    let (mut bytes, mut buffer) = (Vec::new(), [0; 8_192]);
    loop {
        let count = stream.read(&mut buffer).await.ok().filter(|count| *count > 0)?;
        bytes.extend_from_slice(&buffer[..count]);
        let text = String::from_utf8_lossy(&bytes);
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let headers = head.lines().skip(1).filter_map(|line| line.split_once(": "));
        let headers: BTreeMap<String, String> =
            headers.map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned())).collect();
        if body.len() >= headers["content-length"].parse().unwrap() {
            return Some(Got { headers, body: body.to_owned() });
        }
    }
}

/// `answer` gets the number of the request, from 0.
async fn target(answer: impl Fn(usize) -> u16 + Send + Sync + 'static) -> Target {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/hook", listener.local_addr().unwrap());
    let (got, answer) = (Arc::<Mutex<Vec<Got>>>::default(), Arc::new(answer));
    let all = Arc::clone(&got);
    let task = tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let (all, answer) = (Arc::clone(&all), Arc::clone(&answer));
            tokio::spawn(async move {
                while let Some(request) = read(&mut stream).await {
                    let status = {
                        let mut all = all.lock().unwrap();
                        all.push(request);
                        answer(all.len() - 1)
                    };
                    let head = format!("HTTP/1.1 {status} x\r\nContent-Length: 0\r\n\r\n");
                    let _ = stream.write_all(head.as_bytes()).await;
                }
            });
        }
    });
    Target { url, got, task }
}

impl Target {
    fn got(&self) -> Vec<Got> {
        self.got.lock().unwrap().clone()
    }

    async fn has(&self, what: &str, is_enough: impl Fn(&[Got]) -> bool) {
        eventually(what, WITHIN, async || {
            let got = self.got();
            if is_enough(&got) { Ok(()) } else { Err(format!("{} requests", got.len())) }
        })
        .await;
    }
}

async fn node(world: &World, name: &str) -> Node {
    settings(world, name).start().await
}

fn settings<'w>(world: &'w World, name: &str) -> NodeBuilder<'w> {
    let quick = "backoff = { delays = ['100ms'] }\nmax_attempts = 50";
    let node = world.node().name(name).with("webhooks", "allow = ['127.0.0.1/32']").with("node", "lease = '2s'");
    let node = node.with("http", "listen = '127.0.0.1:0'");
    node.with("types.'longshore.webhook'", quick)
}

/// Verifies every signature as a receiver does, by the package of Standard Webhooks, where python3 has that.
fn verify(secret: &str, got: &[Got]) {
    const SCRIPT: &str = "import json, sys\nfrom standardwebhooks import Webhook\nhook = Webhook(sys.argv[1])\n\
                          for line in sys.stdin:\n    body, headers = json.loads(line)\n    hook.verify(body, headers)\n";
    let python = |script| {
        let mut python = Command::new("python3");
        python.args(["-c", script, secret]).stdin(Stdio::piped()).stderr(Stdio::piped());
        python
    };
    let has_package = python("import standardwebhooks").stdin(Stdio::null()).output();
    if !has_package.is_ok_and(|output| output.status.success()) {
        return crate::skipped("signatures are not verified by python3's standardwebhooks, because it lacks that");
    }
    let mut python = python(SCRIPT).spawn().unwrap();
    let lines: String = got.iter().map(|got| format!("{}\n", json!([got.body, got.headers]))).collect();
    // One that fails early does not read the rest.
    let _ = python.stdin.take().unwrap().write_all(lines.as_bytes());
    let output = python.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Nodes and the server are killed and frozen in the midst, and a third of the calls fail: every event arrives, signed.
/// `LONGSHORE_TEST_WEBHOOK_EVENTS=5000 LONGSHORE_TEST_FAULTS=9` for more of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_event_arrives_signed_whatever_dies() {
    let faults = times("LONGSHORE_TEST_FAULTS", 3);
    let each = times("LONGSHORE_TEST_WEBHOOK_EVENTS", 270).div_ceil(3 * faults);
    let world = world().await;
    let nodes = [node(&world, "one").await, node(&world, "other").await];
    let target = target(|number| if number % 3 == 0 { 500 } else { 204 }).await;
    let made = world.request("webhooks.put", json!({"id": "shop", "url": target.url, "types": ["echo"]})).await;
    let secret = made["secret"].as_str().unwrap().to_owned();
    let again = world.request("webhooks.put", json!({"id": "shop", "url": target.url, "types": ["echo"]})).await;
    assert_eq!(again.get("secret"), None, "it is shown once: {again}");

    let (mut runs, mut verified) = (BTreeSet::new(), 0);
    for round in 0..faults {
        let bodies = (0..each).map(|number| json!({"round": round, "number": number}));
        runs.extend(world.publish("echo").many(bodies).await.into_iter().map(|job| job.run_id));
        target.has("a part of the deliveries", |got| got.len() > round * each * 2 + each * 2 / 3).await;
        strike(&world, &nodes, round).await;
        recover(&nodes, round).await;
        // Five minutes later its timestamp would be too old.
        let got = target.got();
        verify(&secret, &got[verified..]);
        verified = got.len();
    }
    for run in &runs {
        assert_eq!(world.wait(run).await.state, "completed");
    }
    let events: BTreeSet<String> = eventually("the events of all runs", WITHIN, async || {
        let mut log = world.event_log("default").await;
        log.retain(|logged| runs.contains(&logged.event.run_id));
        let ends = log.iter().filter(|logged| logged.event.event == EventName::Completed).count();
        if ends == runs.len() {
            Ok(log.into_iter().map(|logged| logged.event.id).collect())
        } else {
            Err(ends.to_string())
        }
    })
    .await;
    assert!(events.len() >= runs.len() * 3, "{}", events.len());
    let delivered = |got: &[Got]| -> BTreeSet<String> {
        // The answers of the others were failures.
        got.iter().enumerate().filter(|(at, _)| at % 3 != 0).map(|(_, got)| got.id().to_owned()).collect()
    };
    target.has("every event", |got| events.is_subset(&delivered(got))).await;
    verify(&secret, &target.got()[verified..]);
    println!("{} events, {} requests", events.len(), target.got().len());
    for got in target.got() {
        assert!(got.is_signed_by(&secret), "{got:?}");
        let body = got.json();
        assert_eq!(body["type"], format!("job.{}", body["data"]["event"].as_str().unwrap()));
        assert_eq!((&body["data"]["id"], &body["data"]["type"]), (&json!(got.id()), &json!("echo")), "{body}");
        assert!(body["data"]["sequence"].is_u64() && got.headers["content-type"] == "application/json");
    }
    // The other one was started anew after the last delivery, perhaps.
    let scrape = longshore_harness::http::get(nodes[0].http(), "/metrics").await.unwrap().body;
    let counted = scrape.lines().filter(|line| line.starts_with("longshore_webhook_deliveries_total{"));
    let outcomes: Vec<&str> = counted.filter(|line| !line.ends_with(" 0")).collect();
    let has = |outcome: &str| outcomes.iter().any(|line| line.contains(&format!("outcome=\"{outcome}\"")));
    assert!(has("delivered") && has("failed"), "{outcomes:?}");
    assert!(scrape.contains("longshore_webhook_lag_seconds{"), "{scrape}");
}

/// A node dies over events that it has taken, before or after their deliveries are made: each event has one delivery.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_dies_over_events_leaves_each_one_delivery() {
    for point in ["before-webhook-jobs", "after-webhook-jobs"] {
        let world = world().await;
        let doomed = settings(&world, "doomed").env("LONGSHORE_FAIL_POINTS", &format!("{point}=kill")).start().await;
        let target = target(|_| 200).await;
        let put = json!({"id": "shop", "url": target.url, "types": ["echo"], "events": ["completed"]});
        world.request("webhooks.put", put).await;
        let mut runs = vec![world.publish("echo").json(json!(0)).await];
        doomed.wait_exit(WITHIN).await;
        let _other = node(&world, "other").await;
        for number in 1..4 {
            runs.push(world.publish("echo").json(json!(number)).await);
        }
        target.has("every event", |got| got.len() >= runs.len()).await;
        let got: BTreeSet<String> =
            target.got().iter().map(|got| got.json()["data"]["run_id"].as_str().unwrap().to_owned()).collect();
        assert_eq!(got, runs.iter().cloned().collect(), "{point}");
        let deliveries = world.request("runs.list", json!({"type": "longshore.webhook"})).await;
        assert_eq!(deliveries["runs"].as_array().map(Vec::len), Some(runs.len()), "{point}: {deliveries}");
    }
}

/// More events come in one message of the log than its tenant may submit at once: all are posted as its tokens come.
#[tokio::test]
async fn a_rate_limit_delays_webhooks_and_stops_none() {
    const LINES: usize = 8;
    let world = world().await;
    let limited = settings(&world, "n1").with("tenants.default", "rate_limit = { rate = 1, per = '1s', burst = 2 }");
    let _node = limited.start().await;
    let target = target(|_| 200).await;
    world.request("webhooks.put", json!({"id": "shop", "url": target.url, "events": ["log"]})).await;
    let talks = |job: Job| async move {
        for number in 0..LINES {
            job.signal("log", format!("line {number}")).await;
        }
        Reply::json(json!(null))
    };
    let _handler = world.handler("talk").start(talks).await;

    world.publish("talk").json(json!(1)).await;

    let line = |got: &Got| got.json()["data"]["line"].to_string();
    target.has("every line", |got| got.iter().map(line).collect::<BTreeSet<_>>().len() == LINES).await;
}

/// An id is free again once its run's record has gone: the events of the next run of that id are posted as well.
#[tokio::test]
async fn the_events_of_an_id_that_is_used_again_are_posted() {
    let world = world().await;
    let _node = node(&world, "n1").await;
    let target = target(|_| 200).await;
    world.request("webhooks.put", json!({"id": "shop", "url": target.url, "events": ["completed"]})).await;
    let job = json!({"type": "noop", "run_id": "again", "keep_ms": 4_000});
    assert_eq!(world.submit(job.clone()).await, "again");
    target.has("the first", |got| got.len() == 1).await;
    eventually("its record to go", WITHIN, async || {
        match world.try_request("default", "runs.get", json!({"run_id": "again"})).await {
            Err(error) if error.code == 404 => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;

    let submitted = world.request("submit", job).await;

    assert_eq!(submitted["deduplicated"], false, "{submitted}");
    target.has("the second", |got| got.len() == 2).await;
    let of_both = target.got().iter().all(|got| got.json()["data"]["run_id"] == "again");
    assert!(of_both, "{:?}", target.got());
}

/// Waits until no node asks for events of the only webhook, nor between two questions.
async fn nobody_asks(world: &World) {
    eventually("no node that asks for events", WITHIN, async || {
        let stream = world.jetstream().get_stream("LONGSHORE_EVENTS").await.unwrap();
        let mut names = Box::pin(stream.consumer_names());
        while let Some(name) = names.next().await {
            let name = name.unwrap();
            if !name.starts_with("webhook=") {
                continue;
            }
            for _ in 0..20 {
                let asks = stream.consumer_info(&name).await.unwrap().num_waiting;
                if asks > 0 {
                    return Err(format!("{asks} ask"));
                }
            }
            return Ok(());
        }
        Err("no consumer".to_owned())
    })
    .await;
}

/// A node that drains leaves the events to others while its jobs end.
#[tokio::test]
async fn a_node_that_drains_takes_no_further_events() {
    let world = world().await;
    let node = world.node().name("n1").with("webhooks", "allow = ['127.0.0.1/32']");
    let node = node.with("node", "shutdown_grace = '10m'").start().await;
    let target = target(|_| 200).await;
    world.request("webhooks.put", json!({"id": "shop", "url": target.url, "types": ["noop"]})).await;
    world.publish("noop").json(json!({})).await;
    target.has("an event", |got| !got.is_empty()).await;
    let mut live = world.live_events("default").await;
    let run = world.publish("sleep").json(json!({"ms": 600_000})).await;
    live.until_published("started", &run).await;

    node.sigterm();

    nobody_asks(&world).await;
}

/// A target that says 410, or fails to the end, pauses its webhook, which goes on where it stopped once it is resumed.
#[tokio::test]
async fn a_webhook_pauses_when_its_target_is_gone_and_goes_on_where_it_stopped() {
    let world = world().await;
    let node = node(&world, "n1").await;
    let mut live = world.listen("longshore.events._sys.webhook_paused.>").await;
    let target = target(|number| if number == 0 { 410 } else { 200 }).await;
    let put = json!({"id": "shop", "url": target.url, "events": ["completed"], "format": "cloudevents"});
    world.request("webhooks.put", put).await;
    let first = world.publish("echo").json(json!(1)).await;
    let paused = live.next().await;
    assert!(format!("{paused:?}").contains("410"), "{paused:?}");
    let found = world.request("webhooks.get", json!({"id": "shop"})).await;
    assert_eq!((&found["paused"], found.get("secret")), (&json!(true), None));
    assert!(found["paused_because"].as_str().unwrap().contains("410"), "{found}");

    // A delivery that is made before the feed knows of the pause would be snoozed.
    nobody_asks(&world).await;
    eventually("no lag of a paused webhook", WITHIN, async || {
        let scrape = longshore_harness::http::get(node.http(), "/metrics").await.unwrap().body;
        if scrape.contains("longshore_webhook_lag_seconds{") { Err(scrape) } else { Ok(()) }
    })
    .await;
    let second = world.publish("echo").json(json!(2)).await;
    assert_eq!(world.wait(&second).await.state, "completed");
    assert_eq!(target.got().len(), 1, "nothing is delivered while it is paused");
    let put =
        json!({"id": "shop", "url": target.url, "events": ["completed"], "format": "cloudevents", "paused": false});
    assert_eq!(world.request("webhooks.put", put).await["paused"], false);
    target.has("the second", |got| got.len() == 2).await;
    let got = target.got();
    let body = got[1].json();
    assert_eq!((&body["specversion"], &body["type"]), (&json!("1.0"), &json!("longshore.job.completed")));
    assert_eq!((&body["subject"], &body["id"]), (&json!(second), &json!(got[1].id())));
    assert_eq!(got[1].headers["content-type"], "application/cloudevents+json");
    // The one that met 410 is a dead letter, as any job that failed for good.
    let dead = world.request("dlq.list", json!({})).await;
    assert_eq!(dead["entries"].as_array().map(Vec::len), Some(1), "{first}: {dead}");
}

/// A webhook has the events of its queues alone, and is paused once one could not be delivered in all its attempts.
#[tokio::test]
async fn a_webhook_pauses_once_an_event_fails_to_the_end() {
    let world = world().await;
    let node =
        world.node().with("webhooks", "allow = ['127.0.0.1/32']").with("queues.main", "").with("queues.bulk", "");
    let _node =
        node.with("types.'longshore.webhook'", "max_attempts = 2\nbackoff = { delays = ['100ms'] }").start().await;
    let mut live = world.listen("longshore.events._sys.webhook_paused.>").await;
    let target = target(|_| 503).await;
    world
        .request("webhooks.put", json!({"id": "shop", "url": target.url, "queues": ["bulk"], "events": ["completed"]}))
        .await;
    let other = world.publish("echo").json(json!(1)).await;
    assert_eq!(world.wait(&other).await.state, "completed");
    let run = world.publish("echo").queue("bulk").json(json!(2)).await;

    let paused = live.next().await;
    assert!(format!("{paused:?}").contains("in 2 attempts"), "{paused:?}");
    let found = world.request("webhooks.get", json!({"id": "shop"})).await;
    assert_eq!(found["paused"], true, "{found}");
    let got = target.got();
    assert!(got.len() == 2 && got[0].id() == got[1].id(), "{got:?}");
    assert!(got.iter().all(|got| got.json()["data"]["run_id"] == json!(run)), "{got:?}");
}

/// After a rotation the secrets before sign as well; a test is delivered; a deleted webhook gets nothing, and leaves no
/// consumer.
#[tokio::test]
async fn a_webhook_is_tried_rotated_and_deleted() {
    let world = world().await;
    let _node = node(&world, "n1").await;
    let target = target(|_| 200).await;
    let command = |arguments: &[&str]| crate::gateway_keys::keys(&world, arguments);
    let secret = |said: &str| said.lines().find_map(|line| line.strip_prefix("secret ")).unwrap().to_owned();
    let old = secret(&command(&["webhooks", "put", "shop", &target.url, "--events", "completed"]));
    let [first, new] = [0; 2].map(|_| secret(&command(&["webhooks", "rotate", "shop"])));
    assert_ne!(first, new);
    command(&["webhooks", "test", "shop"]);
    target.has("the test", |got| got.len() == 1).await;
    let got = &target.got()[0];
    assert_eq!(got.json()["type"], "webhook.test");
    assert!([&old, &first, &new].iter().all(|secret| got.is_signed_by(secret)), "{got:?}");
    // A client's own job cannot have the secret sign what the client made up.
    let event =
        json!({"id": "i", "event": "completed", "tenant": "default", "run_id": "r", "at": "2026-01-01T00:00:00.000Z"});
    let forged = json!({"webhook": "shop", "sequence": 7, "event": event, "proof": "AAAA"});
    let forged = world.publish("longshore.webhook").json(forged).await;
    let end = world.wait(&forged).await;
    assert_eq!((end.state.as_str(), end.error.unwrap().kind.as_str()), ("dead", "permanent"));
    assert_eq!(target.got().len(), 1);
    assert!(command(&["webhooks", "list"]).contains(&target.url));
    assert!(command(&["webhooks", "pause", "shop"]).contains("paused"));
    assert!(command(&["webhooks", "resume", "shop"]).contains("on"));

    let consumers = async || {
        let stream = world.jetstream().get_stream("LONGSHORE_EVENTS").await.unwrap();
        stream.get_info().await.unwrap().state.consumer_count
    };
    let before = consumers().await;
    command(&["webhooks", "delete", "shop"]);
    assert_eq!(consumers().await, before - 1);
    let control = world.jetstream().get_stream("KV_longshore_control").await.unwrap();
    let kept = control.get_last_raw_message_by_subject("$KV.longshore_control.webhooks.default.shop").await.unwrap();
    let kept: Value = serde_json::from_slice(&kept.payload).unwrap();
    assert_eq!((&kept["deleted"], &kept["webhook"]["url"]), (&json!(true), &json!("")), "{kept}");
    let error = world.try_request("default", "webhooks.get", json!({"id": "shop"})).await.unwrap_err();
    assert_eq!(error.code, 404);
    assert_eq!(world.request("webhooks.list", json!({})).await, json!({"webhooks": []}));
    // Nor is one made again by the feed, which had asked it for more.
    for (id, fed) in [("one", 2), ("two", 3), ("three", 4), ("stays", 5)] {
        command(&["webhooks", "put", id, &target.url, "--events", "completed"]);
        world.wait(&world.publish("noop").json(json!({})).await).await;
        target.has("its event", |got| got.len() == fed).await;
        if id != "stays" {
            command(&["webhooks", "delete", id]);
        }
    }
    assert_eq!(consumers().await, before);
}

/// What may not be called is refused when it is put, and what is wrong is named.
#[tokio::test]
async fn what_may_not_be_called_is_refused() {
    let world = world().await;
    let _node = world.node().start().await;
    let many = |word: &str| vec![word.to_owned(); 101];
    for (field, more) in [
        ("url", json!({"url": "http://127.0.0.1:9000/"})),
        ("url", json!({"url": format!("https://1.1.1.1/{}", "x".repeat(2 << 10))})),
        ("events", json!({"url": "https://1.1.1.1/", "events": many("dlq")})),
        ("types", json!({"url": "https://1.1.1.1/", "types": many("a")})),
        ("queues", json!({"url": "https://1.1.1.1/", "queues": many("main")})),
        ("url", json!({"url": "http://169.254.169.254/latest"})),
        ("url", json!({"url": "http://[::ffff:10.0.0.1]/"})),
        ("url", json!({"url": "ftp://example.com/"})),
        ("url", json!({"url": "nonsense"})),
        ("events", json!({"url": "https://example.com/", "events": ["complete"]})),
        ("types", json!({"url": "https://example.com/", "types": ["a b"]})),
        ("secret", json!({"url": "https://example.com/", "secret": "whsec_c2hvcnQ="})),
        ("id", json!({"url": "https://example.com/", "id": "a b"})),
        ("id", json!({"url": "https://example.com/", "id": "_"})),
        ("format", json!({"url": "https://example.com/", "format": "xml"})),
    ] {
        let mut put = json!({"id": "shop"});
        put.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let error = world.try_request("default", "webhooks.put", put).await.unwrap_err();
        assert!(error.code == 400 && error.message.starts_with(&format!("{field}: ")), "{field}: {error:?}");
    }
    assert_eq!(world.request("webhooks.list", json!({})).await, json!({"webhooks": []}));
}
