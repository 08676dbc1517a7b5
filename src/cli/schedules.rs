//! `longshore schedules`: makes, shows, pauses and removes recurring schedules, runs them beside their times, and
//! compares them with a configuration file.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Context as _;
use clap::builder::{PossibleValuesParser, TypedValueParser as _};
use clap::{ArgGroup, Args, Subcommand};
use longshore_actors::DeclaredSchedules;
use longshore_backbone::wire::api::{
    ApiError, BackfillRequest, Backfilled, Encoded, Endpoint, Outcome, PutRequest, ScheduleRequest, ScheduleSettings,
    ScheduleState, ScheduleStatus, Schedules, SchedulesBackfill, SchedulesDelete, SchedulesGet, SchedulesList,
    SchedulesPause, SchedulesPut, SchedulesRequest, SchedulesResume, SchedulesRunNow, SubmitRequest,
};
use longshore_backbone::wire::recurring::differences;
use longshore_domain::recurring::{Misfire, Overlap};
use longshore_domain::run::whole_millis;
use longshore_domain::{DurationText, JobType, ScheduleId, Tenant, Timestamp, duration};
use serde_json::json;

use super::client::Api;
use super::job::Job;
use super::output::{self, BAD, GOOD, PENDING, STRONG, number, styled};
use super::submit::payload;
use super::target::{self, now};
use super::{Ended, File, Global, Json, exact};

#[derive(Debug, Subcommand)]
pub(crate) enum SchedulesCommand {
    /// Make a schedule, or change the one of that id
    Put(Box<Put>),
    /// Show a schedule
    Get(One),
    /// All schedules of the tenant, or of all with --tenant _all
    List(Json),
    /// Remove a schedule; runs that it has started go on
    Delete(One),
    /// Pause a schedule: nothing falls due until it is resumed
    Pause(One),
    /// End a pause; what would have been due meanwhile is not made up for
    Resume(One),
    /// Start a run now, beside the schedule's times
    RunNow(One),
    /// Start a run for each due time of a span that is over, as far as it has none
    Backfill(Backfill),
    /// The next times of all schedules, soonest first
    Next {
        /// At most so many
        #[arg(long, value_name = "NUMBER", default_value_t = 20, value_parser = clap::value_parser!(u16).range(1..))]
        limit: u16,
        /// JSON for machines
        #[arg(long)]
        json: bool,
    },
    /// What a configuration file declares otherwise than the cluster has it
    Diff {
        #[command(flatten)]
        file: File,
        /// JSON for machines
        #[arg(long)]
        json: bool,
    },
}

#[derive(Debug, Args)]
pub(crate) struct One {
    /// The schedule's id
    #[arg(value_parser = super::name::<ScheduleId>)]
    id: ScheduleId,
    /// JSON for machines
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
#[command(group = ArgGroup::new("times").args(["cron", "every"]).required(true))]
pub(crate) struct Put {
    /// Its id: its runs are named <id>-<time due in Unix ms>
    #[arg(value_parser = super::name::<ScheduleId>)]
    id: ScheduleId,
    /// The type of its jobs, for example report.send
    #[arg(value_name = "TYPE", value_parser = super::name::<JobType>)]
    job_type: JobType,
    /// Their payload; - reads it from stdin
    #[arg(value_name = "JSON")]
    payload: Option<String>,
    /// Second, minute, hour, day of month, month, day of week: "0 30 3 * * *"
    #[arg(long, value_name = "EXPRESSION")]
    cron: Option<String>,
    /// An interval, counted from 1970 UTC: 30s, 5m, 1d
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    every: Option<Duration>,
    /// The zone in which cron is read: Europe/Berlin [default: UTC]
    #[arg(long, value_name = "NAME", conflicts_with = "every")]
    time_zone: Option<String>,
    /// Times that were missed have one run together, or none
    #[arg(long, value_parser = PossibleValuesParser::new(["one", "skip"]).try_map(target::word::<Misfire>))]
    misfire: Option<Misfire>,
    /// A time that is over for longer than this is missed [default: 10s]
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    misfire_after: Option<Duration>,
    /// Whether it fires while its last run has not ended
    #[arg(long, value_parser = PossibleValuesParser::new(["allow", "skip"]).try_map(target::word::<Overlap>))]
    overlap: Option<Overlap>,
    /// Each run starts up to this much later
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    jitter: Option<Duration>,
    /// It is over after this time: 2027-12-31T23:59:59Z
    #[arg(long, value_name = "TIME", value_parser = Timestamp::parse)]
    ends_at: Option<Timestamp>,
    /// Make it, but paused
    #[arg(long)]
    paused: bool,
    #[command(flatten)]
    job: Job,
    /// JSON for machines
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Backfill {
    /// The schedule's id
    #[arg(value_parser = super::name::<ScheduleId>)]
    id: ScheduleId,
    /// From this time on
    #[arg(long, value_name = "TIME", value_parser = Timestamp::parse)]
    from: Timestamp,
    /// Up to this time [default: now]
    #[arg(long, value_name = "TIME", value_parser = Timestamp::parse)]
    until: Option<Timestamp>,
    /// Only count the due times
    #[arg(long)]
    dry_run: bool,
    /// JSON for machines
    #[arg(long)]
    json: bool,
}

/// A backfill submits a thousand runs at most.
const FILLING: Duration = Duration::from_secs(50);

pub(crate) async fn run(global: &Global, command: SchedulesCommand) -> anyhow::Result<Ended> {
    match command {
        SchedulesCommand::Put(put) => {
            let request = put.request(payload(put.payload.as_deref())?);
            let api = Api::connect(global).await?;
            let answer = api.ask::<SchedulesPut>(request).await.context("the schedule was not stored")?;
            print(&answer, put.json)
        }
        SchedulesCommand::Get(one) => ask::<SchedulesGet>(global, one, None).await,
        SchedulesCommand::Delete(one) => ask::<SchedulesDelete>(global, one, Some("is removed")).await,
        SchedulesCommand::Pause(one) => ask::<SchedulesPause>(global, one, Some("is paused")).await,
        SchedulesCommand::Resume(one) => ask::<SchedulesResume>(global, one, None).await,
        SchedulesCommand::RunNow(one) => run_now(global, one).await,
        SchedulesCommand::List(Json { json }) => list(&Api::connect(global).await?, json).await,
        SchedulesCommand::Backfill(asked) => backfill(&Api::connect(global).await?, asked).await,
        SchedulesCommand::Next { limit, json } => next(&Api::connect(global).await?, usize::from(limit), json).await,
        SchedulesCommand::Diff { file, json } => {
            let mut declared = file.load(global)?.settings().schedules.clone();
            declared.schedules.retain(|(of, _)| [of.as_str(), "_all"].contains(&global.tenant.as_str()));
            diff(&Api::connect(global).await?, &declared, json).await
        }
    }
}

impl Put {
    fn request(&self, payload: Option<Box<serde_json::value::RawValue>>) -> PutRequest {
        let schedule = ScheduleSettings {
            id: self.id.clone(),
            cron: self.cron.clone(),
            time_zone: self.time_zone.clone(),
            every: self.every.map(DurationText),
            every_ms: None,
            misfire: self.misfire,
            misfire_after_ms: self.misfire_after.map(whole_millis),
            overlap: self.overlap,
            jitter_ms: self.jitter.map(whole_millis),
            ends_at: self.ends_at,
            paused: self.paused.then_some(true),
            if_updated_at: None,
        };
        let job = self.job.request(self.job_type.to_string(), payload);
        PutRequest { schedule, job }
    }
}

/// Asks about one schedule; `done` is printed instead of the schedule.
async fn ask<E>(global: &Global, one: One, done: Option<&str>) -> anyhow::Result<Ended>
where
    E: Endpoint<Request = ScheduleRequest, Answer = ScheduleStatus>,
{
    let One { id, json } = one;
    let asked = ScheduleRequest { id: id.clone(), tenant: None, if_updated_at: None };
    let answer = Api::connect(global).await?.ask::<E>(asked).await?;
    output::answer(&answer, json, || match done {
        Some(done) => output::say(&format!("{id} {done}")),
        None => output::say(show(&answer.read()?).trim_end()),
    })
}

async fn run_now(global: &Global, one: One) -> anyhow::Result<Ended> {
    let One { id, json } = one;
    let api = Api::connect(global).await?;
    let answer = api.ask::<SchedulesRunNow>(ScheduleRequest { id, tenant: None, if_updated_at: None }).await?;
    match answer.read()?.state.last_run {
        Some(last) if !json => output::say(last.run_id.as_str()).map(|()| Ended::Success),
        _ => print(&answer, json),
    }
}

async fn backfill(api: &Api, asked: Backfill) -> anyhow::Result<Ended> {
    let Backfill { id, from, until, dry_run, json } = asked;
    let request = BackfillRequest { id, tenant: None, from, until, dry_run, if_updated_at: None };
    let answer = api.ask_within::<SchedulesBackfill>(request, FILLING).await?;
    let Backfilled { deduplicated, failed, failed_in_all, started } = answer.read()?;
    let outcome = Outcome { done: started, failed, failed_in_all, more: false };
    if json {
        output::json(&answer)?;
    } else {
        let verb = if dry_run { "are due in that span" } else { "were started" };
        let before = if deduplicated > 0 { format!(", {} were there", number(deduplicated)) } else { String::new() };
        output::say(&format!("{} {verb}{before}", number(started)))?;
        for failed in &outcome.failed {
            anstream::eprintln!("{BAD}failed:{BAD:#} {}: {}", failed.run_id, failed.error);
        }
    }
    Ok(if outcome.failures() == 0 { Ended::Success } else { Ended::Failure })
}

/// All schedules of the tenant, by tenant and id. One that fired while they were read is there once, as it was last.
async fn all(api: &Api) -> Result<Vec<ScheduleStatus>, ApiError> {
    let asked = |cursor| SchedulesRequest { tenant: None, limit: Some(500), cursor };
    let found = api.all::<SchedulesList, _>(asked, |page| (page.schedules, page.cursor)).await?;
    let key = |status: &ScheduleStatus| (status.state.tenant.to_string(), status.schedule.id.to_string());
    let found: BTreeMap<_, _> = found.into_iter().map(|status| (key(&status), status)).collect();
    Ok(found.into_values().collect())
}

async fn list(api: &Api, json: bool) -> anyhow::Result<Ended> {
    let page = Schedules { schedules: all(api).await?, cursor: None };
    output::answer(&page, json, || {
        if page.schedules.is_empty() {
            eprintln!("no schedules; longshore schedules put makes one");
            return Ok(());
        }
        output::say_table(&rows(&page.schedules, now()), &[])
    })
}

fn rows(all: &[ScheduleStatus], now: Timestamp) -> Vec<Vec<String>> {
    let several = all.windows(2).any(|two| two[0].state.tenant != two[1].state.tenant);
    let row = |status: &ScheduleStatus| {
        let ScheduleStatus { schedule, job, state } = status;
        let next = state.next_run.first().map(|at| until(*at, now)).unwrap_or_default();
        let last = state.last_run.as_ref().map(|run| format!("{} ago", output::age(run.due_at, now)));
        let paused = schedule.paused == Some(true);
        let marks = [(paused, "paused"), (state.declared, "declared"), (next.is_empty() && !paused, "over")];
        let marks = marks.iter().filter(|(is, _)| *is).map(|(_, mark)| *mark).collect::<Vec<_>>().join(", ");
        // Without any text, the column of the tenant is left out.
        let tenant = if several { state.tenant.to_string() } else { String::new() };
        let (id, last) = (schedule.id.to_string(), last.unwrap_or_default());
        [tenant, id, when(schedule), job.job_type.clone(), next, last, marks]
    };
    let tenant = if several { "tenant" } else { "" };
    output::rows([tenant, "id", "when", "type", "next", "last run", ""], all.iter().map(row))
}

/// `every 5m`, or the expression and its zone.
fn when(schedule: &ScheduleSettings) -> String {
    let zone = schedule.time_zone.as_ref().map(|zone| format!(" {}", output::cut(zone, 40))).unwrap_or_default();
    match (&schedule.cron, schedule.every) {
        (Some(cron), _) => format!("{}{zone}", output::cut(cron, 60)),
        (None, Some(every)) => format!("every {every}"),
        (None, None) => String::new(),
    }
}

/// How far ahead a time is.
fn until(at: Timestamp, now: Timestamp) -> String {
    if at <= now { "now".to_owned() } else { format!("in {}", output::age(now, at)) }
}

async fn next(api: &Api, limit: usize, json: bool) -> anyhow::Result<Ended> {
    let all = all(api).await?;
    let each = |status: &ScheduleStatus| {
        let (id, tenant) = (status.schedule.id.clone(), status.state.tenant.clone());
        status.state.next_run.clone().into_iter().map(move |at| (at, tenant.clone(), id.clone())).collect::<Vec<_>>()
    };
    let mut times: Vec<_> = all.iter().flat_map(each).collect();
    times.sort();
    times.truncate(limit);
    let time = |(at, tenant, id): &_| json!({"at": at, "tenant": tenant, "id": id});
    output::answer(&json!({"times": times.iter().map(time).collect::<Vec<_>>()}), json, || {
        let now = now();
        let row = |(at, tenant, id): &(Timestamp, Tenant, ScheduleId)| {
            [at.to_string(), until(*at, now), id.to_string(), tenant.to_string()]
        };
        output::say_table(&output::rows(["due", "", "id", "tenant"], times.iter().map(row)), &[])
    })
}

/// Compares what is declared with what is stored; exit code 1 if they differ.
async fn diff(api: &Api, declared: &DeclaredSchedules, json: bool) -> anyhow::Result<Ended> {
    let changes = changes(&declared.schedules, &all(api).await?);
    let ended = if changes.is_empty() { Ended::Success } else { Ended::Failure };
    if !declared.is_said && !changes.is_empty() {
        // Each of them is a schedule that some file declared; which node had that file, the answers do not say.
        let count = changes.len();
        eprintln!(
            "the file has no [schedules]: a node removes only what a node of its name declared before, of {count} in all; \
             an empty [schedules] removes all"
        );
        if json {
            output::json(&json!({"changes": []}))?;
        }
        return Ok(Ended::Success);
    }
    if json {
        let change = |(what, id, lines): &_| json!({"id": id, "change": what, "differences": lines});
        output::json(&json!({"changes": changes.iter().map(change).collect::<Vec<_>>()}))?;
        return Ok(ended);
    }
    for (what, id, lines) in &changes {
        let (sign, style) = match *what {
            "added" => ("+", GOOD),
            "removed" => ("-", BAD),
            _ => ("~", PENDING),
        };
        output::say(&styled(&format!("{sign} {id}"), style, 0))?;
        for line in lines {
            output::say(&format!("    {}", output::plain(line)))?;
        }
    }
    if changes.is_empty() {
        eprintln!("the cluster has the schedules as the file declares them");
    }
    Ok(ended)
}

/// What would be done to each schedule, and how it would change.
fn changes(declared: &[(Tenant, PutRequest)], stored: &[ScheduleStatus]) -> Vec<(&'static str, String, Vec<String>)> {
    let mut changes = Vec::new();
    for (tenant, asked) in declared {
        let id = asked.schedule.id.to_string();
        let found =
            stored.iter().find(|status| status.state.tenant == *tenant && status.schedule.id == asked.schedule.id);
        match found {
            None => changes.push(("added", id, Vec::new())),
            Some(status) => {
                let paused = asked.schedule.paused.or(status.schedule.paused);
                let wanted = ScheduleStatus {
                    schedule: ScheduleSettings { paused, ..asked.schedule.normal() },
                    job: asked.job.clone(),
                    state: status.state.clone(),
                };
                let lines = differences(status, &wanted);
                if !lines.is_empty() {
                    changes.push(("changed", id, lines));
                }
            }
        }
    }
    let is_declared = |status: &&ScheduleStatus| {
        let same = |(tenant, asked): &(Tenant, PutRequest)| {
            *tenant == status.state.tenant && asked.schedule.id == status.schedule.id
        };
        declared.iter().any(same)
    };
    let gone = stored.iter().filter(|status| status.state.declared && !is_declared(status));
    changes.extend(gone.map(|status| ("removed", status.schedule.id.to_string(), Vec::new())));
    changes
}

fn print(status: &Encoded<ScheduleStatus>, json: bool) -> anyhow::Result<Ended> {
    output::answer(status, json, || output::say(show(&status.read()?).trim_end()))
}

fn show(status: &ScheduleStatus) -> String {
    let ScheduleStatus { schedule, job, state } = status;
    let ScheduleState { last_run, last_skipped, next_run, .. } = state;
    let (misfire, overlap) = (word(&schedule.misfire), word(&schedule.overlap));
    let ahead = next_run.iter().map(Timestamp::to_string).collect::<Vec<_>>().join("\n");
    let paused = if schedule.paused == Some(true) { "paused" } else { "over" };
    let span = |ms: Option<u64>| ms.filter(|ms| *ms > 0).map(|ms| DurationText(Duration::from_millis(ms)).to_string());
    let queue = job.queue.as_deref().unwrap_or("main");
    let mut lines = vec![
        ("schedule", styled(schedule.id.as_str(), STRONG, 0)),
        ("when", when(schedule)),
        ("type", job.job_type.clone()),
        ("queue", format!("{queue}, priority {}, tenant {}", job.priority.unwrap_or(5), state.tenant)),
        ("misfire", format!("{misfire}, after {}", span(schedule.misfire_after_ms).unwrap_or_default())),
        ("overlap", overlap),
    ];
    let more = [
        ("jitter", span(schedule.jitter_ms)),
        ("ends", schedule.ends_at.map(|at| at.to_string())),
        ("payload", job.payload.as_ref().map(|json| output::plain(&exact::laid_out(json.get())))),
        ("options", options(job)),
        ("declared", state.declared.then(|| "by a configuration file".to_owned())),
        ("last run", last_run.as_ref().map(|run| run.run_id.to_string())),
        (
            "left out",
            last_skipped.as_ref().map(|skipped| format!("{}: {}", skipped.due_at, word(&Some(skipped.reason)))),
        ),
        ("because", last_skipped.as_ref().and_then(|skipped| skipped.error.clone()).map(|error| output::plain(&error))),
        ("next", Some(if next_run.is_empty() { paused.to_owned() } else { ahead })),
    ];
    lines.extend(more.into_iter().filter_map(|(name, value)| Some((name, value?))));
    lines.into_iter().map(|(name, value)| output::field(name, &value)).collect()
}

/// The rest of what its jobs were given, by the API's names.
fn options(job: &SubmitRequest) -> Option<String> {
    let rest = SubmitRequest { payload: None, queue: None, priority: None, ..job.clone() };
    let rest = serde_json::to_value(rest).ok()?;
    let rest = rest.as_object()?.iter().filter(|(name, _)| *name != "type");
    let lines: Vec<String> = rest.map(|(name, value)| output::plain(&format!("{name} {value}"))).collect();
    (!lines.is_empty()).then(|| lines.join("\n"))
}

/// A word as it is written on the wire.
fn word<T: serde::Serialize>(value: &Option<T>) -> String {
    serde_json::to_value(value).ok().and_then(|word| word.as_str().map(str::to_owned)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;
    use serde_json::Value;

    use super::super::{Cli, Command, Noun};
    use super::*;

    fn body(line: &[&str]) -> Value {
        let cli = Cli::try_parse_from(["longshore", "schedules", "put"].iter().chain(line)).unwrap();
        let Command::Schedules(Noun { command: Some(SchedulesCommand::Put(put)), .. }) = cli.command else {
            panic!("not put")
        };
        let payload = payload(put.payload.as_deref()).unwrap();
        serde_json::to_value(put.request(payload)).unwrap()
    }

    #[test]
    fn every_option_has_its_field_and_those_not_given_are_not_sent() {
        assert_eq!(body(&["n", "t", "--every", "5m"]), json!({"id": "n", "type": "t", "every": "5m"}));
        let line = "n report.send {\"a\":1} --time-zone Europe/Berlin --misfire skip --misfire-after 1m --overlap skip \
                    --jitter 30s --ends-at 2027-12-31T23:59:59Z --paused --queue bulk --concurrency-key c";
        let line: Vec<&str> = line.split_whitespace().chain(["--cron", "0 30 3 * * *"]).collect();
        let expected = json!({"id": "n", "type": "report.send", "payload": {"a": 1}, "cron": "0 30 3 * * *",
            "time_zone": "Europe/Berlin", "misfire": "skip", "misfire_after_ms": 60_000, "overlap": "skip",
            "jitter_ms": 30_000, "ends_at": "2027-12-31T23:59:59.000Z", "paused": true, "queue": "bulk",
            "concurrency_key": "c"});
        assert_eq!(body(&line), expected);
    }

    #[test]
    fn a_schedule_is_shown_for_people() {
        let text = json!({"id": "nightly", "cron": "0 30 3 * * *", "time_zone": "Europe/Berlin", "misfire": "one",
            "misfire_after_ms": 10_000, "overlap": "skip", "jitter_ms": 30_000, "paused": false, "type": "report.send",
            "payload": {"a": 1}, "idempotency_key": "k", "on_conflict": "reject", "schema_version": "2",
            "tenant": "default", "declared": true, "created_at": "2026-11-21T12:00:00.000Z", "updated_at": "2026-11-21T12:00:00.000Z",
            "last_run": {"due_at": "2026-11-21T02:30:00.000Z", "run_id": "nightly-1795228200000"},
            "next_run": ["2026-11-22T02:30:00.000Z", "2026-11-23T02:30:00.000Z"]});
        let status: ScheduleStatus = serde_json::from_str(&text.to_string()).unwrap();
        let shown = anstream::adapter::strip_str(&show(&status)).to_string();
        assert_eq!(
            shown,
            "\
schedule   nightly
when       0 30 3 * * * Europe/Berlin
type       report.send
queue      main, priority 5, tenant default
misfire    one, after 10s
overlap    skip
jitter     30s
payload    {
             \"a\": 1
           }
options    idempotency_key \"k\"
           on_conflict \"reject\"
           schema_version \"2\"
declared   by a configuration file
last run   nightly-1795228200000
next       2026-11-22T02:30:00.000Z
           2026-11-23T02:30:00.000Z
"
        );
        let now = Timestamp::parse("2026-11-21T14:30:00Z").unwrap();
        let table = anstream::adapter::strip_str(&output::table(&rows(&[status], now), &[])).to_string();
        assert_eq!(
            table,
            "\
id       when                        type         next     last run
nightly  0 30 3 * * * Europe/Berlin  report.send  in 12 h  12 h ago  declared
"
        );
    }
}
