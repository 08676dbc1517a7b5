//! The settings of concurrency limits: how many jobs of a type or a key run at once, and what becomes of the others;
//! how many a remote handler gets at once.

use longshore_domain::concurrency::{Hold, OnBusy};
use longshore_domain::policy::TypePolicy;

use super::problem::Problem;
use super::schema::Entry;
use super::section::Section;

/// Beyond waiting, every run of a key that was let in is looked at for every job that comes, so there is a bound on
/// them.
const MAX_IN_LINE: u32 = 100;

pub(crate) static TYPE_CONCURRENCY: Entry<Option<u32>> = Entry::new(
    "concurrency",
    || TypePolicy::default().concurrency,
    "How many jobs of a type run at once in the whole cluster; if it is not set, any number.",
)
.example("10")
.at_least(|| Some(1))
.at_most(|| Some(10_000));

pub(crate) static KEY_CONCURRENCY: Entry<u32> = Entry::new(
    "key_concurrency",
    || TypePolicy::default().key_concurrency,
    "How many jobs of a type, tenant and Longshore-Concurrency-Key run at once in the whole cluster.",
)
.at_least(|| 1)
.at_most(|| 10_000);

pub(crate) static ON_BUSY: Entry<OnBusy> = Entry::new(
    "on_busy",
    || TypePolicy::default().on_busy,
    "What becomes of a job whose concurrency key is busy. \"wait\": it waits for a free slot. \"drop_new\": it ends as \
     cancelled. \"keep_newest\": it waits, and the one that waited before ends as cancelled. \"cancel_running\": the oldest \
     run of its key is cancelled, and it starts in its place.",
);

pub(crate) static CONCURRENCY_HOLD: Entry<Hold> = Entry::new(
    "concurrency_hold",
    || TypePolicy::default().concurrency_hold,
    "For how long the slots of attempts at remote handlers are kept if their node dies. \"lease\": for its lease, like the \
     runs themselves, which start again then, beside handlers that still work. \"timeout\": for their time limit as well, \
     at most 12 hours, in which nothing else starts in their place.",
);

pub(crate) static ORDERED: Entry<bool> = Entry::new(
    "ordered",
    || TypePolicy::default().ordered,
    "Whether jobs of one Longshore-Concurrency-Key run in the order in which they were enqueued in their lane, each only once \
     the one before it has ended, through all its retries. One at a time: key_concurrency is 1, and on_busy \"wait\".",
);

pub(crate) static SLOTS: Entry<u32> = Entry::new(
    "slots",
    || TypePolicy::default().slots,
    "How many jobs of a type a node gives remote handlers at once, if these announce no number themselves.",
)
.at_least(|| 1)
.at_most(|| 10_000);

pub(crate) static ANNOUNCEMENTS: Entry<bool> = Entry::new(
    "announcements",
    || TypePolicy::default().announcements,
    "Whether it counts what remote handlers announce of themselves (longshore.slots, longshore.heartbeat). Clients that may answer \
     $SRV.INFO can announce it for the handlers of all tenants.",
);

/// Checks what is to become of jobs whose key is busy; says what is wrong.
pub(crate) fn check(section: &Section<'_>, problems: &mut Vec<Problem>) {
    let (on_busy, most) = (section.get(&ON_BUSY), section.get(&KEY_CONCURRENCY));
    if on_busy != OnBusy::Wait && most > MAX_IN_LINE {
        let reason =
            format!("{most} is too many beside on_busy, for which each of them is looked at; 1 to {MAX_IN_LINE}");
        problems.push(section.problem(KEY_CONCURRENCY.name, reason));
    }
    if section.get(&ORDERED) {
        if most != 1 {
            let reason = format!("{most} at once have no order; 1, or take ordered away");
            problems.push(section.problem(KEY_CONCURRENCY.name, reason));
        }
        if on_busy != OnBusy::Wait {
            let reason = "drops or cancels jobs, which then have no order; \"wait\", or take ordered away".to_owned();
            problems.push(section.problem(ON_BUSY.name, reason));
        }
    }
}
