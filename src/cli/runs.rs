//! `longshore runs get` and `runs wait`: one run, as its record tells.

use std::time::Duration;

use clap::Subcommand;
use longshore_backbone::wire::api::ApiError;
use longshore_domain::Timestamp;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::client::Api;
use super::output::{self, FAINT, STRONG, styled, text};
use super::{Ended, Global, submit};

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Show a run: state, attempts, result or error
    Get {
        /// The run's id
        id: String,
        /// JSON for machines
        #[arg(long)]
        json: bool,
    },
    /// Wait for a run's end and show it
    Wait {
        /// The run's id
        id: String,
        /// Wait this long at most
        #[arg(long, value_name = "DURATION", value_parser = submit::span)]
        timeout: Option<Duration>,
        /// JSON for machines
        #[arg(long)]
        json: bool,
    },
}

pub(crate) async fn run(global: &Global, command: Command) -> anyhow::Result<Ended> {
    let api = Api::connect(global).await?;
    match command {
        Command::Get { id, json } => {
            let record = api.ask("runs.get", json!({"run_id": id})).await?;
            tell(&record, json)?;
            Ok(Ended::Well)
        }
        Command::Wait { id, timeout, json } => wait(&api, &id, timeout, json).await,
    }
}

/// One question to the node lasts this long; a node that drains answers at once, and the next one is asked.
const ONE_WAIT: Duration = Duration::from_secs(20);

/// Nodes may restart while somebody waits: how long none may be there, once one was.
const NOBODY_FOR: Duration = Duration::from_secs(60);

/// Waits for a run's end, `most` at most, and tells it.
pub(crate) async fn wait(api: &Api, id: &str, most: Option<Duration>, json: bool) -> anyhow::Result<Ended> {
    let deadline = most.map(|most| Instant::now() + most);
    let mut answered: Option<Instant> = None;
    loop {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let now = left.unwrap_or(ONE_WAIT).min(ONE_WAIT);
        let body = json!({"run_id": id, "timeout_ms": u64::try_from(now.as_millis()).unwrap_or(u64::MAX)});
        match api.ask_patiently("runs.wait", body, now).await {
            Ok(record) => {
                answered = Some(Instant::now());
                if has_ended(text(&record, "state")) {
                    tell(&record, json)?;
                    let completed = text(&record, "state") == "completed";
                    return Ok(if completed { Ended::Well } else { Ended::RunEndedBadly });
                }
                if left.is_some_and(|left| left <= ONE_WAIT) {
                    eprintln!("{id} has not ended yet: {}", text(&record, "state"));
                    return Ok(Ended::TimedOut);
                }
            }
            Err(ApiError { code: 503 | 504, .. }) if answered.is_some_and(|at| at.elapsed() < NOBODY_FOR) => {
                if left.is_some_and(|left| left.is_zero()) {
                    eprintln!("{id} has not ended yet, as far as is known: no node answers");
                    return Ok(Ended::TimedOut);
                }
                tokio::time::sleep(Duration::from_millis(500)).await;
            }
            Err(error) => return Err(error.into()),
        }
    }
}

fn has_ended(state: &str) -> bool {
    !matches!(state, "scheduled" | "enqueued" | "running" | "retrying")
}

fn tell(record: &Value, json: bool) -> anyhow::Result<()> {
    if json { output::json(record) } else { output::say(show(record).trim_end()) }
}

/// The record for people.
fn show(record: &Value) -> String {
    let state = text(record, "state");
    let mut lines = vec![
        ("run", styled(text(record, "run_id"), STRONG, 0)),
        ("type", text(record, "type").to_owned()),
        ("state", styled(state, output::style_of(state), 0)),
        (
            "queue",
            format!("{}, priority {}, tenant {}", text(record, "queue"), record["priority"], text(record, "tenant")),
        ),
    ];
    if let Some(attempt) = record.get("attempt") {
        let round = record["round"].as_u64().filter(|round| *round > 1);
        let round = round.map(|round| format!(", round {round}")).unwrap_or_default();
        lines.push(("attempt", format!("{attempt} of {}{round}", record["max_attempts"])));
    }
    for (field, name) in
        [("enqueued_at", "enqueued"), ("run_at", "due"), ("started_at", "started"), ("ended_at", "ended")]
    {
        if let Some(at) = record.get(field).and_then(Value::as_str) {
            lines.push((name, at.to_owned()));
        }
    }
    if let Some(took) = between(text(record, "started_at"), text(record, "ended_at")) {
        lines.push(("took", took));
    }
    for field in ["node", "duplicate_of", "result_content_type", "result_base64"] {
        if let Some(value) = record.get(field).and_then(Value::as_str) {
            lines.push((field, output::cut(value, 200)));
        }
    }
    for field in ["tags", "progress", "result", "result_bytes"] {
        if let Some(value) = record.get(field) {
            lines.push((field, output::plain(&serde_json::to_string_pretty(value).unwrap_or_default())));
        }
    }
    if let Some(error) = record.get("error") {
        let kind = styled(text(error, "kind"), output::BAD, 0);
        lines.push(("error", format!("{kind}: {}", output::plain(text(error, "message")))));
    }
    let line = |(name, value): (&str, String)| {
        // What has several lines stays in its column.
        format!("{} {}\n", styled(name, FAINT, 10), value.replace('\n', &format!("\n{:11}", "")))
    };
    lines.into_iter().map(line).collect::<String>() + &attempts(record)
}

/// The attempts, where there is more to tell than the last one.
fn attempts(record: &Value) -> String {
    let attempts = record.get("attempts").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    if attempts.len() < 2 {
        return String::new();
    }
    let heading = ["round", "attempt", "started", "took", "node", "error"].map(str::to_owned).to_vec();
    let row = |attempt: &Value| {
        let error = attempt.get("error");
        let error = error.map(|error| format!("{}: {}", text(error, "kind"), output::cut(text(error, "message"), 80)));
        vec![
            attempt["round"].to_string(),
            attempt["attempt"].to_string(),
            text(attempt, "started_at").to_owned(),
            between(text(attempt, "started_at"), text(attempt, "ended_at")).unwrap_or_default(),
            text(attempt, "node").to_owned(),
            error.unwrap_or_default(),
        ]
    };
    let rows: Vec<_> = std::iter::once(heading).chain(attempts.iter().map(row)).collect();
    format!("\n{}", output::table(&rows, &[0, 1, 3]))
}

fn between(start: &str, end: &str) -> Option<String> {
    let span = Timestamp::parse(end).ok()?.since(Timestamp::parse(start).ok()?);
    Some(output::took(u64::try_from(span.as_millis()).ok()?))
}

#[cfg(test)]
mod tests {
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
        let shown = anstream::adapter::strip_str(&show(&record)).to_string();
        assert_eq!(
            shown,
            "\
run        main-p5-7
type       report.render
state      completed
queue      main, priority 5, tenant default
attempt    2 of 12
enqueued   2026-11-21T12:00:00.000Z
started    2026-11-21T12:00:00.100Z
ended      2026-11-21T12:00:01.350Z
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
    fn states_that_go_on_are_not_ends() {
        let ended = ["completed", "dead", "cancelled", "expired", "duplicate", "discarded"];
        assert!(ended.iter().all(|state| has_ended(state)));
        assert!(!["scheduled", "enqueued", "running", "retrying"].iter().any(|state| has_ended(state)));
    }
}
