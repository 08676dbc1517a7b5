//! The reads of the sweep: stored schedules, records that wait, and whether a message is still there.
//!
//! Pages are read from any replica, which may lag; they only say where to look. Conclusions rest on the leader's own
//! answer (`STREAM.MSG.GET`).

use longshore_domain::run::Wait;
use longshore_domain::{Run, State, Timestamp};

use crate::Backbone;
use crate::error::Error;
use crate::messages::get;
use crate::messages::request::{self, Stored};
use crate::messages::scan::{self, Page, Source};
use crate::wire::header::names;
use crate::wire::record;

/// A schedule that is stored.
#[derive(Debug)]
pub struct Standing {
    /// When it fires.
    pub at: Timestamp,
    /// The subject it fires to.
    pub due: String,
    /// The message itself.
    pub stored: Stored,
}

/// A part of a stream, and where the next part begins.
#[derive(Debug)]
pub struct Chunk<T> {
    /// What was found.
    pub found: Vec<T>,
    /// Bytes that were read.
    pub bytes: usize,
    /// The sequence from which the next part begins; `None`: there are no more.
    pub next: Option<u64>,
}

impl<T> Chunk<T> {
    /// What can be read of a page.
    pub(crate) fn of(page: Page, read: impl FnMut(Stored) -> Option<T>) -> Self {
        let bytes = page.messages.iter().map(|stored| stored.payload.len()).sum();
        Self { found: page.messages.into_iter().filter_map(read).collect(), bytes, next: page.next }
    }
}

impl Backbone {
    /// Some of the schedules of jobs, from a sequence on. Ticks of recurring schedules are not among them: their
    /// objects say what is due.
    ///
    /// # Errors
    /// The server did not answer.
    pub async fn standing_schedules(&self, from: u64) -> Result<Chunk<Standing>, Error> {
        let page = self.page(&Source::Schedules, ">", from).await?;
        Ok(Chunk::of(page, |stored| self.standing(stored)))
    }

    /// Some of the records of runs that wait for a time or run, from a sequence on.
    ///
    /// # Errors
    /// The server did not answer.
    pub async fn open_records(&self, from: u64) -> Result<Chunk<(Run, u64)>, Error> {
        let stream = self.names().bucket_stream("runs");
        let page = scan::page(self.control(), &stream, ">", from).await?;
        Ok(Chunk::of(page, |stored| open(&stored.payload, stored.sequence)))
    }

    /// Whether a schedule is still stored.
    ///
    /// # Errors
    /// The leader did not answer.
    pub async fn still_stands(&self, standing: &Standing) -> Result<bool, Error> {
        let (stream, sequence) = (self.names().schedules_stream(), standing.stored.sequence);
        Ok(get::at(self.control(), &stream, sequence).await?.is_some())
    }

    /// The schedule of a run that waits for a time, if it stands, and for a later time than the run's record has.
    ///
    /// # Errors
    /// The leader did not answer.
    pub async fn later_schedule(&self, run: &Run) -> Result<Option<Stored>, Error> {
        let (stream, subject) = (self.names().schedules_stream(), self.schedule_of(run));
        let found = request::latest(self.control(), &stream, &subject).await?;
        let standing = found.and_then(|found| self.standing(Stored::from(found)));
        Ok(standing.filter(|standing| run.state.run_at().is_some_and(|at| at < standing.at)).map(|found| found.stored))
    }

    /// Whether a message could still start a run that waits for a time: its schedule, or any message of its tenant and
    /// type that is due or in its lane. They are read in the order in which a job passes them, so that a job that moves
    /// on meanwhile is found at the next.
    ///
    /// # Errors
    /// A leader did not answer.
    pub async fn may_come(&self, run: &Run) -> Result<bool, Error> {
        let (names, schedules) = (self.names(), self.names().schedules_stream());
        let schedule = self.schedule_of(run);
        let due = names.due(&run.tenant, &run.lane(), &run.job_type);
        let job = names.job(&run.tenant, &run.lane(), &run.job_type);
        let lane = names.lane_stream(&run.queue, run.priority);
        for (stream, subject) in [(&schedules, &schedule), (&schedules, &due), (&lane, &job)] {
            if request::latest(self.control(), stream, subject).await?.is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether the message that carries a run is gone from its stream, so that no node gets it again.
    ///
    /// # Errors
    /// The leader did not answer.
    pub async fn has_no_message(&self, run: &Run) -> Result<bool, Error> {
        let Some(message) = run.held_by.as_ref().map(|held_by| &held_by.message) else { return Ok(false) };
        Ok(!self.is_in_lane(message).await?)
    }

    /// Whether the record of a run is still as it was read.
    ///
    /// # Errors
    /// The leader did not answer.
    pub async fn is_unchanged(&self, run: &Run, revision: u64) -> Result<bool, Error> {
        let (stream, subject) = (self.names().bucket_stream("runs"), self.names().record(&run.tenant, &run.run_id));
        let found = request::latest(self.control(), &stream, &subject).await?;
        // A record that was written again for another delivery waits as before, but a node has just handled the run.
        Ok(found.is_some_and(|found| found.sequence == revision && open(&found.payload, revision).is_some()))
    }

    fn standing(&self, stored: Stored) -> Option<Standing> {
        let text = |name: &str| stored.headers.get(name).map(async_nats::HeaderValue::as_str);
        let at = Timestamp::parse(text(names::SCHEDULE)?.strip_prefix("@at ")?).ok()?;
        let due = text(names::SCHEDULE_TARGET)?.to_owned();
        let is_tick = self.names().read_due_tick(&due).is_some();
        (!is_tick).then_some(Standing { at, due, stored })
    }
}

fn open(record: &[u8], revision: u64) -> Option<(Run, u64)> {
    let run = record::read(record).ok()?;
    // A parked job is among the parked ones, not where a schedule brings its job.
    let is_open = matches!(run.state.wait(), Some(Wait::Until(_))) && !run.state.is_terminal()
        || matches!(run.state, State::Running);
    is_open.then_some((run, revision))
}

#[cfg(test)]
mod tests {
    use super::*;
    use longshore_domain::run::DeferReason;
    use longshore_domain::settlement::Settlement;
    use longshore_domain::{ErrorKind, Failure, RunState};

    #[test]
    fn a_parked_retry_waits_for_no_schedule() {
        let job = crate::tests::job("t", "r");
        let at = Timestamp::from_millis(1);
        let waits = |run: &Run| open(&record::write(run), 7).map(|(run, revision)| (run.state.name(), revision));
        let mut run = Run::new(&job, 3, at);
        assert_eq!(waits(&run), None, "it is in its lane");
        run.settle(Settlement::Defer { at, reason: DeferReason::Busy, put_back: None }, at);
        assert_eq!(waits(&run), Some((RunState::Enqueued, 7)), "its first attempt was put off");
        run.settle(Settlement::Schedule(at), at);
        assert_eq!(waits(&run), Some((RunState::Scheduled, 7)));
        run.begin(1, &"n".into(), at);
        assert_eq!(waits(&run), Some((RunState::Running, 7)));
        run.settle(Settlement::Retry { at, failure: Failure::new(ErrorKind::Retryable, "x") }, at);
        assert_eq!(waits(&run), Some((RunState::Retrying, 7)));
        run.settle(Settlement::Park { since: at, reason: None }, at);
        assert_eq!(waits(&run), None, "parking brings it on");
        run.settle(Settlement::Defer { at, reason: DeferReason::Busy, put_back: None }, at);
        assert_eq!(waits(&run), Some((RunState::Retrying, 7)), "it has a schedule again");
    }
}
