//! Keeps node names unique: records, events and presence identify a node by its name alone. A node that starts asks
//! whether another node has its name, which answers; then it waits a little, as the other may be about to end. It asks
//! running nodes and does not read when a node was last seen: so a node that was killed and started again need not wait
//! until its presence is forgotten.
//!
//! The same subject takes the question how the node of that name is, for a client that asked another node.

use std::time::{Duration, Instant};

use bytes::Bytes;
use longshore_backbone::nodes::Nodes;
use longshore_backbone::wire::api::HealthStatus;

use crate::cluster::readiness::Readiness;
use crate::shared::identity::Identity;
use crate::supervision::LoopEnd;

/// The question how the node is. No instance is called so.
const HEALTH: &[u8] = b"health";

/// How long a starting node waits for its name.
const WAIT: Duration = Duration::from_secs(10);
/// How long a node that has the name is given to answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);
/// How often it asks meanwhile.
const ASK_EVERY: Duration = Duration::from_millis(500);

/// Waits until no other node has the name.
///
/// # Errors
/// Another node still has it: what that node says of itself.
pub(crate) async fn wait_for_name(nodes: &Nodes, identity: &Identity) -> Result<(), String> {
    let (name, instance) = (&*identity.node, identity.instance.as_str());
    let until = Instant::now() + WAIT;
    let mut warned = false;
    while let Some(who) = ask(nodes, name, instance).await {
        if Instant::now() >= until {
            return Err(who);
        }
        if !std::mem::replace(&mut warned, true) {
            tracing::warn!(node = name, "a node of this name is there ({who}); waiting up to 10 s for it to end");
        }
        tokio::time::sleep(ASK_EVERY).await;
    }
    Ok(())
}

/// What another instance of this name says of itself.
async fn ask(nodes: &Nodes, name: &str, instance: &str) -> Option<String> {
    let question = Bytes::copy_from_slice(instance.as_bytes());
    let answer = nodes.ask(nodes.names().node(name), question, ANSWER_WITHIN).await?;
    Some(String::from_utf8_lossy(&answer).into_owned())
}

/// The health of the node of that name, as it says itself; `None`: no such node answers.
pub(crate) async fn ask_health(nodes: &Nodes, name: &str) -> Option<HealthStatus> {
    let answer = nodes.ask(nodes.names().node(name), Bytes::from_static(HEALTH), ANSWER_WITHIN).await?;
    serde_json::from_slice(&answer).ok()
}

/// Answers nodes that ask for this node's name or health, until the process ends.
pub(crate) async fn answer(readiness: Readiness) -> LoopEnd {
    let (nodes, identity) = (readiness.backbone.nodes(), &readiness.identity);
    let questions = nodes.listen(nodes.names().node(&identity.node)).await;
    let mut questions = questions.map_err(|error| error.with_causes())?;
    let own = identity.instance.as_str();
    let who = format!("running since {}, instance {own}", identity.started_at);
    // A node that asked at the same moment got no answer from us, nor we from it: so ask once more.
    let (asking, name) = (nodes.clone(), identity.node.clone());
    let own_question = own.to_owned();
    tokio::spawn(async move { ask(&asking, &name, &own_question).await });
    while let Some(question) = questions.next().await {
        if question.payload == own.as_bytes() {
            continue;
        }
        if question.payload == HEALTH {
            let health = serde_json::to_vec(&readiness.status()).unwrap_or_default();
            nodes.answer(question, Bytes::from(health)).await;
            continue;
        }
        let other = String::from_utf8_lossy(&question.payload);
        tracing::warn!(node = %identity.node, %other, "another node asks for the name of this one; each needs its own (node.name)");
        nodes.answer(question, Bytes::from(who.clone())).await;
    }
    Ok(())
}
