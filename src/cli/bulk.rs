//! Work on many runs, in calls of a few hundred until none is left, with a question before, a progress bar meanwhile
//! and one line at the end. A call can be repeated without harm, so if a node dies over it, the next node goes on.

use std::io::{IsTerminal as _, Write as _};
use std::time::Duration;

use clap::Args;
use longshore_backbone::wire::api::{
    ApiError, DlqDiscard, DlqReplay, Endpoint, Failed, Outcome, QueuesPurge, RunsCancel, RunsReschedule, RunsRunNow,
    Selection, Target,
};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::client::Api;
use super::output::{self, BAD, PENDING, number};
use super::{Ended, Usage, target};

/// Runs of one call: long enough to be fast, short enough for a bar that moves and an answer within seconds.
const PER_CALL: u64 = 500;
/// With a rate, a call lasts about so long.
const CALL_LASTS: f64 = 5.0;
/// How much longer a call may take than its rate asks for: it may have to read many runs to find the few that fit.
const ANSWER_WITHIN: Duration = Duration::from_secs(50);
/// The same for counting, which is one call.
const COUNTING: Duration = Duration::from_secs(290);
/// Calls in a row that may go without an answer, if there was one before.
const UNANSWERED: u32 = 10;
/// Failures that are listed by name.
const MAX_NAMED: usize = 5;

/// How many runs, and whether to ask first.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "How")]
pub(crate) struct Options {
    /// At most so many
    #[arg(long, value_name = "NUMBER", value_parser = super::target::some)]
    limit: Option<u64>,
    /// Only count them
    #[arg(long)]
    dry_run: bool,
    /// Do not ask
    #[arg(long, short)]
    yes: bool,
    /// JSON for machines
    #[arg(long)]
    pub(crate) json: bool,
}

impl Options {
    /// Refuses options that would be ignored, because one run is named by its id.
    pub(crate) fn for_many_only(&self) -> Result<(), Usage> {
        let given = [("--limit", self.limit.is_some()), ("--dry-run", self.dry_run)];
        match given.iter().find(|(_, given)| *given) {
            Some((option, _)) => Err(Usage(format!("{option} is for filters and --all, not for one run by its id"))),
            None => Ok(()),
        }
    }
}

/// An endpoint that acts on all runs or dead letters that fit.
pub(crate) trait Bulk: Endpoint<Request: Clone, Answer: Into<Outcome>> {
    /// The verb for the question: `Replay`.
    const VERB: &'static str;
    /// The noun for one of them: `dead letter`.
    const NOUN: &'static str;
    /// The participle for the result: `replayed`.
    const DONE: &'static str;

    /// What a request says about which runs and how many.
    fn scope(request: &mut Self::Request) -> BulkFields<'_>;
}

/// The parts of a request that say which runs are meant, how many, and how fast.
pub(crate) struct BulkFields<'r> {
    /// The filter, if the client chooses one.
    pub(crate) target: Option<&'r mut Target>,
    limit: &'r mut Option<u64>,
    dry_run: &'r mut bool,
    /// The rate per second, if the request has one.
    rate: Option<&'r mut Option<f64>>,
}

impl<'r> BulkFields<'r> {
    fn of(selection: &'r mut Selection, rate: Option<&'r mut Option<f64>>) -> Self {
        let Selection { target, limit, dry_run, .. } = selection;
        Self { target: Some(target), limit, dry_run, rate }
    }
}

/// Each row: endpoint, verb, noun, participle, and the fields of its request.
macro_rules! bulk {
    ($($endpoint:ty: $verb:literal, $noun:literal, $done:literal, $request:ident => $fields:expr;)+) => {
        $(
            impl Bulk for $endpoint {
                const VERB: &'static str = $verb;
                const NOUN: &'static str = $noun;
                const DONE: &'static str = $done;

                fn scope($request: &mut Self::Request) -> BulkFields<'_> {
                    $fields
                }
            }
        )+
    };
}

// Runs may end or change their state while they are counted, so their number is about right.
bulk! {
    RunsCancel: "Cancel about", "run", "cancelled", request => BulkFields::of(request, None);
    QueuesPurge: "Cancel about", "run", "cancelled", request => {
        BulkFields { target: None, limit: &mut request.limit, dry_run: &mut request.dry_run, rate: None }
    };
    RunsRunNow: "Start about", "run", "rescheduled", request => BulkFields::of(request, None);
    RunsReschedule: "Reschedule about", "run", "rescheduled", request => BulkFields::of(&mut request.selection, None);
    DlqReplay: "Replay", "dead letter", "replayed", request => {
        BulkFields::of(&mut request.selection, Some(&mut request.rate_per_s))
    };
    DlqDiscard: "Discard", "dead letter", "discarded", request => {
        BulkFields::of(&mut request.selection, Some(&mut request.rate_per_s))
    };
}

/// The result so far.
#[derive(Debug, Default, PartialEq)]
struct BulkProgress {
    done: u64,
    /// Of the last call: each call meets the failed ones again, and they may succeed then.
    failed: u64,
    listed: Vec<Failed>,
    /// The last call left some.
    more: bool,
    /// Calls without an answer: their results are not counted.
    unanswered: u32,
}

impl BulkProgress {
    /// The limit of the next call; `None`: nothing is left to do. A call meets those that failed again, so its limit is
    /// larger by their number.
    fn next(&self, most: Option<u64>, per_call: u64) -> Option<u64> {
        let room = most.map_or(u64::MAX, |most| most.saturating_sub(self.done));
        let next = (per_call + self.failed).min(room);
        (next > self.failed).then_some(next)
    }

    fn add(&mut self, outcome: Outcome) {
        self.done += outcome.done;
        self.failed = outcome.failures();
        self.listed = outcome.failed;
        self.more = outcome.more;
    }

    fn as_json<E: Bulk>(&self, dry_run: bool) -> Value {
        let mut answer = json!({E::DONE: self.done, "failed": self.listed, "more": self.more});
        for (field, value, said) in [
            ("failed_in_all", json!(self.failed), self.failed > self.listed.len() as u64),
            ("unanswered_calls", json!(self.unanswered), self.unanswered > 0),
            ("dry_run", json!(true), dry_run),
        ] {
            if said {
                answer[field] = value;
            }
        }
        answer
    }

    fn line<E: Bulk>(&self, dry_run: bool) -> String {
        let what = if dry_run { format!("would be {}", E::DONE) } else { E::DONE.to_owned() };
        let mut line = format!("{} {what}", several(self.done, E::NOUN));
        if self.failed > 0 {
            line += &format!(", {} failed", number(self.failed));
        }
        if self.more {
            line += "; more are left";
        }
        line
    }

    fn failures(&self) -> Vec<String> {
        let text = |failure: &Failed| format!("{}: {}", failure.run_id, output::cut(&failure.error, 400));
        let mut lines: Vec<String> = self.listed.iter().take(MAX_NAMED).map(text).collect();
        let beyond = self.failed.saturating_sub(lines.len() as u64);
        if beyond > 0 {
            lines.push(format!("and {} more that failed", number(beyond)));
        }
        lines
    }
}

/// `1 run`, `1,234 runs`.
fn several(count: u64, noun: &str) -> String {
    format!("{} {noun}{}", number(count), if count == 1 { "" } else { "s" })
}

fn per_call(rate: Option<f64>) -> u64 {
    match rate {
        // A float is cut to the bounds before it becomes a number.
        Some(rate) => (rate * CALL_LASTS).clamp(1.0, PER_CALL as f64) as u64,
        None => PER_CALL,
    }
}

/// Does the work, at this rate per second if there is one, and prints the result.
pub(crate) async fn run<E: Bulk>(
    api: &Api,
    mut request: E::Request,
    rate: Option<f64>,
    options: &Options,
) -> anyhow::Result<Ended> {
    // Runs that fit only later are not meant, such as jobs that die again while this goes on.
    if let Some(Target::Runs(filter)) = E::scope(&mut request).target {
        filter.until.get_or_insert_with(target::now);
    }
    let on_terminal = std::io::stderr().is_terminal() && !options.json;
    let mut total = None;
    if options.dry_run || on_terminal || !options.yes {
        let counted = count::<E>(api, &request, options.limit).await?;
        if options.dry_run {
            report::<E>(&counted, options)?;
            return Ok(ended(&counted));
        }
        if counted.done + counted.failed == 0 {
            output::say(&format!("no {} fits", E::NOUN))?;
            return Ok(Ended::Success);
        }
        let question = format!("{} {}?", E::VERB, several(counted.done, E::NOUN));
        if !options.yes && !confirmed(&question, options.json)? {
            return Ok(Ended::Failure);
        }
        total = Some(counted.done + counted.failed);
    }
    // Counting has no rate.
    if let Some(wanted) = E::scope(&mut request).rate {
        *wanted = rate;
    }
    let mut tally = BulkProgress::default();
    let bar = Bar::new(total.filter(|_| on_terminal));
    let result = all::<E>(api, request, options.limit, &mut tally, bar).await;
    // Also if the work was cut short, since a part of it is done.
    if result.is_ok() || tally.done > 0 {
        report::<E>(&tally, options)?;
    }
    result?;
    Ok(ended(&tally))
}

fn ended(tally: &BulkProgress) -> Ended {
    if tally.failed > 0 { Ended::Failure } else { Ended::Success }
}

/// Does the work for the one chosen run.
pub(crate) async fn one<E: Bulk>(api: &Api, request: E::Request, options: &Options) -> anyhow::Result<Ended> {
    if options.limit.is_some() {
        options.for_many_only()?;
    }
    let tally = match options.dry_run {
        true => count::<E>(api, &request, None).await?,
        false => {
            let mut tally = BulkProgress::default();
            tally.add(api.ask_within::<E>(request, ANSWER_WITHIN).await?.read()?.into());
            tally
        }
    };
    report::<E>(&tally, options)?;
    Ok(ended(&tally))
}

async fn count<E: Bulk>(api: &Api, request: &E::Request, most: Option<u64>) -> Result<BulkProgress, ApiError> {
    let mut request = request.clone();
    let scope = E::scope(&mut request);
    (*scope.dry_run, *scope.limit) = (true, most);
    let mut tally = BulkProgress::default();
    tally.add(api.ask_within::<E>(request, COUNTING).await?.read()?.into());
    Ok(tally)
}

/// Call after call, until nothing is left.
async fn all<E: Bulk>(
    api: &Api,
    mut request: E::Request,
    most: Option<u64>,
    tally: &mut BulkProgress,
    bar: Bar,
) -> Result<(), ApiError> {
    let (mut answered, mut silent) = (false, 0);
    let rate = E::scope(&mut request).rate.and_then(|rate| *rate);
    while let Some(limit) = tally.next(most, per_call(rate)) {
        *E::scope(&mut request).limit = Some(limit);
        // One more than the limit: a call also waits after the last run.
        let paced = rate.map_or(Duration::ZERO, |rate| Duration::from_secs_f64((limit + 1) as f64 / rate));
        let answer = api.ask_within::<E>(request.clone(), ANSWER_WITHIN + paced).await;
        match answer.and_then(|answer| answer.read()) {
            Ok(answer) => {
                (answered, silent) = (true, 0);
                tally.add(answer.into());
                bar.draw(tally);
                if !tally.more {
                    break;
                }
            }
            Err(ApiError { code: 503 | 504, .. }) if answered && silent < UNANSWERED => {
                tally.unanswered += 1;
                silent += 1;
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Asks for confirmation; if not given, says that nothing was done. Where no person can answer, a script has to say it
/// beforehand: it may be run in the wrong place, or with an empty variable in its filter.
pub(crate) fn confirmed(question: &str, for_machines: bool) -> anyhow::Result<bool> {
    if for_machines || !std::io::stdin().is_terminal() || !std::io::stderr().is_terminal() {
        return Err(Usage(format!("{question} There is no terminal to ask on; --yes says so beforehand")).into());
    }
    eprint!("{question} [y/N] ");
    std::io::stderr().flush()?;
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer)?;
    let is_confirmed = ["y", "yes"].contains(&answer.trim().to_lowercase().as_str());
    if !is_confirmed {
        eprintln!("nothing was done");
    }
    Ok(is_confirmed)
}

fn report<E: Bulk>(tally: &BulkProgress, options: &Options) -> anyhow::Result<()> {
    if options.json {
        return output::json(&tally.as_json::<E>(options.dry_run));
    }
    for failure in tally.failures() {
        anstream::eprintln!("{BAD}failed:{BAD:#} {failure}");
    }
    if tally.unanswered > 0 {
        anstream::eprintln!(
            "{PENDING}warning:{PENDING:#} {} calls got no answer; their results are not counted",
            tally.unanswered
        );
    }
    output::say(&tally.line::<E>(options.dry_run))
}

/// A progress bar on a terminal. Nothing else is written while it is there.
struct Bar {
    total: Option<u64>,
    since: Instant,
}

impl Bar {
    const CELLS: u64 = 30;

    fn new(total: Option<u64>) -> Self {
        let bar = Self { total, since: Instant::now() };
        bar.draw(&BulkProgress::default());
        bar
    }

    fn draw(&self, tally: &BulkProgress) {
        if let Some(total) = self.total {
            let _ = write!(std::io::stderr(), "\r\u{1b}[2K{}", bar(tally, total, self.since.elapsed()));
            let _ = std::io::stderr().flush();
        }
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        if self.total.is_some() {
            let _ = write!(std::io::stderr(), "\r\u{1b}[2K");
        }
    }
}

/// The bar as text: progress, and the time that is left.
fn bar(tally: &BulkProgress, total: u64, elapsed: Duration) -> String {
    let so_far = tally.done + tally.failed;
    let total = total.max(so_far).max(1);
    let full = usize::try_from(so_far * Bar::CELLS / total).unwrap_or(0);
    let cells = format!("{:<width$}", "#".repeat(full), width = usize::try_from(Bar::CELLS).unwrap_or(0));
    let mut line = format!("[{cells}] {} of {}", number(so_far), number(total));
    if tally.failed > 0 {
        line += &format!(", {} failed", number(tally.failed));
    }
    if so_far > 0 && so_far < total {
        let left = elapsed.as_millis() * u128::from(total - so_far) / u128::from(so_far);
        line += &format!(", {} left", output::took(u64::try_from(left).unwrap_or(u64::MAX)));
    }
    line
}

#[cfg(test)]
mod tests {
    use longshore_domain::RunId;

    use super::*;

    fn failed(number: u64, error: &str) -> Failed {
        Failed { error: error.to_owned(), run_id: RunId::parse(&format!("main-p5-{number}")).unwrap() }
    }

    /// A stand-in for the endpoint: `good` dead letters behind `bad` ones that always fail.
    fn call(good: &mut u64, bad: u64, limit: u64) -> Outcome {
        let bad = bad.min(limit);
        let done = (*good).min(limit - bad);
        *good -= done;
        Outcome::new(done, (0..bad).map(|number| failed(number, "no")).collect(), bad + done == limit)
    }

    #[test]
    fn failures_do_not_block_the_rest_and_are_counted_once() {
        for (most, done, failed) in [(None, 1_700, 1_200), (Some(1_000), 0, 1_000), (Some(1_300), 100, 1_200)] {
            let (mut good, mut tally, mut calls) = (1_700, BulkProgress::default(), 0);
            while let Some(limit) = tally.next(most, PER_CALL) {
                tally.add(call(&mut good, 1_200, limit));
                calls += 1;
                if !tally.more {
                    break;
                }
            }
            assert_eq!((tally.done, tally.failed), (done, failed), "{most:?}");
            assert!(calls < 10, "{calls}");
        }
    }

    #[test]
    fn the_end_is_one_line_and_names_the_first_that_failed() {
        let listed = (1..=100).map(|number| failed(number, "too\nlarge")).collect();
        let tally = BulkProgress { done: 1_234, failed: 120, listed, more: true, unanswered: 1 };
        assert_eq!(tally.line::<DlqReplay>(false), "1,234 dead letters replayed, 120 failed; more are left");
        let failures = tally.failures();
        assert_eq!((failures.len(), failures[0].as_str()), (6, "main-p5-1: too large"));
        assert_eq!(failures[5], "and 115 more that failed");
        let answer = tally.as_json::<DlqReplay>(false);
        assert_eq!((&answer["failed_in_all"], &answer["unanswered_calls"]), (&json!(120), &json!(1)));
        let none = BulkProgress::default();
        assert_eq!(none.line::<DlqReplay>(true), "0 dead letters would be replayed");
        let expected = json!({"replayed": 0, "failed": [], "more": false, "dry_run": true});
        assert_eq!(none.as_json::<DlqReplay>(true), expected);
        assert!(none.failures().is_empty());
    }

    #[test]
    fn a_bar_says_how_far_and_how_long() {
        let tally = BulkProgress { done: 2_400, failed: 100, ..BulkProgress::default() };
        let shown = bar(&tally, 10_000, Duration::from_secs(10));
        assert_eq!(shown, "[#######                       ] 2,500 of 10,000, 100 failed, 30.0 s left");
        assert_eq!(bar(&BulkProgress::default(), 3, Duration::ZERO), format!("[{:30}] 0 of 3", ""));
        assert!(bar(&tally, 0, Duration::ZERO).ends_with("2,500 of 2,500, 100 failed"), "more came than were counted");
    }

    #[test]
    fn calls_are_small_where_the_rate_is() {
        assert_eq!([None, Some(0.1), Some(10.0), Some(1e9)].map(per_call), [500, 1, 50, 500]);
    }
}
