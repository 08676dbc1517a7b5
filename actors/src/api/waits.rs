//! Waiting for runs' ends: how many may, and the ends of those runs that leave no record.
//!
//! Who waits keeps a subscription and a task, so both are bounded, for each tenant and for the node. Of a type that keeps
//! its failures only, the end of a run that completes stands nowhere but in its event; whoever asks for it a moment too
//! late finds it at the node that had it, which the others ask.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use longshore_backbone::wire::api::{Encoded, Record};
use longshore_domain::{RunId, Tenant};

use crate::shared::Shared;
use crate::supervision::LoopEnd;

/// How long the other nodes are given to say that they saw an end.
const ANSWER_WITHIN: Duration = Duration::from_millis(500);

/// The end of a run that left no record, from this node's memory or another's.
pub(crate) async fn end_of(shared: &Shared, tenant: &Tenant, run_id: &RunId) -> Option<Encoded<Record>> {
    if let Some(end) = shared.unstored_ends.find(tenant, run_id) {
        return Some(end);
    }
    let subject = shared.backbone.names().end_of(tenant, run_id);
    let answer = shared.backbone.ask_nodes(subject, Bytes::new(), ANSWER_WITHIN).await?;
    Encoded::from_text(&answer)
}

/// Answers other nodes that ask for such ends, until the process ends.
pub(crate) async fn answer(shared: Arc<Shared>) -> LoopEnd {
    let questions = shared.backbone.questions(shared.backbone.names().ends()).await;
    let mut questions = questions.map_err(|error| error.with_causes())?;
    while let Some(question) = questions.next().await {
        let asked = shared.backbone.names().read_end(&question.subject);
        let asked = asked.and_then(|(tenant, run)| Some((Tenant::parse(tenant).ok()?, RunId::parse(run).ok()?)));
        if let Some(end) = asked.and_then(|(tenant, run)| shared.unstored_ends.find(&tenant, &run)) {
            shared.backbone.answer_node(question, Bytes::from(end.into_bytes())).await;
        }
    }
    Ok(())
}
