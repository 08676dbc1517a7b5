//! Seeds one breach in each history, and tests the sound history beside it where the difference is small.

use std::time::Duration;

use super::super::*;
use super::from_words::{TENANT, add_dead_letter, add_run, at, call, record};

/// The breaches in a history of one run, written in words; only its events are judged.
fn found(words: &str) -> Vec<Kind> {
    let mut history = History::default();
    history.rules.records_kept = false;
    add_run(&mut history, "a", words);
    if words.rsplit(';').next().unwrap().contains("dlq") {
        add_dead_letter(&mut history, "a", if words.contains("round 2") { 2 } else { 1 });
    }
    kinds(&history)
}

fn kinds(history: &History) -> Vec<Kind> {
    let found = history.check();
    assert!(found.iter().all(|violation| violation.run_id == "a"), "{found:?}");
    found.into_iter().map(|violation| violation.kind).collect()
}

#[test]
fn sound_lives_pass() {
    for words in [
        "enqueued; started 1; completed",
        "enqueued; started 1; progress; progress #2; completed",
        "enqueued; started 1; failed retryable +1; started 2; failed panic +1; started 3; failed retryable; dlq retryable",
        "enqueued; started 1; failed permanent; dlq permanent; discarded",
        "enqueued; started 1; failed permanent; dlq permanent; round 2; replayed; enqueued; started 1; completed",
        "scheduled 0 +2; enqueued @5; started 1; completed",
        "scheduled 0 +9; scheduled 0 #moved +1; enqueued @5; started 1; completed",
        "scheduled 0 +9; cancelled",
        "scheduled 0 +9; expired",
        "cancelled",
        "enqueued; cancelled",
        "enqueued; started 1; cancelled; progress #late",
        "enqueued; expired",
        "enqueued; duplicate",
        "enqueued; deferred 0 rate_limited; deferred 0 #2; started 1; completed",
        "enqueued; started 1; released; started 1 #again; completed",
        "enqueued; started 1; deferred 1 snoozed; started 1 #again; failed retryable +1; started 2; completed",
        "enqueued; deferred 0; failed 1 no_handler +1; started 2; completed",
        "enqueued; started 1; failed lease_expired +1; started 2; completed @9; completed @9",
        "enqueued; dlq timeout",
        "enqueued; started 1; failed retryable +9; dlq timeout",
        "dlq invalid",
    ] {
        assert_eq!(found(words), [], "{words}");
    }
}

#[test]
fn the_same_event_published_again_is_no_breach() {
    let mut history = History::default();
    history.rules.records_kept = false;
    add_run(&mut history, "a", "enqueued; started 1; completed");
    history.events.push(history.events[1].clone());
    assert_eq!(kinds(&history), []);
}

#[test]
fn broken_lives_are_found() {
    for (words, kind) in [
        ("enqueued; started 1", Kind::NoEnd),
        ("enqueued", Kind::NoEnd),
        ("enqueued; started 1; failed retryable +1", Kind::NoEnd),
        ("enqueued; started 1; completed; dlq", Kind::SecondEnd),
        ("enqueued; started 1; completed; completed #2", Kind::SecondEnd),
        ("enqueued; started 1; cancelled; completed", Kind::SecondEnd),
        ("enqueued; started 1; failed x; dlq; discarded; discarded #2", Kind::SecondEnd),
        ("enqueued; cancelled; started 1", Kind::AfterEnd),
        ("enqueued; started 1; completed; failed 1 panic", Kind::AfterEnd),
        ("started 1; completed", Kind::Missing),
        ("enqueued; completed 1", Kind::Missing),
        ("enqueued; failed 1 retryable +1; started 2; completed", Kind::Missing),
        ("enqueued; started 1; dlq", Kind::Missing),
        ("enqueued; started 1; started 2; completed", Kind::Missing),
        ("enqueued; deferred 0 snoozed; started 1; completed", Kind::Missing),
        ("dlq permanent", Kind::Missing),
        ("expired", Kind::Missing),
        ("duplicate", Kind::Missing),
        ("enqueued; started 1; failed x; dlq; round 2; enqueued; started 1; failed x; dlq", Kind::Missing),
        ("started 1; enqueued; completed", Kind::OutOfOrder),
        ("enqueued; released 0; started 1; completed", Kind::OutOfOrder),
        ("enqueued; progress 1; started 1; completed", Kind::OutOfOrder),
        ("enqueued; started 1; scheduled; completed", Kind::OutOfOrder),
        ("enqueued; started 1; expired", Kind::OutOfOrder),
        ("enqueued; started 1; failed x +1; duplicate", Kind::OutOfOrder),
        ("enqueued; started 1; discarded", Kind::OutOfOrder),
        ("enqueued; started 1; failed x; discarded", Kind::Missing),
        ("replayed; enqueued; started 1; completed", Kind::OutOfOrder),
        ("enqueued; started 1; failed x; dlq; round 2; enqueued; replayed; cancelled", Kind::OutOfOrder),
        ("enqueued; enqueued #2; started 1; completed", Kind::Doubled),
        ("enqueued; started 1; started 1 #2; completed", Kind::Doubled),
        ("enqueued; started 1; failed x +1; failed 1 x #2 +1; started 2; completed", Kind::Doubled),
        ("scheduled 0 @1 +4; scheduled 0 #2 @2 +3; enqueued @9; started 1; completed", Kind::Doubled),
        ("enqueued; started 1; vanished; completed", Kind::Unknown),
        ("enqueued; started 2; completed", Kind::AttemptGap),
        ("enqueued; started 1; failed x +1; started 3; completed", Kind::AttemptGap),
        ("enqueued; started 1; failed x +1; started 1 #2; completed", Kind::AttemptGap),
        ("enqueued; started 1; failed 1 x +9; started 2 @11; completed", Kind::Early),
        ("scheduled 0 @1 +9; enqueued @9; started 1 @12; completed", Kind::Early),
        ("enqueued; started 1; failed x; started 2; completed", Kind::Unannounced),
        ("round 2; replayed; enqueued; started 1; completed", Kind::RoundOutOfTurn),
        ("enqueued; started 1; completed; round 2; replayed; enqueued; started 1; completed", Kind::RoundOutOfTurn),
        (
            "enqueued; started 1; failed x; dlq; discarded; round 2; replayed; enqueued; started 1; failed x; dlq",
            Kind::RoundOutOfTurn,
        ),
        ("enqueued; started 1; failed x; dlq; round 3; replayed; enqueued; started 1; completed", Kind::RoundOutOfTurn),
    ] {
        let mut kinds = found(words);
        // Where the run is not dead after all, the dead letter that `found` gave it is not one too many.
        kinds.retain(|found| *found != Kind::DeadLetterUnexpected || kind == Kind::DeadLetterUnexpected);
        assert_eq!(kinds, [kind], "{words}");
    }
}

#[test]
fn an_attempt_above_the_limit_is_found() {
    let four = "enqueued; started 1; failed x +1; started 2; failed x +1; started 3; failed x +1; started 4; completed";
    // Two breaches: the retry announced by the last attempt, and the attempt that followed it.
    assert_eq!(found(four), [Kind::AboveLimit, Kind::AboveLimit]);
}

#[test]
fn a_hurried_run_may_start_early_and_clocks_may_differ() {
    let words = "enqueued; started 1; failed 1 x +9; started 2 @11; completed";
    let mut history = History::default();
    history.rules.records_kept = false;
    add_run(&mut history, "a", words);
    history.rules.hurried.insert((TENANT.to_owned(), "a".to_owned()));
    assert_eq!(kinds(&history), []);
    history.rules.hurried.clear();
    history.rules.clock_skew = Duration::from_millis(999);
    assert_eq!(kinds(&history), [Kind::Early]);
    history.rules.clock_skew = Duration::from_secs(1);
    assert_eq!(kinds(&history), []);
}

#[test]
fn one_id_with_two_contents_is_found() {
    let mut history = History::default();
    history.rules.records_kept = false;
    add_run(&mut history, "a", "enqueued; started 1; failed 1 x +1; started 2; completed");
    let rewrite: [fn(&mut crate::Event); 3] =
        [|event| event.retry_at = Some(at(40)), |event| event.at = at(50), |event| event.node = Some("n2".to_owned())];
    for rewrite in rewrite {
        let (mut history, mut again) = (history.clone(), history.events[2].clone());
        rewrite(&mut again.event);
        history.events.push(again);
        assert_eq!(kinds(&history), [Kind::Rewritten]);
    }
}

#[test]
fn a_lost_run_is_found() {
    let mut history = History::default();
    add_run(&mut history, "a", "");
    assert_eq!(kinds(&history), [Kind::Lost]);
    record(&mut history, "a", "running", (1, 1), &[]);
    assert_eq!(kinds(&history), [Kind::NoEnd]);
    history.records[0].state = "completed".to_owned();
    assert_eq!(kinds(&history), [Kind::Missing]);
}

#[test]
fn a_run_of_which_nothing_is_kept_must_at_least_have_run() {
    let mut history = History::default();
    add_run(&mut history, "a", "");
    history.accepted[0].kept = Kept::Failures;
    assert_eq!(kinds(&history), []);
    history.rules.calls_complete = true;
    assert_eq!(kinds(&history), [Kind::Lost]);
    history.calls = vec![call("a", 1, 1, None)];
    assert_eq!(kinds(&history), [Kind::Lost], "cut off is not done");
    history.calls = vec![call("a", 1, 1, Some(2))];
    assert_eq!(kinds(&history), []);
}

#[test]
fn a_run_without_a_receipt_is_judged_all_the_same() {
    let mut history = History::default();
    add_run(&mut history, "a", "enqueued; started 1");
    history.accepted.clear();
    assert_eq!(kinds(&history), [Kind::NoEnd]);
}

const FAILS_ONCE: &str = "enqueued; started 1; failed panic +1; started 2; completed";

#[test]
fn a_record_that_agrees_passes_and_a_missing_one_is_found() {
    let mut history = History::default();
    add_run(&mut history, "a", FAILS_ONCE);
    assert_eq!(kinds(&history), [Kind::RecordMissing]);
    record(&mut history, "a", "completed", (1, 2), &[(1, 1, "panic")]);
    assert_eq!(kinds(&history), []);
}

#[test]
fn a_record_that_says_something_else_is_found() {
    for (state, place, failed) in [
        ("dead", (1, 2), vec![(1, 1, "panic")]),
        ("running", (1, 2), vec![(1, 1, "panic")]),
        ("completed", (2, 2), vec![(1, 1, "panic")]),
        ("completed", (1, 3), vec![(1, 1, "panic")]),
        ("completed", (1, 2), vec![]),
        ("completed", (1, 2), vec![(1, 1, "timeout")]),
        ("completed", (1, 2), vec![(1, 1, "panic"), (1, 2, "panic")]),
    ] {
        let mut history = History::default();
        add_run(&mut history, "a", FAILS_ONCE);
        record(&mut history, "a", state, place, &failed);
        assert_eq!(kinds(&history), [Kind::RecordDisagrees], "{state} {place:?} {failed:?}");
    }
}

#[test]
fn a_record_that_ended_by_another_error_is_found() {
    let mut history = History::default();
    add_run(&mut history, "a", "enqueued; started 1; failed permanent; dlq permanent");
    add_dead_letter(&mut history, "a", 1);
    record(&mut history, "a", "dead", (1, 1), &[(1, 1, "permanent")]);
    assert_eq!(kinds(&history), []);
    history.records[0].error = Some(crate::wire::Failure { kind: "panic".to_owned(), message: String::new() });
    assert_eq!(kinds(&history), [Kind::RecordDisagrees]);
}

#[test]
fn dead_letters_must_be_there_once_for_dead_runs_alone() {
    let mut history = History::default();
    history.rules.records_kept = false;
    add_run(&mut history, "a", "enqueued; started 1; failed permanent; dlq permanent");
    assert_eq!(kinds(&history), [Kind::DeadLetterMissing]);
    add_dead_letter(&mut history, "a", 1);
    assert_eq!(kinds(&history), []);
    add_dead_letter(&mut history, "a", 1);
    assert_eq!(kinds(&history), [Kind::DeadLetterDoubled]);
    history.dead_letters[1].round = Some(2);
    assert_eq!(kinds(&history), [Kind::DeadLetterUnexpected]);

    add_run(&mut history, "a", "discarded");
    history.dead_letters.truncate(1);
    assert_eq!(kinds(&history), [Kind::DeadLetterUnexpected], "discarded, its dead letter must be gone");
}

/// A run whose first attempt holds from second 2 to 3 by the log, with these calls.
fn with_calls(calls: Vec<Call>) -> History {
    let mut history = History { calls, ..History::default() };
    history.rules.records_kept = false;
    add_run(&mut history, "a", "enqueued; started 1 @2; failed lease_expired @6 +1; started 2 @8; completed @9");
    history
}

#[test]
fn calls_must_not_overlap_while_the_lease_is_held() {
    assert_eq!(kinds(&with_calls(vec![call("a", 1, 2, Some(3)), call("a", 2, 8, Some(9))])), []);
    // Its lease was lost at 6; the handler may go on until 20 without a breach.
    assert_eq!(kinds(&with_calls(vec![call("a", 1, 2, Some(20)), call("a", 2, 8, Some(9))])), []);
    // The second began while the first held the run.
    assert_eq!(kinds(&with_calls(vec![call("a", 1, 2, Some(20)), call("a", 2, 5, Some(9))])), [Kind::Overlap]);
    // Three calls at once make three overlaps: two with the first call and one with the second.
    let three = vec![call("a", 1, 2, Some(5)), call("a", 1, 3, Some(5)), call("a", 2, 4, Some(9))];
    assert_eq!(kinds(&with_calls(three)), [Kind::Overlap; 3]);
    // A process that died has written no end.
    assert_eq!(kinds(&with_calls(vec![call("a", 1, 2, None), call("a", 2, 5, Some(9))])), []);
}

#[test]
fn a_lease_ends_with_its_node_or_its_server() {
    let mut history = with_calls(vec![call("a", 1, 2, Some(20)), call("a", 1, 4, Some(6)), call("a", 2, 8, Some(9))]);
    assert_eq!(kinds(&history), [Kind::Overlap]);
    for (node, sound) in [(Some("n1"), true), (None, true), (Some("n2"), false)] {
        history.rules.interruptions = vec![Interruption { node: node.map(str::to_owned), at: at(3) }];
        assert_eq!(history.check().is_empty(), sound, "{node:?}");
    }
    // A remote handler does not know its node; the log does.
    history.calls[0].node = None;
    history.rules.interruptions = vec![Interruption { node: Some("n1".to_owned()), at: at(3) }];
    assert_eq!(kinds(&history), []);
}

#[test]
fn a_call_of_an_unpublished_attempt_is_found() {
    let calls = vec![call("a", 1, 2, Some(3)), call("a", 2, 8, Some(9)), call("a", 3, 9, Some(13))];
    assert_eq!(kinds(&with_calls(calls)), [Kind::CallUnpublished]);
}

#[test]
fn a_completion_without_a_call_is_found() {
    let mut history = with_calls(vec![call("a", 1, 2, Some(3)), call("a", 2, 8, Some(9))]);
    history.rules.calls_complete = true;
    assert_eq!(kinds(&history), []);
    history.calls[1].end = None;
    assert_eq!(kinds(&history), [Kind::NotCalled]);
}

#[test]
#[should_panic(
    expected = "the history has 1 violations (NoEnd 1)\nNoEnd acme/a: round 1: no end was published (attempt 1 started)"
)]
fn an_unsound_history_is_reported_in_words() {
    let mut history = History::default();
    add_run(&mut history, "a", "enqueued; started 1");
    history.assert_sound();
}

/// Three runs of one limit of two, each called once over these seconds.
fn limited(spans: [(i64, Option<i64>); 3]) -> History {
    let mut history = History::default();
    history.rules.records_kept = false;
    for (run, (start, end)) in ["a", "b", "c"].into_iter().zip(spans) {
        add_run(&mut history, run, &format!("enqueued; started 1 @{start}; completed @90"));
        history.calls.push(call(run, 1, start, end));
    }
    let runs = ["a", "b", "c"].map(|run| (TENANT.to_owned(), run.to_owned()));
    history.limits = vec![Limit { name: "key k".to_owned(), at_most: 2, outlasts_nodes: true, runs: runs.into() }];
    history
}

#[test]
fn more_calls_at_work_than_a_limit_allows_are_found() {
    let kinds = |history: History| history.check().into_iter().map(|found| found.kind).collect::<Vec<_>>();
    assert_eq!(kinds(limited([(2, Some(5)), (3, Some(9)), (5, Some(8))])), []);
    assert_eq!(kinds(limited([(2, Some(6)), (3, Some(9)), (5, Some(8))])), [Kind::AboveConcurrency]);
    // A call that died with its process ended at an unknown moment.
    assert_eq!(kinds(limited([(2, None), (3, Some(9)), (5, Some(8))])), []);
    // The death of its node does not end a handler elsewhere.
    let mut history = limited([(2, Some(6)), (3, Some(9)), (5, Some(8))]);
    history.rules.interruptions = vec![Interruption { node: Some("n1".to_owned()), at: at(4) }];
    assert_eq!(kinds(history), [Kind::AboveConcurrency]);
    // But its slot goes with its node, unless the limit is strict.
    for (died, is_found) in [(4, false), (6, true)] {
        let mut history = limited([(2, Some(8)), (3, Some(9)), (5, Some(8))]);
        history.limits[0].outlasts_nodes = false;
        history.rules.interruptions = vec![Interruption { node: Some("n1".to_owned()), at: at(died) }];
        assert_eq!(kinds(history) == [Kind::AboveConcurrency], is_found, "died at {died}");
    }
    let mut other = limited([(2, Some(6)), (3, Some(9)), (5, Some(8))]);
    other.limits[0].at_most = 3;
    assert_eq!(kinds(other), []);
}

/// Three runs in order, of which the second ends at that second, each called once at its second.
fn ordered(starts: [i64; 3], second_ends: i64) -> History {
    let mut history =
        limited([(starts[0], Some(starts[0])), (starts[1], Some(starts[1])), (starts[2], Some(starts[2]))]);
    history.limits.clear();
    history.events.clear();
    for ((run, start), end) in ["a", "b", "c"].into_iter().zip(starts).zip([starts[0] + 1, second_ends, starts[2] + 1])
    {
        add_run(&mut history, run, &format!("enqueued; started 1 @{start}; completed @{end}"));
    }
    let runs = ["a", "b", "c"].map(|run| (TENANT.to_owned(), run.to_owned()));
    history.orders = vec![Ordered { name: "key k".to_owned(), runs: runs.into() }];
    history
}

#[test]
fn a_run_that_overtakes_another_of_its_key_is_found() {
    let kinds = |history: History| history.check().into_iter().map(|found| found.kind).collect::<Vec<_>>();
    assert_eq!(kinds(ordered([2, 4, 8], 6)), []);
    // The one before it has not ended, or was called again, though the one before that is over.
    assert_eq!(kinds(ordered([2, 4, 8], 9)), [Kind::Overtakes]);
    assert_eq!(kinds(ordered([2, 9, 8], 10)), [Kind::Overtakes]);
    assert_eq!(kinds(ordered([9, 2, 4], 3)), [Kind::Overtakes, Kind::Overtakes]);
    let mut history = ordered([2, 4, 8], 6);
    history.orders[0].runs.retain(|(_, run)| run != "b");
    history.calls[1].start = at(9);
    assert!(!kinds(history).contains(&Kind::Overtakes), "others do not count");
}

#[test]
fn a_handler_that_works_beyond_its_time_limit_does_not_count() {
    let mut history = limited([(2, Some(30)), (10, Some(20)), (11, Some(18))]);
    assert_eq!(history.check()[0].kind, Kind::AboveConcurrency);
    history.events.retain(|logged| logged.event.run_id != "a");
    history.accepted.retain(|accepted| accepted.run_id != "a");
    add_run(&mut history, "a", "enqueued; started 1 @2; failed timeout @9 +1; started 2 @40; completed @41");
    assert_eq!(history.check(), []);
}

#[test]
fn what_starts_while_a_pause_holds_is_found() {
    let pause = |queue: Option<&str>, job_type: Option<&str>, from: i64, until: i64| {
        let (queue, job_type) = (queue.map(str::to_owned), job_type.map(str::to_owned));
        Pause { queue, job_type, from: at(from), until: at(until) }
    };
    for (pause, is_found) in [
        (pause(Some("main"), None, 4, 8), true),
        (pause(None, Some("work"), 4, 8), true),
        (pause(Some("main"), Some("work"), 4, 8), true),
        (pause(Some("other"), None, 4, 8), false),
        (pause(Some("main"), Some("other"), 4, 8), false),
        (pause(Some("main"), None, 5, 8), false),
        (pause(Some("main"), None, 2, 5), false),
    ] {
        let kinds_wanted = if is_found { vec![Kind::StartedWhilePaused] } else { Vec::new() };
        let mut history = History::default();
        history.rules.records_kept = false;
        add_run(&mut history, "a", "enqueued; started 1 @5; completed @9");
        history.pauses = vec![pause];
        assert_eq!(kinds(&history), kinds_wanted, "{:?}", history.pauses);
        // With calls, these are judged: they are what a handler saw.
        history.calls = vec![call("a", 1, 5, Some(6))];
        assert_eq!(kinds(&history), kinds_wanted, "{:?}", history.pauses);
    }
}

/// A schedule of each second from 2 to `last`, with a run for each of these times, published at these seconds.
fn recurring(last: i64, runs: &[(i64, i64)]) -> History {
    let mut history = History::default();
    history.rules.records_kept = false;
    for (due, published) in runs {
        let run = format!("s-{}", at(*due).as_millisecond());
        add_run(
            &mut history,
            &run,
            &format!("enqueued @{published}; started 1 @{published}; completed @{}", published + 2),
        );
    }
    let (tenant, id) = (TENANT.to_owned(), "s".to_owned());
    let (every, first) = (Duration::from_secs(1), at(2));
    history.recurring = vec![Recurring { tenant, id, every, first, last: at(last), leaves_out: false }];
    history
}

#[test]
fn a_schedule_that_misses_a_time_or_fires_at_another_or_early_is_found() {
    let kinds = |history: &History| history.check().into_iter().map(|found| found.kind).collect::<Vec<_>>();
    let whole = [(2, 2), (3, 4), (4, 4)];
    assert_eq!(kinds(&recurring(4, &whole)), []);
    let gap = [whole[0], whole[2]];
    assert_eq!(kinds(&recurring(4, &gap)), [Kind::FiringMissing]);
    let mut leaves_out = recurring(4, &gap);
    leaves_out.recurring[0].leaves_out = true;
    assert_eq!(kinds(&leaves_out), [], "one ended as the next began");
    let mut overlapping = recurring(4, &whole);
    overlapping.recurring[0].leaves_out = true;
    assert_eq!(kinds(&overlapping), [Kind::FiringOverlaps], "the second ran until 6, the third began at 4");
    assert_eq!(kinds(&recurring(3, &whole)), [Kind::FiringUnplanned]);
    let mut early = recurring(4, &[(2, 2), (3, 2), (4, 4)]);
    assert_eq!(kinds(&early), [Kind::Early]);
    early.rules.clock_skew = Duration::from_secs(1);
    assert_eq!(kinds(&early), []);
    // A run of another tenant, or of a schedule with a longer name, is none of this one.
    let mut other = recurring(4, &whole);
    add_run(&mut other, "s-t-5000", "enqueued; started 1; completed");
    assert_eq!(kinds(&other), []);
}

#[test]
fn every_kind_of_breach_is_seeded_here() {
    let tests = concat!(include_str!("seeded.rs"), include_str!("leases.rs"));
    for kind in Kind::ALL {
        let asserted = format!("Kind::{kind:?}");
        assert!(tests.matches(&asserted).count() > 0, "{kind:?} ({}) has no test", kind.meaning());
    }
}

#[test]
fn an_erased_run_has_no_dead_letter() {
    let mut history = History::default();
    add_run(&mut history, "a", "enqueued; started 1; failed permanent; dlq permanent");
    record(&mut history, "a", "dead", (1, 1), &[(1, 1, "permanent")]);
    assert_eq!(kinds(&history), [Kind::DeadLetterMissing]);
    history.records[0].rest.insert("erased_at".to_owned(), at(9).to_string().into());
    assert_eq!(kinds(&history), []);
}
