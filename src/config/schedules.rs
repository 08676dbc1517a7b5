//! The entries of `[schedules.<id>]`, and the recurring schedules that they make. They mean what the fields of
//! `schedules.put` mean; times that the API counts in milliseconds are durations here.

use std::convert::identity;
use std::time::Duration;

use longshore_actors::{DeclaredSchedules, check_schedule};
use longshore_backbone::wire::api::{PutRequest, ScheduleSettings, SubmitRequest};
use longshore_domain::policy::Policies;
use longshore_domain::recurring::{MISFIRE_AFTER, Misfire, Overlap};
use longshore_domain::run::whole_millis;
use longshore_domain::{DurationText, ScheduleId, Tenant, Timestamp};

use super::kind::{Json, Text, Token, check_token};
use super::problem::Problem;
use super::schema::Field::Setting as One;
use super::schema::{Entry, Named, Table};
use super::section::Section;

pub(crate) static SCHEDULES: Named = Named {
    name: "schedules",
    doc: "Recurring schedules, by their ids. A node brings them in line at its start: what is new or different is stored, \
          and a schedule that a file declared and that is not here any more is removed. All nodes of a namespace have the \
          same [schedules], or none: a file without any removes only what the same node declared before.",
    example: ("nightly", SHOWN),
    check: check_token,
    table: &SCHEDULE,
    fallback: None,
};

static EVERY: Entry<Option<Duration>> =
    Entry::new("every", || None, "An interval, counted from 1970 UTC, in place of cron.").example("\"5m\"");

/// A schedule's table: the settings of its times, what the reference does not show, then a row for each option of its
/// jobs with the field of `submit` that it sets.
macro_rules! schedule {
    (
        $($time_name:literal: $time:ident $time_kind:ty = $default:expr, $time_doc:literal $(.$how:ident($by:expr))*;)+
        [$unshown:ident]
        $($name:literal: $option:ident $kind:ty => $field:ident by $read:expr, $doc:literal $(.$rest:ident($value:expr))*;)+
    ) => {
        $(
            static $time: Entry<$time_kind> = Entry::new($time_name, || $default, $time_doc) $(.$how($by))*;
        )+
        $(
            static $option: Entry<$kind> = Entry::new($name, || <$kind>::default(), $doc) $(.$rest($value))*;
        )+

        /// What the reference shows.
        const SHOWN: &[&str] = &[$($time_name,)+ $($name),+];

        static SCHEDULE: Table = Table::of("", &[$(One(&$time),)+ One(&$unshown), $(One(&$option)),+]);

        /// What each run is.
        fn job(job_type: String, section: &Section<'_>) -> SubmitRequest {
            SubmitRequest { job_type, $($field: $read(section.get(&$option)),)+ ..SubmitRequest::default() }
        }
    };
}

schedule! {
    "tenant": TENANT Token = Token(Tenant::default_tenant().to_string()), "Whose schedule it is.";
    "cron": CRON Option<Text> = None,
        "When it is due: second (may be left out: 0), minute, hour, day of month, month, day of week. In its place, every = \"5m\" is an interval, counted from 1970 UTC."
        .example("\"0 30 3 * * *\"");
    "time_zone": TIME_ZONE Option<Text> = None, "The zone in which cron is read; UTC if it is not set."
        .example("\"Europe/Berlin\"");
    "misfire": MISFIRE Misfire = Misfire::default(),
        "Times that were missed, because no server or no node was there, get one run together, or none.";
    "misfire_after": MISFIRE_AFTER_ENTRY Duration = MISFIRE_AFTER, "A time that is over for longer than this is missed.";
    "overlap": OVERLAP Overlap = Overlap::default(), "Whether it fires while its last run has not ended.";
    "jitter": JITTER Duration = Duration::ZERO,
        "Each run starts up to this much later, so that many schedules do not fire at once.";
    "ends_at": ENDS_AT Option<Text> = None, "It is over after this time.".example("\"2027-12-31T23:59:59Z\"");
    "paused": PAUSED Option<bool> = None, "Whether it is paused; if not set, the API decides.".example("false");
    "type": TYPE Option<Text> = None, "The type of its jobs.".example("\"report.send\"");
    [EVERY]
    "payload": PAYLOAD Option<Json> => payload by |json: Option<Json>| json.map(|json| json.0),
        "Their payload: any value, written as JSON.".example("{ report = \"daily\" }");
    "queue": QUEUE Option<Token> => queue by |queue: Option<Token>| queue.map(|queue| queue.0),
        "Their queue.".example("\"main\"");
    "priority": PRIORITY Option<u64> => priority by identity,
        "Their priority.".at_least(|| Some(1)).at_most(|| Some(9)).example("5");
    "max_attempts": MAX_ATTEMPTS Option<u64> => max_attempts by identity,
        "Their attempts.".at_least(|| Some(1)).at_most(|| Some(1_000)).example("12");
    "retry": RETRY Option<Text> => retry by text, "Their back-off preset.".example("\"fast\"");
    "timeout": TIMEOUT Option<Duration> => timeout_ms by millis, "Time limit of one attempt.".example("\"60s\"");
    "expires_in": EXPIRES_IN Option<Duration> => expires_in_ms by millis,
        "A run that has not started this long after it was due expires.".example("\"1h\"");
    "deadline": DEADLINE Option<Duration> => deadline by |span: Option<Duration>| span.map(|span| DurationText(span).to_string()),
        "How long a run may take in all, counted from when it is enqueued.".example("\"6h\"");
    "keep": KEEP Option<Duration> => keep_ms by millis,
        "How long the record of an ended run is kept.".example("\"7d\"");
    "idempotency_key": IDEMPOTENCY_KEY Option<Text> => idempotency_key by text,
        "Their key; each run's gets the time due as a suffix.".example("\"nightly\"");
    "idempotency_window": IDEMPOTENCY_WINDOW Option<Duration> => idempotency_window_ms by millis,
        "How long that key is kept.".example("\"24h\"");
    "unique": UNIQUE Option<Text> => unique by text,
        "When that key is free again: window, after its window; queued, once the job starts; active, once its run has ended."
        .example("\"active\"");
    "on_conflict": ON_CONFLICT Option<Text> => on_conflict by text,
        "What happens if another run has that key: return, reject or replace.".example("\"reject\"");
    "concurrency_key": CONCURRENCY_KEY Option<Text> => concurrency_key by text,
        "Their concurrency key.".example("\"reports\"");
    "limit_key": LIMIT_KEY Option<Text> => limit_key by text, "Their limit key.".example("\"reports\"");
    "cost": COST Option<u64> => cost by identity, "Tokens that each takes from its rate limit.".example("1");
    "schema_version": SCHEMA_VERSION Option<Text> => schema_version by text,
        "Which version of its type's schema their payload follows.".example("\"2\"");
    "tags": TAGS Vec<Text> => tags by |tags: Vec<Text>| (!tags.is_empty()).then(|| tags.into_iter().map(|tag| tag.0).collect()),
        "Their tags.".example("[\"report\"]");
}

fn text(text: Option<Text>) -> Option<String> {
    text.map(|text| text.0)
}

fn millis(span: Option<Duration>) -> Option<u64> {
    span.map(whole_millis)
}

pub(crate) fn declared(root: &Section<'_>, policies: &Policies, problems: &mut Vec<Problem>) -> DeclaredSchedules {
    let is_said = root.node(SCHEDULES.name).is_some();
    let mut schedules = Vec::new();
    for (name, section) in root.named(SCHEDULES.name, None) {
        // A name that is not one is reported already.
        let Ok(id) = ScheduleId::parse(name) else { continue };
        match of(id, policies, &section) {
            Ok(schedule) => schedules.push(schedule),
            Err((field, reason)) => problems.push(section.problem(field, reason)),
        }
    }
    DeclaredSchedules { is_said, schedules }
}

/// One schedule; an error names the field.
fn of(
    id: ScheduleId,
    policies: &Policies,
    section: &Section<'_>,
) -> Result<(Tenant, PutRequest), (&'static str, String)> {
    let ends_at =
        text(section.get(&ENDS_AT)).map(|text| Timestamp::parse(&text).map_err(|error| ("ends_at", error.to_string())));
    let schedule = ScheduleSettings {
        id,
        cron: text(section.get(&CRON)),
        time_zone: text(section.get(&TIME_ZONE)),
        every: section.get(&EVERY).map(DurationText),
        every_ms: None,
        misfire: Some(section.get(&MISFIRE)),
        misfire_after_ms: Some(whole_millis(section.get(&MISFIRE_AFTER_ENTRY))),
        overlap: Some(section.get(&OVERLAP)),
        jitter_ms: Some(whole_millis(section.get(&JITTER))).filter(|jitter| *jitter > 0),
        ends_at: ends_at.transpose()?,
        paused: section.get(&PAUSED),
        if_updated_at: None,
    };
    // A schedule without times says so, whatever else it lacks.
    schedule.timing().map_err(place)?;
    let job_type =
        text(section.get(&TYPE)).ok_or_else(|| ("type", "is missing: the type of the schedule's jobs".to_owned()))?;
    let job = job(job_type, section);
    longshore_domain::JobType::parse(&job.job_type).map_err(|error| ("type", error.reason))?;
    let tenant = Tenant::parse(&section.get(&TENANT).0).map_err(|error| ("tenant", error.reason))?;
    let asked = PutRequest { schedule, job };
    check_schedule(policies, &tenant, &asked).map_err(|error| place(error.message))?;
    Ok((tenant, asked))
}

/// The field of the file and the reason, of what the API says: its fields of times have their unit in their names. What
/// names no field is about the schedule as a whole, in which the type is always there to point at.
fn place(said: String) -> (&'static str, String) {
    let named = said.split_once(": ").and_then(|(field, reason)| {
        let field = field.strip_suffix("_ms").unwrap_or(field);
        SCHEDULE.field(field).map(|field| (field.name(), reason.to_owned()))
    });
    named.unwrap_or((TYPE.name, said))
}
