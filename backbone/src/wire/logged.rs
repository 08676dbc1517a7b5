//! Events as they are read from the event log: what each is about, and which of them somebody asked for. One filter for
//! the command line, streams and webhooks. It reads the fields that it names, and leaves what handlers sent unread.

use std::borrow::Cow;

use longshore_domain::events::EventKind;
use longshore_domain::{JobType, Queue, RunId};
use serde::Deserialize;

/// Every event of a run, in the order in which a run has them.
pub const EVENTS: [&str; EventKind::ALL.len()] = EventKind::NAMES;

/// Events after which a round has no others, but for a dead letter that is discarded.
pub const ENDS: [&str; 6] = ["completed", "dlq", "cancelled", "expired", "duplicate", "discarded"];

/// What a line of the event log is about.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[expect(missing_docs, reason = "the fields have the names of the contract")]
pub struct Logged<'l> {
    /// The same whenever the event is published again.
    #[serde(borrow)]
    pub id: Cow<'l, str>,
    #[serde(borrow)]
    pub event: Cow<'l, str>,
    #[serde(borrow)]
    pub run_id: Cow<'l, str>,
    #[serde(borrow)]
    pub tenant: Cow<'l, str>,
    #[serde(borrow)]
    pub queue: Cow<'l, str>,
    #[serde(borrow, rename = "type")]
    pub job_type: Cow<'l, str>,
    pub round: u32,
    /// When it happened, RFC 3339.
    #[serde(borrow)]
    pub at: Cow<'l, str>,
    #[serde(default)]
    pub tags: Vec<String>,
}

impl<'l> Logged<'l> {
    /// Reads a line; `None`: it is no event of a run.
    pub fn read(line: &'l str) -> Option<Self> {
        serde_json::from_str(line).ok()
    }

    /// Whether it ends a round.
    pub fn is_end(&self) -> bool {
        ENDS.contains(&&*self.event)
    }

    /// What distinguishes it from every other event, and is the same when it is published again. Reports of handlers
    /// differ by what they say: a node that starts anew counts them anew, too.
    pub fn identity<'s>(&'s self, line: &'s str) -> &'s str {
        if ["progress", "log", "step_completed"].contains(&&*self.event) { line } else { &self.id }
    }
}

/// Which events are asked for: those that have one of the words in each list that is not empty.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EventFilter {
    /// Names of events.
    pub events: Vec<String>,
    /// Types; `email.>` means all that begin with `email.`, `email.*` those with one more part.
    pub types: Vec<String>,
    /// Queues.
    pub queues: Vec<String>,
    /// Runs.
    pub runs: Vec<String>,
    /// Tags.
    pub tags: Vec<String>,
}

impl EventFilter {
    /// Checks that every word can be what it stands for.
    ///
    /// # Errors
    /// The field, and what is wrong with its word.
    pub fn check(&self) -> Result<(), (&'static str, String)> {
        if let Some(unknown) = self.events.iter().find(|event| !EVENTS.contains(&event.as_str())) {
            return Err(("event", format!("{unknown:?} is not one of {}", EVENTS.join(", "))));
        }
        let all =
            |words: &[String], check: fn(&str) -> Result<(), String>| words.iter().try_for_each(|word| check(word));
        all(&self.types, check_type).map_err(|why| ("type", why))?;
        all(&self.queues, |word| parsed(word, Queue::parse(word))).map_err(|why| ("queue", why))?;
        all(&self.runs, |word| parsed(word, RunId::parse(word))).map_err(|why| ("run_id", why))
    }

    /// Whether an event is asked for.
    pub fn fits(&self, event: &Logged<'_>) -> bool {
        let has = |words: &[String], is: &str| words.is_empty() || words.iter().any(|word| word == is);
        has(&self.events, &event.event)
            && has(&self.queues, &event.queue)
            && has(&self.runs, &event.run_id)
            && (self.types.is_empty() || self.types.iter().any(|wanted| is_of_type(wanted, &event.job_type)))
            && (self.tags.is_empty() || self.tags.iter().any(|tag| event.tags.contains(tag)))
    }
}

fn parsed<T>(word: &str, parsed: Result<T, longshore_domain::NameError>) -> Result<(), String> {
    parsed.map(|_| ()).map_err(|error| format!("{word:?} {}", error.reason))
}

/// Checks a type, or a pattern of types.
///
/// # Errors
/// What is wrong with it.
pub fn check_type(wanted: &str) -> Result<(), String> {
    let front = wanted.strip_suffix(".>").or_else(|| wanted.strip_suffix(".*")).unwrap_or(wanted);
    parsed(wanted, JobType::parse(front))
}

fn is_of_type(wanted: &str, job_type: &str) -> bool {
    let rest = |front: &str| job_type.strip_prefix(front).filter(|rest| !rest.is_empty());
    match (wanted.strip_suffix('>'), wanted.strip_suffix('*')) {
        (Some(front), _) => rest(front).is_some(),
        (None, Some(front)) => rest(front).is_some_and(|rest| !rest.contains('.')),
        (None, None) => wanted == job_type,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAILED: &str = r#"{"v":1,"id":"default/r1/1/1/failed","event":"failed","run_id":"r1","tenant":"default",
        "queue":"main","priority":5,"type":"email.send","round":1,"attempt":1,"max_attempts":12,"at":"2026-11-21T12:00:01.500Z",
        "node":"n1","error":{"kind":"retryable","message":"x"},"tags":["a","b"]}"#;

    #[test]
    fn a_filter_takes_what_has_one_of_the_words_of_each_list() {
        let event = Logged::read(FAILED).unwrap();
        let list = |words: &str| words.split(',').filter(|word| !word.is_empty()).map(str::to_owned).collect();
        let fits = |[events, types, queues, runs, tags]: [&str; 5]| {
            let filter = EventFilter {
                events: list(events),
                types: list(types),
                queues: list(queues),
                runs: list(runs),
                tags: list(tags),
            };
            filter.check().unwrap();
            filter.fits(&event)
        };
        for wanted in [
            ["", "", "", "", ""],
            ["failed", "email.send", "main", "r1", "a"],
            ["dlq,failed", "email.>", "", "", "x,b"],
            ["", "x,email.*", "bulk,main", "", ""],
        ] {
            assert!(fits(wanted), "{wanted:?}");
        }
        for wanted in [
            ["dlq", "", "", "", ""],
            ["", "email", "", "", ""],
            ["", "e.>", "", "", ""],
            ["", "email.send.>", "", "", ""],
            ["", "", "bulk", "", ""],
            ["", "", "", "r2", ""],
            ["failed", "", "", "", "x"],
        ] {
            assert!(!fits(wanted), "{wanted:?}");
        }
    }

    #[test]
    fn a_filter_that_nothing_can_fit_is_refused_by_its_field() {
        let refused = |filter: EventFilter| filter.check().unwrap_err().0;
        let word = || vec!["no such".to_owned()];
        assert_eq!(refused(EventFilter { events: word(), ..EventFilter::default() }), "event");
        assert_eq!(refused(EventFilter { types: word(), ..EventFilter::default() }), "type");
        assert_eq!(refused(EventFilter { queues: word(), ..EventFilter::default() }), "queue");
        assert_eq!(refused(EventFilter { runs: word(), ..EventFilter::default() }), "run_id");
    }

    #[test]
    fn what_handlers_sent_is_passed_over_unread() {
        let deep = format!("{}{}", "[".repeat(500), "]".repeat(500));
        for result in ["1e400", r#""\ud800""#, "null", &deep] {
            let line = FAILED.replace(r#""tags""#, &format!(r#""result":{result},"tags""#));
            assert_eq!(Logged::read(&line).unwrap().tags, ["a", "b"], "{result}");
        }
        assert!(Logged::read(r#"{"event":"node_joined"}"#).is_none());
        let event = Logged::read(FAILED).unwrap();
        assert_eq!((event.identity(FAILED), event.is_end()), ("default/r1/1/1/failed", false));
    }

    #[test]
    fn every_event_has_its_name_in_the_list() {
        use longshore_domain::events::EventKind;
        for kind in
            [EventKind::Scheduled, EventKind::Log, EventKind::StepCompleted, EventKind::Discarded, EventKind::Replayed]
        {
            assert!(EVENTS.contains(&kind.as_str()));
        }
        assert!(ENDS.iter().all(|end| EVENTS.contains(end)));
    }
}
