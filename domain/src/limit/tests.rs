//! The limits against brute force: every start of random histories is counted in every span of time.

#![expect(clippy::disallowed_methods, reason = "an Instant has no other origin")]

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::*;
use crate::Timestamp;

const BEGIN: i64 = 1_000_000;

fn limit(window: Window, rate: u32, per: u64, burst: u32) -> RateLimit {
    RateLimit { rate, per: Duration::from_millis(per), burst, window }
}

fn any_limit() -> impl Strategy<Value = RateLimit> {
    let window = prop_oneof![Just(Window::Bucket), Just(Window::Fixed), Just(Window::Sliding)];
    (window, 1u32..300, 100u64..5_000, 1u32..300).prop_map(|(window, rate, per, burst)| limit(window, rate, per, burst))
}

/// What a node asks for: after so many milliseconds, for so many tokens, using each share of its lease later, giving
/// that share of the block back.
type Step = (u64, u32, u32, f64, f64);

fn steps() -> impl Strategy<Value = Vec<Step>> {
    prop::collection::vec((0u64..400, 1u32..40, 0u32..40, 0.0f64..1.0, prop_oneof![Just(0.0), 0.0f64..1.0]), 1..150)
}

/// The times of all starts, one per token.
fn play(limit: &RateLimit, steps: &[Step]) -> Vec<i64> {
    play_on(None, (Timestamp::from_millis(BEGIN), 1), limit, steps).0
}

/// The times of all starts after a moment, on a record that there is, the record, and the last moment.
fn play_on(
    record: Option<Record>,
    (begin, first): (Timestamp, u64),
    limit: &RateLimit,
    steps: &[Step],
) -> (Vec<i64>, Option<Record>, Timestamp) {
    let (mut record, mut now, mut starts) = (record, begin, Vec::new());
    let mut back: VecDeque<(Timestamp, Ask, u32)> = VecDeque::new();
    for (number, (pause, need, more, use_at, unused)) in (first..).zip(steps) {
        now = now.plus(Duration::from_millis(*pause));
        while let Some((_, ask, unused)) = back.pop_front_if(|(at, ..)| *at <= now) {
            record = record.map(|record| record.give_back(limit, &ask, unused, now).unwrap_or(record));
        }
        let need = (*need).min(limit.capacity() as u32);
        let ask = Ask { who: "n".into(), number, need, want: need + more };
        if let Answer::Granted(next, lease) = Record::lease(record.as_ref(), limit, &ask, now) {
            assert!(lease.tokens >= need && lease.tokens <= ask.want && lease.from >= now);
            record = Some(next);
            let unused = (f64::from(lease.tokens) * unused) as u32;
            let at = lease.from.plus(lease.until.since(lease.from).mul_f64(*use_at));
            starts.extend(std::iter::repeat_n(at.millis(), (lease.tokens - unused) as usize));
            back.push_back((at, ask, unused));
        }
    }
    starts.sort_unstable();
    (starts, record, now)
}

/// The span in which most jobs started beyond what the limit allows, if there is one.
fn exceeds(limit: &RateLimit, starts: &[i64]) -> Option<(i64, i64, usize)> {
    let per = i64::try_from(limit.per.as_millis()).unwrap();
    for (first, begin) in starts.iter().enumerate() {
        for (last, end) in starts.iter().enumerate().skip(first) {
            let count = last - first + 1;
            let max = match limit.window {
                Window::Fixed if begin.div_euclid(per) != end.div_euclid(per) => break,
                // Both ends belong to the span, so it must be shorter than the window.
                Window::Sliding if end - begin >= per => break,
                Window::Fixed | Window::Sliding => f64::from(limit.rate),
                Window::Bucket => limit.bound(Duration::from_millis((end - begin + 1).unsigned_abs())),
            };
            if count as f64 > max + 1e-6 {
                return Some((*begin, *end, count));
            }
        }
    }
    None
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn no_span_of_time_has_more_starts_than_the_limit_allows(limit in any_limit(), steps in steps()) {
        let starts = play(&limit, &steps);
        prop_assert_eq!(exceeds(&limit, &starts), None);
    }

    #[test]
    fn a_changed_limit_holds_from_then_on(
        before in any_limit(), after in any_limit(), first in steps(), second in steps(),
    ) {
        // Nodes that know of the change use no tokens any more that they took before.
        let (_, record, now) = play_on(None, (Timestamp::from_millis(BEGIN), 1), &before, &first);
        let (starts, ..) = play_on(record, (now, 1_000), &after, &second);
        prop_assert_eq!(exceeds(&after, &starts), None);
    }

    #[test]
    fn a_limit_that_was_made_smaller_is_soon_used_in_full(rate in 1u32..50, before in 100u32..1_000, first in steps()) {
        let before = limit(Window::Bucket, before, 1_000, before);
        let after = limit(Window::Bucket, rate, 1_000, rate);
        let (_, record, now) = play_on(None, (Timestamp::from_millis(BEGIN), 1), &before, &first);
        let Some(record) = record else { return Ok(()) };
        let ask = Ask { who: "n".into(), number: 1_000, need: 1, want: 1 };
        let Answer::Granted(record, _) = Record::lease(Some(&record), &after, &ask, now.plus(RESERVE_WITHIN)) else {
            return Err(TestCaseError::fail("no token within a second"));
        };
        let later = now.plus(RESERVE_WITHIN * 4);
        prop_assert!(record.left(&after, later) >= u64::from(rate.saturating_sub(1)), "{record:?}");
    }

    #[test]
    fn the_bound_of_a_bucket_is_its_burst_and_its_rate(rate in 1u32..1_000, burst in 1u32..10_000, span in 0u64..10_000) {
        let bucket = limit(Window::Bucket, rate, 1_000, burst);
        let (burst, rate, span) = (f64::from(burst), f64::from(rate), span as f64 / 1_000.0);
        let bound = bucket.bound(Duration::from_secs_f64(span));
        let stated = if burst >= rate * 2.0 { burst } else { burst.max(rate * 0.2 + 1.0) };
        prop_assert!(bound <= stated + rate * span + 1e-6, "{bound} > {stated} + {rate} x {span}");
    }

    #[test]
    fn an_idle_limit_gives_all_of_its_tokens_again(limit in any_limit(), steps in steps()) {
        let mut record = None;
        for (number, (_, need, more, ..)) in (1..).zip(&steps) {
            let ask = Ask { who: "n".into(), number, need: (*need).min(limit.rate), want: need + more };
            if let Answer::Granted(next, _) = Record::lease(record.as_ref(), &limit, &ask, Timestamp::from_millis(BEGIN)) {
                record = Some(next);
            }
        }
        let Some(record) = record else { return Ok(()) };
        let later = Timestamp::from_millis(BEGIN).plus(record.matters_for(&limit));
        prop_assert_eq!(record.left(&limit, later), limit.capacity() as u64);
    }
}

#[test]
fn brute_force_finds_what_exceeds_a_limit() {
    let each = |window| exceeds(&limit(window, 2, 1_000, 2), &[0, 500, 900]);
    assert_eq!((each(Window::Fixed), each(Window::Sliding)), (Some((0, 900, 3)), Some((0, 900, 3))));
    assert_eq!(exceeds(&limit(Window::Sliding, 2, 1_000, 2), &[0, 500, 1_000]), None);
    assert_eq!(exceeds(&limit(Window::Fixed, 2, 1_000, 2), &[500, 900, 1_000, 1_100]), None);
    assert!(exceeds(&limit(Window::Bucket, 2, 1_000, 2), &[0, 0, 0, 0]).is_some());
}

#[test]
fn a_repeated_request_gets_the_same_block_and_a_block_goes_back_once() {
    let (limit, now) = (limit(Window::Bucket, 10, 1_000, 100), Timestamp::from_millis(BEGIN));
    let ask = Ask { who: "n".into(), number: 1, need: 1, want: 10 };
    let Answer::Granted(record, lease) = Record::lease(None, &limit, &ask, now) else { panic!() };
    assert_eq!(Record::lease(Some(&record), &limit, &ask, now.plus(Duration::from_secs(1))), Answer::Has(lease));
    let left = record.left(&limit, now);
    let back = record.give_back(&limit, &ask, 10, now).unwrap();
    assert_eq!(back.left(&limit, now), left + 10);
    assert_eq!(back.give_back(&limit, &ask, 10, now), None);
    let text = serde_json::to_string(&back).unwrap();
    assert_eq!(serde_json::from_str::<Record>(&text).unwrap(), back);
}

#[test]
fn a_job_that_costs_more_than_there_can_be_starts_once_all_is_there() {
    let now = Timestamp::from_millis(BEGIN);
    for window in [Window::Bucket, Window::Fixed, Window::Sliding] {
        let limit = limit(window, 10, 1_000, 10);
        let ask = |number, need| Ask { who: "n".into(), number, need, want: need };
        let Answer::Granted(record, _) = Record::lease(None, &limit, &ask(1, 30), now) else { panic!("{window:?}") };
        let Answer::NotBefore(at) = Record::lease(Some(&record), &limit, &ask(2, 10), now) else {
            panic!("{window:?}")
        };
        assert!(at > now, "{window:?}");
    }
}

#[test]
fn a_limit_that_counts_in_another_way_now_gives_nothing_at_first() {
    let now = Timestamp::from_millis(BEGIN);
    let ask = |number| Ask { who: "n".into(), number, need: 1, want: 10 };
    let Answer::Granted(record, _) = Record::lease(None, &limit(Window::Bucket, 10, 1_000, 10), &ask(1), now) else {
        panic!()
    };
    for window in [Window::Fixed, Window::Sliding] {
        assert_eq!(record.left(&limit(window, 10, 1_000, 10), now), 0);
    }
}

/// A limit of each kind, with a short and with a long span: ten tokens, all taken at this time.
fn used_up(at: Timestamp) -> impl Iterator<Item = (RateLimit, Record)> {
    let windows = [Window::Bucket, Window::Fixed, Window::Sliding];
    let spans = windows.map(|window| [(window, 1_000), (window, 60_000), (window, 86_400_000)]);
    spans.into_iter().flatten().map(move |(window, per)| {
        let (limit, ask) = (limit(window, 10, per, 10), Ask { who: "n".into(), number: 1, need: 1, want: 10 });
        let Answer::Granted(record, lease) = Record::lease(None, &limit, &ask, at) else { panic!("{limit:?}") };
        assert_eq!(lease.tokens, 10, "{limit:?}");
        (limit, record)
    })
}

/// Given a limit that is used up, when it is set to another kind or span, then it grants within a span of the new one:
/// who is refused stores that it is of the new one.
#[test]
fn a_limit_of_another_kind_or_span_grants_again_within_its_span() {
    let now = Timestamp::from_millis(BEGIN);
    for (before, record) in used_up(now) {
        for (after, _) in used_up(now).filter(|(after, _)| *after != before) {
            let ask = Ask { who: "n".into(), number: 2, need: 1, want: 1 };
            let asked = now.plus(Duration::from_millis(1));
            let refused = matches!(Record::lease(Some(&record), &after, &ask, asked), Answer::NotBefore(_));
            let record = if refused { record.corrected(&after, asked).unwrap() } else { record.clone() };
            assert_eq!(record.corrected(&after, asked).is_some(), !refused, "it is stored once");
            // The slice of the last tokens is over, too.
            let later = asked.plus(after.per + after.per / 25);
            let answer = Record::lease(Some(&record), &after, &ask, later);
            assert!(matches!(answer, Answer::Granted(..)), "{before:?}, then {after:?}: {answer:?}");
        }
    }
}

/// Given a limit that was used up by a clock an hour ahead, when that is corrected, then it is whole again within its
/// span, and not an hour later.
#[test]
fn a_limit_is_whole_again_soon_after_a_clock_was_corrected() {
    let now = Timestamp::from_millis(BEGIN);
    for (limit, record) in used_up(now.plus(Duration::from_secs(3_600))) {
        let corrected = record.corrected(&limit, now).unwrap();
        assert_eq!(corrected.corrected(&limit, now), None);
        assert_eq!(corrected.left(&limit, now.plus(limit.per + limit.per / 25)), 10, "{limit:?}");
    }
}

#[test]
fn a_holder_takes_while_it_has_tokens_and_gives_back_what_is_idle() {
    let (start, time) = (Instant::now(), Timestamp::from_millis(BEGIN));
    let limit = limit(Window::Bucket, 100, 1_000, 90);
    let mut holder = Holder::new("n".into(), limit, start);
    assert_eq!(holder.take(1, start), Err(Wait { until: start + Duration::from_millis(100), asks: true }));
    let ask = holder.ask(start).unwrap();
    assert_eq!(holder.ask(start), Some(ask.clone()), "the same until it is answered");
    let from = time.plus(Duration::from_millis(50));
    let lease = Lease { tokens: 3, from, until: from.plus(limit.lease()) };
    holder.granted(ask.number, lease, Asked { sent: start, time }, 1);
    let begin = start + Duration::from_millis(50);
    assert_eq!(holder.take(1, start), Err(Wait { until: begin, asks: false }), "they are coming");
    assert_eq!((holder.at_hand(start), holder.usable(start), holder.usable(begin)), (3, 0, 3));
    let taken = holder.take(2, begin).unwrap();
    assert_eq!(taken.until, begin + limit.lease());
    holder.put_back(taken);
    assert!(holder.take(3, begin).is_ok());
    assert!(holder.take(1, begin).is_err() && holder.give_back(begin + limit.lease()).is_empty(), "all are used");
    let ask = holder.ask(begin).unwrap();
    let lease = Lease { tokens: 3, from: time.plus(Duration::from_millis(50)), ..lease };
    holder.granted(ask.number, lease, Asked { sent: start, time }, 1);
    assert!(holder.take(1, begin).is_ok());
    assert!(holder.take(1, begin + Duration::from_millis(500)).is_err(), "their lease is over");
    let back = holder.give_back(begin + Duration::from_secs(1));
    assert_eq!(back.iter().map(|(ask, unused)| (ask.number, *unused)).collect::<Vec<_>>(), [(2, 2)]);
}

/// With five tokens an hour, the next would be there in twelve minutes: a token that was given back meanwhile is not
/// left alone until then.
#[test]
fn a_refused_holder_asks_again_once_it_has_given_tokens_back() {
    let (start, time) = (Instant::now(), Timestamp::from_millis(BEGIN));
    let mut holder = Holder::new("n".into(), limit(Window::Bucket, 5, 3_600_000, 5), start);
    assert!(holder.take(1, start).is_err());
    let ask = holder.ask(start).unwrap();
    holder.refused(ask.number, time.plus(Duration::from_secs(720)), Asked { sent: start, time });
    let later = start + Duration::from_secs(1);
    assert!(holder.take(1, later).is_err() && holder.ask(later).is_none());

    holder.returned();

    assert_eq!(holder.take(1, later).map_err(|wait| wait.asks), Err(true));
    assert_eq!(holder.ask(later).map(|ask| ask.number), Some(2));
}

#[test]
fn a_refused_holder_asks_again_when_tokens_can_be_promised() {
    let (start, time) = (Instant::now(), Timestamp::from_millis(BEGIN));
    let mut holder = Holder::new("n".into(), limit(Window::Bucket, 1, 10_000, 1), start);
    assert!(holder.take(1, start).is_err());
    let ask = holder.ask(start).unwrap();
    holder.refused(ask.number, time.plus(Duration::from_secs(10)), Asked { sent: start, time });
    assert_eq!(holder.ask(start), None);
    let again = start + Duration::from_millis(9_500);
    assert_eq!(
        (holder.not_before(start), holder.take(1, start)),
        (Some(again), Err(Wait { until: again, asks: false }))
    );
    assert_eq!(holder.next_at(start), Some(start + Duration::from_secs(10)));
    assert_eq!(holder.take(1, again).map_err(|wait| wait.asks), Err(true));
    assert_eq!(holder.ask(again).map(|ask| ask.number), Some(2));
}
