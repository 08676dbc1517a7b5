//! Jobs for pullers, who ask the API for work: the micro service `longshore-pulls`, with an endpoint for each tenant
//! and type that pullers of this node have asked for lately.
//!
//! A job may reach a node of which no puller waits. So nodes notify each other of pullers that wait, and pass jobs on:
//! the same request with the same reply subject, to the node that has the puller.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_nats::Message;
use longshore_domain::{JobType, Tenant, Timestamp};
use serde::{Deserialize, Serialize};

use crate::Backbone;
use crate::connection::subscription::Subscription;
use crate::error::Error;
use crate::messages::request::json;
use crate::services::micro;
use crate::services::offers::{self, Arrived, IncomingCall, Offers};
use crate::wire::header::{self, names};
use crate::wire::subject::Names;

const NAME: &str = "longshore-pulls";

/// The service, for as long as this value lives.
#[derive(Debug)]
pub struct Pulls {
    backbone: Backbone,
    /// The types whose jobs it takes.
    pub offers: Offers,
    passed_on: Subscription,
    wanted: Subscription,
}

/// What arrives for pullers.
#[derive(Debug)]
pub enum ForPullers {
    /// A job, or a cancellation.
    Arrived(Arrived),
    /// A puller of another node waits, or those that do still wait.
    Wanted(WorkWanted),
}

/// A puller waits for a job.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct WorkWanted {
    /// On this node.
    pub node: String,
    /// Whose jobs it does.
    pub tenant: Tenant,
    /// The types that it does; none: those that waited on the node still do.
    pub types: Vec<JobType>,
    /// How long it waits, in milliseconds.
    pub wait_ms: u64,
}

impl Backbone {
    /// Receives jobs for the pullers of the node of this name.
    ///
    /// # Errors
    /// A subject cannot be subscribed to.
    pub async fn pulls(&self, node: &str, version: &str, started: Timestamp) -> Result<Pulls, Error> {
        let description = "Jobs for clients that ask a Longshore node for work";
        let offers = Offers::open(self, NAME, description, version, started).await?;
        let passed_on = self.work().subscribe(passed_on_to(self.names(), node)).await?;
        let wanted = self.work().subscribe(wanted(self.names())).await?;
        Ok(Pulls { backbone: self.clone(), offers, passed_on, wanted })
    }
}

impl Pulls {
    /// What arrives next; `None` when the connection has ended.
    pub async fn next(&mut self) -> Option<ForPullers> {
        loop {
            tokio::select! {
                biased;
                message = self.wanted.next() => {
                    if let Some(wanted) = self.backbone.readable("a notice of a puller", &message?.payload) {
                        return Some(ForPullers::Wanted(wanted));
                    }
                }
                message = self.passed_on.next() => {
                    if let Some(call) = self.read(message?).await {
                        return Some(ForPullers::Arrived(Arrived::Call(Box::new(call))));
                    }
                }
                arrived = self.offers.next() => return arrived.map(ForPullers::Arrived),
            }
        }
    }

    /// A job that another node has passed on: its headers say whose it is, and of which type.
    async fn read(&self, message: Message) -> Option<IncomingCall> {
        let text = |name| message.headers.as_ref().and_then(|headers| header::value_of(headers, name));
        let tenant = Tenant::parse(text(names::TENANT)?).ok()?;
        let job_type = JobType::parse(text(names::TYPE)?).ok()?;
        let subject = self.backbone.names().work(&tenant, &job_type);
        let endpoint = Arc::new(micro::Endpoint::new(job_type.as_str(), subject, BTreeMap::new()));
        offers::read(&self.backbone, tenant, job_type, message, endpoint).await
    }

    /// Notifies the other nodes that pullers still wait on this one: without that it counts as dead.
    pub async fn still_want(&self, node: &str) {
        let (node, tenant, types) = (node.to_owned(), Tenant::default_tenant(), Vec::new());
        self.want(&WorkWanted { node, tenant, types, wait_ms: 0 }).await;
    }

    /// Notifies the other nodes of a puller that waits here.
    pub async fn want(&self, wanted: &WorkWanted) {
        self.backbone.work().publish(self::wanted(self.backbone.names()), json(wanted)).await;
    }
}

impl IncomingCall {
    /// Passes the job on to another node, which answers it.
    pub async fn pass_on(self, node: &str) {
        let backbone = self.reply_to.backbone;
        let subject = passed_on_to(backbone.names(), node);
        let sent =
            backbone.work().publish_with_reply_and_headers(subject, self.reply_to.subject, self.all, self.payload);
        if let Err(error) = sent.await {
            tracing::debug!(%node, "a job for a puller was not passed on: {error}");
        }
    }
}

fn wanted(names: &Names) -> String {
    names.node("_sys.wanted")
}

fn passed_on_to(names: &Names, node: &str) -> String {
    names.node(&format!("_sys.work.{node}"))
}
