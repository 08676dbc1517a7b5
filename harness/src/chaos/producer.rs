//! Publishes the jobs of a chaos run, each in one of the ways a client has, while the faults happen.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use jiff::Timestamp;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::{Value, json};

use super::Chaos;
use super::jobs::{Goes, Job, SIDE, Sort, hostile, key};
use crate::bytes::Bytes;
use crate::load::Kind;
use crate::publish::Receipt;
use crate::world::{TENANT, World};

/// Jobs that may be in progress at once: enough to go on publishing while some wait for a server that is gone.
const OPEN: usize = 256;

/// The pause before an unanswered request is repeated.
const PAUSE: Duration = Duration::from_millis(100);

/// How many tries a request gets: more failures than that are not an accident.
const TRIES: usize = 1_000;

/// The delay between a job's acceptance and its cancel, in milliseconds.
const CANCELLED_AFTER: std::ops::Range<u64> = 0..900;

/// How long the acknowledgement of bytes may take that no client library would send.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// Invalid header blocks: a lone CR in a value, bytes that are not UTF-8, a line without a colon.
const BLOCKS: [&[u8]; 3] = [
    b"NATS/1.0\r\nX-Note: a\rb\r\n\r\n",
    b"NATS/1.0\r\nX-Note: \xff\xfe\r\n\r\n",
    b"NATS/1.0\r\nno colon here\r\n\r\n",
];

/// How a client sends a job.
#[derive(Debug, Clone, Copy)]
enum Way {
    /// Published once; without a confirmation it does not count as accepted, though the server may have stored it.
    Bare,
    /// Published under a client's own id until it is confirmed.
    Named,
    /// Submitted under a client's own id until it is answered.
    Submitted,
}

/// The state that all jobs share.
struct Producer<'w> {
    world: &'w World,
    /// Answers of nodes that no client should get.
    wrong: Mutex<BTreeSet<String>>,
}

/// One job, as drawn at random.
#[derive(Debug, Clone)]
struct Draft {
    sort: Sort,
    way: Way,
    number: usize,
    /// The client's own id.
    id: String,
    which: usize,
    cancelled_after: Duration,
}

/// Publishes all jobs at their rate. Returns the jobs whose acceptance was confirmed, and the nodes' wrong answers.
pub(super) async fn publish(world: &World, chaos: Chaos) -> (Vec<Job>, BTreeSet<String>) {
    // A generator of its own, apart from the faults': one more draw there must not change the jobs.
    let mut chance = StdRng::seed_from_u64(!chaos.seed);
    let producer = Producer { world, wrong: Mutex::default() };
    let mut tick = tokio::time::interval(Duration::from_secs(1) / chaos.rate.max(1));
    let mut open = FuturesUnordered::new();
    let mut accepted = Vec::with_capacity(chaos.jobs);
    for number in 0..chaos.jobs {
        open.push(producer.send(draw(&mut chance, chaos, number)));
        loop {
            tokio::select! {
                Some(jobs) = open.next() => accepted.extend(jobs),
                _ = tick.tick(), if open.len() < OPEN => break,
            }
        }
    }
    while let Some(jobs) = open.next().await {
        accepted.extend(jobs);
    }
    drop(open);
    (accepted, producer.wrong.into_inner().expect("no code panics while it holds the wrong answers"))
}

fn draw(chance: &mut StdRng, chaos: Chaos, number: usize) -> Draft {
    let sort = Sort::draw(chance, chaos.raw_bytes);
    let way = match chance.random_range(0..10) {
        // An unreadable job has no client's id either, and `submit` would refuse it.
        _ if sort == Sort::Load(Kind::Invalid) => Way::Bare,
        0..5 => Way::Bare,
        5..8 => Way::Named,
        _ => Way::Submitted,
    };
    let id = format!("chaos-{}-{number}", chaos.seed);
    let cancelled_after = Duration::from_millis(chance.random_range(CANCELLED_AFTER));
    Draft { sort, way, number, id, which: chance.random_range(0..1_000), cancelled_after }
}

impl Producer<'_> {
    /// Sends it, repeatedly where its way of sending allows that, and returns the runs it became.
    async fn send(&self, draft: Draft) -> Vec<Job> {
        let Draft { sort, number, .. } = draft;
        let receipts = match sort {
            Sort::Load(kind) => self.send_load(kind, &draft).await.into_iter().collect(),
            Sort::Keyed => self.send_keyed(&draft).await,
            Sort::Repeated => vec![self.send_repeatedly(&draft).await],
            Sort::PerKey | Sort::Capped => vec![self.send_limited(&draft).await],
            Sort::OwnId => self.send_own_id(&draft).await,
            Sort::Cancelled => return vec![self.send_cancelled(&draft).await],
            Sort::Ordered => return vec![self.send_ordered(&draft).await],
            Sort::Follows | Sort::Forwards | Sort::Child | Sort::Recurring => {
                let publish = self.world.publish(sort.job_type()).header("X-Own", "1");
                vec![publish.until_stored(&draft.id, json!({}).to_string()).await]
            }
            Sort::Hostile => {
                let (header, payload) = hostile(draft.which);
                let publish = self.world.publish(sort.job_type());
                let publish = header.into_iter().fold(publish, |publish, (name, value)| publish.header(name, value));
                let receipt = publish.send(payload.to_string()).await.ok();
                // Whatever id it asked for, its run has the id derived from its position in the lane.
                let derived = |receipt: Receipt| Receipt { run_id: format!("main-p5-{}", receipt.sequence), ..receipt };
                receipt.map(derived).into_iter().collect()
            }
            Sort::Raw => self.send_raw(&draft).await.into_iter().collect(),
        };
        receipts.into_iter().map(|receipt| Job::new(sort, number, receipt)).collect()
    }

    async fn send_load(&self, kind: Kind, draft: &Draft) -> Option<Receipt> {
        match draft.way {
            Way::Bare => kind.publish(self.world).send(kind.payload().to_string()).await.ok(),
            Way::Named => {
                let publish = kind.publish(self.world).header("Longshore-Run-Id", &draft.id);
                loop {
                    if let Ok(receipt) = publish.send(kind.payload().to_string()).await {
                        return Some(receipt);
                    }
                    tokio::time::sleep(PAUSE).await;
                }
            }
            Way::Submitted => {
                let mut job = json!({"type": kind.job_type(), "payload": kind.payload(), "run_id": draft.id});
                if kind == Kind::Delayed {
                    job["delay_ms"] = json!(500);
                }
                Some(self.submit(job).await)
            }
        }
    }

    /// Sends one key twice at once: by two calls of `submit`, or by one `submit` and one bare publish.
    async fn send_keyed(&self, draft: &Draft) -> Vec<Receipt> {
        let key = format!("key-{}", draft.id);
        let job = json!({"type": draft.sort.job_type(), "payload": {"first": true}, "idempotency_key": key});
        let (one, other) = if draft.which.is_multiple_of(2) {
            tokio::join!(self.submit(job.clone()), self.submit(job))
        } else {
            let publish = self.world.publish(draft.sort.job_type()).header("Longshore-Idempotency-Key", &key);
            let payload = job["payload"].to_string();
            tokio::join!(publish.until_stored(&draft.id, payload), self.submit(job))
        };
        if one.run_id == other.run_id { vec![one] } else { vec![one, other] }
    }

    /// Submits one key five times, twice at once and then one after the other; each answer must name the same run.
    async fn send_repeatedly(&self, draft: &Draft) -> Receipt {
        let key = format!("key-{}", draft.id);
        let job = json!({"type": draft.sort.job_type(), "queue": SIDE, "payload": {}, "idempotency_key": key});
        let (first, second) = tokio::join!(self.submit(job.clone()), self.submit(job.clone()));
        let mut answers = vec![first, second];
        for _ in 0..3 {
            tokio::time::sleep(draft.cancelled_after).await;
            answers.push(self.submit(job.clone()).await);
        }
        let mut runs: Vec<String> = answers.iter().map(|answer| answer.run_id.clone()).collect();
        runs.dedup();
        if runs.len() > 1 {
            let said = format!("submissions of {key} were answered with several runs: {}", runs.join(", "));
            self.wrong.lock().expect("no code panics while it holds the wrong answers").insert(said);
        }
        answers.swap_remove(0)
    }

    async fn send_limited(&self, draft: &Draft) -> Receipt {
        let (job_type, key) = (draft.sort.job_type(), key(draft.number));
        if let Way::Submitted = draft.way {
            let mut job = json!({"type": job_type, "queue": SIDE, "payload": {}, "run_id": draft.id});
            if draft.sort == Sort::PerKey {
                job["concurrency_key"] = json!(key);
            }
            return self.submit(job).await;
        }
        let publish = self.world.publish(job_type).queue(SIDE);
        let publish = match draft.sort {
            Sort::PerKey => publish.header("Longshore-Concurrency-Key", &key),
            _ => publish,
        };
        publish.until_stored(&draft.id, json!({}).to_string()).await
    }

    /// Publishes it bare, as the acknowledgement alone says where in its lane it is. An id of the client's own would
    /// leave open which message is meant, if an answer was lost and it was stored twice.
    async fn send_ordered(&self, draft: &Draft) -> Job {
        let publish = self.world.publish(draft.sort.job_type()).header("Longshore-Concurrency-Key", &key(draft.number));
        let receipt = publish.until_stored(&draft.id, json!({"number": draft.number}).to_string()).await;
        let mut job = Job::new(draft.sort, draft.number, receipt);
        if Goes::of(draft.number) == Goes::Dies {
            job.ends = &["dead"];
        }
        job
    }

    /// Submits it, and publishes it bare under the same id.
    async fn send_own_id(&self, draft: &Draft) -> Vec<Receipt> {
        let job_type = draft.sort.job_type();
        let receipt = self.submit(json!({"type": job_type, "payload": {}, "run_id": draft.id})).await;
        let again = self.world.publish(job_type).header("Longshore-Run-Id", &draft.id);
        again.until_stored(&format!("again-{}", draft.id), json!({}).to_string()).await;
        vec![receipt]
    }

    async fn send_cancelled(&self, draft: &Draft) -> Job {
        let job_type = draft.sort.job_type();
        let receipt = match draft.way {
            Way::Submitted => {
                let job = json!({"type": job_type, "payload": {}, "run_id": draft.id, "delay_ms": 500});
                self.submit(job).await
            }
            _ => self.world.publish(job_type).until_stored(&draft.id, json!({}).to_string()).await,
        };
        tokio::time::sleep(draft.cancelled_after).await;
        let answer = self.ask("runs.cancel", json!({"run_id": receipt.run_id})).await;
        let mut job = Job::new(draft.sort, draft.number, receipt);
        if answer["state"] == "cancelled" {
            job.ends = &["cancelled"];
        }
        job
    }

    async fn send_raw(&self, draft: &Draft) -> Option<Receipt> {
        let subject = self.world.publish(draft.sort.job_type()).subject();
        let (port, block) = (self.world.server().port(), BLOCKS[draft.which % BLOCKS.len()]);
        let exchange = async { Bytes::open(port).await?.store(&subject, block, b"{}").await };
        let sequence = tokio::time::timeout(ANSWER_WITHIN, exchange).await.ok()?.ok()?;
        let (tenant, run_id) = (TENANT.to_owned(), format!("main-p5-{sequence}"));
        Some(Receipt { tenant, run_id, stream: String::new(), sequence, duplicate: false, at: Timestamp::now() })
    }

    /// Submits it until it is answered.
    async fn submit(&self, job: Value) -> Receipt {
        let answer = self.ask("submit", job.clone()).await;
        let run_id = answer["run_id"].as_str().unwrap_or_else(|| panic!("submit of {job}: {answer}")).to_owned();
        let (tenant, stream, at) = (TENANT.to_owned(), String::new(), Timestamp::now());
        Receipt { tenant, run_id, stream, sequence: 0, duplicate: false, at }
    }

    /// Repeats a request until it is answered. "Already finished" is an answer, too; an answer that no client should
    /// get is noted.
    async fn ask(&self, endpoint: &str, body: Value) -> Value {
        for _ in 0..TRIES {
            match self.world.try_request(TENANT, endpoint, body.clone()).await {
                Ok(answer) => return answer,
                Err(error) if error.code == 409 => return error.body,
                Err(error) => {
                    if error.code != 0 && error.code < 500 {
                        let said = format!("{endpoint} was answered {} {}", error.code, error.error);
                        self.wrong.lock().expect("no code panics while it holds the wrong answers").insert(said);
                    }
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
        panic!("{endpoint} of {body} was not answered in {TRIES} tries");
    }
}
