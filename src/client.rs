//! A client for programs in Rust: publishes and submits jobs, waits for runs, cancels them, follows their events.
//!
//! It uses the API and the subjects of the contract, as a client in any language can.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{Stream, StreamExt as _};
use longshore_backbone::wire::api::{
    ApiError, Cancelled, Endpoint, Record, RunRequest, RunsCancel, RunsGet, RunsWait, Selection, Submit, SubmitRequest,
    Submitted, Target, WaitRequest,
};
use longshore_backbone::{Connection, Error as Unreachable};
use longshore_domain::run::whole_millis;
use longshore_domain::{JobType, Lane, NameError, Priority, Queue, RunId, Tenant};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::config::{NatsError, nats};

/// How long an answer may take. A node answers within milliseconds; servers that elect a leader take seconds.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// The longest that a node is asked to wait for a run at once.
const WAIT_AT_ONCE: Duration = Duration::from_secs(60);
/// When another node is asked to wait, after one that ends or none.
const ASK_AGAIN_AFTER: Duration = Duration::from_millis(500);

/// Why a client's call failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The environment or a NATS context cannot be read.
    #[error(transparent)]
    Options(#[from] NatsError),
    /// NATS cannot be reached, or refused.
    #[error(transparent)]
    Nats(#[from] Unreachable),
    /// The nodes' answer, with its code.
    #[error(transparent)]
    Api(#[from] ApiError),
    /// A tenant, queue, type or run id that cannot be one.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The payload cannot be written as JSON.
    #[error("the payload cannot be written as JSON")]
    Payload(#[source] serde_json::Error),
}

/// A client of one tenant. Cheap to clone.
///
/// ```no_run
/// # async fn example() -> Result<(), longshore::ClientError> {
/// use std::time::Duration;
///
/// let client = longshore::Client::from_environment().await?; // NATS_URL and the like
/// let run = client.job("report.render").payload(&serde_json::json!({"number": 7}))?.delay(Duration::from_secs(5));
/// let run = run.key("report-7").submit().await?;
/// let record = client.wait(&run.run_id, Duration::from_secs(60)).await?;
/// println!("{}: {:?}", record.state, record.result);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Client {
    client: longshore_backbone::Client,
    tenant: Tenant,
}

impl Client {
    /// Connects as the environment says (`NATS_URL` and the other variables of NATS tools), to the namespace that
    /// `LONGSHORE_NAMESPACE` names or `longshore`, as tenant `default`.
    ///
    /// # Errors
    /// A variable cannot be read, or the server cannot be reached.
    pub async fn from_environment() -> Result<Self, ClientError> {
        let connection = nats::Options::from_environment()?.connection()?;
        let namespace = std::env::var("LONGSHORE_NAMESPACE").ok().filter(|name| !name.is_empty());
        Self::connect(&connection, namespace.as_deref().unwrap_or("longshore")).await
    }

    /// Connects to a namespace, as tenant `default`.
    ///
    /// # Errors
    /// The server cannot be reached.
    pub async fn connect(connection: &Connection, namespace: &str) -> Result<Self, ClientError> {
        let client = longshore_backbone::Client::connect(connection, namespace).await?;
        Ok(Self { client, tenant: Tenant::default_tenant() })
    }

    /// The same client as this tenant.
    ///
    /// # Errors
    /// The name is not a tenant's.
    pub fn with_tenant(mut self, tenant: &str) -> Result<Self, ClientError> {
        self.tenant = Tenant::parse(tenant)?;
        Ok(self)
    }

    /// Publishes a job with its payload as JSON, in queue `main` with priority 5, by one message to JetStream: the
    /// fastest way. Returns the run's id once the job is durable.
    ///
    /// # Errors
    /// The payload or the type cannot be written, the lane is full, or the server did not confirm the job: then it may
    /// be there or not.
    pub async fn publish(&self, job_type: &str, payload: &impl Serialize) -> Result<RunId, ClientError> {
        let payload = serde_json::to_vec(payload).map_err(ClientError::Payload)?;
        let (lane, job_type) = (Lane::new(&Queue::main(), Priority::DEFAULT), JobType::parse(job_type)?);
        Ok(self.client.publish_job(&self.tenant, &lane, &job_type, Bytes::from(payload)).await?)
    }

    /// A job to be submitted to the nodes, with options.
    pub fn job(&self, job_type: &str) -> NewJob<'_> {
        NewJob { client: self, job: SubmitRequest { job_type: job_type.to_owned(), ..SubmitRequest::default() } }
    }

    /// The run's record.
    ///
    /// # Errors
    /// 404: the run is not known; and what a call can meet.
    pub async fn get(&self, run: &RunId) -> Result<Record, ClientError> {
        self.ask::<RunsGet>(&RunRequest { run_id: run.clone(), tenant: None }, ANSWER_WITHIN).await
    }

    /// Waits for the end of a run: returns its record then, or as it is when `within` has passed. If the run is a
    /// duplicate, that of the run which has its key. Nodes may end and start meanwhile.
    ///
    /// # Errors
    /// As [`Client::get`]; 503, 504, and 429 for too many waits, only once `within` has passed.
    pub async fn wait(&self, run: &RunId, within: Duration) -> Result<Record, ClientError> {
        let until = tokio::time::Instant::now() + within;
        loop {
            let left = until.saturating_duration_since(tokio::time::Instant::now());
            let most = left.min(WAIT_AT_ONCE);
            let request = WaitRequest { run_id: run.clone(), tenant: None, timeout_ms: Some(whole_millis(most)) };
            let record = match self.ask::<RunsWait>(&request, most + ANSWER_WITHIN).await {
                Err(ClientError::Api(ApiError { code: 429 | 503 | 504, .. })) if !left.is_zero() => {
                    tokio::time::sleep(ASK_AGAIN_AFTER.min(left)).await;
                    continue;
                }
                answer => answer?,
            };
            if record.ended_at.is_some() || left <= most {
                return Ok(record);
            }
        }
    }

    /// Cancels a run: one that waits never starts, one that runs is asked to stop. Returns its record.
    ///
    /// # Errors
    /// 404: the run is not known; 409: it has ended otherwise; and what a call can meet.
    pub async fn cancel(&self, run: &RunId) -> Result<Record, ClientError> {
        match self.ask::<RunsCancel>(&Selection::of(Target::Run(run.clone())), ANSWER_WITHIN).await? {
            Cancelled::Run(record) => Ok(*record),
            Cancelled::Runs(_) => self.get(run).await,
        }
    }

    /// All that happens from now on, live: who does not read fast enough misses events, which the event log has. The
    /// stream ends with an error when the server refuses it, which it says some time after the subscription.
    ///
    /// # Errors
    /// There is no connection.
    pub async fn events(&self) -> Result<impl Stream<Item = Result<Event, ClientError>> + use<>, ClientError> {
        let subject = self.client.names().events_where(Some(self.tenant.as_str()), None, None, None);
        self.events_on(subject).await
    }

    /// All that happens to one run from now on.
    ///
    /// # Errors
    /// As [`Client::events`].
    pub async fn events_of(
        &self,
        run: &RunId,
    ) -> Result<impl Stream<Item = Result<Event, ClientError>> + use<>, ClientError> {
        let subject = self.client.names().events_where(Some(self.tenant.as_str()), None, None, Some(run.as_str()));
        self.events_on(subject).await
    }

    async fn events_on(
        &self,
        subject: String,
    ) -> Result<impl Stream<Item = Result<Event, ClientError>> + use<>, ClientError> {
        let messages = self.client.subscribe(subject).await?;
        Ok(messages.filter_map(async |message| match message {
            Ok((_, payload)) => serde_json::from_slice(&payload).ok().map(Ok),
            Err(error) => Some(Err(error.into())),
        }))
    }

    async fn ask<E: Endpoint>(&self, request: &E::Request, within: Duration) -> Result<E::Answer, ClientError> {
        Ok(self.client.ask::<E>(self.tenant.as_str(), request, within).await?.read()?)
    }
}

/// A job that is being written. What is not set follows the nodes' settings.
#[derive(Debug, Clone)]
#[must_use = "the job is not submitted yet"]
pub struct NewJob<'c> {
    client: &'c Client,
    job: SubmitRequest,
}

impl NewJob<'_> {
    /// Its payload, as JSON.
    ///
    /// # Errors
    /// It cannot be written as JSON.
    pub fn payload(mut self, payload: &impl Serialize) -> Result<Self, ClientError> {
        self.job.payload = Some(serde_json::value::to_raw_value(payload).map_err(ClientError::Payload)?);
        Ok(self)
    }

    /// Its queue, instead of `main`.
    pub fn queue(mut self, queue: &str) -> Self {
        self.job.queue = Some(queue.to_owned());
        self
    }

    /// 1, the most urgent, to 9, instead of 5.
    pub fn priority(mut self, priority: u8) -> Self {
        self.job.priority = Some(priority.into());
        self
    }

    /// It starts after this time at the earliest.
    pub fn delay(mut self, delay: Duration) -> Self {
        self.job.delay_ms = Some(whole_millis(delay));
        self
    }

    /// Its idempotency key: one run per key within the window.
    pub fn key(mut self, key: impl Into<String>) -> Self {
        self.job.idempotency_key = Some(key.into());
        self
    }

    /// How many attempts it has.
    pub fn max_attempts(mut self, attempts: u32) -> Self {
        self.job.max_attempts = Some(attempts.into());
        self
    }

    /// The time limit of one attempt.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.job.timeout_ms = Some(whole_millis(timeout));
        self
    }

    /// A tag, for people and filters; at most 8.
    pub fn tag(mut self, tag: impl Into<String>) -> Self {
        self.job.tags.get_or_insert_default().push(tag.into());
        self
    }

    /// Any other field of `submit`.
    pub fn set(mut self, change: impl FnOnce(&mut SubmitRequest)) -> Self {
        change(&mut self.job);
        self
    }

    /// Submits it: returns once it is durable.
    ///
    /// # Errors
    /// 400: a field is wrong; 413, 429, 503: too large, too many, not now; and what a call can meet.
    pub async fn submit(self) -> Result<Submitted, ClientError> {
        self.client.ask::<Submit>(&self.job, ANSWER_WITHIN).await
    }
}

/// Something that happened to a run: section 4 of the contract.
#[derive(Debug, Clone, Deserialize)]
#[serde(try_from = "BTreeMap<String, Box<RawValue>>")]
#[non_exhaustive]
pub struct Event {
    /// The same when the same event is published again.
    pub id: String,
    /// What happened: `enqueued`, `started`, `completed` and so on.
    pub event: String,
    /// The run; absent in events of the system.
    pub run_id: Option<RunId>,
    /// Its type.
    pub job_type: Option<String>,
    /// The attempt.
    pub attempt: u32,
    /// Everything else that the event says, such as `result`, `error` and `progress`: as it was written, since handlers
    /// may send JSON that no parsed value holds.
    pub rest: BTreeMap<String, Box<RawValue>>,
}

impl TryFrom<BTreeMap<String, Box<RawValue>>> for Event {
    type Error = serde_json::Error;

    fn try_from(mut rest: BTreeMap<String, Box<RawValue>>) -> Result<Self, Self::Error> {
        fn read<T: DeserializeOwned>(raw: Option<Box<RawValue>>) -> Result<Option<T>, serde_json::Error> {
            raw.map(|raw| serde_json::from_str(raw.get())).transpose()
        }
        Ok(Self {
            id: read(rest.remove("id"))?.ok_or_else(|| serde::de::Error::missing_field("id"))?,
            event: read(rest.remove("event"))?.ok_or_else(|| serde::de::Error::missing_field("event"))?,
            run_id: read(rest.remove("run_id"))?,
            job_type: read(rest.remove("type"))?,
            attempt: read(rest.remove("attempt"))?.unwrap_or_default(),
            rest,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_read_whatever_its_handler_sent() {
        let deep = format!("{}{}", "[".repeat(500), "]".repeat(500));
        for result in ["1e400", r#""\ud800""#, "0.10", "null", &deep] {
            let event =
                format!(r#"{{"id":"i","event":"completed","run_id":"r","type":"t","attempt":2,"result":{result}}}"#);
            let event: Event = serde_json::from_str(&event).unwrap();
            assert_eq!((event.event.as_str(), event.attempt, event.rest["result"].get()), ("completed", 2, result));
        }
        assert!(serde_json::from_str::<Event>(r#"{"event":"completed"}"#).is_err());
    }
}
