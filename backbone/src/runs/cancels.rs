//! Cancel messages: from the node that cancels a run to the node that runs it.
//!
//! The subject is part of the contract, and handlers receive these messages as well. A header says to a node that a
//! message is the API's, which says that the run itself is over, and not the message to a handler whose attempt is
//! over.
//!
//! Beside them stands a durable list of these runs. A job that waits in its lane is started without reading its record.
//! So a node must know of its run's end before it gets the job, even a node that starts after the one that cancelled
//! has died. A note stays in the list from before the record says `cancelled` until the job's message is gone; so the
//! list is short.

use std::time::Duration;

use async_nats::Subject;
use bytes::Bytes;
use longshore_domain::{RunId, Tenant};
use serde::{Deserialize, Serialize};

use crate::Backbone;
use crate::connection::subscription::Subscription;
use crate::error::Error;
use crate::messages::raw::Raw;
use crate::messages::request::conditions;
use crate::wire::header::{self, names};

/// How long nodes have to confirm a cancellation. A node that takes longer is frozen or cut off: it may no longer start
/// the jobs that it has buffered by then.
pub const CONFIRM_TIMEOUT: Duration = Duration::from_secs(2);

/// The cancel messages, as they arrive.
#[derive(Debug)]
pub struct Cancels {
    backbone: Backbone,
    messages: Subscription,
    /// Those for runs that are cancelled unless an attempt is running.
    waiting: Subscription,
}

/// A run is being cancelled.
#[derive(Debug)]
pub struct Cancel {
    /// The run's tenant.
    pub tenant: Tenant,
    /// The run's id.
    pub run_id: RunId,
    /// Whether the run is left alone if an attempt is running.
    pub only_if_waiting: bool,
    /// Where to answer whether it runs here.
    answer_to: Option<Subject>,
}

/// A run in the list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Note {
    tenant: Tenant,
    run_id: RunId,
}

impl Cancels {
    /// The next one; `None` when the connection has ended.
    pub async fn next(&mut self) -> Option<Cancel> {
        loop {
            let (message, only_if_waiting) = tokio::select! {
                message = self.messages.next() => (message?, false),
                message = self.waiting.next() => (message?, true),
            };
            let of_the_run = message.headers.as_ref().is_some_and(|headers| headers.get(names::CANCEL).is_some());
            let read = self.backbone.names().read_cancel(&message.subject);
            let read = read.and_then(|(tenant, run)| Some((Tenant::parse(tenant).ok()?, RunId::parse(run).ok()?)));
            let answer_to = message.reply.filter(|reply| self.backbone.may_answer(reply));
            if let Some((tenant, run_id)) = read.filter(|_| of_the_run) {
                return Some(Cancel { tenant, run_id, only_if_waiting, answer_to });
            }
        }
    }
}

impl Backbone {
    /// Listens for runs that are being cancelled.
    ///
    /// # Errors
    /// The subject cannot be subscribed to.
    pub async fn cancels(&self) -> Result<Cancels, Error> {
        let messages = self.control().subscribe(self.names().cancel_all()).await?;
        let waiting = self.control().subscribe(self.names().cancel_waiting_all()).await?;
        Ok(Cancels { backbone: self.clone(), messages, waiting })
    }

    /// Waits until the server knows this node's subscriptions to messages of other nodes.
    pub async fn is_listening(&self) {
        // A failure means that the connection was just lost; the subscriptions come back with it.
        let _ = self.control().settled().await;
    }

    /// Answers that this node received the cancel, and whether the run is running here.
    pub async fn confirm_cancel(&self, cancel: &Cancel, node: &str, runs_here: bool) {
        if let Some(reply) = &cancel.answer_to {
            let body = Bytes::from(format!("{}{node}", if runs_here { RUNS_HERE } else { HEARD }));
            self.control().publish(reply.clone(), body).await;
        }
    }

    /// Publishes to all nodes and handlers that a run is cancelled.
    pub async fn notify_cancelled(&self, tenant: &Tenant, run: &RunId) {
        let subject = self.names().cancel(tenant, run);
        let headers = header::single(names::CANCEL, "true");
        self.control().publish_with_headers(subject.into(), headers, Bytes::new()).await;
    }

    /// The same, and waits until each of `nodes` has received it, at most for [`CONFIRM_TIMEOUT`]. Returns whether one
    /// is running the run: that node will end it, or let it go on if it is cancelled `only_if_waiting`.
    pub async fn ask_who_runs(&self, tenant: &Tenant, run: &RunId, only_if_waiting: bool, nodes: &[String]) -> bool {
        let inbox = self.control().new_inbox();
        let Ok(mut answers) = self.control().subscribe(inbox.clone()).await else { return false };
        let subject = match only_if_waiting {
            false => self.names().cancel(tenant, run),
            true => self.names().cancel_waiting(tenant, run),
        };
        let headers = header::single(names::CANCEL, "true");
        let _ = self.control().publish_with_reply_and_headers(subject, inbox, headers, Bytes::new()).await;
        let until = tokio::time::Instant::now() + CONFIRM_TIMEOUT;
        let mut silent: Vec<&str> = nodes.iter().map(String::as_str).collect();
        while !silent.is_empty() {
            let Ok(Some(answer)) = tokio::time::timeout_at(until, answers.next()).await else { break };
            let text = String::from_utf8_lossy(&answer.payload).into_owned();
            if text.starts_with(RUNS_HERE) {
                return true;
            }
            silent.retain(|node| text.strip_prefix(HEARD) != Some(*node));
        }
        false
    }

    /// Adds a note that a run is being cancelled, at most for `kept`.
    ///
    /// # Errors
    /// The server did not confirm it.
    pub async fn note_cancel(&self, tenant: &Tenant, run_id: &RunId, kept: Duration) -> Result<(), Error> {
        let note = Note { tenant: tenant.clone(), run_id: run_id.clone() };
        let headers = conditions(None, Some(kept));
        self.put_entry("control", &entry_of(tenant, run_id), &note, headers).await.map(drop)
    }

    /// Removes a note: no message of the run is left that could be delivered.
    ///
    /// # Errors
    /// The server did not confirm it.
    pub async fn forget_cancel(&self, tenant: &Tenant, run_id: &RunId) -> Result<(), Error> {
        self.remove_entry("control", &entry_of(tenant, run_id), Some(Duration::from_secs(1))).await
    }

    /// Every run that is being cancelled, as the bucket's leader has it.
    ///
    /// # Errors
    /// The control bucket cannot be read.
    pub async fn noted_cancels(&self) -> Result<Vec<(Tenant, RunId)>, Error> {
        let notes = self.entries_after("control", "cancels.>", 0).await?;
        let read = |stored: &Raw| self.readable::<Note>(&stored.subject, &stored.payload);
        Ok(notes.iter().filter_map(read).map(|note| (note.tenant, note.run_id)).collect())
    }
}

/// Nodes' answers begin with these; the node's name follows.
const RUNS_HERE: &str = "here ";
const HEARD: &str = "heard ";

fn entry_of(tenant: &Tenant, run_id: &RunId) -> String {
    format!("cancels.{tenant}.{run_id}")
}
