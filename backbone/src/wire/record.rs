//! The run record's bytes.

use bytes::Bytes;
use longshore_domain::Run;
use serde_json::value::RawValue;

/// Largest result that a record keeps, in bytes.
pub const RESULT_MAX: usize = 64 * 1024;
/// Bytes of an error's text where there is no room for all of it.
const SHORT_TEXT: usize = 200;

/// Writes a record as it is stored.
#[must_use]
pub fn write(run: &Run) -> Bytes {
    let mut out = Vec::with_capacity(768);
    serde_json::to_writer(&mut out, run).expect("a record has string keys only and is written to memory");
    Bytes::from(out)
}

/// Reads a stored record.
///
/// # Errors
/// The bytes are not a record.
pub fn read(bytes: &[u8]) -> Result<Run, serde_json::Error> {
    serde_json::from_slice(bytes)
}

/// The record as an answer shows it: without what only the protocol needs.
#[must_use]
pub fn show(run: &Run) -> serde_json::Value {
    let mut value = serde_json::to_value(run).unwrap_or_default();
    if let Some(fields) = value.as_object_mut() {
        for inner in ["held_by", "origin", "token", "deferral", "deferrals"] {
            fields.remove(inner);
        }
        if run.attempt == 0 {
            fields.remove("attempt");
        }
    }
    value
}

/// The record as [`show`] has it, within so many bytes: where it has no room, long texts are cut and the oldest attempts
/// left out.
#[must_use]
pub fn show_within(run: &Run, most: usize) -> String {
    let full = show(run).to_string();
    if full.len() <= most {
        return full;
    }
    let mut short = run.clone();
    short.progress = None;
    let texts = short.attempts.iter_mut().filter_map(|attempt| attempt.error.as_mut()).chain(short.error.as_mut());
    for failure in texts {
        failure.message.truncate(failure.message.floor_char_boundary(SHORT_TEXT));
    }
    loop {
        let text = show(&short).to_string();
        if text.len() <= most || short.attempts.is_empty() {
            return text;
        }
        short.attempts.drain(..short.attempts.len().div_ceil(2));
    }
}

/// A result as the record keeps it: JSON as it is, anything else in base64, nothing above [`RESULT_MAX`].
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
    match serde_json::from_slice::<Box<RawValue>>(result) {
        Ok(value) if json => RunResult::Json(value),
        _ => RunResult::Other {
            base64: base64::engine::general_purpose::STANDARD.encode(result),
            content_type: content_type.map(str::to_owned),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use longshore_domain::settlement::Settlement;
    use longshore_domain::{ErrorKind, Failure, Job, JobType, Priority, Queue, RunId, Tenant, Timestamp};

    #[test]
    fn a_record_fits_where_it_has_to() {
        let job = Job {
            tenant: Tenant::default_tenant(),
            queue: Queue::main(),
            priority: Priority::DEFAULT,
            job_type: JobType::parse("t").unwrap(),
            run_id: RunId::parse("r").unwrap(),
            options: None,
        };
        let mut run = Run::new(&job, 1_000, Timestamp::from_millis(1));
        for attempt in 1..=40 {
            run.begin(attempt, &std::sync::Arc::from("n"), Timestamp::from_millis(2));
            let failure = Failure::new(ErrorKind::Retryable, "\u{1}".repeat(4_096));
            run.settle(Settlement::Retry { at: Timestamp::from_millis(3), failure }, Timestamp::from_millis(3));
        }
        let attempts =
            |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap()["attempts"].as_array().unwrap().len();
        let full = show_within(&run, 1 << 20);
        assert_eq!((full.as_str(), attempts(&full)), (show(&run).to_string().as_str(), 40));
        let short = show_within(&run, 20_000);
        assert!(short.len() <= 20_000 && (1..40).contains(&attempts(&short)), "{}", short.len());
        assert!(show_within(&run, 6_000).len() <= 6_000);
    }
}
