//! What a NATS micro service (ADR-32) says of itself: answers to `$SRV.PING`, `INFO` and `STATS`.
//!
//! It reads and sends nothing: who has a service subscribes to [`subjects`] and answers with [`Service::describe`].

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use longshore_domain::Timestamp;
use serde_json::{Value, json};

use crate::wire::subject::Names;

/// The queue group of every instance, as the micro protocol has it by default.
pub(crate) const GROUP: &str = "q";

#[derive(Debug)]
pub(crate) struct Service {
    pub(crate) name: &'static str,
    description: &'static str,
    pub(crate) id: String,
    version: String,
    started: Timestamp,
    metadata: BTreeMap<&'static str, String>,
}

/// One of its endpoints, with what it has done so far.
#[derive(Debug)]
pub(crate) struct Endpoint {
    pub(crate) name: String,
    pub(crate) subject: String,
    pub(crate) metadata: BTreeMap<&'static str, String>,
    requests: AtomicU64,
    errors: AtomicU64,
    nanos: AtomicU64,
}

pub(crate) fn subjects(name: &str, id: &str) -> Vec<String> {
    let of = |verb| [format!("$SRV.{verb}"), format!("$SRV.{verb}.{name}"), format!("$SRV.{verb}.{name}.{id}")];
    ["PING", "INFO", "STATS"].into_iter().flat_map(of).collect()
}

/// The verb of such a subject; `None`: it is another subject.
pub(crate) fn verb(subject: &str) -> Option<&str> {
    subject.strip_prefix("$SRV.")?.split('.').next()
}

impl Endpoint {
    pub(crate) fn new(name: &str, subject: String, metadata: BTreeMap<&'static str, String>) -> Self {
        let (requests, errors, nanos) = Default::default();
        Self { name: name.to_owned(), subject, metadata, requests, errors, nanos }
    }

    pub(crate) fn count(&self, took: Duration, failed: bool) {
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.nanos.fetch_add(u64::try_from(took.as_nanos()).unwrap_or(0), Ordering::Relaxed);
        self.errors.fetch_add(u64::from(failed), Ordering::Relaxed);
    }

    fn describe(&self, verb: &str) -> Value {
        // By the micro protocol a name has no dots.
        let name = self.name.replace('.', "-");
        let mut value = json!({"name": name, "subject": self.subject, "queue_group": GROUP});
        if !self.metadata.is_empty() {
            value["metadata"] = json!(self.metadata);
        }
        if verb == "STATS" {
            let requests = self.requests.load(Ordering::Relaxed);
            let nanos = self.nanos.load(Ordering::Relaxed);
            value["num_requests"] = json!(requests);
            value["num_errors"] = json!(self.errors.load(Ordering::Relaxed));
            value["processing_time"] = json!(nanos);
            value["average_processing_time"] = json!(nanos.checked_div(requests).unwrap_or(0));
            value["last_error"] = json!("");
        }
        value
    }
}

impl Service {
    pub(crate) fn new(
        names: &Names,
        name: &'static str,
        description: &'static str,
        version: &str,
        started: Timestamp,
    ) -> Self {
        let metadata = BTreeMap::from([("namespace", names.namespace().to_owned())]);
        let id = uuid::Uuid::now_v7().simple().to_string();
        Self { name, description, id, version: version.to_owned(), started, metadata }
    }

    pub(crate) fn describe<'a>(&self, verb: &str, endpoints: impl Iterator<Item = &'a Endpoint>) -> Value {
        let mut answer = json!({
            "type": format!("io.nats.micro.v1.{}_response", verb.to_ascii_lowercase()),
            "name": self.name,
            "id": self.id,
            "version": self.version,
            "metadata": self.metadata,
        });
        if verb != "PING" {
            answer["endpoints"] = endpoints.map(|endpoint| endpoint.describe(verb)).collect();
        }
        match verb {
            "INFO" => answer["description"] = json!(self.description),
            "STATS" => answer["started"] = json!(self.started.to_string()),
            _ => {}
        }
        answer
    }
}
