//! The jobs that a chaos run publishes, and how each of them must end.

use rand::RngExt;
use rand::rngs::StdRng;
use serde_json::{Value, json};

use crate::load::Kind;
use crate::publish::Receipt;

/// A sort of job: one of the load's kinds, or a sort that tests something other than its own end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Sort {
    /// A job as in any load.
    Load(Kind),
    /// Submitted twice under one idempotency key, or published bare and submitted: only one of them runs, once.
    Keyed,
    /// Submitted under a client's own id and published bare under the same id: one call.
    OwnId,
    /// Cancelled soon after; once the cancel was answered, its handler is not called any more.
    Cancelled,
    /// Its handler publishes a follow-up, and passes on only the headers that it may.
    Follows,
    /// Its handler publishes a follow-up with all headers it got: the follow-up is invalid, the parent unharmed.
    Forwards,
    /// A follow-up whose parent passed on only the headers that it may.
    Child,
    /// Headers or a payload that are not a valid job's.
    Hostile,
    /// Bytes that no client library would send.
    Raw,
}

/// The sorts with their weights. If raw bytes are wanted, [`Sort::Raw`] replaces some hostile ones.
const MIX: [(Sort, u32); 19] = [
    (Sort::Load(Kind::Quick), 240),
    (Sort::Load(Kind::Slow), 60),
    (Sort::Load(Kind::Once), 90),
    (Sort::Load(Kind::Later), 60),
    (Sort::Load(Kind::Always), 40),
    (Sort::Load(Kind::Never), 40),
    (Sort::Load(Kind::Hang), 30),
    (Sort::Load(Kind::Panic), 40),
    (Sort::Load(Kind::Delayed), 70),
    (Sort::Load(Kind::Snooze), 50),
    (Sort::Load(Kind::Remote), 140),
    (Sort::Load(Kind::Invalid), 10),
    (Sort::Load(Kind::Killer), 1),
    (Sort::Keyed, 40),
    (Sort::OwnId, 40),
    (Sort::Cancelled, 50),
    (Sort::Follows, 40),
    (Sort::Forwards, 15),
    (Sort::Hostile, 15),
];

/// The settings that nodes need for the sorts that are not the load's own.
pub(super) const SETTINGS: &str = "
[types.\"chaos.keyed\"]
timeout = '5s'
[types.\"chaos.own\"]
timeout = '5s'
[types.\"chaos.cancelled\"]
timeout = '5s'
[types.\"chaos.follows\"]
timeout = '10s'
[types.\"chaos.forwards\"]
timeout = '10s'
[types.\"chaos.child\"]
timeout = '5s'
";

impl Sort {
    /// The type of its jobs.
    pub(super) fn job_type(self) -> &'static str {
        match self {
            Sort::Load(kind) => kind.job_type(),
            Sort::Keyed => "chaos.keyed",
            Sort::OwnId => "chaos.own",
            Sort::Cancelled => "chaos.cancelled",
            Sort::Follows => "chaos.follows",
            Sort::Forwards => "chaos.forwards",
            Sort::Child => "chaos.child",
            Sort::Hostile | Sort::Raw => "chaos.hostile",
        }
    }

    /// How its jobs may end.
    pub(super) fn ends(self) -> &'static [&'static str] {
        match self {
            Sort::Load(kind) if kind.end() == "dead" => &["dead"],
            Sort::Hostile | Sort::Raw => &["dead"],
            Sort::Keyed => &["completed", "duplicate"],
            Sort::Cancelled => &["completed", "cancelled"],
            _ => &["completed"],
        }
    }

    /// For people: `Quick`, `Keyed`.
    pub(super) fn name(self) -> String {
        match self {
            Sort::Load(kind) => format!("{kind:?}"),
            other => format!("{other:?}"),
        }
    }

    pub(super) fn draw(chance: &mut StdRng, raw_bytes: bool) -> Sort {
        let mut at = chance.random_range(0..MIX.iter().map(|(_, share)| share).sum());
        let found = MIX.iter().find_map(|(sort, share)| {
            let is_it = at < *share;
            at = at.saturating_sub(*share);
            is_it.then_some(*sort)
        });
        match found.unwrap_or(Sort::Load(Kind::Quick)) {
            Sort::Hostile if raw_bytes && chance.random_bool(0.5) => Sort::Raw,
            sort => sort,
        }
    }
}

/// A job that was accepted.
#[derive(Debug, Clone)]
pub(super) struct Job {
    pub sort: Sort,
    pub receipt: Receipt,
    /// How it may end.
    pub ends: &'static [&'static str],
    /// Jobs with the same number were sent under one key: one of them completes.
    pub number: usize,
}

impl Job {
    pub(super) fn new(sort: Sort, number: usize, receipt: Receipt) -> Job {
        Job { sort, receipt, ends: sort.ends(), number }
    }
}

/// Parts of a message that are not a valid job: a header with its value, or no header and a payload.
pub(super) fn hostile(which: usize) -> (Option<(&'static str, &'static str)>, Value) {
    const HEADERS: [(&str, &str); 6] = [
        ("Longshore-Run-Id", "a b"),
        ("Longshore-Idempotency-Key", ""),
        ("Longshore-Delay", "-3s"),
        ("Longshore-Deadline", "soon"),
        ("Longshore-Tags", "1,2,3,4,5,6,7,8,9"),
        ("longshore-max-attempts", "99999999999999999999"),
    ];
    match HEADERS.get(which % (HEADERS.len() + 1)) {
        Some(header) => (Some(*header), json!({})),
        // This payload looks like a server's acknowledgement, which a forged reply subject turns into a job.
        None => (None, json!({"stream": "LONGSHORE_JOBS_main_P5", "seq": 1})),
    }
}
