//! A recurring schedule as it is stored: what a person asked for, and how far it has come.

use std::collections::BTreeSet;

use longshore_domain::recurring::{Overlap, Progress, SHOWN_AHEAD, Timing};
use longshore_domain::{ScheduleId, SmolStr, Tenant, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::api::{PutRequest, ScheduleSettings, ScheduleState, ScheduleStatus, SubmitRequest};

/// A recurring schedule.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Recurring {
    /// Its tenant.
    pub tenant: Tenant,
    /// When it fires.
    pub settings: ScheduleSettings,
    /// What it starts.
    pub job: SubmitRequest,
    /// Whether it is paused.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub paused: bool,
    /// The node whose configuration file declared it last; `None`: a client made it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub declared_by: Option<SmolStr>,
    /// When it was made.
    pub created_at: Timestamp,
    /// When it was changed last by a user.
    pub updated_at: Timestamp,
    /// How far it has come.
    pub progress: Progress,
    /// Marks who wrote this version.
    #[serde(default)]
    pub token: SmolStr,
    /// Fields that this version does not know: a newer one wrote them, and finds them again.
    #[serde(flatten)]
    pub unknown: Map<String, Value>,
}

impl Recurring {
    /// Makes the schedule that is asked for at `now`, or changes the one that is `found`. Its next time stays as it is
    /// if its times do, so that a firing which is due is not lost to a change of the job, or of what becomes of late
    /// and overlapping ones.
    pub fn put(asked: &PutRequest, timing: &Timing, tenant: &Tenant, found: Option<&Self>, now: Timestamp) -> Self {
        let settings = asked.schedule.normal();
        let was_paused = found.is_some_and(|found| found.paused);
        let paused = asked.schedule.paused.unwrap_or(was_paused);
        let times = |of: &ScheduleSettings| ScheduleSettings {
            misfire: None,
            misfire_after_ms: None,
            overlap: None,
            ..of.clone()
        };
        let is_same = found.is_some_and(|found| times(&found.settings) == times(&settings) && !was_paused);
        let progress = found.map(|found| found.progress.clone()).unwrap_or_default();
        let progress = match (paused, is_same) {
            (true, _) => progress.paused(),
            (false, true) => progress,
            (false, false) => progress.planned(timing, now),
        };
        Self {
            tenant: tenant.clone(),
            settings,
            job: asked.job.clone(),
            paused,
            declared_by: None,
            created_at: found.map_or(now, |found| found.created_at),
            updated_at: now,
            progress,
            token: SmolStr::default(),
            unknown: found.map(|found| found.unknown.clone()).unwrap_or_default(),
        }
    }

    /// Its id.
    pub fn id(&self) -> &ScheduleId {
        &self.settings.id
    }

    /// Whether a firing is left out while the run before has not ended.
    pub fn skips_overlaps(&self) -> bool {
        self.settings.overlap == Some(Overlap::Skip)
    }

    /// Whether it is what is asked for, as far as a declaration says it.
    pub fn is_as(&self, asked: &PutRequest) -> bool {
        let text = |job: &SubmitRequest| serde_json::to_string(job).unwrap_or_default();
        self.settings == asked.schedule.normal()
            && asked.schedule.paused.is_none_or(|paused| paused == self.paused)
            && text(&self.job) == text(&asked.job)
    }

    /// The schedule as an answer shows it.
    pub fn status(&self) -> ScheduleStatus {
        let ahead = |timing: Timing| timing.ahead(self.progress.next).take(SHOWN_AHEAD).collect();
        ScheduleStatus {
            schedule: ScheduleSettings { paused: Some(self.paused), ..self.settings.clone() },
            job: self.job.clone(),
            state: ScheduleState {
                tenant: self.tenant.clone(),
                declared: self.declared_by.is_some(),
                created_at: self.created_at,
                updated_at: self.updated_at,
                last_run: self.progress.last_run.clone(),
                last_skipped: self.progress.last_skipped.clone(),
                // What is stored was checked, perhaps by a newer node, which has zones that this one lacks.
                next_run: self.settings.timing().map(ahead).unwrap_or_default(),
            },
        }
    }
}

/// What differs between two schedules in what a person asked for, a line for each field: `cron: "…" → "…"`.
pub fn differences(before: &ScheduleStatus, after: &ScheduleStatus) -> Vec<String> {
    let fields = |status: &ScheduleStatus| {
        let (schedule, job) = (serde_json::to_value(&status.schedule), serde_json::to_value(&status.job));
        let all = [schedule, job].into_iter().filter_map(|fields| fields.ok()?.as_object().cloned());
        all.flatten().collect::<Map<_, _>>()
    };
    let (before, after) = (fields(before), fields(after));
    let names: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
    let shown = |value: Option<&Value>| value.map_or_else(|| "nothing".to_owned(), ToString::to_string);
    let line = |name: &String| {
        let (before, after) = (before.get(name), after.get(name));
        (before != after).then(|| format!("{name}: {} → {}", shown(before), shown(after)))
    };
    names.into_iter().filter_map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::api::{Endpoint as _, SchedulesPut};

    fn asked(body: &str) -> (PutRequest, Timing) {
        let asked = SchedulesPut::read(body.as_bytes()).unwrap();
        let timing = asked.schedule.timing().unwrap();
        (asked, timing)
    }

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_millis(seconds * 1_000)
    }

    #[test]
    fn a_change_of_the_job_keeps_the_next_time_and_one_of_the_timing_does_not() {
        let tenant = Tenant::default_tenant();
        let (first, timing) = asked(r#"{"id":"n","type":"t","every":"10s","payload":1}"#);
        let made = Recurring::put(&first, &timing, &tenant, None, at(95));
        assert_eq!((made.progress.next, made.created_at), (Some(at(100)), at(95)));
        let (other_job, timing) = asked(r#"{"id":"n","type":"t","every":"10s","payload":2}"#);
        let changed = Recurring::put(&other_job, &timing, &tenant, Some(&made), at(105));
        assert_eq!((changed.progress.next, changed.created_at), (Some(at(100)), at(95)), "it is due");
        let (other_time, timing) = asked(r#"{"id":"n","type":"t","every":"20s","payload":2}"#);
        let changed = Recurring::put(&other_time, &timing, &tenant, Some(&made), at(105));
        assert_eq!(changed.progress.next, Some(at(120)));
    }

    #[test]
    fn a_firing_that_is_due_is_not_lost_to_a_change_of_what_becomes_of_late_ones() {
        let tenant = Tenant::default_tenant();
        let (first, timing) = asked(r#"{"id":"n","type":"t","every":"10s"}"#);
        let made = Recurring::put(&first, &timing, &tenant, None, at(95));
        for (more, next) in [
            (r#""misfire":"skip","misfire_after_ms":60000,"overlap":"skip""#, 100),
            (r#""jitter_ms":1000"#, 110),
            (r#""ends_at":"9999-12-31T23:59:59Z""#, 110),
        ] {
            let (other, timing) = asked(&format!(r#"{{"id":"n","type":"t","every":"10s",{more}}}"#));
            let changed = Recurring::put(&other, &timing, &tenant, Some(&made), at(105));
            assert_eq!(changed.progress.next, Some(at(next)), "{more}");
        }
    }

    #[test]
    fn a_put_leaves_a_pause_alone_unless_it_says_otherwise() {
        let tenant = Tenant::default_tenant();
        let (paused, timing) = asked(r#"{"id":"n","type":"t","every":"10s","paused":true}"#);
        let paused = Recurring::put(&paused, &timing, &tenant, None, at(95));
        assert_eq!((paused.paused, paused.progress.next), (true, None));
        let (silent, _) = asked(r#"{"id":"n","type":"t","every":"10s"}"#);
        assert!(Recurring::put(&silent, &timing, &tenant, Some(&paused), at(105)).paused && paused.is_as(&silent));
        let (resumed, _) = asked(r#"{"id":"n","type":"t","every":"10s","paused":false}"#);
        let resumed = Recurring::put(&resumed, &timing, &tenant, Some(&paused), at(105));
        assert_eq!((resumed.paused, resumed.progress.next), (false, Some(at(110))));
    }

    #[test]
    fn what_is_stored_is_read_again_with_its_payload_byte_for_byte() {
        let (first, timing) = asked(
            r#"{"id":"n","type":"t","cron":"0 30 3 * * *","time_zone":"Europe/Berlin","payload":{"b":1e999,"a":0.10}}"#,
        );
        let made = Recurring::put(&first, &timing, &Tenant::default_tenant(), None, at(95));
        let text = serde_json::to_string(&made).unwrap();
        let read: Recurring = serde_json::from_str(&text).unwrap();
        assert_eq!(serde_json::to_string(&read).unwrap(), text);
        assert!(read.is_as(&first) && text.contains(r#"{"b":1e999,"a":0.10}"#));
        assert_eq!(read.status().state.next_run.len(), SHOWN_AHEAD);
    }
}
