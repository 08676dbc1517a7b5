//! The keys of a run that has ended or waits for its time: an idempotency key is given back, and the line or order of a
//! concurrency key goes with the last run of it.

use std::time::Duration;

use futures_util::future::try_join_all;
use longshore_backbone::Error;
use longshore_backbone::claims::FoundClaim;
use longshore_backbone::records::Found;
use longshore_backbone::request::Over;
use longshore_domain::concurrency::{ConcurrencyId, Line, Member, Order, OrderId};
use longshore_domain::job::Unique;
use longshore_domain::{Run, Tenant, Timestamp};

use crate::commit::Commit;
use crate::ports::Server;
use crate::runtime::fail_point;

/// How long a claim that was given back is still there: the shortest time that a server knows.
const GIVEN_BACK: Duration = Duration::from_secs(1);
/// An order is stored for so long after it was last written: keys are many, and most of them come once. While its jobs
/// are in their lane or parked, it can be cut again.
pub(crate) const LASTS: Duration = Duration::from_secs(24 * 60 * 60);
/// And for so long beyond the time for which one of its runs waits: until then that run may wait in its lane again,
/// behind those that come after it. A line with a parked run is stored for so long as well.
pub(crate) const LASTS_BEYOND: Duration = Duration::from_secs(30 * 24 * 60 * 60);
/// So many records are read at once.
pub(crate) const AT_ONCE: usize = 4;

/// What an ended run leaves behind of its keys goes, and its batch learns of its end.
pub(super) async fn leave_keys<S: Server>(server: &S, commit: &Commit) -> Result<(), Error> {
    let run = &commit.run;
    server.note_end_in_batch(run).await?;
    if let Some(key) = key_given_back(run) {
        give_back(server, &run.tenant, run, key).await?;
    }
    match leave_key(server, run, commit.line.as_deref()).await {
        // A bucket without room takes no message that is not smaller than the one before. It goes by its age then.
        Err(error) if error.is_stream_full() => Ok(()),
        left => left,
    }
}

/// What an ended run leaves behind of its concurrency key goes, if no other run of the key needs it.
pub(crate) async fn leave_key<S: Server>(server: &S, run: &Run, line: Option<&ConcurrencyId>) -> Result<(), Error> {
    if !run.state.is_terminal() {
        return Ok(());
    }
    if let Some(line) = line {
        leave_line(server, &run.tenant, line).await?;
    }
    match run.order() {
        Some(order) => leave_order(server, &order).await,
        None => Ok(()),
    }
}

/// The key that an ended run gives back, as the last step before the delivery ends.
pub(crate) fn key_given_back(run: &Run) -> Option<&str> {
    run.unique_key.as_deref().filter(|_| run.state.is_terminal())
}

/// Gives back the key of a run that has ended, so that its claim does not stay for ever. A run that wants the key finds
/// it free without this. A run that was replayed meanwhile keeps it: this is how any other run would take the key.
pub(crate) async fn give_back<S: Server>(server: &S, tenant: &Tenant, run: &Run, key: &str) -> Result<(), Error> {
    let Some(FoundClaim { claim, revision, .. }) = server.read_claim(tenant, key).await? else { return Ok(()) };
    if claim.run_id != run.run_id || !claim.published || !claim.taken_from.is_empty() {
        return Ok(());
    }
    let found = server.read_record(tenant, &claim.run_id).await?;
    let found = found.as_ref().map(|found| &found.run);
    if found.is_some_and(|run| run.state.is_terminal()) && claim.unique != Unique::Window {
        fail_point::pass("before-release");
        server.write_claim(tenant, key, &claim, Over { expected: revision, lasts: GIVEN_BACK }).await?;
        fail_point::pass("after-release");
    }
    Ok(())
}

/// A run of this key has ended: if no other of its line is left, the line goes, as it says no more than none. It is
/// written as it was read, so a run that came meanwhile keeps it.
async fn leave_line<S: Server>(server: &S, tenant: &Tenant, id: &ConcurrencyId) -> Result<(), Error> {
    let (line, revision) = server.read_line(id).await?;
    if !line.is_empty() && ended(server, tenant, &line).await?.len() == line.members().count() {
        server.write_line(id, &Line::default(), revision).await?;
    }
    Ok(())
}

/// The members of a line whose runs have ended. Records are read from their leader, and each stood before its run came
/// to the line: a record that is not there is gone.
pub(crate) async fn ended<S: Server>(server: &S, tenant: &Tenant, line: &Line) -> Result<Vec<Member>, Error> {
    let read = line.members().map(async |member| {
        let found = server.read_record(tenant, &member.run_id).await?;
        let has_ended = found.is_none_or(|found| found.run.has_ended(member.round));
        Ok::<_, Error>(has_ended.then(|| member.clone()))
    });
    Ok(try_join_all(read).await?.into_iter().flatten().collect())
}

/// A run has ended: if it was the last of its batch, the order goes, as it says no more than none. It is written as it
/// was read, so a batch that was cut meanwhile stays.
async fn leave_order<S: Server>(server: &S, id: &OrderId) -> Result<(), Error> {
    let (order, revision) = server.read_order(id).await?;
    if !order.batch().is_empty() && first_open(server, id, &order).await?.1.is_none() {
        server.write_order(id, &Order::default(), revision, LASTS).await?;
    }
    Ok(())
}

/// The first run of the batch that has not ended, with its record if it has one, and how many have ended before it.
pub(crate) async fn first_open<'o, S: Server>(
    server: &S,
    id: &OrderId,
    order: &'o Order,
) -> Result<(usize, Option<(&'o Member, Option<Found>)>), Error> {
    let mut ended = 0;
    for some in order.batch().chunks(AT_ONCE) {
        for (member, open) in some.iter().zip(try_join_all(some.iter().map(|member| open(server, id, member))).await?) {
            match open {
                Some(found) => return Ok((ended, Some((member, found)))),
                None => ended += 1,
            }
        }
    }
    Ok((ended, None))
}

/// A run that has not ended, with its record if it has one; `None`: it has.
async fn open<S: Server>(server: &S, id: &OrderId, member: &Member) -> Result<Option<Option<Found>>, Error> {
    let read = || server.read_record(&id.tenant, &member.run_id);
    let mut found = read().await?;
    if found.is_none() {
        // No node has met it yet, or its record is no longer kept. What leaves its lane has a record, or has ended.
        if server.is_in_lane(id, member.place.number).await? {
            return Ok(Some(None));
        }
        found = read().await?;
    }
    Ok(found.filter(|found| !found.run.has_ended(member.round)).map(Some))
}

/// Has the order of a run that waits for its time last beyond that, however long it is.
pub(crate) async fn keep_order<S: Server>(server: &S, run: &Run, until: Timestamp) -> Result<(), Error> {
    let Some(id) = run.order() else { return Ok(()) };
    let since = run.attempts.last().map_or(run.origin, |attempt| attempt.started_at);
    loop {
        let (order, revision) = server.read_order(&id).await?;
        let has_it = order.batch().iter().any(|member| member.run_id == run.run_id);
        if !has_it || server.write_order(&id, &order, revision, until.since(since) + LASTS_BEYOND).await? {
            return Ok(());
        }
    }
}
