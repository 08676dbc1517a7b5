//! The bytes of a commit, in one piece of memory: the run's record, its events, and their subjects.
//!
//! Every job has up to ten such texts. Separate memory for each, allocated by a worker and freed by the connection's
//! task, was a quarter of all that the node did. So one piece holds the texts of a run, and a page those of several
//! runs that were published one after the other.

use std::cell::RefCell;
use std::ops::Range;

use bytes::{Bytes, BytesMut};
use longshore_backbone::wire::subject::Names;
use longshore_backbone::wire::{event, record};
use longshore_domain::Run;
use longshore_domain::events::{self, Event, EventKind};
use longshore_domain::publication::Published;
use smallvec::SmallVec;

/// Bytes of a page: about ten jobs need so much from start to end. A page is freed with the last text on it, so a long
/// run may keep a whole one.
const PAGE: usize = 16 * 1024;
/// Each thread keeps at most so much for the next text.
const MAX_DRAFT: usize = 64 * 1024;

/// A record's write, a compare-and-set.
#[derive(Debug)]
pub(crate) struct Write {
    /// The revision it must find; once it is written, its own.
    pub(crate) expected: u64,
    pub(crate) subject: Bytes,
    pub(crate) body: Bytes,
}

thread_local! {
    static ENCODER: RefCell<Encoder> = RefCell::default();
}

/// The buffers in which a thread writes texts.
#[derive(Default)]
struct Encoder {
    draft: Vec<u8>,
    page: BytesMut,
}

impl Encoder {
    /// Writes a text and puts it on the page.
    fn print<T>(write: impl FnOnce(&mut Vec<u8>) -> T) -> (Bytes, T) {
        ENCODER.with_borrow_mut(|Self { draft, page }| {
            draft.clear();
            let written = write(draft);
            if page.capacity() < draft.len() {
                *page = BytesMut::with_capacity(draft.len().max(PAGE));
            }
            page.extend_from_slice(draft);
            draft.shrink_to(MAX_DRAFT);
            (page.split().freeze(), written)
        })
    }
}

/// What records and events are written for.
pub(crate) trait Destination {
    fn names(&self) -> &Names;
    /// Maximum size of a run record in bytes.
    fn max_in_record(&self) -> usize;

    fn encode_run(&self, run: &Run, text: &mut Vec<u8>) {
        record::append_within(run, || self.max_in_record(), text);
    }

    /// Appends an event, in the name of this node.
    fn encode_event(&self, event: &Event<'_>, node: &str, text: &mut Vec<u8>) {
        event::write(event, node, text);
    }
}

/// The node in whose name a run's record and events are written, and the server that they are written for.
pub(crate) struct Author<'a, D> {
    pub(crate) node: &'a str,
    pub(crate) server: &'a D,
}

/// The events of a run that are not published yet: each a line of JSON, and where it goes live.
#[derive(Debug, Default)]
pub(crate) struct EncodedEvents {
    text: Bytes,
    /// Subject and body of each event that is to be published live.
    live: SmallVec<[(Range<usize>, Range<usize>); 2]>,
    log: Range<usize>,
    /// Whether the run is said to be enqueued, live. That is said once a round, unless a node dies over it.
    pub(crate) enqueues: bool,
}

impl EncodedEvents {
    /// The events of `run` that are not published yet.
    pub(crate) fn of<D: Destination>(run: &Run, published: Published, author: Author<'_, D>) -> Self {
        let (text, events) = Encoder::print(|text| write_events(run, published, &author, text));
        Self { text, ..events }
    }

    /// The same, with the record's write on the revision `expected`.
    pub(crate) fn with_record<D: Destination>(
        run: &Run,
        expected: u64,
        published: Published,
        author: Author<'_, D>,
    ) -> (Self, Write) {
        let (text, (body, subject, events)) = Encoder::print(|text| {
            author.server.encode_run(run, text);
            let body = text.len();
            author.server.names().write_record(&run.tenant, &run.run_id, text);
            let subject = text.len();
            (body, subject, write_events(run, published, &author, text))
        });
        let write = Write { expected, body: text.slice(..body), subject: text.slice(body..subject) };
        (Self { text, ..events }, write)
    }

    /// How many events are to be published live.
    pub(crate) fn count(&self) -> usize {
        self.live.len()
    }

    /// Subject and body of each event that is to be published live.
    pub(crate) fn live(&self) -> impl Iterator<Item = (Bytes, Bytes)> {
        self.live.iter().map(|(subject, body)| (self.text.slice(subject.clone()), self.text.slice(body.clone())))
    }

    /// Lines for the event log, each with its line break.
    pub(crate) fn log(&self) -> &[u8] {
        &self.text[self.log.clone()]
    }

    /// The same for the log alone, once the events were published live.
    pub(crate) fn for_the_log(&self) -> Self {
        Self { text: self.text.clone(), log: self.log.clone(), ..Self::default() }
    }

    /// Its lines for the log, and then these.
    pub(crate) fn followed_by(&self, more: &[u8]) -> Self {
        let text = Bytes::from([self.log(), more].concat());
        Self { log: 0..text.len(), text, ..Self::default() }
    }
}

/// Appends events and their subjects to `text`; says where in it they lie.
fn write_events<D: Destination>(
    run: &Run,
    published: Published,
    Author { node, server }: &Author<'_, D>,
    text: &mut Vec<u8>,
) -> EncodedEvents {
    let events = events::of_round(run);
    let mut encoded = EncodedEvents::default();
    let mut log = None;
    // Lines first, so that those for the log lie together.
    for unpublished in published.unpublished(&events) {
        let start = text.len();
        if unpublished.log {
            log.get_or_insert(start);
        }
        server.encode_event(unpublished.event, node, text);
        if unpublished.live {
            encoded.live.push((0..0, start..text.len()));
            encoded.enqueues |= unpublished.event.kind == EventKind::Enqueued;
        }
        text.push(b'\n');
    }
    encoded.log = log.map_or(0..0, |start| start..text.len());
    let live_events = published.unpublished(&events).filter(|unpublished| unpublished.live);
    for (unpublished, (subject, _)) in live_events.zip(&mut encoded.live) {
        let start = text.len();
        server.names().write_event(run, unpublished.event.kind, text);
        *subject = start..text.len();
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    use longshore_domain::Timestamp;
    use longshore_domain::run::RunResult;
    use longshore_domain::settlement::Settlement;

    /// A run that has completed: enqueued, started, completed.
    fn completed() -> Run {
        let at = Timestamp::from_millis;
        let job = crate::tests::job("a.b", "r");
        let mut run = Run::new(&job, 2, at(1));
        run.begin(1, &"n".into(), at(2));
        run.settle(Settlement::Complete(RunResult::None), at(3));
        run
    }

    struct Longshore(Names);

    impl Destination for Longshore {
        fn names(&self) -> &Names {
            &self.0
        }

        fn max_in_record(&self) -> usize {
            usize::MAX
        }
    }

    fn rest(published: Published) -> (Vec<String>, Vec<String>) {
        let author = Author { node: "n", server: &Longshore(Names::new("longshore")) };
        let (lines, write) = EncodedEvents::with_record(&completed(), 7, published, author);
        assert_eq!((write.expected, &write.subject[..]), (7, &b"$KV.longshore_runs.default.r"[..]));
        assert_eq!(write.body, record::write(&completed()));
        let name = |line: &[u8]| serde_json::from_slice::<serde_json::Value>(line).unwrap()["event"].to_string();
        let subjects = lines.live().map(|(subject, body)| {
            let subject = String::from_utf8(subject.to_vec()).unwrap();
            assert_eq!(name(&body).trim_matches('"'), subject.split('.').nth(3).unwrap());
            subject
        });
        let logged = lines.log().split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).map(name);
        (subjects.collect(), logged.collect())
    }

    #[test]
    fn only_what_is_not_published_is_published() {
        let subject = |event: &str| format!("longshore.events.default.{event}.main.r.a.b");
        let all = ["enqueued", "started", "completed"];
        let logged = all.map(|event| format!("{event:?}"));
        let (nothing, start) = (Published::nothing(), Published::nothing().after_live(2, false));
        assert_eq!(rest(nothing), (all.map(subject).to_vec(), logged.to_vec()));
        assert_eq!(rest(start), (vec![subject("completed")], logged.to_vec()));
        assert_eq!(rest(start.log_as_live()), (vec![subject("completed")], logged[2..].to_vec()));
        assert_eq!(rest(start.for_live_only()), (vec![subject("completed")], vec![]));
        assert_eq!(rest(start.for_log_only()), (vec![], logged.to_vec()));
        assert_eq!(rest(nothing.all_logged(&completed())), (all.map(subject).to_vec(), vec![]));
        let log_first = nothing.after_live(1, true).after_live(1, false);
        assert_eq!(rest(log_first), (vec![subject("completed")], logged[1..].to_vec()));
        assert_eq!(rest(Published::held_locally(&completed())), (vec![], vec![]));
    }
}
