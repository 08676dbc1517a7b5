//! Creates or updates streams, buckets and consumers at start. Safe to repeat, and to run on several nodes at once.
//!
//! A cluster that has just started, or lost a server, has no leader for some seconds, and no storage before its servers
//! have found one another. Such refusals pass, so this module waits and tries again.

use std::time::{Duration, Instant};

use async_nats::jetstream::consumer::pull;
use async_nats::jetstream::context::{
    AccountError, AccountErrorKind, CreateStreamError, CreateStreamErrorKind, GetStreamError, GetStreamErrorKind,
};
use async_nats::jetstream::stream::{Config, ConsumerError, ConsumerErrorKind, Stream};
use async_nats::jetstream::{self, Context, ErrorCode};
use futures_util::future::join_all;
use futures_util::{Stream as Streamed, StreamExt as _, TryFutureExt as _, TryStreamExt as _};
use longshore_domain::{Queue, QueueLane};

use crate::clock::now;
use crate::connection::link::Link;
use crate::error::{Cause, Error};
use crate::streams::format;
use crate::streams::shape::{self, Difference, StreamChange, first_sequence};
use crate::streams::wanted::{self, Ground, WantedStream};

/// How long a cluster may take to elect a leader, and to find its servers.
const READY_WITHIN: Duration = Duration::from_secs(60);
const AGAIN_AFTER: Duration = Duration::from_millis(250);
/// How often the log repeats what is waited for.
const SAY_AGAIN_AFTER: Duration = Duration::from_secs(10);
/// How long a question about a stream waits for its answer before it is asked again; after the last, as long as any
/// request does. A server leaves it unanswered while the stream's replicas have no leader, as when another node created
/// it a moment ago.
const ASK_AGAIN_AFTER: [Duration; 3] = [Duration::from_millis(250), Duration::from_millis(500), Duration::from_secs(1)];
/// How many streams are created or updated at once: with replicas each takes a tenth of a second and more.
const AT_ONCE: usize = 8;
/// A stream that is still not as wanted after so many updates is set by another program as well.
const UPDATES: usize = 5;
/// How long taking back the lanes of a queue may take: a node may lack the right to that, and gets no answer then.
const TAKEN_BACK_WITHIN: Duration = Duration::from_secs(2);

/// Errors that pass by themselves: no leader, no quorum, servers that have not joined yet, or whose storage is not
/// known yet.
const PASSING: [ErrorCode; 11] = [
    ErrorCode::CLUSTER_NOT_AVAILABLE,
    ErrorCode::CLUSTER_NOT_LEADER,
    ErrorCode::CLUSTER_NOT_ACTIVE,
    ErrorCode::CLUSTER_NOT_ASSIGNED,
    ErrorCode::CLUSTER_INCOMPLETE,
    ErrorCode::CLUSTER_NO_PEERS,
    ErrorCode::INSUFFICIENT_RESOURCES,
    ErrorCode::CLUSTER_SERVER_MEMBER_CHANGE_INFLIGHT,
    ErrorCode::STREAM_OFFLINE,
    ErrorCode::CONSUMER_OFFLINE,
    ErrorCode::RAFT_GENERAL,
];

/// Creates or updates everything: the common streams, and the lanes of each queue. Says whether the cluster had done
/// work before. What may pass by itself is tried again for a minute.
pub(crate) async fn everything<'a>(
    link: &Link,
    ground: Ground<'_>,
    url: &str,
    queues: impl Iterator<Item = &'a Queue>,
) -> Result<bool, Error> {
    let js = &link.jetstream();
    // Requests that the server refuses stay without an answer, as if it had no JetStream.
    let refused = {
        let (api, inbox) = (link.api().to_owned(), link.inbox_prefix());
        link.refusals().next(move |refusal| refusal.is_of_publish_below(&api) || refusal.is_of_inbox(&inbox))
    };
    let had_jobs = tokio::select! {
        had_jobs = needed(js, ground, url, queues) => had_jobs?,
        right = refused => return Err(failed("use", "JetStream".to_owned(), right.into())),
    };
    if let Err(error) = bring_stream(js, &shape::replies(ground.names, ground.storage), true).await {
        // Perhaps the server has no memory for streams: jobs run all the same.
        let why = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
        tracing::warn!(
            "{error} ({why}): a handler's reply that is lost with a connection ends its attempt at its time limit"
        );
    }
    Ok(had_jobs)
}

/// The same, without the one stream that a node can do without.
async fn needed<'a>(
    js: &Context,
    ground: Ground<'_>,
    url: &str,
    queues: impl Iterator<Item = &'a Queue>,
) -> Result<bool, Error> {
    let Ground { names, storage, .. } = ground;
    let until = Instant::now() + READY_WITHIN;
    let no_jetstream = |error| Error::NoJetStream { url: url.to_owned(), source: Box::new(error) };
    retry_until(until, "JetStream", || js.query_account().map_err(no_jetstream)).await?;
    let format = "the format of what is stored";
    let is_marked = retry_until(until, format, || format::check(js, names)).await?;
    let records = [names.bucket_stream("runs"), names.events_stream()];
    let had_jobs = retry_until(until, "the run records", || is_any(js, &records, |last| last > 0)).await?;
    let mut wanted: Vec<WantedStream> = wanted::common(ground).map(|stream| begins_late(stream, had_jobs)).collect();
    for queue in queues {
        wanted.extend(lanes(js, ground, queue, false, until).await?.0);
    }
    // One more is in the server's memory.
    let needed = wanted.len() + 1;
    bring_about_each(js, wanted, storage.allow_shrink, until).try_collect::<()>().await.map_err(
        |error| match error {
            Error::NoStreamLeft { stream, .. } => Error::NoStreamLeft { stream, needed },
            error => error,
        },
    )?;
    if !is_marked {
        retry_until(until, format, || format::mark(js, names)).await?;
    }
    Ok(had_jobs)
}

/// The lanes of a queue, which was perhaps declared `again`. Of a new one there are all in the end, or none.
pub(crate) async fn queue(
    js: &Context,
    ground: Ground<'_>,
    queue: &Queue,
    again: bool,
    within: Duration,
) -> Result<(), Error> {
    let until = Instant::now() + within;
    let (wanted, were_there) = lanes(js, ground, queue, again, until).await?;
    let names: Vec<String> = wanted.iter().map(WantedStream::name).map(ToOwned::to_owned).collect();
    // Each to its end: what is still being made could not be taken back.
    let each = bring_about_each(js, wanted, ground.storage.allow_shrink, until).collect::<Vec<_>>().await;
    let made: Result<(), Error> = each.into_iter().collect();
    if made.is_err() && !were_there {
        let taken_back = join_all(names.iter().map(|name| take_back(js, name)));
        let _ = tokio::time::timeout(TAKEN_BACK_WITHIN, taken_back).await;
    }
    made
}

/// Deletes a lane that was made in vain, as it would keep its room; one that has jobs stays.
async fn take_back(js: &Context, name: &str) {
    let found = js.get_stream(name).await;
    if found.is_ok_and(|found| found.cached_info().state.messages == 0)
        && let Err(error) = js.delete_stream(name).await
    {
        tracing::debug!("stream {name} was made in vain and stays: {error}");
    }
}

/// The lanes of a queue, and whether it had any. One that is missing beside others, or of a queue that is declared
/// `again`, was deleted.
async fn lanes(
    js: &Context,
    ground: Ground<'_>,
    queue: &Queue,
    again: bool,
    until: Instant,
) -> Result<(Vec<WantedStream>, bool), Error> {
    let streams = QueueLane::all().map(|lane| ground.names.lane_stream(queue, lane)).collect::<Vec<_>>();
    let were_there = again || retry_until(until, "the lanes", || is_any(js, &streams, |_| true)).await?;
    Ok((wanted::lanes(ground, queue).map(|lane| begins_late(lane, were_there)).collect(), were_there))
}

/// A stream of messages that `may_be_again`, as it was there and was deleted: if it has to be created, its sequences
/// begin far above all earlier ones ([`crate::streams::remake`]). So do those of the buckets of control and of
/// checkpoints: nodes that run read only what is newer than what they have read there.
fn begins_late(mut wanted: WantedStream, may_be_again: bool) -> WantedStream {
    let name = wanted.name();
    if may_be_again && (!name.starts_with("KV_") || name.ends_with("_control") || name.ends_with("_checkpoints")) {
        wanted.config.first_sequence = Some(first_sequence(now()));
    }
    wanted
}

/// Whether one of these streams is there, with such a last sequence.
async fn is_any(js: &Context, streams: &[String], fits: fn(u64) -> bool) -> Result<bool, Error> {
    for name in streams {
        if last_sequence(js, name).await?.is_some_and(fits) {
            return Ok(true);
        }
    }
    Ok(false)
}

async fn last_sequence(js: &Context, name: &str) -> Result<Option<u64>, Error> {
    match inspect(js, name).await {
        Ok(found) => Ok(Some(found.cached_info().state.last_sequence)),
        Err(error) if is_missing(&error.kind()) => Ok(None),
        Err(error) => Err(failed("inspect", format!("stream {name}"), Box::new(error))),
    }
}

fn bring_about_each(
    js: &Context,
    wanted: Vec<WantedStream>,
    allow_shrink: bool,
    until: Instant,
) -> impl Streamed<Item = Result<(), Error>> {
    let each = wanted.into_iter().map(move |wanted| bring_about(js, wanted, allow_shrink, until));
    futures_util::stream::iter(each).buffer_unordered(AT_ONCE)
}

async fn bring_about(js: &Context, wanted: WantedStream, allow_shrink: bool, until: Instant) -> Result<(), Error> {
    let WantedStream { config: stream, consumer } = &wanted;
    retry_until(until, &format!("stream {}", stream.name), || bring_stream(js, stream, allow_shrink)).await?;
    let Some(consumer) = consumer else { return Ok(()) };
    let what = format!("the consumer of stream {}", stream.name);
    retry_until(until, &what, || self::consumer(js, &stream.name, consumer.clone())).await
}

/// Repeats `work` after an error that passes by itself, and logs what it waits for.
async fn retry_until<T, Work>(until: Instant, what: &str, work: impl Fn() -> Work) -> Result<T, Error>
where
    Work: Future<Output = Result<T, Error>>,
{
    let mut say_at = Instant::now();
    loop {
        let error = match work().await {
            Err(error) if passes(&error) && Instant::now() < until => error,
            settled => return settled,
        };
        if Instant::now() >= say_at {
            let cause = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
            tracing::warn!("waiting for {what}: {error}: {cause}");
            say_at = Instant::now() + SAY_AGAIN_AFTER;
        }
        tokio::time::sleep(AGAIN_AFTER).await;
    }
}

fn failed(doing: &'static str, name: String, source: Cause) -> Error {
    Error::Provision { doing, name, source }
}

async fn create(js: &Context, wanted: &Config) -> Result<(), Error> {
    match js.create_stream(wanted).await {
        Ok(_) => Ok(()),
        Err(error) if wanted.num_replicas == 1 && has_code(&error.kind(), ErrorCode::STORAGE_RESOURCES_EXCEEDED) => {
            Err(Error::NoRoom { stream: wanted.name.clone(), wanted: wanted.max_bytes >> 20 })
        }
        Err(error) if has_code(&error.kind(), ErrorCode::MAXIMUM_STREAMS_LIMIT) => {
            Err(Error::NoStreamLeft { stream: wanted.name.clone(), needed: 0 })
        }
        Err(error) => Err(failed("create", format!("stream {}", wanted.name), Box::new(error))),
    }
}

/// Creates a stream; false if another node has done so meanwhile.
pub(crate) async fn anew(js: &Context, wanted: &Config) -> Result<bool, Error> {
    match create(js, wanted).await {
        Ok(()) => Ok(true),
        Err(Error::Provision { source, .. }) if is_taken(&source) => Ok(false),
        Err(error) => Err(error),
    }
}

async fn inspect(js: &Context, name: &str) -> Result<Stream, GetStreamError> {
    for within in ASK_AGAIN_AFTER {
        if let Ok(answered) = tokio::time::timeout(within, js.get_stream(name)).await {
            return answered;
        }
    }
    js.get_stream(name).await
}

async fn bring_stream(js: &Context, wanted: &Config, allow_shrink: bool) -> Result<(), Error> {
    let failed = |doing, source: Cause| failed(doing, format!("stream {}", wanted.name), source);
    for updates in 0.. {
        let found = match inspect(js, &wanted.name).await {
            Ok(found) => found,
            Err(error) if is_missing(&error.kind()) => return create(js, wanted).await,
            Err(error) => return Err(failed("inspect", Box::new(error))),
        };
        match shape::change(&found.cached_info().config, wanted, allow_shrink) {
            StreamChange::None { kept } => {
                for Difference { setting, found, wanted: other } in kept {
                    tracing::warn!(
                        stream = wanted.name,
                        "the stream keeps its {setting} of {found}: {other} would throw away what it holds; storage.allow_shrink = true permits it"
                    );
                }
                return Ok(());
            }
            StreamChange::Impossible(Difference { setting, found, wanted: wanted_as }) => {
                return Err(Error::Shape { stream: wanted.name.clone(), setting, found, wanted: wanted_as });
            }
            StreamChange::Update { .. } if updates == UPDATES => break,
            StreamChange::Update { to, changed } => {
                for Difference { setting, found, wanted: to } in &changed {
                    tracing::info!(
                        stream = wanted.name,
                        "bringing the stream into shape: {setting} was {found}, is {to} now"
                    );
                }
                js.update_stream(&*to).await.map_err(|error| failed("update", Box::new(error)))?;
            }
        }
    }
    let seen = "it does not stay as it was set: does another program manage it?".into();
    Err(failed("bring into shape", seen))
}

/// Whether an error may pass by itself soon.
fn passes(error: &Error) -> bool {
    if matches!(error, Error::Read { .. } | Error::Publish { .. }) {
        return true;
    }
    let (Error::Provision { source, .. } | Error::NoJetStream { source, .. }) = error else { return false };
    let is_passing = |error: &jetstream::Error| PASSING.contains(&error.error_code());
    if let Some(error) = source.downcast_ref::<AccountError>() {
        return match error.kind() {
            AccountErrorKind::JetStream(error) => is_passing(&error),
            AccountErrorKind::TimedOut => true,
            // A server without JetStream does not answer.
            AccountErrorKind::JetStreamUnavailable | AccountErrorKind::Other => false,
        };
    }
    if let Some(error) = source.downcast_ref::<GetStreamError>() {
        return match error.kind() {
            GetStreamErrorKind::JetStream(error) => is_passing(&error),
            GetStreamErrorKind::Request => true,
            GetStreamErrorKind::EmptyName | GetStreamErrorKind::InvalidStreamName => false,
        };
    }
    if let Some(error) = source.downcast_ref::<CreateStreamError>() {
        return match error.kind() {
            // Another node is creating the same stream.
            kind if has_code(&kind, ErrorCode::STREAM_NAME_EXIST) => true,
            // A cluster's servers have not reported their storage yet.
            kind if has_code(&kind, ErrorCode::STORAGE_RESOURCES_EXCEEDED) => true,
            CreateStreamErrorKind::JetStream(error) => is_passing(&error),
            kind => matches!(kind, CreateStreamErrorKind::TimedOut | CreateStreamErrorKind::JetStreamUnavailable),
        };
    }
    source.downcast_ref::<ConsumerError>().is_some_and(|error| match error.kind() {
        // Its stream was created a moment ago, and is not known everywhere yet.
        ConsumerErrorKind::JetStream(error) => is_passing(&error) || error.error_code() == ErrorCode::STREAM_NOT_FOUND,
        kind => matches!(kind, ConsumerErrorKind::TimedOut | ConsumerErrorKind::Request),
    })
}

pub(crate) fn is_missing(kind: &GetStreamErrorKind) -> bool {
    matches!(kind, GetStreamErrorKind::JetStream(error) if error.error_code() == ErrorCode::STREAM_NOT_FOUND)
}

fn is_taken(error: &Cause) -> bool {
    let created = error.downcast_ref::<CreateStreamError>();
    created.is_some_and(|error| has_code(&error.kind(), ErrorCode::STREAM_NAME_EXIST))
}

fn has_code(kind: &CreateStreamErrorKind, code: ErrorCode) -> bool {
    matches!(kind, CreateStreamErrorKind::JetStream(error) if error.error_code() == code)
}

pub(crate) async fn consumer(js: &Context, stream: &str, wanted: pull::Config) -> Result<(), Error> {
    // Creating a consumer that exists updates it; the server wants it that way.
    let made = js.create_consumer_on_stream(wanted, stream).await;
    made.map(|_| ()).map_err(|error| failed("create", format!("the consumer of stream {stream}"), Box::new(error)))
}
