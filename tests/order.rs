//! Urgent jobs start first, by rank: the time of arrival, and how much later a job of that priority may arrive.

use longshore_harness::{EventName, World};
use serde_json::json;

use crate::{without_node, workers, world};

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
    tokio::time::sleep(std::time::Duration::from_millis(500)).await;
    let urgent = world.publish("noop").priority(1).json(json!({})).await;
    let lazy = world.publish("noop").priority(9).json(json!({})).await;

    node.restart().await;
    for run in [&old, &urgent, &lazy] {
        world.wait(run).await;
    }

    node.stop().await;
    assert_eq!(starts(&world).await, [old, urgent, lazy]);
}
