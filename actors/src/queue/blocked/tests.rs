//! Which jobs that cannot start are kept, which are parked, and in what order they start.

use longshore_backbone::wire::kind_key::KindKey;
use longshore_domain::rank::Rank;
use longshore_domain::{JobType, Priority, Tenant, Timestamp};

use super::*;
use crate::queue::held::{MAX_HELD, MAX_HELD_BYTES};

const LEASE: Duration = Duration::from_secs(30);

/// A number from a million on stands for a job with so many bytes.
impl HasPayload for u64 {
    fn payload_bytes(&self) -> usize {
        if *self < 1_000_000 { 0 } else { usize::try_from(*self).unwrap() }
    }
}

fn kind(name: &str) -> Kind {
    Kind { tenant: Tenant::default_tenant(), job_type: JobType::parse(name).unwrap(), key: KindKey::default() }
}

fn place(number: u64) -> Position {
    (Rank::new(Timestamp::from_millis(7), Priority::DEFAULT, Duration::ZERO), number)
}

/// Keeps jobs as long as they are to wait here, and says which were to be parked.
fn fill(blocked: &mut Blocked<u64>, of: &str, numbers: std::ops::Range<u64>, now: Instant) -> Vec<u64> {
    let mut parked = Vec::new();
    for number in numbers {
        match blocked.place_for(&kind(of), false, None, now) {
            Goes::Here => blocked.keep(kind(of), place(number), number),
            Goes::Parked => {
                drop(blocked.parks(kind(of), place(number)));
                parked.push(number);
            }
        }
    }
    parked
}

fn wants(blocked: &Blocked<u64>, of: &Kind, room: Room, now: Instant) -> usize {
    let want = blocked.wanted(&[(of, room)], now)[0];
    want.jobs.min(want.of_type)
}

#[test]
fn a_few_of_each_kind_stay_and_the_others_are_parked() {
    let (mut blocked, now) = (Blocked::new(LEASE), Instant::now());
    assert_eq!(fill(&mut blocked, "full", 0..5, now), [2, 3, 4]);
    assert!(fill(&mut blocked, "other", 5..7, now).is_empty());
    assert_eq!(blocked.held(), 4);
    assert!(blocked.has_others_before(&kind("full"), false) && !blocked.has_others_before(&kind("quick"), false));
    while blocked.take(now, 0, |_| true, |_| Ok(())).is_some() {}
    assert_eq!(fill(&mut blocked, "full", 7..8, now), [7], "behind those that are parked");
    assert!(blocked.has_others_before(&kind("full"), false) && !blocked.has_others_before(&kind("full"), true));
}

#[test]
fn while_none_can_start_they_are_asked_about_again_only_if_a_gate_has_news_or_their_time_comes() {
    let (mut blocked, now) = (Blocked::new(LEASE), Instant::now());
    blocked.keep(kind("a"), place(1), 1);
    let opens = now + Duration::from_millis(2);
    let later =
        |_: &mut u64| Err(HeldUp { until: Some(opens), reason: Some(DeferReason::RateLimited), ..HeldUp::default() });
    assert_eq!(blocked.take(now, 7, |_| true, later), None);
    assert_eq!((blocked.opens(), blocked.opens()), (Some(opens), None), "answered once");
    assert_eq!(blocked.reason(&kind("a")), Some(DeferReason::RateLimited));
    assert_eq!(blocked.take(now, 7, |_| true, |_| panic!("nothing has changed")), None);
    assert_eq!(blocked.take(now, 8, |_| true, later), None, "a gate has news");
    assert_eq!(blocked.take(opens, 8, |_| true, |_| Ok(())), Some((kind("a"), 1)), "its time has come");
}

#[test]
fn a_job_that_cannot_start_soon_is_parked_and_wanted_back_only_when_it_can() {
    let (mut blocked, now) = (Blocked::new(LEASE), Instant::now());
    let until = |until, soon| Some(HeldUp { until: Some(until), soon, ..HeldUp::default() });
    assert_eq!(blocked.place_for(&kind("a"), false, until(now + SOON, 0), now), Goes::Here);
    let late = until(now + SOON * 2, 0);
    assert_eq!(blocked.place_for(&kind("a"), false, late, now), Goes::Parked);
    assert_eq!(blocked.place_for(&kind("a"), true, late, now), Goes::Here, "it was wanted back");
    assert_eq!(wants(&blocked, &kind("a"), Room::NotYet, now), 0);
    assert_eq!(fill(&mut blocked, "a", 0..5, now), [2, 3, 4]);
    blocked.keep(kind("c"), place(5), 5);
    blocked.held_up(&kind("c"), HeldUp { until: Some(now), soon: 1_000, ..HeldUp::default() });
    assert!(fill(&mut blocked, "c", 6..500, now).is_empty(), "what may start in a moment is not sent away");
    let held = blocked.held();
    let known = HeldUp { until: Some(now), soon: 100, ..HeldUp::default() };
    assert_eq!(blocked.take(now, 1, |_| true, |_| Err(known)), None);
    assert_eq!(blocked.take_overdue().map(|(_, number)| number), Some(105), "once it is known how many may, it is");
    assert_eq!(blocked.held(), held - 1);
    drop(blocked.take_all());
    for number in 0..MAX_HELD as u64 {
        blocked.keep(kind(&format!("key{number}")), place(number), number);
    }
    assert_eq!(blocked.place_for(&kind("b"), false, None, now), Goes::Parked, "too many kinds wait here");
    assert_eq!(
        (wants(&blocked, &kind("b"), Room::For(0), now), wants(&blocked, &kind("b"), Room::For(1), now)),
        (0, 2)
    );
}

#[test]
fn large_payloads_wait_parked_beyond_a_bound_on_their_bytes() {
    let (mut blocked, now) = (Blocked::new(LEASE), Instant::now());
    let (large, mut kept) = (4 << 20, 0);
    while blocked.place_for(&kind(&format!("key{kept}")), false, None, now) == Goes::Here {
        blocked.keep(kind(&format!("key{kept}")), place(kept), large);
        kept += 1;
    }
    assert_eq!(kept * large, MAX_HELD_BYTES as u64);
    assert_eq!(wants(&blocked, &kind("parked"), Room::For(0), now), 0, "none comes back only to wait here");
    assert_eq!(wants(&blocked, &kind("parked"), Room::For(1), now), MIN_KEPT, "but those that can start do");
    for number in kept..2 * kept {
        assert_eq!(blocked.place_for(&kind("back"), true, None, now), Goes::Here, "it was wanted back");
        blocked.keep(kind(&format!("back{number}")), place(number), large);
    }
    assert_eq!(blocked.place_for(&kind("back"), true, None, now), Goes::Parked);
    for left in (0..2 * kept).rev() {
        assert!(blocked.take(now, left, |_| true, |_| Ok(())).is_some());
    }
    assert_eq!(blocked.held, Held::default(), "what left counts no more");
    blocked.keep(kind("a"), place(1), large);
    blocked.set_aside(|_| true);
    assert_eq!(blocked.held, Held::default());
}

#[test]
fn as_many_are_kept_and_wanted_back_as_start_in_a_while() {
    let (mut blocked, now) = (Blocked::new(LEASE), Instant::now());
    fill(&mut blocked, "full", 0..3, now);
    for _ in 0..100 {
        blocked.started(&kind("full"), now);
    }
    assert_eq!(wants(&blocked, &kind("full"), Room::For(0), now), 98, "two are here");
    blocked.are_expected(&kind("full"), 90, now);
    assert_eq!(wants(&blocked, &kind("full"), Room::For(0), now), 8);
    blocked.has_arrived(&kind("full"));
    assert_eq!(wants(&blocked, &kind("full"), Room::For(0), now), 9);
    let later = now + waiting::ARRIVES_WITHIN;
    assert!(wants(&blocked, &kind("full"), Room::For(0), later) > 60, "another node has them");
    assert_eq!(wants(&blocked, &kind("full"), Room::For(0), now + LEASE * 10), 0, "none starts");
    assert_eq!(wants(&blocked, &kind("anothers"), Room::For(0), now), 0, "it would come back only to wait here");
    assert_eq!(wants(&blocked, &kind("anothers"), Room::For(8), now), 8, "as many as could start at once");
    assert_eq!(wants(&blocked, &kind("full"), Room::For(30), now + LEASE * 10), 28);
}

/// Given very many parked kinds, when no handler is there or all are busy, then none comes back beyond the one that is
/// tried, and those that take the place of what starts.
#[test]
fn none_is_wanted_back_that_cannot_start() {
    let (mut blocked, now) = (Blocked::<u64>::new(LEASE), Instant::now());
    let keys: Vec<Kind> =
        (0..1_000).map(|key| Kind { key: KindKey::of_limit_key(Some(&format!("{key}"))), ..kind("call") }).collect();
    blocked.are_parked(&keys, now);
    let wanted = |blocked: &Blocked<u64>, room| {
        let all: Vec<(&Kind, Room)> = keys.iter().map(|kind| (kind, room)).collect();
        let wanted = blocked.wanted(&all, now);
        (wanted.iter().filter(|want| want.jobs > 0).count(), wanted[7].of_type)
    };
    assert_eq!(wanted(&blocked, Room::NotYet), (0, 0));
    assert_eq!(wanted(&blocked, Room::For(0)), (0, 0));
    assert_eq!(wanted(&blocked, Room::HandlersFull), (0, 0));
    assert_eq!(wanted(&blocked, Room::Trial), (1_000, 1), "one of them all");
    blocked.are_expected(&keys[3], 1, now);
    assert_eq!(wanted(&blocked, Room::Trial).1, 0, "one is on its way");
    for key in &keys[..100] {
        blocked.started(key, now);
    }
    assert_eq!(wanted(&blocked, Room::HandlersFull), (999, 99), "handlers take those of any key");
    assert_eq!(wanted(&blocked, Room::For(0)).1, 1, "while each key follows its own jobs");
}

#[test]
fn the_first_in_order_that_may_start_is_taken() {
    let (mut blocked, now) = (Blocked::new(LEASE), Instant::now());
    for (of, number) in [("a", 4), ("b", 2), ("a", 1), ("b", 3)] {
        blocked.keep(kind(of), place(number), number);
    }
    let full = |is_full: bool| {
        if is_full { Err(HeldUp::default()) } else { Ok(()) }
    };
    assert_eq!(blocked.take(now, 7, |_| false, |_| panic!("it was not to be asked about")), None);
    let taken = blocked.take(now, 0, |_| true, |number| full(*number == 1));
    assert_eq!(taken, Some((kind("b"), 2)), "1 cannot start, and 4 is behind it");
    assert_eq!(blocked.take(now, 0, |_| true, |_| full(false)), Some((kind("a"), 1)));
    assert_eq!(blocked.take(now, 0, |_| true, |_| full(true)), None);
    blocked.set_aside(|number| *number == 4);
    assert_eq!(blocked.iter_mut().map(|number| *number).collect::<Vec<_>>(), [3, 4]);
    assert_eq!((blocked.held(), blocked.take_overdue(), blocked.take_overdue()), (2, Some((kind("a"), 4)), None));
    assert_eq!(fill(&mut blocked, "a", 5..6, now), [5], "behind the one that waited for too long");
    assert_eq!(blocked.take_all(), [3]);
    assert_eq!(blocked.held(), 0);
}

/// Given jobs of a kind, of which one was taken back earlier than those before it, when it has waited for too long,
/// then those behind it are parked as well, and in their order.
#[test]
fn none_overtakes_a_job_that_is_parked_again() {
    let mut blocked = Blocked::new(LEASE);
    for number in 1..=4 {
        blocked.keep(kind("a"), place(number), number);
    }
    blocked.keep(kind("b"), place(5), 5);
    blocked.set_aside(|number| *number == 2);
    let parked: Vec<_> = std::iter::from_fn(|| blocked.take_overdue()).collect();
    assert_eq!(parked, [(kind("a"), 2), (kind("a"), 3), (kind("a"), 4)]);
    let mut left = blocked.take_all();
    left.sort_unstable();
    assert_eq!(left, [1, 5]);
}

#[test]
fn what_the_stream_does_not_know_of_yet_still_counts_as_parked() {
    let (mut blocked, now) = (Blocked::new(LEASE), Instant::now());
    fill(&mut blocked, "full", 0..2, now);
    let on_its_way = blocked.parks(kind("full"), place(2));
    while blocked.take(now, 0, |_| true, |_| Ok(())).is_some() {}
    let asks = |blocked: &mut Blocked<u64>, kinds: &[Kind]| {
        blocked.before_asking();
        blocked.are_parked(kinds, now);
    };
    asks(&mut blocked, &[kind("found")]);
    assert!(blocked.has_others_before(&kind("found"), false));
    assert!(blocked.has_others_before(&kind("full"), false), "it is on its way there");
    blocked.before_asking();
    drop(on_its_way);
    blocked.are_parked(&[], now);
    assert!(blocked.has_others_before(&kind("full"), false), "it may have come there after the stream was asked");
    blocked.before_asking();
    let on_its_way = blocked.parks(kind("full"), place(2));
    blocked.are_parked(&[], now);
    assert!(blocked.has_others_before(&kind("full"), false), "another is on its way since");
    drop(on_its_way);
    asks(&mut blocked, &[]);
    assert!(!blocked.any_parked() && blocked.kinds.is_empty(), "kinds without waiting jobs are forgotten");
}

#[test]
fn once_all_are_on_their_way_back_no_job_goes_behind_them() {
    let (mut blocked, now) = (Blocked::<u64>::new(LEASE), Instant::now());
    blocked.before_asking();
    blocked.are_parked(&[kind("full")], now);
    blocked.before_asking();
    blocked.none_is_parked(&kind("full"));
    assert!(!blocked.any_parked());
    blocked.are_parked(&[kind("full")], now);
    blocked.before_asking();
    let _on_its_way = blocked.parks(kind("full"), place(0));
    blocked.none_is_parked(&kind("full"));
    assert!(blocked.any_parked(), "one more is on its way there");
}

#[test]
fn a_job_on_its_way_may_have_been_missed_until_the_stream_is_read_after_it_arrived() {
    let mut blocked = Blocked::<u64>::new(LEASE);
    let full = kind("full");
    blocked.before_reading(&full);
    assert_eq!(blocked.first_missed(&full), None);
    let [third, first] = [3, 1].map(|number| blocked.parks(full.clone(), place(number)));
    assert_eq!(blocked.first_missed(&full), Some(place(1)), "it set out after the read began");
    drop(first);
    assert_eq!(blocked.first_missed(&full), Some(place(1)), "it may have arrived after the read");
    blocked.before_reading(&full);
    assert_eq!((blocked.first_missed(&full), blocked.first_missed(&kind("other"))), (Some(place(3)), None));
    let second = blocked.parks(full.clone(), place(2));
    drop((second, third));
    assert_eq!(blocked.first_missed(&full), Some(place(2)));
    blocked.before_reading(&full);
    assert_eq!(blocked.first_missed(&full), None);
}

#[test]
fn a_job_behind_parked_ones_is_parked_in_order_and_waits_here_once_none_is() {
    let (mut blocked, now) = (Blocked::<u64>::new(LEASE), Instant::now());
    let full = kind("full");
    assert!(!blocked.has_parked_before(&full, false));
    drop(blocked.parks(full.clone(), place(0)));
    assert!(blocked.has_parked_before(&full, false) && !blocked.has_parked_before(&full, true));
    for number in [3, 1, 2] {
        blocked.keep_behind(full.clone(), place(number), number);
    }
    drop(blocked.parks(kind("other"), place(8)));
    blocked.keep_behind(kind("other"), place(9), 9);
    assert!(blocked.take(now, 0, |_| true, |_| Ok(())).is_none(), "none of them may start");
    assert_eq!(blocked.iter_mut().count(), 4);
    assert_eq!((blocked.held(), blocked.take_behind()), (4, Some((full.clone(), 1))));
    blocked.before_asking();
    blocked.are_parked(&[kind("other")], now);
    assert_eq!(blocked.take(now, 0, |_| true, |_| Ok(())), Some((full.clone(), 2)));
    assert_eq!(blocked.take_behind(), Some((kind("other"), 9)));
    assert_eq!((blocked.take_behind(), blocked.held()), (None, 1));
    blocked.set_aside(|_| true);
    assert_eq!(blocked.take_overdue(), Some((full, 3)));
}
