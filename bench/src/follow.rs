//! Streams of events over HTTP: what many cost their node, how late events are in them, and whether each has its own.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use async_nats::Client;
use bytes::Bytes;
use hdrhistogram::Histogram;
use http_body_util::{BodyExt as _, Empty};
use hyper::Request;
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use jiff::Timestamp;
use longshore_harness::{Node, World};
use serde::Deserialize;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until, timeout};

use crate::machine::{Meter, Weather, class};
use crate::table::{Table, mib, number};
use crate::{args, jobs, product};

/// Events of a run that completes at its first attempt.
const EVENTS: u64 = 3;
/// A stream without a frame for this long is stuck. A comment comes more often.
const STALLED_AFTER: Duration = Duration::from_secs(60);
/// How often a row is printed.
const ROW_EVERY: Duration = Duration::from_secs(20);

/// How late events were, in microseconds, since the last row.
type Lags = Arc<Mutex<Histogram<u64>>>;

pub(crate) async fn run(args: &args::Follow) -> anyhow::Result<()> {
    let args::Follow { streams, tenants, rate, seconds } = *args;
    println!("## Follow: {streams} streams of {tenants} tenants' events, {rate} events per second for {seconds} s\n");
    println!("{}", class());
    println!(
        "Each stream has all events of its tenant. Milliseconds from when an event happened until it is read here."
    );
    let world = World::new().await;
    let node = product::up(&world, 64).await;
    let alone = node.usage().resident;
    let subjects = jobs::subjects_of(false, tenants);
    // As many of each tenant.
    let each = (rate * seconds).div_ceil(EVENTS * tenants);
    let lags: Lags = Arc::new(Mutex::new(Histogram::new(3)?));
    let mut readers = JoinSet::new();
    for number in 0..streams {
        let tenant =
            subjects.iter().cycle().nth(usize::try_from(number)?).and_then(|subject| subject.split('.').nth(2));
        let body = open(node.http(), tenant.context("a subject has a tenant")?).await?;
        readers.spawn(read(body, each * EVENTS, Arc::clone(&lags)));
    }
    println!("The node has {} MiB without a stream, and {} with all.", mib(alone), mib(node.usage().resident));
    let jobs_per_s = rate as f64 / EVENTS as f64;
    let generator = tokio::spawn(generate(world.client().clone(), subjects, jobs_per_s, each * tenants));
    let table = Table::new(&["s", "frames", "p50", "p99", "max", "node MiB", "node % of a core", "load / steal"]);
    let (begun, mut since, mut ended) = (Instant::now(), Since::now(&node), 0);
    let mut rows = interval(ROW_EVERY);
    rows.set_missed_tick_behavior(MissedTickBehavior::Delay);
    rows.tick().await;
    while ended < streams {
        tokio::select! {
            Some(read) = readers.join_next() => {
                read??;
                ended += 1;
                if ended < streams {
                    continue;
                }
            }
            _ = rows.tick() => {}
        }
        let lags = std::mem::replace(&mut *lags.lock().unwrap_or_else(PoisonError::into_inner), Histogram::new(3)?);
        since.row(&table, begun, &lags, &node);
        since = Since::now(&node);
    }
    generator.await??;
    println!(
        "\nEvery stream had each of its {} events once. Peak of the node: {} MiB.",
        each * EVENTS,
        mib(node.usage().peak)
    );
    node.stop().await;
    Ok(())
}

/// What is counted for a row, since the one before.
struct Since {
    at: Instant,
    meter: Meter,
    weather: Weather,
}

impl Since {
    fn now(node: &Node) -> Since {
        Since { at: Instant::now(), meter: Meter::of(node.pid()), weather: Weather::now() }
    }

    fn row(&self, table: &Table, begun: Instant, lags: &Histogram<u64>, node: &Node) {
        let millis = |micros: u64| number(micros as f64 / 1_000.0, 0);
        let share = self.meter.used().as_secs_f64() / self.at.elapsed().as_secs_f64();
        table.row(&[
            begun.elapsed().as_secs().to_string(),
            number(lags.len() as f64, 0),
            millis(lags.value_at_quantile(0.5)),
            millis(lags.value_at_quantile(0.99)),
            millis(lags.max()),
            mib(node.usage().resident),
            number(share * 100.0, 0),
            self.weather.until_now(),
        ]);
    }
}

async fn generate(client: Client, subjects: Vec<String>, rate: f64, count: u64) -> anyhow::Result<()> {
    let (start, body) = (Instant::now(), jobs::body(""));
    for (number, subject) in (0..count).zip(subjects.iter().cycle()) {
        sleep_until(start + Duration::from_secs_f64(number as f64 / rate)).await;
        client.publish(subject.clone(), body.clone()).await?;
    }
    Ok(client.flush().await?)
}

/// Opens a stream of the events that happen from now on.
async fn open(node: SocketAddr, tenant: &str) -> anyhow::Result<Incoming> {
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(TcpStream::connect(node).await?)).await?;
    tokio::spawn(connection);
    let request = Request::get(format!("/v1/events?tenant={tenant}")).header("host", node.to_string());
    let answer = sender.send_request(request.body(Empty::<Bytes>::new())?).await?;
    ensure!(answer.status() == 200, "a stream was answered {}", answer.status());
    Ok(answer.into_body())
}

#[derive(Deserialize)]
struct Event<'a> {
    at: &'a str,
}

/// Reads until so many events have come, each behind the one before.
async fn read(mut body: Incoming, count: u64, lags: Lags) -> anyhow::Result<()> {
    let (mut text, mut last, mut had) = (String::new(), (0, 0), 0);
    while had < count {
        let piece = timeout(STALLED_AFTER, body.frame()).await;
        let piece = piece.with_context(|| format!("{had} of {count} events came"))?.context("the stream ended")??;
        let now = Timestamp::now();
        text.push_str(std::str::from_utf8(piece.data_ref().context("a stream has no trailers")?)?);
        while let Some((frame, rest)) = text.split_once("\n\n") {
            let field = |name: &str| frame.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
            if field("event") == Some("reset") {
                bail!("the stream was lost after {had} of {count} events: {frame}");
            }
            if let (Some(id), Some(data)) = (field("id"), field("data")) {
                let (sequence, line) = id.split_once('.').context("an id has two parts")?;
                let at: (u64, u32) = (sequence.parse()?, line.parse()?);
                ensure!(at > last, "{id} came after {last:?}");
                (last, had) = (at, had + 1);
                let lag = now.duration_since(serde_json::from_str::<Event<'_>>(data)?.at.parse()?).as_micros();
                lags.lock().unwrap_or_else(PoisonError::into_inner).record(u64::try_from(lag).unwrap_or(0))?;
            }
            text = rest.to_owned();
        }
    }
    ensure!(had == count, "{had} events came, and there were {count}");
    Ok(())
}
