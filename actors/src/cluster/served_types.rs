//! The part that keeps this node's knowledge of served types and the cluster's memory of them in step.
//!
//! It reads the memory as the node starts and after each reconnection, and every few seconds while a type has no
//! handler; it stores each type that this node is the first to see a handler of. A node that is about to say that a
//! type was never served reads first what others have stored since
//! ([`refresh`](crate::handlers::served_types::refresh)). What is to be stored is kept in
//! [`crate::handlers::served_types`], so that a death costs nothing.
//!
//! Bounds: one question at a time, one answer for each type that is new here; at most
//! [`MAX_TYPES`](longshore_domain::served::MAX_TYPES) types.

use std::sync::Arc;
use std::time::Duration;

use longshore_backbone::Error;
use longshore_backbone::served_types::{Remembered, ServedTypesStore as Store};
use longshore_domain::served::complete_from;

use crate::handlers::routing::Routing;
use crate::handlers::served_types::{WITHIN, read};
use crate::runtime::now;
use crate::runtime::supervision::{LoopEnd, ticks};

/// How often it tries again what did not work, and reads while a type has no handler.
const LOOK_EVERY: Duration = Duration::from_secs(5);

#[derive(Clone)]
pub(crate) struct ServedTypesPart {
    pub(crate) store: Store,
    pub(crate) routing: Arc<Routing>,
}

pub(crate) async fn run(part: ServedTypesPart) -> LoopEnd {
    let served = &part.routing.served;
    let mut connected = part.store.connected();
    let mut tick = ticks(LOOK_EVERY);
    part.routing.types_here().for_each(|job_type| served.saw(&job_type));
    let mut is_read = false;
    loop {
        if !is_read || part.routing.discovery.misses_any() {
            // Another server, or one that lost what it had last, may count its revisions anew: then from the beginning.
            let from = if is_read { served.read_up_to() } else { 0 };
            is_read = part.tried("read", read(&part.store, served, from)).await.is_some();
        }
        if is_read && !served.knows_from_when() {
            let begun = Remembered::CompleteFrom(complete_from(part.store.had_jobs(), now()));
            // Another node may have begun it, so it is read again.
            is_read = part.tried("begin", part.store.remember(&begun, now())).await.is_none();
        }
        while is_read && let Some(job_type) = served.to_store() {
            let what = Remembered::Type(job_type.clone());
            let Some(()) = part.tried("store", part.store.remember(&what, now())).await else { break };
            served.stored(&job_type);
        }
        tokio::select! {
            _ = tick.tick() => {}
            () = served.seen.notified() => {}
            Ok(()) = connected.changed() => is_read = false,
        }
    }
}

impl ServedTypesPart {
    /// The result of what is tried with the memory; if it fails, it is tried again later.
    async fn tried<T>(&self, doing: &str, work: impl Future<Output = Result<T, Error>>) -> Option<T> {
        match tokio::time::timeout(WITHIN, work).await {
            Ok(Ok(done)) => return Some(done),
            Ok(Err(error)) => {
                tracing::debug!("cannot {doing} the memory of served types, trying again: {}", error.with_causes());
            }
            Err(_) => tracing::debug!("no answer to {doing} the memory of served types, asking again"),
        }
        None
    }
}
