//! The number of messages in streams, as the server reports it.

use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use longshore_harness::World;
use tokio::time::sleep;

/// The stream that holds the run records.
pub(crate) const RECORDS: &str = "KV_longshore_runs";
/// The stream that holds the messages that wait for their time.
pub(crate) const SCHEDULES: &str = "LONGSHORE_SCHEDULES";

/// The pause between two requests to a stream that is nearly empty.
const OFTEN: Duration = Duration::from_millis(2);

/// The lane of a priority of the queue `main`.
pub(crate) fn lane(priority: u8) -> String {
    format!("LONGSHORE_JOBS_main_P{priority}")
}

/// The number of messages in a stream.
pub(crate) async fn messages(world: &World, stream: &str) -> anyhow::Result<u64> {
    let found = world.jetstream().get_stream(stream).await.with_context(|| format!("stream {stream}"))?;
    Ok(found.cached_info().state.messages)
}

/// The number of messages in all existing lanes; a bare world has only one.
pub(crate) async fn waiting_if_any(world: &World) -> u64 {
    let mut sum = 0;
    for priority in 1..=9 {
        sum += messages(world, &lane(priority)).await.unwrap_or(0);
    }
    sum
}

/// Waits until these streams are empty, in this order.
pub(crate) async fn emptied(world: &World, streams: &[String], within: Duration) -> anyhow::Result<()> {
    let deadline = Instant::now() + within;
    for stream in streams {
        loop {
            match messages(world, stream).await? {
                0 => break,
                left if Instant::now() > deadline => bail!("{left} messages are left in {stream} after {within:?}"),
                _ => sleep(OFTEN).await,
            }
        }
    }
    Ok(())
}

/// Waits until no job of the queue `main` is in its lanes, and none waits for its time.
pub(crate) async fn jobs_gone(world: &World, within: Duration) -> anyhow::Result<()> {
    let streams: Vec<String> = (1..=9).map(lane).chain([SCHEDULES.to_owned()]).collect();
    emptied(world, &streams, within).await
}

/// Waits until there are `count` messages, or what else is counted, and calls `meanwhile` with each answer on the way.
///
/// The requests cost server time that counts as the product's, so they are rare: the next one is sent when, at the
/// present rate, half of the missing messages will have arrived.
pub(crate) async fn filled(
    count_now: impl AsyncFn() -> anyhow::Result<u64>,
    count: u64,
    stalled_after: Duration,
    mut meanwhile: impl FnMut(u64),
) -> anyhow::Result<()> {
    let start = Instant::now();
    let mut last = (0, Instant::now());
    loop {
        let there = count_now().await?;
        meanwhile(there);
        if there >= count {
            return Ok(());
        }
        if there > last.0 {
            last = (there, Instant::now());
        } else if last.1.elapsed() > stalled_after {
            bail!("stuck: {there} of {count}, and none more for {stalled_after:?}");
        }
        let left = start.elapsed().mul_f64((count - there) as f64 / there.max(1) as f64);
        sleep((left / 2).clamp(OFTEN, Duration::from_millis(200))).await;
    }
}
