//! When a server dies that leads a lane, a consumer, the run records, the schedules, the event log or the cluster
//! itself, the other two go on: nothing is lost, and every lane is served while it is away.
//!
//! The test prints how long no attempt started for each kind, and does not judge it: it depends on the machine.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use longshore_harness::standstill::{in_seconds, standstills};
use longshore_harness::{Logged, Receipt, ServerCluster, World};
use tokio::sync::watch;
use tokio::time::sleep;

use crate::three_servers::{load, not_ended, nothing_is_lost, steadily, three_nodes};
use crate::{WITHIN, three_servers, times};

/// A part that has a leader.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Led {
    Stream(&'static str),
    Consumer(&'static str, &'static str),
    Cluster,
}

const LANE: &str = "LONGSHORE_JOBS_main_P5";
const OTHER_LANE: &str = "LONGSHORE_JOBS_other_P5";
const SCHEDULES: &str = "LONGSHORE_SCHEDULES";

/// The part that the dead server led; this load needs each of them.
const KILLED: [(&str, Led); 7] = [
    ("a lane", Led::Stream(LANE)),
    ("run records", Led::Stream("KV_longshore_runs")),
    ("schedules", Led::Stream(SCHEDULES)),
    ("event log", Led::Stream("LONGSHORE_EVENTS")),
    ("the cluster itself", Led::Cluster),
    ("a lane's consumer", Led::Consumer(LANE, "work")),
    ("the consumer of due jobs", Led::Consumer(SCHEDULES, "due")),
];

/// The parts that the dying server never leads.
const SPARED: [Led; 2] = [Led::Stream(OTHER_LANE), Led::Consumer(OTHER_LANE, "work")];

async fn leader(servers: &ServerCluster, of: Led) -> Option<usize> {
    match of {
        Led::Stream(stream) => servers.stream_leader(stream).await,
        Led::Consumer(stream, consumer) => servers.consumer_leader(stream, consumer).await,
        Led::Cluster => servers.meta_leader().await,
    }
}

async fn step_down(servers: &ServerCluster, of: Led) -> Result<(), String> {
    match of {
        Led::Stream(stream) => servers.step_down_stream(stream).await,
        Led::Consumer(stream, consumer) => servers.step_down_consumer(stream, consumer).await,
        Led::Cluster => servers.step_down_meta().await,
    }
}

/// Moves leaderships until one server leads `what` and none of the other listed parts; returns that server.
async fn leads_alone(servers: &ServerCluster, what: Led) -> usize {
    for _ in 0..20 {
        servers.in_step().await;
        let Some(victim) = leader(servers, what).await else { continue };
        let others = KILLED.iter().map(|(_, led)| *led).chain(SPARED).filter(|other| *other != what);
        let mut is_alone = true;
        for other in others {
            if leader(servers, other).await == Some(victim) {
                is_alone = false;
                // It may have moved by itself: the next round checks again.
                let _ = step_down(servers, other).await;
            }
        }
        if is_alone {
            return victim;
        }
    }
    panic!("no server leads {what:?} alone");
}

/// The death of a server, and its return.
#[derive(Debug)]
struct Kill {
    /// The part that it alone led.
    kind: &'static str,
    at: Timestamp,
    until: Timestamp,
}

/// Kills the leader of each kind in turn, and restarts it only when jobs published after its death have ended.
async fn kill_leaders(world: &World, count: usize) -> Vec<Kill> {
    let (servers, mut kills) = (world.servers(), Vec::new());
    for (kind, led) in KILLED.iter().cycle().take(count) {
        let victim = leads_alone(servers, *led).await;
        let at = Timestamp::now();
        servers.server(victim).kill9().await;
        for queue in ["other", "main"] {
            let run =
                world.publish("delayed").queue(queue).until_stored(&format!("{queue} {}", kills.len()), "{}").await;
            assert_eq!(world.wait_as("default", &run.run_id, WITHIN).await.state, "completed", "{kind}");
        }
        sleep(Duration::from_secs(12)).await;
        kills.push(Kill { kind, at, until: Timestamp::now() });
        servers.server(victim).restart().await.unwrap();
    }
    servers.in_step().await;
    kills
}

/// For each kill, the longest time in which no attempt of that queue started while the server was away.
fn without_a_start(events: &[Logged], queue: &str, kills: &[Kill]) -> Vec<Duration> {
    let of_queue = events.iter().filter(|logged| logged.event.queue == queue).cloned().collect::<Vec<_>>();
    kills.iter().map(|kill| standstills(&of_queue, &[kill.at, kill.until])[0]).collect()
}

/// Given a steady load on two lanes, when servers are killed that lead a part all jobs need, then both lanes are served
/// while a server is away, and nothing is lost.
///
/// `LONGSHORE_TEST_LEADER_KILLS=14` kills the leader of each kind twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "much work for three servers: cargo xtask soak"]
async fn the_death_of_a_leader_stops_no_lane_and_loses_nothing() {
    let world = three_servers().await;
    let nodes = three_nodes(&world).await;

    let (over, is_over) = watch::channel(false);
    let faults = async {
        let kills = kill_leaders(&world, times("LONGSHORE_TEST_LEADER_KILLS", 2)).await;
        over.send_replace(true);
        kills
    };
    let other = load_other(&world, is_over.clone());
    let (stored, other, kills) = tokio::join!(load(&world, 40, is_over), other, faults);
    let open = not_ended(&world, &stored).await;
    let ends = world.ends(&other, WITHIN).await;
    assert!(ends.iter().all(|state| state == "completed"));

    let events = world.event_log("*").await;
    let (main, other) = (without_a_start(&events, "main", &kills), without_a_start(&events, "other", &kills));
    let mut by_kind: BTreeMap<&str, (Vec<Duration>, Vec<Duration>)> = BTreeMap::new();
    for (kill, (main, other)) in kills.iter().zip(main.into_iter().zip(other)) {
        let found = by_kind.entry(kill.kind).or_default();
        found.0.push(main);
        found.1.push(other);
    }
    println!(
        "{} jobs and {} of another queue; without a start after the death of the leader of",
        stored.len(),
        ends.len()
    );
    for (kind, (main, other)) in by_kind {
        println!("  {kind}: {}; the other queue: {}", in_seconds(&main), in_seconds(&other));
    }
    nothing_is_lost(&world, &nodes, stored, open).await;
}

/// Publishes jobs to the other queue until `over`, and returns all that were confirmed.
async fn load_other(world: &World, over: watch::Receiver<bool>) -> Vec<Receipt> {
    let publish = &world.publish("delayed").queue("other");
    steadily(20, over, |number| async move { publish.until_stored(&format!("other-{number}"), "{}").await }).await
}
