//! What a test waits for in a run's events and record, and the report on a run: everything that is known of it, printed
//! for people who inspect a failed test.

use std::collections::HashMap;
use std::fmt::Write;

use crate::cluster::ServerCluster;
use crate::publish::Receipt;
use crate::stored::{DeadLetter, Logged};
use crate::wire::EventName;
use crate::world::{TENANT, World};

/// Lines of each log shown where no better choice is known.
const SHOWN: usize = 25;

/// The interval at which many records are checked.
const CHECK_EVERY: std::time::Duration = std::time::Duration::from_millis(200);

/// How long the event log may lag behind the records.
const LOGGED_WITHIN: std::time::Duration = std::time::Duration::from_secs(20);

/// The events in the form that a test compares, one line each, repeats left out: the name, the attempt if there is one,
/// the kind of error, the reason.
///
/// ```text
/// enqueued
/// started 1
/// failed 1 retryable
/// started 2
/// completed 2
/// ```
pub fn reads(events: &[Logged]) -> String {
    let mut seen = std::collections::HashSet::new();
    let mut lines = Vec::new();
    for Logged { event, .. } in events {
        if !seen.insert(&event.id) {
            continue;
        }
        let mut line = event.event.to_string();
        use EventName::{Completed, Failed, Progress, Released, Started};
        if matches!(event.event, Started | Progress | Released | Failed | Completed) {
            let _ = write!(line, " {}", event.attempt);
        }
        let kind = event.error.as_ref().map(|error| error.kind.as_str());
        for detail in kind.into_iter().chain(event.reason.as_deref()) {
            line.push(' ');
            line.push_str(detail);
        }
        lines.push(line);
    }
    lines.join("\n")
}

impl World {
    /// Waits until the run's events in the log read like that (see [`reads`]), for at most 20 s, and returns them. A
    /// run's end is stored in its record before it is in the log.
    ///
    /// # Panics
    /// If they do not; with the report on the run.
    pub async fn eventually_reads(&self, run: &str, wanted: &str) -> Vec<Logged> {
        let deadline = tokio::time::Instant::now() + LOGGED_WITHIN;
        loop {
            let events = self.events(run).await;
            let found = reads(&events);
            if found == wanted {
                return events;
            }
            if tokio::time::Instant::now() > deadline {
                panic!("{run} should read\n{wanted}\nand reads\n{found}\n{}", self.report(run).await);
            }
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    }

    /// Waits until the log has the run's end, for at most 20 s, and returns its events.
    ///
    /// # Panics
    /// If it does not; with the report on the run.
    pub async fn eventually_ends(&self, run: &str) -> Vec<Logged> {
        crate::eventually(&format!("the end of {run} in the log"), LOGGED_WITHIN, async || {
            let events = self.events(run).await;
            if events.iter().any(|logged| logged.event.event.is_end()) { Ok(events) } else { Err(reads(&events)) }
        })
        .await
    }

    /// Waits until the run's record has this state, for at most `within`. A run has no record before it is written for
    /// the first time: that it runs, only once an attempt lasts.
    ///
    /// # Panics
    /// If it does not; with the record.
    pub async fn eventually_is(&self, run: &str, state: &str, within: std::time::Duration) {
        crate::eventually(&format!("{run} {state}"), within, async || match self.record(run).await {
            Some(record) if record.state == state => Ok(()),
            other => Err(format!("{other:?}")),
        })
        .await;
    }

    /// Waits until all these jobs are finished by their records, for at most `within`, and returns their states. It
    /// does not ask the nodes: a frozen node would take the request and not answer it.
    ///
    /// # Panics
    /// If one does not end; with its report.
    pub async fn ends(&self, receipts: &[Receipt], within: std::time::Duration) -> Vec<String> {
        let deadline = tokio::time::Instant::now() + within;
        loop {
            let records = self.try_records().await.unwrap_or_default();
            let ended = records.iter().filter(|record| record.is_terminal());
            let ended: HashMap<_, _> =
                ended.map(|record| ((record.tenant.as_str(), record.run_id.as_str()), &record.state)).collect();
            let of = |receipt: &Receipt| ended.get(&(receipt.tenant.as_str(), receipt.run_id.as_str())).copied();
            let open: Vec<&Receipt> = receipts.iter().filter(|receipt| of(receipt).is_none()).collect();
            let Some(first) = open.first() else {
                return receipts.iter().filter_map(of).cloned().collect();
            };
            if tokio::time::Instant::now() > deadline {
                let report = self.report_as(&first.tenant, &first.run_id).await;
                panic!("{} of {} jobs did not end within {within:?}, the first:\n{report}", open.len(), receipts.len());
            }
            tokio::time::sleep(CHECK_EVERY).await;
        }
    }

    /// Waits until no job is left anywhere: in a lane, parked, or waiting for its time or its retry; for at most
    /// `within`. A test that reads the history before that finds ends missing: of jobs whose acceptance was never
    /// confirmed, which nobody waits for, and of finished runs whose node died over them, which the next node publishes
    /// after the lease.
    ///
    /// # Panics
    /// If some are left.
    pub async fn no_job_is_left(&self, within: std::time::Duration) {
        let reader = self.reader();
        crate::eventually("no job left", within, async || {
            let (first, second) = (reader.jobs_left().await, reader.jobs_left().await);
            match (first.map_err(|error| format!("{error:#}"))?, second.map_err(|error| format!("{error:#}"))?) {
                ((before, then), (left, now)) if before.is_empty() && left.is_empty() && then == now => Ok(()),
                (before, (left, _)) => Err(format!("jobs are left under {left:?}, before that {:?}", before.0)),
            }
        })
        .await;
    }

    /// Waits until there are that many dead letters, of all tenants, for at most 20 s.
    ///
    /// # Panics
    /// If there are not that many by then.
    pub async fn eventually_dead_letters(&self, count: usize) -> Vec<DeadLetter> {
        crate::eventually(&format!("{count} dead letters"), LOGGED_WITHIN, async || {
            let dead_letters = self.dead_letters("*").await;
            if dead_letters.len() == count {
                Ok(dead_letters)
            } else {
                Err(format!("there are {}", dead_letters.len()))
            }
        })
        .await
    }

    /// Everything that is known of a run: its record, its events with time and publishing node, its dead letters, the
    /// nodes' log lines about it, and the depth of the streams. If something cannot be read, the text says so; this
    /// does not panic.
    pub async fn report(&self, run: &str) -> String {
        self.report_as(TENANT, run).await
    }

    /// As [`World::report`], for any tenant.
    pub async fn report_as(&self, tenant: &str, run: &str) -> String {
        let mut report = format!("== what is known of {tenant}/{run} ==\n");
        let _ = match self.try_record(tenant, run).await {
            Ok(Some(record)) => writeln!(report, "record: {record:?}"),
            Ok(None) => writeln!(report, "record: none"),
            Err(error) => writeln!(report, "record: {error:#}"),
        };
        match self.try_event_log(tenant).await {
            Ok(events) => write_events(&mut report, events.iter().filter(|logged| logged.event.run_id == run)),
            Err(error) => drop(writeln!(report, "events: {error:#}")),
        }
        match self.try_dead_letters(tenant).await {
            Ok(dead_letters) => {
                let of_run = dead_letters.iter().filter(|dead_letter| dead_letter.run_id().as_deref() == Some(run));
                for DeadLetter { sequence, subject, headers, .. } in of_run {
                    let _ = writeln!(report, "dead letter {sequence}: {subject} {headers:?}");
                }
            }
            Err(error) => drop(writeln!(report, "dead letters: {error:#}")),
        }
        self.write_streams(&mut report).await;
        self.write_logs(&mut report, Some(run));
        report
    }

    /// The end of every node's log and of the server's.
    pub(crate) fn logs_in_short(&self) -> String {
        let mut text = String::new();
        self.write_logs(&mut text, None);
        text
    }

    async fn write_streams(&self, report: &mut String) {
        use futures_util::TryStreamExt;
        match self.jetstream().streams().try_collect::<Vec<_>>().await {
            Ok(streams) => {
                for stream in streams.iter().filter(|stream| stream.state.messages > 0) {
                    let (name, count) = (&stream.config.name, stream.state.messages);
                    let (first, last) = (stream.state.first_sequence, stream.state.last_sequence);
                    let _ = writeln!(report, "stream {name}: {count} messages, {first}–{last}");
                    self.write_consumers(name, report).await;
                }
            }
            Err(error) => drop(writeln!(report, "streams: {error}")),
        }
    }

    /// Appends what the stream's consumers have delivered, and what is not acknowledged.
    async fn write_consumers(&self, stream: &str, report: &mut String) {
        use futures_util::StreamExt;
        let Ok(stream) = self.jetstream().get_stream(stream).await else { return };
        let mut consumers = stream.consumers();
        while let Some(Ok(of)) = consumers.next().await {
            let (delivered, floor) = (of.delivered.stream_sequence, of.ack_floor.stream_sequence);
            let (unacknowledged, again, pulls) = (of.num_ack_pending, of.num_redelivered, of.num_waiting);
            let _ = writeln!(
                report,
                "  consumer {}: delivered to {delivered}, acknowledged to {floor}, {unacknowledged} unacknowledged, \
                 {again} delivered again, {pulls} pulls waiting",
                of.name
            );
        }
    }

    /// Appends the lines about `run` from each node's log, or the last lines of a log that has none.
    fn write_logs(&self, report: &mut String, run: Option<&str>) {
        for (name, log) in self.node_logs() {
            let all = log.since(0);
            let about: Vec<&String> = all.iter().filter(|line| run.is_some_and(|run| line.contains(run))).collect();
            let (what, lines) = if about.is_empty() { ("the end of", all.iter().collect()) } else { ("in", about) };
            let _ = writeln!(report, "-- {what} the log of {name} ({}):", log.path().display());
            for line in &lines[lines.len().saturating_sub(SHOWN)..] {
                let _ = writeln!(report, "{line}");
            }
        }
        let one = std::slice::from_ref(self.server());
        for server in self.server_cluster().map_or(one, ServerCluster::servers) {
            let end = server.log().tail(SHOWN / 3);
            let _ = writeln!(report, "-- the end of the log of nats-server at port {}:\n{end}", server.port());
        }
    }
}

fn write_events<'a>(report: &mut String, events: impl Iterator<Item = &'a Logged>) {
    let _ = writeln!(report, "events, by the log:");
    for Logged { sequence, event } in events {
        let error = event.error.as_ref().map(|error| format!("{}: {}", error.kind, error.message)).unwrap_or_default();
        let _ = writeln!(
            report,
            "  {sequence:>6} {} {:>9} round {} attempt {} {} {}{} [{}]",
            event.at,
            event.event,
            event.round,
            event.attempt,
            event.node.as_deref().unwrap_or("-"),
            event.reason.as_deref().unwrap_or(""),
            error,
            event.id,
        );
    }
}
