//! What happens to runs is followed over HTTP: none is missed and none comes twice, whichever node dies. The client is
//! curl, which takes a stream as it is.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use longshore_harness::{Job, Node, NodeBuilder, Reply, World};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::net::TcpSocket;
use tokio::process::{Child, ChildStdout, Command};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

use crate::http::on_a_free_port;
use crate::{served_by, times, workers, world};

/// A limit for hopeless cases.
const WITHIN: Duration = Duration::from_secs(120);

/// A frame of a stream.
#[derive(Debug, Clone, PartialEq)]
struct Frame {
    id: String,
    event: String,
    data: Value,
}

impl Frame {
    fn at(&self) -> (u64, u32) {
        let (sequence, line) = self.id.split_once('.').unwrap();
        (sequence.parse().unwrap(), line.parse().unwrap())
    }
}

/// A client that follows a stream.
struct Follower {
    curl: Child,
    lines: Lines<BufReader<ChildStdout>>,
    last_id: String,
}

impl Follower {
    /// Follows, and returns once the answer has begun: what happens from then on is in the stream.
    async fn of(address: SocketAddr, path: &str, last_id: Option<&str>) -> Self {
        let mut curl = Command::new("curl");
        curl.args(["-sSN", "--max-time", "300"]);
        if let Some(id) = last_id {
            curl.args(["-H", &format!("Last-Event-ID: {id}")]);
        }
        curl.arg(format!("http://{address}{path}")).stdout(Stdio::piped()).kill_on_drop(true);
        let mut curl = curl.spawn().unwrap();
        let mut lines = BufReader::new(curl.stdout.take().unwrap()).lines();
        let first = tokio::time::timeout(WITHIN, lines.next_line()).await.unwrap().unwrap().unwrap_or_default();
        let retry: u32 = first.strip_prefix("retry: ").unwrap_or_else(|| panic!("{path}: {first}")).parse().unwrap();
        assert!((1_500..=2_500).contains(&retry), "{retry}");
        Self { curl, lines, last_id: last_id.unwrap_or_default().to_owned() }
    }

    /// The next frame; `None`: the node ended the stream, or died.
    async fn next(&mut self) -> Option<Frame> {
        let (mut event, mut data) = (None, None);
        // Comments come meanwhile, and are no frames.
        let deadline = Instant::now() + WITHIN;
        loop {
            let line = timeout_at(deadline, self.lines.next_line()).await.expect("a frame in time");
            let Some(line) = line.unwrap() else {
                let _ = self.curl.wait().await;
                return None;
            };
            match line.split_once(": ") {
                Some(("id", id)) => self.last_id = id.to_owned(),
                Some(("event", name)) => event = Some(name.to_owned()),
                Some(("data", json)) => data = Some(serde_json::from_str(json).unwrap()),
                _ if line.is_empty() && event.is_some() => {
                    return Some(Frame { id: self.last_id.clone(), event: event?, data: data? });
                }
                _ => {}
            }
        }
    }

    async fn until(&mut self, event: &str) -> Frame {
        loop {
            let frame = self.next().await.unwrap_or_else(|| panic!("the stream ended before {event}"));
            if frame.event == event {
                return frame;
            }
        }
    }

    async fn rest(mut self) -> Vec<Frame> {
        let mut frames = Vec::new();
        while let Some(frame) = self.next().await {
            frames.push(frame);
        }
        frames
    }
}

fn names(frames: &[Frame]) -> Vec<&str> {
    frames.iter().map(|frame| frame.event.as_str()).collect()
}

/// The status and the body of an answer that ends.
async fn answer(address: SocketAddr, path: &str, last_id: Option<&str>) -> (u16, String) {
    let mut curl = Command::new("curl");
    curl.args(["-sS", "--max-time", "60", "-w", "\n%{http_code}"]);
    if let Some(id) = last_id {
        curl.args(["-H", &format!("Last-Event-ID: {id}")]);
    }
    let said = curl.arg(format!("http://{address}{path}")).output().await.unwrap();
    let text = String::from_utf8(said.stdout).unwrap();
    let (body, status) = text.rsplit_once('\n').unwrap();
    (status.parse().unwrap(), body.to_owned())
}

fn node(world: &World) -> NodeBuilder<'_> {
    on_a_free_port(world.node()).with("node", "lease = '2s'")
}

async fn two_nodes(world: &World) -> (Node, Node) {
    (node(world).name("n1").start().await, node(world).name("n2").start().await)
}

/// Given a running job whose handler reports and logs, when its run is followed, then its events come from the first to
/// its end; from any event on what follows that, on any node; and a client that had the end gets 204.
#[tokio::test]
async fn a_run_is_followed_from_its_beginning_to_its_end() {
    let world = world().await;
    let (first, second) = two_nodes(&world).await;
    let go_on = Arc::new(Notify::new());
    let gate = Arc::clone(&go_on);
    let _handler = world
        .handler("walk")
        .start(move |job: Job| {
            let gate = Arc::clone(&gate);
            async move {
                job.signal("progress", r#"{"step":1}"#).await;
                job.signal("log", "half of a thought").await;
                gate.notified().await;
                job.signal("progress", r#"{"step":2}"#).await;
                Reply::json(json!({"ok": true}))
            }
        })
        .await;
    let mut live = world.live_events("default").await;
    let run = world.publish("walk").json(json!({})).await;
    world.publish("noop").json(json!({})).await;
    live.until_published("started", &run).await;
    let path = format!("/v1/runs/{run}/stream");

    let mut follower = Follower::of(first.http(), &path, None).await;
    let mut before = vec![follower.next().await.unwrap()];
    while before.last().unwrap().event != "log" {
        before.push(follower.next().await.unwrap());
    }
    assert_eq!(names(&before), ["enqueued", "started", "progress", "log"]);
    assert_eq!(before[2].data["progress"], json!({"step": 1}));
    assert_eq!(before[3].data["line"], "half of a thought");
    go_on.notify_one();
    let after = follower.rest().await;

    assert_eq!(names(&after), ["progress", "completed", "end"]);
    assert_eq!(after[1].data["result"], json!({"ok": true}));
    let all: Vec<Frame> = before.into_iter().chain(after).collect();
    assert!(all[..6].iter().all(|frame| frame.data["run_id"] == run.as_str()));
    assert!(all[..6].windows(2).all(|two| two[0].at() < two[1].at()), "{all:?}");
    let end = all[6].id.clone();
    assert_eq!(end, all[5].id);
    for node in [&first, &second] {
        assert_eq!(Follower::of(node.http(), &path, None).await.rest().await, all, "the same again");
        let later = Follower::of(node.http(), &path, Some(&all[2].id)).await.rest().await;
        assert_eq!(later, all[3..], "behind that event");
        assert_eq!(answer(node.http(), &path, Some(&end)).await, (204, String::new()));
    }
    // From an event of the tenant's that came after its end there is nothing more to come, and it need not be waited
    // for.
    let other = world.publish("noop").json(json!({})).await;
    let others = Follower::of(first.http(), &format!("/v1/runs/{other}/stream"), None).await.rest().await;
    let further = Follower::of(first.http(), &path, Some(&others.last().unwrap().id)).await;
    let further = tokio::time::timeout(Duration::from_secs(15), further.rest()).await.unwrap();
    assert_eq!(names(&further), ["end"]);
    assert_eq!(answer(first.http(), &path, Some(&further[0].id)).await.0, 204);
    assert_eq!(answer(first.http(), "/v1/runs/main-p5-99/stream", None).await.0, 404);
    let (status, body) = answer(first.http(), &path, Some("seven")).await;
    assert!(status == 400 && body.contains("Last-Event-ID"), "{status} {body}");
}

/// Given a run that became a dead letter, when it is replayed, then who had its end gets what came after it.
#[tokio::test]
async fn the_end_of_a_replayed_run_is_its_last_one() {
    let world = world().await;
    let node = node(&world).with("types.flaky", "handler = 'fail'\nmax_attempts = 1").start().await;
    let run = world.publish("flaky").json(json!({"kind": "permanent"})).await;
    let path = format!("/v1/runs/{run}/stream");
    let first = Follower::of(node.http(), &path, None).await.rest().await;
    assert_eq!(names(&first), ["enqueued", "started", "failed", "dlq", "end"]);
    let end = &first[4].id;
    assert_eq!(answer(node.http(), &path, Some(end)).await.0, 204);

    world.request("dlq.replay", json!({"run_id": run})).await;

    let second = Follower::of(node.http(), &path, Some(end)).await.rest().await;
    assert_eq!(names(&second), ["replayed", "enqueued", "started", "failed", "dlq", "end"]);
    let whole = Follower::of(node.http(), &path, None).await.rest().await;
    assert_eq!(names(&whole)[..4], ["enqueued", "started", "failed", "dlq"]);
    assert_eq!(whole[4..], second);
}

/// Given a run that waits and whose type keeps only its failures, when it completes at once, so that no event and no
/// record says so, then its stream ends all the same, and a client that had that gets 204.
#[tokio::test]
async fn the_stream_of_a_run_of_which_nothing_is_kept_ends() {
    let world = world().await;
    let node = workers(node(&world), 1).with("types.brief", &served_by("noop", "history = 'failures'")).start().await;
    let go_on = Arc::new(Notify::new());
    let gate = Arc::clone(&go_on);
    let handler = world.handler("gate").start(move |_: Job| {
        let gate = Arc::clone(&gate);
        async move {
            gate.notified().await;
            Reply::json(json!(null))
        }
    });
    let handler = handler.await;
    world.publish("gate").json(json!(1)).await;
    handler.called(1).await;
    let run = world.publish("brief").json(json!(1)).await;
    let path = format!("/v1/runs/{run}/stream");
    let follower = Follower::of(node.http(), &path, None).await;

    go_on.notify_one();

    let frames = follower.rest().await;
    let end = frames.last().unwrap();
    assert_eq!((end.event.as_str(), &end.data["run_id"]), ("end", &json!(run)), "{frames:?}");
    assert_eq!(answer(node.http(), &path, Some(&end.id)).await, (204, String::new()));
}

/// Given streams of all events with filters, when jobs of two tenants run, then each stream has its own and no others.
#[tokio::test]
async fn a_stream_has_what_was_asked_for_and_nothing_of_other_tenants() {
    let world = world().await;
    let (first, second) = two_nodes(&world).await;
    let http = second.http();
    let mut ends = Follower::of(http, "/v1/events?event=completed,dlq&type=noop,x.%3E", None).await;
    let mut tagged = Follower::of(http, "/v1/events?tag=blue&event=enqueued", None).await;
    let mut acme = Follower::of(first.http(), "/v1/events?tenant=acme&event=completed", None).await;
    let mut other_queue = Follower::of(http, "/v1/events?queue=bulk", None).await;

    let echo = world.publish("echo").json(json!(1)).await;
    let blue = world.publish("noop").header("Longshore-Tags", "blue,x").json(json!(1)).await;
    world.publish("noop").tenant("acme").json(json!(1)).await;
    let last = world.publish("noop").json(json!(1)).await;

    let of_ends = [ends.next().await.unwrap(), ends.next().await.unwrap()];
    let runs: BTreeSet<&str> = of_ends.iter().filter_map(|frame| frame.data["run_id"].as_str()).collect();
    assert_eq!(runs, BTreeSet::from([blue.as_str(), last.as_str()]), "not {echo}");
    assert_eq!(tagged.next().await.unwrap().data["run_id"], blue.as_str());
    assert_eq!(acme.next().await.unwrap().data["tenant"], "acme");
    let quiet = tokio::time::timeout(Duration::from_millis(300), other_queue.next()).await;
    assert!(quiet.is_err(), "{quiet:?}");
    // From a time on, or from an event on, history comes first.
    let mut since = Follower::of(http, "/v1/events?since=2026-01-01T00:00:00Z&event=enqueued", None).await;
    let all = [since.next().await.unwrap(), since.next().await.unwrap(), since.next().await.unwrap()];
    let runs: BTreeSet<&str> = all.iter().filter_map(|frame| frame.data["run_id"].as_str()).collect();
    assert_eq!(runs, BTreeSet::from([echo.as_str(), blue.as_str(), last.as_str()]));
    let mut after = Follower::of(http, "/v1/events?event=enqueued", Some(&all[0].id)).await;
    assert_eq!([after.next().await.unwrap(), after.next().await.unwrap()], all[1..]);
    for wrong in ["event=none", "type=a%20b", "queue=%2A", "since=yesterday", "no_such=1", "run_id=a.b"] {
        let (status, body) = answer(http, &format!("/v1/events?{wrong}"), None).await;
        assert!(status == 400 && body.contains(wrong.split('=').next().unwrap()), "{wrong}: {status} {body}");
    }
}

/// Given jobs that run on two nodes, when the node that a client follows is killed and the client goes on at the other,
/// and when the server is killed and started again, then the client has each event of each run once.
/// `LONGSHORE_TEST_FOLLOWED_JOBS=3400 LONGSHORE_TEST_FAULTS=16` for ten thousand events.
#[tokio::test]
async fn a_client_that_goes_on_elsewhere_misses_nothing_and_has_nothing_twice() {
    let faults = times("LONGSHORE_TEST_FAULTS", 2);
    let each = times("LONGSHORE_TEST_FOLLOWED_JOBS", 300) / (faults + 1);
    let world = world().await;
    let nodes = <[Node; 2]>::from(two_nodes(&world).await);
    let (mut on, mut jobs, mut frames, mut ends) = (0, Vec::new(), Vec::<Frame>::new(), 0);
    let mut follower = Follower::of(nodes[on].http(), "/v1/events", None).await;
    for fault in 0..=faults {
        // Some end after half of them have, so the client has not had everything when a fault comes.
        let bodies = (0..each).map(|number| json!({"ms": number % 50 * 10}));
        jobs.extend(world.publish("sleep").many(bodies).await);
        let is_last = fault == faults;
        let until = if is_last { jobs.len() } else { jobs.len() - each / 2 };
        while ends < until {
            match follower.next().await {
                Some(frame) => {
                    ends += usize::from(frame.event == "completed");
                    frames.push(frame);
                }
                None => follower = Follower::of(nodes[on].http(), "/v1/events", Some(&follower.last_id)).await,
            }
        }
        match fault % 2 {
            _ if is_last => {}
            0 => {
                nodes[on].kill9().await;
                nodes[on].restart().await;
                on = 1 - on;
            }
            _ => {
                world.server().kill9().await;
                world.server().restart().await.unwrap();
            }
        }
    }

    assert!(frames.windows(2).all(|two| two[0].at() < two[1].at()), "in the order of the log");
    let had: Vec<&str> = frames.iter().filter_map(|frame| frame.data["id"].as_str()).collect();
    let once: BTreeSet<&str> = had.iter().copied().collect();
    assert_eq!(had.len(), once.len(), "none twice");
    let (end, _) = frames.last().unwrap().at();
    let log = world.event_log("default").await;
    let logged = log.iter().filter(|logged| logged.sequence < end);
    let missed: Vec<&str> = logged.map(|logged| logged.event.id.as_str()).filter(|id| !once.contains(id)).collect();
    assert!(missed.is_empty(), "{missed:?}");
    println!("{} events, {faults} faults", frames.len());
    for job in &jobs {
        let of_run = |frame: &&Frame| frame.data["run_id"] == job.run_id.as_str();
        let events: Vec<&str> = frames.iter().filter(of_run).map(|frame| frame.event.as_str()).collect();
        let once = |name: &str| events.iter().filter(|event| **event == name).count() == 1;
        assert!(once("enqueued") && once("completed") && events.contains(&"started"), "{}: {events:?}", job.run_id);
    }
}

/// Given a log that has lost its oldest events, when a client comes with an id from before that, then the first frame
/// says so, with the oldest id that there is, and what there is follows.
#[tokio::test]
async fn a_client_that_was_away_for_too_long_is_refused_its_place() {
    let world = world().await;
    let node = node(&world).start().await;
    let mut follower = Follower::of(node.http(), "/v1/events", None).await;
    let mut old = String::new();
    for _ in 0..3 {
        world.publish("noop").json(json!(1)).await;
        old = follower.until("completed").await.id;
    }
    let stream = world.jetstream().get_stream("LONGSHORE_EVENTS").await.unwrap();
    stream.purge().await.unwrap();
    let last = world.publish("noop").json(json!(1)).await;
    let newer = follower.until("completed").await;
    assert_eq!(newer.data["run_id"], last.as_str());

    let mut behind = Follower::of(node.http(), "/v1/events", Some("1.1")).await;

    let reset = behind.next().await.unwrap();
    assert_eq!((reset.event.as_str(), &reset.data["reason"]), ("reset", &json!("gone")));
    let next = behind.next().await.unwrap();
    assert_eq!(reset.data["oldest"], next.id.as_str(), "{next:?} after {old}");
    assert_eq!(next.data["run_id"], last.as_str());
}

/// Given a client that does not read, when more happens than its stream may hold, then it loses the stream and nobody
/// else notices.
#[tokio::test]
async fn a_client_that_does_not_read_harms_nobody() {
    const JOBS: usize = 3_000;
    const OTHERS: usize = 100;
    let world = world().await;
    let node = node(&world).start().await;
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4_096).unwrap();
    let mut lazy = socket.connect(node.http()).await.unwrap();
    lazy.write_all(b"GET /v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
    let mut head = [0; 15];
    lazy.read_exact(&mut head).await.unwrap();
    assert_eq!(&head, b"HTTP/1.1 200 OK");
    let mut reader = Follower::of(node.http(), "/v1/events?event=completed&type=noop", None).await;
    let payload = "x".repeat(3_500);

    for _ in 0..OTHERS / 10 {
        world.publish("echo").many((0..JOBS * 10 / OTHERS).map(|_| json!(payload))).await;
        world.publish("noop").many((0..10).map(|_| json!(1))).await;
    }

    let mut runs = BTreeSet::new();
    while runs.len() < OTHERS {
        let frame = reader.next().await.expect("the reader keeps its stream");
        assert!(runs.insert(frame.data["run_id"].as_str().unwrap().to_owned()), "{frame:?}");
    }
    // Its stream is closed; if it begins to read soon enough, it learns why.
    let mut read = Vec::new();
    let ended = tokio::time::timeout(WITHIN, lazy.read_to_end(&mut read)).await.expect("the node closes it");
    let text = String::from_utf8_lossy(&read);
    assert!(text.matches("event: completed").count() < JOBS, "it has not had everything");
    let is_said = text.contains("event: reset\ndata: {\"reason\":\"slow\"}");
    assert!(is_said || ended.is_err() || !text.ends_with("0\r\n\r\n"), "{}", &text[text.len().saturating_sub(400)..]);
}

/// Given a client that follows, when its node drains, then it learns of that before the node ends.
#[tokio::test]
async fn a_node_that_drains_says_so_to_who_follows() {
    let world = world().await;
    let (first, second) = two_nodes(&world).await;
    let mut live = world.live_events("default").await;
    let run = world.publish("sleep").header("Longshore-Run-Id", "long").json(json!({"ms": 3_000})).await;
    live.until_published("started", &run).await;
    let path = format!("/v1/runs/{run}/stream");
    let mut follower = Follower::of(first.http(), &path, None).await;
    let started = follower.until("started").await;

    first.sigterm();

    assert_eq!(follower.until("bye").await.data, json!({}));
    assert!(follower.next().await.is_none());
    let rest = Follower::of(second.http(), &path, Some(&started.id)).await.rest().await;
    assert_eq!(names(&rest).last(), Some(&"end"), "{rest:?}");
    first.wait_exit(WITHIN).await;
}
