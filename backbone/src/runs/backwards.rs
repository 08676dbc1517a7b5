//! Reads a stream from its newest message to its oldest, and the records of many runs at once: for lists of runs. No
//! job passes through here on its own way.
//!
//! The server reads forwards alone. So a reader goes back by windows of sequences, and reads each window forwards.
//! Where most of a stream's messages have gone, such as old versions of records, windows become longer, so that a page
//! costs about the same everywhere.
//!
//! What is read here comes from any replica and may be a moment old: nothing is decided on it.

use std::collections::HashMap;

use longshore_domain::{RunId, Tenant};

use crate::Backbone;
use crate::error::Error;
use crate::messages::request::Stored;
use crate::messages::scan::{self, PAGE_BYTES, Page};
use crate::runs::records::Found;
use crate::wire::record;

/// Messages that are asked for at once, and the length of the shortest window, unless its messages are large: one
/// question, some hundred KiB.
const BATCH: u64 = 512;
/// Messages of a window, and bytes of their payloads; one that has more was made too long, and is read again as a
/// shorter one.
const MOST: usize = 2_048;
const MOST_BYTES: usize = 8 << 20;
/// The longest window, in sequences.
const LONGEST: u64 = 1 << 40;
/// Records that are asked for at once; the server answers at most 1,024.
const RECORDS: usize = 256;
/// One message in so many is the tenant's: then the server is asked for this tenant's alone. That costs the server time
/// for each of the tenant's messages that lie ahead, which for a tenant with most of them is more than reading them
/// all.
const SELDOM: usize = 64;

/// A reader that goes back through a stream.
#[derive(Debug)]
pub struct Backwards {
    stream: String,
    /// All messages that may be meant.
    subject: String,
    /// Begins the subjects of those that are meant, and the filter for them.
    own: Option<(String, String)>,
    first: u64,
    /// The length of the next window, in sequences.
    window: u64,
}

/// What a window had.
#[derive(Debug)]
pub struct Past {
    /// Its messages, the newest first.
    pub messages: Vec<Stored>,
    /// The next window ends before this sequence; `None`: there is nothing before it.
    pub next: Option<u64>,
    /// How many messages were read for it.
    pub read: usize,
}

impl Backbone {
    /// [`Backbone::sequences`] of the records.
    ///
    /// # Errors
    /// The bucket cannot be read.
    pub async fn sequences_of_records(&self) -> Result<(u64, u64), Error> {
        self.sequences_in(&self.names().bucket_stream("runs")).await
    }

    /// A reader of records, of one tenant or of all, the last written first.
    pub fn records_backwards(&self, tenant: Option<&Tenant>, first: u64) -> Backwards {
        let own = tenant.map(|tenant| {
            let prefix = self.names().key("runs", &format!("{tenant}."));
            (prefix.clone(), format!("{prefix}>"))
        });
        Backwards { stream: self.names().bucket_stream("runs"), subject: ">".to_owned(), own, first, window: BATCH }
    }

    /// A reader of dead letters, the last written first.
    pub fn dead_letters_backwards(&self, subject: String, first: u64) -> Backwards {
        Backwards { stream: self.names().dlq_stream(), subject, own: None, first, window: BATCH }
    }

    /// Some of the records, of one tenant or of all, in the order in which they were written, from a sequence on.
    ///
    /// # Errors
    /// The bucket cannot be read.
    pub async fn records_from(&self, tenant: Option<&Tenant>, from: u64) -> Result<Page, Error> {
        let of_tenant = |tenant| self.names().key("runs", &format!("{tenant}.>"));
        let subject = tenant.map_or_else(|| ">".to_owned(), of_tenant);
        let stream = self.names().bucket_stream("runs");
        scan::page(self.service(), &stream, &subject, from).await
    }

    /// The records of these runs, by their place in `runs`; those that have none are absent.
    ///
    /// # Errors
    /// The bucket cannot be read.
    pub async fn records_of(&self, runs: &[(Tenant, RunId)]) -> Result<HashMap<usize, Found>, Error> {
        let stream = self.names().bucket_stream("runs");
        let mut found = HashMap::with_capacity(runs.len());
        for (number, some) in runs.chunks(RECORDS).enumerate() {
            let subjects: Vec<String> = some.iter().map(|(tenant, run)| self.names().record(tenant, run)).collect();
            let places: HashMap<&str, usize> =
                subjects.iter().enumerate().map(|(at, subject)| (subject.as_str(), number * RECORDS + at)).collect();
            let list = serde_json::to_string(&subjects).unwrap_or_default();
            let mut from = Some(1);
            while let Some(first) = from {
                let query = format!(r#""seq":{first},"multi_last":{list},"max_bytes":{PAGE_BYTES}"#);
                let page = scan::batch(self.service(), &stream, &query).await?;
                for stored in &page.messages {
                    let place = places.get(stored.subject.as_str());
                    if let (Some(place), Ok(run)) = (place, record::read(&stored.payload)) {
                        found.insert(*place, Found { run, revision: stored.sequence });
                    }
                }
                from = page.next;
            }
        }
        Ok(found)
    }
}

impl Backwards {
    /// The window that ends before this sequence.
    ///
    /// # Errors
    /// The stream cannot be read.
    pub async fn before(&mut self, backbone: &Backbone, before: u64) -> Result<Past, Error> {
        let mut read = 0;
        loop {
            let low = before.saturating_sub(self.window).max(self.first).max(1);
            if low >= before {
                return Ok(Past { messages: Vec::new(), next: None, read });
            }
            let (mut messages, is_whole) = self.between(backbone, low, before, &mut read).await?;
            self.window = next_window(before - low, messages.len(), bytes_of(&messages), is_whole);
            if !is_whole {
                continue;
            }
            self.keep_own(&mut messages);
            messages.reverse();
            return Ok(Past { messages, next: (low > self.first.max(1)).then_some(low), read });
        }
    }

    /// The messages of a window, in order, and whether these are all: a window with far more than a page is given up.
    async fn between(
        &self,
        backbone: &Backbone,
        low: u64,
        before: u64,
        read: &mut usize,
    ) -> Result<(Vec<Stored>, bool), Error> {
        let (mut messages, mut from) = (Vec::new(), low);
        loop {
            let query = scan::query(&self.subject, from, BATCH.min(before - from));
            let page = scan::batch(backbone.service(), &self.stream, &query).await?;
            *read += page.messages.len();
            messages.extend(page.messages.into_iter().filter(|stored| stored.sequence < before));
            match page.next {
                Some(next) if next < before => from = next,
                _ => return Ok((messages, true)),
            }
            if before - low > 1 && (messages.len() > MOST || bytes_of(&messages) > MOST_BYTES) {
                return Ok((messages, false));
            }
        }
    }

    /// Leaves out other tenants' messages; asks for the tenant's alone from now on if there are few of them.
    fn keep_own(&mut self, messages: &mut Vec<Stored>) {
        let Some((prefix, filter)) = &self.own else { return };
        let all = messages.len();
        messages.retain(|stored| stored.subject.starts_with(prefix));
        if all >= SELDOM && messages.len() < all / SELDOM {
            self.subject.clone_from(filter);
            self.own = None;
        }
    }
}

/// The length of the window after one in which so much was found.
fn next_window(window: u64, found: usize, bytes: usize, is_whole: bool) -> u64 {
    match found as u64 {
        _ if !is_whole && bytes > MOST_BYTES => (window / 8).max(1),
        _ if !is_whole => (window / 8).max(BATCH),
        // Four times as much is still half of what a window may have.
        found if found < BATCH / 4 && bytes < MOST_BYTES / 8 => (window * 4).min(LONGEST),
        found if found > BATCH => (window / 2).max(BATCH),
        _ => window,
    }
}

fn bytes_of(messages: &[Stored]) -> usize {
    messages.iter().map(|stored| stored.payload.len()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_is_as_long_as_its_messages_and_their_bytes_allow() {
        assert_eq!(next_window(BATCH, 100, 1_000, true), 4 * BATCH);
        assert_eq!(next_window(4 * BATCH, 1_000, 1_000, true), 2 * BATCH);
        assert_eq!(next_window(8 * BATCH, MOST + 1, 1_000, false), BATCH);
        assert_eq!(next_window(BATCH, 400, MOST_BYTES + 1, false), BATCH / 8, "few messages, but large ones");
        assert_eq!(next_window(BATCH / 8, 64, MOST_BYTES / 2, true), BATCH / 8);
        assert_eq!(next_window(2, 1, MOST_BYTES + 1, false), 1);
    }
}
