//! Plays the node for a handler of any language: a server of its own, the handler's command with NATS_URL, and jobs of
//! the test types of docs/clients.md. What comes back is held against section 8 of docs/contract.md.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use async_nats::{Client, HeaderMap, Message, Subscriber};
use futures_util::StreamExt;
use serde_json::{Value, json};

const ANSWERS_WITHIN: Duration = Duration::from_secs(15);
/// What a handler has to serve.
const TYPES: [&str; 9] = ["echo", "permanent", "retry", "snooze", "progress", "steps", "long", "wait", "late"];
const CODE: &str = "Nats-Service-Error-Code";

/// Starts the command, prints a line for each check, and fails if one of them does.
pub(crate) fn run(command: &[&str]) -> Result<()> {
    let [program, arguments @ ..] = command else { bail!("which command starts the handler?") };
    let runtime = tokio::runtime::Runtime::new()?;
    runtime.block_on(async {
        let server = longshore_natsd::Server::start(longshore_natsd::Options::default()).await?;
        let mut handler = tokio::process::Command::new(program)
            .args(arguments)
            .env("NATS_URL", server.url())
            .stdout(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("{program} does not start"))?;
        let node = Node::new(async_nats::connect(server.url()).await?).await?;
        let mut outcomes = node.checks().await;
        outcomes.push(("SIGTERM finishes the job that runs, then the handler ends", node.drains(&mut handler).await));
        let failed = outcomes.iter().filter(|(_, outcome)| outcome.is_err()).count();
        for (name, outcome) in &outcomes {
            match outcome {
                Ok(()) => println!("pass  {name}"),
                Err(problem) => println!("FAIL  {name}: {problem:#}"),
            }
        }
        ensure!(failed == 0, "{failed} of {} checks failed", outcomes.len());
        Ok(())
    })
}

type Outcome = (&'static str, Result<()>);

/// The node's part: sends jobs, answers signals.
struct Node {
    client: Client,
    heartbeat: Option<Duration>,
    announced: Result<(), String>,
}

/// How an attempt went: its signals with the time since the one before, and the reply.
struct Attempt {
    signals: Vec<(String, Vec<u8>, Duration)>,
    reply: Message,
}

/// One request to a handler, what steps are stored, and what a `step-put` is answered.
struct Job<'a> {
    kind: &'a str,
    run: &'a str,
    attempt: u32,
    steps: BTreeMap<String, Value>,
    refuse: bool,
    cancel: bool,
}

fn job<'a>(kind: &'a str, run: &'a str, attempt: u32) -> Job<'a> {
    Job { kind, run, attempt, steps: BTreeMap::new(), refuse: false, cancel: false }
}

/// What ends this attempt once it is detached.
fn token(run: &str, attempt: u32) -> String {
    format!("token-of-{run}-{attempt}")
}

impl Node {
    async fn new(client: Client) -> Result<Node> {
        let mut node = Node { client, heartbeat: None, announced: Ok(()) };
        let until = Instant::now() + ANSWERS_WITHIN;
        loop {
            node.announced = node.announcements().await.map_err(|problem| format!("{problem:#}"));
            if node.announced.is_ok() || Instant::now() > until {
                return Ok(node);
            }
        }
    }

    /// Reads what services say of themselves: slots of every test type, and the heartbeat.
    async fn announcements(&mut self) -> Result<()> {
        let answer = tokio::time::timeout(Duration::from_secs(1), self.client.request("$SRV.INFO", "".into()));
        let info: Value = serde_json::from_slice(&answer.await.context("no service answers $SRV.INFO")??.payload)?;
        if let Some(text) = info["metadata"]["longshore.heartbeat"].as_str() {
            self.heartbeat = Some(duration(text)?);
        }
        let endpoints = info["endpoints"].as_array().context("the service has no endpoints")?;
        for kind in TYPES {
            let ending = format!(".t.{kind}");
            let mut fitting =
                endpoints.iter().filter(|it| it["subject"].as_str().is_some_and(|it| it.ends_with(&ending)));
            let endpoint = fitting.next().with_context(|| format!("no endpoint serves t.{kind}"))?;
            let slots = [endpoint, &info].iter().find_map(|it| it["metadata"]["longshore.slots"].as_str());
            let slots = slots.with_context(|| format!("longshore.slots of t.{kind} is missing"))?;
            ensure!(slots.parse::<u32>().is_ok_and(|slots| slots > 0), "longshore.slots of t.{kind} is {slots:?}");
        }
        Ok(())
    }

    async fn checks(&self) -> Vec<Outcome> {
        let announced = self.announced.clone().map_err(anyhow::Error::msg);
        vec![
            ("the service announces every type and its slots", announced),
            ("t.echo answers its payload", self.echo().await),
            ("t.permanent fails for good", self.permanent().await),
            ("t.retry fails retryably once", self.retry().await),
            ("t.snooze is put back once", self.snooze().await),
            ("t.progress sends progress and a line", self.progress().await),
            ("t.long sends heartbeats as announced", self.heartbeats().await),
            ("t.steps stores its step once", self.steps().await),
            ("t.steps ends once a step is refused", self.refused().await),
            ("t.wait ends when it is cancelled", self.cancelled().await),
            ("t.late ends its attempts by calls with their tokens", self.late().await),
        ]
    }

    async fn echo(&self) -> Result<()> {
        let done = self.attempt(job("echo", "echo", 1)).await?;
        succeeded(&done, &json!({"a": [1, "é"]}))?;
        ensure!(self.attempt(job("echo", "echo-2", 1)).await.is_ok(), "a second job is not answered");
        Ok(())
    }

    async fn permanent(&self) -> Result<()> {
        ensure!(!retryable(&self.attempt(job("permanent", "permanent", 1)).await?)?, "the failure is retryable");
        Ok(())
    }

    async fn retry(&self) -> Result<()> {
        let first = self.attempt(job("retry", "retry", 1)).await?;
        ensure!(retryable(&first)?, "the failure is permanent");
        if let Some(after) = header(&first.reply, "Longshore-Retry-After") {
            duration(after)?;
        }
        succeeded(&self.attempt(job("retry", "retry", 2)).await?, &json!(2))
    }

    async fn snooze(&self) -> Result<()> {
        let first = self.attempt(job("snooze", "snooze", 1)).await?;
        duration(header(&first.reply, "Longshore-Snooze").context("the reply has no Longshore-Snooze")?)?;
        ensure!(header(&first.reply, CODE).is_none(), "a snooze has an error code");
        let second = self.attempt(job("snooze", "snooze", 1)).await?;
        ensure!(header(&second.reply, "Longshore-Snooze").is_none(), "it is put back again");
        Ok(())
    }

    async fn progress(&self) -> Result<()> {
        let done = self.attempt(job("progress", "progress", 1)).await?;
        let of = |word| done.signals.iter().find(|signal| signal.0 == word).map(|signal| &signal.1);
        let said = of("progress").context("no progress came before the reply")?;
        ensure!(said.len() <= 4096, "progress has {} bytes", said.len());
        let said: Value = serde_json::from_slice(said).context("progress is no JSON")?;
        ensure!(said == json!({"percent": 40}), "progress is {said}");
        ensure!(of("log").context("no log came before the reply")? == b"half", "the line is another");
        Ok(())
    }

    async fn heartbeats(&self) -> Result<()> {
        let Some(most) = self.heartbeat else { return Ok(()) }; // silence is allowed then
        let done = self.attempt(job("long", "long", 1)).await?;
        let beats: Vec<_> = done.signals.iter().filter(|signal| signal.0 == "heartbeat").collect();
        ensure!(!beats.is_empty(), "no heartbeat came, though {most:?} is announced");
        let longest = done.signals.iter().map(|signal| signal.2).max().unwrap_or_default();
        ensure!(longest <= most, "{longest:?} of silence, and {most:?} is announced");
        Ok(())
    }

    async fn steps(&self) -> Result<()> {
        let first = self.attempt(job("steps", "steps", 1)).await?;
        let asked = |done: &Attempt, word: &str| -> Vec<Value> {
            let signals = done.signals.iter().filter(|signal| signal.0 == word);
            signals.filter_map(|signal| serde_json::from_slice(&signal.1).ok()).collect()
        };
        let (get, put) = (asked(&first, "step-get"), asked(&first, "step-put"));
        ensure!(get == [json!({"name": "charge", "n": 1})], "step-get was {get:?}");
        ensure!(put == [json!({"name": "charge", "n": 1, "result": {"n": 1}})], "step-put was {put:?}");
        ensure!(retryable(&first)?, "the first attempt fails permanently");
        let stored = BTreeMap::from([("charge#1".to_owned(), json!({"n": 7}))]);
        let second = self.attempt(Job { steps: stored, ..job("steps", "steps", 2) }).await?;
        ensure!(asked(&second, "step-put").is_empty(), "the step is done again, though its result was stored");
        succeeded(&second, &json!({"n": 7}))
    }

    async fn refused(&self) -> Result<()> {
        let done = self.attempt(Job { refuse: true, ..job("steps", "refused", 2) }).await?;
        ensure!(header(&done.reply, CODE).is_some(), "the attempt lost its lease, and the handler went on to success");
        Ok(())
    }

    async fn cancelled(&self) -> Result<()> {
        let done = self.attempt(Job { cancel: true, ..job("wait", "cancelled", 1) }).await?;
        ensure!(header(&done.reply, CODE).is_some(), "a cancelled attempt ends as a success");
        Ok(())
    }

    /// Attempt 1 is detached and failed, attempt 2 detached and completed.
    async fn late(&self) -> Result<()> {
        let mut calls = self.client.subscribe("longshore.api.default.runs.*").await?;
        let fails = [("fail", "error", json!("not yet"))];
        let completes =
            [("progress", "progress", json!({"percent": 40})), ("complete", "result", json!({"late": true}))];
        for (attempt, expected) in [(1, &fails[..]), (2, &completes[..])] {
            let done = self.attempt(job("late", "late", attempt)).await?;
            duration(header(&done.reply, "Longshore-Detach").context("the reply has no Longshore-Detach")?)?;
            ensure!(header(&done.reply, CODE).is_none(), "the attempt goes on, and the reply has an error code");
            for (method, field, value) in expected {
                let call = next(&mut calls).await.with_context(|| format!("runs.{method} is due"))?;
                ensure!(call.subject.ends_with(&format!(".{method}")), "{} comes before runs.{method}", call.subject);
                let said: Value = serde_json::from_slice(&call.payload).context("the call is no JSON")?;
                let named = json!([said["run_id"], said["token"]]);
                ensure!(named == json!(["late", token("late", attempt)]), "runs.{method} names {named}");
                ensure!(said[field] == *value && said["retryable"] != false, "runs.{method} says {said}");
                let answer = json!({"run_id": "late", "cancelled": false}).to_string();
                self.client.publish(call.reply.context("the call wants no answer")?, answer.into()).await?;
            }
        }
        Ok(())
    }

    async fn drains(&self, handler: &mut tokio::process::Child) -> Result<()> {
        let mut inbox = self.send(&job("long", "drain", 1)).await?;
        next(&mut inbox).await.context("the job does not begin")?;
        let id = handler.id().context("the handler has ended already")?.to_string();
        tokio::process::Command::new("kill").args(["-TERM", &id]).status().await?;
        let done = self.follow(&job("long", "drain", 1), &mut inbox).await?;
        ensure!(header(&done.reply, CODE).is_none(), "the job that ran is given up");
        let status = tokio::time::timeout(ANSWERS_WITHIN, handler.wait())
            .await
            .context("the handler goes on after SIGTERM")??;
        ensure!(status.success(), "the handler ends with {status}");
        Ok(())
    }

    async fn send(&self, job: &Job<'_>) -> Result<Subscriber> {
        let reply = self.client.new_inbox();
        let inbox = self.client.subscribe(reply.clone()).await?;
        let mut headers = HeaderMap::new();
        let (kind, attempt) = (format!("t.{}", job.kind), job.attempt.to_string());
        for (name, value) in [
            ("Run-Id", job.run),
            ("Tenant", "default"),
            ("Queue", "main"),
            ("Priority", "p5"),
            ("Type", &kind),
            ("Round", "1"),
            ("Attempt", &attempt),
            ("Max-Attempts", "3"),
            ("Attempt-Deadline", "2100-01-01T00:00:00Z"),
            ("Attempt-Token", &token(job.run, job.attempt)),
        ] {
            headers.insert(format!("Longshore-{name}"), value);
        }
        let body = json!({"a": [1, "é"]}).to_string();
        let subject = format!("longshore.work.default.{kind}");
        self.client.publish_with_reply_and_headers(subject, reply, headers, body.into()).await?;
        Ok(inbox)
    }

    async fn attempt(&self, job: Job<'_>) -> Result<Attempt> {
        let mut inbox = self.send(&job).await?;
        self.follow(&job, &mut inbox).await
    }

    /// Answers signals until the reply.
    async fn follow(&self, job: &Job<'_>, inbox: &mut Subscriber) -> Result<Attempt> {
        let (mut signals, mut cancelled) = (Vec::new(), false);
        loop {
            let since = Instant::now();
            let message = next(inbox).await?;
            let Some(word) = header(&message, "Longshore-Signal").map(str::to_owned) else {
                ensure!(message.status.is_none(), "no handler is subscribed to t.{}", job.kind);
                return Ok(Attempt { signals, reply: message });
            };
            let known = ["started", "heartbeat", "progress", "log", "step-get", "step-put"].contains(&word.as_str());
            ensure!(known, "{word:?} is no signal");
            if let Some(subject) = message.reply.clone() {
                let (headers, body) = job.answer(&word, &message.payload);
                self.client.publish_with_headers(subject, headers, body.into()).await?;
            }
            signals.push((word, message.payload.to_vec(), since.elapsed()));
            if job.cancel && !std::mem::replace(&mut cancelled, true) {
                self.client.publish(format!("longshore.cancel.default.{}", job.run), "".into()).await?;
            }
        }
    }
}

impl Job<'_> {
    fn answer(&self, word: &str, body: &[u8]) -> (HeaderMap, String) {
        let mut headers = HeaderMap::new();
        let refused = self.refuse && word == "step-put";
        headers.insert("Longshore-Cancel", if refused { "true" } else { "false" });
        if refused {
            headers.insert(CODE, "409");
            headers.insert("Nats-Service-Error", "the attempt has lost its lease");
        }
        let asked: Value = serde_json::from_slice(body).unwrap_or_default();
        let key = format!("{}#{}", asked["name"].as_str().unwrap_or_default(), asked["n"]);
        let stored = self.steps.get(&key).filter(|_| word == "step-get");
        let answer = stored.map_or(json!({}), |it| json!({"result": it, "at": "2026-01-01T00:00:00Z", "attempt": 1}));
        (headers, answer.to_string())
    }
}

async fn next(inbox: &mut Subscriber) -> Result<Message> {
    let message = tokio::time::timeout(ANSWERS_WITHIN, inbox.next()).await;
    message.with_context(|| format!("nothing came within {ANSWERS_WITHIN:?}"))?.context("the connection has ended")
}

fn header<'a>(message: &'a Message, name: &str) -> Option<&'a str> {
    let headers = message.headers.as_ref()?.iter();
    let mut fitting =
        headers.filter(|(known, _)| known.as_ref() as &str == name).filter_map(|(_, values)| values.first());
    fitting.next().map(|value| value.as_str())
}

fn succeeded(done: &Attempt, wanted: &Value) -> Result<()> {
    ensure!(header(&done.reply, CODE).is_none(), "it fails: {:?}", header(&done.reply, "Nats-Service-Error"));
    let result: Value = serde_json::from_slice(&done.reply.payload).context("the result is no JSON")?;
    ensure!(result == *wanted, "the result is {result}, not {wanted}");
    Ok(())
}

/// Whether the reply is a failure that is tried again.
fn retryable(done: &Attempt) -> Result<bool> {
    if let Some(word) = header(&done.reply, "Longshore-Retryable") {
        return Ok(word.parse()?);
    }
    let code: u16 = header(&done.reply, CODE).context("the reply is no failure")?.parse().context(CODE)?;
    ensure!(code != 429 || header(&done.reply, "Longshore-Retry-After").is_some(), "the reply says busy");
    Ok(!(400..500).contains(&code) || [408, 425, 429].contains(&code))
}

/// A duration as the contract writes it, of one unit, above zero.
fn duration(text: &str) -> Result<Duration> {
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let unit = match &text[digits.len()..] {
        "ms" => 1,
        "" | "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        other => bail!("{text:?} is no duration: unit {other:?}"),
    };
    let number: u64 = digits.parse().with_context(|| format!("{text:?} is no duration"))?;
    ensure!(number > 0, "{text:?} is not above zero");
    Ok(Duration::from_millis(number.saturating_mul(unit)))
}
