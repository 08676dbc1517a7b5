//! Fail points: points between two steps of the protocol at which a test can stop or kill this process.
//!
//! `LONGSHORE_FAIL_POINTS=after-record=kill@3,before-ack=stop` kills the process the third time it passes
//! `after-record` and stops it (SIGSTOP) the first time it passes `before-ack`; `panic` has the task panic, and with
//! `hang` the task that passes goes no further, while the others do. If the variable is not set, passing a point costs
//! one load.

use std::collections::HashMap;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// How long a stop may take to reach every thread of the process.
const STOPS_WITHIN: Duration = Duration::from_millis(100);

/// All points, in the order in which a job passes them.
pub const ALL: [&str; 54] = [
    "before-note",
    "after-note",
    "after-publish",
    "before-make-way",
    "after-make-way",
    "after-key-mark",
    "after-mark",
    "after-takeover",
    "before-key",
    "before-line",
    "after-line",
    "before-claim",
    "after-claim",
    "before-handler",
    "after-handler",
    "before-record",
    "after-record",
    "before-events",
    "after-events",
    "before-schedule",
    "after-schedule",
    "before-dead-letter",
    "after-dead-letter",
    "before-release",
    "after-release",
    "before-ack",
    "after-move",
    "before-park",
    "after-park",
    "after-return",
    "after-copy",
    "after-take-out",
    "before-forward",
    "after-forward",
    "after-cancel",
    "after-replay-record",
    "after-replay-publish",
    "before-close",
    "before-stop",
    "before-check",
    "after-tick",
    "after-firing",
    "after-firing-run",
    "after-rescheduling",
    "after-pause",
    "before-webhook-jobs",
    "after-webhook-jobs",
    "before-then",
    "after-then-record",
    "after-then",
    "before-batch-end",
    "after-batch-end",
    "after-batch-completing",
    "after-batch-done",
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FailAction {
    Kill,
    Stop,
    Panic,
    Hang,
}

#[derive(Debug)]
struct Point {
    action: FailAction,
    at: u64,
    passed: AtomicU64,
}

fn points() -> &'static HashMap<String, Point> {
    static POINTS: OnceLock<HashMap<String, Point>> = OnceLock::new();
    POINTS.get_or_init(|| std::env::var("LONGSHORE_FAIL_POINTS").map(|text| parse(&text)).unwrap_or_default())
}

fn parse(text: &str) -> HashMap<String, Point> {
    let read = |part: &str| {
        let (name, rest) = part.trim().split_once('=')?;
        let (action, at) = rest.split_once('@').unwrap_or((rest, "1"));
        let action = match action {
            "kill" => FailAction::Kill,
            "stop" => FailAction::Stop,
            "panic" => FailAction::Panic,
            "hang" => FailAction::Hang,
            _ => return None,
        };
        let known = ALL.contains(&name);
        known.then_some((name.to_owned(), Point { action, at: at.parse().ok()?, passed: AtomicU64::new(0) }))
    };
    let point = |part: &str| {
        let point = read(part);
        if point.is_none() {
            tracing::error!(
                "LONGSHORE_FAIL_POINTS: {part:?} is not a fail point; write name=kill|stop|panic|hang[@nth], {ALL:?}"
            );
        }
        point
    };
    text.split(',').filter(|part| !part.trim().is_empty()).filter_map(point).collect()
}

/// Passes the point `name`.
///
/// # Panics
/// If a test asked for it.
pub fn pass(name: &str) {
    let points = points();
    if points.is_empty() {
        return;
    }
    let Some(point) = points.get(name) else { return };
    if point.passed.fetch_add(1, Ordering::Relaxed) + 1 != point.at {
        return;
    }
    let process = rustix::process::getpid();
    match point.action {
        FailAction::Kill => drop(rustix::process::kill_process(process, rustix::process::Signal::KILL)),
        FailAction::Stop => {
            let _ = rustix::process::kill_process(process, rustix::process::Signal::STOP);
            // Another thread may take the signal, and this one would run on until then.
            std::thread::park_timeout(STOPS_WITHIN);
        }
        FailAction::Panic => panic!("fail point {name}"),
        FailAction::Hang => tokio::task::block_in_place(|| {
            loop {
                std::thread::park();
            }
        }),
    }
}
