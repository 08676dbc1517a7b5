//! The API: what its endpoints do, one file for each group of them. [`service`](crate::service) reads requests and
//! answers them.
//!
//! * Submitting: `intake`, with `submission` (key, id or time), `keyed` (a key that is taken) and `debounce`.
//! * Looking: `runs`, `list` with `walk`, `waits` (for an end), `waiting_for` (why a run waits) with `stranded`
//!   (nothing can bring it on), `queues` with `shares`.
//! * Changing runs: `cancel` with `cancellation`, `reschedule`, `erase`, `purge`; `dead_letters`, `replay` with
//!   `dead_letter`.
//! * Changing the cluster: `pauses`, `limits`, `breakers`, `concurrency`, `put_queue`, `faults`, `keys`. Schedules,
//!   batches, webhooks and pulled work have folders of their own.
//!
//! They share `filter` (which runs are meant), `refusals`, `traced` and `ports`. `audit_log` shows what was asked.

pub(crate) mod audit_log;
pub(crate) mod breakers;
pub(crate) mod cancel;
pub(crate) mod cancellation;
pub(crate) mod concurrency;
pub(crate) mod dead_letter;
pub(crate) mod dead_letters;
mod debounce;
pub(crate) mod erase;
pub(crate) mod faults;
pub(crate) mod filter;
pub(crate) mod intake;
pub(crate) mod keyed;
pub(crate) mod keys;
pub(crate) mod late;
pub(crate) mod limits;
pub(crate) mod list;
pub(crate) mod pauses;
pub(crate) mod payload;
mod ports;
pub(crate) mod purge;
pub(crate) mod put_queue;
pub(crate) mod queues;
mod refusals;
pub(crate) mod replay;
pub(crate) mod reschedule;
pub(crate) mod runs;
pub(crate) mod shares;
pub(crate) mod stats;
pub(crate) mod stranded;
pub(crate) mod submission;
pub(crate) mod traced;
pub(crate) mod wait_permits;
pub(crate) mod waiting_for;
pub(crate) mod waits;
mod walk;

use std::sync::Arc;

use longshore_backbone::Backbone;
use longshore_backbone::wire::api::{ApiError, Encoded};
use longshore_domain::policy::Policies;

use crate::api::wait_permits::WaitPermits;
use crate::attempt::recently_cancelled::RecentlyCancelled;
use crate::attempt::unstored_ends::UnstoredEnds;
use crate::audit::Audit;
use crate::cluster::put_queues::PutQueues;
use crate::cluster::waiting::WaitingJobs;
use crate::commit::handle::Committer;
use crate::handlers::routing::Routing;
use crate::limits::breaker::Breakers;
use crate::limits::breaker::keeper::BreakerMessage;
use crate::limits::concurrency::Slots;
use crate::limits::rate::Limits;
use crate::limits::settings::RunTimeSettings;
use crate::metrics::Metrics;
use crate::runtime::address::Address;
use crate::runtime::identity::Identity;
use crate::runtime::lifecycle::Lifecycle;
use crate::runtime::system_events::SystemEvents;
use crate::settings::WebhookSettings;
use crate::trace::Tracer;

pub(crate) type Answered<T> = Result<Encoded<T>, ApiError>;

/// Pages of messages that the lists of a node hold at once.
pub(crate) const PAGES: usize = 16;

/// What the endpoints use. They start no job and hold no lease.
#[derive(Clone)]
pub(crate) struct Api {
    pub(crate) backbone: Backbone,
    pub(crate) identity: Arc<Identity>,
    pub(crate) lifecycle: Lifecycle,
    pub(crate) policies: Arc<Policies>,
    pub(crate) committer: Committer,
    pub(crate) recently_cancelled: Arc<RecentlyCancelled>,
    pub(crate) unstored_ends: Arc<UnstoredEnds>,
    pub(crate) limits: Arc<Limits>,
    pub(crate) slots: Arc<Slots>,
    pub(crate) waiting: Arc<WaitingJobs>,
    /// Which handlers this node does not find.
    pub(crate) routing: Arc<Routing>,
    pub(crate) run_time_settings: Arc<RunTimeSettings>,
    pub(crate) put_queues: Arc<PutQueues>,
    pub(crate) system_events: SystemEvents,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) breakers: Arc<Breakers>,
    pub(crate) circuit_breaker: Address<BreakerMessage>,
    pub(crate) audit: Arc<Audit>,
    /// How many calls work at a rate that their clients chose.
    pub(crate) paced: Arc<WaitPermits>,
    /// Room for [`PAGES`] pages, each of some MiB.
    pub(crate) pages: Arc<tokio::sync::Semaphore>,
    /// How webhooks are delivered, if this node can call anybody.
    pub(crate) webhooks: Option<WebhookSettings>,
    /// Takes the spans of submissions and replays, if the node writes traces.
    pub(crate) tracer: Option<Arc<Tracer>>,
}
