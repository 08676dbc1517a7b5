//! The audit: writes down what is asked of the API beyond reading and submitting, before it is done and after it was
//! answered.
//!
//! The entry `asked` is stored before anything is done, so an action that was carried out has one, whatever dies. It
//! never stands in an action's way: where it cannot be stored within [`ASKED_WITHIN`], the action goes on, and the
//! entry goes to the log instead, as a warning that counts. The second entry, `done` or `refused`, is written beside
//! the answer, which does not wait for it; a node's death may lose it, and then `asked` stands alone.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use longshore_backbone::Backbone;
use longshore_backbone::service::Request;
use longshore_backbone::wire::api::{ApiError, AuditEntry, Code, Declaration, Effect, Endpoint, OPERATOR, id_of_key};
use longshore_backbone::wire::header;
use longshore_backbone::wire::json::Object;
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use tokio::sync::Semaphore;

use crate::metrics::Metrics;
use crate::runtime::now;
use crate::settings::AuditFile;

/// How long an action waits for its entry to be stored.
const ASKED_WITHIN: Duration = Duration::from_secs(2);
/// How often the second entry is tried, and how long each try may take.
const TRIES: u32 = 5;
const TRY_WITHIN: Duration = Duration::from_secs(5);
/// Second entries that are being written at once; a further one goes to the log.
const AT_ONCE: usize = 256;
/// Maximum bytes of a request in an entry.
const REQUEST_MAX: usize = 8 * 1024;

#[derive(Debug)]
pub(crate) struct Audit {
    backbone: Backbone,
    node: String,
    metrics: Arc<Metrics>,
    file: Option<Arc<dyn AuditFile>>,
    room: Arc<Semaphore>,
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

    /// Whether requests of this endpoint are written down: reading is not, nor is the submission of jobs, which the
    /// event log has. A name that no endpoint has is.
    pub(crate) fn has(endpoint: &str) -> bool {
        Declaration::named(endpoint).is_none_or(|endpoint| endpoint.effect == Effect::Changes)
    }

    /// Writes down that an action was asked for, and returns the entry; `shown`: what of its request may be seen.
    pub(crate) async fn asked(&self, request: &Request, shown: Option<Box<RawValue>>) -> AuditEntry {
        let entry = AuditEntry {
            stage: "asked".to_owned(),
            endpoint: request.endpoint.clone(),
            tenant: request.tenant.clone(),
            by: request.by.clone(),
            reason: request.reason.clone(),
            from: request.from.clone(),
            request: shown,
            ..self.entry()
        };
        self.file(&entry).await;
        let stored = tokio::time::timeout(ASKED_WITHIN, self.store(&entry)).await;
        if !matches!(stored, Ok(true)) {
            self.lost(&entry);
        }
        entry
    }

    /// Writes down how an action was answered, without the answer waiting for that.
    pub(crate) fn answered(self: &Arc<Self>, asked: AuditEntry, answer: &Result<Object, ApiError>) {
        let mut entry = AuditEntry { at: now(), request: None, ..asked };
        match answer {
            Ok(answer) => (entry.stage, entry.outcome) = ("done".to_owned(), counts(answer.as_bytes())),
            Err(error) => (entry.stage, entry.error) = ("refused".to_owned(), Some(without_values(error))),
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
            stage: "done".to_owned(),
            endpoint: action.to_owned(),
            tenant: OPERATOR.to_owned(),
            by: Some(format!("node {}", self.node)),
            outcome: RawValue::from_string(what.to_string()).ok(),
            ..self.entry()
        };
        self.keep(entry).await;
    }

    /// An entry of now, for an action that has none yet.
    fn entry(&self) -> AuditEntry {
        let id = uuid::Uuid::now_v7().to_string();
        AuditEntry { v: 1, id, at: now(), node: self.node.clone(), ..AuditEntry::default() }
    }

    /// Whether the entry is stored. Its id makes a repeat harmless.
    async fn store(&self, entry: &AuditEntry) -> bool {
        let headers = header::single(header::names::MSG_ID, &format!("{} {}", entry.id, entry.stage));
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

/// A request of this endpoint without what may be secret: payloads, headers and secrets of webhooks, and, if the
/// endpoint cannot read it, every value but the names of what it is about. A misspelt field may hold a payload.
pub(crate) fn shown<E: Endpoint>(body: &[u8]) -> Option<Box<RawValue>> {
    let mut asked: Value = serde_json::from_slice(body).ok()?;
    match (&mut asked, E::read(body)) {
        (Value::Object(fields), Err(_)) => fields.iter_mut().for_each(|(name, value)| {
            let is_shown = value.as_str().is_some_and(|text| id_of_key(text).is_none());
            if !(is_shown && ABOUT.contains(&name.as_str())) {
                *value = Value::from("left out");
            }
        }),
        (asked, _) => take_out(asked),
    }
    let text = serde_json::to_string(&asked).ok()?;
    let text = if text.len() > REQUEST_MAX { format!(r#"{{"bytes":{}}}"#, text.len()) } else { text };
    RawValue::from_string(text).ok()
}

/// The fields that name what a request is about.
const ABOUT: [&str; 5] = ["id", "queue", "run_id", "tenant", "type"];

fn take_out(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                match name.as_str() {
                    "payload" | "payload_base64" | "headers" | "secret" => *value = Value::from("left out"),
                    _ => take_out(value),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(take_out),
        // Who revokes a key may write its text in place of its id.
        Value::String(text) if id_of_key(text).is_some() => *value = Value::from("left out"),
        // A request is an object, or nothing.
        _ => {}
    }
}

/// The error of a request without the values that it quotes: what it says of a header or a payload may hold them.
fn without_values(error: &ApiError) -> ApiError {
    let mut error = error.clone();
    if error.code != Code::Malformed.number() {
        return error;
    }
    // From the first mark to the last: a value may hold quotation marks of its own.
    let quoted = error.message.find('"').zip(error.message.rfind('"').map(|last| last + 1));
    let found = |word: &str| error.message.find(word).map(|at| at + word.len());
    let read = ["invalid type: ", "invalid value: "].into_iter().find_map(found);
    let read = read.zip(error.message.rfind(", expected"));
    if let Some((from, to)) = read.or(quoted).filter(|(from, to)| from < to) {
        error.message.replace_range(from..to, "…");
    }
    error
}

/// The fields of answers that hold what users and their handlers wrote: a number may be one of a card.
const USERS_OWN: [&str; 3] = ["payload", "progress", "result"];

/// The counts in an answer, and the run or state that it is about.
fn counts(answer: &[u8]) -> Option<Box<RawValue>> {
    let answer: Map<String, Value> = serde_json::from_slice(answer).ok()?;
    let is_shown = |name: &str, value: &Value| match value {
        _ if USERS_OWN.contains(&name) => false,
        Value::Number(_) | Value::Bool(_) => true,
        Value::String(text) => ["run_id", "state", "id", "level"].contains(&name) && text.len() <= 256,
        _ => false,
    };
    let mut counts: Map<String, Value> = Map::new();
    for (name, value) in answer {
        if is_shown(&name, &value) {
            counts.insert(name, value);
        } else if let (true, Some(failed)) = (name == "failed", value.as_array()) {
            counts.insert(name, failed.len().into());
        }
    }
    RawValue::from_string(serde_json::to_string(&counts).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use longshore_backbone::wire::api::{DlqReplay, WebhooksPut};

    use super::*;

    /// What the audit has of a request to replay dead letters.
    fn shown(asked: &str) -> String {
        super::shown::<DlqReplay>(asked.as_bytes()).unwrap().get().to_owned()
    }

    #[test]
    fn payloads_and_headers_are_left_out_of_a_request() {
        let asked = r#"{"run_id":"a","set":{"payload":{"card":"s3cret"},"headers":{"X":"s3cret"},"priority":3}}"#;
        let left = r#"{"run_id":"a","set":{"headers":"left out","payload":"left out","priority":3}}"#;
        assert_eq!(shown(asked), left);
        let asked = r#"{"id":"a","url":"https://a.example/","secret":"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"}"#;
        let webhook = super::shown::<WebhooksPut>(asked.as_bytes()).unwrap();
        assert_eq!(webhook.get(), r#"{"id":"a","secret":"left out","url":"https://a.example/"}"#);
        let long = format!(r#"{{"all":true,"type":"{}"}}"#, "x".repeat(REQUEST_MAX));
        assert!(shown(&long).starts_with(r#"{"bytes":"#));
    }

    /// A field that is misspelt, or has a value of another kind, may hold what was meant for the payload.
    #[test]
    fn of_a_request_that_cannot_be_read_only_what_it_is_about_is_shown() {
        for wrong in [
            r#""paylod":{"card":"s3cret"}"#,
            r#""set":{"paylod":{"card":"s3cret"}}"#,
            r#""set":{"header":{"X":"s3cret"}}"#,
            r#""set":{"queue":{"a":"s3cret"}}"#,
            r#""set":{"priority":"s3cret"}"#,
            r#""set":"s3cret""#,
            r#""queue":["s3cret"]"#,
        ] {
            let shown = shown(&format!(r#"{{"run_id":"a","type":"mail",{wrong}}}"#));
            assert!(!shown.contains("s3cret") && shown.contains(r#""run_id":"a""#), "{wrong}: {shown}");
            assert!(shown.contains(r#""type":"mail""#) && shown.contains("left out"), "{wrong}: {shown}");
        }
    }

    #[test]
    fn an_error_in_the_audit_quotes_no_value() {
        for (said, kept) in [
            (r#"set.headers: header X: "s3\"cret" is not a duration"#, "set.headers: header X: … is not a duration"),
            (r#"set: invalid type: string "s3cret", expected an object"#, "set: invalid type: …, expected an object"),
            (
                "set.headers.X: invalid type: integer `7`, expected a string",
                "set.headers.X: invalid type: …, expected a string",
            ),
            ("paylod: unknown field `paylod`", "paylod: unknown field `paylod`"),
        ] {
            assert_eq!(without_values(&ApiError::malformed(said)).message, kept);
        }
        let not_there = ApiError::not_found(r#"no endpoint "runs.cancle""#);
        assert_eq!(without_values(&not_there), not_there);
    }

    #[test]
    fn of_an_answer_its_counts_are_kept() {
        let shown =
            counts(br#"{"replayed":3,"failed":[{"run_id":"a"}],"more":false,"result":"s3cret","state":"dead"}"#);
        let shown: Value = serde_json::from_str(shown.unwrap().get()).unwrap();
        assert_eq!(shown, serde_json::json!({"replayed": 3, "failed": 1, "more": false, "state": "dead"}));
        let schedule = counts(br#"{"id":"s","paused":false,"payload":4111111111111111,"result":7,"progress":40}"#);
        assert_eq!(schedule.unwrap().get(), r#"{"id":"s","paused":false}"#);
    }
}
