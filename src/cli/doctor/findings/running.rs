//! What is found of the running cluster: what its copies promise, its nodes and queues, and what the nodes have
//! counted.

use std::collections::BTreeMap;

use longshore_backbone::wire::api::{HealthStatus, NoHandler};

use super::super::super::output::{number, took};
use super::super::super::queues::never_served;
use super::{Check, Facts, Finding, Level, listed, remedies};

impl Facts {
    pub(super) fn of_durability(&self) -> Vec<Finding> {
        let mut check = Check::of("durability");
        let Some(replicas) = self.found().map(|stream| stream.replicas).min() else { return Vec::new() };
        let monitored = match &self.monitored {
            Some(Ok(monitored)) if monitored.disabled => {
                let remedy = "free space on its disk, then restart it: it stays off until then";
                check.failure("JetStream is switched off on this server", remedy);
                return check.found;
            }
            Some(Ok(monitored)) => Some(&monitored.config),
            Some(Err(error)) => {
                let text = format!("the server cannot be asked how it syncs: {error}");
                check.warning(text, "name the address of its http setting with --monitor");
                return check.found;
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
        match monitored {
            Some(_) => check.add(Level::Fine, text, remedy),
            None => check.note(text, "name the server's http address with --monitor, to know"),
        }
        if self.found().any(|stream| stream.replicas != replicas) {
            let fewer: Vec<String> =
                self.found().filter(|stream| stream.replicas == replicas).map(|stream| stream.name.clone()).collect();
            let text = format!("streams have different numbers of copies; {replicas} have {}", listed(&fewer, 4));
            check.warning(text, "start all nodes with the same storage.replicas");
        }
        check.found
    }

    pub(super) fn of_nodes(&self) -> Vec<Finding> {
        let mut check = Check::of("nodes");
        let nodes = match &self.nodes {
            Ok(nodes) => nodes,
            // The nodes that are there, as their clocks show, answer none.
            Err(error) if error.starts_with("no answer") && !self.clocks.is_empty() => {
                let seen: Vec<String> = self.clocks.iter().map(|(node, _)| node.clone()).collect();
                let text = format!("{error}; there were last: {}", listed(&seen, 6));
                let remedy =
                    "look at these nodes, their machines and their logs: one that stands still answers nothing";
                check.failure(text, remedy);
                return check.found;
            }
            Err(error) => {
                check.failure(error, "start a node, or ask as a user who may use longshore.api._all.>");
                return check.found;
            }
        };
        if nodes.is_empty() {
            let remedy = "ask again in some seconds, if it was just started; its log says what it cannot store";
            check
                .failure("a node answers, and none is known to be there: what it says of itself is not stored", remedy);
        }
        let mut versions: Vec<&str> = nodes.iter().map(|node| node.version.as_str()).collect();
        versions.sort_unstable();
        versions.dedup();
        if versions.len() > 1 {
            let text = format!("nodes have different versions: {}", versions.join(", "));
            check.warning(text, "finish the upgrade");
        }
        for node in nodes.iter().filter(|node| !self.healths.iter().any(|health| health.node == node.node)) {
            if self.unanswered.contains(&node.node) {
                let text = format!("how node {} is doing is not known: requests got no answer", node.node);
                check.warning(text, "look for a frozen node: it takes requests that others would answer");
                continue;
            }
            let text = format!("node {} does not answer", node.node);
            check.warning(text, "look at its log: it may be frozen, or just gone");
        }
        for health in &self.healths {
            for reason in &health.reasons {
                check.failure(format!("node {} is not ready: {reason}", health.node), remedies::of_reason(reason));
            }
        }
        let mut warnings: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for health in &self.healths {
            // Of types without a handler each node speaks for a time after the last job; how many wait is known below.
            for warning in health.warnings.iter().filter(|warning| !warning.starts_with(remedies::NO_HANDLER)) {
                warnings.entry(warning).or_default().push(&health.node);
            }
        }
        for (warning, nodes) in warnings {
            let whose = if nodes.len() > 1 { "nodes" } else { "node" };
            check.warning(format!("{whose} {}: {warning}", nodes.join(", ")), remedies::of_warning(warning));
        }
        check.or_fine(format!("{} there, all ready", nodes.len()))
    }

    pub(super) fn of_queues(&self) -> Vec<Finding> {
        let mut check = Check::of("queues");
        for queue in self.queues.iter().filter(|queue| queue.depth > 0) {
            let (name, waiting) = (&queue.queue, queue.depth - queue.running.min(queue.depth));
            if !queue.served {
                let text = format!("no node serves queue {name}; jobs that wait there: {}", number(queue.depth));
                check.warning(text, "start a node whose configuration names this queue");
            }
            if queue.paused && waiting > 0 {
                let text = format!("queue {name} is paused; jobs that wait there: {}", number(waiting));
                check.warning(text, &format!("longshore queues resume {name} ends the pause"));
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
                check.note(text, &remedy);
            }
        }
        check.found
    }

    pub(super) fn of_handlers(&self) -> Vec<Finding> {
        let mut check = Check::of("handlers");
        for missing in self.no_handler.iter().filter(|missing| missing.jobs > 0) {
            let NoHandler { job_type, tenant, since, subject, jobs, .. } = missing;
            let never = never_served(missing).map_or_else(String::new, |never| format!("; {never}"));
            let text = format!(
                "{}{job_type} of tenant {tenant} since {since}: handlers subscribe to {subject}{never}; jobs that wait: {}",
                remedies::NO_HANDLER,
                number(*jobs)
            );
            let remedy = remedies::of_warning(&text);
            check.warning(text, remedy);
        }
        check.found
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
        let mut check = Check::of("counters");
        for (count, level, what, remedy) in counted.into_iter().filter(|(count, ..)| *count > 0) {
            check.add(level, format!("since the nodes started, {what}: {}", number(count)), remedy);
        }
        check.found
    }
}
