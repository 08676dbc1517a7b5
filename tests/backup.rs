//! A backup that is taken while nodes work is restored on another server, and the cluster goes on from there.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::Timestamp;
use longshore_harness::history::{Interruption, Rules};
use longshore_harness::{Handler, Job, Node, Receipt, Record, Reply, SlowLink, World, eventually};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::sync::watch;

use crate::{rules, three_servers, world};

const WITHIN: Duration = Duration::from_secs(120);
const LEASE: Duration = Duration::from_secs(2);
const SETTINGS: &str = "
[node]
lease = '2s'
[defaults]
max_attempts = 20
backoff = { base = '3s', factor = 1.0, max = '3s', jitter = 'none' }
[queues.main]
[queues.bulk]
[types.one]
concurrency = 1
";
/// For nodes that end while a job is held.
const ONE_COPY: &str = "
[node]
shutdown_grace = '1s'
[storage]
replicas = 1
";
const NAMES: [&str; 2] = ["n1", "n2"];
const TYPES: [&str; 5] = ["quick", "later", "one", "held", "dies"];

/// A cluster: its server, two nodes, and a handler of each type.
struct Cluster {
    world: World,
    nodes: Vec<Node>,
    handlers: BTreeMap<&'static str, Handler>,
    /// Calls of each that [`Cluster::called`] leaves out.
    known: BTreeMap<&'static str, usize>,
    /// Lets jobs of the type `held` end.
    open: watch::Sender<bool>,
}

/// What the handlers do: `later` fails once, `dies` fails for good unless its payload says otherwise, `held` waits.
async fn answer(job_type: &str, job: Job, mut open: watch::Receiver<bool>) -> Reply {
    match job_type {
        "later" if job.attempt == 1 => return Reply::error(503, "not yet"),
        "dies" if job.json()["dies"] == true => return Reply::error(422, "never"),
        "one" => tokio::time::sleep(Duration::from_millis(200)).await,
        "held" => drop(open.wait_for(|open| *open).await),
        _ => {}
    }
    Reply::json(json!("done"))
}

impl Cluster {
    /// The handlers; nodes are started on what is stored.
    async fn new(world: World, is_open: bool) -> Cluster {
        Cluster::with(world, is_open, "").await
    }

    /// As [`Cluster::new`], with settings more for its nodes.
    async fn with(world: World, is_open: bool, more: &str) -> Cluster {
        let (open, mut handlers) = (watch::Sender::new(is_open), BTreeMap::new());
        for job_type in TYPES {
            let open = open.subscribe();
            let handler = world.handler(job_type).start(move |job| answer(job_type, job, open.clone()));
            handlers.insert(job_type, handler.await);
        }
        let mut cluster = Cluster { world, nodes: Vec::new(), handlers, known: BTreeMap::new(), open };
        for name in NAMES {
            cluster.start(name, more).await;
        }
        cluster
    }

    async fn start(&mut self, name: &str, more: &str) {
        let node = self.world.node().name(name).config(SETTINGS).config(more).start().await;
        self.nodes.push(node);
    }

    /// Runs of which a handler was called.
    fn called(&self) -> BTreeSet<String> {
        let known = |name| self.known.get(name).copied().unwrap_or(0);
        let calls = self.handlers.iter().flat_map(|(name, handler)| handler.calls().into_iter().skip(known(name)));
        calls.map(|call| call.run_id).collect()
    }

    /// Leaves out the calls until now.
    fn forget_calls(&mut self) {
        self.known = self.handlers.iter().map(|(name, handler)| (*name, handler.calls().len())).collect();
    }

    /// How many copies there are of each stream, but that of replies, of which there is always one, in memory.
    async fn copies(&self) -> BTreeMap<String, usize> {
        let (servers, mut copies) = (self.world.servers(), BTreeMap::new());
        servers.in_step().await;
        for name in servers.stream_names().await.unwrap() {
            let stream = self.world.jetstream().get_stream(&name).await.unwrap();
            copies.insert(name, stream.cached_info().config.num_replicas);
        }
        assert_eq!(copies.remove("LONGSHORE_REPLIES"), Some(1));
        copies
    }

    async fn resume(&self) {
        self.world.request_as("_all", "queues.resume", json!({"queue": "bulk"})).await;
    }
}

async fn records(world: &World) -> Vec<Record> {
    world.history(&[], Vec::new()).await.records
}

/// Jobs that wait for everything that holds them in another stream.
async fn fill(cluster: &Cluster) -> Vec<Receipt> {
    let (world, mut jobs) = (&cluster.world, Vec::new());
    let dies = world.publish("dies").many([json!({"dies": true})]).await;
    world.eventually_dead_letters(1).await;
    jobs.extend(dies);
    jobs.extend(world.publish("held").many([json!({})]).await);
    cluster.handlers["held"].called(1).await;
    jobs.extend(world.publish("one").many((0..60).map(|number| json!(number))).await);
    jobs.extend(world.publish("later").many((0..40).map(|number| json!(number))).await);
    jobs.extend(world.publish("quick").header("Longshore-Delay", "8s").many((0..20).map(|number| json!(number))).await);
    jobs.extend(world.publish("quick").queue("bulk").many((0..20).map(|number| json!(number))).await);
    jobs.extend(world.publish("quick").many((0..100).map(|number| json!(number))).await);
    jobs
}

/// What there was before the backup began.
struct Work {
    jobs: Vec<Receipt>,
    /// Runs that had ended.
    done: BTreeSet<String>,
    /// Submissions under keys, and their runs.
    keyed: Vec<(Value, String)>,
}

impl Work {
    /// Has jobs wait for everything, and others be done.
    async fn of(cluster: &Cluster) -> Work {
        let (world, mut keyed) = (&cluster.world, Vec::new());
        world.request_as("_all", "queues.pause", json!({"queue": "bulk"})).await;
        for number in 0..30 {
            // Among several servers, one may not know yet where a stream is that was made a moment ago: 503, once more.
            keyed.push(eventually("a submission", WITHIN, async || submit(world, number).await).await);
        }
        let tick = json!({"id": "tick", "every": "1s", "type": "quick", "misfire_after_ms": 3_600_000});
        world.request("schedules.put", tick).await;
        let jobs = fill(cluster).await;
        let done = eventually("jobs in every stream, and jobs that are done", WITHIN, async || {
            let (parked, timed) = (world.stored("LONGSHORE_PARKED").await, world.stored("LONGSHORE_SCHEDULES").await);
            let ended = records(world).await.into_iter().filter(Record::is_terminal);
            let done: BTreeSet<String> = ended.map(|record| record.run_id).collect();
            let says = format!("{parked} parked, {timed} timed, {} done", done.len());
            if parked > 0 && timed > 20 && done.len() > 60 { Ok(done) } else { Err(says) }
        });
        Work { done: done.await, jobs, keyed }
    }

    /// All of it ends as it must on another cluster, and what had ended is not done again.
    async fn goes_on(&self, cluster: &Cluster) {
        let world = &cluster.world;
        let dead = &self.jobs[0].run_id;
        for (job, state) in self.jobs.iter().zip(world.ends(&self.jobs, WITHIN).await) {
            let wanted = if job.run_id == *dead { "dead" } else { "completed" };
            assert_eq!(state, wanted, "{}", world.report_as("default", &job.run_id).await);
        }
        let again: Vec<_> = cluster.called().intersection(&self.done).cloned().collect();
        assert_eq!(again, Vec::<String>::new(), "these were done before");
        for (job, run) in &self.keyed {
            let answer = world.request("submit", job.clone()).await;
            assert_eq!((&answer["run_id"], &answer["deduplicated"]), (&json!(run), &json!(true)), "{answer}");
            assert_eq!(world.wait(run).await.state, "completed");
        }
        let replay = json!({"run_id": dead, "set": {"payload": {"dies": false}}});
        assert_eq!(world.request("dlq.replay", replay).await["replayed"], 1);
        assert_eq!(world.wait(dead).await.state, "completed");
        assert!(cluster.called().iter().any(|run| run.starts_with("tick-")), "the schedule stands still");
    }
}

/// A submission under a key, and its run.
async fn submit(world: &World, number: usize) -> Result<(Value, String), String> {
    let delay = if number.is_multiple_of(3) { 1_500 } else { 0 };
    let job = json!({"type": "quick", "payload": number, "idempotency_key": format!("k{number}"), "delay_ms": delay});
    let answer = world.try_request("default", "submit", job.clone()).await.map_err(|error| error.to_string())?;
    Ok((job, answer["run_id"].as_str().unwrap().to_owned()))
}

/// Jobs that come while the backup is taken: their submissions.
async fn load(world: &World, submitted: &mut Vec<Value>) {
    for number in 1_000.. {
        let (job, _) = submit(world, number).await.unwrap();
        submitted.push(job);
        world.publish("later").json(json!(number)).await;
        world.publish("quick").json(json!(number)).await;
    }
}

async fn command(world: &World, arguments: &[&str]) -> (bool, String) {
    let output = world.command(arguments.iter().copied()).output().await.unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.success(), text(&output.stdout) + &text(&output.stderr))
}

fn folder(world: &World) -> PathBuf {
    world.dir().join("backup")
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

async fn paused(world: &World) -> Vec<String> {
    let queues = world.request_as("_all", "queues.list", json!({})).await["queues"].clone();
    let paused = queues.as_array().unwrap().iter().filter(|queue| queue["paused"] == true);
    paused.map(|queue| format!("{} {}", queue["queue"].as_str().unwrap(), queue["paused_until"])).collect()
}

/// Given jobs that run, wait, are retried, parked and dead, a schedule and keys, when a backup is taken while more
/// come, and is restored on a new server, then all jobs end there, none of those done before is done again, none is
/// invalid, keys answer the same runs, the dead letter is replayed, and the history is sound.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_goes_on_from_a_backup_that_was_taken_while_it_worked() {
    let old = Cluster::new(world().await, false).await;
    let work = Work::of(&old).await;
    let (dir, mut during) = (folder(&old.world), Vec::new());
    let backup = ["backup", text(&dir), "--wait", "4s"];
    let (succeeds, output) = tokio::select! {
        ended = command(&old.world, &backup) => ended,
        () = load(&old.world, &mut during) => unreachable!("the load has no end"),
    };
    assert!(succeeds && output.contains("1 attempts run on"), "{output}");
    assert_eq!(paused(&old.world).await, ["bulk null"], "all is as it was before");
    // The other cluster goes on, and its work is lost with it.
    old.open.send_replace(true);
    old.world.wait(&work.jobs[1].run_id).await;
    let lost_at = Timestamp::now();
    for node in &old.nodes {
        node.kill9().await;
    }

    let new = World::new().await;
    let (succeeds, output) = command(&new, &["restore", text(&dir)]).await;
    assert!(succeeds, "{output}");
    let new = Cluster::new(new, true).await;
    assert_eq!(paused(&new.world).await, ["bulk null"]);
    new.resume().await;
    work.goes_on(&new).await;
    // What was submitted during the backup is in it or not: submitted again, it is done.
    assert!(during.len() > 10);
    for job in &during {
        let run = new.world.submit(job.clone()).await;
        assert_eq!(new.world.wait(&run).await.state, "completed", "{job}");
    }
    new.world.request("schedules.pause", json!({"id": "tick"})).await;
    new.world.no_job_is_left(WITHIN).await;

    let letters = new.world.dead_letters("*").await;
    let invalid: Vec<_> = letters.iter().map(|letter| letter.error_kind()).collect();
    assert_eq!(invalid, [], "dead letters");
    let mut history = new.world.history(&work.jobs, Vec::new()).await;
    let died = |node: &str| Interruption { node: Some(node.to_owned()), at: lost_at };
    history.rules = Rules { lease: Some(LEASE), ..rules(vec![died("n1"), died("n2")]) };
    history.assert_sound();
}

/// Given jobs that fall due all the while, when a backup is taken over a slow link, then it has those that fall due
/// while the schedules are read beside the snapshot, which may lack them: the server removes a schedule as it fires. A
/// restore takes them, here one that is not due by any snapshot.
#[tokio::test]
async fn what_falls_due_while_a_backup_reads_the_schedules_is_in_it() {
    let old = world().await;
    let node = old.node().start().await;
    let far = old.publish("noop").header("Longshore-Delay", "1h").json(json!(0)).await;
    let mut jobs = Vec::new();
    for due in 0..80 {
        let publish = old.publish("noop").header("Longshore-Delay", &format!("{}ms", 1_000 + due * 200));
        jobs.extend(publish.many([json!(1), json!(2)]).await);
    }
    let (link, dir) = (SlowLink::to(&old, Duration::from_millis(100)).await, folder(&old));
    // As long as it takes; those that come to wait meanwhile may be in it or not. They are submitted: a bare publish
    // waits for a time once a node has met it, and the nodes stand still.
    let submit = async {
        let mut pace = tokio::time::interval(Duration::from_millis(200));
        loop {
            pace.tick().await;
            old.submit(json!({"type": "noop", "delay_ms": 1_000})).await;
        }
    };
    // From before the snapshot of the schedules until it is there the link is so slow that several fall due.
    let slow = async {
        let there = async |file: &str| {
            let path = dir.join(file);
            eventually(file, WITHIN, async || if path.exists() { Ok(()) } else { Err("is not there") }).await;
        };
        there("LONGSHORE_JOBS_main_P8.snapshot").await;
        link.takes(Duration::from_secs(1));
        there("LONGSHORE_SCHEDULES.snapshot").await;
        link.takes(Duration::ZERO);
        std::future::pending().await
    };
    let (server, arguments) = (link.url(), ["backup", text(&dir), "--wait", "0s"]);
    let arguments = [&["--server", &server], &arguments[..]].concat();
    let (succeeds, output) = tokio::select! {
        ended = command(&old, &arguments) => ended,
        () = submit => unreachable!("it submits for ever"),
        () = slow => unreachable!("it waits for ever"),
    };
    assert!(succeeds, "{output}");
    node.kill9().await;
    let path = dir.join("LONGSHORE_SCHEDULES.fired");
    let fired = std::fs::read_to_string(&path).unwrap();
    let line = fired.lines().next().unwrap_or_else(|| panic!("nothing fell due meanwhile: {output}"));
    let mut line: Value = serde_json::from_str(line).unwrap();
    let record = old.record(&far).await.unwrap();
    let due_at = record.run_at.unwrap().as_millisecond().to_string();
    let of_far = json!({"Longshore-Run-Id": far, "Longshore-Seal": record.rest["seal"], "Longshore-Due-At": due_at});
    for header in line["headers"].as_array_mut().unwrap() {
        if let Some(value) = of_far.get(header[0].as_str().unwrap()) {
            header[1] = value.clone();
        }
    }
    std::fs::write(&path, format!("{fired}{line}\n")).unwrap();
    rewrite_sum(&dir, &path);

    let new = World::new().await;
    let (succeeds, output) = command(&new, &["restore", text(&dir)]).await;
    assert!(succeeds, "{output}");
    let _node = new.node().start().await;
    let states = new.ends(&jobs, WITHIN).await;
    assert!(states.iter().all(|state| state == "completed"), "{states:?}");
    new.eventually_ends(&far).await;
}

/// Has the manifest of a backup say what the file is now.
fn rewrite_sum(dir: &Path, file: &Path) {
    let (bytes, path) = (std::fs::read(file).unwrap(), dir.join("manifest.json"));
    let mut manifest: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    let sum: String = Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    manifest["fired"]["bytes"] = json!(bytes.len());
    manifest["fired"]["sha256"] = json!(sum);
    std::fs::write(&path, manifest.to_string()).unwrap();
}

/// Nothing is left of the work, and nothing of it was invalid.
async fn all_is_done(cluster: &Cluster) {
    let world = &cluster.world;
    world.request("schedules.pause", json!({"id": "tick"})).await;
    world.no_job_is_left(WITHIN).await;
    assert_eq!(world.dead_letters("*").await.len(), 0, "dead letters");
    let unfinished: Vec<_> = records(world).await.into_iter().filter(|record| !record.is_terminal()).collect();
    assert!(unfinished.is_empty(), "{unfinished:#?}");
}

/// Given one copy of everything on three servers, and jobs that wait for all they can, when the nodes are restarted one
/// after the other to keep three, then there are three, all jobs end, and none of those done before is done again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_of_all_kinds_go_on_while_one_copy_becomes_three() {
    let mut cluster = Cluster::with(three_servers().await, false, ONE_COPY).await;
    let work = Work::of(&cluster).await;
    cluster.forget_calls();
    assert!(cluster.copies().await.values().all(|copies| *copies == 1));
    for name in NAMES {
        // While streams grow they may take no writes: a node that ends meanwhile leaves some unconfirmed, and fails.
        cluster.nodes.remove(0).stop().await;
        cluster.start(name, "").await;
    }
    let copies = cluster.copies().await;
    assert!(copies.len() > 20 && copies.values().all(|copies| *copies == 3), "{copies:?}");
    cluster.open.send_replace(true);
    cluster.resume().await;
    work.goes_on(&cluster).await;
    all_is_done(&cluster).await;
}

/// Given a server of its own and jobs that wait for all they can, when its nodes end and its backup is restored into
/// three servers, then these keep three copies, all jobs end there, and none of those done before is done again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_of_all_kinds_move_from_one_server_into_three() {
    // First, so that its servers have found each other: what one asks another in their first second may be lost.
    let new = three_servers().await;
    let old = Cluster::with(world().await, false, ONE_COPY).await;
    let work = Work::of(&old).await;
    for node in &old.nodes {
        assert!(node.stop().await.success());
    }
    let dir = folder(&old.world);
    let (succeeds, output) = command(&old.world, &["backup", text(&dir)]).await;
    assert!(succeeds, "{output}");

    let (succeeds, output) = command(&new, &["restore", text(&dir), "--replicas", "3"]).await;
    assert!(succeeds, "{output}");
    let new = Cluster::new(new, true).await;
    let copies = new.copies().await;
    assert!(copies.len() > 20 && copies.values().all(|copies| *copies == 3), "{copies:?}");
    new.resume().await;
    work.goes_on(&new).await;
    all_is_done(&new).await;
}

/// Given a backup of three servers, when it is restored on one, then it is all there.
#[tokio::test]
async fn a_backup_of_three_servers_is_restored_on_one() {
    let old = three_servers().await;
    let node = old.node().start().await;
    let run = old.publish("noop").json(json!(1)).await;
    old.wait(&run).await;
    let later = old.submit(json!({"type": "noop", "delay_ms": 5_000})).await;
    let dir = folder(&old);
    let (succeeds, output) = command(&old, &["backup", text(&dir)]).await;
    assert!(succeeds, "{output}");
    node.stop().await;

    let new = World::new().await;
    let (succeeds, output) = command(&new, &["restore", text(&dir), "--replicas", "1"]).await;
    assert!(succeeds, "{output}");
    assert_eq!(new.record(&run).await.unwrap().state, "completed");
    let _node = new.node().start().await;
    assert_eq!(new.wait(&later).await.state, "completed");
}

/// Given a backup, when it is restored where streams are, or from a damaged file, then it is refused, and says why.
#[tokio::test]
async fn a_restore_harms_nothing_that_is_there_and_takes_nothing_that_is_damaged() {
    let old = world().await;
    let node = old.node().start().await;
    let run = old.publish("noop").json(json!(1)).await;
    old.wait(&run).await;
    let dir = folder(&old);
    let (succeeds, output) = command(&old, &["backup", text(&dir)]).await;
    assert!(succeeds, "{output}");

    let (succeeds, output) = command(&old, &["backup", text(&dir)]).await;
    assert!(!succeeds && output.contains("backup is not empty"), "{output}");
    let (succeeds, output) = command(&old, &["restore", text(&dir)]).await;
    assert!(!succeeds && output.contains("KV_longshore_runs") && output.contains("LONGSHORE_EVENTS"), "{output}");
    assert_eq!(old.wait(&run).await.state, "completed");
    node.stop().await;

    let new = World::new().await;
    let (succeeds, output) = command(&new, &["restore", text(new.dir())]).await;
    assert!(!succeeds && output.contains("is no backup"), "{output}");
    let (succeeds, output) = command(&new, &["restore", text(&dir), "--namespace", "other"]).await;
    assert!(!succeeds && output.contains("say --namespace longshore"), "{output}");
    let file = dir.join("KV_longshore_runs.snapshot");
    let whole = std::fs::read(&file).unwrap();
    let mut damaged = whole.clone();
    damaged[whole.len() / 2] ^= 1;
    for bytes in [&damaged[..], &whole[..whole.len() - 1]] {
        std::fs::write(&file, bytes).unwrap();
        let (succeeds, output) = command(&new, &["restore", text(&dir)]).await;
        assert!(!succeeds && output.contains("KV_longshore_runs.snapshot is damaged"), "{output}");
    }
    std::fs::write(&file, whole).unwrap();
    assert!(new.jetstream().get_stream("LONGSHORE_EVENTS").await.is_err(), "nothing was made");
    let (succeeds, output) = command(&new, &["restore", text(&dir)]).await;
    assert!(succeeds, "{output}");
    assert_eq!(new.record(&run).await.unwrap().state, "completed");
}

/// Given a backup that waits for a job, when it is ended by a signal, then jobs go on at once, and its folder is no
/// backup. While no node answers that would take long: a second signal ends it, and it says how long pauses last.
#[tokio::test]
async fn a_backup_that_is_ended_lets_jobs_go_on() {
    let world = world().await;
    let node = world.node().start().await;
    let long = world.publish("sleep").json(json!({"ms": 6_000})).await;
    eventually("a job that runs", WITHIN, async || world.record(&long).await.ok_or("none")).await;
    let dir = folder(&world);
    let (backup, pid) = backup_that_waits(&world, &dir).await;
    kill_process(pid, Signal::TERM).unwrap();
    let output = backup.wait_with_output().await.unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && said.contains("ended by SIGTERM"), "{said}");
    assert_eq!(paused(&world).await, Vec::<String>::new());
    let next = world.publish("noop").json(json!(1)).await;
    assert_eq!(world.wait(&next).await.state, "completed");
    assert!(!dir.join("manifest.json").exists());

    let long = world.publish("sleep").json(json!({"ms": 600_000})).await;
    eventually("a job that runs", WITHIN, async || world.record(&long).await.ok_or("none")).await;
    let (mut backup, pid) = backup_that_waits(&world, &world.dir().join("again")).await;
    node.sigstop();
    eventually("its end", WITHIN, async || {
        if backup.try_wait().unwrap().is_some() {
            return Ok(());
        }
        kill_process(pid, Signal::TERM).unwrap();
        Err("it goes on")
    })
    .await;
    let output = backup.wait_with_output().await.unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(143) && said.contains("SIGTERM; what is still paused goes on at"), "{said}");
}

/// Given a restore whose server stands still, when it is ended by a signal, then it names what is to be deleted; and
/// once that is done, the next one succeeds.
#[tokio::test]
async fn a_restore_that_is_ended_names_what_it_leaves() {
    let old = world().await;
    let node = old.node().start().await;
    let dir = folder(&old);
    let (succeeds, output) = command(&old, &["backup", text(&dir)]).await;
    assert!(succeeds, "{output}");
    node.stop().await;
    let new = World::new().await;
    let mut restore = new.command(["restore", text(&dir)]);
    let mut restore = restore.stderr(std::process::Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(restore.stderr.take().unwrap()).lines();
    let first = said.next_line().await.unwrap().unwrap();
    new.server().sigstop();
    let pid = Pid::from_raw(i32::try_from(restore.id().unwrap()).unwrap()).unwrap();
    kill_process(pid, Signal::INT).unwrap();
    let mut last = String::new();
    while let Some(line) = said.next_line().await.unwrap() {
        last += &line;
    }
    assert_eq!(restore.wait().await.unwrap().code(), Some(1), "{last}");
    new.server().sigcont();
    assert!(last.contains("ended by SIGINT") && last.contains("before another try delete what is there of "), "{last}");
    let (stream, _) = first.split_once(": ").unwrap();
    assert!(last.contains(stream), "{first}: {last}");
    let (_, named) = last.split_once("delete what is there of ").unwrap();
    let named = named.split_once(": ").map_or(named, |(named, _)| named);
    for stream in named.split(", ") {
        let _ = new.jetstream().delete_stream(stream).await;
    }
    let (succeeds, output) = command(&new, &["restore", text(&dir)]).await;
    assert!(succeeds, "{output}");
}

/// Starts a backup that waits for what runs, and returns it once it has paused the queues.
async fn backup_that_waits(world: &World, dir: &Path) -> (tokio::process::Child, Pid) {
    let mut backup = world.command(["backup", text(dir), "--wait", "1h"]);
    let backup = backup.stderr(std::process::Stdio::piped()).spawn().unwrap();
    eventually("a pause", WITHIN, async || {
        let paused = paused(world).await;
        if paused.is_empty() { Err("none") } else { Ok(()) }
    })
    .await;
    let pid = Pid::from_raw(i32::try_from(backup.id().unwrap()).unwrap()).unwrap();
    (backup, pid)
}

/// Given a backup that waits for a job, when an operator resumes a queue meanwhile, then the backup fails; when one
/// pauses it for good, then it stays paused.
#[tokio::test]
async fn a_backup_leaves_alone_what_operators_do_meanwhile() {
    let world = world().await;
    let (handler, open) = crate::http::held(&world, "held").await;
    let _node = world.node().start().await;
    let rounds = [("queues.resume", false, ""), ("queues.pause", true, "main null")];
    for (round, (endpoint, succeeds, left)) in rounds.into_iter().enumerate() {
        open.send_replace(false);
        world.publish("held").json(json!({})).await;
        handler.called(round + 1).await;
        let dir = folder(&world).join(endpoint);
        let order = async {
            eventually("a pause", WITHIN, async || {
                let paused = paused(&world).await;
                if paused.is_empty() { Err("none") } else { Ok(()) }
            })
            .await;
            world.request_as("_all", endpoint, json!({"queue": "main"})).await;
            open.send_replace(true);
        };
        let arguments = ["backup", text(&dir), "--wait", "1h"];
        let ((is_success, output), ()) = tokio::join!(command(&world, &arguments), order);
        assert_eq!(is_success, succeeds, "{output}");
        assert!(succeeds || output.contains("queue main went on during the backup"), "{output}");
        assert_eq!(paused(&world).await.join(", "), left, "{output}");
    }
}
