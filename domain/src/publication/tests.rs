//! What each situation publishes: a table of a run with 1,000 attempts, and of a run at its first attempt.

use super::*;
use crate::run::{Holding, MessageId, PutBack};
use crate::settlement::Settlement;
use crate::{ErrorKind, Failure, Job, RunId, Timestamp};

fn at(millis: i64) -> Timestamp {
    Timestamp::from_millis(millis)
}

fn failure() -> Failure {
    Failure::new(ErrorKind::Retryable, "x")
}

/// A run that waits in its lane and that a message carries.
fn enqueued() -> Run {
    let message = MessageId { stream: "S".into(), sequence: 7, at: at(1) };
    let mut run = Run::new(&Job::example(), 2_000, at(1));
    run.held_by = Some(Holding { message, delivery: 1 });
    run
}

/// The same run after `attempts` attempts, each but the last failed; the last one runs.
fn running(attempts: u32) -> Run {
    let mut run = enqueued();
    for attempt in 1..=attempts {
        if attempt > 1 {
            run = settled(run, Settlement::Retry { at: at(3), failure: failure() });
        }
        run.begin(attempt, &"n".into(), at(2));
    }
    run
}

fn settled(mut run: Run, settlement: Settlement) -> Run {
    run.settle(settlement, at(5));
    run
}

fn retrying(attempts: u32) -> Run {
    settled(running(attempts), Settlement::Retry { at: at(9), failure: failure() })
}

fn dead(attempts: u32) -> Run {
    settled(running(attempts), Settlement::Dead(failure()))
}

/// Starts the next attempt, given what is `published`.
fn started(published: Published, mut run: Run) -> (Published, Run) {
    let attempt = run.next_attempt();
    let published = published.at_start(&run, attempt);
    run.begin(attempt, &"n".into(), at(10));
    (published, run)
}

/// What is still to be published: `live | log`, each as attempt and event.
fn rest(published: Published, run: &Run) -> String {
    let events = of_round(run);
    let list = |is_meant: fn(&Unpublished<'_, '_>) -> bool| {
        let meant = published.unpublished(&events).filter(is_meant);
        meant.map(|unpublished| format!("{}/{}", unpublished.event.attempt, unpublished.event.kind)).collect::<Vec<_>>()
    };
    format!("{} | {}", list(|event| event.live).join(" "), list(|event| event.log).join(" "))
}

#[test]
fn a_redelivery_publishes_one_attempt_of_a_thousand_again() {
    let again = |run: &Run| rest(Published::at_redelivery(run), run);
    assert_eq!(of_round(&retrying(1_000)).len(), 2_001);
    assert_eq!(again(&retrying(1_000)), " | 1000/started 1000/failed");
    assert_eq!(again(&dead(1_000)), " | 1000/started 1000/failed 1000/dlq");
    assert_eq!(again(&settled(running(1_000), Settlement::Release)), " | 1000/started 1000/released");
    assert_eq!(again(&settled(retrying(1_000), Settlement::Cancel)), " | 1000/started 1000/failed 1000/cancelled");

    // The lease is lost: the start may be missing in the log, and how it ended is new.
    let lost = running(1_000);
    let published = Published::at_redelivery(&lost);
    let lost = settled(lost, Settlement::Dead(failure()));
    assert_eq!(rest(published, &lost), "1000/failed 1000/dlq | 1000/started 1000/failed 1000/dlq");

    // A wait after the last attempt may be missing as well.
    let reason = crate::run::DeferReason::NoHandlerOnline;
    let waits = settled(running(1_000), Settlement::Defer { at: at(9), reason, put_back: None });
    assert_eq!(again(&waits), " | 999/started 999/failed 1000/deferred");
}

#[test]
fn a_claim_publishes_its_start_alone() {
    let (held, run) = started(Published::held_locally(&retrying(1_000)), retrying(1_000));
    assert_eq!(rest(held, &run), "1001/started | 1001/started");
    let (arrived, run) = started(Published::at_arrival(&retrying(1_000)), retrying(1_000));
    assert_eq!(rest(arrived, &run), "1001/started | 1001/started");
    assert_eq!(rest(Published::at_unclear_claim(&run), &run), "1001/started | 1001/started");

    for why in [PutBack::Snoozed, PutBack::Busy] {
        let reason = crate::run::DeferReason::Snoozed;
        let waits = settled(running(1_000), Settlement::Defer { at: at(9), reason, put_back: Some(why) });
        let (arrived, run) = started(Published::at_arrival(&waits), waits);
        assert_eq!((rest(arrived, &run).as_str(), run.attempts.len()), ("1000/started | 1000/started", 1_000));
        // No handler is there to start it a second time: only the deferral is new.
        let reason = crate::run::DeferReason::NoHandlerOnline;
        let waits = settled(run, Settlement::Defer { at: at(9), reason, put_back: None });
        assert_eq!(rest(arrived, &waits), "1000/deferred | 1000/deferred");
        let (arrived, run) = started(Published::at_arrival(&waits), waits);
        assert_eq!(rest(arrived, &run), "1000/started | 1000/started");
    }
}

#[test]
fn a_refused_start_publishes_the_end_alone() {
    let reason = crate::run::DeferReason::NoHandlerOnline;
    let waits = settled(running(1), Settlement::Defer { at: at(9), reason, put_back: None });
    let arrived = Published::at_arrival(&waits);
    assert_eq!(rest(arrived, &settled(waits, Settlement::Expire)), "0/expired | 0/expired");
}

#[test]
fn a_parked_job_publishes_its_deferral_once() {
    let reason = crate::run::DeferReason::NoHandlerOnline;
    let waits = settled(running(1), Settlement::Defer { at: at(9), reason, put_back: None });
    let arrived = Published::at_arrival(&waits);
    let parked = settled(waits, Settlement::Park { since: at(9), reason: None });
    assert_eq!(rest(arrived, &parked), " | ");
    let arrived = Published::at_arrival(&parked);
    assert_eq!(rest(arrived, &settled(parked.clone(), Settlement::Expire)), "0/expired | 0/expired");
    let (arrived, run) = started(arrived, parked);
    assert_eq!(rest(arrived, &run), "1/started | 1/started");
}

#[test]
fn a_parked_job_publishes_that_it_waits_for_something_else_now() {
    let reason = crate::run::DeferReason::NoHandlerOnline;
    let waits = settled(running(1), Settlement::Defer { at: at(9), reason, put_back: None });
    let park = |run: Run, reason| settled(run, Settlement::Park { since: at(9), reason: Some(reason) });
    let arrived = Published::at_arrival(&waits).at_new_wait(&waits);
    let limited = park(waits.clone(), crate::run::DeferReason::RateLimited);
    assert_eq!(rest(arrived, &limited), "1/deferred | 1/deferred");
    let arrived = Published::at_arrival(&limited).at_new_wait(&limited);
    let again = park(limited, crate::run::DeferReason::RateLimited);
    assert_eq!(rest(arrived, &again), " | ", "it is published once, however often the job is parked");
    let arrived = Published::at_arrival(&again).at_new_wait(&again);
    let held = park(again, crate::run::DeferReason::Held);
    assert_eq!(rest(arrived, &held), "1/deferred | 1/deferred");
}

#[test]
fn what_the_api_decides_is_published_live_once() {
    let before = retrying(1_000);
    let cancelled = settled(before.clone(), Settlement::Cancel);
    let published = Published::at_cancel(&before, &cancelled, Carrier::MayCome);
    assert_eq!(rest(published, &cancelled), "1000/cancelled | 1000/started 1000/failed 1000/cancelled");
    let published = Published::at_cancel(&before, &cancelled, Carrier::Stands);
    assert_eq!(rest(published, &cancelled), "1000/cancelled | 1000/cancelled", "its schedule proves the rest");
    let before = running(1_000);
    let cancelled = settled(before.clone(), Settlement::Cancel);
    let published = Published::at_cancel(&before, &cancelled, Carrier::MayCome);
    assert_eq!(rest(published, &cancelled), "1000/cancelled | ", "its message gives the log the rest");
    let published = Published::at_cancel(&before, &cancelled, Carrier::Gone);
    assert_eq!(
        rest(published, &cancelled),
        "1000/cancelled | 1000/started 1000/cancelled",
        "no message is left to do it"
    );
    let before = enqueued();
    let cancelled = settled(before.clone(), Settlement::Cancel);
    let published = Published::at_cancel(&before, &cancelled, Carrier::Comes);
    assert_eq!(rest(published, &cancelled), "0/cancelled | ", "its message gives the log the rest, and nobody else");
    let unseen = Run { held_by: None, ..enqueued() };
    let cancelled = settled(unseen.clone(), Settlement::Cancel);
    let published = Published::at_cancel(&unseen, &cancelled, Carrier::MayCome);
    assert_eq!(rest(published, &cancelled), "0/enqueued 0/cancelled | 0/enqueued 0/cancelled");

    let mut discarded = dead(1_000);
    discarded.discard(at(20));
    let published = Published::at_dead_letter(&discarded, 1);
    assert_eq!(rest(published, &discarded), "1000/discarded | 1000/discarded", "its dead letter proves the rest");
    let mut replayed = dead(1_000);
    replayed.replay(at(20));
    let published = Published::at_dead_letter(&replayed, 1);
    assert_eq!(rest(published, &replayed), "0/replayed 0/enqueued | 0/replayed 0/enqueued");
    let cancelled = settled(replayed.clone(), Settlement::Cancel);
    let published = Published::at_cancel(&replayed, &cancelled, Carrier::MayCome);
    assert_eq!(rest(published, &cancelled), "0/cancelled | 0/replayed 0/enqueued 0/cancelled");
    // The job of the new round is published once the log has that round.
    let (arrived, run) = started(Published::at_arrival(&replayed), replayed);
    assert_eq!(rest(arrived, &run), "1/started | 1/started");
}

#[test]
fn the_first_attempt_proves_nothing() {
    let again = |run: &Run| rest(Published::at_redelivery(run), run);
    assert_eq!(again(&running(1)), " | 0/enqueued 1/started");
    assert_eq!(again(&retrying(1)), " | 0/enqueued 1/started 1/failed");
    // However often it was requeued: an attempt that began without a record may have been released before the log had
    // anything.
    let mut run = running(1);
    for _ in 0..3 {
        run = settled(run, Settlement::Release);
        run.begin(1, &"n".into(), at(6));
    }
    assert_eq!(again(&run), " | 0/enqueued 1/started");
    assert_eq!(rest(Published::at_unclear_claim(&run), &run), "1/started | 0/enqueued 1/started");
}

#[test]
fn what_submit_wrote_is_published_by_the_node_that_takes_it_up() {
    let noted = Run { held_by: None, ..enqueued() };
    let (arrived, run) = started(Published::at_arrival(&noted), noted);
    assert_eq!(rest(arrived, &run), "0/enqueued 1/started | 0/enqueued 1/started");
    let delayed = settled(enqueued(), Settlement::Schedule(at(100)));
    assert_eq!(rest(Published::nothing(), &delayed), "0/scheduled | 0/scheduled");
    let arrived = Published::at_arrival(&delayed);
    let (arrived, run) = started(arrived, Run { enqueued_at: Some(at(100)), ..delayed });
    assert_eq!(rest(arrived, &run), "0/enqueued 1/started | 0/enqueued 1/started");
}

#[test]
fn an_attempt_publishes_its_start_and_its_end_once_each() {
    let completed = || settled(running(1), Settlement::Complete(crate::run::RunResult::None));
    let end = "1/completed | 1/completed";

    // With a record: the start goes into the log at once.
    let published = Published::nothing().after_live(2, true);
    assert_eq!(rest(published, &completed()), end);
    // Without a record: the log gets it with the end, or before that where progress was made.
    let published = Published::nothing().after_live(2, false);
    assert_eq!(rest(published, &completed()), "1/completed | 0/enqueued 1/started 1/completed");
    assert_eq!(rest(published.log_as_live(), &completed()), end);
    assert_eq!(rest(published.for_log_only(), &completed()), " | 0/enqueued 1/started 1/completed");
    assert_eq!(rest(published.all_logged(&running(1)), &completed()), end);
    // It leaves no trace.
    assert_eq!(rest(published.for_live_only(), &completed()), "1/completed | ");
}

#[test]
fn the_message_of_a_run_that_made_way_publishes_what_no_message_had_published() {
    let kinds = |run: &Run| {
        let (published, events) = (Published::at_made_way(run), of_round(run));
        let part = |is: fn(&Unpublished<'_, '_>) -> bool| {
            let of = published.unpublished(&events).filter(is);
            of.map(|unpublished| unpublished.event.kind.to_string()).collect::<Vec<_>>().join(" ")
        };
        (part(|unpublished| unpublished.live), part(|unpublished| unpublished.log))
    };
    let after = |mut run: Run| {
        run.make_way(RunId::parse("other").unwrap(), at(4));
        kinds(&run)
    };
    let twice = |kinds: &str| (kinds.to_owned(), kinds.to_owned());
    let unseen = Run { held_by: None, published: true, ..enqueued() };
    assert_eq!(after(unseen.clone()), twice("enqueued duplicate"));
    assert_eq!(after(settled(unseen, Settlement::Schedule(at(9)))), twice("duplicate"));
    assert_eq!(after(settled(enqueued(), Settlement::Park { since: at(1), reason: None })), twice("duplicate"));
}
