//! Notices lanes that hold jobs and deliver none, though nodes ask for them and hold none; says so, and has another
//! server lead their consumers.
//!
//! Part of the watch of queues (`unserved`), whose node looks for the cluster. A lane stands still once three looks in
//! a row have found it so, without a delivery in between. Another leader is asked for once a minute at most, and only
//! where there may be one.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use longshore_backbone::Backbone;
use longshore_backbone::standstill::Undelivered;
use longshore_domain::{Queue, QueueLane, SmolStr};

use crate::metrics::Metrics;

/// Looks in a row that must find a lane so.
const LOOKS: u32 = 3;
/// How often another leader is asked for, for each lane.
const LEADER_EVERY: Duration = Duration::from_secs(60);

/// A lane that delivered nothing when it was looked at.
#[derive(Debug)]
struct Still {
    deliveries: u64,
    looks: u32,
    since: Instant,
    /// When it was said and another leader was asked for.
    acted: Option<Instant>,
}

/// The lanes that delivered nothing when they were looked at last.
#[derive(Debug, Default)]
pub(super) struct Standstills(BTreeMap<SmolStr, Still>);

#[derive(Debug, PartialEq, Eq)]
struct Standstill {
    stream: SmolStr,
    jobs: u64,
    lasts: Duration,
    /// Something is to be done about it now.
    is_due: bool,
}

impl Standstills {
    /// Looks at all lanes of these queues once; returns a warning for each that stands still.
    pub(super) async fn look(&mut self, backbone: &Backbone, metrics: &Metrics, queues: Vec<Queue>) -> Vec<String> {
        let mut found = Vec::new();
        for queue in &queues {
            let looks = QueueLane::all().map(|lane| backbone.undelivered(queue, lane));
            // A lane that does not answer shows elsewhere.
            found.extend(join_all(looks).await.into_iter().filter_map(Result::ok).flatten());
        }
        let mut warnings = Vec::new();
        for Standstill { stream, jobs, lasts, is_due } in self.compare(found, Instant::now()) {
            let seconds = lasts.as_secs();
            if is_due {
                metrics.lane_standstills.inc();
                tracing::warn!(%stream, jobs, seconds, "a lane holds jobs and delivers none, though nodes ask for them");
                if !backbone.has_one_server() {
                    match backbone.change_leader(&stream).await {
                        Ok(()) => tracing::info!(%stream, "another server was asked to lead the lane's consumer"),
                        Err(error) => {
                            tracing::warn!(%stream, "no other server leads the lane's consumer: {}", error.with_causes());
                        }
                    }
                }
            }
            warnings.push(format!(
                "{stream} holds {jobs} jobs and has delivered none for {seconds} s, though nodes ask for them: look at \
                 the servers' own logs"
            ));
        }
        warnings
    }

    /// What a look has found, compared with those before.
    fn compare(&mut self, found: Vec<Undelivered>, now: Instant) -> Vec<Standstill> {
        let mut before = std::mem::take(&mut self.0);
        let mut standstills = Vec::new();
        for Undelivered { stream, jobs, deliveries } in found {
            let known = before.remove(&stream).filter(|known| known.deliveries == deliveries);
            let mut still = known.unwrap_or(Still { deliveries, looks: 0, since: now, acted: None });
            still.looks = still.looks.saturating_add(1);
            if still.looks >= LOOKS {
                let is_due = still.acted.is_none_or(|acted| now.duration_since(acted) >= LEADER_EVERY);
                still.acted = if is_due { Some(now) } else { still.acted };
                let lasts = now.duration_since(still.since);
                standstills.push(Standstill { stream: stream.clone(), jobs, lasts, is_due });
            }
            self.0.insert(stream, still);
        }
        standstills
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lane_stands_still_after_three_looks_without_a_delivery_and_is_acted_on_once_a_minute() {
        let (mut standstills, start) = (Standstills::default(), Instant::now());
        let mut look = |seconds, deliveries: Option<u64>| {
            let undelivered = |deliveries| Undelivered { stream: "LANE".into(), jobs: 3, deliveries };
            let found = deliveries.map(undelivered).into_iter().collect();
            let standstills = standstills.compare(found, start + Duration::from_secs(seconds));
            standstills.first().map(|found| (found.lasts.as_secs(), found.is_due))
        };
        assert_eq!([look(0, Some(7)), look(5, Some(8)), look(10, Some(8))], [None, None, None], "it delivered one");
        assert_eq!(look(15, Some(8)), Some((10, true)));
        assert_eq!([look(20, Some(8)), look(70, Some(8))], [Some((15, false)), Some((65, false))]);
        assert_eq!(look(75, Some(8)), Some((70, true)));
        assert_eq!(
            [look(80, None), look(85, Some(8)), look(90, Some(8))],
            [None, None, None],
            "it was in somebody's hand"
        );
    }
}
