//! A node's name is its own: records, events and presence say who by it alone. Whoever has it answers; whoever starts
//! under it asks first, and waits a little, as the other may be about to end. A question to the living, and not a note of
//! when somebody was last seen: so a node that was killed and started again need not wait until it is forgotten.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use longshore_backbone::Backbone;

use crate::shared::Shared;
use crate::supervision::LoopEnd;

/// How long a node that starts waits for its name.
const WAIT: Duration = Duration::from_secs(10);
/// How long whoever has the name is given to say so.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);
/// How often it asks meanwhile.
const ASK_EVERY: Duration = Duration::from_millis(500);

/// Waits until nobody has the name.
///
/// # Errors
/// Somebody has it still: what it says of itself.
pub(crate) async fn wait_for_name(backbone: &Backbone, name: &str, instance: &str) -> Result<(), String> {
    let until = Instant::now() + WAIT;
    let mut warned = false;
    while let Some(who) = ask(backbone, name, instance).await {
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
async fn ask(backbone: &Backbone, name: &str, instance: &str) -> Option<String> {
    let question = Bytes::copy_from_slice(instance.as_bytes());
    let answer = backbone.ask_nodes(backbone.names().node(name), question, ANSWER_WITHIN).await?;
    Some(String::from_utf8_lossy(&answer).into_owned())
}

/// Answers whoever asks for this node's name, until the process ends.
pub(crate) async fn answer(shared: Arc<Shared>) -> LoopEnd {
    let questions = shared.backbone.questions(shared.backbone.names().node(&shared.node)).await;
    let mut questions = questions.map_err(|error| error.with_causes())?;
    let own = shared.instance.as_str();
    let who = format!("running since {}, instance {own}", shared.started_at);
    // One that asked at the same moment heard as little of us as we of it.
    let (asking, name) = (shared.backbone.clone(), shared.node.clone());
    let own_question = own.to_owned();
    tokio::spawn(async move { ask(&asking, &name, &own_question).await });
    while let Some(question) = questions.next().await {
        if question.payload == own.as_bytes() {
            continue;
        }
        let other = String::from_utf8_lossy(&question.payload);
        tracing::warn!(node = %shared.node, %other, "another node asks for the name of this one; each needs its own (node.name)");
        shared.backbone.answer_node(question, Bytes::from(who.clone())).await;
    }
    Ok(())
}
