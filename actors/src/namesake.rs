//! A node's name is its own: records, events and presence say who by it alone. Whoever has it answers; whoever starts
//! under it asks first, and waits a little, as the other may be about to end.

use std::sync::Arc;
use std::time::{Duration, Instant};

use longshore_backbone::Backbone;

use crate::carry_out::chain;
use crate::shared::Shared;

/// How long a node that starts waits for its name.
const WAIT: Duration = Duration::from_secs(10);
/// How often it asks meanwhile.
const ASK_EVERY: Duration = Duration::from_millis(500);

/// Waits until nobody has the name.
///
/// # Errors
/// Somebody has it still: what it says of itself.
pub(crate) async fn wait_for_name(backbone: &Backbone, name: &str, instance: &str) -> Result<(), String> {
    let until = Instant::now() + WAIT;
    let mut warned = false;
    while let Some(who) = backbone.who_is(name, instance).await {
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

/// Answers whoever asks for this node's name, until the process ends.
pub(crate) async fn answer(shared: Arc<Shared>) {
    let mut namesakes = match shared.backbone.namesakes(&shared.node).await {
        Ok(namesakes) => namesakes,
        Err(error) => panic!("questions for this node's name cannot be heard: {}", chain(&error)),
    };
    let own = shared.instance.as_str();
    let who = format!("running since {}, instance {own}", shared.started_at);
    // One that asked at the same moment heard as little of us as we of it.
    let (asking, name) = (shared.backbone.clone(), shared.node.clone());
    let own_question = own.to_owned();
    tokio::spawn(async move { asking.who_is(&name, &own_question).await });
    while let Some(namesake) = namesakes.next().await {
        if namesake.instance == own {
            continue;
        }
        tracing::warn!(node = %shared.node, other = %namesake.instance,
            "another node asks for the name of this one; each needs its own (node.name)");
        shared.backbone.is_mine(&namesake, &who).await;
    }
}
