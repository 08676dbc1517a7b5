//! Schedules that are paused, go on, and are filled up for a span that is over.

use longshore_backbone::wire::api::{Endpoint as _, OPERATOR, SchedulesBackfill, SchedulesPut};
use serde_json::{Value, json};

use super::*;

fn at(text: &str) -> Timestamp {
    Timestamp::parse(&format!("2026-03-01T{text}Z")).unwrap()
}

/// A schedule that fires every ten minutes, made at 8.
fn every_ten_minutes(more: &Value) -> Recurring {
    let mut asked = json!({"id": "sync", "every": "10m", "type": "t"});
    asked.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let asked = SchedulesPut::read(asked.to_string().as_bytes()).unwrap();
    let timing = asked.schedule.timing().unwrap();
    Recurring::put(&asked, &timing, &Tenant::default_tenant(), None, at("08:00:00"))
}

fn fill(schedule: &Recurring, from: &str, until: Option<&str>, now: &str) -> Result<Vec<Timestamp>, ApiError> {
    let asked = json!({"id": "sync", "from": at(from), "until": until.map(at)});
    let asked = SchedulesBackfill::read(asked.to_string().as_bytes()).unwrap();
    times_to_fill(schedule, &asked, at(now))
}

#[test]
fn a_backfill_is_of_every_time_of_the_span_with_both_its_ends() {
    let schedule = every_ten_minutes(&json!({}));
    let times = ["09:00:00", "09:10:00", "09:20:00"].map(at);
    assert_eq!(fill(&schedule, "09:00:00", Some("09:20:00"), "12:00:00").unwrap(), times);
    assert_eq!(fill(&schedule, "08:50:01", Some("09:29:59"), "12:00:00").unwrap(), times);
    assert_eq!(fill(&schedule, "09:00:00", None, "09:25:00").unwrap(), times, "up to now, if nothing is said");
    assert_eq!(fill(&schedule, "09:00:01", Some("09:09:59"), "12:00:00").unwrap(), []);
}

#[test]
fn a_backfill_makes_no_run_of_a_time_after_the_schedules_end() {
    let schedule = every_ten_minutes(&json!({"ends_at": at("09:10:00")}));
    let times = ["09:00:00", "09:10:00"].map(at);
    assert_eq!(fill(&schedule, "09:00:00", Some("10:00:00"), "12:00:00").unwrap(), times);
}

#[test]
fn a_paused_schedule_can_be_filled_up() {
    let paused = paused(every_ten_minutes(&json!({})), at("08:30:00"));
    assert_eq!(fill(&paused, "09:00:00", Some("09:00:00"), "12:00:00").unwrap(), [at("09:00:00")]);
}

#[test]
fn a_span_that_is_not_over_is_refused() {
    let schedule = every_ten_minutes(&json!({}));
    let message = |from, until| fill(&schedule, from, until, "10:00:00").unwrap_err().message;
    let backwards = "until: is before from, or from lies ahead";
    assert_eq!(message("09:30:00", Some("09:00:00")), backwards);
    assert_eq!(message("10:00:01", None), backwards);
    let ahead = "until: lies ahead; a backfill is for times that are over";
    assert_eq!(message("09:00:00", Some("10:00:01")), ahead);
    assert!(fill(&schedule, "09:00:00", Some("10:00:00"), "10:00:00").is_ok(), "now is over");
}

#[test]
fn a_span_of_more_times_than_one_call_makes_says_how_far_it_may_go() {
    let schedule = every_ten_minutes(&json!({"every": "1s"}));
    let thousand = fill(&schedule, "09:00:00", Some("09:16:39"), "12:00:00").unwrap();
    assert_eq!((thousand.len(), thousand.last()), (1_000, Some(&at("09:16:39"))));
    let error = fill(&schedule, "09:00:00", Some("09:16:40"), "12:00:00").unwrap_err();
    let last = at("09:16:39");
    let message = format!("until: more than 1000 times are due in this span; take it up to {last} first");
    assert_eq!((error.code, error.message), (400, message));
}

#[test]
fn a_paused_schedule_has_no_next_time_and_pausing_it_again_changes_nothing() {
    let made = every_ten_minutes(&json!({}));
    assert_eq!(made.progress.next, Some(at("08:10:00")));
    let paused = paused(made, at("08:05:00"));
    assert_eq!((paused.paused, paused.progress.next, paused.updated_at), (true, None, at("08:05:00")));
    let again = super::paused(paused.clone(), at("09:00:00"));
    assert_eq!(again.updated_at, paused.updated_at, "who paused it did so then");
}

#[test]
fn a_schedule_that_goes_on_makes_up_for_no_time_of_its_pause() {
    let paused = paused(every_ten_minutes(&json!({})), at("08:05:00"));
    let goes_on = resumed(paused, at("11:02:00")).unwrap();
    let (next, updated_at) = (goes_on.progress.next, goes_on.updated_at);
    assert_eq!((goes_on.paused, next, updated_at), (false, Some(at("11:10:00")), at("11:02:00")));
    let again = resumed(goes_on, at("11:30:00")).unwrap();
    assert_eq!((again.progress.next, again.updated_at), (next, updated_at), "a firing that is due is not left out");
}

#[test]
fn a_schedule_that_this_node_cannot_read_stays_and_is_somebody_elses() {
    let mut newer = paused(every_ten_minutes(&json!({})), at("08:05:00"));
    newer.settings.every = None;
    (newer.settings.cron, newer.settings.time_zone) = (Some("0 0 6 * * *".to_owned()), Some("Mars/Olympus".to_owned()));
    let error = resumed(newer.clone(), at("11:02:00")).unwrap_err();
    assert!(error.code == 503 && error.message.starts_with("this node cannot read the schedule: "), "{error}");
    assert_eq!(fill(&newer, "09:00:00", None, "10:00:00").unwrap_err().code, 503);
}

#[test]
fn a_tenants_schedule_is_its_own_and_the_operator_names_the_tenant() {
    let acme = Tenant::parse("acme").unwrap();
    assert_eq!(whose("acme", None).unwrap(), acme);
    assert_eq!(whose(OPERATOR, Some(&acme)).unwrap(), acme);
    assert_eq!(whose("other", Some(&acme)).unwrap_err().code, 403);
    let error = whose(OPERATOR, None).unwrap_err();
    assert!(error.code == 400 && error.message.starts_with("tenant: is missing"), "{error}");
}
