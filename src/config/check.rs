//! Turns the written values into the settings of the inner crates, and checks the rules that need more than one
//! setting.
//!
//! `raw` has already reported every value that cannot be read; here its default replaces it, so that the other mistakes
//! are found all the same.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use longshore_actors::{Handlers, PressureSettings, Settings};
use longshore_backbone::Storage;
use longshore_domain::admission::Admission;
use longshore_domain::backoff::{Backoff, Jitter};
use longshore_domain::breaker::BreakerPolicy;
use longshore_domain::concurrency::OnBusy;
use longshore_domain::key::ReleaseOn;
use longshore_domain::limit::{MIN_WINDOW, RateLimit, Scope, Window};
use longshore_domain::name::there_are;
use longshore_domain::policy::{KeyPolicy, Policies, QueuePolicy, TenantPolicy, TypePolicy};
use longshore_domain::{DurationText, JobType, Queue, SmolStr, Tenant};

use crate::audit_files::{AuditFiles, EventFiles};

use super::entries::limits::RATE_LIMIT;
use super::entries::{
    ADMISSION, AUDIT, BACKOFF, BACKOFF_PRESET, BREAKER, FAULTS, IDEMPOTENCY, NAMESPACE, NODE, PRESSURE, QUEUE, STORAGE,
    TENANT, TYPE,
};
use super::kind::{JitterForm, ReleasingEnd, Spread};
use super::problem::{Origin, Problem};
use super::raw::{Content, Tree};
use super::schemas::Compiled;
use super::section::Section;
use super::{handler_tables, outlets, schedules, webhooks};

/// Beyond waiting, every run of a key that was let in is looked at for every job that comes, so there is a bound on
/// them.
const MAX_IN_LINE: u32 = 100;

/// If nothing is set, the longest cool-down of a breaker is so many times the first.
const MAX_TIMES: u32 = 10;

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
    let (node, http, audit) = (root.table("node"), root.table("http"), root.table("audit"));
    checker.problems.extend(outlets::incomplete_jwt(&http));
    checker.problems.extend(outlets::open(&http).into_iter().chain(outlets::wrong_tls(&http)));
    let schedules = schedules::declared(&root, &policies, &mut checker.problems);
    let settings = Settings {
        name: node.get(&NODE.name).map_or_else(name, |name| name.0),
        shutdown_grace: node.get(&NODE.shutdown_grace),
        policies,
        storage: checker.storage(&root),
        schedules,
        pressure: pressure(&root.table("pressure")),
        traces: None,
        log: None,
        audit_file: outlets::files(&audit, &AUDIT.file, AuditFiles::new).map(|files| Arc::new(files) as _),
        event_file: outlets::files(&audit, &AUDIT.events_file, EventFiles::new).map(|files| Arc::new(files) as _),
        in_force: Arc::default(),
        webhooks: webhooks::settings(&root, &mut checker.problems),
    };
    (settings, checker.handlers, checker.problems)
}

/// One sentence for each setting whose effect is hardly wanted.
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
        let queue = |(name, section): (&str, Section<'_>)| Some((Queue::parse(name).ok()?, QUEUE.read(&section)));
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
        let shared = root.named("limits", None);
        let limits: BTreeMap<SmolStr, RateLimit> =
            shared.iter().map(|(name, section)| (SmolStr::new(name), self.limit(section))).collect();
        self.limits_exist(root, &limits);
        let mut tenants = BTreeMap::new();
        for (name, section) in root.named("tenants", None) {
            let policy = TenantPolicy { rate_limit: self.rate_limit(&section), ..TENANT.read(&section) };
            if let Ok(tenant) = Tenant::parse(name) {
                tenants.insert(tenant, policy);
            }
        }
        Policies {
            queues,
            gateway: root.table("node").get(&NODE.gateway),
            types,
            default_type,
            retries: std::mem::take(&mut self.presets),
            limits,
            limits_set_in: limits_set_in(root, defaults.tree),
            tenants,
            keys: key_policy(&root.table("idempotency")),
            admission: admission(&root.table("admission")),
            faults_allowed: root.table("faults").get(&FAULTS.allowed),
        }
    }

    fn type_policy(&mut self, section: &Section<'_>) -> TypePolicy {
        self.times(section);
        self.busy_keys(section);
        TypePolicy {
            handler: self.handler(section),
            never_served_grace: self.never_served_grace(section),
            backoff: self.backoff_or_preset(section),
            rate_limit: self.rate_limit(section),
            limit: section.get(&TYPE.limit).map(|name| name.0.into()),
            payload_max: section.get(&TYPE.payload_max).map(|size| size.0),
            schemas: self.compiled.schemas(section).unwrap_or_else(|problem| {
                self.problems.push(problem);
                None
            }),
            search: section.get(&TYPE.search).0,
            breaker: self.breaker(section),
            ..TYPE.read(section)
        }
    }

    fn busy_keys(&mut self, section: &Section<'_>) {
        let (on_busy, most) = (section.get(&TYPE.on_busy), section.get(&TYPE.key_concurrency));
        if on_busy != OnBusy::Wait && most > MAX_IN_LINE {
            let reason =
                format!("{most} is too many beside on_busy, for which each of them is looked at; 1 to {MAX_IN_LINE}");
            self.problems.push(section.problem(TYPE.key_concurrency.name, reason));
        }
        if section.get(&TYPE.ordered) {
            if most != 1 {
                let reason = format!("{most} at once have no order; 1, or take ordered away");
                self.problems.push(section.problem(TYPE.key_concurrency.name, reason));
            }
            if on_busy != OnBusy::Wait {
                let reason =
                    "drops or cancels jobs, which then have no order; \"wait\", or take ordered away".to_owned();
                self.problems.push(section.problem(TYPE.on_busy.name, reason));
            }
        }
    }

    /// Checks the times of an attempt against each other.
    fn times(&mut self, section: &Section<'_>) {
        let longer = |longer, than: &str, other| {
            format!("{} is longer than {than}, {}", DurationText(longer), DurationText(other))
        };
        let (timeout, most) = (section.get(&TYPE.timeout), section.get(&TYPE.timeout_max));
        // If no limit was written, the longest allowed one applies.
        let written = section.node(TYPE.timeout.name).is_some();
        if let Some(most) = most.filter(|most| written && timeout > *most) {
            self.problems.push(section.problem(TYPE.timeout.name, longer(timeout, "timeout_max", most)));
        }
        let timeout = timeout.min(most.unwrap_or(Duration::MAX));
        if let Some(heartbeat) = section.get(&TYPE.heartbeat).filter(|heartbeat| *heartbeat > timeout) {
            let reason = longer(heartbeat, "timeout", timeout) + ": it would never be missed";
            self.problems.push(section.problem(TYPE.heartbeat.name, reason));
        }
    }

    /// How long jobs of a type that was never served are tried: never for less than jobs of one whose handlers went
    /// away.
    fn never_served_grace(&mut self, section: &Section<'_>) -> Option<Duration> {
        let (grace, least) = (section.get(&TYPE.never_served_grace).0?, section.get(&TYPE.no_handler_grace));
        // A type that only waits longer than others is not to say that twice: what [defaults] says of the rest gives
        // way.
        let is_own = section.origin(TYPE.never_served_grace.name).is_some_and(|(own, _)| own);
        if is_own && grace < least {
            let reason = format!("{} is shorter than no_handler_grace, {}", DurationText(grace), DurationText(least));
            self.problems.push(section.problem(TYPE.never_served_grace.name, reason));
        }
        Some(grace.max(least))
    }

    fn rate_limit(&mut self, section: &Section<'_>) -> Option<RateLimit> {
        let table = section.table("rate_limit");
        table.tree?;
        Some(self.limit(&table))
    }

    fn limit(&mut self, section: &Section<'_>) -> RateLimit {
        let (rate, window) = (section.get(&RATE_LIMIT.rate), section.get(&RATE_LIMIT.window));
        let burst = section.get(&RATE_LIMIT.burst);
        if burst.is_some() && window != Window::Bucket {
            let reason = "has no meaning in a window, which allows rate at once; take it away".to_owned();
            self.problems.push(section.problem(RATE_LIMIT.burst.name, reason));
        }
        let per = section.get(&RATE_LIMIT.per);
        if window != Window::Bucket && per < MIN_WINDOW {
            let reason =
                format!("{} is too short for a window; {} or more", DurationText(per), DurationText(MIN_WINDOW));
            self.problems.push(section.problem(RATE_LIMIT.per.name, reason));
        }
        RateLimit { rate, per, burst: burst.unwrap_or(rate), window }
    }

    /// Checks that each type names a limit that there is.
    fn limits_exist(&mut self, root: &Section<'_>, limits: &BTreeMap<SmolStr, RateLimit>) {
        let mut sections: Vec<Section<'_>> =
            root.named("types", None).into_iter().map(|(_, section)| section).collect();
        sections.push(root.table("defaults"));
        for section in sections {
            let Some(name) = section.get(&TYPE.limit).filter(|name| !limits.contains_key(name.0.as_str())) else {
                continue;
            };
            let known = there_are(limits.keys().map(SmolStr::as_str));
            let reason = format!("{:?} is not a limit of [limits]; {known}", name.0);
            self.problems.push(section.problem(TYPE.limit.name, reason));
        }
    }

    fn handler(&mut self, section: &Section<'_>) -> Option<String> {
        let name = section.get(&TYPE.handler)?.0;
        if name != "remote" && !self.known.contains(&name.as_str()) {
            let has = self.known.join(", ");
            let reason = format!("{name:?} is not a handler of this program; there are: remote, {has}");
            self.problems.push(section.problem(TYPE.handler.name, reason));
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
        let section = section.table("breaker");
        section.tree?;
        let cool_down = section.get(&BREAKER.cool_down);
        let max_cool_down = section.get(&BREAKER.max_cool_down);
        if let Some(most) = max_cool_down.filter(|most| *most < cool_down) {
            let reason = format!("{} is shorter than cool_down, {}", DurationText(most), DurationText(cool_down));
            self.problems.push(section.problem(BREAKER.max_cool_down.name, reason));
        }
        let max_cool_down = max_cool_down.unwrap_or(cool_down.saturating_mul(MAX_TIMES));
        Some(BreakerPolicy { max_cool_down, ..BREAKER.read(&section) })
    }

    fn backoff_or_preset(&mut self, section: &Section<'_>) -> Backoff {
        let name = BACKOFF_PRESET.name;
        let Some(Content::Value(_)) = section.node(name).map(|node| &node.content) else {
            let table = section.table(name);
            return self.backoff(&table);
        };
        let preset = section.get(&BACKOFF_PRESET).0;
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
        let delays = BACKOFF.delays.name;
        if written(delays) {
            let others = section.tree.into_iter().flat_map(BTreeMap::keys).any(|name| name != delays);
            let list = section.get(&BACKOFF.delays);
            if others {
                let reason = "stands alone: it takes the place of base, factor, max, jitter and spread".to_owned();
                self.problems.push(section.problem(delays, reason));
            } else if list.is_empty() {
                self.problems.push(section.problem(delays, "needs one delay at least".to_owned()));
            }
            return Backoff::Delays(list);
        }
        let (base, max) = (section.get(&BACKOFF.base), section.get(&BACKOFF.max));
        if base > max {
            let reason = format!("{} is longer than max, {}", DurationText(base), DurationText(max));
            let name = if written("base") { "base" } else { "max" };
            self.problems.push(section.problem(name, reason));
        }
        let jitter = jitter(section.get(&BACKOFF.jitter), section.get(&BACKOFF.spread));
        let jitter = jitter.unwrap_or_else(|reason| {
            let name = if written("spread") { "spread" } else { "jitter" };
            self.problems.push(section.problem(name, reason));
            Jitter::None
        });
        Backoff::Exponential { base, factor: section.get(&BACKOFF.factor), max, jitter }
    }

    fn storage(&mut self, root: &Section<'_>) -> Storage {
        let section = root.table("storage");
        let node = root.table("node");
        let namespace = root.get(&NAMESPACE).0;
        let reply_prefix = node.get(&NODE.reply_prefix).0;
        if let Err(reason) = check_reply_prefix(&reply_prefix, &namespace) {
            self.problems.push(node.problem(NODE.reply_prefix.name, reason));
        }
        let replicas = section.get(&STORAGE.replicas);
        if replicas.is_multiple_of(2) {
            let reason = format!(
                "{replicas} is even: of {replicas} servers, more than half must be up, as of {} already; write 1, 3 or 5",
                replicas + 1
            );
            self.problems.push(section.problem(STORAGE.replicas.name, reason));
        }
        let audit = root.table("audit");
        Storage {
            namespace,
            audit_max_age: audit.get(&AUDIT.max_age),
            audit_max_bytes: audit.get(&AUDIT.max_bytes).0,
            idempotency_window: root.table("idempotency").get(&IDEMPOTENCY.window),
            lease: node.get(&NODE.lease),
            reply_prefix,
            ..STORAGE.read(&section)
        }
    }
}

/// How the node watches for want of processor and memory; `None`: it does not.
fn pressure(section: &Section<'_>) -> Option<PressureSettings> {
    let settings = || PressureSettings { root: section.get(&PRESSURE.root).0.into(), limits: PRESSURE.read(section) };
    section.get(&PRESSURE.watch).then(settings)
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
    let (types, tenants) = (section.get(&ADMISSION.types), section.get(&ADMISSION.tenants));
    let tenants: BTreeSet<Tenant> = tenants.iter().filter_map(|name| Tenant::parse(&name.0).ok()).collect();
    let types: BTreeSet<JobType> = types.into_iter().collect();
    Admission { types: Some(types).filter(|set| !set.is_empty()), tenants: Some(tenants).filter(|set| !set.is_empty()) }
}

fn key_policy(section: &Section<'_>) -> KeyPolicy {
    let ends = section.get(&IDEMPOTENCY.release_on);
    let release_on = ReleaseOn {
        dead: ends.contains(&ReleasingEnd::Dead),
        cancelled: ends.contains(&ReleasingEnd::Cancelled),
        expired: ends.contains(&ReleasingEnd::Expired),
    };
    KeyPolicy { release_on, on_mismatch: section.get(&IDEMPOTENCY.on_mismatch) }
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
