//! The ends of runs that leave no record, for callers that wait.
//!
//! If a type keeps only its failures, the end of a run that completes is stored nowhere; only its event says so. A
//! caller that asks for such an end a moment too late still gets it: the nodes ask the one that ran it. How many
//! callers may wait at once is in [`crate::api::wait_permits`].

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use longshore_backbone::wire::api::{Encoded, Record};
use longshore_domain::{RunId, Tenant};

use crate::api::Api;
use crate::runtime::supervision::LoopEnd;

/// How long the other nodes have to answer that they saw an end.
const ANSWER_WITHIN: Duration = Duration::from_millis(500);

/// The end of a run that left no record, from this node's memory or another's.
pub(crate) async fn end_of(api: &Api, tenant: &Tenant, run_id: &RunId) -> Option<Encoded<Record>> {
    if let Some(end) = api.unstored_ends.find(tenant, run_id) {
        return Some(end);
    }
    let subject = api.backbone.names().end_of(tenant, run_id);
    let answer = api.backbone.nodes().ask(subject, Bytes::new(), ANSWER_WITHIN).await?;
    Encoded::from_text(&answer)
}

/// Answers other nodes that ask for such ends, until the process ends.
pub(crate) async fn answer(api: Arc<Api>) -> LoopEnd {
    let nodes = api.backbone.nodes();
    let questions = nodes.listen(nodes.names().ends()).await;
    let mut questions = questions.map_err(|error| error.with_causes())?;
    while let Some(question) = questions.next().await {
        let asked = nodes.names().read_end(&question.subject);
        let asked = asked.and_then(|(tenant, run)| Some((Tenant::parse(tenant).ok()?, RunId::parse(run).ok()?)));
        if let Some(end) = asked.and_then(|(tenant, run)| api.unstored_ends.find(&tenant, &run)) {
            nodes.answer(question, Bytes::from(end.into_bytes())).await;
        }
    }
    Ok(())
}
