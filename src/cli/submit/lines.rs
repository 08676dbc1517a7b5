//! `longshore submit --lines`: many jobs from JSON lines, in batches.
//!
//! The file is read as it is submitted, so that its size does not matter. A line that is refused is named by its
//! number, and the others go on; the program fails in the end. A repeat of the whole file makes no second runs where
//! the lines have keys or run ids.

use std::fs::File;
use std::io::{self, BufRead, BufReader, IsTerminal as _};
use std::path::Path;

use anyhow::Context as _;
use longshore_backbone::wire::api::{
    ApiError, BatchItem, BatchRequest, Code, Encoded, SubmitBatch, SubmitRequest, Submitted,
};
use longshore_backbone::wire::json::OrderedFields;
use serde::Serialize;
use serde_json::value::RawValue;
use tokio::time::Instant;

use super::super::client::Api;
use super::super::output::{self, BAD, number};
use super::super::{Ended, Global, Usage};
use super::without_mark;

/// Jobs of one batch, and about how many bytes they may have together: a batch must fit into one message.
const PER_BATCH: usize = 500;
const BATCH_BYTES: usize = 512 * 1024;
/// Refused lines that are named; the others are only counted.
const MAX_NAMED: usize = 20;

struct LineJob {
    line: u64,
    request: Encoded<SubmitRequest>,
    bytes: usize,
}

/// What came of the lines.
#[derive(Debug, Default, Serialize)]
struct Sum {
    submitted: u64,
    deduplicated: u64,
    refused: u64,
}

/// Submits each line, with `options` for the fields that it leaves out.
pub(super) async fn run(global: &Global, options: &SubmitRequest, file: &Path, json: bool) -> anyhow::Result<Ended> {
    let mut lines = Lines::open(file, options)?;
    let api = Api::connect(global).await?;
    let (start, mut sum) = (Instant::now(), Sum::default());
    let shows_progress = !json && io::stderr().is_terminal();
    loop {
        let (batch, wrong) = lines.batch()?;
        for (line, error) in wrong {
            refused(&mut sum, line, &error, json)?;
        }
        if batch.is_empty() {
            if lines.at_end {
                break;
            }
            continue;
        }
        submit(&api, batch, &mut sum, json).await?;
        if shows_progress {
            let rate = number((sum.submitted as f64 / start.elapsed().as_secs_f64().max(0.001)) as u64);
            eprint!("\r{} submitted, {rate} per second ", number(sum.submitted));
        }
    }
    if shows_progress {
        eprintln!();
    }
    output::answer(&sum, json, || {
        let [submitted, deduplicated, refused] = [sum.submitted, sum.deduplicated, sum.refused].map(number);
        output::say(&format!("{submitted} submitted, {deduplicated} of them not new, {refused} refused"))
    })?;
    Ok(if sum.refused == 0 { Ended::Success } else { Ended::Failure })
}

/// Submits a batch; one that is too large for a message of this server in halves, down to a line that is refused.
async fn submit(api: &Api, batch: Vec<LineJob>, sum: &mut Sum, json: bool) -> anyhow::Result<()> {
    let mut parts = vec![batch];
    while let Some(mut part) = parts.pop() {
        let jobs: Vec<_> = part.iter().map(|job| job.request.clone()).collect();
        let answer = match api.ask::<SubmitBatch>(BatchRequest { jobs }).await {
            Err(error) if error.code == Code::TooLarge.number() => {
                if let [job] = &part[..] {
                    refused(sum, job.line, &error, json)?;
                } else {
                    let rest = part.split_off(part.len() / 2);
                    parts.extend([rest, part]);
                }
                continue;
            }
            answer => answer.with_context(|| not_submitted(sum, &part))?.read()?,
        };
        for (job, item) in part.iter().zip(answer.jobs) {
            match item {
                BatchItem::Accepted(submitted) => accepted(sum, job.line, &submitted, json)?,
                BatchItem::Refused(error) => refused(sum, job.line, &error, json)?,
            }
        }
    }
    Ok(())
}

/// How far it came, for a person who has to decide what to repeat.
fn not_submitted(sum: &Sum, batch: &[LineJob]) -> String {
    let submitted = sum.submitted;
    match batch {
        [first, .., last] => format!("{submitted} submitted; of lines {} to {} it is not known", first.line, last.line),
        _ => format!("{submitted} submitted; of line {} it is not known", batch.first().map_or(0, |job| job.line)),
    }
}

/// What came of a line, for machines.
#[derive(Serialize)]
struct OfLine<'a, T> {
    line: u64,
    #[serde(flatten)]
    answer: &'a T,
}

fn accepted(sum: &mut Sum, line: u64, submitted: &Submitted, json: bool) -> anyhow::Result<()> {
    sum.submitted += 1;
    sum.deduplicated += u64::from(submitted.deduplicated);
    if json { output::json(&OfLine { line, answer: submitted }) } else { Ok(()) }
}

fn refused(sum: &mut Sum, line: u64, error: &ApiError, json: bool) -> anyhow::Result<()> {
    sum.refused += 1;
    if json {
        return output::json(&OfLine { line, answer: error });
    }
    match usize::try_from(sum.refused).unwrap_or(usize::MAX) {
        ..=MAX_NAMED => anstream::eprintln!("{BAD}refused:{BAD:#} line {line}: {}", output::cut(&error.message, 300)),
        more if more == MAX_NAMED + 1 => eprintln!("further refusals are only counted"),
        _ => {}
    }
    Ok(())
}

/// The lines of a file, as jobs.
struct Lines {
    reader: Box<dyn BufRead>,
    /// The fields that a line may leave out.
    defaults: Vec<(String, Box<RawValue>)>,
    line: u64,
    /// Read, but too large for the batch before.
    left: Option<LineJob>,
    at_end: bool,
}

type Wrong = Vec<(u64, ApiError)>;

impl Lines {
    fn open(file: &Path, options: &SubmitRequest) -> anyhow::Result<Self> {
        let reader: Box<dyn BufRead> = if file == Path::new("-") {
            Box::new(BufReader::new(io::stdin()))
        } else {
            let opened = File::open(file);
            Box::new(BufReader::new(opened.map_err(|error| Usage(format!("cannot read {}: {error}", file.display())))?))
        };
        let options = serde_json::to_string(options)?;
        let mut defaults: Vec<(String, Box<RawValue>)> = fields(&options)?;
        defaults.retain(|(name, value)| name != "type" || value.get() != "\"\"");
        Ok(Self { reader, defaults, line: 0, left: None, at_end: false })
    }

    /// The next jobs, as many as one batch takes, and the lines that are none.
    fn batch(&mut self) -> anyhow::Result<(Vec<LineJob>, Wrong)> {
        let (mut batch, mut wrong, mut bytes): (Vec<LineJob>, Wrong, usize) = Default::default();
        while batch.len() < PER_BATCH {
            let next = match self.left.take() {
                Some(left) => Some(Ok(left)),
                None => self.next()?,
            };
            match next {
                None => {
                    self.at_end = true;
                    break;
                }
                Some(Err(error)) => wrong.push((self.line, error)),
                Some(Ok(job)) if !batch.is_empty() && bytes + job.bytes > BATCH_BYTES => {
                    self.left = Some(job);
                    break;
                }
                Some(Ok(job)) => {
                    bytes += job.bytes;
                    batch.push(job);
                }
            }
        }
        Ok((batch, wrong))
    }

    fn next(&mut self) -> anyhow::Result<Option<Result<LineJob, ApiError>>> {
        loop {
            let mut bytes = Vec::new();
            let read = self.reader.read_until(b'\n', &mut bytes);
            if read.with_context(|| format!("cannot read line {}", self.line + 1))? == 0 {
                return Ok(None);
            }
            self.line += 1;
            let Ok(text) = String::from_utf8(bytes) else {
                return Ok(Some(Err(ApiError::malformed("the line is not UTF-8"))));
            };
            let text = if self.line == 1 { without_mark(&text) } else { &text }.trim();
            if !text.is_empty() {
                return Ok(Some(self.job(text)));
            }
        }
    }

    /// The request of a line: its own fields, and the options for the others.
    fn job(&self, text: &str) -> Result<LineJob, ApiError> {
        let own =
            fields(text).map_err(|error| ApiError::malformed(format!("the line is not a JSON object: {error}")))?;
        let is_given = |name: &str| own.iter().any(|(given, _)| given == name || excludes(given) == Some(name));
        let missing = self.defaults.iter().filter(|(name, _)| !is_given(name));
        let mut body = String::with_capacity(text.len() + 128);
        for (name, value) in own.iter().chain(missing) {
            body.push(if body.is_empty() { '{' } else { ',' });
            body.push_str(&serde_json::Value::from(name.as_str()).to_string());
            body.push(':');
            body.push_str(value.get());
        }
        body.push_str(if body.is_empty() { "{}" } else { "}" });
        let request = Encoded::from_text(body.as_bytes());
        let request = request.ok_or_else(|| ApiError::malformed("the line is not a JSON object"))?;
        Ok(LineJob { line: self.line, bytes: body.len(), request })
    }
}

/// The field that a line's field rules out: a line's time takes the place of the options' delay, and so on.
fn excludes(name: &str) -> Option<&'static str> {
    Some(match name {
        "run_at" => "delay_ms",
        "delay_ms" => "run_at",
        "expires_at" => "expires_in_ms",
        "expires_in_ms" => "expires_at",
        _ => return None,
    })
}

/// The fields of a JSON object in their order; values stay as they were written.
fn fields(text: &str) -> serde_json::Result<Vec<(String, Box<RawValue>)>> {
    serde_json::from_str::<OrderedFields>(text).map(|fields| fields.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &'static str, options: &SubmitRequest) -> Lines {
        let defaults = fields(&serde_json::to_string(options).unwrap()).unwrap();
        Lines { reader: Box::new(text.as_bytes()), defaults, line: 0, left: None, at_end: false }
    }

    #[test]
    fn a_line_has_the_options_where_it_says_nothing_itself() {
        let options = SubmitRequest {
            job_type: "email.send".to_owned(),
            delay_ms: Some(5),
            priority: Some(2),
            ..SubmitRequest::default()
        };
        let text = "\u{feff}{\"payload\":1.10}\n\n{\"type\":\"other\",\"run_at\":\"2027-01-31T09:30:00Z\"}\nnonsense\n";
        let (batch, wrong) = lines(text, &options).batch().unwrap();
        let bodies: Vec<_> = batch.iter().map(|job| serde_json::to_string(&job.request).unwrap()).collect();
        assert_eq!(bodies[0], r#"{"payload":1.10,"type":"email.send","priority":2,"delay_ms":5}"#);
        assert_eq!(bodies[1], r#"{"type":"other","run_at":"2027-01-31T09:30:00Z","priority":2}"#);
        assert_eq!((batch[1].line, wrong.len(), wrong[0].0), (3, 1, 4));
        assert!(wrong[0].1.message.contains("not a JSON object"), "{:?}", wrong[0].1);
    }

    #[test]
    fn a_batch_ends_before_it_is_too_large_for_a_message() {
        let text: &'static str = String::leak(format!("{{\"payload\":\"{}\"}}\n", "x".repeat(200 * 1024)).repeat(4));
        let mut lines = lines(text, &SubmitRequest { job_type: "t".to_owned(), ..SubmitRequest::default() });
        let sizes: Vec<usize> = std::iter::from_fn(|| {
            let (batch, _) = lines.batch().unwrap();
            (!batch.is_empty()).then_some(batch.len())
        })
        .collect();
        assert_eq!(sizes, [2, 2]);
        assert!(lines.at_end);
    }
}
