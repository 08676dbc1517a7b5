//! Bare JetStream: one lane of the contract's shape, and the leanest pull-and-acknowledge loop on it.
//!
//! It has its own puller, because async-nats' pull stream costs the same per job and was once seen to stand still with
//! a third of the jobs left. The loop does no work and keeps nothing. It is the denominator of every ratio.

use std::time::Duration;

use anyhow::Context;
use async_nats::jetstream::consumer::{AckPolicy, pull};
use async_nats::jetstream::stream::{Config, DiscardPolicy, RetentionPolicy, StorageType};
use async_nats::{Client, Message, Subscriber};
use bytes::Bytes;
use futures_util::StreamExt;
use longshore_harness::World;

use crate::streams::{self, lane};

/// Jobs requested by one pull; the next pull is sent when at most this many jobs are outstanding.
const BATCH: u64 = 256;
/// How long a job may take to arrive.
const COMES_WITHIN: Duration = Duration::from_secs(30);

/// A fresh server with one lane and its consumer.
pub(crate) async fn world() -> anyhow::Result<World> {
    let world = World::new().await;
    let config = Config {
        name: lane(5),
        subjects: vec!["longshore.jobs.*.main.p5.>".to_owned()],
        retention: RetentionPolicy::WorkQueue,
        storage: StorageType::File,
        discard: DiscardPolicy::New,
        max_messages: 10_000_000,
        max_bytes: 4 << 30,
        duplicate_window: Duration::from_secs(120),
        allow_direct: true,
        ..Config::default()
    };
    let stream = world.jetstream().create_stream(config).await?;
    let consumer = pull::Config {
        durable_name: Some("work".to_owned()),
        ack_policy: AckPolicy::Explicit,
        ack_wait: Duration::from_secs(30),
        max_ack_pending: -1,
        ..pull::Config::default()
    };
    stream.create_consumer(consumer).await?;
    Ok(world)
}

/// Takes and acknowledges `count` jobs, then waits until the server says that the lane is empty.
pub(crate) async fn drain(world: &World, count: u64) -> anyhow::Result<()> {
    let mut puller = Puller::open(world.client().clone()).await?;
    for done in 0..count {
        puller.next().await?.with_context(|| format!("only {done} of {count} came within {COMES_WITHIN:?}"))?;
    }
    world.client().flush().await?;
    streams::emptied(world, &[lane(5)], COMES_WITHIN).await
}

/// Takes jobs from the lane and acknowledges each as it arrives.
pub(crate) struct Puller {
    client: Client,
    inbox: String,
    messages: Subscriber,
    outstanding: u64,
}

impl Puller {
    pub(crate) async fn open(client: Client) -> anyhow::Result<Puller> {
        let inbox = client.new_inbox();
        let messages = client.subscribe(inbox.clone()).await?;
        Ok(Puller { client, inbox, messages, outstanding: 0 })
    }

    /// Requests jobs if few are outstanding.
    pub(crate) async fn top_up(&mut self) -> anyhow::Result<()> {
        if self.outstanding > BATCH {
            return Ok(());
        }
        let subject = format!("$JS.API.CONSUMER.MSG.NEXT.{}.work", lane(5));
        let request = format!(r#"{{"batch":{BATCH},"expires":30000000000}}"#);
        self.client.publish_with_reply(subject, self.inbox.clone(), Bytes::from(request)).await?;
        self.outstanding += BATCH;
        Ok(())
    }

    /// The next job, acknowledged; `None` if none comes.
    pub(crate) async fn next(&mut self) -> anyhow::Result<Option<Message>> {
        loop {
            self.top_up().await?;
            let Ok(Some(message)) = tokio::time::timeout(COMES_WITHIN, self.messages.next()).await else {
                return Ok(None);
            };
            match message.reply.clone() {
                Some(reply) if message.status.is_none() => {
                    self.outstanding = self.outstanding.saturating_sub(1);
                    self.client.publish(reply, Bytes::from_static(b"+ACK")).await?;
                    return Ok(Some(message));
                }
                // A pull has timed out; the remaining jobs of the other pulls still arrive.
                _ => self.outstanding = 0,
            }
        }
    }
}
