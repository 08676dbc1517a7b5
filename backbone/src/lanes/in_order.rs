//! The jobs of one concurrency key that wait in one lane, as its order needs them: none may be missing that stood there
//! when it was asked.
//!
//! Pages are read by direct gets, which a replica may answer that lags behind. So the leader is asked first for the
//! last message of the subject: an answer that has it, or a later one, has all before it.

use std::collections::BTreeMap;

use longshore_domain::QueueLane;
use longshore_domain::concurrency::OrderId;

use crate::Backbone;
use crate::error::Error;
use crate::lanes::delivery::Delivery;
use crate::messages::request::{self, Stored};
use crate::messages::scan::{PAGE, Source};
use crate::wire::header;
use crate::wire::kind_key::KindKey;

/// At most so many jobs are returned: those with the lowest numbers.
pub const WINDOW: usize = 256;
/// So many messages are read first, then pages: mostly a few come before a job that is about to start.
const FIRST_PAGE: usize = 16;
/// How often a place is read again whose answer lacked its last message.
const TRIES: usize = 8;

/// Where jobs of a key wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Waits {
    /// In the lane itself, delivered or not.
    InLane,
    /// Parked.
    Parked,
    /// In the queue's lane of returned jobs.
    Returned,
}

/// A job that waits.
#[derive(Debug)]
pub struct Waiting {
    /// The job without its payload, as if it had been delivered; the ack token settles nothing.
    pub delivery: Delivery,
    /// Its number in the order: the sequence in the lane under which it came.
    pub number: u64,
}

impl Backbone {
    /// The jobs of a key that wait in a place, with numbers above `beyond` and up to `up_to`, lowest first; at most
    /// [`WINDOW`]. Whatever stood there when this was called is among them, unless it was taken out meanwhile.
    ///
    /// # Errors
    /// The place cannot be read, or the server that answers lags behind.
    pub async fn waiting_in_order(
        &self,
        id: &OrderId,
        place: Waits,
        beyond: u64,
        up_to: u64,
    ) -> Result<Vec<Waiting>, Error> {
        let names = self.names();
        let Some(key) = KindKey::read(&id.key) else { return Ok(Vec::new()) };
        let (source, subject) = match place {
            Waits::InLane => (
                Source::Lane(id.lane.queue.clone(), id.lane.priority.into()),
                names.job(&id.tenant, &id.lane, &id.job_type),
            ),
            Waits::Parked => (Source::Parked, names.parked(&id.tenant, &id.lane, &id.job_type, &key)),
            Waits::Returned => (
                Source::Lane(id.lane.queue.clone(), QueueLane::Returned),
                names.returned(&id.tenant, &id.lane, &id.job_type),
            ),
        };
        // Only in the lane do sequences say which jobs came later.
        let until = if place == Waits::InLane { up_to } else { u64::MAX };
        let mut lowest: BTreeMap<(u64, u64), Stored> = BTreeMap::new();
        let take = |stored: Stored| {
            if header::kind_key(Some(&stored.headers)) != key {
                return;
            }
            let read = header::read_job(&stored.headers).ok();
            let own = read.and_then(|read| read.moved?.place);
            let number = own.unwrap_or(stored.sequence);
            if number > beyond && number <= up_to {
                lowest.insert((number, stored.sequence), Stored { payload: bytes::Bytes::new(), ..stored });
                if lowest.len() > WINDOW {
                    lowest.pop_last();
                }
            }
        };
        self.read_all(&source, &subject, until, take).await?;
        let stream = self.stream_of(&source);
        let lowest = lowest.into_iter().map(|((number, _), stored)| (number, self.as_delivered(stored, &stream)));
        Ok(lowest.map(|(number, delivery)| Waiting { delivery, number }).collect())
    }

    /// Hands over every message of a subject that stands in a place, up to a sequence; one may come twice.
    async fn read_all(
        &self,
        source: &Source,
        subject: &str,
        until: u64,
        mut take: impl FnMut(Stored),
    ) -> Result<(), Error> {
        let stream = self.stream_of(source);
        for _ in 0..TRIES {
            let last = request::latest(self.service(), &stream, subject).await?;
            let Some(last) = last.map(|last| last.sequence.min(until)) else { return Ok(()) };
            let (mut from, mut most) = (Some(1), FIRST_PAGE);
            while let Some(next) = from {
                let page = self.page_of(source, subject, next, most).await?;
                (from, most) = (page.next, PAGE);
                for stored in page.messages {
                    let sequence = stored.sequence;
                    if sequence <= until {
                        take(stored);
                    }
                    if sequence >= last {
                        return Ok(());
                    }
                }
            }
            // The server that answered lags behind, or the last one was taken out meanwhile.
        }
        Err(Error::Read { subject: subject.to_owned(), source: "a replica lags behind".into() })
    }
}
