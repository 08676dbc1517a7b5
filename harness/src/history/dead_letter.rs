//! Checks whether dead letters and events agree: a run that is dead now has one dead letter, any other run has none.

use std::collections::BTreeMap;

use super::by_run::Run;
use super::round::Round;
use super::violation::{Kind, Violation};
use crate::wire::EventName;

/// Judges the dead letters of `run` by the rounds in the log.
pub(super) fn judge(run: &Run<'_>, rounds: &BTreeMap<u32, Round>, found: &mut Vec<Violation>) {
    let last = rounds.values().next_back();
    let dead = last.filter(|round| round.end == Some(EventName::Dlq) && !round.discarded);
    let Some(round) = dead else {
        for dead_letter in &run.dead_letters {
            let round = dead_letter.round.map(|round| format!(" of round {round}")).unwrap_or_default();
            found.push(
                run.violation(Kind::DeadLetterUnexpected, format!("a dead letter{round}, but the run is not dead")),
            );
        }
        return;
    };
    let is_of_now = |of: Option<u32>| of.is_none_or(|of| of == round.number);
    for dead_letter in run.dead_letters.iter().filter(|dead_letter| !is_of_now(dead_letter.round)) {
        let of = dead_letter.round.unwrap_or(0);
        let detail = format!("a dead letter of round {of}, but the run died in round {}", round.number);
        found.push(run.violation(Kind::DeadLetterUnexpected, detail));
    }
    // An erasure deletes the dead letter with its personal data; the record says so.
    let is_erased = run.record.is_some_and(|record| record.rest.contains_key("erased_at"));
    match run.dead_letters.iter().filter(|dead_letter| is_of_now(dead_letter.round)).count() {
        0 if is_erased => {}
        0 => found.push(run.violation(Kind::DeadLetterMissing, format!("it died in round {}", round.number))),
        1 => {}
        more => found.push(run.violation(Kind::DeadLetterDoubled, format!("{more} of round {}", round.number))),
    }
}
