//! `longshore nodes` and `longshore health`: the nodes that are there, and whether the cluster takes work.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context as _;
use clap::{Args, Subcommand};
use longshore::http;
use longshore_backbone::wire::api::{
    Health, HealthRequest, InForce, LogLevel, LogLevelRequest, NodeSettings, NodeStatus, Nodes, NodesList,
    NodesLogLevel, NodesSettings, NodesStats, Nothing, Quantiles, SettingsRequest, Stats, StatsPoint,
};
use longshore_domain::Timestamp;
use serde::Deserialize;

use super::client::Api;
use super::output::{self, BAD, GOOD, PENDING, number, took};
use super::{Ended, Global, Json};

#[derive(Debug, Subcommand)]
pub(crate) enum NodesCommand {
    /// The nodes: what the command shows without a subcommand
    List(Json),
    /// What all nodes have counted together in the last hour (operators)
    Stats {
        /// JSON for machines: every ten seconds
        #[arg(long)]
        json: bool,
    },
    /// The settings of a node, each with where it was set (operators)
    Settings {
        /// The node's name
        #[arg(value_name = "NODE")]
        node: String,
        /// JSON for machines
        #[arg(long)]
        json: bool,
    },
    /// Change which lines a node logs, until it ends (operators)
    LogLevel {
        /// The node's name
        #[arg(value_name = "NODE")]
        node: String,
        /// off, error, warn, info, debug or trace, or a filter such as info,longshore_actors=debug
        #[arg(value_name = "LEVEL")]
        level: String,
        /// JSON for machines
        #[arg(long)]
        json: bool,
    },
}

#[derive(Debug, Args)]
pub(crate) struct HealthArguments {
    /// Of the node of this name; without it, of the one that answers first
    #[arg(long, value_name = "NAME")]
    node: Option<String>,
    /// Of the node that listens for HTTP there, without NATS: for the probe of a container
    #[arg(long, value_name = "ADDRESS", value_parser = super::address, conflicts_with = "node")]
    http: Option<SocketAddr>,
    /// JSON for machines
    #[arg(long)]
    json: bool,
}

pub(crate) async fn nodes(global: &Global, command: NodesCommand) -> anyhow::Result<Ended> {
    let api = Api::connect(global).await?;
    match command {
        NodesCommand::List(Json { json }) => {
            api.show::<NodesList>(Nothing {}, json, |nodes| output::say_table(&rows(&nodes), &[3])).await
        }
        NodesCommand::Stats { json } => {
            api.show::<NodesStats>(Nothing {}, json, |stats| output::say(counted(&stats).trim_end())).await
        }
        NodesCommand::Settings { node, json } => {
            let row = |one: InForce| [one.section, one.name, one.value.unwrap_or_else(|| "–".to_owned()), one.from];
            let shown = |NodeSettings { settings, .. }| {
                let heading = ["section", "setting", "value", "from"];
                output::say_table(&output::rows(heading, settings.into_iter().map(row)), &[])
            };
            api.show::<NodesSettings>(SettingsRequest { node }, json, shown).await
        }
        NodesCommand::LogLevel { node, level, json } => {
            let shown = |LogLevel { node, level }| output::say(&format!("{node} logs by {level} until it ends"));
            api.show::<NodesLogLevel>(LogLevelRequest { node, level }, json, shown).await
        }
    }
}

const SPANS: [(&str, Duration); 3] = [
    ("minute", Duration::from_secs(60)),
    ("10 minutes", Duration::from_secs(600)),
    ("hour", Duration::from_secs(3_600)),
];

/// The last edge of the histograms: above it a time has no bound.
const LAST_EDGE_MS: u64 = 600_000;

/// What was counted, added up over the last minute, ten minutes and hour. Times of which 99 of 100 are shorter do not
/// add up: the longest of any ten seconds is shown.
fn counted(Stats { nodes, points, .. }: &Stats) -> String {
    let row = |(name, span): (&str, Duration)| {
        let from = points.last().map_or_else(Timestamp::default, |last| last.at.minus(span));
        let within = || points.iter().filter(|point| point.at > from);
        let sum = |of: fn(&StatsPoint) -> u64| number(within().map(of).sum());
        let longest = |of: fn(&StatsPoint) -> Option<Quantiles>| {
            let longest = within().filter_map(of).map(|times| times.p99_ms).max();
            match longest {
                None => "–".to_owned(),
                Some(millis @ ..=LAST_EDGE_MS) => format!("≤ {}", took(millis)),
                Some(_) => "> 10 min".to_owned(),
            }
        };
        let (ended, failed) = (sum(|point| point.ended), sum(|point| point.failed));
        let (wait, run) = (longest(|point| point.wait), longest(|point| point.run));
        [name.to_owned(), sum(|point| point.enqueued), ended, failed, wait, run]
    };
    let rows = output::rows(["last", "enqueued", "ended", "failed", "p99 wait", "p99 run"], SPANS.map(row));
    let since = points.first().map_or_else(String::new, |first| format!(", counted since {}", first.at));
    format!("{}of {}{since}\n", output::table(&rows, &[1, 2, 3]), nodes.join(", "))
}

fn rows(answer: &Nodes) -> Vec<Vec<String>> {
    output::rows(["node", "version", "state", "up", "running of concurrency"], answer.nodes.iter().map(row))
}

fn row(node: &NodeStatus) -> [String; 5] {
    let queues = node.queues.iter().map(|(name, load)| format!("{name} {} of {}", load.running, load.concurrency));
    [
        node.node.clone(),
        node.version.clone(),
        node.state.clone(),
        output::span(node.started_at, node.seen_at),
        queues.collect::<Vec<_>>().join("  "),
    ]
}

pub(crate) async fn health(global: &Global, arguments: HealthArguments) -> anyhow::Result<Ended> {
    if let Some(address) = arguments.http {
        let page = http::page(address, "/readyz").await?;
        let Readiness { ready, reasons } = serde_json::from_str(&page).context("the answer is not a node's")?;
        if arguments.json {
            output::say(&page)?;
        } else {
            say(ready, &reasons)?;
        }
        return Ok(ended(ready));
    }
    let api = Api::connect(global).await?;
    let answer = api.ask::<Health>(HealthRequest { node: arguments.node }).await?;
    let health = answer.read()?;
    if arguments.json {
        output::json(&answer)?;
    } else {
        say(health.ready, &health.reasons)?;
        for fault in &health.faults {
            anstream::eprintln!("{BAD}fault on purpose:{BAD:#} {fault}");
        }
        for warning in &health.warnings {
            anstream::eprintln!("{PENDING}warning:{PENDING:#} {warning}");
        }
    }
    Ok(ended(health.ready))
}

/// What `/readyz` answers.
#[derive(Deserialize)]
struct Readiness {
    ready: bool,
    reasons: Vec<String>,
}

fn say(ready: bool, reasons: &[String]) -> anyhow::Result<()> {
    if ready {
        return output::say(&format!("{GOOD}ready{GOOD:#}: the node takes work"));
    }
    output::say(&format!("{BAD}not ready{BAD:#}: {}", output::cut(&reasons.join("; "), 500)))
}

fn ended(ready: bool) -> Ended {
    if ready { Ended::Success } else { Ended::Failure }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_was_counted_is_added_up_by_span() {
        let times = |p99: u64| json!({"p50_ms": 1, "p99_ms": p99});
        let point = |nth: u64| {
            let at = format!("2026-11-21T12:{:02}:{:02}.000Z", nth / 6, nth % 6 * 10);
            json!({"at": at, "enqueued": 100, "ended": nth, "failed": 1, "wait": times(nth)})
        };
        let points: Vec<_> = (0..120).map(point).collect();
        let answer: Stats =
            serde_json::from_value(json!({"every_ms": 10_000, "nodes": ["n1", "n2"], "points": points})).unwrap();
        let shown = anstream::adapter::strip_str(&counted(&answer)).to_string();
        assert_eq!(
            shown,
            "\
last        enqueued  ended  failed  p99 wait  p99 run
minute           600    699       6  ≤ 119 ms  –
10 minutes     6,000  5,370      60  ≤ 119 ms  –
hour          12,000  7,140     120  ≤ 119 ms  –
of n1, n2, counted since 2026-11-21T12:00:00.000Z
"
        );
        for (millis, said) in [(600_000, "≤ 10 min 0 s"), (600_001, "> 10 min")] {
            let mut slow = answer.clone();
            slow.points[0].run = serde_json::from_value(times(millis)).unwrap();
            assert!(counted(&slow).contains(said), "{}", counted(&slow));
        }
        let nothing = Stats { every_ms: 10_000, nodes: vec!["n1".to_owned()], points: Vec::new() };
        assert!(counted(&nothing).ends_with("\nof n1\n"), "{}", counted(&nothing));
    }

    #[test]
    fn nodes_are_shown_with_their_load() {
        let answer: Nodes =
            serde_json::from_value(json!({"nodes": [{"node": "n1", "version": "0.1.0", "state": "running",
            "started_at": "2026-11-21T12:00:00.000Z", "seen_at": "2026-11-21T12:05:00.000Z",
            "queues": {"bulk": {"concurrency": 4, "running": 0}, "main": {"concurrency": 64, "running": 7}}}]}))
            .unwrap();
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
