//! A steady load of jobs, each published again until the server has confirmed it.
//!
//! Each job has its own `Nats-Msg-Id`, which makes the repeats harmless: if a publish was stored but its answer was
//! lost, the repeat gets the answer for the stored message.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use async_nats::{Client, HeaderMap, Request};
use bytes::Bytes;
use jiff::Timestamp;
use serde_json::Value;
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{MissedTickBehavior, interval, sleep};

use crate::faults::{BUILT_IN, REMOTE};
use crate::jobs;

/// How long one publish may go unanswered before it is repeated.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);
/// The pause before a repeat after an error.
const PAUSE: Duration = Duration::from_millis(100);
/// Repeats of one publish. A server that is down for longer than that is a separate fault.
const TRIES: usize = 600;
/// One job in this many is done by a remote handler.
const REMOTE_ONE_IN: u64 = 5;

/// A job that the server has confirmed.
#[derive(Debug)]
pub(super) struct Stored {
    pub run_id: String,
    /// Whether a remote handler does it.
    pub remote: bool,
    /// When the confirmation came.
    pub at: Timestamp,
}

/// The running load.
#[derive(Debug)]
pub(super) struct Load {
    stop: watch::Sender<bool>,
    publishing: JoinHandle<anyhow::Result<Vec<Stored>>>,
}

impl Load {
    /// Publishes `rate` jobs per second, each of which works for `works_ms`.
    pub(super) fn start(client: Client, rate: u32, works_ms: u64) -> Load {
        let (stop, stopped) = watch::channel(false);
        let publishing = tokio::spawn(publish(client, rate, works_ms, stopped));
        Load { stop, publishing }
    }

    /// Stops publishing, waits until all jobs are confirmed, and returns the confirmed jobs.
    pub(super) async fn stop(self) -> anyhow::Result<Vec<Stored>> {
        self.stop.send_replace(true);
        self.publishing.await?
    }
}

async fn publish(
    client: Client,
    rate: u32,
    works_ms: u64,
    mut stopped: watch::Receiver<bool>,
) -> anyhow::Result<Vec<Stored>> {
    let mut tick = interval(Duration::from_secs(1) / rate);
    tick.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let body = jobs::body(&format!("\"ms\":{works_ms}"));
    let subjects = [BUILT_IN, REMOTE].map(|job_type| Arc::from(jobs::subject(5, job_type)));
    let mut under_way = JoinSet::new();
    let mut stored = Vec::new();
    for number in 0_u64.. {
        tokio::select! {
            _ = stopped.wait_for(|stopped| *stopped) => break,
            _ = tick.tick() => {}
        }
        let remote = number % REMOTE_ONE_IN == 0;
        let subject: Arc<str> = Arc::clone(&subjects[usize::from(remote)]);
        under_way.spawn(until_stored(client.clone(), (subject, remote), body.clone(), number));
        while let Some(done) = under_way.try_join_next() {
            stored.push(done??);
        }
    }
    while let Some(done) = under_way.join_next().await {
        stored.push(done??);
    }
    Ok(stored)
}

async fn until_stored(
    client: Client,
    (subject, remote): (Arc<str>, bool),
    body: Bytes,
    number: u64,
) -> anyhow::Result<Stored> {
    let mut headers = HeaderMap::new();
    headers.insert("Nats-Msg-Id", format!("job-{number}"));
    let mut last = None;
    for _ in 0..TRIES {
        let request = Request::new().headers(headers.clone()).payload(body.clone()).timeout(Some(ANSWER_WITHIN));
        match client.send_request(subject.to_string(), request).await {
            Ok(answer) => {
                let ack: Value = serde_json::from_slice(&answer.payload).unwrap_or_default();
                if let Some(sequence) = ack["seq"].as_u64().filter(|_| ack["error"].is_null()) {
                    return Ok(Stored { run_id: format!("main-p5-{sequence}"), remote, at: Timestamp::now() });
                }
                last = Some(anyhow::anyhow!("not stored: {ack}"));
            }
            Err(error) => last = Some(error.into()),
        }
        sleep(PAUSE).await;
    }
    Err(last.context("it was tried at least once")?.context(format!("job {number} could not be published")))
}
