//! Results of steps: what a run's handlers have finished and do not do again, in the bucket of checkpoints.
//!
//! A step is a name and the number of its use in the run. Its result is written once, by compare-and-set on "nothing",
//! and outlives attempts, rounds and nodes. It goes with its run's end, with erasing, or by its age. It may outlive the
//! record of a run that died: then a later run of the id writes over it.

use std::time::Duration;

use bytes::Bytes;
use longshore_domain::name::check_step;
use longshore_domain::run::Step;
use longshore_domain::{Run, RunId, SmolStr, Tenant, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::Backbone;
use crate::error::Error;
use crate::messages::raw::Raw;
use crate::messages::request::{self, Over, Stored};
use crate::wire::api::read;
use crate::wire::json::any_json;

/// Maximum bytes of a result. It must also fit into a message ([`Backbone::max_in_answer`]).
pub const RESULT_MAX: usize = 512 << 10;

/// What a handler says of a step: the body of the signals `step-get`, without a result, and `step-put`, with one.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StepCall {
    /// The step's name: `A-Z a-z 0-9 _ -`, 64 bytes at most.
    pub name: SmolStr,
    /// The how many-eth use of the name in the run, from 1.
    pub n: u32,
    /// What the step came to.
    #[serde(default, deserialize_with = "any_json", skip_serializing_if = "Option::is_none")]
    pub result: Option<Box<RawValue>>,
}

/// A finished step as it is stored, and as `step-get` is answered.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct StepResult {
    /// What the step came to.
    pub result: Box<RawValue>,
    /// When that was stored.
    pub at: Timestamp,
    /// The attempt that finished it.
    pub attempt: u32,
    /// When its run was first published: a later run of the id has another time. It is stored, and not answered.
    /// `None`: an older version stored the result.
    #[serde(default, skip_serializing)]
    pub origin: Option<Timestamp>,
}

impl StepCall {
    /// Reads the body of a signal, of `step-put` if it `has_result`.
    ///
    /// # Errors
    /// Names the field and what is wrong with it.
    pub fn read(body: &[u8], has_result: bool) -> Result<Self, String> {
        let call: Self = read(body).map_err(|error| error.message)?;
        match &call.result {
            None if has_result => return Err("result: is missing".to_owned()),
            Some(_) if !has_result => return Err("result: a question has none".to_owned()),
            _ => call.check()?,
        }
        Ok(call)
    }

    /// # Errors
    /// Names the field that is out of bounds.
    pub fn check(&self) -> Result<(), String> {
        check_step(&self.name).map_err(|error| format!("name: {}", error.reason))?;
        match &self.result {
            _ if self.n == 0 => Err("n: counts from 1".to_owned()),
            Some(result) if result.get().len() > RESULT_MAX => {
                Err(format!("result: has {} bytes, {RESULT_MAX} are kept", result.get().len()))
            }
            _ => Ok(()),
        }
    }
}

impl StepResult {
    /// The answer to a handler: the result of a step, `{}` if there is none.
    pub fn answer(found: Option<&Self>) -> Bytes {
        let none = || "{}".into();
        found.and_then(|found| serde_json::to_vec(found).ok()).map_or_else(none, Bytes::from)
    }

    /// Whether it is of the run that was first published then, or may be.
    fn is_of(&self, origin: Option<Timestamp>) -> bool {
        self.origin.is_none() || self.origin == origin
    }

    /// The step as the run's record lists it.
    pub fn listed(&self, name: SmolStr, n: u32) -> Step {
        Step { name, n, at: self.at, attempt: self.attempt }
    }
}

/// How a result was stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StepStored {
    /// It is there, by this call or by one of the same attempt with the same result.
    Stored,
    /// Another result is there.
    Taken,
}

impl Backbone {
    /// The result of a step of the run that was first published at `origin`; `None`: it was not finished.
    ///
    /// # Errors
    /// The bucket cannot be read, or not what stands there.
    pub async fn step(
        &self,
        tenant: &Tenant,
        run: &RunId,
        call: &StepCall,
        origin: Timestamp,
    ) -> Result<Option<StepResult>, Error> {
        let found = self.stored_step(tenant, run, call).await?;
        Ok(found.map(|(found, _)| found).filter(|found| found.is_of(Some(origin))))
    }

    /// What is stored of a step, of whichever run of that id, and its revision.
    async fn stored_step(
        &self,
        tenant: &Tenant,
        run: &RunId,
        call: &StepCall,
    ) -> Result<Option<(StepResult, u64)>, Error> {
        let found = self.entry("checkpoints", &entry_of(tenant, run, call)).await?;
        let read = |Raw { subject, payload, sequence, .. }: Raw| match serde_json::from_slice(&payload) {
            Ok(found) => Ok((found, sequence)),
            Err(error) => Err(Error::Read { subject, source: Box::new(error) }),
        };
        found.map(read).transpose()
    }

    /// Stores the result of a step, unless it has one. It goes over the connection for jobs to handlers: what a frozen
    /// node has left unsent there is not sent after its lease.
    ///
    /// # Errors
    /// The server did not answer in time, so that it may be stored; or it refused, for want of room, for example.
    pub async fn put_step(
        &self,
        tenant: &Tenant,
        run: &RunId,
        call: &StepCall,
        result: &StepResult,
    ) -> Result<StepStored, Error> {
        // The version of this form, first.
        let origin = result.origin.map(|origin| format!(r#""origin":"{origin}","#)).unwrap_or_default();
        let body = serde_json::to_vec(result).unwrap_or_default();
        let body = Bytes::from([br#"{"v":1,"#, origin.as_bytes(), &body[1..]].concat());
        let (subject, mut expected) = (self.names().key("checkpoints", &entry_of(tenant, run, call)), 0);
        loop {
            let headers = Over { expected, lasts: self.checkpoints_kept() }.headers();
            // Steps leave room for batches, which are in the same bucket. An earlier try may have stored this one.
            let has_room = if expected == 0 { self.0.checkpoints_space.count(&subject, &body) } else { Ok(()) };
            let published = match has_room {
                Ok(()) => request::publish(self.work(), subject.clone(), headers, body.clone()).await.map(drop),
                Err(full) => Err(full),
            };
            let Err(error) = published else { return Ok(StepStored::Stored) };
            match self.stored_step(tenant, run, call).await {
                Ok(Some((found, revision))) if !found.is_of(result.origin) && revision != expected => {
                    expected = revision;
                }
                Ok(Some((found, _))) if found.is_of(result.origin) => {
                    let is_same = found.attempt == result.attempt && found.result.get() == result.result.get();
                    return Ok(if is_same { StepStored::Stored } else { StepStored::Taken });
                }
                // A refusal alone says nothing: what is stored, or still being written, may be an earlier try of this
                // call.
                _ => return Err(error),
            }
        }
    }

    /// The finished steps of a run, as they are stored; a replica that lags behind may lack the last.
    ///
    /// # Errors
    /// The bucket cannot be read.
    pub async fn steps(&self, run: &Run) -> Result<Vec<Step>, Error> {
        let Run { tenant, run_id, origin, .. } = run;
        let prefix = self.names().key("checkpoints", &format!("{tenant}.{run_id}."));
        let step = |stored: Stored| {
            let (name, n) = stored.subject.strip_prefix(&prefix)?.rsplit_once('#')?;
            let found: StepResult = serde_json::from_slice(&stored.payload).ok()?;
            let found = Some(found).filter(|found| found.is_of(Some(*origin)))?;
            Some(found.listed(name.into(), n.parse().ok()?))
        };
        self.entries_by_pages("checkpoints", &format!("{tenant}.{run_id}.>"), step).await
    }

    /// How long a checkpoint is kept at most: as long as its run may be replayed, or shown.
    pub(crate) fn checkpoints_kept(&self) -> Duration {
        let storage = self.storage();
        storage.dlq_max_age.max(storage.failed_max_age)
    }
}

fn entry_of(tenant: &Tenant, run: &RunId, call: &StepCall) -> String {
    format!("{tenant}.{run}.{}#{}", call.name, call.n)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_named_and_counted() {
        let read = |text: &str| {
            let call = StepCall::read(text.as_bytes(), text.contains("result"));
            call.map(|call| call.result.map(|result| result.to_string()))
        };
        let missing = StepCall::read(br#"{"name":"charge","n":1}"#, true).unwrap_err();
        assert_eq!(missing, "result: is missing");
        assert!(StepCall::read(br#"{"name":"charge","n":1,"result":1}"#, false).is_err());
        assert_eq!(read(r#"{"name":"charge"}"#).unwrap_err(), "n: is missing");
        assert!(read(r#"{"name":"charge","n":"1"}"#).unwrap_err().starts_with("n: invalid type"));
        assert_eq!(read(r#"{"name":"_charge","n":1}"#), Ok(None));
        assert_eq!(read(r#"{"name":"charge","n":2,"result":null}"#), Ok(Some("null".to_owned())));
        assert_eq!(read(r#"{"name":"charge","n":0}"#).unwrap_err(), "n: counts from 1");
        for wrong in ["", "[]", r#"{"n":1}"#, r#"{"name":"a"}"#, r#"{"name":"a","n":1,"x":1}"#] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
        for name in ["", "a.b", "a b", "a*", "a>", "ä", &"a".repeat(65)] {
            let error = read(&format!(r#"{{"name":"{name}","n":1}}"#)).unwrap_err();
            assert!(error.starts_with("name: "), "{error}");
        }
        let long = "x".repeat(RESULT_MAX);
        let error = read(&format!(r#"{{"name":"a","n":1,"result":"{long}"}}"#)).unwrap_err();
        assert_eq!(error, "result: has 524290 bytes, 524288 are kept");
    }
}
