//! What a commit, a cancellation, a rescheduling and the replay of a dead letter ask of the world outside them; what an
//! attempt and a submission ask besides stands beside them. In a node
//! [`NodePorts`](crate::attempt::node_ports::NodePorts), the API and the [`Backbone`] answer; a test may answer from
//! memory, without NATS, a clock or chance.
//!
//! The traits are used statically, so that they cost nothing per job. They decide nothing: what is written, published
//! or acknowledged is decided by those who ask and by the rules in `domain`.

pub(crate) mod batch;
pub(crate) mod encode;
pub(crate) mod passed_on;
mod servers;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use longshore_backbone::claims::{Claim, Claimed, FoundClaim};
use longshore_backbone::control::Presence;
use longshore_backbone::delivery::AckToken;
use longshore_backbone::holders::{HolderAnswer, HolderQuestion};
use longshore_backbone::in_order::{Waiting, Waits};
use longshore_backbone::records::{Found, Written};
use longshore_backbone::request::{Over, Stored, is_no_responders_error};
use longshore_backbone::scan::{Page, Source};
use longshore_backbone::wire::api::ApiError;
use longshore_backbone::wire::kind_key::KindKey;
use longshore_backbone::wire::subject::Names;
use longshore_backbone::{Backbone, Error, Headers};
use longshore_domain::concurrency::{ConcurrencyId, Line, Order, OrderId};
use longshore_domain::fast_path::{self, Candidate};
use longshore_domain::job::Unique;
use longshore_domain::key::{self, KeyVerdict, ReleaseOn};
use longshore_domain::policy::{Policies, TypePolicy};
use longshore_domain::protocol::{self, Arrival, DeadLetterVerdict, HolderStatus, Repeat, Verdict};
use longshore_domain::publication::{Carrier, Published};
use longshore_domain::{BatchId, Job, Queue, QueueLane, Run, RunId, SmolStr, Tenant, Timestamp};

use crate::metrics::Metrics;
use crate::ports::encode::{Author, Destination, EncodedEvents};
use crate::runtime::log_run::{About, log_run};
use crate::trace::{JobTrace, Tracer};

/// Methods of [`Rules`]: each is the function of `domain` after its `=`.
macro_rules! rules {
    ($(fn $name:ident($($arg:ident: $of:ty),+) -> $answer:ty = $rule:path;)+) => {
        $(fn $name(&self, $($arg: $of),+) -> $answer {
            $rule($($arg),+)
        })+
    };
}

/// The rules of `domain` by which an attempt goes. They are not to be answered in any other way: only the simulation
/// does, to see that it notices a broken rule.
pub(crate) trait Rules {
    rules! {
        fn on_arrival(found: Option<&Run>, arrival: &Arrival) -> Verdict = protocol::on_arrival;
        fn is_fast_path_open(known: &Candidate<'_>) -> bool = fast_path::is_open;
        fn lease_is_lost(run: &Run, holder: HolderStatus, asked_at: Timestamp, lease: Duration) -> bool =
            protocol::lease_is_lost;
        fn on_claim(found: Option<&Run>, unique: Unique, release_on: ReleaseOn) -> KeyVerdict = key::on_claim;
        fn makes_way(run: &Run, since: Timestamp, by: &RunId) -> bool = key::makes_way;
        fn is_recorded_first(unique: Unique) -> bool = key::is_recorded_first;
        fn is_claimed_again(run: &Run, unique: Unique, release_on: ReleaseOn, now: Timestamp) -> bool =
            key::is_claimed_again;
        fn on_repeat(run: &Run) -> Repeat = protocol::on_repeat;
        fn published_at_arrival(found: &Run) -> Published = Published::at_arrival;
        fn published_at_start(published: Published, waiting: &Run, attempt: u32) -> Published = Published::at_start;
        fn published_at_new_wait(published: Published, waiting: &Run) -> Published = Published::at_new_wait;
        fn published_at_redelivery(found: &Run) -> Published = Published::at_redelivery;
        fn published_at_unclear_claim(run: &Run) -> Published = Published::at_unclear_claim;
        fn published_when_held(run: &Run) -> Published = Published::held_locally;
        fn published_at_cancel(before: &Run, cancelled: &Run, carrier: Carrier) -> Published = Published::at_cancel;
        fn on_dead_letter(found: Option<&Run>, round: u32, origin: Timestamp) -> DeadLetterVerdict =
            protocol::on_dead_letter;
        fn published_at_dead_letter(run: &Run, round: u32) -> Published = Published::at_dead_letter;
    }

    /// Whether a record may be claimed on as any replica has it, which may be an old one: the claim is a
    /// compare-and-set. Every other verdict is the leader's to support.
    fn may_claim_on_replica(&self, found: &Run, arrival: &Arrival) -> bool {
        matches!(protocol::on_arrival(Some(found), arrival), Verdict::Begin { .. })
    }

    /// Whether a run writes its record before it ends the one that it replaces.
    fn confirms_before_it_replaces(&self) -> bool {
        true
    }

    /// Whether this pass, counted from 0, was the last of a search for the runs that a filter means. Retries and
    /// delayed jobs move between sources meanwhile, and one pass misses a job that moves behind it in both. So only a
    /// pass that finds none is the last, and never the first.
    fn is_last_pass(&self, number: usize, has_found: bool) -> bool {
        number > 0 && !has_found
    }
}

impl Rules for Backbone {}

/// The servers, and the other nodes behind them. Each method is the method of [`Backbone`] that has its name, where
/// nothing else is said.
pub(crate) trait Server: Rules + Destination {
    async fn read_record(&self, tenant: &Tenant, run: &RunId) -> Result<Option<Found>, Error>;
    async fn read_replica(&self, tenant: &Tenant, run: &RunId) -> Option<Found>;
    /// Removes the results of a run's steps.
    async fn forget_steps(&self, tenant: &Tenant, run: &RunId) -> Result<(), Error>;
    /// Joins the batch of a job that a client published.
    async fn join_batch(&self, job: &Job, batch: &BatchId) -> Result<Result<(), String>, Error>;
    async fn is_declared(&self, queue: &Queue) -> Result<bool, Error>;
    /// Notes how a run ended, if it has and is a member of a batch.
    async fn note_end_in_batch(&self, run: &Run) -> Result<(), Error>;
    async fn write_record(&self, run: &Run, expected: u64) -> Result<Written, Error>;
    /// The same for a client that waits for the answer.
    async fn write_for_client(&self, run: &Run, expected: u64) -> Result<Written, Error> {
        self.write_record(run, expected).await
    }

    async fn claim_key(&self, tenant: &Tenant, key: &str, claim: &Claim, window: Duration) -> Result<Claimed, Error>;
    async fn read_claim(&self, tenant: &Tenant, key: &str) -> Result<Option<FoundClaim>, Error>;
    async fn write_claim(&self, tenant: &Tenant, key: &str, claim: &Claim, over: Over) -> Result<Option<u64>, Error>;

    async fn read_line(&self, id: &ConcurrencyId) -> Result<(Line, u64), Error>;
    /// Writes a line; says whether it was still as it was read.
    async fn write_line(&self, id: &ConcurrencyId, line: &Line, expected: u64) -> Result<bool, Error>;
    async fn read_order(&self, id: &OrderId) -> Result<(Order, u64), Error>;
    /// Writes the order of a key, to be stored for `lasts`; says whether it was still as it was read.
    async fn write_order(&self, id: &OrderId, order: &Order, expected: u64, lasts: Duration) -> Result<bool, Error>;
    async fn waiting_in_order(&self, id: &OrderId, at: Waits, beyond: u64, up_to: u64) -> Result<Vec<Waiting>, Error>;
    async fn is_in_lane(&self, id: &OrderId, sequence: u64) -> Result<bool, Error>;
    /// Asks every node to stop the run.
    async fn notify_cancelled(&self, tenant: &Tenant, run: &RunId);
    /// Removes the message of a parked run that has ended, if it is found.
    async fn take_out_parked(&self, run: &Run, key: &KindKey) -> Result<(), Error>;

    async fn ask_holder(&self, node: &str, question: &HolderQuestion, wait: Duration) -> Option<HolderAnswer>;
    async fn presence_of(&self, node: &str) -> Result<Option<Presence>, Error>;

    async fn schedule(&self, run: &Run, at: Timestamp, headers: Option<&Headers>, payload: Bytes) -> Result<(), Error>;
    async fn park(&self, run: &Run, since: Timestamp, headers: Option<&Headers>, payload: Bytes) -> Result<(), Error>;
    async fn return_to_queue(
        &self,
        run: &Run,
        since: Timestamp,
        headers: Option<&Headers>,
        payload: Bytes,
    ) -> Result<(), Error>;
    async fn write_dead_letter(&self, run: &Run, headers: Option<&Headers>, payload: Bytes) -> Result<(), Error>;

    /// Publishes the job of a run that follows another, under its seal; `false`: nobody declares its queue any more.
    async fn publish_next(&self, run: &Run, headers: Headers, payload: Bytes) -> Result<bool, Error>;

    async fn publish_live(&self, events: &EncodedEvents);

    async fn ack(&self, ack_token: AckToken);
    async fn nak_after(&self, ack_token: AckToken, after: Duration);
    /// How long the server waits for the answer to a delivery: the lease.
    fn ack_wait(&self) -> Duration;

    /// Waits for about so long before something is tried again.
    async fn pause(&self, wait: Duration);
}

/// The log may lack a run's events: nothing that needs them may follow.
#[derive(Debug)]
pub(crate) struct Unlogged;

/// What every decision about a run asks of the node that makes it.
pub(crate) trait RunPorts {
    type Server: Server;

    fn server(&self) -> &Self::Server;

    /// The time of day, for what is stored.
    fn now(&self) -> Timestamp;
    /// A seal that nobody can guess.
    fn seal(&self) -> SmolStr;

    fn node(&self) -> &SmolStr;
    /// A write token that no other write has.
    fn token(&self) -> SmolStr;
    /// Signs a record that this node is about to write.
    fn sign(&self, run: &mut Run) {
        run.sign(self.node(), self.token());
    }

    /// How long a delivery belongs to the node that got it.
    fn lease(&self) -> Duration;
    /// How long a key stays claimed, unless its job says otherwise.
    fn idempotency_window(&self) -> Duration;
    fn policies(&self) -> &Policies;

    /// Whether a queue is this node's own, or any node's.
    async fn declares(&self, queue: &Queue) -> Result<bool, Error> {
        Ok(self.policies().queues.contains_key(queue) || self.server().is_declared(queue).await?)
    }

    fn metrics(&self) -> &Metrics;

    /// Takes the spans of runs and replays, if the node writes traces.
    fn tracer(&self) -> Option<&Tracer> {
        None
    }

    /// Publishes the remaining events of a run whose record is stored; waits until the log has them.
    async fn publish(&self, run: &Run, published: Published) -> Result<(), Unlogged>;

    fn author(&self) -> Author<'_, Self::Server> {
        Author { node: self.node(), server: self.server() }
    }

    fn policy(&self, job: &Job) -> &TypePolicy {
        self.policies().of(&job.job_type)
    }
}

/// What replaying or discarding a dead letter asks besides.
pub(crate) trait DeadLetterPorts: RunPorts {
    /// Publishes the job of a run into its lane, under this message id.
    async fn move_to_lane(&self, run: &Run, headers: Headers, payload: Bytes, id: &str) -> Result<bool, Error>;
    /// Deletes the dead letter with this sequence, if it is there.
    async fn remove_dead_letter(&self, sequence: u64) -> Result<(), Error>;
}

/// A job that waits in its lane.
pub(crate) struct InLane {
    /// Its run, as if it had a record.
    pub(crate) run: Run,
    pub(crate) job: Arc<Job>,
    /// Which trace it belongs to, if the node writes traces.
    pub(crate) trace: Option<JobTrace>,
}

/// What finding a run's job where it waits asks besides.
pub(crate) trait WaitingPorts: RunPorts {
    /// The record of a run that was not found, read so that its absence is certain: a leader that was cut off from
    /// the others answers, too, for a while.
    async fn recorded_for_certain(&self, tenant: &Tenant, run: &RunId) -> Result<Option<Found>, ApiError>;
    /// The job that waits in its lane under this derived id.
    async fn waiting(&self, tenant: &Tenant, run: &RunId) -> Result<Option<InLane>, ApiError>;
    /// The same under an id of the client's own.
    async fn waiting_by_own_id(&self, tenant: &Tenant, run: &RunId) -> Result<Option<InLane>, ApiError>;
    /// The message in this place that brings the run on as its record has it: of that wait, or its job in its lane.
    async fn find(&self, place: &Source, run: &Run) -> Result<Option<Stored>, Error>;
}

/// What cancelling a run asks besides.
pub(crate) trait CancelPorts: WaitingPorts {
    /// Notes in the durable list that a run is being cancelled.
    async fn note_cancel(&self, tenant: &Tenant, run: &RunId) -> Result<(), Error>;
    /// Takes it from that list.
    async fn forget_cancel(&self, tenant: &Tenant, run: &RunId) -> Result<(), Error>;
    /// Asks every node to stop the run, or, `only_if_waiting`, not to begin it; waits for a while until each has
    /// received that. Returns whether one of them runs it.
    async fn ask_who_runs(&self, tenant: &Tenant, run: &RunId, only_if_waiting: bool) -> Result<bool, ApiError>;
    /// Waits for a while until the attempt that a node works on is over.
    async fn wait_for_attempt(&self, tenant: &Tenant, run: &RunId) -> Result<(), ApiError>;
    /// Whether the message that carries a running run is gone, so that no node gets it again.
    async fn has_no_message(&self, run: &Run) -> Result<bool, Error>;
    /// Deletes a message; returns whether it was there.
    async fn take_out(&self, place: &Source, sequence: u64) -> Result<bool, Error>;
    /// Removes what is stored as the record of a run at this revision.
    async fn remove_record(&self, tenant: &Tenant, run: &RunId, revision: u64) -> Result<(), Error>;
}

/// What cancelling all runs that fit a filter asks besides.
pub(crate) trait FilterPorts: CancelPorts {
    /// The queues that have lanes.
    async fn declared_queues(&self) -> Result<Vec<Queue>, Error>;
    /// One page of the messages under `subject` in this place, from sequence `from` on.
    async fn page(&self, place: &Source, subject: &str, from: u64) -> Result<Page, Error>;
    /// The tenant and run of a job in its lane.
    fn run_in_lane(&self, queue: &Queue, lane: QueueLane, stored: &Stored) -> (Tenant, RunId);
}

impl Destination for Backbone {
    fn names(&self) -> &Names {
        self.names()
    }

    fn max_in_record(&self) -> usize {
        self.max_in_record()
    }
}
