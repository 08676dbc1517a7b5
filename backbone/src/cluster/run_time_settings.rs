//! Run-time settings in the control bucket: read, written by compare-and-set, and announced to all nodes.
//!
//! A node reads them from the bucket's leader, each change once: a setting that is removed leaves a message that says
//! so, for good. An announcement only says that there is something to read, and from which revision on; a node that
//! misses it reads a moment later all the same.

use std::time::Duration;

use bytes::Bytes;
use longshore_domain::fault::FaultKind;
use longshore_domain::limit::Scope;
use longshore_domain::setting::{PauseOf, Setting, SettingKey};
use longshore_domain::{JobType, Queue, Tenant, Timestamp};

use crate::cluster::nodes::Nodes;
use crate::cluster::questions::Questions;
use crate::error::Error;
use crate::messages::get;
use crate::messages::raw::Raw;
use crate::messages::request::{self, conditions, json, removal, won};

/// A change of a setting.
#[derive(Debug, Clone, PartialEq)]
pub struct SettingChange {
    /// Which setting; `None`: one that this version does not know.
    pub key: Option<SettingKey>,
    /// Its value; `None`: it was removed, or cannot be read.
    pub setting: Option<Setting>,
    /// Its revision: a compare-and-set must name it.
    pub revision: u64,
    /// When it was stored.
    pub at: Timestamp,
}

pub use crate::messages::request::Written as WrittenSetting;

way! {
    /// A node's way to the run-time settings.
    RunTimeSettings, run_time_settings
}

impl RunTimeSettings {
    /// Every change after a revision, as the bucket's leader has it, in order; after 0 every setting there is. They are
    /// read one by one, and the answer about each may take so long.
    ///
    /// # Errors
    /// The control bucket cannot be read.
    pub async fn changed_after(&self, revision: u64, within: Duration) -> Result<Vec<SettingChange>, Error> {
        let (stream, subject) = (self.0.names().bucket_stream("control"), self.0.names().key("control", "settings.>"));
        let stored = get::all_within(self.0.control(), &stream, &subject, revision + 1, within).await?;
        // What nodes did not write changes nothing; what was set stays as far as they know it.
        let changes = stored.iter().map(|raw| (raw, self.read_change(raw)));
        let changes = changes.filter(|(raw, change)| change.setting.is_some() || raw.payload.is_empty());
        Ok(changes.map(|(_, change)| change).collect())
    }

    /// A setting as the bucket's leader has it; `None`: it was never set.
    ///
    /// # Errors
    /// The control bucket cannot be read.
    pub async fn read(&self, key: &SettingKey) -> Result<Option<SettingChange>, Error> {
        let raw = self.0.entry("control", &format!("settings.{}", text_of(key))).await?;
        Ok(raw.map(|raw| self.read_change(&raw)))
    }

    /// Sets a setting, or removes it, if its revision is still `expected` (0: nothing is stored).
    ///
    /// # Errors
    /// The server did not answer in time, so that it may have been written; or it refused for another reason.
    pub async fn write(
        &self,
        key: &SettingKey,
        setting: Option<&Setting>,
        expected: u64,
    ) -> Result<WrittenSetting, Error> {
        let (headers, body) = match setting {
            Some(setting) => (conditions(Some(expected), None), json(setting)),
            None => (removal(Some(expected), None), Bytes::new()),
        };
        let subject = self.0.names().key("control", &format!("settings.{}", text_of(key)));
        Ok(won(request::publish(self.0.control(), subject, headers, body).await)?.into())
    }

    /// Listens for announcements; returns once the server knows of that. Each has a revision in its payload
    /// ([`read_revision`]).
    ///
    /// # Errors
    /// The subject cannot be subscribed to.
    pub async fn announcements(&self) -> Result<Questions, Error> {
        let nodes = self.0.nodes();
        let questions = nodes.listen(announced(&nodes)).await?;
        self.0.is_listening().await;
        Ok(questions)
    }

    /// Announces that there is something to read up to a revision, and waits until each of `nodes` has answered that it
    /// has read it, at most for `within`. Returns the nodes that have not.
    ///
    /// # Errors
    /// The answers cannot be subscribed to.
    pub async fn announce(&self, revision: u64, nodes: Vec<String>, within: Duration) -> Result<Vec<String>, Error> {
        let to = self.0.nodes();
        to.ask_each(announced(&to), Bytes::from(revision.to_string()), nodes, within).await
    }

    fn read_change(&self, raw: &Raw) -> SettingChange {
        let prefix = self.0.names().key("control", "settings.");
        SettingChange {
            key: raw.subject.strip_prefix(&prefix).and_then(read_key),
            setting: self.0.readable(&raw.subject, &raw.payload),
            revision: raw.sequence,
            at: raw.at,
        }
    }
}

/// The revision that an announcement names.
pub fn read_revision(payload: &[u8]) -> Option<u64> {
    std::str::from_utf8(payload).ok()?.parse().ok()
}

fn announced(nodes: &Nodes) -> String {
    nodes.names().node("_sys.settings")
}

/// The key in the bucket, after `settings.`.
fn text_of(key: &SettingKey) -> String {
    match key {
        SettingKey::Pause(PauseOf::Queue(queue)) => format!("pause.queue.{queue}"),
        SettingKey::Pause(PauseOf::Type(job_type)) => format!("pause.type.{job_type}"),
        SettingKey::Pause(PauseOf::TypeInQueue(job_type, queue)) => format!("pause.type_in_queue.{queue}.{job_type}"),
        SettingKey::Limit(scope) => format!("limit.{scope}"),
        SettingKey::Queue(queue) => format!("queue.put.{queue}"),
        SettingKey::Fault(job_type, kind) => format!("fault.{}.{job_type}", kind.as_str()),
    }
}

fn read_key(text: &str) -> Option<SettingKey> {
    let (kind, rest) = text.split_once('.')?;
    let (of, name) = rest.split_once('.')?;
    let pause = |of| Some(SettingKey::Pause(of));
    match (kind, of) {
        ("pause", "queue") => pause(PauseOf::Queue(Queue::parse(name).ok()?)),
        ("pause", "type") => pause(PauseOf::Type(JobType::parse(name).ok()?)),
        ("pause", "type_in_queue") => {
            let (queue, job_type) = name.split_once('.')?;
            pause(PauseOf::TypeInQueue(JobType::parse(job_type).ok()?, Queue::parse(queue).ok()?))
        }
        ("limit", "type") => JobType::parse(name).ok().map(|job_type| SettingKey::Limit(Scope::Type(job_type))),
        ("limit", "name") => Some(SettingKey::Limit(Scope::Named(name.into()))),
        ("limit", "tenant") => Tenant::parse(name).ok().map(|tenant| SettingKey::Limit(Scope::Tenant(tenant))),
        ("fault", kind) => Some(SettingKey::Fault(JobType::parse(name).ok()?, FaultKind::parse(kind)?)),
        ("queue", "put") => Queue::parse(name).ok().map(SettingKey::Queue),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_read_as_it_was_written() {
        let (queue, job_type) = (Queue::parse("bulk").unwrap(), JobType::parse("report.render").unwrap());
        for (of, text) in [
            (PauseOf::Queue(queue.clone()), "pause.queue.bulk"),
            (PauseOf::Type(job_type.clone()), "pause.type.report.render"),
            (PauseOf::TypeInQueue(job_type, queue), "pause.type_in_queue.bulk.report.render"),
        ] {
            let key = SettingKey::Pause(of);
            assert_eq!(text_of(&key), text);
            assert_eq!(read_key(text), Some(key));
        }
        for scope in [
            Scope::Type(JobType::parse("report.render").unwrap()),
            Scope::Named("crm".into()),
            Scope::Tenant(Tenant::parse("acme").unwrap()),
        ] {
            let key = SettingKey::Limit(scope);
            assert_eq!(read_key(&text_of(&key)), Some(key));
        }
        let key = SettingKey::Queue(Queue::parse("bulk").unwrap());
        assert_eq!(text_of(&key), "queue.put.bulk");
        assert_eq!(read_key("queue.put.bulk"), Some(key));
        let key = SettingKey::Fault(JobType::parse("report.render").unwrap(), FaultKind::Storm);
        assert_eq!((text_of(&key).as_str(), read_key(&text_of(&key))), ("fault.storm.report.render", Some(key)));
        assert_eq!(
            [read_key("newer.queue.bulk"), read_key("pause.queue"), read_key("pause.queue.a.b")],
            [None, None, None]
        );
    }
}
