//! The ports of a real node's attempts.

use std::sync::Arc;
use std::time::{Duration, Instant};

use longshore_backbone::Backbone;
use longshore_backbone::handlers::Caller;
use longshore_domain::served::NeverServed;
use longshore_domain::{Job, Run};

use crate::attempt::ports::Ports;
use crate::attempt::recently_cancelled::RecentlyCancelled;
use crate::attempt::shed::Shed;
use crate::attempt::unclear_claims::UnclearClaims;
use crate::attempt::unstored_ends::UnstoredEnds;
use crate::commit::Commit;
use crate::commit::handle::Committer;
use crate::commit::in_node::{InNode, NodeParts};
use crate::commit::pipeline::Input;
use crate::handlers::routing::Routing;
use crate::handlers::served_types;
use crate::lease_keeper::Book;
use crate::limits::rate::Limits;
use crate::limits::settings::RunTimeSettings;
use crate::metrics::Metrics;
use crate::runtime::identity::Identity;
use crate::runtime::lifecycle::Lifecycle;
use crate::runtime::log_run::{About, log_run};
use crate::runtime::permits::LocalRetryPermits;
use crate::trace::Tracer;

pub(crate) struct NodePorts {
    pub(crate) backbone: Backbone,
    pub(crate) identity: Arc<Identity>,
    pub(crate) lifecycle: Lifecycle,
    pub(crate) routing: Arc<Routing>,
    /// Gives the tokens of rate limits, and holds types and keys.
    pub(crate) limits: Arc<Limits>,
    /// Says which queues and types are paused.
    pub(crate) run_time_settings: Arc<RunTimeSettings>,
    /// Says how much time jobs with a deadline need.
    pub(crate) shed: Arc<Shed>,
    pub(crate) caller: Caller,
    pub(crate) committer: Committer,
    pub(crate) book: Arc<Book>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) recently_cancelled: Arc<RecentlyCancelled>,
    pub(crate) unstored_ends: Arc<UnstoredEnds>,
    /// Takes the spans of jobs, if the node writes traces.
    pub(crate) tracer: Option<Arc<Tracer>>,
    pub(crate) unclear_claims: UnclearClaims,
    pub(crate) local_retries: Arc<LocalRetryPermits>,
}

impl NodePorts {
    /// Whether an attempt of this job may start now: neither its queue nor its type is paused, as far as this node
    /// knows, and it knows that.
    pub(crate) fn may_start(&self, job: &Job) -> bool {
        self.run_time_settings.may_start(&job.queue, &job.job_type, Instant::now())
    }
}

impl InNode for NodePorts {
    fn own(&self) -> NodeParts<'_> {
        let (backbone, policies, metrics) = (&self.backbone, &self.routing.policies, &self.metrics);
        let (committer, tracer) = (&self.committer, self.tracer.as_deref());
        NodeParts { backbone, identity: &self.identity, policies, metrics, committer, tracer }
    }
}

impl Ports for NodePorts {
    fn instant(&self) -> Instant {
        Instant::now()
    }

    fn chance(&self) -> f64 {
        rand::random()
    }

    fn writer(&self) -> &str {
        &self.identity.writer
    }

    fn book(&self) -> &Arc<Book> {
        &self.book
    }

    fn recently_cancelled(&self) -> &RecentlyCancelled {
        &self.recently_cancelled
    }

    fn unclear_claims(&self) -> &UnclearClaims {
        &self.unclear_claims
    }

    fn unstored_ends(&self) -> &UnstoredEnds {
        &self.unstored_ends
    }

    fn local_retries(&self) -> &Arc<LocalRetryPermits> {
        &self.local_retries
    }

    fn needs(&self, job: &Job) -> Option<Duration> {
        self.shed.needs(job, Instant::now())
    }

    async fn never_served(&self, job: &Job) -> Option<NeverServed> {
        let is_known = served_types::refresh(&self.backbone.served_types(), &self.routing.served).await;
        is_known.then(|| self.routing.never_served(&job.tenant, &job.job_type))?
    }

    fn gave_up(&self, run: &Run, reason: &'static str) {
        self.metrics.shed.with_label_values(&[reason]).inc();
        if self.shed.gave_up(Instant::now()) {
            log_run!(
                warn,
                About::run(run),
                queue = %run.queue,
                reason,
                "a job comes too late to be started; more of them are counted (longshore_jobs_shed_total)"
            );
        }
    }

    async fn commit(&self, commit: Box<Commit>) {
        self.committer.send(Input::Commit(commit)).await;
    }

    async fn wait_or_drain(&self, wait: Duration) {
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            () = self.lifecycle.draining.cancelled() => {}
        }
    }

    fn is_draining(&self) -> bool {
        self.lifecycle.is_draining()
    }
}
