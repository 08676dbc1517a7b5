//! The cost of an idle node: its own processor time and memory, and the load it puts on the server.

use std::time::{Duration, Instant};

use longshore_harness::World;
use tokio::time::sleep;

use crate::args;
use crate::machine::{Meter, Weather, class};
use crate::product;
use crate::table::{Table, mib};

/// The time in which the effects of the start fade.
pub(crate) const SETTLES: Duration = Duration::from_secs(5);

pub(crate) async fn run(args: &args::Idle) -> anyhow::Result<()> {
    println!("## Idle: {} s without a job\n\n{}", args.seconds, class());
    let world = World::new().await;
    sleep(SETTLES).await;
    let time = Duration::from_secs(args.seconds);
    let alone = share(&[Meter::server(&world)?], time).await;

    let node = product::up(&world, 64).await;
    sleep(SETTLES).await;
    let weather = Weather::now();
    let both = share(&[Meter::of(node.pid()), Meter::server(&world)?], time).await;
    let usage = node.usage();

    let table = Table::new(&["", "% of a core", "resident MiB", "peak MiB", "load / steal"]);
    let percent = |share: Option<&f64>| format!("{:.2}", share.copied().unwrap_or(f64::NAN) * 100.0);
    let none = || "–".to_owned();
    table.row(&["node".to_owned(), percent(both.first()), mib(usage.resident), mib(usage.peak), weather.until_now()]);
    table.row(&["nats-server with it".to_owned(), percent(both.get(1)), none(), none(), none()]);
    table.row(&["nats-server alone".to_owned(), percent(alone.first()), none(), none(), none()]);
    node.stop().await;
    Ok(())
}

/// The share of a core that each process used over this time. The system counts in hundredths of a second.
pub(crate) async fn share(meters: &[Meter], time: Duration) -> Vec<f64> {
    let (start, before): (_, Vec<Duration>) = (Instant::now(), meters.iter().map(|meter| meter.used()).collect());
    sleep(time).await;
    let took = start.elapsed().as_secs_f64();
    meters.iter().zip(before).map(|(meter, before)| (meter.used() - before).as_secs_f64() / took).collect()
}
