//! How much room a bucket has for new entries of keys that tenants choose. Their number is theirs alone, and a bucket
//! that is full refuses what nodes need besides. So a node stops making such entries while there is still a fifth left.
//!
//! What the bucket holds is looked at every few seconds; what this node has written since is added.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use serde::Serialize;

use crate::Backbone;
use crate::error::{Error, STREAM_FULL};
use crate::messages::request::{self, Over, PubAck, json};

/// New entries are made up to so many percent of the bucket's bytes.
const FOR_ENTRIES: u64 = 80;
/// What the server stores with each message, beside subject and body: headers and its own.
const OVERHEAD: usize = 128;
/// How long the mark of a removed entry stays where marks may not take more room.
const MARKS_KEPT: Duration = Duration::from_secs(30 * 86_400);

/// The room of one bucket; clones share it.
#[derive(Debug, Clone, Default)]
pub struct BucketSpace(Arc<BucketUsage>);

#[derive(Debug, Default)]
struct BucketUsage {
    /// 0: it has not been looked at.
    most: AtomicU64,
    held: AtomicU64,
    is_short: AtomicBool,
}

impl BucketSpace {
    /// The bucket was looked at: so many bytes, of at most so many (0: any number).
    pub(crate) fn found(&self, held: u64, max_bytes: u64) {
        self.0.most.store(max_bytes / 100 * FOR_ENTRIES, Ordering::Relaxed);
        self.0.held.store(held, Ordering::Relaxed);
        self.0.is_short.store(max_bytes > 0 && held >= max_bytes / 100 * FOR_ENTRIES, Ordering::Relaxed);
    }

    /// Whether new entries are not made for want of room.
    pub fn is_short(&self) -> bool {
        self.0.is_short.load(Ordering::Relaxed)
    }

    /// For how long the mark of a removed entry is stored; `None`: for good, so that the entry never comes back
    /// ([`request::removal`]). Tenants make and remove any number: once half of the room for entries is taken, further
    /// marks make way in the end.
    pub(crate) fn mark_lasts(&self) -> Option<Duration> {
        let most = self.0.most.load(Ordering::Relaxed);
        (most > 0 && self.0.held.load(Ordering::Relaxed) >= most / 2).then_some(MARKS_KEPT)
    }

    /// Counts an entry that is new, or may be.
    ///
    /// # Errors
    /// [`Error::is_stream_full`]: there is no room for it.
    pub(crate) fn count(&self, subject: &str, body: &[u8]) -> Result<(), Error> {
        if self.takes(subject.len() + body.len() + OVERHEAD) {
            return Ok(());
        }
        let description = "too many keys are in use for the bytes of the bucket".to_owned();
        Err(Error::Refused { subject: subject.to_owned(), code: STREAM_FULL, description })
    }

    /// Whether there is room for a new entry of so many bytes; it is counted then.
    fn takes(&self, bytes: usize) -> bool {
        let most = self.0.most.load(Ordering::Relaxed);
        if most == 0 {
            return true;
        }
        let before = self.0.held.fetch_add(bytes as u64, Ordering::Relaxed);
        if before >= most {
            self.0.is_short.store(true, Ordering::Relaxed);
        }
        !self.is_short()
    }
}

impl Backbone {
    /// Writes an entry of a key that a tenant chose. [`Error::is_stream_full`]: it is new, and there is no room for it.
    pub(crate) async fn write_entry(
        &self,
        space: &BucketSpace,
        subject: String,
        value: &impl Serialize,
        over: Over,
    ) -> Result<PubAck, Error> {
        let body = json(value);
        if over.expected == 0 {
            space.count(&subject, &body)?;
        }
        let written = request::publish(self.control(), subject, over.headers(), body).await;
        if written.as_ref().is_err_and(Error::is_stream_full) {
            space.0.is_short.store(true, Ordering::Relaxed);
        }
        written
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_kept_for_good_until_half_of_the_room_is_taken() {
        let space = BucketSpace::default();
        assert_eq!(space.mark_lasts(), None, "it has not been looked at");
        space.found(399, 1_000);
        assert_eq!(space.mark_lasts(), None);
        assert!(space.takes(1));
        assert_eq!(space.mark_lasts(), Some(MARKS_KEPT));
    }

    #[test]
    fn new_entries_leave_a_fifth_of_a_bucket_to_what_nodes_need() {
        let space = BucketSpace::default();
        assert!(space.takes(1 << 40) && !space.is_short(), "it has not been looked at");
        space.found(700, 1_000);
        assert!(space.takes(99) && space.takes(99) && !space.takes(1) && space.is_short());
        assert!(!space.takes(1), "what is not written does not count");
        assert!(space.count("a", b"b").unwrap_err().is_stream_full());
        space.found(300, 1_000);
        assert!(!space.is_short() && space.takes(400));
        space.found(800, 1_000);
        assert!(space.is_short() && !space.takes(1));
        space.found(800, 0);
        assert!(!space.is_short() && space.takes(1), "nothing bounds it");
        assert_eq!(space.mark_lasts(), None);
    }
}
