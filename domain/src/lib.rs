//! The rules of Longshore.
//!
//! This crate makes every decision about a job, in plain functions over plain values. It has no I/O, no clock, no async
//! and no randomness: time and chance are arguments, so that property tests and the simulation can run the rules
//! millions of times.
//!
//! Read it in this order: [`name`], [`job`], [`lane`], [`rank`] and [`merge`] (which job is next), [`clearance`] (may
//! it start now; [`quickest`]: not without the time that it needs; [`breaker`]: not while its service fails;
//! [`fast_path`]: and without its record), [`limit`] (how many may, in the whole cluster), [`protocol`] (what a
//! delivery means, given the run's record), [`backoff`], [`served`] (was a handler of its type ever online) and
//! [`settlement`] (what follows an attempt), [`run`] (the record; [`search`]: what it is found by), [`events`] (the
//! events that a record implies), [`publication`] (which of them are still to be published), [`follow_up`] (the steps
//! after that). [`setting`] has what operators set while the cluster runs, [`fault`] what of it makes attempts fail,
//! [`pressure`] how far a node holds back while its machine is short of memory, [`cluster_clock`] what time it is for
//! all nodes.

pub mod admission;
pub mod backoff;
pub mod breaker;
pub mod clearance;
pub mod cluster_clock;
pub mod concurrency;
pub mod duration;
pub mod events;
pub mod fairness;
pub mod fast_path;
pub mod fault;
pub mod fingerprint;
pub mod follow_up;
pub mod freshness;
pub mod job;
pub mod key;
pub mod lane;
pub mod lease;
pub mod likeness;
pub mod limit;
pub mod merge;
pub mod name;
mod named;
pub mod outcome;
pub mod policy;
pub mod pressure;
pub mod protocol;
pub mod publication;
pub mod quickest;
pub mod rank;
pub mod recurrence;
pub mod recurring;
pub mod repeats;
pub mod restart;
pub mod retention;
pub mod run;
mod schema;
pub mod search;
pub mod served;
pub mod setting;
pub mod settlement;
pub mod timestamp;
pub mod trace;
pub mod two_spans;
pub mod words;

pub use duration::DurationText;
pub use job::{Job, JobOptions};
pub use lane::{Lane, QueueLane};
pub use name::{BatchId, JobType, NameError, Priority, Queue, RunId, ScheduleId, Tenant, WebhookId};
pub use run::{ErrorKind, Failure, Run, RunState, State};
pub use smol_str::{SmolStr, format_smolstr};
pub use timestamp::Timestamp;
pub use trace::TraceId;

/// Whether a field has the value that it has where it is left out.
pub fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}
