//! The streams that nodes of given queues need, each with its consumer.

use async_nats::jetstream::consumer::pull;
use async_nats::jetstream::stream::{Config, StorageType};
use longshore_domain::{Queue, QueueLane};

use crate::Backbone;
use crate::settings::Storage;
use crate::streams::shape;
use crate::wire::subject::Names;

/// What the wanted streams depend on, beside the queues.
#[derive(Clone, Copy)]
pub(crate) struct Ground<'g> {
    pub(crate) names: &'g Names,
    pub(crate) storage: &'g Storage,
    /// Maximum size of one message that the server accepts, in bytes.
    pub(crate) max_payload: usize,
}

/// A stream as nodes want it.
#[derive(Debug, Clone)]
pub struct WantedStream {
    pub(crate) config: Config,
    /// Its durable consumer, if it is to have one.
    pub(crate) consumer: Option<pull::Config>,
}

impl WantedStream {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.config.name
    }

    pub(crate) fn consumer_name(&self) -> Option<&str> {
        self.consumer.as_ref()?.durable_name.as_deref()
    }

    /// Whether what it holds decides which jobs may run, so that an empty one would have jobs or their steps run that
    /// must not.
    pub fn decides(&self) -> bool {
        self.config.name.starts_with("KV_")
    }

    /// Whether jobs run without it as well. It is in the server's memory: it goes with the server, which may have no
    /// memory for it.
    pub fn is_dispensable(&self) -> bool {
        self.config.storage == StorageType::Memory
    }
}

/// The streams that all queues share, but for that of handlers' last replies, without which jobs run as well.
pub(crate) fn common(Ground { names, storage, .. }: Ground<'_>) -> impl Iterator<Item = WantedStream> {
    shape::streams(names, storage).into_iter().map(|config| {
        let is_of_time = config.name == names.schedules_stream();
        WantedStream { config, consumer: is_of_time.then(|| shape::due_consumer(names, storage)) }
    })
}

pub(crate) fn lanes<'g>(ground: Ground<'g>, queue: &'g Queue) -> impl Iterator<Item = WantedStream> + use<'g> {
    let Ground { names, storage, max_payload } = ground;
    QueueLane::all().map(move |lane| WantedStream {
        config: shape::lane(names, storage, queue, lane, max_payload),
        consumer: Some(shape::lane_consumer(storage)),
    })
}

/// All streams that nodes of these queues need.
pub(crate) fn of_queues<'q>(ground: Ground<'q>, queues: impl Iterator<Item = &'q Queue>) -> Vec<WantedStream> {
    common(ground).chain(queues.flat_map(move |queue| lanes(ground, queue))).collect()
}

impl Backbone {
    /// The streams that a node of these queues needs, and the one that it can do without.
    pub fn wanted_streams<'q>(&'q self, queues: impl Iterator<Item = &'q Queue>) -> Vec<WantedStream> {
        let mut wanted = of_queues(self.ground(), queues);
        wanted.push(WantedStream { config: shape::replies(self.names(), self.storage()), consumer: None });
        wanted
    }
}
