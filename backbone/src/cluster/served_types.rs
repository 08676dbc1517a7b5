//! The types that handlers were online for, in the control bucket: one small key per type, written once and kept.

use bytes::Bytes;
use longshore_domain::{JobType, Timestamp};

use crate::error::Error;
use crate::messages::raw::Raw;
use crate::messages::refusal::WRONG_SEQUENCE;
use crate::messages::request::{self, conditions};

/// What was read of the cluster's memory of served types.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Remembered {
    /// A handler of this type was online once.
    Type(JobType),
    /// Every type that was served since then is remembered.
    CompleteFrom(Timestamp),
}

way! {
    /// A node's way to the memory of served types.
    ServedTypesStore, served_types
}

const TYPE: &str = "type.";
const COMPLETE_FROM: &str = "complete_from";

impl ServedTypesStore {
    /// Whether the cluster had done work before this node started.
    pub fn had_jobs(&self) -> bool {
        self.0.0.had_jobs
    }

    /// Everything that was remembered after a revision, as the bucket's leader has it, and the revision up to which
    /// that is; after 0 all there is.
    ///
    /// # Errors
    /// The control bucket cannot be read.
    pub async fn remembered_after(&self, revision: u64) -> Result<(Vec<Remembered>, u64), Error> {
        let stored = self.0.entries_after("control", "served.>", revision).await?;
        let revision = stored.last().map_or(revision, |raw| raw.sequence);
        Ok((stored.iter().filter_map(|raw| read(raw, &self.subject(""))).collect(), revision))
    }

    /// Remembers something for good, unless it is remembered already.
    ///
    /// # Errors
    /// The server did not answer in time, or refused.
    pub async fn remember(&self, what: &Remembered, now: Timestamp) -> Result<(), Error> {
        let (key, at) = match what {
            Remembered::Type(job_type) => (format!("{TYPE}{job_type}"), now),
            Remembered::CompleteFrom(at) => (COMPLETE_FROM.to_owned(), *at),
        };
        let (headers, body) = (conditions(Some(0), None), Bytes::from(at.to_string()));
        match request::publish(self.0.control(), self.subject(&key), headers, body).await {
            Ok(_) | Err(Error::Refused { code: WRONG_SEQUENCE, .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn subject(&self, key: &str) -> String {
        self.0.names().key("control", &format!("served.{key}"))
    }
}

fn read(raw: &Raw, prefix: &str) -> Option<Remembered> {
    let key = raw.subject.strip_prefix(prefix)?;
    if key == COMPLETE_FROM {
        return Timestamp::parse(std::str::from_utf8(&raw.payload).ok()?).ok().map(Remembered::CompleteFrom);
    }
    JobType::parse(key.strip_prefix(TYPE)?).ok().map(Remembered::Type)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_remembered_is_read_by_its_key() {
        let of = |key: &str, body: &'static str| {
            let (subject, payload) = (format!("$KV.b.served.{key}"), Bytes::from_static(body.as_bytes()));
            let raw = Raw { subject, sequence: 7, at: Timestamp::default(), headers: Bytes::new(), payload };
            read(&raw, "$KV.b.served.")
        };
        let at = "2026-11-21T12:00:00.000Z";
        let render = JobType::parse("report.render").unwrap();
        assert_eq!(of("type.report.render", at), Some(Remembered::Type(render.clone())));
        assert_eq!(of("type.report.render", ""), Some(Remembered::Type(render)), "the key alone says it");
        assert_eq!(of("complete_from", at), Some(Remembered::CompleteFrom(Timestamp::parse(at).unwrap())));
        let unread = [of("complete_from", "soon"), of("type.a b", at), of("of.a.later.version", at)];
        assert_eq!(unread, [None, None, None]);
    }
}
