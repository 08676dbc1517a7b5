//! A key is any text, and what belongs to a key needs one.

use serde_json::json;

use crate::world;

/// Given keys that no header can carry as they are, when jobs with them are submitted, then each is a run of its own,
/// and its own again if it is submitted again; the same for the keys of limits.
#[tokio::test]
async fn a_key_is_any_text() {
    let world = world().await;
    let node = world.node().start().await;
    let long = "ü".repeat(256);
    let keys = ["k", " k", "k ", "\tk", " ", "\n", "a\r\nLongshore-Delay: 1h", "\u{0}", "\u{a0}k", "a\u{2028}b", &long];
    for key in keys {
        let job =
            json!({"type": "echo", "payload": key, "idempotency_key": key, "limit_key": key, "concurrency_key": key});
        let first = world.request("submit", job.clone()).await;
        assert_eq!(first["deduplicated"], false, "{key:?} {first}");
        let run = first["run_id"].as_str().unwrap();
        let ended = world.wait(run).await;
        assert_eq!((ended.state.as_str(), ended.result), ("completed", Some(json!(key))), "{key:?}");
        let again = world.request("submit", job).await;
        assert_eq!((&again["run_id"], &again["deduplicated"]), (&json!(run), &json!(true)), "{key:?}");
        // Neither key makes the job one with a record of its own before its start.
        let bare = world.submit(json!({"type": "echo", "payload": 1, "limit_key": key, "concurrency_key": key})).await;
        assert_eq!(world.wait(&bare).await.state, "completed", "{key:?}");
    }
    for key in [String::new(), "x".repeat(513), "ü".repeat(257)] {
        let job = json!({"type": "echo", "idempotency_key": key});
        let refused = world.try_request("default", "submit", job).await.unwrap_err();
        assert_eq!((refused.code, refused.error.as_str()), (400, "malformed"), "{refused:?}");
        assert!(refused.message.starts_with("idempotency_key: "), "{refused:?}");
    }
    assert!(node.stop().await.success());
    world.history(&[], Vec::new()).await.assert_sound();
}

/// Given a key that was submitted, when it is published bare, as it is or in base64, then that is the same key.
#[tokio::test]
async fn a_bare_publish_can_have_any_key() {
    let world = world().await;
    let _node = world.node().start().await;
    for (key, header, value) in
        [("a\tb", "Longshore-Idempotency-Key", "a\tb"), ("a\nb", "longshore-idempotency-key-base64", "YQpi")]
    {
        let first = world.submit(json!({"type": "echo", "payload": 1, "idempotency_key": key})).await;
        let bare = world.publish("echo").header(header, value).json(json!(1)).await;
        assert_eq!(world.wait(&bare).await.duplicate_of, Some(first), "{key:?}");
    }
}

/// Given a bare job whose headers say how long a key holds, but name none, when a node takes it, then it is invalid and
/// says which header, as `submit` does.
#[tokio::test]
async fn what_belongs_to_a_key_needs_one() {
    let world = world().await;
    let _node = world.node().start().await;
    for (header, value, field) in [
        ("Longshore-Unique", "active", "unique"),
        ("Longshore-Unique", "window", "unique"),
        ("Longshore-Idempotency-Window", "5m", "idempotency_window_ms"),
    ] {
        let run = world.publish("echo").header(header, value).json(json!(1)).await;
        let error = world.wait(&run).await.error.unwrap();
        assert_eq!(error.kind, "invalid");
        assert!(error.message.contains(header) && error.message.contains("needs"), "{error:?}");
        let value = if field == "unique" { json!(value) } else { json!(300_000) };
        let refused = world.try_request("default", "submit", json!({"type": "echo", field: value})).await.unwrap_err();
        assert_eq!(refused.code, 400);
        assert!(refused.message.contains(field) && refused.message.contains("needs"), "{refused:?}");
    }
}
