//! By what kinds of jobs differ beyond tenant and type: the keys by which gates let them start. It is a token of the
//! subject of a parked job, so that the jobs of one key never wait behind those of another.

use longshore_domain::{JobOptions, SmolStr, format_smolstr};
use sha2::{Digest as _, Sha256};

/// Stands where a job has no key.
const NONE: &str = "_";
/// Stand before the hash of a limit key and of a concurrency key. Neither is a digit of a hash.
const LIMIT: char = 'l';
const CONCURRENCY: char = 'k';
const DIGITS: usize = 16;

fn hash(key: &str) -> u64 {
    let hash = Sha256::digest(key.as_bytes());
    hash[..8].iter().fold(0_u64, |number, byte| number << 8 | u64::from(*byte))
}

/// The keys of a kind as one token: hashes of the limit key and of the concurrency key, because a key may be any text
/// and a token may not. Two keys of a tenant and type have the same hash with a chance of 2⁻⁶⁴; then they share a
/// limit.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct KindKey(SmolStr);

impl Default for KindKey {
    fn default() -> Self {
        Self(SmolStr::new_static(NONE))
    }
}

impl KindKey {
    /// The key of a job with these options.
    pub fn of(options: Option<&JobOptions>) -> Self {
        let Some(options) = options else { return Self::default() };
        Self::of_keys(options.limit_key.as_deref(), options.concurrency_key.as_deref())
    }

    /// The key of a job with these keys.
    pub fn of_keys(limit: Option<&str>, concurrency: Option<&str>) -> Self {
        match (limit, concurrency) {
            (limit, None) => Self::of_limit_key(limit),
            (None, Some(key)) => Self(format_smolstr!("{CONCURRENCY}{:016x}", hash(key))),
            (Some(limit), Some(key)) => {
                Self(format_smolstr!("{LIMIT}{:016x}{CONCURRENCY}{:016x}", hash(limit), hash(key)))
            }
        }
    }

    /// The key of a job with this limit key.
    pub fn of_limit_key(key: Option<&str>) -> Self {
        let Some(key) = key else { return Self::default() };
        Self(format_smolstr!("{LIMIT}{:016x}", hash(key)))
    }

    /// The same without the concurrency key: by this, rate limits, holds and circuit breakers distinguish jobs.
    #[must_use]
    pub fn without_concurrency(&self) -> Self {
        match self.limit_key() {
            Some(hash) => Self(format_smolstr!("{LIMIT}{hash}")),
            None => Self::default(),
        }
    }

    /// The hash of the job's limit key, as text; `None`: it has none.
    pub fn limit_key(&self) -> Option<&str> {
        self.0.strip_prefix(LIMIT)?.get(..DIGITS)
    }

    /// The hash of the job's concurrency key, as text; `None`: it has none.
    pub fn concurrency_key(&self) -> Option<&str> {
        let rest = self.0.strip_prefix(LIMIT).map_or(self.0.as_str(), |rest| rest.get(DIGITS..).unwrap_or_default());
        rest.strip_prefix(CONCURRENCY)
    }

    /// Reads the token.
    pub fn read(token: &str) -> Option<Self> {
        let is_hash = |hash: &str| hash.len() == DIGITS && hash.bytes().all(|byte| byte.is_ascii_hexdigit());
        let limit = token.strip_prefix(LIMIT).map(|rest| rest.split_at_checked(DIGITS));
        let is_key = match limit {
            None => token.strip_prefix(CONCURRENCY).is_some_and(is_hash),
            Some(None) => false,
            Some(Some((hash, ""))) => is_hash(hash),
            Some(Some((hash, rest))) => is_hash(hash) && rest.strip_prefix(CONCURRENCY).is_some_and(is_hash),
        };
        (token == NONE || is_key).then(|| Self(SmolStr::new(token)))
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
        let both = KindKey::of_keys(Some("limit"), Some("customer"));
        assert_eq!(KindKey::read(&both.to_string()), Some(both.clone()));
        let concurrency = KindKey::of_keys(None, Some("customer"));
        assert_eq!(KindKey::read(&concurrency.to_string()), Some(concurrency.clone()));
        assert_eq!((both.concurrency_key(), both.limit_key().map(str::len)), (concurrency.concurrency_key(), Some(16)));
        assert_eq!(both.without_concurrency(), KindKey::of_limit_key(Some("limit")));
        assert_eq!((concurrency.limit_key(), concurrency.without_concurrency()), (None, KindKey::default()));
        assert_eq!((key.concurrency_key(), KindKey::default().concurrency_key()), (None, None));
        for not_a_key in
            ["", "l", "k", "email", "lxyz", "l0123456789abcde*", "l0123456789abcdefk", "k0123456789abcdefl"]
        {
            assert_eq!(KindKey::read(not_a_key), None, "{not_a_key}");
        }
    }
}
