//! Nodes among each other: which are there, and their questions to one another (`questions.rs`).

use std::collections::BTreeMap;
use std::time::Duration;

use longshore_domain::Timestamp;

use crate::Backbone;
use crate::cluster::control::{GONE_AFTER, Presence};
use crate::error::Error;
use crate::messages::raw::Raw;
use crate::messages::request::conditions;
use crate::wire::subject::Names;

/// How long the server keeps a node's last presence, and the note that it has departed.
const PRESENCE_KEPT: Duration = Duration::from_secs(3_600);
const DEPARTED_KEPT: Duration = Duration::from_secs(60);

way! {
    /// A node's way to the other nodes.
    Nodes, nodes
}

impl Backbone {
    /// A stored presence, with the time at which the server stored it, if it can be read.
    pub(crate) fn presence(&self, stored: &Raw) -> Option<Presence> {
        let read: Presence = self.readable(&stored.subject, &stored.payload)?;
        Some(Presence { seen_at: stored.at, ..read })
    }
}

impl Nodes {
    /// The names of subjects.
    pub fn names(&self) -> &Names {
        self.0.names()
    }

    /// Publishes this node's presence.
    ///
    /// # Errors
    /// The server did not confirm it.
    pub async fn announce(&self, presence: &Presence) -> Result<(), Error> {
        let headers = conditions(None, Some(PRESENCE_KEPT));
        self.0.put_entry("control", &format!("nodes.{}", presence.node), presence, headers).await.map(drop)
    }

    /// Publishes that this node is gone.
    ///
    /// # Errors
    /// The server did not confirm it.
    pub async fn depart(&self, node: &str) -> Result<(), Error> {
        self.0.remove_entry("control", &format!("nodes.{node}"), Some(DEPARTED_KEPT)).await
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
        // By name: a node that publishes again during this read is found twice, and its later presence counts.
        let mut nodes = BTreeMap::new();
        for stored in self.0.entries_after("control", "nodes.*", 0).await? {
            nodes.extend(self.0.presence(&stored).map(|presence| (presence.node.clone(), presence)));
        }
        Ok(nodes.into_values().collect())
    }
}
