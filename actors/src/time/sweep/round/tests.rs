//! What a round of the sweep takes up, where it ends, and where the next one goes on.

use longshore_domain::run::DeferReason;
use longshore_domain::settlement::Settlement;

use super::*;

const LEASE: Duration = Duration::from_secs(30);

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_millis(seconds * 1_000)
}

fn run(name: &str) -> Run {
    Run::new(&crate::tests::job("t", name), 3, at(0))
}

/// A run that waits until 100 s after the beginning.
fn waiting(name: &str) -> Run {
    let mut run = run(name);
    run.settle(Settlement::Schedule(at(100)), at(0));
    run
}

/// A run whose attempt began 100 s after the beginning.
fn running(name: &str) -> Run {
    let mut run = run(name);
    run.begin(1, &"n1".into(), at(100));
    run
}

/// The sequences from which a round reads whose pages are all like this one.
fn reads(mut round: Round, bytes: usize, found_on_each: usize) -> (Vec<u64>, u64) {
    let (mut reads, mut found) = (Vec::new(), 0);
    while let Some(from) = round.reads_from() {
        reads.push(from);
        found += found_on_each;
        assert!(!round.has_read(bytes, Some(from + 256), found), "more follow");
    }
    (reads, round.from)
}

/// Given a stream of several pages, when it has been read to its end, then the round is over, and the next one begins
/// with the first message: schedules are written everywhere meanwhile.
#[test]
fn a_pass_through_a_stream_begins_again_once_it_has_met_the_end() {
    let mut round = Round::new(FIRST, 10);
    assert_eq!(round.reads_from(), Some(1));
    assert!(!round.has_read(100, Some(257), 0));
    assert_eq!((round.reads_from(), round.from), (Some(257), 257));
    assert!(round.has_read(100, None, 0), "the pass is whole: what was counted in it can be published");
    assert_eq!((round.reads_from(), round.from), (None, 1));
}

#[test]
fn a_round_ends_after_so_many_pages_bytes_or_finds_and_the_next_one_goes_on_there() {
    let (pages, next) = reads(Round::new(FIRST, 10), 0, 0);
    assert_eq!((pages.len(), next), (PAGES, 20 * 256 + 1));
    let (pages, next) = reads(Round::new(next, 10), BYTES / 2, 0);
    assert_eq!((pages, next), (vec![5_121, 5_377, 5_633], 5_889), "once there are more bytes than {BYTES}");
    let (pages, next) = reads(Round::new(next, 10), 0, 5);
    assert_eq!((pages, next), (vec![5_889, 6_145], 6_401), "10 are enough");
}

/// A schedule that has just fallen due is left to the server: it may be firing it.
#[test]
fn a_schedule_is_overdue_only_once_the_grace_is_over() {
    let grace = stranded::grace(LEASE);
    for (now, is) in [(99, false), (100, false), (110, false), (111, true), (1_000, true)] {
        assert_eq!(is_overdue(at(100), grace, at(now)), is, "{now} s");
    }
}

#[test]
fn records_are_suspects_once_their_time_or_their_lease_is_long_over_and_others_never() {
    let mut parked = run("parked");
    parked.settle(Settlement::Park { since: at(0), reason: Some(DeferReason::Paused) }, at(0));
    let page = || [waiting("waits"), parked.clone(), running("runs"), run("in-its-lane")].map(|run| (run, 7)).to_vec();
    let names = |now| {
        let mut suspects = Suspects::default();
        suspects.take_in(page(), LEASE, at(now));
        let names =
            |runs: &[(Run, u64)]| runs.iter().map(|(run, _)| run.run_id.to_string()).collect::<Vec<_>>().join(" ");
        (names(&suspects.waiting), names(&suspects.running))
    };
    assert_eq!(names(130), (String::new(), String::new()));
    assert_eq!(names(131), ("waits".to_owned(), String::new()), "three times the grace are over");
    assert_eq!(names(141), ("waits".to_owned(), "runs".to_owned()), "its lease and the grace are over");
}

/// Given a page with more suspects than a round looks at, then the next round goes on with the first of the others.
#[test]
fn no_suspect_is_left_out_because_there_are_many() {
    let mut suspects = Suspects::default();
    let page = |runs: usize| (1..=runs as u64).map(|at| (waiting(&format!("r{at}")), at)).collect();
    suspects.take_in(page(LOOKS), LEASE, at(1_000));
    assert_eq!(suspects.next_waiting(), None);
    let mut suspects = Suspects::default();
    suspects.take_in(page(3 * LOOKS), LEASE, at(1_000));
    assert_eq!(suspects.next_waiting(), Some(LOOKS as u64 + 1));
}

/// Either sort of suspects costs a few questions each, so either ends the round.
#[test]
fn a_round_counts_the_sort_of_suspects_of_which_there_are_more() {
    let mut suspects = Suspects::default();
    suspects.take_in(vec![(waiting("a"), 1), (waiting("b"), 2), (running("c"), 3)], LEASE, at(1_000));
    assert_eq!(suspects.count(), 2);
    suspects.take_in(vec![(running("d"), 4), (running("e"), 5)], LEASE, at(1_000));
    assert_eq!(suspects.count(), 3);
}
