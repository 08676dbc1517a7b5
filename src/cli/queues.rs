//! `longshore queues`: waiting and running jobs of each queue.

use clap::Args;
use longshore_backbone::wire::api::{QueueStatus, Queues, QueuesList, QueuesRequest};

use super::client::Api;
use super::output::{self, PENDING, number};
use super::{Ended, Global};

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// JSON for machines
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(global: &Global, arguments: Arguments) -> anyhow::Result<Ended> {
    let api = Api::connect(global).await?;
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
