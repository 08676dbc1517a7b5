//! Requests to the nodes: any endpoint of the API, and the request every test needs, waiting for a run's end.

use std::fmt;
use std::time::Duration;

use async_nats::Request;
use serde_json::{Value, json};
use tokio::process::Command;
use tokio::time::{Instant, sleep};

use crate::connect::chain;
use crate::eventually::eventually;
use crate::node::without_ours;
use crate::wire::Record;
use crate::world::{NAMESPACE, TENANT, World};

/// How long a request may take, and the news of a subscription among servers.
const INTEREST_WITHIN: Duration = Duration::from_secs(20);
/// How long [`World::wait`] waits for a run's end.
const END_WITHIN: Duration = Duration::from_secs(240);

/// How long a node is asked to delay one answer of `runs.wait`; short, since a node may die meanwhile, or be frozen and
/// asked several times in a row.
const HELD: Duration = Duration::from_secs(1);

/// The pause between two requests when no node answered: nothing announces that a node is back.
const PAUSE: Duration = Duration::from_millis(50);

/// An error that a node answered, or the harness's own error where no usable answer came.
#[derive(Debug, Clone)]
pub struct ApiError {
    /// As in the contract: 400, 403, 404, 409, 413, 429, 503; 0 if no node answered.
    pub code: u16,
    /// The error's short name.
    pub error: String,
    /// For people.
    pub message: String,
    /// The whole body.
    pub body: Value,
}

impl fmt::Display for ApiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}: {}", self.code, self.error, self.message)
    }
}

impl ApiError {
    fn no_answer(message: String) -> ApiError {
        ApiError { code: 0, error: "no_answer".to_owned(), message, body: Value::Null }
    }
}

impl World {
    /// Calls an endpoint as the tenant `default`: `request("runs.get", json!({"run_id": run}))`.
    ///
    /// # Panics
    /// If the answer is an error.
    pub async fn request(&self, endpoint: &str, body: Value) -> Value {
        self.request_as(TENANT, endpoint, body).await
    }

    /// As [`World::request`], as any tenant; `_all` is the operator's.
    ///
    /// # Panics
    /// As [`World::request`].
    pub async fn request_as(&self, tenant: &str, endpoint: &str, body: Value) -> Value {
        // Among several servers the news of a subscription may be on its way while the node is there already.
        let answer = eventually(endpoint, INTEREST_WITHIN, async || {
            match self.try_request(tenant, endpoint, body.clone()).await {
                Err(error) if error.message.contains("no responders") => Err(error.to_string()),
                answered => Ok(answered),
            }
        });
        answer.await.unwrap_or_else(|error| panic!("{endpoint}: {error}"))
    }

    /// Calls an endpoint as any tenant; `_all` is the operator's.
    ///
    /// # Errors
    /// The node's error, or an error if none answered within 10 s.
    pub async fn try_request(&self, tenant: &str, endpoint: &str, body: Value) -> Result<Value, ApiError> {
        self.ask(tenant, endpoint, body.to_string(), Duration::from_secs(10)).await
    }

    /// As [`World::try_request`], with a body that need not be JSON and with the caller's own time limit.
    ///
    /// # Errors
    /// The node's error, or an error if none answered in time.
    pub async fn ask(
        &self,
        tenant: &str,
        endpoint: &str,
        body: impl Into<bytes::Bytes>,
        within: Duration,
    ) -> Result<Value, ApiError> {
        let subject = format!("{NAMESPACE}.api.{tenant}.{endpoint}");
        let request = Request::new().payload(body.into()).timeout(Some(within));
        let answer = self.client().send_request(subject, request).await;
        let answer = answer.map_err(|error| ApiError::no_answer(chain(&error)))?;
        let body: Value = serde_json::from_slice(&answer.payload).unwrap_or(Value::Null);
        let headers = answer.headers.unwrap_or_default();
        let Some(code) = headers.get("Nats-Service-Error-Code") else {
            return Ok(body);
        };
        let text = |key: &str| body[key].as_str().unwrap_or("").to_owned();
        Err(ApiError { code: code.as_str().parse().unwrap_or(0), error: text("error"), message: text("message"), body })
    }

    /// Submits a job through the API: the body is that of the endpoint `submit`. Returns the run's id.
    ///
    /// # Panics
    /// If the answer is an error.
    pub async fn submit(&self, job: Value) -> String {
        let answer = self.request("submit", job).await;
        answer["run_id"].as_str().expect("an answer of `submit` has a run_id").to_owned()
    }

    /// Waits until the run has ended, for at most a minute, and returns its record. Nodes may come and go meanwhile.
    ///
    /// # Panics
    /// If it does not end; with its report.
    pub async fn wait(&self, run: &str) -> Record {
        self.wait_as(TENANT, run, END_WITHIN).await
    }

    /// As [`World::wait`], for any tenant and with any time limit.
    ///
    /// # Panics
    /// If it does not end; with its report.
    pub async fn wait_as(&self, tenant: &str, run: &str, within: Duration) -> Record {
        let deadline = Instant::now() + within;
        let mut last = "no node was asked".to_owned();
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                panic!(
                    "run {run} did not end within {within:?}; last answer: {last}\n{}",
                    self.report_as(tenant, run).await
                );
            }
            let held = HELD.min(left);
            let body = json!({"run_id": run, "timeout_ms": u64::try_from(held.as_millis()).unwrap_or(u64::MAX)});
            match self.ask(tenant, "runs.wait", body.to_string(), held + Duration::from_secs(2)).await {
                Ok(body) => match serde_json::from_value::<Record>(body.clone()) {
                    // It is a duplicate of that run, and ended before it.
                    Ok(record) if record.run_id != run => {
                        if let Some(own) = self.record_as(tenant, run).await {
                            return own;
                        }
                        last = format!("a duplicate of {}", record.run_id);
                    }
                    Ok(record) if record.is_terminal() => return record,
                    Ok(record) => last = format!("still {}, attempt {}", record.state, record.attempt),
                    Err(error) => panic!("runs.wait answered no record ({error}): {body}"),
                },
                Err(error) => {
                    last = error.to_string();
                    sleep(PAUSE).await;
                }
            }
        }
    }

    /// A command line of the binary, to be run against this world's server: `command(["queues", "--json"])`. If it is
    /// dropped while its process runs, the process is killed.
    pub fn command<'a>(&self, arguments: impl IntoIterator<Item = &'a str>) -> Command {
        let mut command = std::process::Command::new(self.binary());
        without_ours(&mut command);
        command.args(arguments).env("NATS_URL", self.urls()).current_dir(self.dir());
        let mut command = Command::from(command);
        command.kill_on_drop(true);
        command
    }
}
