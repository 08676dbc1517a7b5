//! A node's access to NATS: its four connections, the names and settings that all parts use, and how messages
//! are published. What is read and written beyond that stands in the folders, as further methods of [`Backbone`].

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use async_nats::{HeaderMap, Subject, jetstream};
use bytes::Bytes;
use longshore_domain::{Queue, SmolStr};
use tokio::sync::{mpsc, oneshot, watch};

use crate::clock;
use crate::cluster::bucket_space::BucketSpace;
use crate::connection::link::Link;
use crate::connection::taken_subject::TakenSubject;
use crate::error::Error;
use crate::handlers::SecondReplies;
use crate::lanes::custody::{Custody, Returns, nak, return_dropped};
use crate::lanes::parked::ParkedSpace;
use crate::messages::request::{self, PubAck};
use crate::messages::size_limits;
use crate::messages::window::PublishWindow;
use crate::services::UnreadReplies;
use crate::settings::{Connection, Storage};
use crate::streams::provision;
use crate::streams::wanted::Ground;
use crate::unreadable::Unreadable;
use crate::wire::subject::Names;

/// How long a node that starts may wait for the server's time: longer than an election takes.
const CLOCK_SET_WITHIN: Duration = Duration::from_secs(20);

/// A node's access to NATS. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Backbone(pub(crate) Arc<Inner>);

#[derive(Debug)]
pub(crate) struct Inner {
    jobs: Link,
    control: Link,
    api: Link,
    work: Link,
    names: Names,
    storage: Storage,
    pub(crate) returns: Returns,
    /// Asks whether all that were dropped have been returned.
    all_returned: mpsc::Sender<oneshot::Sender<()>>,
    /// Whether what is returned is to come again at once after a restart of the server.
    pub(crate) outlasts: Arc<AtomicBool>,
    pub(crate) custody: Mutex<HashMap<SmolStr, Arc<Custody>>>,
    pub(crate) parked_space: ParkedSpace,
    /// The room for new keys of concurrency limits, and of rate limits; for new recurring schedules; and for new steps.
    pub(crate) concurrency_space: BucketSpace,
    pub(crate) control_space: BucketSpace,
    pub(crate) schedules_space: BucketSpace,
    pub(crate) checkpoints_space: BucketSpace,
    payloads_left_out: AtomicU64,
    /// How many messages were deleted because they cannot be read.
    pub(crate) removed: AtomicU64,
    pub(crate) second_replies: SecondReplies,
    pub(crate) unread_replies: UnreadReplies,
    unreadable: Unreadable,
    /// Whether the cluster had done work before this node started.
    pub(crate) had_jobs: bool,
    /// How long the record of a run that completes now is kept, in milliseconds.
    pub(crate) completed_kept: AtomicU64,
}

impl Backbone {
    /// Connects, creates or updates everything that `queues` need, and sets the clock of this process.
    ///
    /// # Errors
    /// The server cannot be reached, is too old or has no JetStream, a stream cannot be created or updated, or no
    /// server says what time it is.
    pub async fn open<'a>(
        connection: &Connection,
        storage: Storage,
        node: &str,
        queues: impl Iterator<Item = &'a Queue>,
    ) -> Result<Self, Error> {
        let jobs = Link::open(connection, "jobs", &format!("longshore {node}")).await?;
        let shown = |name| format!("longshore {node} {name}");
        let control = Link::open(connection, "control", &shown("control")).await?;
        let api = Link::open_filtered(connection, "api", &shown("api"), false).await?;
        let work = Link::open_filtered(connection, "work", &shown("work"), true).await?;
        let names = Names::new(&storage.namespace);
        let max_payload = jobs.server_info().max_payload;
        let ground = Ground { names: &names, storage: &storage, max_payload };
        let bucket = names.bucket_stream("control");
        // Before the cluster's first start there is nobody to ask yet, and nothing that a clock could harm.
        let _ = clock::set_first(&control, &bucket, Duration::ZERO).await;
        let had_jobs = provision::everything(&control, ground, &connection.shown_url(), queues).await?;
        clock::set_first(&control, &bucket, CLOCK_SET_WITHIN)
            .await
            .map_err(|error| Error::Read { subject: "the server's time".to_owned(), source: error.into() })?;
        let (returns, returned) = mpsc::unbounded_channel();
        let outlasts = Arc::new(AtomicBool::new(false));
        let (all_returned, asked) = mpsc::channel(1);
        let (link, later) = (jobs.clone(), Arc::clone(&outlasts));
        let nak = async move |reply| nak(&link, reply, later.load(Ordering::Relaxed)).await;
        tokio::spawn(return_dropped(returned, asked, nak));
        let completed_kept = AtomicU64::new(longshore_domain::run::whole_millis(storage.completed_max_age));
        Ok(Self(Arc::new(Inner {
            jobs,
            control,
            api,
            work,
            names,
            storage,
            returns,
            all_returned,
            outlasts,
            custody: Mutex::default(),
            parked_space: ParkedSpace::default(),
            concurrency_space: BucketSpace::default(),
            control_space: BucketSpace::default(),
            schedules_space: BucketSpace::default(),
            checkpoints_space: BucketSpace::default(),
            payloads_left_out: AtomicU64::new(0),
            removed: AtomicU64::new(0),
            second_replies: SecondReplies::default(),
            unread_replies: UnreadReplies::default(),
            unreadable: Unreadable::default(),
            had_jobs,
            completed_kept,
        })))
    }

    /// Creates or updates the lanes of a queue, so that it is declared. Safe to repeat, also by several nodes at once.
    /// `again`: it was declared before, so that lanes that are missing were deleted.
    ///
    /// # Errors
    /// A lane cannot be created or updated within that time.
    pub async fn declare(&self, queue: &Queue, again: bool, within: Duration) -> Result<(), Error> {
        provision::queue(&self.jetstream(), self.ground(), queue, again, within).await
    }

    /// What the wanted streams depend on, beside the queues.
    pub(crate) fn ground(&self) -> Ground<'_> {
        Ground { names: self.names(), storage: self.storage(), max_payload: self.max_payload() }
    }

    /// The room for new lines and orders of concurrency keys.
    pub fn concurrency_space(&self) -> BucketSpace {
        self.0.concurrency_space.clone()
    }

    /// The room for new keys of rate limits.
    pub fn control_space(&self) -> BucketSpace {
        self.0.control_space.clone()
    }

    /// The room for results of steps.
    pub fn checkpoints_space(&self) -> BucketSpace {
        self.0.checkpoints_space.clone()
    }

    /// What a node publishes of a job again: without its payload, if the server takes no message of that size any more.
    pub(crate) fn fitting(&self, headers: &mut HeaderMap, payload: Bytes) -> Bytes {
        let had = payload.len();
        let payload = size_limits::fitting(headers, payload, self.max_payload());
        self.0.payloads_left_out.fetch_add(u64::from(payload.len() < had), Ordering::Relaxed);
        payload
    }

    /// How many jobs this node has published again without their payload, as the server takes no message of that size
    /// any more.
    pub fn payloads_left_out(&self) -> u64 {
        self.0.payloads_left_out.load(Ordering::Relaxed)
    }

    /// Every subject, stream and bucket.
    pub fn names(&self) -> &Names {
        &self.0.names
    }

    /// What is stored, and for how long.
    pub fn storage(&self) -> &Storage {
        &self.0.storage
    }

    /// Changes whenever the connection for jobs has been re-established.
    pub fn connected(&self) -> watch::Receiver<u64> {
        self.0.jobs.connected()
    }

    /// All connections.
    pub fn connections(&self) -> [&Link; 4] {
        [&self.0.jobs, &self.0.control, &self.0.api, &self.0.work]
    }

    /// Where the servers leave this node's writes unanswered, and for how long they have.
    pub fn silent_writes(&self) -> Vec<(String, Duration)> {
        let now = Instant::now();
        self.connections().into_iter().flat_map(|link| link.silent_writes().list(now)).collect()
    }

    /// What this node met in the buckets and could not read.
    pub fn unreadable(&self) -> &Unreadable {
        &self.0.unreadable
    }

    /// Whether all connections are up.
    pub fn is_connected(&self) -> bool {
        self.connections().iter().all(|link| link.stands())
    }

    /// The connection for jobs, records and events.
    pub(crate) fn client(&self) -> &Link {
        &self.0.jobs
    }

    /// The connection for leases, and for messages between nodes.
    pub(crate) fn control(&self) -> &Link {
        &self.0.control
    }

    /// The connection for the API, and for reading messages that clients have stored: their headers arrive as they were
    /// written.
    pub(crate) fn service(&self) -> &Link {
        &self.0.api
    }

    /// The connection for remote handlers.
    pub(crate) fn work(&self) -> &Link {
        &self.0.work
    }

    /// JetStream over the control connection; call this again for each use.
    pub(crate) fn jetstream(&self) -> jetstream::Context {
        self.0.control.jetstream()
    }

    pub(crate) fn api(&self) -> &str {
        self.0.control.api()
    }

    /// Maximum size of a submission in bytes, payload and headers together.
    pub fn max_in_submit(&self) -> usize {
        self.max_payload().saturating_sub(size_limits::OF_SUBMIT)
    }

    /// Maximum size of a job as it was published, in bytes, payload and headers together; a larger one can be read, but
    /// not published again.
    pub fn max_on_arrival(&self) -> usize {
        self.max_payload().saturating_sub(size_limits::OF_ARRIVAL)
    }

    /// Maximum size of a run record in bytes; its headers come on top. Three quarters of a message, so that an answer
    /// of the API can hold it and more around it.
    pub fn max_in_record(&self) -> usize {
        let max = self.max_payload();
        max - max / 4
    }

    /// Maximum size of one message that the server accepts, in bytes.
    pub fn max_payload(&self) -> usize {
        self.0.jobs.server_info().max_payload
    }

    /// Whether a node may answer to a reply subject: only to inboxes, never into the namespace or the system's own.
    pub fn may_answer(&self, reply: &str) -> bool {
        let prefix = self.0.storage.reply_prefix.as_str();
        reply.starts_with(prefix) && !reply.starts_with('$') && !self.names().is_ours(reply)
    }

    /// A pipeline of confirmed publishes.
    ///
    /// # Errors
    /// Its inbox cannot be subscribed to.
    pub async fn window(&self) -> Result<PublishWindow, Error> {
        PublishWindow::open(self.0.jobs.clone()).await
    }

    /// Publishes without confirmation. For live events: a subscriber that is not listening misses them anyway.
    pub async fn publish_live(&self, subject: String, payload: Bytes) {
        self.0.jobs.publish(subject, payload).await;
    }

    /// As [`Backbone::publish_live`], for subjects and payloads that are parts of one buffer.
    pub async fn publish_parts(&self, parts: impl Iterator<Item = (Bytes, Bytes)>) {
        for (subject, payload) in parts {
            if let Ok(subject) = Subject::from_utf8(subject) {
                self.0.jobs.publish(TakenSubject::new(subject), payload).await;
            }
        }
    }

    /// Publishes, and waits until the server has stored the message.
    ///
    /// # Errors
    /// The server refused it, or did not answer.
    pub async fn publish(&self, subject: String, headers: HeaderMap, payload: Bytes) -> Result<PubAck, Error> {
        request::publish(&self.0.jobs, subject, headers, payload).await
    }

    /// Waits until the jobs whose ack tokens were dropped and everything handed to the connections are on their way to
    /// the server; what is [returned for later](Self::return_for_later), until it has arrived.
    pub async fn flush(&self) {
        let (all, are_returned) = oneshot::channel();
        if self.0.all_returned.send(all).await.is_ok() {
            let _ = are_returned.await;
        }
        for link in self.connections() {
            // A connection that is down has nothing left to send that could be confirmed.
            let _ = link.flush().await;
        }
    }
}
