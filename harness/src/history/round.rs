//! Follows one round of one run, event by event, in the order of the log.
//!
//! After a breach it continues as if the event had been right, so that one mistake is reported once and not again by
//! every later event.

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::by_run::Run;
use super::facts::Rules;
use super::span;
use super::violation::{Kind, Violation};
use crate::wire::{Event, EventName};

/// What the log says about one round.
#[derive(Debug, Default)]
pub(super) struct Round {
    pub number: u32,
    /// Its end, if the log has one.
    pub end: Option<EventName>,
    /// The kind of error it ended with.
    pub end_error: Option<String>,
    /// Discarded after it had become a dead letter.
    pub discarded: bool,
    /// The last attempt that started.
    pub started: u32,
    /// Failed attempts and their kinds of error.
    pub failures: Vec<(u32, String)>,
    replayed: bool,
    scheduled: bool,
    enqueued: bool,
    /// An event came that requires `enqueued` before it.
    wants_enqueued: bool,
    running: Option<u32>,
    /// The attempt that was returned and starts again.
    handed_back: Option<u32>,
    /// The last failure: its attempt and when the next one is due.
    failed: Option<(u32, Option<Timestamp>)>,
    due: Option<Timestamp>,
}

/// Follows all rounds of a run and returns them by number.
pub(super) fn judge(run: &Run<'_>, rules: &Rules, found: &mut Vec<Violation>) -> BTreeMap<u32, Round> {
    let mut rounds: BTreeMap<u32, Round> = BTreeMap::new();
    let hurried = rules.hurried.contains(&(run.tenant.clone(), run.id.clone()));
    for event in &run.events {
        let number = event.round.max(1);
        if !rounds.contains_key(&number) {
            if let Err(detail) = may_open(&rounds, number) {
                found.push(run.violation(Kind::RoundOutOfTurn, detail));
            }
            rounds.insert(number, Round { number, ..Round::default() });
        }
        let round = rounds.get_mut(&number).expect("inserted above");
        let mut report = |kind, detail: String| found.push(run.violation(kind, format!("round {number}: {detail}")));
        round.follow(event, &mut report);
        if !hurried {
            round.check_time(event, rules, &mut report);
        }
        round.advance(event);
    }
    for round in rounds.values() {
        round.close(&mut |kind, detail| found.push(run.violation(kind, format!("round {}: {detail}", round.number))));
    }
    rounds
}

/// Whether round `number` may begin after the rounds so far.
fn may_open(rounds: &BTreeMap<u32, Round>, number: u32) -> Result<(), String> {
    let Some((last, round)) = rounds.last_key_value() else {
        return if number == 1 { Ok(()) } else { Err(format!("the first event published is of round {number}")) };
    };
    if number != last + 1 {
        return Err(format!("round {number} came after round {last}"));
    }
    if round.end != Some(EventName::Dlq) || round.discarded {
        return Err(format!("round {number} began, but round {last} had not ended as a dead letter"));
    }
    Ok(())
}

/// Whether a handler had the job.
fn leaves_handler(event: &Event) -> bool {
    is_detached(event) || event.reason.as_deref() == Some("snoozed")
}

fn is_detached(event: &Event) -> bool {
    event.reason.as_deref() == Some("detached")
}

type Report<'r> = &'r mut dyn FnMut(Kind, String);

impl Round {
    /// Reports what is wrong if `event` comes at this point.
    fn follow(&self, event: &Event, report: Report<'_>) {
        use EventName as Name;
        if event.event == Name::Unknown {
            return report(Kind::Unknown, format!("event {}", event.id));
        }
        if let Some(end) = self.end {
            return self.follow_end(end, event, report);
        }
        match event.event {
            Name::Replayed => self.follow_replayed(report),
            Name::Scheduled => self.follow_scheduled(event, report),
            Name::Enqueued => self.follow_enqueued(report),
            Name::Started => self.follow_started(event, report),
            Name::Failed => self.follow_failed(event, report),
            Name::Completed => self.follow_completed(event, report),
            Name::Released if self.running.is_none() => {
                report(Kind::OutOfOrder, format!("attempt {} was released while none was running", event.attempt));
            }
            Name::Deferred if self.running.is_none() && leaves_handler(event) => {
                let how = event.reason.as_deref().unwrap_or_default();
                report(Kind::Missing, format!("attempt {} was {how}; its start was not published", event.attempt));
            }
            Name::Progress | Name::Log | Name::StepCompleted if event.attempt == 0 || event.attempt > self.started => {
                report(
                    Kind::OutOfOrder,
                    format!("{} of attempt {}, which had not started", event.event, event.attempt),
                );
            }
            Name::Dlq => {
                if let Some(attempt) = self.running {
                    report(
                        Kind::Missing,
                        format!("it became a dead letter, but how attempt {attempt} failed was not published"),
                    );
                }
            }
            Name::Expired | Name::Duplicate if self.started > 0 && self.handed_back.is_none() => {
                report(Kind::OutOfOrder, format!("{} after attempt {} had started", event.event, self.started));
            }
            Name::Discarded if self.running.is_some() => {
                report(Kind::OutOfOrder, "discarded while it was running".to_owned());
            }
            Name::Discarded => report(Kind::Missing, "discarded, but dlq was not published".to_owned()),
            _ => {}
        }
    }

    fn follow_end(&self, end: EventName, event: &Event, report: Report<'_>) {
        use EventName as Name;
        match event.event {
            Name::Discarded if end == Name::Dlq && !self.discarded => {}
            // Published by a holder that did not know of the end yet; it changes nothing.
            Name::Deferred if self.running.is_none() && leaves_handler(event) => {
                let how = event.reason.as_deref().unwrap_or_default();
                report(Kind::Missing, format!("attempt {} was {how}; its start was not published", event.attempt));
            }
            Name::Progress | Name::Log | Name::StepCompleted if event.attempt <= self.started => {}
            name if name.is_end() => report(Kind::SecondEnd, format!("{name} after {end}")),
            name => report(Kind::AfterEnd, format!("{name} (attempt {}) after {end}", event.attempt)),
        }
    }

    fn follow_replayed(&self, report: Report<'_>) {
        if self.replayed {
            report(Kind::Doubled, "replayed under two ids".to_owned());
        } else if self.number == 1 {
            report(Kind::OutOfOrder, "a first round cannot be a replay".to_owned());
        } else if self.scheduled || self.enqueued || self.started > 0 {
            report(Kind::OutOfOrder, "replayed after the round had begun".to_owned());
        }
    }

    fn follow_scheduled(&self, event: &Event, report: Report<'_>) {
        if self.running.is_some() {
            report(Kind::OutOfOrder, "scheduled while it was running".to_owned());
        } else if self.scheduled && self.due == event.run_at {
            report(Kind::Doubled, "scheduled for the same time under two ids".to_owned());
        }
    }

    fn follow_enqueued(&self, report: Report<'_>) {
        if self.enqueued {
            report(Kind::Doubled, "enqueued under two ids".to_owned());
        } else if self.wants_enqueued {
            report(Kind::OutOfOrder, "enqueued after an event that must follow it".to_owned());
        }
    }

    fn follow_started(&self, event: &Event, report: Report<'_>) {
        let attempt = event.attempt;
        match self.running {
            Some(running) if running == attempt => {
                report(Kind::Doubled, format!("attempt {attempt} started under two ids without being returned"));
            }
            Some(running) if running + 1 == attempt => {
                report(
                    Kind::Missing,
                    format!("attempt {attempt} started, but how attempt {running} ended was not published"),
                );
            }
            _ if attempt != self.next_attempt() => {
                report(Kind::AttemptGap, format!("attempt {attempt} started, {} was next", self.next_attempt()));
            }
            _ => {}
        }
        if let Some((failed, None)) = self.failed
            && attempt > failed
        {
            report(
                Kind::Unannounced,
                format!("attempt {attempt} started, but attempt {failed} had announced no retry"),
            );
        }
        if event.max_attempts > 0 && attempt > event.max_attempts {
            report(Kind::AboveLimit, format!("attempt {attempt} of {} started", event.max_attempts));
        }
    }

    fn follow_failed(&self, event: &Event, report: Report<'_>) {
        let attempt = event.attempt;
        let no_handler = event.error.as_ref().is_some_and(|error| error.kind == "no_handler");
        if self.failed.is_some_and(|(failed, _)| failed == attempt) && self.running.is_none() {
            report(Kind::Doubled, format!("attempt {attempt} failed under two ids"));
        } else if self.running != Some(attempt) && !(no_handler && attempt == self.next_attempt()) {
            report(Kind::Missing, format!("attempt {attempt} failed, but its start was not published"));
        }
        if event.max_attempts > 0 && attempt >= event.max_attempts && event.retry_at.is_some() {
            report(Kind::AboveLimit, format!("attempt {attempt} of {} announced a retry", event.max_attempts));
        }
    }

    fn follow_completed(&self, event: &Event, report: Report<'_>) {
        if self.running != Some(event.attempt) {
            report(Kind::Missing, format!("attempt {} completed; its start was not published", event.attempt));
        }
    }

    /// The attempt that may start now, if none is running.
    fn next_attempt(&self) -> u32 {
        self.handed_back.unwrap_or_else(|| self.failed.map_or(1, |(failed, _)| failed + 1))
    }

    fn check_time(&self, event: &Event, rules: &Rules, report: Report<'_>) {
        if !matches!(event.event, EventName::Enqueued | EventName::Started) || self.end.is_some() {
            return;
        }
        let retry = self.failed.and_then(|(_, retry_at)| retry_at).filter(|_| event.event == EventName::Started);
        for due in [self.due, retry].into_iter().flatten() {
            let early = due.duration_since(event.at);
            if early > span(rules.clock_skew) {
                let (name, attempt) = (event.event, event.attempt);
                report(Kind::Early, format!("{name} (attempt {attempt}) at {}, due at {due}", event.at));
            }
        }
    }

    /// Updates the round with `event`.
    fn advance(&mut self, event: &Event) {
        use EventName as Name;
        let invalid = event.error.as_ref().is_some_and(|error| error.kind == "invalid");
        self.wants_enqueued |= match event.event {
            Name::Started | Name::Deferred | Name::Released | Name::Failed | Name::Completed => true,
            Name::Dlq => !invalid,
            // A job may also expire, or make way for another with its key, while it waits for its time.
            Name::Expired | Name::Duplicate => !self.scheduled,
            _ => false,
        };
        match event.event {
            Name::Replayed => self.replayed = true,
            Name::Scheduled => (self.scheduled, self.due) = (true, event.run_at),
            Name::Enqueued => self.enqueued = true,
            Name::Started => {
                (self.running, self.handed_back) = (Some(event.attempt), None);
                self.started = self.started.max(event.attempt);
            }
            // It goes on elsewhere.
            Name::Deferred if is_detached(event) => {}
            Name::Deferred | Name::Released => self.handed_back = self.running.take().or(self.handed_back),
            Name::Failed => {
                (self.running, self.handed_back) = (None, None);
                self.failed = Some((event.attempt, event.retry_at));
                let kind = event.error.as_ref().map(|error| error.kind.clone());
                self.failures.push((event.attempt, kind.unwrap_or_default()));
            }
            Name::Discarded if self.end == Some(Name::Dlq) => self.discarded = true,
            name if name.is_end() && self.end.is_none() => {
                self.end = Some(name);
                self.end_error = event.error.as_ref().map(|error| error.kind.clone());
                self.running = None;
            }
            _ => {}
        }
    }

    /// Reports what is missing when no more events will come.
    fn close(&self, report: Report<'_>) {
        if self.wants_enqueued && !self.enqueued {
            report(Kind::Missing, "enqueued was not published".to_owned());
        }
        if self.number > 1 && !self.replayed {
            report(Kind::Missing, "replayed was not published".to_owned());
        }
        if self.end.is_none() {
            let last =
                if self.started > 0 { format!("attempt {} started", self.started) } else { "not started".to_owned() };
            report(Kind::NoEnd, format!("no end was published ({last})"));
        }
    }
}
