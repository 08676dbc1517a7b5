//! Works off waiting no-ops: the bare loop and the product with all features on, in pairs.

use std::convert::Infallible;
use std::time::Duration;

use longshore_harness::collector::Collector;
use longshore_harness::{Node, NodeBuilder, Usage, World, http};

use crate::args;
use crate::jobs;
use crate::machine::{self, Cost, Weather};
use crate::product::{self, Drained};
use crate::table::{Table, mib, number, spread};
use crate::{bare, machine::class};

pub(crate) async fn run(args: &args::Drain) -> anyhow::Result<()> {
    let args::Drain { jobs, pairs, concurrency, spread, .. } = args;
    let lanes = if *spread { "all nine lanes" } else { "one lane" };
    println!("## Drain: {jobs} no-ops of 256 B, {concurrency} workers, {lanes}\n");
    println!("{}", class());
    println!(
        "On: run record, three live events and three logged events per job, lease and acknowledgement. File, one replica, lazy sync."
    );
    println!(
        "Processor time: user + system of worker + nats-server, with the node's start. Clock: from `ready`, or the first start before"
    );
    println!("it, until nine lanes are empty, every record is there and the log has every run in full.");
    let table =
        Table::new(&["leg", "jobs/s", "CPU µs/job", "node peak MiB", "server peak MiB", "repeats", "load / steal"]);
    let (first, second) = Watched::pair(args);
    let (mut firsts, mut seconds) = (Vec::new(), Vec::new());
    for pair in 0..*pairs {
        // Alternating (ABBA), so that a drift of the machine cancels.
        for is_first in [pair % 2 == 0, pair % 2 == 1] {
            if !is_first {
                seconds.push(product_leg(args, &table, pair, second).await?);
            } else if let Some(first) = first {
                firsts.push(product_leg(args, &table, pair, first).await?);
            } else if !args.product_only {
                firsts.push(bare_leg_of(args, &table, pair).await?);
            }
        }
    }
    summary([first.map_or("bare", Watched::name), second.name()], &firsts, &seconds);
    Ok(())
}

/// What watches the product meanwhile.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Watched {
    /// As it is: nobody asks for metrics, and it writes its log.
    Plain,
    /// Not even its log is written.
    Nothing,
    /// Its metrics are asked for every second.
    Scraped,
    /// Metrics, traces, audit, log.
    Everything,
    /// As it is, with jobs of many tenants.
    ManyTenants,
}

impl Watched {
    const fn name(self) -> &'static str {
        match self {
            Self::Plain => "longshore",
            Self::Nothing => "nothing on",
            Self::Scraped => "scraped",
            Self::Everything => "everything on",
            Self::ManyTenants => "many tenants",
        }
    }

    /// The product in pairs with itself, or with the bare loop.
    const fn pair(args: &args::Drain) -> (Option<Self>, Self) {
        match (args.observed, args.scrape, args.tenants) {
            (true, ..) => (Some(Self::Nothing), Self::Everything),
            (_, true, _) => (Some(Self::Plain), Self::Scraped),
            (.., Some(_)) => (Some(Self::Plain), Self::ManyTenants),
            _ => (None, Self::Plain),
        }
    }

    /// A node that is watched like this.
    fn node<'w>(self, args: &args::Drain, world: &'w World, collector: &Collector) -> NodeBuilder<'w> {
        let node = node(args, world);
        match self {
            Self::Plain | Self::Scraped | Self::ManyTenants => node,
            Self::Nothing => node.env("LONGSHORE_LOG", "off"),
            Self::Everything => {
                let files = ["file", "events_file"].map(|name| {
                    let path = world.dir().join(format!("audit.{name}"));
                    format!("{name} = '{}'\n", path.display())
                });
                let ratio = args.sample_ratio.map(|ratio| format!("\nsample_ratio = {ratio:?}")).unwrap_or_default();
                let traces = format!("endpoint = '{}'{ratio}", collector.url);
                node.with("audit", &files.concat()).with("telemetry", &traces)
            }
        }
    }
}

/// A node as these options have it, and nothing that watches it.
fn node<'w>(args: &args::Drain, world: &'w World) -> NodeBuilder<'w> {
    let node = product::node(world, args.concurrency);
    match (args.fail_once, args.failures_only) {
        (true, _) => {
            let backoff = "backoff = { base = '1s', factor = 1.0, max = '1s', jitter = 'none' }";
            node.with("types.noop", &format!("handler = 'fail'\n{backoff}"))
        }
        (_, true) => node.with("types.noop", "history = 'failures'"),
        _ => node,
    }
}

/// What the bare loop costs for so many jobs, and the server's peak memory.
pub(crate) async fn bare_leg(count: u64) -> anyhow::Result<(Cost, u64)> {
    let world = bare::world().await?;
    jobs::publish(world.client(), &jobs::subjects(false), &jobs::body(""), count).await?;
    let cost = machine::cost(&world, count, bare::drain(&world, count)).await?;
    Ok((cost, Usage::of(machine::server_pid(&world)?).peak))
}

/// What the product needs for the same.
pub(crate) async fn plain_leg(args: &args::Drain) -> anyhow::Result<Drained> {
    let world = World::new().await;
    let node = product::down(node(args, &world)).await;
    let drained = product::drain(&world, &node, args, args.tenants.unwrap_or(1)).await?;
    node.stop().await;
    Ok(drained)
}

async fn bare_leg_of(args: &args::Drain, table: &Table, pair: usize) -> anyhow::Result<Cost> {
    let weather = Weather::now();
    let (cost, _) = bare_leg(args.jobs).await?;
    let none = || "–".to_owned();
    let leg = format!("{} bare", pair + 1);
    table.row(&[leg, number(cost.rate(), 0), cost.text(), none(), none(), none(), weather.until_now()]);
    Ok(cost)
}

async fn product_leg(args: &args::Drain, table: &Table, pair: usize, watched: Watched) -> anyhow::Result<Cost> {
    let world = World::new().await;
    let collector = Collector::counting().await;
    let node = product::down(watched.node(args, &world, &collector)).await;
    let tenants = args.tenants.filter(|_| watched == Watched::ManyTenants).unwrap_or(1);
    let drain = product::drain(&world, &node, args, tenants);
    let drained = tokio::select! {
        drained = drain => drained?,
        never = scrape(&node), if matches!(watched, Watched::Scraped | Watched::Everything) => match never {},
    };
    node.stop().await;
    let Drained { cost, tally, node_peak, server_peak, weather, .. } = drained;
    let repeats = (tally.repeats + tally.others).to_string();
    let spans = match collector.received().count {
        0 => String::new(),
        count => format!(", {count} spans"),
    };
    let leg = format!("{} {}{spans}", pair + 1, watched.name());
    table.row(&[leg, number(cost.rate(), 0), cost.text(), mib(node_peak), mib(server_peak), repeats, weather]);
    Ok(cost)
}

/// Asks a node for its metrics every second, as Prometheus would at its most eager.
async fn scrape(node: &Node) -> Infallible {
    let mut tick = tokio::time::interval(Duration::from_secs(1));
    loop {
        tick.tick().await;
        // Until the node is up nobody answers.
        let _ = http::get(node.http(), "/metrics").await;
    }
}

/// The ratio of each pair, never of medians from different minutes.
fn summary([first, second]: [&str; 2], bares: &[Cost], products: &[Cost]) {
    let all = |costs: &[Cost], figure: fn(&Cost) -> f64| costs.iter().map(figure).collect::<Vec<f64>>();
    let table = Table::new(&["min / median / max", "jobs/s", "CPU µs/job"]);
    let row = |name: &str, costs: &[Cost]| {
        let (rates, micros) = (all(costs, Cost::rate), all(costs, Cost::micros));
        table.row(&[name.to_owned(), spread(&rates, 0), spread(&micros, 1)]);
    };
    row(first, bares);
    row(second, products);
    let pairs = || products.iter().zip(bares);
    let rates: Vec<f64> = pairs().map(|(product, bare)| product.rate() / bare.rate()).collect();
    let micros: Vec<f64> = pairs().map(|(product, bare)| bare.micros() / product.micros()).collect();
    table.row(&[format!("{second}, of {first}"), spread(&rates, 3), spread(&micros, 3)]);
}
