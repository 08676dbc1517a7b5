//! Replaying and discarding dead letters.
//!
//! Each step can be repeated, by any node: the record goes to its next round (or to `discarded`) by compare-and-set,
//! its events are published, the job is published into its lane under an id of its round, and the dead letter is
//! deleted last, by its sequence. If a node dies in between, it leaves a dead letter that the next call finds and
//! finishes.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt as _;
use longshore_backbone::Headers;
use longshore_backbone::dead_letters::StoredDeadLetter;
use longshore_backbone::poison::HEADERS_BASE64;
use longshore_backbone::records::Written;
use longshore_backbone::scan::Source;
use longshore_backbone::wire::api::{
    self, ApiError, DiscardRequest, Discarded, Encoded, Failed, Outcome, ReplayRequest, Replayed, Selection,
};
use longshore_backbone::wire::header;
use longshore_domain::admission;
use longshore_domain::policy::Policies;
use longshore_domain::protocol::{DeadLetterVerdict, on_dead_letter};
use longshore_domain::publication::Published;
use longshore_domain::run::whole_millis;
use longshore_domain::{ErrorKind, Job, JobOptions, JobType, Priority, Queue, Run, Tenant};

use crate::api::Api;
use crate::api::dead_letters;
use crate::api::filter::{self, Chosen, unavailable};
use crate::attempt::assignment::is_acknowledgement;
use crate::attempt::keys;
use crate::fail_point;
use crate::shared::{new_seal, now};
use crate::trace::{JobTrace, context};

/// Dead letters that one call works on at once, if no rate is set.
const AT_ONCE: usize = 64;
/// Minimum rate, one in 1,000 s: a client waits for the answer, and much slower rates do not fit into a duration.
const SLOWEST: f64 = 0.001;

/// Why a dead letter cannot be replayed under its id.
const ANOTHERS: &str =
    "its id is another run's by now, as its lane was made anew; publish its job anew and discard this";

/// What is done with dead letters.
enum Action {
    Replay(Change),
    Discard,
}

/// What a replay changes.
#[derive(Default)]
struct Change {
    queue: Option<Queue>,
    priority: Option<Priority>,
    payload: Option<Bytes>,
    headers: Vec<(String, Option<String>)>,
    /// The job options in those headers.
    options: Option<Box<JobOptions>>,
}

impl Change {
    fn is_none(&self) -> bool {
        self.queue.is_none() && self.priority.is_none() && self.payload.is_none() && self.headers.is_empty()
    }
}

/// The endpoint `dlq.replay`.
pub(crate) async fn replay(api: &Api, asker: &str, asked: ReplayRequest) -> Result<Encoded<Replayed>, ApiError> {
    let ReplayRequest { selection, rate_per_s, set } = asked;
    let change = change(api, set.unwrap_or_default()).await?;
    let outcome = attend(api, asker, (selection, rate_per_s), &Action::Replay(change)).await?;
    Ok(Encoded::of(&Replayed::from(outcome)))
}

/// The endpoint `dlq.discard`.
pub(crate) async fn discard(api: &Api, asker: &str, asked: DiscardRequest) -> Result<Encoded<Discarded>, ApiError> {
    let outcome = attend(api, asker, (asked.selection, asked.rate_per_s), &Action::Discard).await?;
    Ok(Encoded::of(&Discarded::from(outcome)))
}

/// Reads and checks all changes before anything is changed.
async fn change(api: &Api, set: api::Change) -> Result<Change, ApiError> {
    let within = |error: longshore_domain::NameError| ApiError::malformed(format!("set: {error}"));
    let queue = set.queue.as_deref().map(Queue::parse).transpose().map_err(within)?;
    let priority = set.priority.map(Priority::new).transpose().map_err(within)?;
    if let Some(queue) = &queue {
        crate::api::intake::must_be_declared(api, queue).await?;
    }
    let mut headers = Headers::new();
    for (name, value) in &set.headers {
        let field = format!("set.headers.{name}");
        if header::is_servers(name) {
            return Err(ApiError::malformed(format!("{field}: is the server's, not a client's")));
        }
        let plain = |text: &str| !text.contains(['\r', '\n']);
        let named = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_graphic() && byte != b':');
        if !named || value.as_deref().is_some_and(|value| !plain(value)) {
            return Err(ApiError::malformed(format!("{field}: is not a valid header")));
        }
        headers.insert(name.as_str(), value.as_deref().unwrap_or_default());
    }
    let given = set.headers.iter().filter(|(_, value)| value.is_some()).map(|(name, _)| name.as_str());
    let mut check = Headers::new();
    for name in given {
        if let Some(value) = headers.get(name) {
            check.insert(name, value.as_str());
        }
    }
    let read = header::read_job(&check).map_err(|error| ApiError::malformed(format!("set.headers: {error}")))?;
    if let Some(name) =
        set.headers.iter().find(|(name, value)| value.is_some() && is_settled(name)).map(|(name, _)| name)
    {
        let reason = "is settled once a run has begun; a replay cannot change it";
        return Err(ApiError::malformed(format!("set.headers.{name}: {reason}")));
    }
    Ok(Change {
        queue,
        priority,
        payload: set.payload.map(|json| Bytes::copy_from_slice(json.get().as_bytes())),
        headers: set.headers.into_iter().collect(),
        options: read.options,
    })
}

/// Whether a header's value was decided with the run's first round.
fn is_settled(name: &str) -> bool {
    const SETTLED: [&str; 6] = [
        "longshore-run-id",
        "longshore-idempotency-key",
        "longshore-idempotency-window",
        "longshore-unique",
        "longshore-run-at",
        "longshore-delay",
    ];
    SETTLED.iter().any(|settled| settled.eq_ignore_ascii_case(name))
}

/// Carries the action out on the dead letters that are meant; says on how many, which failed, and whether the limit
/// left some.
async fn attend(
    api: &Api,
    asker: &str,
    (asked, rate_per_s): (Selection, Option<f64>),
    action: &Action,
) -> Result<Outcome, ApiError> {
    let pause = match rate_per_s {
        Some(rate) if rate.is_finite() && rate >= SLOWEST => Some(Duration::from_secs_f64(1.0 / rate)),
        Some(_) => return Err(ApiError::malformed(format!("rate_per_s: is not {SLOWEST} or more"))),
        None => None,
    };
    let (limit, dry_run) = (asked.limit.unwrap_or(u64::MAX), asked.dry_run);
    let filter = match filter::which(asker, asked)? {
        Chosen::One(tenant, run_id) => {
            let (letter, _) = dead_letters::find(api, &tenant, &run_id).await?;
            let result = if dry_run { would(api, &letter, action).await } else { one(api, letter, action).await };
            return Ok(match result {
                Ok(done) => Outcome::new(u64::from(done), Vec::new(), false),
                Err(error) => Outcome::new(0, vec![Failed { error, run_id }], false),
            });
        }
        Chosen::Those(filter) => filter,
    };
    // A run that dies again meanwhile is not taken again.
    let last = api.backbone.last_sequence(&Source::DeadLetters).await.map_err(|error| unavailable(&error))?;
    let subject = dead_letters::subject(api, &filter);
    let (done, mut failed, mut from) = (AtomicU64::new(0), Vec::new(), Some(1));
    while let Some(at) = from.filter(|at| *at <= last) {
        let page = api.backbone.page(&Source::DeadLetters, &subject, at).await.map_err(|error| unavailable(&error))?;
        from = page.next;
        let letters =
            page.messages.into_iter().filter(|stored| stored.sequence <= last).filter_map(StoredDeadLetter::read);
        let mut letters = letters.filter(|letter| filter.fits(&letter.run)).peekable();
        while letters.peek().is_some() {
            let room = limit.saturating_sub(done.load(Ordering::Relaxed) + failed.len() as u64);
            if room == 0 {
                return Ok(Outcome::new(done.into_inner(), failed, true));
            }
            let at_once = if pause.is_some() { 1 } else { AT_ONCE };
            let some: Vec<StoredDeadLetter> =
                letters.by_ref().take(at_once.min(usize::try_from(room).unwrap_or(at_once))).collect();
            let next_at = tokio::time::Instant::now() + pause.unwrap_or_default();
            let each = some.into_iter().map(|letter| async {
                let run_id = letter.run.run_id.clone();
                let result = if dry_run { would(api, &letter, action).await } else { one(api, letter, action).await };
                result.map(|did| done.fetch_add(u64::from(did), Ordering::Relaxed)).map_err(|error| (run_id, error))
            });
            let results: Vec<_> = futures_util::stream::iter(each).buffer_unordered(AT_ONCE).collect().await;
            let wrong = results.into_iter().filter_map(Result::err);
            failed.extend(wrong.map(|(run_id, error)| Failed { error, run_id }));
            if pause.is_some() && !dry_run {
                tokio::time::sleep_until(next_at).await;
            }
        }
    }
    Ok(Outcome::new(done.into_inner(), failed, false))
}

/// Whether the action would be carried out on this dead letter.
async fn would(api: &Api, letter: &StoredDeadLetter, action: &Action) -> Result<bool, String> {
    if let Action::Replay(change) = action {
        can_be_replayed(&api.policies, letter, change)?;
    }
    let found = api.backbone.read_record(&letter.run.tenant, &letter.run.run_id).await;
    let found = found.map_err(|error| error.with_causes())?;
    let verdict = on_dead_letter(found.as_ref().map(|found| &found.run), letter.run.round, letter.run.origin);
    match (verdict, action) {
        (DeadLetterVerdict::OtherRun, Action::Replay(_)) => Err(ANOTHERS.to_owned()),
        (verdict, _) => Ok(!matches!(verdict, DeadLetterVerdict::Stale | DeadLetterVerdict::StaleRecord)),
    }
}

/// Carries the action out on one dead letter; says whether there was more to do than tidying up.
async fn one(api: &Api, letter: StoredDeadLetter, action: &Action) -> Result<bool, String> {
    if let Action::Replay(change) = action {
        can_be_replayed(&api.policies, &letter, change)?;
    }
    loop {
        let found = api.backbone.read_record(&letter.run.tenant, &letter.run.run_id).await;
        let found = found.map_err(|error| error.with_causes())?;
        let verdict = on_dead_letter(found.as_ref().map(|found| &found.run), letter.run.round, letter.run.origin);
        let (run, did) = match (verdict, found) {
            (DeadLetterVerdict::Stands, found) => {
                let expected = found.as_ref().map_or(0, |found| found.revision);
                let run = found.map_or_else(|| letter.run.clone(), |found| found.run);
                if matches!(action, Action::Replay(_)) {
                    must_have_its_key(api, &run, &letter).await?;
                }
                let Some(run) = decide(api, run, expected, action).await? else { continue };
                (run, true)
            }
            (DeadLetterVerdict::Replayed, Some(found)) => (found.run, true),
            (DeadLetterVerdict::OtherRun, _) => {
                if matches!(action, Action::Replay(_)) {
                    return Err(ANOTHERS.to_owned());
                }
                remove(api, &letter).await?;
                return Ok(true);
            }
            (DeadLetterVerdict::StaleRecord, _) => {
                api.metrics.stale_reads.inc();
                let run = &letter.run;
                let trace_id = context::id_in(Some(&letter.headers)).map(|id| id.to_string());
                tracing::warn!(run_id = %run.run_id, tenant = %run.tenant, attempt = run.attempt, trace_id, "the record is older than the dead letter: read too early; nothing is done to it");
                return Err("the record does not know of its end yet; try again".to_owned());
            }
            (_, Some(found)) => (found.run, false),
            (_, None) => return Ok(false),
        };
        if verdict != DeadLetterVerdict::Stale || run.state.is_terminal() {
            let logged = api.committer.publish(&run, Published::at_dead_letter(&run, letter.run.round)).await;
            logged.map_err(|_| "its events could not be published yet; try again".to_owned())?;
        }
        if !run.state.is_terminal() && verdict != DeadLetterVerdict::Stale {
            let Action::Replay(change) = action else {
                publish(api, &run, &letter, &Change::default()).await?;
                remove(api, &letter).await?;
                return Err("is being replayed: it was discarded too late".to_owned());
            };
            publish(api, &run, &letter, change).await?;
            fail_point::pass("after-replay-publish");
        }
        remove(api, &letter).await?;
        return Ok(did);
    }
}

/// A replayed run needs its key, if its scope freed that when it died.
async fn must_have_its_key(api: &Api, run: &Run, letter: &StoredDeadLetter) -> Result<(), String> {
    let options = header::read_job(&letter.headers).ok().and_then(|read| read.options);
    let job = Job {
        tenant: run.tenant.clone(),
        queue: run.queue.clone(),
        priority: run.priority,
        job_type: run.job_type.clone(),
        run_id: run.run_id.clone(),
        options,
    };
    match keys::other_holder(api, &job).await.map_err(|error| error.with_causes())? {
        None => Ok(()),
        Some(other) => {
            Err(format!("its idempotency key belongs to run {other} by now: replay it once the key is free"))
        }
    }
}

async fn remove(api: &Api, letter: &StoredDeadLetter) -> Result<(), String> {
    api.backbone.take_out(&Source::DeadLetters, letter.sequence).await.map(|_| ()).map_err(|error| error.with_causes())
}

fn can_be_replayed(policies: &Policies, letter: &StoredDeadLetter, change: &Change) -> Result<(), String> {
    if let (Some(bytes), None) = (letter.left_out, &change.payload) {
        return Err(format!("its payload of {bytes} bytes was too large to be kept; replay it with set.payload"));
    }
    let run = &letter.run;
    // A name that could not be read is stored as `_`, which is not a valid name.
    let names = Tenant::parse(run.tenant.as_str()).is_ok()
        && Queue::parse(run.queue.as_str()).is_ok()
        && JobType::parse(run.job_type.as_str()).is_ok();
    if !names {
        return Err("the subject it was published to could not be read; publish it anew".to_owned());
    }
    match &run.error {
        Some(error) if error.kind == ErrorKind::Invalid && admission::was_refused(&error.message) => {
            admit(policies, letter, change).map_err(|refusal| format!("it is still refused: {refusal}"))
        }
        Some(error) if error.kind == ErrorKind::Invalid => is_mended(letter, change, &error.message),
        // What was taken once is taken again, as long as it is the same.
        _ if change.payload.is_some() => admit(policies, letter, change),
        _ => Ok(()),
    }
}

/// Whether the job is taken as it would be replayed.
fn admit(policies: &Policies, letter: &StoredDeadLetter, change: &Change) -> Result<(), String> {
    let payload = change.payload.as_ref().unwrap_or(&letter.payload);
    let options = header::read_job(&changed_headers(letter, change)).ok().and_then(|read| read.options);
    let version = options.as_ref().and_then(|options| options.schema_version.as_deref());
    let (tenant, job_type) = (&letter.run.tenant, &letter.run.job_type);
    admission::admit(policies, tenant, job_type, version, payload).map_err(|refusal| refusal.to_string())
}

/// A job that could not be read is invalid again, unless the changes mend it.
fn is_mended(letter: &StoredDeadLetter, change: &Change, reason: &str) -> Result<(), String> {
    let headers = changed_headers(letter, change);
    if header::has(&headers, HEADERS_BASE64) {
        // Dropping them unasked would lose what a person may be able to read.
        let mend = format!("set.headers {{\"{HEADERS_BASE64}\": null}} leaves out the headers that cannot be read");
        return Err(format!("it is invalid ({reason}); {mend}"));
    }
    if change.is_none() {
        return Err(format!("it is invalid ({reason}); mend it with set.headers or set.payload"));
    }
    let payload = change.payload.as_ref().unwrap_or(&letter.payload);
    if headers.is_empty() && is_acknowledgement(payload) {
        return Err(format!("it is still invalid: {reason}"));
    }
    match header::read_job(&headers) {
        Ok(read) if read.seal.is_none() => Ok(()),
        Ok(_) => Err(format!("it is still invalid: {reason}")),
        Err(error) => Err(format!("it is still invalid: {error}; mend it with set.headers")),
    }
}

/// Stores the action in the record; `None` if another write was first.
async fn decide(api: &Api, run: Run, expected: u64, action: &Action) -> Result<Option<Run>, String> {
    let mut run = run;
    match action {
        Action::Replay(change) => {
            run.replay(now());
            run.queue = change.queue.clone().unwrap_or(run.queue);
            run.priority = change.priority.unwrap_or(run.priority);
            if let Some(options) = &change.options {
                run.max_attempts = options.max_attempts.unwrap_or(run.max_attempts);
                run.keep_ms = options.keep.map(whole_millis).or(run.keep_ms);
                run.tags = if options.tags.is_empty() { run.tags } else { options.tags.clone() };
            }
        }
        Action::Discard => run.discard(now()),
    }
    run.token = api.identity.token();
    if run.seal.is_empty() {
        run.seal = new_seal();
    }
    match api.backbone.write_record(&run, expected).await.map_err(|error| error.with_causes())? {
        Written::Won(_) => {
            match action {
                Action::Replay(_) => api.metrics.replayed.inc(),
                Action::Discard => api.metrics.run_ended(&run),
            }
            fail_point::pass("after-replay-record");
            Ok(Some(run))
        }
        Written::Lost(_) => Ok(None),
    }
}

/// The dead letter's headers for another round, with the changes.
fn changed_headers(letter: &StoredDeadLetter, change: &Change) -> Headers {
    let mut original = header::for_replay(&letter.headers);
    for (name, value) in &change.headers {
        original = header::without(&original, name);
        if let Some(value) = value {
            original.insert(name.as_str(), value.as_str());
        }
    }
    original
}

/// Publishes the job of a new round into its lane. A second publish of the round is caught by its id or by the record.
async fn publish(api: &Api, run: &Run, letter: &StoredDeadLetter, change: &Change) -> Result<(), String> {
    let original = changed_headers(letter, change);
    let (mut original, began) = (original, now());
    let trace = api.tracer.as_deref().map(|tracer| {
        let trace = JobTrace::of(tracer, Some(&original), (&run.tenant, &run.run_id), run.origin);
        trace.put(trace.replay(run), &mut original);
        (tracer, trace)
    });
    let headers = header::carry_on(Some(&original), run, 1, None);
    let subject = api.backbone.names().job(&run.tenant, &run.queue, run.priority, &run.job_type);
    let payload = change.payload.clone().unwrap_or_else(|| letter.payload.clone());
    let id = format!("{}/{}/{}/{}/1/0", run.tenant, run.run_id, run.seal, run.round);
    let published = api.backbone.move_to_lane(subject, headers, payload, &id).await;
    published.map_err(|error| format!("cannot be published yet, replay it again: {}", error.with_causes()))?;
    if let Some((tracer, trace)) = trace {
        tracer.replayed(&trace, run, (began, now()));
    }
    Ok(())
}
