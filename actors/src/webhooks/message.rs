//! What is sent to a webhook: its body, and the signature of Standard Webhooks 1.0 (HMAC-SHA256 over
//! `<id>.<timestamp>.<body>`, <https://github.com/standard-webhooks/standard-webhooks>).

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit as _, Mac as _};
use longshore_backbone::webhooks::StoredWebhook;
use longshore_backbone::wire::api::{WebhookFormat, Word};
use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};
use sha2::Sha256;

/// Maximum bytes of a body: what handlers have said goes where it would be more.
const BODY_MAX: usize = 20 << 10;
/// The fields that go then.
const LARGE: [&str; 5] = ["result", "progress", "line", "error", "tags"];

/// The payload of a job of type `longshore.webhook`.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct DeliveryPayload {
    pub(super) webhook: String,
    /// Its place in the event log: of two events of a run the later one has the higher number.
    pub(super) sequence: u64,
    pub(super) event: Box<RawValue>,
    /// That a node made this of an event: HMAC-SHA256 by the webhook's own key, in Base64. Else a client could have its
    /// tenant's secret sign what it likes, with a job of its own.
    #[serde(default)]
    proof: String,
}

impl DeliveryPayload {
    pub(super) fn new(stored: &StoredWebhook, sequence: u64, event: Box<RawValue>) -> Self {
        let mut payload = Self { webhook: stored.webhook.id.to_string(), sequence, event, proof: String::new() };
        payload.proof =
            payload.mac(stored).map_or_else(String::new, |mac| STANDARD.encode(mac.finalize().into_bytes()));
        payload
    }

    /// Whether a node made it.
    pub(super) fn is_proven(&self, stored: &StoredWebhook) -> bool {
        let proof = STANDARD.decode(&self.proof).unwrap_or_default();
        self.mac(stored).is_some_and(|mac| mac.verify_slice(&proof).is_ok())
    }

    fn mac(&self, stored: &StoredWebhook) -> Option<Hmac<Sha256>> {
        let mut mac = Hmac::<Sha256>::new_from_slice(&stored.feed_key.key().ok()?).ok()?;
        mac.update(format!("{}.{}.{}", self.webhook, self.sequence, self.event.get()).as_bytes());
        Some(mac)
    }
}

/// A body, and the headers that say its kind and id.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct WebhookMessage {
    pub(super) id: String,
    pub(super) content_type: &'static str,
    pub(super) body: String,
}

/// The fields of an event, each as it was written: what handlers sent need not fit into a parsed value.
type Event = BTreeMap<String, Box<RawValue>>;

/// As Standard Webhooks recommends.
#[derive(Serialize)]
struct Standard<'e> {
    data: &'e Event,
    timestamp: &'e str,
    #[serde(rename = "type")]
    kind: &'e str,
}

/// A CloudEvent 1.0.
#[derive(Serialize)]
struct CloudEvent<'e> {
    data: &'e Event,
    datacontenttype: &'e str,
    id: &'e str,
    source: String,
    specversion: &'e str,
    subject: Option<String>,
    time: &'e str,
    #[serde(rename = "type")]
    kind: String,
}

impl WebhookMessage {
    /// The message of an event. `None`: it is no event.
    pub(super) fn of(payload: &DeliveryPayload, format: &Word<WebhookFormat>) -> Option<Self> {
        let mut event: Event = serde_json::from_str(payload.event.get()).ok()?;
        event.insert("sequence".to_owned(), to_raw_value(&payload.sequence).ok()?);
        let message = Self::written(&event, format)?;
        if message.body.len() <= BODY_MAX {
            return Some(message);
        }
        LARGE.iter().for_each(|field| drop(event.remove(*field)));
        event.insert("truncated".to_owned(), to_raw_value(&true).ok()?);
        Self::written(&event, format)
    }

    fn written(event: &Event, format: &Word<WebhookFormat>) -> Option<Self> {
        let text = |name: &str| serde_json::from_str::<String>(event.get(name)?.get()).ok();
        let (id, name, at) = (text("id")?, text("event")?, text("at")?);
        let kind = if name == TEST { name } else { format!("job.{name}") };
        let (content_type, body) = match format {
            Word::Known(WebhookFormat::CloudEvents) => {
                let cloud_event = CloudEvent {
                    data: event,
                    datacontenttype: "application/json",
                    id: &id,
                    source: format!("/longshore/{}", text("tenant")?),
                    specversion: "1.0",
                    subject: text("run_id"),
                    time: &at,
                    kind: format!("longshore.{kind}"),
                };
                ("application/cloudevents+json", serde_json::to_string(&cloud_event))
            }
            _ => ("application/json", serde_json::to_string(&Standard { data: event, timestamp: &at, kind: &kind })),
        };
        Some(Self { id, content_type, body: body.ok()? })
    }

    /// The signature by these keys, at this second.
    pub(super) fn signed(&self, keys: &[Vec<u8>], timestamp: i64) -> String {
        let sign = |key: &Vec<u8>| {
            // HMAC takes keys of any length.
            let mut mac = Hmac::<Sha256>::new_from_slice(key).ok()?;
            mac.update(format!("{}.{timestamp}.{}", self.id, self.body).as_bytes());
            Some(format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes())))
        };
        keys.iter().filter_map(sign).collect::<Vec<_>>().join(" ")
    }
}

/// The event of a delivery that only tries a webhook.
pub(super) const TEST: &str = "webhook.test";

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn payload(result: &str) -> DeliveryPayload {
        with_result(&format!("\"{result}\""))
    }

    fn with_result(result: &str) -> DeliveryPayload {
        let event = format!(
            r#"{{"id":"t/r/1/1/completed","event":"completed","tenant":"t","run_id":"r","at":"2026-01-01T00:00:00.000Z","result":{result}}}"#
        );
        let event = RawValue::from_string(event).unwrap();
        DeliveryPayload { webhook: "w".to_owned(), sequence: 7, event, proof: String::new() }
    }

    #[test]
    fn a_message_is_signed_as_the_standard_has_it() {
        // The example of the standard's own libraries.
        let message = WebhookMessage {
            id: "msg_p5jXN8AQM9LWM0D4loKWxJek".to_owned(),
            content_type: "application/json",
            body: r#"{"test": 2432232314}"#.to_owned(),
        };
        let key = STANDARD.decode("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
        let signature = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=";
        assert_eq!(message.signed(std::slice::from_ref(&key), 1_614_265_330), signature);
        assert_eq!(message.signed(&[key, vec![1; 32]], 1_614_265_330).split(' ').count(), 2);
    }

    #[test]
    fn what_a_handler_said_is_delivered_as_it_was_sent() {
        let deep = format!("{}{}", "[".repeat(2_000), "]".repeat(2_000));
        let strange = ["1e999", "1234567890123456789012345678901234567890", "0.10", r#"{"b":-0.0,"a":1E2}"#];
        for result in strange.into_iter().chain([r#""\ud800""#, &deep]) {
            for format in [WebhookFormat::Standard, WebhookFormat::CloudEvents] {
                let message = WebhookMessage::of(&with_result(result), &format.into()).unwrap();
                assert!(message.body.contains(&format!(r#""result":{result},"run_id""#)), "{}", message.body);
            }
        }
    }

    #[test]
    fn a_message_has_the_event_and_leaves_out_what_is_too_large() {
        let message = WebhookMessage::of(&payload("fine"), &WebhookFormat::Standard.into()).unwrap();
        let body: Value = serde_json::from_str(&message.body).unwrap();
        assert_eq!((&*message.id, &body["type"]), ("t/r/1/1/completed", &json!("job.completed")));
        assert_eq!((&body["data"]["result"], &body["data"]["sequence"]), (&json!("fine"), &json!(7)));
        let long = WebhookMessage::of(&payload(&"x".repeat(30_000)), &WebhookFormat::CloudEvents.into()).unwrap();
        let body: Value = serde_json::from_str(&long.body).unwrap();
        assert_eq!((&body["data"]["truncated"], &body["data"]["result"]), (&json!(true), &Value::Null));
        assert_eq!((&body["type"], &body["source"]), (&json!("longshore.job.completed"), &json!("/longshore/t")));
        assert!(long.body.len() <= BODY_MAX);
        let no_event = RawValue::from_string("[]".to_owned()).unwrap();
        assert_eq!(
            WebhookMessage::of(&DeliveryPayload { event: no_event, ..payload("") }, &WebhookFormat::Standard.into()),
            None
        );
    }
}
