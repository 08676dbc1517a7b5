//! The machine under the measurement: how busy other load keeps it, and what processes have used. Linux only, by
//! `/proc`.

use std::time::{Duration, Instant};

use longshore_harness::{Usage, World};

/// How busy the machine is at a moment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Weather {
    /// Load average of the last minute.
    pub load: f64,
    /// Ticks taken by other guests of the host, and all ticks, since the machine's start.
    steal: u64,
    ticks: u64,
}

impl Weather {
    pub(crate) fn now() -> Weather {
        let text = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let load = text("/proc/loadavg").split(' ').next().and_then(|load| load.parse().ok()).unwrap_or(f64::NAN);
        // proc(5): user nice system idle iowait irq softirq steal; guest time is counted in user already.
        let stat = text("/proc/stat");
        let ticks = stat.lines().next().unwrap_or("").split_whitespace().skip(1).take(8);
        let ticks: Vec<u64> = ticks.filter_map(|field| field.parse().ok()).collect();
        Weather { load, steal: ticks.get(7).copied().unwrap_or(0), ticks: ticks.iter().sum() }
    }

    /// Load average before, and the share of time stolen from the machine since then.
    pub(crate) fn until_now(self) -> String {
        let now = Weather::now();
        let share = (now.steal - self.steal) as f64 / (now.ticks - self.ticks).max(1) as f64;
        format!("{:.1} / {:.0} %", self.load, share * 100.0)
    }
}

/// The class of the machine, in one line.
pub(crate) fn class() -> String {
    let text = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let field = |text: &str, name: &str| {
        let line = text.lines().find(|line| line.starts_with(name));
        line.and_then(|line| line.split(':').nth(1)).map_or_else(|| "unknown".to_owned(), |rest| rest.trim().to_owned())
    };
    let processors = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
    let memory: u64 =
        field(&text("/proc/meminfo"), "MemTotal").split(' ').next().map_or(0, |kib| kib.parse().unwrap_or(0));
    let model = field(&text("/proc/cpuinfo"), "model name");
    format!(
        "{processors} processors ({model}), {:.0} GiB; load {:.1}",
        memory as f64 / f64::from(1 << 20),
        Weather::now().load
    )
}

/// The processor time of one process, counted from a moment on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Meter {
    pid: u32,
    before: Duration,
}

impl Meter {
    /// Counts from now on.
    pub(crate) fn of(pid: u32) -> Meter {
        Meter { pid, before: Usage::of(pid).cpu }
    }

    /// Counts from the process's start on.
    pub(crate) fn whole(pid: u32) -> Meter {
        Meter { pid, before: Duration::ZERO }
    }

    /// Measures this process, from now on.
    pub(crate) fn own() -> Meter {
        Meter::of(std::process::id())
    }

    /// Measures the world's server, from now on.
    pub(crate) fn server(world: &World) -> anyhow::Result<Meter> {
        Ok(Meter::of(server_pid(world)?))
    }

    /// The processor time used so far.
    pub(crate) fn used(self) -> Duration {
        Usage::of(self.pid).cpu.saturating_sub(self.before)
    }
}

/// The process id of the world's server.
pub(crate) fn server_pid(world: &World) -> anyhow::Result<u32> {
    world
        .server()
        .pid()
        .ok_or_else(|| anyhow::anyhow!("the server is down; its log:\n{}", world.server().log().tail(20)))
}

/// The amount of work, its duration, and its cost in two processes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cost {
    pub jobs: u64,
    pub took: Duration,
    pub client: Duration,
    pub server: Duration,
}

impl Cost {
    /// Jobs per second.
    pub(crate) fn rate(&self) -> f64 {
        self.jobs as f64 / self.took.as_secs_f64()
    }

    /// Processor time of both per job, in microseconds.
    pub(crate) fn micros(&self) -> f64 {
        self.per_job(self.client) + self.per_job(self.server)
    }

    /// Per job, in microseconds.
    pub(crate) fn per_job(&self, time: Duration) -> f64 {
        time.as_secs_f64() * 1e6 / self.jobs as f64
    }

    /// Both parts, and their sum.
    pub(crate) fn text(&self) -> String {
        format!("{:.1} + {:.1} = {:.1}", self.per_job(self.client), self.per_job(self.server), self.micros())
    }
}

/// Runs `work` and returns what this process and the server used meanwhile.
pub(crate) async fn cost<F>(world: &World, jobs: u64, work: F) -> anyhow::Result<Cost>
where
    F: Future<Output = anyhow::Result<()>>,
{
    let (client, server, start) = (Meter::own(), Meter::server(world)?, Instant::now());
    work.await?;
    Ok(Cost { jobs, took: start.elapsed(), client: client.used(), server: server.used() })
}
