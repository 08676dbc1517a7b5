//! The header `Longshore-Then`: the job that follows a completed run, as `submit` takes it, in JSON.

use longshore_domain::JobType;
use longshore_domain::job::Then;

use crate::wire::api::{Endpoint as _, Submit, SubmitRequest};
use crate::wire::json::compact;

/// The header's name.
pub const NAME: &str = "Longshore-Then";

pub(super) fn read(value: &str) -> Result<Then, String> {
    let job_type = JobType::parse(&job(value)?.job_type).map_err(|error| error.to_string())?;
    Ok(Then { job_type, job: value.to_owned() })
}

/// Writes a job as the header's value.
///
/// # Errors
/// It has no valid type.
pub fn write(job: &SubmitRequest) -> Result<Then, String> {
    let text = serde_json::to_vec(job).map_err(|error| error.to_string())?;
    let text = compact(&text).map(|json| json.get().to_owned()).unwrap_or_default();
    // Without blanks between its tokens, JSON has such characters within its texts alone.
    let escaped = |c: char| if c.is_control() { format!("\\u{:04x}", u32::from(c)) } else { c.to_string() };
    let text = if text.contains(char::is_control) { text.chars().map(escaped).collect() } else { text };
    read(&text)
}

/// The job in the header's value.
///
/// # Errors
/// Names the field.
pub fn job(value: &str) -> Result<SubmitRequest, String> {
    Submit::read(value.as_bytes()).map_err(|error| error.message)
}

#[cfg(test)]
mod tests {
    use super::super::fits_header;
    use super::*;

    #[test]
    fn any_payload_fits_a_header() {
        let payload = "{ \"a\" : \"\u{7f}\u{85}ü \\n\",\r\n\t\"n\": 12345678901234567890.10 }";
        let body = format!("{{\"type\":\"t\",\"payload\":{payload}}}");
        let written = write(&job(&body).unwrap()).unwrap();
        assert!(fits_header(&written.job), "{written:?}");
        let read = job(&written.job).unwrap().payload.unwrap();
        assert!(read.get().contains("12345678901234567890.10"), "{read}");
        let value = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
        assert_eq!(value(read.get()), value(payload));
        assert_eq!(super::read(&written.job), Ok(written));
    }
}
