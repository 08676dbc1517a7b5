//! Turns the written values into the settings of the inner crates, and checks the rules that need more than one
//! setting.
//!
//! `raw` has already reported every value that cannot be read; here its default replaces it, so that the other mistakes
//! are found all the same.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use longshore_actors::{Handlers, Settings};
use longshore_backbone::Storage;
use longshore_domain::admission::Admission;
use longshore_domain::backoff::{Backoff, Jitter};
use longshore_domain::breaker::BreakerPolicy;
use longshore_domain::key::ReleaseOn;
use longshore_domain::limit::{MIN_WINDOW, RateLimit, Scope, Window};
use longshore_domain::name::there_are;
use longshore_domain::policy::{KeyPolicy, Policies, QueuePolicy, TenantPolicy, TypePolicy};
use longshore_domain::{DurationText, JobType, Queue, SmolStr, Tenant};

use super::concurrency_entries as concurrency;
use super::{handler_tables, outlets, pressure, webhooks};

use super::entries::{self as entry, audit as audit_entry, breaker, fairness};
use super::kind::{JitterForm, ReleasingEnd, Spread};
use super::limit_entries as limit_entry;
use super::problem::{Origin, Problem};
use super::raw::{Content, Tree};
use super::schedules;
use super::schemas::Compiled;
use super::section::Section;

/// The share by which delays are spread if nothing is set.
const SHARE: f64 = 0.25;

/// Turns `tree` into settings; `handlers` are the handlers inside the node, `name` makes a name for the node. Handlers
/// with settings of a type are added.
pub(crate) fn check(
    tree: &Tree,
    handlers: &Handlers,
    name: impl FnOnce() -> String,
) -> (Settings, Handlers, Vec<Problem>) {
    let mut known: Vec<&str> = handlers.names().chain(handler_tables::DECLARED).collect();
    known.sort_unstable();
    known.dedup();
    let mut checker = Checker {
        known: &known,
        handlers: handlers.clone(),
        presets: BTreeMap::new(),
        compiled: Compiled::default(),
        problems: Vec::new(),
    };
    let root = Section::root(tree);
    checker.problems.extend(handler_tables::add_email(&mut checker.handlers, &root));
    let policies = checker.policies(&root);
    checker.problems.extend(outlets::incomplete_jwt(tree));
    checker.problems.extend(outlets::open(tree).into_iter().chain(outlets::incomplete_tls(tree)));
    let node = root.table("node");
    let settings = Settings {
        name: node.get(&entry::NODE_NAME).map_or_else(name, |name| name.0),
        shutdown_grace: node.get(&entry::SHUTDOWN_GRACE_ENTRY),
        policies,
        storage: checker.storage(&root),
        schedules: schedules::declared(&root, &mut checker.problems),
        pressure: pressure::of(tree),
        traces: None,
        log: None,
        audit_file: outlets::audit_files(tree).map(|files| Arc::new(files) as _),
        event_file: outlets::event_files(tree).map(|files| Arc::new(files) as _),
        in_force: Arc::default(),
        webhooks: webhooks::settings(&root, &mut checker.problems),
    };
    (settings, checker.handlers, checker.problems)
}

/// Settings whose effect is hardly wanted. One sentence each.
pub(crate) fn warnings(settings: &Settings) -> Vec<String> {
    let mut warnings = Vec::new();
    let storage = &settings.storage;
    if storage.completed_max_age < 2 * storage.lease {
        warnings.push(format!(
            "storage.completed_max_age ({}) is shorter than two leases ({}): a job that completed may run again after a \
             crash",
            DurationText(storage.completed_max_age),
            DurationText(2 * storage.lease),
        ));
    }
    warnings
}

struct Checker<'a> {
    /// The names of the handlers that may be written.
    known: &'a [&'a str],
    handlers: Handlers,
    presets: BTreeMap<String, Backoff>,
    compiled: Compiled,
    problems: Vec<Problem>,
}

impl Checker<'_> {
    fn policies(&mut self, root: &Section<'_>) -> Policies {
        for (name, preset) in root.named("retries", None) {
            let backoff = self.backoff(&preset);
            self.presets.insert(name.to_owned(), backoff);
        }
        let queue = |(name, section): (&str, Section<'_>)| Some((Queue::parse(name).ok()?, queue_policy(&section)));
        let mut queues: BTreeMap<_, _> = root.named("queues", None).into_iter().filter_map(queue).collect();
        if queues.is_empty() {
            queues.insert(Queue::main(), QueuePolicy::default());
        }
        let defaults = root.table("defaults");
        let default_type = self.type_policy(&defaults);
        let mut types = BTreeMap::new();
        for (name, section) in root.named("types", defaults.tree) {
            self.problems.extend(handler_tables::without_handler(&section));
            let policy = self.type_policy(&section);
            if let Ok(job_type) = JobType::parse(name) {
                types.insert(job_type, policy);
            }
        }
        webhooks::policy(root, &default_type, &mut types);
        let keys = key_policy(&root.table("idempotency"));
        let admission = admission(&root.table("admission"));
        let shared = root.named("limits", None);
        let limits: BTreeMap<SmolStr, RateLimit> =
            shared.iter().map(|(name, section)| (SmolStr::new(name), self.limit(section))).collect();
        self.limits_exist(root, &limits);
        let limits_set_in = limits_set_in(root, defaults.tree);
        let mut tenants = BTreeMap::new();
        for (name, section) in root.named("tenants", None) {
            let max_waiting = section.get(&entry::TENANT_MAX_WAITING);
            let weight = section.get(&fairness::TENANT_WEIGHT);
            let policy = TenantPolicy { rate_limit: self.rate_limit(&section), max_waiting, weight };
            if let Ok(tenant) = Tenant::parse(name) {
                tenants.insert(tenant, policy);
            }
        }
        let retries = std::mem::take(&mut self.presets);
        let gateway = root.table("node").get(&entry::GATEWAY);
        let faults_allowed = root.table("faults").get(&entry::faults::ALLOWED);
        Policies {
            queues,
            gateway,
            types,
            default_type,
            retries,
            limits,
            limits_set_in,
            tenants,
            keys,
            admission,
            faults_allowed,
        }
    }

    fn type_policy(&mut self, section: &Section<'_>) -> TypePolicy {
        self.times(section);
        concurrency::check(section, &mut self.problems);
        TypePolicy {
            handler: self.handler(section),
            max_attempts: section.get(&entry::MAX_ATTEMPTS),
            timeout: section.get(&entry::TIMEOUT),
            heartbeat: section.get(&entry::HEARTBEAT),
            slots: section.get(&concurrency::SLOTS),
            announcements: section.get(&concurrency::ANNOUNCEMENTS),
            no_handler_grace: section.get(&entry::NO_HANDLER_GRACE),
            never_served_grace: self.never_served_grace(section),
            backoff: self.backoff_or_preset(section),
            history: section.get(&entry::HISTORY),
            timeout_max: section.get(&entry::TIMEOUT_MAX),
            max_snoozes: section.get(&entry::MAX_SNOOZES),
            keep: section.get(&entry::KEEP),
            rate_limit: self.rate_limit(section),
            limit: section.get(&limit_entry::LIMIT).map(|name| name.0.into()),
            payload_max: section.get(&entry::PAYLOAD_MAX).map(|size| size.0),
            schemas: self.compiled.schemas(section).unwrap_or_else(|problem| {
                self.problems.push(problem);
                None
            }),
            search: section.get(&entry::search::SEARCH).0,
            redact: section.get(&entry::search::REDACT),
            retryable_codes: section.get(&entry::RETRYABLE_CODES),
            permanent_codes: section.get(&entry::PERMANENT_CODES),
            breaker: self.breaker(section),
            concurrency: section.get(&concurrency::TYPE_CONCURRENCY),
            key_concurrency: section.get(&concurrency::KEY_CONCURRENCY),
            concurrency_hold: section.get(&concurrency::CONCURRENCY_HOLD),
            on_busy: section.get(&concurrency::ON_BUSY),
            ordered: section.get(&concurrency::ORDERED),
            weight: section.get(&fairness::TYPE_WEIGHT),
        }
    }

    /// Checks the times of an attempt against each other.
    fn times(&mut self, section: &Section<'_>) {
        let longer = |longer, than: &str, other| {
            format!("{} is longer than {than}, {}", DurationText(longer), DurationText(other))
        };
        let (timeout, most) = (section.get(&entry::TIMEOUT), section.get(&entry::TIMEOUT_MAX));
        // If no limit was written, the longest allowed one applies.
        let written = section.node(entry::TIMEOUT.name).is_some();
        if let Some(most) = most.filter(|most| written && timeout > *most) {
            self.problems.push(section.problem(entry::TIMEOUT.name, longer(timeout, "timeout_max", most)));
        }
        let timeout = timeout.min(most.unwrap_or(Duration::MAX));
        if let Some(heartbeat) = section.get(&entry::HEARTBEAT).filter(|heartbeat| *heartbeat > timeout) {
            let reason = longer(heartbeat, "timeout", timeout) + ": it would never be missed";
            self.problems.push(section.problem(entry::HEARTBEAT.name, reason));
        }
    }

    /// How long jobs of a type that was never served are tried: never for less than jobs of one whose handlers went
    /// away.
    fn never_served_grace(&mut self, section: &Section<'_>) -> Option<Duration> {
        let (grace, least) = (section.get(&entry::NEVER_SERVED_GRACE).0?, section.get(&entry::NO_HANDLER_GRACE));
        // A type that only waits longer than others is not to say that twice: what [defaults] says of the rest gives
        // way.
        let is_own = section.origin(entry::NEVER_SERVED_GRACE.name).is_some_and(|(own, _)| own);
        if is_own && grace < least {
            let reason = format!("{} is shorter than no_handler_grace, {}", DurationText(grace), DurationText(least));
            self.problems.push(section.problem(entry::NEVER_SERVED_GRACE.name, reason));
        }
        Some(grace.max(least))
    }

    /// The rate limit of a section, if it has one.
    fn rate_limit(&mut self, section: &Section<'_>) -> Option<RateLimit> {
        let table = section.table("rate_limit");
        table.tree?;
        Some(self.limit(&table))
    }

    fn limit(&mut self, section: &Section<'_>) -> RateLimit {
        let (rate, window) = (section.get(&limit_entry::RATE), section.get(&limit_entry::RATE_WINDOW));
        let burst = section.get(&limit_entry::RATE_BURST);
        if burst.is_some() && window != Window::Bucket {
            let reason = "has no meaning in a window, which allows rate at once; take it away".to_owned();
            self.problems.push(section.problem(limit_entry::RATE_BURST.name, reason));
        }
        let per = section.get(&limit_entry::RATE_PER);
        if window != Window::Bucket && per < MIN_WINDOW {
            let reason =
                format!("{} is too short for a window; {} or more", DurationText(per), DurationText(MIN_WINDOW));
            self.problems.push(section.problem(limit_entry::RATE_PER.name, reason));
        }
        RateLimit { rate, per, burst: burst.unwrap_or(rate), window }
    }

    /// Checks that each type names a limit that there is.
    fn limits_exist(&mut self, root: &Section<'_>, limits: &BTreeMap<SmolStr, RateLimit>) {
        let mut sections: Vec<Section<'_>> =
            root.named("types", None).into_iter().map(|(_, section)| section).collect();
        sections.push(root.table("defaults"));
        for section in sections {
            let Some(name) = section.get(&limit_entry::LIMIT).filter(|name| !limits.contains_key(name.0.as_str()))
            else {
                continue;
            };
            let known = there_are(limits.keys().map(SmolStr::as_str));
            let reason = format!("{:?} is not a limit of [limits]; {known}", name.0);
            self.problems.push(section.problem(limit_entry::LIMIT.name, reason));
        }
    }

    fn handler(&mut self, section: &Section<'_>) -> Option<String> {
        let name = section.get(&entry::HANDLER)?.0;
        if name != "remote" && !self.known.contains(&name.as_str()) {
            let has = self.known.join(", ");
            let reason = format!("{name:?} is not a handler of this program; there are: remote, {has}");
            self.problems.push(section.problem(entry::HANDLER.name, reason));
        }
        match handler_tables::add(&mut self.handlers, &name, section) {
            None => Some(name),
            Some(Ok(own)) => Some(own),
            Some(Err(problem)) => {
                self.problems.push(problem);
                None
            }
        }
    }

    fn breaker(&mut self, section: &Section<'_>) -> Option<BreakerPolicy> {
        // A value is "off"; any other is reported already.
        let section = section.table(breaker::BREAKER_NAME);
        section.tree?;
        let cool_down = section.get(&breaker::COOL_DOWN);
        let max_cool_down = section.get(&breaker::MAX_COOL_DOWN);
        if let Some(most) = max_cool_down.filter(|most| *most < cool_down) {
            let reason = format!("{} is shorter than cool_down, {}", DurationText(most), DurationText(cool_down));
            self.problems.push(section.problem(breaker::MAX_COOL_DOWN.name, reason));
        }
        Some(BreakerPolicy {
            failures: section.get(&breaker::FAILURES),
            ratio: section.get(&breaker::RATIO),
            window: section.get(&breaker::WINDOW),
            min_calls: section.get(&breaker::MIN_CALLS),
            cool_down,
            max_cool_down: max_cool_down.unwrap_or(cool_down.saturating_mul(breaker::MAX_TIMES)),
            probes: section.get(&breaker::PROBES),
            count_permanent: section.get(&breaker::COUNT_PERMANENT),
            per_key: section.get(&breaker::PER_KEY),
        })
    }

    fn backoff_or_preset(&mut self, section: &Section<'_>) -> Backoff {
        let name = entry::BACKOFF_PRESET.name;
        let Some(Content::Value(_)) = section.node(name).map(|node| &node.content) else {
            let table = section.table(name);
            return self.backoff(&table);
        };
        let preset = section.get(&entry::BACKOFF_PRESET).0;
        if let Some(backoff) = self.presets.get(&preset) {
            return backoff.clone();
        }
        // The empty name stands for a value of the wrong kind, which `raw` has reported.
        if !preset.is_empty() {
            let known = there_are(self.presets.keys().map(String::as_str));
            self.problems.push(section.problem(name, format!("{preset:?} is not a preset of [retries]; {known}")));
        }
        Backoff::default()
    }

    fn backoff(&mut self, section: &Section<'_>) -> Backoff {
        let written = |name: &str| section.node(name).is_some();
        let delays = entry::BACKOFF_DELAYS.name;
        if written(delays) {
            let others = section.tree.into_iter().flat_map(BTreeMap::keys).any(|name| name != delays);
            let list = section.get(&entry::BACKOFF_DELAYS);
            if others {
                let reason = "stands alone: it takes the place of base, factor, max, jitter and spread".to_owned();
                self.problems.push(section.problem(delays, reason));
            } else if list.is_empty() {
                self.problems.push(section.problem(delays, "needs one delay at least".to_owned()));
            }
            return Backoff::Delays(list);
        }
        let (base, max) = (section.get(&entry::BACKOFF_BASE), section.get(&entry::BACKOFF_MAX));
        if base > max {
            let reason = format!("{} is longer than max, {}", DurationText(base), DurationText(max));
            let name = if written("base") { "base" } else { "max" };
            self.problems.push(section.problem(name, reason));
        }
        let jitter = jitter(section.get(&entry::BACKOFF_JITTER), section.get(&entry::BACKOFF_SPREAD));
        let jitter = jitter.unwrap_or_else(|reason| {
            let name = if written("spread") { "spread" } else { "jitter" };
            self.problems.push(section.problem(name, reason));
            Jitter::None
        });
        Backoff::Exponential { base, factor: section.get(&entry::BACKOFF_FACTOR), max, jitter }
    }

    fn storage(&mut self, root: &Section<'_>) -> Storage {
        let section = root.table("storage");
        let node = root.table("node");
        let namespace = root.get(&entry::NAMESPACE).0;
        let reply_prefix = node.get(&entry::REPLY_PREFIX).0;
        if let Err(reason) = check_reply_prefix(&reply_prefix, &namespace) {
            self.problems.push(node.problem(entry::REPLY_PREFIX.name, reason));
        }
        if let Err(reason) = check_namespace(&namespace) {
            self.problems.push(root.problem(entry::NAMESPACE.name, reason));
        }
        let replicas = section.get(&entry::REPLICAS);
        if replicas.is_multiple_of(2) {
            let reason = format!(
                "{replicas} is even: of {replicas} servers, more than half must be up, as of {} already; write 1, 3 or 5",
                replicas + 1
            );
            self.problems.push(section.problem(entry::REPLICAS.name, reason));
        }
        let audit = root.table("audit");
        Storage {
            namespace,
            replicas,
            allow_shrink: section.get(&entry::ALLOW_SHRINK),
            jobs_max_messages: section.get(&entry::JOBS_MAX_MESSAGES),
            jobs_max_bytes: section.get(&entry::JOBS_MAX_BYTES).0,
            events_max_age: section.get(&entry::EVENTS_MAX_AGE),
            events_max_bytes: section.get(&entry::EVENTS_MAX_BYTES).0,
            completed_max_age: section.get(&entry::COMPLETED_MAX_AGE),
            failed_max_age: section.get(&entry::FAILED_MAX_AGE),
            runs_max_records: section.get(&entry::RUNS_MAX_RECORDS),
            dlq_max_age: section.get(&entry::DLQ_MAX_AGE),
            dlq_max_bytes: section.get(&entry::DLQ_MAX_BYTES).0,
            concurrency_max_bytes: section.get(&entry::CONCURRENCY_MAX_BYTES).0,
            control_max_bytes: section.get(&entry::CONTROL_MAX_BYTES).0,
            audit_max_age: audit.get(&audit_entry::MAX_AGE),
            audit_max_bytes: audit.get(&audit_entry::MAX_BYTES).0,
            idempotency_window: root.table("idempotency").get(&entry::IDEMPOTENCY_WINDOW),
            lease: node.get(&entry::LEASE),
            reply_prefix,
        }
    }
}

/// Where each rate limit was written.
fn limits_set_in(root: &Section<'_>, defaults: Option<&Tree>) -> BTreeMap<Scope, String> {
    let mut places = BTreeMap::new();
    let mut note = |scope: Option<Scope>, origin: Option<&Origin>| {
        places.extend(scope.zip(origin.map(Origin::brief)));
    };
    for (name, section) in root.named("types", defaults) {
        let origin = section.origin("rate_limit").map(|(_, origin)| origin);
        note(JobType::parse(name).ok().map(Scope::Type), origin);
    }
    for (name, section) in root.named("tenants", None) {
        let origin = section.origin("rate_limit").map(|(_, origin)| origin);
        note(Tenant::parse(name).ok().map(Scope::Tenant), origin);
    }
    let names = root.table("limits");
    for (name, node) in names.tree.into_iter().flatten() {
        note(Some(Scope::Named(SmolStr::new(name))), Some(&node.origin));
    }
    places
}

fn admission(section: &Section<'_>) -> Admission {
    let (types, tenants) = (section.get(&entry::ADMISSION_TYPES), section.get(&entry::ADMISSION_TENANTS));
    let tenants: BTreeSet<Tenant> = tenants.iter().filter_map(|name| Tenant::parse(&name.0).ok()).collect();
    let types: BTreeSet<JobType> = types.into_iter().map(|name| name.0).collect();
    Admission { types: Some(types).filter(|set| !set.is_empty()), tenants: Some(tenants).filter(|set| !set.is_empty()) }
}

fn key_policy(section: &Section<'_>) -> KeyPolicy {
    let ends = section.get(&entry::IDEMPOTENCY_RELEASE_ON);
    let release_on = ReleaseOn {
        dead: ends.contains(&ReleasingEnd::Dead),
        cancelled: ends.contains(&ReleasingEnd::Cancelled),
        expired: ends.contains(&ReleasingEnd::Expired),
    };
    KeyPolicy { release_on, on_mismatch: section.get(&entry::IDEMPOTENCY_ON_MISMATCH) }
}

fn queue_policy(section: &Section<'_>) -> QueuePolicy {
    QueuePolicy {
        concurrency: section.get(&entry::QUEUE_CONCURRENCY),
        aging: section.get(&entry::QUEUE_AGING),
        max_waiting: section.get(&entry::QUEUE_MAX_WAITING),
        fair_by: section.get(&fairness::QUEUE_FAIR_BY),
    }
}

fn jitter(form: JitterForm, spread: Option<Spread>) -> Result<Jitter, String> {
    match (form, spread) {
        (JitterForm::Proportional, None) => Ok(Jitter::Proportional(SHARE)),
        (JitterForm::Proportional, Some(Spread::Share(share))) => Ok(Jitter::Proportional(share)),
        (JitterForm::Proportional, Some(Spread::Time(_))) => {
            Err("is a duration, but jitter is proportional; write a number from 0 to 1, or jitter = \"additive\""
                .into())
        }
        (JitterForm::Additive, Some(Spread::Time(most))) => Ok(Jitter::Additive(most)),
        (JitterForm::Additive, Some(Spread::Share(_))) => {
            Err("is a number, but jitter is additive; write a duration, or jitter = \"proportional\"".into())
        }
        (JitterForm::Additive, None) => Err("is additive, which needs spread, a duration".into()),
        (JitterForm::Full, None) => Ok(Jitter::Full),
        (JitterForm::None, None) => Ok(Jitter::None),
        (JitterForm::Full | JitterForm::None, Some(_)) => {
            Err("has no meaning where jitter is \"full\" or \"none\"; take it away".into())
        }
    }
}

/// Checks whether a namespace is valid. Stream names have it in capitals: two that differ in case would share streams.
///
/// # Errors
/// Says what is wrong with it.
pub fn check_namespace(namespace: &str) -> Result<(), String> {
    match namespace.chars().find(|c| !(c.is_ascii_lowercase() || c.is_ascii_digit() || *c == '-')) {
        Some(wrong) => Err(format!("{namespace:?} has {wrong:?}; allowed are a-z 0-9 -")),
        None => Ok(()),
    }
}

/// A node's answers must never go into the namespace, nor to subjects on which NATS itself listens.
fn check_reply_prefix(prefix: &str, namespace: &str) -> Result<(), String> {
    if prefix.contains(['*', '>', ' ', '\t', '\r', '\n']) {
        return Err(format!("{prefix:?} has a wildcard or a space, which no reply subject has"));
    }
    // A prefix that is the beginning of the forbidden word would allow that word, too.
    let opens = |word: &str| prefix.starts_with(word) || word.starts_with(prefix);
    if opens("$") || opens(&format!("{namespace}.")) {
        return Err(format!("{prefix:?} would let clients have answers written to $… or {namespace}.…"));
    }
    Ok(())
}
