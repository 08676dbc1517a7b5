//! What the process uses, by the names that every Prometheus client has for it. Read from `/proc`, so on Linux only.

use std::time::{SystemTime, UNIX_EPOCH};

use prometheus::proto::{MetricFamily, MetricType};

use super::Described;
use super::cluster::{family, sample};

const CPU: (&str, &str) = ("process_cpu_seconds_total", "Processor time used, user and system");
const MEMORY: (&str, &str) = ("process_resident_memory_bytes", "Memory in use");
const FILES: (&str, &str) = ("process_open_fds", "Open file descriptors");
const START: (&str, &str) = ("process_start_time_seconds", "When the process started, in Unix seconds");
const BUILD: (&str, &str) = ("longshore_build_info", "1; the version is a label");

#[derive(Debug)]
pub(super) struct Process {
    started_at: f64,
}

impl Process {
    /// The process starts now, more or less.
    pub(super) fn new() -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { started_at: now.as_secs_f64() }
    }

    pub(super) fn families(&self) -> Vec<MetricFamily> {
        let read = |file: &str| std::fs::read_to_string(format!("/proc/self/{file}")).unwrap_or_default();
        let files = std::fs::read_dir("/proc/self/fd").ok().map(|files| files.count() as f64);
        let one = |of: (&str, &str), labels: &[(&str, &str)], kind, value| {
            family(of.0, of.1, kind, vec![sample(labels, kind, value)])
        };
        let gauges = [(MEMORY, resident(&read("statm"))), (FILES, files), (START, Some(self.started_at))];
        let gauges = gauges.into_iter().filter_map(|(of, value)| Some(one(of, &[], MetricType::GAUGE, value?)));
        let build = one(BUILD, &[("version", crate::runtime::VERSION)], MetricType::GAUGE, 1.0);
        let cpu = processor_time(&read("stat")).map(|value| one(CPU, &[], MetricType::COUNTER, value));
        gauges.chain([build]).chain(cpu).collect()
    }
}

pub(super) fn described() -> Vec<Described> {
    let gauges = [MEMORY, FILES, START].map(|(name, _)| Described::new(name, &[], "gauge"));
    let others = [Described::new(BUILD.0, &["version"], "gauge"), Described::new(CPU.0, &[], "counter")];
    gauges.into_iter().chain(others).collect()
}

/// User and system time, the 14th and 15th field of `stat` (proc(5)); the name before them may hold spaces.
fn processor_time(stat: &str) -> Option<f64> {
    let fields: Vec<&str> = stat.rsplit(')').next()?.split_whitespace().collect();
    let ticks = |at: usize| fields.get(at)?.parse::<f64>().ok();
    Some((ticks(11)? + ticks(12)?) / rustix::param::clock_ticks_per_second() as f64)
}

/// The second field of `statm`, in pages.
fn resident(statm: &str) -> Option<f64> {
    let pages: f64 = statm.split_whitespace().nth(1)?.parse().ok()?;
    Some(pages * rustix::param::page_size() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_of_proc_are_read_also_beside_a_strange_name() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4194560 100 0 0 0 250 50 0 0 20 0 4 0 100 0";
        let time = processor_time(stat).unwrap() * rustix::param::clock_ticks_per_second() as f64;
        assert!((time - 300.0).abs() < 1e-6, "{time}");
        let page = rustix::param::page_size() as f64;
        assert!(resident("100 3 2 1 0 1 0").is_some_and(|bytes| (bytes - 3.0 * page).abs() < 1e-6));
        assert_eq!((processor_time(""), resident("")), (None, None));
    }
}
