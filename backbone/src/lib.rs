//! The only crate of Longshore that uses NATS.
//!
//! It translates the domain's values into the server's terms. It has no actors, only calls and streams: what must be
//! supervised and restarted belongs to the actors. It decides nothing about a job.
//!
//! From the bottom up: `wire`, which uses no server, `connection`, `messages`, `streams`; then [`Backbone`], a node's
//! access to all of this. Each folder above adds methods to it, in the order of a job's way: `lanes`, `runs`,
//! `schedules`, `handlers`, `cluster`, `services`. The folders say themselves what they are.
//!
//! [`Client`] is NATS for the command line; [`inspect`] looks for faults in a cluster's set-up.

pub mod wire;

mod connection;
mod messages;
mod streams;

mod backbone;
pub mod rarely;
pub mod unreadable;

mod lanes;
mod runs;
mod schedules;

pub mod handlers;

mod cluster;

mod services;

pub mod client;
pub mod inspect;

pub mod clock;
#[cfg(test)]
mod tests;
pub mod ticks;

pub mod error;
pub mod settings;

/// Whose log lines are about each try of the client library to connect.
pub const CONNECTOR_LOG: &str = "async_nats::connector";

/// Headers of a message, as the client library has them: the one NATS type that other crates pass on unread.
pub use async_nats::HeaderMap as Headers;
pub use backbone::Backbone;
pub use client::Client;
pub use error::Error;
pub use settings::{Connection, Storage};

// Other crates name the modules without their folders.
pub use cluster::{
    api_keys, breakers, bucket_space, concurrency, control, deliveries, holders, limits, nodes, questions,
    run_time_settings, served_types, webhooks,
};
pub use connection::link;
pub use connection::refusals::MissingRight;
pub use lanes::{backlog, delivery, forward, in_order, lane_queries, parked, poison, pull, renewal, standstill};
pub use messages::{refusal, request, scan, window};
pub use runs::{backwards, batches, cancels, certain, claims, dead_letters, fingerprint, records, steps};
pub use schedules::{recurring, schedule, sweep};
pub use services::{offers, pulls, service};
pub use streams::wanted::WantedStream;
pub use streams::{remake, shape, snapshot, stream_faults};
