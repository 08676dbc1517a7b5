//! Handlers inside the node: the code that does a job's work.

use std::collections::{HashMap, HashSet};
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use foldhash::fast::FixedState;
use longshore_backbone::steps::{StepCall, StepResult};
use longshore_domain::{Job, JobType, Priority, Queue, RunId, Tenant, TraceId};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::value::to_raw_value;
use tokio_util::sync::CancellationToken;

use crate::runtime::Unpoisoned as _;
use crate::runtime::log_run::{About, log_run};

/// The first and the longest pause before a step is asked about again.
const STEP_PAUSE: Duration = Duration::from_millis(200);
const STEP_PAUSE_MAX: Duration = Duration::from_secs(5);

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

/// A handler that gets the payload as a value of its own type, read from JSON, and returns any value that can be
/// written as JSON. A payload that is not of that type fails for good.
///
/// ```
/// use longshore_actors::{Context, HandlerError, Handlers, typed};
///
/// #[derive(serde::Deserialize)]
/// struct Greet { name: String }
///
/// async fn greet(greet: Greet, _: Context) -> Result<String, HandlerError> {
///     Ok(format!("Hello, {}!", greet.name))
/// }
///
/// let handlers = Handlers::new().with("greet", typed(greet));
/// ```
pub fn typed<P, F, Fut, R>(work: F) -> impl Handler
where
    P: DeserializeOwned + Send + 'static,
    F: Fn(P, Context) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<R, HandlerError>> + Send + 'static,
    R: Serialize + 'static,
{
    let work = Arc::new(work);
    move |context: Context| {
        let work = Arc::clone(&work);
        async move {
            let result = work(context.json::<P>()?, context).await?;
            let result = serde_json::to_vec(&result);
            let result = result.map_err(|error| HandlerError::permanent(format!("result: {error}")))?;
            Ok::<Bytes, HandlerError>(result.into())
        }
    }
}

/// Where a handler's reports go while it works on `job`.
pub(crate) trait Reporter: std::fmt::Debug + Send + Sync {
    fn progress<'a>(&'a self, job: &'a Arc<Job>, json: Bytes) -> BoxFuture<'a, ()>;
    fn log<'a>(&'a self, job: &'a Arc<Job>, line: String) -> BoxFuture<'a, ()>;
    /// Nobody has to hear of it where the worker itself renews the lease.
    fn heartbeat(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {})
    }
    /// Looks a step up, or stores its result.
    fn step<'a>(&'a self, job: &'a Arc<Job>, call: StepCall) -> BoxFuture<'a, StepEnd>;
}

/// The result of a step that is finished; or why that is not known, with a status as HTTP has them.
pub(crate) type StepEnd = Result<Option<StepResult>, (u16, String)>;

/// Reports of a handler that is being tested go nowhere.
#[derive(Debug)]
struct Nowhere;

impl Reporter for Nowhere {
    fn progress<'a>(&'a self, _: &'a Arc<Job>, _: Bytes) -> BoxFuture<'a, ()> {
        Box::pin(async {})
    }

    fn log<'a>(&'a self, _: &'a Arc<Job>, _: String) -> BoxFuture<'a, ()> {
        Box::pin(async {})
    }

    /// Every step is new.
    fn step<'a>(&'a self, _: &'a Arc<Job>, _: StepCall) -> BoxFuture<'a, StepEnd> {
        Box::pin(async { Ok(None) })
    }
}

/// The arguments of a handler.
#[derive(Debug, Clone)]
pub struct Context {
    /// Names, priority and run id of the job. Its options are left out where another node holds the job.
    pub job: Arc<Job>,
    /// The client's own bytes.
    pub payload: Bytes,
    /// The client's own headers, without those of NATS and Longshore. A content type is among them only if it is
    /// another one than `application/json`, which holds where it is absent.
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
    pub(crate) reporter: Arc<dyn Reporter>,
    /// How often each name of a step was used in this attempt.
    pub(crate) steps: Steps,
    /// The trace that the attempt belongs to, for lines of the log.
    pub(crate) trace_id: Option<TraceId>,
}

impl Context {
    /// The run's id: the same for every attempt, so a good key for making side effects idempotent.
    pub fn run_id(&self) -> &RunId {
        &self.job.run_id
    }

    /// The payload, read as JSON.
    ///
    /// # Errors
    /// Permanent, because another attempt reads the same bytes; names the field.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, HandlerError> {
        let wrong = |reason: String| HandlerError::permanent(format!("payload: {reason}"));
        let mut reader = serde_json::Deserializer::from_slice(&self.payload);
        let read = serde_path_to_error::deserialize(&mut reader).map_err(|error| {
            let path = error.path().to_string();
            let reason = error.into_inner().to_string();
            wrong(if path == "." || reason.starts_with("unknown field") { reason } else { format!("{path}: {reason}") })
        })?;
        reader.end().map_err(|error| wrong(error.to_string()))?;
        Ok(read)
    }

    /// Reports progress: an event, and kept in the record. At most 4,096 bytes of JSON; a report that is larger, or
    /// cannot be written, is dropped with a warning in the node's log.
    pub async fn progress(&self, progress: &impl Serialize) {
        match serde_json::to_vec(progress) {
            Ok(json) => self.reporter.progress(&self.job, json.into()).await,
            Err(error) => {
                let about = About::job(&self.job, self.attempt).traced(self.trace_id);
                log_run!(warn, about, "progress cannot be written as JSON: {error}");
            }
        }
    }

    /// Writes a line into the node's log, and keeps it with the run.
    pub async fn log(&self, line: impl Into<String>) {
        self.reporter.log(&self.job, line.into()).await;
    }

    /// Says that the handler is alive, as handlers outside of nodes do. Inside a node there is no need: whether the
    /// process lives is known without.
    pub async fn heartbeat(&self) {
        self.reporter.heartbeat().await;
    }

    /// A step of the work that is not done twice: its result is stored, and given back to whatever attempt of the run
    /// comes to the step again, on any node. The result is at most 512 KiB of JSON.
    ///
    /// At least once, not exactly: if node or process die between the work and the storing, the work is done again. So
    /// give [`Context::step_key`] to a service that takes idempotency keys. Steps are found by name and number of use,
    /// so that new ones may be put between them.
    ///
    /// ```
    /// # use longshore_actors::{Context, HandlerError};
    /// # async fn charge(_: &str) -> Result<u32, HandlerError> { Ok(1) }
    /// async fn order(context: Context) -> Result<u32, HandlerError> {
    ///     let key = context.step_key("charge");
    ///     context.step("charge", || async { charge(&key).await }).await
    /// }
    /// ```
    ///
    /// # Errors
    /// What the work fails with; retryable, if the attempt has lost its lease, or is to stop before the result could be
    /// looked up or stored; permanent, if the name is none (`A-Z a-z 0-9 _ -`, 64 bytes at most), if a step of that
    /// name is at work already, or if the result cannot be kept as JSON.
    pub async fn step<T, F, Fut>(&self, name: &str, work: F) -> Result<T, HandlerError>
    where
        T: Serialize + DeserializeOwned,
        F: FnOnce() -> Fut,
        Fut: Future<Output = Result<T, HandlerError>>,
    {
        let in_use = self.steps.begin(name)?;
        let call = StepCall { name: name.into(), n: in_use.n, result: None };
        call.check().map_err(|reason| HandlerError::permanent(format!("step {name}: {reason}")))?;
        let failed = |(code, reason): (u16, String)| HandlerError {
            permanent: code == 400,
            message: format!("step {name}: {reason}"),
            retry_after: None,
        };
        let unfit = |error: serde_json::Error| HandlerError::permanent(format!("the result of step {name}: {error}"));
        if let Some(found) = self.ask_step(&call).await.map_err(failed)? {
            return serde_json::from_str(found.result.get()).map_err(unfit);
        }
        let done = work().await?;
        let call = StepCall { result: Some(to_raw_value(&done).map_err(unfit)?), ..call };
        call.check().map_err(|reason| HandlerError::permanent(format!("step {name}: {reason}")))?;
        self.ask_step(&call).await.map_err(failed)?;
        Ok(done)
    }

    /// Asks about a step, or has it stored; again while nobody can say whether it is. An election of NATS must not have
    /// the work done twice.
    async fn ask_step(&self, call: &StepCall) -> StepEnd {
        let mut pause = STEP_PAUSE;
        loop {
            match self.reporter.step(&self.job, call.clone()).await {
                Err((503, reason)) if !self.cancellation.is_cancelled() => {
                    // Once, where it lasts.
                    if pause == STEP_PAUSE * 2 {
                        self.log(format!("step {} is asked about again: {reason}", call.name)).await;
                    }
                    let _ = tokio::time::timeout(pause, self.cancelled()).await;
                    pause = (pause * 2).min(STEP_PAUSE_MAX);
                }
                end => return end,
            }
        }
    }

    /// A key for what a step asks of others: the same in every attempt. It is that of the step of this name that is at
    /// work, or else of the next.
    pub fn step_key(&self, name: &str) -> String {
        format!("{}/{name}#{}", self.job.run_id, self.steps.number(name))
    }

    /// Resolves when the attempt is to stop: the token of [`Context::cancellation`].
    pub async fn cancelled(&self) {
        self.cancellation.cancelled().await;
    }

    /// A context for tests of handlers: the first attempt of a job of this type, in tenant `default` and queue `main`.
    /// Reports go nowhere.
    ///
    /// # Panics
    /// If `job_type` is not the name of a type.
    pub fn for_test(job_type: &str, payload: impl Into<Bytes>) -> Self {
        let job_type = JobType::parse(job_type).unwrap_or_else(|error| panic!("{error}"));
        let job = Job {
            tenant: Tenant::default_tenant(),
            queue: Queue::main(),
            priority: Priority::DEFAULT,
            job_type,
            run_id: RunId::derived(&longshore_domain::Lane::new(&Queue::main(), Priority::DEFAULT), 1),
            options: None,
        };
        Self {
            job: Arc::new(job),
            payload: payload.into(),
            headers: Arc::default(),
            round: 1,
            attempt: 1,
            max_attempts: 12,
            deadline: Instant::now() + Duration::from_secs(60),
            cancellation: CancellationToken::new(),
            reporter: Arc::new(Nowhere),
            steps: Steps::default(),
            trace_id: None,
        }
    }
}

/// The steps that an attempt has begun.
#[derive(Debug, Clone, Default)]
pub(crate) struct Steps(Arc<Mutex<HashMap<String, Use>>>);

#[derive(Debug, Default)]
struct Use {
    times: u32,
    is_at_work: bool,
}

/// A step at work; dropped, it is over.
struct InUse<'s> {
    name: &'s str,
    n: u32,
    steps: &'s Steps,
}

impl Steps {
    fn begin<'s>(&'s self, name: &'s str) -> Result<InUse<'s>, HandlerError> {
        let mut steps = self.0.lock().unpoisoned();
        let step = steps.entry(name.to_owned()).or_default();
        if std::mem::replace(&mut step.is_at_work, true) {
            return Err(HandlerError::permanent(format!("step {name} is at work already: use another name beside it")));
        }
        step.times += 1;
        Ok(InUse { name, n: step.times, steps: self })
    }

    fn number(&self, name: &str) -> u32 {
        let steps = self.0.lock().unpoisoned();
        steps.get(name).map_or(1, |step| if step.is_at_work { step.times } else { step.times + 1 })
    }
}

impl Drop for InUse<'_> {
    fn drop(&mut self) {
        let mut steps = self.steps.0.lock().unpoisoned();
        if let Some(step) = steps.get_mut(self.name) {
            step.is_at_work = false;
        }
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
///
/// Any error becomes one by `?`: retryable, with the texts of its causes. For that it is not a
/// [`std::error::Error`] itself.
#[derive(Debug, Clone, PartialEq, Eq)]
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
    pub fn retryable(message: impl Into<String>) -> Self {
        Self { permanent: false, message: message.into(), retry_after: None }
    }

    /// A failure after which no attempt will help: the job becomes a dead letter at once.
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

impl std::fmt::Display for HandlerError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl<E: std::error::Error> From<E> for HandlerError {
    fn from(error: E) -> Self {
        let mut message = error.to_string();
        let mut cause = error.source();
        while let Some(source) = cause {
            message = format!("{message}: {source}");
            cause = source.source();
        }
        Self::retryable(message)
    }
}

/// The handlers inside a node, by name. A type is served by the handler that its policy names, else by the handler with
/// the type's own name, else by remote handlers. Nodes that lack a handler have it called in a node that has it.
#[derive(Clone, Default)]
pub struct Handlers {
    /// Hashed quickly, as each job's handler is looked up: no client chooses which names are here.
    by_name: HashMap<String, Arc<dyn Handler>, FixedState>,
    /// Those that every node has, so that none need be offered to another.
    everywhere: HashSet<String>,
}

impl Handlers {
    /// No handlers: remote handlers serve every type.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds `handler` under `name`; replaces any other of that name.
    #[must_use]
    pub fn with(mut self, name: impl Into<String>, handler: impl Handler) -> Self {
        let name = name.into();
        self.everywhere.remove(&name);
        self.by_name.insert(name, Arc::new(handler));
        self
    }

    /// Adds a handler that every node of the cluster has: it is not offered to other nodes.
    #[must_use]
    pub fn with_everywhere(mut self, name: &str, handler: impl Handler) -> Self {
        self = self.with(name, handler);
        self.everywhere.insert(name.to_owned());
        self
    }

    /// The handler of that name.
    pub fn get(&self, name: &str) -> Option<&Arc<dyn Handler>> {
        self.by_name.get(name)
    }

    /// All names.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.by_name.keys().map(String::as_str)
    }

    /// Whether other nodes may lack the handler of that name.
    pub(crate) fn is_own(&self, name: &str) -> bool {
        self.by_name.contains_key(name) && !self.everywhere.contains(name)
    }
}

impl std::fmt::Debug for Handlers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.by_name.keys()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_typed_handler_reads_its_payload_and_writes_its_result() {
        let double = typed(async |number: u32, context: Context| {
            if number == 0 {
                return Err("x".parse::<u32>().unwrap_err().into());
            }
            Ok(vec![number * 2, context.attempt])
        });
        let call = async |payload: &'static str| double.call(Context::for_test("double", payload)).await;
        let done = Success::Done { result: Bytes::from_static(b"[42,1]"), content_type: None };
        assert_eq!(call("21").await, Ok(done));
        let error = call("\"21\"").await.unwrap_err();
        assert!(error.permanent && error.message.starts_with("payload: invalid type: string"), "{error}");
        assert_eq!(call("0").await, Err(HandlerError::retryable("invalid digit found in string")));
    }

    #[tokio::test]
    async fn steps_are_counted_by_name_and_do_not_overlap() {
        let context = Context::for_test("order", "");
        let run = context.run_id().clone();
        assert_eq!(context.step_key("charge"), format!("{run}/charge#1"));
        let key = context.step("charge", || async { Ok(context.step_key("charge")) }).await;
        assert_eq!(key, Ok(format!("{run}/charge#1")));
        assert_eq!(context.step_key("charge"), format!("{run}/charge#2"));
        let within = || async { context.step("charge", || async { Ok(()) }).await };
        let error = context.step("charge", within).await.unwrap_err();
        assert!(error.permanent && error.message.contains("at work already"), "{error}");
        let error = context.step("a.b", || async { Ok(()) }).await.unwrap_err();
        assert!(error.permanent && error.message.contains("name: "), "{error}");
        let long = context.step("long", || async { Ok("x".repeat(600_000)) }).await.unwrap_err();
        assert!(long.permanent && long.message.contains("524288 are kept"), "{long}");
        assert_eq!(context.step("charge", || async { Ok(3) }).await, Ok(3), "a failed one is over");
    }

    /// Two of three times nobody can say anything of a step.
    #[derive(Debug, Default)]
    struct Election(std::sync::atomic::AtomicU32);

    impl Reporter for Election {
        fn progress<'a>(&'a self, _: &'a Arc<Job>, _: Bytes) -> BoxFuture<'a, ()> {
            Box::pin(async {})
        }

        fn log<'a>(&'a self, _: &'a Arc<Job>, _: String) -> BoxFuture<'a, ()> {
            Box::pin(async {})
        }

        fn step<'a>(&'a self, _: &'a Arc<Job>, _: StepCall) -> BoxFuture<'a, StepEnd> {
            let nth = self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            Box::pin(async move { if nth % 3 == 2 { Ok(None) } else { Err((503, "no leader".to_owned())) } })
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_step_is_asked_about_until_somebody_can_say_and_its_work_is_done_once() {
        let reporter = Arc::new(Election::default());
        let context = Context { reporter, ..Context::for_test("order", "") };
        let mut done = 0;
        let work = || {
            done += 1;
            async { Ok(7) }
        };
        assert_eq!(context.step("charge", work).await, Ok(7));
        assert_eq!(done, 1);
        context.cancellation.cancel();
        let error = context.step("mail", || async { Ok(()) }).await.unwrap_err();
        assert!(!error.permanent && error.message.contains("no leader"), "{error}");
    }
}
