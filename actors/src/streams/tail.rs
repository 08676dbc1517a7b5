//! The end of the event log, read once for all streams of this node.
//!
//! While anybody listens, it asks for what is new every 50 ms and hands each event to those who asked for it. An event
//! that was published again after a fault is handed on once. Who does not take what it is handed loses its place, and
//! nobody else notices. What it knows outlives its death: a listener misses nothing by that.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use longshore_backbone::Backbone;
use longshore_backbone::request::Stored;
use longshore_backbone::scan::Source;
use longshore_backbone::wire::logged::Logged;
use tokio::sync::{Notify, Semaphore, mpsc, oneshot};
use tokio::time::{Instant, timeout};

use super::{EventStreams, Interest, Logline, lines};
use crate::runtime::Unpoisoned as _;
use crate::runtime::last_added::LastAdded;
use crate::runtime::supervision::LoopEnd;

/// How often the log is asked for more.
const EVERY: Duration = Duration::from_millis(50);
/// The same after the log could not be read.
const AGAIN: Duration = Duration::from_millis(500);
/// How often an idle log is asked whether it was made anew.
const SLOWLY: Duration = Duration::from_secs(30);
/// How long it may take until one that wants to listen does.
const JOINS_WITHIN: Duration = Duration::from_secs(5);
/// Messages of the log that are read again by one that begins in the midst of it, so that it knows repeats.
pub(super) const LOOK_BACK: u64 = 1_024;
/// Events that are known as repeats.
const KNOWN: usize = 65_536;
/// What a listener may leave untaken.
const MAX_EVENTS: usize = 4_096;
const MAX_BYTES: usize = 1 << 20;
/// How long listeners have for what they were handed at once.
const WAITS_FOR_READERS: Duration = Duration::from_millis(250);
/// How long one of them is waited for in all, before the tail is at the end of the log again: who is steadily slower
/// than the log grows would hold up all others for ever.
const HELD_UP_FOR: Duration = Duration::from_secs(1);
/// In such steps.
const STEP: Duration = Duration::from_millis(2);
/// Pages of history that are read at once on this node, for all streams.
const READERS: usize = 16;

/// Identities of the last events, so that a repeat is known.
pub(super) type RecentEvents = LastAdded<u64, KNOWN>;

/// What a listener wants, and where it is handed it.
#[derive(Debug)]
struct Listener {
    interest: Interest,
    put: mpsc::Sender<Arc<Logline>>,
    untaken: Arc<AtomicUsize>,
    is_slow: Arc<AtomicBool>,
    /// It was waited for, in vain, since it last had little left.
    was_waited_for: bool,
    /// How long it is waited for yet.
    time_left: Duration,
}

impl Listener {
    fn is_awaited(&self) -> bool {
        !self.was_waited_for && !self.time_left.is_zero() && self.is_half_full()
    }

    /// Whether so much is left that it would soon be too much.
    fn is_half_full(&self) -> bool {
        self.untaken.load(Ordering::Relaxed) > MAX_BYTES / 2 || self.put.capacity() < MAX_EVENTS / 2
    }

    fn wants(&self, tenant: &str, event: &Logged<'_>) -> bool {
        let Interest { tenant: wanted, filter } = &self.interest;
        wanted.as_ref().is_none_or(|wanted| wanted.as_str() == tenant) && filter.fits(event)
    }

    /// Hands it an event; `false`: it is gone, or does not take what it is handed.
    fn hand(&self, line: &Arc<Logline>) -> bool {
        let untaken = self.untaken.fetch_add(line.json.len(), Ordering::Relaxed) + line.json.len();
        let is_handed = untaken <= MAX_BYTES && self.put.try_send(Arc::clone(line)).is_ok();
        self.is_slow.store(!is_handed, Ordering::Relaxed);
        is_handed
    }
}

#[derive(Debug)]
pub(super) struct Heard {
    take: mpsc::Receiver<Arc<Logline>>,
    untaken: Arc<AtomicUsize>,
    is_slow: Arc<AtomicBool>,
}

impl Heard {
    /// The next event; `None`: it listens no more, as it was too slow, or the log was made anew.
    pub(super) async fn next(&mut self) -> Option<Arc<Logline>> {
        let line = self.take.recv().await?;
        self.untaken.fetch_sub(line.json.len(), Ordering::Relaxed);
        Some(line)
    }

    pub(super) fn try_next(&mut self) -> Option<Arc<Logline>> {
        let line = self.take.try_recv().ok()?;
        self.untaken.fetch_sub(line.json.len(), Ordering::Relaxed);
        Some(line)
    }

    pub(super) fn is_slow(&self) -> bool {
        self.is_slow.load(Ordering::Relaxed)
    }
}

/// Those who listen on this node.
#[derive(Debug)]
pub(crate) struct Table {
    joining: Mutex<Vec<(Listener, oneshot::Sender<u64>)>>,
    somebody_joins: Notify,
    tail: tokio::sync::Mutex<Tail>,
    pub(super) readers: Semaphore,
}

impl Default for Table {
    fn default() -> Self {
        Self {
            joining: Mutex::default(),
            somebody_joins: Notify::default(),
            tail: tokio::sync::Mutex::default(),
            readers: Semaphore::new(READERS),
        }
    }
}

impl Table {
    /// Listens from now on; returns the sequence from which on the log is handed over. `None`: the tail has died, or
    /// cannot read the log.
    pub(super) async fn listen(&self, interest: Interest) -> Option<(u64, Heard)> {
        let ((put, take), (answer, answered)) = (mpsc::channel(MAX_EVENTS), oneshot::channel());
        let (untaken, is_slow) = (Arc::<AtomicUsize>::default(), Arc::<AtomicBool>::default());
        let heard = Heard { take, untaken: Arc::clone(&untaken), is_slow: Arc::clone(&is_slow) };
        let listener = Listener { interest, put, untaken, is_slow, was_waited_for: false, time_left: HELD_UP_FOR };
        {
            let mut joining = self.joining.lock().unpoisoned();
            joining.retain(|(_, answer)| !answer.is_closed());
            joining.push((listener, answer));
        }
        self.somebody_joins.notify_one();
        Some((timeout(JOINS_WITHIN, answered).await.ok()?.ok()?, heard))
    }
}

/// How far the log is read, and for whom.
#[derive(Debug, Default)]
struct Tail {
    /// The sequence that is read next; 0: nobody listens, and nothing is known.
    next: u64,
    known: RecentEvents,
    listeners: Vec<Listener>,
    /// When the log last had something, or was asked whether it was made anew.
    asked: Option<Instant>,
}

pub(crate) async fn run(EventStreams { api, table }: EventStreams) -> LoopEnd {
    let mut tail = table.tail.lock().await;
    loop {
        tail.listeners.retain(|listener| !listener.put.is_closed());
        if tail.listeners.is_empty() && table.joining.lock().unpoisoned().is_empty() {
            (tail.next, tail.known) = (0, RecentEvents::default());
            table.somebody_joins.notified().await;
        }
        let pause = match tail.go_on(&api.backbone, &table).await {
            Ok(true) => continue,
            Ok(false) => EVERY,
            Err(error) => {
                tracing::debug!("the event log cannot be read for streams, trying again: {}", error.with_causes());
                AGAIN
            }
        };
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = table.somebody_joins.notified() => {}
        }
    }
}

impl Tail {
    /// Reads a page; says whether there may be more.
    async fn go_on(&mut self, backbone: &Backbone, table: &Table) -> Result<bool, longshore_backbone::Error> {
        if self.next == 0 {
            let (first, last) = backbone.sequences(&Source::Events).await?;
            self.next = first.max(last.saturating_sub(LOOK_BACK)).max(1);
            self.asked = Some(Instant::now());
        }
        let page = backbone.page(&Source::Events, &backbone.names().event_log("*"), self.next).await?;
        for stored in &page.messages {
            self.hand_out(stored);
            self.next = stored.sequence + 1;
            self.let_them_take().await;
        }
        if page.next.is_some() {
            return Ok(true);
        }
        for listener in self.listeners.iter_mut().filter(|listener| !listener.is_half_full()) {
            listener.time_left = HELD_UP_FOR;
        }
        // Who joins is answered the sequence up to which the log was read before: the rest it is handed.
        for (listener, answer) in table.joining.lock().unpoisoned().drain(..) {
            if answer.send(self.next).is_ok() {
                self.listeners.push(listener);
            }
        }
        if !page.messages.is_empty() {
            self.asked = Some(Instant::now());
        } else if self.asked.is_none_or(|asked| asked.elapsed() >= SLOWLY) {
            self.asked = Some(Instant::now());
            if backbone.sequences(&Source::Events).await?.1 + 1 < self.next {
                tracing::warn!("the event log was made anew: streams begin again");
                self.listeners.clear();
                self.next = 0;
            }
        }
        Ok(false)
    }

    /// A page comes at once, and may be more than a listener can hold: one that takes what it is handed gets the time
    /// for that. One that takes nothing is waited for once, one that is steadily too slow for [`HELD_UP_FOR`], and then
    /// no more.
    async fn let_them_take(&mut self) {
        for listener in self.listeners.iter_mut().filter(|listener| !listener.is_half_full()) {
            listener.was_waited_for = false;
        }
        let until = Instant::now() + WAITS_FOR_READERS;
        while self.listeners.iter().any(Listener::is_awaited) && Instant::now() < until {
            for listener in self.listeners.iter_mut().filter(|listener| listener.is_awaited()) {
                listener.time_left = listener.time_left.saturating_sub(STEP);
            }
            tokio::time::sleep(STEP).await;
        }
        for listener in &mut self.listeners {
            listener.was_waited_for |= listener.is_half_full();
        }
    }

    fn hand_out(&mut self, stored: &Stored) {
        // By the subject, which the server's permissions guard, not by what the event says of itself.
        let tenant = stored.subject.rsplit('.').next().unwrap_or_default();
        for (position, text) in lines(stored) {
            let Some(event) = Logged::read(text) else { continue };
            let line = Arc::new(Logline::of(position, &event, text));
            if self.known.add(line.identity) {
                self.listeners.retain(|listener| !listener.wants(tenant, &event) || listener.hand(&line));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use longshore_backbone::wire::logged::EventFilter;
    use longshore_domain::SmolStr;

    use super::*;

    fn line(number: u64, bytes: usize) -> Arc<Logline> {
        let json = vec![b'x'; bytes].into();
        Arc::new(Logline { position: (number, 1), event: SmolStr::from("log"), json, identity: number, end: None })
    }

    fn listener() -> (Listener, Heard) {
        let (put, take) = mpsc::channel(MAX_EVENTS);
        let (untaken, is_slow) = (Arc::<AtomicUsize>::default(), Arc::<AtomicBool>::default());
        let heard = Heard { take, untaken: Arc::clone(&untaken), is_slow: Arc::clone(&is_slow) };
        let interest = Interest { tenant: None, filter: EventFilter::default() };
        (Listener { interest, put, untaken, is_slow, was_waited_for: false, time_left: HELD_UP_FOR }, heard)
    }

    #[tokio::test(start_paused = true)]
    async fn a_reader_that_is_steadily_too_slow_holds_the_others_up_for_a_second_and_then_loses_its_stream() {
        let (listener, mut heard) = listener();
        let mut tail = Tail { listeners: vec![listener], ..Tail::default() };
        let reader = tokio::spawn(async move {
            while heard.next().await.is_some() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        });
        let begun = Instant::now();
        for number in 0..10_000 {
            tail.listeners.retain(|listener| listener.hand(&line(number, 10)));
            tail.let_them_take().await;
        }
        assert!(begun.elapsed() >= HELD_UP_FOR && begun.elapsed() < HELD_UP_FOR * 2, "{:?}", begun.elapsed());
        assert!(tail.listeners.is_empty(), "it is too slow");
        reader.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn who_cannot_listen_in_time_does_not_wait_for_ever_and_leaves_nothing() {
        let table = Table::default();
        for _ in 0..3 {
            assert!(table.listen(Interest { tenant: None, filter: EventFilter::default() }).await.is_none());
        }
        assert_eq!(table.joining.lock().unwrap().len(), 1, "those before have gone");
    }

    #[tokio::test]
    async fn who_takes_nothing_keeps_4096_events_and_a_mebibyte() {
        let (listener, mut heard) = listener();
        let handed = (0..10_000).take_while(|number| listener.hand(&line(*number, 10))).count();
        assert_eq!((handed, heard.is_slow()), (MAX_EVENTS, true));
        drop(listener);
        for number in 0..MAX_EVENTS as u64 {
            assert_eq!(heard.next().await.unwrap().position.0, number, "what it was handed before is not lost");
        }
        assert!(heard.next().await.is_none());

        let (listener, mut heard) = self::listener();
        assert!((0..16).all(|number| listener.hand(&line(number, 64 << 10))), "exactly a mebibyte");
        assert!(!heard.is_slow());
        heard.next().await.unwrap();
        assert!(listener.hand(&line(16, 64 << 10)), "what was taken counts no more");
        assert!(!listener.hand(&line(17, 1)) && heard.is_slow());
    }

    #[test]
    fn a_repeat_is_known_for_a_long_time_and_then_forgotten() {
        let mut known = RecentEvents::default();
        assert!(known.add(0) && !known.add(0));
        assert!((1..=KNOWN as u64).all(|identity| known.add(identity)));
        assert!(known.add(0) && known.sizes() == [KNOWN, KNOWN]);
    }
}
