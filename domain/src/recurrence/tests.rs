//! Tests: known changes of the clocks, and a comparison with a search that looks at every second.

use proptest::prelude::*;

use super::*;

fn at(text: &str) -> Timestamp {
    Timestamp::parse(text).unwrap()
}

/// The times after `after`, in UTC.
fn times(expression: &str, zone: &str, after: &str, count: usize) -> Vec<String> {
    let recurrence = Recurrence::cron(expression, Some(zone)).unwrap();
    let next = |last: &Timestamp| recurrence.next_after(*last);
    let all = std::iter::successors(next(&at(after)), next);
    all.take(count).map(|at| at.to_string().replace(".000Z", "Z")).collect()
}

#[test]
fn an_hour_that_the_clocks_leave_out_is_not_due_and_one_that_they_repeat_is_due_twice() {
    let spring = times("0 30 2 * * *", "Europe/Berlin", "2027-03-26T12:00:00Z", 3);
    assert_eq!(spring, ["2027-03-27T01:30:00Z", "2027-03-29T00:30:00Z", "2027-03-30T00:30:00Z"]);
    let autumn = times("0 30 2 * * *", "Europe/Berlin", "2027-10-30T12:00:00Z", 3);
    assert_eq!(autumn, ["2027-10-31T00:30:00Z", "2027-10-31T01:30:00Z", "2027-11-01T01:30:00Z"]);
    let every_hour = times("0 0 * * * *", "America/New_York", "2027-03-14T05:00:00Z", 3);
    assert_eq!(every_hour, ["2027-03-14T06:00:00Z", "2027-03-14T07:00:00Z", "2027-03-14T08:00:00Z"]);
    let midnight = times("0 0 0 * * *", "UTC", "2027-10-30T12:00:00Z", 1);
    assert_eq!(midnight, ["2027-10-31T00:00:00Z"]);
}

#[test]
fn a_day_that_a_zone_leaves_out_is_not_due() {
    // Samoa went over the date line: there was no 30 December 2011.
    let samoa = times("0 0 12 30 12 *", "Pacific/Apia", "2011-06-01T00:00:00Z", 1);
    assert_eq!(samoa, ["2012-12-29T22:00:00Z"]);
}

#[test]
fn rare_times_are_found_and_impossible_ones_refused() {
    assert_eq!(times("0 0 0 29 2 *", "Europe/Berlin", "2096-03-01T00:00:00Z", 1), ["2104-02-28T23:00:00Z"]);
    assert_eq!(
        times("0 0 12 * * 1#1", "UTC", "2027-01-01T00:00:00Z", 2),
        ["2027-01-04T12:00:00Z", "2027-02-01T12:00:00Z"]
    );
    assert_eq!(times("0 0 0 L * *", "UTC", "2027-02-01T00:00:00Z", 1), ["2027-02-28T00:00:00Z"]);
    let refused = |expression, zone| Recurrence::cron(expression, zone).unwrap_err().to_string();
    assert!(refused("0 0 0 30 2 *", None).contains("matches no time"));
    // The hour that the clocks leave out, on the day on which they do; they did not in 1970.
    assert!(refused("0 30 2 * 3 SUNL", Some("Europe/Berlin")).contains("matches no time"));
    assert!(Recurrence::cron("0 30 3 * 3 SUNL", Some("Europe/Berlin")).is_ok());
    assert!(refused("0 3 * *", None).contains("has 4 fields; five or six are needed"));
    assert_eq!(Recurrence::cron("0 3 * * *", None), Recurrence::cron("0 0 3 * * *", None), "second 0");
    assert!(refused("@daily", None).contains("has 1 fields"));
    let out_of_range = refused("0 0 25 * * *", None);
    assert!(out_of_range.contains("cannot be read") && out_of_range.contains("hour 0-23"), "{out_of_range}");
    assert!(refused("0 0 0 * * *", Some("Berlin")).contains("\"Europe/Berlin\""));
    assert!(refused(&format!("{} 0 0 * * *", "0,".repeat(200)), None).contains("more than 256 bytes"));
}

#[test]
fn an_interval_is_counted_from_the_epoch() {
    let minute = Recurrence::every(Duration::from_secs(60)).unwrap();
    assert_eq!(minute.next_after(at("2027-01-31T09:30:00Z")), Some(at("2027-01-31T09:31:00Z")));
    assert_eq!(minute.next_after(at("2027-01-31T09:30:59.999Z")), Some(at("2027-01-31T09:31:00Z")));
    assert!(Recurrence::every(Duration::from_millis(999)).is_err());
    assert_eq!(minute.next_after(Timestamp::LAST_SCHEDULE), None);
}

/// A field: which of `low..=high` it allows, and how it is written.
fn field(low: u32, high: u32) -> impl Strategy<Value = (String, Vec<u32>)> {
    let any = Just(("*".to_owned(), (low..=high).collect()));
    let list = proptest::collection::btree_set(low..=high, 1..4).prop_map(|set| {
        let text = set.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
        (text, set.into_iter().collect())
    });
    let range = (low..=high, low..=high).prop_map(|(a, b)| {
        let (from, to) = (a.min(b), a.max(b));
        (format!("{from}-{to}"), (from..=to).collect())
    });
    let step = (2u32..=20)
        .prop_map(move |step| (format!("*/{step}"), (low..=high).step_by(step as usize).collect::<Vec<u32>>()));
    prop_oneof![any, list, range, step]
}

/// Zones and the seconds around one of their changes: an hour forward, an hour back, half an hour, and none.
const CHANGES_OF: [(&str, &str); 6] = [
    ("Europe/Berlin", "2027-03-28T01:00:00Z"),
    ("Europe/Berlin", "2027-10-31T01:00:00Z"),
    ("America/New_York", "2027-11-07T06:00:00Z"),
    ("Australia/Lord_Howe", "2027-04-03T15:00:00Z"),
    ("Australia/Lord_Howe", "2027-10-02T15:30:00Z"),
    ("Asia/Kolkata", "2027-06-01T00:00:00Z"),
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]

    /// The next time is the first second whose time of day, in its zone, every field allows.
    #[test]
    fn the_next_time_is_the_first_second_that_matches(
        (second, minute, hour) in (field(0, 59), field(0, 59), field(0, 23)),
        (day, month, weekday) in (field(1, 31), field(1, 12), field(0, 6)),
        change in 0usize..CHANGES_OF.len(),
        back in 0i64..14_400,
    ) {
        let (zone, around) = CHANGES_OF[change];
        let expression = format!("{} {} {} {} {} {}", second.0, minute.0, hour.0, day.0, month.0, weekday.0);
        let Ok(recurrence) = Recurrence::cron(&expression, Some(zone)) else { return Ok(()) };
        let zone = TimeZoneDatabase::bundled().get(zone).unwrap();
        let matches = |at: Timestamp| {
            let local = jiff::Timestamp::from_millisecond(at.millis()).unwrap().to_zoned(zone.clone());
            let has = |values: &[u32], part: i8| values.contains(&u32::try_from(part).unwrap());
            let day_matches = has(&day.1, local.day());
            let weekday_matches = has(&weekday.1, local.weekday().to_sunday_zero_offset());
            let days = match (day.0 == "*", weekday.0 == "*") {
                (false, false) => day_matches || weekday_matches,
                _ => day_matches && weekday_matches,
            };
            days && has(&month.1, local.month()) && has(&hour.1, local.hour())
                && has(&minute.1, local.minute()) && has(&second.1, local.second())
        };
        let start = Timestamp::from_millis(at(around).millis() - back * 1_000 - 1);
        let end = start.plus(Duration::from_secs(6 * 3_600));
        // A change of offset lies in the middle of these hours.
        let mut after = start;
        let mut seconds = (start.millis() / 1_000 + 1..end.millis() / 1_000).map(|s| Timestamp::from_millis(s * 1_000));
        for _ in 0..40 {
            let expected = seconds.find(|second| matches(*second));
            let found = recurrence.next_after(after).filter(|found| found.millis() / 1_000 < end.millis() / 1_000);
            prop_assert_eq!(found, expected, "{} in {} after {}", expression, CHANGES_OF[change].0, after);
            match expected {
                Some(at) => after = at,
                None => break,
            }
        }
    }

    #[test]
    fn an_interval_divides_its_times(seconds in 1u64..1_000_000, after in 0i64..2_000_000_000_000) {
        let every = Duration::from_secs(seconds);
        let next = Recurrence::every(every).unwrap().next_after(Timestamp::from_millis(after)).unwrap();
        prop_assert!(next.millis() > after && next.millis() - after <= every.as_millis() as i64);
        prop_assert_eq!(next.millis() % every.as_millis() as i64, 0);
    }
}
