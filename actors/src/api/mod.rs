//! The API: `service` reads requests and answers them; one file for each group of endpoints.

pub(crate) mod filter;
pub(crate) mod service;

pub(crate) mod cancel;
pub(crate) mod erase;
pub(crate) mod intake;
pub(crate) mod runs;
pub(crate) mod waits;

pub(crate) mod dead_letters;
pub(crate) mod replay;
