//! Runs are listed and counted by what they have in common, and none is missed.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use longshore_harness::World;
use serde_json::{Value, json};

use crate::cli::{Said, say};
use crate::{AT_ONCE, served_by, workers, world};

/// One page: its runs, and the request for the next.
async fn page(world: &World, tenant: &str, asked: &Value) -> (Vec<Value>, Option<Value>) {
    let mut answer = world.try_request(tenant, "runs.list", asked.clone()).await.unwrap();
    let Value::Array(runs) = answer["runs"].take() else { panic!("{answer}") };
    let next = answer.get("cursor").map(|cursor| {
        let mut next = asked.clone();
        next["cursor"] = cursor.clone();
        next
    });
    (runs, next)
}

/// All pages.
async fn list(world: &World, tenant: &str, asked: Value) -> Vec<Value> {
    let (mut all, mut next) = (Vec::new(), Some(asked));
    while let Some(asked) = next {
        let (runs, then) = page(world, tenant, &asked).await;
        all.extend(runs);
        next = then;
    }
    all
}

fn ids(runs: &[Value]) -> BTreeSet<String> {
    runs.iter().map(|run| run["run_id"].as_str().unwrap().to_owned()).collect()
}

/// What is counted, by state.
async fn count(world: &World, mut asked: Value) -> BTreeMap<String, u64> {
    let mut counted = BTreeMap::new();
    loop {
        let answer = world.request("runs.count", asked.clone()).await;
        for count in answer["counts"].as_array().unwrap() {
            *counted.entry(count["state"].as_str().unwrap().to_owned()).or_default() +=
                count["count"].as_u64().unwrap();
        }
        match answer.get("cursor") {
            Some(cursor) => asked["cursor"] = cursor.clone(),
            None => return counted,
        }
    }
}

async fn many(world: &World, job_type: &str, count: usize) -> Vec<String> {
    let receipts = world.publish(job_type).many((0..count).map(|number| json!({"n": number}))).await;
    receipts.into_iter().map(|receipt| receipt.run_id).collect()
}

/// Runs by the state that they are in.
#[derive(Default)]
struct Wanted(BTreeMap<&'static str, BTreeSet<String>>);

impl Wanted {
    fn are(&mut self, state: &'static str, runs: impl IntoIterator<Item = String>) {
        self.0.entry(state).or_default().extend(runs);
    }

    /// Runs that have ended, in each way.
    async fn ended(&mut self, world: &World) {
        let keyed = |number: u64| async move {
            world.publish("noop").header("Longshore-Idempotency-Key", "k").json(json!(number)).await
        };
        let done = [many(world, "noop", 3).await, vec![keyed(1).await]].concat();
        for run in &done {
            assert_eq!(world.wait(run).await.state, "completed");
        }
        let duplicate = keyed(2).await;
        assert_eq!(world.wait(&duplicate).await.state, "duplicate");
        let mut dead = many(world, "broken", 3).await;
        for run in &dead {
            assert_eq!(world.wait(run).await.state, "dead");
        }
        let discarded = dead.remove(0);
        world.request("dlq.discard", json!({"run_id": discarded})).await;
        let cancelled = world.submit(json!({"type": "noop", "delay_ms": 3_600_000})).await;
        world.request("runs.cancel", json!({"run_id": cancelled})).await;
        self.are("completed", done);
        self.are("duplicate", [duplicate]);
        self.are("dead", dead);
        self.are("discarded", [discarded]);
        self.are("cancelled", [cancelled]);
    }

    /// Runs that wait for a time, or outside of their lanes.
    async fn set_aside(&mut self, world: &World) {
        let mut live = world.live_events("default").await;
        let retrying = many(world, "flaky", 2).await;
        for run in &retrying {
            live.until_published("failed", run).await;
        }
        let bare = world.publish("noop").header("Longshore-Delay", "1h").json(json!(1)).await;
        live.until_published("scheduled", &bare).await;
        let submitted = world.submit(json!({"type": "noop", "delay_ms": 3_600_000})).await;
        let unserved = world.publish("nobody").json(json!(1)).await;
        live.until_published("deferred", &unserved).await;
        // One starts, the next ones wait in the node, the rest are parked.
        let mut limited = many(world, "limited", 120).await;
        assert_eq!(world.wait(&limited[0]).await.state, "completed");
        longshore_harness::eventually("parked jobs", Duration::from_secs(60), async || {
            match world.stored("LONGSHORE_PARKED").await {
                0..=60 => Err("few"),
                _ => Ok(()),
            }
        })
        .await;
        self.are("retrying", retrying);
        self.are("scheduled", [bare, submitted]);
        self.are("completed", [limited.remove(0)]);
        self.are("enqueued", limited.into_iter().chain([unserved]));
    }

    /// Two runs that keep all workers, and jobs that no node has seen.
    async fn in_their_lanes(&mut self, world: &World) {
        let busy = world.publish("sleep").many([json!({"ms": 600_000}), json!({"ms": 600_000})]).await;
        let busy: Vec<String> = busy.into_iter().map(|receipt| receipt.run_id).collect();
        for run in &busy {
            world.eventually_is(run, "running", Duration::from_secs(60)).await;
        }
        let unseen = world.publish("noop").priority(8).json(json!(1)).await;
        let own = world.publish("noop").priority(8).header("Longshore-Run-Id", "own").json(json!(1)).await;
        let tagged = world.submit(json!({"type": "noop", "priority": 9, "run_id": "tagged", "tags": ["a"]})).await;
        self.are("running", busy);
        self.are("enqueued", [unseen, own, tagged]);
    }
}

/// Given runs in every state, wherever their jobs are, when they are listed and counted by state, then each is there
/// under its own and under no other, and without a state all are.
#[tokio::test]
async fn each_run_is_listed_in_its_state() {
    let world = world().await;
    let hour = "backoff = { base = '1h', factor = 1.0, max = '1h', jitter = 'none' }";
    let node = workers(world.node(), 2)
        .with("types.flaky", &served_by("fail", hour))
        .with("types.broken", &served_by("fail", &format!("max_attempts = 1\n{AT_ONCE}")))
        .with("types.limited", &served_by("noop", "rate_limit = { rate = 1, per = '1h', burst = 1 }"));
    let _node = node.start().await;
    let mut wanted = Wanted::default();
    wanted.ended(&world).await;
    wanted.set_aside(&world).await;
    wanted.in_their_lanes(&world).await;
    let Wanted(wanted) = wanted;

    let mut all = BTreeSet::new();
    for (state, runs) in &wanted {
        for limit in [500, 7] {
            let listed = list(&world, "default", json!({"state": state, "limit": limit})).await;
            assert!(listed.iter().all(|run| run["state"] == **state), "{state}: {listed:?}");
            assert_eq!((&ids(&listed), listed.len()), (runs, runs.len()), "{state}");
        }
        assert_eq!(count(&world, json!({"state": state})).await, [(String::from(*state), runs.len() as u64)].into());
        all.extend(runs.iter().cloned());
    }
    let listed = list(&world, "default", json!({"limit": 11})).await;
    assert_eq!((ids(&listed), listed.len()), (all.clone(), all.len()));
    let counts = wanted.iter().map(|(state, runs)| ((*state).to_owned(), runs.len() as u64)).collect();
    assert_eq!(count(&world, json!({})).await, counts);

    let of = async |asked: Value| ids(&list(&world, "default", asked).await);
    assert_eq!(of(json!({"tag": "a"})).await, ["tagged".to_owned()].into());
    assert_eq!(of(json!({"type": "flaky"})).await, wanted["retrying"]);
    assert_eq!(of(json!({"error_kind": "retryable", "state": "retrying"})).await, wanted["retrying"]);
    assert_eq!(of(json!({"queue": "main", "state": "running"})).await, wanted["running"]);
    assert_eq!(of(json!({"since": crate::in_future(Duration::from_secs(3_600))})).await, BTreeSet::new());
    assert_eq!(of(json!({"state": "dead", "until": "2026-01-01T00:00:00Z"})).await, BTreeSet::new());
}

/// Given completed runs of which the oldest are written again while their list is read, and delayed runs that are put
/// off meanwhile, then the rest of the list still has them.
#[tokio::test]
async fn a_run_that_changes_while_the_list_is_read_is_not_missed() {
    let world = world().await;
    let node = world.node().start().await;
    let runs = many(&world, "noop", 200).await;
    for run in &runs {
        world.wait(run).await;
    }
    let asked = json!({"state": "completed", "limit": 20});
    let (first, next) = page(&world, "default", &asked).await;
    let seen = ids(&first);
    let unseen: Vec<&String> = runs.iter().filter(|run| !seen.contains(*run)).collect();
    assert_eq!((seen.len(), unseen.len()), (20, 180));
    for run in &unseen[40..160] {
        world.request("runs.erase", json!({"run_id": run})).await;
    }
    let rest = ids(&list(&world, "default", next.unwrap()).await);
    assert_eq!(rest, unseen.into_iter().cloned().collect(), "each of them, none of those that came before");

    let mut delayed = BTreeSet::new();
    for _ in 0..40 {
        delayed.insert(world.submit(json!({"type": "noop", "delay_ms": 3_600_000})).await);
    }
    let (first, next) = page(&world, "default", &json!({"state": "scheduled", "limit": 10})).await;
    let unseen: BTreeSet<String> = delayed.difference(&ids(&first)).cloned().collect();
    for run in unseen.iter().take(15) {
        let at = crate::in_future(Duration::from_secs(7_200));
        world.request("runs.reschedule", json!({"run_id": run, "run_at": at})).await;
    }
    assert_eq!(ids(&list(&world, "default", next.unwrap()).await), unseen);
    node.stop().await;
}

/// Given jobs that no node has seen when the first page is read, when they have run before the others are, then the
/// list has them.
#[tokio::test]
async fn a_job_that_runs_while_the_list_is_read_is_not_missed() {
    let world = world().await;
    let node = workers(world.node(), 1).start().await;
    let done = many(&world, "noop", 30).await;
    for run in &done {
        world.wait(run).await;
    }
    let mut live = world.live_events("default").await;
    let busy = world.publish("sleep").json(json!({"ms": 600_000})).await;
    live.until_published("started", &busy).await;
    let waiting = many(&world, "noop", 40).await;
    let (mut seen, mut next) = page(&world, "default", &json!({"limit": 10})).await;
    world.request("runs.cancel", json!({"run_id": busy})).await;
    for run in &waiting {
        assert_eq!(world.wait(run).await.state, "completed");
    }
    while let Some(asked) = next {
        let (runs, then) = page(&world, "default", &asked).await;
        seen.extend(runs);
        next = then;
    }
    let all = done.into_iter().chain(waiting).chain([busy]).collect();
    assert_eq!(ids(&seen), all);
    node.stop().await;
}

/// Given a tenant with many runs, one with few, and a stream of records most of whose versions are gone, when each
/// lists its runs, then it gets its own, the operator all, the last written first.
#[tokio::test]
async fn few_runs_among_many_are_found_whatever_lies_between() {
    let world = world().await;
    let node = world.node().start().await;
    let few = |from: u64| (from..from + 3).map(|n| json!(n));
    let mut rare: Vec<String> = Vec::new();
    for from in [0, 10] {
        for receipt in world.publish("noop").tenant("rare").many(few(from)).await {
            world.wait_as("rare", &receipt.run_id, Duration::from_secs(60)).await;
            rare.push(receipt.run_id);
        }
        let runs = many(&world, "noop", 1_500).await;
        world.wait(runs.last().unwrap()).await;
        crate::is_emptied(&world).await;
        // A key that is written again leaves a gap behind.
        let gap = "$KV.longshore_runs._gap.r";
        for _ in 0..30_000 {
            world.client().publish(gap, "{}".into()).await.unwrap();
        }
        world.client().flush().await.unwrap();
    }
    let listed = list(&world, "rare", json!({"limit": 2})).await;
    assert_eq!((ids(&listed), listed.len()), (rare.iter().cloned().collect(), 6));
    let all = list(&world, "_all", json!({"limit": 500})).await;
    assert_eq!(all.len(), 3_006, "each once");
    let ended: Vec<&str> = all.iter().map(|run| run["ended_at"].as_str().unwrap()).collect();
    let mean =
        |part: &[&str]| part.iter().map(|at| at.parse::<jiff::Timestamp>().unwrap().as_millisecond()).sum::<i64>();
    assert!(mean(&ended[..1_503]) > mean(&ended[1_503..]), "the last come first");
    let named = list(&world, "_all", json!({"tenant": "rare"})).await;
    assert_eq!(ids(&named), ids(&listed));
    assert_eq!(world.try_request("rare", "runs.list", json!({"tenant": "default"})).await.unwrap_err().code, 403);
    for wrong in [json!({"cursor": "7"}), json!({"limit": 0}), json!({"limit": 501}), json!({"run_id": "r"})] {
        assert_eq!(world.try_request("default", "runs.list", wrong).await.unwrap_err().code, 400);
    }
    node.stop().await;
}

/// Given runs of two types, when a person lists and counts them at a terminal, then tables, pages and JSON agree.
#[tokio::test]
async fn a_person_lists_and_counts_runs() {
    let world = world().await;
    let node =
        world.node().with("types.broken", &served_by("fail", &format!("max_attempts = 1\n{AT_ONCE}"))).start().await;
    let done = many(&world, "noop", 30).await;
    let dead = many(&world, "broken", 4).await;
    for run in done.iter().chain(&dead) {
        world.wait(run).await;
    }
    let Said { code, out, err } = say(&world, "runs list --type broken").await;
    assert_eq!((out.lines().count(), code), (5, 0), "{out} {err}");
    assert!(dead.iter().all(|run| out.contains(run.as_str())) && out.contains("retryable: "), "{out}");
    let Said { out, err, .. } = say(&world, "runs list --limit 10").await;
    assert!(out.lines().count() == 11 && err.contains("--cursor"), "{out} {err}");
    let out = say(&world, "runs list --all --json").await.out;
    let lines: Vec<Value> = out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(ids(&lines), done.iter().chain(&dead).cloned().collect());
    let answer = say(&world, "runs list --state dead --json").await.json();
    assert_eq!(ids(answer["runs"].as_array().unwrap()), dead.iter().cloned().collect());
    assert!(say(&world, "runs list --state expired").await.err.contains("no runs"));
    let out = say(&world, "runs count").await.out;
    let row = |words: [&str; 4]| out.lines().any(|line| line.split_whitespace().eq(words));
    assert!(row(["main", "noop", "completed", "30"]) && row(["main", "broken", "dead", "4"]), "{out}");
    assert!(out.lines().last().unwrap().ends_with("34"), "{out}");
    let counted = say(&world, "runs count --state completed --json").await.json();
    assert_eq!((&counted["total"], &counted["counts"][0]["type"]), (&json!(30), &json!("noop")));
    assert_eq!(say(&world, "runs list --state asleep").await.code, 2);
    node.stop().await;
}
