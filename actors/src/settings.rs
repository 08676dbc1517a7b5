//! A node's settings, already checked: actors never see a file, an environment variable or a terminal.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use longshore_backbone::Storage;
use longshore_backbone::wire::api::{InForce, PutRequest};
use longshore_domain::policy::Policies;
use longshore_domain::pressure::PressureLimits;
use longshore_domain::{Priority, Queue, Tenant};

use crate::handlers::handler::BoxFuture;
use crate::trace::SpanExporter;

/// All settings of one node.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The node's name, unique in the cluster: a token of its event subjects.
    pub name: String,
    /// How long running jobs may take to end after a drain began; the rest is released.
    pub shutdown_grace: Duration,
    /// Queues, types and presets.
    pub policies: Policies,
    /// What to store, where and for how long.
    pub storage: Storage,
    /// The recurring schedules that the configuration declares.
    pub schedules: DeclaredSchedules,
    /// How the node watches for want of processor and memory; `None`: it does not.
    pub pressure: Option<PressureSettings>,
    /// Where traces go; `None`: there are none, and nothing is done for them.
    pub traces: Option<Arc<dyn SpanExporter>>,
    /// The log, whose level operators may change; `None`: it stays as it is.
    pub log: Option<Arc<dyn LogControl>>,
    /// Files that the audit is written to as well.
    pub audit_file: Option<Arc<dyn AuditFile>>,
    /// Files that the event log is written to as well.
    pub event_file: Option<Arc<dyn EventFile>>,
    /// All settings as operators may see them, each with where it was set.
    pub in_force: Arc<[InForce]>,
    /// How webhooks are delivered; `None`: this node calls nobody.
    pub webhooks: Option<WebhookSettings>,
}

/// How a node watches whether its machine is short of processor or memory.
#[derive(Debug, Clone, PartialEq)]
pub struct PressureSettings {
    /// The folder that has `proc` and `sys`.
    pub root: PathBuf,
    /// From when on it is.
    pub limits: PressureLimits,
}

/// Files that the audit is written to as well.
pub trait AuditFile: std::fmt::Debug + Send + Sync + 'static {
    /// Opens the current file, which is made if there is none: so a node that cannot write it does not start.
    ///
    /// # Errors
    /// Why it cannot be written, with its path.
    fn open(&self) -> Result<(), String>;

    /// Appends a line, without its line break. May block for as long as the disk takes.
    ///
    /// # Errors
    /// Why the line is not in the file.
    fn append(&self, line: &str) -> Result<(), String>;
}

/// Files that the event log is written to as well, and how far they got. All may block for as long as the disk takes.
pub trait EventFile: std::fmt::Debug + Send + Sync + 'static {
    /// Opens the current file, which is made if there is none: so a node that cannot write it does not start.
    ///
    /// # Errors
    /// Why it cannot be written, or how far the files go cannot be read.
    fn open(&self) -> Result<(), String>;

    /// The sequence in the log up to which its events are in the files; 0: nothing is.
    ///
    /// # Errors
    /// Why that cannot be read.
    fn position(&self) -> Result<u64, String>;

    /// Appends lines, each with its line break, and then says that the files go up to `position`. If the process dies
    /// between the two, the lines are written again: none is lost.
    ///
    /// # Errors
    /// Why they may not be in the files.
    fn append(&self, lines: &[u8], position: u64) -> Result<(), String>;
}

/// The log of this process, as far as a node may change it.
pub trait LogControl: std::fmt::Debug + Send + Sync + 'static {
    /// Has the log take only lines of this level, or by this filter, from now on; returns the filter that holds.
    ///
    /// # Errors
    /// It is not a valid level or filter: why not.
    fn set(&self, level: &str) -> Result<String, String>;
}

/// The recurring schedules of a configuration file.
#[derive(Debug, Clone, Default)]
pub struct DeclaredSchedules {
    /// Whether the file speaks of schedules at all: then a schedule that another file declared and that is not here is
    /// removed.
    pub is_said: bool,
    /// The schedules, each with its tenant.
    pub schedules: Vec<(Tenant, PutRequest)>,
}

/// Calls the targets of webhooks.
pub trait WebhookCaller: std::fmt::Debug + Send + Sync + 'static {
    /// Whether a URL may be called, as its name resolves now.
    ///
    /// # Errors
    /// Why not.
    fn check<'a>(&'a self, url: &'a str) -> BoxFuture<'a, Result<(), String>>;

    /// Posts a body, and returns the status of the answer. No redirect is followed.
    ///
    /// # Errors
    /// Why there is no answer in time.
    fn post<'a>(&'a self, url: &'a str, headers: &'a [(&'static str, String)], body: Bytes) -> Posted<'a>;
}

/// The status of an answer, or why there is none.
pub type Posted<'a> = BoxFuture<'a, Result<u16, String>>;

/// How long a target may take to answer.
pub const WEBHOOK_WITHIN: Duration = Duration::from_secs(15);

/// How a node delivers webhooks.
#[derive(Debug, Clone)]
pub struct WebhookSettings {
    /// Calls their targets.
    pub caller: Arc<dyn WebhookCaller>,
    /// The queue of the deliveries.
    pub queue: Queue,
    /// Their priority.
    pub priority: Priority,
}
