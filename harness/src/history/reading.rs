//! Judges a history that was read while work went on: which findings are breaches, and which may only be unknown yet.
//!
//! Log, records and dead letters are read one after the other, so a run that moves meanwhile looks different in each.
//! For such a run, only a finding that no later event can heal is a breach: two ends, a gap, one id with two contents.
//! For a run at rest, every finding is a breach. If a stream has deleted old messages, it is used only for the runs
//! that it holds completely.
//!
//! Forbidden here: judging what a run did; the other modules do that.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use jiff::Timestamp;

use super::by_run::{self, Run};
use super::facts::History;
use super::round::Round;
use super::violation::{Kind, Violation};
use crate::wire::EventName;

/// How a history was read.
#[derive(Debug, Clone)]
pub struct Reading {
    /// A run that moved after this moment may not be at rest; neither is a run that has not ended.
    pub rested_since: Timestamp,
    /// No node works any more: every run is judged as one at rest, and must have ended.
    pub all_ended: bool,
    /// Records and dead letters of runs that ended before this moment may have been deleted by age.
    pub kept_since: Timestamp,
    /// The log begins at this moment because older messages are deleted; `None` if it is complete.
    pub cut_before: Option<Timestamp>,
}

/// The result of judging a history.
#[derive(Debug, Clone, Default)]
pub struct Judgement {
    /// Everything that is wrong, by run.
    pub violations: Vec<Violation>,
    /// Runs that have not ended.
    pub open: Vec<Open>,
    /// Runs that appear anywhere.
    pub runs: usize,
    /// Runs that ended so recently that some of their data may not be in place yet.
    pub restless: usize,
    /// Runs whose beginning the log does not hold any more: they are not judged.
    pub cut: usize,
}

/// A run that has not ended.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Open {
    /// The tenant it belongs to.
    pub tenant: String,
    /// The id of the run.
    pub run_id: String,
    /// The last fact known of it.
    pub last: String,
    /// The time of that fact.
    pub since: Option<Timestamp>,
}

impl History {
    /// Everything that is wrong with a history that was read like this.
    pub fn judge(&self, reading: &Reading) -> Judgement {
        let mut judgement = Judgement::default();
        for run in by_run::runs(self, &mut judgement.violations) {
            judgement.runs += 1;
            let (rounds, mut found) = self.judge_run(&run);
            if is_cut(&run, reading) {
                judgement.cut += 1;
                continue;
            }
            let is_terminal = is_terminal(&run, &rounds);
            let alive = last_sign(&run);
            if !is_terminal {
                judgement.open.push(open(&run));
            } else if alive.is_some_and(|at| at > reading.rested_since) {
                judgement.restless += 1;
            }
            if !reading.all_ended && (!is_terminal || alive.is_some_and(|at| at > reading.rested_since)) {
                let is_unknown = run.events.is_empty() && run.record.is_none();
                found.retain(|violation| stands(violation.kind, is_unknown));
            }
            if alive.is_some_and(|at| at < reading.kept_since) {
                found.retain(|violation| !matches!(violation.kind, Kind::RecordMissing | Kind::DeadLetterMissing));
            }
            judgement.violations.append(&mut found);
        }
        judgement.violations.sort();
        judgement
    }

    /// What is known of each of these runs, one line per fact. For people.
    pub fn evidence(&self, of: &BTreeSet<(String, String)>) -> BTreeMap<(String, String), Vec<String>> {
        let mut lines: BTreeMap<(String, String), Vec<String>> = BTreeMap::new();
        let mut say = |tenant: &str, run: &str, line: String| {
            let key = (tenant.to_owned(), run.to_owned());
            if of.contains(&key) {
                lines.entry(key).or_default().push(line);
            }
        };
        for accepted in &self.accepted {
            say(&accepted.tenant, &accepted.run_id, format!("receipt  {}", accepted.at));
        }
        for logged in &self.events {
            say(&logged.event.tenant, &logged.event.run_id, event_line(logged));
        }
        for record in &self.records {
            let mut line = format!("record   {}, round {}, attempt {}", record.state, record.round, record.attempt);
            for tried in &record.attempts {
                let error = tried.error.as_ref().map_or("no error", |error| &error.kind);
                let _ = write!(line, "; tried {}/{}: {error}", tried.round, tried.attempt);
            }
            say(&record.tenant, &record.run_id, line);
        }
        for dead_letter in &self.dead_letters {
            let round = dead_letter.round.map(|round| format!("of round {round}")).unwrap_or_default();
            say(&dead_letter.tenant, &dead_letter.run_id, format!("dead letter {round}"));
        }
        for call in &self.calls {
            let end = call.end.map_or("no end".to_owned(), |end| end.to_string());
            let by = call.node.as_deref().map(|node| format!(" by {node}")).unwrap_or_default();
            let line = format!("call     {}/{}: {} to {end}{by}", call.round, call.attempt, call.start);
            say(&call.tenant, &call.run_id, line);
        }
        lines
    }
}

fn event_line(logged: &crate::stored::Logged) -> String {
    let event = &logged.event;
    let mut line = format!("log {:<5}{} {} id {}", logged.sequence, event.at, event.event, event.id);
    if event.attempt > 0 {
        let _ = write!(line, " attempt {} of {}", event.attempt, event.max_attempts);
    }
    for (name, at) in [("run_at", event.run_at), ("retry_at", event.retry_at)] {
        if let Some(at) = at {
            let _ = write!(line, " {name} {at}");
        }
    }
    if let Some(error) = &event.error {
        let _ = write!(line, " error {}", error.kind);
    }
    for (name, text) in [("reason", &event.reason), ("node", &event.node)] {
        if let Some(text) = text {
            let _ = write!(line, " {name} {text}");
        }
    }
    line
}

/// Whether a finding is a breach whatever may still follow. A run without any trace may still leave one; the caller
/// decides about such a run, because the caller can check whether its job still waits.
fn stands(kind: Kind, is_unknown: bool) -> bool {
    use Kind::{CallUnpublished, Lost, Missing, NoEnd, NotCalled, Overlap};
    use Kind::{DeadLetterMissing, DeadLetterUnexpected, RecordDisagrees, RecordMissing, StaleStart};
    match kind {
        Lost => is_unknown,
        NoEnd | CallUnpublished | NotCalled | DeadLetterMissing | DeadLetterUnexpected | RecordDisagrees
        | RecordMissing => false,
        // The event that excuses it (the lost lease, or the return of the job) may not be published yet.
        Overlap | StaleStart => false,
        // The log has a gap here, because the event would be out of order if it came now. If the log has no event of
        // the run at all, the log is only behind.
        Missing => !is_unknown,
        _ => true,
    }
}

/// By the log or by the record: one may be ahead of the other, and a record that was set back does not excuse it.
fn is_terminal(run: &Run<'_>, rounds: &BTreeMap<u32, Round>) -> bool {
    let last = rounds.values().next_back();
    let on_record = run.record.filter(|record| record.is_terminal()).map(|record| record.round.max(1));
    match (last, on_record) {
        (Some(last), Some(round)) if round >= last.number => true,
        (Some(last), _) => last.end.is_some(),
        (None, on_record) => on_record.is_some(),
    }
}

/// When something last happened to it.
fn last_sign(run: &Run<'_>) -> Option<Timestamp> {
    let record = run.record.into_iter().flat_map(|record| [record.enqueued_at, record.started_at, record.ended_at]);
    run.events.iter().map(|event| event.at).chain(record.flatten()).max()
}

/// Whether the events that the log still holds of it may begin in the middle.
fn is_cut(run: &Run<'_>, reading: &Reading) -> bool {
    let Some(begin) = reading.cut_before else { return false };
    let Some(first) = run.events.first() else {
        return last_sign(run).is_some_and(|at| at < begin) || run.accepted.is_some_and(|accepted| accepted.at < begin);
    };
    let opens = matches!(first.event, EventName::Scheduled | EventName::Enqueued);
    let alone = first.event.is_end() && run.events.len() == 1 && first.attempt == 0;
    first.round > 1 || !(opens || alone)
}

fn open(run: &Run<'_>) -> Open {
    let published = run.events.last().map(|event| match event.attempt {
        0 => format!("{}, round {}", event.event, event.round.max(1)),
        attempt => format!("{}, round {}, attempt {attempt}", event.event, event.round.max(1)),
    });
    let recorded = || run.record.map(|record| format!("record {}", record.state));
    let last = published.or_else(recorded).unwrap_or_else(|| "nothing is known of it yet".to_owned());
    let since = last_sign(run).or(run.accepted.map(|accepted| accepted.at));
    Open { tenant: run.tenant.clone(), run_id: run.id.clone(), last, since }
}
