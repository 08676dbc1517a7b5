//! Jobs that cannot start, and one behind them that can: how long it waits, and whether the full handlers stay busy.
//!
//! Two types make the backlog, in the lane of the probe: one whose handlers are full, one that nobody serves. This
//! process is the handler, so it sees each call and counts how many of its slots were busy, and in which order the
//! jobs came.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context;
use async_nats::{Client, Subscriber};
use futures_util::StreamExt;
use longshore_harness::World;
use tokio::time::{Instant, sleep, timeout};

use crate::args::Blockage;
use crate::machine::{Weather, class};
use crate::table::{Table, number};
use crate::{args, jobs, product, streams};

/// The type whose handlers are full.
const FULL: &str = "full";
/// The type without handlers.
const UNSERVED: &str = "unserved";
/// How long to wait for the start of a probe.
const COMES_WITHIN: Duration = Duration::from_secs(120);
/// The backlog is at rest when its count in the lanes has not changed for so long.
const AT_REST_AFTER: Duration = Duration::from_secs(2);
/// The pause between two probes, and between two looks at the streams.
const OFTEN: Duration = Duration::from_millis(100);

pub(crate) async fn run(args: &args::Blocked) -> anyhow::Result<()> {
    println!("## Blocked: a no-op behind jobs that cannot start\n\n{}", class());
    println!("The full type has {} slots, each taken for {} ms. Milliseconds from", args.slots, args.millis);
    println!("the probe's publish until its live event `started` is back here: of the first, published as soon as the");
    println!("last job of the backlog was confirmed, and of {} more, once the backlog was at rest.", args.probes);
    let columns =
        ["backlog", "first", "at rest: p50", "max", "at rest after s", "slots busy", "out of order by", "load / steal"];
    let table = Table::new(&columns);
    for &backlog in &args.jobs {
        for what in [Blockage::Full, Blockage::Unserved, Blockage::Both] {
            if args.only.is_none_or(|only| only == what) {
                table.row(&leg(args, backlog, what).await.with_context(|| format!("{backlog} jobs, {what:?}"))?);
            }
        }
    }
    Ok(())
}

async fn leg(args: &args::Blocked, backlog: u64, what: Blockage) -> anyhow::Result<Vec<String>> {
    let (world, weather) = (World::new().await, Weather::now());
    let slots = format!("handler = 'remote'\nslots = {}\ntimeout = '1h'", args.slots);
    let grace = "handler = 'remote'\nno_handler_grace = '1h'";
    let node = product::node(&world, 64).with(&format!("types.{FULL}"), &slots);
    let node = node.with(&format!("types.{UNSERVED}"), grace).start().await;
    let client = world.client();
    let calls = handler(client.clone(), Duration::from_millis(args.millis)).await?;
    let mut started = client.subscribe("longshore.events.default.started.main.*.noop").await?;
    client.flush().await?;

    // The first jobs of a node that has just started wait until the lanes' first pulls had time to come back.
    probe(client, &mut started).await?;
    sleep(AT_REST_AFTER).await;
    let published = Instant::now();
    for subject in types(what) {
        jobs::publish(client, &[jobs::subject(5, subject)], &jobs::body(""), backlog).await?;
    }
    let first = probe(client, &mut started).await?;
    at_rest(&world).await?;
    let rest = published.elapsed() - AT_REST_AFTER;
    let mut at_rest = Vec::new();
    for _ in 0..args.probes {
        at_rest.push(probe(client, &mut started).await?);
        sleep(OFTEN).await;
    }
    at_rest.sort_unstable();
    let busy = match what {
        Blockage::Unserved => "–".to_owned(),
        Blockage::Full | Blockage::Both => {
            let window = Duration::from_secs(args.seconds);
            let before = seen(&calls).busy_until(Instant::now());
            sleep(window).await;
            let used = seen(&calls).busy_until(Instant::now()).saturating_sub(before);
            number(used.as_secs_f64() / (window.as_secs_f64() * args.slots as f64), 3)
        }
    };
    let distance = seen(&calls).out_of_order;
    node.kill9().await;
    let middle = at_rest.get(at_rest.len() / 2).copied().unwrap_or_default();
    let last = at_rest.last().copied().unwrap_or_default();
    let name = match what {
        Blockage::Full => format!("{backlog} of a full type"),
        Blockage::Unserved => format!("{backlog} without handler"),
        Blockage::Both => format!("{backlog} of each"),
    };
    Ok(vec![
        name,
        millis(first),
        millis(middle),
        millis(last),
        number(rest.as_secs_f64(), 1),
        busy,
        if matches!(what, Blockage::Unserved) { "–".to_owned() } else { distance.to_string() },
        weather.until_now(),
    ])
}

fn types(what: Blockage) -> &'static [&'static str] {
    match what {
        Blockage::Full => &[FULL],
        Blockage::Unserved => &[UNSERVED],
        Blockage::Both => &[FULL, UNSERVED],
    }
}

fn millis(time: Duration) -> String {
    format!("{:.1}", time.as_secs_f64() * 1_000.0)
}

/// Publishes a no-op and waits for its start.
async fn probe(client: &Client, started: &mut Subscriber) -> anyhow::Result<Duration> {
    let sent = Instant::now();
    client.publish(jobs::subject(5, "noop"), jobs::body("")).await?;
    timeout(COMES_WITHIN, started.next()).await?.context("the subscription ended")?;
    Ok(sent.elapsed())
}

/// Waits until no job is on its way from the lanes to where it waits.
async fn at_rest(world: &World) -> anyhow::Result<()> {
    let (mut there, mut since) = (streams::messages(world, &streams::lane(5)).await?, Instant::now());
    while since.elapsed() < AT_REST_AFTER {
        sleep(OFTEN).await;
        let now = streams::messages(world, &streams::lane(5)).await?;
        // Jobs of the full type come back by and by.
        if now.abs_diff(there) > 64 {
            (there, since) = (now, Instant::now());
        }
    }
    Ok(())
}

/// What the handler saw.
#[derive(Debug, Default)]
struct Calls {
    /// The time that all slots together were busy, of calls that are over.
    busy: Duration,
    running: VecDeque<Instant>,
    /// The highest sequence in the lane that was called.
    highest: u64,
    /// By how many jobs a later one was called before an earlier one, at most.
    out_of_order: u64,
}

impl Calls {
    fn busy_until(&self, now: Instant) -> Duration {
        self.busy + self.running.iter().map(|start| now.saturating_duration_since(*start)).sum::<Duration>()
    }

    fn called(&mut self, sequence: u64) {
        self.running.push_back(Instant::now());
        self.out_of_order = self.out_of_order.max(self.highest.saturating_sub(sequence));
        self.highest = self.highest.max(sequence);
    }

    /// All calls take equally long, so the one that began first is over.
    fn over(&mut self) {
        if let Some(start) = self.running.pop_front() {
            self.busy += start.elapsed();
        }
    }
}

type Seen = Arc<Mutex<Calls>>;

fn seen(calls: &Seen) -> std::sync::MutexGuard<'_, Calls> {
    calls.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Answers each job of the full type after `takes`.
async fn handler(client: Client, takes: Duration) -> anyhow::Result<Seen> {
    let calls = Seen::default();
    let subject = format!("longshore.work.default.{FULL}");
    let mut requests = client.queue_subscribe(subject, "measuring".to_owned()).await?;
    let kept = Arc::clone(&calls);
    tokio::spawn(async move {
        while let Some(request) = requests.next().await {
            let run = request.headers.as_ref().and_then(|headers| headers.get("Longshore-Run-Id"));
            let sequence = run.and_then(|run| run.as_str().rsplit('-').next()?.parse().ok());
            seen(&kept).called(sequence.unwrap_or_default());
            let (client, calls) = (client.clone(), Arc::clone(&kept));
            tokio::spawn(async move {
                sleep(takes).await;
                seen(&calls).over();
                if let Some(reply) = request.reply {
                    // Without an answer the run would be seen to miss in the figures.
                    let _ = client.publish(reply, "".into()).await;
                }
            });
        }
    });
    Ok(calls)
}
