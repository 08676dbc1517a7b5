//! Which parked jobs are taken back, in what order, and when parking looks again.

use longshore_backbone::Headers;
use longshore_backbone::wire::kind_key::KindKey;
use longshore_domain::{JobType, Run, Tenant};

use super::rounds::{Ahead, KINDS, NextLook, READ_AGAIN_AFTER, SHORT_LOOK_EVERY, next_round, until_next};
use super::*;
use crate::queue::blocked::wanted::Want;
use crate::runtime::park_permits::Position;

const AGING: Duration = Duration::from_secs(30);

fn kind(job_type: &str, key: Option<&str>) -> Kind {
    let job_type = JobType::parse(job_type).unwrap();
    Kind { tenant: Tenant::default_tenant(), job_type, key: KindKey::of_limit_key(key) }
}

fn want(jobs: usize, of_type: usize) -> Want {
    Want { jobs, of_type }
}

/// A parked job that was published as this number of its lane, with so large a payload; its rank counts from `due`.
fn parked(sequence: u64, number: u64, due: i64, bytes: usize) -> Stored {
    let job = crate::tests::job("call", &format!("main-p5-{number}"));
    let due = Timestamp::from_millis(due);
    let run = Run { seal: "5ea1".into(), ..Run::new(&job, 3, due) };
    let headers = header::carry_on(None, &run, 1, Some(due));
    let payload = vec![b' '; bytes].into();
    Stored { subject: String::new(), sequence, at: "2026-01-01T00:00:00Z".to_owned(), headers, payload }
}

fn ahead(jobs: impl IntoIterator<Item = (u64, Stored)>) -> Ahead<Stored> {
    let mut ahead = Ahead::default();
    for (priority, stored) in jobs {
        let priority = Priority::new(priority).unwrap();
        ahead.add(priority, read(stored, priority, AGING));
    }
    ahead
}

fn take_all(ahead: &mut Ahead<Stored>, missed: Option<Position>) -> Vec<u64> {
    std::iter::from_fn(|| ahead.take_first_before(missed)).map(|stored| stored.sequence).collect()
}

/// Given jobs that many workers parked at once, so that the stream has them out of order, when they are taken back,
/// then it is by rank, and among those of one millisecond by their number in the lane.
#[test]
fn parked_jobs_come_back_in_the_order_in_which_they_were_published() {
    let mut jobs = ahead([
        (5, parked(1, 12, 2_000, 0)),
        (5, parked(2, 11, 2_000, 0)),
        (5, parked(3, 10, 1_000, 0)),
        (4, parked(4, 30, 30_000, 0)),
        (4, parked(5, 31, 33_000, 0)),
    ]);
    assert_eq!(take_all(&mut jobs, None), [4, 3, 2, 1, 5], "a priority is worth 30 s");
    assert_eq!((jobs.bytes, jobs.jobs.len()), (0, 0));
}

/// Given a job that this node was still parking when the stream was read, when others of its kind are taken back, then
/// none of those behind it, which would overtake it.
#[test]
fn none_is_taken_back_before_an_earlier_one_that_is_still_on_its_way() {
    let jobs = || ahead([2, 3, 5].map(|number| (5, parked(number, number, 1_000, 0))));
    let position = |number| read(parked(9, number, 1_000, 0), Priority::DEFAULT, AGING).position;
    assert_eq!(take_all(&mut jobs(), Some(position(4))), [2, 3]);
    assert_eq!(take_all(&mut jobs(), Some(position(1))), [0; 0]);
    assert_eq!(take_all(&mut jobs(), Some(position(6))), [2, 3, 5]);
}

#[test]
fn a_job_whose_headers_cannot_be_read_stands_where_it_was_stored() {
    let stored = Stored { headers: Headers::new(), ..parked(7, 0, 0, 0) };
    let Read { position, sequence, .. } = read(stored, Priority::DEFAULT, Duration::ZERO);
    let at = Timestamp::parse("2026-01-01T00:00:00Z").unwrap();
    assert_eq!((position, sequence), ((Rank::new(at, Priority::DEFAULT, Duration::ZERO), 7), 7));
}

#[test]
fn some_of_each_priority_are_read_ahead_until_there_are_enough_or_too_many_bytes() {
    let five = Priority::DEFAULT;
    let four = Priority::new(4).unwrap();
    assert_eq!(Ahead::<Stored>::default().reads_from(five), Some(1));
    let jobs = |count: u64, bytes: usize| ahead((1..=count).map(|number| (5, parked(number, number, 0, bytes))));
    assert_eq!(jobs(511, 0).reads_from(five), Some(512));
    assert_eq!(jobs(512, 0).reads_from(five), None);
    assert_eq!(jobs(512, 0).reads_from(four), Some(1), "the first in order may be of another priority");
    let mut large = jobs(2, 1 << 20);
    assert_eq!(large.reads_from(five), None);
    assert!(large.take_first_before(None).is_some());
    assert_eq!(large.reads_from(five), Some(3), "what was taken back makes room, and is not read again");
}

/// Given jobs that were read ahead, when they were not taken back within a minute, then they are read again: another
/// node may have done so.
#[test]
fn what_was_read_ahead_long_ago_is_read_again() {
    let (mut jobs, start) = (ahead([(5, parked(7, 7, 0, 0))]), Instant::now());
    jobs.forget_old(start);
    jobs.forget_old(start + READ_AGAIN_AFTER);
    assert_eq!(jobs.reads_from(Priority::DEFAULT), Some(8), "it was read a minute ago");
    jobs.forget_old(start + READ_AGAIN_AFTER + Duration::from_millis(1));
    assert_eq!((jobs.reads_from(Priority::DEFAULT), take_all(&mut jobs, None)), (Some(1), vec![]));
}

/// Given more kinds than one round takes, when rounds follow each other, then every kind has its turn before any has a
/// second one, also if kinds come and go meanwhile.
#[test]
fn with_very_many_keys_each_has_its_turn() {
    let wanted = |numbers: std::ops::Range<usize>| -> Vec<(Kind, (), Want)> {
        numbers.map(|number| (kind("call", Some(&format!("{number:04}"))), (), want(1, 300))).collect()
    };
    let mut all: Vec<(Kind, (), Want)> = wanted(0..600);
    all.sort_by(|one, other| one.0.cmp(&other.0));
    let (mut last, mut seen) = (None, Vec::new());
    for _ in 0..2 {
        let round = next_round(&mut last, all.clone());
        assert_eq!(round.len(), KINDS);
        seen.extend(round.into_iter().map(|(kind, ..)| kind));
    }
    assert!(last.is_some(), "the others had no turn yet");
    // One that had its turn is gone.
    all.remove(0);
    seen.extend(next_round(&mut last, all.clone()).into_iter().map(|(kind, ..)| kind));
    let expected = all.iter().map(|(kind, ..)| kind);
    assert!(expected.clone().all(|kind| seen.contains(kind)), "three rounds of 256 are enough for 600");
    seen.truncate(600);
    let distinct: BTreeSet<&Kind> = seen.iter().collect();
    assert_eq!(distinct.len(), 600, "none had a second turn before");
    all.truncate(KINDS);
    next_round(&mut last, all);
    assert_eq!(last, None, "all had their turn");
}

#[test]
fn keys_of_one_type_share_what_its_handlers_could_take_and_each_gets_one() {
    let round = |last: &mut Option<Kind>, wanted: &[(Kind, (), Want)]| -> Vec<(Kind, usize)> {
        next_round(last, wanted.to_vec()).into_iter().map(|(kind, (), jobs)| (kind, jobs)).collect()
    };
    let [a, b, c, mail] =
        [("call", Some("a")), ("call", Some("b")), ("call", Some("c")), ("mail", None)].map(|(of, key)| kind(of, key));
    let mut keys = vec![(a, (), want(4, 4)), (b, (), want(4, 4)), (c, (), want(4, 4)), (mail, (), want(3, 3))];
    keys.sort_by(|one, other| one.0.cmp(&other.0));
    assert_eq!(round(&mut None, &keys).iter().map(|(_, jobs)| *jobs).collect::<Vec<_>>(), [2, 1, 1, 3]);
    // Where only one may be tried, it is the turn of each.
    let keys: Vec<(Kind, (), Want)> = keys[..3].iter().map(|(kind, ..)| (kind.clone(), (), want(1, 1))).collect();
    let mut last = None;
    let turns: Vec<Kind> = (0..3).flat_map(|_| round(&mut last, &keys)).map(|(kind, _)| kind).collect();
    assert_eq!(turns, keys.iter().map(|(kind, ..)| kind.clone()).collect::<Vec<_>>());
}

#[test]
fn a_poll_that_takes_long_is_made_the_less_often() {
    const SERVER_WAS_AWAY: Duration = Duration::from_secs(4);
    let (short, long) = (Duration::from_millis(1), Duration::from_millis(40));
    let after_two = |took, is_at_rest| {
        let next = NextLook::after(LOOK_EVERY, took, is_at_rest);
        (next.after.as_millis(), next.at_least.as_millis())
    };
    let after = |took, is_at_rest| after_two([took, took], is_at_rest);
    assert_eq!((after(short, true), after(short, false)), ((500, 5), (500, 5)));
    assert_eq!((after(long, true), after(long, false)), ((4_000, 160), (500, 160)));
    assert_eq!(after(LOOK_EVERY, true), (10_000, 2_000));
    for took in [[short, SERVER_WAS_AWAY], [SERVER_WAS_AWAY, short]] {
        assert_eq!(after_two(took, false), (500, 5), "the server was away once");
    }
}

#[test]
fn parking_looks_again_the_sooner_the_more_a_job_could_be_waiting_for_it() {
    assert_eq!(until_next(false, false, false), IDLE_LOOK_EVERY);
    assert_eq!(until_next(false, true, false), LOOK_EVERY);
    assert_eq!(until_next(false, true, true), SHORT_LOOK_EVERY, "one could start, and none of its kind is here");
    assert_eq!(until_next(true, true, false), SHORT_LOOK_EVERY, "other kinds wait for their turn");
}
