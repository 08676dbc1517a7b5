//! The ports of keys, submissions and dead letters, as the API answers them.

use std::time::Duration;

use bytes::Bytes;
use longshore_backbone::scan::Source;
use longshore_backbone::wire::api::ApiError;
use longshore_backbone::{Backbone, Error, Headers};
use longshore_domain::policy::Policies;
use longshore_domain::publication::Published;
use longshore_domain::{Job, Run, SmolStr, Timestamp};

use crate::api::{Api, intake};
use crate::commit::{Commit, Unlogged};
use crate::metrics::Metrics;
use crate::ports::{LetterPorts, RunPorts, SubmitPorts};
use crate::shared::{new_seal, now};
use crate::trace::Tracer;

impl RunPorts for Api {
    type Server = Backbone;

    fn server(&self) -> &Backbone {
        &self.backbone
    }

    fn now(&self) -> Timestamp {
        now()
    }

    fn seal(&self) -> SmolStr {
        new_seal()
    }

    fn node(&self) -> &SmolStr {
        &self.identity.node
    }

    fn token(&self) -> SmolStr {
        self.identity.token()
    }

    fn lease(&self) -> Duration {
        self.backbone.storage().lease
    }

    fn idempotency_window(&self) -> Duration {
        self.backbone.storage().idempotency_window
    }

    fn policies(&self) -> &Policies {
        &self.policies
    }

    fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    async fn publish(&self, run: &Run, published: Published) -> Result<(), Unlogged> {
        self.committer.publish(run, published).await
    }
}

impl SubmitPorts for Api {
    async fn publish_job(&self, job: &Job, headers: Headers, payload: Bytes, id: &str) -> Result<(), ApiError> {
        let subject = self.backbone.names().job(&job.tenant, &job.queue, job.priority, &job.job_type);
        match self.backbone.move_to_lane(subject, headers, payload, id).await {
            Ok(_) => Ok(()),
            Err(error) => Err(intake::refusal(self, job, &error).await),
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

impl LetterPorts for Api {
    fn tracer(&self) -> Option<&Tracer> {
        self.tracer.as_deref()
    }

    async fn move_to_lane(&self, run: &Run, headers: Headers, payload: Bytes, id: &str) -> Result<(), Error> {
        let subject = self.backbone.names().job(&run.tenant, &run.queue, run.priority, &run.job_type);
        self.backbone.move_to_lane(subject, headers, payload, id).await.map(drop)
    }

    async fn remove_letter(&self, sequence: u64) -> Result<(), Error> {
        self.backbone.take_out(&Source::DeadLetters, sequence).await.map(drop)
    }
}
