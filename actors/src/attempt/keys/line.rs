//! The line of a concurrency key. A job that is about to start or to be parked comes to it: it is let in, waits, or
//! makes way, and other runs may make way for it. [`Line`](longshore_domain::concurrency::Line) decides; this carries
//! it out.
//!
//! Only types with another `on_busy` than `wait` have lines: the jobs of all others cost nothing here.

use std::time::Duration;

use futures_util::future::try_join_all;
use longshore_backbone::Error;
use longshore_backbone::records::{Found, Written};
use longshore_backbone::wire::kind_key::KindKey;
use longshore_domain::concurrency::{ConcurrencyId, Entry, Leaving, Member, OnBusy, Place};
use longshore_domain::policy::Policies;
use longshore_domain::publication::{Carrier, Published};
use longshore_domain::run::DeferReason;
use longshore_domain::settlement::Settlement;
use longshore_domain::{ErrorKind, Failure, Job, Run, RunId, Tenant};

use crate::attempt::assignment::{Assignment, number_of};
use crate::attempt::keys::{Denied, order, record_first};
use crate::attempt::ports::Ports;
use crate::attempt::running::AttemptState;
use crate::commit::follow_up::note_logged;
use crate::commit::keys::{LASTS_BEYOND, ended};
use crate::ports::{RunPorts, Server};
use crate::runtime::fail_point;
use crate::runtime::kind::Kind;

/// How long a job waits at least whose line found no room in its bucket.
const NO_ROOM: Duration = Duration::from_secs(5);

/// The line at which a job's run has to be let in, if there is one.
pub(crate) fn of(policies: &Policies, job: &Job) -> Option<ConcurrencyId> {
    job.options.as_ref()?.concurrency_key.as_ref()?;
    let has_lines = policies.of(&job.job_type).has_lines();
    let key = has_lines.then(|| KindKey::of(job.options.as_deref()))?;
    let key = Some((job.tenant.clone(), key.concurrency_key()?.into()));
    Some(ConcurrencyId { job_type: job.job_type.clone(), key })
}

/// Has the run of a job that may start, or is about to be parked, come to the line or the order of its key. `instead`:
/// what follows in place of its start, even if it is let in.
pub(crate) async fn come<P: Ports>(
    ports: &P,
    assignment: &Assignment,
    attempt_state: &mut AttemptState,
    instead: Option<&Settlement>,
) -> Result<(), Denied> {
    let job = &assignment.job;
    let parks = match instead {
        None => false,
        Some(Settlement::Park { .. }) => true,
        // It waits for its time, and comes to its line or order after that.
        Some(_) => return Ok(()),
    };
    // A key has a line or an order, or neither.
    let Some(id) = of(ports.policies(), job) else { return order::come(ports, assignment, attempt_state, parks).await };
    let policy = ports.policy(job);
    let (on_busy, max) = (policy.on_busy, policy.key_concurrency);
    let time_limit = policy.time_limit(job);
    record_first(ports, assignment, attempt_state, None, "before-line").await?;
    let me = member(&attempt_state.run, assignment);
    loop {
        let (line, revision) = ports.server().read_line(&id).await?;
        let ended = ended(ports.server(), &job.tenant, &line).await?;
        let judged = line.judge(&me, on_busy, max, |member| ended.contains(member));
        let changes = judged.write.is_some();
        // Parked, it comes to its line no more until it is taken back. A remote attempt's limit may count anew from its
        // `started`.
        let is_parked = parks || matches!(judged.entry, Entry::Waits(_));
        let needed = if is_parked { LASTS_BEYOND } else { time_limit.saturating_mul(2) };
        let judged = judged.kept(&line, ports.now(), needed);
        if let Some(line) = &judged.write {
            match ports.server().write_line(&id, line, revision).await {
                Ok(true) => fail_point::pass("after-line"),
                Ok(false) => continue,
                // It has its place, if perhaps not for as long as it needs it.
                Err(error) if error.is_stream_full() && !changes => {}
                // It comes back by itself: it has no place, and the jobs of other keys go on.
                Err(error) if error.is_stream_full() => {
                    let at = ports.now().plus(NO_ROOM.mul_f64(1.0 + ports.chance()));
                    let reason = DeferReason::Concurrency;
                    return Err(Denied::Settled(Settlement::Defer { at, reason, put_back: None }));
                }
                Err(error) => return Err(error.into()),
            }
        }
        for leaving in &judged.cancel {
            end(ports, &job.tenant, &KindKey::of(job.options.as_deref()), leaving).await?;
        }
        return match judged.entry {
            Entry::In => Ok(()),
            Entry::Waits(_) if parks => Ok(()),
            Entry::Waits(_) => Err(Denied::waits(assignment)),
            Entry::Busy(by) | Entry::Superseded(by) => Err(Denied::Settled(makes_way(on_busy, &by))),
        };
    }
}

fn member(run: &Run, assignment: &Assignment) -> Member {
    let number = number_of(&run.run_id, assignment.arrival.holding.message.sequence);
    Member { run_id: run.run_id.clone(), round: run.round, place: Place { at: assignment.since, number } }
}

/// Whether parked jobs of a kind may be taken back, as far as its line goes: another may be let in, or one that was let
/// in is parked itself.
pub(crate) async fn is_open<S: Server>(server: &S, policies: &Policies, kind: &Kind) -> Result<bool, Error> {
    let policy = policies.of(&kind.job_type);
    let Some(key) = kind.key.concurrency_key().filter(|_| policy.has_lines()) else { return Ok(true) };
    let key = Some((kind.tenant.clone(), key.into()));
    let (line, _) = server.read_line(&ConcurrencyId { job_type: kind.job_type.clone(), key }).await?;
    let inside: Vec<&Member> = line.inside(|_| false).collect();
    let read = inside.iter().map(async |member| {
        let found = server.read_record(&kind.tenant, &member.run_id).await?;
        Ok::<_, Error>(found.filter(|found| !found.run.has_ended(member.round)))
    });
    let at_work: Vec<Found> = try_join_all(read).await?.into_iter().flatten().collect();
    Ok(at_work.len() < policy.key_concurrency as usize || at_work.iter().any(|found| found.run.state.is_parked()))
}

fn makes_way(on_busy: OnBusy, by: &RunId) -> Settlement {
    let message = match on_busy {
        OnBusy::DropNew | OnBusy::Wait => format!("its concurrency key was busy: run {by} had not ended"),
        OnBusy::KeepNewest | OnBusy::CancelRunning => format!("run {by} of its concurrency key came later"),
    };
    Settlement::MakeWay(Failure::new(ErrorKind::Cancelled, message))
}

/// Ends a run that makes way for another, whatever its state. The node that runs it is asked to stop; its message, if
/// it waits, finds that it has ended.
async fn end<P: RunPorts>(
    ports: &P,
    tenant: &Tenant,
    key: &KindKey,
    Leaving { member, by }: &Leaving,
) -> Result<(), Error> {
    loop {
        let Some(Found { run: before, revision }) = ports.server().read_record(tenant, &member.run_id).await? else {
            return Ok(());
        };
        if before.has_ended(member.round) {
            return Ok(());
        }
        let mut run = before.clone();
        run.settle(makes_way(OnBusy::KeepNewest, by), ports.now());
        // It came to the line with its message. A parked one is taken out; any other comes, and logs the end.
        let is_parked = before.state.is_parked();
        let carrier = if is_parked { Carrier::MayCome } else { Carrier::Comes };
        run.leave_end_log(carrier.logs_end_of(&before));
        ports.sign(&mut run);
        if let Written::Won(revision) = ports.server().write_record(&run, revision).await? {
            ports.metrics().run_ended(&run);
            fail_point::pass("after-make-way");
            let is_logged = ports.publish(&run, Published::at_cancel(&before, &run, carrier)).await.is_ok();
            ports.server().notify_cancelled(tenant, &member.run_id).await;
            if is_logged && is_parked {
                note_logged(ports, &run, revision).await;
                ports.server().take_out_parked(&before, key).await?;
            }
            return Ok(());
        }
    }
}
