//! Keeps node names unique: records, events and presence identify a node by its name alone. A node that starts asks
//! whether another node has its name, which answers; then it waits a little, as the other may be about to end. It asks
//! running nodes and does not read when a node was last seen: so a node that was killed and started again need not wait
//! until its presence is forgotten.
//!
//! The same subject takes what a client asked another node: how the node of that name is, which settings it has, what
//! it has counted, and that its log change.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use longshore_backbone::nodes::Nodes;
use longshore_backbone::wire::api::InForce;
use serde::de::DeserializeOwned;

use crate::cluster::node_health::NodeHealth;
use crate::cluster::readiness::Readiness;
use crate::metrics::history::Counted;
use crate::runtime::identity::Identity;
use crate::runtime::supervision::LoopEnd;
use crate::settings::LogControl;

/// The question how the node is. No instance is called so.
const HEALTH: &[u8] = b"health";
/// The question which settings it has.
const SETTINGS: &[u8] = b"settings";
/// The question what it has counted in the last hour.
const STATS: &[u8] = b"stats";
/// The order to change the level of the log, which follows.
const LOG_LEVEL: &[u8] = b"log level ";
/// How long a starting node waits for its name.
const WAIT: Duration = Duration::from_secs(10);
/// How long a node that has the name is given to answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);
/// How often it asks meanwhile.
const ASK_EVERY: Duration = Duration::from_millis(500);

/// What a node answers about itself.
#[derive(Clone)]
pub(crate) struct NodeNamePart {
    pub(crate) readiness: Readiness,
    /// The log, as far as operators may change it.
    pub(crate) log: Option<Arc<dyn LogControl>>,
    pub(crate) in_force: Arc<[InForce]>,
}

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

/// What the node of that name answers; `None`: no such node does, or it cannot be read.
async fn ask_node<T: DeserializeOwned>(nodes: &Nodes, name: &str, question: Vec<u8>) -> Option<T> {
    let answer = nodes.ask(nodes.names().node(name), Bytes::from(question), ANSWER_WITHIN).await?;
    serde_json::from_slice(&answer).ok()
}

/// The health of the node of that name, as it says itself; `None`: no such node answers.
pub(crate) async fn ask_health(nodes: &Nodes, name: &str) -> Option<NodeHealth> {
    ask_node(nodes, name, HEALTH.to_vec()).await
}

/// Has the node of that name change the level of its log: the filter that holds, or why not; `None`: no such node
/// answers.
pub(crate) async fn set_log_level(nodes: &Nodes, name: &str, level: &str) -> Option<Result<String, String>> {
    ask_node(nodes, name, [LOG_LEVEL, level.as_bytes()].concat()).await
}

/// The settings of the node of that name, or why they cannot be said; `None`: no such node answers.
pub(crate) async fn ask_settings(nodes: &Nodes, name: &str) -> Option<Result<Vec<InForce>, String>> {
    ask_node(nodes, name, SETTINGS.to_vec()).await
}

/// What the node of that name has counted in the last hour; `None`: no such node answers, or it does not fit.
pub(crate) async fn ask_stats(nodes: &Nodes, name: &str) -> Option<Vec<(i64, Counted)>> {
    ask_node(nodes, name, STATS.to_vec()).await
}

fn settings(in_force: &[InForce], max: usize) -> Vec<u8> {
    let said = serde_json::to_vec(&Ok::<_, String>(in_force)).unwrap_or_default();
    if said.len() <= max {
        return said;
    }
    let why = format!("they have {} bytes, and {max} fit into an answer: longshore config show has them", said.len());
    serde_json::to_vec(&Err::<Vec<InForce>, _>(why)).unwrap_or_default()
}

fn change_log(log: Option<&Arc<dyn LogControl>>, level: &[u8]) -> Result<String, String> {
    let level = std::str::from_utf8(level).map_err(|error| error.to_string())?;
    let log = log.ok_or("the log of this node is not its own to change")?;
    let holds = log.set(level)?;
    tracing::info!(filter = holds, "the level of the log was changed");
    Ok(holds)
}

/// Answers nodes that ask for this node's name, health or settings or want its log changed, until the process ends.
pub(crate) async fn answer(NodeNamePart { readiness, log, in_force }: NodeNamePart) -> LoopEnd {
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
        let answer = match &question.payload[..] {
            asked if asked == own.as_bytes() => continue,
            HEALTH => serde_json::to_vec(&readiness.whole_status().await).unwrap_or_default(),
            SETTINGS => settings(&in_force, readiness.backbone.max_in_answer()),
            STATS => {
                let said = serde_json::to_vec(&readiness.metrics.last_hour()).unwrap_or_default();
                if said.len() > readiness.backbone.max_in_answer() { Vec::new() } else { said }
            }
            other => match other.strip_prefix(LOG_LEVEL) {
                Some(level) => serde_json::to_vec(&change_log(log.as_ref(), level)).unwrap_or_default(),
                None => {
                    let other = String::from_utf8_lossy(other);
                    tracing::warn!(node = %identity.node, %other, "another node asks for the name of this one; each needs its own (node.name)");
                    who.clone().into_bytes()
                }
            },
        };
        nodes.answer(question, Bytes::from(answer)).await;
    }
    Ok(())
}
