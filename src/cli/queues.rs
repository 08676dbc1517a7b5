//! `longshore queues`: what waits and runs in each queue.

use clap::Args;
use serde_json::{Value, json};

use super::client::Api;
use super::output::{self, PENDING, number, text};
use super::{Ended, Global};

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// JSON for machines
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(global: &Global, arguments: Arguments) -> anyhow::Result<Ended> {
    let api = Api::connect(global).await?;
    let answer = api.ask("queues.list", json!({})).await?;
    if arguments.json {
        output::json(&answer)?;
        return Ok(Ended::Well);
    }
    output::say(output::table(&rows(&answer), &[1, 2, 3]).trim_end())?;
    for queue in unserved(&answer) {
        anstream::eprintln!("{PENDING}warning:{PENDING:#} jobs wait in {queue} and no node serves it");
    }
    Ok(Ended::Well)
}

fn rows(answer: &Value) -> Vec<Vec<String>> {
    let heading = ["queue", "waiting", "running", "oldest", "by priority", ""].map(str::to_owned).to_vec();
    std::iter::once(heading).chain(queues(answer).iter().map(row)).collect()
}

/// The queues of an answer of `queues.list`.
pub(crate) fn queues(answer: &Value) -> &[Value] {
    answer.get("queues").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

fn whole_number(queue: &Value, field: &str) -> u64 {
    queue.get(field).and_then(Value::as_u64).unwrap_or(0)
}

/// Jobs of a queue that nobody has begun: its lanes hold those that run as well, until their end.
pub(crate) fn waiting(queue: &Value) -> u64 {
    whole_number(queue, "depth").saturating_sub(running(queue))
}

/// Jobs of a queue that run, on all nodes.
pub(crate) fn running(queue: &Value) -> u64 {
    whole_number(queue, "running")
}

fn row(queue: &Value) -> Vec<String> {
    let lanes = queue.get("depths").and_then(Value::as_object).into_iter().flatten();
    let lanes = lanes.filter_map(|(name, depth)| Some((name, depth.as_u64().filter(|depth| *depth > 0)?)));
    let lanes = lanes.map(|(name, depth)| format!("{name} {}", number(depth))).collect::<Vec<_>>();
    let oldest = queue.get("oldest_age_ms").and_then(Value::as_u64);
    let is = |field: &str| queue.get(field).and_then(Value::as_bool);
    let state = match (is("paused"), is("served")) {
        (Some(true), _) => "paused",
        (_, Some(false)) => "not served",
        _ => "",
    };
    vec![
        text(queue, "queue").to_owned(),
        number(waiting(queue)),
        number(running(queue)),
        oldest.map(output::took).unwrap_or_default(),
        lanes.join("  "),
        state.to_owned(),
    ]
}

fn unserved(answer: &Value) -> impl Iterator<Item = &str> {
    let lost = |queue: &&Value| queue.get("served") == Some(&Value::Bool(false)) && waiting(queue) > 0;
    queues(answer).iter().filter(lost).map(|queue| text(queue, "queue"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_is_summed_and_what_nobody_serves_is_told() {
        let answer = json!({"queues": [
            {"queue": "main", "depth": 1_202, "depths": {"p1": 2, "p2": 0, "p5": 1_200}, "oldest_age_ms": 65_000, "running": 8,
             "paused": false, "served": true},
            {"queue": "bulk", "depth": 1, "depths": {"p5": 1}, "oldest_age_ms": 10, "running": 0, "paused": false, "served": false},
            {"queue": "idle", "depth": 0, "depths": {"p5": 0}, "oldest_age_ms": null, "running": 0, "paused": false, "served": true},
        ]});
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
