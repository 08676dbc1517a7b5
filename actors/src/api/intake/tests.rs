//! What `submit` says of a job before a server is asked: each field's bounds, fields that contradict each other, and
//! what becomes of a job that is sound.

use std::collections::BTreeMap;
use std::time::Duration;

use base64::Engine as _;
use longshore_backbone::wire::api::{self, Endpoint as _};
use longshore_domain::job::{Unique, When};
use longshore_domain::policy::TypePolicy;
use longshore_domain::{JobType, Priority};
use serde_json::{Value, json};

use super::*;

/// Bytes of payload and headers that the server of these tests takes.
const ROOM: usize = 40_000;
/// 3,650 days and a millisecond.
const TOO_LONG: u64 = 3_650 * 86_400_000 + 1;

/// A job of type `t` with these fields, as the endpoint reads it.
fn request(fields: &Value) -> SubmitRequest {
    let mut job = json!({"type": "t"});
    job.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    api::Submit::read(job.to_string().as_bytes()).unwrap_or_else(|error| panic!("{fields} cannot be read: {error}"))
}

fn checked_by(policies: &Policies, fields: &Value) -> Result<Submission, ApiError> {
    check(policies, ROOM, None, &Tenant::parse("acme").unwrap(), &request(fields))
}

fn taken(fields: &Value) -> Submission {
    checked_by(&Policies::default(), fields).unwrap_or_else(|error| panic!("{fields} is refused: {error}"))
}

fn taken_options(fields: &Value) -> JobOptions {
    taken(fields).job.options.map(|options| *options).unwrap_or_default()
}

fn refused_by(policies: &Policies, fields: &Value) -> ApiError {
    checked_by(policies, fields).map(drop).expect_err(&format!("{fields} is taken"))
}

fn is_refused_with(fields: &Value, message: &str) {
    let error = refused_by(&Policies::default(), fields);
    assert_eq!((error.code, error.message.as_str()), (400, message), "{fields}");
}

fn text(bytes: usize) -> String {
    "x".repeat(bytes)
}

#[test]
fn a_value_out_of_bounds_is_refused_and_the_error_names_the_field_and_the_bound() {
    let table = [
        ("priority", json!(0), r#"priority "0" is not one of 1 (most urgent) to 9"#),
        ("priority", json!(10), r#"priority "10" is not one of 1 (most urgent) to 9"#),
        ("max_attempts", json!(0), "max_attempts: is not one of 1 to 1000"),
        ("max_attempts", json!(1_001), "max_attempts: is not one of 1 to 1000"),
        ("max_attempts", json!(1_u64 << 32 | 3), "max_attempts: is not one of 1 to 1000"),
        ("cost", json!(0), "cost: is not one of 1 to 1000000"),
        ("cost", json!(1_000_001), "cost: is not one of 1 to 1000000"),
        ("delay_ms", json!(TOO_LONG), "delay_ms: is more than 3650 days"),
        ("keep_ms", json!(TOO_LONG), "keep_ms: is more than 3650 days"),
        ("timeout_ms", json!(0), "timeout_ms: is zero"),
        ("timeout_ms", json!(TOO_LONG), "timeout_ms: is more than 3650 days"),
        ("expires_in_ms", json!(0), "expires_in_ms: is zero"),
        ("expires_in_ms", json!(TOO_LONG), "expires_in_ms: is more than 3650 days"),
        ("idempotency_key", json!(""), "idempotency_key: is empty"),
        ("idempotency_key", json!(text(513)), "idempotency_key: has 513 bytes, 512 are allowed"),
        ("concurrency_key", json!(""), "concurrency_key: is empty"),
        ("concurrency_key", json!(text(513)), "concurrency_key: has 513 bytes, 512 are allowed"),
        ("limit_key", json!(""), "limit_key: is empty"),
        // Bounds are in bytes, not in letters.
        ("limit_key", json!("ä".repeat(257)), "limit_key: has 514 bytes, 512 are allowed"),
        ("schema_version", json!(""), "schema_version: is empty"),
        ("schema_version", json!(text(65)), "schema_version: has 65 bytes, 64 are allowed"),
        ("tags", json!(["a", "b", "c", "d", "e", "f", "g", "h", "i"]), "tags: has 9 tags, 8 are allowed"),
        ("tags", json!([text(65)]), "tags: has a tag of 65 bytes, 64 are allowed"),
    ];
    for (field, value, message) in table {
        is_refused_with(&json!({ field: value }), message);
    }
    let keyed = |window: u64| json!({"idempotency_key": "k", "idempotency_window_ms": window});
    is_refused_with(&keyed(0), "idempotency_window_ms: is zero");
    is_refused_with(&keyed(TOO_LONG), "idempotency_window_ms: is more than 3650 days");
}

#[test]
fn a_value_that_cannot_be_read_is_refused_and_the_error_names_the_field_and_shows_the_value() {
    let table = [
        ("type", json!("a b"), r#"type "a b" "#),
        ("queue", json!("a.b"), r#"queue "a.b" "#),
        ("run_id", json!("a b"), r#"run_id "a b" "#),
        // A later job of the lane would have this id.
        ("run_id", json!("main-p5-7"), r#"run_id "main-p5-7" ends like a derived id"#),
        ("payload_base64", json!("%"), "payload_base64: "),
        ("run_at", json!("tomorrow"), "run_at: "),
        // The server's schedules end before the time of the calendar does.
        ("run_at", json!("9999-12-31T23:59:59Z"), "run_at: \"9999-12-31T23:59:59Z\" is later than a schedule can hold"),
        ("expires_at", json!("soon"), "expires_at: "),
        ("deadline", json!("soon"), r#"deadline: "soon" is neither an RFC 3339 time nor a duration"#),
        ("deadline", json!("0s"), "deadline: is zero"),
        ("schema_version", json!(" 1"), "schema_version: has a control character, or a blank at an end"),
        ("schema_version", json!("1\n"), "schema_version: has a control character, or a blank at an end"),
        ("tags", json!(["a,b"]), r#"tags: has a tag with a line break, another control character or a comma: "a,b""#),
        ("headers", json!({"": "x"}), "headers.: is not a valid header name"),
        ("headers", json!({"a b": "x"}), "headers.a b: is not a valid header name"),
        ("headers", json!({"a:b": "x"}), "headers.a:b: is not a valid header name"),
        ("headers", json!({"ä": "x"}), "headers.ä: is not a valid header name"),
        // A second line would be another header, such as one that only nodes write.
        ("headers", json!({"a": "x\r\nLongshore-Seal: 1"}), "headers.a: has a line break"),
        ("headers", json!({"a": "x\ny"}), "headers.a: has a line break"),
    ];
    for (field, value, message) in table {
        let error = refused_by(&Policies::default(), &json!({ field: value }));
        assert!(error.code == 400 && error.message.starts_with(message), "{field}: {value}: {error}");
    }
    for word in ["", "Window", "never"] {
        let allowed = "is not one of window, queued, active";
        is_refused_with(&json!({"idempotency_key": "k", "unique": word}), &format!("unique: {word:?} {allowed}"));
        let allowed = "is not one of return, reject, replace";
        is_refused_with(
            &json!({"idempotency_key": "k", "on_conflict": word}),
            &format!("on_conflict: {word:?} {allowed}"),
        );
    }
}

#[test]
fn a_client_sets_no_header_that_the_server_or_a_node_reads() {
    for name in ["Nats-Msg-Id", "nats-expected-stream", "Longshore-Seal", "LONGSHORE-RUN-ID", "longshore-priority"] {
        let reason = "names beginning with Nats- and Longshore- are not a client's; use the request's fields";
        is_refused_with(&json!({"headers": {name: "1"}}), &format!("headers.{name}: {reason}"));
    }
    let own = taken(&json!({"headers": {"X-Nats-Like": "a b", "Trace": ""}})).headers;
    assert_eq!((header::value_of(&own, "X-Nats-Like"), header::value_of(&own, "Trace")), (Some("a b"), Some("")));
}

#[test]
fn fields_that_contradict_each_other_are_refused_and_both_are_named() {
    let (at, enough) = ("2030-01-01T00:00:00Z", "one of them is enough");
    let both = |first: &str, second: &str| format!("{second}: stands beside {first}; {enough}");
    is_refused_with(&json!({"payload": 1, "payload_base64": "MQ=="}), &both("payload", "payload_base64"));
    is_refused_with(&json!({"payload": null, "payload_base64": ""}), &both("payload", "payload_base64"));
    is_refused_with(&json!({"run_at": at, "delay_ms": 0}), &both("run_at", "delay_ms"));
    is_refused_with(&json!({"expires_at": at, "expires_in_ms": 1}), &both("expires_at", "expires_in_ms"));
    for (field, value) in
        [("unique", json!("queued")), ("idempotency_window_ms", json!(1)), ("on_conflict", json!("reject"))]
    {
        is_refused_with(&json!({ field: value }), &format!("{field}: needs an idempotency_key"));
    }
}

#[test]
fn a_debounce_takes_the_place_of_the_fields_of_keys_and_times() {
    let beside = [
        ("idempotency_key", json!("k")),
        ("idempotency_window_ms", json!(1)),
        ("unique", json!("queued")),
        ("on_conflict", json!("return")),
        ("run_id", json!("r")),
        ("run_at", json!("2030-01-01T00:00:00Z")),
        ("delay_ms", json!(1)),
    ];
    for (field, value) in beside {
        let job = json!({"debounce": {"key": "k", "wait_ms": 1}, field: value});
        is_refused_with(&job, &format!("debounce: stands beside {field}, which it takes the place of"));
    }
    let table = [
        (json!({"key": "", "wait_ms": 1}), "debounce.key: is empty"),
        (json!({"key": text(513), "wait_ms": 1}), "debounce.key: has 513 bytes, 512 are allowed"),
        (json!({"key": "k", "wait_ms": 0}), "debounce.wait_ms: is zero"),
        (json!({"key": "k", "wait_ms": TOO_LONG}), "debounce.wait_ms: is more than 3650 days"),
        (json!({"key": "k", "wait_ms": 2, "max_wait_ms": 1}), "debounce.max_wait_ms: is shorter than wait_ms"),
        (json!({"key": "k", "wait_ms": 2, "max_wait_ms": TOO_LONG}), "debounce.max_wait_ms: is more than 3650 days"),
    ];
    for (debounce, message) in table {
        is_refused_with(&json!({ "debounce": debounce }), message);
    }
}

#[test]
fn a_debounced_job_waits_replaces_the_one_before_and_starts_in_the_end() {
    let now = Timestamp::from_millis(1_000);
    let job = taken(&json!({"debounce": {"key": "k", "wait_ms": 50, "max_wait_ms": 70}}));
    assert_eq!(job.on_conflict, OnConflict::Replace);
    let options = job.job.options.as_deref().unwrap();
    assert_eq!(options.idempotency_key.as_deref(), Some("k"));
    let wait = Some(When::After(Duration::from_millis(50)));
    assert_eq!((options.unique, options.run_at), (Unique::Queued, wait), "its key is free once it starts");
    assert_eq!(job.debounce.unwrap().starts_by(now), Some(Timestamp::from_millis(1_070)));
    // As long as others come it waits, if nothing is said; it may be set to wait for none.
    let for_ever = taken(&json!({"debounce": {"key": "k", "wait_ms": 50}}));
    assert_eq!(for_ever.debounce.unwrap().starts_by(now), None);
    let once = taken(&json!({"debounce": {"key": "k", "wait_ms": 50, "max_wait_ms": 50}}));
    assert_eq!(once.debounce.unwrap().starts_by(now), Some(Timestamp::from_millis(1_050)));
}

#[test]
fn the_values_at_the_bounds_are_taken_as_they_are() {
    let long = Duration::from_millis(TOO_LONG - 1);
    let low = taken_options(&json!({"max_attempts": 1, "cost": 1, "timeout_ms": 1, "keep_ms": 0, "delay_ms": 0}));
    assert_eq!((low.max_attempts, low.cost), (Some(1), Some(1)));
    assert_eq!((low.timeout, low.keep), (Some(Duration::from_millis(1)), Some(Duration::ZERO)));
    assert_eq!(low.run_at, Some(When::After(Duration::ZERO)), "a delay of zero is no delay");
    let high = taken_options(&json!({
        "max_attempts": 1_000, "cost": 1_000_000, "timeout_ms": TOO_LONG - 1, "keep_ms": TOO_LONG - 1,
        "delay_ms": TOO_LONG - 1, "expires_in_ms": TOO_LONG - 1, "idempotency_key": text(512),
        "idempotency_window_ms": TOO_LONG - 1, "schema_version": text(64), "tags": vec![text(64); 8],
    }));
    assert_eq!((high.max_attempts, high.cost), (Some(1_000), Some(1_000_000)));
    assert_eq!((high.timeout, high.keep, high.idempotency_window), (Some(long), Some(long), Some(long)));
    assert_eq!((high.run_at, high.expires), (Some(When::After(long)), Some(When::After(long))));
    assert_eq!(high.idempotency_key.unwrap().len(), 512);
    assert_eq!((high.schema_version.unwrap().len(), high.tags.len()), (64, 8));
    let last = Timestamp::LAST_SCHEDULE.to_string();
    assert_eq!(taken_options(&json!({ "run_at": last })).run_at, Some(When::At(Timestamp::LAST_SCHEDULE)));
    for number in 1..=9 {
        assert_eq!(taken(&json!({ "priority": number })).job.priority.number(), number);
    }
}

#[test]
fn a_job_that_says_nothing_is_of_the_main_queue_and_has_no_options() {
    let Submission { job, own_id, on_conflict, headers, payload, .. } = taken(&json!({}));
    assert_eq!((job.tenant.as_str(), job.queue, job.priority), ("acme", Queue::main(), Priority::DEFAULT));
    assert_eq!((job.options, own_id, on_conflict), (None, None, OnConflict::Return));
    assert!(headers.is_empty() && payload.is_empty(), "it is published as it is, without a header");
}

#[test]
fn a_node_reads_from_the_headers_of_a_job_what_its_client_asked_for() {
    let all = json!({
        "idempotency_key": " clé \n", "idempotency_window_ms": 1_001, "unique": "active", "on_conflict": "reject",
        "max_attempts": 7, "retry": "slow", "run_at": "2030-01-01T00:00:00.25Z", "timeout_ms": 1_500, "keep_ms": 2_500,
        "deadline": "7d", "expires_in_ms": 3_500, "concurrency_key": "c k", "limit_key": "\u{1}", "cost": 3,
        "schema_version": "2", "tags": [" a ", "", "b c"], "headers": {"X-Own": "yes"},
    });
    let policies = Policies { retries: [("slow".to_owned(), Default::default())].into(), ..Policies::default() };
    let job = checked_by(&policies, &all).map_err(|error| error.message).unwrap();
    assert_eq!(job.on_conflict, OnConflict::Reject);
    let asked = job.job.options.unwrap();
    assert_eq!(asked.tags, ["a", "b c"]);
    assert_eq!(asked.idempotency_key.as_deref(), Some(" clé \n"), "any text is a key");
    assert_eq!(header::read_job(&job.headers).unwrap().options, Some(asked));
    assert_eq!(header::value_of(&job.headers, "X-Own"), Some("yes"));

    // The other way to say the same times.
    let times = json!({"delay_ms": 1_500, "expires_at": "2030-01-01T00:00:00Z", "deadline": "2031-01-01T00:00:00Z"});
    let job = taken(&times);
    assert_eq!(header::read_job(&job.headers).unwrap().options, job.job.options);
    assert_eq!(job.job.options.unwrap().expires, Some(When::At(Timestamp::parse("2030-01-01T00:00:00Z").unwrap())));
}

#[test]
fn a_payload_is_passed_on_byte_for_byte() {
    let of = |job: &[u8]| {
        let submit = api::Submit::read(job).unwrap();
        check(&Policies::default(), ROOM, None, &Tenant::default_tenant(), &submit).map(|job| job.payload).unwrap()
    };
    let spaced = br#"{"type":"t","payload":{ "b": 1.0, "a":[ 1e3 ] }}"#;
    assert_eq!(of(spaced), r#"{ "b": 1.0, "a":[ 1e3 ] }"#);
    assert_eq!(of(br#"{"type":"t","payload":null}"#), "null", "null is a payload");
    assert_eq!(of(br#"{"type":"t"}"#), "");
    assert_eq!(of(br#"{"type":"t","payload_base64":"AP8K"}"#), &[0, 255, 10][..]);
}

#[test]
fn a_job_fits_into_one_message_of_the_server_or_is_refused() {
    let job = |payload: usize| json!({"payload_base64": base64(payload), "headers": {"ab": "cde"}});
    // A header's name and value, and the four bytes around them.
    assert_eq!(taken(&job(ROOM - 9)).payload.len(), ROOM - 9);
    let error = refused_by(&Policies::default(), &job(ROOM - 8));
    let message = "payload: payload and headers have 40001 bytes, 40000 are allowed by this NATS server's max_payload";
    assert_eq!((error.code, error.message.as_str()), (413, message));
}

#[test]
fn a_job_whose_headers_no_message_could_carry_on_is_refused() {
    let job = |bytes: usize| {
        let headers: BTreeMap<String, String> = (0..6).map(|nth| (format!("h{nth}"), text(bytes))).collect();
        json!({ "headers": headers })
    };
    assert_eq!(taken(&job(4_000)).headers.len(), 6);
    let error = refused_by(&Policies::default(), &job(4_096));
    assert!(error.code == 413 && error.message.starts_with("headers: have "), "{error}");
    assert!(error.message.ends_with(" bytes, 24576 are allowed"), "{error}");
}

fn base64(bytes: usize) -> String {
    base64::engine::general_purpose::STANDARD.encode(vec![0; bytes])
}

#[test]
fn a_job_that_the_settings_do_not_admit_is_refused_with_the_code_that_says_whose_fault_it_is() {
    let mut policies = Policies::default();
    policies.admission.types = Some([JobType::parse("other").unwrap()].into());
    assert_eq!(refused_by(&policies, &json!({})).code, 403, "a type that is not taken");
    policies.admission.types = None;
    policies.admission.tenants = Some([Tenant::parse("other").unwrap()].into());
    assert_eq!(refused_by(&policies, &json!({})).code, 403, "a tenant that is not known");
    policies.admission.tenants = None;
    policies.default_type = TypePolicy { payload_max: Some(2), ..TypePolicy::default() };
    assert_eq!(refused_by(&policies, &json!({"payload": 123})).code, 413, "more than its type takes");
    assert!(checked_by(&policies, &json!({"payload": 12})).is_ok());
}

#[test]
fn a_preset_that_is_not_configured_is_refused_with_those_that_are() {
    let none = "retry: no preset \"slow\" is configured; there is none; a section [retries.NAME] of the nodes' \
                configuration makes one";
    is_refused_with(&json!({"retry": "slow"}), none);
    let retries = ["fast", "steady"].map(|name| (name.to_owned(), Default::default()));
    let policies = Policies { retries: retries.into(), ..Policies::default() };
    let error = refused_by(&policies, &json!({"retry": "slow"}));
    assert_eq!(error.message, "retry: no preset \"slow\" is configured; there are: fast, steady");
    assert!(checked_by(&policies, &json!({"retry": "steady"})).is_ok());
}

#[test]
fn a_job_waits_for_its_time_only_if_that_lies_ahead() {
    let due_of = |fields: Value| due(&taken(&fields).job);
    assert_eq!(due_of(json!({})), None);
    assert_eq!(due_of(json!({"delay_ms": 0})), None);
    assert_eq!(due_of(json!({"run_at": "2001-01-01T00:00:00Z"})), None, "a time that is over means now");
    let ahead = Timestamp::parse("2200-01-01T00:00:00Z").unwrap();
    assert_eq!(due_of(json!({"run_at": ahead.to_string()})), Some(ahead));
    let hour = due_of(json!({"delay_ms": 3_600_000})).unwrap();
    assert!(hour > now().plus(Duration::from_secs(3_000)) && hour <= now().plus(Duration::from_secs(3_600)));
}

#[test]
fn an_own_id_is_the_runs_and_any_other_job_gets_a_new_one() {
    let own = taken(&json!({"run_id": "order-7"}));
    assert_eq!(own.own_id.as_ref().map(RunId::as_str), Some("order-7"));
    assert!(own.job.options.unwrap().own_run_id);
    let (first, second) = (taken(&json!({})).job.run_id, taken(&json!({})).job.run_id);
    assert_ne!(first, second);
}
