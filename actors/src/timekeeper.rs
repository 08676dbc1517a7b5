//! The timekeeper: brings due jobs into their lanes.
//!
//! The server publishes a schedule's job on a due subject when its time has come; here it is published into its lane,
//! under an id of run, round, attempt and due time, and then acknowledged. A firing that comes twice is thus mostly
//! caught by the id, and always by the record.
//!
//! Bounds: [`AT_ONCE`] moves; it pulls no more than it has room for.

use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use longshore_backbone::delivery::Delivery;
use longshore_backbone::pull::{Pulled, Puller};
use longshore_backbone::request::{STREAM_FULL, nobody_there};
use longshore_backbone::schedule::FULL_AGAIN_AFTER;
use longshore_backbone::wire::header::{self, is_servers};
use longshore_backbone::{Error, Headers};
use longshore_domain::{JobType, Priority, Queue, Tenant};
use tokio::task::JoinSet;

use crate::carry_out::chain;
use crate::fail_point;
use crate::shared::Shared;

/// Jobs that are being moved at once.
const AT_ONCE: usize = 256;
/// How often it looks whether the server still knows of its pulls.
const TICK: Duration = Duration::from_millis(250);
/// A queue that no node has declared is asked for again after this long.
const UNDECLARED_AGAIN_AFTER: Duration = Duration::from_secs(5);

/// Moves due jobs until the node drains.
pub(crate) async fn run(shared: Arc<Shared>) {
    let mut puller = match Puller::of_due(&shared.backbone).await {
        Ok(puller) => puller,
        Err(error) => panic!("the timekeeper cannot work: {error}"),
    };
    let mut moves = JoinSet::new();
    let mut tick = tokio::time::interval(TICK);
    let draining = shared.draining.clone();
    loop {
        tokio::select! {
            biased;
            () = draining.cancelled() => break,
            Some(_) = moves.join_next(), if !moves.is_empty() => {}
            delivery = next(&mut puller), if moves.len() < AT_ONCE => match delivery {
                Some(Some(delivery)) => { moves.spawn(move_to_lane(Arc::clone(&shared), delivery)); }
                Some(None) => {}
                None => panic!("the connection's subscription ended"),
            },
            _ = tick.tick() => {
                if puller.reconnected() {
                    puller.forget_pulls();
                }
                puller.forget_silent(Instant::now());
            }
        }
        puller.top_up(0, moves.len(), AT_ONCE).await;
    }
    puller.close().await;
    while moves.join_next().await.is_some() {}
    std::future::pending::<()>().await;
}

/// The next due job, or a word from the server.
async fn next(puller: &mut Puller) -> Option<Option<Delivery>> {
    std::future::poll_fn(|context| {
        let now = Instant::now();
        match puller.poll(context, now, now) {
            Poll::Ready(Some(Pulled::Job(_, delivery))) => Poll::Ready(Some(Some(delivery))),
            Poll::Ready(Some(Pulled::Word(_))) => Poll::Ready(Some(None)),
            Poll::Ready(None) => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

async fn move_to_lane(shared: Arc<Shared>, delivery: Delivery) {
    let Delivery { subject, headers, payload, holding, right, .. } = delivery;
    let Some((lane, tenant)) = lane_of(&shared, &subject) else {
        // Only nodes write schedules, and they write readable ones.
        tracing::error!(%subject, "a due job's subject cannot be read; it is dropped");
        return shared.backbone.ack(right).await;
    };
    let headers = without_servers(headers);
    let id = match header::read_job(&headers) {
        Ok(read) => {
            let run = read.run_id.map(|id| id.to_string()).unwrap_or_default();
            let moved = read.moved.map(|moved| (moved.round, moved.attempt, moved.deferrals));
            let (round, attempt, wait) = moved.unwrap_or_default();
            let seal = read.seal.unwrap_or_default();
            format!("{tenant}/{run}/{seal}/{round}/{attempt}/{wait}")
        }
        Err(_) => format!("{tenant}/due/{}", holding.message.sequence),
    };
    let mut told = false;
    loop {
        let moved = shared.backbone.move_to_lane(lane.clone(), headers.clone(), payload.clone(), &id).await;
        let Err(error) = moved else { break };
        let wait = match &error {
            Error::Refused { code, .. } if STREAM_FULL.contains(code) => FULL_AGAIN_AFTER,
            error if nobody_there(error) && shared.backbone.is_connected() => UNDECLARED_AGAIN_AFTER,
            _ => FULL_AGAIN_AFTER,
        };
        if !std::mem::replace(&mut told, true) {
            tracing::warn!(subject = lane, "a due job cannot go into its lane yet: {}", chain(&error));
        }
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            // Handed back by being dropped.
            () = shared.draining.cancelled() => return,
        }
    }
    fail_point::pass("after-move");
    shared.backbone.ack(right).await;
}

fn lane_of(shared: &Shared, subject: &str) -> Option<(String, Tenant)> {
    let read = shared.backbone.names().read_job(subject)?;
    let tenant = Tenant::parse(read.tenant).ok()?;
    let queue = Queue::parse(read.queue).ok()?;
    let priority = Priority::parse(read.priority).ok()?;
    let job_type = JobType::parse(read.job_type).ok()?;
    Some((shared.backbone.names().job(&tenant, &queue, priority, &job_type), tenant))
}

/// The headers of a fired schedule without what the server put there.
fn without_servers(headers: Option<Headers>) -> Headers {
    let mut kept = Headers::new();
    for (name, values) in headers.iter().flat_map(|headers| headers.iter()) {
        if !is_servers(name.as_ref()) {
            for value in values {
                kept.append(name.clone(), value.clone());
            }
        }
    }
    kept
}
