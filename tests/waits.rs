//! Whatever a job waits for, it goes on, whichever fault comes, and no limit is passed for it.
//!
//! Each test is one fault, and side by side jobs that wait for every reason there is. The fault strikes once jobs of
//! each reason are known to wait, and what they wait for is held by the node that it strikes. Then all of them end,
//! at the default time limits of a minute, and well before such a limit could have ended a wait. Each test prints its
//! rows of the matrix: the reason, how many jobs there are, how many have ended, and how long after the fault's end the
//! last one did. On a machine that does nothing else, that is within the lease and fifteen seconds:
//!
//! ```sh
//! LONGSHORE_TEST_GOES_ON=15 cargo test --test promises waits -- --nocapture --test-threads 1
//! ```

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Write as _;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use longshore_harness::history::{Call, History, Interruption, Limit, Ordered, Pause, Recurring, Rules, Silence};
use longshore_harness::repeated_calls::with_nodes;
use longshore_harness::{Handler, Job, Node, NodeBuilder, Receipt, Record, Reply, Scrape, World, eventually};
use serde_json::{Value, json};
use tokio::sync::{Semaphore, SemaphorePermit, watch};

use crate::http::on_a_free_port;
use crate::limits::Starts;
use crate::{FREEZE, in_future, times, world};

const LEASE: Duration = Duration::from_secs(2);
/// How long after the fault's end and a lease all jobs have ended: less than a time limit, on a loaded machine as well.
fn goes_on() -> Duration {
    Duration::from_secs(times("LONGSHORE_TEST_GOES_ON", 45) as u64)
}
/// How long anything else may take on a loaded machine.
const WITHIN: Duration = Duration::from_secs(60);
/// How long the server is away, where that is to be longer than a lease.
const AWAY: Duration = Duration::from_secs(5);
/// How long nodes may need to reconnect to a server that is back.
const RECONNECT: SignedDuration = SignedDuration::from_secs(1);
/// How long jobs wait that wait for a time: longer than it takes until the fault, and past its end.
const WAIT: Duration = Duration::from_secs(6);
/// How often the schedule fires.
const EVERY: Duration = Duration::from_secs(1);
const KEY: &str = "Longshore-Concurrency-Key";

#[derive(Clone, Copy, PartialEq)]
enum Fault {
    NodeBack,
    NodeGone,
    AllNodes,
    Frozen,
    ServerBack,
    ServerAway,
}

/// Jobs that wait for the same.
struct Row {
    /// What for.
    reason: &'static str,
    jobs: Vec<Receipt>,
    /// How they may end.
    ends: &'static [&'static str],
    /// Those that must complete, where that is not all.
    completed: Vec<String>,
}

impl Row {
    fn of(reason: &'static str, jobs: Vec<Receipt>) -> Row {
        Row { reason, jobs, ends: &["completed"], completed: Vec::new() }
    }
}

/// What the test knows of a fault.
struct Struck {
    over: Timestamp,
    interruptions: Vec<Interruption>,
    silences: Vec<Silence>,
}

/// Everything there is beside the jobs.
struct Stage {
    _at_once: SemaphorePermit<'static>,
    world: World,
    nodes: Vec<Node>,
    handlers: BTreeMap<&'static str, Handler>,
    /// Whether the fault has struck: handlers that hold up others let go.
    struck: watch::Sender<bool>,
    rows: Vec<Row>,
    pauses: Vec<Pause>,
    /// When the schedule is due for the first time.
    first: Timestamp,
}

/// These tests, which come one after the other, are the heaviest: more of them at once starve each other's nodes for
/// longer than their leases last.
static AT_ONCE: Semaphore = Semaphore::const_new(3);

/// Each type is there for one reason to wait.
const TYPES: [&str; 17] = [
    "key",
    "ordered",
    "type",
    "slots",
    "parked",
    "rate",
    "breaker",
    "paused",
    "resumed",
    "retry",
    "delay",
    "tick",
    "debounce",
    "held",
    "snoozed",
    "busy.drop",
    "busy.keep",
];

const SETTINGS: &str = "
[node]
lease = '2s'
[queues.main]
[queues.narrow]
concurrency = 1
[queues.fair]
concurrency = 4
[queues.bulk]
[types.ordered]
ordered = true
[types.type]
concurrency = 2
[types.inside]
handler = 'sleep'
concurrency = 2
[types.rate]
rate_limit = { rate = 4, per = '1s', burst = 2 }
[types.breaker]
breaker = { failures = 2, cool_down = '3s', max_cool_down = '3s' }
[types.\"busy.drop\"]
on_busy = 'drop_new'
[types.\"busy.keep\"]
on_busy = 'keep_newest'
[types.\"busy.cancel\"]
on_busy = 'cancel_running'
[types.flood]
handler = 'sleep'
history = 'failures'
";

/// A handler's answer. Until the fault has struck it does what the job says; afterwards every job succeeds.
async fn answer(job: Job, mut struck: watch::Receiver<bool>) -> Reply {
    let does = job.json();
    if !*struck.borrow() {
        match does["before"].as_str() {
            Some("fails") => return Reply::error(503, "not yet"),
            Some("fails late") => return Reply::error(500, "not yet").header("Longshore-Retry-After", "6s"),
            Some("snoozes") => return Reply::snooze("6s"),
            Some("holds") => return Reply::json(json!(null)).header("Longshore-Hold", "6s"),
            Some("blocks") => {
                while !*struck.borrow() {
                    let cancelled = tokio::select! {
                        _ = struck.wait_for(|struck| *struck) => break,
                        cancelled = asked(&job) => cancelled,
                    };
                    if cancelled {
                        return Reply::error(499, "cancelled");
                    }
                }
                // It goes on for a while beside the fault.
                for _ in 0..does["tenths"].as_u64().unwrap_or(0) {
                    job.signal("heartbeat", "").await;
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
            _ => {}
        }
    }
    tokio::time::sleep(Duration::from_millis(60)).await;
    Reply::json(json!(null))
}

/// Says that the handler is alive, and asks whether the run was cancelled.
async fn asked(job: &Job) -> bool {
    tokio::time::sleep(Duration::from_millis(400)).await;
    job.ask("heartbeat", "").await == Some(true)
}

async fn handler(world: &World, job_type: &str, slots: usize, struck: &watch::Sender<bool>) -> Handler {
    let struck = struck.subscribe();
    let handler = world.handler(job_type).announce("longshore.slots", &slots.to_string());
    handler.start(move |job| answer(job, struck.clone())).await
}

fn node<'w>(world: &'w World, fault: Fault) -> NodeBuilder<'w> {
    let node = on_a_free_port(world.node().config(SETTINGS));
    match fault {
        // What is on its way to or from a handler is lost with the server: before the time limit only silence says so.
        Fault::ServerBack | Fault::ServerAway => node.with("defaults", "heartbeat = '3s'"),
        _ => node,
    }
}

impl Stage {
    /// Handlers, one node that has started the first job of whatever holds up others, and then a second node.
    async fn set(fault: Fault) -> Stage {
        let at_once = AT_ONCE.acquire().await.unwrap();
        let world = world().await;
        let (struck, mut handlers) = (watch::Sender::new(false), BTreeMap::new());
        for job_type in TYPES.into_iter().chain(["busy.cancel"]) {
            let slots = match job_type {
                "parked" => 1,
                "slots" => 2,
                _ => 64,
            };
            handlers.insert(job_type, handler(&world, job_type, slots, &struck).await);
        }
        let nodes = vec![node(&world, fault).name("n1").start().await];
        let first = Timestamp::now();
        let mut stage =
            Stage { _at_once: at_once, world, nodes, handlers, struck, rows: Vec::new(), pauses: Vec::new(), first };
        stage.hold_up().await;
        stage.nodes.push(node(&stage.world, fault).name("n2").start().await);
        stage.slots_are_known().await;
        stage.pause().await;
        stage
    }

    /// Publishes jobs of one type, with a concurrency key if there is one.
    async fn publish(&self, job_type: &str, key: Option<&str>, jobs: impl IntoIterator<Item = Value>) -> Vec<Receipt> {
        let publish = self.world.publish(job_type);
        let publish = match key {
            Some(key) => publish.header(KEY, key),
            None => publish,
        };
        publish.many(jobs).await
    }

    /// Starts on the only node what others wait for.
    async fn hold_up(&mut self) {
        let block = |tenths| json!({"before": "blocks", "tenths": tenths});
        for (job_type, reason) in KEYED {
            let mut jobs = Vec::new();
            for key in KEYS {
                // One works on for longer than a lease lasts.
                let tenths = if key == KEYS[0] { 40 } else { 3 };
                jobs.extend(self.publish(job_type, Some(key), [block(tenths)]).await);
            }
            self.rows.push(Row::of(reason, jobs));
        }
        let counted = self.publish("type", None, [block(3), block(3)]).await;
        self.rows.push(Row::of("concurrency of a type", counted));
        let inside = self.publish("inside", None, [json!({"ms": 6_000}), json!({"ms": 6_000})]).await;
        self.rows.push(Row::of("concurrency of a type, in the node", inside));
        let full = self.publish("slots", None, [block(3), block(3)]).await;
        self.rows.push(Row::of("handler slots", full));
        let full = self.publish("parked", None, [block(3)]).await;
        self.rows.push(Row::of("parked", full));
        let opens = self.publish("breaker", None, (0..2).map(|_| json!({"before": "fails"}))).await;
        self.rows.push(Row::of("breaker", opens));
        let expected = KEYED.into_iter().map(|(job_type, _)| (job_type, KEYS.len()));
        for (job_type, calls) in expected.chain([("type", 2), ("slots", 2), ("parked", 1), ("breaker", 2)]) {
            self.handlers[job_type].called(calls).await;
        }
    }

    /// Waits until each node has heard of the slots that handlers have: before, it starts eight jobs of each of them,
    /// which of those that are published then it does not matter.
    async fn slots_are_known(&self) {
        for node in ["n1", "n2"] {
            eventually(&format!("the slots that {node} knows"), WITHIN, async || {
                let health = self.world.request_as("_all", "health", json!({"node": node})).await;
                let slots = |job_type: &str| {
                    let subject = format!("longshore.work.*.{job_type}");
                    let handlers = health["handlers"].as_array().into_iter().flatten();
                    handlers.filter(|handler| handler["subject"] == *subject).find_map(|of| of["slots"].as_u64())
                };
                if (slots("parked"), slots("slots")) == (Some(1), Some(2)) { Ok(()) } else { Err(health.to_string()) }
            })
            .await;
        }
    }

    /// Pauses what is to be paused. One pause ends by itself, the other one is ended after the fault.
    async fn pause(&mut self) {
        operate(&self.world, "queues.pause", json!({"queue": "bulk"})).await;
        let (from, until) = (Timestamp::now(), Timestamp::MAX);
        self.pauses.push(Pause { queue: Some("bulk".to_owned()), job_type: None, from, until });
        let until = in_future(2 * WAIT);
        operate(&self.world, "queues.pause", json!({"type": "paused", "until": until})).await;
        let (from, until) = (Timestamp::now(), until.parse().unwrap());
        self.pauses.push(Pause { queue: None, job_type: Some("paused".to_owned()), from, until });
    }

    fn row(&mut self, reason: &str) -> &mut Row {
        self.rows.iter_mut().find(|row| row.reason == reason).unwrap()
    }

    /// Publishes the jobs that wait for others, for a handler, a limit, an operator.
    async fn queue_up(&mut self) {
        for (job_type, reason) in KEYED {
            for key in KEYS {
                // Of the jobs that cancel each other one is at work when the fault strikes.
                let does = if job_type == "busy.cancel" { "blocks" } else { "works" };
                let jobs = (1..4).map(|number| json!({"number": number, "before": does}));
                let jobs = self.publish(job_type, Some(key), jobs).await;
                let row = self.row(reason);
                match job_type {
                    "busy.drop" | "busy.keep" | "busy.cancel" => {
                        row.ends = &["completed", "cancelled"];
                        let stays = if job_type == "busy.drop" { &row.jobs[0] } else { jobs.last().unwrap() };
                        row.completed.push(stays.run_id.clone());
                    }
                    _ => {}
                }
                row.jobs.extend(jobs);
            }
        }
        for (job_type, reason, count) in [
            ("type", "concurrency of a type", 18),
            ("slots", "handler slots", 22),
            ("parked", "parked", 24),
            ("breaker", "breaker", 10),
        ] {
            // The second node has slots of its own, and a breaker closes once a job succeeds.
            let job = match job_type {
                "slots" | "parked" => json!({"before": "blocks"}),
                "breaker" => json!({"before": "fails"}),
                _ => json!({}),
            };
            let jobs = self.publish(job_type, None, (0..count).map(|_| job.clone())).await;
            self.row(reason).jobs.extend(jobs);
        }
        let inside = self.publish("inside", None, (0..18).map(|_| json!({"ms": 100}))).await;
        self.row("concurrency of a type, in the node").jobs.extend(inside);
        let jobs = (0..20).map(|number| json!({"number": number}));
        let none = self.publish("nobody", None, jobs.clone()).await;
        self.rows.push(Row::of("no handler", none));
        let paused = self.publish("paused", None, jobs.clone()).await;
        self.rows.push(Row::of("pause until a time", paused));
        let resumed = self.world.publish("resumed").queue("bulk").many(jobs).await;
        self.rows.push(Row::of("pause of a queue, resumed", resumed));
    }

    /// Publishes the jobs that wait for a time, or for a worker.
    async fn put_off(&mut self) {
        let holds = self.publish("held", None, [json!({"before": "holds"})]).await;
        self.world.wait(&holds[0].run_id).await;
        let tick = json!({"id": "tick", "every": "1s", "type": "tick", "misfire_after_ms": 3_600_000});
        let schedule = self.world.request("schedules.put", tick).await;
        self.first = schedule["next_run"][0].as_str().unwrap().parse().unwrap();
        self.handlers["tick"].called(1).await;
        // By now every node knows of the hold: to those that did not call the handler, the news travels.
        let held = self.publish("held", None, (0..10).map(|number| json!({"number": number}))).await;
        self.rows.push(Row::of("hold", held));
        let retry = self.publish("retry", None, (0..20).map(|_| json!({"before": "fails late"}))).await;
        self.rows.push(Row::of("retry", retry));
        let snoozed = self.publish("snoozed", None, (0..10).map(|_| json!({"before": "snoozes"}))).await;
        self.rows.push(Row::of("snoozed", snoozed));
        let soon = self.world.publish("delay").header("Longshore-Delay", "6s");
        let mut delayed = soon.many((0..10).map(|number| json!(number))).await;
        for number in 0..10 {
            let job = json!({"type": "delay", "payload": number, "delay_ms": 2 * WAIT.as_millis() as u64});
            delayed.push(self.submitted(job).await);
        }
        self.rows.push(Row::of("delay", delayed));
        let mut changes = Row { ends: &["completed", "duplicate"], ..Row::of("debounce", Vec::new()) };
        for key in 0..5 {
            for change in 0..3 {
                let debounce = json!({"key": format!("document {key}"), "wait_ms": WAIT.as_millis() as u64});
                let job = json!({"type": "debounce", "payload": change, "debounce": debounce});
                changes.jobs.push(self.submitted(job).await);
            }
            changes.completed.push(changes.jobs.last().unwrap().run_id.clone());
        }
        self.rows.push(changes);
        self.handlers["retry"].called(20).await;
        self.handlers["snoozed"].called(10).await;
    }

    /// Publishes the jobs whose wait is short: behind others, or for a limit that lets some through in each second.
    async fn line_up(&mut self) {
        let rate = self.publish("rate", None, (0..14).map(|number| json!({"number": number}))).await;
        self.rows.push(Row::of("rate limit", rate));
        let workers = self.world.publish("sleep").queue("narrow").many((0..20).map(|_| json!({"ms": 300}))).await;
        self.rows.push(Row::of("worker", workers));
        let flood = self.world.publish("flood").queue("fair").tenant("flood");
        flood.many((0..1_100).map(|_| json!({"ms": 25}))).await;
        let quiet = self.world.publish("noop").queue("fair").tenant("quiet");
        self.rows.push(Row::of("fairness", quiet.many((0..20).map(|number| json!(number))).await));
    }

    async fn submitted(&self, job: Value) -> Receipt {
        let run_id = self.world.submit(job).await;
        let tenant = "default".to_owned();
        Receipt { tenant, run_id, stream: String::new(), sequence: 0, duplicate: false, at: Timestamp::now() }
    }

    /// Waits until the last job of this row that must complete says that it waits for this. On a machine that is very
    /// slow a wait for a time, or for a job of a given length, may be over before it was looked at.
    async fn last_waits(&self, reason: &str, waits_for: &str, may_be_over: bool) {
        let row = self.rows.iter().find(|row| row.reason == reason).unwrap();
        let must = |job: &&Receipt| row.completed.is_empty() || row.completed.contains(&job.run_id);
        self.waits(row.jobs.iter().rfind(must).unwrap(), waits_for, may_be_over).await;
    }

    /// The same of each job of this row.
    async fn each_waits(&self, reason: &str, waits_for: &str) {
        let row = self.rows.iter().find(|row| row.reason == reason).unwrap();
        let must = |job: &&Receipt| row.completed.is_empty() || row.completed.contains(&job.run_id);
        for job in row.jobs.iter().filter(must) {
            self.waits(job, waits_for, true).await;
        }
    }

    async fn waits(&self, job: &Receipt, waits_for: &str, may_be_over: bool) {
        eventually(&format!("a job that waits ({waits_for})"), WITHIN, async || {
            let answer = self.world.try_request(&job.tenant, "runs.get", json!({"run_id": job.run_id})).await;
            let answer = answer.map_err(|error| error.to_string())?;
            let is_over = may_be_over && answer["state"] == "completed";
            if is_over || answer["waiting_for"]["reason"] == waits_for { Ok(()) } else { Err(answer.to_string()) }
        })
        .await;
    }

    async fn strike(&mut self, fault: Fault) -> Struck {
        let from = Timestamp::now();
        let killed = |node: &Node| Interruption { node: Some(node.name().to_owned()), at: Timestamp::now() };
        let (one, other) = (&self.nodes[0], &self.nodes[1]);
        let (mut interruptions, mut silences) = (Vec::new(), Vec::new());
        match fault {
            Fault::NodeBack | Fault::NodeGone => {
                one.kill9().await;
                interruptions.push(killed(one));
            }
            Fault::AllNodes => {
                tokio::join!(one.kill9(), other.kill9());
                interruptions.extend([killed(one), killed(other)]);
            }
            Fault::Frozen => one.sigstop(),
            Fault::ServerBack | Fault::ServerAway => {
                self.world.server().kill9().await;
                interruptions.push(Interruption { node: None, at: Timestamp::now() });
            }
        }
        self.struck.send_replace(true);
        match fault {
            Fault::NodeBack => one.restart().await,
            Fault::NodeGone => {}
            Fault::AllNodes => drop(tokio::join!(one.restart(), other.restart())),
            Fault::Frozen => {
                tokio::time::sleep(FREEZE).await;
                one.sigcont();
                silences.push(Silence { node: Some(one.name().to_owned()), from, until: Timestamp::now() });
            }
            Fault::ServerBack | Fault::ServerAway => {
                if fault == Fault::ServerAway {
                    tokio::time::sleep(AWAY).await;
                }
                self.world.server().restart().await.unwrap();
                silences.push(Silence { node: None, from, until: Timestamp::now() + RECONNECT });
            }
        }
        Struck { over: Timestamp::now(), interruptions, silences }
    }

    /// What operators and handlers do after the fault.
    async fn release(&mut self) {
        self.handlers.insert("nobody", handler(&self.world, "nobody", 64, &self.struck).await);
        self.pauses[0].until = Timestamp::now();
        operate(&self.world, "queues.resume", json!({"queue": "bulk"})).await;
    }

    /// The records of all rows by their runs, once all have ended or the time is up.
    async fn records(&self, until: Timestamp) -> HashMap<(String, String), Record> {
        loop {
            let mut records = HashMap::new();
            let read = self.world.reader();
            let read = read
                .records("*", |record| drop(records.insert((record.tenant.clone(), record.run_id.clone()), record)));
            let is_read = read.await.is_ok();
            let has_ended = |job: &Receipt| records.get(&run(job)).is_some_and(Record::is_terminal);
            let all = self.rows.iter().flat_map(|row| &row.jobs).all(has_ended);
            if is_read && (all || Timestamp::now() > until) {
                return records;
            }
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
    }

    /// Ends the schedule, and has its runs be the jobs of a row.
    async fn end_schedule(&mut self) -> Recurring {
        let paused = operate_as(&self.world, "default", "schedules.pause", json!({"id": "tick"})).await;
        let last: Timestamp = paused["last_run"]["due_at"].as_str().unwrap().parse().unwrap();
        let (tenant, id, first) = ("default".to_owned(), "tick".to_owned(), self.first);
        let schedule = Recurring { tenant, id, every: EVERY, first, last, leaves_out: false };
        let mut due = first;
        let mut row = Row::of("recurring schedule", Vec::new());
        while due <= last {
            let run_id = format!("tick-{}", due.as_millisecond());
            let (stream, sequence, duplicate) = (String::new(), 0, false);
            row.jobs.push(Receipt { tenant: schedule.tenant.clone(), run_id, stream, sequence, duplicate, at: due });
            due += SignedDuration::try_from(EVERY).unwrap();
        }
        self.rows.push(row);
        schedule
    }

    async fn history(&self, struck: &Struck, recurring: Recurring) -> History {
        let jobs: Vec<Receipt> = self.rows.iter().flat_map(|row| row.jobs.clone()).collect();
        let asked: Vec<_> = self.handlers.values().flat_map(Handler::asked).collect();
        let mut history = self.world.history(&jobs, Vec::new()).await;
        history.calls = with_nodes(&asked, &history.events);
        history.recurring = vec![recurring];
        history.pauses.clone_from(&self.pauses);
        let of_type = self.rows.iter().find(|row| row.reason == "concurrency of a type").unwrap();
        history.limits.push(limit("the type", 2, &of_type.jobs));
        for (job_type, reason) in KEYED {
            let row = self.rows.iter().find(|row| row.reason == reason).unwrap();
            for (number, key) in KEYS.into_iter().enumerate() {
                let of_key = of_key(row, number);
                history.limits.push(limit(&format!("{job_type} {key}"), 1, &of_key));
                if job_type == "ordered" {
                    let runs = of_key.iter().map(run).collect();
                    history.orders.push(Ordered { name: key.to_owned(), runs });
                }
            }
        }
        history.rules = Rules {
            interruptions: struck.interruptions.clone(),
            silences: struck.silences.clone(),
            lease: Some(LEASE),
            on_their_way: crate::ON_THEIR_WAY,
            clock_skew: Duration::from_millis(2),
            ..Rules::default()
        };
        history
    }
}

/// The types whose jobs have a concurrency key, and what they wait for.
const KEYED: [(&str, &str); 5] = [
    ("key", "concurrency key"),
    ("ordered", "order of a key"),
    ("busy.drop", "on_busy: drop_new"),
    ("busy.keep", "on_busy: keep_newest"),
    ("busy.cancel", "on_busy: cancel_running"),
];
const KEYS: [&str; 4] = ["a", "b", "c", "d"];

/// The jobs of one key: the first ones of all keys were published first, then three of each key.
fn of_key(row: &Row, number: usize) -> Vec<Receipt> {
    let more = KEYS.len() + 3 * number;
    std::iter::once(number).chain(more..more + 3).map(|at| row.jobs[at].clone()).collect()
}

fn limit(name: &str, at_most: usize, jobs: &[Receipt]) -> Limit {
    Limit { name: name.to_owned(), at_most, outlasts_nodes: false, runs: jobs.iter().map(run).collect::<BTreeSet<_>>() }
}

fn run(job: &Receipt) -> (String, String) {
    (job.tenant.clone(), job.run_id.clone())
}

/// Asks as the operator until a node answers.
async fn operate(world: &World, endpoint: &str, body: Value) -> Value {
    operate_as(world, "_all", endpoint, body).await
}

async fn operate_as(world: &World, tenant: &str, endpoint: &str, body: Value) -> Value {
    eventually(endpoint, WITHIN, async || {
        let asked = world.ask(tenant, endpoint, body.to_string(), Duration::from_secs(15)).await;
        asked.map_err(|error| error.to_string())
    })
    .await
}

/// The rows of the matrix, and what is wrong in them.
fn judge(rows: &[Row], records: &HashMap<(String, String), Record>, struck: &Struck) -> (String, Vec<String>) {
    let (mut matrix, mut wrong) = (String::new(), Vec::new());
    let promised = SignedDuration::try_from(LEASE + goes_on()).unwrap();
    for Row { reason, jobs, ends, completed } in rows {
        let of_row = || jobs.iter().filter_map(|job| Some((job, records.get(&run(job))?)));
        let ended: Vec<_> = of_row().filter(|(_, record)| record.is_terminal()).collect();
        let after = ended.iter().filter_map(|(job, record)| {
            let since = struck.over.max(if *reason == "recurring schedule" { job.at } else { struck.over });
            Some(record.ended_at?.duration_since(since))
        });
        let longest = after.max().unwrap_or_default();
        let _ = writeln!(
            matrix,
            "{reason:36} {:5} {:5} {:6.1} s",
            jobs.len(),
            ended.len(),
            longest.max(SignedDuration::ZERO).as_secs_f64()
        );
        for (job, record) in of_row().filter(|(_, record)| !ends.contains(&record.state.as_str())) {
            wrong.push(format!("{reason}: {} is {}", job.run_id, record.state));
        }
        for (job, record) in of_row().filter(|(job, _)| completed.contains(&job.run_id)) {
            if record.state != "completed" {
                wrong.push(format!("{reason}: {} is {}, and had to complete", job.run_id, record.state));
            }
        }
        let unknown = jobs.iter().filter(|job| !records.contains_key(&run(job)));
        wrong.extend(unknown.map(|job| format!("{reason}: {} has no record", job.run_id)));
        if longest > promised {
            wrong.push(format!("{reason}: took {longest:#} after the fault"));
        }
    }
    (matrix, wrong)
}

/// The calls of a run, in their order.
fn calls_of(handler: &Handler) -> BTreeMap<String, Vec<Call>> {
    let mut calls: BTreeMap<String, Vec<Call>> = BTreeMap::new();
    for call in handler.calls() {
        calls.entry(call.run_id.clone()).or_default().push(call);
    }
    calls
}

/// What handlers saw too early: delayed jobs, retries, snoozed jobs, and jobs of a type that was held.
fn early(stage: &Stage) -> Vec<String> {
    let (mut wrong, wait) = (Vec::new(), SignedDuration::try_from(WAIT).unwrap());
    for job_type in ["retry", "snoozed"] {
        for (run, calls) in calls_of(&stage.handlers[job_type]) {
            let (first, second) = (calls[0].end.unwrap(), calls.get(1).map(|call| call.start));
            if second.is_none_or(|second| second < first + wait) {
                wrong.push(format!("{job_type} {run}: after {first} again at {second:?}"));
            }
        }
    }
    let held = stage.handlers["held"].calls();
    let hold = held[0].end.unwrap();
    let too_soon = held[1..].iter().filter(|call| call.start < hold + wait);
    wrong.extend(too_soon.map(|call| format!("{} at {}, held at {hold}", call.run_id, call.start)));
    wrong
}

/// The fault strikes while jobs wait for everything that there is to wait for.
async fn whatever_a_job_waits_for_it_goes_on(name: &str, fault: Fault) {
    let mut stage = Stage::set(fault).await;
    stage.queue_up().await;
    for (reason, waits_for) in [
        ("concurrency key", "concurrency"),
        ("order of a key", "concurrency"),
        ("on_busy: keep_newest", "concurrency"),
        ("concurrency of a type", "concurrency"),
        ("handler slots", "busy"),
        ("parked", "busy"),
        ("breaker", "breaker_open"),
        ("no handler", "no_handler_online"),
        ("pause until a time", "paused"),
        ("pause of a queue, resumed", "paused"),
    ] {
        stage.last_waits(reason, waits_for, false).await;
    }
    stage.last_waits("concurrency of a type, in the node", "concurrency", true).await;
    stage.put_off().await;
    for (reason, waits_for) in
        [("hold", "held"), ("retry", "retry"), ("snoozed", "snoozed"), ("delay", "schedule"), ("debounce", "schedule")]
    {
        stage.each_waits(reason, waits_for).await;
    }
    stage.line_up().await;
    for (reason, waits_for) in [("fairness", "worker"), ("worker", "worker"), ("rate limit", "rate_limited")] {
        stage.last_waits(reason, waits_for, true).await;
    }
    assert!(stage.world.stored("LONGSHORE_PARKED").await > 0, "nothing is parked");
    let struck = stage.strike(fault).await;
    stage.release().await;

    let until = struck.over + SignedDuration::try_from(LEASE + goes_on()).unwrap();
    stage.records(until).await;
    let recurring = stage.end_schedule().await;
    let records = stage.records(Timestamp::now() + SignedDuration::from_secs(10)).await;
    let (matrix, mut wrong) = judge(&stage.rows, &records, &struck);
    println!("{name}\n{matrix}");
    wrong.extend(early(&stage));
    let beyond = Starts::of(&stage.handlers["rate"]).most_beyond(2.0, 4.0);
    if beyond > 0.0 {
        wrong.push(format!("rate limit: {beyond:.1} starts beyond the bound"));
    }
    if !wrong.is_empty() {
        let open =
            |row: &&Row| row.jobs.iter().find(|job| !records.get(&run(job)).is_some_and(Record::is_terminal)).cloned();
        for first in stage.rows.iter().filter_map(|row| open(&row)) {
            wrong.push(stage.world.report_as(&first.tenant, &first.run_id).await);
        }
    }
    assert!(wrong.is_empty(), "{name}\n{matrix}\n{} wrong:\n{}", wrong.len(), wrong.join("\n"));
    if fault == Fault::NodeGone {
        let restored = Scrape::of(&stage.nodes[1]).await.sum("longshore_overdue_restored_total", &[("what", "slots")]);
        assert!(restored >= 1.0, "nobody counted that the slots of the dead node came back");
    }
    stage.world.no_job_is_left(WITHIN).await;
    stage.history(&struck, recurring).await.assert_sound();
}

/// Given jobs that wait for every reason, when a node is killed and started again, then all go on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_a_job_waits_for_it_goes_on_when_a_node_is_killed_and_started_again() {
    whatever_a_job_waits_for_it_goes_on("a node killed and started again", Fault::NodeBack).await;
}

/// Given the same, when a node is gone for good, then all go on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_a_job_waits_for_it_goes_on_when_a_node_is_gone_for_good() {
    whatever_a_job_waits_for_it_goes_on("a node gone for good", Fault::NodeGone).await;
}

/// Given the same, when all nodes are killed and started again, then all go on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_a_job_waits_for_it_goes_on_when_all_nodes_are_killed_and_started_again() {
    whatever_a_job_waits_for_it_goes_on("all nodes killed and started again", Fault::AllNodes).await;
}

/// Given the same, when a node is frozen beyond its lease, then all go on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_a_job_waits_for_it_goes_on_when_a_node_is_frozen_beyond_its_lease() {
    whatever_a_job_waits_for_it_goes_on("a node frozen beyond its lease", Fault::Frozen).await;
}

/// Given the same, when the server is killed and started again, then all go on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_a_job_waits_for_it_goes_on_when_the_server_is_killed_and_started_again() {
    whatever_a_job_waits_for_it_goes_on("the server killed and started again", Fault::ServerBack).await;
}

/// Given the same, when the server is away for longer than a lease, then all go on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_a_job_waits_for_it_goes_on_when_the_server_is_away_for_longer_than_a_lease() {
    whatever_a_job_waits_for_it_goes_on("the server away for longer than a lease", Fault::ServerAway).await;
}
