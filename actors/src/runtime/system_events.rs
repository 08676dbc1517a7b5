//! Events about the cluster itself, such as `node_joined`.

use std::sync::Arc;

use bytes::Bytes;
use longshore_backbone::Backbone;
use longshore_domain::{JobType, Queue};
use serde_json::Value;

use crate::runtime::identity::Identity;
use crate::runtime::now;

/// Publishes system events of this node. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct SystemEvents {
    backbone: Backbone,
    identity: Arc<Identity>,
}

impl SystemEvents {
    pub(crate) fn new(backbone: Backbone, identity: Arc<Identity>) -> Self {
        Self { backbone, identity }
    }

    /// Publishes an event such as `node_joined`; `details` are fields of its own.
    pub(crate) async fn publish(&self, event: &str, details: Value) {
        self.publish_about(event, None, None, details).await;
    }

    /// The same for an event about a queue, a type, or a type in one queue, such as `queue_paused`.
    pub(crate) async fn publish_about(
        &self,
        event: &str,
        queue: Option<&Queue>,
        job_type: Option<&JobType>,
        details: Value,
    ) {
        let (queue, job_type) = (queue.map_or("_", Queue::as_str), job_type.map_or("_", JobType::as_str));
        let (at, node) = (now(), &*self.identity.node);
        let id = format!("_sys/{node}/{event}/{}", at.millis());
        let mut body = serde_json::json!({"v": 1, "id": id, "event": event, "node": node, "at": at});
        if let (Some(body), Value::Object(details)) = (body.as_object_mut(), details) {
            // As in records and events of runs: what is not known is absent.
            body.extend(details.into_iter().filter(|(_, value)| !value.is_null()));
        }
        let body = Bytes::from(body.to_string());
        let subject = self.backbone.names().system_event(event, queue, node, job_type);
        self.backbone.publish_live(subject, body).await;
    }
}
