//! `longshore nodes` and `longshore health`: who is there, and whether work is taken.

use clap::Args;
use longshore_domain::Timestamp;
use serde_json::{Value, json};

use super::client::Api;
use super::output::{self, BAD, GOOD, text};
use super::{Ended, Global};

#[derive(Debug, Args)]
pub(crate) struct NodesArguments {
    /// JSON for machines
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct HealthArguments {
    /// JSON for machines
    #[arg(long)]
    json: bool,
}

pub(crate) async fn nodes(global: &Global, arguments: NodesArguments) -> anyhow::Result<Ended> {
    let api = Api::connect(global).await?;
    let answer = api.ask_cluster("nodes.list", json!({})).await?;
    if arguments.json {
        output::json(&answer)?;
    } else {
        output::say(output::table(&rows(&answer), &[3]).trim_end())?;
    }
    Ok(Ended::Well)
}

fn rows(answer: &Value) -> Vec<Vec<String>> {
    let heading = ["node", "version", "state", "up", "running of concurrency"].map(str::to_owned).to_vec();
    let nodes = answer.get("nodes").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    std::iter::once(heading).chain(nodes.iter().map(row)).collect()
}

fn row(node: &Value) -> Vec<String> {
    let at = |field: &str| Timestamp::parse(text(node, field)).ok();
    let up = at("seen_at").zip(at("started_at")).map(|(seen, started)| seen.since(started).as_millis());
    let up = up.map(|up| output::took(u64::try_from(up).unwrap_or(u64::MAX)));
    let queues = node.get("queues").and_then(Value::as_object).into_iter().flatten();
    let queues = queues.map(|(name, load)| format!("{name} {} of {}", load["running"], load["concurrency"]));
    vec![
        text(node, "node").to_owned(),
        text(node, "version").to_owned(),
        text(node, "state").to_owned(),
        up.unwrap_or_default(),
        queues.collect::<Vec<_>>().join("  "),
    ]
}

pub(crate) async fn health(global: &Global, arguments: HealthArguments) -> anyhow::Result<Ended> {
    let api = Api::connect(global).await?;
    let answer = api.ask("health", json!({})).await?;
    let ready = answer.get("ready").and_then(Value::as_bool) == Some(true);
    if arguments.json {
        output::json(&answer)?;
    } else if ready {
        output::say(&format!("{GOOD}ready{GOOD:#}: work is taken"))?;
    } else {
        let reasons = answer.get("reasons").and_then(Value::as_array).into_iter().flatten();
        let reasons = reasons.filter_map(Value::as_str).collect::<Vec<_>>().join("; ");
        output::say(&format!("{BAD}not ready{BAD:#}: {}", output::cut(&reasons, 500)))?;
    }
    Ok(if ready { Ended::Well } else { Ended::Badly })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_shown_with_their_load() {
        let answer = json!({"nodes": [{"node": "n1", "version": "0.1.0", "state": "running",
            "started_at": "2026-11-21T12:00:00.000Z", "seen_at": "2026-11-21T12:05:00.000Z",
            "queues": {"bulk": {"concurrency": 4, "running": 0}, "main": {"concurrency": 64, "running": 7}}}]});
        let shown = anstream::adapter::strip_str(&output::table(&rows(&answer), &[3])).to_string();
        assert_eq!(
            shown,
            "\
node  version  state           up  running of concurrency
n1    0.1.0    running  5 min 0 s  bulk 0 of 4  main 7 of 64
"
        );
    }
}
