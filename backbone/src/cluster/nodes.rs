//! Nodes among each other: which are there, and their questions to one another (`questions.rs`).

use std::collections::BTreeMap;

use async_nats::HeaderMap;
use bytes::Bytes;
use longshore_domain::Timestamp;

use crate::Backbone;
use crate::cluster::control::{GONE_AFTER, Presence};
use crate::error::Error;
use crate::messages::raw;
use crate::messages::request;
use crate::wire::header::names;
use crate::wire::subject::Names;

/// A node's way to the other nodes. Who has only this reaches no job, record or lane. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Nodes(pub(crate) Backbone);

impl Backbone {
    /// A presence that the server stored at that time, if it can be read.
    pub(crate) fn presence(&self, subject: &str, payload: &[u8], at: Timestamp) -> Option<Presence> {
        let read: Presence = self.readable(subject, payload)?;
        Some(Presence { seen_at: at, ..read })
    }

    /// This node's way to the other nodes.
    #[must_use]
    pub fn nodes(&self) -> Nodes {
        Nodes(self.clone())
    }
}

impl Nodes {
    /// The names of subjects.
    #[must_use]
    pub fn names(&self) -> &Names {
        self.0.names()
    }

    /// Publishes this node's presence.
    ///
    /// # Errors
    /// The server did not confirm it.
    pub async fn announce(&self, presence: &Presence) -> Result<(), Error> {
        let subject = self.0.names().key("control", &format!("nodes.{}", presence.node));
        let mut headers = HeaderMap::new();
        headers.insert(names::TTL, "3600s");
        let body = Bytes::from(serde_json::to_vec(presence).unwrap_or_default());
        request::publish(self.0.control(), subject, headers, body).await.map(|_| ())
    }

    /// Publishes that this node is gone.
    ///
    /// # Errors
    /// The server did not confirm it.
    pub async fn depart(&self, node: &str) -> Result<(), Error> {
        let subject = self.0.names().key("control", &format!("nodes.{node}"));
        let mut headers = HeaderMap::new();
        headers.insert("KV-Operation", "DEL");
        headers.insert(names::TTL, "60s");
        request::publish(self.0.control(), subject, headers, Bytes::new()).await.map(|_| ())
    }

    /// The nodes that were seen within [`GONE_AFTER`] before `now`.
    ///
    /// # Errors
    /// The control bucket cannot be read.
    pub async fn present(&self, now: Timestamp) -> Result<Vec<Presence>, Error> {
        let nodes = self.last_seen().await?.into_iter();
        Ok(nodes.filter(|presence| now.since(presence.seen_at) < GONE_AFTER).collect())
    }

    /// The last presence of each node that has not departed, within the last hour.
    ///
    /// # Errors
    /// The control bucket cannot be read.
    pub async fn last_seen(&self) -> Result<Vec<Presence>, Error> {
        let bucket = self.0.names().bucket_stream("control");
        let subject = self.0.names().key("control", "nodes.*");
        // By name: a node that publishes again during this read is found twice, and its later presence counts.
        let mut nodes = BTreeMap::new();
        for stored in raw::all(self.0.control(), self.0.api(), &bucket, &subject, 1).await? {
            let presence = self.0.presence(&stored.subject, &stored.payload, stored.at);
            nodes.extend(presence.map(|presence| (presence.node.clone(), presence)));
        }
        Ok(nodes.into_values().collect())
    }
}
