//! Says that jobs wait in a queue that no node serves: a system event, a line in the log, a warning in `health`.
//!
//! One node looks for the cluster: the first by name that is there. A queue counts as unserved once two looks in a row
//! have found it so, since a node that is started again is away for a moment. Should the first node go, the next one
//! begins anew. The same node looks for lanes that stand still (`standstill`).

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use longshore_backbone::Error;
use longshore_domain::{Queue, Timestamp};
use serde_json::json;

use crate::cluster::Watcher;
use crate::cluster::counts::{counts_of, stored};
use crate::cluster::standstill::Standstills;
use crate::runtime::identity::is_first;
use crate::runtime::now;
use crate::runtime::supervision::{LoopEnd, ticks};

/// How often it looks: two questions, and some for each queue that no node serves.
const CHECK_EVERY: Duration = Duration::from_secs(5);
/// An event that still holds is repeated after this.
const AGAIN_AFTER: Duration = Duration::from_secs(60 * 60);

/// A queue that is not served, as far as the last look saw.
struct Unserved {
    since: Timestamp,
    /// When that was published; `None`: not yet.
    warned: Option<Instant>,
}

pub(crate) async fn run(watcher: Watcher) -> LoopEnd {
    let mut tick = ticks(CHECK_EVERY);
    let (mut known, mut standstills) = (BTreeMap::new(), Standstills::default());
    loop {
        tick.tick().await;
        if let Err(error) = look(&watcher, &mut known, &mut standstills).await {
            tracing::debug!("cannot see whether every queue is served: {}", error.with_causes());
        }
    }
}

/// Checks once, and reports what two checks have found.
async fn look(
    watcher: &Watcher,
    known: &mut BTreeMap<Queue, Unserved>,
    standstills: &mut Standstills,
) -> Result<(), Error> {
    let Watcher { backbone, identity, health, metrics, system_events } = watcher;
    let (served, found) = match is_first(&backbone.nodes(), identity).await? {
        true => unserved(watcher).await?,
        false => (Vec::new(), BTreeMap::new()),
    };
    let mut warnings = Vec::new();
    for Warning { queue, waiting, since, is_news } in compare(known, found, now(), Instant::now()) {
        if is_news {
            tracing::warn!(%queue, waiting, "jobs wait in a queue that no node serves: start a node whose configuration names it");
            let details = json!({"queue": queue, "waiting": waiting, "since": since});
            system_events.publish_about("queue_unserved", Some(&queue), None, details).await;
        }
        warnings.push(format!("no node serves queue {queue} since {since}: {waiting} jobs wait in it"));
    }
    warnings.extend(standstills.look(backbone, metrics, served).await);
    health.unserved.set(warnings);
    Ok(())
}

/// A queue that two looks in a row found unserved.
#[derive(Debug, PartialEq)]
struct Warning {
    queue: Queue,
    waiting: u64,
    since: Timestamp,
    /// It was not published lately.
    is_news: bool,
}

/// What a look has found, compared with the one before.
fn compare(
    known: &mut BTreeMap<Queue, Unserved>,
    found: BTreeMap<Queue, u64>,
    now: Timestamp,
    at: Instant,
) -> Vec<Warning> {
    known.retain(|queue, _| found.contains_key(queue));
    let mut warnings = Vec::new();
    for (queue, waiting) in found {
        let Some(before) = known.get_mut(&queue) else {
            known.insert(queue, Unserved { since: now, warned: None });
            continue;
        };
        let is_news = before.warned.is_none_or(|warned| at.duration_since(warned) >= AGAIN_AFTER);
        if is_news {
            before.warned = Some(at);
        }
        warnings.push(Warning { queue, waiting, since: before.since, is_news });
    }
    warnings
}

/// The queues that a node serves; and those without one, with how many jobs wait to start in each, if any wait.
async fn unserved(Watcher { backbone, identity, .. }: &Watcher) -> Result<(Vec<Queue>, BTreeMap<Queue, u64>), Error> {
    let nodes = backbone.nodes();
    let (queues, nodes) = tokio::try_join!(backbone.declared_queues(), nodes.present(now()))?;
    if !nodes.iter().any(|presence| *presence.node == *identity.node) {
        // Nor may others have been able to write that they are there: the server may have no room left.
        return Ok((Vec::new(), BTreeMap::new()));
    }
    let is_served = |queue: &Queue| nodes.iter().any(|node| node.serves(queue));
    let (served, others): (Vec<Queue>, Vec<Queue>) = queues.into_iter().partition(is_served);
    let mut found = BTreeMap::new();
    for queue in others {
        let counts = counts_of(&stored(backbone, &queue, None).await?, &[], None, now());
        let waiting: u64 = counts.waiting.iter().sum();
        if waiting > 0 {
            found.insert(queue, waiting);
        }
    }
    Ok((served, found))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The looks of a node, each 5 s after the one before.
    struct Checks {
        known: BTreeMap<Queue, Unserved>,
        start: Instant,
        seconds: u64,
    }

    impl Checks {
        fn new() -> Self {
            Self { known: BTreeMap::new(), start: Instant::now(), seconds: 0 }
        }

        /// Looks, and finds so many jobs in the queue `mail`; the warning that follows.
        fn find(&mut self, jobs: Option<u64>) -> Option<(u64, i64, bool)> {
            self.seconds += CHECK_EVERY.as_secs();
            let found = jobs.map(|jobs| (Queue::parse("mail").unwrap(), jobs)).into_iter().collect();
            let at = self.start + Duration::from_secs(self.seconds);
            let now = Timestamp::from_millis(1_000 * i64::try_from(self.seconds).unwrap());
            let mut warnings = compare(&mut self.known, found, now, at);
            assert!(warnings.len() <= 1);
            warnings.pop().map(|Warning { waiting, since, is_news, .. }| (waiting, since.millis() / 1_000, is_news))
        }
    }

    #[test]
    fn a_queue_counts_as_unserved_once_two_looks_in_a_row_have_found_it_so() {
        let mut checks = Checks::new();
        assert_eq!(checks.find(Some(3)), None, "its node may just be started again");
        assert_eq!(checks.find(Some(4)), Some((4, 5, true)), "since the first of them");
        assert_eq!(checks.find(None), None);
        assert_eq!(checks.find(Some(4)), None, "it was served meanwhile");
        assert_eq!(checks.find(Some(5)), Some((5, 20, true)));
    }

    #[test]
    fn the_warning_stays_and_the_event_is_published_once_an_hour() {
        let mut checks = Checks::new();
        checks.find(Some(1));
        let checks_per_hour = AGAIN_AFTER.as_secs() / CHECK_EVERY.as_secs();
        let warnings: Vec<_> = (0..=2 * checks_per_hour).map(|_| checks.find(Some(1)).unwrap()).collect();
        assert!(warnings.iter().all(|(waiting, since, _)| (*waiting, *since) == (1, 5)));
        let news: Vec<usize> = (0..warnings.len()).filter(|nth| warnings[*nth].2).collect();
        assert_eq!(news, [0, 720, 1_440]);
    }
}
