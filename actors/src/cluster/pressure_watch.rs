//! Watches how short the machine is of processor and memory, and has the schedulers pull less while it is.

use std::sync::Arc;
use std::time::Duration;

use longshore_domain::pressure::{HeldBack, Pressure, Reading};
use serde_json::json;

use crate::cluster::machine_load::MachineLoad;
use crate::metrics::Metrics;
use crate::runtime::pressure::{MachinePressure, shares};
use crate::runtime::supervision::{LoopEnd, ticks};
use crate::runtime::system_events::SystemEvents;
use crate::settings::PressureSettings;

/// How often it looks. The system computes its averages every two seconds.
const CHECK_EVERY: Duration = Duration::from_secs(1);

#[derive(Clone)]
pub(crate) struct PressureWatchPart {
    pub(crate) settings: PressureSettings,
    pub(crate) pressure: Arc<MachinePressure>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) system_events: SystemEvents,
}

pub(crate) async fn run(part: PressureWatchPart) -> LoopEnd {
    let load = MachineLoad::at(&part.settings.root);
    let mut pressure = Pressure::default();
    let mut tick = ticks(CHECK_EVERY);
    loop {
        tick.tick().await;
        let load = load.clone();
        // The statistics of a large group take the system some time.
        let reading = tokio::task::spawn_blocking(move || load.read()).await.unwrap_or_default();
        let held_back = pressure.look(reading, part.settings.limits);
        let before = part.pressure.set(held_back, reading);
        show(&part.metrics, held_back, reading);
        if before != held_back {
            publish(&part.system_events, before, held_back, reading).await;
        }
    }
}

fn show(metrics: &Metrics, held_back: HeldBack, reading: Reading) {
    let measured = [("cpu", reading.cpu), ("memory", reading.memory), ("memory_stall", reading.memory_stall)];
    for (resource, share) in measured {
        if let Some(share) = share {
            metrics.pressure.with_label_values(&[resource]).set(share);
        }
    }
    for (resource, steps) in [("cpu", held_back.cpu), ("memory", held_back.memory)] {
        metrics.held_back.with_label_values(&[resource]).set(steps.into());
    }
}

/// Says in the log how far the node holds back now, and by a system event when it begins and when it is over.
async fn publish(events: &SystemEvents, before: HeldBack, now: HeldBack, reading: Reading) {
    let shares = shares(reading);
    let details = json!({
        "cpu": reading.cpu, "memory": reading.memory, "memory_stall": reading.memory_stall,
    });
    if now.memory != before.memory && now.memory > 0 {
        let workers = 1_u32 << now.memory;
        match now.memory > before.memory {
            true => tracing::warn!(
                "the machine is short of memory: {shares}; this node gives jobs to one in {workers} workers"
            ),
            false => tracing::info!(
                "the machine has memory again: {shares}; this node gives jobs to one in {workers} workers for now"
            ),
        }
    }
    if now.cpu != before.cpu && now.cpu > 0 {
        tracing::info!("the machine is short of processor: {shares}; this node pulls fewer jobs ahead");
    }
    let none = HeldBack::default();
    if before == none {
        events.publish("node_under_pressure", details).await;
    } else if now == none {
        tracing::info!("the machine is no longer short of processor or memory: {shares}");
        events.publish("node_relieved", details).await;
    }
}
