//! A node whose machine is short of memory takes fewer jobs, says so, and takes as many as before once it is over.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use longshore_harness::{Reply, Scrape, eventually};
use serde_json::json;

use crate::http::on_a_free_port;
use crate::{WITHIN, is_emptied, served_by, world};

/// Has the machine say that so much of its memory is in use.
fn in_use(root: &Path, percent: u32) {
    let available = 100 - percent;
    let text = format!("MemTotal: 100000 kB\nMemFree: 1 kB\nMemAvailable: {available}000 kB\n");
    // Renamed, so that nobody reads one half of it.
    std::fs::write(root.join("proc/new"), text).unwrap();
    std::fs::rename(root.join("proc/new"), root.join("proc/meminfo")).unwrap();
}

/// Given a node with 16 workers, when 97 % of its machine's memory are in use, then it warns, and works on about an
/// eighth as many jobs at once; all are done; and when the memory is free again, then it works on as many as before.
#[tokio::test]
async fn a_node_short_of_memory_takes_fewer_jobs_until_it_is_over() {
    let (world, machine) = (world().await, tempfile::tempdir().unwrap());
    std::fs::create_dir(machine.path().join("proc")).unwrap();
    in_use(machine.path(), 97);
    let mut system = world.live_events("_sys").await;
    let (at_once, most) = (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
    let seen = Arc::clone(&most);
    let handler = world.handler("work").announce("longshore.slots", "64").start(move |_| {
        let (at_once, most) = (Arc::clone(&at_once), Arc::clone(&seen));
        async move {
            most.fetch_max(at_once.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            tokio::time::sleep(Duration::from_millis(60)).await;
            at_once.fetch_sub(1, Ordering::SeqCst);
            Reply::json(json!(null))
        }
    });
    let handler = handler.await;
    let node = on_a_free_port(world.node())
        .with("queues.main", "concurrency = 16")
        .with("types.work", &served_by("remote", ""));
    let node = node.with("pressure", &format!("root = '{}'", machine.path().display())).start().await;
    let shown = async |name: &str, resource: &str| Scrape::of(&node).await.value(name, &[("resource", resource)]);
    let warnings = async || world.request("health", json!({})).await["warnings"].clone();

    let event = system.until("pressure", |live| live.body["event"] == "node_under_pressure").await;
    assert_eq!((event.body["memory"].as_f64(), &event.body["cpu"]), (Some(0.97), &json!(null)), "{}", event.body);
    eventually("the last step", WITHIN, async || {
        let warnings = warnings().await;
        if warnings[0].as_str().is_some_and(|text| text.contains("one in 8")) { Ok(()) } else { Err(warnings) }
    })
    .await;
    assert_eq!(shown("longshore_held_back_steps", "memory").await, Some(3.0));
    assert_eq!(shown("longshore_pressure_ratio", "memory").await, Some(0.97));
    world.publish("work").many((0..40).map(|number| json!(number))).await;
    handler.called(40).await;
    is_emptied(&world).await;
    // Two of sixteen; it had asked for up to two more before it was short.
    let short = most.swap(0, Ordering::SeqCst);
    assert!((1..=4).contains(&short), "{short} at once");

    in_use(machine.path(), 50);
    system.until("relief", |live| live.body["event"] == "node_relieved").await;
    assert_eq!(warnings().await, json!([]));
    assert_eq!(shown("longshore_held_back_steps", "memory").await, Some(0.0));
    assert_eq!(shown("longshore_pressure_ratio", "memory").await, Some(0.5));
    // Its rate was low, so it begins with few jobs.
    eventually("as many as before", WITHIN, async || {
        world.publish("work").many((0..40).map(|number| json!(number))).await;
        is_emptied(&world).await;
        match most.load(Ordering::SeqCst) {
            9.. => Ok(()),
            few => Err(format!("{few} at once")),
        }
    })
    .await;
    assert!(node.stop().await.success());
}
