//! Checks the types against the contract: each endpoint of its table has one, an example of each is read and written
//! unchanged, and its fields are those that the contract names.

use std::collections::BTreeSet;

use longshore_domain::{RunId, RunState};
use schemars::generate::SchemaSettings;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::*;
use crate::wire::json::compact;

const CONTRACT: &str = include_str!("../../../../docs/contract.md");

/// A row of the contract's table of endpoints, for an endpoint that works in this version.
struct Row {
    name: &'static str,
    for_operators: bool,
    request: &'static str,
    answer: &'static str,
}

fn rows() -> Vec<Row> {
    let (_, table) = CONTRACT.split_once("| endpoint | request | answer |\n|---|---|---|\n").unwrap();
    let mut rows = Vec::new();
    for line in table.lines().take_while(|line| line.starts_with('|')) {
        let cells: Vec<&str> = line.trim_matches('|').split(" | ").map(str::trim).collect();
        let [names, request, answer] = cells[..] else { panic!("not three cells: {line}") };
        if names.contains("[later]") {
            continue;
        }
        let name = names.split('`').nth(1).unwrap();
        rows.push(Row { name, for_operators: names.ends_with('*'), request, answer });
    }
    rows
}

/// The names that stand between these quotes in a text.
fn quoted(text: &str, quote: char) -> BTreeSet<&str> {
    let names = text.split(quote).skip(1).step_by(2);
    names.filter(|name| name.starts_with(|c: char| c.is_ascii_lowercase())).filter(|name| is_name(name)).collect()
}

fn is_name(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_')
}

/// The names of all fields, however deep; the keys of maps (queues, headers, priorities) are not fields.
fn fields(value: &Value, found: &mut BTreeSet<String>) {
    match value {
        Value::Array(items) => items.iter().for_each(|item| fields(item, found)),
        Value::Object(object) => {
            for (name, value) in object {
                found.insert(name.clone());
                match (name.as_str(), value) {
                    (
                        "headers" | "depths" | "waiting" | "deferred" | "oldest_ms" | "payload" | "result" | "progress",
                        _,
                    ) => {}
                    ("queues", Value::Object(map)) => map.values().for_each(|value| fields(value, found)),
                    _ => fields(value, found),
                }
            }
        }
        _ => {}
    }
}

fn fields_of(texts: &[&str]) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    texts.iter().for_each(|text| fields(&serde_json::from_str(text).unwrap(), &mut found));
    found
}

const TIME: &str = "2026-11-21T12:00:00.000Z";

/// The contract's example of a record, with its dots filled in, in the order in which nodes write.
fn record() -> String {
    let (_, rest) = CONTRACT.split_once("## 4. Run record").unwrap();
    let example = rest.split("```json\n").nth(1).unwrap().split("```").next().unwrap();
    let example = example.replace(r#""duplicate_of":"…""#, r#""duplicate_of":"main-p5-1""#).replace('…', TIME);
    let retry = format!(r#""retry_at":"{TIME}","#);
    let example = example.replace(&retry, "");
    let example = example.replace(r#"Z"}}],"#, &format!(r#"Z"}},{}}}],"#, retry.trim_end_matches(',')));
    compact(example.as_bytes()).unwrap().get().to_owned()
}

/// A dead letter of that record.
fn dead_letter() -> String {
    let more = r#","headers":{"X-A":"b"},"payload_base64":"AA==","fingerprint":"f"}"#;
    record().trim_end_matches('}').to_owned() + more
}

/// Whether JSON is what the schema of an endpoint's request or answer describes.
fn validators(name: &str) -> [jsonschema::Validator; 2] {
    let mut generator = SchemaSettings::draft2020_12().for_deserialize().into_generator();
    let (_, request, answer) = schemas(&mut generator).into_iter().find(|(of, ..)| of.name == name).unwrap();
    let definitions = Value::Object(generator.take_definitions(true));
    [request, answer].map(|schema| {
        let mut schema = schema.to_value();
        schema["$defs"] = definitions.clone();
        jsonschema::validator_for(&schema).unwrap()
    })
}

/// Checks the examples of an endpoint against its types, their schemas and its row.
fn check<E: Endpoint>(requests: &[&str], answers: &[&str]) -> &'static str {
    let name = E::NAME;
    let row = rows().into_iter().find(|row| row.name == name).unwrap();
    assert_eq!(row.for_operators, E::DECLARATION.for_operators, "{name}");
    for text in requests {
        let request = E::read(text.as_bytes()).unwrap_or_else(|error| panic!("{name} {text}: {error}"));
        assert_eq!(serde_json::to_string(&request).unwrap(), *text, "{name}");
    }
    for text in answers {
        let read = |text: &str| Encoded::<E::Answer>::from_text(text.as_bytes()).unwrap().read();
        let answer = read(text).unwrap_or_else(|error| panic!("{name} {text}: {error}"));
        assert_eq!(serde_json::to_string(&answer).unwrap(), *text, "{name}");
        // Fields that only a newer node writes are skipped, at the top and in lists.
        let newer = r#""newer":{"a":[1,null]},"#;
        let more = format!("{{{newer}{}", &text[1..]).replace("[{", &format!("[{{{newer}")).replace(",}", "}");
        let answer = read(&more).unwrap_or_else(|error| panic!("{name} {more}: {error}"));
        assert_eq!(serde_json::to_string(&answer).unwrap(), *text, "{name}");
    }
    for (texts, validator) in [requests, answers].into_iter().zip(validators(name)) {
        // A job of a batch that is none is answered as such.
        for text in texts.iter().filter(|text| !text.contains("[ 8 ]")) {
            let value = serde_json::from_str(text).unwrap();
            validator.validate(&value).unwrap_or_else(|error| panic!("{name} {text}: {error}"));
        }
        assert!(!validator.is_valid(&Value::from(7)), "{name}: its schema says nothing");
    }
    let (asked, answered) = (fields_of(requests), fields_of(answers));
    for HttpRoute(_, path) in E::DECLARATION.http {
        let variables = path.split('{').skip(1).map(|rest| rest.split('}').next().unwrap());
        variables.for_each(|field| assert!(asked.contains(field), "{name}: {path} has a variable that is no field"));
    }
    // The tenant of a limit says which limit is meant.
    if !name.starts_with("limits.") {
        let about = E::read(&about_tenant("acme", requests[0].as_bytes()).unwrap());
        assert_eq!(about.is_ok(), E::DECLARATION.takes_tenant, "{name}");
    }
    // "As `dlq.replay`, without `set`".
    let request = row.request.split(", without").next().unwrap();
    for field in quoted(request, '`') {
        assert!(asked.contains(field), "{name}: its request has no {field} in the examples");
    }
    // Keys of maps: a priority and a queue.
    let maps = |field: &&str| !["p1", "main"].contains(field);
    for field in quoted(row.answer, '"').into_iter().filter(maps) {
        assert!(answered.contains(field), "{name}: its answer has no {field} in the examples");
    }
    for field in asked.iter().chain(&answered) {
        assert!(
            CONTRACT.contains(&format!("`{field}")) || CONTRACT.contains(&format!(r#""{field}""#)),
            "{name}: {field}"
        );
    }
    name
}

/// One filter with every field but `state`.
const FILTER: &str = r#""tenant":"acme","queue":"main","type":"email.send","tag":"a","search":"7","error_kind":"timeout","since":"2026-11-21T12:00:00.000Z","until":"2026-11-21T12:00:00.000Z""#;

fn check_dead_letters() -> [&'static str; 5] {
    let (dead_letter, run) = (dead_letter(), r#"{"run_id":"main-p5-7","tenant":"acme"}"#);
    let left_out = dead_letter.replace(r#""payload_base64":"AA==""#, r#""payload_bytes":2000000"#);
    let filter = FILTER.replace(r#""error_kind"#, r#""state":"dead","error_kind"#);
    let page = format!(r#"{{"entries":[{dead_letter},{left_out}],"cursor":"7"}}"#);
    let list = format!(r#"{{{filter},"limit":500,"cursor":"7"}}"#);
    let group = format!(
        r#"{{"count":7,"error_kind":"timeout","example":{{"error":{{"kind":"timeout","message":"after 7 ms"}},"run_id":"main-p5-7","tenant":"acme"}},"fingerprint":"f","first":"{TIME}","hours":[0,7],"last":"{TIME}","pattern":"after # ms","type":"email.send"}}"#
    );
    let unknown = group.replace(r#"{"kind":"timeout","message":"after 7 ms"}"#, "null");
    let failed = r#"[{"error":"why","run_id":"main-p5-7"}]"#;
    let replay = format!(
        r#"{{{FILTER},"limit":7,"rate_per_s":0.5,"dry_run":true,"set":{{"queue":"bulk","priority":2,"payload":{{"b":0.10,"a":1}},"headers":{{"X-A":"b","X-B":null}}}}}}"#
    );
    [
        check::<DlqList>(&["{}", &list], &[r#"{"entries":[]}"#, &page]),
        check::<DlqGet>(&[run], &[&dead_letter, &left_out]),
        check::<DlqGroups>(
            &["{}", &format!(r#"{{{FILTER},"limit":20,"cursor":"7"}}"#)],
            &[r#"{"groups":[]}"#, &format!(r#"{{"cursor":"7","groups":[{group},{unknown}]}}"#)],
        ),
        check::<DlqReplay>(
            &[r#"{"run_id":"main-p5-7","set":{"payload":null}}"#, r#"{"all":true}"#, r#"{"fingerprint":"f"}"#, &replay],
            &[
                r#"{"failed":[],"more":false,"replayed":1}"#,
                &format!(r#"{{"failed":{failed},"failed_in_all":101,"more":true,"replayed":0}}"#),
            ],
        ),
        check::<DlqDiscard>(
            &[
                r#"{"run_id":"main-p5-7"}"#,
                r#"{"fingerprint":"f"}"#,
                &format!(r#"{{{FILTER},"limit":7,"rate_per_s":0.001}}"#),
            ],
            &[&format!(r#"{{"discarded":3,"failed":{failed},"failed_in_all":101,"more":true}}"#)],
        ),
    ]
}

fn check_late() -> [&'static str; 4] {
    let record = record();
    let pulled = format!(
        r#""run_id":"r","token":"x","tenant":"acme","type":"a","queue":"main","priority":5,"round":1,"attempt":1,"max_attempts":12,"deadline":"{TIME}""#
    );
    [
        check::<RunsComplete>(
            &[r#"{"run_id":"r","token":"x"}"#, r#"{"run_id":"r","tenant":"acme","token":"x","result":{"a":1.50}}"#],
            &[&record],
        ),
        check::<RunsFail>(
            &[
                r#"{"run_id":"r","token":"x","error":"no"}"#,
                r#"{"run_id":"r","tenant":"acme","token":"x","error":"no","retryable":true,"retry_after_ms":10}"#,
            ],
            &[&record],
        ),
        check::<WorkNext>(
            &[r#"{"types":["a"]}"#, r#"{"types":["a","b"],"tenant":"acme","wait_ms":0,"lease_ms":1000}"#],
            &[
                "{}",
                &format!(r#"{{"job":{{{pulled},"headers":{{"X-A":"b"}},"payload":{{"a":1.50}}}}}}"#),
                &format!(r#"{{"job":{{{pulled},"payload_base64":"AA=="}}}}"#),
            ],
        ),
        check::<RunsProgress>(
            &[r#"{"run_id":"r","token":"x"}"#, r#"{"run_id":"r","tenant":"acme","token":"x","progress":null}"#],
            &[r#"{"cancelled":true}"#, &format!(r#"{{"cancelled":false,"deadline":"{TIME}"}}"#)],
        ),
    ]
}

fn check_runs() -> [&'static str; 10] {
    let (record, run) = (record(), r#"{"run_id":"main-p5-7","tenant":"acme"}"#);
    let filter = FILTER.replace(r#""error_kind"#, r#""state":"retrying","error_kind"#);
    let set = format!(r#"{{"run_at":"{TIME}","priority":1,"queue":"bulk"}}"#);
    let rescheduled =
        r#"{"failed":[{"error":"why","run_id":"main-p5-7"}],"failed_in_all":101,"more":true,"rescheduled":3}"#;
    [
        check::<RunsGet>(&[r#"{"run_id":"main-p5-7"}"#, run], &[&record]),
        check::<RunsWait>(&[r#"{"run_id":"main-p5-7","timeout_ms":600000}"#], &[&record]),
        check::<RunsWhy>(
            &[run, r#"{"run_id":"main-p5-7","timeout_ms":400}"#],
            &[&format!(
                r#"{{"lines":[{{"at":"{TIME}","text":"completed"}},{{"text":"It completed."}}],"run":{record}}}"#
            )],
        ),
        check::<RunsPayload>(
            &[run],
            &[
                r#"{"type":"a","content_type":"text/csv","payload_base64":"AA=="}"#,
                r#"{"type":"a","payload_base64":""}"#,
            ],
        ),
        check::<RunsCancel>(
            &[run, r#"{"all":true}"#, &format!(r#"{{{filter},"limit":7,"dry_run":true}}"#)],
            &[&record, r#"{"cancelled":3,"failed":[{"error":"why","run_id":"main-p5-7"}],"more":false}"#],
        ),
        check::<RunsErase>(&[run], &[&record, r#"{"run_id":"main-p5-7"}"#]),
        check::<RunsRunNow>(&[run, &format!(r#"{{{filter},"limit":7,"dry_run":true}}"#)], &[&record, rescheduled]),
        check::<RunsReschedule>(
            &[
                &format!(r#"{{"run_id":"r","queue":"bulk","run_at":"{TIME}","priority":1}}"#),
                &format!(r#"{{{filter},"limit":7,"dry_run":true,"set":{set}}}"#),
                r#"{"all":true,"set":{"priority":9}}"#,
            ],
            &[&record, rescheduled],
        ),
        check::<RunsList>(
            &[
                "{}",
                &format!(r#"{{{filter},"limit":500,"cursor":"7"}}"#),
                r#"{"tenant":"acme","idempotency_key":"order 17"}"#,
            ],
            &[
                r#"{"runs":[]}"#,
                &format!(r#"{{"runs":[],"cursor":"7","complete":false,"searched_until":"{TIME}"}}"#),
                &format!(r#"{{"runs":[{record}],"cursor":"7","unreadable":2}}"#),
            ],
        ),
        check::<RunsCount>(
            &["{}", &format!(r#"{{{filter},"cursor":"7"}}"#)],
            &[
                r#"{"counts":[],"unreadable":2}"#,
                r#"{"cursor":"7","counts":[{"count":7,"queue":"main","state":"completed","type":"email.send"}]}"#,
            ],
        ),
    ]
}

fn check_submit() -> [&'static str; 2] {
    let job = r#"{"type":"email.send","payload":{"b":12345678901234567890123,"a":null},"queue":"bulk","priority":1,"idempotency_key":"k","idempotency_window_ms":1,"unique":"window","on_conflict":"replace","debounce":{"key":"k","wait_ms":1,"max_wait_ms":2},"run_id":"mine","delay_ms":0,"expires_in_ms":1,"max_attempts":1000,"retry":"fast","timeout_ms":1,"keep_ms":1,"deadline":"7d","concurrency_key":"c","limit_key":"l","cost":1,"schema_version":"2","tags":["a"],"then":{"type":"next","payload":{"b":1.0},"then":{"type":"last"}},"batch_id":"b","headers":{"X-A":"b"}}"#;
    let other =
        r#"{"type":"t","payload_base64":"AA==","run_at":"2026-11-21T12:00:00Z","expires_at":"2026-11-21T12:00:00Z"}"#;
    let submitted = r#"{"deduplicated":false,"run_id":"main-p5-7","state":"enqueued"}"#;
    let refused = r#"{"code":429,"error":"rate_limited","message":"why","retry_after_ms":1000}"#;
    let list = CONTRACT.split_once("Fields of `submit`: ").unwrap().1.split("They mean").next().unwrap();
    let said = fields_of(&[job, other]);
    for field in quoted(list, '`') {
        assert!(said.contains(field), "the examples of submit have no {field}");
    }
    [
        check::<Submit>(&[job, other, r#"{"type":"t","payload":null}"#], &[submitted]),
        check::<SubmitBatch>(
            &[r#"{"jobs":[]}"#, &format!(r#"{{"jobs":[{job},[ 8 ]]}}"#)],
            &[&format!(r#"{{"jobs":[{submitted},{refused}]}}"#)],
        ),
    ]
}

fn check_schedules() -> [&'static str; 8] {
    let (one, of) = (r#"{"id":"nightly"}"#, r#"{"id":"nightly","tenant":"acme"}"#);
    let as_it_was = format!(r#"{{"id":"nightly","if_updated_at":"{TIME}"}}"#);
    let timing = r#""id":"nightly","cron":"0 30 3 * * *","time_zone":"Europe/Berlin","misfire":"skip","misfire_after_ms":10000,"overlap":"skip","jitter_ms":1,"ends_at":"2026-11-21T12:00:00.000Z","paused":false,"if_updated_at":"2026-11-21T12:00:00.000Z""#;
    let job = r#""type":"t","payload":{"b":12345678901234567890123,"a":0.10},"queue":"bulk","priority":1,"idempotency_key":"k","tags":["a"],"headers":{"X-A":"b"}"#;
    let state = format!(
        r#""tenant":"acme","declared":false,"created_at":"{TIME}","updated_at":"{TIME}","last_run":{{"due_at":"{TIME}","run_id":"nightly-1"}},"last_skipped":{{"due_at":"{TIME}","reason":"refused","error":"why"}},"next_run":["{TIME}"]"#
    );
    let new = format!(
        r#"{{"id":"n","every":"5m","type":"t","tenant":"acme","declared":true,"created_at":"{TIME}","updated_at":"{TIME}","last_run":null,"next_run":[]}}"#
    );
    let status = format!("{{{timing},{job},{state}}}");
    let page = format!(r#"{{"schedules":[{status},{new}],"cursor":"7"}}"#);
    let span = format!(r#""from":"{TIME}","until":"{TIME}""#);
    [
        check::<SchedulesPut>(
            &[&format!("{{{timing},{job}}}"), r#"{"id":"n","every_ms":5000,"type":"t","payload":null}"#],
            &[&status, &new],
        ),
        check::<SchedulesGet>(&[one, of], &[&status]),
        check::<SchedulesList>(
            &["{}", r#"{"tenant":"acme","limit":500,"cursor":"7"}"#],
            &[r#"{"schedules":[]}"#, &page],
        ),
        check::<SchedulesDelete>(&[one, of, &as_it_was], &[&status]),
        check::<SchedulesPause>(&[one, of, &as_it_was], &[&status]),
        check::<SchedulesResume>(&[one, of, &as_it_was], &[&status]),
        check::<SchedulesRunNow>(&[one, of, &as_it_was], &[&status]),
        check::<SchedulesBackfill>(
            &[
                &format!(r#"{{"id":"n",{span}}}"#),
                &format!(r#"{{"id":"n","tenant":"acme",{span},"dry_run":true,"if_updated_at":"{TIME}"}}"#),
            ],
            &[
                r#"{"deduplicated":0,"failed":[],"started":31}"#,
                r#"{"deduplicated":0,"failed":[{"error":"why","run_id":"n-1"}],"failed_in_all":101,"started":0}"#,
            ],
        ),
    ]
}

fn check_queues() -> [&'static str; 6] {
    let depths: Vec<String> = (1..=9).map(|number| format!(r#""p{number}":0"#)).collect();
    let depths = depths.join(",");
    let queue = format!(
        r#"{{"concurrency":64,"deferred":{{"busy":1}},"depth":0,"depths":{{{depths}}},"oldest_age_ms":null,"oldest_ms":{{"waiting":7}},"paused":true,"paused_types":[{{"type":"email.send","until":"{TIME}"}}],"paused_until":"{TIME}","queue":"main","retrying":2,"running":0,"scheduled":1,"served":true,"served_by":["n1"],"waiting":{{{depths}}}}}"#
    );
    let missing = format!(
        r#"{{"did_you_mean":"b","jobs":3,"looked_at":"{TIME}","never_served":true,"since":"{TIME}","subject":"longshore.work.acme.a","tenant":"acme","type":"a"}}"#
    );
    [
        check::<QueuesList>(
            &["{}", r#"{"queue":"main","tenant":"acme"}"#],
            &[&format!(r#"{{"no_handler":[{missing}],"queues":[{queue}]}}"#)],
        ),
        check::<QueuesShares>(
            &[r#"{"queue":"main"}"#],
            &[
                r#"{"fair_by":"tenant","left_out":0,"over_ms":1000,"queue":"main","shares":[{"delivered":30,"jobs":9,"share":0.75,"weight":3,"tenant":"acme"}]}"#,
                r#"{"fair_by":"type","left_out":7,"over_ms":1000,"queue":"main","shares":[{"delivered":0,"jobs":9,"share":1.0,"weight":1,"type":"a"}]}"#,
            ],
        ),
        check::<QueuesPut>(
            &[
                r#"{"queue":"bulk"}"#,
                r#"{"queue":"bulk","concurrency":8,"aging_ms":0,"nodes":["n1"],"fair_by":"type"}"#,
            ],
            &[
                r#"{"aging_ms":30000,"concurrency":64,"fair_by":"tenant","queue":"bulk","served_by":["n1"],"unconfirmed":["n2"]}"#,
                r#"{"aging_ms":0,"concurrency":8,"fair_by":"type","nodes":["n1"],"queue":"bulk","served_by":[],"unconfirmed":[]}"#,
            ],
        ),
        check::<QueuesPause>(
            &[
                r#"{"queue":"main"}"#,
                &format!(r#"{{"queue":"main","type":"email.send","until":"{TIME}"}}"#),
                r#"{"type":"email.send"}"#,
            ],
            &[
                &format!(r#"{{"paused":true,"queue":"main","since":"{TIME}"}}"#),
                &format!(r#"{{"paused":true,"queue":"main","since":"{TIME}","type":"email.send","until":"{TIME}"}}"#),
                &format!(r#"{{"paused":true,"since":"{TIME}","type":"email.send","warning":"why"}}"#),
            ],
        ),
        check::<QueuesResume>(
            &[r#"{"queue":"main"}"#, r#"{"queue":"main","type":"email.send"}"#],
            &[
                r#"{"paused":false,"queue":"main"}"#,
                &format!(r#"{{"paused":false,"queue":"main","since":"{TIME}","type":"email.send"}}"#),
            ],
        ),
        check::<QueuesPurge>(
            &[r#"{"queue":"main","confirm":"main"}"#, r#"{"queue":"main","limit":7,"dry_run":true}"#],
            &[r#"{"cancelled":7,"failed":[{"error":"no","run_id":"r"}],"more":true}"#],
        ),
    ]
}

const LIMITED: &str = r#"{"configured":{"burst":100,"per_ms":1000,"rate":100,"window":"bucket"},"holders":2,"left":0,"next_at":"2026-11-21T12:00:00.000Z","origin":"run_time","type":"email.send","values":{"burst":9,"per_ms":60000,"rate":5,"window":"bucket"},"waiting":7}"#;
const SHARED: &str = r#"{"holders":0,"left":5,"name":"crm","origin":"configuration","set_in":"longshore.toml:7","values":{"per_ms":1000,"rate":5,"window":"sliding"},"waiting":0}"#;
const OF_TENANT: &str = r#"{"holders":0,"tenant":"acme","waiting":0}"#;

fn check_concurrency() -> [&'static str; 2] {
    let limit = format!(
        r#"{{"holders":[{{"node":"n1","runs":[{{"run_id":"main-p5-7","tenant":"acme"}}],"session":"a","slots":1,"until":"{TIME}"}},{{"node":"n2","session":"b","slots":1,"until":"{TIME}"}}],"key_hash":"0123456789abcdef","max":2,"tenant":"acme","type":"email.send"}}"#
    );
    let of_type = r#"{"holders":[],"max":2,"type":"email.send"}"#;
    [
        check::<ConcurrencyList>(
            &["{}", r#"{"tenant":"acme","type":"email.send","limit":500,"cursor":"7"}"#],
            &[r#"{"limits":[]}"#, &format!(r#"{{"cursor":"7","limits":[{limit},{of_type}]}}"#)],
        ),
        check::<ConcurrencyFree>(
            &[
                r#"{"type":"email.send"}"#,
                r#"{"type":"email.send","tenant":"acme","concurrency_key":"a","node":"n1"}"#,
                r#"{"type":"email.send","tenant":"acme","key_hash":"0123456789abcdef","session":"b"}"#,
            ],
            &[&format!(r#"{{"freed":2,"limit":{of_type}}}"#)],
        ),
    ]
}

fn check_batches() -> [&'static str; 5] {
    let batch = format!(
        r#"{{"awaits":["main-p5-7"],"because":"run main-p5-8 is a dead letter","created_at":"{TIME}","deadline":"{TIME}","ended_at":"{TIME}","failed":[{{"run_id":"main-p5-8","state":"dead"}}],"id":"import","members":{{"all":3,"completed":1,"failed":1}},"on_failure":"fail","run_id":"import-done","sealed_at":"{TIME}","state":"failed","tenant":"acme"}}"#
    );
    let one = [r#"{"id":"import","tenant":"acme"}"#, r#"{"id":"import"}"#];
    let create = format!(
        r#"{{"id":"import","tenant":"acme","on_complete":{{"type":"report"}},"on_failure":"ignore","deadline":"{TIME}"}}"#
    );
    [
        check::<BatchesCreate>(&[r#"{"id":"import","on_complete":{"type":"report"}}"#, &create], &[&batch]),
        check::<BatchesGet>(&one, &[&batch]),
        check::<BatchesList>(
            &["{}", r#"{"tenant":"acme","limit":500,"cursor":"acme.import"}"#],
            &[r#"{"batches":[]}"#, &format!(r#"{{"batches":[{batch}],"cursor":"acme.import"}}"#)],
        ),
        check::<BatchesSeal>(&one, &[&batch]),
        check::<BatchesCancel>(&one, &[&batch]),
    ]
}

fn check_webhooks() -> [&'static str; 6] {
    let webhook = format!(
        r#"{{"created_at":"{TIME}","events":["completed"],"format":"standard","id":"shop","old_secret_until":"{TIME}","paused":true,"paused_because":"410","queues":["main"],"tenant":"acme","types":["email.send"],"updated_at":"{TIME}","url":"https://shop.example.com/hooks"}}"#
    );
    let with_secret = webhook.replace(r#""tenant""#, r#""secret":"whsec_AA==","tenant""#);
    let one = [r#"{"id":"shop","tenant":"acme"}"#, r#"{"id":"shop"}"#];
    let put = r#"{"id":"shop","tenant":"acme","url":"https://shop.example.com/hooks","events":["completed"],"types":["email.>"],"queues":["main"],"format":"cloudevents","secret":"whsec_AA==","paused":false}"#;
    [
        check::<WebhooksPut>(&[r#"{"id":"shop","url":"https://shop.example.com/hooks"}"#, put], &[&with_secret]),
        check::<WebhooksGet>(&one, &[&webhook]),
        check::<WebhooksList>(&["{}", r#"{"tenant":"acme"}"#], &[&format!(r#"{{"webhooks":[{webhook}]}}"#)]),
        check::<WebhooksDelete>(&one, &[&webhook]),
        check::<WebhooksTest>(&one, &[r#"{"run_id":"main-p5-7"}"#]),
        check::<WebhooksRotate>(&one, &[&with_secret]),
    ]
}

fn check_keys() -> [&'static str; 3] {
    let key = format!(
        r#"{{"created_at":"{TIME}","expires_at":"{TIME}","id":"0123456789abcdef","last_used":"2026-11-26","name":"shop","scopes":["submit","read"],"tenant":"acme"}}"#
    );
    [
        check::<KeysCreate>(
            &[
                r#"{"name":"shop","tenant":"acme","scopes":["submit","read"]}"#,
                &format!(r#"{{"name":"shop","tenant":"_all","scopes":["operate","reveal"],"expires_at":"{TIME}"}}"#),
            ],
            &[r#"{"id":"0123456789abcdef","key":"ls_0123456789abcdef_ab"}"#],
        ),
        check::<KeysList>(&["{}"], &[&format!(r#"{{"keys":[{key}]}}"#)]),
        check::<KeysRevoke>(&[r#"{"id":"0123456789abcdef"}"#], &[&key]),
    ]
}

fn check_faults() -> [&'static str; 3] {
    let until = format!(r#""type":"email.send","until":"{TIME}""#);
    let all = format!(
        r#"{{"faults":[{{"delay_ms":500,"kind":"latency","limit":9,"probability":0.5,{until}}},{{"kind":"fail_at_step","probability":1.0,"step":"charge",{until}}}]"#
    );
    [
        check::<FaultsSet>(
            &[
                &format!(r#"{{"type":"email.send","kind":"storm","until":"{TIME}"}}"#),
                &format!(
                    r#"{{"type":"email.send","kind":"latency","probability":0.5,"delay_ms":500,"until":"{TIME}","limit":9}}"#
                ),
                &format!(r#"{{"type":"email.send","kind":"fail_at_step","step":"charge","until":"{TIME}"}}"#),
            ],
            &[
                &format!(r#"{{"fault":{{"kind":"storm","probability":1.0,{until}}},"unconfirmed":["n2"]}}"#),
                &format!(
                    r#"{{"fault":{{"delay_ms":500,"kind":"latency","limit":9,"probability":0.5,{until}}},"unconfirmed":[]}}"#
                ),
                &format!(
                    r#"{{"fault":{{"kind":"fail_at_step","probability":1.0,"step":"charge",{until}}},"unconfirmed":[]}}"#
                ),
            ],
        ),
        check::<FaultsList>(&["{}"], &[&format!("{all}}}")]),
        check::<FaultsClear>(
            &["{}", r#"{"type":"email.send","kind":"lost_heartbeat"}"#],
            &[&format!(r#"{all},"unconfirmed":["n2"]}}"#)],
        ),
    ]
}

fn check_nodes() -> [&'static str; 6] {
    let times = r#"{"p50_ms":1,"p99_ms":10}"#;
    let node = format!(
        r#"{{"node":"n1","queues":{{"main":{{"concurrency":64,"running":7}}}},"seen_at":"{TIME}","started_at":"{TIME}","state":"running","version":"0.1.0"}}"#
    );
    [
        check::<AuditList>(
            &["{}", &format!(r#"{{"since":"{TIME}","limit":7,"cursor":"12"}}"#)],
            &[&format!(
                r#"{{"entries":[{{"v":1,"id":"a","stage":"asked","at":"{TIME}","endpoint":"dlq.replay","tenant":"acme","node":"n1","by":"anna@desk","reason":"INC-7","from":"_INBOX.x","request":{{"all":true}}}},{{"v":1,"id":"a","stage":"refused","at":"{TIME}","endpoint":"dlq.replay","tenant":"acme","node":"n1","from":"_INBOX.x","outcome":{{"replayed":2}},"error":{{"code":409,"error":"conflict","message":"m"}}}}],"cursor":"13"}}"#
            )],
        ),
        check::<NodesList>(&["{}"], &[&format!(r#"{{"nodes":[{node}]}}"#)]),
        check::<NodesLogLevel>(
            &[r#"{"node":"n1","level":"debug"}"#],
            &[r#"{"level":"debug,async_nats=warn","node":"n1"}"#],
        ),
        check::<NodesSettings>(
            &[r#"{"node":"n1"}"#],
            &[
                r#"{"node":"n1","settings":[{"section":"node","name":"lease","value":"\"9s\"","from":"LONGSHORE_NODE__LEASE"},{"section":"node","name":"name","from":"default"}]}"#,
            ],
        ),
        check::<NodesStats>(
            &["{}"],
            &[&format!(
                r#"{{"every_ms":10000,"nodes":["n1"],"points":[{{"at":"{TIME}","enqueued":3,"ended":2,"failed":1,"wait":{times},"run":{times}}},{{"at":"{TIME}","enqueued":0,"ended":0,"failed":0}}]}}"#
            )],
        ),
        check::<Health>(
            &["{}", r#"{"node":"n1"}"#],
            &[
                r#"{"counters":{"connections_rebuilt":1,"overdue_restored":2,"poison_removed":3,"runs_stranded":5,"stale_reads":4},"faults":["mail meets storm until 2026-11-18T12:00:00.000Z"],"handlers":[{"subject":"longshore.work.*.mail","service":"mail 7","slots":4},{"subject":"longshore.work.*.sms","service":"sms"}],"live":true,"node":"n1","parts":[{"part":"committer","per_queue":false,"restarts":1,"waiting":2},{"part":"worker","per_queue":true,"restarts":0}],"queues":["main"],"ready":false,"reasons":["draining"],"version":"0.1.0","warnings":[]}"#,
            ],
        ),
    ]
}

#[test]
fn every_endpoint_has_types_that_read_and_write_what_the_contract_says() {
    let breaker = |cause: &str, state: &str, until: &str| {
        format!(
            r#"{{{cause}"failures":3,"probes":0,"since":"{TIME}","state":"{state}","successes":0,"tenant":"acme","times_opened":1,"type":"email.send"{until}}}"#
        )
    };
    let closed = breaker("", "closed", "").replace(r#","probes"#, r#","key":"a.example","probes"#);
    let open = breaker(r#""cause":"failures","#, "open", &format!(r#","until":"{TIME}""#));
    let half_open = breaker("", "half_open", "");
    let rest = [
        check::<LimitsList>(
            &["{}", r#"{"limit":500,"cursor":"7"}"#],
            &[r#"{"limits":[]}"#, &format!(r#"{{"cursor":"7","limits":[{LIMITED},{SHARED},{OF_TENANT}]}}"#)],
        ),
        check::<LimitsSet>(
            &[
                r#"{"type":"email.send","rate":5}"#,
                r#"{"name":"crm","rate":5,"per_ms":1000,"window":"sliding"}"#,
                r#"{"tenant":"acme","rate":5,"per_ms":60000,"burst":9,"window":"bucket"}"#,
            ],
            &[&format!(r#"{{"limit":{LIMITED},"unconfirmed":["n2"]}}"#)],
        ),
        check::<LimitsReset>(
            &[r#"{"type":"email.send"}"#, r#"{"name":"crm"}"#, r#"{"tenant":"acme"}"#],
            &[&format!(r#"{{"limit":{SHARED},"unconfirmed":[]}}"#)],
        ),
        check::<BreakersList>(
            &["{}", r#"{"tenant":"acme","type":"email.send","limit":500,"cursor":"7"}"#],
            &[r#"{"breakers":[]}"#, &format!(r#"{{"breakers":[{closed},{open},{half_open}],"cursor":"7"}}"#)],
        ),
        check::<BreakersReset>(
            &[r#"{"tenant":"acme","type":"email.send"}"#, r#"{"tenant":"acme","type":"email.send","key":"a.example"}"#],
            &[&closed],
        ),
        check::<BreakersTrip>(
            &[
                r#"{"tenant":"acme","type":"email.send"}"#,
                &format!(r#"{{"tenant":"acme","type":"email.send","key":"a.example","until":"{TIME}"}}"#),
            ],
            &[&open],
        ),
    ];
    let checked = [
        &check_submit()[..],
        &[&check_runs()[..], &check_late()].concat(),
        &check_dead_letters(),
        &check_schedules(),
        &check_queues(),
        &rest,
        &check_concurrency(),
        &check_keys(),
        &check_batches(),
        &check_webhooks(),
        &check_faults(),
        &check_nodes(),
    ]
    .concat();
    let declared: BTreeSet<&str> = ENDPOINTS.iter().map(|endpoint| endpoint.name).collect();
    assert_eq!(checked.into_iter().collect::<BTreeSet<_>>(), declared);
    let in_contract: BTreeSet<&str> = rows().iter().map(|row| row.name).collect();
    assert_eq!(in_contract, declared);
}

#[test]
fn a_route_leads_to_one_endpoint() {
    let routes: Vec<HttpRoute> = ENDPOINTS.iter().flat_map(|endpoint| endpoint.http).copied().collect();
    assert!(
        routes.iter().enumerate().all(|(at, route)| !routes[..at].contains(route)),
        "a route leads to two endpoints"
    );
}

#[test]
fn an_error_answer_is_the_contracts() {
    let (_, rest) = CONTRACT.split_once("## 7. API").unwrap();
    let example = rest.split("```json\n").nth(1).unwrap().lines().next().unwrap();
    let error: ApiError = serde_json::from_str(example).unwrap();
    assert_eq!((error.code, serde_json::to_string(&error).unwrap().as_str()), (404, example));
    let helpful = example.replace('}', r#","hint":"look elsewhere"}"#);
    assert_eq!(serde_json::to_string(&error.hint("look elsewhere")).unwrap(), helpful);
    same::<ApiError>(&helpful);
}

#[test]
fn unknown_fields_of_requests_are_refused_by_name() {
    fn refused<E: Endpoint>(body: &str) {
        let Err(error) = E::read(body.as_bytes()) else { panic!("{} takes {body}", E::NAME) };
        assert!(error.code == 400 && error.message.starts_with("sate: "), "{}: {error}", E::NAME);
    }
    refused::<Submit>(r#"{"type":"t","sate":1}"#);
    refused::<SubmitBatch>(r#"{"jobs":[],"sate":1}"#);
    refused::<RunsGet>(r#"{"run_id":"r","sate":1}"#);
    refused::<RunsWait>(r#"{"run_id":"r","sate":1}"#);
    refused::<RunsCancel>(r#"{"run_id":"r","sate":1}"#);
    refused::<RunsErase>(r#"{"run_id":"r","sate":1}"#);
    refused::<RunsRunNow>(r#"{"run_id":"r","sate":1}"#);
    refused::<RunsReschedule>(r#"{"run_id":"r","sate":1}"#);
    refused::<RunsList>(r#"{"sate":1}"#);
    refused::<RunsCount>(r#"{"sate":1}"#);
    refused::<DlqList>(r#"{"sate":1}"#);
    refused::<DlqGet>(r#"{"run_id":"r","sate":1}"#);
    refused::<DlqGroups>(r#"{"sate":1}"#);
    refused::<DlqReplay>(r#"{"all":true,"sate":1}"#);
    refused::<DlqDiscard>(r#"{"all":true,"sate":[[]]}"#);
    refused::<SchedulesPut>(r#"{"id":"n","every":"5m","type":"t","sate":1}"#);
    refused::<SchedulesGet>(r#"{"id":"n","sate":1}"#);
    refused::<SchedulesList>(r#"{"sate":1}"#);
    refused::<SchedulesBackfill>(r#"{"id":"n","sate":1}"#);
    refused::<QueuesList>(r#"{"sate":1}"#);
    refused::<QueuesPut>(r#"{"queue":"bulk","sate":1}"#);
    refused::<QueuesPause>(r#"{"sate":1}"#);
    refused::<QueuesPurge>(r#"{"queue":"main","confirm":"main","sate":1}"#);
    refused::<QueuesResume>(r#"{"sate":1}"#);
    refused::<Health>(r#"{"sate":1}"#);
    refused::<LimitsList>(r#"{"sate":1}"#);
    refused::<LimitsSet>(r#"{"type":"t","rate":1,"sate":1}"#);
    refused::<LimitsReset>(r#"{"type":"t","sate":1}"#);
    refused::<BreakersList>(r#"{"sate":1}"#);
    refused::<ConcurrencyList>(r#"{"sate":1}"#);
    refused::<ConcurrencyFree>(r#"{"type":"t","sate":1}"#);
    refused::<FaultsSet>(r#"{"type":"t","kind":"hang","until":"2026-11-18T12:00:00.000Z","sate":1}"#);
    refused::<FaultsClear>(r#"{"sate":1}"#);
    refused::<NodesList>(r#"{"sate":1}"#);
    refused::<BreakersReset>(r#"{"tenant":"t","type":"t","sate":1}"#);
    refused::<BreakersTrip>(r#"{"tenant":"t","type":"t","sate":1}"#);
}

#[test]
fn a_key_stands_for_one_run_beside_no_filter() {
    let refused = |body: &str| RunsList::read(body.as_bytes()).unwrap_err().message;
    assert!(refused(r#"{"idempotency_key":"k","queue":"main"}"#).starts_with("idempotency_key: stands beside"));
    assert!(refused(r#"{"idempotency_key":""}"#).starts_with("idempotency_key: has 0 bytes"));
    assert!(DlqList::read(br#"{"idempotency_key":"k"}"#).unwrap_err().message.starts_with("idempotency_key: is not"));
}

#[test]
fn failures_beyond_those_that_an_answer_lists_are_counted_alone() {
    let run = |number: usize| RunId::parse(&format!("r{number}")).unwrap();
    let failed = |number: usize| Failed { error: "why".to_owned(), run_id: run(number) };
    let mut outcome = Outcome::default();
    for count in 1..103 {
        outcome.add(Err(failed(count)));
        assert_eq!(outcome, Outcome::new(0, (1..=count).map(failed).collect(), false));
    }
}

#[test]
fn lists_may_be_asked_for_without_a_body() {
    assert!(DlqList::read(b"").is_ok() && DlqGroups::read(b"").is_ok() && QueuesList::read(b"").is_ok());
    assert!(RunsList::read(b"").is_ok() && RunsCount::read(b"").is_ok());
    assert!(SchedulesList::read(b"").is_ok() && SchedulesGet::read(b"").is_err());
    assert!(LimitsList::read(b"").is_ok() && LimitsSet::read(b"").is_err());
    assert!(BreakersList::read(b"").is_ok() && BreakersTrip::read(b"").is_err());
    assert!(Health::read(b"").is_ok() && Health::read(b"7").is_ok() && NodesList::read(b"").is_ok());
    assert!(RunsCancel::read(b"").is_err() && DlqReplay::read(b"").is_err());
}

#[test]
fn words_of_newer_nodes_are_kept() {
    let newer = record().replace(r#""state":"completed""#, r#""state":"pondering""#).replace("retryable", "wondrous");
    let read: Record = serde_json::from_str(&newer).unwrap();
    assert_eq!((read.state.known(), read.state.to_string().as_str()), (None, "pondering"));
    assert_eq!(read.error.as_ref().unwrap().kind.to_string(), "wondrous");
    assert_eq!(serde_json::to_string(&read).unwrap(), newer);
    let known: Record = serde_json::from_str(&record()).unwrap();
    assert_eq!((known.state.known(), known.state.to_string().as_str()), (Some(&RunState::Completed), "completed"));
}

#[test]
fn what_clients_and_handlers_sent_is_carried_byte_for_byte() {
    let deep = format!("{}{}", "[".repeat(2_000), "]".repeat(2_000));
    for theirs in ["1e999", "12345678901234567890123", "0.10", r#"{"b":-0.0,"a":1E2}"#, r#""\ud800""#, &deep] {
        let answer = |text: String| text.replace(r#"{"ok":true}"#, theirs);
        same::<Record>(&answer(record()));
        same::<Cancelled>(&answer(record()));
        same::<Rescheduled>(&answer(record()));
        same::<Erased>(&answer(record()));
        same::<DeadLetter>(&answer(dead_letter()));
        same::<Runs>(&answer(format!(r#"{{"runs":[{}]}}"#, record())));
        same::<Page>(&answer(format!(r#"{{"entries":[{}]}}"#, dead_letter())));
        let job = format!(r#"{{"type":"t","payload":{theirs}}}"#);
        same::<SubmitRequest>(&job);
        same::<PutRequest>(&format!(r#"{{"id":"n","every":"5m","type":"t","payload":{theirs}}}"#));
        same::<BatchRequest>(&format!(r#"{{"jobs":[{job}]}}"#));
        same::<ReplayRequest>(&format!(r#"{{"all":true,"set":{{"payload":{theirs}}}}}"#));
    }
}

#[track_caller]
fn same<T: Serialize + DeserializeOwned>(text: &str) {
    let read: T = serde_json::from_str(text).unwrap();
    assert_eq!(serde_json::to_string(&read).unwrap(), text);
}
