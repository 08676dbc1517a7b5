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

pub(super) fn no_connection(error: &str) -> Finding {
    let remedy = match error {
        error if error.contains("too old") => "run nats-server 2.14.5 or newer",
        _ => "start the server, or name it and its credentials: NATS_URL, NATS_CREDS, NATS_CONTEXT",
    };
    Finding { check: "server", level: Level::Failure, text: error.to_owned(), remedy: Some(remedy.to_owned()) }
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
                let remedy = "start the server with -js, let the account use JetStream, and let this user ask for it ($JS.API.INFO)";
                check.failure(format!("JetStream is not available: {error}"), remedy);
                return check.found;
            }
        };
        let missing = self.missing().count();
        let limits = &account.limits;
        let more = |bound: i64, there: i64, missing: usize| {
            bound > 0 && there.saturating_add(i64::try_from(missing).unwrap_or(i64::MAX)) > bound
        };
        if more(limits.max_streams, account.streams, missing) {
            let text = format!("the account may have {} streams: {missing} more are needed", limits.max_streams);
            check.failure(text, "raise the account's max_streams: ten for each queue, and twelve");
        }
        if more(limits.max_consumers, account.consumers, missing) {
            let text =
                format!("the account may have {} consumers, and has {}", limits.max_consumers, account.consumers);
            check.failure(text, "raise the account's max_consumers: ten for each queue, and one");
        }
        check.or_fine(format!("{} streams, {} consumers", account.streams, account.consumers))
    }

    fn missing(&self) -> impl Iterator<Item = &str> {
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
        for stream in self.found() {
            self.look_at(stream, &mut check);
        }
        check.or_fine(format!("{} of {} in shape", streams.len(), streams.len()))
    }

    fn look_at(&self, stream: &FoundStream, check: &mut Check) {
        let name = &stream.name;
        let shown =
            |Difference { setting, found, wanted }: &Difference| format!("{setting} is {found}, wanted {wanted}");
        let all = |differences: &[Difference]| differences.iter().map(shown).collect::<Vec<_>>().join("; ");
        match &stream.change {
            StreamChange::Impossible(difference) => check.failure(
                format!("{name}: {}; it cannot be changed in place", shown(difference)),
                "another program made it: choose another namespace, or move its messages away and delete it",
            ),
            // Without a configuration only the defaults are known.
            StreamChange::Update { changed, .. } if self.has_settings => check.warning(
                format!("{name}: {}", all(changed)),
                "restart a node with this configuration: at its start it changes the stream",
            ),
            StreamChange::None { kept } if self.has_settings && !kept.is_empty() => check.note(
                format!("{name} holds more: {}", all(kept)),
                "start a node with storage.allow_shrink = true, if less is meant",
            ),
            StreamChange::Update { .. } | StreamChange::None { .. } => {}
        }
        if !stream.has_consumer {
            let text = format!("{name}: its consumer is missing, so no job is delivered");
            check.failure(text, "restart a node: it makes the consumer anew; find the client that deleted it");
        }
        if !stream.lagging.is_empty() {
            let text = format!("{name}: not in step: {}", listed(&stream.lagging, 6));
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
        room(&mut check, "the account", account.limits.max_storage, account.storage, account.reserved_storage);
        if let Some(Ok(monitored)) = &self.monitored {
            let (stored, reserved) = (monitored.storage, monitored.reserved_storage);
            room(&mut check, "the server", monitored.config.max_storage, stored, reserved);
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

/// Whether much room is left below a bound on what is stored.
fn room(check: &mut Check, whose: &str, bound: i64, stored: u64, reserved: u64) {
    let Some(bound) = u64::try_from(bound).ok().filter(|bound| *bound > 0) else { return };
    let percent = |part: u64| (part as f64 / bound as f64 * 100.0).round();
    let gib = |bytes: u64| format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30));
    if stored as f64 >= bound as f64 * NEARLY {
        let text = format!("{whose} stores {} % of its {}", percent(stored), gib(bound));
        check.warning(text, "raise max_file_store or the account's limit: beyond it every publish is refused");
    } else if reserved as f64 >= bound as f64 * NEARLY {
        let text = format!("{whose} has reserved {} % of its {}", percent(reserved), gib(bound));
        check.note(text, "a new queue reserves ten times storage.jobs_max_bytes: raise the limit before");
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
