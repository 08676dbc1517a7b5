//! Accepting jobs: bare publishes, one by one and pipelined, beside a node's `submit` and `submit.batch`, over NATS and
//! over HTTP.
//!
//! No job is worked off meanwhile: the bare legs have no node at all, and the node's only worker sleeps.

use std::net::SocketAddr;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use async_nats::Client;
use bytes::Bytes;
use futures_util::stream::{self, StreamExt, TryStreamExt};
use hdrhistogram::Histogram;
use http_body_util::{BodyExt as _, Full};
use hyper::Request;
use hyper_util::rt::TokioIo;
use longshore_harness::World;
use serde_json::Value;
use tokio::net::TcpStream;

use crate::machine::{Meter, Weather, class};
use crate::table::{Table, number, spread};
use crate::{args, bare, jobs, product, streams};

/// Requests in progress at once, in the legs that are not one by one.
const AT_ONCE: usize = 64;
/// Jobs of one `submit.batch`: the maximum that the contract allows.
const BATCH: u64 = 1_000;
/// Batches in progress at once.
const BATCHES_AT_ONCE: usize = 4;

/// A way of accepting jobs.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Way {
    Single,
    Pipelined,
    SubmitSingle,
    Submit,
    SubmitKeys,
    SubmitBatch,
    HttpSingle,
    Http,
    HttpLines,
}

pub(crate) const WAYS: [Way; 9] = [
    Way::Single,
    Way::Pipelined,
    Way::SubmitSingle,
    Way::Submit,
    Way::SubmitKeys,
    Way::SubmitBatch,
    Way::HttpSingle,
    Way::Http,
    Way::HttpLines,
];

impl Way {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Way::Single => "bare publish, one by one",
            Way::Pipelined => "bare publish, 1,024 unconfirmed",
            Way::SubmitSingle => "submit, one by one",
            Way::Submit => "submit, 64 at once",
            Way::SubmitKeys => "submit, 64 at once, idempotency keys",
            Way::SubmitBatch => "submit.batch of 1,000, 4 at once",
            Way::HttpSingle => "POST /v1/jobs, one by one",
            Way::Http => "POST /v1/jobs, 64 connections",
            Way::HttpLines => "POST /v1/jobs, 1,000 lines, 4 connections",
        }
    }

    /// What it is compared with.
    fn beside(self) -> Way {
        match self {
            Way::Single | Way::SubmitSingle => Way::Single,
            Way::Pipelined | Way::Submit | Way::SubmitBatch => Way::Pipelined,
            Way::HttpSingle => Way::SubmitSingle,
            Way::Http | Way::SubmitKeys => Way::Submit,
            Way::HttpLines => Way::SubmitBatch,
        }
    }

    /// The bare publishes that store as many at once, as far as there are such.
    pub(crate) fn bare(self) -> Way {
        match self {
            Way::Single | Way::SubmitSingle | Way::HttpSingle => Way::Single,
            _ => Way::Pipelined,
        }
    }

    pub(crate) fn needs_node(self) -> bool {
        !matches!(self, Way::Single | Way::Pipelined)
    }

    pub(crate) fn jobs(self, args: &args::Enqueue) -> u64 {
        match self {
            Way::Single | Way::SubmitSingle | Way::HttpSingle => args.singles,
            Way::Pipelined | Way::Submit | Way::SubmitKeys | Way::Http => args.jobs,
            // Whole batches only.
            Way::SubmitBatch | Way::HttpLines => args.jobs.div_ceil(BATCH) * BATCH,
        }
    }
}

pub(crate) async fn run(args: &args::Enqueue) -> anyhow::Result<()> {
    println!("## Enqueue: {} jobs of 256 B ({} where they go one by one)\n", args.jobs, args.singles);
    println!("{}", class());
    println!(
        "Every job confirmed as stored. File, one replica, lazy sync. Processor time per job: client + node + nats-server."
    );
    println!("The p50 is that of an answer; an answer to bare publishes is not measured.");
    let table = Table::new(&["leg", "jobs/s", "p50 ms", "CPU µs/job", "load / steal"]);
    let (mut rates, mut p50s) = (vec![Vec::new(); WAYS.len()], vec![Vec::new(); WAYS.len()]);
    for pair in 0..args.pairs {
        // Forward and then backward, so that a drift of the machine cancels.
        let mut order: Vec<usize> = (0..WAYS.len()).collect();
        if pair % 2 == 1 {
            order.reverse();
        }
        for at in order {
            let (way, weather) = (WAYS[at], Weather::now());
            let leg = leg(way, way.jobs(args)).await.with_context(|| way.name())?;
            let name = format!("{} {}", pair + 1, way.name());
            let p50 = leg.p50.map_or_else(|| "–".to_owned(), |p50| number(p50, 2));
            table.row(&[name, number(leg.rate, 0), p50, leg.cost, weather.until_now()]);
            rates[at].push(leg.rate);
            p50s[at].extend(leg.p50);
        }
    }
    let pair = "of bare, of the same over NATS or without keys, its pair";
    let table = Table::new(&["min / median / max", "jobs/s", pair, "p50 ms", "p50 ms more than its pair"]);
    for (at, way) in WAYS.iter().enumerate() {
        let beside = way.beside() as usize;
        let ratios: Vec<f64> = rates[at].iter().zip(&rates[beside]).map(|(rate, other)| rate / other).collect();
        let ratios = if way.needs_node() { spread(&ratios, 3) } else { "1".to_owned() };
        let more: Vec<f64> = p50s[at].iter().zip(&p50s[beside]).map(|(p50, other)| p50 - other).collect();
        table.row(&[way.name().to_owned(), spread(&rates[at], 0), ratios, spread(&p50s[at], 2), spread(&more, 2)]);
    }
    Ok(())
}

/// The result of one leg.
pub(crate) struct Leg {
    pub rate: f64,
    /// Processor time per job of all processes, in microseconds.
    pub micros: f64,
    /// How long half of the requests took at most, in milliseconds.
    p50: Option<f64>,
    cost: String,
}

/// How long requests took, in microseconds.
struct Times(Mutex<Histogram<u64>>);

impl Times {
    fn take(&self, since: Instant) -> anyhow::Result<()> {
        let micros = u64::try_from(since.elapsed().as_micros())?;
        Ok(self.0.lock().unwrap_or_else(PoisonError::into_inner).record(micros)?)
    }

    fn p50(self) -> Option<f64> {
        let times = self.0.into_inner().unwrap_or_else(PoisonError::into_inner);
        (!times.is_empty()).then(|| times.value_at_quantile(0.5) as f64 / 1_000.0)
    }
}

pub(crate) async fn leg(way: Way, count: u64) -> anyhow::Result<Leg> {
    let (world, node) = match way.needs_node() {
        false => (bare::world().await?, None),
        true => {
            let world = World::new().await;
            let node = product::asleep(&world, Duration::from_secs(3_600)).await?;
            (world, Some(node))
        }
    };
    let before = streams::waiting_if_any(&world).await;
    let meters = [Some(Meter::own()), node.as_ref().map(|node| Meter::of(node.pid())), Some(Meter::server(&world)?)];
    let (times, start) = (Times(Mutex::new(Histogram::new(3)?)), Instant::now());
    match (way, &node) {
        (Way::HttpSingle | Way::Http | Way::HttpLines, Some(node)) => post(way, node.http(), count, &times).await?,
        _ => send(way, world.client(), count, &times).await?,
    }
    let took = start.elapsed();
    let micros = meters.iter().flatten().map(|meter| meter.used().as_secs_f64() * 1e6 / count as f64);
    let micros: Vec<f64> = micros.collect();
    let stored = streams::waiting_if_any(&world).await - before;
    ensure!(stored == count, "{stored} of {count} jobs lie in the lanes");
    if let Some(node) = node {
        // Its job sleeps for an hour.
        node.kill9().await;
    }
    let parts: Vec<String> = micros.iter().map(|part| number(*part, 1)).collect();
    let micros = micros.iter().sum();
    let cost = format!("{} = {}", parts.join(" + "), number(micros, 1));
    Ok(Leg { rate: count as f64 / took.as_secs_f64(), micros, p50: times.p50(), cost })
}

async fn send(way: Way, client: &Client, count: u64, times: &Times) -> anyhow::Result<()> {
    let body = jobs::body("");
    match way {
        Way::Single => jobs::publish_singly(client, &jobs::subject(5, "noop"), &body, count).await,
        Way::Pipelined => jobs::publish(client, &jobs::subjects(false), &body, count).await,
        Way::SubmitSingle => ask(client, &SUBMIT, same(job(&body)?), (count, 1), times).await,
        Way::Submit => ask(client, &SUBMIT, same(job(&body)?), (count, AT_ONCE), times).await,
        Way::SubmitKeys => {
            let one = job(&body)?;
            let keyed =
                |number: u64| Bytes::from(one.replacen('{', &format!(r#"{{"idempotency_key":"k{number}","#), 1));
            ask(client, &SUBMIT, keyed, (count, AT_ONCE), times).await
        }
        Way::SubmitBatch => {
            let one = job(&body)?;
            let all = vec![one.as_str(); usize::try_from(BATCH)?].join(",");
            let request = format!(r#"{{"jobs":[{all}]}}"#);
            ask(client, &SUBMIT_BATCH, same(request), (count / BATCH, BATCHES_AT_ONCE), times).await
        }
        Way::HttpSingle | Way::Http | Way::HttpLines => unreachable!("they go over HTTP"),
    }
}

/// Posts jobs over connections that are kept, and checks every answer.
async fn post(way: Way, node: SocketAddr, count: u64, times: &Times) -> anyhow::Result<()> {
    let one = job(&jobs::body(""))?;
    let (media_type, body, each, connections) = match way {
        Way::HttpLines => {
            ("application/x-ndjson", vec![one; usize::try_from(BATCH)?].join("\n"), BATCH, BATCHES_AT_ONCE)
        }
        Way::HttpSingle => ("application/json", one, 1, 1),
        _ => ("application/json", one, 1, AT_ONCE),
    };
    let (body, left) = (Bytes::from(body), AtomicU64::new(count / each));
    let connection = || async {
        let stream = TcpStream::connect(node).await?;
        stream.set_nodelay(true)?;
        let (mut sender, served) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        let served = tokio::spawn(served);
        while left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_ok() {
            let request = Request::post("/v1/jobs").header("host", node.to_string()).header("content-type", media_type);
            sender.ready().await?;
            let sent = Instant::now();
            let answer = sender.send_request(request.body(Full::new(body.clone()))?).await?;
            let status = answer.status();
            let said = answer.into_body().collect().await?.to_bytes();
            times.take(sent)?;
            let taken = said.split(|byte| *byte == b'\n').filter(|line| line.starts_with(br#"{"#)).count() as u64;
            ensure!(status.is_success() && taken == each, "{status}: {}", String::from_utf8_lossy(&said));
        }
        drop(sender);
        served.await??;
        anyhow::Ok(())
    };
    stream::iter(0..connections).map(|_| connection()).buffer_unordered(connections).try_collect().await
}

/// The request that submits this body.
fn job(body: &Bytes) -> anyhow::Result<String> {
    let payload = std::str::from_utf8(body)?;
    Ok(format!(r#"{{"type":"noop","payload":{payload}}}"#))
}

/// An endpoint, and whether an answer of it is good.
type Asked = (&'static str, fn(&Value) -> bool);

const SUBMIT: Asked = ("submit", is_run);
const SUBMIT_BATCH: Asked = ("submit.batch", is_batch);

/// The same request for every number.
fn same(request: String) -> impl Fn(u64) -> Bytes {
    let request = Bytes::from(request);
    move |_| request.clone()
}

/// Sends `count` requests, with a limit on requests at once, and checks every answer.
async fn ask(
    client: &Client,
    (endpoint, is_good): &Asked,
    request: impl Fn(u64) -> Bytes,
    (count, at_once): (u64, usize),
    times: &Times,
) -> anyhow::Result<()> {
    let subject = format!("longshore.api.default.{endpoint}");
    let (subject, request) = (&subject, &request);
    let asked = stream::iter(0..count).map(|number| async move {
        let sent = Instant::now();
        let answer = client.request(subject.clone(), request(number)).await?;
        times.take(sent)?;
        let answer: Value = serde_json::from_slice(&answer.payload)?;
        ensure!(is_good(&answer), "{endpoint} answered {answer}");
        Ok(())
    });
    asked.buffer_unordered(at_once).try_collect().await
}

fn is_run(answer: &Value) -> bool {
    answer["run_id"].is_string()
}

fn is_batch(answer: &Value) -> bool {
    answer["jobs"].as_array().is_some_and(|jobs| jobs.len() as u64 == BATCH && jobs.iter().all(is_run))
}
