//! The resources a process has used: read from `/proc`, so Linux only.

use std::time::Duration;

/// Processor time and memory of one process.
#[derive(Debug, Clone, Copy)]
pub struct Usage {
    /// Processor time since its start, in user and system mode, of all its threads.
    pub cpu: Duration,
    /// Resident memory now, in bytes.
    pub resident: u64,
    /// The maximum of its resident memory so far, in bytes.
    pub peak: u64,
}

impl Usage {
    /// Of the process with this id.
    ///
    /// # Panics
    /// If there is no such process, or the system has no `/proc`.
    pub fn of(pid: u32) -> Usage {
        let read = |file: &str| {
            let path = format!("/proc/{pid}/{file}");
            std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("cannot read {path}: {error}"))
        };
        Usage::parse(&read("stat"), &read("status"), rustix::param::clock_ticks_per_second())
    }

    fn parse(stat: &str, status: &str, ticks_per_second: u64) -> Usage {
        // The program's name, in brackets, may contain anything; so fields are counted after it (proc(5): 14 and 15).
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or("").split_whitespace().collect();
        let ticks: u64 = fields.iter().skip(11).take(2).filter_map(|field| field.parse::<u64>().ok()).sum();
        let kibibytes = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            line.and_then(|rest| rest.trim().split(' ').next()?.parse::<u64>().ok()).unwrap_or(0)
        };
        Usage {
            cpu: Duration::from_millis(ticks * 1_000 / ticks_per_second),
            resident: kibibytes("VmRSS") * 1_024,
            peak: kibibytes("VmHWM") * 1_024,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_the_system_shows() {
        let stat = "42 (a b) c) S 1 42 42 0 -1 4194560 2650 0 3 0 150 50 0 0 20 0 9 0 4242 1 1";
        let usage = Usage::parse(stat, "Name:\ta\nVmHWM:\t   2048 kB\nVmRSS:\t    1024 kB\n", 100);
        assert_eq!((usage.cpu, usage.resident, usage.peak), (Duration::from_secs(2), 1 << 20, 2 << 20));
    }

    #[test]
    fn a_live_process_has_memory() {
        let usage = Usage::of(std::process::id());
        assert!(usage.resident > 0 && usage.peak >= usage.resident / 2);
    }
}
