//! How short of processor and memory this node's machine is. `pressure_watch` sets it; schedulers pull by it, `health`
//! shows it.

use std::sync::atomic::{AtomicBool, Ordering};

use longshore_domain::pressure::{HeldBack, Reading};

use crate::runtime::health::Last;

/// What the last look at the machine found.
#[derive(Debug, Default)]
pub(crate) struct MachinePressure {
    last: Last<(HeldBack, Reading)>,
    /// Whether fewer workers get jobs: asked for each job.
    spares_memory: AtomicBool,
}

impl MachinePressure {
    /// Sets what was found; returns how far the node held back before.
    pub(crate) fn set(&self, held_back: HeldBack, reading: Reading) -> HeldBack {
        self.spares_memory.store(held_back.memory > 0, Ordering::Relaxed);
        self.last.set((held_back, reading)).0
    }

    pub(crate) fn held_back(&self) -> HeldBack {
        self.last.get().0
    }

    /// How many of so many workers may have jobs.
    pub(crate) fn may_work(&self, workers: usize) -> usize {
        if self.spares_memory.load(Ordering::Relaxed) { self.held_back().may_work(workers) } else { workers }
    }

    /// A warning, if the node is short of memory. A busy processor is none: it is what jobs are for.
    pub(crate) fn warning(&self) -> Option<String> {
        let (held_back, reading) = self.last.get();
        (held_back.memory > 0).then(|| {
            let workers = 1_u32 << held_back.memory;
            format!("short of memory ({}): gives jobs to one in {workers} of its workers", shares(reading))
        })
    }
}

/// What was measured, in words.
pub(crate) fn shares(reading: Reading) -> String {
    let named = [
        (reading.memory, "of its memory is in use"),
        (reading.memory_stall, "of the time tasks wait for memory"),
        (reading.cpu, "of the time tasks wait for a processor"),
    ];
    let words = named.iter().filter_map(|(share, what)| Some(format!("{:.0} % {what}", (*share)? * 100.0)));
    words.collect::<Vec<_>>().join(", ")
}
