//! What the tool read and what it found, as text and as JSON.

use std::collections::BTreeMap;
use std::fmt::Write;

use jiff::Timestamp;
use longshore_harness::Event;
use longshore_harness::history::{Kind, Open, Violation};
use serde_json::{Value, json};

/// Open runs are shown up to this number, the oldest first; violations are shown without a limit.
pub(crate) const SHOWN: usize = 20;

/// The whole report.
#[derive(Debug, Default)]
pub(crate) struct Report {
    pub(crate) coverage: Coverage,
    pub(crate) open: Vec<Open>,
    pub(crate) findings: Vec<Finding>,
}

/// A violation and what is known of its run.
#[derive(Debug)]
pub(crate) struct Finding {
    pub(crate) violation: Violation,
    pub(crate) evidence: Vec<String>,
}

/// The data that was judged.
#[derive(Debug, Default)]
pub(crate) struct Coverage {
    pub(crate) namespace: String,
    pub(crate) tenant: String,
    pub(crate) all_ended: bool,
    pub(crate) passes: u64,
    pub(crate) messages: u64,
    pub(crate) cut_before: Option<Timestamp>,
    pub(crate) events: usize,
    pub(crate) first: Option<Timestamp>,
    pub(crate) last: Option<Timestamp>,
    pub(crate) records: usize,
    pub(crate) dead_letters: usize,
    pub(crate) receipts: usize,
    pub(crate) calls: usize,
    pub(crate) runs: usize,
    pub(crate) open: usize,
    pub(crate) lost: usize,
    pub(crate) restless: usize,
    pub(crate) cut: usize,
}

impl Coverage {
    /// Counts an event.
    pub(crate) fn see(&mut self, event: &Event) {
        self.events += 1;
        self.first = Some(self.first.map_or(event.at, |first| first.min(event.at)));
        self.last = Some(self.last.map_or(event.at, |last| last.max(event.at)));
    }

    fn text(&self) -> String {
        let mut text = format!("namespace {}, tenant {}\n", self.namespace, self.tenant);
        let span = self.first.zip(self.last).map(|(first, last)| format!(", {first} to {last}")).unwrap_or_default();
        let passes = if self.passes > 1 { format!("; {} passes", self.passes) } else { String::new() };
        let _ = writeln!(text, "events    {} in a log of {} messages{span}{passes}", self.events, self.messages);
        let _ = writeln!(text, "records   {}\ndead letters {}", self.records, self.dead_letters);
        let _ = writeln!(text, "receipts  {}\ncalls     {}", self.receipts, self.calls);
        let ended = self.runs.saturating_sub(self.open + self.lost + self.cut);
        let _ = write!(text, "runs      {}: {ended} ended, {} not, {} lost", self.runs, self.open, self.lost);
        if self.restless > 0 && !self.all_ended {
            let _ = write!(text, ", {} ended just now", self.restless);
        }
        if let Some(at) = self.cut_before {
            let _ = write!(text, "; {} begun before the log, which starts at {at}: not judged", self.cut);
        }
        text.push('\n');
        text
    }
}

impl Report {
    /// For people.
    pub(crate) fn text(&self) -> String {
        let mut text = self.coverage.text();
        if !self.coverage.all_ended && !self.open.is_empty() {
            let _ = writeln!(text, "\nnot ended, the oldest first:");
            for Open { tenant, run_id, last, since } in &self.open {
                let since = since.map(|at| format!(" since {at}")).unwrap_or_default();
                let _ = writeln!(text, "  {tenant}/{run_id}{since}: {last}");
            }
            if self.coverage.open > self.open.len() {
                let _ = writeln!(text, "  and {} more", self.coverage.open - self.open.len());
            }
        }
        let mut shown = None;
        for Finding { violation, evidence } in &self.findings {
            let run = (&violation.tenant, &violation.run_id);
            if shown != Some(run) {
                let _ = writeln!(text, "\nrun {}/{}", violation.tenant, violation.run_id);
                for line in evidence {
                    let _ = writeln!(text, "  {line}");
                }
                shown = Some(run);
            }
            let _ = writeln!(text, "{:?}: {} [{}]", violation.kind, violation.detail, violation.kind.meaning());
        }
        match self.findings.len() {
            0 => text.push_str("\nsound: no violation\n"),
            count => {
                let kinds: Vec<String> = self.kinds().iter().map(|(kind, count)| format!("{kind:?} {count}")).collect();
                let _ = writeln!(text, "\n{count} violations ({})", kinds.join(", "));
            }
        }
        text
    }

    /// For programs.
    pub(crate) fn json(&self) -> Value {
        let coverage = &self.coverage;
        let at = |at: Option<Timestamp>| at.map(|at| at.to_string());
        let open = self.open.iter().map(
            |open| json!({"tenant": open.tenant, "run_id": open.run_id, "last": open.last, "since": at(open.since)}),
        );
        let violations = self.findings.iter().map(|Finding { violation, evidence }| {
            let Violation { tenant, run_id, kind, detail, .. } = violation;
            json!({"kind": format!("{kind:?}"), "tenant": tenant, "run_id": run_id, "detail": detail, "evidence": evidence})
        });
        let kinds: BTreeMap<String, usize> =
            self.kinds().into_iter().map(|(kind, count)| (format!("{kind:?}"), count)).collect();
        json!({
            "sound": self.findings.is_empty(),
            "looked_at": {
                "namespace": coverage.namespace, "tenant": coverage.tenant, "events": coverage.events,
                "log_messages": coverage.messages, "log_cut_before": at(coverage.cut_before),
                "first": at(coverage.first), "last": at(coverage.last), "records": coverage.records,
                "dead_letters": coverage.dead_letters, "receipts": coverage.receipts, "calls": coverage.calls, "passes": coverage.passes,
            },
            "runs": {
                "all": coverage.runs, "not_ended": coverage.open, "lost": coverage.lost, "ended_just_now": coverage.restless,
                "not_judged": coverage.cut,
            },
            "not_ended": open.collect::<Vec<_>>(),
            "kinds": kinds,
            "violations": violations.collect::<Vec<_>>(),
        })
    }

    fn kinds(&self) -> BTreeMap<Kind, usize> {
        let mut kinds = BTreeMap::new();
        for finding in &self.findings {
            *kinds.entry(finding.violation.kind).or_insert(0) += 1;
        }
        kinds
    }
}
