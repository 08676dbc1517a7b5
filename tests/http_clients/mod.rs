//! Clients over HTTP that repeat what was not answered have each job done under one run, whichever node dies.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Stdio;

use futures_util::stream::{self, StreamExt as _};
use longshore_harness::{Job, Node, Reply, World, free_ports};
use serde::Deserialize;
use serde_json::json;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::Command;

use crate::{WITHIN, world};

#[derive(Deserialize)]
struct Said {
    statuses: BTreeMap<u16, u64>,
    runs: BTreeMap<String, Vec<String>>,
}

async fn node(world: &World, name: &str) -> Node {
    // The proxies find it at its address again.
    let port = free_ports(1)[0];
    let node = world.node().name(name).with("http", &format!("listen = '127.0.0.1:{port}'"));
    node.with("node", "lease = '2s'").start().await
}

/// Given 200 clients that submit 20 jobs each under keys of their own, through proxies, when nodes are killed and
/// started again meanwhile, then each key has one run, whose handler was called for it alone, and nobody sees another
/// failure than 502 and 503.
#[tokio::test]
async fn a_submission_that_is_repeated_is_one_run_whichever_node_dies() {
    let world = world().await;
    let handler =
        world.handler("count").announce("longshore.slots", "64").start(async |_: Job| Reply::json(json!(1))).await;
    let nodes = [node(&world, "n1").await, node(&world, "n2").await, node(&world, "n3").await];
    let addresses = nodes.iter().map(|node| node.http().to_string());
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/http_clients/retries.py");
    let mut clients = Command::new("python3");
    clients.arg(script).args(["200", "20"]).args(addresses).stdout(Stdio::piped()).kill_on_drop(true);
    let mut clients = match clients.spawn() {
        Ok(clients) => clients,
        Err(error) => return crate::skipped(&format!("clients over HTTP: {error}")),
    };
    let mut lines = BufReader::new(clients.stdout.take().unwrap()).lines();
    assert_eq!(lines.next_line().await.unwrap().as_deref(), Some("begun"));

    let kills = async {
        for round in 0..6 {
            handler.called((round + 1) * 400).await;
            let node = &nodes[round % 3];
            node.kill9().await;
            node.restart().await;
        }
    };
    let (said, ()) = tokio::join!(tokio::time::timeout(WITHIN, lines.next_line()), kills);
    let said: Said = serde_json::from_str(&said.expect("in time").unwrap().expect("the clients' report")).unwrap();
    assert!(clients.wait().await.unwrap().success());

    println!("statuses: {:?}", said.statuses);
    assert!(said.statuses.keys().all(|status| [200, 201, 502, 503].contains(status)), "{:?}", said.statuses);
    assert!(said.statuses[&502] > 0, "a kill was to be seen: {:?}", said.statuses);
    assert_eq!(said.runs.len(), 200 * 20);
    let mut submitted = BTreeSet::new();
    for (key, runs) in said.runs {
        let [run] = runs.as_slice() else { panic!("{key}: {runs:?}") };
        assert!(submitted.insert(run.clone()), "{run} is another key's, too");
    }
    let ended = stream::iter(&submitted).map(|run| world.wait(run)).buffer_unordered(64).map(|record| record.state);
    let ended: BTreeSet<String> = ended.collect().await;
    assert_eq!(ended, BTreeSet::from(["completed".to_owned()]));
    let called: BTreeSet<String> = handler.calls().into_iter().map(|call| call.run_id).collect();
    assert_eq!(called, submitted, "no run but those that the clients know of");
}
