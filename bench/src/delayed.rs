//! Delayed jobs that fall due together: whether one starts early, how late they start, how fast they fire, and what
//! they cost in memory while they wait; also with kills of the server while they fire.
//!
//! Lateness counts from the time that a job was given to its handler's start, both by the clock of this machine. So it
//! has in it all that is between: the server's timer (250 ms), its firing, the move into the lane, and the worker.

use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use async_nats::Client;
use jiff::{SignedDuration, Timestamp};
use longshore_harness::{Usage, World};
use tokio::time::sleep;

use crate::machine::{Weather, class, server_pid};
use crate::streams::{self, RECORDS, SCHEDULES};
use crate::table::{Table, mib, number};
use crate::{args, event_log, jobs, product};

/// No schedule added or gone for this long: stuck.
const STALLED_AFTER: Duration = Duration::from_secs(60);
/// The pause between two looks at a stream.
const OFTEN: Duration = Duration::from_millis(200);
/// The pause between two kills of the server.
const BETWEEN_KILLS: Duration = Duration::from_secs(3);
/// How long it is down each time.
const DOWN: Duration = Duration::from_millis(500);

pub(crate) async fn run(args: &args::Delayed) -> anyhow::Result<()> {
    println!("## Delayed: {} no-ops of 256 B, due within {} s\n\n{}\n", args.jobs, args.over, class());
    let table = Table::new(&[
        "server kills",
        "early",
        "late p50 ms",
        "p99",
        "max",
        "started per s",
        "published and scheduled per s",
        "node MiB waiting / peak",
        "server MiB waiting / peak",
        "load / steal",
    ]);
    for kills in 0..=args.kills {
        // Without a kill, and with the most of them.
        if kills == 0 || kills == args.kills {
            leg(args, kills, &table).await.with_context(|| format!("with {kills} kills"))?;
        }
    }
    Ok(())
}

/// When each job is due: spread evenly, in the order in which they are published.
struct Due {
    first: Timestamp,
    over: Duration,
    jobs: u64,
}

impl Due {
    /// Of the job with this number, which is that of its message in the lane, from 1 on. A header has milliseconds.
    fn of(&self, number: u64) -> Timestamp {
        let after = self.over.as_millis() as f64 * (number - 1) as f64 / self.jobs as f64;
        self.first + SignedDuration::from_millis(after as i64)
    }
}

async fn leg(args: &args::Delayed, kills: u32, table: &Table) -> anyhow::Result<()> {
    let (world, weather) = (World::new().await, Weather::now());
    let node = product::up(&world, 64).await;
    // As long as they take to be published and scheduled, at the least rate that was ever seen.
    let lead = Duration::from_secs(5) + Duration::from_secs_f64(args.jobs as f64 / args.rate);
    let first = Timestamp::now() + SignedDuration::try_from(lead)?;
    let due = Due { first, over: Duration::from_secs(args.over), jobs: args.jobs };
    let start = Instant::now();
    publish(world.client(), &due).await?;
    let filled =
        streams::filled(async || streams::messages(&world, SCHEDULES).await, args.jobs, STALLED_AFTER, |_| {}).await;
    let scheduled = start.elapsed();
    ensure!(Timestamp::now() < first, "the first fell due before all were scheduled: a lower --rate is needed");
    filled?;
    let waiting = [node.usage().resident, Usage::of(server_pid(&world)?).resident];

    sleep(Duration::try_from(first.duration_since(Timestamp::now()))?).await;
    let mut peak = 0;
    for _ in 0..kills {
        peak = peak.max(Usage::of(server_pid(&world)?).peak);
        world.server().kill9().await;
        sleep(DOWN).await;
        world.server().restart().await?;
        sleep(BETWEEN_KILLS).await;
    }
    streams::filled(async || streams::messages(&world, RECORDS).await, args.jobs, STALLED_AFTER, |_| {}).await?;
    for stream in [SCHEDULES, &streams::lane(5)] {
        run_dry(&world, stream).await?;
    }
    let peaks = [node.usage().peak, peak.max(Usage::of(server_pid(&world)?).peak)];
    ensure!(node.stop().await.success(), "the node did not flush");
    let Starts { early, mut late, last } = starts(&world, &due).await?;
    late.sort_unstable();
    let at = |share: f64| late[((late.len() - 1) as f64 * share) as usize].to_string();
    let took = last.duration_since(first).as_secs_f64();
    table.row(&[
        kills.to_string(),
        early.to_string(),
        at(0.5),
        at(0.99),
        at(1.0),
        number(args.jobs as f64 / took, 0),
        number(args.jobs as f64 / scheduled.as_secs_f64(), 0),
        format!("{} / {}", mib(waiting[0]), mib(peaks[0])),
        format!("{} / {}", mib(waiting[1]), mib(peaks[1])),
        weather.until_now(),
    ]);
    Ok(())
}

/// Waits until a stream is empty. It asks rarely, as a question costs the server time.
async fn run_dry(world: &World, stream: &str) -> anyhow::Result<()> {
    let mut last = (u64::MAX, Instant::now());
    loop {
        match streams::messages(world, stream).await {
            Ok(0) => return Ok(()),
            Ok(left) if left < last.0 => last = (left, Instant::now()),
            Ok(left) if last.1.elapsed() > STALLED_AFTER => bail!("stuck: {left} messages in {stream}"),
            // A server that fires a million leaves questions unanswered.
            Err(error) if last.1.elapsed() > STALLED_AFTER => return Err(error),
            Ok(_) | Err(_) => {}
        }
        sleep(OFTEN).await;
    }
}

/// Publishes the jobs bare, each with its own time; the lane numbers them in this order.
async fn publish(client: &Client, due: &Due) -> anyhow::Result<()> {
    let header = |number| Some(("Longshore-Run-At", format!("{:.3}", due.of(number))));
    jobs::publish_each(client, &jobs::subjects(false), header, &jobs::body(""), due.jobs).await
}

/// What the event log says of the first start of each job.
struct Starts {
    early: u64,
    /// By how many milliseconds.
    late: Vec<i64>,
    last: Timestamp,
}

/// Reads every start; each job must have completed, and once.
async fn starts(world: &World, due: &Due) -> anyhow::Result<Starts> {
    let jobs = usize::try_from(due.jobs)?;
    let (mut first, mut completed) = (vec![None; jobs], vec![0_u8; jobs]);
    let mut strange = None;
    let mut seen = std::collections::HashSet::new();
    event_log::read(world, |event| {
        let job = event.run_id.rsplit_once('-').and_then(|(_, number)| number.parse::<usize>().ok());
        let (Some(job), Ok(at)) = (job.filter(|job| (1..=jobs).contains(job)), event.at.parse::<Timestamp>()) else {
            strange = Some(event.run_id.to_owned());
            return;
        };
        match event.event {
            "started" => {
                let first: &mut Option<Timestamp> = &mut first[job - 1];
                *first = Some(first.map_or(at, |known| known.min(at)));
            }
            // The same event may be in the log twice after a fault.
            "completed" if seen.insert(event.id.to_owned()) => completed[job - 1] += 1,
            _ => {}
        }
    })
    .await?;
    if let Some(run) = strange {
        bail!("{run} is no job of this measurement");
    }
    let wrong = completed.iter().filter(|times| **times != 1).count();
    ensure!(wrong == 0, "{wrong} jobs did not complete exactly once");
    let mut starts = Starts { early: 0, late: Vec::with_capacity(jobs), last: due.first };
    for (number, start) in (1..).zip(&first) {
        let start = start.with_context(|| format!("job {number} has no start"))?;
        let late = start.duration_since(due.of(number)).as_millis();
        starts.early += u64::from(late < 0);
        starts.late.push(i64::try_from(late)?);
        starts.last = starts.last.max(start);
    }
    Ok(starts)
}
