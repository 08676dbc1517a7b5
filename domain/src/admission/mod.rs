//! Admission: which jobs a cluster takes at all. `submit` refuses the others; what was published all the same becomes a
//! dead letter that says why. Nothing is asked of a server: a refusal costs as little as reading the job.

use std::collections::BTreeSet;
use std::fmt;

use crate::policy::Policies;
use crate::{JobType, Queue, Tenant};

mod room;
mod schema;

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

/// Whether a job is taken. `version` is the version of its schema that it names.
///
/// # Errors
/// Why it is not.
pub fn admit(
    policies: &Policies,
    tenant: &Tenant,
    job_type: &JobType,
    version: Option<&str>,
    payload: &[u8],
) -> Result<(), Refusal> {
    let Admission { types, tenants } = &policies.admission;
    if tenants.as_ref().is_some_and(|known| !known.contains(tenant)) {
        return Err(Refusal::Tenant(tenant.clone()));
    }
    if types.as_ref().is_some_and(|taken| !taken.contains(job_type)) {
        return Err(Refusal::Type(job_type.clone()));
    }
    let policy = policies.of(job_type);
    if let Some(max) = policy.payload_max.filter(|max| payload.len() as u64 > *max) {
        return Err(Refusal::Payload { bytes: payload.len(), max });
    }
    match &policy.schemas {
        Some(schemas) => schemas.check(version, payload).map_err(Refusal::Schema),
        None => Ok(()),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::TypePolicy;

    #[test]
    fn what_no_setting_bounds_is_taken() {
        let (tenant, job_type) = (Tenant::parse("acme").unwrap(), JobType::parse("a.b").unwrap());
        assert_eq!(admit(&Policies::default(), &tenant, &job_type, Some("1"), b"anything"), Ok(()));
    }

    #[test]
    fn a_refusal_says_which_bound_was_met() {
        let tenant = |name: &str| Tenant::parse(name).unwrap();
        let job_type = |name: &str| JobType::parse(name).unwrap();
        let mut policies = Policies::default();
        policies.admission.types = Some([job_type("a"), job_type("b")].into());
        policies.admission.tenants = Some([tenant("acme")].into());
        policies.types.insert(job_type("b"), TypePolicy { payload_max: Some(3), ..TypePolicy::default() });
        let judged = |of: &str, kind: &str, bytes| {
            let taken = admit(&policies, &tenant(of), &job_type(kind), None, &vec![b'x'; bytes]);
            taken.err().map(|refusal| refusal.to_string())
        };
        assert_eq!(judged("acme", "a", 1_000), None);
        assert_eq!(judged("acme", "b", 3), None);
        assert!(judged("acme", "b", 4).unwrap().contains("has 4 bytes, 3 are allowed"));
        assert!(judged("acme", "c", 0).unwrap().starts_with("type: c is not"));
        assert!(judged("zeta", "a", 0).unwrap().starts_with("tenant: zeta is not known"));
        for (of, kind, bytes) in [("acme", "b", 4), ("acme", "c", 0), ("zeta", "a", 0)] {
            assert!(was_refused(&judged(of, kind, bytes).unwrap()));
        }
        assert!(!was_refused("header Longshore-Run-At: is not a time"));
    }
}
