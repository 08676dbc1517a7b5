//! Tests the judgements that depend on the lease: calls that come too late, overlaps on frozen nodes, leases called
//! lost too soon. The lease is four seconds, so another node may take a silent node's job from two seconds on.

use std::time::Duration;

use super::super::*;
use super::from_words::{add_run, at, call, call_on, record};
use crate::wire::Tried;

fn history_of(words: &str) -> History {
    let mut history = History::default();
    history.rules.records_kept = false;
    history.rules.lease = Some(Duration::from_secs(4));
    add_run(&mut history, "a", words);
    history
}

fn kinds(history: &History) -> Vec<Kind> {
    history.check().into_iter().map(|violation| violation.kind).collect()
}

fn silent(node: Option<&str>, from: i64, until: i64) -> Silence {
    Silence { node: node.map(str::to_owned), from: at(from), until: at(until) }
}

fn killed(node: Option<&str>, second: i64) -> Interruption {
    Interruption { node: node.map(str::to_owned), at: at(second) }
}

#[test]
fn a_call_after_the_end_is_found() {
    for (end, late) in [("completed", 1), ("cancelled", 1), ("failed x; dlq", 2)] {
        let mut history = history_of(&format!("enqueued; started 1 @2; {end}"));
        history.rules.lease = None;
        if end.ends_with("dlq") {
            super::from_words::add_dead_letter(&mut history, "a", 1);
        }
        history.calls = vec![call("a", 1, 2, Some(3)), call("a", 1, 3 + late, Some(9))];
        assert_eq!(kinds(&history), [Kind::CallAfterEnd], "{end}");
        // A handler needs time to write its call down, and clocks may differ: within that time a late call is no
        // breach.
        history.rules.clock_skew = Duration::from_millis(800);
        assert_eq!(kinds(&history), [], "{end}");
    }
}

#[test]
fn a_request_and_the_end_may_cross_on_their_way() {
    let mut history = history_of("enqueued; started 1 @2; cancelled @4");
    history.calls = vec![call("a", 1, 8, Some(9))];
    assert_eq!(kinds(&history), []);
    // A second call of that start was sent after the first.
    history.calls.insert(0, call("a", 1, 2, Some(3)));
    assert_eq!(kinds(&history), [Kind::CallAfterEnd]);
    // A start that was logged with the end may not have been sent before it.
    history.calls.remove(0);
    history.events.iter_mut().for_each(|logged| logged.sequence = 1);
    assert_eq!(kinds(&history), [Kind::CallAfterEnd]);
}

#[test]
fn the_record_may_have_the_end_before_it_was_published() {
    let mut history = history_of("enqueued; started 1 @2; completed @8");
    history.calls = vec![call("a", 1, 2, Some(3)), call("a", 1, 7, Some(8))];
    assert_eq!(kinds(&history), []);
    record(&mut history, "a", "completed", (1, 1), &[]);
    history.records[0].ended_at = Some(at(3));
    assert_eq!(kinds(&history), [Kind::CallAfterEnd]);
}

#[test]
fn the_next_round_is_not_the_end_of_the_last() {
    let mut history =
        history_of("enqueued; started 1; failed x; dlq @4; round 2; replayed @5; enqueued; started 1 @7; completed @8");
    history.calls = vec![call("a", 1, 2, Some(3)), Call { round: 2, ..call("a", 1, 7, Some(8)) }];
    assert_eq!(kinds(&history), []);
}

#[test]
fn a_call_that_died_with_its_node_need_not_be_published() {
    let mut history = history_of("enqueued @2; cancelled @5");
    history.calls = vec![call("a", 1, 3, Some(4))];
    assert_eq!(kinds(&history), [Kind::CallUnpublished]);
    history.rules.interruptions = vec![killed(Some("n1"), 4)];
    assert_eq!(kinds(&history), []);
    history.rules.interruptions = vec![killed(Some("n2"), 4)];
    assert_eq!(kinds(&history), [Kind::CallUnpublished]);
    // If nobody knows whose call it was, it may be that of a node which died at once, and of no other.
    history.calls[0].node = None;
    assert_eq!(kinds(&history), []);
    for second in [2, 5] {
        history.rules.interruptions = vec![killed(Some("n2"), second)];
        assert_eq!(kinds(&history), [Kind::CallUnpublished], "{second}");
    }
}

#[test]
fn what_silent_servers_held_back_comes_late() {
    let mut history = history_of("enqueued; started 1 @2; failed timeout @4 +1; started 2 @6; completed @7");
    history.calls = vec![call("a", 2, 6, Some(7)), call("a", 1, 13, Some(14))];
    assert_eq!(kinds(&history), [Kind::CallAfterEnd]);
    history.rules.silences = vec![silent(None, 3, 13)];
    assert_eq!(kinds(&history), []);
}

#[test]
fn what_silent_servers_held_back_overlaps_nothing() {
    let mut history = history_of("enqueued; started 1 @2; failed timeout @4 +1; started 2 @6; completed @9");
    history.calls = vec![call("a", 1, 5, Some(8)), call("a", 2, 6, Some(9))];
    assert_eq!(kinds(&history), [Kind::Overlap]);
    history.rules.silences = vec![silent(None, 3, 5)];
    assert_eq!(kinds(&history), []);
    // Its attempt was not over when the call began, so the call held the run.
    history.calls[0] = call("a", 1, 3, Some(8));
    history.calls[1] = call_on("n2", "a", 1, 3, Some(5));
    assert_eq!(kinds(&history), [Kind::Overlap]);
}

/// `n1` begins attempt 1 and is frozen from second 3 to 9; `n2` finds the lease lost and completes the run.
fn taken_over(thawed_call: Option<Call>) -> History {
    let mut history = history_of("enqueued; started 1 @2; failed lease_expired @7 +1; started 2 @8; completed @12");
    history.calls = vec![call("a", 1, 2, Some(3)), call_on("n2", "a", 2, 8, Some(12))];
    history.calls.extend(thawed_call);
    history.rules.silences = vec![silent(Some("n1"), 3, 9)];
    history
}

#[test]
fn a_call_by_a_thawed_node_of_what_another_has_taken_over_is_found() {
    assert_eq!(kinds(&taken_over(None)), []);
    // While the other node works on it, and after the run's end.
    assert_eq!(kinds(&taken_over(Some(call("a", 1, 9, Some(10))))), [Kind::StaleStart]);
    assert_eq!(kinds(&taken_over(Some(call("a", 2, 10, None)))), [Kind::StaleStart]);
    assert_eq!(kinds(&taken_over(Some(call("a", 1, 13, Some(14))))), [Kind::StaleStart]);
    // The other node's handler need not have written its calls down.
    let mut history = taken_over(Some(call("a", 1, 13, Some(14))));
    history.calls.remove(1);
    assert_eq!(kinds(&history), [Kind::StaleStart]);
    // Nor may it say which node called it.
    history.calls[1].node = None;
    assert_eq!(kinds(&history), [Kind::StaleStart]);
    // Requests that were on their way are no more than the node has workers.
    history.rules.on_their_way = 1;
    assert_eq!(kinds(&history), []);
    history.calls.push(call("a", 1, 13, None));
    assert_eq!(kinds(&history), [Kind::StaleStart, Kind::StaleStart]);
    // This long after its freeze, the freeze is no longer the cause.
    let mut history = taken_over(Some(call("a", 1, 15, Some(16))));
    assert_eq!(kinds(&history), [Kind::CallAfterEnd]);
    history.rules.silences.push(silent(Some("n1"), 10, 11));
    assert_eq!(kinds(&history), [Kind::StaleStart], "two in a row are one");
    // A node that was not frozen has no excuse either.
    let mut history = taken_over(Some(call_on("n3", "a", 2, 13, Some(14))));
    assert_eq!(kinds(&history), [Kind::CallAfterEnd]);
    history.calls.pop();
    assert_eq!(kinds(&history), []);
}

#[test]
fn a_thawed_node_may_call_what_came_back_to_it() {
    // The other node's attempt failed, and the next one belongs to the thawed node.
    let mut history = history_of("enqueued; started 1 @2; failed retryable @6 +1; started 2 @10; completed @12");
    history.calls = vec![call_on("n2", "a", 1, 5, Some(6)), call("a", 2, 10, Some(12))];
    history.rules.silences = vec![silent(Some("n1"), 3, 9)];
    assert_eq!(kinds(&history), []);
    // The other node returned the attempt.
    let mut history = history_of("enqueued; started 1 @5; released @7; started 1 #again @10; completed @12");
    history.calls = vec![call_on("n2", "a", 1, 5, Some(6)), call("a", 1, 10, Some(12))];
    history.rules.silences = vec![silent(Some("n1"), 3, 9)];
    assert_eq!(kinds(&history), []);
    // It returned an earlier start of the attempt, and has begun it again: it holds the run.
    let mut history = history_of("enqueued; started 1 @1; released @2; started 1 #again @6; completed @12");
    history.calls = vec![call_on("n2", "a", 1, 6, Some(12)), call("a", 1, 10, Some(11))];
    history.rules.silences = vec![silent(Some("n1"), 3, 9)];
    assert_eq!(kinds(&history), [Kind::StaleStart]);
    // The other node died, or froze for longer than its lease, before its attempt was stored.
    for (kills, freeze) in [(vec![killed(Some("n2"), 6)], None), (vec![], Some(silent(Some("n2"), 5, 12)))] {
        let mut history = history_of("enqueued; started 1 @10; completed @12");
        history.calls = vec![call_on("n2", "a", 1, 5, None), call("a", 1, 10, Some(12))];
        history.rules.silences = vec![silent(Some("n1"), 3, 9)];
        assert_eq!(kinds(&history), [Kind::StaleStart]);
        history.rules.interruptions = kills;
        history.rules.silences.extend(freeze);
        assert_eq!(kinds(&history), []);
    }
}

#[test]
fn what_a_frozen_node_holds_is_its_own_until_its_lease_is_over() {
    let frozen = |from, until, other| {
        let mut history =
            history_of("enqueued; started 1 @2; failed lease_expired @9 +1; started 2 @11; completed @13");
        history.calls = vec![call("a", 1, 2, Some(12)), call_on("n2", "a", 2, other, Some(13))];
        history.rules.silences = vec![silent(Some("n1"), from, until)];
        kinds(&history)
    };
    assert_eq!(frozen(3, 9, 5), []);
    assert_eq!(frozen(3, 9, 4), [Kind::Overlap]);
    // A freeze that is shorter than the lease takes no job from its holder.
    let mut history = history_of("enqueued; started 1 @2; completed @13");
    history.calls = vec![call("a", 1, 2, Some(12)), call_on("n2", "a", 1, 8, Some(13))];
    history.rules.silences = vec![silent(Some("n1"), 3, 4)];
    assert_eq!(kinds(&history), [Kind::Overlap]);
    // Two freezes in a row, too close for a renewal between them, count as one.
    history.rules.silences.push(silent(Some("n1"), 5, 7));
    assert_eq!(kinds(&history), []);
    // Another node's freeze does not excuse it.
    history.rules.silences = vec![silent(Some("n3"), 3, 9)];
    assert_eq!(kinds(&history), [Kind::Overlap]);
}

/// Attempt 1 begins on `n1` at second 2 and is called lost at `lost`; its handler works from 2 to `worked`.
fn lost(lost: i64, worked: i64) -> History {
    let words = format!("enqueued; started 1 @2; failed lease_expired @{lost} +1; started 2 @20; completed @21");
    let mut history = history_of(&words);
    record(&mut history, "a", "completed", (1, 2), &[(1, 1, "lease_expired")]);
    history.records[0].attempts[0] =
        Tried { node: Some("n1".to_owned()), started_at: Some(at(2)), ..history.records[0].attempts[0].clone() };
    history.calls = vec![call("a", 1, 2, Some(worked)), call_on("n2", "a", 2, 20, Some(21))];
    history
}

#[test]
fn a_lease_that_cannot_have_run_out_is_found() {
    // Within the lease, or later while its handler still worked.
    assert_eq!(kinds(&lost(5, 3)), [Kind::LeaseLostTooSoon]);
    assert_eq!(kinds(&lost(12, 13)), [Kind::LeaseLostTooSoon]);
    assert_eq!(kinds(&lost(12, 3)), []);
    for (soon, worked) in [(5, 3), (12, 13)] {
        let judged = |rules: &dyn Fn(&mut Rules)| {
            let mut history = lost(soon, worked);
            rules(&mut history.rules);
            kinds(&history)
        };
        assert_eq!(judged(&|rules| rules.lease = None), []);
        // Its node is known to be dead; another node's death is not a reason, nor is the server's.
        assert_eq!(judged(&|rules| rules.interruptions = vec![killed(Some("n1"), 4)]), []);
        assert_eq!(judged(&|rules| rules.interruptions = vec![killed(Some("n2"), 4)]), [Kind::LeaseLostTooSoon]);
        assert_eq!(judged(&|rules| rules.interruptions = vec![killed(None, 4)]), [Kind::LeaseLostTooSoon]);
        // Whether its node was silent for long enough, or for too short a time.
        assert_eq!(judged(&|rules| rules.silences = vec![silent(Some("n1"), 3, 9)]), []);
        assert_eq!(judged(&|rules| rules.silences = vec![silent(None, 3, 9)]), []);
        assert_eq!(judged(&|rules| rules.silences = vec![silent(Some("n1"), 3, 4)]), [Kind::LeaseLostTooSoon]);
        assert_eq!(judged(&|rules| rules.silences = vec![silent(Some("n2"), 3, 9)]), [Kind::LeaseLostTooSoon]);
    }
}
