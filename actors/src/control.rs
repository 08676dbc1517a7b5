//! Control: the endpoints of the API, served as the NATS micro service `longshore`.

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use futures_util::{FutureExt as _, StreamExt as _};
use longshore_backbone::service::{self, Request, Serve};
use longshore_backbone::wire::api::{ApiError, Code};
use longshore_backbone::wire::json::Object;
use longshore_backbone::wire::record;
use longshore_domain::{Queue, RunId, Tenant};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::ask::{self, OPERATOR, unavailable};
use crate::carry_out::chain;
use crate::deaf::SPARE_THREADS;
use crate::intake;
use crate::queue::QueueState;
use crate::shared::{Shared, now};
use crate::{cancel, dlq, erase, replay, runs};

/// Every endpoint.
const ENDPOINTS: [&str; 14] = [
    "submit",
    "submit.batch",
    "runs.get",
    "runs.wait",
    "runs.cancel",
    "runs.erase",
    "dlq.list",
    "dlq.get",
    "dlq.groups",
    "dlq.replay",
    "dlq.discard",
    "queues.list",
    "nodes.list",
    "health",
];
/// Most jobs in one batch.
const BATCH_MAX: usize = 1_000;
/// Jobs of one batch that are published at once.
const BATCH_AT_ONCE: usize = 128;
/// How long `runs.wait` waits where the client does not say.
const WAIT_DEFAULT: Duration = Duration::from_secs(30);

/// Room for one answer in that to a batch: a success with the longest id, or an error that says enough.
const BATCH_ANSWER: usize = 512;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Batch {
    /// Byte for byte as they were sent.
    jobs: Vec<Box<RawValue>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RunRequest {
    run_id: String,
    timeout_ms: Option<u64>,
    tenant: Option<String>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct QueueRequest {
    queue: Option<String>,
}

struct Control {
    shared: Arc<Shared>,
    queues: Vec<Arc<QueueState>>,
}

/// Serves the API until the process ends.
pub(crate) async fn run(shared: Arc<Shared>, queues: Vec<Arc<QueueState>>) {
    let (backbone, started) = (shared.backbone.clone(), shared.started_at);
    let control = Control { shared, queues };
    if let Err(error) = service::run(backbone, crate::VERSION, started, &ENDPOINTS, control).await {
        panic!("the API cannot be served: {}", chain(&error));
    }
}

impl Serve for Control {
    fn begins(&self) {
        self.shared.serving.cancel();
    }

    async fn serve(&self, request: Request) -> Result<Object, ApiError> {
        let operator = request.tenant == OPERATOR;
        let value = match request.endpoint.as_str() {
            "submit" => intake::submit(&self.shared, &tenant(&request)?, read(&request.body)?).await,
            "submit.batch" => self.submit_batch(&tenant(&request)?, read(&request.body)?).await,
            "runs.get" => {
                let asked: RunRequest = read(&request.body)?;
                let (tenant, run_id) = run_of(&request, &asked)?;
                return runs::get(&self.shared, &tenant, &run_id).await.map(|run| record::show(&run));
            }
            "runs.wait" => {
                let asked: RunRequest = read(&request.body)?;
                let (tenant, run_id) = run_of(&request, &asked)?;
                let _waits = self.shared.waits.enter(&request.tenant)?;
                let timeout = asked.timeout_ms.map_or(WAIT_DEFAULT, Duration::from_millis);
                return runs::wait(&self.shared, &tenant, &run_id, timeout).await;
            }
            "runs.cancel" => return cancel::serve(&self.shared, &request.tenant, read(&request.body)?).await,
            "runs.erase" => return erase::serve(&self.shared, &request.tenant, read(&request.body)?).await,
            "dlq.list" => return dlq::list(&self.shared, &request.tenant, read_or_default(&request.body)?).await,
            "dlq.get" => return dlq::get(&self.shared, &request.tenant, read(&request.body)?).await,
            "dlq.groups" => dlq::groups(&self.shared, &request.tenant, read_or_default(&request.body)?).await,
            "dlq.replay" => replay::replay(&self.shared, &request.tenant, read(&request.body)?).await,
            "dlq.discard" => replay::discard(&self.shared, &request.tenant, read(&request.body)?).await,
            "queues.list" => self.queues(read_or_default(&request.body)?).await,
            "nodes.list" if operator => self.nodes().await,
            "nodes.list" => {
                Err(ApiError::new(Code::Forbidden, format!("nodes.list is the operator's: ask as tenant {OPERATOR}")))
            }
            "health" => Ok(self.health()),
            other => Err(ApiError::not_found(format!("no endpoint {other:?}"))),
        };
        value.map(Object::from)
    }

    fn waits(&self, endpoint: &str) -> bool {
        endpoint == "runs.wait"
    }
}

impl Control {
    async fn submit_batch(&self, tenant: &Tenant, batch: Batch) -> Result<Value, ApiError> {
        // What is accepted must be answered, so a batch whose answer might not fit is refused before anything is done.
        let most = BATCH_MAX.min(self.shared.backbone.max_payload() / BATCH_ANSWER);
        if batch.jobs.len() > most {
            let message = format!("jobs: has {} jobs, {most} are allowed", batch.jobs.len());
            return Err(ApiError::new(Code::TooLarge, message));
        }
        let one = |job: Box<RawValue>| async move {
            let submitted = async { intake::submit(&self.shared, tenant, read(job.get().as_bytes())?).await };
            let answer = AssertUnwindSafe(submitted).catch_unwind().await.unwrap_or_else(|_| {
                tracing::error!(%tenant, "a job of a batch panicked");
                Err(ApiError::new(Code::Internal, "the node failed over this job; its log says why"))
            });
            answer.unwrap_or_else(|error| json!(short(error)))
        };
        let answers: Vec<Value> =
            futures_util::stream::iter(batch.jobs).map(one).buffered(BATCH_AT_ONCE).collect().await;
        Ok(json!({"jobs": answers}))
    }

    async fn queues(&self, asked: QueueRequest) -> Result<Value, ApiError> {
        let only = asked.queue.as_deref().map(Queue::parse).transpose();
        let only = only.map_err(|error| ApiError::malformed(format!("queue: {error}")))?;
        let nodes = self.shared.backbone.nodes(now()).await.map_err(|error| unavailable(&error))?;
        let mut queues = Vec::new();
        for queue in self.shared.backbone.declared_queues().await.map_err(|error| unavailable(&error))? {
            if only.as_ref().is_some_and(|only| *only != queue) {
                continue;
            }
            let lanes = self.shared.backbone.lanes_of(&queue).await.map_err(|error| unavailable(&error))?;
            let loads = || nodes.iter().filter_map(|node| node.queues.get(queue.as_str()));
            let served = nodes.iter().any(|node| node.queues.contains_key(queue.as_str()) && node.state == "running");
            let per_priority: BTreeMap<String, u64> =
                (1..).zip(&lanes).map(|(number, lane)| (format!("p{number}"), lane.messages)).collect();
            let oldest = lanes.iter().filter_map(|lane| lane.oldest).min();
            queues.push(json!({
                "queue": queue,
                "depth": lanes.iter().map(|lane| lane.messages).sum::<u64>(),
                "depths": per_priority,
                "oldest_age_ms": oldest.map(|oldest| u64::try_from(now().since(oldest).as_millis()).unwrap_or(u64::MAX)),
                "running": loads().map(|load| load.running).sum::<usize>(),
                "concurrency": loads().map(|load| load.concurrency).sum::<usize>(),
                "paused": false,
                "served": served,
            }));
        }
        match only {
            Some(queue) if queues.is_empty() => {
                Err(ApiError::not_found(format!("queue: {:?} is not declared", queue.as_str())))
            }
            _ => Ok(json!({"queues": queues})),
        }
    }

    async fn nodes(&self) -> Result<Value, ApiError> {
        let nodes = self.shared.backbone.nodes(now()).await.map_err(|error| unavailable(&error))?;
        Ok(json!({"nodes": nodes}))
    }

    fn health(&self) -> Value {
        let mut reasons = Vec::new();
        if !self.shared.backbone.is_connected() {
            reasons.push("not connected to NATS");
        }
        if self.shared.draining.is_cancelled() {
            reasons.push("draining");
        }
        let deaf = self.shared.deaf.load(Ordering::Relaxed);
        let too_deaf = format!("{deaf} handlers neither end in time nor hear that they should");
        if deaf > SPARE_THREADS {
            reasons.push(&too_deaf);
        }
        if self.shared.records_full.load(Ordering::Relaxed) {
            reasons.push("the room for run records is full (storage.runs_max_records)");
        }
        let full = self.shared.full_lanes.lock().unwrap_or_else(PoisonError::into_inner);
        let full = full.iter().map(|(queue, priority)| {
            format!("queue {queue} is full at priority {}: its due jobs wait", priority.number())
        });
        let unanswered = self.shared.backbone.unanswered();
        let nobody = format!("nobody answers for the consumer of {}", unanswered.join(", "));
        if !unanswered.is_empty() {
            reasons.push(&nobody);
        }
        json!({
            "live": true,
            "ready": reasons.is_empty(),
            "reasons": reasons,
            "warnings": full.collect::<Vec<_>>(),
            "node": &*self.shared.node,
            "version": crate::VERSION,
            "queues": self.queues.iter().map(|queue| queue.name.as_str()).collect::<Vec<_>>(),
        })
    }
}

/// An error that fits into its place in the answer to a batch.
fn short(mut error: ApiError) -> ApiError {
    const CUT: &str = "…";
    let room = |error: &ApiError| serde_json::to_vec(error).map_or(0, |text| text.len()) <= BATCH_ANSWER - 16;
    while !room(&error) {
        let kept = error.message.trim_end_matches(CUT).len() * 3 / 4;
        error.message.truncate(error.message.floor_char_boundary(kept));
        error.message.push_str(CUT);
    }
    error
}

/// Reads a request; the error names the field.
fn read<T: DeserializeOwned>(body: &[u8]) -> Result<T, ApiError> {
    // An array would be read as the fields in the order in which this program has them.
    if !body.trim_ascii_start().starts_with(b"{") {
        return Err(ApiError::malformed("the request is not a JSON object"));
    }
    let mut reader = serde_json::Deserializer::from_slice(body);
    let value = serde_path_to_error::deserialize(&mut reader).map_err(|error| {
        let path = error.path().to_string();
        let reason = ask::in_words(&error.into_inner().to_string());
        if path == "." { ApiError::malformed(reason) } else { ApiError::malformed(format!("{path}: {reason}")) }
    })?;
    reader.end().map_err(|error| ApiError::malformed(error.to_string()))?;
    Ok(value)
}

fn read_or_default<T: DeserializeOwned + Default>(body: &[u8]) -> Result<T, ApiError> {
    if body.is_empty() { Ok(T::default()) } else { read(body) }
}

fn tenant(request: &Request) -> Result<Tenant, ApiError> {
    Tenant::parse(&request.tenant).map_err(|error| match request.tenant.as_str() {
        OPERATOR => ApiError::malformed("tenant: a job belongs to one tenant; submit it under that tenant's subject"),
        _ => ApiError::malformed(error.to_string()),
    })
}

fn run_of(request: &Request, asked: &RunRequest) -> Result<(Tenant, RunId), ApiError> {
    let run_id = RunId::parse(&asked.run_id).map_err(|error| ApiError::malformed(error.to_string()))?;
    let named = asked.tenant.as_deref();
    let tenant = match (request.tenant.as_str(), named) {
        (OPERATOR, Some(named)) => ask::named(named),
        (OPERATOR, None) => return Err(ask::whose()),
        (own, Some(named)) if own != named => {
            return Err(ApiError::new(Code::Forbidden, "tenant: a tenant sees its own runs only"));
        }
        (own, _) => Tenant::parse(own),
    };
    Ok((tenant.map_err(|error| ApiError::malformed(error.to_string()))?, run_id))
}
