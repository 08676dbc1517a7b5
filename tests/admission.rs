//! Only jobs that the settings take are run: `submit` refuses the others and names the bound, and a bare publish becomes a
//! dead letter that says why.

use serde_json::json;

use crate::world;

const BOUNDS: &str = "types = ['echo', 'noop']\ntenants = ['default', 'acme']";

/// Given bounds on types, tenants and payloads, when jobs beyond them are submitted, then each is refused by the bound
/// that it met, and nothing of it is stored.
#[tokio::test]
async fn a_job_that_is_not_taken_is_refused_by_the_bound_it_met() {
    let world = world().await;
    let node = world.node().with("admission", BOUNDS).with("types.echo", "payload_max = 10").start().await;
    let submit = async |tenant: &str, job| world.try_request(tenant, "submit", job).await;
    let job = |kind: &str, payload: &str| json!({"type": kind, "payload": payload, "run_id": "mine"});
    for (tenant, job, code, says) in [
        ("default", job("sleep", "x"), 403, "type: sleep is not among the types that are taken"),
        ("zeta", job("echo", "x"), 403, "tenant: zeta is not known"),
        ("default", job("echo", "123456789"), 413, "payload: has 11 bytes, 10 are allowed for its type (payload_max)"),
    ] {
        let refused = submit(tenant, job).await.unwrap_err();
        assert_eq!(refused.code, code, "{refused:?}");
        assert!(refused.message.contains(says), "{refused:?}");
        assert!(world.record_as(tenant, "mine").await.is_none());
    }
    let batch = json!({"jobs": [job("noop", "1234567890"), job("sleep", "x")]});
    let answer = world.request("submit.batch", batch).await;
    assert_eq!((&answer["jobs"][0]["run_id"], &answer["jobs"][1]["error"]), (&json!("mine"), &json!("forbidden")));
    assert_eq!(world.wait("mine").await.state, "completed");
    assert!(submit("acme", job("echo", "12345678")).await.is_ok());
    node.stop().await;
    world.history(&[], Vec::new()).await.assert_sound();
}

/// Given the same bounds, when jobs beyond them are published bare, then they become dead letters that name the bound; a
/// job within them runs; and once the bound is gone, the dead letter can be replayed.
#[tokio::test]
async fn a_bare_publish_that_is_not_taken_is_a_dead_letter_that_says_why() {
    let world = world().await;
    let node = world.node().with("admission", BOUNDS).with("types.echo", "payload_max = 10").start().await;
    let of_type = world.publish("sleep").json(json!({"ms": 1})).await;
    let too_large = world.publish("echo").json(json!("123456789")).await;
    let of_tenant = world.publish("echo").tenant("zeta").json(json!(1)).await;
    let taken = world.publish("echo").json(json!(1)).await;
    assert_eq!(world.wait(&taken).await.state, "completed");
    for (tenant, run, says) in [
        ("default", &of_type, "admission.types"),
        ("default", &too_large, "payload_max"),
        ("zeta", &of_tenant, "admission.tenants"),
    ] {
        let end = world.wait_as(tenant, run, std::time::Duration::from_secs(30)).await;
        let error = end.error.unwrap();
        assert_eq!((end.state.as_str(), error.kind.as_str()), ("dead", "invalid"), "{run}");
        assert!(error.message.contains(says), "{}", error.message);
    }
    world.eventually_letters(3).await;
    let replay = json!({"run_id": of_type});
    let answer = world.request("dlq.replay", replay.clone()).await;
    assert_eq!(answer["replayed"], 0, "{answer}");
    assert!(answer["failed"][0]["error"].as_str().unwrap().contains("still refused"), "{answer}");
    node.stop().await;

    let node = world.node().name("open").start().await;
    assert_eq!(world.request("dlq.replay", replay).await["replayed"], 1);
    assert_eq!(world.wait(&of_type).await.state, "completed");
    node.stop().await;
    world.history(&[], Vec::new()).await.assert_sound();
}
