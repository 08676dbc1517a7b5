//! The API's service: its endpoints, served as the NATS micro service `longshore`; callers within the process ask by
//! its `handle`. `why` is the endpoint that looks at what all others know.

pub(crate) mod handle;
mod why;

use std::panic::AssertUnwindSafe;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::{FutureExt as _, StreamExt as _};
use longshore_backbone::control::{Presence, QueueLoad};
use longshore_backbone::service::{self, Redaction, Request, Serve};
use longshore_backbone::wire::api::{
    self, ApiError, BatchAnswer, BatchItem, BatchRequest, Code, Encoded, Endpoint, HealthRequest, HealthStatus,
    LogLevel, LogLevelRequest, NodeQueue, NodeSettings, NodeStatus, Nodes, OPERATOR, Record, SettingsRequest,
    SubmitRequest, Submitted, WaitRequest,
};
use longshore_backbone::wire::json::Object;
use longshore_domain::{JobType, Tenant};
use serde_json::value::RawValue;
use tokio_util::sync::CancellationToken;

use crate::api::wait_permits::WaitPermits;
use crate::api::{
    Answered, Api, audit_log, breakers, cancel, concurrency, dead_letters, erase, faults, filter, intake, keys, late,
    limits, list, pauses, payload, purge, put_queue, queues, replay, reschedule, runs, shares, stats, traced,
};
use crate::audit::{self, Audit};
use crate::batches::endpoints as batches;
use crate::cluster::node_name;
use crate::cluster::readiness::Readiness;
use crate::pull::Pullers;
use crate::pull::endpoint as pull;
use crate::runtime::now;
use crate::runtime::supervision::LoopEnd;
use crate::time::schedules;
use crate::webhooks::endpoints as webhooks;

const BATCH_MAX: usize = 1_000;
/// Jobs of one batch that are published at once.
const BATCH_AT_ONCE: usize = 128;
/// How long `runs.wait` waits if the client does not say.
const WAIT_DEFAULT: Duration = Duration::from_secs(30);

/// A node that was not seen for so long is shown as silent: it says every 2 s that it is there, and waits up to 2 s for
/// the answer.
const SILENT_AFTER: Duration = Duration::from_secs(5);

/// Bytes for the answer to one job of a batch: enough for a success with the longest id, or for an error that says
/// enough.
const BATCH_ANSWER: usize = 512;

#[derive(Clone)]
pub(crate) struct ServicePart {
    pub(crate) api: Arc<Api>,
    pub(crate) readiness: Readiness,
    pub(crate) pullers: Arc<Pullers>,
    /// How many callers wait for runs' ends.
    pub(crate) waits: Arc<WaitPermits>,
}

struct Route {
    name: &'static str,
    serve: Box<Served>,
    /// What the audit may show of a request.
    shown: fn(&[u8]) -> Option<Box<RawValue>>,
}

type Served = dyn for<'a> Fn(&'a ServicePart, &'a Request) -> Answer<'a, Object> + Send + Sync;

type Answer<'a, T> = BoxFuture<'a, Result<T, ApiError>>;

/// Serves the endpoint `E` to a caller, identified by the tenant in the request's subject.
type Handle<E> =
    for<'a> fn(&'a ServicePart, &'a str, <E as Endpoint>::Request) -> Answer<'a, Encoded<<E as Endpoint>::Answer>>;

fn route<E: Endpoint>(serve: Handle<E>) -> Route {
    let serve: Box<Served> = Box::new(move |part, request| {
        Box::pin(async move {
            if E::DECLARATION.for_operators && request.tenant != OPERATOR {
                let message = format!("{} is the operator's: ask as tenant {OPERATOR}", E::NAME);
                return Err(ApiError::new(Code::Forbidden, message)
                    .hint("this is for operators: a NATS user who may publish to the subjects of tenant _all"));
            }
            let answer = serve(part, &request.tenant, E::read(&request.body)?).await?;
            Ok(answer.into_object())
        })
    });
    Route { name: E::NAME, serve, shown: audit::shown::<E> }
}

macro_rules! routes {
    ($($endpoint:ident: |$part:pat_param, $asker:pat_param, $asked:pat_param| $serve:expr;)+) => {
        vec![$(route::<api::$endpoint>(|$part, $asker, $asked| Box::pin($serve))),+]
    };
}

/// The function that serves each endpoint.
static ROUTES: LazyLock<Vec<Route>> = LazyLock::new(|| {
    routes! {
        Submit: |part, asker, job| part.submit(asker, job);
        SubmitBatch: |part, asker, batch| part.submit_batch(asker, batch);
        RunsGet: |part, asker, asked| runs::serve(&part.api, asker, asked);
        RunsWait: |part, asker, asked| part.wait(asker, asked);
        RunsWhy: |part, asker, asked| why::serve(&part.api, asker, asked);
        RunsPayload: |part, asker, asked| payload::serve(&part.api, asker, asked);
        RunsCancel: |part, asker, asked| cancel::serve(&part.api, asker, asked);
        RunsErase: |part, asker, asked| erase::serve(&part.api, asker, asked);
        RunsRunNow: |part, asker, asked| reschedule::run_now(&part.api, asker, asked);
        RunsReschedule: |part, asker, asked| reschedule::serve(&part.api, asker, asked);
        RunsComplete: |part, asker, asked| late::complete(&part.api, asker, asked);
        RunsFail: |part, asker, asked| late::fail(&part.api, asker, asked);
        RunsProgress: |part, asker, asked| late::progress(&part.api, asker, asked);
        WorkNext: |part, asker, asked| pull::next(&part.api, &part.pullers, &part.waits, asker, asked);
        RunsList: |part, asker, asked| list::list(&part.api, asker, asked);
        RunsCount: |part, asker, asked| list::count(&part.api, asker, asked);
        DlqList: |part, asker, asked| dead_letters::list(&part.api, asker, asked);
        DlqGet: |part, asker, asked| dead_letters::get(&part.api, asker, asked);
        DlqGroups: |part, asker, asked| dead_letters::groups(&part.api, asker, asked);
        DlqReplay: |part, asker, asked| replay::replay(&part.api, asker, asked);
        DlqDiscard: |part, asker, asked| replay::discard(&part.api, asker, asked);
        SchedulesPut: |part, asker, asked| async move { schedules::put(&part.api, &submitter(asker)?, asked).await };
        SchedulesGet: |part, asker, asked| schedules::get(&part.api, asker, asked);
        SchedulesList: |part, asker, asked| schedules::list(&part.api, asker, asked);
        SchedulesDelete: |part, asker, asked| schedules::delete(&part.api, asker, asked);
        SchedulesPause: |part, asker, asked| schedules::pause(&part.api, asker, asked);
        SchedulesResume: |part, asker, asked| schedules::resume(&part.api, asker, asked);
        SchedulesRunNow: |part, asker, asked| schedules::run_now(&part.api, asker, asked);
        SchedulesBackfill: |part, asker, asked| schedules::backfill(&part.api, asker, asked);
        BatchesCreate: |part, asker, asked| batches::create(&part.api, asker, asked);
        BatchesGet: |part, asker, asked| batches::get(&part.api, asker, asked);
        BatchesList: |part, asker, asked| batches::list(&part.api, asker, asked);
        BatchesSeal: |part, asker, asked| batches::seal(&part.api, asker, asked);
        BatchesCancel: |part, asker, asked| batches::cancel(&part.api, asker, asked);
        WebhooksPut: |part, asker, asked| webhooks::put(&part.api, asker, asked);
        WebhooksGet: |part, asker, asked| webhooks::get(&part.api, asker, asked);
        WebhooksList: |part, asker, asked| webhooks::list(&part.api, asker, asked);
        WebhooksDelete: |part, asker, asked| webhooks::delete(&part.api, asker, asked);
        WebhooksTest: |part, asker, asked| webhooks::test(&part.api, asker, asked);
        WebhooksRotate: |part, asker, asked| webhooks::rotate(&part.api, asker, asked);
        QueuesList: |part, asker, asked| queues::list(&part.api, asker, asked);
        QueuesShares: |part, _, asked| shares::serve(&part.api, asked);
        QueuesPut: |part, _, asked| put_queue::put(&part.api, asked);
        QueuesPause: |part, _, asked| pauses::pause(&part.api, asked);
        QueuesResume: |part, _, asked| pauses::resume(&part.api, asked);
        QueuesPurge: |part, _, asked| purge::purge(&part.api, asked);
        LimitsList: |part, asker, asked| limits::list(&part.api, asker, asked);
        LimitsSet: |part, _, asked| limits::set(&part.api, asked);
        LimitsReset: |part, _, asked| limits::reset(&part.api, asked);
        BreakersList: |part, asker, asked| breakers::list(&part.api.backbone, asker, asked);
        BreakersReset: |part, _, asked| breakers::reset(&part.api, asked);
        BreakersTrip: |part, _, asked| breakers::trip(&part.api, asked);
        ConcurrencyList: |part, asker, asked| concurrency::list(&part.api, asker, asked);
        ConcurrencyFree: |part, _, asked| concurrency::free(&part.api, asked);
        FaultsSet: |part, _, asked| faults::set(&part.api, asked);
        FaultsList: |part, _, _| async { faults::list(&part.api) };
        FaultsClear: |part, _, asked| faults::clear(&part.api, asked);
        KeysCreate: |part, _, asked| keys::create(&part.api, asked);
        KeysList: |part, _, _| keys::list(&part.api);
        KeysRevoke: |part, _, asked| keys::revoke(&part.api, asked);
        AuditList: |part, asker, asked| audit_log::list(&part.api, asker, asked);
        NodesList: |part, _, _| part.nodes();
        NodesLogLevel: |part, _, asked| part.log_level(asked);
        NodesSettings: |part, _, asked| part.settings(asked);
        NodesStats: |part, _, _| stats::serve(&part.api);
        Health: |part, asker, asked| part.health(asker, asked);
    }
});

pub(crate) async fn run(part: ServicePart) -> LoopEnd {
    let (backbone, started) = (part.api.backbone.clone(), part.api.identity.started_at);
    let lifecycle = part.api.lifecycle.clone();
    let names = api::ENDPOINTS.map(|endpoint| endpoint.name);
    let served = service::run(backbone, crate::runtime::VERSION, started, &names, part).await;
    served.map_err(|error| error.with_causes())?;
    if lifecycle.leaving.is_cancelled() {
        lifecycle.answered.cancel();
        std::future::pending::<()>().await;
    }
    Ok(())
}

impl Serve for ServicePart {
    fn begins(&self) {
        self.api.lifecycle.serving.cancel();
    }

    async fn serve(&self, request: Request) -> Result<Object, ApiError> {
        let route = ROUTES.iter().find(|route| route.name == request.endpoint);
        let action = if Audit::has(&request.endpoint) || request.redaction == Redaction::Revealed {
            let shown = route.and_then(|route| (route.shown)(&request.body));
            Some(self.api.audit.asked(&request, shown).await)
        } else {
            None
        };
        let answer = match route {
            Some(route) => {
                let answer = traced::OUTER.scope(request.trace.clone(), (route.serve)(self, &request)).await;
                answer.and_then(|answer| self.redacted(&request, answer))
            }
            None => Err(ApiError::not_found(format!("no endpoint {:?}", request.endpoint))),
        };
        if let Some(action) = action {
            self.api.audit.answered(action, &answer);
        }
        if let Err(error) = &answer
            && [api::Submit::NAME, api::SubmitBatch::NAME].contains(&request.endpoint.as_str())
        {
            self.refused(error);
        }
        answer
    }

    fn waits(&self, endpoint: &str) -> bool {
        [api::RunsWait::NAME, api::WorkNext::NAME].contains(&endpoint)
    }

    fn ends(&self) -> &CancellationToken {
        &self.api.lifecycle.leaving
    }
}

impl ServicePart {
    fn redacted(&self, request: &Request, answer: Object) -> Result<Object, ApiError> {
        let policies = &self.api.policies;
        if request.redaction != Redaction::Hides || !policies.redacts_any() {
            return Ok(answer);
        }
        // The payload of a delivery has an event of any type.
        let hides = |job_type: &JobType| policies.of(job_type).redact || job_type.as_str() == api::WEBHOOK_TYPE;
        match api::redact(&answer, &hides) {
            Some(_) if request.endpoint == api::RunsPayload::NAME => {
                let error = ApiError::new(Code::Forbidden, "the payloads of this type are hidden");
                Err(error.hint("ask with ?reveal=true and a key of the scope reveal"))
            }
            shorter => Ok(shorter.unwrap_or(answer)),
        }
    }

    /// Counts a job, or a whole batch, that was refused.
    fn refused(&self, error: &ApiError) {
        self.api.metrics.refused.with_label_values(&[error.error.as_str()]).inc();
    }

    async fn submit(&self, asker: &str, job: SubmitRequest) -> Answered<Submitted> {
        let submitted = intake::submit(&self.api, &submitter(asker)?, job).await?;
        Ok(Encoded::of(&submitted))
    }

    /// Most jobs of one `submit.batch`. Every accepted job must be answered, so a batch whose answer might not fit is
    /// refused before anything is done.
    fn most_in_batch(&self) -> usize {
        BATCH_MAX.min(self.api.backbone.max_payload() / BATCH_ANSWER)
    }

    async fn submit_batch(&self, asker: &str, batch: BatchRequest) -> Answered<BatchAnswer> {
        let tenant = &submitter(asker)?;
        let max = self.most_in_batch();
        if batch.jobs.len() > max {
            let message = format!("jobs: has {} jobs, {max} are allowed", batch.jobs.len());
            return Err(ApiError::new(Code::TooLarge, message));
        }
        let one = |job: Encoded<SubmitRequest>| async move {
            let submitted = async { intake::submit(&self.api, tenant, api::Submit::read(job.as_bytes())?).await };
            // Each is polled for the first time in the order of the list, and sends its publish then, if it needs
            // nothing before. With the runtime's budget, those from the 125th on are put off and come the other way
            // round.
            let submitted = tokio::task::unconstrained(submitted);
            let answer = AssertUnwindSafe(submitted).catch_unwind().await.unwrap_or_else(|_| {
                tracing::error!(%tenant, "a job of a batch panicked");
                Err(ApiError::new(Code::Internal, "the node failed over this job; its log says why"))
            });
            let answer = answer.inspect_err(|error| self.refused(error));
            answer.map_or_else(|error| BatchItem::Refused(short(error)), BatchItem::Accepted)
        };
        let jobs = futures_util::stream::iter(batch.jobs).map(one).buffered(BATCH_AT_ONCE).collect().await;
        Ok(Encoded::of(&BatchAnswer { jobs }))
    }

    async fn wait(&self, asker: &str, asked: WaitRequest) -> Answered<Record> {
        let timeout = asked.timeout_ms.map_or(WAIT_DEFAULT, Duration::from_millis);
        if timeout > runs::MAX_WAIT {
            let max = runs::MAX_WAIT.as_millis();
            return Err(ApiError::malformed(format!("timeout_ms: is not one of 0 to {max}")));
        }
        let (tenant, run_id) = filter::one(asker, asked.run())?;
        let _waits = self.waits.enter(asker)?;
        runs::wait(&self.api, &tenant, &run_id, timeout).await
    }

    /// The health of this node, or of the one that was asked for.
    async fn health(&self, asker: &str, asked: HealthRequest) -> Answered<HealthStatus> {
        let readiness = &self.readiness;
        let Some(name) = asked.node else { return Ok(Encoded::of(&readiness.status().await.shown_to(asker))) };
        // A node's name is a token like those of tenants and queues; anything else would be another subject.
        Tenant::parse(&name).map_err(|error| ApiError::malformed(format!("node: {name:?} {}", error.reason)))?;
        let health = if *name == *readiness.identity.node {
            readiness.whole_status().await
        } else {
            let health = node_name::ask_health(&self.api.backbone.nodes(), &name).await;
            health.ok_or_else(|| no_node(&name))?
        };
        Ok(Encoded::of(&health.shown_to(asker)))
    }

    async fn log_level(&self, LogLevelRequest { node, level }: LogLevelRequest) -> Answered<LogLevel> {
        Tenant::parse(&node).map_err(|error| ApiError::malformed(format!("node: {node:?} {}", error.reason)))?;
        let set = node_name::set_log_level(&self.api.backbone.nodes(), &node, &level).await;
        let set = set.ok_or_else(|| no_node(&node))?;
        let level = set.map_err(|reason| ApiError::malformed(format!("level: {reason}")))?;
        Ok(Encoded::of(&LogLevel { level, node }))
    }

    async fn settings(&self, SettingsRequest { node }: SettingsRequest) -> Answered<NodeSettings> {
        Tenant::parse(&node).map_err(|error| ApiError::malformed(format!("node: {node:?} {}", error.reason)))?;
        let said = node_name::ask_settings(&self.api.backbone.nodes(), &node).await;
        let said = said.ok_or_else(|| no_node(&node))?;
        let settings = said.map_err(|reason| ApiError::new(Code::TooLarge, reason))?;
        Ok(Encoded::of(&NodeSettings { node, settings }))
    }

    async fn nodes(&self) -> Answered<Nodes> {
        let nodes = queues::present(&self.api).await?;
        Ok(Encoded::of(&Nodes { nodes: nodes.into_iter().map(status).collect() }))
    }
}

fn no_node(name: &str) -> ApiError {
    ApiError::not_found(format!("node: no node {name:?} answers")).hint("nodes.list shows the nodes that are there")
}

/// A node as an answer shows it.
fn status(node: Presence) -> NodeStatus {
    let Presence { node, version, started_at, seen_at, state, queues, running_of: _, missing_handlers: _ } = node;
    let state = if now().since(seen_at) > SILENT_AFTER { "silent".to_owned() } else { state };
    let load = |load: QueueLoad| NodeQueue { concurrency: load.concurrency, running: load.running };
    let queues = queues.into_iter().map(|(name, of)| (name, load(of))).collect();
    NodeStatus { node, queues, seen_at, started_at, state, version }
}

fn submitter(asker: &str) -> Result<Tenant, ApiError> {
    Tenant::parse(asker).map_err(|error| match asker {
        OPERATOR => ApiError::malformed("tenant: a job belongs to one tenant; submit it under that tenant's subject"),
        _ => ApiError::malformed(error.to_string()),
    })
}

/// Shortens an error so that it fits into the answer to a batch.
fn short(mut error: ApiError) -> ApiError {
    const CUT: &str = "…";
    error.hint = None;
    let room = |error: &ApiError| serde_json::to_vec(error).map_or(0, |text| text.len()) <= BATCH_ANSWER - 16;
    while !room(&error) {
        let kept = error.message.trim_end_matches(CUT).len() * 3 / 4;
        error.message.truncate(error.message.floor_char_boundary(kept));
        error.message.push_str(CUT);
    }
    error
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_endpoint_is_served() {
        let served: Vec<&str> = ROUTES.iter().map(|route| route.name).collect();
        assert_eq!(served, api::ENDPOINTS.map(|endpoint| endpoint.name));
    }

    #[test]
    fn an_error_in_a_batch_keeps_to_its_size() {
        for length in 200..800 {
            let error = short(ApiError::malformed("ä\n".repeat(length)));
            let size = serde_json::to_vec(&error).unwrap().len();
            let room = BATCH_ANSWER / 2..=BATCH_ANSWER - 16;
            assert!(room.contains(&size) && error.message.ends_with('…'), "{length}: {size}");
        }
        let brief = ApiError::malformed("brief");
        assert_eq!(short(brief.clone()), brief);
    }
}
