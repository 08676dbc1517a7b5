//! What is wrong with a set-up, judged from the facts. Pure: each finding has its remedy.

use longshore_backbone::inspect::{Account, FoundStream, ServerFacts, Skew, Unanswered, User};
use longshore_backbone::shape::{Difference, StreamChange};
use longshore_backbone::wire::api::{HealthStatus, NoHandler, NodeStatus, QueueStatus};
use longshore_domain::cluster_clock::Wrong;
use serde::{Deserialize, Serialize};

use super::super::output::took;

mod remedies;
mod running;

/// From this share on a bound is nearly reached.
const NEARLY: f64 = 0.8;
/// From this share on a bucket counts as full: nodes are not ready then.
const FULL: f64 = 0.98;

/// How bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Level {
    /// As it should be.
    Fine,
    /// To be known.
    Note,
    /// May fail soon, or under load.
    Warning,
    /// Fails, or loses what was promised.
    Failure,
}

impl Level {
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Fine => "ok",
            Self::Note => "note",
            Self::Warning => "warning",
            Self::Failure => "failure",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Finding {
    pub(super) check: &'static str,
    pub(super) level: Level,
    pub(super) text: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) remedy: Option<String>,
}

/// What a server says of its JetStream by HTTP.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct Monitored {
    pub(super) disabled: bool,
    pub(super) storage: u64,
    pub(super) reserved_storage: u64,
    pub(super) config: MonitoredConfig,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct MonitoredConfig {
    pub(super) max_storage: i64,
    /// In nanoseconds.
    pub(super) sync_interval: u64,
    pub(super) sync_always: bool,
}

pub(super) struct Facts {
    pub(super) server: ServerFacts,
    pub(super) account: Result<Account, Unanswered>,
    pub(super) user: Result<(User, Option<Skew>), Unanswered>,
    /// What a node publishes and subscribes to.
    pub(super) rights: (Vec<String>, Vec<String>),
    pub(super) streams: Result<Vec<(String, Option<FoundStream>)>, Unanswered>,
    /// On how many servers each stream is to be kept; `None`: no configuration says it.
    pub(super) replicas: Option<usize>,
    /// What the streams reserve that are missing, on each server that keeps them.
    pub(super) wanted_bytes: u64,
    /// Whether a configuration was named; else only the defaults are known.
    pub(super) has_settings: bool,
    pub(super) clocks: Vec<(String, Skew)>,
    pub(super) monitored: Option<Result<Monitored, String>>,
    pub(super) nodes: Result<Vec<NodeStatus>, String>,
    pub(super) healths: Vec<HealthStatus>,
    /// The nodes of which nothing is known, as no node answered about them.
    pub(super) unanswered: Vec<String>,
    pub(super) queues: Vec<QueueStatus>,
    /// The types for which nodes find no handler.
    pub(super) no_handler: Vec<NoHandler>,
}

struct Check {
    name: &'static str,
    found: Vec<Finding>,
}

impl Check {
    fn of(name: &'static str) -> Self {
        Self { name, found: Vec::new() }
    }

    fn add(&mut self, level: Level, text: impl Into<String>, remedy: &str) {
        let remedy = Some(remedy.to_owned()).filter(|remedy| !remedy.is_empty());
        self.found.push(Finding { check: self.name, level, text: text.into(), remedy });
    }

    fn failure(&mut self, text: impl Into<String>, remedy: &str) {
        self.add(Level::Failure, text, remedy);
    }

    fn warning(&mut self, text: impl Into<String>, remedy: &str) {
        self.add(Level::Warning, text, remedy);
    }

    fn note(&mut self, text: impl Into<String>, remedy: &str) {
        self.add(Level::Note, text, remedy);
    }

    /// What was found; if that is nothing, `text` says what is as it should be.
    fn or_fine(mut self, text: impl Into<String>) -> Vec<Finding> {
        if self.found.is_empty() {
            self.add(Level::Fine, text, "");
        }
        self.found
    }
}

pub(super) fn no_connection(error: &anyhow::Error) -> Finding {
    let text = super::super::ended::text_of(error);
    let remedy = match super::super::hints::hint(error) {
        _ if text.contains("too old") => "run nats-server 2.14.5 or newer".into(),
        Some(hint) => hint,
        None if text.starts_with("cannot use ") => {
            "name a file that may be read, and holds what it is named for".into()
        }
        None => "start the server, or name it and its credentials: NATS_URL, NATS_CREDS, NATS_CONTEXT".into(),
    };
    Finding { check: "server", level: Level::Failure, text, remedy: Some(remedy.into_owned()) }
}

impl Facts {
    pub(super) fn findings(&self) -> Vec<Finding> {
        let server = &self.server;
        let mut found = Check::of("server").or_fine(format!("nats-server {} ({})", server.version, server.name));
        found.extend(self.of_jetstream());
        found.extend(self.of_permissions());
        found.extend(self.of_streams());
        found.extend(self.of_storage());
        found.extend(self.of_clocks());
        found.extend(self.of_durability());
        found.extend(self.of_nodes());
        found.extend(self.of_queues());
        found.extend(self.of_handlers());
        found.extend(self.of_counters());
        found
    }

    fn of_jetstream(&self) -> Vec<Finding> {
        let mut check = Check::of("jetstream");
        let account = match &self.account {
            Ok(account) => account,
            Err(error) => {
                let remedy = match error.0.contains("temporarily unavailable") {
                    true => {
                        "more than half of the cluster's servers must be there and reach each other: start the others"
                    }
                    false => {
                        "start the server with -js, let the account use JetStream, and let this user ask for it ($JS.API.INFO)"
                    }
                };
                check.failure(format!("JetStream is not available: {error}"), remedy);
                return check.found;
            }
        };
        let missing = self.missing().count();
        let limits = &account.limits;
        let needed = account.streams.saturating_add(i64::try_from(missing).unwrap_or(i64::MAX));
        // Its max_consumers count for each stream by itself, and no stream needs more than one.
        if limits.max_streams > 0 && needed > limits.max_streams {
            let text = format!("the account may have {} streams: {missing} more are needed", limits.max_streams);
            check.failure(text, "raise the account's max_streams: ten for each queue, and twelve");
        }
        if let (None, Some(wanted)) = (&self.server.cluster, self.replicas.filter(|wanted| *wanted > 1)) {
            let text = format!("storage.replicas is {wanted}, and this server belongs to no cluster");
            check.warning(text, "have it join a cluster of so many servers, or set storage.replicas = 1");
        }
        check.or_fine(format!("{} streams, {} consumers", account.streams, account.consumers))
    }

    pub(super) fn missing(&self) -> impl Iterator<Item = &str> {
        let streams = self.streams.as_deref().unwrap_or_default();
        streams.iter().filter(|(_, found)| found.is_none()).map(|(name, _)| name.as_str())
    }

    fn found(&self) -> impl Iterator<Item = &FoundStream> {
        self.streams.as_deref().unwrap_or_default().iter().filter_map(|(_, found)| found.as_ref())
    }

    fn of_permissions(&self) -> Vec<Finding> {
        let mut check = Check::of("permissions");
        let Ok((user, _)) = &self.user else {
            let remedy = "let it publish to $SYS.REQ.USER.INFO, to have its rights checked";
            check.note("this user may not ask what it may do", remedy);
            return check.found;
        };
        let Some(permissions) = &user.permissions else {
            return check.or_fine(format!("this user may do everything in account {}", user.account));
        };
        for (what, lacking) in [
            ("publish to", permissions.publish.lacks(&self.rights.0)),
            ("subscribe to", permissions.subscribe.lacks(&self.rights.1)),
        ] {
            if !lacking.is_empty() {
                let text = format!("a node with these credentials may not {what} {}", listed(&lacking, 6));
                check.failure(text, "grant what docs/operations.md lists under Permissions of a node");
            }
        }
        check.or_fine("all that a node needs is granted")
    }

    fn of_streams(&self) -> Vec<Finding> {
        let mut check = Check::of("streams");
        let streams = match &self.streams {
            Ok(streams) => streams,
            // Said already.
            Err(_) if self.account.is_err() => return Vec::new(),
            Err(error) => {
                let remedy = "let this user ask for them, and check that NATS answers";
                check.failure(format!("the streams cannot be read: {error}"), remedy);
                return check.found;
            }
        };
        let missing: Vec<String> = self.missing().map(str::to_owned).collect();
        if missing.len() == streams.len() {
            check.note("there are none yet", "start a node: it creates them");
            return check.found;
        }
        if !missing.is_empty() {
            check.failure(
                format!("missing: {}", listed(&missing, 6)),
                "a running node makes streams again within seconds, buckets (KV_…) only at its start: restore those from a \
                 backup, or start a node that has these queues",
            );
        }
        // What is true of several streams is said once.
        let mut alike: Vec<(Finding, Vec<String>)> = Vec::new();
        for stream in self.found() {
            let mut of_it = Check::of("streams");
            self.look_at(stream, &mut of_it);
            for finding in of_it.found {
                match alike.iter_mut().find(|(other, _)| *other == finding) {
                    Some((_, names)) => names.push(stream.name.clone()),
                    None => alike.push((finding, vec![stream.name.clone()])),
                }
            }
        }
        check.found.extend(alike.into_iter().map(|(finding, names)| {
            let text = format!("{}{}", listed(&names, 3), finding.text);
            Finding { text, ..finding }
        }));
        check.or_fine(format!("{} of {} in shape", streams.len(), streams.len()))
    }

    /// What is found of a stream, without its name, which comes first.
    fn look_at(&self, stream: &FoundStream, check: &mut Check) {
        let shown =
            |Difference { setting, found, wanted }: &Difference| format!("{setting} is {found}, wanted {wanted}");
        let all = |differences: &[Difference]| differences.iter().map(shown).collect::<Vec<_>>().join("; ");
        match &stream.change {
            StreamChange::Impossible(difference) => check.failure(
                format!(": {}; it cannot be changed in place", shown(difference)),
                "another program made it: choose another namespace, or move its messages away and delete it",
            ),
            // Without a configuration only the defaults are known.
            StreamChange::Update { changed, .. } if self.has_settings => check.warning(
                format!(": {}", all(changed)),
                "restart a node with this configuration: at its start it changes the stream",
            ),
            StreamChange::None { kept } if self.has_settings && !kept.is_empty() => check.note(
                format!(" holds more: {}", all(kept)),
                "start a node with storage.allow_shrink = true, if less is meant",
            ),
            StreamChange::Update { .. } | StreamChange::None { .. } => {}
        }
        if !stream.has_consumer {
            let text = ": its consumer is missing, so no job is delivered";
            check.failure(text, "restart a node: it makes the consumer anew; find the client that deleted it");
        }
        if !stream.lagging.is_empty() {
            let text = format!(": not in step: {}", listed(&stream.lagging, 6));
            check.warning(text, "check these servers: until they are in step, losing another one stops the stream");
        }
    }

    fn of_storage(&self) -> Vec<Finding> {
        let Ok(account) = &self.account else { return Vec::new() }; // nothing of it is known
        let mut check = Check::of("storage");
        for stream in self.found() {
            // The event log drops its oldest events, as it should.
            let fill = stream.fill();
            if fill < NEARLY || stream.name.ends_with("_EVENTS") {
                continue;
            }
            let level = if fill >= FULL { Level::Failure } else { Level::Warning };
            let percent = (fill * 100.0).round();
            check.add(level, format!("{} is {percent} % full", stream.name), remedies::of_full(&stream.name));
        }
        // Without a configuration only the defaults are known.
        let wanted = if self.has_settings { self.wanted_bytes } else { 0 };
        let (stored, reserved) = (account.storage, account.reserved_storage);
        let copies = self.replicas.unwrap_or(1) as u64;
        room(
            &mut check,
            "the account",
            StoreLimit { bound: account.limits.max_storage, stored, reserved, wanted: wanted * copies },
        );
        if let Some(Ok(monitored)) = &self.monitored {
            let (stored, reserved) = (monitored.storage, monitored.reserved_storage);
            // Those of a cluster may have room where this one has none.
            let wanted = if self.server.cluster.is_none() { wanted } else { 0 };
            room(
                &mut check,
                "the server",
                StoreLimit { bound: monitored.config.max_storage, stored, reserved, wanted },
            );
        }
        check.or_fine("no stream is nearly full")
    }

    fn of_clocks(&self) -> Vec<Finding> {
        let mut check = Check::of("clocks");
        let here = self.user.as_ref().ok().and_then(|(_, skew)| *skew);
        let here = here.map(|skew| ("this machine".to_owned(), Skew { ahead_ms: -skew.ahead_ms, ..skew }));
        let all: Vec<(String, Skew)> =
            here.into_iter().chain(self.clocks.iter().map(|(node, skew)| (format!("node {node}"), *skew))).collect();
        for (whose, skew) in &all {
            let level = match skew.wrong() {
                Wrong::FarOff => Level::Failure,
                Wrong::Off => Level::Warning,
                Wrong::No => continue,
            };
            let by = took(skew.ahead_ms.unsigned_abs());
            let side = if skew.ahead_ms > 0 { "ahead of" } else { "behind" };
            check.add(level, format!("the clock of {whose} is {by} {side} the server's"), remedies::CLOCKS);
        }
        if all.is_empty() {
            check.note("no clock could be compared with the server's", "");
        }
        check.or_fine(format!("{} compared with the server's, all within a second or two", all.len()))
    }
}

/// A bound on what is stored, what is below it, and what the streams that are still to be made reserve.
struct StoreLimit {
    bound: i64,
    stored: u64,
    reserved: u64,
    wanted: u64,
}

/// Whether much room is left.
fn room(check: &mut Check, whose: &str, StoreLimit { bound, stored, reserved, wanted }: StoreLimit) {
    let Some(bound) = u64::try_from(bound).ok().filter(|bound| *bound > 0) else { return };
    let percent = |part: u64| (part as f64 / bound as f64 * 100.0).round();
    let free = bound.saturating_sub(reserved);
    let is_near = |part: u64| part as f64 >= bound as f64 * NEARLY;
    if is_near(stored) {
        let level = if stored >= bound { Level::Failure } else { Level::Warning };
        let text = format!("{whose} stores {} % of its {}", percent(stored), size(bound));
        check.add(level, text, "raise max_file_store or the account's limit: beyond it every publish is refused");
    }
    if wanted > free {
        let text =
            format!("{whose} has {} left to reserve, and streams that are missing need {}", size(free), size(wanted));
        check.failure(
            text,
            "raise max_file_store or the account's limit, or lower storage.jobs_max_bytes (ten lanes per \
                             queue), events_max_bytes or dlq_max_bytes",
        );
    } else if reserved > bound {
        let text = format!("{whose} has reserved {} % of its {}", percent(reserved), size(bound));
        check.warning(text, "raise max_file_store or the account's limit: it is reached before the streams are full");
    } else if is_near(reserved) && !is_near(stored) {
        let text = format!("{whose} has reserved {} % of its {}", percent(reserved), size(bound));
        check.note(text, "a new queue reserves ten times storage.jobs_max_bytes: raise the limit before");
    }
}

fn size(bytes: u64) -> String {
    match bytes {
        bytes if bytes < 1 << 30 => format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20)),
        bytes => format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30)),
    }
}

/// The first names, and how many more there are.
fn listed(names: &[String], most: usize) -> String {
    let first = names.iter().take(most).cloned().collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(most) {
        0 => first,
        more => format!("{first} and {more} more"),
    }
}

#[cfg(test)]
mod tests;
