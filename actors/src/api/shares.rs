//! The endpoint `queues.shares`: how a queue's starts are shared out, beside how they should be.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use futures_util::future::try_join_all;
use longshore_backbone::deliveries::DeliveryCounts;
use longshore_backbone::wire::api::{Encoded, QueueShare, QueueShares, SharesRequest};
use longshore_domain::QueueLane;
use longshore_domain::fairness::FairnessKey;
use longshore_domain::run::whole_millis;

use crate::api::{Answered, Api, intake, queues};
use crate::queue::fairness::{Answers, SAY_WITHIN, served_since};

/// For how long deliveries are counted.
const OVER: Duration = Duration::from_secs(1);
/// So many are listed.
const LISTED: usize = 100;

pub(crate) async fn serve(api: &Api, SharesRequest { queue }: SharesRequest) -> Answered<QueueShares> {
    intake::must_be_declared(api, &queue).await?;
    let (backbone, nodes) = (&api.backbone, api.backbone.nodes());
    let serving: Vec<String> =
        queues::present(api).await?.into_iter().filter(|node| node.serves(&queue)).map(|node| node.node).collect();
    // Nodes count from the first question on.
    let before = nodes.ask_deliveries(&queue, serving.clone(), SAY_WITHIN).await?;
    tokio::time::sleep(OVER).await;
    let after = nodes.ask_deliveries(&queue, serving, SAY_WITHIN).await?;
    let fair_by = after.first().map(|counts| counts.by).unwrap_or_default();
    let mut jobs: BTreeMap<FairnessKey, u64> = BTreeMap::new();
    let lanes = QueueLane::all().map(|lane| backbone.keys_in_lane(&queue, lane, fair_by));
    for (key, count) in try_join_all(lanes).await?.into_iter().flatten() {
        *jobs.entry(key).or_default() += count;
    }
    let delivered = delivered(before, after);
    let weight = |key: &FairnessKey| api.policies.weight_of(key);
    let all: u64 = jobs.keys().map(|key| u64::from(weight(key))).sum();
    let shares = jobs.into_iter().map(|(whose, jobs)| {
        let weight = weight(&whose);
        #[expect(clippy::cast_precision_loss, reason = "at most 100,000 weights of at most 1,000")]
        let share = f64::from(weight) / all as f64;
        QueueShare { delivered: delivered.get(&whose).copied().unwrap_or(0), jobs, share, weight, whose }
    });
    let mut shares: Vec<QueueShare> = shares.collect();
    shares.sort_by_key(|share| std::cmp::Reverse(share.jobs));
    let left_out = shares.len().saturating_sub(LISTED) as u64;
    shares.truncate(LISTED);
    Ok(Encoded::of(&QueueShares { fair_by, left_out, over_ms: whole_millis(OVER), queue, shares }))
}

/// What nodes were delivered between two answers. One that has begun to count anew meanwhile, or did not answer
/// before, is left out.
fn delivered(before: Vec<DeliveryCounts>, mut after: Vec<DeliveryCounts>) -> HashMap<FairnessKey, u64> {
    let mut answers = Answers::new();
    served_since(&mut answers, before);
    after.retain(|now| answers.get(&now.node).is_some_and(|(since, _)| *since == now.since_ms));
    let mut delivered: HashMap<FairnessKey, u64> = HashMap::new();
    for ((_, key), ways) in served_since(&mut answers, after) {
        *delivered.entry(key).or_default() += ways.iter().sum::<u64>();
    }
    delivered
}

#[cfg(test)]
mod tests {
    use longshore_backbone::deliveries::DeliveryCount;
    use longshore_domain::fairness::FairBy;
    use longshore_domain::{Priority, Tenant};

    use super::*;

    fn said(node: &str, since_ms: i64, counts: &[(&str, u64, u64)]) -> DeliveryCounts {
        let of = counts.iter().map(|(tenant, from_lane, returned)| DeliveryCount {
            priority: Priority::DEFAULT,
            key: FairnessKey::Tenant(Tenant::parse(tenant).unwrap()),
            from_lane: *from_lane,
            returned: *returned,
        });
        DeliveryCounts { by: FairBy::Tenant, node: node.to_owned(), since_ms, of: of.collect() }
    }

    #[test]
    fn only_what_came_between_two_answers_of_a_node_counts() {
        let before = [said("a", 1, &[("acme", 10, 2)]), said("b", 1, &[("acme", 7, 0)])];
        let after = [
            said("a", 1, &[("acme", 15, 3), ("shop", 4, 0)]),
            said("b", 2, &[("acme", 9, 0)]),
            said("c", 1, &[("acme", 9, 0)]),
        ];
        let delivered = delivered(before.into(), after.into());
        let of = |tenant: &str| delivered.get(&FairnessKey::Tenant(Tenant::parse(tenant).unwrap())).copied();
        assert_eq!((of("acme"), of("shop")), (Some(6), Some(4)));
    }
}
