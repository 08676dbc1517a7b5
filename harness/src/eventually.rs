//! Waits for facts that no part announces: it asks again until the fact is there, and reports the last reason why not.
//!
//! This is the only place in the harness that waits by time. Where an event announces a fact, await the event.

use std::fmt::Display;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout_at};

/// The first pause between two tries, doubled up to [`RARELY`].
const OFTEN: Duration = Duration::from_millis(5);
const RARELY: Duration = Duration::from_millis(200);

/// Calls `attempt` until it returns a value. `what` completes the sentence "waited in vain for …".
///
/// # Panics
/// If no value comes `within` that time, with the last reason given; also if a single try takes longer than that.
pub async fn eventually<T, E: Display>(
    what: &str,
    within: Duration,
    mut attempt: impl AsyncFnMut() -> Result<T, E>,
) -> T {
    let deadline = Instant::now() + within;
    let mut pause = OFTEN;
    let mut reason = "the first try did not return".to_owned();
    loop {
        match timeout_at(deadline, attempt()).await {
            Ok(Ok(value)) => return value,
            Ok(Err(why)) => reason = why.to_string(),
            Err(_) => panic!("waited in vain for {what} ({within:?}); last reason: {reason}"),
        }
        assert!(Instant::now() < deadline, "waited in vain for {what} ({within:?}); last reason: {reason}");
        sleep(pause).await;
        pause = (pause * 2).min(RARELY);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn gives_the_value_once_there_is_one() {
        let mut tries = 0;
        let value = eventually("the third try", Duration::from_secs(10), async || {
            tries += 1;
            if tries == 3 { Ok(tries) } else { Err(format!("only try {tries}")) }
        })
        .await;
        assert_eq!(value, 3);
    }

    #[tokio::test]
    #[should_panic(expected = "waited in vain for rain (50ms); last reason: not a cloud")]
    async fn names_the_last_reason_in_vain() {
        eventually("rain", Duration::from_millis(50), async || Err::<(), _>("not a cloud")).await;
    }

    #[tokio::test]
    #[should_panic(expected = "the first try did not return")]
    async fn a_try_that_hangs_is_cut_off() {
        eventually("an answer", Duration::from_millis(50), async || std::future::pending::<Result<(), &str>>().await)
            .await;
    }
}
