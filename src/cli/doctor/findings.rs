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

/// What was found by one check.
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
pub(super) struct Monitored {
    /// JetStream is off.
    #[serde(default)]
    pub(super) disabled: bool,
    #[serde(default)]
    pub(super) storage: u64,
    #[serde(default)]
    pub(super) reserved_storage: u64,
    #[serde(default)]
    pub(super) config: MonitoredConfig,
}

#[derive(Debug, Clone, Default, Deserialize)]
pub(super) struct MonitoredConfig {
    #[serde(default)]
    pub(super) max_storage: i64,
    /// In nanoseconds.
    #[serde(default)]
    pub(super) sync_interval: u64,
    #[serde(default)]
    pub(super) sync_always: bool,
}

/// All that is known.
pub(super) struct Facts {
    pub(super) server: ServerFacts,
    pub(super) account: Result<Account, Unanswered>,
    pub(super) user: Result<(User, Option<Skew>), Unanswered>,
    /// What a node publishes and subscribes to.
    pub(super) rights: (Vec<String>, Vec<String>),
    pub(super) streams: Result<Vec<(String, Option<FoundStream>)>, Unanswered>,
    /// Whether a configuration was named; else only the defaults are known.
    pub(super) has_settings: bool,
    pub(super) clocks: Vec<(String, Skew)>,
    pub(super) monitored: Option<Result<Monitored, String>>,
    pub(super) nodes: Result<Vec<NodeStatus>, String>,
    pub(super) healths: Vec<HealthStatus>,
    pub(super) queues: Vec<QueueStatus>,
    /// The types for which nodes find no handler.
    pub(super) no_handler: Vec<NoHandler>,
}

fn finding(check: &'static str, level: Level, text: impl Into<String>, remedy: &str) -> Finding {
    let remedy = Some(remedy.to_owned()).filter(|remedy| !remedy.is_empty());
    Finding { check, level, text: text.into(), remedy }
}

fn fine(check: &'static str, text: impl Into<String>) -> Finding {
    finding(check, Level::Fine, text, "")
}

/// The finding where there is no connection.
pub(super) fn no_connection(error: &str) -> Finding {
    let remedy = match error {
        error if error.contains("too old") => "run nats-server 2.14.5 or newer",
        _ => "start the server, or name it and its credentials: NATS_URL, NATS_CREDS, NATS_CONTEXT",
    };
    finding("server", Level::Failure, error, remedy)
}

impl Facts {
    /// What was found, check by check.
    pub(super) fn findings(&self) -> Vec<Finding> {
        let server = &self.server;
        let mut found = vec![fine("server", format!("nats-server {} ({})", server.version, server.name))];
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
        let account = match &self.account {
            Ok(account) => account,
            Err(error) => {
                let remedy = "start the server with -js, let the account use JetStream, and let this user ask for it ($JS.API.INFO)";
                return vec![finding(
                    "jetstream",
                    Level::Failure,
                    format!("JetStream is not available: {error}"),
                    remedy,
                )];
            }
        };
        let missing = self.missing().count();
        let mut found = Vec::new();
        let limits = &account.limits;
        let more = |bound: i64, there: i64, missing: usize| {
            bound > 0 && there.saturating_add(i64::try_from(missing).unwrap_or(i64::MAX)) > bound
        };
        if more(limits.max_streams, account.streams, missing) {
            let text = format!("the account may have {} streams: {missing} more are needed", limits.max_streams);
            found.push(finding(
                "jetstream",
                Level::Failure,
                text,
                "raise the account's max_streams: ten for each queue, and twelve",
            ));
        }
        if more(limits.max_consumers, account.consumers, missing) {
            let text =
                format!("the account may have {} consumers, and has {}", limits.max_consumers, account.consumers);
            found.push(finding(
                "jetstream",
                Level::Failure,
                text,
                "raise the account's max_consumers: ten for each queue, and one",
            ));
        }
        if found.is_empty() {
            let text = format!("{} streams, {} consumers", account.streams, account.consumers);
            found.push(fine("jetstream", text));
        }
        found
    }

    fn missing(&self) -> impl Iterator<Item = &str> {
        let streams = self.streams.as_deref().unwrap_or_default();
        streams.iter().filter(|(_, found)| found.is_none()).map(|(name, _)| name.as_str())
    }

    fn found(&self) -> impl Iterator<Item = &FoundStream> {
        self.streams.as_deref().unwrap_or_default().iter().filter_map(|(_, found)| found.as_ref())
    }

    fn of_permissions(&self) -> Vec<Finding> {
        const CHECK: &str = "permissions";
        let user = match &self.user {
            Ok((user, _)) => user,
            Err(_) => {
                let text = "this user may not ask what it may do";
                return vec![finding(
                    CHECK,
                    Level::Note,
                    text,
                    "let it publish to $SYS.REQ.USER.INFO, to have its rights checked",
                )];
            }
        };
        let Some(permissions) = &user.permissions else {
            return vec![fine(CHECK, format!("this user may do everything in account {}", user.account))];
        };
        let lacking = [
            ("publish to", permissions.publish.lacks(&self.rights.0)),
            ("subscribe to", permissions.subscribe.lacks(&self.rights.1)),
        ];
        let lacking: Vec<Finding> = lacking
            .into_iter()
            .filter(|(_, subjects)| !subjects.is_empty())
            .map(|(what, subjects)| {
                let text = format!("a node with these credentials may not {what} {}", listed(&subjects, 6));
                finding(CHECK, Level::Failure, text, "grant what docs/operations.md lists under Permissions of a node")
            })
            .collect();
        if lacking.is_empty() { vec![fine(CHECK, "all that a node needs is granted")] } else { lacking }
    }

    fn of_streams(&self) -> Vec<Finding> {
        const CHECK: &str = "streams";
        let streams = match &self.streams {
            Ok(streams) => streams,
            // Said already.
            Err(_) if self.account.is_err() => return Vec::new(),
            Err(error) => {
                return vec![finding(
                    CHECK,
                    Level::Failure,
                    format!("the streams cannot be read: {error}"),
                    "let this user ask for them, and check that NATS answers",
                )];
            }
        };
        let missing: Vec<String> = self.missing().map(str::to_owned).collect();
        if missing.len() == streams.len() {
            return vec![finding(CHECK, Level::Note, "there are none yet", "start a node: it creates them")];
        }
        let mut found = Vec::new();
        if !missing.is_empty() {
            let text = format!("missing: {}", listed(&missing, 6));
            found.push(finding(
                CHECK,
                Level::Failure,
                text,
                "a running node makes streams again within seconds, buckets (KV_…) only at its start: restore those from a \
                 backup, or start a node that has these queues",
            ));
        }
        for stream in self.found() {
            found.extend(self.of_stream(stream));
        }
        if found.is_empty() {
            found.push(fine(CHECK, format!("{} of {} in shape", streams.len(), streams.len())));
        }
        found
    }

    fn of_stream(&self, stream: &FoundStream) -> Vec<Finding> {
        const CHECK: &str = "streams";
        let name = &stream.name;
        let shown =
            |Difference { setting, found, wanted }: &Difference| format!("{setting} is {found}, wanted {wanted}");
        let mut found = Vec::new();
        match &stream.change {
            StreamChange::Impossible(difference) => {
                let text = format!("{name}: {}; it cannot be changed in place", shown(difference));
                found.push(finding(
                    CHECK,
                    Level::Failure,
                    text,
                    "another program made it: choose another namespace, or move its messages away and delete it",
                ));
            }
            // Without a configuration only the defaults are known.
            StreamChange::Update { changed, .. } if self.has_settings => {
                let changed: Vec<String> = changed.iter().map(shown).collect();
                found.push(finding(
                    CHECK,
                    Level::Warning,
                    format!("{name}: {}", changed.join("; ")),
                    "restart a node with this configuration: at its start it changes the stream",
                ));
            }
            StreamChange::None { kept } if self.has_settings && !kept.is_empty() => {
                let kept: Vec<String> = kept.iter().map(shown).collect();
                found.push(finding(
                    CHECK,
                    Level::Note,
                    format!("{name} holds more: {}", kept.join("; ")),
                    "start a node with storage.allow_shrink = true, if less is meant",
                ));
            }
            StreamChange::Update { .. } | StreamChange::None { .. } => {}
        }
        if !stream.has_consumer {
            found.push(finding(
                CHECK,
                Level::Failure,
                format!("{name}: its consumer is missing, so no job is delivered"),
                "restart a node: it makes the consumer anew; find the client that deleted it",
            ));
        }
        if !stream.lagging.is_empty() {
            let text = format!("{name}: not in step: {}", listed(&stream.lagging, 6));
            found.push(finding(
                CHECK,
                Level::Warning,
                text,
                "check these servers: until they are in step, losing another one stops the stream",
            ));
        }
        found
    }

    fn of_storage(&self) -> Vec<Finding> {
        const CHECK: &str = "storage";
        if self.account.is_err() {
            // Nothing of it is known.
            return Vec::new();
        }
        let mut found = Vec::new();
        for stream in self.found() {
            // The event log drops its oldest events, as it should.
            let fill = stream.fill();
            if fill < NEARLY || stream.name.ends_with("_EVENTS") {
                continue;
            }
            let (level, remedy) = match stream.name.as_str() {
                name if name.ends_with("_DLQ") => (
                    Level::Warning,
                    "replay or discard dead letters, or raise storage.dlq_max_bytes: the oldest are dropped when it is full",
                ),
                name if name.contains("_JOBS_") => (
                    Level::Warning,
                    "more nodes or workers, or raise storage.jobs_max_messages and jobs_max_bytes: a full lane refuses jobs",
                ),
                name if name.ends_with("_runs") => (
                    Level::Warning,
                    "raise storage.runs_max_records or shorten completed_max_age: a full bucket stops all work",
                ),
                _ => (Level::Warning, "see Storage in docs/operations.md"),
            };
            let level = if fill >= FULL { Level::Failure } else { level };
            let percent = (fill * 100.0).round();
            found.push(finding(CHECK, level, format!("{} is {percent} % full", stream.name), remedy));
        }
        if let Ok(account) = &self.account {
            found.extend(room("the account", account.limits.max_storage, account.storage, account.reserved_storage));
        }
        if let Some(Ok(monitored)) = &self.monitored {
            let (stored, reserved) = (monitored.storage, monitored.reserved_storage);
            found.extend(room("the server", monitored.config.max_storage, stored, reserved));
        }
        if found.is_empty() {
            found.push(fine(CHECK, "no stream is nearly full"));
        }
        found
    }

    fn of_clocks(&self) -> Vec<Finding> {
        const CHECK: &str = "clocks";
        let here = self.user.as_ref().ok().and_then(|(_, skew)| *skew);
        let here = here.map(|skew| ("this machine".to_owned(), Skew { ahead_ms: -skew.ahead_ms, ..skew }));
        let all: Vec<(String, Skew)> =
            here.into_iter().chain(self.clocks.iter().map(|(node, skew)| (format!("node {node}"), *skew))).collect();
        let judged = all.iter().filter_map(|(whose, skew)| {
            let level = match skew.wrong() {
                Wrong::FarOff => Level::Failure,
                Wrong::Off => Level::Warning,
                Wrong::No => return None,
            };
            let by = took(skew.ahead_ms.unsigned_abs());
            let side = if skew.ahead_ms > 0 { "ahead of" } else { "behind" };
            let text = format!("the clock of {whose} is {by} {side} the server's");
            Some(finding(
                CHECK,
                level,
                text,
                "let the clocks of nodes and servers be set by NTP: jobs go by the server's, and a node that is far off is not ready",
            ))
        });
        let judged: Vec<Finding> = judged.collect();
        match (judged.is_empty(), all.is_empty()) {
            (true, true) => vec![finding(CHECK, Level::Note, "no clock could be compared with the server's", "")],
            (true, false) => {
                vec![fine(CHECK, format!("{} compared with the server's, all within a second or two", all.len()))]
            }
            (false, _) => judged,
        }
    }
}

/// How much room is left below a bound on what is stored.
fn room(whose: &str, bound: i64, stored: u64, reserved: u64) -> Option<Finding> {
    let bound = u64::try_from(bound).ok().filter(|bound| *bound > 0)?;
    let percent = |part: u64| (part as f64 / bound as f64 * 100.0).round();
    let gib = |bytes: u64| format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30));
    if stored as f64 >= bound as f64 * NEARLY {
        let text = format!("{whose} stores {} % of its {}", percent(stored), gib(bound));
        return Some(finding(
            "storage",
            Level::Warning,
            text,
            "raise max_file_store or the account's limit: beyond it every publish is refused",
        ));
    }
    if reserved as f64 >= bound as f64 * NEARLY {
        let text = format!("{whose} has reserved {} % of its {}", percent(reserved), gib(bound));
        return Some(finding(
            "storage",
            Level::Note,
            text,
            "a new queue reserves ten times storage.jobs_max_bytes: raise the limit before",
        ));
    }
    None
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
