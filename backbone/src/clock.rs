//! The clock of this process: the cluster's time, which is the NATS server's.
//!
//! A node asks the leader of the control bucket for it, before it judges anything, and goes on to do so all the time;
//! between two answers the process's monotonic clock carries it on. So a machine's own time of day, however wrong, and
//! however it is set meanwhile, decides nothing. One process is one node, so it has one clock. Leases are no matter of
//! it: they count on the monotonic clock alone.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use longshore_domain::Timestamp;
use longshore_domain::cluster_clock::{Comparison, Comparisons, Skew};

use crate::Backbone;
use crate::connection::link::Link;
use crate::streams::info::{self, Unanswered};

/// How often a node that starts asks, so that one slow answer does not count alone.
const FIRST_QUESTIONS: u32 = 3;
const AGAIN_AFTER: Duration = Duration::from_millis(200);

struct Clock {
    began: Instant,
    /// By how many microseconds the cluster's time is ahead of what has passed since `began`.
    ahead: AtomicI64,
    comparisons: Mutex<Comparisons>,
}

static CLOCK: LazyLock<Clock> = LazyLock::new(|| {
    let began = Instant::now();
    // Until the server has answered, this machine's clock is all there is.
    Clock { began, ahead: AtomicI64::new(own_ahead_of(began)), comparisons: Mutex::default() }
});

/// The cluster's time.
pub fn now() -> Timestamp {
    let passed = i64::try_from(CLOCK.began.elapsed().as_micros()).unwrap_or(i64::MAX);
    Timestamp::from_millis(CLOCK.ahead.load(Ordering::Relaxed).saturating_add(passed) / 1_000)
}

/// This machine's own time of day: to be shown, never to be judged by.
pub fn own() -> Timestamp {
    Timestamp::from_millis(own_micros() / 1_000)
}

/// By how many microseconds this machine's time of day is ahead of the monotonic clock: it changes when somebody sets
/// the one, or the machine was suspended, which stops the other.
pub fn own_ahead() -> i64 {
    own_ahead_of(CLOCK.began)
}

fn own_ahead_of(began: Instant) -> i64 {
    own_micros().saturating_sub(i64::try_from(began.elapsed().as_micros()).unwrap_or(i64::MAX))
}

fn own_micros() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
}

impl Backbone {
    /// Asks for the server's time, and goes by it from now on. Returns how far this machine's own clock is from it.
    ///
    /// # Errors
    /// No server answered: the clock goes on as before.
    pub async fn set_clock(&self) -> Result<Skew, Unanswered> {
        ask(self.control(), &self.names().bucket_stream("control")).await
    }
}

/// Sets the clock of a node that starts, and tries for so long.
pub(crate) async fn set_first(link: &Link, bucket: &str, within: Duration) -> Result<(), Unanswered> {
    let (until, mut answers) = (Instant::now() + within, 0);
    loop {
        match ask(link, bucket).await {
            Ok(_) => answers += 1,
            Err(error) if Instant::now() >= until => return Err(error),
            Err(_) => tokio::time::sleep(AGAIN_AFTER).await,
        }
        if answers == FIRST_QUESTIONS {
            return Ok(());
        }
    }
}

async fn ask(link: &Link, bucket: &str) -> Result<Skew, Unanswered> {
    let sent = CLOCK.began.elapsed();
    let stream = info::stream(link, bucket).await?;
    let received = CLOCK.began.elapsed();
    let server = stream.and_then(|stream| stream.answered_at());
    let server = server.ok_or_else(|| Unanswered(format!("no server says what time it is, of {bucket}")))?;
    let (mut comparisons, own) = (CLOCK.comparisons.lock().unwrap_or_else(PoisonError::into_inner), own_ahead());
    comparisons.add(Comparison::new(server, sent, received));
    let (ahead, within) = comparisons.ahead(own).unwrap_or((own, 0));
    CLOCK.ahead.store(ahead, Ordering::Relaxed);
    Ok(Skew { ahead_ms: (own - ahead) / 1_000, within_ms: within / 1_000 + 1 })
}
