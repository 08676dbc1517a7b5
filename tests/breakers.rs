//! While a service fails, its jobs wait: they neither call it nor use up attempts, and other jobs go on.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use longshore_harness::{Handler, Live, LiveEvents, NodeBuilder, Reply, World, eventually};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use crate::cli::say;
use crate::{SOON, WITHIN, served_by, times, world};

/// A service over HTTP that can be switched off and on, and a port that stays its own.
struct Service {
    port: u16,
    is_on: Arc<AtomicBool>,
}

impl Service {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (port, is_on) = (listener.local_addr().unwrap().port(), Arc::new(AtomicBool::new(true)));
        let answers = Arc::clone(&is_on);
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let on = answers.load(Ordering::SeqCst);
                tokio::spawn(async move {
                    let mut request = [0; 512];
                    let _ = stream.read(&mut request).await;
                    let status = if on { "200 OK" } else { "503 Service Unavailable" };
                    let answer = format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
                    let _ = stream.write_all(answer.as_bytes()).await;
                });
            }
        });
        Self { port, is_on }
    }

    fn switch(&self, on: bool) {
        self.is_on.store(on, Ordering::SeqCst);
    }
}

/// The status that the service answers with.
async fn call(port: u16) -> std::io::Result<u16> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
    stream.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    answer.split(' ').nth(1).and_then(|status| status.parse().ok()).ok_or_else(|| std::io::Error::other(answer))
}

/// Settings of a type whose jobs call a service: these breakers, and retries that come soon.
fn breaker(settings: &str) -> String {
    served_by("remote", &format!("slots = 2\n{SOON}\nbreaker = {{ {settings} }}"))
}

/// A node whose leases are short, so that what a dead node held comes back soon.
fn node<'w>(world: &'w World, settings: &str) -> NodeBuilder<'w> {
    world.node().with("node", "lease = '2s'").with("types.call", &breaker(settings))
}

/// A handler that fails while `fails`, and says how often it was called.
async fn flaky(world: &World, job_type: &str, code: u16) -> (Handler, Arc<AtomicBool>) {
    let fails = Arc::new(AtomicBool::new(true));
    let failing = Arc::clone(&fails);
    let handler = world.handler(job_type).start(move |_| {
        let fails = failing.load(Ordering::SeqCst);
        async move { if fails { Reply::error(code, "out of order") } else { Reply::json(json!(1)) } }
    });
    (handler.await, fails)
}

async fn system_events(world: &World) -> LiveEvents {
    world.live_events("_sys").await
}

/// Waits for an event of the breaker of this type.
async fn until(events: &mut LiveEvents, event: &str, job_type: &str) -> Live {
    let is_it = |live: &Live| live.body["event"] == event && live.body["type"] == job_type;
    events.until(event, is_it).await
}

/// The breaker of a type, as the list has it.
async fn listed(world: &World, job_type: &str) -> Option<Value> {
    let list = world.request("breakers.list", json!({"type": job_type})).await;
    list["breakers"].as_array().unwrap().first().cloned()
}

async fn is_in_state(world: &World, job_type: &str, state: &str) -> Value {
    eventually(&format!("a breaker that is {state}"), WITHIN, async || match listed(world, job_type).await {
        Some(breaker) if breaker["state"] == state => Ok(breaker),
        other => Err(format!("it is {other:?}")),
    })
    .await
}

/// Jobs of another type, done one batch after the other for so long. Their ends are heard live: reading all records
/// again and again would take longer the more there are.
async fn others_for(world: &World, lasts: Duration) -> usize {
    let mut ends = world.listen("longshore.events.default.completed.*.*.noop").await;
    let (begun, mut done) = (tokio::time::Instant::now(), 0);
    while begun.elapsed() < lasts {
        let jobs = world.publish("noop").many((0..50).map(|number| json!(number))).await;
        let received = async {
            for _ in &jobs {
                ends.next().await;
            }
        };
        tokio::time::timeout(WITHIN, received).await.expect("the jobs of another type end");
        done += jobs.len();
    }
    done
}

/// Given two nodes and a service that is switched off for some seconds while jobs wait for it, when it is on again,
/// then it was called meanwhile no more than the settings imply, every job is completed, and jobs of other types were
/// done all the time.
#[tokio::test]
async fn a_service_that_is_off_is_left_alone_until_it_is_on() {
    let world = world().await;
    let settings = "failures = 5, cool_down = '1s', max_cool_down = '1s'";
    // The others leave no records, of which there would be many to read at the end.
    let build = || node(&world, settings).with("types.noop", &served_by("noop", "history = 'failures'"));
    let (one, other) = (build().start().await, build().start().await);
    let (service, calls_while_off) = (Service::start().await, Arc::new(AtomicUsize::new(0)));
    let (port, is_on, counted) = (service.port, Arc::clone(&service.is_on), Arc::clone(&calls_while_off));
    let handler = world.handler("call").start(move |_| {
        let (is_on, counted) = (Arc::clone(&is_on), Arc::clone(&counted));
        async move {
            tokio::time::sleep(Duration::from_millis(50)).await;
            counted.fetch_add(usize::from(!is_on.load(Ordering::SeqCst)), Ordering::SeqCst);
            match call(port).await {
                Ok(200) => Reply::json(json!("ok")),
                failed => Reply::error(503, &format!("{failed:?}")),
            }
        }
    });
    let handler = handler.await;
    let mut events = system_events(&world).await;
    let mut all = world.publish("call").many((0..20).map(|number| json!(number))).await;
    handler.called(5).await;
    // What others get done while the service is on and called, to compare with.
    let off_for = Duration::from_secs(times("LONGSHORE_TEST_OUTAGE_SECONDS", 6) as u64);
    all.extend(world.publish("call").many((0..100 * off_for.as_secs()).map(|number| json!(number))).await);
    let usual = others_for(&world, off_for).await;

    service.switch(false);
    let off_since = tokio::time::Instant::now();
    all.extend(world.publish("call").many((0..200).map(|number| json!(number))).await);
    until(&mut events, "breaker_opened", "call").await;
    let meanwhile = others_for(&world, off_for).await;
    let ratio = meanwhile as f64 / usual as f64;
    println!("{meanwhile} jobs of another type during the outage, {usual} in the same time before: {ratio:.2}");
    assert!(meanwhile > 0, "other types went on");
    let lasted = off_since.elapsed();
    service.switch(true);

    let states = world.ends(&all, WITHIN).await;
    assert!(states.iter().all(|state| state == "completed"), "{states:?}");
    // Five failures open it. Within a second all nodes know: until then each of the two slots of each node calls every
    // 50 ms. After that there is one probe at most in each cool-down.
    let allowed = 5 + 2 * 2 * 20 + lasted.as_secs() as usize + 1;
    let counted = calls_while_off.load(Ordering::SeqCst);
    assert!(counted <= allowed, "{counted} calls in {lasted:?}, {allowed} are allowed");
    assert!(counted >= 5, "{counted} calls: the breaker opened too soon");
    assert_eq!(world.stored("LONGSHORE_DLQ").await, 0);
    until(&mut events, "breaker_half_open", "call").await;
    until(&mut events, "breaker_closed", "call").await;
    assert!(one.stop().await.success() && other.stop().await.success());
    let calls = handler.calls();
    world.history(&all, calls).await.assert_sound();
}

/// Given a breaker that an operator has opened, when jobs come, then they wait, each with one `deferred`, and have used
/// no attempt; also after every node was restarted. Once it is reset they are done.
#[tokio::test]
async fn a_trip_outlasts_a_restart_and_costs_no_attempt() {
    let world = world().await;
    let node = node(&world, "failures = 5").start().await;
    let (handler, fails) = flaky(&world, "call", 503).await;
    fails.store(false, Ordering::SeqCst);
    let which = json!({"tenant": "default", "type": "call"});
    let mut events = system_events(&world).await;

    let tripped = world.try_request("_all", "breakers.trip", which.clone()).await.unwrap();
    assert_eq!((tripped["state"].clone(), tripped["cause"].clone()), (json!("open"), json!("trip")));
    let opened = until(&mut events, "breaker_opened", "call").await;
    assert!(opened.subject.ends_with("breaker_opened._.n1.call"), "{}", opened.subject);
    let runs = world.publish("call").many((0..10).map(|number| json!(number))).await;
    for run in &runs {
        world.eventually_reads(&run.run_id, "enqueued\ndeferred breaker_open").await;
    }
    assert!(node.stop().await.success());
    node.restart().await;
    let late = world.publish("call").json(json!("late")).await;
    world.eventually_reads(&late, "enqueued\ndeferred breaker_open").await;
    assert_eq!(handler.calls().len(), 0);

    let reset = world.try_request("_all", "breakers.reset", which).await.unwrap();
    assert_eq!(reset["state"], "closed");
    let states = world.ends(&runs, WITHIN).await;
    assert!(states.iter().all(|state| state == "completed"), "{states:?}");
    world.eventually_reads(&runs[3].run_id, "enqueued\ndeferred breaker_open\nstarted 1\ncompleted 1").await;
    assert_eq!(world.wait(&late).await.attempt, 1);
    assert!(node.stop().await.success());
}

/// Given a type whose breaker is open, when its jobs cannot start on the node that opened it, then neither can they on
/// another node, a second later.
#[tokio::test]
async fn a_breaker_that_opens_on_one_node_is_open_on_all() {
    let world = world().await;
    let of_queue = |queue: &str| node(&world, "failures = 3").with(&format!("queues.{queue}"), "concurrency = 4");
    let (one, other) = (of_queue("one").start().await, of_queue("other").start().await);
    let (handler, _fails) = flaky(&world, "call", 503).await;
    let mut events = system_events(&world).await;

    world.publish("call").queue("one").many((0..3).map(|number| json!(number))).await;
    until(&mut events, "breaker_opened", "call").await;
    let asked = handler.calls().len();
    assert_eq!(is_in_state(&world, "call", "open").await["failures"], 3, "those that opened it");
    tokio::time::sleep(Duration::from_secs(1)).await;
    let run = world.publish("call").queue("other").json(json!({})).await;
    world.eventually_reads(&run, "enqueued\ndeferred breaker_open").await;

    assert_eq!(handler.calls().len(), asked);
    assert!(one.stop().await.success() && other.stop().await.success());
}

/// Given failures on two nodes, each fewer than open a breaker, when together they are as many, then it opens.
#[tokio::test]
async fn failures_of_all_nodes_are_counted_together() {
    let world = world().await;
    let of_queue = |queue: &str| node(&world, "failures = 4").with(&format!("queues.{queue}"), "concurrency = 4");
    let (one, other) = (of_queue("one").start().await, of_queue("other").start().await);
    let (_handler, _fails) = flaky(&world, "call", 503).await;
    for queue in ["one", "other"] {
        let once = world.publish("call").queue(queue).header("Longshore-Max-Attempts", "1");
        once.many((0..2).map(|number| json!(number))).await;
    }
    is_in_state(&world, "call", "open").await;
    assert!(one.stop().await.success() && other.stop().await.success());
}

/// Given jobs that fail permanently, when there are many of them, then the service counts as sound, unless the type's
/// setting says otherwise.
#[tokio::test]
async fn permanent_errors_open_a_breaker_only_where_that_is_set() {
    let world = world().await;
    let node = node(&world, "failures = 3").with("types.strict", &breaker("failures = 3, count_permanent = true"));
    let node = node.start().await;
    let (handler, _fails) = flaky(&world, "call", 422).await;
    let (_strict, _fails) = flaky(&world, "strict", 422).await;
    let jobs = world.publish("call").many((0..20).map(|number| json!(number))).await;
    let states = world.ends(&jobs, WITHIN).await;
    assert!(states.iter().all(|state| state == "dead"), "{states:?}");
    assert_eq!((handler.calls().len(), listed(&world, "call").await), (20, None));

    world.publish("strict").many((0..20).map(|number| json!(number))).await;
    is_in_state(&world, "strict", "open").await;
    assert!(node.stop().await.success());
}

/// Given a service that fails half of the time, when its share of failures is too large, then its breaker opens, though
/// there were never many failures in a row.
#[tokio::test]
async fn the_share_of_failures_opens_a_breaker() {
    let world = world().await;
    let node = node(&world, "failures = 1000, ratio = 0.4, min_calls = 20, window = '60s'").start().await;
    let calls = Arc::new(AtomicUsize::new(0));
    let handler = world.handler("call").start(move |_| {
        let fails = calls.fetch_add(1, Ordering::SeqCst).is_multiple_of(2);
        async move { if fails { Reply::error(503, "every other time") } else { Reply::json(json!(1)) } }
    });
    let handler = handler.await;
    world.publish("call").many((0..15).map(|number| json!(number))).await;
    world.publish("call").many((0..30).map(|number| json!(number))).await;
    let breaker = is_in_state(&world, "call", "open").await;
    assert_eq!(breaker["cause"], "ratio");
    assert!(breaker["failures"].as_u64().unwrap() >= 8, "{breaker}");
    assert!(handler.calls().len() >= 20, "{:?}", handler.calls().len());
    assert!(node.stop().await.success());
}

/// Given a node that is killed while its probe runs, when the probe's lease is over, then another node probes, and the
/// breaker closes.
#[tokio::test]
async fn the_probe_of_a_node_that_died_comes_back() {
    let world = world().await;
    let settings = "failures = 3, cool_down = '500ms', max_cool_down = '500ms'";
    let one = node(&world, settings).start().await;
    let (state, hangs) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(true)));
    let (called, hanging) = (Arc::clone(&state), Arc::clone(&hangs));
    let handler = world.handler("call").start(move |_| {
        let (number, hanging) = (called.fetch_add(1, Ordering::SeqCst), Arc::clone(&hanging));
        async move {
            match number {
                0..3 => Reply::error(503, "out of order"),
                _ => {
                    while hanging.load(Ordering::SeqCst) {
                        tokio::time::sleep(Duration::from_millis(20)).await;
                    }
                    Reply::json(json!(1))
                }
            }
        }
    });
    let handler = handler.await;
    let mut events = system_events(&world).await;
    let runs = world.publish("call").many((0..10).map(|number| json!(number))).await;
    until(&mut events, "breaker_half_open", "call").await;
    handler.called(4).await;
    one.kill9().await;
    hangs.store(false, Ordering::SeqCst);

    let other = node(&world, settings).start().await;
    until(&mut events, "breaker_closed", "call").await;
    let states = world.ends(&runs, WITHIN).await;
    assert!(states.iter().all(|state| state == "completed"), "{states:?}");
    assert!(other.stop().await.success());
}

/// Given a type that has a breaker per key, when the service of one key fails, then jobs of other keys are done, also
/// those behind many that wait; and the jobs that waited are done once it works again.
#[tokio::test]
async fn a_key_whose_service_fails_holds_up_no_other_key() {
    let world = world().await;
    let settings = "failures = 3, cool_down = '500ms', max_cool_down = '500ms', per_key = true";
    let node = node(&world, settings).start().await;
    let fails = Arc::new(AtomicBool::new(true));
    let failing = Arc::clone(&fails);
    let handler = world.handler("call").start(move |job| {
        let is_bad = job.json() == "bad" && failing.load(Ordering::SeqCst);
        async move { if is_bad { Reply::error(503, "out of order") } else { Reply::json(json!(1)) } }
    });
    let _handler = handler.await;
    let of = |host: &'static str| world.publish("call").header("Longshore-Limit-Key", host);
    let bad = of("bad.example").many((0..100).map(|_| json!("bad"))).await;
    is_in_state(&world, "call", "open").await;
    let good = of("good.example").many((0..100).map(|_| json!("good"))).await;
    let keyless = world.publish("call").many((0..20).map(|_| json!("good"))).await;
    for jobs in [&good, &keyless] {
        let states = world.ends(jobs, WITHIN).await;
        assert!(states.iter().all(|state| state == "completed"), "{states:?}");
    }
    let breaker = listed(&world, "call").await.unwrap();
    assert_eq!((breaker["key"].as_str(), breaker["state"] != "closed"), (Some("bad.example"), true), "{breaker}");
    fails.store(false, Ordering::SeqCst);
    let states = world.ends(&bad, WITHIN).await;
    assert!(states.iter().all(|state| state == "completed"), "{states:?}");
    assert!(node.stop().await.success());
}

/// Given a run whose retry is scheduled, when its breaker opens before the retry is due, then the retry waits as well,
/// and is the second attempt when it starts.
#[tokio::test]
async fn a_retry_that_falls_due_waits_too() {
    let world = world().await;
    let node = node(&world, "failures = 5").start().await;
    let (handler, fails) = flaky(&world, "call", 503).await;
    let which = json!({"tenant": "default", "type": "call"});
    let run = world.publish("call").json(json!({})).await;
    handler.called(1).await;
    let hour = json!({"tenant": "default", "type": "call", "until": crate::in_future(Duration::from_secs(3_600))});
    world.try_request("_all", "breakers.trip", hour).await.unwrap();
    let published = "enqueued\nstarted 1\nfailed 1 retryable\ndeferred breaker_open";
    world.eventually_reads(&run, published).await;
    fails.store(false, Ordering::SeqCst);
    assert_eq!(handler.calls().len(), 1);
    world.try_request("_all", "breakers.reset", which).await.unwrap();
    assert_eq!(world.wait(&run).await.attempt, 2);
    world.eventually_reads(&run, &format!("{published}\nstarted 2\ncompleted 2")).await;
    assert!(node.stop().await.success());
}

/// Given the endpoints of breakers, when a tenant asks, then it sees its own breakers and gives no orders; and an order
/// to a type without breakers is refused.
#[tokio::test]
async fn tenants_see_their_breakers_and_operators_order_them() {
    let world = world().await;
    let node = node(&world, "failures = 3").start().await;
    let trip = |tenant: &str| json!({"tenant": tenant, "type": "call"});
    for tenant in ["acme", "other"] {
        world.try_request("_all", "breakers.trip", trip(tenant)).await.unwrap();
    }
    let own = world.try_request("acme", "breakers.list", json!({})).await.unwrap();
    assert_eq!(own["breakers"].as_array().map(Vec::len), Some(1), "{own}");
    assert_eq!(own["breakers"][0]["tenant"], "acme");
    let first = world.try_request("_all", "breakers.list", json!({"limit": 1})).await.unwrap();
    let second = json!({"limit": 1, "cursor": first["cursor"]});
    let second = world.try_request("_all", "breakers.list", second).await.unwrap();
    let tenants = [&first, &second].map(|page| page["breakers"][0]["tenant"].as_str().unwrap().to_owned());
    assert_eq!((tenants, &second["cursor"]), (["acme".to_owned(), "other".to_owned()], &Value::Null));

    let refused = async |tenant: &str, endpoint: &str, body: Value| {
        let error = world.try_request(tenant, endpoint, body).await.unwrap_err();
        (error.code, error.message)
    };
    for endpoint in ["breakers.trip", "breakers.reset"] {
        assert_eq!(refused("acme", endpoint, trip("acme")).await.0, 403, "{endpoint}");
        let (code, message) = refused("_all", endpoint, json!({"tenant": "acme", "type": "noop"})).await;
        assert!(code == 409 && message.starts_with("type: "), "{endpoint}: {code} {message}");
        let (code, message) = refused("_all", endpoint, json!({"type": "call"})).await;
        assert!(code == 400 && message.contains("tenant"), "{endpoint}: {code} {message}");
    }
    assert_eq!(refused("acme", "breakers.list", json!({"tenant": "other"})).await.0, 403);
    let past = json!({"tenant": "acme", "type": "call", "until": "2020-01-01T00:00:00Z"});
    assert_eq!(refused("_all", "breakers.trip", past).await.0, 400);
    let shown = say(&world, "breakers list --tenant _all").await.out;
    assert!(shown.lines().count() == 3 && shown.contains("acme") && shown.contains("open"), "{shown}");
    let closed = world.command(["breakers", "reset", "call", "--tenant", "acme"]).output().await.unwrap();
    assert_eq!(String::from_utf8_lossy(&closed.stdout).trim(), "call: closed");
    assert!(node.stop().await.success());
}
