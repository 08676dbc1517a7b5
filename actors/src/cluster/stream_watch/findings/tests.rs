//! Which stream is looked at next, when one is made again, and what `health` says meanwhile.

use super::*;

/// A lane, the records of runs, and handlers' last replies.
const LANE: usize = 0;
const RUNS: usize = 1;
const REPLIES: usize = 2;

fn stream(name: &str, decides: bool, is_dispensable: bool) -> Stream {
    Stream { name: name.to_owned(), decides, is_dispensable }
}

fn findings() -> Findings {
    let mut findings = Findings::default();
    findings.want(vec![stream("lane", false, false), stream("KV_runs", true, false), stream("replies", false, true)]);
    findings
}

fn found(fault: Option<StreamFault>) -> Inspected {
    Inspected { fault, messages: 7, full: None }
}

fn altered(setting: &'static str) -> Vec<Difference> {
    vec![Difference { setting, found: "old".to_owned(), wanted: "new".to_owned() }]
}

#[test]
fn each_stream_has_its_turn_and_what_is_wrong_has_more() {
    let (mut findings, now, nobody) = (findings(), Instant::now(), [""; 0]);
    assert_eq!([0, 1, 2, 3].map(|turn| findings.turn(turn)), [LANE, RUNS, REPLIES, LANE]);
    assert_eq!(findings.extra_turn(5, &nobody), None);
    findings.found(REPLIES, found(Some(StreamFault::Missing)), now);
    findings.found(LANE, found(Some(StreamFault::Unfit(altered("discard")))), now);
    assert_eq!(
        [4, 5].map(|turn| findings.extra_turn(turn, &nobody)),
        [Some(LANE), Some(REPLIES)],
        "one after the other"
    );
    // No server has memory for it: asking ten times as often would not help.
    findings.is_refused("replies");
    assert_eq!([4, 5].map(|turn| findings.extra_turn(turn, &nobody)), [Some(LANE); 2]);
    findings.found(LANE, found(None), now);
    assert_eq!(findings.extra_turn(4, &nobody), None);
    assert_eq!(findings.extra_turn(4, &["KV_runs"]), Some(RUNS), "a server did not answer of it");
}

#[test]
fn a_bucket_of_keys_has_every_tenth_turn_however_many_streams_there_are() {
    let mut findings = Findings::default();
    let lanes = (0..500).map(|lane| stream(&format!("lane{lane}"), false, false));
    findings.want(lanes.chain([stream("KV_keys", true, false)]).collect());
    let turns = |buckets: &[&str]| (0..30).filter(|turn| findings.bucket_turn(*turn, buckets) == Some(500)).collect();
    let (first, second): (Vec<usize>, Vec<usize>) = (turns(&["KV_keys"]), turns(&["KV_other", "KV_keys"]));
    assert_eq!((first, second), (vec![0, 10, 20], vec![1, 11, 21]));
}

/// A server that has just become the leader may not know yet of all streams.
#[test]
fn a_stream_is_made_again_once_it_has_been_missing_for_two_seconds() {
    let (mut findings, start) = (findings(), Instant::now());
    let mut looks =
        |after| findings.found(LANE, found(Some(StreamFault::Missing)), start + Duration::from_millis(after));
    assert!(matches!(looks(0), Look::Wrong(text) if text.starts_with("stream lane is gone: a node makes it again")));
    assert_eq!([1_999, 2_000, 2_500].map(looks), [Look::StillWrong, Look::Remake, Look::Remake]);
}

#[test]
fn a_bucket_that_decides_what_may_run_is_never_made_again() {
    let (mut findings, start) = (findings(), Instant::now());
    findings.found(RUNS, found(Some(StreamFault::Missing)), start);
    let later = start + Duration::from_secs(3_600);
    assert_eq!(findings.found(RUNS, found(Some(StreamFault::Missing)), later), Look::StillWrong);
    let faults = findings.report(later);
    assert!(faults.reasons[0].contains("restore it from a backup"), "{faults:?}");
}

#[test]
fn the_time_for_which_a_stream_is_missing_begins_anew_whenever_it_was_there() {
    let (mut findings, start) = (findings(), Instant::now());
    let mut looks = |after, fault| findings.found(LANE, found(fault), start + Duration::from_secs(after));
    looks(0, Some(StreamFault::Missing));
    assert_eq!((looks(1, None), looks(2, None)), (Look::RightAgain, Look::Right));
    assert!(matches!(looks(3, Some(StreamFault::Missing)), Look::Wrong(_)));
    assert_eq!(looks(4, Some(StreamFault::Missing)), Look::StillWrong);
    assert!(matches!(looks(6, Some(StreamFault::Unfit(altered("discard")))), Look::Wrong(_)), "another fault");
    assert!(matches!(looks(7, Some(StreamFault::Missing)), Look::Wrong(_)));
}

#[test]
fn what_keeps_the_node_from_working_is_a_reason_and_the_rest_are_warnings() {
    let (mut findings, now) = (findings(), Instant::now());
    findings.found(LANE, found(Some(StreamFault::Unfit(altered("discard")))), now);
    findings.found(RUNS, found(Some(StreamFault::OtherBounds(altered("max_age")))), now);
    findings.found(REPLIES, found(Some(StreamFault::Missing)), now);
    let faults = findings.report(now);
    assert_eq!(faults.reasons.len(), 1);
    assert!(faults.reasons[0].starts_with("stream lane was altered: discard is old, not new"), "{faults:?}");
    assert_eq!(faults.warnings.len(), 2);
    assert!(faults.warnings[0].contains("KV_runs has other bounds than this node's settings: max_age is old, not new"));
    assert!(faults.warnings[1].contains("replies is gone"), "jobs run without it");
}

#[test]
fn a_full_stream_is_reported_until_it_takes_messages_again() {
    let (mut findings, now) = (findings(), Instant::now());
    findings.found(LANE, Inspected { full: Some(Full { messages: 9, bytes: 90 }), ..found(None) }, now);
    assert_eq!(findings.report(now).warnings.len(), 1);
    assert!(findings.report(now).reasons.is_empty(), "its jobs run");
    findings.found(LANE, found(None), now);
    assert!(findings.report(now).warnings.is_empty());
}

#[test]
fn that_a_stream_was_made_again_is_reported_for_an_hour_and_what_it_held_is_known_from_the_last_look() {
    let (mut findings, start) = (findings(), Instant::now());
    let later = start + Duration::from_secs(9);
    assert_eq!(findings.held("lane", later), None);
    findings.found(LANE, found(None), start);
    findings.found(LANE, Inspected { messages: 0, ..found(Some(StreamFault::Missing)) }, later);
    assert_eq!(findings.held("lane", later), Some((7, Duration::from_secs(9))), "nothing is known of what is gone");
    findings.is_remade("lane", "made again".to_owned(), later);
    let warnings = |findings: &mut Findings, at| findings.report(at).warnings.len();
    assert_eq!(warnings(&mut findings, later + WARNED_FOR - Duration::from_millis(1)), 1);
    assert_eq!(warnings(&mut findings, later + WARNED_FOR), 0);
}

#[test]
fn of_the_streams_of_a_queue_that_the_node_no_longer_serves_nothing_is_reported() {
    let (mut findings, now) = (findings(), Instant::now());
    findings.found(LANE, Inspected { full: Some(Full { messages: 9, bytes: 90 }), ..found(None) }, now);
    findings.found(LANE, found(Some(StreamFault::Missing)), now);
    findings.want(vec![stream("KV_runs", true, false)]);
    assert_eq!((findings.turn(7), findings.extra_turn(7, &[""; 0])), (0, None));
    let faults = findings.report(now);
    assert!(faults.reasons.is_empty() && faults.warnings.is_empty(), "{faults:?}");
    assert_eq!(findings.held("lane", now), None);
}
