//! What is known of a run, in words. Pure: all facts are arguments, the time included.

use longshore_backbone::wire::api::{
    Attempt, BreakerState, BreakerStatus, QueueStatus, Record, RunError, STRANDED, WhyLine,
};
use longshore_backbone::wire::logged::ENDS;
use longshore_domain::run::DeferReason;
use longshore_domain::words::{age, cut, moment, number, span, took};
use longshore_domain::{ErrorKind, RunState, Timestamp};
use serde_json::Value;

use super::text;

const ERROR: usize = 400;

pub(super) struct Facts {
    pub(super) record: Record,
    /// Its events as the log has them.
    pub(super) events: Vec<Value>,
    /// Until when the log was read, if not to its end.
    pub(super) read_until: Option<Timestamp>,
    /// Its queue as it is now.
    pub(super) queue: Option<QueueStatus>,
    /// The names of the nodes that are there, if that is known.
    pub(super) nodes: Option<Vec<String>>,
    /// The breakers of its type that are not idle.
    pub(super) breakers: Vec<BreakerStatus>,
    pub(super) now: Timestamp,
}

impl Facts {
    /// What happened, in order.
    pub(super) fn lines(&self) -> Vec<WhyLine> {
        let mut lines = self.logged();
        let last = lines.iter().map(|line| line.at).max();
        // What the log has of the run, as far as it was read, ends before what its record says.
        if self.events.is_empty() || self.read_until.is_some() || self.lacks_the_end() {
            lines.extend(self.recorded().into_iter().filter(|line| last.is_none_or(|last| line.at > last)));
        }
        // Events of several nodes may stand in another order in the log; those of one moment stay as they stand there.
        lines.sort_by_key(|line| line.at);
        lines
    }

    /// Whether the run has ended, and the log has events of it, but not that of its end.
    fn lacks_the_end(&self) -> bool {
        let Some(ended_at) = self.record.ended_at.map(|at| at.to_string()) else { return false };
        !self.events.is_empty() && !self.events.iter().any(|event| is_end(event, &ended_at))
    }

    fn logged(&self) -> Vec<WhyLine> {
        // Since when it has been waiting.
        let mut since: Option<Timestamp> = None;
        let mut lines = Vec::new();
        for event in &self.events {
            let Ok(at) = Timestamp::parse(text(event, "at")) else { continue };
            let waited = since.map(|since| format!(", after {} of waiting", span(since, at)));
            match text(event, "event") {
                "enqueued" | "scheduled" | "released" => since = Some(at),
                // One that is not tried again becomes a dead letter at once, and waits for nothing.
                "failed" => since = Some(at).filter(|_| event.get("retry_at").is_some()),
                "started" => since = None,
                "progress" | "log" | "step_completed" => continue,
                _ => {}
            }
            lines.push(WhyLine { at: Some(at), text: happened(event, at, &waited.unwrap_or_default()) });
        }
        lines
    }

    /// The same from the record alone, which says less.
    fn recorded(&self) -> Vec<WhyLine> {
        let record = &self.record;
        let mut lines = Vec::new();
        lines.extend(record.enqueued_at.map(|at| WhyLine {
            at: Some(at),
            text: format!("enqueued in queue {} with priority {}", record.queue, record.priority.number()),
        }));
        for attempt in &record.attempts {
            let Attempt { round, attempt: nth, started_at, ended_at, node, error, retry_at, put_back, .. } = attempt;
            let round = if *round > 1 { format!(" of round {round}") } else { String::new() };
            lines.push(WhyLine { at: Some(*started_at), text: format!("attempt {nth}{round} started on {node}") });
            let Some(at) = *ended_at else { continue };
            let again = retry_at.map(|retry| format!("; the next attempt was due {} later", span(at, retry)));
            let text = match (error, put_back) {
                (Some(error), _) => format!("it failed: {}{}", said(error), again.unwrap_or_default()),
                (None, Some(why)) => format!("it was put back ({why}), which uses up no attempt"),
                (None, None) => continue,
            };
            lines.push(WhyLine { at: Some(at), text });
        }
        lines.extend(record.ended_at.map(|at| WhyLine { at: Some(at), text: format!("ended: {}", record.state) }));
        lines
    }

    /// How the run stands, in a few sentences.
    pub(super) fn summary(&self) -> Vec<String> {
        // Nothing can bring it on any more.
        let is_stranded = self.record.waiting_for.as_ref().is_some_and(|of| of.reason == STRANDED);
        let mut said = match self.record.state.known() {
            _ if is_stranded => self.stranded(),
            Some(RunState::Scheduled) => self.scheduled(),
            Some(RunState::Enqueued) => self.enqueued(),
            Some(RunState::Running) => self.running(),
            Some(RunState::Retrying) => self.retrying(),
            _ => self.ended(),
        };
        if let Some(until) = self.read_until {
            said.push(format!("The event log was read up to {until}: give it more time."));
        } else if self.lacks_the_end() {
            said.push("The event log did not have its end yet when it was read; its record has.".to_owned());
        }
        // Until a node has looked at a job, it has no events.
        let is_new = self.record.state == RunState::Enqueued.into() && self.record.attempts.is_empty();
        if self.events.is_empty()
            && self.read_until.is_none()
            && !is_new
            && self.record.state != RunState::Scheduled.into()
        {
            said.push("The event log has nothing of it, or may not be read; this is what its record says.".to_owned());
        }
        said
    }

    fn scheduled(&self) -> Vec<String> {
        match self.record.run_at {
            Some(at) if at > self.now => vec![format!("It waits for its time: {}.", moment(at, self.now))],
            Some(at) => {
                let came = format!("Its time came {} ago; it waits for a worker.", age(at, self.now));
                [vec![came], self.waits()].concat()
            }
            None => vec!["It waits for its time.".to_owned()],
        }
    }

    fn enqueued(&self) -> Vec<String> {
        let since = self.record.enqueued_at.map(|at| format!(" for {}", span(at, self.now))).unwrap_or_default();
        let mut said = [vec![format!("It has been waiting{since}.")], self.waits()].concat();
        let next = self.record.run_at.filter(|at| *at > self.now);
        said.extend(next.map(|at| format!("It is looked at again at {}.", moment(at, self.now))));
        said
    }

    fn running(&self) -> Vec<String> {
        let record = &self.record;
        let node = record.node.as_deref().unwrap_or("a node");
        let started = record.attempts.last().map(|attempt| attempt.started_at).or(record.started_at);
        let since = started.map(|at| format!(" for {}", span(at, self.now))).unwrap_or_default();
        let nth = record.attempt.unwrap_or(1);
        let mut said = vec![format!("Attempt {nth} of {} has been running{since} on {node}.", record.max_attempts)];
        if self.nodes.as_ref().is_some_and(|nodes| !nodes.iter().any(|other| other == node)) {
            said.push(format!("Node {node} is not there any more: once the lease is over another node takes the job."));
        }
        if let Some(progress) = &record.progress {
            said.push(format!("Its handler last reported: {}.", cut(progress.get(), 200)));
        }
        said
    }

    fn retrying(&self) -> Vec<String> {
        let record = &self.record;
        let (next, of) = (record.attempt.unwrap_or(0) + 1, record.max_attempts);
        let failed = record.error.as_ref().map(|error| format!("The last one failed: {}.", ended_by(&said(error))));
        match record.run_at {
            Some(at) if at > self.now => {
                let starts = format!("Attempt {next} of {of} starts at {}.", moment(at, self.now));
                let at_once = format!("{} runs run-now {} starts it at once.", self.command(), record.run_id);
                [starts].into_iter().chain(failed).chain([at_once]).collect()
            }
            _ => {
                let due = format!("Attempt {next} of {of} is due and waits for a worker.");
                [due].into_iter().chain(self.waits()).chain(failed).collect()
            }
        }
    }

    /// The program, asked as the run's tenant.
    fn command(&self) -> String {
        match self.record.tenant.as_str() {
            "default" => "longshore".to_owned(),
            tenant => format!("longshore --tenant {tenant}"),
        }
    }

    /// What the node says that it waits for.
    fn waits_for(&self) -> Option<String> {
        let words = &self.record.waiting_for.as_ref()?.message;
        Some(format!("It waits for {}.", cut(words.strip_prefix("waits for ").unwrap_or(words), ERROR)))
    }

    /// What became of a run that nothing can bring on, and what to do.
    fn stranded(&self) -> Vec<String> {
        let record = &self.record;
        let mut said = vec![match record.state.known() {
            Some(RunState::Running) => {
                let node = record.node.as_deref().unwrap_or("a node");
                let started = record.attempts.last().map(|attempt| attempt.started_at);
                let since = started.map(|at| format!(" {} ago", age(at, self.now))).unwrap_or_default();
                let nth = record.attempt.unwrap_or(1);
                format!("Attempt {nth} of {} started{since} on {node}, and no end of it is known.", record.max_attempts)
            }
            _ => {
                let since = record.run_at.map(|at| format!(" {} ago", age(at, self.now))).unwrap_or_default();
                format!("Its time came{since}, and it did not start.")
            }
        }];
        said.extend(self.waits_for());
        said.push(format!(
            "No node will start it again: {} runs cancel {} ends it; then submit its job again.",
            self.command(),
            record.run_id
        ));
        said
    }

    /// What keeps a job that could start from starting.
    fn waits(&self) -> Vec<String> {
        let mut said: Vec<String> = self.waits_for().into_iter().collect();
        let deferral = self.deferral();
        if deferral.is_some_and(|(_, reason)| reason == DeferReason::Detached.as_str()) {
            return said;
        }
        if let Some((at, reason)) = deferral {
            said.push(format!("It was put off {} ago: {}.", age(at, self.now), awaited(reason)));
        }
        for breaker in &self.breakers {
            if breaker.state.known().is_some_and(|state| *state != BreakerState::Closed) {
                let until = breaker.until.map(|at| format!(" until {}", moment(at, self.now))).unwrap_or_default();
                said.push(format!("The circuit breaker of {} is {}{until}.", breaker.job_type, breaker.state));
            }
        }
        match &self.queue {
            Some(queue) if !queue.served => {
                said.push(format!("No node serves queue {}: start one whose configuration names it.", queue.queue));
            }
            Some(queue) => {
                let ahead = queue.depth.saturating_sub(queue.running);
                said.push(format!(
                    "In queue {} {} {}, and {} of {} workers are busy.",
                    queue.queue,
                    number(ahead),
                    if ahead == 1 { "job waits" } else { "jobs wait" },
                    number(queue.running),
                    number(queue.concurrency)
                ));
            }
            None => {}
        }
        said
    }

    /// When and why it was last put off, since it last ran.
    fn deferral(&self) -> Option<(Timestamp, &str)> {
        let is_step = |event: &&Value| ["progress", "log", "step_completed"].contains(&text(event, "event"));
        self.events.iter().rev().find(|event| !is_step(event)).and_then(put_off)
    }

    /// How many milliseconds attempts of the round ran until they were put back: the record forgets that as one starts
    /// again.
    fn ran_before(&self) -> u64 {
        let record = &self.record;
        let ends: Vec<String> =
            record.attempts.iter().filter_map(|attempt| Some(attempt.ended_at?.to_string())).collect();
        let events = self.events.iter().filter(|event| event["round"] == record.round);
        let forgotten = events.filter(|event| !ends.iter().any(|end| end == text(event, "at")));
        forgotten.filter_map(put_back).fold(0, u64::saturating_add)
    }

    fn ended(&self) -> Vec<String> {
        let record = &self.record;
        let in_all = record.enqueued_at.zip(record.ended_at).map(|(from, to)| span(from, to));
        let attempts = record.attempts.iter().filter(|attempt| attempt.round == record.round);
        let ran: u128 = attempts.fold(0, |ran, attempt| {
            ran + attempt.ended_at.map_or(0, |ended| ended.since(attempt.started_at).as_millis())
        });
        let ran = took(u64::try_from(ran).unwrap_or(u64::MAX).saturating_add(self.ran_before()));
        let tries = match record.attempt.unwrap_or(0) {
            0 => "without an attempt".to_owned(),
            1 => "at the first attempt".to_owned(),
            tries => format!("after {tries} attempts"),
        };
        let tries = if record.round > 1 { format!("{tries} of round {}", record.round) } else { tries };
        let why = record.error.as_ref().map(|error| format!(": {}", ended_by(&said(error)))).unwrap_or_default();
        let mut summary = vec![match record.state.known() {
            Some(RunState::Completed) => format!("It completed {tries}."),
            Some(RunState::Dead) => format!("It failed for good {tries}{why}."),
            Some(RunState::Cancelled) => match &record.error {
                // It made way for another of its key, which its error names.
                Some(error) if error.kind == ErrorKind::Cancelled.into() => {
                    format!("It was cancelled {tries}: {}.", ended_by(&cut(&error.message, ERROR)))
                }
                _ => {
                    format!("It was cancelled {tries}, because a user asked for it: {} audit says who.", self.command())
                }
            },
            Some(RunState::Expired) => "It expired: no attempt had started in time.".to_owned(),
            Some(RunState::Duplicate) => {
                let of = record.duplicate_of.as_ref().map(|of| format!(" {of}")).unwrap_or_default();
                format!("It did nothing: run{of} has its idempotency key.")
            }
            Some(RunState::Discarded) => format!("It failed{why}, and its dead letter was discarded."),
            _ => format!("It is {}.", record.state),
        }];
        summary.extend(
            in_all.map(|in_all| format!("From being enqueued to its end it took {in_all}, of which it ran {ran}.")),
        );
        // When it was last put off, whatever came after that.
        let last_deferral = self.events.iter().rev().find(|event| text(event, "event") == "deferred");
        if record.attempt.unwrap_or(0) == 0
            && let Some((at, reason)) = last_deferral.and_then(put_off)
        {
            summary.push(format!("It had been put off at {at}: {}.", awaited(reason)));
        }
        if record.state == RunState::Dead.into() {
            summary.push(match record.erased_at {
                Some(at) => format!("It was erased at {at}: its job is gone."),
                None => format!(
                    "{0} dlq get {1} shows its job; {0} dlq replay {1} runs it again.",
                    self.command(),
                    record.run_id
                ),
            });
        }
        summary
    }
}

/// How long an attempt had run as it was put back, if the event says that it was.
fn put_back(event: &Value) -> Option<u64> {
    let is_one = match text(event, "event") {
        "released" => true,
        "deferred" => text(event, "reason") != DeferReason::Detached.as_str(),
        _ => false,
    };
    event.get("duration_ms").and_then(Value::as_u64).filter(|_| is_one)
}

/// When and why a job was put off, if the event says that it was.
fn put_off(event: &Value) -> Option<(Timestamp, &str)> {
    let at = Timestamp::parse(text(event, "at")).ok().filter(|_| text(event, "event") == "deferred")?;
    Some((at, text(event, "reason")))
}

/// Whether an event is that of a run's end at this time.
pub(super) fn is_end(event: &Value, ended_at: &str) -> bool {
    ENDS.contains(&text(event, "event")) && text(event, "at") == ended_at
}

fn happened(event: &Value, at: Timestamp, waited: &str) -> String {
    let time = |field: &str| Timestamp::parse(text(event, field)).ok();
    let millis = |field: &str| event.get(field).and_then(Value::as_u64).map(took);
    let lasted = millis("duration_ms").map(|lasted| format!(" after {lasted}")).unwrap_or_default();
    let error = event
        .get("error")
        .map(|error| format!(": {}: {}", cut(text(error, "kind"), 40), cut(text(error, "message"), ERROR)));
    let error = error.unwrap_or_default();
    let message =
        event.get("error").map(|error| format!(": {}", cut(text(error, "message"), ERROR))).unwrap_or_default();
    let due = time("run_at").filter(|due| *due > at);
    match text(event, "event") {
        "scheduled" => match due {
            Some(due) => format!("accepted; it waits for its time, {} later", span(at, due)),
            None => "accepted; it waits for its time".to_owned(),
        },
        "enqueued" => {
            format!("enqueued in queue {} with priority {}", cut(text(event, "queue"), 64), event["priority"])
        }
        "started" => {
            let node = cut(text(event, "node"), 64);
            format!("attempt {} of {} started on {node}{waited}", event["attempt"], event["max_attempts"])
        }
        "deferred" if text(event, "reason") == DeferReason::Detached.as_str() => {
            let until = due.map(|due| format!(" within {}", span(at, due))).unwrap_or_default();
            format!("its handler replied that the attempt ends later, from elsewhere{until}")
        }
        "deferred" => {
            let until = due.map(|due| format!("; looked at again {} later", span(at, due))).unwrap_or_default();
            let what = if put_back(event).is_some() { format!("put back{lasted}") } else { "not started".to_owned() };
            format!("{what}: {}{until}; this uses up no attempt", awaited(text(event, "reason")))
        }
        "released" => format!("put back{lasted}, because the node was asked to end; the same attempt starts again"),
        "failed" => match time("retry_at") {
            Some(retry) => format!("the attempt failed{lasted}{error}; the next one is due {} later", span(at, retry)),
            None => format!("the attempt failed{lasted}{error}"),
        },
        "completed" => format!("completed{lasted}"),
        "dlq" => format!("ended as a dead letter{waited}{error}"),
        "cancelled" => format!("cancelled{waited}{message}"),
        "expired" => format!("expired{waited}: no attempt had started in time"),
        "duplicate" => format!("ended as a duplicate of {}", cut(text(event, "duplicate_of"), 96)),
        "replayed" => "replayed: its next round begins, with all its attempts".to_owned(),
        "discarded" => "its dead letter was discarded".to_owned(),
        other => cut(other, 40),
    }
}

/// Why a job was not started, as a clause.
fn awaited(reason: &str) -> String {
    let known = DeferReason::parse(reason).map(|reason| reason.awaited("its type"));
    format!("it waited for {}", known.unwrap_or_else(|| cut(reason, 60)))
}

fn said(error: &RunError) -> String {
    if error.message.is_empty() {
        return error.kind.to_string();
    }
    format!("{}: {}", error.kind, cut(&error.message, ERROR))
}

/// A text that ends a sentence has no full stop of its own.
fn ended_by(text: &str) -> &str {
    text.trim_end().trim_end_matches('.')
}

#[cfg(test)]
mod tests;
