//! The options of a job, which `submit` and `schedules put` share: one for each field that the API takes.

use std::time::Duration;

use clap::Args;
use longshore_backbone::wire::api::SubmitRequest;
use longshore_backbone::wire::header;
use longshore_domain::run::whole_millis;
use longshore_domain::{Queue, Timestamp, duration};
use serde_json::value::RawValue;

#[derive(Debug, Args)]
#[command(next_help_heading = "The job")]
pub(super) struct Job {
    /// The payload as any bytes, in base64; in place of JSON
    #[arg(long, value_name = "TEXT", conflicts_with = "payload")]
    payload_base64: Option<String>,
    /// The queue in which it waits
    #[arg(long, value_name = "NAME", value_parser = super::name::<Queue>)]
    queue: Option<Queue>,
    /// 1, the most urgent, to 9; 5 if not given
    #[arg(long, short, value_name = "1-9", value_parser = clap::value_parser!(u8).range(1..=9))]
    priority: Option<u8>,
    /// Idempotency key: one key is one run; a schedule adds the time due to it
    #[arg(long, value_name = "TEXT")]
    key: Option<String>,
    /// How long the key is kept [default: the node's setting idempotency.window]
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, requires = "key")]
    window: Option<Duration>,
    /// When the key is free again: after its window, once the job starts, once its run has ended
    #[arg(long, value_name = "SCOPE", value_parser = longshore_domain::job::Unique::NAMES, requires = "key")]
    unique: Option<String>,
    /// If another run has the key: answer with that run, fail, or take its place unless it has started
    #[arg(long, value_name = "WHAT", value_parser = ["return", "reject", "replace"], requires = "key")]
    on_conflict: Option<String>,
    /// Concurrency key: how many of its type run at once is counted per key
    #[arg(long, value_name = "TEXT")]
    concurrency_key: Option<String>,
    /// Limit key: which bucket of its type's rate limit, and which circuit breaker
    #[arg(long, value_name = "TEXT")]
    limit_key: Option<String>,
    /// How many tokens of a rate limit it takes [default: 1]
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    cost: Option<u64>,
    /// Attempts before it goes to the dead letters
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u64).range(1..=1000))]
    max_attempts: Option<u64>,
    /// A back-off preset of the node's configuration, [retries.NAME]
    #[arg(long, value_name = "NAME")]
    retry: Option<String>,
    /// Time limit of each attempt, not of waiting for the run
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    pub(super) timeout: Option<Duration>,
    /// When the whole run must have ended: 1h from when it is enqueued; for one job also 2027-01-31T09:30:00Z
    #[arg(long, value_name = "TIME", value_parser = time_or_span)]
    deadline: Option<String>,
    /// It expires if it was not started this long after it was enqueued or fell due
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    expires_in: Option<Duration>,
    /// How long its record is kept once it has ended
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    keep: Option<Duration>,
    /// A header that is passed on to the handler: Name=value; may be given several times
    #[arg(long, value_name = "NAME=VALUE", value_parser = header)]
    header: Vec<(String, String)>,
    /// Which version of its type's schema the payload follows
    #[arg(long, value_name = "VERSION")]
    schema_version: Option<String>,
    /// The job that follows once this one has completed, with its result as the payload unless it has one: JSON with
    /// the fields of the API's submit, such as {"type":"email.send"}, and then in turn
    #[arg(long, value_name = "JSON", value_parser = then)]
    then: Option<Box<SubmitRequest>>,
    /// The batch that it joins
    #[arg(long, value_name = "ID")]
    batch: Option<String>,
    /// A tag, for people and filters; may be given several times
    #[arg(long, value_name = "TEXT")]
    tag: Vec<String>,
}

impl Job {
    /// The fields of a job of this type; options that were not given are left out, so that the node's defaults apply.
    pub(super) fn request(&self, job_type: String, payload: Option<Box<RawValue>>) -> SubmitRequest {
        SubmitRequest {
            job_type,
            payload,
            payload_base64: self.payload_base64.clone(),
            queue: self.queue.as_ref().map(Queue::to_string),
            priority: self.priority.map(u64::from),
            idempotency_key: self.key.clone(),
            idempotency_window_ms: self.window.map(whole_millis),
            unique: self.unique.clone(),
            on_conflict: self.on_conflict.clone(),
            concurrency_key: self.concurrency_key.clone(),
            limit_key: self.limit_key.clone(),
            cost: self.cost,
            max_attempts: self.max_attempts,
            retry: self.retry.clone(),
            timeout_ms: self.timeout.map(whole_millis),
            deadline: self.deadline.clone(),
            expires_in_ms: self.expires_in.map(whole_millis),
            keep_ms: self.keep.map(whole_millis),
            headers: (!self.header.is_empty()).then(|| self.header.iter().cloned().collect()),
            schema_version: self.schema_version.clone(),
            then: self.then.clone(),
            batch_id: self.batch.clone(),
            tags: (!self.tag.is_empty()).then(|| self.tag.clone()),
            ..SubmitRequest::default()
        }
    }
}

fn time_or_span(text: &str) -> Result<String, String> {
    let wrong = "neither a time such as 2027-01-31T09:30:00Z nor a duration such as 90s, 1h or 7d";
    let is_either = Timestamp::parse(text).is_ok() || duration::parse(text).is_ok();
    if is_either { Ok(text.to_owned()) } else { Err(wrong.to_owned()) }
}

pub(super) fn then(text: &str) -> Result<Box<SubmitRequest>, String> {
    header::then::job(text).map(Box::new)
}

fn header(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("a header is NAME=VALUE")?;
    Ok((name.trim().to_owned(), value.to_owned()))
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use serde_json::{Value, json};

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        payload: Option<String>,
        #[command(flatten)]
        job: Job,
    }

    fn fields(line: &str) -> Value {
        let line = Line::try_parse_from(["line"].into_iter().chain(line.split_whitespace())).unwrap();
        serde_json::to_value(line.job.request("t".to_owned(), None)).unwrap()
    }

    /// Fields of the API's submit that are not of every job: the payload's JSON, and what a schedule sets itself.
    const OF_ONE_JOB: [&str; 6] = ["payload", "run_id", "run_at", "delay_ms", "expires_at", "debounce"];

    #[test]
    fn every_field_that_the_api_takes_has_its_option() {
        let line = "--payload-base64 AAE= --queue bulk -p 1 --key k --window 1h --unique active --on-conflict replace \
                    --concurrency-key c --limit-key l --cost 7 --max-attempts 3 --retry fast --timeout 5s \
                    --deadline 7d --expires-in 1h --keep 2d --header X-Shop=7 --header X-Empty= --schema-version 2 \
                    --tag a --tag b --then {\"type\":\"next\"} --batch b";
        let expected = json!({"type": "t", "payload_base64": "AAE=", "queue": "bulk", "priority": 1,
            "idempotency_key": "k", "idempotency_window_ms": 3_600_000, "unique": "active", "on_conflict": "replace",
            "concurrency_key": "c", "limit_key": "l", "cost": 7, "max_attempts": 3, "retry": "fast",
            "timeout_ms": 5_000, "deadline": "7d", "expires_in_ms": 3_600_000, "keep_ms": 172_800_000,
            "headers": {"X-Shop": "7", "X-Empty": ""}, "schema_version": "2", "tags": ["a", "b"], "then": {"type": "next"}, "batch_id": "b"});
        let sent = fields(line);
        assert_eq!(sent, expected);
        let wrong = serde_json::from_value::<SubmitRequest>(json!({"type": "t", "no such field": 1})).unwrap_err();
        let of_the_api: Vec<String> = wrong.to_string().split('`').skip(3).step_by(2).map(str::to_owned).collect();
        assert!(of_the_api.len() > 20, "the error names the fields that there are: {wrong}");
        for field in of_the_api {
            assert!(sent.get(&field).is_some() || OF_ONE_JOB.contains(&field.as_str()), "no option for {field}");
        }
    }

    #[test]
    fn options_that_were_not_given_are_not_sent_and_wrong_ones_are_refused() {
        assert_eq!(fields(""), json!({"type": "t"}));
        for wrong in ["{} --payload-base64 AA==", "--cost 0", "--cost 1000001", "--deadline soon", "--header no"] {
            assert!(Line::try_parse_from(["line"].into_iter().chain(wrong.split(' '))).is_err(), "{wrong}");
        }
    }
}
