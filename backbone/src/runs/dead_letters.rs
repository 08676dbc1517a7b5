//! Dead letters: the job as it was published, its headers and payload, together with the history of its run.

use async_nats::HeaderMap;
use bytes::Bytes;
use longshore_domain::{ErrorKind, Run, RunId, State, Tenant, Timestamp};

use crate::Backbone;
use crate::error::Error;
use crate::messages::request::{self, Stored};
use crate::messages::scan::{Page, Source};
use crate::wire::header::{HEADERS_MAX, as_published, is_servers, names, size_of, without_servers};
use crate::wire::record;

/// The record as it was when the run died. In a header, so that the payload stays the user's own bytes.
pub const RECORD: &str = "Longshore-Record";
/// Set if a payload is too large to be kept: how many bytes it had.
pub use crate::wire::header::names::LEFT_OUT;

/// When the run was first published: distinguishes it from a later run of the same id.
const ORIGIN: &str = "Longshore-Origin";
/// Prefix for a header of an unreadable job that has the name of one of the dead letter's own headers.
const ORIGINAL: &str = "Original-";

/// Maximum size of the record in a dead letter. The server accepts at most 64 KiB of headers; the job has up to
/// [`HEADERS_MAX`] as well.
const RECORD_MAX: usize = 36 * 1024;
/// Size of the dead letter's own headers, beside record and payload.
const OWN_HEADERS: usize = 1_024;
/// A record is not made smaller than this; the payload is left out instead.
const MIN_RECORD: usize = 4 * 1024;

/// A dead letter as it was found.
#[derive(Debug, Clone)]
pub struct StoredDeadLetter {
    /// Its sequence in the stream.
    pub sequence: u64,
    /// The run as it was when it died. A long history is cut to what a dead letter can hold.
    pub run: Run,
    /// The job's own headers.
    pub headers: HeaderMap,
    /// Its payload.
    pub payload: Bytes,
    /// The size in bytes of a payload that was too large to be kept.
    pub left_out: Option<u64>,
}

/// A dead letter that was looked for, and up to which sequence.
pub(crate) type FoundUpTo = (Option<StoredDeadLetter>, u64);

impl StoredDeadLetter {
    /// Reads a stored dead letter; `None` if no node wrote it.
    pub fn read(stored: Stored) -> Option<Self> {
        let record = stored.headers.get(RECORD)?.as_str().to_owned();
        let mut run = record::read_shown(&record).ok()?;
        run.origin = Timestamp::parse(stored.headers.get(ORIGIN)?.as_str()).ok()?;
        let left_out = stored.headers.get(LEFT_OUT).and_then(|bytes| bytes.as_str().parse().ok());
        let mut headers = HeaderMap::new();
        let own = [RECORD, LEFT_OUT, ORIGIN, names::RUN_ID, names::ROUND];
        for (name, values) in stored.headers.iter() {
            let name: &str = name.as_ref();
            for value in values.iter().filter(|_| !own.contains(&name) && !is_servers(name)) {
                headers.append(name.strip_prefix(ORIGINAL).unwrap_or(name), value.clone());
            }
        }
        Some(Self { sequence: stored.sequence, run, headers, payload: stored.payload, left_out })
    }

    /// Whether it is of this death of a run: an earlier round, or an earlier run of the id, may have left another.
    pub(crate) fn is_of(&self, dead: &Run) -> bool {
        (self.run.round, self.run.origin) == (dead.round, dead.origin)
    }
}

impl Backbone {
    /// Writes the dead letter of a dead run. There is one per round, however often this is repeated while the server
    /// remembers the message id. A later repeat is recognized by run and round.
    ///
    /// # Errors
    /// The server did not confirm it.
    pub async fn write_dead_letter(
        &self,
        run: &Run,
        original: Option<&HeaderMap>,
        payload: Bytes,
    ) -> Result<(), Error> {
        let (headers, payload) = compose(run, original, payload, self.max_payload());
        let subject = self.names().dead_letter(&run.tenant, &run.queue, &run.job_type);
        request::publish(self.client(), subject, headers, payload).await.map(drop)
    }

    /// Finds the dead letter of a run; starts at about the time when the run died, if that is known. Any replica
    /// answers.
    pub(crate) async fn find_dead_letter(
        &self,
        tenant: &Tenant,
        run_id: &RunId,
        dead: Option<&Run>,
    ) -> Result<Option<StoredDeadLetter>, Error> {
        /// How far the clocks of nodes and servers may differ.
        const APART: std::time::Duration = std::time::Duration::from_secs(600);
        if let Some(Run { tenant: of, queue, job_type, state: State::Dead { ended_at }, .. }) = dead {
            let subject = self.names().dead_letter(of, queue, job_type);
            let page = self.page_since(&Source::DeadLetters, &subject, ended_at.minus(APART)).await?;
            let (found, _) = self.dead_letter_of((tenant, run_id), dead, &subject, page).await?;
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(self.dead_letter_among_all(tenant, run_id, None).await?.0)
    }

    /// The dead letter of a run among all of its tenant, and the last sequence that was read; with `dead`, of that very
    /// death.
    pub(crate) async fn dead_letter_among_all(
        &self,
        tenant: &Tenant,
        run_id: &RunId,
        dead: Option<&Run>,
    ) -> Result<FoundUpTo, Error> {
        let all = self.names().dead_letters_where(Some(tenant), None, None);
        let page = self.page(&Source::DeadLetters, &all, 1).await?;
        self.dead_letter_of((tenant, run_id), dead, &all, page).await
    }

    /// The dead letter of a run on this page or a later one; with `dead`, of that very death.
    async fn dead_letter_of(
        &self,
        of: (&Tenant, &RunId),
        dead: Option<&Run>,
        subject: &str,
        mut page: Page,
    ) -> Result<FoundUpTo, Error> {
        let mut read_to = 0;
        loop {
            read_to = page.messages.last().map_or(read_to, |stored| stored.sequence);
            let mine = |dead_letter: &StoredDeadLetter| {
                (&dead_letter.run.tenant, &dead_letter.run.run_id) == of
                    && dead.is_none_or(|dead| dead_letter.is_of(dead))
            };
            if let Some(dead_letter) = page.messages.into_iter().filter_map(StoredDeadLetter::read).find(mine) {
                return Ok((Some(dead_letter), read_to));
            }
            let Some(next) = page.next else { return Ok((None, read_to)) };
            page = self.page(&Source::DeadLetters, subject, next).await?;
        }
    }
}

/// A dead letter's headers and payload, together no larger than the server accepts.
fn compose(run: &Run, original: Option<&HeaderMap>, payload: Bytes, max: usize) -> (HeaderMap, Bytes) {
    // A job with larger headers is dead for just this reason, and its headers cannot be kept either.
    let original = original.filter(|all| size_of(all) <= HEADERS_MAX);
    // The headers of an unreadable job are kept as they were, so that a person sees why. Otherwise the headers that
    // nodes wrote are left out: they are of no use to a reader.
    let is_invalid = run.error.as_ref().is_some_and(|error| error.kind == ErrorKind::Invalid);
    let mut headers = if is_invalid { without_servers(original) } else { as_published(original) };
    let taken = payload.len() + size_of(&headers) + OWN_HEADERS;
    let mut room = max.saturating_sub(taken);
    let mut payload = payload;
    if room < MIN_RECORD {
        headers.insert(LEFT_OUT, payload.len().to_string());
        room += payload.len();
        payload = Bytes::new();
    }
    for own in [names::RUN_ID, names::ROUND] {
        if let Some(original) = headers.get(own).map(|value| value.as_str().to_owned()) {
            headers.insert(format!("{ORIGINAL}{own}").as_str(), original);
        }
    }
    headers.insert(names::RUN_ID, run.run_id.as_str());
    headers.insert(names::ROUND, run.round.to_string());
    headers.insert(ORIGIN, run.origin.to_string());
    let record = record::show_within(run, room.min(RECORD_MAX)).into_bytes();
    headers.insert(RECORD, String::from_utf8_lossy(&record).as_ref());
    // It names this run, not just its id: another run may have that id a moment later, and its dead letter must not be
    // taken for this one.
    headers.insert(names::MSG_ID, format!("{}/{}/{}/{}", run.tenant, run.run_id, run.origin.millis(), run.round));
    (headers, payload)
}

#[cfg(test)]
mod tests {
    use super::*;
    use longshore_domain::settlement::Settlement;
    use longshore_domain::{Failure, RunState};

    fn dead(attempts: u32) -> Run {
        let job = crate::tests::job("t", "r");
        let mut run = Run::new(&job, attempts, Timestamp::from_millis(1));
        for attempt in 1..=attempts {
            run.begin(attempt, &"n".into(), Timestamp::from_millis(2));
            let failure = Failure::new(ErrorKind::Retryable, "x\"ä".repeat(1_000));
            let at = Timestamp::from_millis(3);
            run.settle(
                if attempt == attempts { Settlement::Dead(failure) } else { Settlement::Retry { at, failure } },
                at,
            );
        }
        run
    }

    #[test]
    fn a_dead_letter_fits_whatever_it_is_made_of() {
        const MOST: usize = 1 << 20;
        for attempts in [1, 12, 1_000] {
            for bytes in [0, MOST - 16 * 1024, MOST] {
                let run = dead(attempts);
                let (headers, payload) = compose(&run, None, Bytes::from(vec![0; bytes]), MOST);
                assert!(size_of(&headers) + payload.len() <= MOST && size_of(&headers) < 60 * 1024);
                assert_eq!(payload.is_empty(), bytes == 0 || bytes == MOST);
                let read = record::read_shown(headers.get(RECORD).unwrap().as_str()).unwrap();
                assert_eq!((read.run_id, read.state.name(), read.attempt), (run.run_id, RunState::Dead, attempts));
                let (first, last) = (read.attempts.first().unwrap(), read.attempts.last().unwrap());
                assert_eq!((first.attempt, last.attempt), (1, attempts));
                assert!(last.error.as_ref().unwrap().message.starts_with("x\"ä"));
            }
        }
    }
}
