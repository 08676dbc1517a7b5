//! The history checker as a tool: it reads what a cluster durably holds of its runs, and finds every breach of the
//! contract.
//!
//! It reads and never writes. Exit status: 0 sound, 1 violations, 2 it could not read. Belongs here: options, reading
//! in passes, asking whether a job without any trace still waits. Forbidden here: judging, which is
//! `longshore_harness::history`.

mod input;
mod report;

use std::collections::{BTreeSet, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use async_nats::{ConnectOptions, jetstream};
use clap::Parser;
use jiff::{SignedDuration, Timestamp};
use longshore_harness::history::{DeadLetter, History, Judgement, Kind, Open, Reading, Violation};
use longshore_harness::{Event, Extent, Logged, Reader, Record};
use serde_json::Value;

use crate::input::Place;
use crate::report::{Coverage, Finding, Report};

/// Bytes of log judged in one pass by default: some 700 MB of memory, measured at five times the log.
const BYTES_A_PASS: u64 = 128 << 20;

/// Results up to here are compared in full, longer ones by their hash.
const SHORT_RESULT: usize = 256;

const NEEDS: &str = "\
NEEDS
  rights  to read <NAMESPACE>_EVENTS, <NAMESPACE>_DLQ and KV_<namespace>_runs: stream
          info, a consumer, its next messages; and single messages of lanes
  memory  for all that is known of the runs of one pass; more passes, less memory
  clocks  of nodes and handlers that agree to --clock-skew

EXIT STATUS
  0 no violation, 1 violations, 2 could not read

FILES, one JSON object a line; docs/history.md says more
  receipts  {\"run_id\":\"main-p5-7\"}
            or a publish acknowledgement {\"stream\":\"LONGSHORE_JOBS_main_P5\",\"seq\":7}
            also: tenant, at, kept (\"failures\" where the type has history = \"failures\")
  calls     {\"run_id\":\"main-p5-7\",\"round\":1,\"attempt\":1,\"start\":\"…\",\"end\":\"…\"}
            no end if its process died; also: tenant, node
  faults    {\"at\":\"2026-11-21T10:00:00.123Z\",\"node\":\"n1\"}; no node for a server
            killed; with until, when it could give signs again: frozen or cut off";

/// Judges what a Longshore cluster did: reads its event log, run records and dead letters, and names every breach.
#[derive(Debug, Parser)]
#[command(name = "history", after_help = NEEDS)]
struct Args {
    /// NATS server addresses, separated by commas
    #[arg(long, short, env = "NATS_URL", value_name = "URL", default_value = "nats://127.0.0.1:4222")]
    server: String,
    /// A credentials file
    #[arg(long, env = "NATS_CREDS", value_name = "FILE")]
    creds: Option<PathBuf>,
    /// The cluster's namespace
    #[arg(long, env = "LONGSHORE_NAMESPACE", value_name = "NAME", default_value = "longshore")]
    namespace: String,
    /// The tenant whose runs are judged; * for all tenants
    #[arg(long, value_name = "NAME", default_value = "default")]
    tenant: String,
    /// The jobs whose acceptance was confirmed to you
    #[arg(long, value_name = "FILE")]
    receipts: Option<PathBuf>,
    /// The calls of handlers, as the handlers wrote them down
    #[arg(long, value_name = "FILE")]
    calls: Option<PathBuf>,
    /// The file has every call: a run that completed without a call is a violation
    #[arg(long, requires = "calls")]
    calls_complete: bool,
    /// When nodes and servers were killed, frozen or cut off
    #[arg(long, value_name = "FILE")]
    faults: Option<PathBuf>,
    /// The nodes' lease: with it, the jobs that frozen nodes held are judged, and every lease that was reported lost
    #[arg(long, value_name = "SPAN", value_parser = span)]
    lease: Option<Duration>,
    /// By how much clocks may differ
    #[arg(long, value_name = "SPAN", default_value = "5ms", value_parser = span)]
    clock_skew: Duration,
    /// Runs that moved within this time before the reading need not have all their data in place yet
    #[arg(long, value_name = "SPAN", default_value = "10s", value_parser = span)]
    settle: Duration,
    /// The minimum time for which your settings keep records and dead letters
    #[arg(long, value_name = "SPAN", default_value = "24h", value_parser = span)]
    kept: Duration,
    /// All work is over: a run that has not ended is a violation
    #[arg(long)]
    ended: bool,
    /// Reads everything N times, each time for a part of the runs [default: one for each 128 MiB of log]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    passes: Option<u64>,
    /// Prints one JSON object
    #[arg(long)]
    json: bool,
}

fn span(text: &str) -> Result<Duration, String> {
    let span: SignedDuration = text.parse().map_err(|error: jiff::Error| error.to_string())?;
    Duration::try_from(span).map_err(|_| "is negative".to_owned())
}

#[tokio::main]
async fn main() -> ExitCode {
    let args = Args::parse();
    match look(&args).await.and_then(|report| print(&args, &report)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn print(args: &Args, report: &Report) -> anyhow::Result<bool> {
    let text = if args.json { format!("{:#}\n", report.json()) } else { report.text() };
    std::io::stdout().write_all(text.as_bytes()).context("cannot print")?;
    Ok(report.findings.is_empty())
}

async fn look(args: &Args) -> anyhow::Result<Report> {
    let mut options = ConnectOptions::new().name("longshore history");
    if let Some(file) = &args.creds {
        options = options.credentials_file(file).await.with_context(|| format!("credentials {}", file.display()))?;
    }
    let addresses: Vec<&str> = args.server.split(',').map(str::trim).collect();
    let client = options.connect(addresses.as_slice()).await.with_context(|| format!("NATS at {}", args.server))?;
    let mut jetstream = jetstream::new(client);
    jetstream.set_timeout(Duration::from_secs(10));
    let reader = Reader::new(jetstream, &args.namespace);

    let extent = reader.extent().await?;
    let passes = args.passes.unwrap_or(extent.bytes.div_ceil(BYTES_A_PASS).max(1));
    let now = Timestamp::now();
    let before = |span: Duration| SignedDuration::try_from(span).ok().and_then(|span| now.checked_sub(span).ok());
    let reading = Reading {
        rested_since: before(args.settle).unwrap_or(Timestamp::MIN),
        all_ended: args.ended,
        kept_since: before(args.kept).unwrap_or(Timestamp::MIN),
        cut_before: extent.cut_before,
    };
    let mut report = Report { coverage: Coverage::new(args, &extent, passes), ..Report::default() };
    for number in 0..passes {
        Pass { args, reader: &reader, reading: &reading, number, of: passes }.judge(&mut report).await?;
    }
    report.findings.sort_by(|one, other| one.violation.cmp(&other.violation));
    Ok(report)
}

/// One part of the runs: several passes bound the memory.
struct Pass<'a> {
    args: &'a Args,
    reader: &'a Reader,
    reading: &'a Reading,
    number: u64,
    of: u64,
}

impl Pass<'_> {
    async fn judge(&self, report: &mut Report) -> anyhow::Result<()> {
        let mut places = HashMap::new();
        let history = self.gather(&mut report.coverage, &mut places).await?;
        let Judgement { violations, open, runs, restless, cut } = history.judge(self.reading);
        report.coverage.runs += runs;
        report.coverage.restless += restless;
        report.coverage.cut += cut;
        let (violations, open) = self.ask_for_the_lost(violations, open, &places).await?;
        report.coverage.open += open.len();
        report.coverage.lost += violations.iter().filter(|violation| violation.kind == Kind::Lost).count();
        report.open.extend(open);
        report.open.sort_by_key(|open| open.since);
        report.open.truncate(report::SHOWN);

        let of: BTreeSet<_> = violations.iter().map(|found| (found.tenant.clone(), found.run_id.clone())).collect();
        let evidence = history.evidence(&of);
        report.findings.extend(violations.into_iter().map(|violation| {
            let run = (violation.tenant.clone(), violation.run_id.clone());
            Finding { evidence: evidence.get(&run).cloned().unwrap_or_default(), violation }
        }));
        Ok(())
    }

    /// Reads records and dead letters first, the log last: if an event moves a run meanwhile, the log has that event,
    /// and the run is seen to be moving.
    async fn gather(&self, coverage: &mut Coverage, places: &mut HashMap<Run, Place>) -> anyhow::Result<History> {
        let Args { tenant, .. } = self.args;
        let mut history = History::default();
        (history.rules.clock_skew, history.rules.calls_complete) = (self.args.clock_skew, self.args.calls_complete);
        history.rules.lease = self.args.lease;
        if let Some(path) = &self.args.faults {
            input::faults(path, &mut history.rules)?;
        }
        let first = self.number == 0;
        self.reader
            .records(tenant, |record| {
                coverage.records += usize::from(first);
                if self.has(&record.tenant, &record.run_id) {
                    history.records.push(slim_record(record));
                }
            })
            .await?;
        self.reader
            .dead_letters(tenant, |dead_letter| {
                coverage.dead_letters += usize::from(first);
                let dead_letter = DeadLetter::from(&dead_letter);
                if self.has(&dead_letter.tenant, &dead_letter.run_id) {
                    history.dead_letters.push(dead_letter);
                }
            })
            .await?;
        self.reader
            .events(tenant, |Logged { sequence, event }| {
                if first {
                    coverage.see(&event);
                }
                if self.has(&event.tenant, &event.run_id) {
                    history.events.push(Logged { sequence, event: slim_event(event) });
                }
            })
            .await?;
        self.read_files(&mut history, coverage, places)?;
        Ok(history)
    }

    fn read_files(
        &self,
        history: &mut History,
        coverage: &mut Coverage,
        places: &mut HashMap<Run, Place>,
    ) -> anyhow::Result<()> {
        let first = usize::from(self.number == 0);
        let scope = input::Scope { namespace: &self.args.namespace, tenant: &self.args.tenant };
        if let Some(path) = &self.args.receipts {
            input::receipts(path, scope, |accepted, place| {
                coverage.receipts += first;
                if self.has(&accepted.tenant, &accepted.run_id) {
                    if let Some(place) = place {
                        places.insert((accepted.tenant.clone(), accepted.run_id.clone()), place);
                    }
                    history.accepted.push(accepted);
                }
            })?;
        }
        if let Some(path) = &self.args.calls {
            input::calls(path, scope, |call| {
                coverage.calls += first;
                if self.has(&call.tenant, &call.run_id) {
                    history.calls.push(call);
                }
            })?;
        }
        Ok(())
    }

    /// Judges the runs without any trace: a job that no node has started leaves no trace but itself, so a job is lost
    /// only if it does not wait any more.
    async fn ask_for_the_lost(
        &self,
        violations: Vec<Violation>,
        mut open: Vec<Open>,
        places: &HashMap<Run, Place>,
    ) -> anyhow::Result<(Vec<Violation>, Vec<Open>)> {
        let mut kept = Vec::new();
        for mut violation in violations {
            if violation.kind != Kind::Lost {
                kept.push(violation);
                continue;
            }
            let run = (violation.tenant.clone(), violation.run_id.clone());
            let place = places.get(&run);
            let waits = match place {
                Some(Place { lane, sequence }) => self.reader.waits(lane, *sequence).await?,
                None => false,
            };
            let (state, excused) = match place {
                Some(Place { lane, sequence }) if waits => (format!("waits as message {sequence} of {lane}"), true),
                // A node took it after the log was read.
                Some(_) if self.reader.record(&run.0, &run.1).await?.is_some() => ("a node took it".to_owned(), true),
                Some(Place { lane, sequence }) => (format!("message {sequence} of {lane} is gone"), false),
                None => ("nothing is known of it yet; its receipt names no lane to look in".to_owned(), true),
            };
            let its_own = |open: &&mut Open| (&open.tenant, &open.run_id) == (&run.0, &run.1);
            if excused && !self.args.ended {
                open.iter_mut().filter(its_own).for_each(|open| open.last.clone_from(&state));
            } else {
                open.retain(|open| (&open.tenant, &open.run_id) != (&run.0, &run.1));
                violation.detail = format!("{}; {state}", violation.detail);
                kept.push(violation);
            }
        }
        Ok((kept, open))
    }

    /// Whether the run is one of this pass.
    fn has(&self, tenant: &str, run: &str) -> bool {
        let mut hasher = DefaultHasher::new();
        (tenant, run).hash(&mut hasher);
        hasher.finish() % self.of == self.number
    }
}

/// Tenant and run id.
type Run = (String, String);

/// Keeps only the fields that are judged: the rest of a large log need not be held.
fn slim_event(mut event: Event) -> Event {
    event.rest.clear();
    if let Some(error) = &mut event.error {
        error.message = String::new();
    }
    if let Some(text) = event.result.as_ref().map(Value::to_string).filter(|text| text.len() > SHORT_RESULT) {
        let mut hasher = DefaultHasher::new();
        text.hash(&mut hasher);
        event.result = Some(Value::String(format!("{} bytes, hash {:x}", text.len(), hasher.finish())));
    }
    event
}

fn slim_record(mut record: Record) -> Record {
    record.rest.retain(|name, _| name == "erased_at");
    record.result = None;
    let tried = record.attempts.iter_mut().filter_map(|tried| tried.error.as_mut());
    for error in tried.chain(&mut record.error) {
        error.message = String::new();
    }
    record
}

impl Coverage {
    fn new(args: &Args, extent: &Extent, passes: u64) -> Coverage {
        Coverage {
            namespace: args.namespace.clone(),
            tenant: args.tenant.clone(),
            all_ended: args.ended,
            messages: extent.messages,
            cut_before: extent.cut_before,
            passes,
            ..Coverage::default()
        }
    }
}
