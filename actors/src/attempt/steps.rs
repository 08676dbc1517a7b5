//! Steps of a handler's work: looks up what an earlier attempt has finished, and stores what this one has.
//!
//! A result counts only if the attempt still has its lease: an attempt that has lost it may be doing the same work
//! again elsewhere, and is refused.

use std::time::Instant;

use longshore_backbone::steps::{StepCall, StepResult, StepStored};
use longshore_domain::events::EventKind;
use longshore_domain::{RunId, Tenant, Timestamp};

use crate::attempt::faults;
use crate::attempt::node_ports::NodePorts;
use crate::attempt::progress::{self, Said};
use crate::attempt::running::{CurrentAttempt, of_current};
use crate::handlers::handler::StepEnd;
use crate::runtime::now;

/// Answers a handler's question about a step, or stores its result.
///
/// # Errors
/// A status as HTTP has them, and the reason: 400, the result fits into no message; 409, the lease is lost, or the step
/// has a result; 503, nobody can say.
pub(crate) async fn take(ports: &NodePorts, current: &CurrentAttempt, call: &StepCall) -> StepEnd {
    let Some((tenant, run_id, attempt, origin)) = doer(ports, current) else {
        return Err((409, "the attempt has lost its lease, or is over: its steps are another's".to_owned()));
    };
    let unavailable = |error: longshore_backbone::Error| (503, error.with_causes());
    let Some(result) = call.result.clone() else {
        let found = ports.backbone.step(&tenant, &run_id, call, origin).await.map_err(unavailable)?;
        match &found {
            Some(found) => list(current, found, call),
            None if faults::strike_at_step(ports, current, &call.name) => {
                return Err((503, "injected: fail_at_step".to_owned()));
            }
            None => {}
        }
        return Ok(found);
    };
    let (size, max) = (result.get().len(), ports.backbone.max_in_answer());
    if size > max {
        let message = format!("result: has {size} bytes, {max} fit into a message by this NATS server's max_payload");
        return Err((400, message));
    }
    let result = StepResult { result, at: now(), attempt, origin: Some(origin) };
    match ports.backbone.put_step(&tenant, &run_id, call, &result).await.map_err(unavailable)? {
        StepStored::Taken => Err((409, "the step has a result already: two uses of it at the same time".to_owned())),
        StepStored::Stored => {
            let said = of_current(current, |running| {
                let state = &mut running.attempt_state;
                let is_new = state.run.list_step(result.listed(call.name.clone(), call.n));
                is_new.then(|| Said::of(ports, state, EventKind::StepCompleted, |_| ())).flatten()
            });
            progress::publish(ports, said.flatten()).await;
            Ok(None)
        }
    }
}

/// Whether the attempt has lost its lease, or is over.
pub(super) fn is_lost(ports: &NodePorts, current: &CurrentAttempt) -> bool {
    doer(ports, current).is_none()
}

/// Of which run and attempt a step is, and when that run was first published; `None`: the lease is lost.
fn doer(ports: &NodePorts, current: &CurrentAttempt) -> Option<(Tenant, RunId, u32, Timestamp)> {
    let doer = of_current(current, |running| {
        let run = &running.attempt_state.run;
        let is_over = running.assignment.lease_is_over(Instant::now(), ports.backbone.storage().lease);
        (!is_over).then(|| (run.tenant.clone(), run.run_id.clone(), run.attempt, run.origin))
    });
    doer.flatten()
}

/// A step that an earlier attempt has finished may not be in the record: its node may have died.
fn list(current: &CurrentAttempt, found: &StepResult, call: &StepCall) {
    of_current(current, |running| running.attempt_state.run.list_step(found.listed(call.name.clone(), call.n)));
}
