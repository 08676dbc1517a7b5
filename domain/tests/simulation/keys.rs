//! Idempotency keys: which run owns a key when a job with that key is about to start.

use longshore_domain::{Run, RunId};

use crate::client::{Claimed, Client, Unclear};
use crate::mutation::Mutation;
use crate::worker::Hand;
use crate::world::World;

impl Hand<'_> {
    /// Makes sure that the run owns the key of its job, which is about to start for the first time, and notes that in
    /// the record. Returns the other run that has the key, if any.
    pub(crate) async fn claim_own_key(&self, run: &mut Run) -> Result<Option<RunId>, Unclear> {
        let (world, client) = (self.world, &self.client);
        let Some(key) = self.plan.key.filter(|_| run.key_claimed_ms.is_none() && run.round == 1) else {
            return Ok(None);
        };
        loop {
            let found = match client.claim_key(key, self.index, true).await? {
                Claimed::Mine(_) => break,
                Claimed::Found(found) => found,
            };
            if found.plan == self.index {
                // While the claim is not marked, another job with the key may be about to take it over: one of the two
                // writes wins.
                let sure = found.published || world.is(Mutation::OwnClaimNotMarkedBeforeItsRunBegins);
                if sure || client.write_claim(key, found.revision, self.index, true).await?.is_some() {
                    break;
                }
                continue;
            }
            let stands = found.published || world.is(Mutation::UnpublishedClaimNeverTakenOver);
            let stands = stands && !world.is(Mutation::PublishedClaimTakenOver);
            if stands || has_gone_on(client, found.plan).await {
                return Ok(Some(world.plans[found.plan].job().run_id.clone()));
            }
            if client.write_claim(key, found.revision, self.index, true).await?.is_some() {
                break;
            }
        }
        run.key_claimed_ms = Some(1);
        Ok(None)
    }
}

/// Whether the run of a claim that is not marked published has advanced all the same.
async fn has_gone_on(client: &Client<'_>, plan: usize) -> bool {
    let world: &World = client.world;
    let record = client.read(world.key(plan)).await;
    record.is_some_and(|record| {
        let run = record.run;
        run.published || run.has_started() || run.held_by.is_some() || run.state.is_terminal()
    })
}

/// The job or schedule of a submitted run is durable: marks its claim accordingly. Returns the run that owns the key by
/// then.
pub(crate) async fn mark_published(
    client: &Client<'_>,
    key: usize,
    revision: u64,
    plan: usize,
) -> Result<usize, Unclear> {
    match client.write_claim(key, revision, plan, true).await? {
        Some(_) => Ok(plan),
        None => Ok(client.read_claim(key).await.map_or(plan, |claim| claim.plan)),
    }
}
