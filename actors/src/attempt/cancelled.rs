//! How a node learns which runs are cancelled, and stops those that run here.

use std::sync::Arc;

use longshore_backbone::cancels::CONFIRM_TIMEOUT;
use longshore_backbone::{Backbone, Error};

use crate::attempt::holders::answer_to;
use crate::attempt::node_ports::NodePorts;
use crate::attempt::recently_cancelled::RecentlyCancelled;
use crate::lease_keeper::LeaseKeeperMessage;
use crate::ports::RunPorts as _;
use crate::runtime::address::Address;
use crate::runtime::supervision::LoopEnd;

#[derive(Clone)]
pub(crate) struct CancelsPart {
    pub(crate) ports: Arc<NodePorts>,
    pub(crate) leases: Address<LeaseKeeperMessage>,
}

/// Receives cancellations until the process ends, and stops those runs if they run here; answers nodes that ask whether
/// this node holds a job.
pub(crate) async fn watch(CancelsPart { ports, leases }: CancelsPart) -> LoopEnd {
    let cancels = ports.backbone.cancels().await;
    let mut cancels = cancels.map_err(|error| error.with_causes())?;
    let questions = ports.backbone.holder_questions(ports.node()).await;
    let mut questions = questions.map_err(|error| error.with_causes())?;
    ports.backbone.is_listening().await;
    ports.recently_cancelled.is_listening();
    if let Err(error) = learn(&ports.backbone, &ports.recently_cancelled).await {
        // The high-water marks of each lane wait for this list in any case.
        tracing::debug!("cannot read which runs are cancelled: {}", error.with_causes());
    }
    loop {
        tokio::select! {
            cancel = cancels.next() => {
                let Some(cancel) = cancel else { return Ok(()) };
                ports.recently_cancelled.add(&cancel.tenant, &cancel.run_id);
                let runs_here = match cancel.only_if_waiting {
                    true => ports.book.works_on(&cancel.tenant, &cancel.run_id),
                    false => {
                        let (tenant, run_id) = (&cancel.tenant, &cancel.run_id);
                        let stop = |reply| LeaseKeeperMessage::Cancel(tenant.clone(), run_id.clone(), reply);
                        // Without an answer nothing is confirmed, so that the node that cancels goes on by the record.
                        let Some(runs_here) = leases.ask(CONFIRM_TIMEOUT, stop).await else { continue };
                        runs_here
                    }
                };
                ports.backbone.confirm_cancel(&cancel, ports.node(), runs_here).await;
            }
            question = questions.next() => match question {
                Some(question) => ports.backbone.answer_holder(question, |asked| answer_to(&*ports, &asked)).await,
                None => return Ok(()),
            },
        }
    }
}

/// Reads the durable list of runs that are being cancelled: before that, no job may begin without reading its record.
pub(crate) async fn learn(backbone: &Backbone, cancelled: &RecentlyCancelled) -> Result<(), Error> {
    // From now on this node receives every new cancellation.
    cancelled.listens().await;
    for (tenant, run_id) in backbone.noted_cancels().await? {
        cancelled.add(&tenant, &run_id);
    }
    Ok(())
}
