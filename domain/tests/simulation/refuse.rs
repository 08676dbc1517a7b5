//! Refuses a job that cannot be read, or that says of itself what no record proves: it becomes a dead letter of its
//! own.

use longshore_domain::protocol::{Arrival, Verdict, on_arrival};
use longshore_domain::publication::Published;
use longshore_domain::run::Holding;
use longshore_domain::settlement::Settlement;
use longshore_domain::{ErrorKind, Failure, Run};

use crate::server::{Key, Word};
use crate::worker::Hand;
use crate::world::{World, stamp};

impl Hand<'_> {
    /// Ends the job under the id that is derived from its position in the lane or, if that id is taken, under the same
    /// id with the time it was stored at. It may have become a dead letter before, on a node that died in the middle of
    /// this.
    pub(crate) async fn refuse(&self) {
        let (world, own) = (self.world, self.delivery.message.plan);
        let plan = &world.plans[own];
        let is_forged = self.index != own;
        if !is_forged && (!plan.is_unreadable() || self.is_moved()) {
            // A node's own message. It may come once more when its run has ended and another run has the id.
            if world.ledger.borrow().last_of(own).is_some() {
                return self.send(Word::Ack).await;
            }
            return world.ledger.borrow_mut().accuse(own, "its own message was taken for a forgery");
        }
        for (key, timed) in self.ids() {
            let found = self.client.read(key).await;
            let arrival = as_bare(self.holding(), timed);
            let verdict = on_arrival(found.as_ref().map(|stored| &*stored.run), &arrival);
            let revision = match (verdict, found) {
                (_, None) => 0,
                (Verdict::BeginAnew, Some(found)) if !self.was_refused_under_another_id().await => found.revision,
                (verdict, Some(found)) if self.is_own(&found.run) => {
                    let published = self.world.published_at_redelivery(&found.run);
                    return self.carry_on(verdict, &found.run, published).await;
                }
                _ => continue,
            };
            let at = stamp(self.delivery.message.at);
            let job = if timed { plan.timed_job(at) } else { plan.job() };
            // It has only one event, that of its dead letter.
            let mut run =
                Run { enqueued_at: None, held_by: Some(self.holding()), ..Run::new(job, plan.max_attempts, at) };
            run.settle(Settlement::Dead { failure: Failure::new(ErrorKind::Invalid, "x") }, world.now());
            if self.client.write(own, key, revision, &mut run).await.is_ok() {
                self.carry_on(Verdict::CarryOut, &run, Published::nothing()).await;
            }
            return;
        }
    }

    async fn was_refused_under_another_id(&self) -> bool {
        self.client.read(World::timed_key(self.delivery.message.plan)).await.is_some()
    }

    fn ids(&self) -> [(Key, bool); 2] {
        let own = self.delivery.message.plan;
        [(self.world.key(own), false), (World::timed_key(own), true)]
    }

    /// Whether the stored run is of this very message, by now perhaps in another round.
    fn is_own(&self, run: &Run) -> bool {
        let message = self.holding().message;
        run.origin == message.at || run.held_by.as_ref().is_some_and(|held| held.message == message)
    }

    async fn carry_on(&self, verdict: Verdict, run: &Run, published: Published) {
        let own = self.delivery.message.plan;
        match verdict {
            Verdict::CarryOut => {
                self.client.publish_events(own, run, published).await;
                self.client.put_letter(own, run).await;
                self.send(Word::Ack).await;
            }
            Verdict::PublishEnd => {
                self.client.publish_events(own, run, published).await;
                self.send(Word::Ack).await;
            }
            Verdict::Drop => self.send(Word::Ack).await,
            _ => {}
        }
    }
}

/// The arrival of a client's own publish, whatever the message says of itself.
fn as_bare(holding: Holding, timed: bool) -> Arrival {
    Arrival {
        holding,
        round: 1,
        attempt: 1,
        deferrals: 0,
        moved: false,
        seal: None,
        has_derived_id: !timed,
        has_aged: true,
    }
}
