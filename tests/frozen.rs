//! A node that was frozen starts no job that another node has taken, however the freezes fall.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use longshore_harness::{EventName, LiveEvents, Node, World};
use serde_json::json;

use crate::{AT_ONCE, WITHIN, times, workers, world};

/// Longer than the lease of these tests.
const FREEZE: Duration = Duration::from_millis(3_000);

async fn node(world: &World, name: &str) -> Node {
    let settings = format!("max_attempts = 1000\n{AT_ONCE}");
    workers(world.node().name(name), 8).with("node", "lease = '2s'").with("defaults", &settings).start().await
}

/// Attempts that the node of this name began although another node had begun or ended them before.
fn begun_too_late(live: &LiveEvents, name: &str) -> Vec<String> {
    let events = || live.received().iter().filter_map(longshore_harness::Live::event);
    let mut others: BTreeMap<(String, u32), Timestamp> = BTreeMap::new();
    let by_others = |event: &longshore_harness::Event| event.node.as_deref() != Some(name);
    for event in events().filter(by_others) {
        if matches!(event.event, EventName::Started | EventName::Completed) {
            let at = others.entry((event.run_id, event.attempt)).or_insert(event.at);
            *at = event.at.min(*at);
        }
    }
    let late = events().filter(|event| event.event == EventName::Started && !by_others(event)).filter_map(|event| {
        let before = others.get(&(event.run_id.clone(), event.attempt))?;
        let says = || {
            format!("{} attempt {}: {} before at {before}, here at {}", event.run_id, event.attempt, "begun", event.at)
        };
        (*before < event.at).then(says)
    });
    late.collect()
}

/// Given three nodes and a steady load, when one is frozen past its lease, thaws, and is frozen again before it has
/// read everything in its socket, then it calls no handler for jobs that the others have taken meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_frozen_twice_starts_no_job_that_another_has_taken() {
    let world = world().await;
    let frozen = node(&world, "frozen").await;
    let (first, second) = (node(&world, "first").await, node(&world, "second").await);
    let mut live = world.live_events("default").await;

    let (rounds, mut receipts) = (times("LONGSHORE_TEST_FAULTS", 2), Vec::new());
    let publish = world.publish("sleep");
    let load = async {
        let mut tick = tokio::time::interval(Duration::from_millis(20));
        loop {
            tick.tick().await;
            receipts.push(publish.send(r#"{"ms":20}"#).await.unwrap());
        }
    };
    let freezes = async {
        for round in 0..rounds {
            tokio::time::sleep(Duration::from_secs(1)).await;
            // Sometimes in the middle of its reading, sometimes long after.
            for awake in [20 + 230 * (round as u64 % 3), 700] {
                frozen.sigstop();
                tokio::time::sleep(FREEZE).await;
                frozen.sigcont();
                tokio::time::sleep(Duration::from_millis(awake)).await;
            }
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    };
    tokio::select! {
        () = load => unreachable!("it goes on for ever"),
        () = freezes => {}
    }
    let ends = world.ends(&receipts, WITHIN).await;
    assert!(ends.iter().all(|state| state == "completed"));
    // By now the client has received everything published before this.
    let last = publish.json(json!({"ms": 1})).await;
    live.until_published("completed", &last).await;
    let late = begun_too_late(&live, "frozen");
    assert!(late.is_empty(), "{} starts too late:\n{}", late.len(), late.join("\n"));
    for node in [frozen, first, second] {
        assert!(node.stop().await.success());
    }
}

/// Given a node that is frozen between the start of an attempt and the call of its handler, when another node has done
/// the job, then the thawed node calls no handler.
#[tokio::test]
async fn an_attempt_that_began_before_a_freeze_calls_no_handler_after_it() {
    let world = world().await;
    let handler = world.handler("mail").start(|_| async { longshore_harness::Reply::json(json!({})) }).await;
    let settings = format!("max_attempts = 1000\n{AT_ONCE}");
    for (header, value) in [("X-None", "0"), ("Longshore-Run-Id", "own-1")] {
        let before = handler.calls().len();
        let frozen = workers(world.node().name("frozen"), 8).with("node", "lease = '2s'").with("defaults", &settings);
        let frozen = frozen.env("LONGSHORE_FAIL_POINTS", "before-handler=stop").start().await;
        let run = world.publish("mail").header(header, value).json(json!({})).await;
        longshore_harness::eventually("the node to stop itself", WITHIN, async || {
            if frozen.is_frozen() { Ok(()) } else { Err("it runs") }
        })
        .await;
        let other = node(&world, "other").await;
        assert_eq!(world.wait(&run).await.state, "completed");
        frozen.sigcont();
        // Once it works again, it has checked everything it held.
        other.stop().await;
        let next = world.publish("mail").json(json!({})).await;
        assert_eq!(world.wait(&next).await.state, "completed");
        assert_eq!(handler.calls().len(), before + 2, "{:?}", handler.calls());
        assert!(frozen.stop().await.success());
    }
}

/// Given a frozen node, when a client asks it something, then it is answered once the node goes on.
#[tokio::test]
async fn a_request_to_a_frozen_node_is_answered_after_it() {
    let world = world().await;
    let only = node(&world, "only").await;
    let run = world.publish("noop").json(json!({})).await;
    world.wait(&run).await;
    only.sigstop();

    let (answer, ()) = tokio::join!(world.try_request("default", "runs.get", json!({"run_id": run})), async {
        tokio::time::sleep(FREEZE).await;
        only.sigcont();
    });

    assert_eq!(answer.unwrap()["state"], "completed");
}
