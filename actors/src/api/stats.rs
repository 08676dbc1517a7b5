//! What all nodes have counted in the last hour.

use futures_util::future::join_all;
use longshore_backbone::wire::api::{Encoded, Stats};

use crate::api::{Answered, Api, queues};
use crate::cluster::node_name;
use crate::metrics::history::{self, SLOT};

pub(crate) async fn serve(api: &Api) -> Answered<Stats> {
    let present = queues::present(api).await?;
    let (nodes, own) = (api.backbone.nodes(), &*api.identity.node);
    let asked = present.iter().map(async |presence| match &presence.node {
        node if node == own => Some((node.clone(), api.metrics.last_hour())),
        node => node_name::ask_stats(&nodes, node).await.map(|slots| (node.clone(), slots)),
    });
    let (nodes, slots): (Vec<_>, Vec<_>) = join_all(asked).await.into_iter().flatten().unzip();
    let points = history::together(slots.into_iter());
    Ok(Encoded::of(&Stats { every_ms: SLOT.as_millis() as u64, nodes, points }))
}
