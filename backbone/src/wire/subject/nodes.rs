//! The subjects on which nodes ask one another, and notify one another and handlers of cancelled runs.

use longshore_domain::{Queue, RunId, Tenant};

use super::Names;

impl Names {
    /// The subject of the node-name check, on which a node is asked whether it has this name.
    pub fn node(&self, name: &str) -> String {
        format!("{}.nodes.{name}", self.namespace)
    }

    /// The subject on which nodes ask each other for the end of a run that left no record.
    pub fn end_of(&self, tenant: &Tenant, run: &RunId) -> String {
        format!("{}.ends.{tenant}.{run}", self.namespace)
    }

    /// The subject on which every node listens for such questions.
    pub fn ends(&self) -> String {
        format!("{}.ends.*.*", self.namespace)
    }

    /// Tenant and run of such a question.
    pub fn read_end<'a>(&self, subject: &'a str) -> Option<(&'a str, &'a str)> {
        subject.strip_prefix(&*self.namespace)?.strip_prefix(".ends.")?.split_once('.')
    }

    /// The subject on which nodes and handlers that run a job learn that it was cancelled.
    pub fn cancel(&self, tenant: &Tenant, run: &RunId) -> String {
        format!("{}.cancel.{tenant}.{run}", self.namespace)
    }

    /// The subject on which every node listens for cancelled runs.
    pub fn cancel_all(&self) -> String {
        format!("{}.cancel.*.*", self.namespace)
    }

    /// The subject on which nodes learn that a run is cancelled unless an attempt is running: a running attempt goes
    /// on, and its handler receives nothing.
    pub fn cancel_waiting(&self, tenant: &Tenant, run: &RunId) -> String {
        format!("{}.nodes._sys.cancel.{tenant}.{run}", self.namespace)
    }

    /// The subject on which every node listens for those.
    pub fn cancel_waiting_all(&self) -> String {
        format!("{}.nodes._sys.cancel.*.*", self.namespace)
    }

    /// Tenant and run of a cancel subject of either kind.
    pub fn read_cancel<'a>(&self, subject: &'a str) -> Option<(&'a str, &'a str)> {
        let plane = subject.strip_prefix(&*self.namespace)?;
        plane.strip_prefix(".cancel.").or_else(|| plane.strip_prefix(".nodes._sys.cancel."))?.split_once('.')
    }

    /// The subject on which nodes ask another whether it holds a job.
    pub fn holder(&self, node: &str) -> String {
        format!("{}.holder._sys.{node}", self.namespace)
    }

    /// The subject on which nodes ask each other which deliveries they hold. It has one token more than the subject of
    /// any node-name check.
    pub fn held(&self) -> String {
        format!("{}.nodes._sys.held", self.namespace)
    }

    /// The subject on which nodes ask each other how many jobs of a queue's lanes they were delivered.
    pub fn delivered(&self, queue: &Queue) -> String {
        format!("{}.nodes._sys.delivered.{queue}", self.namespace)
    }
}
