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
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};

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
    /// When it was to be published, whatever happened to the jobs before it.
    pub due: Timestamp,
    /// When the confirmation came.
    pub at: Timestamp,
}

/// The running load.
#[derive(Debug)]
pub(super) struct Load {
    /// Jobs per second; none: the load ends.
    rate: watch::Sender<Option<u32>>,
    publishing: JoinHandle<anyhow::Result<Vec<Stored>>>,
}

impl Load {
    /// Publishes `rate` jobs per second, each of which works for `works_ms`.
    pub(super) fn start(client: Client, rate: u32, works_ms: u64) -> Load {
        let (rate, rates) = watch::channel(Some(rate));
        let publishing = tokio::spawn(publish(client, rates, works_ms));
        Load { rate, publishing }
    }

    /// Publishes so many jobs per second from now on.
    pub(super) fn set_rate(&self, rate: u32) {
        self.rate.send_replace(Some(rate));
    }

    /// Stops publishing, waits until all jobs are confirmed, and returns the confirmed jobs.
    pub(super) async fn stop(self) -> anyhow::Result<Vec<Stored>> {
        self.rate.send_replace(None);
        self.publishing.await?
    }
}

async fn publish(
    client: Client,
    mut rates: watch::Receiver<Option<u32>>,
    works_ms: u64,
) -> anyhow::Result<Vec<Stored>> {
    let steady = |rate: u32| {
        let mut tick = interval(Duration::from_secs(1) / rate);
        tick.set_missed_tick_behavior(MissedTickBehavior::Burst);
        tick
    };
    let Some(rate) = *rates.borrow_and_update() else { return Ok(Vec::new()) };
    let mut tick = steady(rate);
    let body = jobs::body(&format!("\"ms\":{works_ms}"));
    let subjects = [BUILT_IN, REMOTE].map(|job_type| Arc::from(jobs::subject(5, job_type)));
    let mut under_way = JoinSet::new();
    let mut stored = Vec::new();
    let mut number = 0_u64;
    loop {
        let due = tokio::select! {
            changed = rates.changed() => match *rates.borrow_and_update() {
                Some(rate) if changed.is_ok() => {
                    tick = steady(rate);
                    continue;
                }
                _ => break,
            },
            due = tick.tick() => due,
        };
        let late = Instant::now().saturating_duration_since(due);
        let job = Job { number, remote: number.is_multiple_of(REMOTE_ONE_IN), due: Timestamp::now() - late };
        let subject = Arc::clone(&subjects[usize::from(job.remote)]);
        under_way.spawn(until_stored(client.clone(), subject, body.clone(), job));
        number += 1;
        while let Some(done) = under_way.try_join_next() {
            stored.push(done??);
        }
    }
    while let Some(done) = under_way.join_next().await {
        stored.push(done??);
    }
    Ok(stored)
}

/// A job to be published.
struct Job {
    number: u64,
    remote: bool,
    due: Timestamp,
}

async fn until_stored(client: Client, subject: Arc<str>, body: Bytes, job: Job) -> anyhow::Result<Stored> {
    let Job { number, remote, due } = job;
    let mut headers = HeaderMap::new();
    headers.insert("Nats-Msg-Id", format!("job-{number}"));
    let mut last = None;
    for _ in 0..TRIES {
        let request = Request::new().headers(headers.clone()).payload(body.clone()).timeout(Some(ANSWER_WITHIN));
        match client.send_request(subject.to_string(), request).await {
            Ok(answer) => {
                let ack: Value = serde_json::from_slice(&answer.payload).unwrap_or_default();
                if let Some(sequence) = ack["seq"].as_u64().filter(|_| ack["error"].is_null()) {
                    return Ok(Stored { run_id: format!("main-p5-{sequence}"), remote, due, at: Timestamp::now() });
                }
                last = Some(anyhow::anyhow!("not stored: {ack}"));
            }
            Err(error) => last = Some(error.into()),
        }
        sleep(PAUSE).await;
    }
    Err(last.context("it was tried at least once")?.context(format!("job {number} could not be published")))
}
