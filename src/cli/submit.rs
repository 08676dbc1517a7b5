//! `longshore submit`: one job, and with `--wait` its end; with `--lines`, many.

use std::io::Read as _;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use longshore_backbone::wire::api::{ApiError, Code, Debounce, Submit, SubmitRequest, Submitted};
use longshore_domain::duration::DurationError;
use longshore_domain::run::whole_millis;
use longshore_domain::{DurationText, JobType, RunId, Timestamp, duration};
use serde_json::value::RawValue;
use tokio::time::Instant;

use super::client::Api;
use super::job::Job;
use super::{Ended, Global, Usage, output, runs};

mod lines;

#[derive(Debug, Args)]
pub(crate) struct SubmitArguments {
    /// The job type, for example email.send
    #[arg(value_name = "TYPE", value_parser = super::name::<JobType>, required_unless_present = "lines")]
    job_type: Option<JobType>,
    /// The payload; - reads it from stdin
    #[arg(value_name = "JSON")]
    payload: Option<String>,
    /// Submit many: each line of the file (- for stdin) is a JSON object with the fields of the API's submit; a field
    /// that a line leaves out is taken from the options
    #[arg(long, value_name = "FILE", conflicts_with_all = ["payload", "payload_base64", "run_id", "wait"])]
    lines: Option<PathBuf>,
    /// Not before this long from now: 30s, 5m, 2h
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, conflicts_with = "at")]
    delay: Option<Duration>,
    /// Not before this time: 2027-01-31T09:30:00Z
    #[arg(long, value_name = "TIME", value_parser = time)]
    at: Option<String>,
    /// Debounce: of the jobs with this key that follow each other soon, the last one runs, once
    #[arg(long, value_name = "KEY", requires = "debounce_wait", conflicts_with_all = ["key", "delay", "at", "run_id"])]
    debounce: Option<String>,
    /// How long the job waits for the next one of its key
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, requires = "debounce")]
    debounce_wait: Option<Duration>,
    /// How long after the first one of them the last is started at the latest
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, requires = "debounce")]
    debounce_max_wait: Option<Duration>,
    /// An id of your own for the run
    #[arg(long, value_name = "ID", value_parser = chosen_id)]
    run_id: Option<RunId>,
    /// It expires if it was not started by this time
    #[arg(long, value_name = "TIME", value_parser = time, conflicts_with = "expires_in")]
    expires_at: Option<String>,
    /// Wait for the run's end, at most this long if given: --wait=30s (--timeout is that of an attempt)
    #[arg(long, value_name = "DURATION", num_args = 0..=1, require_equals = true, default_missing_value = "", value_parser = wait_for)]
    wait: Option<WaitFor>,
    /// JSON for machines
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    job: Job,
}

/// How long to wait; `None`: without bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct WaitFor(Option<Duration>);

pub(crate) async fn run(global: &Global, arguments: SubmitArguments) -> anyhow::Result<Ended> {
    if let Some(file) = &arguments.lines {
        return lines::run(global, &arguments.job(None), file, arguments.json).await;
    }
    let job = arguments.job(payload(arguments.payload.as_deref())?);
    let api = Api::connect(global).await?;
    let answer = api.ask::<Submit>(job).await.map_err(not_accepted)?;
    let submitted = answer.read()?;
    let run_id = &submitted.run_id;
    let Some(WaitFor(most)) = arguments.wait else {
        return output::answer(&answer, arguments.json, || {
            output::say(run_id.as_str())?;
            eprintln!("{}", summary(&submitted));
            Ok(())
        });
    };
    // Whatever ends the waiting, the run's id has been said.
    let bound = most.map(|most| format!(", at most {}", DurationText(most))).unwrap_or_default();
    eprintln!("{run_id}: {}; waiting for its end{bound}", summary(&submitted));
    if let Some(timeout) = arguments.job.timeout.filter(|_| most.is_none()) {
        let timeout = DurationText(timeout);
        eprintln!("--timeout {timeout} is the limit of an attempt; --wait={timeout} would be that of the waiting");
    }
    let answered = Some(Instant::now());
    runs::wait(&api, run_id, most, arguments.json, answered).await.map_err(|error| wait_again(error, run_id))
}

/// What is known of the job: a node that failed, or did not answer, may have accepted it.
fn not_accepted(error: ApiError) -> anyhow::Error {
    let is_sure = error.code < Code::Internal.number();
    let known = if is_sure { "the job was not accepted" } else { "the job was not accepted, as far as is known" };
    anyhow::Error::new(error).context(known)
}

/// The job is accepted, so it is the wait that is repeated where no node answers, never the submit.
fn wait_again(error: anyhow::Error, run_id: &RunId) -> anyhow::Error {
    match error.downcast::<ApiError>() {
        Ok(error @ ApiError { code: 503 | 504, .. }) => {
            let hint = format!("the job was accepted: longshore runs wait {run_id} waits for it again");
            ApiError { hint: Some(hint.into()), ..error }.into()
        }
        Ok(error) => error.into(),
        Err(error) => error,
    }
}

fn summary(submitted: &Submitted) -> String {
    let state = output::cut(&submitted.state.to_string(), 40);
    if submitted.deduplicated { format!("not a new run: {state}") } else { state }
}

impl SubmitArguments {
    /// The request; options that were not given are left out, so that the node's defaults apply.
    fn job(&self, payload: Option<Box<RawValue>>) -> SubmitRequest {
        let job_type = self.job_type.as_ref().map(JobType::to_string).unwrap_or_default();
        SubmitRequest {
            delay_ms: self.delay.map(whole_millis),
            run_at: self.at.clone(),
            debounce: self.debounce(),
            run_id: self.run_id.as_ref().map(RunId::to_string),
            expires_at: self.expires_at.clone(),
            ..self.job.request(job_type, payload)
        }
    }

    fn debounce(&self) -> Option<Debounce> {
        let (key, wait_ms) = (self.debounce.clone()?, whole_millis(self.debounce_wait?));
        Some(Debounce { key, wait_ms, max_wait_ms: self.debounce_max_wait.map(whole_millis) })
    }
}

/// Reads the payload and makes sure that it is JSON, which the API asks for. It is sent as it was written.
pub(crate) fn payload(argument: Option<&str>) -> anyhow::Result<Option<Box<RawValue>>> {
    let text = match argument {
        None => return Ok(None),
        Some("-") => {
            let mut text = String::new();
            std::io::stdin().read_to_string(&mut text).context("cannot read the payload from stdin")?;
            without_mark(&text).to_owned()
        }
        Some(text) => text.to_owned(),
    };
    let wrong = |error| {
        let is_of_wait = duration::parse(&text).is_ok();
        let remedy = if is_of_wait { wait_takes(&text) } else { r#"a text needs its quotes: '"text"'"#.to_owned() };
        Usage(format!("the payload is not JSON: {error}; {remedy}"))
    };
    Ok(Some(serde_json::from_str(&text).map_err(wrong)?))
}

/// Text without the byte order mark with which some editors and shells begin what they write.
fn without_mark(text: &str) -> &str {
    text.strip_prefix('\u{feff}').unwrap_or(text)
}

/// How the limit of `--wait` is written, which may stand alone.
pub(super) fn wait_takes(span: &str) -> String {
    format!("to wait so long at most: --wait={span}")
}

fn chosen_id(text: &str) -> Result<RunId, String> {
    RunId::parse_chosen(text).map_err(|error| error.reason)
}

fn time(text: &str) -> Result<String, String> {
    Timestamp::parse(text).map(|_| text.to_owned()).map_err(|error| error.to_string())
}

fn wait_for(text: &str) -> Result<WaitFor, DurationError> {
    if text.is_empty() { Ok(WaitFor(None)) } else { duration::parse(text).map(|most| WaitFor(Some(most))) }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;
    use longshore_domain::Priority;
    use serde_json::{Value, json};

    use super::super::{Cli, Command};
    use super::*;

    fn body(line: &str) -> Value {
        let cli = Cli::try_parse_from(["longshore", "submit"].into_iter().chain(line.split(' '))).unwrap();
        let Command::Submit(arguments) = cli.command else { panic!("not submit") };
        let payload = payload(arguments.payload.as_deref()).unwrap();
        serde_json::to_value(arguments.job(payload)).unwrap()
    }

    #[test]
    fn options_that_were_not_given_are_not_sent() {
        assert_eq!(body("echo"), json!({"type": "echo"}));
        assert_eq!(body("echo null"), json!({"type": "echo", "payload": null}));
    }

    #[test]
    fn every_option_has_its_field() {
        let line = "email.send {\"to\":1} --delay 2m --key k --run-id mine --cost 2 --wait=10s --json";
        let expected = json!({"type": "email.send", "payload": {"to": 1}, "delay_ms": 120_000,
            "idempotency_key": "k", "run_id": "mine", "cost": 2});
        assert_eq!(body(line), expected);
        let at = "2027-01-31T10:30:00+01:00";
        assert_eq!(body(&format!("t --at {at}")), json!({"type": "t", "run_at": at}));
        assert_eq!(body(&format!("t --expires-at {at}")), json!({"type": "t", "expires_at": at}));
        let debounce = json!({"key": "k", "wait_ms": 5_000, "max_wait_ms": 60_000});
        let line = "t --debounce k --debounce-wait 5s --debounce-max-wait 1m";
        assert_eq!(body(line), json!({"type": "t", "debounce": debounce}));
    }

    #[test]
    fn options_that_exclude_each_other_are_refused() {
        for line in [
            "t --delay 1s --at 2027-01-31T10:30:00Z",
            "t --expires-in 1s --expires-at 2027-01-31T10:30:00Z",
            "t --debounce k --debounce-wait 1s --key k",
            "--lines jobs --payload-base64 AA==",
        ] {
            let line = ["longshore", "submit"].into_iter().chain(line.split(' '));
            let error = Cli::try_parse_from(line.clone()).unwrap_err();
            assert_eq!(error.kind(), clap::error::ErrorKind::ArgumentConflict, "{error}");
        }
    }

    #[test]
    fn a_payload_that_is_not_json_is_a_usage_error() {
        let error = payload(Some("hello")).unwrap_err();
        assert!(error.is::<Usage>() && error.to_string().contains("needs its quotes"), "{error}");
        let error = payload(Some("30s")).unwrap_err().to_string();
        assert!(error.contains("--wait=30s") && !error.contains("quotes"), "{error}");
        assert_eq!(Priority::DEFAULT.number(), 5, "as the help says");
    }

    #[test]
    fn a_job_that_may_be_there_is_not_said_to_be_refused() {
        let said = |error: ApiError| format!("{:#}", not_accepted(error));
        assert!(said(ApiError::malformed("type: x")).starts_with("the job was not accepted: "));
        let lost = ApiError::no_answer(Duration::from_secs(10));
        let hint = lost.hint.clone().unwrap();
        assert!(hint.contains("may have been carried out") && hint.contains("with a run id or key"), "{hint}");
        assert_eq!(ApiError::unavailable("").hint.map(|passes| passes.contains("may have been")), Some(true));
        assert!(said(lost.clone()).starts_with("the job was not accepted, as far as is known: "));
        let id = RunId::parse("main-p5-7").unwrap();
        let waiting = wait_again(lost.into(), &id);
        assert!(super::super::hints::hint(&waiting).unwrap().contains("longshore runs wait main-p5-7"), "{waiting:?}");
        let gone = wait_again(ApiError::not_found("no run").into(), &id);
        assert_eq!(super::super::hints::hint(&gone), None);
    }

    #[test]
    fn waiting_has_a_bound_only_if_given() {
        assert_eq!((wait_for(""), wait_for("30s")), (Ok(WaitFor(None)), Ok(WaitFor(Some(Duration::from_secs(30))))));
        assert!(wait_for("soon").is_err());
    }
}
