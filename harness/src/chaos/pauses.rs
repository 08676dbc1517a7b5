//! The operator of a chaos run: pauses a queue or a type, waits for the answer, and ends the pause a moment later.
//!
//! A request that gets no answer is repeated, as its client would: the pause counts from the answer on, and until its
//! end is asked for the first time.

use std::time::Duration;

use jiff::Timestamp;
use rand::RngExt;
use rand::rngs::StdRng;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::jobs::{SIDE, Sort};
use crate::history::Pause;
use crate::load::Kind;
use crate::world::World;

/// The pause between two of them, in milliseconds.
const BETWEEN: std::ops::Range<u64> = 500..3_000;
/// How long one holds, in milliseconds.
const HOLDS: std::ops::Range<u64> = 300..2_000;
/// How long one request waits for its answer: a silent node delays that of a pause by 12 s.
const ANSWERED_WITHIN: Duration = Duration::from_secs(20);
/// How long a request is repeated.
const REPEATED_FOR: Duration = Duration::from_secs(120);
const AGAIN_AFTER: Duration = Duration::from_millis(100);

/// The pauses that were answered.
#[derive(Debug, Default)]
pub(super) struct Pauses {
    pub(super) held: Vec<Pause>,
    /// Requests that no node answered, or answered as none should.
    pub(super) wrong: Vec<String>,
}

/// Pauses queues and types until `over` says that the run is over; none is left then.
pub(super) async fn operate(world: &World, mut chance: StdRng, mut over: watch::Receiver<bool>) -> Pauses {
    let mut pauses = Pauses::default();
    loop {
        let between = Duration::from_millis(chance.random_range(BETWEEN));
        let (queue, job_type) = draw(&mut chance);
        let holds = Duration::from_millis(chance.random_range(HOLDS));
        tokio::select! {
            _ = over.wait_for(|over| *over) => return pauses,
            () = tokio::time::sleep(between) => {}
        }
        let of = json!({"queue": queue, "type": job_type});
        let is_paused = ask(world, "queues.pause", &of).await;
        let from = Timestamp::now();
        if is_paused.is_ok() {
            tokio::time::sleep(holds).await;
        }
        let until = Timestamp::now();
        let is_over = ask(world, "queues.resume", &of).await;
        match is_paused {
            Ok(()) => pauses.held.push(Pause { queue, job_type, from, until }),
            Err(said) => pauses.wrong.push(said),
        }
        pauses.wrong.extend(is_over.err());
    }
}

/// A queue, a type, or a type in one queue.
fn draw(chance: &mut StdRng) -> (Option<String>, Option<String>) {
    let types = [Sort::Load(Kind::Quick), Sort::Load(Kind::Remote), Sort::PerKey, Sort::Capped, Sort::Ordered];
    let job_type = types[chance.random_range(0..types.len())].job_type().to_owned();
    match chance.random_range(0..4) {
        0 => (Some(SIDE.to_owned()), None),
        1 => (Some(SIDE.to_owned()), Some(Sort::Capped.job_type().to_owned())),
        _ => (None, Some(job_type)),
    }
}

async fn ask(world: &World, endpoint: &str, of: &Value) -> Result<(), String> {
    let asked = tokio::time::Instant::now();
    loop {
        let error = match world.ask("_all", endpoint, of.to_string(), ANSWERED_WITHIN).await {
            Ok(_) => return Ok(()),
            Err(error) => error,
        };
        let is_final = error.code != 0 && error.code < 500;
        if is_final || asked.elapsed() > REPEATED_FOR {
            return Err(format!("{endpoint} of {of} was answered {} {}", error.code, error.error));
        }
        tokio::time::sleep(AGAIN_AFTER).await;
    }
}
