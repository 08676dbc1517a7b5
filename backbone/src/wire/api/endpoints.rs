//! The one declaration of every endpoint: name, who may ask, effect, request, answer, and HTTP routes.
//!
//! The NATS service, the rule of the audit, the tenants of requests, the scopes of keys and the HTTP gateway derive
//! from it; a test compares it with the contract's table. It has no logic of any endpoint.

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::*;

/// One endpoint of the API: its request and its answer.
pub trait Endpoint: Send + Sync + 'static {
    /// All else that is to be known of it.
    const DECLARATION: Declaration;
    /// Its name: the part of its subject after `<namespace>.api.<tenant>.`.
    const NAME: &'static str = Self::DECLARATION.name;
    /// The request.
    type Request: Serialize + DeserializeOwned + Send + Sync;
    /// The answer if it succeeds.
    type Answer: Serialize + DeserializeOwned + Send + Sync;

    /// Reads a request; an empty body asks for the same as `{}`.
    ///
    /// # Errors
    /// 400, and the message names the field.
    fn read(body: &[u8]) -> Result<Self::Request, ApiError> {
        request::read(body)
    }
}

/// An endpoint as data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Declaration {
    /// Its name: the part of its subject after `<namespace>.api.<tenant>.`.
    pub name: &'static str,
    /// One sentence on its purpose.
    pub summary: &'static str,
    /// Whether it is answered under [`OPERATOR`] alone.
    pub for_operators: bool,
    /// Its effect. The audit has the requests that change something.
    pub effect: Effect,
    /// Whether its request has a field `tenant`, by which the operator names the tenant.
    pub takes_tenant: bool,
    /// The routes at which HTTP clients ask it, beside `POST /v1/api/<name>`.
    pub http: &'static [HttpRoute],
}

impl Declaration {
    /// Neither for operators alone, nor about a tenant that they name.
    const fn of(name: &'static str, summary: &'static str, effect: Effect, http: &'static [HttpRoute]) -> Self {
        Self { name, summary, for_operators: false, effect, takes_tenant: false, http }
    }

    /// The declaration of the endpoint with this name.
    pub fn named(name: &str) -> Option<&'static Self> {
        ENDPOINTS.iter().find(|endpoint| endpoint.name == name)
    }

    /// The scopes of an API key that may ask it.
    pub const fn scopes(&self) -> &'static [Scope] {
        match self.effect {
            Effect::Submits => &[Scope::Submit],
            Effect::Reads => &[Scope::Read],
            Effect::Changes => &[Scope::Operate],
            // Who could not end what it was handed would only use up attempts.
            Effect::HandsOut => &[Scope::Reveal, Scope::Submit],
        }
    }
}

/// Effect of an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// It takes jobs, or ends of attempts, which the event log has.
    Submits,
    /// It changes nothing.
    Reads,
    /// It hands out jobs, which the event log has.
    HandsOut,
    /// It changes runs, schedules or the cluster.
    Changes,
}

/// Permission of an API key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// Submits jobs and reads the answer.
    Submit,
    /// Reads.
    Read,
    /// Changes runs, schedules and, with a key of all tenants, the cluster.
    Operate,
    /// Reads payloads and results of types that hide them; with `submit` it asks for work.
    Reveal,
}

/// A route of the HTTP gateway: method and path. A variable of the path, such as `{run_id}`, is the request's field of
/// that name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HttpRoute(pub Method, pub &'static str);

longshore_domain::named! {
    /// Method of an HTTP request, by its name in OpenAPI.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    #[expect(missing_docs, reason = "the methods of HTTP")]
    pub enum Method {
        Get = "get",
        Put = "put",
        Post = "post",
        Delete = "delete",
    }
}

/// Each row: endpoint, name, request and answer; effect, and what else is true of it; HTTP routes; and its own reader
/// of requests if it has one.
macro_rules! endpoints {
    ($(
        #[doc = $summary:literal]
        $endpoint:ident $name:literal: $request:ty => $answer:ty, $effect:ident $([$($is:ident),+])?
            $(, $method:ident $path:literal)* $(read by $read:path)?;
    )+) => {
        $(
            #[doc = concat!(" `", $name, "`:", $summary)]
            #[derive(Debug)]
            pub struct $endpoint;

            impl Endpoint for $endpoint {
                const DECLARATION: Declaration = Declaration {
                    $($($is: true,)+)?
                    ..Declaration::of(
                        $name,
                        $summary.trim_ascii_start(),
                        Effect::$effect,
                        &[$(HttpRoute(Method::$method, $path)),*],
                    )
                };
                type Request = $request;
                type Answer = $answer;
                $(
                    fn read(body: &[u8]) -> Result<$request, ApiError> {
                        $read(body)
                    }
                )?
            }
        )+

        /// Every endpoint.
        pub const ENDPOINTS: [Declaration; [$($endpoint::NAME),+].len()] = [$($endpoint::DECLARATION),+];

        /// The schemas of each endpoint's request and answer; the types that they refer to are the generator's
        /// definitions.
        pub fn schemas(generator: &mut SchemaGenerator) -> Vec<(&'static Declaration, Schema, Schema)> {
            vec![$((
                &$endpoint::DECLARATION,
                generator.subschema_for::<$request>(),
                generator.subschema_for::<$answer>()
            )),+]
        }
    };
}

// A batch of jobs has the route of one: its body decides between them. `runs.wait` has that of `runs.get`, with a
// time to wait.
endpoints! {
    /// Takes a job, and answers once it is durable.
    Submit "submit": SubmitRequest => Submitted, Submits, Post "/v1/jobs", Post "/v1/jobs/{type}";
    /// Takes several jobs; each is accepted or refused by itself.
    SubmitBatch "submit.batch": BatchRequest => BatchAnswer, Submits;
    /// The current record of a run; 404 if the run is not known.
    RunsGet "runs.get": RunRequest => Record, Reads [takes_tenant], Get "/v1/runs/{run_id}", Get "/v1/jobs/{run_id}";
    /// The record of a run once it has finished, or its current record when the time is over.
    RunsWait "runs.wait": WaitRequest => Record, Reads [takes_tenant];
    /// What happened to a run and what it waits for, in words.
    RunsWhy "runs.why": WaitRequest => Why, Reads [takes_tenant], Get "/v1/runs/{run_id}/why";
    /// The payload of a run's job, while that is stored.
    RunsPayload "runs.payload": RunRequest => Payload, Reads [takes_tenant], Get "/v1/runs/{run_id}/payload";
    /// Cancels one run, or those that match a filter.
    RunsCancel "runs.cancel": Selection => Cancelled, Changes [takes_tenant],
        Post "/v1/runs/{run_id}/cancel", Delete "/v1/runs/{run_id}", Post "/v1/runs/cancel";
    /// Removes personal data from the record of a finished run, and deletes its dead letter.
    RunsErase "runs.erase": RunRequest => Erased, Changes [takes_tenant], Post "/v1/runs/{run_id}/erase";
    /// Runs that wait for their time, or for their next attempt, start now.
    RunsRunNow "runs.run_now": Selection => Rescheduled, Changes [takes_tenant],
        Post "/v1/runs/{run_id}/run-now", Post "/v1/runs/run-now";
    /// Runs start at another time, in another queue or with another priority.
    RunsReschedule "runs.reschedule": RescheduleRequest => Rescheduled, Changes [takes_tenant],
        Post "/v1/runs/{run_id}/reschedule", Post "/v1/runs/reschedule";
    /// Ends an attempt that was detached: it has succeeded.
    RunsComplete "runs.complete": CompleteRequest => Record, Submits [takes_tenant], Post "/v1/runs/{run_id}/complete";
    /// Ends an attempt that was detached: it has failed.
    RunsFail "runs.fail": FailRequest => Record, Submits [takes_tenant], Post "/v1/runs/{run_id}/fail";
    /// A sign of an attempt that was detached, whose time counts anew.
    RunsProgress "runs.progress": ProgressRequest => Goes, Submits [takes_tenant], Post "/v1/runs/{run_id}/progress";
    /// The next job of one of these types, once there is one; later calls end its attempt.
    WorkNext "work.next": NextRequest => Next, HandsOut [takes_tenant], Post "/v1/work";
    /// Runs, those that changed last first, a page at a time; or the run of an idempotency key.
    RunsList "runs.list": RunsRequest => Runs, Reads [takes_tenant], Get "/v1/runs";
    /// Counts runs by queue, type and state.
    RunsCount "runs.count": CountRequest => Counts, Reads [takes_tenant], Get "/v1/run-counts";

    /// Dead letters, the oldest first, a page at a time.
    DlqList "dlq.list": ListRequest => Page, Reads [takes_tenant], Get "/v1/dlq";
    /// One dead letter.
    DlqGet "dlq.get": RunRequest => DeadLetter, Reads [takes_tenant], Get "/v1/dlq/{run_id}";
    /// Dead letters grouped by their failure, the largest group first.
    DlqGroups "dlq.groups": GroupsRequest => Groups, Reads [takes_tenant], Get "/v1/dlq-groups";
    /// Starts dead letters again, each as a new round of its run.
    DlqReplay "dlq.replay": ReplayRequest => Replayed, Changes [takes_tenant],
        Post "/v1/dlq/{run_id}/replay", Post "/v1/dlq/replay";
    /// Deletes dead letters; their runs finish as `discarded`.
    DlqDiscard "dlq.discard": DiscardRequest => Discarded, Changes [takes_tenant],
        Delete "/v1/dlq/{run_id}", Post "/v1/dlq/discard";

    /// Makes a schedule, or changes the one of that id.
    SchedulesPut "schedules.put": PutRequest => ScheduleStatus, Changes,
        Put "/v1/schedules/{id}" read by schedules::read_put;
    /// One schedule.
    SchedulesGet "schedules.get": ScheduleRequest => ScheduleStatus, Reads [takes_tenant], Get "/v1/schedules/{id}";
    /// The schedules of a tenant, or of all.
    SchedulesList "schedules.list": SchedulesRequest => Schedules, Reads [takes_tenant], Get "/v1/schedules";
    /// Removes a schedule; answers with it as it was. Runs that it has started go on.
    SchedulesDelete "schedules.delete": ScheduleRequest => ScheduleStatus, Changes [takes_tenant],
        Delete "/v1/schedules/{id}";
    /// Pauses a schedule: nothing falls due from now on.
    SchedulesPause "schedules.pause": ScheduleRequest => ScheduleStatus, Changes [takes_tenant],
        Post "/v1/schedules/{id}/pause";
    /// Ends a pause; what would have been due meanwhile is not made up for.
    SchedulesResume "schedules.resume": ScheduleRequest => ScheduleStatus, Changes [takes_tenant],
        Post "/v1/schedules/{id}/resume";
    /// Starts a run beside the schedule's times, also while it is paused.
    SchedulesRunNow "schedules.run_now": ScheduleRequest => ScheduleStatus, Changes [takes_tenant],
        Post "/v1/schedules/{id}/run-now";
    /// Starts a run for each due time of a span, as far as it has none.
    SchedulesBackfill "schedules.backfill": BackfillRequest => Backfilled, Changes [takes_tenant],
        Post "/v1/schedules/{id}/backfill";

    /// Creates a batch of jobs.
    BatchesCreate "batches.create": CreateBatchRequest => BatchStatus, Submits [takes_tenant], Post "/v1/batches";
    /// One batch, with the members that it waits for.
    BatchesGet "batches.get": OneBatchRequest => BatchStatus, Reads [takes_tenant], Get "/v1/batches/{id}";
    /// The batches of a tenant, or of all.
    BatchesList "batches.list": BatchesRequest => Batches, Reads [takes_tenant], Get "/v1/batches";
    /// Seals a batch: it completes once all members have ended.
    BatchesSeal "batches.seal": OneBatchRequest => BatchStatus, Submits [takes_tenant], Post "/v1/batches/{id}/seal";
    /// Cancels a batch, and its members that have not ended.
    BatchesCancel "batches.cancel": OneBatchRequest => BatchStatus, Changes [takes_tenant],
        Post "/v1/batches/{id}/cancel";

    /// Makes a webhook, or changes the one of that id.
    WebhooksPut "webhooks.put": PutWebhookRequest => WebhookStatus, Changes [takes_tenant], Put "/v1/webhooks/{id}";
    /// One webhook.
    WebhooksGet "webhooks.get": WebhookRequest => WebhookStatus, Reads [takes_tenant], Get "/v1/webhooks/{id}";
    /// The webhooks of a tenant, or of all.
    WebhooksList "webhooks.list": WebhooksRequest => Webhooks, Reads [takes_tenant], Get "/v1/webhooks";
    /// Removes a webhook; answers with it as it was.
    WebhooksDelete "webhooks.delete": WebhookRequest => WebhookStatus, Changes [takes_tenant],
        Delete "/v1/webhooks/{id}";
    /// Delivers an event of the type `webhook.test`, once.
    WebhooksTest "webhooks.test": WebhookRequest => WebhookTest, Changes [takes_tenant], Post "/v1/webhooks/{id}/test";
    /// Makes a new secret, which is shown this once; the old one signs, too, for a day.
    WebhooksRotate "webhooks.rotate": WebhookRequest => WebhookStatus, Changes [takes_tenant],
        Post "/v1/webhooks/{id}/rotate";

    /// The queues, and the jobs that wait and run in each.
    QueuesList "queues.list": QueuesRequest => Queues, Reads [takes_tenant], Get "/v1/queues", Get "/v1/queues/{queue}";
    /// How a queue's starts are shared out between those who have jobs in it.
    QueuesShares "queues.shares": SharesRequest => QueueShares, Reads [for_operators], Get "/v1/queues/{queue}/shares";
    /// Declares a queue while the cluster runs, and has nodes serve it.
    QueuesPut "queues.put": PutQueueRequest => QueuePut, Changes [for_operators], Put "/v1/queues/{queue}";
    /// Pauses a queue, a type, or a type in a queue: its jobs wait.
    QueuesPause "queues.pause": PauseRequest => PauseStatus, Changes [for_operators], Post "/v1/queues/{queue}/pause";
    /// Ends such a pause.
    QueuesResume "queues.resume": ResumeRequest => PauseStatus, Changes [for_operators],
        Post "/v1/queues/{queue}/resume";
    /// Cancels the jobs of a queue that have not begun.
    QueuesPurge "queues.purge": PurgeRequest => CancelledRuns, Changes [for_operators], Post "/v1/queues/{queue}/purge";
    /// The rate limits of types, names and tenants.
    LimitsList "limits.list": LimitsRequest => Limits, Reads, Get "/v1/limits";
    /// Sets another limit on all nodes, until it is reset.
    LimitsSet "limits.set": SetLimitRequest => LimitChanged, Changes [for_operators], Put "/v1/limits";
    /// Sets the configured limit again.
    LimitsReset "limits.reset": ResetLimitRequest => LimitChanged, Changes [for_operators], Post "/v1/limits/reset";
    /// The breakers of a tenant that have seen failures lately, or are not closed.
    BreakersList "breakers.list": BreakersRequest => Breakers, Reads [takes_tenant], Get "/v1/breakers";
    /// Closes a breaker.
    BreakersReset "breakers.reset": ResetRequest => BreakerStatus, Changes [for_operators, takes_tenant],
        Post "/v1/breakers/reset";
    /// Opens a breaker.
    BreakersTrip "breakers.trip": TripRequest => BreakerStatus, Changes [for_operators, takes_tenant],
        Post "/v1/breakers/trip";
    /// The concurrency limits of which slots are taken.
    ConcurrencyList "concurrency.list": ConcurrencyRequest => ConcurrencyLimits, Reads [takes_tenant],
        Get "/v1/concurrency";
    /// Frees slots of a concurrency limit that a node or a session has.
    ConcurrencyFree "concurrency.free": FreeRequest => Freed, Changes [for_operators, takes_tenant],
        Post "/v1/concurrency/free";
    /// Has attempts of a type meet a fault on purpose, for a time.
    FaultsSet "faults.set": SetFaultRequest => FaultSet, Changes [for_operators], Put "/v1/faults";
    /// The faults that are set.
    FaultsList "faults.list": Nothing => Faults, Reads [for_operators], Get "/v1/faults";
    /// Ends faults: those of a type, of a kind, or all.
    FaultsClear "faults.clear": ClearFaultsRequest => FaultsCleared, Changes [for_operators], Post "/v1/faults/clear";
    /// Makes a key for clients over HTTP; its text is shown this once.
    KeysCreate "keys.create": CreateKeyRequest => KeyCreated, Changes [for_operators, takes_tenant], Post "/v1/keys";
    /// The keys, without their texts.
    KeysList "keys.list": Nothing => Keys, Reads [for_operators], Get "/v1/keys";
    /// Revokes a key: within two seconds no node takes it any more.
    KeysRevoke "keys.revoke": RevokeKeyRequest => KeyStatus, Changes [for_operators], Delete "/v1/keys/{id}";
    /// The audit's entries of a tenant, oldest first.
    AuditList "audit.list": AuditRequest => AuditPage, Reads, Get "/v1/audit";
    /// The nodes that were seen within the last 10 s.
    NodesList "nodes.list": Nothing => Nodes, Reads [for_operators], Get "/v1/nodes";
    /// Sets which lines a node's log has from now on.
    NodesLogLevel "nodes.log_level": LogLevelRequest => LogLevel, Changes [for_operators],
        Put "/v1/nodes/{node}/log-level";
    /// A node's settings, each with where it was set.
    NodesSettings "nodes.settings": SettingsRequest => NodeSettings, Reads [for_operators],
        Get "/v1/nodes/{node}/settings";
    /// What all nodes have counted in each ten seconds of the last hour.
    NodesStats "nodes.stats": Nothing => Stats, Reads [for_operators], Get "/v1/stats";
    /// Whether a node takes work, and why not.
    Health "health": HealthRequest => HealthStatus, Reads, Get "/v1/health" read by health::read_any;
}
