//! How many jobs a second a remote handler does, beside a bare loop of requests to the same program.
//!
//! The handler replies with what it got. It is a plain subscription in this process, in Rust, or a program that serves
//! requests to `bare.measured` as well as jobs, such as `bench/remote.py`.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use async_nats::ConnectOptions;
use futures_util::{StreamExt, stream};
use longshore_harness::{World, eventually};
use tokio::process::{Child, Command};
use tokio::task::JoinSet;

use crate::machine::{Weather, class};
use crate::table::{Table, number, spread};
use crate::{args, jobs, product};

/// Where bare requests go.
const BARE: &str = "bare.measured";
/// The type of the jobs.
const TYPE: &str = "measured";
/// Jobs before the measurement.
const WARM_UP: u64 = 2_000;
/// How long the handler may take until it answers, and a job until it completes.
const WITHIN: Duration = Duration::from_secs(30);

pub(crate) async fn run(args: &args::Remote) -> anyhow::Result<()> {
    let handler = if args.handler.is_empty() { "in Rust".to_owned() } else { args.handler.join(" ") };
    println!("## Remote handler: {} jobs of 256 B, {} at once, handler {handler}\n", args.jobs, args.concurrency);
    println!("{}", class());
    let table = Table::new(&["pair", "bare requests/s", "jobs/s", "jobs, of bare", "load / steal"]);
    let (mut bares, mut products) = (Vec::new(), Vec::new());
    for pair in 0..args.pairs {
        let weather = Weather::now();
        // Alternating (ABBA), so that a drift of the machine cancels.
        let (bare, product) = if pair % 2 == 0 {
            let bare = bare_leg(args).await?;
            (bare, product_leg(args).await?)
        } else {
            let product = product_leg(args).await?;
            (bare_leg(args).await?, product)
        };
        let figures = [number(bare, 0), number(product, 0), number(product / bare, 3)];
        let mut row = vec![(pair + 1).to_string()];
        row.extend(figures);
        row.push(weather.until_now());
        table.row(&row);
        bares.push(bare);
        products.push(product);
    }
    let ratios: Vec<f64> = products.iter().zip(&bares).map(|(product, bare)| product / bare).collect();
    let table = Table::new(&["min / median / max", "a second"]);
    table.row(&["bare requests".to_owned(), spread(&bares, 0)]);
    table.row(&["jobs".to_owned(), spread(&products, 0)]);
    table.row(&["jobs, of bare".to_owned(), spread(&ratios, 3)]);
    Ok(())
}

/// Requests per second, so many at once, straight to the handler.
pub(crate) async fn bare_leg(args: &args::Remote) -> anyhow::Result<f64> {
    let world = World::new().await;
    let _handler = Handler::start(args, &world).await?;
    let (start, mut loops) = (Instant::now(), JoinSet::new());
    for nth in 0..args.concurrency {
        let (client, body, mine) =
            (world.client().clone(), jobs::body(""), (nth as u64..args.jobs).step_by(args.concurrency));
        loops.spawn(async move {
            for _ in mine {
                let answer = client.request(BARE, body.clone()).await?;
                ensure!(answer.payload == body, "an answer is not its request");
            }
            Ok(())
        });
    }
    while let Some(ended) = loops.join_next().await {
        ended??;
    }
    Ok(args.jobs as f64 / start.elapsed().as_secs_f64())
}

/// Jobs per second, of a node with so many workers, from the first publish until the last live event `completed`.
///
/// A first load is not counted: until a node has heard of the handler's slots it parks what it cannot start.
pub(crate) async fn product_leg(args: &args::Remote) -> anyhow::Result<f64> {
    let world = World::new().await;
    let _handler = Handler::start(args, &world).await?;
    // The workers bound what is at the handler; jobs beyond its slots would be parked.
    let slots = format!("slots = {}", 10 * args.concurrency);
    let node = product::node(&world, args.concurrency).with(&format!("types.{TYPE}"), &slots).start().await;
    let mut completed = world.client().subscribe("longshore.events.default.completed.main.>").await?;
    let mut rate = 0.0;
    for count in [WARM_UP, args.jobs] {
        let start = Instant::now();
        jobs::publish(world.client(), &[jobs::subject(5, TYPE)], &jobs::body(""), count).await?;
        for done in 0..count {
            let next = tokio::time::timeout(WITHIN, completed.next()).await;
            next.with_context(|| format!("stuck: only {done} jobs have completed"))?.context("disconnected")?;
        }
        rate = count as f64 / start.elapsed().as_secs_f64();
    }
    node.stop().await;
    Ok(rate)
}

/// What replies; it ends when this is dropped.
enum Handler {
    Here(#[expect(dead_code, reason = "ends its task")] JoinSet<()>),
    Program(#[expect(dead_code, reason = "ends its process")] Child),
}

impl Handler {
    async fn start(args: &args::Remote, world: &World) -> anyhow::Result<Handler> {
        let handler = match args.handler.as_slice() {
            [program, arguments @ ..] => {
                let mut command = Command::new(program);
                command.args(arguments).env("NATS_URL", world.urls()).kill_on_drop(true);
                Handler::Program(command.spawn().with_context(|| format!("{program} does not start"))?)
            }
            [] => {
                // A connection of its own, as a program would have.
                let client = world.connect(ConnectOptions::new()).await;
                let group = "handlers".to_owned();
                let bare = client.queue_subscribe(BARE, group.clone()).await?;
                let work = client.queue_subscribe(format!("longshore.work.*.{TYPE}"), group).await?;
                let mut serving = JoinSet::new();
                serving.spawn(async move {
                    let mut asked = stream::select(bare, work);
                    while let Some(message) = asked.next().await {
                        if let Some(reply) = message.reply {
                            let _ = client.publish(reply, message.payload).await;
                        }
                    }
                });
                Handler::Here(serving)
            }
        };
        eventually("an answer of the handler", WITHIN, async || world.client().request(BARE, "".into()).await).await;
        Ok(handler)
    }
}
