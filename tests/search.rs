//! A run is found by what its payload says at the places that its type declares, wherever its job is, and by nothing
//! else of it.

use std::collections::BTreeSet;
use std::time::Duration;

use longshore_harness::{World, http};
use serde_json::{Value, json};

use crate::cli::say;
use crate::http::on_a_free_port;
use crate::{AT_ONCE, served_by, workers, world};

/// The runs that are found by a value.
async fn found(world: &World, tenant: &str, value: &str) -> BTreeSet<String> {
    let answer = world.try_request(tenant, "runs.list", json!({"search": value, "limit": 500})).await.unwrap();
    assert!(answer.get("cursor").is_none(), "{answer}");
    answer["runs"].as_array().unwrap().iter().map(|run| run["run_id"].as_str().unwrap().to_owned()).collect()
}

fn set(runs: &[&String]) -> BTreeSet<String> {
    runs.iter().map(|run| (*run).clone()).collect()
}

fn order(id: Value) -> Value {
    json!({"order": {"id": id, "note": "private"}, "customer": {"email": "anna@example.org"}})
}

const PLACES: &str = "search = ['/order/id', '/customer/email']";

/// Given a type with places for search, when runs of it complete, die, wait for their time and wait in a lane that no
/// node has read, then each is found by its own value, over NATS, over HTTP and on the command line; runs of other
/// types and of other tenants are not, nor is anything found that stands at another place.
#[tokio::test]
async fn a_run_is_found_by_its_value_in_whatever_state_it_is() {
    let world = world().await;
    let node = workers(on_a_free_port(world.node()), 1)
        .with("types.order", &served_by("noop", PLACES))
        .with("types.broken", &served_by("fail", &format!("max_attempts = 1\n{AT_ONCE}\n{PLACES}")))
        .start()
        .await;
    let done = world.publish("order").json(order(json!("4711"))).await;
    let number = world.submit(json!({"type": "order", "payload": order(json!(12_345_678_901_234_567_890_u64))})).await;
    let dead = world.publish("broken").json(json!({"times": 9, "order": {"id": 4711}})).await;
    let other = world.publish("noop").json(order(json!("4711"))).await;
    let foreign = world.publish("order").tenant("acme").json(order(json!("4711"))).await;
    let later = world.submit(json!({"type": "order", "payload": order(json!("4711")), "delay_ms": 3_600_000})).await;
    for run in [&done, &number, &dead, &other] {
        world.wait(run).await;
    }
    world.wait_as("acme", &foreign, Duration::from_secs(60)).await;
    // The only worker is busy, and no node has written of what waits behind.
    let busy = world.publish("sleep").json(json!({"ms": 600_000})).await;
    world.eventually_is(&busy, "running", Duration::from_secs(60)).await;
    let waiting = world.publish("order").priority(8).json(order(json!("4711"))).await;
    assert!(world.record(&waiting).await.is_none());

    assert_eq!(found(&world, "default", "4711").await, set(&[&done, &dead, &later, &waiting]));
    assert_eq!(found(&world, "default", "anna@example.org").await, set(&[&done, &number, &later, &waiting]));
    assert_eq!(found(&world, "default", "12345678901234567890").await, set(&[&number]));
    assert_eq!(found(&world, "acme", "4711").await, set(&[&foreign]));
    for nothing in ["private", "471", "", "noop"] {
        assert_eq!(found(&world, "default", nothing).await, BTreeSet::new(), "{nothing}");
    }
    let record = world.request("runs.get", json!({"run_id": done})).await;
    assert_eq!(record["search"], json!(["4711", "anna@example.org"]));

    let page = http::get(node.http(), "/v1/runs?search=anna%40example.org&state=completed").await.unwrap().json();
    let over_http = page["runs"].as_array().unwrap().iter().map(|run| run["run_id"].as_str().unwrap().to_owned());
    assert_eq!(over_http.collect::<BTreeSet<_>>(), set(&[&done, &number]));
    let said = say(&world, "runs list --search 4711 --state scheduled --json").await.json();
    assert_eq!((&said["runs"][0]["run_id"], said["runs"].as_array().unwrap().len()), (&json!(later), 1));
    let letters = world.request("dlq.list", json!({"search": "4711"})).await;
    assert_eq!(letters["entries"][0]["run_id"], json!(dead));
    let cancelled = world.request("runs.cancel", json!({"search": "4711"})).await;
    assert_eq!(cancelled["cancelled"], 2, "{cancelled}");
    assert_eq!(world.wait(&waiting).await.state, "cancelled");
}

/// Given runs with values for search, when one is replayed with another payload, then it is found by that one's value;
/// the job that follows in a chain is found by its own; and what is erased is not found any more. The event log has
/// none of the values.
#[tokio::test]
async fn a_value_changes_with_the_payload_and_goes_with_it() {
    let world = world().await;
    let places = format!("max_attempts = 1\n{AT_ONCE}\nsearch = ['/id']");
    let node = world.node().with("types.broken", &served_by("fail", &places));
    let _node = node.with("types.next", &served_by("noop", "search = ['/id']")).start().await;
    let run = world.publish("broken").json(json!({"times": 9, "id": "first-value"})).await;
    assert_eq!(world.wait(&run).await.state, "dead");
    let changed = json!({"run_id": run, "set": {"payload": {"times": 0, "id": "second-value"}}});
    assert_eq!(world.request("dlq.replay", changed).await["replayed"], 1);
    world.eventually_is(&run, "completed", Duration::from_secs(60)).await;
    assert_eq!(found(&world, "default", "first-value").await, BTreeSet::new());
    assert_eq!(found(&world, "default", "second-value").await, set(&[&run]));

    let then = json!({"type": "next", "payload": {"id": "of-the-next"}});
    let first = world.submit(json!({"type": "next", "payload": {"id": "of-the-first"}, "then": then})).await;
    let next = format!("{first}-then");
    world.wait(&next).await;
    assert_eq!(found(&world, "default", "of-the-next").await, set(&[&next]));
    assert_eq!(found(&world, "default", "of-the-first").await, set(&[&first]));

    world.request("runs.erase", json!({"run_id": first})).await;
    assert_eq!(found(&world, "default", "of-the-first").await, BTreeSet::new());
    let logged = format!("{:?}", world.eventually_ends(&next).await);
    assert!(logged.contains(&next) && !logged.contains("of-the-next"), "{logged}");
}
