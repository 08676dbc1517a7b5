//! A long backlog: a node's memory while a million jobs wait and while they are worked off, and whether rate and memory
//! stay flat from the first tenth to the last.

use std::time::{Duration, Instant};

use anyhow::Context;
use longshore_harness::{Node, Usage, World};
use tokio::time::sleep;

use crate::machine::{Weather, class, server_pid};
use crate::product::{self, Drained};
use crate::table::{Table, mib, number};
use crate::{args, jobs, streams};

/// The pause between two samples of memory.
const OFTEN: Duration = Duration::from_millis(200);
/// The sleeping job ends this long after the last sample.
const MARGIN: Duration = Duration::from_secs(3);

pub(crate) async fn run(args: &args::Backlog) -> anyhow::Result<()> {
    println!("## Backlog: {} no-ops of 256 B wait\n\n{}\n", args.jobs, class());
    let world = World::new().await;
    // The node starts once before there is work, so that no work is done outside the measurement.
    let works = product::down(product::node(&world, args.concurrency)).await;
    let node = product::up(&world, 1).await;
    let empty = node.usage().resident;
    node.stop().await;
    // The most urgent job keeps the only worker asleep while all others wait.
    let time = Duration::from_secs(args.seconds) + MARGIN;
    let asleep = jobs::body(&format!("\"ms\":{}", time.as_millis()));
    jobs::publish(world.client(), &[jobs::subject(1, "sleep")], &asleep, 1).await?;
    jobs::publish(world.client(), &jobs::subjects(false), &jobs::body(""), args.jobs).await?;
    node.restart().await;

    let (weather, mut waiting) = (Weather::now(), Watch::default());
    let until = Instant::now() + Duration::from_secs(args.seconds);
    while Instant::now() < until {
        waiting.look(&node);
        sleep(OFTEN).await;
    }
    let there = streams::waiting_if_any(&world).await;
    let server = Usage::of(server_pid(&world)?);
    println!("{} messages lie in the lanes after {} s with a node.", number(there as f64, 0), args.seconds);
    let table = Table::new(&["while all wait (its one worker sleeps)", "MiB"]);
    table.row(&["node resident, without a job".to_owned(), mib(empty)]);
    table.row(&["node resident, least / last / peak".to_owned(), waiting.text(&node)]);
    table.row(&["nats-server resident / peak".to_owned(), format!("{} / {}", mib(server.resident), mib(server.peak))]);
    println!("\nLoad / steal: {}", weather.until_now());
    node.stop().await;

    // Plus the sleeping job.
    let drained = product::work_off(&world, &works, args.jobs + 1, true).await?;
    works.stop().await;
    report(&drained)
}

/// Resident memory over time.
#[derive(Debug, Default)]
struct Watch {
    least: Option<u64>,
    last: u64,
}

impl Watch {
    fn look(&mut self, node: &Node) {
        self.last = node.usage().resident;
        self.least = Some(self.least.map_or(self.last, |least| least.min(self.last)));
    }

    fn text(&self, node: &Node) -> String {
        format!("{} / {} / {}", mib(self.least.unwrap_or(self.last)), mib(self.last), mib(node.usage().peak))
    }
}

fn report(drained: &Drained) -> anyhow::Result<()> {
    let Drained { cost, tally, node_peak, server_peak, weather, curve } = drained;
    println!(
        "\nWorked off: {} jobs/s, CPU {} µs/job (node + server), {} repeats in the log; load / steal {weather}.",
        number(cost.rate(), 0),
        cost.text(),
        tally.repeats + tally.others
    );
    println!("Peak: node {} MiB, nats-server {} MiB.", mib(*node_peak), mib(*server_peak));
    let table = Table::new(&["tenth", "jobs/s in it", "node resident MiB at its end"]);
    let (first, last) = (curve.first().context("a drain has a first sample")?, curve.last().context("and a last")?);
    let (mut from, mut rates) = (*first, Vec::new());
    for tenth in 1..=10 {
        let mark = first.1 + (last.1 - first.1) * tenth / 10;
        let Some(to) = curve.iter().find(|look| look.1 >= mark) else { continue };
        let rate = (to.1 - from.1) as f64 / (to.0 - from.0).as_secs_f64();
        rates.push(rate);
        table.row(&[tenth.to_string(), number(rate, 0), mib(to.2)]);
        from = *to;
    }
    if let (Some(first), Some(last)) = (rates.first(), rates.last()) {
        println!("\nLast tenth over first, by rate: {:.2}.", last / first);
    }
    Ok(())
}
