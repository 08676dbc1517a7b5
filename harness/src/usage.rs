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

    /// Processor time of a process and of all that it has started, also of those that ended and were waited for.
    pub fn cpu_of_tree(root: u32) -> Duration {
        let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        let processes: Vec<(u32, u64, u64)> = processes
            .filter_map(|entry| {
                let pid = entry.file_name().to_str()?.parse().ok()?;
                let stat = std::fs::read_to_string(entry.path().join("stat")).ok()?;
                // Of proc(5): the parent, and the times of its own and of children that it has waited for.
                Some((pid, field(&stat, 4), (14..=17).map(|number| field(&stat, number)).sum()))
            })
            .collect();
        let (mut tree, mut ticks) = (vec![root], 0);
        while let Some(one) = tree.pop() {
            ticks += processes.iter().filter(|(pid, ..)| *pid == one).map(|(.., ticks)| ticks).sum::<u64>();
            tree.extend(processes.iter().filter(|(_, parent, _)| *parent == u64::from(one)).map(|(pid, ..)| pid));
        }
        time(ticks, rustix::param::clock_ticks_per_second())
    }

    fn parse(stat: &str, status: &str, ticks_per_second: u64) -> Usage {
        let kibibytes = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            line.and_then(|rest| rest.trim().split(' ').next()?.parse::<u64>().ok()).unwrap_or(0)
        };
        Usage {
            cpu: time(field(stat, 14) + field(stat, 15), ticks_per_second),
            resident: kibibytes("VmRSS") * 1_024,
            peak: kibibytes("VmHWM") * 1_024,
        }
    }
}

/// A number of `/proc/<pid>/stat` by its place in proc(5). The program's name, in brackets, may contain anything; so
/// fields are counted after it, from 3.
fn field(stat: &str, number: usize) -> u64 {
    let mut fields = stat.rsplit(')').next().unwrap_or("").split_whitespace();
    fields.nth(number - 3).and_then(|field| field.parse().ok()).unwrap_or(0)
}

fn time(ticks: u64, per_second: u64) -> Duration {
    Duration::from_millis(ticks * 1_000 / per_second)
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
    fn a_tree_has_at_least_the_time_of_its_root() {
        let own = Usage::of(std::process::id()).cpu;
        assert!(Usage::cpu_of_tree(std::process::id()) >= own);
    }

    #[test]
    fn a_live_process_has_memory() {
        let usage = Usage::of(std::process::id());
        assert!(usage.resident > 0 && usage.peak >= usage.resident / 2);
    }
}
