//! Urgent jobs start first, by rank: the time of arrival, and how much later a job of that priority may arrive.

use std::time::{Duration, Instant};

use longshore_harness::{EventName, World};
use serde_json::json;

use crate::{times, without_node, workers, world};

/// The runs in the order of their starts.
async fn starts(world: &World) -> Vec<String> {
    let log = world.event_log("default").await;
    let starts = log.into_iter().filter(|logged| logged.event.event == EventName::Started);
    starts.map(|logged| logged.event.run_id).collect()
}

/// Given strict priorities and jobs of all of them, when a worker starts, then it starts the most urgent jobs first,
/// and jobs of one priority in the order of their arrival.
#[tokio::test]
async fn the_most_urgent_starts_first() {
    let world = world().await;
    let node = without_node(workers(world.node(), 1)).await;
    let mut wanted = Vec::new();
    for priority in [9, 5, 1, 7, 3, 2, 8, 4, 6] {
        wanted.extend(world.publish("noop").priority(priority).many((0..4).map(|number| json!(number))).await);
    }
    wanted.sort_by_key(|receipt| (receipt.stream.clone(), receipt.sequence));

    node.restart().await;
    for receipt in &wanted {
        world.wait(&receipt.run_id).await;
    }

    node.stop().await;
    let wanted: Vec<String> = wanted.into_iter().map(|receipt| receipt.run_id).collect();
    assert_eq!(starts(&world).await, wanted);
}

/// Given aging, when an urgent job arrives later than its lead, then the job that waited longer starts first.
#[tokio::test]
async fn a_job_that_waited_longer_than_the_lead_of_the_urgent_starts_first() {
    let world = world().await;
    let node = without_node(world.node().with("queues.main", "concurrency = 1\naging = '100ms'")).await;
    let old = world.publish("noop").priority(3).json(json!({})).await;
    // p1 leads p3 by 200 ms.
    tokio::time::sleep(Duration::from_millis(500)).await;
    let urgent = world.publish("noop").priority(1).json(json!({})).await;
    let lazy = world.publish("noop").priority(9).json(json!({})).await;

    node.restart().await;
    for run in [&old, &urgent, &lazy] {
        world.wait(run).await;
    }

    node.stop().await;
    assert_eq!(starts(&world).await, [old, urgent, lazy]);
}

/// The number of jobs that nodes may have buffered or running: a job may wait behind those, whatever their rank
/// (docs/queues.md).
const BUFFERED: usize = 3 * (4 + 64);

/// Given three nodes that get more jobs than they can do, nearly all of them urgent, when a few less urgent ones are
/// among them, then those get through as the aging says, and no job waits behind more jobs of a later rank than nodes
/// may have buffered.
#[tokio::test]
async fn in_a_flood_of_urgent_jobs_each_job_waits_within_its_bound() {
    const AGING_MS: i64 = 100;
    let world = world().await;
    let node = |name: &str| {
        let settings = format!("concurrency = 4\naging = '{AGING_MS}ms'");
        world.node().name(name).with("queues.main", &settings).with("types.flood", "handler = 'sleep'")
    };
    let nodes = [node("a").start().await, node("b").start().await, node("c").start().await];
    let mut jobs = Vec::new();
    // For longer than the urgent ones are ahead of the others, however quickly they are published.
    let (begun, mut rounds) = (Instant::now(), times("LONGSHORE_TEST_FLOOD", 15));
    while rounds > 0 || begun.elapsed() < Duration::from_millis(2 * 8 * AGING_MS.unsigned_abs()) {
        rounds = rounds.saturating_sub(1);
        let publish = |priority: u8| world.publish("flood").priority(priority);
        // 100 jobs of 20 ms at a time: 12 workers do them in 170 ms at the least.
        jobs.extend(publish(1).many((0..97).map(|_| json!({"ms": 20}))).await);
        for priority in [3, 5, 9] {
            jobs.extend(publish(priority).many([json!({"ms": 20})]).await);
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let ends = world.ends(&jobs, Duration::from_secs(120)).await;
    assert!(ends.iter().all(|state| state == "completed"));
    for node in &nodes {
        assert!(node.stop().await.success());
    }

    let history = world.history(&jobs, Vec::new()).await;
    history.assert_sound();
    // In the order of their starts.
    let mut runs: Vec<(i64, i64, u8)> = Vec::new();
    for record in &history.records {
        let (from, start) = (record.enqueued_at.unwrap(), record.started_at.unwrap());
        let rank = from.as_millisecond() + i64::from(record.priority - 1) * AGING_MS;
        runs.push((start.as_millisecond(), rank, record.priority));
    }
    runs.sort_unstable();
    let behind = |at: usize| runs[..at].iter().filter(|(_, rank, _)| *rank > runs[at].1).count();
    let of = |wanted: &dyn Fn(u8) -> bool| {
        let chosen = (0..runs.len()).filter(|at| wanted(runs[*at].2));
        let mut behind: Vec<usize> = chosen.map(behind).collect();
        behind.sort_unstable();
        (behind[behind.len() / 2], behind[behind.len() * 99 / 100], *behind.last().unwrap())
    };
    let waited: Vec<i64> = history
        .records
        .iter()
        .map(|record| record.started_at.unwrap().as_millisecond() - record.enqueued_at.unwrap().as_millisecond())
        .collect();
    println!(
        "{} jobs, the longest wait {} ms; jobs of a later rank that started before a job (p50, p99, max): all {:?}, p9 {:?}",
        runs.len(),
        waited.iter().max().unwrap(),
        of(&|_| true),
        of(&|priority| priority == 9)
    );
    let (_, most, _) = of(&|_| true);
    assert!(most <= BUFFERED, "a job waited behind {most} of a later rank");
    // The last job of the flood came when all p9 jobs but the last few had their turn before it.
    let last_urgent = runs.iter().rposition(|(_, _, priority)| *priority == 1).unwrap();
    let p9_before = runs[..last_urgent].iter().filter(|(_, _, priority)| *priority == 9).count();
    assert!(p9_before > 0, "no p9 job got through the flood");
}
