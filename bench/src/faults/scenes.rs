//! The chaos scenes of `postgresql-job-queue-benchmarking` (github.com/hardbyte), as far as they apply to a queue on
//! NATS: a steady load before, during and after a disturbance, and how long jobs wait for their start in each of the
//! three times.
//!
//! A transaction that stands idle has no counterpart: JetStream keeps no old versions of rows for it. In its place
//! stand clients that take messages and neither read on nor acknowledge.

use std::time::Duration;

use anyhow::{Context, ensure};
use async_nats::ConnectOptions;
use async_nats::jetstream::consumer::pull;
use clap::ValueEnum;
use futures_util::StreamExt;
use futures_util::future::join_all;
use hdrhistogram::Histogram;
use jiff::Timestamp;
use longshore_harness::natsd::Options;
use longshore_harness::{Node, World};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::judge::{self, Wait};
use super::load::Load;
use super::{ENDS_WITHIN, REMOTE, REMOTE_IS, WARM_UP, worker};
use crate::args::{self, Scene};
use crate::event_log;
use crate::machine::{Weather, class};
use crate::product::ROOM;
use crate::streams;
use crate::table::Table;

/// How long a job works.
const WORKS_MS: u64 = 1;
/// Connections that do nothing.
const IDLE: usize = 300;
/// Readers at once, each of all records and of the whole log, again and again.
const READERS: usize = 4;
/// Between two connections that are closed.
const CLOSES_EACH: Duration = Duration::from_millis(500);
/// Kills of a node in the scene of many.
const KILLS: u32 = 6;

/// A user for the system account, which may close connections; everybody else needs no login.
const ACCOUNTS: &str = "system_account: SYS\n\
    accounts {\n  SYS { users: [{user: sys, password: sys}] }\n  APP { jetstream: enabled, users: [{user: app, password: app}] }\n}\n\
    no_auth_user: app";

pub(crate) async fn run(args: &args::Scenes) -> anyhow::Result<()> {
    println!("## Scenes: {} jobs per second of {WORKS_MS} ms, two nodes, lease {} s\n", args.rate, args.lease);
    println!("{}\n", class());
    println!(
        "p50 / p99 / max of ms from the time at which a job is due to be published until its first start: {0} s before, {0} s during,",
        args.seconds
    );
    println!(
        "{} s after the disturbance. Recovered: seconds from its end until every job that was due then has started.",
        args.seconds
    );
    let table = Table::new(&[
        "scene",
        "before",
        "during",
        "after",
        "recovered s",
        "jobs",
        "done twice",
        "lost",
        "ended twice",
        "load / steal",
    ]);
    let mut unsound = 0;
    for scene in Scene::value_variants().iter().filter(|scene| args.only.is_empty() || args.only.contains(scene)) {
        let weather = Weather::now();
        let (mut row, sound) = play(*scene, args).await.with_context(|| format!("{scene:?}"))?;
        row.push(weather.until_now());
        table.row(&row);
        unsound += usize::from(!sound);
    }
    ensure!(unsound == 0, "{unsound} scenes lost jobs, or ended some twice");
    Ok(())
}

/// Plays one scene in a world of its own. Returns its row, and whether each job has ended once.
async fn play(scene: Scene, args: &args::Scenes) -> anyhow::Result<(Vec<String>, bool)> {
    let options = Options { max_file: longshore_harness::ROOM, extra: ACCOUNTS.to_owned(), ..Options::default() };
    let world = World::with(options).await;
    let lease = format!("lease = '{}s'", args.lease);
    let node = || world.node().config(ROOM).with("node", &lease).with(&format!("types.{REMOTE}"), REMOTE_IS);
    let nodes = [node().start().await, node().start().await];
    let worker = worker(&world, Duration::from_millis(WORKS_MS)).await;
    let load = Load::start(world.client().clone(), args.rate, WORKS_MS);
    sleep(WARM_UP).await;
    let time = Duration::from_secs(args.seconds);
    let begun = Timestamp::now();
    sleep(time).await;
    let disturbed = Timestamp::now();
    disturb(scene, &world, &nodes, (&load, args.rate), time).await?;
    let repaired = Timestamp::now();
    sleep(time).await;
    let stored = load.stop().await?;
    streams::jobs_gone(&world, ENDS_WITHIN).await?;
    let verdict = super::settled(&world, &stored, &[], &worker).await?;
    let (waits, recovered) = judge::waits(&world, &stored, repaired).await?;
    let mut row = vec![scene.to_possible_value().context("it has a name")?.get_name().to_owned()];
    for (from, until) in [(begun, disturbed), (disturbed, repaired), (repaired, Timestamp::MAX)] {
        row.push(quantiles(&waits, from, until)?);
    }
    row.push(format!("{recovered:.2}"));
    row.extend([verdict.jobs, verdict.done_twice, verdict.lost, verdict.twice].map(|number| number.to_string()));
    for node in &nodes {
        node.stop().await;
    }
    Ok((row, verdict.lost + verdict.twice == 0))
}

/// The waits of the jobs that were due in this time, in milliseconds.
fn quantiles(waits: &[Wait], from: Timestamp, until: Timestamp) -> anyhow::Result<String> {
    let mut micros: Histogram<u64> = Histogram::new(3)?;
    for wait in waits.iter().filter(|wait| wait.due >= from && wait.due < until) {
        micros.record((wait.seconds * 1e6) as u64)?;
    }
    let at = |quantile| micros.value_at_quantile(quantile) as f64 / 1e3;
    Ok(format!("{:.1} / {:.1} / {:.0}", at(0.5), at(0.99), micros.max() as f64 / 1e3))
}

/// Disturbs the world for so long, and repairs it.
async fn disturb(
    scene: Scene,
    world: &World,
    nodes: &[Node; 2],
    load: (&Load, u32),
    time: Duration,
) -> anyhow::Result<()> {
    let until = Instant::now() + time;
    match scene {
        Scene::Clean => sleep(time).await,
        Scene::WorkerKill => {
            nodes[0].kill9().await;
            sleep(time).await;
            nodes[0].restart().await;
        }
        Scene::RepeatedKills => {
            for _ in 0..KILLS {
                nodes[0].kill9().await;
                nodes[0].restart().await;
                sleep(time / KILLS).await;
            }
        }
        Scene::ServerRestart => {
            world.server().kill9().await;
            sleep(time / 2).await;
            world.server().restart().await?;
            sleep_until(until).await;
        }
        Scene::ConnectionKills => close_connections(world, until).await?,
        Scene::IdleConnections => {
            let idle = join_all((0..IDLE).map(|_| world.connect(ConnectOptions::new()))).await;
            sleep_until(until).await;
            drop(idle);
        }
        Scene::StalledReaders => stall(world, until).await?,
        Scene::ActiveReaders => {
            let readers = (0..READERS).map(|_| read_again(world, until));
            join_all(readers).await.into_iter().collect::<anyhow::Result<()>>()?;
        }
        Scene::HighLoad => {
            let (load, rate) = load;
            load.set_rate(rate * 3 / 2);
            sleep(time).await;
            load.set_rate(rate);
        }
    }
    Ok(())
}

/// Has the server close one of the nodes' connections after the other.
async fn close_connections(world: &World, until: Instant) -> anyhow::Result<()> {
    let system = world.connect(ConnectOptions::with_user_and_password("sys".to_owned(), "sys".to_owned())).await;
    let info = world.client().server_info();
    let ask = async |what: &str, body: Value| {
        let subject = format!("$SYS.REQ.SERVER.{}.{what}", info.server_id);
        let answer = system.request(subject, body.to_string().into()).await?;
        anyhow::Ok(serde_json::from_slice::<Value>(&answer.payload)?)
    };
    let mut closed = 0;
    while Instant::now() < until {
        let answer = ask("CONNZ", json!({})).await?;
        let all = answer["data"]["connections"].as_array().context("the server lists its connections")?;
        let is_nodes = |one: &&Value| one["name"].as_str().is_some_and(|name| name.starts_with("longshore"));
        let ids: Vec<&Value> = all.iter().filter(is_nodes).map(|one| &one["cid"]).collect();
        // None: all of them have just been closed.
        if let Some(id) = ids.get(closed % ids.len().max(1)) {
            ask("KICK", json!({"cid": id})).await?;
            closed += 1;
        }
        sleep(CLOSES_EACH).await;
    }
    ensure!(closed > 0, "no connection of a node was found");
    Ok(())
}

/// A client that subscribes to everything and reads nothing, and a consumer that takes events and acknowledges none.
async fn stall(world: &World, until: Instant) -> anyhow::Result<()> {
    let address = world.server().url().replace("nats://", "");
    let mut unread = TcpStream::connect(address).await?;
    unread.write_all(b"CONNECT {\"verbose\":false}\r\nSUB > 1\r\n").await?;
    let stream = world.jetstream().get_stream("LONGSHORE_EVENTS").await?;
    let config = pull::Config { ack_wait: Duration::from_secs(3_600), ..pull::Config::default() };
    let mut messages = stream.create_consumer(config).await?.messages().await?;
    while let Ok(Some(message)) = timeout(until.saturating_duration_since(Instant::now()), messages.next()).await {
        message.map_err(|error| anyhow::anyhow!(error))?;
    }
    sleep_until(until).await;
    Ok(())
}

/// Reads all records by the API, page by page, and the whole event log, until then.
async fn read_again(world: &World, until: Instant) -> anyhow::Result<()> {
    let mut cursor = Value::Null;
    while Instant::now() < until {
        let asked = json!({"limit": 500, "cursor": cursor});
        let answer = world.client().request("longshore.api.default.runs.list", asked.to_string().into()).await?;
        let page: Value = serde_json::from_slice(&answer.payload)?;
        ensure!(page["runs"].is_array(), "runs.list answered {page}");
        cursor = page["cursor"].clone();
        if cursor.is_null() {
            event_log::read(world, |_| ()).await?;
        }
    }
    Ok(())
}
