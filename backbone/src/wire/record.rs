//! The run record's bytes: written by hand, for speed, and read with serde (`fields`).

use super::api::{Encoded, Record, WaitingFor};
use super::json::{Object, compact, field, json, maybe, number, quoted, text, time};
use bytes::Bytes;
use fields::Fields;
use longshore_domain::run::{Attempt, EndLog, Holding, RunResult};
use longshore_domain::{Run, State};

mod fields;

/// Maximum size of a result that a record keeps, in bytes.
pub const RESULT_MAX: usize = 64 * 1024;

/// Writes a record as it is stored.
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

/// Appends a record to `out`: the text that serde would write of its `Fields`, whose general encoder took 7 % of a busy
/// node's time.
pub fn append(run: &Run, out: &mut Vec<u8>) {
    append_as(run, WrittenFields::Stored, out);
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum WrittenFields {
    Stored,
    /// The contract's fields, without those that only the protocol needs.
    Shown,
}

fn append_as(run: &Run, shape: WrittenFields, out: &mut Vec<u8>) {
    text(out, &[r#"{"run_id":""#, run.run_id.as_str(), r#"","tenant":""#, run.tenant.as_str(), r#"","queue":""#]);
    text(out, &[run.queue.as_str(), r#"","priority":"#]);
    number(out, u64::from(run.priority.number()));
    text(out, &[r#","type":""#, run.job_type.as_str(), r#"","state":""#, run.state.as_str(), r#"","round":"#]);
    number(out, u64::from(run.round));
    if shape == WrittenFields::Stored || run.attempt > 0 {
        field(out, "attempt", &run.attempt);
    }
    field(out, "max_attempts", &run.max_attempts);
    // What is stored has it among the protocol's fields.
    time(out, "submitted_at", Some(run.origin).filter(|_| shape == WrittenFields::Shown));
    time(out, "enqueued_at", run.enqueued_at);
    time(out, "started_at", run.started_at);
    time(out, "ended_at", run.state.ended_at());
    // A parked job waits for no time.
    time(out, "run_at", run.state.run_at().filter(|_| shape == WrittenFields::Stored || !run.state.is_parked()));
    if let Some(node) = &run.node {
        text(out, &[r#","node":"#]);
        quoted(out, node);
    }
    maybe(out, "progress", run.progress.as_ref());
    maybe(out, "log", Some(&run.log).filter(|log| !log.is_empty()));
    maybe(out, "steps", Some(&run.steps).filter(|steps| !steps.is_empty()));
    append_result(run, out);
    maybe(out, "error", run.error.as_ref());
    text(out, &[r#","attempts":["#]);
    for (at, attempt) in run.attempts.iter().enumerate() {
        append_attempt(attempt, at > 0, out);
    }
    out.push(b']');
    maybe(out, "tags", Some(&run.tags).filter(|tags| !tags.is_empty()));
    maybe(out, "search", Some(&run.search).filter(|values| !values.is_empty()));
    maybe(out, "duplicate_of", run.state.duplicate_of());
    maybe(out, "parent_run_id", run.parent.as_ref());
    maybe(out, "then", run.then.as_ref());
    maybe(out, "batch_id", run.batch.as_ref());
    if shape == WrittenFields::Shown {
        maybe(out, "children", run.child().map(|child| [child]).as_ref());
    } else {
        maybe(out, "deferral", run.deferral.as_ref());
        maybe(out, "deferrals", Some(&run.deferrals).filter(|deferrals| **deferrals > 0));
        maybe(out, "late", run.late.as_ref());
        maybe(out, "parked", Some(&true).filter(|_| run.state.is_parked()));
    }
    maybe(out, "keep_ms", run.keep_ms.as_ref());
    time(out, "erased_at", run.erased_at);
    maybe(out, "trace_id", run.trace_id.as_ref());
    if shape == WrittenFields::Stored {
        append_protocol(run, out);
    }
    out.push(b'}');
}

fn append_result(run: &Run, out: &mut Vec<u8>) {
    match run.state.result() {
        None | Some(RunResult::None) => {}
        Some(RunResult::Json(json)) => field(out, "result", json),
        Some(RunResult::Other { base64, content_type }) => {
            field(out, "result_base64", base64);
            maybe(out, "result_content_type", content_type.as_ref());
        }
        Some(RunResult::TooLarge { bytes, content_type }) => {
            maybe(out, "result_content_type", content_type.as_ref());
            field(out, "result_bytes", bytes);
        }
    }
}

fn append_protocol(run: &Run, out: &mut Vec<u8>) {
    // Most jobs are accepted by the node that starts them first.
    maybe(out, "accepted_by", run.accepted_by.as_ref().filter(|node| run.first_node() != Some(*node)));
    // The last attempt's node names itself in the event of the end.
    maybe(out, "ended_by", run.ended_by.as_ref().filter(|_| run.first_node().is_none()));
    time(out, "died_at", run.state.died_at());
    maybe(out, "end_log", Some(&run.state.end_log()).filter(|end_log| **end_log != EndLog::ByMessage));
    maybe(out, "key_claimed_ms", run.key_claimed_ms.as_ref());
    maybe(out, "unique_key", run.unique_key.as_ref());
    if run.replaces {
        text(out, &[r#","replaces":true"#]);
    }
    maybe(out, "starts_by", run.starts_by.as_ref());
    if run.published {
        text(out, &[r#","published":true"#]);
    }
    if !run.seal.is_empty() {
        text(out, &[r#","seal":"#]);
        quoted(out, &run.seal);
    }
    maybe(out, "turn", run.turn.as_ref());
    run.held_by.iter().for_each(|holding| append_holding(holding, out));
    time(out, "origin", Some(run.origin));
    text(out, &[r#","token":"#]);
    quoted(out, &run.token);
    run.unknown.iter().flat_map(|fields| fields.iter()).for_each(|(name, value)| {
        out.push(b',');
        quoted(out, name);
        out.push(b':');
        json(out, value);
    });
}

fn append_holding(Holding { message, delivery }: &Holding, out: &mut Vec<u8>) {
    text(out, &[r#","held_by":{"stream":"#]);
    quoted(out, &message.stream);
    field(out, "sequence", &message.sequence);
    time(out, "at", Some(message.at));
    field(out, "delivery", delivery);
    out.push(b'}');
}

fn append_attempt(of: &Attempt, follows: bool, out: &mut Vec<u8>) {
    let Attempt { round, attempt, started_at, ended_at, node, error, retry_at, put_back, start, detached } = of;
    text(out, &[if follows { r#",{"round":"# } else { r#"{"round":"# }]);
    number(out, u64::from(*round));
    field(out, "attempt", attempt);
    time(out, "started_at", Some(*started_at));
    time(out, "ended_at", *ended_at);
    text(out, &[r#","node":"#]);
    quoted(out, node);
    maybe(out, "error", error.as_ref());
    time(out, "retry_at", *retry_at);
    maybe(out, "put_back", put_back.as_ref());
    maybe(out, "start", Some(start).filter(|start| **start != 1));
    maybe(out, "detached", detached.as_ref());
    out.push(b'}');
}

/// Reads a stored record. Fields that contradict its state do not make it unreadable: they are read as the nearest
/// state that a run can have.
///
/// # Errors
/// The bytes are not a record.
pub fn read(bytes: &[u8]) -> Result<Run, serde_json::Error> {
    serde_json::from_slice(bytes).map(Fields::into_run)
}

/// The record as an answer shows it: without the fields that only the protocol needs. Result and progress are copied
/// byte for byte.
pub fn show(run: &Run) -> Encoded<Record> {
    Encoded::written(shown(run))
}

/// The same, with what the run waits for.
pub fn show_waiting(run: &Run, waiting_for: Option<&WaitingFor>) -> Encoded<Record> {
    let shown = shown(run);
    Encoded::written(match waiting_for {
        Some(waiting_for) => shown.with("waiting_for", waiting_for),
        None => shown,
    })
}

fn shown(run: &Run) -> Object {
    let mut text = Vec::with_capacity(768);
    append_as(run, WrittenFields::Shown, &mut text);
    Object::written(text)
}

/// The same, in at most `max` bytes (at least 1 KiB): if it has more, result, progress and log are left out and error
/// texts are cut, then attempts are left out from the middle of the history, as `attempts_left_out` says.
pub fn show_within(run: &Run, max: usize) -> Encoded<Record> {
    let whole = show(run);
    if whole.size() <= max {
        return whole;
    }
    let mut short = run.clone();
    short.progress = None;
    short.log.clear();
    short.steps.clear();
    if let State::Completed { result: result @ RunResult::Json(_), .. } = &mut short.state {
        *result = RunResult::None;
    }
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
            return Encoded::written(shown);
        }
        // The first and the last attempts say most, so those between them are left out.
        let go = (short.attempts.len() / 4).max(1);
        let from = (short.attempts.len() - go) / 2;
        short.attempts.drain(from..from + go);
        left_out += go;
    }
}

/// How many bytes of an error's text a dead letter keeps if the whole text does not fit.
pub const SHORT_MESSAGE: usize = 200;

/// Reads a record back from what [`show`] made of it.
pub(crate) fn read_shown(text: &str) -> Result<Run, serde_json::Error> {
    // What else is shown is made of other things than the run.
    serde_json::from_str(text).map(|fields: Fields| Run { unknown: None, ..fields.into_run() })
}

/// Whether a content type is one of JSON: case says nothing in it.
pub fn is_json(content_type: &str) -> bool {
    content_type.as_bytes().windows(4).any(|part| part.eq_ignore_ascii_case(b"json"))
}

/// A result as the record keeps it: JSON without blanks, anything else in base64, nothing above [`RESULT_MAX`]. What is
/// not JSON is not called so, although many handlers send the job's content type back with whatever they answer.
pub fn keep(result: &Bytes, content_type: Option<&str>) -> RunResult {
    use base64::Engine as _;
    if result.is_empty() {
        return RunResult::None;
    }
    if result.len() > RESULT_MAX {
        return RunResult::TooLarge { bytes: result.len() as u64, content_type: None };
    }
    let json = content_type.is_none_or(is_json);
    match compact(result).filter(|_| json) {
        Some(value) => RunResult::Json(value),
        None => RunResult::Other {
            base64: base64::engine::general_purpose::STANDARD.encode(result),
            content_type: content_type.filter(|_| !json).map(str::to_owned),
        },
    }
}

#[cfg(test)]
mod tests;
