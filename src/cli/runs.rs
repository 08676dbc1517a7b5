//! `longshore runs`: shows a run's record, waits for its end, reschedules, cancels and erases runs.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clap::builder::{PossibleValuesParser, TypedValueParser as _};
use clap::{ArgGroup, Args, Subcommand};
use longshore_backbone::wire::api::{
    self, ApiError, Encoded, NewStart, Record, RescheduleRequest, Rescheduled, RunRequest, RunsCancel, RunsErase,
    RunsGet, RunsPayload, RunsReschedule, RunsRunNow, RunsWait, Selection, Target, WaitRequest, Word,
};
use longshore_domain::run::whole_millis;
use longshore_domain::{Queue, RunId, RunState, Timestamp, duration};
use tokio::time::Instant;

use super::bulk::Bulk;
use super::client::Api;
use super::late::{self, LateCommand};
use super::output::{self, BAD};
use super::target::{Which, now, word};
use super::{Ended, Global, OneRun, Usage, bulk, record, run_lists};

#[derive(Debug, Subcommand)]
pub(crate) enum RunsCommand {
    /// List runs, those that changed last first
    List(run_lists::List),
    /// Count runs by queue, type and state
    Count(run_lists::Counting),
    /// Show a run: state, attempts, result or error
    Get(OneRun),
    /// Write the payload of a run's job to stdout, while it is stored: the job waits or works, or is a dead letter
    Payload {
        /// The run's id
        #[arg(value_parser = super::name::<RunId>)]
        id: RunId,
    },
    /// Wait for a run's end and show it
    Wait {
        /// The run's id
        #[arg(value_parser = super::name::<RunId>)]
        id: RunId,
        /// Wait this long at most
        #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
        timeout: Option<Duration>,
        /// JSON for machines
        #[arg(long)]
        json: bool,
    },
    /// Cancel one run, or those that fit: waiting jobs will not start, running ones are asked to stop
    Cancel(WaitingRuns),
    /// Start one run now that waits for its time or for its next attempt, or those that fit
    RunNow(WaitingRuns),
    /// Start such runs at another time, with another priority or in another queue
    Reschedule(Reschedule),
    #[command(flatten)]
    Late(LateCommand),
    /// Erase personal data of runs: payload, result, error texts, progress, checkpoints, dead letter; times stay
    Erase {
        /// The runs' ids; runs that have ended
        #[arg(required = true, value_name = "ID", value_parser = super::name::<RunId>)]
        ids: Vec<RunId>,
        /// Do not ask
        #[arg(long, short)]
        yes: bool,
        /// JSON for machines: one record per line
        #[arg(long)]
        json: bool,
    },
}

#[derive(Debug, Args)]
#[command(group = ArgGroup::new("changes").args(["at", "delay", "set_priority", "set_queue"]).required(true).multiple(true))]
pub(crate) struct Reschedule {
    #[command(flatten)]
    which: WaitingRuns,
    /// At this time: 2027-01-31T09:30:00Z
    #[arg(long, value_name = "TIME", value_parser = Timestamp::parse, help_heading = "Changes")]
    at: Option<Timestamp>,
    /// This long from now: 30s, 5m, 2h
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, conflicts_with = "at", help_heading = "Changes")]
    delay: Option<Duration>,
    /// With this priority: 1, the most urgent, to 9
    #[arg(long, short = 'p', value_name = "1-9", value_parser = clap::value_parser!(u64).range(1..=9), help_heading = "Changes")]
    set_priority: Option<u64>,
    /// In this queue
    #[arg(long, value_name = "NAME", value_parser = super::name::<Queue>, help_heading = "Changes")]
    set_queue: Option<Queue>,
}

/// One run, or those that fit, in a state that has not ended; and how.
#[derive(Debug, Args)]
pub(crate) struct WaitingRuns {
    #[command(flatten)]
    which: Which,
    /// In this state
    #[arg(long, value_parser = PossibleValuesParser::new(STATES).try_map(word::<RunState>), help_heading = "Which runs")]
    state: Option<RunState>,
    #[command(flatten)]
    options: bulk::Options,
}

/// States of runs that have not ended.
const STATES: [&str; 4] = ["scheduled", "enqueued", "running", "retrying"];

impl WaitingRuns {
    /// The choice. A wrong one is reported before anything is connected.
    fn chosen(self) -> Result<(Selection, bulk::Options), Usage> {
        let target = self.which.chosen(api::Filter { state: self.state, ..api::Filter::default() })?;
        Ok((Selection::of(target), self.options))
    }
}

pub(crate) async fn run(global: &Global, command: RunsCommand) -> anyhow::Result<Ended> {
    match command {
        RunsCommand::List(arguments) => run_lists::list(&Api::connect(global).await?, arguments).await,
        RunsCommand::Count(arguments) => run_lists::count(&Api::connect(global).await?, arguments).await,
        RunsCommand::Get(OneRun { id, json }) => {
            let asked = RunRequest { run_id: id, tenant: None };
            record::print(&Api::connect(global).await?.ask::<RunsGet>(asked).await?, json)
        }
        RunsCommand::Payload { id } => {
            let asked = RunRequest { run_id: id, tenant: None };
            let payload = Api::connect(global).await?.ask::<RunsPayload>(asked).await?.read()?;
            output::bytes(&STANDARD.decode(payload.payload_base64)?)?;
            Ok(Ended::Success)
        }
        RunsCommand::Wait { id, timeout, json } => wait(&Api::connect(global).await?, &id, timeout, json, None).await,
        RunsCommand::Cancel(which) => {
            let (selection, options) = which.chosen()?;
            let cancelled = |id: &RunId, _: &Encoded<_>| output::say(&format!("{id} is cancelled"));
            change::<RunsCancel>(&Api::connect(global).await?, selection, &options, cancelled).await
        }
        RunsCommand::RunNow(which) => {
            let (selection, options) = which.chosen()?;
            change::<RunsRunNow>(&Api::connect(global).await?, selection, &options, show_rescheduled).await
        }
        RunsCommand::Reschedule(Reschedule { which, at, delay, set_priority, set_queue }) => {
            let run_at = at.or_else(|| delay.map(|delay| now().plus(delay)));
            let set = NewStart { run_at, priority: set_priority, queue: set_queue };
            let (selection, options) = which.chosen()?;
            let asked = RescheduleRequest { selection, set };
            change::<RunsReschedule>(&Api::connect(global).await?, asked, &options, show_rescheduled).await
        }
        RunsCommand::Late(command) => late::run(global, command).await,
        RunsCommand::Erase { ids, yes, json } => erase(&Api::connect(global).await?, &ids, yes, json).await,
    }
}

/// Changes one run, whose answer `shown` prints, or those that fit.
async fn change<E: Bulk>(
    api: &Api,
    mut asked: E::Request,
    options: &bulk::Options,
    shown: impl FnOnce(&RunId, &Encoded<E::Answer>) -> anyhow::Result<()>,
) -> anyhow::Result<Ended> {
    let one = match E::scope(&mut asked).target {
        Some(Target::Run(id)) => id.clone(),
        _ => return bulk::run::<E>(api, asked, None, options).await,
    };
    options.for_many_only()?;
    let answer = api.ask::<E>(asked).await?;
    output::answer(&answer, options.json, || shown(&one, &answer))
}

fn show_rescheduled(_: &RunId, answer: &Encoded<Rescheduled>) -> anyhow::Result<()> {
    match answer.read()? {
        Rescheduled::Run(record) => output::say(record::show(&record, now()).trim_end()),
        Rescheduled::Runs(_) => Ok(()),
    }
}

/// Erasing one run can take long: its dead letter is searched among all.
const ERASING: Duration = Duration::from_secs(50);

async fn erase(api: &Api, ids: &[RunId], yes: bool, json: bool) -> anyhow::Result<Ended> {
    let what = if let [one] = ids { one.to_string() } else { format!("{} runs", ids.len()) };
    if !yes && !bulk::confirmed(&format!("Erase {what} for good?"), json)? {
        return Ok(Ended::Failure);
    }
    let mut ended = Ended::Success;
    for id in ids {
        let asked = RunRequest { run_id: id.clone(), tenant: None };
        match api.ask_within::<RunsErase>(asked, ERASING).await {
            Ok(stone) if json => output::json(&stone)?,
            Ok(_) => output::say(&format!("{id} is erased"))?,
            // A single run fails with its reason and advice, as everywhere.
            Err(error) if ids.len() == 1 => return Err(error.into()),
            Err(error) => {
                anstream::eprintln!("{BAD}failed:{BAD:#} {id}: {}", error.message);
                ended = Ended::Failure;
            }
        }
    }
    Ok(ended)
}

/// One request to the node lasts this long; a node that drains answers before it ends, and the next one is asked.
const ONE_WAIT: Duration = Duration::from_secs(20);
/// The first request; each one after it lasts twice as long.
const FIRST_WAIT: Duration = Duration::from_secs(2);

/// Nodes may restart while the command waits: how long it goes on without any node, once one has answered.
const NOBODY_FOR: Duration = Duration::from_secs(60);

/// Waits for a run's end, at most `most`, and prints it; for machines also what is known when the time is over.
/// `answered`: when a node has last answered.
pub(crate) async fn wait(
    api: &Api,
    id: &RunId,
    most: Option<Duration>,
    json: bool,
    mut answered: Option<Instant>,
) -> anyhow::Result<Ended> {
    let deadline = most.map(|most| Instant::now() + most);
    // The first answers come sooner, so that it is soon seen what the run waits for.
    let (mut one_wait, mut said, mut is_followed, mut known) = (FIRST_WAIT, None, false, None);
    loop {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let now = left.unwrap_or(one_wait).min(one_wait);
        let asked = WaitRequest { run_id: id.clone(), tenant: None, timeout_ms: Some(whole_millis(now)) };
        match api.ask_within::<RunsWait>(asked, now).await {
            Ok(answer) => {
                answered = Some(Instant::now());
                let Record { run_id, state, waiting_for, .. } = answer.read()?;
                if run_id != *id && !std::mem::replace(&mut is_followed, true) {
                    eprintln!("{id} is a duplicate of {run_id}, which counts");
                }
                if has_ended(&state) {
                    record::print(&answer, json)?;
                    let completed = state == RunState::Completed.into();
                    return Ok(if completed { Ended::Success } else { Ended::RunNotCompleted });
                }
                let reason = waiting_for.as_ref().map(|waiting_for| waiting_for.reason.clone());
                if let Some(waiting_for) = waiting_for.filter(|_| said != reason) {
                    eprintln!("{id} {}", output::cut(&output::plain(&waiting_for.message), 400));
                }
                said = reason;
                let was_last = left.is_some_and(|left| left <= one_wait);
                one_wait = (one_wait * 2).min(ONE_WAIT);
                known = Some(answer).filter(|_| json);
                if was_last {
                    eprintln!("{id} has not ended yet: {state}");
                    return timed_out(known);
                }
            }
            Err(ApiError { code: 503 | 504, .. }) if answered.is_some_and(|at| at.elapsed() < NOBODY_FOR) => {
                if left.is_some_and(|left| left.is_zero()) {
                    eprintln!("{id} has not ended yet, as far as is known: no node answers");
                    return timed_out(known);
                }
                tokio::time::sleep(Duration::from_millis(500)).await;
            }
            Err(error) => return Err(error.into()),
        }
    }
}

fn timed_out(known: Option<Encoded<Record>>) -> anyhow::Result<Ended> {
    known.iter().try_for_each(output::json)?;
    Ok(Ended::TimedOut)
}

/// A state that only a newer node knows counts as an end: waiting for another state could last for ever.
fn has_ended(state: &Word<RunState>) -> bool {
    state.known().is_none_or(|state| state.is_terminal())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn unfinished_states_are_not_ends() {
        let ended = |state: &str| has_ended(&serde_json::from_value(json!(state)).unwrap());
        assert!(["completed", "dead", "cancelled", "expired", "duplicate", "discarded", "new"].into_iter().all(ended));
        assert!(!STATES.into_iter().any(ended));
    }
}
