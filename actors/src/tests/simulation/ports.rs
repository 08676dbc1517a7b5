//! The ports of a simulated attempt: the world answers, and mutations lie.

use std::rc::Rc;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use bytes::Bytes;
use longshore_backbone::claims::{Claim, Claimed, FoundClaim};
use longshore_backbone::control::{PRESENCE_EVERY as REAL_PRESENCE_EVERY, Presence};
use longshore_backbone::delivery::AckToken;
use longshore_backbone::holders::{HolderAnswer, HolderQuestion};
use longshore_backbone::in_order::{Waiting, Waits};
use longshore_backbone::records::{Found, Written};
use longshore_backbone::request::Over;
use longshore_backbone::wire::kind_key::KindKey;
use longshore_backbone::wire::subject::Names;
use longshore_backbone::wire::{event, header, record};
use longshore_backbone::{Error, Headers};
use longshore_domain::concurrency::{ConcurrencyId, Line, Order, OrderId};
use longshore_domain::events::Event;
use longshore_domain::fast_path::Candidate;
use longshore_domain::job::Unique;
use longshore_domain::key::{self, KeyVerdict, ReleaseOn};
use longshore_domain::policy::Policies;
use longshore_domain::protocol::{self, Arrival, DeadLetterVerdict, HolderStatus, Repeat, Verdict};
use longshore_domain::publication::{Carrier, Published};
use longshore_domain::run::EndLog;
use longshore_domain::served::NeverServed;
use longshore_domain::{BatchId, Job, JobOptions, Queue, Run, RunId, RunState, SmolStr, Tenant, Timestamp};

use crate::attempt::ports::Ports;
use crate::attempt::recently_cancelled::RecentlyCancelled;
use crate::attempt::unclear_claims::UnclearClaims;
use crate::attempt::unstored_ends::UnstoredEnds;
use crate::commit::Commit;
use crate::lease_keeper::Book;
use crate::metrics::Metrics;
use crate::ports::encode::{Destination, EncodedEvents};
use crate::ports::{Rules, RunPorts, Server, Unlogged};
use crate::runtime::permits::LocalRetryPermits;
use crate::tests::simulation::attempt::schedule_of;
use crate::tests::simulation::client::{self, Unclear};
use crate::tests::simulation::intake::job;
use crate::tests::simulation::mutation::Mutation;
use crate::tests::simulation::operator::REPLAYS;
use crate::tests::simulation::plan::Letter;
use crate::tests::simulation::server::{Message, MessageId, Schedule, Stored, TakenFrom, Word};
use crate::tests::simulation::worker::{Does, Hand, LENGTH, seal_of, seal_text};
use crate::tests::simulation::world::{Kind, LEASE, PRESENCE_EVERY, World, stamp};

/// A node has this long to say whether it holds a job.
const ANSWERS_WITHIN: i64 = 60;

pub(super) static NAMES: LazyLock<Names> = LazyLock::new(|| Names::new("longshore"));
thread_local! {
    /// Each thread counts for itself, and nobody reads it: threads that count together wait for each other. Threads end
    /// with the test.
    pub(super) static METRICS: Arc<Metrics> = Arc::default();
}

fn unanswered() -> Error {
    Error::Publish { subject: String::new(), source: "no answer".into() }
}

impl From<Unclear> for Error {
    fn from(Unclear: Unclear) -> Self {
        unanswered()
    }
}

fn found(stored: Stored) -> Found {
    Found { run: (*stored.run).clone(), revision: stored.revision }
}

impl Hand<'_> {
    fn mutated(&self, verdict: Verdict) -> Verdict {
        match (verdict, self.world.mutation) {
            (Verdict::CarryOut | Verdict::TakeOver, Some(Mutation::DropInsteadOfCarryOut))
            | (Verdict::PublishEnd, Some(Mutation::CancelledDroppedUnpublished))
            | (
                Verdict::StaleRecord,
                Some(
                    Mutation::StaleRecordTakenForTheNewest
                    | Mutation::RecordsReadFromAnyReplica
                    | Mutation::ReplicaDecides,
                ),
            )
            | (Verdict::BeginAnew, Some(Mutation::RunOfALaneThatIsGoneTakenForThisOne)) => Verdict::Drop,
            (Verdict::Occupied, Some(Mutation::RunOfALaneThatIsGoneOverwritten)) => Verdict::BeginAnew,
            (Verdict::BeginAgain { .. }, Some(Mutation::PutBackAckedWhenItComesAgain)) => Verdict::PublishEnd,
            (other, _) => other,
        }
    }

    /// A node's own message is refused only if it comes once more when its run has ended and another run has the id.
    /// The dead letter that it then becomes is no run of any plan, so the world takes the message out here;
    /// `attempt/tests` show what the code does.
    fn check_refusal(&self, verdict: Verdict, is_stored: bool) -> Verdict {
        let own = self.delivery.message.plan;
        if verdict != Verdict::Unproven || self.index != own {
            return verdict;
        }
        if self.world.ledger.borrow().last_of(own).is_none() {
            self.world.ledger.borrow_mut().accuse(own, "its own message was taken for a forgery");
        }
        if is_stored { Verdict::Drop } else { Verdict::StaleRecord }
    }
}

impl Rules for Hand<'_> {
    fn may_claim_on_replica(&self, found: &Run, arrival: &Arrival) -> bool {
        let begins = matches!(protocol::on_arrival(Some(found), arrival), Verdict::Begin { .. });
        begins || self.world.is(Mutation::ReplicaDecides)
    }

    fn on_arrival(&self, found: Option<&Run>, arrival: &Arrival) -> Verdict {
        let mut arrival = arrival.clone();
        match (self.world.mutation, found) {
            (Some(Mutation::ReschedulingNotSeen), _) => arrival.due_at = None,
            (Some(Mutation::AnyWaitOfAnAttemptSpeaksForIt), Some(found)) => arrival.deferrals = found.deferrals,
            (Some(Mutation::WrongSealBelieved), Some(found)) if arrival.seal.is_some() && !found.seal.is_empty() => {
                arrival.seal = Some(found.seal.clone());
            }
            _ => {}
        }
        let mut verdict = protocol::on_arrival(found, &arrival);
        let is_followed = found.is_some_and(|run| run.child().is_some());
        if is_followed && verdict == Verdict::CarryOut && self.world.is(Mutation::NextLinkNotRepeated) {
            verdict = Verdict::Drop;
        }
        let has_made_way = found.is_some_and(|run| run.published && run.state.duplicate_of().is_some());
        if has_made_way && verdict == Verdict::PublishEnd && self.world.is(Mutation::MadeWayDroppedUnpublished) {
            verdict = Verdict::Drop;
        }
        self.world.say(|| {
            let Message { sequence, delivered, place, .. } = self.delivery.message;
            let state = found.map_or("no record", |run| run.state.as_str());
            let (name, run) = (self.client.name(), place.plan);
            format!("{name} judges {sequence}#{delivered} of run {run} ({state}): {verdict:?}")
        });
        let verdict = self.check_refusal(self.mutated(verdict), found.is_some());
        self.takes_over.set(verdict == Verdict::TakeOver);
        self.looks_up.set(verdict == Verdict::BeginAnew);
        verdict
    }

    fn is_fast_path_open(&self, known: &Candidate<'_>) -> bool {
        self.takes_fast_path(known)
    }

    fn lease_is_lost(&self, run: &Run, holder: HolderStatus, asked_at: Timestamp, lease: Duration) -> bool {
        let judged_at = if self.world.is(Mutation::HolderJudgedByALaterClock) { self.world.now() } else { asked_at };
        let lost = protocol::lease_is_lost(run, holder, judged_at, lease);
        self.world
            .say(|| format!("{} finds the holder of run {}: {holder:?}, lost: {lost}", self.client.name(), self.index));
        lost || self.world.is(Mutation::LeaseJudgedByCount) && self.delivery.message.delivered > 1
    }

    fn on_claim(&self, found: Option<&Run>, unique: Unique, release_on: ReleaseOn) -> KeyVerdict {
        let verdict = key::on_claim(found, unique, release_on);
        let is_taken = match self.world.mutation {
            Some(Mutation::KeyOfALiveRunTaken) => unique != Unique::Window,
            Some(Mutation::ReplacedRunKept) => self.plan.replaces && found.is_some_and(key::is_replaceable),
            Some(Mutation::RepeatRunsAgainOnceTheRecordIsGone) => found.is_none(),
            _ => false,
        };
        if is_taken && verdict == KeyVerdict::Held { KeyVerdict::Free } else { verdict }
    }

    fn on_repeat(&self, run: &Run) -> Repeat {
        match (protocol::on_repeat(run), self.world.mutation) {
            (Repeat::Publish, Some(Mutation::NotedRunNeverPublishedAgain))
            | (Repeat::Schedule(_), Some(Mutation::ScheduledRunNeverScheduledAgain)) => Repeat::Nothing,
            (other, _) => other,
        }
    }

    fn is_last_pass(&self, number: usize, has_found: bool) -> bool {
        !has_found && (number > 0 || self.world.is(Mutation::SearchedOnce))
    }

    fn confirms_before_it_replaces(&self) -> bool {
        !self.world.is(Mutation::MadeWayWithoutConfirming)
    }

    fn is_recorded_first(&self, unique: Unique) -> bool {
        key::is_recorded_first(unique) && !self.world.is(Mutation::KeyClaimedBeforeItsRecord)
    }

    fn is_claimed_again(&self, run: &Run, unique: Unique, release_on: ReleaseOn, now: Timestamp) -> bool {
        let is_believed = self.world.is(Mutation::ReplayedRunBelievedToHaveItsKey);
        key::is_claimed_again(run, unique, release_on, now) && !is_believed
    }

    fn published_at_arrival(&self, found: &Run) -> Published {
        self.world.published_at_arrival(found)
    }

    fn published_at_start(&self, published: Published, waiting: &Run, attempt: u32) -> Published {
        self.world.published_at_start(published, waiting, attempt)
    }

    fn published_at_new_wait(&self, published: Published, waiting: &Run) -> Published {
        self.world.published_at_new_wait(published, waiting)
    }

    fn published_at_redelivery(&self, found: &Run) -> Published {
        self.world.published_at_redelivery(found)
    }

    fn published_at_unclear_claim(&self, run: &Run) -> Published {
        self.takes_up.set(self.world.is(Mutation::UnclearClaimNotWrittenAgain));
        self.world.published_at_unclear_claim(run)
    }

    fn published_when_held(&self, run: &Run) -> Published {
        self.world.published_when_held(run)
    }

    fn published_at_cancel(&self, before: &Run, cancelled: &Run, carrier: Carrier) -> Published {
        self.world.published_at_cancel(before, cancelled, carrier)
    }

    fn on_dead_letter(&self, found: Option<&Run>, round: u32, origin: Timestamp) -> DeadLetterVerdict {
        let mut verdict = protocol::on_dead_letter(found, round, origin);
        let takes_any = [Mutation::StaleRecordTakenForTheNewest, Mutation::RecordsReadFromAnyReplica];
        if verdict == DeadLetterVerdict::StaleRecord && takes_any.iter().any(|mutation| self.world.is(*mutation))
            || verdict == DeadLetterVerdict::Replayed && self.world.is(Mutation::ReplayNeverResumed)
        {
            verdict = DeadLetterVerdict::Stale;
        }
        // The world's people leave a letter alone that nobody wants replayed any more.
        let is_wished = match self.plan.letter {
            Letter::Keep => false,
            Letter::Replay => round <= REPLAYS,
            Letter::Discard => true,
        };
        if verdict == DeadLetterVerdict::Stands && !is_wished {
            return DeadLetterVerdict::StaleRecord;
        }
        if verdict != DeadLetterVerdict::Stands {
            self.world.ledger.borrow_mut().may_be_live_again(self.index);
        }
        self.is_stale.set(verdict == DeadLetterVerdict::Stale);
        verdict
    }

    fn published_at_dead_letter(&self, run: &Run, round: u32) -> Published {
        self.world.published_at_dead_letter(run, round)
    }
}

impl Destination for Hand<'_> {
    fn names(&self) -> &Names {
        &NAMES
    }

    fn max_in_record(&self) -> usize {
        usize::MAX
    }

    // No node of these worlds reads such texts, so they are written in calm worlds alone: they were a sixth of the
    // time.

    fn encode_run(&self, run: &Run, text: &mut Vec<u8>) {
        if self.world.encodes {
            record::append(run, text);
        }
    }

    fn encode_event(&self, event: &Event<'_>, node: &str, text: &mut Vec<u8>) {
        self.world.write_event(self.place_of_run(event.run).0, event, node, text);
        if self.world.encodes {
            event::write(event, node, text);
        }
    }
}

impl Server for Hand<'_> {
    /// No handler there has steps.
    async fn forget_steps(&self, _: &Tenant, _: &RunId) -> Result<(), Error> {
        Ok(())
    }

    async fn is_declared(&self, _: &Queue) -> Result<bool, Error> {
        Ok(true)
    }

    async fn join_batch(&self, _: &Job, _: &BatchId) -> Result<Result<(), String>, Error> {
        Ok(Ok(()))
    }

    async fn note_end_in_batch(&self, _: &Run) -> Result<(), Error> {
        Ok(())
    }

    async fn read_record(&self, _: &Tenant, run: &RunId) -> Result<Option<Found>, Error> {
        let (plan, key) = self.place_of(run);
        let looks_up = self.looks_up.take() && key == World::timed_key(plan);
        if looks_up && self.world.is(Mutation::OtherIdNotLookedUp) {
            return Ok(None);
        }
        Ok(self.client.read(key).await.map(found))
    }

    async fn read_replica(&self, _: &Tenant, run: &RunId) -> Option<Found> {
        let (_, key) = self.place_of(run);
        self.client.read_replica(key).await.map(found)
    }

    async fn write_record(&self, run: &Run, mut expected: u64) -> Result<Written, Error> {
        let (plan, key) = self.place_of_run(run);
        let is_marked = run.published && run.round == 1 && !run.has_started() && run.held_by.is_none();
        let is_never_marked = self.world.is(Mutation::RecordNeverMarkedPublished);
        let does = self.does.get();
        let is_mark = is_marked && does != Does::Reschedules && !run.state.is_terminal();
        let is_note = run.state.end_log() == EndLog::Done && self.world.is(Mutation::EndOfTheCancelledNotNoted);
        if self.takes_up.take() || is_never_marked && is_mark || is_note {
            return Ok(Written::Won(expected));
        }
        if key == World::timed_key(plan) {
            self.world.ledger.borrow_mut().may_be_live_again(plan);
        }
        let is_replayed = self.letter.get().is_some() && !run.state.is_terminal();
        if is_replayed && self.world.is(Mutation::ReplayPublishedBeforeItIsOnRecord) {
            let place = schedule_of(self.world, plan, run).place;
            let message = Message { place, moved: true, seal: seal_of(run), ..job(plan, self.world.clock.get()) };
            self.client.publish(message, MessageId::Replayed(seal_of(run), run.round)).await;
        }
        if self.world.is(Mutation::ClaimOverwrites) && run.state == RunState::Running {
            expected = self.client.read(key).await.map_or(0, |stored| stored.revision);
        }
        self.check_filter(plan, run, expected);
        if does == Does::Cancels && self.world.is(Mutation::CancelledTakenOutBeforeItIsOnRecord) {
            self.clear_away_early(plan).await;
        }
        let mut run = run.clone();
        if does == Does::Reschedules && self.world.is(Mutation::RescheduledRecordNotMarkedPublished) {
            run.published &= self.world.record(plan).is_some_and(|stored| stored.run.published);
        }
        let run = Rc::new(run);
        match self.client.write(plan, key, expected, &run).await {
            client::Written::Won(revision) => {
                if does == Does::Reschedules {
                    self.world.ledger.borrow_mut().was_rescheduled(plan);
                }
                if self.world.is(Mutation::ClaimIsPublished) && run.state == RunState::Running {
                    let _ = self.publish_rest(&run, Published::at_redelivery(&run)).await;
                }
                Ok(Written::Won(revision))
            }
            client::Written::Lost(stored) => Ok(Written::Lost(stored.map(|stored| Box::new(found(stored))))),
            client::Written::Unclear => Err(unanswered()),
        }
    }

    async fn claim_key(&self, tenant: &Tenant, key: &str, claim: &Claim, window: Duration) -> Result<Claimed, Error> {
        loop {
            if let Some(revision) = self.write_claim(tenant, key, claim, Over { expected: 0, lasts: window }).await? {
                return Ok(Claimed::Mine(revision));
            }
            // It may be given back between the two calls.
            if let Some(found) = self.read_claim(tenant, key).await? {
                return Ok(Claimed::Found(found));
            }
        }
    }

    async fn read_claim(&self, _: &Tenant, key: &str) -> Result<Option<FoundClaim>, Error> {
        let world = self.world;
        let Some(found) = self.client.read_claim(key_of(key)).await else { return Ok(None) };
        let is_own = found.plan == self.index;
        let sure = world.is(if is_own {
            Mutation::OwnClaimNotMarkedBeforeItsRunBegins
        } else {
            Mutation::UnpublishedClaimNeverTakenOver
        });
        if self.does.get() == Does::Cancels && world.is(Mutation::JobThatTakesAKeyOverTakenOut) {
            return Ok(None);
        }
        let published = (found.published || sure) && (is_own || !world.is(Mutation::PublishedClaimTakenOver));
        let id = |plan: usize| world.plans[plan].job().run_id.clone();
        let taken_from = found.taken_from.into_iter().flatten().map(id).collect();
        let run_id = match found.timed {
            true => world.plans[found.plan].timed_job(stamp(self.delivery.message.at)).run_id.clone(),
            false => id(found.plan),
        };
        let unique = world.plans[found.plan].scope;
        let fingerprint = world.plans[found.plan].fingerprint();
        let claim = Claim { run_id, fingerprint, unique, published, taken_from };
        Ok(Some(FoundClaim { claim, revision: found.revision, at: stamp(0) }))
    }

    async fn write_claim(
        &self,
        _: &Tenant,
        key: &str,
        claim: &Claim,
        Over { expected, lasts }: Over,
    ) -> Result<Option<u64>, Error> {
        let mut taken_from = TakenFrom::default();
        for (place, run) in taken_from.iter_mut().zip(&claim.taken_from) {
            *place = Some(self.place_of(run).0);
        }
        let (plan, record) = self.place_of(&claim.run_id);
        let timed = record == World::timed_key(plan);
        if timed {
            // So that the id is known from now on.
            self.plan.timed_job(stamp(self.delivery.message.at));
        }
        if lasts <= Duration::from_secs(1) {
            return Ok(self.client.give_back(key_of(key), expected).await?);
        }
        Ok(self.client.write_claim(key_of(key), expected, (plan, claim.published, timed), taken_from).await?)
    }

    // No key of these worlds has a line: those have worlds of their own (`domain/tests/lines.rs`).

    async fn read_line(&self, _: &ConcurrencyId) -> Result<(Line, u64), Error> {
        unreachable!("no key has a line")
    }

    async fn write_line(&self, _: &ConcurrencyId, _: &Line, _: u64) -> Result<bool, Error> {
        unreachable!("no key has a line")
    }

    async fn read_order(&self, id: &OrderId) -> Result<(Order, u64), Error> {
        self.order(id).await
    }

    async fn write_order(&self, id: &OrderId, order: &Order, expected: u64, _: Duration) -> Result<bool, Error> {
        self.put_order(id, order, expected).await
    }

    async fn waiting_in_order(&self, id: &OrderId, at: Waits, beyond: u64, up_to: u64) -> Result<Vec<Waiting>, Error> {
        self.waiting_in(id, at, beyond, up_to).await
    }

    async fn is_in_lane(&self, _: &OrderId, sequence: u64) -> Result<bool, Error> {
        Ok(self.has_in_lane(sequence).await)
    }

    async fn notify_cancelled(&self, _: &Tenant, run: &RunId) {
        self.world.travel().await;
        self.order_to_stop(self.place_of(run).0, 1, false);
    }

    async fn take_out_parked(&self, _: &Run, _: &KindKey) -> Result<(), Error> {
        unreachable!("no key has a line")
    }

    async fn ask_holder(&self, node: &str, question: &HolderQuestion, _: Duration) -> Option<HolderAnswer> {
        let world = self.world;
        let node = world.names.iter().position(|other| other == node)?;
        world.travel().await;
        let (state, now) = (&world.nodes[node], world.clock.get());
        let answers = state.dead_until.get() <= now && state.frozen_until.get() <= now;
        let answer = if answers && !world.chance.hits(world.weather.get().unclear) {
            let holds = state.book.borrow().has(&question.message);
            let never_started = !holds && state.unclear_claims.borrow().take(&question.token);
            let writer = client::Client { world, node }.writer();
            world.travel().await;
            Some(HolderAnswer { writer, holds, never_started })
        } else {
            world.pause(ANSWERS_WITHIN).await;
            None
        };
        let is_slow = if world.kind == Kind::LongAttempts { 4_000 } else { 500 };
        if world.chance.hits(is_slow) {
            world.pause(world.chance.between(1, 2 * LEASE)).await;
        }
        answer
    }

    async fn presence_of(&self, node: &str) -> Result<Option<Presence>, Error> {
        let world = self.world;
        let Some(number) = world.names.iter().position(|other| other == node) else { return Ok(None) };
        let presence = |started_at, seen_at| {
            let (node, version, state, queues) = (node.to_owned(), String::new(), String::new(), Default::default());
            Some(Presence {
                node,
                version,
                started_at,
                seen_at,
                state,
                queues,
                running_of: Default::default(),
                missing_handlers: Vec::new(),
            })
        };
        if world.is(Mutation::SilentHolderTakenForDead) {
            return Ok(presence(stamp(i64::MAX / 2), stamp(i64::MAX / 2)));
        }
        // Everything here is short compared with the product: a presence is, too.
        let scale = PRESENCE_EVERY - i64::try_from(REAL_PRESENCE_EVERY.as_millis()).unwrap_or(0);
        Ok(world.presence(number).and_then(|(seen, since)| presence(stamp(since), stamp(seen + scale))))
    }

    async fn schedule(&self, run: &Run, _: Timestamp, _: Option<&Headers>, _: Bytes) -> Result<(), Error> {
        let plan = self.place_of_run(run).0;
        self.client.schedule(schedule_of(self.world, plan, run)).await;
        Ok(())
    }

    async fn park(&self, run: &Run, since: Timestamp, _: Option<&Headers>, _: Bytes) -> Result<(), Error> {
        let parked = schedule_of(self.world, self.place_of_run(run).0, run);
        self.client.park(Schedule::new(parked.place, parked.seal, since.millis())).await;
        Ok(())
    }

    async fn return_to_queue(
        &self,
        run: &Run,
        at: Timestamp,
        headers: Option<&Headers>,
        payload: Bytes,
    ) -> Result<(), Error> {
        self.schedule(run, at, headers, payload).await
    }

    async fn write_dead_letter(&self, run: &Run, _: Option<&Headers>, _: Bytes) -> Result<(), Error> {
        self.client.put_letter(self.place_of_run(run).0, run).await;
        Ok(())
    }

    async fn publish_next(&self, run: &Run, headers: Headers, _: Bytes) -> Result<bool, Error> {
        let (plan, seal) = (self.place_of(&run.run_id).0, seal_of(run));
        let read = header::read_job(&headers).expect("a node's headers can be read");
        let then = |options: Option<&JobOptions>| options.and_then(|options| options.then.clone());
        let own = self.world.plans[plan].job();
        if then(read.options.as_deref()) != then(own.options.as_deref()) || run.job_type != own.job_type {
            self.world.ledger.borrow_mut().accuse(plan, "it is not the job that follows");
        }
        let message = Message { seal, ..job(plan, self.world.clock.get()) };
        self.client.publish(message, MessageId::Submitted(seal)).await;
        Ok(true)
    }

    async fn publish_live(&self, events: &EncodedEvents) {
        self.world.publish_live(self.client.node, events);
    }

    async fn ack(&self, ack_token: AckToken) {
        ack_token.abandon();
        self.send(Word::Ack);
    }

    async fn nak_after(&self, ack_token: AckToken, after: Duration) {
        ack_token.abandon();
        self.send(Word::HandBack(i64::try_from(after.as_millis()).unwrap_or(0)));
    }

    fn ack_wait(&self) -> Duration {
        LENGTH
    }

    async fn pause(&self, wait: Duration) {
        self.world.pause(i64::try_from(wait.as_millis()).unwrap_or(0)).await;
    }
}

fn key_of(key: &str) -> usize {
    key.parse().expect("keys of this world are numbers")
}

impl RunPorts for Hand<'_> {
    type Server = Self;

    fn server(&self) -> &Self {
        self
    }

    fn now(&self) -> Timestamp {
        self.world.now()
    }

    fn seal(&self) -> SmolStr {
        seal_text(self.world.number())
    }

    fn node(&self) -> &SmolStr {
        &self.world.names[self.client.node]
    }

    fn token(&self) -> SmolStr {
        self.client.token()
    }

    fn lease(&self) -> Duration {
        LENGTH
    }

    fn idempotency_window(&self) -> Duration {
        Duration::from_secs(3_600)
    }

    fn policies(&self) -> &Policies {
        self.plan.policies()
    }

    fn metrics(&self) -> &Metrics {
        &self.world.metrics
    }

    async fn publish(&self, run: &Run, published: Published) -> Result<(), Unlogged> {
        let is_unpublished = self.is_stale.get() && self.world.is(Mutation::StaleLetterDeletedUnpublished);
        if !is_unpublished && !self.world.is(Mutation::PutBackBeginsAgainUnpublished) {
            if self.does.get() == Does::Cancels && self.world.is(Mutation::CancelledTakenOutUnpublished) {
                self.clear_away_early(self.place_of_run(run).0).await;
            }
            return self.publish_rest(run, published).await;
        }
        Ok(())
    }
}

impl Ports for Hand<'_> {
    fn instant(&self) -> Instant {
        if self.world.is(Mutation::NoLookAtTheLeaseBeforeTheWork) {
            return self.leased_from();
        }
        self.clock()
    }

    fn chance(&self) -> f64 {
        self.world.chance.unit()
    }

    fn writer(&self) -> &str {
        &self.writer
    }

    fn book(&self) -> &Arc<Book> {
        &self.book
    }

    fn recently_cancelled(&self) -> &RecentlyCancelled {
        self.hears_cancels();
        &self.recently_cancelled
    }

    fn unclear_claims(&self) -> &UnclearClaims {
        &self.unclear_claims
    }

    fn unstored_ends(&self) -> &UnstoredEnds {
        &self.world.unstored_ends
    }

    fn local_retries(&self) -> &Arc<LocalRetryPermits> {
        &self.world.local_retries
    }

    fn needs(&self, _: &Job) -> Option<Duration> {
        self.judged_at.set(Some(self.world.clock.get()));
        self.plan.needs().filter(|_| !self.world.is(Mutation::TooLittleTimeNotSeen))
    }

    async fn never_served(&self, _: &Job) -> Option<NeverServed> {
        None
    }

    fn gave_up(&self, _: &Run, _: &'static str) {}

    async fn commit(&self, commit: Box<Commit>) {
        self.hand_over(commit);
    }

    async fn wait_or_drain(&self, wait: Duration) {
        let until = self.world.clock.get() + i64::try_from(wait.as_millis()).unwrap_or(0);
        while !self.is_drained() && self.world.clock.get() < until {
            self.hold_until(until).await;
        }
    }

    fn is_draining(&self) -> bool {
        self.is_drained()
    }
}
