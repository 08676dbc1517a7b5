//! The suite: scene after scene, each with its bare legs in the same rounds; other queues in the same run. It is a
//! subcommand and not a script around this program, so that figures are handed over as they are, and every server and
//! script is a child that cannot outlive it.

mod legs;
mod peers;
mod plot;
mod report;

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure};
use longshore_harness::{Usage, World};

use self::legs::{Figure, Leg, Scene, Side, side_by_side};
use self::peers::{PEERS, Peer};
use self::report::Report;
use crate::args::{self, Scale};
use crate::enqueue::{self, WAYS, Way};
use crate::latency::{self, Who};
use crate::machine::{Cost, Meter, server_pid};
use crate::streams::{self, RECORDS, SCHEDULES, lane};
use crate::table::number;
use crate::{drain, idle, jobs, product, remote};

/// Units that two scenes share.
const RATE: &str = "jobs/s";
const IN: &str = "jobs/s, enqueued in bulk";
const OUT: &str = "jobs/s, drained";

/// How much of everything.
struct Extent {
    rounds: usize,
    /// Waiting jobs of the drains, and of the one in which everything else varies.
    backlogs: &'static [u64],
    backlog: u64,
    enqueue: args::Enqueue,
    remote: u64,
    peers: u64,
    seconds: u32,
}

impl Extent {
    fn of(scale: Scale) -> Extent {
        let enqueue = |jobs, singles| args::Enqueue { jobs, singles, pairs: 0 };
        match scale {
            Scale::Small => Extent {
                rounds: 3,
                backlogs: &[10_000, 100_000],
                backlog: 50_000,
                enqueue: enqueue(20_000, 2_000),
                remote: 10_000,
                peers: 20_000,
                seconds: 15,
            },
            Scale::Full => Extent {
                rounds: 5,
                backlogs: &[10_000, 100_000, 1_000_000],
                backlog: 100_000,
                enqueue: enqueue(100_000, 10_000),
                remote: 50_000,
                peers: 100_000,
                seconds: 60,
            },
        }
    }
}

pub(crate) async fn run(args: &args::Suite, longshore: &Path) -> anyhow::Result<()> {
    let extent = Extent::of(args.scale);
    let version = World::new().await.client().server_info().version.clone();
    let mut report = Report::new(args.scale, longshore, &version);
    let installed = std::path::absolute(&args.peers_dir)?;
    let peers = peers_of(args, &installed, &mut report.skipped)?;
    for name in SCENES.iter().filter(|name| args.only.is_empty() || args.only.iter().any(|only| only == **name)) {
        let scene = match *name {
            "enqueue" => enqueue_scene(&extent).await,
            "drain" => drain_scene(&extent).await,
            "backlog" => backlog_scene(&extent).await,
            "latency-200" => latency_scene("latency-200", 200, &extent).await,
            "latency-half" => latency_scene("latency-half", saturation(&extent).await? / 2, &extent).await,
            "remote" => remote_scene(&extent, &installed).await,
            "start" => start_scene(&extent).await,
            "idle" => idle_scene(&extent).await,
            _ => peers_scene(&extent, &peers, &installed).await,
        };
        report.scenes.push(scene);
        report.write(&args.out)?;
    }
    println!("\nWritten to {}: results.json, table.md and a plot of each scene.", args.out.display());
    report.skipped.iter().for_each(|skipped| eprintln!("SKIPPED {skipped}"));
    let failed: usize = report.scenes.iter().map(|scene| scene.failed.len()).sum();
    ensure!(failed == 0, "{failed} legs failed; table.md says which and why");
    Ok(())
}

const SCENES: [&str; 9] =
    ["peers", "enqueue", "drain", "backlog", "latency-200", "latency-half", "remote", "start", "idle"];

/// The peers that are asked for and can run. They are installed if they never were.
fn peers_of(args: &args::Suite, installed: &Path, skipped: &mut Vec<String>) -> anyhow::Result<Vec<&'static Peer>> {
    let asked: Vec<&str> = args.peers.iter().map(String::as_str).filter(|name| !name.is_empty()).collect();
    if !asked.is_empty() && !installed.exists() {
        println!("Installing the peers into {}.", installed.display());
        let status = Command::new("sh").arg(peers::scripts().join("setup.sh")).arg(installed).status()?;
        if !status.success() {
            eprintln!("bench/peers/setup.sh failed ({status})");
        }
    }
    let mut found = Vec::new();
    for name in asked {
        let Some(peer) = PEERS.iter().find(|peer| peer.name == name) else { bail!("there is no peer {name}") };
        match peer.missing(installed) {
            None => found.push(peer),
            Some(missing) => {
                eprintln!("SKIPPED {missing}");
                skipped.push(missing);
            }
        }
    }
    Ok(found)
}

fn rate(unit: &'static str, cost: &Cost) -> Figure {
    Figure::costing(unit, cost.rate(), cost.micros())
}

async fn enqueue_scene(extent: &Extent) -> Scene {
    let args = &extent.enqueue;
    let legs = WAYS.map(|way| {
        let (side, beside) = match way.needs_node() {
            true => (Side::Longshore, WAYS.iter().position(|bare| *bare as usize == way.bare() as usize)),
            false => (Side::Bare, None),
        };
        Leg::new(way.name(), side, beside, move || async move {
            let leg = enqueue::leg(way, way.jobs(args)).await?;
            Ok(vec![Figure::costing(RATE, leg.rate, leg.micros)])
        })
    });
    let title = format!("Enqueue: {} jobs of 256 B, {} one by one", number(args.jobs as f64, 0), args.singles);
    side_by_side("enqueue", title, &legs, extent.rounds).await
}

async fn bare_drain(unit: &'static str, count: u64) -> anyhow::Result<Vec<Figure>> {
    let (cost, memory) = drain::bare_leg(count).await?;
    Ok(vec![rate(unit, &cost), mib("nats-server's peak MiB", memory)])
}

async fn product_drain(unit: &'static str, args: &args::Drain) -> anyhow::Result<Vec<Figure>> {
    let drained = drain::plain_leg(args).await?;
    let (node, server) = (drained.node_peak, drained.server_peak);
    Ok(vec![rate(unit, &drained.cost), mib("the node's peak MiB", node), mib("nats-server's peak MiB", server)])
}

fn mib(unit: &'static str, bytes: u64) -> Figure {
    Figure::new(unit, bytes as f64 / f64::from(1 << 20))
}

async fn drain_scene(extent: &Extent) -> Scene {
    let plain = || args::Drain::of(extent.backlog);
    let ways = [
        ("longshore, everything on", plain()),
        ("… 512 workers", args::Drain { concurrency: 512, ..plain() }),
        ("… no record of a success", args::Drain { failures_only: true, ..plain() }),
        ("… 10 tenants", args::Drain { tenants: Some(10), ..plain() }),
        ("… 1,000 tenants", args::Drain { tenants: Some(1_000), ..plain() }),
        ("… spread over nine priorities", args::Drain { spread: true, ..plain() }),
        ("… 1,000 keys, one at a time of each", args::Drain { keys: Some(1_000), ..plain() }),
        ("… each fails once, again after 1 s", args::Drain { fail_once: true, ..plain() }),
    ];
    let count = extent.backlog;
    let mut legs = vec![Leg::new("bare pull and acknowledge", Side::Bare, None, async || {
        bare_drain(RATE, count).await.map(first)
    })];
    legs.extend(ways.iter().map(|(name, args)| {
        Leg::new(name, Side::Longshore, Some(0), async || product_drain(RATE, args).await.map(first))
    }));
    let title = format!("Drain of {} waiting no-ops of 256 B, 64 workers", number(count as f64, 0));
    side_by_side("drain", title, &legs, extent.rounds).await
}

/// Memory is a matter of the backlog's length, which has a scene of its own.
fn first(mut figures: Vec<Figure>) -> Vec<Figure> {
    figures.truncate(1);
    figures
}

async fn backlog_scene(extent: &Extent) -> Scene {
    let mut legs = Vec::new();
    for count in extent.backlogs {
        let beside = Some(legs.len());
        let jobs = number(*count as f64, 0);
        legs.push(Leg::new(&format!("bare, {jobs} jobs"), Side::Bare, None, || bare_drain(RATE, *count)));
        let run = async || product_drain(RATE, &args::Drain::of(*count)).await;
        legs.push(Leg::new(&format!("longshore, {jobs} jobs"), Side::Longshore, beside, run));
    }
    side_by_side("backlog", "Drain by length of the backlog, and its memory".to_owned(), &legs, extent.rounds).await
}

/// Jobs per second that the product does while they are enqueued as fast as it goes.
async fn saturation(extent: &Extent) -> anyhow::Result<u32> {
    let world = World::new().await;
    let node = product::up(&world, 64).await;
    let (count, start) = (extent.backlog, Instant::now());
    jobs::publish(world.client(), &jobs::subjects(false), &jobs::body(""), count).await?;
    let within = Duration::from_secs(60);
    streams::filled(async || streams::messages(&world, RECORDS).await, count, within, |_| {}).await?;
    streams::emptied(&world, &[lane(5), SCHEDULES.to_owned()], within).await?;
    let rate = count as f64 / start.elapsed().as_secs_f64();
    node.stop().await;
    Ok(rate as u32)
}

async fn latency_scene(name: &'static str, rate: u32, extent: &Extent) -> Scene {
    let args = &args::Latency { rate, seconds: extent.seconds, pairs: 0 };
    // Half of what a node does itself is more than a remote handler does.
    let whose = latency::ALL.iter().filter(|who| rate == 200 || !matches!(who, Who::Remote));
    let legs = whose.map(|who| {
        let (side, beside) = match who {
            Who::Bare => (Side::Bare, None),
            _ => (Side::Longshore, Some(0)),
        };
        Leg::new(who.name(), side, beside, move || async move {
            let [_, due] = latency::leg(*who, args).await?;
            let at = |unit, quantile| Figure::new(unit, due.value_at_quantile(quantile) as f64 / 1_000.0);
            Ok(vec![at("p50, ms", 0.5), at("p99, ms", 0.99), at("p99.9, ms", 0.999)])
        })
    });
    let of = if rate == 200 { String::new() } else { ", half of saturation".to_owned() };
    let title = format!(
        "Latency at {} jobs/s{of}: from the time a job was due until its handler starts",
        number(rate.into(), 0)
    );
    side_by_side(name, title, &legs.collect::<Vec<_>>(), extent.rounds).await
}

async fn remote_scene(extent: &Extent, installed: &Path) -> Scene {
    let of = |handler: Vec<String>| args::Remote { jobs: extent.remote, pairs: 0, concurrency: 64, handler };
    let python = installed.join("py/bin/python");
    let script = peers::scripts().with_file_name("remote.py");
    let mut handlers = vec![("Rust", of(Vec::new()))];
    if python.is_file() {
        handlers.push(("Python", of([python, script].map(|path| path.display().to_string()).to_vec())));
    }
    let mut legs = Vec::new();
    for (name, args) in &handlers {
        let (at, unit) = (legs.len(), "a second");
        legs.push(Leg::new(&format!("bare requests, {name}"), Side::Bare, None, move || async move {
            Ok(vec![Figure::new(unit, remote::bare_leg(args).await?)])
        }));
        legs.push(Leg::new(&format!("longshore, handler in {name}"), Side::Longshore, Some(at), move || async move {
            Ok(vec![Figure::new(unit, remote::product_leg(args).await?)])
        }));
    }
    let title = format!("Remote handlers: {} jobs, 64 at once", number(extent.remote as f64, 0));
    side_by_side("remote", title, &legs, extent.rounds).await
}

async fn start_scene(extent: &Extent) -> Scene {
    let millis = |since: Instant| Ok(vec![Figure::new("ms", since.elapsed().as_secs_f64() * 1_000.0)]);
    let legs = [
        Leg::new("bare: nats-server, until connected", Side::Bare, None, async || {
            let start = Instant::now();
            let _world = World::new().await;
            millis(start)
        }),
        Leg::new("longshore, first start on a server", Side::Longshore, Some(0), async || {
            let world = World::new().await;
            let start = Instant::now();
            let _node = product::up(&world, 64).await;
            millis(start)
        }),
        Leg::new("longshore, started again", Side::Longshore, Some(0), async || {
            let world = World::new().await;
            let node = product::down(product::node(&world, 64)).await;
            let start = Instant::now();
            node.restart().await;
            millis(start)
        }),
    ];
    side_by_side("start", "Start until ready".to_owned(), &legs, extent.rounds).await
}

async fn idle_scene(extent: &Extent) -> Scene {
    let (server, time) = ("nats-server, % of a core", Duration::from_secs(u64::from(extent.seconds)));
    let legs = [
        Leg::new("bare: nats-server alone", Side::Bare, None, async || {
            let world = World::new().await;
            tokio::time::sleep(idle::SETTLES).await;
            let shares = idle::share(&[Meter::server(&world)?], time).await;
            Ok(vec![Figure::new(server, shares[0] * 100.0)])
        }),
        Leg::new("longshore, one node", Side::Longshore, Some(0), async || {
            let world = World::new().await;
            let node = product::up(&world, 64).await;
            tokio::time::sleep(idle::SETTLES).await;
            let shares = idle::share(&[Meter::server(&world)?, Meter::of(node.pid())], time).await;
            let memory = mib("the node's resident MiB", node.usage().resident);
            let more = mib("nats-server's resident MiB", Usage::of(server_pid(&world)?).resident);
            Ok(vec![
                Figure::new(server, shares[0] * 100.0),
                Figure::new("the node, % of a core", shares[1] * 100.0),
                memory,
                more,
            ])
        }),
    ];
    side_by_side("idle", format!("Idle for {} s", extent.seconds), &legs, extent.rounds).await
}

async fn peers_scene(extent: &Extent, peers: &[&'static Peer], installed: &Path) -> Scene {
    let count = extent.peers;
    let enqueued = async |way| {
        let leg = enqueue::leg(way, count).await?;
        anyhow::Ok(Figure::costing(IN, leg.rate, leg.micros))
    };
    let noted = |figures: Vec<Figure>, terms: &str| {
        let note = format!("file, lazy sync: loses up to 2 min; {terms}");
        Ok(figures.into_iter().map(|figure| Figure { note: note.clone(), ..figure }).collect())
    };
    let all = &args::Drain::of(count);
    let failures = &args::Drain { failures_only: true, ..all.clone() };
    let mut legs = vec![
        Leg::new("bare JetStream", Side::Bare, None, async || {
            let figures = vec![enqueued(Way::Pipelined).await?, bare_drain(OUT, count).await?.remove(0)];
            noted(figures, "1,024 publishes at once; keeps nothing")
        }),
        Leg::new("longshore", Side::Longshore, Some(0), async || {
            let figures = vec![enqueued(Way::SubmitBatch).await?, product_drain(OUT, all).await?.remove(0)];
            noted(figures, "batches of 1,000; keeps a record and three events of each job")
        }),
        Leg::new("longshore, history = failures", Side::Longshore, Some(0), async || {
            noted(vec![product_drain(OUT, failures).await?.remove(0)], "keeps nothing of a success")
        }),
    ];
    for peer in peers {
        legs.push(Leg::new(peer.name, Side::Peer, Some(0), async || peer.leg(installed, count).await));
    }
    let title = format!("Other queues: {} no-ops of 256 B, 64 at once", number(count as f64, 0));
    side_by_side("peers", title, &legs, extent.rounds).await
}
