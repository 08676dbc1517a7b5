//! Checks pauses: from the answer to a pause until its end was asked for, no attempt of its jobs starts on any node.
//!
//! It is judged by the handlers' calls, and by `started` of jobs whose handler is in the node. What a node had decided
//! before it confirmed may be on its way to a handler: that is allowed the time that a handler has to write its call
//! down, and longer where silent servers held the request back.

use jiff::Timestamp;

use super::by_run::Run;
use super::facts::{History, Pause, Rules};
use super::violation::{Kind, Violation};
use super::{lease, span};
use crate::wire::{Event, EventName};

/// Judges a run by all pauses.
pub(super) fn judge(history: &History, run: &Run<'_>, found: &mut Vec<Violation>) {
    let Some(first) = run.events.first() else { return };
    for pause in history.pauses.iter().filter(|pause| pause.concerns(first)) {
        if run.calls.is_empty() {
            let starts = run.events.iter().filter(|event| event.event == EventName::Started);
            for started in starts.filter(|started| pause.forbids(started.at, history.rules.clock_skew)) {
                found.push(violation(run, pause, (started.round.max(1), started.attempt), started.at));
            }
        }
        for call in run.calls.iter().filter(|call| pause.forbids_call(call.start, &history.rules)) {
            found.push(violation(run, pause, (call.round, call.attempt), call.start));
        }
    }
}

fn violation(run: &Run<'_>, pause: &Pause, (round, attempt): (u32, u32), at: Timestamp) -> Violation {
    let after = at.duration_since(pause.from);
    let detail = format!(
        "attempt {attempt} of round {round} started {after:#} after the pause of {} was answered at {}",
        pause.name(),
        pause.from
    );
    run.violation(Kind::StartedWhilePaused, detail)
}

impl Pause {
    fn concerns(&self, event: &Event) -> bool {
        self.queue.as_ref().is_none_or(|queue| *queue == event.queue)
            && self.job_type.as_ref().is_none_or(|job_type| *job_type == event.job_type)
    }

    fn forbids(&self, at: Timestamp, grace: std::time::Duration) -> bool {
        at > self.from + span(grace) && at < self.until
    }

    fn forbids_call(&self, at: Timestamp, rules: &Rules) -> bool {
        self.forbids(at, rules.clock_skew + rules.call_delay) && !lease::servers_were_silent(at, rules)
    }

    fn name(&self) -> String {
        let of = [("queue", &self.queue), ("type", &self.job_type)];
        let named = of.iter().filter_map(|(what, name)| Some(format!("{what} {}", name.as_ref()?)));
        named.collect::<Vec<_>>().join(", ")
    }
}
