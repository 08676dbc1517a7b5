//! A remote handler: a plain NATS subscription in a queue group that answers jobs, and remembers the requests it got.
//!
//! It can do everything that the contract allows a handler in any language: succeed, fail with a code, snooze, hold,
//! send signals, announce its slots as a micro service does, or not answer at all.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_nats::{Client, HeaderMap, Message, Subscriber};
use bytes::Bytes;
use futures_util::StreamExt;
use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::sync::{oneshot, watch};
use tokio::task::{JoinHandle, JoinSet};

use crate::history::Call;
use crate::world::{NAMESPACE, World};

/// How long [`Handler::called`] waits.
const CALLED_WITHIN: Duration = Duration::from_secs(240);

impl World {
    /// A remote handler for jobs of this type, over NATS.
    pub fn handler(&self, job_type: &str) -> HandlerBuilder<'_> {
        let (tenant, group) = ("*".to_owned(), "handlers".to_owned());
        HandlerBuilder { world: self, job_type: job_type.to_owned(), tenant, group, metadata: BTreeMap::new() }
    }
}

/// A handler that has not been started yet.
#[derive(Debug)]
pub struct HandlerBuilder<'w> {
    world: &'w World,
    job_type: String,
    tenant: String,
    group: String,
    metadata: BTreeMap<String, String>,
}

impl HandlerBuilder<'_> {
    /// Takes one tenant's jobs only; all tenants' jobs if not given.
    #[must_use]
    pub fn tenant(mut self, tenant: &str) -> Self {
        self.tenant = tenant.to_owned();
        self
    }

    /// The queue group in which it shares the work; `handlers` if not given.
    #[must_use]
    pub fn group(mut self, group: &str) -> Self {
        self.group = group.to_owned();
        self
    }

    /// Announces itself as a micro service with this metadata: `announce("longshore.slots", "4")`.
    #[must_use]
    pub fn announce(mut self, key: &str, value: &str) -> Self {
        self.metadata.insert(key.to_owned(), value.to_owned());
        self
    }

    /// Starts it. Each job is answered by its own task, without a limit on concurrent jobs.
    ///
    /// # Panics
    /// If the server cannot be reached.
    pub async fn start<F, R>(self, answer: F) -> Handler
    where
        F: Fn(Job) -> R + Send + 'static,
        R: Future<Output = Reply> + Send + 'static,
    {
        let client = self.world.client().clone();
        let subject = format!("{NAMESPACE}.work.{}.{}", self.tenant, self.job_type);
        let jobs = client.queue_subscribe(subject.clone(), self.group.clone()).await.expect("the client is connected");
        let announcing = match self.metadata.is_empty() {
            true => None,
            false => Some(announce(&client, &subject, &self.group, self.metadata).await),
        };
        client.flush().await.expect("the client is connected");
        let calls = Arc::new(Calls { list: Mutex::new(Vec::new()), count: watch::Sender::new(0) });
        let (stop, stopped) = oneshot::channel();
        let serving = serve(client.clone(), jobs, Arc::clone(&calls), answer, stopped);
        let serving = tokio::spawn(serving);
        Handler { client, calls, stop: Some(stop), serving, announcing }
    }
}

async fn serve<F, R>(
    client: Client,
    mut jobs: Subscriber,
    calls: Arc<Calls>,
    answer: F,
    mut stopped: oneshot::Receiver<()>,
) where
    F: Fn(Job) -> R,
    R: Future<Output = Reply> + Send + 'static,
{
    // Dropped with this task, which also ends the tasks in it.
    let mut answering = JoinSet::new();
    loop {
        let message = tokio::select! {
            Some(message) = jobs.next() => message,
            _ = &mut stopped => break,
            else => break,
        };
        let Some(to) = message.reply.clone() else { continue };
        let job = Job::new(client.clone(), message);
        let number = calls.begin(&job);
        let (reply, client, calls) = (answer(job), client.clone(), Arc::clone(&calls));
        answering.spawn(async move {
            let reply = reply.await;
            calls.end(number);
            if let Some((headers, body)) = reply.0 {
                // The failure needs no report here: the node will see that no answer came.
                let _ = client.publish_with_headers(to, headers, body).await;
            }
        });
        while answering.try_join_next().is_some() {}
    }
    let _ = jobs.unsubscribe().await;
}

/// Answers `$SRV.INFO` and `$SRV.PING` as a micro service would.
async fn announce(client: &Client, subject: &str, group: &str, metadata: BTreeMap<String, String>) -> JoinHandle<()> {
    let id = client.new_inbox().rsplit('.').next().unwrap_or("id").to_owned();
    let name = "harness-handler";
    let mut asked = Vec::new();
    for verb in ["INFO", "PING"] {
        for subject in [format!("$SRV.{verb}"), format!("$SRV.{verb}.{name}"), format!("$SRV.{verb}.{name}.{id}")] {
            asked.push(client.subscribe(subject).await.expect("the client is connected"));
        }
    }
    let endpoint = json!({"name": "work", "subject": subject, "queue_group": group, "metadata": metadata});
    let common = json!({"name": name, "id": id, "version": "1.0.0", "metadata": metadata});
    let client = client.clone();
    tokio::spawn(async move {
        let mut asked = futures_util::stream::select_all(asked);
        while let Some(question) = asked.next().await {
            let Some(to) = question.reply else { continue };
            let mut answer = common.clone();
            if question.subject.starts_with("$SRV.INFO") {
                answer["type"] = json!("io.nats.micro.v1.info_response");
                answer["description"] = json!("a handler of the tests");
                answer["endpoints"] = json!([endpoint]);
            } else {
                answer["type"] = json!("io.nats.micro.v1.ping_response");
            }
            let _ = client.publish(to, answer.to_string().into()).await;
        }
    })
}

/// A running remote handler. Dropped, it dies as if killed: it answers nothing more, and the server learns of its end
/// soon.
#[derive(Debug)]
pub struct Handler {
    client: Client,
    calls: Arc<Calls>,
    stop: Option<oneshot::Sender<()>>,
    serving: JoinHandle<()>,
    announcing: Option<JoinHandle<()>>,
}

impl Handler {
    /// The calls it has got so far, in the order of arrival; a call without an end is still running (or was cut off).
    pub fn calls(&self) -> Vec<Call> {
        self.asked().into_iter().map(|asked| asked.call).collect()
    }

    /// The same calls, with the connection that sent each.
    pub fn asked(&self) -> Vec<Asked> {
        self.calls.list.lock().expect("no code panics while it holds the calls").clone()
    }

    /// Waits until it has been called that many times, for at most a minute.
    ///
    /// # Panics
    /// If it has not been called that often by then.
    pub async fn called(&self, times: usize) {
        let mut count = self.calls.count.subscribe();
        let waited = tokio::time::timeout(CALLED_WITHIN, count.wait_for(|count| *count >= times)).await;
        assert!(waited.is_ok(), "waited in vain for {times} calls of a handler; there were {}", self.calls().len());
    }

    /// Ends it, and returns when the server knows: running calls are not answered, and the next request finds no
    /// handler.
    pub async fn stop(mut self) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
        let _ = (&mut self.serving).await;
        let _ = self.client.flush().await;
    }
}

impl Drop for Handler {
    fn drop(&mut self) {
        self.serving.abort();
        if let Some(announcing) = &self.announcing {
            announcing.abort();
        }
    }
}

/// A call, and the connection that sent it.
#[derive(Debug, Clone)]
pub struct Asked {
    /// The call.
    pub call: Call,
    /// The inbox of the connection that sent it: the same for all requests of one process of a node, and different for
    /// every other process.
    pub asker: String,
    /// The attempt's deadline, as its node said: its time limit after the start by the node's clock.
    pub deadline: Option<Timestamp>,
}

#[derive(Debug)]
struct Calls {
    list: Mutex<Vec<Asked>>,
    count: watch::Sender<usize>,
}

impl Calls {
    fn begin(&self, job: &Job) -> usize {
        let mut list = self.list.lock().expect("no code panics while it holds the calls");
        let call = Call {
            tenant: job.tenant.clone(),
            run_id: job.run_id.clone(),
            round: job.round,
            attempt: job.attempt,
            start: Timestamp::now(),
            end: None,
            node: None,
        };
        // One inbox serves all requests of a connection; the rest of the subject belongs to the single request.
        let asker = job.reply_to.rsplit_once('.').map_or("", |(inbox, _)| inbox).to_owned();
        let deadline = job.headers.get("Longshore-Attempt-Deadline").and_then(|at| at.as_str().parse().ok());
        list.push(Asked { call, asker, deadline });
        self.count.send_replace(list.len());
        list.len() - 1
    }

    fn end(&self, number: usize) {
        let mut list = self.list.lock().expect("no code panics while it holds the calls");
        list[number].call.end = Some(Timestamp::now());
    }
}

/// A job as a remote handler receives it.
#[derive(Debug, Clone)]
pub struct Job {
    /// The run's id.
    pub run_id: String,
    /// The tenant it belongs to.
    pub tenant: String,
    /// 1, plus 1 for each replay.
    pub round: u32,
    /// The number of this attempt in the round.
    pub attempt: u32,
    /// The job's payload.
    pub payload: Bytes,
    /// Every header of the request.
    pub headers: HeaderMap,
    client: Client,
    reply_to: async_nats::Subject,
}

impl Job {
    fn new(client: Client, message: Message) -> Job {
        let headers = message.headers.unwrap_or_default();
        let text = |name: &str| headers.get(name).map(|value| value.as_str().to_owned()).unwrap_or_default();
        Job {
            run_id: text("Longshore-Run-Id"),
            tenant: text("Longshore-Tenant"),
            round: text("Longshore-Round").parse().unwrap_or(0),
            attempt: text("Longshore-Attempt").parse().unwrap_or(0),
            payload: message.payload,
            headers,
            client,
            reply_to: message.reply.unwrap_or_else(|| "nowhere".into()),
        }
    }

    /// The payload as JSON; `null` if it is not JSON.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.payload).unwrap_or(Value::Null)
    }

    /// Ends this attempt, which is detached, by `runs.complete` or `runs.fail`: asks until the answer says that it has
    /// ended, or that it cannot any more. Returns the code of a refusal.
    pub async fn ends_late(&self, how: &str, body: Value) -> Option<u64> {
        let header = |name: &str| self.headers.get(name).map(|value| value.as_str().to_owned()).unwrap_or_default();
        let mut body = body;
        body["run_id"] = self.run_id.clone().into();
        body["token"] = header("Longshore-Attempt-Token").into();
        let subject = format!("longshore.api.{}.runs.{how}", self.tenant);
        loop {
            let asked = self.client.request(subject.clone(), body.to_string().into()).await;
            let answer: Value = match asked {
                Ok(answer) => serde_json::from_slice(&answer.payload).unwrap_or_default(),
                Err(_) => {
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    continue;
                }
            };
            match answer["code"].as_u64() {
                Some(503 | 504) => tokio::time::sleep(Duration::from_millis(100)).await,
                code => return code,
            }
        }
    }

    /// Sends a signal: `started`, `heartbeat`, `progress` (with a JSON body) or `log`.
    pub async fn signal(&self, signal: &str, body: impl Into<Bytes>) {
        let _ = self.client.publish_with_headers(self.reply_to.clone(), named(signal), body.into()).await;
    }

    /// Sends a signal as a request and returns whether the answer says that the run is cancelled. `None` if no answer
    /// comes within 10 s.
    pub async fn ask(&self, signal: &str, body: impl Into<Bytes>) -> Option<bool> {
        let (headers, _) = self.request(signal, body).await?;
        Some(headers.get("Longshore-Cancel").is_some_and(|value| value.as_str() == "true"))
    }

    /// The same, with the whole answer.
    pub async fn request(&self, signal: &str, body: impl Into<Bytes>) -> Option<(HeaderMap, Bytes)> {
        let answer = self.client.request_with_headers(self.reply_to.clone(), named(signal), body.into()).await.ok()?;
        Some((answer.headers.unwrap_or_default(), answer.payload))
    }
}

fn named(signal: &str) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert("Longshore-Signal", signal);
    headers
}

/// The answer of a remote handler.
#[derive(Debug, Clone)]
pub struct Reply(Option<(HeaderMap, Bytes)>);

impl Reply {
    /// Success, with a JSON result.
    pub fn json(result: Value) -> Reply {
        Reply::bytes(result.to_string())
    }

    /// Success, with any result.
    pub fn bytes(result: impl Into<Bytes>) -> Reply {
        Reply(Some((HeaderMap::new(), result.into())))
    }

    /// Failure, in the form that micro services use: `error(422, "no such address")`.
    pub fn error(code: u16, text: &str) -> Reply {
        let code = code.to_string();
        Reply::bytes("").header("Nats-Service-Error-Code", &code).header("Nats-Service-Error", text)
    }

    /// Snoozes the job for that long, without using an attempt: `snooze("5m")`.
    pub fn snooze(how_long: &str) -> Reply {
        Reply::bytes("").header("Longshore-Snooze", how_long)
    }

    /// No answer at all, as from a handler that hangs or has died.
    pub fn silence() -> Reply {
        Reply(None)
    }

    /// Adds a header: `Longshore-Retryable`, `Longshore-Retry-After`, `Longshore-Hold`.
    #[must_use]
    pub fn header(mut self, name: &str, value: &str) -> Reply {
        if let Some((headers, _)) = &mut self.0 {
            headers.insert(name, value);
        }
        self
    }
}
