//! Receives jobs for pullers, and passes on those that pullers of other nodes wait for.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use longshore_backbone::handlers::SignalKind;
use longshore_backbone::offers::{Arrived, IncomingCall, Offer, OwnReply};
use longshore_backbone::pulls::{ForPullers, Pulls};

use crate::api::Api;
use crate::pull::Pullers;
use crate::runtime::supervision::{LoopEnd, ticks};

/// How often it looks which jobs have waited for too long, and which types nobody asks for any more. The jobs that wait
/// are signalled to be alive as often.
const LOOK_EVERY: Duration = Duration::from_secs(1);

#[derive(Clone)]
pub(crate) struct PullReceiverPart {
    pub(crate) api: Arc<Api>,
    pub(crate) pullers: Arc<Pullers>,
}

/// Receives until the process ends; while the node drains, only what is on its way.
pub(crate) async fn run(PullReceiverPart { api, pullers }: PullReceiverPart) -> LoopEnd {
    let (identity, pullers) = (&api.identity, &*pullers);
    let opened = api.backbone.pulls(&identity.node, crate::runtime::VERSION, identity.started_at).await;
    let mut pulls = opened.map_err(|error| error.with_causes())?;
    let (mut received, mut look) = (HashSet::new(), ticks(LOOK_EVERY));
    let mut is_closed = false;
    loop {
        tokio::select! {
            () = api.lifecycle.draining.cancelled(), if !is_closed => {
                is_closed = true;
                pullers.close();
                follow(pullers, &mut pulls, &mut received).await?;
                put_back(pullers).await;
            }
            () = pullers.for_receiver.notified() => follow(pullers, &mut pulls, &mut received).await?,
            _ = look.tick() => {
                follow(pullers, &mut pulls, &mut received).await?;
                put_back(pullers).await;
                if pullers.any_wait() {
                    pulls.still_want(&identity.node).await;
                }
            }
            arrived = pulls.next() => match arrived {
                None => return Ok(()),
                Some(ForPullers::Wanted(wanted)) if wanted.node == *identity.node => {}
                Some(ForPullers::Wanted(wanted)) => {
                    let node = wanted.node.clone();
                    if let Some(call) = pullers.wanted(wanted) {
                        call.pass_on(&node).await;
                    }
                }
                Some(ForPullers::Arrived(Arrived::Call(call))) if is_closed => busy(call, "the node drains").await,
                Some(ForPullers::Arrived(Arrived::Call(call))) => {
                    if let Some((call, node)) = pullers.arrived(call) {
                        call.pass_on(&node).await;
                    }
                }
                Some(ForPullers::Arrived(Arrived::Cancel(tenant, run))) => {
                    if let Some(call) = pullers.cancelled(&tenant, &run) {
                        busy(call, "the run was cancelled").await;
                    }
                }
            },
        }
    }
}

/// Receives the types that pullers ask for, and notifies other nodes of them.
async fn follow(pullers: &Pullers, pulls: &mut Pulls, received: &mut HashSet<Offer>) -> Result<(), String> {
    let (expected, unsaid) = pullers.changes();
    let expected: HashSet<Offer> = expected.into_iter().collect();
    for gone in received.difference(&expected) {
        pulls.offers.remove(gone).await;
    }
    for new in expected.difference(received) {
        pulls.offers.add(new).await.map_err(|error| error.with_causes())?;
    }
    *received = expected;
    for wanted in unsaid {
        pulls.want(&wanted).await;
    }
    Ok(())
}

/// Puts back the jobs that have waited for too long; the others are alive.
async fn put_back(pullers: &Pullers) {
    let (over, waits) = pullers.overdue();
    for call in over {
        call.reply_to.send(OwnReply::Busy("no puller came")).await;
    }
    for reply_to in waits {
        reply_to.signal(SignalKind::Heartbeat, Bytes::new()).await;
    }
}

async fn busy(call: Box<IncomingCall>, why: &'static str) {
    call.reply_to.send(OwnReply::Busy(why)).await;
}
