//! What is found of the running cluster: what its copies promise, its nodes and queues, and what the nodes have
//! counted.

use std::collections::BTreeMap;

use longshore_backbone::wire::api::{HealthStatus, NoHandler};

use super::super::super::output::{number, took};
use super::super::super::queues::never_served;
use super::{Facts, Finding, Level, finding, fine, listed, remedies};

impl Facts {
    pub(super) fn of_durability(&self) -> Vec<Finding> {
        const CHECK: &str = "durability";
        let Some(replicas) = self.found().map(|stream| stream.replicas).min() else { return Vec::new() };
        let monitored = match &self.monitored {
            Some(Ok(monitored)) if monitored.disabled => {
                return vec![finding(
                    CHECK,
                    Level::Failure,
                    "JetStream is switched off on this server",
                    "free space on its disk, then restart it: it stays off until then",
                )];
            }
            Some(Ok(monitored)) => Some(&monitored.config),
            Some(Err(error)) => {
                return vec![finding(
                    CHECK,
                    Level::Warning,
                    format!("the server cannot be asked how it syncs: {error}"),
                    "name the address of its http setting with --monitor",
                )];
            }
            None => None,
        };
        let sync_always = monitored.map(|config| config.sync_always);
        let synced = match monitored {
            Some(config) if config.sync_always => "each write is synced".to_owned(),
            Some(config) => format!("files are synced every {}", took(config.sync_interval / 1_000_000)),
            None => "how files are synced is not known, by default every 2 min".to_owned(),
        };
        let (promise, remedy) = match (replicas >= 3, sync_always.unwrap_or(false)) {
            (false, false) => (
                "kill -9 and freezes of anything lose nothing; loss of power may lose what was accepted since the last sync",
                "sync_interval: always, or three servers with storage.replicas = 3, for more",
            ),
            (false, true) => (
                "kill -9 of anything and loss of power lose nothing; loss of the disk loses all",
                "three servers with storage.replicas = 3, for more",
            ),
            (true, false) => (
                "any one server may fail in any way; if all lose power at once, what was accepted since the last sync may be lost",
                "sync_interval: always, for more",
            ),
            (true, true) => ("any kills, cuts and losses of power that leave two disks lose nothing", ""),
        };
        let text = format!("{replicas} {}, {synced}: {promise}", if replicas == 1 { "copy" } else { "copies" });
        let mut found = vec![match monitored {
            Some(_) => finding(CHECK, Level::Fine, text, remedy),
            None => finding(CHECK, Level::Note, text, "name the server's http address with --monitor, to know"),
        }];
        if self.found().any(|stream| stream.replicas != replicas) {
            let fewer: Vec<String> =
                self.found().filter(|stream| stream.replicas == replicas).map(|stream| stream.name.clone()).collect();
            let text = format!("streams have different numbers of copies; {replicas} have {}", listed(&fewer, 4));
            found.push(finding(CHECK, Level::Warning, text, "start all nodes with the same storage.replicas"));
        }
        found
    }

    pub(super) fn of_nodes(&self) -> Vec<Finding> {
        const CHECK: &str = "nodes";
        let nodes = match &self.nodes {
            Ok(nodes) => nodes,
            Err(error) => {
                return vec![finding(
                    CHECK,
                    Level::Failure,
                    error,
                    "start a node, or ask as a user who may use longshore.api._all.>",
                )];
            }
        };
        let mut found = Vec::new();
        let mut versions: Vec<&str> = nodes.iter().map(|node| node.version.as_str()).collect();
        versions.sort_unstable();
        versions.dedup();
        if versions.len() > 1 {
            let text = format!("nodes have different versions: {}", versions.join(", "));
            found.push(finding(CHECK, Level::Warning, text, "finish the upgrade"));
        }
        for node in nodes.iter().filter(|node| !self.healths.iter().any(|health| health.node == node.node)) {
            let text = format!("node {} does not answer", node.node);
            found.push(finding(CHECK, Level::Warning, text, "look at its log: it may be frozen, or just gone"));
        }
        for health in &self.healths {
            found.extend(health.reasons.iter().map(|reason| {
                let text = format!("node {} is not ready: {reason}", health.node);
                finding(CHECK, Level::Failure, text, remedies::of_reason(reason))
            }));
        }
        let mut warnings: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for health in &self.healths {
            // Of types without a handler each node speaks for a time after the last job; how many wait is known below.
            for warning in health.warnings.iter().filter(|warning| !warning.starts_with(remedies::NO_HANDLER)) {
                warnings.entry(warning).or_default().push(&health.node);
            }
        }
        found.extend(warnings.into_iter().map(|(warning, nodes)| {
            let whose = if nodes.len() > 1 { "nodes" } else { "node" };
            let text = format!("{whose} {}: {warning}", nodes.join(", "));
            finding(CHECK, Level::Warning, text, remedies::of_warning(warning))
        }));
        if found.is_empty() {
            found.push(fine(CHECK, format!("{} there, all ready", nodes.len())));
        }
        found
    }

    pub(super) fn of_queues(&self) -> Vec<Finding> {
        const CHECK: &str = "queues";
        let mut found = Vec::new();
        for queue in self.queues.iter().filter(|queue| queue.depth > 0) {
            let (name, waiting) = (&queue.queue, queue.depth - queue.running.min(queue.depth));
            if !queue.served {
                let text = format!("no node serves queue {name}; jobs that wait there: {}", number(queue.depth));
                found.push(finding(CHECK, Level::Warning, text, "start a node whose configuration names this queue"));
            }
            if queue.paused && waiting > 0 {
                let text = format!("queue {name} is paused; jobs that wait there: {}", number(waiting));
                found.push(finding(
                    CHECK,
                    Level::Warning,
                    text,
                    &format!("longshore queues resume {name} ends the pause"),
                ));
            }
            for paused in queue.paused_types.iter().filter(|_| waiting > 0) {
                let job_type = &paused.job_type;
                let text = format!(
                    "type {job_type} is paused in queue {name}; jobs of all types that wait there: {}",
                    number(waiting)
                );
                let remedy = format!(
                    "longshore queues resume --type {job_type} ends the pause, with {name} if it is of that queue"
                );
                found.push(finding(CHECK, Level::Note, text, &remedy));
            }
        }
        found
    }

    /// The types whose jobs wait for a handler.
    pub(super) fn of_handlers(&self) -> Vec<Finding> {
        let waited_for = self.no_handler.iter().filter(|missing| missing.jobs > 0);
        let each = waited_for.map(|missing| {
            let NoHandler { job_type, tenant, since, subject, jobs, .. } = missing;
            let never = never_served(missing).map_or_else(String::new, |never| format!("; {never}"));
            let text = format!(
                "{}{job_type} of tenant {tenant} since {since}: handlers subscribe to {subject}{never}; jobs that wait: {}",
                remedies::NO_HANDLER,
                number(*jobs)
            );
            let remedy = remedies::of_warning(&text);
            finding("handlers", Level::Warning, text, remedy)
        });
        each.collect()
    }

    pub(super) fn of_counters(&self) -> Vec<Finding> {
        let sum = |of: fn(&HealthStatus) -> u64| self.healths.iter().map(of).sum::<u64>();
        let counted = [
            (
                sum(|health| health.counters.poison_removed),
                Level::Warning,
                "messages that no client can read were taken out",
                "find who publishes them: longshore dlq list --error-kind invalid",
            ),
            (
                sum(|health| health.counters.stale_reads),
                Level::Note,
                "records were read that were older than their job",
                "if it grows: a replica lags, check the servers",
            ),
            (
                sum(|health| health.counters.runs_stranded),
                Level::Warning,
                "runs were found that nothing can bring on: their schedule or message is gone",
                "the log of a node names them: longshore runs cancel ends them; then submit them again",
            ),
            (
                sum(|health| health.counters.overdue_restored),
                Level::Note,
                "schedules had not fired and were made up for",
                "if it grows: the schedules' stream loses its leader, check the servers",
            ),
            (
                sum(|health| health.counters.connections_rebuilt),
                Level::Note,
                "connections to NATS were made anew",
                "if it grows: check the network, and who sends bytes that no client can read",
            ),
        ];
        let moved = counted.into_iter().filter(|(count, ..)| *count > 0);
        let each = moved.map(|(count, level, what, remedy)| {
            finding("counters", level, format!("since the nodes started, {what}: {}", number(count)), remedy)
        });
        each.collect()
    }
}
