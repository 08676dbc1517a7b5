//! Brings the jobs of a chaos run, each by one of the ways a client has, through all the trouble.

use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use jiff::Timestamp;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::json;

use super::Chaos;
use crate::load::Kind;
use crate::publish::Receipt;
use crate::world::{TENANT, World};

/// The kinds, each as often as it stands here.
const MIX: [(Kind, u32); 13] = [
    (Kind::Quick, 300),
    (Kind::Slow, 70),
    (Kind::Once, 100),
    (Kind::Later, 60),
    (Kind::Always, 50),
    (Kind::Never, 50),
    (Kind::Hang, 30),
    (Kind::Panic, 50),
    (Kind::Delayed, 80),
    (Kind::Snooze, 50),
    (Kind::Remote, 140),
    (Kind::Invalid, 15),
    (Kind::Killer, 1),
];

/// Jobs on their way at once: enough to go on publishing while some wait for a server that is gone.
const OPEN: usize = 256;

/// Before a publish that was not confirmed is repeated.
const PAUSE: Duration = Duration::from_millis(100);

/// How a client sends a job.
#[derive(Debug, Clone, Copy)]
enum Way {
    /// Published once; not confirmed means not accepted, though it may have been taken.
    Bare,
    /// Published under an id of the client's own until it is confirmed.
    Named,
    /// Submitted under an id of the client's own until it is answered.
    Submitted,
}

/// Publishes all jobs at their rate, and gives those whose acceptance was confirmed.
pub(super) async fn publish(world: &World, chaos: Chaos) -> Vec<(Kind, Receipt)> {
    // Not the faults' own chance: one more draw there must not change the jobs.
    let mut chance = StdRng::seed_from_u64(!chaos.seed);
    let mut tick = tokio::time::interval(Duration::from_secs(1) / chaos.rate.max(1));
    let mut open = FuturesUnordered::new();
    let mut accepted = Vec::with_capacity(chaos.jobs);
    for number in 0..chaos.jobs {
        let (kind, way) = draw(&mut chance);
        let run_id = format!("chaos-{}-{number}", chaos.seed);
        open.push(async move { (kind, send(world, kind, way, run_id).await) });
        loop {
            tokio::select! {
                Some((kind, receipt)) = open.next() => accepted.extend(receipt.map(|receipt| (kind, receipt))),
                _ = tick.tick(), if open.len() < OPEN => break,
            }
        }
    }
    while let Some((kind, receipt)) = open.next().await {
        accepted.extend(receipt.map(|receipt| (kind, receipt)));
    }
    accepted
}

fn draw(chance: &mut StdRng) -> (Kind, Way) {
    let mut at = chance.random_range(0..MIX.iter().map(|(_, share)| share).sum());
    let kind = MIX.iter().find_map(|(kind, share)| {
        let is_it = at < *share;
        at = at.saturating_sub(*share);
        is_it.then_some(*kind)
    });
    let kind = kind.unwrap_or(Kind::Quick);
    let way = match chance.random_range(0..10) {
        // What cannot be read has no id of its own either, and `submit` would refuse it.
        _ if kind == Kind::Invalid => Way::Bare,
        0..5 => Way::Bare,
        5..8 => Way::Named,
        _ => Way::Submitted,
    };
    (kind, way)
}

async fn send(world: &World, kind: Kind, way: Way, run_id: String) -> Option<Receipt> {
    let payload = kind.payload().to_string();
    match way {
        Way::Bare => kind.publish(world).send(payload).await.ok(),
        Way::Named => {
            let publish = kind.publish(world).header("Longshore-Run-Id", &run_id);
            loop {
                if let Ok(receipt) = publish.send(payload.clone()).await {
                    return Some(receipt);
                }
                tokio::time::sleep(PAUSE).await;
            }
        }
        Way::Submitted => {
            let mut job = json!({"type": kind.job_type(), "payload": kind.payload(), "run_id": run_id});
            if kind == Kind::Delayed {
                job["delay_ms"] = json!(500);
            }
            while let Err(error) = world.try_request(TENANT, "submit", job.clone()).await {
                assert!(error.code == 0 || error.code >= 500, "submit of {job}: {error}");
                tokio::time::sleep(PAUSE).await;
            }
            let (tenant, stream, at) = (TENANT.to_owned(), String::new(), Timestamp::now());
            Some(Receipt { tenant, run_id, stream, sequence: 0, duplicate: false, at })
        }
    }
}
