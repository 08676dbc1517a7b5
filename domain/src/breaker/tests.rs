//! Breakers against plain counting, with random outcomes and times; and their states one by one.

use proptest::prelude::*;

use super::record::{Breaker, BreakerKey, BreakerStep, By, Cause, Circuit};
use super::tally::Tally;
use super::view::{Admission, COUNTED_EVERY, Pass, View};
use super::*;
use crate::run::RunResult;
use crate::{Failure, JobType, SmolStr, Tenant, Timestamp};

const LEASE: Duration = Duration::from_secs(30);

fn at(millis: i64) -> Timestamp {
    Timestamp::from_millis(1_000_000_000_000 + millis)
}

fn key() -> BreakerKey {
    BreakerKey { tenant: Tenant::default_tenant(), job_type: JobType::parse("mail.send").unwrap(), key: None }
}

fn fresh() -> Breaker {
    Breaker::new(key(), at(0))
}

fn node(name: &str) -> SmolStr {
    SmolStr::from(name)
}

fn by<'a>(writer: &'a SmolStr, number: u64, now: Timestamp, policy: &'a BreakerPolicy) -> By<'a> {
    By { writer, number, now, chance: 0.5, policy, lease: LEASE }
}

fn tally(outcomes: &[bool], now: Timestamp, policy: &BreakerPolicy) -> Tally {
    let mut tally = Tally::default();
    outcomes.iter().for_each(|success| tally.add(*success, now, policy.ratio.map(|_| policy.window)));
    tally
}

fn until_of(breaker: &Breaker) -> Timestamp {
    let Circuit::Open { until, .. } = breaker.state else { panic!("not open: {breaker:?}") };
    until
}

/// Plain counting: the failures in a row after all of this, and the most that there ever were.
fn count_in_a_row(outcomes: impl Iterator<Item = bool>) -> (u32, u32) {
    let (mut in_a_row, mut most) = (0, 0);
    for success in outcomes {
        in_a_row = if success { 0 } else { in_a_row + 1 };
        most = most.max(in_a_row);
    }
    (in_a_row, most)
}

proptest! {
    #[test]
    fn failures_in_a_row_are_those_of_plain_counting(
        batches in prop::collection::vec(prop::collection::vec(any::<bool>(), 1..12), 1..20), failures in 1u32..9,
    ) {
        let policy = BreakerPolicy { failures, ..BreakerPolicy::default() };
        let (mut breaker, mut before) = (fresh(), Vec::new());
        for (number, batch) in (1..).zip(&batches) {
            before.extend(batch.iter().copied());
            let step = BreakerStep::Count { period: 0, tally: tally(batch, at(5), &policy) };
            // Every node numbers its own steps.
            let writer = node(["a", "b"][number as usize % 2]);
            breaker = breaker.after(&step, by(&writer, number, at(5), &policy)).unwrap();
            let (in_a_row, most) = count_in_a_row(before.iter().copied());
            prop_assert_eq!(!breaker.is_closed(), most >= failures);
            if most >= failures {
                prop_assert_eq!(breaker.failures(), most, "those that opened it");
                let is_cause = matches!(breaker.state, Circuit::Open { times: 1, cause: Cause::Failures, .. });
                prop_assert!(is_cause, "{:?}", breaker.state);
                break;
            }
            prop_assert_eq!(breaker.failures_in_a_row(), in_a_row);
        }
    }

    #[test]
    fn the_share_of_failures_is_that_of_plain_counting(
        batches in prop::collection::vec((0i64..4_000, prop::collection::vec((0i64..900, any::<bool>()), 1..12)), 1..20),
        ratio in 0.1f64..1.0, min_calls in 1u32..20,
    ) {
        let window = Duration::from_millis(10_000);
        let policy = BreakerPolicy { failures: 10_000, ratio: Some(ratio), window, min_calls, ..BreakerPolicy::default() };
        let (mut breaker, mut now, mut all) = (fresh(), 0, Vec::new());
        for (number, (pause, outcomes)) in (1..).zip(&batches) {
            let mut tally = Tally::default();
            now += pause;
            for (later, success) in outcomes {
                now += later;
                tally.add(*success, at(now), Some(window));
                all.push((now, *success));
            }
            let step = BreakerStep::Count { period: 0, tally };
            breaker = breaker.after(&step, by(&node("a"), number, at(now), &policy)).unwrap();
            // An outcome counts until the second in which it came began ten seconds ago.
            let counts = |came: i64| now - came.div_euclid(1_000) * 1_000 < 10_000;
            let within: Vec<bool> = all.iter().filter(|(came, _)| counts(*came)).map(|(_, success)| *success).collect();
            let failed = within.iter().filter(|success| !**success).count();
            let opens = within.len() >= min_calls as usize && failed > 0 && failed as f64 >= ratio * within.len() as f64;
            prop_assert_eq!(!breaker.is_closed(), opens, "{} of {}", failed, within.len());
            if opens {
                prop_assert_eq!(breaker.failures() as usize, failed, "those that opened it");
                break;
            }
            let totals = breaker.totals(at(now), &policy);
            prop_assert_eq!((totals.calls as usize, totals.failures as usize), (within.len(), failed));
        }
    }

    /// One node alone: whatever is reported at whatever time, its record and what it still has to write are together
    /// what plain counting says.
    #[test]
    fn a_node_that_writes_now_and_then_opens_when_plain_counting_does(
        outcomes in prop::collection::vec((0i64..100, 0u32..10), 1..200), failures in 1u32..7, bias in 1u32..9,
    ) {
        let policy = BreakerPolicy { failures, ..BreakerPolicy::default() };
        let (writer, mut view, mut breaker, mut revision) = (node("a"), View::new(node("a")), None::<Breaker>, 0);
        let (mut now, mut successes, mut written_at) = (0, Vec::new(), None::<i64>);
        for (number, (later, drawn)) in (1..).zip(&outcomes) {
            now += later;
            let success = *drawn < bias;
            let signal = if success { Signal::Success } else { Signal::Failure };
            view.ended(Pass::default(), signal, at(now), &policy);
            successes.push(success);
            let opened = count_in_a_row(successes.iter().copied()).1 >= failures;
            prop_assert_eq!(view.may_start(at(now), &policy) == Admission::Wait, opened, "no job starts meanwhile");
            if let Some((number, step)) = view.next_step(at(now), number, &policy, LEASE).cloned() {
                let early = written_at.is_some_and(|at| now - at < COUNTED_EVERY.as_millis() as i64);
                prop_assert!(opened || !early, "written too often");
                written_at = Some(now);
                let before = breaker.clone().unwrap_or_else(fresh);
                let next = before.after(&step, by(&writer, number, at(now), &policy)).unwrap();
                revision += 1;
                view.learned(next.clone(), revision, &policy);
                view.settled(at(now), &policy);
                breaker = Some(next);
            }
            prop_assert_eq!(breaker.as_ref().is_some_and(|breaker| !breaker.is_closed()), opened);
            if opened {
                let until = until_of(breaker.as_ref().unwrap());
                prop_assert_eq!(view.may_start(at(now), &policy), Admission::NotBefore(until));
                break;
            }
        }
    }

    #[test]
    fn a_cool_down_doubles_and_jitter_only_lengthens_it(
        cool_down in 1u64..100_000, max in 1u64..10_000_000, times in 1u32..100, chance in 0.0f64..1.0,
    ) {
        let (cool_down, max) = (Duration::from_millis(cool_down), Duration::from_millis(max));
        let policy = BreakerPolicy { cool_down, max_cool_down: max, ..BreakerPolicy::default() };
        let plain = cool_down.as_secs_f64() * 2f64.powi(times as i32 - 1);
        let plain = plain.min(max.as_secs_f64());
        let it = policy.cool_down(times, chance).as_secs_f64();
        prop_assert!(it >= plain - 1e-6 && it <= 1.1 * plain + 1e-6, "{} of {}", it, plain);
    }
}

#[test]
fn what_outcomes_say() {
    let failed = |kind| Outcome::Failed { failure: Failure::new(kind, "x"), retry_after: None };
    let signals = |count_permanent| {
        let of = |outcome| Signal::of(&outcome, count_permanent);
        let failures = [ErrorKind::Retryable, ErrorKind::Timeout, ErrorKind::LeaseExpired, ErrorKind::Panic];
        assert!(failures.into_iter().all(|kind| of(failed(kind)) == Signal::Failure));
        let neutral = [failed(ErrorKind::NoHandler), failed(ErrorKind::Invalid), failed(ErrorKind::Cancelled)];
        let others = [Outcome::NoHandler, Outcome::Released, Outcome::Cancelled, Outcome::Busy { started: true }];
        let all = neutral.into_iter().chain(others).chain([Outcome::Snoozed(LEASE)]);
        assert!(all.map(of).all(|signal| signal == Signal::Neutral));
        assert_eq!(of(Outcome::Completed(RunResult::None)), Signal::Success);
        of(failed(ErrorKind::Permanent))
    };
    assert_eq!((signals(false), signals(true)), (Signal::Neutral, Signal::Failure));
}

/// A breaker that opened at 0 for 30 s (and half of a tenth).
fn opened(policy: &BreakerPolicy) -> Breaker {
    let step = BreakerStep::Count { period: 0, tally: tally(&[false; 5], at(0), policy) };
    fresh().after(&step, by(&node("a"), 1, at(0), policy)).unwrap()
}

#[test]
fn it_opens_half_opens_and_closes_after_enough_probes() {
    let policy = BreakerPolicy { probes: 2, ..BreakerPolicy::default() };
    let (a, b) = (node("a"), node("b"));
    let open = opened(&policy);
    let until = until_of(&open);
    assert_eq!(until, at(31_500));
    let take = BreakerStep::TakeProbe { period: open.period };
    assert_eq!(open.after(&take, by(&a, 2, until.minus(Duration::from_millis(1)), &policy)), None);
    let half = open.after(&take, by(&a, 2, until, &policy)).unwrap();
    assert!(half.has_probe(&a, 2, until) && half.period > open.period);
    assert_eq!(half.after(&take, by(&b, 1, until, &policy)), None, "the period is over");
    let take = BreakerStep::TakeProbe { period: half.period };
    let both = half.after(&take, by(&b, 1, until, &policy)).unwrap();
    assert_eq!(both.after(&take, by(&b, 2, until, &policy)), None, "no third one");
    let end = |number, signal| BreakerStep::EndProbe { number, signal };
    let one = both.after(&end(2, Signal::Success), by(&a, 3, until, &policy)).unwrap();
    assert!(!one.is_closed() && one.period == half.period);
    assert_eq!(one.after(&end(2, Signal::Success), by(&a, 4, until, &policy)), None, "it ended before");
    assert_eq!(one.after(&take, by(&a, 4, until, &policy)), None, "one more success is all that is needed");
    let given_back = one.after(&end(1, Signal::Neutral), by(&b, 3, until, &policy)).unwrap();
    let again = given_back.after(&take, by(&b, 4, until, &policy)).unwrap();
    let closed = again.after(&end(4, Signal::Success), by(&b, 5, until, &policy)).unwrap();
    assert!(closed.is_closed() && closed.failures_in_a_row() == 0 && closed.period > half.period);
}

#[test]
fn a_failed_probe_opens_it_for_longer() {
    let policy = BreakerPolicy::default();
    let (a, mut breaker, mut spans) = (node("a"), opened(&policy), Vec::new());
    for number in 1..6 {
        let now = until_of(&breaker);
        let take = BreakerStep::TakeProbe { period: breaker.period };
        let half = breaker.after(&take, by(&a, 2 * number, now, &policy)).unwrap();
        let end = BreakerStep::EndProbe { number: 2 * number, signal: Signal::Failure };
        breaker = half.after(&end, by(&a, 2 * number + 1, now, &policy)).unwrap();
        spans.push(until_of(&breaker).since(now).as_millis());
    }
    assert_eq!(spans, [63_000, 126_000, 252_000, 315_000, 315_000]);
    assert!(matches!(breaker.state, Circuit::Open { times: 6, cause: Cause::Probe, .. }), "{breaker:?}");
    assert_eq!(breaker.failures(), opened(&policy).failures() + 5, "each failed probe is one more");
}

#[test]
fn the_probe_of_a_dead_holder_comes_back_and_a_renewed_one_does_not() {
    let policy = BreakerPolicy::default();
    let (a, b, open) = (node("a"), node("b"), opened(&policy));
    let now = until_of(&open);
    let half = open.after(&BreakerStep::TakeProbe { period: open.period }, by(&a, 2, now, &policy)).unwrap();
    let take = BreakerStep::TakeProbe { period: half.period };
    let later = now.plus(LEASE / 2);
    let renewed = half.after(&BreakerStep::RenewProbes, by(&a, 3, later, &policy)).unwrap();
    let lost_at = now.plus(LEASE);
    assert!(!renewed.offers_probe(lost_at, &policy) && half.offers_probe(lost_at, &policy));
    assert_eq!(renewed.after(&take, by(&b, 1, lost_at, &policy)), None);
    let anothers = half.after(&take, by(&b, 1, lost_at, &policy)).unwrap();
    let end = BreakerStep::EndProbe { number: 2, signal: Signal::Success };
    assert_eq!(anothers.after(&end, by(&a, 4, lost_at, &policy)), None, "it was lost");
}

#[test]
fn a_step_is_done_once_and_only_in_its_period() {
    let policy = BreakerPolicy { failures: 9, ..BreakerPolicy::default() };
    let a = node("a");
    let step = BreakerStep::Count { period: 0, tally: tally(&[false; 5], at(0), &policy) };
    let five = fresh().after(&step, by(&a, 7, at(0), &policy)).unwrap();
    assert_eq!(five.after(&step, by(&a, 7, at(1), &policy)), None);
    let open = five.after(&step, by(&a, 8, at(1), &policy)).unwrap();
    assert!(!open.is_closed());
    let closed = open.after(&BreakerStep::Reset, by(&a, 9, at(2), &policy)).unwrap();
    assert_eq!(closed.after(&step, by(&a, 10, at(3), &policy)), None, "those attempts began before it opened");
}

#[test]
fn an_operator_opens_and_closes_it() {
    let policy = BreakerPolicy::default();
    let a = node("a");
    let trip = |until| fresh().after(&BreakerStep::Trip { until }, by(&a, 1, at(0), &policy)).unwrap();
    assert_eq!((until_of(&trip(Some(at(9)))), until_of(&trip(None))), (at(9), at(31_500)));
    assert!(trip(None).after(&BreakerStep::Reset, by(&a, 2, at(0), &policy)).unwrap().is_closed());
    assert!(!trip(Some(at(0).plus(LEASE * 9_999))).is_forgotten(at(0).plus(LEASE * 9_999)));
}

#[test]
fn a_record_is_written_and_read_again() {
    let policy = BreakerPolicy { ratio: Some(1.0), min_calls: 100, failures: 9, ..BreakerPolicy::default() };
    let a = node("a");
    let count = BreakerStep::Count { period: 0, tally: tally(&[true, false], at(123), &policy) };
    let with_key = BreakerKey { key: Some("host.example".into()), ..key() };
    let closed = Breaker::new(with_key, at(0)).after(&count, by(&a, 1, at(200), &policy)).unwrap();
    let open = closed.after(&BreakerStep::Trip { until: Some(at(300)) }, by(&a, 2, at(250), &policy)).unwrap();
    let take = BreakerStep::TakeProbe { period: open.period };
    let half = open.after(&take, by(&a, 3, at(300), &policy)).unwrap();
    for breaker in [closed, open, half] {
        let text = serde_json::to_string(&breaker).unwrap();
        assert_eq!(serde_json::from_str::<Breaker>(&text).unwrap(), breaker, "{text}");
    }
}

#[test]
fn a_success_is_written_only_after_failures() {
    let policy = BreakerPolicy::default();
    let mut view = View::new(node("a"));
    view.ended(Pass::default(), Signal::Success, at(0), &policy);
    assert!(view.next_step(at(1_000), 1, &policy, LEASE).is_none() && view.is_idle(at(1_000), &policy));
    // Another node had two failures.
    let step = BreakerStep::Count { period: 0, tally: tally(&[false; 2], at(0), &policy) };
    let two = fresh().after(&step, by(&node("b"), 1, at(0), &policy)).unwrap();
    view.learned(two.clone(), 4, &policy);
    assert!(view.next_step(at(1_000), 1, &policy, LEASE).is_none());
    view.ended(Pass::default(), Signal::Success, at(1_000), &policy);
    let (number, step) = view.next_step(at(1_000), 2, &policy, LEASE).cloned().unwrap();
    let none = two.after(&step, by(&node("a"), number, at(1_000), &policy)).unwrap();
    assert_eq!(none.failures_in_a_row(), 0);
}

#[test]
fn nodes_write_their_successes_once_the_window_has_a_failure() {
    let policy = BreakerPolicy { ratio: Some(0.5), min_calls: 1, ..BreakerPolicy::default() };
    let mut view = View::new(node("a"));
    for _ in 0..3 {
        view.ended(Pass::default(), Signal::Success, at(0), &policy);
    }
    assert!(view.next_step(at(0), 1, &policy, LEASE).is_none() && !view.is_idle(at(0), &policy));
    let b = node("b");
    let calm = BreakerPolicy { min_calls: 2, ..policy };
    let step = BreakerStep::Count { period: 0, tally: tally(&[false], at(0), &calm) };
    let failed = fresh().after(&step, by(&b, 1, at(0), &calm)).unwrap();
    view.learned(failed.clone(), 4, &policy);
    let (number, step) = view.next_step(at(0), 2, &policy, LEASE).cloned().unwrap();
    let totals = failed.after(&step, by(&node("a"), number, at(0), &policy)).unwrap().totals(at(0), &policy);
    assert_eq!((totals.calls, totals.failures), (4, 1));
}

#[test]
fn a_probe_is_used_by_one_job_and_given_back_if_none_uses_it() {
    let policy = BreakerPolicy::default();
    let (mut view, a) = (View::new(node("a")), node("a"));
    let open = opened(&policy);
    let until = until_of(&open);
    view.learned(open.clone(), 1, &policy);
    assert_eq!(view.may_start(at(0), &policy), Admission::NotBefore(until));
    assert_eq!((view.may_start(until, &policy), view.free(until, &policy, 9)), (Admission::Wait, 1));
    let (number, step) = view.next_step(until, 5, &policy, LEASE).cloned().unwrap();
    let half = open.after(&step, by(&a, number, until, &policy)).unwrap();
    view.learned(half.clone(), 2, &policy);
    view.settled(until, &policy);
    let mut unused = view.clone();
    let Admission::Go(pass) = view.may_start(until, &policy) else { panic!("it has the probe") };
    assert_eq!((pass.probe, view.may_start(until, &policy)), (Some(5), Admission::Wait));
    view.ended(pass, Signal::Success, until, &policy);
    let (_, step) = view.next_step(until, 6, &policy, LEASE).unwrap();
    assert_eq!(*step, BreakerStep::EndProbe { number: 5, signal: Signal::Success });
    let later = until.plus(Duration::from_secs(2));
    let (_, step) = unused.next_step(later, 6, &policy, LEASE).unwrap();
    assert_eq!(*step, BreakerStep::EndProbe { number: 5, signal: Signal::Neutral });
    // A node that stood still for longer than the lease has lost it.
    unused.learned(half, 3, &policy);
    assert_eq!(unused.may_start(until.plus(LEASE), &policy), Admission::Wait);
}
