//! The alert rules and dashboards that ship use only metrics and labels that a node has.
//!
//! Prometheus itself checks more (`tests/prometheus.rs`, where one is installed); this needs nothing
//! but the repository, so it holds in every check.

use std::collections::{BTreeMap, BTreeSet};

use longshore_actors::metrics::Metrics;
use promql_parser::parser::{self, AggregateExpr, BinaryExpr, Expr, LabelModifier, VectorSelector};
use promql_parser::util::{ExprVisitor, walk_expr};
use serde::Deserialize;

/// Labels that Prometheus adds to whatever it scrapes.
const ADDED: [&str; 4] = ["job", "instance", "cluster", "namespace"];
/// Those of them that distinguish clusters.
const CLUSTER: [&str; 2] = ["cluster", "namespace"];

/// Each series that a node may have, with its labels.
fn known() -> BTreeMap<String, BTreeSet<String>> {
    let mut known = BTreeMap::from([("up".to_owned(), BTreeSet::new())]);
    for metric in Metrics::default().described() {
        let labels: BTreeSet<String> = metric.labels.into_iter().collect();
        if metric.kind != "histogram" {
            known.insert(metric.name, labels);
            continue;
        }
        for part in ["_count", "_sum"] {
            known.insert(format!("{}{part}", metric.name), labels.clone());
        }
        let with_le = labels.into_iter().chain(["le".to_owned()]).collect();
        known.insert(format!("{}_bucket", metric.name), with_le);
    }
    known
}

/// What an expression names.
#[derive(Default)]
struct Named {
    metrics: BTreeSet<String>,
    labels: BTreeSet<String>,
    wrong: Vec<String>,
    /// The parts that put together what several clusters have.
    mixing: Vec<String>,
    /// The selectors that do not say of which cluster.
    of_any: Vec<String>,
}

impl Named {
    fn selector(&mut self, selector: &VectorSelector, known: &BTreeMap<String, BTreeSet<String>>) {
        let Some(name) = &selector.name else { return self.wrong.push(format!("{selector} has no name")) };
        let Some(labels) = known.get(name) else { return self.wrong.push(format!("{name} is no metric")) };
        for matcher in &selector.matchers.matchers {
            if !labels.contains(&matcher.name) && !ADDED.contains(&matcher.name.as_str()) {
                self.wrong.push(format!("{name} has no label {}", matcher.name));
            }
        }
        let names = |label: &str| selector.matchers.matchers.iter().any(|matcher| matcher.name == label);
        if !CLUSTER.iter().all(|label| names(label)) {
            self.of_any.push(name.clone());
        }
        if names("job") {
            self.wrong.push(format!("{name} by the name of its job, which users choose"));
        }
        self.metrics.insert(name.clone());
        self.labels.extend(labels.iter().cloned());
    }

    fn grouping(&mut self, modifier: Option<&LabelModifier>) {
        for label in modifier.iter().flat_map(|modifier| &modifier.labels().labels) {
            if !self.labels.contains(label) && !ADDED.contains(&label.as_str()) {
                self.wrong.push(format!("grouped by {label}, which none of its metrics has"));
            }
        }
    }
}

struct Walk<'k> {
    named: Named,
    known: &'k BTreeMap<String, BTreeSet<String>>,
}

impl ExprVisitor for Walk<'_> {
    type Error = String;

    fn pre_visit(&mut self, part: &Expr) -> Result<bool, String> {
        match part {
            Expr::VectorSelector(selector) => self.named.selector(selector, self.known),
            Expr::MatrixSelector(selector) => self.named.selector(&selector.vs, self.known),
            _ => {}
        }
        Ok(true)
    }

    /// Once its metrics are known.
    fn post_visit(&mut self, part: &Expr) -> Result<bool, String> {
        match part {
            Expr::Aggregate(AggregateExpr { modifier, .. }) => {
                let labels = modifier.as_ref().map(|modifier| modifier.labels().labels.clone()).unwrap_or_default();
                if !CLUSTER.iter().all(|label| labels.iter().any(|of| of == label)) {
                    self.named.mixing.push(part.to_string());
                }
                self.named.grouping(modifier.as_ref());
            }
            Expr::Binary(BinaryExpr { modifier: Some(modifier), .. }) => {
                self.named.grouping(modifier.matching.as_ref());
            }
            _ => {}
        }
        Ok(true)
    }
}

/// What an expression names, and what is wrong with it.
fn read(expression: &str) -> Named {
    let known = known();
    let mut walk = Walk { named: Named::default(), known: &known };
    match parser::parse(expression) {
        Ok(parsed) => {
            walk_expr(&mut walk, &parsed).unwrap();
            if walk.named.metrics.is_empty() {
                walk.named.wrong.push("it names no metric".to_owned());
            }
        }
        Err(error) => walk.named.wrong.push(error),
    }
    walk.named
}

#[test]
fn what_does_not_exist_is_found() {
    let wrong = |expression: &str| read(expression).wrong.join("; ");
    assert_eq!(wrong("sum(longshore_leases_lost_totl)"), "longshore_leases_lost_totl is no metric; it names no metric");
    assert_eq!(wrong("longshore_dlq_jobs{queue=\"a\"}"), "longshore_dlq_jobs has no label queue");
    assert_eq!(
        wrong("sum by (tenant) (rate(longshore_attempts_started_total[5m]))"),
        "grouped by tenant, which none of its metrics has"
    );
    assert_eq!(
        wrong("rate(longshore_job_wait_seconds[5m])"),
        "longshore_job_wait_seconds is no metric; it names no metric"
    );
    assert_ne!(wrong("sum(longshore_dlq_jobs"), "");
    assert_eq!(wrong("up{job=\"longshore\"}"), "up by the name of its job, which users choose");
    let of_clusters =
        read("sum by (cluster, namespace) (longshore_ready{cluster=\"a\", namespace=\"b\"}) + sum(longshore_ready)");
    assert_eq!(
        (of_clusters.mixing, of_clusters.of_any),
        (vec!["sum(longshore_ready)".to_owned()], vec!["longshore_ready".to_owned()])
    );
    assert_eq!(
        wrong(
            "max by (queue) (longshore_queue_jobs) unless on (instance) (sum(rate(longshore_job_wait_seconds_bucket{le=\"1\"}[5m])) > 0)"
        ),
        ""
    );
}

#[derive(Deserialize)]
struct Rules {
    groups: Vec<Group>,
}

#[derive(Deserialize)]
struct Group {
    rules: Vec<Rule>,
}

#[derive(Deserialize)]
struct Rule {
    alert: String,
    expr: String,
    labels: BTreeMap<String, String>,
    annotations: BTreeMap<String, String>,
}

/// Each alert rests on metrics that there are, says what is wrong and what to do, and has a section in the runbook.
#[test]
fn every_alert_rests_on_metrics_that_a_node_has() {
    let rules: Rules = serde_saphyr::from_str(include_str!("../config/prometheus/alerts.yml")).unwrap();
    let rules: Vec<Rule> = rules.groups.into_iter().flat_map(|group| group.rules).collect();
    assert!(rules.len() >= 15);
    let page = include_str!("../docs/runbook.md");
    let sections: BTreeSet<&str> = page.lines().filter_map(|line| line.strip_prefix("### ")).collect();
    let alerts: BTreeSet<&str> = rules.iter().map(|rule| rule.alert.as_str()).collect();
    assert_eq!(sections, alerts, "each alert has a section in the runbook, and no other thing has");
    for Rule { alert, expr, labels, annotations } in rules {
        let named = read(&expr);
        assert!(named.wrong.is_empty(), "{alert}: {}", named.wrong.join("; "));
        assert!(named.mixing.is_empty(), "{alert} mixes clusters: {:?}", named.mixing);
        assert!(["page", "ticket"].contains(&labels["severity"].as_str()), "{alert}");
        for text in [&annotations["summary"], &annotations["description"]] {
            for used in text.split("$labels.").skip(1) {
                let label = used.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap();
                assert!(named.labels.contains(label) || ADDED.contains(&label), "{alert} names {label}: {text}");
            }
        }
    }
}

/// A board of Grafana, as far as it is checked.
#[derive(Deserialize)]
struct Board {
    uid: String,
    tags: Vec<String>,
    panels: Vec<Panel>,
    templating: Templating,
}

#[derive(Deserialize)]
struct Panel {
    title: String,
    targets: Vec<Target>,
}

#[derive(Deserialize)]
struct Target {
    expr: String,
}

#[derive(Deserialize)]
struct Templating {
    list: Vec<Variable>,
}

#[derive(Deserialize)]
struct Variable {
    name: String,
    #[serde(default)]
    definition: String,
}

/// The boards that ship.
const BOARDS: [&str; 6] = [
    include_str!("../config/grafana/dashboards/longshore-queues.json"),
    include_str!("../config/grafana/dashboards/longshore-latency.json"),
    include_str!("../config/grafana/dashboards/longshore-failures.json"),
    include_str!("../config/grafana/dashboards/longshore-workers.json"),
    include_str!("../config/grafana/dashboards/longshore-protection.json"),
    include_str!("../config/grafana/dashboards/longshore-backbone.json"),
];

/// Every expression of every board.
pub(crate) fn board_expressions() -> Vec<String> {
    let panels = BOARDS.iter().flat_map(|board| serde_json::from_str::<Board>(board).unwrap().panels);
    panels.flat_map(|panel| panel.targets).map(|target| target.expr).collect()
}

/// An expression of a board as Prometheus gets it.
pub(crate) fn filled_in(expression: &str) -> String {
    let variables = ["$queue", "$type", "$cluster", "$namespace"];
    let filled_in = expression.replace("$__rate_interval", "5m");
    variables.into_iter().fold(filled_in, |filled_in, variable| filled_in.replace(variable, ".*"))
}

/// Each expression of each board rests on metrics that there are, and every metric stands on a board.
#[test]
fn every_board_rests_on_metrics_that_a_node_has() {
    let mut shown = BTreeSet::new();
    let mut expressions = 0;
    for text in BOARDS {
        let Board { uid, tags, panels, templating } = serde_json::from_str(text).unwrap();
        assert!(tags.contains(&"longshore".to_owned()) && panels.len() >= 8, "{uid}");
        for Panel { title, targets } in panels {
            assert!(!targets.is_empty(), "{uid}: {title}");
            for Target { expr } in targets {
                let named = read(&filled_in(&expr));
                assert!(named.wrong.is_empty(), "{uid}: {title}: {}: {expr}", named.wrong.join("; "));
                // Those of the process are joined with one of ours.
                let of_any = named.of_any.iter().find(|name| name.starts_with("longshore_"));
                assert_eq!(of_any, None, "{uid}: {title} mixes clusters: {expr}");
                assert!(!filled_in(&expr).contains('$'), "{uid}: {title} has an unknown variable: {expr}");
                shown.extend(named.metrics);
                expressions += 1;
            }
        }
        for Variable { name, definition } in templating.list.iter().filter(|variable| !variable.definition.is_empty()) {
            let inner = definition.strip_prefix("label_values(").and_then(|rest| rest.strip_suffix(')')).unwrap();
            let (series, label) = inner.rsplit_once(',').unwrap();
            let named = read(&filled_in(series));
            let is_one = named.labels.contains(label.trim()) || CLUSTER.contains(&label.trim());
            assert!(named.wrong.is_empty() && is_one, "{uid}: {name}: {definition}");
        }
    }
    assert!(expressions >= 60, "{expressions}");
    let base = |name: &str| {
        ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end)).unwrap_or(name).to_owned()
    };
    let shown: BTreeSet<String> = shown.iter().map(|name| base(name)).collect();
    let missing: Vec<String> = Metrics::default()
        .described()
        .into_iter()
        .map(|metric| metric.name)
        .filter(|name| !shown.contains(name) && !NOT_ON_A_BOARD.contains(&name.as_str()))
        .collect();
    assert!(missing.is_empty(), "on no board: {missing:?}");
}

/// What no board needs to show.
const NOT_ON_A_BOARD: [&str; 2] = [
    "process_start_time_seconds",            // the age of a process is in `longshore nodes`
    "longshore_handlers_unresponsive_total", // the gauge of the same name shows it
];
