//! What is said of runs in each state.

use serde_json::{Value, json};

use super::*;

fn at(text: &str) -> Timestamp {
    Timestamp::parse(&format!("2026-11-21T12:{text}Z")).unwrap()
}

fn facts(state: &str, more: &Value, events: &[Value]) -> Facts {
    let mut record = json!({"run_id": "main-p5-7", "tenant": "default", "queue": "main", "priority": 5,
        "type": "email.send", "round": 1, "max_attempts": 12, "state": state, "enqueued_at": at("00:00")});
    record.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    Facts {
        record: serde_json::from_str(&record.to_string()).unwrap(),
        events: events.to_vec(),
        read_until: None,
        queue: None,
        nodes: None,
        breakers: Vec::new(),
        now: at("10:00"),
    }
}

fn event(name: &str, when: &str, more: &Value) -> Value {
    let mut event = json!({"id": format!("{name}{when}"), "event": name, "at": at(when), "node": "n1", "queue": "main",
        "priority": 5, "attempt": 1, "max_attempts": 12});
    event.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    event
}

fn texts(facts: &Facts) -> Vec<String> {
    facts.lines().into_iter().map(|line| line.text).collect()
}

#[test]
fn a_retry_is_shown_with_what_it_waited_for_and_when_it_comes() {
    let error = json!({"kind": "retryable", "message": "no route."});
    let events = [
        event("enqueued", "00:00", &json!({})),
        event("deferred", "00:01", &json!({"reason": "no_handler_online", "run_at": at("00:03")})),
        event("started", "00:04", &json!({})),
        event("progress", "00:05", &json!({"progress": 1})),
        event("failed", "00:06", &json!({"error": error, "duration_ms": 2_000, "retry_at": at("20:06")})),
    ];
    let facts = facts("retrying", &json!({"attempt": 1, "run_at": at("20:06"), "error": error}), &events);
    assert_eq!(
        texts(&facts),
        [
            "enqueued in queue main with priority 5",
            "not started: it waited for a handler of its type; looked at again 2.0 s later; this uses up no attempt",
            "attempt 1 of 12 started on n1, after 4.0 s of waiting",
            "the attempt failed after 2.0 s: retryable: no route.; the next one is due 20 min 0 s later",
        ]
    );
    assert_eq!(
        facts.summary(),
        [
            "Attempt 2 of 12 starts at 2026-11-21T12:20:06.000Z (in 10 min).",
            "The last one failed: retryable: no route.",
            "longshore runs run-now main-p5-7 starts it at once.",
        ]
    );
}

#[test]
fn a_command_names_the_tenant_of_the_run() {
    let facts = facts("retrying", &json!({"tenant": "acme", "attempt": 1, "run_at": at("20:06")}), &[]);
    let command = "longshore --tenant acme runs run-now main-p5-7 starts it at once.";
    assert!(facts.summary().iter().any(|said| said == command), "{:?}", facts.summary());
}

#[test]
fn a_run_that_is_due_is_not_to_be_started_by_hand() {
    let facts = facts("retrying", &json!({"attempt": 1, "run_at": at("09:00")}), &[]);
    assert!(!facts.summary().iter().any(|said| said.contains("run-now")), "{:?}", facts.summary());
}

#[test]
fn a_run_that_nothing_can_bring_on_is_shown_with_the_remedy() {
    let waits = json!({"reason": STRANDED, "message": "waits for nothing: no message of it is left"});
    let attempt = json!({"round": 1, "attempt": 1, "started_at": at("00:00"), "node": "n1"});
    let running = json!({"attempt": 1, "node": "n1", "attempts": [attempt], "waiting_for": waits});
    let remedy = "No node will start it again: longshore runs cancel main-p5-7 ends it; then submit its job again.";
    let mut lost = facts("running", &running, &[event("started", "00:00", &json!({}))]);
    lost.nodes = Some(Vec::new());
    assert_eq!(
        lost.summary(),
        [
            "Attempt 1 of 12 started 10 min ago on n1, and no end of it is known.",
            "It waits for nothing: no message of it is left.",
            remedy,
        ]
    );
    let scheduled = facts("scheduled", &json!({"run_at": at("05:00"), "waiting_for": waits}), &[]);
    assert_eq!(scheduled.summary()[0], "Its time came 5 min ago, and it did not start.");
    assert_eq!(scheduled.summary()[2], remedy);
}

#[test]
fn what_waits_is_shown_with_its_queue_its_breaker_and_why_it_was_put_off() {
    let events =
        [event("enqueued", "00:00", &json!({})), event("deferred", "08:00", &json!({"reason": "breaker_open"}))];
    let mut facts = facts("enqueued", &json!({}), &events);
    facts.queue = serde_json::from_value(json!({"concurrency": 64, "depth": 1_298, "depths": {}, "oldest_age_ms": 1,
        "paused": false, "queue": "main", "running": 64, "served": true}))
    .unwrap();
    facts.breakers = serde_json::from_value(json!([{"failures": 5, "probes": 0, "since": at("08:00"), "state": "open",
        "successes": 0, "tenant": "default", "times_opened": 1, "type": "email.send", "until": at("12:00")}]))
    .unwrap();
    facts.record.waiting_for =
        serde_json::from_value(json!({"reason": "breaker_open", "message": "waits for the breaker"})).unwrap();
    assert_eq!(
        facts.summary(),
        [
            "It has been waiting for 10 min 0 s.",
            "It waits for the breaker.",
            "It was put off 2 min ago: it waited for the breaker of its type.",
            "The circuit breaker of email.send is open until 2026-11-21T12:12:00.000Z (in 2 min).",
            "In queue main 1,234 jobs wait, and 64 of 64 workers are busy.",
        ]
    );
    facts.queue.as_mut().unwrap().depth = 65;
    assert_eq!(facts.summary().last().unwrap(), "In queue main 1 job waits, and 64 of 64 workers are busy.");
    facts.queue.as_mut().unwrap().served = false;
    assert!(facts.summary().last().unwrap().starts_with("No node serves queue main: "));
}

#[test]
fn a_job_that_no_node_has_looked_at_is_not_said_to_lack_events() {
    let unread = |state: &str, more: Value| {
        facts(state, &more, &[]).summary().iter().any(|said| said.starts_with("The event log has nothing of it"))
    };
    assert!(!unread("enqueued", json!({"waiting_for": {"reason": "worker", "message": "waits for a worker"}})));
    assert!(unread("completed", json!({"attempt": 1})));
}

#[test]
fn a_lost_node_is_named() {
    let attempt = json!({"round": 1, "attempt": 2, "started_at": at("09:00"), "node": "n1"});
    let more = json!({"attempt": 2, "node": "n1", "attempts": [attempt], "progress": {"percent": 40}});
    let mut facts = facts("running", &more, &[]);
    facts.nodes = Some(Vec::new());
    assert_eq!(
        facts.summary()[..3],
        [
            "Attempt 2 of 12 has been running for 1 min 0 s on n1.",
            "Node n1 is not there any more: once the lease is over another node takes the job.",
            "Its handler last reported: {\"percent\":40}.",
        ]
    );
}

#[test]
fn what_the_log_does_not_have_yet_is_said_by_the_record() {
    let attempt = json!({"round": 1, "attempt": 1, "started_at": at("00:01"), "ended_at": at("00:04"), "node": "n1"});
    let more = json!({"attempt": 1, "attempts": [attempt], "ended_at": at("00:04")});
    let mut facts = facts("completed", &more, &[event("enqueued", "00:00", &json!({}))]);
    let all = ["enqueued in queue main with priority 5", "attempt 1 started on n1", "ended: completed"];
    assert_eq!(texts(&facts), all);
    assert_eq!(
        facts.summary().last().unwrap(),
        "The event log did not have its end yet when it was read; its record has."
    );
    facts.read_until = Some(at("00:00"));
    assert_eq!(texts(&facts), all);
    assert!(facts.summary().last().unwrap().contains("give it more time"), "{:?}", facts.summary());
    (facts.events, facts.read_until) = (vec![event("completed", "00:04", &json!({}))], None);
    assert_eq!(texts(&facts), ["completed"]);
    assert_eq!(facts.summary().len(), 2, "{:?}", facts.summary());
}

#[test]
fn without_the_log_the_record_is_enough() {
    let error = json!({"kind": "permanent", "message": "no such address"});
    let attempt = |nth: u32, from: &str, to: &str, more: &Value| {
        let mut attempt = json!({"round": 1, "attempt": nth, "started_at": at(from), "ended_at": at(to), "node": "n1"});
        attempt.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        attempt
    };
    let attempts = [
        attempt(1, "00:01", "00:02", &json!({"put_back": "released"})),
        attempt(1, "00:03", "00:04", &json!({"error": error})),
    ];
    let more = json!({"attempt": 1, "attempts": attempts, "ended_at": at("00:04"), "error": error});
    let facts = facts("dead", &more, &[]);
    assert_eq!(
        texts(&facts),
        [
            "enqueued in queue main with priority 5",
            "attempt 1 started on n1",
            "it was put back (released), which uses up no attempt",
            "attempt 1 started on n1",
            "it failed: permanent: no such address",
            "ended: dead",
        ]
    );
    let summary = facts.summary();
    assert_eq!(summary[0], "It failed for good at the first attempt: permanent: no such address.");
    assert_eq!(summary[1], "From being enqueued to its end it took 4.0 s, of which it ran 2.0 s.");
    assert!(summary[2].contains("longshore dlq replay main-p5-7"), "{summary:?}");
    let error = json!({"kind": "permanent", "message": ""});
    let erased = json!({"attempt": 1, "ended_at": at("00:04"), "error": error, "erased_at": at("00:05")});
    let summary = self::facts("dead", &erased, &[]).summary();
    assert_eq!(summary[0], "It failed for good at the first attempt: permanent.");
    assert_eq!(summary[2], "It was erased at 2026-11-21T12:00:05.000Z: its job is gone.");
}

/// Of what ran before a drain the record has nothing, once the attempt has started again.
#[test]
fn an_attempt_that_was_put_back_has_run_and_had_begun() {
    let events = [
        event("enqueued", "00:00", &json!({"round": 1})),
        event("started", "00:01", &json!({"round": 1})),
        event("released", "00:07", &json!({"round": 1, "duration_ms": 6_000})),
        event("started", "00:08", &json!({"round": 1})),
        event("deferred", "00:10", &json!({"round": 1, "reason": "busy", "run_at": at("00:11"), "duration_ms": 2_000})),
        event("deferred", "00:11", &json!({"round": 1, "reason": "no_handler_online", "run_at": at("00:12")})),
        event("started", "00:12", &json!({"round": 1})),
        event("completed", "00:20", &json!({"round": 1, "duration_ms": 8_000})),
    ];
    let attempt = json!({"round": 1, "attempt": 1, "started_at": at("00:12"), "ended_at": at("00:20"), "node": "n1"});
    let more = json!({"attempt": 1, "attempts": [attempt], "ended_at": at("00:20")});
    let mut run = facts("completed", &more, &events);
    assert!(run.summary()[1].ends_with("it took 20.0 s, of which it ran 16.0 s."), "{:?}", run.summary());
    let said = texts(&run);
    let put_back = "put back after 2.0 s: it waited for a handler of its type with room; looked at again 1.0 s later; \
                    this uses up no attempt";
    assert_eq!(said[4], put_back);
    assert!(said[5].starts_with("not started: it waited for a handler of its type;"), "{}", said[5]);

    // One that is cancelled before it starts again is in the record, too.
    let attempt = json!({"round": 1, "attempt": 1, "started_at": at("00:01"), "ended_at": at("00:07"), "node": "n1",
        "put_back": "released"});
    run = facts("cancelled", &json!({"attempt": 1, "attempts": [attempt], "ended_at": at("00:09")}), &events[..3]);
    assert!(run.summary()[1].ends_with("of which it ran 6.0 s."), "{:?}", run.summary());
}
