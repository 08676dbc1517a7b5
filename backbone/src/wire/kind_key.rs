//! By what kinds of jobs differ beyond tenant and type: the keys by which gates let them start. It is a token of the
//! subject of a parked job, so that the jobs of one key never wait behind those of another.

use longshore_domain::{JobOptions, SmolStr, format_smolstr};
use sha2::{Digest as _, Sha256};

/// Stands where a job has no key.
const NONE: &str = "_";

/// The keys of a kind as one token: a hash, because a key may be any text and a token may not. Two keys of a tenant and
/// type have the same hash with a chance of 2⁻⁶⁴; then they share a limit.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct KindKey(SmolStr);

impl Default for KindKey {
    /// Of jobs without a key.
    fn default() -> Self {
        Self(SmolStr::new_static(NONE))
    }
}

impl KindKey {
    /// The key of a job with these options.
    #[must_use]
    pub fn of(options: Option<&JobOptions>) -> Self {
        Self::of_limit_key(options.and_then(|options| options.limit_key.as_deref()))
    }

    /// The key of a job with this limit key.
    #[must_use]
    pub fn of_limit_key(key: Option<&str>) -> Self {
        let Some(key) = key else { return Self::default() };
        let hash = Sha256::digest(key.as_bytes());
        let number = hash[..8].iter().fold(0_u64, |number, byte| number << 8 | u64::from(*byte));
        Self(format_smolstr!("l{number:016x}"))
    }

    /// The hash of the job's limit key, as text; `None`: it has none.
    #[must_use]
    pub fn limit_key(&self) -> Option<&str> {
        self.0.strip_prefix('l')
    }

    /// Reads the token.
    #[must_use]
    pub fn read(token: &str) -> Option<Self> {
        let is_hash = |hash: &str| hash.len() == 16 && hash.bytes().all(|byte| byte.is_ascii_hexdigit());
        (token == NONE || token.strip_prefix('l').is_some_and(is_hash)).then(|| Self(SmolStr::new(token)))
    }
}

impl std::fmt::Display for KindKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_becomes_a_token_and_is_read_again() {
        let key = KindKey::of_limit_key(Some("any text, also with dots . and *"));
        assert_eq!(KindKey::read(&key.to_string()), Some(key.clone()));
        assert_eq!(key.limit_key().map(str::len), Some(16));
        assert_ne!(key, KindKey::of_limit_key(Some("another")));
        assert_eq!((KindKey::read("_"), KindKey::default().limit_key()), (Some(KindKey::default()), None));
        for not_a_key in ["", "l", "email", "lxyz", "l0123456789abcde*"] {
            assert_eq!(KindKey::read(not_a_key), None, "{not_a_key}");
        }
    }
}
