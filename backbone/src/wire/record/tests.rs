//! What a record's text says of a run, and which run is read from a text.

use super::*;
use crate::wire::json::OrderedFields;
use longshore_domain::concurrency::Turn;
use longshore_domain::run::{DeferReason, Deferral, Detached, Late, LateEnd, LogLine, MessageId, PutBack, Step, Wait};
use longshore_domain::settlement::Settlement;
use longshore_domain::{
    BatchId, ErrorKind, Failure, JobType, Priority, Queue, RunId, RunState, SmolStr, Tenant, Timestamp,
};
use proptest::prelude::*;
use serde_json::value::RawValue;

const STATES: [RunState; 10] = [
    RunState::Scheduled,
    RunState::Enqueued,
    RunState::Running,
    RunState::Retrying,
    RunState::Completed,
    RunState::Dead,
    RunState::Cancelled,
    RunState::Expired,
    RunState::Duplicate,
    RunState::Discarded,
];

/// Fields of which the optional ones are there where `has` has a bit, also those that contradict the state; with texts
/// that need escaping.
#[expect(clippy::too_many_lines, reason = "a line for each field")]
fn fields(state: RunState, has: u64, number: u64, words: &str) -> Fields {
    let at = Timestamp::from_millis(i64::try_from(number % 4_000_000_000_000).unwrap());
    let mut bit = 0;
    let mut there = || {
        bit += 1;
        has >> bit & 1 == 1
    };
    let node = SmolStr::from(words);
    let failure = Failure::new(ErrorKind::LeaseExpired, words);
    let json = || RawValue::from_string(serde_json::json!({ words: number }).to_string()).unwrap();
    let attempts = (0..number as u32 % 4)
        .map(|attempt| Attempt {
            round: 2,
            attempt,
            started_at: at,
            ended_at: there().then_some(at),
            node: node.clone(),
            error: there().then(|| failure.clone()),
            retry_at: there().then_some(at),
            put_back: there().then_some(PutBack::NotStarted),
            start: attempt,
            detached: there().then(|| Box::new(Detached { at, until: at })),
        })
        .collect();
    let holding = || Holding { message: MessageId { stream: words.into(), sequence: number, at }, delivery: number };
    Fields {
        run_id: RunId::parse("main-p5-7").unwrap(),
        tenant: Tenant::default_tenant(),
        queue: Queue::main(),
        priority: Priority::DEFAULT,
        job_type: JobType::parse("report.Render").unwrap(),
        state,
        ended_at: there().then_some(at),
        run_at: there().then_some(at.plus(std::time::Duration::from_secs(1))),
        parked: there(),
        result: there().then(json),
        result_base64: there().then(|| words.to_owned()),
        result_content_type: there().then(|| words.to_owned()),
        result_bytes: there().then_some(number),
        duplicate_of: there().then(|| RunId::parse("another").unwrap()),
        round: number as u32,
        attempt: has as u32,
        max_attempts: number as u32,
        enqueued_at: there().then_some(at.plus(std::time::Duration::from_secs(2))),
        started_at: there().then_some(at),
        node: there().then_some(node),
        progress: there().then(json),
        log: Vec::from_iter(there().then(|| LogLine { at, round: 2, attempt: 3, line: words.to_owned() })),
        steps: (0..has % 3).map(|n| Step { name: "charge".into(), n: n as u32, at, attempt: 2 }).collect(),
        error: there().then_some(failure),
        attempts,
        tags: (0..has % 3).map(|tag| format!("{words}{tag}")).collect(),
        search: (0..number % 3).map(|value| format!("{words}{value}")).collect(),
        parent_run_id: there().then(|| RunId::parse("main-p5-6").unwrap()),
        then: there().then(|| JobType::parse("email.send").unwrap()),
        batch_id: there().then(|| BatchId::parse("import").unwrap()),
        deferral: there().then_some(Deferral {
            reason: DeferReason::Snoozed,
            since: at,
            at,
            count: 3,
            nth: 7,
            run_at: there().then_some(at),
            node: there().then(|| words.into()),
        }),
        deferrals: number as u32 % 3,
        late: there().then(|| {
            let failed =
                || LateEnd::Failed { failure: Some(Failure::new(ErrorKind::Retryable, words)), retry_after_ms: None };
            let end = [Some(LateEnd::Completed(Some(json()))), Some(failed()), Some(LateEnd::Over), None];
            let end = end.into_iter().nth(number as usize % 4).flatten();
            Box::new(Late { token: words.into(), lasts_ms: number, deadline: there().then_some(at), end })
        }),
        keep_ms: there().then_some(number),
        erased_at: there().then_some(at),
        trace_id: there().then_some(longshore_domain::TraceId(7 << 64)),
        accepted_by: there().then(|| words.into()),
        died_at: there().then_some(at),
        end_log: if there() { EndLog::Done } else { EndLog::default() },
        ended_by: there().then(|| words.into()),
        key_claimed_ms: there().then_some(number),
        unique_key: there().then(|| words.to_owned()),
        replaces: there(),
        starts_by: there().then_some(at),
        published: there(),
        seal: if there() { words.into() } else { SmolStr::default() },
        turn: there().then(|| Box::new(Turn { key: words.into(), number })),
        held_by: there().then(holding),
        origin: at,
        token: words.into(),
        unknown: (0..has % 3).map(|n| (format!("{words} of 9.9 {n}"), serde_json::json!([number, words]))).collect(),
    }
}

fn run(state: RunState, has: u64, number: u64, words: &str) -> Run {
    fields(state, has, number, words).into_run()
}

/// The fields that describe a run. Does not compile when a field is added, which [`append`] must then write.
fn fields_of(run: Run) -> Fields {
    #[rustfmt::skip]
    let Run { run_id, tenant, queue, priority, job_type, state, round, attempt, max_attempts, enqueued_at, started_at, node, progress, log, steps, error, attempts, tags, search, parent, then, batch, deferral, deferrals, late, keep_ms, erased_at, trace_id, accepted_by, ended_by, key_claimed_ms, unique_key, replaces, starts_by, published, seal, turn, held_by, origin, token, unknown } = run;
    let first = attempts.iter().find(|attempt| attempt.round == round).map(|first| &first.node);
    let (accepted_by, ended_by) =
        (accepted_by.filter(|node| first != Some(node)), ended_by.filter(|_| first.is_none()));
    let (word, wait, ended_at) = (state.name(), state.wait(), state.ended_at());
    let (died_at, end_log) = (state.died_at(), state.end_log());
    let (mut result, mut result_base64, mut result_content_type, mut result_bytes) = (None, None, None, None);
    let mut duplicate_of = None;
    match state {
        State::Completed { result: RunResult::Json(json), .. } => result = Some(json),
        State::Completed { result: RunResult::Other { base64, content_type }, .. } => {
            (result_base64, result_content_type) = (Some(base64), content_type);
        }
        State::Completed { result: RunResult::TooLarge { bytes, content_type }, .. } => {
            (result_bytes, result_content_type) = (Some(bytes), content_type);
        }
        State::Duplicate { of, .. } => duplicate_of = Some(of),
        _ => {}
    }
    let (run_at, parked) = (wait.map(Wait::run_at), matches!(wait, Some(Wait::Parked { .. })));
    #[rustfmt::skip]
    let fields = Fields { run_id, tenant, queue, priority, job_type, state: word, round, attempt, max_attempts, enqueued_at, started_at, ended_at, run_at, node, progress, log, steps, result, result_base64, result_content_type, result_bytes, error, attempts, tags, search, duplicate_of, parent_run_id: parent, then, batch_id: batch, deferral, deferrals, late, parked, keep_ms, erased_at, trace_id, accepted_by, ended_by, died_at, end_log, key_claimed_ms, unique_key, replaces, starts_by, published, seal, turn, held_by, origin, token, unknown: unknown.map(|unknown| *unknown).unwrap_or_default() };
    fields
}

/// The text that serde writes of those fields that say something.
fn written_by_serde(fields: &Fields) -> String {
    const NOTHING: [(&str, &str); 10] = [
        ("log", "[]"),
        ("steps", "[]"),
        ("tags", "[]"),
        ("search", "[]"),
        ("deferrals", "0"),
        ("parked", "false"),
        ("end_log", r#""by_message""#),
        ("replaces", "false"),
        ("published", "false"),
        ("seal", r#""""#),
    ];
    let all: OrderedFields = serde_json::from_str(&serde_json::to_string(fields).unwrap()).unwrap();
    let said = all.0.iter().map(|(name, value)| (name.as_str(), value.get()));
    let said = said.filter(|field| field.1 != "null" && !NOTHING.contains(field));
    let said = said.map(|(name, value)| format!("{}:{value}", serde_json::to_string(name).unwrap()));
    format!("{{{}}}", said.collect::<Vec<_>>().join(","))
}

/// A stored record of this state, with `early` before its attempts and `late` behind them.
fn text_of((state, early, late): (&str, &str, &str)) -> String {
    format!(
        r#"{{"run_id":"r","tenant":"default","queue":"main","priority":5,"type":"t","state":"{state}","round":1,"attempt":1,"max_attempts":4{early},"attempts":[]{late},"origin":"1970-01-01T00:00:01.000Z","token":"t"}}"#
    )
}

const ENQUEUED: &str = r#","enqueued_at":"1970-01-01T00:00:02.000Z""#;
const ENDED: &str = r#","ended_at":"1970-01-01T00:00:03.000Z""#;
const ENDED_AT_ORIGIN: &str = r#","ended_at":"1970-01-01T00:00:01.000Z""#;
const RUN_AT: &str = r#","run_at":"1970-01-01T00:00:04.000Z""#;
const ENDED_AND_RUN_AT: &str = r#","ended_at":"1970-01-01T00:00:03.000Z","run_at":"1970-01-01T00:00:04.000Z""#;
const AT_ORIGIN: &str = r#","run_at":"1970-01-01T00:00:01.000Z""#;
const PARKED: &str = r#","parked":true"#;
const ANOTHER: &str = r#","duplicate_of":"another""#;
const DIED: &str = r#","died_at":"1970-01-01T00:00:02.000Z""#;
const DIED_AT_ORIGIN: &str = r#","died_at":"1970-01-01T00:00:01.000Z""#;

#[test]
fn every_state_is_written_as_it_was_read() {
    let result = |fields: &str| format!("{ENDED}{fields}");
    let results = [
        r#","result":{"a":[1,0.10]}"#,
        r#","result_base64":"QUJD""#,
        r#","result_base64":"QUJD","result_content_type":"text/plain""#,
        r#","result_bytes":70000"#,
        r#","result_content_type":"text/plain","result_bytes":4"#,
    ]
    .map(result);
    let completed = results.iter().map(|early| ("completed", early.as_str(), ""));
    let others = [
        ("scheduled", RUN_AT, ""),
        ("enqueued", ENQUEUED, ""),
        ("enqueued", RUN_AT, ""),
        ("enqueued", RUN_AT, PARKED),
        ("running", ENQUEUED, ""),
        ("retrying", RUN_AT, ""),
        ("retrying", RUN_AT, PARKED),
        ("completed", ENDED, ""),
        ("dead", ENDED, ""),
        ("cancelled", ENDED, ""),
        ("cancelled", ENDED_AND_RUN_AT, ""),
        ("cancelled", ENDED_AND_RUN_AT, PARKED),
        ("cancelled", ENDED, r#","end_log":"by_canceller""#),
        ("cancelled", ENDED, r#","end_log":"done""#),
        ("expired", ENDED, ""),
        ("duplicate", ENDED, ANOTHER),
        ("discarded", ENDED, DIED),
    ];
    for record in others.into_iter().chain(completed) {
        let text = text_of(record);
        assert_eq!(std::str::from_utf8(&write(&read(text.as_bytes()).unwrap())).unwrap(), text);
    }
}

#[test]
fn what_no_run_can_be_is_read_as_the_nearest_state() {
    let parked_since_enqueued = r#","enqueued_at":"1970-01-01T00:00:02.000Z","run_at":"1970-01-01T00:00:02.000Z""#;
    let base64 = r#","ended_at":"1970-01-01T00:00:03.000Z","result_base64":"QUJD""#;
    let base64_and_bytes = r#","ended_at":"1970-01-01T00:00:03.000Z","result_base64":"QUJD","result_bytes":3"#;
    let result = r#","result":1"#;
    let table = [
        // A wait for no known time.
        (("scheduled", "", ""), ("scheduled", AT_ORIGIN, "")),
        (("retrying", "", ""), ("retrying", AT_ORIGIN, "")),
        (("retrying", "", PARKED), ("retrying", AT_ORIGIN, PARKED)),
        (("enqueued", ENQUEUED, PARKED), ("enqueued", parked_since_enqueued, PARKED)),
        // Where its job is.
        (("scheduled", RUN_AT, PARKED), ("enqueued", RUN_AT, PARKED)),
        // Data of another state.
        (("enqueued", ENDED_AND_RUN_AT, ""), ("enqueued", RUN_AT, "")),
        (("running", ENDED_AND_RUN_AT, PARKED), ("running", "", "")),
        (("running", result, ANOTHER), ("running", "", "")),
        (("dead", ENDED_AND_RUN_AT, PARKED), ("dead", ENDED, "")),
        (("expired", ENDED, ANOTHER), ("expired", ENDED, "")),
        (("completed", base64_and_bytes, ""), ("completed", base64, "")),
        // An end at no known time, a duplicate of no known run.
        (("discarded", "", ""), ("discarded", ENDED_AT_ORIGIN, DIED_AT_ORIGIN)),
        (("discarded", ENDED_AT_ORIGIN, ""), ("discarded", ENDED_AT_ORIGIN, DIED_AT_ORIGIN)),
        (("dead", ENDED, DIED), ("dead", ENDED, "")),
        (("duplicate", ENDED, ""), ("duplicate", ENDED, r#","duplicate_of":"r""#)),
    ];
    for (stored, nearest) in table {
        let run = read(text_of(stored).as_bytes()).unwrap();
        assert_eq!(std::str::from_utf8(&write(&run)).unwrap(), text_of(nearest));
    }
}

#[test]
fn what_is_no_record_is_refused() {
    let sound = text_of(("enqueued", "", ""));
    assert!(read(sound.as_bytes()).is_ok());
    for (part, instead, why) in [
        (r#""state":"enqueued""#, r#""state":"waiting""#, "unknown variant `waiting`"),
        (r#""state":"enqueued","#, "", "missing field `state`"),
        (r#""max_attempts":4,"#, "", "missing field `max_attempts`"),
        (r#""priority":5"#, r#""priority":0"#, "priority"),
    ] {
        let error = read(sound.replace(part, instead).as_bytes()).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    }
}

#[test]
fn a_long_history_is_shortened_until_it_fits() {
    let mut long = run(RunState::Running, u64::MAX, 3, "words");
    let failed =
        Attempt { error: Some(Failure::new(ErrorKind::Retryable, "x".repeat(2_000))), ..long.attempts[0].clone() };
    long.round = failed.round;
    long.attempts = vec![failed; 50];
    let written = |max: usize| {
        let mut out = b"before".to_vec();
        append_within(&long, || max, &mut out);
        out.split_off(6)
    };
    assert_eq!(written(200_000), write(&long), "it fits as it is");
    let short = written(30_000);
    assert!(short.len() <= 30_000, "{}", short.len());
    let read = read(&short).unwrap();
    assert_eq!((read.attempts.len(), read.round, &read.token), (50, long.round, &long.token));
    assert_eq!(read.attempts[49], long.attempts[49], "the last one says why");
}

fn worn_out(rounds: u32, attempts: u32) -> Run {
    let job = crate::tests::job("a", "r");
    let at = Timestamp::from_millis(1);
    let mut run = Run::new(&job, attempts, at);
    // The longest it can be in the record: each of these characters takes six bytes there.
    let failure = || Failure::new(ErrorKind::Retryable, "\u{1}".repeat(5_000));
    for round in 1..=rounds {
        for attempt in 1..=attempts {
            run.begin(attempt, &"node".into(), at);
            let failure = failure();
            let last = attempt == attempts;
            let settlement = if last { Settlement::Dead(failure) } else { Settlement::Retry { at, failure } };
            run.settle(settlement, at);
        }
        if round < rounds {
            run.replay(at);
        }
    }
    run
}

#[test]
fn whatever_a_run_went_through_fits_in_the_end() {
    let mut run = worn_out(3, 1_000);
    let size = |run: &Run| write(run).len();
    assert!(size(&run) > 2_000_000);
    while size(&run) > 500_000 {
        assert!(run.shorten(), "{} bytes are left", size(&run));
    }
    assert_eq!((run.round, run.attempts_of_round().count()), (3, 1_000), "the present round is whole");
    assert_eq!(run.error.as_ref().unwrap().message.len(), 4_096);
    while run.shorten() {}
    assert!(size(&run) < 300_000, "{}", size(&run));
}

#[test]
fn a_result_that_is_left_out_or_erased_leaves_its_size() {
    let after = |fields: &str, change: fn(&mut Run)| {
        let mut run = read(text_of(("completed", &format!("{ENDED}{fields}"), "")).as_bytes()).unwrap();
        change(&mut run);
        run.erased_at = None;
        let text = String::from_utf8(write(&run).to_vec()).unwrap();
        text.split_once(ENDED).unwrap().1.split_once(r#","attempts""#).unwrap().0.to_owned()
    };
    let shorten = |run: &mut Run| assert!(run.shorten());
    let erase = |run: &mut Run| run.erase(Timestamp::from_millis(9));
    let (json, other) = (r#","result":{"a":1}"#, r#","result_base64":"QUJD","result_content_type":"text/plain""#);
    let large = r#","result_content_type":"text/plain","result_bytes":4"#;
    assert_eq!([after(json, shorten), after(other, shorten)], [r#","result_bytes":7"#, large]);
    assert_eq!([after(json, erase), after(other, erase)], ["", ""]);
    assert_eq!(after(large, erase), r#","result_bytes":4"#);
    assert_eq!(after(large, |run| assert!(!run.shorten(), "nothing is left to remove")), large);
}

#[test]
fn what_handlers_said_is_shown_and_read_back_byte_for_byte() {
    let deep = format!("{}{}", "[".repeat(1_000), "]".repeat(1_000));
    for said in ["1e999", "1234567890123456789012345678901234567890", "0.10", r#"{"b":1,"a":2}"#, &deep] {
        let mut whole = run(RunState::Completed, 0, 3, "words");
        let result = RunResult::Json(compact(said.as_bytes()).unwrap());
        whole.state = State::Completed { ended_at: whole.origin, result };
        whole.progress = compact(said.as_bytes());
        let text = String::from_utf8(show(&whole).into_bytes()).unwrap();
        assert!(text.contains(&format!(r#""progress":{said},"result":{said},"#)), "{text}");
        assert!(!text.contains("token") && !text.contains("held_by"), "{text}");
        for read in [read_shown(&text).unwrap(), read(&write(&whole)).unwrap()] {
            let Some(RunResult::Json(result)) = read.state.result() else { panic!("{:?}", read.state) };
            assert_eq!((result.get(), read.progress.unwrap().get()), (said, said));
        }
    }
}

#[test]
fn what_is_shown_has_an_attempt_only_where_one_started() {
    let mut waits = run(RunState::Enqueued, 0, 0, "words");
    waits.attempt = 0;
    let shown: serde_json::Value = serde_json::from_slice(&show(&waits).into_bytes()).unwrap();
    assert_eq!(shown.get("attempt"), None);
    assert_eq!(read_shown(&shown.to_string()).unwrap().attempt, 0);
}

#[test]
fn what_is_shown_of_a_parked_run_has_no_time_to_wait_for() {
    for state in ["enqueued", "retrying", "cancelled"] {
        let parked = read(text_of((state, ENDED_AND_RUN_AT, PARKED)).as_bytes()).unwrap();
        let waits = read(text_of((state, ENDED_AND_RUN_AT, "")).as_bytes()).unwrap();
        let shown = |run: &Run| String::from_utf8(show(run).into_bytes()).unwrap();
        assert!(!shown(&parked).contains("run_at") && shown(&waits).contains("run_at"), "{state}");
    }
}

proptest! {
    /// The text that is written here by hand has the API's type, field by field and in its order.
    #[test]
    fn an_answer_is_what_serde_would_write_of_its_type(
        state in proptest::sample::select(&STATES[..]),
        has: u64,
        number: u64,
        words: String,
    ) {
        let shown = show(&run(state, has, number, &words));
        prop_assert_eq!(
            std::str::from_utf8(shown.as_bytes()).unwrap(),
            serde_json::to_string(&shown.read().unwrap()).unwrap()
        );
    }

    #[test]
    fn a_record_is_what_serde_would_write(
        state in proptest::sample::select(&STATES[..]),
        has: u64,
        number: u64,
        words: String,
    ) {
        let run = run(state, has, number, &words);
        let written = write(&run);
        prop_assert_eq!(
            std::str::from_utf8(&written).unwrap(),
            written_by_serde(&fields_of(run))
        );
    }

    /// Whatever the fields say, they are read as some run; and that run is kept whole.
    #[test]
    fn a_record_that_is_read_and_written_again_has_the_same_bytes(
        state in proptest::sample::select(&STATES[..]),
        has: u64,
        number: u64,
        words: String,
    ) {
        let text = written_by_serde(&fields(state, has, number, &words));
        let run = read(text.as_bytes()).unwrap();
        let written = write(&run);
        let again = read(&written).unwrap();
        prop_assert_eq!(format!("{run:?}"), format!("{again:?}"));
        prop_assert_eq!(written, write(&again));
    }
}
