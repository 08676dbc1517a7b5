//! Reads how short the machine is of processor and memory, from the files of Linux: pressure stall information, the
//! node's control group (version 2) and those above it, and `meminfo`. What a system does not have is not known.

use std::path::{Path, PathBuf};

use longshore_domain::pressure::Reading;

/// Where the files are.
#[derive(Debug, Clone)]
pub(super) struct MachineLoad {
    proc: PathBuf,
    /// The node's own control group, then those above it.
    groups: Vec<PathBuf>,
}

impl MachineLoad {
    /// The machine whose `proc` and `sys` are in the folder `root`.
    pub(super) fn at(root: &Path) -> Self {
        let (proc, mounted) = (root.join("proc"), root.join("sys/fs/cgroup"));
        let groups = read(&proc.join("self/cgroup")).unwrap_or_default();
        // Version 2 has one hierarchy, without a number.
        let own = groups.lines().find_map(|line| line.strip_prefix("0::/")).unwrap_or_default();
        let own = mounted.join(own);
        let groups = own.ancestors().take_while(|group| group.starts_with(&mounted)).map(Path::to_owned).collect();
        Self { proc, groups }
    }

    pub(super) fn read(&self) -> Reading {
        let in_use = self.groups.iter().filter_map(|group| share_of_limit(group)).reduce(f64::max);
        Reading {
            cpu: self.waits("cpu"),
            memory: in_use.or_else(|| share_in_use(&read(&self.proc.join("meminfo"))?)),
            memory_stall: self.waits("memory"),
        }
    }

    /// The share of time in which some task of the node's group waits for `resource`; else of the whole machine.
    fn waits(&self, resource: &str) -> Option<f64> {
        let of_groups = self.groups.iter().map(|group| group.join(format!("{resource}.pressure")));
        let of_machine = self.proc.join("pressure").join(resource);
        of_groups.chain([of_machine]).find_map(|file| some_avg10(&read(&file)?))
    }
}

fn read(file: &Path) -> Option<String> {
    std::fs::read_to_string(file).ok()
}

/// The share of the last ten seconds in which at least one task waited.
fn some_avg10(pressure: &str) -> Option<f64> {
    let some = pressure.lines().find_map(|line| line.strip_prefix("some "))?;
    let avg10 = some.split(' ').find_map(|field| field.strip_prefix("avg10="))?;
    Some(avg10.parse::<f64>().ok()? / 100.0)
}

/// The share of a group's memory limit that is in use, without what the system takes back first: cached files that
/// no process has read lately. `None`: it has no limit.
fn share_of_limit(group: &Path) -> Option<f64> {
    let number = |file: &str| read(&group.join(file))?.trim().parse::<u64>().ok();
    // `max` instead of a number means that there is no limit. From `high` on the system slows the group down.
    let limit = number("memory.max").into_iter().chain(number("memory.high")).min()?;
    let cached = read(&group.join("memory.stat")).and_then(|stat| field(&stat, "inactive_file "));
    let used = number("memory.current")?.saturating_sub(cached.unwrap_or(0));
    Some(used as f64 / limit.max(1) as f64)
}

/// The share of the machine's memory that is in use.
fn share_in_use(meminfo: &str) -> Option<f64> {
    let (total, available) = (field(meminfo, "MemTotal:")?, field(meminfo, "MemAvailable:")?);
    Some(total.saturating_sub(available) as f64 / total.max(1) as f64)
}

fn field(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name))?.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder with these files.
    fn machine(files: &[(&str, &str)]) -> (tempfile::TempDir, MachineLoad) {
        let root = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let file = root.path().join(name);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, text).unwrap();
        }
        let load = MachineLoad::at(root.path());
        (root, load)
    }

    const PSI: &str =
        "some avg10=12.50 avg60=3.00 avg300=1.00 total=77\nfull avg10=99.00 avg60=0.00 avg300=0.00 total=0\n";

    #[test]
    fn without_a_group_it_is_the_machine_and_without_files_nothing() {
        let meminfo = "MemTotal:       1000 kB\nMemFree:  10 kB\nMemAvailable:    250 kB\n";
        let (_root, load) =
            machine(&[("proc/pressure/cpu", PSI), ("proc/pressure/memory", "broken"), ("proc/meminfo", meminfo)]);
        assert_eq!(load.read(), Reading { cpu: Some(0.125), memory: Some(0.75), memory_stall: None });
        assert_eq!(machine(&[]).1.read(), Reading::default());
    }

    #[test]
    fn the_group_that_is_nearest_to_its_limit_counts_and_cached_files_do_not() {
        let own = "sys/fs/cgroup/jobs/longshore";
        let files = |of: &str, name: &str| format!("{of}/{name}");
        let (_root, load) = machine(&[
            ("proc/self/cgroup", "4:memory:/elsewhere\n0::/jobs/longshore\n"),
            ("proc/pressure/cpu", "some avg10=80.00 total=1"),
            (&files(own, "cpu.pressure"), PSI),
            (&files(own, "memory.max"), "max\n"),
            (&files(own, "memory.high"), "1000\n"),
            (&files(own, "memory.current"), "700\n"),
            (&files(own, "memory.stat"), "anon 500\ninactive_file 200\n"),
            ("sys/fs/cgroup/jobs/memory.max", "2000\n"),
            ("sys/fs/cgroup/jobs/memory.current", "1500\n"),
        ]);
        assert_eq!(load.read(), Reading { cpu: Some(0.125), memory: Some(0.75), memory_stall: None });
        std::fs::write(load.groups[0].join("memory.stat"), "anon 700\ninactive_file 0\n").unwrap();
        std::fs::write(load.groups[1].join("memory.max"), "max").unwrap();
        assert_eq!(load.read().memory, Some(0.7));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn this_machine_can_be_read() {
        let memory = MachineLoad::at(Path::new("/")).read().memory;
        assert!(memory.is_some_and(|share| share > 0.0 && share <= 1.5), "{memory:?}");
    }
}
