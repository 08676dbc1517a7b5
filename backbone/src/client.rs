//! A client of a cluster: the use of NATS by the command line and other programs.

use std::time::Duration;

use async_nats::datetime::DateTime;
use async_nats::jetstream::consumer::{DeliverPolicy, pull};
use async_nats::{HeaderMap, RequestErrorKind};
use bytes::Bytes;
use futures_util::{FutureExt as _, Stream, StreamExt as _};
use longshore_domain::{JobType, Lane, RunId, Tenant, Timestamp};

use crate::connection::link::Link;
use crate::connection::refusals::MissingRight;
use crate::error::{Cause, Error};
use crate::messages::request;
use crate::settings::Connection;
use crate::wire::api::{ApiError, Code, Encoded, Endpoint, OPERATOR, about_tenant};
use crate::wire::header;
use crate::wire::subject::Names;

/// What [`Client::ask`] says if no node is there.
pub const NO_NODE: &str = "no Longshore node is running on this NATS server";

/// Talks to the nodes of one namespace.
#[derive(Debug, Clone)]
pub struct Client {
    nats: Link,
    names: Names,
    by: Option<String>,
    because: Option<String>,
}

impl Client {
    /// Connects.
    ///
    /// # Errors
    /// The server cannot be reached, or refuses the credentials.
    pub async fn connect(connection: &Connection, namespace: &str) -> Result<Self, Error> {
        let link = Link::open(connection, "client", "longshore client").await?;
        Ok(Self { nats: link, names: Names::new(namespace), by: None, because: None })
    }

    /// Says who asks, for the audit: nothing proves it.
    #[must_use]
    pub fn asking_as(mut self, who: &str) -> Self {
        self.by = Some(in_one_line(who));
        self
    }

    /// Says why it asks, for the audit.
    #[must_use]
    pub fn because(mut self, reason: Option<&str>) -> Self {
        self.because = reason.map(in_one_line);
        self
    }

    pub(crate) fn link(&self) -> &Link {
        &self.nats
    }

    /// The subjects of the namespace.
    pub fn names(&self) -> &Names {
        &self.names
    }

    /// Asks an endpoint of the API, under a tenant or [`OPERATOR`]. The answer is returned
    /// as its text, so that the caller can pass it on; [`Encoded::read`] parses it.
    ///
    /// ```no_run
    /// # async fn example(client: longshore_backbone::Client) -> Result<(), longshore_backbone::wire::api::ApiError> {
    /// use longshore_backbone::wire::api::{Submit, SubmitRequest};
    /// let job = SubmitRequest { job_type: "email.send".to_owned(), ..SubmitRequest::default() };
    /// let answer = client.ask::<Submit>("default", &job, std::time::Duration::from_secs(10)).await?;
    /// println!("{}", answer.read()?.run_id);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The endpoint's own error answer; 403 if the NATS user lacks a right that it needs, 413 if the server accepts no
    /// message of that size, 503 if no node is running or the connection is lost, 504 if no node answered within
    /// `timeout`, 500 if the request cannot be written or the answer is not a JSON object.
    pub async fn ask<E: Endpoint>(
        &self,
        tenant: &str,
        request: &E::Request,
        timeout: Duration,
    ) -> Result<Encoded<E::Answer>, ApiError> {
        let internal = |message: String| ApiError::new(Code::Internal, message);
        let mut body =
            serde_json::to_vec(request).map_err(|error| internal(format!("the request cannot be written: {error}")))?;
        let mut asker = tenant;
        // Only the operator can ask for jobs whose tenant could not be read.
        if tenant == Tenant::unreadable().as_str() {
            asker = OPERATOR;
            body = if E::DECLARATION.takes_tenant { about_tenant(tenant, &body)? } else { body };
        }
        let answer = self.request(asker, E::NAME, body, timeout).await?;
        Encoded::from_text(&answer).ok_or_else(|| internal("the answer is not a JSON object".to_owned()))
    }

    async fn request(&self, tenant: &str, endpoint: &str, body: Vec<u8>, timeout: Duration) -> Result<Bytes, ApiError> {
        let max = self.nats.server_info().max_payload;
        if body.len() > max {
            let message = format!(
                "the request has {} bytes, {max} are allowed in a message by this NATS server's max_payload",
                body.len()
            );
            return Err(ApiError::new(Code::TooLarge, message)
                .hint("store large data elsewhere and submit its address, or raise max_payload of the NATS server"));
        }
        let mut request = async_nats::Request::new().payload(Bytes::from(body)).timeout(Some(timeout));
        let mut headers = HeaderMap::new();
        for (name, value) in [(header::names::BY, &self.by), (header::names::REASON, &self.because)] {
            value.iter().for_each(|value| headers.insert(name, value.as_str()));
        }
        if !headers.is_empty() {
            request = request.headers(headers);
        }
        let subject = self.names.api(tenant, endpoint);
        let refusals = self.nats.refusals();
        refusals.forget(|refusal| refusal.is_of_publish(&subject));
        let inbox = self.nats.inbox_prefix();
        let refused = refusals.next(|refusal| refusal.is_of_publish(&subject) || refusal.is_of_inbox(&inbox));
        let answer = tokio::select! {
            answer = self.nats.request(subject.as_str(), request) => answer,
            right = refused => return Err(ApiError::new(Code::Forbidden, right.to_string()).hint(MissingRight::HINT)),
        };
        let message = answer.map_err(|error| match request::kind(&error) {
            Some(RequestErrorKind::NoResponders) => ApiError::unavailable(NO_NODE)
                .hint("start a node: longshore serve, or longshore dev; nodes of another namespace do not answer here"),
            Some(RequestErrorKind::TimedOut) => ApiError::no_answer(timeout),
            _ => ApiError::unavailable(error.to_string()),
        })?;
        let body = message.payload;
        let failed = message.headers.is_some_and(|headers| headers.get("Nats-Service-Error-Code").is_some());
        if failed {
            return Err(serde_json::from_slice(&body).unwrap_or_else(|error| ApiError::unavailable(error.to_string())));
        }
        Ok(body)
    }

    /// Publishes a job into its lane, as any NATS client can, and returns the id of its run once it is durable.
    ///
    /// # Errors
    /// The queue is not declared, its lane is full, or the server did not confirm it: then the job may be there or not.
    pub async fn publish_job(
        &self,
        tenant: &Tenant,
        lane: &Lane,
        job_type: &JobType,
        payload: Bytes,
    ) -> Result<RunId, Error> {
        let subject = self.names.job(tenant, lane, job_type);
        let stored = request::publish(&self.nats, subject, HeaderMap::new(), payload).await?;
        Ok(RunId::derived(lane, stored.seq))
    }

    /// Subscribes to `subject`: yields the subject and the payload of each message that is published from now on. The
    /// stream ends with an error when the server refuses it: the user lacks the right, or has lost it.
    ///
    /// # Errors
    /// The subject is not allowed.
    pub async fn subscribe(
        &self,
        subject: String,
    ) -> Result<impl Stream<Item = Result<(String, Bytes), Error>> + use<>, Error> {
        let refusals = self.nats.refusals();
        refusals.forget(|refusal| refusal.is_of_subscription(&subject));
        let refused = {
            let subject = subject.clone();
            refusals.next(move |refusal| refusal.is_of_subscription(&subject))
        };
        let mut messages = self.nats.subscribe(subject.clone()).await?;
        // The subscription must reach the server before the caller does what it wants to receive messages about.
        let _ = self.nats.flush().await;
        let failed = move |refusal: MissingRight| Error::Subscribe { subject, source: refusal.into() };
        let messages = futures_util::stream::poll_fn(move |context| messages.poll_next(context));
        let messages = messages.map(|message| Ok((message.subject.to_string(), message.payload)));
        Ok(until_refused(messages, refused.map(failed)))
    }

    /// Reads the event log of a tenant, `*` for all, from there on and then as it grows; says first how many batches
    /// the log has of that. The server's consumer may be lost with the server: then the stream has an error, and the
    /// log is to be read again, behind the last batch.
    ///
    /// # Errors
    /// The server has no event log, or the user may not read it.
    pub async fn event_log(
        &self,
        tenant: &str,
        from: LogStart,
    ) -> Result<(u64, impl Stream<Item = Result<LogBatch, Error>> + use<>), Error> {
        let (stream, subject) = (self.names.events_stream(), self.names.event_log(tenant));
        let failed = {
            let subject = subject.clone();
            move |source: Cause| Error::Read { subject: subject.clone(), source }
        };
        let deliver_policy = match from {
            LogStart::Since(time) => {
                let start_time = DateTime::from_unix_timestamp_nanos(i128::from(time.millis()) * 1_000_000);
                DeliverPolicy::ByStartTime { start_time: start_time.map_err(|error| failed(Box::new(error)))? }
            }
            LogStart::Behind(sequence) => DeliverPolicy::ByStartSequence { start_sequence: sequence + 1 },
        };
        let config = pull::OrderedConfig {
            // With a name the request's subject ends with the filter, by which a tenant is kept to its own log.
            name: Some(format!("longshore-{}", uuid::Uuid::now_v7().simple())),
            filter_subject: subject,
            deliver_policy,
            ..pull::OrderedConfig::default()
        };
        let refusals = self.nats.refusals();
        refusals.forget(|refusal| refusal.has_token(&stream));
        let mut refused = {
            let (inbox, stream) = (self.nats.inbox_prefix(), stream.clone());
            Box::pin(refusals.next(move |refusal| refusal.has_token(&stream) || refusal.is_of_inbox(&inbox)))
        };
        let open = async {
            let log =
                self.nats.jetstream().get_stream_no_info(stream).await.map_err(|error| failed(Box::new(error)))?;
            let consumer = log.create_consumer(config).await.map_err(|error| failed(Box::new(error)))?;
            let stored = consumer.cached_info().num_pending;
            Ok((stored, consumer.messages().await.map_err(|error| failed(Box::new(error)))?))
        };
        let (stored, messages) = tokio::select! {
            opened = open => opened?,
            refusal = &mut refused => return Err(failed(Box::new(refusal))),
        };
        let refused = refused.map({
            let failed = failed.clone();
            move |refusal| failed(Box::new(refusal))
        });
        let messages = messages.map(move |message| match message {
            Ok(message) => {
                let info = message.info().map_err(&failed)?;
                Ok(LogBatch { events: message.payload.clone(), sequence: info.stream_sequence, behind: info.pending })
            }
            Err(error) => Err(failed(Box::new(error))),
        });
        Ok((stored, until_refused(messages, refused)))
    }
}

/// Where a log is read from.
#[derive(Debug, Clone, Copy)]
pub enum LogStart {
    /// This time.
    Since(Timestamp),
    /// The batch behind the one with this sequence.
    Behind(u64),
}

/// Some events of a log that follow each other.
#[derive(Debug)]
pub struct LogBatch {
    /// A JSON line each.
    pub events: Bytes,
    /// Its place in the log.
    pub sequence: u64,
    /// How many batches the log had behind this one when it was sent.
    pub behind: u64,
}

/// The items up to their end, or to that of `refused`.
fn until_refused<T>(
    items: impl Stream<Item = Result<T, Error>>,
    refused: impl Future<Output = Error>,
) -> impl Stream<Item = Result<T, Error>> {
    let both = (Box::pin(items), Box::pin(refused));
    futures_util::stream::unfold(Some(both), async |both| {
        let (mut items, mut refused) = both?;
        tokio::select! {
            biased; // what came before the refusal
            item = items.next() => Some((item?, Some((items, refused)))),
            error = &mut refused => Some((Err(error), None)),
        }
    })
}

fn in_one_line(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).collect()
}
