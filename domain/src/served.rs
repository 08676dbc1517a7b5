//! The types that handlers were ever online for, as the cluster remembers them, and what may be said of a type that is
//! not among them: most likely it is misspelt, in the job or in the handler's subject.
//!
//! It is never guessed that a type was not served. A memory that began after the first jobs, or that is full, is not
//! complete, and then every type counts as served.

use std::collections::HashSet;
use std::fmt;
use std::time::Duration;

use crate::{JobType, Timestamp, likeness};

/// The most types that are remembered. Beyond them the memory is not complete.
pub const MAX_TYPES: usize = 4_096;

/// For how long after its begin the memory of a cluster that had jobs before it is not complete: a type whose handler
/// was not online once in that time is as good as new.
const LEARNS_FOR: Duration = Duration::from_secs(365 * 86_400);

/// From when on a memory that begins at `now` is complete; `had_jobs`: the cluster has done work before.
pub fn complete_from(had_jobs: bool, now: Timestamp) -> Timestamp {
    if had_jobs { now.plus(LEARNS_FOR) } else { now }
}

/// What the cluster remembers of served types.
#[derive(Debug, Clone, Default)]
pub struct ServedTypes {
    types: HashSet<JobType>,
    /// From when on every type that was served is among these; `None` until that was read.
    pub complete_from: Option<Timestamp>,
}

impl ServedTypes {
    /// A handler was online for this type. Says whether that was not known and is remembered from now on.
    pub fn add(&mut self, job_type: JobType) -> bool {
        self.is_new(&job_type) && self.types.insert(job_type)
    }

    /// Whether a handler of this type would be news: it is not known, and there is room for it.
    pub fn is_new(&self, job_type: &JobType) -> bool {
        self.types.len() < MAX_TYPES && !self.has(job_type)
    }

    /// Whether a handler of the type was online once.
    pub fn has(&self, job_type: &JobType) -> bool {
        self.types.contains(job_type)
    }

    /// Whether it is certain at `now` that no handler of the type was ever online.
    pub fn was_never_served(&self, job_type: &JobType, now: Timestamp) -> bool {
        let is_complete = self.types.len() < MAX_TYPES && self.complete_from.is_some_and(|from| from <= now);
        is_complete && !self.has(job_type)
    }

    /// The served type whose name is most like this one, if one is so like it that it may be meant.
    pub fn nearest(&self, job_type: &JobType) -> Option<&JobType> {
        let alike = likeness::nearest(job_type.as_str(), self.types.iter().map(JobType::as_str))?;
        self.types.iter().find(|of| of.as_str() == alike)
    }
}

/// A type that no handler was ever online for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NeverServed {
    /// The type.
    pub job_type: JobType,
    /// Since when this node has looked for a handler of it.
    pub missing_since: Timestamp,
    /// The served type that may be meant.
    pub nearest: Option<JobType>,
    /// The subjects that a handler may subscribe to.
    pub subjects: [String; 2],
}

/// That no handler was ever online, and which type may be meant: for a sentence that names type and subject anyway.
pub fn none_ever(nearest: Option<&JobType>) -> String {
    let meant = nearest.map_or_else(String::new, |of| format!(", did you mean {of}?"));
    format!("none was ever online{meant}")
}

impl fmt::Display for NeverServed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { job_type, nearest, subjects: [of_tenant, of_all], .. } = self;
        write!(f, "no handler of `{job_type}` was ever online; ")?;
        if let Some(nearest) = nearest {
            write!(f, "did you mean `{nearest}`? ")?;
        }
        write!(f, "its handlers subscribe to {of_tenant}, or for all tenants to {of_all}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(name: &str) -> JobType {
        JobType::parse(name).unwrap()
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_millis(second * 1_000)
    }

    fn served(names: &[&str]) -> ServedTypes {
        let mut served = ServedTypes::default();
        for name in names {
            assert!(served.add(of(name)) && !served.add(of(name)));
        }
        served
    }

    #[test]
    fn a_type_counts_as_never_served_only_if_the_memory_is_complete() {
        let mut served = served(&["report.render"]);
        let never = |served: &ServedTypes, name, now| served.was_never_served(&of(name), now);
        assert!(!never(&served, "report.rendr", at(0)), "nothing was read yet");
        served.complete_from = Some(complete_from(false, at(100)));
        assert!(never(&served, "report.rendr", at(100)) && !never(&served, "report.render", at(100)));
        served.complete_from = Some(complete_from(true, at(100)));
        assert!(!never(&served, "report.rendr", at(100)), "jobs were done before anything was remembered");
        assert!(!never(&served, "report.rendr", at(99).plus(LEARNS_FOR)));
        assert!(never(&served, "report.rendr", at(100).plus(LEARNS_FOR)), "a year later it knows");
    }

    #[test]
    fn a_full_memory_is_not_complete() {
        let mut served = ServedTypes { complete_from: Some(at(0)), ..ServedTypes::default() };
        for number in 0..MAX_TYPES {
            assert!(served.was_never_served(&of("other"), at(0)), "{number}");
            assert!(served.add(of(&format!("t{number}"))));
        }
        assert!(!served.is_new(&of("other")), "so that no job of it takes a lock to add it");
        assert!(!served.add(of("other")) && !served.was_never_served(&of("other"), at(0)));
    }

    #[test]
    fn a_slip_of_the_pen_finds_the_type_that_is_meant() {
        let served = served(&["report.render", "email.send", "echo", "sleep"]);
        let nearest = |name| served.nearest(&of(name)).map(JobType::as_str);
        for slip in
            ["report.rendr", "reprot.render", "Report.Render", "report_render", "report-render", "report.renders"]
        {
            assert_eq!(nearest(slip), Some("report.render"), "{slip}");
        }
        assert_eq!([nearest("email.sned"), nearest("ech"), nearest("slep")], ["email.send", "echo", "sleep"].map(Some));
        for other in ["email.bulk", "report.delete", "invoice", "r"] {
            assert_eq!(nearest(other), None, "{other}");
        }
    }

    #[test]
    fn it_says_what_may_be_meant_and_where_handlers_listen() {
        let subjects = ["l.work.acme.report.rendr".to_owned(), "l.work.*.report.rendr".to_owned()];
        let nearest = Some(of("report.render"));
        let mut never = NeverServed { job_type: of("report.rendr"), missing_since: at(0), nearest, subjects };
        let listen = "its handlers subscribe to l.work.acme.report.rendr, or for all tenants to l.work.*.report.rendr";
        let begins = "no handler of `report.rendr` was ever online; ";
        assert_eq!(never.to_string(), format!("{begins}did you mean `report.render`? {listen}"));
        assert_eq!(none_ever(never.nearest.as_ref()), "none was ever online, did you mean report.render?");
        never.nearest = None;
        assert_eq!(none_ever(None), "none was ever online");
        assert_eq!(never.to_string(), format!("{begins}{listen}"));
    }
}
