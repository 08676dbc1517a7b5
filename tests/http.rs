//! A node answers probes over HTTP, whatever it is doing, and serves its metrics.

use std::net::SocketAddr;

use longshore_harness::http::{Page, get};
use longshore_harness::{Handler, Node, NodeBuilder, Reply, World, eventually};
use serde_json::json;
use tokio::sync::watch;

use crate::{WITHIN, world};

/// HTTP on a free port.
pub(crate) fn on_a_free_port(node: NodeBuilder<'_>) -> NodeBuilder<'_> {
    node.with("http", "listen = '127.0.0.1:0'")
}

pub(crate) async fn page(node: &Node, path: &str) -> Page {
    get(node.http(), path).await.unwrap_or_else(|error| panic!("{path}: {error:#}"))
}

/// The status of a page, and the reasons that it gives.
async fn readiness(address: SocketAddr) -> (u16, Vec<String>) {
    let page = get(address, "/readyz").await.unwrap();
    let body = page.json();
    assert_eq!(body["ready"], page.status == 200, "{body}");
    assert_eq!(page.media_type, "application/json; charset=utf-8");
    let reasons = body["reasons"].as_array().unwrap().iter().map(|reason| reason.as_str().unwrap().to_owned());
    (page.status, reasons.collect())
}

async fn becomes(address: SocketAddr, wanted: (u16, &[&str])) {
    eventually("readiness", WITHIN, async || {
        let (status, reasons) = readiness(address).await;
        if (status, reasons.iter().map(String::as_str).collect::<Vec<_>>()) == (wanted.0, wanted.1.to_vec()) {
            Ok(())
        } else {
            Err(format!("{status} {reasons:?}"))
        }
    })
    .await;
}

/// A handler that answers once it is let go.
pub(crate) async fn held(world: &World, job_type: &str) -> (Handler, watch::Sender<bool>) {
    let (open, gate) = watch::channel(false);
    let answer = move |_| {
        let mut gate = gate.clone();
        async move {
            gate.wait_for(|open| *open).await.unwrap();
            Reply::json(json!("done"))
        }
    };
    (world.handler(job_type).start(answer).await, open)
}

/// A node that takes work says so, and other pages say what there is.
#[tokio::test]
async fn a_node_is_probed_and_scraped() {
    let world = world().await;
    let node = on_a_free_port(world.node()).start().await;

    let alive = page(&node, "/healthz").await;
    assert_eq!((alive.status, alive.body.as_str()), (200, "ok\n"));
    assert_eq!(readiness(node.http()).await, (200, vec![]));
    let metrics = page(&node, "/metrics").await;
    assert_eq!((metrics.status, metrics.media_type.as_str()), (200, "text/plain; version=0.0.4; charset=utf-8"));
    assert!(metrics.body.contains("\n# TYPE longshore_leases_lost_total counter\n"), "{}", metrics.body);
    let unknown = page(&node, "/none").await;
    assert_eq!(
        (unknown.status, unknown.body.as_str()),
        (404, "there are the dashboard at /, /healthz, /readyz, /metrics and the API under /v1\n")
    );
}

/// Given a running job, when the node is asked to end, then it is alive and not ready until the job has ended.
#[tokio::test]
async fn a_draining_node_is_alive_and_not_ready() {
    let world = world().await;
    let node = on_a_free_port(world.node()).start().await;
    let (_handler, open) = held(&world, "slow").await;
    let mut live = world.live_events("default").await;
    let run = world.publish("slow").send("{}").await.unwrap().run_id;
    live.until_published("started", &run).await;
    let address = node.http();

    node.sigterm();

    becomes(address, (503, &["draining"])).await;
    assert_eq!(get(address, "/healthz").await.unwrap().status, 200);
    assert_eq!(get(address, "/metrics").await.unwrap().status, 200);
    open.send_replace(true);
    assert_eq!(node.wait_exit(WITHIN).await.code(), Some(0));
    assert!(get(address, "/healthz").await.is_err(), "nobody listens any more");
}

/// Given a node, when its server dies, then it is alive and not ready, until the server is back.
#[tokio::test]
async fn a_node_without_nats_is_alive_and_not_ready() {
    let world = world().await;
    let node = on_a_free_port(world.node()).start().await;
    let address = node.http();

    world.server().kill9().await;

    eventually("not ready", WITHIN, async || {
        let (status, reasons) = readiness(address).await;
        let says = reasons.iter().any(|reason| reason == "not connected to NATS");
        if status == 503 && says { Ok(()) } else { Err(format!("{status} {reasons:?}")) }
    })
    .await;
    assert_eq!(get(address, "/healthz").await.unwrap().status, 200);
    assert_eq!(get(address, "/metrics").await.unwrap().status, 200);
    world.server().restart().await.unwrap();
    becomes(address, (200, &[])).await;
}

/// Given a node, when its supervisor of a queue stands still, then the node is not alive, by HTTP and by NATS, while
/// its jobs go on; and when somebody deletes a stream or alters one so that jobs may be lost, then it is not ready, and
/// says which streams those are, until they are as before.
#[tokio::test]
async fn what_is_wrong_with_a_node_and_with_its_streams_is_said() {
    let world = world().await;
    let sound = on_a_free_port(world.node()).name("sound").start().await;
    let stuck = on_a_free_port(world.node()).name("stuck").env("LONGSHORE_FAIL_POINTS", "before-check=hang@1");
    let stuck = stuck.start().await;
    let health = async |node: &Node| {
        let health = world.try_request("_all", "health", json!({"node": node.name()})).await.unwrap();
        (health["live"].as_bool(), health["ready"].as_bool(), health["reasons"].clone(), health["warnings"].clone())
    };
    let silent = "a supervisor of this node does not answer: what dies is not started again; start the process again";
    eventually("a supervisor that stands still", WITHIN, async || {
        let page = page(&stuck, "/healthz").await;
        if (page.status, page.body.trim()) == (503, silent) { Ok(()) } else { Err(page.body) }
    })
    .await;
    becomes(stuck.http(), (503, &[silent])).await;
    assert_eq!(health(&stuck).await, (Some(false), Some(false), json!([silent]), json!([])));
    assert_eq!(health(&sound).await, (Some(true), Some(true), json!([]), json!([])));
    assert_eq!(page(&sound, "/healthz").await.status, 200);
    stuck.kill9().await;

    let jetstream = world.jetstream();
    let stored = async |name: &str| jetstream.get_stream(name).await.unwrap().cached_info().config.clone();
    let (keys, mut schedules) = (stored("KV_longshore_idempotency").await, stored("LONGSHORE_SCHEDULES").await);
    let right = schedules.clone();
    jetstream.delete_stream(&keys.name).await.unwrap();
    schedules.allow_direct = false;
    jetstream.update_stream(&schedules).await.unwrap();
    let mut events = stored("LONGSHORE_EVENTS").await;
    events.max_bytes /= 2;
    jetstream.update_stream(&events).await.unwrap();
    let (altered, gone) = (
        "stream LONGSHORE_SCHEDULES was altered: allow_direct is false, not true; a node sets it right at its start, if it can",
        "stream KV_longshore_idempotency is gone, and with it what it says about jobs: restore it from a backup, or restart a node, which makes it again, empty",
    );
    becomes(sound.http(), (503, &[gone, altered])).await;
    eventually("a warning of other bounds", WITHIN, async || {
        let (live, ready, reasons, warnings) = health(&sound).await;
        assert_eq!((live, ready, reasons), (Some(true), Some(false), json!([gone, altered])));
        let text = warnings[0].as_str().unwrap_or_default().to_owned();
        if text.starts_with("stream LONGSHORE_EVENTS has other bounds") { Ok(()) } else { Err(warnings) }
    })
    .await;
    jetstream.create_stream(keys).await.unwrap();
    jetstream.update_stream(&right).await.unwrap();
    becomes(sound.http(), (200, &[])).await;
}

/// Given a port that a node has, when another node is set to listen there, then it says which setting to change.
#[tokio::test]
async fn a_port_that_was_set_and_is_taken_is_named() {
    let world = world().await;
    let node = on_a_free_port(world.node()).start().await;

    let second = world.node().with("http", &format!("listen = '{}'", node.http())).try_start().await.unwrap_err();

    assert_eq!(second.status.code(), Some(1));
    let said =
        format!("error: cannot listen on {} (http.listen, LONGSHORE_HTTP__LISTEN): set another port", node.http());
    assert!(second.log.contains(&said), "{}", second.log);
    let nodes = world.try_request("_all", "nodes.list", json!({})).await.unwrap();
    assert_eq!(nodes["nodes"].as_array().unwrap().len(), 1, "it had not joined the others");
}

/// `longshore health` says by its exit code whether a node takes work: any node, one by name, or one by its port.
#[tokio::test]
async fn the_command_health_is_a_probe() {
    let world = world().await;
    let (a, b) = (on_a_free_port(world.node()).name("a").start().await, world.node().name("b").start().await);
    let (_handler, open) = held(&world, "slow").await;
    let mut live = world.live_events("default").await;
    let address = a.http().to_string();
    let asked = async |arguments: &[&str]| {
        let output = world.command(["health"].iter().chain(arguments).copied()).output().await.unwrap();
        let said = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8(said).unwrap().trim().to_owned())
    };
    let ready = (Some(0), "ready: the node takes work".to_owned());
    for arguments in [&[][..], &["--node", "a"], &["--node", "b"], &["--http", &address]] {
        assert_eq!(asked(arguments).await, ready, "{arguments:?}");
    }
    let (code, said) = asked(&["--node", "c"]).await;
    assert!(code == Some(1) && said.contains(r#"node: no node "c" answers"#), "{code:?} {said}");
    assert_eq!(asked(&["--node", "a.b"]).await.0, Some(1));
    let json = asked(&["--http", &address, "--json"]).await.1;
    assert_eq!(json, r#"{"ready":true,"reasons":[],"warnings":[]}"#);
    b.stop().await;
    let run = world.publish("slow").send("{}").await.unwrap().run_id;
    live.until_published("started", &run).await;

    a.sigterm();

    becomes(a.http(), (503, &["draining"])).await;
    let draining = (Some(1), "not ready: draining".to_owned());
    for arguments in [&["--node", "a"][..], &["--http", &address]] {
        assert_eq!(asked(arguments).await, draining, "{arguments:?}");
    }
    open.send_replace(true);
    a.wait_exit(WITHIN).await;
    let (code, said) = asked(&["--http", &address]).await;
    assert!(code == Some(1) && said.starts_with(&format!("error: no node answers at {address}")), "{code:?} {said}");
}
