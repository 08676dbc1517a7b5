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
    /// Submitted under one idempotency key again and again, while it waits, runs and after its end: one run, which
    /// every answer names.
    Repeated,
    /// One of few concurrency keys, each of which may have `PER_KEY` at work.
    PerKey,
    /// Of a type with at most `CAPPED` attempts at work.
    Capped,
    /// Of a type that is ordered, under one of few keys: each starts once those before it in its lane have ended,
    /// whether they succeed, fail first or fail for good.
    Ordered,
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
    /// Of a recurring schedule.
    Recurring,
    /// Headers or a payload that are not a valid job's.
    Hostile,
    /// Bytes that no client library would send.
    Raw,
}

/// The sorts with their weights. If raw bytes are wanted, [`Sort::Raw`] replaces some hostile ones.
const MIX: [(Sort, u32); 24] = [
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
    (Sort::Load(Kind::Late), 50),
    (Sort::Load(Kind::Remote), 140),
    (Sort::Load(Kind::Invalid), 10),
    (Sort::Load(Kind::Killer), 1),
    (Sort::Keyed, 40),
    (Sort::Repeated, 30),
    (Sort::PerKey, 40),
    (Sort::Capped, 30),
    (Sort::Ordered, 60),
    (Sort::OwnId, 40),
    (Sort::Cancelled, 50),
    (Sort::Follows, 40),
    (Sort::Forwards, 15),
    (Sort::Hostile, 15),
];

/// The queue of the sorts whose queue is paused now and then: the others show how long faults alone keep work back.
pub(super) const SIDE: &str = "side";

/// How many of one concurrency key may be at work.
pub(super) const PER_KEY: usize = 2;

/// How many jobs of the type [`Sort::Capped`] may be at work.
pub(super) const CAPPED: usize = 3;

/// The concurrency keys.
const KEYS: usize = 3;

/// The settings that nodes need for the sorts that are not the load's own.
pub(super) const SETTINGS: &str = "
[types.\"chaos.keyed\"]
timeout = '5s'
[types.\"chaos.repeated\"]
timeout = '5s'
[types.\"chaos.per_key\"]
timeout = '1s'
key_concurrency = 2
concurrency_hold = 'timeout'
[types.\"chaos.capped\"]
timeout = '1s'
concurrency = 3
[types.\"chaos.ordered\"]
timeout = '1s'
ordered = true
[queues.side]
concurrency = 8
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
[types.\"chaos.recurring\"]
timeout = '5s'
";

impl Sort {
    /// The type of its jobs.
    pub(super) fn job_type(self) -> &'static str {
        match self {
            Sort::Load(kind) => kind.job_type(),
            Sort::Keyed => "chaos.keyed",
            Sort::Repeated => "chaos.repeated",
            Sort::PerKey => "chaos.per_key",
            Sort::Capped => "chaos.capped",
            Sort::Ordered => "chaos.ordered",
            Sort::OwnId => "chaos.own",
            Sort::Cancelled => "chaos.cancelled",
            Sort::Follows => "chaos.follows",
            Sort::Forwards => "chaos.forwards",
            Sort::Child => "chaos.child",
            Sort::Recurring => "chaos.recurring",
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

    /// The limit that one of its jobs is under: its name, and how many may be at work.
    pub(super) fn limit(self, number: usize) -> Option<(String, usize)> {
        match self {
            Sort::PerKey => Some((format!("key {}", key(number)), PER_KEY)),
            Sort::Capped => Some((format!("type {}", self.job_type()), CAPPED)),
            Sort::Ordered => Some((order(number), 1)),
            _ => None,
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

/// The concurrency key of a job.
pub(super) fn key(number: usize) -> String {
    format!("k{}", number % KEYS)
}

/// The order in which a job of [`Sort::Ordered`] has its place.
pub(super) fn order(number: usize) -> String {
    format!("order {}", key(number))
}

/// How a job of [`Sort::Ordered`] goes: of the other ones most succeed at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Goes {
    Well,
    /// Its first attempts fail, and it is tried again at once.
    Again,
    /// The same, and it waits for its retry among the schedules.
    Later,
    /// It fails for good.
    Dies,
}

impl Goes {
    pub(super) fn of(number: usize) -> Goes {
        match number / KEYS % 8 {
            1 => Goes::Again,
            3 => Goes::Later,
            6 => Goes::Dies,
            _ => Goes::Well,
        }
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
