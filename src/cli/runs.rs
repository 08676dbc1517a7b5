//! `longshore runs`: one run, as its record tells; runs cancelled; runs erased.

use std::time::Duration;

use clap::builder::PossibleValuesParser;
use clap::{Args, Subcommand};
use longshore_backbone::wire::api::ApiError;
use longshore_domain::Timestamp;
use serde_json::{Map, Value, json};
use tokio::time::Instant;

use super::client::Api;
use super::output::{self, BAD, FAINT, STRONG, styled, text};
use super::which::{Chosen, Which};
use super::{Ended, Global, bulk, exact, submit};

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
    /// Cancel one run, or those that fit: what waits will not start, what runs is told to stop
    Cancel(Cancel),
    /// Erase what runs hold of people: payload, result, error texts, progress, checkpoints, dead letter; times stay
    Erase {
        /// The runs' ids; runs that have ended
        #[arg(required = true, value_name = "ID")]
        ids: Vec<String>,
        /// Do not ask
        #[arg(long, short)]
        yes: bool,
        /// JSON for machines: a record a line
        #[arg(long)]
        json: bool,
    },
}

#[derive(Debug, Args)]
pub(crate) struct Cancel {
    #[command(flatten)]
    which: Which,
    /// In this state
    #[arg(long, value_parser = PossibleValuesParser::new(["scheduled", "enqueued", "running", "retrying"]), help_heading = "Which runs")]
    state: Option<String>,
    #[command(flatten)]
    options: bulk::Options,
}

pub(crate) async fn run(global: &Global, command: Command) -> anyhow::Result<Ended> {
    match command {
        Command::Get { id, json } => {
            let record = Api::connect(global).await?.ask("runs.get", json!({"run_id": id})).await?;
            tell(&record, json)?;
            Ok(Ended::Well)
        }
        Command::Wait { id, timeout, json } => wait(&Api::connect(global).await?, &id, timeout, json).await,
        Command::Cancel(Cancel { which, state, options }) => {
            let state = state.map(|state| ("state".to_owned(), Value::String(state)));
            // What is wrong with the command line is told before anything is connected.
            let chosen = which.chosen(Map::from_iter(state))?;
            cancel(&Api::connect(global).await?, chosen, &options).await
        }
        Command::Erase { ids, yes, json } => erase(&Api::connect(global).await?, &ids, yes, json).await,
    }
}

async fn cancel(api: &Api, chosen: Chosen, options: &bulk::Options) -> anyhow::Result<Ended> {
    match chosen {
        Chosen::One(id) => {
            options.for_many_only()?;
            let record = api.ask("runs.cancel", json!({"run_id": id})).await?;
            if options.json {
                output::json(&record)?
            } else {
                output::say(&format!("{id} is cancelled"))?
            }
            Ok(Ended::Well)
        }
        Chosen::Those(body) => {
            let work = bulk::Work {
                endpoint: "runs.cancel",
                done: "cancelled",
                // They may end or change places while they are counted.
                verb: "Cancel about",
                noun: "run",
                body,
                rate: None,
            };
            bulk::run(api, work, options).await
        }
    }
}

/// What it takes to erase one run can be much: a letter is looked for among all.
const ERASING: Duration = Duration::from_secs(50);

async fn erase(api: &Api, ids: &[String], yes: bool, json: bool) -> anyhow::Result<Ended> {
    if ids.len() > 1 && !yes && !bulk::confirmed(&format!("Erase {} runs? [y/N] ", ids.len()))? {
        eprintln!("nothing was done");
        return Ok(Ended::Badly);
    }
    let mut ended = Ended::Well;
    for id in ids {
        match api.ask_patiently("runs.erase", json!({"run_id": id}), ERASING).await {
            Ok(stone) if json => output::json(&stone)?,
            Ok(_) => output::say(&format!("{id} is erased"))?,
            // One alone fails with its reason and advice, as everywhere.
            Err(error) if ids.len() == 1 => return Err(error.into()),
            Err(error) => {
                anstream::eprintln!("{BAD}failed:{BAD:#} {id}: {}", error.message);
                ended = Ended::Badly;
            }
        }
    }
    Ok(ended)
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
pub(crate) fn show(record: &Value) -> String {
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
    for (field, name) in [
        ("enqueued_at", "enqueued"),
        ("run_at", "due"),
        ("started_at", "started"),
        ("ended_at", "ended"),
        ("erased_at", "erased"),
    ] {
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
            lines.push((field, output::plain(&exact::laid_out(&exact::write(value)))));
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
