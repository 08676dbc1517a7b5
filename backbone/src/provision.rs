//! Brings streams, buckets and consumers into shape at start. Safe to do again, and by several nodes at once.

use async_nats::jetstream::consumer::{PullConsumer, pull};
use async_nats::jetstream::context::{CreateStreamErrorKind, GetStreamErrorKind};
use async_nats::jetstream::stream::{Config, Stream};
use async_nats::jetstream::{Context, ErrorCode};
use longshore_domain::{Priority, Queue};

use crate::error::{Cause, Error};
use crate::settings::Storage;
use crate::shape::{self, Change};
use crate::wire::subject::Names;

/// Another node may make the same stream between our look and our attempt; then we look again.
const ROUNDS: usize = 5;

/// Where shapes are brought about, and by what they are measured.
pub(crate) struct Ground<'g> {
    pub(crate) js: &'g Context,
    pub(crate) names: &'g Names,
    pub(crate) storage: &'g Storage,
    /// Most bytes of one message that the server takes.
    pub(crate) max_payload: usize,
}

/// Brings everything into shape: the common streams, and the nine lanes of each queue.
///
/// # Errors
/// JetStream is not there, or a stream cannot be made or changed.
pub(crate) async fn everything<'a>(
    ground: &Ground<'_>,
    url: &str,
    queues: impl Iterator<Item = &'a Queue>,
) -> Result<(), Error> {
    let Ground { js, names, storage, .. } = *ground;
    js.query_account().await.map_err(|error| Error::NoJetStream { url: url.to_owned(), source: Box::new(error) })?;
    for wanted in shape::streams(names, storage) {
        stream(js, wanted).await?;
    }
    consumer(js, &names.schedules_stream(), shape::due_consumer(names, storage)).await?;
    if let Err(error) = stream(js, shape::replies(names, storage)).await {
        // A server without memory for streams, perhaps: jobs run all the same.
        let why = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
        tracing::warn!(
            "{error} ({why}): a handler's reply that is lost with a connection ends its attempt at its time limit"
        );
    }
    for queue in queues {
        lanes(ground, queue).await?;
    }
    Ok(())
}

/// Brings a queue's lanes into shape.
///
/// # Errors
/// A stream cannot be made or changed.
pub(crate) async fn lanes(ground: &Ground<'_>, queue: &Queue) -> Result<(), Error> {
    let Ground { js, names, storage, max_payload } = *ground;
    for priority in Priority::all() {
        let wanted = shape::lane(names, storage, queue, priority, crate::room::in_lane(max_payload));
        let name = wanted.name.clone();
        stream(js, wanted).await?;
        consumer(js, &name, shape::lane_consumer(storage)).await?;
    }
    Ok(())
}

async fn stream(js: &Context, wanted: Config) -> Result<Stream, Error> {
    let failed = |doing, source: Cause| Error::Provision { doing, name: format!("stream {}", wanted.name), source };
    let mut last: Option<Cause> = None;
    for _ in 0..ROUNDS {
        let found = match js.get_stream(&wanted.name).await {
            Ok(found) => found,
            Err(error) if is_missing(&error.kind()) => match js.create_stream(&wanted).await {
                Ok(stream) => return Ok(stream),
                Err(error) if is_taken(&error.kind()) => {
                    last = Some(Box::new(error));
                    continue;
                }
                Err(error) if has_no_room(&error.kind()) => {
                    return Err(Error::NoRoom { stream: wanted.name, wanted: wanted.max_bytes >> 20 });
                }
                Err(error) => return Err(failed("create", Box::new(error))),
            },
            Err(error) => return Err(failed("look at", Box::new(error))),
        };
        match shape::change(&found.cached_info().config, &wanted) {
            Change::None => return Ok(found),
            Change::Impossible(setting, found, wanted_as) => {
                return Err(Error::Shape { stream: wanted.name, setting, found, wanted: wanted_as });
            }
            Change::Update(next) => {
                tracing::info!(stream = wanted.name, "bringing the stream into shape");
                js.update_stream(&*next).await.map_err(|error| failed("update", Box::new(error)))?;
            }
        }
    }
    let seen = last.unwrap_or_else(|| "it does not stay as it was set: does another program manage it?".into());
    Err(failed("bring into shape", seen))
}

fn is_missing(kind: &GetStreamErrorKind) -> bool {
    matches!(kind, GetStreamErrorKind::JetStream(error) if error.error_code() == ErrorCode::STREAM_NOT_FOUND)
}

fn is_taken(kind: &CreateStreamErrorKind) -> bool {
    matches!(kind, CreateStreamErrorKind::JetStream(error) if error.error_code() == ErrorCode::STREAM_NAME_EXIST)
}

fn has_no_room(kind: &CreateStreamErrorKind) -> bool {
    matches!(kind, CreateStreamErrorKind::JetStream(error) if error.error_code() == ErrorCode::STORAGE_RESOURCES_EXCEEDED)
}

pub(crate) async fn consumer(js: &Context, stream: &str, wanted: pull::Config) -> Result<PullConsumer, Error> {
    // Creating one that is there updates it, and is how the server wants it.
    js.create_consumer_on_stream(wanted, stream).await.map_err(|error| Error::Provision {
        doing: "create",
        name: format!("the consumer of stream {stream}"),
        source: Box::new(error),
    })
}
