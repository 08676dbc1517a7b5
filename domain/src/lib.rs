//! The rules of Longshore.
//!
//! Everything that decides anything about a job stands in this crate, as plain functions over plain values. There is
//! no I/O here, no clock, no async and no randomness: time and chance are arguments, so that property tests and the
//! simulation can drive the rules by the million.
//!
//! Read it in this order: [`name`], [`job`], [`lane`], [`rank`] and [`merge`] (which job is next), [`clearance`] (may it start
//! now), [`protocol`] (what a delivery means, given the run's record), [`backoff`] and [`settlement`] (what follows an
//! attempt), [`run`] (the record), [`story`] (the events a record implies), [`publication`] (which of them are still to be
//! published), [`follow_up`] (what is done after that).

pub mod name;

pub mod duration;
pub mod timestamp;

pub mod fingerprint;
pub mod job;
pub mod policy;

pub mod lane;
pub mod merge;
pub mod rank;

pub mod clearance;
pub mod freshness;
pub mod lease;

pub mod run;

pub mod protocol;

pub mod backoff;
pub mod settlement;

pub mod events;

pub mod publication;

pub mod follow_up;

pub mod restart;
pub mod retention;

pub use duration::DurationText;
pub use job::{Job, JobOptions};
pub use lane::Lane;
pub use name::{JobType, NameError, Priority, Queue, RunId, Tenant};
pub use run::{ErrorKind, Failure, Run, RunState};
pub use smol_str::{SmolStr, format_smolstr};
pub use timestamp::Timestamp;
