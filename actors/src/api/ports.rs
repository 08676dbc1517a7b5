//! The ports of keys, submissions, cancellations, reschedulings and dead letters, as the API answers them.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use longshore_backbone::records::Found;
use longshore_backbone::request::Stored;
use longshore_backbone::scan::Source;
use longshore_backbone::wire::api::ApiError;
use longshore_backbone::wire::header::{self, names};
use longshore_backbone::{Backbone, Error, Headers};
use longshore_domain::{Job, Lane, Priority, QueueLane, Run, RunId, Tenant};

use crate::api::cancellation::{comes_by_a_node, is_of_wait, is_over};
use crate::api::submission::SubmitPorts;
use crate::api::{Api, intake, runs};
use crate::attempt::assignment::Assignment;
use crate::commit::Commit;
use crate::commit::in_node::{InNode, NodeParts};
use crate::ports::passed_on::passed_on;
use crate::ports::{CancelPorts, DeadLetterPorts, InLane, Unlogged, WaitingPorts};
use crate::runtime::now;

/// How long the list of nodes is reused: many runs are often cancelled in a row.
const NODES_KNOWN_FOR: Duration = Duration::from_millis(500);
/// How long a node that has begun a cancelled job has to end it: handlers get two seconds to stop.
const ENDS_WITHIN: Duration = Duration::from_secs(5);
/// Pages of a stream that are read in search of a run's job.
const PAGES: usize = 400;

impl InNode for Api {
    fn own(&self) -> NodeParts<'_> {
        let (backbone, policies, metrics) = (&self.backbone, &self.policies, &self.metrics);
        let (committer, tracer) = (&self.committer, self.tracer.as_deref());
        NodeParts { backbone, identity: &self.identity, policies, metrics, committer, tracer }
    }
}

impl SubmitPorts for Api {
    async fn publish_job(&self, job: &Job, headers: Headers, payload: Bytes, id: &str) -> Result<(), ApiError> {
        let subject = self.backbone.names().job(&job.tenant, &job.lane(), &job.job_type);
        match self.backbone.move_to_lane(subject, headers, payload, id).await {
            Ok(_) => Ok(()),
            Err(error) => {
                intake::leave_refused(self, job, &error).await;
                Err(intake::refusal(self, job, &error).await)
            }
        }
    }

    async fn carry_out(&self, commit: Commit) -> Result<u64, Unlogged> {
        self.committer.carry_out(commit).await
    }

    async fn has_schedule(&self, run: &Run) -> Result<bool, Error> {
        self.backbone.find_schedule(run).await.map(|found| found.is_some())
    }

    async fn unschedule(&self, run: &Run) -> Result<(), Error> {
        self.backbone.unschedule(run).await.map(drop)
    }
}

impl DeadLetterPorts for Api {
    async fn move_to_lane(&self, run: &Run, headers: Headers, payload: Bytes, id: &str) -> Result<bool, Error> {
        let subject = self.backbone.names().job(&run.tenant, &run.lane(), &run.job_type);
        Ok(!self.backbone.move_to_lane(subject, headers, payload, id).await?.duplicate)
    }

    async fn remove_dead_letter(&self, sequence: u64) -> Result<(), Error> {
        self.backbone.take_out(&Source::DeadLetters, sequence).await.map(drop)
    }
}

impl WaitingPorts for Api {
    async fn recorded_for_certain(&self, tenant: &Tenant, run: &RunId) -> Result<Option<Found>, ApiError> {
        runs::recorded_for_certain(&self.backbone, tenant, run).await
    }

    async fn waiting(&self, tenant: &Tenant, run: &RunId) -> Result<Option<InLane>, ApiError> {
        let Some((lane, sequence)) = run.as_derived() else { return Ok(None) };
        let Some(delivery) = self.backbone.job_in_lane(&lane, sequence).await? else { return Ok(None) };
        let assignment = Assignment::read(delivery, self.backbone.names(), 0, self.backbone.max_on_arrival());
        let is_meant = assignment.job.tenant == *tenant && assignment.job.run_id == *run;
        Ok(is_meant.then(|| in_lane(self, assignment)))
    }

    async fn waiting_by_own_id(&self, tenant: &Tenant, run: &RunId) -> Result<Option<InLane>, ApiError> {
        if run.as_derived().is_some() {
            return Ok(None);
        }
        let (backbone, names) = (&self.backbone, self.backbone.names());
        for queue in backbone.declared_queues().await? {
            for priority in Priority::all() {
                let subject = names.jobs_where(Some(tenant), &Lane::new(&queue, priority), None);
                let place = Source::Lane(queue.clone(), priority.into());
                if let Some(stored) = find_in(backbone, &place, &subject, |stored| names_run(stored, run)).await? {
                    let delivery = backbone.as_delivered(stored, &names.lane_stream(&queue, priority));
                    let assignment = Assignment::read(delivery, names, 0, backbone.max_on_arrival());
                    if assignment.job.run_id != *run {
                        // Its headers cannot be read as a job's of that run.
                        continue;
                    }
                    return Ok(Some(in_lane(self, assignment)));
                }
            }
        }
        Ok(None)
    }

    async fn find(&self, place: &Source, run: &Run) -> Result<Option<Stored>, Error> {
        let (backbone, names) = (&self.backbone, self.backbone.names());
        let (subject, by_a_node) = match place {
            Source::Schedules => return backbone.standing_schedule(run).await,
            Source::Parked => (names.parked_of(&run.tenant, &run.lane(), &run.job_type), true),
            Source::Lane(queue, QueueLane::Returned) => {
                (names.returned_where(Some(&run.tenant), queue, Some(&run.job_type)), true)
            }
            _ => (names.job(&run.tenant, &run.lane(), &run.job_type), comes_by_a_node(run)),
        };
        let is_it = |stored: &Stored| match by_a_node {
            true => is_of_wait(&stored.headers, run),
            false => is_job_of(stored, run),
        };
        find_in(backbone, place, &subject, is_it).await
    }
}

impl CancelPorts for Api {
    passed_on! { self.backbone =>
        async fn forget_cancel(&self, tenant: &Tenant, run: &RunId) -> Result<(), Error>;
        async fn has_no_message(&self, run: &Run) -> Result<bool, Error>;
        async fn take_out(&self, place: &Source, sequence: u64) -> Result<bool, Error>;
        async fn remove_record(&self, tenant: &Tenant, run: &RunId, revision: u64) -> Result<(), Error>;
    }

    async fn note_cancel(&self, tenant: &Tenant, run: &RunId) -> Result<(), Error> {
        self.backbone.note_cancel(tenant, run, self.backbone.storage().failed_max_age).await
    }

    async fn ask_who_runs(&self, tenant: &Tenant, run: &RunId, only_if_waiting: bool) -> Result<bool, ApiError> {
        let nodes = match self.recently_cancelled.nodes(NODES_KNOWN_FOR) {
            Some(nodes) => nodes,
            None => {
                let present = self.backbone.nodes().present(now()).await?;
                let nodes: Arc<[String]> = present.into_iter().map(|presence| presence.node).collect();
                self.recently_cancelled.set_nodes(&nodes);
                nodes
            }
        };
        Ok(self.backbone.ask_who_runs(tenant, run, only_if_waiting, &nodes).await)
    }

    async fn wait_for_attempt(&self, tenant: &Tenant, run: &RunId) -> Result<(), ApiError> {
        let until = tokio::time::Instant::now() + ENDS_WITHIN;
        runs::wait_until(self, tenant, run, until, is_over).await.map(drop)
    }
}

/// A job that was read in its lane.
fn in_lane(api: &Api, mut assignment: Assignment) -> InLane {
    if let Some(tracer) = &api.tracer {
        assignment.trace(tracer);
    }
    let run = assignment.waiting_run(&api.policies);
    InLane { run, job: assignment.job, trace: assignment.payload.trace }
}

/// The first stored message under a subject that is the one.
async fn find_in(
    backbone: &Backbone,
    place: &Source,
    subject: &str,
    is_it: impl Fn(&Stored) -> bool,
) -> Result<Option<Stored>, Error> {
    let mut from = 1;
    for _ in 0..PAGES {
        let page = backbone.page(place, subject, from).await?;
        if let Some(stored) = page.messages.into_iter().find(&is_it) {
            return Ok(Some(stored));
        }
        match page.next {
            Some(next) => from = next,
            None => break,
        }
    }
    Ok(None)
}

fn names_run(stored: &Stored, run: &RunId) -> bool {
    header::value_of(&stored.headers, names::RUN_ID) == Some(run.as_str())
}

/// Whether a job in a lane is the run's: what a node wrote has its seal. A client may have put its id on another job,
/// which is invalid and becomes a dead letter.
fn is_job_of(stored: &Stored, run: &Run) -> bool {
    let has_its_seal = |read: header::JobHeaders| read.seal.is_none_or(|seal| seal == run.seal);
    names_run(stored, &run.run_id) && header::read_job(&stored.headers).is_ok_and(has_its_seal)
}
