//! A subject that a publish takes over.

use std::cell::Cell;

use async_nats::{Subject, ToSubject};

/// A subject for one publish. The client library clones the subject it is given; the clone of a subject that is not
/// shared yet, such as that of an acknowledgement, needs memory of its own.
pub(crate) struct TakenSubject(Cell<Option<Subject>>);

impl TakenSubject {
    pub(crate) fn new(subject: Subject) -> Self {
        Self(Cell::new(Some(subject)))
    }
}

impl ToSubject for TakenSubject {
    /// The subject itself; on a second call an empty one, with which nothing can be published.
    fn to_subject(&self) -> Subject {
        self.0.take().unwrap_or_else(|| Subject::from_static(""))
    }
}
