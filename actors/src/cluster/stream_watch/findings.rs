//! What is known of the streams that this node needs: which is looked at next, what is wrong with which, which is to be
//! made again, and what `health` says.
//!
//! Pure: the clock and what was found are arguments. Bounds: as many entries as the node wants streams, and those that
//! were made again within [`WARNED_FOR`].

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use longshore_backbone::WantedStream;
use longshore_backbone::shape::Difference;
use longshore_backbone::stream_faults::{Full, Inspected, StreamFault};

use crate::runtime::health::StreamFaults;

/// How long a stream is missing before it is made again: a server that has just become the leader may not know yet of
/// all streams.
const MISSING_FOR: Duration = Duration::from_secs(2);
/// A bucket of keys is looked at once in so many turns, however many streams there are.
const BUCKETS_EVERY: usize = 10;
/// How long `health` warns of a stream that was made again.
const WARNED_FOR: Duration = Duration::from_secs(60 * 60);

/// A stream that the node wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Stream {
    pub(super) name: String,
    /// What it holds decides which jobs may run.
    pub(super) decides: bool,
    /// Jobs run without it as well.
    pub(super) is_dispensable: bool,
}

impl Stream {
    pub(super) fn of(wanted: &WantedStream) -> Self {
        let (decides, is_dispensable) = (wanted.decides(), wanted.is_dispensable());
        Self { name: wanted.name().to_owned(), decides, is_dispensable }
    }
}

/// What is known of the streams, by name.
#[derive(Debug, Default)]
pub(super) struct Findings {
    wanted: Vec<Stream>,
    /// What is wrong, and since when.
    faults: BTreeMap<String, (StreamFault, Instant)>,
    /// Those that refused what was published to them when they were last looked at.
    full: BTreeMap<String, Full>,
    /// How many messages it held when that was last known.
    held: BTreeMap<String, (u64, Instant)>,
    /// What is said of those that were made again.
    remade: BTreeMap<String, (String, Instant)>,
    /// Dispensable ones that no server would make: tried again when it is their turn.
    refused: BTreeSet<String>,
}

/// What a look at a stream has led to.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Look {
    /// Nothing is wrong, and nothing was.
    Right,
    /// It is as it should be again.
    RightAgain,
    /// Something is wrong that was not before, or something else: in words.
    Wrong(String),
    StillWrong,
    /// It has been missing for so long that it is to be made again.
    Remake,
}

impl Findings {
    /// The node wants these streams now; others are not reported any more.
    pub(super) fn want(&mut self, wanted: Vec<Stream>) {
        self.wanted = wanted;
        let is_wanted = |name: &String| self.wanted.iter().any(|stream| stream.name == *name);
        self.faults.retain(|name, _| is_wanted(name));
        self.full.retain(|name, _| is_wanted(name));
        self.held.retain(|name, _| is_wanted(name));
    }

    /// The number of the stream whose turn it is.
    pub(super) fn turn(&self, turn: usize) -> usize {
        turn % self.wanted.len()
    }

    /// The number of one of these buckets, whose turn it is as well: what this node has written to it since the last
    /// look counts as held, so that with many queues it would seem full.
    pub(super) fn bucket_turn(&self, turn: usize, buckets: &[impl AsRef<str>]) -> Option<usize> {
        let bucket = buckets.get(turn % BUCKETS_EVERY)?.as_ref();
        self.wanted.iter().position(|stream| stream.name == bucket)
    }

    /// One of those that have more turns: what is wrong is mended soon, and a node is ready soon after that. So have
    /// those of which a server did not answer.
    pub(super) fn extra_turn(&self, turn: usize, unanswered: &[impl AsRef<str>]) -> Option<usize> {
        let is_urgent = |stream: &Stream| {
            let is_wrong = self.faults.contains_key(&stream.name) && !self.refused.contains(&stream.name);
            is_wrong || unanswered.iter().any(|name| name.as_ref() == stream.name)
        };
        let urgent: Vec<usize> = (0..self.wanted.len()).filter(|number| is_urgent(&self.wanted[*number])).collect();
        turn.checked_rem(urgent.len()).map(|nth| urgent[nth])
    }

    pub(super) fn found(&mut self, number: usize, inspected: Inspected, now: Instant) -> Look {
        let stream = &self.wanted[number];
        let (name, Inspected { fault, messages, full }) = (stream.name.clone(), inspected);
        match full {
            Some(full) => self.full.insert(name.clone(), full),
            None => self.full.remove(&name),
        };
        let Some(fault) = fault else {
            self.refused.remove(&name);
            self.held.insert(name.clone(), (messages, now));
            return if self.faults.remove(&name).is_some() { Look::RightAgain } else { Look::Right };
        };
        let known = self.faults.get(&name).filter(|(known, _)| *known == fault).map(|(_, since)| *since);
        let is_gone = fault == StreamFault::Missing && !stream.decides;
        let look = match known {
            None => Look::Wrong(in_words(stream, &fault)),
            Some(since) if is_gone && now.duration_since(since) >= MISSING_FOR => Look::Remake,
            Some(_) => Look::StillWrong,
        };
        self.faults.insert(name, (fault, known.unwrap_or(now)));
        look
    }

    pub(super) fn is_refused(&mut self, name: &str) {
        self.refused.insert(name.to_owned());
    }

    /// How many messages a stream held, and how long ago that was known.
    pub(super) fn held(&self, name: &str, now: Instant) -> Option<(u64, Duration)> {
        self.held.get(name).map(|(messages, at)| (*messages, now.duration_since(*at)))
    }

    /// A stream was made again, of which this is said.
    pub(super) fn is_remade(&mut self, name: &str, text: String, now: Instant) {
        self.remade.insert(name.to_owned(), (text, now));
    }

    /// What `health` says.
    pub(super) fn report(&mut self, now: Instant) -> StreamFaults {
        self.remade.retain(|_, (_, at)| now.duration_since(*at) < WARNED_FOR);
        let mut faults = StreamFaults::default();
        for (name, (fault, _)) in &self.faults {
            let Some(stream) = self.wanted.iter().find(|stream| stream.name == *name) else { continue };
            let list = match fault {
                _ if stream.is_dispensable => &mut faults.warnings,
                StreamFault::Missing | StreamFault::Unfit(_) => &mut faults.reasons,
                StreamFault::OtherBounds(_) => &mut faults.warnings,
            };
            list.push(in_words(stream, fault));
        }
        faults.warnings.extend(self.full.iter().map(|(name, Full { messages, bytes })| {
            format!("stream {name} is full: it holds {messages} messages, {bytes} bytes, and refuses what is published to it")
        }));
        faults.warnings.extend(self.remade.values().map(|(text, _)| text.clone()));
        faults
    }
}

fn in_words(stream: &Stream, fault: &StreamFault) -> String {
    let name = &stream.name;
    match fault {
        StreamFault::Missing if stream.is_dispensable => {
            format!(
                "stream {name} is gone: until a node makes it again, a handler's reply that is lost with a connection ends its attempt at its time limit"
            )
        }
        StreamFault::Missing if stream.decides => {
            format!(
                "stream {name} is gone, and with it what it says about jobs: restore it from a backup, or restart a node, which makes it again, empty"
            )
        }
        StreamFault::Missing => {
            format!("stream {name} is gone: a node makes it again, empty, as long as there are run records")
        }
        StreamFault::Unfit(differences) => {
            format!("stream {name} was altered: {}; a node sets it right at its start, if it can", listed(differences))
        }
        StreamFault::OtherBounds(differences) => {
            format!("stream {name} has other bounds than this node's settings: {}", listed(differences))
        }
    }
}

fn listed(differences: &[Difference]) -> String {
    let each =
        differences.iter().map(|Difference { setting, found, wanted }| format!("{setting} is {found}, not {wanted}"));
    each.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests;
