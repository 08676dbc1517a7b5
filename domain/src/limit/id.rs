//! The names of limits: of a type, of several types together, or of a tenant; each key has a limit of its own.

use smol_str::SmolStr;

use crate::{JobType, Tenant};

/// Whose starts a limit counts.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Scope {
    /// The jobs of a type.
    Type(JobType),
    /// The jobs of all types that name this limit.
    Named(SmolStr),
    /// The jobs that a tenant submits.
    Tenant(Tenant),
}

/// One limit. A key is the tenant's own: other tenants' jobs with the same key have another limit.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LimitId {
    /// Whose starts it counts.
    pub scope: Scope,
    /// The tenant and the hash of the key, if it is that of a key.
    pub key: Option<(Tenant, SmolStr)>,
}

impl std::fmt::Display for Scope {
    /// Tokens of a subject.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Type(job_type) => write!(f, "type.{job_type}"),
            Self::Named(name) => write!(f, "name.{name}"),
            Self::Tenant(tenant) => write!(f, "tenant.{tenant}"),
        }
    }
}

impl std::fmt::Display for LimitId {
    /// Tokens of a subject.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.key {
            Some((tenant, key)) => write!(f, "key.{tenant}.{key}.{}", self.scope),
            None => write!(f, "all.{}", self.scope),
        }
    }
}
