//! One dead letter: it is replayed, or discarded.
//!
//! Each step can be repeated, by any node: the record goes to its next round (or to `discarded`) by compare-and-set,
//! its events are published, the job is published into its lane under an id of its round, and the dead letter is
//! deleted last, by its sequence. If a node dies in between, it leaves a dead letter that the next call finds and
//! finishes.
//!
//! The simulation drives these functions, too; [`DeadLetterPorts`] is what they ask for.

use bytes::Bytes;
use longshore_backbone::Headers;
use longshore_backbone::dead_letters::StoredDeadLetter;
use longshore_backbone::poison::HEADERS_BASE64;
use longshore_backbone::records::{Found, Written};
use longshore_backbone::wire::header::{self, then};
use longshore_domain::admission;
use longshore_domain::policy::Policies;
use longshore_domain::protocol::DeadLetterVerdict;
use longshore_domain::run::whole_millis;
use longshore_domain::{ErrorKind, Job, JobOptions, JobType, Priority, Queue, Run, RunState, Tenant};

use crate::api::cancellation::{forget_steps, job_of};
use crate::attempt::assignment::is_acknowledgement;
use crate::attempt::keys;
use crate::commit::chain;
use crate::ports::{DeadLetterPorts, Rules as _, Server as _};
use crate::runtime::fail_point;
use crate::runtime::log_run::{About, log_run};
use crate::trace::{JobTrace, context};

/// Why a dead letter cannot be replayed under its id.
const ANOTHERS: &str =
    "its id is another run's by now, as its lane was made anew; publish its job anew and discard this";

pub(crate) enum Action {
    Replay(ReplayChange),
    Discard,
}

#[derive(Default)]
pub(crate) struct ReplayChange {
    pub(crate) queue: Option<Queue>,
    pub(crate) priority: Option<Priority>,
    pub(crate) payload: Option<Bytes>,
    pub(crate) headers: Vec<(String, Option<String>)>,
    /// The job options in those headers.
    pub(crate) options: Option<Box<JobOptions>>,
}

impl ReplayChange {
    fn is_none(&self) -> bool {
        self.queue.is_none() && self.priority.is_none() && self.payload.is_none() && self.headers.is_empty()
    }
}

/// What the record of a dead letter's run says of it.
struct Judged {
    verdict: DeadLetterVerdict,
    run: Option<Run>,
    /// The revision that a write must name.
    expected: u64,
}

/// A record that cannot be read counts as one that has gone, and is overwritten: the dead letter has the run as it
/// died.
async fn judge<P: DeadLetterPorts>(ports: &P, dead_letter: &StoredDeadLetter) -> Result<Judged, String> {
    let of = &dead_letter.run;
    let (run, expected) = match ports.server().read_record(&of.tenant, &of.run_id).await {
        Ok(Some(Found { run, revision })) => (Some(run), revision),
        Ok(None) => (None, 0),
        Err(error) => (None, error.unreadable_at().ok_or_else(|| error.with_causes())?),
    };
    let verdict = ports.server().on_dead_letter(run.as_ref(), of.round, of.origin);
    Ok(Judged { verdict, run, expected })
}

/// Whether the action would be carried out on this dead letter.
pub(crate) async fn would<P: DeadLetterPorts>(
    ports: &P,
    dead_letter: &StoredDeadLetter,
    action: &Action,
) -> Result<bool, String> {
    if let Action::Replay(change) = action {
        can_be_replayed(ports.policies(), dead_letter, change)?;
    }
    match (judge(ports, dead_letter).await?.verdict, action) {
        (DeadLetterVerdict::OtherRun, Action::Replay(_)) => Err(ANOTHERS.to_owned()),
        (verdict, _) => Ok(!matches!(verdict, DeadLetterVerdict::Stale | DeadLetterVerdict::StaleRecord)),
    }
}

/// Carries the action out on one dead letter; says whether this call did, and not another one.
pub(crate) async fn one<P: DeadLetterPorts>(
    ports: &P,
    dead_letter: StoredDeadLetter,
    action: &Action,
) -> Result<bool, String> {
    if let Action::Replay(change) = action {
        can_be_replayed(ports.policies(), &dead_letter, change)?;
    }
    loop {
        let Judged { verdict, run, expected } = judge(ports, &dead_letter).await?;
        let (run, mut did) = match (verdict, run) {
            (DeadLetterVerdict::Stands, run) => {
                let run = run.unwrap_or_else(|| dead_letter.run.clone());
                if let Action::Replay(change) = action {
                    let job = job_of(&run, &changed_headers(&dead_letter, change));
                    must_have_its_key(ports, &run, &job).await?;
                    if is_invalid(&run) {
                        let undeclared = chain::undeclared(ports, &job).await.map_err(|error| error.with_causes())?;
                        undeclared.map_or(Ok(()), Err)?;
                    }
                }
                let Some(run) = decide(ports, run, expected, &dead_letter, action).await? else { continue };
                (run, true)
            }
            (DeadLetterVerdict::Replayed, Some(run)) => (run, true),
            (DeadLetterVerdict::OtherRun, _) => {
                if matches!(action, Action::Replay(_)) {
                    return Err(ANOTHERS.to_owned());
                }
                remove(ports, &dead_letter).await?;
                return Ok(true);
            }
            (DeadLetterVerdict::StaleRecord, _) => return Err(read_too_early(ports, &dead_letter)),
            (_, Some(run)) => (run, false),
            (_, None) => return Ok(false),
        };
        if verdict != DeadLetterVerdict::Stale || run.state.is_terminal() {
            let logged =
                ports.publish(&run, ports.server().published_at_dead_letter(&run, dead_letter.run.round)).await;
            logged.map_err(|_| "its events could not be published yet; try again".to_owned())?;
        }
        if !run.state.is_terminal() && verdict != DeadLetterVerdict::Stale {
            let Action::Replay(change) = action else {
                publish(ports, &run, &dead_letter, &ReplayChange::default()).await?;
                remove(ports, &dead_letter).await?;
                return Err("is being replayed: it was discarded too late".to_owned());
            };
            // Of several calls at once, the one counts whose job is in the lane.
            did = publish(ports, &run, &dead_letter, change).await?;
            fail_point::pass("after-replay-publish");
        }
        if run.state == RunState::Discarded {
            forget_steps(ports, &run).await;
        }
        remove(ports, &dead_letter).await?;
        return Ok(did);
    }
}

/// Counts and logs that the record is older than the dead letter; says what the client is to do.
fn read_too_early<P: DeadLetterPorts>(ports: &P, dead_letter: &StoredDeadLetter) -> String {
    ports.metrics().stale_reads.inc();
    let about = About::run(&dead_letter.run).traced(context::id_in(Some(&dead_letter.headers)));
    log_run!(warn, about, "the record is older than the dead letter: read too early; nothing is done to it");
    "the record does not know of its end yet; try again".to_owned()
}

/// A replayed run needs its key, if it may be without it since it died or before.
async fn must_have_its_key<P: DeadLetterPorts>(ports: &P, run: &Run, job: &Job) -> Result<(), String> {
    match keys::other_holder(ports, job, run).await.map_err(|error| error.with_causes())? {
        None => Ok(()),
        Some(other) => {
            Err(format!("its idempotency key belongs to run {other} by now: replay it once the key is free"))
        }
    }
}

async fn remove<P: DeadLetterPorts>(ports: &P, dead_letter: &StoredDeadLetter) -> Result<(), String> {
    ports.remove_dead_letter(dead_letter.sequence).await.map_err(|error| error.with_causes())
}

fn can_be_replayed(policies: &Policies, dead_letter: &StoredDeadLetter, change: &ReplayChange) -> Result<(), String> {
    if let (Some(bytes), None) = (dead_letter.left_out, &change.payload) {
        return Err(format!("its payload of {bytes} bytes was too large to be kept; replay it with set.payload"));
    }
    let run = &dead_letter.run;
    // A name that could not be read is stored as `_`, which is not a valid name.
    let names = Tenant::parse(run.tenant.as_str()).is_ok()
        && Queue::parse(run.queue.as_str()).is_ok()
        && JobType::parse(run.job_type.as_str()).is_ok();
    if !names {
        return Err("the subject it was published to could not be read; publish it anew".to_owned());
    }
    match &run.error {
        Some(error) if error.kind == ErrorKind::Invalid && admission::was_refused(&error.message) => {
            take(policies, dead_letter, change).map_err(|refusal| format!("it is still refused: {refusal}"))
        }
        Some(error) if error.kind == ErrorKind::Invalid => {
            is_mended(dead_letter, change, &error.message)?;
            take(policies, dead_letter, change)
        }
        // What was taken once is taken again, as long as it is the same.
        _ => {
            if change.payload.is_some() {
                admit(policies, dead_letter, change)?;
            }
            let read = header::read_job(&changed_headers(dead_letter, change));
            read.map(drop).map_err(|error| format!("it would be invalid: {error}"))
        }
    }
}

/// Whether the job is taken as it would be replayed.
fn admit(policies: &Policies, dead_letter: &StoredDeadLetter, change: &ReplayChange) -> Result<(), String> {
    let payload = change.payload.as_ref().unwrap_or(&dead_letter.payload);
    let options = changed_options(dead_letter, change);
    let version = options.as_ref().and_then(|options| options.schema_version.as_deref());
    let (tenant, job_type) = (&dead_letter.run.tenant, &dead_letter.run.job_type);
    admission::admit(policies, tenant, job_type, version, payload).map_err(|refusal| refusal.to_string())
}

/// The same of a job that was never taken before, with those that are to follow it.
fn take(policies: &Policies, dead_letter: &StoredDeadLetter, change: &ReplayChange) -> Result<(), String> {
    admit(policies, dead_letter, change)?;
    match changed_options(dead_letter, change).and_then(|options| options.then) {
        Some(then) => chain::check_header(policies, &dead_letter.run.tenant, &then.job),
        None => Ok(()),
    }
}

/// A job that could not be read is invalid again, unless the changes mend it.
fn is_mended(dead_letter: &StoredDeadLetter, change: &ReplayChange, reason: &str) -> Result<(), String> {
    let headers = changed_headers(dead_letter, change);
    if header::has(&headers, HEADERS_BASE64) {
        // Dropping them unasked would lose what a person may be able to read.
        let mend = format!("set.headers {{\"{HEADERS_BASE64}\": null}} leaves out the headers that cannot be read");
        return Err(format!("it is invalid ({reason}); {mend}"));
    }
    if change.is_none() {
        return Err(format!("it is invalid ({reason}); mend it with set.headers or set.payload"));
    }
    let payload = change.payload.as_ref().unwrap_or(&dead_letter.payload);
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
async fn decide<P: DeadLetterPorts>(
    ports: &P,
    mut run: Run,
    expected: u64,
    dead_letter: &StoredDeadLetter,
    action: &Action,
) -> Result<Option<Run>, String> {
    match action {
        Action::Replay(change) => {
            let mut options = change.options.clone();
            if is_invalid(&run) {
                // None of them could be read until now.
                options = changed_options(dead_letter, change);
                run.then = options.as_ref().and_then(|options| options.then.as_ref()).map(|then| then.job_type.clone());
            }
            run.replay(ports.now());
            run.queue = change.queue.clone().unwrap_or(run.queue);
            run.priority = change.priority.unwrap_or(run.priority);
            if let Some(payload) = &change.payload {
                run.search = ports.policies().searched(&run.job_type, payload);
            }
            if let Some(options) = options {
                run.max_attempts = options.max_attempts.unwrap_or(run.max_attempts);
                run.keep_ms = options.keep.map(whole_millis).or(run.keep_ms);
                run.tags = if options.tags.is_empty() { run.tags } else { options.tags };
            }
        }
        Action::Discard => run.discard(ports.now()),
    }
    ports.sign(&mut run);
    if run.seal.is_empty() {
        run.seal = ports.seal();
    }
    match ports.server().write_record(&run, expected).await.map_err(|error| error.with_causes())? {
        Written::Won(_) => {
            match action {
                Action::Replay(_) => ports.metrics().replayed.inc(),
                Action::Discard => ports.metrics().run_ended(&run),
            }
            fail_point::pass("after-replay-record");
            Ok(Some(run))
        }
        Written::Lost(_) => Ok(None),
    }
}

/// Whether a run died because its job could not be read.
fn is_invalid(dead: &Run) -> bool {
    dead.error.as_ref().is_some_and(|error| error.kind == ErrorKind::Invalid)
}

/// The job options in those headers.
fn changed_options(dead_letter: &StoredDeadLetter, change: &ReplayChange) -> Option<Box<JobOptions>> {
    header::read_job(&changed_headers(dead_letter, change)).ok()?.options
}

/// The dead letter's headers for another round, with the changes. What follows a run was decided as it began.
fn changed_headers(dead_letter: &StoredDeadLetter, change: &ReplayChange) -> Headers {
    let mut original = header::for_replay(&dead_letter.headers);
    let may_change = |name: &str| is_invalid(&dead_letter.run) || !name.eq_ignore_ascii_case(then::NAME);
    for (name, value) in change.headers.iter().filter(|(name, _)| may_change(name)) {
        original = header::without(&original, name);
        if let Some(value) = value {
            original.insert(name.as_str(), value.as_str());
        }
    }
    original
}

/// Publishes the job of a new round into its lane; says whether it was not there yet. A second publish of the round is
/// caught by its id or by the record.
async fn publish<P: DeadLetterPorts>(
    ports: &P,
    run: &Run,
    dead_letter: &StoredDeadLetter,
    change: &ReplayChange,
) -> Result<bool, String> {
    let mut original = changed_headers(dead_letter, change);
    let trace = ports.tracer().map(|tracer| {
        let trace = JobTrace::of(tracer, Some(&original), &run.tenant, &run.run_id, run.origin);
        trace.put(trace.replay(run), &mut original);
        (tracer, trace)
    });
    let headers = header::carry_on(Some(&original), run, 1, None);
    let payload = change.payload.clone().unwrap_or_else(|| dead_letter.payload.clone());
    let id = format!("{}/{}/{}/{}/1/0", run.tenant, run.run_id, run.seal, run.round);
    let published = ports.move_to_lane(run, headers, payload, &id).await;
    let is_new =
        published.map_err(|error| format!("cannot be published yet, replay it again: {}", error.with_causes()))?;
    if let Some((tracer, trace)) = trace {
        let now = ports.now();
        // From its record on, as the round's first wait: a span begins no later than those below it.
        tracer.replayed(&trace, run, run.enqueued_at.unwrap_or(now)..now);
    }
    Ok(is_new)
}
