//! An operator sees and does the daily work in a browser: drive.py does it in Chromium, without Node. Where python3,
//! playwright (`pip install playwright axe-playwright-python`) or Chromium is missing, the test says so and passes.

use std::path::Path;
use std::time::Duration;

use longshore_harness::{Job, Node, Reply, World};
use serde_json::json;
use tokio::process::Command;

use crate::gateway_keys::key;
use crate::world;

/// What the driver ends with if it has no browser.
const NO_BROWSER: i32 = 77;
/// An error that would be markup, turns the reading direction and has characters that no eye sees.
const HOSTILE: &str =
    "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script> \u{202e}gnp.\u{7}";

async fn node(world: &World, name: &str, more: &str) -> Node {
    let http = format!("listen = '127.0.0.1:0'\n{more}");
    world
        .node()
        .name(name)
        .with("http", &http)
        .with("faults", "allowed = true")
        .with("queues.main", "concurrency = 8")
        .with("queues.mail", "")
        .with("webhooks", "allow = ['127.0.0.1/32']")
        .with("types.card", "handler = 'echo'\nredact = true")
        .with("types.\"email.send\"", "rate_limit = { rate = 20, per = '1s' }")
        .start()
        .await
}

/// Runs the driver against a node: what it prints is shown if it fails.
async fn drive(scene: &str, node: &Node, path: &str, arguments: &[&str]) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/dashboard/drive.py");
    let mut driver = Command::new("python3");
    driver.arg(script).arg(scene).arg(format!("http://{}{path}", node.http())).args(arguments).kill_on_drop(true);
    let Ok(output) = driver.output().await else {
        crate::skipped(&format!("dashboard, {scene}: python3 is missing"));
        return;
    };
    let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    match output.status.code() {
        Some(NO_BROWSER) => crate::skipped(&format!("dashboard, {scene}: {said}")),
        code => assert_eq!(code, Some(0), "{said}"),
    }
}

/// Watch a run live, fail, find among dead letters, replay with a change, complete; pause and resume a queue; filter,
/// select by keyboard, cancel: no console error, no report of the policy, no request to anywhere else, and nothing for
/// axe to find.
#[tokio::test]
async fn an_operator_does_the_daily_work_in_a_browser() {
    let world = world().await;
    let trace = "trace_url = 'https://traces.example/trace/{trace_id}?of=longshore'";
    let node = node(&world, "n1", trace).await;
    let handler = async |job: Job| {
        job.request("step-put", json!({"name": "charge", "n": 1, "result": 1}).to_string()).await.unwrap();
        Reply::error(400, HOSTILE)
    };
    let _handler = world.handler("hostile.job").announce("longshore.slots", "4").start(handler).await;
    drive("work", &node, "/", &[]).await;
}

/// With keys the page is open, but shows nothing without one; a session has the key's tenant and scopes, under the base
/// path too; and a key that may only read sees no button for what it may not do.
#[tokio::test]
async fn a_browser_sees_and_does_what_its_key_may() {
    let world = world().await;
    let node = node(&world, "n1", "auth = 'keys'\nbase_path = '/ops'\nenvironment = 'staging'").await;
    let (operator, reader) = (key(&world, "_all", "read,operate,reveal"), key(&world, "acme", "read"));
    let done = world.publish("card").tenant("acme").json(json!({"number": "4111-1111"})).await;
    assert_eq!(world.wait_as("acme", &done, Duration::from_secs(60)).await.state, "completed");
    drive("login", &node, "/ops/", &[&operator, &reader, &done]).await;
}

/// Two tabs show what the other one does. The node that answers them is killed while they are open: both go on with
/// another one, and the events that happened meanwhile are there, each once.
#[tokio::test]
async fn tabs_go_on_with_another_node_if_theirs_is_killed() {
    let world = world().await;
    let (one, other) = (node(&world, "n1", "").await, node(&world, "n2", "").await);
    let of_other = format!("http://{}/", other.http());
    drive("failover", &one, "/", &[&of_other, &one.pid().to_string()]).await;
}
