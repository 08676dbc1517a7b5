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
    let heading = ["queue", "waiting", "running", "oldest", "waiting by priority", ""].map(str::to_owned).to_vec();
    std::iter::once(heading).chain(queues(answer).iter().map(row)).collect()
}

/// The queues of an answer of `queues.list`.
pub(crate) fn queues(answer: &Value) -> &[Value] {
    answer.get("queues").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

/// Waiting jobs of a queue by priority, the most urgent first; only where there are any.
fn depths(queue: &Value) -> Vec<(String, u64)> {
    let depths = queue.get("depth").and_then(Value::as_object);
    let depths = depths.into_iter().flatten().filter_map(|(name, depth)| Some((name.clone(), depth.as_u64()?)));
    depths.filter(|(_, depth)| *depth > 0).collect()
}

/// Waiting jobs of a queue.
pub(crate) fn waiting(queue: &Value) -> u64 {
    depths(queue).iter().map(|(_, depth)| depth).sum()
}

fn row(queue: &Value) -> Vec<String> {
    let depths = depths(queue);
    let waiting: u64 = depths.iter().map(|(_, depth)| depth).sum();
    let oldest = queue.get("oldest_age_ms").and_then(Value::as_u64).filter(|_| waiting > 0);
    let lanes = depths.iter().map(|(name, depth)| format!("{name} {}", number(*depth))).collect::<Vec<_>>();
    let is = |field: &str| queue.get(field).and_then(Value::as_bool);
    let state = match (is("paused"), is("served")) {
        (Some(true), _) => "paused",
        (_, Some(false)) => "not served",
        _ => "",
    };
    vec![
        text(queue, "queue").to_owned(),
        number(waiting),
        number(queue.get("running").and_then(Value::as_u64).unwrap_or(0)),
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
            {"queue": "main", "depth": {"p1": 2, "p2": 0, "p5": 1_200}, "oldest_age_ms": 65_000, "running": 8,
             "paused": false, "served": true},
            {"queue": "bulk", "depth": {"p5": 1}, "oldest_age_ms": 10, "running": 0, "paused": false, "served": false},
        ]});
        let shown = anstream::adapter::strip_str(&output::table(&rows(&answer), &[1, 2, 3])).to_string();
        assert_eq!(
            shown,
            "\
queue  waiting  running     oldest  waiting by priority
main     1,202        8  1 min 5 s  p1 2  p5 1,200
bulk         1        0      10 ms  p5 1                 not served
"
        );
        assert_eq!(unserved(&answer).collect::<Vec<_>>(), ["bulk"]);
    }
}
