//! Recurring schedules in their bucket, and the ticks by which the server says that one is due.
//!
//! A tick is a schedule of the server without a job: one for each recurring schedule, which a later one replaces. The
//! object alone says what is due, so a tick that is lost, late or fired twice costs nothing but time.

use std::time::Instant;

use async_nats::HeaderMap;
use bytes::Bytes;
use longshore_domain::{ScheduleId, Tenant, Timestamp};

use crate::Backbone;
use crate::error::Error;
use crate::messages::request::{self, Stored, conditions, json, removal, won};
use crate::messages::scan;
use crate::schedules::sweep::Chunk;
use crate::wire::header::names;
use crate::wire::recurring::Recurring;

const BUCKET: &str = "schedules";
/// The largest schedule, in bytes, its job included: it is written twice for each firing.
pub const SCHEDULE_MAX: usize = 64 * 1024;

/// A schedule as it was found.
#[derive(Debug, Clone)]
pub struct FoundRecurring {
    /// The schedule; `None`: there is none of that id, or none that can be read.
    pub schedule: Option<Recurring>,
    /// What is stored is no schedule: a newer node or a stranger wrote it.
    pub is_unreadable: bool,
    /// The revision that a compare-and-set must name.
    pub revision: u64,
}

/// The outcome of a compare-and-set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Put {
    /// It is stored, at this revision.
    Won(u64),
    /// Another write came first: read it again.
    Lost,
    /// The bucket is full, or has no room for another schedule.
    Full,
}

impl Backbone {
    /// A recurring schedule, as the bucket's leader has it. One that is cut off from the other servers lacks what they
    /// have stored since.
    ///
    /// # Errors
    /// It could not be read.
    pub async fn find_recurring(&self, tenant: &Tenant, id: &ScheduleId) -> Result<FoundRecurring, Error> {
        let stored = self.entry(BUCKET, &format!("{tenant}.{id}")).await?;
        Ok(self.found(stored.map(Stored::from)))
    }

    /// The same, but that there is none is certain: whichever server leads the bucket, none had been stored when this
    /// was called.
    ///
    /// # Errors
    /// It could not be read, or no server was reached that knows for certain.
    pub async fn find_recurring_for_certain(&self, tenant: &Tenant, id: &ScheduleId) -> Result<FoundRecurring, Error> {
        let found = self.find_recurring(tenant, id).await?;
        if found.schedule.is_some() || self.has_one_server() {
            return Ok(found);
        }
        let subject = self.recurring_key(tenant, id);
        Ok(self.found(self.latest_for_certain(BUCKET, &subject).await?))
    }

    /// Whether there is room for a schedule that is new. A firing makes its schedule longer: new ones leave room for
    /// that.
    pub fn has_room_for(&self, schedule: &Recurring) -> bool {
        let subject = self.recurring_key(&schedule.tenant, schedule.id());
        self.0.schedules_space.count(&subject, &json(schedule)).is_ok()
    }

    /// Writes a schedule if its revision is still `expected`. Its token must be its writer's own: if an answer is lost,
    /// it shows whose write is stored.
    ///
    /// # Errors
    /// The server did not answer; the schedule may have been written.
    pub async fn write_recurring(&self, schedule: &Recurring, expected: u64) -> Result<Put, Error> {
        let subject = self.recurring_key(&schedule.tenant, schedule.id());
        let written = self.write_key(subject, conditions(Some(expected), None), json(schedule)).await?;
        if written != Put::Lost {
            return Ok(written);
        }
        // A write whose answer was lost is repeated by the connection, and then refuses itself.
        let found = self.find_recurring(&schedule.tenant, schedule.id()).await?;
        let mine = found.schedule.is_some_and(|found| found.token == schedule.token && !found.token.is_empty());
        Ok(if mine { Put::Won(found.revision) } else { Put::Lost })
    }

    /// Removes a schedule if its revision is still `expected`.
    ///
    /// # Errors
    /// The server did not answer; the schedule may have been removed.
    pub async fn remove_recurring(&self, tenant: &Tenant, id: &ScheduleId, expected: u64) -> Result<Put, Error> {
        let headers = removal(Some(expected), self.0.schedules_space.mark_lasts());
        self.write_key(self.recurring_key(tenant, id), headers, Bytes::new()).await
    }

    async fn write_key(&self, subject: String, headers: HeaderMap, body: Bytes) -> Result<Put, Error> {
        match won(request::publish_until_decided(self.control(), subject, headers, body).await) {
            Ok(revision) => Ok(revision.map_or(Put::Lost, Put::Won)),
            Err(error) if error.is_stream_full() => Ok(Put::Full),
            Err(error) => Err(error),
        }
    }

    /// Some of the schedules of a tenant, or of all, from a sequence on; those that were written least recently first.
    ///
    /// # Errors
    /// The server did not answer.
    pub async fn some_recurring(&self, tenant: Option<&Tenant>, from: u64) -> Result<Chunk<(Recurring, u64)>, Error> {
        let tenant = tenant.map_or("*", Tenant::as_str);
        let (stream, subject) = (self.names().bucket_stream(BUCKET), self.names().key(BUCKET, &format!("{tenant}.*")));
        let page = scan::page(self.service(), &stream, &subject, from).await?;
        let read = |stored: Stored| Some((self.readable(&stored.subject, &stored.payload)?, stored.sequence));
        Ok(Chunk::of(page, read))
    }

    /// Has the server tick for a schedule at a time; replaces the tick that was set before.
    ///
    /// # Errors
    /// The server did not confirm it.
    pub async fn set_tick(&self, tenant: &Tenant, id: &ScheduleId, at: Timestamp) -> Result<(), Error> {
        let mut headers = HeaderMap::new();
        headers.insert(names::SCHEDULE, format!("@at {at}"));
        headers.insert(names::SCHEDULE_TARGET, self.names().due_tick(tenant, id));
        request::publish(self.control(), self.names().tick(tenant, id), headers, Bytes::new()).await.map(|_| ())
    }

    /// Removes the tick of a schedule that is gone or paused. One that stays does no harm.
    ///
    /// # Errors
    /// The server did not confirm it.
    pub async fn remove_tick(&self, tenant: &Tenant, id: &ScheduleId) -> Result<(), Error> {
        let stream = self.names().schedules_stream();
        match request::latest(self.control(), &stream, &self.names().tick(tenant, id)).await? {
            Some(stored) => self.take_out(&scan::Source::Schedules, stored.sequence).await.map(drop),
            None => Ok(()),
        }
    }

    /// Whether a tick of this schedule has fired and waits to be taken up.
    ///
    /// # Errors
    /// The leader did not answer.
    pub async fn tick_waits(&self, tenant: &Tenant, id: &ScheduleId) -> Result<bool, Error> {
        let stream = self.names().schedules_stream();
        let found = request::latest(self.control(), &stream, &self.names().due_tick(tenant, id)).await?;
        Ok(found.is_some())
    }

    /// What the last message under a schedule's key says: there is none where it was removed, or where somebody wrote
    /// over it, so that it can be put again.
    fn found(&self, stored: Option<Stored>) -> FoundRecurring {
        let Some(stored) = stored else { return FoundRecurring { schedule: None, is_unreadable: false, revision: 0 } };
        let schedule = self.readable(&stored.subject, &stored.payload);
        let is_unreadable = schedule.is_none() && !stored.payload.is_empty();
        FoundRecurring { schedule, is_unreadable, revision: stored.sequence }
    }

    /// Whether this node met lately what nodes did not write among the recurring schedules.
    pub fn misses_recurring(&self) -> bool {
        let prefix = self.names().key(BUCKET, "");
        self.unreadable().has(|subject| subject.starts_with(&prefix), Instant::now())
    }

    fn recurring_key(&self, tenant: &Tenant, id: &ScheduleId) -> String {
        self.names().key(BUCKET, &format!("{tenant}.{id}"))
    }
}
