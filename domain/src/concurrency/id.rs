//! The names of concurrency limits: of a type, over all tenants, and of a key, within its tenant and type.

use smol_str::SmolStr;

use crate::{JobType, Tenant};

/// One limit: whose attempts it counts.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConcurrencyId {
    /// The type of the attempts.
    pub job_type: JobType,
    /// Which of them.
    pub scope: SlotScope,
}

/// Which attempts of a type a limit counts.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SlotScope {
    /// All, of every tenant.
    Type,
    /// Those of one tenant and one key, by the hash of the key.
    Key(Tenant, SmolStr),
}

impl std::fmt::Display for ConcurrencyId {
    /// Tokens of a subject.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.scope {
            SlotScope::Type => write!(f, "type.{}", self.job_type),
            SlotScope::Key(tenant, key) => write!(f, "key.{tenant}.{key}.{}", self.job_type),
        }
    }
}

impl ConcurrencyId {
    /// Reads those tokens.
    #[must_use]
    pub fn read(tokens: &str) -> Option<Self> {
        let (scope, rest) = match tokens.split_once('.')? {
            ("type", rest) => (SlotScope::Type, rest),
            ("key", rest) => {
                let (tenant, rest) = rest.split_once('.')?;
                let (key, rest) = rest.split_once('.')?;
                (SlotScope::Key(Tenant::parse(tenant).ok()?, SmolStr::new(key)), rest)
            }
            _ => return None,
        };
        Some(Self { job_type: JobType::parse(rest).ok()?, scope })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_read_as_it_was_written() {
        let job_type = JobType::parse("email.send").unwrap();
        let key = SlotScope::Key(Tenant::parse("acme").unwrap(), "0123".into());
        for scope in [SlotScope::Type, key] {
            let id = ConcurrencyId { job_type: job_type.clone(), scope };
            assert_eq!(ConcurrencyId::read(&id.to_string()), Some(id));
        }
        for wrong in ["", "type", "type.", "key.acme.x", "other.a", "key.a b.x.t"] {
            assert_eq!(ConcurrencyId::read(wrong), None, "{wrong}");
        }
    }
}
