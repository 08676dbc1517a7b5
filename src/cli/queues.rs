//! `longshore queues`: waiting and running jobs of each queue; pauses and resumes queues and types.

use std::time::Duration;

use clap::{Args, Subcommand};
use longshore_backbone::wire::api::{
    Encoded, PauseRequest, PauseStatus, QueueStatus, Queues, QueuesList, QueuesPause, QueuesRequest, QueuesResume,
    ResumeRequest,
};
use longshore_domain::{JobType, Queue, Timestamp, duration};

use super::client::Api;
use super::output::{self, GOOD, PENDING, number};
use super::target::now;
use super::{Ended, Global};

/// How long a pause may take beside the usual time for an answer: until silent nodes start nothing any more.
const PAUSES_WITHIN: Duration = Duration::from_secs(20);

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Arguments {
    /// JSON for machines
    #[arg(long)]
    json: bool,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Pause a queue or a type on all nodes: nothing starts any more, what runs goes on (operators)
    Pause(PauseArguments),
    /// End a pause (operators)
    Resume(ResumeArguments),
}

#[derive(Debug, Args)]
struct Which {
    /// The queue; with --type only the jobs of that type in it
    #[arg(value_name = "QUEUE", value_parser = super::queue, required_unless_present = "job_type")]
    queue: Option<Queue>,
    /// The job type, for example email.send
    #[arg(long = "type", value_name = "TYPE", value_parser = super::job_type)]
    job_type: Option<JobType>,
}

#[derive(Debug, Args)]
struct PauseArguments {
    #[command(flatten)]
    which: Which,
    /// When it ends by itself, for example 2027-01-31T09:30:00Z
    #[arg(long, value_name = "TIME", value_parser = super::time, conflicts_with = "lasts")]
    until: Option<Timestamp>,
    /// After how long it ends by itself, for example 30m
    #[arg(long = "for", value_name = "TIME", value_parser = duration::parse)]
    lasts: Option<Duration>,
    /// JSON for machines
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct ResumeArguments {
    #[command(flatten)]
    which: Which,
    /// JSON for machines
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(global: &Global, arguments: Arguments) -> anyhow::Result<Ended> {
    let api = Api::connect(global).await?;
    match arguments.command {
        Some(Command::Pause(PauseArguments { which: Which { queue, job_type }, until, lasts, json })) => {
            let until = until.or_else(|| lasts.map(|lasts| now().plus(lasts)));
            let request = PauseRequest { queue, job_type, until };
            show_pause(&api.ask_patiently::<QueuesPause>(request, PAUSES_WITHIN).await?, json)
        }
        Some(Command::Resume(ResumeArguments { which: Which { queue, job_type }, json })) => {
            let request = ResumeRequest { queue, job_type };
            show_pause(&api.ask::<QueuesResume>(request).await?, json)
        }
        None => list(&api, &arguments).await,
    }
}

fn show_pause(answer: &Encoded<PauseStatus>, json: bool) -> anyhow::Result<Ended> {
    if json {
        output::json(answer)?;
    } else {
        output::say(&said(&answer.read()?, now()))?;
    }
    Ok(Ended::Well)
}

/// A pause, or its end, in one line.
fn said(status: &PauseStatus, now: Timestamp) -> String {
    let what = match (&status.queue, &status.job_type) {
        (Some(queue), Some(job_type)) => format!("{job_type} in {queue}"),
        (Some(queue), None) => queue.to_string(),
        (None, job_type) => job_type.as_ref().map(ToString::to_string).unwrap_or_default(),
    };
    match (status.paused, status.since, status.until) {
        (true, _, Some(until)) => {
            let at = output::moment(until, now);
            format!("{what}: {PENDING}paused{PENDING:#} until {at}, for {}", output::span(now, until))
        }
        (true, ..) => format!("{what}: {PENDING}paused{PENDING:#}"),
        (false, Some(since), _) => format!("{what}: {GOOD}resumed{GOOD:#}, paused for {}", output::span(since, now)),
        (false, None, _) => format!("{what}: was not paused"),
    }
}

async fn list(api: &Api, arguments: &Arguments) -> anyhow::Result<Ended> {
    let answer = api.ask::<QueuesList>(QueuesRequest::default()).await?;
    if arguments.json {
        output::json(&answer)?;
        return Ok(Ended::Well);
    }
    let answer = answer.read()?;
    output::say(output::table(&rows(&answer), &[1, 2, 3]).trim_end())?;
    for queue in unserved(&answer) {
        anstream::eprintln!("{PENDING}warning:{PENDING:#} jobs wait in {queue} and no node serves it");
    }
    Ok(Ended::Well)
}

fn rows(answer: &Queues) -> Vec<Vec<String>> {
    let heading = ["queue", "waiting", "running", "oldest", "by priority", ""].map(str::to_owned).to_vec();
    std::iter::once(heading).chain(answer.queues.iter().map(row)).collect()
}

/// Jobs of a queue that have not begun: its lanes also hold the running ones, until their end.
pub(crate) fn waiting(queue: &QueueStatus) -> u64 {
    queue.depth.saturating_sub(queue.running)
}

fn row(queue: &QueueStatus) -> Vec<String> {
    let lanes = queue.depths.iter().filter(|(_, depth)| **depth > 0);
    let lanes = lanes.map(|(name, depth)| format!("{} {}", output::cut(name, 20), number(*depth))).collect::<Vec<_>>();
    let state = match (queue.paused, queue.served) {
        (true, _) => "paused",
        (false, false) => "not served",
        (false, true) => "",
    };
    vec![
        queue.queue.to_string(),
        number(waiting(queue)),
        number(queue.running),
        queue.oldest_age_ms.map(output::took).unwrap_or_default(),
        lanes.join("  "),
        state.to_owned(),
    ]
}

fn unserved(answer: &Queues) -> impl Iterator<Item = &str> {
    let lost = |queue: &&QueueStatus| !queue.served && waiting(queue) > 0;
    answer.queues.iter().filter(lost).map(|queue| queue.queue.as_str())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_pause_says_what_it_is_about_and_when_it_ends() {
        let now = Timestamp::parse("2026-11-21T12:00:00Z").unwrap();
        let shown = |status: serde_json::Value| {
            let status: PauseStatus = serde_json::from_value(status).unwrap();
            anstream::adapter::strip_str(&said(&status, now)).to_string()
        };
        assert_eq!(shown(json!({"paused": true, "queue": "main", "since": "2026-11-21T12:00:00Z"})), "main: paused");
        assert_eq!(
            shown(json!({"paused": true, "queue": "main", "type": "call", "until": "2026-11-21T12:05:00Z"})),
            "call in main: paused until 12:05:00, for 5 min 0 s"
        );
        assert_eq!(
            shown(json!({"paused": false, "type": "call", "since": "2026-11-21T11:59:00Z"})),
            "call: resumed, paused for 1 min 0 s"
        );
        assert_eq!(shown(json!({"paused": false, "type": "call"})), "call: was not paused");
    }

    #[test]
    fn waiting_jobs_are_summed_and_unserved_queues_are_named() {
        let answer = serde_json::from_value(json!({"queues": [
            {"queue": "main", "concurrency": 64, "depth": 1_202, "depths": {"p1": 2, "p2": 0, "p5": 1_200}, "oldest_age_ms": 65_000, "running": 8,
             "paused": false, "served": true},
            {"queue": "bulk", "concurrency": 0, "depth": 1, "depths": {"p5": 1}, "oldest_age_ms": 10, "running": 0, "paused": false, "served": false},
            {"queue": "idle", "concurrency": 4, "depth": 0, "depths": {"p5": 0}, "oldest_age_ms": null, "running": 0, "paused": false, "served": true},
        ]}));
        let answer: Queues = answer.unwrap();
        let shown = anstream::adapter::strip_str(&output::table(&rows(&answer), &[1, 2, 3])).to_string();
        assert_eq!(
            shown,
            "\
queue  waiting  running     oldest  by priority
main     1,194        8  1 min 5 s  p1 2  p5 1,200
bulk         1        0      10 ms  p5 1            not served
idle         0        0
"
        );
        assert_eq!(unserved(&answer).collect::<Vec<_>>(), ["bulk"]);
    }
}
