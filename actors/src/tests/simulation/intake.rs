//! The intake and the timekeeper, as far as they move jobs into their lane.

use longshore_domain::Run;
use longshore_domain::key::is_replaceable;
use longshore_domain::protocol::{Repeat, on_repeat};
use longshore_domain::publication::Published;
use longshore_domain::settlement::Settlement;

use crate::tests::simulation::attempt::schedule_of;
use crate::tests::simulation::client::{Claimed, Client, Unclear};
use crate::tests::simulation::mutation::Mutation;
use crate::tests::simulation::server::{Claim, Due, Key, Message, MessageId, Place, Stored, TakenFrom};
use crate::tests::simulation::worker::{seal_of, seal_text};
use crate::tests::simulation::world::World;

/// A job at its first attempt, just published.
pub(crate) fn job(plan: usize, at: i64) -> Message {
    let place = Place { plan, round: 1, attempt: 1, deferrals: 0, timed: false };
    Message { sequence: 0, at, place, plan, moved: false, seal: 0, since: at, delivered: 0, until: at }
}

/// Accepts a job. A client that got no answer asks again.
pub(crate) async fn submit(world: &World, node: usize, index: usize) {
    let intake = Intake { client: Client { world, node } };
    let answered = match world.plans[index].key {
        None => intake.note_and_publish(index, None).await,
        Some(key) => match intake.client.claim_key(key, index, false).await {
            Ok(Claimed::Mine(revision)) => intake.note_and_publish(index, Some((key, revision))).await,
            Ok(Claimed::Found(found)) if found.published && world.plans[index].replaces && found.plan != index => {
                intake.replace(index, found).await
            }
            Ok(Claimed::Found(found)) => {
                let unmarked = (!found.published).then_some((key, found.revision));
                intake.repeated(found.plan, unmarked).await
            }
            Err(Unclear) => Err(Unclear),
        },
    };
    if let Ok(answered) = answered {
        let stored = world.server.borrow().read(world.key(answered));
        if stored.is_some_and(|stored| on_repeat(&stored.run) != Repeat::Nothing) {
            world.ledger.borrow_mut().accuse(answered, "its client was answered, but its record goes away by itself");
        }
        world.submitted(index);
    }
}

/// The claim that has to be marked, and its revision.
type Unmarked = Option<(usize, u64)>;

/// The job or schedule of a submitted run is durable: marks its claim accordingly. Returns the run that owns the key by
/// then.
async fn mark_published(client: &Client<'_>, key: usize, revision: u64, plan: usize) -> Result<usize, Unclear> {
    match client.write_claim(key, revision, (plan, true, false), TakenFrom::default()).await? {
        Some(_) => Ok(plan),
        None => Ok(client.read_claim(key).await.map_or(plan, |claim| claim.plan)),
    }
}

struct Intake<'w> {
    client: Client<'w>,
}

impl<'w> Intake<'w> {
    fn world(&self) -> &'w World {
        self.client.world
    }

    fn key(&self, index: usize) -> Key {
        self.world().key(index)
    }

    /// Writes the record first, then its message or schedule, then marks record and claim.
    async fn note_and_publish(&self, index: usize, claim: Unmarked) -> Result<usize, Unclear> {
        let world = self.world();
        let plan = &world.plans[index];
        let now = world.now();
        let mut run = Run::new(plan.job(), plan.max_attempts, now);
        run.seal = seal_text(world.number());
        let run_at = plan.options.as_ref().and_then(|options| options.run_at);
        if let Some(at) = run_at {
            run.settle(Settlement::Schedule { at: at.from(now) }, now);
        }
        match self.client.write(index, self.key(index), 0, &mut run).await {
            Ok(revision) if run_at.is_some() => self.schedule(index, run, revision, Published::nothing()).await?,
            Ok(revision) => self.publish(index, run, revision).await?,
            Err(Some(found)) => return self.found_before(index, found, claim).await,
            Err(None) => return Err(Unclear),
        }
        self.mark_claim(index, claim).await
    }

    /// Puts the job in the place of the run that has its key: the job is durable first, then the other run makes way, and
    /// then the key is taken. Often its node does no more than the first step; then the job does the rest as it begins.
    async fn replace(&self, index: usize, found: Claim) -> Result<usize, Unclear> {
        let (world, plan) = (self.world(), &self.world().plans[index]);
        let key = plan.key.expect("only keys are taken");
        let before = match self.client.read(self.key(found.plan)).await {
            Some(before) if is_replaceable(&before.run) => before,
            _ => return self.repeated(found.plan, None).await,
        };
        let mut run = Run::new(plan.job(), plan.max_attempts, world.now());
        (run.seal, run.replaces) = (seal_text(world.number()), true);
        let revision = match self.client.write(index, self.key(index), 0, &mut run).await {
            Ok(revision) => revision,
            Err(Some(found)) => return self.found_before(index, found, None).await,
            Err(None) => return Err(Unclear),
        };
        let seal = seal_of(&run);
        let message = Message { seal, ..job(index, world.clock.get()) };
        self.client.publish(message, MessageId::Submitted(seal)).await;
        if world.chance.hits(3_000) && !world.is(Mutation::ReplacedRunKept) {
            return Err(Unclear);
        }
        let mut old = (*before.run).clone();
        old.make_way(plan.job().run_id.clone(), world.now());
        let made_way = world.is(Mutation::ReplacedRunKept)
            || self.client.write(found.plan, self.key(found.plan), before.revision, &mut old).await.is_ok();
        if !made_way {
            // It has started, or something else has happened: the job finds that out as it begins.
            return Err(Unclear);
        }
        // The runs that the key was taken from before are still to be ended: the job does so as it begins.
        let taken_from = found.taken_from.map(|from| from.filter(|from| *from != index));
        self.client.write_claim(key, found.revision, (index, true, false), taken_from).await?;
        self.mark_record(index, run, revision).await?;
        Ok(index)
    }

    /// Publishes a job whose record is stored, under the record's seal, and marks the record.
    async fn publish(&self, index: usize, run: Run, revision: u64) -> Result<(), Unclear> {
        let seal = seal_of(&run);
        let sealed = if self.world().is(Mutation::SubmittedUnsealed) { 0 } else { seal };
        let message = Message { seal: sealed, ..job(index, self.world().clock.get()) };
        self.client.publish(message, MessageId::Submitted(seal)).await;
        self.mark_record(index, run, revision).await
    }

    async fn schedule(&self, index: usize, run: Run, revision: u64, published: Published) -> Result<(), Unclear> {
        self.client.publish_events(index, &run, published).await;
        self.client.schedule(schedule_of(self.world(), index, &run)).await;
        self.mark_record(index, run, revision).await
    }

    /// If another write was first, a node has taken the run up already. A client whose record may not be marked gets no
    /// answer, and asks again.
    async fn mark_record(&self, index: usize, mut run: Run, revision: u64) -> Result<(), Unclear> {
        if self.world().is(Mutation::RecordNeverMarkedPublished) {
            return Ok(());
        }
        run.published = true;
        match self.client.write(index, self.key(index), revision, &mut run).await {
            Err(None) => Err(Unclear),
            Err(Some(found)) if on_repeat(&found.run) != Repeat::Nothing => Err(Unclear),
            Ok(_) | Err(Some(_)) => Ok(()),
        }
    }

    async fn mark_claim(&self, index: usize, claim: Unmarked) -> Result<usize, Unclear> {
        match claim {
            Some((key, revision)) => {
                let has_it = mark_published(&self.client, key, revision, index).await?;
                if has_it != index {
                    self.mark_other(has_it).await?;
                }
                Ok(has_it)
            }
            None => Ok(index),
        }
    }

    /// The claim is another run's, whose job is durable, so its record must not go away by itself.
    async fn mark_other(&self, index: usize) -> Result<(), Unclear> {
        match self.client.read(self.key(index)).await {
            Some(found) if on_repeat(&found.run) != Repeat::Nothing => {
                self.mark_record(index, (*found.run).clone(), found.revision).await
            }
            _ => Ok(()),
        }
    }

    /// The run is there already. If its job may never have been published, it is published now.
    async fn found_before(&self, index: usize, found: Stored, claim: Unmarked) -> Result<usize, Unclear> {
        let run = (*found.run).clone();
        match on_repeat(&run) {
            Repeat::Publish if self.world().is(Mutation::NotedRunNeverPublishedAgain) => {}
            Repeat::Schedule(_) if self.world().is(Mutation::ScheduledRunNeverScheduledAgain) => {}
            Repeat::Publish => self.publish(index, run, found.revision).await?,
            Repeat::Schedule(_) => {
                if self.client.has_schedule(schedule_of(self.world(), index, &run).place).await {
                    self.mark_record(index, run, found.revision).await?;
                } else {
                    let published = self.world().published_at_redelivery(&run);
                    self.schedule(index, run, found.revision, published).await?;
                }
            }
            Repeat::Nothing => {}
        }
        self.mark_claim(index, claim).await
    }

    /// The run `index` has claimed the key and is the answer. If it may never have been published, it is published now.
    async fn repeated(&self, index: usize, unmarked: Unmarked) -> Result<usize, Unclear> {
        match self.client.read(self.key(index)).await {
            Some(found) => self.found_before(index, found, unmarked).await,
            None if unmarked.is_none() && !self.world().is(Mutation::RepeatRunsAgainOnceTheRecordIsGone) => Ok(index),
            None => self.note_and_publish(index, unmarked).await,
        }
    }
}

/// Moves a due job into its lane, then acknowledges it.
pub(crate) async fn take_due(world: &World, node: usize, due: Due) {
    let client = Client { world, node };
    let crate::tests::simulation::server::Schedule { place, seal, at } = due.schedule;
    let message = Message { place, moved: true, seal, since: at, ..job(place.plan, 0) };
    let (mut known_as, mut firing) = (place, due.sequence);
    if world.is(Mutation::MovedUnderTheSameIdAfterADeferral) {
        (known_as.deferrals, firing) = (0, 0);
    }
    if world.is(Mutation::MovedUnderTheSameIdAfterARescheduling) {
        firing = 0;
    }
    if world.is(Mutation::DueAckedBeforeItIsMoved) {
        client.ack_due(due).await;
    }
    client.publish(message, MessageId::Moved(seal, known_as, firing)).await;
    client.ack_due(due).await;
}
