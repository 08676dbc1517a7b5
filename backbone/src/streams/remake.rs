//! Makes a stream again that was deleted while nodes run.
//!
//! Only streams whose messages are gone in any case, and which decide nothing: lanes, schedules, parked jobs, events,
//! dead letters, the audit, handlers' last replies. A bucket decides what may run (which run has ended, who has a key,
//! what is paused), so an empty one would have jobs run again: a person restores it or takes that decision.
//!
//! The stream that was deleted must not be mistaken for the new one. Acknowledgements, returns and deletions name a
//! sequence and nothing else, ids of runs are derived from sequences, and readers keep a sequence as their position: if
//! sequences began at 1 again, a late acknowledgement of an old job would remove a new one. So they begin at the time
//! in microseconds, which no stream reaches by counting its messages. The same holds for one that a node misses at its
//! start, though its queue has other lanes, or jobs have run: other nodes may still hold deliveries of the one that was
//! deleted.

use longshore_domain::Timestamp;

use async_nats::jetstream::stream::Config;

use crate::streams::provision;
use crate::streams::shape::first_sequence;
use crate::streams::wanted::WantedStream;
use crate::{Backbone, Error};

/// No stream leaps over so many sequences by losing its oldest messages: it was made again between the two.
const LEAP: u64 = 1_000_000_000;

/// Whether a stream was deleted and made again between messages of these sequences.
pub fn was_remade(before: u64, after: u64) -> bool {
    after.saturating_sub(before) > LEAP
}

impl Backbone {
    /// Makes a stream and its consumer again. Safe to repeat, also by several nodes at once: one of them makes it.
    /// Returns with which sequence it begins, empty; `None`: another node made it meanwhile.
    ///
    /// # Errors
    /// The server did not answer, or refused.
    pub async fn remake(&self, wanted: &WantedStream, at: Timestamp) -> Result<Option<u64>, Error> {
        let js = self.jetstream();
        let first = first_sequence(at);
        let config = Config { first_sequence: Some(first), ..wanted.config.clone() };
        let is_anew = provision::anew(&js, &config).await?;
        if let Some(consumer) = &wanted.consumer {
            provision::consumer(&js, wanted.name(), consumer.clone()).await?;
        }
        Ok(is_anew.then_some(first))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequences_of_a_stream_that_was_made_again_are_far_from_all_before() {
        let now = Timestamp::parse("2026-11-23T06:00:00.000Z").unwrap();
        let first = first_sequence(now);
        assert_eq!(first, 1_795_413_600_000_000);
        // A million messages a second since then, and it is made again after a day.
        assert!(first_sequence(Timestamp::from_millis(now.millis() + 86_400_000)) > first + 86_399 * 1_000_000);
        assert!(was_remade(70_000_000, first) && !was_remade(70_000_000, 900_000_000) && !was_remade(first, 5));
    }
}
