//! What of a run's story goes over the wire, in one piece of memory: its record, its events, and their subjects.
//!
//! There are up to ten such texts for every job. Each in memory of its own, taken by a worker and given back by the
//! connection's task, was a quarter of all that the node did.

use std::ops::Range;

use bytes::Bytes;
use longshore_backbone::Backbone;
use longshore_backbone::wire::subject::Names;
use longshore_backbone::wire::{event, record};
use longshore_domain::Run;
use longshore_domain::story;

use crate::story::{Told, Write};

/// Room for one event and its subject.
const EVENT: usize = 384;
/// Room for a record, an event and their subjects, as a job that completes needs them. Not more: up to 1,032 bytes the
/// system's allocator has at hand in each thread; beyond, it tidies up its whole heap for each.
const RECORD: usize = 1_024;

/// The events of a run that were not told yet: each a line of JSON, and where it goes live.
#[derive(Debug, Default)]
pub(crate) struct Lines {
    text: Bytes,
    /// Subject and body of each event that is to be told live.
    live: Vec<(Range<usize>, Range<usize>)>,
    log: Range<usize>,
}

impl Lines {
    /// Those of `run` beyond what was told.
    pub(crate) fn of(run: &Run, told: Told, node: &str, names: &Names) -> Self {
        // All three of an ordinary run are not told at once: two at its start, one at its end.
        Self::behind(Vec::with_capacity(2 * EVENT), run, told, node, names)
    }

    /// The same, with the record's write on `expected`.
    pub(crate) fn with_record(run: &Run, expected: u64, told: Told, node: &str, backbone: &Backbone) -> (Self, Write) {
        Self::with(run, expected, told, node, backbone.names(), || backbone.most_in_record())
    }

    fn with(
        run: &Run,
        expected: u64,
        told: Told,
        node: &str,
        names: &Names,
        most: impl FnOnce() -> usize,
    ) -> (Self, Write) {
        let mut text = Vec::with_capacity(RECORD);
        record::append_within(run, most, &mut text);
        let body = text.len();
        names.write_record(&run.tenant, &run.run_id, &mut text);
        let subject = text.len();
        let lines = Self::behind(text, run, told, node, names);
        let write = Write { expected, body: lines.text.slice(..body), subject: lines.text.slice(body..subject) };
        (lines, write)
    }

    fn behind(mut text: Vec<u8>, run: &Run, told: Told, node: &str, names: &Names) -> Self {
        let events = story::of_round(run);
        let untold = told.live.min(told.log).min(events.len());
        let mut live = Vec::with_capacity(events.len().saturating_sub(told.live));
        let mut log = text.len();
        // Lines first, so that those for the log lie together.
        for (at, event) in events.iter().enumerate().skip(untold) {
            let start = text.len();
            if at == told.log {
                log = start;
            }
            event::write(event, node, &mut text);
            if at >= told.live {
                live.push((0..0, start..text.len()));
            }
            text.push(b'\n');
        }
        let log = if told.log < events.len() { log..text.len() } else { 0..0 };
        for (event, (subject, _)) in events.iter().skip(told.live).zip(&mut live) {
            let start = text.len();
            names.write_event(run, event.kind, &mut text);
            *subject = start..text.len();
        }
        Self { text: Bytes::from(text), live, log }
    }

    /// How many events are to be told live.
    pub(crate) fn count(&self) -> usize {
        self.live.len()
    }

    /// Subject and body of each event that is to be told live.
    pub(crate) fn live(&self) -> impl Iterator<Item = (Bytes, Bytes)> {
        self.live.iter().map(|(subject, body)| (self.text.slice(subject.clone()), self.text.slice(body.clone())))
    }

    /// Lines for the event log, each with its line break.
    pub(crate) fn log(&self) -> &[u8] {
        &self.text[self.log.clone()]
    }

    /// The same for the log alone, once the events were told live.
    pub(crate) fn for_the_log(&self) -> Self {
        Self { text: self.text.clone(), live: Vec::new(), log: self.log.clone() }
    }

    /// Its lines for the log, and then these.
    pub(crate) fn followed_by(&self, more: &[u8]) -> Self {
        let text = Bytes::from([self.log(), more].concat());
        Self { log: 0..text.len(), text, live: Vec::new() }
    }

    /// Nothing is left for the log.
    pub(crate) fn forget_log(&mut self) {
        self.log = 0..0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    use longshore_domain::run::RunResult;
    use longshore_domain::settlement::Settlement;
    use longshore_domain::{Job, JobType, Priority, Queue, RunId, Tenant, Timestamp};

    /// A run that has completed: enqueued, started, completed.
    fn completed() -> Run {
        let at = Timestamp::from_millis;
        let job = Job {
            tenant: Tenant::default_tenant(),
            queue: Queue::main(),
            priority: Priority::DEFAULT,
            job_type: JobType::parse("a.b").unwrap(),
            run_id: RunId::parse("r").unwrap(),
            options: None,
        };
        let mut run = Run::new(&job, 2, at(1));
        run.begin(1, &Arc::from("n"), at(2));
        run.settle(Settlement::Complete(Box::new(RunResult::None)), at(3));
        run
    }

    fn told(live: usize, log: usize) -> (Vec<String>, Vec<String>) {
        let names = Names::new("longshore");
        let (lines, write) = Lines::with(&completed(), 7, Told { live, log }, "n", &names, || usize::MAX);
        assert_eq!((write.expected, &write.subject[..]), (7, &b"$KV.longshore_runs.default.r"[..]));
        assert_eq!(write.body, record::write(&completed()));
        let name = |line: &[u8]| serde_json::from_slice::<serde_json::Value>(line).unwrap()["event"].to_string();
        let subjects = lines.live().map(|(subject, body)| {
            let subject = String::from_utf8(subject.to_vec()).unwrap();
            assert_eq!(name(&body).trim_matches('"'), subject.split('.').nth(3).unwrap());
            subject
        });
        let logged = lines.log().split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).map(name);
        (subjects.collect(), logged.collect())
    }

    #[test]
    fn only_what_was_not_told_is_told() {
        let subject = |event: &str| format!("longshore.events.default.{event}.main.r.a.b");
        let all = ["enqueued", "started", "completed"];
        let logged = all.map(|event| format!("{event:?}"));
        assert_eq!(told(0, 0), (all.map(subject).to_vec(), logged.to_vec()));
        assert_eq!(told(2, 0), (vec![subject("completed")], logged.to_vec()));
        assert_eq!(told(2, 2), (vec![subject("completed")], logged[2..].to_vec()));
        assert_eq!(told(1, 2), (all[1..].iter().map(|event| subject(event)).collect(), logged[2..].to_vec()));
        assert_eq!(told(3, 3), (vec![], vec![]));
    }
}
