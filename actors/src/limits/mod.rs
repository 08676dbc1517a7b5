//! Limits: what keeps jobs from starting. Each is a value that gates ask without waiting, and a `keeper`, the actor
//! that keeps the value and the cluster's records in step.
//!
//! * `rate`: tokens, and holds of keys and types.
//! * `concurrency`: slots.
//! * `breaker`: circuit breakers.
//! * `settings`: pauses and what else operators set while the cluster runs; the `faults` on purpose among it.

pub(crate) mod breaker;
pub(crate) mod concurrency;
pub(crate) mod faults;
pub(crate) mod rate;
pub(crate) mod settings;
