//! What is stored of runs: records, idempotency keys, cancellations, dead letters.

pub mod backwards;
pub mod batches;
pub mod cancels;
pub mod certain;
pub mod claims;
pub mod dead_letters;
pub mod fingerprint;
pub mod records;
pub mod steps;
