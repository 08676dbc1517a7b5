//! Schedules: jobs that the server publishes at a time (ADR-51). Only nodes write them, with headers they composed
//! themselves: a client that may write here could wipe or read every tenant's schedules.

use async_nats::HeaderMap;
use bytes::Bytes;
use longshore_domain::run::Run;
use longshore_domain::{State, Timestamp};

use crate::Backbone;
use crate::error::Error;
use crate::messages::request::{self, PubAck, Stored};
use crate::wire::header::{self, names};

impl Backbone {
    /// Schedules the run's job: the server publishes it as a due job at `at`. Writing it again replaces it, and changes
    /// nothing.
    ///
    /// # Errors
    /// The server did not confirm it.
    pub async fn schedule(
        &self,
        run: &Run,
        at: Timestamp,
        original: Option<&HeaderMap>,
        payload: Bytes,
    ) -> Result<(), Error> {
        let attempt = run.next_attempt();
        let mut headers = header::carry_on(original, run, attempt, Some(at));
        headers.insert(names::SCHEDULE, format!("@at {at}"));
        headers.insert(names::SCHEDULE_TARGET, self.names().due(&run.tenant, &run.lane(), &run.job_type));
        let payload = self.fitting(&mut headers, payload);
        request::publish(self.client(), self.schedule_of(run), headers, payload).await.map(drop)
    }

    /// The subject of the schedule of a run that waits for a time.
    pub(crate) fn schedule_of(&self, run: &Run) -> String {
        match run.state {
            State::Scheduled { .. } => self.names().schedule(&run.tenant, run.run_id.as_str()),
            _ => self.names().retry(run),
        }
    }

    /// The sequence of the schedule of a run that waits for a time, if there is one.
    ///
    /// # Errors
    /// It cannot be found out just now.
    pub async fn find_schedule(&self, run: &Run) -> Result<Option<u64>, Error> {
        let query = format!(r#"{{"last_by_subj":"{}"}}"#, self.schedule_of(run));
        let stored = request::direct_get(self.service(), &self.names().schedules_stream(), query).await?;
        Ok(stored.map(|stored| stored.sequence))
    }

    /// The schedule of a run that waits for a time, if it stands, as the stream's leader has it.
    ///
    /// # Errors
    /// The leader did not answer.
    pub async fn standing_schedule(&self, run: &Run) -> Result<Option<Stored>, Error> {
        let (stream, subject) = (self.names().schedules_stream(), self.schedule_of(run));
        let found = request::latest(self.service(), &stream, &subject).await?;
        Ok(found.map(Stored::from))
    }

    /// Publishes a job into its lane, under an id that makes a second publish of the same round and attempt harmless
    /// for two minutes; the record fences off later ones.
    ///
    /// # Errors
    /// The lane is full, or the server did not confirm it.
    pub async fn move_to_lane(
        &self,
        subject: String,
        headers: HeaderMap,
        payload: Bytes,
        id: &str,
    ) -> Result<PubAck, Error> {
        let mut headers = headers;
        headers.insert(names::MSG_ID, id);
        let payload = self.fitting(&mut headers, payload);
        request::publish(self.client(), subject, headers, payload).await
    }
}
