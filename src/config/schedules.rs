//! The entries of `[schedules.<id>]`, and the recurring schedules that they make. They mean what the fields of
//! `schedules.put` mean; times that the API counts in milliseconds are durations here.

use std::time::Duration;

use longshore_actors::DeclaredSchedules;
use longshore_backbone::wire::api::{PutRequest, ScheduleSettings, SubmitRequest};
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
    example: (
        "nightly",
        &[
            "tenant",
            "cron",
            "time_zone",
            "misfire",
            "misfire_after",
            "overlap",
            "jitter",
            "ends_at",
            "paused",
            "type",
            "payload",
            "queue",
            "priority",
            "max_attempts",
            "retry",
            "timeout",
            "expires_in",
            "deadline",
            "keep",
            "idempotency_key",
            "idempotency_window",
            "unique",
            "on_conflict",
            "concurrency_key",
            "limit_key",
            "cost",
            "schema_version",
            "tags",
        ],
    ),
    check: check_token,
    table: &SCHEDULE,
    fallback: None,
};

static SCHEDULE: Table = Table::of(
    "",
    &[
        One(&TENANT),
        One(&CRON),
        One(&TIME_ZONE),
        One(&EVERY),
        One(&MISFIRE),
        One(&MISFIRE_AFTER_ENTRY),
        One(&OVERLAP),
        One(&JITTER),
        One(&ENDS_AT),
        One(&PAUSED),
        One(&TYPE),
        One(&PAYLOAD),
        One(&QUEUE),
        One(&PRIORITY),
        One(&MAX_ATTEMPTS),
        One(&RETRY),
        One(&TIMEOUT),
        One(&EXPIRES_IN),
        One(&DEADLINE),
        One(&KEEP),
        One(&IDEMPOTENCY_KEY),
        One(&IDEMPOTENCY_WINDOW),
        One(&UNIQUE),
        One(&ON_CONFLICT),
        One(&CONCURRENCY_KEY),
        One(&LIMIT_KEY),
        One(&COST),
        One(&SCHEMA_VERSION),
        One(&TAGS),
    ],
);

const fn none<T>() -> Option<T> {
    None
}

static TENANT: Entry<Token> =
    Entry::new("tenant", || Token(Tenant::default_tenant().to_string()), "Whose schedule it is.");
static CRON: Entry<Option<Text>> = Entry::new(
    "cron",
    none,
    "When it is due: second (may be left out: 0), minute, hour, day of month, month, day of week. In its place, every = \"5m\" is an interval, counted from 1970 UTC.",
)
.example("\"0 30 3 * * *\"");
static TIME_ZONE: Entry<Option<Text>> =
    Entry::new("time_zone", none, "The zone in which cron is read; UTC if it is not set.").example("\"Europe/Berlin\"");
static EVERY: Entry<Option<Duration>> =
    Entry::new("every", none, "An interval, counted from 1970 UTC, in place of cron.").example("\"5m\"");
static MISFIRE: Entry<Misfire> = Entry::new(
    "misfire",
    Misfire::default,
    "Times that were missed, because no server or no node was there, get one run together, or none.",
);
static MISFIRE_AFTER_ENTRY: Entry<Duration> =
    Entry::new("misfire_after", || MISFIRE_AFTER, "A time that is over for longer than this is missed.");
static OVERLAP: Entry<Overlap> =
    Entry::new("overlap", Overlap::default, "Whether it fires while its last run has not ended.");
static JITTER: Entry<Duration> = Entry::new(
    "jitter",
    || Duration::ZERO,
    "Each run starts up to this much later, so that many schedules do not fire at once.",
);
static ENDS_AT: Entry<Option<Text>> =
    Entry::new("ends_at", none, "It is over after this time.").example("\"2027-12-31T23:59:59Z\"");
static PAUSED: Entry<Option<bool>> =
    Entry::new("paused", none, "Whether it is paused; if not set, the API decides.").example("false");
static TYPE: Entry<Option<Text>> = Entry::new("type", none, "The type of its jobs.").example("\"report.send\"");
static PAYLOAD: Entry<Option<Json>> =
    Entry::new("payload", none, "Their payload: any value, written as JSON.").example("{ report = \"daily\" }");
static QUEUE: Entry<Option<Token>> = Entry::new("queue", none, "Their queue.").example("\"main\"");
static PRIORITY: Entry<Option<u64>> =
    Entry::new("priority", none, "Their priority.").at_least(|| Some(1)).at_most(|| Some(9)).example("5");
static MAX_ATTEMPTS: Entry<Option<u64>> =
    Entry::new("max_attempts", none, "Their attempts.").at_least(|| Some(1)).at_most(|| Some(1_000)).example("12");
static RETRY: Entry<Option<Text>> = Entry::new("retry", none, "Their back-off preset.").example("\"fast\"");
static TIMEOUT: Entry<Option<Duration>> = Entry::new("timeout", none, "Time limit of one attempt.").example("\"60s\"");
static EXPIRES_IN: Entry<Option<Duration>> =
    Entry::new("expires_in", none, "A run that has not started this long after it was due expires.").example("\"1h\"");
static DEADLINE: Entry<Option<Duration>> =
    Entry::new("deadline", none, "How long a run may take in all, counted from when it is enqueued.").example("\"6h\"");
static KEEP: Entry<Option<Duration>> =
    Entry::new("keep", none, "How long the record of an ended run is kept.").example("\"7d\"");
static IDEMPOTENCY_KEY: Entry<Option<Text>> =
    Entry::new("idempotency_key", none, "Their key; each run's gets the time due as a suffix.").example("\"nightly\"");
static IDEMPOTENCY_WINDOW: Entry<Option<Duration>> =
    Entry::new("idempotency_window", none, "How long that key is kept.").example("\"24h\"");
static UNIQUE: Entry<Option<Text>> = Entry::new(
    "unique",
    none,
    "When that key is free again: window, after its window; queued, once the job starts; active, once its run has ended.",
)
.example("\"active\"");
static ON_CONFLICT: Entry<Option<Text>> =
    Entry::new("on_conflict", none, "What happens if another run has that key: return, reject or replace.")
        .example("\"reject\"");
static CONCURRENCY_KEY: Entry<Option<Text>> =
    Entry::new("concurrency_key", none, "Their concurrency key.").example("\"reports\"");
static LIMIT_KEY: Entry<Option<Text>> = Entry::new("limit_key", none, "Their limit key.").example("\"reports\"");
static COST: Entry<Option<u64>> = Entry::new("cost", none, "Tokens that each takes from its rate limit.").example("1");
static SCHEMA_VERSION: Entry<Option<Text>> =
    Entry::new("schema_version", none, "Which version of its type's schema their payload follows.").example("\"2\"");
static TAGS: Entry<Vec<Text>> = Entry::new("tags", Vec::new, "Their tags.").example("[\"report\"]");

/// The schedules that are written.
pub(crate) fn declared(root: &Section<'_>, problems: &mut Vec<Problem>) -> DeclaredSchedules {
    let is_said = root.node(SCHEDULES.name).is_some();
    let mut schedules = Vec::new();
    for (name, section) in root.named(SCHEDULES.name, None) {
        // A name that is not one is reported already.
        let Ok(id) = ScheduleId::parse(name) else { continue };
        match of(id, &section) {
            Ok(schedule) => schedules.push(schedule),
            Err((field, reason)) => problems.push(section.problem(field, reason)),
        }
    }
    DeclaredSchedules { is_said, schedules }
}

/// One schedule; an error names the field.
fn of(id: ScheduleId, section: &Section<'_>) -> Result<(Tenant, PutRequest), (&'static str, String)> {
    let text = |entry: &Entry<Option<Text>>| section.get(entry).map(|text| text.0);
    let millis = |entry: &Entry<Option<Duration>>| section.get(entry).map(whole_millis);
    let ends_at = text(&ENDS_AT).map(|text| Timestamp::parse(&text).map_err(|error| ("ends_at", error.to_string())));
    let schedule = ScheduleSettings {
        id,
        cron: text(&CRON),
        time_zone: text(&TIME_ZONE),
        every: section.get(&EVERY).map(DurationText),
        every_ms: None,
        misfire: Some(section.get(&MISFIRE)),
        misfire_after_ms: Some(whole_millis(section.get(&MISFIRE_AFTER_ENTRY))),
        overlap: Some(section.get(&OVERLAP)),
        jitter_ms: Some(whole_millis(section.get(&JITTER))).filter(|jitter| *jitter > 0),
        ends_at: ends_at.transpose()?,
        paused: section.get(&PAUSED),
    };
    schedule.timing().map_err(|reason| {
        // The API's field and reason; the file's fields have no unit in their names.
        let fields = ["cron", "time_zone", "every", "jitter", "misfire_after"];
        let field = fields
            .into_iter()
            .find(|field| reason.starts_with(&format!("{field}: ")) || reason.starts_with(&format!("{field}_ms: ")));
        let (_, reason) = reason.split_once(": ").filter(|_| field.is_some()).unwrap_or(("", &reason));
        (field.unwrap_or("cron"), reason.to_owned())
    })?;
    let job = SubmitRequest {
        job_type: text(&TYPE).ok_or_else(|| ("type", "is missing: the type of the schedule's jobs".to_owned()))?,
        payload: section.get(&PAYLOAD).map(|json| json.0),
        queue: section.get(&QUEUE).map(|queue| queue.0),
        priority: section.get(&PRIORITY),
        max_attempts: section.get(&MAX_ATTEMPTS),
        retry: text(&RETRY),
        timeout_ms: millis(&TIMEOUT),
        expires_in_ms: millis(&EXPIRES_IN),
        deadline: section.get(&DEADLINE).map(|deadline| DurationText(deadline).to_string()),
        keep_ms: millis(&KEEP),
        idempotency_key: text(&IDEMPOTENCY_KEY),
        idempotency_window_ms: millis(&IDEMPOTENCY_WINDOW),
        unique: text(&UNIQUE),
        on_conflict: text(&ON_CONFLICT),
        concurrency_key: text(&CONCURRENCY_KEY),
        limit_key: text(&LIMIT_KEY),
        cost: section.get(&COST),
        schema_version: text(&SCHEMA_VERSION),
        tags: Some(section.get(&TAGS).into_iter().map(|tag| tag.0).collect::<Vec<_>>()).filter(|tags| !tags.is_empty()),
        ..SubmitRequest::default()
    };
    longshore_domain::JobType::parse(&job.job_type).map_err(|error| ("type", error.reason))?;
    let tenant = Tenant::parse(&section.get(&TENANT).0).map_err(|error| ("tenant", error.reason))?;
    Ok((tenant, PutRequest { schedule, job }))
}
