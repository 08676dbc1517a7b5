//! The decision table of deliveries, and the other judges of the protocol.

use super::*;
use crate::outcome::Outcome;
use crate::policy::TypePolicy;
use crate::run::{MessageId, RunResult};
use crate::settlement::{Settlement, Terms, settle};
use crate::{ErrorKind, Failure, Job, RunId};

const SEAL: &str = "5ea1";

fn job() -> Job {
    Job { run_id: RunId::parse("main-p5-7").unwrap(), ..Job::example() }
}

fn at(millis: i64) -> Timestamp {
    Timestamp::from_millis(millis)
}

fn arrival(sequence: u64, delivery: u64, round: u32, attempt: u32, moved: bool) -> Arrival {
    let message = MessageId { stream: "S".into(), sequence, at: at(100) };
    let seal = moved.then(|| SEAL.into());
    Arrival {
        holding: Holding { message, delivery },
        round,
        attempt,
        deferrals: 0,
        due_at: None,
        moved,
        seal,
        has_derived_id: true,
        has_aged: false,
    }
}

fn running(by: &Arrival) -> Run {
    let mut run = Run::new(&job(), 3, at(100));
    run.begin(1, &"a".into(), at(200));
    run.held_by = Some(by.holding.clone());
    run.seal = SEAL.into();
    run
}

fn after(mut run: Run, settlement: Settlement) -> Run {
    run.settle(settlement, at(300));
    run
}

fn failed(run: Run) -> Run {
    let policy = TypePolicy::default();
    let terms = Terms { run: &run, policy: &policy, backoff: &policy.backoff, deadline: None, never_served: None };
    let failure = Failure::new(ErrorKind::Retryable, "x");
    let settlement = settle(Outcome::Failed { failure, retry_after: None }, terms, at(300), 0.5);
    after(run, settlement)
}

#[test]
fn the_decision_table() {
    let first = arrival(7, 1, 1, 1, false);
    let again = arrival(7, 2, 1, 1, false);
    let other = arrival(9, 1, 1, 1, false);
    let second = arrival(12, 1, 1, 2, true);
    let begin = |round, attempt| Verdict::Begin { round, attempt };
    let judge =
        |run: &Run, arrival: &Arrival| on_arrival(Some(run), &Arrival { has_derived_id: false, ..arrival.clone() });

    assert_eq!(on_arrival(None, &again), begin(1, 1));

    let run = running(&first);
    assert_eq!(judge(&run, &first), Verdict::HeldElsewhere);
    assert_eq!(judge(&run, &again), Verdict::HeldElsewhere);
    assert_eq!(judge(&run, &other), Verdict::Drop);
    assert_eq!(judge(&run, &second), Verdict::StaleRecord, "the record does not know of that attempt yet");

    let done = after(running(&first), Settlement::Complete(RunResult::None));
    assert_eq!(judge(&done, &again), Verdict::CarryOut);
    assert_eq!(judge(&done, &other), Verdict::Drop);
    assert_eq!(judge(&done, &second), Verdict::Drop);

    let retrying = failed(running(&first));
    assert_eq!(judge(&retrying, &again), Verdict::TakeOver);
    assert_eq!(judge(&retrying, &second), begin(1, 2));
    assert_eq!(judge(&retrying, &other), Verdict::Drop);

    let released = after(running(&first), Settlement::Release);
    assert_eq!(judge(&released, &again), Verdict::BeginAgain { round: 1, attempt: 1 });
    assert_eq!(judge(&released, &other), Verdict::Drop);

    let snoozed = after(
        running(&first),
        Settlement::Defer {
            at: at(900),
            reason: crate::run::DeferReason::Snoozed,
            put_back: Some(crate::run::PutBack::Snoozed),
        },
    );
    assert_eq!(judge(&snoozed, &again), Verdict::TakeOver);
    let moved = Arrival { deferrals: 1, ..arrival(13, 1, 1, 1, true) };
    assert_eq!(judge(&snoozed, &moved), begin(1, 1));
    assert_eq!(judge(&snoozed, &arrival(11, 2, 1, 1, true)), Verdict::Drop, "of an earlier wait");
    let put_back = Run { deferrals: 1, ..after(running(&moved), Settlement::Release) };
    assert_eq!(judge(&put_back, &arrival(14, 1, 1, 1, true)), Verdict::Drop, "its own message comes again");

    let cancelled = after(running(&first), Settlement::Cancel);
    assert_eq!(judge(&cancelled, &first), Verdict::PublishEnd);
    assert_eq!(judge(&cancelled, &other), Verdict::Drop, "its own message comes");
    assert_eq!(judge(&after(retrying, Settlement::Cancel), &second), Verdict::PublishEnd);

    let mut submitted = Run { seal: SEAL.into(), ..Run::new(&job(), 3, at(100)) };
    let its_own = Arrival { seal: Some(SEAL.into()), ..other.clone() };
    assert_eq!(judge(&submitted, &first), begin(1, 1), "its own message was perhaps never published");
    assert_eq!(judge(&submitted, &its_own), begin(1, 1));
    let of = RunId::parse("r").unwrap();
    let mut duplicate = after(submitted.clone(), Settlement::Duplicate(of));
    assert_eq!(judge(&duplicate, &its_own), Verdict::PublishEnd, "ended by a job of its key");
    duplicate.held_by = Some(other.holding.clone());
    assert_eq!(judge(&duplicate, &its_own), Verdict::CarryOut);
    assert_eq!(judge(&duplicate, &first), Verdict::Drop);
    submitted.published = true;
    assert_eq!(judge(&submitted, &first), Verdict::Drop);
    assert_eq!(judge(&submitted, &its_own), begin(1, 1));
}

#[test]
fn what_a_message_says_of_its_run_is_believed_with_the_seal_alone() {
    let retrying = failed(running(&arrival(7, 1, 1, 1, false)));
    let second = arrival(12, 1, 1, 2, true);
    let judge = |run: Option<&Run>, seal: Option<&str>, arrival: &Arrival| {
        on_arrival(run, &Arrival { seal: seal.map(SmolStr::from), has_derived_id: false, ..arrival.clone() })
    };
    assert_eq!(judge(Some(&retrying), Some(SEAL), &second), Verdict::Begin { round: 1, attempt: 2 });
    assert_eq!(judge(Some(&retrying), Some("another"), &second), Verdict::StaleRecord, "of an earlier run, perhaps");
    assert_eq!(
        judge(Some(&retrying), Some("another"), &Arrival { has_aged: true, ..second.clone() }),
        Verdict::Unproven
    );
    assert_eq!(judge(Some(&retrying), None, &second), Verdict::Unproven);
    let aged = Arrival { has_aged: true, ..second.clone() };
    assert_eq!(judge(None, Some(SEAL), &second), Verdict::StaleRecord, "perhaps it was read too early");
    assert_eq!(judge(None, Some(SEAL), &aged), Verdict::Unproven);
    assert_eq!(judge(None, None, &second), Verdict::Unproven);
    let unsealed = Run { seal: SmolStr::default(), ..retrying.clone() };
    assert_eq!(judge(Some(&unsealed), Some(""), &aged), Verdict::Unproven);
    let third = Arrival { attempt: 3, ..second };
    assert_eq!(judge(Some(&unsealed), Some(SEAL), &third), Verdict::StaleRecord, "it has no seal yet, perhaps");
    assert_eq!(judge(Some(&unsealed), Some(SEAL), &Arrival { attempt: 3, ..aged }), Verdict::Unproven);
    assert_eq!(judge(Some(&retrying), Some(SEAL), &third), Verdict::StaleRecord);
    let forged = Arrival { seal: Some("another".into()), has_aged: true, ..arrival(9, 1, 1, 1, false) };
    let done = after(running(&arrival(7, 1, 1, 1, false)), Settlement::Complete(RunResult::None));
    let other_time = Run { origin: at(50), ..done };
    assert_eq!(on_arrival(Some(&other_time), &forged), Verdict::Unproven, "it is not a run of another stream");
}

#[test]
fn a_lease_is_lost_by_time_or_with_its_holder() {
    let run = running(&arrival(7, 1, 1, 1, false));
    let lost = |holder, now| lease_is_lost(&run, holder, at(now), Duration::from_millis(1_000));
    assert!(!lost(HolderStatus::Holds, 1_000_000) && !lost(HolderStatus::NeverStarted, 1_000_000));
    assert!(lost(HolderStatus::Gone, 201));
    assert!(!lost(HolderStatus::Silent(None), 1_199) && lost(HolderStatus::Silent(None), 1_200));
    assert!(!lost(HolderStatus::Silent(Some(at(900))), 1_899) && lost(HolderStatus::Silent(Some(at(900))), 1_900));
    assert!(!lost(HolderStatus::Silent(Some(at(100))), 1_199), "the start is a later sign");
}

#[test]
fn a_repeated_submission_does_what_a_dead_node_could_not() {
    let noted = Run::new(&job(), 3, at(100));
    assert_eq!(on_repeat(&noted), Repeat::Publish);
    assert_eq!(on_repeat(&Run { published: true, ..noted.clone() }), Repeat::Nothing);
    let mut scheduled = after(noted, Settlement::Schedule(at(900)));
    assert_eq!(on_repeat(&scheduled), Repeat::Schedule(at(900)));
    scheduled.held_by = Some(arrival(7, 1, 1, 1, false).holding);
    assert_eq!(on_repeat(&scheduled), Repeat::Nothing, "a message carries it, and comes again");
    let run = running(&arrival(7, 1, 1, 1, false));
    assert_eq!(on_repeat(&run), Repeat::Nothing);
    let mut dead = after(run, Settlement::Dead(Failure::new(ErrorKind::Permanent, "x")));
    assert_eq!(on_repeat(&dead), Repeat::Nothing);
    dead.replay(at(400));
    assert_eq!(on_repeat(&dead), Repeat::Nothing, "the dead letter is there until its job is published");
}

#[test]
fn a_dead_letter_stands_until_its_run_is_past_it() {
    let failure = Failure::new(ErrorKind::Permanent, "x");
    let mut run = after(running(&arrival(7, 1, 1, 1, false)), Settlement::Dead(failure));
    assert_eq!(on_dead_letter(None, 1, at(100)), DeadLetterVerdict::Stands);
    assert_eq!(on_dead_letter(Some(&run), 1, at(100)), DeadLetterVerdict::Stands);
    assert_eq!(on_dead_letter(Some(&run), 1, at(200)), DeadLetterVerdict::StaleRecord, "of an earlier run of its id");
    assert_eq!(on_dead_letter(Some(&run), 1, at(50)), DeadLetterVerdict::OtherRun);
    run.replay(at(400));
    assert_eq!(on_dead_letter(Some(&run), 1, at(100)), DeadLetterVerdict::Replayed);
    let replayed = arrival(12, 1, 2, 1, true);
    assert_eq!(on_arrival(Some(&run), &replayed), Verdict::Begin { round: 2, attempt: 1 });
    run.begin(1, &"a".into(), at(500));
    run.held_by = Some(replayed.holding.clone());
    assert_eq!(on_dead_letter(Some(&run), 1, at(100)), DeadLetterVerdict::Stale);
    let mut run = after(run, Settlement::Dead(Failure::new(ErrorKind::Permanent, "x")));
    assert_eq!(on_dead_letter(Some(&run), 2, at(100)), DeadLetterVerdict::Stands);
    assert_eq!(
        on_dead_letter(Some(&run), 3, at(100)),
        DeadLetterVerdict::StaleRecord,
        "of a round that the record does not know yet"
    );
    run.discard(at(600));
    assert_eq!(on_dead_letter(Some(&run), 2, at(100)), DeadLetterVerdict::Stale);
    let early = running(&arrival(7, 1, 1, 1, false));
    assert_eq!(on_dead_letter(Some(&early), 1, at(100)), DeadLetterVerdict::StaleRecord);
}

#[test]
fn a_sequence_of_a_stream_made_anew_is_another_run() {
    let old = after(running(&arrival(7, 1, 1, 1, false)), Settlement::Complete(RunResult::None));
    let mut new = arrival(7, 1, 1, 1, false);
    new.holding.message.at = at(5_000);
    assert_eq!(on_arrival(Some(&old), &new), Verdict::BeginAnew);
    let unfinished = failed(running(&arrival(7, 1, 1, 1, false)));
    assert_eq!(on_arrival(Some(&unfinished), &new), Verdict::Occupied);
}

#[test]
fn a_put_back_attempt_starts_again_under_its_number() {
    let mut run = after(running(&arrival(7, 1, 1, 1, false)), Settlement::Release);
    run.begin(run.next_attempt(), &"b".into(), at(400));
    assert_eq!((run.attempt, run.attempts.len(), run.attempts[0].start), (1, 1, 2));
}
