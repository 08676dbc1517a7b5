//! The audit: writes down what is asked of the API beyond reading and submitting, before it is done and after it was
//! answered.
//!
//! The entry `asked` is stored before anything is done, so an action that was carried out has one, whatever dies. It
//! never stands in an action's way: where it cannot be stored within [`ASKED_WITHIN`], the action goes on, and the entry
//! goes to the log instead, as a warning that counts. The second entry, `done` or `refused`, is written beside the
//! answer, which does not wait for it; a node's death may lose it, and then `asked` stands alone.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use longshore_backbone::service::Request;
use longshore_backbone::wire::api::{
    ApiError, AuditEntry, AuditList, BreakersList, DlqGet, DlqGroups, DlqList, Endpoint as _, Health, LimitsList,
    NodesList, OPERATOR, QueuesList, RunsCount, RunsGet, RunsList, RunsWait, SchedulesGet, SchedulesList, Submit,
    SubmitBatch,
};
use longshore_backbone::wire::json::Object;
use longshore_backbone::{Backbone, Headers};
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use tokio::sync::Semaphore;

use crate::AuditFile;
use crate::metrics::Metrics;
use crate::shared::now;

/// What is not in the audit: reading, and the submission of jobs, which the event log has. All else is, also what later
/// versions add.
const LEFT_OUT: [&str; 17] = [
    Submit::NAME,
    SubmitBatch::NAME,
    RunsGet::NAME,
    RunsWait::NAME,
    RunsList::NAME,
    RunsCount::NAME,
    DlqList::NAME,
    DlqGet::NAME,
    DlqGroups::NAME,
    SchedulesGet::NAME,
    SchedulesList::NAME,
    QueuesList::NAME,
    LimitsList::NAME,
    BreakersList::NAME,
    NodesList::NAME,
    Health::NAME,
    AuditList::NAME,
];

/// How long an action waits for its entry to be stored.
const ASKED_WITHIN: Duration = Duration::from_secs(2);
/// How often the second entry is tried, and how long each try may take.
const TRIES: u32 = 5;
const TRY_WITHIN: Duration = Duration::from_secs(5);
/// Second entries that are being written at once; a further one goes to the log.
const AT_ONCE: usize = 256;
/// Maximum bytes of a request in an entry.
const REQUEST_MAX: usize = 8 * 1024;

/// Writes the audit.
#[derive(Debug)]
pub(crate) struct Audit {
    backbone: Backbone,
    node: String,
    metrics: Arc<Metrics>,
    file: Option<Arc<dyn AuditFile>>,
    room: Arc<Semaphore>,
}

/// An action that was asked for, and is to be answered.
#[derive(Debug)]
pub(super) struct Action {
    entry: AuditEntry,
}

impl Audit {
    pub(crate) fn new(
        backbone: Backbone,
        node: String,
        metrics: Arc<Metrics>,
        file: Option<Arc<dyn AuditFile>>,
    ) -> Self {
        Self { backbone, node, metrics, file, room: Arc::new(Semaphore::new(AT_ONCE)) }
    }

    /// Writes down that an action was asked for; `None`: the endpoint is not audited.
    pub(super) async fn asked(&self, request: &Request) -> Option<Action> {
        if LEFT_OUT.contains(&request.endpoint.as_str()) {
            return None;
        }
        let entry = AuditEntry {
            v: 1,
            id: uuid::Uuid::now_v7().to_string(),
            stage: "asked".to_owned(),
            at: now(),
            endpoint: request.endpoint.clone(),
            tenant: request.tenant.clone(),
            node: self.node.clone(),
            by: request.by.clone(),
            from: request.from.clone(),
            request: shown(&request.body),
            outcome: None,
            error: None,
        };
        self.file(&entry).await;
        let stored = tokio::time::timeout(ASKED_WITHIN, self.store(&entry)).await;
        if !matches!(stored, Ok(true)) {
            self.lost(&entry);
        }
        Some(Action { entry })
    }

    /// Writes down how an action was answered, without the answer waiting for that.
    pub(super) fn answered(self: &Arc<Self>, action: Action, answer: &Result<Object, ApiError>) {
        let mut entry = AuditEntry { at: now(), request: None, ..action.entry };
        match answer {
            Ok(answer) => (entry.stage, entry.outcome) = ("done".to_owned(), counts(answer.as_bytes())),
            Err(error) => (entry.stage, entry.error) = ("refused".to_owned(), Some(error.clone())),
        }
        let Ok(room) = Arc::clone(&self.room).try_acquire_owned() else { return self.lost(&entry) };
        let audit = Arc::clone(self);
        tokio::spawn(async move {
            audit.keep(entry).await;
            drop(room);
        });
    }

    /// Stores an entry that nobody waits for.
    async fn keep(&self, entry: AuditEntry) {
        self.file(&entry).await;
        for _ in 0..TRIES {
            if matches!(tokio::time::timeout(TRY_WITHIN, self.store(&entry)).await, Ok(true)) {
                return;
            }
        }
        self.lost(&entry);
    }

    /// Writes down what the node has done by itself: one entry, `done`.
    pub(crate) async fn done_by_itself(&self, action: &str, what: &Value) {
        let entry = AuditEntry {
            v: 1,
            id: uuid::Uuid::now_v7().to_string(),
            stage: "done".to_owned(),
            at: now(),
            endpoint: action.to_owned(),
            tenant: OPERATOR.to_owned(),
            node: self.node.clone(),
            by: Some(format!("node {}", self.node)),
            from: String::new(),
            request: None,
            outcome: RawValue::from_string(what.to_string()).ok(),
            error: None,
        };
        self.keep(entry).await;
    }

    /// Whether the entry is stored. Its id makes a repeat harmless.
    async fn store(&self, entry: &AuditEntry) -> bool {
        let mut headers = Headers::new();
        headers.insert("Nats-Msg-Id", format!("{} {}", entry.id, entry.stage));
        let subject = self.backbone.names().audit(&entry.tenant);
        match self.backbone.publish(subject, headers, Bytes::from(line(entry))).await {
            Ok(_) => {
                self.metrics.audit_records.inc();
                true
            }
            Err(error) => {
                tracing::debug!("an entry of the audit was not stored: {}", error.with_causes());
                tokio::time::sleep(Duration::from_millis(100)).await;
                false
            }
        }
    }

    /// Appends the entry to the files, if there are any.
    async fn file(&self, entry: &AuditEntry) {
        let Some(file) = self.file.clone() else { return };
        let text = line(entry);
        let written = tokio::task::spawn_blocking(move || file.append(&text)).await;
        if let Ok(Err(why)) = written {
            self.metrics.audit_failures.with_label_values(&["file"]).inc();
            tracing::error!("the audit cannot be written to its file: {why}");
        }
    }

    /// The entry is not stored: it stands in the log.
    fn lost(&self, entry: &AuditEntry) {
        self.metrics.audit_failures.with_label_values(&["stream"]).inc();
        tracing::error!(entry = line(entry), "an entry of the audit could not be stored; it is here");
    }
}

fn line(entry: &AuditEntry) -> String {
    serde_json::to_string(entry).unwrap_or_default()
}

/// A request without what may be secret: payloads, headers.
fn shown(body: &[u8]) -> Option<Box<RawValue>> {
    let mut asked: Value = serde_json::from_slice(body).ok()?;
    take_out(&mut asked);
    let text = serde_json::to_string(&asked).ok()?;
    let text = if text.len() > REQUEST_MAX { format!(r#"{{"bytes":{}}}"#, text.len()) } else { text };
    RawValue::from_string(text).ok()
}

fn take_out(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                match name.as_str() {
                    "payload" | "payload_base64" | "headers" => *value = Value::from("left out"),
                    _ if may_be_secret(name) => *value = Value::from("left out"),
                    _ => take_out(value),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(take_out),
        _ => {}
    }
}

/// Whether a field that the API does not know, and refuses, has the name of a secret.
fn may_be_secret(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    ["password", "passwd", "secret", "token", "credential", "authorization"].iter().any(|word| name.contains(word))
}

/// The counts in an answer, and the run or state that it is about.
fn counts(answer: &[u8]) -> Option<Box<RawValue>> {
    let answer: Map<String, Value> = serde_json::from_slice(answer).ok()?;
    let is_told = |name: &str, value: &Value| match value {
        Value::Number(_) | Value::Bool(_) => true,
        Value::String(text) => ["run_id", "state", "id", "level"].contains(&name) && text.len() <= 256,
        _ => false,
    };
    let mut told: Map<String, Value> = Map::new();
    for (name, value) in answer {
        if is_told(&name, &value) {
            told.insert(name, value);
        } else if let (true, Some(failed)) = (name == "failed", value.as_array()) {
            told.insert(name, failed.len().into());
        }
    }
    RawValue::from_string(serde_json::to_string(&told).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_be_secret_is_left_out() {
        let asked = br#"{"id":"a","payload":{"card":"s3cret"},"set":{"headers":{"X":"s3cret"},"priority":3},"list":[{"payload_base64":"s3cret"}]}"#;
        let shown = shown(asked).unwrap();
        assert!(!shown.get().contains("s3cret") && shown.get().contains(r#""priority":3"#), "{shown}");
        let unknown = super::shown(br#"{"apiToken":"s3cret","list":[{"db_password":["s3cret"]}]}"#).unwrap();
        assert!(!unknown.get().contains("s3cret"), "{unknown}");
        let long = format!(r#"{{"note":"{}"}}"#, "x".repeat(REQUEST_MAX));
        assert!(super::shown(long.as_bytes()).unwrap().get().starts_with(r#"{"bytes":"#));
    }

    #[test]
    fn of_an_answer_its_counts_are_told() {
        let told = counts(br#"{"replayed":3,"failed":[{"run_id":"a"}],"more":false,"result":"s3cret","state":"dead"}"#);
        let told: Value = serde_json::from_str(told.unwrap().get()).unwrap();
        assert_eq!(told, serde_json::json!({"replayed": 3, "failed": 1, "more": false, "state": "dead"}));
    }
}
