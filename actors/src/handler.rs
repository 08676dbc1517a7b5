//! Handlers inside the node: the code that does a job's work.

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use longshore_domain::{Job, RunId};
use tokio_util::sync::CancellationToken;

/// A future that a handler returns.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Runs jobs. A closure `Fn(Context) -> impl Future<Output = Result<R, HandlerError>>` with `R: Into<Success>` is one.
pub trait Handler: Send + Sync + 'static {
    /// Does the work of one attempt. A panic is contained and counts as a failure of kind `panic`.
    ///
    /// # Errors
    /// A failure is retryable or permanent: see [`HandlerError`].
    fn call(&self, context: Context) -> BoxFuture<'_, Result<Success, HandlerError>>;
}

impl<F, Fut, R> Handler for F
where
    F: Fn(Context) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<R, HandlerError>> + Send + 'static,
    R: Into<Success>,
{
    fn call(&self, context: Context) -> BoxFuture<'_, Result<Success, HandlerError>> {
        let future = self(context);
        Box::pin(async move { future.await.map(Into::into) })
    }
}

/// The arguments of a handler.
#[derive(Debug, Clone)]
pub struct Context {
    /// Names, priority and run id of the job.
    pub job: Arc<Job>,
    /// The client's own bytes.
    pub payload: Bytes,
    /// The client's own headers, without those of NATS and Longshore.
    pub headers: Arc<Vec<(String, String)>>,
    /// The round: above 1 after a replay.
    pub round: u32,
    /// The attempt within the round, from 1.
    pub attempt: u32,
    /// Maximum number of attempts in a round.
    pub max_attempts: u32,
    /// When the attempt is cancelled.
    pub deadline: Instant,
    /// Cancelled when the run is cancelled, its lease lost or its time over. A handler should end soon after.
    pub cancellation: CancellationToken,
}

impl Context {
    /// The run's id: the same for every attempt, so a good key for making side effects idempotent.
    #[must_use]
    pub fn run_id(&self) -> &RunId {
        &self.job.run_id
    }

    /// The payload, read as JSON.
    ///
    /// # Errors
    /// Permanent, because another attempt reads the same bytes.
    pub fn json<T: serde::de::DeserializeOwned>(&self) -> Result<T, HandlerError> {
        serde_json::from_slice(&self.payload).map_err(|error| HandlerError::permanent(format!("payload: {error}")))
    }
}

/// A handler's success.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Success {
    /// The work is done; this is its result.
    Done {
        /// The result's bytes; JSON is kept as JSON.
        result: Bytes,
        /// The content type of the bytes; JSON if absent.
        content_type: Option<String>,
    },
    /// Not yet: the job is deferred for this long, and the attempt is not used up.
    Snooze(Duration),
}

impl From<()> for Success {
    fn from((): ()) -> Self {
        Self::Done { result: Bytes::new(), content_type: None }
    }
}

impl From<Bytes> for Success {
    fn from(result: Bytes) -> Self {
        Self::Done { result, content_type: None }
    }
}

impl From<serde_json::Value> for Success {
    fn from(value: serde_json::Value) -> Self {
        Self::Done { result: Bytes::from(value.to_string()), content_type: None }
    }
}

/// Why an attempt failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct HandlerError {
    /// Whether another attempt may help.
    pub permanent: bool,
    /// What went wrong; at most 4,096 bytes are kept.
    pub message: String,
    /// The earliest time until the next attempt, whatever the back-off says.
    pub retry_after: Option<Duration>,
}

impl HandlerError {
    /// A failure after which another attempt may help.
    #[must_use]
    pub fn retryable(message: impl Into<String>) -> Self {
        Self { permanent: false, message: message.into(), retry_after: None }
    }

    /// A failure after which no attempt will help: the job becomes a dead letter at once.
    #[must_use]
    pub fn permanent(message: impl Into<String>) -> Self {
        Self { permanent: true, message: message.into(), retry_after: None }
    }

    /// The same failure, with the next attempt not before `delay`.
    #[must_use]
    pub fn after(mut self, delay: Duration) -> Self {
        self.retry_after = Some(delay);
        self
    }
}

/// The handlers inside a node, by name. A type is served by the handler that its policy names, else by the handler with
/// the type's own name, else by remote handlers.
#[derive(Clone, Default)]
pub struct Handlers(HashMap<String, Arc<dyn Handler>>);

impl Handlers {
    /// No handlers: remote handlers serve every type.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds `handler` under `name`; replaces any other of that name.
    #[must_use]
    pub fn with(mut self, name: impl Into<String>, handler: impl Handler) -> Self {
        self.0.insert(name.into(), Arc::new(handler));
        self
    }

    /// The handler of that name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Arc<dyn Handler>> {
        self.0.get(name)
    }

    /// All names.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }
}

impl std::fmt::Debug for Handlers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.0.keys()).finish()
    }
}
