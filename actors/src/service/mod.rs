//! The API's service: its endpoints, served as the NATS micro service `longshore`; callers within the process ask by
//! its `handle`. `why` is the endpoint that looks at what all others know.

pub(crate) mod handle;
mod why;

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::{FutureExt as _, StreamExt as _};
use longshore_backbone::Backbone;
use longshore_backbone::control::{Presence, QueueLoad};
use longshore_backbone::service::{self, Redaction, Request, Serve};
use longshore_backbone::wire::api::{
    self, ApiError, BatchAnswer, BatchItem, BatchRequest, Code, Encoded, Endpoint, Erased, HealthRequest, HealthStatus,
    LogLevel, LogLevelRequest, NodeQueue, NodeSettings, NodeStatus, Nodes, OPERATOR, PutRequest, Record, RunRequest,
    ScheduleStatus, SettingsRequest, SubmitRequest, Submitted, WaitRequest,
};
use longshore_backbone::wire::json::Object;
use longshore_domain::Tenant;
use serde_json::value::RawValue;

use crate::api::wait_permits::WaitPermits;
use crate::api::{
    Api, audit_log, breakers, cancel, concurrency, dead_letters, erase, faults, filter, intake, keys, late, limits,
    list, pauses, payload, purge, put_queue, queues, replay, reschedule, runs, shares, stats, traced,
};
use crate::audit::{self, Audit};
use crate::batches::endpoints as batches;
use crate::cluster::node_name;
use crate::cluster::readiness::Readiness;
use crate::pull::Pullers;
use crate::pull::endpoint as pull;
use crate::runtime::lifecycle::Lifecycle;
use crate::runtime::now;
use crate::runtime::supervision::LoopEnd;
use crate::time::schedules;
use crate::webhooks::endpoints as webhooks;

/// Maximum number of jobs in one batch.
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

/// What the service needs.
#[derive(Clone)]
pub(crate) struct Part {
    /// What its endpoints need.
    pub(crate) api: Arc<Api>,
    pub(crate) lifecycle: Lifecycle,
    pub(crate) readiness: Readiness,
    pub(crate) pullers: Arc<Pullers>,
    /// How many callers wait for runs' ends.
    pub(crate) waits: Arc<WaitPermits>,
}

/// Answers requests.
pub(crate) struct Control {
    part: Part,
    routes: Vec<Route>,
}

/// How an endpoint is served.
struct Route {
    name: &'static str,
    serve: Box<Served>,
    /// What the audit may show of a request.
    shown: fn(&[u8]) -> Option<Box<RawValue>>,
}

type Served = dyn for<'a> Fn(&'a Control, &'a Request) -> Answer<'a, Object> + Send + Sync;

type Answer<'a, T> = BoxFuture<'a, Result<T, ApiError>>;

/// Serves the endpoint `E` to a caller, identified by the tenant in the request's subject.
type Handle<E> =
    for<'a> fn(&'a Control, &'a str, <E as Endpoint>::Request) -> Answer<'a, Encoded<<E as Endpoint>::Answer>>;

/// The endpoint `E`, and the function that serves it.
fn route<E: Endpoint>(serve: Handle<E>) -> Route {
    let serve: Box<Served> = Box::new(move |control, request| {
        Box::pin(async move {
            if E::DECLARATION.for_operators && request.tenant != OPERATOR {
                let message = format!("{} is the operator's: ask as tenant {OPERATOR}", E::NAME);
                return Err(ApiError::new(Code::Forbidden, message)
                    .hint("this is for operators: a NATS user who may publish to the subjects of tenant _all"));
            }
            let answer = serve(control, &request.tenant, E::read(&request.body)?).await?;
            Ok(answer.into_object())
        })
    });
    Route { name: E::NAME, serve, shown: audit::shown::<E> }
}

macro_rules! routes {
    ($($endpoint:ident: |$control:pat_param, $asker:pat_param, $asked:pat_param| $serve:expr;)+) => {
        vec![$(route::<api::$endpoint>(|$control, $asker, $asked| Box::pin($serve))),+]
    };
}

/// The function that serves each endpoint.
fn routes() -> Vec<Route> {
    let mut routes = about_runs();
    routes.extend(about_the_rest());
    routes
}

fn about_runs() -> Vec<Route> {
    routes! {
        Submit: |c, asker, job| c.submit(asker, job);
        SubmitBatch: |c, asker, batch| c.submit_batch(asker, batch);
        RunsGet: |c, asker, asked| runs::serve(&c.part.api, asker, asked);
        RunsWait: |c, asker, asked| c.wait(asker, asked);
        RunsWhy: |c, asker, asked| why::serve(&c.part.api, asker, asked);
        RunsPayload: |c, asker, asked| payload::serve(&c.part.api, asker, asked);
        RunsCancel: |c, asker, asked| cancel::serve(&c.part.api, asker, asked);
        RunsErase: |c, asker, asked| c.erase(asker, asked);
        RunsRunNow: |c, asker, asked| reschedule::run_now(&c.part.api, asker, asked);
        RunsReschedule: |c, asker, asked| reschedule::serve(&c.part.api, asker, asked);
        RunsComplete: |c, asker, asked| late::complete(&c.part.api, asker, asked);
        RunsFail: |c, asker, asked| late::fail(&c.part.api, asker, asked);
        RunsProgress: |c, asker, asked| late::progress(&c.part.api, asker, asked);
        WorkNext: |c, asker, asked| pull::next(&c.part.api, &c.part.pullers, &c.part.waits, asker, asked);
        RunsList: |c, asker, asked| list::list(&c.part.api, asker, asked);
        RunsCount: |c, asker, asked| list::count(&c.part.api, asker, asked);
        DlqList: |c, asker, asked| dead_letters::list(&c.part.api, asker, asked);
        DlqGet: |c, asker, asked| dead_letters::get(&c.part.api, asker, asked);
        DlqGroups: |c, asker, asked| dead_letters::groups(&c.part.api, asker, asked);
        DlqReplay: |c, asker, asked| replay::replay(&c.part.api, asker, asked);
        DlqDiscard: |c, asker, asked| replay::discard(&c.part.api, asker, asked);
    }
}

fn about_the_rest() -> Vec<Route> {
    routes! {
        SchedulesPut: |c, asker, asked| c.put_schedule(asker, asked);
        SchedulesGet: |c, asker, asked| schedules::get(&c.part.api, asker, asked);
        SchedulesList: |c, asker, asked| schedules::list(&c.part.api, asker, asked);
        SchedulesDelete: |c, asker, asked| schedules::delete(&c.part.api, asker, asked);
        SchedulesPause: |c, asker, asked| schedules::pause(&c.part.api, asker, asked);
        SchedulesResume: |c, asker, asked| schedules::resume(&c.part.api, asker, asked);
        SchedulesRunNow: |c, asker, asked| schedules::run_now(&c.part.api, asker, asked);
        SchedulesBackfill: |c, asker, asked| schedules::backfill(&c.part.api, asker, asked);
        BatchesCreate: |c, asker, asked| batches::create(&c.part.api, asker, asked);
        BatchesGet: |c, asker, asked| batches::get(&c.part.api, asker, asked);
        BatchesList: |c, asker, asked| batches::list(&c.part.api, asker, asked);
        BatchesSeal: |c, asker, asked| batches::seal(&c.part.api, asker, asked);
        BatchesCancel: |c, asker, asked| batches::cancel(&c.part.api, asker, asked);
        WebhooksPut: |c, asker, asked| webhooks::put(&c.part.api, asker, asked);
        WebhooksGet: |c, asker, asked| webhooks::get(&c.part.api, asker, asked);
        WebhooksList: |c, asker, asked| webhooks::list(&c.part.api, asker, asked);
        WebhooksDelete: |c, asker, asked| webhooks::delete(&c.part.api, asker, asked);
        WebhooksTest: |c, asker, asked| webhooks::test(&c.part.api, asker, asked);
        WebhooksRotate: |c, asker, asked| webhooks::rotate(&c.part.api, asker, asked);
        QueuesList: |c, asker, asked| queues::list(&c.part.api, asker, asked);
        QueuesShares: |c, _, asked| shares::serve(&c.part.api, asked);
        QueuesPut: |c, _, asked| put_queue::put(&c.part.api, asked);
        QueuesPause: |c, _, asked| pauses::pause(&c.part.api, asked);
        QueuesResume: |c, _, asked| pauses::resume(&c.part.api, asked);
        QueuesPurge: |c, _, asked| purge::purge(&c.part.api, asked);
        LimitsList: |c, asker, asked| limits::list(&c.part.api, asker, asked);
        LimitsSet: |c, _, asked| limits::set(&c.part.api, asked);
        LimitsReset: |c, _, asked| limits::reset(&c.part.api, asked);
        BreakersList: |c, asker, asked| breakers::list(&c.part.api.backbone, asker, asked);
        BreakersReset: |c, _, asked| breakers::reset(&c.part.api, asked);
        BreakersTrip: |c, _, asked| breakers::trip(&c.part.api, asked);
        ConcurrencyList: |c, asker, asked| concurrency::list(&c.part.api, asker, asked);
        ConcurrencyFree: |c, _, asked| concurrency::free(&c.part.api, asked);
        FaultsSet: |c, _, asked| faults::set(&c.part.api, asked);
        FaultsList: |c, _, _| async { faults::list(&c.part.api) };
        FaultsClear: |c, _, asked| faults::clear(&c.part.api, asked);
        KeysCreate: |c, _, asked| keys::create(&c.part.api, asked);
        KeysList: |c, _, _| keys::list(&c.part.api);
        KeysRevoke: |c, _, asked| keys::revoke(&c.part.api, asked);
        AuditList: |c, asker, asked| audit_log::list(&c.part.api, asker, asked);
        NodesList: |c, _, _| c.nodes();
        NodesLogLevel: |c, _, asked| c.log_level(asked);
        NodesSettings: |c, _, asked| c.settings(asked);
        NodesStats: |c, _, _| stats::serve(&c.part.api);
        Health: |c, asker, asked| c.health(asker, asked);
    }
}

/// Serves the API until the process ends.
pub(crate) async fn run(part: Part) -> LoopEnd {
    let (backbone, started) = (part.api.backbone.clone(), part.api.identity.started_at);
    let control = Control::new(part);
    let names = api::ENDPOINTS.map(|endpoint| endpoint.name);
    let served = service::run(backbone, crate::VERSION, started, &names, control).await;
    served.map_err(|error| error.with_causes())
}

impl Control {
    /// The answer as this asker may see it.
    fn redacted(&self, request: &Request, answer: Object) -> Result<Object, ApiError> {
        let policies = &self.part.api.policies;
        if request.redaction != Redaction::Hides || !policies.redacts_any() {
            return Ok(answer);
        }
        match api::redact(&answer, &|job_type| policies.of(job_type).redact) {
            Some(_) if request.endpoint == api::RunsPayload::NAME => {
                let error = ApiError::new(Code::Forbidden, "the payloads of this type are hidden");
                Err(error.hint("ask with ?reveal=true and a key of the scope reveal"))
            }
            shorter => Ok(shorter.unwrap_or(answer)),
        }
    }
}

impl Serve for Control {
    fn begins(&self) {
        self.part.lifecycle.serving.cancel();
    }

    async fn serve(&self, request: Request) -> Result<Object, ApiError> {
        let route = self.routes.iter().find(|route| route.name == request.endpoint);
        let action = if Audit::has(&request.endpoint) || request.redaction == Redaction::Revealed {
            let shown = route.and_then(|route| (route.shown)(&request.body));
            Some(self.part.api.audit.asked(&request, shown).await)
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
            self.part.api.audit.answered(action, &answer);
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
}

impl Control {
    pub(crate) fn new(part: Part) -> Self {
        Self { part, routes: routes() }
    }

    pub(crate) fn api(&self) -> &Api {
        &self.part.api
    }

    pub(crate) fn backbone(&self) -> &Backbone {
        &self.part.api.backbone
    }

    /// Counts a job, or a whole batch, that was refused.
    fn refused(&self, error: &ApiError) {
        self.part.api.metrics.refused.with_label_values(&[error.error.as_str()]).inc();
    }

    async fn submit(&self, asker: &str, job: SubmitRequest) -> Result<Encoded<Submitted>, ApiError> {
        let submitted = self.take_in(&submitter(asker)?, Ok(job)).await?;
        Ok(Encoded::of(&submitted))
    }

    async fn take_in(&self, tenant: &Tenant, job: Result<SubmitRequest, ApiError>) -> Result<Submitted, ApiError> {
        match job {
            Ok(job) => intake::submit(&self.part.api, tenant, job).await,
            Err(error) => Err(error),
        }
    }

    async fn submit_batch(&self, asker: &str, batch: BatchRequest) -> Result<Encoded<BatchAnswer>, ApiError> {
        let tenant = &submitter(asker)?;
        // Every accepted job must be answered, so a batch whose answer might not fit is refused before anything is
        // done.
        let max = BATCH_MAX.min(self.part.api.backbone.max_payload() / BATCH_ANSWER);
        if batch.jobs.len() > max {
            let message = format!("jobs: has {} jobs, {max} are allowed", batch.jobs.len());
            return Err(ApiError::new(Code::TooLarge, message));
        }
        let one = |job: Encoded<SubmitRequest>| async move {
            let submitted = self.take_in(tenant, api::Submit::read(job.as_bytes()));
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

    async fn put_schedule(&self, asker: &str, asked: PutRequest) -> Result<Encoded<ScheduleStatus>, ApiError> {
        schedules::put(&self.part.api, &submitter(asker)?, asked).await
    }

    async fn erase(&self, asker: &str, asked: RunRequest) -> Result<Encoded<Erased>, ApiError> {
        let Api { backbone, identity, .. } = &*self.part.api;
        erase::serve(backbone, identity, asker, asked).await
    }

    async fn wait(&self, asker: &str, asked: WaitRequest) -> Result<Encoded<Record>, ApiError> {
        let timeout = asked.timeout_ms.map_or(WAIT_DEFAULT, Duration::from_millis);
        if timeout > runs::MAX_WAIT {
            let max = runs::MAX_WAIT.as_millis();
            return Err(ApiError::malformed(format!("timeout_ms: is not one of 0 to {max}")));
        }
        let (tenant, run_id) = filter::one(asker, asked.run())?;
        let _waits = self.part.waits.enter(asker)?;
        runs::wait(&self.part.api, &tenant, &run_id, timeout).await
    }

    /// The health of this node, or of the one that was asked for.
    async fn health(&self, asker: &str, asked: HealthRequest) -> Result<Encoded<HealthStatus>, ApiError> {
        let readiness = &self.part.readiness;
        let Some(name) = asked.node else { return Ok(Encoded::of(&readiness.status().await)) };
        // A node's name is a token like those of tenants and queues; anything else would be another subject.
        Tenant::parse(&name).map_err(|error| ApiError::malformed(format!("node: {name:?} {}", error.reason)))?;
        let mut health = if *name == *readiness.identity.node {
            readiness.whole_status().await
        } else {
            let health = node_name::ask_health(&self.part.api.backbone.nodes(), &name).await;
            health.ok_or_else(|| no_node(&name))?
        };
        // Handlers of other tenants are none of a tenant's business.
        if asker != OPERATOR {
            (health.handlers, health.parts) = (None, Vec::new());
        }
        Ok(Encoded::of(&health))
    }

    async fn log_level(&self, asked: LogLevelRequest) -> Result<Encoded<LogLevel>, ApiError> {
        let LogLevelRequest { node, level } = asked;
        Tenant::parse(&node).map_err(|error| ApiError::malformed(format!("node: {node:?} {}", error.reason)))?;
        let set = node_name::set_log_level(&self.part.api.backbone.nodes(), &node, &level).await;
        let set = set.ok_or_else(|| no_node(&node))?;
        let level = set.map_err(|reason| ApiError::malformed(format!("level: {reason}")))?;
        Ok(Encoded::of(&LogLevel { level, node }))
    }

    async fn settings(&self, SettingsRequest { node }: SettingsRequest) -> Result<Encoded<NodeSettings>, ApiError> {
        Tenant::parse(&node).map_err(|error| ApiError::malformed(format!("node: {node:?} {}", error.reason)))?;
        let said = node_name::ask_settings(&self.part.api.backbone.nodes(), &node).await;
        let said = said.ok_or_else(|| no_node(&node))?;
        let settings = said.map_err(|reason| ApiError::new(Code::TooLarge, reason))?;
        Ok(Encoded::of(&NodeSettings { node, settings }))
    }

    async fn nodes(&self) -> Result<Encoded<Nodes>, ApiError> {
        let nodes = queues::present(&self.part.api).await?;
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

/// The tenant that submits.
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
        let served: Vec<&str> = routes().iter().map(|route| route.name).collect();
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
