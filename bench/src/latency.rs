//! Measures the time from a job's publish to its handler's start, at a steady rate.
//!
//! An open loop: job i is due at its time, whatever happened to the jobs before it. The time counts from the send, and
//! also from the due time, which shows a generator that fell behind (its timer has steps of a millisecond). This
//! process both publishes and listens, so there is one monotonic clock.

use std::time::Duration;

use anyhow::{Context, bail, ensure};
use async_nats::{Client, Message, Subscriber};
use futures_util::StreamExt;
use hdrhistogram::Histogram;
use longshore_harness::World;
use tokio::time::{Instant, sleep_until, timeout};

use crate::bare::{self, Puller};
use crate::machine::{Weather, class};
use crate::table::Table;
use crate::{args, jobs, product};

/// Results of this time are discarded: pools, caches and the branch predictor fill.
const WARM_UP: Duration = Duration::from_secs(2);
/// How long to wait for a start.
const COMES_WITHIN: Duration = Duration::from_secs(30);

/// The part whose start is measured.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Who {
    /// A bare pull loop.
    Bare,
    /// A handler in the node. Its live event `started`, which goes out right before the call, marks the start.
    Node,
    /// A remote handler over NATS.
    Remote,
}

pub(crate) const ALL: [Who; 3] = [Who::Bare, Who::Node, Who::Remote];

impl Who {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Who::Bare => "bare pull loop",
            Who::Node => "longshore, handler in the node",
            Who::Remote => "longshore, remote handler",
        }
    }
}

pub(crate) async fn run(args: &args::Latency) -> anyhow::Result<()> {
    println!(
        "## Latency: {} jobs per second for {} s, after {} s of warm-up\n",
        args.rate,
        args.seconds,
        WARM_UP.as_secs()
    );
    println!("{}", class());
    println!(
        "Milliseconds from the publish until the handler starts. In the node: until its live event `started` has come back"
    );
    println!(
        "here, so one way over the server more than the start itself. Remote: until the request is at the handler."
    );
    let table =
        Table::new(&["leg", "samples", "p50", "p90", "p99", "max", "p50 from due", "p99 from due", "load / steal"]);
    for pair in 0..args.pairs {
        let mut order = ALL;
        if pair % 2 == 1 {
            order.reverse();
        }
        for who in order {
            let weather = Weather::now();
            let [sent, due] = leg(who, args).await.with_context(|| who.name())?;
            let at = |times: &Histogram<u64>, quantile| millis(times.value_at_quantile(quantile));
            let mut row = vec![format!("{} {}", pair + 1, who.name()), sent.len().to_string()];
            row.extend([0.5, 0.9, 0.99].map(|quantile| at(&sent, quantile)));
            row.extend([millis(sent.max()), at(&due, 0.5), at(&due, 0.99), weather.until_now()]);
            table.row(&row);
        }
    }
    Ok(())
}

fn millis(micros: u64) -> String {
    format!("{:.2}", micros as f64 / 1_000.0)
}

/// Measures times in microseconds, from the send and from the due time.
pub(crate) async fn leg(who: Who, args: &args::Latency) -> anyhow::Result<[Histogram<u64>; 2]> {
    let warm_up = u64::from(args.rate) * WARM_UP.as_secs();
    let count = warm_up + u64::from(args.rate) * u64::from(args.seconds);
    let (world, node) = match who {
        Who::Bare => (bare::world().await?, None),
        Who::Node | Who::Remote => {
            let world = World::new().await;
            let node = product::up(&world, 64).await;
            (world, Some(node))
        }
    };
    let job_type = if matches!(who, Who::Remote) { "measured" } else { "noop" };
    let mut listener = Listener::open(who, &world).await?;
    let generator = tokio::spawn(generate(world.client().clone(), jobs::subject(5, job_type), args.rate, count));
    let received = listener.receive(count).await?;
    let sent = generator.await??;
    let mut times = [Histogram::new(3)?, Histogram::new(3)?];
    for (sent, received) in sent.iter().zip(&received).skip(usize::try_from(warm_up)?) {
        let received = received.context("every job has started")?;
        for (times, from) in times.iter_mut().zip([sent.at, sent.due]) {
            let micros = received.saturating_duration_since(from).as_micros();
            times.record(u64::try_from(micros)?.max(1))?;
        }
    }
    if let Some(node) = node {
        node.stop().await;
    }
    Ok(times)
}

/// When a job was sent, and when it should have been.
struct Sent {
    due: Instant,
    at: Instant,
}

async fn generate(client: Client, subject: String, rate: u32, count: u64) -> anyhow::Result<Vec<Sent>> {
    let start = Instant::now() + Duration::from_millis(100);
    let mut sent = Vec::with_capacity(usize::try_from(count)?);
    for number in 0..count {
        let due = start + Duration::from_secs_f64(number as f64 / f64::from(rate));
        sleep_until(due).await;
        let body = jobs::body(&format!("\"number\":{number}"));
        sent.push(Sent { due, at: Instant::now() });
        client.publish(subject.clone(), body).await?;
    }
    Ok(sent)
}

/// Listens for starts.
enum Listener {
    Bare(Puller),
    Events(Subscriber),
    Requests(Client, Subscriber),
}

impl Listener {
    async fn open(who: Who, world: &World) -> anyhow::Result<Listener> {
        let client = world.client().clone();
        let listener = match who {
            Who::Bare => {
                let mut puller = Puller::open(client.clone()).await?;
                puller.top_up().await?;
                Listener::Bare(puller)
            }
            Who::Node => Listener::Events(client.subscribe("longshore.events.default.started.main.>").await?),
            Who::Remote => {
                let group = "measuring".to_owned();
                let requests = client.queue_subscribe("longshore.work.default.measured", group).await?;
                Listener::Requests(client.clone(), requests)
            }
        };
        client.flush().await?;
        Ok(listener)
    }

    /// When each job's start was received, by the job's number.
    async fn receive(&mut self, count: u64) -> anyhow::Result<Vec<Option<Instant>>> {
        let mut received = vec![None; usize::try_from(count)?];
        for times in 0..count {
            let next = timeout(COMES_WITHIN, self.next()).await;
            let number = next.with_context(|| format!("only {times} of {count} starts came"))??;
            let now = Instant::now();
            let place = received.get_mut(number).with_context(|| format!("there is no job {number}"))?;
            // Nothing dies here, so no job may start twice.
            ensure!(place.replace(now).is_none(), "job {number} started twice");
        }
        Ok(received)
    }

    async fn next(&mut self) -> anyhow::Result<usize> {
        match self {
            Listener::Bare(puller) => number_in(&puller.next().await?.context("no job came")?),
            Listener::Events(events) => {
                // …started.main.main-p5-<sequence>.noop: one publisher on a fresh lane, so the sequence identifies the
                // job.
                let event = events.next().await.context("the subscription ended")?;
                let sequence = event.subject.split('.').nth(5).and_then(|run| run.rsplit('-').next()?.parse().ok());
                let sequence: usize = sequence.with_context(|| format!("whose start is {}?", event.subject))?;
                sequence.checked_sub(1).context("sequences begin at 1")
            }
            Listener::Requests(client, requests) => {
                let request = requests.next().await.context("the subscription ended")?;
                let Some(reply) = request.reply.clone() else { bail!("a request wants no reply") };
                client.publish(reply, "".into()).await?;
                number_in(&request)
            }
        }
    }
}

fn number_in(job: &Message) -> anyhow::Result<usize> {
    let body: serde_json::Value = serde_json::from_slice(&job.payload)?;
    let number = body["number"].as_u64().with_context(|| format!("a job without a number: {body}"))?;
    Ok(usize::try_from(number)?)
}
