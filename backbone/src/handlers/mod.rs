//! Remote handlers: how they are called, what they send back, and what they announce of themselves.

pub mod work;
