//! Tests which findings count for a run that is still under way, or whose old data a stream has deleted, and which do
//! not.

use super::super::*;
use super::from_words::{add_dead_letter, add_run, at, call, record};

/// As if read at second 100, with ten seconds as the time in which a run comes to rest.
fn reading() -> Reading {
    Reading { rested_since: at(90), all_ended: false, kept_since: at(0), cut_before: None }
}

fn kinds(judgement: &Judgement) -> Vec<Kind> {
    judgement.violations.iter().map(|violation| violation.kind).collect()
}

#[test]
fn a_run_that_has_not_ended_is_said_to_be_open_and_nothing_is_missing() {
    let mut history = History::default();
    add_run(&mut history, "a", "enqueued; started 1");
    let judgement = history.judge(&reading());
    assert_eq!((kinds(&judgement), judgement.runs, judgement.restless), (vec![], 1, 0));
    let open = &judgement.open[0];
    assert_eq!(
        (open.run_id.as_str(), open.last.as_str(), open.since),
        ("a", "started, round 1, attempt 1", Some(at(2)))
    );
    let judgement = history.judge(&Reading { all_ended: true, ..reading() });
    assert_eq!(kinds(&judgement), [Kind::NoEnd]);
}

#[test]
fn what_nothing_can_heal_is_found_of_any_run() {
    for (words, kind) in [
        ("enqueued; started 1; started 1 #2", Kind::Doubled),
        ("enqueued; started 2", Kind::AttemptGap),
        ("enqueued; started 1; failed x; started 2", Kind::Unannounced),
        ("started 1", Kind::Missing),
        ("enqueued @95; started 1 @96; completed @97; completed #2 @98", Kind::SecondEnd),
    ] {
        let mut history = History::default();
        add_run(&mut history, "a", words);
        assert_eq!(kinds(&history.judge(&reading())), [kind], "{words}");
    }
}

#[test]
fn a_run_that_ended_just_now_may_lack_record_dead_letter_and_published_calls() {
    let mut history = History::default();
    add_run(&mut history, "a", "enqueued @93; started 1 @94; failed x @95; dlq @96");
    history.calls = vec![call("a", 1, 94, Some(96)), call("a", 2, 94, Some(97))];
    let judgement = history.judge(&reading());
    assert_eq!((kinds(&judgement), judgement.restless), (vec![], 1));
    let rested = history.judge(&Reading { rested_since: at(96), ..reading() });
    assert_eq!(kinds(&rested), [Kind::RecordMissing, Kind::DeadLetterMissing, Kind::Overlap, Kind::CallUnpublished]);
}

#[test]
fn a_record_that_was_set_back_is_no_sign_of_life() {
    let mut history = History::default();
    add_run(&mut history, "a", "enqueued; started 1; completed");
    record(&mut history, "a", "enqueued", (1, 1), &[]);
    assert_eq!(kinds(&history.judge(&reading())), [Kind::RecordDisagrees]);
    // By the log, replayed long ago; by the record, dead in the former round.
    let mut history = History::default();
    add_run(&mut history, "a", "enqueued; started 1; failed x; dlq; round 2; replayed; enqueued; started 1; completed");
    record(&mut history, "a", "dead", (1, 1), &[(1, 1, "x")]);
    assert_eq!(kinds(&history.judge(&reading())), [Kind::RecordDisagrees]);
}

#[test]
fn what_streams_have_deleted_is_not_asked_for() {
    let mut history = History::default();
    add_run(&mut history, "a", "enqueued; started 1; failed x; dlq");
    assert_eq!(kinds(&history.judge(&reading())), [Kind::RecordMissing, Kind::DeadLetterMissing]);
    assert_eq!(kinds(&history.judge(&Reading { kept_since: at(5), ..reading() })), []);

    history.events.drain(..2);
    add_dead_letter(&mut history, "a", 1);
    record(&mut history, "a", "dead", (1, 1), &[(1, 1, "x")]);
    add_run(&mut history, "b", "enqueued; started 1; started 1 #2");
    let judgement = history.judge(&Reading { cut_before: Some(at(1)), ..reading() });
    assert_eq!((kinds(&judgement), judgement.cut, judgement.runs), (vec![Kind::Doubled], 1, 2));
}

#[test]
fn a_receipt_without_any_trace_is_left_to_the_caller_that_can_check_its_lane() {
    let mut history = History::default();
    add_run(&mut history, "a", "");
    let judgement = history.judge(&reading());
    assert_eq!((kinds(&judgement), judgement.open.len()), (vec![Kind::Lost], 1));
    let report = history.evidence(&[(judgement.open[0].tenant.clone(), "a".to_owned())].into());
    assert_eq!(report.into_values().flatten().count(), 1);
}
