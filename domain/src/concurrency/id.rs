//! The names of concurrency limits: of a type, over all tenants, and of a key, within its tenant and type.

use smol_str::SmolStr;

use crate::{JobType, Tenant};

/// One limit: whose attempts it counts.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConcurrencyId {
    /// The type of the attempts.
    pub job_type: JobType,
    /// It counts those of this tenant with the key of this hash; `None`: all of the type, of every tenant.
    pub key: Option<(Tenant, SmolStr)>,
}

impl std::fmt::Display for ConcurrencyId {
    /// Tokens of a subject.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.key {
            None => write!(f, "type.{}", self.job_type),
            Some((tenant, key)) => write!(f, "key.{tenant}.{key}.{}", self.job_type),
        }
    }
}

impl ConcurrencyId {
    /// Reads those tokens.
    pub fn read(tokens: &str) -> Option<Self> {
        let (key, rest) = match tokens.split_once('.')? {
            ("type", rest) => (None, rest),
            ("key", rest) => {
                let (tenant, rest) = rest.split_once('.')?;
                let (key, rest) = rest.split_once('.')?;
                (Some((Tenant::parse(tenant).ok()?, SmolStr::new(key))), rest)
            }
            _ => return None,
        };
        Some(Self { job_type: JobType::parse(rest).ok()?, key })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_read_as_it_was_written() {
        let job_type = JobType::parse("email.send").unwrap();
        for key in [None, Some((Tenant::parse("acme").unwrap(), "0123".into()))] {
            let id = ConcurrencyId { job_type: job_type.clone(), key };
            assert_eq!(ConcurrencyId::read(&id.to_string()), Some(id));
        }
        for wrong in ["", "type", "type.", "key.acme.x", "other.a", "key.a b.x.t"] {
            assert_eq!(ConcurrencyId::read(wrong), None, "{wrong}");
        }
    }
}
