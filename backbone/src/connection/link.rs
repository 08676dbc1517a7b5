//! Connections to NATS. They notice a silent or restarted server within seconds, and survive whatever they receive.
//!
//! A node has four, divided by what can be written to them: one for jobs, records and events; one for leases and
//! messages between nodes; one for the API; one for remote handlers. So a client's bytes, or a flood of jobs, cannot
//! hold up a lease. On headers that it cannot read, the client library drops its connection, and on some it panics. It
//! reconnects by itself after the former; after the latter its client is dead, and is replaced here. On connections
//! that were opened with a filter neither happens.

use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use arc_swap::{ArcSwapOption, Guard};
use async_nats::{Client, Event, HeaderMap, Message, Request, ServerInfo, Subject, Subscriber, jetstream};
use bytes::Bytes;
use futures_util::StreamExt as _;
use longshore_domain::repeats::Repeats;
use tokio::sync::{Mutex, watch};
use tokio::task::AbortHandle;

use crate::connection::address;
use crate::connection::filter;
use crate::connection::options;
use crate::connection::refusals::Refusals;
use crate::connection::silent_writes::SilentWrites;
use crate::connection::subscription::{Slot, Subscription};
use crate::error::{Cause, Error};
use crate::settings::Connection;

/// The oldest server that is accepted: from this version on, clients cannot keep or move a schedule by forged headers.
const NEEDED: [i64; 3] = [2, 14, 5];
const NEEDED_TEXT: &str = "2.14.5";

/// With the client's default of 60 s a silent server goes unnoticed for minutes.
const PING_EVERY: Duration = Duration::from_secs(2);

/// How long one request may take before it counts as unanswered.
pub(crate) const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// How long a subscription waits for a client that is just being replaced.
const REPLACED_WITHIN: Duration = Duration::from_secs(5);

/// The connection ended before the answer arrived: it is not known whether the request was carried out.
#[derive(Debug, thiserror::Error)]
#[error("the connection to NATS was lost before the answer came")]
pub struct Lost;

/// A connection that is re-established as often as needed. Cheap to clone; it ends with its last clone.
#[derive(Debug, Clone)]
pub struct Link(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    name: &'static str,
    api: String,
    /// The client that nearly every connection keeps to its end: reading it costs one look at `is_replaced`.
    first: Client,
    /// Whether `first` has died.
    is_replaced: AtomicBool,
    /// The client in place of one that died. Read for every message: a lock, or a count of readers, would be a cache
    /// line that all threads write to.
    later: ArcSwapOption<Client>,
    /// The subscriptions that are repeated on a new client before anything else can use it. Locked while there is no
    /// client.
    places: Mutex<Vec<Slot>>,
    counts: Arc<ConnectionCounts>,
    replacing: AtomicBool,
    silent_writes: SilentWrites,
    watcher: OnceLock<AbortHandle>,
    /// What stands between the client and the server, if strangers' bytes come over the connection.
    filter: OnceLock<AbortHandle>,
}

pub(crate) enum Current<'a> {
    First(&'a Client),
    Later(Guard<Option<Arc<Client>>>),
}

impl Deref for Current<'_> {
    type Target = Client;

    fn deref(&self) -> &Client {
        match self {
            Self::First(client) => client,
            Self::Later(client) => {
                client.as_deref().expect("it is stored before `is_replaced` is set, and never removed")
            }
        }
    }
}

impl Inner {
    fn client(&self) -> Current<'_> {
        match self.is_replaced.load(Ordering::Acquire) {
            false => Current::First(&self.first),
            true => Current::Later(self.later.load()),
        }
    }
}

#[derive(Debug, Default)]
struct ConnectionCounts {
    made: watch::Sender<u64>,
    lost: watch::Sender<u64>,
    refusals: Refusals,
    /// What the client says while it finds no server, which is the same again and again.
    repeats: std::sync::Mutex<Repeats>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        for task in [self.watcher.get(), self.filter.get()].into_iter().flatten() {
            task.abort();
        }
    }
}

impl Link {
    /// Connects. `name` says in logs and metrics what the connection is for; `shown` is the name that the server shows.
    pub(crate) async fn open(connection: &Connection, name: &'static str, shown: &str) -> Result<Self, Error> {
        // TLS needs a process-wide provider; an embedding program may have set one.
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let counts = Arc::new(ConnectionCounts::default());
        let client = connect(connection, &[], name, shown, &counts).await?;
        let info = client.server_info();
        if !is_new_enough(&info.version) {
            return Err(Error::ServerTooOld { found: info.version, needed: NEEDED_TEXT });
        }
        counts.made.send_modify(|made| *made += 1);
        let alive = sentinel(&client).await;
        let domain = connection.jetstream_domain.as_ref();
        let link = Self(Arc::new(Inner {
            name,
            api: domain.map_or_else(|| "$JS.API".to_owned(), |domain| format!("$JS.{domain}.API")),
            first: client,
            is_replaced: AtomicBool::new(false),
            later: ArcSwapOption::empty(),
            places: Mutex::default(),
            counts,
            replacing: AtomicBool::new(false),
            silent_writes: SilentWrites::default(),
            watcher: OnceLock::new(),
            filter: OnceLock::new(),
        }));
        let watcher = watch_over(Arc::downgrade(&link.0), alive, connection.clone(), shown.to_owned());
        let _ = link.0.watcher.set(tokio::spawn(watcher).abort_handle());
        Ok(link)
    }

    /// As [`Link::open`], for a connection over which strangers' bytes come: none of them ends it. `drops_stale`: it is
    /// made anew after the process stood still, and what was written before is lost.
    pub(crate) async fn open_filtered(
        connection: &Connection,
        name: &'static str,
        shown: &str,
        drops_stale: bool,
    ) -> Result<Self, Error> {
        let way = filter::open(connection, shown, drops_stale).await?;
        let link = Self::open(&way.connection, name, &way.shown).await.map_err(|error| match error {
            // The library knows the near end of the way alone.
            Error::Connect { source, .. } => Error::Connect { url: connection.shown_url(), source },
            error => error,
        })?;
        let _ = link.0.filter.set(way.listener);
        Ok(link)
    }

    /// What the connection is for.
    pub fn name(&self) -> &'static str {
        self.0.name
    }

    /// The current client. Held for longer than one call, it may be a dead one.
    pub(crate) fn client(&self) -> Current<'_> {
        self.0.client()
    }

    /// First tokens of JetStream's own subjects.
    pub(crate) fn api(&self) -> &str {
        &self.0.api
    }

    /// JetStream over this connection; call this again for each use.
    pub(crate) fn jetstream(&self) -> jetstream::Context {
        jetstream::with_prefix(Client::clone(&self.client()), self.api())
    }

    /// Counts connections: a change means that the server may have forgotten requests, and that messages it had sent
    /// may be lost. Existing subscriptions are restored by then.
    pub fn connected(&self) -> watch::Receiver<u64> {
        let mut made = self.0.counts.made.subscribe();
        made.mark_unchanged();
        made
    }

    /// How often it was lost.
    pub(crate) fn losses(&self) -> u64 {
        *self.0.counts.lost.borrow()
    }

    /// How often it was re-established.
    pub fn rebuilt(&self) -> u64 {
        self.0.counts.made.borrow().saturating_sub(1)
    }

    /// Why the server refuses its login, if it does.
    pub fn refused_login(&self) -> Option<String> {
        self.0.counts.refusals.of_login()
    }

    /// Whether it is up.
    pub fn stands(&self) -> bool {
        let state = self.client().connection_state();
        !self.0.replacing.load(Ordering::Acquire) && state == async_nats::connection::State::Connected
    }

    /// Which writes over it go unanswered.
    pub(crate) fn silent_writes(&self) -> &SilentWrites {
        &self.0.silent_writes
    }

    pub(crate) fn refusals(&self) -> &Refusals {
        &self.0.counts.refusals
    }

    pub(crate) fn server_info(&self) -> ServerInfo {
        self.client().server_info()
    }

    pub(crate) fn new_inbox(&self) -> String {
        self.client().new_inbox()
    }

    /// What every inbox of this connection begins with.
    pub(crate) fn inbox_prefix(&self) -> String {
        self.new_inbox().rsplit_once('.').map_or_else(String::new, |(prefix, _)| prefix.to_owned())
    }

    /// Publishes. A message is lost if its client is just being replaced, or if the connection ends while it is on its
    /// way; a caller that needs to know requests an answer.
    pub(crate) async fn publish(&self, subject: impl async_nats::ToSubject, payload: Bytes) {
        let _ = self.client().publish(subject, payload).await;
    }

    pub(crate) async fn publish_with_headers(&self, subject: Subject, headers: HeaderMap, payload: Bytes) {
        let _ = self.client().publish_with_headers(subject, headers, payload).await;
    }

    pub(crate) async fn publish_with_reply(&self, subject: Subject, reply: String, payload: Bytes) {
        let _ = self.client().publish_with_reply(subject, reply, payload).await;
    }

    /// The error is the client's own: the subject or the size is refused, or the client is dead.
    pub(crate) async fn publish_with_reply_and_headers(
        &self,
        subject: impl async_nats::ToSubject,
        reply: impl async_nats::ToSubject,
        headers: HeaderMap,
        payload: Bytes,
    ) -> Result<(), Cause> {
        let sent = self.client().publish_with_reply_and_headers(subject, reply, headers, payload).await;
        sent.map_err(|error| Box::new(error) as Cause)
    }

    /// Sends a request and waits for the answer: for five seconds, or for as long as the request says. The error is the
    /// client's own, or [`Lost`] as soon as the connection is lost.
    pub(crate) async fn request(&self, subject: impl Into<Subject>, request: Request) -> Result<Message, Cause> {
        let mut lost = self.0.counts.lost.subscribe();
        let client = self.client();
        tokio::select! {
            answer = client.send_request(subject.into(), request) => answer.map_err(|error| Box::new(error) as Cause),
            _ = lost.changed() => Err(Box::new(Lost)),
        }
    }

    /// Subscribes, for as long as the value lives and across every reconnect.
    pub(crate) async fn subscribe(&self, subject: String) -> Result<Subscription, Error> {
        self.subscribe_as(subject, None).await
    }

    pub(crate) async fn queue_subscribe(&self, subject: String, group: &'static str) -> Result<Subscription, Error> {
        self.subscribe_as(subject, Some(group)).await
    }

    async fn subscribe_as(&self, subject: String, group: Option<&'static str>) -> Result<Subscription, Error> {
        let mut made = self.connected();
        loop {
            let mut places = self.0.places.lock().await;
            let failed = match subscribe(&self.client(), &subject, group).await {
                Ok(messages) => {
                    let (place, subscription) = Subscription::new(subject, group, messages);
                    places.retain(Slot::is_wanted);
                    places.push(place);
                    return Ok(subscription);
                }
                Err(error) => error,
            };
            drop(places);
            // The client may be dead, and not replaced yet.
            if !matches!(tokio::time::timeout(REPLACED_WITHIN, made.changed()).await, Ok(Ok(()))) {
                return Err(Error::Subscribe { subject, source: failed });
            }
        }
    }

    /// Waits until the server has read everything that was handed to the connection before, subscriptions included.
    pub(crate) async fn settled(&self) -> Result<(), Cause> {
        let inbox = self.new_inbox();
        let mut answers = self.subscribe(inbox.clone()).await.map_err(Box::new)?;
        self.publish(inbox, Bytes::new()).await;
        match tokio::time::timeout(ANSWER_WITHIN, answers.next()).await {
            Ok(Some(_)) => Ok(()),
            _ => Err(Box::new(Lost)),
        }
    }

    /// Waits until everything handed to the connection is on its way to the server.
    pub(crate) async fn flush(&self) -> Result<(), Cause> {
        self.client().flush().await.map_err(|error| Box::new(error) as Cause)?;
        // What is flushed is still on its way through the filter.
        if self.0.filter.get().is_some() && self.stands() { self.settled().await } else { Ok(()) }
    }
}

async fn subscribe(client: &Client, subject: &str, group: Option<&str>) -> Result<Subscriber, Cause> {
    let subject = subject.to_owned();
    let made = match group {
        Some(group) => client.queue_subscribe(subject, group.to_owned()).await,
        None => client.subscribe(subject).await,
    };
    made.map_err(|error| Box::new(error) as Cause)
}

/// A subscription to nothing. It ends with the client's task, and so shows the death of that task: the client does not
/// report it, and would accept publishes as if it were connected.
async fn sentinel(client: &Client) -> Option<Subscriber> {
    client.subscribe(client.new_inbox()).await.ok()
}

/// Replaces every client that dies by a new one.
async fn watch_over(link: Weak<Inner>, mut alive: Option<Subscriber>, connection: Connection, shown: String) {
    loop {
        if let Some(alive) = &mut alive {
            while alive.next().await.is_some() {}
        }
        let Some(link) = link.upgrade() else { return };
        let mut places = link.places.lock().await;
        link.replacing.store(true, Ordering::Release);
        link.counts.lost.send_modify(|lost| *lost += 1);
        tracing::warn!(
            connection = link.name,
            "the NATS client ended over what it was sent; a new one takes its place"
        );
        let known = link.client().server_info().connect_urls;
        let client = connect_until(&connection, &known, link.name, &shown, &link.counts).await;
        alive = sentinel(&client).await;
        places.retain(Slot::is_wanted);
        for place in places.iter() {
            // An error means that the new client has died as well, which is noticed at once.
            if let Ok(messages) = subscribe(&client, &place.subject, place.group).await {
                place.fill(messages);
            }
        }
        link.later.store(Some(Arc::new(client)));
        link.is_replaced.store(true, Ordering::Release);
        link.replacing.store(false, Ordering::Release);
        link.counts.made.send_modify(|made| *made += 1);
    }
}

async fn connect_until(
    connection: &Connection,
    known: &[String],
    name: &'static str,
    shown: &str,
    counts: &Arc<ConnectionCounts>,
) -> Client {
    for turn in 1.. {
        match connect(connection, known, name, shown, counts).await {
            Ok(client) => return client,
            Err(error) if turn == 1 => tracing::warn!(connection = name, "cannot connect, trying again: {error}"),
            Err(_) => {}
        }
        tokio::time::sleep(delay(turn)).await;
    }
    unreachable!("the loop only ends by returning")
}

/// How long to wait after a try: not at all at first, because the server causes few losses; then ever longer, up to
/// half a second.
fn delay(turn: usize) -> Duration {
    Duration::from_millis(50 * (turn as u64).saturating_sub(1).min(10))
}

async fn connect(
    connection: &Connection,
    known: &[String],
    name: &'static str,
    shown: &str,
    counts: &Arc<ConnectionCounts>,
) -> Result<Client, Error> {
    let counts = Arc::clone(counts);
    let first = Arc::new(AtomicBool::new(true));
    let (plain, login) = address::read(&connection.url);
    let refused = |source: Cause| Error::Connect { url: plain.join(","), source };
    let login = login.map_err(|mistake| refused(mistake.into()))?;
    let options = options::of(connection, login)?
        .name(shown)
        .ping_interval(PING_EVERY)
        .connection_timeout(Duration::from_secs(5))
        .request_timeout(Some(ANSWER_WITHIN))
        .max_reconnects(None)
        .reconnect_delay_callback(delay)
        .event_callback(move |event| {
            let (counts, first) = (Arc::clone(&counts), Arc::clone(&first));
            async move { note(&event, name, &counts, &first) }
        });
    let addresses = address::with_announced(plain.clone(), known);
    options.connect(addresses).await.map_err(|error| refused(Box::new(error)))
}

fn note(event: &Event, name: &'static str, counts: &ConnectionCounts, first: &AtomicBool) {
    let repeats = || counts.repeats.lock().unwrap_or_else(PoisonError::into_inner);
    match event {
        // The caller that made the client counts this connection, once everything is subscribed to.
        Event::Connected if first.swap(false, Ordering::AcqRel) => {
            counts.refusals.is_logged_in();
            tracing::info!(connection = name, "connected to NATS");
        }
        Event::Connected => {
            repeats().end();
            counts.refusals.is_logged_in();
            tracing::info!(connection = name, "connected to NATS again");
            counts.made.send_modify(|made| *made += 1);
        }
        Event::Disconnected => {
            tracing::warn!(connection = name, "lost the connection to NATS; trying again");
            counts.lost.send_modify(|lost| *lost += 1);
        }
        // The client's task has ended; if that was not intended, the client is replaced, and that is logged.
        Event::Closed => {}
        Event::SlowConsumer(id) => tracing::warn!(subscription = id, "messages were dropped: this node is too slow"),
        other => {
            let is_of_login = counts.refusals.note(&other.to_string());
            match repeats().line(&other.to_string(), Instant::now()) {
                Some(line) if is_of_login => tracing::warn!(connection = name, "NATS refuses the login: {line}"),
                Some(line) => tracing::info!(connection = name, "NATS: {line}"),
                None => {}
            }
        }
    }
}

/// Whether a panic is the client library's own, caused by bytes that it cannot read: the connection is re-established,
/// and that is logged. A program's panic hook leaves out such panics.
pub fn is_clients_own(panic: &std::panic::PanicHookInfo<'_>) -> bool {
    let file = panic.location().map_or("", std::panic::Location::file);
    file.contains("async-nats-") && file.ends_with("header.rs")
}

/// Compares `2.15.1`, `2.14.5-RC.1` and the like with the version that is needed.
fn is_new_enough(version: &str) -> bool {
    let release = version.split(['-', '+']).next().unwrap_or_default();
    release.split('.').map(|number| number.parse::<i64>().unwrap_or(0)).ge(NEEDED)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_connection_that_cannot_be_made_is_named_by_its_servers_address() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("nats://{}", listener.local_addr().unwrap());
        drop(listener);
        let refused = Link::open_filtered(&Connection::to(&url), "api", "test", false).await;
        let Err(Error::Connect { url: named, .. }) = refused else { panic!("{refused:?}") };
        assert_eq!(named, url);
    }

    #[test]
    fn versions_are_compared_as_numbers() {
        for new in ["2.14.5", "2.15.1", "2.15.0-RC.1", "3.0.0"] {
            assert!(is_new_enough(new), "{new}");
        }
        for old in ["2.14.4", "2.9.25", "2.10.0", "", "x"] {
            assert!(!is_new_enough(old), "{old}");
        }
    }
}
