//! The run record's bytes.

use super::api::{Encoded, Record};
use super::json::{Object, compact, maybe, number, quoted, text};
use bytes::Bytes;
use longshore_domain::run::{Attempt, Holding};
use longshore_domain::{Run, Timestamp};

/// Maximum size of a result that a record keeps, in bytes.
pub const RESULT_MAX: usize = 64 * 1024;

/// Writes a record as it is stored.
#[must_use]
pub fn write(run: &Run) -> Bytes {
    let mut out = Vec::with_capacity(768);
    append(run, &mut out);
    Bytes::from(out)
}

/// Records up to this size fit into a message of any server. Asking how much this server accepts costs more than most
/// records.
const SMALL: usize = 16 * 1024;

/// Appends a record to `out`, in at most `max` bytes: if it would be larger, its history is shortened
/// ([`Run::shorten`]). A record that cannot be written would hold its run up for ever.
pub fn append_within(run: &Run, max: impl FnOnce() -> usize, out: &mut Vec<u8>) {
    let start = out.len();
    append(run, out);
    if out.len() - start <= SMALL {
        return;
    }
    let max = max();
    let mut short = None;
    while out.len() - start > max {
        let run = short.get_or_insert_with(|| run.clone());
        if !run.shorten() {
            break;
        }
        out.truncate(start);
        append(run, out);
    }
}

/// Appends a record to `out`: the text that serde would write, whose general encoder took 7 % of a busy node's time.
pub fn append(run: &Run, out: &mut Vec<u8>) {
    append_as(run, Shape::Stored, out);
}

/// The fields that are written.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Shape {
    /// All fields.
    Stored,
    /// The contract's fields, without those that only the protocol needs.
    Shown,
}

fn append_as(run: &Run, shape: Shape, out: &mut Vec<u8>) {
    text(out, &[r#"{"run_id":""#, run.run_id.as_str(), r#"","tenant":""#, run.tenant.as_str(), r#"","queue":""#]);
    text(out, &[run.queue.as_str(), r#"","priority":"#]);
    number(out, u64::from(run.priority.number()));
    text(out, &[r#","type":""#, run.job_type.as_str(), r#"","state":""#, run.state.as_str(), r#"","round":"#]);
    number(out, u64::from(run.round));
    if shape == Shape::Stored || run.attempt > 0 {
        count(out, "attempt", run.attempt);
    }
    count(out, "max_attempts", run.max_attempts);
    time(out, "enqueued_at", run.enqueued_at);
    time(out, "started_at", run.started_at);
    time(out, "ended_at", run.ended_at);
    // A parked job waits for no time.
    time(out, "run_at", run.run_at.filter(|_| shape == Shape::Stored || !run.parked));
    if let Some(node) = &run.node {
        text(out, &[r#","node":"#]);
        quoted(out, node);
    }
    maybe(out, "progress", run.progress.as_ref());
    maybe(out, "result", run.result.as_ref());
    maybe(out, "result_base64", run.result_base64.as_ref());
    maybe(out, "result_content_type", run.result_content_type.as_ref());
    maybe(out, "result_bytes", run.result_bytes.as_ref());
    maybe(out, "error", run.error.as_ref());
    text(out, &[r#","attempts":["#]);
    for (at, attempt) in run.attempts.iter().enumerate() {
        append_attempt(attempt, at > 0, out);
    }
    out.push(b']');
    maybe(out, "tags", Some(&run.tags).filter(|tags| !tags.is_empty()));
    maybe(out, "duplicate_of", run.duplicate_of.as_ref());
    if shape == Shape::Stored {
        maybe(out, "deferral", run.deferral.as_ref());
        maybe(out, "deferrals", Some(&run.deferrals).filter(|deferrals| **deferrals > 0));
        maybe(out, "parked", Some(&run.parked).filter(|parked| **parked));
    }
    maybe(out, "keep_ms", run.keep_ms.as_ref());
    time(out, "erased_at", run.erased_at);
    if shape == Shape::Stored {
        append_protocol(run, out);
    }
    out.push(b'}');
}

fn append_protocol(run: &Run, out: &mut Vec<u8>) {
    maybe(out, "key_claimed_ms", run.key_claimed_ms.as_ref());
    if run.published {
        text(out, &[r#","published":true"#]);
    }
    if !run.seal.is_empty() {
        text(out, &[r#","seal":"#]);
        quoted(out, &run.seal);
    }
    run.held_by.iter().for_each(|holding| append_holding(holding, out));
    time(out, "origin", Some(run.origin));
    text(out, &[r#","token":"#]);
    quoted(out, &run.token);
}

fn append_holding(Holding { message, delivery }: &Holding, out: &mut Vec<u8>) {
    text(out, &[r#","held_by":{"stream":"#]);
    quoted(out, &message.stream);
    text(out, &[r#","sequence":"#]);
    number(out, message.sequence);
    time(out, "at", Some(message.at));
    text(out, &[r#","delivery":"#]);
    number(out, *delivery);
    out.push(b'}');
}

fn append_attempt(of: &Attempt, follows: bool, out: &mut Vec<u8>) {
    let Attempt { round, attempt, started_at, ended_at, node, error, retry_at, put_back, start } = of;
    text(out, &[if follows { r#",{"round":"# } else { r#"{"round":"# }]);
    number(out, u64::from(*round));
    count(out, "attempt", *attempt);
    time(out, "started_at", Some(*started_at));
    time(out, "ended_at", *ended_at);
    text(out, &[r#","node":"#]);
    quoted(out, node);
    maybe(out, "error", error.as_ref());
    time(out, "retry_at", *retry_at);
    maybe(out, "put_back", put_back.as_ref());
    maybe(out, "start", Some(start).filter(|start| **start != 1));
    out.push(b'}');
}

fn count(out: &mut Vec<u8>, name: &str, count: u32) {
    text(out, &[r#",""#, name, r#"":"#]);
    number(out, u64::from(count));
}

fn time(out: &mut Vec<u8>, name: &str, at: Option<Timestamp>) {
    if let Some(at) = at {
        text(out, &[r#",""#, name, r#"":""#]);
        out.extend_from_slice(&at.text());
        out.push(b'"');
    }
}

/// Reads a stored record.
///
/// # Errors
/// The bytes are not a record.
pub fn read(bytes: &[u8]) -> Result<Run, serde_json::Error> {
    serde_json::from_slice(bytes)
}

/// The record as an answer shows it: without the fields that only the protocol needs. Result and progress are copied
/// byte for byte.
#[must_use]
pub fn show(run: &Run) -> Encoded<Record> {
    Encoded::written(shown(run))
}

fn shown(run: &Run) -> Object {
    let mut text = Vec::with_capacity(768);
    append_as(run, Shape::Shown, &mut text);
    Object::written(text)
}

/// The same, in at most `max` bytes (at least 1 KiB): if it has more, result and progress are left out and error texts
/// are cut, then attempts are left out from the middle of the history, as `attempts_left_out` says.
#[must_use]
pub fn show_within(run: &Run, max: usize) -> Encoded<Record> {
    let whole = show(run);
    if whole.size() <= max {
        return whole;
    }
    Encoded::written(shown_within(run, max))
}

fn shown_within(run: &Run, max: usize) -> Object {
    let mut short = run.clone();
    (short.result, short.progress) = (None, None);
    for error in short.attempts.iter_mut().filter_map(|attempt| attempt.error.as_mut()).chain(&mut short.error) {
        error.message.truncate(error.message.floor_char_boundary(SHORT_MESSAGE));
    }
    let mut left_out = 0;
    loop {
        let mut shown = shown(&short);
        if left_out > 0 {
            shown = shown.with("attempts_left_out", &left_out);
        }
        if shown.size() <= max || short.attempts.len() <= 2 {
            return shown;
        }
        // The first and the last attempts say most, so those between them are left out.
        let go = (short.attempts.len() / 4).max(1);
        let from = (short.attempts.len() - go) / 2;
        short.attempts.drain(from..from + go);
        left_out += go;
    }
}

/// How many bytes of an error's text a dead letter keeps if the whole text does not fit.
const SHORT_MESSAGE: usize = 200;

/// Reads a record back from what [`show`] made of it.
///
/// # Errors
/// The text is not a record.
pub fn read_shown(text: &str) -> Result<Run, serde_json::Error> {
    serde_json::from_str(text)
}

/// A result as the record keeps it: JSON without blanks, anything else in base64, nothing above [`RESULT_MAX`].
#[must_use]
pub fn keep(result: &Bytes, content_type: Option<&str>) -> longshore_domain::run::RunResult {
    use base64::Engine as _;
    use longshore_domain::run::RunResult;
    if result.is_empty() {
        return RunResult::None;
    }
    if result.len() > RESULT_MAX {
        return RunResult::TooLarge(result.len() as u64);
    }
    let json = content_type.is_none_or(|kind| kind.contains("json"));
    match compact(result).filter(|_| json) {
        Some(value) => RunResult::Json(value),
        None => RunResult::Other {
            base64: base64::engine::general_purpose::STANDARD.encode(result),
            content_type: content_type.map(str::to_owned),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use longshore_domain::run::{DeferReason, Deferral, MessageId, PutBack};
    use longshore_domain::{ErrorKind, Failure, Job, JobType, Priority, Queue, RunId, RunState, SmolStr, Tenant};
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

    /// A run whose optional fields are set where `has` has a bit, with texts that need escaping.
    fn run(state: RunState, has: u32, number: u64, words: &str) -> Run {
        let job = Job {
            tenant: Tenant::default_tenant(),
            queue: Queue::main(),
            priority: Priority::DEFAULT,
            job_type: JobType::parse("report.Render").unwrap(),
            run_id: RunId::parse("main-p5-7").unwrap(),
            options: None,
        };
        let at = Timestamp::from_millis(i64::try_from(number % 4_000_000_000_000).unwrap());
        let mut bit = 0;
        let mut there = || {
            bit += 1;
            has >> bit & 1 == 1
        };
        let node = SmolStr::from(words);
        let failure = Failure::new(ErrorKind::LeaseExpired, words);
        let json = || RawValue::from_string(serde_json::json!({ words: number }).to_string()).unwrap();
        let mut run = Run::new(&job, number as u32, at);
        run.state = state;
        run.attempts = (0..number as u32 % 4)
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
            })
            .collect();
        (run.round, run.attempt, run.deferrals) = (number as u32, has, number as u32 % 3);
        run.enqueued_at = there().then_some(at);
        run.started_at = there().then_some(at);
        run.ended_at = there().then_some(at);
        run.run_at = there().then_some(at);
        run.node = there().then_some(node);
        run.progress = there().then(json);
        run.result = there().then(json);
        run.result_base64 = there().then(|| words.to_owned());
        run.result_content_type = there().then(|| words.to_owned());
        run.result_bytes = there().then_some(number);
        run.error = there().then_some(failure);
        run.tags = (0..has % 3).map(|tag| format!("{words}{tag}")).collect();
        run.duplicate_of = there().then(|| job.run_id.clone());
        run.deferral = there().then_some(Deferral { reason: DeferReason::Snoozed, since: at, at, count: 3, nth: 7 });
        run.keep_ms = there().then_some(number);
        run.erased_at = there().then_some(at);
        run.key_claimed_ms = there().then_some(number);
        (run.published, run.seal) = (there(), if there() { words.into() } else { SmolStr::default() });
        let message = MessageId { stream: words.into(), sequence: number, at };
        run.held_by = there().then_some(Holding { message, delivery: number });
        (run.origin, run.token) = (at, words.into());
        run
    }

    /// Does not compile when a field is added, which [`append`] must then write and [`run`] fill.
    fn knows_every_field(run: &Run) {
        #[rustfmt::skip]
        let Run { run_id: _, tenant: _, queue: _, priority: _, job_type: _, state: _, round: _, attempt: _, max_attempts: _, enqueued_at: _, started_at: _, ended_at: _, run_at: _, node: _, progress: _, result: _, result_base64: _, result_content_type: _, result_bytes: _, error: _, attempts: _, tags: _, duplicate_of: _, deferral: _, deferrals: _, keep_ms: _, erased_at: _, key_claimed_ms: _, published: _, seal: _, held_by: _, origin: _, token: _, parked: _ } = run;
    }

    #[test]
    fn a_long_history_is_shortened_until_it_fits() {
        let mut long = run(RunState::Running, u32::MAX, 3, "words");
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

    #[test]
    fn what_handlers_said_is_shown_and_read_back_byte_for_byte() {
        let deep = format!("{}{}", "[".repeat(1_000), "]".repeat(1_000));
        for said in ["1e999", "1234567890123456789012345678901234567890", "0.10", r#"{"b":1,"a":2}"#, &deep] {
            let mut whole = run(RunState::Dead, 0, 3, "words");
            whole.result = compact(said.as_bytes());
            whole.progress = compact(said.as_bytes());
            let text = String::from_utf8(show(&whole).into_bytes()).unwrap();
            assert!(text.contains(&format!(r#""progress":{said},"result":{said},"#)), "{text}");
            assert!(!text.contains("token") && !text.contains("held_by"), "{text}");
            for read in [read_shown(&text).unwrap(), read(&write(&whole)).unwrap()] {
                assert_eq!((read.result.unwrap().get(), read.progress.unwrap().get()), (said, said));
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

    proptest! {
        /// The text that is written here by hand has the API's type, field by field and in its order.
        #[test]
        fn an_answer_is_what_serde_would_write_of_its_type(
            state in proptest::sample::select(&STATES[..]),
            has: u32,
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
            has: u32,
            number: u64,
            words: String,
        ) {
            let run = run(state, has, number, &words);
            knows_every_field(&run);
            let written = write(&run);
            prop_assert_eq!(
                std::str::from_utf8(&written).unwrap(),
                serde_json::to_string(&run).unwrap()
            );
        }
    }
}
