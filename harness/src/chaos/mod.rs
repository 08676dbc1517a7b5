//! A chaos run: jobs of every kind on several nodes, while every few seconds a node, handler or server is killed,
//! frozen, cut off or asked to end; then the checker judges the result.
//!
//! The seed decides the jobs, the faults and their order; the machine decides how they coincide, so a seed makes a
//! failure likely again, not certain. `jobs` defines the jobs and how they must end, `producer` publishes them,
//! `handlers` do the work and write it down, `faults` and `server_faults` cause the faults, `pauses` pauses queues and
//! types meanwhile, `recurring` has schedules fire all the while, `report` is the result, `stalls` watches the machine.

mod faults;
mod handlers;
mod jobs;
mod pauses;
mod producer;
mod recurring;
mod report;
mod server_faults;
mod stalls;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use rand::SeedableRng;
use rand::rngs::StdRng;
use tokio::sync::watch;

pub use faults::Fault;
pub use jobs::Sort;
pub use report::Report;

use crate::history::{Call, History, Limit, Ordered, Pause, Recurring, Rules, Violation};
use crate::publish::Receipt;
use crate::repeated_calls::{by_fault, repeated_calls, with_nodes};
use crate::standstill::standstills;
use crate::wire::{Event, EventName};
use crate::world::World;
use faults::Faults;
use jobs::Job;

/// How long all jobs may take to end once the faults are over.
const ENDS_WITHIN: Duration = Duration::from_secs(300);

/// Times on the wire have a resolution of 1 ms.
const GRAIN: Duration = Duration::from_millis(2);
/// A node whose own clock is wrong knows the server's to about half of what an answer takes.
const MEASURED: Duration = Duration::from_millis(20);

/// The parameters of a run.
#[derive(Debug, Clone, Copy)]
pub struct Chaos {
    /// The seed of the jobs and the faults.
    pub seed: u64,
    /// How many jobs are published.
    pub jobs: usize,
    /// How many jobs are published per second.
    pub rate: u32,
    /// How many nodes there are.
    pub nodes: usize,
    /// Whether there are three servers instead of one.
    pub three_servers: bool,
    /// Whether some jobs consist of bytes that no client library would send.
    pub raw_bytes: bool,
    /// By how many seconds the clocks of two nodes in three are wrong: one is ahead, one behind.
    pub clocks: i64,
}

impl Chaos {
    /// Runs it in a world of its own.
    ///
    /// # Panics
    /// If something cannot be started, or jobs do not end; with the report on one.
    pub async fn run(self) -> Report {
        let stalls = stalls::watch();
        let world = if self.three_servers { World::cluster().await } else { World::new().await };
        let mut faults = Faults::new(&world, StdRng::seed_from_u64(self.seed), (self.nodes, self.clocks)).await;
        let schedules = recurring::make(&world).await;
        let (over, is_over) = watch::channel(false);
        let operate = pauses::operate(&world, StdRng::seed_from_u64(self.seed.rotate_left(32)), is_over.clone());
        let publish = async {
            let published = producer::publish(&world, self).await;
            over.send_replace(true);
            published
        };
        let ((mut accepted, answers), (), pauses) = tokio::join!(publish, faults.trouble(is_over), operate);
        if let Some(servers) = world.server_cluster() {
            servers.in_step().await;
        }
        faults.revive().await;
        let schedules = recurring::pause(&world, &schedules).await;
        let mut states = world.ends(&receipts(&accepted), ENDS_WITHIN).await;
        // The handlers that publish follow-ups have ended now, so these are all.
        let children = faults.handlers().children();
        states.extend(world.ends(&receipts(&children), ENDS_WITHIN).await);
        accepted.extend(children);
        world.no_job_is_left(ENDS_WITHIN).await;
        faults.stop().await;
        let mut wrong: Vec<String> = answers.into_iter().chain(faults.wrong.drain(..)).chain(pauses.wrong).collect();
        wrong.extend(wrong_ends(&accepted, &states));
        wrong.extend(wrong_follow_ups(&world, &accepted, &states, &faults).await);
        let mut report = self.judge(&world, &accepted, faults, (pauses.held, schedules, wrong)).await;
        report.stalled = stalls.longest();
        report
    }

    async fn judge(
        self,
        world: &World,
        accepted: &[Job],
        faults: Faults<'_>,
        (pauses, recurring, wrong): (Vec<Pause>, Vec<Recurring>, Vec<String>),
    ) -> Report {
        let asked = faults.asked();
        let mut history = world.history(&receipts(accepted), Vec::new()).await;
        history.calls = with_nodes(&asked, &history.events);
        history.pauses = pauses;
        history.recurring = recurring;
        history.limits = limits(accepted);
        history.orders = orders(accepted);
        history.rules = Rules {
            interruptions: faults.interruptions,
            silences: faults.silences,
            lease: Some(faults::lease(world)),
            clock_skew: if self.clocks == 0 { GRAIN } else { MEASURED },
            on_their_way: faults::WORKERS,
            ..Rules::default()
        };
        let mut sorts = BTreeMap::new();
        for job in accepted {
            *sorts.entry(job.sort.name()).or_default() += 1;
        }
        let times: Vec<Timestamp> = faults.log.iter().map(|fault| fault.at).collect();
        let named: Vec<(Timestamp, &str)> = faults.log.iter().map(|fault| (fault.at, fault.what)).collect();
        let again: Vec<Timestamp> =
            repeated_calls(&history.calls, &history.events).into_iter().map(|call| call.start).collect();
        let (violations, on_their_way) = history.check_and_excuse();
        Report {
            chaos: self,
            sorts,
            runs: history.records.len(),
            calls: history.calls.len(),
            again: by_fault(&again, &named),
            leases_lost: leases_lost(&history),
            on_their_way,
            at_once: history
                .limits
                .iter()
                .map(|limit| (limit.name.clone(), most_at_once(limit, &history.calls)))
                .collect(),
            pauses: history.pauses.len(),
            still: standstills(&history.events, &times),
            stalled: Duration::ZERO,
            faults: faults.log,
            wrong,
            evidence: evidence(&history, &violations),
            violations,
        }
    }
}

/// What is known of one run for each kind of violation, with the node of each call.
fn evidence(history: &History, violations: &[Violation]) -> Vec<String> {
    let mut kinds = BTreeSet::new();
    let firsts = violations.iter().filter(|violation| kinds.insert(violation.kind));
    let runs: BTreeSet<(String, String)> =
        firsts.map(|violation| (violation.tenant.clone(), violation.run_id.clone())).collect();
    let found = history.evidence(&runs).into_iter();
    found.map(|((tenant, run), lines)| format!("what is known of {tenant}/{run}\n  {}", lines.join("\n  "))).collect()
}

fn receipts(jobs: &[Job]) -> Vec<Receipt> {
    jobs.iter().map(|job| job.receipt.clone()).collect()
}

/// The concurrency limits of the accepted jobs.
fn limits(accepted: &[Job]) -> Vec<Limit> {
    let mut limits: BTreeMap<String, Limit> = BTreeMap::new();
    for job in accepted {
        if let Some((name, at_most)) = job.sort.limit(job.number) {
            let outlasts_nodes = job.sort == Sort::PerKey;
            let limit = Limit { name: name.clone(), at_most, outlasts_nodes, runs: BTreeSet::new() };
            let limit = limits.entry(name).or_insert(limit);
            limit.runs.insert((job.receipt.tenant.clone(), job.receipt.run_id.clone()));
        }
    }
    limits.into_values().collect()
}

/// The accepted jobs of ordered keys, each key in the order of its lane.
fn orders(accepted: &[Job]) -> Vec<Ordered> {
    let mut orders: BTreeMap<String, BTreeMap<u64, (String, String)>> = BTreeMap::new();
    for job in accepted.iter().filter(|job| job.sort == Sort::Ordered) {
        let run = (job.receipt.tenant.clone(), job.receipt.run_id.clone());
        orders.entry(jobs::order(job.number)).or_default().insert(job.receipt.sequence, run);
    }
    orders.into_iter().map(|(name, runs)| Ordered { name, runs: runs.into_values().collect() }).collect()
}

/// The most calls of a limit's runs that were at work at once, by the handlers alone.
fn most_at_once(limit: &Limit, calls: &[Call]) -> usize {
    let of_limit = calls.iter().filter(|call| limit.runs.contains(&(call.tenant.clone(), call.run_id.clone())));
    let mut steps: Vec<(Timestamp, isize)> =
        of_limit.filter_map(|call| Some([(call.start, 1), (call.end?, -1)])).flatten().collect();
    // An end counts before a start of the same moment.
    steps.sort_unstable();
    let mut at_work = 0_isize;
    let most = steps.into_iter().map(|(_, step)| {
        at_work += step;
        at_work
    });
    most.max().and_then(|most| usize::try_from(most).ok()).unwrap_or(0)
}

fn leases_lost(history: &History) -> usize {
    let lost = |event: &Event| event.error.as_ref().is_some_and(|error| error.kind == "lease_expired");
    let failed = history.events.iter().filter(|logged| logged.event.event == EventName::Failed);
    failed.filter(|logged| lost(&logged.event)).map(|logged| &logged.event.id).collect::<BTreeSet<_>>().len()
}

/// Jobs that did not end as they must, and keys that do not have exactly one completed job.
fn wrong_ends(accepted: &[Job], states: &[String]) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut completed: BTreeMap<usize, Vec<&str>> = BTreeMap::new();
    for (job, state) in accepted.iter().zip(states) {
        let run = job.receipt.run_id.as_str();
        if !job.ends.contains(&state.as_str()) {
            wrong.push(format!("{run} ({}) ended as {state}, not {}", job.sort.name(), job.ends.join(" or ")));
        }
        if job.sort == Sort::Keyed {
            let of_key = completed.entry(job.number).or_default();
            of_key.extend((state == "completed").then_some(run));
        }
    }
    let not_one = completed.into_iter().filter(|(_, runs)| runs.len() != 1);
    wrong.extend(not_one.map(|(number, runs)| format!("of key {number} these completed: {runs:?}")));
    wrong
}

/// Follow-ups that carried their parent's headers: each must be a dead letter of kind `invalid`, and none may run.
async fn wrong_follow_ups(world: &World, accepted: &[Job], states: &[String], faults: &Faults<'_>) -> Vec<String> {
    let mut wrong: Vec<String> = faults.handlers().ran_wrongly();
    wrong.iter_mut().for_each(|parent| parent.insert_str(0, "a follow-up with its parent's headers ran, of "));
    let dead_letters = world.dead_letters("*").await;
    let refused: BTreeSet<String> = dead_letters
        .iter()
        .filter(|dead_letter| dead_letter.error_kind().as_deref() == Some("invalid"))
        .filter_map(|dead_letter| handlers::parent_of(&dead_letter.payload))
        .collect();
    for (job, state) in accepted.iter().zip(states) {
        let run = &job.receipt.run_id;
        if job.sort == Sort::Forwards && state == "completed" && !refused.contains(run) {
            wrong.push(format!("the follow-up of {run} carried its headers, and is no dead letter of kind invalid"));
        }
    }
    wrong
}
