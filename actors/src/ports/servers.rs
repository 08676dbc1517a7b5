//! The servers as the backbone reaches them.

use super::*;
use crate::ports::batch;
use crate::ports::passed_on::passed_on;

impl Server for Backbone {
    passed_on! { self =>
        async fn is_declared(&self, queue: &Queue) -> Result<bool, Error>;
        async fn read_record(&self, tenant: &Tenant, run: &RunId) -> Result<Option<Found>, Error>;
        async fn read_replica(&self, tenant: &Tenant, run: &RunId) -> Option<Found>;
        async fn write_record(&self, run: &Run, expected: u64) -> Result<Written, Error>;
        async fn write_for_client(&self, run: &Run, expected: u64) -> Result<Written, Error>;
        async fn claim_key(&self, tenant: &Tenant, key: &str, claim: &Claim, window: Duration)
            -> Result<Claimed, Error>;
        async fn read_claim(&self, tenant: &Tenant, key: &str) -> Result<Option<FoundClaim>, Error>;
        async fn write_claim(&self, tenant: &Tenant, key: &str, claim: &Claim, over: Over)
            -> Result<Option<u64>, Error>;
        async fn waiting_in_order(&self, id: &OrderId, at: Waits, beyond: u64, up_to: u64)
            -> Result<Vec<Waiting>, Error>;
        async fn notify_cancelled(&self, tenant: &Tenant, run: &RunId);
        async fn take_out_parked(&self, run: &Run, key: &KindKey) -> Result<(), Error>;
        async fn ask_holder(&self, node: &str, question: &HolderQuestion, wait: Duration) -> Option<HolderAnswer>;
        async fn presence_of(&self, node: &str) -> Result<Option<Presence>, Error>;
        async fn schedule(&self, run: &Run, at: Timestamp, headers: Option<&Headers>, payload: Bytes)
            -> Result<(), Error>;
        async fn park(&self, run: &Run, since: Timestamp, headers: Option<&Headers>, payload: Bytes)
            -> Result<(), Error>;
        async fn return_to_queue(&self, run: &Run, since: Timestamp, headers: Option<&Headers>, payload: Bytes)
            -> Result<(), Error>;
        async fn write_dead_letter(&self, run: &Run, headers: Option<&Headers>, payload: Bytes) -> Result<(), Error>;
        async fn ack(&self, ack_token: AckToken);
        async fn nak_after(&self, ack_token: AckToken, after: Duration);
    }

    async fn forget_steps(&self, tenant: &Tenant, run: &RunId) -> Result<(), Error> {
        self.purge_checkpoints(tenant, run.as_str()).await
    }

    async fn join_batch(&self, job: &Job, batch: &BatchId) -> Result<Result<(), String>, Error> {
        batch::join(self, &job.tenant, batch, &job.run_id).await
    }

    async fn note_end_in_batch(&self, run: &Run) -> Result<(), Error> {
        batch::note_end(self, run).await
    }

    async fn read_line(&self, id: &ConcurrencyId) -> Result<(Line, u64), Error> {
        self.slots().line(id).await
    }

    async fn write_line(&self, id: &ConcurrencyId, line: &Line, expected: u64) -> Result<bool, Error> {
        let written = self.slots().write_line(id, line, expected).await?;
        Ok(matches!(written, longshore_backbone::concurrency::Written::Won(_)))
    }

    async fn read_order(&self, id: &OrderId) -> Result<(Order, u64), Error> {
        self.slots().order(id).await
    }

    async fn write_order(&self, id: &OrderId, order: &Order, expected: u64, lasts: Duration) -> Result<bool, Error> {
        let written = self.slots().write_order(id, order, expected, lasts).await?;
        Ok(matches!(written, longshore_backbone::concurrency::Written::Won(_)))
    }

    async fn is_in_lane(&self, id: &OrderId, sequence: u64) -> Result<bool, Error> {
        Ok(self.job_in_lane(&id.lane, sequence).await?.is_some())
    }

    async fn publish_next(&self, run: &Run, headers: Headers, payload: Bytes) -> Result<bool, Error> {
        let subject = self.names().job(&run.tenant, &run.lane(), &run.job_type);
        let id = format!("{}/{}/{}", run.tenant, run.run_id, run.seal);
        match self.move_to_lane(subject, headers, payload, &id).await {
            Err(error) if is_no_responders_error(&error) && !self.is_declared(&run.queue).await? => {
                log_run!(warn, About::run(run), "its chain ends before it: nobody declares queue {}", run.queue);
                Ok(false)
            }
            published => published.map(|_| true),
        }
    }

    async fn publish_live(&self, events: &EncodedEvents) {
        self.publish_parts(events.live()).await;
    }

    fn ack_wait(&self) -> Duration {
        self.storage().lease
    }

    async fn pause(&self, wait: Duration) {
        // Thousands may wait for the same stream: they do not ask again in one moment.
        tokio::time::sleep(wait.mul_f64(0.75 + rand::random::<f64>() / 2.0)).await;
    }
}
