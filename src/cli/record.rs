//! A run's record, as people read it.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use longshore_backbone::wire::api::{Attempt, Encoded, Record, RunError, WaitingFor};
use longshore_domain::run::Step;
use longshore_domain::{BatchId, JobType, RunId, Timestamp};
use serde_json::value::RawValue;

use super::output::{self, STRONG, styled};
use super::target::now;
use super::{Ended, exact};

pub(super) fn print(record: &Encoded<Record>, json: bool) -> anyhow::Result<Ended> {
    output::answer(record, json, || output::say(show(&record.read()?, now()).trim_end()))
}

pub(crate) fn show(record: &Record, now: Timestamp) -> String {
    let state = output::cut(&record.state.to_string(), 40);
    let mut lines = vec![
        ("run", styled(record.run_id.as_str(), STRONG, 0)),
        ("type", record.job_type.to_string()),
        ("state", styled(&state, output::style_of(&state), 0)),
        ("queue", format!("{}, priority {}, tenant {}", record.queue, record.priority.number(), record.tenant)),
    ];
    if let Some(attempt) = record.attempt {
        let round = if record.round > 1 { format!(", round {}", record.round) } else { String::new() };
        lines.push(("attempt", format!("{attempt} of {}{round}", record.max_attempts)));
    }
    if let Some(WaitingFor { message, .. }) = &record.waiting_for {
        lines.push(("waits for", output::cut(message.strip_prefix("waits for ").unwrap_or(message), 400)));
    }
    // Most runs were enqueued as they were submitted.
    let submitted_before = record.submitted_at.filter(|at| record.enqueued_at.is_none_or(|enqueued| *at < enqueued));
    let times = [
        ("submitted", submitted_before),
        ("enqueued", record.enqueued_at),
        ("due", record.run_at),
        ("started", record.started_at),
        ("ended", record.ended_at),
        ("erased", record.erased_at),
    ];
    lines.extend(times.into_iter().filter_map(|(name, at)| Some((name, output::moment(at?, now)))));
    if let Some((started, ended)) = record.started_at.zip(record.ended_at) {
        lines.push(("took", output::span(started, ended)));
    }
    let texts = [
        ("node", record.node.as_deref()),
        ("duplicate_of", record.duplicate_of.as_ref().map(RunId::as_str)),
        ("batch", record.batch_id.as_ref().map(BatchId::as_str)),
        ("follows", record.parent_run_id.as_ref().map(RunId::as_str)),
        ("then", record.children.first().map(RunId::as_str).or(record.then.as_ref().map(JobType::as_str))),
        ("result_content_type", record.result_content_type.as_deref()),
    ];
    lines.extend(record.trace_id.map(|trace| ("trace", trace.to_string())));
    lines.extend(texts.into_iter().filter_map(|(name, text)| Some((name, output::cut(text?, 200)))));
    lines.extend(said(record));
    lines.extend(record.log.iter().map(|line| ("log", format!("{} {}", line.at, output::plain(&line.line)))));
    let step = |Step { at, name, n, attempt }: &Step| match n {
        1 => format!("{at} {name} in attempt {attempt}"),
        n => format!("{at} {name}#{n} in attempt {attempt}"),
    };
    lines.extend(record.steps.iter().map(|done| ("step", step(done))));
    if let Some(RunError { kind, message }) = &record.error {
        let kind = styled(&output::cut(&kind.to_string(), 40), output::BAD, 0);
        lines.push(("error", format!("{kind}: {}", output::plain(message))));
    }
    let lines = lines.into_iter().map(|(name, value)| output::field(name, &value));
    lines.collect::<String>() + &attempts(&record.attempts)
}

/// Fields that the job's client and handler wrote.
fn said(record: &Record) -> impl Iterator<Item = (&'static str, String)> {
    let tags = (!record.tags.is_empty()).then(|| record.tags.join(", "));
    let search = (!record.search.is_empty()).then(|| record.search.join(", "));
    let bytes = record.result_bytes.map(|bytes| bytes.to_string());
    let text = record.result_base64.as_deref().map(decoded);
    let json = |json: &RawValue| json.get().to_owned();
    let said = [
        ("tags", tags),
        ("search", search),
        ("progress", record.progress.as_deref().map(json)),
        ("result", record.result.as_deref().map(json).or(text)),
        ("result_bytes", bytes),
    ];
    said.into_iter().filter_map(|(name, json)| Some((name, output::plain(&exact::laid_out(&json?)))))
}

/// What is text is shown as text, anything else as its size.
pub(super) fn decoded(base64: &str) -> String {
    let bytes = STANDARD.decode(base64).unwrap_or_default();
    match String::from_utf8(bytes) {
        Ok(words) => words,
        Err(error) => {
            format!("{} bytes that are not text; --json has them", output::number(error.as_bytes().len() as u64))
        }
    }
}

/// The attempts, if there are more than the last one.
fn attempts(attempts: &[Attempt]) -> String {
    if attempts.len() < 2 {
        return String::new();
    }
    let heading = ["round", "attempt", "started", "took", "node", "error"];
    let row = |attempt: &Attempt| {
        let error = attempt.error.as_ref();
        let error = error
            .map(|error| format!("{}: {}", output::cut(&error.kind.to_string(), 40), output::plain(&error.message)));
        [
            attempt.round.to_string(),
            attempt.attempt.to_string(),
            attempt.started_at.to_string(),
            attempt.ended_at.map(|ended| output::span(attempt.started_at, ended)).unwrap_or_default(),
            attempt.node.clone(),
            error.unwrap_or_default(),
        ]
    };
    let rows = output::rows(heading, attempts.iter().map(row));
    format!("\n{}", output::table(&output::fitted(rows, output::columns(), &[]), &[0, 1, 3]))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_record_is_shown_for_people() {
        let record = json!({"run_id": "main-p5-7", "tenant": "default", "queue": "main", "priority": 5, "type": "report.render",
            "state": "completed", "round": 1, "attempt": 2, "max_attempts": 12, "enqueued_at": "2026-11-21T12:00:00.000Z",
            "started_at": "2026-11-21T12:00:00.100Z", "ended_at": "2026-11-21T12:00:01.350Z", "node": "n1",
            "result": {"pages": 3}, "attempts": [
                {"round": 1, "attempt": 1, "started_at": "2026-11-21T12:00:00.100Z", "ended_at": "2026-11-21T12:00:00.150Z",
                 "node": "n1", "error": {"kind": "retryable", "message": "busy"}},
                {"round": 1, "attempt": 2, "started_at": "2026-11-21T12:00:01.250Z", "ended_at": "2026-11-21T12:00:01.350Z",
                 "node": "n1"}]});
        let record = serde_json::from_str(&record.to_string()).unwrap();
        let shown =
            anstream::adapter::strip_str(&show(&record, Timestamp::parse("2026-11-21T12:05:00Z").unwrap())).to_string();
        assert_eq!(
            shown,
            "\
run        main-p5-7
type       report.render
state      completed
queue      main, priority 5, tenant default
attempt    2 of 12
enqueued   2026-11-21T12:00:00.000Z (5 min ago)
started    2026-11-21T12:00:00.100Z (4 min ago)
ended      2026-11-21T12:00:01.350Z (4 min ago)
took       1.2 s
node       n1
result     {
             \"pages\": 3
           }

round  attempt  started                     took  node  error
    1        1  2026-11-21T12:00:00.100Z   50 ms  n1    retryable: busy
    1        2  2026-11-21T12:00:01.250Z  100 ms  n1
"
        );
    }

    #[test]
    fn a_run_that_was_enqueued_later_says_when_it_was_submitted() {
        let lines = |times: serde_json::Value| -> Vec<String> {
            let mut record = json!({"run_id": "r", "tenant": "default", "queue": "main", "priority": 5, "type": "t",
                "state": "scheduled", "round": 1, "max_attempts": 12, "attempts": []});
            record.as_object_mut().unwrap().extend(times.as_object().unwrap().clone());
            let record = serde_json::from_str(&record.to_string()).unwrap();
            let shown = show(&record, Timestamp::parse("2026-11-21T12:05:00Z").unwrap());
            anstream::adapter::strip_str(&shown).to_string().lines().skip(4).map(str::to_owned).collect()
        };
        let (early, late) = ("2026-11-21T12:00:00.000Z", "2026-11-21T12:04:00.000Z");
        let submitted = "submitted  2026-11-21T12:00:00.000Z (5 min ago)";
        let waits = lines(json!({"submitted_at": early, "run_at": "2026-11-21T13:00:00.000Z"}));
        assert_eq!(waits, [submitted, "due        2026-11-21T13:00:00.000Z (in 55 min)"]);
        let was_delayed = lines(json!({"submitted_at": early, "enqueued_at": late}));
        assert_eq!(was_delayed, [submitted, "enqueued   2026-11-21T12:04:00.000Z (1 min ago)"]);
        let at_once = lines(json!({"submitted_at": early, "enqueued_at": early}));
        assert_eq!(at_once, ["enqueued   2026-11-21T12:00:00.000Z (5 min ago)"]);
    }

    #[test]
    fn texts_are_shown_as_text() {
        let record = |result: &str| {
            let record = json!({"run_id": "r", "tenant": "default", "queue": "main", "priority": 5, "type": "t",
                "state": "completed", "round": 1, "max_attempts": 12, "attempts": [], "tags": ["a", "b c"],
                "parent_run_id": "p", "then": "email", "children": ["r-then"], "result_base64": result});
            let record = serde_json::from_str(&record.to_string()).unwrap();
            anstream::adapter::strip_str(&show(&record, Timestamp::parse("2026-11-21T12:05:00Z").unwrap())).to_string()
        };
        let text = record("dHdvIHdvcmRz");
        assert!(text.contains("tags       a, b c\n") && text.contains("result     two words\n"), "{text}");
        assert!(text.contains("follows    p\nthen       r-then\n"), "{text}");
        let bytes = record("/w==");
        assert!(bytes.contains("result     1 bytes that are not text; --json has them\n"), "{bytes}");
    }
}
