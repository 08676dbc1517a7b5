//! Checked settings, as the rules see them. The edges read and check the settings that a person wrote; from here on a
//! policy cannot be wrong.

use std::collections::BTreeMap;
use std::time::Duration;

use smol_str::SmolStr;

use crate::admission::{Admission, Schemas};
use crate::backoff::Backoff;
use crate::breaker::BreakerPolicy;
use crate::concurrency::{Hold, OnBusy};
use crate::fairness::{FairBy, FairnessKey};
use crate::key::ReleaseOn;
use crate::limit::{RateLimit, Scope};
use crate::run::whole_millis;
use crate::search::{self, JsonPointer};
use crate::{Job, JobType, Queue, Run, Tenant, Timestamp};

/// How jobs of one type are treated.
#[derive(Debug, Clone, PartialEq)]
pub struct TypePolicy {
    /// What runs them: `remote`, or the name of a handler inside the node. `None`: the handler registered under the
    /// type's own name, else remote.
    pub handler: Option<String>,
    /// The maximum number of attempts in a round, 1 to 1,000.
    pub max_attempts: u32,
    /// Time limit of one attempt.
    pub timeout: Duration,
    /// A remote handler silent for longer than this loses its attempt; `None`: only the time limit ends it.
    pub heartbeat: Option<Duration>,
    /// How many jobs a node gives remote handlers at once if they announce no number themselves.
    pub slots: u32,
    /// Whether it counts what remote handlers announce of themselves.
    pub announcements: bool,
    /// How long a job waits for a remote handler before that counts as a failed attempt.
    pub no_handler_grace: Duration,
    /// How long a job of a type that no handler was ever online for is tried before its run is dead, at least
    /// `no_handler_grace`; `None`: as long as any other.
    pub never_served_grace: Option<Duration>,
    /// The delays between attempts.
    pub backoff: Backoff,
    /// How much is kept of runs that complete at the first attempt.
    pub history: History,
    /// The longest time limit of an attempt that a job may ask for; `None`: any.
    pub timeout_max: Option<Duration>,
    /// How often in a row a handler may snooze a job before that counts as a failed attempt.
    pub max_snoozes: u32,
    /// The largest payload that is taken, in bytes; `None`: what the server allows.
    pub payload_max: Option<u64>,
    /// What its payloads must look like; `None`: anything.
    pub schemas: Option<Schemas>,
    /// Where in its payloads the values are by which its runs are found, at most [`search::PLACES_MAX`].
    pub search: Vec<JsonPointer>,
    /// Whether the HTTP API hides its payloads and results from who does not ask to see them.
    pub redact: bool,
    /// How long the record of an ended run is kept, however it ended; `None`: as the storage settings say.
    pub keep: Option<Duration>,
    /// How many of its jobs may start; each key has a limit of its own.
    pub rate_limit: Option<RateLimit>,
    /// The name of a limit that it shares with other types.
    pub limit: Option<SmolStr>,
    /// A remote handler's error codes that allow another attempt, beside the usual ones.
    pub retryable_codes: Vec<u16>,
    /// A remote handler's error codes that no further attempt can mend, beside the usual ones.
    pub permanent_codes: Vec<u16>,
    /// Its circuit breakers; `None`: it has none.
    pub breaker: Option<BreakerPolicy>,
    /// How many attempts of the type run at once in the cluster, 1 or more; `None`: any number.
    pub concurrency: Option<u32>,
    /// How many attempts of jobs with one concurrency key run at once in the cluster, 1 or more.
    pub key_concurrency: u32,
    /// What becomes of a job whose concurrency key is busy.
    pub on_busy: OnBusy,
    /// For how long slots of its remote attempts are kept once their node is gone.
    pub concurrency_hold: Hold,
    /// Whether jobs of one concurrency key and lane start in their order, each only once those before it have ended
    /// ([`crate::concurrency::Order`]). Then `key_concurrency` is 1 and `on_busy` is to wait.
    pub ordered: bool,
    /// Its share of a queue that is fair by type, beside the weights of the other types that have jobs there; 1 to
    /// 1,000.
    pub weight: u32,
}

impl TypePolicy {
    /// Whether a rate limit applies to its jobs.
    pub fn has_limit(&self) -> bool {
        self.rate_limit.is_some() || self.limit.is_some()
    }

    /// How long one attempt of a job may take.
    pub fn time_limit(&self, job: &Job) -> Duration {
        let asked = job.options.as_ref().and_then(|options| options.timeout);
        asked.unwrap_or(self.timeout).min(self.timeout_max.unwrap_or(Duration::MAX))
    }

    /// Whether its concurrency keys have lines ([`crate::concurrency::Line`]).
    pub fn has_lines(&self) -> bool {
        self.on_busy != OnBusy::Wait
    }
}

impl Default for TypePolicy {
    fn default() -> Self {
        Self {
            handler: None,
            max_attempts: 12,
            timeout: Duration::from_secs(60),
            heartbeat: None,
            slots: 8,
            announcements: true,
            no_handler_grace: Duration::from_secs(60),
            never_served_grace: Some(Duration::from_secs(900)),
            backoff: Backoff::default(),
            history: History::All,
            timeout_max: None,
            max_snoozes: 1_000,
            payload_max: None,
            schemas: None,
            search: Vec::new(),
            redact: false,
            keep: None,
            rate_limit: None,
            limit: None,
            retryable_codes: Vec::new(),
            permanent_codes: Vec::new(),
            breaker: None,
            concurrency: None,
            key_concurrency: 1,
            on_busy: OnBusy::default(),
            concurrency_hold: Hold::default(),
            ordered: false,
            weight: 1,
        }
    }
}

crate::named! {
    /// How much is kept of runs that complete at the first attempt.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub enum History {
        /// Record and events of every run.
        #[default]
        All = "all",
        /// Neither record nor event log for runs that complete at the first attempt; live events as always.
        Failures = "failures",
    }
}

/// How a queue is served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueuePolicy {
    /// The maximum number of jobs that run at once on a node, 1 to 10,000.
    pub concurrency: usize,
    /// How much later a job of the next more urgent priority may come and still overtake; 0: strict priorities.
    pub aging: Duration,
    /// With so many waiting jobs, `submit` takes no more; `None`: any number.
    pub max_waiting: Option<u64>,
    /// Between whom its starts are shared out.
    pub fair_by: FairBy,
}

impl QueuePolicy {
    /// The most jobs of a queue that a node can run at once.
    pub const MAX_CONCURRENCY: usize = 10_000;
}

impl Default for QueuePolicy {
    fn default() -> Self {
        Self { concurrency: 64, aging: Duration::from_secs(30), max_waiting: None, fair_by: FairBy::default() }
    }
}

/// What holds for idempotency keys, beside what jobs ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct KeyPolicy {
    /// The ends that free a key before its window is over.
    pub release_on: ReleaseOn,
    /// What `submit` answers if type or payload are not those of the key's run.
    pub on_mismatch: OnMismatch,
}

crate::named! {
    /// What `submit` answers if a key comes again with another job.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub enum OnMismatch {
        /// An error: the client has used one key for two jobs.
        #[default]
        Reject = "reject",
        /// The run that has the key, as if the jobs were the same.
        Return = "return",
    }
}

/// All policies of a node.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Policies {
    /// The queues this node declares and serves.
    pub queues: BTreeMap<Queue, QueuePolicy>,
    /// Whether this node is a gateway, which declares queues and serves none.
    pub gateway: bool,
    /// Types with settings of their own.
    pub types: BTreeMap<JobType, TypePolicy>,
    /// The policy of all other types.
    pub default_type: TypePolicy,
    /// Named back-off presets, for the header `Longshore-Retry`.
    pub retries: BTreeMap<String, Backoff>,
    /// Limits that types share, by name.
    pub limits: BTreeMap<SmolStr, RateLimit>,
    /// Where the limits were written: a file and its line, or a variable. For people.
    pub limits_set_in: BTreeMap<Scope, String>,
    /// Tenants with settings of their own.
    pub tenants: BTreeMap<Tenant, TenantPolicy>,
    /// Idempotency keys.
    pub keys: KeyPolicy,
    /// Which jobs are taken.
    pub admission: Admission,
    /// Whether attempts may meet faults on purpose.
    pub faults_allowed: bool,
}

/// How jobs of one tenant are treated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TenantPolicy {
    /// How many jobs it may submit.
    pub rate_limit: Option<RateLimit>,
    /// With so many waiting jobs of it, `submit` takes no more; `None`: any number.
    pub max_waiting: Option<u64>,
    /// Its share of a queue that is fair by tenant, beside the weights of the other tenants that have jobs there; 1 to
    /// 1,000.
    pub weight: u32,
}

impl Default for TenantPolicy {
    fn default() -> Self {
        Self { rate_limit: None, max_waiting: None, weight: 1 }
    }
}

impl Policies {
    /// The policy of `job_type`.
    pub fn of(&self, job_type: &JobType) -> &TypePolicy {
        self.types.get(job_type).unwrap_or(&self.default_type)
    }

    /// The configured rate limit of a scope.
    pub fn limit_of(&self, scope: &Scope) -> Option<RateLimit> {
        match scope {
            Scope::Type(job_type) => self.of(job_type).rate_limit,
            Scope::Named(name) => self.limits.get(name).copied(),
            Scope::Tenant(tenant) => self.tenants.get(tenant).and_then(|policy| policy.rate_limit),
        }
    }

    /// The weight of a fairness key beside others.
    pub fn weight_of(&self, key: &FairnessKey) -> u32 {
        match key {
            FairnessKey::Tenant(tenant) => self.tenants.get(tenant).map_or(1, |policy| policy.weight),
            FairnessKey::Type(job_type) => self.of(job_type).weight,
        }
    }

    /// What a run of this type is found by, as its payload has it.
    pub fn searched(&self, job_type: &JobType, payload: &[u8]) -> Vec<String> {
        search::values(&self.of(job_type).search, payload)
    }

    /// Whether any type hides its payloads and results.
    pub fn redacts_any(&self) -> bool {
        self.default_type.redact || self.types.values().any(|policy| policy.redact)
    }

    /// Maximum number of attempts in a round of this job.
    pub fn max_attempts(&self, job: &Job) -> u32 {
        let asked = job.options.as_ref().and_then(|options| options.max_attempts);
        asked.unwrap_or(self.of(&job.job_type).max_attempts)
    }

    /// The run of a job that has no record yet, waiting since `enqueued_at`.
    pub fn new_run(&self, job: &Job, payload: &[u8], enqueued_at: Timestamp) -> Run {
        let mut run = Run::new(job, self.max_attempts(job), enqueued_at);
        run.search = self.searched(&job.job_type, payload);
        run.keep_ms = run.keep_ms.or_else(|| self.of(&job.job_type).keep.map(whole_millis));
        run
    }
}
