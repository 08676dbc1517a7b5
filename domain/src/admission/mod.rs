//! Admission: which jobs a cluster takes at all. `submit` refuses the others; what was published all the same becomes a
//! dead letter that says why. Nothing is asked of a server: a refusal costs as little as reading the job.

use std::collections::BTreeSet;
use std::fmt;

use crate::{JobType, Queue, Tenant};

mod admit;
mod room;
mod schema;

pub use admit::admit;
pub use room::Room;
pub use schema::{PayloadSchema, Schemas, newest};

/// What is taken, as far as settings bound it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Admission {
    /// The only types; `None`: any.
    pub types: Option<BTreeSet<JobType>>,
    /// The only tenants; `None`: any.
    pub tenants: Option<BTreeSet<Tenant>>,
}

/// Why a job is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// Its type is not among those that are taken.
    Type(JobType),
    /// Its tenant is not known.
    Tenant(Tenant),
    /// Its payload is larger than its type allows.
    Payload {
        /// Its size in bytes.
        bytes: usize,
        /// The bound in bytes.
        max: u64,
    },
    /// Its payload is not as its type's schema wants it, or there is no schema of its version: what is wrong.
    Schema(String),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Type(job_type) => {
                write!(f, "type: {job_type} is not among the types that are taken (admission.types)")
            }
            Self::Tenant(tenant) => write!(f, "tenant: {tenant} is not known (admission.tenants)"),
            Self::Payload { bytes, max } => {
                write!(f, "payload: has {bytes} bytes, {max} are allowed for its type (payload_max)")
            }
            Self::Schema(wrong) => write!(f, "{wrong} (schema)"),
        }
    }
}

/// Whose waiting jobs are bounded.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum RoomScope {
    /// A queue, all tenants together.
    Queue(Queue),
    /// A tenant, in all queues together.
    Tenant(Tenant),
}

impl fmt::Display for RoomScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Queue(queue) => write!(f, "queue {queue}"),
            Self::Tenant(tenant) => write!(f, "tenant {tenant}"),
        }
    }
}

/// Whether the error of an invalid job says that it was refused here: then it is sound, and taken once the settings
/// are.
pub fn was_refused(message: &str) -> bool {
    ["(admission.types)", "(admission.tenants)", "(payload_max)", "(schema)"]
        .iter()
        .any(|setting| message.ends_with(setting))
}
