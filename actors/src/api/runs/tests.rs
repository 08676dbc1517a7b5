//! A run whose type keeps only failures: the event of its end is all that a caller who waits can be answered with.

use longshore_domain::policy::TypePolicy;
use serde_json::{Value, json};

use super::*;

/// Settings by which this type keeps only its failures.
fn keeping_failures(job_type: &str) -> Policies {
    let of_type = TypePolicy { history: History::Failures, ..TypePolicy::default() };
    Policies { types: [(JobType::parse(job_type).unwrap(), of_type)].into(), ..Policies::default() }
}

fn event(more: &Value) -> Vec<u8> {
    let mut event = json!({
        "event": "completed", "id": "x", "run_id": "main-p5-7", "tenant": "acme", "queue": "main", "priority": 5,
        "type": "mail.send", "round": 1, "attempt": 1, "max_attempts": 3, "at": "2026-03-01T08:00:01.500Z",
        "node": "n1", "duration_ms": 1_200, "result": {"sent": 1}, "tags": ["a"],
    });
    event.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    event.to_string().into_bytes()
}

#[test]
fn the_event_of_an_end_that_is_stored_nowhere_is_shown_as_the_record_would_be() {
    let record = end_published(&keeping_failures("mail.send"), &event(&json!({}))).unwrap();
    let record: Value = serde_json::from_slice(record.as_bytes()).unwrap();
    let expected = [
        ("run_id", json!("main-p5-7")),
        ("tenant", json!("acme")),
        ("state", json!("completed")),
        ("started_at", json!("2026-03-01T08:00:00.300Z")),
        ("ended_at", json!("2026-03-01T08:00:01.500Z")),
        ("node", json!("n1")),
        ("result", json!({"sent": 1})),
        ("tags", json!(["a"])),
    ];
    for (field, value) in expected {
        assert_eq!(record[field], value, "{field}");
    }
    let [attempt] = &record["attempts"].as_array().unwrap()[..] else { panic!("{record}") };
    assert_eq!((&attempt["started_at"], &attempt["ended_at"]), (&record["started_at"], &record["ended_at"]));
}

#[test]
fn an_end_that_has_a_record_is_read_from_that() {
    let policies = keeping_failures("mail.send");
    let none = |policies: &Policies, more: Value| end_published(policies, &event(&more)).is_none();
    assert!(none(&keeping_failures("sms.send"), json!({})), "its type keeps everything");
    assert!(none(&policies, json!({"attempt": 2})), "its first attempt failed: that is kept");
    for other in ["dead", "started", "cancelled"] {
        assert!(none(&policies, json!({"event": other})), "{other}");
    }
    assert!(end_published(&policies, b"{").is_none() && end_published(&policies, b"{}").is_none());
    assert!(end_published(&policies, &event(&json!({"result": null, "duration_ms": 0}))).is_some());
}
