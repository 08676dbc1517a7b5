//! The gate of remote handlers: they have at most as many jobs at once as their capacity allows.

use std::time::Instant;

use super::{Gate, Gates, HeldUp, LetIn};
use crate::attempt::assignment::Assignment;
use crate::attempt::permits::Permits;

pub(super) struct OfRemoteHandlers;

impl Gate for OfRemoteHandlers {
    /// A handler in this node has as much capacity as there are workers.
    fn applies_to(&self, gates: &Gates, assignment: &Assignment) -> bool {
        gates.routing.handler(&assignment.job).is_none()
    }

    fn admit(&self, gates: &Gates, assignment: &Assignment, _now: Instant, permits: &mut Permits) -> LetIn {
        if assignment.permits.capacity.is_some() {
            return Ok(());
        }
        gates.routing.discovery.saw_remote();
        let capacity = gates.routing.capacity_of(&assignment.job);
        let opens = capacity.opens;
        permits.capacity = Some(gates.routing.capacity.take(capacity).ok_or_else(|| until(opens))?);
        Ok(())
    }
}

/// Whether the job would have to wait at this gate, which is asked after others have given something: a job whose
/// handlers are full takes nothing from those. It does not take capacity first and give it back either: the return of
/// capacity wakes all that wait for it.
pub(super) fn look(gates: &Gates, assignment: &Assignment) -> LetIn {
    if assignment.permits.capacity.is_some() {
        return Ok(());
    }
    let capacity = gates.routing.capacity_of(&assignment.job);
    let is_full = gates.routing.capacity.free(&capacity) == 0;
    if is_full { Err(until(capacity.opens)) } else { Ok(()) }
}

/// No handler has room, or was there: the next is looked for at that moment. Neither is published as a deferral.
fn until(opens: Option<Instant>) -> HeldUp {
    HeldUp { until: opens, ..HeldUp::default() }
}
