//! The handlers of the job sorts that only a chaos run has. They write down every call; some publish follow-ups.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use async_nats::{Client, HeaderMap};
use serde_json::{Value, json};

use super::jobs::{Goes, Job as Accepted, Sort};
use super::recurring;
use crate::publish::{Receipt, acknowledgement};
use crate::remote::{Asked, Handler, Job, Reply};
use crate::world::{NAMESPACE, TENANT, World};

/// The number of handlers that run at once.
const HANDLERS: usize = 2;

/// How long the work on a job that may be cancelled takes.
const CANCELLED_WORKS: Duration = Duration::from_millis(400);

/// How long the work on a job under a concurrency limit takes: long enough that others wait for it.
const LIMITED_WORKS: Duration = Duration::from_millis(250);

/// How long the work on a run of a schedule takes that leaves overlaps out.
const RECURRING_WORKS: Duration = Duration::from_millis(1_300);

/// How long the work on a job of an ordered key takes: long enough that another would be seen beside it.
const ORDERED_WORKS: Duration = Duration::from_millis(40);

/// How many attempts of a job of an ordered key fail that is to succeed later.
const ORDERED_FAILS: u32 = 2;

/// How long a follow-up's publish may go unanswered before the handler gives up and fails.
const ANSWER_WITHIN: Duration = Duration::from_secs(4);

/// The headers that a correct handler passes on to a follow-up.
const PASSED_ON: [&str; 3] = ["traceparent", "Content-Type", "X-Own"];

/// The running handlers, the calls of those before them, and the follow-ups of all.
#[derive(Debug, Default)]
pub(super) struct Handlers {
    running: Vec<Handler>,
    before: Vec<Asked>,
    follow_ups: Arc<Mutex<FollowUps>>,
}

/// The results of the follow-ups.
#[derive(Debug, Default)]
struct FollowUps {
    stored: Vec<Accepted>,
    /// Parents that passed on all their headers, and whose follow-up ran all the same.
    ran_wrongly: Vec<String>,
}

impl Handlers {
    pub(super) async fn new(world: &World) -> Handlers {
        let mut handlers = Handlers::default();
        for _ in 0..HANDLERS {
            handlers.hire(world).await;
        }
        handlers
    }

    /// Kills one handler, as by a signal, and starts another after `pause`.
    pub(super) async fn replace(&mut self, world: &World, pause: Duration) {
        let gone = self.running.remove(0);
        self.before.extend(gone.asked());
        drop(gone);
        tokio::time::sleep(pause).await;
        self.hire(world).await;
    }

    async fn hire(&mut self, world: &World) {
        let (client, follow_ups) = (world.client().clone(), Arc::clone(&self.follow_ups));
        let answer = move |job: Job| answer(job, client.clone(), Arc::clone(&follow_ups));
        self.running.push(world.handler("chaos.>").start(answer).await);
    }

    /// All calls to these handlers.
    pub(super) fn asked(&self) -> Vec<Asked> {
        let now = self.running.iter().flat_map(Handler::asked);
        self.before.iter().cloned().chain(now).collect()
    }

    /// The follow-ups that were stored and must run.
    pub(super) fn children(&self) -> Vec<Accepted> {
        lock(&self.follow_ups).stored.clone()
    }

    /// Parents whose follow-up should have been refused but ran.
    pub(super) fn ran_wrongly(&self) -> Vec<String> {
        lock(&self.follow_ups).ran_wrongly.clone()
    }
}

fn lock(follow_ups: &Mutex<FollowUps>) -> MutexGuard<'_, FollowUps> {
    follow_ups.lock().expect("no code panics while it holds the follow-ups")
}

async fn answer(job: Job, client: Client, follow_ups: Arc<Mutex<FollowUps>>) -> Reply {
    let job_type = job.headers.get("Longshore-Type").map(|value| value.as_str().to_owned()).unwrap_or_default();
    let sent = match job_type.as_str() {
        "chaos.follows" => publish(&job, &client, passed_on(&job.headers)).await,
        "chaos.forwards" => publish(&job, &client, job.headers.clone()).await,
        // Longer than the time to its schedule's next, which must be left out.
        "chaos.recurring" if job.run_id.starts_with(recurring::ALONE) => {
            tokio::time::sleep(RECURRING_WORKS).await;
            return Reply::json(json!("done"));
        }
        "chaos.per_key" | "chaos.capped" | "chaos.recurring" => {
            tokio::time::sleep(LIMITED_WORKS).await;
            return Reply::json(json!("done"));
        }
        "chaos.ordered" => return ordered(&job).await,
        "chaos.cancelled" => {
            tokio::time::sleep(CANCELLED_WORKS).await;
            return Reply::json(json!("done"));
        }
        _ => {
            let payload = job.json();
            if payload["by"] == "chaos.forwards" {
                lock(&follow_ups).ran_wrongly.push(payload["follow_up_of"].to_string());
            }
            return Reply::json(json!("done"));
        }
    };
    let Some(receipt) = sent else { return Reply::error(503, "the follow-up was not stored") };
    let stored = &mut lock(&follow_ups).stored;
    // A handler that is called again publishes the same follow-up again, and the server knows it by its id.
    let is_known = stored.iter().any(|child| child.receipt.run_id == receipt.run_id);
    if job_type == "chaos.follows" && !is_known {
        stored.push(Accepted::new(Sort::Child, usize::MAX, receipt));
    }
    Reply::json(json!("published"))
}

/// Works on a job of an ordered key, as its number says.
async fn ordered(job: &Job) -> Reply {
    tokio::time::sleep(ORDERED_WORKS).await;
    let number = job.json()["number"].as_u64().and_then(|number| usize::try_from(number).ok()).unwrap_or_default();
    let fails = job.attempt <= ORDERED_FAILS;
    match Goes::of(number) {
        Goes::Again if fails => Reply::error(500, "not yet"),
        Goes::Later if fails => Reply::error(500, "not yet").header("Longshore-Retry-After", "1100ms"),
        Goes::Dies => Reply::error(422, "never"),
        _ => Reply::json(json!("done")),
    }
}

fn passed_on(headers: &HeaderMap) -> HeaderMap {
    let mut own = HeaderMap::new();
    for (name, values) in headers.iter() {
        let name: &str = name.as_ref();
        if PASSED_ON.iter().any(|passed| passed.eq_ignore_ascii_case(name)) {
            values.iter().for_each(|value| own.append(name, value.as_str()));
        }
    }
    own
}

async fn publish(job: &Job, client: &Client, mut headers: HeaderMap) -> Option<Receipt> {
    let by = job.headers.get("Longshore-Type").map(|value| value.as_str()).unwrap_or_default();
    let payload = json!({"follow_up_of": job.run_id, "by": by}).to_string();
    headers.insert("Nats-Msg-Id", format!("follow-up-{}-{}-{}", job.run_id, job.round, job.attempt).as_str());
    let subject = format!("{NAMESPACE}.jobs.{TENANT}.main.p5.{}", Sort::Child.job_type());
    let request = client.request_with_headers(subject, headers, payload.into());
    let answer = tokio::time::timeout(ANSWER_WITHIN, request).await.ok()?.ok()?;
    Some(Receipt::of(&acknowledgement(&answer).ok()?, TENANT, "main-p5"))
}

/// The parent of the follow-up whose dead letter has this payload.
pub(super) fn parent_of(payload: &[u8]) -> Option<String> {
    let payload: Value = serde_json::from_slice(payload).ok()?;
    Some(payload["follow_up_of"].as_str()?.to_owned())
}
