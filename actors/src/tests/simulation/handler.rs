//! How a handler behaves when it is called, and for how long.

use std::time::Duration;

use longshore_domain::outcome::Outcome;
use longshore_domain::run::RunResult;
use longshore_domain::{ErrorKind, Failure, Run};

use crate::tests::simulation::plan::Behaviour;
use crate::tests::simulation::world::World;

/// An attempt may last this long.
const TIME_LIMIT: i64 = 3_000;

/// One call.
pub(crate) struct Script {
    pub(crate) lasts: i64,
    pub(crate) ends: End,
}

pub(crate) enum End {
    Returns(Outcome),
    /// It would go on for longer than it may.
    RunsOutOfTime,
    KillsItsNode,
}

/// How the handler of `plan` behaves in the current attempt of `run`; `None`: no handler serves it now.
pub(crate) fn script(world: &World, plan: usize, run: &Run) -> Option<Script> {
    let calls = world.ledger.borrow().calls_of(plan);
    let first_round = run.round == 1;
    let plan = &world.plans[plan];
    let quick = world.chance.hits(2_500);
    let lasts = if quick { world.chance.between(0, 15) } else { plan.takes };
    let script = |outcome| Some(Script { lasts, ends: End::Returns(outcome) });
    let short = || millis(world.chance.between(0, 1_500));
    match plan.behaviour {
        Behaviour::Unserved(until) if world.clock.get() < until => None,
        Behaviour::Fails(times) if first_round && run.attempt <= times => script(failed(ErrorKind::Retryable)),
        Behaviour::AlwaysFails => script(failed(world.chance.pick(&[ErrorKind::Retryable, ErrorKind::Panic]))),
        Behaviour::Refuses if first_round => script(failed(ErrorKind::Permanent)),
        Behaviour::Kills if first_round => Some(Script { lasts, ends: End::KillsItsNode }),
        Behaviour::Hangs if first_round => Some(Script { lasts: TIME_LIMIT, ends: End::RunsOutOfTime }),
        Behaviour::Snoozes(times) if calls < times => script(Outcome::Snoozed(short())),
        Behaviour::Snoozes(_) if calls < 6 && world.chance.hits(2_000) => {
            script(Outcome::Busy { started: world.chance.hits(5_000) })
        }
        _ => script(Outcome::Completed(RunResult::None)),
    }
}

pub(crate) fn millis(millis: i64) -> Duration {
    Duration::from_millis(millis.unsigned_abs())
}

fn failed(kind: ErrorKind) -> Outcome {
    Outcome::Failed { failure: Failure::new(kind, "x"), retry_after: None }
}
