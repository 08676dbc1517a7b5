//! Events about the cluster itself, such as `node_joined`.

use bytes::Bytes;
use longshore_domain::Queue;

use crate::shared::{Shared, now};

/// Publishes a system event, such as `node_joined`; `details` are fields of its own.
pub(crate) async fn publish(shared: &Shared, event: &str, details: serde_json::Value) {
    publish_of(shared, event, "_", details).await;
}

/// The same for an event about a queue, such as `lane_full`.
pub(crate) async fn publish_of_queue(shared: &Shared, event: &str, queue: &Queue, details: serde_json::Value) {
    publish_of(shared, event, queue.as_str(), details).await;
}

async fn publish_of(shared: &Shared, event: &str, queue: &str, details: serde_json::Value) {
    let at = now();
    let id = format!("_sys/{}/{event}/{}", shared.node, at.millis());
    let mut body = serde_json::json!({"v": 1, "id": id, "event": event, "node": &*shared.node, "at": at});
    if let (Some(body), serde_json::Value::Object(details)) = (body.as_object_mut(), details) {
        body.extend(details);
    }
    let body = Bytes::from(body.to_string());
    let subject = shared.backbone.names().system_event(event, queue, &shared.node, "_");
    shared.backbone.publish_live(subject, body).await;
}
