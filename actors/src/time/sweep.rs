//! The sweep: reads slowly through what waits for a time, and recovers schedules that the server forgot to fire.
//!
//! A schedule that falls due while its stream has no leader may never fire. Once it is overdue by more than the grace,
//! its job is moved into its lane as the timekeeper would have done it, under the same id, so that a firing that comes
//! all the same does no harm; then the schedule is deleted. A run is stranded if its record waits for a time that is
//! over and nothing is left that could bring it on. Without its payload it cannot be recovered: it is named in the log
//! and counted. A run whose schedule stands for a later time than its record has was rescheduled, and the node that did
//! so died before writing the schedule, or another request's schedule came later: it is scheduled again, by its record.
//! A running run is stranded if its message is gone, as with a lane that somebody deleted, and no node works on it any
//! more.
//!
//! One node sweeps for all: the first by name that is there. Two at once, for a while, do no harm either.
//!
//! What a round takes up of what it reads, and its bounds: `round`. What a run may have lost: `stranded`.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use longshore_backbone::Error;
use longshore_backbone::backlog::TimedCounts;
use longshore_backbone::request::Stored;
use longshore_backbone::scan::Source;
use longshore_backbone::sweep::{self, Standing};
use longshore_domain::{Run, RunId, Tenant};

use crate::api::{Api, stranded};
use crate::metrics::Restored;
use crate::ports::passed_on::passed_on;
use crate::queue::due::{self, DueJob, StoredPorts};
use crate::runtime::identity::is_first;
use crate::runtime::log_run::{About, log_run};
use crate::runtime::now;
use crate::runtime::supervision::{LoopEnd, ticks};

pub(crate) mod round;

use round::{FIRST, LOOKS, MOVES, Round, Suspects, is_overdue};

/// Overdue jobs that are moved at once.
const AT_ONCE: usize = 16;
/// How often counts that have not changed are published again: they expire after an hour.
const PUBLISH_EVERY: Duration = Duration::from_secs(60);
/// Runs that are remembered as already named in the log.
const MAX_NAMED: usize = 10_000;

/// How far the sweep has read, and which runs it has named.
struct Sweep {
    api: Arc<Api>,
    grace: Duration,
    schedules_from: u64,
    records_from: u64,
    /// The schedules that this pass has met so far, and what was last published of a whole pass.
    timed: TimedCounts,
    published: Option<(Instant, TimedCounts)>,
    named: HashSet<(Tenant, RunId)>,
}

pub(crate) async fn run(api: Arc<Api>) -> LoopEnd {
    let grace = stranded::grace(api.backbone.storage().lease);
    let mut sweep = Sweep {
        api,
        grace,
        schedules_from: FIRST,
        records_from: FIRST,
        timed: TimedCounts::begun(now()),
        published: None,
        named: HashSet::new(),
    };
    let mut tick = ticks(grace);
    loop {
        tick.tick().await;
        if let Err(error) = sweep.round().await {
            tracing::debug!("the sweep goes on later: {}", error.with_causes());
        }
    }
}

impl Sweep {
    async fn round(&mut self) -> Result<(), Error> {
        let api = &self.api;
        if api.lifecycle.is_draining() || !is_first(&api.backbone.nodes(), &api.identity).await? {
            // Another node counts; what this one has counted so far is no whole.
            (self.schedules_from, self.timed) = (FIRST, TimedCounts::begun(now()));
            return Ok(());
        }
        self.schedules().await?;
        self.records().await
    }

    /// Moves the jobs of schedules that should have fired.
    async fn schedules(&mut self) -> Result<(), Error> {
        let (mut overdue, mut round) = (Vec::new(), Round::new(self.schedules_from, MOVES));
        while let Some(from) = round.reads_from() {
            let page = self.api.backbone.standing_schedules(from).await?;
            for job in page.found.iter().filter_map(|found| self.api.backbone.waits_for(found)) {
                self.timed.count(&job);
            }
            let now = now();
            overdue.extend(page.found.into_iter().filter(|standing| is_overdue(standing.at, self.grace, now)));
            let is_whole = round.has_read(page.bytes, page.next, overdue.len());
            self.schedules_from = round.from;
            if is_whole {
                self.publish_timed().await?;
            }
        }
        let moves = overdue.into_iter().map(|standing| bring_on(&self.api, standing));
        let moved: Vec<Result<bool, Error>> =
            futures_util::stream::iter(moves).buffer_unordered(AT_ONCE).collect().await;
        let restored = moved.iter().filter(|moved| matches!(moved, Ok(true))).count();
        if restored > 0 {
            self.api.metrics.restored(Restored::Schedule, restored);
            tracing::warn!(
                jobs = restored,
                "schedules were overdue and had not fired: their jobs are in their lanes now"
            );
        }
        moved.into_iter().find_map(Result::err).map_or(Ok(()), Err)
    }

    /// All schedules were read: publishes how many wait, for all nodes to show.
    async fn publish_timed(&mut self) -> Result<(), Error> {
        let counts = std::mem::replace(&mut self.timed, TimedCounts::begun(now()));
        let is_known =
            |(at, known): &(Instant, TimedCounts)| known.says_the_same(&counts) && at.elapsed() < PUBLISH_EVERY;
        if !self.published.as_ref().is_some_and(is_known) {
            self.api.backbone.publish_timed(&counts).await?;
            self.published = Some((Instant::now(), counts));
        }
        Ok(())
    }

    /// Brings runs on whose schedules stand for too late a time, and names those that nothing can bring on.
    async fn records(&mut self) -> Result<(), Error> {
        let lease = self.api.backbone.storage().lease;
        let (mut suspects, mut round) = (Suspects::default(), Round::new(self.records_from, LOOKS));
        while let Some(from) = round.reads_from() {
            let sweep::Chunk { found, bytes, next } = self.api.backbone.open_records(from).await?;
            suspects.take_in(found, lease, now());
            round.has_read(bytes, next, suspects.count());
            self.records_from = round.from;
        }
        self.records_from = suspects.next_waiting().unwrap_or(self.records_from);
        for (run, revision) in suspects.running {
            if self.is_newly_stranded(&run, revision).await? {
                log_run!(
                    warn,
                    About::run(&run),
                    node = run.node.as_deref(),
                    "the run is called running, but no node works on it, and no message of it is left: cancel it, then submit it again"
                );
            }
        }
        for (run, revision) in suspects.waiting.into_iter().take(LOOKS) {
            if self.is_brought_forward(&run, revision).await? {
                continue;
            }
            if self.is_newly_stranded(&run, revision).await? {
                let state = run.state.name();
                log_run!(warn, About::run(&run), ?state, due_at = %run.state.run_at().unwrap_or_default(),
                    "the run waits for a time that is over, and neither a schedule nor a message of it is left: submit it again, or cancel it");
            }
        }
        Ok(())
    }

    /// Whether nothing can bring this run on, and it was not named before; then it is counted.
    async fn is_newly_stranded(&mut self, run: &Run, revision: u64) -> Result<bool, Error> {
        let name = (run.tenant.clone(), run.run_id.clone());
        if self.named.contains(&name) || stranded::of(&self.api.backbone, run, revision).await?.is_none() {
            return Ok(false);
        }
        if self.named.len() >= MAX_NAMED {
            self.named.clear();
        }
        self.named.insert(name);
        self.api.metrics.stranded.inc();
        Ok(true)
    }

    /// Schedules a run again whose schedule stands for a later time than its record has; says whether there was one.
    async fn is_brought_forward(&self, run: &Run, revision: u64) -> Result<bool, Error> {
        let backbone = &self.api.backbone;
        let Some(Stored { headers, payload, .. }) = backbone.later_schedule(run).await? else { return Ok(false) };
        if !backbone.is_unchanged(run, revision).await? {
            return Ok(true);
        }
        // If it is rescheduled once more at this moment, this firing comes too early for its record, and is put off.
        let at = run.state.run_at().unwrap_or_default();
        backbone.schedule(run, at, Some(&headers), payload).await?;
        self.api.metrics.restored(Restored::Rescheduled, 1);
        log_run!(warn, About::run(run), due_at = %at,
            "the run was rescheduled, and its schedule stood for a later time: it is scheduled again");
        Ok(true)
    }
}

/// Does what the server should have done: publishes the job into its lane, then deletes the schedule. Says whether it
/// did.
async fn bring_on(api: &Api, standing: Standing) -> Result<bool, Error> {
    let backbone = &api.backbone;
    if !backbone.still_stands(&standing).await? {
        return Ok(false);
    }
    let headers = standing.stored.job_headers();
    let (payload, sequence) = (standing.stored.payload.clone(), standing.stored.sequence);
    let names = backbone.names();
    let Some(job) = DueJob::read(names, &standing.due, headers.as_ref(), payload, sequence) else { return Ok(false) };
    due::take_to_lane(api, &job, &Source::Schedules, sequence).await
}

impl StoredPorts for Api {
    async fn publish(&self, job: &DueJob) -> Result<(), Error> {
        job.publish(&self.backbone).await
    }

    fn published(&self, job: &DueJob) {
        job.count(&self.metrics.lateness);
    }

    passed_on! { self.backbone =>
        async fn take_out(&self, place: &Source, sequence: u64) -> Result<bool, Error>;
    }
}
