//! Replaying and discarding dead letters: one, or all that fit a filter ([`dead_letter`](crate::api::letter) has the
//! steps).

use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt as _;
use longshore_backbone::Headers;
use longshore_backbone::dead_letters::StoredDeadLetter;
use longshore_backbone::scan::Source;
use longshore_backbone::wire::api::{
    self, ApiError, DiscardRequest, Discarded, Encoded, Failed, Outcome, ReplayRequest, Replayed, Selection,
};
use longshore_backbone::wire::header;
use longshore_domain::{Priority, Queue};

use crate::api::dead_letter::{Action, ReplayChange, one, would};
use crate::api::filter::{self, Chosen};
use crate::api::{Answered, Api, dead_letters, intake};

/// Dead letters that one call works on at once, if no rate is set.
const AT_ONCE: usize = 64;
/// Minimum rate, one in 1,000 s: a client waits for the answer, and much slower rates do not fit into a duration.
const SLOWEST: f64 = 0.001;
/// The headers whose values were decided with the run's first round.
const SETTLED: [&str; 7] = [
    "longshore-run-id",
    "longshore-idempotency-key",
    "longshore-idempotency-key-base64",
    "longshore-idempotency-window",
    "longshore-unique",
    "longshore-run-at",
    "longshore-delay",
];

pub(crate) async fn replay(api: &Api, asker: &str, asked: ReplayRequest) -> Answered<Replayed> {
    let ReplayRequest { selection, rate_per_s, set } = asked;
    let change = change(api, set.unwrap_or_default()).await?;
    let outcome = attend(api, asker, selection, rate_per_s, &Action::Replay(change)).await?;
    Ok(Encoded::of(&Replayed::from(outcome)))
}

pub(crate) async fn discard(api: &Api, asker: &str, asked: DiscardRequest) -> Answered<Discarded> {
    let outcome = attend(api, asker, asked.selection, asked.rate_per_s, &Action::Discard).await?;
    Ok(Encoded::of(&Discarded::from(outcome)))
}

/// Reads and checks all changes before anything is changed.
async fn change(api: &Api, set: api::Change) -> Result<ReplayChange, ApiError> {
    let within = |error: longshore_domain::NameError| ApiError::malformed(format!("set: {error}"));
    let queue = set.queue.as_deref().map(Queue::parse).transpose().map_err(within)?;
    let priority = set.priority.map(Priority::new).transpose().map_err(within)?;
    if let Some(queue) = &queue {
        intake::must_be_declared(api, queue).await?;
    }
    let mut headers = Headers::new();
    for (name, value) in &set.headers {
        let field = format!("set.headers.{name}");
        if header::is_servers(name) {
            return Err(ApiError::malformed(format!("{field}: is the server's, not a client's")));
        }
        let named = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_graphic() && byte != b':');
        if !named || value.as_deref().is_some_and(|value| value.contains(['\r', '\n'])) {
            return Err(ApiError::malformed(format!("{field}: is not a valid header")));
        }
        if let Some(value) = value {
            headers.insert(name.as_str(), value.as_str());
        }
    }
    intake::headers_fit(header::size_of(&headers)).map_err(|error| error.within("set"))?;
    let read = header::read_job(&headers).map_err(|error| ApiError::malformed(format!("set.headers: {error}")))?;
    let is_settled = |name: &str| SETTLED.iter().any(|settled| settled.eq_ignore_ascii_case(name));
    if let Some((name, _)) = set.headers.iter().find(|(name, value)| value.is_some() && is_settled(name)) {
        let reason = "is settled once a run has begun; a replay cannot change it";
        return Err(ApiError::malformed(format!("set.headers.{name}: {reason}")));
    }
    Ok(ReplayChange {
        queue,
        priority,
        payload: set.payload.map(|json| Bytes::copy_from_slice(json.get().as_bytes())),
        headers: set.headers.into_iter().collect(),
        options: read.options,
    })
}

/// Carries the action out on the dead letters that are meant; says on how many, which failed, and whether the limit
/// left some.
async fn attend(
    api: &Api,
    asker: &str,
    asked: Selection,
    rate_per_s: Option<f64>,
    action: &Action,
) -> Result<Outcome, ApiError> {
    let pause = match rate_per_s {
        Some(rate) if rate.is_finite() && rate >= SLOWEST => Some(Duration::from_secs_f64(1.0 / rate)),
        Some(_) => return Err(ApiError::malformed(format!("rate_per_s: is not {SLOWEST} or more"))),
        None => None,
    };
    let (limit, dry_run) = (asked.limit.unwrap_or(u64::MAX), asked.dry_run);
    let pause = pause.filter(|_| !dry_run);
    let work_on = |dead_letter: StoredDeadLetter| async move {
        let run_id = dead_letter.run.run_id.clone();
        let result = if dry_run { would(api, &dead_letter, action).await } else { one(api, dead_letter, action).await };
        result.map_err(|error| Failed { error, run_id })
    };
    let filter = match filter::which(asker, asked)? {
        Chosen::One(tenant, run_id) => {
            let (dead_letter, _) = dead_letters::find(api, &tenant, &run_id).await?;
            let mut outcome = Outcome::default();
            outcome.add(work_on(dead_letter).await);
            return Ok(outcome);
        }
        Chosen::Those(filter) => filter,
    };
    let _paced = pause.map(|_| api.paced.enter(asker)).transpose()?;
    // A run that dies again meanwhile is not taken again.
    let (_, last) = api.backbone.sequences(&Source::DeadLetters).await?;
    let subject = dead_letters::subject(api, &filter);
    let (mut outcome, mut from, mut next_at) = (Outcome::default(), Some(1), tokio::time::Instant::now());
    while let Some(at) = from.filter(|at| *at <= last) {
        let page = api.backbone.page(&Source::DeadLetters, &subject, at).await?;
        from = page.next;
        let messages = page.messages.into_iter().filter(|stored| stored.sequence <= last);
        let mut dead_letters = dead_letters::meant(api, &filter, messages).await?.into_iter().peekable();
        while dead_letters.peek().is_some() {
            let room = limit.saturating_sub(outcome.done + outcome.failures());
            if room == 0 {
                return Ok(Outcome { more: true, ..outcome });
            }
            let at_once = if pause.is_some() { 1 } else { AT_ONCE };
            let some: Vec<StoredDeadLetter> =
                dead_letters.by_ref().take(at_once.min(usize::try_from(room).unwrap_or(at_once))).collect();
            if let Some(pause) = pause {
                // Before the next one: nothing follows the last.
                tokio::time::sleep_until(next_at).await;
                next_at = tokio::time::Instant::now() + pause;
            }
            let each = some.into_iter().map(work_on);
            let results: Vec<_> = futures_util::stream::iter(each).buffer_unordered(AT_ONCE).collect().await;
            results.into_iter().for_each(|result| outcome.add(result));
        }
    }
    Ok(outcome)
}
