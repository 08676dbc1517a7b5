//! The API: request and answer of every endpoint as types, one file for each group, read and written by nodes and
//! clients alike.
//!
//! Requests are strict: a field that an endpoint does not know is refused by name, because it would otherwise be
//! ignored silently. Answers are lenient: unknown fields are skipped and unknown words kept ([`Word`]), because a newer
//! node may say more. Fields are in the order in which nodes have always written them, which is alphabetical for most
//! answers.
//!
//! JSON of clients and handlers (payload, result, progress) is carried as [`RawValue`](serde_json::value::RawValue),
//! byte for byte. So no type that holds any is read by way of serde's own buffer (`flatten`, `untagged`), which would
//! round numbers and refuse deep nesting.

mod audit;
mod batches;
mod breakers;
mod concurrency;
mod dlq;
mod encoded;
mod endpoints;
mod error;
mod faults;
mod fields;
mod health;
mod keys;
mod late;
mod limits;
mod lists;
mod nodes;
mod queues;
mod redact;
mod request;
mod reschedule;
mod runs;
mod schedules;
mod submit;
mod target;
mod webhooks;
mod word;
mod work;

pub use audit::*;
pub use batches::*;
pub use breakers::*;
pub use concurrency::*;
pub use dlq::*;
pub use encoded::*;
pub use endpoints::*;
pub use error::*;
pub use faults::*;
pub use health::*;
pub use keys::*;
pub use late::*;
pub use limits::*;
pub use lists::*;
pub use nodes::*;
pub use queues::*;
pub use redact::{redact, redact_event};
pub use request::{Nothing, about_tenant, fields, read};
pub use reschedule::*;
pub use runs::*;
pub use schedules::*;
pub use submit::*;
pub use target::*;
pub use webhooks::*;
pub use word::*;
pub use work::*;

#[cfg(test)]
mod tests;

/// The operator's tenant, which stands for all tenants together; NATS permissions decide which clients may ask under
/// it.
pub const OPERATOR: &str = "_all";
