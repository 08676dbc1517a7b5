//! A node may die, freeze or panic between any two steps of the protocol: every job still ends exactly once.
//!
//! There is one test per fail point, each with its own world. `LONGSHORE_TEST_KILLS=20 cargo test --test promises
//! fail_points -- --nocapture --test-threads 1` kills more often and prints the state found after the kills;
//! docs/fail-points.md has the table.

use std::collections::HashSet;
use std::os::unix::process::ExitStatusExt;
use std::sync::Arc;

use longshore_actors::fail_point;
use longshore_harness::history::{History, Interruption, Rules, Silence};
use longshore_harness::load::{self, Load};
use longshore_harness::{Node, NodeBuilder, World};

use crate::{WITHIN, rules, times, world};

/// Jobs of each kind between two faults, so that each point is passed at least that many times.
const OF_EACH: usize = 2;

/// Points that only some jobs pass, so that the fault must come at the first or second pass.
const RARE: [&str; 5] = ["before-schedule", "after-schedule", "before-dead-letter", "after-dead-letter", "after-move"];

macro_rules! at_each_point {
    ($($name:ident $point:literal,)*) => {
        const TESTED: &[&str] = &[$($point),*];
        $(
            #[tokio::test]
            async fn $name() {
                nothing_is_lost_at($point).await;
            }
        )*
    };
}

at_each_point! {
    before_claim "before-claim",
    after_claim "after-claim",
    before_handler "before-handler",
    after_handler "after-handler",
    before_record "before-record",
    after_record "after-record",
    before_events "before-events",
    after_events "after-events",
    before_schedule "before-schedule",
    after_schedule "after-schedule",
    before_dead_letter "before-dead-letter",
    after_dead_letter "after-dead-letter",
    before_ack "before-ack",
    after_move "after-move",
}

#[test]
fn every_fail_point_is_tested() {
    // The other points are on separate paths: one_run.rs, keys.rs, head_of_line.rs, fairness.rs, cancel.rs, replay.rs,
    // shutdown.rs schedules.rs, reschedule.rs, pauses.rs, on_busy.rs, webhooks.rs, chains.rs, batches.rs and
    // http.rs test them.
    let submitted = [
        "before-note",
        "after-note",
        "after-publish",
        "before-make-way",
        "after-make-way",
        "after-key-mark",
        "after-mark",
    ];
    let keyed = ["after-takeover", "before-key", "before-line", "after-line"];
    let released = ["before-release", "after-release"];
    let parked = ["before-park", "after-park", "after-return"];
    let forwarded = ["after-copy", "after-take-out", "before-forward", "after-forward"];
    let asked_for = ["after-cancel", "after-replay-record", "after-replay-publish"];
    let steering = ["before-close", "before-stop", "before-check"];
    let fired = ["after-tick", "after-firing", "after-firing-run", "after-rescheduling"];
    let ordered = ["after-pause"];
    let posted = ["before-webhook-jobs", "after-webhook-jobs"];
    let chained = ["before-then", "after-then-record", "after-then"];
    let batched = ["before-batch-end", "after-batch-end", "after-batch-completing", "after-batch-done"];
    let (before, after) = TESTED.split_at(TESTED.len() - 2);
    let own = submitted.iter().chain(&keyed).chain(before).chain(&released).chain(after);
    let all: Vec<&str> = own
        .chain(&parked)
        .chain(&forwarded)
        .chain(&asked_for)
        .chain(&steering)
        .chain(&fired)
        .chain(&ordered)
        .chain(&posted)
        .chain(&chained)
        .chain(&batched)
        .copied()
        .collect();
    assert_eq!(all, fail_point::ALL);
}

#[test]
fn every_fail_point_stands_in_its_page() {
    let page = include_str!("../docs/fail-points.md");
    let table = page.lines().skip_while(|line| !line.starts_with("| point |")).skip(2);
    let points: Vec<&str> = table.map_while(|line| line.strip_prefix("| `")?.split('`').next()).collect();
    assert_eq!(points, fail_point::ALL);
}

/// Given a load of every kind, when nodes are killed, panic and freeze at this point, then each job ends exactly once,
/// as its kind must, and the history is sound.
async fn nothing_is_lost_at(point: &str) {
    let world = world().await;
    let log = Arc::clone(crate::without_node(node(&world)).await.log());
    let mut load = Load::new(&world).await;
    let mut interruptions = Vec::new();
    let mut findings = Findings::default();

    for number in 0..times("LONGSHORE_TEST_KILLS", 1) {
        load.publish(&world, OF_EACH).await;
        interruptions.push(killed_at(&world, point, number).await);
        findings.look(&world.history(&load.receipts(), Vec::new()).await);
    }

    // The node may pass the point before it reports that it is ready: jobs are waiting for it.
    let (mark, panic) = (log.mark(), format!("fail point {point}"));
    let first = node(&world).env("LONGSHORE_FAIL_POINTS", &format!("{point}=panic")).start().await;
    load.publish(&world, OF_EACH).await;
    let panicked = tokio::time::timeout(WITHIN, log.seen(mark, |line| line.contains(&panic))).await;
    assert!(panicked.is_ok(), "it did not reach {point}");
    load.ends(&world, WITHIN).await;
    assert!(first.stop().await.success(), "a panic that was contained leaves nothing behind\n{}", first.log().tail(20));

    let frozen = node(&world).env("LONGSHORE_FAIL_POINTS", &format!("{point}=stop")).start().await;
    load.publish(&world, OF_EACH).await;
    let stop = frozen_at(&frozen).await;
    let other = node(&world).name("other").start().await;
    load.ends(&world, WITHIN).await;
    let silence = Silence { node: stop.node.clone(), from: stop.at, until: jiff::Timestamp::now() };
    interruptions.push(stop);
    frozen.sigcont();
    load.publish(&world, OF_EACH).await;
    load.ends(&world, WITHIN).await;
    assert!(frozen.stop().await.success() && other.stop().await.success());

    let mut history = world.history(&load.receipts(), load.calls()).await;
    history.rules = Rules { silences: vec![silence], on_their_way: crate::ON_THEIR_WAY, ..rules(interruptions) };
    history.assert_sound();
    println!("{point}: {findings}; {} jobs in all ({})", load.accepted.len(), load.counts());
}

/// Given an attempt whose start is published, when the committer dies before it publishes anything else, then the log
/// has every event.
#[tokio::test]
async fn a_committer_that_dies_before_its_first_events_loses_no_start() {
    let world = world().await;
    let node = node(&world).env("LONGSHORE_FAIL_POINTS", "before-events=panic").start().await;
    // It lasts long enough for a record, so its start is published before its end.
    let receipt = world.publish("sleep").send(r#"{"ms":600}"#).await.unwrap();
    assert_eq!(world.ends(std::slice::from_ref(&receipt), WITHIN).await, ["completed"]);
    // Its message comes again, for the events of its end.
    crate::is_emptied(&world).await;
    assert!(node.stop().await.success());
    assert!(node.log().since(0).iter().any(|line| line.contains("fail point before-events")), "no committer died");
    let mut history = world.history(&[receipt], Vec::new()).await;
    history.rules = rules(Vec::new());
    history.assert_sound();
}

fn node(world: &World) -> NodeBuilder<'_> {
    world.node().name("node").config(load::SETTINGS).with("node", "lease = '1s'")
}

/// Starts a node that kills itself at the point, and waits until it is dead.
async fn killed_at(world: &World, point: &str, number: usize) -> Interruption {
    let most = if RARE.contains(&point) { OF_EACH } else { 8 };
    let nth = 1 + number % most;
    let doomed = node(world).env("LONGSHORE_FAIL_POINTS", &format!("{point}=kill@{nth}")).try_start().await;
    let status = match doomed {
        Ok(node) => node.wait_exit(WITHIN).await,
        // It found work, and died, before it could report that it was ready.
        Err(refusal) => refusal.status,
    };
    assert_eq!(status.signal(), Some(9), "it ended otherwise: {status}");
    Interruption { node: Some("node".to_owned()), at: jiff::Timestamp::now() }
}

/// Waits until the node has frozen itself: only the state of its process shows that.
async fn frozen_at(node: &Node) -> Interruption {
    longshore_harness::eventually(
        "a frozen node",
        WITHIN,
        async || {
            if node.is_frozen() { Ok(()) } else { Err("it runs") }
        },
    )
    .await;
    Interruption { node: Some(node.name().to_owned()), at: jiff::Timestamp::now() }
}

/// The state found after a kill, before any node goes on.
#[derive(Debug, Default)]
struct Findings {
    kills: usize,
    counts: [usize; COLUMNS.len()],
}

/// The columns of the table in docs/fail-points.md: unfinished jobs by their stored state.
const COLUMNS: [&str; 5] =
    ["no record", "running", "waiting for a time", "decided, unpublished", "dead, no dead letter"];

impl Findings {
    fn look(&mut self, history: &History) {
        self.kills += 1;
        let published: HashSet<&str> = history
            .events
            .iter()
            .filter(|logged| logged.event.event.is_end())
            .map(|logged| logged.event.run_id.as_str())
            .collect();
        let dead_letters: HashSet<&str> =
            history.dead_letters.iter().map(|dead_letter| dead_letter.run_id.as_str()).collect();
        let recorded: HashSet<&str> = history.records.iter().map(|record| record.run_id.as_str()).collect();
        let unknown = history.accepted.iter().filter(|accepted| !recorded.contains(accepted.run_id.as_str())).count();
        self.counts[0] += unknown;
        for record in &history.records {
            let run = record.run_id.as_str();
            let column = match record.state.as_str() {
                "running" => 1,
                "retrying" | "scheduled" | "enqueued" => 2,
                _ if !published.contains(run) => 3,
                "dead" if !dead_letters.contains(run) => 4,
                _ => continue,
            };
            self.counts[column] += 1;
        }
    }
}

impl std::fmt::Display for Findings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} kills; unfinished jobs found after them, in all", self.kills)?;
        COLUMNS.iter().zip(self.counts).try_for_each(|(column, count)| write!(f, " | {column}: {count}"))
    }
}
