//! Which types were ever served, as this node knows it: what the cluster remembers, and what this node has seen since.
//!
//! `cluster/served_types.rs` reads and stores it. A job of a type that is known costs the look into a table, and
//! nothing else.

use std::sync::RwLock;
use std::time::Duration;

use longshore_backbone::Error;
use longshore_backbone::served_types::{Remembered, ServedTypesStore as Store};
use longshore_domain::served::ServedTypes as Types;
use longshore_domain::{JobType, Timestamp};
use tokio::sync::Notify;

use crate::runtime::Unpoisoned as _;

/// How long reading may take.
pub(crate) const WITHIN: Duration = Duration::from_secs(2);

/// The types that handlers were ever online for.
#[derive(Debug, Default)]
pub(crate) struct ServedTypes {
    table: RwLock<TypesTable>,
    /// Notified when there is a type that the cluster may not remember.
    pub(crate) seen: Notify,
}

#[derive(Debug, Default)]
struct TypesTable {
    types: Types,
    /// Types that this node has seen handlers of, until the cluster remembers them.
    to_store: Vec<JobType>,
    /// The revision up to which this node has read what the cluster remembers.
    read_up_to: u64,
}

impl ServedTypes {
    pub(crate) fn saw(&self, job_type: &JobType) {
        if !self.table.read().unpoisoned().types.is_new(job_type) {
            return;
        }
        let mut table = self.table.write().unpoisoned();
        if table.types.add(job_type.clone()) {
            table.to_store.push(job_type.clone());
            self.seen.notify_one();
        }
    }

    /// Whether it is certain at `now` that no handler of the type was ever online.
    pub(crate) fn was_never_served(&self, job_type: &JobType, now: Timestamp) -> bool {
        self.table.read().unpoisoned().types.was_never_served(job_type, now)
    }

    /// The served type that may be meant by another name.
    pub(crate) fn nearest(&self, job_type: &JobType) -> Option<JobType> {
        self.table.read().unpoisoned().types.nearest(job_type).cloned()
    }
}

/// For the parts that read and store it.
impl ServedTypes {
    /// A type that the cluster is to remember.
    pub(crate) fn to_store(&self) -> Option<JobType> {
        self.table.read().unpoisoned().to_store.last().cloned()
    }

    /// The cluster remembers this type.
    pub(crate) fn stored(&self, job_type: &JobType) {
        self.table.write().unpoisoned().to_store.retain(|of| of != job_type);
    }

    pub(crate) fn read_up_to(&self) -> u64 {
        self.table.read().unpoisoned().read_up_to
    }

    /// This was read, up to that revision. What was known stays known.
    pub(crate) fn take_in(&self, remembered: Vec<Remembered>, up_to: u64) {
        let mut table = self.table.write().unpoisoned();
        table.read_up_to = up_to;
        for what in remembered {
            match what {
                Remembered::Type(job_type) => {
                    table.to_store.retain(|of| *of != job_type);
                    table.types.add(job_type);
                }
                Remembered::CompleteFrom(at) => table.types.complete_from = Some(at),
            }
        }
    }

    /// Whether it is known from when on what the cluster remembers is complete.
    pub(crate) fn knows_from_when(&self) -> bool {
        self.table.read().unpoisoned().types.complete_from.is_some()
    }
}

/// Reads what other nodes have stored since this one last read. Says whether that is known now.
pub(crate) async fn refresh(store: &Store, served: &ServedTypes) -> bool {
    matches!(tokio::time::timeout(WITHIN, read(store, served, served.read_up_to())).await, Ok(Ok(())))
}

/// Reads what was stored after this revision.
pub(crate) async fn read(store: &Store, served: &ServedTypes, from: u64) -> Result<(), Error> {
    let (remembered, up_to) = store.remembered_after(from).await?;
    served.take_in(remembered, up_to);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(name: &str) -> JobType {
        JobType::parse(name).unwrap()
    }

    #[test]
    fn a_type_is_stored_once_and_what_the_cluster_remembers_is_not_stored_again() {
        let served = ServedTypes::default();
        let at = |second: i64| Timestamp::from_millis(second * 1_000);
        for name in ["mail", "call", "mail"] {
            served.saw(&of(name));
        }
        served.take_in(vec![Remembered::CompleteFrom(at(5)), Remembered::Type(of("mail"))], 7);
        assert_eq!((served.to_store(), served.read_up_to(), served.knows_from_when()), (Some(of("call")), 7, true));
        served.stored(&of("call"));
        served.saw(&of("call"));
        assert_eq!(served.to_store(), None);
        let never = |name| served.was_never_served(&of(name), at(5));
        assert_eq!([never("mail"), never("call"), never("mial")], [false, false, true]);
        assert_eq!(served.nearest(&of("mial")), Some(of("mail")));
        served.take_in(Vec::new(), 0);
        assert!(!never("mail"), "a bucket that lost it does not make it forgotten here");
    }
}
